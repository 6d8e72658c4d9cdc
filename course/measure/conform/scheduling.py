"""The checks of an engine's scheduler and block manager. A check's `seen` is a public bug that it would have found."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from course.measure.conform.adapter import Adapter, Limits
from course.measure.conform.counting import VOCABULARY
from course.measure.conform.trial import Trial
from course.measure.conform.verdict import ConformityError

NANO = "https://github.com/GeeeekExplorer/nano-vllm"
MINI = "https://github.com/sgl-project/mini-sglang"

SOAKS = 60
"""Random lives in the checks that try many."""
LONGEST_STALL = 50
"""Steps that a request in decode may go without a token while others' prompts keep coming."""


@dataclass(frozen=True)
class SchedulingCheck:
    """One check."""

    name: str
    about: str
    run: Callable[[type[Adapter]], None]
    """Raises ConformityError, NotImplementedError (the engine doesn't have it), or whatever the engine raises."""
    seen: str = ""


SCHEDULING_CHECKS: list[SchedulingCheck] = []


def check(about: str, seen: str = "") -> Callable[[Callable[[type[Adapter]], None]], Callable[[type[Adapter]], None]]:
    """Make a function one of the checks, by its name."""

    def add(run: Callable[[type[Adapter]], None]) -> Callable[[type[Adapter]], None]:
        SCHEDULING_CHECKS.append(SchedulingCheck(run.__name__.replace("_", " "), about, run, seen))
        return run

    return add


def random_tokens(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(VOCABULARY) for _ in range(count)]


def around(size: int) -> list[int]:
    """Lengths one short of a border, at it, and one beyond."""
    return [size - 1, size, size + 1]


# ------------------------------------------------------------------ borders


@check("Answers of a lone request are the model's, whatever its prompt's length.", f"{NANO}/pull/67")
def one_request_alone(make: type[Adapter]) -> None:
    rng = random.Random(0)
    for length in (1, 2, *around(16), *around(32), 100):
        trial = Trial(make, Limits())
        trial.add("alone", random_tokens(rng, length), 20)
        trial.check_all()


@check("Prompts and answers that end at, before or after a block's end are served together.")
def block_borders(make: type[Adapter]) -> None:
    rng = random.Random(1)
    trial = Trial(make, Limits())
    for length in (*around(16), *around(32), *around(48)):
        for answer in (1, 16, 17):
            trial.add(f"{length}+{answer}", random_tokens(rng, length), answer)
    trial.check_all()


@check(
    "A prompt larger than one step's budget is computed in parts, and answers as if it weren't.", f"{NANO}/issues/212"
)
def chunk_borders(make: type[Adapter]) -> None:
    rng = random.Random(2)
    trial = Trial(make, Limits(max_num_batched_tokens=64))
    for length in (*around(64), *around(128), 200):
        trial.add(f"{length}", random_tokens(rng, length), 5)
    trial.check_all()


@check("No step has more tokens or requests than the engine's limits say.")
def limits_of_a_step(make: type[Adapter]) -> None:
    rng = random.Random(3)
    trial = Trial(make, Limits(max_num_seqs=4, max_num_batched_tokens=64))
    for i in range(16):
        trial.add(f"r{i}", random_tokens(rng, rng.randint(1, 100)), rng.randint(1, 12))
    trial.run()
    trial.check_limits()
    trial.check_tokens()


# ------------------------------------------------------------------ prefix cache


@check("A prompt that is cached to its last token is answered, again and again.", f"{NANO}/issues/114")
def fully_cached_prompt(make: type[Adapter]) -> None:
    rng = random.Random(4)
    for length in (16, 32, 64):
        trial = Trial(make, Limits())
        prompt = random_tokens(rng, length)
        for i in range(3):
            trial.add(f"after another, {i}", prompt, 4)
            trial.run()
        for i in range(4):
            trial.add(f"together, {i}", prompt, 4)
        trial.check_all()


@check("Equal blocks after different beginnings are different: what a token means depends on all before it.")
def same_block_after_another_prefix(make: type[Adapter]) -> None:
    rng = random.Random(5)
    trial = Trial(make, Limits())
    first, second, tail = (random_tokens(rng, 16) for _ in range(3))
    for name, prompt in {
        "AT": first + tail,
        "BT": second + tail,
        "T": tail,
        "TA": tail + first,
        "TT": tail * 2,
    }.items():
        trial.add(name, prompt + [7], 4)
        trial.run()
    trial.check_all()


