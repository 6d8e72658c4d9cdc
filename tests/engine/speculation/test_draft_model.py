"""Real models that draft, with a KV cache of their own: same tokens whatever they say, and no block is lost."""

import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from integrity import check_blocks, check_engine
from slipping_drafts import Slipping
from staggered import serve_staggered
from torch import Tensor

from minillm import Engine, EngineConfig, SamplingParams
from minillm.core.batch import ScheduledRequest
from minillm.core.errors import ConfigError
from minillm.core.request import Draft
from minillm.frontend.outputs import RequestOutput
from minillm.model.loader import LoadedModel, fill_randomly, load_model
from minillm.observe.speculation import SpeculationSummary
from minillm.runner.torch_runner import TorchRunner
from minillm.speculation import make
from minillm.speculation.base import DraftRequest, Proposer

from .ways import WAYS

ALWAYS = {"k": 4, "acceptance_floor": 0, "adaptive_k": False, "min_output_tokens": 1, "max_batch": 64}
MODEL = {"method": "draft_model", "model": "stranger", **ALWAYS}
PROMPTS = [list(range(10, 10 + length)) for length in (3, 17, 30, 9, 1)]
GREEDY = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)


@pytest.fixture(scope="module")
def stranger(tiny_llama_path: Path) -> LoadedModel:
    """A model of the same shape, with other weights: it agrees with `tiny` about nothing."""
    model = load_model(EngineConfig(model=str(tiny_llama_path), dtype="float32", device="cpu"))
    fill_randomly(model.decoder)
    return model


@pytest.fixture(autouse=True)
def known_models(monkeypatch: pytest.MonkeyPatch, tiny: LoadedModel, stranger: LoadedModel) -> None:
    models = {"stranger": stranger, "itself": tiny}
    monkeypatch.setattr(make, "load_model", lambda config: models[config.model])


SLIPPING = Slipping(**ALWAYS)


class Echo(Proposer):
    """Has seen the text before, and misreads a word in four. Its drafts are chosen, as a lookup's are."""

    def __init__(self, outputs: list[RequestOutput]) -> None:
        self.texts = {output.request_id: output.token_ids for output in outputs}

    def propose(self, wanted: Sequence[DraftRequest]) -> list[Draft]:
        drafts = []
        for request, k in wanted:
            places = range(request.num_output_tokens, min(request.num_output_tokens + k, len(self.texts["0"])))
            text = self.texts[request.request_id]
            drafts.append(
                Draft([text[i] + (zlib.crc32(f"{request.request_id} {i}".encode()) % 4 == 0) for i in places])
            )
        return drafts


def make_engine(
    tiny: LoadedModel, speculative: dict[str, Any] | Slipping | None, proposer: Proposer | None = None, **fields: Any
) -> Engine:
    shape = dict(num_kv_blocks=64, block_size=4, max_num_seqs=6, max_model_len=96)
    config = EngineConfig(
        model=tiny.name, dtype="float32", device="cpu", speculative=speculative, **{**shape, **fields}
    )
    return Engine(config, tiny, proposer=proposer)


def serve(engine: Engine, params: SamplingParams = GREEDY, prompts: list[list[int]] = PROMPTS) -> list[RequestOutput]:
    outputs = serve_staggered(engine, prompts, params, check=check_drafting)
    assert engine.scheduler.kv.pool.num_used == 0
    assert not getattr(getattr(engine.drafts, "proposer", None), "kv", engine.scheduler.kv).tables, (
        "the draft's blocks leaked"
    )
    return outputs


def check_drafting(engine: Engine) -> None:
    check_engine(engine)
    proposer = getattr(engine.drafts, "proposer", None)
    if hasattr(proposer, "kv"):
        check_blocks(proposer.kv)
        assert set(proposer.kv.tables) <= {request.request_id for request in engine.scheduler.running}


def tokens_of(outputs: list[RequestOutput]) -> list[list[int]]:
    return [output.token_ids for output in outputs]


@pytest.fixture(scope="module")
def without(tiny: LoadedModel) -> list[RequestOutput]:
    """What is written without speculation, greedily."""
    return serve(make_engine(tiny, None))


