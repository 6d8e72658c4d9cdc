"""The decoder against Hugging Face's, on tiny random models of every architecture and rope type."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from minillm.core.errors import ConfigError
from minillm.kernels.attention.base import AttentionMetadata
from minillm.kernels.attention.select import select_backend
from minillm.kernels.ops import Ops
from minillm.model.config import ModelConfig
from minillm.model.errors import CorruptCheckpointError
from minillm.model.loader import LoadedModel, choose_dtype, load_model
from minillm.policies.config import EngineConfig
from minillm.runner.kv_pool import KVPool

BLOCK_SIZE = 4
SHAPE: dict[str, Any] = dict(
    vocab_size=97,
    hidden_size=48,
    intermediate_size=80,
    num_hidden_layers=3,
    num_attention_heads=6,
    num_key_value_heads=2,
    max_position_embeddings=64,
)


def make_checkpoint(folder: Path, architecture: str = "Llama", **fields: Any) -> Any:
    """Write a tiny random model; return Hugging Face's own copy of it."""
    torch.manual_seed(1)
    config = getattr(transformers, f"{architecture}Config")(**{**SHAPE, **fields})
    model = getattr(transformers, f"{architecture}ForCausalLM")(config).eval().float()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # Hugging Face starts norms at 1 and biases at 0, which would hide a mix-up.
            parameter.normal_(1.0 if "norm" in name else 0.0, 0.3 if "norm" in name or "bias" in name else 0.15)
    model.save_pretrained(folder)
    return model


def load(folder: Path, dtype: str = "float32") -> LoadedModel:
    return load_model(EngineConfig(model=str(folder), dtype=dtype, device="cpu"))


