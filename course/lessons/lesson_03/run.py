"""Lesson 03, prefill: prompts of exact lengths, counted and measured; attention alone; chunks; shorter prompts."""

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from course.lab.bend import Bend, bend_here, on_gpu
from course.lab.lab import Lab
from course.lab.model_shape import ModelShape
from course.lab.peak_bytes import PeakBytes
from course.lab.predict import MeasuredAnswer
from course.lab.prompt_pruning import prune_context, split_sentences
from course.lab.run import Run, percentile
from course.lab.snapshot import RequestView
from course.lab.style import change, seconds
from course.lab.texts import CHAT_QUESTIONS
from course.lab.workloads import LabWorkload, PromptArrival, document
from course.measure.attention_shapes import HeadShape, PreparedAttention, Shape, make_cache, make_metadata
from course.measure.quality import QualityLimits
from course.measure.scoring import choose, load_items
from course.simulator.cluster.record import ClientRecord
from minillm.core.brief import brief
from minillm.host.timing import seconds_per_call
from minillm.kernels.attention.select import BACKENDS
from minillm.kernels.quantization import dtype_name
from minillm.model.arithmetic import NUMBER_BYTES, ModelFlops
from minillm.model.checkpoints import SHAPES, load_model_config, resolve
from minillm.model.config import ModelConfig

# ---------------------------------------------------------------- workloads

ROUNDS, SHORT_ROUNDS = 3, 1
"""How often each prompt length is tried; the fastest counts."""
LENGTHS = {"cpu": (32, 64, 128, 256, 512, 1024), "cuda": (256, 512, 1024, 2048, 4096, 8192)}
SHORT_LENGTHS = {"cpu": (16, 32, 64, 128, 256), "cuda": (64, 128, 256, 512, 1024)}
"""Prompt lengths by kind of device, tokens; each is twice the one before it."""
LONG_PROMPT = {"cpu": 768, "cuda": 8192}
SHORT_LONG_PROMPT = {"cpu": 192, "cuda": 1024}
"""The long prompt among chats."""
PARAGRAPH_TOKENS = 60
"""A paragraph of the handbook has a few more than this."""


def device_kind(lab: Lab) -> str:
    """cpu or cuda: where the lab's engine computes, or what it simulates; cuda for a server, which is asked as one on a
    GPU would be."""
    return "cuda" if lab.is_remote or on_gpu(lab) else "cpu"


def window(lab: Lab) -> int:
    """Longest prompt and answer that the lab's model has positions for, or its server takes; tokens."""
    return lab.window if lab.is_remote else lab_shape(lab).max_position_embeddings


def prompt_lengths(lab: Lab) -> tuple[int, ...]:
    """The lengths of the ladder: those of the device that fit the model."""
    chosen = (LENGTHS if lab.scale == 1 else SHORT_LENGTHS)[device_kind(lab)]
    return tuple(length for length in chosen if length < window(lab))


