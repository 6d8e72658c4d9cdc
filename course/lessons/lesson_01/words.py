"""What the runs of lesson 01 showed: its findings, its claims, and what its prediction is scored by."""

from collections.abc import Callable, Collection, Mapping, Sequence

from course.lab import services, slo
from course.lab.claims import Claim, conclude, say
from course.lab.control import Control
from course.lab.display import Html
from course.lab.finding import Finding, tell
from course.lab.know_cold import know_cold
from course.lab.lab import Lab
from course.lab.pictures.compare import slowest
from course.lab.predict import MeasuredAnswer, gained_most
from course.lab.ruler import buckets
from course.lab.run import Run, percentile, phases_of
from course.lab.services_70b import BEFORE, INT8, MORE_SLOTS, ServiceFigures
from course.lab.snapshot import RequestView
from course.lab.style import change, seconds, told_seconds
from course.lab.tables import felt_ttft, in_flight

# ---------------------------------------------------------------- findings

TIE = 0.1
"""Two services whose E2E fell within this share of each other are not told apart."""
SAME = "about the same (within 10 points)"
"""The answer to the prediction in that case."""
LONGER = 1.25
"""How many times as long an ITL has to be before the difference can be felt."""
PRICE = 0.1
"""A median ITL that moved by a smaller share than this stayed about the same."""
SLOW_END, FEWEST = 0.1, 2
"""The share of requests that `tail` looks at, and how many at least."""


def two_illnesses(runs: Mapping[str, Run]) -> Finding:
    """Where the slowest request of each service spent its time."""
    a, b = (phases_of(slowest(runs[name])) for name in "AB")
    itl, p50 = ({name: percentile(values(run), 50) for name, run in runs.items()} for values in (_itl, _e2e))
    told = {"a_e2e": sum(a.values()), "b_ttft": sum(list(b.values())[:3]), "itl": itl, "p50": p50}
    outcome = "gaps_are_longer" if itl["B"] > LONGER * itl["A"] else "answers_are_longer"
    tokens = {name: slowest(run).num_output_tokens for name, run in runs.items()}
    return tell("01", "two_illnesses", outcome, a=a, b=b, tokens=tokens, **told)


def _itl(run: Run) -> list[float]:
    return run.itl


def _e2e(run: Run) -> list[float]:
    return run.e2e


def half_the_bytes(before: Mapping[str, Run], half: Mapping[str, Run], control: Control) -> Finding:
    """Which service gained more from int8 weights, and what became of the steps of both."""
    left = {name: max(half[name].e2e) / max(before[name].e2e) for name in before}
    apart = left["A"] - left["B"]
    step, shorter = ({name: percentile(run.itl, 50) for name, run in runs.items()} for runs in (before, half))
    hurt = [name for name, ratio in left.items() if ratio > 1 + TIE]
    if control.moved > max(abs(apart), TIE):
        outcome = "within_noise"
    elif min(left.values()) > 1 - TIE / 2:
        outcome = "hurt" if hurt else "helped_neither"
    elif abs(apart) < TIE and max(left.values()) < 1:
        outcome = "helped_both"
    elif apart > 0:
        outcome = "helped_b_more"
    else:
        outcome = "helped_a_hurt_b" if left["B"] > 1 + TIE / 2 else "helped_a_more"
    if outcome == "hurt" and any(shorter[name] <= step[name] for name in hurt):
        outcome = "hurt_outside_decode"
    was, now = (runs["A"].mean_phases()["queue"] for runs in (before, half))
    told = {
        "moved": {name: change(max(run.e2e), max(half[name].e2e)) for name, run in before.items()},
        "read": max(min(2 * min(1 - shorter[name] / step[name] for name in before), 1.0), 0.0),
        "hurt": " and ".join(hurt),
        "effect": "and hurt A" if left["A"] > 1 + TIE / 2 else "more",
        "why": why_a_gained_more(step, shorter),
    }
    return tell("01", "half_the_bytes", outcome, step=step, shorter=shorter, was=was, now=now, **told)


