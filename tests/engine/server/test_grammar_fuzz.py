"""Nothing that is sent as a grammar ends the server. `make slow` tries for an hour: MINILLM_FUZZ_S says how long."""

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from server.grammar_fuzz import DEADLINE_S, Bystander, FuzzedServer, fuzz, fuzzed_server, published
from server.nasty_grammars import CORPUS
from server.public_schemas import public_schemas
from server.running import MODEL, running, with_template

from minillm.model.loader import LoadedModel
from minillm.policies.config import EngineConfig
from minillm.server.config import ServeConfig

SECONDS = float(os.environ.get("MINILLM_FUZZ_S", "3600"))
SHORT_S = 1.0


@pytest.fixture(scope="module")
def fuzzed(tiny_config: EngineConfig, tiny_model: LoadedModel) -> Iterator[FuzzedServer]:
    """In this process: what ends the server ends the tests."""
    serve = ServeConfig(port=0, served_model_name=MODEL, access_log=False)
    with running(tiny_config.replace(grammar_timeout_s=DEADLINE_S), serve, with_template(tiny_model)) as started:
        server = FuzzedServer(started.url)
        yield server
        server.check_children()


def test_worst_of_the_corpus(fuzzed: FuzzedServer) -> None:
    """A crash that no limit foresees is a 400, and the next request is answered."""
    assert (
        fuzzed.ask({"guided_grammar": 'start: %json {"type": "integer", "minimum": -1e20, "maximum": -1e19}'})
        == "killed"
    )
    fuzzed.check_children()
    for fields in CORPUS[:4]:
        fuzzed.ask(fields)


def test_grammars_of_any_kind_for_a_moment(fuzzed: FuzzedServer) -> None:
    fuzz(fuzzed, SHORT_S, corpus=False)


def test_public_schemas_end_nothing(fuzzed: FuzzedServer) -> None:
    """The smallest of them here; `make slow` has them all."""
    if not public_schemas():
        pytest.skip("no package here brings schemas along")
    with Bystander(fuzzed) as bystander:
        for fields in itertools.islice(published(), 4):
            assert fuzzed.ask_often(fields) != "killed"
    assert bystander.num_pieces and bystander.longest_gap_s
    fuzzed.check_children()


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 600)
def test_grammars_of_any_kind_for_an_hour(smollm_path: Path) -> None:
    with fuzzed_server(smollm_path) as server:
        fuzz(server, SECONDS)
