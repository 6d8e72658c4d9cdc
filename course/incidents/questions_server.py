"""Questions about engines, their steps and caches, and the fleet. Their words are in questions.toml."""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from statistics import median

from course.incidents.evidence import EvidencePanel, IncidentScene, QuestionResult, Row
from course.incidents.numbers import (
    answered,
    over_time,
    seconds_per_thousand,
    spread,
    time_by_place,
    waiting_while_traffic_comes,
)
from course.incidents.questions_clients import TIME
from course.incidents.service import ServicePlay, StepRow
from course.lab.pictures.chart import Curve
from course.lab.style import number, seconds
from course.lab.visits import mean
from course.simulator.cluster.record import ClientRecord
from minillm.observe.speculation import SpeculationSummary

MOST_POINTS = 400
"""Dots in a cloud; more say no more."""
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Upper ends of the classes of batch sizes: up to all the slots that any service has."""
YOUNG = 6
"""A replica's first so many requests."""


def phases(scene: IncidentScene) -> QuestionResult:
    times = time_by_place(scene.now)
    total = sum(sum(values) for values in times.values()) or 1.0
    rows = {
        name.replace("_", " "): {"mean": mean(values), "p99": spread(values)["p99"], "share": sum(values) / total}
        for name, values in times.items()
    }
    shares = ", ".join(f"{name} {row['share']:.0%}" for name, row in rows.items())
    return QuestionResult(rows, "seconds, by the engines' stamps", says={"shares": shares})


