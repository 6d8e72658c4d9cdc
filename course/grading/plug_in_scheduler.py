"""A learner's scheduler, choice of victims, block pool, block names and eviction order, through the engine's seams."""

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any

from course.grading.blame import shown
from course.grading.plug_in_guard import FallbackGuard
from course.grading.props import Holder
from course.grading.props import StepRequest as Seen
from minillm.core.batch import ScheduledBatch, Step
from minillm.core.block_manager import BlockManager
from minillm.core.block_pool import BlockPool, FreeBlocks, extend_hashes
from minillm.core.request import Request
from minillm.core.scheduler import Scheduler

MOST_PREEMPTIONS = 50
"""For each request that arrived. Who chooses victims so that more are needed keeps two from ever getting on."""


class PlannedScheduler(Scheduler):
    """Asks a learner's scheduler for a plan before each step; blocks, order and limits stay the engine's."""

    def __init__(self, plan_step: Callable[..., Any], guard: FallbackGuard, like: Scheduler) -> None:
        super().__init__(like.config, like.kv, queue=like.waiting, preemption=like.preemption, drafts=like.drafts)
        self._plan_step, self._guard = plan_step, guard
        self._plan: dict[str, int] | None = None
        """Tokens by request id; None = no plan, each gets what the engine gives it."""

    def schedule(self, now: float) -> ScheduledBatch:
        self.kv.pool.expire(now)  # before the plan asks what is cached
        self._plan = self._guard.call(self._make_plan, lambda: None)
        batch = super().schedule(now)
        idle = not (batch.requests or batch.preempted or batch.timed_out)
        if idle and self._plan is not None and (self.running or self.waiting):
            self._guard.distrust(f"step {self.num_steps}: no request got a token, and there is work")
            self._plan = None
            return super().schedule(now)
        return batch

    def grant(self, request: Request, num_missing: int, step: Step) -> int:
        most = super().grant(request, num_missing, step)
        return most if self._plan is None else min(self._plan.get(request.request_id, 0), most)

    def _make_plan(self) -> dict[str, int]:
        running = [Seen(r.request_id, r.num_tokens, r.num_computed_tokens) for r in self.running]
        waiting = [Seen(r.request_id, r.num_tokens, self._computed(r)) for r in self.waiting]
        budget = self.config.max_num_batched_tokens
        found = dict(self._plan_step(running, waiting, budget, self.config.max_num_seqs))
        plan = {name: int(tokens) for name, tokens in found.items()}
        unknown = plan.keys() - {seen.request_id for seen in [*running, *waiting]}
        if unknown:
            raise ValueError(f"it names {shown(unknown.pop())}, which is no request")
        if sum(plan.values()) > budget:
            raise ValueError(f"it spends {sum(plan.values())} tokens, and the budget is {budget}")
        return plan

    def _computed(self, request: Request) -> int:
        return request.num_computed_tokens or len(self.kv.find_prefix(request)) * self.kv.block_size


class PickedVictims:
    """A preemption policy: a learner picks the victim; what becomes of its KV is the inner policy's affair.

    Never one of this step, as under fcfs; with priorities the engine itself may take one out of it again.
    """

    def __init__(self, pick_victim: Callable[..., Any], guard: FallbackGuard, scheduler: Scheduler) -> None:
        self._pick_victim, self._guard, self._scheduler = pick_victim, guard, scheduler
        inner = scheduler.preemption
        self._choose = inner.choose_victim
        self.rank, self.save, self.restore, self.forget = inner.rank, inner.save, inner.restore, inner.forget

    def choose_victim(self, needy: Request, running: Sequence[Request], scheduled: Mapping[Request, object]) -> Request:
        ours = self._choose(needy, running, scheduled)
        return self._guard.call(lambda: self._theirs(running, scheduled), lambda: ours)

    def _theirs(self, running: Sequence[Request], scheduled: Mapping[Request, object]) -> Request:
        preemptions, arrivals = self._scheduler.num_preemptions, self._scheduler.num_arrivals
        if preemptions > MOST_PREEMPTIONS * arrivals:
            raise ValueError(f"{preemptions} preemptions: requests take each other's blocks and do not get on")
        planned = {request.request_id for request in scheduled}
        holders = [
            Holder(
                request.request_id,
                request.arrival_index,
                request.num_tokens,
                request.num_computed_tokens,
                list(self._scheduler.kv.held_blocks(request).values()),
            )
            for request in running
        ]
        found = getattr(self._pick_victim(holders, set(planned)), "request_id", None)
        if found in planned:
            raise ValueError(f"it picked {found}, which is in this step already")
        candidates = {request.request_id: request for request in running}
        if found not in candidates:
            raise ValueError(f"it picked {shown(found)}, which is no running request")
        return candidates[found]


