"""Chunked prefill: who reads how much in which step, and when each first token comes."""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from course.lab.grading.exercise import Answer, Exercise, Hint, Mistake, Part
from course.lab.grading.tools import call, compare, left_alone, listed, number, slip_of, table, whole

Plan = list[dict[int, int]]
"""For each step, how many tokens of which prompt are read."""
Case = tuple[list[int], int, int, int]
"""Prompt lengths, others that decode, token budget, chunk."""
MOST_STEPS = 2000


@dataclass(frozen=True)
class Rules:
    """How steps are planned; the defaults are the statement's, every other value is a usual mistake."""

    decodes_count: bool = True
    """Tokens of those that decode are taken off the budget."""
    finished_decode: bool = True
    """Who has read its prompt decodes from the next step on."""
    finished_at_once: bool = False
    """... or already in the step that reads its last token."""
    one_prompt_a_step: bool = False
    skips_unfit: bool = False
    """A chunk that does not fit as a whole waits."""
    chunk_for_all: bool = False
    """The chunk limits all prompts of a step together."""
    has_chunk: bool = True
    budget_each: bool = False
    order: Callable[[list[int], Sequence[int]], list[int]] = lambda left, prompts: list(range(len(left)))
    fair: bool = False
    """What a step can read is shared evenly."""

    def __call__(self, prompts: Sequence[int], num_decodes: int, token_budget: int, chunk: int) -> Plan:
        left, steps, decoding = list(prompts), [], num_decodes
        while any(left):
            room = token_budget - (decoding if self.decodes_count else 0)
            if room <= 0 or len(steps) >= MOST_STEPS:
                raise ValueError("nothing is left for the prompts")
            step = self._step(left, prompts, room, chunk)
            if not step:
                raise ValueError("nobody reads anything")
            for i, tokens in step.items():
                left[i] -= tokens
                decoding += left[i] == 0 and self.finished_decode
            steps.append(step)
        return steps

    def _step(self, left: list[int], prompts: Sequence[int], room: int, chunk: int) -> dict[int, int]:
        step: dict[int, int] = {}
        chunk = chunk if self.has_chunk else sum(left)
        most_for_all = min(room, chunk) if self.chunk_for_all else room
        unread = [i for i in self.order(left, prompts) if left[i]]
        share = max(most_for_all // len(unread), 1)
        for i in unread:
            tokens = min(left[i], chunk, share if self.fair else most_for_all)
            if self.skips_unfit and tokens < min(left[i], chunk):
                continue
            if tokens <= 0:
                break
            step[i] = tokens
            if not self.budget_each:
                most_for_all -= tokens
            if self.finished_at_once and tokens == left[i]:
                most_for_all -= 1
            if self.one_prompt_a_step:
                break
        return step


right_schedule = Rules()
SCHEDULE_SLIPS: Mapping[str, Callable[..., Plan]] = {
    "those that decode take nothing off the budget there: each needs one token of it, in every step": Rules(
        decodes_count=False
    ),
    "who has read its prompt vanishes there: it decodes in all later steps, one token of the budget each": Rules(
        finished_decode=False
    ),
    "who reads its last prompt token pays for a decode in the same step there: that begins in the next step": Rules(
        finished_at_once=True
    ),
    "one prompt is read a step there: what the first leaves of the budget is for the next": Rules(
        one_prompt_a_step=True
    ),
    "a chunk that does not fit as a whole waits there: it is cut, and its rest follows": Rules(skips_unfit=True),
    "the chunk limits all prompts of a step together there: each may read so many": Rules(chunk_for_all=True),
    "the chunk does not limit anybody there: no prompt reads more than that in one step": Rules(has_chunk=False),
    "the budget is each prompt's own there: the step has one": Rules(budget_each=True),
    "the shortest prompt goes first there: they are read in their order": Rules(
        order=lambda left, prompts: sorted(range(len(left)), key=lambda i: prompts[i])
    ),
    "the prompt with the least left goes first there: they are read in their order": Rules(
        order=lambda left, prompts: sorted(range(len(left)), key=lambda i: left[i])
    ),
    "the last prompt goes first there: they are read in their order": Rules(
        order=lambda left, prompts: list(range(len(left)))[::-1]
    ),
    "the budget is shared evenly there: the first prompt takes what it can": Rules(fair=True),
}


def right_split(prompt_len: int, chunk: int) -> list[int]:
    return [min(chunk, prompt_len - begin) for begin in range(0, prompt_len, chunk)]


SPLIT_SLIPS: Mapping[str, Callable[[int, int], list[int]]] = {
    "the rest is lost: the last chunk may be smaller": lambda n, c: [c] * (n // c),
    "the last chunk is as large as the others there: it holds only what is left": lambda n, c: [c] * math.ceil(n / c),
    "there is a chunk of 0 tokens: a prompt that divides evenly has none left over": lambda n, c: (
        [c] * (n // c) + [n % c]
    ),
    "the smaller chunk comes first there: it comes last": lambda n, c: right_split(n, c)[::-1],
    "the chunks are made equal there: each is full, but for the last": lambda n, c: [
        n // math.ceil(n / c) + (i < n % math.ceil(n / c)) for i in range(math.ceil(n / c))
    ],
    "these are the places where the chunks begin: their sizes are asked for": lambda n, c: list(range(0, n, c)),
    "these are the places where the chunks end: their sizes are asked for": lambda n, c: [*range(c, n, c), n],
}


def first_times(
    plan: Callable[..., Plan] = right_schedule,
    time_of: Callable[[int, int, float, float], float] = lambda read, decode, fixed, token: (
        fixed + token * (read + decode)
    ),
    at: Callable[[float, float], float] = lambda begin, end: end,
    when: Callable[[int, int], bool] = lambda left, tokens: left == 0,
) -> Callable[..., list[float]]:
    """first_token_times in one way: how steps are planned, what they take, which one counts and when in it."""

    def times(prompts: list[int], decodes: int, budget: int, chunk: int, fixed_s: float, token_s: float) -> list[float]:
        found, left, now = [0.0] * len(prompts), list(prompts), 0.0
        for step in plan(prompts, decodes, budget, chunk):
            finished = sum(rest == 0 for rest in left)
            begin, now = now, now + time_of(sum(step.values()), decodes + finished, fixed_s, token_s)
            for i, tokens in step.items():
                left[i] -= tokens
                if when(left[i], tokens) and not found[i]:
                    found[i] = at(begin, now)
        return found

    return times


right_times = first_times()
TIME_SLIPS: Mapping[str, Callable[..., list[float]]] = {
    "that is when the step BEGINS that reads the last token: the first token comes at its end": first_times(
        at=lambda begin, end: begin
    ),
    "that is the end of the prompt's first chunk: its first token comes when its last token was read": first_times(
        when=lambda left, tokens: True
    ),
    "the tokens of those that decode take no time there: a step's time grows with all of its tokens": first_times(
        time_of=lambda read, decode, fixed, token: fixed + token * read
    ),
    "prompts that are read by now take no time there: they decode, one token each in every later step": lambda *case: (
        first_times(time_of=lambda read, decode, fixed, token: fixed + token * (read + case[1]))(*case)
    ),
    "the fixed time is counted once there: every step has it": lambda *case: [
        found + case[4] for found in first_times(time_of=lambda r, d, fixed, token: token * (r + d))(*case)
    ],
    "the fixed time is missing: every step has it": first_times(time_of=lambda r, d, fixed, token: token * (r + d)),
    "that is in milliseconds": lambda *case: [1000 * found for found in right_times(*case)],
    "every step is taken to be full there: it takes as long as its tokens": lambda *case: first_times(
        time_of=lambda r, d, fixed, token: fixed + token * case[2]
    )(*case),
    "that is the number of the step: its end in seconds is asked for": first_times(time_of=lambda *_: 1.0),
    "that is the end of the step after the last chunk: the step that reads the last prompt token yields the first one":
        lambda *case: [found + case[4] + case[5] * (case[1] + 1) for found in right_times(*case)],
    **{words: first_times(plan) for words, plan in SCHEDULE_SLIPS.items()},
}  # fmt: skip


def exact_budget(itl_s: float, fixed_s: float, token_s: float) -> float:
    return (itl_s - fixed_s) / token_s


def right_budget(itl_s: float, fixed_s: float, token_s: float) -> int:
    return max(math.floor(exact_budget(itl_s, fixed_s, token_s)), 0)


BUDGET_SLIPS: Mapping[str, Callable[[float, float, float], float]] = {
    "that is one token too many: round down": lambda i, f, t: max(math.ceil(exact_budget(i, f, t)), 0),
    "that is rounded to the nearest: round down, or a full step is too long": lambda i, f, t: max(
        round(exact_budget(i, f, t)), 0
    ),
    "the fixed time of a step is forgotten there": lambda i, f, t: math.floor(i / t),
    "a budget below 0: where no step is short enough, it is 0": lambda i, f, t: math.floor(exact_budget(i, f, t)),
    "the fixed time is added there: it is part of the step, so take it off": lambda i, f, t: math.floor((i + f) / t),
}


def told(prompts: list[int], decodes: int, budget: int, chunk: int, *times: float) -> str:
    words = f"prompts {prompts}, {decodes} that decode, budget {budget}, chunk {chunk}"
    return f"{words}, a step of {times[0]:.4g} s + {times[1]:.4g} s a token" if times else words


def asked_split(answer: Answer, prompt_len: int, chunk: int) -> list[int]:
    found = listed(answer.split(prompt_len, chunk), f"split({prompt_len}, {chunk})")
    return [whole(size, f"a size of split({prompt_len}, {chunk})") for size in found]


def splits(answer: Answer, rng: random.Random) -> str:
    chunk = rng.randint(3, 9)
    cases = [(chunk * 3 + rng.randint(1, 2), chunk), (chunk * 4, chunk), (chunk, chunk), (chunk - 1, chunk), (1, chunk)]
    cases += [(chunk + 1, chunk), (5, 1), (rng.randint(1000, 9000), 512)]
    compare("split", [(case, asked_split(answer, *case)) for case in cases], right_split, SPLIT_SLIPS)
    return "full chunks, and what is left"


def asked(answer: Answer, case: Case) -> Plan:
    steps = listed(call(answer.schedule, *case), "schedule(...)")
    plan = []
    for count, step in enumerate(steps):
        found = table(step, f"step {count} of schedule(...)")
        read = {whole(i, "the number of a prompt"): whole(tokens, "a number of tokens") for i, tokens in found.items()}
        for i, tokens in read.items():
            if not 0 <= i < len(case[0]):
                raise Mistake(f"step {count} names prompt {i}: they are numbered from 0 to {len(case[0]) - 1}")
            if tokens <= 0:
                raise Mistake(
                    f"{told(*case)}: step {count} reads {tokens} tokens of prompt {i}. Who reads nothing is not in it",
                    0.3,
                )
        plan.append(read)
    return plan


def judge(answer: Answer, cases: list[Case], praise: str) -> str:
    found = [(case, asked(answer, case)) for case in cases]
    for case, plan in found:
        wanted = right_schedule(*case)
        if plan == wanted:
            continue
        step = next((n for n, (a, b) in enumerate(zip(plan, wanted)) if a != b), min(len(plan), len(wanted)))
        pair = [f"reads {p[step]}" if step < len(p) else "is missing (it ends before)" for p in (plan, wanted)]
        slip = slip_of(SCHEDULE_SLIPS, found) or general(case, plan)
        words = f"{told(*case)}: step {step} {pair[0]}; expected: it {pair[1]}"
        raise Mistake(f"{words}. {slip[:1].upper()}{slip[1:]}".rstrip())
    return praise


def general(case: Case, plan: Plan) -> str:
    """What is wrong with a plan that fits no usual mistake."""
    prompts, decodes, budget, chunk = case
    left = list(prompts)
    for count, step in enumerate(plan):
        spent = decodes + sum(rest == 0 for rest in left) + sum(step.values())
        if spent > budget:
            return f"step {count} computes {spent} tokens, decodes included: the budget is {budget}"
        for i, tokens in step.items():
            left[i] -= tokens
            if tokens > chunk:
                return f"step {count} reads {tokens} tokens of prompt {i}: the chunk is {chunk}"
            if left[i] < 0:
                return f"more of prompt {i} is read than it has"
    unread = [i for i, rest in enumerate(left) if rest]
    return f"prompt {unread[0]} is never read to its end" if unread else ""


def alone(answer: Answer, rng: random.Random) -> str:
    prompt = rng.randint(90, 200)
    cases: list[Case] = [([prompt], d, 32, 500) for d in (0, 3, 31)]
    cases += [
        ([prompt], 4, 64, 16),
        ([60], 4, 64, 500),
        ([61], 4, 64, 500),
        ([48], 0, 64, 16),
        ([1], 3, 4, 1),
        ([], 3, 8, 8),
    ]
    return judge(answer, cases, "decodes first; the prompt has what is left, chunk by chunk")


def several(answer: Answer, rng: random.Random) -> str:
    cases: list[Case] = []
    for decodes, budget, chunk in ((2, 24, 500), (2, 40, 16), (0, 16, 6), (5, 64, 20)):
        cases.append(([rng.randint(5, 70) for _ in range(5)], decodes, budget, chunk))
    cases += [
        ([70, 9, 30, 5], 3, 32, 500),
        ([30, 9, 70, 5], 3, 32, 12),
        ([29, 4, 4, 8], 3, 32, 500),
        ([8, 8, 8], 0, 24, 8),
    ]
    cases += [([1] * 6, 1, 4096, 9), ([20, 20], 0, 21, 20)]
    return judge(answer, cases, "in their order, no budget unused, and who is done decodes")


def starved(answer: Answer, rng: random.Random) -> str:
    for case in (([9], 4, 4, 8), ([9, 3], 7, 4, 8), ([4, 40, 5], 2, 3, 500)):
        try:
            found = answer.schedule(*case)
            found = listed(found, "schedule(...)") if hasattr(found, "__next__") else found
        except ValueError:
            continue
        raise Mistake(
            f"{told(*case)}: the decodes use up the budget, those of finished prompts too, and somebody never gets to read; "
            f"expected ValueError, got {found!r:.80}"
        )
    judge(answer, [([4, 40, 5], 2, 5, 500)], "")
    left_alone(answer.schedule, [30, 9, 20], 3, 24, 10)
    judge(answer, [([30, 9, 20], 3, 24, 10)] * 2, "")
    return "a budget that decodes use up is refused"


def times(answer: Answer, rng: random.Random) -> str:
    cases: list[tuple[tuple[Any, ...], Any]] = []
    for prompts, decodes, budget, chunk in (
        ([90, 8, 30], 2, 32, 500), ([40, 7], 3, 32, 12), ([25], 0, 8, 500), ([5, 6, 7], 6, 64, 64), ([64, 64, 9], 1, 33, 16),
    ):  # fmt: skip
        case = prompts, decodes, budget, chunk, rng.uniform(0.002, 0.02), rng.uniform(1e-4, 1e-3)
        found = listed(call(answer.first_token_times, *case), "first_token_times(...)", len(prompts))
        cases.append((case, [number(each, "a time of first_token_times(...)") for each in found]))
    compare("first_token_times", cases, right_times, TIME_SLIPS, lambda *case: f"{told(*case)}: first_token_times")
    return "the end of the step that reads a prompt's last token"


def bounds(answer: Answer, rng: random.Random) -> str:
    cases = []
    while len(cases) < 6:
        case = rng.uniform(0.02, 0.2), rng.uniform(0.001, 0.02), rng.uniform(1e-5, 1e-3)
        if 0.1 < exact_budget(*case) % 1 < 0.9:  # rounding errors decide nothing
            cases.append(case)
    cases += [(0.004, 0.01, 0.0003), (0.0105, 0.01, 0.001), (0.75, 0.5, 0.0625)]  # none, none, exactly 4
    found = [(case, whole(answer.largest_budget(*case), "largest_budget(...)")) for case in cases]
    compare("largest_budget", found, right_budget, BUDGET_SLIPS)
    return "the most tokens a step may have"


EXERCISE = Exercise(
    id="chunked-prefill",
    title="Chunked prefill: who reads when",
    lesson=3,
    difficulty=2,
    minutes=35,
    entry_points=("split", "schedule", "first_token_times", "largest_budget"),
    parts=(
        Part("chunks of one prompt", 1, splits),
        Part("one prompt among decodes", 2, alone),
        Part("several prompts", 4, several),
        Part("no room, and inputs left alone", 1, starved),
        Part("when first tokens come", 3, times),
        Part("the bound", 1, bounds),
    ),
    hints=(
        Hint("Keep a list of how much of each prompt is left. Every step: room = budget - those that decode - prompts of "
             "which nothing is left.", 0.1),
        Hint("In a step, each prompt in turn reads min(what is left of it, chunk, room), and room shrinks by that.", 0.1),
        Hint("A step's time counts all of its tokens: those that are read, and one for everybody who decodes in it.", 0.1),
    ),
)  # fmt: skip
