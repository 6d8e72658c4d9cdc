"""The claims of lesson 01."""

from collections.abc import Callable, Mapping, Sequence

from course.lab import services, slo
from course.lab.claims import ANATOMY, DECOMPOSING, LAYERS, SYSTEMS, Claim
from course.lab.lab import Lab
from course.lab.run import Run, percentile
from course.lab.style import seconds

DOMINANT = 2 / 3
"""Share of the time above which one side of a split is the one to work on."""


def a6(runs: Mapping[str, Run]) -> Claim:
    """The same E2E, opposite TTFT and ITL."""
    e2e, ttft = ({n: percentile(getattr(r, m), 99) for n, r in runs.items()} for m in ("e2e", "ttft"))
    itl = {n: percentile(r.itl, 50) for n, r in runs.items()}
    apart = abs(e2e["A"] / e2e["B"] - 1)
    holds = apart < 0.2 and ttft["A"] > 2 * ttft["B"] and itl["B"] > itl["A"]
    found = (f"{n}: E2E {seconds(e2e[n])}, TTFT {seconds(ttft[n])}, ITL {seconds(itl[n])}" for n in runs)
    return Claim(
        "A6",
        "7 s of TTFT with 50 ms of ITL, and 200 ms of TTFT with 250 ms of ITL, are two different systems.",
        ANATOMY,
        f"p99 of E2E and TTFT, median ITL. {'; '.join(found)}.",
        f"holds: E2E differs by {100 * apart:.0f}%, TTFT by a factor of {ttft['A'] / ttft['B']:.1f} one way, ITL by a "
        f"factor of {itl['B'] / itl['A']:.1f} the other way. Which fix helps is a further question; measure that too."
        if holds
        else "not shown by this run: the services did not come out as planned. Run it again on a quiet machine.",
    )


def b1(run: Run) -> Claim:
    """Queue against compute, prefill against decode."""
    mean = run.mean_phases()
    compute = mean["prefill"] + mean["first_token"] + mean["decode"]
    share = mean["queue"] / sum(mean.values())
    return Claim(
        "B1",
        "Before anything else, split server time into queue and compute, and model time into prefill and decode.",
        DECOMPOSING,
        f"service A, mean per request: queue {seconds(mean['queue'])} ({share:.0%}), compute {seconds(compute)}; "
        f"of that, prefill {seconds(mean['prefill'])} and decode {seconds(mean['decode'])}.",
        _split_verdict(share),
    )


def _split_verdict(queue: float) -> str:
    """Args: queue: its share of server time, 0 to 1."""
    larger, name = max((queue, "queue"), (1 - queue, "compute"))
    caution = (
        "But it splits the time of a request, not of the machine: in its decode phase a request also waits for other "
        "requests' prompts."
    )
    if larger > DOMINANT:
        return f"holds: the first split puts {larger:.0%} of the time in {name}, which rules out most fixes. {caution}"
    return f"holds only when one side dominates: here {name} has {larger:.0%}, so both have to be looked at. {caution}"


def e5(groups: Mapping[str, Sequence[float]]) -> Claim:
    """A mean hides the tail; buckets by prompt length find it."""
    values = groups["all"]
    mean, p99 = sum(values) / len(values), percentile(values, 99)
    means = {name: sum(v) / len(v) for name, v in groups.items() if name != "all" and v}
    slow, fast = max(means, key=means.get), min(means, key=means.get)
    return Claim(
        "E5",
        "Report percentiles, by bucket of prompt length: a mean hides the tail.",
        SYSTEMS,
        f"TTFT of {len(values)} requests: mean {seconds(mean)}, p99 {seconds(p99)}. "
        f"Means by bucket: {slow} {seconds(means[slow])}, {fast} {seconds(means[fast])}.",
        f"holds: the tail is {p99 / mean:.1f} times the mean. Mind the count, though: p99 of {len(values)} is made "
        "of the slowest two, and a bucket of ten has no p99 worth the name."
        if p99 > 1.5 * mean
        else "not shown by this run: the tail is short here.",
    )


def f3(shares: Mapping[str, Mapping[str, float]]) -> Claim:
    """SLOs depend on the use case. `shares`: use case -> service -> share of requests that met it."""
    split = [case for case, met in shares.items() if abs(met["A"] - met["B"]) >= 0.25]
    found = "; ".join(f"{case}: " + ", ".join(f"{n} {met:.0%}" for n, met in by.items()) for case, by in shares.items())
    return Claim(
        "F3",
        "Each use case has limits of its own: chat 500/50 ms, code completion 200/30 ms, a summary 1 to 3 s, ...",
        LAYERS,
        f"requests that met every limit. {found}.",
        f"holds only when read as a habit: at one E2E p99, {len(split)} of {len(shares)} use cases tell A from B: "
        f"{', '.join(split)}. "
        "The limits themselves are opinions; MLPerf's differ by up to a factor of four. Write down your own."
        if split
        else "not shown: these limits do not tell A from B on this machine; both miss, or both meet, nearly all.",
    )


EXPERIMENT = ("services.py", "slo.py")
MEASURE: dict[str, Callable[[Lab], Claim]] = {
    "A6": lambda lab: a6(services.two_ill_services(lab)),
    "B1": lambda lab: b1(lab.run(services.few_seats(lab), max_num_seqs=1)),
    "E5": lambda lab: e5(services.ttft_by_length(lab.run(services.sample(lab), enable_prefix_caching=False))),
    "F3": lambda lab: f3(slo.attainments(services.two_ill_services(lab))),
}
