"""Shorter prompts: cut a text to a share of its words, and count the answers that the model still finds.

The texts and questions are minillm's own reading test (course/measure/texts/reading.json).
"""

from collections.abc import Callable
from dataclasses import dataclass

from course.lab.lab import Lab
from course.lessons.lesson_03 import traffic
from course.lessons.lesson_03.prompt_pruning import prune_context, split_sentences
from course.measure.quality import Floors
from course.measure.scoring import choose, load_items

FLOOR = Floors().tasks_lost
"""The gate, stated before anything is measured: at most so many answers fewer than with the whole text."""
LONGEST_PROMPT = 320
"""Tokens, with room to spare."""
KEEP = 0.5
"""Share of the words that a cut leaves."""

Cut = Callable[[str, str], str]
"""From a text and a question to what is left of the text."""


def by_relevance(text: str, question: str) -> str:
    """The sentences that share rare words with the question (course/lessons/lesson_03/prompt_pruning.py)."""
    return prune_context(text, question, KEEP).text


def first_part(text: str, question: str) -> str:
    """The beginning: what a limit on the prompt's length does."""
    budget, kept = KEEP * len(text.split()), []
    for sentence in split_sentences(text):
        budget -= len(sentence.split())
        if kept and budget < 0:
            break
        kept.append(sentence)
    return " ".join(kept)


CUTS: dict[str, Cut] = {
    "whole text": lambda text, question: text,
    f"by relevance, {KEEP:.0%}": by_relevance,
    f"first part, {KEEP:.0%}": first_part,
}


@dataclass(frozen=True)
class Score:
    """One way of cutting, over all questions."""

    right: int
    asked: int

    def passes(self, whole: "Score") -> bool:
        """The gate: hardly an answer lost."""
        return whole.right - self.right <= FLOOR


def compare(lab: Lab) -> dict[str, Score]:
    """The whole text, then each way of cutting it; in the lab's short form, one question about each text."""
    items = load_items("reading")["items"]
    chosen = slice(None) if lab.scale == 1 else slice(3, 4)
    asked = [(item["text"], *question) for item in items for question in item["questions"][chosen]]
    with lab.alone():
        engine = lab.engine(**traffic.fields(lab, LONGEST_PROMPT))
        found = {}
        for name, cut in CUTS.items():
            prompts = [f"{cut(text, question)}\n\nQuestion: {question}\nAnswer:" for text, question, _ in asked]
            right = sum(choose(engine, prompt, endings) == 0 for prompt, (*_, endings) in zip(prompts, asked))
            found[name] = Score(right, len(asked))
    return found
