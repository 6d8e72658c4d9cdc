"""`minillm bench quality`: what a lossy setting costs in quality, beside what it gains in speed and memory.

A reference and a candidate configuration decode the same texts, token by token (scoring.py says how), answer the same
questions, and write on at the same places for their speed. The candidate is called better only if it is faster or
smaller, pays for that with neither speed nor memory, and keeps every stated limit. The texts are small: they find a
setting that breaks a model, and measure the perplexity of one that does not; they do not replace an evaluation on your
own work.
"""

import statistics
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from course.measure.scoring import TextScore, choose, held_text, load_items, score_text
from course.simulator.cost.sizes import KVCacheSize
from minillm.bench.report import BenchmarkResult, describe_engine
from minillm.bench.target import Costs, Target, finish
from minillm.bench.turns import in_turns
from minillm.core.errors import ConfigError
from minillm.core.params import SamplingParams
from minillm.frontend.engine import Engine
from minillm.kernels.attention.window import Window
from minillm.kernels.quantization import dtype_name, share_on_int4_grid
from minillm.model import checkpoints
from minillm.observe.tables import text_table
from minillm.policies.config import EngineConfig

SPEED_CONTEXT, SPEED_TOKENS = 128, 48
SPEED_POSITIONS, SPEED_ROUNDS = 3, 2
"""Positions in the held text where a model writes on, and how often at each."""
POOL_TOKENS = 4096
REQUEST_TOKENS = 2048
"""The length of the request whose share of the KV cache is told: longer than a window."""
FASTER = 1.02
"""Less is noise."""
QUICK_TOKENS, QUICK_ITEMS = 96, 2
Question = tuple[str, list[str]]
"""A beginning, and the ends to choose from."""


@dataclass(frozen=True, slots=True)
class QualityLimits:
    """A quality floor in numbers: the worst that a candidate may do. What a worse model raises (perplexity, KL, lost
    items) has an upper limit, agreement a lower one. Stated before, printed beside the numbers."""

    perplexity_rise: float = 0.01
    """At most, as a share of the reference's."""
    kl: float = 0.05
    """At most: mean per token, nats."""
    agreement: float = 0.9
    """At least: share of positions with the same likeliest token."""
    tasks_lost: int = 1
    """At most: fewer items right than the reference, of choices and of reading each."""


@dataclass(slots=True)
class Quality:
    """How well one configuration answers, against the reference."""

    perplexity: float
    kl: float
    agreement: float
    choices_right: int
    reading_right: int


@dataclass(slots=True)
class Cost:
    """What one configuration reads and holds, and how fast it decodes."""

    weight_bytes: int
    """Read in every step."""
    kv_bytes_per_token: int
    kv_bytes_of_2048_tokens: int
    """What a request that long holds: less, with a sliding window."""
    tokens_per_s: float
    """How fast one sequence decodes after its first token; more than one a step, if its drafts pass."""


@dataclass(slots=True)
class QualityVerdict:
    """Whether the candidate may be called better, and why."""

    better: bool
    broken: list[str] = field(default_factory=list)
    """Limits that were not kept."""
    gains: list[str] = field(default_factory=list)
    losses: list[str] = field(default_factory=list)
    """What it costs in speed or memory: its gains may be worth that, but that is for the reader to say."""


def run(candidate: Target, quick: bool, reference: Target, limits: QualityLimits) -> BenchmarkResult:
    """Measure both.

    Raises:
        ConfigError, ModelError: see Engine. ConfigError also if the model has no tokenizer, or a window is so large
            that the texts would not show what it loses.
    """
    engines = [Engine(engine_config(target)) for target in (reference, candidate)]
    if engines[0].tokenizer is None:
        raise ConfigError("quality is measured on texts, and this model has no tokenizer")
    score = score_text(engines[0], engines[1], held_text(), QUICK_TOKENS if quick else None)
    qualities = measure_tasks(engines, score, quick)
    costs = measure_costs(engines, quick)
    settings = {
        "reference": describe_engine(engines[0]),
        "candidate": describe_engine(engines[1]),
        "changed": changed_fields(reference, candidate),
        "scored_tokens": score.positions,
    }
    model = engines[0].loaded_model
    verdict = judge(qualities, costs, limits)
    extra = {
        "limits": limits,
        "notes": notes(engines[1], reference.model),
        "quality": dict(zip(("reference", "candidate"), qualities)),
        "cost": dict(zip(("reference", "candidate"), costs)),
    }
    text = as_text(verdict, settings, extra)
    return BenchmarkResult(verdict, settings, dtype_name(model.dtype), model.device, text, extra)


