"""A learner's parts inside the real engine: a scheduler step, a block pool, attention ... of theirs serves the model.

Every part runs beside the rule that it must keep. When it breaks it, or raises, that is noted, the engine's own part
takes over for the rest of the run, and nothing waits forever. (A part that loops forever does hang: check it first.)
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from course.grading.buttons import ServeYours
from course.grading.parts import Parts, make_scheduler_with
from course.grading.plug_in_attention import attend_with
from course.grading.plug_in_guard import FallbackGuard
from course.grading.plug_in_sampling import OwnMasks, mask_with, route_with
from course.lab.display import Html
from course.lab.lab import Lab
from course.lab.printed import render
from course.lab.run import Run
from course.lab.summary import Comparison
from course.lab.watched_engine import WatchedEngine
from course.lab.workloads import LabWorkload
from minillm import Engine, EngineConfig


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
        return WatchedEngine(config, build=self._build_with_parts)

    def _build_with_parts(self, config: EngineConfig, model: Any, clock: Any) -> Engine:
        return build_engine(config, self._parts, self.notes, model=model, clock=clock)
