"""One schema serves any number of answers, and one that is slow to follow ends its own request only."""

import json
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from fake_runner import drain
from frontend.grammars import compiled, tokenize
from tiny_llama import VOCAB_SIZE

from minillm import Engine, EngineConfig, SamplingParams, StructuredOutputsParams
from minillm.core.request import FinishReason
from minillm.frontend import grammar_matcher, grammar_worker
from minillm.frontend.errors import InvalidGrammarError
from minillm.frontend.grammar_matcher import GRAMMAR_ERROR, GRAMMAR_FULL, CompiledGrammar, GrammarMatcher, explain
from minillm.frontend.grammar_worker import ALLOWED_S, BURST_S, Meter, compile_grammar
from minillm.frontend.structured_outputs import GrammarCompiler
from minillm.model.loader import LoadedModel

LENGTHS = (80, 200, 300, 500, 800, 1000, 1500, 2000)
TEXTS = {f"f{length}": {"type": "string", "maxLength": length} for length in LENGTHS}
BOUNDED = {"type": "object", "properties": TEXTS, "required": list(TEXTS), "additionalProperties": False}
COUNTING = r"[\s\S]*a[\s\S]{60}"
"""Makes tens of lexer states with each token, for as long as it is followed."""
AMBIGUOUS = "start: e\ne: e e | /[a-z]/"


@pytest.fixture(scope="module")
def random_text(model: LoadedModel) -> Callable[[random.Random, int], str]:
    vocabulary = sorted(word[1:] for word in model.tokenizer.get_vocab() if word[0] == "Ġ" and word[1:].isalpha())
    words = [word for word in vocabulary if word.isascii()]

    def text(choose: random.Random, length: int) -> str:
        return " ".join(choose.choices(words, k=length // 3))[:length]

    return text


def follow(matcher: GrammarMatcher, tokens: list[int]) -> str | None:
    """Masks and tokens of a whole answer. Returns its error."""
    mask = np.zeros((1, VOCAB_SIZE // 32), dtype=np.int32)
    for token in tokens:
        matcher.fill_mask(mask, 0)
        if not matcher.consume_token(token):
            break
    return matcher.error


def test_fifty_answers_follow_one_schema(grammars: GrammarCompiler, random_text: Any) -> None:
    choose = random.Random(0)
    for _ in range(50):
        [matcher] = grammars.start(StructuredOutputsParams(json=BOUNDED)).result().matchers(1)
        answer = {f"f{length}": random_text(choose, choose.randrange(length // 2, length)) for length in LENGTHS}
        assert follow(matcher, tokenize(grammars, json.dumps(answer))) is None


def small_lexer(grammars: GrammarCompiler, monkeypatch: pytest.MonkeyPatch) -> CompiledGrammar:
    """A grammar whose lexer has room for the states of one or two answers of 400 characters."""
    monkeypatch.setitem(grammar_worker.LIMITS, "max_lexer_states", 8000)
    trie = grammars._vocabulary.trie
    return CompiledGrammar(lambda: compile_grammar(trie, f"start: /{COUNTING}/"))


def test_states_that_other_answers_left_are_nobodys_error(
    grammars: GrammarCompiler, random_text: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    grammar = small_lexer(grammars, monkeypatch)
    monkeypatch.setattr(grammar_matcher, "RENEW_S", float("inf"))
    monkeypatch.setattr(grammar_worker, "BURST_S", float("inf"))
    choose = random.Random(0)
    matchers = grammar.matchers(12)
    answers = [tokenize(grammars, random_text(choose, 400)) for _ in matchers]
    assert [follow(*pair) for pair in zip(matchers, answers, strict=True)] == [None] * len(matchers)
    assert any(matcher._has_own_lexer for matcher in matchers), "this has tried what it is about"
    assert grammar.is_worn and not grammar.renewed().is_worn

    [long] = grammar.matchers(1)
    error = follow(long, tokenize(grammars, random_text(choose, 8000)))
    assert error == f"{GRAMMAR_ERROR}: {explain('too many states')}", "one answer alone fills it: an error of its own"

    monkeypatch.setattr(grammar_matcher, "RENEW_S", 0.0)  # compiling again would hold up other rows
    [late] = grammar.matchers(1)
    assert follow(late, answers[0]) == GRAMMAR_FULL


def test_a_grammar_that_has_served_many_tokens_is_compiled_anew(
    grammars: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = StructuredOutputsParams(regex="[ab]{40}")
    grammar = grammars.start(params).result()
    monkeypatch.setattr(grammar_matcher, "RENEW_TOKENS", 3)
    before = grammar.num_bytes
    [matcher] = grammar.matchers(1)
    assert follow(matcher, tokenize(grammars, "a")) is None and grammars.start(params).result() is grammar
    assert grammar.num_bytes > before, "what it grows to is accounted for"
    grammar.num_tokens = 3
    while (renewed := grammars.start(params).result()) is grammar:
        pass  # it serves until then
    assert renewed.num_tokens == 0 and grammars.start(params).result() is renewed


def test_an_ambiguous_grammar_is_refused_at_the_door(grammars: GrammarCompiler) -> None:
    with pytest.raises(InvalidGrammarError, match="too ambiguous") as caught:
        compiled(grammars, StructuredOutputsParams(grammar=AMBIGUOUS))
    assert "verbose" not in str(caught.value) and "items" not in str(caught.value)


class FakeClock:
    """CPU seconds: every look at it costs `cost_s`."""

    def __init__(self, cost_s: float) -> None:
        self.cost_s, self.now = cost_s, 0.0

    def __call__(self) -> float:
        self.now += self.cost_s
        return self.now


@pytest.mark.parametrize(("cost_s", "num_tokens"), [(ALLOWED_S / 2, 10_000), (ALLOWED_S * 2, 126), (2 * BURST_S, 1)])
def test_a_meter_counts_what_tokens_take_beyond_their_allowance(cost_s: float, num_tokens: int) -> None:
    meter, served = Meter(FakeClock(cost_s)), 0
    while not meter.is_exceeded and served < 10_000:
        with meter:
            pass
        meter.allow_token()
        served += 1
    assert served == pytest.approx(num_tokens, abs=1)


def test_a_slow_grammar_ends_its_own_request_only(config: EngineConfig, model: LoadedModel, grammars: Any) -> None:
    engine = Engine(config, model)
    engine.grammars = grammars
    asked = StructuredOutputsParams(regex="[ab]{12}")
    for name in ("slow", "other"):
        engine.add_request([5], SamplingParams(max_tokens=30, structured_outputs=asked), request_id=name)
    [slow] = [sequence.request for sequence in engine.outputs.groups["slow"].sequences]
    slow.matcher._meter.debt_s = 2 * BURST_S
    outputs = drain(engine)
    assert outputs["slow"].finish_reason is FinishReason.ERROR and slow.error.startswith(GRAMMAR_ERROR)
    assert outputs["other"].finish_reason is FinishReason.STOP


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("parser error: Current row has 30001 items; max is 2000; consider making\n<non-verbose/>", "too ambiguous"),
        ("Too many items (limit 5000; mask); try avoiding single-byte/short lexemes\n<non-verbose/>", "too ambiguous"),
        ("lexer error: too many states: 250000 >= 250000\n<non-verbose/>", "too many states"),
        ("unknown name: x\n<non-verbose/>", "unknown name: x"),
    ],
)
def test_limits_are_explained_in_our_words(theirs: str, ours: str) -> None:
    assert ours in explain(theirs) and "verbose" not in explain(theirs) and "max is" not in explain(theirs)
