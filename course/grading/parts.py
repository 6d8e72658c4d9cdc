"""Which parts of the engine a learner's own can stand for, and a scheduler with them in it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from course.grading.plug_in_guard import FallbackGuard
from course.grading.plug_in_scheduler import (
    NamedBlocks,
    OwnEviction,
    PickedVictims,
    PlannedScheduler,
    SharedPool,
    TreePrefix,
)
from course.grading.props import Holder
from minillm.core.scheduler import Scheduler
from minillm.policies.assemble import make_scheduler
from minillm.policies.config import EngineConfig


@dataclass(frozen=True)
class Parts:
    """A learner's parts; None = the engine's own. The exercises say what each is called with."""

    scheduler_step: Callable[..., Any] | None = None
    """(running, waiting, token_budget, max_num_seqs) -> tokens by request id; exercise continuous-batching-step"""
    pick_victim: Callable[[list[Holder], set[str]], Any] | None = None
    """(running, ids of those in this step already) -> the request to preempt; exercise preemption"""
    block_pool: Callable[[int], Any] | None = None
    """A class; exercise block-pool. Prefix caching is off with it."""
    attention: Callable[..., Any] | None = None
    """In NumPy; exercise paged-attention. Slow: give it short prompts."""
    block_names: Callable[[list[int], int, tuple[str, ...]], Sequence[Any]] | None = None
    """(token ids, block size, extra keys) -> a name for each full block; exercise prefix-hash-chain"""
    eviction_order: Callable[[], Any] | None = None
    """A class; exercise lru-eviction. Not together with a block pool."""
    prefix_tree: Callable[[], Any] | None = None
    """A class; exercise radix-tree. It says how far the engine may use what it has cached."""
    router: Callable[..., Any] | None = None
    """(logits, k, normalize) -> experts, shares; exercise expert-routing. For a mixture of experts."""
    matcher: Callable[..., Any] | None = None
    """A class; exercise grammar-mask. Every answer follows `grammar`."""
    grammar: Any = None


def make_scheduler_with(parts: Parts, notes: list[str]) -> Callable[..., Scheduler]:
    """Like policies.assemble.make_scheduler, with a learner's parts in it."""

    def make(config: EngineConfig, *, num_kv_blocks: int, **sizes: Any) -> Scheduler:
        scheduler = make_scheduler(config, num_kv_blocks=num_kv_blocks, **sizes)
        kv = scheduler.kv
        if parts.block_names is not None:
            kv.hash_blocks = NamedBlocks(parts.block_names, FallbackGuard("block names", notes)).hash_blocks
        if parts.block_pool is not None:
            guard = FallbackGuard("block pool", notes)
            theirs = guard.call(lambda: parts.block_pool(num_kv_blocks), lambda: None)
            kv.pool = SharedPool(num_kv_blocks, theirs, guard)
        elif parts.eviction_order is not None:
            guard = FallbackGuard("eviction order", notes)
            kv.pool.free = OwnEviction(num_kv_blocks, guard.call(parts.eviction_order, lambda: None), guard)
        if parts.prefix_tree is not None:
            guard = FallbackGuard("prefix tree", notes)
            tree = TreePrefix(guard.call(parts.prefix_tree, lambda: None), guard, kv)
            kv.find_prefix, kv.free = tree.find_prefix, tree.free  # type: ignore[method-assign]
        if parts.scheduler_step is not None:
            guard = FallbackGuard("scheduler step", notes)
            scheduler = PlannedScheduler(parts.scheduler_step, guard, scheduler)
        if parts.pick_victim is not None:
            guard = FallbackGuard("choice of a victim", notes)
            scheduler.preemption = PickedVictims(parts.pick_victim, guard, scheduler)
        return scheduler

    return make
