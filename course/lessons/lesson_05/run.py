"""Lesson 05, the first token: writers and newcomers, policies, what a token costs, the way through a real server."""

import math
import random
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any, NamedTuple

from course.lab import simulated_70b
from course.lab.bend import on_gpu, worthwhile_tokens
from course.lab.http_client import Heard, ask, together
from course.lab.lab import Lab
from course.lab.predict import MeasuredAnswer
from course.lab.run import Run, itl_of, percentile
from course.lab.server import LabServer
from course.lab.snapshot import RequestView
from course.lab.style import seconds
from course.lab.texts import CHAT_QUESTIONS, MANUAL, MANUAL_QUESTIONS
from course.lab.ttft_causes import Stay, causes_inside, shared_tokens
from course.lab.workloads import LabWorkload, PromptArrival, document
from minillm import StructuredOutputsParams
from minillm.core.brief import brief
from minillm.core.params import SamplingParams
from minillm.core.step_log import StepRecord
from minillm.observe.step_cost import StepCost, split_steps
from minillm.server.calls import Call
from minillm.server.protocol import GenerationBody
from minillm.server.service import Service

# ---------------------------------------------------------------- writers and newcomers

SLOTS = 12
"""More than there are requests: none ever waits for a slot."""
POLICIES = ("prefill first", "mixed", "decode first")
CPU_BUDGET = 32
"""Token budget of a step of 'mixed' on a CPU."""
WHOLE = 8192
"""Tokens: a step with this budget holds whole prompts, as many as wait."""
BENDS = 6
"""How many bends (course/lab/bend.py) a newcomer's prompt has on a GPU: its prefill then takes several decode steps."""
GPU_BLOCKS = 1024
"""KV blocks for prompts that long."""
PARAGRAPH_TOKENS = 75
"""Tokens in a paragraph of `document`, roughly."""
BRIEF = 4
"""Output tokens of a newcomer; writers want more."""
SHORTEST, LONGEST = 24, 200
"""Output tokens of a writer, at least and at most."""
SAME_STEPS = "none: they take the very same steps"
PACES = {"calm": 4.0, "busy": 1.6, "rush": 0.5}
"""Seconds between newcomers, in what one of them takes where many wait: 4 is a quarter of the capacity to prefill, 0.5
twice as much. The same crowd on any machine."""


def room(lab: Lab) -> dict[str, object]:
    """EngineConfig fields that hold this lesson's prompts: on a GPU they are longer."""
    return {"num_kv_blocks": GPU_BLOCKS} if on_gpu(lab) else {}


def budget(lab: Lab) -> int:
    """Tokens of a step of 'mixed': on a GPU, the power of two from which on tokens take time."""
    return 1 << math.ceil(math.log2(worthwhile_tokens(lab, 1, CPU_BUDGET)))


def policies(lab: Lab) -> dict[str, dict[str, object]]:
    """Each is a few fields of EngineConfig."""
    whole = {"enable_chunked_prefill": False, "max_num_batched_tokens": WHOLE, "max_num_seqs": SLOTS, **room(lab)}
    return {
        "prefill first": whole,
        "mixed": {"max_num_batched_tokens": budget(lab), "max_num_seqs": SLOTS, **room(lab)},
        "decode first": {"batching": "static", **whole},
    }


