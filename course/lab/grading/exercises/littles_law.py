"""Little's law from arrival and departure stamps, and the client's cap that it gives away."""

import itertools
import random
import time
from collections.abc import Callable, Iterator, Sequence
from statistics import mean

from course.lab.grading.blame import shown
from course.lab.grading.exercise import Answer, Exercise, Hint, Mistake, Part
from course.lab.grading.tools import Slips, compare, left_alone, listed, number, whole

Stay = tuple[float, float]
"""Arrival and departure, s."""
MANY, SLOWEST_S = 3000, 0.3
"""Stays, and CPU time for the four questions about them. Sorting once takes a tenth of it, comparing each stay with each
other one ten times this, and more."""


def counts(stays: Sequence[Stay]) -> Iterator[tuple[float, float, int]]:
    """Brute force: between any two neighbouring stamps, how many are there. (from, to, count)"""
    moments = sorted({moment for stay in stays for moment in stay})
    for a, b in itertools.pairwise(moments):
        yield a, b, sum(arrival <= a and departure >= b for arrival, departure in stays)


def right_mean(stays: Sequence[Stay], start: float, end: float) -> float:
    return sum(max(0.0, min(b, end) - max(a, start)) * count for a, b, count in counts(stays)) / (end - start)


def average(values: Sequence[float]) -> float | None:
    return mean(values) if values else None


def right_law(stays: Sequence[Stay], start: float, end: float) -> list[float | None]:
    inside = [departure - arrival for arrival, departure in stays if start <= arrival < end]
    return [right_mean(stays, start, end), len(inside) / (end - start), average(inside)]


def right_periods(stays: Sequence[Stay]) -> list[list[float]]:
    found: list[list[float]] = []
    for a, b, count in counts(stays):
        if count and found and found[-1][1] == a:
            found[-1][1] = b
        elif count:
            found.append([a, b])
    return found


def right_cap(stays: Sequence[Stay]) -> int | None:
    arrivals = [arrival for arrival, _ in stays]
    if not arrivals or min(arrivals) == max(arrivals):
        return None
    pieces = [(min(b, max(arrivals)) - a, count) for a, b, count in counts(stays) if a < max(arrivals)]
    most = max(count for _, _, count in counts(stays))
    return (
        most
        if sum(length for length, count in pieces if count == most) > sum(length for length, _ in pieces) / 2
        else None
    )


def inside(stay: Stay, start: float, end: float) -> float:
    return max(0.0, min(stay[1], end) - max(stay[0], start))


MEAN_SLIPS: Slips = {
    "a stay that began before the window, or ends behind it, counts with the part that lies inside": lambda stays, start, end: (
        sum(b - a for a, b in stays if start <= a and b <= end) / (end - start)
    ),
    "that is λ·W of the arrivals in the window, with all of their stay. Count who is there, moment by moment: only the part "
    "inside the window": lambda stays, start, end: sum(b - a for a, b in stays if start <= a < end) / (end - start),
    "a stay reaches out of the window there: cut it at both ends": lambda stays, start, end: (
        sum(b - a for a, b in stays if b > start and a < end) / (end - start)
    ),
    "that is divided by the time from the first arrival to the last departure: divide by the window": lambda stays, start, end: (
        sum(inside(stay, start, end) for stay in stays) / (max(b for _, b in stays) - min(a for a, _ in stays))
    ),
    "that is the integral itself: divide by the window's length": lambda stays, start, end: sum(
        inside(stay, start, end) for stay in stays
    ),
    "that is a mean over events: a count that lasts long must weigh more than one that is over at once. Weigh each by its "
    "duration": lambda stays, start, end: mean(count for a, b, count in counts(stays) if a < end and b > start),
    "that is the mean of the counts that arrivals find, not over time": lambda stays, start, end: mean(
        sum(a <= arrival < b for a, b in stays) for arrival, _ in stays
    ),
    "that is the largest count": lambda stays, start, end: max(count for _, _, count in counts(stays)),
    "the start of the window is not cut: what is before it does not count": lambda stays, start, end: (
        sum(max(0.0, min(b, end) - a) for a, b in stays if b > start) / (end - start)
    ),
    "the end of the window is not cut: what is behind it does not count": lambda stays, start, end: (
        sum(max(0.0, b - max(a, start)) for a, b in stays if a < end) / (end - start)
    ),
}  # fmt: skip


def rate_slip(count: Callable[[Sequence[Stay], float, float], float]) -> Callable[..., float]:
    return lambda stays, start, end: count(stays, start, end) / (end - start)


