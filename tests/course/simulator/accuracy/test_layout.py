"""What rows say about accelerators, in each of their ways to say it."""

from pathlib import Path

import pytest
from simulator.accuracy.made_points import DENSE, MIXTURE, POOLS, points_of

from course.simulator.accuracy import layout
from course.simulator.accuracy.engines import card_of, shape_of
from course.simulator.accuracy.layout import ServerShape, ServingLayout, deployment_of, machine_of
from course.simulator.accuracy.points import Refusal, Ways
from course.simulator.accuracy.recipes import RecipeLimits, published


def ways(tp: int, dp: int | None, moe_tp: int | None, moe_ep: int | None) -> Ways:
    return Ways(tp, None, dp, moe_tp, moe_ep, batch=None)


@pytest.mark.parametrize(
    ("stated", "machine"),
    [
        pytest.param(ways(8, None, None, None), ServerShape(8), id="dense"),
        pytest.param(ways(4, 1, 4, 1), ServerShape(4), id="experts in slices"),
        pytest.param(ways(8, 1, 1, 8), ServerShape(8, 1, 8), id="whole experts"),
        pytest.param(ways(8, None, 2, 4), ServerShape(8, 1, 4), id="slices of experts in groups"),
        pytest.param(ways(1, 8, 1, 8), ServerShape(1, 8, 8), id="attention data-parallel"),
        pytest.param(ways(1, 4, 4, 1), ServerShape(1, 4, 1), id="attention data-parallel, experts in slices"),
        pytest.param(ways(2, 2, 4, 1), ServerShape(2, 2, 1), id="both"),
        pytest.param(ways(1, None, 4, 1), ServerShape(1, 4, 1), id="ranks left out"),
        pytest.param(ways(2, None, 4, 1), ServerShape(2, 2, 1), id="ranks left out, two accelerators each"),
        pytest.param(ways(64, 1, 8, 8), ServerShape(8, 1, 8), id="squared"),
        pytest.param(ways(4, 1, 2, 2), ServerShape(2, 1, 2), id="squared, small"),
        pytest.param(ways(1, 16, 4, 4), ServerShape(1, 4, 4), id="squared ranks"),
        pytest.param(ways(4, 4, None, 16), ServerShape(4, 1, 4), id="squared as vLLM's are"),
        pytest.param(ways(4, None, 2, 2), ServerShape(4, 1, 2), id="not squared: not InferenceX"),
    ],
)
def test_a_server_by_its_sizes(stated: Ways, machine: ServerShape) -> None:
    assert machine_of(stated) == machine
    assert machine.gpus == machine.tp * machine.dp


def test_sizes_that_are_no_server() -> None:
    with pytest.raises(Refusal, match="contradict"):
        machine_of(ways(4, 1, 8, 1))
    with pytest.raises(Refusal, match="pipeline"):
        machine_of(Ways(4, 2, None, None, None, None))


def layout_of(folder: Path, row: dict) -> ServingLayout:
    (point,) = points_of(folder, row)
    return deployment_of(point, shape_of(point.model), card_of(point.system))


def test_pools_as_they_are_stated(tmp_path: Path) -> None:
    assert layout_of(tmp_path, DENSE) == ServingLayout(ServerShape(1))
    pools = layout_of(tmp_path, POOLS)
    assert pools == ServingLayout(ServerShape(4, 1, 4), 2, ServerShape(1, 4, 4), 1)
    assert pools.ranks == 2


