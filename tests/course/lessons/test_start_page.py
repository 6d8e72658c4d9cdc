"""The start page: progress is kept and never in the way, paths and times follow the lessons, cards come when due."""

import csv
import io
import json
import re
import sys
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from rounds.players import play, staff

from course.drills import attempts
from course.drills.attempts import attempt_of
from course.drills.library import FLAGSHIP, find_drill
from course.drills.sitting import sit
from course.grading import Checks, Criterion
from course.incidents import Incident, daily
from course.lab import json_store, progress
from course.lab.lab import Lab
from course.lab.phase_map.measure import PhaseMap
from course.lab.phase_map.picture import show_map_folded
from course.lab.predict import MeasuredAnswer, Prediction
from course.lab.progress import Answered, LessonRecord, Progress
from course.lab.speculation_gain import emitted
from course.lessons.start import contents, resume
from course.lessons.start.cards import CARDS, Card, Deck, cards_of
from course.lessons.start.review import Review, export
from course.lessons.start.today import Today
from course.napkin.library import TEMPLATES
from course.rounds.history import keep
from course.rounds.library import find_round
from course.rounds.sitting import RoundSitting
from course.simulator.cost.models import find_model
from course.simulator.cost.profile import find_profile

ROOT = Path(__file__).parents[3]


def passes(answer: object) -> tuple[Criterion, ...]:
    return (Criterion("right", float(answer == 1), 2, ""),)


def test_a_lesson_tells_its_progress_by_itself(home: Path) -> None:
    Lab()
    bet = Prediction("Which?", ["a", "b"], key="doubling").choose("a").lock()
    assert progress.FILE.read().lessons["06"].predictions == {"doubling": None}
    bet.score(MeasuredAnswer("a", "it was a"))
    check = Checks({"q1": passes, "q2": passes})
    check("q1", 1)
    check("q1", 0)  # a later, worse answer does not take points away
    check("q2", ...)
    check("q9", 1)
    record = progress.FILE.read().lessons["06"]
    assert record.predictions == {"doubling": 1.0}
    assert record.checks == {"q1": Answered(score=1, possible=2)}
    assert [path.name for path in home.iterdir() if not path.name.startswith(".")] == ["progress.json"]


def test_a_lock_in_another_session_leaves_the_score(home: Path) -> None:
    progress.note_prediction("doubling", 0.5)
    progress.note_prediction("doubling", None)
    assert progress.FILE.read().lessons["06"].predictions == {"doubling": 0.5}


