"""Which difference is called noise: by arithmetic, and by simulating machines whose noise is known."""

import json
import math
import random
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_run import made_config, made_run
from scipy.optimize import minimize_scalar
from scipy.stats import t as student

from course.lab.noise import (
    CEILING,
    ENOUGH,
    FILE,
    MOST_REPEATS,
    PRIOR_REPEATS,
    PRIOR_SPREAD,
    Noise,
    NoiseLog,
    NoiseVerdict,
    band,
    figures,
    repeats_of,
    student_t,
)
from course.lab.pictures.phases import draw_phases
from course.lab.summary import SAME, Comparison, headline
from course.lab.svg import INK, SOFT

RECORD = Path(__file__).parents[3] / "course/data/measured/equal_runs_2core.json"
SLOW, FAST = made_run(config=made_config(max_num_seqs=1)), made_run(config=made_config(max_num_seqs=8))
VALUES = st.one_of(st.floats(min_value=0, max_value=1e4), st.just(math.inf), st.just(math.nan), st.just(-1.0))
HISTORIES = st.lists(
    st.lists(st.fixed_dictionaries({}, optional={"E2E p50": VALUES, "queue": VALUES}), max_size=8), max_size=20
)


def noise_of(*ratios: float) -> Noise:
    """The noise of settings that ran once more for each of these ratios to the first run."""
    return Noise(repeats_of([[{"E2E p50": 1.0}, {"E2E p50": ratio}] for ratio in ratios]))


@given(HISTORIES, st.floats(1e-6, 1e4), st.floats(1e-6, 1e4))
@settings(max_examples=300, deadline=None)
def test_no_history_calls_a_ratio_beyond_the_ceiling_noise(history: list, before: float, after: float) -> None:
    noise = Noise(repeats_of(history))
    for name in ("E2E p50", "queue", "never measured"):
        if max(before, after) > CEILING * min(before, after):
            assert noise.verdict(name, before, after) is not NoiseVerdict.SAME
        if noise.limit(name) is None:
            assert noise.verdict(name, before, after) is NoiseVerdict.UNSURE


@pytest.mark.parametrize("wild", [1.7, 1 / 1.7, 5.0, 100.0])
def test_one_wild_repeat_neither_blinds_nor_stays(wild: float) -> None:
    """The lesson's own question: rag, the cache off, after one repeat of it on."""
    once = noise_of(wild)
    assert once.limit("E2E p50") < 1.61
    assert once.verdict("E2E p50", 0.241, 1.33) is NoiseVerdict.CHANGED
    for quiet in (3, 7, 15):
        for history in ([wild, *[1.02] * quiet], [*[1.02] * quiet, wild]):
            assert noise_of(*history).limit("E2E p50") < CEILING
    assert noise_of(wild, *[1.02] * 15).limit("E2E p50") < 1.2


@pytest.mark.parametrize("num_runs", range(2, 9))
def test_one_wild_run_is_one_wild_repeat_wherever_it_stands(num_runs: int) -> None:
    """Often it is the first, on a cold machine."""
    for wild in range(num_runs):
        values = [1.0, 1.02, 0.99, 1.01, 1.0, 1.02, 1.0, 0.99][:num_runs]
        values[wild] = 9.0
        limit = Noise(repeats_of([[{"E2E p50": value} for value in values]])).limit("E2E p50")
        assert limit < 1.61 and (limit < CEILING or num_runs <= 3)


@pytest.mark.parametrize("no_number", [math.inf, -math.inf, math.nan])
def test_what_is_no_number_is_neither_changed_nor_the_same(no_number: float) -> None:
    quiet = noise_of(*[1.01] * 5)
    for before, after in ((no_number, 1.0), (1.0, no_number), (no_number, no_number)):
        assert quiet.verdict("E2E p50", before, after) is NoiseVerdict.UNSURE


def test_a_stored_figure_that_is_no_number_costs_the_others_nothing(home: Path) -> None:
    """An earlier version kept infinity and NaN, which JSON writes as null."""
    home.mkdir(exist_ok=True)
    (home / "noise.json").write_text('{"settings": {"m-t/c": [{"x": 1.0, "y": null}, {"x": 2.0, "y": 1e400}]}}')
    assert FILE.read().settings == {"m-t/c": [{"x": 1.0}, {"x": 2.0}]}
    assert not list(home.glob("*.broken*"))


