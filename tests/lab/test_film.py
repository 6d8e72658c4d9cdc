"""The film of the dashboard: which frames are kept, and how long each stands."""

from pathlib import Path

import pytest

pytest.importorskip("playwright.sync_api")

from PIL import Image

from course.images import film


def frames(*moments: float) -> list[film.Frame]:
    return [film.Frame(moment, f"<svg>{moment}</svg>") for moment in moments]


def test_frames_that_follow_too_soon_are_left_out_but_never_the_last() -> None:
    kept = film.thinned(frames(0.0, 0.1, 0.25, 0.3, 0.5, 0.55), shortest=0.2)
    assert [frame.moment for frame in kept] == [0.0, 0.25, 0.5, 0.55]
    assert film.thinned(frames(1.0)) == frames(1.0)


def test_the_film_runs_at_the_speed_of_the_run() -> None:
    shown = film.durations_ms(frames(0.0, 0.25, 1.0))
    assert shown == [250, 750, round(1000 * film.LAST_S)]


def test_a_film_has_all_its_frames(tmp_path: Path) -> None:
    taken = frames(0.0, 0.3, 0.6)
    images = [Image.new("RGB", (20, 10), colour) for colour in ("white", "green", "blue")]
    film.save(taken, images, tmp_path / "film.webp")
    with Image.open(tmp_path / "film.webp") as found:
        assert (found.format, found.n_frames, found.size) == ("WEBP", 3, (20, 10))
