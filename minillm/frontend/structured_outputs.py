"""Structured output: a grammar says what a request may write.

    StructuredOutputsParams -> GrammarCompiler.compile() -> Request.matcher -> runner/grammar_masks.py, before each draw

llguidance compiles the grammar to an automaton over bytes: a lexer of regular expressions below an Earley parser. From
its state after the output so far it walks a trie of the vocabulary, and the tokens it can follow are the mask. Willard
and Louf 2023, "Efficient Guided Generation for Large Language Models", is the idea; Dong et al. 2024, "XGrammar", what
it takes to be fast.
"""

import json
import time
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

from minillm.core.errors import InvalidSamplingParamsError

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

CACHED_GRAMMARS = 128
"""Compiled grammars that an engine keeps, those used last."""
KINDS = dict[str, Any](json=(str, dict), regex=str, choice=(list, tuple), grammar=str, json_object=bool)
"""Fields of a StructuredOutputsParams, and the types of their values."""
JSON_LAYOUT: Any = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


@dataclass(frozen=True)
class StructuredOutputsParams:
    """What the output must be: exactly one of the fields. The names are vLLM's.

    With max_tokens too small it is cut off in the middle (finish_reason "length"): bound strings and arrays.

    Raises:
        InvalidSamplingParamsError: none or several fields are given, or one of a wrong type.
    """

    json: str | dict[str, Any] | None = None
    """A JSON schema. One space follows commas and colons and there is no other white space, unless the schema's
    `x-guidance` says so: where any is allowed, a small model may write nothing else."""
    regex: str | None = None
    """Of the whole output, in the syntax of Rust's `regex`."""
    choice: Sequence[str] | None = None
    """The output is one of these."""
    grammar: str | None = None
    """Context-free: Lark's notation, as llguidance reads it, or llama.cpp's GBNF."""
    json_object: bool | None = None
    """True: any JSON object."""

    __pydantic_config__ = {"extra": "forbid", "strict": False}  # noqa: RUF012  # where a request's body is read

    def __post_init__(self) -> None:
        given = {name: value for name, value in asdict(self).items() if value is not None and value is not False}
        if len(given) != 1:
            raise InvalidSamplingParamsError(f"structured outputs want one of {', '.join(KINDS)}; got {len(given)}")
        [(name, value)] = given.items()
        if not isinstance(value, KINDS[name]):
            raise InvalidSamplingParamsError(f"structured outputs: {name} cannot be a {type(value).__name__}")
        if name == "choice" and not (value and all(isinstance(text, str) for text in value)):
            raise InvalidSamplingParamsError("structured outputs: choice wants strings, at least one")


class GrammarCompiler:
    """Compiles grammars for one model's vocabulary, each once. Any thread may call it.

    Args:
        tokenizer: transformers' fast one; None = every grammar is refused.
        vocab_size: logits in a row.
        eos_token_ids: allowed where the grammar may end, and nowhere else.
    """

    def __init__(self, tokenizer: Any, vocab_size: int | None, eos_token_ids: Collection[int]) -> None:
        self._tokenizer, self._vocab_size, self._eos_token_ids = tokenizer, vocab_size, eos_token_ids
        self._compile = lru_cache(CACHED_GRAMMARS)(self._compile_text)
        self.num_compiled = 0
        self.compile_s = 0.0
        """Seconds they took together; what is found in the cache adds nothing."""

    def compile(self, params: Any) -> "LLMatcher | None":
        """A matcher at the beginning of the grammar, for one request; None if nothing is asked for.

        Raises:
            InvalidSamplingParamsError: not a StructuredOutputsParams, or a grammar that is wrong, too large, or that no
                output satisfies; or the model has no tokenizer that can be read.
        """
        if params is None:
            return None
        if not isinstance(params, StructuredOutputsParams):
            raise InvalidSamplingParamsError(
                f"structured_outputs wants StructuredOutputsParams, not {type(params).__name__}"
            )
        if self._tokenizer is None:
            raise InvalidSamplingParamsError("structured outputs want a tokenizer, and this model has none")
        try:
            return self._compile(grammar_text(params)).deep_copy()
        except (ValueError, TypeError, RecursionError) as error:
            raise InvalidSamplingParamsError(f"structured outputs: {error}") from None

    def _compile_text(self, text: str) -> "LLMatcher":
        from llguidance import LLMatcher, LLParserLimits

        tokenizer, start = self._trie, time.perf_counter()
        matcher = LLMatcher(tokenizer, text, log_level=0, limits=LLParserLimits(verbose_errors=False))
        begins = not matcher.is_error() and any(matcher.compute_bitmask())
        if not begins or matcher.is_error():
            raise ValueError(f"the grammar is wrong, or nothing satisfies it: {matcher.get_error()}")
        self.num_compiled += 1
        self.compile_s += time.perf_counter() - start
        return matcher

    @cached_property
    def _trie(self) -> "LLTokenizer":
        """The vocabulary as a trie. That takes about half a second, so it is made for the first grammar."""
        from llguidance.hf import from_tokenizer

        return from_tokenizer(self._tokenizer, self._vocab_size, sorted(self._eos_token_ids) or None)


def grammar_text(params: StructuredOutputsParams) -> str:
    """What is asked for, in llguidance's own format. Raises ValueError and the like: it has a wrong form."""
    from llguidance import LLMatcher, grammar_from

    if params.json is not None or params.json_object:
        schema = {"type": "object"} if params.json is None else params.json
        return LLMatcher.grammar_from_json_schema(schema, JSON_LAYOUT)
    if params.choice is not None:
        return grammar_from("choice", json.dumps(params.choice))
    if params.regex is not None:
        return LLMatcher.grammar_from_regex(params.regex)
    assert params.grammar is not None
    return grammar_from("grammar", params.grammar)
