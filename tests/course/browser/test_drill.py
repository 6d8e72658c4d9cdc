"""A drill in Chromium: its module on a page of its own, with a Python session at the other end of its messages."""

from pathlib import Path
from typing import Any

import pytest
from browser.module_page import show
from browser.pages import assert_clean

from course.drills.desk import DrillDesk
from course.drills.library import find_drill
from course.drills.talk import talk_of

pytestmark = [pytest.mark.browser, pytest.mark.usefixtures("home")]


@pytest.mark.parametrize(("wide", "high", "scheme"), [(1280, 720, "light"), (390, 844, "dark")])
def test_a_drill_runs_to_its_end_a_step_a_screen(
    browser: Any, tmp_path: Path, wide: int, high: int, scheme: str
) -> None:
    told: list[str] = []
    page = browser.new_page(viewport={"width": wide, "height": high}, color_scheme=scheme)
    page.on("pageerror", lambda error: told.append(str(error)))
    drawn = find_drill("dump-13b").drawn()
    show(page, DrillDesk(drawn, judge_url="").widget, tmp_path)
    assert drawn.drill.title not in page.locator("body").inner_text(), "a title is half of the answer"
    on = page.locator(".mm-foot .mm-run")

    def go(step: str) -> None:
        """With the keyboard: what is on screen then fits it."""
        on.press("Enter")
        page.wait_for_selector(f".mm-drill[data-step='{step}']:not([aria-busy])")
        foot = on.bounding_box()
        assert wide < 640 or foot["y"] + foot["height"] <= high
        assert page.evaluate("document.documentElement.scrollWidth") <= wide

    go("Write")
    on.press("Enter")
    page.wait_for_selector(".mm-said:has-text('Nothing is written')")
    asks = page.get_by_role("combobox", name="Ask the interviewer")
    asks.press("ArrowDown")
    asks.press("Enter")
    page.get_by_role("button", name="Ask", exact=True).press("Enter")
    page.wait_for_selector(f".mm-told-facts:has-text('{talk_of(drawn).facts[0].says[:20]}')")
    page.get_by_label("Your answer").fill("The queue dominates, and I'd admit less of it than comes.")
    go("Commit")
    on.press("Enter")
    page.wait_for_selector(".mm-said:has-text('Commit to something first')")
    page.get_by_role("combobox", name="what dominates").press_sequentially("queue wait")
    page.get_by_role("combobox", name="what dominates").press("Enter")
    number = page.get_by_label(drawn.rubric.commit.number.asks)
    number.fill("some")
    on.press("Enter")
    page.wait_for_selector('.mm-said:has-text("isn\'t one number")')
    number.fill("about 5.4 times")  # the rest stays
    assert_clean(page)
    go("Pushback")
    while page.get_attribute(".mm-drill", "data-step") == "Pushback":
        asked = page.inner_text(".mm-stagebody")
        on.press("Enter")
        page.wait_for_function("was => document.querySelector('.mm-stagebody').innerText !== was", arg=asked)
    page.wait_for_selector(".mm-drill[data-step=Statements]:not([aria-busy])")
    for group in page.get_by_role("radiogroup").all():
        group.get_by_role("radio", name="agree, sure (95%)", exact=True).press("Enter")
    assert_clean(page)
    go("Calibration")
    for title in ("answer B", "your own"):
        page.get_by_role("radiogroup").first.get_by_role("radio", name="strong").press("Enter")
        on.press("Enter")
        page.wait_for_selector(f".mm-drill h2:has-text('{title}')")
    page.get_by_role("radiogroup").first.get_by_role("radio", name="strong").press("Enter")
    page.get_by_label("your words for it").first.fill("the queue dominates and I'd admit less of it")
    while page.get_attribute(".mm-drill", "data-step") != "Verdict":  # disputes and another paragraph may come yet
        asked = page.inner_text(".mm-stagebody")
        on.press("Enter")
        page.wait_for_function("was => document.querySelector('.mm-stagebody').innerText !== was", arg=asked)
    page.evaluate("document.querySelectorAll('.mm-drill details').forEach(each => { each.open = true })")
    result = page.inner_text(".mm-drill")
    assert "[2.0 of 2] queue wait: right." in result and drawn.drill.title in result
    assert "your own grades" in result and "No hire yet" in result
    assert_clean(page)
    page.close()
    assert told == []
