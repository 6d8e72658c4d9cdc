"""What one candidate has asked, committed to, believed and said in one round."""

from dataclasses import dataclass, field

from course.rounds.board import Edges, read_edges
from course.rounds.errors import CommitmentError
from course.rounds.prompt import AREAS, COLUMNS, DrawnRound, Pushback, Stage
from course.rounds.typed import is_near, read_amount

SURE = {"0.5": "a guess", "0.7": "probably right", "0.9": "I'm sure"}
"""How sure a candidate is of what they commit to in a stage, as a probability."""
BELIEFS = {
    "0.9": "true, I'm sure",
    "0.7": "probably true",
    "0.5": "can't tell",
    "0.3": "probably false",
    "0.1": "false, I'm sure",
}
"""What a candidate thinks of a statement, as the probability that it's true."""
FALLS = {
    "0.9": "falls, I'm sure",
    "0.7": "probably falls",
    "0.5": "can't tell",
    "0.3": "probably stands",
    "0.1": "stands, I'm sure",
}
"""The same of a decision, after the change of mind."""
QUOTED_WORDS = 8
"""A sentence of one's own that stands for a level has at least so many words."""


@dataclass
class RoundSitting:
    """One candidate in one round, as far as it has come."""

    drawn: DrawnRound
    asked: list[str] = field(default_factory=list)
    """Facts, in the order in which they were asked for."""
    commits: dict[str, str] = field(default_factory=dict)
    """By "stage.key": a number as typed, or an option."""
    sure: dict[str, float] = field(default_factory=dict)
    """By stage: the probability that its commitments are right."""
    edges: Edges = ()
    replies: dict[str, list[str]] = field(default_factory=dict)
    """By stage: the reply to its pushback, and the one to the follow-up."""
    pushed: dict[str, Pushback] = field(default_factory=dict)
    """By stage: what the interviewer asked back."""
    beliefs: dict[str, float] = field(default_factory=dict)
    """By "stage.place": the probability that a shown statement is true, or that a decision falls."""
    said: dict[str, str] = field(default_factory=dict)
    """By stage, in the candidate's own words."""
    own: dict[str, tuple[str, str]] = field(default_factory=dict)
    """By area: the column that the candidate sees their argument in, and a sentence for it."""
    seconds: float | None = None

    @property
    def questions_left(self) -> int:
        return self.drawn.round.questions - len(self.asked)

    def ask(self, key: str) -> str:
        """The interviewer's answer.

        Raises:
            CommitmentError: there is no such question, or no time for another.
        """
        if key not in {fact.key for fact in self.drawn.round.facts}:
            raise CommitmentError(f"there is no question {key!r}")
        if key not in self.asked:
            if self.questions_left < 1:
                raise CommitmentError("there's no time for another question: go on with what you know")
            self.asked.append(key)
        return self.drawn.fill(self.drawn.fact(key).says)

    def check_number(self, stage: str, key: str, typed: str) -> None:
        """Raises CommitmentError unless it can be read as the number that is asked for."""
        number = next(each for each in self.drawn.stage(stage).numbers if each.key == key)
        read_amount(typed, self.drawn.asked(number).unit, self.drawn.fill(number.asks))

    def draw_board(self, typed: str) -> None:
        """Raises CommitmentError if it can't be read."""
        self.edges = read_edges(typed, [each.key for each in self.drawn.round.components])

    def is_right(self, stage: Stage, key: str) -> bool | None:
        """Whether a number or choice is right; None = nothing was committed."""
        committed = self.commits.get(f"{stage.key}.{key}", "")
        if not committed:
            return None
        for number in stage.numbers:
            if number.key == key:
                amount = self.drawn.asked(number)
                return is_near(read_amount(committed, amount.unit), amount)
        return self.drawn.is_right(next(each for each in stage.choices if each.key == key), committed)

    def pushback(self, stage: Stage) -> Pushback | None:
        """The first whose condition is met by what was committed so far."""
        broken = {rule.key for rule in self.drawn.broken(self.edges)}
        for each in stage.pushbacks:
            chosen_of, _, option = each.if_chose.partition("=")
            if each.if_wrong:
                is_met = self.is_right(stage, each.if_wrong) is not True
            elif each.if_chose:
                is_met = self.commits.get(f"{stage.key}.{chosen_of}") == option
            elif each.if_broken:
                is_met = each.if_broken in broken
            else:
                is_met = not each.if_unasked or each.if_unasked not in self.asked
            if is_met:
                return each
        return None

    def grade(self, area: str, column: str, quote: str) -> None:
        """Put one's own argument into a column, with a sentence from that stage that shows it.

        Raises:
            CommitmentError: no such column, or the quote is too short, isn't there, or stands for another area.
        """
        if area not in AREAS or column not in COLUMNS:
            raise CommitmentError(f"no column {column!r} of {area!r}: choose from {', '.join(COLUMNS)}")
        self.own[area] = (column, self.quoted(area, quote))

    def quoted(self, area: str, quote: str) -> str:
        """The quote with single spaces. Raises CommitmentError, as `grade` does."""
        words = " ".join(quote.split())
        if len(words.split()) < QUOTED_WORDS or words not in " ".join(self.said.get(area, "").split()):
            raise CommitmentError(f"quote at least {QUOTED_WORDS} words in a row of what you said in this stage")
        if any(words == other for name, (_, other) in self.own.items() if name != area):
            raise CommitmentError("this sentence stands for another area already: quote another")
        return words
