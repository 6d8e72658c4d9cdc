"""An async batcher in front of one GPU, and what an interviewer lets happen to it: deaths, poison, crowds, long inputs."""

import random
from dataclasses import dataclass

from course.grading.props import Arrivals, Gpu, Item
from course.grading.tools import Answer, expect

PATIENT = 30.0
"""Seconds that callers wait where it isn't about being quick."""
HURRIED = 1.0
TOKENS = 100
"""Length of an input, where lengths don't matter."""


@dataclass(frozen=True)
class BatcherRun:
    """How a batcher fared."""

    arrivals: Arrivals
    outcomes: list[tuple[str, float]]
    runs: list[list[str]]
    computed: dict[str, int]

    def these(self, *how: str) -> list[Item]:
        """What those callers asked for who fared so."""
        return [item for (_, item, _), (found, _) in zip(self.arrivals, self.outcomes) if found in how]


def play(
    answer: Answer,
    arrivals: Arrivals,
    deaths: tuple[float, ...] = (),
    poison: tuple[str, ...] = (),
    patience: float = PATIENT,
) -> BatcherRun:
    found = answer.prop("callers", answer.thing("Batcher"), arrivals, list(deaths), list(poison), patience)
    played = BatcherRun(arrivals, *found)
    expect(not played.these("wrong"), "wrong_answer")
    expect(not played.these("odd"), "odd_answer", count=len(played.these("odd")))
    made_up = [item for item in played.these("answered") if item.key not in played.computed]
    expect(not made_up, "made_up", count=len(made_up))
    late = played.these("late")
    expect(len(late) < len(arrivals), "nobody_answered", count=len(late), of=len(arrivals), patience=patience)
    return played


def inputs(rng: random.Random, count: int, tokens: int = TOKENS) -> list[Item]:
    return [Item(f"k{key}", rng.randrange(1000, 10_000), tokens) for key in rng.sample(range(10**6), count)]


def together(rng: random.Random, items: list[Item], within: float, begin: float = 0.0) -> Arrivals:
    """All of them at moments of their own in a stretch of time."""
    moments = sorted(begin + within * rng.random() for _ in items)
    return [(at, item, None) for at, item in zip(moments, items)]


def hold_answered(played: BatcherRun, what: str) -> None:
    """Nobody was left waiting, or refused."""
    late, refused = played.these("late"), played.these("refused")
    expect(not late, "lost", count=len(late), of=len(played.arrivals), what=what)
    expect(not refused, "refused_without_need", count=len(refused))


def hold_once(played: BatcherRun, why: str) -> None:
    twice = [key for key, times in played.computed.items() if times > 1]
    expect(not twice, "computed_twice", 0.3, count=len(twice), why=why)


def routing(answer: Answer, rng: random.Random) -> None:
    played = play(answer, together(rng, inputs(rng, 250), 1.0))
    hold_answered(played, "250 in a second")
    expect(not played.these("failed"), "failed_for_death", count=len(played.these("failed")))
    hold_once(played, "take them off the queue when their batch begins")


LONE_WAIT_S = 0.03
ROUNDING_S = 1e-6


def lone_and_crowd(answer: Answer, rng: random.Random) -> None:
    lone = play(answer, [(0.2, inputs(rng, 1)[0], None)])
    hold_answered(lone, "it was alone")
    (_, seconds), gpu = lone.outcomes[0], Gpu.seconds(1, TOKENS)
    expect(seconds <= gpu + LONE_WAIT_S + ROUNDING_S, "lone_caller_waits", seconds=seconds, gpu=gpu, limit=LONE_WAIT_S)
    crowd = play(answer, together(rng, inputs(rng, 300), 0.2))
    hold_answered(crowd, "300 in 0.2 s")
    # Until the last has come, a batch may be begun with whatever is there; from then on, full ones.
    limit = 6
    expect(len(crowd.runs) <= limit, "small_batches", of=300, within=0.2, runs=len(crowd.runs), limit=limit)


def death(answer: Answer, rng: random.Random) -> None:
    for deaths in ((0.3,), (0.3, 0.95, 1.5)):
        played = play(answer, together(rng, inputs(rng, 200), 0.5), deaths)
        hold_answered(played, "the GPU had died")
        failed = played.these("failed")
        expect(not failed, "failed_for_death", count=len(failed))
        hold_once(played, "only inputs of the batch that failed are run again")


MOST_RUNS = 24
"""For 150 inputs and a poisoned one: some five batches, seven rounds of two halves, one more try; and some to spare."""


def poison(answer: Answer, rng: random.Random) -> None:
    items = inputs(rng, 150)
    bad = rng.choice(items)
    played = play(answer, together(rng, items, 0.3), poison=(bad.key,))
    failed = [item for item in played.these("failed") if item != bad]
    expect(not failed, "failed_with_poison", count=len(failed))
    how = dict(zip((item.key for _, item, _ in played.arrivals), (how for how, _ in played.outcomes)))[bad.key]
    hold_answered(BatcherRun(*_without(played, bad), played.runs, played.computed), "an input was poisoned")
    expect(how == "failed", "poison_answered", 0.5, how={"late": "no answer"}.get(how, f"{how!r}"))
    runs = len(played.runs)
    expect(runs <= MOST_RUNS, "many_runs", 0.3, runs=runs, of=len(items), limit=MOST_RUNS)
    hold_once(played, "what has passed isn't run again")


