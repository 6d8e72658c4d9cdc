"""From the data sheet to replicas: what each step takes off the requests per second of one replica."""

import math

from course.lab.explorer import Explorer, choices, slider
from course.lab.style import ALARM, COLOURS, WIDTH, number
from course.lab.svg import INK, SOFT, Picture, Scale, line, rect, text
from course.lessons.lesson_11 import worksheet
from course.lessons.lesson_11.bounds import Ask

TOP, ROW = 14, 34


def stages(ask: Ask, headroom: float) -> dict[str, float]:
    """Requests per second of one replica, after each step."""
    *_, simulated = ask.bounds().values()
    flops = ask.peak / ask.flops
    knee = worksheet.plan(ask.qps, ask.prompt, ask.answer, gpus=ask.gpus, headroom=headroom).found.knee
    return {
        "FLOPs on the data sheet": flops,
        "x what products reach": flops * ask.share_reached,
        "+ weights, links, launches (simulated)": simulated,
        "within the SLO (the knee)": knee,
        f"less {headroom:.0%} headroom": knee * (1 - headroom),
    }


def draw(qps: float, prompt: int, headroom: float) -> Picture:
    """Each stage as a bar; what it takes off is pale."""
    found = stages(Ask(qps=qps, prompt=prompt), headroom)
    scale = Scale(0, 1.1 * max(found.values()), 250, WIDTH - 60)
    body, before = "", None
    for i, (name, value) in enumerate(found.items()):
        y = TOP + ROW * i
        body += text(242, y + 16, name, text_anchor="end")
        if before is not None:
            body += rect(scale(value), y, scale(before) - scale(value), 22, fill=ALARM, fill_opacity=0.18)
        body += rect(scale(0), y, scale(value) - scale(0), 22, fill=COLOURS[0])
        body += text(scale(max(value, before or 0)) + 6, y + 16, f"{number(value)}/s", fill=SOFT)
        before = value
    replicas = math.ceil(qps / value)
    bottom = TOP + ROW * len(found)
    body += line(250, bottom, WIDTH - 60, bottom)
    words = f"{qps:g} requests/s / {number(value)} = {replicas} replicas of 4 H100s"
    body += text(250, bottom + 22, words, font_weight="bold", fill=INK)
    told = ", ".join(f"{name}: {number(each)}/s" for name, each in found.items())
    return Picture("Where do a replica's requests per second go?", body, bottom + 32, description=f"{told}. {words}")


def explorer() -> Explorer:
    return Explorer(
        draw,
        button="Fill it in",
        qps=choices("requests per second", [10.0, 30.0, 100.0, 300.0], 100.0),
        prompt=choices("prompt, tokens (answer: 150)", [500, 1500, 4000], 1500),
        headroom=slider("headroom", 0.0, 0.5, 0.2, 0.05),
    )
