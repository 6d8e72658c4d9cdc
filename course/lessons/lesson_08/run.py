"""Lesson 08, speculation: requests and ways to draft, what a verification yields, and the bets."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from course.lab.draft_story import GATES_OPEN, HOT, DraftStory, watch
from course.lab.lab import Lab
from course.lab.noise import CEILING, ratio_of
from course.lab.predict import MeasuredAnswer
from course.lab.run import Run
from course.lab.speculation_gain import break_even, emitted, popular
from course.lab.style import number
from course.lab.synthetic_drafts import SyntheticDrafts
from course.lab.texts import CHAT_QUESTIONS, MANUAL
from course.lab.verify_costs import BLOCK, MARGIN, PROMPT_TOKENS, VerifyCosts
from course.lab.workloads import LabWorkload, PromptArrival
from course.lessons.lesson_08.simulated import ALPHA, DRAFT_MODEL, K, price_round
from course.simulator.cost.models import find_model
from course.simulator.cost.work import prefill_work
from course.simulator.deployment import Deployment
from minillm import SamplingParams
from minillm.core.brief import brief
from minillm.frontend.prompts import Prompt
from minillm.observe.speculation import SpeculationSummary
from minillm.speculation import head_file

# ---------------------------------------------------------------- requests to speculate on, and ways to draft

VERSES = (
    "Write a strange poem about a lighthouse in fog.",
    "Invent a dream in which a bicycle writes to the moon.",
    "Write an unusual story about a key that fits no lock.",
    "Describe a colour that does not exist.",
)
COPYING, CHAT, CREATIVE = "copying", "chat", "creative"
KINDS = (COPYING, CHAT, CREATIVE)
OFF: dict[str, Any] = {"speculative": None}
SHIPPED: dict[str, Any] = {"speculative": {"method": "ngram"}}
ALWAYS_DRAFTING: dict[str, Any] = {"speculative": {"method": "ngram", **GATES_OPEN}}
FULL_DRAFT, HOPELESS = 4, 0.9
"""A draft's length, and an acceptance: a batch that needs more to gain by such drafts is none to draft in."""
SHORT_CROWD = 5
BUDGET = 1024
"""Tokens of one step."""
LONGEST = 64
"""Tokens of an answer that there's always room for: with pools of one size, a GPU goes on with the graphs it has."""


@dataclass(frozen=True)
class Sampled(PromptArrival):
    """A request whose words are drawn."""

    temperature: float = 0.0
    seed: int = 0

    @property
    def params(self) -> SamplingParams:
        return SamplingParams(temperature=self.temperature, seed=self.seed, max_tokens=self.max_tokens, ignore_eos=True)


def prompt_of(kind: str, index: int) -> Prompt:
    """The index-th prompt of a kind, as a chat message."""
    if kind == COPYING:
        words = f"Repeat the following text word for word:\n\n{MANUAL[index % len(MANUAL)]}"
    else:
        texts = CHAT_QUESTIONS if kind == CHAT else VERSES
        words = texts[index % len(texts)]
    return [{"role": "user", "content": words}]


def workload(kind: str, count: int, tokens: int, at_once: int = 1) -> LabWorkload:
    """`count` requests of a kind, `at_once` of them in the engine together, each to write `tokens` tokens."""
    temperature = HOT if kind == CREATIVE else 0.0
    arrivals = tuple(Sampled(0.0, prompt_of(kind, i), tokens, temperature=temperature, seed=i) for i in range(count))
    name = f"{kind}, {count} × {tokens} tokens" + (", all together" if at_once > 1 else "")
    return LabWorkload(name, "", arrivals, max_in_flight=at_once)


def one_by_one(lab: Lab, kind: str) -> LabWorkload:
    """A few answers of a kind, one after the other."""
    return workload(kind, 2 if lab.scale == 1 else 1, 64 if lab.scale == 1 else 16)


