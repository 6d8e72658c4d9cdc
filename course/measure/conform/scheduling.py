"""The checks of an engine's scheduler and block manager. A check's `seen` is a public bug that it would have found."""

import gc
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass

from course.measure.conform.adapter import Adapter, Limits
from course.measure.conform.counting import CountingModel, random_tokens
from course.measure.conform.trial import Trial
from course.measure.conform.verdict import ConformityError
from course.measure.conform.waves import WAVES, shared_beginnings

NANO = "https://github.com/GeeeekExplorer/nano-vllm"
MINI = "https://github.com/sgl-project/mini-sglang"

SOAKS = 60
"""Random lives in the checks that try many."""
LEAK_REQUESTS = 10_000
KEPT_OBJECTS = 3
"""What may stay of a request that has ended. Its name, which the check itself keeps, is one."""
POOLS = (Limits(), Limits(num_blocks=14), Limits(num_blocks=14, max_num_batched_tokens=32))
"""For leaks: room for all that's cached; too little for what runs; the same in chunks."""
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
    prompts = [random_tokens(rng, length) for length in (*around(64), *around(128), 200)]
    for prompt in prompts:
        trial.add(f"{len(prompt)}", prompt, 5)
    trial.check_all()
    for prompt in prompts:
        alone = Trial(make, trial.limits)
        alone.add("alone", prompt, 5)
        alone.check_all()


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


@check("A request that just fits in the KV pool is answered; one that just doesn't is refused, or ends by itself.")
def borders_of_the_pool(make: type[Adapter]) -> None:
    rng = random.Random(16)
    limits = Limits(num_blocks=8)
    room = limits.num_blocks * limits.block_size  # the last token of an answer needs none
    for prompt, answer in (
        (room - 40, 8),
        (room - 2, 3),
        (room - 1, 2),
        (room, 1),
        (room, 2),
        (room + 1, 1),
        (16, room),
    ):
        trial = Trial(make, limits)
        trial.add("large", random_tokens(rng, prompt), answer)
        trial.run()
        trial.add("after", random_tokens(rng, 20), 10)
        trial.run()
        trial.check_tokens(["after"])
        trial.check_answer("large")
        fits = prompt + answer - 1 <= room
        if trial.is_whole("large") and not fits:
            raise ConformityError(trial.sent, "no whole answer: there's no room for one", "a whole one")
        if prompt + answer < room - limits.block_size:
            trial.check_tokens(["large"])
        trial.check_at_rest()


@check(
    "A request that just fits in the context is answered. Nothing is computed at positions beyond it, and no prompt is "
    "cut without a word."
)
def borders_of_the_context(make: type[Adapter]) -> None:
    rng = random.Random(18)
    limits = Limits(max_model_len=64)
    for prompt, answer in ((40, 20), (62, 1), (40, 24), (63, 1), (40, 25), (64, 1), (65, 1), (100, 4), (30, 100)):
        trial = Trial(make, limits)
        trial.add("large", random_tokens(rng, prompt), answer)
        trial.run()
        trial.check_answer("large")
        if prompt + answer < limits.max_model_len:  # at the border itself, right engines differ
            trial.check_tokens(["large"])
        if trial.model.most_context > limits.max_model_len:
            expected = f"contexts of at most {limits.max_model_len} tokens"
            raise ConformityError(trial.sent, expected, f"one of {trial.model.most_context}")
        trial.check_at_rest()


# ------------------------------------------------------------------ leaving


@check("A client that leaves frees all that its request held, whatever its state; the others go on.")
def aborts_in_each_state(make: type[Adapter]) -> None:
    rng = random.Random(11)
    in_chunks = Limits(max_num_seqs=2, max_num_batched_tokens=64)
    trial = Trial(make, in_chunks if _is_offered(make, in_chunks) else Limits(max_num_seqs=2))
    trial.add("decoding", random_tokens(rng, 20), 50)
    while not trial.tokens["decoding"]:
        trial.step()
    trial.add("half a prompt", random_tokens(rng, 200), 5)
    trial.step()
    for name in ("waiting", "stays"):
        trial.add(name, random_tokens(rng, 40), 20)
    for name in ("waiting", "half a prompt", "decoding"):
        trial.abort(name)
        trial.step()
    trial.check_all()
    trial.check_left()
    trial.abort("stays")  # it has ended: nothing to free twice
    trial.check_at_rest()
    _abort_preempted(make, rng)


