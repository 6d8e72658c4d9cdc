"""What is given: the fleet, the SLO of each kind of request, and the trace of a seed."""

import math
from dataclasses import dataclass

from course.grading.props import FleetRequest
from course.simulator.deployment import Deployment
from course.simulator.workload.arrivals import Spikes
from course.simulator.workload.kinds import AZURE_CHAT, Independent, SharedPrefix, owner
from course.simulator.workload.lengths import LogNormal
from course.simulator.workload.requests import Traffic, Workload, WorkloadRequest, make_workload, merge
from course.summary import SLO

MODEL = "llama-3.1-70b"
CARDS = ("h100-sxm", "h100-sxm", "a100-80gb")
"""One replica each, on four such cards. The third is of the generation before: about 0.4 times as fast in prefill."""
MAX_NUM_SEQS = 64
MAX_NUM_BATCHED_TOKENS = 1024
DURATION_S = 60.0
"""Requests arrive for so long; what has been admitted is then served to the end."""


@dataclass(frozen=True)
class RequestKind:
    """One kind of request: what is asked, when, and within which limits it must be answered."""

    traffic: Traffic
    arrivals: Spikes
    slo: SLO


KINDS = {
    "chat": RequestKind(
        traffic=AZURE_CHAT,
        arrivals=Spikes(rate=5, spike_rate=17, start_s=5, length_s=5, every_s=20),
        slo=SLO(ttft=1.0, tpot=0.06),
    ),
    "code": RequestKind(
        traffic=SharedPrefix(
            tenants=24,
            skew=0.6,
            prefix=LogNormal(median=4000, sigma=0.4, low=1000, high=12000),
            question=LogNormal(median=150, sigma=0.6),
            output=LogNormal(median=30, sigma=0.7, high=200),
        ),
        arrivals=Spikes(rate=2.5, spike_rate=6, start_s=7, length_s=4, every_s=20),
        slo=SLO(ttft=0.5),
    ),
    "docs": RequestKind(
        traffic=Independent(
            prompt=LogNormal(median=7000, sigma=0.4, low=3000, high=16000),
            output=LogNormal(median=250, sigma=0.5, high=1000),
        ),
        arrivals=Spikes(rate=0.6, spike_rate=2.4, start_s=6, length_s=4, every_s=20),
        slo=SLO(ttft=15.0, tpot=0.15),
    ),
}
"""Chats; completions over one of 24 repositories, whose files begin the prompt; summaries of documents. The spikes of
all three overlap: for a few seconds more comes than the fleet can answer in time."""


def trace_of(seed: int) -> Workload:
    """All requests of a seed, in order of arrival; the same on any machine."""
    flows = [
        make_workload(kind.traffic, kind.arrivals, duration_s=DURATION_S, seed=seed, name=name)
        for name, kind in KINDS.items()
    ]
    return merge("challenge", *flows)


def fleet(scheduling_order: str) -> list[Deployment]:
    """One deployment for each replica.

    Args:
        scheduling_order: of the engine's own queues.
    """
    return [
        Deployment.of(
            MODEL,
            card,
            tp=4,
            max_num_seqs=MAX_NUM_SEQS,
            max_num_batched_tokens=MAX_NUM_BATCHED_TOKENS,
            scheduling_order=scheduling_order,
        )
        for card in CARDS
    ]


def seen_by_gateway(planned: WorkloadRequest) -> FleetRequest:
    """What policies may know of a request: all but the length of its answer."""
    kind, first = owner(planned.session), planned.pieces[0]
    slo, is_shared = KINDS[kind].slo, len(planned.pieces) > 1
    assert planned.arrival is not None, "no request of the trace is a later turn"
    return FleetRequest(
        id=planned.index,
        kind=kind,
        arrival_s=planned.arrival,
        prompt_tokens=planned.num_prompt_tokens,
        prefix=first.name if is_shared else "",
        prefix_tokens=first.num_tokens if is_shared else 0,
        ttft_limit_s=math.inf if slo.ttft is None else slo.ttft,
        tpot_limit_s=math.inf if slo.tpot is None else slo.tpot,
    )
