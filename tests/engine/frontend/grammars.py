"""Grammars tried with texts, without a model that writes them."""

from typing import Any

from minillm import StructuredOutputsParams
from minillm.frontend.structured_outputs import GrammarCompiler


def compiled(grammars: GrammarCompiler, params: Any) -> Any:
    """llguidance's matcher at the beginning of a grammar. Waits for it."""
    return grammars.start(params).result(600).first.deep_copy()


def tokenize(grammars: GrammarCompiler, text: str) -> list[int]:
    return grammars._vocabulary.trie.tokenize_str(text)


def allows(grammars: GrammarCompiler, text: str, **kind: Any) -> bool:
    """Whether a whole output may be this text."""
    matcher = compiled(grammars, StructuredOutputsParams(**kind))
    tokens = tokenize(grammars, text)
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()
