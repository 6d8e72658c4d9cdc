"""Outputs of cells as readers without a kernel can see them."""

import base64
import re

from nbformat import NotebookNode

WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"


def freeze(output: NotebookNode) -> NotebookNode:
    """An output without its live widget, and with pictures as images.

    Code hosts and JupyterLab, for a notebook it does not trust yet, strip inline SVG; they show images.
    """
    data = output.get("data", {})
    data.pop(WIDGET_VIEW, None)
    if "text/html" in data:
        data["text/html"] = re.sub(
            r"<svg\b.*?</svg>", lambda found: as_image(found.group()), data["text/html"], flags=re.S
        )
    return output


def as_image(svg: str) -> str:
    """An <img> with the picture on a light card of its own: readable on a page of any colour."""
    width, height = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg).groups()
    label = re.search(r'aria-label="([^"]*)"', svg).group(1)
    card = '<rect width="100%" height="100%" rx="6" fill="#ffffff"/>'
    alone = re.sub(r"(<svg\b[^>]*>)", rf"\1{card}", svg, count=1).replace(
        'width="100%"', f'width="{width}" height="{height}"', 1
    )
    encoded = base64.b64encode(alone.encode()).decode()
    return f'<img alt="{label}" width="{float(width) * 1.2:.0f}" src="data:image/svg+xml;base64,{encoded}">'