def test_nothing_is_kept_outside_of_notebooks(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JPY_SESSION_NAME")
    progress.note_opened()
    progress.note_check("q1", 1, 1)
    assert not home.exists()
    assert progress.FILE.read() == Progress()


def test_vs_code_names_its_notebook_in_a_variable(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JPY_SESSION_NAME")
    shell = SimpleNamespace(user_ns={"__vsc_ipynb_file__": "C:\\course\\06_decode.ipynb"})
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert json_store.lesson_here() == "06"


@pytest.mark.parametrize(
    "session",
    [
        "course/start.ipynb",
        "elsewhere/notes.ipynb",
        "exercises/04_prefix_caching.ipynb",
        "/home/ada/minillm/solutions/04_prefix_caching.ipynb",
        "C:\\minillm\\exercises\\04_prefix_caching.ipynb",
    ],
)
def test_other_notebooks_are_no_lessons(session: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JPY_SESSION_NAME", session)
    progress.note_opened()
    assert not home.exists()


@pytest.mark.parametrize(("folder", "lesson"), [("exercises", None), ("course", "04")])
def test_a_name_without_a_folder_is_looked_for_where_the_kernel_began(
    folder: str, lesson: str | None, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / folder).mkdir()
    monkeypatch.chdir(tmp_path / folder)
    monkeypatch.setenv("JPY_SESSION_NAME", "04_prefix_caching.ipynb")
    assert json_store.lesson_here() == lesson


def test_without_a_folder_to_write_to_a_lesson_goes_on_and_says_so_once(home: Path) -> None:
    home.write_text("a file where the folder should be")
    said: list[str] = []
    file = json_store.JsonStore("progress.json", Progress, say=said.append)
    for _ in range(3):
        file.change(lambda content: content.lesson("06"))
        assert file.read() == Progress()
    assert len(said) == 1 and "The lesson works anyway" in said[0]


# ---------------------------------------------------------------- where to go on

SOURCE = """# %% [markdown]
# # 07 · A *small* lesson
#
# ## Five minutes
#
# one two three

# %%
bet = lab.predict(
    "first", "?")

# %% [markdown]
# ## The lab

# %%
again = lab.predict("second", "?")

# %% [markdown]
# ## Check yourself

# %%
check.card()
"""


@pytest.fixture
def lesson(tmp_path: Path) -> contents.Lesson:
    path = tmp_path / "07_small.py"
    path.write_text(SOURCE)
    asked = tmp_path / "lessons" / "lesson_07" / "check.py"
    asked.parent.mkdir(parents=True)
    asked.write_text('questions = {"q1": Question("Why?")}')
    return contents.Lesson(path)


def test_a_lesson_is_read_off_its_source(lesson: contents.Lesson) -> None:
    assert (lesson.number, lesson.title, lesson.file) == ("07", "A small lesson", "07_small.ipynb")
    assert lesson.bets == {"first": 1, "second": 3}
    assert lesson.questions == {"q1": 5}
    surface = 3 / contents.WORDS_A_MINUTE + contents.MINUTES_A_CELL + contents.MINUTES_A_BET
    title = 4 / contents.WORDS_A_MINUTE
    assert lesson.minutes("Five minutes") == pytest.approx(surface + title)
    assert lesson.minutes() == pytest.approx(
        surface + 2 * contents.MINUTES_A_CELL + contents.MINUTES_A_BET + contents.MINUTES_A_QUESTION + title
    )


@pytest.mark.parametrize("lesson", contents.lessons().values(), ids=lambda lesson: lesson.number)
def test_a_lesson_states_the_minutes_that_the_start_page_counts(lesson: contents.Lesson) -> None:
    words = ["five", "ten", "fifteen", "twenty", "twenty-five", "thirty", "thirty-five", "forty", "forty-five"]
    stated = [5 * words.index(found) + 5 for found in re.findall(r"- \*\*[\w ]+\*\* \(([\w-]+)", lesson.cells[0][1])]
    assert len(stated) >= 3 and sum(stated) == pytest.approx(lesson.minutes(), rel=1 / 6)
    drills = (
        re.findall(r"DrillDesk\((\S+)\)  # (\d+) minutes", lesson.source.read_text()) if lesson.number == "13" else ()
    )
    assert all(find_drill(name.strip('"').replace("FLAGSHIP", FLAGSHIP)).minutes == int(m) for name, m in drills)


def test_resume_leads_to_the_first_cell_with_something_left(lesson: contents.Lesson) -> None:
    record = LessonRecord(opened="2026-01-01", last="2026-01-02")
    done = Progress(lessons={"07": record})
    known = {"07": lesson}

    def link() -> str:
        return resume.next_place(known, done).link

    assert link() == "07_small.ipynb#cell-id=cell-01"
    record.predictions["first"] = None  # locked, not scored
    assert link() == "07_small.ipynb#cell-id=cell-01"
    record.predictions["first"] = 0.0
    assert link() == "07_small.ipynb#cell-id=cell-03"
    record.predictions["second"] = 1.0
    assert link() == "07_small.ipynb#cell-id=cell-05"
    assert resume.state(lesson, record) == resume.BEGUN
    record.checks["q1"] = Answered(score=0, possible=1)
    assert resume.state(lesson, record) == resume.DONE
    assert resume.next_place(known, done) is None


def test_resume_begins_with_the_lesson_that_was_open_last(lesson: contents.Lesson) -> None:
    known = {**contents.lessons(), "07": lesson}
    assert resume.next_place(known, Progress()).link == "00_start_here.ipynb"
    done = Progress(
        lessons={
            "02": LessonRecord(opened="2026-01-01", last="2026-01-05"),
            "07": LessonRecord(opened="2026-01-01", last="2026-01-02"),
        }
    )
    assert resume.next_place(known, done).link.startswith("02_queue.ipynb#cell-id=")


def test_the_cells_that_resume_links_to_are_in_the_notebooks() -> None:
    for lesson in contents.lessons().values():
        cells = json.loads(lesson.source.with_suffix(".ipynb").read_text())["cells"]
        marks = {place: f'"{key}"' for key, place in lesson.bets.items()}
        marks |= dict.fromkeys(lesson.questions.values(), contents.CARD)
        for place, mark in marks.items():
            assert cells[place]["id"] == f"cell-{place:02d}"
            assert mark in "".join(cells[place]["source"])


@pytest.mark.parametrize("path", contents.PATHS, ids=lambda path: path.name)
def test_a_path_names_each_lesson_once_with_sections_that_exist(path: contents.LearningPath) -> None:
    known = contents.lessons()
    assert len(set(path.numbers)) == len(path.numbers)
    assert set(path.numbers) <= set(known)
    for stage in path.stages:
        for stop in stage.stops:
            if stop.number in known:
                assert set(stop.sections) <= {contents.EARLIER.get(each, each) for each in known[stop.number].headings}
        if any(stop.number in known for stop in stage.stops):
            assert contents.minutes_of_stage(stage, known) > 0


def test_two_weeks_are_fourteen_days_of_about_an_hour_that_end_in_a_mock() -> None:
    days, known = contents.PATHS[0].stages, contents.lessons()
    minutes = [contents.minutes_of_stage(day, known) for day in days]
    assert len(days) == 14 and all(25 <= each <= 90 for each in minutes) and 9 <= sum(minutes) / 60 <= 15
    practice = [each for day in days for each in day.practice]
    assert "drill mock" in practice[-2].command
    links = [each.link for each in practice if each.link]
    assert links and all((contents.COURSE / link).resolve().is_file() for link in links)
    for kind in ("exercise", "drill", "incident"):
        assert sum(kind in each.do for each in practice) >= 2


def test_paths_stand_behind_tabs_with_what_has_been_done(home: Path) -> None:
    shown = resume.show_paths().html
    assert [shown.count(f'<label for="paths-{i}">') for i in range(5)] == [1, 1, 1, 1, 0]
    assert "◐" not in shown.partition("<small>")[0]
    progress.note_opened()
    assert "◐ 06" in resume.show_paths().html
    assert set(resume.shown_of_progress()) <= {
        source for kind, source in contents.Lesson(contents.COURSE / "start.py").cells
    }


def test_the_map_is_folded_until_lesson_06(home: Path) -> None:
    found = PhaseMap.stored()
    assert show_map_folded(found).html.startswith("<details><summary>")
    progress.note_opened()
    assert show_map_folded(found).html.startswith("<details open><summary>")


def test_progress_is_erased_only_when_asked_twice(home: Path) -> None:
    progress.note_opened()
    keeping = resume.keep_or_reset()
    keeping.reset.click()
    assert progress.FILE.read().lessons
    keeping.keep.click()
    keeping.reset.click()
    assert progress.FILE.read().lessons, "a press that was taken back does not count"
    keeping.reset.click()
    assert not progress.FILE.read().lessons
    assert "Nothing is stored" in keeping.view.value


def test_all_that_is_kept_of_a_learner_is_listed_and_erased(home: Path) -> None:
    """Whatever the code of course and minillm may write there by name: stores, and what was typed in a terminal."""
    named = re.compile(r'\bJsonStore\("([^"]+)"|\bLines\("([^"]+)"|cache_home\(\) / "([\w.]+\.jsonl?)"')
    code = "".join(
        path.read_text(encoding="utf-8") for folder in ("course", "minillm") for path in (ROOT / folder).rglob("*.py")
    )
    names = {store or file or f"{lines}.history" for store, lines, file in named.findall(code)}
    assert {"progress.json", "chat.history", "noise.json", "incidents.json", "exercises.jsonl"} <= names
    names |= {"ledger/ledger.json", "ledger/short.json", "cards.broken", "cards.broken-2"}
    for name in names:
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text("what I typed")
    model = home / "models" / "mine"
    model.mkdir(parents=True)
    (model / "config.json").write_text("{}")
    keeping = resume.keep_or_reset()
    assert not [name for name in names if name not in keeping.view.value]
    keeping.reset.click()
    keeping.reset.click()
    assert "Nothing is stored" in keeping.view.value
    assert [path for path in home.rglob("*") if path.is_file()] == [model / "config.json"]


def test_a_machine_too_noisy_to_tell_keeps_no_lesson_open_and_takes_no_points(home: Path) -> None:
    Prediction("Which?", ["a", "b"], key="noisy").choose("a").lock().score("too noisy")
    assert progress.FILE.read().lessons["06"].predictions == {"noisy": 0.0}
    progress.note_prediction("noisy", 1.0)
    progress.note_untold("noisy")
    assert progress.FILE.read().lessons["06"].predictions == {"noisy": 1.0}


def test_practice_is_counted_and_today_says_what_comes_next(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daily, "par_of", lambda incident: daily.Par(4, 20, 95.0))
    drawn = Incident.generate(1, 1, "proxy")
    monkeypatch.setattr(Incident, "today", lambda day: drawn.fresh())
    assert resume.practised() == []
    day = date.today()
    shown = Today(day)
    assert "not played yet" in shown.view.value and "minillm round sit platform" in shown.view.value
    keep(play("platform", staff))
    keep(RoundSitting(find_round("agents").drawn()))  # nothing was said in it: it's none
    attempts.keep(attempt_of(sit(FLAGSHIP, text="The queue.")))
    shown.open()
    assert "par: 4 questions, 20 min, 95 points" in shown.par.value and shown.desk is not None
    shown.desk.act({"do": "commit", "phase": "stream"})
    assert daily.RESULTS.read().days == {}, "nothing was graded yet"
    shown.desk.act({"do": "grade", "sure": True})
    assert daily.RESULTS.read().days[f"{day}"].on_the_day and "streak 1" in shown.view.value
    assert resume.practised() == ["1 of 32 drills", "1 of 8 design rounds", "1 daily incident"]
    assert "1 of 8 design rounds" in str(resume.where_next())
    again = Today(day).view.value
    assert "of 100, 0 questions" in again and "minillm round sit routing" in again and "weakest of late" in again


# ---------------------------------------------------------------- cards

TODAY = datetime(2026, 1, 1, tzinfo=UTC)
THREE = [Card(f"c{i}", "00", "Five minutes", f"Question {i}?", lambda i=i: f"answer {i}") for i in range(3)]


def test_a_card_that_was_known_comes_back_later_than_one_that_was_not(home: Path) -> None:
    deck = Deck(THREE)
    deck.opt_in()
    again, good = deck.review("c0", "Again", TODAY), deck.review("c1", "Good", TODAY)
    assert TODAY < again < good
    assert [card.key for card in deck.due(TODAY)] == ["c2"]
    later = [deck.review("c1", "Good", good)]
    later.append(deck.review("c1", "Good", later[-1]))
    assert later[1] - later[0] > later[0] - good > timedelta(hours=12)  # intervals grow
    assert [card.key for card in Deck(THREE).due(again)] == ["c0", "c2"]  # read back from the file


def test_a_sitting_by_buttons(home: Path) -> None:
    review = Review(THREE)
    review.start.click()
    assert "Question 0?" in review.view.value and "answer 0" not in review.view.value
    review.show.click()
    assert "answer 0" in review.view.value
    assert list(review.buttons.children) == list(review.ratings.values())
    review.ratings["Again"].click()
    for i in (1, 2, 0):  # what was not known comes again at the end
        assert f"Question {i}?" in review.view.value
        review.show.click()
        review.ratings["Good"].click()
    assert "Done for now." in review.view.value and "new ones" not in review.view.value
    assert set(Deck(THREE)._current.cards) == {"c0", "c1", "c2"}


def test_cards_have_keys_of_their_own_and_cover_the_lessons() -> None:
    assert len({card.key for card in CARDS}) == len(CARDS)
    assert {card.lesson[:2] for card in CARDS} == {f"{number:02d}" for number in range(13)}
    known = contents.lessons()
    for card in CARDS:
        assert card.answer_text.endswith((".", "?"))
        headings = {contents.EARLIER.get(each, each) for each in known[card.lesson].headings}
        assert card.heading in headings, card.key
        assert card.heading != contents.GUIDED, f"{card.key}: which of its headings?"


def test_sums_come_among_the_cards_and_have_other_numbers_each_day(home: Path) -> None:
    day = date(2026, 11, 27)
    cards, tomorrow = cards_of(day), {card.key: card for card in cards_of(day + timedelta(days=1))}
    assert len({card.key for card in cards}) == len(cards) == len(CARDS) + len(TEMPLATES)
    sums = [card for card in cards if card.key.startswith("sum ")]
    assert sum(card.question != tomorrow[card.key].question for card in sums) > len(sums) / 2
    assert all(card.link.partition("#")[0].startswith(card.lesson) for card in sums)
    due = Deck(cards).due()
    assert 2 < sum(card in sums for card in due) < len(due) / 2
    review = Review()
    review.start.click()
    while not review.waiting[0].key.startswith("sum "):
        review.show.click()
        review.ratings["Easy"].click()
    kept = review.waiting[0]
    review.show.click()
    assert "<br>" in review.view.value and "Within 20%" in review.view.value
    review.ratings["Good"].click()
    assert kept.key in Deck(cards)._current.cards


def test_numbers_on_cards_follow_their_formulas() -> None:
    told = {card.key: card.answer_text for card in CARDS}
    assert emitted(0.5, 2) == pytest.approx(1 + 0.5 + 0.25)
    assert "2.31 tokens" in told["drafts"]  # 1 + .6 + .36 + .216 + .1296
    assert "327,680 B" in told["kv chat"] and "492 MB" in told["kv chat"]  # 2 x 80 x 8 x 128 x 2
    assert "50%: 0.50" in told["wait by load"]  # rho / (2 (1 - rho))
    assert "10.4 ms" in told["floor"]  # two bytes for each of 69.5e9 weights that a step reads, over 4 x 3.35 TB/s
    mfu, weights = find_profile("h100-sxm").constants.mfu, find_model("llama-3-70b").layer_params
    times = 2 * weights * 1500 * 100 / (4 * 989e12 * mfu)
    assert f"{mfu:.0%}: {times:.0f} times what they can do" in told["hundred"]


def test_export_is_read_by_anki() -> None:
    text = Deck(CARDS).as_csv()
    header, rows = text.splitlines()[:2], list(csv.reader(io.StringIO(text)))[2:]
    assert header == ["#separator:Comma", "#columns:Front,Back,Tags"]
    assert len(rows) == len(CARDS) and all(len(row) == 3 for row in rows)
    assert "download=" in export().html
