"""The static site: every page is whole, links lead somewhere, and recordings hold what an explorer shows."""

import base64
import re
from collections import Counter
from html import unescape
from pathlib import Path

import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

from course.lab import build, recording
from course.lab.display import Html
from course.lab.explorer import Explorer, buttons, slider, switch
from course.lab.marks import FOLDED
from course.lab.outcomes import ExampleRun, set_beside
from course.lab.predict import Prediction
from course.lab.view import bundle, library
from course.site import pages
from course.site.__main__ import alone, opening
from course.site.pages import PagePart, distinct
from course.tab.explorers import LIVE

MOST_BYTES = 1_500_000


def test_every_link_leads_to_a_page_and_a_heading_of_it(site: Path) -> None:
    texts = {path.name: path.read_text() for path in site.glob("*.html")}
    anchors = {name: {unescape(each) for each in re.findall(r'\bid="([^"]+)"', text)} for name, text in texts.items()}
    broken = []
    for name, text in texts.items():
        for target in map(unescape, re.findall(r'<a\b[^>]*\bhref="(?!https?:|mailto:)([^"]*)"', text)):
            page, _, anchor = target.partition("#")
            page = page.partition("?")[0]  # what it says of a seed makes it no other page
            if (page or name) not in texts or (anchor and anchor not in anchors[page or name]):
                broken.append(f"{name}: {target}")
    assert broken == []


def test_no_page_has_an_id_twice(site: Path) -> None:
    for page in site.glob("*.html"):
        text = re.sub(r"<script.*?</script>", "", page.read_text(encoding="utf-8"), flags=re.S)
        counts = Counter(re.findall(r'<[a-zA-Z][^>]*?\sid="([^"]*)"', text))
        assert not [name for name, count in counts.items() if count > 1], page.name


def test_a_picture_that_is_shown_again_uses_its_own_shapes() -> None:
    picture = '<svg><path id="c1-0"/><use href="#c1-0"/><g fill="url(#c1-0)"/></svg>'
    first, second = (part.html for part in distinct([PagePart("output", picture), PagePart("output", picture)]))
    assert first == picture
    assert second == picture.replace("c1-0", "c1-0-again1")


def test_pages_are_small_and_load_nothing_from_elsewhere(site: Path) -> None:
    for path in site.glob("*.html"):
        text = path.read_text()
        assert len(text.encode()) < MOST_BYTES, path.name
        bets = re.findall(r'data-bet="[^"]*"', text)
        assert len(set(bets)) == len(bets), f"{path.name}: a bet is kept under its words, and two have the same"
        assert not re.findall(r'<(?:script|img|link|iframe)\b[^>]*(?:src|href)="https?:', text), path.name
        assert not re.search(r"\$\$|\$[^$<]*\\(?!n)[a-z]+ ", text), f"{path.name}: LaTeX that was left as it is"


def test_every_explorer_that_a_tab_draws_stands_on_a_page(site: Path) -> None:
    html = "".join(page.read_text(encoding="utf-8") for page in site.glob("[0-9]*.html"))
    assert [place for place in LIVE if f"&quot;{place}&quot;" not in html] == []


