"""What serving engines do by themselves: number formats, budgets, chunks; and which constants price their steps.

A row says little of it. What it leaves out is as in the engine's documentation, or for InferenceX's runs as in the
scripts that start them (benchmarks/single_node of github.com/SemiAnalysisAI/InferenceX).
"""

import functools
import math
import re
from dataclasses import dataclass
from typing import Literal

from course.simulator.accuracy.points import Point, Refusal
from course.simulator.cost.hardware import find_hardware
from course.simulator.cost.models import PRICED_SHAPES, PricedModel, find_model
from course.simulator.cost.profile import engine_profile, similar_card
from course.simulator.errors import UnknownHardwareError
from minillm.model.checkpoints import SHAPES

NO_MODEL = "model: its shape is not packaged"
NO_HARDWARE = "system: not in the catalogue of accelerators"
NO_PRECISION = "precision: neither fp4, fp8 nor bf16"
NO_BACKEND = "backend: neither vllm, sglang nor trtllm"

SPELLINGS = {"deepseek-r1": "deepseek-v3", "deepseek-v3.1": "deepseek-v3", "deepseek-v3-0324": "deepseek-v3"}
"""Models of one shape."""
WEIGHTS = {"fp4": "fp4", "fp8": "fp8", "bf16": "bfloat16", "fp16": "bfloat16", "": "bfloat16"}
"""Dtype of the experts' and the linear layers' weights, by a row's precision."""
BLACKWELL = ("b200", "b300", "gb200", "gb300")


@functools.cache
def shape_of(model: str) -> str:
    """The packaged shape of a checkpoint, however it was quantized: `nvidia/Llama-3.1-8B-Instruct-FP8` is llama-3.1-8b.

    Raises:
        Refusal: there is none.
    """
    name = model.rpartition("/")[2].lower()
    name = re.sub(r"-(instruct|chat|it|base|fp8|nvfp4|fp4|awq|gptq|int4|0528|2507)(?=-|$)", "", name)
    name = SPELLINGS.get(name, name)
    if name not in SHAPES and name not in PRICED_SHAPES:
        raise Refusal(NO_MODEL)
    return name


@functools.cache
def card_of(system: str) -> str:
    """The accelerator's name in the catalogue: `h100_sxm` is h100-sxm.

    Raises:
        Refusal: it isn't there.
    """
    try:
        return find_hardware(system).name
    except UnknownHardwareError:
        raise Refusal(NO_HARDWARE) from None


@functools.cache
def model_of(shape: str) -> PricedModel:
    return find_model(shape)


GENERATIONS: dict[str, dict[str, str]] = {
    "vllm": {
        r"0\.1[12]\.": "vllm-0.12",
        r"0\.1[567]\.": "vllm-0.15",
        r"0\.1[89]\.|0\.[2-9]|nightly": "vllm-0.19",
        r"": "vllm-0.11",
    },
    "trtllm": {
        r"1\.0": "trtllm-1.0",
        r"1\.2": "trtllm-1.2",
        r"1\.3": "trtllm-1.3",
        r"0\.": "dynamo-trtllm",
        r"": "trtllm-1.1",
    },
    "sglang": {
        r"0\.5\.1[0-9]|nightly": "sglang-0.5.10",
        r"0\.5\.1": "sglang-0.5.1",
        r"0\.5\.5": "sglang-0.5.5",
        r"0\.5\.6": "sglang-0.5.6",
        r"0\.5\.8": "sglang-0.5.8",
        r"0\.5\.9": "sglang-0.5.9",
        r"": "sglang-0.5.4",
    },
}
"""By backend: patterns of versions, the first that fits counts, and the engine that constants were fitted to. Versions
that a row leaves out are of autumn 2025."""


def engine_of(backend: str, version: str, is_disaggregated: bool = False) -> str | None:
    """The engine whose constants count for a version of a backend; None = there is none. Between pools, TensorRT-LLM is
    Dynamo's."""
    if backend == "trtllm" and is_disaggregated:
        return "dynamo-trtllm"
    engines = GENERATIONS.get(backend, {})
    return next((name for pattern, name in engines.items() if re.match(pattern, version)), None)


def profile_for(backend: str, version: str, card: str, shape: str, weights: str, is_disaggregated: bool = False) -> str:
    """The profile that prices an engine's steps on a card, for `find_profile`: constants fitted to this generation of
    the engine on such cards, with such weights; else today's stack."""
    engine = engine_of(backend, version, is_disaggregated)
    if engine is None or similar_card(engine, card) is None:
        return card
    name = f"{engine}@{card}"
    return name if weights in engine_profile(name).for_model(model_of(shape)).by_weights else card


@dataclass(frozen=True, slots=True)
class Formats:
    """What numbers are kept in."""

    weights: str
    kv_cache: str


