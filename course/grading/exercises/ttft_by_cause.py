"""One TTFT cut by cause, from step records: whose tokens did it wait for?"""

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from course.grading.tools import Answer, Mistake, close, number, slip_of, table

CAUSES = ("queue", "own prefill", "others' prompts", "others' answers", "fixed cost", "between steps")
Step = dict[str, Any]
"""start, end, fixed_s (seconds), tokens (request id -> tokens in the step), reading (ids in prefill in it)."""
Cut = dict[str, float]


def right_cut(
    me: str,
    arrival: float,
    first_token: float,
    steps: list[Step],
    weigh: Callable[[Step, str], float] = lambda step, who: step["tokens"][who],
    reads: Callable[[Step, str], bool] = lambda step, who: who in step["reading"],
    fixed: Callable[[Step], float] = lambda step: step["fixed_s"],
) -> Cut:
    """The model's cut; `weigh`, `reads` and `fixed` are where the usual mistakes differ."""
    spent = dict.fromkeys(CAUSES, 0.0)
    mine = [step for step in steps if step["tokens"].get(me) and step["end"] <= first_token]
    spent["queue"] = mine[0]["start"] - arrival
    for step in mine:
        total = sum(weigh(step, who) for who in step["tokens"])
        spent["fixed cost"] += fixed(step)
        for who in step["tokens"]:
            cause = "own prefill" if who == me else "others' prompts" if reads(step, who) else "others' answers"
            spent[cause] += (step["end"] - step["start"] - fixed(step)) * weigh(step, who) / total
    spent["between steps"] = first_token - arrival - sum(spent.values())
    return spent


def with_changes(change: Callable[[Cut, dict[str, Any]], Cut]) -> Callable[..., Cut]:
    def mistaken(me: str, arrival: float, first_token: float, steps: list[Step]) -> Cut:
        cut = right_cut(me, arrival, first_token, steps)
        mine = [step for step in steps if step["tokens"].get(me) and step["end"] <= first_token]
        facts = {"me": me, "mine": mine, "steps": steps, "arrival": arrival, "first": first_token}
        return change(cut, facts)

    return mistaken


def seconds(steps: list[Step]) -> float:
    return sum(step["end"] - step["start"] for step in steps)


def queue_to_any_step(cut: Cut, facts: dict[str, Any]) -> Cut:
    queue = next(step["start"] for step in facts["steps"] if step["start"] >= facts["arrival"]) - facts["arrival"]
    return {**cut, "queue": queue, "between steps": cut["between steps"] + cut["queue"] - queue}


def all_steps(me: str, arrival: float, first_token: float, steps: list[Step]) -> Cut:
    cut = right_cut(me, arrival, float("inf"), steps)
    return {**cut, "between steps": first_token - arrival - sum(cut[cause] for cause in CAUSES[:-1])}


def all_own(cut: Cut, facts: dict[str, Any]) -> Cut:
    whole = seconds(facts["mine"]) - cut["fixed cost"]
    return {**cut, "own prefill": whole, "others' prompts": 0.0, "others' answers": 0.0}


def fixed_to_own(cut: Cut, facts: dict[str, Any]) -> Cut:
    """Alone in a step, this is what sharing it by tokens comes to, too."""
    return {**cut, "own prefill": cut["own prefill"] + cut["fixed cost"], "fixed cost": 0.0}


def without_mine(cut: Cut, facts: dict[str, Any]) -> Cut:
    """Steps in the middle that the request sat out are nowhere."""
    begin, end = facts["mine"][0]["start"], facts["first"]
    skipped = [s for s in facts["steps"] if facts["me"] not in s["tokens"] and begin <= s["start"] and s["end"] <= end]
    return {**cut, "between steps": cut["between steps"] - seconds(skipped)}


SLIPS = {
    "fixed_cost_in_own_prefill": with_changes(fixed_to_own),
    "fixed_cost_shared_by_tokens": lambda *a: right_cut(*a, fixed=lambda step: 0.0),
    "step_shared_equally": lambda *a: right_cut(*a, weigh=lambda step, who: 1.0),
    "all_steps_in_own_prefill": with_changes(all_own),
    "prefills_counted_as_decodes": lambda *a: right_cut(*a, reads=lambda step, who: False),
    "decodes_counted_as_prefills": lambda *a: right_cut(*a, reads=lambda step, who: True),
    "queue_ends_at_any_step": with_changes(queue_to_any_step),
    "queue_includes_first_step": with_changes(
        lambda cut, facts: {**cut, "queue": facts["mine"][0]["end"] - facts["arrival"]}
    ),
    "steps_after_first_token": all_steps,
    "waits_between_steps_missing": with_changes(lambda cut, facts: {**cut, "between steps": 0.0}),
    "steps_of_others_missing": with_changes(without_mine),
}


