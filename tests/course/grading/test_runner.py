"""An answer may do what it likes: the check comes back, with the points that were earned before."""

import os
import pickle
import sys
from dataclasses import replace

import pytest

from course.grading import props, runner, wire
from course.grading.exercise import Exercise
from course.grading.exercises import find
from course.grading.remote import Answer, ChildReply
from course.grading.runner import KEPT_OUTPUT, Graded, GradingWorker, Submission
from course.grading.source import answer_file, path_of

SHORT = replace(find("percentiles"), limit_s=0.2)
SOLUTION = answer_file(SHORT, "solution")
HALF = SOLUTION.partition("def two_numbers")[0]


def graded(text: str, exercise: Exercise = SHORT) -> Graded:
    with GradingWorker() as worker:
        return worker.grade(exercise, Submission.of_text(text, "answer.py"), seed=0)


def is_full(found: Graded) -> bool:
    return all(criterion.earned == criterion.possible for criterion in found.criteria)


def test_an_endless_loop_is_stopped_and_found_and_what_was_earned_before_stays() -> None:
    found = graded(HALF + "def two_numbers(requests, q):\n    while True:\n        pass\n")
    by_name = {criterion.name: criterion for criterion in found.criteria}
    assert by_name["between two samples"].earned == by_name["between two samples"].possible
    assert by_name["TTFT"].earned == 0
    assert "`two_numbers`" in by_name["TTFT"].feedback
    assert by_name["ITL"].earned == 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("while True: pass", "stopped: not done after"),
        ("import os\nos._exit(0)", "process"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV"),
        ("def f(:", "SyntaxError"),
        ("import sys\nsys.exit()", "exit"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("input('?')", "input()"),
        ("import os\nos.fork()", "os.fork"),
    ],
)
@pytest.mark.skipif(sys.platform == "win32", reason="these are signals")
def test_what_ends_a_process_becomes_feedback(text: str, words: str) -> None:
    found = graded(text)
    assert words in found.criteria[0].feedback
    assert sum(criterion.possible for criterion in found.criteria) == SHORT.max_score
    assert not any(criterion.earned for criterion in found.criteria)


