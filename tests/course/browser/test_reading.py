"""What helps a reader of the site: search, terms explained where they stand, a measure that can be read."""

import html
from pathlib import Path
from typing import Any

import pytest
from browser.pages import assert_clean
from browser.pages import opened as opened_page

from course.site.search import sections

pytestmark = pytest.mark.browser
THEMES = (("light", 1280), ("dark", 390))


def opened(browser: Any, path: Path, told: list[str], theme: str = "light", width: int = 1280) -> Any:
    size = {"width": width, "height": 844}
    return opened_page(browser, path.as_uri(), told, color_scheme=theme, viewport=size)


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
    if first:
        assert first in links[:3]
    else:
        assert page.locator(".search [role=status]").bounding_box()["width"] > 50, "it's told to the eye, too"
        assert page.inner_text(".search [role=status]") == "Nothing found"
    page.close()


@pytest.mark.parametrize(("theme", "width"), THEMES)
def test_a_term_is_explained_where_it_stands(browser: Any, site: Path, theme: str, width: int) -> None:
    told: list[str] = []
    page = opened(browser, site / "07_kv_cache.html", told, theme, width)
    term, bubble = page.locator("a[data-means]").first, page.get_by_role("tooltip")
    term.hover()
    assert bubble.inner_text() == term.get_attribute("data-means")
    bubble.hover()
    box = bubble.bounding_box()
    assert box["x"] >= 0 and box["x"] + box["width"] <= width
    page.keyboard.press("Escape")
    assert not bubble.is_visible()
    term.focus()
    assert bubble.is_visible() and term.get_attribute("aria-describedby") == bubble.get_attribute("id")
    assert told == []
    assert_clean(page)
    page.close()


def test_a_tap_explains_a_term_and_another_leads_to_the_glossary(browser: Any, site: Path) -> None:
    phone = browser.new_context(viewport={"width": 390, "height": 844}, has_touch=True)
    page = phone.new_page()
    page.goto((site / "07_kv_cache.html").as_uri())
    term = page.locator("a[data-means]").first
    term.tap()
    assert page.get_by_role("tooltip").inner_text() == term.get_attribute("data-means")
    assert page.url.endswith("07_kv_cache.html")
    term.tap()
    page.wait_for_url("**/glossary.html#*")
    phone.close()


@pytest.mark.parametrize("name", ["02_queue", "07_kv_cache", "guide_2am"])
def test_lines_are_of_about_70_characters_and_nothing_sticks_out(browser: Any, site: Path, name: str) -> None:
    page = opened(browser, site / f"{name}.html", [], width=1440)
    lengths, outside = page.evaluate(
        """() => {
          const wide = [...document.querySelectorAll("main img, main svg, main table, main pre")];
          const column = document.querySelector("article").getBoundingClientRect();
          const lines = each => each.offsetHeight / parseFloat(getComputedStyle(each).lineHeight);
          const long = [...document.querySelectorAll(".prose > p")].filter(each => lines(each) > 2.5);
          const outside = wide.filter(each => each.getBoundingClientRect().right > column.right);
          const perLine = long.map(each => each.innerText.length / lines(each));
          return [perLine, outside.map(each => each.outerHTML.slice(0, 80))];
        }"""
    )
    assert len(lengths) > 3 and 45 < sum(lengths) / len(lengths) < 75 and max(lengths) < 80
    assert outside == []
    page.close()


def test_a_question_is_read_out_but_drawn_once(browser: Any, site: Path) -> None:
    page = opened(browser, site / "07_kv_cache.html", [])
    assert max(page.locator(".bet legend").evaluate_all("all => all.map(each => each.offsetWidth)")) <= 1
    page.close()


def test_the_section_being_read_is_marked_beside_it(browser: Any, site: Path) -> None:
    page = opened(browser, site / "02_queue.html", [], width=1440)
    last = page.locator(".contents a").last
    assert page.locator(".contents [aria-current]").count() == 0
    last.click()
    page.wait_for_selector(".contents li:last-child [aria-current]")
    page.set_viewport_size({"width": 390, "height": 844})
    page.locator(".contents summary").click()  # folded on a phone
    last.click()
    page.wait_for_function("() => !document.querySelector('.contents details').open && scrollY > 1000")
    page.close()
