"""The same questions at 70 billion weights: the unchanged scheduler and block pool, on four simulated H100s."""

import functools
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from course.lab import simulated_70b
from course.lab.display import Html, as_table
from course.lab.explorer import Explorer, choices
from course.lab.pictures.chart import Axis, Curve, Mark, draw_chart
from course.lab.run import percentile
from course.lab.scale import enough
from course.lab.style import number, seconds, size
from course.lab.svg import Picture
from course.simulator.cluster.run import FleetRun
from course.simulator.cost.roofline import StepTime
from course.simulator.deployment import BLOCK_SIZE, Deployment
from course.simulator.workload.arrivals import AllAtOnce, Arrivals, Poisson
from course.simulator.workload.kinds import Independent, Sessions, TrafficModel
from course.simulator.workload.lengths import Fixed, LogNormal
from course.simulator.workload.requests import make_workload
from minillm.core.batch import ScheduledBatch
from minillm.core.brief import brief

CHAT = Independent(
    prompt=LogNormal(median=1200, sigma=0.6, high=6000), output=LogNormal(median=200, sigma=0.6, high=800)
)
"""Medium prompts, medium answers; nothing shared."""
CONVERSATIONS = Sessions(
    system=Fixed(tokens=500),
    turns=Fixed(tokens=8),
    first=LogNormal(median=2000, sigma=0.6, high=5000),
    message=LogNormal(median=60, sigma=0.6, high=300),
    output=LogNormal(median=120, sigma=0.6, high=300),
    think_s=5.0,
)
"""Conversations of eight turns about a long text, each turn of which repeats all that was said before."""
FLOOD, FLOOD_CONVERSATIONS = 2000, 250
"""Chats and conversations of a flood: more chats than any pool here has room for."""
FLOOD_SLOTS = 2048
"""max_num_seqs of a flood: more than run together."""
OFTEN = 0.1
"""Evictions for each request: fewer are a ripple, not a limit."""
AT_ONCE_S = 0.1
"""Where half of all requests wait no longer, there are too few of them."""
POOLS_GB = (2, 3, 4, 6, 8, 12, 16, 24, 48)
RATES = (0.5, 1.0, 2.0, 3.0, 4.0, 5.0)
RATE = 4.0
"""Requests a second of the pool picture, to begin with."""


class Steps:
    """Sees every step of a run."""

    def __init__(self, weights_s: float) -> None:
        self._weights_s = weights_s
        self.most_running = 0
        self.seconds: Counter[str] = Counter()
        """By cause."""

    def __call__(self, batch: ScheduledBatch, price: StepTime, end: float) -> None:
        self.most_running = max(self.most_running, price.work.requests)
        reads = price.linear <= self._weights_s  # a product takes as long as its weights take to come, or longer
        self.seconds["reading weights" if reads else "matrix products"] += price.linear
        self.seconds["attention"] += price.attention
        self.seconds["all-reduces"] += price.all_reduce
        self.seconds["launches and the host"] += price.gaps + price.waiting_for_host + price.fixed


@dataclass(frozen=True)
class WatchedRun:
    """What came of one simulated run, each step of which was seen."""

    on: Deployment
    run: FleetRun
    steps: Steps

    __repr__ = brief

    @property
    def limit(self) -> str:
        """What kept it from writing more: the first of these that was short."""
        if self.preemptions > OFTEN * self.run.num_attempts:
            return "KV capacity"
        if self.steps.most_running >= self.on.config.max_num_seqs:
            return "slots"
        waits = [r.timeline.phases()["queue"] for r in self.run.request_records() if r.completed]
        if percentile(waits, 50) < AT_ONCE_S:
            return "too few requests"
        return f"the steps, mostly {self.steps.seconds.most_common(1)[0][0]}"

    @property
    def ttft(self) -> tuple[float, float]:
        """p50 and p99, seconds."""
        found = self.run.summary().metrics["ttft"]
        return found.p50, found.p99

    @property
    def running(self) -> float:
        """Mean number of requests past their queue, by Little's law."""
        spent = [r.timeline.e2e - r.timeline.phases()["queue"] for r in self.run.request_records() if r.completed]
        return sum(spent) / self.run.duration

    @property
    def tokens_per_s(self) -> float:
        return simulated_70b.tokens_per_s(self.run)

    @property
    def preemptions(self) -> int:
        return sum(report.num_preemptions for report in self.run.reports)

    @property
    def again(self) -> int:
        """Tokens computed more than once."""
        return sum(report.num_recomputed_tokens for report in self.run.reports)

    @property
    def again_share(self) -> float:
        """Share of all computed tokens that were computed before."""
        fresh = sum(
            r.num_prompt_tokens - r.num_cached_tokens + r.timeline.num_tokens for r in self.run.request_records()
        )
        return self.again / (self.again + fresh)


@functools.lru_cache(maxsize=128)
def _served(traffic: TrafficModel, arrivals: Arrivals, count: int, fields: tuple) -> WatchedRun:
    """One replica under this traffic; the same call is served once.

    Args:
        fields: as of `simulated_70b.deployment`, in pairs.
    """
    on = simulated_70b.deployment(**dict(fields))
    workload = make_workload(traffic, arrivals, num_requests=enough(count, 60), seed=0)
    steps, shares = Steps(on.step_time().weights_s), not isinstance(traffic, Independent)
    run = simulated_70b.play(on, workload, keep_prefixes=shares, watch=steps)
    return WatchedRun(on, run, steps)


def flood(traffic: TrafficModel, count: int, **fields: object) -> WatchedRun:
    """All requests together and more slots than are ever taken, so that little besides KV limits the batch."""
    fields = {"max_num_seqs": FLOOD_SLOTS, **fields}
    return _served(traffic, AllAtOnce(), count, tuple(sorted(fields.items())))


