"""The model in the tab, its C++ compiled for this machine: the engine's numbers, and the engine's scheduler over it."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from integrity import check_engine
from native_decoder import NativeDecoder, compiled
from safetensors.torch import load_file, save_file
from tiny_gguf import TOKENS, write_gguf
from transformers import LlamaConfig, LlamaForCausalLM
from wasm_decoder import NodeDecoder

from course.tab.chats import Chats
from course.tab.model import build, pack
from course.tab.model.in_tab import TabModel
from course.tab.model.runner import TabRunner
from course.tab.model.tokenizer import BytePairTokenizer
from minillm import LLM, Engine, EngineConfig, SamplingParams
from minillm.core.errors import ConfigError, PromptTooLongError, RequestError
from minillm.core.timeline import WallClock
from minillm.kernels.quantization import quantize_int4, quantize_rows
from minillm.model.checkpoints import load_tokenizer, resolve
from minillm.runner.draws import uniform

COMPILER = shutil.which("g++") or shutil.which("clang++")
NODE = shutil.which("node") or shutil.which("nodejs")
PROMPTS = (
    "The capital of France",
    "a",
    "one two three four five six seven eight nine ten eleven twelve",
    "The capital",
)
GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
ROOM = dict(num_kv_blocks=64, max_model_len=256, max_num_seqs=4, max_num_batched_tokens=16)


@pytest.fixture(scope="module")
def checkpoint(lively_llama_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random model in bfloat16, as real ones are."""
    folder = tmp_path_factory.mktemp("bfloat16")
    shutil.copytree(lively_llama_path, folder, dirs_exist_ok=True)
    weights = {name: tensor.bfloat16() for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="module")
def engine(checkpoint: Path) -> LLM:
    """The course's engine with the same rounded weights and the same KV cache."""
    fields = dict(attention_backend="eager", fused_kernels=False)
    return LLM(model=str(checkpoint), dtype="bfloat16", quantization="int4", **fields, **ROOM)


@pytest.fixture(scope="module")
def decoder(checkpoint: Path, engine: LLM, tmp_path_factory: pytest.TempPathFactory) -> NativeDecoder:
    if COMPILER is None:
        pytest.skip("no C++ compiler on this machine")
    folder = tmp_path_factory.mktemp("decoder")
    pack.pack(checkpoint, folder / "weights.bin")
    vocab_size = engine.engine.loaded_model.model_config.vocab_size
    return NativeDecoder(compiled(COMPILER, folder), (folder / "weights.bin").read_bytes(), vocab_size)


def in_tab(decoder: NativeDecoder | NodeDecoder, engine: LLM, **fields: object) -> Engine:
    config, clock = EngineConfig(**{**ROOM, **fields}), WallClock()
    return Engine.on_runner(config, TabRunner(decoder, config, clock), clock, model=engine.engine.model)


def outputs(engine: Engine, prompts: tuple[str, ...], params: SamplingParams) -> list[list[int]]:
    names = [engine.add_request(prompt, params) for prompt in prompts]
    found = {}
    while engine.has_unfinished:
        found |= {output.request_id: output.token_ids for output in engine.step() if output.finished}
    check_engine(engine)
    return [found[name] for name in names]


def test_weights_are_rounded_as_the_engine_rounds_them() -> None:
    weight = torch.randn(40, 96, generator=torch.Generator().manual_seed(1)).bfloat16().float()
    weight[3, 32:64] = 0
    numbers, scales = quantize_int4(weight, 32)
    packed, bits = pack.quantize_int4(weight.numpy())
    half = numbers.view(40, 3, 2, 16).numpy()
    assert np.array_equal(packed, half[:, :, 0] | half[:, :, 1] << 4)
    assert np.array_equal(bits, scales.view(torch.int16).numpy().view(np.uint16))
    for ours, theirs in zip(pack.quantize_int8(weight.numpy()), quantize_rows(weight, torch.int8)):
        assert np.array_equal(ours, theirs.numpy())


