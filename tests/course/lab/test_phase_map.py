"""The map is what was measured: how a change is judged, the stored runs, the picture, and measuring again."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from course.lab.lab import Lab
from course.lab.phase_map.measure import STORED, MeasuredPair, PhaseMap, Side, main, measure, on_the_engine, simulated
from course.lab.phase_map.picture import COLUMNS, draw_map, label, provenance_note
from course.lab.phase_map.techniques import CHAT, ROWS, EnginePair, Pair, Technique, at, many
from course.lab.svg import Picture
from course.lessons.start.contents import lessons
from course.simulator.cluster.fleet import ClusterConfig
from minillm.core.timeline import PHASES
from minillm.policies.config import EngineConfig


def side(in_time: float = 1.0, gap: float = 0.05, **phases: float) -> Side:
    return Side({**dict.fromkeys(PHASES, 0.0), **phases}, in_time, gap)


def pair(without: Side, with_it: Side) -> MeasuredPair:
    return MeasuredPair("some traffic", "made up", without, with_it)


@pytest.mark.parametrize(
    ("without", "with_it", "phase", "effect", "written"),
    [
        (side(queue=1.0), side(queue=0.25), "queue", "helps", "−0.75"),
        (side(queue=1.0), side(queue=2.0), "queue", "hurts", "+1.0"),
        (side(queue=1.0), side(queue=0.95), "queue", "nothing", "·"),  # less than a tenth of itself
        (side(queue=0.04, prefill=1.0), side(queue=0.0, prefill=1.0), "queue", "nothing", "·"),  # a 26th of TTFT
        (side(queue=0.06, prefill=1.0), side(queue=0.0, prefill=1.0), "queue", "helps", "−0.06"),
        (side(prefill=1.0), side(prefill=1.0, queue=0.5), "queue", "hurts", "+0.50"),
        (side(decode=1.0), side(decode=0.8), "decode", "helps", "−0.20"),
        (side(prefill=0.1, decode=9.9), side(prefill=0.3, decode=9.9), "prefill", "hurts", "+0.20"),  # of TTFT, not E2E
        (side(decode=1.0, stream=0.01), side(decode=1.0, stream=0.03), "stream", "nothing", "·"),  # of E2E
        (side(queue=1.0, decode=1.0), side(decode=1.0), "e2e", "helps", "−1.0"),
        (side(decode=1.0, gap=0.5), side(decode=1.0, gap=0.02), "worst_gap", "helps", "−480"),
        (side(decode=1.0, gap=0.005), side(decode=1.0, gap=0.0021), "worst_gap", "helps", "−2.9"),
        (side(queue=44.0), side(queue=31.6), "queue", "helps", "−12"),
        (side(1.0), side(0.6), "in_time", "hurts", "−40"),
        (side(0.5), side(0.9), "in_time", "helps", "+40"),
        (side(1.0), side(0.99), "in_time", "nothing", "·"),
    ],
)
def test_a_change_is_judged_against_itself_and_the_whole(without, with_it, phase, effect, written) -> None:
    found = pair(without, with_it)
    assert found.effect(phase) == effect
    assert label(found, phase) == written


def test_the_stored_map_has_every_row_and_says_where_it_comes_from() -> None:
    found = PhaseMap.stored()
    assert [(row.name, row.knob, row.lesson, row.heading) for row in found.rows] == [
        (row.name, row.knob, row.lesson, row.heading) for row in ROWS
    ]
    for row, source in zip(found.rows, ROWS, strict=True):
        assert (row.helps.words, row.hurts.words) == (source.helps.words, source.hurts.words)
        assert any(row.helps.effect(what) == "helps" for what in COLUMNS), row.name
        assert any(row.hurts.effect(what) != "helps" for what in COLUMNS), row.name
    assert {"device", "versions", "date", "command", "simulated"} <= found.provenance.keys()
    assert found.provenance["date"] in str(provenance_note(found))


def test_a_stored_map_is_read_back_as_it_was(tmp_path: Path) -> None:
    found = PhaseMap.stored()
    found.store(tmp_path / "map.json")
    assert PhaseMap.stored(tmp_path / "map.json") == found
    assert (tmp_path / "map.json").read_text() == STORED.read_text()


@pytest.mark.parametrize("name", ["continuous batching", "chunked prefill", "speculation"])
def test_a_simulated_row_comes_out_as_it_was_stored(name: str) -> None:
    """Nothing is typed in: the stored figures are those of the code as it is now."""
    row = next(row for row in ROWS if row.name == name)
    stored = next(row for row in PhaseMap.stored().rows if row.name == name)
    again = simulated(row.hurts)
    for phase in PHASES:
        assert again.with_it.phases[phase] == pytest.approx(stored.hurts.with_it.phases[phase], rel=1e-3, abs=1e-5)


def test_knobs_are_fields_and_headings_exist() -> None:
    known = lessons()
    elsewhere = {"--replicas", "prompt_pruning.py", "a property of the model", "no buffering proxy"}
    for row in ROWS:
        assert row.knob in {*EngineConfig.model_fields, *ClusterConfig.model_fields, *elsewhere}
        if row.lesson in known:
            assert row.heading in known[row.lesson].headings, row.name


SMALL = Technique(
    "more seats",
    "max_num_seqs",
    "02",
    "Surface",
    Pair("a", lambda: many(CHAT, 4.0, 20), at(max_num_seqs=1), at(max_num_seqs=16)),
    Pair("b", lambda: many(CHAT, 0.01, 3), at(max_num_seqs=1), at(max_num_seqs=16)),
)


def test_a_row_is_measured_by_running_both_pairs() -> None:
    found = measure(SMALL, lab=None)
    assert found.helps.effect("queue") == "helps"
    assert found.hurts.effect("queue") == "nothing"


def test_an_engine_pair_runs_on_the_real_engine(tiny_lab: Lab) -> None:
    found = on_the_engine(
        tiny_lab, EnginePair("short", 40, {"attention_backend": "eager"}, {"attention_backend": "sdpa"})
    )
    assert found.without.phases["prefill"] > 0 and found.with_it.phases["decode"] > 0
    assert found.without.worst_gap > 0


def test_one_row_that_is_measured_again_dates_itself_and_not_the_map() -> None:
    found = PhaseMap.stored()
    first, other, *_ = found.rows
    again = found.measured_again([replace(first, knob="turned")])
    assert again.provenance == found.provenance and again.rows[1] == other
    assert again.rows[0].knob == "turned" and again.rows[0].again["date"] in str(provenance_note(again))
    turned = found.measured_again([replace(first, helps=first.hurts)])
    assert 'stroke-width="2.5"' in draw_map(turned, found).body and 'stroke-width="2.5"' not in draw_map(found).body
    assert _bold_names(draw_map(again, found)) == {first.name} and not _bold_names(draw_map(found, found))
    assert any(row.again for row in found.rows), "a row that was measured apart from the map, before: not bold"
    new = found.measured_again([replace(first, name="brand new")])
    assert _bold_names(draw_map(new, found)) == {"brand new"}
    assert new.rows[-1].name == "brand new" and len(new.rows) == len(found.rows) + 1


def _bold_names(drawn: Picture) -> set[str]:
    """What is bold in the column of names."""
    return set(re.findall(r'<text x="4"[^>]*font-weight="bold"[^>]*>([^<]+)<', drawn.body))


def test_a_name_that_is_no_technique_measures_and_stores_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PhaseMap, "store", lambda self: pytest.fail("the map was written"))
    with pytest.raises(SystemExit):
        main(["prefix cachign"])
