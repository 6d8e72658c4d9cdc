"""The KV pool leaves room for what drafts: its weights, and its own KV cache."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from draft_heads import make_head

from minillm import Engine, EngineConfig
from minillm.core.errors import ConfigError
from minillm.model.loader import LoadedModel
from minillm.runner import memory_budget
from minillm.runner.memory_budget import FREE_FRACTION
from minillm.speculation import make

FREE = 4_000_000
WEIGHTS = 1_500_000
"""Bytes of a draft model, as far as the fake reading goes."""
TOKEN = 512
"""Bytes of keys and values of a token: 2 layers x (key, value) x 2 heads x 16 dims x 4."""
BLOCK = 4
DRAFT_MODEL = {"method": "draft_model", "model": "small"}


@pytest.fixture
def engine(tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Engine]:
    """Makes engines on a machine with FREE bytes, until a draft model is loaded."""

    def make_engine(speculative: dict[str, Any] | None, **fields: Any) -> Engine:
        taken = []
        monkeypatch.setattr(make, "load_model", lambda config: taken.append(WEIGHTS) or tiny)
        monkeypatch.setattr(memory_budget, "free_bytes", lambda device: FREE - sum(taken))
        shape = dict(block_size=BLOCK, max_num_seqs=64, max_model_len=128)
        config = EngineConfig(model=tiny.name, dtype="float32", device="cpu", speculative=speculative, **shape)
        return Engine(config.replace(**fields), tiny)

    return make_engine


def test_the_pool_takes_what_is_free_without_drafts(engine: Callable[..., Engine]) -> None:
    for speculative in (None, {"method": "ngram"}):
        assert engine(speculative).runner.num_kv_blocks == int(FREE_FRACTION * FREE // (BLOCK * TOKEN))


def test_a_draft_models_weights_and_blocks_are_left_room_for(engine: Callable[..., Engine]) -> None:
    """Its pool has as many blocks, here of the same size."""
    found = engine(DRAFT_MODEL)
    num_blocks = found.runner.num_kv_blocks
    assert num_blocks == int(FREE_FRACTION * (FREE - WEIGHTS) // (2 * BLOCK * TOKEN))
    assert found.speculator.proposer.runner.num_kv_blocks == num_blocks


def test_a_draft_heads_cache_is_left_room_for(engine: Callable[..., Engine], tiny: LoadedModel, tmp_path: Path) -> None:
    make_head(tmp_path, tiny)
    found = engine({"method": "draft_head", "model": str(tmp_path)}, max_num_seqs=20)
    cache = found.speculator.proposer.cache
    left = FREE_FRACTION * FREE - cache.numel() * cache.element_size()
    assert found.runner.num_kv_blocks == int(left // (BLOCK * TOKEN)) < 20 * 128 // BLOCK


def test_a_pool_that_leaves_no_room_for_drafts_is_refused(engine: Callable[..., Engine]) -> None:
    num_blocks = int(0.8 * FREE // (BLOCK * TOKEN))
    assert engine(None, num_kv_blocks=num_blocks).runner.num_kv_blocks == num_blocks
    with pytest.raises(ConfigError, match="with what drafts and steps need beside it, would take"):
        engine(DRAFT_MODEL, num_kv_blocks=num_blocks)
