"""The static site in a real browser, opened from files: bets, explorers, the calculator."""

import random
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from made_run import made_run
from rounds.players import first_of_the_menu, longest, only, play, silent, staff, staff_but, stuffed

from course.drills.amounts import AmountError, read_amount
from course.lab.controls import FIELDS
from course.lab.noise import figures
from course.lab.predict import MeasuredAnswer, Prediction
from course.lab.view.trace import trace_of
from course.napkin.library import napkin_of_day
from course.napkin.quantity import NapkinError
from course.rounds.judge import judge
from course.rounds.library import IDS as ROUNDS
from course.rounds.library import find_round
from course.rounds.sitting import RoundSitting
from course.simulator.cost.models import find_model
from course.simulator.cost.placement import Placement
from course.simulator.cost.profile import find_profile
from course.simulator.cost.roofline import StepTimeModel, StepWork
from course.site import napkins, rounds
from course.site.calculator import CARDS, priced

pytestmark = pytest.mark.browser
AXED = {
    "light": ("index", "guide_2am", "map", "11c_money", "14_claims_ledger"),
    "dark": ("index", "calculator", "incidents_to_play", "drills", "02_queue", "rounds"),
}
"""Pages by theme. They share one stylesheet, so that each need not be looked at in both."""


def opened(browser: Any, path: Path, told: list[str], **options: Any) -> Any:
    """A page that notes what it says on its console, and each request to another host."""
    page = browser.new_page(**options)
    page.on("console", lambda message: told.append(f"{page.url}: {message.text}"))
    page.on("pageerror", lambda error: told.append(f"{page.url}: {error}"))
    page.on("request", lambda request: told.extend([request.url] * (not request.url.startswith(("file:", "data:")))))
    page.goto(path.as_uri())
    return page


def test_every_page_opens_in_silence_and_fits_a_phone(browser: Any, site: Path) -> None:
    told: list[str] = []
    page = opened(browser, site / "index.html", told, viewport={"width": 360, "height": 780})
    for path in (path for path in sorted(site.glob("*.html")) if 'http-equiv="refresh"' not in path.read_text()):
        page.goto(path.as_uri())
        wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0, f"{path.name} is {wide} px wider than a phone"
    page.close()
    assert told == []


def test_a_bet_is_locked_revealed_scored_and_remembered(browser: Any, site: Path) -> None:
    page = opened(browser, site / "index.html", [], viewport={"width": 360, "height": 780})
    bet, outcome = page.locator(".bet"), page.locator("details.outcome").first
    assert not outcome.is_visible()
    lock = bet.get_by_role("button", name="Lock it")
    assert lock.bounding_box()["y"] < 740, "the first question is below the fold"
    lock.click()
    assert "Choose an answer first" in bet.inner_text()
    control = bet.locator("input").first
    control.focus()
    page.keyboard.press("Space" if control.get_attribute("type") == "radio" else "ArrowRight")
    lock.click()
    assert outcome.is_visible()
    assert "You said" in bet.inner_text()
    assert page.evaluate("document.activeElement.textContent") == "Bet again"
    page.reload()
    assert page.locator("details.outcome").first.is_visible()
    page.get_by_role("button", name="Bet again").click()
    assert not page.locator("details.outcome").first.is_visible()
    page.close()


