"""A runner without a model, which notices every mistake in block tables, sharing and swapping.

It keeps a KV cache of token ids: each step writes them to their slots, and then reads every context
back through the block table. The next token is a hash of what was read, so a request whose blocks hold
anything but its own tokens produces different text, or trips the assertion on the spot.
"""

import random
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from integrity import check_engine

from minillm.core.batch import ScheduledBatch, StepOutput
from minillm.core.params import SamplingParams
from minillm.core.request import Draft, Request
from minillm.core.timeline import VirtualClock
from minillm.frontend.engine import Engine
from minillm.frontend.outputs import RequestOutput
from minillm.policies.config import EngineConfig
from minillm.runner.rejection_sampler import num_kept
from minillm.speculation.base import DraftRequest, Proposer

EMPTY = -1


def next_token(context: list[int], vocab_size: int = 1000) -> int:
    return zlib.crc32(repr(context).encode()) % vocab_size


def expected_output(prompt: list[int], num_tokens: int) -> list[int]:
    context = list(prompt)
    for _ in range(num_tokens):
        context.append(next_token(context))
    return context[len(prompt) :]


class FakeRunner:
    def __init__(self, num_kv_blocks: int, block_size: int, clock: VirtualClock, num_host_blocks: int = 0) -> None:
        self.num_kv_blocks = num_kv_blocks
        self.num_host_blocks = num_host_blocks
        self.block_size = block_size
        self.clock = clock
        self.device = [[EMPTY] * block_size for _ in range(num_kv_blocks)]
        self.host = [[EMPTY] * block_size for _ in range(num_host_blocks)]
        self.batches: list[ScheduledBatch] = []
        self.fail_next: BaseException | None = None
        self.runs_beside_python = False
        self._last_sampled: dict[Request, int] = {}

    def copy_blocks(self, batch: ScheduledBatch) -> None:
        for copy in batch.saves:
            self.host[copy.target] = list(self.device[copy.source])
        for copy in batch.loads:
            self.device[copy.target] = list(self.host[copy.source])

    def launch(self, batch: ScheduledBatch) -> "FakeStep":
        """Does it all at once, as a CPU would."""
        self.batches.append(batch)
        start = self.clock.now()
        if self.fail_next is not None:
            error, self.fail_next = self.fail_next, None
            raise error
        self.copy_blocks(batch)
        for scheduled in batch.requests:
            for position in range(scheduled.start, scheduled.end):
                block = scheduled.block_ids[position // self.block_size]
                known = scheduled.request.token_ids(position, position + 1)
                # A token the host does not know yet is the one that the step before sampled.
                token = known[0] if known else self._last_sampled[scheduled.request]
                self.device[block][position % self.block_size] = token
        self.clock.advance(0.010 + 0.0001 * batch.num_tokens)
        sampled: dict[Request, list[int]] = {}
        for scheduled in batch.requests:
            context = [
                self.device[scheduled.block_ids[p // self.block_size]][p % self.block_size]
                for p in range(scheduled.end)
            ]
            known = scheduled.request.token_ids(0, scheduled.end)
            assert context[: len(known)] == known, "it reads somebody else's tokens"
            if scheduled.samples:
                drafts = scheduled.request.draft.token_ids[: scheduled.num_drafts]
                first = scheduled.end - scheduled.num_drafts
                outcomes = [next_token(context[:end]) for end in range(first, scheduled.end + 1)]
                sampled[scheduled.request] = outcomes[: num_kept(outcomes, drafts)]
        forward_end = self.clock.now()
        self.clock.advance(0.001)
        self._last_sampled = {request: tokens[-1] for request, tokens in sampled.items()}
        tokens = {request.request_id: tokens for request, tokens in sampled.items()}
        return FakeStep(
            StepOutput(tokens, forward_end, {"build": 0.0, "forward": forward_end - start, "sample": 0.001})
        )


@dataclass(frozen=True)
class FakeStep:
    output: StepOutput

    def wait(self) -> StepOutput:
        return self.output


class GuessingProposer(Proposer):
    """Knows what the fake runner will say, and says it with the given probability."""

    def __init__(self, rate: float = 0.7, seed: int = 0) -> None:
        self.rate = rate
        self.rng = random.Random(seed)

    def propose(self, wanted: Sequence[DraftRequest]) -> list[Draft]:
        return [Draft(self._guess(request.token_ids(0, request.num_known_tokens), k)) for request, k in wanted]

    def _guess(self, context: list[int], k: int) -> list[int]:
        for _ in range(k):
            right = next_token(context)
            context = [*context, right if self.rng.random() < self.rate else right + 1]
        return context[-k:]


BLOCK = 4


def make_engine(
    num_kv_blocks: int = 64, num_host_blocks: int = 0, *, proposer: Proposer | None = None, **fields: Any
) -> Engine:
    """An engine of small steps over a fake runner."""
    shape = dict(max_num_seqs=4, max_num_batched_tokens=16, max_model_len=128, block_size=BLOCK)
    clock = VirtualClock()
    runner = FakeRunner(num_kv_blocks, BLOCK, clock, num_host_blocks)
    return Engine.on_runner(EngineConfig(**{**shape, **fields}), runner, clock, proposer=proposer)


def greedy(max_tokens: int = 4, **fields: Any) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, **fields)


def drain(engine: Engine) -> dict[str, RequestOutput]:
    """Step until nobody is left, and return the last output of each; the books are checked after every step."""
    outputs = {}
    while engine.has_unfinished:
        outputs |= {output.request_id: output for output in engine.step()}
        check_engine(engine)
    assert engine.scheduler.kv.pool.num_used == 0
    return outputs
