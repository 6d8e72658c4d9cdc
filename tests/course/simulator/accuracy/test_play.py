"""Rows simulated, and errors told."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from simulator.accuracy.made_points import DENSE, MIXTURE, POOLS, points_of, write_points

from course.simulator.accuracy import play
from course.simulator.accuracy.check import check
from course.simulator.accuracy.cli import accuracy
from course.simulator.accuracy.engines import Waits
from course.simulator.accuracy.play import Plan, forecast, num_requests, plan_of, scaled, workload_of
from course.simulator.accuracy.report import GROUPS, as_text, report, spread
from course.simulator.cost.hardware import find_hardware
from course.simulator.cost.models import find_model
from course.simulator.cost.placement import Placement
from course.simulator.errors import SimulationError

SHORT = {**DENSE, "osl": 32, "concurrency": 4}


def plan(folder: Path, row: dict) -> Plan:
    (point,) = points_of(folder, row)
    return plan_of(point)


def test_more_open_requests_take_longer(tmp_path: Path) -> None:
    few = forecast(plan(tmp_path, SHORT))
    many = forecast(plan(tmp_path, {**SHORT, "concurrency": 64}))
    assert 0 < few.tpot_s < many.tpot_s < 0.1
    assert 0 < few.ttft_s < many.ttft_s < 1


def test_waves_that_are_not_played_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three of ten waves of a hundred open requests are played, and come within a few percent of ten."""
    many = plan(tmp_path, {**MIXTURE, "concurrency": 100})
    assert [num_requests(open_requests, many) for open_requests in (1, 20, 60, 200)] == [10, 200, 300, 600]
    quick = forecast(many)
    monkeypatch.setattr(play, "ENOUGH", 1000)
    whole = forecast(many)
    assert quick.tpot_s == pytest.approx(whole.tpot_s, rel=0.01)
    assert quick.ttft_s == pytest.approx(whole.ttft_s, rel=0.05)


def test_lengths_are_drawn_only_for_inferencex(tmp_path: Path) -> None:
    drawn = workload_of(plan(tmp_path, MIXTURE), 50)
    assert len({request.output_tokens for request in drawn}) > 30
    assert all(820 <= request.output_tokens <= 1024 for request in drawn)
    fixed = workload_of(plan(tmp_path, DENSE), 50)
    assert {request.num_prompt_tokens for request in fixed} == {512}
    assert {request.output_tokens for request in fixed} == set(range(61, 68))  # near 64: no two waves end in one step
    assert {request.num_prompt_tokens % play.BLOCK for request in workload_of(plan(tmp_path, POOLS), 50)} == {0}


def test_a_batch_that_nothing_follows(tmp_path: Path) -> None:
    """SGLang's benchmark of one batch: every request waits for a part of all prompts, and no answer for another's."""
    batch = {**DENSE, "backend": "sglang", "concurrency": 64, "isl": 2048}
    alone, loop = forecast(plan(tmp_path, batch)), forecast(plan(tmp_path, {**batch, "isl": 2047}))
    assert alone.ttft_s > 2 * loop.ttft_s and alone.tpot_s < loop.tpot_s
    assert len(workload_of(plan(tmp_path, batch), 64)) == 64


def test_a_server_that_looks_for_requests_now_and_then(tmp_path: Path) -> None:
    """Requests of all waves but the first wait for up to 30 steps, and come in groups: fewer steps compute prompts, and
    these take longer."""
    row = {**MIXTURE, "backend": "sglang", "concurrency": 16, "moe_tp_size": 2}
    patient = plan(tmp_path, row)
    assert (patient.waits, plan(tmp_path, {**row, "system": "h200_sxm"}).waits) == (Waits(look_every=30), Waits())
    eager, late = forecast(replace(patient, waits=Waits())), forecast(patient)
    assert late.tpot_s < eager.tpot_s
    assert 8 * late.tpot_s < late.ttft_s - eager.ttft_s < 17 * late.tpot_s


def test_prompts_that_are_held_for_others(tmp_path: Path) -> None:
    """TensorRT-LLM holds the first prompt for 20 steps. Others come meanwhile, and are computed with it."""
    row = {**MIXTURE, "backend": "trtllm", "model_path": "meta-llama/Llama-3.1-70B", "moe_tp_size": 1, "moe_ep_size": 1}
    few, many = (plan(tmp_path, {**row, "concurrency": number}) for number in (4, 64))
    assert few.waits == many.waits == Waits(hold_steps=20)
    assert plan(tmp_path, {**row, "osl": 8192}).waits == plan(tmp_path, {**row, "tp_size": 8}).waits == Waits()
    for held in (few, many):
        at_once, late = forecast(replace(held, waits=Waits())), forecast(held)
        assert late.tpot_s < at_once.tpot_s
        assert 12 < (late.ttft_s - at_once.ttft_s) / late.tpot_s < 20


