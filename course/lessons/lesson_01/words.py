"""What the runs of lesson 01 showed: its findings, its claims, and what its prediction is scored by."""

from collections.abc import Callable, Mapping, Sequence

from course.lab import services, slo
from course.lab.claims import Claim, conclude, say
from course.lab.control import Control
from course.lab.finding import Finding, tell
from course.lab.lab import Lab
from course.lab.pictures.compare import slowest
from course.lab.predict import MeasuredAnswer
from course.lab.ruler import buckets
from course.lab.run import Run, percentile, phases_of
from course.lab.services_70b import BEFORE, INT8, MORE_SLOTS, ServiceFigures
from course.lab.style import change, seconds
from course.lab.tables import felt_ttft, in_flight

# ---------------------------------------------------------------- findings

TIE = 0.1
"""Two services whose E2E fell within this share of each other are not told apart."""


def two_illnesses(runs: Mapping[str, Run]) -> Finding:
    """Where the slowest request of each service spent its time."""
    a, b = (phases_of(slowest(runs[name])) for name in "AB")
    itl = {name: percentile(run.itl, 50) for name, run in runs.items()}
    ttft = sum(list(b.values())[:3])
    return tell("01", "two_illnesses", "always", a=a, a_e2e=sum(a.values()), b=b, b_ttft=ttft, itl=itl)


def half_the_bytes(before: Mapping[str, Run], half: Mapping[str, Run], control: Control) -> Finding:
    """Which service gained more from int8 weights, and why."""
    left = {name: max(half[name].e2e) / max(before[name].e2e) for name in before}
    apart = left["A"] - left["B"]
    if control.moved > max(abs(apart), TIE):
        outcome = "within_noise"
    elif abs(apart) < TIE:
        outcome = "helped_both"
    elif apart > 0:
        outcome = "helped_b_more"
    else:
        outcome = "helped_a_hurt_b" if left["B"] > 1 + TIE / 2 else "helped_a_more"
    moved = {name: change(max(run.e2e), max(half[name].e2e)) for name, run in before.items()}
    was, now = (runs["A"].mean_phases()["queue"] for runs in (before, half))
    return tell("01", "half_the_bytes", outcome, moved=moved, was=was, now=now)


def more_slots(before: Mapping[str, Run], slots: Mapping[str, Run]) -> Finding:
    """What sixteen slots did to A, which had one."""
    was, now = max(before["A"].e2e), max(slots["A"].e2e)
    was_itl, now_itl = (percentile(runs["A"].itl, 50) for runs in (before, slots))
    told = {"was": was, "now": now, "change": change(was, now), "was_itl": was_itl, "now_itl": now_itl}
    return tell("01", "more_slots", "cured_a" if now < was else "did_not_cure_a", **told)


def hidden(capped: Run) -> MeasuredAnswer:
    """How many times the server's TTFT p99 the clients of the closed loop felt: the answer to a prediction."""
    server, felt = percentile(capped.ttft, 99), percentile(felt_ttft(capped), 99)
    return MeasuredAnswer(felt / server, f"by the server's clock {seconds(server)}, as felt {seconds(felt)}")


def where_it_went(capped: Run) -> Finding:
    """Whether the cap moved the queue into the client, and Little's product."""
    found = hidden(capped)
    outcome = "queue_moved_into_client" if found.answer > 1.5 else "no_queue_to_move"
    return tell("01", "cap", outcome, told=found.evidence, mean=in_flight(capped))


def tail(many: Run) -> Finding:
    """On how many samples the far end of the ruler rests."""
    mean, p99 = sum(many.ttft) / len(many.ttft), percentile(many.ttft, 99)
    below = sum(value < mean for value in many.ttft) / len(many.ttft)
    return tell("01", "tail", "always", count=len(many.ttft), mean=mean, p99=p99, below=below)


