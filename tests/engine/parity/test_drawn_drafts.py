"""What is drawn after drafts follows Hugging Face's distribution: its model, its logits processors."""

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from minillm.core.params import SamplingParams

from .test_parity import DRAFTING

SAMPLED = {"temperature": 1.2, "top_k": 3, "top_p": 0.9, "repetition_penalty": 1.1, "presence_penalty": 0.3}
PROMPT_TOKENS = 33
"""Two whole blocks, which all requests share, and one token."""
PENALIZED = "33 tokens"
"""The lively model would repeat tokens of this prompt, so that penalties change what it writes."""
NUM_DRAWS = 600
MOST_VARIATION = 0.12
"""Total variation between two distributions over some 20 texts, one of them 600 draws: by chance 0.05, rarely 0.08."""


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


def test_what_is_drawn_after_drafts_is_hugging_faces_distribution(lively: Any, lively_drafts: Path) -> None:
    check_drawn_texts(lively, {"method": "draft_model", "model": str(lively_drafts)}, PENALIZED)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["draft_model", "ngram"])
def test_what_is_drawn_after_drafts_for_the_first_layers(four_layers: Any, two_layers: Path, method: str) -> None:
    own = {"ngram_min": 1} if method == "ngram" else {"model": str(two_layers)}
    check_drawn_texts(four_layers, {"method": method, **own})


@pytest.mark.slow
def test_what_is_drawn_after_a_draft_models_drafts(whole_model: Any, four_layers: Any) -> None:
    """The first layers draft for the whole model, which seldom agrees."""
    check_drawn_texts(whole_model, {"method": "draft_model", "model": str(four_layers.folder)})


@pytest.mark.slow
def test_what_is_drawn_after_the_draft_heads_drafts(whole_model: Any) -> None:
    check_drawn_texts(whole_model, {"method": "draft_head", "model": "smollm2-135m"})


def check_drawn_texts(parity: Any, speculative: dict[str, Any], after: str = "64 tokens") -> None:
    """Draw the same short text many times, and compare how often each came with how often it should."""
    prompt = parity.reference.prompt_ids[after][:PROMPT_TOKENS]
    expected = texts_by_hugging_face(parity.reference, prompt, length=3)
    engine = parity.engine(num_kv_blocks=640, speculative={**speculative, **DRAFTING})
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


def test_that_variation_would_be_noticed(lively: Any) -> None:
    prompt = lively.reference.prompt_ids[PENALIZED]
    right = texts_by_hugging_face(lively.reference, prompt, length=3)
    for changed in ({"temperature": 0.6}, {"top_k": 2}, {"top_p": 0.5}, {"repetition_penalty": 2.0}):
        wrong = texts_by_hugging_face(lively.reference, prompt, length=3, **changed)
        variation = sum(abs(right.get(text, 0.0) - wrong.get(text, 0.0)) for text in right | wrong) / 2
        assert variation > MOST_VARIATION, changed
