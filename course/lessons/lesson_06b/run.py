"""Lesson 06b, mixtures of experts: which experts a step reads, and which rank holds what."""

import json
import random
import shutil
import statistics
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from course.lab.lab import Lab
from course.lab.predict import MeasuredAnswer
from course.lessons.lesson_06.run import decoding
from course.simulator.cost.hardware import find_hardware
from course.simulator.cost.models import LATENT_SHAPES, SHAPES, find_model
from course.simulator.cost.placement import USABLE_MEMORY, WORKING_BYTES, Placement, bytes_for_kv
from minillm.model.checkpoints import resolve
from minillm.model.moe import ExpertRouter

# ---------------------------------------------------------------- which experts a step reads

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
BET = 64
SMALL = {"hidden_size": 128, "moe_intermediate_size": 32, "num_hidden_layers": 4, "head_dim": 32}
SMALL |= {"num_attention_heads": 4, "num_key_value_heads": 2}
"""Sizes that replace Qwen3-30B-A3B's: all but the experts, 128 of them, 8 per token."""


def expected(num: int, chosen: int, tokens: float) -> float:
    """Share of the experts that so many tokens activate, if all are equally likely."""
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
    """By batch: the share of a layer's experts that a decode step of the engine reads, the mean of layers and steps.

    Raises:
        SimulatedDeviceError: no router chooses.
    """
    lab.needs_model("Watching which experts a router chooses")
    moe = Lab(short=True, model=str(small_moe(lab)), load_format="dummy", dtype="float32")
    try:
        return {batch: _share_read(moe, batch, steps) for batch in batches}
    finally:
        moe.close()


def _share_read(moe: Lab, batch: int, steps: int) -> float:
    seen: list[Tensor] = []
    with decoding(moe, batch, steps, cuda_graphs=False) as engine:  # a graph replays a router without asking it
        routers = [each for each in engine.loaded_model.decoder.modules() if isinstance(each, ExpertRouter)]
        hooks = [each.register_forward_hook(lambda _, __, out: seen.append(out[0])) for each in routers]
        for _ in range(steps + 1):
            engine.step()
        for hook in hooks:
            hook.remove()
    return statistics.fmean(len(each.unique()) for each in seen if len(each) == batch) / 128


def share_bet(found: Mapping[int, float]) -> MeasuredAnswer:
    """The share at a batch of BET, in percent."""
    even = expected(128, 8, BET)
    told = f"{found[BET]:.0%} of each layer's experts on the engine; {even:.0%} if all were equally likely"
    return MeasuredAnswer(100 * found[BET], told)


# ---------------------------------------------------------------- which rank holds what

GPUS, EXPERTS, CHOSEN = 8, 128, 8
NODES = (8, 16, 32)


@dataclass(frozen=True)
class RankWork:
    """What one rank does in one layer of one step."""

    rows: int
    """It multiplies: one for each token with one of its experts."""
    experts: int
    """Whose weights it reads: those that at least one token chose."""


def work_by_rank(ranks: int, tokens: int, skew: float, seed: int = 0) -> list[RankWork]:
    """One draw of where tokens' experts are. The first rank's experts are `skew` times as popular as they'd be."""
    draw, each = random.Random(seed), EXPERTS // ranks
    weights = [skew] * each + [(EXPERTS - skew * each) / (EXPERTS - each)] * (EXPERTS - each)
    found = Counter[int]()
    for _ in range(tokens):
        keys = [  # Efraimidis, Spirakis; where the first rank is all there is to choose, the others weigh nothing
            (draw.random() ** (1 / weight) if weight > 0 else -1.0, expert) for expert, weight in enumerate(weights)
        ]
        found.update(expert for _, expert in sorted(keys)[-CHOSEN:])
    own = [[found[expert] for expert in range(rank * each, (rank + 1) * each)] for rank in range(ranks)]
    return [RankWork(sum(counts), sum(count > 0 for count in counts)) for counts in own]


def attention_bytes() -> float:
    """Bytes of DeepSeek-V3's attention matrices in fp8: what data parallel attention keeps on every GPU."""
    hf, model = json.loads(LATENT_SHAPES["deepseek-v3"].read_text()), find_model("deepseek-v3")
    shared = hf["n_shared_experts"] + hf["num_experts_per_tok"]
    mlps = hf["first_k_dense_replace"] * 3 * hf["hidden_size"] * hf["intermediate_size"] + shared * model.expert_params
    return model.layer_params - mlps - model.sparse_layers * hf["hidden_size"] * model.num_experts


SLICED, PARALLEL, STRIPED = "tensor parallel", "data parallel attention", "tensor and decode context parallel"


def room(gpus: int = GPUS, card: str = "h200") -> dict[str, float]:
    """Tokens of DeepSeek-V3's KV (fp8 weights, bf16 KV) that fit on some GPUs, by how attention is spread: every GPU
    has all KV; or that of its own requests, and all attention weights; or a share of every request's positions."""
    model, memory = find_model("deepseek-v3"), find_hardware(card).memory
    token = model.kv_bytes_per_token("bfloat16")
    sliced = bytes_for_kv(model, memory, Placement(gpus, "fp8", "bfloat16"))
    attention = attention_bytes()
    whole = USABLE_MEMORY * memory - (model.stored_bytes("fp8") - attention) / gpus - attention - WORKING_BYTES
    once = max(sliced, 0) / token
    return {SLICED: once, PARALLEL: gpus * max(whole, 0) / token, STRIPED: gpus * once}


# ---------------------------------------------------------------- wide expert parallelism

WIDTHS = (8, 16, 32, 72, 144, 256)
"""GPUs that share DeepSeek-V3's experts."""


@dataclass(frozen=True)
class WideShare:
    """What one of so many GPUs holds, reads and sends in a step, all layers of experts together."""

    gpus: int
    experts: float
    """How many of each layer it holds or reads."""
    bytes: float
    """Expert weights in fp8: held, and read once all experts have a token."""
    rows: float
    """Tokens of each expert, on average."""
    sent: float
    """Bytes to and from other GPUs' experts: fp8 on the way there, 16 bits on the way back."""


def wide_shares(tokens_per_gpu: int, widths: Sequence[int] = WIDTHS) -> list[WideShare]:
    """DeepSeek-V3's experts over more and more GPUs, each with so many tokens of its own in a step."""
    hf, model = json.loads(LATENT_SHAPES["deepseek-v3"].read_text()), find_model("deepseek-v3")
    num, chosen, found = model.num_experts, hf["num_experts_per_tok"], []
    for gpus in widths:
        away = chosen * (1 - 1 / gpus)
        sent = model.sparse_layers * tokens_per_gpu * away * hf["hidden_size"] * (1 + 2)
        rows = tokens_per_gpu * gpus * chosen / num
        found.append(WideShare(gpus, num / gpus, model.expert_params * num / gpus, rows, sent))
    return found