def formats_of(point: Point, shape: str, card: str) -> Formats:
    """What a row's numbers are kept in.

    - gpt-oss comes in fp4 (MXFP4), whatever a row says of activations
    - TensorRT-LLM keeps the KV cache in fp8 for checkpoints in fp8 and fp4, as ModelOpt's say
    - so do vLLM and SGLang for ModelOpt's own checkpoints (nvidia/...), which state the format of their cache
    - InferenceX sets an fp8 cache for vLLM and SGLang on Blackwell, and for Llama 70B everywhere
    - all others keep it in bfloat16, vLLM's and SGLang's `auto`

    Raises:
        Refusal: precision or backend are not known.
    """
    if point.precision not in WEIGHTS:
        raise Refusal(NO_PRECISION)
    if point.backend not in ("vllm", "sglang", "trtllm"):
        raise Refusal(NO_BACKEND)
    weights = "fp4" if shape.startswith("gpt-oss") else WEIGHTS[point.precision]
    is_quantized = weights in ("fp4", "fp8")
    if point.backend == "trtllm" or point.model.startswith("nvidia/"):
        small = is_quantized
    else:
        small = point.is_inferencex and is_quantized and (card in BLACKWELL or shape.startswith("llama"))
    return Formats(weights, "fp8" if small else "bfloat16")


