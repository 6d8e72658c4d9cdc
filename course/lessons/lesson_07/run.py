"""Lesson 07, the KV cache as a working set: requests and pools, and bytes of keys and values by a model's shape."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from course.lab.lab import Lab
from course.lab.model_shape import LLAMA_13B, LLAMA_70B, ModelShape
from course.lab.pool_trace import PoolTrace, StepArrival, record
from course.lab.predict import MeasuredAnswer
from course.lab.style import size
from course.lab.texts import CHAT_QUESTIONS, MANUAL, MANUAL_QUESTIONS
from course.lab.workloads import document
from course.simulator.cost.hardware import find_hardware
from course.simulator.cost.placement import USABLE_MEMORY, WORKING_BYTES
from course.simulator.cost.sizes import KVCacheSize
from minillm import Engine
from minillm.bench.target import Target
from minillm.core.block_pool import blocks_for
from minillm.kernels.attention.cache import QUANTIZED_DTYPES, tensors_of
from minillm.kernels.attention.window import Window
from minillm.model.arithmetic import NUMBER_BYTES, SCALE_BYTES, SCALED
from minillm.runner.kv_pool import KVPool

# ---------------------------------------------------------------- engines and requests

WINDOW_LEN = 256
"""max_model_len of the small traces: what a request may grow to, and what `max_len` sets aside for it."""
ROOMY_POOL, SMALL_POOL, MEAN_POOL, TIGHT_POOL = 96, 48, 32, 24
"""Blocks of the small traces: plenty; enough for all eight on demand; for most; for too few of them."""
BLOCK = 16


STEPPED: dict[str, Any] = {"async_scheduling": False, "max_num_seqs": 32}
"""Fields of an engine that waits for each step before the next: what a trace shows is then all there is."""


def engine(lab: Lab, **fields: Any) -> Engine:
    """An engine of your own, STEPPED. It ends the one before."""
    return lab.next_engine(**{**STEPPED, **fields})


def play(lab: Lab, arrivals: Sequence[StepArrival], name: str = "", **fields: Any) -> PoolTrace:
    """A trace of these requests on a fresh pool.

    Args:
        fields: EngineConfig fields that differ from the lab's.
    """
    with lab.alone():
        return record(engine(lab, **fields), arrivals, name)


# ---------------------------------------------------------------- eight requests, ever less room

LENGTHS = (40, 64, 30, 80, 100, 48, 72, 56)
"""Tokens of answers: longer than most questions, so that every request grows."""


def cast(lab: Lab) -> list[StepArrival]:
    """Eight requests: half of them ask about one page of the handbook, half bring a question of their own."""
    encode = lab.tokenizer.encode
    page = f"Answer from this handbook. {MANUAL[0]}"
    asked = [f"{page}\n\nQuestion: {question}" for question in MANUAL_QUESTIONS[:4]]
    own = [f"{question} {MANUAL[i][:160]}" for i, question in enumerate(CHAT_QUESTIONS[:4], start=2)]
    texts = [text for pair in zip(asked, own) for text in pair]
    share = 1.0 if lab.scale == 1 else 0.5
    return [
        StepArrival(round(3 * share * i), tuple(encode(text)), max(4, round(length * share)))
        for i, (text, length) in enumerate(zip(texts, LENGTHS))
    ]


def small(**fields: Any) -> dict[str, Any]:
    """Engine fields of the small traces."""
    return {"max_model_len": WINDOW_LEN, "num_kv_blocks": SMALL_POOL, "max_num_batched_tokens": 128, **fields}


def reservations(lab: Lab) -> dict[str, PoolTrace]:
    """The same eight, the same pool: all that a request may grow to set aside on arrival, or block by block."""
    arrivals = cast(lab)
    return {way: play(lab, arrivals, way, **small(kv_reservation=way)) for way in ("max_len", "on_demand")}


def limits(lab: Lab, on_demand: PoolTrace) -> dict[int, dict[str, PoolTrace]]:
    """The same eight, everything set aside under two context limits, in a pool with room for all requests.

    Args:
        on_demand: their trace with room for all requests. What it holds does not depend on the limit.
    """
    arrivals, found = cast(lab), {}
    for limit in (WINDOW_LEN, 2 * WINDOW_LEN):
        fields = small(kv_reservation="max_len", max_model_len=limit, num_kv_blocks=len(arrivals) * limit // BLOCK)
        found[limit] = {"max_len": play(lab, arrivals, "max_len", **fields), "on_demand": on_demand}
    return found


def thrash(lab: Lab, *known: PoolTrace) -> dict[str, dict[int, PoolTrace]]:
    """By what becomes of the evicted: a trace for each pool, ever smaller; two more than `known`.

    Args:
        known: traces of the larger pools, with preemption="recompute". Where nothing is evicted, swap is the same.
    """
    recompute = {trace.num_blocks: trace for trace in known}
    recompute |= {n: eight(lab, n) for n in (MEAN_POOL, TIGHT_POOL)}
    swap = {n: eight(lab, n, "swap") if trace.evictions else trace for n, trace in recompute.items()}
    return {"recompute": recompute, "swap": swap}


def eight(lab: Lab, pool: int, way: str = "recompute") -> PoolTrace:
    """The eight in a pool of so many blocks; `way` says what becomes of those who are evicted, if any are."""
    return play(lab, cast(lab), f"{way}, {pool} blocks", **small(num_kv_blocks=pool, preemption=way))


# ---------------------------------------------------------------- how many chats fit

CHAT_TOKENS, CHAT_TOKENS_SHORT = 1500, 200
"""Tokens of a chat whose slots are counted: prompt and answer."""
ANSWER = 16
"""Tokens of their answers: long enough that none finishes before the last one has arrived."""
BLOCK_TOKENS = 16
"""As the question says."""
POOL_CHATS = 4.6
"""Chats that the pool of that question has room for: the rest of the last one is of no use."""


def chat_tokens(lab: Lab) -> int:
    """CHAT_TOKENS, or what the lab's context window holds."""
    return min(CHAT_TOKENS if lab.scale == 1 else CHAT_TOKENS_SHORT, lab.config().max_model_len - 1)


