"""Bytes of keys and values: the formula, the memory they come out of, the ways to share."""

from collections.abc import Mapping
from dataclasses import replace

from course.lab.explorer import Explorer, buttons, choices
from course.lab.style import ALARM, WIDTH, size
from course.lab.svg import INK, PAPER, SOFT, Picture, Scale, rect, text
from course.lessons.lesson_06.pictures import KV_FILL, READ
from course.lessons.lesson_07.kv_bytes import GQA, HEADS, Account, kinds_of

CONTEXTS = (250, 500, 1000, 1500, 2000, 3000, 4000, 6000, 8000, 16000, 32000)
WINDOWS = {"none": None, "512": 512, "2048": 2048, "4096": 4096}
BITS = {"32 bits": "float32", "16 bits": "bfloat16", "8 bits": "int8"}
HEIGHT, LEFT, RIGHT = 276.0, 4.0, 4.0
BAR_TOP, LOWER = 62.0, 152.0
MOST_DRAWN = 120
"""More chats than that are one grey mass; then their number says it."""


def kv_bytes_explorer(by_name: Mapping[str, Account], start: str) -> Explorer:
    """The bytes of a chat, with sliders."""

    return Explorer(
        lambda model, heads, kv, context, window: draw_kv_bytes(
            replace(by_name[model], heads=heads, kv_dtype=BITS[kv], context=context, window=WINDOWS[window])
        ),
        model=buttons("model", list(by_name), start),
        heads=buttons("keys and values", list(HEADS)),
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
    return Picture(f"{account.shape.name}: what does one chat keep, and how many fit?", body, HEIGHT, description=told)


def _words(account: Account) -> str:
    body = text(LEFT, 14, f"{account.formula()}  =  {size(account.token_bytes)} a token", size=13)
    words = f"× {account.context:,} tokens, in whole blocks"
    if account.window is not None:
        words = f"× the last {account.window} of {account.context:,} tokens and {account.sinks} sinks, in whole blocks"
    if account.copies > 1:
        words += f", × {account.copies:g} copies: one head cannot be split across {account.shape.gpus} GPUs"
    return body + text(LEFT, 34, f"{words}  =  {size(account.chat_bytes)} a chat", size=13)


def _memory(account: Account) -> str:
    """Weights and chats in the memory that there is."""
    scale = Scale(0, max(account.room, account.weight_bytes), LEFT, WIDTH - RIGHT)
    edge = scale(account.weight_bytes)
    body = rect(LEFT, BAR_TOP, WIDTH - LEFT - RIGHT, 30, fill="none", stroke=SOFT)
    body += rect(LEFT, BAR_TOP, edge - LEFT, 30, fill=READ)
    dark = {"fill": "#1f2328", "stroke": "#ffffff", "stroke_width": 2, "paint_order": "stroke"}
    body += text(LEFT + 6, BAR_TOP + 20, f"weights {size(account.weight_bytes)}", size=12, **dark)
    wide = scale(account.chat_bytes) - scale(0)
    if account.chats > MOST_DRAWN:
        body += rect(edge, BAR_TOP, wide * account.chats, 30, fill=KV_FILL)
    else:
        for i in range(account.chats):
            body += rect(edge + i * wide, BAR_TOP + 1, max(wide - 0.7, 0.4), 28, fill=KV_FILL)
    free = account.room - account.weight_bytes
    words = f"{account.chats:,} chats fit" if account.chats else "not one chat fits"
    where = f"this lab's pool: {size(max(free, 0))}" if not account.shape.gpus else f"room for KV: {size(max(free, 0))}"
    body += text(WIDTH - RIGHT, BAR_TOP + 48, where, size=12, fill=SOFT, text_anchor="end")
    beyond = account.context > account.shape.cost.max_context
    over = f"; the model was trained for {account.shape.cost.max_context:,} tokens only" if beyond else ""
    fill = INK if account.chats and not beyond else ALARM
    return body + text(LEFT, BAR_TOP + 50, words + over, size=15, font_weight="bold", fill=fill)


def _kinds(account: Account) -> str:
    """The same chat under each way to share."""
    kinds = kinds_of(account)
    most = max(kind.chat_bytes for kind in kinds.values())
    scale = Scale(0, most, 96, WIDTH - 80)
    body = text(LEFT, LOWER - 8, "one chat, by what its heads share", size=12, fill=SOFT)
    for i, (name, kind) in enumerate(kinds.items()):
        y = LOWER + 30 * i
        chosen = kind.kv.vectors == account.kv.vectors and kind.kv.kind == account.kv.kind
        told = f"{name}, {kind.group} share" if name == GQA else name
        body += text(90, y + 15, told, size=12, text_anchor="end", font_weight="bold" if chosen else "normal")
        body += rect(96, y, max(scale(kind.chat_bytes) - 96, 1.5), 21, fill=KV_FILL, stroke=INK if chosen else "none",
                     stroke_width=2)  # fmt: skip
        body += text(scale(kind.chat_bytes) + 5, y + 15, size(kind.chat_bytes), size=11, stroke=PAPER, stroke_width=3,
                     paint_order="stroke")  # fmt: skip
    return body
