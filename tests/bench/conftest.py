"""Running `minillm bench ...` in this process."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from minillm.cli import app

BenchJson = Callable[..., dict[str, Any]]


@pytest.fixture
def bench(tiny_llama_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """`bench("decode", "--json")`: quick, in float32, on the tiny model."""

    def call(command: str, *arguments: str) -> Result:
        whole = ["bench", command, "--quick", "--dtype", "float32", "--model", str(tiny_llama_path), *arguments]
        monkeypatch.setattr(sys, "argv", ["/usr/local/bin/minillm", *whole])
        return CliRunner().invoke(app, whole, catch_exceptions=False)

    return call


@pytest.fixture
def bench_json(bench: Callable[..., Result]) -> BenchJson:
    """The same with --json: its standard output, which must be one JSON object in the common envelope."""

    def call(command: str, *arguments: str) -> dict[str, Any]:
        result = bench(command, *arguments, "--json")
        assert result.exit_code == 0, result.stderr
        report = json.loads(result.stdout)
        assert {"date", "command", "model", "dtype", "device", "versions", "machine", "settings", "results"} <= set(
            report
        )
        assert report["command"].startswith(f"minillm bench {command} --quick")
        assert report["dtype"] == "float32"
        assert report["settings"]["quick"] is True
        # A report is meant to be published: it names no folder of this machine.
        assert "/" not in report["command"] + report["model"] + json.dumps(report["settings"])
        return report

    return call
