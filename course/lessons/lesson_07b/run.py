"""Lesson 07b, KV caches made smaller, or kept elsewhere: windows, needles, losses, tiers."""

import functools
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from course.lab import simulated_70b
from course.lab.lab import Lab
from course.lab.pool_trace import PoolTrace
from course.lab.predict import MeasuredAnswer
from course.lab.workloads import document
from course.lessons.lesson_07 import run as lesson_07
from course.lessons.lesson_07.run import chats, engine, play
from course.measure.quality import QualityLimits, request_bytes
from course.measure.scoring import GIVEN, TextScore, cut, decode_texts, held_text, window_tokens
from course.simulator.cluster.run import FleetRun
from course.simulator.workload.kinds import Sessions
from course.simulator.workload.lengths import Fixed, LogNormal
from minillm import Engine
from minillm.kernels.attention.window import Window

# ---------------------------------------------------------------- a needle, said twice

NEEDLES = (
    "The lockers have codes: Anna 7413, Boris 2958, Chandra 6604, Dalia 3127, Emil 8850.",
    "The spare keys hang here: crane 91, lifeboat 35, pump 62, footbridge 78, cupboard 24.",
)
"""No one can guess these; one has to look."""
LEAD = 48
"""Tokens before the needle: more than the sinks keep."""
CUE_TOKENS = 4
"""Tokens of the second time that are given: from then on the model is asked."""
FIRST_TIME = -1
"""In place of a distance: the needle comes for the first time."""


@dataclass(frozen=True)
class Found:
    """What the model made of the needle's second time."""

    distance: int
    """Tokens between the first time and the second; FIRST_TIME = there was none before."""
    right: int
    """Tokens that it found likeliest, and that came."""
    tokens: int

    @property
    def share(self) -> float:
        return self.right / self.tokens


@dataclass(frozen=True)
class Haystack:
    """A text in which the needle comes twice."""

    distance: int
    token_ids: list[int]
    num_given: int


