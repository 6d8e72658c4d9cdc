"""Little's law from arrival and departure stamps, and the client's cap that it gives away."""

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from statistics import mean

from course.grading.blame import Mistake, shown
from course.grading.growth import WorkCost, cost_of, hold_steady
from course.grading.remote import Answer
from course.grading.tools import Slips, average, compare, each, expect, hold, listed, maybe, number, whole

Stay = tuple[float, float]
"""Arrival and departure, s."""
MANY = (250, 2_000, 14_000)
"""Stays."""
ENTRY_POINTS = {"mean_in_system": True, "little": True, "busy_periods": False, "client_cap": False}
"""Each of them, and whether it is asked about a window."""


def counts(stays: Sequence[Stay]) -> Iterator[tuple[float, float, int]]:
    """Brute force: between any two neighbouring stamps, how many are there. (from, to, count)"""
    moments = sorted({moment for stay in stays for moment in stay})
    for a, b in itertools.pairwise(moments):
        yield a, b, sum(arrival <= a and departure >= b for arrival, departure in stays)


def right_mean(stays: Sequence[Stay], start: float, end: float) -> float:
    return sum(max(0.0, min(b, end) - max(a, start)) * count for a, b, count in counts(stays)) / (end - start)


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


def inside(stay: Stay, start: float, end: float) -> float:
    return max(0.0, min(stay[1], end) - max(stay[0], start))


def over_window(total: Callable[[Sequence[Stay], float, float], float]) -> Callable[..., float]:
    """Divided by the window's length."""
    return lambda stays, start, end: total(stays, start, end) / (end - start)


MEAN_SLIPS: Slips = {
    "only_stays_inside_window": over_window(lambda stays, s, e: sum(b - a for a, b in stays if s <= a and b <= e)),
    "rate_times_stay": over_window(lambda stays, s, e: sum(b - a for a, b in stays if s <= a < e)),
    "stays_not_cut": over_window(lambda stays, s, e: sum(b - a for a, b in stays if b > s and a < e)),
    "divided_by_span_of_stays": lambda stays, s, e: (
        sum(inside(stay, s, e) for stay in stays) / (max(b for _, b in stays) - min(a for a, _ in stays))
    ),
    "mean_over_events": lambda stays, s, e: mean(count for a, b, count in counts(stays) if a < e and b > s),
    "start_not_cut": over_window(lambda stays, s, e: sum(max(0.0, min(b, e) - a) for a, b in stays if b > s)),
    "end_not_cut": over_window(lambda stays, s, e: sum(max(0.0, b - max(a, s)) for a, b in stays if a < e)),
}
RATE_SLIPS: Slips = {
    "counted_departures": over_window(lambda stays, s, e: sum(s <= b < e for _, b in stays)),
    "counted_all_present": over_window(lambda stays, s, e: sum(a < e and b > s for a, b in stays)),
    "counted_arrived_and_departed": over_window(lambda stays, s, e: sum(s <= a and b <= e for a, b in stays)),
    "rate_from_the_law": lambda stays, s, e: right_law(stays, s, e)[0] / right_law(stays, s, e)[2],
    "included_arrival_at_end": over_window(lambda stays, s, e: sum(s <= a <= e for a, _ in stays)),
}
STAY_SLIPS: Slips = {
    "mean_of_all_stays": lambda stays, s, e: average([b - a for a, b in stays]),
    "stays_cut_at_end": lambda stays, s, e: average([min(b, e) - a for a, b in stays if s <= a < e]),
    "mean_of_departed": lambda stays, s, e: average([b - a for a, b in stays if s <= b < e]),
    "mean_of_arrived_and_departed": lambda stays, s, e: average([b - a for a, b in stays if s <= a and b <= e]),
    "stay_from_the_law": lambda stays, s, e: (
        right_law(stays, s, e)[0] / rate if (rate := right_law(stays, s, e)[1]) else None
    ),
}


def some_stays(rng: random.Random, count: int, spread: float = 40.0) -> list[Stay]:
    """In any order. All stamps are multiples of 1/16 s, so that some coincide, and sums are exact."""
    stays = []
    for _ in range(count):
        arrival = rng.randrange(int(spread * 16)) / 16
        stays.append((arrival, arrival + rng.choice((rng.randrange(1, 32), rng.randrange(1, 160))) / 16))
    return [stays[-1], *stays[1:]]  # two that are equal are two


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


def described(stays: Sequence[Stay], start: float, end: float) -> str:
    return f"{len(stays)} stays {shown(list(stays))} in the window {start:g} to {end:g}"


def mean_in_system(answer: Answer, rng: random.Random) -> None:
    asked = questions(rng)
    stays = some_stays(rng, 5)
    asked += [(stays, -9.0, -1.0), (stays, -5.0, 99.0), ([], 0.0, 4.0), ([(3.0, 9.0)], 4.0, 6.0)]
    asked.append(([(2.0, 2.5), (1.0, 3.0)], 1.0, 5.0))
    hold(answer.mean_in_system, asked, right_mean, MEAN_SLIPS, describe=described)


def the_law(answer: Answer, rng: random.Random) -> None:
    asked = [*questions(rng), *questions(rng)]
    found = [listed(answer.little(*question), "little(...)", 3) for question in asked]
    for place, name, slips in ((0, "L", MEAN_SLIPS), (1, "λ", RATE_SLIPS), (2, "W", STAY_SLIPS)):
        cases = [(question, maybe(number)(own[place], name)) for question, own in zip(asked, found)]
        compare(name, cases, lambda *each, place=place: right_law(*each)[place], slips, describe=described)
    length, rate, stay = listed(answer.little([], 0.0, 2.0), "little([], 0, 2)", 3)
    if (number(length, "L"), number(rate, "λ")) != (0, 0) or stay is not None:
        raise Mistake("empty_window", 0.5, found=shown((length, rate, stay)))