def page(number: int, lab: Lab) -> str:
    """A newcomer's prompt: a page no other prompt has, and a question."""
    paragraphs = max(4 if lab.scale == 1 else 1, worthwhile_tokens(lab, BENDS, 0) // PARAGRAPH_TOKENS)
    return f"Page {number}.\n\n{document(random.Random(number), paragraphs)}\n\n{MANUAL_QUESTIONS[number % 10]}"


def one_by_one(lab: Lab) -> LabWorkload:
    """Three newcomers, each alone: the last two tell the machine's pace."""
    arrivals = tuple(PromptArrival(0.0, page(i, lab), BRIEF) for i in range(3))
    return LabWorkload("one by one", "Newcomers that never meet.", arrivals, max_in_flight=1)


def at_once(lab: Lab) -> LabWorkload:
    """Four newcomers in the same moment: how fast this machine works them off."""
    arrivals = tuple(PromptArrival(0.0, page(i, lab), BRIEF) for i in range(4))
    return LabWorkload("all at once", "Newcomers in the same moment.", arrivals)


class Pace(NamedTuple):
    """How fast this machine is with newcomers. Seconds. Arrivals keep to it."""

    prefill_s: float
    """To the first token of one that is alone."""
    token_s: float
    """Between two of its tokens."""
    each_s: float
    """For each of many that wait: the inverse of the capacity to prefill."""


def pace(lab: Lab) -> Pace:
    """Measure it: medians, and how long it takes until all of a few that came together have a first token."""
    whole = policies(lab)["prefill first"]
    alone, crowd = lab.run(one_by_one(lab), **whole), lab.run(at_once(lab), **whole)
    return Pace(percentile(alone.ttft[1:], 50), percentile(alone.itl, 50), max(crowd.ttft) / len(crowd.ttft))


def company(lab: Lab, pace: Pace, gap: float = PACES["busy"]) -> LabWorkload:
    """Writers, who have enough to write until the last newcomer is there; one comes every `gap` paces."""
    num_newcomers = 5 if lab.scale == 1 else 3
    newcomers = [PromptArrival((1 + gap * i) * pace.each_s, page(i, lab), BRIEF) for i in range(num_newcomers)]
    about = "Requests that decode, and requests that arrive."
    return LabWorkload(
        f"company, gap {gap:g}", about, (*_writers(lab, pace, 2 + gap * (num_newcomers - 1)), *newcomers)
    )


def _writers(lab: Lab, pace: Pace, paces: float) -> list[PromptArrival]:
    """Short questions with answers that take so many paces to write, undisturbed."""
    count = 4 if lab.scale == 1 else 2
    tokens = min(max(round(1.1 * paces * pace.each_s / pace.token_s), SHORTEST), LONGEST)
    return [PromptArrival(0.0, f"({i}) {CHAT_QUESTIONS[i]}", tokens) for i in range(count)]


def calm(lab: Lab) -> LabWorkload:
    """Short questions, one at a time: no two ever meet."""
    count = 6 if lab.scale == 1 else 2
    arrivals = tuple(PromptArrival(0.0, f"({i}) {CHAT_QUESTIONS[i]}", 8) for i in range(count))
    return LabWorkload("calm", "Short questions, one at a time.", arrivals, max_in_flight=1)


def with_rules(lab: Lab, num_newcomers: int, pace: Pace | None = None) -> LabWorkload:
    """Newcomers whose prompts all begin with the same rules: one at a time, or at a pace while writers write."""
    rules = f"The rules of this office: {MANUAL[0]}"
    prompts = [f"{rules}\n\n{page(i, lab)}" for i in range(num_newcomers)]
    if pace is None:
        about = "Newcomers with the same rules, one at a time."
        return LabWorkload("alone", about, tuple(PromptArrival(0.0, p, BRIEF) for p in prompts), max_in_flight=1)
    newcomers = [PromptArrival((1 + 0.4 * i) * pace.each_s, prompt, BRIEF) for i, prompt in enumerate(prompts)]
    about = "Newcomers close together, while others write."
    return LabWorkload("in company", about, (*_writers(lab, pace, 2 + 0.4 * num_newcomers), *newcomers))


def shrinking(lab: Lab) -> LabWorkload:
    """Short questions, all together, each with a longer answer than the one before: the batch shrinks one by one."""
    count, step = (8, 6) if lab.scale == 1 else (4, 3)
    arrivals = (PromptArrival(0.0, f"({i}) {CHAT_QUESTIONS[i]}", step * (i + 1)) for i in range(count))
    return LabWorkload("shrinking", "A batch that loses one request after another.", tuple(arrivals))


def newcomers(run: Run) -> list[RequestView]:
    return [view for view in run.views if view.max_tokens <= BRIEF]


def writers(run: Run) -> list[RequestView]:
    return [view for view in run.views if view.max_tokens > BRIEF]


def ttft_of(views: Sequence[RequestView]) -> list[float]:
    """Seconds to the first token, of those who have one."""
    return [view.deliveries[0] - view.borders[0] for view in views if view.deliveries]


def writer_gaps(run: Run) -> list[float]:
    """All gaps between two tokens of a writer, seconds."""
    return [gap for view in writers(run) for gap in itl_of(view)]


def pause_p99(run: Run) -> float:
    """What a writer has to expect: the 99th percentile of all gaps, seconds. One hiccup of the machine is not in it."""
    return percentile(writer_gaps(run), 99)


def noise(runs: Iterable[Run]) -> float:
    """How unsteady this machine was: equal steps (only decoding, equally many), their p90 over their p10."""
    equal: dict[int, list[float]] = {}
    for run in runs:
        for step in run.steps:
            if not step.num_prefill_tokens:
                equal.setdefault(step.num_tokens, []).append(step.end - step.start)
    most = max(equal.values(), key=len, default=[])
    return percentile(most, 90) / percentile(most, 10) if most else 1.0


def step_plan(run: Run) -> list[tuple[int, int]]:
    """What each step computed: prompt tokens, and other tokens. It does not depend on how fast the machine is."""
    return [(step.num_prefill_tokens, step.num_tokens - step.num_prefill_tokens) for step in run.steps]


def wins_when_calm(runs: Mapping[str, Run]) -> MeasuredAnswer:
    """None, if all policies took the same steps; otherwise the one with the lowest median TTFT."""
    plans = {name: step_plan(run) for name, run in runs.items()}
    ttft = {name: percentile(run.ttft, 50) for name, run in runs.items()}
    told = ", ".join(f"{name} {seconds(value)} in {len(plans[name])} steps" for name, value in ttft.items())
    first = next(iter(plans.values()))
    same = all(each == first for each in plans.values())
    return MeasuredAnswer(SAME_STEPS if same else min(ttft, key=ttft.get), f"median TTFT and steps: {told}")


# ---------------------------------------------------------------- what one token costs

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
CONTEXT, CHUNK = 1000, 2048
"""Tokens: of those who write, so far; and of a prompt."""
MANY = 64
"""Prompt tokens in a step, from which on it counts as prefill in bulk."""


@dataclass(frozen=True)
class PerToken:
    """Seconds per token on one machine."""

    where: str
    prefill: float
    decode: dict[int, float]
    """By the number of answers written in the step."""

    __repr__ = brief

    def ratio(self, batch: int) -> float:
        """How many times as much a token of an answer costs as a token of a prompt."""
        return self.decode[batch] / self.prefill


def measured_per_token(runs: Sequence[Run]) -> PerToken:
    """From step records: medians over steps that only prefill, and over steps that only decode.

    Raises:
        ValueError: there are no steps of one kind.
    """
    steps = [step for run in runs for step in run.steps]
    bulk = [step for step in steps if step.num_prefill_tokens == step.num_tokens]
    most = max((step.num_tokens for step in bulk), default=0)
    prefill = [(step.end - step.start) / step.num_tokens for step in bulk if step.num_tokens >= min(MANY, most)]
    decode: dict[int, list[float]] = {}
    for step in steps:
        if not step.num_prefill_tokens and step.num_tokens:
            decode.setdefault(step.num_tokens, []).append((step.end - step.start) / step.num_tokens)
    if not prefill or not decode:
        raise ValueError("these runs have no steps that only prefill, or none that only decode")
    return PerToken("here", percentile(prefill, 50), {n: percentile(each, 50) for n, each in sorted(decode.items())})


def simulated_per_token() -> PerToken:
    """At 70B: the price of one step of each kind, straight from the simulator's step model."""
    on = simulated_70b.deployment()
    prefill = simulated_70b.prefill_seconds(on, CHUNK) / CHUNK
    decode = {n: simulated_70b.decode_seconds(on, n, CONTEXT) / n for n in BATCHES}
    return PerToken("70B, simulated", prefill, decode)


# ---------------------------------------------------------------- through a real server


class StampingService(Service):
    """The server's own, which also writes down when it begins and ends to prepare a request."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.prepared: dict[str, tuple[float, float]] = {}
        """By call: the clock before and after tokenizing, waiting for a thread included."""

    async def prepare(self, call: Call, body: GenerationBody) -> tuple[list[list[int]], SamplingParams]:
        before = self.clock.now()
        prepared = await super().prepare(call, body)
        self.prepared[call.request_id] = before, self.clock.now()
        return prepared


@dataclass(frozen=True)
class OverHttp:
    """One workload through the server, in its order."""

    causes: tuple[dict[str, float], ...]
    """Causes of each TTFT, seconds; it lasts from sending to the first token that the client reads."""
    steps: tuple[StepRecord, ...]

    __repr__ = brief

    @property
    def ttft(self) -> list[float]:
        return [sum(each.values()) for each in self.causes]


def over_http(lab: Lab, workload: LabWorkload, **fields: Any) -> OverHttp:
    """Play a workload to `minillm serve`, a client thread a request.

    Args:
        fields: EngineConfig fields that differ from the lab's defaults.
    Raises:
        RuntimeError: the server refused a request, or broke it off; its words.
    """
    fields = {**room(lab), **fields}
    config = lab.config(**fields)
    fields |= {"max_num_seqs": config.max_num_seqs, "enable_prefix_caching": config.enable_prefix_caching}
    with lab.alone(), LabServer(lab, service=StampingService, **fields) as server:
        heard = play_over_http(workload, server.port)
        calls = [answered(server, each) for each in heard]
        steps, size = server.steps(), server.service.thread.config.block_size
        prepared = [server.service.prepared[each.call_id] for each in heard]
    shared = shared_tokens([call.outputs[0].prompt_token_ids for call in calls], size)
    cut = partial(whole_ttft, steps, split_steps(steps))
    return OverHttp(tuple(map(cut, heard, calls, prepared, shared)), steps)


def play_over_http(workload: LabWorkload, port: int) -> list[Heard]:
    """Send every request when it is due, each on a new connection; or, if the workload says one at a time, when the one
    before is over."""
    if workload.max_in_flight == 1:
        return [ask(port, arrival.prompt, arrival.max_tokens) for arrival in workload.arrivals]
    start = time.perf_counter()

    def client(arrival: PromptArrival) -> Heard:
        time.sleep(max(start + arrival.offset - time.perf_counter(), 0.0))
        return ask(port, arrival.prompt, arrival.max_tokens)

    return together([partial(client, arrival) for arrival in workload.arrivals])


def answered(server: LabServer, heard: Heard) -> Call:
    """A request that was answered to its end, as the server saw it.

    Raises:
        RuntimeError: it was not.
    """
    if heard.status != 200:
        raise RuntimeError(f"the server refused with {heard.status}: {heard.body[:500].decode()}")
    call = server.call(heard.call_id)
    if call.outcome != "ok":
        raise RuntimeError(f"the server broke {heard.call_id} off: {call.outcome}")
    return call


def whole_ttft(
    steps: Sequence[StepRecord],
    costs: Sequence[StepCost],
    heard: Heard,
    call: Call,
    prepared: tuple[float, float],
    shared: int,
) -> dict[str, float]:
    """From the client's send to the client's first token.

    Args:
        costs: of the steps, one each.
        prepared: clock seconds before and after tokenizing.
        shared: tokens that it begins with and others do, too.
    """
    before, after = prepared
    output = call.outputs[0]
    line = output.completions[0].timeline
    cold = max(shared - output.num_cached_tokens, 0)
    # The engine knows it from the moment that its token ids are there.
    spent = causes_inside(Stay(f"{heard.call_id}-0", after, line.prefill_end, line.first_token, cold), steps, costs)
    around: Mapping[str, float] = {
        "way in": call.arrival - heard.sent,
        "parsing": before - call.arrival,
        "tokenizing": after - before,
        "way out": heard.arrivals[0] - line.first_token,
    }
    return {**spent, **around}


# ---------------------------------------------------------------- structured output

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "capital": {"type": "string", "maxLength": 20},
        "population_millions": {"type": "integer"},
        "languages": {"type": "array", "items": {"type": "string", "maxLength": 12}, "maxItems": 3},
    },
    "required": ["name", "capital", "population_millions", "languages"],
}
COUNTRIES = ("France", "Japan", "Brazil", "Kenya", "Norway", "Peru", "India", "Italy")
JSON_TOKENS = 24


@dataclass(frozen=True)
class Guided(PromptArrival):
    """A request whose answer has to match the schema."""

    @property
    def params(self) -> SamplingParams:
        schema = StructuredOutputsParams(json=SCHEMA)
        return SamplingParams(temperature=0.0, max_tokens=self.max_tokens, structured_outputs=schema)


def json_workload(batch: int, guided: bool) -> LabWorkload:
    """So many countries at the same time, described as JSON."""
    kind = Guided if guided else PromptArrival
    prompts = [f"Describe the country {COUNTRIES[i % len(COUNTRIES)]} as JSON." for i in range(batch)]
    return LabWorkload(f"{batch} as JSON", "", tuple(kind(0.0, prompt, JSON_TOKENS) for prompt in prompts))


@dataclass(frozen=True)
class MaskCost:
    """Medians over decode steps, seconds."""

    batch: int
    plain: float
    guided: float
    mask: float
    text: str
    """The first guided answer."""


def measure_masks(lab: Lab, batches: tuple[int, ...] = (1, 8)) -> list[MaskCost]:
    found = []
    for batch in batches:
        runs = [lab.run(json_workload(batch, guided), max_num_seqs=batch) for guided in (False, True)]
        plain, guided = ([s.end - s.start for s in _decodes(run)] for run in runs)
        masks = [step.stages["mask"] for step in _decodes(runs[1]) if "mask" in step.stages]
        found.append(MaskCost(batch, median(plain), median(guided), median(masks), runs[1].row_of(0).text))
    return found


def _decodes(run: Run) -> list[StepRecord]:
    return [step for step in run.steps if step.num_tokens and not step.num_prefill_tokens]
