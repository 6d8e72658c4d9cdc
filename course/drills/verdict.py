"""The verdict: a level and why, two sentences that helped, two that hurt, and a paragraph to write again.

The prose itself isn't judged. A sentence is shown where it speaks of what was judged: of a number, a commitment, or a
statement that was right or wrong.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from course.drills.amounts import Amount
from course.drills.checks import CheckedItem, share
from course.drills.drill import BARS, DrawnDrill
from course.drills.stated import label
from course.drills.statements import JudgedStatement, score

BORNE = 0.25
"""By so much the commitments may stand above what the statements bear out, if all of them were answered: menus can be
guessed."""
STATEMENTS_WEIGH = 2 / 3
"""Share of understanding that statements make; the rest is what would change the candidate's mind."""
LEAST = {"mid": 0.2, "senior": 0.5, "staff": 0.8}
"""The standing from which a level is reached."""
SHOWN = 2
"""Sentences of either kind."""
MOST_WORDS = 2 / 3
"""Share of a label's words that a sentence has if it speaks of that matter."""
REASONS = 2
_SMALL_WORDS = frozenset(("more", "than", "that", "with", "from", "each", "other", "into", "them", "behind", "your"))


@dataclass(frozen=True)
class AnswersCompared:
    """How two answers to one drill compare. Not shown as a total: it mixes what can't be added."""

    answer: float
    """0 to 1: what was committed to."""
    understanding: float | None
    """-2 to 1: statements, and what would change one's mind; None where the drill has neither."""
    answered: float = 1.0
    """Share of the statements that were answered; a guess is no answer."""

    @property
    def value(self) -> float:
        """The mean of the two, where the first counts at most BORNE above the second; less, where statements were left
        open: who says nothing of the case bears nothing out."""
        if self.understanding is None:
            return self.answer
        return (min(self.answer, self.understanding + BORNE * self.answered) + self.understanding) / 2

    @property
    def level(self) -> str:
        """One of BARS; empty below all of them, and where there were no statements: menus can be guessed."""
        if self.understanding is None:
            return ""
        return next((level for level in reversed(BARS) if self.value >= LEAST[level]), "")


@dataclass(frozen=True)
class Pointed:
    """A sentence of the answer, and why it is pointed at."""

    sentence: str
    why: str


@dataclass(frozen=True)
class Verdict:
    """What the debrief begins with."""

    standing: AnswersCompared
    says: str
    helped: tuple[Pointed, ...]
    hurt: tuple[Pointed, ...]
    """To be looked at again: what has the wrong number, or speaks of a matter on which something was wrong."""
    again: str
    """The paragraph to write again."""
    with_this: str
    """What it should say then."""


def standing(found: Sequence[CheckedItem], statements: Sequence[JudgedStatement]) -> AnswersCompared:
    """From what was committed to, and from the answers to the statements on the table."""
    answer = share([each for each in found if each.key != "mind"])
    if not statements:
        return AnswersCompared(answer, None)
    mind = sum(each.points / each.most for each in found if each.key == "mind")
    known, open_ = score(statements), [each for each in statements if each.is_open]
    # what would change one's mind is chosen from menus, too: it counts as far as the statements bear it out
    understanding = STATEMENTS_WEIGH * known + (1 - STATEMENTS_WEIGH) * min(mind, max(known, 0.0))
    return AnswersCompared(answer, understanding, 1 - len(open_) / len(statements))


def verdict(
    drill: DrawnDrill,
    text: str,
    found: Sequence[CheckedItem],
    statements: Sequence[JudgedStatement],
    ticks: dict[int, str],
) -> Verdict:
    """What a panel would write down, as far as it can be computed.

    Args:
        ticks: facts that a strong answer says, by number from 1, with the learner's words for them.
    """
    reached = standing(found, statements)
    said = sentences(text)
    hurt = _distinct(_hurting(said, found, statements), ())
    helped = _distinct(_helping(drill, said, statements, ticks), hurt)
    unsaid = [fact for number, fact in enumerate(drill.rubric.must_say, 1) if number not in ticks]
    unsaid.sort(key=lambda fact: _figures_said(fact, text))
    again = next((part for part in paragraphs(text) if hurt and hurt[0].sentence in _flat(part)), "")
    if not again and text.strip():
        again = min(paragraphs(text), key=lambda part: sum(each.sentence in _flat(part) for each in helped))
    return Verdict(reached, _in_words(reached, found, statements), helped, hurt, again, unsaid[0] if unsaid else "")


def _in_words(reached: AnswersCompared, found: Sequence[CheckedItem], statements: Sequence[JudgedStatement]) -> str:
    if not statements:
        return "No verdict: this drill has no statements, and what was committed to can be guessed."
    reasons = " and ".join(_reasons(found, statements))
    reasons = reasons and f"You lost most {reasons}."
    level, above = reached.level, next((each for each in BARS if LEAST[each] > reached.value), "")
    if not level:
        return f"No hire yet. {reasons or 'Nothing is wrong, and little is sure.'}"
    if not above:
        return f"Hire at {level}. {reasons or 'Nothing that was checked speaks against it.'}"
    return f"Hire at {level}, not at {above}. {reasons or 'Little is wrong, and little is sure.'}"


