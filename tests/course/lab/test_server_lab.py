"""Lessons on servers that are up: which server a run goes to, what they show of it, and what they can't."""

from collections.abc import Iterator

import pytest
from IPython.core.interactiveshell import InteractiveShell

from course.lab import notes, services
from course.lab.lab import Lab, open_lab
from course.lab.run import phases_of
from course.lab.server import LabServer
from course.lab.server_lab import VARIABLE, KnownServer, ServerLab, ServerLabError
from course.lab.server_tap import ServerTap, open_server
from course.lessons.lesson_01 import words as words_01
from course.lessons.lesson_02 import run as run_02
from course.lessons.lesson_03 import run as run_03
from course.lessons.lesson_04 import run as run_04
from course.lessons.lesson_10 import run as run_10
from course.loadgen.errors import EndpointError
from minillm.core.errors import ConfigError


@pytest.fixture(scope="module")
def address(tiny_llama_path: object) -> Iterator[str]:
    """minillm's own server, with one slot and a prefix cache."""
    lab = Lab(short=True, model=str(tiny_llama_path), dtype="float32", device="cpu", max_model_len=512)
    with LabServer(lab, max_num_seqs=1, enable_prefix_caching=True) as server:
        yield f"{server.url}?max_num_seqs=1"
    lab.close()


@pytest.fixture
def lab(address: str, monkeypatch: pytest.MonkeyPatch) -> ServerLab:
    monkeypatch.setenv(VARIABLE, address)
    monkeypatch.setenv("MINILLM_SHORT", "1")
    lab = open_lab(dtype="bfloat16")
    assert isinstance(lab, ServerLab)
    return lab


def test_an_address_says_how_a_server_was_started() -> None:
    known = KnownServer.of("http://10.0.0.5:8000/v1?max_num_seqs=1&quantization=fp8&enable_prefix_caching=false")
    assert known.url == "http://10.0.0.5:8000"
    assert known.fields == {"max_num_seqs": 1, "quantization": "fp8", "enable_prefix_caching": False}
    for spelt, problem in (
        ("10.0.0.5:8000", "wants addresses"),
        ("http://h:1?max_seqs=1", "max_seqs"),
        ("http://h:1?max_num_seqs=0", "max_num_seqs"),
    ):
        with pytest.raises(ConfigError, match=problem):
            KnownServer.of(spelt)


def test_a_run_goes_to_the_server_that_was_started_so(lab: ServerLab) -> None:
    plain, one, whole = (
        KnownServer(f"http://{name}", fields)
        for name, fields in (
            ("plain", {"long_prefill_token_threshold": 16, "max_num_seqs": 8}),
            ("one", {"max_num_seqs": 1}),
            ("whole", {"enable_prefix_caching": False, "max_num_seqs": 1}),
        )
    )
    lab.servers = [plain, one, whole]
    assert lab.server_with(lab.config()) is one, "it says least of itself"
    assert lab.server_with(lab.config(enable_prefix_caching=True, max_num_seqs=8)) is plain
    assert lab.server_with(lab.config(dtype="float32", max_num_seqs=1, enable_prefix_caching=False)) is whole
    with pytest.raises(ServerLabError) as error:
        lab.run("chat", max_num_seqs=2)
    for part in ("max_num_seqs=2", "--max-num-seqs N in vLLM, --max-running-requests N in SGLang", VARIABLE):
        assert part in str(error.value)


def test_lessons_play_on_it(lab: ServerLab) -> None:
    """01, 02 and 04: queue and prefill as the server says them, a cap in the client, what the cache found."""
    one_slot = lab.run(services.few_slots(lab), max_num_seqs=1)
    assert not one_slot.remote.inferred and max(phases_of(view)["queue"] for view in one_slot.views) > 0
    assert len(one_slot.finished) == len(one_slot.rows)
    capped = lab.run(services.steady(lab, one_slot, in_flight=1), max_num_seqs=1)
    assert words_01.hidden(capped).answer >= 1
    assert run_02.capacity(run_02.measure_capacity(lab)) > 0
    first, last = (lab.run(run_04.stamped(lab, place)) for place in ("first line", "last line"))
    assert run_04.hit_rate(first) == 0 < run_04.hit_rate(last), "and nothing of the run before"
    assert last.snapshot.prefix_hits == sum(view.num_cached_tokens for view in last.views)
    assert last.snapshot.block_size == 16 and run_04.shared_tokens(last) > 16


def test_exact_lengths_by_the_servers_own_tokenizer(lab: ServerLab) -> None:
    """03: prompts of token ids."""
    lab.servers = [KnownServer(lab.endpoint.url, {"enable_prefix_caching": False})]
    climb = lab.run(run_03.ladder(lab, 1), **run_03.fields_for(lab, 256))
    assert set(run_03.Ladder.of(climb).best) == set(run_03.prompt_lengths(lab)) == {64, 128, 256}
    text = "A ship came in."
    assert lab.tokenizer.decode(lab.tokenizer.encode(text)) == text


def test_both_ends_of_the_wire(lab: ServerLab) -> None:
    """10: a tap before the proxy that spoils the stream."""
    server = open_server(lab)
    assert isinstance(server, ServerTap)
    held = run_10.through(server, tokens=12, buffer_bytes=100_000)
    assert len(held.server) == len(held.heard.arrivals) > 1
    assert held.heard.arrivals[0] > held.server[-1], "nothing came before all had left"
    assert list(held.borders) == sorted(held.borders) and held.told["ttft"] > 0


def test_what_cannot_be_had_is_a_note_and_no_zero(lab: ServerLab, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    monkeypatch.setattr(notes, "display", lambda html: shown.append(str(html)))
    shell = InteractiveShell()
    notes.NotedNotebook(shell).watch()
    shell.user_ns.update(lab=lab, run=lab.run(services.few_slots(lab)))
    inside = (
        "len(run.steps)",
        "run.snapshot.block_owners[0]",
        "run.outputs[0].token_ids",
        "lab.model",
        "lab.engine()",
        "lab.next_engine()",
    )
    for use in (*inside, "lab.needs_model('Timing attention')", "lab.defaults"):
        assert shell.run_cell(use).success and "can't be had from outside" in shown.pop(), use


def test_bets_go_on_and_nobody_there_is_said(lab: ServerLab, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shell = InteractiveShell()
    monkeypatch.setattr("course.lab.lab.get_ipython", lambda: shell)
    shell.user_ns["lab"] = lab
    bet = lab.predict("kept", "Which?", ["a", "b"])
    assert open_lab().predict("kept", "Which?") is bet
    monkeypatch.setenv(VARIABLE, "http://127.0.0.1:9")
    with pytest.raises(EndpointError, match=r"127\.0\.0\.1:9"):
        open_lab()
