"""Lesson 01: which sentence is told of the two services depends on what their runs took."""

import pytest
from made_run import bordered, made_config, made_run, with_views

from course.lab.control import Control
from course.lab.run import Row, Run
from course.lab.services_70b import BEFORE, INT8, ServiceFigures
from course.lessons.lesson_01 import words


def service(e2e: float = 1.0, gap: float = 0.01, ttft: float = 0.5) -> Run:
    """Two requests that take so long, with gaps of so many seconds."""

    def change(row: Row) -> dict:
        deliveries = tuple(row.view.borders[0] + ttft + gap * i for i in range(4))
        return {"borders": bordered(row, 0.9 * ttft, 0.1 * ttft, 0.0, e2e - ttft, 0.0), "deliveries": deliveries}

    return with_views(made_run(num_requests=2), change)


@pytest.mark.parametrize(
    ("a", "b", "told"),
    [
        (0.7, 0.7, "**Half the bytes helped both"),
        (0.7, 0.9, "**Half the bytes helped A more"),
        (0.9, 0.7, "**Half the bytes helped B more"),
        (0.9, 1.4, "**Half the bytes helped A and hurt B"),
        (1.1, 0.7, "**Half the bytes helped B and hurt A"),
        (1.04, 1.0, "**Half the bytes helped neither**"),
        (1.0, 1.3, "**Half the bytes helped neither, and hurt B**"),
        (1.3, 1.2, "**Half the bytes helped neither, and hurt A and B**"),
    ],
)
@pytest.mark.parametrize("moved", [0.0, 0.6])
def test_half_the_bytes(a: float, b: float, told: str, moved: float) -> None:
    before, half = {"A": service(), "B": service()}, {"A": service(a), "B": service(b)}
    control = Control("B as before", service(), service(1 + moved))
    assert str(words.half_the_bytes(before, half, control)).startswith("A " if moved else told)


def test_reading_takes_at_least_twice_what_half_the_bytes_save() -> None:
    before = {name: service() for name in "AB"}
    half = {"A": service(0.6, gap=0.006), "B": service(0.65, gap=0.007)}
    assert "at least 60% of such a step" in str(words.half_the_bytes(before, half, Control("", service(), service())))


@pytest.mark.parametrize(
    ("b", "shorter", "told"),
    [
        (6.1, (3.6, 5.6), "saves 21% of the time that it saves with one"),
        (12.0, (3.6, 9.7), "that's a smaller share"),
        (12.0, (3.6, 11.0), "takes the two apart"),
        (12.0, (3.6, 7.2), "outside its decode steps"),
    ],
)
def test_what_b_gains_less_is_put_down_to_what_its_steps_show(
    b: float, shorter: tuple[float, float], told: str
) -> None:
    assert told in str(words.why_a_gained_more({"A": 6.0, "B": b}, dict(zip("AB", shorter))))


def test_who_was_hurt_is_told_why_only_as_far_as_decode_steps_show_it() -> None:
    before = {name: service() for name in "AB"}
    quiet = Control("", service(), service())
    for gap, told in ((0.02, "Blame the kernel"), (0.01, "the prefill steps")):
        assert told in str(words.half_the_bytes(before, {"A": service(), "B": service(1.4, gap)}, quiet))


@pytest.mark.parametrize(
    ("e2e", "gap", "told"),
    [
        (0.3, 0.012, "The price is a longer ITL (10 ms to 12 ms"),
        (0.3, 0.0103, "and cheaply"),
        (0.3, 0.0098, "and cheaply"),
        (0.3, 0.005, "can't be the slots' doing"),
        (1.2, 0.02, "didn't shorten"),
    ],
)
def test_more_slots_cost_what_itl_says(e2e: float, gap: float, told: str) -> None:
    finding = words.more_slots({"A": service()}, {"A": service(e2e, gap)})
    assert told in str(finding) and finding.is_disturbed == ("doing" in told)


@pytest.mark.parametrize(
    ("gap", "told", "verdict"), [(0.02, "waits for the end", "holds:"), (0.0101, "reads along", "holds, and here")]
)
def test_whether_itl_tells_the_services_apart(gap: float, told: str, verdict: str) -> None:
    runs = {"A": service(), "B": service(gap=gap, ttft=0.1)}
    assert told in str(words.two_illnesses(runs)) and words.a6(runs).verdict.startswith(verdict)


def test_a_tail_is_put_down_to_long_prompts_only_where_they_are_in_it() -> None:
    run = made_run(num_requests=20, config=made_config(max_num_seqs=1), prompt=20, apart=9.0)

    def with_prompts(slow: int, long: int) -> Run:
        def change(row: Row) -> dict:
            deliveries = tuple(moment + 5.0 * (row.index == slow) for moment in row.view.deliveries)
            return {"num_prompt_tokens": 900 if row.index == long else 20, "deliveries": deliveries}

        return with_views(run, change)

    assert "you can name: 1 of the slowest 2 had a long prompt" in str(words.tail(with_prompts(3, 3)))
    assert "don't explain" in str(words.tail(with_prompts(3, 7)))


def test_the_bet_is_scored_by_the_services_at_70b() -> None:
    def figures(a: float, b: float) -> dict[str, ServiceFigures]:
        return {name: ServiceFigures(e2e, 1.0, 0.02, 0.03) for name, e2e in (("A", a), ("B", b))}

    for half, answer in ((figures(4, 7), "A"), (figures(7, 4), "B"), (figures(6, 6.5), words.SAME)):
        assert words.gained_at_70b({BEFORE: figures(10, 10), INT8: half}).answer == answer
