"""The dashboard as a page without a kernel or scripts can show it: its pictures, drawn once."""

from collections.abc import Mapping
from html import escape

from course.lab.pictures.blocks import draw_blocks
from course.lab.pictures.distribution import draw_distributions
from course.lab.pictures.phases import draw_phases
from course.lab.pictures.steps import draw_steps
from course.lab.pictures.timeline import draw_timeline
from course.lab.run import Run
from course.lab.summary import Comparison, headline

WIDTH, TALL = 560, 168
"""The size of the pictures in the left column, pixels."""


def render(compared: Comparison, status: str, pinned: Mapping[str, Run] | None = None) -> str:
    """One frame of the dashboard as HTML: two columns on a wide page, one on a narrow one."""
    run, ghost = compared.run, compared.before
    rows, steps = draw_timeline(run, ghost, size=(WIDTH, TALL), ghost_name=compared.name), draw_steps(run, ghost, WIDTH)
    right = f"{draw_blocks(run).svg()}{draw_distributions(run, ghost).svg()}"
    return frame(compared, status, pinned or {}, rows.svg() + steps.svg(), right)


def frame(compared: Comparison, status: str, pinned: Mapping[str, Run], left: str, right: str) -> str:
    """The five phases and the two numbers, and below them two columns: under each other on a narrow page."""
    beside = {compared.name: compared.before} if compared.before else {}
    beside = {name: run for name, run in {**beside, **pinned}.items() if compared.run.same_workload(run)}
    look = "gap:2px 10px;margin-bottom:4px;font-size:12px;line-height:20px"
    simulated = f"<b>{escape(compared.run.simulated_on)}</b>" if compared.run.simulated_on else ""
    return (
        f'<div style="{ROW}{look}">{simulated} {status} {compared.chips()}</div>'
        + beside_each_other(draw_phases(compared, beside).svg(), headline(compared))
        + beside_each_other(left, right)
    )


ROW = "display:flex;flex-wrap:wrap;align-items:center;"


def beside_each_other(left: str, right: str) -> str:
    """HTML in two columns on a wide page, under each other on a narrow one."""
    wide, less = (f"flex:{share} 1 {basis}px;min-width:0" for share, basis in ((5, 430), (4, 344)))
    look = "display:flex;flex-wrap:wrap;gap:0 20px"
    return f'<div style="{look}"><div style="{wide}">{left}</div><div style="{less}">{right}</div></div>'
