"""Shorter prompts: cut a text to a share of its words, ask the engine about it, count the answers that survive.

The texts and questions are minillm's own reading test (minillm/bench/texts/reading.json).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from course.lab.display import Html, as_table
from course.lab.lab import Lab
from course.lab.lesson_03 import traffic
from course.lab.lesson_03.choosing import choose
from course.lab.run import Run, percentile
from course.lab.style import change, seconds
from course.lab.workloads import Arrival, Workload
from minillm.bench.quality import Floors
from minillm.bench.scoring import load_items
from minillm.frontend.prompt_pruning import Pruned, prune_context, split_sentences

FLOOR = Floors().tasks_lost
"""The gate, stated before anything is measured: at most so many answers fewer than with the whole text."""
LONGEST_PROMPT = 320
"""Tokens, with room to spare."""
EVERY, SHORT_EVERY = tuple(range(6)), (3,)
"""Which questions of each text are asked."""
WHOLE = "whole text"


@dataclass(frozen=True)
class Question:
    """One question about one text; the text holds the answer."""

    text: str
    question: str
    endings: tuple[str, ...]
    """Answers to choose from; the first is right."""

    @property
    def answer(self) -> str:
        return self.endings[0].strip()


Cut = Callable[[str, str, float], str]
"""From a text, a question and the share to keep, to what is left of the text."""


def by_relevance(text: str, question: str, keep: float) -> str:
    """The sentences that share rare words with the question (minillm/frontend/prompt_pruning.py)."""
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
    return [Question(item["text"], question, tuple(answers)) for question, answers in pairs]


def prompt(question: Question, cut: str | None = None, keep: float = 1.0) -> str:
    """The text, or what is left of it, then the question."""
    left = question.text if cut is None else CUTS[cut](question.text, question.question, keep)
    return f"{left}\n\nQuestion: {question.question}\nAnswer:"


def one_by_one(name: str, prompts: Sequence[str]) -> Workload:
    """These prompts, one at a time, one token each: what counts is the time to it."""
    arrivals = tuple(Arrival(0.0, each, 1) for each in prompts)
    return Workload(name, "Questions about a text, one at a time.", arrivals, max_in_flight=1)


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


def read(lab: Lab, cut: str | None = None, keep: float = 1.0) -> Score:
    """Ask every question twice: once for the time to its first token, once for which answer the model finds likeliest.

    Nothing is found in the prefix cache: each prompt is computed.
    """
    asked = questions(lab)
    prompts = [prompt(question, cut, keep) for question in asked]
    fields = traffic.fields(lab, LONGEST_PROMPT)
    with lab.alone():
        run = lab.run(one_by_one(f"reading, {cut or WHOLE}", prompts), **fields)
        engine = lab.engine(**fields)
        right = sum(choose(engine, each, question.endings) == 0 for each, question in zip(prompts, asked))
    tokens = sum(view.num_prompt_tokens for view in run.views)
    return Score(right, len(asked), tokens, percentile(run.ttft, 50))


def compare(lab: Lab, keep: float = 0.5, cuts: Sequence[str] = ("by relevance", "first part")) -> dict[str, Score]:
    """The whole text, then each way of cutting it to a share."""
    return {WHOLE: read(lab)} | {f"{cut}, {keep:.0%}": read(lab, cut, keep) for cut in cuts}


def gate_table(scores: Mapping[str, Score]) -> Html:
    """A row a way of cutting. The first is the whole text, against which the others are held."""
    whole, rows = next(iter(scores.values())), []
    for name, each in scores.items():
        tokens, ttft, gate = str(each.prompt_tokens), seconds(each.ttft), "–"
        if each is not whole:
            tokens += f" ({change(whole.prompt_tokens, each.prompt_tokens)})"
            ttft += f" ({change(whole.ttft, each.ttft)})"
            gate = "passes" if each.passes(whole) else "broken"
        rows.append((name, tokens, ttft, f"{each.right} of {each.asked}", gate))
    return as_table(
        ("what the model gets", "prompt tokens", "median TTFT", "right", f"gate: at most {FLOOR} lost"), rows
    )


def shared(lab: Lab, cut: str | None = None, keep: float = 1.0) -> Run:
    """All questions about the same text, one after the other, with the prefix cache on: what it is made for."""
    asked = _of(load_items("reading")["items"][0], range(6))
    traffic_of_one = one_by_one(f"one text, {cut or WHOLE}", [prompt(question, cut, keep) for question in asked])
    return lab.run(traffic_of_one, **{**traffic.fields(lab, LONGEST_PROMPT), "enable_prefix_caching": True})


def cache_table(runs: Mapping[str, Run]) -> Html:
    """A row a run: tokens that were sent, found in the cache, and left to compute."""
    rows = []
    for name, run in runs.items():
        sent, found = (sum(getattr(view, f"num_{kind}_tokens") for view in run.views) for kind in ("prompt", "cached"))
        rows.append((name, str(sent), str(found), str(sent - found)))
    return as_table(("what the model gets", "prompt tokens sent", "found in the cache", "left to compute"), rows)
