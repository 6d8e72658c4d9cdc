"""One step of continuous batching under a token budget."""

import operator
import random
from collections.abc import Callable
from dataclasses import dataclass

from course.lab.grading.blame import shown
from course.lab.grading.exercise import Answer, Mistake
from course.lab.grading.tools import (
    call,
    compare,
    expect,
    left_alone,
    table,
    whole,
)

Plan = dict[str, int]
"""Tokens by request id."""


@dataclass
class Seat:
    """What the scheduler knows of a request."""

    request_id: str
    num_tokens: int
    """Prompt and output so far."""
    num_computed_tokens: int
    """Of these, tokens whose keys and values are in the cache."""

    @property
    def missing(self) -> int:
        return self.num_tokens - self.num_computed_tokens

    def __repr__(self) -> str:
        return f"{self.request_id}: {self.num_computed_tokens} of {self.num_tokens}"


Case = tuple[list[Seat], list[Seat], int, int]


def right_plan(running: list[Seat], waiting: list[Seat], token_budget: int, max_num_seqs: int) -> Plan:
    plan: Plan = {}
    left = token_budget
    newcomers = waiting[: max(max_num_seqs - len(running), 0)]
    for seat in [*sorted(running, key=lambda seat: seat.missing > 1), *newcomers]:
        if left == 0:
            break
        plan[seat.request_id] = min(seat.missing, left)
        left -= plan[seat.request_id]
    return plan


def fill(order: list[Seat], budget: int, missing: Callable[[Seat], int] = lambda seat: seat.missing) -> Plan:
    plan: Plan = {}
    for seat in order:
        given = min(missing(seat), budget)
        if given > 0:
            plan[seat.request_id] = given
            budget -= given
    return plan


def seated(running: list[Seat], waiting: list[Seat], seats: int) -> list[Seat]:
    return waiting[: max(seats - len(running), 0)]


def first_decodes(running: list[Seat]) -> list[Seat]:
    return sorted(running, key=lambda seat: seat.missing > 1)


def whole_or_nothing(order: list[Seat], budget: int, stop: bool) -> Plan:
    plan: Plan = {}
    for seat in order:
        if seat.missing <= budget:
            plan[seat.request_id] = seat.missing
            budget -= seat.missing
        elif stop:
            break
    return plan


SLIPS: dict[str, Callable[[list[Seat], list[Seat], int, int], Plan]] = {
    "running_requests_taken_their": lambda r, w, b, n: fill([*r, *seated(r, w, n)], b),
    "new_requests_come_before": lambda r, w, b, n: fill([*seated(r, w, n), *first_decodes(r)], b),
    "slots_not_counted": lambda r, w, b, n: fill([*first_decodes(r), *w], b),
    "max_num_seqs_new_requests": lambda r, w, b, n: fill([*first_decodes(r), *w[:n]], b),
    "one_slot_too_few": lambda r, w, b, n: fill([*first_decodes(r), *seated(r, w, n - 1)], b),
    "one_slot_too_many": lambda r, w, b, n: fill([*first_decodes(r), *seated(r, w, n + 1)], b),
    "prompt_taken_whole_or": lambda r, w, b, n: whole_or_nothing([*first_decodes(r), *seated(r, w, n)], b, stop=True),
    "prompt_does_not_fit": lambda r, w, b, n: whole_or_nothing([*first_decodes(r), *seated(r, w, n)], b, stop=False),
    "what_computed_already_computed": lambda r, w, b, n: fill(
        [*first_decodes(r), *seated(r, w, n)], b, lambda seat: seat.num_tokens
    ),
    "new_request_computed_tokens": lambda r, w, b, n: fill(
        [*first_decodes(r), *seated(r, w, n)], b, lambda s: s.missing if s in r else s.num_tokens
    ),
    "every_running_request_gets": lambda r, w, b, n: fill(
        [*first_decodes(r), *seated(r, w, n)], b, lambda s: 1 if s in r else s.missing
    ),
    "no_request_admitted_while": lambda r, w, b, n: fill(first_decodes(r) or seated(r, w, n), b),
    "only_one_new_request": lambda r, w, b, n: fill([*first_decodes(r), *seated(r, w, n)[:1]], b),
    "waiting_requests_taken_from": lambda r, w, b, n: fill([*first_decodes(r), *seated(r, w[::-1], n)], b),
    "waiting_requests_sorted_length": lambda r, w, b, n: fill(
        [*first_decodes(r), *seated(r, sorted(w, key=lambda s: s.missing), n)], b
    ),
    "budget_each_request_own": lambda r, w, b, n: {
        seat.request_id: min(seat.missing, b) for seat in [*r, *seated(r, w, n)]
    },
    "budget_spent_on_running": lambda r, w, b, n: fill(first_decodes(r), b),
}


def asked(answer: Answer, case: Case) -> Plan:
    """The answer's plan, read and held to the rules that any plan obeys."""
    running, waiting, *_ = case
    found = table(call(answer.plan_step, *case), "plan_step(...)")
    plan = {name: whole(tokens, f"the tokens of {shown(name)}") for name, tokens in found.items()}
    known = {seat.request_id: seat for seat in [*running, *waiting]}
    for name, tokens in plan.items():
        if name not in known:
            raise Mistake(f"the plan names {shown(name)}: the keys are request ids, such as {shown(next(iter(known)))}")
        expect(not tokens <= 0, f"the plan gives {name} {tokens} tokens: who gets none is not in it. {told(case)}", 0.3)
    return plan


def told(case: Case) -> str:
    running, waiting, budget, seats = case
    return f"running {running}, waiting {waiting}, budget {budget}, seats {seats}"


