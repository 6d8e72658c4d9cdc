"""Pictures and tables of lesson 06b: experts read, ranks that wait, and room for latent KV."""

import json
from collections.abc import Mapping

from course.lab.display import Html, as_table
from course.lab.explorer import Explorer, buttons, choices, slider
from course.lab.pictures.chart import Axis, Curve, Mark, draw_chart
from course.lab.style import ALARM, WIDTH, number, seconds, size
from course.lab.svg import HALO, INK, SOFT, Picture, Scale, line, rect, text
from course.lessons.lesson_06 import simulated
from course.lessons.lesson_06b.run import (
    BATCHES,
    CHOSEN,
    EXPERTS,
    GPUS,
    NODES,
    PARALLEL,
    SLICED,
    STRIPED,
    expected,
    room,
    wide_shares,
    work_by_rank,
)
from course.simulator.cost.hardware import find_hardware
from course.simulator.cost.models import LATENT_SHAPES
from course.simulator.cost.sizes import KVCacheSize

MODELS = {"Qwen3 30B-A3B": (128, 8), "Mixtral 8x7B": (8, 2), "DeepSeek-V3": (256, 8)}
"""Experts of a layer, and those that a token is sent to."""


def share_explorer(found: Mapping[int, float]) -> Explorer:
    """The share of the experts that a step reads, by batch, for models of today."""
    return Explorer(
        lambda model, batch: draw_share(found, model, batch),
        model=buttons("experts of", list(MODELS)),
        batch=choices("tokens in the step", BATCHES, 8),
    )


def draw_share(found: Mapping[int, float], model: str, batch: int) -> Picture:
    """The expectation for a model, and what the random one read."""
    (num, chosen), xs = MODELS[model], [2 ** (i / 4) for i in range(29)]
    share = expected(num, chosen, batch)
    curves = [
        Curve(f"{chosen} of {num}, all equally likely", xs, [100 * expected(num, chosen, x) for x in xs], "dashes")
    ]
    if (num, chosen) == (128, 8):
        curves.append(
            Curve("the engine, random weights", list(found), [100 * each for each in found.values()], "points")
        )
    return draw_chart(
        f"{model}: a step of {batch} reads {share * num:.0f} of {num} experts, if all are equally likely",
        curves,
        Axis("tokens in the step (batch)", log=True),
        Axis("experts read, % of a layer's", low=0, high=105),
        [Mark(f"{share:.0%} for {batch * chosen / num:.2g} tokens per expert", x=batch, y=100 * share)],
    )


DENSE_BATCHES = (1, 8, 64, 256)
PAIR = ("qwen3-30b-a3b", "qwen3-32b")


def dense_table(context: int = 1024) -> Html:
    """A mixture of experts beside a dense model of the same size, one step each on two H100s."""
    rows = []
    for batch in DENSE_BATCHES:
        moe, dense = (simulated.price(simulated.stack(simulated.TODAY, model, tp=2), batch, context) for model in PAIR)
        gain = f"× {dense.itl / moe.itl:.1f}"
        rows.append((str(batch), seconds(dense.itl), seconds(moe.itl), gain))
    return as_table(("batch", "Qwen3 32B (dense)", "Qwen3 30B-A3B", "speedup"), rows)


def imbalance() -> Explorer:
    """What each rank has to do in one layer of one step; redrawn for each setting."""
    return Explorer(
        draw_ranks,
        ranks=choices("GPUs", (2, 4, 8, 16), 8),
        tokens=choices("tokens in the step", (1, 8, 32, 128, 512), 32),
        skew=slider("popularity of GPU 0's experts", 1.0, 2.0, 1.0, 0.25),
    )


HALF, GAP = 0.5, 84
"""Where the second column of bars begins, as a share of the width; and what a bar leaves for its number."""


