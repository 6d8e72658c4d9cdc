"""Lesson 00: which sentence is told depends on what the runs took, and on what they ran on."""

from dataclasses import replace
from itertools import pairwise, product
from xml.etree import ElementTree

import pytest
from made_run import bordered, made_config, made_run, with_views

from course.lab.control import Control
from course.lab.run import Run, phases_of
from course.lab.style import WIDTH
from course.lessons.lesson_00 import words
from course.lessons.lesson_00.explorer import ANSWER, PROMPT, TOKENS, ModelStep, draw_step
from course.lessons.lesson_00.pictures import LEAST, phase_edges
from minillm import LLM, SamplingParams
from minillm.core.timeline import PHASES

ON = "simulated: llama-3.1-8b on h100-sxm"


def phased(apart: float = 0.0, on: str = "", **taken: float) -> Run:
    """Two requests, `apart` seconds one after the other, whose phases all take so many seconds; 0.1 if not given."""
    seconds = [taken.get(phase, 0.1) for phase in PHASES]
    run = with_views(made_run(num_requests=2, apart=apart), lambda row: {"borders": bordered(row, *seconds)})
    return replace(run, simulated_on=on)


@pytest.mark.parametrize(
    ("apart", "off", "told"),
    [
        (0.0, {"prefill": 0.2}, "**Prefill grew**"),
        (9.0, {"prefill": 0.2}, "**Prefill grew**"),
        (0.0, {"prefill": 0.2, "decode": 0.15}, "requests overlapped here"),
        (0.0, {"prefill": 0.2, "decode": 0.3}, "**Decode grew most**"),
        (0.0, {"prefill": 0.2, "decode": 0.08}, "this machine's noise"),
        (9.0, {"prefill": 0.2, "decode": 0.3}, "nothing in this experiment explains"),
        (9.0, {"prefill": 0.1002}, "**Caching bought nothing here.**"),
        (0.0, {"prefill": 0.1002}, "**Caching bought nothing here.**"),
        (0.0, {"queue": 0.3}, "**The queue grew most**"),
        (0.0, {"stream": 0.3}, "nothing in this experiment explains"),
    ],
)
def test_what_caching_saves_is_told_by_what_grew(apart: float, off: dict[str, float], told: str) -> None:
    assert told in str(words.rag(phased(apart), phased(apart, **off)))


def test_prefill_that_fell_is_not_said_to_have_grown() -> None:
    queued = {"queue": 0.9}
    assert "Prefill grew by 100 ms" in str(words.eight_together(phased(), phased(**queued, prefill=0.2)))
    assert "Prefill didn't grow" in str(words.eight_together(phased(), phased(**queued, prefill=0.08)))


@pytest.mark.parametrize(("times", "told"), [(1.05, "It got shared"), (1.4, "takes 1.40 times as long")])
def test_a_model_got_no_slower_only_where_a_shared_step_takes_no_longer(times: float, told: str) -> None:
    one, eight = phased(), phased(queue=0.9)
    stretched = [
        replace(row, view=replace(row.view, deliveries=tuple(times * moment for moment in row.view.deliveries)))
        for row in one.rows
    ]
    shared = replace(
        eight,
        rows=tuple(
            replace(b, view=replace(b.view, deliveries=a.view.deliveries)) for a, b in zip(stretched, eight.rows)
        ),
    )
    assert told in str(words.eight_together(one, shared))


def stepped(*mixed_s: float) -> Run:
    """Decode steps of 10, 11, 12 and 13 ms, and steps that mix a chunk in."""
    run = made_run(num_requests=3, config=made_config(max_num_seqs=3), prompt=100, apart=0.3)
    mixed = next(step for step in run.steps if 0 < step.num_prefill_tokens < step.num_tokens)
    plain = next(step for step in run.steps if not step.num_prefill_tokens)
    taken = [*((plain, 0.01 + 0.001 * i) for i in range(4)), *((mixed, each) for each in mixed_s)]
    return replace(run, steps=tuple(replace(step, end=step.start + each) for step, each in taken))


@pytest.mark.parametrize(
    ("mixed", "told"),
    [
        ((0.03, 0.03), "**2.6 times**"),
        ((0.0131, 0.0131), "is the price of 100 prompt tokens"),
        ((0.012, 0.012), "fit into time that a decode step takes anyway"),
        ((), "No step mixed"),
    ],
)
def test_mixed_steps_are_compared_with_how_far_decode_steps_lie_apart(mixed: tuple[float, ...], told: str) -> None:
    assert told in str(words.gaps(stepped(*mixed)))


def test_nothing_scatters_on_a_simulated_device() -> None:
    same = phased(on=ON)
    told = str(Control("As before", same, same))
    assert "noise" not in told and "busy" not in told and "simulated device" in told
    assert "machine's noise" in str(Control("As before", phased(), phased(decode=0.11)))


def test_a_step_computes_what_is_new_or_everything_again() -> None:
    steps = range(1, len(ANSWER) + 1)
    kept, again = ([ModelStep(number, keeps) for number in steps] for keeps in (True, False))
    assert [len(step.computed) for step in kept] == [len(PROMPT)] + [1] * (len(ANSWER) - 1)
    assert [len(step.computed) for step in again] == [len(PROMPT) + i for i in range(len(ANSWER))]
    assert kept[-1].work == len(TOKENS) - 1, "each token once, but for the last, which no step has computed yet"
    assert again[-1].work == sum(range(len(PROMPT), len(TOKENS)))
    assert all(step.computed[-1] == step.seen - 1 for step in (*kept, *again)), "the last token says what comes next"
    for number, keep in product((0, *steps), (True, False)):
        drawn = draw_step(number, keep)
        assert ElementTree.fromstring(drawn.svg()) is not None and drawn.description == ModelStep(number, keep).told


def test_the_model_does_continue_that_way() -> None:
    llm = LLM(model="smollm2-135m", dtype="float32")
    [output] = llm.generate("".join(PROMPT), SamplingParams(temperature=0, max_tokens=len(ANSWER)))
    assert output.text == "".join(ANSWER)
    assert (len(output.prompt_token_ids), len(output.token_ids)) == (len(PROMPT), len(ANSWER))


def test_the_anatomy_is_in_proportion() -> None:
    run = phased(queue=0.2, prefill=0.4, first_token=0.0, decode=0.39, stream=0.01)
    edges = phase_edges(phases_of(run.row_of(0)))
    wide = [after - before for before, after in pairwise(edges)]
    assert (wide[1] - LEAST) / (wide[0] - LEAST) == pytest.approx(2)
    assert wide[2] == pytest.approx(LEAST) and edges[-1] == pytest.approx(WIDTH - 10)
