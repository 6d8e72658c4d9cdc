"""Whatever is switched on, greedy output is Hugging Face's, token by token (fp32, CPU).

Tiers, on a model whose answers show what was in the KV cache: combinations in which every two settings meet, and, slow,
all. In test_whole_model.py, on SmolLM2: two combinations, and, slow, all.
Every answer of every prompt is compared.
"""

import itertools
import random
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from .conftest import LONG_PROMPTS, TIE

MOST_TIES = 2
"""Per combination of 64 prompts. More would mean that something is only nearly right."""


class Combination(NamedTuple):
    """One way to serve. `pressure`: a KV pool with room for all, or so small that requests are preempted."""

    batching: str
    chunked: bool
    prefix_caching: bool
    pressure: str
    reservation: str
    backend: str

    @property
    def is_possible(self) -> bool:
        """Alone, or with its whole window reserved, nobody is ever preempted."""
        return self.pressure == "roomy" or (self.batching != "none" and self.reservation == "on_demand")

    def fields(self, window: int) -> dict[str, Any]:
        """Its EngineConfig, for requests of at most `window` tokens. A tight pool holds one of those, hardly two."""
        return {
            "batching": self.batching,
            "enable_chunked_prefill": self.chunked,
            **self.step_size(),
            "enable_prefix_caching": self.prefix_caching,
            "num_kv_blocks": 640 if self.pressure == "roomy" else 14,
            "preemption": "recompute" if self.pressure == "roomy" else self.pressure,
            "kv_reservation": self.reservation,
            "max_model_len": window,
            "attention_backend": self.backend,
        }

    def step_size(self) -> dict[str, int]:
        """Chunks of at most 64 or 32 tokens; or whole prompts, of which the longest is over the budget."""
        if self.batching == "static":
            # A static batch is what one step admits, so the budget has to have room for many.
            return {"max_num_batched_tokens": 1024, "long_prefill_token_threshold": 32 if self.chunked else None}
        return {"max_num_batched_tokens": 64 if self.chunked else 1024}

    def __str__(self) -> str:
        chunked = "chunked" if self.chunked else "whole"
        prefix = "cached" if self.prefix_caching else "uncached"
        return "-".join((self.batching, chunked, prefix, self.pressure, self.reservation, self.backend))


FACTORS = (
    ("continuous", "static", "none"),
    (True, False),
    (True, False),
    ("roomy", "recompute", "swap"),
    ("on_demand", "max_len"),
    ("eager", "sdpa"),
)
EVERY_COMBINATION = [c for c in itertools.starmap(Combination, itertools.product(*FACTORS)) if c.is_possible]


def covering(rows: list[tuple[Any, ...]], strength: int) -> list[tuple[Any, ...]]:
    """A few of the rows in which every set of so many settings occurs that occurs in any: each time the row that adds
    most of them."""
    missing = {row: set(itertools.combinations(enumerate(row), strength)) for row in rows}
    chosen = []
    while any(missing.values()):
        chosen.append(max(missing, key=lambda row: len(missing[row])))
        covered = missing.pop(chosen[-1])
        missing = {row: sets - covered for row, sets in missing.items()}
    return chosen


QUICK = covering(EVERY_COMBINATION, 2)
"""Every two settings meet in one of these."""
PAIRS = [
    (Combination(*row[:-1]), row[-1])
    for row in covering([(*c, interleaved) for c in EVERY_COMBINATION for interleaved in (True, False)], 2)
]
"""Every two settings meet in one of these; True = requests arrive between steps."""


def check(
    parity: Any, combination: Combination, names: list[str], *, interleaved: bool, window: int = 256, **fields: Any
) -> Any:
    """Serve these prompts this way and compare every answer; the pressure must really have been there. Returns the
    engine."""
    engine = parity.engine(**combination.fields(window), **fields)
    outputs = parity.serve(engine, names, interleaved=interleaved)
    assert parity.assert_identical(outputs, names) <= MOST_TIES
    assert (engine.scheduler.num_preemptions > 0) == (combination.pressure != "roomy")
    hits = engine.scheduler.prefix_hits
    assert combination.prefix_caching or hits == 0
    if combination.prefix_caching and (interleaved or combination.pressure == "roomy"):
        assert hits > 0, "else a tight pool may have evicted all that a later prompt shares"
    return engine


@pytest.mark.parametrize(
    "combination",
    [pytest.param(c, id=str(c), marks=[pytest.mark.slow] * (c not in QUICK)) for c in EVERY_COMBINATION],
)
def test_every_combination(lively: Any, combination: Combination) -> None:
    """Every length, and some of the texts in turn: half of them under pressure, else a quarter."""
    step = 4 if combination.pressure == "roomy" else 2
    offset = EVERY_COMBINATION.index(combination) % step if combination.pressure == "roomy" else 0
    names = lively.lengths_and_texts(offset, step)
    check(lively, combination, names, interleaved=True)


