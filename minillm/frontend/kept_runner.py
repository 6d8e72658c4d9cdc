"""One runner for engines that follow each other: what a change of a field leaves as it is isn't made anew.

A runner is the expensive part of an engine: the KV pool's memory, and on a GPU the recorded graphs. The scheduler and
its policies, which most fields are about, take a millisecond.
"""

from minillm.core.timeline import Clock
from minillm.frontend.engine import Engine
from minillm.model.loader import LoadedModel
from minillm.policies.config import EngineConfig
from minillm.runner.torch_runner import TorchRunner


class KeptRunner:
    """Builds engines, each on the runner of the one before if that would get just such a runner.

    At most one runner is kept: the memory of one that doesn't suit is free before the next is made.
    """

    def __init__(self) -> None:
        self._runner: TorchRunner | None = None

    def keeps(self, config: EngineConfig, model: LoadedModel | None) -> bool:
        """Whether an engine of this configuration goes on with the runner. Lets go of it otherwise.

        Args:
            model: the weights it gets; None = they are to be loaded.
        """
        runner = self._runner
        if runner is None or model is None or not runner.suits(model, config.for_device(model.device.type)):
            self._runner = None
        return self._runner is not None

    def build(self, config: EngineConfig, model: LoadedModel | None = None, *, clock: Clock) -> Engine:
        """An engine; the one before has ended. Arguments and errors as Engine's."""
        kept = self._runner if self.keeps(config, model) else None
        engine = Engine(config, model, clock=clock, kept=kept)
        # The ranks of tensor parallelism end with their engine.
        self._runner = engine.torch_runner if config.tensor_parallel_size == 1 else None
        return engine
