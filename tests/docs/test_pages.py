"""The pages: links lead somewhere, numbers are those of the code, quotes are what the lessons say."""

import re
import tomllib
from pathlib import Path

import pytest
from docs.pages import FENCE, ROOT, pages

from course.lab.build import lesson_sources
from course.lab.drills.library import ALL
from course.lab.grading.exercises import catalogue
from course.lab.incidents.causes import CAUSES
from course.lab.start.paths import INTERVIEW, SERVER, TEACHER
from minillm import __version__

README = (ROOT / "README.md").read_text(encoding="utf-8")
LINK = re.compile(r"\]\(([^)\s]+)\)")
NUMBERS = {"twelve": 12, "three": 3, "five": 5, "six": 6}


def targets(page: Path) -> list[str]:
    """Where a page's links lead within the repository. Code is no link."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    return [link for link in LINK.findall(text) if not link.startswith(("http", "#", "mailto:"))]


def words(text: str) -> str:
    """One line, without marks of quotation and emphasis."""
    return " ".join(re.sub(r"[>*#]", " ", text).split())


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file(page: Path) -> None:
    missing = [link for link in targets(page) if not (page.parent / link.partition("#")[0]).exists()]
    assert not missing


def test_every_page_of_docs_can_be_reached_from_the_readme() -> None:
    seen, waiting = set(), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop().resolve()
        if page not in seen and page.exists():
            seen.add(page)
            waiting += [page.parent / link.partition("#")[0] for link in targets(page) if ".md" in link]
    assert {page for page in pages() if page.parent.name == "docs"} <= seen


def test_the_readme_has_a_row_for_each_lesson() -> None:
    rows = re.findall(r"^\| \[(\d\d) [^]]+\]\(course/(\w+)\.ipynb\) \|", README, re.M)
    assert {name for _, name in rows} >= {source.stem for source in lesson_sources() if source.stem[0].isdigit()}
    assert all(name.startswith(number) for number, name in rows)
    assert [number for number, _ in rows] == sorted(number for number, _ in rows)


def test_numbers_in_the_readme_are_those_of_the_code() -> None:
    assert f"**{len(catalogue())} exercises.**" in README
    assert f"**Incidents, {len(CAUSES)} causes.**" in README
    assert f"**{len(ALL)} interview drills**" in README
    assert "three **paths**" in README and len((INTERVIEW, SERVER, TEACHER)) == NUMBERS["three"]


def test_what_one_will_be_able_to_say_is_what_the_lessons_say() -> None:
    section = README.partition("## What you will be able to say")[2].partition("\n## ")[0]
    parts = re.findall(r"\(course/(\w+)\.ipynb\).*?:\n\n((?:> .*\n)+)", section)
    assert len(parts) == section.count("After [")
    for lesson, quote in parts:
        said = words((ROOT / "course" / f"{lesson}.py").read_text(encoding="utf-8"))
        assert words(quote).strip('"') in said, lesson


def test_schedules_name_exercises_that_exist_and_every_lesson() -> None:
    text = (ROOT / "docs" / "teaching.md").read_text(encoding="utf-8")
    term = text.partition("## One term")[2].partition("\n## ")[0]
    named = set(re.findall(r"`([a-z0-9-]+)`", term))
    assert named <= {exercise.id for exercise in catalogue()}
    weeks = re.findall(r"^\| (\d+) \|", term, re.M)
    assert [int(week) for week in weeks] == list(range(1, NUMBERS["twelve"] + 1))
    beliefs = text.partition("## What learners believe")[2].partition("\n## ")[0]
    lessons = {source.stem[:2] for source in lesson_sources() if source.stem[0].isdigit()}
    assert lessons <= set(re.findall(r"^\| (\d\d) \|", beliefs, re.M))


def test_the_tutor_is_told_of_every_place_that_holds_answers() -> None:
    rules = (ROOT / "AGENTS.md").read_text(encoding="utf-8")
    table = rules.partition("## What you must not show")[2].partition("\n## ")[0]
    for place in re.findall(r"^\| (`.*?) \|", table, re.M):
        for path in re.findall(r"`((?:\w+/)+)`", place):
            assert (ROOT / path).is_dir(), path
    for holder in (
        "solutions/",
        "tests/lab/exercises/right/",
        "course/lab/incidents/causes/",
        "course/lab/drills/texts/",
    ):
        assert f"`{holder}`" in table


def test_the_changelog_and_the_citation_know_the_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == __version__
    assert f"version: {__version__}\n" in (ROOT / "CITATION.cff").read_text()
    changes = (ROOT / "CHANGELOG.md").read_text()
    assert f"[{__version__}]" in changes or f"be {__version__}." in changes
