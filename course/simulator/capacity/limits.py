"""Which resource a replica runs out of first, and what its time goes to. Read from the engine's step records."""

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from course.simulator.cluster.replica import EngineFactory
from course.simulator.cluster.run import FleetRun
from course.simulator.errors import SimulationError
from minillm.core.batch import LaunchedStep, Runner, ScheduledBatch
from minillm.core.step_log import StepRecord
from minillm.core.timeline import VirtualClock
from minillm.frontend.engine import Engine
from minillm.observe.step_cost import split_steps

Explain = Callable[[ScheduledBatch], Mapping[str, float]]
"""Seconds of a step by what they were spent on, for instance compute, bandwidth, link, launch floor."""
FULL = 0.9
"""A KV pool counts as full from this share on: the next prompt may not fit."""
OFTEN = 0.2
"""Requests must wait for this share of the busy time, or what they wait for does not bind: bursts make queues, too."""
BUSY = 0.95
"""From this share of the time on, a prefill pool has none left: it does one thing after the other. Nor has a link."""
MOSTLY = 0.5
"""Requests wait for a resource that is used up in this share of the time they wait, or more."""


@dataclass(frozen=True, slots=True)
class Bottlenecks:
    """What kept a replica from serving more, a little past its knee. Shares of its busy time."""

    binding: str
    """slots, KV memory, or what its steps' time is spent on."""
    why: str
    queued: float
    """Requests waited in the queue."""
    slots_full: float
    """Requests waited, and every slot was taken."""
    kv_full: float
    """Requests waited, and the KV pool was as good as full."""
    step_time: dict[str, float]
    """By resource; empty when the steps were not explained."""


def find_limits(run: FleetRun, seconds: Mapping[str, float]) -> Bottlenecks:
    """Judge a run of one replica past its knee.

    Whatever keeps requests out for most of the time that any of them waits is what binds: no slot, or no
    memory. If neither, they wait for steps to end, and the largest part of the steps' time binds. With pools for
    prefill and decode, the prefill pool or the link does if it has no time left, else what binds the decode pool.

    Args:
        seconds: what the steps' time was spent on, if that is known.
    """
    limits = find_pool_limits(run, seconds)
    if "prefill" not in run.pools:
        return limits
    sent = max(record.sent or 0.0 for record in run.records) or 1.0
    prefills = [report for report in run.reports if report.pool == "prefill"]
    busy = {
        "prefill pool": sum(report.busy_s for report in prefills) / len(prefills) / sent,
        "link between the pools": run.link_busy_s / sent,
    }
    told = ", ".join(f"{name} {min(share, 1):.0%}" for name, share in busy.items()) + " of the time busy"
    for name, share in busy.items():
        if share > BUSY:
            return replace(limits, binding=name, why=told)
    why = f"{told}; in the decode pool {limits.why}"
    return replace(limits, binding=f"decode pool: {limits.binding}", why=why)


def find_pool_limits(run: FleetRun, seconds: Mapping[str, float]) -> Bottlenecks:
    """What binds the main pool; arguments as of `find_limits`."""
    slots = run.pools["main"].replicas[0].engine.config.max_num_seqs
    steps = list(steps_of(run))
    waiting = [step for step in steps if step.num_waiting]
    without_slot = [step for step in waiting if step.num_running >= slots]
    without_memory = [
        step for step in waiting if step.num_running < slots and step.kv_blocks_used >= FULL * step.kv_blocks_total
    ]
    busy = seconds_of(steps) or 1.0
    queued, slots_full, kv_full = (seconds_of(some) / busy for some in (waiting, without_slot, without_memory))
    total = sum(seconds.values())
    parts = {name: value / total for name, value in seconds.items() if total > 0}
    left = "slots and KV memory to spare"
    if queued > OFTEN and max(slots_full, kv_full) > MOSTLY * queued:
        if slots_full >= kv_full:
            binding, why = "slots", f"while requests wait, all {slots} slots are taken (max_num_seqs)"
        else:
            binding, why = "KV memory", "while requests wait, slots are free but the KV pool is full"
    elif parts:
        binding = max(parts, key=parts.__getitem__)
        why = f"{left}, and {parts[binding]:.0%} of the steps' time is spent on it"
    else:
        binding, why = "step time", f"{left}; pass explain= to see what steps are spent on"
    return Bottlenecks(binding, why, queued, slots_full, kv_full, parts)


def prefill_share(run: FleetRun) -> float:
    """Share of the steps' time that prompts cost: what they add to the steps they are in (observe/step_cost.py). A step
    of prompts alone would not have been taken without them: it is theirs whole, its fixed cost too.

    If no step of the run had decodes alone, nothing tells what a step takes without prompts. A bill must name a share
    all the same: steps are then split by tokens, so that prompts pay for most of the fixed cost.
    """
    steps = list(steps_of(run))
    has_plain = any(step.num_prefill_tokens == 0 for step in steps)
    prefill = 0.0
    for step, cost in zip(steps, split_steps(steps)):
        by_tokens = (step.end - step.start) * step.num_prefill_tokens / step.num_tokens
        alone = step.num_prefill_tokens == step.num_tokens
        prefill += cost.prompts if has_plain and not alone else by_tokens
    return prefill / total if (total := seconds_of(steps)) else 0.0


def seconds_of(steps: Iterable[StepRecord]) -> float:
    """How long they took together."""
    return sum(step.end - step.start for step in steps)


def steps_of(run: FleetRun) -> Iterator[StepRecord]:
    """All steps that the engines still remember: the last few thousand of each, or all; see `recording`.

    Raises:
        SimulationError: they keep no records.
    """
    for replica in run.pools["main"].replicas:
        if replica.busy_s and not replica.engine.steps:
            raise SimulationError("the engines keep no step records: pass make_recording_engine, whose engines do")
        yield from replica.engine.steps


def recording(make_engine: EngineFactory, explain: Explain | None = None) -> tuple[EngineFactory, Mapping[str, float]]:
    """A factory of the same engines, which forget no step record: the last few thousand would show the end of a run.

    Args:
        explain: explains their steps.
    Returns:
        The factory, and where the explained seconds will be summed up.
    """
    seconds: defaultdict[str, float] = defaultdict(float)

    def make(clock: VirtualClock) -> Engine:
        engine = make_engine(clock)
        engine.core.log.records = deque(engine.core.log.records)
        if explain is not None:
            engine.core.runner = ExplainedRunner(engine.runner, explain, seconds)
        return engine

    return make, seconds


class ExplainedRunner:
    """Passes everything on to another runner, and sums up what its steps are spent on."""

    def __init__(self, runner: Runner, explain: Explain, seconds: defaultdict[str, float]) -> None:
        self._runner, self._explain, self._seconds = runner, explain, seconds
        self.num_kv_blocks, self.num_host_blocks = runner.num_kv_blocks, runner.num_host_blocks
        self.block_size, self.runs_beside_python = runner.block_size, runner.runs_beside_python

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def launch(self, batch: ScheduledBatch) -> LaunchedStep:
        for resource, seconds in self._explain(batch).items():
            self._seconds[resource] += seconds
        return self._runner.launch(batch)

    def copy_blocks(self, batch: ScheduledBatch) -> None:
        self._runner.copy_blocks(batch)