def test_the_dashboard_measures_as_the_lab_does(browser: Any, site: Path) -> None:
    page = opened(browser, site / "dashboard.html", [])
    run = made_run(num_requests=7)
    shown = page.evaluate(
        "run => ({...minillmDashboard.meanPhases(run, run.end), ...minillmDashboard.figuresAt(run, run.end)})",
        trace_of(run, None, FIELDS),
    )
    assert {name: shown[name] for name in figures(run)} == pytest.approx(figures(run), rel=1e-3)
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_dashboard_asks_for_a_bet_and_decides_it_on_one_screen(browser: Any, site: Path, scheme: str) -> None:
    told: list[str] = []
    page = opened(browser, site / "dashboard.html", told, viewport={"width": 1280, "height": 720}, color_scheme=scheme)
    page.wait_for_selector(".mm-dash[data-mode=still]")
    page.get_by_role("button", name="burst: more slots").click()
    page.locator(".mm-bet").get_by_role("radio", name="queue").click()
    page.get_by_role("button", name="Lock it, and run both").click()
    page.wait_for_selector(".mm-why:has-text('You said queue: right')")
    assert "better" in page.inner_text(".mm-card:has-text('TTFT')") and "−" in page.inner_text(".mm-delta >> nth=0")
    bottom = page.locator(".mm-scrub").bounding_box()
    assert bottom["y"] + bottom["height"] <= 720
    sizes = "all => Math.min(...all.map(each => parseFloat(getComputedStyle(each).fontSize)))"
    assert page.locator(".mm-dash *").evaluate_all(sizes) >= 11
    assert not told
    serious = [each for each in Axe().run(page).response["violations"] if each["impact"] in ("serious", "critical")]
    assert not serious, serious
    page.close()


def test_the_dashboard_says_what_was_not_recorded_and_keeps_what_it_shows(browser: Any, site: Path) -> None:
    page = opened(browser, site / "dashboard.html", [], reduced_motion="reduce")
    run = page.locator(".mm-bar .mm-run")
    for name in ("slots", "KV blocks"):
        page.get_by_role("spinbutton", name=name).press("ArrowLeft")
    run.click()
    page.wait_for_selector(".mm-failed:has-text('Nobody recorded this')")
    assert page.inner_text(".mm-total >> nth=0") != "–"
    page.get_by_role("button", name="KV blocks: back to").click()
    run.click()
    page.wait_for_selector(".mm-status:has-text('slots 4 → 3')")
    page.close()


def test_points_are_those_of_the_notebook(browser: Any, site: Path) -> None:
    page = opened(browser, site / "index.html", [])
    draw = random.Random(1)
    for _ in range(60):
        whole, measured = draw.random() < 0.5, draw.choice([0.0, 1.0, 3.0, draw.uniform(0.1, 40)])
        said = draw.choice([measured, draw.uniform(0, 60)])
        bet = Prediction("?", between=(0, 100), whole=whole)
        told = page.evaluate(
            "([bet, said, outcome]) => minillmBets.points(bet, said, outcome)",
            [{"whole": whole}, said, {"answer": measured, "also": []}],
        )
        bet.picker = type("Said", (), {"value": said})()
        bet._is_said = True
        assert told == pytest.approx(bet.points(MeasuredAnswer(measured, "")), abs=0.011), (said, measured, whole)
    page.close()


def test_steps_cost_what_the_simulator_says(browser: Any, site: Path) -> None:
    page = opened(browser, site / "calculator.html", [])
    draw = random.Random(2)
    for _ in range(60):
        name = draw.choice(["llama-3.1-8b", "llama-3.1-70b", "qwen3-30b-a3b"])
        card, tp = draw.choice(CARDS), draw.choice([1, 4, 8])
        dtypes = draw.choice(["bfloat16", "int4"]), draw.choice(["bfloat16", "fp8"])
        if (prices := priced(name, card, tp, *dtypes)) is None:
            continue
        requests, new = draw.choice([(1, 1), (64, 1), (4, 500)])
        context = requests * draw.randint(new, 8000)
        sums = requests * new, context * new, context
        prompts = (requests, *sums) if new > 1 else ()
        work = StepWork(sums[0], requests, requests, *sums[1:], *(prompts or (0,)))
        profile = find_profile(card)
        placement = Placement(tp=tp, weight_dtype=dtypes[0], kv_dtype=dtypes[1])
        right = StepTimeModel(find_model(name), profile.hardware, placement, profile.constants).price(work).total
        told = page.evaluate("([prices, work]) => minillmDashboard.price(prices, work)", [prices, asdict(work)])
        assert told == pytest.approx(right, rel=1e-5), (name, card, tp, dtypes)
    page.close()


