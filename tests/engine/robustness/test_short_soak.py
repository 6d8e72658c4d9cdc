"""A few seconds of the soak, always the same ones; and the soak itself: does it see what goes wrong?"""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from robustness import life, toggles
from robustness.soak import GROWTH_MB, LifeFailed, Soak, growth
from robustness.toggles import Models, make_heads

from minillm.core.block_manager import BlockManager
from minillm.core.request import Request
from minillm.core.timeline import Timeline
from minillm.policies.config import EngineConfig
from minillm.runner.sampler import Sampler
from minillm.strict_model import default_of

LIVES, STEPS = 8, 40


@pytest.fixture(scope="module")
def soak(tiny_llama_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Soak:
    folder = tmp_path_factory.mktemp("soak")
    models = Models(tiny_llama_path, folder / "head", folder / "eagle3", {})
    make_heads(models)
    return Soak(models, seed=20)


def test_everything_holds_whatever_is_switched_on_and_whatever_breaks(soak: Soak) -> None:
    for number in range(LIVES):
        soak.life(number, STEPS)
    tally = soak.tally
    assert tally.lives + tally.refused_configs == LIVES and tally.steps > LIVES * STEPS / 2
    # It has seen what it is there to see.
    assert {"length", "abort", "error"} <= set(tally.endings) and tally.faults
    assert tally.verified and tally.refusals


def test_a_life_repeats_exactly(soak: Soak) -> None:
    tallies = []
    for _ in range(2):
        again = Soak(soak.models, soak.seed)
        again.life(1, 20)
        tallies.append(again.tally)
    assert tallies[0] == tallies[1] and tallies[0].steps


def leak(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault: the last block of each table stays taken."""
    free = BlockManager.free

    def free_most(manager: BlockManager, request: Request) -> None:
        if table := manager.tables.get(request.request_id):
            del table.block_ids[-1:]
        free(manager, request)

    monkeypatch.setattr(BlockManager, "free", free_most)


def misdate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens are handed over before they were computed."""
    deliver = Timeline.deliver
    monkeypatch.setattr(Timeline, "deliver", lambda self, now, count: deliver(self, self.arrival - 1, count))


def miswrite(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second best token is taken for the best."""
    launch = Sampler.launch

    def second_best(self: Sampler, logits: torch.Tensor, *args: object) -> object:
        logits = logits.scatter(1, logits.argmax(dim=1, keepdim=True), -10.0)
        return launch(self, logits, *args)

    monkeypatch.setattr(Sampler, "launch", second_best)


def plain_config(config: EngineConfig) -> EngineConfig:
    names = ("speculative", "quantization", "kv_cache_dtype", "sliding_window", "attention_sinks", "int4_group_size")
    return config.replace(dtype="float32", **{name: default_of(EngineConfig, name) for name in names})


@pytest.mark.parametrize(
    ("break_it", "says"),
    [(leak, "holders|block"), (misdate, "phases overlap"), (miswrite, "not the greedy output")],
)
def test_it_notices_and_says_how_to_repeat_it(
    break_it: Callable, says: str, soak: Soak, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without drafts and rounding, so that this very fault is found, and none that follows from it.
    monkeypatch.setattr(life, "random_config", lambda rng, models: plain_config(toggles.random_config(rng, models)))
    break_it(monkeypatch)
    with pytest.raises(LifeFailed, match=rf"(?s)({says}).*--seed 20 --life \d+ --steps {STEPS}"):
        for number in range(6):
            Soak(soak.models, 20).life(number, STEPS)


def test_memory_that_goes_on_growing_is_told_from_warming_up() -> None:
    warms_up = [500.0 + 40 * min(i, 10) for i in range(30)]
    leaks = [500.0 + 10 * i for i in range(30)]
    assert growth(warms_up) == 0
    assert growth(leaks) > GROWTH_MB
    assert growth([500.0]) == 0
