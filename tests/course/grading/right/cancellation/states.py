"""Each request has a state; one list holds them all."""

from dataclasses import dataclass, field
from enum import Enum


class Phase(Enum):
    WAITING = 0
    RUNNING = 1
    LEAVING = 2
    OVER = 3


@dataclass
class Req:
    name: str
    prompt: int
    answer: int
    phase: Phase = Phase.WAITING
    blocks: list = field(default_factory=list)
    done: int = 0


class Server:
    def __init__(self, pool, slots):
        self.pool, self.slots, self.all, self.busy = pool, slots, [], False

    def _in(self, *phases):
        return [r for r in self.all if r.phase in phases]

    def submit(self, name, prompt_blocks, answer_tokens):
        self.all.append(Req(name, prompt_blocks, answer_tokens))

    def begin(self):
        for r in self._in(Phase.WAITING):
            if len(self._in(Phase.RUNNING)) == self.slots or self.pool.free <= r.prompt:
                break
            r.blocks, r.phase = self.pool.take(r.prompt + 1), Phase.RUNNING
        self.busy = True
        return tuple(r.name for r in self._in(Phase.RUNNING))

    def _finish(self, r):
        r.phase, blocks, r.blocks = Phase.OVER, r.blocks, []
        self.pool.give_back(blocks)
        self.all.remove(r)

    def end(self):
        self.busy, got = False, []
        for r in self._in(Phase.RUNNING, Phase.LEAVING):
            r.done += 1
            if r.phase is Phase.LEAVING:
                self._finish(r)
                continue
            if r.done > r.prompt:
                got.append(r.name)
            if r.done == r.prompt + r.answer:
                self._finish(r)
        return got

    def cancel(self, name):
        for r in self._in(Phase.WAITING, Phase.RUNNING):
            if r.name != name:
                continue
            if r.phase is Phase.WAITING:
                self.all.remove(r)
            elif self.busy:
                r.phase = Phase.LEAVING
            else:
                self._finish(r)
            return True
        return False
