"""One load test from beginning to end: look at the endpoint, warm it up, play, and gather what was seen."""

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tqdm import tqdm

from course.loadgen.client import Client, ClientExchange, Endpoint, Failure
from course.loadgen.errors import EndpointError
from course.loadgen.observation import Observation, observe
from course.loadgen.planned_requests import PlannedRequest
from course.loadgen.play import Play
from course.loadgen.server_metrics import Histogram, Scrape, scrape
from course.loadgen.validity import ClientLoad
from minillm.core.brief import brief
from minillm.observe.percentiles import percentile

TICK_S = 0.01
"""How often the event loop's lateness is looked at."""
SETTLE_S = 0.3
"""A server counts a request as finished a moment after its last byte: wait before reading /metrics again."""


@dataclass(frozen=True, slots=True)
class LoadSettings:
    """How a test is run."""

    max_in_flight: int | None = None
    """None = open loop."""
    timeout_s: float | None = 600.0
    """For a whole answer, seconds."""
    warm_up: int = 1
    """Requests before the test, of which nothing is kept."""


@dataclass(frozen=True, slots=True)
class LoadTest:
    """What came of it."""

    endpoint: Endpoint
    observations: list[Observation]
    client: ClientLoad
    before: Scrape | None
    after: Scrape | None
    was_cut_off: bool

    __repr__ = brief

    @property
    def server(self) -> dict[str, Histogram]:
        """The server's own histograms of the time of the test, by what they measure; empty if it shows none."""
        return self.after.since(self.before) if self.before and self.after else {}


async def find_model(client: Client) -> str:
    """The first model that the endpoint serves.

    Raises:
        EndpointError: it lists none.
    """
    status, text = await client.get("/v1/models")
    try:
        return json.loads(text)["data"][0]["id"]
    except (ValueError, LookupError, TypeError):
        raise EndpointError(
            f"{client.endpoint.url}/v1/models ({status}) lists no model: say which with --model. It says {text[:200]!r}"
        ) from None


async def run_load_test(
    endpoint: Endpoint, requests: Sequence[PlannedRequest], settings: LoadSettings, show_progress: bool = False
) -> LoadTest:
    """Play `requests` to the endpoint. With an empty model name, the first that it serves.

    Raises:
        EndpointError: it cannot answer even one request.
    """
    async with Client(endpoint, settings.timeout_s) as client:
        if not endpoint.model:
            client.endpoint = replace(endpoint, model=await find_model(client))
        await _warm_up(client, requests, settings.warm_up)
        before = await scrape(client)
        with tqdm(total=len(requests), unit="req", disable=not show_progress) as bar:
            play = Play(requests, client, settings.max_in_flight, on_end=lambda _: bar.update())
            load = await _watched(play)
        if before is not None:
            await asyncio.sleep(SETTLE_S)
        after = await scrape(client) if before is not None else None
        observations = [observe(exchange, play.start) for exchange in play.exchanges]
        return LoadTest(client.endpoint, observations, load, before, after, play.was_cut_off)


async def _warm_up(client: Client, requests: Sequence[PlannedRequest], count: int) -> None:
    """Send a few requests first: the cold start is none of the test's business, and a wrong URL shows at once.

    Raises:
        EndpointError: the first one is not answered.
    """
    first = next((r for r in requests if r.due is not None), None)
    if first is None or not count:
        return
    warm = [PlannedRequest(i, f"Warm-up number {i}.{first.prompt}", first.max_tokens) for i in range(count)]
    answer = await _one(client, warm[0])
    if answer.failure is Failure.REFUSED and "stream_options" in answer.message:
        client.endpoint = replace(client.endpoint, include_usage=False)  # it does not know how to count
        answer = await _one(client, warm[0])
    if answer.failure is not None:
        raise EndpointError(
            f"{client.endpoint.url} does not answer a request for model {client.endpoint.model!r}: "
            f"{answer.failure}: {answer.message}"
        )
    await Play(warm[1:], client).run()


async def _one(client: Client, request: PlannedRequest) -> ClientExchange:
    play = Play([request], client)
    await play.run()
    return play.exchanges[0]


async def _watched(play: Play) -> ClientLoad:
    """Play, and watch how busy this process is with it."""
    lags: list[float] = []

    async def look() -> None:
        while True:
            due = time.perf_counter() + TICK_S
            await asyncio.sleep(TICK_S)
            lags.append(max(time.perf_counter() - due, 0.0))

    watcher = asyncio.create_task(look())
    wall, cpu = time.perf_counter(), time.process_time()
    try:
        await play.run()
    except asyncio.CancelledError:  # Ctrl-C: what is there so far will be reported
        task = asyncio.current_task()
        assert task is not None
        task.uncancel()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    watcher.cancel()
    lags = lags or [0.0]
    return ClientLoad(cpu / wall if wall else 0.0, percentile(lags, 50), percentile(lags, 99))
