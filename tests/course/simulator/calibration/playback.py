"""Plays a real run back: its own step times, under the simulator's runner.

What a schedule depends on is who had arrived when each step began, and how long the steps took. Given both,
the same scheduler must make the same batches, token for token: the simulator's error is in its prices alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from course.simulator.calibration.replay import Arrival
from course.simulator.simulated_runner import SimulatedRunner
from minillm.core.batch import ScheduledBatch
from minillm.core.params import SamplingParams
from minillm.core.step_log import StepRecord
from minillm.core.timeline import VirtualClock
from minillm.frontend.engine import Engine
from minillm.frontend.outputs import RequestOutput
from minillm.policies.config import EngineConfig


@dataclass(frozen=True, slots=True)
class RecordedTime:
    """What a step took."""

    forward: float
    total: float


@dataclass(frozen=True, slots=True)
class Playback:
    """A run that was played back."""

    outputs: list[RequestOutput]
    steps: list[StepRecord]


def arrivals_of_run(outputs: Sequence[RequestOutput]) -> list[Arrival]:
    """What the engine was asked in a real run: prompts, moments, and the output lengths they turned out to have."""
    arrivals = [
        Arrival(output.request_id, output.timeline.arrival, output.prompt_token_ids, len(output.token_ids))
        for output in outputs
    ]
    return sorted(arrivals, key=lambda arrival: arrival.moment)


def play_back(
    config: EngineConfig,
    num_kv_blocks: int,
    num_host_blocks: int,
    arrivals: Sequence[Arrival],
    recorded: Sequence[StepRecord],
) -> Playback:
    """Serve the arrivals with every step beginning and ending when the recorded one did.

    Args:
        config: of the recorded engine, with its block_size and max_model_len.
        recorded: all its steps, from the first on.
    """
    clock = VirtualClock(min(recorded[0].start, arrivals[0].moment))
    times = iter(recorded)

    def price(_: ScheduledBatch) -> RecordedTime:
        # Where the copy of a step begins exactly when its original did, it ends exactly when that did.
        seconds = next(times).end - clock.now()
        return RecordedTime(seconds, seconds)

    runner = SimulatedRunner(
        price,
        clock,
        num_kv_blocks=num_kv_blocks,
        num_host_blocks=num_host_blocks,
        block_size=config.block_size,
        runs_beside_python=False,
    )
    engine = Engine.on_runner(config, runner, clock)
    outputs: list[RequestOutput] = []
    upcoming = 0
    for step in recorded:
        clock.advance_to(max(clock.now(), step.start))
        while upcoming < len(arrivals) and arrivals[upcoming].moment <= step.start:
            arrival = arrivals[upcoming]
            engine.add_request(
                arrival.prompt_token_ids,
                SamplingParams(temperature=0, max_tokens=arrival.output_tokens, ignore_eos=True),
                request_id=arrival.request_id,
                arrival=arrival.moment,
                stream=False,
            )
            upcoming += 1
        outputs += engine.step()
    return Playback(outputs, list(engine.steps))