@pytest.mark.parametrize(
    ("way", "drafts"),
    [
        # In `make test` drafts that are sometimes wrong meet every way, those always or never right the tight one.
        pytest.param(way, drafts, marks=[pytest.mark.slow] * (drafts != "slipping" and way != "tight"))
        for way in WAYS
        for drafts in ("slipping", "echo", "stranger")
    ],
)
def test_greedy_output_is_what_it_is_without(
    tiny: LoadedModel, without: list[RequestOutput], way: str, drafts: str
) -> None:
    proposer = Echo(without) if drafts == "echo" else None
    engine = make_engine(tiny, MODEL if drafts == "stranger" else SLIPPING, proposer, **WAYS[way])
    assert tokens_of(serve(engine)) == tokens_of(without)
    assert (engine.scheduler.num_preemptions > 0) == way.startswith("tight")
    summary = SpeculationSummary.of_steps(engine.steps)
    assert summary.num_rejected > 30
    assert (sum(summary.accepted_at) > 30) == (drafts != "stranger"), "all that the stranger drafts is wrong"


def test_a_model_that_drafts_for_itself_is_always_right(tiny: LoadedModel) -> None:
    """So its KV cache holds what it should: after a chunked prefill, a hit in its own prefix cache, a preemption."""
    itself = {**MODEL, "model": "itself"}
    for fields in ({"max_num_batched_tokens": 7}, {"num_kv_blocks": 24}):
        engine = make_engine(tiny, itself, **fields)
        outputs = serve(engine, prompts=[*PROMPTS, PROMPTS[2], [*PROMPTS[2], 5]])
        summary = SpeculationSummary.of_steps(engine.steps)
        assert summary.num_rejected == 0 and summary.num_verifications > 20
        assert outputs[2].token_ids == outputs[5].token_ids
        assert summary.draft_s > 0 and summary.draft_cost > 0


def test_what_was_guessed_wrong_is_computed_again(tiny: LoadedModel) -> None:
    """Rejections leave wrong tokens in the draft's cache. What it takes for computed is what the model itself has:
    they are one model, so keys and values must agree."""
    engine = make_engine(tiny, SLIPPING, enable_prefix_caching=False)
    proposer, num_compared = engine.speculator.proposer, 0
    for prompt in PROMPTS:
        engine.add_request(prompt, GREEDY, stream=False)
    while engine.has_unfinished:
        engine.step()
        for request in engine.scheduler.running:
            if request.request_id in proposer.kv.tables:
                num_tokens = min(proposer._num_computed(request), request.num_computed_tokens)
                own = kept(proposer.runner, proposer.kv.block_ids(request), num_tokens)
                torch.testing.assert_close(own, kept(engine.runner, engine.scheduler.kv.block_ids(request), num_tokens))
                num_compared += num_tokens
    assert num_compared > 1000
    undrafted = [share for step in engine.steps for share in step.shares if not (share.is_prefill or share.num_drafts)]
    assert len(undrafted) <= len(PROMPTS), "each time but for a last token"
    assert SpeculationSummary.of_steps(engine.steps).num_rejected > 30


def kept(runner: TorchRunner, block_ids: list[int], num_tokens: int) -> Tensor:
    """Keys and values of the first tokens, of all layers."""
    return torch.stack([layer[block_ids].flatten(0, 1)[:num_tokens] for layer in runner.kv_pool.layers])


def test_a_draft_cache_that_is_full_drafts_for_fewer(tiny: LoadedModel, without: list[RequestOutput]) -> None:
    engine = make_engine(tiny, {**MODEL, "model": "itself"})
    proposer = engine.speculator.proposer
    proposer.runner = replace_blocks(proposer.runner, 20)
    proposer.reset()
    assert tokens_of(serve(engine)) == tokens_of(without)
    together = [record for record in engine.steps if len(record.shares) >= 2]
    assert any(0 < sum(share.num_drafts > 0 for share in record.shares) < len(record.shares) for record in together)


def replace_blocks(runner: Any, num_blocks: int) -> Any:
    runner.num_kv_blocks = num_blocks  # the pool's memory is larger: only fewer blocks are handed out
    return runner


