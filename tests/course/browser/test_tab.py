"""Python in a real browser tab: the same runs as here, a server that goes on, and all of it without a network."""

import json
import re
from collections.abc import Iterator
from datetime import date
from typing import Any

import pytest
from browser.pages import assert_clean, assert_fits, opened

from course.lab.controls import shown_by
from course.lessons.lesson_10b.explorer import regions_table
from course.napkin.library import napkin_of_day
from course.rounds.library import find_round
from course.tab import calculator, dashboard
from course.tab.live_server import LiveServer

pytestmark = pytest.mark.browser
START_MS = 120_000
ASK = """async given => {
  const python = new minillmDashboard.TabPython(new URL("tab/worker.js", document.baseURI), () => {});
  const run = await python.ask("dashboard.run", given);
  const server = await python.ask("server.open", { seed: 5, fields: {} });
  return [run, await python.ask("server.go_on", { until: 20 }, server)];
}"""


@pytest.fixture(scope="module")
def context(browser: Any) -> Iterator[Any]:
    """One visitor."""
    visitor = browser.new_context(viewport={"width": 390, "height": 844}, reduced_motion="reduce")
    yield visitor
    visitor.close()


def test_runs_in_a_tab_are_the_terminals_to_the_last_digit(context: Any, address: str) -> None:
    page = opened(context, f"{address}/drills.html", [])
    page.add_script_tag(url="static/dashboard.js")
    fields = {**shown_by(dashboard.TabBench.usual().start), "max_num_seqs": 2, "num_kv_blocks": 64}
    given = {"traffic": "mixed", "seed": 4, "fields": fields}
    run, news = page.evaluate(ASK, given)
    assert run == json.loads(json.dumps(dashboard.run(**given)))
    assert news == json.loads(json.dumps(LiveServer(5, {}).go_on(20.0)))
    page.close()


def test_who_opened_any_page_has_the_dashboard_with_every_combination_without_a_network(
    context: Any, address: str
) -> None:
    told: list[str] = []
    page = opened(context, f"{address}/drills.html", told)
    page.evaluate("navigator.serviceWorker.ready")
    context.set_offline(True)
    page.goto(f"{address}/dashboard.html?traffic=burst")
    page.wait_for_selector("[data-is-live=yes]", timeout=START_MS)
    page.wait_for_selector(".mm-status:has-text('done · burst')")
    for name in ("slots", "KV blocks"):
        page.get_by_role("spinbutton", name=name).press("ArrowLeft")
    page.locator(".mm-bar .mm-run").click()
    page.wait_for_selector(".mm-status:has-text('slots 4 → 3, KV blocks')")
    assert all(said in page.url for said in ("traffic=burst", "max_num_seqs=3", "num_kv_blocks"))
    assert told == []
    context.set_offline(False)
    page.close()


SAT_ELSEWHERE = """() => localStorage.setItem("minillm rounds.json", JSON.stringify({ done: [
  { round: "weights", seed: 0, when: "2026-01-05T10:00:00+00:00", level: "mid" }] }))"""
"""As if another tab had meanwhile sat the same round to its end."""


def test_a_round_is_sat_to_its_end_on_a_phone(context: Any, address: str) -> None:
    told: list[str] = []
    page = opened(context, f"{address}/round_weights.html", told)
    on = page.locator(".mm-foot .mm-run")
    on.wait_for(timeout=START_MS)
    drawn = find_round("weights").drawn()
    assert drawn.fill(drawn.round.opening) not in page.locator("body").inner_text()
    on.press("Enter")
    page.get_by_role("combobox", name="Ask the interviewer").press("ArrowDown")
    page.get_by_role("combobox", name="Ask the interviewer").press("Enter")
    page.get_by_role("button", name="Ask", exact=True).press("Enter")
    page.get_by_text(drawn.fill(drawn.menu[0].says)[:30]).wait_for()
    page.evaluate(SAT_ELSEWHERE)
    page.reload()
    page.get_by_text(drawn.fill(drawn.menu[0].says)[:30]).wait_for(timeout=START_MS)
    assert drawn.fill(drawn.round.opening)[:30] in page.inner_text(".mm-asks-this")
    said = "Copies travel from peer to peer, one stream for each rack"
    while (title := page.inner_text("h2")) != "What came out":
        text = page.locator(".mm-stagebody textarea").last
        if title.startswith("Envelope"):
            number = page.locator(".mm-stagebody .mm-fields input").first
            number.fill("soon")
            on.press("Enter")
            page.wait_for_selector(".mm-said:has-text('soon')")
            number.fill(f"about {drawn.asked(drawn.stage('envelope').numbers[0])}")
        if page.locator(".mm-arrows").count():
            board = page.locator(".mm-stagebody textarea").first
            board.fill("store > seed")
            page.get_by_label("An arrow from").select_option("seed")
            page.get_by_label("An arrow to").select_option("agent")
            page.get_by_role("button", name="Add arrow").press("Enter")
            assert board.input_value() == "store > seed\nseed > agent"
        if title.startswith("Your own grade: requirements"):
            page.get_by_role("radio", name="staff").click()
            page.locator(".mm-stagebody .mm-fields input").fill("one stream")
            on.press("Enter")
            page.wait_for_selector(".mm-said:has-text('at least 8 words')")
            page.locator(".mm-stagebody .mm-fields input").fill(said)
        elif text.count():
            text.fill(said)
        on.press("Enter")
        page.wait_for_function("was => document.querySelector('h2').innerText !== was", arg=title)
    result = page.inner_text(".mm-round")
    assert "No hire yet" in result.replace("no hire", "No hire") and f"requirements: staff (“{said}”)" in result
    assert_fits(page)
    assert_clean(page)
    page.goto(f"{address}/rounds.html")
    assert "no hire yet" in page.locator("[data-sat=weights]").inner_text()
    assert told == []
    page.close()


