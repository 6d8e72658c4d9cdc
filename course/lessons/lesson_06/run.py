"""Lesson 06, the memory wall: decode steps, what each had to read and to multiply, and where one goes."""

import bisect
import itertools
import math
import os
import random
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch.autograd import DeviceType
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity, profile, record_function

from course.lab import simulated_70b
from course.lab.defaults import LAB_DEFAULTS
from course.lab.lab import Lab
from course.lab.model_shape import ModelShape
from course.lab.predict import MeasuredAnswer
from course.lab.roof import Roof
from course.lab.run import Run, percentile
from course.lab.style import seconds
from course.lab.texts import CHAT_QUESTIONS
from course.lab.workloads import LabWorkload, PromptArrival, document
from course.simulator.cost.placement import USABLE_MEMORY, WORKING_BYTES
from minillm import Engine, SamplingParams
from minillm.bench.target import Target
from minillm.core.brief import brief
from minillm.core.step_log import StepRecord
from minillm.kernels.attention.base import AttentionBackend
from minillm.model.linear import AnyLinear

# ---------------------------------------------------------------- requests that decode side by side

SLOTS = 128
SHORT_CHARACTERS, LONG_CHARACTERS = 2, 4.2
"""At least so many characters make a token, in a few words and in a handbook: KV blocks are set aside by that."""
PARAGRAPH_TOKENS = 60
"""At least, or a long prompt would end early."""
CHARACTERS_PER_TOKEN = 4.35
FEW_WORDS = 14
"""Tokens of a short prompt, about."""
BLOCK = 16
BUDGET = 2048
"""Tokens of one step: all of the prompts, where they are short."""
WIDE = 16
"""Steps' worth of prompts from which on a step takes four times as many: contexts shall not grow while others wait."""


def side_by_side(batch: int, context: int = 0, steps: int = 8) -> LabWorkload:
    """`batch` requests in the same instant, each to write `steps` tokens, and a few more if prompts take long to read.

    Args:
        context: about so many tokens of handbook in each prompt, different ones; 0 = a few words.
    """
    tokens = batch * max(context, FEW_WORDS)
    steps += tokens // budget(tokens, batch)
    prompts = [_prompt(i, context) for i in range(batch)]
    return LabWorkload(
        f"{batch} side by side, context {context or 'short'}",
        "Equally long prompts in the same instant.",
        tuple(PromptArrival(0.0, prompt, steps) for prompt in prompts),
    )


def room(workload: LabWorkload) -> dict[str, Any]:
    """Engine fields under which all of them decode together: a slot and KV blocks for each, nothing reused."""
    tokens = [_most_tokens(arrival.prompt) + arrival.max_tokens for arrival in workload.arrivals]
    fields = {
        "max_num_seqs": max(SLOTS, len(tokens)),
        "max_num_batched_tokens": budget(sum(tokens), len(tokens)),
        "num_kv_blocks": sum(math.ceil(t / BLOCK) + 2 for t in tokens),
        "enable_prefix_caching": False,
    }
    longest = math.ceil(max(tokens))
    return fields | ({"max_model_len": longest} if longest > LAB_DEFAULTS["max_model_len"] else {})


def budget(tokens: float, batch: int) -> int:
    """Tokens of one step, where so many are in all prompts of a batch together."""
    return max(BUDGET if tokens <= WIDE * BUDGET else 4 * BUDGET, 4 * batch)


def _most_tokens(prompt: str) -> float:
    """No more than this, whatever the tokenizer."""
    return min(len(prompt) / SHORT_CHARACTERS, BLOCK + len(prompt) / LONG_CHARACTERS)


def _prompt(index: int, context: int) -> str:
    """The number in front keeps them apart."""
    if context == 0:
        return f"{index}. {CHAT_QUESTIONS[index % len(CHAT_QUESTIONS)][:24]}"
    text = document(random.Random(index), math.ceil(context / PARAGRAPH_TOKENS) + 1)
    return f"{index}. {text}"[: int(context * CHARACTERS_PER_TOKEN)]