def draw_ranks(ranks: int, tokens: int, skew: float) -> Picture:
    """Two bars a GPU: rows to multiply, and experts to read. The layer is done when the slowest GPU is."""
    work = work_by_rank(ranks, tokens, skew)
    columns = {"rows": [each.rows for each in work], "experts": [each.experts for each in work]}
    bottom, body, over, told = 22 * ranks + 22, "", {}, []
    for i, (name, counts) in enumerate(columns.items()):
        left = 64 + i * HALF * WIDTH
        mean, most, labels = sum(counts) / ranks, max(counts), ""
        over[name] = most / mean
        scale = Scale(0, most * 1.02, left, left + HALF * WIDTH - 64 - GAP)
        for rank, count in enumerate(counts):
            y, busiest = 22 + 22 * rank, count == most
            body += text(left - 8, y + 13, f"GPU {rank}", size=11, text_anchor="end")
            body += rect(left, y, scale(count) - left, 17, fill=ALARM if busiest else "#56B4E9")
            fill = ALARM if busiest else INK
            labels += text(scale(count) + 5, y + 13, f"{count} {name}", size=11, fill=fill, **HALO)
        body += line(scale(mean), 18, scale(mean), bottom, stroke=INK, stroke_dasharray="4 3") + labels
        body += text(scale(mean), 13, f"even share: {number(mean)}", size=11, fill=SOFT, text_anchor="middle")
        told.append(f"{name} by GPU {counts}, even share {number(mean)}")
    rows, experts = over.values()
    times = f"multiplies {rows:.2f} times its even share of rows and reads {experts:.2f} times that of experts"
    words = f"{tokens} tokens, {CHOSEN} of {EXPERTS} experts each: {'; '.join(told)}."
    return Picture(f"The busiest GPU {times}", body, bottom + 6, description=words)


WIDE_CARD = "h200"


def wide_ep_table(tokens_per_gpu: int = 64) -> Html:
    """A row a width: what each GPU holds and reads, how many rows an expert gets, and what crosses the links."""
    card = find_hardware(WIDE_CARD)
    rows = []
    for each in wide_shares(tokens_per_gpu):
        held, sent = size(each.bytes), size(each.sent)
        read = seconds(each.bytes / card.bandwidth)
        rows.append((str(each.gpus), number(each.experts), held, read, number(each.rows), sent))
    header = ("GPUs", "experts per layer", "expert weights", f"to read them ({WIDE_CARD.upper()})", "rows per expert")
    return as_table((*header, "sent per GPU and step"), rows)


def kv_table() -> Html:
    """What a token's KV takes by kind of attention, for DeepSeek-V3's heads and layers, in bf16."""
    hf = json.loads(LATENT_SHAPES["deepseek-v3"].read_text())
    layers, heads, head = hf["num_hidden_layers"], hf["num_attention_heads"], hf["v_head_dim"]
    kinds = [KVCacheSize.of_heads(layers, heads, kv_heads, head) for kv_heads in (heads, 8, 1)]
    kinds.append(KVCacheSize("MLA", layers, 1, hf["kv_lora_rank"] + hf["qk_rope_head_dim"]))
    rows = [
        (k.kind, str(k.vectors), str(k.vector_size), f"{k.bytes_per_token('bfloat16') / 1e3:,.1f} kB") for k in kinds
    ]
    return as_table(("attention", "vectors per layer", "numbers each", "KV per token"), rows)


def latent_room() -> Explorer:
    """Room for KV, three ways."""
    return Explorer(draw_room, card=choices("card", ("h200", "b200"), "h200"), gpus=choices("GPUs", NODES, GPUS))


def draw_room(card: str, gpus: int) -> Picture:
    """A bar for each way to spread attention: tokens of KV that fit, on all GPUs together."""
    found = room(gpus, card)
    scale, body = Scale(0, max(found.values()) * 1.02, 230, WIDTH - 130), ""
    for i, (way, tokens) in enumerate(found.items()):
        y = 8 + 30 * i
        body += text(222, y + 15, way, size=12, text_anchor="end")
        body += rect(230, y, scale(tokens) - 230, 22, fill="#56B4E9", stroke=SOFT, stroke_width=0.4)
        body += text(scale(tokens) + 5, y + 15, f"{tokens / 1e6:.2f} million tokens", size=12)
    dp, dcp = (found[way] / found[SLICED] for way in (PARALLEL, STRIPED))
    told = "; ".join(f"{way}: {tokens / 1e6:.2f} million tokens" for way, tokens in found.items())
    times = f"{dp:.1f} times the KV with DP attention, {dcp:.1f} times with DCP"
    return Picture(f"DeepSeek-V3 on {gpus} {card.upper()}s: room for {times}", body, 104, description=told)