@pytest.mark.parametrize(("slowness", "told"), [(1.0, "0.2 s"), (3.1, "0.62 s")])
def test_a_stopped_answer_is_told_the_limit_that_held(
    slowness: float, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow machine has longer."""
    ask = Answer.ask

    def on_such_a_machine(answer: Answer, work: str, *content: object) -> list[ChildReply]:
        replies = ask(answer, work, *content)
        return [replies[0]._replace(value=slowness)] if work == "prepare" else replies

    monkeypatch.setattr(Answer, "ask", on_such_a_machine)
    assert f"not done after {told}" in graded("while True: pass").criteria[0].feedback


@pytest.mark.parametrize("wait", ["import time\ntime.sleep(10_000)", "import threading\nthreading.Event().wait()"])
def test_an_answer_that_only_waits_is_stopped_too(wait: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "IDLE_S", 0.5)
    assert "waits for something" in graded(f"{wait}\n{SOLUTION}").criteria[0].feedback


def test_time_that_an_answer_does_not_compute_costs_it_nothing() -> None:
    """As on a machine that is busy with something else, though here it's the answer that rests."""
    rests = f"import time\ntime.sleep({2 * SHORT.limit_s})\n"
    assert is_full(graded(rests + SOLUTION))


@pytest.mark.parametrize(
    "once",
    [
        "import os\nos.mkdir('made')",
        "open('lock', 'x').close()",
        "import math\ndel math.tau",
        "import builtins\nif hasattr(builtins, 'seen'):\n    raise RuntimeError('twice')\nbuiltins.seen = True",
        "import os\nif os.path.exists('ran'):\n    os._exit(3)\nopen('ran', 'w').close()",
        "import os, time\nwhile os.path.exists('ran'):\n    pass\nopen('ran', 'w').close()",
    ],
)
def test_what_cannot_be_loaded_twice_is_graded_by_its_first_run(once: str) -> None:
    """The wrong part's mistake stands; looking for what lies behind it ends no check."""
    wrong = graded(f"{once}\n{SOLUTION}\ndef two_numbers(requests, q):\n    return 0.0, 0.0\n")
    by_name = {criterion.name: criterion for criterion in wrong.criteria}
    assert by_name["between two samples"].earned == by_name["between two samples"].possible
    assert by_name["TTFT"].earned == 0 and "0" in by_name["TTFT"].feedback
    assert "Traceback" not in by_name["TTFT"].feedback


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the memory in use is not known")
def test_memory_has_a_limit() -> None:
    text = "kept = []\ndef percentile(samples, q):\n    while True:\n        kept.append(bytearray(10**8))\n"
    found = graded(text, replace(SHORT, memory_mb=200, limit_s=60.0))  # it takes a while to fill
    assert "out of memory" in found.criteria[0].feedback


READS_THE_ANSWER = f"open({str(path_of(SHORT))!r}).read()"


@pytest.mark.parametrize(
    "trick",
    [
        "import course.grading.exercises.percentiles",
        "from minillm.observe import summary",
        "import importlib; importlib.import_module('solutions')",
        READS_THE_ANSWER,
        "import subprocess; subprocess.run(['true'])",
        "import os; os.system('true')",
    ],
)
def test_an_answer_stands_on_its_own(trick: str) -> None:
    found = graded(f"{trick}\n{SOLUTION}")
    assert not any(criterion.earned for criterion in found.criteria)
    assert "stands on its own" in found.criteria[0].feedback or "switched off" in found.criteria[0].feedback


PATCHES = """
import sys, numpy, math, json
yes = lambda *_, **__: True
numpy.allclose = numpy.isclose = numpy.array_equal = math.isclose = yes
for module in list(sys.modules.values()):
    for name in ("same", "close", "alike", "compare", "hold", "identical"):
        if hasattr(module, name):
            setattr(module, name, yes)
import os
for descriptor in range(3, 30):
    try:
        os.write(descriptor, b"x" * 16 + (4).to_bytes(4, "big") + b"yes!")
    except OSError:
        pass
def percentile(samples, q): return 7.0
def two_numbers(requests, q): return 7.0, 7.0
"""


def test_what_is_patched_or_forged_in_the_child_earns_nothing() -> None:
    assert not any(criterion.earned for criterion in graded(PATCHES).criteria)


@pytest.mark.parametrize("thing", [os.system, props.draws, props.ServerBlocks, eval, pickle.loads])
def test_a_reply_brings_nothing_but_data_into_the_judges_process(thing: object) -> None:
    with pytest.raises(pickle.UnpicklingError):
        wire.unpacked(pickle.dumps(thing), lambda *about: about)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("def percentile(samples, q, seen=[]):\n    seen += samples\n    return sorted(seen)[0]\n", "is kept between"),
        ("def percentile(samples, q):\n    samples.sort()\n    return samples[0]\n", "changes what it is given"),
        ("def percentile(samples, q):\n    print(samples[0])\n", "return it instead"),
        ("def percentile(samples, q):\n    return 6.25\n", "for every question"),
        ("def percentile(samples, q):\n    return float('nan')\n", "nan"),
        ("def percentile(samples, q):\n    raise SystemExit\n", "asked Python to exit"),
    ],
)
def test_the_cause_behind_a_mistake_is_named(change: str, words: str) -> None:
    found = graded(SOLUTION + change)
    assert words in found.criteria[0].feedback, found.criteria[0].feedback


def test_output_is_kept_apart_and_cut_off() -> None:
    found = graded("print('tea' * 10**6)\n" + SOLUTION)
    assert is_full(found)
    assert found.printed.startswith("tea")
    assert len(found.printed) < KEPT_OUTPUT + 100


def test_threads_that_never_end_hold_nothing_up() -> None:
    text = "import threading\nthreading.Thread(target=threading.Event().wait).start()\n"
    assert is_full(graded(text + SOLUTION))


def test_a_worker_goes_on_after_an_answer_that_killed_its_process() -> None:
    with GradingWorker() as worker:
        worker.grade(SHORT, Submission.of_text("import os\nos._exit(1)", "a.py"), 0)
        assert is_full(worker.grade(SHORT, Submission.of_text(SOLUTION, "a.py"), 0))


def test_it_starts_in_a_folder_of_its_own_that_is_gone_afterwards() -> None:
    here = sorted(os.listdir())
    found = graded("open('left_behind.txt', 'w').write('x')\nimport os\nprint(os.getcwd())\n" + SOLUTION)
    assert sorted(os.listdir()) == here
    assert not os.path.exists(found.printed.strip())