def test_a_number_is_read_as_in_a_terminal(browser: Any, site: Path) -> None:
    page = opened(browser, site / "napkin.html", [])
    for number, unit in (
        *(
            ("at most 87.6", ""),
            ("about 2.2 GB", ""),
            ("90 ± 10 ms", ""),
            ("I'd say 2.4 x 10^6 tokens.", ""),
            ("80", "ms"),
        ),
        *(
            ("132k", "tokens/s"),
            ("$2.15", ""),
            ("~5 s to the first token", ""),
            ("16 requests per second", ""),
            ("1,056", ""),
        ),
        *(("2.5 GiB", ""), ("40 Gbit/s", ""), ("5.4x", ""), ("7 replicas", ""), ("", ""), ("5", "(a count)")),
        *(("1 to 2 s", ""), ("80 ms", "s"), ("1,5", ""), ("soon", ""), ("1e999 s", ""), ("-3 s", ""), ("5 m", "")),
    ):
        told = page.evaluate(
            "([number, unit]) => { try { return minillmWritten.amount(number, unit) } catch (e) { return e.message } }",
            [number, unit],
        )
        try:
            read = read_amount(number, unit)
            assert told == (read and {"value": pytest.approx(read.value), "unit": read.unit}), number
        except AmountError:
            assert isinstance(told, str), number
    page.close()


def test_a_sum_of_a_day_is_the_one_of_the_terminal_and_judged_alike(browser: Any, site: Path) -> None:
    told: list[str] = []
    page = opened(browser, site / "napkin.html", told)
    today = napkin_of_day(date.fromisoformat(page.evaluate("minillmNapkins.dateOf(new Date())")))
    page.get_by_role("button", name="Start").press("Enter")
    assert today.question in page.locator("#napkin").inner_text()
    page.keyboard.type("a lot")
    page.get_by_role("button", name="Answer").press("Enter")
    assert "isn't one number" in page.get_by_role("alert").inner_text()
    page.get_by_label("Your answer").fill(f"about {today.told}")
    page.get_by_role("button", name="Answer").press("Enter")
    shown = page.locator("section").last.inner_text()
    assert "Right. You took" in shown and all(line in shown for line in (today.told, *today.working))
    assert page.get_by_role("link", name=f"lesson {today.lesson}").is_visible()
    page.get_by_role("button", name="Another day").press("Enter")
    assert "The sum of 2" in page.locator("#napkin").inner_text()
    data = napkins.exported(date(2026, 11, 27), {})
    first = date.fromisoformat(data["first"]).toordinal()
    sums = [napkin_of_day(date.fromordinal(first + place)) for place in range(60)]
    typed = [(each.told, "12", "12 ms", "about 1.5 GB", "70%", f"{each.answer.value * 1.9:.6f}") for each in sums]
    said = page.evaluate(  # of all in one go: the data are large
        """([all, typed]) => typed.map((answers, place) => answers.map(answer => {
        try { return minillmNapkins.judge(all, all.sums[place], answer) } catch { return '' } }))""",
        [data, typed],
    )
    for place, each in enumerate(sums):
        assert data["sums"][place]["question"] == each.question
        for answer, judged in zip(typed[place], said[place], strict=True):
            try:
                assert judged == each.debrief(answer)[0].partition(" You took")[0], (each.question, answer)
            except NapkinError:
                assert judged == "", (each.question, answer)
    page.close()
    assert told == []


