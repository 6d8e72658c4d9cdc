"""Random engines: every technique on, off, or in between, in combinations that nobody would think of."""

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draft_heads import make_eagle3, make_head

from minillm.model.loader import LoadedModel, load_model
from minillm.policies.config import EngineConfig

MODEL_LEN = 160
"""Longest prompt + output, tokens: short, so that many requests pass in a minute."""


@dataclass(frozen=True)
class Models:
    """What the engines of a soak are made of."""

    folder: Path
    """Path of the model."""
    head: Path
    """Path of a draft head for it."""
    eagle3: Path
    """Path of another one, in the published format."""
    loaded: dict[tuple[str, str | None], LoadedModel]
    """By dtype and quantization; filled when first asked for."""

    def get(self, dtype: str, quantization: str | None) -> LoadedModel:
        key = (dtype, quantization)
        if key not in self.loaded:
            self.loaded[key] = load_model(
                EngineConfig(model=str(self.folder), dtype=dtype, device="cpu", quantization=quantization)
            )
        return self.loaded[key]


def make_heads(models: Models) -> None:
    """Write the draft heads, untrained."""
    target = models.get("float32", None)
    make_head(models.head, target)
    make_eagle3(models.eagle3, target, depths=[0, 1, 2])


def random_config(rng: random.Random, models: Models) -> EngineConfig:
    """Any engine that can be had on a CPU."""
    seats = rng.choice([1, 2, 3, 5, 8, 16])
    block_size = rng.choice([4, 8, 16, 16, 32])
    fields: dict[str, Any] = {
        "model": str(models.folder),
        "device": "cpu",
        "dtype": rng.choice(["float32"] * 4 + ["bfloat16"]),
        "quantization": rng.choice([None] * 6 + ["int8", "int4"]),
        "max_model_len": rng.choice([MODEL_LEN // 2, MODEL_LEN]),
        "seed": rng.randrange(1000),
        "batching": rng.choice(["continuous"] * 4 + ["static", "none"]),
        "max_num_seqs": seats,
        "max_num_batched_tokens": max(rng.choice([16, 32, 64, 256]), seats),
        "enable_chunked_prefill": rng.random() < 0.8,
        "scheduler_reserve_full_isl": rng.random() < 0.3,
        "scheduling_order": rng.choice(["fcfs", "fcfs", "shortest_prompt", "priority", "two_lane", "fair"]),
        "enable_prefix_caching": rng.random() < 0.7,
        "kv_reservation": rng.choice(["on_demand", "on_demand", "max_len"]),
        "block_size": block_size,
        # Some pools are too small for two requests at once.
        "num_kv_blocks": max(rng.choice([48, 80, 120, 200, 400, 2000]) // block_size, 3),
        "kv_cache_dtype": rng.choice(["auto"] * 5 + ["int8"]),
        "preemption": rng.choice(["recompute", "swap"]),
        "attention_backend": rng.choice(["auto", "eager", "sdpa"]),
        "fused_kernels": rng.random() < 0.7,
        "max_queue_len": rng.choice([None, None, 3, 20]),
        "queue_timeout_s": rng.choice([None, None, 0.05, 0.5]),
        "max_prompt_tokens": rng.choice([None, None, 40]),
        "speculative": random_speculation(rng, models),
    }
    if fields["preemption"] == "swap":
        fields["swap_space_gb"] = rng.choice([2e-5, 1e-4, 1e-3])
    if fields["enable_prefix_caching"]:
        fields |= rng.choice([{}, {"prefix_eviction": "fifo"}, {"prefix_eviction": "ttl", "prefix_ttl_s": 0.05}])
    if fields["scheduling_order"] == "two_lane":
        fields["two_lane_threshold"] = rng.choice([8, 40])
    if fields["enable_chunked_prefill"]:
        fields["long_prefill_token_threshold"] = rng.choice([None, 8, 24])
    if rng.random() < 0.15:
        fields |= {"sliding_window": rng.choice([8, 32, 100]), "attention_sinks": rng.choice([0, 4])}
    if fields["speculative"] is None:
        fields["async_scheduling"] = rng.random() < 0.4
    return EngineConfig(**fields)


def random_speculation(rng: random.Random, models: Models) -> dict[str, Any] | None:
    method = rng.choice([None, None, "ngram", "draft_model", "draft_head"])
    if method is None:
        return None
    fields: dict[str, Any] = {
        "method": method,
        "k": rng.choice([1, 3, 7]),
        "min_output_tokens": rng.choice([1, 8]),
        "max_batch": rng.choice([2, 8, 64]),
        "acceptance_floor": rng.choice([0, 0.25]),
        "adaptive_k": rng.random() < 0.5,
        "reprobe_steps": rng.choice([2, 64]),
    }
    if method == "draft_model":
        fields["model"] = str(models.folder)
    elif method == "draft_head":
        fields["model"] = str(rng.choice([models.head, models.eagle3]))
    return fields


def is_lossless(config: EngineConfig) -> bool:
    """Whether its greedy outputs must be those of the plain model in fp32."""
    lossy = (config.quantization, config.sliding_window)
    return config.dtype == "float32" and config.kv_cache_dtype == "auto" and lossy == (None, None)
