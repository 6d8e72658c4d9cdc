"""What a run of lesson 02b showed, in words: findings.toml, picked by the outcome."""

from collections.abc import Mapping, Sequence

from course.lab.finding import Finding, tell
from course.lab.lab import Lab
from course.lab.lesson_02.visits import Visit, mean, visits_of, waits
from course.lab.lesson_02b import simulated, tenants, traffic
from course.lab.lesson_02b.slot_map import empty_slot_share
from course.lab.run import Run


def straggler(runs: Mapping[str, Run]) -> Finding:
    """Which requests pay for one long answer under static batching."""
    static, free = runs["static"], runs["continuous"]
    behind = [mean([visits_of(run)[i].wait for i in range(4, 8)]) for run in (static, free)]
    empty = {name: empty_slot_share(visits_of(run), run.config.max_num_seqs) for name, run in runs.items()}
    said = traffic.who_pays(static, free).answer
    kind = {traffic.PAYERS[2]: "behind", traffic.PAYERS[1]: "beside"}.get(said, "itself")
    return tell("02b", "straggler", kind, behind=behind, empty=empty["static"], free=empty["continuous"])


def ways(runs: Mapping[str, Run]) -> Finding:
    """Empty slots, and what the document did to the texts of others."""
    empty = {name: empty_slot_share(visits_of(run), run.config.max_num_seqs) for name, run in runs.items()}
    gap = {name: max(run.itl) for name, run in runs.items()}
    whole, chunked = gap["continuous"], gap["continuous, chunked"]
    kind = "shorter" if chunked < 0.8 * whole else "alike"
    static, others = empty["static"], max(empty["continuous"], empty["continuous, chunked"])
    document = [visits_of(runs[name])[traffic.DOCUMENT].ttft for name in ("continuous", "continuous, chunked")]
    return tell("02b", "ways", kind, static=static, others=others, whole=whole, chunked=chunked, document=document)


def orders(by_order: Mapping[str, Sequence[Visit]]) -> Finding:
    """What shortest first and two lanes do to short and long prompts."""
    short = {n: mean(waits(v for v in vs if v.prompt <= simulated.LONG)) for n, vs in by_order.items()}
    long = {n: mean(waits(v for v in vs if v.prompt > simulated.LONG)) for n, vs in by_order.items()}
    lanes = "long_gain" if long["two lanes"] < long["first come"] else "short_gain"
    values = {"fcfs": (short["first come"], long["first come"]), "sjf": (short["shortest first"],)}
    values |= {"starved": long["shortest first"], "lanes": (short["two lanes"], long["two lanes"])}
    return tell("02b", "orders", lanes, **values)


def limits(counts: Mapping[str, Mapping[str, int]]) -> Finding:
    """How many are in time without a limit, and with the best one."""
    share = {name: each["in time"] / sum(each.values()) for name, each in counts.items()}
    best = max(share, key=share.get)
    gave_up = counts["no limit"]["gave up"] / sum(counts["no limit"].values())
    refused = counts[best]["refused"] / sum(counts[best].values())
    kind = "helps" if share[best] > share["no limit"] + 0.05 else "alike"
    values = {"open": share["no limit"], "best": share[best], "name": best, "gave_up": gave_up, "refused": refused}
    return tell("02b", "limits", kind, **values)


def slots(runs: Mapping[str, Run]) -> Finding:
    """More slots on the same memory."""
    few, many = runs.values()
    faster = many.throughput / few.throughput
    kind = "thrash" if many.snapshot.num_preemptions > few.snapshot.num_preemptions else "calm"
    values = {"preempted": many.snapshot.num_preemptions, "again": many.snapshot.num_recomputed_tokens}
    names = dict(zip(("few", "many"), runs))
    return tell("02b", "slots", kind, **values, **names, faster=faster, gaps=[max(run.itl) for run in (few, many)])


def fair(runs: Mapping[str, Run], lab: Lab) -> Finding:
    """What fair order did for the small tenants, and to the greedy one."""
    found = tenants.by_tenant(runs, lab).values()
    small = [tenants.p99(each) for each in found]
    greedy = [tenants.p99(each, [tenants.GREEDY]) for each in found]
    total = [run.throughput for run in runs.values()]
    kind = "helps" if small[1] < 0.8 * small[0] else "alike"
    return tell("02b", "fair", kind, small=small, greedy=greedy, gain=small[0] / small[1], total=total)


def held() -> Finding:
    """Where fair order loses: slots that long answers hold."""
    waited = {sends: tenants.p99(tenants.at_70b("fair", "200%", sends)) for sends in tenants.SENDS}
    chats, answers = waited["chats"], waited["long answers"]
    kind = "slower" if answers > 1.5 * chats else "alike"
    return tell("02b", "held", kind, chats=chats, answers=answers, ratio=answers / chats)
