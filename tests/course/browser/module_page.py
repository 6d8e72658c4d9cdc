"""A notebook's module on a page of its own, with its panel's Python at the other end of the messages."""

import json
from pathlib import Path
from typing import Any

HARNESS = """<!doctype html><html lang="en"><head><title>A module</title><style>{style}</style></head>
<body data-jp-theme-light="false" style="background: #111; --jp-layout-color0: #111; --jp-layout-color2: #333;
  --jp-ui-font-color1: #fff; --jp-ui-font-color2: #bbb; --jp-border-color2: #555">
<main><h1 style="position: absolute; width: 1px; height: 1px; overflow: hidden; margin: 0">A module</h1>
<div id="el"></div></main>
<script type="module">
{script}
</script></body></html>"""
"""JupyterLab's dark theme, as far as modules use it."""
MODEL = """
const listeners = {}, traits = JSON.parse(await window.start());
const tell = (event, message) => [...(listeners[event] ?? [])].forEach((heard) => heard(message));
const model = {
  get: (name) => traits[name],
  on: (event, heard) => (listeners[event] ??= []).push(heard),
  off: (event, heard) => { listeners[event] = listeners[event].filter((each) => each !== heard); },
  send: async (message) => {
    const [after, answer] = JSON.parse(await window.hear(JSON.stringify(message)));
    traits.state = after;
    tell("change:state");
    tell("msg:custom", answer);
  },
};
widget.render({ model, el: document.getElementById("el") });
"""
"""A kernel's place: anywidget's model, as far as modules use it."""


def show(page: Any, widget: Any, folder: Path) -> None:
    """Open an anywidget's module on a page.

    Args:
        widget: with traits `state` and, perhaps, `start_class`.
        folder: where the page's file goes.
    """
    answers: list[dict[str, str]] = []
    widget.send = answers.append

    def hear(message: str) -> str:
        widget._handle_custom_msg(json.loads(message), [])
        return json.dumps([widget.state, answers[-1]])

    traits = {name: getattr(widget, name) for name in ("state", "start_class") if widget.has_trait(name)}
    page.expose_function("start", lambda: json.dumps(traits))
    page.expose_function("hear", hear)
    module = str(widget._esm).replace("export default", "const widget =")
    file = folder / "module.html"
    file.write_text(HARNESS.format(style=widget._css, script=module + MODEL), encoding="utf-8")
    page.goto(file.as_uri())
