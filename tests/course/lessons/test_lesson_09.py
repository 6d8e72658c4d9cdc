"""Lesson 09: rounding by hand, phases in pairs, the gate, zeros. The rest on a tiny model and the simulator."""

from collections.abc import Iterator

import pytest
import torch
from asserting import rewards, shows

from course.lab import matrix_rounding, matrix_zeros
from course.lab.lab import Lab
from course.lab.matrix_zeros import Timed
from course.lab.model_shape import LLAMA_70B
from course.lab.roof import Roof
from course.lessons.lesson_06.run import Dot
from course.lessons.lesson_09 import pictures, run, simulated, words
from course.lessons.lesson_09.check import checks
from course.lessons.lesson_09.pictures import formats_table
from course.lessons.lesson_09.run import FORMATS, MEMORY_SLOTS, PLAIN, PhasePair, Shelf, long_answer, short_of_memory
from course.measure.quality import Cost, Quality, QualityLimits
from course.measure.scoring import GIVEN
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
    assert matrix_rounding.rounded(row, 2, 4).tolist() == pytest.approx([0, 0, 1 / 3, 1])
    assert matrix_rounding.rounded(row, 2, 2).tolist() == pytest.approx([0, 0.1, 0.45, 1.0])
    low, step = matrix_rounding.grids(row, 2, "whole row")
    assert (low.item(), step.item()) == (0, pytest.approx(1 / 3))
    assert matrix_rounding.error(row, 2, 4) == pytest.approx((0.01 + (0.45 - 1 / 3) ** 2) ** 0.5 / row.norm().item())
    assert matrix_rounding.bits_per_weight(4, 32, 576) == 5 and matrix_rounding.bits_per_weight(4, 64, 576) == 4.5
    assert matrix_rounding.bits_per_weight(8, "whole row", 64) == 8.5


def test_fewer_bits_and_larger_groups_are_worse(tiny_lab: Lab) -> None:
    weights = matrix_rounding.load_matrix(tiny_lab).weights
    errors = [matrix_rounding.error(weights, bits, 32) for bits in matrix_rounding.BITS]
    assert errors == sorted(errors) and errors[-1] > 10 * errors[0]
    assert matrix_rounding.error(weights, 4, 32) < matrix_rounding.error(weights, 4, "whole row")
    with pytest.raises(LookupError, match="no such"):
        matrix_rounding.load_matrix(tiny_lab, "such")


def test_a_matrix_on_a_grid_is_recognized_and_shaken_off_it() -> None:
    on_grid = matrix_rounding.Matrix(
        "made", matrix_rounding.rounded(torch.randn(16, 64, generator=torch.Generator()), 4, 32)
    )
    assert on_grid.share_on_grid > 0.99 and matrix_rounding.error(on_grid.weights, 4, 32) < 1e-5
    fresh = on_grid.shaken()
    assert fresh.share_on_grid < 0.5 and matrix_rounding.error(fresh.weights, 4, 32) > 0.02
    table = str(pictures.errors_table(on_grid))
    assert "4 bits, groups of 32" in table and "0.00%" in table


# ---------------------------------------------------------------- formats and phases


def test_formats_take_turns_on_their_own_weights(shelf: Shelf) -> None:
    table = str(formats_table(shelf))
    assert all(name in table for name in FORMATS)
    scene = long_answer(shelf.lab)
    runs = shelf.turns(scene.workload, (PLAIN, "int8", "KV int8"), **scene.fields)
    assert [run.config.quantization for run in (runs[PLAIN][0], runs["int8"][0])] == [None, "int8"]
    assert runs["KV int8"][0].config.kv_cache_dtype == "int8"
    assert shelf.of("KV int8") is not shelf.lab and shelf.of("KV int8").model is shelf.lab.model, "a copy of no weights"
    assert all(len(run.finished) == 1 for each in runs.values() for run in each)


def test_one_lab_can_change_its_weights(tiny_lab: Lab) -> None:
    work = long_answer(tiny_lab).workload
    for fields in ({}, {"quantization": "int8"}, {"quantization": "int4", "int4_group_size": 64}, {}):
        run = tiny_lab.run(work, **fields)
        assert len(run.finished) == 1 and tiny_lab.engine(**fields).model.quantization == fields.get("quantization")


