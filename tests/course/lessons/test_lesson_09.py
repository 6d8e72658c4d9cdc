"""Lesson 09: rounding by hand, phases in pairs, the gate, zeros. The rest on a tiny model and the simulator."""

from collections.abc import Iterator

import pytest
import torch
from asserting import refuses_garbage, shows

from course.lab.lab import Lab
from course.lessons.lesson_06.roofline import Roof
from course.lessons.lesson_06.shapes import LLAMA_70B
from course.lessons.lesson_06.steps import Dot
from course.lessons.lesson_09 import (
    claims,
    findings,
    formats_roofline,
    gate,
    phases,
    rounding,
    sim_70b,
    sparsity,
    steps,
    traffic,
)
from course.lessons.lesson_09 import rounding_pictures as pictures
from course.lessons.lesson_09.checks import checks
from course.lessons.lesson_09.formats import FORMATS, PLAIN, Shelf, formats_table
from course.lessons.lesson_09.phases import Pair
from course.lessons.lesson_09.sparsity import Timed
from course.measure.quality import Cost, Floors, Quality
from course.simulator.cost.hardware import find_hardware
from minillm.core.errors import ConfigError
from minillm.core.timeline import PHASES

ROOF = Roof("made", bandwidth=10e9, flops=100e9, source="by hand")


@pytest.fixture
def shelf(tiny_lab: Lab) -> Iterator[Shelf]:
    shelf = Shelf(tiny_lab)
    yield shelf
    shelf.close()


# ---------------------------------------------------------------- rounding


def test_rounding_by_hand() -> None:
    row = torch.tensor([0.0, 0.1, 0.45, 1.0])
    assert rounding.rounded(row, 2, 4).tolist() == pytest.approx([0, 0, 1 / 3, 1])
    assert rounding.rounded(row, 2, 2).tolist() == pytest.approx([0, 0.1, 0.45, 1.0])
    low, step = rounding.grids(row, 2, "whole row")
    assert (low.item(), step.item()) == (0, pytest.approx(1 / 3))
    assert rounding.error(row, 2, 4) == pytest.approx((0.01 + (0.45 - 1 / 3) ** 2) ** 0.5 / row.norm().item())
    assert rounding.bits_per_weight(4, 32, 576) == 5 and rounding.bits_per_weight(4, 64, 576) == 4.5
    assert rounding.bits_per_weight(8, "whole row", 64) == 8.5


def test_fewer_bits_and_larger_groups_are_worse(tiny_lab: Lab) -> None:
    weights = rounding.load_matrix(tiny_lab).weights
    errors = [rounding.error(weights, bits, 32) for bits in rounding.BITS]
    assert errors == sorted(errors) and errors[-1] > 10 * errors[0]
    assert rounding.error(weights, 4, 32) < rounding.error(weights, 4, "whole row")
    with pytest.raises(LookupError, match="no such"):
        rounding.load_matrix(tiny_lab, "such")


def test_a_matrix_on_a_grid_is_recognized_and_shaken_off_it() -> None:
    on_grid = rounding.Matrix("made", rounding.rounded(torch.randn(16, 64, generator=torch.Generator()), 4, 32))
    assert on_grid.share_on_grid > 0.99 and rounding.error(on_grid.weights, 4, 32) < 1e-5
    fresh = on_grid.shaken()
    assert fresh.share_on_grid < 0.5 and rounding.error(fresh.weights, 4, 32) > 0.02
    table = str(pictures.errors_table(on_grid))
    assert "4 bits, groups of 32" in table and "0.00%" in table


# ---------------------------------------------------------------- formats and phases


def test_formats_take_turns_on_their_own_weights(shelf: Shelf) -> None:
    table = str(formats_table(shelf))
    assert all(name in table for name in FORMATS)
    scene = traffic.long_answer(shelf.lab)
    runs = shelf.turns(scene.workload, (PLAIN, "int8", "KV int8"), **scene.fields)
    assert [run.config.quantization for run in (runs[PLAIN][0], runs["int8"][0])] == [None, "int8"]
    assert runs["KV int8"][0].config.kv_cache_dtype == "int8" and shelf.of("KV int8") is shelf.lab
    assert all(len(run.finished) == 1 for each in runs.values() for run in each)


def test_one_lab_can_change_its_weights(tiny_lab: Lab) -> None:
    work = traffic.long_answer(tiny_lab).workload
    for fields in ({}, {"quantization": "int8"}, {"quantization": "int4", "int4_group_size": 64}, {}):
        run = tiny_lab.run(work, **fields)
        assert len(run.finished) == 1 and tiny_lab.engine(**fields).model.quantization == fields.get("quantization")


