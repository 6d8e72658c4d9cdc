"""The draft head in the engine: same tokens, and a cache that holds what the model's states make it, come what may."""

import dataclasses
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from draft_heads import make_eagle3, make_head, run_densely
from integrity import check_engine
from safetensors.torch import load_file, save_file
from staggered import serve_staggered
from tiny_llama import VOCAB_SIZE
from torch import Tensor

from minillm import Engine, EngineConfig, SamplingParams
from minillm.core.batch import ScheduledRequest
from minillm.core.errors import ConfigError
from minillm.core.request import Request
from minillm.frontend.outputs import RequestOutput
from minillm.kernels.cpu import native_kernels
from minillm.model.decoder import Decoder
from minillm.model.errors import CorruptCheckpointError
from minillm.model.loader import LoadedModel, load_model
from minillm.model.packed import CPULinear
from minillm.model.quantized import QuantizedLinear
from minillm.model.quantized_cuda import makers
from minillm.observe.speculation import SpeculationSummary
from minillm.speculation import draft_head
from minillm.speculation.draft_head import DraftHeadProposer, HeadSlot
from minillm.speculation.head_file import embedding_table, load_head, output_rows

from .ways import WAYS

ALWAYS = {"acceptance_floor": 0, "adaptive_k": False, "min_output_tokens": 1, "max_batch": 64, "k": 3}
PROMPTS = [list(range(10, 10 + length)) for length in (3, 17, 30, 9, 1)] + [list(range(10, 41))]
GREEDY = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)