def slots_gb(lab: Lab) -> float:
    """The pool of that question, with two digits: room for POOL_CHATS chats, whatever the lab's model."""
    return float(f"{POOL_CHATS * chat_tokens(lab) * ModelShape.of_lab(lab).kv_bytes_per_token / 1e9:.2g}")


def chats(lab: Lab, count: int, tokens: int, answer: int = ANSWER) -> list[StepArrival]:
    """`count` simultaneous chats, no two of which share anything; each keeps exactly so many tokens in the end."""
    encode = lab.tokenizer.encode
    arrivals = []
    for i in range(count):
        text = f"{i}. {document(random.Random(f'chat-{i}'), tokens // 40 + 2)}"
        arrivals.append(StepArrival(0, tuple(encode(text)[: tokens + 1 - answer]), answer))
    return arrivals


def filling(lab: Lab, gb: float | None = None, tokens: int | None = None) -> PoolTrace:
    """As many long chats as ought to fit into `gb` of KV, and one more, all together.

    A chat begins when blocks are free for its whole prompt, as in vLLM; so a running request stays.
    """
    gb, tokens = gb or slots_gb(lab), tokens or chat_tokens(lab)
    with lab.alone():
        own = engine(
            lab,
            block_size=BLOCK_TOKENS,
            num_kv_blocks=int(gb * 1e9 / (BLOCK_TOKENS * ModelShape.of_lab(lab).kv_bytes_per_token)),  # over all GPUs
            scheduler_reserve_full_isl=True,
            enable_prefix_caching=False,
            max_num_batched_tokens=2048,
        )
        fit = own.runner.num_kv_blocks // blocks_for(tokens, own.config.block_size)
        return record(own, chats(lab, fit + 1, tokens), f"{gb} GB")


# ---------------------------------------------------------------- more KV for each, fewer slots

CROWD_POOL, CROWD = 96, 16
"""Blocks, and requests, of the question how many slots a reservation leaves."""
CROWD_ANSWER, CROWD_ANSWER_SHORT = 24, 12
"""Tokens of an answer; a request's prompt fills up the rest of its 64."""
RESERVATIONS, RESERVATIONS_SHORT = (128, 256, 512, 1024), (512,)
"""max_model_len: under `max_len` every request sets so many tokens aside."""
TURNS = 3
"""Runs of each of two settings whose speeds are compared, by turns: seconds are noisy."""


def crowd(lab: Lab, count: int) -> list[StepArrival]:
    """So many equal requests."""
    return chats(lab, count, 64, answer=CROWD_ANSWER if lab.scale == 1 else CROWD_ANSWER_SHORT)


