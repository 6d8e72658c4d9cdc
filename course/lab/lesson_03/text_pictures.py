"""What is left of a text? Kept sentences in ink, dropped ones struck out, the answer framed."""

from html import escape

from course.lab.display import Html
from course.lab.lesson_03.reading import CUTS, Question
from course.lab.style import ALARM, PHASE_COLOURS
from minillm.frontend.prompt_pruning import split_sentences


def show_cut(question: Question, cut: str, keep: float) -> Html:
    """The whole text, with what one way of cutting drops struck out, and whether the answer is among it.

    Args:
        keep: share of the words that may stay.
    """
    left = set(split_sentences(CUTS[cut](question.text, question.question, keep)))
    sentences = split_sentences(question.text)
    kept = [sentence for sentence in sentences if sentence in left]
    words, before = sum(len(s.split()) for s in kept), len(question.text.split())
    survives = any(question.answer.lower() in sentence.lower() for sentence in kept)
    colour, verdict = (PHASE_COLOURS["decode"], "is still there") if survives else (ALARM, "is gone")
    head = f"{words} of {before} words kept. The answer, “{question.answer}”, {verdict}."
    body = " ".join(_sentence(sentence, sentence in left, question.answer) for sentence in sentences)
    html = (
        f'<div style="border-left:6px solid {colour};padding:4px 12px;max-width:820px;line-height:1.5">'
        f"<b>{escape(question.question)}</b><br>{escape(head)}<p style='margin:6px 0'>{body}</p></div>"
    )
    return Html(html, f"{question.question} {head} Left: {' '.join(kept)}")


def _sentence(sentence: str, kept: bool, answer: str) -> str:
    start = sentence.lower().find(answer.lower())
    written = escape(sentence)
    if start >= 0:
        found = sentence[start : start + len(answer)]
        written = f"{escape(sentence[:start])}<u><b>{escape(found)}</b></u>{escape(sentence[start + len(answer) :])}"
    return written if kept else f'<s style="opacity:0.45">{written}</s>'