def test_prompts_that_wait_until_every_rank_has_one(tmp_path: Path) -> None:
    """TensorRT-LLM's balance of data-parallel ranks: half of the timeout where requests are few, less with many."""
    row = {**MIXTURE, "backend": "trtllm", "model_path": "openai/gpt-oss-120b", "tp_size": 1, "moe_tp_size": 1}
    row |= {"attention_dp_size": 4, "moe_ep_size": 4}
    few, many = (plan(tmp_path, {**row, "concurrency": number}).waits.for_ranks for number in (4, 1024))
    assert 3 < many < 10 < few < 25.1
    assert plan(tmp_path, {**row, "tp_size": 4, "attention_dp_size": 1}).waits == Waits()


def test_requests_of_other_servers_are_theirs(tmp_path: Path) -> None:
    """A batch of 40 and 320 requests, with the ranks left out: eight equal servers."""
    assert plan(tmp_path, {**DENSE, "batch_size": 40, "concurrency": 320}).concurrency == 40
    assert plan(tmp_path, {**MIXTURE, "batch_size": 2, "concurrency": 8}).concurrency == 8


def test_prompts_that_come_again_are_known(tmp_path: Path) -> None:
    row = {**DENSE, "backend_version": "0.12.0", "precision": "fp8", "isl": 8000}
    few, many = plan(tmp_path, row), plan(tmp_path, {**row, "concurrency": 128})
    assert (few.fresh, many.fresh, plan(tmp_path, DENSE).fresh) == (92, 0, None)
    computed, known = forecast(few), forecast(replace(few, fresh=0))
    assert computed.ttft_s > 2 * known.ttft_s


def test_the_first_requests_wait_for_a_compiler(tmp_path: Path) -> None:
    """SGLang without a warm-up: when the first prompts are more than one step takes. A tenth of all requests wait."""
    row = {**MIXTURE, "backend": "sglang", "backend_version": "", "model_path": "deepseek-ai/DeepSeek-R1"}
    row |= {"precision": "fp4", "tp_size": 8, "moe_tp_size": 8, "measured": "2025-11-20", "osl": 8192}
    compiles = [plan(tmp_path, {**row, "concurrency": number}).compiles for number in (16, 32)]
    assert compiles == [False, True] and not plan(tmp_path, {**row, "measured": "2026-02-01"}).compiles
    late = plan(tmp_path, {**row, "concurrency": 32})
    constants = play.profile_of(late.profile, late.shape).for_weights("fp4").constants
    waits = forecast(late).ttft_s - forecast(replace(late, compiles=False)).ttft_s
    assert waits == pytest.approx(constants.compile_s / 10, rel=1e-6) and waits > 1


def test_the_first_requests_meet_a_cold_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before InferenceX's clients warmed servers up, a tenth of all requests came to one that was cold."""
    warm, cold = (plan(tmp_path, {**MIXTURE, "measured": day}) for day in ("2026-01-21", "2025-11-20"))
    assert not warm.is_cold and cold.is_cold and not plan(tmp_path, {**POOLS, "measured": "2025-11-20"}).is_cold
    known = play.profile_of(cold.profile, cold.shape)
    by_weights = {"fp8": {**known.by_weights["fp8"], "cold_s": 2.0}}
    monkeypatch.setattr(play, "profile_of", lambda *_: known.model_copy(update={"by_weights": by_weights}))
    waits = forecast(cold).ttft_s - forecast(replace(cold, is_cold=False)).ttft_s
    assert waits == pytest.approx(2.0 / 10, rel=1e-6)


def test_prompts_are_tokenized_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By one process for all of a server's ranks, before the scheduler sees them; pools have frontends enough."""
    ranks = plan(tmp_path, {**MIXTURE, "tp_size": 1, "attention_dp_size": 2, "moe_tp_size": 1, "moe_ep_size": 2})
    assert [each.sharers for each in (plan(tmp_path, DENSE), ranks, plan(tmp_path, POOLS))] == [1, 2, 0]
    one = replace(plan(tmp_path, SHORT), concurrency=1)
    known = play.profile_of(one.profile, one.shape)
    at_once, slow = (known.constants.model_copy(update={"tokenize_s": each}) for each in (0.0, 1e-4))
    monkeypatch.setattr(play, "profile_of", lambda *_: known.model_copy(update={"constants": at_once}))
    fast = forecast(one)
    monkeypatch.setattr(play, "profile_of", lambda *_: known.model_copy(update={"constants": slow}))
    assert forecast(one).ttft_s - fast.ttft_s == pytest.approx(512 * 1e-4, rel=1e-6)


