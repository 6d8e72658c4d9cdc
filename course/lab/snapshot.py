"""One immutable look at a running engine, cheap enough to take ten times a second.

It is made between two steps; a dashboard draws it. Nothing in it is shared with the engine, so a reader can never see
half a step.
"""

from dataclasses import dataclass

from minillm.core.brief import brief
from minillm.core.request import Request
from minillm.core.scheduler import Scheduler
from minillm.core.step_log import StepRecord
from minillm.frontend.engine import Engine

PUBLISH_INTERVAL_S = 1 / 10
"""Between two of them, while steps run: a little above a dashboard's frame rate."""
FREE, CACHED, SHARED = -1, -2, -3
"""Values in EngineSnapshot.block_owners that are not a request's index."""


@dataclass(frozen=True, slots=True)
class RequestView:
    """One request, as seen at `EngineSnapshot.now`. Times in seconds of the engine's clock."""

    request_id: str
    arrival_index: int
    """0, 1, 2, ... in order of arrival: the row it is drawn in, in every picture."""
    status: str
    """waiting, running, preempted or finished"""
    finish_reason: str | None
    phase: str | None
    """The phase it is in now; None once finished."""
    borders: tuple[float, ...]
    """Six borders of the five phases (Timeline.borders); what lies ahead is put at `now`."""
    num_prompt_tokens: int
    num_cached_tokens: int
    num_computed_tokens: int
    num_output_tokens: int
    max_tokens: int
    num_preemptions: int
    deliveries: tuple[float, ...]
    lost: dict[str, float]
    text: str
    """Output so far, whole."""

    __repr__ = brief


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    """The engine between two steps."""

    now: float
    requests: tuple[RequestView, ...]
    """Requests in order of arrival: all since the engine was built, or the last core.engine.REQUEST_HISTORY."""
    steps: tuple[StepRecord, ...]
    """The most recent steps, oldest first (at most step_log.STEP_HISTORY)."""
    num_steps: int
    """Steps taken since the start, kept in `steps` or not."""
    block_owners: tuple[int, ...]
    """Per KV block: the arrival_index of the one request that holds it, or FREE, CACHED (free, but
    still holds a reusable prefix), SHARED (held by several)."""
    block_size: int
    prefix_queries: int
    """Prompt tokens looked up in the prefix cache so far."""
    prefix_hits: int
    """Prompt tokens found there."""
    num_preemptions: int
    num_recomputed_tokens: int
    """Tokens computed again because their blocks had been taken away."""

    __repr__ = brief


def take_snapshot(engine: Engine, finished_views: dict[Request, RequestView]) -> EngineSnapshot:
    """Look at the engine. Call it from the thread that steps it.

    Args:
        finished_views: a memo that the caller keeps between calls: a finished request is looked at again only when
            its client has taken the last byte (Timeline.accept), and forgotten when it leaves the engine's history.
    """
    now = engine.clock.now()
    views = []
    for request in engine.recent_requests:
        view = finished_views.get(request)
        if view is None or view.borders[-1] != request.timeline.finished:
            view = view_request(request, now)
            if request.finish_reason is not None:
                finished_views[request] = view
        views.append(view)
    for gone in finished_views.keys() - set(engine.recent_requests):
        del finished_views[gone]  # out of the engine's history, so out of the memo
    scheduler = engine.scheduler
    return EngineSnapshot(
        now=now,
        requests=tuple(views),
        steps=tuple(engine.steps),
        num_steps=scheduler.num_steps,
        block_owners=_block_owners(scheduler),
        block_size=scheduler.kv.block_size,
        prefix_queries=scheduler.prefix_queries,
        prefix_hits=scheduler.prefix_hits,
        num_preemptions=scheduler.num_preemptions,
        num_recomputed_tokens=engine.core.log.num_recomputed_tokens,
    )


def view_request(request: Request, now: float) -> RequestView:
    """A request as it stands `now`, as plain values that don't change any more."""
    timeline = request.timeline
    return RequestView(
        request_id=request.request_id,
        arrival_index=request.arrival_index,
        status=request.status.value,
        finish_reason=request.finish_reason,
        phase=timeline.current_phase,
        borders=tuple(timeline.borders(now)),
        num_prompt_tokens=request.num_prompt_tokens,
        num_cached_tokens=request.num_cached_tokens,
        num_computed_tokens=request.num_computed_tokens,
        num_output_tokens=request.num_output_tokens,
        max_tokens=request.params.max_tokens,
        num_preemptions=request.num_preemptions,
        deliveries=tuple(timeline.deliveries),
        lost=dict(timeline.lost),
        text=request.text,
    )


def _block_owners(scheduler: Scheduler) -> tuple[int, ...]:
    owners = [FREE if block_hash is None else CACHED for block_hash in scheduler.kv.pool.hashes]
    for request in scheduler.running:
        for block_id in scheduler.kv.held_blocks(request).values():
            owners[block_id] = request.arrival_index if owners[block_id] < 0 and owners[block_id] != SHARED else SHARED
    return tuple(owners)
