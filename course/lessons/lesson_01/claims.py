"""The claims of lesson 01."""

from collections.abc import Callable, Mapping, Sequence

from course.lab import services, slo
from course.lab.claims import Claim, conclude, say
from course.lab.lab import Lab
from course.lab.ruler import buckets
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
    ratios = {"ttft_ratio": ttft["A"] / ttft["B"], "itl_ratio": itl["B"] / itl["A"]}
    return conclude("A6", "holds" if holds else "not_shown", found="; ".join(found), apart=100 * apart, **ratios)


def b1(run: Run) -> Claim:
    """Queue against compute, prefill against decode."""
    mean = run.mean_phases()
    compute = mean["prefill"] + mean["first_token"] + mean["decode"]
    share = mean["queue"] / sum(mean.values())
    larger, name = max((share, "queue"), (1 - share, "compute"))
    verdict = "holds" if larger > DOMINANT else "only_when"
    told = {"larger": larger, "name": name, "caution": say("B1.caution")}
    return conclude("B1", verdict, mean=mean, share=share, compute=compute, **told)


def e5(groups: Mapping[str, Sequence[float]]) -> Claim:
    """A mean hides the tail; buckets by prompt length find it."""
    values = groups["all"]
    mean, p99 = sum(values) / len(values), percentile(values, 99)
    means = {name: sum(v) / len(v) for name, v in groups.items() if name != "all" and v}
    slow, fast = max(means, key=means.get), min(means, key=means.get)
    ends = {"slow": slow, "slow_mean": means[slow], "fast": fast, "fast_mean": means[fast]}
    verdict = "holds" if p99 > 1.5 * mean else "not_shown"
    return conclude("E5", verdict, num_values=len(values), mean=mean, p99=p99, p99_ratio=p99 / mean, **ends)


def f3(shares: Mapping[str, Mapping[str, float]]) -> Claim:
    """SLOs depend on the use case. `shares`: use case -> service -> share of requests that met it."""
    split = [case for case, met in shares.items() if abs(met["A"] - met["B"]) >= 0.25]
    found = "; ".join(f"{case}: " + ", ".join(f"{n} {met:.0%}" for n, met in by.items()) for case, by in shares.items())
    counts = {"num_split": len(split), "num_shares": len(shares), "split": ", ".join(split)}
    return conclude("F3", "only_when" if split else "not_shown", found=found, **counts)


EXPERIMENT = ("lab/services.py", "lab/slo.py", "lab/ruler.py")
MEASURE: dict[str, Callable[[Lab], Claim]] = {
    "A6": lambda lab: a6(services.two_ill_services(lab)),
    "B1": lambda lab: b1(lab.run(services.few_slots(lab), max_num_seqs=1)),
    "E5": lambda lab: e5(buckets(lab.run(services.sample(lab), enable_prefix_caching=False), "TTFT")),
    "F3": lambda lab: f3(slo.attainments(services.two_ill_services(lab))),
}