def test_memory_for_four_is_memory_for_more_in_8_bits(shelf: Shelf) -> None:
    scene = short_of_memory(shelf.lab)
    slots = {}
    for name in (PLAIN, "KV int8", "int8"):
        run = shelf.run(name, scene.workload, **scene.fields)
        assert len(run.finished) == len(scene.workload.arrivals) and not run.snapshot.num_preemptions
        slots[name] = max(step.num_running for step in run.steps)
    assert slots[PLAIN] == slots["int8"] == MEMORY_SLOTS and slots["KV int8"] > 1.5 * slots[PLAIN]


def made_pairs(**ratios: float) -> dict[str, PhasePair]:
    """A second of each phase before; each phase's ratio is its name's, else 1."""
    before = dict.fromkeys(PHASES, 1.0)
    after = {phase: ratios.get(phase, 1.0) for phase in PHASES}
    found = {p: PhasePair(p, (before[p], 1.01 * before[p]), (after[p], 1.01 * after[p])) for p in PHASES}
    return {**found, "E2E": PhasePair("E2E", (5.0, 5.05), (sum(after.values()), 1.01 * sum(after.values())))}


def test_a_gain_beyond_the_bytes_is_not_called_clear() -> None:
    pair = PhasePair("decode", (1.0, 1.1), (0.2, 0.25), least=0.4)
    assert not pair.is_clear and not pair.is_faster
    assert PhasePair("decode", (1.0, 1.1), (0.5, 0.55), least=0.4).is_faster


