"""Causes in one replica alone: its cards, a link between them, or what was loaded onto them."""

from dataclasses import replace

from course.incidents.causes.base import Case, Draw, chat, loaded, service
from course.incidents.service import ReplicaFault, SimulatedService
from course.simulator.cluster.routers import RouterConfig

FP8_FLEET = (("qwen3-32b", "h100-sxm", 1), ("llama-3.1-70b", "h100-sxm", 2))
"""Chips that multiply in fp8, and have little room for KV beside weights in 16 bits."""
LINKED = (("qwen3-32b", "h100-sxm", 4), ("llama-3.1-70b", "h100-sxm", 4), ("llama-3.1-70b", "a100-80gb", 4))
"""Replicas of several cards over NVLink."""


def fleet_of(draw: Draw, load: float, machines: tuple[tuple[str, str, int], ...], **engine: object) -> SimulatedService:
    """Four replicas, each in turn: whichever is ill gets as many requests as all others, and one may be missing."""
    kind = chat(draw, (1200, 2400), (60, 110))
    s = service(draw, kind, machines=machines, replicas=4, requests=420, **engine)
    return loaded(s.with_fleet(router=RouterConfig(policy="round_robin")), load)


ANY = (("llama-3.1-8b", "l40s", 1), ("llama-3.1-8b", "a100-80gb", 1), ("qwen3-14b", "h100-sxm", 1))


def throttled_card(draw: Draw) -> Case:
    before = fleet_of(draw, draw.uniform(0.5, 0.58), ANY)
    fault = ReplicaFault("throttled", clock=draw.uniform(0.19, 0.25))
    return Case(before, replace(before, fault=fault), "Facilities: fans replaced in one host")


def hung_rank(draw: Draw) -> Case:
    before = fleet_of(draw, draw.uniform(0.45, 0.55), LINKED)  # a rank waits for others: there is more than one
    fault = ReplicaFault("hung", hangs_at_s=draw.uniform(0.03, 0.08) * before.duration_s)
    return Case(before, replace(before, fault=fault), "NCCL updated on one host, as a trial")


def bad_link(draw: Draw) -> Case:
    before = fleet_of(draw, draw.uniform(0.5, 0.58), LINKED)
    fault = ReplicaFault("bad_link", links="ethernet")
    return Case(before, replace(before, fault=fault), "One host back from repair, with a card reseated")


def wrong_weights(draw: Draw) -> Case:
    before = fleet_of(draw, draw.uniform(0.6, 0.66), FP8_FLEET, quantization="fp8")
    fault = ReplicaFault("wrong_weights", quantization=None)
    return Case(before, replace(before, fault=fault), "One replica restarted, and pulled the tag 'latest'")