def why_a_gained_more(step: Mapping[str, float], shorter: Mapping[str, float]) -> Finding:
    """Why int8 takes a smaller share off B's steps, as far as both services' steps show it.

    Args:
        step, shorter: median ITL in 16 and in 8 bits, seconds, by service.
    """
    saved = {name: step[name] - shorter[name] for name in step}
    kept = saved["B"] / saved["A"] if saved["A"] > 0 else 1.0
    if saved["B"] / step["B"] >= saved["A"] / step["A"] - TIE / 2:
        outcome = "not_the_step"
    elif kept > 1 - 2 * TIE:
        outcome = "longer_step"
    else:
        outcome = "slower_product" if step["B"] < LONGER * step["A"] else "either"
    return tell("01", "why_a_gained_more", outcome, kept=max(kept, 0.0))


def more_slots(before: Mapping[str, Run], slots: Mapping[str, Run]) -> Finding:
    """What sixteen slots did to A, which had one, and to the gaps of its answers."""
    was, now = max(before["A"].e2e), max(slots["A"].e2e)
    was_itl, now_itl = (percentile(runs["A"].itl, 50) for runs in (before, slots))
    if now >= was:
        outcome = "did_not_cure_a"
    elif now_itl < (1 - PRICE) * was_itl:
        outcome = "cured_a_though_disturbed"
    else:
        outcome = "cured_a" if now_itl > (1 + PRICE) * was_itl else "cured_a_cheaply"
    told = {"was": was, "now": now, "change": change(was, now), "was_itl": was_itl, "now_itl": now_itl}
    return tell("01", "more_slots", outcome, **told)


def hidden(capped: Run) -> MeasuredAnswer:
    """How many times the server's TTFT p99 the clients of the closed loop felt: the answer to a prediction."""
    server, felt = percentile(capped.ttft, 99), percentile(felt_ttft(capped), 99)
    return MeasuredAnswer(felt / server, f"{seconds(server)} by the server's clock, {seconds(felt)} as users felt it")


def where_it_went(capped: Run) -> Finding:
    """Whether the cap moved the queue into the client, and Little's product."""
    found = hidden(capped)
    outcome = "queue_moved_into_client" if found.answer > 1.5 else "no_queue_to_move"
    return tell("01", "cap", outcome, told=found.evidence, mean=in_flight(capped))