class SharedPool(BlockPool):
    """A learner's pool hands out the blocks; the engine keeps its own books beside it, and compares."""

    def __init__(self, num_blocks: int, theirs: Any, guard: FallbackGuard) -> None:
        super().__init__(num_blocks)
        self.free: dict[int, None] = dict.fromkeys(range(num_blocks))
        self._theirs, self._guard = theirs, guard

    def allocate(self, count: int) -> list[int]:
        if count > len(self.free):
            raise IndexError(f"{count} blocks wanted, {len(self.free)} free")
        taken = self._guard.call(lambda: self._from_theirs(count), lambda: list(islice(self.free, count)))
        for block_id in taken:
            del self.free[block_id]
            self.ref_counts[block_id] = 1
        return taken

    def _from_theirs(self, count: int) -> list[int]:
        taken = [int(block_id) for block_id in self._theirs.allocate(count)]
        if len(set(taken)) != count:
            raise ValueError(f"allocate({count}) gave {shown(taken)}")
        if held := [block_id for block_id in taken if block_id not in self.free]:
            raise ValueError(f"allocate({count}) gave block {held[0]}, which a request holds")
        return taken

    def release(self, block_ids: Sequence[int]) -> None:
        for block_id in block_ids:
            self.ref_counts[block_id] -= 1
            if self.ref_counts[block_id] == 0:
                self.free[block_id] = None
        self._guard.call(lambda: self._release_theirs(block_ids), lambda: None)

    def _release_theirs(self, block_ids: Sequence[int]) -> None:
        self._theirs.release(list(block_ids))
        if self._theirs.num_free != len(self.free):
            raise ValueError(f"after release, num_free is {shown(self._theirs.num_free)}, not {len(self.free)}")


class NamedBlocks:
    """Blocks are registered and found under a learner's names. The engine's own say whether these mean the same."""

    def __init__(self, block_names: Callable[..., Sequence[Any]], guard: FallbackGuard) -> None:
        self._block_names, self._guard = block_names, guard
        self._theirs: dict[Request, list[Any]] = {}
        self._meanings: dict[Any, bytes] = {}
        self._names: dict[bytes, Any] = {}

    def hash_blocks(self, request: Request, block_size: int) -> list[Any]:
        ours = extend_hashes(request, block_size)
        return self._guard.call(lambda: self._named(request, ours, block_size), lambda: ours) if ours else ours

    def _named(self, request: Request, ours: list[bytes], block_size: int) -> list[Any]:
        if len(self._theirs.get(request, ())) < len(ours):
            token_ids = request.token_ids(0, len(ours) * block_size)
            found = list(self._block_names(token_ids, block_size, ()))
            if len(found) != len(ours):
                raise ValueError(f"{len(found)} names for {len(ours)} full blocks")
            for name, own in zip(found, ours):
                if self._meanings.setdefault(name, own) != own:
                    raise ValueError(f"two blocks have the name {shown(name)}, and not all before them is the same")
                if self._names.setdefault(own, name) != name:
                    raise ValueError(f"a block was named {shown(self._names[own])} before, and now {shown(name)}")
            self._theirs[request] = found
        return self._theirs[request]


class OwnEviction(FreeBlocks):
    """A learner decides which free block that caches something goes first; the engine keeps its own order beside it."""

    def __init__(self, num_blocks: int, theirs: Any, guard: FallbackGuard) -> None:
        super().__init__(num_blocks)
        self._theirs, self._guard = theirs, guard

    def add(self, block_ids: Sequence[int], hashes: Sequence[bytes | None]) -> None:
        super().add(block_ids, hashes)
        cached = [block_id for block_id in reversed(block_ids) if hashes[block_id] is not None]  # as in the table
        if cached:
            self._guard.call(lambda: self._theirs.release(cached), lambda: None)

    def take(self, count: int) -> tuple[list[int], list[int]]:
        plain, _ = super().take(min(count, len(self.plain)))
        missing = count - len(plain)
        if not missing:
            return plain, []
        evicted = self._guard.call(lambda: self._evict(missing), lambda: list(islice(self.cached, missing)))
        for block_id in evicted:
            super().take_cached(block_id)
        return plain, evicted

    def _evict(self, count: int) -> list[int]:
        found = [int(block_id) for block_id in self._theirs.evict(count)]
        if len(set(found)) != count:
            raise ValueError(f"evict({count}) gave {shown(found)}")
        if wrong := [block_id for block_id in found if block_id not in self.cached]:
            raise ValueError(f"evict({count}) gave block {wrong[0]}, which is in use")
        return found

    def take_cached(self, block_id: int) -> None:
        super().take_cached(block_id)
        self._guard.call(lambda: self._theirs.revive(block_id), lambda: None)


class TreePrefix:
    """The engine's cached blocks, as far as a learner's tree knows their tokens; the rest is computed again."""

    def __init__(self, theirs: Any, guard: FallbackGuard, kv: BlockManager) -> None:
        self._theirs, self._guard, self._kv = theirs, guard, kv
        self._find, self._free = kv.find_prefix, kv.free

    def find_prefix(self, request: Request) -> list[int]:
        ours = self._find(request)
        return self._guard.call(lambda: ours[: self._known(request) // self._kv.block_size], lambda: ours)

    def free(self, request: Request) -> None:
        self._free(request)
        self._guard.call(lambda: self._theirs.insert(request.token_ids(0, request.num_known_tokens)), lambda: None)

    def _known(self, request: Request) -> int:
        token_ids = request.token_ids(0, request.num_known_tokens)
        found = int(self._theirs.match(list(token_ids)))
        self._theirs.insert(list(token_ids))
        if not 0 <= found <= len(token_ids):
            raise ValueError(f"match gave {found} for {len(token_ids)} tokens")
        if self._theirs.match(list(token_ids)) != len(token_ids):
            raise ValueError(f"{len(token_ids)} tokens were inserted, and match does not find them all")
        return found
