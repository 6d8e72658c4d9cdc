"""An engine core on a runner that counts, and a policy that saves all: for tests of the core alone."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from integrity import check_core

from minillm.core.batch import BlockCopy, ScheduledBatch, StepOutput
from minillm.core.block_manager import BlockManager
from minillm.core.engine import EngineCore
from minillm.core.params import SamplingParams
from minillm.core.request import Request, TokenLogprob
from minillm.core.scheduler import Scheduler, SchedulerConfig
from minillm.core.seams import DraftPolicy, PreemptionPolicy, QueuePolicy, Recompute
from minillm.core.timeline import Timeline, VirtualClock


@dataclass
class CountingRunner:
    """The next token is the number of tokens so far. A step takes a second, and `per_token_s` for each of its tokens.
    `errors` are of the next step."""

    clock: VirtualClock
    num_kv_blocks: int = 8
    num_host_blocks: int = 0
    block_size: int = 4
    runs_beside_python: bool = True
    tokens_at_once: int = 1
    per_token_s: float = 0.0
    errors: dict[str, str] = field(default_factory=dict)
    copied: list[ScheduledBatch] = field(default_factory=list)
    copy_raises: BaseException | None = None
    launch_raises: BaseException | None = None
    wait_raises: BaseException | None = None

    def launch(self, batch: ScheduledBatch) -> "CountingStep":
        raised, self.launch_raises = self.launch_raises, None
        if raised is not None:
            raise raised
        return CountingStep(self, batch)

    def copy_blocks(self, batch: ScheduledBatch) -> None:
        self.copied.append(batch)
        if self.copy_raises is not None:
            raise self.copy_raises


@dataclass
class CountingStep:
    runner: CountingRunner
    batch: ScheduledBatch

    def wait(self) -> StepOutput:
        forward_s = 1.0 + self.runner.per_token_s * self.batch.num_tokens
        self.runner.clock.advance(forward_s)
        raised, self.runner.wait_raises = self.runner.wait_raises, None
        if raised is not None:
            raise raised
        errors, self.runner.errors = self.runner.errors, {}
        counts = {p.request.request_id: p.end - p.num_drafts for p in self.batch.requests if p.samples}
        tokens = {name: [*range(count, count + self.runner.tokens_at_once)] for name, count in counts.items()}
        logprobs = {name: [TokenLogprob(token, -1.0, {}) for token in new] for name, new in tokens.items()}
        return StepOutput(tokens, self.runner.clock.now(), {"forward": forward_s}, logprobs, errors)


class SaveAll(Recompute):
    """Has room for everything, and notes who is saved and forgotten."""

    def __init__(self) -> None:
        super().__init__()
        self.saved: set[Request] = set()

    def save(self, request: Request, block_ids: Mapping[int, int]) -> list[BlockCopy]:
        self.saved.add(request)
        return [BlockCopy(block, block) for block in block_ids.values()]

    def restore(self, request: Request, block_ids: Mapping[int, int]) -> list[BlockCopy]:
        self.saved.remove(request)
        return []

    def forget(self, request: Request) -> None:
        self.saved.discard(request)


def make_core(
    lookahead: int = 0,
    drafts: DraftPolicy | None = None,
    preemption: PreemptionPolicy | None = None,
    queue: QueuePolicy | None = None,
    scheduler: type[Scheduler] = Scheduler,
    enable_prefix_caching: bool = True,
    per_token_s: float = 0.0,
    **limits: int | None,
) -> EngineCore:
    clock = VirtualClock()
    runner = CountingRunner(clock, per_token_s=per_token_s)
    config = SchedulerConfig(max_model_len=32, **limits)
    blocks = BlockManager(runner.num_kv_blocks, runner.block_size, enable_prefix_caching=enable_prefix_caching)
    scheduling = scheduler(config, blocks, drafts=drafts, preemption=preemption, queue=queue)
    return EngineCore(scheduling, runner, clock, lookahead=lookahead)


def request(name: str, num_tokens: int = 8, max_tokens: int = 4) -> Request:
    return Request(name, [num_tokens] * num_tokens, SamplingParams(max_tokens=max_tokens), Timeline(0.0))


def add(core: EngineCore, *requests: Request) -> None:
    for each in requests:
        core.add(each)


def run(core: EngineCore) -> None:
    while core.has_unfinished:
        core.step()
        check_core(core)
    assert core.scheduler.kv.pool.num_used == 0
