"""A lab bench whose engine is a server of yours: the same workloads, the same pictures, seen from outside.

lab = RemoteLab("http://10.0.0.5:8000")     # vLLM, SGLang, minillm serve: anything with OpenAI's API
RemoteDashboard(lab, "chat")                # remote_dashboard.py
"""

import asyncio
import contextlib
import os
import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from course.lab.growing_answer import GrowingAnswer
from course.lab.remote_phases import ALL_PREFILL, TOLD, Split, borders_of, inferred_phases, split_from_metrics
from course.lab.run import RemoteSource, Row, Run
from course.lab.scale import scale_of
from course.lab.snapshot import EngineSnapshot, RequestView
from course.lab.workloads import LabWorkload, workload
from course.loadgen.client import Api, Client, Endpoint, now
from course.loadgen.load_test import find_model
from course.loadgen.observation import CUT_OFF, NEVER_SENT, Observation, observe
from course.loadgen.planned_requests import PlannedRequest
from course.loadgen.play import Play
from course.loadgen.server_metrics import Scrape, scrape
from minillm import EngineConfig
from minillm.core.errors import ConfigError

TIMEOUT_S = 600.0
"""For a whole answer."""
LOOK_S = 0.5
"""Between two readings of the server's /metrics."""
SETTLE_S = 0.3
"""After the last answer, until a server has counted it."""


