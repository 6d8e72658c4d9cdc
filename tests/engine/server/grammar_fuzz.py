"""Nasty grammars and public schemas against `minillm serve`, a process of its own. What fails: a dead server, a dead
child that no refusal tells of, and a stream beside them that stands still.

    PYTHONPATH=.:tests/engine python -m server.grammar_fuzz --seconds 3600
"""

import argparse
import json
import re
import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from hypothesis import HealthCheck, Phase, given, settings
from server.nasty_grammars import CORPUS, as_format, asked, tools_of
from server.public_schemas import public_schemas
from server.running import TOOLS_TEMPLATE, serve_process
from tiny_llama import make_tiny_llama

KILLED = re.compile(r"library crashes|takes longer than|takes more than")
DEADLINE_S = 1.0
ANSWERS = 3
"""With different seeds, to each grammar that is accepted: an automaton may fail far from its beginning."""
LONGEST_GAP_S = 30.0
"""Between two tokens of a stream beside them all. They take milliseconds: it's no matter how fast the machine is."""


class FuzzedServer:
    """A server of a tiny model, and a tally of what it answered."""

    def __init__(self, url: str, exit_code: Callable[[], int | None] = lambda: None) -> None:
        self.http = httpx.Client(base_url=url, timeout=120)
        self._exit_code = exit_code
        self.answers: Counter[str] = Counter()

    def ask_often(self, fields: dict[str, Any]) -> str:
        """Have ANSWERS answers to one grammar, each another. Returns what became of the last, as `ask` does."""
        outcome = "answered"
        for seed in range(ANSWERS):
            if outcome == "answered":
                outcome = self.ask({**fields, "seed": seed, "max_tokens": 12 + 40 * seed})
        return outcome

    def ask(self, fields: dict[str, Any]) -> str:
        """Send one chat request. Returns what became of it: `answered`, `refused`, or `killed` the child."""
        told = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 12, **fields}
        try:
            answer = self.http.post("/v1/chat/completions", content=json.dumps(told).encode())
        except httpx.HTTPError as error:
            raise AssertionError(f"no answer ({error!r}; exit code {self._exit_code()}) to {shorten(told)}") from error
        if answer.status_code == 200:
            outcome = "answered"
            check_format(fields, answer.json()["choices"][0])
        else:
            too_large = answer.status_code == 413 and len(json.dumps(told)) > 1_000_000
            assert answer.status_code == 400 or too_large, (answer.status_code, answer.text[:300], shorten(told))
            error = answer.json()["error"]
            assert error["message"] and len(error["message"]) < 2000, shorten(told)
            outcome = "killed" if KILLED.search(error["message"]) else "refused"
        self.answers[outcome] += 1
        return outcome

    def check_children(self) -> None:
        """Every child that died is told of by a refusal; and the server serves."""
        metrics = self.http.get("/metrics").text
        [deaths] = re.findall(r"(?m)^minillm:grammar_worker_deaths_total\S* (\S+)", metrics)
        assert int(float(deaths)) == self.answers["killed"], f"{deaths} children died, answers: {self.answers}"
        assert self.http.get("/ready").status_code == 200
        assert self.ask({"guided_choice": ["yes"]}) == "answered"


class Bystander:
    """`with` it, somebody reads one stream after the other, and asks for no grammar."""

    def __init__(self, server: FuzzedServer) -> None:
        self._http = httpx.Client(base_url=server.http.base_url, timeout=120)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._read)
        self.num_pieces = 0
        self.longest_gap_s = 0.0
        self._error: Exception | None = None

    def __enter__(self) -> "Bystander":
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        self._http.close()
        if kind is None:  # otherwise that's the news
            assert self._error is None and self.num_pieces, f"a stream ended early: {self._error!r}"
            assert self.longest_gap_s < LONGEST_GAP_S, f"a stream stood still for {self.longest_gap_s:.1f} s"

    def _read(self) -> None:
        told = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 100}
        told |= {"ignore_eos": True, "stream": True}
        try:
            while not self._is_over.is_set():
                last = time.monotonic()
                with self._http.stream("POST", "/v1/chat/completions", json=told) as answer:
                    for line in filter(None, answer.iter_lines()):
                        assert line.startswith("data: ") and not line.startswith('data: {"error"'), line
                        now = time.monotonic()
                        self.longest_gap_s = max(self.longest_gap_s, now - last)
                        self.num_pieces, last = self.num_pieces + 1, now
                    assert line == "data: [DONE]", line
        except Exception as error:
            self._error = error