def tail(many: Run) -> Finding:
    """What the slow end of the ruler has in common, and on how many samples it rests."""
    mean, p99 = sum(many.ttft) / len(many.ttft), percentile(many.ttft, 99)
    views = sorted(many.finished, key=lambda view: view.deliveries[0] - view.borders[0])
    num_slow = max(-(-len(views) // round(1 / SLOW_END)), FEWEST)
    border = max(view.num_prompt_tokens for view in views) / 2
    long = {view.request_id for view in views if view.num_prompt_tokens > border}
    near = {view.request_id for view in views if view.request_id in long or _met(many, view, long)}
    slow, rest = (sum(view.request_id in near for view in part) for part in (views[-num_slow:], views[:-num_slow]))
    others = rest / max(len(views) - num_slow, 1)
    told = {"mean": mean, "p99": p99, "ratio": p99 / mean, "count": len(many.ttft), "border": border}
    return tell(
        "01",
        "tail",
        "long_prompts" if 2 * slow >= num_slow and slow / num_slow > LONGER * others else "something_else",
        below=sum(value < mean for value in many.ttft) / len(many.ttft),
        slow=slow,
        num_slow=num_slow,
        slow_ones=f"all of the slowest {num_slow}" if slow == num_slow else f"{slow} of the slowest {num_slow}",
        others=others,
        **told,
    )


def _met(run: Run, view: RequestView, long: Collection[str]) -> bool:
    """Whether a step before its first token also computed a part of one of these requests' prompts."""
    own = (step for step in run.steps if any(share.request_id == view.request_id for share in step.shares))
    shares = (share for step in own if step.start < view.deliveries[0] for share in step.shares)
    return any(share.is_prefill and share.request_id in long for share in shares)


def gained_at_70b(measured: Mapping[str, Mapping[str, ServiceFigures]]) -> MeasuredAnswer:
    """Which simulated service gained more from int8 weights: the answer to the prediction."""
    was, now = ({name: figures.e2e for name, figures in measured[lever].items()} for lever in (BEFORE, INT8))
    return gained_most(was, now, SAME, "p99 of E2E", TIE)


def at_70b(measured: Mapping[str, Mapping[str, ServiceFigures]]) -> Finding:
    """What each lever did to each service of the simulated 70B."""

    def moved(lever: str, service: str) -> str:
        return change(measured[BEFORE][service].e2e, measured[lever][service].e2e)

    slots, int8 = ({name: moved(lever, name) for name in "AB"} for lever in (MORE_SLOTS, INT8))
    was, now = (measured[lever]["A"].ttft for lever in (BEFORE, INT8))
    itl, shorter = ({name: each.itl for name, each in measured[lever].items()} for lever in (BEFORE, INT8))
    return tell("01", "at_70b", "always", slots=slots, int8=int8, was=was, now=now, itl=itl, shorter=shorter)


# ---------------------------------------------------------------- three numbers

BEYOND = 10
"""Samples beyond a percentile that make it worth quoting."""
WORDS_A_MINUTE, WORDS_A_TOKEN = 240, 0.75
"""How fast adults read plain English, and how many words of it a token is."""


def samples_for(q: float) -> int:
    """How many requests a percentile needs, so that BEYOND of them lie beyond it."""
    return round(BEYOND / (1 - q / 100))


def reading_itl() -> float:
    """Seconds a token at which text appears as fast as it's read."""
    return 60 * WORDS_A_TOKEN / WORDS_A_MINUTE


def three_numbers() -> Html:
    limits, _ = slo.USE_CASES["MLPerf Llama-2-70B, interactive"]
    return know_cold(
        (
            f"{samples_for(99):,} requests",
            "the fewest for a p99 that you'd quote",
            f"{BEYOND} samples beyond it: {BEYOND} / (1 - 0.99)",
        ),
        (
            f"{seconds(limits.ttft)} and {seconds(limits.tpot)}",
            "p99 limits on TTFT and TPOT of an interactive chat",
            "MLPerf Inference, Llama-2-70B, interactive scenario",
        ),
        (
            f"about {told_seconds(reading_itl())} a token",
            "the ITL at which text appears as fast as people read it",
            f"{WORDS_A_MINUTE} words a minute, {WORDS_A_TOKEN} words a token",
        ),
    )


# ---------------------------------------------------------------- claims

DOMINANT = 2 / 3
"""Share of the time above which one side of a split is the one to work on."""


def a6(runs: Mapping[str, Run]) -> Claim:
    """The same E2E, opposite TTFT and ITL."""
    e2e, ttft = ({n: percentile(getattr(r, m), 99) for n, r in runs.items()} for m in ("e2e", "ttft"))
    itl = {n: percentile(r.itl, 50) for n, r in runs.items()}
    apart = abs(e2e["A"] / e2e["B"] - 1)
    planned = apart < 0.2 and ttft["A"] > 2 * ttft["B"]
    verdict = "holds" if itl["B"] > LONGER * itl["A"] else "itl_does_not_show_it"
    found = (f"{n}: E2E {seconds(e2e[n])}, TTFT {seconds(ttft[n])}, ITL {seconds(itl[n])}" for n in runs)
    told = {"ttft_ratio": ttft["A"] / ttft["B"], "itl_ratio": itl["B"] / itl["A"], "apart": 100 * apart}
    verdict = verdict if planned else "services_not_as_planned"
    return conclude("A6", verdict, found="; ".join(found), **told)


def b1(run: Run) -> Claim:
    """Queue against compute, prefill against decode."""
    mean = run.mean_phases()
    compute = mean["prefill"] + mean["first_token"] + mean["decode"]
    share = mean["queue"] / sum(mean.values())
    larger, name = max((share, "queue"), (1 - share, "compute"))
    verdict = "holds" if larger > DOMINANT else "neither_side_dominates"
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
    verdict = "only_your_own" if split else "limits_tell_nothing_apart"
    counts = {"num_split": len(split), "num_shares": len(shares)}
    return conclude("F3", verdict, found=found, split="; ".join(split), **counts)


EXPERIMENT = ("lab/services.py", "lab/slo.py", "lab/ruler.py")
MEASURE: dict[str, Callable[[Lab], Claim]] = {
    "A6": lambda lab: a6(services.two_ill_services(lab)),
    "B1": lambda lab: b1(lab.run(services.few_slots(lab), max_num_seqs=1)),
    "E5": lambda lab: e5(buckets(lab.run(services.sample(lab), enable_prefix_caching=False), "TTFT")),
    "F3": lambda lab: f3(slo.attainments(services.two_ill_services(lab))),
}
