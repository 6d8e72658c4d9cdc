"""`minillm bench prefill`: how near to the speed of a large matrix product a prefill comes."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from minillm.bench.errors import BenchmarkError
from minillm.bench.machine_peaks import measure_peaks
from minillm.bench.report import BenchmarkResult, with_unit
from minillm.bench.target import LARGEST_BLOCK, Costs, Target, compute_dtype, finish, random_prompts
from minillm.bench.turns import in_turns
from minillm.core.errors import ConfigError
from minillm.core.params import SamplingParams
from minillm.frontend.engine import Engine
from minillm.observe.spread import Spread
from minillm.observe.tables import text_table

SHORTEST, LONGEST = 128, {"cpu": 2048, "cuda": 8192}
"""Tokens of the default prompts, by kind of device."""
QUICK_LENGTHS = (16, 32)
COLUMNS = ("tokens", "tok/s", "step ms", "low", "high", "TFLOP", "TFLOP/s", "MFU")


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
    """FLOP of matrix products and attention: 2 P T of the layers' P weights, the head for one row, causal attention."""
    flops_per_s: float
    mfu: float
    """Model FLOP utilization: flops_per_s / FLOP/s of a measured large matrix product."""


def default_lengths(device_type: str) -> list[int]:
    """128, 256, ... up to what a device of this kind is worth measuring at."""
    return [SHORTEST << power for power in range((LONGEST[device_type] // SHORTEST).bit_length())]


def cap(lengths: Sequence[int], window: int) -> list[int]:
    """What fits: a prompt leaves room for one output token in the model's window."""
    return sorted({min(length, window - 1) for length in lengths})


def summarize(prompt_len: int, seconds: Sequence[float], costs: Costs, matmul: float) -> PrefillResult:
    """What step times come to, beside `matmul` FLOP/s."""
    step, flops = Spread.of(seconds), costs.flops.prefill(prompt_len)
    return PrefillResult(
        prompt_len=prompt_len,
        num_runs=len(seconds),
        step_s=step.median,
        step_low_s=step.low,
        step_high_s=step.high,
        tokens_per_s=prompt_len / step.median,
        flops=flops,
        flops_per_s=flops / step.median,
        mfu=flops / step.median / matmul,
    )


def prefill_seconds(engine: Engine, prompt: list[int]) -> float:
    """Seconds of the one step that computes the prompt.

    Raises:
        BenchmarkError: it took several steps, or failed.
    """
    engine.add_request(prompt, SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True), stream=False)
    before = engine.scheduler.num_steps
    finish(engine)
    record = next(record for record in engine.steps if record.step_id == before)
    if record.num_tokens != len(prompt):
        raise BenchmarkError(
            f"a prompt of {len(prompt)} tokens took more than one step ({record.num_tokens} in the first): leave "
            "max_num_batched_tokens and long_prefill_token_threshold alone"
        )
    return record.end - record.start


def run(target: Target, quick: bool, lengths: Sequence[int] | None, repeats: int) -> BenchmarkResult:
    """Measure. The lengths take turns within every repeat.

    Args:
        lengths: tokens of the prompts; None = what suits the device.
    Raises:
        ConfigError, ModelError: see Engine.
    """
    device, plain = target.torch_device(), target.config()
    lengths = lengths or (QUICK_LENGTHS if quick else default_lengths(device.type))
    lengths = cap(lengths, plain.max_model_len or target.model_config().max_position_embeddings)
    repeats = 1 if quick else repeats
    config = target.config(
        kv_tokens=lengths[-1] + 1 + LARGEST_BLOCK,
        max_num_batched_tokens=max(lengths[-1], plain.max_num_seqs),
        enable_prefix_caching=False,
    )
    if config.enable_prefix_caching:
        raise ConfigError("a cached prompt is not computed: leave enable_prefix_caching off to measure prefill")
    engine = Engine(config)
    peaks = measure_peaks(device, compute_dtype(engine.loaded_model), quick)
    costs = Costs.of(engine)
    assert engine.vocab_size is not None
    prompts = random_prompts(engine.vocab_size, lengths)
    seconds = in_turns({len(prompt): partial(prefill_seconds, engine, prompt) for prompt in prompts}, repeats)
    results = [summarize(length, taken, costs, peaks.matmul) for length, taken in seconds.items()]
    text = (
        f"one prompt a step, nothing cached; the linear layers compute in {peaks.matmul_dtype}: "
        f"{with_unit(peaks.matmul, 'FLOP/s')} measured\n\n{text_table(COLUMNS, map(_cells, results))}"
    )
    return BenchmarkResult.on(engine, results, {"repeats": repeats}, text, roof=peaks)


def _cells(row: PrefillResult) -> list[str]:
    milliseconds = [f"{1e3 * seconds:.2f}" for seconds in (row.step_s, row.step_low_s, row.step_high_s)]
    teraflops = [f"{flops / 1e12:.3g}" for flops in (row.flops, row.flops_per_s)]
    return [f"{row.prompt_len}", f"{row.tokens_per_s:.0f}", *milliseconds, *teraflops, f"{row.mfu:.1%}"]
