"""An engine in a thread of its own that can be looked at while it runs: what a dashboard shows."""

from typing import Any

from course.lab.snapshot import PUBLISH_INTERVAL_S, EngineSnapshot, RequestView, take_snapshot
from minillm.core.request import Request
from minillm.frontend.engine import Engine
from minillm.frontend.engine_thread import EngineThread


class WatchedEngine(EngineThread):
    """Publishes a snapshot when the engine has nothing to do, and a few times a second while it is looked at.

    Arguments and errors are EngineThread's.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        self._views: dict[Request, RequestView] = {}
        self._is_watched = False
        """The last snapshot has been looked at."""
        super().__init__(*args, **options)

    def snapshot(self) -> EngineSnapshot:
        """The last published look at the engine. Never waits. While steps run, the first look may be an old one; it has
        the next ones published."""
        self._is_watched = True
        return self._snapshot

    def look_at(self, engine: Engine, *, is_idle: bool) -> None:
        if is_idle or (self._is_watched and self.clock.now() - self._published >= PUBLISH_INTERVAL_S):
            self._is_watched = False
            self._snapshot = take_snapshot(engine, self._views)
            self._published = self.clock.now()
