"""One compiler of grammars for the tests of a file: a vocabulary and a child process take a second of CPU each."""

from collections.abc import Iterator

import pytest

from minillm.frontend.structured_outputs import GrammarCompiler
from minillm.model.loader import LoadedModel


@pytest.fixture(scope="module")
def grammars(model: LoadedModel) -> Iterator[GrammarCompiler]:
    compiler = GrammarCompiler(model.tokenizer, model.model_config.vocab_size, model.eos_token_ids)
    yield compiler
    compiler.close()
