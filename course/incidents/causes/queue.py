"""Causes that make requests queue."""

from dataclasses import replace

from course.incidents.causes.base import MORE_MACHINES, Case, Draw, chat, in_flight, loaded, service
from course.incidents.service import SimulatedService, capacity, play
from course.lab.run import percentile
from course.simulator.cluster.clients import ClientConfig
from course.simulator.cluster.routers import RouterConfig
from course.simulator.workload.arrivals import Spikes


def overload(draw: Draw) -> Case:
    before = loaded(service(draw, chat(draw, (1500, 3000), (50, 90)), replicas=draw.randint(1, 2), requests=340), 0.55)
    growth = draw.uniform(2.2, 2.4)
    return Case(before, before.with_load(growth), f"Sign-ups opened to the public: {growth:.1f} times the users")


def burst(draw: Draw) -> Case:
    before = loaded(service(draw, chat(draw, (600, 1500), (80, 140)), requests=360), 0.4)
    return Case(before, spiked(before, draw, 4.0, 0.09), "A push notification went out to all users at once")


def spiked(
    s: SimulatedService, draw: Draw, height: float, share: float, start: tuple[float, float] = (0.2, 0.4)
) -> SimulatedService:
    """With one spike: so many times the fleet's capacity, for this share of the time."""
    most, flow = capacity(s), s.flows[0]
    start_s, length_s = draw.uniform(*start) * s.duration_s, share * s.duration_s
    arrivals = Spikes(rate=flow.arrivals.rate, spike_rate=height * most, start_s=start_s, length_s=length_s)
    return replace(s, flows=(replace(flow, arrivals=arrivals),))


def client_cap(draw: Draw) -> Case:
    before = loaded(service(draw, chat(draw, (400, 1200), (120, 200)), machines=MORE_MACHINES, requests=320), 0.45)
    cap = max(1, int(in_flight(play(before, 1)) * draw.uniform(0.35, 0.5)))
    clients = ClientConfig(max_in_flight=cap)
    return Case(before, before.with_fleet(clients=clients), f"SDK release: connection pool of {cap} for all callers")


def few_slots(draw: Draw) -> Case:
    before = loaded(service(draw, chat(draw, (200, 500), (150, 250)), replicas=draw.randint(1, 2), requests=320), 0.4)
    slots = max(2, int(in_flight(play(before, 1)) / before.fleet.replicas * draw.uniform(0.3, 0.4)))
    return Case(before, before.with_engine(max_num_seqs=slots), f"Config clean-up: max_num_seqs set to {slots}")


def static_batching(draw: Draw) -> Case:
    kind = chat(draw, (300, 800), (120, 200))
    before = loaded(service(draw, kind, requests=240, max_num_seqs=draw.choice((32, 48, 64))), 0.5)
    return Case(before, before.with_engine(batching="static"), "Moved to the batch team's server image")


def hot_replica(draw: Draw) -> Case:
    replicas = draw.randint(3, 4)
    before = loaded(service(draw, chat(draw, (500, 1200), (80, 160)), replicas=replicas, requests=520), 0.55)
    router = RouterConfig(hot_share=draw.uniform(0.75, 0.85))
    return Case(before, before.with_fleet(router=router), "Gateway: session affinity switched on, keyed by API key")


def retry_storm(draw: Draw) -> Case:
    kind = chat(draw, (600, 1500), (60, 110))
    before = loaded(service(draw, kind, requests=420, enable_prefix_caching=False), 0.6)
    slowest = percentile([record.ttft("intended") for record in play(before, 1).run.records], 98)
    clients = ClientConfig(first_byte_timeout_s=1.8 * slowest, cancel_on_timeout=False, max_attempts=8)
    before = before.with_fleet(clients=clients)
    return Case(before, spiked(before, draw, 12.0, 0.0016, (0.08, 0.15)), "A network blip of a few seconds, resolved")


def unbounded_queue(draw: Draw) -> Case:
    before = loaded(service(draw, chat(draw, (1000, 2000), (60, 110)), requests=420), 0.55)
    wait = 2.5 * in_flight(play(before, 1)) / before.flows[0].arrivals.rate
    before = before.with_fleet(clients=ClientConfig(timeout_s=wait, cancel_on_timeout=False))
    growth = draw.uniform(1.9, 2.0)
    return Case(before, before.with_load(growth), f"Partner launch: {growth:.1f} times the requests")
