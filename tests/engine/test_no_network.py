"""minillm reaches for the network when it is asked to fetch something, and never else.

Each program runs in a process of its own, in which Python itself (PEP 578) refuses every address but this machine's
own, and writes down who was asked for: a library may swallow the refusal.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

GUARD = """
import sys

OWN = ("127.0.0.1", "::1", "localhost", "0.0.0.0", "::", "", None, b"localhost", b"127.0.0.1")
PLACE_OF_ADDRESS = {"socket.connect": 1, "socket.sendto": 1, "socket.getaddrinfo": 0, "socket.gethostbyname": 0}

def refuse(event, arguments):
    if event == "subprocess.Popen" and "pip" in map(str, arguments[1]):
        address = "pip"
    elif event in PLACE_OF_ADDRESS:
        address = arguments[PLACE_OF_ADDRESS[event]]
        if isinstance(address, (str, bytes)) and event in ("socket.connect", "socket.sendto"):
            return  # a file of this machine: a Unix socket
        address = address[0] if isinstance(address, tuple) else address
    else:
        return
    if address not in OWN:
        with open(NOTES, "a") as notes:
            print(event, address, file=notes)
        raise PermissionError(f"{event} {address}: no network here")

sys.addaudithook(refuse)
"""
COMMANDS = """
import contextlib, runpy, sys
for words in COMMANDS:
    sys.argv = ["minillm", *words]
    with contextlib.suppress(SystemExit):
        runpy.run_module("minillm", run_name="__main__")
"""
COURSE = """
import importlib, pathlib
import course
root = pathlib.Path(course.__file__).parent
for path in sorted(root.glob("*/**/*.py")):
    name = ".".join(("course", *path.relative_to(root).with_suffix("").parts)).removesuffix(".__init__")
    theirs = ("peers.llama_cpp", "peers.nano_vllm", "adapters.mini_sglang", "adapters.nano_vllm")
    if not name.endswith(("__main__", "grading.child", *theirs)):
        importlib.import_module(name)
"""
ENGINE = """
from minillm import LLM, SamplingParams
llm = LLM(model=MODEL, dtype="float32", num_kv_blocks=64, speculative={"method": "ngram"})
print(llm.generate([[{"role": "user", "content": "hello"}]], SamplingParams(max_tokens=4))[0].token_ids)
"""
DOCTOR = """
import json
from minillm.doctor.checks import CHECKS  # which the command runs in processes of their own, out of the guard's sight
print(json.dumps([finding.name for check in CHECKS.values() for finding in check.examine()]))
"""

NOW_THE_HUB = "now the Hub\n"
HUB = f"""
with open(NOTES, "a") as notes:
    notes.write({NOW_THE_HUB!r})
COMMANDS = FROM_THE_HUB
"""

Run = Callable[..., tuple[str, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a program behind the guard: (standard output, who was asked for). Hugging Face's own cache is empty."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "huggingface"))
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)

    def start(program: str, must_end_well: bool = True, **names: object) -> tuple[str, str]:
        notes = tmp_path / "notes.txt"
        notes.write_text("")
        values = "".join(f"{name} = {value!r}\n" for name, value in {"NOTES": str(notes), **names}.items())
        command = [sys.executable, "-c", values + GUARD + program]
        ended = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
        assert not must_end_well or ended.returncode == 0, ended.stderr
        return ended.stdout, notes.read_text()

    return start


def test_the_guard_sees_an_attempt(run: Run) -> None:
    program = "import urllib.request\nurllib.request.urlopen('http://example.invalid/')"
    assert run(program, must_end_well=False)[1].startswith("socket.getaddrinfo example.invalid")
    own = "import socket\nwith socket.create_server(('127.0.0.1', 0)) as s: socket.create_connection(s.getsockname())"
    assert run(own)[1] == ""


def test_what_works_on_local_files_asks_nobody(run: Run, tiny_llama_path: Path) -> None:
    """The engine, a command, the doctor's checks and all of the course, in one process: torch takes seconds.

    Last a model of the Hub is named, which has to be fetched: the guard sees that, so it would see the others, too.
    """
    generate = ["generate", "hello", "--model", str(tiny_llama_path), "--max-tokens", "2", "--json"]
    commands = [[*generate, "--set", "num_kv_blocks=64"]]
    program = ENGINE + COMMANDS + DOCTOR + COURSE + HUB + COMMANDS
    hub = [["generate", "hello", "--model", "nobody/nothing"]]
    out, asked = run(program, MODEL=str(tiny_llama_path), COMMANDS=commands, FROM_THE_HUB=hub)
    token_ids, generated, doctor = map(json.loads, out.split("\n", 2))
    assert len(token_ids) == 4 and len(generated["outputs"]) == 1 and "generation" in doctor
    asked_before, _, asked_of_the_hub = asked.partition(NOW_THE_HUB)
    assert asked_before == "" and "huggingface.co" in asked_of_the_hub


def test_jupyterlab_fetches_no_news_and_no_updates() -> None:
    settings = json.loads((ROOT / "binder" / "overrides.json").read_text())
    notification = settings["@jupyterlab/apputils-extension:notification"]
    assert notification == {"checkForUpdates": False, "fetchNews": "false"}
    for recipe in ("Makefile", "binder/postBuild"):
        assert "cp binder/overrides.json" in (ROOT / recipe).read_text(), f"{recipe} must install the settings"


def test_telemetry_is_off(run: Run) -> None:
    """Hugging Face's libraries would tell the versions in use here; Ray would report its use."""
    program = "import minillm\nfrom huggingface_hub import constants\nprint(constants.HF_HUB_DISABLE_TELEMETRY)"
    assert run(program) == ("True\n", "")
    source = (ROOT / "minillm" / "server" / "deploy_ray.py").read_text()  # Ray itself may not be installed
    assert source.index('setdefault("RAY_USAGE_STATS_ENABLED", "0")') < source.index("ray.init(")
