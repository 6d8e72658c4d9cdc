"""Shorter prompts: cut a text to a share of its tokens, ask the engine about it, count the answers that survive.

The texts and questions are minillm's own reading test (minillm/bench/texts/reading.json).
"""

from collections.abc import Callable, Mapping, Sequence
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
ANSWER_TOKENS = 16
LONGEST_PROMPT = 320
"""Tokens, with room to spare."""
EVERY, SHORT_EVERY = (0, 2, 3, 5), (0,)
"""Which questions of each text are asked."""
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
    """Some of every text; in the short form, fewer."""
    chosen = EVERY if lab.scale == 1 else SHORT_EVERY
    return [question for item in load_items("reading")["items"] for question in _of(item, chosen)]


def _of(item: dict, chosen: Sequence[int]) -> list[Question]:
    pairs = [item["questions"][i] for i in chosen]
    return [Question(item["text"], question, answers[0].strip()) for question, answers in pairs]


def workload(lab: Lab, cut: str | None = None, keep: float = 1.0) -> Workload:
    """Every question with its text, cut or whole, one at a time."""
    arrivals = tuple(Arrival(0.0, prompt(q, cut, keep), ANSWER_TOKENS) for q in questions(lab))
    return Workload(f"reading, {cut or WHOLE}", "Questions about a text, one at a time.", arrivals, max_in_flight=1)


def prompt(question: Question, cut: str | None, keep: float) -> list[dict[str, str]]:
    """One chat message: the text, or what is left of it, then the question."""
    left = question.text if cut is None else CUTS[cut](question.text, question.question, keep)
    return [{"role": "user", "content": f"{left}\n\n{question.question}"}]


def one_text(cut: str | None, keep: float = 1.0) -> Workload:
    """All questions about the same text, one after the other, one token each: what a prefix cache is made for."""
    asked = _of(load_items("reading")["items"][0], range(6))
    arrivals = tuple(Arrival(0.0, prompt(question, cut, keep), 1) for question in asked)
    return Workload(f"one text, {cut or WHOLE}", "Questions about the same text.", arrivals, max_in_flight=1)


def shared(lab: Lab, cut: str | None = None, keep: float = 1.0) -> Run:
    """Those questions, on an engine with its prefix cache on."""
    return lab.run(one_text(cut, keep), **{**traffic.fields(lab, LONGEST_PROMPT), "enable_prefix_caching": True})


def cache_table(runs: Mapping[str, Run]) -> Html:
    """A row a run: tokens that were sent, found in the cache, and left to compute."""
    rows = []
    for name, run in runs.items():
        sent, found = (sum(getattr(view, f"num_{kind}_tokens") for view in run.views) for kind in ("prompt", "cached"))
        rows.append((name, str(sent), str(found), str(sent - found)))
    return as_table(("what the model gets", "prompt tokens sent", "found in the cache", "left to compute"), rows)


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