def test_requests_wait_for_a_slot(tmp_path: Path) -> None:
    """A decode pool with half as many slots as requests are open: most wait for another's answer, and only then have
    their first token."""
    free = replace(plan(tmp_path, {**POOLS, "osl": 64, "isl": 1000, "concurrency": 4}), slots=None)
    roomy, tight = forecast(free), forecast(replace(free, slots=1))
    answer = 64 * roomy.tpot_s
    assert roomy.ttft_s < answer and tight.tpot_s <= roomy.tpot_s
    assert 0.4 * answer < tight.ttft_s - roomy.ttft_s < 1.2 * answer
    dense = plan(tmp_path, {**DENSE, "backend": "trtllm", "backend_version": "1.0.0rc3"})
    assert dense.slots == 7 and plan(tmp_path, DENSE).slots is None


def test_memory_for_the_cache(tmp_path: Path) -> None:
    """Shares of all memory, of that without working memory, or of what is left; a state takes some per request."""
    rules = {name: plan(tmp_path, {**DENSE, "backend": name}) for name in ("vllm", "sglang", "trtllm")}
    assert [each.memory.of for each in rules.values()] == ["all", "static", "rest"]
    ranks = {name: play.deployment_of_rank(each, each.layout.server, 8, 8) for name, each in rules.items()}
    blocks = {name: rank.num_kv_blocks for name, rank in ranks.items()}
    assert blocks["sglang"] < blocks["trtllm"] and all(number > 10_000 for number in blocks.values())
    assert ranks["vllm"].config.max_num_seqs == 256
    model, placement = find_model("qwen3.5-397b-a17b"), Placement(4, "fp8", "fp8")
    assert 256 * placement.fixed_kv_bytes(model) == pytest.approx(256 * model.fixed_bytes / 4)
    assert placement.fixed_kv_bytes(find_model("llama-3.1-8b")) == 0
    assert placement.fixed_kv_bytes(find_model("gpt-oss-120b")) > 0


def test_pools_are_scaled_down(tmp_path: Path) -> None:
    assert scaled(4, 32, 10) == (1, 8)
    assert scaled(8, 9, 1) == (7, 8)
    assert scaled(3, 4, 1) == (3, 4)
    assert scaled(4, 4, 1.25) == (4, 4)  # fewer would lose the fifth request
    assert scaled(2, 3, 1200) == (1, 1)  # too many requests for more
    found = forecast(plan(tmp_path, {**POOLS, "osl": 64, "isl": 1000}))
    assert 0.002 < found.tpot_s < 0.03 and 0.02 < found.ttft_s < 1


def test_a_rank_waits_for_the_others_tokens(tmp_path: Path) -> None:
    """Experts compute all ranks' tokens; idle ranks bring none."""
    row = {
        **MIXTURE,
        "attention_dp_size": 4,
        "tp_size": 1,
        "moe_tp_size": 1,
        "moe_ep_size": 4,
        "osl": 64,
        "measured": "",
    }
    busy = forecast(plan(tmp_path, {**row, "concurrency": 64}))
    alone = forecast(plan(tmp_path, {**row, "concurrency": 4}))
    assert busy.tpot_s > 1.3 * alone.tpot_s
    model = find_model("minimax-m2.5")
    ranks, slices = Placement(4, expert_parallel=True, dp=4), Placement(4, expert_parallel=True)
    assert ranks.kv_bytes_per_token(model) == 4 * slices.kv_bytes_per_token(model)
    assert ranks.weight_bytes(model) - slices.weight_bytes(model) == 3 * 2 * model.attention_params


def test_prompts_in_steps_of_their_own_take_longer(tmp_path: Path) -> None:
    mixed = plan(tmp_path, {**MIXTURE, "concurrency": 16})
    assert forecast(replace(mixed, separates=True)).tpot_s > forecast(mixed).tpot_s


def test_layers_that_see_less_read_less() -> None:
    """In tokens: a window beside full layers, a state, and the picks of an indexer."""
    seen = {name: find_model(name).seen(8000, 1, "bfloat16") for name in ("llama-3.1-8b", "gpt-oss-120b", "glm-5")}
    assert seen["llama-3.1-8b"] == 8000 and seen["gpt-oss-120b"] == 8128
    assert 2048 < seen["glm-5"] < 3000
    state = find_model("qwen3.5-397b-a17b")
    assert state.seen(8000, 1, "bfloat16") - 8000 == 2 * state.fixed_bytes / state.kv_bytes_per_token("bfloat16")
    assert state.growing_layers == 15 and state.scored(100, 10) == 100
    windowed = find_model("gpt-oss-120b")
    assert windowed.scored(10_000, 10) == 10_000 + 1280
    # A context shorter than the window: those layers see all of it, no more.
    assert windowed.seen(100, 1, "bfloat16") == 200 and windowed.scored(100, 10) == 200


