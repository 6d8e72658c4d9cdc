"""Structured output: a grammar says what a request may write.

    StructuredOutputsParams -> GrammarCompiler.start() -> Request.matcher -> runner/grammar_masks.py, before each draw

llguidance compiles the grammar to an automaton over bytes: a lexer of regular expressions below an Earley parser. From
its state after the output so far it walks a trie of the vocabulary, and the tokens it can follow are the mask. Willard
and Louf 2023, "Efficient Guided Generation for Large Language Models", is the idea; Dong et al. 2024, "XGrammar", what
it takes to be fast.

It is native code that reads what a client sent. So a grammar is measured first (grammar_limits.py), then tried in a
child process with a deadline (grammar_trials.py), and only then compiled here, beside the engine's thread. What follows
it through an answer is in grammar_matcher.py.
"""

import json
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from minillm.core.errors import InvalidSamplingParamsError, RequestError
from minillm.core.params import SamplingParams
from minillm.frontend import grammar_limits
from minillm.frontend.errors import GrammarTrialEndedError, InvalidGrammarError
from minillm.frontend.grammar_matcher import CompiledGrammar, explain
from minillm.frontend.grammar_trials import ClientLeftError, TokenizerSpec, Trials
from minillm.frontend.grammar_worker import COMPILING_STACK, compile_grammar

CACHED_GRAMMARS = 64
"""Compiled grammars that an engine keeps, those used last."""
CACHED_BYTES = 1 << 29
"""Most memory that kept grammars take, as their trials measured it, with what answers have added."""
KINDS = dict[str, Any](json=(str, dict), regex=str, choice=(list, tuple), grammar=str, json_object=bool)
"""Fields of a StructuredOutputsParams, and the types of their values."""
JSON_LAYOUT: Any = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
TOKEN = re.compile(
    r'"(?:\\[\s\S]?|[^"\\])*+"?'  # a text
    r"|\[(?:\\[\s\S]?|[^]\\])*+]?"  # an option, or a set of characters in GBNF
    r"|(?://|#)[^\n]*"
    r"|/(?:\\[\s\S]?|[^/\\\n])*+/?"  # a regular expression
    r"|(<[\w|/-]+>)"
)
"""A special token in Lark's notation; before it, what may have such letters in it and is none."""
IN_LARK = {"/": r"\/", "\n": r"\n"}
"""Characters that a regular expression in Lark's notation can't have as they are, escaped already or not."""
MAX_MESSAGE = 1000
"""Characters of a refusal, which quotes what it refuses."""
TIMEOUT_S = 5.0
"""Longest time to compile a grammar, if nothing else is said: vLLM's."""
STACK = 4 * COMPILING_STACK
"""Bytes, of a thread that compiles: what passed its trial has room to spare."""
_STARTING = threading.Lock()
"""Stack sizes are set for the whole process."""


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
    """A regular expression of the whole output, in the syntax of Rust's `regex`."""
    choice: Sequence[str] | None = None
    """The output is one of these."""
    grammar: str | None = None
    """Context-free: Lark's notation, as llguidance reads it, or llama.cpp's GBNF."""
    json_object: bool | None = None
    """True: any JSON object."""

    __pydantic_config__ = {"extra": "forbid", "strict": False}  # noqa: RUF012  # where a request's body is read

    def __post_init__(self) -> None:
        given = {name: getattr(self, name) for name in KINDS}
        given = {name: value for name, value in given.items() if value is not None and value is not False}
        if len(given) != 1:
            raise InvalidSamplingParamsError(f"structured outputs want one of {', '.join(KINDS)}; got {len(given)}")
        [(name, value)] = given.items()
        if not isinstance(value, KINDS[name]):
            raise InvalidSamplingParamsError(f"structured outputs: {name} cannot be a {type(value).__name__}")
        if name == "choice" and not (value and all(isinstance(text, str) for text in value)):
            raise InvalidSamplingParamsError("structured outputs: choice wants strings, at least one")

    @property
    def kind(self) -> str:
        """The field that is given."""
        return next(name for name in KINDS if getattr(self, name) not in (None, False))

    @cached_property
    def lark(self) -> str:
        """What is asked for, in Lark's notation as llguidance reads it; of a `grammar` it may be GBNF. GrammarCompiler
        holds a lock while it is written: once, that is.

        Raises:
            InvalidGrammarError: it is too large, too deep, or has a number that cannot be honoured.
            ValueError and the like: it has a wrong form.
        """
        if self.grammar is not None:
            return grammar_limits.check_size(self.grammar)
        if self.regex is not None:
            grammar_limits.check_size(self.regex, grammar_limits.MAX_REGEX)
            escaped = re.sub(r"\\?\n|\\.|/", lambda one: IN_LARK.get(one[0][-1], one[0]), self.regex)
            return f"start: /{escaped}/"
        if self.choice is not None:
            choices = " | ".join(map(grammar_limits.write_json, self.choice))
            return grammar_limits.check_size(f"start: CHOICE\nCHOICE: {choices}")
        schema = {"type": "object"} if self.json is None else self.json
        return f"start: {json_rule(schema)}"


