"""One request, annotated: how long it is in each phase, what TTFT and ITL cover, and what shortens which phase."""

from collections.abc import Mapping

from course.lab.run import Run, itl_of, percentile, phases_of
from course.lab.style import PHASE_LABELS, WIDTH, seconds
from course.lab.svg import FAINT, HALO, INK, PAPER, SOFT, Picture, Scale, line, phase_fill, rect, tag, text

WHERE = {
    "queue": ("waits in the server", "more slots or replicas", "admission control"),
    "prefill": ("model runs the prompt", "shorter prompts", "prefix caching"),
    "first_token": ("sample, detokenize", "sample on the GPU", "fewer host round trips"),
    "decode": ("model, token by token", "fewer bytes per step", "speculation"),
    "stream": ("network to the client", "no proxy buffering", "reused connections"),
}
"""By phase: where the request is, and two things that shorten it."""
BAR, TALL, TAGS = 62.0, 30.0, 132.0
LEAST = 2.0
"""A phase too short to see is drawn this wide."""


def draw_anatomy(run: Run) -> Picture:
    """The phases of the run's first request in proportion, each with a name tag, its time and what shortens it."""
    view = run.row_of(0)
    phases = phases_of(view)
    edges = phase_edges(phases)
    wide = (WIDTH - 20) / len(phases)
    body = ""
    for i, (phase, taken) in enumerate(phases.items()):
        left, right = edges[i], edges[i + 1]
        x, end = 10 + i * wide, 10 + (i + 1) * wide - 6
        body += tag(
            "path",
            d=f"M{left:.1f} {BAR + TALL}L{right:.1f} {BAR + TALL}L{end:.1f} {TAGS}L{x:.1f} {TAGS}z",
            fill=phase_fill(phase),
            fill_opacity=0.22,
        )
        body += rect(left, BAR, right - left, TALL, fill=phase_fill(phase))
        body += _tag(x, end, phase, taken)
    at = Scale(view.deliveries[0], view.deliveries[-1], edges[3], edges[4])
    body += "".join(line(at(t), BAR, at(t), BAR + TALL, stroke=PAPER, stroke_width=1) for t in view.deliveries[1:-1])
    ttft, gap = sum(list(phases.values())[:3]), percentile(itl_of(view), 50)
    body += _bracket(edges[0], edges[3] - 1, 46, f"TTFT {seconds(ttft)}")
    body += _bracket(edges[3] + 1, edges[4], 46, f"a token every {seconds(gap)} (median): ITL")
    body += _bracket(edges[0], edges[5], 18, f"E2E {seconds(sum(phases.values()))}")
    told = ", ".join(f"{PHASE_LABELS[phase]} {seconds(taken)}" for phase, taken in phases.items())
    return Picture("Where does the time go, and what shortens it?", body, TAGS + 118, description=told)


def phase_edges(phases: Mapping[str, float]) -> list[float]:
    """Where the phases begin in the bar, and where the last one ends."""
    room = WIDTH - 20 - LEAST * len(phases)
    found = [10.0]
    for taken in phases.values():
        found.append(found[-1] + LEAST + room * taken / sum(phases.values()))
    return found


def _tag(x: float, end: float, phase: str, taken: float) -> str:
    middle = (x + end) / 2
    drawn = rect(x, TAGS, end - x, 40, fill=PAPER, stroke=FAINT) + rect(x, TAGS, end - x, 5, fill=phase_fill(phase))
    drawn += text(middle, TAGS + 20, PHASE_LABELS[phase], text_anchor="middle", font_weight="bold")
    drawn += text(middle, TAGS + 34, seconds(taken), text_anchor="middle")
    for row, words in enumerate(WHERE[phase]):
        y = TAGS + 58 + 17 * row + (8 if row else 0)
        drawn += text(middle, y, words, size=11, text_anchor="middle", fill=SOFT if row else INK)
    return drawn


def _bracket(start: float, end: float, y: float, words: str) -> str:
    ends = "".join(line(x, y, x, y + 8, stroke=INK) for x in (start, end))
    middle = min(max((start + end) / 2, 4 + 3.2 * len(words)), WIDTH - 4 - 3.2 * len(words))
    return line(start, y, end, y, stroke=INK) + ends + text(middle, y - 5, words, text_anchor="middle", **HALO)
