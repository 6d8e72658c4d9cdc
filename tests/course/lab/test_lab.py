"""The bench itself: what a cell that is run again leaves behind, runs that fail, and who may step an engine when."""

import gc
import threading
import time
import traceback
import weakref
from collections.abc import Callable

import pytest
from IPython.core.interactiveshell import InteractiveShell
from patience import PATIENCE_S

from course.lab import draft_rules, draft_story, open_lab, verify_costs, waiting
from course.lab.lab import Lab
from course.lab.session import Session
from course.lab.workloads import LabWorkload, PromptArrival
from course.lessons.lesson_03 import run as lesson_03
from course.lessons.lesson_09 import run as lesson_09
from course.lessons.lesson_09.run import PLAIN, Shelf
from course.measure.scoring import decode_texts
from minillm import Engine, SamplingParams
from minillm.frontend.errors import EngineDeadError

WAIT_S = PATIENCE_S


def another(lab: Lab, **options: object) -> Lab:
    """As the lesson's first cell makes it when it is run again."""
    return Lab(short=True, **options, **lab.defaults)


def test_a_lab_that_takes_anothers_place_ends_its_run_and_frees_its_memory(tiny_lab: Lab) -> None:
    session = tiny_lab.start(tiny_lab.workload("chat"), tiny_lab.config())
    engine = weakref.ref(tiny_lab._engine)
    new = another(tiny_lab, instead_of=tiny_lab)
    try:
        assert session.wait(0) and session.run().done
        del session
        assert engine() is None, "although the old lab is still known to its panels"
        assert len(new.run("chat").finished) == len(new.workload("chat").arrivals)
        with pytest.raises(EngineDeadError, match="closed: run the cell"):
            tiny_lab.run("chat")
    finally:
        new.close()


def test_a_shelf_that_takes_anothers_place_closes_its_labs(tiny_lab: Lab) -> None:
    old = Shelf(tiny_lab)
    rounded = old.of("int8")
    assert rounded.model is not tiny_lab.model
    Shelf(tiny_lab, instead_of=old)
    with pytest.raises(EngineDeadError):
        _ = rounded.model
    assert tiny_lab.model is not None, "the lab that was given stays"


def test_engines_in_turn_share_a_runner_and_the_labs_own_engine_stays(tiny_lab: Lab) -> None:
    assert tiny_lab.model is not None
    own = tiny_lab._engine.config

    def answer(engine: Engine) -> list[int]:
        engine.add_request("Hello there", SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True))
        while engine.has_unfinished:
            outputs = engine.step()
        return outputs[0].completions[0].token_ids

    first = tiny_lab.next_engine(num_kv_blocks=64)
    said = answer(first)
    second = tiny_lab.next_engine(num_kv_blocks=32, max_num_seqs=2)
    assert second.torch_runner is first.torch_runner and answer(second) == said
    assert len(second.steps) == len(first.steps), "its own steps only"
    assert tiny_lab.next_engine(num_kv_blocks=65).torch_runner is not first.torch_runner, "a larger pool"
    assert tiny_lab.engine().torch_runner is not first.torch_runner, "beside them"
    assert tiny_lab._engine.config == own, "an engine of one's own leaves it alone"
    weights = weakref.ref(first.torch_runner.model.decoder)
    del first, second
    assert tiny_lab.next_engine(quantization="int8").model.quantization == "int8"
    gc.collect()
    assert weights() is None, "those of before aren't kept in memory beside them"


def test_a_tokenizer_is_had_without_weights(tiny_lab: Lab) -> None:
    assert tiny_lab.tokenizer.encode("Hello there") and tiny_lab._engine is None


def test_a_cell_that_is_run_again_closes_the_lab_before(monkeypatch: pytest.MonkeyPatch) -> None:
    shell = InteractiveShell()
    names = shell.user_ns
    monkeypatch.setattr("course.lab.lab.get_ipython", lambda: shell)
    closed: list[Lab] = []
    monkeypatch.setattr(Lab, "close", lambda self: closed.append(self))
    first = names["lab"] = open_lab()
    assert closed == []
    second = open_lab(max_num_seqs=2)
    assert closed == [first]
    assert second.defaults["max_num_seqs"] == 2
    names["lab"] = "a laboratory"
    open_lab()
    assert closed == [first]


def test_a_bet_that_was_locked_stays_locked_when_the_first_cell_is_run_again() -> None:
    first = Lab(short=True)
    bet = first.predict("eight", "What grows?", ["queue", "decode"]).choose("queue").lock()
    second = Lab(short=True, instead_of=first)
    assert second.predict("eight", "What grows?", ["queue", "decode"]) is bet
    second.predict("nine", "And now?")
    assert "nine" not in first._predictions, "each lab has its own from here"


