"""An answer as rules see it: sentences, the concepts in each, what is denied, the numbers, and which are right."""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from course.lab.drills.amounts import COUNT, Amount, Sum, Written, amounts_in, sums_in
from course.lab.drills.words import HIDES, TOPICS, concepts, grammar

LONGEST = 20_000
"""Characters that are read; no answer in a drill is longer."""
LONGEST_SENTENCE = 800
"""Characters."""
REACH = 7
"""Words that a "not" reaches."""
SHORT_REACH = 3
"""Words that a "without" reaches: its object, not the clause."""
_OF_AN_OBJECT = ("without", "than", "against", "instead of")

_PUNCTUATION = re.compile(r"[,;:()—–]|\.\s")
_SENTENCE_END = re.compile(r"(?<=[.!?])[\"')*]*\s+(?=[\"'(*]*[A-Z0-9$])|(?<=[a-z]{4}[.!?])\s+(?=[a-z])")
_BULLET = re.compile(r"^\s*(?:[-*•]|\(?\d{1,2}[.)]|#+)\s+")
_ASKS = re.compile(r"^(?:is|are|does)\b")
_WORD = re.compile(r"[\w'%$/.-]+")
LONG = 60
"""Words after which a sentence gets no credit for being longer."""
ENDLESS = 90
"""Words without a full stop: that is no longer a sentence."""
CROWDED = 0.75
"""Share of a sentence's words that may be keywords; more, and it is a list."""


@dataclass(frozen=True)
class Mention:
    """One concept at one place."""

    concept: str
    start: int
    end: int
    denied: bool


@dataclass(frozen=True)
class Numbers:
    """What a drill's prompt gives, and what follows from that."""

    given: Mapping[str, Amount]
    derived: Mapping[str, Amount]
    tempting: Mapping[str, Amount] = field(default_factory=dict)
    """What a popular wrong formula gives: shown in texts, credited nowhere."""


@dataclass(frozen=True)
class Sentence:
    """One sentence, or one line of a list."""

    words: str
    """As it was written, without Markdown."""
    paragraph: int
    listed: bool
    """It began with a bullet or a number."""
    numbers: Numbers

    @cached_property
    def low(self) -> str:
        return self.words.lower().replace("’", "'").replace("‑", "-")

    @cached_property
    def mentions(self) -> tuple[Mention, ...]:
        found = [
            Mention(name, *match.span(), denied=self._denied(*match.span()))
            for name, pattern in concepts().items()
            for match in pattern.finditer(self.low)
        ]
        strong = [m for m in found if m.concept in HIDES]
        return tuple(
            m
            for m in found
            if not any(m.concept in HIDES[s.concept] and m.start < s.end and s.start < m.end for s in strong)
        )

    @cached_property
    def concepts(self) -> frozenset[str]:
        """Mentioned, and not denied."""
        return frozenset(m.concept for m in self.mentions if not m.denied)

    @cached_property
    def denied(self) -> frozenset[str]:
        return frozenset(m.concept for m in self.mentions if m.denied)

    @cached_property
    def amounts(self) -> list[Written]:
        return amounts_in(self.low)

    @cached_property
    def sums(self) -> list[Sum]:
        """Calculations written out."""
        return list(sums_in(self.low, self.amounts))

    @cached_property
    def given(self) -> frozenset[str]:
        """The prompt's numbers that it repeats."""
        return frozenset(n for n, a in self.numbers.given.items() if any(w.is_about(a, 0.01) for w in self.amounts))

    @cached_property
    def derivations(self) -> list[tuple[str, Written]]:
        """Numbers that follow from the prompt's, and are right: which one, and where it stands."""
        given = self.numbers.given.values()
        own = [w for w in self.amounts if not any(w.unit == a.unit and w.is_about(a, 0.01) for a in given)]
        return [
            (name, w)
            for name, a in self.numbers.derived.items()
            for w in own
            if w.is_about(a) and (w.unit != COUNT or a.unit == COUNT or w.may_lack_its_unit)
        ]

    @cached_property
    def derived(self) -> frozenset[str]:
        return frozenset(name for name, _ in self.derivations)

    @cached_property
    def tempting(self) -> frozenset[str]:
        """Numbers that a popular wrong formula gives."""
        tempting = self.numbers.tempting.items()
        return frozenset(n for n, a in tempting if any(w.is_about(a, 0.01) for w in self.amounts))

    @cached_property
    def is_question(self) -> bool:
        if self.words.rstrip("\"') ").endswith("?"):
            return True
        return bool(_ASKS.search(self.low) or grammar("question").search(self.low))

    @cached_property
    def topics(self) -> frozenset[str]:
        return frozenset(m.concept for m in self.mentions if m.concept in TOPICS)

    @cached_property
    def is_stuffed(self) -> bool:
        """Keywords in a row, and no claim that connects them."""
        words = [match.start() for match in _WORD.finditer(self.low)]
        spans = {place for m in self.mentions if m.concept in TOPICS for place in range(m.start, m.end)}
        share = sum(place in spans for place in words) / max(len(words), 1)
        if len(self.topics) < 5:
            return False
        argues = self.concepts & {"effect", "order", "depend", "because"} and len(self.topics) < 7
        says_something = grammar("verb").search(self.low) or self.sums or argues
        if len(words) > ENDLESS:
            return True
        return not says_something or share > CROWDED or len(self.topics) > 6 + min(len(words), LONG) / 6

    @cached_property
    def is_claim(self) -> bool:
        """Says something: a verb or a calculation, in more than three words; not a list of keywords."""
        enough = len(self.low.split()) > 3
        ranks = self.concepts & {"effect", "order", "depend"} and self.topics
        says = grammar("verb").search(self.low) or self.sums or ranks or self.is_question
        return enough and bool(says) and not self.is_stuffed

    @cached_property
    def skeleton(self) -> str:
        """Without its topics and numbers: what is left when a template is filled in again and again."""
        left = list(self.low)
        for m in self.mentions:
            if m.concept in TOPICS:
                left[m.start : m.end] = "#" * (m.end - m.start)
        return re.sub(r"[#\d.,%$]+(?:\s*[#\d.,%$]+)*", "#", "".join(left)).strip()

    def _denied(self, start: int, end: int) -> bool:
        """Whether a negation of the same clause reaches this place, from before or from after."""
        borders = (_PUNCTUATION, grammar("new_clause"))
        begin = max((m.end() for border in borders for m in border.finditer(self.low, 0, start)), default=0)
        following = [m.start() for border in borders if (m := border.search(self.low, end))]
        stop = min(following, default=len(self.low))
        before, after = self.low[begin:start], self.low[end:stop]
        if grammar("denies_nothing").search(self.low[begin:stop]):
            return False
        for negation in grammar("denies_what_follows").finditer(before):
            reach = SHORT_REACH if negation.group().endswith(_OF_AN_OBJECT) else REACH
            if len(before[negation.end() :].split()) < reach:
                return True
        denial = grammar("denies_what_precedes").search(after)
        return denial is not None and len(after[: denial.start()].split()) < 4