RATE_SLIPS: Slips = {
    "that counts departures: λ counts arrivals": rate_slip(lambda stays, s, e: sum(s <= b < e for _, b in stays)),
    "that counts everybody who was there: λ counts those who arrived inside the window": rate_slip(
        lambda stays, s, e: sum(a < e and b > s for a, b in stays)
    ),
    "that counts those who arrived and departed inside: an arrival is enough": rate_slip(
        lambda stays, s, e: sum(s <= a and b <= e for a, b in stays)
    ),
    "that counts all arrivals: only those inside the window": rate_slip(lambda stays, s, e: len(stays)),
    "that is L / W: measure λ, or there is no law to test": lambda stays, s, e: right_law(stays, s, e)[0] / right_law(stays, s, e)[2],
    "an arrival at `start` is inside, one at `end` is not": rate_slip(lambda stays, s, e: sum(s < a <= e for a, _ in stays)),
    "an arrival at `end` is not inside": rate_slip(lambda stays, s, e: sum(s <= a <= e for a, _ in stays)),
    "an arrival at `start` is inside": rate_slip(lambda stays, s, e: sum(s < a < e for a, _ in stays)),
    "that is a number of requests: divide by the window's length": lambda stays, s, e: sum(s <= a < e for a, _ in stays),
}  # fmt: skip
STAY_SLIPS: Slips = {
    "that is the mean of all stays: W is the mean of those that arrived inside the window": lambda stays, s, e: average(
        [b - a for a, b in stays]
    ),
    "the stays are cut at the window's end: W is how long they stayed, all in all": lambda stays, s, e: average(
        [min(b, e) - a for a, b in stays if s <= a < e]
    ),
    "that is the mean of those that departed inside the window: W follows those that arrived": lambda stays, s, e: average(
        [b - a for a, b in stays if s <= b < e]
    ),
    "that is the mean of those that arrived and departed inside: the long ones are missing": lambda stays, s, e: average(
        [b - a for a, b in stays if s <= a and b <= e]
    ),
    "that is L / λ: measure W, or there is no law to test": lambda stays, s, e: (
        right_law(stays, s, e)[0] / rate if (rate := right_law(stays, s, e)[1]) else None
    ),
    "an arrival at `start` is inside, one at `end` is not": lambda stays, s, e: average([b - a for a, b in stays if s < a <= e]),
}  # fmt: skip


def some_stays(rng: random.Random, count: int, spread: float = 40.0) -> list[Stay]:
    """In any order. All stamps are multiples of 1/16 s, so that some coincide, and sums are exact."""
    stays = []
    for _ in range(count):
        arrival = rng.randrange(int(spread * 16)) / 16
        stays.append((arrival, arrival + rng.choice((rng.randrange(1, 32), rng.randrange(1, 160))) / 16))
    return stays


