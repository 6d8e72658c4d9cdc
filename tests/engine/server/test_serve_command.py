"""`minillm serve` as a process: one line, then service, then a drain."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import openai
import pytest
from patience import PATIENCE_S
from typer.testing import CliRunner

from course.measure.child import as_flags
from minillm.cli import app
from minillm.core.errors import ConfigError
from minillm.model.errors import ModelError, UnknownModelError
from minillm.policies.config import EngineConfig
from minillm.server import server
from minillm.server.cli import DEFAULT_MAX_QUEUE, VLLM_FLAGS
from minillm.server.config import UNKEPT_BY_REPLICAS, ServeConfig
from minillm.server.server import bind

ROOT = Path(__file__).parents[3]


def test_one_line_when_ready_and_a_clean_end_after_sigterm(tiny_llama_path: Path):
    command = [sys.executable, "-m", "minillm", "serve", "--port", "0", "--json", "--num-kv-blocks", "64"]
    command += ["--model", str(tiny_llama_path), "--served-model-name", "tiny"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([*command, "--max-queue", "9"], env=environment, **pipes) as process:
        try:
            ready = json.loads(process.stdout.readline())
            client = openai.OpenAI(base_url=ready["url"], api_key="none", max_retries=0)
            assert [model.id for model in client.models.list()] == [ready["model"]] == ["tiny"]
            asked = {"model": ready["model"], "messages": [{"role": "user", "content": "Hello"}], "temperature": 0}
            asked["extra_body"] = {"ignore_eos": True}
            whole = client.chat.completions.create(**asked, max_tokens=24)
            stream = client.chat.completions.create(**asked, max_tokens=24, stream=True)
            text = next(stream).choices[0].delta.content
            process.send_signal(signal.SIGTERM)  # while the answer is on its way
            text += "".join(chunk.choices[0].delta.content for chunk in stream)
            assert text == whole.choices[0].message.content
            out, err = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
    assert (process.returncode, out) == (0, "")
    assert "KV cache: 1,024 tokens (64 blocks of 16)" in err
    assert [json.loads(line)["outcome"] for line in err.splitlines() if line.startswith("{")] == ["ok", "ok"]


def test_every_field_is_a_flag_and_an_unknown_one_is_refused():
    shown = CliRunner().invoke(app, ["serve", "--help"], env={"COLUMNS": "400"}).output
    for model in (EngineConfig, ServeConfig):
        for name in model.model_fields:
            assert f"--{name.replace('_', '-')}" in shown
    assert CliRunner().invoke(app, ["serve", "--no-such-field", "1"]).exit_code == 2


@pytest.mark.parametrize(("flag", "instead"), VLLM_FLAGS.items())
def test_a_flag_of_vllm_says_what_to_do_here(flag: str, instead: str):
    shown = CliRunner().invoke(app, ["serve", "--help"], env={"COLUMNS": "400"}).output
    ours = set(re.findall(r"--[a-z-]+", shown))
    assert set(re.findall(r"--[a-z-]+", instead)) <= ours and flag not in ours
    for written in (flag, flag[:2] + flag[2:].replace("-", "_") + "=1"):
        refused = CliRunner().invoke(app, ["serve", written, "1"])
        assert refused.exit_code == 2 and instead in refused.output


def test_the_model_may_come_first(monkeypatch: pytest.MonkeyPatch):
    made: list[str] = []
    monkeypatch.setattr("minillm.server.server.run", lambda engine, config, ready: made.append(engine.model))
    for words in (["a/b"], ["--model", "a/b"], ["a/b", "--model", "a/b"]):
        CliRunner().invoke(app, ["serve", *words], catch_exceptions=False)
    assert made == ["a/b"] * 3
    with pytest.raises(ConfigError, match="two models"):
        CliRunner().invoke(app, ["serve", "a/b", "--model", "c"], catch_exceptions=False)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"enable_prefix_caching": False, "max_num_seqs": 3, "dtype": "float32", "max_queue_len": 9},
        {"kv_cache_memory_gb": 0.125, "num_kv_blocks": None},
        {"quantization": "int8", "speculative": {"method": "ngram", "k": 4}, "max_prompt_tokens": 7},
    ],
    ids=str,
)
def test_a_config_becomes_the_flags_that_make_it(fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch):
    made: list[EngineConfig] = []
    monkeypatch.setattr("minillm.server.server.run", lambda engine, config, ready: made.append(engine))
    config = EngineConfig(model="smollm2-135m", **{"max_queue_len": DEFAULT_MAX_QUEUE, **fields})
    CliRunner().invoke(app, ["serve", *as_flags(config)], catch_exceptions=False)
    assert made == [config]


def test_a_port_that_is_taken_shows_before_the_model_is_loaded():
    with bind("127.0.0.1", 0) as taken:
        taken.listen()
        with pytest.raises(ConfigError, match="cannot listen"):
            bind("127.0.0.1", taken.getsockname()[1])


def test_small_chunks_leave_at_once():
    """Else the second answer on a connection comes in lumps: its tokens wait for an acknowledgement that is delayed."""

    async def is_set() -> int:
        ready: asyncio.Future[asyncio.StreamWriter] = asyncio.get_running_loop().create_future()
        sock = bind("127.0.0.1", 0)
        async with await asyncio.start_server(lambda _, writer: ready.set_result(writer), sock=sock):
            _, client = await asyncio.open_connection(*sock.getsockname())
            writer = await ready
            client.close()
            return writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)

    assert asyncio.run(is_set())


@pytest.mark.parametrize(
    "fields", [{"host": ""}, {"served_model_name": "\udcff"}, {"served_model_name": ""}], ids=ascii
)
def test_no_name_that_means_another_or_none(fields: dict[str, str]):
    """A socket takes an empty host for every address of the machine: `--host "$HOST"` would open it to the network."""
    with pytest.raises(ConfigError, match=next(iter(fields))):
        ServeConfig(**fields)


def test_replicas_are_checked():
    with pytest.raises(ConfigError, match="max_replicas needs replicas"):
        ServeConfig(max_replicas=3)


@pytest.mark.parametrize("name", UNKEPT_BY_REPLICAS)
def test_what_replicas_cannot_keep_is_refused_before_ray_starts(name: str):
    values = {"max_requests_per_key": "3", "overload_max_tokens": "3"}
    flag = "--" + name.removesuffix("_s").replace("_", "-")
    command = ["serve", "--model", "no-such-model", flag, values.get(name, "7")]
    with pytest.raises(ConfigError, match=f"{flag} cannot be kept with --replicas"):
        CliRunner().invoke(app, [*command, "--replicas", "2"], catch_exceptions=False)
    with pytest.raises(ModelError, match="no-such-model"):  # without replicas it is fine
        CliRunner().invoke(app, [*command, "--port", "0"], catch_exceptions=False)


def test_a_model_that_cannot_be_loaded_gives_the_port_back(monkeypatch: pytest.MonkeyPatch):
    bound = []
    monkeypatch.setattr(server, "bind", lambda host, port: bound.append(bind(host, port)) or bound[-1])
    with pytest.raises(UnknownModelError):
        server.run(EngineConfig(model="no-such-model"), ServeConfig(port=0, access_log=False), print)
    assert bound[0].fileno() == -1, "it is closed"


@pytest.mark.parametrize(("host", "url"), [("127.0.0.1", "http://127.0.0.1:80"), ("::1", "http://[::1]:80")])
def test_an_address_as_a_client_writes_it(host: str, url: str):
    assert server.url_of(host, 80) == url
