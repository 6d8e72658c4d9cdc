"""EngineConfig: one frozen, validated object; each serving technique is one field.

"Off" is a limiting value, not a branch: a prefix cache that never finds anything, a reservation
that takes the whole window. Unknown fields are errors, never ignored.
"""

import json
from collections.abc import Iterable
from typing import Any, Literal

from pydantic import Field, SerializeAsAny, model_validator

from minillm.core.errors import ConfigError
from minillm.strict_model import StrictModel


def parse_fields(assignments: list[str] | None, option: str) -> dict[str, Any]:
    """`["block_size=32", "speculative.method=ngram"]` to a dict, with a dict in it for names with a dot.

    Values are JSON; what is not JSON is a string.

    Raises:
        ConfigError: there is no `=`, a field is given twice, or a name with a dot is a part of what was given a plain
            value.
    """
    fields: dict[str, Any] = {}
    for assignment in assignments or []:
        name, equals, text = assignment.partition("=")
        if not equals or not name:
            raise ConfigError(f"{option} wants FIELD=VALUE, such as {option} seed=7; got {assignment!r}")
        try:
            value = json.loads(text)
        except json.JSONDecodeError:
            value = text
        *groups, last = name.split(".")
        inner = fields
        for group in groups:
            inner = inner.setdefault(group, {})
            if not isinstance(inner, dict):
                raise ConfigError(f"{option} {assignment}: {group} was given a plain value before: drop one of the two")
        if last in inner:
            raise ConfigError(f"{option} {assignment}: {name} was given before: drop one of the two")
        inner[last] = value
    return fields


READ_BY: dict[str, tuple[str, ...]] = {
    "model": ("draft_model", "draft_head"),
    "ngram_min": ("ngram",),
    "ngram_max": ("ngram",),
}
"""Fields of SpeculativeConfig that not every method reads, and the methods that do."""


MOST_DRAFTING = 64
"""Requests that draft in one step, where max_batch is not given: memory and graphs are made for so many, with k rows
more for each."""


class SpeculativeConfig(StrictModel):
    """Speculative decoding: something cheap drafts tokens, and the model checks them all in one step.

    A subclass may bring what drafts (`BringsProposer` in speculation/make.py).
    """

    _error: type[Exception] = ConfigError

    method: Literal["ngram", "draft_model", "draft_head"] = Field(
        description="ngram = look up what followed the same words before; draft_model = a smaller model; draft_head = "
        "a trained layer on the model's own hidden states"
    )
    k: int = Field(
        default_factory=lambda known: 3 if known.get("method") == "draft_head" else 7,
        ge=1,
        le=32,
        description="most draft tokens per request and step; if not given, 3 with a draft head, which is run for "
        "each of them, and 7 elsewhere: with its own that is 8 rows, cheap on a CPU",
    )
    model: str | None = Field(
        None,
        description="draft_model: short name, local folder, GGUF file or Hub id; draft_head: a folder with "
        "one, of ours or a published EAGLE-3 head, None = the head that comes with minillm for this model",
    )
    ngram_min: int = Field(2, ge=1, description="ngram: tokens that must match an earlier position")
    ngram_max: int = Field(8, ge=1, description="ngram: of several matches, the longest wins, up to this length")

    min_output_tokens: int = Field(8, ge=1, description="requests with a smaller max_tokens are left alone")
    max_batch: int | None = Field(
        None,
        ge=1,
        description="with more requests running, none drafts; None = as many as rows fit into a step before they cost "
        "as much as the step with one, at least 8 and at most 64",
    )
    acceptance_floor: float | None = Field(
        None,
        ge=0,
        lt=1,
        description="what one more row adds to the cost of a step with one, and a margin: a draft token less likely to "
        "be accepted is not worth it; the more requests run, the likelier it must be; None = 0.01 on GPUs, 0.12 on "
        "CPUs that multiply bfloat16, 0.25 elsewhere; 0 = draft always",
    )
    reprobe_steps: int = Field(64, ge=1, description="steps after which a request that was below the floor tries again")
    adaptive_k: bool = Field(True, description="draft only as far as the floor allows, by what was accepted so far")

    @property
    def most_drafting(self) -> int:
        """Requests that draft in one step, at most: memory and graphs are made for so many."""
        return MOST_DRAFTING if self.max_batch is None else self.max_batch

    @model_validator(mode="after")
    def _complete(self) -> "SpeculativeConfig":
        if self.method == "draft_model" and self.model is None:
            raise ValueError("draft_model wants a model: one that is smaller and has the same vocabulary")
        for name, methods in READ_BY.items():
            self._only_with(self.method in methods, f"method={' or '.join(methods)}", name)
        if self.ngram_min > self.ngram_max:
            raise ValueError(f"ngram_min ({self.ngram_min}) is larger than ngram_max ({self.ngram_max})")
        return self