def check_format(fields: dict[str, Any], choice: dict[str, Any]) -> None:
    """What came out is what was asked for, as far as one sees without the schema."""
    if choice["finish_reason"] == "stop" and ("response_format" in fields or "guided_json" in fields):
        json.loads(choice["message"]["content"])
    if fields.get("guided_choice") and choice["finish_reason"] == "stop":
        assert choice["message"]["content"] in fields["guided_choice"]
    for call in choice["message"].get("tool_calls") or ():
        assert isinstance(json.loads(call["function"]["arguments"]), dict)


def shorten(told: dict[str, Any]) -> str:
    text = json.dumps(told)
    return text if len(text) < 3000 else f"{text[:1500]} ... {text[-500:]}"


@contextmanager
def fuzzed_server(tokenizer_from: Path) -> Iterator[FuzzedServer]:
    """Starts one, and looks at its children before it ends."""
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "log").open("w") as log:
        model = make_tiny_llama(Path(folder) / "tiny", tokenizer_from)
        (model / "chat_template.jinja").write_text(TOOLS_TEMPLATE)
        flags = ["--num-kv-blocks", "256", "--grammar-timeout-s", str(DEADLINE_S)]
        try:
            with serve_process(model, *flags, stderr=log) as (url, process):
                server = FuzzedServer(url, process.poll)
                yield server
                server.check_children()
                assert process.poll() is None
        except BaseException:
            shutil.copy(log.name, Path(tempfile.gettempdir()) / "grammar_fuzz_server.log")
            raise


def fuzz(server: FuzzedServer, seconds: float, corpus: bool = True) -> None:
    """The corpus and public schemas, or as much of them as there is time for, then what hypothesis finds; beside a
    stream."""
    with Bystander(server) as bystander:
        _fuzz(server, time.monotonic() + seconds, [*CORPUS, *published()] if corpus else [])
    print(f"{dict(server.answers)}; the stream beside it: {bystander.num_pieces:,} pieces, ", end="")
    print(f"the longest gap {bystander.longest_gap_s * 1000:.0f} ms")


def published() -> Iterator[dict[str, Any]]:
    """Public schemas as formats, and as what tools take."""
    for schema in public_schemas():
        yield as_format(schema)
        yield tools_of([{**schema, "type": "object"}, {}], "required", False)


def _fuzz(server: FuzzedServer, end: float, first: list[dict[str, Any]]) -> None:
    for fields in first:
        if time.monotonic() < end:
            server.ask_often(fields)

    while time.monotonic() < end:

        @settings(
            max_examples=100,
            deadline=None,
            database=None,
            phases=(Phase.generate,),
            suppress_health_check=list(HealthCheck),
        )
        @given(fields=asked)
        def some(fields: dict[str, Any]) -> None:
            if time.monotonic() < end:
                server.ask_often(fields)

        some()
        server.check_children()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--tokenizer", type=Path, default=None, help="a folder; otherwise the default model's")
    args = parser.parse_args()
    if args.tokenizer is None:
        from minillm.model.checkpoints import resolve

        args.tokenizer = resolve("smollm2-135m")
    with fuzzed_server(args.tokenizer) as server:
        fuzz(server, args.seconds)


if __name__ == "__main__":
    main()