SET_BACK = """() => {
  const key = Object.keys(sessionStorage)[0], played = JSON.parse(sessionStorage.getItem(key));
  played.deeds[0].at += 3600;
  sessionStorage.setItem(key, JSON.stringify(played));
}"""
"""As if the clock had been an hour ahead before."""


@pytest.mark.slow
def test_a_drill_goes_on_where_it_was_after_a_reload(context: Any, address: str) -> None:
    told: list[str] = []
    page = opened(context, f"{address}/drill_p99-8s.html", told)
    on, answer = page.locator(".mm-foot .mm-run"), page.get_by_label("Your answer")
    on.wait_for(timeout=START_MS)
    on.press("Enter")
    answer.fill("The queue dominates.")
    page.evaluate(SET_BACK)
    page.reload()
    answer.wait_for(timeout=START_MS)
    page.wait_for_function("document.querySelector('.mm-writing textarea').value === 'The queue dominates.'")
    on.press("Enter")
    page.wait_for_selector(".mm-drill[data-step=Commit]:not([aria-busy])")
    moments = page.evaluate("JSON.parse(Object.values(sessionStorage)[0]).deeds.map(({ at }) => at)")
    assert len(moments) == 2 and moments[0] == moments[1], "a clock that is set back takes no time away"
    page.reload()
    page.wait_for_selector(".mm-drill[data-step=Commit]", timeout=START_MS)
    page.get_by_text("The prompt, and what you wrote").press("Enter")
    assert "The queue dominates." in page.inner_text(".mm-behind")
    page.get_by_role("button", name="Begin again").press("Enter")
    page.wait_for_selector(".mm-drill[data-step=Context]", timeout=START_MS)
    assert told == []
    page.close()


def test_a_sum_of_the_day_is_asked_and_judged(context: Any, address: str) -> None:
    told: list[str] = []
    page = opened(context, f"{address}/napkin.html", told)
    on = page.locator(".mm-foot .mm-run")
    on.wait_for(timeout=START_MS)
    today = napkin_of_day(date.fromisoformat(page.evaluate("new Date().toLocaleDateString('sv')")))
    on.press("Enter")
    page.get_by_text(today.question).wait_for()
    page.get_by_label("Your answer").fill("a lot")
    page.get_by_label("Your answer").press("Enter")
    page.wait_for_selector(".mm-said:has-text('ne number above 0')")
    page.get_by_label("Your answer").fill(f"about {today.answer}")
    on.press("Enter")
    page.get_by_text("Right. You took").wait_for()
    assert page.get_by_role("link", name=f"lesson {today.lesson}").get_attribute("href") == f"{today.lesson}.html"
    on.press("Enter")
    page.wait_for_selector("h2:has-text('The sum of 2')")
    page.goto(f"{address}/progress.html")
    assert "1 right of 1, streak 1" in page.inner_text("[data-progress]")
    assert told == []
    page.close()