@check("A conversation's next turn reuses what was computed for the last, answers of the model too.")
def turns_of_a_conversation(make: type[Adapter]) -> None:
    rng = random.Random(6)
    trial = Trial(make, Limits())
    history = random_tokens(rng, 20)
    for turn in range(6):
        trial.add(f"turn {turn}", history, 13)
        trial.run()
        history = history + trial.tokens[f"turn {turn}"] + random_tokens(rng, 9)
    trial.check_all()


@check(
    "Requests with one beginning that are computed at the same time don't take each other's blocks.", f"{MINI}/pull/142"
)
def same_prefix_at_the_same_time(make: type[Adapter]) -> None:
    rng = random.Random(7)
    trial = Trial(make, Limits(num_blocks=40))
    prefix = random_tokens(rng, 48)
    for i in range(6):
        trial.add(f"r{i}", prefix + random_tokens(rng, 1 + i), 24)
    trial.run()
    for i in range(12):  # what was freed is taken by others
        trial.add(f"later {i}", random_tokens(rng, 20), 10)
        trial.step()
    trial.check_all()


# ------------------------------------------------------------------ a full pool


@check("Requests that outgrow the KV pool together all end, with the right tokens: preempted ones resume.")
def preempt_and_resume(make: type[Adapter]) -> None:
    rng = random.Random(8)
    trial = Trial(make, Limits(num_blocks=12))
    for i in range(6):
        trial.add(f"r{i}", random_tokens(rng, 20 + i), 60)
    trial.check_all()


@check("Preempted requests that find their own prompt, or another's, in the prefix cache resume correctly.")
def preempt_with_a_prefix_cache(make: type[Adapter]) -> None:
    for seed in range(SOAKS):
        _random_life(make, random.Random(seed), Limits(num_blocks=14), num_prefixes=2)


@check("The same in chunks: what a cache holds and what a step has room for are reckoned together.", f"{NANO}/pull/207")
def preempt_with_a_prefix_cache_in_chunks(make: type[Adapter]) -> None:
    for seed in range(SOAKS):
        _random_life(make, random.Random(seed), Limits(num_blocks=14, max_num_batched_tokens=32), num_prefixes=2)


@check("Under random traffic, with room for all, each request's tokens are what it would get alone.")
def batch_invariance(make: type[Adapter]) -> None:
    for seed in range(SOAKS):
        _random_life(make, random.Random(seed), Limits(num_blocks=200), num_prefixes=3)


def _random_life(make: type[Adapter], rng: random.Random, limits: Limits, num_prefixes: int) -> None:
    """Some requests that share beginnings come over time."""
    trial = Trial(make, limits)
    prefixes = [random_tokens(rng, 16 * rng.randint(1, 3)) for _ in range(num_prefixes)]
    for i in range(12):
        prompt = rng.choice([*prefixes, []]) + random_tokens(rng, rng.choice([0, 1, 5, 16, 30]))
        trial.add(f"r{i}", prompt or [i], rng.randint(1, 40))
        for _ in range(rng.randrange(4)):
            if not trial.adapter.is_idle():
                trial.step()
    trial.check_all()


@check("A prompt that can never fit in the KV pool is refused, or ends by itself; the others go on.")
def prompt_larger_than_the_pool(make: type[Adapter]) -> None:
    rng = random.Random(9)
    trial = Trial(make, Limits(num_blocks=8))
    trial.add("before", random_tokens(rng, 20), 10)
    trial.add("too large", random_tokens(rng, 200), 10)
    trial.add("after", random_tokens(rng, 20), 10)
    _others_go_on(trial, "too large")


@check("An answer that outgrows the KV pool ends, or is refused at first; the others go on.")
def answer_larger_than_the_pool(make: type[Adapter]) -> None:
    rng = random.Random(10)
    trial = Trial(make, Limits(num_blocks=8))
    trial.add("too large", random_tokens(rng, 100), 100)
    trial.add("after", random_tokens(rng, 20), 10)
    _others_go_on(trial, "too large")


def _others_go_on(trial: Trial, too_large: str) -> None:
    trial.run()
    trial.check_tokens(trial.asked.keys() - {too_large})
    trial.check_answer(too_large)
    if trial.is_whole(too_large):
        raise ConformityError(trial.sent, "no whole answer: there's no room for one", "a whole one")
    trial.check_at_rest()


