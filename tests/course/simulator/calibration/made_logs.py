"""Logs that the simulator itself wrote, so that the truth is known."""

import json
import random
from pathlib import Path

from course.simulator.calibration.replay import serve_log
from course.simulator.calibration.requests_log import LoggedRequest
from course.simulator.deployment import Deployment


def made_requests(num: int, rate: float, seed: int = 0) -> list[LoggedRequest]:
    rng, moment, requests = random.Random(seed), 0.0, []
    for i in range(num):
        requests.append(LoggedRequest(f"r{i}", rng.randint(100, 1800), rng.randint(20, 160), moment))
        moment += rng.expovariate(rate)
    return requests


def write_served_log(path: Path, deployment: Deployment, requests: list[LoggedRequest]) -> None:
    """Serve the requests on a deployment, and write down what a real server would, in order of arrival: requests that
    were queued in one moment wait in the log's order."""
    outputs = {output.request_id: output for output in serve_log(deployment, requests)}
    with path.open("w") as file:
        for output in (outputs[request.request_id] for request in requests):
            timeline = output.timeline
            row = {
                "request_id": output.request_id,
                "input_toks": len(output.prompt_token_ids),
                "output_toks": timeline.num_tokens,
                "queued_ts": timeline.arrival,
                "scheduled_ts": timeline.scheduled,
                "first_token_ts": timeline.first_token,
                "last_token_ts": timeline.last_token,
            }
            file.write(json.dumps(row) + "\n")
