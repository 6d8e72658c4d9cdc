"""Every picture is valid XML, says in words what it shows, and never relies on colour alone."""

import math
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest
from made_run import made_config, made_run

from course.lab import style
from course.lab.pictures.blocks import GLYPHS, MANY, draw_blocks
from course.lab.pictures.chart import Axis, Curve, Mark, Panel, draw_chart, draw_panels
from course.lab.pictures.compare import draw_one_number, draw_phase_bars, draw_two_numbers
from course.lab.pictures.distribution import draw_distributions
from course.lab.pictures.steps import draw_steps
from course.lab.pictures.timeline import draw_timeline
from course.lab.printed import render
from course.lab.ruler import draw_ruler
from course.lab.run import Run
from course.lab.snapshot import CACHED, SHARED
from course.lab.style import ALARM, PHASE_COLOURS, PHASE_LABELS, TINT_INK, TINTS, WIDTH, tint
from course.lab.summary import Comparison
from course.lab.svg import PATTERNS, Picture

SVG = "{http://www.w3.org/2000/svg}"


def pictures(run: Run, ghost: Run | None = None) -> list[Picture]:
    drawn = [draw_timeline(run, ghost), draw_steps(run, ghost), draw_blocks(run), draw_distributions(run, ghost)]
    if run.finished:
        runs = {"A & <B>": run, "C": ghost or run}
        drawn += [draw_one_number(runs), draw_two_numbers(runs), draw_phase_bars(runs), draw_ruler(run, "ITL", 99.0)]
    return drawn


RUNS = {
    "nothing yet": lambda: made_run(num_requests=3, apart=5.0, until=0.0),
    "half way": lambda: made_run(until=0.7),
    "done": lambda: made_run(),
    "preempted": lambda: made_run(preempt_step=9),
    "forty requests": lambda: made_run(num_requests=40, output=4),
    "one token each": lambda: made_run(output=1),
}


@pytest.mark.parametrize("make", RUNS.values(), ids=RUNS)
def test_pictures_are_valid_xml_with_a_title_and_a_text_alternative(make) -> None:
    for picture in pictures(make(), made_run(config=made_config(max_num_seqs=1))):
        root = ET.fromstring(picture.svg())
        assert root.get("role") == "img"
        assert picture.title in root.get("aria-label")
        assert root.find(f"{SVG}title").text == picture.title
        assert "nan" not in picture.body.lower()


def test_phases_have_names_and_where_wanted_patterns_beside_their_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "<pattern" not in draw_timeline(made_run()).svg()
    monkeypatch.setenv(PATTERNS, "1")
    root = ET.fromstring(draw_timeline(made_run()).svg())
    patterns = {pattern.get("id") for pattern in root.iter(f"{SVG}pattern")}
    names = {text.text for text in root.iter(f"{SVG}text")}
    for phase in PHASE_COLOURS:
        assert any(identity.endswith(phase) for identity in patterns)
        assert PHASE_LABELS[phase] in names


def test_the_block_map_has_a_cell_for_every_block() -> None:
    run = made_run(until=0.7)
    owners = (SHARED, CACHED, *run.snapshot.block_owners[2:])
    body = draw_blocks(replace(run, snapshot=replace(run.snapshot, block_owners=owners))).body
    cells = sum(path.count("M") for path in re.findall(r' d="([^"]+)"', body))
    assert cells == len(owners) + 4  # and the four swatches of the legend
    assert "1 shared" in body


def test_a_phases_colour_is_written_in_one_place_and_means_only_that() -> None:
    colours = re.compile("|".join([*PHASE_COLOURS.values(), ALARM]), re.IGNORECASE)
    lab = Path(style.__file__).parent
    assert [file.name for file in lab.rglob("*.py") if colours.search(file.read_text(encoding="utf-8"))] == ["style.py"]


def luminance(colour: str) -> float:
    """The luminance of #rrggbb, about as WCAG has it."""
    return sum(share * (int(colour[i : i + 2], 16) / 255) ** 2.2 for i, share in ((1, 0.21), (3, 0.72), (5, 0.07)))


def test_a_request_has_one_tint_in_its_blocks_and_at_its_row_and_numbers_can_be_read_on_it() -> None:
    run = made_run(num_requests=7, until=0.7)
    held = {owner for owner in run.snapshot.block_owners if owner >= 0}
    blocks, timeline = (ET.fromstring(each.svg()) for each in (draw_blocks(run), draw_timeline(run, size=(560, 168))))
    assert len(held) > 2
    for number in held:
        where = f".//*[@data-request='{number}']"
        assert blocks.find(where).get("fill") == tint(number)
        assert len(timeline.findall(f"{where}/*[@fill='{tint(number)}']")) == 1
    assert all(luminance(each) + 0.05 > 4.5 * (luminance(TINT_INK) + 0.05) for each in TINTS)
    assert not [each.get("fill") for each in blocks.iter() if each.get("fill") in PHASE_COLOURS.values()]


def test_notes_on_a_timeline_stand_under_each_other_and_two_spaces_stay_two() -> None:
    run = made_run()
    late = replace(run, rows=tuple(replace(row, sent=row.due + 1) for row in run.rows))
    body = draw_timeline(late, run).body
    places = [re.search(rf' y="(\d+)"[^>]*>{words}', body).group(1) for words in ("thin outline", "dotted")]
    assert len(set(places)) == 2 and "#0\u00a0 200" in body


def test_a_frame_of_the_dashboard_stays_small_and_escapes_what_users_wrote() -> None:
    frame = render(Comparison(made_run(num_requests=12), made_run(num_requests=12)), "status")
    assert len(frame) < 80_000
    ghost = {"<script>": made_run(), "b": made_run()}
    assert "<script>" not in draw_phase_bars(ghost).svg()