def some_window(rng: random.Random, stays: Sequence[Stay]) -> tuple[float, float]:
    """Its ends often coincide with an arrival."""
    moments = sorted({arrival for arrival, _ in stays} | {rng.randrange(640) / 16 for _ in range(4)})
    start = rng.choice(moments[: len(moments) // 2])
    return start, rng.choice([moment for moment in moments[len(moments) // 2 :] if moment > start])


def questions(rng: random.Random) -> list[tuple[list[Stay], float, float]]:
    made = []
    for count in (3, 5, 8, 12, 20, 8, 12):
        stays = some_stays(rng, count)
        made.append((stays, *some_window(rng, stays)))
    return made


def told(stays: Sequence[Stay], start: float, end: float) -> str:
    return f"{len(stays)} stays {shown(list(stays))} in the window {start:g} to {end:g}"


def mean_in_system(answer: Answer, rng: random.Random) -> str:
    asked = questions(rng)
    left_alone(answer.mean_in_system, *asked[0])
    stays = some_stays(rng, 5)
    asked += [
        (stays, -9.0, -1.0),
        (stays, -5.0, 99.0),
        ([], 0.0, 4.0),
        ([(3.0, 9.0)], 4.0, 6.0),
        ([(2.0, 2.5), (1.0, 3.0)], 1.0, 5.0),
    ]
    cases = [(each, number(answer.mean_in_system(*each), "mean_in_system(...)")) for each in asked]
    off = [abs(found - right_mean(*each)) for each, found in cases]
    if 1e-6 < max(off) < 0.05:
        raise Mistake(
            f"close, but up to {max(off):.2g} off: is the count looked at only now and then? It changes at stamps and nowhere else, "
            "so the integral can be exact",
            0.3,
        )
    compare("mean_in_system", cases, right_mean, MEAN_SLIPS, told)
    return "who is there, weighed by how long"


def the_law(answer: Answer, rng: random.Random) -> str:
    asked = [*questions(rng), *questions(rng)]
    left_alone(answer.little, *asked[0])
    found = [listed(answer.little(*each), "little(...)", 3) for each in asked]
    for place, name, slips in ((0, "L", MEAN_SLIPS), (1, "λ", RATE_SLIPS), (2, "W", STAY_SLIPS)):
        cases = [(each, None if own[place] is None else number(own[place], name)) for each, own in zip(asked, found)]
        compare(name, cases, lambda *each, place=place: right_law(*each)[place], slips, told)
    length, rate, stay = listed(answer.little([], 0.0, 2.0), "little([], 0, 2)", 3)
    if (number(length, "L"), number(rate, "λ")) != (0, 0) or stay is not None:
        raise Mistake(
            f"nobody came: gave {shown((length, rate, stay))}; expected (0, 0, None): nobody's stay has no mean", 0.5
        )
    return "L, λ and W, each measured by itself"


def where_it_holds(answer: Answer, rng: random.Random) -> str:
    slips: Slips = {
        "where one leaves in the very moment in which another arrives, the system is not empty for any time: that is one period": (
            _split_at_touch
        ),
        "a stay that lies inside another one does not end the period: remember the latest departure so far": _forgets_the_latest,
        "the stays must be ordered by arrival first": lambda stays: _merged(stays),
        "that is each stay by itself: those that overlap are one period": lambda stays: sorted(
            [a, b] for a, b in stays
        ),
        "that is the whole time, gaps included": lambda stays: [[min(a for a, _ in stays), max(b for _, b in stays)]],
    }
    asked = [some_stays(rng, count, spread) for count, spread in ((1, 9), (4, 30), (7, 40), (10, 80), (16, 150))]
    asked += [[(4.0, 5.0), (0.0, 2.0), (2.0, 3.0)], [(0.0, 9.0), (1.0, 2.0), (4.0, 5.0), (11.0, 12.0)], []]
    left_alone(answer.busy_periods, asked[1])
    cases = []
    for stays in asked:
        found = [listed(each, "a period", 2) for each in listed(answer.busy_periods(list(stays)), "busy_periods(...)")]
        cases.append(((stays,), [[number(end, "its end") for end in each] for each in found]))
    compare("busy_periods", cases, right_periods, slips)
    for stays in asked[:5]:
        start, end = right_periods(stays)[-1]
        length, rate, stay = listed(answer.little(list(stays), start, end), "little(...)", 3)
        if abs(length - rate * stay) > 1e-9:
            raise Mistake(
                f"{told(stays, start, end)}, which is empty at both ends: L is {length:.6g}, λ·W is {rate * stay:.6g}. Over such "
                "a window they are equal: is one of them not measured right?",
                0.5,
            )
    return "from empty to empty, and there L = λ·W exactly"


def _merged(stays: Sequence[Stay], touch: bool = True, latest: bool = True) -> list[list[float]]:
    found: list[list[float]] = []
    for arrival, departure in stays:
        if found and (arrival <= found[-1][1] if touch else arrival < found[-1][1]):
            found[-1][1] = max(found[-1][1], departure) if latest else departure
        else:
            found.append([arrival, departure])
    return found


def _split_at_touch(stays: Sequence[Stay]) -> list[list[float]]:
    return _merged(sorted(stays), touch=False)


def _forgets_the_latest(stays: Sequence[Stay]) -> list[list[float]]:
    return _merged(sorted(stays), latest=False)


def capped_client(rng: random.Random, cap: int, count: int, grain: int = 16) -> list[Stay]:
    """A client with more to ask than it may have open: the next is sent in the moment in which one comes back."""
    free_at = [0.0] * cap
    stays = []
    for _ in range(count):
        free_at.sort()
        departure = free_at[0] + rng.randrange(grain // 2, 5 * grain // 2) / grain
        stays.append((free_at[0], departure))
        free_at[0] = departure
    rng.shuffle(stays)
    return stays


def the_cap(answer: Answer, rng: random.Random) -> str:
    def arrivals_first(stays: Sequence[Stay]) -> int | None:
        moments = sorted([(a, -1) for a, _ in stays] + [(b, 1) for _, b in stays])
        most = max(itertools.accumulate(-step for _, step in moments))
        pieces = [c for c in counts(stays) if c[0] < max(a for a, _ in stays)]
        lasting = sum(b - a for a, b, count in pieces if count == most)
        return most if lasting > sum(b - a for a, b, _ in pieces) / 2 else None

    slips: Slips = {
        "where one departs in the very moment in which another arrives, the departure comes first: that is how a cap works": arrivals_first,
        "the largest count alone shows no cap: does it stand there for more than half of the time?": lambda stays: (
            max((count for _, _, count in counts(stays)), default=0)
        ),
        "the time behind the last arrival counts there: the client has nothing left to send, and the count must fall": _until_the_end,
        "exactly half of the time is not more than half": _half_is_enough,
        "that is the mean count, rounded: a cap is the largest count, where the count stands at it": lambda stays: round(
            right_mean(stays, min(a for a, _ in stays), max(b for _, b in stays))
        ),
    }  # fmt: skip
    asked = [capped_client(rng, cap, max(4 * cap, 8)) for cap in (1, 2, 3, rng.randint(4, 9), rng.randint(10, 16))]
    asked += [some_stays(rng, count) for count in (9, 14, 30)]
    asked += [
        [(0.0, 1.0), (2.0, 3.0)],
        [(0.0, 3.0), (2.0, 3.0)],
        [(0.0, 1.0), (0.0, 2.0), (2.0, 5.0)],
    ]
    short = rng.randint(3, 6)  # all at once, then nothing but a long tail: the cap stands until the last arrival
    asked.append([(0.0, 4.0)] * (short - 1) + [(0.0, 2.0), (2.0, 60.0)])
    left_alone(answer.client_cap, asked[1])
    cases = []
    for stays in asked:
        found = answer.client_cap(list(stays))
        cases.append(((stays,), None if found is None else whole(found, "client_cap(...)")))
    compare(
        "client_cap", cases, right_cap, slips, lambda stays: f"client_cap({shown(list(stays))}), {len(stays)} stays,"
    )
    for stays in ([], [(1.0, 4.0)], [(1.0, 4.0), (1.0, 3.0)]):
        if (found := answer.client_cap(list(stays))) is not None:
            raise Mistake(f"client_cap({stays}) gave {shown(found)}; expected None: no time lies between arrivals", 0.7)
    return "found where the client holds back, and nowhere else"


def _half_is_enough(stays: Sequence[Stay]) -> int | None:
    arrivals = [arrival for arrival, _ in stays]
    pieces = [(min(b, max(arrivals)) - a, count) for a, b, count in counts(stays) if a < max(arrivals)]
    most = max((count for _, _, count in counts(stays)), default=0)
    lasting = sum(length for length, count in pieces if count == most)
    return most if pieces and lasting >= sum(length for length, _ in pieces) / 2 else None


def _until_the_end(stays: Sequence[Stay]) -> int | None:
    pieces = list(counts(stays))
    most = max((count for _, _, count in pieces), default=0)
    lasting = sum(b - a for a, b, count in pieces if count == most)
    return most if lasting > sum(b - a for a, b, _ in pieces) / 2 else None


def stays_quick(answer: Answer, rng: random.Random) -> str:
    stays = capped_client(rng, 64, MANY, grain=2**20)  # hardly two stamps are equal, and sums are exact all the same
    end = max(departure for _, departure in stays)
    began = time.process_time()
    for name, arguments in (
        ("mean_in_system", (0.0, end)),
        ("little", (0.0, end)),
        ("busy_periods", ()),
        ("client_cap", ()),
    ):
        result = getattr(answer, name)(list(stays), *arguments)
        if time.process_time() - began > SLOWEST_S:
            raise Mistake(
                f"with {MANY} stays, {name} took the time over {SLOWEST_S} s: is each stay compared with each other one? Put "
                "arrivals (+1) and departures (-1) in one order, and go through it once"
            )
    if result != 64:
        raise Mistake(f"client_cap of {MANY} stays of a client with 64 open gave {shown(result)}; expected 64")
    return f"{MANY} stays, in no time"


EXERCISE = Exercise(
    id="littles-law",
    title="Little's law, and the cap it gives away",
    lesson=11,
    difficulty=2,
    minutes=30,
    entry_points=("mean_in_system", "little", "busy_periods", "client_cap"),
    parts=(
        Part("who is there", 3, mean_in_system),
        Part("three measurements", 3, the_law),
        Part("where the law holds", 3, where_it_holds),
        Part("the client's cap", 3, the_cap),
        Part("work", 1, stays_quick),
    ),
    hints=(
        Hint("The integral of the count is the sum, over all stays, of the part that lies inside the window.", 0.1),
        Hint("busy_periods: order by arrival, and remember the latest departure so far.", 0.1),
        Hint(
            "client_cap: one list of (moment, +1 or -1). Of equal moments, the -1 comes first, as sorting gives it.",
            0.1,
        ),
    ),
)
