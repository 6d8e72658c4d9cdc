"""Lesson 06: three clocks, the roof, weights or KV. Arithmetic by hand; the rest on a tiny model and the simulator."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from asserting import rewards
from torch.autograd import DeviceType

from course.lab import simulated_70b
from course.lab.finding import Finding
from course.lab.lab import Lab
from course.lab.model_shape import LLAMA_13B, LLAMA_70B, ModelShape, three
from course.lab.roof import FILE, Roof, measured_roof, on_paper, this_machine
from course.lessons.lesson_06 import pictures, run, simulated, words
from course.lessons.lesson_06.check import checks
from course.lessons.lesson_06.run import Dot, room, side_by_side
from course.lessons.lesson_06.words import a4
from course.simulator.workload.arrivals import AllAtOnce
from course.simulator.workload.kinds import Independent
from course.simulator.workload.lengths import Fixed

ROOF = Roof("made", bandwidth=10e9, flops=100e9, source="by hand")


def dot(batch: int = 1, itl: float = 0.02, context: float = 20, shape: ModelShape = LLAMA_13B) -> Dot:
    return Dot(shape, batch, context, (itl, itl * 1.01, itl * 0.99))


SWEEP = [dot(1, 0.020), dot(2, 0.021), dot(4, 0.024), dot(8, 0.030), dot(16, 0.058)]


# ---------------------------------------------------------------- shapes and roofs


def test_bytes_and_operations_of_known_models() -> None:
    assert LLAMA_70B.kv_bytes_per_token == 2 * 80 * 8 * 128 * 2
    assert LLAMA_13B.kind == "MHA" and LLAMA_70B.kind == "GQA"
    assert 138e9 < LLAMA_70B.weight_bytes < 141e9
    assert LLAMA_70B.flops(3, 100) == pytest.approx(3 * LLAMA_70B.flops_per_token(100))
    assert LLAMA_70B.bytes(2, 10) - LLAMA_70B.bytes(1, 10) == 10 * LLAMA_70B.kv_bytes_per_token


@pytest.mark.parametrize("shape", [LLAMA_13B, LLAMA_70B])
def test_at_the_crossover_kv_is_as_much_as_the_weights(shape: ModelShape) -> None:
    assert shape.kv_bytes(8, shape.crossover_tokens / 8) == pytest.approx(shape.weight_bytes)
    assert shape.stored_as(weight_dtype="int4").crossover_tokens < shape.crossover_tokens / 3
    assert shape.stored_as(kv_dtype="int8").crossover_tokens > 1.9 * shape.crossover_tokens


def test_the_lab_model_is_read_from_its_config(tiny_lab: Lab) -> None:
    shape = next(iter(three(tiny_lab).values()))
    assert shape.weight_dtype == "float32" and shape.cost.layers == 2 and shape.room_tokens() is None
    assert len(three(tiny_lab)) == 3


def test_a_step_is_linear_layers_and_then_attention() -> None:
    sheet = on_paper()
    knee = sheet.knee(LLAMA_70B)
    assert knee == pytest.approx(sheet.ridge, rel=1e-3)  # 16-bit weights
    assert sheet.linear(LLAMA_70B, knee / 2) == sheet.reading(LLAMA_70B.weight_bytes)
    assert sheet.linear(LLAMA_70B, knee * 2) == pytest.approx(2 * sheet.reading(LLAMA_70B.weight_bytes))
    for batch in (1, 10_000):  # attention never waits for arithmetic
        assert sheet.attention(LLAMA_70B, batch, 8192) == sheet.reading(LLAMA_70B.kv_bytes(batch, 8192))
    assert LLAMA_70B.attention_intensity == pytest.approx(8) and LLAMA_13B.attention_intensity == pytest.approx(1)
    whole = max(sheet.reading(LLAMA_70B.bytes(512, 1024)), sheet.multiplying(LLAMA_70B.flops(512, 1024)))
    assert on_paper(gpus=4).floor(LLAMA_70B, 512, 1024) == pytest.approx(0.031, rel=0.03)
    assert sheet.floor(LLAMA_70B, 512, 1024) > 1.3 * whole
    assert on_paper(gpus=4).ridge == pytest.approx(sheet.ridge)
    assert sheet.at(sheet.ridge / 2) == pytest.approx(sheet.flops / 2) and sheet.at(10 * sheet.ridge) == sheet.flops


def test_a_roof_is_the_median_of_its_rounds_and_says_the_range() -> None:
    roof = measured_roof([(40e9, 1e12), (70e9, 3e12), (50e9, 2e12)])
    assert (roof.bandwidth, roof.flops, roof.slowest, roof.fastest) == (50e9, 2e12, 40e9, 70e9)
    assert "40" in pictures.reads(roof) and "70" in pictures.reads(roof) and "to" not in pictures.reads(on_paper())


def test_what_a_page_measures_is_kept_for_the_next(tiny_lab: Lab, home: Path) -> None:
    first = this_machine(tiny_lab)
    again = this_machine(tiny_lab, before=first)
    assert again.rounds[: len(first.rounds)] == first.rounds and len(again.rounds) == 2 * len(first.rounds)
    assert list(FILE.read().rounds.values()) == [list(again.rounds)]


# ---------------------------------------------------------------- steps of the engine


def test_dots_are_steps_in_which_all_requests_decode(tiny_lab: Lab) -> None:
    work = [run.side_by_side(batch) for batch in (1, 6)] * 2
    found = run.dots(tiny_lab, [tiny_lab.run(each, **run.room(each)) for each in work])
    assert [each.batch for each in found] == [1, 6]
    prompt = len(work[0].arrivals[0].prompt)
    for each in found:
        assert 8 <= len(each.gaps) <= 14  # two rounds of eight tokens, less the first and the pairs' beginnings
        assert 4 < each.context < prompt + 8
        assert each.tokens_per_s == pytest.approx(each.batch / each.itl)
        assert each.mbu(ROOF) == pytest.approx(ROOF.reading(each.bytes) / each.itl)
    assert found[1].shape.weight_bytes == found[0].shape.weight_bytes and found[1].flops > 5 * found[0].flops


def test_a_sweep_is_more_than_the_one_request_that_sets_its_limit(
    tiny_lab: Lab, short_form: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though that breaks it, as on a machine that became busy since."""
    monkeypatch.setattr(run, "slo_seconds", lambda single: 1e-9)
    found = run.sweep(tiny_lab, [])
    assert [each.batch for each in found] == [1, 4]
    assert words.slo(found, [dot()]).here