def test_patterns_have_names_of_their_own_in_each_picture() -> None:
    """A page looks a name up in its first picture, though that be folded away."""
    body = '<defs><pattern id="@dots"/></defs><rect fill="url(#@dots)"/>'
    one, other = (Picture("?", body + more, 10).svg() for more in ("", "<g/>"))
    names = [re.search(r'id="(p[0-9a-f]+dots)"', svg).group(1) for svg in (one, other)]
    assert names[0] != names[1] and f"url(#{names[0]})" in one and f"url(#{names[1]})" in other


def test_no_two_of_many_owners_share_a_letter() -> None:
    assert len(set(GLYPHS)) == len(GLYPHS) > 60 and MANY not in GLYPHS


def test_a_long_title_fits_its_picture() -> None:
    sizes = [Picture("W" * count, "", 10).svg().partition('font-size="')[2].partition('"')[0] for count in (40, 120)]
    assert sizes[0] == "14" and 6 < float(sizes[1]) < 10


def test_a_limits_label_stands_above_the_axes_where_no_legend_is() -> None:
    curves = [Curve(name, [1, 2], [3, 4]) for name in ("one", "two")]
    svg = draw_chart("?", curves, Axis("x"), Axis("y"), [Mark("limit", x=1.5)]).svg()
    limit, legend = (float(re.search(rf' y="([\d.]+)"[^>]*>{words}<', svg).group(1)) for words in ("limit", "one"))
    assert limit < legend - 15


@pytest.mark.parametrize("has_library", [True, False])
def test_a_limits_label_moves_to_the_end_where_no_curve_is(monkeypatch: pytest.MonkeyPatch, has_library: bool) -> None:
    if not has_library:
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)

    def x_of_label(ys: list[float]) -> float:
        svg = draw_chart("?", [Curve("c", [1, 2], ys)], Axis("x"), Axis("y", low=0), [Mark("limit", y=1)]).svg()
        return float(re.search(r' x="([\d.]+)"[^>]*>limit<', svg).group(1))

    assert x_of_label([2.0, 1.1]) < WIDTH / 4 < 3 * WIDTH / 4 < x_of_label([1.1, 2.0])


@pytest.mark.parametrize("has_library", [True, False])
@pytest.mark.parametrize("ys", [[], [1.0], [1.0, math.nan, 2.0], [math.nan, math.nan], [1.0, math.inf]])
def test_a_label_finds_its_place_where_values_are_missing(
    monkeypatch: pytest.MonkeyPatch, has_library: bool, ys: list[float]
) -> None:
    if not has_library:
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    curve = Curve("c", list(range(len(ys))), ys)
    assert ">limit<" in draw_chart("?", [curve], Axis("x"), Axis("y", low=0, high=3), [Mark("limit", y=1)]).svg()


@pytest.mark.parametrize("has_library", [True, False])
def test_a_y_label_longer_than_its_axis_stands_above_it(monkeypatch: pytest.MonkeyPatch, has_library: bool) -> None:
    if not has_library:
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for words, stands in (("seconds", "seconds"), (long := "w" * 60, f"↓ {long}")):
        svg = draw_chart("?", [Curve("c", [1, 2], [3, 4])], Axis("x"), Axis(words)).svg()
        turned = re.search(rf"<text[^>]*>{re.escape(stands)}<", svg).group()
        assert ("rotate(-90" in turned) == (words == "seconds")


@pytest.mark.parametrize("has_library", [True, False])
def test_curves_are_named_again_only_where_they_are_others(monkeypatch: pytest.MonkeyPatch, has_library: bool) -> None:
    if not has_library:
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)

    def panel(*names: str) -> Panel:
        return Panel([Curve(name, [1, 2], [3, 4]) for name in names], Axis(""))

    svg = draw_panels(
        "?", [panel("one", "two"), panel("one", "two"), panel("one", "three"), panel("four")], Axis("x")
    ).svg()
    told = {name: svg.count(f">{name}<") for name in ("one", "two", "three", "four")}
    assert told == {"one": 2, "two": 1, "three": 1, "four": 0}


@pytest.mark.parametrize("has_library", [True, False])
def test_counts_have_no_numbers_between_whole_ones(monkeypatch: pytest.MonkeyPatch, has_library: bool) -> None:
    if not has_library:
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    curve = Curve("replicas", [1, 2], [0, 2])
    found = [
        draw_chart("?", [curve], Axis("x", whole=True), Axis("", low=0, whole=is_whole)).svg()
        for is_whole in (False, True)
    ]
    assert [bool(re.search(r">\d+\.\d+<", svg)) for svg in found] == [True, False]


def test_without_matplotlib_words_stand_in_rows_of_their_own_and_points_where_their_numbers_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    curves = [Curve(name, [1, 2], [3, 4]) for name in ("one", "two")]
    picture = draw_chart("?", curves, Axis("x"), Axis("y", low=3, high=4), [Mark("limit", x=1.5)])
    words = ("one", "limit", "4")  # 4 is the highest number at the y axis
    legend, limit, number = (float(re.search(rf' y="([\d.]+)"[^>]*>{each}<', picture.svg())[1]) for each in words)
    assert legend <= limit - 15 and limit < number
    ends = re.search(r'd="M[\d.]+ ([\d.]+)L[\d.]+ ([\d.]+)"', picture.svg())
    assert float(ends[2]) == pytest.approx(number - 4, abs=0.1) and float(ends[1]) > float(ends[2])
