"""Waves of requests for the check for leaks: each takes a path on which engines forget a block, or give one back twice.

A wave asks for `WAVE` requests at most, and may leave some running.
"""

import random
from collections.abc import Callable

from course.measure.conform.counting import random_tokens
from course.measure.conform.trial import Trial

WAVE = 16
BLOCK_SIZE = 16

Wave = Callable[[Trial, random.Random], None]


def _some_steps(trial: Trial, rng: random.Random, most: int) -> None:
    for _ in range(rng.randint(0, most)):
        if not trial.adapter.is_idle():
            trial.step()


def shared_beginnings(trial: Trial, rng: random.Random) -> None:
    prefixes = [random_tokens(rng, length) for length in (16, 32)]
    for _ in range(WAVE):
        trial.ask(rng.choice([*prefixes, []]) + random_tokens(rng, rng.randint(1, 12)), rng.randint(1, 4))
        _some_steps(trial, rng, 2)


def equal_side_by_side(trial: Trial, rng: random.Random) -> None:
    """The same full blocks are computed twice in one step, and only one of them can be found later."""
    for length in (16, 32, 48, rng.randint(1, 48)):
        prompt = random_tokens(rng, length)
        for _ in range(WAVE // 4):
            trial.ask(prompt, rng.randint(1, 4))
    trial.run()


def wholly_cached(trial: Trial, rng: random.Random) -> None:
    """A prompt, then its own beginnings, up to a block's end: while it runs, and when it has ended."""
    longest = random_tokens(rng, 4 * BLOCK_SIZE)
    for wait_for_it in (False, True):
        trial.ask(longest, rng.randint(1, 20))
        trial.step()
        if wait_for_it:
            trial.run()
        for length in rng.choices((16, 32, 48, 64), k=WAVE // 2 - 1):
            trial.ask(longest[:length], rng.randint(1, 4))
            _some_steps(trial, rng, 2)


def answers_as_prompts(trial: Trial, rng: random.Random) -> None:
    """Turns of conversations, some of which end where a block does."""
    for _ in range(4):
        history = random_tokens(rng, rng.choice((5, 16, 20)))
        for _ in range(WAVE // 4):
            name = trial.ask(history, rng.randint(6, 12))
            trial.run()
            history = history + trial.tokens[name] + random_tokens(rng, rng.randint(0, 3))
            if rng.random() < 0.5:
                history = history[: len(history) // BLOCK_SIZE * BLOCK_SIZE] or history


def outgrowing(trial: Trial, rng: random.Random) -> None:
    """More than a small pool can take: some are preempted and resume, beside others with their beginning."""
    prefix = random_tokens(rng, 16)
    for _ in range(WAVE // 2):
        trial.ask(rng.choice((prefix, [])) + random_tokens(rng, rng.randint(4, 24)), rng.randint(16, 40))
    trial.run()


def leaving(trial: Trial, rng: random.Random) -> None:
    """Some leave: in the queue, within a prompt, while they decode, preempted, beside another with the same prompt."""
    prompts = [random_tokens(rng, length) for length in (16, 40, 80)]
    names: list[str] = []
    for _ in range(WAVE):
        names.append(trial.ask(rng.choice(prompts), rng.choice((1, 2, 24))))
        _some_steps(trial, rng, 1)
        name = rng.choice(names)
        if rng.random() < 0.6 and name not in trial.left and name not in trial.refused and not trial.is_whole(name):
            trial.abort(name)
            _some_steps(trial, rng, 1)


WAVES: dict[str, Wave] = {
    "prompts with shared beginnings": shared_beginnings,
    "equal prompts side by side": equal_side_by_side,
    "prompts that are wholly cached": wholly_cached,
    "answers sent back as prompts": answers_as_prompts,
    "more than the pool can take": outgrowing,
    "clients that leave": leaving,
}