def test_longer_contexts_are_more_kv(tiny_lab: Lab) -> None:
    short, long = (
        run.dots(tiny_lab, [tiny_lab.run(each, **run.room(each))])[0]
        for each in (run.side_by_side(3), run.side_by_side(3, context=100))
    )
    assert 120 < long.context < 300 and long.kv_bytes > 4 * short.kv_bytes
    assert long.intensity != short.intensity


@pytest.mark.parametrize(
    ("device", "model", "roof", "late", "batch", "context"),
    [
        ("", "smollm2-135m", Roof("2 cores", 70e9, 900e9, "by hand"), 64, 8, 1678),
        ("h100-sxm", "llama-3.1-8b", on_paper(), 512, 8, 16461),
        ("4 x h100-sxm", "llama-3-70b", on_paper(gpus=4), 512, 64, 6860),
    ],
)
def test_a_sweep_goes_as_far_as_the_machine_needs(
    device: str,
    model: str,
    roof: Roof,
    late: int,
    batch: int,
    context: int,
    smollm_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MINILLM_LAB_DEVICE", device)
    lab = Lab(short=False, model=model)
    shape = ModelShape.of_lab(lab)
    assert run.doubled_batches(lab, roof) == (1, 2, late, 2 * late)
    assert run.longest_contexts(lab, roof) == (batch, context)
    assert shape.kv_bytes(batch, context) > shape.weight_bytes
    work = run.longer_and_longer(lab, roof)[2]
    fields = room(work)
    assert run.BLOCK * fields["num_kv_blocks"] <= run.pool_tokens(lab)
    assert fields.get("max_model_len", 0) <= shape.cost.max_context
    lab.config(**fields)
    assert run.powers(lab)[-1] == 4096 >= run.furthest([dot(1, 0.008, shape=shape)], roof)


def test_a_run_that_never_decoded_together_is_refused(tiny_lab: Lab) -> None:
    work = side_by_side(4)
    run = tiny_lab.run(work, **{**room(work), "max_num_seqs": 2})
    with pytest.raises(LookupError, match="all 4 requests"):
        Dot.of(ModelShape.of_lab(tiny_lab), run)


# ---------------------------------------------------------------- bets, claim, check


def test_each_bet_has_its_answer() -> None:
    assert run.doublings(FREE_THEN_STEEP).answer == run.DOUBLINGS[True, False]
    steep_then_free = [dot(1, 0.02), dot(2, 0.04), dot(64, 0.2), dot(128, 0.22)]
    assert run.doublings(steep_then_free).answer == run.DOUBLINGS[False, True]
    for ratio, answer in zip((1.1, 1.6, 3.0), run.GROWTH):
        assert run.growth([dot(8, 0.02), dot(8, 0.02 * ratio, context=2000)]).answer == answer
    assert run.launches([dot(1, 0.02)], [dot(1, 0.03)]).answer == pytest.approx(1.5)
    assert run.slo([dot(1, 0.02), dot(4, 0.03), dot(16, 0.12)], [dot(1, 0.02)]).answer == pytest.approx(8)
    assert run.slo(SWEEP, SWEEP[:1]).answer == 16 and run.largest_within(SWEEP, 0.01) == 0


def test_the_slo_is_three_times_the_quietest_single_request() -> None:
    assert run.slo_seconds([dot(1, 0.031), dot(1, 0.02)]) == pytest.approx(0.06)
    batch = run.furthest([dot(1, 0.02)], ROOF)
    assert ROOF.multiplying(LLAMA_13B.flops(batch, 0)) >= 0.06


def test_reading_and_multiplying_overlap() -> None:
    step = dot(64, 20.0)
    assert step.rest(ROOF) / step.itl == pytest.approx(1 - max(step.mbu(ROOF), step.mfu(ROOF)))
    assert step.mfu(ROOF) > step.mbu(ROOF) > 0.1


FREE_THEN_STEEP = [dot(1, 0.02), dot(2, 0.022), dot(64, 0.2), dot(128, 0.38)]
QUIET = Roof("made", bandwidth=26e9 / 0.018, flops=100e12, source="reads Llama-2-13B in 18 ms")
VARYING = measured_roof([(26e9 / 0.018 * share, 100e12) for share in (0.8, 1.0, 1.2)])
BUSY = Dot(LLAMA_13B, 1, 20, (0.02, 0.02, 0.05, 0.05))


@pytest.mark.parametrize(
    ("finding", "words_of_it"),
    [
        (lambda: words.clocks(dot(), QUIET, {}), "memory-bound"),
        (lambda: words.clocks(dot(itl=0.1), QUIET, {}), "it's the longest here"),
        (lambda: words.clocks(dot(itl=0.035), VARYING, {}), "which of the two is longer"),
        (lambda: words.clocks(dot(itl=0.01), QUIET, {}), "isn't possible"),
        (lambda: words.clocks(BUSY, QUIET, {}), "something else"),
        (lambda: words.clocks(dot(), QUIET, {"weights": 0.018, "communication": 0.002}), "communication: 2 ms"),
        (lambda: words.doublings(FREE_THEN_STEEP, ROOF, {}, {}), "additional arithmetic takes"),
        (lambda: words.doublings(FREE_THEN_STEEP, ROOF, {"host": 0.1}, {"host": 0.28}), "host: 180 ms"),
        (lambda: words.doublings([dot(1), dot(2), dot(64), dot(128)], ROOF, {}, {}), "even the second"),
        (lambda: words.doublings([dot(1), dot(2, 0.04), dot(64), dot(128)], ROOF, {}, {}), "can't be"),
        (lambda: words.doublings([BUSY, *FREE_THEN_STEEP[1:]], ROOF, {}, {}), "before you conclude"),
        (lambda: words.slo(SWEEP, SWEEP[:1]), "every batch of this sweep"),
        (lambda: words.slo([*SWEEP, dot(64, 0.23)], SWEEP[:1]), "only ITL raises the alarm"),
        (lambda: words.slo([*SWEEP, dot(64, 0.1)], SWEEP[:1]), "before throughput levels off"),
        (lambda: words.slo([*SWEEP[:4], dot(16, 0.08)], SWEEP[:1]), "Throughput fell there, too"),
        (lambda: words.slo([*SWEEP, replace(BUSY, batch=64, gaps=(0.1, 0.1, 0.3, 0.4))], SWEEP[:1]), "to be sure"),
        (lambda: words.slo([*SWEEP, dot(64, 0.03)], SWEEP[:1]), "Something else was running"),
        (lambda: words.slo([dot(1, 0.03), dot(2, 0.1)], [dot(1, 0.02)]), "Something else was running"),
        (lambda: words.launches([dot(1), dot(64)], [dot(1, 0.04), dot(64, 0.025)]), "overlap with longer operations"),
        (lambda: words.launches([dot(1), dot(64)], [dot(1, 0.04), dot(64, 0.04)]), "per step, not per request"),
        (lambda: words.launches([dot(1), dot(64)], [dot(1, 0.04), dot(64, 0.06)]), "don't tell the two apart"),
        (lambda: words.launches([dot(1), dot(64)], [dot(1, 0.02), dot(64, 0.02)]), "makes little difference"),
        (lambda: words.launches([BUSY, dot(64)], [dot(1, 0.04), dot(64, 0.02)]), "Run both cells again"),
    ],
)
def test_a_finding_is_true_of_its_machine(finding: Callable[[], Finding], words_of_it: str) -> None:
    assert words_of_it in finding().here


@pytest.mark.parametrize(
    ("context", "itl", "words_of_it"),
    [
        (100, 0.021, "too little KV to tell"),
        (40_000, 0.05, "of the memory's speed"),
        (40_000, 0.2, "more than a byte of weights"),
        (40_000, 0.025, "hidden behind something"),
    ],
)
def test_what_longer_contexts_cost(context: float, itl: float, words_of_it: str) -> None:
    assert words_of_it in words.growth([dot(1), dot(1, itl, context)], QUIET).here


@pytest.mark.parametrize(
    ("clock", "parts", "words_of_it"),
    [
        (run.COMPUTING, (6, 1, 2, 1), "Matrix products are 60%"),
        (run.COMPUTING, (3, 1, 3, 3), "as an upper bound"),
        (run.GPU, (2, 1, 1, 6), "for **60% of it no kernel runs**"),
        (run.GPU, (6, 1, 2, 1), "for 10% no kernel runs"),
        (run.LAUNCHING, (3, 1, 3, 3), "not the GPU's for computing"),
    ],
)
def test_a_profile_says_whose_time_it_has(clock: str, parts: tuple[float, ...], words_of_it: str) -> None:
    names = (run.PRODUCT, run.ATTENTION, run.OTHER, run.IDLE if clock == run.GPU else run.PYTHON)
    found = run.StepProfile(1, dict(zip(names, parts)), {run.PRODUCT: 100}, None, clock)
    assert words_of_it in words.profiled(found, dot()).here


def test_pictures_tell_what_happened() -> None:
    assert "of it is overhead" in pictures.draw_clocks(SWEEP[:1], ROOF).description
    assert "holds up to batch 16" in pictures.draw_price(SWEEP, 1.0).title
    assert "of what its parts allow" in pictures.draw_roofline(ROOF, SWEEP).description


def test_a_profile_adds_up_to_the_step(tiny_lab: Lab) -> None:
    found = run.profile_steps(tiny_lab, 2)
    assert all(spent > 0 for spent in found.seconds.values()) and found.calls[run.PRODUCT] >= 2 * 4
    assert found.calls[run.ATTENTION] == 2 and "100%" not in str(pictures.profile_table(found))
    assert found.clock == run.COMPUTING and words.profiled(found, dot()).here


def test_what_a_gpu_did_is_no_second_call() -> None:
    """The profiler lists kernels, and on a GPU labels too, a second time, under no parent."""

    def event(name: str, us: float, parent: SimpleNamespace | None, where: DeviceType) -> SimpleNamespace:
        return SimpleNamespace(name=name, cpu_time_total=us, cpu_parent=parent, device_type=where)

    step = event(run.PYTHON, 30, None, DeviceType.CPU)
    product = event(run.PRODUCT, 10, step, DeviceType.CPU)
    on_gpu = [event(name, 0, None, DeviceType.CUDA) for name in (run.PYTHON, run.PRODUCT, "gemm_kernel")]
    inside = event("aten::mm", 8, product, DeviceType.CPU)
    spent, calls = run.by_part([step, product, inside, event("aten::add", 5, step, DeviceType.CPU), *on_gpu], steps=1)
    assert calls == {run.PRODUCT: 1, run.OTHER: 1}
    assert [spent[name] for name in (run.PRODUCT, run.OTHER, run.PYTHON)] == pytest.approx([10e-6, 5e-6, 15e-6])


def test_kernels_belong_to_the_label_that_the_gpu_shows_around_them() -> None:
    def event(name: str, start: float, end: float, where: DeviceType = DeviceType.CUDA) -> SimpleNamespace:
        return SimpleNamespace(name=name, device_type=where, time_range=SimpleNamespace(start=start, end=end))

    steps = [event(run.PYTHON, 0, 100, DeviceType.CPU), event(run.PYTHON, 100, 200, DeviceType.CPU)]
    labels = [event(run.PRODUCT, 10, 30), event(run.ATTENTION, 40, 60), event(run.PRODUCT, 110, 130)]
    kernels = [event("gemm", 12, 28), event("attend", 41, 59), event("norm", 70, 74), event("gemm", 111, 129)]
    found = run.by_kernel([*steps, *labels, *kernels], steps=2)
    assert found == {
        run.PRODUCT: pytest.approx(17e-6),
        run.ATTENTION: pytest.approx(9e-6),
        run.OTHER: pytest.approx(2e-6),
        run.IDLE: pytest.approx(72e-6),
    }
    assert run.by_kernel([*steps, *kernels], steps=2) is None


def test_a4_depends_on_what_was_measured() -> None:
    shapes = [LLAMA_13B, LLAMA_70B]
    few, many = LLAMA_13B.crossover_tokens / 100, LLAMA_13B.crossover_tokens * 2
    assert a4([dot(1, 0.02, few), dot(1, 0.05, many)], shapes).kind == "only when"
    assert a4([dot(1, 0.02, many), dot(1, 0.05, 2 * many)], shapes).kind == "holds"
    restless = Dot(LLAMA_13B, 1, many, (0.02, 0.05, 0.2))
    assert a4([dot(1, 0.02, few), restless], shapes).kind == "not shown"


def test_the_check_rewards_what_is_right() -> None:
    floor = 1e3 * LLAMA_70B.weight_bytes / (4 * 3.35e12)
    largest = simulated.within(simulated.stack(simulated_70b.TODAY), 1024, 0.03)
    rewards(checks(SWEEP, ROOF), floor, LLAMA_13B.crossover_tokens, "Multiplying", largest, (295, "Never"))
    half = {"295, never": 2, ("never", "never"): 1, (295, 295): 1, "never": 0}
    assert [checks(SWEEP, ROOF)("q5", answer).score for answer in half] == list(half.values())
    slow_reader = replace(ROOF, bandwidth=1e6)
    assert checks(SWEEP, slow_reader)("q3", "reading").score == 1


# ---------------------------------------------------------------- pictures and instruments


def test_seventy_billion_step_by_step() -> None:
    today, bare, sheet = (
        simulated.stack(name) for name in (simulated_70b.TODAY, simulated.NO_GRAPHS, "the data sheet")
    )
    one, two = (simulated.price(today, batch, 1024) for batch in (1, 2))
    assert two.itl < 1.1 * one.itl and sum(one.parts) == pytest.approx(one.itl)
    floor = on_paper(gpus=4).reading(LLAMA_70B.bytes(1, 1024))
    assert simulated.price(sheet, 1, 1024).itl == pytest.approx(floor, rel=0.02)
    assert simulated.slots_that_fit(today, 8192) < 64 < simulated.slots_that_fit(today, 1024)
    assert simulated.price(bare, 1, 1024).itl > 1.4 * one.itl
    assert simulated.price(bare, 256, 1024).itl == pytest.approx(simulated.price(today, 256, 1024).itl)
    kept = simulated.within(today, 1024, 0.03)
    assert simulated.price(today, kept, 1024).itl <= 0.03 < simulated.price(today, kept + 1, 1024).itl
    assert f"holds up to batch {kept}" in simulated.draw_parts(today, 1024, 0.03).title
    assert "25%" in str(simulated.tp_table()) and simulated.within(today, 1024, 0.001) == 0


def test_the_price_of_a_step_is_the_itl_of_a_run() -> None:
    on = simulated_70b.deployment(max_num_seqs=8)
    traffic = Independent(prompt=Fixed(tokens=768), output=Fixed(tokens=512))
    run = simulated_70b.serve(on, traffic, arrivals=AllAtOnce(), num_requests=32)
    assert run.summary().metrics["itl"].p50 == pytest.approx(simulated.price(on, 8, 1024).itl, rel=0.03)


def test_itl_drifts_over_a_long_answer_until_kv_has_no_room() -> None:
    on = simulated.stack(simulated.TODAY)
    few, many = simulated.drifted(on, 16), simulated.drifted(on, 128)
    assert few[-1][0] == simulated.ANSWER > many[-1][0]
    assert [itl for _, itl in few] == sorted(itl for _, itl in few) and few[-1][1] > 1.1 * few[0][1]
    room = simulated.slots_that_fit(on, simulated.PROMPT + many[-1][0])
    assert room >= 128 > simulated.slots_that_fit(on, simulated.PROMPT + many[-1][0] + 500)
    assert "no room" in simulated.draw_drift(on, 128).title.lower()