def a_case(rng: random.Random, *, company: bool = True, skips: bool = False, queued: bool = True) -> tuple[Any, ...]:
    """A request's arrival, its first token, and all steps: before it, with it, after it."""
    clock, steps = round(rng.uniform(10, 50), 3), []
    arrival, me = None, f"r{rng.randint(1, 99)}"
    chunks = rng.randint(2, 4)
    plan = [*["before"] * rng.randint(1, 3), *["mine"] * chunks, *["after"] * 3]
    if skips:
        plan.insert(plan.index("mine") + 1, "skip")
    for i, kind in enumerate(plan):
        tokens = {"w1": 1, f"{me}0": 1} if company else {}
        reading = set()
        if company and (rng.random() < 0.7 or i % 2):
            tokens["p1"] = rng.randint(8, 200)
            reading.add("p1")
        if kind == "mine":
            tokens[me] = rng.randint(8, 120)
            reading.add(me)
        elif kind == "after":
            tokens[me] = 1
        tokens = dict(rng.sample(list(tokens.items()), len(tokens))) or {"w9": 1}
        fixed_s = 0.004 + rng.random() / 100
        length = fixed_s + 0.0007 * sum(tokens.values())
        if kind == "before" and arrival is None:
            arrival = clock + (length * rng.random() if queued else 0.0)
        if kind == "mine" and not queued and plan[i - 1] == "before":
            arrival = clock
        steps.append({"start": clock, "end": clock + length, "fixed_s": fixed_s, "tokens": tokens, "reading": reading})
        clock += length + rng.choice((0.0001, rng.uniform(0.0005, 0.004)))  # soon: while the first token is on its way
    last = steps[max(i for i, kind in enumerate(plan) if kind == "mine")]
    return me, arrival, last["end"] + 0.0004 * rng.choice((0, 1, rng.random())), steps


def asked(answer: Answer, case: tuple[Any, ...]) -> Cut:
    found = table(answer.ttft_by_cause(*case), "ttft_by_cause(...)")
    unknown = set(found) - set(CAUSES)
    if unknown:
        raise Mistake(f"there is no cause {next(iter(unknown))!r}: the keys are {', '.join(CAUSES)}")
    return {cause: number(found.get(cause, 0.0), f"the seconds of {cause!r}") for cause in CAUSES}


def judge_causes(answer: Answer, rng: random.Random, causes: Sequence[str] = CAUSES, **kinds: bool) -> None:
    cases = [a_case(rng, **kinds) for _ in range(6)]
    found = [(case, asked(answer, case)) for case in cases]
    for case, cut in found:
        wanted = right_cut(*case)
        wrong = next((cause for cause in causes if not close(cut[cause], wanted[cause], 1e-5)), None)
        if wrong:
            words = f"{wrong!r} gave {cut[wrong]:.5f} s; expected {wanted[wrong]:.5f} s"
            raise Mistake(words, slip=slip_of(SLIPS, found) or totals(cut, case))


def totals(cut: Mapping[str, float], case: tuple[Any, ...]) -> str:
    _, arrival, first_token, _ = case
    return f"All causes sum to {sum(cut.values()):.5f} s, the TTFT is {first_token - arrival:.5f} s"


def tiles(answer: Answer, rng: random.Random) -> None:
    found = []
    for skips in (False, True, True, False):
        case = a_case(rng, skips=skips)
        found.append((case, asked(answer, case)))
    for case, cut in found:
        if not close(sum(cut.values()), case[2] - case[1], 1e-6):
            raise Mistake(f"{totals(cut, case)}: every second has one cause", slip=slip_of(SLIPS, found))
        negative = next((cause for cause in CAUSES if cut[cause] < -1e-9), None)
        if negative:
            raise Mistake(f"{negative!r} is {cut[negative]:.5f} s: time cannot be negative")


def input_alone(answer: Answer, rng: random.Random) -> None:
    asked(answer, a_case(rng))
