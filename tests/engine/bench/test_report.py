"""The envelope: what it was measured with, and nothing about where on the machine."""

import json
import math
import subprocess
from dataclasses import dataclass
from typing import Any

import pytest

from minillm.bench import report
from minillm.bench.report import driver_version
from minillm.bench.writing import as_json, describe_command


def test_command_has_no_absolute_path() -> None:
    arguments = ["/opt/env/bin/minillm", "bench", "--model", "/home/me/llama 3", "--out=/tmp/x.json", "--json"]
    assert describe_command(arguments) == "minillm bench --model 'llama 3' --out=x.json --json"


@pytest.mark.parametrize(
    ("answer", "expected"),
    [("580.65.06\n580.65.06\n", "580.65.06"), ("", None), (FileNotFoundError("nvidia-smi"), None)],
    ids=str,
)
def test_driver_version_is_what_nvidia_smi_says(
    monkeypatch: pytest.MonkeyPatch, answer: str | Exception, expected: str | None
) -> None:
    def run(command: list[str], **_: Any) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return subprocess.CompletedProcess(command, 0, stdout=answer)

    monkeypatch.setattr(report.subprocess, "run", run)
    assert driver_version() == expected


@dataclass
class Measured:
    perplexity: float


def test_what_is_no_number_is_null() -> None:
    written = as_json({"quality": Measured(math.nan), "rows": [(1.5, math.inf)], 8: "ok"})
    assert json.loads(written) == {"quality": {"perplexity": None}, "rows": [[1.5, None]], "8": "ok"}


def test_half_a_character_of_somebody_elses_error_costs_no_report() -> None:
    written = as_json({"error": "\ud83d"})
    assert written.isascii() and json.loads(written) == {"error": "\ud83d"}
