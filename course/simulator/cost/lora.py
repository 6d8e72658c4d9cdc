"""Many LoRA adapters over one model: what they add to a step, and what memory they take.

An adapter (Hu et al. 2021, "LoRA", arXiv 2106.09685) is two thin matrices, A [rank, inputs] and B [outputs, rank],
beside every linear layer of the decoder. Each request of a step may want another one; they are multiplied together by
kernels that gather the adapters of all rows (Punica, Chen et al. 2023, arXiv 2310.18547), and all are kept in the
accelerator's memory, which the KV cache then lacks (S-LoRA, Sheng et al. 2023, arXiv 2311.03285).
"""

from typing import Any

from pydantic import Field, model_validator

from course.simulator.cost.models import PricedModel
from course.simulator.errors import PricingError
from minillm.strict_model import StrictModel

ADAPTER_BYTES = 2
"""Bytes of a parameter: adapters stay in bfloat16, whatever the weights are in."""


class Lora(StrictModel):
    """Adapters in use, each as likely as the others to be a request's. Real ones have favourites, so fewer are read."""

    _error: type[Exception] = PricingError

    adapters: int = Field(0, ge=0, description="how many are in use, all of them in memory; 0 = none")
    rank: int = Field(16, ge=1, description="of every adapter, on every linear layer of the decoder")

    @model_validator(mode="after")
    def _read(self) -> "Lora":
        self._only_with(self.adapters > 0, "adapters of at least 1", "rank")
        return self

    def check(self, model: PricedModel) -> None:
        """Raise PricingError if it is not known which layers of this model have adapters."""
        if self.adapters and not model.lora_params:
            raise PricingError("adapters of a mixture of experts are not priced: leave the LoRA adapters (--lora) out")

    def params(self, model: PricedModel) -> int:
        """Parameters of one adapter."""
        return self.rank * model.lora_params

    def stored_bytes(self, model: PricedModel) -> int:
        """Bytes of all adapters, over all accelerators."""
        return ADAPTER_BYTES * self.adapters * self.params(model)

    def distinct(self, requests: Any) -> Any:
        """Expected number of different adapters among those of so many requests: n (1 - (1 - 1/n)^B).

        Args:
            requests: B, a number.
        """
        return self.adapters * (1 - (1 - 1 / self.adapters) ** requests)


NO_LORA = Lora()