@pytest.mark.parametrize(("combination", "interleaved"), PAIRS, ids=str)
def test_a_mixture_of_experts(tiny_moe: Any, combination: Combination, interleaved: bool) -> None:
    """Which experts a token goes to must not depend on its chunk or its batch."""
    check(tiny_moe, combination, tiny_moe.lengths_and_texts(1, 2), interleaved=interleaved)


DRAFTING = {"k": 3, "min_output_tokens": 2, "max_batch": 64, "acceptance_floor": 0}
LOOKUP = {"method": "ngram", "ngram_min": 1, **DRAFTING}
WAYS = ("ahead", "looked up", "drafted")


@pytest.mark.parametrize(
    "row",
    covering([(*c, interleaved, way) for c in EVERY_COMBINATION for interleaved in (True, False) for way in WAYS], 2),
    ids=str,
)
def test_neither_running_ahead_nor_drafts_change_a_token(
    lively: Any, lively_drafts: Path, row: tuple[Any, ...]
) -> None:
    *settings, interleaved, way = row
    fields: dict[str, dict[str, Any]] = {
        "ahead": {"async_scheduling": True},
        "looked up": {"speculative": LOOKUP},
        "drafted": {"speculative": {"method": "draft_model", "model": str(lively_drafts), **DRAFTING}},
    }
    names = lively.lengths_and_texts(1, 2)
    engine = check(lively, Combination(*settings), names, interleaved=interleaved, **fields[way])
    if way != "ahead":
        shares = [share for step in engine.steps for share in step.shares]
        assert sum(share.num_accepted for share in shares) > 5
        assert sum(share.num_drafts - share.num_accepted for share in shares) > 10


@pytest.mark.parametrize(
    ("combination", "interleaved"),
    [
        pytest.param(*row, id=str(row[0]), marks=[pytest.mark.slow] * (row[0].backend == "eager"))
        for row in PAIRS
        if row[0].pressure == "roomy" and row[0].batching != "none"
    ],
)
def test_long_prompts_among_others(lively: Any, combination: Combination, interleaved: bool) -> None:
    names = [*lively.short_names[:5], *LONG_PROMPTS, *lively.short_names[-10:]]
    check(lively, combination, names, interleaved=interleaved, window=3072)


@pytest.mark.parametrize("backend", [pytest.param("eager", marks=pytest.mark.slow), "sdpa"])
@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_long_prompt_that_is_preempted_in_the_middle_of_its_prefill(lively: Any, preemption: str, backend: str) -> None:
    # The shorter one decodes when the other, a chunk at a time, has grown until the pool is full.
    names = ["1500 tokens", "3000 tokens"]
    engine = lively.engine(
        num_kv_blocks=190,
        preemption=preemption,
        attention_backend=backend,
        long_prefill_token_threshold=256,
        enable_prefix_caching=False,
    )
    assert lively.assert_identical(lively.serve(engine, names, interleaved=False), names) == 0
    assert engine.scheduler.num_preemptions > 0
    assert (engine.core.log.num_recomputed_tokens > 0) == (preemption == "recompute")


def test_answers_show_what_was_in_the_cache(lively: Any) -> None:
    """Else a combination could read the wrong block and pass. (On the first layers of SmolLM2 one in eight changes.)"""
    reference = lively.reference
    names = [name for name in lively.short_names if 16 <= len(reference.prompt_ids[name]) <= 128]
    rng = random.Random(0)
    changed = 0
    for name in names:
        prompt = list(reference.prompt_ids[name])
        prompt[rng.randrange(len(prompt) // 2)] = rng.randrange(1000, 4000)
        changed += reference.regret(prompt, reference.answer(name)) > TIE
    assert changed > 0.75 * len(names)


def test_a_wrong_answer_would_be_noticed(lively: Any) -> None:
    """The comparison itself can fail: on a wrong token, a missing end, and an answer that goes on."""
    name = "completion"
    engine = lively.engine(num_kv_blocks=64)
    right = lively.serve(engine, [name], interleaved=False)
    assert lively.assert_identical(right, [name]) == 0
    tokens = right[name].token_ids
    for wrong in (tokens[:-1], [*tokens[:2], tokens[2] ^ 1, *tokens[3:]], [*tokens, tokens[0]], []):
        completion = right[name].completions[0]._replace(request_token_ids=wrong, num_tokens=len(wrong))
        with pytest.raises(AssertionError):
            lively.assert_identical({name: right[name]._replace(completions=[completion])}, [name])
