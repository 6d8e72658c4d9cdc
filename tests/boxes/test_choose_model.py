"""`minillm bench choose-model`: the arithmetic, and the guide that prints its table."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from minillm.__main__ import app
from minillm.bench import choose_model
from minillm.core.errors import UnknownHardwareError
from minillm.model.arithmetic import find_model
from minillm.simulate.cost.hardware import CATALOGUE
from minillm.simulate.cost.placement import Placement, kv_blocks_that_fit

GUIDE = Path(__file__).parents[2] / "docs" / "gpu-box.md"


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine with a GPU the command is about that one."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)


def table(*options: str) -> str:
    return CliRunner().invoke(app, ["bench", "choose-model", *options], catch_exceptions=False).stdout


def test_the_guide_shows_what_the_command_prints() -> None:
    assert f"```\n{table()}```" in GUIDE.read_text()


def test_the_tokens_are_those_that_the_simulator_finds_room_for() -> None:
    report = choose_model.run(["l4", "h200"], at_least=1)
    for row in report["results"]:
        for card, fit in row.fits.items():
            if fit is not None:
                placement = Placement(weight_dtype=fit.weights)
                blocks = kv_blocks_that_fit(find_model(row.model), CATALOGUE[card], placement, 16)
                assert blocks == fit.tokens // 16


def test_the_widest_weights_that_leave_room_are_named() -> None:
    model, card = find_model("llama-3.1-8b"), choose_model.Card("small", 24e9)
    widest = choose_model.fit(model, card, at_least=1)
    assert widest is not None
    assert widest.weights == "bfloat16"
    narrower = choose_model.fit(model, card, at_least=widest.tokens + 1)
    assert narrower is not None
    assert narrower.weights == "int8"
    assert choose_model.fit(model, card, at_least=10**9) is None
    assert choose_model.fit(find_model("llama-3-70b"), card, at_least=1) is None


def test_a_card_at_hand_is_taken_by_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "NVIDIA Something New With A Long Name")
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda: (1, 24 * 2**30))
    assert choose_model.cards_of([]) == [choose_model.Card("NVIDIA Something New With A Long Name", 24 * 2**30)]
    lines = table().splitlines()
    assert any("NVIDIA Something New With A Long Name" in line for line in lines)
    assert len({len(line) for line in lines[-len(choose_model.SHAPES) :]}) == 1, "the columns do not line up"


def test_json_and_unknown_cards() -> None:
    report = json.loads(table("--hardware", "l4", "--json"))
    assert [card["name"] for card in report["cards"]] == ["l4"]
    assert {"model", "weight_bytes", "kv_bytes_per_1k", "fits"} == set(report["results"][0])
    with pytest.raises(UnknownHardwareError, match="did you mean 'l40s'"):
        choose_model.cards_of(["l40x"])
