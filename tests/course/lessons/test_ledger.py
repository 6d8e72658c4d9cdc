"""The ledger: every claim has a row and an experiment; results are kept, shown, filtered and exported."""

import ast
import csv
import io
import json
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest
from asserting import refuses_garbage, rewards
from made_ledger import experiments, finding, made_ledger
from made_run import made_run

from course.lab import matrix_zeros
from course.lab.claims import REGISTRY, Claim
from course.lab.lab import Lab
from course.lessons.lesson_06 import run as lesson_06
from course.lessons.lesson_07 import words as lesson_07
from course.lessons.lesson_07.simulated import CHAT
from course.lessons.lesson_09 import words as lesson_09
from course.lessons.lesson_14 import run, words
from course.lessons.lesson_14.check import checks
from course.lessons.lesson_14.ledger import (
    COURSE,
    Experiment,
    Ledger,
    LedgerPanel,
    find_experiments,
    fingerprint,
    words_of,
)
from course.lessons.lesson_14.rows import FAILED, GROUPS, UNMEASURED, Book, draw_map
from course.lessons.lesson_14.run import CLAIMED, COPIES, CROWD, LONELY, PAGES, TechniqueFactor
from course.lessons.lesson_14.words import d22

LESSONS = {entry.lesson for entry in REGISTRY.values()}


# ---------------------------------------------------------------- the registry


def test_every_claim_has_an_experiment_in_its_lesson() -> None:
    assert {claim: found.lesson for claim, found in find_experiments().items()} == {
        entry.id: entry.lesson for entry in REGISTRY.values()
    }


QUICK = ("A1", "A9", "A17", "B1", "D3", "E4")
"""One claim of each source, none of which takes a second."""