def crowd(lab: Lab, at_once: int) -> LabWorkload:
    """Copying, the best case for looking up, by many together; by fewer in the lab's short form."""
    if lab.scale < 1:
        return workload(COPYING, SHORT_CROWD, 10, SHORT_CROWD)
    return workload(COPYING, at_once, 24, at_once)


def play(lab: Lab, traffic: LabWorkload, way: dict[str, Any]) -> Run:
    """One run, nothing reused: every request reads its own prompt.

    Args:
        way: fields of EngineConfig, such as OFF, SHIPPED or ALWAYS.
    Raises:
        SimulatedDeviceError: it guesses, and there is no text that could prove it right.
    """
    if way.get("speculative") is not None and not isinstance(way["speculative"], SyntheticDrafts):
        lab.needs_model("Seeing which guesses a text proves right")
    at_once = traffic.max_in_flight or len(traffic.arrivals)
    longest = max(LONGEST, *(arrival.max_tokens for arrival in traffic.arrivals))
    room = {
        "max_num_seqs": at_once,
        "max_num_batched_tokens": BUDGET,
        "num_kv_blocks": at_once * math.ceil((PROMPT_TOKENS + longest + MARGIN) / BLOCK),
    }
    return lab.run(traffic, enable_prefix_caching=False, **{**room, **way})


def made_up(lab: Lab, alpha: float, k: int) -> Run:
    """Chats by eight together, with drafts of k tokens each of which passes with a chance of alpha. No gates."""
    requests, tokens = (8, 25) if lab.scale == 1 else (4, 12)
    drafts = SyntheticDrafts(acceptance_rate=alpha, k=k, seed=round(1000 * alpha) + k, **GATES_OPEN)
    return play(lab, workload(CHAT, requests, tokens, requests), {"speculative": drafts})


def drafters(lab: Lab) -> dict[str, dict[str, Any]]:
    """Ways to draft that cost no second model here: looking up, and a trained draft head, if one comes with minillm."""
    model = lab.config().model
    found = {"ngram": {"method": "ngram"}}
    if (head_file.HEADS / model / head_file.WEIGHTS).is_file():
        found["draft head"] = {"method": "draft_head"}
    return found


INDEX = 4
"""Which of the prompts of a kind is watched."""
LOOKED_UP = tuple(f"{kind}, drafts looked up" for kind in (COPYING, CHAT))
"""Names of those answers whose drafts are looked up."""


def stories(lab: Lab) -> dict[str, tuple[DraftStory, DraftStory]]:
    """Some answers, each with drafts and without: copying and chat with drafts looked up, chat with made ones.

    If a trained draft head comes with minillm, chat with its drafts, too.
    """
    ways = [(name, kind, {"method": "ngram", "k": 7}) for name, kind in zip(LOOKED_UP, (COPYING, CHAT))]
    ways.append(("chat, drafts accepted 6 times in 10", CHAT, {"method": "synthetic", "acceptance_rate": 0.6, "k": 4}))
    if "draft head" in (found := drafters(lab)):
        ways.append(("chat, a trained draft head", CHAT, {**found["draft head"], "k": 4}))
    tokens = 64 if lab.scale == 1 else 14
    plain = {kind: watch(lab, prompt_of(kind, INDEX), tokens, None) for kind in (COPYING, CHAT)}
    return {name: (watch(lab, prompt_of(kind, INDEX), tokens, way), plain[kind]) for name, kind, way in ways}


# ---------------------------------------------------------------- tokens a verification yields

SWEEP = ((0.3, 4), (0.3, 8), (0.6, 8), (0.9, 8))
SHORT_SWEEP = ((0.3, 2), (0.6, 4), (0.9, 4))