def _reasons(found: Sequence[CheckedItem], statements: Sequence[JudgedStatement]) -> list[str]:
    """What cost most, the largest first, each as in "You lost most on the number"."""
    lost = [
        ((each.most - each.points) / each.most, f"on {_NAMES[each.key]} ({_inside(each.cost or each.says)})")
        for each in found
    ]
    wrong = [each for each in statements if each.is_wrong and not each.is_disputed]
    open_ = [each for each in statements if each.is_open]
    if wrong:
        sure = sum(each.answer is not None and each.answer.sure >= 80 for each in wrong)
        told = "which you got wrong"
        if sure:
            told += ", with confidence" if sure == len(wrong) else f", {sure} of them with confidence"
        lost.append(
            (-sum(each.points for each in wrong) / 2, f"on {len(wrong)} of {len(statements)} statements ({told})")
        )
    if open_:
        told = f"on {len(open_)} of {len(statements)} statements (which you left open)"
        lost.append((len(open_) / len(statements), told))
    lost.sort(key=lambda each: -each[0])
    return [says for cost, says in lost if cost >= 0.25][:REASONS]


def _inside(sentence: str) -> str:
    """What was told, as it stands inside of a sentence; "KV memory" stays as it is."""
    sentence = sentence.replace(". It's ", "; it's ")
    first = sentence[:1] if sentence[1:2].isupper() else sentence[:1].lower()
    return first + sentence[1:].rstrip(".")


_NAMES = {
    "dominant": "what dominates",
    "second": "the second problem",
    "number": "the number",
    "fixes": "the ranking of fixes",
    "mind": "what would change your mind",
}


# ---------------------------------------------------------------- sentences


def sentences(text: str) -> list[str]:
    """The sentences of a text, each on one line."""
    return [_flat(part) for part in re.split(r"(?<=[.!?])[\"')”]*\s+|\n", text) if part.strip()]


def paragraphs(text: str) -> list[str]:
    """Parts that blank lines divide."""
    return [part.strip() for part in re.split(r"\n\s*\n", text) if part.strip()]


def _flat(text: str) -> str:
    return " ".join(text.split())


def _figures(text: str) -> set[str]:
    """Its numbers as they are written, without commas."""
    return {figure.replace(",", "") for figure in re.findall(r"(?<![\w.])\d[\d,]*(?:\.\d+)?", text)}


def _figures_said(fact: str, text: str) -> float:
    """The share of a fact's figures that stand in a text; half, where it has none to go by."""
    figures = _figures(fact)
    return len(figures & _figures(text)) / len(figures) if figures else 0.5


def _helping(
    drill: DrawnDrill, said: Sequence[str], statements: Sequence[JudgedStatement], ticks: dict[int, str]
) -> Iterator[Pointed]:
    """Numbers of its own first, then what the learner ticked, then what speaks of something that was right."""
    for sentence in said:
        if (right := _own_number(drill, sentence)) is not None:
            yield Pointed(sentence, f"{right} is right, and isn't in the prompt.")
    for number, quote in ticks.items():
        yield Pointed(quote, f"You say that it says: {drill.rubric.must_say[number - 1]}")
    right = [each for each in statements if each.is_right and score(statements) > 0]
    for judged in sorted(right, key=lambda each: -each.points):
        if sentence := _speaks_of(label(judged.claim.about), said):
            why = f"It speaks of {label(judged.claim.about)}: you knew that “{judged.claim.says}” is {_truth(judged)}."
            yield Pointed(sentence, why)


def _hurting(
    said: Sequence[str], found: Sequence[CheckedItem], statements: Sequence[JudgedStatement]
) -> Iterator[Pointed]:
    """What carries the wrong number first. Then what speaks of a matter on which a statement or a commitment was
    wrong: the sentence itself may be right, so it's only to be looked at again.
    """
    for each in found:
        if each.key == "number" and not each.points and (figure := re.match(r"\D*([\d.,]*\d)", each.says)):
            wrong = figure[1].replace(",", "")
            yield from (Pointed(sentence, each.says) for sentence in said if wrong in _figures(sentence))
    for judged in sorted((each for each in statements if each.is_wrong), key=lambda each: each.points):
        if sentence := _speaks_of(label(judged.claim.about), said):
            why = f"It speaks of {label(judged.claim.about)}, and there you took “{judged.claim.says}” for "
            why += f"{'false' if judged.claim.is_true else 'true'}: {judged.claim.because}"
            yield Pointed(sentence, why)
    for each in found:
        if each.about and (sentence := _speaks_of(label(each.about), said)):
            yield Pointed(sentence, each.says)


def _truth(judged: JudgedStatement) -> str:
    return "true" if judged.claim.is_true else "false"


def _distinct(pointed: Iterator[Pointed], others: Sequence[Pointed]) -> tuple[Pointed, ...]:
    """The first few that are no sentence twice, and none of the others."""
    kept: dict[str, Pointed] = {}
    for each in pointed:
        if each.sentence not in kept and all(each.sentence != other.sentence for other in others):
            kept[each.sentence] = each
        if len(kept) == SHOWN:
            break
    return tuple(kept.values())


def _speaks_of(name: str, said: Sequence[str]) -> str:
    """The sentence with the most words of a label, by their first letters; empty if none has most of them."""
    stems = {word[:6] for word in re.findall(r"[a-z]{4,}", name.lower()) if word not in _SMALL_WORDS}
    counts = [(sum(stem in sentence.lower() for stem in stems), sentence) for sentence in said]
    best = max(counts, key=lambda each: each[0], default=(0, ""))
    return best[1] if stems and best[0] >= MOST_WORDS * len(stems) else ""


def _own_number(drill: DrawnDrill, sentence: str) -> Amount | None:
    """A derived number that a sentence has as it is shown, two digits of it or more, and that the prompt lacks."""
    figures = _figures(sentence)
    given = {f"{each:n}".replace(",", "") for each in drill.numbers.given.values()}
    for amount in drill.numbers.derived.values():
        shown = f"{amount:n}".replace(",", "")
        if shown in figures - given and len(shown.replace(".", "")) >= 2:
            return amount
    return None