# ---------------------------------------------------------------- real steps, and what each had to read and to multiply

MOST, SHORT_MOST = 4096, 64
"""No batch of a sweep is larger; in the short form on an engine that computes."""
RESTLESS = 1.6
"""A machine whose slow steps (p90) take this many times its quick ones (p10) is busy with something else, too."""


@dataclass(frozen=True)
class Dot:
    """Decode steps of one kind: `batch` requests, and nothing else in the step."""

    shape: ModelShape
    batch: int
    context: float
    """Tokens of one request, the new one included; the mean over requests and steps."""
    gaps: tuple[float, ...]
    """Seconds from the end of a step to the end of the next: what each reader waited, their ITL."""

    __repr__ = brief

    @classmethod
    def of(cls, shape: ModelShape, run: Run) -> "Dot":
        """From a run of `side_by_side` traffic.

        Raises:
            LookupError: it was stopped, or never had all of its requests decode together.
        """
        batch = len(run.rows)
        done = {view.request_id: view.num_cached_tokens for view in run.views}
        gaps, contexts = [], []
        for before, step in itertools.pairwise((None, *run.steps)):
            for share in step.shares:
                done[share.request_id] += share.num_tokens
            if before is not None and _is_steady(before, batch) and _is_steady(step, batch):
                gaps.append(step.end - before.end)
                contexts.append(statistics.fmean(done[share.request_id] for share in step.shares))
        if not gaps:
            raise LookupError(f"no two steps in a row decoded all {batch} requests: was the run stopped?")
        return cls(shape, batch, statistics.fmean(contexts), tuple(gaps))

    @property
    def itl(self) -> float:
        """Median, seconds."""
        return statistics.median(self.gaps)

    @property
    def tokens_per_s(self) -> float:
        return self.batch / self.itl

    @property
    def kv_bytes(self) -> float:
        return self.shape.kv_bytes(self.batch, self.context)

    @property
    def bytes(self) -> float:
        return self.shape.bytes(self.batch, self.context)

    @property
    def flops(self) -> float:
        return self.shape.flops(self.batch, self.context)

    @property
    def intensity(self) -> float:
        """FLOP for each byte."""
        return self.flops / self.bytes

    @property
    def is_restless(self) -> bool:
        """Something else was running, too: do not trust a small difference."""
        return len(self.gaps) > 2 and percentile(self.gaps, 90) > RESTLESS * percentile(self.gaps, 10)

    def mbu(self, roof: Roof) -> float:
        """Model bandwidth utilization: the seconds that reading takes at least, over the seconds that the step took."""
        return roof.reading(self.bytes) / self.itl

    def mfu(self, roof: Roof) -> float:
        """Model FLOPs utilization: the same for multiplying."""
        return roof.multiplying(self.flops) / self.itl

    def rest(self, roof: Roof) -> float:
        """Seconds that are neither: what the step took beyond the longer of the two, which can run side by side."""
        return max(self.itl - max(roof.reading(self.bytes), roof.multiplying(self.flops)), 0.0)

    def floor(self, roof: Roof) -> float:
        """Seconds that the step takes at least: its linear layers, then its attention."""
        return roof.floor(self.shape, self.batch, self.context)

    @property
    def called(self) -> str:
        return f"batch {self.batch}, context {self.context:.0f}"


def _is_steady(step: StepRecord, batch: int) -> bool:
    return len(step.shares) == batch and step.num_prefill_tokens == 0


def dots(lab: Lab, runs: Sequence[Run]) -> list[Dot]:
    """One dot for each workload, by batch, then context; runs of the same one are pooled."""
    shape = ModelShape.of_lab(lab)
    kinds: dict[str, list[Dot]] = {}
    for run in runs:
        kinds.setdefault(run.workload, []).append(Dot.of(shape, run))
    return sorted((_pooled(same) for same in kinds.values()), key=lambda dot: (dot.batch, dot.context))


