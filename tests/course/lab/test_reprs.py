"""A cell may end with whatever a lesson makes: what it prints is a line or a small table, not every stamp."""

import importlib
import inspect
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from IPython.core.interactiveshell import InteractiveShell
from made_run import made_run

import course
import minillm
from course.lab.plain_text import show_beginnings
from course.lab.snapshot import EngineSnapshot, RequestView
from course.lab.workloads import MAKERS, workload
from course.simulator.cluster.record import ClientRecord
from course.simulator.cluster.run import FleetRun
from minillm import LLM, EngineConfig, SamplingParams
from minillm.core.brief import brief
from minillm.core.timeline import Timeline

MOST = 2000
"""Characters."""
MADE = made_run(num_requests=40, output=60)


def brief_ones() -> Iterator[type]:
    """The dataclasses of course and minillm that say they print one line."""
    for package in (course, minillm):
        folder = Path(package.__file__).parent
        for path in sorted(folder.rglob("*.py")):
            if "__repr__ = brief" in path.read_text(encoding="utf-8"):
                module = ".".join(path.relative_to(folder.parent).with_suffix("").parts)
                yield from _classes(importlib.import_module(module))


def _classes(module: ModuleType) -> Iterator[type]:
    for each in vars(module).values():
        if inspect.isclass(each) and each.__module__ == module.__name__ and vars(each).get("__repr__") is brief:
            yield each


def enormous(kind: type) -> Any:
    """An instance whose every field holds far more than anyone would print."""
    found = object.__new__(kind)
    for i, field in enumerate(fields(kind)):
        values = (
            "words " * 10_000,
            [[0.1] * 1000] * 1000,
            dict.fromkeys(range(1000), "words" * 99),
            np.zeros((999, 9)),
        )
        object.__setattr__(found, field.name, values[i % len(values)])
    return found


def test_a_brief_repr_is_short_whatever_the_fields_hold() -> None:
    kinds = list(brief_ones())
    assert {Timeline, RequestView, EngineSnapshot, ClientRecord} <= set(kinds) and len(kinds) > 60
    assert all(is_dataclass(kind) for kind in kinds if not issubclass(kind, tuple))
    for kind in kinds:
        if is_dataclass(kind):
            told = repr(enormous(kind))
            assert told.startswith(f"{kind.__name__}(") and len(told) < MOST, kind
    assert repr(Timeline(1.0, deliveries=[1.0] * 100)).count("<100 items>") == 1, "and says how much there is"


def test_a_run_shows_what_became_of_it() -> None:
    assert "made: done, 40 of 40 requests finished, TTFT p50" in repr(MADE)
    assert len(repr({f"run {i}": MADE for i in range(10)})) < MOST
    html = MADE._repr_html_()
    assert "prefill" in html and "E2E" in html and len(html) < 2 * MOST
    for part in (MADE.snapshot, MADE.views[0], MADE.rows[0], MADE.steps[0], made_run(until=0.0)):
        assert len(repr(part)) < MOST


@pytest.mark.parametrize("name", MAKERS)
def test_traffic_is_named_and_counted(name: str) -> None:
    assert len(repr(workload(name, 0, 1.0))) < MOST


def test_a_config_shows_what_was_set() -> None:
    assert repr(EngineConfig(max_num_seqs=2)) == "EngineConfig(max_num_seqs=2)"
    assert repr(SamplingParams(seed=7)) == "SamplingParams(seed=7)"


def test_generated_answers_are_a_line_each(tiny_llama_path: Path) -> None:
    llm = LLM(model=str(tiny_llama_path), dtype="float32", max_model_len=512, num_kv_blocks=128)
    outputs = llm.generate(["word " * 60] * 8, SamplingParams(max_tokens=60, ignore_eos=True))
    assert len(repr(outputs)) < MOST and "60 tokens, length" in repr(outputs[0])
    assert len(repr(outputs[0].completions[0])) < MOST and len(repr(outputs[0].timeline)) < MOST


def test_a_simulated_fleet_says_how_it_ended() -> None:
    fleet = FleetRun(tuple([ClientRecord(None)] * 5000), (), (), 12.0, {})
    assert len(repr(fleet)) < MOST


def test_in_a_notebook_no_list_of_them_is_printed_whole() -> None:
    shell = InteractiveShell()
    plain = shell.display_formatter.formatters["text/plain"]
    plain.for_type(complex, lambda value, printer, cycle: printer.text("i"))
    show_beginnings(shell)
    for long in (MADE.steps, MADE.views, ["word"] * 9999, "letters" * 9999, dict.fromkeys(range(99), MADE)):
        told = shell.display_formatter.format(long)[0]["text/plain"]
        assert len(told) < MOST + 100 and "print(repr(" in told
    assert shell.display_formatter.format([1, 2, 3])[0]["text/plain"] == "[1, 2, 3]"
    assert shell.display_formatter.format(1j)[0]["text/plain"] == "i", "what others have registered stays"
