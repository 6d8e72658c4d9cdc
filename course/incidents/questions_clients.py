"""Questions about traffic, and about what clients saw. Their words are in questions.toml."""

from collections.abc import Sequence

from course.incidents.evidence import NOW, EvidencePanel, IncidentScene, QuestionResult, Row
from course.incidents.numbers import answered, latencies, per_second, spread
from course.incidents.service import ServicePlay
from course.lab.pictures.chart import Curve
from course.lab.run import gaps_of, percentile
from course.lab.visits import mean
from course.simulator.cluster.record import ClientRecord, Outcome
from course.summary import SLO

TIME = "seconds since the window began"
OFFERED_LAST_WEEK = "offered, last week"
BUCKETS = (256, 1024, 4096, 10**9)


def ttft_itl(scene: IncidentScene) -> QuestionResult:
    seen, slo = latencies(scene.now), scene.now.service.slo
    gaps = [gap for record in answered(scene.now) for gap in record.as_request_record().timeline.itl]
    rows = {
        "TTFT": {**spread(seen["ttft"]), "limit": slo.ttft},
        "ITL, all gaps": {**spread(gaps), "limit": None},
        "ITL, largest gap of a request": {**spread(seen["itl"]), "limit": slo.itl},
        "TPOT": {**spread([each for each in seen["tpot"] if each]), "limit": slo.tpot},
        "E2E": {**spread(seen["e2e"]), "limit": slo.e2e},
    }
    unanswered = 1 - len(answered(scene.now)) / max(len(scene.now.run.records), 1)
    return QuestionResult(rows, "seconds, at the client", says={"unanswered": unanswered})


def arrivals(scene: IncidentScene) -> QuestionResult:
    play = scene.now
    duration = play.service.duration_s
    due = [record.intended for record in play.run.records if record.intended is not None]
    done = [record.ended for record in answered(play)]
    lines = tuple(Curve(name, *per_second(at, duration)) for name, at in (("offered", due), ("answered", done)))
    rows = {line.name: {"mean": mean(line.ys), "highest": max(line.ys)} for line in lines}
    last_week = len(scene.before.run.records) / scene.before.service.duration_s
    rows[OFFERED_LAST_WEEK] = {"mean": last_week, "highest": None}
    return QuestionResult(rows, "1/s", EvidencePanel(lines, TIME, "requests per second"))


def attempts(scene: IncidentScene) -> QuestionResult:
    def ends(play: ServicePlay) -> Row:
        outcomes = {"answered": "completed", "gave up": "timeout", "refused": "shed", "errors": "error"}
        counts = {name: play.run.outcomes.get(outcome, 0) for name, outcome in outcomes.items()}
        return {"unique requests": len(play.run.records), "attempts": play.run.num_attempts, **counts}

    return QuestionResult(scene.weeks(ends))


def prompt_lengths(scene: IncidentScene) -> QuestionResult:
    return _lengths(scene, "num_prompt_tokens", "prompt")


def output_lengths(scene: IncidentScene) -> QuestionResult:
    return _lengths(scene, "output_tokens", "answer")


def _lengths(scene: IncidentScene, name: str, what: str) -> QuestionResult:
    values = scene.weeks(lambda play: [getattr(record.request, name) for record in play.run.records])
    points = list(range(2, 100, 2))
    lines = tuple(Curve(week, points, [percentile(tokens, q) for q in points]) for week, tokens in values.items())
    rows = {week: spread(tokens) for week, tokens in values.items()}
    return QuestionResult(rows, f"{what}, tokens", EvidencePanel(lines, "percentile of requests", "tokens"))


def client_server(scene: IncidentScene) -> QuestionResult:
    done = answered(scene.now)
    samples = {
        "TTFT, client, since it was due": [record.ttft("intended") for record in done],
        "TTFT, client, since it was sent": [record.ttft("sent") for record in done],
        "TTFT, server": [record.timeline.ttft for record in done],
        "gaps, client": [gap for record in done for gap in gaps_of(record.deliveries)],
        "gaps, server": [gap for record in done for gap in gaps_of(record.timeline.deliveries)],
        "E2E, client": [record.e2e("intended") for record in done],
        "E2E, server": [record.timeline.e2e for record in done],
    }
    return QuestionResult({name: spread(values) for name, values in samples.items()}, "seconds")


