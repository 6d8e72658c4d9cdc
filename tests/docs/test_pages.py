"""The pages: links lead somewhere, numbers are those of the code, quotes are what the lessons say."""

import re
import tomllib
from pathlib import Path

import nbformat
import pytest
from pages import FENCE, ROOT, commands, pages

from course.drills.library import ALL
from course.grading.exercises import catalogue
from course.incidents.causes import CAUSES
from course.lab.build import lesson_sources
from course.lessons.start.contents import HEADING, PATHS, anchor, plain
from course.rounds.library import IDS as ROUNDS
from minillm import __version__
from minillm.server.config import UNKEPT_BY_REPLICAS

README, COURSE = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/course.md"))
LINK = re.compile(r"\]\(([^)\s]+)\)")
IN_THE_ENVIRONMENT = ("minillm ", "python -m ")
"""How commands begin that are found only where .venv/bin is on the PATH."""
PAGES_WITH_COMMANDS = sorted({one.block.page for one in commands() if one.text.startswith(IN_THE_ENVIRONMENT)})


def targets(page: Path) -> list[str]:
    """Where a page's links lead within the repository. Code is no link."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    return [link for link in LINK.findall(text) if not link.startswith(("http", "mailto:"))]


def anchors(target: Path) -> set[str]:
    """What may stand behind `#`: a notebook's headings as JupyterLab makes them, a page's as GitHub does."""
    if target.suffix == ".ipynb":
        cells = nbformat.read(target, as_version=4).cells
        text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
        return {anchor(heading) for _, heading in HEADING.findall(text)}
    text = FENCE.sub("", target.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w -]", "", plain(heading).lower()).replace(" ", "-") for _, heading in HEADING.findall(text)}


def dead(page: Path) -> list[str]:
    """Links to a file that is not there, or to a heading that it has not."""
    found = []
    for link in targets(page):
        file, _, wanted = link.partition("#")
        target = page.parent / file if file else page
        if not target.exists() or (wanted and wanted not in anchors(target)):
            found.append(link)
    return found


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_to_a_heading_in_it(page: Path) -> None:
    assert dead(page) == []


@pytest.mark.parametrize("page", PAGES_WITH_COMMANDS)
def test_a_page_says_how_its_commands_are_found_before_the_first(page: str) -> None:
    """`minillm` and this `python` are in .venv/bin, which is on no PATH by itself."""
    text = (ROOT / page).read_text(encoding="utf-8")
    first = min(text.index(f"\n{begin}") for begin in IN_THE_ENVIRONMENT if f"\n{begin}" in text)
    assert "source .venv/bin/activate" in text[:first]


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_nothing_is_left_to_be_filled_in(page: Path) -> None:
    """No address of the repository is known to its pages."""
    assert not re.search(r"ORG/REPO|clone URL|<your-|TODO", page.read_text(encoding="utf-8"))


def test_no_page_sends_readers_to_the_package_index_for_minillm() -> None:
    """`minillm` there is another project: whatever is installed comes from this folder."""
    files = [*pages(), *ROOT.glob("minillm/**/*.py"), *ROOT.glob("course/**/*.py"), *ROOT.glob("course/**/*.ipynb")]
    for file in files:
        assert not re.search(r"pip install[^\n`]* ['\"]?minillm\b", file.read_text(encoding="utf-8")), file


def test_every_measurement_is_linked_from_a_page() -> None:
    """Also those that look bad."""
    linked = {(page.parent / link).resolve() for page in pages() for link in targets(page)}
    records = {record.resolve() for record in (ROOT / "course" / "data" / "measured").glob("*.json")}
    assert len(records) > 10
    assert sorted(records - linked) == []


def test_the_server_page_names_every_flag_that_replicas_refuse() -> None:
    text = (ROOT / "docs" / "server.md").read_text(encoding="utf-8")
    section = text.partition("## More than one engine")[2]
    for name in UNKEPT_BY_REPLICAS:
        flag = "--" + name.removesuffix("_s").replace("_", "-")
        assert f"`{flag}`" in section, flag


def test_every_page_of_docs_can_be_reached_from_the_readme() -> None:
    seen, waiting = set(), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop().resolve()
        if page not in seen and page.exists():
            seen.add(page)
            waiting += [page.parent / link.partition("#")[0] for link in targets(page) if ".md" in link]
    assert {page for page in pages() if page.parent.name == "docs"} <= seen


def test_the_readme_is_a_page_and_the_courses_page_has_a_row_for_each_lesson() -> None:
    assert len(README.splitlines()) <= 80
    rows = re.findall(r"^\| \[(\d\d[a-z]?) [^]]+\]\(\.\./course/(\w+)\.ipynb\) \|", COURSE, re.M)
    assert f"[{len(rows)} lessons]" in README
    assert {name for _, name in rows} >= {source.stem for source in lesson_sources() if source.stem[0].isdigit()}
    assert all(name.startswith(number) for number, name in rows)
    assert [number for number, _ in rows] == sorted(number for number, _ in rows)


def test_numbers_on_both_pages_are_those_of_the_code() -> None:
    assert f"**{len(catalogue())} exercises.**" in COURSE and f"[{len(catalogue())} exercises]" in README
    assert f"**Incidents, {len(CAUSES)} causes.**" in COURSE and f", {len(CAUSES)} causes |" in README
    assert (
        f"**{len(ALL)} interview drills**" in COURSE and f"[{len(ALL)} drills, {len(ROUNDS)} design rounds]" in README
    )
    assert "four **paths**" in COURSE and len(PATHS) == 4


def test_schedules_name_exercises_that_exist() -> None:
    text = (ROOT / "docs" / "teaching.md").read_text(encoding="utf-8")
    term = text.partition("## One term")[2].partition("\n## ")[0]
    named = set(re.findall(r"`([a-z0-9-]+)`", term))
    assert named <= {exercise.id for exercise in catalogue()}


def test_the_tutor_is_told_of_every_place_that_holds_answers() -> None:
    rules = (ROOT / "AGENTS.md").read_text(encoding="utf-8")
    table = rules.partition("## What you must not show")[2].partition("\n## ")[0]
    for place in re.findall(r"^\| (`.*?) \|", table, re.M):
        for path in re.findall(r"`((?:\w+/)+)`", place):
            assert (ROOT / path).is_dir(), path
    for holder in (
        "solutions/",
        "tests/course/grading/right/",
        "course/incidents/causes/",
        "course/drills/texts/",
    ):
        assert f"`{holder}`" in table


def test_the_changelog_and_the_citation_know_the_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == __version__
    assert f"version: {__version__}\n" in (ROOT / "CITATION.cff").read_text()
    changes = (ROOT / "CHANGELOG.md").read_text()
    assert f"[{__version__}]" in changes or f"be {__version__}." in changes
