"""A server loop in which clients leave: what they held is freed exactly once, and nobody else notices."""

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from course.lab.grading.blame import shown
from course.lab.grading.exercise import Answer, Exercise, Hint, Mistake, Part
from course.lab.grading.tools import listed


class Pool:
    """The blocks that a server is given. Notes what is done wrong, and refuses it."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.free_ids = list(range(size))
        self.held: set[int] = set()
        self.wrong: str | None = None

    @property
    def free(self) -> int:
        return len(self.free_ids)

    def take(self, count: int) -> list[int]:
        if count > self.free:
            raise IndexError(f"{count} blocks wanted, {self.free} free")
        taken = [self.free_ids.pop() for _ in range(count)]
        self.held.update(taken)
        return taken

    def give_back(self, block_ids: Sequence[int]) -> None:
        for block in list(block_ids):
            if block not in self.held:
                self.wrong = self.wrong or f"block {block} was given back although nobody held it: freed twice"
                raise ValueError(f"nobody holds block {block}")
            self.held.remove(block)
            self.free_ids.append(block)


@dataclass
class Request:
    name: str
    blocks: int
    prefill: int
    answer: int
    """Steps of prefill, and tokens, that are still to come."""
    left: bool = False
    """Its client went away during a step."""


@dataclass
class Model:
    """What a right server does, with counts for blocks."""

    free: int
    seats: int
    queue: deque[Request] = field(default_factory=deque)
    running: list[Request] = field(default_factory=list)
    in_step: bool = False

    def submit(self, name: str, prompt_blocks: int, answer_tokens: int) -> None:
        self.queue.append(Request(name, prompt_blocks + 1, prompt_blocks, answer_tokens))

    def begin(self) -> list[str]:
        while self.queue and len(self.running) < self.seats and self.queue[0].blocks <= self.free:
            self.running.append(self.queue.popleft())
            self.free -= self.running[-1].blocks
        self.in_step = True
        return [request.name for request in self.running]

    def end(self) -> list[str]:
        tokens = []
        for request in self.running:
            if request.prefill:
                request.prefill -= 1
            elif not request.left:
                request.answer -= 1
                tokens.append(request.name)
        for request in [each for each in self.running if each.left or not each.answer]:
            self.let_go(request)
        self.in_step = False
        return tokens

    def let_go(self, request: Request) -> None:
        self.running.remove(request)
        self.free += request.blocks

    def stage(self, name: str) -> str:
        """Where a request is, in words."""
        if any(request.name == name for request in self.queue):
            return "in the queue"
        for request in self.running:
            if request.name == name:
                where = "cancelled already" if request.left else "in prefill" if request.prefill else "in decode"
                return f"{where}{', with a step under way' if self.in_step else ''}"
        return "gone already"

    def cancel(self, name: str) -> bool:
        for request in self.queue:
            if request.name == name:
                self.queue.remove(request)
                return True
        for request in self.running:
            if request.name == name and not request.left:
                request.left = True
                if not self.in_step:
                    self.let_go(request)
                return True
        return False


class Watched:
    """A learner's server beside the model of a right one. Raises Mistake at the first difference."""

    def __init__(self, answer: Answer, blocks: int, seats: int) -> None:
        self.pool = Pool(blocks)
        self.server: Any = answer.Server(self.pool, seats)
        self.model = Model(blocks, seats)
        self.log: list[str] = [f"Server(pool of {blocks}, {seats} seats)"]
        self.last_cancel = ""
        self.cancelled: list[str] = []

    def story(self) -> str:
        shown_log = self.log if len(self.log) <= 14 else ["...", *self.log[-13:]]
        return "; ".join(shown_log)

    def act(self, what: str, do: Any) -> Any:
        """Do something; whatever it raises becomes a Mistake that tells how it came to that."""
        self.log.append(what)
        try:
            return do()
        except NotImplementedError:
            raise
        except Exception as error:
            cause = self.pool.wrong or f"{type(error).__name__}: {error}"
            raise Mistake(f"{self.story()} raised {type(error).__name__} ({cause}). {self.last_cancel}") from error

    def look(self) -> None:
        if self.pool.wrong:
            raise Mistake(f"{self.story()}: {self.pool.wrong}. {self.last_cancel}")
        found, wanted = self.pool.free, self.model.free
        if found == wanted:
            return
        if found < wanted:
            tip = "Blocks leak: what a request held goes back when it leaves, on every path"
        elif self.model.in_step:
            tip = (
                "Blocks were given back while a step was under way: it still writes into them, and somebody else may get them. Mark "
                "the request, and free it in end()"
            )
        else:
            tip = (
                "More is free than nobody holds: a request's blocks were given back while it needs them, or never taken"
            )
        raise Mistake(f"{self.story()}: {found} blocks are free; expected {wanted}. {self.last_cancel}{tip}")

    def submit(self, name: str, prompt_blocks: int, answer_tokens: int) -> None:
        self.act(
            f"submit({name!r}, {prompt_blocks}, {answer_tokens})",
            lambda: self.server.submit(name, prompt_blocks, answer_tokens),
        )
        self.model.submit(name, prompt_blocks, answer_tokens)
        self.look()

    def _names(self, what: str, do: Any, wanted: list[str], tip: str) -> None:
        found = self.act(what, lambda: listed(do(), what))
        if found != wanted:
            raise Mistake(
                f"{self.story()} gave {shown(found)}; expected {shown(wanted)}. {self.last_cancel}{self.why(found, wanted) or tip}"
            )
        self.look()

    def why(self, found: list[Any], wanted: list[str]) -> str:
        ghosts = [name for name in found if name not in wanted]
        if left := [name for name in ghosts if name in self.cancelled]:
            return f"the client of {left[0]!r} has left: nothing is computed or delivered for it any more"
        if over := [name for name in ghosts if self.model.stage(name) == "gone already"]:
            return f"{shown(over[0])} has all its tokens: it is over"
        if len(found) < len(wanted) and set(found) < set(wanted):
            missing = next(name for name in wanted if name not in found)
            return f"{missing!r} should be among them: a seat or its blocks were not given back, or others were harmed"
        return ""

    def begin(self) -> None:
        self._names(
            "begin()", self.server.begin, self.model.begin(), "Requests come in the order in which they arrived"
        )

    def end(self) -> None:
        self._names("end()", self.server.end, self.model.end(), "Each request in decode gets one token a step")

    def cancel(self, name: str) -> None:
        stage = self.model.stage(name)
        found = self.act(f"cancel({name!r})", lambda: self.server.cancel(name))
        wanted = self.model.cancel(name)
        if wanted:
            self.cancelled.append(name)
        self.last_cancel = f"({name!r} was {stage}.) "
        try:
            given = bool(found)
        except Exception:
            raise Mistake(f"cancel({name!r}) should give True or False; yours is {shown(found)}") from None
        if found is None or given is not wanted:
            why = "it was alive, and is cancelled now" if wanted else "there is nothing left to cancel"
            raise Mistake(f"{self.story()} gave {shown(found)}; expected {wanted}: {name!r} was {stage}, so {why}")
        self.look()

    def drain(self) -> None:
        """Steps until nobody is left; then everything must be free."""
        while self.model.queue or self.model.running:
            self.begin()
            self.end()
        self.begin()
        self.end()