@dataclass(frozen=True)
class AcceptancePoint:
    """Verifications of drafts of k tokens, each of which was made to pass with a chance of alpha."""

    alpha: float
    k: int
    passed: tuple[int, ...]
    """Guesses that passed, of each verification."""

    __repr__ = brief

    @classmethod
    def of(cls, run: Run) -> "AcceptancePoint":
        """From a run of `traffic.made_up`. Drafts that were cut short, at an answer's end, are left out.

        Raises:
            LookupError: there was no draft of full length.
        """
        wanted = run.config.speculative
        shares = [share for step in run.steps for share in step.shares if share.num_drafts == wanted.k]
        if not shares:
            raise LookupError("no draft of full length was checked: was the run stopped?")
        return cls(wanted.acceptance_rate, wanted.k, tuple(share.num_accepted for share in shares))

    @property
    def emitted(self) -> float:
        """Tokens a verification yielded, in the mean."""
        return 1 + sum(self.passed) / len(self.passed)

    @property
    def by_place(self) -> list[float]:
        """Shares of drafts whose first, second, ... guess passed."""
        return [sum(passed > place for passed in self.passed) / len(self.passed) for place in range(self.k)]

    @property
    def formula(self) -> float:
        return emitted(self.alpha, self.k)

    @property
    def popular(self) -> float:
        return popular(self.alpha, self.k)


def measure_acceptance(lab: Lab, alpha: float, k: int) -> AcceptancePoint:
    return AcceptancePoint.of(made_up(lab, alpha, k))


def sweep(lab: Lab) -> list[AcceptancePoint]:
    return [measure_acceptance(lab, alpha, k) for alpha, k in (SWEEP if lab.scale == 1 else SHORT_SWEEP)]


def longest(points: Sequence[AcceptancePoint]) -> AcceptancePoint:
    """The one with the longest drafts; of several, that of the highest acceptance."""
    return max(points, key=lambda point: (point.k, point.alpha))


# ---------------------------------------------------------------- the same requests, served in several ways

WITHOUT, ALWAYS = "without", "always"
NOISE = 1.1
"""Factors nearer to 1 are not told from noise."""


@dataclass(frozen=True)
class WorkloadRuns:
    """One workload served one way, in one or several runs."""

    workload: str
    way: str
    runs: tuple[Run, ...]

    __repr__ = brief

    @property
    def decode_s(self) -> float:
        """Seconds of decoding per token after the first; the best run, for whatever else goes on can only slow it."""
        return min(self.each_decode_s)

    @property
    def each_decode_s(self) -> list[float]:
        """The same of every run."""
        return [sum(v.borders[4] - v.borders[3] for v in r.finished) / _decoded(r) for r in self.runs]

    @property
    def e2e_s(self) -> float:
        """Mean seconds of a request, prompt included; the best run."""
        return min(self.each_e2e_s)

    @property
    def each_e2e_s(self) -> list[float]:
        """The same of every run."""
        return [sum(run.e2e) / len(run.e2e) for run in self.runs]

    @property
    def drafts(self) -> SpeculationSummary:
        return SpeculationSummary.of_steps(self.runs[-1].steps)

    @property
    def acceptance(self) -> float | None:
        """Share of the tested guesses that passed, α: one after a failed guess is not tested."""
        shares = [share for step in self.runs[-1].steps for share in step.shares if share.num_drafts]
        tried = sum(min(share.num_accepted + 1, share.num_drafts) for share in shares)
        return sum(share.num_accepted for share in shares) / tried if tried else None

    @property
    def accepted_share(self) -> float | None:
        """Share of all guesses that passed: what a dashboard calls the acceptance rate."""
        drafted = sum(self.drafts.drafted_at)
        return sum(self.drafts.accepted_at) / drafted if drafted else None

    @property
    def drafting_share(self) -> float:
        """Share of decoding requests' turns that had a draft."""
        shares = [share for step in self.runs[-1].steps for share in step.shares if not share.is_prefill]
        return sum(share.num_drafts > 0 for share in shares) / max(len(shares), 1)

    @property
    def tokens_per_step(self) -> float:
        """Tokens that a decoding request got in a step, in the mean."""
        shares = [share for step in self.runs[-1].steps for share in step.shares if not share.is_prefill]
        return 1 + sum(share.num_accepted for share in shares) / max(len(shares), 1)

    @property
    def draft_s(self) -> float:
        """Seconds a decode-only step took to make guesses, in the mean, whether or not it made any."""
        took = [step.stages.get("draft", 0.0) for step in self.runs[-1].steps if not step.num_prefill_tokens]
        return sum(took) / max(len(took), 1)

    @property
    def plans_ahead(self) -> bool:
        """Whether a step was planned while the one before ran."""
        return any(later.start < step.end for step, later in pairwise(self.runs[-1].steps))

    @property
    def texts(self) -> list[str]:
        return [view.text for view in self.runs[-1].views]