@dataclass(frozen=True)
class Reading:
    """A whole answer."""

    text: str
    sentences: tuple[Sentence, ...]

    @cached_property
    def claims(self) -> list[Sentence]:
        """What rules look at: sentences that claim something, each once."""
        empty = set(self.stuffing)
        return list({s.low: s for s in self.sentences if s.is_claim and s.words not in empty}.values())

    @property
    def num_words(self) -> int:
        return len(self.text.split())

    @cached_property
    def stuffing(self) -> list[str]:
        """Sentences that only look like an answer: keywords in a row, and templates filled in again and again."""
        listed = [s.words for s in self.sentences if s.is_stuffed]
        shapes = Counter(s.skeleton for s in self.sentences if s.topics and len(s.low.split()) > 3)
        repeated = [s.words for s in self.sentences if shapes[s.skeleton] >= 3]
        return list(dict.fromkeys(listed + repeated))

    @cached_property
    def is_stuffed(self) -> bool:
        """More than a quarter of it is stuffing, or it is the same few sentences over and over."""
        bulk = sum(len(s.words.split()) for s in self.sentences if s.words in set(self.stuffing))
        distinct = len({s.low for s in self.sentences})
        return bulk > 0.25 * max(self.num_words, 1) or distinct < 0.7 * len(self.sentences)

    @cached_property
    def wrong_sums(self) -> list[Sum]:
        return [each for sentence in self.sentences for each in sentence.sums if not each.holds]


def read(text: str, numbers: Numbers, prompt: str = "") -> Reading:
    """Read an answer, but for what it copies from the prompt. Anything can be read: empty, garbage, any language."""
    text, copied = text[:LONGEST], _bare(prompt)
    sentences = []
    for number, paragraph in enumerate(re.split(r"\n\s*\n", text)):
        for line in _lines(paragraph):
            listed = _BULLET.match(line) is not None
            clean = re.sub(r"(?<!\w)[*_`]{1,3}(?=\S)|(?<=\S)[*_`]{1,3}(?!\w)", "", _BULLET.sub("", line)).strip(" >|")
            clean = re.sub(r"\be\.g\.", "e.g.,", re.sub(r"\bvs\.", "vs", clean))
            for place, words in enumerate(_pieces(clean)):
                if words.strip() and not (len(words) > 20 and _bare(words) in copied):
                    sentences.append(Sentence(words.strip(), number, listed and place == 0, numbers))
    return Reading(text, tuple(sentences))


def _bare(text: str) -> str:
    return re.sub(r"\W+", " ", text.lower())


def _pieces(line: str) -> list[str]:
    """Sentences; one without an end is cut, so that garbage takes no longer to read than an answer."""
    sentences = _SENTENCE_END.split(line)
    return [s[i : i + LONGEST_SENTENCE] for s in sentences for i in range(0, len(s), LONGEST_SENTENCE)]


def _lines(paragraph: str) -> list[str]:
    """Lines of a list stand alone; lines of running text are joined, since they are only wrapped."""
    joined: list[str] = []
    for line in paragraph.splitlines():
        if joined and line.strip() and not _BULLET.match(line) and not joined[-1].startswith("#"):
            joined[-1] += " " + line.strip()
        else:
            joined.append(line)
    return joined