def where_it_holds(answer: Answer, rng: random.Random) -> None:
    slips: Slips = {
        "touching_stays_split": lambda stays: _merged(sorted(stays), touch=False),
        "forgot_latest_departure": lambda stays: _merged(sorted(stays), latest=False),
        "not_sorted_by_arrival": _merged,
    }
    asked = [some_stays(rng, count, spread) for count, spread in ((1, 9), (4, 30), (7, 40), (10, 80), (16, 150))]
    asked += [[(4.0, 5.0), (0.0, 2.0), (2.0, 3.0)], [(0.0, 9.0), (1.0, 2.0), (4.0, 5.0), (11.0, 12.0)], []]
    hold(answer.busy_periods, [(stays,) for stays in asked], right_periods, slips, each(each(number)))
    for stays in asked[:5]:
        start, end = right_periods(stays)[-1]
        law = listed(answer.little(list(stays), start, end), "little(...)", 3)
        length, rate, stay = (number(each, name) for each, name in zip(law, ("L", "λ", "W")))
        about = {"asked": described(stays, start, end), "length": length, "product": rate * stay}
        expect(abs(length - rate * stay) <= 1e-9, "law_does_not_hold", 0.5, **about)


def _merged(stays: Sequence[Stay], touch: bool = True, latest: bool = True) -> list[list[float]]:
    found: list[list[float]] = []
    for arrival, departure in stays:
        if found and (arrival <= found[-1][1] if touch else arrival < found[-1][1]):
            found[-1][1] = max(found[-1][1], departure) if latest else departure
        else:
            found.append([arrival, departure])
    return found


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


def the_cap(answer: Answer, rng: random.Random) -> None:
    slips: Slips = {
        "arrivals_before_departures": _arrivals_first,
        "largest_count_alone": lambda stays: max((count for _, _, count in counts(stays)), default=0),
        "maximum_before_last_arrival": lambda stays: _cap(
            stays,
            between := _between_arrivals(stays),
            max((n for (_, _, n), length in zip(counts(stays), between) if length), default=0),
        ),
        "counted_time_after_last_arrival": lambda stays: _cap(stays, [b - a for a, b, _ in counts(stays)]),
    }
    asked = [capped_client(rng, cap, max(4 * cap, 8)) for cap in (1, 2, 3, rng.randint(4, 9), rng.randint(10, 16))]
    asked += [some_stays(rng, count) for count in (9, 14, 30)]
    asked += [[(0.0, 1.0), (2.0, 3.0)], [(0.0, 3.0), (2.0, 3.0)], [(0.0, 1.0), (0.0, 2.0), (2.0, 5.0)]]
    short = rng.randint(3, 6)  # all at once, then nothing but a long tail: the cap stands until the last arrival
    asked.append([(0.0, 4.0)] * (short - 1) + [(0.0, 2.0), (2.0, 60.0)])
    about = "client_cap({}), {} stays,".format
    questions = [(stays,) for stays in asked]
    hold(
        answer.client_cap,
        questions,
        lambda stays: _cap(stays, _between_arrivals(stays)),
        slips,
        maybe(whole),
        lambda stays: about(shown(stays), len(stays)),
    )
    for stays in ([], [(1.0, 4.0)], [(1.0, 4.0), (1.0, 3.0)]):
        if (found := answer.client_cap(list(stays))) is not None:
            raise Mistake(f"client_cap({stays}) gave {shown(found)}; expected None: no time lies between arrivals", 0.7)


def _between_arrivals(stays: Sequence[Stay]) -> list[float]:
    """Seconds of each piece of `counts` that lie before the last arrival."""
    last = max(arrival for arrival, _ in stays)
    return [max(min(b, last) - a, 0.0) for a, b, _ in counts(stays)]


def _cap(stays: Sequence[Stay], lengths: list[float], most: int | None = None) -> int | None:
    """The largest count, if it lasts long enough; `lengths` say how long each piece of `counts` is taken to be."""
    numbers = [count for _, _, count in counts(stays)]
    most = max(numbers, default=0) if most is None else most
    lasting = sum(length for length, count in zip(lengths, numbers) if count == most)
    return most if sum(lengths) and lasting > sum(lengths) / 2 else None


def _arrivals_first(stays: Sequence[Stay]) -> int | None:
    moments = sorted([(a, -1) for a, _ in stays] + [(b, 1) for _, b in stays])
    return _cap(stays, _between_arrivals(stays), max(itertools.accumulate(-step for _, step in moments)))


def stays_quick(answer: Answer, rng: random.Random) -> None:
    traffic = {many: capped_client(rng, 64, many, grain=2**20) for many in MANY}  # stamps differ, and sums are exact

    def asking(name: str, needs_window: bool, many: int) -> WorkCost:
        stays = traffic[many]
        window = (0.0, max(departure for _, departure in stays)) if needs_window else ()
        return cost_of(lambda: getattr(answer, name)(list(stays), *window), many)

    for name, needs_window in ENTRY_POINTS.items():
        hold_steady(partial(asking, name, needs_window), MANY, "stay_cost_grows", function=name)
    result = answer.client_cap(list(traffic[MANY[-1]]))
    expect(result == 64, f"client_cap of {MANY[-1]} stays of a client with 64 open gave {shown(result)}; expected 64")
