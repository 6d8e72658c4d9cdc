"""Greedy output is Hugging Face's on the whole model, see test_parity.py for the same on a part of it; and what is
drawn after drafts follows Hugging Face's distribution."""

import itertools
from collections import Counter
from typing import Any

import pytest
import torch

from minillm.request import SamplingParams

from .test_parity import COVERING, DRAFTING, EVERY_COMBINATION, MOST_TIES, Combination, check


@pytest.mark.parametrize(("combination", "interleaved"), COVERING, ids=str)
def test_every_pair_of_settings_on_the_whole_model(
    whole_model: Any, combination: Combination, interleaved: bool
) -> None:
    check(whole_model, combination, whole_model.short_names, interleaved=interleaved)


@pytest.mark.slow
@pytest.mark.parametrize("combination", EVERY_COMBINATION, ids=str)
def test_every_combination_on_the_whole_model(whole_model: Any, combination: Combination) -> None:
    check(whole_model, combination, whole_model.short_names, interleaved=True)


def test_long_prompt_on_the_whole_model(whole_model: Any) -> None:
    names = ["3000 tokens", "chat"]
    engine = whole_model.engine(num_kv_blocks=256, max_num_batched_tokens=512)
    assert whole_model.assert_identical(whole_model.serve(engine, names, interleaved=False), names) == 0


def test_a_draft_model_changes_no_token(whole_model: Any, four_layers: Any) -> None:
    """The first layers of the model draft for all of it."""
    speculative = {"method": "draft_model", "model": str(four_layers.folder), **DRAFTING}
    engine = whole_model.engine(num_kv_blocks=256, speculative=speculative)
    names = whole_model.short_names[:12]
    outputs = whole_model.serve(engine, names, interleaved=True)
    assert whole_model.assert_identical(outputs, names) <= MOST_TIES
    assert sum(share.num_drafts for step in engine.steps for share in step.shares) > 30


SAMPLED = {"temperature": 1.2, "top_k": 3, "top_p": 0.9, "repetition_penalty": 1.1, "presence_penalty": 0.3}
NUM_DRAWS = 600
MOST_VARIATION = 0.12
"""Of two distributions over some 20 texts, one of them 600 draws: chance makes 0.05 of it, rarely 0.08."""


@torch.inference_mode()
def texts_by_hugging_face(
    reference: Any, prompt: list[int], length: int, **changed: float
) -> dict[tuple[int, ...], float]:
    """The probability of every text of so many tokens, by Hugging Face's model and logits processors."""
    settings = SAMPLED | changed
    from transformers import (
        LogitsProcessorList,
        RepetitionPenaltyLogitsProcessor,
        TemperatureLogitsWarper,
        TopKLogitsWarper,
        TopPLogitsWarper,
    )

    processors = LogitsProcessorList(
        [
            RepetitionPenaltyLogitsProcessor(settings["repetition_penalty"]),
            lambda ids, scores: scores - settings["presence_penalty"] * written(ids, scores),
            TemperatureLogitsWarper(settings["temperature"]),
            TopKLogitsWarper(settings["top_k"]),
            TopPLogitsWarper(settings["top_p"]),
        ]
    )

    def written(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(scores).scatter_(1, ids[:, len(prompt) :], 1.0)

    texts = {(): 1.0}
    for _ in range(length):
        longer = {}
        for text, share in texts.items():
            ids = torch.tensor([[*prompt, *text]])
            probs = processors(ids, reference.model(ids, logits_to_keep=1).logits[:, -1]).softmax(-1)[0]
            longer |= {(*text, token): share * probs[token].item() for token in probs.nonzero()[:, 0].tolist()}
        texts = longer
    return texts


@pytest.mark.parametrize("method", ["draft_model", "synthetic", "ngram"])
def test_what_is_drawn_after_drafts_is_hugging_faces_distribution(
    whole_model: Any, four_layers: Any, method: str
) -> None:
    prompt = whole_model.reference.prompt_ids["64 tokens"][:40]
    expected = texts_by_hugging_face(whole_model.reference, prompt, length=3)
    options = {"draft_model": {"model": str(four_layers.folder)}, "synthetic": {"acceptance_rate": 0.6}}
    speculative = {"method": method, "ngram_min": 1, **options.get(method, {}), **DRAFTING}
    engine = whole_model.engine(num_kv_blocks=640, speculative=speculative)
    for seed in range(NUM_DRAWS):
        params = SamplingParams(max_tokens=3, ignore_eos=True, seed=seed, **SAMPLED)
        engine.add_request(prompt, params, stream=False)
    found: Counter[tuple[int, ...]] = Counter()
    while engine.has_unfinished:
        found.update(tuple(output.token_ids) for output in engine.step())
    assert found.total() == NUM_DRAWS and set(found) <= set(expected)
    variation = sum(abs(found[text] / NUM_DRAWS - share) for text, share in expected.items()) / 2
    assert variation < MOST_VARIATION
    shares = list(itertools.chain.from_iterable(step.shares for step in engine.steps))
    assert sum(share.num_drafts for share in shares) > 100


def test_that_variation_would_be_noticed(whole_model: Any) -> None:
    prompt = whole_model.reference.prompt_ids["64 tokens"][:40]
    right = texts_by_hugging_face(whole_model.reference, prompt, length=3)
    for changed in ({"temperature": 0.6}, {"top_k": 2}, {"top_p": 0.5}, {"repetition_penalty": 2.0}):
        wrong = texts_by_hugging_face(whole_model.reference, prompt, length=3, **changed)
        variation = sum(abs(right.get(text, 0.0) - wrong.get(text, 0.0)) for text in right | wrong) / 2
        assert variation > MOST_VARIATION, changed
