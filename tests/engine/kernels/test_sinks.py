"""A sliding window with attention sinks: each backend that has them, with NaN or a huge number outside of both."""

import pytest
import torch
from kernels.ragged import SPANS, Ragged, Span

from minillm.core.errors import ConfigError
from minillm.kernels.attention.base import AttentionBackend
from minillm.kernels.attention.eager import EagerAttention
from minillm.kernels.attention.native import NativeAttention
from minillm.kernels.attention.sdpa import SDPAAttention, group_decodes
from minillm.kernels.attention.select import Demands, select_backend, survey, with_window
from minillm.kernels.attention.window import Window

CPU = torch.device("cpu")
HUGE = 3e3
WINDOWS = [(1, 1), (4, 3), (5, 4), (9, 1), (30, 17), (16, 100), (200, 4)]
"""(tokens, sinks)"""


@pytest.mark.parametrize("backend", [EagerAttention, SDPAAttention])
@pytest.mark.parametrize(("window", "sinks"), WINDOWS)
@pytest.mark.parametrize("spans", SPANS.values(), ids=SPANS)
def test_gathering_backends(spans: list[Span], window: int, sinks: int, backend: type[AttentionBackend]) -> None:
    assert Ragged(spans, window=window, sinks=sinks, poison=HUGE).error(backend) < 1e-5


@pytest.mark.skipif(NativeAttention.missing(CPU) is not None, reason="no C++ compiler here")
@pytest.mark.parametrize("kv_dtype", [None, torch.int8], ids=["bf16", "int8"])
@pytest.mark.parametrize(("window", "sinks"), WINDOWS)
def test_native(window: int, sinks: int, kv_dtype: torch.dtype | None) -> None:
    decodes = [(1, context) for context in (1, 5, 16, 17, 64, 65, 129, 400)]
    ragged = Ragged(decodes, (6, 2), 64, 16, torch.bfloat16, kv_dtype=kv_dtype, window=window, sinks=sinks)
    assert ragged.error(NativeAttention) < 1e-4


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
