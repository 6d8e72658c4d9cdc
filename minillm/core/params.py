"""What a caller may set for one request."""

from functools import cached_property
from typing import Annotated, Any

from pydantic import Field, field_validator, model_validator

from minillm.core.errors import InvalidSamplingParamsError
from minillm.strict_model import StrictModel
from minillm.text_files import half_character

SEED_STRIDE = 1_000_003
"""A prime far above what people choose: seeds that are to be apart are so many apart, and never meet a neighbour's."""
Bias = Annotated[float, Field(ge=-1e30, le=1e30)]
"""A float32 logit stays finite with it: -1e30 rules a token out, as -inf would."""


class SamplingParams(StrictModel):
    """How the next token is chosen and when to stop. Every field works; unknown ones are refused."""

    _error: type[Exception] = InvalidSamplingParamsError

    max_tokens: int = Field(128, ge=1, description="most output tokens")
    min_tokens: int = Field(0, ge=0, description="fewest output tokens: until then nothing that would end it counts")
    temperature: float = Field(1.0, ge=0, description="0 = greedy")
    top_k: int = Field(0, ge=0, description="keep the k most likely tokens; 0 = all")
    top_p: float = Field(1.0, gt=0, le=1, description="keep the smallest set with this probability; 1 = all")
    min_p: float = Field(0.0, ge=0, le=1, description="drop tokens below min_p times the likeliest's probability")
    repetition_penalty: float = Field(1.0, gt=0, description="divides (or multiplies) logits of tokens seen; 1 = off")
    presence_penalty: float = Field(0.0, ge=-2, le=2, description="subtracted once from logits of tokens generated")
    frequency_penalty: float = Field(0.0, ge=-2, le=2, description="subtracted per occurrence in the output")
    logit_bias: tuple[tuple[int, Bias], ...] = Field((), description="token ids and what is added to their logits")
    seed: int | None = Field(None, description="same seed, same output, whatever else runs; but see docs/engine.md")
    stop: tuple[str, ...] = Field((), description="end when one of these appears; it is not part of the text")
    stop_token_ids: tuple[int, ...] = Field((), description="end when one of these is sampled")
    ignore_eos: bool = Field(False, description="go on past the model's end-of-sequence token")
    logprobs: int | None = Field(None, ge=0, le=20, description="report this many top log-probabilities per token")
    structured_outputs: Any = Field(None, description="a StructuredOutputsParams: what the output must be")
    n: int = Field(1, ge=1, le=64, description="independent outputs for one prompt")

    @cached_property
    def has_penalty(self) -> bool:
        """Whether what was said before changes the next token's logits."""
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0

    @cached_property
    def takes_likeliest(self) -> bool:
        """Whether the next token is the model's most likely one, once there are min_tokens."""
        return self.temperature == 0 and not (self.has_penalty or self.logit_bias)

    @cached_property
    def has_filter(self) -> bool:
        """Whether unlikely tokens are left out: top-k, top-p or min-p."""
        return self.top_k > 0 or self.top_p < 1 or self.min_p > 0

    @field_validator("stop", "stop_token_ids", "logit_bias", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        value = tuple(value.items()) if isinstance(value, dict) else value
        return () if value is None else (value,) if isinstance(value, (str, int)) else value

    @field_validator("stop")
    @classmethod
    def _stops_are_texts(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if any(not text for text in value):
            raise ValueError("a stop string must not be empty")
        for text in value:
            if problem := half_character(text):
                raise ValueError(f"a stop string is no Unicode text: {problem}")
        return value

    @model_validator(mode="after")
    def _min_is_at_most_max(self) -> "SamplingParams":
        if self.min_tokens > self.max_tokens:
            raise ValueError(f"min_tokens is {self.min_tokens}, and max_tokens {self.max_tokens}: it can't be more")
        return self