def test_a_machine_gets_no_repeats_of_one_whose_name_begins_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    log, hyphens = NoiseLog(), replace(SLOW, workload="long-document")
    monkeypatch.setattr("platform.node", lambda: "lab-2")
    for _ in range(2):
        log.add(hyphens)
    assert log.of(SLOW).num_repeats == 1
    monkeypatch.setattr("platform.node", lambda: "lab")
    assert log.of(SLOW).num_repeats == 0


def test_what_is_recent_counts_more_and_a_machine_that_became_quiet_is_quiet() -> None:
    busy, quiet = [1.5, 0.6] * 5, [1.02, 0.99] * 8
    assert noise_of(*quiet, *busy).limit("E2E p50") > noise_of(*busy, *quiet).limit("E2E p50")
    assert noise_of(*busy).limit("E2E p50") > CEILING > noise_of(*busy, *quiet).limit("E2E p50")


def test_repeats_of_all_settings_are_pooled() -> None:
    apart = [math.log(ratio) / math.sqrt(2) for ratio in (1.05, 0.9, 1.1, 1.02)]
    assert noise_of(1.05, 0.9, 1.1, 1.02).repeats["E2E p50"] == pytest.approx(apart)
    weights = [0.5 ** (age / 10) for age in (3, 2, 1, 0)]
    freedom = PRIOR_REPEATS + sum(weights)
    square = (PRIOR_REPEATS * PRIOR_SPREAD**2 + sum(w * d * d for w, d in zip(weights, apart))) / freedom
    assert band(apart) == pytest.approx(math.exp(student.ppf(0.975, freedom) * math.sqrt(2 * square)), rel=1e-4)


@pytest.mark.parametrize("freedom", [PRIOR_REPEATS, 4.5, 7.3, 18.0, 300.0])
def test_students_t_without_scipy_is_scipys(freedom: float) -> None:
    for probability in (0.9, 0.975):
        assert student_t(probability, freedom) == pytest.approx(student.ppf(probability, freedom), rel=1e-3)


def test_few_repeats_are_said_to_be_few() -> None:
    few, enough = noise_of(*[1.01] * (ENOUGH - 1)), noise_of(*[1.01] * ENOUGH)
    assert (
        few.verdict("E2E p50", 1.0, 1.4) is NoiseVerdict.UNSURE
        and enough.verdict("E2E p50", 1.0, 1.4) is NoiseVerdict.CHANGED
    )
    assert few.verdict("E2E p50", 1.0, 1.05) is NoiseVerdict.SAME, "well inside what any machine repeats to"
    assert noise_of(*[2.0, 0.5] * 6).verdict("E2E p50", 1.0, 2.0) is NoiseVerdict.UNSURE, "but never the same"


@pytest.mark.parametrize(
    ("scatter", "repeats", "claimed"),
    [
        *((0.03, 1, 0.05), (PRIOR_SPREAD, 1, 0.05), (PRIOR_SPREAD, 3, 0.05), (PRIOR_SPREAD, 20, 0.05)),
        *((0.2, 3, 1 / 5), (0.2, 8, 1 / 8), (0.2, 20, 1 / 11)),
    ],
)
@pytest.mark.parametrize("per_setting", [1, 2, 7])
def test_equal_runs_are_called_different_as_rarely_as_is_claimed(
    scatter: float, repeats: int, claimed: float, per_setting: int
) -> None:
    """Whether the repeats are of many settings or of few."""
    rng, trials, wrong = random.Random(7), 2000, 0
    sizes = [min(per_setting, repeats - start) for start in range(0, repeats, per_setting)]
    for _ in range(trials):
        groups = [[{"x": rng.lognormvariate(0, scatter)} for _ in range(1 + size)] for size in sizes]
        before, after = (rng.lognormvariate(0, scatter) for _ in range(2))
        wrong += Noise(repeats_of(groups)).verdict("x", before, after) is NoiseVerdict.CHANGED
    assert wrong / trials < claimed + 2 * math.sqrt(claimed / trials)


def test_the_nearer_of_two_runs_measures_the_same_spread() -> None:
    rng = random.Random(7)
    thirds = [repeats_of([[{"x": rng.lognormvariate(0, 0.1)} for _ in range(3)]])["x"][1] for _ in range(20_000)]
    assert math.sqrt(sum(each**2 for each in thirds) / len(thirds)) == pytest.approx(0.1, rel=0.03)


def test_a_real_change_is_seen() -> None:
    rng = random.Random(7)
    noise = Noise({"x": [rng.gauss(0, 0.05) for _ in range(8)]})
    seen = [noise.verdict("x", rng.lognormvariate(0, 0.05), 1.5 * rng.lognormvariate(0, 0.05)) for _ in range(500)]
    assert seen.count(NoiseVerdict.CHANGED) > 450


