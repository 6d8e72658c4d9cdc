"""README's loop is drawn from a real run beside it, and shows of it what README's bet is about."""

import re
import xml.etree.ElementTree as ET

from course.lab.build import COURSE
from course.lab.hero_loop import PICTURE, RECORD, EightRequests, draw
from course.lab.style import PHASE_COLOURS

RUN = EightRequests.model_validate_json(RECORD.read_text(encoding="utf-8"))


def test_the_picture_is_drawn_from_the_run_and_small() -> None:
    assert draw(RUN) == PICTURE.read_text(encoding="utf-8"), "python -m course.lab.hero_loop --redraw"
    ET.fromstring(PICTURE.read_text(encoding="utf-8"))
    assert PICTURE.stat().st_size < 20_000 and "animate" in draw(RUN)


def test_bars_are_as_long_as_the_phases() -> None:
    widths = re.findall(rf'width="([\d.]+)" height="14" fill="{PHASE_COLOURS["decode"]}"', draw(RUN))
    decode = [row[4] - row[3] for row in RUN.borders]
    assert len(widths) == 8
    shares = [float(width) / time for width, time in zip(widths, decode)]
    assert max(shares) / min(shares) < 1.02


def test_what_readme_says_of_the_run() -> None:
    """The last four wait for a slot until the first four are done; all else grows less."""
    assert len(RUN.borders) == 8 and RUN.slots == 4
    first_done = min(row[-1] for row in RUN.borders[:4])
    assert all(row[1] < 0.1 * RUN.duration for row in RUN.borders[:4])
    assert all(row[1] >= 0.9 * first_done for row in RUN.borders[4:])
    waited = sum(row[1] - row[0] for row in RUN.borders) / 8
    assert waited > max(row[2] - row[1] for row in RUN.borders)


def test_the_figures_in_readme_are_the_runs() -> None:
    last = [end - start for start, end in zip(RUN.borders[-1], RUN.borders[-1][1:])]
    told = (COURSE.parent / "README.md").read_text(encoding="utf-8")
    assert max(last) == last[0]
    for figure in (last[0], sum(last), last[1], last[3]):
        assert f"{figure:.2f} s" in told
