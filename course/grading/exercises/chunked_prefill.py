"""Chunked prefill: which prompt gets how many tokens in which step, and when each first token comes."""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from course.grading.blame import Mistake
from course.grading.remote import Answer
from course.grading.tools import Slips, broken, compare, each, expect, hold, listed, number, refused, table, whole

Plan = list[dict[int, int]]
"""For each step, how many tokens of which prompt are computed."""
Case = tuple[list[int], int, int, int]
"""Prompt lengths, others that decode, token budget, chunk."""
MOST_STEPS = 2000
STARVED = "the decodes use up the budget, those of finished prompts too, and a prompt never gets its prefill"


@dataclass(frozen=True)
class Rules:
    """How steps are planned; the defaults are the statement's, every other value is a usual mistake."""

    decodes_count: bool = True
    """Tokens of those that decode are taken off the budget."""
    finished_decode: bool = True
    """A request whose prefill is done decodes from the next step on."""
    one_prompt_a_step: bool = False
    skips_unfit: bool = False
    """A chunk that does not fit as a whole waits."""
    chunk_for_all: bool = False
    """The chunk limits all prompts of a step together."""
    has_chunk: bool = True

    def __call__(self, prompts: Sequence[int], num_decodes: int, token_budget: int, chunk: int) -> Plan:
        left, steps, decoding = list(prompts), [], num_decodes
        while any(left):
            room = token_budget - (decoding if self.decodes_count else 0)
            if room <= 0 or len(steps) >= MOST_STEPS:
                raise ValueError("nothing is left for the prompts")
            step = self._step(left, room, chunk)
            if not step:
                raise ValueError("no prompt gets a token")
            for i, tokens in step.items():
                left[i] -= tokens
                decoding += left[i] == 0 and self.finished_decode
            steps.append(step)
        return steps

    def _step(self, left: list[int], room: int, chunk: int) -> dict[int, int]:
        step: dict[int, int] = {}
        chunk = chunk if self.has_chunk else sum(left)
        most_for_all = min(room, chunk) if self.chunk_for_all else room
        for i in (i for i, rest in enumerate(left) if rest):
            tokens = min(left[i], chunk, most_for_all)
            if self.skips_unfit and tokens < min(left[i], chunk):
                continue
            if tokens <= 0:
                break
            step[i] = tokens
            most_for_all -= tokens
            if self.one_prompt_a_step:
                break
        return step


right_schedule = Rules()
SCHEDULE_SLIPS = broken(__file__, Rules)