def test_memory_for_four_is_memory_for_more_in_8_bits(shelf: Shelf) -> None:
    scene = traffic.short_of_memory(shelf.lab)
    slots = {}
    for name in (PLAIN, "KV int8", "int8"):
        run = shelf.run(name, scene.workload, **scene.fields)
        assert len(run.finished) == len(scene.workload.arrivals) and not run.snapshot.num_preemptions
        slots[name] = max(step.num_running for step in run.steps)
    assert slots[PLAIN] == slots["int8"] == traffic.MEMORY_SLOTS and slots["KV int8"] > 1.5 * slots[PLAIN]


def made_pairs(**ratios: float) -> dict[str, Pair]:
    """A second of each phase before; each phase's ratio is its name's, else 1."""
    before = dict.fromkeys(PHASES, 1.0)
    after = {phase: ratios.get(phase, 1.0) for phase in PHASES}
    found = {p: Pair(p, (before[p], 1.01 * before[p]), (after[p], 1.01 * after[p])) for p in PHASES}
    return {**found, "E2E": Pair("E2E", (5.0, 5.05), (sum(after.values()), 1.01 * sum(after.values())))}


def test_a_gain_beyond_the_bytes_is_not_called_clear() -> None:
    pair = Pair("decode", (1.0, 1.1), (0.2, 0.25), least=0.4)
    assert not pair.is_clear and not pair.is_faster
    assert Pair("decode", (1.0, 1.1), (0.5, 0.55), least=0.4).is_faster


