"""Causes outside the engine: network, proxy, ingress, start-up."""

from dataclasses import replace

from course.incidents.causes.base import MORE_MACHINES, Case, Draw, chat, loaded, service
from course.simulator.cluster.network import Network
from course.simulator.cluster.pool import Autoscaling
from course.simulator.workload.arrivals import Spikes


def proxy(draw: Draw) -> Case:
    before = loaded(service(draw, chat(draw, (300, 900), (120, 200)), requests=280), 0.4)
    network = Network(hold_chunks=draw.choice((24, 32, 48)), hold_s=draw.uniform(1.5, 2.5))
    return Case(before, before.with_fleet(network=network), "Edge: compression switched on for text responses")


def cold_start(draw: Draw) -> Case:
    s = loaded(service(draw, chat(draw, (500, 1200), (80, 140)), requests=290), 0.5)
    rate = s.flows[0].arrivals.rate
    waves = Spikes(
        rate=rate,
        spike_rate=4 * rate,
        start_s=0.15 * s.duration_s,
        length_s=0.12 * s.duration_s,
        every_s=0.3 * s.duration_s,
    )
    s = replace(s, flows=(replace(s.flows[0], arrivals=waves),))
    scaling = Autoscaling(
        signal="arrival_rate",
        target=1.2 * rate,
        min_replicas=1,
        max_replicas=6,
        interval_s=0.5,
        window_s=0.5,
        scale_down_after_s=0.04 * s.duration_s,
    )
    before = s.with_fleet(autoscaling=scaling)
    cold = draw.uniform(0.08, 0.1) * s.duration_s
    now = before.with_fleet(cold_start_s=cold / 3, warm_up_s=cold)
    return Case(before, now, "Images slimmed: weights and compiled kernels are fetched at start")


def ingress(draw: Draw) -> Case:
    before = loaded(service(draw, chat(draw, (800, 2000), (80, 140)), requests=320), 0.45)
    per_request = draw.uniform(1.3, 1.5) / before.flows[0].arrivals.rate
    tokens = before.workload(1).num_prompt_tokens / len(before.workload(1))
    network = Network(ingress_s=per_request / 4, ingress_s_per_token=0.75 * per_request / tokens)
    return Case(before, before.with_fleet(network=network), "Gateway: prompts are logged and checked before routing")


def far_clients(draw: Draw) -> Case:
    before = loaded(service(draw, chat(draw, (300, 900), (80, 140)), machines=MORE_MACHINES, requests=280), 0.4)
    near = Network(rtt_s=0.01)
    far = Network(rtt_s=0.01, far_share=draw.uniform(0.3, 0.45), far_rtt_s=draw.uniform(0.5, 0.7), handshakes=3)
    return Case(before.with_fleet(network=near), before.with_fleet(network=far), "Launched in a second continent")
