"""`minillm bench throughput`: many requests of ragged lengths, all at once (the compact engines' workload).

256 requests, input and output lengths uniform in 100..1024, no early end: what nano-vllm's benchmark
runs, so that figures can be set side by side.
"""

import random
from collections.abc import Sequence
from typing import Any

import torch

from minillm.bench.baselines.base import Minillm
from minillm.bench.baselines.make import check_installed, config_in_force, make_baselines
from minillm.bench.compare import engines_table, measure, summarize
from minillm.bench.report import Measured
from minillm.bench.target import LARGEST_BLOCK, Target, random_prompts
from minillm.bench.workloads import Workload
from minillm.model.loader import load_model
from minillm.observe.spread import Spread

SHORTEST, LONGEST = 100, 1024
"""Tokens of an input, and of an output."""
REQUESTS = {"cpu": 32, "cuda": 256}
SCALE = {"cpu": 0.25, "cuda": 1.0}
"""What lengths are multiplied by: a CPU would take the better part of an hour over the whole workload."""
GPU_TOKEN_BUDGET = 16_384
"""Tokens a step on a GPU: nano-vllm's default. A CPU keeps the engine's."""
MEMORY_SHARE = 0.4
"""Most of a GPU's free memory that one KV pool gets when two engines are on it."""
PADDED = "hf_generate"
"""Baselines whose names begin so pad to the longest request: over ragged lengths, that is another benchmark."""


def make_workload(vocab_size: int, requests: int, seed: int, scale: float) -> Workload:
    """Seeded random tokens and lengths; no two prompts share a prefix."""
    rng = random.Random(seed)

    def lengths() -> list[int]:
        return [max(round(scale * rng.randint(SHORTEST, LONGEST)), 1) for _ in range(requests)]

    inputs, outputs = lengths(), [max(length, 2) for length in lengths()]
    low, high = (max(round(scale * length), 1) for length in (SHORTEST, LONGEST))
    title = f"{requests} requests, {low}-{high} in, {low}-{high} out, all at once (scale {scale:g})"
    return Workload("throughput", title, random_prompts(vocab_size, inputs, seed), outputs)


def load_minillm(target: Target, workload: Workload, device: torch.device, alone: bool) -> Minillm:
    """minillm, with a slot for every request on a GPU, and its default configuration on a CPU."""
    chosen: dict[str, Any] = {}
    kv_tokens = None
    if device.type == "cuda":
        slots = max(len(workload.prompts), 1)
        chosen = {"max_num_seqs": slots, "max_num_batched_tokens": max(GPU_TOKEN_BUDGET, slots)}
        needed = sum(map(len, workload.prompts)) + workload.num_output_tokens + slots * LARGEST_BLOCK
        kv_tokens = None if alone else needed
    config = target.config(kv_tokens=kv_tokens, **chosen)
    loaded = load_model(config)
    if not alone and device.type == "cuda" and config.kv_cache_memory_gb is not None:
        share = MEMORY_SHARE * torch.cuda.mem_get_info(device)[0] / 1e9
        config = config.replace(kv_cache_memory_gb=min(config.kv_cache_memory_gb, share))
    return Minillm(loaded=loaded, **config.model_dump(exclude_unset=True))


def run(
    target: Target,
    quick: bool,
    against: Sequence[str],
    requests: int | None,
    scale: float | None,
    seed: int,
    repeats: int,
) -> Measured:
    """Measure. Engines take turns within every repeat.

    Args:
        against: names of the baselines.
        requests, scale: None = what suits the device.
    Raises:
        BenchmarkError: an engine did not emit what was asked for.
        ConfigError, ModelError: see Engine.
    """
    device = target.torch_device()
    requests = requests or (4 if quick else REQUESTS[device.type])
    scale = scale or (0.02 if quick else SCALE[device.type])
    repeats = 1 if quick else repeats
    workload = make_workload(target.model_config().vocab_size, requests, seed, scale)
    check_installed(against)
    minillm = load_minillm(target, workload, device, alone=not against)
    made = make_baselines(against, config_in_force(minillm.llm.engine))
    baselines = [each for each in made if not each.name.startswith(PADDED)]
    engines = [minillm, *baselines]
    runs = measure(engines, workload, repeats)
    result = summarize(workload, runs, [each.name for each in baselines])
    total = sum(map(len, workload.prompts)) + workload.num_output_tokens
    totals = {name: Spread.of([total / each.seconds for each in own]) for name, own in runs.items()}
    mean_batch = workload.num_output_tokens / minillm.num_steps  # output tokens per step
    text = (
        f"{engines_table(result)}\n\ninput + output tokens per second: "
        f"{', '.join(f'{name} {spread.median:.1f}' for name, spread in totals.items())}\n"
        f"minillm took {minillm.num_steps} steps, {mean_batch:.1f} output tokens in each on average"
    )
    return Measured.on(
        minillm.llm.engine,
        result,
        {"requests": requests, "scale": scale, "seed": seed, "repeats": repeats},
        text,
        peers={each.name: each.describe() for each in engines},
        num_input_tokens=total - workload.num_output_tokens,
        total_tokens_per_s=totals,
        num_steps=minillm.num_steps,
        mean_batch=mean_batch,
    )