GPU_SEQS, GPU_TOKENS = 256, 8192
"""max_num_seqs and max_num_batched_tokens on a GPU, if not given."""


class EngineConfig(StrictModel):
    """Everything that decides how the engine serves. Defaults are what one would deploy on this machine."""

    _error: type[Exception] = ConfigError

    model: str = Field("smollm2-135m", description="short name, local folder, GGUF file or Hub id")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="weights and KV cache; auto = the checkpoint's own, bfloat16 on a CPU"
    )
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto = cuda if there's a GPU")
    load_format: Literal["auto", "dummy"] = Field(
        "auto", description="dummy = random weights of the config's shape, for speed work"
    )
    max_model_len: int | None = Field(None, gt=1, description="longest prompt + output, tokens; None = the model's")
    quantization: Literal["int8", "int4", "fp8"] | None = Field(
        None, description="LOSSY: weights rounded when they are loaded; int4 by groups; fp8 on GPUs that have it"
    )
    int4_group_size: Literal[32, 64] = Field(
        32, description="int4: inputs of an output that share a scale; 5 or 4.5 bits a weight"
    )
    tensor_parallel_size: int = Field(
        1, ge=1, description="ranks: processes that share each layer, one GPU each, or all on the CPU, to learn from"
    )
    seed: int = Field(0, description="seed for requests that don't set their own")

    batching: Literal["continuous", "static", "none"] = Field(
        "continuous", description="static = a batch starts together and admits nothing until its last request ends"
    )
    max_num_seqs: int = Field(
        32, ge=1, description="slots: requests that run at the same time; 256 on a GPU; one with batching=none"
    )
    max_num_batched_tokens: int = Field(
        default_factory=lambda known: max(1024, known.get("max_num_seqs", 1)),
        ge=1,
        description="token budget of one step; if not given, 1024, or 8192 on a GPU, and never fewer than slots",
    )
    enable_chunked_prefill: bool = Field(
        True, description="a long prompt may take several steps; off = whole in one, even one over the budget"
    )
    long_prefill_token_threshold: int | None = Field(
        None, ge=1, description="most prompt tokens one request gets per step; None = the budget"
    )
    scheduler_reserve_full_isl: bool = Field(
        False,
        description="admit a request only when blocks are free for all its tokens, not just its first chunk; "
        "vLLM's name, and on by default there",
    )
    scheduling_order: Literal["fcfs", "shortest_prompt", "priority", "two_lane", "fair"] = Field(
        "fcfs", description="which waiting request is admitted first; fair = the tenant that's been served least"
    )
    two_lane_threshold: int = Field(512, ge=1, description="two_lane: longer prompts take the slow lane")

    enable_prefix_caching: bool = Field(True, description="reuse KV blocks of an equal prompt prefix")
    prefix_eviction: Literal["lru", "fifo", "ttl"] = Field(
        "lru",
        description="which cached block is evicted first: lru = the least recently used; fifo = the oldest, used since "
        "or not; ttl = lru, plus expiry after prefix_ttl_s without use",
    )
    prefix_ttl_s: float = Field(300.0, gt=0, description="ttl: seconds that a cached block outlives its last use")
    kv_reservation: Literal["on_demand", "max_len"] = Field(
        "on_demand", description="max_len = every request reserves the whole window up front"
    )
    block_size: int | None = Field(
        None, ge=1, description="tokens per KV block; None = what the attention backend prefers (16, most of them)"
    )
    num_kv_blocks: int | None = Field(None, ge=1, description="KV pool size in blocks")
    kv_cache_memory_gb: float | None = Field(
        None,
        gt=0,
        le=1e9,
        description="KV pool size in GB (1e9 bytes); the default is 1 GB on a CPU, 90% of free memory on a GPU, "
        "less what a draft model's pool takes, which has as many blocks in addition",
    )
    kv_cache_dtype: Literal["auto", "int8", "fp8"] = Field(
        "auto", description="auto = dtype; the others are LOSSY: half the bytes, a scale for each token and head"
    )
    sliding_window: int | None = Field(
        None, ge=1, description="LOSSY: a token sees this many tokens, itself and those before it; None = everything"
    )
    attention_sinks: int = Field(
        0, ge=0, description="sliding_window: this many tokens at the start of a sequence stay visible"
    )
    preemption: Literal["recompute", "swap"] = Field(
        "recompute", description="what happens to a request whose KV blocks are taken away"
    )
    swap_space_gb: float = Field(0.5, gt=0, le=1e9, description="host memory for swapped-out KV, GB")

    attention_backend: Literal["auto", "eager", "sdpa", "native", "triton", "hopper", "fa3", "fa2"] = Field(
        "auto",
        description="eager = the textbook; native, triton = ours; hopper = fa3 and triton; auto = the first of a fixed "
        "order that can run",
    )
    cuda_graphs: bool = Field(
        True, description="GPU: replay captured kernels; in a step with prompts, all but attention's"
    )
    piecewise_graphs: bool = Field(True, description="off = a step with prompts is launched kernel by kernel")
    lazy_graphs: bool = Field(
        False,
        description="capture the largest size at start, others when they're met: a faster start, slower steps then",
    )
    fused_kernels: bool = Field(True, description="norms, rotation with cache write, and SwiGLU as one kernel each")
    async_scheduling: bool | None = Field(
        None, description="prepare the next step while this one runs; None = on a GPU, where it pays off"
    )

    speculative: SerializeAsAny[SpeculativeConfig] | None = Field(
        None, description='draft tokens that one step checks: {"method": "ngram", "k": 4}'
    )

    max_queue_len: int | None = Field(None, ge=1, description="waiting requests before new ones are refused")
    queue_timeout_s: float | None = Field(None, gt=0, description="longest wait in the queue, seconds")
    max_prompt_tokens: int | None = Field(None, ge=1, description="longest prompt admitted, tokens")
    grammar_timeout_s: float = Field(
        5.0,
        gt=0,
        le=3600,
        description="CPU seconds to compile a grammar of a structured output; beyond, the request is refused",
    )

    @model_validator(mode="after")
    def _consistent(self) -> "EngineConfig":
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) must be at least max_num_seqs "
                f"({self.max_num_seqs}), or some running requests would get no token in a step"
            )
        if self.num_kv_blocks is not None and self.kv_cache_memory_gb is not None:
            raise ValueError("num_kv_blocks and kv_cache_memory_gb both set the size of the KV pool: give one")
        if self.speculative is not None and self.async_scheduling:
            raise ValueError("async_scheduling=True cannot be had with speculative: a draft follows known tokens")
        is_whole = self.tensor_parallel_size == 1
        is_lookup = self.speculative is None or self.speculative.method == "ngram"
        self._only_with(is_whole, "tensor_parallel_size=1, so far", "quantization")
        self._only_with(is_whole or not self.async_scheduling, "tensor_parallel_size=1, so far", "async_scheduling")
        self._only_with(is_whole or is_lookup, "tensor_parallel_size=1 or method=ngram, so far", "speculative")
        self._only_with(self.sliding_window is not None, "a sliding_window", "attention_sinks")
        self._only_with(self.quantization == "int4", "quantization=int4", "int4_group_size")
        self._only_with(self.preemption == "swap", "preemption=swap", "swap_space_gb")
        self._only_with(self.enable_prefix_caching, "enable_prefix_caching", "prefix_eviction")
        self._only_with(self.prefix_eviction == "ttl", "prefix_eviction=ttl", "prefix_ttl_s")
        self._only_with(self.scheduling_order == "two_lane", "scheduling_order=two_lane", "two_lane_threshold")
        self._only_with(self.enable_chunked_prefill, "enable_chunked_prefill", "long_prefill_token_threshold")
        return self

    def for_device(self, device_type: str) -> "EngineConfig":
        """This configuration, with a GPU's limits of a step where none were asked for: it has room for more, and idles
        with less."""
        if device_type != "cuda":
            return self
        given, tokens = self.model_fields_set, self.max_num_batched_tokens
        tokens = tokens if "max_num_batched_tokens" in given else max(GPU_TOKENS, tokens)
        is_given = "max_num_seqs" in given or self.batching == "none"
        seqs = self.max_num_seqs if is_given else min(GPU_SEQS, tokens)
        return self.replace(max_num_batched_tokens=tokens, max_num_seqs=seqs)

    def same_in(self, other: "EngineConfig", names: Iterable[str]) -> bool:
        """Whether both have the same values in these fields."""
        return all(getattr(self, name) == getattr(other, name) for name in names)

    @property
    def max_decode_rows(self) -> int:
        """Most tokens that requests with nothing to catch up on compute in one step: one each, and their drafts."""
        num_seqs = 1 if self.batching == "none" else self.max_num_seqs
        drafting = min(num_seqs, self.speculative.most_drafting) * self.speculative.k if self.speculative else 0
        return num_seqs + drafting
