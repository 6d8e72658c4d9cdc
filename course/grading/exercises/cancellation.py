"""A server loop in which clients leave: what they held is freed exactly once, and no other request notices."""

import itertools
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from course.grading.tools import Answer, Mistake, expect, listed, number, shown


@dataclass
class LeavingRequest:
    name: str
    blocks: int
    prefill: int
    answer: int
    """Steps of prefill, and tokens, that are still to come."""
    left: bool = False
    """Its client went away during a step."""


@dataclass
class ReferenceEngine:
    """What a right server does, with counts for blocks."""

    free: int
    slots: int
    queue: deque[LeavingRequest] = field(default_factory=deque)
    running: list[LeavingRequest] = field(default_factory=list)
    in_step: bool = False

    def submit(self, name: str, prompt_blocks: int, answer_tokens: int) -> None:
        self.queue.append(LeavingRequest(name, prompt_blocks + 1, prompt_blocks, answer_tokens))

    def begin(self) -> list[str]:
        while self.queue and len(self.running) < self.slots and self.queue[0].blocks <= self.free:
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

    def let_go(self, request: LeavingRequest) -> None:
        self.running.remove(request)
        self.free += request.blocks

    def stage(self, name: str) -> str:
        """Where a request is, in words."""
        if any(request.name == name for request in self.queue):
            return "in the queue"
        for request in [each for each in self.running if each.name == name]:
            where = "cancelled already" if request.left else "in prefill" if request.prefill else "in decode"
            return f"{where}{', with a step under way' if self.in_step else ''}"
        return "gone already"

    def cancel(self, name: str) -> bool:
        alive = [each for each in (*self.queue, *self.running) if each.name == name and not each.left]
        for request in alive:
            if request in self.queue:
                self.queue.remove(request)
            elif self.in_step:
                request.left = True
            else:
                self.let_go(request)
        return bool(alive)


class WatchedServer:
    """A learner's server beside the model of a right one. Raises Mistake at the first difference."""

    def __init__(self, answer: Answer, blocks: int, slots: int) -> None:
        self.answer = answer
        self.pool = answer.prop("ServerBlocks", blocks)
        self.server: Any = answer.Server(self.pool, slots)
        self.model = ReferenceEngine(blocks, slots)
        self.log: list[str] = [f"Server(pool of {blocks}, {slots} slots)"]
        self.last_cancel = ""
        self.cancelled: list[str] = []

    def wrong(self, what: str, tip: str) -> Mistake:
        log = self.log if len(self.log) <= 14 else ["...", *self.log[-13:]]
        return Mistake(f"{'; '.join(log)}{what}{self.last_cancel}", slip=tip)

    def act(self, what: str, do: Callable[[], Any]) -> Any:
        """Do something; whatever it raises becomes a Mistake that tells how it came to that."""
        self.log.append(what)
        try:
            return do()
        except (NotImplementedError, Mistake):
            raise
        except Exception as error:
            cause = self.pool.wrong or f"{type(error).__name__}: {error}"
            raise self.wrong(f" raised {type(error).__name__}", cause) from error

    def look(self) -> None:
        (trouble, found), wanted = self.answer.play(self.pool, [("wrong", None), ("free", None)]), self.model.free
        if trouble:
            raise self.wrong("", trouble)
        if found != wanted:
            tip = (
                "leaked_blocks"
                if found < wanted
                else "freed_during_a_step"
                if self.model.in_step
                else "freed_too_early"
            )
            raise self.wrong(f": {found} blocks are free; expected {wanted}", tip)

    def submit(self, name: str, prompt_blocks: int, answer_tokens: int) -> None:
        request = name, prompt_blocks, answer_tokens
        self.act(f"submit{request}", lambda: self.server.submit(*request))
        self.model.submit(*request)
        self.look()

    def submit_some(self, count: int, blocks: Callable[[], int], tokens: Callable[[], int]) -> None:
        """Requests r0, r1, ..."""
        for i in range(count):
            self.submit(f"r{i}", blocks(), tokens())

    def _names(self, what: str, do: Callable[[], Any], wanted: list[str], tip: str) -> None:
        found = self.act(what, lambda: listed(do(), what))
        if found != wanted:
            raise self.wrong(f" gave {shown(found)}; expected {shown(wanted)}", self.why(found, wanted) or tip)
        self.look()

    def why(self, found: list[Any], wanted: list[str]) -> str:
        ghosts = [name for name in found if name not in wanted]
        if left := [name for name in ghosts if name in self.cancelled]:
            return f"the client of {left[0]!r} has left: nothing is computed or delivered for it any more"
        if over := [name for name in ghosts if self.model.stage(name) == "gone already"]:
            return f"{shown(over[0])} has all its tokens: it is over"
        if early := [name for name in ghosts if self.model.stage(name) in ("in prefill", "in decode")]:
            return (
                f"{shown(early[0])} was in prefill in this step: the first prompt_blocks steps of a request bring no "
                "token, not even the last of them"
            )
        if set(found) < set(wanted):
            missing = next(name for name in wanted if name not in found)
            return f"{missing!r} should be among them: a slot or its blocks were not given back, or others were harmed"
        return ""

    def begin(self) -> None:
        self._names("begin()", self.server.begin, self.model.begin(), "order_of_arrival")

    def end(self) -> None:
        self._names("end()", self.server.end, self.model.end(), "one_token_a_step")

    def cancel(self, name: str) -> None:
        stage = self.model.stage(name)
        found = self.act(f"cancel({name!r})", lambda: self.server.cancel(name))
        wanted = self.model.cancel(name)
        if wanted:
            self.cancelled.append(name)
        self.last_cancel = f" ({name!r} was {stage})"
        number(found, f"cancel({name!r})")
        if bool(found) is not wanted:
            raise self.wrong(f" gave {shown(found)}; expected {wanted}", "was_alive" if wanted else "nothing_to_cancel")
        self.look()

    def play(self, script: str) -> None:
        """A word for each act: begin, end, step (both), drain, or a name to cancel."""
        for word in script.split():
            if word == "drain":  # steps until no request is left; then everything must be free
                while self.model.queue or self.model.running:
                    self.play("step")
                self.play("step")
            elif word == "step":
                self.play("begin end")
            else:
                acts = {"begin": self.begin, "end": self.end}
                acts.get(word, lambda name=word: self.cancel(name))()


