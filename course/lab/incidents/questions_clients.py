"""Questions about traffic, and about what clients saw."""

from course.lab.incidents.evidence import Finding, Scene
from course.lab.incidents.numbers import answered, frame, gaps_of, per_second, spread
from course.lab.incidents.panel import Line, Panel
from course.lab.run import percentile
from course.lab.style import number, seconds
from minillm.simulate.cluster.record import Outcome

TIME = "seconds since the window began"
LAST_WEEK = "wanted, last week"
BUCKETS = (256, 1024, 4096, 10**9)


def ttft_and_itl(scene: Scene) -> Finding:
    rows = [record.as_request_record().timeline for record in answered(scene.now)]
    slo = scene.now.service.slo
    table = frame({
        "TTFT": {**spread([row.ttft for row in rows]), "limit": slo.ttft},
        "ITL, all gaps": {**spread([gap for row in rows for gap in row.itl]), "limit": None},
        "ITL, largest gap of a request": {**spread([max(row.itl, default=0.0) for row in rows]), "limit": slo.itl},
        "TPOT": {**spread([row.tpot for row in rows if row.tpot]), "limit": slo.tpot},
        "E2E": {**spread([row.e2e for row in rows]), "limit": slo.e2e},
    }, "seconds, at the client")  # fmt: skip
    first, gap = table.loc["TTFT"], table.loc["ITL, all gaps"]
    text = (
        f"TTFT p50 {seconds(first.p50)}, p99 {seconds(first.p99)}. ITL p50 {seconds(gap.p50)}, p99 {seconds(gap.p99)}."
    )
    return Finding(text, table)


def arrivals(scene: Scene) -> Finding:
    play, lines = scene.now, []
    duration = play.service.duration_s
    asked = [record.intended for record in play.run.records if record.intended is not None]
    done = [record.ended for record in answered(play)]
    for name, moments in (("wanted", asked), ("answered", done)):
        lines.append(Line(name, *per_second(moments, duration)))
    rates = [sum(line.ys) / len(line.ys) for line in lines]
    last_week = len(scene.before.run.records) / scene.before.service.duration_s
    rows = {line.name: {"mean": rate, "highest": max(line.ys)} for line, rate in zip(lines, rates)}
    table = frame({**rows, LAST_WEEK: {"mean": last_week, "highest": None}}, "1/s")
    text = (
        f"Wanted: {number(rates[0])}/s on average, {number(max(lines[0].ys))}/s in the busiest twentieth of the time. "
        f"Last week: {number(last_week)}/s on average."
    )
    return Finding(text, table, Panel(tuple(lines), TIME, "requests per second"))


def attempts(scene: Scene) -> Finding:
    rows = {}
    for name, play in (("last week", scene.before), ("now", scene.now)):
        ends = play.run.outcomes
        rows[name] = {
            "unique requests": len(play.run.records), "attempts": play.run.num_attempts,
            "answered": ends.get("completed", 0), "gave up": ends.get("timeout", 0), "refused": ends.get("shed", 0),
            "errors": ends.get("error", 0),
        }  # fmt: skip
    now = rows["now"]
    text = f"{now['attempts']} attempts at {now['unique requests']} requests; {now['answered']} were answered."
    return Finding(text, frame(rows))


def prompt_lengths(scene: Scene) -> Finding:
    return _lengths(scene, "num_prompt_tokens", "prompt")


def output_lengths(scene: Scene) -> Finding:
    return _lengths(scene, "output_tokens", "answer")


def _lengths(scene: Scene, name: str, what: str) -> Finding:
    values = {
        week: [getattr(record.request, name) for record in play.run.records]
        for week, play in (("last week", scene.before), ("now", scene.now))
    }
    table = frame({week: spread(tokens) for week, tokens in values.items()}, f"{what}, tokens")
    points = list(range(2, 100, 2))
    lines = tuple(Line(week, points, [percentile(tokens, q) for q in points]) for week, tokens in values.items())
    text = f"Median {what}: {number(table.p50['last week'])} tokens last week, {number(table.p50['now'])} now."
    return Finding(text, table, Panel(lines, "percentile of requests", "tokens"))


def client_and_server(scene: Scene) -> Finding:
    done = answered(scene.now)
    rows = {
        "TTFT, client, since it was wanted": [record.ttft() for record in done],
        "TTFT, client, since it was sent": [record.ttft("sent") for record in done],
        "TTFT, server": [record.timeline.ttft for record in done],
        "gaps, client": [gap for record in done for gap in gaps_of(record, at_client=True)],
        "gaps, server": [gap for record in done for gap in gaps_of(record, at_client=False)],
        "E2E, client": [record.e2e() for record in done],
        "E2E, server": [record.timeline.e2e for record in done],
    }
    table = frame({name: spread(values) for name, values in rows.items()}, "seconds")
    text = (
        f"TTFT p95: {seconds(table.p95.iloc[0])} at the client, {seconds(table.p95.iloc[2])} at the server. "
        f"Gaps p99: {seconds(table.p99.iloc[3])} at the client, {seconds(table.p99.iloc[4])} at the server."
    )
    return Finding(text, table)


