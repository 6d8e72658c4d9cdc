"""The optimisations that can be switched, and which of them a given engine has."""

from dataclasses import dataclass
from typing import Any

from minillm.core.errors import ConfigError
from minillm.policies.config import EngineConfig


@dataclass(frozen=True, slots=True)
class Variant:
    """The default configuration but for `fields`."""

    name: str
    fields: dict[str, Any]
    device_type: str | None = None
    """The only kind of device it makes sense on; None = any."""
    slow_start: bool = False
    """It takes a minute to build: left out where nothing is to be measured."""


DEFAULT = Variant("default", {})

VARIANTS = (
    Variant("eager attention", {"attention_backend": "eager"}),
    Variant("sdpa attention", {"attention_backend": "sdpa"}),
    Variant("triton attention", {"attention_backend": "triton"}, "cuda"),
    Variant("no CUDA graphs", {"cuda_graphs": False}, "cuda"),
    Variant("no async scheduling", {"async_scheduling": False}, "cuda"),
    Variant("no fused kernels", {"fused_kernels": False}),
)
"""Switched off alone, or, where off is the default, on. A field that EngineConfig lacks leaves its variant out."""


def applicable(config: EngineConfig, device_type: str, quick: bool) -> list[Variant]:
    """The default and every variant that this engine has on this device, and that changes a setting."""
    return [DEFAULT, *(variant for variant in VARIANTS if _applies(variant, config, device_type, quick))]


def _applies(variant: Variant, config: EngineConfig, device_type: str, quick: bool) -> bool:
    if variant.device_type not in (None, device_type) or (quick and variant.slow_start):
        return False
    if not set(variant.fields) <= set(EngineConfig.model_fields):
        return False
    try:
        changed = config.replace(**variant.fields)
    except ConfigError:  # a value that the field does not have yet, or that contradicts another field
        return False
    return changed.model_dump() != config.model_dump()
