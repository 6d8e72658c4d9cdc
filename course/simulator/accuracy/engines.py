"""What serving engines do by themselves: number formats, budgets, chunks; and which constants price their steps.

A row says little of it. What it leaves out is as in the engine's documentation, or for InferenceX's runs as in the
scripts that start them (benchmarks/single_node of github.com/SemiAnalysisAI/InferenceX).
"""

import functools
import re
from dataclasses import dataclass

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
    "trtllm": {r"1\.0": "trtllm-1.0", r"1\.3": "trtllm-1.3", r"0\.": "dynamo-trtllm", r"": "trtllm-1.1"},
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


def profile_for(backend: str, version: str, card: str, weights: str, is_disaggregated: bool = False) -> str:
    """The profile that prices an engine's steps on a card, for `find_profile`: constants fitted to this generation of
    the engine on such cards, with such weights; else today's stack. Between pools, TensorRT-LLM is Dynamo's."""
    engines = GENERATIONS.get(backend, {})
    engine = next((name for pattern, name in engines.items() if re.match(pattern, version)), None)
    if backend == "trtllm" and is_disaggregated:
        engine = "dynamo-trtllm"
    if engine is None or similar_card(engine, card) is None:
        return card
    name = f"{engine}@{card}"
    return name if weights in engine_profile(name).by_weights else card


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
    - SGLang: chunks of 8192, and of 16,384 on Blackwell; InferenceX's 32,768 for models with latent attention on one
      server
    - TensorRT-LLM: 8192, or what InferenceX's scripts compute: one prompt and a token for each request; gpt-oss 20,000
    """
    if point.backend == "vllm":
        if point.is_inferencex and shape == "minimax-m2.5" and card in BLACKWELL:
            return 2 * point.isl
        return 32_768 if point.is_inferencex and shape == "minimax-m2.5" and card == "h200" else 8192
    if point.backend == "sglang":
        if point.is_inferencex and model_of(shape).latent_size and not point.is_disaggregated:
            return 32_768
        return 16_384 if card in BLACKWELL else 8192
    if point.is_inferencex and shape.startswith("gpt-oss"):
        return 20_000
    return max(8192, -(-(point.isl + (point.concurrency or 0) + 64) // 64) * 64)


def separates_prompts(backend: str) -> bool:
    """Whether prompts are computed in steps of their own, while answers wait: SGLang does so unless told otherwise
    (`--enable-mixed-chunk`); vLLM and TensorRT-LLM compute both in one step."""
    return backend == "sglang"


def steps_between_looks(point: Point, card: str) -> int:
    """Steps after which a server looks for new requests again, while none computes a prompt. InferenceX gives SGLang on
    Blackwell, to save its CPU, a `--scheduler-recv-interval` of 10, and of 30 from 16 open requests on."""
    if point.backend != "sglang" or not point.is_inferencex or point.is_disaggregated or card not in BLACKWELL:
        return 1
    return 10 if (point.concurrency or 0) < 16 else 30


def link_of(card: str) -> float:
    """Bytes per second at which one accelerator sends KV caches to another server: NVLink within a rack of 72, else the
    400 Gbit/s of its network card."""
    return 900e9 if card in ("gb200", "gb300") else 50e9
