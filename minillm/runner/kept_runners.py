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
from minillm.runner.kv_pool import NO_CLAIM, MemoryClaim
from minillm.runner.torch_runner import TorchRunner

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
        if runner is None or model is None or not runner.suits(model, config.for_device(model.device.type)):
            self._before = {}
        return bool(self._before)

    @property
    def drafting_model(self) -> LoadedModel | None:
        """The weights that drafted in the engine before, if a runner has them."""
        runner = self._before.get("drafts")
        return None if runner is None else runner.model

    def take(
        self, role: Role, model: LoadedModel, config: EngineConfig, clock: Clock, claim: MemoryClaim = NO_CLAIM
    ) -> TorchRunner:
        """A runner for an engine: the one of before, or a new one. Arguments and errors as TorchRunner's."""
        runner = self._before.get(role)
        if runner is not None and runner.suits(model, config) and self._has_room(runner, config, claim):
            del self._before[role]
            runner.start_over(config, clock, claim)
        else:
            del runner
            self.drop(role)  # before its memory is asked for
            runner = TorchRunner(model, config, clock, claim=claim)
        self._taken[role] = runner
        return runner

    def drop(self, *roles: Role) -> None:
        """Let go of what is left of the engine before: this one has no use for it, or wants the memory."""
        rest = [weakref.ref(self._before.pop(role)) for role in roles if role in self._before]
        if any(runner() is not None for runner in rest):  # something refers to itself
            gc.collect()

    def _has_room(self, runner: TorchRunner, config: EngineConfig, claim: MemoryClaim) -> bool:
        """Whether there is room beside a kept runner for what its next engine needs. False: there is with a smaller KV
        pool, which is all that the engine asks for. Raises as `runner.check_room` if that wouldn't help, but not for
        want of memory that a kept runner has: a claim for drafts is for a KV pool that may be there already, and isn't
        to be counted twice."""
        try:
            runner.check_room(config, claim)
        except (ConfigError, OutOfMemoryError):
            if runner.has_spare_blocks(config):
                return False
            if "drafts" not in self._before:
                raise
            self.drop("drafts")
            runner.check_room(config, claim)
        return True
