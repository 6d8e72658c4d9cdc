"""A decode step's launches, counted without a GPU: what a layer is made of, and that their bytes are the step's."""

from collections import Counter
from dataclasses import replace

import pytest

pytest.importorskip("triton", reason="triton is for Linux")
from course.measure.launches import H100, decode_launches, main, table
from minillm.model.arithmetic import ModelBytes, ModelSize
from minillm.model.checkpoints import load_config, resolve
from minillm.model.config import ModelConfig

DENSE = {"add_rms_norm": 2, "linear": 4, "rotate_and_write": 1, "attend_tiles": 1, "silu_mul": 1}
SPARSE = {"add_rms_norm": 2, "linear": 2, "rotate_and_write": 1, "attend_tiles": 1, "route": 1, "add_shares": 1}
SPARSE |= {"multiply_by_experts": 1, "multiply_by_experts, SwiGLU": 1}
SPLIT = {"combine_splits": 1}
"""With few requests, several programs share the keys of each."""


def shape(model: str, num_layers: int) -> ModelConfig:
    whole = ModelConfig.from_hf(load_config(resolve(model)))
    sparse = type(whole.sparse_layers)(layer for layer in whole.sparse_layers if layer < num_layers)
    return replace(whole, num_layers=num_layers, sparse_layers=sparse)


@pytest.mark.parametrize(
    ("model", "batch", "layer"),
    [
        ("qwen3-0.6b", 1, DENSE | SPLIT),
        ("llama-3-8b", 32, DENSE),
        ("qwen3-30b-a3b", 1, SPARSE | SPLIT),
        ("qwen3-30b-a3b", 64, SPARSE),
    ],
)
def test_a_layer_is_so_many_launches_and_nothing_is_copied(model: str, batch: int, layer: dict[str, int]) -> None:
    two, three = (Counter(launch.name for launch in decode_launches(shape(model, n), batch, 512)) for n in (2, 3))
    assert three - two == layer
    around = (two - Counter({name: 2 * count for name, count in layer.items()})).total()
    assert around <= 15, "inputs, last norm, head, sampling"


@pytest.mark.parametrize(("kind", "weight_bytes"), [("int8", 1), ("fp8", 1), ("int4", 5 / 8)])
def test_quantized_matrices_are_read_once_by_our_kernel(kind: str, weight_bytes: float) -> None:
    """Of int4 each group of 32 has a scale and an offset of 2 bytes each."""
    config = shape("llama-3-8b", 1)
    launches = decode_launches(config, 1, 512, kind)
    products = [launch for launch in launches if launch.name.startswith("multiply_few")]
    sizes = ModelSize.of(config)
    head_bytes = sizes.head_params  # int4's is in int8
    assert len(products) == 5 and not {"linear", "silu_mul"} & {launch.name for launch in launches}
    assert [launch.name for launch in products].count("multiply_few, SwiGLU") == 1
    read = sum(launch.bytes for launch in products)
    assert 1 <= read / (sizes.layer_params * weight_bytes + head_bytes) < 1.02
    assert all(launch.programs >= H100.num_processors for launch in products), "each multiprocessor has something to do"


@pytest.mark.parametrize(("model", "batch"), [("llama-3-8b", 1), ("llama-3-8b", 64), ("qwen3-30b-a3b", 8)])
def test_their_bytes_are_those_that_the_step_must_move_and_little_more(model: str, batch: int) -> None:
    config = shape(model, 4)
    launches = decode_launches(config, batch, 1024)
    needed = ModelBytes.of(config, "bfloat16").step([1024] * batch)
    logits = batch * config.vocab_size * 2
    assert needed <= sum(launch.bytes for launch in launches) - 2 * logits < 1.06 * needed
    assert f"{len(launches)}" in table(launches).splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["lama"], "no model 'lama'"),
        (["qwen3-0.6b", "--batch", "0"], "--batch is from 1 to 1024"),
        (["qwen3-0.6b", "--batch", "-1"], "--batch is from 1"),
        (["qwen3-0.6b", "--batch", "2000"], "not 2000"),
        (["qwen3-0.6b", "--context", "0"], "--context is from 1"),
        (["qwen3-0.6b", "--context", "99999999"], "--context is from 1"),
    ],
)
def test_arguments_that_mean_no_step_are_refused(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    told = capsys.readouterr().err
    assert says in told and "load_format" not in told