def parse_sampling(fields: dict[str, Any]) -> SamplingParams:
    """SamplingParams of what was typed, where structured_outputs is a dict of a StructuredOutputsParams' fields.

    Raises:
        InvalidSamplingParamsError: a field is unknown, or out of range.
    """
    wanted = fields.get("structured_outputs")
    if isinstance(wanted, dict):
        if unknown := wanted.keys() - KINDS.keys():
            raise InvalidSamplingParamsError(f"structured outputs: {min(unknown)} is none of {', '.join(KINDS)}")
        fields = {**fields, "structured_outputs": StructuredOutputsParams(**wanted)}
    return SamplingParams(**fields)


def json_rule(schema: str | dict[str, Any], *, relaxed: bool = False) -> str:
    """A part of a grammar in Lark's notation: a value that follows a JSON schema, which is a world of its own. What it
    refers to is looked up in itself, whatever else the grammar has.

    Args:
        relaxed: keywords that cannot be followed are passed over, not refused.
    Raises:
        InvalidGrammarError: it is too large, too deep, or has a number that cannot be honoured.
        ValueError and the like: it has a wrong form.
    """
    if isinstance(schema, str):
        schema = json.loads(grammar_limits.check_size(schema))
    if not isinstance(schema, dict):
        raise InvalidGrammarError(f"a schema is an object, not {json.dumps(schema)[:40]}")
    schema = grammar_limits.prepare_schema(schema, relaxed=relaxed)
    layout = schema.get("x-guidance", {})
    if not isinstance(layout, dict):
        raise InvalidGrammarError("x-guidance is an object")
    schema["x-guidance"] = {**JSON_LAYOUT, **layout, **({"lenient": True} if relaxed else {})}
    return grammar_limits.check_size(f"%json {grammar_limits.write_json(schema)}")


def resolve_tokens(grammar: str, special: Collection[str]) -> str:
    """In Lark's notation `<name>` is the special token of that name. Where the tokenizer has none, it is its text."""
    return TOKEN.sub(lambda found: json.dumps(found[1]) if found[1] and found[1] not in special else found[0], grammar)


class Vocabulary(NamedTuple):
    """A model's tokens, as llguidance wants them."""

    spec: TokenizerSpec
    trie: Any
    """An llguidance.LLTokenizer."""
    special: frozenset[str]
    """Tokens that llguidance takes for special ones. They may be plain text to the tokenizer, as Qwen's `<tool_call>`
    is."""

    @classmethod
    def of(cls, tokenizer: Any, vocab_size: int | None, eos_token_ids: Collection[int]) -> "Vocabulary":
        """What llguidance.hf.from_tokenizer makes. Takes about half a second, and holds up every thread of Python for a
        part of that. Raises InvalidSamplingParamsError: the tokenizer cannot be read."""
        from llguidance import LLTokenizer

        backend = copy(getattr(tokenizer, "backend_tokenizer", None))
        if backend is None:
            raise InvalidSamplingParamsError("structured outputs want a fast tokenizer, and this model's is not")
        backend.no_padding()
        backend.no_truncation()
        eos = [token for token in sorted(eos_token_ids) or [tokenizer.eos_token_id] if token is not None]
        text = backend.to_str()
        trie = LLTokenizer(text, n_vocab=vocab_size, eos_token=eos or None)
        added = backend.get_added_tokens_decoder().items()
        special = frozenset(token.content for token_id, token in added if trie.is_special_token(token_id))
        return cls(TokenizerSpec(text.encode(), vocab_size, eos), trie, special)


