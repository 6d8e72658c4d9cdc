"""A small engine without mistakes, and an adapter for itself: what `test_conform_mutants.py` puts mistakes into.

Paged KV, a prefix cache with least recently used eviction, chunked prefill, preemption, aborts: the scheduler of a
compact engine, in plain Python, on the model that counts.
"""

from collections import OrderedDict, deque
from dataclasses import dataclass, field

from course.measure.conform.adapter import Limits, RefusedError
from course.measure.conform.counting import CountingModel, KernelRow


@dataclass(eq=False)
class Job:
    """A request: its prompt and what it has answered, and the blocks that keep what is computed of them."""

    name: str
    tokens: list[int]
    end: int
    """Tokens that it will have when it's done."""
    computed: int = 0
    blocks: list[int] = field(default_factory=list)


class Adapter:
    def __init__(self, limits: Limits, model: CountingModel) -> None:
        self.limits, self.model, self.size = limits, model, limits.block_size
        self.free = deque(range(limits.num_blocks))
        """Blocks with nothing of use in them."""
        self.cached: OrderedDict[tuple[int, ...], int] = OrderedDict()
        """Blocks that no job uses and a prompt may find, by all tokens up to their end, least recently used first."""
        self.known: dict[tuple[int, ...], int] = {}
        """Blocks that a prompt may find, in use or not."""
        self.keys: dict[int, tuple[int, ...]] = {}
        self.users = [0] * limits.num_blocks
        self.waiting: deque[Job] = deque()
        self.running: list[Job] = []

    # ------------------------------------------------------------ what a check calls

    def add(self, name: str, prompt: list[int], max_tokens: int) -> None:
        end = len(prompt) + max_tokens
        if end > min(self.limits.max_model_len, self.limits.num_blocks * self.size):
            raise RefusedError("it would never fit")
        self.waiting.append(Job(name, [*prompt], end))

    def is_idle(self) -> bool:
        return not (self.waiting or self.running)

    def num_free_tokens(self) -> int:
        return (len(self.free) + len(self.cached)) * self.size

    def abort(self, name: str) -> None:
        for job in [*self.waiting, *self.running]:
            if job.name == name:
                self.leave(job)
                self.release(job)

    def step(self) -> dict[str, list[int]]:
        parts = self.schedule()
        answers = self.model.forward([self.row(job, count) for job, count in parts])
        new: dict[str, list[int]] = {}
        for (job, count), token in zip(parts, answers):
            job.computed += count
            self.remember(job)
            if job.computed == len(job.tokens):
                job.tokens.append(token)
                new[job.name] = [token]
            if len(job.tokens) == job.end:
                self.running.remove(job)
                self.release(job)
        return new

    # ------------------------------------------------------------ the scheduler

    def schedule(self) -> list[tuple[Job, int]]:
        """Jobs with how many tokens of each are computed in this step: those that run first, then those that wait."""
        parts: list[tuple[Job, int]] = []
        budget, has_preempted = self.limits.max_num_batched_tokens, False
        for job in [*self.running]:
            count = min(len(job.tokens) - job.computed, budget)
            while job in self.running and count and not self.grow(job, count):
                self.preempt(self.running[-1])
                has_preempted = True
            if job in self.running and count:
                parts.append((job, count))
                budget -= count
        while self.waiting and budget and not has_preempted and len(self.running) < self.limits.max_num_seqs:
            job = self.waiting[0]
            self.find(job)
            count = min(len(job.tokens) - job.computed, budget)
            if not self.grow(job, count):
                self.release(job)
                break
            self.running.append(self.waiting.popleft())
            parts.append((job, count))
            budget -= count
        return parts

    def preempt(self, job: Job) -> None:
        """What it has computed is dropped, or found again in the cache."""
        self.running.remove(job)
        self.release(job)
        self.waiting.appendleft(job)

    def leave(self, job: Job) -> None:
        """It's in neither queue any more."""
        if job in self.waiting:
            self.waiting.remove(job)
        else:
            self.running.remove(job)

    def row(self, job: Job, count: int) -> KernelRow:
        end = job.computed + count
        slots = [job.blocks[p // self.size] * self.size + p % self.size for p in range(end)]
        new = range(job.computed, end)
        return KernelRow(job.tokens[job.computed : end], new, slots[job.computed :], slots)

    # ------------------------------------------------------------ the block manager

    def grow(self, job: Job, count: int) -> bool:
        """Give a job blocks for so many tokens more. False, and none, if there aren't enough."""
        needed = -(-(job.computed + count) // self.size) - len(job.blocks)
        if needed > len(self.free) + len(self.cached):
            return False
        job.blocks += [self.take() for _ in range(needed)]
        return True

    def take(self) -> int:
        """A block with nothing in it, if need be the one whose content was used longest ago."""
        if self.free:
            block = self.free.popleft()
        else:
            key, block = self.cached.popitem(last=False)
            del self.known[key], self.keys[block]
        self.users[block] = 1
        return block

    def find(self, job: Job) -> None:
        """Give a job the blocks that have the beginning of its tokens. One token at least stays to be computed."""
        for end in range(self.size, len(job.tokens), self.size):
            key = tuple(job.tokens[:end])
            if key not in self.known:
                break
            block = self.known[key]
            self.cached.pop(key, None)
            self.users[block] += 1
            job.blocks.append(block)
            job.computed = end

    def remember(self, job: Job) -> None:
        """Let others find the blocks that a job has filled, but for those that exist already."""
        for end in range(self.size, job.computed + 1, self.size):
            key, block = tuple(job.tokens[:end]), job.blocks[end // self.size - 1]
            if key not in self.known and block not in self.keys:
                self.known[key], self.keys[block] = block, key

    def release(self, job: Job) -> None:
        """Give a job's blocks back, the last ones first: a beginning is of more use than what comes after it."""
        for block in reversed(job.blocks):
            self.users[block] -= 1
            if self.users[block]:
                continue
            if block in self.keys:
                self.cached[self.keys[block]] = block
            else:
                self.free.append(block)
        job.blocks, job.computed = [], 0
