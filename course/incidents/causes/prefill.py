"""Causes in how prompts are prefilled, and in what is cached of them."""

from dataclasses import replace

from course.incidents.causes.base import Case, Draw, chat, lengths, loaded, service
from course.incidents.service import SimulatedService
from course.simulator.cluster.routers import RouterConfig
from course.simulator.workload.kinds import Independent, SharedPrefix
from course.simulator.workload.lengths import Fixed, LogNormal, Uniform

LONG_WINDOW = (
    ("llama-3.1-8b", "l40s", 1),
    ("llama-3.1-8b", "a100-80gb", 1),
    ("qwen3-14b", "a100-80gb", 1),
    ("qwen3-32b", "a100-80gb", 2),
    ("llama-3.1-70b", "a100-80gb", 4),
)
"""With positions for a prompt of fifteen thousand tokens."""
FP8 = (
    ("llama-3.1-8b", "l40s", 1),
    ("qwen3-14b", "h100-sxm", 1),
    ("qwen3-32b", "h100-sxm", 2),
    ("llama-3.1-70b", "h100-sxm", 4),
)
"""Chips that multiply in fp8."""


def with_long_prompts(s: SimulatedService, share: float, prompt: LogNormal | Fixed) -> SimulatedService:
    """One request in 1 / share is a document; chats become as many fewer."""
    (short,) = s.flows
    document = Independent(prompt=prompt, output=lengths(60, 0.3, 2))
    flows = short.scaled(1 - share), replace(short.scaled(share), name="documents", kind=document)
    return replace(s, flows=flows)


ONE_CARD = (("llama-3.1-8b", "a100-80gb", 1), ("llama-3.1-8b", "l40s", 1), ("qwen3-14b", "a100-80gb", 1))
"""Models that one accelerator holds with half its memory to spare."""


BLOCK = 32
"""Tokens per KV block where prompts share thousands: half as many blocks to name and to look up."""


def unchunked(draw: Draw) -> Case:
    kind = chat(draw, (200, 500), (80, 140))
    s = service(draw, kind, machines=LONG_WINDOW, requests=320, max_num_batched_tokens=1024)
    s = with_long_prompts(s, draw.uniform(0.07, 0.1), lengths(draw.uniform(6000, 8000), 0.2, 1.5))
    before = loaded(s, 0.35)
    now = before.with_engine(enable_chunked_prefill=False, max_num_batched_tokens=2048)
    return Case(before, now, "Engine upgrade: new defaults for the scheduler")


def large_chunks(draw: Draw) -> Case:
    s = service(draw, chat(draw, (200, 500), (80, 140)), machines=LONG_WINDOW, requests=320, max_num_batched_tokens=512)
    s = with_long_prompts(s, draw.uniform(0.07, 0.1), lengths(draw.uniform(5000, 7000), 0.2, 1.5))
    before, tokens = loaded(s, 0.35), draw.choice((8192, 12288))
    return Case(before, before.with_engine(max_num_batched_tokens=tokens), f"Throughput tuning: {tokens} tokens a step")


def small_chunks(draw: Draw) -> Case:
    kind = chat(draw, (1500, 2500), (60, 110))
    s = service(draw, kind, requests=220, max_num_seqs=32, max_num_batched_tokens=2048)
    before, tokens = loaded(s, 0.5), draw.choice((40, 44, 48))
    return Case(before, before.with_engine(max_num_batched_tokens=tokens), f"ITL tuning: {tokens} tokens a step")


def longer_prompts(draw: Draw) -> Case:
    prompt, slots = draw.uniform(700, 900), 96
    kind = Independent(prompt=lengths(prompt, 0.4), output=lengths(draw.uniform(90, 150), 0.45, 3))
    before = loaded(service(draw, kind, requests=340, max_num_seqs=slots), 0.55)
    now_kind = kind.replace(prompt=lengths(3 * prompt, 0.4))
    return Case(before, before.with_kind(now_kind), "Retrieval: three times the passages in each prompt")


def straggler(draw: Draw) -> Case:
    s = service(draw, chat(draw, (500, 900), (25, 45)), machines=LONG_WINDOW, requests=340, max_num_batched_tokens=2048)
    before = loaded(s, 0.45)
    now = with_long_prompts(before, draw.uniform(0.03, 0.035), Fixed(tokens=15_000))
    return Case(before, now, "Legal team: whole contracts may be pasted in")


def tenants(draw: Draw, count: int, prefix: tuple[int, int], **fields: object) -> SharedPrefix:
    return SharedPrefix(
        tenants=count,
        prefix=Uniform(low=prefix[0], high=prefix[1]),
        question=lengths(60, 0.5),
        output=lengths(draw.uniform(50, 90), 0.4, 3),
        **fields,
    )


def prefix_breaker(draw: Draw) -> Case:
    kind = tenants(draw, draw.randint(3, 6), (2500, 4000), stamp_tokens=24, stamp_first=False)
    before = loaded(service(draw, kind, requests=320, block_size=BLOCK), 0.5)
    now = before.with_kind(kind.replace(stamp_first=True))
    return Case(before, now, "Prompt template: the current time is told to the model")


def prefix_off(draw: Draw) -> Case:
    kind = tenants(draw, draw.randint(3, 6), (2500, 4000))
    before = loaded(service(draw, kind, requests=320, block_size=BLOCK), 0.5)
    return Case(before, before.with_engine(enable_prefix_caching=False), "Start script: flags copied from a README")


def evicted(draw: Draw) -> Case:
    count = draw.randint(5, 6)
    few, many = tenants(draw, count // 2, (2500, 3500)), tenants(draw, count * 2, (2500, 3500))
    blocks = int(count * 3000 * 1.25) // BLOCK
    s = service(draw, few, requests=400, max_num_seqs=32, block_size=BLOCK, num_kv_blocks=blocks)
    before = loaded(s, 0.45)
    return Case(before, before.with_kind(many), "Sales: four times the tenants, same number of requests")


def blind_router(draw: Draw) -> Case:
    replicas = 4
    kind = tenants(draw, draw.randint(36, 44), (2500, 3500))
    blocks = int(kind.tenants * 3000 * 0.42) // BLOCK
    s = service(draw, kind, replicas=replicas, requests=380, max_num_seqs=32, block_size=BLOCK, num_kv_blocks=blocks)
    before = loaded(s.with_fleet(router=RouterConfig(policy="prefix_aware", imbalance=6)), 0.6)
    now = before.with_fleet(router=RouterConfig(policy="round_robin"))
    return Case(before, now, "Gateway upgrade: a simpler routing table")


def weight_only(draw: Draw) -> Case:
    kind = chat(draw, (2500, 3500), (30, 50))
    before = loaded(service(draw, kind, machines=FP8, replicas=2, requests=340), draw.uniform(0.54, 0.57))
    now = before.with_engine(quantization=draw.choice(("int8", "int4"))).with_fleet(replicas=1)
    change = "Quantization done: half the fleet given back, since decoding is so much faster"
    return Case(before, now, change)


def slow_link(draw: Draw) -> Case:
    s = service(draw, chat(draw, (800, 1600), (60, 110)), machines=ONE_CARD, replicas=4, requests=420)
    before = replace(loaded(s, 0.45), links="ethernet")
    now = replace(before.with_fleet(replicas=1), tp=4)
    return Case(before, now, "One replica over all four machines, for four times the bandwidth")
