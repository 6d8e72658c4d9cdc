"""From an answer to points, dimension by dimension. Every point has a quote that earned it, every loss a reason."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from course.lab.drills.drill import DIMENSIONS, LEVELS, DrawnDrill, Rules, Trap
from course.lab.drills.patterns import Pattern, find
from course.lab.drills.reading import Reading, Sentence
from course.lab.drills.words import TECHNIQUES

REACHED = (0.3, 0.6, 0.83)
"""Points of a dimension at which passing, strong and staff begin."""
CROWD = 10
"""More techniques than this in one answer are a list, not a ranking."""
LONG = 220
"""Words after which an answer should have done some arithmetic."""
WORDS_A_MINUTE = 60
"""Faster than that, and the words aren't chosen any more."""


def level_of(points: float) -> str:
    return LEVELS[sum(points >= threshold - 1e-9 for threshold in REACHED)]


@dataclass(frozen=True)
class Evidence:
    """The learner's own words, and what they earned or cost."""

    points: float
    sign: str
    quote: str


@dataclass
class Dimension:
    """One dimension of the rubric, being scored. Points run from 0 to 1."""

    key: str
    evidence: list[Evidence] = field(default_factory=list)
    advice: list[str] = field(default_factory=list)
    cap: float = 1.0

    @property
    def name(self) -> str:
        return DIMENSIONS[self.key]

    @property
    def points(self) -> float:
        return min(max(sum(each.points for each in self.evidence), 0.0), self.cap)

    @property
    def level(self) -> str:
        return level_of(self.points)

    def sign(self, points: float, quotes: Sequence[str], sign: str, advice: str) -> bool:
        """Credit for what is there, or advice for what is not."""
        if quotes:
            self.evidence.append(Evidence(points, sign, quotes[0]))
        elif advice:
            self.advice.append(advice)
        return bool(quotes)

    def lose(self, points: float, quote: str, why: str) -> None:
        self.evidence.append(Evidence(-points, why, quote))
        self.advice.insert(0, why)


def score(drill: DrawnDrill, reading: Reading) -> list[Dimension]:
    """All dimensions that the drill's rubric asks for, in order."""
    scorers: dict[str, Callable[[DrawnDrill, Reading, Dimension], None]] = {
        "diagnosis": _diagnosis,
        "secondary": _secondary,
        "interventions": _interventions,
        "evidence": _evidence,
        "questions": _questions,
        "operations": _operations,
        "communication": _communication,
    }
    scored = []
    for key, scorer in scorers.items():
        if key == "secondary" and not drill.rubric.secondary:
            continue
        dimension = Dimension(key)
        scorer(drill, reading, dimension)
        hint = drill.rubric.hints.get(key)
        if hint and dimension.level != "staff":
            dimension.advice.insert(0, hint)
        scored.append(dimension)
    return scored


def slips(reading: Reading) -> list[tuple[str, str]]:
    """(quote, right statement) of each popular error in the answer."""
    return [
        (window[0].words, slip.right)
        for slip in Rules.read().slips
        for window in Pattern(slip.rule).places(reading)
        if not Pattern(slip.unless).matches(window) and not window[0].is_question
    ]


def _diagnosis(drill: DrawnDrill, reading: Reading, d: Dimension) -> None:
    rubric = drill.rubric
    named = find(rubric.diagnosis, reading)
    d.sign(0.4, named, "names what is the matter", "Say in one sentence what it is that dominates, by phase.")
    why = find(rubric.mechanism, reading)
    d.sign(0.35, why, "says why, or by which number", "Say why: the mechanism, or the number that points there.")
    apart = find(rubric.apart, reading)
    d.sign(0.25, apart, "tells explanations apart", "Name the other explanation, and what would tell the two apart.")
    for quote, right in slips(reading):
        d.lose(0.2, quote, right)


def _secondary(drill: DrawnDrill, reading: Reading, d: Dimension) -> None:
    found = find(drill.rubric.secondary, reading)
    d.sign(0.5, found, "names a second problem", "Name a second problem; there is one beside the first.")
    why = find(drill.rubric.secondary_why, reading)
    d.sign(0.5, why, "connects it to a cause", "Connect the second problem to a likely cause, or to a number.")


