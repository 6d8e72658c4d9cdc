"""Greedy output is Hugging Face's on the whole model; see test_parity.py for the same on a part of it."""

from typing import Any

import pytest

from .test_parity import DRAFTING, EVERY_COMBINATION, MOST_TIES, PAIRS, Combination, check


def names_for(whole_model: Any, is_quick: bool) -> list[str]:
    """Every length and every other text; in `make test` every fourth length and every sixteenth text."""
    return whole_model.lengths_and_texts(0, 4)[3::4] if is_quick else whole_model.lengths_and_texts(0, 2)


ALL_AT_ONCE = [combination for combination, interleaved in PAIRS if not interleaved]
"""Every setting is in one of these. As requests come between steps, every combination is tried below."""
QUICK = ALL_AT_ONCE[1]


@pytest.mark.parametrize(
    "combination", [pytest.param(c, marks=[pytest.mark.slow] * (c != QUICK)) for c in ALL_AT_ONCE], ids=str
)
def test_every_setting_on_the_whole_model_when_all_prompts_come_together(
    whole_model: Any, combination: Combination
) -> None:
    """In `make test` one, besides drafts below; the others run there on the lively model."""
    check(whole_model, combination, names_for(whole_model, is_quick=combination == QUICK), interleaved=False)


@pytest.mark.slow
@pytest.mark.parametrize("combination", EVERY_COMBINATION, ids=str)
def test_every_combination_on_the_whole_model(whole_model: Any, combination: Combination) -> None:
    check(whole_model, combination, whole_model.short_names, interleaved=True)


@pytest.mark.slow
def test_long_prompt_on_the_whole_model(whole_model: Any) -> None:
    names = ["3000 tokens", "chat"]
    engine = whole_model.engine(num_kv_blocks=256, max_num_batched_tokens=512)
    assert whole_model.assert_identical(whole_model.serve(engine, names, interleaved=False), names) == 0


@pytest.mark.slow
def test_a_draft_model_changes_no_token(whole_model: Any, four_layers: Any) -> None:
    """The first layers of the model draft for all of it."""
    speculative = {"method": "draft_model", "model": str(four_layers.folder), **DRAFTING}
    engine = whole_model.engine(num_kv_blocks=256, speculative=speculative)
    names = whole_model.short_names[:12]
    outputs = whole_model.serve(engine, names, interleaved=True)
    assert whole_model.assert_identical(outputs, names) <= MOST_TIES
    assert sum(share.num_drafts for step in engine.steps for share in step.shares) > 30


@pytest.mark.parametrize(
    "num_kv_blocks", [pytest.param(256, id="roomy", marks=pytest.mark.slow), pytest.param(14, id="recompute")]
)
def test_the_draft_head_changes_no_token(whole_model: Any, num_kv_blocks: int) -> None:
    """The one that comes with minillm, which is right often enough to be worth the test."""
    speculative = {"method": "draft_head", "model": "smollm2-135m", **DRAFTING}
    engine = whole_model.engine(num_kv_blocks=num_kv_blocks, max_model_len=256, speculative=speculative)
    is_tight = num_kv_blocks == 14
    names = names_for(whole_model, is_quick=is_tight)
    outputs = whole_model.serve(engine, names, interleaved=not is_tight)
    assert whole_model.assert_identical(outputs, names) <= MOST_TIES
    assert (engine.scheduler.num_preemptions > 0) == is_tight
    shares = [share for step in engine.steps for share in step.shares]
    assert sum(share.num_accepted for share in shares) > 8
    assert sum(share.num_drafts - share.num_accepted for share in shares) > 8