# ---------------------------------------------------------------- the pool too small


def with_pool(gb: float, rate: float = RATE) -> WatchedRun:
    """CHAT at so many requests a second with so much KV in all."""
    blocks = int(gb * 1e9 / (token_bytes({}) * BLOCK_SIZE))
    return _served(CHAT, Poisson(rate=rate), 240, (("num_kv_blocks", blocks),))


def pool_too_small() -> Explorer:
    """TTFT against the size of the pool, with a slider for the load."""
    return Explorer(
        draw_pools,
        rate=choices("requests per second", RATES, RATE),
        gb=choices("KV pool, GB over four GPUs", POOLS_GB, 8),
    )


def draw_pools(rate: float, gb: float) -> Picture:
    """Two curves of TTFT, and the chosen pool told in words."""
    found = {each: with_pool(each, rate) for each in POOLS_GB}
    here = found[gb]
    p50, p99 = here.ttft
    curves = [
        Curve("TTFT p50", POOLS_GB, [served.ttft[0] for served in found.values()]),
        Curve("TTFT p99", POOLS_GB, [served.ttft[1] for served in found.values()]),
    ]
    title = (
        f"70B, {rate:g} requests/s, {gb} GB of KV: TTFT p50 {seconds(p50)}, p99 {seconds(p99)}; {here.running:.0f} "
        f"running, {here.again_share:.0%} computed twice"
    )
    return draw_chart(
        title,
        curves,
        Axis("KV pool (GB over four GPUs)", log=True),
        Axis("TTFT (s)", log=True),
        [Mark("", x=gb, y=p99)],
        height=270,
        description=_told(found),
    )


def _told(found: Mapping[float, WatchedRun]) -> str:
    return "; ".join(
        f"{gb} GB: TTFT p99 {seconds(s.ttft[1])}, {s.preemptions} preemptions, {number(s.tokens_per_s)} tokens/s"
        for gb, s in found.items()
    )


# ---------------------------------------------------------------- what fills a large pool


@dataclass(frozen=True)
class Load:
    """One kind of request, by its mean lengths."""

    prompt: int
    answer: int

    @property
    def mean_context(self) -> float:
        """While it decodes."""
        return self.prompt + self.answer / 2


LOADS = {
    "chat": Load(1200, 200),
    "RAG": Load(8000, 300),
    "an agent's turn, prefix cached": Load(40_000, 500),
    "reasoning": Load(800, 8000),
}
SHARING = 32
"""Requests in a step, for its time, or as many as fit."""


def working_set(load: Load) -> float:
    """Bytes of KV in use for each request per second: seconds in a slot x bytes of one, with nothing queued and only
    decode counted."""
    on = simulated_70b.deployment()
    batch = min(SHARING, int(simulated_70b.room_tokens(on) / load.mean_context))
    step = simulated_70b.decode_seconds(on, batch, load.mean_context)
    return load.answer * step * load.mean_context * simulated_70b.token_bytes(on)


def working_sets_table() -> Html:
    """How many requests a second it takes to fill the room that four H100s have beside the weights."""
    on = simulated_70b.deployment()
    room = simulated_70b.room_tokens(on) * simulated_70b.token_bytes(on)
    rows = []
    for name, load in LOADS.items():
        each = working_set(load)
        rows.append((name, f"{load.prompt:,} + {load.answer:,}", size(each), f"{room / each:.2g}"))
    return as_table(("traffic", "tokens", "KV in use, per request/s", f"requests/s that fill {size(room)}"), rows)


# ---------------------------------------------------------------- tenfold?

STEPS: dict[str, dict[str, object]] = {
    "MHA, 16 bits, nothing shared": {"kv_heads": 64, "enable_prefix_caching": False},
    "+ shared prefixes": {"kv_heads": 64},
    "+ one key and value for all heads (MQA)": {"kv_heads": 1},
    "+ KV in 8 bits": {"kv_heads": 1, "kv_dtype": "int8"},
}
"""One technique after the other, each on top of those before."""


def ladder(traffic: TrafficModel, count: int = FLOOD) -> dict[str, WatchedRun]:
    """Each of STEPS under the same flood."""
    return {name: flood(traffic, count, **fields) for name, fields in STEPS.items()}


def ladders() -> dict[str, dict[str, WatchedRun]]:
    """Both kinds of traffic."""
    return {"chats": ladder(CHAT), "conversations": ladder(CONVERSATIONS, FLOOD_CONVERSATIONS)}


def token_bytes(fields: Mapping[str, object]) -> float:
    """KV of one token under one of STEPS, over all GPUs, copies included."""
    return simulated_70b.token_bytes(simulated_70b.deployment(**fields))


def gain(found: Mapping[str, WatchedRun]) -> float:
    """Tokens per second of the last step over those of the first: cost per token falls by as much."""
    speeds = [served.tokens_per_s for served in found.values()]
    return speeds[-1] / speeds[0]


def ladder_table(ladders: Mapping[str, Mapping[str, WatchedRun]]) -> Html:
    """For each kind of traffic, the gain so far, and what limits it."""
    rows = []
    for name in STEPS:
        found = []
        for steps in ladders.values():
            first, here = next(iter(steps.values())), steps[name]
            found += [f"×{here.tokens_per_s / first.tokens_per_s:.2f}", here.limit]
        room = simulated_70b.room_tokens(next(iter(ladders.values()))[name].on)
        rows.append((name, f"{room:,}", *found))
    head = [words for kind in ladders for words in (f"tokens/s, {kind}", "limited by")]
    return as_table(("so far", "room, tokens", *head), rows)