def _without(played: BatcherRun, item: Item) -> tuple[Arrivals, list[tuple[str, float]]]:
    pairs = [(each, how) for each, how in zip(played.arrivals, played.outcomes) if each[1] != item]
    return [each for each, _ in pairs], [how for _, how in pairs]


def same_key(answer: Answer, rng: random.Random) -> None:
    first = together(rng, inputs(rng, 40), 0.1)
    again = [(at + later, item, None) for (at, item, _), later in zip(first, [0.01, 0.2, 1.5, 4.0] * 10)]
    played = play(answer, sorted([*first, *again], key=lambda arrival: arrival[0]))
    hold_answered(played, "some were asked for twice")
    expect(not played.these("failed"), "failed_for_death", count=len(played.these("failed")))
    hold_once(
        played,
        "their callers had asked again with the same key, immediately or seconds later. Keep answers for a while",
    )


def leaving(answer: Answer, rng: random.Random) -> None:
    first, leavers, rest = inputs(rng, 100), inputs(rng, 80), inputs(rng, 60)
    in_run, twins = first[:10], rest[:10]
    # The first hundred fill a batch of 0.16 s; those who leave do so while it runs. Ten of them are in it, and ten asked
    # twice with one key, of which only the first call leaves.
    arrivals = [
        *((0.0, item, 0.05 if item in in_run else None) for item in first),
        *((0.04, item, 0.06) for item in twins),
        *((0.05, item, 0.06) for item in leavers),
        *((0.05, item, None) for item in rest),
    ]
    played = play(answer, arrivals)
    stayed = [how for (_, _, stays), (how, _) in zip(arrivals, played.outcomes) if stays is None]
    unserved = [how for how in stayed if how != "answered"]
    expect(not unserved, "others_left_too", count=len(unserved), of=len(stayed))
    ghosts = [item for item in leavers if item.key in played.computed]
    expect(not ghosts, "ghosts", count=len(ghosts))


OVERLOAD_S = 2.0
SOON_S = 0.1


def overload(answer: Answer, rng: random.Random) -> str:
    capacity = Gpu.MAX_BATCH / Gpu.seconds(Gpu.MAX_BATCH, TOKENS)
    calm = play(answer, together(rng, inputs(rng, round(0.6 * capacity * OVERLOAD_S)), OVERLOAD_S), patience=HURRIED)
    slow = calm.these("late")
    expect(not slow, "slow_at_ease", count=len(slow), of=len(calm.arrivals), patience=HURRIED)
    hold_answered(calm, "the load was 60%")
    played = play(answer, together(rng, inputs(rng, round(3 * capacity * OVERLOAD_S)), OVERLOAD_S), patience=HURRIED)
    late, answered = len(played.these("late")), len(played.these("answered"))
    wasted = 1 - answered / max(sum(played.computed.values()), 1)
    expect(late <= 0.01 * len(played.arrivals), "late_answers", count=late, patience=HURRIED, wasted=max(wasted, 0.0))
    slowest = max((seconds for how, seconds in played.outcomes if how == "refused"), default=0.0)
    expect(slowest <= SOON_S, "refused_late", 0.3, seconds=slowest)
    possible = capacity * OVERLOAD_S
    expect(answered >= 0.9 * possible, "idle_gpu", 0.3, answered=answered, seconds=OVERLOAD_S, possible=possible)
    return f"{answered} of {len(played.arrivals)} callers answered, by a GPU that does {capacity:.0f} a second"


def lengths(answer: Answer, rng: random.Random) -> None:
    seconds, kinds = 4.0, {"short": (150, (20, 100)), "long": (10, (1500, 2000))}
    arrivals: list[tuple[float, Item, float | None]] = []
    for rate, (low, high) in kinds.values():
        for at, item, _ in together(rng, inputs(rng, round(rate * seconds)), seconds):
            arrivals.append((at, Item(f"{item.key}x{high}", item.number, rng.randint(low, high)), None))
    arrivals.sort(key=lambda arrival: arrival[0])
    played = play(answer, arrivals, patience=HURRIED)
    refused = played.these("refused")
    expect(len(refused) <= 0.02 * len(arrivals), "refused_without_need", count=len(refused))
    for kind, (_, (low, high)) in kinds.items():
        of = [item for _, item, _ in arrivals if low <= item.tokens <= high]
        unserved = [item for item in played.these("late", "refused", "failed") if low <= item.tokens <= high]
        slip, share = ("padded", 0.0) if kind == "short" else ("starved", 0.3)
        expect(len(unserved) <= 0.02 * len(of), slip, share, count=len(unserved), of=len(of), patience=HURRIED)