class GrammarCompiler:
    """Compiles grammars for one model's vocabulary, each once. Any thread may call it.

    Args:
        tokenizer: transformers' fast one; None = every grammar is refused.
        vocab_size: logits in a row.
        eos_token_ids: allowed where the grammar may end, and nowhere else.
        timeout_s: longest time for one; beyond it the request is refused.
    """

    def __init__(
        self,
        tokenizer: Any,
        vocab_size: int | None,
        eos_token_ids: Collection[int],
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._tokenizer, self._vocab_size, self._eos_token_ids = tokenizer, vocab_size, eos_token_ids
        self.trials = Trials(lambda: self._vocabulary.spec, timeout_s)
        self._compiled: OrderedDict[str, CompiledGrammar] = OrderedDict()
        """Compiled grammars by their text."""
        self._in_progress: dict[str, Future[CompiledGrammar]] = {}
        self._renewing: set[str] = set()
        self._changing, self._reading = threading.Lock(), threading.Lock()
        self._working = threading.Lock()
        """Held while a grammar is counted or compiled here: one at a time, however many clients send some."""

    def start(self, params: Any) -> "Future[CompiledGrammar]":
        """Have a grammar compiled in a thread of its own. The future gives it, or raises

            InvalidGrammarError: it is wrong, too large, takes too long, or no output satisfies it.
            InvalidSamplingParamsError: no StructuredOutputsParams, or the model has no tokenizer that can be read.
            QueueFullError: too many others are being tried.

        Cancelled before its trial begins, it leaves the queue.
        """
        future: Future[CompiledGrammar] = Future()
        try:
            if not isinstance(params, StructuredOutputsParams):
                kind = type(params).__name__
                raise InvalidSamplingParamsError(f"structured_outputs wants StructuredOutputsParams, not {kind}")
            if self._tokenizer is None:
                raise InvalidSamplingParamsError("structured outputs want a tokenizer, and this model has none")
        except InvalidSamplingParamsError as error:
            future.set_exception(error)
            return future
        if (ready := self._look_up(params)) is not None:
            future.set_result(ready)
        else:
            start_thread(lambda: self._work(params, future))
        return future

    def close(self) -> None:
        """End the processes in which grammars are tried: nothing more is compiled."""
        self.trials.close()

    def _look_up(self, params: StructuredOutputsParams) -> "CompiledGrammar | None":
        """What is compiled already. Only if its text has been written, too: that may take a while. If it is worn, it
        serves until another has been made."""
        text: str | None = params.__dict__.get("lark")
        with self._changing:
            if text is None or text not in self._compiled:
                return None
            self._compiled.move_to_end(text)
            grammar = self._compiled[text]
            if grammar.is_worn and text not in self._renewing:
                self._renewing.add(text)
                start_thread(lambda: self._renew(text, grammar))
            return grammar

    def _renew(self, text: str, worn: CompiledGrammar) -> None:
        try:
            with self._working:
                grammar = worn.renewed()
            with self._changing:
                if text in self._compiled:
                    self._keep(text, grammar)
        finally:
            with self._changing:
                self._renewing.discard(text)

    def _work(self, params: StructuredOutputsParams, future: "Future[CompiledGrammar]") -> None:
        grammar: CompiledGrammar | None = None
        error: BaseException | None = None
        try:
            grammar = self._compile(params, future.cancelled)
        except (ValueError, TypeError, RecursionError, OverflowError) as wrong:
            error = wrong
            if isinstance(wrong, InvalidGrammarError) or not isinstance(wrong, RequestError):
                kind = GrammarTrialEndedError if isinstance(wrong, GrammarTrialEndedError) else InvalidGrammarError
                error = kind(f"structured outputs: {params.kind}: {readable(str(wrong), params.kind)}")
        except BaseException as failure:
            error = failure
        if not future.set_running_or_notify_cancel():
            return
        if grammar is not None:
            future.set_result(grammar)
        else:
            future.set_exception(error)

    def _compile(self, params: StructuredOutputsParams, has_left: Callable[[], bool]) -> CompiledGrammar:
        ours: Future[CompiledGrammar] = Future()
        while True:
            with self._working:
                if has_left():
                    raise ClientLeftError
                text = params.lark
            with self._changing:
                if text in self._compiled:
                    return self._compiled[text]
                others = self._in_progress.setdefault(text, ours)
            if others is ours:
                break
            with suppress(ClientLeftError):  # who sent it first: it's another's turn
                return others.result()
        try:
            is_own = params.grammar is not None
            resolved = resolve_tokens(text, self._vocabulary.special) if is_own else text
            tried = self.trials.run(resolved, may_be_gbnf=is_own, has_left=has_left)
            trie = self._vocabulary.trie
            with self._working:
                grammar = CompiledGrammar(lambda: compile_grammar(trie, tried.text), tried.num_bytes)
            with self._changing:
                self._keep(text, grammar)
                del self._in_progress[text]
            ours.set_result(grammar)
            return grammar
        except BaseException as error:
            with self._changing:
                self._in_progress.pop(text, None)
            ours.set_exception(error)
            raise

    def _keep(self, text: str, grammar: CompiledGrammar) -> None:
        self._compiled[text] = grammar
        num_cached = sum(grammar.num_bytes for grammar in self._compiled.values())
        while len(self._compiled) > 1 and (len(self._compiled) > CACHED_GRAMMARS or num_cached > CACHED_BYTES):
            num_cached -= self._compiled.popitem(last=False)[1].num_bytes

    @property
    def _vocabulary(self) -> Vocabulary:
        """The tokens that grammars are compiled for; read for the first grammar."""
        with self._reading:
            return self._read_vocabulary

    @cached_property
    def _read_vocabulary(self) -> Vocabulary:
        return Vocabulary.of(self._tokenizer, self._vocab_size, self._eos_token_ids)


def start_thread(work: Callable[[], None]) -> None:
    """Have it done in a thread that has room to compile. Not one of concurrent.futures': Python waits for those."""
    with _STARTING:
        before = threading.stack_size(STACK)
        try:
            threading.Thread(target=work, name="minillm-grammar", daemon=True).start()
        finally:
            threading.stack_size(before)


def readable(message: str, kind: str) -> str:
    """llguidance's message, in our words if it is about a limit. The place in the grammar, and its lines, are in it
    only where the client wrote the grammar."""
    if kind != "grammar":
        message = re.sub(r"at \d+\(\d+\): ", "", message.partition("\n   1 | ")[0])
    message = explain(message)
    return message if len(message) <= MAX_MESSAGE else message[:MAX_MESSAGE] + " ..."
