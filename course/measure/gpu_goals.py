"""What the project aims at on a GPU, and how each figure is read off a record of gpu-check.

`python -m course.measure.gpu_goals course/data/measured/gpu_check_h100_few_bits.json` prints the table for a record.
"""

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from minillm.observe.tables import text_table

Sections = Mapping[str, Any]
"""Reports of the benchmarks, by a section's name."""
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Goal:
    """A figure that the project aims at, and how it is read off the sections."""

    what: str
    bound: float
    read: Callable[[Sections], float]
    """KeyError, or another of ABSENT, where a section or a part of it isn't there."""
    at_most: bool = False


@dataclass(frozen=True, slots=True)
class JudgedGoal:
    """A goal beside what was measured."""

    what: str
    goal: float
    at_most: bool
    measured: float | None
    """None: not yet measured."""
    met: bool | None


ABSENT = (KeyError, StopIteration, ValueError, TypeError, ZeroDivisionError)
"""What reading raises where a section did not run, or lacks a batch, a length or an engine."""


def judged(sections: Sections) -> list[JudgedGoal]:
    """Every goal beside what these sections measured."""
    verdicts = []
    for goal in GOALS:
        try:
            measured = goal.read(sections)
        except ABSENT:
            verdicts.append(JudgedGoal(goal.what, goal.bound, goal.at_most, None, None))
            continue
        met = measured <= goal.bound if goal.at_most else measured >= goal.bound
        verdicts.append(JudgedGoal(goal.what, goal.bound, goal.at_most, measured, met))
    return verdicts


def goals_table(sections: Sections) -> str:
    """The goals for people: what was measured, and whether that meets them."""
    rows = []
    for verdict in judged(sections):
        bound = f"{'at most' if verdict.at_most else 'at least'} {verdict.goal:g}"
        if verdict.measured is None:
            rows.append((verdict.what, bound, "not yet measured", ""))
        else:
            rows.append((verdict.what, bound, f"{verdict.measured:.2f}", "met" if verdict.met else "NOT MET"))
    return text_table(("", "goal", "measured", ""), rows)


# ---------------------------------------------------------------- how figures are read


def row(sections: Sections, section: str, **of: Any) -> Row:
    """The row of a section's results that has these values."""
    rows = sections[section]["results"]
    return next(each for each in rows if all(each[name] == value for name, value in of.items()))


def step_ms(section: str, batch: int, sections: Sections) -> float:
    """Milliseconds of a decode step."""
    return 1e3 * row(sections, section, batch=batch)["step_s"]


def mbu(section: str, batch: int, sections: Sections) -> float:
    """The share of memory bandwidth in a decode step."""
    return row(sections, section, batch=batch)["mbu"]


def least_mbu(section: str, sections: Sections) -> float:
    """The smallest over the batches."""
    return min(each["mbu"] for each in sections[section]["results"])


def decode_ratio(section: str, batch: int, sections: Sections) -> float:
    """How many times as fast as in bf16 a decode step is."""
    return step_ms("decode_8b", batch, sections) / step_ms(section, batch, sections)


def prompt_ratio(section: str, sections: Sections) -> float:
    """How many times as long as in bf16 a prompt takes; the largest over the lengths that both have."""
    plain = {each["prompt_len"]: each["step_s"] for each in sections["prefill_8b"]["results"]}
    own = {each["prompt_len"]: each["step_s"] for each in sections[section]["results"]}
    return max(own[length] / plain[length] for length in own.keys() & plain.keys())


def long_prefill(sections: Sections) -> float:
    """The smallest share of peak FLOP/s among prompts of 2000 tokens and more."""
    return min(each["mfu"] for each in sections["prefill_8b"]["results"] if each["prompt_len"] >= 2000)


def triton_over_fa3(sections: Sections) -> float:
    """The smallest ratio of speeds over the decode shapes. KeyError where FA3 is not installed."""
    times: dict[str, dict[str, float]] = {}
    for each in sections["attention_8b"]["results"]:
        if each["shape"]["kind"] == "decode":
            times.setdefault(str(each["shape"]), {})[each["backend"]] = each["call_s"]["median"]
    return min(by_backend["fa3"] / by_backend["triton"] for by_backend in times.values())


def busy(sections: Sections) -> float:
    """The smallest share of time in which the GPU worked, over the batch sizes."""
    return 1 - max(sections["decode_0.6b"]["idle"].values())


def speedup(section: str, engine: str, sections: Sections) -> float:
    """Median speedup over another engine, of a section with one workload."""
    return sections[section]["results"][0]["peers"][0]["speedups"][engine]["median"]


def beside_vllm(kind: str, sections: Sections) -> Iterator[Row]:
    """minillm's rows of the workloads of this kind, measured in turns with vLLM."""
    for workload in sections["vllm_8b"]["results"]:
        if workload["name"].startswith("prefill_") == (kind == "prefill"):
            yield workload["peers"][0]


def vllm_decode(sections: Sections) -> float:
    """vLLM's median gap between tokens over ours; the smallest over the batches."""
    return min(1 / own["itl_ratios"]["vllm"]["median"] for own in beside_vllm("decode", sections))


def vllm_prefill(sections: Sections) -> float:
    """vLLM's seconds of a prompt over ours; the smallest over the lengths."""
    return min(own["speedups"]["vllm"]["median"] for own in beside_vllm("prefill", sections))


