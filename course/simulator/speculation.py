"""Speculation where no model drafts and none checks: how many draft tokens are accepted, and what drafting costs."""

from typing import Literal

from pydantic import Field

from minillm.policies.config import EngineConfig, SpeculativeConfig


class SimulatedSpeculation(SpeculativeConfig):
    """The engine's SpeculativeConfig, with what a simulation has to be told in place of models."""

    method: Literal["ngram", "draft_model", "draft_head", "synthetic"] = Field(  # type: ignore[assignment]
        description="what drafts; synthetic = something that is right with the probability acceptance_rate"
    )
    acceptance_rate: float = Field(
        0.7, ge=0, le=1, description="a draft token is accepted with this probability, whatever the method"
    )
    draft_cost: float = Field(
        0.1, ge=0, description="without a draft model: seconds per draft step, in decode steps of the model"
    )
    seed: int = Field(0, description="seeds the draws")

    @classmethod
    def of(cls, config: SpeculativeConfig) -> "SimulatedSpeculation":
        """What a configuration of the engine is like in the simulator."""
        if isinstance(config, cls):
            return config
        return cls(**{name: getattr(config, name) for name in config.model_fields_set})


class SimulatedConfig(EngineConfig):
    """EngineConfig, with the simulator's settings of speculation."""

    speculative: SimulatedSpeculation | None = None
