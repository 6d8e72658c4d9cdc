"""Published EAGLE-3 heads: what they guess is what the published architecture does, and no token changes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from draft_heads import make_eagle3, run_eagle3_densely
from safetensors.torch import save_file
from tiny_llama import make_tiny
from torch import Tensor

from minillm import EngineConfig
from minillm.core.errors import ConfigError
from minillm.frontend.outputs import RequestOutput
from minillm.model.errors import CorruptCheckpointError, UnsupportedArchitectureError
from minillm.model.loader import LoadedModel, load_model
from minillm.observe.speculation import SpeculationSummary
from minillm.speculation.eagle3 import Eagle3Head
from minillm.speculation.eagle3_file import load_eagle3

from .test_draft_head import GREEDY, PROMPTS, Hinted, make_engine, serve
from .ways import WAYS

LAYERS = 7
"""So that a head reads by default after layers 2, 3 and 4."""


@pytest.fixture(scope="module")
def target_path(smollm_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("target"), smollm_path, "Llama", num_hidden_layers=LAYERS)


@pytest.fixture(scope="module")
def target(target_path: Path) -> LoadedModel:
    return load_model(EngineConfig(model=str(target_path), dtype="float32", device="cpu"))


@pytest.fixture(scope="module")
def folder(target: LoadedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("eagle3")
    make_eagle3(path, target)
    return path


@pytest.fixture(scope="module")
def without(target: LoadedModel) -> list[RequestOutput]:
    return serve(make_engine(target, None))


def read(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """config.json and the weights, which have their published names."""
    return json.loads((folder / "config.json").read_text()), torch.load(folder / "pytorch_model.bin", weights_only=True)


def save(folder: Path, hf: dict[str, Any], tensors: dict[str, Tensor | None]) -> None:
    torch.save({name: each for name, each in tensors.items() if each is not None}, folder / "pytorch_model.bin")
    (folder / "config.json").write_text(json.dumps(hf))


@pytest.mark.parametrize(
    ("depths", "fields"),
    [
        (None, {}),
        ([0, 3, LAYERS - 1], {"norm_before_residual": True}),
        ([1, 5], {"hidden_size": 48, "target_hidden_size": 64}),
        (None, {"architectures": ["LlamaForCausalLM"]}),
    ],
    ids=["as EAGLE's authors", "normed residual", "another size", "named after its target"],
)
def test_guesses_are_those_of_the_published_architecture(
    target: LoadedModel, target_path: Path, tmp_path: Path, depths: list[int] | None, fields: dict[str, Any]
) -> None:
    """Six deep, for prompts of several lengths in one pass: from transformers' hidden states, by plain PyTorch."""
    make_eagle3(tmp_path, target, depths, **fields)
    hf, weights = read(tmp_path)
    engine = make_engine(target, tmp_path, enable_prefix_caching=False)
    engine.speculator.length.config = engine.speculator.length.config.replace(k=6)
    for number, prompt in enumerate(PROMPTS):
        engine.add_request(prompt, GREEDY, request_id=str(number))
    engine.step()
    engine.speculator.propose(engine.scheduler.running)
    reference = transformers.AutoModelForCausalLM.from_pretrained(target_path, dtype=torch.float32)
    table = weights.get("embed_tokens.weight", reference.model.embed_tokens.weight.detach())
    different = set()
    for request in engine.scheduler.running:
        with torch.no_grad():
            prompt = torch.tensor([request.prompt_token_ids])
            streams = reference(prompt, output_hidden_states=True).hidden_states
        shown = torch.cat([streams[depth][0] for depth in depths or (2, LAYERS // 2, LAYERS - 3)], dim=-1)
        features, tokens = shown @ weights["fc.weight"].T, [*request.token_ids(1, request.num_known_tokens)]
        for guess in request.draft.token_ids:
            foretold = run_eagle3_densely(hf, weights, features, table[torch.tensor(tokens)])[0][-1:]
            scale = (foretold.pow(2).mean() + hf["rms_norm_eps"]).rsqrt()
            row = int((foretold * scale * weights["norm.weight"] @ weights["lm_head.weight"].T).argmax())
            assert guess == row + weights["d2t"][row]
            features, tokens = torch.cat((features, foretold)), [*tokens, guess]
            different.add(guess)
        assert len(request.draft) == 6
    assert len(different) >= 8


class HintedEagle3(Hinted):
    """As Hinted; what the cache should hold, by the published architecture."""

    def run_densely(self, states: Tensor, token_ids: list[int], first: int) -> tuple[Tensor, Tensor]:
        hf, weights = self.files
        embedded = self.head.embed_tokens[torch.tensor(token_ids)]
        return run_eagle3_densely(hf, weights, states @ weights["fc.weight"].T, embedded, first)


IN_TURN = ("tight, swapped", "large blocks")
"""Ways of `make test`. Slots and rows are those of our own heads, which meet every way there."""


@pytest.mark.parametrize("way", [pytest.param(way, marks=[pytest.mark.slow] * (way not in IN_TURN)) for way in WAYS])
def test_same_tokens_and_a_right_cache(
    target: LoadedModel, folder: Path, without: list[RequestOutput], way: str
) -> None:
    texts = [output.token_ids for output in without]
    HintedEagle3.files = read(folder)
    engine = make_engine(target, folder, texts, HintedEagle3, **WAYS[way])
    assert [output.token_ids for output in serve(engine)] == texts
    assert isinstance(engine.speculator.proposer.head, Eagle3Head)
    assert (engine.scheduler.num_preemptions > 0) == way.startswith("tight")
    summary = SpeculationSummary.of_steps(engine.steps)
    assert summary.num_rejected > 30 and sum(summary.accepted_at) > 30


def test_other_ways_to_write_the_same_head(target: LoadedModel, folder: Path, tmp_path: Path) -> None:
    """Tensors under layers.0, in safetensors, which go before a pickle; depths outside of eagle_config."""
    hf, tensors = read(folder)
    save(tmp_path, {**hf, "eagle_aux_hidden_state_layer_ids": [2, 3, 4]}, {})
    renamed = {name.replace("midlayer.", "layers.0."): each for name, each in tensors.items()}
    save_file(renamed, tmp_path / "model.safetensors")
    one, other = load_eagle3(folder, target), load_eagle3(tmp_path, target)
    assert one.depths == other.depths and other.token_ids[3] == 15
    torch.testing.assert_close(one.state_dict(), other.state_dict(), rtol=0, atol=0)


def test_all_tokens_named_in_their_order_need_no_table(target: LoadedModel, tmp_path: Path) -> None:
    make_eagle3(tmp_path, target)
    hf, tensors = read(tmp_path)
    vocab = target.model_config.vocab_size
    del hf["draft_vocab_size"], tensors["d2t"], tensors["t2d"]
    save(tmp_path, hf, {**tensors, "lm_head.weight": torch.ones(vocab, 64)})
    assert load_eagle3(tmp_path, target).token_ids.tolist() == list(range(vocab))


@pytest.mark.parametrize(
    ("name", "spoil", "says"),
    [
        ("fc.weight", lambda old: None, "missing tensor fc.weight"),
        ("fc.bias", lambda old: torch.zeros(64), "unexpected tensor fc.bias"),
        ("midlayer.self_attn.q_proj.weight", lambda old: old[:, :64], r"q_proj.weight is \[128, 64\], config"),
        ("norm.weight", lambda old: old * torch.nan, "norm.weight has numbers"),
        ("embed_tokens.weight", lambda old: torch.ones(9, 64), r"embed_tokens.weight is \[9, 64\]"),
        ("d2t", lambda old: None, "d2t .* is missing"),
        ("d2t", lambda old: old + 5, "d2t .* leads to tokens"),
        ("d2t", lambda old: -torch.arange(len(old)), "d2t .* more than once"),
        ("d2t", lambda old: old.float(), "d2t .* is .*float32"),
        ("t2d", lambda old: old[1:], r"t2d .* not \[4096\]"),
    ],
)
def test_what_is_wrong_with_its_tensors_is_named(
    target: LoadedModel, folder: Path, tmp_path: Path, name: str, spoil: Callable[[Any], Tensor | None], says: str
) -> None:
    hf, tensors = read(folder)
    save(tmp_path, hf, tensors | {name: spoil(tensors.get(name))})
    with pytest.raises(CorruptCheckpointError, match=says):
        load_eagle3(tmp_path, target)


@pytest.mark.parametrize(
    ("fields", "error", "says"),
    [
        ({"architectures": ["Eagle3Qwen3ForCausalLM"]}, UnsupportedArchitectureError, "made like a Llama"),
        ({"model_type": "qwen3"}, UnsupportedArchitectureError, "model_type 'qwen3'"),
        ({"num_hidden_layers": 2}, UnsupportedArchitectureError, "num_hidden_layers=2"),
        ({"eagle_config": {"norm_before_fc": True}}, UnsupportedArchitectureError, "norm_before_fc=True"),
        ({"quantization_config": {}}, UnsupportedArchitectureError, "quantization_config"),
        ({"target_hidden_size": 65}, ConfigError, "hidden_size=65, and .* has 64"),
        ({"vocab_size": 4095}, ConfigError, "vocab_size=4095, and .* has 4096"),
        ({"draft_vocab_size": 4097}, CorruptCheckpointError, "draft_vocab_size is 4097"),
        ({"eagle_aux_hidden_state_layer_ids": [1, 2, 8]}, ConfigError, r"layers \[1, 2, 8\].*there are 7"),
        ({"eagle_aux_hidden_state_layer_ids": [3, 2, 5]}, ConfigError, "have to ascend"),
        ({"eagle_aux_hidden_state_layer_ids": "1"}, CorruptCheckpointError, "list of numbers"),
        ({"rope_scaling": {"rope_type": "spiral"}}, UnsupportedArchitectureError, "spiral"),
        ({"eagle_config": []}, None, ""),
        ({"eagle_config": [1]}, CorruptCheckpointError, "eagle_config"),
    ],
)
def test_heads_that_do_not_fit(
    target: LoadedModel, folder: Path, tmp_path: Path, fields: dict[str, Any], error: type[Exception] | None, says: str
) -> None:
    hf, tensors = read(folder)
    save(tmp_path, {**hf, **fields}, tensors)
    if error is None:
        load_eagle3(tmp_path, target)
        return
    with pytest.raises(error, match=says):
        make_engine(target, tmp_path)


def test_a_pickle_that_would_run_something_is_refused(target: LoadedModel, folder: Path, tmp_path: Path) -> None:
    hf, tensors = read(folder)
    (tmp_path / "config.json").write_text(json.dumps(hf))
    for content in ({**tensors, "norm.weight": print}, [1], {"fc.weight": 1}):
        torch.save(content, tmp_path / "pytorch_model.bin")
        with pytest.raises(CorruptCheckpointError, match=r"pytorch_model\.bin"):
            load_eagle3(tmp_path, target)
    (tmp_path / "pytorch_model.bin").write_bytes(b"PK not a zip")
    with pytest.raises(CorruptCheckpointError, match=r"pytorch_model\.bin is damaged"):
        load_eagle3(tmp_path, target)
