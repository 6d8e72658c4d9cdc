"""A simulated fleet: clients, a network, a service, replicas. Each replica is an unchanged Engine.

    clients -> network -> admission -> router -> replica (Engine on its own VirtualClock)
       ^                                                |
       +------------- network, proxy <------------------+

One event queue holds everything that will happen, in order of time (a discrete-event simulation). Nothing in
it knows how a step is priced: that is the engine factory's business.

    workload = make_workload(AZURE_CHAT, Poisson(rate=20), num_requests=1000)
    run = simulate(workload, ClusterConfig(replicas=4), Deployment.of("llama-3.1-8b", "h100-sxm").engine)
    print(run.summary(SLO(ttft=0.5, tpot=0.05)))

Not modelled: replicas that crash, the gateway's own CPU beyond `Network.ingress_s`, and the memory in which a
prefill replica keeps a KV cache until it has been sent.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

from pydantic import Field, model_validator

from course.simulator.cluster.clients import ClientConfig, Clients
from course.simulator.cluster.events import EventQueue, rare_collections
from course.simulator.cluster.jobs import Attempt
from course.simulator.cluster.network import Network, Wire
from course.simulator.cluster.paths import (
    Degrading,
    Disaggregation,
    ModelRouting,
    Path,
    SmallUnderLoad,
    TwoModels,
    TwoPools,
)
from course.simulator.cluster.pool import Autoscaler, Autoscaling, Pool, Shedding
from course.simulator.cluster.record import ClientRecord
from course.simulator.cluster.replica import EngineFactory, Intake
from course.simulator.cluster.routers import RouterConfig, make_router
from course.simulator.cluster.run import FleetRun, ReplicaReport, Sample
from course.simulator.cluster.tiers import TierConfig
from course.simulator.errors import WorkloadError
from course.simulator.workload.requests import Workload
from course.simulator.workload.streams import Streams, WorkloadModel
from minillm.core.request import Request
from minillm.core.timeline import VirtualClock
from minillm.frontend.engine import Engine


class ClusterConfig(WorkloadModel):
    """A fleet. Everything but the replicas is off by default."""

    replicas: int = Field(1, ge=0, description="of the main pool, at the start; warm")
    router: RouterConfig = Field(RouterConfig(), description="who gets which request, in every pool")
    clients: ClientConfig = Field(ClientConfig(), description="open or closed loop, patience, retries")
    network: Network = Field(Network(), description="distance, ingress, buffering proxy")
    shedding: Shedding = Field(Shedding(), description="what the service refuses")
    intake: Intake = Field(Intake(), description="when a replica that is busy takes requests in")
    autoscaling: Autoscaling | None = Field(None, description="of the main pool; None = its replicas stay")
    cold_start_s: float = Field(0.0, ge=0, description="from ordering a replica to its first request, seconds")
    warm_up_s: float = Field(0.0, ge=0, description="what a new replica still does at its first request, seconds")
    model_routing: ModelRouting | None = Field(None, description="easy requests go to a pool with a small model")
    degrading: Degrading | None = Field(None, description="under load all requests go to a pool with a small model")
    small_replicas: int = Field(1, ge=1, description="of the small model, with model_routing or degrading")
    disaggregation: Disaggregation | None = Field(None, description="prefill and decode in pools of their own")
    tiers: tuple[TierConfig, ...] = Field((), description="where prompts' KV caches are kept, nearest first")
    sample_every_s: float | None = Field(1.0, gt=0, description="how often replicas are looked at; None = never")
    seed: int = Field(0, ge=0, description="of routing, misroutes, distance and jitter")

    @model_validator(mode="after")
    def _consistent(self) -> "ClusterConfig":
        if self.replicas == 0 and self.autoscaling is None:
            raise ValueError("replicas is 0 and nothing would ever start one: set autoscaling, or at least 1 replica")
        if self.autoscaling is not None and self.replicas > self.autoscaling.max_replicas:
            raise ValueError(
                f"replicas ({self.replicas}, how many there are at the start) must not exceed autoscaling.max_replicas "
                f"({self.autoscaling.max_replicas})"
            )
        if sum(way is not None for way in (self.model_routing, self.degrading, self.disaggregation)) > 1:
            raise ValueError("model_routing, degrading, disaggregation each choose a request's pool: choose one")
        if len({tier.name for tier in self.tiers}) < len(self.tiers):
            raise ValueError("two tiers have the same name: give each its own")
        return self


class Cluster:
    """Builds a fleet and plays a workload to it, once.

    Args:
        make_engine: makes an engine of the main pool on a given clock.
        make_small_engine: makes one with the small model; needed with model_routing or degrading.
        make_prefill_engine: with disaggregation, makes one of the prefill pool; None = make_engine.
        progress: told the share of requests that have ended, each time that one does.
        on_end: told each record when it has ended. What it raises ends the run.
    Raises:
        WorkloadError: a pool is configured that nothing is given to build from.
    """

    def __init__(
        self,
        workload: Workload,
        config: ClusterConfig,
        make_engine: EngineFactory,
        make_small_engine: EngineFactory | None = None,
        make_prefill_engine: EngineFactory | None = None,
        progress: Callable[[float], None] | None = None,
        on_end: Callable[[ClientRecord], None] | None = None,
    ) -> None:
        self.config = config
        self.events = EventQueue()
        self.streams = Streams(config.seed, "cluster")
        self.clients = Clients(workload, config.clients, self.events, self.streams, progress, on_end)
        self.wire = Wire(config.network, self.events, self.streams, self._accept, self.clients.receive)
        self.pools: dict[str, Pool] = {}
        self._samples: list[Sample] = []

        self._nothing_is_shared = (
            workload.shares_nothing
            and config.clients.max_attempts == 1
            and not config.tiers
            and not config.disaggregation
        )
        """No prompt begins like another, so nobody need compare them: a request can only find blocks of its own."""
        autoscaler = Autoscaler(config.autoscaling, config.replicas) if config.autoscaling else None
        # What a prefill pool has taken in is served to the end, so only that pool sheds load.
        shedding = Shedding() if config.disaggregation else config.shedding
        main = self._pool("main", make_engine, config.replicas, shedding, autoscaler)
        answer = self.wire.reply
        self._path = Path(main, answer)
        if config.model_routing is not None:
            small = self._small_pool(make_small_engine)
            self._path = TwoModels(config.model_routing, small, main, answer, self.streams)
        if config.degrading is not None:
            self._path = SmallUnderLoad(config.degrading, self._small_pool(make_small_engine), main, answer)
        if config.disaggregation is not None:
            if not all(replica.engine.config.enable_prefix_caching for replica in main.replicas):
                raise WorkloadError("disaggregation hands KV caches over through prefix caches: enable_prefix_caching")
            num_prefill = config.disaggregation.prefill_replicas
            prefill = self._pool("prefill", make_prefill_engine or make_engine, num_prefill, config.shedding)
            self._path = TwoPools(config.disaggregation, prefill, main, answer, self.events)
        self._path.makes_tokens_up = not self._nothing_is_shared

    def run(self) -> FleetRun:
        """Play the workload until every request has ended and every engine is idle."""
        self.clients.start(self.wire)
        if self.config.autoscaling is not None:
            self._repeat(self.config.autoscaling.interval_s, self.pools["main"].rescale)
        if self.config.sample_every_s is not None:
            self._repeat(self.config.sample_every_s, self._sample)
        with rare_collections():
            self.events.run()
        end = max((record.ended or 0.0 for record in self.clients.records), default=0.0)
        records, replicas = self.clients.records, [replica for pool in self.pools.values() for replica in pool.replicas]
        answered = Counter(record.replica for record in records if record.completed)
        reports = tuple(ReplicaReport.of(replica, answered[replica.name], end) for replica in replicas)
        return FleetRun(tuple(records), reports, tuple(self._samples), end, self.pools, self._path.link_busy_s)

    def _accept(self, attempt: Attempt) -> None:
        """A request has reached the service."""
        if attempt.hung_up:
            return
        if not attempt.closed:
            attempt.record.accepted = self.events.now
        self._path.start(attempt)

    def _pool(
        self,
        name: str,
        make_engine: EngineFactory,
        replicas: int,
        shedding: Shedding,
        autoscaler: Autoscaler | None = None,
    ) -> Pool:
        config, router = self.config, make_router(self.config.router, self.streams[f"router {name}"])
        starting = (config.cold_start_s, config.warm_up_s)
        is_decode = name == "main" and config.disaggregation is not None  # it is sent whole KV caches
        tiers = () if is_decode else config.tiers
        make_engine = naming_blocks_by_request(make_engine) if self._nothing_is_shared else make_engine
        self.pools[name] = Pool(
            name, make_engine, replicas, router, self.events, shedding, *starting, autoscaler, tiers, config.intake
        )
        return self.pools[name]

    def _small_pool(self, make_engine: EngineFactory | None) -> Pool:
        if make_engine is None:
            raise WorkloadError("model_routing and degrading need a small model: pass make_small_engine")
        return self._pool("small", make_engine, self.config.small_replicas, self.config.shedding)

    def _repeat(self, every_s: float, action: Callable[[], None]) -> None:
        """Now, and again and again until no request is left."""
        action()
        if self.clients.num_left:
            self.events.after(every_s, self._repeat, every_s, action)

    def _sample(self) -> None:
        for pool in self.pools.values():
            self._samples += [Sample.of(self.events.now, replica) for replica in pool.serving]


def naming_blocks_by_request(make_engine: EngineFactory) -> EngineFactory:
    """Engines that name a KV block by its request and its place, not by a hash of all tokens up to its end: where no
    two prompts begin alike, the same lookups find the same blocks."""

    def make(clock: VirtualClock) -> Engine:
        engine = make_engine(clock)
        engine.scheduler.kv.hash_blocks = names_of_blocks
        return engine

    return make


def names_of_blocks(request: Request, block_size: int) -> list[Any]:
    """As `extend_hashes`, without looking at its tokens. Numbers will do as names."""
    names: list[Any] = request.block_hashes
    first = request.arrival_index << 32
    names += range(first + len(names), first + request.num_known_tokens // block_size)
    return names


def simulate(workload: Workload, config: ClusterConfig, make_engine: EngineFactory, **others: Any) -> FleetRun:
    """Play a workload to a fleet; see Cluster for the arguments."""
    return Cluster(workload, config, make_engine, **others).run()