def test_an_explorer_is_recorded_at_all_positions_and_shows_what_it_showed_before(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv(recording.FOLDER, str(tmp_path))
    seen = Explorer(
        lambda k, way, on: Html(f"<b>{k} {way} {on}</b>", ""),
        k=slider("drafts", 0, 100, 7),
        way=buttons("way", ["a", "b"]),
        on=switch("cache"),
    )
    assert f'{recording.FRAMES}="00"' in seen.static_html()
    kept = recording.read_recording(tmp_path / "00.json.gz")
    stops = [control["stops"] for control in kept["controls"]]
    assert [len(each) for each in stops] == [15, 2, 2]
    assert len(kept["frames"]) == 60
    assert stops[0][kept["controls"][0]["start"]] == "7"
    assert kept["frames"]["0,1,1"] == "<b>0 b True</b>"
    assert seen.view.value == "<b>7 a False</b>"


def test_of_many_controls_one_moves_at_a_time(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv(recording.FOLDER, str(tmp_path))
    Explorer(lambda **at: Html(str(at), ""), **{name: slider(name, 0, 40, 4) for name in "abcd"}).static_html()
    kept = recording.read_recording(tmp_path / "00.json.gz")
    counts = [len(control["stops"]) for control in kept["controls"]]
    start = kept["controls"][0]["start"]
    assert counts == [15] * 4
    assert len(kept["frames"]) == 4 * 15 - 3
    assert f"{start},14,{start},{start}" in kept["frames"]


def test_a_bet_is_followed_by_what_decides_it_and_pictures_follow_the_theme() -> None:
    bet = Prediction("How much?", unit="x", between=(1, 20))
    svg = base64.b64encode(b'<svg><rect width="100%" height="100%" rx="6" fill="#ffffff"/>a</svg>').decode()
    shown = f'<details><summary>s</summary><img alt="a" src="data:image/svg+xml;base64,{svg}"></details>'
    cells = [
        new_code_cell("bet", outputs=[new_output("display_data", {"text/html": bet.static_html()})], id="cell-01"),
        new_code_cell("run", outputs=[new_output("display_data", {"text/html": shown}, metadata={FOLDED: True})]),
        new_code_cell("check.card()", outputs=[new_output("display_data", {"text/html": "<ol><li>Why?</li></ol>"})]),
    ]
    parts = list(pages.parts_of(new_notebook(cells=cells), Path()))
    assert [(part.kind, part.bet) for part in parts] == [("bet", "cell-01"), ("outcome", "cell-01"), ("check", "")]
    assert parts[1].html == "<svg>a</svg>"
    assert "Why?" in parts[2].html


def test_an_outcome_on_another_machine_stands_beside_it_and_scores_no_bet() -> None:
    shown = "<details><summary>s</summary><p data-outcome='1'>2 cores</p></details>"
    run = new_code_cell("run", outputs=[new_output("display_data", {"text/html": shown}, metadata={FOLDED: True})])
    other = ExampleRun("On an <H100>.", f"<p{recording.data_attribute(recording.OUTCOME, {'answer': 'b'})}>H100</p>")
    [part] = pages.parts_of(set_beside(new_notebook(cells=[run]), {0: other}, "07"), Path())
    assert part.html == "<p data-outcome='1'>2 cores</p>"
    assert part.other == ExampleRun("On an <H100>.", "<p>H100</p>")


def test_recorded_pictures_are_those_that_the_notebooks_show() -> None:
    shown = {
        f"{path.stem}/{number}.json.gz"
        for path in build.COURSE.glob("*.ipynb")
        for number in pages.FRAMES_HERE.findall(path.read_text(encoding="utf-8").replace('\\"', '"'))
    }
    assert shown == {str(path.relative_to(build.RECORDED)) for path in build.RECORDED.glob("[0-9]*/*")}


def test_without_any_bet_the_site_says_what_to_build() -> None:
    with pytest.raises(ValueError, match="python -m course"):
        opening([pages.Page("00", "Start", (), "course/00.ipynb")])


@pytest.mark.parametrize("text", ["One. Two? " + "x" * 300, "y" * 300 + ". Two.", '"Will it do?" No.', "Short"])
def test_a_card_ends_where_a_sentence_does(text: str) -> None:
    card = pages.whole_sentences(text)
    assert text.startswith(card) and (card == text or card.rstrip('"').endswith((".", "?")))
    assert len(card) <= pages.CARD_LENGTH or "." not in card[:-1]


@pytest.mark.parametrize(
    "script",
    [
        bundle.page_script(),
        *(bundle.joined(*parts) for parts in (bundle.CONSOLE_PAGE, bundle.DRILL_PAGE, bundle.ROUND_PAGE)),
        *(bundle.joined(*parts) for parts in (bundle.NAPKIN_PAGE, bundle.PROGRESS_PAGE)),
    ],
    ids=["dashboard", "console", "drill", "round", "napkin", "progress"],
)
def test_modules_that_become_one_script_share_no_name(script: str) -> None:
    """If two functions had one name, the later would silently take the earlier one's place."""
    names = re.findall(r"^(?:async )?(?:function|class|const|let) (\w+)", script, re.M)
    assert len(names) > 10 and sorted(names) == sorted(set(names))


def test_one_request_of_a_run_stands_alone() -> None:
    run = library.opening("burst")
    row = len(run["rows"]) - 1
    told = alone(run, row)
    tokens = sum(count for step in told["steps"] for _, count, is_prefill in step["shares"] if is_prefill)
    assert told["rows"] == [run["rows"][row]] and tokens == told["rows"][0]["prompt"] - told["rows"][0]["cached"]
    assert {share[0] for step in told["steps"] for share in step["shares"]} == {0}