def no_cancels(answer: Answer, rng: random.Random) -> str:
    for _ in range(5):
        watched = Watched(answer, rng.randint(6, 12), rng.randint(1, 4))
        for number in range(rng.randint(2, 7)):
            watched.submit(f"r{number}", rng.randint(1, 4), rng.randint(1, 4))
            if rng.random() < 0.3:
                watched.begin()
                watched.end()
        watched.drain()
    return "without a cancel, everybody is served and everything is free again"


def in_the_queue(answer: Answer, rng: random.Random) -> str:
    for gone in range(3):
        watched = Watched(answer, 12, 1)
        for number in range(4):
            watched.submit(f"r{number}", rng.randint(1, 3), rng.randint(2, 3))
        watched.begin()
        if gone == 1:
            watched.cancel("r1")
        watched.end()
        if gone != 1:
            watched.cancel("r1")
        if gone == 2:
            watched.cancel("r3")
        watched.drain()
    watched = Watched(answer, 6, 4)
    watched.submit("small", 1, 3)
    watched.submit("large", 4, 2)  # does not fit beside the small one, and everybody behind it waits
    watched.submit("last", 1, 2)
    watched.begin()
    watched.end()
    watched.cancel("large")
    watched.begin()
    watched.end()
    watched.drain()
    return "it leaves the queue, and those behind it move up"