def _interventions(drill: DrawnDrill, reading: Reading, d: Dimension) -> None:
    moves = drill.rubric.moves
    proposals = [s for s in reading.claims if moves.keys() & s.concepts and not (s.is_question and "?" in s.words)]
    proposed = {name: next(s for s in proposals if name in s.concepts) for name in moves if _in_any(name, proposals)}
    tagged = {n: s for n, s in proposed.items() if any(_is_tagged(each, n, moves[n]) for each in proposals)}
    sized = {n: s for n in proposed for s in proposals if n in s.concepts and _has_effect(s)}
    each = list(proposed.values())
    d.sign(0.15, _quote(each, 0), "proposes something that works here", "Propose what acts on the phase that is slow.")
    d.sign(0.15, _quote(each, 1), "and a second thing", "One proposal is no ranking: name two or three.")
    d.sign(0.15, _quote(tagged.values(), 0), "says which phase it acts on", "Tag each proposal with its phase.")
    d.sign(0.1, _quote(tagged.values(), 1), "of a second one, too", "Tag each proposal with what it acts on.")
    d.sign(0.15, _quote(sized.values(), 0), "says what it will do", "Say of each what it should change, and how much.")
    ordered = [s for s in proposals if "order" in s.concepts or s.listed]
    d.sign(0.1, _quote(ordered, 0), "puts it in an order", "Rank: first, second, third.")
    dependent = [s for s in proposals if "depend" in s.concepts] or [
        s for s in reading.claims if {"depend", "order"} <= s.concepts and s.topics
    ]
    words = "Say what the next step depends on: 'if TTFT is still high after that, then ...'."
    d.sign(0.2, _quote(dependent, 0), "says what it depends on", words)
    for trap in (*drill.rubric.traps, *Rules.read().traps):
        _spring(trap, reading, d)
    named = techniques(reading)
    if len(named) > CROWD:
        d.cap = 0.5
        d.advice.insert(0, f"You name {len(named)} techniques. Choose three: a list is not a ranking.")


def techniques(reading: Reading) -> set[str]:
    """All that are named and not denied, in claims or outside of them."""
    return {name for sentence in reading.sentences for name in sentence.concepts & TECHNIQUES}


def _in_any(name: str, sentences: Sequence[Sentence]) -> bool:
    return any(name in sentence.concepts for sentence in sentences)


def _is_tagged(sentence: Sentence, move: str, tags: str) -> bool:
    """The phase or quantity that a move acts on is named beside it."""
    names = set(tags.split("|")) - {move}
    return move in sentence.concepts and bool(names & (sentence.concepts | sentence.denied))


def _has_effect(sentence: Sentence) -> bool:
    """It says what will change: an effect, on something or by some number."""
    return "effect" in sentence.concepts and (bool(sentence.amounts) or len(sentence.topics) > 1)


def _quote(sentences: object, place: int) -> list[str]:
    """The words of one of the sentences, if there are so many."""
    listed = [sentence.words for sentence in sentences]  # type: ignore[attr-defined]
    return listed[place : place + 1]


def _spring(trap: Trap, reading: Reading, d: Dimension) -> None:
    """A proposal that lacks what would make it right costs points, once."""
    claims = reading.claims
    pattern = Pattern(trap.rule)
    for place, sentence in enumerate(claims):
        if not pattern.matches([sentence]) or ("?" in sentence.words and sentence.is_question):
            continue
        around = claims[max(place - 1, 0) : place + 2]
        if not any(Pattern(rule).matches(around) for rule in trap.unless):
            d.lose(trap.price, sentence.words, trap.advice)
            return


def _evidence(drill: DrawnDrill, reading: Reading, d: Dimension) -> None:
    used = [s.words for s in reading.claims if s.given and s.topics and {"because", "trouble", "depend"} & s.concepts]
    d.sign(0.2, used, "reasons with the prompt's numbers", "Use the prompt's numbers in your reasons.")
    seen = _distinct(reading)
    own = [s for s in reading.claims if s.given and not s.tempting and any(each.holds for each in s.sums)]
    right = [*seen, *(s for s in own if s not in seen)]
    advice = "Do the arithmetic: multiply or divide two of the prompt's numbers, and say what the result means."
    d.sign(0.35, _quote(right, 0), "derives a number, and it is right", advice)
    d.sign(0.2, _quote(right, 1), "derives another", "A second derived number would settle it.")
    d.sign(0.1, _quote(right, 2), "and one more", "")
    if drill.rubric.beyond:
        noticed = find(drill.rubric.beyond, reading)
        words = "Check whether the prompt's numbers can be true together; they rarely all can."
        d.sign(0.3, noticed, "notices what the prompt's own numbers imply", words)
    for wrong in reading.wrong_sums:
        d.lose(0.25, wrong.words, f"'{wrong.words}' does not come out: check the product and the units.")


def _distinct(reading: Reading) -> list[Sentence]:
    """A sentence for each right number: one that fits two quantities is one number, and one quantity counts once."""
    names: set[str] = set()
    values: set[tuple[float, str]] = set()
    found = []
    for sentence in reading.claims:
        for name, written in sentence.derivations if sentence.topics else ():
            value = (float(f"{written.low:.2g}"), written.unit)
            if name not in names and value not in values:
                names.add(name)
                values.add(value)
                found.append(sentence)
    return found


