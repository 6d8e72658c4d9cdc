"""Each technique as two pairs of runs: one where it should help, one where it should do nothing or harm.

What a pair expects is only in its words. What is drawn on the map is what came out.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from course.simulator.cluster.clients import ClientConfig
from course.simulator.cluster.network import Network
from course.simulator.cluster.paths import Disaggregation
from course.simulator.cluster.record import ClientRecord
from course.simulator.cluster.routers import RouterConfig
from course.simulator.workload.arrivals import AllAtOnce, Gamma, Poisson
from course.simulator.workload.kinds import Independent, SharedPrefix, TrafficModel
from course.simulator.workload.lengths import Fixed, LogNormal
from course.simulator.workload.requests import Workload, make_workload, merge

CHAT = Independent(
    prompt=LogNormal(median=300, sigma=0.6, high=2000), output=LogNormal(median=100, sigma=0.7, high=800)
)
EQUAL = Independent(prompt=Fixed(tokens=300), output=Fixed(tokens=100))
LONG_PROMPTS = Independent(prompt=Fixed(tokens=6000), output=Fixed(tokens=60))
HALF_PROMPTS = Independent(prompt=Fixed(tokens=3000), output=Fixed(tokens=60))
LONG_ANSWERS = Independent(prompt=Fixed(tokens=300), output=Fixed(tokens=900))
LONG_CHATS = Independent(prompt=Fixed(tokens=4000), output=Fixed(tokens=200))
HANDBOOK = SharedPrefix(
    prefix=Fixed(tokens=4000), question=Fixed(tokens=60), output=LogNormal(median=100, sigma=0.7, high=800)
)
CUT_BY_QUESTION = Independent(prompt=Fixed(tokens=2060), output=HANDBOOK.output)
"""Half of that handbook, another half for each question: no two prompts begin alike."""
ONE_TOKEN = Independent(prompt=Fixed(tokens=300), output=Fixed(tokens=1))
ALONE_PER_S = 0.05
"""Requests a second at which two hardly ever meet."""


def many(traffic: TrafficModel, per_s: float, count: int = 160) -> Workload:
    """Requests at random moments."""
    return make_workload(traffic, Poisson(rate=per_s), num_requests=count)


def one_by_one(traffic: TrafficModel, count: int = 12) -> Workload:
    """So far apart that each has the machine to itself."""
    return make_workload(traffic, Gamma(rate=ALONE_PER_S, cv=0.1), num_requests=count)


def together(traffic: TrafficModel, count: int = 96) -> Workload:
    """All in the same instant."""
    return make_workload(traffic, AllAtOnce(), num_requests=count)


def short_and_long(per_s: float, count: int = 160) -> Workload:
    """Chats, and among ten of them one prompt of 6000 tokens."""
    chats = make_workload(CHAT, Poisson(rate=0.9 * per_s), num_requests=round(0.9 * count), name="chat")
    long = make_workload(LONG_PROMPTS, Poisson(rate=0.1 * per_s), num_requests=count - round(0.9 * count), name="long")
    return merge("short and long", chats, long)


def is_chat(record: ClientRecord) -> bool:
    return record.request.num_prompt_tokens < LONG_PROMPTS.prompt.tokens


def is_long(record: ClientRecord) -> bool:
    return not is_chat(record)


@dataclass(frozen=True)
class Setting:
    """One side of a pair: what is served how. The traffic may differ where the technique changes the prompt itself."""

    fields: Mapping[str, Any] = field(default_factory=dict)
    """As of `simulated_70b.deployment`: fields of EngineConfig, and `profile`, `tp`, `kv_heads`."""
    fleet: Mapping[str, Any] = field(default_factory=dict)
    """Fields of ClusterConfig."""
    traffic: Callable[[], Workload] | None = None
    """Instead of the pair's."""


@dataclass(frozen=True)
class Pair:
    """The same traffic without and with a technique, simulated."""

    words: str
    traffic: Callable[[], Workload]
    without: Setting
    with_it: Setting
    judged: Callable[[ClientRecord], bool] = lambda _: True
    """Whose phases count."""


@dataclass(frozen=True)
class EnginePair:
    """The same prompt without and with a technique, on the real engine of this machine, one at a time."""

    words: str
    prompt_tokens: int
    without: Mapping[str, Any]
    with_it: Mapping[str, Any]


