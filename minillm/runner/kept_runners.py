"""Runners for engines that follow each other: what a change of a field leaves as it is isn't made anew.

A runner is the expensive part of an engine: the KV pool's memory, and on a GPU the recorded graphs. The scheduler and
its policies, which most fields are about, take a millisecond.
"""

import gc
import weakref
from typing import Literal

from minillm.core.errors import ConfigError
from minillm.core.timeline import Clock
from minillm.host.errors import OutOfMemoryError
from minillm.model.loader import LoadedModel
from minillm.policies.config import EngineConfig
from minillm.runner.memory_budget import NO_CLAIM, STEP_FIELDS, MemoryClaim
from minillm.runner.torch_runner import TorchRunner

RUNNER_FIELDS = (
    "quantization",
    "block_size",
    "kv_cache_dtype",
    "sliding_window",
    "attention_sinks",
    "preemption",
    "swap_space_gb",
    "attention_backend",
    "cuda_graphs",
    "piecewise_graphs",
    "fused_kernels",
    "tensor_parallel_size",
)
"""Config fields that decide which kernels a runner has, over which memory: with another value it takes another one."""

POOL_FIELDS = ("num_kv_blocks", "kv_cache_memory_gb")
"""Config fields that size its KV pool. An engine that wants fewer blocks takes some of a larger pool."""

Role = Literal["model", "drafts"]
"""What a runner computes: the model that answers, or the one that drafts for it."""


class KeptRunners:
    """The runners of one engine, for the next: each is used again if that would get just such a runner.

    Of either role at most one is kept, and none that the last engine had no use for.
    """

    def __init__(self) -> None:
        self._before: dict[Role, TorchRunner] = {}
        self._taken: dict[Role, TorchRunner] = {}

    def turn_to(self, model: LoadedModel | None, config: EngineConfig) -> bool:
        """The engine of before has ended, and one of this configuration comes. Returns whether its model's runner is
        kept; if not, none is, and their memory is free.

        Args:
            model: the weights it gets; None = they are to be loaded.
        """
        if self._taken:
            self._before, self._taken = self._taken, {}
        runner = self._before.get("model")
        if runner is None or model is None or not suits(runner, model, config.for_device(model.device.type)):
            self._before = {}
        return bool(self._before)

    @property
    def drafting_model(self) -> LoadedModel | None:
        """The weights that drafted in the engine before, if a runner has them."""
        runner = self._before.get("drafts")
        return None if runner is None else runner.model

    def take(
        self,
        role: Role,
        model: LoadedModel,
        config: EngineConfig,
        clock: Clock,
        claim: MemoryClaim = NO_CLAIM,
        depths: tuple[int, ...] = (),
    ) -> TorchRunner:
        """A runner for an engine: the one of before, or a new one. Arguments and errors as TorchRunner's."""
        runner = self._before.get(role)
        if runner is not None and suits(runner, model, config) and self._has_room(runner, config, claim):
            del self._before[role]
            runner.reuse(config, clock, claim, depths)
        else:
            del runner
            self.drop(role)  # before its memory is asked for
            runner = TorchRunner(model, config, clock, claim=claim, depths=depths)
        self._taken[role] = runner
        return runner

    def drop(self, *roles: Role) -> None:
        """Let go of what is left of the engine before: this one has no use for it, or wants the memory."""
        rest = [weakref.ref(self._before.pop(role)) for role in roles if role in self._before]
        if any(runner() is not None for runner in rest):  # something refers to itself
            gc.collect()

    def _has_room(self, runner: TorchRunner, config: EngineConfig, claim: MemoryClaim) -> bool:
        """Whether the next engine's drafts and steps have room beside a kept runner. False: not beside this one, but
        the engine asks for a smaller KV pool, so a new runner will do.

        A kept runner that drafts may hold the very memory that the claim for drafts is about. So where there is no
        room, that runner is let go of, and the room checked again. Raises as `runner.check_room` if it's still not
        enough.
        """
        try:
            runner.check_room(config, claim)
        except (ConfigError, OutOfMemoryError):
            if runner.num_blocks_for(config) < runner.kv_pool.num_blocks:
                return False
            if "drafts" not in self._before:
                raise
            self.drop("drafts")
            runner.check_room(config, claim)
        return True


def suits(runner: TorchRunner, model: LoadedModel, config: EngineConfig) -> bool:
    """Whether a runner has what an engine of this configuration would get: weights, kernels, and memory enough."""
    if runner.model is not model or not config.same_in(runner.config, RUNNER_FIELDS):
        return False
    if runner.uses_graphs and runner.longest_context(config) > runner.longest_context(runner.pool_config):
        return False  # graphs have block tables as wide as that
    if config.num_kv_blocks is not None:
        return config.num_kv_blocks <= runner.kv_pool.num_blocks
    is_sized = config.kv_cache_memory_gb is not None
    return config.same_in(runner.pool_config, POOL_FIELDS if is_sized else (*POOL_FIELDS, *STEP_FIELDS))
