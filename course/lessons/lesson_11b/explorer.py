"""A cold start, piece by piece: bytes over bandwidths. And how often rare traffic has one."""

import math

from course.lab.display import Html, as_table
from course.lab.explorer import Explorer, choices, slider, switch
from course.lab.pictures.cascade import draw_cascade
from course.lab.style import COLOURS, seconds
from course.lab.svg import Picture
from course.simulator.cost.models import find_model

SOURCES = {
    "object store, 1 GB/s": 1.0,
    "network disk, 3 GB/s": 3.0,
    "local NVMe, 12 GB/s": 12.0,
    "host memory, 50 GB/s": 50.0,
}
WEIGHTS_GB = find_model("llama-3-70b").stored_bytes("bfloat16") / 1e9
STARTS = {"cold start, 180 s": 180.0, "sleep mode, 4 s": 4.0}
PIECES = ("machine", "image", "weights", "compile", "graphs", "first prompts")


def pieces(
    machine_s: float,
    image_gb: float,
    image_cached: bool,
    source: str,
    compile_s: float,
    compile_cached: bool,
    graphs_s: float,
    asleep: bool,
) -> dict[str, float]:
    """Seconds of each piece. `asleep`: the process lives, its weights are in host memory (sleep mode)."""
    if asleep:
        return dict(zip(PIECES, (0.0, 0.0, WEIGHTS_GB / SOURCES["host memory, 50 GB/s"], 0.0, 0.0, 1.0)))
    image = 0.0 if image_cached else image_gb / SOURCES["object store, 1 GB/s"]
    compiled = 0.1 * compile_s if compile_cached else compile_s
    return dict(zip(PIECES, (machine_s, image, WEIGHTS_GB / SOURCES[source], compiled, graphs_s, 2.0)))


def draw_cold_start(patience_s: float = 30.0, **setting: object) -> Picture:
    """The pieces one after the other, and the patience of the clients that wait meanwhile."""
    found = pieces(**setting)
    words = f"{seconds(sum(found.values()))} in all; the dashed line is the clients' patience"
    title, axis = f"What is a cold start made of? {words}", "since the replica was ordered"
    return draw_cascade(title, words, found, patience_s, axis, COLOURS[:1])


def cold_start() -> Explorer:
    """Every piece with a slider. The defaults are round figures to be replaced by your own."""
    return Explorer(
        draw_cold_start,
        patience_s=choices("patience, s", [2.0, 10.0, 30.0, 60.0, 120.0], 30.0),
        machine_s=slider("find and boot a machine, s", 0.0, 300.0, 60.0, 5.0),
        image_gb=slider("container image, GB", 2.0, 30.0, 15.0, 1.0),
        image_cached=switch("image is on the machine already"),
        source=choices(f"weights ({WEIGHTS_GB:.0f} GB) come from", list(SOURCES), "network disk, 3 GB/s"),
        compile_s=slider("torch.compile, s", 0.0, 120.0, 45.0, 5.0),
        compile_cached=switch("compile cache is kept"),
        graphs_s=slider("CUDA graph capture, s", 0.0, 60.0, 15.0, 1.0),
        asleep=switch("sleep mode: the process lives, weights in host memory"),
    )


def idle_table(per_hour: float, keep_s: float, start: str) -> Html:
    """A replica that is let go after `keep_s` seconds without a request, on paper, at random arrivals."""
    gone = math.exp(-per_hour / 3600 * keep_s)
    # A request that comes during the start waits as well: half of the start on average.
    added = gone * STARTS[start] * (1 + per_hour / 3600 * STARTS[start] / 2)
    row = (f"{gone:.1%}", seconds(added), seconds(STARTS[start] if gone > 0.01 else 0.0), f"{gone:.1%} of the time")
    return as_table(
        ("requests that find the replica gone", "added to mean TTFT", "added to p99 TTFT", "its GPUs are free"), [row]
    )


def rare_traffic() -> Explorer:
    """Rare traffic: scale to zero, or sleep."""
    return Explorer(
        idle_table,
        per_hour=choices("requests per hour", [1, 3, 10, 30, 100, 300], 10),
        keep_s=choices("released after, s", [60.0, 300.0, 900.0, 3600.0], 300.0),
        start=choices("brought back by", list(STARTS)),
    )