@dataclass(frozen=True)
class Technique:
    """One row of the map."""

    name: str
    knob: str
    """The field that switches it, as one would write it."""
    lesson: str
    """The lesson that shows it, as the beginning of its file's name."""
    heading: str
    """Where in it."""
    helps: Pair | EnginePair
    hurts: Pair | EnginePair
    """Or does nothing."""


def speculation(acceptance: float, **fields: Any) -> dict[str, Any]:
    """A small draft model. Its gates are open, so that the map shows what they are there for."""
    gates = {"max_batch": 256, "min_output_tokens": 1, "acceptance_floor": 0.0, "adaptive_k": False}
    drafts = {"method": "draft_model", "model": "llama-3.2-1b", "k": 4, "acceptance_rate": acceptance}
    return {"speculative": {**drafts, **gates}, **fields}


def at(**fields: Any) -> Setting:
    return Setting(fields)


def switched(without: Setting, with_it: Setting) -> Callable[..., Pair]:
    """Makes pairs of one technique, for other traffic each: its words, what arrives, and whose phases count."""
    return partial(Pair, without=without, with_it=with_it)


# ---------------------------------------------------------------- the rows, from admission to the last byte

TENANTS = SharedPrefix(tenants=24, prefix=HANDBOOK.prefix, question=HANDBOOK.question, output=HANDBOOK.output)
"""More handbooks than two caches of SMALL_POOL hold when both see all of them."""
SMALL_POOL = 9000
PATIENT = ClientConfig(first_byte_timeout_s=10.0)


TWO_REPLICAS = Setting(fleet={"replicas": 2})
APART = Setting(fleet={"disaggregation": Disaggregation(prefill_replicas=1, link_bytes_per_s=50e9)})


def slots(num: int, max_queue_len: int | None = None) -> Setting:
    """So many slots, and clients that wait ten seconds."""
    return Setting({"max_num_seqs": num, "max_queue_len": max_queue_len}, {"clients": PATIENT})


CONTINUOUS = switched(at(batching="static", max_num_seqs=16), at(batching="continuous", max_num_seqs=16))
SHORTEST_FIRST = switched(at(max_num_seqs=16), at(max_num_seqs=16, scheduling_order="shortest_prompt"))
CACHED = switched(at(enable_prefix_caching=False), at(enable_prefix_caching=True))
DISAGGREGATED = switched(TWO_REPLICAS, APART)
INT8_WEIGHTS = switched(at(), at(quantization="int8"))
GROUPED_HEADS = switched(at(kv_heads=64), at())
FLUSHED = switched(Setting(fleet={"network": Network(hold_chunks=16)}), at())
FUSED = partial(EnginePair, without={"attention_backend": "eager"}, with_it={"attention_backend": "sdpa"})

