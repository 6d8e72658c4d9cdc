"""A small metrics module with the bugs of real tools; the learner repairs it, and catches a tool that still has them."""

import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any

from course.grading.blame import Mistake, shown
from course.grading.exercises import metrics_slips as known
from course.grading.exercises.percentiles import right_percentile
from course.grading.remote import Answer
from course.grading.tools import Slips, ask, average, close, compare, each, hold, listed, maybe, number

QUANTILES = (50, 80, 90, 95)
TOLERANCE = 0.01


def of_one_request(answer: Answer, rng: random.Random, name: str, column: str) -> None:
    kinds = ["usual"] * 12 + ["one", "none", "none", "broke off", "broke off"]
    requests = [(known.some_request(rng, kind),) for kind in kinds]
    hold(getattr(answer, name), requests, *OF_REQUESTS[column], each(number) if column == "gap" else maybe(number))


def rank(answer: Answer, rng: random.Random) -> None:
    questions = [([rng.random() for _ in range(rng.randint(21, 60))], q) for q in QUANTILES for _ in range(3)]
    hold(answer.percentile, questions, known.right_guarded, known.RANK_SLIPS, maybe(number))


def too_few(answer: Answer, rng: random.Random) -> None:
    sizes = {50: (1, 2), 80: (4, 5), 90: (9, 10), 95: (3, 19, 20), 99: (99, 100)}
    questions = [([rng.random() for _ in range(n)], q) for q, counts in sizes.items() for n in counts] + [([], 50)]
    cases = ask(answer.percentile, questions, maybe(number))
    numbered = [(arguments, found) for arguments, found in cases if found is not None and not known.enough(*arguments)]
    if numbered:
        (samples, q), found = numbered[-1]
        raise Mistake("too_few_samples", num_samples=len(samples), q=q, found=found, needed=100 / (100 - q))
    # How it interpolates is another part's question: here, any number is a number.
    cases = [(arguments, found if found is None else right_percentile(*arguments)) for arguments, found in cases]
    compare(
        "percentile",
        cases,
        known.right_guarded,
        known.FEW_SLIPS,
        describe=lambda s, q: f"percentile({len(s)} samples, {q})",
    )


def fleet(answer: Answer, rng: random.Random) -> None:
    questions = []
    for q in QUANTILES * 2:
        sizes = [rng.randint(25, 60), rng.randint(3, 9), rng.randint(20, 30)]
        speeds = rng.sample((1.0, 3.0, 9.0), 3)
        questions.append(([[rng.random() * speed for _ in range(n)] for n, speed in zip(sizes, speeds)], q))
    small = [[rng.random() for _ in range(15)] for _ in range(2)]
    questions += [(small, 95), ([[], small[0], []], 50), ([small[0][:5]], 95), ([], 50)]
    slips = {
        **known.FLEET_SLIPS,
        "pooled_with_wrong_percentile": lambda servers, q: answer.percentile(list(itertools.chain(*servers)), q),
        "mean_of_own_percentiles": lambda servers, q: average(
            [p for own in servers if (p := answer.percentile(own, q)) is not None]
        ),
    }
    hold(answer.fleet_percentile, questions, known.right_fleet, slips, maybe(number))


def told_of_requests(requests: Sequence[known.Request], limit_ms: float) -> str:
    failed = sum(request["failed"] for request in requests)
    return f"attainment({len(requests)} requests, {failed} of them failed, {limit_ms:g})"


def attainment(answer: Answer, rng: random.Random) -> None:
    questions: list[tuple[list[known.Request], float]] = []
    for _ in range(8):
        requests = known.some_requests(rng, 12) + [known.some_request(rng, "broke off"), known.some_request(rng)]
        borders = [ttft * 1000 for request in requests if (ttft := known.right_ttft(request)) is not None]
        questions.append((requests, rng.choice(borders)))
    questions += [([known.some_request(rng, "none")], 400.0), ([], 400.0)]
    hold(answer.attainment, questions, known.right_attainment, known.ATTAINMENT_SLIPS, maybe(number), told_of_requests)


