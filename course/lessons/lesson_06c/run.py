"""Lesson 06c, linear and sparse attention: what a request keeps, what a step reads of it, and what a snapshot costs.

All of it is arithmetic on sizes that the models' publishers state in config.json (course/simulator/cost/shapes).
"""

from dataclasses import dataclass, replace

from course.lab.predict import MeasuredAnswer
from course.lab.style import size
from course.simulator.cost.hardware import find_hardware
from course.simulator.cost.models import PricedModel, find_model

DTYPE = "bfloat16"
"""Number format of keys and values. A recurrent state stays in float32."""
FULL, LATENT, HYBRID, SPARSE = (
    "Qwen3 235B: every layer full",
    "DeepSeek-V3: every layer full, latent",
    "Qwen3.5 397B: three layers of four linear",
    "GLM-5: every layer sparse, latent",
)
MODELS: dict[str, PricedModel] = {
    FULL: find_model("qwen3-235b-a22b"),
    LATENT: find_model("deepseek-v3"),
    HYBRID: find_model("qwen3.5-397b-a17b"),
    SPARSE: find_model("glm-5"),
}
CONTEXTS = (250, 500, 1000, 2000, 4000, 8000, 16_000, 32_000, 64_000, 128_000)


def kept(model: PricedModel, context: int) -> float:
    """Bytes that a request of so many tokens keeps: what grows, and what doesn't."""
    return model.kv_bytes_per_token(DTYPE) * context + model.fixed_kv_bytes(DTYPE)


def read(model: PricedModel, context: int) -> float:
    """Bytes that a decode step moves for one such request: a state is read, and written back."""
    return model.seen(context, 1, DTYPE) * model.kv_bytes_per_token(DTYPE)


def least_s(model: PricedModel, context: int, batch: int, card: str = "b200") -> float:
    """Seconds that these reads take on one card, by its data sheet."""
    return batch * read(model, context) / find_hardware(card).bandwidth


def all_full(model: PricedModel) -> PricedModel:
    """The same model with keys and values in all layers, and no state in any."""
    return replace(model, growing_layers=model.layers, fixed_bytes=0)


def even_tokens(model: PricedModel) -> float:
    """The context at which a state takes as much as the keys and values that it replaces."""
    return model.fixed_bytes / (all_full(model).kv_bytes_per_token(DTYPE) - model.kv_bytes_per_token(DTYPE))


# ---------------------------------------------------------------- the bet

CHAT = 1000
"""Tokens of the chat in question."""
BETS = ("about a quarter of it", "about as much", "more")
NEAR = 0.15


def short_chat() -> MeasuredAnswer:
    """What a hybrid model keeps of a short chat, against the same model with full attention in all layers."""
    model = MODELS[HYBRID]
    ours, full = kept(model, CHAT), kept(all_full(model), CHAT)
    ratio = ours / full
    answer = BETS[1] if abs(ratio - 1) < NEAR else BETS[2] if ratio > 1 else BETS[0]
    return MeasuredAnswer(
        answer, f"{size(ours)}, {size(model.fixed_bytes)} of it states; {size(full)} with full attention everywhere"
    )


# ---------------------------------------------------------------- snapshots


@dataclass(frozen=True)
class Snapshots:
    """A prefix cache of a hybrid model, which keeps a state at every so many tokens."""

    model: PricedModel
    interval: int

    @property
    def state_bytes_per_token(self) -> float:
        return self.model.fixed_bytes / self.interval

    @property
    def bytes_per_token(self) -> float:
        return self.model.kv_bytes_per_token(DTYPE) + self.state_bytes_per_token

    def found(self, shared: int) -> int:
        """Tokens of a shared prefix that a hit spares: up to the last snapshot within it."""
        return shared // self.interval * self.interval