@pytest.mark.usefixtures("few_requests")
@pytest.mark.parametrize("claim", [pytest.param(c, marks=[pytest.mark.slow] * (c not in QUICK)) for c in REGISTRY])
def test_a_claim_measures_itself(claim: str, tiny_lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others in `make slow`: in `make test` each claim is measured by the cells of its lesson."""
    monkeypatch.setattr(lesson_07.simulated, "ladders", lambda: {"chats": lesson_07.simulated.ladder(CHAT, 60)})
    monkeypatch.setattr(lesson_06, "CHARACTERS_PER_TOKEN", 1)  # the tiny model's vocabulary is as small
    monkeypatch.setattr(lesson_09.run, "BATCHES", (1, 4))
    monkeypatch.setattr(matrix_zeros, "SHORT_SIDE", matrix_zeros.TINY_SIDE)
    assert find_experiments()[claim].run(tiny_lab).id == claim


# ---------------------------------------------------------------- results of code that has changed since


def test_the_fingerprint_covers_the_lessons_own_code_and_other_code_that_an_experiment_runs(tmp_path: Path) -> None:
    package = tmp_path / "lesson_77"
    for folder in (package, tmp_path / "tools" / "inner"):
        folder.mkdir(parents=True)
    (package / "words.py").write_text("a = 1")
    others = ("tools", "one.py")
    seen = {fingerprint(package, others, tmp_path)}
    for path in ("lesson_77/part.py", "tools/inner/part.py", "one.py", "one.toml"):
        (tmp_path / path).write_text("b = 1")
        seen.add(fingerprint(package, others, tmp_path))
    assert len(seen) == 5 and fingerprint(package, others, tmp_path) in seen


EVERY = ("claims", "lab", "run", "scale", "simulated_70b", "snapshot", "style", "waiting")
"""Modules of course.lab that every experiment stands on."""
FINDINGS = (
    *("bend", "control", "display", "finding", "know_cold", "noise", "pictures.compare", "predict", "services_70b"),
    "tables",
)
"""Modules of course.lab that only findings and predictions use."""
SHARED = {f"lab.{name}" for name in (*EVERY, *FINDINGS)}


@pytest.mark.parametrize(
    ("verdict", "told"),
    [
        ("wrong: there is no knee. Why.", "wrong. There is no knee."),
        ("wrong for one server: it's asked too much.", "wrong for one server: it's asked too much."),
        ("only when: true past capacity.", "in part. True past capacity."),
        ("only when it rains.", "in part: it rains."),
    ],
)
def test_a_verdict_reads_on_from_its_kind(tmp_path: Path, verdict: str, told: str) -> None:
    ledger = made_ledger(tmp_path)
    ledger.experiments["A1"] = Experiment("00", finding("A1", verdict), "v2")
    assert told in str(ledger.measure("A1"))


@pytest.mark.parametrize("lesson", sorted(LESSONS))
def test_experiments_name_the_code_that_they_take_from_elsewhere(lesson: str) -> None:
    module = words_of(lesson)
    named = getattr(module, "EXPERIMENT", ())
    assert all((COURSE / name).exists() for name in named)
    for name in imported(Path(module.__file__)):
        own = name in SHARED or name.startswith(f"lessons.lesson_{lesson}.")
        assert own or any(f"{name.replace('.', '/')}.py" == each for each in named), name


def imported(source: Path) -> set[str]:
    """Modules of the lab and of lessons that a file imports, such as "lessons.lesson_02.simulated"."""
    found = set()
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module.startswith(("course.lab", "course.lessons")):
            package = Path("/".join(node.module.split(".")))
            for alias in node.names:
                is_module = (COURSE.parent / package / f"{alias.name}.py").is_file()
                found.add(f"{node.module}.{alias.name}" if is_module else node.module)
    return {name.removeprefix("course.") for name in found}


# ---------------------------------------------------------------- a ledger of made experiments


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return made_ledger(tmp_path / "home")


def test_a_result_is_kept_and_found_again_by_another_ledger(ledger: Ledger) -> None:
    assert ledger.row("A1").kind == UNMEASURED
    row = ledger.measure("A1")
    assert row.kind == "holds" and row.is_done
    assert row.record.device == ledger.device and row.record.versions["minillm"] and row.record.when
    again = Ledger(ledger.lab, book=Book(ledger.book.path), experiments=experiments())
    assert again.row("A1").record == row.record


def test_a_failure_is_told_in_its_row_and_the_others_go_on(ledger: Ledger) -> None:
    shown = ledger.measure_all(["B1", "A1"])
    assert ledger.row("B1").kind == FAILED and not ledger.row("B1").is_done
    assert "no memory &lt;left&gt;" in shown.html
    assert ledger.row("A1").is_done
    assert [row.entry.id for row in ledger.rows(verdict=FAILED)] == ["B1"]


def test_measuring_all_goes_on_where_it_was(ledger: Ledger) -> None:
    calls: list[str] = []

    def counted(lab: Lab) -> Claim:
        calls.append("A1")
        return finding("A1", "holds")(lab)

    ledger.experiments["A1"] = Experiment("00", counted, "v1")
    ledger.measure_all()
    ledger.measure_all()
    assert calls == ["A1"]
    ledger.measure_all(["A1"], again=True)
    assert calls == ["A1", "A1"]
    ledger.experiments["A1"] = Experiment("00", counted, "v2")
    assert ledger.row("A1").is_old and "has changed" in ledger.row("A1").circumstances
    ledger.measure_all()
    assert calls == ["A1"] * 3


def test_an_interruption_keeps_what_was_measured(ledger: Ledger, capsys: pytest.CaptureFixture) -> None:
    def interrupted(lab: Lab) -> Claim:
        raise KeyboardInterrupt

    ledger.experiments["A2"] = Experiment("02", interrupted, "v1")
    with pytest.raises(KeyboardInterrupt, match="Stopped at A2"):
        ledger.measure_all(["A1", "A2", "D18"])
    assert ledger.row("A1").is_done and ledger.row("D18").kind == UNMEASURED


def test_an_unknown_claim_and_a_missing_experiment_are_named(ledger: Ledger) -> None:
    with pytest.raises(LookupError, match="no claim 'Z9'"):
        ledger.measure("Z9")
    with pytest.raises(LookupError, match="lesson 12 has no experiment"):
        ledger.measure("A18")
    ledger.experiments["A3"] = Experiment("03", finding("A1", "holds"), "v1")
    assert "is about A1" in ledger.measure("A3").finding


def test_results_of_two_machines_stand_side_by_side(ledger: Ledger) -> None:
    ledger.measure("A1")
    mine = ledger.row("A1").record
    ledger.book.put(replace(mine, device="NVIDIA H100 80GB HBM3", verdict="wrong: no", when="2999-01-01T00:00:00"))
    row = ledger.row("A1")
    assert row.record == mine and row.others[0].device.startswith("NVIDIA")
    assert "On NVIDIA H100 80GB HBM3: wrong." in row._repr_mimebundle_()["text/html"]
    elsewhere = Ledger(ledger.lab, book=ledger.book, experiments=experiments())
    elsewhere.device = "a third machine"
    assert not elsewhere.row("A1").is_done and "NVIDIA H100" in elsewhere.row("A1").circumstances


def test_the_short_form_is_kept_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINILLM_HOME", str(tmp_path))
    short, whole = (Ledger(Lab(short=short), experiments=experiments()) for short in (True, False))
    assert short.book.path != whole.book.path and whole.book.path.is_relative_to(tmp_path)
    assert set(short.chosen) == {"A1", "D18", "B1"} & set(short.chosen) and set(whole.chosen) == set(experiments())


def test_filters_by_source_phase_verdict_and_lesson(ledger: Ledger) -> None:
    ledger.measure_all()
    assert {row.entry.id[0] for row in ledger.rows(source="systems")} == {"E"}
    assert all("stream" in row.entry.phases for row in ledger.rows(phase="stream"))
    assert [row.entry.id for row in ledger.rows(verdict="wrong")] == ["D18"]
    assert "A2" in {row.entry.id for row in ledger.rows(lesson="09")}
    assert ledger.rows(source="F", verdict="wrong") == []
    assert "No claim" in str(ledger.table(source="F", verdict="wrong"))
    assert ledger.counts()["wrong"] == 1 and ledger.counts()[FAILED] == 1
    assert sum(ledger.counts().values()) == len(REGISTRY)


def test_exports_hold_every_row(ledger: Ledger, tmp_path: Path) -> None:
    ledger.measure_all()
    for name in ("all.csv", "all.json", "all.md"):
        assert f"{len(REGISTRY)} rows, {len(experiments())} of them" in str(ledger.export(tmp_path / name))
    rows = list(csv.DictReader(io.StringIO((tmp_path / "all.csv").read_text())))
    assert [row["id"] for row in rows] == list(REGISTRY)
    assert json.loads((tmp_path / "all.json").read_text())[0]["kind"] == "holds"
    markdown = (tmp_path / "all.md").read_text().splitlines()
    assert len(markdown) == len(REGISTRY) + 2
    assert all(len(re.findall(r"(?<!\\)\|", line)) == 5 for line in markdown)
    ledger.export("mine.json")
    assert (ledger.book.path.parent / "mine.json").is_file()


# ---------------------------------------------------------------- pictures and panel


@pytest.mark.parametrize("group", GROUPS)
def test_the_map_has_a_tile_for_every_claim(ledger: Ledger, group: str) -> None:
    ledger.measure_all()
    picture = draw_map(ledger.rows(), group, lit=["A1"])
    root = ET.fromstring(picture.svg())
    words = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert set(REGISTRY) <= set(words)
    assert "D18 wrong" in picture.alternative


def test_the_panel_filters_and_measures(ledger: Ledger) -> None:
    panel = LedgerPanel(ledger)
    assert len(panel.in_sight) == len(REGISTRY) and panel.claim.value in panel.claim.options
    panel.filters["source"].value = "systems"
    assert "A1" not in panel.in_sight and "E1" in panel.in_sight
    assert panel.views["A1"].layout.display == "none" and panel.views["E1"].layout.display is None
    assert panel.count.value == f"Showing {len(panel.in_sight)} of {len(panel.ledger.rows())} claims."
    panel.filters["source"].value = "all"
    before = panel.map.value
    panel.claim.value = "A1"
    panel.one.click()
    panel.wait()
    assert ledger.row("A1").kind == "holds" and "● holds" in panel.views["A1"].value
    assert panel.claim.value == "A1" and panel.map.value != before
    assert "A18" not in panel.claim.options  # nothing measures it
    panel.filters["verdict"].value = UNMEASURED
    panel.missing.click()
    panel.wait()
    assert ledger.row("D18").kind == "wrong" and ledger.row("B1").kind == FAILED
    panel.filters["verdict"].value = "wrong"
    assert panel.in_sight == ["D18"]
    assert "D18" in panel.static_html() and "A18</b>" not in panel.static_html()


def test_stop_lets_no_other_claim_begin(ledger: Ledger) -> None:
    panel = LedgerPanel(ledger)

    def stopping(lab: Lab) -> Claim:
        panel.stop()
        return finding("A1", "holds")(lab)

    ledger.experiments["A1"] = Experiment("00", stopping, "v1")
    panel.measure_missing()
    panel.wait()
    assert ledger.row("A1").is_done and ledger.row("D18").kind == UNMEASURED
    assert panel.stop_button.disabled and not panel.one.disabled


@pytest.mark.parametrize("method", ["rows", "row", "put"])
def test_a_book_that_cannot_be_used_is_told_and_the_buttons_come_back(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    panel = LedgerPanel(ledger)

    def broken(*_: object, **__: object) -> object:
        raise OSError("stale file handle")

    panel.claim.value = "D18"
    with monkeypatch.context() as patch:
        patch.setattr(ledger.book if method == "put" else ledger, method, broken)
        panel.measure()
        panel.wait()
    assert "stale file handle" in panel.message.value
    assert panel.stop_button.disabled and not panel.one.disabled and not panel.missing.disabled
    panel.measure()
    panel.wait()
    assert ledger.row("D18").kind == "wrong"


def test_what_a_lesson_measured_itself_is_kept(ledger: Ledger) -> None:
    row = ledger.keep(finding("A1", "holds. Seen.")(ledger.lab))
    assert row.is_done and row.kind == "holds" and "in its lesson" in row.circumstances
    assert "1 of them measured" in str(ledger.export("all.csv"))
    with pytest.raises(LookupError, match="has no experiment"):
        ledger.keep(finding("A18", "holds")(ledger.lab))


# ---------------------------------------------------------------- D22: the table of techniques


def cells(**changes: tuple[float, ...]) -> list[TechniqueFactor]:
    """All as claimed, on every workload; a keyword is a technique's factors on the four workloads."""
    found = []
    for technique, claimed in CLAIMED.items():
        factors = changes.get(technique.replace(" ", "_"), (claimed,) * 4)
        found += [TechniqueFactor(technique, name, (f,)) for name, f in zip((CROWD, LONELY, PAGES, COPIES), factors)]
    return found


ALONE = {"static_batching": (1.5, 1.0, 1.5, 1.0), "continuous_batching": (3.0, 1.0, 3.0, 1.0)}
"""Nobody to share a batch with on the second and the fourth."""


def test_d22_wants_a_workload_beside_each_figure() -> None:
    varied = d22(cells(**ALONE, speculation=(0.8, 1.0, 1.0, 2.3)))
    assert varied.verdict.startswith("only when")
    assert "speculation with a crowd × 0.80" in varied.verdict and "static batching with" not in varied.verdict
    steady = {"static_batching": (1.2, 1.0, 1.2, 1.0), "continuous_batching": (1.4, 1.0, 1.4, 1.0)}
    assert d22(cells(**steady)).verdict.startswith("wrong")


def test_equal_work_that_takes_unequal_time_says_that_nothing_is_shown() -> None:
    noisy = cells(**{**ALONE, "static_batching": (1.5, 0.7, 1.5, 1.0)})
    assert run.noise(noisy) == pytest.approx(1 / 0.7)
    assert d22(noisy).verdict.startswith("not shown") and "factor of 1.4" in d22(noisy).verdict
    assert "factor of 1.4" in words.most_fickle(noisy)


def test_factors_are_ratios_of_means() -> None:
    one, many = made_run(num_requests=4, apart=0.0), made_run(num_requests=1)
    runs = {"none": one, "static batching": one, "continuous batching": many, "speculation": many}
    found = run.factors_of(runs, None)
    assert found["static batching"] == 1.0 and found["compression"] == 1.0 and found["speculation"] == 1.0
    assert found["continuous batching"] == pytest.approx((sum(one.e2e) / 4) / many.e2e[0])
    assert found["streaming"] == pytest.approx(many.e2e[0] / many.ttft[0])
    assert run.factors_of(runs, one)["compression"] == pytest.approx(many.e2e[0] / (sum(one.e2e) / 4))


def test_the_table_is_measured_on_a_real_engine(tiny_lab: Lab) -> None:
    found = run.measure(tiny_lab, rounds=1)
    assert {(cell.technique, cell.workload) for cell in found} == {
        (technique, name) for technique in CLAIMED for name in (CROWD, LONELY, PAGES, COPIES)
    }
    assert all(cell.factor > 0 for cell in found)
    fickle = words.most_fickle(found)
    assert isinstance(fickle, str) == (run.noise(found) > run.NOISY)
    assert isinstance(fickle, str) or fickle.answer in CLAIMED


# ---------------------------------------------------------------- the check


def test_the_check_rewards_right_answers_and_names_the_mistake(ledger: Ledger) -> None:
    ledger.measure_all()
    crowded = {"static_batching": (1.2, 1.0, 1.0, 1.0), "continuous_batching": (3.0, 1.0, 1.0, 1.0)}
    found = cells(speculation=(0.5, 1.0, 1.0, 5.0), **crowded)
    check = checks(ledger, found)
    rewards(check, 1, "d18", "speculation", CLAIMED["continuous batching"])
    assert check("q3", "streaming").score == 0 and check("q5", ["A2", "B1"]).score == 1
    refuses_garbage(check, 5)
    noisy = checks(ledger, cells(**{**crowded, "static_batching": (1.2, 0.5, 1.0, 1.0)}))
    assert noisy("q3", "streaming").score == 1
