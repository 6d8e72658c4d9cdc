"""One request, annotated: where it is in each phase, what TTFT and ITL cover, and what shortens which phase."""

from course.lab.run import Run, itl_of, percentile, phases_of
from course.lab.style import PHASE_LABELS, WIDTH, seconds
from course.lab.svg import INK, SOFT, Picture, line, phase_fill, rect, text

WHERE = {
    "queue": ("server: waits", "more slots or replicas", "admission control"),
    "prefill": ("model: whole prompt", "shorter prompts", "prefix caching"),
    "first_token": ("sample, detokenize", "sample on the GPU", "fewer host round trips"),
    "decode": ("model: a token a step", "fewer bytes per step", "speculation"),
    "stream": ("network to client", "proxy buffering off", "reused connections"),
}
"""By phase: where the request is, and two things that shorten it."""
TOP, HIGH = 66, 44


def draw_anatomy(run: Run) -> Picture:
    """The phases of the run's first request, all drawn equally wide, each with its own measured time."""
    view = run.row_of(0)
    phases = phases_of(view)
    wide = (WIDTH - 20) / len(phases)
    body = ""
    for i, (phase, taken) in enumerate(phases.items()):
        x = 10 + i * wide
        where, *fixes = WHERE[phase]
        body += rect(x, TOP, wide - 4, HIGH, fill=phase_fill(phase), rx=4)
        middle = x + wide / 2 - 2
        body += rect(middle - 52, TOP + 6, 104, 32, fill="#ffffff", fill_opacity=0.92, rx=3)
        body += text(middle, TOP + 19, PHASE_LABELS[phase], text_anchor="middle", fill="#1f2328", font_weight="bold")
        body += text(middle, TOP + 33, seconds(taken), text_anchor="middle", fill="#1f2328")
        for row, words in enumerate((where, *fixes)):
            y = TOP + HIGH + 18 + 17 * row + (8 if row else 0)
            body += text(middle, y, words, size=11, text_anchor="middle", fill=INK if row == 0 else SOFT)
    ttft = sum(list(phases.values())[:3])
    gaps = percentile(itl_of(view), 50)
    body += _bracket(10, 10 + 3 * wide - 4, 46, f"TTFT {seconds(ttft)}")
    body += _bracket(10 + 3 * wide, 10 + 4 * wide - 4, 46, f"ITL {seconds(gaps)} (median)")
    body += _bracket(10, WIDTH - 14, 20, f"E2E {seconds(sum(phases.values()))}")
    told = ", ".join(f"{PHASE_LABELS[phase]} {seconds(taken)}" for phase, taken in phases.items())
    return Picture("Where is a request in each phase, and what shortens it?", body, TOP + HIGH + 74, description=told)


def _bracket(start: float, end: float, y: float, words: str) -> str:
    ends = "".join(line(x, y, x, y + 8, stroke=INK) for x in (start, end))
    return line(start, y, end, y, stroke=INK) + ends + text((start + end) / 2, y - 5, words, text_anchor="middle")
