"""Questions about engines, their steps and caches, and the fleet."""

from course.lab.incidents.evidence import Finding, Scene
from course.lab.incidents.numbers import answered, frame, over_time, seats, seconds_per_thousand, spread
from course.lab.incidents.panel import Line, Panel
from course.lab.incidents.questions_clients import TIME
from course.lab.incidents.service import Play
from course.lab.style import number, seconds
from minillm.core.timeline import PHASES
from minillm.observe.speculation import SpeculationSummary

MOST_POINTS = 400
"""Dots in a cloud; more say no more."""
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Upper ends of the classes of batch sizes: up to all the seats that any service has."""
YOUNG = 6
"""A replica's first so many requests."""


def phases(scene: Scene) -> Finding:
    done = answered(scene.now)
    times = {phase.replace("_", " "): [r.timeline.phases()[phase] for r in done] for phase in PHASES}
    times["outside the engine"] = [max(r.e2e() - r.timeline.e2e, 0.0) for r in done]
    total = sum(sum(values) for values in times.values()) or 1.0
    rows = {
        name: {"mean": sum(values) / max(len(values), 1), "p99": spread(values)["p99"], "share": sum(values) / total}
        for name, values in times.items()
    }
    text = ", ".join(f"{name} {row['share']:.0%}" for name, row in rows.items())
    return Finding(f"Of the answered requests' seconds: {text}.", frame(rows, "seconds, by the engines' stamps"))


