"""The picture and the tables of how far off the simulator is: figures by arithmetic, and nothing left out."""

import csv
import struct
from pathlib import Path

import pytest

from docs.accuracy_picture import (
    HELD_OUT,
    IN_SAMPLE,
    PAGE,
    PICTURE,
    POINTS,
    TODAY,
    Row,
    cause,
    draw,
    keep_rows,
    put,
    read_rows,
    sets_of,
    table,
    worst,
)

PNG = b"\x89PNG\r\n\x1a\n"


def made(of: str = IN_SAMPLE, **cells: object) -> Row:
    plain = {
        **{"id": "llama_3_1_8b", "kind": "dense", "mode": "agg", "system": "h100_sxm", "precision": "fp8", "tp": "1"},
        **{"backend": "vllm", "backend_version": "0.19.0", "isl": "1024", "osl": "1024", "concurrency": "8"},
        **{"ttft_ms": "100", "tpot_ms": "10", "predicted_ttft_ms": "110", "predicted_tpot_ms": "12"},
    }
    return Row(of, {**plain, **{name: str(value) for name, value in cells.items()}})


def test_errors_by_group_are_those_of_the_rows() -> None:
    rows = [made(predicted_tpot_ms=value) for value in (9, 11, 13)]  # -10, +10, +30%
    rows.append(made(kind="moe", tp="8", predicted_tpot_ms=20))
    text = table({HELD_OUT: rows, TODAY: [made(kind=kind) for kind in ("dense", "moe")]})
    assert "| | points | held out: TPOT | TTFT | default stack: TPOT | TTFT |" in text
    assert "| dense | 3 | +10.0%, 16.7% | +10.0%, 10.0% | +20.0%, 20.0% | +10.0%, 10.0% |" in text
    assert "| mixtures of experts | 1 | +100.0%, 100.0% | +10.0%, 10.0% |" in text
    assert "| - tp 1 | 3 |" in text and "| - tp 2 |" not in text, "no group without points"
    assert text.endswith("| within 15%, of all | | 50% | 100% | 0% | 100% |")


def test_the_worst_come_first_once_each_up_and_down_alike() -> None:
    rows = [made(predicted_tpot_ms=12), made(predicted_tpot_ms=40, tpot_ms=20), made(predicted_tpot_ms=4, ttft_ms=90)]
    lines = worst([*rows, made(id="again_llama_3_1_8b", predicted_tpot_ms=12)], 3).splitlines()[2:]
    assert [line.split("|")[3].strip() for line in lines] == ["4.0", "40.0", "12.0"]


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        ({"ttft_ms": 20_000, "predicted_tpot_ms": 30}, "fewer ran at a time"),
        ({"predicted_tpot_ms": 1}, "starved for KV"),
        ({"concurrency": ""}, "doesn't say how many"),
        ({"osl": 100, "predicted_tpot_ms": 5}, "stalled by others' prompts"),
        ({"id": "deepseek_r1", "backend": "trtllm", "predicted_tpot_ms": 18}, "multi-token prediction"),
        ({"predicted_tpot_ms": 18}, "not known"),
    ],
)
def test_likely_causes(cells: dict, said: str) -> None:
    assert said in cause(made(**cells))


def test_kept_rows_draw_the_same_picture(tmp_path: Path) -> None:
    rows = [made(tp=tp, predicted_tpot_ms=10 + tp) for tp in (1, 2, 4, 8, 16)]
    written = tmp_path / "rows.csv"
    with written.open("w", newline="") as file:
        writer = csv.DictWriter(file, ["refused", *rows[0].cells])
        writer.writeheader()
        writer.writerows({"refused": "", **row.cells} for row in rows)
        writer.writerow({"refused": "no such model"})
    read = read_rows(written, IN_SAMPLE)
    assert len(read) == 5, "what was refused has no forecast"
    for name in ("a", "b"):
        keep_rows(read, tmp_path / f"{name}.csv.gz")
    assert (tmp_path / "a.csv.gz").read_bytes() == (tmp_path / "b.csv.gz").read_bytes()
    again = read_rows(tmp_path / "a.csv.gz", "ignored")
    assert [row.of for row in again] == [IN_SAMPLE] * 5 and table({IN_SAMPLE: again}) == table({IN_SAMPLE: read})
    draw({IN_SAMPLE: again}, tmp_path / "one.png")
    draw({IN_SAMPLE: again, HELD_OUT: again}, tmp_path / "two.png")
    (one, two) = (struct.unpack(">II", (tmp_path / f"{name}.png").read_bytes()[16:24]) for name in ("one", "two"))
    assert two[0] == one[0] and two[1] == pytest.approx(2 * one[1], rel=0.01), "a row of panels each"


def test_the_page_shows_what_its_rows_come_to() -> None:
    by_set, page = sets_of(read_rows(POINTS, HELD_OUT)), PAGE.read_text(encoding="utf-8")
    assert len({len(rows) for rows in by_set.values()}) == 1, "the same points in each"
    assert table(by_set) in page and worst(by_set[HELD_OUT]) in page
    assert f"]({PICTURE.name})" in page and PICTURE.read_bytes().startswith(PNG)


def test_a_page_without_a_place_is_told() -> None:
    page = "a <!-- worst: python -m docs.accuracy_picture -->\nold\n<!-- end of worst --> b"
    assert "old" not in put(page, "worst", "new") and put(page, "worst", "new").endswith("end of worst --> b")
    with pytest.raises(ValueError, match="no place for errors"):
        put(page, "errors", "new")