def _decoded(run: Run) -> int:
    return max(sum(view.num_output_tokens - 1 for view in run.finished), 1)


def compare(
    lab: Lab, workloads: Sequence[LabWorkload], ways: Mapping[str, dict[str, Any]], rounds: int | None = None
) -> list[WorkloadRuns]:
    """Every workload every way, by turns, round after round.

    Args:
        rounds: None = as many as suit the lab's device, since a GPU's runs differ little; one in the short form.
    """
    usual = 1 if lab.scale < 1 else 2 if lab.model.device.type == "cuda" else 3
    runs: dict[tuple[str, str], list[Run]] = {(w.name, way): [] for w in workloads for way in ways}
    for i in range(rounds or usual):
        for way in list(ways) if i % 2 == 0 else reversed(ways):
            for each in workloads:
                runs[each.name, way].append(play(lab, each, ways[way]))
    return [WorkloadRuns(name, way, tuple(done)) for (name, way), done in runs.items()]


def faster(one: WorkloadRuns, base: WorkloadRuns) -> float:
    """Speed of decoding over that of the base."""
    return base.decode_s / one.decode_s


def is_apart(one: WorkloadRuns, other: WorkloadRuns) -> bool:
    """Every run of the one decoded faster than every run of the other."""
    a, b = one.each_decode_s, other.each_decode_s
    return max(a) < min(b) or max(b) < min(a)


def at_once(one: WorkloadRuns) -> int:
    """Requests that decode together, at most."""
    return max(step.num_running for step in one.runs[-1].steps)


def base_of(one: WorkloadRuns, every: Sequence[WorkloadRuns]) -> WorkloadRuns:
    return next(each for each in every if each.workload == one.workload and each.way == WITHOUT)


NGRAM, INT8 = "drafts looked up", "int8 weights"


def quantized_or_drafted(lab: Lab) -> list[WorkloadRuns]:
    """Copying and chat, one at a time: without, with drafts looked up, with int8 weights."""
    work = [one_by_one(lab, kind) for kind in (COPYING, CHAT)]
    int8 = {**OFF, "quantization": "int8"}
    return compare(lab, work, {WITHOUT: OFF, NGRAM: SHIPPED, INT8: int8})


def measured_gates(costs: VerifyCosts) -> dict[str, Any]:
    """Lookup, with the engine's gates set by what checking cost on this machine: the floor is a row's cost, and the
    largest batch that drafts is the largest that was measured in which free drafts can still gain."""
    borders = {batch: break_even(FULL_DRAFT, 0.0, costs.relative(batch, FULL_DRAFT)) for batch in costs.batches}
    paying = [batch for batch, border in borders.items() if border is not None and border < HOPELESS]
    floor = round(min(costs.row_cost, HOPELESS), 3)
    gates = {"acceptance_floor": floor, "max_batch": max(paying, default=1)}
    return {"speculative": {"method": "ngram", **gates}}


# ---------------------------------------------------------------- short answers

ANSWER_LENGTHS, SHORT_ANSWER_LENGTHS = (6, 24, 48), (4, 12)
PROMPTS = (100, 1000, 4000)