def _pooled(same: Sequence[Dot]) -> Dot:
    gaps = tuple(gap for dot in same for gap in dot.gaps)
    return Dot(same[0].shape, same[0].batch, statistics.fmean(dot.context for dot in same), gaps)


def largest_within(dots: Sequence[Dot], slo: float) -> float:
    """The batch at which ITL reaches `slo`, between measured ones by a straight line over logarithms."""
    if dots[0].itl > slo:
        return 0.0
    for left, right in itertools.pairwise(dots):
        if right.itl > slo:
            way = math.log(slo / left.itl) / math.log(right.itl / left.itl)
            return left.batch * (right.batch / left.batch) ** way
    return float(dots[-1].batch)


def measure(lab: Lab, batch: int, context: int = 0) -> Dot:
    """One dot: a run of the real engine. `context`: about so many tokens in each prompt; 0 = a few words."""
    workload = side_by_side(batch, context, num_steps(lab, batch))
    return dots(lab, [lab.run(workload, **room(workload))])[0]


def batches(lab: Lab, some: Sequence[int]) -> list[LabWorkload]:
    """Short contexts, batch by batch, round after round: a disturbance hits every batch equally."""
    return [side_by_side(batch, 0, num_steps(lab, batch)) for batch in some] * rounds(lab)


def doubled_batches(lab: Lab, roof: Roof) -> tuple[int, int, int, int]:
    """Two doublings: of a single request, and where the linear layers have long been waiting for arithmetic, if this
    machine gets there with less than a thousand requests."""
    past = 4 * roof.knee(ModelShape.of_lab(lab))
    late = 2 ** round(math.log2(min(max(past, 8), 512)))
    return 1, 2, late, 2 * late


def sweep(lab: Lab, single: Sequence[Dot]) -> list[Dot]:
    """Short contexts, batch after batch, up to the one that breaks the SLO; then all of them once more.

    Args:
        single: steps of one request that were measured before: they set the SLO.
    """
    shape, limit, played, runs = ModelShape.of_lab(lab), slo_seconds(single), [], []
    for batch in powers(lab):
        work = side_by_side(batch, 0, num_steps(lab, batch))
        if BLOCK * room(work)["num_kv_blocks"] > pool_tokens(lab):
            break
        played.append(work)
        runs.append(lab.run(work, **room(work)))
        if batch > 1 and Dot.of(shape, runs[-1]).itl > limit:  # one request alone has set the limit
            runs.append(lab.run(work, **room(work)))  # or was the machine busy with something else?
            if Dot.of(shape, runs[-1]).itl > limit:
                break
    again = played[:-1] * (rounds(lab) - 1)
    return dots(lab, runs + [lab.run(work, **room(work)) for work in again])


def powers(lab: Lab) -> list[int]:
    """Batches of a sweep, smallest first: powers of two; in the short form, of four."""
    most = MOST if lab.scale == 1 or lab.simulated is not None else SHORT_MOST
    return [2**i for i in range(0, most.bit_length(), 1 if lab.scale == 1 else 2)]


def slo_seconds(single: Sequence[Dot]) -> float:
    """The ITL that is allowed: SLO times that of a single request, by the quietest of some measurements."""
    return SLO * min(dot.itl for dot in single)


def furthest(single: Sequence[Dot], roof: Roof) -> int:
    """A batch that can't keep the SLO: arithmetic alone, at its peak, would take all of it. A power of two."""
    shape = single[0].shape
    most = slo_seconds(single) / roof.multiplying(shape.flops_per_token(0))
    return 2 ** math.ceil(math.log2(min(max(most, 2), MOST)))


REACH = 1.15
"""How far beyond the contexts that make the KV as many bytes as the weights."""
PATIENCE_S = 20.0
"""Prompts may take so long to compute, at the machine's peak."""
POOL_SHARE, WINDOW_SHARE = 0.9, 0.9
"""Shares of the memory for KV, and of the longest context that a model takes."""
SHORT_TOKENS = 1280
"""All contexts together, in the short form on an engine that computes."""


