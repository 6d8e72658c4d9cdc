"""One step of continuous batching under a token budget."""

import operator
import random
from collections.abc import Callable

from course.grading.props import StepRequest
from course.grading.tools import Answer, Mistake, compare, expect, shown, table, whole

Plan = dict[str, int]
"""Tokens by request id."""


Case = tuple[list[StepRequest], list[StepRequest], int, int]


def right_plan(running: list[StepRequest], waiting: list[StepRequest], token_budget: int, max_num_seqs: int) -> Plan:
    return fill(in_order(running, waiting, max_num_seqs), token_budget)


def fill(
    order: list[StepRequest], budget: int, missing: Callable[[StepRequest], int] = lambda each: each.missing
) -> Plan:
    plan: Plan = {}
    for request in order:
        given = min(missing(request), budget)
        if given > 0:
            plan[request.request_id] = given
            budget -= given
    return plan


def admitted(running: list[StepRequest], waiting: list[StepRequest], slots: int) -> list[StepRequest]:
    return waiting[: max(slots - len(running), 0)]


def first_decodes(running: list[StepRequest]) -> list[StepRequest]:
    return sorted(running, key=lambda request: request.missing > 1)


def in_order(running: list[StepRequest], waiting: list[StepRequest], slots: int) -> list[StepRequest]:
    return [*first_decodes(running), *admitted(running, waiting, slots)]


def whole_or_nothing(order: list[StepRequest], budget: int, stop: bool) -> Plan:
    plan: Plan = {}
    for request in order:
        if request.missing <= budget - sum(plan.values()):
            plan[request.request_id] = request.missing
        elif stop:
            break
    return plan


SLIPS: dict[str, Callable[[list[StepRequest], list[StepRequest], int, int], Plan]] = {
    "prefill_before_decodes": lambda r, w, b, n: fill([*r, *admitted(r, w, n)], b),
    "waiting_before_running": lambda r, w, b, n: fill([*admitted(r, w, n), *first_decodes(r)], b),
    "ignored_max_num_seqs": lambda r, w, b, n: fill([*first_decodes(r), *w], b),
    "running_hold_no_slot": lambda r, w, b, n: fill([*first_decodes(r), *w[:n]], b),
    "negative_slots": lambda r, w, b, n: fill([*first_decodes(r), *w[: n - len(r)]], b),
    "shortest_prompt_first": lambda r, w, b, n: fill(
        [*first_decodes(r), *admitted(r, sorted(w, key=lambda each: each.missing), n)], b
    ),
    "prompt_not_cut": lambda r, w, b, n: whole_or_nothing(in_order(r, w, n), b, stop=True),
    "prompt_overtaken": lambda r, w, b, n: whole_or_nothing(in_order(r, w, n), b, stop=False),
    "recomputed_running_tokens": lambda r, w, b, n: fill(in_order(r, w, n), b, lambda s: s.num_tokens),
    "recomputed_cached_prefix": lambda r, w, b, n: fill(
        in_order(r, w, n), b, lambda s: s.missing if s in r else s.num_tokens
    ),
    "running_prefill_gets_one_token": lambda r, w, b, n: fill(
        in_order(r, w, n), b, lambda s: 1 if s in r else s.missing
    ),
    "static_batching": lambda r, w, b, n: fill(first_decodes(r) or admitted(r, w, n), b),
    "budget_for_each_request": lambda r, w, b, n: {
        request.request_id: min(request.missing, b) for request in [*r, *admitted(r, w, n)]
    },
    "budget_for_running_only": lambda r, w, b, n: fill(first_decodes(r), b),
}


