"""Pictures of lesson 07: the block map, one request's life, bytes of a chat; and its tables."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace

import ipywidgets as widgets

from course.lab.display import Html, table_by_name
from course.lab.explorer import STYLE, Explorer, buttons, choices, player, slider, switch
from course.lab.lab import Lab
from course.lab.pictures.block_map import LANE_LOOK, NO_REQUEST, PATTERNS, draw_frame
from course.lab.pool_trace import PoolTrace, recording
from course.lab.style import ALARM, WIDTH, number, size
from course.lab.svg import HALO, INK, SOFT, Picture, Scale, boxes, line, rect, swatches, tag, text
from course.lessons.lesson_06.pictures import KV_FILL, READ
from course.lessons.lesson_07 import run
from course.lessons.lesson_07.run import GQA, HEADS, Account, kinds_of

# ---------------------------------------------------------------- the block map, live

POOLS = (24, 32, 48, 64, 96)
FRAME_S = 0.3
"""Between pictures while a run goes on."""


class PoolMap(Explorer):
    """The block map, live. The button is a run of the real engine; the slider below it goes through the steps.

    Args:
        trace: to begin with.
    """

    def __init__(self, lab: Lab, trace: PoolTrace) -> None:
        self.lab, self.trace = lab, trace
        super().__init__(
            self._shoot,
            button="Run these",
            pool=choices("pool, blocks", POOLS, run.SMALL_POOL),
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
        fields = run.small(
            num_kv_blocks=pool, kv_reservation=reservation, preemption=preemption, enable_prefix_caching=prefixes
        )
        with self.lab.alone():
            own, shown = run.engine(self.lab, **fields), 0.0
            for trace in recording(own, run.cast(self.lab), f"{reservation}, {preemption}, {pool} blocks"):
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


# ---------------------------------------------------------------- one request's life

LIFE_LEFT = 92


def draw_life(trace: PoolTrace) -> Picture:
    """The request that was evicted most often: what it did in each step, and how much of its KV it had."""
    who = max(range(len(trace.outcomes)), key=lambda i: trace.outcomes[i].evictions)
    scale = Scale(0, len(trace.frames), LIFE_LEFT, WIDTH - 20)
    kept = [frame.computed.get(who, 0) for frame in trace.frames]
    height = Scale(0, max([*kept, 1]), 130, 60)
    body = PATTERNS + swatches(
        LIFE_LEFT, 10, {name: look["fill"] for name, look in LANE_LOOK.items() if look["fill"] != "none"}
    )
    for state, look in LANE_LOOK.items():
        cells = [
            (scale(i), 22, scale(i + 1) - scale(i), 18) for i, f in enumerate(trace.frames) if f.states[who] == state
        ]
        body += boxes(cells, **look)
    points = " ".join(f"{scale(i + 0.5):.1f},{height(tokens):.1f}" for i, tokens in enumerate(kept))
    body += tag("polyline", points=points, fill="none", stroke=INK, stroke_width=1.5)
    body += line(LIFE_LEFT, 130, WIDTH - 20, 130)
    body += text(LIFE_LEFT - 8, 34, f"request {who}", text_anchor="end")
    for y, words in ((66, f"{max(kept)} tokens"), (134, "0")):
        body += text(LIFE_LEFT - 8, y, words, size=11, fill=SOFT, text_anchor="end")
    body += text(LIFE_LEFT, 152, "its KV, in tokens, step by step: each drop is a preemption", size=11, fill=SOFT)
    times = trace.outcomes[who].evictions
    told = f"Request {who} was preempted {times} time{'s' * (times != 1)} in {len(trace.frames)} steps."
    return Picture("What does thrashing do to one request?", body, 160, description=told)


# ---------------------------------------------------------------- bytes of a chat

CONTEXTS = (250, 500, 1000, 1500, 2000, 3000, 4000, 6000, 8000, 16000, 32000)
WINDOWS = {"none": None, "512": 512, "2048": 2048, "4096": 4096}
BY_HEADS, BY_POSITIONS = "heads (TP)", "positions (DCP)"
BITS = {"32 bits": "float32", "16 bits": "bfloat16", "8 bits": "int8"}
BYTES_HEIGHT, BYTES_LEFT, BYTES_RIGHT = 276.0, 4.0, 4.0
BAR_TOP, LOWER = 62.0, 152.0
MOST_DRAWN = 120
"""More chats than that are one grey mass; then their number says it."""


def kv_bytes_explorer(by_name: Mapping[str, Account], start: str) -> Explorer:
    """The bytes of a chat, with sliders."""

    return Explorer(
        lambda model, heads, split, kv, context, window: draw_kv_bytes(
            replace(
                by_name[model],
                heads=heads,
                is_striped=split == BY_POSITIONS,
                kv_dtype=BITS[kv],
                context=context,
                window=WINDOWS[window],
            )
        ),
        model=buttons("model", list(by_name), start),
        heads=buttons("keys and values", list(HEADS)),
        split=buttons("GPUs divide KV by", [BY_HEADS, BY_POSITIONS]),
        kv=buttons("KV in", list(BITS), "16 bits"),
        context=choices("tokens of each chat", CONTEXTS, 1500),
        window=buttons("sliding window", list(WINDOWS)),
    )


def draw_kv_bytes(account: Account) -> Picture:
    """One account; everything in bytes, powers of ten."""
    body = _words(account) + _memory(account) + _kinds(account)
    kept = f"{size(account.chat_bytes)} for a chat of {account.context:,} tokens"
    told = (
        f"{account.shape.name}, {account.kv.kind}: {account.formula()} = {account.token_bytes:,} bytes a token; "
        f"{kept}; "
        f"{account.chats} such chats fit beside the weights."
    )
    return Picture(
        f"{account.shape.name}: what does one chat keep, and how many fit?", body, BYTES_HEIGHT, description=told
    )


def _words(account: Account) -> str:
    body = text(BYTES_LEFT, 14, f"{account.formula()}  =  {size(account.token_bytes)} a token", size=13)
    words = f"× {account.context:,} tokens, in whole blocks"
    if account.window is not None:
        words = f"× the last {account.window} of {account.context:,} tokens and {account.sinks} sinks, in whole blocks"
    if account.copies > 1:
        words += f", × {account.copies:g} copies: one head can't be split across {account.shape.gpus} GPUs"
    return body + text(BYTES_LEFT, 34, f"{words}  =  {size(account.chat_bytes)} a chat", size=13)


def _memory(account: Account) -> str:
    """Weights and chats in the memory that there is."""
    scale = Scale(0, max(account.room, account.weight_bytes), BYTES_LEFT, WIDTH - BYTES_RIGHT)
    edge = scale(account.weight_bytes)
    body = rect(BYTES_LEFT, BAR_TOP, WIDTH - BYTES_LEFT - BYTES_RIGHT, 30, fill="none", stroke=SOFT)
    body += rect(BYTES_LEFT, BAR_TOP, edge - BYTES_LEFT, 30, fill=READ)
    dark = {"fill": "#1f2328", "stroke": "#ffffff", "stroke_width": 2, "paint_order": "stroke"}
    body += text(BYTES_LEFT + 6, BAR_TOP + 20, f"weights {size(account.weight_bytes)}", size=12, **dark)
    wide = scale(account.chat_bytes) - scale(0)
    if account.chats > MOST_DRAWN:
        body += rect(edge, BAR_TOP, wide * account.chats, 30, fill=KV_FILL)
    else:
        for i in range(account.chats):
            body += rect(edge + i * wide, BAR_TOP + 1, max(wide - 0.7, 0.4), 28, fill=KV_FILL)
    free = account.room - account.weight_bytes
    words = f"{account.chats:,} chats fit" if account.chats else "not one chat fits"
    where = f"this lab's pool: {size(max(free, 0))}" if not account.shape.gpus else f"KV capacity: {size(max(free, 0))}"
    body += text(WIDTH - BYTES_RIGHT, BAR_TOP + 48, where, size=12, fill=SOFT, text_anchor="end")
    beyond = account.context > account.shape.cost.max_context
    over = f"; the model was trained for {account.shape.cost.max_context:,} tokens only" if beyond else ""
    fill = INK if account.chats and not beyond else ALARM
    return body + text(BYTES_LEFT, BAR_TOP + 50, words + over, size=15, font_weight="bold", fill=fill)


def _kinds(account: Account) -> str:
    """The same chat under each way to share."""
    kinds = kinds_of(account)
    most = max(kind.chat_bytes for kind in kinds.values())
    scale = Scale(0, most, 96, WIDTH - 80)
    body = text(BYTES_LEFT, LOWER - 8, "one chat, by what its heads share", size=12, fill=SOFT)
    for i, (name, kind) in enumerate(kinds.items()):
        y = LOWER + 30 * i
        chosen = kind.kv.vectors == account.kv.vectors and kind.kv.kind == account.kv.kind
        told = f"{name}, {kind.group} share" if name == GQA else name
        body += text(90, y + 15, told, size=12, text_anchor="end", font_weight="bold" if chosen else "normal")
        body += rect(
            96,
            y,
            max(scale(kind.chat_bytes) - 96, 1.5),
            21,
            fill=KV_FILL,
            stroke=INK if chosen else "none",
            stroke_width=2,
        )
        body += text(scale(kind.chat_bytes) + 5, y + 15, size(kind.chat_bytes), size=11, **HALO)
    return body


# ---------------------------------------------------------------- tables


def traces_table(traces: Mapping[str, PoolTrace]) -> Html:
    """Runs of the same requests, side by side."""
    return table_by_name(
        "run",
        traces,
        {
            "running: most / mean": lambda trace: f"{trace.most_running} / {trace.mean_running:.1f}",
            "held positions with a token in them": lambda trace: f"{trace.filled_share:.0%}",
            "steps until all are done": lambda trace: str(len(trace.frames)),
            "preemptions": lambda trace: str(trace.evictions),
            "tokens computed again": lambda trace: f"{trace.again} of {trace.tokens}",
            "blocks copied out and in": lambda trace: str(trace.swapped_blocks),
        },
    )


def crowd_table(traces: Mapping[int, PoolTrace]) -> Html:
    """Slots and throughput by what each request sets aside; 0 = block by block."""
    return table_by_name(
        "KV set aside for each",
        {f"{size} tokens" if size else "on demand": trace for size, trace in traces.items()},
        {
            "requests running, mean": lambda trace: f"{trace.mean_running:.1f}",
            "tokens/s": lambda trace: number(trace.tokens_per_s),
        },
    )
