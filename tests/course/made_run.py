"""Runs made by hand, by a scheduler of thirty lines: pictures can be tested without an engine."""

from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate

from course.lab.run import Row, Run
from course.lab.snapshot import FREE, EngineSnapshot, RequestView
from minillm import EngineConfig
from minillm.core.step_log import StepRecord, StepShare
from minillm.core.timeline import Timeline

START = 100.0


def made_config(**fields) -> EngineConfig:
    return EngineConfig(**{"max_num_seqs": 4, "max_num_batched_tokens": 128, "num_kv_blocks": 96, **fields})


def made_run(
    num_requests: int = 8,
    config: EngineConfig | None = None,
    until: float = 1e9,
    prompt: int = 200,
    output: int = 12,
    apart: float = 0.0,
    preempt_step: int | None = None,
) -> Run:
    """First come, first served; a step takes 20 ms and 1 ms a token. `until`: look at it then, unfinished."""
    config = config or made_config()
    now, steps = START, []
    lines = [Timeline(START + apart * i) for i in range(num_requests)]
    computed, written = [0] * num_requests, [0] * num_requests
    skip: set[int] = set()
    while not all(n == output for n in written) and now - START < until:
        active = [i for i in range(num_requests) if written[i] < output and lines[i].arrival <= now]
        running = [i for i in active if i not in skip][: config.max_num_seqs]
        preempted: tuple[str, ...] = ()
        skip.clear()
        if preempt_step == len(steps) and len(running) > 1:
            victim = running.pop()
            computed[victim], skip, preempted = 0, {victim}, (f"made-{victim}",)
        if not running:
            now += 0.01
            continue
        shares, budget, ready = [], config.max_num_batched_tokens, []
        for i in running:
            take = min(prompt + written[i] - computed[i], budget)
            if take == 0:
                continue
            budget -= take
            lines[i].scheduled = now if lines[i].scheduled is None else lines[i].scheduled
            shares.append(StepShare(f"made-{i}", take, computed[i] < prompt))
            computed[i] += take
            ready += [i] if computed[i] == prompt + written[i] else []
        end = now + 0.02 + 0.001 * sum(share.num_tokens for share in shares)
        stages = {"schedule": 0.0, "forward": end - now}
        used = sum(-(-computed[i] // 16) for i in running)
        waiting = len(active) - len(shares)
        steps.append(StepRecord(len(steps), now, end, tuple(shares), waiting, len(shares), used, 96, preempted, stages))
        now = end
        for i in ready:
            lines[i].prefill_end = lines[i].prefill_end or now - 0.002
            lines[i].deliver(now, 1)
            written[i] += 1
            if written[i] == output:
                lines[i].accept(now + 0.0005)
                computed[i] = 0
    views = [
        _view(i, lines[i], now, prompt, written[i], output) for i in range(num_requests) if lines[i].arrival <= now
    ]
    rows = tuple(
        Row(i, f"made-{i}", apart * i, apart * i, None, views[i] if i < len(views) else None)
        for i in range(num_requests)
    )
    owners = [i for i, n in enumerate(computed) for _ in range(-(-n // 16))]
    owners = (owners + [FREE] * 96)[:96]
    snapshot = EngineSnapshot(
        now,
        tuple(views),
        tuple(steps),
        len(steps),
        tuple(owners),
        16,
        num_requests * prompt,
        0,
        num_preemptions=sum(len(step.preempted) for step in steps),
        num_recomputed_tokens=0,
    )
    return Run(
        "made",
        config,
        rows,
        tuple(steps),
        snapshot,
        snapshot,
        (),
        START,
        done=all(view.finish_reason for view in views),
    )


def with_views(run: Run, change: Callable[[Row], dict]) -> Run:
    """The same run, with these fields of each request's view changed."""
    return replace(run, rows=tuple(replace(row, view=replace(row.view, **change(row))) for row in run.rows))


def bordered(row: Row, *seconds: float) -> tuple[float, ...]:
    """The borders of a request whose phases take so many seconds, from its arrival on."""
    return tuple(accumulate(seconds, initial=row.view.borders[0]))


def _view(i: int, line: Timeline, now: float, prompt: int, written: int, output: int) -> RequestView:
    finished = line.finished is not None
    return RequestView(
        request_id=f"made-{i}",
        arrival_index=i,
        status="finished" if finished else "running",
        finish_reason="length" if finished else None,
        phase=line.current_phase,
        borders=tuple(line.borders(now)),
        num_prompt_tokens=prompt,
        num_cached_tokens=0,
        num_computed_tokens=0,
        num_output_tokens=written,
        max_tokens=output,
        num_preemptions=0,
        deliveries=tuple(line.deliveries),
        lost={},
        text="made by hand",
    )
