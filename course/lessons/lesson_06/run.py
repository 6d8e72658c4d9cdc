"""Lesson 06, the memory wall: decode steps, what each had to read and to multiply, and where one goes."""

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

from course.lab.lab import Lab
from course.lab.model_shape import ModelShape
from course.lab.predict import MeasuredAnswer
from course.lab.roof import Roof
from course.lab.run import Run, percentile
from course.lab.style import seconds
from course.lab.texts import CHAT_QUESTIONS
from course.lab.workloads import LabWorkload, PromptArrival, document
from minillm import Engine, SamplingParams
from minillm.core.brief import brief
from minillm.core.timeline import StepRecord
from minillm.kernels.attention.base import AttentionBackend
from minillm.model.linear import AnyLinear

# ---------------------------------------------------------------- requests that decode side by side

SLOTS = 128
TOKEN_CHARACTERS = 2
"""At least so many characters make a token, in any of our texts: KV blocks are set aside by that."""
PARAGRAPH_TOKENS = 75
CHARACTERS_PER_TOKEN = 4.75
BLOCK = 16
BUDGET = 2048
"""Tokens of one step: all of the prompts, where they are short."""


def side_by_side(batch: int, context: int = 0, steps: int = 8) -> LabWorkload:
    """`batch` requests in the same instant, each to write `steps` tokens, and a few more if prompts take long to read.

    Args:
        context: about so many tokens of handbook in each prompt, different ones; 0 = a few words.
    """
    steps += math.ceil(batch * context / BUDGET)
    prompts = [_prompt(i, context) for i in range(batch)]
    return LabWorkload(
        f"{batch} side by side, context {context or 'short'}",
        "Equally long prompts in the same instant.",
        tuple(PromptArrival(0.0, prompt, steps) for prompt in prompts),
    )


def room(workload: LabWorkload) -> dict[str, Any]:
    """Engine fields under which all of them decode at once: a slot and KV blocks for each, nothing reused."""
    tokens = [len(a.prompt) / TOKEN_CHARACTERS + a.max_tokens for a in workload.arrivals]
    return {
        "max_num_seqs": max(SLOTS, len(tokens)),
        "max_num_batched_tokens": BUDGET,
        "num_kv_blocks": sum(math.ceil(t / BLOCK) + 2 for t in tokens),
        "enable_prefix_caching": False,
    }


def _prompt(index: int, context: int) -> str:
    """The number in front keeps them apart."""
    if context == 0:
        return f"{index}. {CHAT_QUESTIONS[index % len(CHAT_QUESTIONS)][:24]}"
    text = document(random.Random(index), math.ceil(context / PARAGRAPH_TOKENS) + 1)
    return f"{index}. {text}"[: int(context * CHARACTERS_PER_TOKEN)]


# ---------------------------------------------------------------- real steps, and what each had to read and to multiply

BATCHES, SHORT_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128), (1, 4, 16, 64)
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
            LookupError: it was stopped, or never had all of its requests decode at once.
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
        """Model bandwidth utilisation: the seconds that reading takes at least, over the seconds that the step took."""
        return roof.reading(self.bytes) / self.itl

    def mfu(self, roof: Roof) -> float:
        """Model FLOPs utilisation: the same for multiplying."""
        return roof.multiplying(self.flops) / self.itl

    def rest(self, roof: Roof) -> float:
        """Seconds that are neither: what the step took beyond reading and multiplying, one after the other."""
        return max(self.itl - roof.reading(self.bytes) - roof.multiplying(self.flops), 0.0)

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


def batches(lab: Lab, some: Sequence[int] = ()) -> list[LabWorkload]:
    """Short contexts, batch by batch, round after round: a disturbance hits all batches alike."""
    some = some or (BATCHES if lab.scale == 1 else SHORT_BATCHES)
    return [side_by_side(batch, 0, num_steps(lab, batch)) for batch in some] * rounds(lab)


