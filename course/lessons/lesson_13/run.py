"""What lesson 13 plays: a profiling dump whose own numbers do not fit one server. Simulated."""

from dataclasses import dataclass

from course.lab import simulated_70b
from course.lab.lab import Lab
from course.lab.run import percentile
from course.lab.visits import Visit, visits_of
from course.simulator.cluster.run import FleetRun
from course.simulator.deployment import Deployment
from course.simulator.workload.arrivals import Poisson
from course.simulator.workload.kinds import Independent
from course.simulator.workload.lengths import LogNormal

SERVER = {"model": "llama-2-13b", "profile": "a100-80gb", "tp": 2}
QPS, PROMPT, OUTPUT = 60.0, 2200, 180
"""Requests a second; mean tokens in and out."""
TTFT_S, ITL_S = 3.2, 0.080
"""Its p99 of either."""
TRAFFIC = Independent(
    prompt=LogNormal(median=2000, sigma=0.44, high=3600), output=LogNormal(median=160, sigma=0.5, high=400)
)
"""Lengths spread about these means; the model has 4096 positions."""
CROWD = 1200
"""Requests whose middle part tells a capacity: many more than have slots at once, even in the short form's quarter."""
FULL = 0.9
"""Share of its capacity that a server is busy with, and keeps up."""


@dataclass(frozen=True)
class ServerDemand:
    """What the dump's numbers ask of one server, and what one server can do."""

    flops: float
    """Prefill's FLOP/s that it asks for, over the peak of the GPUs on their data sheet."""
    kv: float
    """KV tokens of decoding requests (Little's law, with gaps as long as the dump's p99), over the room there is."""
    capacity: float
    """Requests a second that the simulated server can do."""
    ttft_at_full: float
    """p99 with the server nearly full, seconds."""
    ttft_at_dump: float
    """p99 at the dump's rate, in a run that is over soon; it grows with the run."""
    itl_p99: float
    """With the server nearly full, seconds."""
    product: float
    """p99 of ITL x gaps of a mean answer, seconds: how the claim gets its 14.4 s."""
    decode_p50: float
    decode_p99: float
    """From first to last token, seconds, of requests with a mean answer or nearly."""

    @property
    def servers(self) -> float:
        return QPS / self.capacity


def fit_of(on: Deployment, capacity: float, full: FleetRun, dump: FleetRun) -> ServerDemand:
    """The arithmetic of the dump, beside two runs.

    Args:
        full: at FULL of the capacity.
        dump: at QPS.
    """
    peak = on.placement.tp * on.profile.hardware.peak_flops("bfloat16")
    decoding = QPS * ITL_S * (OUTPUT - 1)  # by Little's law; those that wait hold no KV
    lines = [
        record.timeline for record in full.records if record.completed and abs(record.num_tokens - OUTPUT) <= OUTPUT / 3
    ]
    decode = [line.last_token - line.first_token for line in lines]
    itl = full.summary().metrics["itl"].p99
    return ServerDemand(
        flops=QPS * PROMPT * 2 * on.model.layer_params / peak,
        kv=decoding * (PROMPT + OUTPUT / 2) / (simulated_70b.room_tokens(on)),
        capacity=capacity,
        ttft_at_full=_ttft(visits_of(full)),
        ttft_at_dump=_ttft(visits_of(dump)),
        itl_p99=itl,
        product=itl * (OUTPUT - 1),
        decode_p50=percentile(decode, 50),
        decode_p99=percentile(decode, 99),
    )


def _ttft(visits: list[Visit]) -> float:
    return percentile([visit.ttft for visit in visits if visit.ttft is not None], 99)


def experiment(lab: Lab) -> ServerDemand:
    """Capacity of one server, a nearly full one, and the dump's rate."""
    on = simulated_70b.deployment(**SERVER)
    capacity = simulated_70b.capacity(TRAFFIC, CROWD, **SERVER)
    full = simulated_70b.served(TRAFFIC, Poisson(rate=FULL * capacity), 240, least=80, **SERVER)
    dump = simulated_70b.served(TRAFFIC, Poisson(rate=QPS), 240, least=80, **SERVER)
    return fit_of(on, capacity, full, dump)
