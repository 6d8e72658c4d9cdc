"""Pictures and tables of lesson 06b: experts read, ranks that wait, and room for latent KV."""

import json
from collections.abc import Mapping

from course.lab.display import Html, as_table
from course.lab.explorer import Explorer, buttons, choices, slider
from course.lab.pictures.chart import Axis, Curve, Mark, draw_chart
from course.lab.style import ALARM, WIDTH, number, seconds, size
from course.lab.svg import INK, SOFT, Picture, Scale, line, rect, text
from course.lessons.lesson_06 import simulated
from course.lessons.lesson_06b.run import BATCHES, CHOSEN, EXPERTS, GPUS, NODES, expected, room, rows_by_rank
from course.simulator.cost.models import LATENT_SHAPES
from minillm.model.arithmetic import KVCacheSize

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
        f"{model}: a step of {batch} reads {share * num:.0f} of {num} experts in each layer",
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
    return as_table(("batch", "Qwen3 32B (dense)", "Qwen3 30B-A3B", "faster"), rows)


def imbalance() -> Explorer:
    """Rows by rank for one layer of one step; redrawn for each setting."""
    return Explorer(
        draw_ranks,
        ranks=choices("GPUs", (2, 4, 8, 16), 8),
        tokens=choices("tokens in the step", (1, 8, 32, 128, 512), 32),
        skew=slider("popularity of GPU 0's experts", 1.0, 2.0, 1.0, 0.25),
    )


def draw_ranks(ranks: int, tokens: int, skew: float) -> Picture:
    """A bar a GPU; the layer is done when the longest one is."""
    rows = rows_by_rank(ranks, tokens, skew)
    mean, most = sum(rows) / ranks, max(rows)
    scale, bottom, body = Scale(0, most * 1.02, 64, WIDTH - 84), 22 * ranks + 22, ""
    for rank, count in enumerate(rows):
        y, busiest = 22 + 22 * rank, count == most
        body += text(56, y + 13, f"GPU {rank}", size=11, text_anchor="end")
        body += rect(64, y, scale(count) - 64, 17, fill=ALARM if busiest else "#56B4E9")
        body += text(WIDTH - 8, y + 13, f"{count} rows", size=11, text_anchor="end", fill=ALARM if busiest else INK)
    body += line(scale(mean), 18, scale(mean), bottom, stroke=INK, stroke_dasharray="4 3")
    body += text(scale(mean), 13, f"even share: {number(mean)}", size=11, fill=SOFT, text_anchor="middle")
    told = f"{tokens} tokens, {CHOSEN} of {EXPERTS} experts each: rows by GPU {rows}, even share {number(mean)}."
    title = f"The layer waits for the busiest GPU: {most / mean:.2f} times an even share"
    return Picture(title, body, bottom + 6, description=told)


def kv_table() -> Html:
    """What a token's KV takes by kind of attention, for DeepSeek-V3's heads and layers, in bf16."""
    hf = json.loads(LATENT_SHAPES["deepseek-v3"].read_text())
    layers, heads, head = hf["num_hidden_layers"], hf["num_attention_heads"], hf["v_head_dim"]
    kinds = [KVCacheSize.of_heads(layers, heads, kv_heads, head) for kv_heads in (heads, 8, 1)]
    kinds.append(KVCacheSize("MLA", layers, 1, hf["kv_lora_rank"] + hf["qk_rope_head_dim"]))
    rows = [(k.kind, str(k.vectors), str(k.vector_size), size(k.bytes_per_token("bfloat16"))) for k in kinds]
    return as_table(("attention", "vectors per layer", "numbers each", "KV per token"), rows)


def latent_room() -> Explorer:
    """Room for KV by number of GPUs, both ways."""
    return Explorer(draw_room, card=choices("card", ("h200", "b200"), "h200"), gpus=choices("GPUs", NODES, GPUS))


def draw_room(card: str, gpus: int) -> Picture:
    """Room by number of GPUs, both ways; the chosen number is marked."""
    found = [room(each, card) for each in NODES]
    places, here = range(len(NODES)), found[NODES.index(gpus)]
    sliced, parallel = here.values()
    return draw_chart(
        f"DeepSeek-V3 on {gpus} {card.upper()}s: DP attention has room for {parallel / sliced:.1f} times the KV",
        [Curve(name, places, [each[name] / 1e6 for each in found]) for name in here],
        Axis("GPUs", names=[str(each) for each in NODES]),
        Axis("room for KV, million tokens in all", log=True),
        [Mark(f"{each / 1e6:.2f} million", x=NODES.index(gpus), y=each / 1e6) for each in here.values()],
    )