def queue_over_time(scene: IncidentScene) -> QuestionResult:
    waiting = over_time(scene.now, lambda sample: sample.waiting)
    running = over_time(scene.now, lambda sample: sample.outstanding - sample.waiting)
    within = waiting_while_traffic_comes(scene.now)
    rows = {}
    for i, name in enumerate(("first third", "second third", "last third")):
        part = within[i * len(within) // 3 : (i + 1) * len(within) // 3] or [0]
        rows[name] = {"waiting, mean": mean(part), "waiting, max": max(part)}
    return QuestionResult(
        rows,
        panel=EvidencePanel((Curve("waiting", *waiting), Curve("running", *running)), TIME, "requests"),
    )


def batch(scene: IncidentScene) -> QuestionResult:
    slots = scene.now.service.engine.max_num_seqs
    running = over_time(scene.now, lambda sample: sample.outstanding - sample.waiting, "mean")
    values = running[1] or [0.0]
    lines = (
        Curve("running", *running),
        Curve("waiting", *over_time(scene.now, lambda s: s.waiting, "mean")),
    )
    limit = (float(slots), "slots") if max(values) * 4 > slots else ()  # else the curves would lie on the floor
    row = {"mean": mean(values), "max": max(values), "min": min(values), "slots": slots}
    return QuestionResult(
        {"running per replica": row}, panel=EvidencePanel(lines, TIME, "requests per replica", *limit)
    )


def kv_use(scene: IncidentScene) -> QuestionResult:
    used = over_time(scene.now, lambda sample: 100 * sample.kv_used, "mean")
    values = used[1] or [0.0]
    panel = EvidencePanel((Curve("held", *used),), TIME, "% of KV blocks", 100.0, "full", high=112)
    rows = {"share of KV blocks held, %": {"mean": mean(values), **spread(values)}}
    return QuestionResult(rows, panel=panel, says={"pool": _pool(scene.now)})


def _pool(play: ServicePlay) -> int:
    """Tokens that one replica's KV pool holds."""
    on = play.service.deployment()
    return on.num_kv_blocks * on.block_size


def preemptions(scene: IncidentScene) -> QuestionResult:
    return QuestionResult(
        scene.weeks(
            lambda play: {
                "preemptions": sum(report.num_preemptions for report in play.run.reports),
                "tokens computed again": sum(report.num_recomputed_tokens for report in play.run.reports),
                "prompt tokens that arrived": sum(r.request.num_prompt_tokens for r in play.run.records),
            }
        )
    )


def hit_rate(scene: IncidentScene) -> QuestionResult:
    return QuestionResult(scene.weeks(lambda play: {"hit rate, share": play.run.prefix_hit_rate}), "of prompt tokens")


def shared_prefix(scene: IncidentScene) -> QuestionResult:
    return QuestionResult(scene.weeks(_shared), "tokens, mean of the raw prompts")


def _shared(play: ServicePlay) -> Row:
    """Tokens of a mean prompt, those in pieces that other prompts have, and those in a common beginning."""
    prompts = [record.request.pieces for record in play.run.records]
    beginnings = [list(accumulate((piece.name,) for piece in pieces)) for pieces in prompts]
    pieces = Counter(piece.name for prompt in prompts for piece in prompt)
    starts = Counter(start for prompt in beginnings for start in prompt)
    total = anywhere = at_start = 0
    for prompt, beginning in zip(prompts, beginnings):
        for piece, start in zip(prompt, beginning):
            total += piece.num_tokens
            anywhere += piece.num_tokens * (pieces[piece.name] > 1)
            at_start += piece.num_tokens * (starts[start] > 1)
    count = max(len(prompts), 1)
    return {"prompt": total / count, "anywhere": anywhere / count, "at the start": at_start / count}


def working_set(scene: IncidentScene) -> QuestionResult:
    def row(play: ServicePlay) -> Row:
        pieces = [piece for record in play.run.records for piece in record.request.pieces]
        seen = Counter(piece.name for piece in pieces)
        shared = {piece.name: piece.num_tokens for piece in pieces if seen[piece.name] > 1}
        return {
            "shared pieces": len(shared),
            "their tokens": sum(shared.values()),
            "tokens a replica's pool holds": _pool(play),
            "replicas": max(play.service.fleet.replicas, 1),
        }

    return QuestionResult(scene.weeks(row))


def acceptance(scene: IncidentScene) -> QuestionResult:
    rows, lines = {}, []
    for name, found in _drafted(scene):
        if found.num_verifications:
            passed = [100 * share for share in found.acceptance_at]
            places = {f"position {i + 1}, %": share for i, share in enumerate(passed)}
            rows[name] = {"tokens per verification": found.emitted_per_verify, **places}
            lines.append(Curve(name, list(range(1, len(passed) + 1)), passed))
    if not rows:
        return QuestionResult({"now": {"drafts": 0}}, says={"verified": "No drafts are made."})
    told = [f"{name}: {number(row['tokens per verification'])} tokens per verification" for name, row in rows.items()]
    panel = EvidencePanel(tuple(lines), "position in the draft", "% accepted")
    return QuestionResult(rows, panel=panel, says={"verified": f"{'; '.join(told)}."})


def _drafted(scene: IncidentScene) -> Iterator[tuple[str, SpeculationSummary]]:
    """Each week's drafts; where some prompts came out of a prefix cache and others didn't, also by that."""

    def of(records: Iterable[ClientRecord]) -> SpeculationSummary:
        return SpeculationSummary.of_requests([record.as_request_record() for record in records])

    for week, play in scene.weeks(lambda play: play).items():
        done = answered(play)
        yield week, of(done)
        cached = [record for record in done if record.num_cached_tokens]
        if 0 < len(cached) < len(done):
            yield f"{week}, prompt from a cache", of(cached)
            yield f"{week}, prompt computed", of(record for record in done if not record.num_cached_tokens)


def _cloud(steps: Sequence[StepRow], size: Callable[[StepRow], int], what: str) -> EvidencePanel | None:
    """A dot a step, or a share of them: its size against its time."""
    few = steps[:: len(steps) // MOST_POINTS + 1]
    dots = Curve("steps", [size(step) for step in few], [1e3 * step.seconds for step in few], "points")
    return EvidencePanel((dots,), f"{what} in the step", "milliseconds") if few else None


def step_times(scene: IncidentScene) -> QuestionResult:
    steps = scene.now.steps
    rows = {
        "seconds": spread([step.seconds for step in steps]),
        "tokens": spread([step.tokens for step in steps]),
        "prompt tokens": spread([step.prompt_tokens for step in steps]),
    }
    slowest = max(steps, key=lambda step: step.seconds)
    return QuestionResult(rows, "per step", _cloud(steps, lambda step: step.tokens, "tokens"), {"slowest": slowest})


def decode_steps(scene: IncidentScene) -> QuestionResult:
    decoding = scene.weeks(lambda play: [step for step in play.steps if not step.prompt_tokens])
    rows, ends = {}, []
    for week, steps in decoding.items():
        medians = []
        for low, high in zip((0, *BATCHES), BATCHES):
            found = [step.seconds for step in steps if low < step.requests <= high]
            if found:
                size = f"{low + 1} to {high} requests" if low + 1 < high else f"{high} request{'s' * (high > 1)}"
                rows[f"{week}, {size}"] = {"steps": len(found), **spread(found)}
                medians.append(f"{seconds(rows[f'{week}, {size}']['p50'])} with {size}")
        ends.append(f"{week} {' and '.join(dict.fromkeys((*medians[:1], *medians[-1:]))) or 'none'}")
    panel = _cloud(decoding["now"], lambda step: step.requests, "requests")
    return QuestionResult(rows, "seconds of a step that only decodes", panel, {"medians": "; ".join(ends)})


def chunks(scene: IncidentScene) -> QuestionResult:
    def row(play: ServicePlay) -> Row:
        tokens = [step.prompt_tokens for step in play.steps if step.prompt_tokens]
        cost = seconds_per_thousand(play)
        return {
            "prompt tokens in a step, p50": spread(tokens)["p50"],
            "most": max(tokens, default=0),
            "budget of a step": play.service.engine.max_num_batched_tokens,
            "ms per 1000 prompt tokens": None if cost is None else 1e3 * cost,
        }

    return QuestionResult(scene.weeks(row))


def collectives(scene: IncidentScene) -> QuestionResult:
    def row(play: ServicePlay) -> Row:
        total = sum(step.seconds for step in play.steps) or 1.0
        return {
            "tensor parallel": play.service.tp,
            "attention, share": sum(step.attention for step in play.steps) / total,
            "all-reduce, share": sum(step.all_reduce for step in play.steps) / total,
            "waiting for the host, share": sum(step.host for step in play.steps) / total,
        }

    return QuestionResult(scene.weeks(row))


def gpu(scene: IncidentScene) -> QuestionResult:
    rows = {report.replica: {"busy, %": 100 * report.utilization} for report in scene.now.run.reports}
    return QuestionResult(rows, "replica", says={"mean": mean([row["busy, %"] for row in rows.values()])})


def per_replica(scene: IncidentScene) -> QuestionResult:
    rows = {}
    steps = _seconds_by_replica(scene.now)
    for place, report in enumerate(scene.now.run.reports):
        mine = [r for r in answered(scene.now) if r.replica == report.replica]
        waits = [s.waiting for s in scene.now.run.samples if s.replica == report.replica]
        first = spread([record.ttft("intended") for record in mine])
        rows[report.replica] = {
            "answered": report.num_requests,
            "TTFT p50, seconds": first["p50"],
            "TTFT p95, seconds": first["p95"],
            "waiting, max": max(waits, default=0),
            "step p50, ms": 1e3 * median(steps[place]) if steps[place] else None,
            "hit rate, share": report.prefix_hit_rate,
            "tenants seen": len({r.request.tenant for r in mine}),
            "busy, share": report.utilization,
        }
    done = [row["answered"] for row in rows.values()]
    return QuestionResult(rows, "replica", says={"replicas": len(rows), "most": max(done), "answered": sum(done)})


def _seconds_by_replica(play: ServicePlay) -> dict[int, list[float]]:
    """How long each step took, by the replica's number."""
    found: dict[int, list[float]] = defaultdict(list)
    for step in play.steps:
        found[step.replica].append(step.seconds)
    return found


LATELY = 0.1
"""Share of the window in which a replica that works has finished steps."""


def cards(scene: IncidentScene) -> QuestionResult:
    """What nvidia-smi and a bandwidth test say of each replica's cards, and whether they get anything done."""
    play = scene.now
    until = play.service.duration_s
    rows: dict[str, Row] = {}
    clocks, steps, links = [], [], []
    for place, report in enumerate(play.run.reports):
        here = play.service.with_fault() if place == 0 else play.service
        lately = sum(step.replica == place and (1 - LATELY) * until <= step.end <= until for step in play.steps)
        link = here.deployment().profile.hardware.link / 1e9 if here.tp > 1 else None
        rows[report.replica] = {"clock, share": here.clock, "steps lately": lately, "between cards, GB/s": link}
        clocks.append(f"{here.clock:.0%}")
        steps.append(str(lately))
        links.append("one card" if link is None else f"{number(link)} GB/s")
    says = {"clocks": ", ".join(clocks), "steps": ", ".join(steps), "links": ", ".join(links)}
    return QuestionResult(rows, "replica", says=says)


def versions(scene: IncidentScene) -> QuestionResult:
    """What each replica says it has loaded."""
    play, loaded = scene.now, []
    rows: dict[str, Row] = {}
    for place, report in enumerate(play.run.reports):
        here = play.service.with_fault() if place == 0 else play.service
        on = here.deployment()
        gigabytes = on.placement.weight_bytes(on.model) / 1e9
        dtype = on.placement.weight_dtype
        named = hashlib.sha256(f"{here.model} {dtype}".encode()).hexdigest()[:8]
        rows[report.replica] = {"weights": dtype, "GB": gigabytes, "hash": named}
        loaded.append(f"{report.replica}: {named}, {number(gigabytes)} GB")
    return QuestionResult(rows, "replica", says={"loaded": ", ".join(loaded)})


def replica_age(scene: IncidentScene) -> QuestionResult:
    there, reports = scene.now.service.fleet.replicas, scene.now.run.reports
    young, old = [], []
    for place, report in enumerate(reports):
        mine = sorted((r for r in answered(scene.now) if r.replica == report.replica), key=lambda r: r.accepted)
        first = YOUNG if place >= there else 0
        young += [record.ttft("intended") for record in mine[:first]]
        old += [record.ttft("intended") for record in mine[first:]]
    rows = {
        f"a further replica's first {YOUNG} requests": {"requests": len(young), **spread(young)},
        "all others": {"requests": len(old), **spread(old)},
    }
    return QuestionResult(
        rows, "TTFT, seconds", says={"started": len(reports) - there, "young": next(iter(rows.values()))["p50"]}
    )


def ingress(scene: IncidentScene) -> QuestionResult:
    done = [record for record in answered(scene.now) if record.accepted is not None]
    rows = {
        "sent, to accepted by the router": spread([record.accepted - record.sent for record in done]),
        "accepted, to an engine's first step": spread([record.timeline.scheduled - record.accepted for record in done]),
    }
    return QuestionResult(rows, "seconds")
