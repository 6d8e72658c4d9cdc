"""A runner without a model, which notices every mistake in block tables, sharing and swapping.

It keeps a KV cache of token ids: each step writes them to their slots, and then reads every context
back through the block table. The next token is a hash of what was read, so a request whose blocks hold
anything but its own tokens produces different text, or trips the assertion on the spot.
"""

import zlib

from minillm.clock import VirtualClock
from minillm.runners.base import StepOutput
from minillm.scheduling.batch import ScheduledBatch

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

    def execute(self, batch: ScheduledBatch) -> StepOutput:
        self.batches.append(batch)
        start = self.clock.now()
        if self.fail_next is not None:
            error, self.fail_next = self.fail_next, None
            raise error
        for copy in batch.swap_out:
            self.host[copy.target] = list(self.device[copy.source])
        for copy in batch.swap_in:
            self.device[copy.target] = list(self.host[copy.source])
        for scheduled in batch.requests:
            for position in range(scheduled.start, scheduled.end):
                block = scheduled.block_ids[position // self.block_size]
                self.device[block][position % self.block_size] = scheduled.request.token_ids(position, position + 1)[0]
        self.clock.advance(0.010 + 0.0001 * batch.num_tokens)
        tokens = {}
        for scheduled in batch.requests:
            context = [
                self.device[scheduled.block_ids[p // self.block_size]][p % self.block_size]
                for p in range(scheduled.end)
            ]
            assert context == scheduled.request.token_ids(0, scheduled.end), "it reads somebody else's tokens"
            if scheduled.samples:
                tokens[scheduled.request.request_id] = [next_token(context)]
        forward_end = self.clock.now()
        self.clock.advance(0.001)
        return StepOutput(tokens, forward_end, {"build": 0.0, "forward": forward_end - start, "sample": 0.001})
