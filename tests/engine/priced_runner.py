"""A runner with a price list instead of a model: step = floor + tokens x price + requests x price, seconds.

Its clock moves when a step is waited for; the tokens are made up. Enough to test whatever is built over engines.
"""

from dataclasses import dataclass

from course.simulator.cluster.replica import EngineFactory
from minillm.core.batch import ScheduledBatch, StepOutput
from minillm.core.timeline import VirtualClock
from minillm.frontend.engine import Engine
from minillm.policies.config import EngineConfig


@dataclass
class PricedRunner:
    clock: VirtualClock
    num_kv_blocks: int
    floor_s: float
    token_s: float
    request_s: float
    runs_beside_python: bool
    num_host_blocks: int = 0
    block_size: int = 16
    free_at: float = 0.0
    """When it will have done all it was given."""

    def copy_blocks(self, batch: ScheduledBatch) -> None:
        """Copies are free."""

    def launch(self, batch: ScheduledBatch) -> "PricedStep":
        start = max(self.free_at, self.clock.now())
        seconds = self.floor_s + self.token_s * batch.num_tokens + self.request_s * len(batch.requests)
        self.free_at = end = start + seconds
        tokens = {s.request.request_id: [s.end % 1000] for s in batch.requests if s.samples}
        return PricedStep(self.clock, StepOutput(tokens, end, {"build": 0.0, "forward": end - start, "sample": 0.0}))


@dataclass(frozen=True)
class PricedStep:
    clock: VirtualClock
    output: StepOutput

    def wait(self) -> StepOutput:
        self.clock.advance_to(self.output.forward_end)
        return self.output


def priced_engines(
    floor_s: float = 0.010,
    token_s: float = 0.0001,
    request_s: float = 0.0,
    num_kv_blocks: int = 4096,
    runs_beside_python: bool = False,
    **config,
) -> EngineFactory:
    """A factory of engines that cost so much; `config` are EngineConfig's fields."""
    settings = EngineConfig(**{"max_model_len": 32768, "max_num_seqs": 32, "max_num_batched_tokens": 2048, **config})

    def make(clock: VirtualClock) -> Engine:
        runner = PricedRunner(clock, num_kv_blocks, floor_s, token_s, request_s, runs_beside_python)
        return Engine.on_runner(settings, runner, clock)

    return make
