"""Two services side by side: first as one number, then with the phases inside that number."""

from collections.abc import Mapping

from course.lab.pictures.distribution import LEFT, RIGHT, beside
from course.lab.run import Run, itl_of, percentile, phases_of
from course.lab.snapshot import RequestView
from course.lab.style import PHASE_COLOURS, PHASE_LABELS, WIDTH, seconds
from course.lab.svg import INK, SOFT, Picture, Scale, legend, line, phase_fill, rect, text, time_axis
from minillm.core.timeline import PHASES


def draw_one_number(runs: Mapping[str, Run]) -> Picture:
    """The dashboard that many teams have: one number a service, the slowest E2E, and nothing of how it came about."""
    scale = Scale(0, _longest(runs), LEFT, WIDTH - RIGHT)
    body = time_axis(scale, 8, 8 + 62 * len(runs), "end-to-end latency")
    for i, (name, run) in enumerate(runs.items()):
        base = 52 + 62 * i
        body += text(LEFT - 10, base - 8, name, size=13, text_anchor="end", font_weight="bold")
        x = scale(max(run.e2e))
        body += rect(scale(0), base - 16, x - scale(0), 14, fill=SOFT, fill_opacity=0.6)
        body += line(x, base - 26, x, base, stroke=INK, stroke_width=2)
        body += beside(x, base - 20, f"slowest {seconds(max(run.e2e))}")
    found = "; ".join(f"{name}: slowest E2E {seconds(max(run.e2e))}" for name, run in runs.items())
    return Picture("Which service is slow, and why?", body, 42 + 62 * len(runs), description=found)


def draw_two_numbers(runs: Mapping[str, Run]) -> Picture:
    """The slowest request of each service, cut into its phases, with its TTFT and its mean ITL on it."""
    scale = Scale(0, _longest(runs), LEFT, WIDTH - RIGHT)
    body = legend(LEFT, 12) + time_axis(scale, 24, 24 + 66 * len(runs), "time since the request arrived")
    for i, (name, run) in enumerate(runs.items()):
        y = 46 + 66 * i
        view = slowest(run)
        body += text(LEFT - 10, y + 18, name, size=13, text_anchor="end", font_weight="bold")
        edge = 0.0
        for phase, duration in phases_of(view).items():
            body += rect(scale(edge), y, max(scale(edge + duration) - scale(edge), 1.5), 26, fill=phase_fill(phase))
            edge += duration
        ttft = view.deliveries[0] - view.borders[0]
        gaps = itl_of(view)
        body += line(scale(ttft), y - 8, scale(ttft), y + 26, stroke=INK, stroke_width=1.5)
        body += text(scale(0), y - 8, f"TTFT {seconds(ttft)}", size=12)
        body += beside(scale(edge), y + 40, f"then {len(gaps)} gaps of {seconds(percentile(gaps, 50))} (median)")
    return Picture(
        "Same E2E, different problem: where does the time go?", body, 58 + 66 * len(runs), description=_describe(runs)
    )


def slowest(run: Run) -> RequestView:
    """The request with the largest E2E among those that finished."""
    return max(run.finished, key=lambda view: view.borders[-1] - view.borders[0])


def draw_phase_bars(runs: Mapping[str, Run], subject: str = "") -> Picture:
    """Mean seconds per phase, a group a phase and a bar a run (the last one solid): the longer bar is what grew."""
    means = {name: run.mean_phases() for name, run in runs.items()}
    scale = Scale(0, 1.05 * max(max(m.values()) for m in means.values()), LEFT, WIDTH - RIGHT - 90)
    pitch = 18 * len(runs) + 12
    body = time_axis(scale, 0, pitch * len(PHASES), "mean per request")
    for i, phase in enumerate(PHASES):
        y = 6 + pitch * i
        body += text(LEFT - 10, y + pitch / 2 - 2, PHASE_LABELS[phase], size=13, text_anchor="end")
        for j, (name, mean) in enumerate(means.items()):
            width = max(scale(mean[phase]) - scale(0), 1.0)
            look = {"fill_opacity": 0.3 if j < len(means) - 1 else 1.0, "stroke": PHASE_COLOURS[phase]}
            body += rect(LEFT, y + 18 * j, width, 15, fill=phase_fill(phase), **look)
            body += text(LEFT + width + 5, y + 18 * j + 12, f"{seconds(mean[phase])}  {name}", size=11)
    found = "; ".join(
        f"{name}: " + ", ".join(f"{PHASE_LABELS[p]} {seconds(value)}" for p, value in mean.items())
        for name, mean in means.items()
    )
    title = f"{subject}: which phase moves?" if subject else "Which phase grew?"
    return Picture(title, body, pitch * len(PHASES) + 34, description=found)


def _longest(runs: Mapping[str, Run]) -> float:
    return 1.15 * max(max(run.e2e) for run in runs.values())


def _describe(runs: Mapping[str, Run]) -> str:
    parts = []
    for name, run in runs.items():
        found = ", ".join(f"{PHASE_LABELS[phase]} {seconds(value)}" for phase, value in phases_of(slowest(run)).items())
        parts.append(f"{name}: {found}")
    return ". ".join(parts)