def test_outside_a_notebook_it_is_a_lab() -> None:
    assert isinstance(open_lab(), Lab)


# ---------------------------------------------------------------- runs that fail


def failing(error: Exception) -> Callable[..., None]:
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


def test_a_run_whose_client_fails_is_not_handed_out_as_complete(tiny_lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_lab.run("chat")
    with monkeypatch.context() as patched:
        patched.setattr(Session, "_listen", failing(ZeroDivisionError("a bug")))
        with pytest.raises(ZeroDivisionError, match="a bug"):
            tiny_lab.run("chat")
    assert tiny_lab.run("chat").done, "and the next one is played"


def test_a_run_whose_last_look_fails_ends_all_the_same(tiny_lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_lab.run("chat")
    look = Session._look
    monkeypatch.setattr(Session, "_look", lambda self, done: failing(ValueError("odd"))() if done else look(self, done))
    session = tiny_lab.start(tiny_lab.workload("chat"), tiny_lab.config())
    assert session.join(WAIT_S), "or everybody who waits would wait for ever"
    with pytest.raises(ValueError, match="odd"):
        session.wait(0)


def test_each_who_waits_gets_an_error_of_its_own(tiny_lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_lab.run("chat")
    monkeypatch.setattr(Session, "_listen", failing(ZeroDivisionError("a bug")))
    session = tiny_lab.start(tiny_lab.workload("chat"), tiny_lab.config())
    errors = []
    for _ in range(2):
        with pytest.raises(ZeroDivisionError, match="a bug") as found:
            session.wait(WAIT_S)
        errors.append(found.value)
    first, second = errors
    assert first is not second
    places = [[frame.name for frame in traceback.extract_tb(error.__traceback__)] for error in errors]
    assert places[0] == places[1] and places[0][-1] == "fail", "where it failed, and who waited: nobody else"
    assert "wait" not in [frame.name for frame in traceback.extract_tb(session._failed.__traceback__)]


# ---------------------------------------------------------------- one engine at a time


def can_be_had(lab: Lab) -> bool:
    """Whether another thread would get an engine now."""
    free: list[bool] = []

    def ask() -> None:
        free.append(lab._turn.acquire(blocking=False))
        if free[0]:
            lab._turn.release()

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    return free[0]


EXPERIMENTS = {
    "questions about a text": lesson_03.compare_cuts,
    "verifications": lambda lab: verify_costs.measure(lab, (1,)),
    "an answer, step by step": lambda lab: draft_story.watch(lab, "Hello there", 4, None),
    "the next token": lambda lab: draft_rules.next_token(lab, [1, 2, 3]),
    "formats on a text": lambda lab: lesson_09.score_formats(Shelf(lab), names=(PLAIN,)),
}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_whoever_steps_an_engine_has_the_lab_alone(name: str, tiny_lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    decode, disturbed = decode_texts, []

    def watching(make: Callable[..., Engine]) -> Callable[..., Engine]:
        def engine(self: Lab, **fields: object) -> Engine:
            disturbed.append(can_be_had(tiny_lab))
            return make(self, **fields)

        return engine

    def decoding(*args: object) -> object:
        disturbed.append(can_be_had(tiny_lab))
        return decode(*args)

    for way in ("engine", "next_engine"):
        monkeypatch.setattr(Lab, way, watching(getattr(Lab, way)))
    monkeypatch.setattr(lesson_09, "decode_texts", decoding)
    EXPERIMENTS[name](tiny_lab)
    assert disturbed and not any(disturbed)


def test_formats_take_turns_on_one_device(tiny_lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    shelf, begun = Shelf(tiny_lab), threading.Event()
    rounded = shelf.of("int8")
    monkeypatch.setattr(rounded, "run", lambda *_, **__: begun.set())
    thread = threading.Thread(target=shelf.run, args=("int8", tiny_lab.workload("chat")))
    with tiny_lab.alone():
        thread.start()
        assert not begun.wait(0.3), "another format has the device"
    thread.join()
    assert begun.is_set()


def test_an_interrupted_run_says_how_many_were_done_before(tiny_lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that the interrupt aborts end as well, but they weren't done."""
    traffic = LabWorkload("long", "", tuple(PromptArrival(0.0, "Hello", 400) for _ in range(3)))
    assert tiny_lab.model is not None  # its engine is warm

    def interrupted(self: Session, timeout: float | None = None) -> bool:
        while len(self._sent) < len(traffic.arrivals):
            time.sleep(0.001)
        raise KeyboardInterrupt

    monkeypatch.setattr(Session, "wait", interrupted)
    with pytest.raises(waiting.Stopped, match="Stopped after 0 of 3"):
        tiny_lab.run(traffic)