def test_a_round_is_worth_what_it_is_in_the_notebook(browser: Any, site: Path) -> None:
    page = opened(browser, site / "round_weights.html", [])
    wrong = only({"envelope.origin": "about 23.6 s", "envelope.sure": "0.9", "dive_2.wait": "hbm"}, staff)
    some = [staff, stuffed, longest, silent, staff_but("failure"), staff_but("boxes", "change"), wrong]
    for name in ROUNDS:
        data = rounds.exported(find_round(name).drawn())
        for player in some:
            played = play(name, player, questions=first_of_the_menu if player in (stuffed, longest) else None)
            told, pushed = page.evaluate(
                """([round, sitting]) => [minillmRounds.judge(round, sitting), Object.fromEntries(round.stages.map(
                each => [each.key, minillmRounds.pushbackOf(round, sitting, each)?.key]).filter(each => each[1]))]""",
                [data, handed_in(played)],
            )
            right = judge(played)
            assert not [item.told for item in right.items if "{" in item.told]
            assert pushed == {key: each.key for key, each in played.pushed.items()}
            assert (told["level"], told["told"]) == (right.level, right.told())
            for area, each in zip(told["areas"], right.areas, strict=True):
                assert (area["area"], area["level"], area["counted"]) == (each.area, each.level, each.counted)
                items = [asdict(item) | {"points": pytest.approx(item.points)} for item in each.items]
                assert area["items"] == items, (name, player)
            for mine, its in ((told["helped"], right.helped()), (told["hurt"], right.hurt())):
                assert [each["about"] for each in mine] == [each.about for each in its]
    page.close()


def handed_in(played: RoundSitting) -> dict[str, Any]:
    """A sitting as the page keeps it."""
    kept = {
        name: getattr(played, name)
        for name in ("asked", "commits", "sure", "edges", "replies", "beliefs", "said", "own")
    }
    return {**kept, "pushed": {key: each.key for key, each in played.pushed.items()}}


def test_a_round_is_sat_to_its_end_by_keyboard_on_a_phone(browser: Any, site: Path) -> None:
    told: list[str] = []
    page = opened(browser, site / "round_weights.html", told, viewport={"width": 390, "height": 780})
    drawn = find_round("weights").drawn()
    assert drawn.fill(drawn.round.opening) not in page.locator("body").inner_text()
    page.get_by_role("button", name="Start").press("Enter")
    page.get_by_label("Ask the interviewer").last.select_option(index=1)
    page.get_by_role("button", name="Ask", exact=True).press("Enter")
    assert drawn.fill(drawn.menu[0].says) in page.locator("#round").inner_text()
    said = "Copies travel from peer to peer, one stream for each rack"
    for stage in drawn.round.stages:
        if sitting_on := page.evaluate("document.activeElement.tagName") != "BUTTON":
            assert page.evaluate("document.activeElement.textContent").startswith(stage.title)
        assert sitting_on or stage.key == "requirements"
        here = page.locator("section").last
        if stage.key == "envelope":
            here.locator("input").first.fill("soon")
            here.get_by_role("button", name="Go on").press("Enter")
            assert "isn't one number" in here.get_by_role("alert").inner_text()
            here.locator("input").first.fill(f"about {drawn.asked(stage.numbers[0])}")
            here.get_by_label("How sure").select_option("0.9")
        if stage.key == "boxes":
            here.get_by_label("Arrows").fill("store > moon")
            here.get_by_role("button", name="Go on").press("Enter")
            assert "no box “moon”" in here.get_by_role("alert").inner_text()
            here.get_by_label("Arrows").fill("store > seed")
            here.get_by_label("An arrow from").select_option("seed")
            here.get_by_label("An arrow to").select_option("agent")
            here.get_by_role("button", name="Add arrow").press("Enter")
            assert here.get_by_label("Arrows").input_value() == "store > seed\nseed > agent"
        here.get_by_label("In your own words").fill(said)
        if stage.key == "dive_1":
            assert_clean(page)
        here.get_by_role("button", name="Go on").press("Enter")
        while (button := page.locator("section").last.get_by_role("button", name="Reply")).count():
            page.locator("section").last.locator("select").select_option(index=1)
            button.press("Enter")
        if stage.statements:
            page.locator("section").last.locator("select").first.select_option("0.9")
            page.locator("section").last.get_by_role("button", name="Go on").press("Enter")
    own = page.locator("section").last
    own.locator("select").first.select_option("staff")
    own.locator("input").first.fill("one stream")
    own.get_by_role("button", name="See").press("Enter")
    assert "at least 8 words" in own.get_by_role("alert").inner_text()
    own.locator("input").first.fill(said)
    own.get_by_role("button", name="See").press("Enter")
    result = page.locator("section").last.inner_text()
    assert "no hire yet" in result and f"requirements: staff (“{said}”)" in result and "You took 0:" in result
    page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true })")
    assert drawn.fill(drawn.round.rubric["change"][2]) in page.locator("section").last.inner_text()
    assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0
    assert_clean(page)
    page.get_by_role("button", name="Once more").press("Enter")
    page.get_by_text("This time it has other numbers").wait_for()
    assert "no hire yet" in page.locator("#round").inner_text()
    page.get_by_role("button", name="Start").press("Enter")
    page.get_by_label("Ask the interviewer").last.select_option(index=1)
    page.get_by_role("button", name="Ask", exact=True).press("Enter")
    again = find_round("weights").drawn(1)
    assert again.fill(again.menu[0].says) in page.locator("#round").inner_text()
    page.goto((site / "rounds.html").as_uri())
    assert "no hire yet" in page.locator("[data-round=weights]").inner_text()
    page.close()
    assert [each for each in told if "Error" in each] == []  # Axe has requests of its own


