"""The engine's thread ends, whatever ended it: everybody is told, nobody waits, and a new one takes over."""

import os
import signal
from pathlib import Path

import pytest
from robustness.faults import Panic, raising

from course.lab.lab import Lab
from minillm.core.params import SamplingParams
from minillm.core.request import FinishReason
from minillm.frontend.engine_thread import EngineThread
from minillm.frontend.errors import EngineDeadError
from minillm.model.loader import LoadedModel
from minillm.policies.config import EngineConfig

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
ENDLESS = SamplingParams(temperature=0, max_tokens=400, ignore_eos=True)


@pytest.fixture(scope="module")
def config(tiny_llama_path: Path) -> EngineConfig:
    return EngineConfig(model=str(tiny_llama_path), dtype="float32", num_kv_blocks=128, max_num_seqs=2)


@pytest.mark.parametrize("error", [ZeroDivisionError("a bug"), Panic("in Rust"), SystemExit(3)], ids=repr)
def test_whoever_runs_waits_or_comes_is_told(
    error: BaseException, thread: EngineThread, config: EngineConfig, model: LoadedModel
) -> None:
    streams = [thread.submit("Hello there", ENDLESS) for _ in range(4)]  # two run, two wait
    next(iter(streams[0]))
    thread.call(lambda engine: setattr(engine, "step", raising(error))).result(timeout=60)
    for stream in streams:
        with pytest.raises(EngineDeadError) as told:
            stream.result(timeout=60)
        assert told.value.__cause__ is error and str(error) in str(told.value)
    with pytest.raises(EngineDeadError):
        thread.submit("Hello", GREEDY)
    with pytest.raises(EngineDeadError):
        thread.check_alive()
    thread.stop()
    with EngineThread(config, model) as another:
        assert another.submit("Hello there", GREEDY).result(timeout=60).finish_reason is FinishReason.LENGTH


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no processes are forked here")
@pytest.mark.filterwarnings("ignore:.*fork")
def test_a_forked_process_is_told_that_its_engine_stayed_behind(thread: EngineThread) -> None:
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # rather than wait forever for a thread that isn't here
        try:
            thread.submit("Hello", GREEDY)
        except EngineDeadError:
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert thread.submit("Hello", GREEDY).result(timeout=60).finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("error", [Panic("in Rust"), SystemExit(3)], ids=repr)
def test_what_ends_the_loading_reaches_whoever_waits_for_it(
    error: BaseException, config: EngineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minillm.frontend.loading.load_model", raising(error))
    with pytest.raises(type(error)):
        EngineThread(config)


def test_a_tokenizer_that_panics_harms_one_request_only(thread: EngineThread, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = thread.submit("Hello there", GREEDY)
    with monkeypatch.context() as patch:
        patch.setattr("minillm.frontend.engine.encode_prompt", raising(Panic("in Rust")))
        with pytest.raises(Panic):
            thread.submit("Hello", GREEDY)
    assert stream.result(timeout=60).finish_reason is FinishReason.LENGTH


# ------------------------------------------------------------------------ labs


def test_a_lab_whose_engine_dies_in_a_run_ends_the_run_and_plays_the_next(tiny_llama_path: Path) -> None:
    lab = Lab(short=True, model=str(tiny_llama_path), dtype="float32", max_model_len=512, num_kv_blocks=96)
    assert lab.run("chat").done
    session = lab.start(lab.workload("chat"), lab.config())
    lab._engine.call(lambda engine: setattr(engine, "step", raising(Panic("in Rust"))))
    assert session.join(60), "the client waits for a dead engine"
    with pytest.raises(EngineDeadError, match="in Rust"):
        session.wait()
    run = session.run()
    assert run.done and any(row.refused and "has stopped" in row.refused for row in run.rows)
    again = lab.run("chat")
    assert len(again.finished) == len(again.rows)
    lab.close()


def test_two_labs_share_a_machine(tiny_llama_path: Path) -> None:
    fields = {"model": str(tiny_llama_path), "dtype": "float32", "max_model_len": 512, "num_kv_blocks": 96}
    labs = [Lab(short=True, **fields) for _ in range(2)]
    sessions = [lab.start(lab.workload("chat"), lab.config()) for lab in labs]
    assert all(session.wait(120) for session in sessions)
    texts = [[output.text for output in session.run().outputs] for session in sessions]
    assert texts[0] == texts[1] and all(texts[0])
    for lab in labs:
        lab.close()