def haystacks(lab: Lab, distances: Sequence[int]) -> list[list[Haystack]]:
    """By needle, in a handbook of its own: one at each distance. FIRST_TIME: it comes once, after a little text."""
    encode, found = lab.model.tokenizer.encode, []
    for i, needle in enumerate(NEEDLES):
        said = encode("\n\n" + needle)
        hay = encode(document(random.Random(f"hay-{i}"), (LEAD + max(distances)) // 40 + 2))
        stacks = []
        for distance in distances:
            before = hay[:LEAD] if distance == FIRST_TIME else hay[:LEAD] + said + hay[LEAD : LEAD + distance]
            stacks.append(Haystack(distance, before + said, len(before) + CUE_TOKENS))
        found.append(stacks)
    return found


def look_for(engine: Engine, haystacks: Sequence[Sequence[Haystack]]) -> dict[int, Found]:
    """By distance: what the model makes of the needles. Texts with the same needle are decoded side by side."""
    right: Counter[int] = Counter()
    tokens: Counter[int] = Counter()
    for stacks in haystacks:
        for step in decode_texts(engine, [s.token_ids for s in stacks], [s.num_given for s in stacks]):
            foreseen = (step.logits.argmax(-1) == step.next_ids).tolist()
            for text, is_right in zip(step.texts, foreseen):
                right[stacks[text].distance] += is_right
                tokens[stacks[text].distance] += 1
    return {d: Found(d, right[d], tokens[d]) for d in tokens}


def spans(lab: Lab) -> tuple[int, int]:
    """Tokens of the shorter needle and of the longer one, as said once."""
    told = [len(lab.model.tokenizer.encode("\n\n" + needle)) for needle in NEEDLES]
    return min(told), max(told)


def reach(lab: Lab, window: int) -> int:
    """Tokens back at which the longer needle begins to leave the window."""
    return window - spans(lab)[1]


FORESEEN = ("nearly all of it", "some of it", "no more than of a passage it has never seen")
ALL, SOME = 0.8, 0.25
"""Shares of the way from never heard to heard a moment ago."""


def recalled(found: Mapping[int, Found], far: int) -> float:
    """How much of a needle far back is predicted: 0 = as if never seen, 1 = as well as one just given."""
    nothing, near = found[FIRST_TIME].share, found[min(d for d in found if d != FIRST_TIME)].share
    return (found[far].share - nothing) / max(near - nothing, 1e-9)


def can_recall(found: Mapping[str, Mapping[int, Found]]) -> bool:
    """Whether the model predicts more of a needle just given than of one it has never seen: else none can be lost."""
    whole = next(iter(found.values()))
    return whole[min(d for d in whole if d != FIRST_TIME)].share - whole[FIRST_TIME].share >= SOME


def needle_share(found: Mapping[str, Mapping[int, Found]]) -> MeasuredAnswer | str:
    """The needle that is farthest back, with a window that it has left. A sentence, if this model recalls none.

    Args:
        found: by name of the configuration: all in sight first, the window with sinks last.
    """
    whole, *_, windowed = found.values()
    far = max(windowed)
    if not can_recall(found):
        return "this model doesn't recall the passage even with full attention, so it has nothing to lose"
    share = recalled({**whole, far: windowed[far]}, far)
    answer = FORESEEN[0] if share >= ALL else FORESEEN[1] if share >= SOME else FORESEEN[2]
    return MeasuredAnswer(
        answer,
        f"{far} tokens back, {windowed[far].share:.0%} of its tokens are predicted with the window and "
        f"{whole[far].share:.0%} without it; {whole[FIRST_TIME].share:.0%} of one it has never seen. That's {answer}",
    )


# ---------------------------------------------------------------- windows

SINKS = 4
"""Tokens at the beginning that stay in sight, beside a window."""
WINDOW, DISTANCES, GROWS_TO = 256, (32, 560), 900
WINDOW_SHORT, DISTANCES_SHORT, GROWS_TO_SHORT = 128, (32, 192), 300
"""The window that is tried; the nearest and the farthest needle, tokens back; how long a request grows beside it."""
BESIDE = 8
"""Tokens: two needles lie so far on either side of the place where the window lets go of them."""


def probe(lab: Lab) -> tuple[int, tuple[int, ...]]:
    """The window that is tried, and how far back needles lie: near, just inside, just outside, far."""
    window, (near, far) = (WINDOW, DISTANCES) if lab.scale == 1 else (WINDOW_SHORT, DISTANCES_SHORT)
    shortest, longest = spans(lab)
    inside, outside = window - longest - BESIDE, window - shortest + BESIDE
    return window, (near, *(each for each in (inside, outside) if near < each < far), far)


def windows(lab: Lab) -> dict[str, dict[str, Any]]:
    """Engine fields: full attention, a window, and a window with sinks."""
    window, _ = probe(lab)
    return {
        "full attention": {},
        f"window of {window}": {"sliding_window": window},
        f"window of {window}, {SINKS} sinks": {"sliding_window": window, "attention_sinks": SINKS},
    }


def growing(lab: Lab, **window: Any) -> PoolTrace:
    """One request that grows far beyond a window. It is read in small pieces, so that the pool can be watched."""
    tokens = GROWS_TO if lab.scale == 1 else GROWS_TO_SHORT
    fields = {"long_prefill_token_threshold": 32, "enable_prefix_caching": False}
    return play(lab, chats(lab, 1, tokens), **fields, **window)


def growths(lab: Lab) -> dict[str, PoolTrace]:
    """The same request under each of `windows`."""
    return {name: growing(lab, **fields) for name, fields in windows(lab).items()}


def looking(lab: Lab) -> dict[str, dict[int, Found]]:
    """Needles at all distances, and one that was never heard, under each of `windows`; one needle in the short form."""
    stacks = haystacks(lab, (FIRST_TIME, *probe(lab)[1]))[: None if lab.scale == 1 else 1]
    with lab.alone():
        return {name: look_for(engine(lab, **fields), stacks) for name, fields in windows(lab).items()}


def with_sinks(grown: Mapping[str, PoolTrace]) -> PoolTrace:
    """The last of `growths`."""
    return list(grown.values())[-1]


# ---------------------------------------------------------------- what a smaller cache loses

SPARE_BLOCKS = 8
"""Each piece of the text fills its last block only in part."""
MOST_TOKENS, LOSS_WINDOW = 1100, 128
MOST_TOKENS_SHORT, LOSS_WINDOW_SHORT = 80, 16
"""Tokens of the text, and the window that is tried: a quarter of it at most, so that most of it lies beyond."""


@dataclass(frozen=True)
class Loss:
    """One candidate, against the same model with its whole cache."""

    name: str
    score: TextScore
    kv_share: float
    """Share of the reference's bytes, for a request of REQUEST_TOKENS."""

    @property
    def rise(self) -> float:
        """Rise of perplexity, the number of equally likely tokens that the model wavers between. 0.01 = one percent."""
        return self.score.candidate_perplexity / self.score.reference_perplexity - 1

    @property
    def kl(self) -> float:
        return self.score.kl / self.score.positions

    @property
    def agreement(self) -> float:
        """Share of positions with the same likeliest token."""
        return self.score.agreed / self.score.positions

    def broken(self, limits: QualityLimits) -> list[str]:
        """Names of limits that it did not keep; NaN keeps none."""
        kept = {
            "perplexity": self.rise <= limits.perplexity_rise,
            "KL": self.kl <= limits.kl,
            "likeliest token": self.agreement >= limits.agreement,
        }
        return [name for name, is_kept in kept.items() if not is_kept]


def candidates(lab: Lab) -> dict[str, dict[str, Any]]:
    """Three ways to a smaller cache."""
    size = LOSS_WINDOW if lab.scale == 1 else LOSS_WINDOW_SHORT
    return {
        "KV in int8": {"kv_cache_dtype": "int8"},
        f"window of {size}": {"sliding_window": size},
        f"window of {size}, {SINKS} sinks": {"sliding_window": size, "attention_sinks": SINKS},
    }


def most_tokens(lab: Lab) -> int:
    """Tokens of the text that are decoded."""
    return MOST_TOKENS if lab.scale == 1 else MOST_TOKENS_SHORT


def measure_losses(lab: Lab) -> dict[str, Loss]:
    """All candidates beside one reference, over the same text."""
    tried = candidates(lab)
    pool = {"num_kv_blocks": most_tokens(lab) // lesson_07.BLOCK + SPARE_BLOCKS}
    with lab.alone():
        reference, *others = [lab.engine(**{**lesson_07.STEPPED, **pool, **fields}) for fields in ({}, *tried.values())]
        pieces = cut(reference.tokenizer.encode(held_text())[: most_tokens(lab)], max(map(_tokens_seen, others)))
        num_given = [max(len(piece) // GIVEN, 1) for piece in pieces]
        scores = [TextScore() for _ in others]
        for theirs, *ours in zip(*(decode_texts(engine, pieces, num_given) for engine in (reference, *others))):
            for score, step in zip(scores, ours):
                score.add(theirs.logits, step.logits, step.next_ids)
    whole = request_bytes(reference)
    return {
        name: Loss(name, score, request_bytes(engine) / whole) for name, engine, score in zip(tried, others, scores)
    }


def _tokens_seen(engine: Engine) -> int:
    return window_tokens(Window(engine.config.sliding_window, engine.config.attention_sinks))


# ---------------------------------------------------------------- tiers: fetch KV, or compute it again

CONVERSATIONS = Sessions(
    turns=Fixed(tokens=6),
    first=LogNormal(median=3000, sigma=0.5, high=8000),
    message=Fixed(tokens=60),
    output=Fixed(tokens=120),
    think_s=60.0,
)
"""Long first messages, then five more turns, a minute apart: long enough that other users' KV comes between."""
POOL_TOKENS = 60_000
"""KV that the GPUs keep in these runs: less than all conversations need."""
TIERS: dict[str, list[dict[str, object]]] = {
    "GPU only": [],
    "host memory, 50 GB/s": [{"name": "host", "capacity_gb": 400, "bytes_per_s": 50e9}],
    "remote store, 5 GB/s": [{"name": "store", "capacity_gb": 4000, "bytes_per_s": 5e9, "latency_s": 0.005}],
}


@functools.cache
def token_bytes() -> float:
    """KV of one token of Llama-3-70B, over all GPUs."""
    return simulated_70b.token_bytes(simulated_70b.deployment())


def fetch_s(tokens: int, gb_per_s: float, latency_ms: float) -> float:
    """Seconds until the KV of a prefix has come over the link."""
    return tokens * token_bytes() / (gb_per_s * 1e9) + latency_ms / 1e3


@functools.cache
def compute_s(tokens: int) -> float:
    """Seconds to prefill it instead."""
    return simulated_70b.prefill_seconds(simulated_70b.deployment(), tokens)


# ---------------------------------------------------------------- an agent waits for its tool


@dataclass(frozen=True)
class Pause:
    """Agents whose KV no step reads while a tool runs."""

    turns_per_s: float
    tool_s: float
    context: int
    """Tokens, when the tool is called."""
    gb_per_s: float
    """Bandwidth of the link to host memory, all GPUs together."""

    @property
    def paused(self) -> float:
        """Agents that wait for a tool, in the mean (Little's law)."""
        return self.turns_per_s * self.tool_s

    @property
    def bytes_each(self) -> float:
        return self.context * token_bytes()

    @property
    def pool_share(self) -> float:
        """Share of four H100s' KV pool that waiting agents hold. Above 1 it doesn't fit."""
        return self.paused * self.bytes_each / pool_bytes()

    def resume_s(self) -> dict[str, float]:
        """Seconds until a turn can go on, by what became of its KV."""
        return {
            "keep it": 0.0,
            "fetch it": fetch_s(self.context, self.gb_per_s, 0.1),
            "drop it": compute_s(self.context),
        }

    def gpu_share(self) -> dict[str, float]:
        """Share of all the GPUs' time that resuming takes. A fetch runs beside other requests' steps."""
        return {"keep it": 0.0, "fetch it": 0.0, "drop it": self.turns_per_s * self.resume_s()["drop it"]}


@functools.cache
def pool_bytes() -> float:
    """Room for KV beside Llama-3-70B's weights on four H100s."""
    on = simulated_70b.deployment()
    return simulated_70b.room_tokens(on) * simulated_70b.token_bytes(on)


def tier_runs(qps: float = 2.0) -> dict[str, FleetRun]:
    """The same conversations with each set of tiers, on GPUs that can't keep them all."""
    on = simulated_70b.deployment(num_kv_blocks=POOL_TOKENS // 16)
    return {
        name: simulated_70b.serve(on, CONVERSATIONS, qps=qps / 6, num_requests=60, least=60, tiers=tiers)
        for name, tiers in TIERS.items()
    }


def later_ttft(run: FleetRun) -> float:
    """p50 of TTFT after a conversation's first turn, seconds."""
    found = sorted(r.ttft() for r in run.records if r.completed and r.request.after is not None)
    return found[len(found) // 2]