# ------------------------------------------------------------------ leaving


@check("A client that leaves frees all that its request held, whatever its state; the others go on.")
def aborts_in_each_state(make: type[Adapter]) -> None:
    rng = random.Random(11)
    trial = Trial(make, Limits(max_num_seqs=3, max_num_batched_tokens=64))
    trial.add("decoding", random_tokens(rng, 20), 50)
    while not trial.tokens["decoding"]:
        trial.step()
    trial.add("half a prompt", random_tokens(rng, 200), 5)
    trial.step()
    for name in ("waiting", "stays"):
        trial.add(name, random_tokens(rng, 40), 20)
    for name in ("half a prompt", "waiting", "decoding"):
        trial.abort(name)
        trial.step()
    trial.check_all()
    trial.check_left()
    trial.abort("stays")  # it has ended: nothing to free twice
    trial.check_at_rest()


@check("Clients may leave at any moment, also in the step that would have been their last.", f"{MINI}/pull/111")
def aborts_at_any_moment(make: type[Adapter]) -> None:
    rng = random.Random(12)
    trial = Trial(make, Limits())
    for i in range(1_000):
        trial.add(f"r{i}", random_tokens(rng, rng.randint(1, 40)), rng.randint(1, 6))
        trial.step()
        name = f"r{rng.randint(max(0, i - 6), i)}"
        if rng.random() < 0.3 and not trial.is_whole(name) and name not in trial.left:
            trial.abort(name)
    trial.check_all()
    trial.check_left()


@check("After ten thousand requests every block is free again.")
def leaks(make: type[Adapter]) -> None:
    rng = random.Random(13)
    trial = Trial(make, Limits())
    prefixes = [random_tokens(rng, 16) for _ in range(4)]
    for i in range(10_000):
        trial.add(f"r{i}", rng.choice([*prefixes, []]) + random_tokens(rng, rng.randint(1, 12)), rng.randint(1, 4))
        trial.step()
        if i % 16 == 15:
            trial.run()
    trial.check_all()


# ------------------------------------------------------------------ fairness


@check("Who came first starts first, among requests of one size.")
def first_come_first_served(make: type[Adapter]) -> None:
    rng = random.Random(14)
    trial = Trial(make, Limits(max_num_seqs=4))
    for i in range(20):
        trial.add(f"r{i:02}", random_tokens(rng, 20), 8)
    order: list[str] = []
    while not trial.adapter.is_idle() and trial.model.num_steps < 1_000:
        order += sorted(trial.step() - set(order))
    late = [name for place, name in enumerate(order) if abs(place - int(name[1:])) > 4]
    if late:
        raise ConformityError(
            trial.sent, "first tokens in the order of arrival", f"{late[0]} as number {order.index(late[0])}"
        )
    trial.check_all()


@check(
    f"A request that decodes isn't starved by others' prompts: it gets a token every {LONGEST_STALL} steps at least."
)
def decodes_go_on_beside_prompts(make: type[Adapter]) -> None:
    rng = random.Random(14)
    trial = Trial(make, Limits(num_blocks=400, max_num_seqs=32))
    trial.add("decodes", random_tokens(rng, 20), 60)
    while not trial.tokens["decodes"]:
        trial.step()
    stall = longest = 0
    for i in range(120):
        trial.add(f"prompt {i}", random_tokens(rng, 40), 2)
        stall = 0 if "decodes" in trial.step() else stall + 1
        longest = max(longest, stall)
        if trial.is_whole("decodes"):
            break
    if longest > LONGEST_STALL:
        raise ConformityError(trial.sent, f"a token every {LONGEST_STALL} steps", f"{longest} steps without one")
    trial.check_all()


@check("A long prompt isn't passed by short ones for ever.")
def long_prompts_get_their_turn(make: type[Adapter]) -> None:
    rng = random.Random(15)
    trial = Trial(make, Limits(num_blocks=40, max_num_seqs=4))
    trial.add("short", random_tokens(rng, 20), 4)
    trial.add("long", random_tokens(rng, 400), 2)
    for i in range(300):
        trial.add(f"short {i}", random_tokens(rng, 20), 4)
        trial.step()
        if trial.is_whole("long"):
            return
    raise ConformityError(
        trial.sent, "the long prompt's answer within 300 steps", f"{len(trial.tokens['long'])} tokens"
    )