def test_a_format_without_a_kernel_here_is_left_out(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    def engine(name: str) -> object:
        if name == "int4":
            raise ConfigError("int4 wants another GPU")

    other = Shelf(shelf.lab)
    monkeypatch.setattr(other, "engine", engine)
    assert other.why_not("int4") == "int4 wants another GPU" and other.why_not("int8") is None
    assert other.usable(steps.WEIGHTS) == [PLAIN, "int8"]


def test_a_pair_is_clear_only_if_its_runs_are_apart() -> None:
    assert Pair("decode", (1.0, 1.1, 1.2), (0.6, 0.7, 0.8)).is_faster
    overlap = Pair("decode", (1.0, 1.1, 1.2), (0.6, 0.7, 1.05))
    assert not overlap.is_clear
    assert not Pair("decode", (1.0, 1.0), (0.97, 0.98)).is_clear
    assert Pair("decode", (1.0,), (1.5,)).is_slower and Pair("queue", (0.0,), (0.0,)).ratio == 1


def test_bets_are_scored_by_the_pairs() -> None:
    for ratio in (0.5, 1.0, 1.6):
        assert findings.decode_gain(made_pairs(decode=ratio)).answer == pytest.approx(1 / ratio)
    fast, slow = made_pairs(decode=0.2), made_pairs(prefill=2.0)
    assert phases.who_gained(fast, slow).answer == phases.BOTH[True, False]
    assert phases.who_gained(slow, fast).answer == phases.BOTH[False, True]


# ---------------------------------------------------------------- steps


def made_dot(batch: int, itl: float, dtype: str = "bfloat16") -> Dot:
    return Dot(LLAMA_70B.stored_as(weight_dtype=dtype), batch, 20, (itl, 1.01 * itl, 0.99 * itl))


SWEEP = {
    PLAIN: [made_dot(1, 0.020), made_dot(8, 0.030), made_dot(32, 0.060)],
    "int8": [made_dot(1, 0.0125, "int8"), made_dot(8, 0.031, "int8"), made_dot(32, 0.090, "int8")],
}


def test_speedups_and_where_they_end() -> None:
    assert steps.speedup(SWEEP, "int8") == pytest.approx(1.6)
    assert steps.break_even(SWEEP, "int8") == 8 and steps.slowdown(SWEEP, "int8") == pytest.approx(1.5)
    assert steps.break_even({**SWEEP, "int8": SWEEP["int8"][:1]}, "int8") is None
    table = str(steps.promises_table(SWEEP, ROOF))
    assert "×1.60" in table and f"×{SWEEP[PLAIN][0].bytes / SWEEP['int8'][0].bytes:.2f}" in table
    assert not steps.is_restless(SWEEP)
    restless = Dot(LLAMA_70B, 1, 20, (0.02, 0.05, 0.2))
    assert steps.is_restless({**SWEEP, "int8": [restless, *SWEEP["int8"]]})
    too_good = [SWEEP["int8"][0], made_dot(8, 0.010, "int8"), SWEEP["int8"][2]]
    assert steps.is_restless({**SWEEP, "int8": too_good})


# ---------------------------------------------------------------- the gate


def scored(perplexity: float, kl: float, same: float, speed: float = 50.0, weights: int = 200) -> gate.Scored:
    return gate.Scored(Quality(perplexity, kl, same, 0, 0), Cost(weights, 10, 10 * 2048, speed), 100)


SCORES = {
    PLAIN: scored(20.0, 0.0, 1.0),
    "int8": scored(20.02, 0.004, 0.96, 80.0, 100),
    "int4": scored(20.04, 0.002, 0.97, 45.0, 70),
    "int4 g64": scored(26.0, 0.25, 0.72, 48.0, 65),
    "KV int8": scored(20.0, 0.001, 0.98),
}


def test_the_gate_looks_at_quality_first() -> None:
    assert gate.verdict(SCORES, "int8", Floors()).better
    assert len(gate.verdict(SCORES, "int4 g64", Floors()).broken) == 3
    trade = gate.verdict(SCORES, "int4", Floors())
    assert not trade.better and not trade.broken and trade.losses
    assert not gate.verdict(SCORES, "KV int8", Floors()).better
    broken = {**SCORES, "int8": scored(float("nan"), float("nan"), 0.0, 500.0)}
    assert len(gate.verdict(broken, "int8", Floors()).broken) == 3
    table = str(gate.gate_table(SCORES, Floors()))
    assert table.count("✗") == 3 and "✗ 0.2500" in table and "×1.60" in table


def test_a_gain_beyond_the_bytes_is_not_believed() -> None:
    assert gate.believed(1.6, 2.0) == 1.6 and gate.believed(0.5, 1.0) == 0.5
    assert gate.believed(9.0, 2.0) == 1 and gate.believed(1.03, 2.0) == 1


def test_a_text_tells_formats_apart(shelf: Shelf) -> None:
    scores = gate.measure(shelf)
    assert list(scores) == list(FORMATS)
    plain = scores[PLAIN].quality
    assert plain.kl == pytest.approx(0, abs=1e-6) and plain.agreement == 1
    assert scores["int4 g64"].quality.kl > scores["int8"].quality.kl > 0
    assert scores["int8"].cost.weight_bytes < scores[PLAIN].cost.weight_bytes
    assert scores["KV int8"].cost.kv_bytes_per_token < scores[PLAIN].cost.kv_bytes_per_token
    count, size = gate.PIECE
    assert scores[PLAIN].positions == count * (size - size // gate.GIVEN)


# ---------------------------------------------------------------- zeros


def timed(sparse_at_half: float = 2.0, dense_at_half: float = 1.0) -> list[Timed]:
    return [
        Timed(kind, zeros, dense_at_half if zeros == 0.5 else 1.0, sparse_at_half * (1 - zeros) / 0.5)
        for kind in sparsity.ROWS
        for zeros in sparsity.SHARES
    ]


def test_zeros_are_timed_and_bytes_are_counted(tiny_lab: Lab) -> None:
    threads = torch.get_num_threads()
    found = sparsity.measure(tiny_lab, side=sparsity.TINY_SIDE, repeats=1)
    assert torch.get_num_threads() == threads and len(found) == len(sparsity.ROWS) * len(sparsity.SHARES)
    assert all(each.dense > 0 and each.sparse > 0 for each in found)
    dense = torch.eye(3)
    assert sparsity.as_csr(dense).values().numel() == 3
    assert sparsity.break_even_zeros() == pytest.approx(2 / 3)


def test_sparse_products_pay_late() -> None:
    assert sparsity.pays_from(timed(), "decode, 1 row") == 0.8
    assert sparsity.pays_from(timed(200), "decode, 1 row") is None


# ---------------------------------------------------------------- 70B


def test_seventy_billion_by_format(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINILLM_SHORT", "1")
    explorer = sim_70b.phases_lab()
    explorer.set(load=next(iter(sim_70b.LOADS)))
    assert "×0." in explorer.view.value
    graphs, prompts = sim_70b.TODAY, list(sim_70b.TRAFFIC)[1]
    runs = {name: sim_70b.served(graphs, name, prompts, 0.9) for name in (PLAIN, "int8", "fp8")}
    prefill = {name: sim_70b.phase_means(run)["prefill"] for name, run in runs.items()}
    assert prefill["fp8"] < prefill[PLAIN] < prefill["int8"]
    gains = sim_70b.throughput_gain()
    assert gains[f"batch 1 ({graphs})"] > 1.3 > 1.05 > gains[f"batch 1 ({sim_70b.OLD})"]
    assert gains[f"batch 256 ({graphs})"] < 1.05


def test_where_memory_is_short_fewer_bits_shorten_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINILLM_SHORT", "1")
    found = sim_70b.cramped((PLAIN, "int8", "KV int8"))
    assert found["int8"].room > 5 * found[PLAIN].room and found["KV int8"].room > 1.8 * found[PLAIN].room
    assert found["int8"].wait < found[PLAIN].wait and found["KV int8"].wait < found[PLAIN].wait
    assert f"{found[PLAIN].room:,}" in str(sim_70b.cramped_table(found))


# ---------------------------------------------------------------- claims and the check


def test_a7_follows_what_waits_for_reading() -> None:
    fast, slow, same = (Pair("decode", (1.0,), (after,)) for after in (0.6, 1.4, 1.0))

    def verdict(decode: Pair, prefill: Pair, queue: Pair, large: float = 1.0) -> claims.Claim:
        return claims.a7({"decode": decode}, {"prefill": prefill}, {"queue": queue}, large)

    usual = verdict(fast, slow, fast, large=1.5)
    assert usual.kind == "holds only when"
    assert verdict(same, same, same).kind == "not shown" and verdict(slow, same, same).kind == "wrong"


def test_b4_needs_a_floor_that_decides() -> None:
    found = claims.b4(SCORES, 0.1)
    assert found.kind == "holds" and "int4 and int4 g64 have the same bit width" in found.verdict
    assert claims.b4(SCORES, 0.1, Floors(1.0, 1.0, 0.1)).kind == "not shown"
    assert claims.b4(SCORES, 0.1, Floors(-1.0, 0.0, 1.0)).kind == "not shown"


def test_b5_depends_on_the_kernel() -> None:
    usual = claims.b5(timed())
    assert usual.kind == "holds only when" or usual.kind == "holds"
    assert usual.verdict.startswith("holds for pruning")
    assert claims.b5(timed(sparse_at_half=0.5)).kind == "holds only when"
    assert claims.b5(timed(dense_at_half=1.8)).kind == "not shown"


def test_d10_is_a_range_not_a_figure() -> None:
    both = claims.d10(SWEEP, SCORES, {"made": 1.0})
    assert both.kind == "holds only when"
    assert "×0.67" in both.measured and "H100, measured: batch 1 ×1.4" in both.measured
    assert claims.d10({name: dots[1:] for name, dots in SWEEP.items()}, SCORES, {"made": 1.0}).kind == "wrong"
    restless = Dot(LLAMA_70B, 1, 20, (0.02, 0.05, 0.2))
    assert claims.d10({**SWEEP, "int8": [restless, *SWEEP["int8"][1:]]}, SCORES, {"made": 1.0}).kind == "not shown"
    assert gate.sampling_error(0.8, 400) == pytest.approx(0.02)


@pytest.mark.parametrize("name", ["A7", "B4", "D10"])
def test_claims_measure_themselves(tiny_lab: Lab, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(steps, "BATCHES", (1, 4))
    assert claims.MEASURE[name](tiny_lab).id == name


def test_b5_measures_itself(tiny_lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparsity, "SHORT_SIDE", sparsity.TINY_SIDE)
    assert claims.MEASURE.keys() == {"A7", "B4", "B5", "D10"} and claims.MEASURE["B5"](tiny_lab).id == "B5"


def test_the_check_rewards_what_is_right() -> None:
    check = checks(SWEEP, SCORES)
    right = (("q1", 4.5), ("q2", 4 / 3), ("q3", 8), ("q4", "Fail"), ("q5", 66.7))
    for question, answer in right:
        assert check(question, answer).score == 1, question
    tokens = LLAMA_70B.stored_as(weight_dtype="int8").crossover_tokens
    assert check("q6", tokens).score == 1 and tokens < LLAMA_70B.crossover_tokens
    always = {**SWEEP, "int8": SWEEP["int8"][:1]}
    assert checks(always, SCORES)("q3", "Never").score == 1
    good = {**SCORES, "int4 g64": SCORES["int8"]}
    assert checks(SWEEP, good)("q4", "pass").score == 1


def test_no_answer_raises() -> None:
    refuses_garbage(checks(SWEEP, SCORES), 6)


def test_formats_meet_where_bytes_stop_counting() -> None:
    h100, b200 = find_hardware("h100-sxm"), find_hardware("b200")
    kinds = formats_roofline.FORMATS
    bf16, fp8, w4a16, nvfp4 = kinds.values()
    assert formats_roofline.least_s(h100, nvfp4, 1) is None and formats_roofline.least_s(b200, nvfp4, 1) is not None
    small, large = ([formats_roofline.least_s(h100, kind, n) for kind in (bf16, fp8, w4a16)] for n in (1, 1024))
    assert small[0] == pytest.approx(2 * small[1]) and small[2] == pytest.approx(small[0] * 4.25 / 16)
    assert large[0] == pytest.approx(2 * large[1], rel=1e-3) and large[2] == pytest.approx(large[0], rel=1e-3), (
        "W4A16 multiplies in 16 bits"
    )
    shows(formats_roofline.draw("b200", 64), "NVFP4")
