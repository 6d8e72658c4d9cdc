"""Causes that make requests stand in line."""

from dataclasses import replace

from course.lab.incidents.causes.base import MORE_HOUSES, Case, Cause, Draw, chat, in_flight, loaded, service
from course.lab.incidents.service import Service, capacity, play
from course.lab.run import percentile
from minillm.simulate.cluster.clients import ClientConfig
from minillm.simulate.cluster.routers import RouterConfig
from minillm.simulate.workload.arrivals import Spikes


def overload(draw: Draw) -> Case:
    before = loaded(service(draw, chat(draw, (1500, 3000), (50, 90)), replicas=draw.whole(1, 2), requests=340), 0.55)
    growth = draw.between(2.4, 2.6)
    return Case(before, before.with_load(growth), f"Sign-ups opened for everybody: {growth:.1f} times the users")


def burst(draw: Draw) -> Case:
    before = service(draw, chat(draw, (600, 1500), (80, 140)), requests=360)
    before = loaded(before, 0.4)
    return Case(before, spiked(before, draw, 4.0, 0.09), "A push notification went out to all users at once", 0.85)


def spiked(s: Service, draw: Draw, height: float, share: float) -> Service:
    """With one spike: so many times the fleet's capacity, for this share of the time."""
    most, flow = capacity(s), s.flows[0]
    arrivals = Spikes(
        rate=flow.arrivals.rate, spike_rate=height * most, start_s=draw.between(0.2, 0.4) * s.duration_s,
        length_s=share * s.duration_s,
    )  # fmt: skip
    return replace(s, flows=(replace(flow, arrivals=arrivals),))


def client_cap(draw: Draw) -> Case:
    before = loaded(service(draw, chat(draw, (400, 1200), (120, 200)), houses=MORE_HOUSES, requests=320), 0.45)
    cap = max(1, int(in_flight(play(before, 1)) * draw.between(0.35, 0.5)))
    clients = ClientConfig(max_in_flight=cap)
    return Case(before, before.with_fleet(clients=clients), f"SDK release: connection pool of {cap} for all callers")


def few_seats(draw: Draw) -> Case:
    before = loaded(service(draw, chat(draw, (200, 500), (150, 250)), replicas=draw.whole(1, 2), requests=320), 0.4)
    seats = max(2, int(in_flight(play(before, 1)) / before.fleet.replicas * draw.between(0.3, 0.4)))
    return Case(before, before.with_engine(max_num_seqs=seats), f"Config clean-up: max_num_seqs set to {seats}")


def static_batching(draw: Draw) -> Case:
    kind = chat(draw, (300, 800), (120, 200))
    before = loaded(service(draw, kind, requests=240, max_num_seqs=draw.pick((32, 48, 64))), 0.5)
    return Case(before, before.with_engine(batching="static"), "Moved to the batch team's server image")


def hot_replica(draw: Draw) -> Case:
    replicas = draw.whole(3, 4)
    before = loaded(service(draw, chat(draw, (500, 1200), (80, 160)), replicas=replicas, requests=520), 0.55)
    router = RouterConfig(hot_share=draw.between(0.75, 0.85))
    return Case(before, before.with_fleet(router=router), "Gateway: session affinity switched on, keyed by API key")


def retry_storm(draw: Draw) -> Case:
    kind = chat(draw, (600, 1500), (60, 110))
    before = loaded(service(draw, kind, requests=240, enable_prefix_caching=False), 0.6)
    slowest = percentile([record.ttft() for record in play(before, 1).run.records], 98)
    clients = ClientConfig(first_byte_timeout_s=3 * slowest, cancel_on_timeout=False, max_attempts=4)
    before = before.with_fleet(clients=clients)
    return Case(before, spiked(before, draw, 6.0, 0.025), "A network blip of a few seconds, resolved", target=0.5)


def unbounded_queue(draw: Draw) -> Case:
    before = loaded(service(draw, chat(draw, (1000, 2000), (60, 110)), requests=420), 0.55)
    wait = 2.5 * in_flight(play(before, 1)) / before.flows[0].arrivals.rate
    before = before.with_fleet(clients=ClientConfig(timeout_s=wait, cancel_on_timeout=False))
    growth = draw.between(2.0, 2.15)
    return Case(before, before.with_load(growth), f"Partner launch: {growth:.1f} times the requests", target=0.5)


CAUSES = (
    Cause("overload", "offered load above capacity", overload, "queue", ("queue_over_time", "arrivals", "phases"),
          ("double_fleet",), "int8_weights",
          "Prefill takes the GPU's arithmetic, not its bandwidth: narrower weights give no further request a second.",
          "burst", "queue_over_time"),
    Cause("burst", "a burst: the queue fills and drains", burst, "queue", ("queue_over_time", "arrivals"),
          ("warm_pool",), "double_fleet",
          "Arrivals per second: the mean is well under capacity, the spike is several times above twice the fleet.",
          "overload", "queue_over_time", regime="spike"),
    Cause("client_cap", "the clients hold requests back", client_cap, "queue", ("client_server", "concurrency"),
          ("raise_client_cap",), "more_seats",
          "The server's own TTFT is fine: the time passes before a request is even sent.",
          "overload", "client_server"),
    Cause("few_seats", "too few seats", few_seats, "queue", ("batch", "kv_use"), ("more_seats",), "double_fleet",
          "Every seat is taken while most of the KV pool is free: the machines have room.",
          "kv_pool", "kv_use"),
    Cause("static_batching", "static batching", static_batching, "queue", ("batch", "queue_over_time"),
          ("continuous_batching",), "more_seats",
          "The running count falls within each batch while others wait: seats are free and nobody may sit down.",
          "burst", "batch"),
    Cause("hot_replica", "one replica gets most of the requests", hot_replica, "queue", ("per_replica",),
          ("least_outstanding",), "double_fleet",
          "One queue is long and all others are empty: more replicas would be idle, too.",
          "overload", "per_replica"),
    Cause("retry_storm", "a storm of retries after a blip", retry_storm, "queue", ("attempts", "late_work"),
          ("backoff",), "more_seats",
          "Attempts exceed unique requests several times: more room is filled with work that nobody waits for.",
          "overload", "attempts", regime="spike"),
    Cause("unbounded_queue", "a queue without bound", unbounded_queue, "queue", ("late_work", "queue_over_time"),
          ("bound_queue",), "longer_timeouts",
          "Answers are finished after their clients have left: a longer patience makes a longer line.",
          "overload", "late_work"),
)  # fmt: skip
