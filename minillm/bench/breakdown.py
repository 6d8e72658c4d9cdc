"""`minillm bench step-breakdown`: where a decode step's microseconds go, with each optimization switched alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tqdm import tqdm

from minillm.bench.errors import BenchmarkError
from minillm.bench.report import BenchmarkResult
from minillm.bench.steady import DecodeStep, SteadyDecode, SteadySteps, pool_tokens
from minillm.bench.target import Target
from minillm.bench.turns import in_turns
from minillm.core.errors import ConfigError, MinillmError
from minillm.frontend.engine import Engine
from minillm.model.loader import load_model
from minillm.model.packed import FEW_ROWS, CPULinear
from minillm.observe.percentiles import percentile
from minillm.observe.spread import Spread
from minillm.observe.tables import text_table
from minillm.policies.config import EngineConfig

STAGES = ("schedule", "build", "forward", "sample", "detokenize")
"""The stages of a step, in the order they happen. What an engine records beside them is shown after them."""
REST = "rest"
"""The step's time that no stage claims. Below zero where stages of two steps overlap."""
STEPS = {"cpu": 16, "cuda": 64}
"""Steps a variant runs in one turn, by kind of device."""
QUICK_CONTEXT, QUICK_STEPS, QUICK_REPEATS = 16, 3, 1
DEFAULT = "default"
VARIANTS: dict[str, dict[str, Any]] = {
    DEFAULT: {},
    "eager attention": {"attention_backend": "eager"},
    "sdpa attention": {"attention_backend": "sdpa"},
    "triton attention": {"attention_backend": "triton"},
    "no CUDA graphs": {"cuda_graphs": False},
    "no async scheduling": {"async_scheduling": False},
    "no fused kernels": {"fused_kernels": False},
}
"""The fields that differ from the default: each optimization switched off alone, or, where off is the default, on."""
GPU_ONLY = ("triton attention", "no CUDA graphs", "no async scheduling")


@dataclass(frozen=True, slots=True)
class StageTime:
    """Seconds of one stage over the steps, and its share of all the time the steps took."""

    median_s: float
    p99_s: float
    share: float


@dataclass(frozen=True, slots=True)
class VariantResult:
    """The steps of one variant of the engine, beside the default one."""

    name: str
    fields: dict[str, Any]
    num_steps: int
    step_median_s: float
    step_p99_s: float
    stages: dict[str, StageTime]
    time_over_default: Spread
    """Its median step over the default's, paired by turn: above 1, the default is the faster one."""


def breakdown(steps: Sequence[DecodeStep]) -> dict[str, StageTime]:
    """Median, p99 and share of each stage. The shares sum to 1; the medians need not sum to anything."""
    extra = sorted({stage for step in steps for stage in step.stages}.difference(STAGES))
    columns = {stage: [step.stages.get(stage, 0.0) for step in steps] for stage in (*STAGES, *extra)}
    columns[REST] = [step.seconds - sum(step.stages.values()) for step in steps]
    total = sum(step.seconds for step in steps)
    return {stage: StageTime(*_p50_p99(seconds), sum(seconds) / total) for stage, seconds in columns.items()}


def summarize(name: str, turns: list[SteadySteps], default_turns: list[SteadySteps]) -> VariantResult:
    """What a variant's turns come to, beside the default's turns at about the same time."""
    steps = [step for turn in turns for step in turn.steps]
    median, p99 = _p50_p99([step.seconds for step in steps])
    return VariantResult(
        name=name,
        fields=VARIANTS[name],
        num_steps=len(steps),
        step_median_s=median,
        step_p99_s=p99,
        stages=breakdown(steps),
        time_over_default=Spread.of_ratios(map(_median, turns), map(_median, default_turns)),
    )


def _p50_p99(seconds: Sequence[float]) -> tuple[float, float]:
    return percentile(seconds, 50), percentile(seconds, 99)


def _median(turn: SteadySteps) -> float:
    return percentile([step.seconds for step in turn.steps], 50)


def applicable(config: EngineConfig, device_type: str) -> list[str]:
    """The default and every variant that makes sense on this kind of device, and that changes a setting."""
    found = []
    for name, fields in VARIANTS.items():
        try:
            changes = config.replace(**fields).model_dump() != config.model_dump()
        except ConfigError:  # it contradicts another field
            continue
        if name == DEFAULT or (changes and (device_type == "cuda" or name not in GPU_ONLY)):
            found.append(name)
    return found


def run(target: Target, quick: bool, batch: int, context: int, steps: int | None, repeats: int) -> BenchmarkResult:
    """Measure. All variants' engines live side by side on one set of weights, and take turns.

    Args:
        steps: per turn; None = what suits the device.
    Raises:
        ConfigError, ModelError: see Engine.
    """
    device = target.torch_device()
    if quick:
        context, steps, repeats = min(context, QUICK_CONTEXT), QUICK_STEPS, QUICK_REPEATS
    steps = steps or STEPS[device.type]
    num_steps = (repeats + 1) * (steps + 1)  # one turn warms up, one step leads into each
    budget = max(context, target.config().max_num_batched_tokens, batch)
    base = target.config(
        kv_tokens=pool_tokens(batch, context, num_steps, budget), max_num_seqs=batch, max_num_batched_tokens=budget
    )
    chosen = applicable(base, device.type)
    loaded = load_model(base)
    decodes: dict[str, SteadyDecode] = {}
    unable: dict[str, str] = {}
    for name in tqdm(chosen, desc="preparing", unit="variant"):
        try:
            engine = Engine(base.replace(**VARIANTS[name]), loaded)
            if decodes:
                _check_differs(name, engine, decodes[DEFAULT].engine)
            decodes[name] = SteadyDecode(engine, batch, context, num_steps)
        except MinillmError as error:
            if name == DEFAULT:
                raise
            unable[name] = str(error)
    turns = in_turns({name: partial(decode.run, steps) for name, decode in decodes.items()}, repeats)
    default = decodes[DEFAULT].engine
    results = [summarize(name, own, turns[DEFAULT]) for name, own in turns.items()]
    head = (
        f"steady decode of {batch} at contexts of {context} and up; attention {default.torch_runner.attention.__name__}"
    )
    if isinstance(multiply := loaded.decoder.lm_head, CPULinear):
        head += f", products {(multiply.few if batch <= FEW_ROWS else multiply.many).__class__.__name__}"
    left_out = [f"\n{name}: not here ({reason})" for name, reason in unable.items()]
    return BenchmarkResult.on(
        default,
        results,
        {"batch": batch, "context": context, "steps": steps, "repeats": repeats},
        "\n".join([head, *map(_stage_table, results), *left_out]),
        unable=unable,
    )


def _check_differs(name: str, engine: Engine, default: Engine) -> None:
    """Raise BenchmarkError if what was asked for did not come about: it would be the default, measured twice."""
    # By name: with a window, the class is made anew for each engine.
    ours, usual = (each.torch_runner.attention.__name__ for each in (engine, default))
    if "attention_backend" in VARIANTS[name] and ours == usual:
        raise BenchmarkError("the default runs it already")


def _stage_table(row: VariantResult) -> str:
    ratio = "" if row.name == DEFAULT else f", {row.time_over_default.text()} of the default's time"
    times = {"step": StageTime(row.step_median_s, row.step_p99_s, 1.0), **row.stages}
    rows = [
        [stage, f"{1e6 * time.median_s:.1f}", f"{1e6 * time.p99_s:.1f}", f"{time.share:.1%}"]
        for stage, time in times.items()
    ]
    return f"\n{row.name}{ratio}\n{text_table(('', 'median us', 'p99 us', 'share'), rows)}"