class Cache:
    """A paged KV cache with scattered blocks, driven by hand."""

    def __init__(self, model: LoadedModel, num_sequences: int = 1) -> None:
        self.model = model
        self.pool = KVPool(model.model_config, 16 * num_sequences, 0, BLOCK_SIZE, model.dtype, model.device)
        shuffled = torch.randperm(16 * num_sequences, generator=torch.Generator().manual_seed(3))
        self.tables = shuffled.view(num_sequences, 16)

    def step(self, spans: list[tuple[list[int], int]], backend: str) -> torch.Tensor:
        """Logits of every new token. A span is (tokens of b so far, how many are computed)."""
        num_tokens = [len(tokens) - start for tokens, start in spans]
        positions = torch.cat([torch.arange(start, len(tokens)) for tokens, start in spans])
        owner = torch.arange(len(spans)).repeat_interleave(torch.tensor(num_tokens))
        query_starts = [sum(num_tokens[:b]) for b in range(len(spans) + 1)]
        context_lens = [len(tokens) for tokens, _ in spans]
        metadata = AttentionMetadata(
            query_starts=query_starts,
            context_lens=context_lens,
            query_starts_tensor=torch.tensor(query_starts, dtype=torch.int32),
            context_lens_tensor=torch.tensor(context_lens, dtype=torch.int32),
            block_tables=self.tables[: len(spans)],
            slot_mapping=self.tables[owner, positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE,
            num_decodes=sum(n == 1 for n in num_tokens),
            block_size=BLOCK_SIZE,
        )
        token_ids = torch.tensor([token for tokens, start in spans for token in tokens[start:]])
        with torch.inference_mode():
            attention = select_backend(backend, self.model.device)(metadata)
            return self.model.decoder(token_ids, positions, self.pool.layers, attention, Ops())


def reference(hf: Any, tokens: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return hf(torch.tensor([tokens])).logits[0]


def tokens_of(length: int, seed: int = 0) -> list[int]:
    return torch.randint(97, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


LLAMA3 = dict(
    rope_type="llama3",
    rope_theta=500.0,
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=24,
)
YARN = dict(rope_type="yarn", rope_theta=800.0, factor=4.0, original_max_position_embeddings=16)
EXPERTS = dict(num_experts=6, num_experts_per_tok=2, moe_intermediate_size=24)
VARIANTS = [
    ("Llama", {}),
    ("Llama", dict(tie_word_embeddings=True, num_key_value_heads=6)),
    ("Llama", dict(attention_bias=True, mlp_bias=True, head_dim=16)),
    ("Llama", dict(rope_parameters=dict(rope_type="linear", factor=4.0, rope_theta=300.0))),
    ("Llama", dict(rope_parameters=dict(rope_type="dynamic", factor=4.0, rope_theta=300.0))),
    ("Llama", dict(rope_parameters=LLAMA3)),
    ("Mistral", dict(sliding_window=None, num_key_value_heads=1)),
    ("Mistral", dict(sliding_window=48, head_dim=12)),
    ("Qwen2", dict(tie_word_embeddings=True)),
    ("Qwen2", dict(rope_parameters=YARN)),
    ("Qwen2", dict(rope_parameters=dict(YARN, mscale=0.7, mscale_all_dim=0.3, beta_fast=20.0))),
    ("Qwen2", dict(rope_parameters=dict(YARN, attention_factor=1.3, truncate=False))),
    ("Qwen3", dict(head_dim=16)),
    ("Qwen3", dict(head_dim=12, attention_bias=True, tie_word_embeddings=True)),
    ("Qwen3Moe", EXPERTS),
    ("Qwen3Moe", dict(EXPERTS, norm_topk_prob=True, decoder_sparse_step=2, head_dim=16)),
    ("Qwen3Moe", dict(EXPERTS, num_experts_per_tok=1, mlp_only_layers=[0, 2])),
]


@pytest.mark.parametrize("backend", ["eager", "sdpa"])
@pytest.mark.parametrize(("architecture", "fields"), VARIANTS, ids=lambda value: str(value)[:60])
def test_logits_match_hugging_face(tmp_path: Path, architecture: str, fields: dict, backend: str) -> None:
    hf = make_checkpoint(tmp_path, architecture, **fields)
    tokens = tokens_of(45)
    expected = reference(hf, tokens)
    cache = Cache(load(tmp_path))
    # A prompt, a second chunk of it, then one token at a time.
    computed = [cache.step([(tokens[:end], start)], backend) for start, end in [(0, 21), (21, 42), (42, 43), (43, 44)]]
    assert (torch.cat(computed) - expected[:44]).abs().max() < 1e-4


@pytest.mark.parametrize("backend", ["eager", "sdpa"])
def test_mixed_batch_matches_each_alone(tmp_path: Path, backend: str) -> None:
    hf = make_checkpoint(tmp_path, "Qwen3", head_dim=16)
    sequences = [tokens_of(length, seed) for seed, length in enumerate((5, 60, 7, 23, 40))]
    cache = Cache(load(tmp_path), len(sequences))
    cache.step([(tokens[:start], 0) for tokens, start in zip(sequences, (4, 59, 6, 0, 20)) if start > 0][:3], backend)
    cache.step([(s[:1], 0) for s in sequences[:3]] + [(sequences[3][:10], 0), (sequences[4][:20], 0)], backend)
    logits = cache.step(list(zip(sequences, (4, 59, 6, 10, 20))), backend)
    expected = [reference(hf, s)[start:] for s, start in zip(sequences, (4, 59, 6, 10, 20))]
    assert (logits - torch.cat(expected)).abs().max() < 1e-4


def test_old_config_style_means_the_same(tmp_path: Path) -> None:
    new = {"architectures": ["LlamaForCausalLM"], **SHAPE, "rope_parameters": LLAMA3}
    scaling = {key: value for key, value in LLAMA3.items() if key not in ("rope_theta", "rope_type")}
    for name in ("rope_type", "type"):
        old = {**new, "rope_theta": 500.0, "rope_scaling": {**scaling, name: "llama3"}}
        del old["rope_parameters"]
        rope = ModelConfig.from_hf(old).rope
        assert rope == ModelConfig.from_hf(new).rope


@pytest.mark.parametrize(("architecture", "fields"), [("Llama", {}), ("Qwen2", {}), ("Qwen3Moe", EXPERTS)])
def test_bfloat16_is_close_to_float32(tmp_path: Path, architecture: str, fields: dict) -> None:
    hf = make_checkpoint(tmp_path, architecture, **fields).bfloat16().float()
    tokens = tokens_of(30)
    expected = reference(hf, tokens)
    cache = Cache(load(tmp_path, "bfloat16"))
    logits = torch.cat([cache.step([(tokens[:29], 0)], "sdpa"), cache.step([(tokens, 29)], "sdpa")])
    close = (logits.float() - expected).abs().amax(dim=1) < 0.03 * expected.abs().max()
    assert close.float().mean() > (0.8 if fields else 0.99), "rounding may choose another expert"


def test_missing_extra_and_misshapen_tensors_are_named(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, "Qwen3Moe", **EXPERTS, mlp_only_layers=[1])
    file, expert = tmp_path / "model.safetensors", "model.layers.2.mlp.experts"
    tensors = load_file(file)
    del tensors["model.layers.1.mlp.up_proj.weight"], tensors["model.layers.2.mlp.gate.weight"]
    tensors[f"{expert}.6.down_proj.weight"] = tensors.pop(f"{expert}.5.down_proj.weight")
    tensors["model.layers.7.surprise"] = torch.zeros(2)
    tensors["model.norm.weight"] = torch.zeros(5)
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(CorruptCheckpointError) as error:
        load(tmp_path)
    for missing in ("model.layers.1.mlp.up_proj", f"{expert}.5.down_proj", "model.layers.2.mlp.gate"):
        assert f"missing tensor {missing}.weight" in str(error.value)
    for unexpected in ("model.layers.7.surprise", f"{expert}.6.down_proj.weight"):
        assert f"unexpected tensor {unexpected}" in str(error.value)
    assert "model.norm.weight is [5]" in str(error.value)


@pytest.mark.parametrize(("architecture", "fields"), [("Llama", {}), ("Qwen3Moe", EXPERTS)])
def test_dummy_weights_need_only_a_config(tmp_path: Path, architecture: str, fields: dict) -> None:
    make_checkpoint(tmp_path, architecture, **fields)
    (tmp_path / "model.safetensors").unlink()
    config = EngineConfig(model=str(tmp_path), dtype="float32", device="cpu", load_format="dummy")
    first, second = (Cache(load_model(config)).step([(tokens_of(9), 0)], "sdpa") for _ in range(2))
    assert first.isfinite().all() and first.std() > 0
    assert torch.equal(first, second)


def test_a_checkpoint_in_a_dtype_that_is_not_computed_in() -> None:
    model_config = ModelConfig.from_hf({"architectures": ["LlamaForCausalLM"], **SHAPE, "torch_dtype": "float64"})
    with pytest.raises(ConfigError, match="the checkpoint is in float64: choose dtype=float32"):
        choose_dtype("auto", model_config, torch.device("cuda"))
    assert choose_dtype("float16", model_config, torch.device("cuda")) is torch.float16


def test_cuda_without_a_gpu() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(ConfigError, match="no GPU"):
        load_model(EngineConfig(device="cuda"))
