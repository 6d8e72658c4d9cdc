"""A lab on a simulated device: the engine's own scheduler, priced steps, placeholder text."""

import copy
from collections.abc import Iterator

import pytest

from course.lab.lab import Lab
from course.lab.simulated_device import SimulatedDevice, SimulatedDeviceError
from course.lab.stepped_engine import SteppedEngine, WatchableClock
from course.lab.workloads import LabWorkload, PromptArrival, workload
from course.simulator.errors import UnknownHardwareError
from minillm.core.errors import ConfigError
from minillm.core.params import SamplingParams
from minillm.policies.config import EngineConfig

SOME = LabWorkload("some", "", tuple(PromptArrival(0.3 * i, f"({i}) What is a harbour?", 12) for i in range(3)))


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    """One H100 with an 8B, in the short form."""
    monkeypatch.setenv("MINILLM_LAB_DEVICE", "h100-sxm")
    lab = Lab(short=True)
    yield lab
    lab.close()


@pytest.mark.parametrize("spelt", ["4 x h100-sxm", "4xh100-sxm", " 4 h100-sxm", "4 x NVIDIA H100-SXM", "h100-sxm"])
def test_how_many_of_what(spelt: str) -> None:
    assert SimulatedDevice.of(spelt) == SimulatedDevice("h100-sxm", 4 if "4" in spelt else 1)


def test_an_engine_keeps_what_its_configuration_says(lab: Lab) -> None:
    config = lab.config(model="qwen3-32b", max_model_len=16384, num_kv_blocks=2000, kv_cache_dtype="fp8")
    engine = SimulatedDevice.of("h100-sxm").engine(config)
    assert engine.config == config.replace(block_size=16)
    assert engine.loaded_model.name == "qwen3-32b" and engine.context_limit == 16384


def test_an_engine_with_nothing_but_a_model_has_its_whole_context() -> None:
    engine = SimulatedDevice.of("h100-sxm").engine(EngineConfig(model="llama-3.1-8b"))
    assert engine.context_limit == 131072 and engine.config.max_num_seqs == 256


def test_a_configuration_that_does_not_fit_leaves_the_model_of_the_one_before(lab: Lab) -> None:
    engine = SteppedEngine(SimulatedDevice.of("h100-sxm"), lab.config())
    with pytest.raises(ConfigError):
        engine.reconfigure(lab.config(model="qwen3-32b", num_kv_blocks=10**9))
    assert engine.config == lab.config() and engine.model.name == "llama-3.1-8b"


@pytest.mark.parametrize(
    ("device", "model", "pace"), [("h100-sxm", "llama-3.1-8b", 0.5), ("4 x h100-sxm", "llama-3-70b", 1), ("", "", 1)]
)
def test_requests_come_sooner_on_a_fast_machine(
    monkeypatch: pytest.MonkeyPatch, device: str, model: str, pace: float
) -> None:
    """And never on a CPU: there the moments are as they were written, and runs of other days can be compared."""
    monkeypatch.setenv("MINILLM_LAB_DEVICE", device)
    monkeypatch.setenv("MINILLM_LAB_MODEL", model)
    lab = Lab(short=True, device="auto" if device else "cpu")
    written = workload("chat", 0, lab.scale).arrivals
    assert [a.offset for a in lab.workload("chat").arrivals] == [pace * a.offset for a in written]


def test_no_such_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINILLM_LAB_DEVICE", "h1000-sxm")
    with pytest.raises(UnknownHardwareError, match="h100-sxm"):
        Lab()


def test_a_run_takes_what_the_steps_are_priced_at(lab: Lab) -> None:
    run = lab.run(SOME)
    assert lab.config().model == "llama-3.1-8b" and run.simulated_on == "simulated: llama-3.1-8b on h100-sxm"
    assert "simulated: llama-3.1-8b on h100-sxm" in repr(run)
    priced = SimulatedDevice.of("h100-sxm").deployment(lab.config())
    assert [view.num_output_tokens for view in run.views] == [12] * 3
    weights_s = priced.model.read_bytes("bfloat16") / priced.profile.hardware.bandwidth
    assert all(weights_s < gap < 2 * weights_s for gap in run.itl)
    assert [row.sent for row in run.rows] == [row.due for row in run.rows]


def test_the_text_says_what_it_is(lab: Lab) -> None:
    [text] = ["".join(row.texts) for row in lab.run(LabWorkload("one", "", (PromptArrival(0.0, "Hello", 60),))).rows]
    assert text.count("(placeholder text)") >= 2 and "harbour" in text


