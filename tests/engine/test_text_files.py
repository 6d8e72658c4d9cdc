"""What people write with any editor is read the same, with and without a byte order mark before it."""

import codecs
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from course.challenge import entry, starter
from course.measure.speculation import make_jobs
from course.simulator.calibration.requests_log import read_requests_log, read_server_facts
from course.simulator.cost.hardware import find_hardware
from course.simulator.workload.traces import load_trace
from minillm.server.admission import ApiKeys
from minillm.server.protocol import CompletionBody, parse

HARDWARE = json.dumps({**find_hardware("H100-SXM").model_dump(), "name": "mine"})
MOONCAKE = {"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": [1]}
LOGGED = {"input_toks": 3, "output_toks": 2, "queued_ts": 1.0}
META = {"vllm_version": "1", "engine_kwargs": {"max_num_seqs": 8}}
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-01-01 00:00:00,5,7\n"

READERS: dict[str, tuple[str, str, Callable[[Path], Any]]] = {
    "API keys": ("keys.txt", "secret\nother\n", lambda path: ApiKeys(str(path)).caller("Bearer secret", "x")),
    "a trace of Mooncake's": ("t.jsonl", json.dumps(MOONCAKE), load_trace),
    "a trace of Azure's": ("t.csv", AZURE, load_trace),
    "hardware": ("mine.json", HARDWARE, lambda path: find_hardware(str(path))),
    "a log of requests": ("log.jsonl", json.dumps(LOGGED), read_requests_log),
    "a server's facts": ("meta.json", json.dumps(META), read_server_facts),
    "a contestant's file": ("policy.py", Path(starter.__file__).read_text(), entry.Entry.read),
    "prompts": ("prompts.txt", "été\nB\n", lambda path: make_jobs(True, path)[0].prompts),
    "a request's body": (
        "body.json",
        '{"model": "m", "prompt": "é"}',
        lambda path: parse(path.read_bytes(), CompletionBody),
    ),
}


@pytest.mark.parametrize(("name", "text", "read"), READERS.values(), ids=READERS)
def test_a_byte_order_mark_changes_nothing(tmp_path: Path, name: str, text: str, read: Callable[[Path], Any]) -> None:
    file, found = tmp_path / name, []
    for mark in (b"", codecs.BOM_UTF8):
        file.write_bytes(mark + text.encode())
        found.append(repr(read(file)))
    assert found[0] == found[1] and found[0] not in ("{}", "[]"), "an empty answer would say nothing"