def longer_and_longer(lab: Lab) -> list[LabWorkload]:
    """The same batch over longer and longer contexts: the weights stay, the KV grows.

    The longest makes the KV as many bytes as the weights, as far as the window and patience reach. The shortest comes
    first and last: if the machine has become slower or faster in between, its pooled steps show it.
    """
    batch, longest = (8, 1500) if lab.scale == 1 else (4, 320)
    window = lab.config().max_model_len * 3 // 4
    longest = min(longest, round(ModelShape.of_lab(lab).crossover_tokens / batch), window)
    wanted = (0, longest // 2, longest, 0) if lab.scale == 1 else (0, longest, 0)
    return [side_by_side(batch, context, num_steps(lab, batch)) for context in wanted]


def rounds(lab: Lab) -> int:
    """How often each kind of step is measured."""
    return 2 if lab.scale == 1 else 1


def num_steps(lab: Lab, batch: int) -> int:
    """Tokens that each request writes: many where a step is short."""
    return (24 if batch <= 8 else 8) if lab.scale == 1 else 7


# ---------------------------------------------------------------- where one step goes, by PyTorch's profiler

PRODUCT, ATTENTION, OTHER, PYTHON = "matrix products", "attention", "other operations", "between operations (Python)"
WARM, STEPS = 6, 8
os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # or the profiler writes into the notebook when it starts and stops
OP_BY_OP = {"fused_kernels": False, "cuda_graphs": False}
"""Engine fields under which Python launches every operation of every layer by itself."""


@dataclass(frozen=True)
class StepProfile:
    """The mean of some decode steps of one batch."""

    batch: int
    seconds: dict[str, float]
    """By part, in the order of the constants above."""
    calls: Mapping[str, float]
    trace: Any
    """What torch.profiler recorded, to export."""

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

    Times are the host's: on a GPU those of launching.

    Raises:
        SimulatedDeviceError: nothing is launched.
    """
    lab.needs_model("A profile of one step")
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * torch.cuda.is_available()
    with decoding(lab, batch, WARM + STEPS, **OP_BY_OP) as engine:
        for _ in range(WARM):
            engine.step()
        with _labelled(), profile(activities=activities, acc_events=True) as trace:  # or PyTorch 2.11 warns
            for _ in range(STEPS):
                with record_function(PYTHON):
                    engine.step()
    return StepProfile(batch, *by_part(trace.events(), STEPS), trace)


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
    (True, True): "1 → 2: hardly changes; 64 → 128: hardly changes",
    (True, False): "1 → 2: hardly changes; 64 → 128: nearly doubles",
    (False, True): "1 → 2: nearly doubles; 64 → 128: hardly changes",
    (False, False): "1 → 2: nearly doubles; 64 → 128: nearly doubles",
}
"""By whether ITL stayed, at each of the two doublings."""
GROWTH = ("less than a quarter more", "a quarter more to double", "more than double")
SLO = 3.0
"""Times the ITL of a lone request."""


def two_doublings(dots: Sequence[Dot]) -> tuple[float, float]:
    """By what ITL grew from batch 1 to 2, and from 64 to 128."""
    itl = {dot.batch: dot.itl for dot in dots}
    return itl[2] / itl[1], itl[128] / itl[64]


def doublings(dots: Sequence[Dot]) -> MeasuredAnswer:
    """Which of the two doublings was nearly free."""
    early, late = two_doublings(dots)
    told = {dot.batch: f"{dot.batch}: {seconds(dot.itl)}" for dot in dots}
    found = f"ITL at batch {', '.join(told.values())}; from 1 to 2 ×{early:.2f}, from 64 to 128 ×{late:.2f}"
    return MeasuredAnswer(DOUBLINGS[early < BORDER, late < BORDER], found + _noise(dots))


def slo(sweep: Sequence[Dot]) -> MeasuredAnswer:
    """The largest batch within SLO times a lone request's ITL."""
    limit = SLO * sweep[0].itl
    kept = largest_within(sweep, limit)
    return MeasuredAnswer(
        kept, f"a lone request's ITL is {seconds(sweep[0].itl)}; {seconds(limit)} is reached at batch {kept:.0f}"
    )


def launches(whole: Sequence[Dot], apart: Sequence[Dot]) -> MeasuredAnswer:
    """How many times as long a lone request's step takes if Python launches every operation."""
    ratio = apart[0].itl / whole[0].itl
    told = f"{seconds(whole[0].itl)} in one call, {seconds(apart[0].itl)} operation by operation"
    return MeasuredAnswer(ratio, f"{told}: ×{ratio:.2f}" + _noise([whole[0], apart[0]]))


def growth(dots: Sequence[Dot]) -> MeasuredAnswer:
    """ITL from the shortest to the longest context, at one batch."""
    short, long = dots[0], dots[-1]
    ratio = long.itl / short.itl
    answer = GROWTH[0] if ratio < 1.25 else GROWTH[1] if ratio <= 2 else GROWTH[2]
    ends = " to ".join(f"{seconds(dot.itl)} at a context of {dot.context:.0f}" for dot in (short, long))
    return MeasuredAnswer(answer, f"{ends} (×{ratio:.2f})" + _noise([short, long]))


def _noise(dots: Sequence[Dot]) -> str:
    restless = [str(dot.batch) for dot in dots if dot.is_restless]
    return f". The machine was restless (batch {', '.join(restless)}): run it again to be sure" if restless else ""