OF_REQUESTS: dict[str, tuple[Callable, Slips]] = {
    "ttft": (known.right_ttft, known.TTFT_SLIPS),
    "tpot": (known.right_tpot, known.TPOT_SLIPS),
    "gap": (known.right_gaps, known.GAP_SLIPS),
}
"""Columns that are percentiles of what requests give: by the definitions, and with a bug."""
COLUMNS = (*OF_REQUESTS, "met")


def samples(formula: Callable[[known.Request], Any], requests: Sequence[known.Request]) -> list[float]:
    """What requests give, one number each, several, or none."""
    found = [formula(request) for request in requests]
    return [x for each in found if each is not None for x in (each if isinstance(each, list) else [each])]


def printed_row(servers: known.Servers, q: float, limit_ms: float) -> dict[str, float | None]:
    """What a right tool prints."""
    row = {
        name: known.right_fleet([samples(right, own) for own in servers], q) for name, (right, _) in OF_REQUESTS.items()
    }
    return {**row, "met": known.right_attainment([r for own in servers for r in own], limit_ms)}


def spoiled(name: str, servers: known.Servers, q: float, limit_ms: float, rng: random.Random) -> tuple[str, Any]:
    """What a tool with a bug in one column prints there, and the bug's words."""
    everything = [r for own in servers for r in own]
    slips = known.ATTAINMENT_SLIPS if name == "met" else OF_REQUESTS[name][1]
    words = rng.choice(list(slips))
    if name == "met":
        return words, slips[words](everything, limit_ms)
    return words, right_percentile(samples(slips[words], everything), q)


def differs(printed: float | None, wanted: float | None, tolerance: float) -> bool:
    if printed is None or wanted is None:
        return printed is not wanted
    return abs(printed - wanted) > tolerance * abs(wanted)


def audit(answer: Answer, rng: random.Random) -> str:
    seen = 0
    for turn in range(24):
        servers = [known.some_requests(rng, rng.randint(8, 14)) for _ in range(1 + turn % 3)]
        q, limit_ms = (95 if turn % 8 == 7 else rng.choice((50, 80))), rng.choice((400.0, 700.0, 1000.0))
        if turn % 8 == 7:
            servers = [own[:5] for own in servers[:1]]  # too few for a p95
        row = printed_row(servers, q, limit_ms)
        printed = {
            name: value if value is None else value * (1 + rng.uniform(-1, 1) * TOLERANCE / 10)
            for name, value in row.items()
        }
        planted: dict[str, str] = {}
        for name in COLUMNS:
            if rng.random() < (0.9 if row[name] is None else 0.4):
                words, value = spoiled(name, servers, q, limit_ms, rng)
                if differs(value, row[name], 3 * TOLERANCE):
                    planted[name], printed[name] = words, value
        raw = listed(answer.audit(dict(printed), servers, q, limit_ms), "audit(...)")
        found = {each if isinstance(each, str) else shown(each) for each in raw}
        if found != set(planted):
            raise Mistake(_wrong_verdict(found, planted, printed, row, q), share=min(0.5, seen / 48))
        seen += 1
    return f"{seen} printouts audited: every planted bug found, and no right tool accused"


def _wrong_verdict(found: set[str], planted: dict[str, str], printed: dict, row: dict, q: float) -> str:
    words = f"audit(...) of a printout with q={q} named {sorted(found) or 'nothing'}; expected {sorted(planted) or 'nothing'}"
    if odd := found - set(COLUMNS):
        return f"{words}: {shown(sorted(odd))} is no column. Give back the columns' names"
    if missed := sorted(set(planted) - found):
        name = missed[0]
        return f"{words}. {name} was printed as {shown(printed[name])} and is {shown(row[name])} by the definitions ({planted[name]})"
    name = sorted(found - set(planted))[0]
    if row[name] is None:
        return f"{words}. {name} was printed as None, and None it is: too few samples. Two Nones agree"
    near = close(printed[name], row[name], TOLERANCE)
    rounded = (
        "up to one percent counts as equal, because tools round. If audit() allows for that, your own number is off"
    )
    why = rounded if near else "is your own number right?"
    return f"{words}. {name} was printed as {shown(printed[name])} and is {shown(row[name])}: {why}"
