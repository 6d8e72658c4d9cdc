"""What helps a reader of the site: search."""

import html
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe

from course.site.search import sections

pytestmark = pytest.mark.browser
THEMES = (("light", 1280), ("dark", 390))


def opened(browser: Any, path: Path, told: list[str], theme: str = "light", width: int = 1280) -> Any:
    page = browser.new_page(color_scheme=theme, viewport={"width": width, "height": 844})
    page.on("console", lambda message: told.append(message.text))
    page.on("pageerror", lambda error: told.append(str(error)))
    page.goto(path.as_uri())
    return page


def assert_clean(page: Any) -> None:
    """Axe finds nothing at all."""
    worst = Axe().run(page).response["violations"]
    assert not worst, [(each["id"], [node["html"][:120] for node in each["nodes"][:3]]) for each in worst]


def test_a_page_is_read_by_section_without_code_bets_and_what_decides_them() -> None:
    page = """<header>Site</header><h2 id="a">One <code>x</code>, two<a class="anchor-link">¶</a></h2>
        <p>Slots<br>and <b>KV</b>.</p>
        <section class="bet other"><p>Which?</p><section>Guess</section></section>
        <details class="outcome">Queue</details>
        <h3 id="b">More</h3><pre>code</pre><table><tr><td>1</td><td>2</td></tr></table>"""
    assert [(each.anchor, each.title, each.text) for each in sections(page)] == [
        ("", "One x, two", "Slots and KV."),
        ("b", "More", "1 2"),
    ]


@pytest.mark.parametrize(("theme", "width"), THEMES)
def test_a_word_is_found_by_keyboard(browser: Any, site: Path, theme: str, width: int) -> None:
    told: list[str] = []
    page = opened(browser, site / "02_queue.html", told, theme, width)
    page.keyboard.press("/")
    page.keyboard.type("chunked pref")
    box, found = page.get_by_role("combobox", name="Search the site"), page.get_by_role("listbox", name="Found")
    found.get_by_role("option").first.wait_for()
    assert found.get_by_role("group").first.get_attribute("aria-label") == "Glossary"
    page.keyboard.press("ArrowUp")  # the last
    page.keyboard.press("ArrowDown")
    chosen = found.locator("[aria-selected=true]")
    assert chosen.get_attribute("id") == box.get_attribute("aria-activedescendant") == "found-0"
    assert told == []
    assert_clean(page)
    page.keyboard.press("Escape")
    assert not found.is_visible() and box.get_attribute("aria-expanded") == "false"
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_url("**/glossary.html#chunked-prefill")
    page.close()


def test_each_page_is_found_by_its_title_and_each_result_leads_somewhere(browser: Any, site: Path) -> None:
    page = opened(browser, site / "glossary.html", [])
    found = page.evaluate(
        """() => new Promise(done => {
          minillmSearch.loaded = pages => {
            const all = minillmSearch.read(pages);
            const hits = title => minillmSearch.ranked(all, title).map(each => each.page.page);
            done(pages.map(each => ({ ...each, hits: hits(each.title) })));
          };
          document.querySelector(".search input").focus();
        })"""
    )
    for each in found:
        written = html.unescape((site / each["page"]).read_text(encoding="utf-8"))
        assert each["page"] in each["hits"], each["title"]
        assert all(f'id="{part["anchor"]}"' in written for part in each["sections"] if part["anchor"]), each["page"]
    assert len(found) > 100
    page.close()


@pytest.mark.parametrize(
    ("typed", "first"), [("p99", "glossary.html"), ("Little’s laws", "02_queue.html"), ("zzz", None)]
)
def test_what_is_meant_stands_first(browser: Any, site: Path, typed: str, first: str | None) -> None:
    page = opened(browser, site / "index.html", [])
    page.get_by_role("combobox").fill(typed)
    page.locator(".search [role=status]:not(:empty)").wait_for(state="attached")
    links = page.locator("#found a").evaluate_all("all => all.map(each => each.getAttribute('href').split('#')[0])")
    assert first in links[:3] if first else page.inner_text(".search [role=status]") == "Nothing found"
    page.close()