def test_pools_that_only_a_recipe_tells(tmp_path: Path) -> None:
    """In one form rows leave out how many servers there are; in another tp is the number of all accelerators."""
    unstated = {"prefill_num_workers": "", "decode_num_workers": "", "id": "dsr1_tp4_0_ep4_0_1"}
    sizes = {"prefill_tp_size": 4, "prefill_attention_dp_size": 1, "decode_tp_size": 32, "decode_moe_tp_size": 8}
    row = {**POOLS, **unstated, **sizes, "backend": "sglang", "concurrency": 512}
    limits = RecipeLimits(slots=2112, kv_tokens=3122380, budget=16384)
    expected = ServingLayout(ServerShape(1, 32, 32), 1, ServerShape(1, 4, 4), 4, limits)
    assert layout_of(tmp_path, row) == expected
    assert layout_of(tmp_path, {**row, "prefill_tp_size": 48, "decode_tp_size": 48}) == expected
    aggregated = {**MIXTURE, **{name: row[name] for name in ("backend", "model_path", "system", "precision")}}
    aggregated |= {"id": "dsr1_tp48_ep1_1", "tp_size": 48, "moe_tp_size": 48, "concurrency": 512}
    assert layout_of(tmp_path, aggregated) == expected
    with pytest.raises(Refusal, match=layout.NO_WORKERS):
        layout_of(tmp_path, {**row, "concurrency": 513})
    with pytest.raises(Refusal, match=layout.MANY_RECIPES):
        layout_of(tmp_path, {**row, "prefill_tp_size": 1, "decode_tp_size": 1})


def test_ranks_that_only_a_recipe_tells(tmp_path: Path) -> None:
    """vLLM's rows are written alike with and without data-parallel attention. One recipe has it in fp4, from 256 open
    requests on."""
    row = {**MIXTURE, "attention_dp_size": 2, "moe_tp_size": 1, "moe_ep_size": 4}
    for fields, machine in (
        ({"concurrency": 256}, ServerShape(2, 1, 2)),
        ({"concurrency": 128, "precision": "fp4"}, ServerShape(2, 1, 2)),
        ({"concurrency": 256, "precision": "fp4"}, ServerShape(1, 2, 2)),
    ):
        assert layout_of(tmp_path, {**row, **fields}) == ServingLayout(machine)


def test_rows_that_call_tensor_parallelism_data_parallel(tmp_path: Path) -> None:
    """The recipe has one server with tp 4 that computes prompts, and two that write answers."""
    ranks = {"prefill_tp_size": 1, "prefill_attention_dp_size": 4, "prefill_moe_tp_size": 4, "prefill_moe_ep_size": 1}
    row = {**POOLS, **ranks, "backend": "sglang", "concurrency": 32}
    row |= {name.replace("prefill", "decode"): size for name, size in ranks.items()}
    assert layout_of(tmp_path, row) == ServingLayout(ServerShape(4), 2, ServerShape(4), 1, RecipeLimits(budget=8192))


def test_models_that_draft_are_refused(tmp_path: Path) -> None:
    drafted = {**MIXTURE, "model_path": "deepseek-ai/DeepSeek-R1", "backend": "trtllm", "tp_size": 8, "moe_tp_size": 8}
    drafted |= {"backend_version": "1.2.0rc6.post3", "id": "dsr1_b200_c4_tp8_ep1_1"}
    with pytest.raises(Refusal, match=layout.DRAFTS):
        layout_of(tmp_path, drafted)
    assert layout_of(tmp_path, {**drafted, "backend_version": "1.2.0rc6.post2"}) == ServingLayout(ServerShape(8))
    # A table of which it is known that it has no such rows.
    assert layout_of(tmp_path, {**drafted, "id": "dsv3_b200_agg_cfg75"}) == ServingLayout(ServerShape(8))
    both = {
        **POOLS,
        "prefill_num_workers": "",
        "decode_num_workers": "",
        "id": "dsr1_tp4_0_ep4_0_1",
        "backend": "sglang",
    }
    both |= {"system": "b200_sxm", "prefill_tp_size": 4, "decode_tp_size": 8, "concurrency": 64}
    with pytest.raises(Refusal, match=layout.MAY_DRAFT):
        layout_of(tmp_path, both)


def test_recipes_have_no_measurement() -> None:
    for (shape, card, *_), recipes in published().items():
        assert shape_of(shape) == shape and card_of(card) == card
        assert all(recipe.decode.count and recipe.decode.gpus >= recipe.decode.expert_groups for recipe in recipes)
