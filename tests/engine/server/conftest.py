"""Servers around a tiny model of random weights."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from server.running import CHAT, MODEL, Running, Serve, running, with_template

from minillm.core.params import SamplingParams
from minillm.frontend.llm import LLM
from minillm.model.loader import LoadedModel, load_model
from minillm.policies.config import EngineConfig
from minillm.server.config import ServeConfig


@pytest.fixture(scope="session")
def tiny_model(tiny_llama_path: Path) -> LoadedModel:
    return load_model(EngineConfig(model=str(tiny_llama_path), dtype="float32"))


@pytest.fixture(scope="session")
def tiny_config(tiny_llama_path: Path) -> EngineConfig:
    return EngineConfig(model=str(tiny_llama_path), dtype="float32", num_kv_blocks=512, max_num_seqs=8)


@pytest.fixture
def serve(tiny_config: EngineConfig, tiny_model: LoadedModel) -> Iterator[Serve]:
    """Starts servers that stop with the test. Fields are of ServeConfig; `engine` has those of EngineConfig."""
    with ExitStack() as stack:

        def start(engine: dict[str, Any] | None = None, **fields: Any) -> Running:
            config = ServeConfig(port=0, served_model_name=MODEL, **{"access_log": False, **fields})
            return stack.enter_context(running(tiny_config.replace(**(engine or {})), config, tiny_model))

        yield start


@pytest.fixture(scope="session")
def server(tiny_config: EngineConfig, tiny_model: LoadedModel) -> Iterator[Running]:
    """One that tests share: they leave it idle."""
    config = ServeConfig(port=0, served_model_name=MODEL, access_log=False)
    with running(tiny_config, config, tiny_model) as started:
        yield started


@pytest.fixture(scope="session")
def with_tools(tiny_config: EngineConfig, tiny_model: LoadedModel) -> Iterator[Running]:
    """Another that tests share, whose model's template knows tools."""
    config = ServeConfig(port=0, served_model_name=MODEL, access_log=False)
    with running(tiny_config, config, with_template(tiny_model)) as started:
        yield started


@pytest.fixture(scope="session")
def expected(tiny_config: EngineConfig, tiny_model: LoadedModel) -> Callable[..., str]:
    """The engine's own answer to CHAT, without any server."""
    llm = LLM(loaded=tiny_model, **tiny_config.model_dump(exclude_unset=True))

    def answer(prompt: Any = CHAT, **params: Any) -> str:
        defaults = {"temperature": 0, "max_tokens": 12, "ignore_eos": True}
        return llm.generate([prompt], SamplingParams(**{**defaults, **params}), use_tqdm=False)[0].text

    return answer


@pytest.fixture
def deadlines(monkeypatch: pytest.MonkeyPatch) -> list[asyncio.Timeout]:
    """Deadlines of requests with a `request_timeout_s`, as they come: a test makes one pass when it wants it to."""
    found: list[asyncio.Timeout] = []
    make = asyncio.timeout

    def noted(delay: float | None) -> asyncio.Timeout:
        deadline = make(delay)
        if delay is not None and delay > 300:
            found.append(deadline)
        return deadline

    monkeypatch.setattr(asyncio, "timeout", noted)
    return found
