"""What an engine is put together from: `load_parts` loads it, or a caller brings it (`Engine.on_runner`)."""

from typing import TYPE_CHECKING, NamedTuple

from minillm.core.batch import Runner
from minillm.policies.config import EngineConfig
from minillm.speculation.base import Proposer

if TYPE_CHECKING:
    from minillm.model.loader import LoadedModel


class EngineParts(NamedTuple):
    """All that an engine needs beside its policies."""

    config: EngineConfig
    """With the device's limits filled in."""
    model: "LoadedModel | None"
    """None: prompts are token ids, and nothing is detokenized."""
    runner: Runner
    proposer: Proposer | None
    """What drafts; None = nothing does."""
    row_cost: float
    """What one more row adds to the cost of a step with one: see marginal_row_cost."""
