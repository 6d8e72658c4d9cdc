"""Web pages of other origins: what a browser asks before it lets a page call the server, and what pages may read."""

import json

import httpx
import pytest
from server.running import CHAT, MODEL, Running, Serve
from typer.testing import CliRunner

from minillm.cli import app
from minillm.core.errors import ConfigError
from minillm.server.config import ServeConfig

HERE, THERE = "http://localhost:3000", "https://chat.example.org"
ASKED = {"access-control-request-method": "POST", "access-control-request-headers": "authorization,content-type,x-any"}
BODY = {"model": MODEL, "messages": CHAT, "max_tokens": 3}


def preflight(server: Running, origin: str, path: str = "/v1/chat/completions", **more: str) -> httpx.Response:
    return server.http.options(path, headers={"origin": origin, **ASKED, **more})


def assert_refused(answer: httpx.Response, why: str) -> None:
    """In our shape, with what to do about it."""
    assert answer.status_code == 403 and answer.headers["content-type"] == "application/json"
    assert set(error := answer.json()["error"]) == {"message", "type", "param", "code"}
    assert error["message"].endswith(why)


@pytest.mark.parametrize("allowed", [(HERE,), ("*",)], ids=str)
def test_a_method_that_nothing_here_has_is_refused(serve: Serve, allowed: tuple[str, ...]) -> None:
    asked = preflight(serve(cors_origin=allowed), HERE, **{"access-control-request-method": "DELETE"})
    assert_refused(asked, "pages may use GET and POST only: nothing here has another method")


def test_pages_of_the_origins_that_were_named_may_call_it(serve: Serve, tmp_path) -> None:
    (tmp_path / "keys").write_text("secret\n")
    server = serve(cors_origin=(HERE, THERE), api_key_file=str(tmp_path / "keys"))
    for origin in (HERE, THERE):
        for path in ("/v1/chat/completions", "/v1/models", "/health", "/nowhere"):
            asked = preflight(server, origin, path, **{"access-control-request-private-network": "true"})
            assert asked.status_code == 200, "a preflight never has a key"
            assert asked.headers["access-control-allow-origin"] == origin and "Origin" in asked.headers["vary"]
            allowed = asked.headers["access-control-allow-headers"]
            assert {"authorization", "content-type", "x-any"} <= {name.strip().lower() for name in allowed.split(",")}
            assert asked.headers["access-control-allow-private-network"] == "true"
    for origin in ("http://localhost:3001", "http://localhost:30000", "null"):
        asked = preflight(server, origin)
        assert "access-control-allow-origin" not in asked.headers
        assert_refused(asked, f"restart it with --cors-origin {origin}")
        assert "access-control-allow-origin" not in server.http.get("/health", headers={"origin": origin}).headers


ANSWERS = [
    ("/v1/chat/completions", BODY, 200),
    ("/v1/chat/completions", {**BODY, "stream": True}, 200),
    ("/v1/chat/completions", {**BODY, "n": 0}, 400),
    ("/tokenize", {"prompt": 5}, 400),
    ("/nowhere", {}, 404),
    ("/health", {}, 405),
    ("/v1/completions", {"prompt": "a" * 2_000_000}, 413),
]


@pytest.mark.parametrize("allowed", [(HERE,), ("*",)], ids=str)
def test_pages_may_read_answers_streams_and_errors(serve: Serve, allowed: tuple[str, ...]) -> None:
    server = serve(cors_origin=allowed)
    for path, body, status in ANSWERS:
        answer = server.http.post(path, json=body, headers={"origin": HERE})
        assert answer.status_code == status, path
        assert answer.headers["access-control-allow-origin"] in (HERE, "*")
        assert {"retry-after", "x-request-id"} <= set(answer.headers["access-control-expose-headers"].split(", "))


def test_also_what_is_refused_before_the_application_sees_it(serve: Serve) -> None:
    server = serve(cors_origin=(HERE,), max_connections=1)
    with server.connect() as first:
        first.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        assert first.recv(4096).startswith(b"HTTP/1.1 200")
        for origin, is_told in ((HERE, True), (THERE, False)):
            answer = server.raw(b"GET /v1/models HTTP/1.1\r\norigin: %s\r\n\r\n" % origin.encode())
            assert answer.startswith(b"HTTP/1.1 503") and (b"access-control-allow-origin" in answer) == is_told


def test_none_may_unless_it_is_told_so(server: Running) -> None:
    asked = preflight(server, HERE)
    assert_refused(asked, f"restart it with --cors-origin {HERE}")
    for answer in (asked, server.http.get("/health", headers={"origin": HERE})):
        assert not [name for name in answer.headers if name.startswith("access-control")]


def test_the_flag_may_be_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[ServeConfig] = []
    monkeypatch.setattr("minillm.server.server.run", lambda engine, config, ready: made.append(config))
    for flags in ([], ["--cors-origin", HERE], ["--cors-origin", HERE, "--cors-origin", THERE]):
        CliRunner().invoke(app, ["serve", *flags], catch_exceptions=False)
    assert [config.cors_origin for config in made] == [(), (HERE,), (HERE, THERE)]


@pytest.mark.parametrize("wrong", [f"{HERE}/", "localhost:3000", "http://Localhost", f"{HERE} {THERE}", "", "http://"])
def test_an_origin_that_no_browser_would_send_is_refused(wrong: str) -> None:
    with pytest.raises(ConfigError, match=r"cors_origin.* is no origin: write scheme, host and port"):
        ServeConfig(cors_origin=(wrong,))
    assert json.dumps(ServeConfig(cors_origin=("*", "null", "app://obsidian.md")).model_dump()["cors_origin"])