def judge_cases(answer: Answer, cases: list[Case], praise: str) -> str:
    found = [(case, asked(answer, case)) for case in cases]
    compare("plan_step", found, right_plan, SLIPS, lambda *case: f"{told(case)}: plan_step", operator.eq, general)
    return praise


def general(case: Case, plan: Plan) -> str:
    """What is wrong with a plan that fits no usual mistake."""
    running, waiting, budget, seats = case
    missing = {seat.request_id: seat.missing for seat in [*running, *waiting]}
    if sum(plan.values()) > budget:
        return f"it spends {sum(plan.values())} tokens: the budget is {budget}"
    over = next((name for name, tokens in plan.items() if tokens > missing[name]), None)
    if over:
        return f"{over} misses {missing[over]} tokens and gets {plan[over]}"
    if len({seat.request_id for seat in running} | set(plan)) > max(seats, len(running)):
        return "more requests run than there are seats"
    if sum(plan.values()) < sum(right_plan(*case).values()):
        return "budget is left over while somebody could use it"
    return ""


def reading(rng: random.Random, name: str, most: int = 300) -> Seat:
    total = rng.randint(20, most)
    return Seat(name, total, rng.randrange(0, total - 5))


def decoding(rng: random.Random, name: str) -> Seat:
    total = rng.randint(5, 400)
    return Seat(name, total, total - 1)


def newcomer(rng: random.Random, name: str) -> Seat:
    total = rng.randint(8, 200)
    return Seat(name, total, rng.choice((0, 0, 16)) if total > 32 else 0)


def some_running(rng: random.Random, count: int) -> list[Seat]:
    return [rng.choice((reading, decoding, decoding))(rng, f"r{i}") for i in range(count)]


def running_only(answer: Answer, rng: random.Random) -> str:
    cases = [(some_running(rng, n), [], rng.randint(n + 1, 400), n + 2) for n in (1, 2, 3, 4, 5, 6)]
    mixed = [reading(rng, "r0"), decoding(rng, "r1"), reading(rng, "r2"), decoding(rng, "r3")]
    cases += [(mixed, [], 4, 8), (mixed, [], 10, 8)]
    return judge_cases(answer, cases, "decodes first, then prompts, cut to the budget")


def tight(answer: Answer, rng: random.Random) -> str:
    decodes = [decoding(rng, f"r{i}") for i in range(5)]
    long_one = [Seat("r0", 900, 100), *decodes[1:]]
    new = [newcomer(rng, f"w{i}") for i in range(3)]
    exact = sum(seat.missing for seat in [*decodes, new[0]])
    cases: list[Case] = [(decodes, new, 3, 8), (decodes, new, 5, 8), (long_one, new, 5, 8), (long_one, new, 64, 8)]
    cases += [
        (decodes, new, exact, 8),
        (decodes, new, exact + 1, 8),
        (decodes, new, exact - 1, 8),
        (decodes, new, 0, 8),
    ]
    return judge_cases(answer, cases, "never a token more than the budget, never one unused while it could be")


def admits(answer: Answer, rng: random.Random) -> str:
    cases: list[Case] = []
    for seats in (1, 3, 4, 6):
        running = some_running(rng, rng.randint(0, seats))
        cases.append((running, [newcomer(rng, f"w{i}") for i in range(5)], rng.randint(200, 900), seats))
    new = [Seat("w0", 300, 0), Seat("w1", 6, 0), Seat("w2", 64, 32), Seat("w3", 9, 0)]
    pair = [decoding(rng, "r0"), decoding(rng, "r1")]
    cases += [(pair, new, 120, 8), (pair, new, 5000, 4), (pair, new, 5000, 2), ([], new, 5000, 3), ([], [], 64, 3)]
    return judge_cases(answer, cases, "in order of arrival, as far as seats and budget go")


def whole_service(answer: Answer, rng: random.Random) -> str:
    """Play many steps: everybody must be served in the end, in as many steps as with the right plan."""
    ends = []
    arrivals = [(newcomer(rng, f"w{i}"), rng.randint(2, 6)) for i in range(7)]
    for plan_of in (lambda *case: asked(answer, case), right_plan):
        waiting = [Seat(seat.request_id, seat.num_tokens, 0) for seat, _ in arrivals]
        left = {seat.request_id: outputs for seat, outputs in arrivals}
        running: list[Seat] = []
        steps = 0
        while (waiting or running) and steps < 200:
            plan = plan_of(running, waiting, 48, 3)
            joined = [seat for seat in waiting if seat.request_id in plan]
            waiting = [seat for seat in waiting if seat.request_id not in plan]
            running += joined
            for seat in running:
                seat.num_computed_tokens += plan.get(seat.request_id, 0)
                if seat.missing <= 0:  # caught up: the step yields its next token
                    left[seat.request_id] -= 1
                    seat.num_tokens = seat.num_computed_tokens + 1
            running = [seat for seat in running if left[seat.request_id] > 0]
            steps += 1
        ends.append(steps)
    if ends[0] >= 200:
        raise Mistake("seven requests were played to your scheduler: after 200 steps they are still not served")
    if ends[0] != ends[1]:
        raise Mistake(f"seven requests took {ends[0]} steps with your plans, {ends[1]} with the rule of the statement")
    return f"seven requests served in {ends[0]} steps"


def inputs_alone(answer: Answer, rng: random.Random) -> str:
    running, waiting = some_running(rng, 4), [newcomer(rng, f"w{i}") for i in range(3)]
    left_alone(answer.plan_step, running, waiting, 90, 6)
    first, second = (asked(answer, (running, waiting, 90, 6)) for _ in range(2))
    expect(first == second, f"asked twice the same, it answers {first}, then {second}: does it remember something?")
    return "it plans, and changes nothing"
