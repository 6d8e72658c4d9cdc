"""`minillm bench prefill`: how near to the speed of a large matrix product a prefill comes."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tqdm import tqdm

from minillm.bench.peers import BenchmarkError
from minillm.bench.report import describe_engine, describe_machine, format_machine, make_report
from minillm.bench.roofline import with_unit
from minillm.bench.target import LARGEST_BLOCK, Costs, Target, compute_dtype, random_prompts
from minillm.core.errors import ConfigError
from minillm.core.known import known
from minillm.core.params import SamplingParams
from minillm.core.request import FinishReason
from minillm.frontend.engine import Engine
from minillm.kernels.quantization import dtype_name
from minillm.runner.machine_peaks import Roof, measure_roof

SHORTEST, LONGEST = 128, {"cpu": 2048, "cuda": 8192}
"""Tokens of the default prompts, by kind of device."""
QUICK_LENGTHS = (16, 32)


@dataclass(frozen=True, slots=True)
class PrefillResult:
    """One prompt in one step. Seconds, tokens, FLOP (floating-point operations)."""

    prompt_len: int
    num_runs: int
    step_s: float
    """Median over the runs of the step that computes the whole prompt and samples the first token."""
    step_low_s: float
    step_high_s: float
    tokens_per_s: float
    flops: float
    """Of matrix products and attention: 2 P T of the layers' P weights, the head for one row, causal attention."""
    flops_per_s: float
    mfu: float
    """Model FLOP utilisation: flops_per_s / FLOP/s of a measured large matrix product."""
    bytes: float
    """That the step must move: the weights, and the prompt's keys and values."""


def default_lengths(device_type: str) -> list[int]:
    """128, 256, ... up to what a device of this kind is worth measuring at."""
    lengths = [SHORTEST]
    while lengths[-1] < LONGEST[device_type]:
        lengths.append(2 * lengths[-1])
    return lengths


def cap(lengths: Sequence[int], window: int) -> list[int]:
    """What fits: a prompt leaves room for one output token in the model's window."""
    return sorted({min(length, window - 1) for length in lengths})


def summarize(prompt_len: int, seconds: Sequence[float], costs: Costs, matmul: float) -> PrefillResult:
    """What step times come to, beside `matmul` FLOP/s."""
    step, flops = statistics.median(seconds), costs.flops.prefill(prompt_len)
    return PrefillResult(
        prompt_len=prompt_len,
        num_runs=len(seconds),
        step_s=step,
        step_low_s=min(seconds),
        step_high_s=max(seconds),
        tokens_per_s=prompt_len / step,
        flops=flops,
        flops_per_s=flops / step,
        mfu=flops / step / matmul,
        bytes=costs.bytes.step([prompt_len]),
    )


def prefill_seconds(engine: Engine, prompt: list[int]) -> float:
    """Seconds of the one step that computes the prompt.

    Raises:
        BenchmarkError: it took several steps, or failed.
    """
    engine.add_request(prompt, SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True), stream=False)
    before = engine.scheduler.num_steps
    outputs = []
    while engine.has_unfinished:
        outputs += engine.step()
    [output] = outputs
    if output.completions[0].finish_reason is not FinishReason.LENGTH:
        raise BenchmarkError(f"the prefill of {len(prompt)} tokens failed: {output.completions[0].error}")
    record = next(record for record in engine.steps if record.step_id == before)
    if record.num_tokens != len(prompt):
        raise BenchmarkError(
            f"a prompt of {len(prompt)} tokens took more than one step ({record.num_tokens} in the first): leave "
            "max_num_batched_tokens and long_prefill_token_threshold alone"
        )
    return record.end - record.start


def run_prefill(target: Target, lengths: Sequence[int] | None, repeats: int, quick: bool) -> dict[str, Any]:
    """Measure, and return the report. The lengths take turns within every repeat.

    Args:
        lengths: tokens of the prompts; None = what suits the device.
    Raises:
        ConfigError, ModelError: see Engine.
    """
    machine, device = describe_machine(), target.torch_device()
    lengths = lengths or (QUICK_LENGTHS if quick else default_lengths(device.type))
    window = target.config().max_model_len or target.model_config().max_position_embeddings
    lengths, repeats = cap(lengths, window), 1 if quick else repeats
    seats = target.config().max_num_seqs
    config = target.config(
        kv_tokens=lengths[-1] + 1 + LARGEST_BLOCK,
        max_num_batched_tokens=max(lengths[-1], seats),
        enable_prefix_caching=False,
    )
    if config.enable_prefix_caching:
        raise ConfigError("a cached prompt is not computed: leave enable_prefix_caching off to measure prefill")
    engine = Engine(config)
    roof = measure_roof(device, compute_dtype(engine.loaded_model), quick)
    costs = Costs.of(engine)
    prompts = random_prompts(known(engine.vocab_size), lengths)
    seconds: dict[int, list[float]] = {length: [] for length in lengths}
    with tqdm(total=len(lengths) * (repeats + 1), unit="prompt") as bar:
        for repeat in range(repeats + 1):
            for prompt in prompts:
                taken = prefill_seconds(engine, prompt)
                if repeat > 0:  # the first round warms up
                    seconds[len(prompt)].append(taken)
                bar.update()
    return make_report(
        machine,
        model=target.model,
        dtype=dtype_name(engine.loaded_model.dtype),
        device=device,
        settings={"repeats": repeats, "quick": quick, "engine": describe_engine(engine)},
        results=[summarize(length, taken, costs, roof.matmul) for length, taken in seconds.items()],
        roof=roof,
    )


def format_table(report: dict[str, Any]) -> str:
    """The report as text: what `minillm bench` prints."""
    roof: Roof = report["roof"]
    lines = [
        format_machine(report["machine"]),
        f"{report['model']} in {report['dtype']}, one prompt a step, nothing cached; the linear layers compute in "
        f"{roof.matmul_dtype}: {with_unit(roof.matmul, 'FLOP/s')} measured"
        + (" (quick: means nothing)" if report["settings"]["quick"] else ""),
        "",
        f"{'tokens':>7}{'tok/s':>10}{'step ms':>10}{'low':>10}{'high':>10}{'TFLOP':>9}{'TFLOP/s':>9}{'MFU':>7}",
    ]
    for row in report["results"]:
        lines.append(
            f"{row.prompt_len:>7}{row.tokens_per_s:>10.0f}{1e3 * row.step_s:>10.2f}{1e3 * row.step_low_s:>10.2f}"
            f"{1e3 * row.step_high_s:>10.2f}{row.flops / 1e12:>9.3g}{row.flops_per_s / 1e12:>9.3g}{row.mfu:>7.1%}"
        )
    return "\n".join(lines)
