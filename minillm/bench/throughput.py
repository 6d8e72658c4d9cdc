"""`minillm bench throughput`: many requests of ragged lengths, all at once (the compact engines' workload).

256 requests, input and output lengths uniform in 100..1024, no early end: what nano-vllm's benchmark
runs, so that figures can be set side by side.
"""

import random
from collections.abc import Sequence
from typing import Any

import torch
from tqdm import tqdm

from minillm.bench.compare import Range, format_peers, measure, summarize
from minillm.bench.peers import MinillmPeer, Run
from minillm.bench.references import check_installed, make_references, settings_of
from minillm.bench.report import describe_engine, describe_machine, format_machine, make_report
from minillm.bench.target import LARGEST_BLOCK, Target, random_prompts
from minillm.bench.workloads import Workload
from minillm.kernels.quantization import dtype_name
from minillm.model.checkpoints import resolve
from minillm.model.loader import load_model

SHORTEST, LONGEST = 100, 1024
"""Tokens of an input, and of an output."""
REQUESTS = {"cpu": 32, "cuda": 256}
SCALE = {"cpu": 0.25, "cuda": 1.0}
"""What lengths are multiplied by: a CPU would take the better part of an hour over the whole workload."""
GPU_TOKEN_BUDGET = 16_384
"""Tokens a step on a GPU: nano-vllm's default. A CPU keeps the engine's."""
MEMORY_SHARE = 0.4
"""Most of a GPU's free memory that one KV pool gets when two engines are on it."""


def make_workload(vocab_size: int, requests: int, seed: int, scale: float) -> Workload:
    """Seeded random tokens and lengths; no two prompts share a prefix."""
    rng = random.Random(seed)

    def lengths() -> list[int]:
        return [max(round(scale * rng.randint(SHORTEST, LONGEST)), 1) for _ in range(requests)]

    inputs, outputs = lengths(), [max(length, 2) for length in lengths()]
    low, high = (max(round(scale * length), 1) for length in (SHORTEST, LONGEST))
    title = f"{requests} requests, {low}-{high} in, {low}-{high} out, all at once"
    return Workload("throughput", title, random_prompts(vocab_size, inputs, seed), outputs)


class CountedMinillm(MinillmPeer):
    """minillm, counting the steps of its last run."""

    num_steps = 0

    def run(self, workload: Workload) -> Run:
        before = self.llm.engine.scheduler.num_steps
        run = super().run(workload)
        self.num_steps = self.llm.engine.scheduler.num_steps - before
        return run


def load_own(target: Target, workload: Workload, device: torch.device, alone: bool) -> CountedMinillm:
    """minillm, with a seat for every request on a GPU, and its default configuration on a CPU."""
    chosen: dict[str, Any] = {}
    kv_tokens = None
    if device.type == "cuda":
        seats = max(len(workload.prompts), 1)
        chosen = {"max_num_seqs": seats, "max_num_batched_tokens": max(GPU_TOKEN_BUDGET, seats)}
        needed = sum(map(len, workload.prompts)) + workload.num_output_tokens + seats * LARGEST_BLOCK
        kv_tokens = None if alone else needed
    config = target.config(kv_tokens, **chosen)
    loaded = load_model(config)
    if not alone and device.type == "cuda" and config.kv_cache_memory_gb is not None:
        share = MEMORY_SHARE * torch.cuda.mem_get_info(device)[0] / 1e9
        config = config.replace(kv_cache_memory_gb=min(config.kv_cache_memory_gb, share))
    fields = config.model_dump(exclude_unset=True)
    return CountedMinillm(fields.pop("model"), fields.pop("dtype"), loaded=loaded, **fields)


def run_throughput(
    target: Target,
    *,
    against: Sequence[str],
    requests: int | None,
    scale: float | None,
    seed: int,
    repeats: int,
    quick: bool,
) -> dict[str, Any]:
    """Measure, and return the report. Peers take turns within every repeat.

    Args:
        requests, scale: None = what suits the device.
    Raises:
        BenchmarkError: somebody did not emit what was asked for.
        ConfigError, ModelError: see Engine.
    """
    from minillm.bench.peers_hf import HFGenerate

    machine, device = describe_machine(), target.torch_device()
    requests = requests or (4 if quick else REQUESTS[device.type])
    scale = scale or (0.02 if quick else SCALE[device.type])
    repeats = 1 if quick else repeats
    workload = make_workload(target.model_config().vocab_size, requests, seed, scale)
    check_installed(against)
    own = load_own(target, workload, device, alone=not against)
    engine = own.llm.engine
    dtype = dtype_name(engine.loaded_model.dtype)
    references = [
        peer
        for peer in make_references(against, settings_of(engine, resolve(target.model), machine))
        if not isinstance(peer, HFGenerate)  # padded to the longest: over ragged lengths another benchmark
    ]
    peers = [own, *references]
    with tqdm(total=len(peers) * (repeats + 1), unit="run") as bar:
        runs = measure(peers, workload, repeats, bar)
    result = summarize(workload, runs, [peer.name for peer in references])
    return make_report(
        machine,
        model=target.model,
        dtype=dtype,
        device=device,
        settings={
            "requests": requests,
            "scale": scale,
            "seed": seed,
            "repeats": repeats,
            "quick": quick,
            "engine": describe_engine(engine),
        },
        results=result,
        peers={peer.name: peer.describe() for peer in peers},
        **totals(workload, runs, own),
    )


def totals(workload: Workload, runs: dict[str, list[Run]], own: CountedMinillm) -> dict[str, Any]:
    """What is not in a PeerResult: input tokens counted, too, and minillm's steps."""
    num_input = sum(map(len, workload.prompts))
    total = num_input + workload.num_output_tokens
    return {
        "num_input_tokens": num_input,
        "total_tokens_per_s": {name: Range.of([total / run.seconds for run in taken]) for name, taken in runs.items()},
        "num_steps": own.num_steps,
        "mean_batch": workload.num_output_tokens / own.num_steps,  # output tokens per step
    }


def format_table(report: dict[str, Any]) -> str:
    """The report as text: what `minillm bench` prints."""
    settings, result = report["settings"], report["results"]
    totals_by_peer: dict[str, Range] = report["total_tokens_per_s"]
    shown: Sequence[str] = [f"{name} {spread.median:.1f}" for name, spread in totals_by_peer.items()]
    return "\n".join(
        [
            format_machine(report["machine"]),
            f"{report['model']} in {report['dtype']}: {result.title} (scale {settings['scale']:g})"
            + (" (quick: means nothing)" if settings["quick"] else ""),
            "",
            *format_peers(result.peers, result.reference),
            "",
            f"input + output tokens per second: {', '.join(shown)}",
            f"minillm took {report['num_steps']} steps, {report['mean_batch']:.1f} output tokens in each on average",
        ]
    )