def test_the_calculator_answers_as_the_course_does(context: Any, address: str) -> None:
    told: list[str] = []
    page = opened(context, f"{address}/calculator.html", told)
    sheet = calculator.sheet()
    page.get_by_label("requests a second, exactly").fill("100")
    page.get_by_role("slider", name="prompt", exact=True).press("ArrowRight")
    page.wait_for_selector("[data-is-live=yes]", timeout=START_MS)
    prompt = page.get_by_label("prompt, exactly").input_value()
    right = sheet.answer(sheet.usual | {"qps": 100, "prompt": int(prompt)})
    page.wait_for_selector(f".mm-figures b:text-is('{right.replicas}')")
    assert page.locator(".mm-rows b").all_inner_texts() == [value for _, value, _ in right.rows]
    page.get_by_role("radiogroup", name="GPUs in a replica").get_by_role("radio", name="1", exact=True).click()
    page.wait_for_selector('.mm-sheet-told:has-text("don\'t fit")')
    assert told == []
    page.close()


def test_an_explorer_is_drawn_between_its_recordings(context: Any, address: str) -> None:
    told: list[str] = []
    page = opened(context, f"{address}/10b_network.html", told)
    panel = page.locator("[data-explorer*=regions]")
    assert "Recorded at some settings" in panel.inner_text()
    panel.locator("select").first.select_option(label="Sydney")
    page.wait_for_selector("[data-explorer*=regions][data-is-live=yes][aria-busy=false]", timeout=START_MS)
    recorded = json.loads(panel.get_attribute("data-controls"))
    for control in recorded[:2]:
        assert control["label"] in panel.inner_text()
    panel.locator("input[type=range]").first.press("Home")
    shown = "[...document.querySelectorAll('[data-explorer*=regions] td')].map(cell => cell.textContent)"
    cells = regions_table("Sydney", 1.0, "reused").html
    right = re.findall(r"<td[^>]*>([^<]*)</td>", cells)
    said = json.dumps(right, separators=(",", ":"), ensure_ascii=False)
    page.wait_for_function(f"right => JSON.stringify({shown}) === right", arg=said)
    assert_fits(page)
    assert_clean(page)
    assert told == []
    page.close()


@pytest.mark.slow
def test_a_lesson_is_explored_and_its_check_answered_without_a_network(context: Any, address: str) -> None:
    told: list[str] = []
    page = opened(context, f"{address}/06c_linear_attention.html", told)
    page.evaluate("navigator.serviceWorker.ready")
    context.set_offline(True)
    page.reload()  # it was opened once, before there was anything to keep it
    panel = page.locator("[data-explorer*=reads_explorer]")
    panel.locator("input").last.press("End")
    page.wait_for_selector("[data-explorer*=reads_explorer][data-is-live=yes][aria-busy=false]", timeout=START_MS)
    page.get_by_role("button", name="Answer here").press("Enter")
    for said, told_of_it in (("compute everything", "Not this"), ("compute from the last snapshot", "1 of 3 right")):
        page.get_by_role("radio", name=said).click()
        page.locator(".mm-check").get_by_role("button", name="Check").last.press("Enter")
        page.get_by_text(told_of_it).wait_for()
    assert_clean(page)
    context.set_offline(False)
    kept = page.evaluate("JSON.parse(localStorage.getItem('minillm progress.json')).lessons['06c'].checks.q3")
    assert kept == {"score": 1, "possible": 1}, "the best answer is kept"
    page.goto(f"{address}/progress.html")
    assert told == []
    page.close()


@pytest.mark.slow
def test_a_bet_on_the_front_page_is_decided_by_its_server(context: Any, address: str) -> None:
    told: list[str] = []
    page = opened(context, f"{address}/index.html", told)
    page.locator("[data-live]").scroll_into_view_if_needed()
    page.wait_for_selector("[data-is-live=yes]", timeout=START_MS)
    page.get_by_role("radio", name="queue", exact=True).last.click()
    page.get_by_role("button", name="Lock it").last.click()
    page.wait_for_selector(".mm-live-told:has-text('Locked')")
    assert "max_num_seqs=12" in page.url
    page.get_by_role("button", name="Go on").click()
    page.wait_for_selector(".mm-live-told:has-text('You said queue: right')", timeout=START_MS)
    assert_fits(page)
    assert told == []
    page.close()


@pytest.mark.slow
def test_an_incident_of_any_seed_is_paged_and_helped(context: Any, address: str) -> None:
    told: list[str] = []
    page = opened(context, f"{address}/incidents_to_play.html", told)
    page.get_by_role("spinbutton", name="seed").fill("4")
    page.get_by_role("button", name="Page me").click()
    page.wait_for_selector(".mm-console", timeout=START_MS)
    assert "seed=4" in page.url
    page.get_by_role("button", name="Switch speculation off").first.click()
    page.wait_for_selector(".mm-effect", timeout=START_MS)
    assert page.get_attribute(".mm-console", "data-minute") != "0"
    assert told == []
    page.close()