@pytest.fixture(scope="module")
def folder(tiny: LoadedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained head that can name a fifth of the tokens."""
    path = tmp_path_factory.mktemp("head")
    make_head(path, tiny)
    return path


@pytest.fixture(scope="module")
def without(tiny: LoadedModel) -> list[RequestOutput]:
    """What is written without speculation, greedily."""
    return serve(make_engine(tiny, None))


class Hinted(DraftHeadProposer):
    """Runs the head, but says what it was told, and misreads a word in four; notes all states that it was shown."""

    def __init__(self, texts: list[list[int]], *args: Any) -> None:
        super().__init__(*args)
        self.texts = texts
        self.states: dict[str, dict[int, Tensor]] = {}
        self.foretold: dict[str, Tensor] = {}
        self.moved = 0

    def read_hidden_states(self, scheduled: Sequence[ScheduledRequest], hidden: Tensor) -> None:
        super().read_hidden_states(scheduled, hidden)
        for each, states in zip(scheduled, hidden.split([s.num_tokens for s in scheduled])):
            noted = self.states.setdefault(each.request.request_id, {})
            noted.update(zip(range(each.start, each.end), states))

    def guess(self, hidden: Tensor, requests: Sequence[Request]) -> None:
        for request, row in zip(requests, hidden):
            if not request.draft.token_ids:
                self.foretold[request.request_id] = row
            text, place = self.texts[int(request.request_id)], request.num_output_tokens + len(request.draft)
            wrong = zlib.crc32(f"{request.request_id} {place}".encode()) % 4 == 0
            request.draft.token_ids.append(text[min(place, len(text) - 1)] + wrong)

    def run_densely(self, states: Tensor, token_ids: list[int], first: int) -> tuple[Tensor, Tensor]:
        return run_densely(self.head, states, token_ids, first)

    def make_room(self, slot: HeadSlot, k: int) -> None:
        before = slot.origin
        super().make_room(slot, k)
        self.moved += slot.origin != before


def make_engine(
    tiny: LoadedModel,
    head: Path | None,
    texts: list[list[int]] | None = None,
    hinting: type[Hinted] = Hinted,
    **fields: Any,
) -> Engine:
    shape = dict(num_kv_blocks=64, block_size=4, max_num_seqs=6, max_model_len=96)
    wanted = None if head is None else {"method": "draft_head", "model": str(head), **ALWAYS}
    config = EngineConfig(model=tiny.name, dtype="float32", device="cpu", speculative=wanted, **{**shape, **fields})
    engine = Engine(config, tiny)
    if texts is not None:
        plain = engine.speculator.proposer
        hinted = hinting(texts, plain.head, engine.runner, config.max_num_seqs)
        engine.speculator.proposer = engine.runner.hidden_state_reader = hinted
    return engine


def serve(engine: Engine, params: SamplingParams = GREEDY) -> list[RequestOutput]:
    outputs = serve_staggered(engine, PROMPTS, params, last_alone=True, check=check_cache)
    proposer = getattr(engine.drafts, "proposer", None)
    if isinstance(proposer, DraftHeadProposer):
        assert not proposer.slots and sorted(proposer.free_slots) == list(range(6)), "slots leaked"
    return outputs


def check_cache(engine: Engine) -> None:
    """Every row of every slot, and what the last one foretells, is what plain PyTorch makes in one go of the
    model's states and the known tokens."""
    check_engine(engine)
    proposer = getattr(engine.drafts, "proposer", None)
    if not isinstance(proposer, Hinted):
        return
    for request in engine.scheduler.running:
        slot = proposer.slots.get(request.request_id)
        if slot is None or slot.num_rows == 0:
            continue
        noted, end = proposer.states[request.request_id], slot.origin + slot.num_rows
        states = torch.stack([noted[t] for t in range(slot.origin, end)])
        tokens = request.token_ids(slot.origin + 1, end + 1)
        foretold, expected = proposer.run_densely(states, tokens, slot.origin)
        rows = proposer.blocks(slot.number).flatten(0, 1)[: slot.num_rows]
        torch.testing.assert_close(rows, expected, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(proposer.foretold[request.request_id], foretold[-1], atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("way", WAYS)
def test_same_tokens_and_a_right_cache(tiny: LoadedModel, folder: Path, without: list[RequestOutput], way: str) -> None:
    texts = [output.token_ids for output in without]
    engine = make_engine(tiny, folder, texts, **WAYS[way])
    outputs = serve(engine)
    assert [output.token_ids for output in outputs] == texts
    assert (engine.scheduler.num_preemptions > 0) == way.startswith("tight")
    if way not in ("no prefix cache", "large blocks"):
        assert outputs[-1].num_cached_tokens > 0, "the last prompt continues one that has ended"
    summary = SpeculationSummary.of_steps(engine.steps)
    assert summary.num_rejected > 30 and sum(summary.accepted_at) > 30


def test_a_full_slot_goes_on_with_its_newer_half(
    tiny: LoadedModel, folder: Path, without: list[RequestOutput], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draft_head, "CONTEXT", 20)
    engine = make_engine(tiny, folder, [output.token_ids for output in without])
    assert [output.token_ids for output in serve(engine)] == engine.speculator.proposer.texts
    proposer = engine.speculator.proposer
    assert proposer.moved > 10 and proposer.blocks_per_slot == 5


def test_states_of_who_is_never_drafted_for_do_not_pile_up(
    tiny: LoadedModel, folder: Path, without: list[RequestOutput], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draft_head, "CONTEXT", 20)
    engine = make_engine(tiny, folder, [output.token_ids for output in without])
    monkeypatch.setattr(engine.speculator.length, "num_drafts", lambda request, num_running: 0)
    engine.add_request(PROMPTS[2], GREEDY, request_id="2", stream=False)
    while engine.has_unfinished:
        engine.step()
        for slot in engine.speculator.proposer.slots.values():
            assert len(slot.states) <= 20


def test_a_draft_goes_on_with_what_the_head_foretold(tiny: LoadedModel, folder: Path) -> None:
    """As if that were one more state of the model, for several requests in one pass."""
    engine = make_engine(tiny, folder, enable_prefix_caching=False)
    proposer, runner = engine.speculator.proposer, engine.runner
    noted: dict[str, Tensor] = {}
    show = proposer.read_hidden_states

    def note(scheduled: Sequence[ScheduledRequest], hidden: Tensor) -> None:
        show(scheduled, hidden)
        parts = hidden.split([s.num_tokens for s in scheduled])
        noted.update({s.request.request_id: part.clone() for s, part in zip(scheduled, parts)})

    runner.hidden_state_reader.read_hidden_states = note
    for number, prompt in enumerate(PROMPTS):
        engine.add_request(prompt, GREEDY, request_id=str(number))
    engine.step()
    engine.speculator.propose(engine.scheduler.running)
    for request in engine.scheduler.running:
        states = noted[request.request_id]
        assert len(request.draft) == 3 and len(states) == request.num_prompt_tokens
        assert tiny.decoder.lm_head(states[-1:]).argmax() == request.output_token_ids[0]
        for place, guess in enumerate(request.draft.token_ids):
            tokens = request.token_ids(1, request.num_known_tokens + place)
            foretold = run_densely(proposer.head, states, tokens)[0][-1:]
            assert guess == proposer.head.token_ids[proposer.head.output(foretold).argmax()] and guess % 5 == 0
            states = torch.cat((states, foretold))


@pytest.mark.parametrize("params", [{}, {"top_p": 0.9, "repetition_penalty": 1.2}])
def test_drawn_drafts_come_with_the_distributions_they_were_drawn_from(
    tiny: LoadedModel, folder: Path, params: dict[str, float]
) -> None:
    engine = make_engine(tiny, folder)
    engine.add_request(PROMPTS[1], SamplingParams(temperature=1.0, max_tokens=12, ignore_eos=True, **params))
    engine.step()
    engine.speculator.propose(engine.scheduler.running)
    [request] = engine.scheduler.running
    draft = request.draft
    probs = torch.stack(draft.probs)
    assert probs.shape == (3, VOCAB_SIZE)
    torch.testing.assert_close(probs.sum(dim=-1), torch.ones(3))
    assert all(probs[i, token] > 0 for i, token in enumerate(draft.token_ids))
    assert probs[:, 1::5].sum() == 0, "tokens that the head cannot name"
    while engine.has_unfinished:
        outputs = engine.step()
    assert len(outputs[0].token_ids) == 12


def test_a_failing_head_is_no_longer_shown_anything(tiny: LoadedModel, folder: Path) -> None:
    engine = make_engine(tiny, folder)
    engine.speculator.proposer._run = None
    engine.add_request(PROMPTS[1], GREEDY, stream=False)
    outputs = []
    while engine.has_unfinished:
        outputs += engine.step()
    assert len(outputs[0].token_ids) == 40 and engine.runner.hidden_state_reader is None


def test_heads_that_do_not_fit(tiny: LoadedModel, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no draft head for 'nowhere'.*method=ngram"):
        load_head("nowhere", tiny)
    with pytest.raises(ConfigError, match=r"set speculative\.model to a folder with one"):
        make_engine(tiny, tmp_path)
    facts = (folder / "head.json").read_text()
    (tmp_path / "head.json").write_text(facts.replace('"hidden_size": 64', '"hidden_size": 65'))
    (tmp_path / "head.safetensors").write_bytes((folder / "head.safetensors").read_bytes())
    with pytest.raises(ConfigError, match=r"hidden_size=65.*has 64"):
        load_head(str(tmp_path), tiny)


@pytest.mark.parametrize(
    ("name", "spoil", "says"),
    [
        ("fuse.weight", lambda old: None, "missing tensor fuse.weight"),
        ("surprise", lambda old: torch.zeros(2), "unexpected tensor surprise"),
        ("norm.weight", lambda old: torch.ones(5), r"norm.weight is \[5\]"),
        ("fuse.weight", lambda old: old.to(torch.int8), "fuse.weight is stored as torch.int8"),
        ("norm.weight", lambda old: old * torch.nan, "norm.weight has numbers"),
        ("token_ids", lambda old: old + 10**6, "token_ids"),
        ("token_ids", lambda old: -1 - old, "token_ids"),
        ("token_ids", lambda old: old.float(), "token_ids"),
    ],
)
def test_what_is_wrong_with_a_head_is_named(
    tiny: LoadedModel, folder: Path, tmp_path: Path, name: str, spoil: Callable[[Any], Tensor | None], says: str
) -> None:
    tensors = load_file(folder / "head.safetensors")
    spoilt = tensors | {name: spoil(tensors.get(name))}
    save_file({name: each for name, each in spoilt.items() if each is not None}, tmp_path / "head.safetensors")
    (tmp_path / "head.json").write_bytes(b"\xef\xbb\xbf" + (folder / "head.json").read_bytes())
    with pytest.raises(CorruptCheckpointError, match=says):
        load_head(str(tmp_path), tiny)


def test_rows_of_a_packed_output_head(tiny: LoadedModel, tiny_llama_path: Path) -> None:
    packed = load_model(EngineConfig(model=str(tiny_llama_path), dtype="bfloat16", device="cpu"))
    torch.testing.assert_close(output_rows(packed.decoder), output_rows(tiny.decoder).bfloat16())


@pytest.mark.parametrize("kind", ["int8", "int4", "fp8"])
def test_the_table_of_a_tied_head_that_is_quantized_on_a_gpu(
    tiny: LoadedModel, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pretended on a CPU: a GPU's layers keep their weights in another order than a CPU's."""
    pytest.importorskip("triton", reason="triton is for Linux")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    config = dataclasses.replace(tiny.model_config, vocab_size=144, tie_word_embeddings=True)
    decoder = Decoder(config, torch.float16, torch.device("cpu"))
    exact = decoder.lm_head.weight.normal_().clone()
    decoder.embed_tokens, (_, make) = None, makers(EngineConfig(quantization=kind), torch.device("cpu"))
    decoder.lm_head = make(decoder.lm_head)
    assert (output_rows(decoder) - exact).abs().max() < 0.2


@pytest.mark.skipif(native_kernels() is None, reason="no C++ compiler")
def test_on_a_cpu_all_but_the_first_matrix_is_in_8_bits(smollm_path: Path) -> None:
    """And what it foretells is what the head foretells that was trained, but for rounding."""
    load = {dtype: EngineConfig(model=str(smollm_path), device="cpu", dtype=dtype) for dtype in ("bfloat16", "float32")}
    rounded = load_head("smollm2-135m", load_model(load["bfloat16"]))
    exact = load_head("smollm2-135m", load_model(load["float32"]))
    in_8_bits = [name for name, module in rounded.named_modules() if isinstance(module, QuantizedLinear)]
    assert len(in_8_bits) == 5 and "output" in in_8_bits and isinstance(rounded.fuse, CPULinear)
    foretold = []
    for head in (rounded, exact):
        hidden = torch.randn(40, 576, generator=torch.Generator().manual_seed(0))
        foretold += [run_densely(head, hidden, list(range(1001, 1041)))[0]]
    similar = torch.cosine_similarity(*foretold, dim=-1)
    assert 0.99 < similar.min() < 0.999999


@pytest.mark.parametrize(
    "make", [partial(make_head, every=50), pytest.param(make_eagle3, marks=pytest.mark.slow)], ids=["ours", "eagle3"]
)
def test_a_head_beside_quantized_weights(smollm_path: Path, tmp_path: Path, make: Callable[..., object]) -> None:
    """Then the embedding table is the rows of the output head, in 8 bits, and has to be widened for the draft head."""
    plain = EngineConfig(model=str(smollm_path), num_kv_blocks=32, quantization="int8", kv_cache_dtype="int8")
    model = load_model(plain)
    table, ids = embedding_table(model.decoder), torch.tensor([0, 5, 49_000])
    torch.testing.assert_close(table[ids].float(), model.decoder.embed(ids).float(), rtol=1e-2, atol=1e-3)
    make(tmp_path, model)
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    drafting = plain.replace(speculative={"method": "draft_head", "model": str(tmp_path), **ALWAYS})
    texts = []
    for config in (plain, drafting):
        engine = Engine(config, model)
        engine.add_request(list(range(100, 120)), params, stream=False)
        texts += [serve_all(engine)]
        assert config is plain or sum(share.num_drafts for step in engine.steps for share in step.shares) > 0
        assert config is plain or isinstance(engine.speculator.proposer, DraftHeadProposer), "it failed"
    assert texts[0] == texts[1]


def serve_all(engine: Engine) -> list[list[int]]:
    done = []
    while engine.has_unfinished:
        done += [output.token_ids for output in engine.step()]
    return done