def test_prompts_that_share_a_prefix_share_its_blocks(lab: Lab) -> None:
    found = {on: lab.run("rag", enable_prefix_caching=on) for on in (True, False)}
    assert found[True].snapshot.prefix_hits > 0 == found[False].snapshot.prefix_hits
    assert found[True].mean_phases()["prefill"] <= found[False].mean_phases()["prefill"]


def test_a_client_with_a_limit_never_has_more_open(lab: Lab) -> None:
    crowd = LabWorkload(
        "crowd", "", tuple(PromptArrival(0.0, f"({i}) Hello", 5 + i) for i in range(6)), max_in_flight=2
    )
    run = lab.run(crowd, max_num_seqs=8)
    spans = [(view.borders[0], view.borders[-1]) for view in run.views]
    assert max(sum(begin <= moment < end for begin, end in spans) for moment, _ in spans) == 2


def test_a_refusal_is_told_as_ever(lab: Lab) -> None:
    run = lab.run(
        LabWorkload("burst", "", tuple(PromptArrival(0.0, f"({i}) Hi", 8) for i in range(8))), max_queue_len=2
    )
    assert any(row.refused for row in run.rows) and run.finished


def test_speculation_draws_what_is_accepted(lab: Lab) -> None:
    plain, guessed = lab.run(SOME), lab.run(SOME, speculative={"method": "ngram", "k": 3})
    assert len(guessed.steps) < len(plain.steps)


def test_a_model_with_a_smaller_vocabulary_takes_any_prompt(lab: Lab) -> None:
    words = LabWorkload("words", "", (PromptArrival(0.0, "extraordinary 漢字 Łódź naïve zebra", 8),))
    assert max(lab.tokenizer.encode(words.arrivals[0].prompt)) >= 32_000
    assert [row.refused for row in lab.run(words, model="llama-2-13b").rows] == [None]


def test_quantization_changes_the_price(lab: Lab) -> None:
    plain, small = lab.run(SOME), lab.run(SOME, quantization="int8")
    assert max(small.itl) < min(plain.itl)


@pytest.mark.parametrize("params", [{"logprobs": 1}, {"structured_outputs": {"regex": "a+"}}])
def test_what_a_model_would_say_is_refused(lab: Lab, params: dict) -> None:
    engine = lab.engine()
    with pytest.raises(SimulatedDeviceError, match="takes a model that computes"):
        engine.add_request("Hello", SamplingParams(**params))


def test_a_copy_says_the_same() -> None:
    error = SimulatedDeviceError("Reading minds")
    assert str(copy.copy(error)) == str(error) and str(error).count("takes") == 1


def test_weights_and_layers_are_refused(lab: Lab) -> None:
    with pytest.raises(SimulatedDeviceError):
        _ = lab.model.decoder
    with pytest.raises(SimulatedDeviceError):
        _ = lab.engine().torch_runner


def test_four_cards_are_faster_than_one_and_hold_a_70b(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINILLM_LAB_DEVICE", "4 x h100-sxm")
    monkeypatch.setenv("MINILLM_LAB_MODEL", "llama-3-70b")
    four = Lab(short=True)
    run, of_8b = four.run(SOME), lab.run(SOME)
    four.close()
    assert run.simulated_on == "simulated: llama-3-70b on 4 x h100-sxm"
    assert min(run.itl) > max(of_8b.itl)  # 35 GB on each card against 15


def test_a_watched_clock_waits_for_what_python_has_not_used_up(monkeypatch: pytest.MonkeyPatch) -> None:
    now, slept = [100.0], []
    monkeypatch.setattr("course.lab.stepped_engine.time.perf_counter", lambda: now[0])
    monkeypatch.setattr("course.lab.stepped_engine.time.sleep", slept.append)
    clock = WatchableClock()
    clock.advance_to(5.0)
    assert slept == []
    clock.is_watched = True
    now[0] += 0.25
    clock.advance_to(6.0)
    assert slept == [pytest.approx(0.75)] and clock.now() == 6.0


def test_stop_ends_a_watched_run(lab: Lab) -> None:
    session = lab.start(LabWorkload("long", "", (PromptArrival(0.0, "Hello", 1500),)), lab.config())
    session.stop()
    assert session.wait(30) and session.run().stopped
