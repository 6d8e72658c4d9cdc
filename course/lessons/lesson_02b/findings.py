"""What a run of lesson 02b showed, in words: findings.toml, picked by the outcome."""

from collections.abc import Mapping, Sequence

from course.lab.finding import Finding, tell
from course.lab.lab import Lab
from course.lab.run import Run
from course.lessons.lesson_02.visits import Visit, mean, visits_of
from course.lessons.lesson_02b import simulated, tenants, traffic
from course.lessons.lesson_02b.slot_map import empty_slot_share


def straggler(runs: Mapping[str, Run]) -> Finding:
    """Which requests pay for one long answer under static batching."""
    static, free = runs["static"], runs["continuous"]
    behind = [mean([visits_of(run)[i].wait for i in range(4, 8)]) for run in (static, free)]
    empty = [empty_slot_share(visits_of(run), run.config.max_num_seqs) for run in (static, free)]
    said = traffic.who_pays(static, free).answer
    kind = {traffic.PAYERS[2]: "behind", traffic.PAYERS[1]: "beside"}.get(said, "itself")
    return tell("02b", "straggler", kind, behind=behind, empty=empty[0], free=empty[1])


def ways(runs: Mapping[str, Run]) -> Finding:
    """Empty slots, and what the document did to the texts of others."""
    static, *others = (empty_slot_share(visits_of(run), run.config.max_num_seqs) for run in runs.values())
    _, *continuous = runs.values()
    whole, chunked = (max(run.itl) for run in continuous)
    document = [visits_of(run)[traffic.DOCUMENT].ttft for run in continuous]
    values = {"static": static, "others": max(others), "whole": whole, "chunked": chunked, "document": document}
    return tell("02b", "ways", "shorter" if chunked < 0.8 * whole else "alike", **values)


def orders(by_order: Mapping[str, Sequence[Visit]]) -> Finding:
    """What shortest first and two lanes do to short and long prompts."""
    found = {name: tuple(map(mean, simulated.waits_by_length(visits))) for name, visits in by_order.items()}
    fcfs, sjf, lanes = (found[name] for name in ("first come", "shortest first", "two lanes"))
    return tell("02b", "orders", "long_gain" if lanes[1] < fcfs[1] else "short_gain", fcfs=fcfs, sjf=sjf, lanes=lanes)


def limits(counts: Mapping[str, Mapping[str, int]]) -> Finding:
    """How many are in time without a limit, and with the best one."""
    share = {name: each["within SLO"] / sum(each.values()) for name, each in counts.items()}
    best = max(share, key=share.get)
    gave_up = counts["no limit"]["gave up"] / sum(counts["no limit"].values())
    refused = counts[best]["refused"] / sum(counts[best].values())
    kind = "helps" if share[best] > share["no limit"] + 0.05 else "alike"
    values = {"open": share["no limit"], "best": share[best], "name": best, "gave_up": gave_up, "refused": refused}
    return tell("02b", "limits", kind, **values)


def fair(runs: Mapping[str, Run], lab: Lab) -> Finding:
    """What fair order did for the small tenants, and to the greedy one."""
    found = tenants.by_tenant(runs, lab).values()
    small = [tenants.p99(each) for each in found]
    greedy = [tenants.p99(each, [tenants.GREEDY]) for each in found]
    total = [run.throughput for run in runs.values()]
    kind = "restless" if max(total) > 1.25 * min(total) else "helps" if small[1] < 0.8 * small[0] else "alike"
    return tell("02b", "fair", kind, small=small, greedy=greedy, gain=small[0] / small[1], total=total)


def held() -> Finding:
    """Where fair order loses: slots that long answers hold."""
    chats, answers = (tenants.p99(tenants.at_70b("fair", "200%", sends)) for sends in ("chats", "long answers"))
    kind = "slower" if answers > 1.5 * chats else "alike"
    return tell("02b", "held", kind, chats=chats, answers=answers, ratio=answers / chats)
