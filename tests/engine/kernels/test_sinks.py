"""A sliding window with attention sinks: who has them, what is read. test_backends.py and test_native.py compare."""

import pytest
import torch
from kernels.ragged import Ragged

from minillm.core.errors import ConfigError
from minillm.kernels.attention.sdpa import SDPAAttention, group_decodes
from minillm.kernels.attention.select import Demands, select_backend, survey, with_window
from minillm.kernels.attention.window import Window

CPU = torch.device("cpu")


def test_only_the_window_is_gathered() -> None:
    metadata = Ragged([(1, 400), (1, 380)], (2, 1), block_size=4, window=20, sinks=3).metadata
    (group,) = group_decodes(metadata)
    assert len(group.pages) == 2 * (1 + 5), "one block of sinks, five or less of the window"


def test_the_window_belongs_to_the_configuration_not_to_the_batch() -> None:
    assert with_window(SDPAAttention, Window()) is SDPAAttention
    windowed = with_window(SDPAAttention, Window(5, 2))
    ragged, plain = Ragged([(1, 30)], window=5, sinks=2, poison=1.0), Ragged([(1, 30)])
    assert plain.metadata.window is None
    assert windowed(plain.metadata).metadata.window == 5 and windowed.__name__ == "SDPAAttention"
    assert ragged.error(windowed) < 1e-5


def test_who_has_sinks() -> None:
    choices = survey(CPU, Demands(sinks=True))
    assert choices["eager"] is None and choices["sdpa"] is None
    with pytest.raises(ConfigError, match="'triton' cannot run here"):
        select_backend("triton", CPU, Demands(sinks=True))
    assert "attention_sinks=0" in choices["triton"] or "not on cpu" in choices["triton"]


@pytest.mark.parametrize("sinks", [0, 1, 4, 9])
@pytest.mark.parametrize("size", [1, 3, 8, 21])
@pytest.mark.parametrize("chunk", [1, 2, 5, 16])
def test_most_blocks_is_the_most_there_ever_are(size: int, sinks: int, chunk: int) -> None:
    window = Window(size, sinks)
    held = [len(window.live_blocks(at, at + chunk, 4)) for at in range(200)]
    assert max(held) == window.most_blocks(chunk, 4)
