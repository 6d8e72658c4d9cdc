"""What all lessons share: charts, pictures with handles, and the simulator at 70B."""

import xml.etree.ElementTree as ET
from collections.abc import Iterator

import pytest

from course.lab.display import Html
from course.lab.explorer import Explorer, buttons, choices, slider, switch
from course.lab.frozen import as_image
from course.lab.lab import Lab
from course.lab.pictures.chart import Axis, Curve, Mark, draw_chart
from minillm import EngineConfig


def curve(name: str = "measured", top: float = 30.0) -> Curve:
    return Curve(name, [1, 10, 100], [3, top / 2, top])


def test_a_chart_is_valid_svg_with_axes_units_words_and_the_themes_ink() -> None:
    picture = draw_chart(
        "How does it grow?",
        [curve(), Curve("formula <&>", [1, 100], [2, 40], style="dashes")],
        Axis("batch, requests", log=True),
        Axis("time, ms"),
        [Mark("limit", y=20), Mark("knee", x=10), Mark("here", x=10, y=15)],
    )
    svg = picture.svg()
    ET.fromstring(svg)
    for words in ("batch, requests", "time, ms", "formula", "limit", "knee", "here", "measured"):
        assert words in svg
    assert "measured (time, ms against batch, requests): 3 at 1, 30 at 100" in picture.alternative
    assert "var(--jp-ui-font-color2" in svg and "#020202" not in svg and "DejaVu" not in svg
    assert svg.count("</svg>") == 1 and "<img" in as_image(svg)


def test_moving_a_slider_draws_anew() -> None:
    explorer = Explorer(
        lambda k, rate: Html(f"<p>{k * rate:g}</p>", ""), k=slider("k", 0, 8, 4), rate=choices("r", [1, 2])
    )
    assert "<p>4</p>" in explorer.view.value
    explorer.set(k=5, rate=2)
    assert "<p>10</p>" in explorer.view.value and "<p>10</p>" in explorer.static_html()
    assert "k: 5" in explorer.static_html()


def test_what_cannot_be_drawn_is_said_and_passes() -> None:
    def draw(on: bool, kind: str) -> Html:
        if not on:
            raise ValueError("turn it <on>")
        return Html(f"<p>{kind}</p>", "")

    explorer = Explorer(draw, on=switch("on"), kind=buttons("kind", ["a", "b"], "b"))
    assert "turn it &lt;on&gt;" in explorer.view.value and explorer.error == "turn it <on>"
    assert explorer.set(on=True).error is None and explorer.view.value == "<p>b</p>"


def test_a_button_draws_picture_after_picture() -> None:
    def draw(n: int) -> Iterator[Html]:
        for i in range(n):
            yield Html(f"<p>{i}</p>", "")

    explorer = Explorer(draw, button="Run", n=slider("n", 1, 9, 3))
    assert explorer.shown is None
    explorer.press()
    assert explorer.wait().view.value == "<p>2</p>"


def test_one_variable_names_the_model_of_every_lesson(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Lab().config().model == EngineConfig().model
    monkeypatch.setenv("MINILLM_LAB_MODEL", "qwen3-0.6b")
    assert Lab().config().model == "qwen3-0.6b" and Lab(model="tiny").config().model == "tiny"


def test_a_slow_picture_is_drawn_when_a_slider_is_let_go_and_says_so_meanwhile() -> None:
    said: list[str] = []

    def draw(n: int) -> Html:
        said.append(explorer.busy.value)
        return Html(str(n), str(n))

    explorer = Explorer(draw, slow=True, n=slider("n", 1, 9, 1))
    assert not explorer.controls["n"].continuous_update and explorer.busy in explorer.widget.children
    assert explorer.view.value == "1", "it's drawn when it's first looked at"
    explorer.set(n=3)
    assert ["running" in each for each in said] == [False, True]
    assert explorer.busy.value == "" and explorer.view.value == "3"
