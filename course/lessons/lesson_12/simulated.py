"""Two post-mortems, played again on the simulator."""

from dataclasses import dataclass

from course.lab import simulated_70b
from course.lab.run import percentile
from course.lab.scale import enough
from course.lab.visits import visits_of, waits
from course.simulator.cluster.run import FleetRun
from course.simulator.workload.arrivals import Poisson
from course.simulator.workload.kinds import Independent
from course.simulator.workload.lengths import Fixed, LogNormal
from course.simulator.workload.requests import make_workload, merge

# ---------------------------------------------------------------- A18

SLOTS, BEFORE, AFTER = 96, 800, 2400
"""The setting that was left over; prompt tokens when it was chosen, and now."""
OTHER_SLOTS = (24, 48, 192)
ROOM = SLOTS * (BEFORE + 150) // 16
"""KV blocks for 96 requests of the old kind: the pool that the setting was made for."""
RATE = 4.0
"""Requests a second that one replica of 70B serves without a line while prompts are short."""


@dataclass(frozen=True)
class WaitAndPrefill:
    """One run: how long requests queued, and how long their prompts took."""

    wait: float
    """p99, seconds."""
    prefill: float
    """p99, seconds."""


def waits_of_run(run: FleetRun) -> WaitAndPrefill:
    visits = [visit for visit in visits_of(run) if visit.ending == "answered"]
    prefill = [r.timeline.prefill_end - r.timeline.scheduled for r in run.records if r.completed]
    return WaitAndPrefill(percentile(waits(visits), 99), percentile(prefill, 99))


POOLS: dict[str, dict[str, int]] = {"all memory": {}, "a pool sized for the old prompts": {"num_kv_blocks": ROOM}}


def _play_long_prompts(tokens: int, rate: float, **fields: int) -> WaitAndPrefill:
    traffic = Independent(
        prompt=LogNormal(median=tokens, sigma=0.4, high=4 * tokens), output=LogNormal(median=150, sigma=0.5, high=600)
    )
    return waits_of_run(simulated_70b.served(traffic, Poisson(rate=rate), 240, least=120, **fields))


def post_mortem() -> tuple[
    WaitAndPrefill, dict[str, WaitAndPrefill], dict[str, dict[int, WaitAndPrefill]], WaitAndPrefill
]:
    """The runs that `a18` wants, in its order."""
    after = {pool: _play_long_prompts(AFTER, RATE, max_num_seqs=SLOTS, **room) for pool, room in POOLS.items()}
    by_slots = {
        pool: {slots: _play_long_prompts(AFTER, RATE, max_num_seqs=slots, **room) for slots in OTHER_SLOTS}
        for pool, room in POOLS.items()
    }
    before = _play_long_prompts(BEFORE, RATE, max_num_seqs=SLOTS)
    return before, after, by_slots, _play_long_prompts(AFTER, RATE * BEFORE / AFTER, max_num_seqs=SLOTS)


# ---------------------------------------------------------------- D23

MEMBERS = 8
"""Slots; one request in so many is long."""
LONG_TOKENS, LIMIT = 15_000, 4_000
SHORT = Independent(
    prompt=LogNormal(median=800, sigma=0.4, high=3000), output=LogNormal(median=30, sigma=0.4, high=100)
)
LONG = Independent(prompt=Fixed(tokens=LONG_TOKENS), output=Fixed(tokens=30))
SERVER = {"model": "llama-3.1-70b", "profile": "a100-80gb", "max_num_seqs": MEMBERS, "max_model_len": 32_768}
"""A model with positions for the long one, on four GPUs that need seconds to read it."""
STATIC, CHUNKS, LIMITED = "static batches", "continuous, chunks", "chunks, prompt limit"
WAYS: dict[str, dict[str, object]] = {
    STATIC: {"batching": "static", "enable_chunked_prefill": False, "max_num_batched_tokens": 32_768},
    "continuous, whole prompts": {"enable_chunked_prefill": False, "max_num_batched_tokens": 32_768},
    CHUNKS: {"long_prefill_token_threshold": 512},
    LIMITED: {"long_prefill_token_threshold": 512, "max_prompt_tokens": LIMIT},
}
STRAGGLER_RATE = 1.0
"""Requests a second: little enough that no way of batching is full."""


@dataclass(frozen=True)
class Tail:
    """p99 of E2E, seconds: without long requests; then with them, of the short ones and of all."""

    without: float
    short: float
    overall_s: float

    @property
    def on_others(self) -> float:
        """Factor on those who are not long."""
        return self.short / self.without

    @property
    def overall(self) -> float:
        return self.overall_s / self.without


def tail_of(way: str, count: int = 160) -> Tail:
    """The same short requests without and with long ones in between."""
    count = enough(count, 80)
    seven, one = count * (MEMBERS - 1) // MEMBERS, count // MEMBERS
    share = STRAGGLER_RATE / MEMBERS
    short = make_workload(SHORT, Poisson(rate=share * (MEMBERS - 1)), num_requests=seven, name="short")
    long = make_workload(LONG, Poisson(rate=share), num_requests=one, name="long")
    on = simulated_70b.deployment(**SERVER, **WAYS[way])
    alone, mixed = (visits_of(simulated_70b.play(on, w)) for w in (short, merge("mixed", short, long)))
    stay = [(visit.prompt, visit.left - visit.arrival) for visit in mixed if visit.ending == "answered"]
    return Tail(
        percentile([visit.left - visit.arrival for visit in alone if visit.ending == "answered"], 99),
        percentile([time for prompt, time in stay if prompt <= LIMIT], 99),
        percentile([time for _, time in stay], 99),
    )


def straggler_tails() -> dict[str, Tail]:
    """The runs that `d23` wants."""
    return {way: tail_of(way) for way in WAYS}