SPLIT_SLIPS: Slips = {
    "last_chunk_lost": lambda n, c: [c] * (n // c),
    "last_chunk_padded": lambda n, c: [c] * math.ceil(n / c),
    "empty_last_chunk": lambda n, c: [c] * (n // c) + [n % c],
}


def first_times(
    plan: Callable[..., Plan] = right_schedule,
    time_of: Callable[[int, int, float, float], float] = lambda n, decode, fixed, token: fixed + token * (n + decode),
    at: Callable[[float, float], float] = lambda begin, end: end,
    when: Callable[[int, int], bool] = lambda left, tokens: left == 0,
    counted_in: bool = False,
) -> Callable[..., list[float]]:
    """first_token_times in one way: how steps are planned, what they take, which one counts and when in it; and
    whether a prompt decodes in the very step that finishes it."""

    def times(prompts: list[int], decodes: int, budget: int, chunk: int, fixed_s: float, token_s: float) -> list[float]:
        found, left, now = [0.0] * len(prompts), list(prompts), 0.0
        for step in plan(prompts, decodes, budget, chunk):
            finished = sum(rest - step.get(i, 0) * counted_in == 0 for i, rest in enumerate(left))
            begin, now = now, now + time_of(sum(step.values()), decodes + finished, fixed_s, token_s)
            for i, tokens in step.items():
                left[i] -= tokens
                if when(left[i], tokens) and not found[i]:
                    found[i] = at(begin, now)
        return found

    return times


right_times = first_times()
TIME_SLIPS: Slips = {
    "ttft_at_step_start": first_times(at=lambda begin, end: begin),
    "ttft_after_first_chunk": first_times(when=lambda left, tokens: True),
    "decode_tokens_take_no_time": first_times(time_of=lambda n, decode, fixed, token: fixed + token * n),
    "prefilled_prompts_take_no_time": lambda *case: first_times(time_of=lambda n, _, f, t: f + t * (n + case[1]))(
        *case
    ),
    "decodes_in_its_last_prefill_step": first_times(counted_in=True),
    "steps_without_fixed_time": first_times(time_of=lambda n, decode, fixed, token: token * (n + decode)),
    **{words: first_times(plan) for words, plan in SCHEDULE_SLIPS.items()},
}


def exact_budget(itl_s: float, fixed_s: float, token_s: float) -> float:
    return (itl_s - fixed_s) / token_s


BUDGET_SLIPS: Slips = {
    "budget_rounded_up": lambda i, f, t: max(math.ceil(exact_budget(i, f, t)), 0),
    "budget_without_fixed_time": lambda i, f, t: math.floor(i / t),
    "negative_budget": lambda i, f, t: math.floor(exact_budget(i, f, t)),
}


def described(prompts: list[int], decodes: int, budget: int, chunk: int, *times: float) -> str:
    words = f"prompts {prompts}, {decodes} that decode, budget {budget}, chunk {chunk}"
    return f"{words}, a step of {times[0]:.4g} s + {times[1]:.4g} s a token" if times else words


def splits(answer: Answer, rng: random.Random) -> None:
    chunk = rng.randint(3, 9)
    cases = [(chunk * 3 + rng.randint(1, 2), chunk), (chunk * 4, chunk), (chunk, chunk), (chunk - 1, chunk), (1, chunk)]
    cases += [(chunk + 1, chunk), (5, 1), (rng.randint(1000, 9000), 512)]
    hold(answer.split, cases, lambda n, c: [min(c, n - begin) for begin in range(0, n, c)], SPLIT_SLIPS, each(whole))


def asked(answer: Answer, case: Case) -> Plan:
    steps = listed(answer.schedule(*case), "schedule(...)")
    plan = []
    for count, step in enumerate(steps):
        found = table(step, f"step {count} of schedule(...)")
        read = {whole(i, "the number of a prompt"): whole(tokens, "a number of tokens") for i, tokens in found.items()}
        for i, tokens in read.items():
            if not 0 <= i < len(case[0]):
                raise Mistake(f"step {count} names prompt {i}: they are numbered from 0 to {len(case[0]) - 1}")
            expect(
                not tokens <= 0, "step_lists_wrong_tokens", 0.3, asked=described(*case), count=count, tokens=tokens, i=i
            )
        plan.append(read)
    return plan


def judge(answer: Answer, cases: list[Case]) -> None:
    found = [(case, asked(answer, case)) for case in cases]
    compare("schedule", found, right_schedule, SCHEDULE_SLIPS, difference=first_step)


def first_step(case: Case, plan: Plan, wanted: Plan) -> str:
    """The first step that is planned otherwise, in words."""
    step = next((n for n, (a, b) in enumerate(zip(plan, wanted)) if a != b), min(len(plan), len(wanted)))
    pair = [f"computes {p[step]}" if step < len(p) else "is missing (it ends before)" for p in (plan, wanted)]
    return f"{described(*case)}: step {step} {pair[0]}; expected: it {pair[1]}"


def alone(answer: Answer, rng: random.Random) -> None:
    prompt = rng.randint(90, 200)
    cases: list[Case] = [([prompt], d, 32, 500) for d in (0, 3, 31)]
    cases += [([prompt], 4, 64, 16), ([60], 4, 64, 500), ([61], 4, 64, 500)]
    cases += [([48], 0, 64, 16), ([1], 3, 4, 1), ([], 3, 8, 8)]
    judge(answer, cases)


def several(answer: Answer, rng: random.Random) -> None:
    cases: list[Case] = []
    for decodes, budget, chunk in ((2, 24, 500), (2, 40, 16), (0, 16, 6), (5, 64, 20)):
        cases.append(([rng.randint(5, 70) for _ in range(5)], decodes, budget, chunk))
    cases += [([70, 9, 30, 5], 3, 32, 500), ([30, 9, 70, 5], 3, 32, 12), ([29, 4, 4, 8], 3, 32, 500)]
    cases += [([8, 8, 8], 0, 24, 8), ([1] * 6, 1, 4096, 9), ([20, 20], 0, 21, 20)]
    judge(answer, cases)


def starved(answer: Answer, rng: random.Random) -> None:
    for case in (([9], 4, 4, 8), ([9, 3], 7, 4, 8), ([4, 40, 5], 2, 3, 500)):
        refused(ValueError, f"{described(*case)}: schedule", STARVED, lambda case=case: answer.schedule(*case), 0.0)
    judge(answer, [([4, 40, 5], 2, 5, 500)])
    judge(answer, [([30, 9, 20], 3, 24, 10)] * 2)


def times(answer: Answer, rng: random.Random, shapes: Sequence[Case]) -> None:
    cases = [(*shape, rng.uniform(0.002, 0.02), rng.uniform(1e-4, 1e-3)) for shape in shapes]
    hold(answer.first_token_times, cases, right_times, TIME_SLIPS, each(number), lambda *case: f"{described(*case)}:")


def bounds(answer: Answer, rng: random.Random) -> None:
    cases = []
    for part in (0.02, 0.45, 0.98) * 2:  # rounding errors decide nothing
        fixed_s, token_s = rng.uniform(0.001, 0.02), rng.uniform(1e-5, 1e-3)
        cases.append((fixed_s + (rng.randint(20, 900) + part) * token_s, fixed_s, token_s))
    cases += [(0.004, 0.01, 0.0003), (0.0105, 0.01, 0.001), (0.75, 0.5, 0.0625)]  # none, none, exactly 4
    hold(answer.largest_budget, cases, lambda *case: max(math.floor(exact_budget(*case)), 0), BUDGET_SLIPS, whole)
