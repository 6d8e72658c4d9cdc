"""Random engines under random traffic, on a runner that knows what every position of the KV cache must hold.

PYTHONPATH=.:tests/engine python -m core.soak 0 900     # so many seeds; what goes wrong is printed with its seed
"""

import logging
import random
import sys
import zlib
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from integrity import check_engine, check_swap

from minillm.core.batch import ScheduledBatch, ScheduledRequest, StepOutput
from minillm.core.block_pool import blocks_for
from minillm.core.errors import RequestError
from minillm.core.params import SamplingParams
from minillm.core.request import Draft, FinishReason, Request, RequestStatus
from minillm.core.timeline import VirtualClock
from minillm.frontend.engine import Engine
from minillm.policies.config import EngineConfig
from minillm.policies.preemption import Swap
from minillm.speculation.base import DraftRequest, Proposer

NUM_STEPS, ARRIVALS_END = 150, 110
STEPS_TO_DRAIN = 3000
"""Work left is finite: a request that is still there after so many steps waits for ever."""
VOCABULARY = 3
"""So few tokens that many prompts begin with the same ones, and share blocks."""
END = 2
"""Ends the requests that ask for it."""


def next_token(token_ids: list[int]) -> int:
    """What the model says after these."""
    return zlib.crc32(bytes(token_ids)) % VOCABULARY


class TickingClock(VirtualClock):
    """Time goes on between any two looks at it, also in the middle of a step."""

    def now(self) -> float:
        self.advance(0.0004)
        return super().now()


