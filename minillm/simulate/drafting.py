"""What drafting costs in the simulator: k steps of whatever drafts, one after the other.

The draft model's prefill is not priced, nor are its weights and KV cache taken off the memory.
"""

import math
import random
from collections.abc import Callable

from minillm.core.batch import ScheduledBatch
from minillm.core.errors import PricingError
from minillm.core.known import known
from minillm.model.arithmetic import ModelCost, find_model
from minillm.policies.config import SpeculativeConfig
from minillm.policies.window import Window
from minillm.runner.simulated import NO_DRAFTING, SimulatedDrafting
from minillm.simulate.roofline import EVERYTHING, StepTimeModel, StepWork


def simulated_drafting(
    config: SpeculativeConfig | None,
    model: ModelCost,
    step_time_of: Callable[[ModelCost], StepTimeModel],
    window: Window = EVERYTHING,
) -> SimulatedDrafting:
    """Drafts as configured: looked up for nothing, by a draft model at the price of its shape, by anything else at
    `draft_cost` of the model's own.

    Args:
        model: the one whose output is drafted.
        step_time_of: prices of any model on this deployment.
        window: what a token sees, in the draft model as in the other.
    Raises:
        UnknownModelError: there is no such draft model.
        PricingError: there is a `draft_cost`, and nothing that it could be the cost of.
    """
    if config is None:
        return NO_DRAFTING
    if "draft_cost" in config.model_fields_set and config.method in ("ngram", "draft_model"):
        price = "nothing" if config.method == "ngram" else "what its shape does"
        raise PricingError(f"with method={config.method} a draft costs {price}: leave draft_cost out")
    if config.method == "ngram":
        share, step_time = 0.0, step_time_of(model)
    elif config.method == "draft_model":
        share, step_time = 1.0, step_time_of(find_model(known(config.model)))
    else:
        share, step_time = config.draft_cost, step_time_of(model)

    def seconds(batch: ScheduledBatch) -> float:
        longest = max(scheduled.num_drafts for scheduled in batch.requests)
        return share * sum(step_time.price(draft_work(batch, place, window)).total for place in range(longest))

    return SimulatedDrafting(seconds, config.acceptance_rate, random.Random(config.seed))


def draft_work(batch: ScheduledBatch, place: int, window: Window = EVERYTHING) -> StepWork:
    """Drafting the token at a place (from 0) of every draft that is so long."""
    most = math.inf if window.size is None else window.size + window.sinks
    contexts = [min(s.start + 1 + place, most) for s in batch.requests if s.num_drafts > place]
    return StepWork(len(contexts), len(contexts), len(contexts), sum(contexts), sum(contexts), 0)