# The model's logits are all but equal. Where they are drawn by rank, a low temperature keeps equal ones out of it.
SAMPLED = {
    "plain": {},
    "top-p": {"temperature": 0.05, "top_p": 0.7},
    "penalties": {"temperature": 0.05, "top_k": 20, "frequency_penalty": 0.7, "repetition_penalty": 1.3},
    "greedy with penalties": {"temperature": 0, "presence_penalty": 1.5, "repetition_penalty": 1.4},
}


@pytest.mark.parametrize("name", SAMPLED)
def test_chosen_drafts_leave_every_seed_its_text(tiny: LoadedModel, name: str) -> None:
    params = SamplingParams(max_tokens=40, ignore_eos=True, seed=5, **SAMPLED[name])
    without = serve(make_engine(tiny, None), params)
    engine = make_engine(tiny, MODEL, Echo(without))
    assert tokens_of(serve(engine, params)) == tokens_of(without)
    assert sum(SpeculationSummary.of_steps(engine.steps).accepted_at) > 30


@pytest.mark.parametrize("name", [pytest.param("top-p", marks=pytest.mark.slow), "penalties"])
def test_seeds_give_the_same_text_again_in_any_company(tiny: LoadedModel, name: str) -> None:
    params = SamplingParams(max_tokens=30, ignore_eos=True, seed=5, **SAMPLED[name])
    together = tokens_of(serve(make_engine(tiny, SLIPPING), params))
    alone = [tokens_of(serve(make_engine(tiny, SLIPPING), params, [prompt]))[0] for prompt in PROMPTS[:2]]
    assert together[:2] == alone


def test_logprobs_are_those_of_the_tokens_that_were_kept(tiny: LoadedModel) -> None:
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True, logprobs=2)
    plain = serve(make_engine(tiny, None), params)
    stop = plain[1].token_ids[13]
    for ids in ((), (stop,)):
        params = params.replace(stop_token_ids=ids)
        expected, outputs = serve(make_engine(tiny, None), params), serve(make_engine(tiny, SLIPPING), params)
        for one, other in zip(expected, outputs):
            assert [lp.token_id for lp in other.logprobs] == other.token_ids == one.token_ids
            assert [lp.logprob for lp in other.logprobs] == pytest.approx([lp.logprob for lp in one.logprobs], abs=1e-4)


def test_models_of_other_words_are_refused(
    tiny: LoadedModel, stranger: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    shorter = replace(stranger, model_config=replace(stranger.model_config, vocab_size=100))
    monkeypatch.setattr(make, "load_model", lambda config: shorter)
    with pytest.raises(ConfigError, match="knows 100 tokens"):
        make_engine(tiny, MODEL)
    with pytest.raises(ConfigError, match="no draft head for"):
        make_engine(tiny, {"method": "draft_head"})


class Reader(Echo):
    """Keeps the hidden states of every position of one request; those written last are those that count."""

    def __init__(self, outputs: list[RequestOutput]) -> None:
        super().__init__(outputs)
        self.hidden: dict[int, Tensor] = {}

    def read_hidden_states(self, scheduled: Sequence[ScheduledRequest], hidden: Tensor) -> None:
        for s, rows in zip(scheduled, hidden.split([s.num_tokens for s in scheduled]), strict=True):
            if s.request.request_id == "1":
                self.hidden |= dict(zip(range(s.start, s.end), rows, strict=True))


def test_a_proposer_may_read_the_hidden_states(tiny: LoadedModel, without: list[RequestOutput]) -> None:
    """Every position's, prompt and rejected drafts included: what the head makes of them is the next token."""
    reader = Reader(without)
    engine = make_engine(tiny, MODEL, reader, max_num_batched_tokens=7)
    output = serve(engine)[1]
    assert output.token_ids == without[1].token_ids
    num_tokens = len(PROMPTS[1]) + len(output.token_ids)
    assert set(range(num_tokens - 1)) <= set(reader.hidden)
    hidden = torch.stack([reader.hidden[position] for position in range(len(PROMPTS[1]) - 1, num_tokens - 1)])
    with torch.inference_mode():
        assert tiny.decoder.lm_head(hidden).argmax(-1).tolist() == output.token_ids