def test_the_prior_is_no_narrower_than_what_was_recorded() -> None:
    """Its spread is rounded up from what fits the recorded pairs of equal runs best."""
    apart = [math.log1p(moved) / math.sqrt(2) for moved in json.loads(RECORD.read_text())["moved"]]
    fitted = minimize_scalar(lambda s: -student.logpdf(apart, PRIOR_REPEATS, scale=s).sum(), bounds=(0.01, 0.5)).x
    assert fitted < PRIOR_SPREAD < 1.5 * fitted


def test_the_log_pools_a_machines_settings_and_keeps_the_latest(monkeypatch: pytest.MonkeyPatch) -> None:
    log = NoiseLog()
    other = made_run(num_requests=4)
    for run in (SLOW, FAST, replace(SLOW, stopped=True), other):
        log.add(run)
    assert log.of(SLOW).num_repeats == 0
    log.add(SLOW)
    assert log.of(FAST).num_repeats == log.of(other).num_repeats == 1
    for _ in range(20):
        log.add(SLOW)
    assert log.of(SLOW).num_repeats == MOST_REPEATS - 1
    monkeypatch.setattr("platform.node", lambda: "another machine")
    assert log.of(SLOW).num_repeats == 0


def test_what_an_earlier_version_kept_is_read_and_blinds_no_longer(home: Path) -> None:
    """Two runs that lay 70% apart, as they were kept when the band became 600 times."""
    log = NoiseLog()
    log.add(SLOW)
    log.add(SLOW)
    kept = json.loads((home / "noise.json").read_text())
    (runs,) = kept["settings"].values()
    runs[1] = {name: 1.7 * value for name, value in runs[1].items()}
    (home / "noise.json").write_text(json.dumps(kept))
    compared = Comparison(FAST, SLOW, NoiseLog().of(FAST))
    assert compared.noise.num_repeats == 1
    assert "more than noise: TTFT p50 −" in compared.chips()


def test_a_comparison_says_which_differences_count() -> None:
    felt = figures(SLOW)
    repeated = [[felt, {name: value * by for name, value in felt.items()}] for by in (1.01, 0.99, 1.0)]
    quiet = Comparison(FAST, SLOW, Noise(repeats_of(repeated)))
    assert "more than noise: TTFT p50 −" in quiet.chips() and "(3 repeats here)" in quiet.chips()
    assert quiet.told("E2E p50", 2.0, 2.2) == SAME and quiet.told("E2E p50", 2.0, 1.0) == "−50%"
    assert "within the noise" in Comparison(replace(SLOW, config=FAST.config), SLOW, quiet.noise).chips()
    busy = Comparison(FAST, SLOW, noise_of(*[3.0, 0.3] * 5))
    assert busy.told("E2E p50", 1.0, 2.0) == "+100%?" and busy.told("E2E p50", 1.0, 1.2) == "+20%?"
    assert "not enough repeats" in busy.chips() and SAME not in headline(busy)
    none_yet = Comparison(FAST, SLOW)
    assert "not enough repeats" in none_yet.chips() and none_yet.told("E2E p50", 1.0, 1.01) == "+1%"


def test_equal_settings_differ_by_noise_but_a_bar_that_doubled_is_not_called_unchanged() -> None:
    compared = Comparison(SLOW, replace(FAST, config=SLOW.config))
    assert "nothing changed" in compared.chips()
    assert compared.told("E2E p50", 1.0, 1.3) == SAME and compared.told("E2E p50", 1.0, 3.0) == "+200%"
    yours = Comparison(SLOW, replace(FAST, config=SLOW.config), name="built-in")
    assert yours.told("E2E p50", 1.0, 1.1) == "+10%", "another scheduler on the same settings is no repeat"


def test_what_was_nothing_before_is_new() -> None:
    compared = Comparison(SLOW, FAST, noise_of(*[1.0] * 5))
    assert compared.told("E2E p50", 0.0, 0.7) == "new" and compared.told("E2E p50", 0.0, 0.0) == ""


@pytest.mark.parametrize("noise", [Noise(), noise_of(5.0), Noise({"queue": [2.0, -2.0] * 9, "prefill": [1.0]})])
def test_a_phase_that_doubled_is_never_grey(noise: Noise) -> None:
    picture = draw_phases(Comparison(SLOW, FAST, noise), {}).svg()
    was, now = FAST.mean_phases()["queue"], SLOW.mean_phases()["queue"]
    assert now > 2 * was
    told = re.search(r"<text[^>]*>was [^<]*</text>", picture).group()
    assert SAME not in told and INK in told and SOFT not in told
