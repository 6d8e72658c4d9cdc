"""minillm's own core: the scheduler, block pool and engine that serve models, over the model that counts."""

from dataclasses import dataclass

from course.measure.conform.adapter import Limits, RefusedError
from course.measure.conform.counting import CountingModel, KernelRow
from minillm.core.batch import ScheduledBatch, ScheduledRequest, StepOutput
from minillm.core.errors import RequestError
from minillm.core.params import SamplingParams
from minillm.core.request import Request
from minillm.core.timeline import VirtualClock
from minillm.frontend.engine import Engine
from minillm.policies.config import EngineConfig


@dataclass
class CountedStep:
    output: StepOutput

    def wait(self) -> StepOutput:
        return self.output


class CountingRunner:
    """Lays a batch out as rows, as the real runners do for a GPU."""

    num_host_blocks = 0
    runs_beside_python = False

    def __init__(self, limits: Limits, model: CountingModel) -> None:
        self.model, self.num_kv_blocks, self.block_size = model, limits.num_blocks, limits.block_size

    def launch(self, batch: ScheduledBatch) -> CountedStep:
        tokens = self.model.forward([self.row(part) for part in batch.requests])
        sampled = {p.request.request_id: [token] for p, token in zip(batch.requests, tokens) if p.samples}
        return CountedStep(StepOutput(sampled, forward_end=0.0, stages={}))

    def copy_blocks(self, batch: ScheduledBatch) -> None:
        """Nothing is ever saved: preemption computes anew."""

    def row(self, part: ScheduledRequest) -> KernelRow:
        request: Request = part.request
        tokens = [*request.prompt_token_ids, *request.output_token_ids]
        slots = [part.block_ids[p // self.block_size] * self.block_size + p % self.block_size for p in range(part.end)]
        new = range(part.start, part.end)
        return KernelRow(tokens[part.start : part.end], new, slots[part.start :], slots)


class Adapter:
    """minillm's engine with its defaults."""

    def __init__(self, limits: Limits, model: CountingModel) -> None:
        config = EngineConfig(
            block_size=limits.block_size,
            max_num_seqs=limits.max_num_seqs,
            max_num_batched_tokens=limits.max_num_batched_tokens,
            max_model_len=limits.max_model_len,
        )
        self.block_size = limits.block_size
        self.engine = Engine.on_runner(config, CountingRunner(limits, model), VirtualClock())

    def add(self, name: str, prompt: list[int], max_tokens: int) -> None:
        params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
        try:
            self.engine.add_request(prompt, params, request_id=name)
        except RequestError as error:
            raise RefusedError(str(error)) from error

    def step(self) -> dict[str, list[int]]:
        before = {request: request.num_output_tokens for request in self.engine.core.requests.values()}
        self.engine.step()
        return {each.request_id.split("/")[0]: each.output_token_ids[count:] for each, count in before.items()}

    def is_idle(self) -> bool:
        return not self.engine.has_unfinished

    def num_free_tokens(self) -> int:
        pool = self.engine.scheduler.kv.pool
        return pool.num_free * self.block_size

    def abort(self, name: str) -> None:
        self.engine.abort(name)
