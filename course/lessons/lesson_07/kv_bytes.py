"""What the keys and values of a chat take, by the model's shape, and how many such chats fit beside the weights."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from course.lab.lab import Lab
from course.lessons.lesson_06.shapes import LLAMA_13B, LLAMA_70B, Shape
from course.simulator.cost.hardware import find_hardware
from course.simulator.cost.placement import USABLE_MEMORY, WORKING_BYTES
from minillm.bench.target import Target
from minillm.kernels.attention.cache import QUANTIZED_DTYPES, tensors_of
from minillm.kernels.attention.window import Window
from minillm.model.arithmetic import NUMBER_BYTES, SCALE_BYTES, SCALED, KVCacheSize
from minillm.runner.kv_pool import KVPool

AS_BUILT, MHA, GQA, MQA, MLA = "as built", "MHA", "GQA", "MQA", "MLA"
HEADS = (AS_BUILT, MHA, GQA, MQA, MLA)
GROUP = 8
"""Query heads that share a key and a value, as Llama-3-70B has it: of GQA in a model that is built without."""
LATENT = 512 + 64
"""Numbers that multi-head latent attention keeps of a token in a layer: DeepSeek-V2's vector, and its rotated key."""
BLOCK = 16


@dataclass(frozen=True)
class Account:
    """One model in one deployment, and what is asked of its KV cache."""

    shape: Shape
    room: float
    """Bytes that weights and KV may take, over all accelerators."""
    heads: str = AS_BUILT
    kv_dtype: str = "bfloat16"
    context: int = 1500
    """Tokens of each chat."""
    window: int | None = None
    sinks: int = 4
    """Tokens at the beginning that stay, where there is a window."""

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
        """A key that all heads share cannot be cut: each accelerator keeps its own copy."""
        return max(1.0, self.shape.gpus / max(self.kv.vectors // 2, 1))

    @property
    def token_bytes(self) -> int:
        return self.kv.bytes_per_token(self.kv_dtype)

    @property
    def seen(self) -> Window:
        return Window() if self.window is None else Window(self.window, self.sinks)

    def chat_bytes_at(self, tokens: int) -> float:
        """Of a chat of so many tokens, in whole blocks, with all copies."""
        return self.copies * self.kv.bytes_of(tokens, self.kv_dtype, BLOCK, self.seen)

    @property
    def chat_bytes(self) -> float:
        return self.chat_bytes_at(self.context)

    @property
    def weight_bytes(self) -> float:
        return self.shape.cost.stored_bytes(self.shape.weight_dtype)

    @property
    def chats(self) -> int:
        """That fit at once; 0 where the weights alone are too large."""
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
    own = Shape.of_lab(lab)
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
    own = Shape.of_lab(lab)
    cost, width = own.cost, NUMBER_BYTES[own.kv_dtype]
    return (
        f"The pool has {gb} GB (1e9 bytes each). The model has {cost.layers} layers, {cost.num_kv_heads} heads with "
        f"keys and values of "
        f"their "
        f"own, {cost.head_dim} numbers in each, {width} bytes a number. How many chats of {tokens} tokens fit at once?"
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