def at_70b(measured: Mapping[str, Mapping[str, ServiceFigures]]) -> Finding:
    """What each lever did to each service of the simulated 70B."""

    def moved(lever: str, service: str) -> str:
        return change(measured[BEFORE][service].e2e, measured[lever][service].e2e)

    slots, int8 = ({name: moved(lever, name) for name in "AB"} for lever in (MORE_SLOTS, INT8))
    was, now = (measured[lever]["A"].ttft for lever in (BEFORE, INT8))
    return tell("01", "at_70b", "always", slots=slots, int8=int8, was=was, now=now)


# ---------------------------------------------------------------- claims

DOMINANT = 2 / 3
"""Share of the time above which one side of a split is the one to work on."""


def a6(runs: Mapping[str, Run]) -> Claim:
    """The same E2E, opposite TTFT and ITL."""
    e2e, ttft = ({n: percentile(getattr(r, m), 99) for n, r in runs.items()} for m in ("e2e", "ttft"))
    itl = {n: percentile(r.itl, 50) for n, r in runs.items()}
    apart = abs(e2e["A"] / e2e["B"] - 1)
    holds = apart < 0.2 and ttft["A"] > 2 * ttft["B"] and itl["B"] > itl["A"]
    found = (f"{n}: E2E {seconds(e2e[n])}, TTFT {seconds(ttft[n])}, ITL {seconds(itl[n])}" for n in runs)
    told = {"ttft_ratio": ttft["A"] / ttft["B"], "itl_ratio": itl["B"] / itl["A"], "apart": 100 * apart}
    return conclude("A6", "holds" if holds else "services_not_as_planned", found="; ".join(found), **told)


def b1(run: Run) -> Claim:
    """Queue against compute, prefill against decode."""
    mean = run.mean_phases()
    compute = mean["prefill"] + mean["first_token"] + mean["decode"]
    share = mean["queue"] / sum(mean.values())
    larger, name = max((share, "queue"), (1 - share, "compute"))
    verdict = "holds" if larger > DOMINANT else "only_when_one_side_dominates"
    told = {"mean": mean, "share": share, "compute": compute, "larger": larger, "name": name}
    return conclude("B1", verdict, caution=say("B1.caution"), **told)


def e5(groups: Mapping[str, Sequence[float]]) -> Claim:
    """A mean hides the tail; buckets by prompt length find it."""
    values = groups["all"]
    mean, p99 = sum(values) / len(values), percentile(values, 99)
    means = {name: sum(v) / len(v) for name, v in groups.items() if name != "all" and v}
    slow, fast = max(means, key=means.get), min(means, key=means.get)
    return conclude(
        "E5",
        "holds" if p99 > 1.5 * mean else "tail_is_short",
        num_values=len(values),
        mean=mean,
        p99=p99,
        p99_ratio=p99 / mean,
        slow=slow,
        slow_mean=means[slow],
        fast=fast,
        fast_mean=means[fast],
    )


def f3(shares: Mapping[str, Mapping[str, float]]) -> Claim:
    """SLOs depend on the use case. `shares`: use case -> service -> share of requests that met it."""
    split = [case for case, met in shares.items() if abs(met["A"] - met["B"]) >= 0.25]
    found = "; ".join(f"{case}: " + ", ".join(f"{n} {met:.0%}" for n, met in by.items()) for case, by in shares.items())
    verdict = "only_as_a_habit" if split else "limits_tell_nothing_apart"
    counts = {"num_split": len(split), "num_shares": len(shares)}
    return conclude("F3", verdict, found=found, split=", ".join(split), **counts)


EXPERIMENT = ("lab/services.py", "lab/slo.py", "lab/ruler.py")
MEASURE: dict[str, Callable[[Lab], Claim]] = {
    "A6": lambda lab: a6(services.two_ill_services(lab)),
    "B1": lambda lab: b1(lab.run(services.few_slots(lab), max_num_seqs=1)),
    "E5": lambda lab: e5(buckets(lab.run(services.sample(lab), enable_prefix_caching=False), "TTFT")),
    "F3": lambda lab: f3(slo.attainments(services.two_ill_services(lab))),
}