def vllm_served(figure: Callable[[Row], float], sections: Sections) -> float:
    """minillm's figure over vLLM's under the same arrivals; the smallest over the shares of the knee."""
    ours, theirs = (sections["vllm_served_8b"]["engines"][name] for name in ("minillm", "vllm"))
    return min(figure(ours[share]) / figure(theirs[share]) for share in ours if share != "closed")


def goodput(report: Row) -> float:
    """The share of the requests that met the limits. Both servers had the same arrivals, so that is goodput's ratio;
    per second of the test, the last answer's length would count, too."""
    return report["rates"]["attainment"]


def quickness(metric: str, report: Row) -> float:
    """One over the 99th percentile, so that more is better."""
    return 1 / report["latency"][metric]["p99"]


def start_up(sections: Sections) -> float:
    """Seconds to the first token of the quickest way whose kernels are compiled already."""
    return min(each["total_s"] for each in sections["start_up_8b"]["results"] if each["way"].startswith("warm"))


def pieces_gain(sections: Sections) -> float:
    """Tokens per second of few requests with piecewise graphs over those without."""
    rates = [
        sections[name]["results"][0]["peers"][0]["tokens_per_s"]["median"]
        for name in ("few_0.6b", "few_0.6b_no_pieces")
    ]
    return rates[0] / rates[1]


GOALS = [
    Goal("Beside vLLM: 0.6B, 256 requests, throughput", 1.1, partial(speedup, "vllm_throughput_0.6b", "vllm")),
    Goal("Beside vLLM: 8B, decode, slowest of the batches", 1.05, vllm_decode),
    Goal("Beside vLLM: 8B, prompts of 2k to 16k, slowest", 1.0, vllm_prefill),
    Goal("Beside vLLM: 8B served at 50, 70, 90% of the knee, goodput", 1.0, partial(vllm_served, goodput)),
    Goal("  the same, 1 / p99 of TTFT", 1.0, partial(vllm_served, partial(quickness, "ttft"))),
    Goal("  the same, 1 / p99 of ITL", 1.0, partial(vllm_served, partial(quickness, "itl"))),
    # 304 launches of 2 us, and their bytes at 3.0 TB/s, are 2.31 ms (course/measure/launches.py): it takes launches
    # that overlap, or fewer still.
    Goal("8B in int4, batch 1, ms a step", 2.3, partial(step_ms, "decode_8b_int4", 1), at_most=True),
    Goal("  the same, kernels starting early", 2.3, partial(step_ms, "decode_8b_int4_pdl", 1), at_most=True),
    Goal("8B in int4, batch 32, ms a step", 3.3, partial(step_ms, "decode_8b_int4", 32), at_most=True),
    Goal("  the same, kernels starting early", 3.3, partial(step_ms, "decode_8b_int4_pdl", 32), at_most=True),
    Goal("8B in int4, prompts, times bf16's seconds", 1.15, partial(prompt_ratio, "prefill_8b_int4"), at_most=True),
    Goal("8B in int8, batch 1, share of copy bandwidth", 0.75, partial(mbu, "decode_8b_int8", 1)),
    Goal("8B in int8, prompts, times bf16's seconds", 1.15, partial(prompt_ratio, "prefill_8b_int8"), at_most=True),
    Goal("8B in fp8, batch 1, times as fast as bf16", 1.6, partial(decode_ratio, "decode_8b_fp8", 1)),
    Goal("8B, int8 KV at 2k, share of copy bandwidth", 0.85, partial(least_mbu, "decode_8b_kv_int8")),
    Goal("8B, fp8 KV at 2k, share of copy bandwidth", 0.85, partial(least_mbu, "decode_8b_kv_fp8")),
    Goal("30B-A3B, batch 1, share of copy bandwidth", 0.60, partial(mbu, "moe_30b", 1)),
    Goal("30B-A3B, batch 64, share of copy bandwidth", 0.80, partial(mbu, "moe_30b", 64)),
    Goal("8B, start to first token, warm, seconds", 5.0, start_up, at_most=True),
    # They add to start-up, so no difference is no reason to keep them.
    Goal("0.6B, 16 requests, with piecewise graphs over without", 1.02, pieces_gain),
    Goal("8B, batch 1, share of copy bandwidth", 0.80, partial(mbu, "decode_8b", 1)),
    Goal("1B, batch 1, share of copy bandwidth", 0.55, partial(mbu, "decode_1b", 1)),
    Goal("8B, prompts of 2k and more, share of matmul rate", 0.65, long_prefill),
    Goal("Triton decode attention over FlashAttention-3", 0.85, triton_over_fa3),
    Goal("0.6B, decode, GPU busy (idle under 3%)", 0.97, busy),
    Goal("0.6B, 256 requests over nano-vllm", 1.1, partial(speedup, "nano_vllm_0.6b", "nano_vllm")),
    Goal("0.6B, 256 requests (64 without flash-attn) over HF", 3.0, partial(speedup, "hf_0.6b", "hf_continuous")),
]


def as_record(sections: Sections) -> list[dict[str, Any]]:
    """The verdicts as a record keeps them."""
    return [asdict(verdict) for verdict in judged(sections)]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Each goal beside what a record of `make gpu-check` measured.")
    parser.add_argument("records", nargs="+", type=Path, metavar="RECORD")
    for file in parser.parse_args(arguments).records:
        try:
            measured = json.loads(file.read_text())["sections"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            parser.error(f"{file} is no record of gpu-check: {type(error).__name__}: {error}")
        print(f"{file.name}\n{goals_table(measured)}\n")


if __name__ == "__main__":
    main()