def queue_over_time(scene: Scene) -> Finding:
    waiting = over_time(scene.now, lambda sample: sample.waiting)
    running = over_time(scene.now, lambda sample: sample.outstanding - sample.waiting)
    within = [w for t, w in zip(*waiting) if t <= scene.now.service.duration_s] or [0]
    thirds = [within[i * len(within) // 3 : (i + 1) * len(within) // 3] or [0] for i in range(3)]
    means = [sum(part) / len(part) for part in thirds]
    table = frame({f"{name} third": {"waiting, mean": mean, "waiting, max": max(part)}
                   for name, mean, part in zip(("first", "second", "last"), means, thirds)})  # fmt: skip
    text = "Waiting in the engines' queues, mean of each third of the window: "
    lines = Line("waiting", *waiting), Line("running", *running)
    return Finding(text + ", ".join(map(number, means)) + ".", table, Panel(lines, TIME, "requests"))


def batch(scene: Scene) -> Finding:
    per_replica = over_time(scene.now, lambda sample: sample.outstanding - sample.waiting, "mean")
    values = per_replica[1] or [0.0]
    table = frame({"running per replica": {"mean": sum(values) / len(values), "max": max(values), "min": min(values),
                                           "seats": seats(scene.now)}})  # fmt: skip
    text = f"Up to {number(max(values))} run at once on a replica, of {seats(scene.now)} seats."
    lines = (Line("running", *per_replica), Line("waiting", *over_time(scene.now, lambda s: s.waiting, "mean")))
    panel = Panel(lines, TIME, "requests per replica", float(seats(scene.now)), "seats")
    return Finding(text, table, panel if max(values) * 4 > seats(scene.now) else Panel(lines, TIME, panel.y))


def kv_use(scene: Scene) -> Finding:
    used = over_time(scene.now, lambda sample: 100 * sample.kv_used, "mean")
    values = used[1] or [0.0]
    table = frame({"share of KV blocks held, %": {"mean": sum(values) / len(values), **spread(values)}})
    on = scene.now.service.deployment()
    tokens = on.num_kv_blocks * on.block_size
    text = f"{number(max(values))}% of the KV blocks were held at most; a replica's pool holds {tokens} tokens."
    return Finding(text, table, Panel((Line("held", *used),), TIME, "% of KV blocks", 100.0, "full", high=112))


def preemptions(scene: Scene) -> Finding:
    rows = {}
    for name, play in (("last week", scene.before), ("now", scene.now)):
        reports = play.run.reports
        rows[name] = {
            "preemptions": sum(report.num_preemptions for report in reports),
            "tokens computed again": sum(report.num_recomputed_tokens for report in reports),
            "prompt tokens that arrived": sum(r.request.num_prompt_tokens for r in play.run.records),
        }  # fmt: skip
    now = rows["now"]
    text = f"{now['preemptions']} preemptions; {now['tokens computed again']} tokens were computed again."
    return Finding(text, frame(rows))


def hit_rate(scene: Scene) -> Finding:
    rates = {name: play.run.prefix_hit_rate for name, play in (("last week", scene.before), ("now", scene.now))}
    text = ", ".join(f"{name} {rate:.0%}" for name, rate in rates.items())
    table = frame({name: {"hit rate": rate} for name, rate in rates.items()}, "of prompt tokens")
    return Finding(f"Prompt tokens found in a prefix cache: {text}.", table)


def shared_prefix(scene: Scene) -> Finding:
    rows = {name: _shared(play) for name, play in (("last week", scene.before), ("now", scene.now))}
    now = rows["now"]
    text = (
        f"A mean prompt has {number(now['prompt'])} tokens; {number(now['anywhere'])} of them occur in another prompt "
        f"too, {number(now['at the start'])} in one that begins the same."
    )
    return Finding(text, frame(rows, "tokens, mean of the raw prompts"))


def _shared(play: Play) -> dict[str, float]:
    """Tokens of a mean prompt, those in pieces that other prompts have, and those in a common beginning."""
    requests = play.run.records
    pieces: dict[str, int] = {}
    starts: dict[tuple[str, ...], int] = {}
    for record in requests:
        names = tuple(piece.name for piece in record.request.pieces)
        for i, name in enumerate(names):
            pieces[name] = pieces.get(name, 0) + 1
            starts[names[: i + 1]] = starts.get(names[: i + 1], 0) + 1
    total = anywhere = at_start = 0
    for record in requests:
        names = tuple(piece.name for piece in record.request.pieces)
        for i, piece in enumerate(record.request.pieces):
            total += piece.num_tokens
            anywhere += piece.num_tokens * (pieces[piece.name] > 1)
            at_start += piece.num_tokens * (starts[names[: i + 1]] > 1)
    count = max(len(requests), 1)
    return {"prompt": total / count, "anywhere": anywhere / count, "at the start": at_start / count}


def working_set(scene: Scene) -> Finding:
    rows = {}
    for name, play in (("last week", scene.before), ("now", scene.now)):
        seen: dict[str, int] = {}
        sizes: dict[str, int] = {}
        for record in play.run.records:
            for piece in record.request.pieces:
                seen[piece.name] = seen.get(piece.name, 0) + 1
                sizes[piece.name] = piece.num_tokens
        shared = [piece for piece, count in seen.items() if count > 1]
        on, replicas = play.service.deployment(), max(play.service.fleet.replicas, 1)
        rows[name] = {
            "shared pieces": len(shared), "their tokens": sum(sizes[piece] for piece in shared),
            "tokens a replica's pool holds": on.num_kv_blocks * on.block_size, "replicas": replicas,
        }  # fmt: skip
    now = rows["now"]
    room = now["tokens a replica's pool holds"]
    text = (
        f"{now['shared pieces']} pieces that prompts share have {now['their tokens']} tokens in all; each of "
        f"{now['replicas']} replicas has room for {room}."
    )
    return Finding(text, frame(rows))


def acceptance(scene: Scene) -> Finding:
    rows, lines = {}, []
    for name, play in (("last week", scene.before), ("now", scene.now)):
        done = [row for record in answered(play) if (row := record.as_request_record()) is not None]
        found = SpeculationSummary.of_requests(done)
        if found.num_verifications:
            passed = [100 * share for share in found.acceptance_at]
            rows[name] = {"tokens per verification": found.emitted_per_verify,
                          **{f"place {i + 1}, %": share for i, share in enumerate(passed)}}  # fmt: skip
            lines.append(Line(name, list(range(1, len(passed) + 1)), passed))
    if not rows:
        return Finding("No drafts are made.", frame({"now": {"drafts": 0}}))
    text = "; ".join(f"{name}: {number(row['tokens per verification'])} tokens per verification" for name, row in
                     rows.items())  # fmt: skip
    return Finding(text + ".", frame(rows), Panel(tuple(lines), "place in the draft", "% that pass"))


def step_times(scene: Scene) -> Finding:
    steps = scene.now.steps
    table = frame({
        "seconds": spread([step.seconds for step in steps]), "tokens": spread([step.tokens for step in steps]),
        "prompt tokens": spread([step.prompt_tokens for step in steps]),
    }, "per step")  # fmt: skip
    few = steps[:: len(steps) // MOST_POINTS + 1]
    cloud = Line("steps", [step.tokens for step in few], [1e3 * step.seconds for step in few], "points")
    slowest = max(steps, key=lambda step: step.seconds)
    text = (
        f"p50 {seconds(table.p50['seconds'])}, p99 {seconds(table.p99['seconds'])}; the slowest took "
        f"{seconds(slowest.seconds)} and held {slowest.tokens} tokens, {slowest.prompt_tokens} of them prompt."
    )
    return Finding(text, table, Panel((cloud,), "tokens in the step", "milliseconds"))


def decode_steps(scene: Scene) -> Finding:
    rows = {}
    for name, play in (("last week", scene.before), ("now", scene.now)):
        decoding = [step for step in play.steps if not step.prompt_tokens]
        low = 0
        for high in BATCHES:
            found = [step.seconds for step in decoding if low < step.requests <= high]
            if found:
                size = f"{low + 1} to {high} requests" if low + 1 < high else f"{high} request{'s' * (high > 1)}"
                rows[f"{name}, {size}"] = {"steps": len(found), **spread(found)}
            low = high
    table = frame(rows, "seconds of a step that only decodes")
    text = "Median step: " + "; ".join(f"{name}: {seconds(row['p50'])}" for name, row in rows.items())
    few = [step for step in scene.now.steps if not step.prompt_tokens]
    few = few[:: len(few) // MOST_POINTS + 1]
    cloud = Line("steps", [step.requests for step in few], [1e3 * step.seconds for step in few], "points")
    return Finding(text + ".", table, Panel((cloud,), "requests in the step", "milliseconds") if few else None)


def chunks(scene: Scene) -> Finding:
    rows = {}
    for name, play in (("last week", scene.before), ("now", scene.now)):
        tokens = [step.prompt_tokens for step in play.steps if step.prompt_tokens]
        cost = seconds_per_thousand(play)
        rows[name] = {
            "prompt tokens in a step, p50": spread(tokens)["p50"], "most": max(tokens, default=0),
            "budget of a step": play.service.engine.max_num_batched_tokens,
            "ms per 1000 prompt tokens": None if cost is None else 1e3 * cost,
        }  # fmt: skip
    now, then = rows["now"], rows["last week"]
    text = (
        f"Up to {now['most']} prompt tokens in one step, of a budget of {now['budget of a step']}; a thousand prompt "
        f"tokens take {seconds((now['ms per 1000 prompt tokens'] or 0) / 1e3)}, last week "
        f"{seconds((then['ms per 1000 prompt tokens'] or 0) / 1e3)}."
    )
    return Finding(text, frame(rows))


def collectives(scene: Scene) -> Finding:
    rows = {}
    for name, play in (("last week", scene.before), ("now", scene.now)):
        total = sum(step.seconds for step in play.steps) or 1.0
        rows[name] = {
            "tensor parallel": play.service.tp, "all-reduce, share": sum(s.all_reduce for s in play.steps) / total,
            "waiting for the host, share": sum(s.host for s in play.steps) / total,
        }  # fmt: skip
    now = rows["now"]
    text = (
        f"All-reduce takes {now['all-reduce, share']:.0%} of the steps' time, waiting for the host "
        f"{now['waiting for the host, share']:.0%}."
    )
    return Finding(text, frame(rows))


def gpu(scene: Scene) -> Finding:
    rows = {report.replica: {"busy, %": 100 * report.utilisation} for report in scene.now.run.reports}
    mean = sum(row["busy, %"] for row in rows.values()) / len(rows)
    return Finding(f"GPUs are busy {number(mean)}% of the time.", frame(rows, "replica"))


def per_replica(scene: Scene) -> Finding:
    rows = {}
    for report in scene.now.run.reports:
        mine = [r for r in answered(scene.now) if r.replica == report.replica]
        waits = [s.waiting for s in scene.now.run.samples if s.replica == report.replica]
        first = spread([record.ttft() for record in mine])
        rows[report.replica] = {
            "answered": report.num_requests, "TTFT p50": first["p50"], "TTFT p95": first["p95"],
            "waiting, max": max(waits, default=0), "hit rate": report.prefix_hit_rate,
            "tenants seen": len({r.request.tenant for r in mine}), "busy": report.utilisation,
        }  # fmt: skip
    most = max(row["answered"] for row in rows.values())
    text = f"{len(rows)} replicas; the busiest answered {most} of {sum(r['answered'] for r in rows.values())} requests."
    return Finding(text, frame(rows, "replica"))


def replica_age(scene: Scene) -> Finding:
    there = scene.now.service.fleet.replicas
    young, old = [], []
    for place, report in enumerate(scene.now.run.reports):
        mine = sorted((r for r in answered(scene.now) if r.replica == report.replica), key=lambda r: r.accepted)
        first = YOUNG if place >= there else 0
        young += mine[:first]
        old += mine[first:]
    started = len(scene.now.run.reports) - there
    rows = {
        f"a further replica's first {YOUNG} requests": {"requests": len(young), **spread([r.ttft() for r in young])},
        "all others": {"requests": len(old), **spread([r.ttft() for r in old])},
    }
    medians = [seconds(row["p50"]) for row in rows.values()]
    text = (
        f"{started} replicas were started in the window. TTFT p50 of a further replica's first requests {medians[0]}, "
        f"of all others {medians[1]}."
    )
    return Finding(text, frame(rows, "TTFT, seconds"))


def ingress(scene: Scene) -> Finding:
    done = [record for record in answered(scene.now) if record.accepted is not None]
    rows = {
        "sent, to accepted by the router": spread([record.accepted - record.sent for record in done]),
        "accepted, to an engine's first step": spread([record.timeline.scheduled - record.accepted for record in done]),
    }
    table = frame(rows, "seconds")
    text = (
        f"p95 from sent to accepted {seconds(table.p95.iloc[0])}, from accepted to an engine's first step "
        f"{seconds(table.p95.iloc[1])}."
    )
    return Finding(text, table)