def crowded(lab: Lab) -> dict[int, PoolTrace]:
    """By tokens that each request sets aside: the same short requests, the same pool. 0 = none, block by block.

    The first and the last are compared by their seconds: each is played TURNS times, by turns, and the fastest is kept;
    in the short form once.
    """
    arrivals = crowd(lab, CROWD if lab.scale == 1 else CROWD // 2)
    longest = lab.config().max_model_len
    fields = {"num_kv_blocks": CROWD_POOL, "enable_prefix_caching": False, "max_num_batched_tokens": 512}
    tried = RESERVATIONS if lab.scale == 1 else RESERVATIONS_SHORT

    def trace(tokens: int) -> PoolTrace:
        if not tokens:
            return play(lab, arrivals, "on demand", **fields)
        return play(lab, arrivals, f"{tokens} each", max_model_len=tokens, kv_reservation="max_len", **fields)

    traces = {tokens: trace(tokens) for tokens in (0, *(each for each in tried if each <= longest))}
    for _ in range(TURNS - 1 if lab.scale == 1 else 0):
        for tokens in (0, max(traces)):
            traces[tokens] = min(traces[tokens], trace(tokens), key=lambda each: each.seconds)
    return traces


def with_and_without_prefixes(lab: Lab) -> dict[str, PoolTrace]:
    """A tight pool, prompts that share nothing: does a prefix cache take slots away?"""
    arrivals = crowd(lab, CROWD // 2)
    fields = {"num_kv_blocks": CROWD_POOL // 6, "max_num_batched_tokens": 512}
    return {
        name: play(lab, arrivals, name, enable_prefix_caching=on, **fields)
        for name, on in (("on", True), ("off", False))
    }


# ---------------------------------------------------------------- one request of each length

LENGTHS_ALONE, LENGTHS_ALONE_SHORT = (128, 256, 512, 1024), (64, 128)


def lengths(lab: Lab) -> dict[int, PoolTrace]:
    """One request of each length, alone."""
    tried = LENGTHS_ALONE if lab.scale == 1 else LENGTHS_ALONE_SHORT
    return {each: play(lab, chats(lab, 1, each, answer=2), str(each)) for each in tried}


# ---------------------------------------------------------------- bytes of keys and values, by a model's shape

AS_BUILT, MHA, GQA, MQA, MLA = "as built", "MHA", "GQA", "MQA", "MLA"
HEADS = (AS_BUILT, MHA, GQA, MQA, MLA)
GROUP = 8
"""Query heads that share a key and a value, as Llama-3-70B has it: of GQA in a model that is built without."""
LATENT = 512 + 64
"""Numbers that multi-head latent attention keeps of a token in a layer: DeepSeek-V2's vector, and its rotated key."""


@dataclass(frozen=True)
class Account:
    """One model in one deployment, and what is asked of its KV cache."""

    shape: ModelShape
    room: float
    """Bytes that weights and KV may take, over all accelerators."""
    heads: str = AS_BUILT
    kv_dtype: str = "bfloat16"
    context: int = 1500
    """Tokens of each chat."""
    window: int | None = None
    sinks: int = 4
    """Tokens at the beginning that stay, where there is a window."""
    is_striped: bool = False
    """Decode context parallelism: each accelerator keeps a share of every chat's positions, and no copies."""

    @property
    def group(self) -> int:
        """Query heads that share a key and a value under GQA: as the model is built, if it is built so."""
        return self.shape.query_heads // self.shape.cost.num_kv_heads if self.shape.kind == GQA else GROUP

    @property
    def kv(self) -> KVCacheSize:
        """Raises ValueError: the heads cannot be put into groups of that size."""
        cost = self.shape.cost
        query = self.shape.query_heads
        if self.heads == MLA:
            return KVCacheSize("MLA", cost.layers, 1, LATENT)
        if self.heads == GQA and query % self.group:
            raise ValueError(f"{query} heads cannot be put into groups of {self.group}")
        kept = {AS_BUILT: cost.num_kv_heads, MHA: query, GQA: query // self.group, MQA: 1}[self.heads]
        return KVCacheSize.of_heads(cost.layers, query, kept, cost.head_dim)

    @property
    def copies(self) -> float:
        """A key that all heads share cannot be cut by heads: each accelerator keeps its own copy, unless positions are
        dealt out instead."""
        return 1.0 if self.is_striped else max(1.0, self.shape.gpus / max(self.kv.vectors // 2, 1))

    @property
    def token_bytes(self) -> int:
        return self.kv.bytes_per_token(self.kv_dtype)

    @property
    def seen(self) -> Window:
        return Window() if self.window is None else Window(self.window, self.sinks)

    def chat_bytes_at(self, tokens: int) -> float:
        """KV of a chat of so many tokens, in whole blocks, with all copies."""
        return self.copies * self.kv.bytes_of(tokens, self.kv_dtype, BLOCK, self.seen)

    @property
    def chat_bytes(self) -> float:
        return self.chat_bytes_at(self.context)

    @property
    def weight_bytes(self) -> float:
        return self.shape.cost.stored_bytes(self.shape.weight_dtype)

    @property
    def chats(self) -> int:
        """That fit together; 0 where the weights alone are too large."""
        return int(max(self.room - self.weight_bytes, 0) // self.chat_bytes)

    def formula(self) -> str:
        """The bytes of one token, written out."""
        kv = self.kv
        each = f"{kv.vector_size} numbers × {NUMBER_BYTES[self.kv_dtype]} B"
        each = f"({each} + {SCALE_BYTES} B of scale)" if self.kv_dtype in SCALED else each
        who = (
            "1 latent vector"
            if kv.kind == "MLA"
            else f"2 (key, value) × {kv.vectors // 2} head{'s' * (kv.vectors > 2)}"
        )
        return f"{kv.layers} layers × {who} × {each}"


def accounts(lab: Lab) -> dict[str, Account]:
    """The lab's own pool, Llama-2-13B on one H100, Llama-3-70B on four."""
    config = lab.config()
    own = ModelShape.of_lab(lab)
    pool = (config.num_kv_blocks or 0) * BLOCK * own.kv_bytes_per_token
    mine = Account(own, own.cost.stored_bytes(own.weight_dtype) + pool, kv_dtype=own.kv_dtype)
    h100 = find_hardware("h100-sxm")
    usable = USABLE_MEMORY * h100.memory - WORKING_BYTES
    return {own.name: mine} | {s.name: Account(s, s.gpus * usable) for s in (LLAMA_13B, LLAMA_70B)}


def kinds_of(account: Account) -> dict[str, Account]:
    """The same chat under each way of sharing keys and values among heads; GQA only where groups come out even."""
    even = account.shape.query_heads % account.group == 0
    return {heads: replace(account, heads=heads) for heads in HEADS if heads != AS_BUILT and (even or heads != GQA)}


def question(lab: Lab, gb: float, tokens: int) -> str:
    """How many chats fit, with all that is needed to work it out."""
    own = ModelShape.of_lab(lab)
    cost, width = own.cost, NUMBER_BYTES[own.kv_dtype]
    return (
        f"The pool has {gb} GB (1e9 bytes each). The model has {cost.layers} layers, {cost.num_kv_heads} KV heads of "
        f"{cost.head_dim} numbers each, and {width} bytes per number. "
        f"How many chats of {tokens} tokens fit at the same time?"
    )


def allocated(lab: Lab, dtype: str) -> int:
    """Bytes of one token, counted on the tensors of a pool that is made for the lab's model."""
    config = lab.config()
    model_config = Target(model=config.model, dtype=config.dtype, device=config.device).model_config()
    torch_dtype = QUANTIZED_DTYPES.get(dtype) or getattr(torch, dtype)
    pool = KVPool(model_config, 1, 0, BLOCK, torch_dtype, torch.device("meta"))  # tensors without memory
    num_bytes = sum(part.nbytes for layer in pool.layers for part in tensors_of(layer))
    return num_bytes // (2 * BLOCK)  # one block, and the null block


def by_hand(lab: Lab) -> int:
    """Bytes of one token of the lab's model, by the formula."""
    return next(iter(accounts(lab).values())).token_bytes


def in_pool(lab: Lab) -> int:
    """The same, on the tensors of a pool."""
    return allocated(lab, next(iter(accounts(lab).values())).kv_dtype)


def large(shapes: Mapping[str, Account]) -> Account:
    """The 70B, of `accounts`."""
    return shapes[LLAMA_70B.name]


# ---------------------------------------------------------------- what the predictions are scored by


def slots(trace: PoolTrace, tokens: int) -> MeasuredAnswer:
    """How many chats ran at the same time, of more than had room."""
    blocks = -(-tokens // trace.block_size)
    return MeasuredAnswer(
        float(trace.most_running),
        f"{trace.most_running} of {len(trace.outcomes)} chats ran at the same time. A block is "
        f"{size(trace.block_bytes)} and the pool has {trace.num_blocks}; a chat takes {blocks} of them, "
        f"{size(blocks * trace.block_bytes)}",
    )


def done_twice(trace: PoolTrace) -> MeasuredAnswer:
    """Share of the computed tokens that had been computed before."""
    share = trace.again / trace.tokens
    return MeasuredAnswer(
        100 * share,
        f"{trace.again} of {trace.tokens} tokens computed had been computed before ({share:.0%}), after "
        f"{trace.evictions} preemptions",
    )