def assert_clean(page: Any) -> None:
    """Axe finds nothing at all."""
    worst = Axe().run(page).response["violations"]
    assert not worst, [(each["id"], [node["html"][:120] for node in each["nodes"][:3]]) for each in worst]


def test_an_explorer_moves_and_the_calculator_answers(browser: Any, site: Path) -> None:
    told: list[str] = []
    for lesson in (path for path in sorted(site.glob("*.html")) if "data-frames" in path.read_text()):
        page = opened(browser, lesson, told)
        page.evaluate("document.querySelectorAll('details').forEach(each => { each.hidden = false; each.open = true })")
        panel = page.locator(".explorer:has(input[type=range])").first
        if panel.count():
            break
        page.close()
    stage = panel.locator(".stage").first
    before = stage.inner_html()
    slider = panel.locator("input[type=range]").first
    slider.focus()
    page.keyboard.press("Home" if slider.evaluate("each => each.value === each.max") else "End")
    page.wait_for_function("([stage, before]) => stage.innerHTML !== before", arg=[stage.element_handle(), before])
    page.close()
    page = opened(browser, site / "calculator.html", told)
    replicas, gpus = page.locator(".mm-figures b").nth(0), page.locator(".mm-figures b").nth(1)
    few = int(replicas.inner_text())
    page.get_by_label("requests a second, exactly").fill("100")
    assert int(replicas.inner_text()) > few and int(gpus.inner_text()) == 4 * int(replicas.inner_text())
    assert page.locator(".mm-fleet i").count() == int(gpus.inner_text())
    few = int(replicas.inner_text())
    page.get_by_role("slider", name="prompt", exact=True).press("ArrowRight")  # live, while it slides
    assert int(replicas.inner_text()) >= few and page.get_by_label("prompt, exactly").input_value() != "1500"
    page.get_by_role("radiogroup", name="GPUs in a replica").get_by_role("radio", name="1", exact=True).click()
    assert "don't fit" in page.locator(".mm-sheet-told").inner_text() and replicas.inner_text() == "–"
    page.close()
    assert told == []


@pytest.mark.parametrize(("theme", "width"), [("light", 1280), ("dark", 360)])
def test_axe_finds_nothing_serious(browser: Any, site: Path, theme: str, width: int) -> None:
    found = []
    for name in AXED[theme]:
        page = opened(browser, site / f"{name}.html", [], color_scheme=theme, viewport={"width": width, "height": 780})
        worst = [each for each in Axe().run(page).response["violations"] if each["impact"] in ("serious", "critical")]
        found += [f"{name}: {each['id']}: {[node['html'][:120] for node in each['nodes'][:3]]}" for each in worst]
        page.close()
    assert found == []