ROWS: tuple[Technique, ...] = (
    Technique(
        "continuous batching",
        "batching",
        "02b",
        "Three ways on the same arrivals",
        CONTINUOUS("chats of all lengths, 16 slots", lambda: many(CHAT, 2.6)),
        CONTINUOUS("equal answers that all arrive together", lambda: together(EQUAL, 64)),
    ),
    Technique(
        "more slots",
        "max_num_seqs",
        "02",
        "Many slots",
        Pair("chats, 8 slots or 64", lambda: many(CHAT, 2.6), at(max_num_seqs=8), at(max_num_seqs=64)),
        Pair(
            "long answers, KV memory for a few, 16 slots or 256",
            lambda: together(LONG_ANSWERS),
            at(tp=2, max_num_seqs=16),
            at(tp=2, max_num_seqs=256),
        ),
    ),
    Technique(
        "a limit on the queue",
        "max_queue_len",
        "02b",
        "Which requests to refuse?",
        Pair(
            "more chats than can be served, clients wait ten seconds",
            lambda: many(CHAT, 12.0, 300),
            slots(16),
            slots(16, max_queue_len=8),
        ),
        Pair(
            "few chats, but in clumps",
            lambda: make_workload(CHAT, Gamma(rate=1.0, cv=5.0), num_requests=200),
            slots(16),
            slots(16, max_queue_len=4),
        ),
    ),
    Technique(
        "shortest prompt first",
        "scheduling_order",
        "02b",
        "Who is next?",
        SHORTEST_FIRST("too many chats and long prompts; the chats", lambda: short_and_long(10.0, 300), judged=is_chat),
        SHORTEST_FIRST("the same run; the long prompts", lambda: short_and_long(10.0, 300), judged=is_long),
    ),
    Technique(
        "one more replica",
        "--replicas",
        "11c",
        "Replicas or a setting? In dollars",
        Pair(
            "more chats than one can serve",
            lambda: many(CHAT, 10.0, 300),
            Setting({"max_num_seqs": 16}),
            Setting({"max_num_seqs": 16}, {"replicas": 2}),
        ),
        Pair(
            "many handbooks, and a router that is blind to caches",
            lambda: many(TENANTS, 1.4, 240),
            at(num_kv_blocks=SMALL_POOL),
            Setting({"num_kv_blocks": SMALL_POOL}, {"replicas": 2, "router": RouterConfig(policy="random")}),
        ),
    ),
    Technique(
        "prefix caching",
        "enable_prefix_caching",
        "04",
        "Five minutes",
        CACHED("questions about one handbook of 4000 tokens", lambda: many(HANDBOOK, 2.6)),
        CACHED("chats that share nothing", lambda: many(CHAT, 2.6)),
    ),
    Technique(
        "a shorter prompt",
        "prompt_pruning.py",
        "03",
        "Going deeper",
        Pair(
            "long prompts, whole or half",
            lambda: many(LONG_PROMPTS, 1.3),
            Setting(),
            Setting(traffic=lambda: many(HALF_PROMPTS, 0.8)),
        ),
        Pair(
            "a cached handbook, no longer found once it's cut to fit each question",
            lambda: many(HANDBOOK, 2.6),
            Setting(),
            Setting(traffic=lambda: many(CUT_BY_QUESTION, 2.6)),
        ),
    ),
    Technique(
        "chunked prefill",
        "long_prefill_token_threshold",
        "03",
        "One long prompt, and the others",
        Pair(
            "chats beside long prompts; the chats",
            lambda: short_and_long(4.0),
            at(enable_chunked_prefill=False),
            at(long_prefill_token_threshold=512),
            is_chat,
        ),
        Pair(
            "long prompts one by one, chunks of 128",
            lambda: one_by_one(LONG_PROMPTS),
            at(enable_chunked_prefill=False),
            at(long_prefill_token_threshold=128),
        ),
    ),
    Technique(
        "fused attention",
        "attention_backend",
        "03",
        "The square, materialized or not",
        FUSED("a long prompt, this engine", 1000),
        FUSED("a short prompt, this engine", 64),
    ),
    Technique(
        "prefill and decode apart",
        "disaggregation",
        "05b",
        "Five minutes",
        DISAGGREGATED("long prompts and chats, two replicas; the chats", lambda: short_and_long(6.5), judged=is_chat),
        DISAGGREGATED("only long prompts, so the decode replica idles", lambda: many(LONG_PROMPTS, 3.2)),
    ),
    Technique(
        "weights in int8",
        "quantization",
        "09",
        "Two other kinds of traffic",
        INT8_WEIGHTS("chats one by one", lambda: one_by_one(CHAT)),
        INT8_WEIGHTS("long prompts that all arrive together", lambda: together(LONG_PROMPTS, 32)),
    ),
    Technique(
        "KV cache in int8",
        "kv_cache_dtype",
        "07b",
        "8-bit KV",
        Pair(
            "long chats, KV memory for a few", lambda: many(LONG_CHATS, 1.0), at(tp=2), at(tp=2, kv_cache_dtype="int8")
        ),
        Pair("short chats one by one", lambda: one_by_one(CHAT), at(), at(kv_cache_dtype="int8")),
    ),
    Technique(
        "fewer KV heads (GQA)",
        "a property of the model",
        "06",
        "Weights or KV?",
        GROUPED_HEADS("long chats; 64 KV heads or 8", lambda: many(LONG_CHATS, 3.2)),
        GROUPED_HEADS("short chats one by one", lambda: one_by_one(CHAT)),
    ),
    Technique(
        "speculation",
        "speculative",
        "08",
        "Copying, chat and verse",
        Pair("chats one by one, 8 of 10 drafts right", lambda: one_by_one(CHAT), at(), Setting(speculation(0.8))),
        Pair("a full batch, 4 of 10 right, no gates", lambda: together(CHAT, 128), at(), Setting(speculation(0.4))),
    ),
    Technique(
        "flush every token",
        "no buffering proxy",
        "10",
        "Three ways to spoil a stream",
        FLUSHED("chats behind a proxy that holds 16 chunks", lambda: many(CHAT, 1.0)),
        FLUSHED("answers of one token", lambda: many(ONE_TOKEN, 1.0)),
    ),
)