class RemoteLab:
    """Plays the lab's workloads to a server.

    Args:
        url: without /v1.
        model: None = the first that it lists.
        short: play small workloads; None = the environment variable MINILLM_SHORT is 1.
        extra: fields of every request's body; None = ignore_eos, which vLLM, SGLang and minillm know.
        api_key_env: the environment variable with the key, where one is needed.
        timeout_s: for a whole answer; a request that takes longer has failed.
    """

    def __init__(
        self,
        url: str,
        model: str | None = None,
        api: Api | str = Api.CHAT,
        *,
        extra: dict[str, Any] | None = None,
        short: bool | None = None,
        api_key_env: str = "OPENAI_API_KEY",
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self.timeout_s = timeout_s
        self.scale = scale_of(short)
        self._session: RemoteSession | None = None
        self._turn = threading.Lock()
        extra = {"ignore_eos": True} if extra is None else extra
        base = url.rstrip("/").removesuffix("/v1")
        self.endpoint = Endpoint(base, Api(api), model or "", extra, os.environ.get(api_key_env))

    def config(self, **fields: Any) -> EngineConfig:
        """Nothing can be set from here.

        Raises:
            ConfigError: something was.
        """
        if fields:
            raise ConfigError(f"{', '.join(fields)}: a remote server is configured where it runs, not from the lab")
        return EngineConfig()

    def workload(self, name: str | LabWorkload, seed: int = 0) -> LabWorkload:
        return name if isinstance(name, LabWorkload) else workload(name, seed, self.scale)

    def run(self, name: str | LabWorkload, *, seed: int = 0) -> Run:
        """Play a workload, wait for its end, and return what happened.

        Raises:
            EndpointError: nothing answers there.
        """
        session = self.start(self.workload(name, seed), self.config())
        try:
            session.wait()
        except KeyboardInterrupt:  # the square button above the notebook
            session.stop()
            session.join()
            raise
        return session.run()

    def start(self, traffic: LabWorkload, config: EngineConfig) -> "RemoteSession":
        """Begin a run. A second one waits until the first has ended: /metrics are of all that a server did.

        Raises:
            EndpointError: nothing answers there.
        """
        with self._turn:
            if self._session is not None:
                self._session.join()
            session = self._session_of(traffic, config)
            session.start()
            self._session = session
            return session

    def _session_of(self, traffic: LabWorkload, config: EngineConfig) -> "RemoteSession":
        """What plays one run."""
        return RemoteSession(self.endpoint, config, traffic, self.timeout_s)


class RemoteSession:
    """One run in progress: an event loop in a thread of its own. stop(), wait() and run() from any thread."""

    def __init__(self, endpoint: Endpoint, config: EngineConfig, workload: LabWorkload, timeout_s: float) -> None:
        self.workload = workload
        self._timeout_s = timeout_s
        self._endpoint = endpoint
        self._config = config
        self._play: Play | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._before: Scrape | None = None
        self._after: Scrape | None = None
        self._over: dict[int, Observation] = {}
        """Requests that have ended are looked at once."""
        self._open: dict[int, GrowingAnswer] = {}
        """Requests that have not: each look reads only what is new of them."""
        self._looking = threading.Lock()
        self._stopped = False
        self._error: BaseException | None = None
        self._begun, self._done = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._work, name="remote client", daemon=True)

    def start(self) -> None:
        """Returns when the first request may go out. Raises what kept it from that."""
        self._thread.start()
        self._begun.wait()
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Send nothing more, and hang up on what is open."""
        self._stopped = True
        if self._play is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the run has just ended
                self._loop.call_soon_threadsafe(self._play.stop)

    def wait(self, timeout: float | None = None) -> bool:
        """True when the run has ended within `timeout` seconds. Raises what ended it before its time."""
        ended = self._done.wait(timeout)
        if self._error is not None:
            raise self._error
        return ended

    def join(self) -> None:
        """Until it has ended, however it did."""
        self._done.wait()

    def run(self) -> Run:
        """What has happened so far."""
        done = self._done.is_set()
        play, moment = self._play, now()
        with self._looking:
            observations = [self._observe(index, play.start) for index in range(len(play.exchanges))]
        told = not inferred_phases(observations)
        split = self._split(observations)
        rows = tuple(self._row(o, split, moment - play.start, play.start, done) for o in observations)
        scraped = self._after or self._before
        counted = self._after.counted_since(self._before) if self._before and self._after else {}
        snapshot = _snapshot(moment, tuple(row.view for row in rows if row.view is not None), counted, scraped)
        return Run(
            workload=self.workload.name,
            config=self._config,
            rows=rows,
            steps=(),
            snapshot=snapshot,
            fullest=snapshot,
            outputs=tuple(o.as_request_record() for o in observations if o.ended is not None and o.sent is not None),
            start=play.start,
            done=done,
            stopped=self._stopped,
            remote=RemoteSource(
                server=scraped.server if scraped else "unknown",
                inferred=inferred_phases(observations),
                how=TOLD if told else split.how,
                gauges=scraped.gauges if scraped else {},
            ),
        )

    # ---------------------------------------------------------------- in the client's thread

    def _work(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:  # raised again where start() waits
            self._error = error
        finally:
            self._begun.set()
            self._done.set()

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        async with Client(self._endpoint, self._timeout_s) as client:
            if not self._endpoint.model:
                client.endpoint = replace(self._endpoint, model=await find_model(client))
            self._before = await scrape(client)
            asks = [PlannedRequest(i, a.prompt, a.max_tokens, a.offset) for i, a in enumerate(self.workload.arrivals)]
            self._play = Play(asks, client, self.workload.max_in_flight)
            watcher = asyncio.create_task(self._watch(client))
            playing = asyncio.create_task(self._play.run())
            await asyncio.sleep(0)  # lets the play begin: its start is known from here
            self._begun.set()
            await playing
            watcher.cancel()
            if self._before is not None:
                await asyncio.sleep(SETTLE_S)
                self._after = await scrape(client)

    async def _watch(self, client: Client) -> None:
        """Read /metrics now and then, where there is one."""
        while self._before is not None:
            await asyncio.sleep(LOOK_S)
            self._after = await scrape(client) or self._after

    # ---------------------------------------------------------------- from what was seen to a row

    def _observe(self, index: int, start: float) -> Observation:
        if index not in self._over:
            exchange = self._play.exchanges[index]
            if not exchange.is_over:
                growing = self._open.setdefault(index, GrowingAnswer())
                seen = observe(exchange, start, answer=growing.read(exchange.reads))
                if not exchange.is_over:  # nor has it meanwhile, in the client's thread
                    return seen
            self._open.pop(index, None)
            self._over[index] = observe(exchange, start)
        return self._over[index]

    def _split(self, observations: list[Observation]) -> Split:
        if self._before is None or self._after is None:
            return ALL_PREFILL
        ttfts = [o.deliveries[0] - o.sent for o in observations if o.completed]
        return split_from_metrics(self._after.since(self._before), ttfts)

    def _row(self, o: Observation, split: Split, moment: float, start: float, done: bool) -> Row:
        failed = not o.completed and o.outcome not in (CUT_OFF, NEVER_SENT)
        refused = (o.message or o.outcome)[:120] if failed and not o.deliveries else None
        return Row(
            index=o.index,
            request_id=f"{self.workload.name}-{o.index}",
            due=self.workload.arrivals[o.index].offset,
            sent=o.sent,
            refused=refused,
            view=None if o.sent is None or refused else self._view(o, split, moment, start, done),
            texts=(),
        )

    def _view(self, o: Observation, split: Split, moment: float, start: float, done: bool) -> RequestView:
        is_open = o.outcome == CUT_OFF and not done
        ending = o.finish_reason or "stop" if o.completed else "abort" if o.outcome == CUT_OFF else "error"
        borders = borders_of(o, split, moment)
        return RequestView(
            request_id=f"{self.workload.name}-{o.index}",
            arrival_index=o.index,
            status="running" if is_open else "finished",
            finish_reason=None if is_open else ending,
            phase=None if not is_open else "decode" if o.deliveries else "queue",
            borders=tuple(start + border for border in borders),
            num_prompt_tokens=o.prompt_tokens or 0,
            num_cached_tokens=o.cached_tokens or 0,
            num_computed_tokens=0,
            num_output_tokens=o.num_tokens,
            max_tokens=o.max_tokens,
            num_preemptions=0,
            deliveries=tuple(start + stamp for stamp in o.deliveries),
            lost={},
            text="",
        )


def _snapshot(
    moment: float, views: tuple[RequestView, ...], counted: Mapping[str, float], scraped: Scrape | None
) -> EngineSnapshot:
    """A snapshot of an engine seen only from outside: no steps, no blocks, and what its /metrics count."""
    return EngineSnapshot(
        now=moment,
        requests=views,
        steps=(),
        num_steps=0,
        block_owners=(),
        block_size=scraped.block_size if scraped else 0,
        prefix_queries=round(counted.get("prefix_queries", 0)),
        prefix_hits=round(counted.get("prefix_hits", 0)),
        num_preemptions=round(counted.get("preemptions", 0)),
        num_recomputed_tokens=0,
    )