def concurrency(scene: Scene) -> Finding:
    play = scene.now
    lines = []
    for name, since in (("wanted and not over", "intended"), ("open at the service", "sent")):
        ends = [(record.start(since), record.ended) for record in play.run.records if record.sent is not None]
        moments = [i * play.service.duration_s / 60 for i in range(60)]
        lines.append(Line(name, moments, [sum(a <= t < b for a, b in ends) for t in moments]))
    done = answered(play)
    spent = [record.e2e("sent") for record in done]
    rate = len(done) / play.run.duration if play.run.duration else 0.0
    mean = sum(spent) / len(spent) if spent else 0.0
    table = frame({line.name: {"mean": sum(line.ys) / len(line.ys), "max": max(line.ys)} for line in lines}, "requests")
    text = (
        f"Answered {number(rate)}/s of {number(play.service.rate)}/s wanted; {seconds(mean)} from sent to answered on "
        f"average: λW = {number(rate * mean)} open at once. Most open at the service: {max(lines[1].ys)}."
    )
    return Finding(text, table, Panel(tuple(lines), TIME, "requests"))


def regions(scene: Scene) -> Finding:
    groups = {"near": [], "far": []}
    for record in answered(scene.now):
        groups["far" if record.is_far else "near"].append(record)
    rows = {
        region: {"requests": len(members), **{f"TTFT {q}": v for q, v in spread([r.ttft() for r in members]).items()}}
        for region, members in groups.items()
    }
    table = frame(rows, "region; seconds")
    share = rows["far"]["requests"] / max(len(answered(scene.now)), 1)
    text = f"{share:.0%} of the answers went to the far region; TTFT p50 near {seconds(rows['near']['TTFT p50'])}, far "
    return Finding(text + f"{seconds(rows['far']['TTFT p50'])}.", table)


def per_bucket(scene: Scene) -> Finding:
    rows, low, slo = {}, 0, scene.now.service.slo
    for high in BUCKETS:
        members = [r for r in scene.now.run.records if low < r.request.num_prompt_tokens <= high]
        done = [r for r in members if r.completed]
        name = f"{low + 1} to {high}" if high < BUCKETS[-1] else f"over {low}"
        if members:
            met = sum(slo.met_by(r.as_request_record().timeline) for r in done)
            rows[name] = {
                "requests": len(members), "TTFT p50": spread([r.ttft() for r in done])["p50"],
                "TTFT p95": spread([r.ttft() for r in done])["p95"], "E2E p95": spread([r.e2e() for r in done])["p95"],
                "longest prompt": max(r.request.num_prompt_tokens for r in members), "met the SLO": met / len(members),
            }  # fmt: skip
        low = high
    longest = max(record.request.num_prompt_tokens for record in scene.now.run.records)
    return Finding(f"The longest prompt has {longest} tokens.", frame(rows, "prompt, tokens"))


def late_work(scene: Scene) -> Finding:
    rows = {}
    for name, play in (("last week", scene.before), ("now", scene.now)):
        written = sum(report.num_output_tokens for report in play.run.reports)
        rows[name] = {
            "tokens written": written, "of these, received by nobody": play.run.wasted_tokens,
            "requests given up by their clients": sum(r.outcome is Outcome.TIMEOUT for r in play.run.records),
        }  # fmt: skip
    now = rows["now"]
    share = now["of these, received by nobody"] / max(now["tokens written"], 1)
    return Finding(f"{share:.0%} of the tokens written were received by nobody.", frame(rows))


def changes(scene: Scene) -> Finding:
    table = frame({when: {"change": what} for when, what in scene.changes}, "when")
    return Finding(f"{len(scene.changes)} changes in the last week.", table)


SHOWN = (
    "batching", "max_num_seqs", "max_num_batched_tokens", "enable_chunked_prefill", "long_prefill_token_threshold",
    "scheduling_order", "scheduler_reserve_full_isl", "enable_prefix_caching", "block_size", "kv_cache_dtype",
    "quantization", "max_prompt_tokens", "max_queue_len",
)  # fmt: skip
"""Fields of the engine that everybody is shown, at their defaults too: being listed says nothing."""


def configuration(scene: Scene) -> Finding:
    service = scene.now.service
    fleet, engine, scaling = service.fleet, service.engine, service.fleet.autoscaling
    drafts = engine.speculative
    rows = {
        "model": service.model, "a replica": f"{service.tp} x {service.hardware}, links: {service.links}",
        "replicas": f"{scaling.min_replicas} to {scaling.max_replicas}" if scaling else fleet.replicas,
        "router": fleet.router.policy, "CUDA graphs": service.cuda_graphs,
        "KV blocks": service.deployment().num_kv_blocks, **{name: getattr(engine, name) for name in SHOWN},
        "speculative": f"{drafts.method}, k={drafts.k}, max_batch={drafts.max_batch}" if drafts else None,
    }  # fmt: skip
    return Finding("As deployed.", frame({name: {"value": str(value)} for name, value in rows.items()}))
