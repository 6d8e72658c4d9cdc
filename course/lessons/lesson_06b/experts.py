"""A small mixture of experts with random weights on the real engine: which experts does a step read?"""

import json
import shutil
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor

from course.lab.explorer import Explorer, buttons, choices
from course.lab.lab import Lab
from course.lab.pictures.chart import Axis, Curve, Mark, draw_chart
from course.lab.predict import Outcome
from course.lab.svg import Picture
from course.lessons.lesson_06.profiling import decoding
from minillm.model.checkpoints import SHAPES, resolve
from minillm.model.moe import Router

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
BET = 64
SMALL = {"hidden_size": 128, "moe_intermediate_size": 32, "num_hidden_layers": 4, "head_dim": 32}
SMALL |= {"num_attention_heads": 4, "num_key_value_heads": 2}
"""Of Qwen3-30B-A3B's shape everything but the experts: 128 of them, 8 per token."""
MODELS = {"Qwen3 30B-A3B": (128, 8), "Mixtral 8x7B": (8, 2), "DeepSeek-V3": (256, 8)}
"""Experts of a layer, and those that a token is sent to."""


def expected(num: int, chosen: int, tokens: float) -> float:
    """Share of the experts that so many tokens wake, if all are equally likely."""
    return 1 - (1 - chosen / num) ** tokens


def small_moe(lab: Lab) -> Path:
    """A folder with the shape of a small mixture of experts, and the tokenizer of the lab's model."""
    source, folder = resolve(lab.config().model), Path(tempfile.mkdtemp(prefix="moe"))
    config = json.loads(SHAPES["qwen3-30b-a3b"].read_text())
    vocab = json.loads((source / "config.json").read_text())["vocab_size"]
    (folder / "config.json").write_text(json.dumps({**config, **SMALL, "vocab_size": vocab}))
    for path in source.glob("token*"):
        shutil.copy(path, folder)
    return folder


def routed(lab: Lab, batches: Sequence[int] = BATCHES, steps: int = 8) -> dict[int, float]:
    """By batch: the share of a layer's experts that a decode step of the engine reads, the mean of layers and steps."""
    moe = Lab(short=True, model=str(small_moe(lab)), load_format="dummy", dtype="float32")
    try:
        return {batch: _share_read(moe, batch, steps) for batch in batches}
    finally:
        moe.close()


def _share_read(moe: Lab, batch: int, steps: int) -> float:
    seen: list[Tensor] = []
    with decoding(moe, batch, steps) as engine:
        routers = [each for each in engine.loaded_model.decoder.modules() if isinstance(each, Router)]
        hooks = [each.register_forward_hook(lambda _, __, out: seen.append(out[0])) for each in routers]
        for _ in range(steps + 1):
            engine.step()
        for hook in hooks:
            hook.remove()
    return statistics.fmean(len(each.unique()) for each in seen if len(each) == batch) / 128


def share_bet(found: Mapping[int, float]) -> Outcome:
    """The share at a batch of BET, in percent."""
    even = expected(128, 8, BET)
    told = f"{found[BET]:.0%} of each layer's experts on the engine; {even:.0%} if all were equally likely"
    return Outcome(100 * found[BET], told)


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
