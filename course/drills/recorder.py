"""A recorder that runs in the browser: say the answer aloud, and hear it afterwards. Nothing leaves the page."""

from pathlib import Path

SCRIPT = Path(__file__).with_suffix(".js").read_text(encoding="utf-8")
BUTTON = "font:inherit;color:inherit;background:none;border:1px solid currentColor;border-radius:6px;padding:4px 12px"
"""Beside the drill's own buttons, a browser's look like a mistake."""


def recorder_html(name: str) -> str:
    """A button, a line for what went wrong, and a player, with their script.

    Args:
        name: tells one recorder of a page from another. Shown again under the same name, it goes on.
    """
    return (
        f'<div class="{name}-recorder" style="max-width:900px;display:flex;gap:12px;align-items:center">'
        f'<button type="button" class="{name}-record" style="{BUTTON}">Record</button> <span role="status"></span> '
        '<audio controls hidden aria-label="your recording"></audio> '
        "<small>Say it aloud first, and listen to yourself before you grade. It stays in this page.</small></div>"
        f"<script>{SCRIPT.replace('NAME', name)}</script>"
    )