def between_steps(answer: Answer, rng: random.Random) -> str:
    for steps in range(5):  # a prompt of two blocks: two steps of prefill, then decode
        for place in range(3):
            watched = Watched(answer, 16, 3)
            for number in range(5):
                watched.submit(f"r{number}", 2, rng.randint(5, 6))
            for _ in range(steps + 1):
                watched.begin()
                watched.end()
            watched.cancel(f"r{place}")
            watched.drain()
    return "in prefill and in decode: blocks and seat are free at once"


def during_a_step(answer: Answer, rng: random.Random) -> str:
    for steps in range(5):
        for place in range(3):
            watched = Watched(answer, 16, 3)
            for number in range(5):
                watched.submit(f"r{number}", 2, rng.randint(5, 6))
            for _ in range(steps):
                watched.begin()
                watched.end()
            watched.begin()
            watched.cancel(f"r{place}")
            watched.end()
            watched.drain()
    for place in range(2):  # cancelled in the very step of its last token
        watched = Watched(answer, 8, 2)
        for number in range(3):
            watched.submit(f"r{number}", 1, 1)
        watched.begin()
        watched.end()
        watched.begin()
        watched.cancel(f"r{place}")
        watched.end()
        watched.drain()
    return "the step ends first, then all is free, and no token is delivered"


def late_and_twice(answer: Answer, rng: random.Random) -> str:
    watched = Watched(answer, 9, 2)
    watched.cancel("nobody")
    for number in range(4):
        watched.submit(f"r{number}", 1, 2)
    watched.cancel("r3")
    watched.cancel("r3")  # twice, in the queue
    watched.begin()
    watched.cancel("r0")
    watched.cancel("r0")  # twice, during a step
    watched.end()
    watched.cancel("r0")
    watched.begin()
    watched.end()
    watched.cancel("r1")
    watched.cancel("r1")  # twice, between steps
    watched.drain()
    for number in range(4):
        watched.cancel(f"r{number}")  # late
    watched.submit("new", 2, 1)
    watched.cancel("r2")
    watched.drain()
    return "a late one, a second one, and one for nobody: False, and nothing happens"


def crowd(answer: Answer, rng: random.Random) -> str:
    cancels = 0
    for _ in range(12):
        watched = Watched(answer, rng.randint(6, 20), rng.randint(1, 5))
        names: list[str] = []
        for turn in range(60):
            if rng.random() < 0.4:
                names.append(f"r{turn}")
                watched.submit(names[-1], rng.randint(1, 4), rng.randint(1, 5))
            for moment in ("before", "during"):
                for _ in range(rng.choice((0, 0, 1, 2))):
                    if names:
                        watched.cancel(rng.choice(names[-6:]))
                        cancels += 1
                if moment == "before":
                    watched.begin()
            watched.end()
        watched.drain()
        if watched.pool.held:
            raise Mistake(f"when everybody had gone, {len(watched.pool.held)} blocks were still held")
    return f"{cancels} cancels at any moment: nothing leaks, nobody else notices"


EXERCISE = Exercise(
    id="cancellation",
    title="A client leaves",
    lesson=10,
    difficulty=2,
    minutes=35,
    entry_points=("Server",),
    parts=(
        Part("nobody leaves", 1, no_cancels),
        Part("in the queue", 2, in_the_queue),
        Part("between steps", 3, between_steps),
        Part("during a step", 4, during_a_step),
        Part("late, and twice", 2, late_and_twice),
        Part("a crowd", 2, crowd),
    ),
    hints=(
        Hint(
            "One method that lets a request go (seat and blocks) and is called from every path frees everything once.",
            0.1,
        ),
        Hint("During a step, cancel() only leaves a mark. end() looks at the marks before it delivers.", 0.1),
    ),
)
