"""A learner's parts inside the real engine: a scheduler step, a block pool, attention ... of theirs serves the model.

Every part runs beside the rule that it must keep. When it breaks it, or raises, that is noted, the engine's own part
takes over for the rest of the run, and nothing waits forever. (A part that loops forever does hang: check it first.)
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from course.grading.buttons import ServeYours
from course.grading.plug_in_attention import attend_with
from course.grading.plug_in_guard import FallbackGuard
from course.grading.plug_in_sampling import OwnMasks, mask_with, route_with
from course.grading.plug_in_scheduler import (
    NamedBlocks,
    OwnEviction,
    PickedVictims,
    PlannedScheduler,
    SharedPool,
    TreePrefix,
)
from course.grading.props import Holder
from course.lab.display import Html
from course.lab.lab import Lab
from course.lab.printed import render
from course.lab.run import Run
from course.lab.summary import Comparison
from course.lab.workloads import LabWorkload
from minillm import Engine, EngineConfig
from minillm.core.scheduler import Scheduler
from minillm.frontend.engine_thread import EngineThread
from minillm.policies.assemble import make_scheduler


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


def build_engine(config: EngineConfig, parts: Parts, notes: list[str], **arguments: Any) -> Engine:
    """An engine with a learner's parts in it.

    Args:
        notes: where it says what was replaced, and why.
        arguments: `model` and `clock` of Engine, or `runner` and `clock` of Engine.on_runner.
    """
    if parts.block_pool is not None:
        config = config.replace(enable_prefix_caching=False)
    if parts.matcher is not None:
        config = config.replace(async_scheduling=False)  # a mask follows known tokens
    make_engine = Engine.on_runner if "runner" in arguments else Engine
    engine = make_engine(config, make_scheduler=make_scheduler_with(parts, notes), **arguments)
    if parts.attention is not None:
        attend_with(engine.runner, parts.attention, FallbackGuard("attention", notes))
    if engine.model is not None:
        route_with(engine.model, parts.router, FallbackGuard("router", notes))
        if parts.matcher is not None:
            guard = FallbackGuard("grammar mask", notes)
            mask_with(engine.runner, OwnMasks(parts.matcher, parts.grammar, engine.model, guard))
    return engine


class OpenLab(Lab):
    """A lab whose engine takes a learner's parts: `lab.run_with("chat", block_pool=BlockPool)`. Arguments as Lab."""

    def __init__(self, **defaults: Any) -> None:
        super().__init__(**defaults)
        self._parts = Parts()
        self.notes: list[str] = []
        """What was replaced in the last run, and why."""

    def run_with(self, name: str | LabWorkload, *, seed: int = 0, **parts_and_fields: Any) -> Run:
        """A run with parts of your own, by their names in `Parts`; other arguments are EngineConfig fields."""
        own = {key: parts_and_fields.pop(key) for key in list(parts_and_fields) if hasattr(Parts, key)}
        self._parts = replace(Parts(), **own)
        self.notes.clear()
        try:
            return self.run(name, seed=seed, **parts_and_fields)
        finally:
            self._parts = Parts()
            for note in self.notes:
                print(note)

    def beside(self, ours: Run, yours: Run) -> Html:
        """The dashboard of your run, with the engine's own as the previous one."""
        pairs = list(zip(ours.outputs, yours.outputs))
        same = sum(one.token_ids == other.token_ids for one, other in pairs)
        words = f"{same} of {len(pairs)} answers are token for token those of the engine's own parts"
        state = "; ".join([words, *self.notes])
        return Html(render(Comparison(yours, ours, name="built-in"), state), state)

    def serve_yours(self, ours: Run, run: Callable[[], Run]) -> ServeYours:
        """A button for `run`, which serves with your part; its run is shown beside `ours`."""
        return ServeYours(lambda: self.beside(ours, run()).html)

    def _engine_thread(self, config: EngineConfig) -> Any:
        return EngineThread(config, build=self._build_with_parts)

    def _build_with_parts(self, config: EngineConfig, model: Any, clock: Any) -> Engine:
        return build_engine(config, self._parts, self.notes, model=model, clock=clock)
