"""The block map with sliders: choose the pool and its rules, run the real engine, then scrub through its steps."""

import time
from collections.abc import Iterator

import ipywidgets as widgets

from course.lab.explorer import STYLE, Explorer, buttons, choices, player, slider, switch
from course.lab.lab import Lab
from course.lab.svg import Picture
from course.lessons.lesson_07 import traffic
from course.lessons.lesson_07.block_map import NO_REQUEST, draw_frame
from course.lessons.lesson_07.trace import Trace, recording

POOLS = (24, 32, 48, 64, 96)
FRAME_S = 0.3
"""Between pictures while a run goes on."""


class Pool(Explorer):
    """The block map, live. The button is a run of the real engine; the slider below it goes through the steps.

    Args:
        trace: to begin with.
    """

    def __init__(self, lab: Lab, trace: Trace) -> None:
        self.lab, self.trace = lab, trace
        super().__init__(
            self._shoot,
            button="Run these",
            pool=choices("pool, blocks", POOLS, traffic.SMALL_POOL),
            reservation=buttons("KV reservation", ["on_demand", "max_len"]),
            preemption=buttons("preemption", ["recompute", "swap"]),
            prefixes=switch("keep prefixes", True),
        )
        self.step = slider("step", 0, len(trace.frames) - 1, trace.fullest)
        people = [NO_REQUEST, *(f"request {i}" for i in range(len(trace.frames[0].states)))]
        self.follow = widgets.Dropdown(options=people, value=NO_REQUEST, description="follow", style=STYLE)
        self.play = player(self.step, 150)
        for control in (self.step, self.follow):
            control.observe(lambda _: self.redraw(), names="value")
        *above, view = self.widget.children
        self.widget.children = (*above, widgets.HBox([self.play, self.step]), self.follow, view)
        self.redraw()

    def redraw(self) -> None:
        """The trace at the chosen step."""
        chosen = self.follow.value
        who = None if chosen == NO_REQUEST else int(chosen.removeprefix("request "))
        self.showing(draw_frame(self.trace, self.step.value, who))

    def _shoot(self, pool: int, reservation: str, preemption: str, prefixes: bool) -> Iterator[Picture]:
        fields = traffic.small(
            num_kv_blocks=pool, kv_reservation=reservation, preemption=preemption, enable_prefix_caching=prefixes
        )
        with self.lab.alone():
            own, shown = traffic.engine(self.lab, **fields), 0.0
            for trace in recording(own, traffic.cast(self.lab), f"{reservation}, {preemption}, {pool} blocks"):
                if time.monotonic() - shown > FRAME_S:
                    shown = time.monotonic()
                    yield draw_frame(trace, len(trace.frames) - 1, title=f"Step {len(trace.frames)}, live")
        self.trace = trace
        last = len(trace.frames) - 1
        for control in (self.step, self.play):
            control.max = last
        self.step.value = trace.fullest
        yield draw_frame(trace)

    def static_html(self) -> str:
        return f"<p><em>step: {self.step.value}, follow: {self.follow.value}</em></p>{super().static_html()}"
