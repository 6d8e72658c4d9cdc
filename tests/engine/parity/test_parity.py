"""Whatever is switched on, greedy output is Hugging Face's, token by token (fp32, CPU).

Tiers: every combination on 4 layers of the model, here, with either attention backend in turn (with both: slow). In
test_whole_model.py, on all 30 layers: a few that cover every pair of settings, of which four run in `make test`, and
every combination (slow). Every answer of every prompt is compared.
"""

import itertools
from typing import Any, NamedTuple

import pytest

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
ONE_BACKEND = [c for c in EVERY_COMBINATION if sum(map(tuple.index, FACTORS, c)) % 2]
"""Half of them: each of the others' settings with one of the two backends, in turn, so that every pair occurs."""

# Every possible pair of two settings occurs in one of these; True = requests arrive between steps.
COVERING = [
    (Combination("static", True, False, "swap", "on_demand", "sdpa"), True),
    (Combination("none", True, True, "roomy", "max_len", "eager"), False),
    (Combination("continuous", False, True, "recompute", "on_demand", "eager"), True),
    (Combination("continuous", False, False, "roomy", "max_len", "sdpa"), False),
    (Combination("static", False, True, "swap", "on_demand", "eager"), False),
    (Combination("none", False, False, "roomy", "on_demand", "sdpa"), True),
    (Combination("static", True, False, "recompute", "on_demand", "sdpa"), False),
    (Combination("static", True, True, "roomy", "max_len", "sdpa"), True),
    (Combination("continuous", True, False, "swap", "on_demand", "eager"), False),
]


def check(parity: Any, combination: Combination, names: list[str], *, interleaved: bool, window: int = 256) -> None:
    """Serve these prompts this way and compare every answer; the pressure must really have been there."""
    engine = parity.engine(**combination.fields(window))
    outputs = parity.serve(engine, names, interleaved=interleaved)
    assert parity.assert_identical(outputs, names) <= MOST_TIES
    assert (engine.scheduler.num_preemptions > 0) == (combination.pressure != "roomy")
    assert (engine.scheduler.prefix_hits > 0) == combination.prefix_caching


@pytest.mark.parametrize(
    "combination",
    [pytest.param(c, id=str(c), marks=[pytest.mark.slow] * (c not in ONE_BACKEND)) for c in EVERY_COMBINATION],
)
def test_every_combination_on_four_layers(four_layers: Any, combination: Combination) -> None:
    """Under pressure every prompt; else every length, and a quarter of the texts in turn, which show as much."""
    names = four_layers.short_names
    if combination.pressure == "roomy":
        names = four_layers.lengths_and_texts(EVERY_COMBINATION.index(combination) % 4, 4)
    check(four_layers, combination, names, interleaved=True)


@pytest.mark.parametrize(("combination", "interleaved"), COVERING, ids=str)
def test_a_mixture_of_experts(tiny_moe: Any, combination: Combination, interleaved: bool) -> None:
    """Which experts a token goes to must not depend on its chunk or its batch."""
    check(tiny_moe, combination, tiny_moe.short_names, interleaved=interleaved)


@pytest.mark.parametrize(("combination", "interleaved"), COVERING, ids=str)
def test_running_ahead_changes_no_token(four_layers: Any, combination: Combination, interleaved: bool) -> None:
    engine = four_layers.engine(**combination.fields(256), async_scheduling=True)
    outputs = four_layers.serve(engine, four_layers.short_names, interleaved=interleaved)
    assert four_layers.assert_identical(outputs, four_layers.short_names) <= MOST_TIES
    assert (engine.scheduler.num_preemptions > 0) == (combination.pressure != "roomy")


DRAFTING = {"k": 3, "min_output_tokens": 2, "max_batch": 64, "acceptance_floor": 0}
LOOKUP = {"method": "ngram", "ngram_min": 1, **DRAFTING}
SYNTHETIC = {"method": "synthetic", "acceptance_rate": 0.6, **DRAFTING}


@pytest.mark.parametrize(
    ("combination", "interleaved", "speculative"),
    [(*row, speculative) for row, speculative in zip(COVERING, itertools.cycle((LOOKUP, SYNTHETIC)))],
    ids=lambda value: value["method"] if isinstance(value, dict) else str(value),
)
def test_drafts_change_no_token(
    four_layers: Any, combination: Combination, interleaved: bool, speculative: dict[str, Any]
) -> None:
    engine = four_layers.engine(**combination.fields(256), speculative=speculative)
    outputs = four_layers.serve(engine, four_layers.short_names, interleaved=interleaved)
    assert four_layers.assert_identical(outputs, four_layers.short_names) <= MOST_TIES
    shares = [share for step in engine.steps for share in step.shares]
    assert sum(share.num_accepted for share in shares) > 10
    assert sum(share.num_drafts - share.num_accepted for share in shares) > 10


@pytest.mark.parametrize(
    ("combination", "interleaved"), [row for row in COVERING if row[0].pressure == "roomy"], ids=str
)
def test_long_prompts_among_others(four_layers: Any, combination: Combination, interleaved: bool) -> None:
    names = [*four_layers.short_names[:5], *four_layers.long_names, *four_layers.short_names[-10:]]
    check(four_layers, combination, names, interleaved=interleaved, window=3072)


@pytest.mark.parametrize("backend", ["eager", "sdpa"])
@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_long_prompt_that_is_preempted_in_the_middle_of_its_prefill(
    four_layers: Any, preemption: str, backend: str
) -> None:
    # The shorter one decodes when the other, a chunk at a time, has grown until the pool is full.
    names = ["1500 tokens", "3000 tokens"]
    engine = four_layers.engine(
        num_kv_blocks=190,
        preemption=preemption,
        attention_backend=backend,
        long_prefill_token_threshold=256,
        enable_prefix_caching=False,
    )
    assert four_layers.assert_identical(four_layers.serve(engine, names, interleaved=False), names) == 0
    assert engine.scheduler.num_preemptions > 0
    assert (engine.core.log.num_recomputed_tokens > 0) == (preemption == "recompute")


def test_covering_combinations_cover_every_pair() -> None:
    def pairs(settings: tuple[Any, ...]) -> set[Any]:
        return set(itertools.combinations(enumerate(settings), 2))

    possible = set().union(*(pairs((*c, interleaved)) for c in EVERY_COMBINATION for interleaved in (True, False)))
    assert possible == set().union(*(pairs((*c, interleaved)) for c, interleaved in COVERING))
    assert set().union(*map(pairs, EVERY_COMBINATION)) == set().union(*map(pairs, ONE_BACKEND))
    assert {c[:-1] for c in EVERY_COMBINATION} == {c[:-1] for c in ONE_BACKEND}


def test_a_wrong_answer_would_be_noticed(four_layers: Any) -> None:
    """The comparison itself can fail: on a wrong token, a missing end, and an answer that goes on."""
    name = "completion"
    engine = four_layers.engine(num_kv_blocks=64)
    right = four_layers.serve(engine, [name], interleaved=False)
    assert four_layers.assert_identical(right, [name]) == 0
    tokens = right[name].token_ids
    for wrong in (tokens[:-1], [*tokens[:2], tokens[2] ^ 1, *tokens[3:]], [*tokens, tokens[0]], []):
        completion = right[name].completions[0]._replace(request_token_ids=wrong, num_tokens=len(wrong))
        with pytest.raises(AssertionError):
            four_layers.assert_identical({name: right[name]._replace(completions=[completion])}, [name])
