"""Causes in decoding: KV memory, drafts, kernel launches, answer lengths."""

from dataclasses import replace

from course.incidents.causes.base import Case, Draw, chat, in_flight, lengths, loaded, service
from course.incidents.causes.prefill import tenants
from course.incidents.service import SimulatedService, play
from course.simulator.speculation import SimulatedSpeculation
from course.simulator.workload.kinds import Independent


def blocks_for(s: SimulatedService, requests: float) -> int:
    """KV blocks that hold so many whole requests of the service's, and at least its longest."""
    made = s.workload(1).requests
    tokens = [request.num_prompt_tokens + request.output_tokens for request in made]
    return int(max(requests * sum(tokens) / len(tokens), 1.25 * longest(s))) // 16 + 1


def longest(s: SimulatedService) -> int:
    """Tokens of the longest request that may come."""
    return max(flow.kind.prompt.high + flow.kind.output.high for flow in s.flows)


def kv_pool(draw: Draw) -> Case:
    s = service(draw, chat(draw, (900, 1500), (150, 220)), requests=320, scheduler_reserve_full_isl=True)
    before = loaded(s, 0.5)
    blocks = blocks_for(before, in_flight(play(before, 1)) * draw.uniform(0.3, 0.4))
    change = "Config clean-up: num_kv_blocks copied from the smaller cards"
    return Case(before, before.with_engine(num_kv_blocks=blocks), change)


def thrash(draw: Draw) -> Case:
    s = service(draw, chat(draw, (100, 200), (400, 600)), requests=170, max_num_seqs=64, max_num_batched_tokens=1024)
    before = loaded(s, 0.5)
    blocks = blocks_for(before, in_flight(play(before, 1)) * draw.uniform(0.33, 0.4))
    change = "After a crash for lack of memory: a fixed, small num_kv_blocks"
    return Case(before, before.with_engine(num_kv_blocks=blocks), change)


def drafts_of_a_model(k: int, rate: float, max_batch: int) -> SimulatedSpeculation:
    """A small draft model, without gates."""
    return SimulatedSpeculation(
        method="draft_model",
        model="llama-3.2-1b",
        k=k,
        acceptance_rate=rate,
        acceptance_floor=0,
        adaptive_k=False,
        max_batch=max_batch,
    )


ATTENTIVE = (("llama-3.1-8b", "a100-80gb", 1), ("llama-3.1-8b", "l40s", 1), ("qwen3-14b", "h100-sxm", 1))
"""Small weights beside the KV of a few thousand tokens."""
SMALL = (("llama-3.1-8b", "a100-80gb", 1), ("llama-3.1-8b", "l40s", 1), ("qwen3-14b", "a100-80gb", 1))


def low_acceptance(draw: Draw) -> Case:
    good, bad, k = draw.uniform(0.8, 0.88), draw.uniform(0.05, 0.15), draw.randint(6, 8)
    drafts = drafts_of_a_model(k, good, max_batch=64)
    s = service(draw, chat(draw, (200, 500), (80, 120)), machines=SMALL, requests=120, speculative=drafts)
    before = loaded(s, 0.2)
    now = before.with_engine(speculative=drafts.replace(acceptance_rate=bad))
    now = replace(now, acceptance={"head": 0.75, "draft_model": bad})
    return Case(before, now, "A second product, in three further languages, uses the same endpoint")


def speculation_load(draw: Draw) -> Case:
    rate, k = draw.uniform(0.5, 0.6), draw.randint(7, 9)
    drafts = drafts_of_a_model(k, rate, max_batch=256)
    s = service(
        draw,
        chat(draw, (100, 250), (80, 120)),
        machines=SMALL,
        requests=240,
        max_num_seqs=256,
        max_num_batched_tokens=2560,
        speculative=drafts,
    )
    plain = s.with_engine(speculative=None)
    before = loaded(s, 0.2, of=plain)
    return Case(before, loaded(s, 0.85, of=plain), "The feature left its beta: general availability")


def draft_kv(draw: Draw) -> Case:
    """Five drafts yield 4.3 to 4.6 tokens a verification, and 1.5 to 1.7 without the draft model's KV."""
    drafts = drafts_of_a_model(5, draw.uniform(0.86, 0.89), max_batch=64)
    kind = tenants(draw, draw.randint(3, 6), (1500, 2500)).replace(output=lengths(draw.uniform(90, 130), 0.4, 3))
    before = loaded(service(draw, kind, machines=SMALL, requests=160, speculative=drafts), 0.25)
    now = replace(before, restored_acceptance=draw.uniform(0.33, 0.4))
    return Case(before, now, "Prefix cache extended into host memory")


def slow_attention(draw: Draw) -> Case:
    s = service(draw, chat(draw, (1200, 2400), (150, 220)), machines=ATTENTIVE, requests=240)
    before = loaded(s, 0.35)
    now = replace(before, attention_speed=draw.uniform(0.05, 0.08))
    return Case(before, now, "Base image updated: new CUDA, new kernel packages")


def launch_bound(draw: Draw) -> Case:
    machines = (
        ("qwen3-14b", "h100-sxm", 4),
        ("qwen3-32b", "h100-sxm", 4),
        ("qwen3-32b", "h100-sxm", 8),
        ("llama-3.1-70b", "h100-sxm", 8),
    )
    s = service(draw, chat(draw, (200, 500), (120, 200)), machines=machines, requests=260)
    before = loaded(s, 0.15)
    return Case(before, replace(before, cuda_graphs=False), "A hot fix for a sampling bug, with enforce_eager")


def output_drift(draw: Draw) -> Case:
    output = draw.uniform(90, 100)
    kind = Independent(prompt=lengths(draw.uniform(200, 500)), output=lengths(output, 0.45, 2.8))
    before = loaded(service(draw, kind, requests=280), 0.12)
    longer = kind.replace(output=lengths(draw.uniform(5, 6) * output, 0.4, 3))
    return Case(before, before.with_kind(longer), "System prompt: 'think step by step, be thorough'")
