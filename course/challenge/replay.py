"""A played trace as a file for https://ui.perfetto.dev: for each replica its requests in phases, and its steps."""

import json
from pathlib import Path
from typing import Any

from course.challenge.play import Played
from course.challenge.result import how
from minillm.core.request import FinishReason
from minillm.observe.records import RequestRecord
from minillm.observe.trace import chrome_trace

PROCESSES = 2
"""Processes in one replica's trace: requests, engine."""


def replay(played: Played) -> dict[str, Any]:
    """Chrome's trace format, JSON-ready.

    Args:
        played: with `keeps_steps`.
    """
    events: list[dict[str, Any]] = []
    for replica in played.replicas:
        outcomes = {
            str(outcome.request.id): outcome for outcome in played.outcomes if outcome.replica == replica.number
        }
        records = [
            RequestRecord(
                name,
                outcome.request.prompt_tokens,
                outcome.reply.num_cached_tokens,
                FinishReason.LENGTH if outcome.reply.token_ids else FinishReason.TIMEOUT,
                outcome.reply.timeline,
            )
            for name, outcome in outcomes.items()
            if outcome.reply is not None and outcome.reply.timeline is not None
        ]
        for event in chrome_trace(records, replica.engine.steps, origin=0.0)["traceEvents"]:
            event["pid"] += PROCESSES * replica.number
            shown = event.get("args", {})
            if event["name"] == "process_name":
                shown["name"] = f"replica {replica.number}: {shown['name']}"
            elif event["name"] == "process_sort_index":
                shown["sort_index"] += PROCESSES * replica.number
            elif event["name"] == "thread_name" and (outcome := outcomes.get(shown["name"].partition(" ")[0])):
                shown["name"] = f"{shown['name']} {outcome.request.kind}, {how(outcome)}"
            events.append(event)
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def write_replay(path: Path, played: Played) -> None:
    path.write_text(json.dumps(replay(played)), encoding="utf-8")