def _questions(drill: DrawnDrill, reading: Reading, d: Dimension) -> None:
    unknowns = set(drill.rubric.unknowns.split("|"))
    asked = _asked(unknowns, reading)
    about = ", ".join(name.replace("_", " ") for name in list(dict.fromkeys(drill.rubric.unknowns.split("|")))[:4])
    d.sign(0.3, _quote(asked, 0), "asks about the right unknown", f"Ask about what is missing: {about}.")
    d.sign(0.2, _quote(asked, 1), "asks about another", "Ask a second question, about another unknown.")
    d.sign(0.1, _quote(asked, 2), "and one more", "")
    words = "Say what each answer decides: 'if it is long, the order of my fixes changes'."
    d.sign(0.4, decides(drill, reading), "says what the answer decides", words)


_PART = re.compile(r"\bor\b|\band\b(?! (?:not|if|then))|[,;:]")


def _asked(unknowns: set[str], reading: Reading) -> list[Sentence]:
    """A sentence for each thing asked about; two nouns in one part of a sentence are one question."""
    parts: list[Sentence] = []
    names: set[str] = set()
    for sentence in (s for s in reading.claims if s.is_question):
        places: dict[int, set[str]] = {}
        for mention in sentence.mentions:
            if mention.concept in unknowns:
                part = len(_PART.findall(sentence.low, 0, mention.start))
                places.setdefault(part, set()).add(mention.concept)
        parts += [sentence] * len(places)
        names.update(*places.values())
    return parts[: len(names)]


def decides(drill: DrawnDrill, reading: Reading) -> list[str]:
    """Questions beside which stands what their answer would change."""
    atoms = "|".join("?" + name for name in drill.rubric.unknowns.split("|"))
    windows = Pattern(f"~ question + decides + {atoms}").places(reading)
    return [s.words for window in windows for s in window if s.is_question]


_TOPICS = {
    "steady": "the steady state",
    "spike": "a spike",
    "cost": "cost",
    "rollback": "a rollout that can be undone",
    "monitor": "what to watch",
    "quality": "quality",
    "fallback": "a fallback",
}


def _operations(drill: DrawnDrill, reading: Reading, d: Dimension) -> None:
    found: dict[str, Sentence] = {}
    for sentence in reading.claims:
        others = sentence.topics - _TOPICS.keys()
        if others or sentence.amounts:
            found |= {name: sentence for name in _TOPICS if name in sentence.concepts and name not in found}
    points = (0.35, 0.3, 0.2, 0.15)
    for (name, sentence), worth in zip(found.items(), points):
        d.sign(worth, [sentence.words], f"speaks of {_TOPICS[name]}", "")
    missing = [words for name, words in _TOPICS.items() if name not in found]
    if d.points < REACHED[-1]:
        d.advice.append(f"Not spoken of: {', '.join(missing)}.")


def _communication(drill: DrawnDrill, reading: Reading, d: Dimension) -> None:
    claims = reading.claims
    d.sign(0.35, _quote(claims, 1), "speaks in whole sentences", "Write sentences that claim something.")
    early = tuple(s.words for s in reading.sentences[:4])
    rules = (*drill.rubric.diagnosis, *drill.rubric.mechanism, "split + ttft|itl")
    leads = [quote for quote in find(rules, reading) if quote.startswith(early)]
    d.sign(0.3, leads, "leads with the finding", "Lead with the finding; reasons after it.")
    marked = [s for s in claims if s.listed or "order" in s.concepts]
    paragraphs = {s.paragraph for s in claims}
    is_structured = len(marked) > 1 or len(paragraphs) > 2
    d.sign(0.2, _quote(claims, 0) if is_structured else [], "has a visible order", "Number what you rank.")
    brief = claims and 25 <= reading.num_words <= WORDS_A_MINUTE * drill.drill.minutes
    d.sign(0.15, _quote(claims, 0) if brief else [], "fits into the time", "Say it in the time that there is.")
    if reading.is_stuffed:
        d.lose(0.6, reading.stuffing[0] if reading.stuffing else "", "Keywords without a claim, or repetition.")
    elif len(reading.stuffing) > 1:
        d.lose(0.2, reading.stuffing[0], "A row of keywords says nothing: connect cause, number and phase.")
    for first, second in contradictions(reading)[:1]:
        d.lose(0.2, f"{first} / {second}", "Two sentences name different main problems: say which one is first.")


def contradictions(reading: Reading) -> list[tuple[str, str]]:
    """Pairs of sentences that each call another phase the bottleneck, without condition or ranking."""
    phases = {"queue", "prefill", "decode", "stream"}
    blames = [
        (s, phases & s.concepts)
        for s in reading.claims
        if {"trouble"} <= s.concepts
        and any(word in s.low for word in ("bottleneck", "dominant", "main problem", "culprit", "dominates"))
        and not {"depend", "secondary", "order", "split"} & s.concepts
        and not s.is_question
    ]
    return [
        (one.words, other.words)
        for i, (one, mine) in enumerate(blames)
        for other, theirs in blames[i + 1 :]
        if len(mine) == len(theirs) == 1 and mine != theirs
    ]