def longer_and_longer(lab: Lab, roof: Roof) -> list[LabWorkload]:
    """The same batch over longer and longer contexts: the weights stay, the KV grows.

    The longest makes the KV more bytes than the weights, as far as memory, the model's window and patience reach. The
    shortest comes first and last: if the machine has become slower or faster in between, its pooled steps show it.
    """
    batch, longest = longest_contexts(lab, roof)
    wanted = (0, longest // 2, longest, 0) if lab.scale == 1 else (0, longest, 0)
    return [side_by_side(batch, context, num_steps(lab, batch)) for context in wanted]


def longest_contexts(lab: Lab, roof: Roof) -> tuple[int, int]:
    """A batch, and the tokens of each of its contexts."""
    shape, batch = ModelShape.of_lab(lab), 8
    patient = PATIENCE_S / roof.multiplying(shape.flops_per_token(0))
    tokens = min(REACH * shape.crossover_tokens, POOL_SHARE * pool_tokens(lab), patient)
    if lab.scale < 1 and lab.simulated is None:
        batch, tokens = 4, min(tokens, SHORT_TOKENS)
    window = WINDOW_SHARE * shape.cost.max_context
    while tokens / batch > window and batch < SLOTS:
        batch *= 2
    return batch, int(min(tokens / batch, window))


def pool_tokens(lab: Lab) -> float:
    """Tokens whose KV fits beside the weights on the lab's device. Infinite on a CPU: time runs out before memory."""
    if lab.simulated is not None:
        return simulated_70b.room_tokens(lab.simulated.deployment(lab.config(num_kv_blocks=None)))
    device = Target(device=lab.config().device).torch_device()
    if device.type != "cuda":
        return math.inf
    shape, memory = ModelShape.of_lab(lab), torch.cuda.get_device_properties(device).total_memory
    return max(USABLE_MEMORY * memory - shape.weight_bytes - WORKING_BYTES, 0) / shape.kv_bytes_per_token


def rounds(lab: Lab) -> int:
    """How often each kind of step is measured."""
    return 2 if lab.scale == 1 else 1


def num_steps(lab: Lab, batch: int) -> int:
    """Tokens that each request writes: many where a step is short."""
    return (24 if batch <= 8 else 8) if lab.scale == 1 else 7


# ---------------------------------------------------------------- where one step goes, by PyTorch's profiler

PRODUCT, ATTENTION, OTHER, PYTHON = "matrix products", "attention", "other operations", "between operations (Python)"
IDLE = "no kernel running"
WARM, STEPS = 6, 8
os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # or the profiler writes into the notebook when it starts and stops
OP_BY_OP = {"fused_kernels": False, "cuda_graphs": False}
"""Engine fields under which Python launches every operation of every layer by itself."""
COMPUTING, GPU, LAUNCHING = "computing", "GPU", "launching"
"""Whose seconds a profile has: those of a CPU that computes; of a GPU's kernels; of a host that launches them."""


@dataclass(frozen=True)
class StepProfile:
    """The mean of some decode steps of one batch."""

    batch: int
    seconds: dict[str, float]
    """By part: the first three constants above; and what was between them, on the host or on the GPU."""
    calls: Mapping[str, float]
    """Calls that the host made in a step, by part."""
    trace: Any
    """What torch.profiler recorded, to export."""
    clock: str = COMPUTING

    __repr__ = brief

    @property
    def total(self) -> float:
        return sum(self.seconds.values())

    def save(self, path: str = "decode_step.json") -> str:
        """Write it for ui.perfetto.dev, and say where."""
        self.trace.export_chrome_trace(path)
        return f"{Path(path).resolve()}: open it in https://ui.perfetto.dev"


def profile_steps(lab: Lab, batch: int) -> StepProfile:
    """Profile an engine that launches operation by operation: inside one call for all layers there'd be nothing to see.

    On a GPU the seconds are those of its kernels; where the profiler can't tell, those of launching.

    Raises:
        SimulatedDeviceError: nothing is launched.
    """
    lab.needs_model("A profile of one step")
    on_gpu = Target(device=lab.config().device).torch_device().type == "cuda"
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * on_gpu
    with decoding(lab, batch, WARM + STEPS, **OP_BY_OP) as engine:
        for _ in range(WARM):
            engine.step()
        with _labelled(), profile(activities=activities, acc_events=True) as trace:  # or PyTorch 2.11 warns
            for _ in range(STEPS):
                with record_function(PYTHON):
                    engine.step()
    spent, calls = by_part(trace.events(), STEPS)
    kernels = by_kernel(trace.events(), STEPS) if on_gpu else None
    clock = COMPUTING if not on_gpu else LAUNCHING if kernels is None else GPU
    return StepProfile(batch, spent if kernels is None else kernels, calls, trace, clock)


def by_part(events: Iterable[FunctionEvent], steps: int) -> tuple[dict[str, float], Counter[str]]:
    """The host's seconds and calls in a step, by part. What a GPU did is listed beside its launch, so it's left out."""
    spent = dict.fromkeys((PRODUCT, ATTENTION, OTHER, PYTHON), 0.0)
    calls = Counter[str]()
    for event in events:
        name = event.name if event.name in spent else OTHER
        outermost = event.cpu_parent is None or event.cpu_parent.name == PYTHON  # in a step
        if outermost and event.device_type == DeviceType.CPU:
            spent[name] += event.cpu_time_total / 1e6 / steps
            spent[PYTHON] -= (name != PYTHON) * event.cpu_time_total / 1e6 / steps
            calls[name] += 1 / steps
    del calls[PYTHON]
    return spent, calls


def by_kernel(events: Sequence[FunctionEvent], steps: int) -> dict[str, float] | None:
    """The GPU's seconds in a step, by part: each kernel belongs to the label under which it was launched, which the
    profiler draws on the GPU's own clock as well. None = there are no labels there."""
    on_gpu = [event for event in events if event.device_type == DeviceType.CUDA]
    labels = {part: _spans(event for event in on_gpu if event.name == part) for part in (PRODUCT, ATTENTION)}
    steps_on_host = _spans(e for e in events if e.name == PYTHON and e.device_type == DeviceType.CPU)
    if not labels[PRODUCT] or not steps_on_host:
        return None
    spent = dict.fromkeys((PRODUCT, ATTENTION, OTHER, IDLE), 0.0)
    for start, end in _spans(event for event in on_gpu if event.name not in (PRODUCT, ATTENTION, PYTHON)):
        part = next((part for part, spans in labels.items() if _holds(spans, (start + end) / 2)), OTHER)
        spent[part] += (end - start) / 1e6 / steps
    whole = (steps_on_host[-1][1] - steps_on_host[0][0]) / 1e6 / steps
    spent[IDLE] = max(whole - sum(spent.values()), 0.0)
    return spent


def _spans(events: Iterable[FunctionEvent]) -> list[tuple[float, float]]:
    """From when to when, microseconds; in order."""
    return sorted((event.time_range.start, event.time_range.end) for event in events)


def _holds(spans: Sequence[tuple[float, float]], moment: float) -> bool:
    """Whether a moment lies in one of some spans that don't overlap."""
    last = bisect.bisect_right(spans, (moment, math.inf)) - 1
    return last >= 0 and moment <= spans[last][1]


@contextmanager
def decoding(lab: Lab, batch: int, steps: int, **fields: Any) -> Iterator[Engine]:
    """An engine of its own with requests that decode side by side; nothing is scheduled ahead."""
    work = side_by_side(batch)
    with lab.alone():
        engine = lab.engine(async_scheduling=False, **room(work), **fields)
        for arrival in work.arrivals:
            engine.add_request(arrival.prompt, SamplingParams(max_tokens=steps + 2, temperature=0, ignore_eos=True))
        yield engine
        engine.close()


@contextmanager
def _labelled() -> Iterator[None]:
    """Products and attention under names of their own: they're our C++ here, which the profiler doesn't know."""
    with ExitStack() as patches:
        patches.enter_context(patch.object(AnyLinear, "__call__", _named(PRODUCT, torch.nn.Module.__call__)))
        for backend in AttentionBackend.__subclasses__():
            patches.enter_context(patch.object(backend, "attend", _named(ATTENTION, backend.attend)))
        yield


def _named(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    def recorded(*args: Any, **kwargs: Any) -> Any:
        with record_function(name):
            return call(*args, **kwargs)

    return recorded


# ---------------------------------------------------------------- what the predictions are scored by

BORDER = 2**0.5
"""Nearer to x 1, or nearer to x 2?"""
DOUBLINGS = {
    (True, True): "neither doubling changes it much",
    (True, False): "the first doesn't change it much, the second nearly doubles it",
    (False, True): "the first nearly doubles it, the second doesn't change it much",
    (False, False): "both nearly double it",
}
"""By whether ITL stayed, at each of the two doublings."""
GROWTH = ("less than a quarter more", "a quarter more to double", "more than double")
SLO = 3.0
"""Times the ITL of a single request."""


def two_doublings(dots: Sequence[Dot]) -> tuple[float, float]:
    """By what ITL grew at the first doubling, and at the second."""
    one, two, many, twice = (dot.itl for dot in dots)
    return two / one, twice / many


def doublings(dots: Sequence[Dot]) -> MeasuredAnswer:
    """Which of the two doublings was nearly free."""
    early, late = two_doublings(dots)
    told = ", ".join(f"{dot.batch}: {seconds(dot.itl)}" for dot in dots)
    grew = f"from {dots[0].batch} to {dots[1].batch} ×{early:.2f}, from {dots[2].batch} to {dots[3].batch} ×{late:.2f}"
    return MeasuredAnswer(DOUBLINGS[early < BORDER, late < BORDER], f"ITL at batch {told}; {grew}" + _noise(dots))


def slo(sweep: Sequence[Dot], single: Sequence[Dot]) -> MeasuredAnswer:
    """The largest batch within SLO times a single request's ITL."""
    limit = slo_seconds(single)
    kept = largest_within(sweep, limit)
    at = "kept up to" if kept == sweep[-1].batch else "reached at"
    told = f"a single request's ITL is {seconds(limit / SLO)}; {seconds(limit)} is {at} batch {kept:.0f}"
    return MeasuredAnswer(kept, told + _noise(sweep))


def launches(whole: Sequence[Dot], apart: Sequence[Dot]) -> MeasuredAnswer:
    """How many times as long a single request's step takes if Python launches every operation."""
    ratio = apart[0].itl / whole[0].itl
    told = f"{seconds(whole[0].itl)} in one call, {seconds(apart[0].itl)} operation by operation"
    return MeasuredAnswer(ratio, f"{told}: ×{ratio:.2f}" + _noise([whole[0], apart[0]]))


def growth(dots: Sequence[Dot]) -> MeasuredAnswer:
    """ITL from the shortest to the longest context, at one batch."""
    short, long = dots[0], dots[-1]
    ratio = long.itl / short.itl
    answer = GROWTH[0] if ratio < 1.25 else GROWTH[1] if ratio <= 2 else GROWTH[2]
    ends = " to ".join(f"{seconds(dot.itl)} at a context of {dot.context:.0f}" for dot in (short, long))
    return MeasuredAnswer(answer, f"batch {short.batch}: {ends} (×{ratio:.2f})" + _noise([short, long]))


def _noise(dots: Sequence[Dot]) -> str:
    restless = [str(dot.batch) for dot in dots if dot.is_restless]
    return f". The machine was restless (batch {', '.join(restless)}): run it again to be sure" if restless else ""
