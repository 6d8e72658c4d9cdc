"""A folder in which the pages' commands are run, and a server that answers them."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from server.running import Running, running

from minillm.host.storage import cache_home
from minillm.model.loader import load_model
from minillm.policies.config import EngineConfig
from minillm.server.config import ServeConfig

NOTES = "The queue is long when the slots are taken. The queue is long when the prompts are long. "
ANSWER = "TTFT and ITL apart first. The dominant phase is the queue, since the batch is full while requests wait."


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Has the files that the pages speak of, and a home of its own with the models of the real one."""
    home = tmp_path / "home"
    home.mkdir()
    for shared in ("models", "native"):  # a model need not be fetched again, nor a kernel be compiled
        (cache_home() / shared).mkdir(parents=True, exist_ok=True)
        (home / shared).symlink_to(cache_home() / shared)
    monkeypatch.setenv("MINILLM_HOME", str(home))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text(NOTES * 4)
    (tmp_path / "answer.md").write_text(ANSWER)
    write_log(tmp_path / "LOG.jsonl")
    return tmp_path


def write_log(path: Path, count: int = 40) -> None:
    """The log of a server that takes one request after the other: a prompt token takes 1 ms, another one 20 ms."""
    lines, free = [], 0.0
    for i in range(count):
        prompt, output, queued = 100 + 37 * i % 900, 20 + 11 * i % 60, 1.5 * i
        start = max(queued, free)
        first = start + prompt / 1000
        free = first + 0.02 * (output - 1)
        names = ("input_toks", "output_toks", "queued_ts", "scheduled_ts", "first_token_ts", "last_token_ts")
        lines.append(json.dumps(dict(zip(names, (prompt, output, queued, start, first, free), strict=True))))
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="session")
def answering(tiny_llama_path: Path) -> Iterator[Running]:
    """A server with a tiny model, under the name of the default one."""
    engine = EngineConfig(model=str(tiny_llama_path), dtype="float32", num_kv_blocks=256)
    serve = ServeConfig(port=0, served_model_name="smollm2-135m", access_log=False)
    with running(engine, serve, load_model(engine)) as started:
        yield started


@pytest.fixture
def shell_path(workshop: Path) -> dict[str, str]:
    """An environment in which `minillm` and `python` are this Python's."""
    tools = workshop / "tools"
    tools.mkdir()
    for name, call in (("minillm", "-m minillm"), ("python", "")):
        (tools / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {call} "$@"\n')
        (tools / name).chmod(0o755)
    return {**os.environ, "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}
