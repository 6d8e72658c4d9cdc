"""Nasty grammars against `minillm serve`, a process of its own: a dead server fails, and so does a dead child that no
refusal tells of.

    PYTHONPATH=.:tests python -m server.grammar_fuzz --seconds 3600
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from hypothesis import HealthCheck, Phase, given, settings
from server.nasty_grammars import CORPUS, asked
from tiny_llama import make_tiny_llama

TEMPLATE = "{% for m in messages %}{{ m.content }}\n{% endfor %}{% if tools %}<tool_call>{{ tools|length }}{% endif %}"
KILLED = re.compile(r"library crashes|takes longer than|takes more than")
DEADLINE_S = 1.0
ROOT = Path(__file__).parents[2]


class FuzzedServer:
    """`minillm serve` on a tiny model, and a tally of what it answered."""

    def __init__(self, url: str, process: "subprocess.Popen[str]", log: Path) -> None:
        self.http = httpx.Client(base_url=url, timeout=120)
        self._process, self._log = process, log
        self.answers: Counter[str] = Counter()

    def ask(self, fields: dict[str, Any]) -> str:
        """Send one chat request. Returns what became of it: `answered`, `refused`, or `killed` the child."""
        told = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 12, **fields}
        try:
            answer = self.http.post("/v1/chat/completions", content=json.dumps(told).encode())
        except httpx.HTTPError as error:
            raise AssertionError(
                f"no answer ({error!r}; exit code {self._process.poll()}) to {shorten(told)}"
            ) from error
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
    with tempfile.TemporaryDirectory() as folder:
        model = make_tiny_llama(Path(folder) / "tiny", tokenizer_from)
        config = json.loads((model / "tokenizer_config.json").read_text())
        (model / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": TEMPLATE}))
        (model / "chat_template.jinja").write_text(TEMPLATE)
        log = Path(folder) / "log"
        command = [sys.executable, "-m", "minillm", "serve", "--model", str(model), "--served-model-name", "tiny"]
        flags = [
            "--port",
            "0",
            "--json",
            "--num-kv-blocks",
            "256",
            "--grammar-timeout-s",
            str(DEADLINE_S),
            "--no-access-log",
        ]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        with (
            log.open("w") as errors,
            subprocess.Popen(
                [*command, *flags], stdout=subprocess.PIPE, stderr=errors, text=True, env=environment
            ) as process,
        ):
            try:
                assert process.stdout is not None
                line = process.stdout.readline()
                assert line, log.read_text()
                server = FuzzedServer(json.loads(line)["url"].removesuffix("/v1"), process, log)
                yield server
                server.check_children()
                assert process.poll() is None
            except BaseException:
                shutil.copy(log, Path(tempfile.gettempdir()) / "grammar_fuzz_server.log")
                raise
            finally:
                process.terminate()
                process.wait(60)


def fuzz(server: FuzzedServer, seconds: float, corpus: bool = True) -> None:
    """The corpus, or as much of it as there is time for, then what hypothesis finds."""
    end = time.monotonic() + seconds
    for fields in CORPUS if corpus else ():
        if time.monotonic() < end:
            server.ask(fields)

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
                server.ask(fields)

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
        print(dict(server.answers))


if __name__ == "__main__":
    main()
