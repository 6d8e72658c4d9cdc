"""Shorter prompts: cut a text to a share of its tokens, ask the engine about it, count the answers that survive.

The texts and questions are minillm's own reading test (minillm/bench/texts/reading.json).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from course.lab.display import Html, as_table
from course.lab.lab import Lab
from course.lab.lesson_03 import traffic
from course.lab.run import Run, percentile
from course.lab.style import change, seconds
from course.lab.workloads import Arrival, Workload
from minillm.bench.quality import Floors
from minillm.bench.scoring import load_items
from minillm.prompt_pruning import Pruned, prune_context, split_sentences

FLOOR = Floors().tasks_lost
"""The gate, stated before anything is measured: at most so many answers fewer than with the whole text."""
ANSWER_TOKENS = 10
LONGEST_PROMPT = 320
"""Tokens, with room to spare."""
MOST_QUESTIONS, SHORT_QUESTIONS = 18, 6
WHOLE = "whole text"


@dataclass(frozen=True)
class Question:
    """One question about one text; the text holds the answer."""

    text: str
    question: str
    answer: str


Cut = Callable[[str, str, float], str]
"""From a text, a question and the share to keep, to what is left of the text."""


def by_relevance(text: str, question: str, keep: float) -> str:
    """The sentences that share rare words with the question (minillm/prompt_pruning.py)."""
    return prune(text, question, keep).text


def prune(text: str, question: str, keep: float) -> Pruned:
    """What minillm's pruning keeps of a text; lengths in words."""
    return prune_context(text, question, keep)


def first_part(text: str, question: str, keep: float) -> str:
    """The beginning: what a limit on the prompt's length does."""
    return " ".join(_first(split_sentences(text), keep))


def last_part(text: str, question: str, keep: float) -> str:
    """The end: what "keep the last N tokens" does."""
    return " ".join(_first(split_sentences(text)[::-1], keep)[::-1])


CUTS: dict[str, Cut] = {"by relevance": by_relevance, "first part": first_part, "last part": last_part}


def _first(sentences: list[str], keep: float) -> list[str]:
    """As many of them, from the first, as make up that share of the words."""
    budget, kept = keep * sum(len(sentence.split()) for sentence in sentences), []
    for sentence in sentences:
        budget -= len(sentence.split())
        if kept and budget < 0:
            break
        kept.append(sentence)
    return kept


def questions(lab: Lab) -> list[Question]:
    """All of them; in the short form, one of each three, of every text."""
    items = load_items("reading")["items"]
    found = [
        Question(item["text"], question, answers[0].strip())
        for item in items
        for question, answers in item["questions"]
    ]
    return found if lab.scale == 1 else found[:: MOST_QUESTIONS // SHORT_QUESTIONS]


def workload(lab: Lab, cut: str | None = None, keep: float = 1.0) -> Workload:
    """Every question with its text, cut or whole, one at a time."""
    left = (lambda q: q.text) if cut is None else (lambda q: CUTS[cut](q.text, q.question, keep))
    prompts = [f"{left(q)}\n\nQuestion: {q.question}\nAnswer:" for q in questions(lab)]
    arrivals = tuple(Arrival(0.0, prompt, ANSWER_TOKENS) for prompt in prompts)
    return Workload(f"reading, {cut or WHOLE}", "Questions about a text, one at a time.", arrivals, max_in_flight=1)


def read(lab: Lab, cut: str | None = None, keep: float = 1.0) -> Run:
    """Ask every question. Nothing is found in the prefix cache: each prompt is computed."""
    return lab.run(workload(lab, cut, keep), **traffic.fields(lab, LONGEST_PROMPT))


def is_right(question: Question, written: str) -> bool:
    """The answer stands in what the model wrote."""
    return question.answer.lower() in written.lower()


@dataclass(frozen=True)
class Score:
    """One way of cutting, over all questions."""

    right: int
    asked: int
    prompt_tokens: int
    ttft: float
    """Median, seconds."""

    def passes(self, whole: "Score") -> bool:
        """The gate: hardly an answer lost."""
        return whole.right - self.right <= FLOOR


def score(lab: Lab, run: Run) -> Score:
    """Count what a run of `read` got right."""
    asked = questions(lab)
    right = sum(is_right(q, "".join(row.texts)) for q, row in zip(asked, run.rows))
    tokens = sum(view.num_prompt_tokens for view in run.views)
    return Score(right, len(asked), tokens, percentile(run.ttft, 50))


def gate_table(scores: Mapping[str, Score]) -> Html:
    """A row a way of cutting. The first is the whole text, against which the others are held."""
    whole = next(iter(scores.values()))
    rows = []
    for name, each in scores.items():
        gate = "–" if each is whole else "passes" if each.passes(whole) else "broken"
        tokens = (
            f"{each.prompt_tokens} ({change(whole.prompt_tokens, each.prompt_tokens)})"
            if each is not whole
            else str(each.prompt_tokens)
        )
        ttft = f"{seconds(each.ttft)} ({change(whole.ttft, each.ttft)})" if each is not whole else seconds(each.ttft)
        rows.append((name, tokens, ttft, f"{each.right} of {each.asked}", gate))
    header = ("what the model gets", "prompt tokens", "median TTFT", "answers right", f"gate: at most {FLOOR} lost")
    return as_table(header, rows)