def test_a_gguf_file_is_packed_as_the_folder_that_it_is_converted_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINILLM_HOME", str(tmp_path / "home"))
    shape = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4)
    fields = dict(num_key_value_heads=2, vocab_size=len(TOKENS), tie_word_embeddings=True)
    file = write_gguf(tmp_path / "model.gguf", LlamaForCausalLM(LlamaConfig(**shape, **fields)), "llama")
    tokenizer = pack.pack_gguf(file, tmp_path / "of_gguf.bin")
    folder = resolve(str(file))
    pack.pack(folder, tmp_path / "of_folder.bin")
    assert (tmp_path / "of_gguf.bin").read_bytes() == (tmp_path / "of_folder.bin").read_bytes()
    library = load_tokenizer(folder)
    for text in ("abba", "a<turn>ab <end>", "naïve"):
        assert BytePairTokenizer(json.dumps(tokenizer)).encode(text) == library.encode(text, add_special_tokens=False)


def test_requests_that_share_steps_get_the_engines_tokens(decoder: NativeDecoder, engine: LLM) -> None:
    expected = [output.token_ids for output in engine.generate(list(PROMPTS), GREEDY)]
    assert outputs(in_tab(decoder, engine), PROMPTS, GREEDY) == expected


@pytest.mark.skipif(NODE is None, reason="no Node.js on this machine: it runs WebAssembly in a browser's place")
def test_webassembly_gives_the_engines_tokens(checkpoint: Path, engine: LLM, tmp_path: Path) -> None:
    expected = [output.token_ids for output in engine.generate(list(PROMPTS), GREEDY)]
    pack.pack(checkpoint, tmp_path / "weights.bin")
    shutil.copy(checkpoint / "tokenizer.json", tmp_path)
    with NodeDecoder(str(NODE), tmp_path) as decoder:
        serving = in_tab(decoder, engine)
        assert outputs(serving, PROMPTS, GREEDY) == expected
        drawn = [outputs(serving, PROMPTS[:1], GREEDY.replace(temperature=0.8, seed=seed))[0] for seed in (7, 7, 8)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_tokens_are_drawn_by_the_engines_random_numbers(decoder: NativeDecoder, engine: LLM) -> None:
    serving, temperature, seed = in_tab(decoder, engine), 0.8, 7
    serving.add_request(PROMPTS[0], GREEDY.replace(temperature=temperature, seed=seed), request_id="drawn")
    drawn = []
    while serving.has_unfinished:
        [output] = serving.step()
        weights = np.exp((decoder.logits[0] - decoder.logits[0].max()) / temperature, dtype=np.float64).cumsum()
        target = uniform(seed, len(drawn)) * weights[-1]
        drawn.append(output.token_ids[-1])
        assert abs(drawn[-1] - int(np.searchsorted(weights, target, side="right"))) <= 1  # but for its last digits
    assert len(set(drawn)) > len(drawn) / 2


def test_a_requests_logits_do_not_depend_on_its_company(decoder: NativeDecoder, engine: LLM) -> None:
    rows: dict[bool, list[bytes]] = {}
    for is_alone in (True, False):
        serving = in_tab(decoder, engine, enable_prefix_caching=False, max_num_batched_tokens=7 if is_alone else 64)
        serving.add_request(PROMPTS[2], GREEDY, request_id="watched")
        for prompt in () if is_alone else PROMPTS[:2]:
            serving.add_request(prompt, GREEDY)
        rows[is_alone] = []
        while "watched" in serving.core.requests:
            serving.step()
            if serving.steps[-1].shares[0].request_id == "watched" and len(decoder.logits):
                rows[is_alone].append(decoder.logits[0].tobytes())
    assert len(rows[True]) == len(rows[False]) == GREEDY.max_tokens and rows[True] == rows[False]


def test_few_blocks_a_cached_prefix_and_an_abort_change_no_token(decoder: NativeDecoder, engine: LLM) -> None:
    prompts = tuple(f"{PROMPTS[2] * 2} {each}" for each in ("sun", "moon", "sea", "sun"))
    expected = outputs(in_tab(decoder, engine, enable_prefix_caching=False), prompts, GREEDY)
    tight = in_tab(decoder, engine, num_kv_blocks=7)
    gone = tight.add_request(prompts[0], GREEDY)
    for _ in range(6):
        tight.step()
    tight.abort(gone)
    assert outputs(tight, prompts, GREEDY) == expected
    assert any(step.preempted for step in tight.steps)
    assert any(request.num_cached_tokens for request in tight.recent_requests)


def until_told(chats: Chats) -> tuple[dict[str, str], list[dict]]:
    """What was said, and the requests that ended, once none is left."""
    said: dict[str, str] = {}
    ended: list[dict] = []
    while True:
        news = chats.go_on()
        said |= {name: said.get(name, "") + text for name, text in news["said"].items()}
        ended += news["ended"]
        if not news["said"] and not news["in_flight"]:
            return said, ended


def test_conversations_go_on_from_their_own_blocks(
    decoder: NativeDecoder, engine: LLM, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = BytePairTokenizer((checkpoint / "tokenizer.json").read_text("utf-8"))
    model = TabModel(tokenizer, engine.engine.loaded_model.model_config, frozenset())
    chats = Chats({"max_num_seqs": 2}, (decoder, model))
    for chat, text in enumerate(PROMPTS[:3]):
        assert chats.say(chat, text, 20, 0.0) == chat
    with pytest.raises(RequestError, match="still being answered"):
        chats.say(0, "and then?", 20, 0.0)
    with pytest.raises(ConfigError, match="wait for the answers"):
        chats.change({"max_num_seqs": 4})
    first, ended = until_told(chats)
    assert [each["i"] for each in ended] == [0, 1, 2] and all(len(each["tokens"]) == 20 for each in ended)
    assert all(sorted(each["borders"]) == each["borders"] and len(each["borders"]) == 6 for each in ended)
    assert ended[2]["borders"][1] >= ended[0]["tokens"][-1]  # the third waited for one of two slots

    number = chats.say(0, "and then?", 20, 0.0)
    monkeypatch.setattr("course.tab.chats.STEPS_S", 0.001)  # a step or two: there's an answer left to stop
    chats.go_on()
    [request] = chats._serving.engine.core.requests.values()
    asked = [("user", PROMPTS[0]), ("assistant", first["0"]), ("user", "and then?")]
    prompt = tokenizer.apply_chat_template([{"role": role, "content": content} for role, content in asked])
    assert request.prompt_token_ids == tokenizer.encode(prompt)
    chats.stop(number)
    _, ended = until_told(chats)
    assert [(each["i"], str(each["reason"])) for each in ended] == [(number, "abort")]
    assert chats.change({"max_num_seqs": 4})["slots"] == 4
    with pytest.raises(PromptTooLongError):
        chats.say(1, "far " * 600, 20, 0.0)
    chats.forget(1)
    with pytest.raises(ConfigError, match="not to be changed here"):
        chats.change({"model": "another"})


def test_what_it_cannot_do_it_refuses(decoder: NativeDecoder, engine: LLM, tmp_path: Path) -> None:
    for fields in (dict(sliding_window=8), dict(num_kv_blocks=None), dict(enable_chunked_prefill=False)):
        with pytest.raises(ConfigError, match="runner in a tab"):
            in_tab(decoder, engine, **fields)
    config = engine.engine.loaded_model.model_config
    with pytest.raises(pack.NotPackedError, match="qkv_bias"):
        pack.shape_of(type(config)(**{**{n: getattr(config, n) for n in config.__slots__}, "qkv_bias": True}))


def test_the_committed_module_is_made_of_this_source(tmp_path: Path) -> None:
    built = json.loads(build.BUILT.read_text("utf-8"))
    assert {name: built[name] for name in build.made_of()} == build.made_of(), "python -m course.tab.model.build"
    if build.compiler() == built["compiler"]:  # another one writes other code
        build.build(tmp_path / "decoder.wasm")
        assert (tmp_path / "decoder.wasm").read_bytes() == build.COMPILED.read_bytes()