def test_a_format_without_a_kernel_here_is_left_out(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    def engine(name: str) -> object:
        if name == "int4":
            raise ConfigError("int4 wants another GPU")

    other = Shelf(shelf.lab)
    monkeypatch.setattr(other, "engine", engine)
    assert other.why_not("int4") == "int4 wants another GPU" and other.why_not("int8") is None
    assert other.usable(run.WEIGHTS) == [PLAIN, "int8"]


def test_a_pair_is_clear_only_if_its_runs_are_apart() -> None:
    assert PhasePair("decode", (1.0, 1.1, 1.2), (0.6, 0.7, 0.8)).is_faster
    overlap = PhasePair("decode", (1.0, 1.1, 1.2), (0.6, 0.7, 1.05))
    assert not overlap.is_clear
    assert not PhasePair("decode", (1.0, 1.0), (0.97, 0.98)).is_clear
    assert PhasePair("decode", (1.0,), (1.5,)).is_slower and PhasePair("queue", (0.0,), (0.0,)).ratio == 1


def test_bets_are_scored_by_the_pairs() -> None:
    for ratio in (0.5, 1.0, 1.6):
        assert run.decode_gain(made_pairs(decode=ratio)).answer == pytest.approx(1 / ratio)
    fast, slow = made_pairs(decode=0.2), made_pairs(prefill=2.0)
    assert run.who_gained(fast, slow).answer == run.BOTH[True, False]
    assert run.who_gained(slow, fast).answer == run.BOTH[False, True]


@pytest.mark.parametrize(
    ("batch", "prompt", "share", "says"),
    [
        (0.5, 3.0, 0.9, ("Half the bytes still shorten its steps", "adds dequantizing to them")),
        (3.0, 0.5, 0.2, ("explain only 20% of its steps", "Fewer bytes explain at most")),
        (1.0, 1.0, 0.9, ("our int8 kernel costs more time", "little to gain from a shorter read")),
    ],
)
def test_each_kind_of_traffic_is_explained_by_which_way_it_went(
    batch: float, prompt: float, share: float, says: tuple[str, str]
) -> None:
    found = words.others(made_pairs(decode=batch), made_pairs(prefill=prompt), share)
    assert all(each in found.here for each in says) and len(found.otherwise) == 2
    assert ("By the sweep" in found.here) == (batch >= 1)


def test_runs_that_overlap_say_nothing_of_the_machine() -> None:
    doubtful = PhasePair("decode", (6.0, 6.2, 9.0), (4.3, 4.4, 6.1))
    assert "don't say what int8 does" in words.alone({**made_pairs(), "decode": doubtful}).here
    assert "Either these steps don't wait" in words.alone(made_pairs()).here


def test_only_a_checkpoint_that_was_rounded_is_called_so() -> None:
    for on_grid, is_told in ((0.99, True), (0.1, False)):
        assert ("rounded to that grid before" in words.quality(SCORES, on_grid).here) == is_told


def test_a_gpu_gets_traffic_of_its_size(tiny_lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    small = run.full_batch(tiny_lab).workload, run.long_prompt(tiny_lab).workload, run.batches_of(tiny_lab)
    monkeypatch.setattr(run, "is_accelerated", lambda _: True)
    large = run.full_batch(tiny_lab).workload, run.long_prompt(tiny_lab).workload, run.batches_of(tiny_lab)
    assert len(large[0].arrivals) > len(small[0].arrivals) and large[2][-1] > small[2][-1]
    assert len(large[1].arrivals[0].prompt) > 5 * len(small[1].arrivals[0].prompt)


# ---------------------------------------------------------------- steps


def made_dot(batch: int, itl: float, dtype: str = "bfloat16") -> Dot:
    return Dot(LLAMA_70B.stored_as(weight_dtype=dtype), batch, 20, (itl, 1.01 * itl, 0.99 * itl))


SWEEP = {
    PLAIN: [made_dot(1, 0.020), made_dot(8, 0.030), made_dot(32, 0.060)],
    "int8": [made_dot(1, 0.0125, "int8"), made_dot(8, 0.031, "int8"), made_dot(32, 0.090, "int8")],
}


def test_speedups_and_where_they_end() -> None:
    assert run.speedup(SWEEP, "int8") == pytest.approx(1.6)
    assert run.break_even(SWEEP, "int8") == 8 and run.slowdown(SWEEP, "int8") == pytest.approx(1.5)
    assert run.break_even({**SWEEP, "int8": SWEEP["int8"][:1]}, "int8") is None
    assert "pays at every batch" in words.by_batch({**SWEEP, "int8": SWEEP["int8"][:1]}, ROOF).here
    slow = {**SWEEP, "int8": [made_dot(1, 0.021, "int8")]}
    assert "doesn't pay here at any batch" in words.by_batch(slow, ROOF).here
    table = str(pictures.promises_table(SWEEP, ROOF))
    assert "×1.60" in table and f"×{SWEEP[PLAIN][0].bytes / SWEEP['int8'][0].bytes:.2f}" in table
    assert not run.is_restless(SWEEP)
    restless = Dot(LLAMA_70B, 1, 20, (0.02, 0.05, 0.2))
    assert run.is_restless({**SWEEP, "int8": [restless, *SWEEP["int8"]]})
    one_slow_step = Dot(LLAMA_70B, 1, 20, (0.02,) * 5 + (0.2,))
    assert one_slow_step.is_restless and not run.is_uneven(one_slow_step)
    too_good = [SWEEP["int8"][0], made_dot(8, 0.010, "int8"), SWEEP["int8"][2]]
    assert run.is_restless({**SWEEP, "int8": too_good})


@pytest.mark.parametrize(("share", "says"), [(0.8, "it's our kernel that loses"), (0.3, "Reads explain only 30%")])
def test_what_stops_paying_is_the_kernel_where_reads_explain_the_16_bit_step(share: float, says: str) -> None:
    plain = SWEEP[PLAIN][1]
    found = words.by_batch(SWEEP, Roof("made", plain.bytes / (share * plain.itl), 1e15, "by hand")).here
    assert "From batch 8 on" in found and says in found and f"{share:.0%}" in found


# ---------------------------------------------------------------- the gate


def scored(perplexity: float, kl: float, same: float, speed: float = 50.0, weights: int = 200) -> run.Scored:
    return run.Scored(Quality(perplexity, kl, same, 0, 0), Cost(weights, 10, 10 * 2048, speed), 100)


SCORES = {
    PLAIN: scored(20.0, 0.0, 1.0),
    "int8": scored(20.02, 0.004, 0.96, 80.0, 100),
    "int4": scored(20.04, 0.002, 0.97, 45.0, 70),
    "int4 g64": scored(26.0, 0.25, 0.72, 48.0, 65),
    "KV int8": scored(20.0, 0.001, 0.98),
}


def test_the_gate_looks_at_quality_first() -> None:
    assert run.verdict(SCORES, "int8", QualityLimits()).better
    assert len(run.verdict(SCORES, "int4 g64", QualityLimits()).broken) == 3
    trade = run.verdict(SCORES, "int4", QualityLimits())
    assert not trade.better and not trade.broken and trade.losses
    assert not run.verdict(SCORES, "KV int8", QualityLimits()).better
    broken = {**SCORES, "int8": scored(float("nan"), float("nan"), 0.0, 500.0)}
    assert len(run.verdict(broken, "int8", QualityLimits()).broken) == 3
    table = str(pictures.gate_table(SCORES, QualityLimits()))
    assert table.count("✗") == 3 and "✗ 0.2500" in table and "×1.60" in table


def test_a_gain_beyond_the_bytes_is_not_believed() -> None:
    assert run.believed(1.6, 2.0) == 1.6 and run.believed(0.5, 1.0) == 0.5
    assert run.believed(9.0, 2.0) == 1 and run.believed(1.03, 2.0) == 1


def test_a_text_tells_formats_apart(shelf: Shelf) -> None:
    scores = run.score_formats(shelf)
    assert list(scores) == list(FORMATS)
    plain = scores[PLAIN].quality
    assert plain.kl == pytest.approx(0, abs=1e-6) and plain.agreement == 1
    assert scores["int4 g64"].quality.kl > scores["int8"].quality.kl > 0
    assert scores["int8"].cost.weight_bytes < scores[PLAIN].cost.weight_bytes
    assert scores["KV int8"].cost.kv_bytes_per_token < scores[PLAIN].cost.kv_bytes_per_token
    count, size = run.PIECE
    assert scores[PLAIN].positions == count * (size - size // GIVEN)


# ---------------------------------------------------------------- zeros


def timed(sparse_at_half: float = 2.0, dense_at_half: float = 1.0) -> list[Timed]:
    return [
        Timed(kind, zeros, dense_at_half if zeros == 0.5 else 1.0, sparse_at_half * (1 - zeros) / 0.5)
        for kind in matrix_zeros.ROWS
        for zeros in matrix_zeros.SHARES
    ]


def test_zeros_are_timed_and_bytes_are_counted(tiny_lab: Lab) -> None:
    threads = torch.get_num_threads()
    found = matrix_zeros.measure(tiny_lab, side=matrix_zeros.TINY_SIDE, repeats=1)
    assert torch.get_num_threads() == threads and len(found) == len(matrix_zeros.ROWS) * len(matrix_zeros.SHARES)
    assert all(each.dense > 0 and each.sparse > 0 for each in found)
    dense = torch.eye(3)
    assert matrix_zeros.as_csr(dense).values().numel() == 3
    assert matrix_zeros.break_even_zeros() == pytest.approx(2 / 3)


def test_sparse_products_pay_late() -> None:
    assert matrix_zeros.pays_from(timed(), "decode, 1 row") == 0.8
    assert matrix_zeros.pays_from(timed(200), "decode, 1 row") is None


# ---------------------------------------------------------------- 70B


def test_seventy_billion_by_format(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINILLM_SHORT", "1")
    explorer = simulated.phases_lab()
    explorer.set(load=next(iter(simulated.LOADS)))
    assert "×0." in explorer.view.value
    graphs, prompts = simulated.TODAY, list(simulated.TRAFFIC)[1]
    runs = {name: simulated.served(graphs, name, prompts, 0.9) for name in (PLAIN, "int8", "fp8")}
    prefill = {name: simulated.phase_means(run)["prefill"] for name, run in runs.items()}
    assert prefill["fp8"] < prefill[PLAIN] < prefill["int8"]
    gains = simulated.throughput_gain()
    assert gains[f"batch 1 ({graphs})"] > 1.3 > 1.05 > gains[f"batch 1 ({simulated.OLD})"]
    assert gains[f"batch 256 ({graphs})"] < 1.05


def test_where_memory_is_short_fewer_bits_shorten_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINILLM_SHORT", "1")
    found = simulated.cramped((PLAIN, "int8", "KV int8"))
    room = {name: simulated.cramped_room(name) for name in found}
    wait = {name: simulated.phase_means(run)["queue"] for name, run in found.items()}
    assert room["int8"] > 5 * room[PLAIN] and room["KV int8"] > 1.8 * room[PLAIN]
    assert max(wait["int8"], wait["KV int8"]) < wait[PLAIN]
    assert f"{room[PLAIN]:,}" in str(simulated.cramped_table(found))


# ---------------------------------------------------------------- claims and the check


def test_b4_needs_limits_that_decide() -> None:
    found = words.b4(SCORES, 0.1)
    assert found.kind == "holds" and "int4 and int4 g64 have the same bit width" in found.verdict
    assert words.b4(SCORES, 0.1, QualityLimits(1.0, 1.0, 0.1)).kind == "not shown"
    assert words.b4(SCORES, 0.1, QualityLimits(-1.0, 0.0, 1.0)).kind == "not shown"


def test_d10_is_a_range_not_a_figure() -> None:
    both = words.d10(SWEEP, SCORES, {"made": 1.0})
    assert both.kind == "only when"
    assert (
        "×0.67" in both.measured
        and "H100, measured: batch 1 ×1.64" in both.measured
        and "batch 128 ×0.70" in both.measured
    )
    assert words.d10({name: dots[1:] for name, dots in SWEEP.items()}, SCORES, {"made": 1.0}).kind == "wrong"
    restless = Dot(LLAMA_70B, 1, 20, (0.02, 0.05, 0.2))
    assert words.d10({**SWEEP, "int8": [restless, *SWEEP["int8"][1:]]}, SCORES, {"made": 1.0}).kind == "not shown"
    assert run.sampling_error(0.8, 400) == pytest.approx(0.02)


def test_the_check_rewards_what_is_right() -> None:
    tokens = LLAMA_70B.stored_as(weight_dtype="int8").crossover_tokens
    assert tokens < LLAMA_70B.crossover_tokens
    rewards(checks(SWEEP, SCORES), 4.5, 4 / 3, 8, "Fail", 66.7, tokens)
    always = {**SWEEP, "int8": SWEEP["int8"][:1]}
    assert checks(always, SCORES)("q3", "Never").score == 1
    good = {**SCORES, "int4 g64": SCORES["int8"]}
    assert checks(SWEEP, good)("q4", "pass").score == 1


def test_formats_meet_where_bytes_stop_counting() -> None:
    h100, b200 = find_hardware("h100-sxm"), find_hardware("b200")
    kinds = pictures.PAPER_FORMATS
    bf16, fp8, w4a16, nvfp4 = kinds.values()
    assert pictures.least_s(h100, nvfp4, 1) is None and pictures.least_s(b200, nvfp4, 1) is not None
    small, large = ([pictures.least_s(h100, kind, n) for kind in (bf16, fp8, w4a16)] for n in (1, 1024))
    assert small[0] == pytest.approx(2 * small[1]) and small[2] == pytest.approx(small[0] * 4.25 / 16)
    assert large[0] == pytest.approx(2 * large[1], rel=1e-3) and large[2] == pytest.approx(large[0], rel=1e-3), (
        "W4A16 multiplies in 16 bits"
    )
    shows(pictures.draw_least_step("b200", 64), "NVFP4")


def test_four_bits_in_floating_point_by_hand() -> None:
    """What E2M1 can say stays as it is; a group's scale follows its largest weight, and other groups don't notice."""
    levels = torch.tensor([*matrix_rounding.FP4, *(-x for x in matrix_rounding.FP4)])
    assert torch.allclose(matrix_rounding.nvfp4(levels), levels)
    row = torch.cat([levels, levels])
    assert torch.allclose(matrix_rounding.mxfp4(row), row)
    far = torch.cat([levels, 100 * levels])
    assert torch.allclose(matrix_rounding.nvfp4(far), far, rtol=0.05), "two groups of 16, two scales"
    assert not torch.allclose(matrix_rounding.mxfp4(far)[:16], levels, rtol=0.05), "one group of 32"
    assert matrix_rounding.moved_by(levels, torch.zeros(16)) == pytest.approx(1)