def fields_for(lab: Lab, longest: int) -> dict[str, object]:
    """EngineConfig fields that the runs of this lesson have in common: a prompt of `longest` tokens, with a few
    others, is one step, and nothing is found in a cache.

    In float32 on a CPU: many have no instructions for 16 bits, and then PyTorch's fused kernel is slow for a reason
    that has nothing to do with attention.
    """
    room = min(longest + 512, window(lab))
    exact = {"dtype": "float32"} if device_kind(lab) == "cpu" else {}
    sizes = lab.room(max_model_len=room, max_num_batched_tokens=room, num_kv_blocks=2 * room // 16 + 64)
    return {"enable_prefix_caching": False, **exact, **sizes}


def bend(lab: Lab) -> Bend:
    """Where this lesson's steps begin to cost their tokens here, in the number format that it runs in."""
    return bend_here(lab, "float32" if device_kind(lab) == "cpu" else None)


def reading_s(lab: Lab, bend: Bend) -> float:
    """Seconds to read the lab's weights once: less than that no step takes."""
    return bend.reading(ModelShape.of_lab(lab))


def pages(lab: Lab, tokens: int, seed: int = 0) -> list[int]:
    """So many tokens of the handbook, its paragraphs in random order."""
    text = document(random.Random(f"pages/{seed}"), 1 + tokens // PARAGRAPH_TOKENS)
    return lab.tokenizer.encode(text)[:tokens]


def rounds_of(lab: Lab) -> int:
    """How often each prompt length is tried."""
    return ROUNDS if lab.scale == 1 else SHORT_ROUNDS


def ladder(lab: Lab, rounds: int | None = None) -> LabWorkload:
    """A prompt of each length, one at a time, and again: what disturbs the machine disturbs all lengths."""
    rounds = rounds or rounds_of(lab)
    order = [length for _ in range(rounds) for length in prompt_lengths(lab)]
    arrivals = tuple(PromptArrival(0.0, pages(lab, length, seed), 1) for seed, length in enumerate(order))
    return LabWorkload(
        "ladder", "One prompt at a time, each twice as long as the one before.", arrivals, max_in_flight=1
    )


def one_prompt(lab: Lab, tokens: int) -> LabWorkload:
    """A prompt of this length, alone."""
    return LabWorkload(f"{tokens} tokens", "One prompt and one token.", (PromptArrival(0.0, pages(lab, tokens), 1),))


def long_prompt(lab: Lab) -> int:
    """Tokens of the long prompt among chats."""
    wanted = (LONG_PROMPT if lab.scale == 1 else SHORT_LONG_PROMPT)[device_kind(lab)]
    return min(wanted, window(lab) // 2)


def long_among_chats(lab: Lab, answer: int | None = None, after: float | None = None) -> LabWorkload:
    """Three chats are being answered when one long prompt arrives. It is the last row.

    Args:
        answer: tokens of each chat's answer.
        after: seconds until the long prompt arrives.
    """
    on_cpu = device_kind(lab) == "cpu"
    after = (0.25 if on_cpu else 0.05) if after is None else after
    answer = answer or (64 if lab.scale == 1 else 20) * (1 if on_cpu else 3)
    chats = [PromptArrival(0.0, question, answer) for question in CHAT_QUESTIONS[:3]]
    return LabWorkload(
        "long among chats",
        "Three chats are being answered when one long prompt arrives.",
        (*chats, PromptArrival(after, pages(lab, long_prompt(lab)), 4)),
    )


# ---------------------------------------------------------------- counted from a shape

BIG = "llama-3.1-70b"
"""The 70B of this lesson: it has positions for 128k tokens, so that long prompts can be asked about."""
SMALL = "smollm2-135m"
"""What a lab that runs a 70B itself compares it with."""
EAGER_PASSES = 8
"""Times that textbook attention goes through the whole score matrix: it writes the scores; reads and writes them to
scale, to mask, and for the softmax; and reads them once more to weigh the values
(minillm/kernels/attention/eager.py)."""


def shape_of(model: str) -> ModelConfig:
    """A packaged shape, a model folder or a Hub id. Reads config.json only."""
    return load_model_config(SHAPES.get(model) or resolve(model))


def lab_shape(lab: Lab) -> ModelConfig:
    """Shape of the model that the lab runs."""
    return shape_of(lab.shape_name if lab.is_remote else lab.config().model)


def short_name(lab: Lab) -> str:
    """The lab's model, as a label in a picture."""
    return lab.config().model.rstrip("/").rpartition("/")[2]


def attention_share(config: ModelConfig, tokens: float) -> float:
    """Share of a prompt's FLOPs that is inside attention: q k^T, and weights times values."""
    flops = ModelFlops.of(config)
    pairs = flops.per_pair * tokens * tokens / 2
    return pairs / (flops.per_token * tokens + pairs)


def crossover(config: ModelConfig) -> float:
    """The prompt length at which attention takes as many FLOPs as all matrices together, tokens."""
    flops = ModelFlops.of(config)
    return 2 * flops.per_token / flops.per_pair


def length_with_share(config: ModelConfig, share: float) -> float:
    """The prompt length at which attention has this share of the FLOPs, tokens."""
    return crossover(config) * share / (1 - share)


def flops_ratio(config: ModelConfig, shorter: int, longer: int) -> float:
    """How many times the FLOPs of the shorter prompt the longer one takes."""
    flops = ModelFlops.of(config)
    return flops.prefill(longer) / flops.prefill(shorter)


def exponent(config: ModelConfig, tokens: float) -> float:
    """The slope of log FLOPs against log length at this length: 1 plus attention's share."""
    return 1 + attention_share(config, tokens)


def slope_of_flops(config: ModelConfig, shorter: int, longer: int) -> float:
    """The p in FLOPs ~ length^p between two lengths."""
    return slope((shorter, 1.0), (longer, flops_ratio(config, shorter, longer)))


def projection_share(config: ModelConfig) -> float:
    """Share of one layer's matrices that is attention's own four: q, k, v and the output."""
    own = config.hidden_size * (2 * config.num_heads + 2 * config.num_kv_heads) * config.head_dim
    return own / (own + 3 * config.hidden_size * config.intermediate_size)


def score_bytes(config: ModelConfig, rows: int, keys: int, dtype: str = "float32") -> int:
    """Bytes of one layer's score matrices, all heads: a number for each pair of a new token and a key."""
    return rows * keys * config.num_heads * NUMBER_BYTES[dtype]


def tile_bytes(config: ModelConfig, rows: int, keys: int, tile: int, dtype: str = "float32") -> int:
    """The same where only one tile of a head exists at a time."""
    return min(rows, tile) * min(keys, tile) * NUMBER_BYTES[dtype]


def chunk_sizes(tokens: int, chunk: int) -> list[int]:
    """A prompt of so many tokens, in chunks."""
    return [min(chunk, tokens - start) for start in range(0, tokens, chunk)]


def eager_seconds(config: ModelConfig, tokens: int, bytes_per_second: float, dtype: str = "bfloat16") -> float:
    """Seconds that textbook attention spends on moving its score matrices through memory, all layers; whole prompt."""
    return EAGER_PASSES * config.num_layers * score_bytes(config, tokens, tokens, dtype) / bytes_per_second


# ---------------------------------------------------------------- attention alone

TEXTBOOK, FUSED = "textbook", "fused"
BACKEND_OF = {TEXTBOOK: "eager", FUSED: "sdpa"}
"""As EngineConfig.attention_backend calls them. sdpa is PyTorch's own fused kernel: there is one on every device."""
BLOCK_SIZE = 16
CALL_ROUNDS = 5
MAX_SCORE_BYTES = 8e9
"""Textbook attention with larger score matrices is not tried."""
ALLOCATOR_BYTES = 30 * 2**20
"""Until glibc has freed a block of nearly 32 MiB, it gives smaller ones back to the system right away, and each call
pays for its pages anew: 512 tokens then take longer than 1024."""


@dataclass(frozen=True)
class AttentionPoint:
    """One prompt length, both ways, one layer."""

    tokens: int
    seconds: dict[str, float]
    """The fastest call: whatever disturbs a machine can only slow it down."""
    peak: dict[str, int]
    """Most bytes of tensors that existed at once inside the call, over what was there before."""
    difference: float
    """Largest deviation of fused from textbook, relative to the largest output."""
    dtype: str = "float32"
    """Type of queries, keys, values and scores."""

    __repr__ = brief

    @property
    def speedup(self) -> float:
        return self.seconds[TEXTBOOK] / self.seconds[FUSED]

    @property
    def memory(self) -> float:
        """Fused over textbook."""
        return self.peak[FUSED] / self.peak[TEXTBOOK]


@torch.inference_mode()
def measure_attention(
    config: ModelConfig, tokens: int, device: torch.device, rounds: int = CALL_ROUNDS
) -> AttentionPoint:
    """Both ways on one prompt, taking turns. In float32 on a CPU, so that nothing differs but the algorithm."""
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    heads = HeadShape(config.num_heads, config.num_kv_heads, config.head_dim)
    shape = Shape("prefill", 1, tokens, 0)
    metadata = make_metadata(shape, BLOCK_SIZE, device)
    cache = make_cache(shape, heads, BLOCK_SIZE, dtype, device, seed=1)
    generator = torch.Generator(device).manual_seed(2)
    query = torch.randn(tokens, heads.num_heads, heads.head_dim, generator=generator, device=device, dtype=dtype)
    ways = {name: PreparedAttention(BACKENDS[backend], metadata, query) for name, backend in BACKEND_OF.items()}
    outputs = {name: way(cache).float() for name, way in ways.items()}  # and warms up
    largest = outputs[TEXTBOOK].abs().max()
    difference = ((outputs[FUSED] - outputs[TEXTBOOK]).abs().max() / largest).item()
    del outputs
    peak = {}
    for name, way in ways.items():
        with PeakBytes() as counted:
            way(cache)
        peak[name] = counted.peak
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            seconds[name].append(seconds_per_call(lambda way=way: way(cache), device))
    fastest = {name: min(taken) for name, taken in seconds.items()}
    return AttentionPoint(tokens, fastest, peak, difference, dtype_name(dtype))


def compare_attention(lab: Lab) -> list[AttentionPoint]:
    """A point for each length of the ladder but the shortest; one step beyond the ladder where it is whole.

    Raises:
        SimulatedDeviceError: attention isn't computed.
    """
    lab.needs_model("Timing attention by itself")
    config, device = lab_shape(lab), torch.device(device_kind(lab))
    torch.empty(ALLOCATOR_BYTES, dtype=torch.uint8)
    ladder = prompt_lengths(lab)
    lengths = (*ladder[1:], *((2 * ladder[-1],) if lab.scale == 1 else ()))
    small_enough = (tokens for tokens in lengths if tokens * tokens * config.num_heads * 4 <= MAX_SCORE_BYTES)
    return [measure_attention(config, tokens, device) for tokens in small_enough]


# ---------------------------------------------------------------- TTFT by prompt length

FOUR = 4


@dataclass(frozen=True)
class Ladder:
    """TTFT by prompt length."""

    best: dict[int, float]
    """Tokens -> seconds, of the fastest round: whatever disturbs a machine can only slow it down. Ascending."""

    __repr__ = brief

    @classmethod
    def of(cls, *runs: Run) -> "Ladder":
        """All runs taken together; in each, a prompt had the machine to itself."""
        taken: dict[int, list[float]] = {}
        for view in (view for run in runs for view in run.finished):
            taken.setdefault(view.num_prompt_tokens, []).append(view.deliveries[0] - view.borders[0])
        return cls({tokens: min(taken[tokens]) for tokens in sorted(taken)})

    @property
    def longest(self) -> int:
        return max(self.best)

    @property
    def four_apart(self) -> tuple[int, int]:
        """The longest two lengths of which one is four times the other."""
        return next((n // FOUR, n) for n in sorted(self.best, reverse=True) if n // FOUR in self.best)

    def ratio(self, shorter: int, longer: int) -> float:
        return self.best[longer] / self.best[shorter]

    def exponent(self, shorter: int, longer: int) -> float:
        """The p in TTFT ~ length^p between two lengths."""
        return slope((shorter, self.best[shorter]), (longer, self.best[longer]))


def slope(first: tuple[float, float], second: tuple[float, float]) -> float:
    """The p in y ~ x^p through two points."""
    return math.log(second[1] / first[1]) / math.log(second[0] / first[0])


def four_times(ladder: Ladder) -> MeasuredAnswer:
    """How many times as long the longest prompt takes as one a quarter as long."""
    shorter, longer = ladder.four_apart
    ratio = ladder.ratio(shorter, longer)
    times = f"{seconds(ladder.best[shorter])} to {seconds(ladder.best[longer])}"
    return MeasuredAnswer(ratio, f"{shorter} to {longer} tokens: TTFT {times}, {ratio:.1f} times")


def both_ways(lab: Lab) -> dict[str, Ladder]:
    """The ladder on the real engine with each kind of attention. They take turns, in the same number format."""
    runs: dict[str, list[Run]] = {name: [] for name in BACKEND_OF}
    for _ in range(rounds_of(lab)):
        for name, backend in BACKEND_OF.items():
            runs[name].append(ladder_run(lab, 1, attention_backend=backend))
    return {name: Ladder.of(*taken) for name, taken in runs.items()}


def ladder_run(lab: Lab, rounds: int | None = None, **fields: object) -> Run:
    """Prompts of all lengths, one at a time, each in one step."""
    return lab.run(ladder(lab, rounds), **{**fields_for(lab, prompt_lengths(lab)[-1]), **fields})


def saving(ladders: Mapping[str, Ladder], tokens: int) -> float:
    """The share of the TTFT that fused attention takes off, at this length."""
    before, after = (ladders[name].best[tokens] for name in BACKEND_OF)
    return 1 - after / before


# ---------------------------------------------------------------- chunks among chats

OFFERED_CHUNKS = {"cpu": (16, 32, 64, 128, 256, 512), "cuda": (32, 64, 128, 256, 512, 1024, 2048)}
SWEEP = {"cpu": (16, 64, 256), "cuda": (64, 256, 1024)}
SHORT_SWEEP = {"cpu": (16,), "cuda": (64,)}
"""Chunk sizes of the sweep, beside the whole prompt: on either side of where a GPU's curve bends."""
LONGER, SAME, SHORTER = "longer", "about the same (within 5%)", "shorter"
TIE = 0.05


@dataclass(frozen=True)
class Trade:
    """What one chunk size meant. Seconds."""

    chunk: int
    """Most tokens of the prompt in a step."""
    tokens: int
    """Tokens of the long prompt."""
    ttft: float
    """TTFT of the long prompt."""
    worst_gap: float
    """The longest wait between two tokens of any other request during the prefill."""
    steps: int
    """Steps in which it was read: so often all weights were read for it. On a server elsewhere, as many as chunks of
    that size take."""
    usual_gap: float = 0.0
    """The median of those waits."""

    @property
    def whole(self) -> bool:
        return self.chunk >= self.tokens


def sweep_sizes(lab: Lab) -> list[int]:
    """Those of the sweep that are a part of the long prompt, smallest first; then the prompt whole."""
    longest = long_prompt(lab)
    sizes = (SWEEP if lab.scale == 1 else SHORT_SWEEP)[device_kind(lab)]
    return [*(chunk for chunk in sizes if chunk < longest), longest]


def chunk_fields(lab: Lab, chunk: int) -> dict[str, object]:
    """EngineConfig fields: at most `chunk` tokens of a prompt a step."""
    longest = long_prompt(lab)
    whole = lab.room(long_prefill_token_threshold=longest)
    chunked = {"long_prefill_token_threshold": chunk} if chunk < longest else whole
    return {**fields_for(lab, longest), **lab.room(max_num_seqs=8), **chunked}


def trade(run: Run) -> Trade:
    """What the run shows about its last row, the long prompt, and about the others."""
    long = run.row_of(len(run.rows) - 1)
    others = [row.view for row in run.rows[:-1] if row.view]
    chunk = run.config.long_prefill_token_threshold or long.num_prompt_tokens
    gaps = [gap for view in others for gap in gaps_while(view, long.borders[1], long.borders[2])]
    if run.remote is None:
        shares = [share for step in run.steps for share in step.shares]
        steps = sum(share.request_id == long.request_id and share.is_prefill for share in shares)
    else:
        steps = len(chunk_sizes(long.num_prompt_tokens, chunk))
    return Trade(
        chunk=chunk,
        tokens=long.num_prompt_tokens,
        ttft=long.deliveries[0] - long.borders[0],
        worst_gap=max(gaps, default=0.0),
        steps=steps,
        usual_gap=percentile(gaps, 50) or 0.0,
    )


def gaps_while(view: RequestView | ClientRecord, start: float, end: float) -> list[float]:
    """A request's gaps between tokens that lie at least partly between two moments, seconds."""
    pairs = zip(view.deliveries, view.deliveries[1:])
    return [later - earlier for earlier, later in pairs if later > start and earlier < end]


def own_ttft(swept: Mapping[int, Run], chunk: int) -> MeasuredAnswer:
    """What chunks of this size did to the long prompt's own TTFT, as the answer to a prediction."""
    in_chunks, whole = trade(swept[chunk]), trade(swept[max(swept)])
    ratio = in_chunks.ttft / whole.ttft
    answer = SAME if abs(ratio - 1) <= TIE else LONGER if ratio > 1 else SHORTER
    evidence = (
        f"its TTFT went from {seconds(whole.ttft)} whole to {seconds(in_chunks.ttft)} in {in_chunks.steps} chunks "
        f"({change(whole.ttft, in_chunks.ttft)}), the others' longest gap from {seconds(whole.worst_gap)} to "
        f"{seconds(in_chunks.worst_gap)} ({change(whole.worst_gap, in_chunks.worst_gap)})"
    )
    return MeasuredAnswer(answer, evidence)


# ---------------------------------------------------------------- shorter prompts

MOST_LOST = QualityLimits().tasks_lost
"""The gate, stated before anything is measured: at most so many answers fewer than with the whole text."""
LONGEST_PROMPT = 320
"""Tokens, with room to spare."""
KEPT_SHARE = 0.5
"""Share of the words that a cut leaves."""

SHORT_QUESTION = 3
"""The one that the short form asks."""

Cut = Callable[[str, str], str]
"""From a text and a question to what is left of the text."""


def by_relevance(text: str, question: str) -> str:
    """The sentences that share rare words with the question (course/lab/prompt_pruning.py)."""
    return prune_context(text, question, KEPT_SHARE).text


def first_part(text: str, question: str) -> str:
    """The beginning: what a limit on the prompt's length does."""
    budget, kept = KEPT_SHARE * len(text.split()), []
    for sentence in split_sentences(text):
        budget -= len(sentence.split())
        if kept and budget < 0:
            break
        kept.append(sentence)
    return " ".join(kept)


CUTS: dict[str, Cut] = {
    "whole text": lambda text, question: text,
    f"by relevance, {KEPT_SHARE:.0%}": by_relevance,
    f"first part, {KEPT_SHARE:.0%}": first_part,
}


@dataclass(frozen=True)
class ReadingScore:
    """One way of cutting, over all questions."""

    right: int
    asked: int

    def passes(self, whole: "ReadingScore") -> bool:
        """The gate: at most MOST_LOST answers fewer than with the whole text."""
        return whole.right - self.right <= MOST_LOST


def compare_cuts(lab: Lab) -> dict[str, ReadingScore]:
    """The whole text, then each way of cutting it; in the lab's short form, one question about one text."""
    items = load_items("reading")["items"]
    asked = [(item["text"], *question) for item in items for question in item["questions"]]
    if lab.scale < 1:
        asked = asked[SHORT_QUESTION : SHORT_QUESTION + 1]
    with lab.alone():
        engine = lab.engine(**fields_for(lab, LONGEST_PROMPT))
        found = {}
        for name, cut in CUTS.items():
            prompts = [f"{cut(text, question)}\n\nQuestion: {question}\nAnswer:" for text, question, _ in asked]
            right = sum(choose(engine, prompt, endings) == 0 for prompt, (*_, endings) in zip(prompts, asked))
            found[name] = ReadingScore(right, len(asked))
    return found