class CheckingRunner:
    """Writes down at each position of the cache all tokens up to it, and never clears any, as a GPU wouldn't. Each step
    must find what it attends to.

    Args:
        failure_rate: how often launching a step raises, and how often waiting for it.
    """

    runs_beside_python = True

    def __init__(
        self,
        config: EngineConfig,
        num_kv_blocks: int,
        num_host_blocks: int,
        clock: VirtualClock,
        rng: random.Random,
        failure_rate: float,
    ) -> None:
        assert config.block_size is not None
        self.config, self.clock, self.rng, self.failure_rate = config, clock, rng, failure_rate
        self.num_kv_blocks, self.num_host_blocks, self.block_size = num_kv_blocks, num_host_blocks, config.block_size
        self.sequences: dict[Request, list[int]] = {}
        """The tokens of each request, also those that the engine hasn't read yet."""
        self.device: defaultdict[int, dict[int, tuple[int, ...]]] = defaultdict(dict)
        """Block -> offset -> all tokens up to there."""
        self.host: dict[int, dict[int, tuple[int, ...]]] = {}
        self.launched: list[ScheduledBatch] = []
        self.wrong: list[str] = []
        """What was found. (An exception would be taken for a step that failed.)"""

    def launch(self, batch: ScheduledBatch) -> "CheckingStep":
        self.launched.append(batch)
        self.may_fail("launch")
        self.copy_blocks(batch)
        self.check_budget(batch)
        contexts = [self.context_of(part) for part in batch.requests]
        for part, context in zip(batch.requests, contexts):  # as in every layer: all write before any reads
            self.write(part, context)
        for part, context in zip(batch.requests, contexts):
            self.check(part, context)
        return CheckingStep(self, {p.request.request_id: self.sample(p) for p in batch.requests if p.samples})

    def copy_blocks(self, batch: ScheduledBatch) -> None:
        for copy in batch.saves:
            self.host[copy.target] = dict(self.device[copy.source])
        for copy in batch.loads:
            self.device[copy.target] = dict(self.host[copy.source])

    def may_fail(self, where: str) -> None:
        if self.rng.random() < self.failure_rate:
            raise RuntimeError(where)

    def check_budget(self, batch: ScheduledBatch) -> None:
        prompts = sum(part.num_tokens - part.num_drafts > 1 for part in batch.requests)
        whole_prompt = not self.config.enable_chunked_prefill and prompts == 1
        if batch.num_tokens > self.config.max_num_batched_tokens and not whole_prompt:
            self.wrong.append(f"a step has {batch.num_tokens} tokens")

    def context_of(self, part: ScheduledRequest) -> list[int]:
        sequence = self.sequences.setdefault(part.request, [*part.request.prompt_token_ids])
        return sequence + part.request.draft.token_ids[: part.num_drafts]

    def write(self, part: ScheduledRequest, context: list[int]) -> None:
        for position in range(part.start, part.end):
            block, offset = part.block_ids[position // self.block_size], position % self.block_size
            if block == self.num_kv_blocks:
                self.wrong.append(f"{part.request.request_id} writes position {position} to the null block")
            self.device[block][offset] = tuple(context[: position + 1])

    def check(self, part: ScheduledRequest, context: list[int]) -> None:
        window, sinks = self.config.sliding_window or part.end, self.config.attention_sinks
        for position in range(part.end):
            block, offset = part.block_ids[position // self.block_size], position % self.block_size
            is_seen = position > part.start - window or position < sinks
            if is_seen and self.device[block].get(offset) != tuple(context[: position + 1]):
                self.wrong.append(f"{part.request.request_id} attends to other tokens at position {position}")
                return

    def sample(self, part: ScheduledRequest) -> list[int]:
        sequence = self.sequences[part.request]
        if part.end - part.num_drafts != len(sequence):
            self.wrong.append(f"{part.request.request_id} samples at {part.end}, and has {len(sequence)} tokens")
        if part.request.params.has_penalty and part.request.num_known_tokens != len(sequence):
            self.wrong.append(f"{part.request.request_id} is penalized for tokens that aren't all known")
        new = []
        for draft in (*part.request.draft.token_ids[: part.num_drafts], None):
            token = next_token(sequence)
            sequence.append(token)
            new.append(token)
            if token != draft:
                break
        return new


@dataclass
class CheckingStep:
    runner: CheckingRunner
    tokens: dict[str, list[int]]

    def wait(self) -> StepOutput:
        self.runner.clock.advance(0.010)
        self.runner.may_fail("wait")
        return StepOutput(self.tokens, self.runner.clock.now(), {})


class HalfRight(Proposer):
    """Knows what the model will say, and says it every second time."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def propose(self, wanted: list[DraftRequest]) -> list[Draft]:
        return [Draft(self.guess(request.token_ids(0, request.num_known_tokens), k)) for request, k in wanted]

    def guess(self, context: list[int], k: int) -> list[int]:
        for _ in range(k):
            context = [*context, (next_token(context) + self.rng.randrange(2)) % VOCABULARY]
        return context[-k:] if k else []


def random_config(rng: random.Random, num_kv_blocks: int) -> EngineConfig:
    """Any engine, with a pool so small that requests take each other's blocks."""
    block_size, slots = rng.choice([2, 4]), rng.choice([2, 4, 6])
    fields: dict[str, Any] = {
        "block_size": block_size,
        "max_model_len": num_kv_blocks * block_size,
        "batching": rng.choice(["continuous"] * 4 + ["static", "none"]),
        "max_num_seqs": slots,
        "max_num_batched_tokens": max(rng.choice([6, 8, 16, 64]), slots),
        "enable_chunked_prefill": rng.random() < 0.8,
        "scheduler_reserve_full_isl": rng.random() < 0.2,
        "enable_prefix_caching": rng.random() < 0.9,
        "kv_reservation": rng.choice(["on_demand"] * 5 + ["max_len"]),
        "preemption": rng.choice(["recompute", "swap"]),
        "scheduling_order": rng.choice(["fcfs", "shortest_prompt", "priority", "two_lane", "fair"]),
        "queue_timeout_s": rng.choice([None, None, 0.3]),
        "speculative": rng.choice([None, None, {"method": "ngram", "k": 3, "min_output_tokens": 2}]),
    }
    if fields["enable_chunked_prefill"]:
        fields["long_prefill_token_threshold"] = rng.choice([None, None, 5])
        if rng.random() < 0.3:
            fields |= {"sliding_window": 5, "attention_sinks": rng.choice([0, 3])}
    if fields["enable_prefix_caching"]:
        fields |= rng.choice([{}, {"prefix_eviction": "fifo"}, {"prefix_eviction": "ttl", "prefix_ttl_s": 0.05}])
    if fields["scheduling_order"] == "two_lane":
        fields["two_lane_threshold"] = 6
    if fields["speculative"] is None:
        fields["async_scheduling"] = rng.random() < 0.6
    return EngineConfig(**fields)


class Life:
    """One engine, from its first request to its last. All that is random follows from the seed."""

    def __init__(self, seed: int, clock: VirtualClock) -> None:
        self.rng = rng = random.Random(seed)
        num_kv_blocks, num_host_blocks = rng.choice([6, 8, 12, 20]), rng.choice([0, 4, 12])
        self.config = random_config(rng, num_kv_blocks)
        failure_rate = rng.choice([0.0, 0.0, 0.02])
        self.runner = CheckingRunner(self.config, num_kv_blocks, num_host_blocks, clock, rng, failure_rate)
        self.engine = Engine.on_runner(self.config, self.runner, clock, proposer=HalfRight(rng))
        self.requests: list[Request] = []

    def run(self) -> None:
        """Raises AssertionError if anything is wrong."""
        for step in range(NUM_STEPS):
            if step < ARRIVALS_END and self.rng.random() < 0.5:
                self.arrive()
            in_flight = list(self.engine.core.requests)
            if in_flight and self.rng.random() < 0.08:
                self.engine.abort(self.rng.choice(in_flight).split("/")[0])
            self.step()
        for _ in range(STEPS_TO_DRAIN):
            if not self.engine.has_unfinished:
                break
            self.step()
        assert not self.engine.has_unfinished, f"{len(self.engine.core.requests)} requests wait for ever"
        self.check_at_rest()

    def arrive(self) -> None:
        rng, longest = self.rng, self.engine.context_limit - 2
        prompt = [rng.randrange(2) for _ in range(rng.randint(1, min(14, longest)))]
        params = SamplingParams(
            max_tokens=rng.randint(1, 12),
            n=rng.choice([1, 1, 1, 2]),
            repetition_penalty=rng.choice([1.0, 1.0, 1.2]),
            stop_token_ids=rng.choice([(), (END,)]),
        )
        options = {"priority": rng.randrange(3), "tenant": rng.choice("xy"), "stream": rng.random() < 0.5}
        options["cache_salt"] = rng.choice(["", "", "a"])
        try:
            self.engine.add_request(prompt, params, **options)
        except RequestError:
            return
        self.requests += list(self.engine.recent_requests)[-params.n :]

    def step(self) -> None:
        queued = [*self.engine.scheduler.waiting]
        self.runner.launched.clear()
        self.engine.step()
        check_engine(self.engine)
        assert not self.runner.wrong, self.runner.wrong[0]
        for batch in self.runner.launched:
            self.check_admissions(batch, queued)
        self.check_running()

    def check_admissions(self, batch: ScheduledBatch, queued: list[Request]) -> None:
        """Those who were `queued` before a step joined it in the queue's own order, and none after a preemption."""
        admitted = [part.request for part in batch.requests if part.request in queued]
        assert not (admitted and batch.preempted), "a request took the blocks that another had just lost"
        if not batch.timed_out:
            assert admitted == queued[: len(admitted)], "the queue shows another order than that of admissions"

    def check_running(self) -> None:
        """Running requests hold no more blocks than their tokens fill, none of another salt, and static batches admit
        nothing."""
        scheduler = self.engine.scheduler
        salts: dict[int, str] = {}
        for request in scheduler.running:
            room = max(request.num_tokens, scheduler.kv.reserve_tokens)
            block_ids = scheduler.kv.block_ids(request)
            assert len(block_ids) <= blocks_for(room, scheduler.kv.block_size), "blocks left over"
            for block_id in set(block_ids) - {scheduler.kv.null_block}:
                assert salts.setdefault(block_id, request.cache_salt) == request.cache_salt, "salts share a block"
        if self.config.batching == "static" and scheduler.running:
            begun = min(request.timeline.scheduled or 0.0 for request in scheduler.running)
            assert all(request.timeline.arrival <= begun for request in scheduler.running), "it joined a closed batch"
            has_not_run = [request.status is RequestStatus.WAITING for request in scheduler.waiting]
            assert has_not_run == sorted(has_not_run), "others come back before the batch's preempted requests"

    def check_at_rest(self) -> None:
        scheduler = self.engine.scheduler
        assert scheduler.kv.pool.num_used == 0, "blocks leaked"
        assert len(scheduler.waiting) == 0 and not list(scheduler.waiting)
        if isinstance(scheduler.preemption, Swap):
            check_swap(scheduler.preemption)
            assert scheduler.preemption.num_free == scheduler.preemption.num_blocks, "host blocks leaked"
        for request in self.requests:
            assert request.finish_reason is not None
            self.check_text(request)
            phases, e2e, lost = request.timeline.phases(), request.timeline.e2e, request.timeline.lost
            assert e2e is not None and min(phases.values()) > -1e-12
            assert abs(sum(phases.values()) - e2e) < 1e-9, "phases don't tile the request's life"
            assert all(0 <= seconds < e2e + 1e-9 for seconds in lost.values()), "it lost more seconds than it had"

    def check_text(self, request: Request) -> None:
        context = [*request.prompt_token_ids]
        for token in request.output_token_ids:
            assert token == next_token(context), f"{request.request_id} got a wrong token"
            context.append(token)
        room = request.max_num_tokens - request.num_prompt_tokens
        match request.finish_reason:
            case FinishReason.LENGTH:
                assert request.num_output_tokens == room
            case FinishReason.STOP:
                assert request.output_token_ids[-1] in request.params.stop_token_ids
            case FinishReason.ERROR:
                assert self.runner.failure_rate, request.error
            case FinishReason.TIMEOUT:
                assert self.config.queue_timeout_s and not request.output_token_ids


def soak(seeds: range, clock: type[VirtualClock]) -> None:
    """Raises AssertionError that names the first seed with which something is wrong."""
    logging.disable(logging.CRITICAL)  # steps fail on purpose
    try:
        for seed in seeds:
            try:
                Life(seed, clock()).run()
            except Exception as error:
                raise AssertionError(f"seed {seed}, {clock.__name__}: {type(error).__name__}: {error}") from error
    finally:
        logging.disable(logging.NOTSET)


if __name__ == "__main__":
    for kind in (VirtualClock, TickingClock):
        soak(range(int(sys.argv[1]), int(sys.argv[2])), kind)
