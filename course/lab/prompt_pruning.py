"""Prompt compression by relevance: of a long context, keep the sentences that bear on the question. LOSSY.

A prompt's cost is its tokens, and of a retrieved document most sentences have nothing to do with what is asked. Which
ones do is scored by words shared with the question, rare words more (BM25, Robertson & Zaragoza 2009). That needs no
model and takes microseconds; what it cannot see is a paraphrase without a word in common. The answer to "What colour
is the key?" may begin with "It", so half of a sentence's score is passed on to the next one.

Prune before the engine sees the prompt. A shared prefix that is pruned differently for each question is no shared
prefix any more: where prefix caching would have hit, pruning may cost time.
"""

import math
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from minillm.core.errors import ConfigError

SATURATION, LENGTH_NORM = 1.5, 0.75
"""BM25's k1 and b, at their usual values."""
PASSED_ON = 0.5
SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n{2,}")


@dataclass(frozen=True, slots=True)
class Pruned:
    """What is left of a context."""

    text: str
    kept: list[int]
    """Which of the sentences, in order."""
    num_tokens: int


def prune_context(context: str, question: str, keep: float, count_tokens: Callable[[str], int] | None = None) -> Pruned:
    """The sentences that are most relevant to the question, in the order of the text.

    Args:
        keep: most of the context's tokens to keep, as a share of 1. At least one sentence is kept.
        count_tokens: None = words.
    Raises:
        ConfigError: `keep` is not a share.
    """
    if not 0 < keep <= 1:
        raise ConfigError(f"keep is the share of tokens that may stay, above 0 and at most 1; got {keep}")
    count = count_tokens or (lambda text: len(text.split()))
    sentences = split_sentences(context)
    sizes = [count(sentence) for sentence in sentences]
    scores = relevance(sentences, question)
    budget, kept = keep * sum(sizes), set[int]()
    # Equally relevant ones: the earlier first, as texts say first what matters.
    for i in sorted(range(len(sentences)), key=lambda i: (-scores[i], i)):
        if not kept or sizes[i] <= budget:
            kept.add(i)
            budget -= sizes[i]
    order = sorted(kept)
    text = context if len(order) == len(sentences) else " ".join(sentences[i] for i in order)
    return Pruned(text, order, sum(sizes[i] for i in order))


def split_sentences(text: str) -> list[str]:
    """Sentences: text cut at full stops, question and exclamation marks, and at blank lines."""
    return [part.strip() for part in SENTENCE_END.split(text) if part.strip()]


def relevance(sentences: list[str], question: str) -> list[float]:
    """A score for each sentence, in the order of the text."""
    documents = [Counter(words_of(sentence)) for sentence in sentences]
    mean_length = sum(document.total() for document in documents) / max(len(documents), 1)
    wanted = set(words_of(question))
    scores = [bm25(document, documents, wanted, mean_length) for document in documents]
    passed_on = [0.0, *(PASSED_ON * score for score in scores[:-1])]
    return [own + from_before for own, from_before in zip(scores, passed_on)]


def bm25(document: Counter[str], documents: list[Counter[str]], wanted: set[str], mean_length: float) -> float:
    """How well one document answers to the wanted words: often in it, seldom in others, and it is not long."""
    score = 0.0
    norm = SATURATION * (1 - LENGTH_NORM + LENGTH_NORM * document.total() / max(mean_length, 1e-9))
    for word in wanted & document.keys():
        containing = sum(word in other for other in documents)
        rarity = math.log(1 + (len(documents) - containing + 0.5) / (containing + 0.5))
        score += rarity * document[word] * (SATURATION + 1) / (document[word] + norm)
    return score


def words_of(text: str) -> list[str]:
    """Words in lower case, cut to a crude stem: `painted` and `paint`, `trees` and `tree` are one."""
    return [stem(word) for word in re.findall(r"\w+", text.lower())]


def stem(word: str) -> str:
    """A word without its English ending, roughly: `houses` and `house` are both `hous`."""
    for ending in ("ing", "ed", "es", "s", "e"):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            return word[: -len(ending)]
    return word