def no_cancels(answer: Answer, rng: random.Random) -> None:
    for _ in range(5):
        watched = WatchedServer(answer, rng.randint(6, 12), rng.randint(1, 4))
        for i in range(rng.randint(2, 7)):
            watched.submit(f"r{i}", rng.randint(1, 4), rng.randint(1, 4))
            watched.play("step" if rng.random() < 0.3 else "")
        watched.play("drain")


def in_the_queue(answer: Answer, rng: random.Random) -> None:
    for script in ("begin end r1 drain", "begin r1 end drain", "begin end r1 r3 drain"):
        watched = WatchedServer(answer, 12, 1)
        watched.submit_some(4, lambda: rng.randint(1, 3), lambda: rng.randint(2, 3))
        watched.play(script)
    watched = WatchedServer(answer, 6, 4)
    # The large one does not fit beside the small one, and all behind it wait.
    for name, blocks, tokens in (("small", 1, 3), ("large", 4, 2), ("last", 1, 2)):
        watched.submit(name, blocks, tokens)
    watched.play("step large step drain")


def cancelled_after(answer: Answer, rng: random.Random, scripts: str) -> None:
    """At any moment of three requests' lives: a prompt of two blocks means two steps of prefill, then decode."""
    for steps, which in itertools.product(range(5), range(3)):
        watched = WatchedServer(answer, 16, 3)
        watched.submit_some(5, lambda: 2, lambda: rng.randint(5, 6))
        watched.play("step " * steps + scripts.format(f"r{which}"))


def during_a_step(answer: Answer, rng: random.Random) -> None:
    cancelled_after(answer, rng, "begin {} end drain")
    for name in ("r0", "r1"):  # cancelled in the very step of its last token
        watched = WatchedServer(answer, 8, 2)
        watched.submit_some(3, lambda: 1, lambda: 1)
        watched.play(f"step begin {name} end drain")


def late_and_twice(answer: Answer, rng: random.Random) -> None:
    watched = WatchedServer(answer, 9, 2)
    watched.play("unknown")
    watched.submit_some(4, lambda: 1, lambda: 2)
    # Twice in the queue, during a step, between steps; then late.
    watched.play("r r3 r3 begin r0 r0 end r0 step r1 r1 drain r0 r1 r2 r3")
    watched.submit("new", 2, 1)
    watched.play("r2 drain")


def crowd(answer: Answer, rng: random.Random) -> str:
    cancels = 0
    for _ in range(12):
        watched = WatchedServer(answer, rng.randint(6, 20), rng.randint(1, 5))
        names: list[str] = []
        for turn in range(60):
            if rng.random() < 0.4:
                names.append(f"r{turn}")
                watched.submit(names[-1], rng.randint(1, 4), rng.randint(1, 5))
            for act in (watched.begin, watched.end):
                for name in rng.choices(names[-6:], k=rng.choice((0, 0, 1, 2))) if names else ():
                    watched.cancel(name)
                    cancels += 1
                act()
        watched.play("drain")
        expect(not watched.pool.held, f"at the end, {len(watched.pool.held)} blocks were still held")
    return f"{cancels} cancels at any moment: nothing leaks, no other request notices"