def asked(answer: Answer, case: Case) -> Plan:
    """The answer's plan, read and held to the rules that any plan obeys."""
    running, waiting, *_ = case
    found = table(answer.plan_step(*case), "plan_step(...)")
    plan = {name: whole(tokens, f"the tokens of {shown(name)}") for name, tokens in found.items()}
    known = {request.request_id: request for request in [*running, *waiting]}
    for name, tokens in plan.items():
        if name not in known:
            raise Mistake(f"the plan names {shown(name)}: the keys are request ids, such as {shown(next(iter(known)))}")
        expect(
            not tokens <= 0,
            f"the plan gives {name} {tokens} tokens: who gets none is not in it. {described(case)}",
            0.3,
        )
    return plan


def described(case: Case) -> str:
    running, waiting, budget, slots = case
    return f"running {running}, waiting {waiting}, budget {budget}, slots {slots}"


def judge_cases(answer: Answer, cases: list[Case]) -> None:
    found = [(case, asked(answer, case)) for case in cases]
    compare(
        "plan_step",
        found,
        right_plan,
        SLIPS,
        describe=lambda *case: f"{described(case)}: plan_step",
        agree=operator.eq,
        otherwise=over_budget,
    )


def over_budget(case: Case, plan: Plan) -> str | None:
    spent, budget = sum(plan.values()), case[2]
    return f"it spends {spent} tokens: the budget is {budget}" if spent > budget else None


def reading(rng: random.Random, name: str, most: int = 300) -> StepRequest:
    total = rng.randint(20, most)
    return StepRequest(name, total, rng.randrange(0, total - 5))


def decoding(rng: random.Random, name: str) -> StepRequest:
    total = rng.randint(5, 400)
    return StepRequest(name, total, total - 1)


def new_request(rng: random.Random, name: str) -> StepRequest:
    total = rng.randint(8, 200)
    return StepRequest(name, total, rng.choice((0, 0, 16)) if total > 32 else 0)


def some_running(rng: random.Random, count: int) -> list[StepRequest]:
    return [rng.choice((reading, decoding, decoding))(rng, f"r{i}") for i in range(count)]


def running_only(answer: Answer, rng: random.Random) -> None:
    cases = [(some_running(rng, n), [], rng.randint(n + 1, 400), n + 2) for n in (1, 2, 3, 4, 5, 6)]
    mixed = [StepRequest("r0", 300, 100), decoding(rng, "r1"), reading(rng, "r2", 99), decoding(rng, "r3")]
    cases += [(mixed, [], 4, 8), (mixed, [], 10, 8)]
    judge_cases(answer, cases)


def tight(answer: Answer, rng: random.Random) -> None:
    decodes = [decoding(rng, f"r{i}") for i in range(5)]
    long_one = [StepRequest("r0", 900, 100), *decodes[1:]]
    new = [new_request(rng, f"w{i}") for i in range(3)]
    exact = sum(request.missing for request in [*decodes, new[0]])
    cases: list[Case] = [(decodes, new, 3, 8), (decodes, new, 5, 8), (long_one, new, 5, 8), (long_one, new, 64, 8)]
    cases += [(decodes, new, budget, 8) for budget in (exact, exact + 1, exact - 1, 0)]
    judge_cases(answer, cases)


def admits(answer: Answer, rng: random.Random) -> None:
    cases: list[Case] = []
    for slots in (1, 3, 4, 6):
        running = some_running(rng, rng.randint(0, slots))
        cases.append((running, [new_request(rng, f"w{i}") for i in range(5)], rng.randint(200, 900), slots))
    new = [StepRequest("w0", 300, 0), StepRequest("w1", 1, 0), StepRequest("w2", 64, 32), StepRequest("w3", 9, 0)]
    pair = [decoding(rng, "r0"), decoding(rng, "r1")]
    cases += [(pair, new, budget, slots) for budget, slots in ((120, 8), (5000, 4), (5000, 2), (5000, 1))]
    cases += [([], new, 5000, 3), ([], [], 64, 3)]
    judge_cases(answer, cases)


def inputs_alone(answer: Answer, rng: random.Random) -> None:
    running, waiting = some_running(rng, 4), [new_request(rng, f"w{i}") for i in range(3)]
    judge_cases(answer, [(running, waiting, 90, 6)] * 2)
