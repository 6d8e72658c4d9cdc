"""A clock that runs in the browser. It reads the wall clock at each tick, so late ticks cannot make it wrong."""

from pathlib import Path

SCRIPT = Path(__file__).with_suffix(".js").read_text(encoding="utf-8")


def clock_html(name: str, total_s: float) -> str:
    """The clock's HTML, with its script.

    Args:
        name: a press on an element of class NAME-start starts it, one on NAME-stop stops it. Shown again under the
            same name, it goes on.
        total_s: seconds to count down; then it counts what is over.
    """
    script = SCRIPT.replace("NAME", name).replace("TOTAL", f"{total_s:g}")
    return (
        f'<div class="{name}-clock" role="timer" aria-label="time left" style="max-width:900px">'
        f'<b style="font-size:28px;font-variant-numeric:tabular-nums">{written(total_s)}</b> <span>on the clock</span>'
        '<div style="height:6px;border-radius:3px;background:var(--jp-border-color2,#d0d7de)">'
        '<i style="display:block;height:6px;border-radius:3px;width:100%;background:currentColor"></i></div></div>'
        f"<script>{script}</script>"
    )


def written(seconds: float) -> str:
    """Minutes and seconds, as 12:05."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
