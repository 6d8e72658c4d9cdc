"""What a page is told of an engine in its tab: requests with the borders of their phases, and steps."""

from course.lab.snapshot import view_request
from course.lab.view.trace import DIGITS, Told
from minillm.core.step_log import StepRecord
from minillm.core.timeline import Timeline
from minillm.frontend.engine import Engine
from minillm.frontend.outputs import RequestOutput


class Watched:
    """One engine, whose requests have numbers as ids.

    Args:
        since: the page's moment at which the engine's clock stood at 0, seconds.
    """

    def __init__(self, engine: Engine, since: float) -> None:
        self.engine, self.since = engine, since
        self._next_step = 0

    @property
    def now(self) -> float:
        return self.since + self.engine.clock.now()

    def ended(self, output: RequestOutput) -> Told:
        """A request whose last byte has been taken."""
        told = self._told(output.request_id, output.timeline, output.timeline.borders())
        return {**told, "reason": output.completions[0].finish_reason or ""}

    def in_flight(self) -> list[Told]:
        """Requests that it has, as of now; phases that aren't over end there."""
        now = self.engine.clock.now()
        found = []
        for request in self.engine.core.requests.values():
            view = view_request(request, now)
            known = 1 + ("queue", "prefill", "first_token", "decode").index(view.phase or "queue")
            told = self._told(view.request_id, request.timeline, list(view.borders[:known]))
            found.append({**told, "cached": view.num_cached_tokens, "prompt": view.num_prompt_tokens})
        return found

    def _told(self, name: str, timeline: Timeline, borders: list[float]) -> Told:
        return {
            "i": int(name),
            "borders": [self.moment(border) for border in borders],
            "tokens": [self.moment(each) for each in timeline.deliveries],
        }

    def new_steps(self) -> list[Told]:
        """Steps since the last call."""
        fresh = [step for step in self.engine.steps if step.step_id >= self._next_step]
        self._next_step = fresh[-1].step_id + 1 if fresh else self._next_step
        return [self._step(step) for step in fresh]

    def _step(self, step: StepRecord) -> Told:
        return {
            "start": self.moment(step.start),
            "end": self.moment(step.end),
            "running": step.num_running,
            "waiting": step.num_waiting,
            "shares": [[int(share.request_id), share.num_tokens, int(share.is_prefill)] for share in step.shares],
            "preempted": [int(name) for name in step.preempted],
        }

    def moment(self, seconds: float) -> float:
        """The page's, of the engine's clock."""
        return round(self.since + seconds, DIGITS)