def concurrency(scene: IncidentScene) -> QuestionResult:
    play, lines = scene.now, []
    moments = [i * play.service.duration_s / 60 for i in range(60)]
    for name, since in (("due and not over", "intended"), ("in flight at the service", "sent")):
        ends = [(record.start(since), record.ended) for record in play.run.records if record.sent is not None]
        lines.append(Curve(name, moments, [sum(a <= t < b for a, b in ends) for t in moments]))
    done = answered(play)
    rate = len(done) / play.run.duration if play.run.duration else 0.0
    spent = mean([record.e2e("sent") for record in done])
    rows = {line.name: {"mean": mean(line.ys), "max": max(line.ys)} for line in lines}
    says = {"rate": rate, "offered": play.service.rate, "spent": spent, "in_flight": rate * spent}
    return QuestionResult(rows, "requests", EvidencePanel(tuple(lines), TIME, "requests"), says)


def regions(scene: IncidentScene) -> QuestionResult:
    def of(members: Sequence[ClientRecord]) -> Row:
        first = spread([record.ttft("intended") for record in members])
        return {"requests": len(members), **{f"TTFT {name}": value for name, value in first.items()}}

    done = answered(scene.now)
    far = [record for record in done if record.is_far]
    rows = {"near": of([record for record in done if not record.is_far]), "far": of(far)}
    return QuestionResult(rows, "region; seconds", says={"share": len(far) / max(len(done), 1)})


def per_bucket(scene: IncidentScene) -> QuestionResult:
    rows, low, slo, records = {}, 0, scene.now.service.slo, scene.now.run.records
    for high in BUCKETS:
        members = [r for r in records if low < r.request.num_prompt_tokens <= high]
        done = [r for r in members if r.completed]
        first = spread([r.ttft("intended") for r in done])
        if members:
            rows[f"{low + 1} to {high}" if high < BUCKETS[-1] else f"over {low}"] = {
                "requests": len(members),
                "TTFT p50, seconds": first["p50"],
                "TTFT p95, seconds": first["p95"],
                "E2E p95, seconds": spread([r.e2e("intended") for r in done])["p95"],
                "longest prompt": max(r.request.num_prompt_tokens for r in members),
                "met the SLO, share": _num_within(slo, done) / len(members),
            }
        low = high
    return QuestionResult(rows, "prompt, tokens", says={"longest": max(r.request.num_prompt_tokens for r in records)})


def _num_within(slo: SLO, done: Sequence[ClientRecord]) -> int:
    return sum(slo.met_by(record.as_request_record("intended").timeline) for record in done)


def late_work(scene: IncidentScene) -> QuestionResult:
    rows = scene.weeks(
        lambda play: {
            "tokens generated": sum(report.num_output_tokens for report in play.run.reports),
            "of these, for clients that had left": play.run.wasted_tokens,
            "requests given up by their clients": sum(r.outcome is Outcome.TIMEOUT for r in play.run.records),
        }
    )
    generated, late, _ = rows[NOW].values()
    return QuestionResult(rows, says={"share": late / max(generated, 1)})


def changes(scene: IncidentScene) -> QuestionResult:
    rows = {when: {"change": what} for when, what in scene.changes}
    return QuestionResult(rows, "when", says={"count": len(scene.changes)})


LINKED_BY = {"nvlink": "NVLink", "pcie_p2p": "PCIe", "pcie": "PCIe", "ethernet": "Ethernet"}
SHOWN = (
    "batching",
    "max_num_seqs",
    "max_num_batched_tokens",
    "enable_chunked_prefill",
    "long_prefill_token_threshold",
    "scheduling_order",
    "scheduler_reserve_full_isl",
    "enable_prefix_caching",
    "kv_cache_dtype",
    "quantization",
    "max_prompt_tokens",
    "max_queue_len",
)
"""Fields of the engine that are always shown, at their defaults too: being listed says nothing. The block size isn't:
services with long shared prompts have another one, and no cause is in it.
"""


def config(scene: IncidentScene) -> QuestionResult:
    service = scene.now.service
    fleet, engine, scaling = service.fleet, service.engine, service.fleet.autoscaling
    drafts, replica = engine.speculative, service.deployment()
    link = replica.profile.hardware.link_class if service.links == "own" else service.links
    linked = f", linked by {LINKED_BY[link]}" if service.tp > 1 else ""
    fields = {
        "model": service.model,
        "a replica": f"{service.tp}x {service.hardware}{linked}",
        "replicas": f"{scaling.min_replicas} to {scaling.max_replicas}" if scaling else fleet.replicas,
        "router": fleet.router.policy,
        "CUDA graphs": service.cuda_graphs,
        "GPU memory": "shared with another process" if service.memory_taken else "all for this engine",
        "KV pool, tokens": f"{replica.num_kv_blocks * replica.block_size:,}",
        **{name: getattr(engine, name) for name in SHOWN},
        "speculative": f"{drafts.method}, k={drafts.k}, max_batch={drafts.max_batch or 'by the cost of a row'}"
        if drafts
        else None,
    }
    return QuestionResult({name: {"value": str(value)} for name, value in fields.items()})