def _abort_preempted(make: type[Adapter], rng: random.Random) -> None:
    """Abort each request that got tokens and then, in a step that brought others some, none."""
    trial = Trial(make, Limits(num_blocks=8))
    for i in range(4):
        trial.add(f"r{i}", random_tokens(rng, 20 + i), 40)
    while not trial.adapter.is_idle() and trial.model.num_steps < 500:
        got = trial.step()
        for name in sorted(trial.asked.keys() - got - trial.left.keys()):
            if got and trial.tokens[name] and not trial.is_whole(name):
                trial.abort(name)
    trial.check_all()
    trial.check_left()


@check("Clients may leave at any moment, also in the step that would have been their last.", f"{MINI}/pull/111")
def aborts_at_any_moment(make: type[Adapter]) -> None:
    rng = random.Random(12)
    trial = Trial(make, Limits(max_num_seqs=4))  # some wait
    for i in range(1_000):
        trial.add(f"r{i}", random_tokens(rng, rng.randint(1, 40)), rng.randint(1, 6))
        trial.step()
        name = f"r{rng.randint(max(0, i - 6), i)}"
        if rng.random() < 0.3 and not trial.is_whole(name) and name not in trial.left:
            trial.abort(name)
    trial.check_all()
    trial.check_left()


@check(
    "After ten thousand requests every block is free again, and the pool takes as long a prompt as at first: equal "
    "prompts, wholly cached ones, answers sent back, more than the pool can take, clients that leave."
)
def leaks(make: type[Adapter]) -> None:
    offered = [limits for limits in POOLS if _is_offered(make, limits)] or [POOLS[0]]
    for seed, limits in enumerate(offered):
        _leaks(make, limits, random.Random(seed), LEAK_REQUESTS // len(offered))


def _leaks(make: type[Adapter], limits: Limits, rng: random.Random, num_requests: int) -> None:
    """Wave after wave, after each of which nothing may be held."""
    trial = Trial(make, limits)
    paths = dict(WAVES)
    took = _takes_a_long_prompt(trial, rng)
    while len(trial.earlier) < num_requests:
        for path, wave in [*paths.items()]:
            trial.turn_to(path)
            try:
                wave(trial, rng)
            except NotImplementedError:  # it can't abort
                del paths[path]
            trial.check_all()
            trial.check_left()
    if took and not _takes_a_long_prompt(trial, rng):
        raise ConformityError(trial.sent, "all tokens, as at first", "not all")


def _takes_a_long_prompt(trial: Trial, rng: random.Random) -> bool:
    """Whether a prompt for which the pool is just large enough is answered."""
    trial.turn_to("a prompt for nearly the whole pool")
    length = min((trial.limits.num_blocks - 2) * trial.limits.block_size, trial.limits.max_model_len - 8)
    name = trial.ask(random_tokens(rng, length), 4)
    trial.run()
    return trial.is_whole(name)


def _is_offered(make: type[Adapter], limits: Limits) -> bool:
    try:
        make(limits, CountingModel())
    except NotImplementedError:
        return False
    return True


@check("Nothing is kept of requests that have ended: memory doesn't grow with their number.")
def memory(make: type[Adapter]) -> None:
    rng = random.Random(17)
    trial = Trial(make, Limits())
    counts = []
    for num_requests in (LEAK_REQUESTS // 2, LEAK_REQUESTS):  # a log of the last requests or steps is full by the first
        while len(trial.earlier) < num_requests:
            trial.turn_to("prompts with shared beginnings")
            shared_beginnings(trial, rng)
            trial.run()
        gc.collect()
        counts.append(sys.getallocatedblocks())
    grown = (counts[1] - counts[0]) / (LEAK_REQUESTS / 2)
    if grown > KEPT_OBJECTS:
        sent = f"{LEAK_REQUESTS:,} requests, the last of them {trial.sent}"
        raise ConformityError(sent, f"at most {KEPT_OBJECTS} Python objects more for each", f"{grown:.0f}")


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
    for i in range(8):  # no slot is free when the long one comes
        trial.add(f"before {i}", random_tokens(rng, 20), 4)
    trial.step()
    trial.add("long", random_tokens(rng, 400), 2)
    for i in range(300):
        for twin in "ab":  # more than can run: some always wait
            trial.add(f"short {i}{twin}", random_tokens(rng, 20), 4)
        trial.step()
        if trial.is_whole("long"):
            return
    raise ConformityError(
        trial.sent, "the long prompt's answer within 300 steps", f"{len(trial.tokens['long'])} tokens"
    )