def engine_config(target: Target) -> EngineConfig:
    """The configuration that a target is measured in."""
    return target.config(kv_tokens=POOL_TOKENS, max_num_seqs=8)


def changed_fields(reference: Target, candidate: Target) -> dict[str, Any]:
    """What the candidate has otherwise."""
    ours, theirs = candidate.config().model_dump(), reference.config().model_dump()
    return {name: value for name, value in ours.items() if value != theirs[name]}


def measure_tasks(engines: list[Engine], score: TextScore, quick: bool) -> list[Quality]:
    """How well each engine answers, the candidate last."""
    perplexities = [score.reference_perplexity, score.candidate_perplexity]
    choices = load_items("choices")["items"][: QUICK_ITEMS if quick else None]
    questions = reading(quick)
    return [
        Quality(
            perplexity=perplexities[i],
            kl=score.kl / score.positions if i else 0.0,
            agreement=score.agreed / score.positions if i else 1.0,
            choices_right=count_right(engine, choices),
            reading_right=count_right(engine, questions),
        )
        for i, engine in enumerate(engines)
    ]


def reading(quick: bool) -> list[Question]:
    """Texts, each with a question about it."""
    return [
        (f"{item['text']}\n\nQuestion: {question}\nAnswer:", answers)
        for item in load_items("reading")["items"][: 1 if quick else None]
        for question, answers in item["questions"][: QUICK_ITEMS if quick else None]
    ]


def count_right(engine: Engine, questions: list[Question]) -> int:
    """Those whose right end the model prefers; it comes first in the files."""
    return sum(choose(engine, beginning, endings) == 0 for beginning, endings in questions)


def measure_costs(engines: list[Engine], quick: bool) -> list[Cost]:
    """What each engine costs, measured in turns, so that a slow spell of the machine hits both."""
    token_ids = engines[0].tokenizer.encode(held_text())
    context, num_tokens = (8, 8) if quick else (SPEED_CONTEXT, SPEED_TOKENS)
    places = range(0, len(token_ids) - context, len(token_ids) // SPEED_POSITIONS)[: 1 if quick else SPEED_POSITIONS]
    ways = {
        (which, place): partial(token_seconds, engine, token_ids[place : place + context], num_tokens)
        for place in places
        for which, engine in enumerate(engines)
    }
    taken = in_turns(ways, 1 if quick else SPEED_ROUNDS, warm_up=False, label="speed")
    results = []
    for which, engine in enumerate(engines):
        costs = Costs.of(engine).bytes
        seconds = statistics.mean(min(taken[which, place]) for place in places)
        results.append(Cost(costs.weights, costs.kv_per_token, request_bytes(engine), 1 / seconds))
    return results


def token_seconds(engine: Engine, prompt: list[int], num_tokens: int) -> float:
    """Seconds a token, of those after the first, when the model writes on after the prompt."""
    engine.reset_prefix_cache()
    engine.add_request(prompt, SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True), stream=False)
    [output] = finish(engine)
    assert output.timeline.tpot is not None
    return output.timeline.tpot


def request_bytes(engine: Engine) -> int:
    """KV cache that a request of REQUEST_TOKENS holds."""
    config, runner = engine.config, engine.torch_runner
    window = Window(config.sliding_window, config.attention_sinks)
    size = KVCacheSize.of_model(engine.loaded_model.model_config)
    return size.bytes_of(REQUEST_TOKENS, dtype_name(runner.kv_dtype), runner.block_size, window)


