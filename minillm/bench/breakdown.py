"""`minillm bench step-breakdown`: where a decode step's microseconds go, with each optimisation switched alone."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tqdm import tqdm

from minillm.bench.compare import Range
from minillm.bench.peers import BenchmarkError
from minillm.bench.report import describe_engine, describe_machine, format_machine, make_report
from minillm.bench.steady import DecodeStep, SteadyDecode, pool_tokens
from minillm.bench.target import Target
from minillm.bench.variants import DEFAULT, Variant, applicable
from minillm.core.errors import ConfigError, MinillmError
from minillm.frontend.engine import Engine
from minillm.kernels.quantization import dtype_name
from minillm.model.loader import load_model

STAGES = ("schedule", "build", "forward", "sample", "detokenize")
"""In the order they happen. What an engine records beside them is shown after them."""
REST = "rest"
"""The step's time that no stage claims. Below zero where stages of two steps overlap."""
STEPS = {"cpu": 16, "cuda": 64}
"""Steps a variant runs in one turn, by kind of device."""
QUICK_CONTEXT, QUICK_STEPS, QUICK_REPEATS = 16, 3, 1


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
    time_over_default: Range
    """Its median step over the default's, paired by turn: above 1, the default is the faster one."""


def breakdown(steps: Sequence[DecodeStep]) -> dict[str, StageTime]:
    """Median, p99 and share of each stage. The shares sum to 1; the medians need not sum to anything."""
    extra = sorted({stage for step in steps for stage in step.stages}.difference(STAGES))
    total = sum(step.seconds for step in steps)
    columns = {stage: [step.stages.get(stage, 0.0) for step in steps] for stage in (*STAGES, *extra)}
    columns[REST] = [step.seconds - sum(step.stages.values()) for step in steps]
    return {
        stage: StageTime(statistics.median(seconds), float(np.percentile(seconds, 99)), sum(seconds) / total)
        for stage, seconds in columns.items()
    }


def summarize(variant: Variant, turns: list[list[DecodeStep]], default_turns: list[list[DecodeStep]]) -> VariantResult:
    """What a variant's turns come to, beside the default's turns at about the same time."""
    steps = [step for turn in turns for step in turn]
    seconds = [step.seconds for step in steps]
    return VariantResult(
        name=variant.name,
        fields=variant.fields,
        num_steps=len(steps),
        step_median_s=statistics.median(seconds),
        step_p99_s=float(np.percentile(seconds, 99)),
        stages=breakdown(steps),
        time_over_default=Range.of([_median(own) / _median(other) for own, other in zip(turns, default_turns)]),
    )


def _median(turn: Sequence[DecodeStep]) -> float:
    return statistics.median(step.seconds for step in turn)


def choose(variants: list[Variant], names: Sequence[str] | None) -> list[Variant]:
    """The default, and those that were asked for.

    Raises:
        ConfigError: there is no variant of that name here.
    """
    present = [variant.name for variant in variants]
    if unknown := [name for name in names or [] if name not in present]:
        raise ConfigError(f"no variant {unknown[0]!r} here: there are {', '.join(map(repr, present))}")
    return [variant for variant in variants if names is None or variant.name in (DEFAULT.name, *names)]


def run_breakdown(
    target: Target,
    *,
    batch: int,
    context: int,
    steps: int | None,
    repeats: int,
    names: Sequence[str] | None,
    quick: bool,
) -> dict[str, Any]:
    """Measure, and return the report. All variants' engines live at once on one set of weights, and take turns.

    Args:
        steps: per turn; None = what suits the device.
        names: of the variants to measure; None = all that apply.
    Raises:
        ConfigError, ModelError: see Engine.
    """
    machine, device = describe_machine(), target.torch_device()
    if quick:
        context, steps, repeats = min(context, QUICK_CONTEXT), QUICK_STEPS, QUICK_REPEATS
    steps = steps or STEPS[device.type]
    num_steps = (repeats + 1) * (steps + 1)  # one turn warms up, one step leads into each
    budget = max(context, target.config().max_num_batched_tokens, batch)
    base = target.config(
        kv_tokens=pool_tokens(batch, context, num_steps, budget), max_num_seqs=batch, max_num_batched_tokens=budget
    )
    chosen = choose(applicable(base, device.type, quick), names)
    loaded = load_model(base)
    decodes: dict[str, SteadyDecode] = {}
    variants, unable = [], {}
    with tqdm(total=repeats + 1, unit="turn") as bar:
        for variant in chosen:
            bar.set_description(f"preparing {variant.name}")
            try:
                engine = Engine(base.replace(**variant.fields), loaded)
                if decodes:
                    _check_differs(variant, engine, decodes[DEFAULT.name].engine)
                decodes[variant.name] = SteadyDecode(engine, batch, context, num_steps)
            except MinillmError as error:
                if variant is DEFAULT:
                    raise
                unable[variant.name] = str(error)
            else:
                variants.append(variant)
        turns: dict[str, list[list[DecodeStep]]] = {variant.name: [] for variant in variants}
        for turn in range(repeats + 1):
            bar.set_description("measuring" if turn else "warming up")
            for name, decode in decodes.items():
                measured = decode.run(steps).steps
                if turn:
                    turns[name].append(measured)
            bar.update()
    engine = decodes[DEFAULT.name].engine
    return make_report(
        machine,
        model=target.model,
        dtype=dtype_name(loaded.dtype),
        device=device,
        settings={
            "batch": batch,
            "context": context,
            "steps": steps,
            "repeats": repeats,
            "quick": quick,
            "engine": describe_engine(engine),
        },
        results=[summarize(variant, turns[variant.name], turns[DEFAULT.name]) for variant in variants],
        unable=unable,
    )


def _check_differs(variant: Variant, engine: Engine, default: Engine) -> None:
    """Raise BenchmarkError if what was asked for did not come about: it would be the default, measured twice."""
    # By name: with a window, the class is made anew for each engine.
    ours, usual = (each.torch_runner.attention.__name__ for each in (engine, default))
    if set(variant.fields) == {"attention_backend"} and ours == usual:
        raise BenchmarkError("the default runs it already")


def format_table(report: dict[str, Any]) -> str:
    """The report as text: what `minillm bench` prints."""
    settings = report["settings"]
    lines = [
        format_machine(report["machine"]),
        f"{report['model']} in {report['dtype']}, steady decode of {settings['batch']} at contexts of "
        f"{settings['context']} and up; attention {settings['engine']['attention']}"
        + (" (quick: means nothing)" if settings["quick"] else ""),
    ]
    for row in report["results"]:
        ratio = row.time_over_default
        gain = "" if row.name == DEFAULT.name else f", {ratio.median:.2f}x the default's time"
        spread = "" if row.name == DEFAULT.name else f" [{ratio.low:.2f}-{ratio.high:.2f}]"
        lines += [
            "",
            f"{row.name}{gain}{spread}",
            f"  {'':14}{'median us':>11}{'p99 us':>11}{'share':>8}",
            f"  {'step':14}{1e6 * row.step_median_s:>11.1f}{1e6 * row.step_p99_s:>11.1f}{1:>8.1%}",
        ]
        lines += [
            f"  {stage:14}{1e6 * time.median_s:>11.1f}{1e6 * time.p99_s:>11.1f}{time.share:>8.1%}"
            for stage, time in row.stages.items()
        ]
    lines += [f"\n{name}: not here ({reason})" for name, reason in report["unable"].items()]
    return "\n".join(lines)