def short_answers(lab: Lab) -> list[WorkloadRuns]:
    """Answers of a few lengths, without drafts and with every draft that can be looked up."""
    lengths = ANSWER_LENGTHS if lab.scale == 1 else SHORT_ANSWER_LENGTHS
    # Cut short: there is little text to gain back in what drafting cost.
    work = [workload(CHAT, 3 if lab.scale == 1 else 2, tokens) for tokens in lengths]
    many = 5 if lab.scale == 1 and lab.model.device.type != "cuda" else None
    return compare(lab, work, {WITHOUT: OFF, ALWAYS: ALWAYS_DRAFTING}, many)


@dataclass(frozen=True)
class PayBack:
    """A draft model has to read the prompt before its first guess."""

    prompt: int
    """Tokens"""
    reading: float
    """Seconds that the draft model reads."""
    saved: float
    """Seconds that speculation saves per output token; below 0 it loses with every one."""

    @property
    def tokens(self) -> float | None:
        """Output tokens after which the reading is paid for; None = never."""
        return self.reading / self.saved if self.saved > 0 else None

    @property
    def words(self) -> str:
        if self.tokens is None:
            return "never"
        count = math.ceil(self.tokens)
        return f"{count} token{'s' if count != 1 else ''}"


def pay_back(on: Deployment, prompt: int, alpha: float = ALPHA, k: int = K) -> PayBack:
    """For one request by itself, with a 1B draft model on the same GPUs."""
    reading = on.step_time(find_model(DRAFT_MODEL)).price(prefill_work(prompt)).total
    one = price_round(on, 1, prompt, k, DRAFT_MODEL)
    return PayBack(prompt, reading, one.plain - (one.verify + k * one.draft) / emitted(alpha, k))


def pay_backs(on: Deployment, prompts: Sequence[int] = PROMPTS) -> list[PayBack]:
    return [pay_back(on, prompt) for prompt in prompts]


# ---------------------------------------------------------------- what the predictions are scored by

PRICE = 0.1
"""Cost of a guess in the first prediction, in decode steps."""
BET_ALPHA, BET_K = 0.6, 4
QUESTION = f"α = {BET_ALPHA:g}, k = {BET_K}, a draft token costs {PRICE:g} steps."
CROWDED = ("faster", "no difference worth mentioning", "slower")


def alone(point: AcceptancePoint, costs: VerifyCosts) -> MeasuredAnswer:
    """Speedup for one reader: tokens measured, over the measured price of checking and the given one of drafting."""
    verify = costs.relative(1, point.k)
    gain = point.emitted / (verify + point.k * PRICE)
    found = (
        f"a verification yielded {number(point.emitted)} tokens, and took {verify:.2f} decode steps here; {point.k} "
        f"draft tokens take {number(point.k * PRICE)} more: ×{gain:.2f}"
    )
    return MeasuredAnswer(gain, found)


def crowded(every: Sequence[WorkloadRuns]) -> MeasuredAnswer | str:
    """Speed of decoding with drafts, gates open, when many copy together. If their runs overlap: no difference.

    A sentence, if they overlap although the best ones differ by too much for that, or if nothing was guessed.
    """
    without, always = (next(one for one in every if one.way == way) for way in (WITHOUT, ALWAYS))
    if always.acceptance is None:
        return "lookup made no guess in these answers, so they say nothing about drafts in a full batch"
    gain, apart = faster(always, without), is_apart(always, without)
    if not apart and ratio_of(gain, 1.0) > CEILING:
        return f"the best runs differ by ×{gain:.2f}, but the others overlap: not enough runs on so busy a machine"
    answer = CROWDED[0] if apart and gain > NOISE else CROWDED[2] if apart and gain < 1 / NOISE else CROWDED[1]
    found = (
        f"{always.acceptance:.0%} of tested draft tokens were accepted, "
        f"{number(always.drafts.emitted_per_verify or 1)} tokens a verification; speed of each request ×{gain:.2f}"
    )
    return MeasuredAnswer(answer, found)