def judge(qualities: list[Quality], costs: list[Cost], limits: QualityLimits) -> QualityVerdict:
    """Whether the candidate, the second of each, is better than the reference."""
    before, after = qualities
    rise = after.perplexity / before.perplexity - 1
    broken = []
    if not rise <= limits.perplexity_rise:  # NaN breaks every limit, which `>` would let pass
        broken.append(f"perplexity rises by {rise:.2%}, more than {limits.perplexity_rise:.2%}")
    if not after.kl <= limits.kl:
        broken.append(f"KL is {after.kl:.4f} nats a token, more than {limits.kl}")
    if not after.agreement >= limits.agreement:
        broken.append(f"the likeliest token is the same in {after.agreement:.1%}, less than {limits.agreement:.1%}")
    for name in ("choices", "reading"):
        lost = getattr(before, f"{name}_right") - getattr(after, f"{name}_right")
        if lost > limits.tasks_lost:
            broken.append(f"{lost} {name} items fewer are right, more than {limits.tasks_lost}")
    gains, losses = compare_costs(*costs)
    return QualityVerdict(bool(gains) and not broken and not losses, broken, gains, losses)


def compare_costs(before: Cost, after: Cost) -> tuple[list[str], list[str]]:
    """What is cheaper, and what is more expensive."""
    gains: list[str] = []
    losses: list[str] = []
    speedup = after.tokens_per_s / before.tokens_per_s
    if not 1 / FASTER <= speedup <= FASTER:
        (gains if speedup > 1 else losses).append(f"{speedup:.2f}x the decode speed")
    for name, what in (("weight_bytes", "weights"), ("kv_bytes_of_2048_tokens", "KV bytes of a request")):
        share = getattr(after, name) / getattr(before, name)
        if share != 1:
            (gains if share < 1 else losses).append(f"{share:.0%} of the {what}")
    return gains, losses


def notes(engine: Engine, model: str) -> list[str]:
    """What a reader has to know to believe the numbers."""
    config, found = engine.config, []
    if config.sliding_window is not None:
        found.append(
            "what the window loses is seen in perplexity, KL and agreement, whose texts are longer; other prompts may "
            "fit it"
        )
    if config.speculative is not None:
        found.append("weights and KV bytes are without those of what drafts")
    if config.quantization == "int4" and config.load_format != "dummy":
        for name, tensor in checkpoints.iter_weights(checkpoints.resolve(model)):
            if name.endswith("down_proj.weight") and tensor.shape[1] % 32 == 0:
                if (share := share_on_int4_grid(tensor)) > 0.9:
                    found.append(
                        f"this checkpoint was made of 4-bit weights in groups of 32 ({share:.0%} of {name} lie on such "
                        "a grid): int4 with groups of 32 loses next to nothing here, and more on other models. "
                        "int4_group_size=64 shows what rounding to 4 bits costs"
                    )
                break
    return found


def as_text(verdict: QualityVerdict, settings: dict[str, Any], found: dict[str, Any]) -> str:
    """The numbers of both, notes, and the verdict."""
    changed = ", ".join(f"{name}={value}" for name, value in settings["changed"].items()) or "nothing changed"
    rows = []
    for part in ("quality", "cost"):
        before, after = (asdict(found[part][which]) for which in ("reference", "candidate"))
        rows += [[name.replace("_", " "), number(before[name]), number(after[name])] for name in before]
    lines = [
        f"reference, against candidate ({changed}); {settings['scored_tokens']} tokens scored, each decoded by itself",
        "",
        text_table(("", "reference", "candidate"), rows),
        "",
        *(f"note: {note}" for note in found["notes"]),
        *(f"limit broken: {reason}" for reason in verdict.broken),
        conclusion(verdict),
    ]
    return "\n".join(lines)


def conclusion(verdict: QualityVerdict) -> str:
    """The verdict in a sentence."""
    gains = "; ".join(verdict.gains) or "nothing gained"
    if verdict.broken:
        return f"not better, whatever it gains ({gains})"
    if verdict.losses:
        return f"not better, but a trade: {gains}, for {'; '.join(verdict.losses)}; no limit is broken"
    return f"{'better' if verdict.better else 'not better'}: {gains}, and no limit is broken"


def number(value: float) -> str:
    """A number with as many digits as tell something."""
    return f"{value:,}" if isinstance(value, int) else f"{value:.4f}" if value < 10 else f"{value:.2f}"