def test_gpt_oss_multiplies_four_bits_with_eight() -> None:
    blackwell, hopper = find_hardware("b200"), find_hardware("h200")
    model, other = find_model("gpt-oss-120b"), find_model("deepseek-v3")
    assert [model.multiplied_in("fp4", each) for each in (blackwell, hopper)] == ["fp8", "fp4"]
    assert other.multiplied_in("fp4", blackwell) == "fp4" and model.multiplied_in("bfloat16", blackwell) == "bfloat16"


def test_attention_of_a_mixture_in_four_bits_is_read_and_stored_wide() -> None:
    model = find_model("deepseek-v3")
    attention = model.attention_params * (2 - 0.5625)
    narrow = (model.layer_params + model.idle_params) * 0.5625 + 2 * model.head_params + 2 * model.small_params
    assert model.read_bytes("fp4", math.inf) == pytest.approx(narrow + attention)
    assert Placement(8, "fp4", dp=8).weight_bytes(model) - Placement(1, "fp4").weight_bytes(model) == pytest.approx(
        7 * 2 * model.attention_params
    )


REFUSED = {
    "model: its shape": {**DENSE, "model_path": "acme/nonesuch"},
    "system: not in": {**DENSE, "system": "abacus"},
    "precision: neither": {**DENSE, "precision": "int3"},
    "backend: neither": {**DENSE, "backend": "ollama"},
    "parallelism: the sizes": {**MIXTURE, "tp_size": 3},
    "pipeline stages": {**DENSE, "pp_size": 2},
    "concurrency: neither": {**DENSE, "concurrency": ""},
    "memory: the weights": {**MIXTURE, "model_path": "moonshotai/Kimi-K2.5", "moe_tp_size": 2},
    "memory: the KV cache": {**DENSE, "model_path": "Qwen/Qwen3-32B", "isl": 40_000, "precision": "bf16"},
    "parallelism: heads": {**DENSE, "tp_size": 3},
    "disaggregated: how many": {**POOLS, "decode_num_workers": "", "concurrency": 513},
}


def test_every_row_has_a_forecast_or_a_reason(tmp_path: Path) -> None:
    points = points_of(tmp_path, SHORT, *REFUSED.values(), {**SHORT, "id": "again", "silicon_tpot_ms": 14})
    progress: list[float] = []
    checked = check(points, workers=1, progress=lambda _, share: progress.append(share))
    assert [point.name for point in points] == [each.point.name for each in checked]
    for reason, each in zip(REFUSED, checked[1:-1]):
        assert each.refused.startswith(reason), each
    assert progress[-1] == 1
    found = report(checked)
    assert (found["points"], found["done"]) == (13, 2) and sum(found["refused"].values()) == 11
    assert [group["by"] for group in found["groups"]] == list(GROUPS)
    overall, last = found["groups"][0], found["groups"][-1]
    assert (overall["value"], overall["n"], last["value"]) == ("all", 2, "dense/1")
    # The second is measured to take twice as long: its error follows from the first one's.
    first = checked[0].tpot_error
    assert checked[-1].tpot_error == pytest.approx((100 + first) / 2 - 100)
    assert overall["tpot"]["median_pct"] == pytest.approx((first + checked[-1].tpot_error) / 2, abs=0.01)
    assert set(overall["ttft"]) == {"median_pct", "mape_pct", "within_15_pct"}
    assert "11 not simulated:" in as_text(found)


def test_figures_of_errors() -> None:
    assert spread([-10, 20, 30]) == {"median_pct": 20, "mape_pct": 20, "within_15_pct": 33.33}
    assert spread([5, math.nan]) == {"median_pct": 5, "mape_pct": 5, "within_15_pct": 100}
    assert spread([]) == spread([math.nan]) == {"median_pct": None, "mape_pct": None, "within_15_pct": None}


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = write_points(tmp_path / "points.csv", [SHORT, {**SHORT, "system": "abacus"}, SHORT])
    for out in ("rows.csv", "rows.json"):
        accuracy(points=table, sample=2, workers=1, out=tmp_path / out, as_json=True)
        assert json.loads(capsys.readouterr().out)["done"] == 2
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert [row["kind_tp"] for row in rows] == ["dense/1"] * 2 and rows[0]["predicted_tpot_ms"] > 0
    assert (tmp_path / "rows.csv").read_text().count("\n") == 3
    accuracy(points=table, workers=1)
    assert "2 of 3 points simulated" in capsys.readouterr().out
    with pytest.raises(SimulationError, match="either --points FILE or --log DIR"):
        accuracy()