def budget_of(point: Point, shape: str, card: str) -> int:
    """Most tokens in a step.

    - vLLM: 8192 on cards with 70 GB or more; InferenceX gives MiniMax-M2.5 two prompts' worth on Blackwell, and
      32,768 on H200
    - SGLang: chunks of 8192, and of 16,384 on Blackwell; InferenceX's 32,768 for GLM-5, and DeepSeek in fp8, on one
      server
    - TensorRT-LLM: 8192, or what InferenceX's scripts compute, if it's more: one prompt and a token for each request.
      In 2025 they took that though it was less, so that a step had room for one prompt. gpt-oss 20,000, Llama 16,384
    """
    if point.backend == "vllm":
        if point.is_inferencex and shape == "minimax-m2.5" and card in BLACKWELL:
            return 2 * point.isl
        return 32_768 if point.is_inferencex and shape == "minimax-m2.5" and card == "h200" else 8192
    if point.backend == "sglang":
        is_large = shape == "glm-5" or point.precision == "fp8"
        if point.is_inferencex and model_of(shape).latent_size and is_large and not point.is_disaggregated:
            return 32_768
        return 16_384 if card in BLACKWELL else 8192
    if point.is_inferencex and shape.startswith("gpt-oss"):
        return 20_000
    if point.is_inferencex and shape.startswith("llama"):
        return 16_384
    needed = -(-(point.isl + (point.concurrency or 0) + 64) // 64) * 64
    is_one_server = card in ("b200", "h200")
    return needed if point.is_cold and is_one_server else max(8192, needed)


@dataclass(frozen=True, slots=True)
class Memory:
    """How much of an accelerator's memory a server takes for weights and the KV cache."""

    share: float
    of: Literal["all", "static", "rest"]
    """All of it, working memory included; or without that; or what weights and working memory leave, for the cache
    alone."""
    holds_answers: bool
    """A request is let in when there is room for all that it may write, so that none is ever preempted."""


def memory_of(point: Point, shape: str, card: str, gpus: int) -> Memory:
    """What an engine's memory setting is, and InferenceX sets it to.

    - vLLM: 0.9 of all (`--gpu-memory-utilization`); 0.95 for MiniMax-M2.5 on H200
    - SGLang: 0.85 of all (`--mem-fraction-static`); 0.82 for models with latent attention in fp8 (0.95 on four
      accelerators, which they fill), 0.8 for Qwen3.5
    - TensorRT-LLM: 0.9 of the rest (`free_gpu_memory_fraction`); 0.85 for gpt-oss, 0.8 for models with latent
      attention, 0.75 on H200 and on four accelerators. Its scheduler lets no request in that might be preempted

    Args:
        gpus: accelerators of a server.
    """
    own = point.is_inferencex and not point.is_disaggregated
    if point.backend == "vllm":
        return Memory(0.95 if own and shape == "minimax-m2.5" and card == "h200" else 0.9, "all", False)
    latent = model_of(shape).latent_size > 0
    if point.backend == "sglang":
        share = 0.8 if own and shape.startswith("qwen3.5") else 0.85
        if latent and point.precision == "fp8":
            share = 0.95 if gpus == 4 else 0.82
        return Memory(share, "static", False)
    share = 0.9
    if own and shape.startswith("gpt-oss"):
        share = 0.85
    elif own and latent:
        is_tight = card == "h200" or (point.precision == "fp8" and gpus == 4)
        share = 0.75 if is_tight else 0.8
    return Memory(share, "rest", True)


FILLER_SLOTS = 1
"""Slots that fill a CUDA graph's batch up, of those that TensorRT-LLM 1.0 was given."""


def slots_of(point: Point, shape: str) -> int | None:
    """Most requests that run together on a rank; None = more than are open. AIConfigurator's runs of dense models under
    TensorRT-LLM 1.0 have as many slots as requests are open, and that engine keeps one to fill batches up: one request
    always waits, by TTFT, which falls with the number of them and grows with the answer."""
    if point.backend == "trtllm" and point.version.startswith("1.0") and not model_of(shape).num_experts:
        return max((point.concurrency or 0) - FILLER_SLOTS, 1)
    return None


@dataclass(frozen=True, slots=True)
class Waits:
    """How long a request waits before it is looked at, while the server does nothing but write answers."""

    look_every: int = 1
    """Steps of answers between two looks for requests."""
    hold_steps: int = 0
    """Steps that the first is held for others to come."""
    for_ranks: float = 0.0
    """Steps until every data-parallel rank has a prompt, on average."""


def waits_of(point: Point, shape: str, card: str, gpus: int, ranks: int) -> Waits:
    """As InferenceX sets it:

    - SGLang on Blackwell saves its CPU with a `--scheduler-recv-interval` of 10, and of 30 from 16 open requests on:
      it looks after so many steps of answers, or after a step with prompts. Always 10 for GLM-5 in fp4, and for Qwen3.5
      in fp8 on B300 since SGLang 0.5.10; GLM-5 in fp8 has none
    - TensorRT-LLM, prompts of 1,024 tokens: `batch_wait_timeout_iters` holds prompts for 20 steps (Llama on fewer than
      8 accelerators) or 40 (DeepSeek in fp8 on B200 in 2026, from 64 open requests on) after the first. (Less, if they
      nearly fill a step: `batch_wait_max_tokens_ratio` of 0.9 and 0.8, which they don't)
    - TensorRT-LLM, data-parallel attention: with `enable_balance`, prompts wait until every rank has one, but no longer
      than `timeout_iters`: 60 for DeepSeek, and 50 where InferenceX doesn't say (gpt-oss and MiniMax on Blackwell)

    Args:
        gpus: accelerators of the server.
        ranks: of data-parallel attention.
    """
    if not point.is_inferencex or point.is_disaggregated or card not in (*BLACKWELL, "h200"):
        return Waits()
    open_requests = point.concurrency or 0
    if point.backend == "sglang" and card in BLACKWELL:
        if shape == "glm-5" and point.precision == "fp8":
            return Waits()
        newer = shape.startswith("qwen3.5") and card == "b300" and point.version.startswith("0.5.10")
        often = open_requests < 16 or shape == "glm-5" or (newer and point.precision == "fp8")
        return Waits(look_every=OFTEN if often else RARE)
    if point.backend != "trtllm":
        return Waits()
    if ranks > 1 and (shape == "deepseek-v3" or card in BLACKWELL):
        longest = 60 if shape == "deepseek-v3" else 50
        return Waits(for_ranks=_until_all_have_one(open_requests / ranks / (MEAN_SHARE * point.osl), ranks, longest))
    if ranks == 1 and (point.isl, point.osl) == (1024, 1024):
        if shape.startswith("llama") and gpus < 8:
            return Waits(hold_steps=20)
        is_new = shape == "deepseek-v3" and card == "b200" and point.version.startswith("1.2")
        if is_new and point.precision == "fp8" and open_requests >= 64:
            return Waits(hold_steps=40)
    return Waits()


def _until_all_have_one(rate: float, ranks: int, longest: int) -> float:
    """Steps that requests wait on average until each rank has one, but no longer than `longest`, from when the last
    ones were let in.

    Args:
        rate: requests that come to a rank in each step.
    """
    still = [1 - (1 - math.exp(-rate * (step + 0.5))) ** ranks for step in range(longest)]
    return sum((step + 0.5) * share for step, share in enumerate(still)) / sum(still)


RARE, OFTEN = 30, 10
MEAN_SHARE = 0.9
"""The mean answer as a share of the longest, where lengths are drawn."""


def compiles_late(point: Point, budget: int) -> bool:
    """Whether the first requests wait while kernels are compiled: SGLang without a warm-up, when the first prompt is
    split, which happens where those that come together are more than one step's budget. That is where TTFT jumps in
    runs of 2025: from 32 open requests of 1,024 tokens at 16,384 tokens a step, from 64 at 32,768, from 8 of 8,192."""
    first_wave = (point.concurrency or 0) * MEAN_SHARE * point.isl
    return point.backend == "sglang" and point.is_cold and first_wave > budget


def separates_prompts(backend: str) -> bool:
    """Whether prompts are computed in steps of their own, while answers wait: SGLang does so unless told otherwise
    (`--enable-mixed-chunk`); vLLM and TensorRT-LLM compute both in one step."""
    return backend == "sglang"


def link_of(card: str) -> float:
    """Bytes per second at which one accelerator sends KV caches to another server: NVLink within a rack of 72, else the
    400 Gbit/s of its network card."""
    return 900e9 if card in ("gb200", "gb300") else 50e9
