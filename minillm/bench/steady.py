"""A steady decode: B sequences of one engine, step after step, and nothing else in a step."""

import itertools
import math
from dataclasses import dataclass

from minillm.bench.errors import BenchmarkError
from minillm.bench.target import LARGEST_BLOCK, random_prompts
from minillm.core.block_pool import blocks_for
from minillm.core.brief import brief
from minillm.core.errors import ConfigError
from minillm.core.params import SamplingParams
from minillm.core.step_log import StepRecord
from minillm.frontend.engine import Engine

GREEDY = SamplingParams(temperature=0.0)


@dataclass(frozen=True, slots=True)
class DecodeStep:
    """One measured step."""

    seconds: float
    """Seconds from the end of the step before to its own end: whatever lies between two steps counts, too."""
    stages: dict[str, float]
    """Seconds by stage, as the engine recorded them."""


@dataclass(frozen=True, slots=True)
class SteadySteps:
    """Steps in which every sequence of the batch decoded."""

    steps: list[DecodeStep]
    mean_context: float
    """Tokens of context of one sequence, over sequences and steps."""

    __repr__ = brief


class SteadyDecode:
    """Brings `batch` sequences of `context` random tokens to where all of them decode.

    Args:
        engine: idle, with slots and a KV pool that are large enough.
        num_steps: decode steps that will be run at most.
        sampling: how tokens are chosen; its limits are not read.
    Raises:
        ConfigError: the sequences do not fit the engine's slots, window or KV pool.
        BenchmarkError: a sequence ended, or failed, on the way.
    """

    def __init__(
        self, engine: Engine, batch: int, context: int, num_steps: int, sampling: SamplingParams = GREEDY
    ) -> None:
        self.engine, self.batch = engine, batch
        check_fits(engine, batch, context, num_steps)
        params = sampling.replace(max_tokens=engine.context_limit, ignore_eos=True)
        assert engine.vocab_size is not None
        for prompt in random_prompts(engine.vocab_size, [context] * batch):
            engine.add_request(prompt, params, stream=False)
        self._step()
        while not (engine.steps and self._is_steady(engine.steps[-1])):
            self._step()

    def run(self, num_steps: int) -> SteadySteps:
        """Run that many steps, and give those that followed one of their own kind."""
        self._step()  # Its end is where the first measured step begins.
        before, first = self._context_tokens(), self.engine.steps[-1].step_id
        for _ in range(num_steps):
            self._step()
        records = [record for record in self.engine.steps if record.step_id >= first]
        steady = [
            DecodeStep(record.end - previous.end, record.stages)
            for previous, record in itertools.pairwise(records)
            if self._is_steady(previous) and self._is_steady(record)
        ]
        if not steady:
            raise BenchmarkError(f"no step decoded all {self.batch} sequences and nothing else: nothing to measure")
        # Each step adds a token to each sequence, so the middle is the mean.
        mean_context = (before + self.batch + self._context_tokens()) / 2 / self.batch
        return SteadySteps(steady, mean_context)

    def stop(self) -> None:
        self.engine.abort_all()
        self.engine.reset_prefix_cache()

    def _step(self) -> None:
        # Nothing streams, so whatever comes out has ended, and nothing should.
        for output in self.engine.step():
            ended = output.completions[0]
            raise BenchmarkError(
                f"a sequence ended ({ended.finish_reason}) after {len(ended.token_ids)} tokens, before all "
                f"{self.batch} decoded together: {ended.error or 'check --set batching, max_num_seqs and KV size'}"
            )

    def _is_steady(self, record: StepRecord) -> bool:
        return len(record.shares) == self.batch and record.num_prefill_tokens == 0

    def _context_tokens(self) -> int:
        return sum(request.num_computed_tokens for request in self.engine.scheduler.running)


def tokens_per_sequence(batch: int, context: int, num_steps: int, budget: int) -> int:
    """Most tokens one of the sequences can come to have: the first decode while the last are still prefilled."""
    return context + math.ceil(batch * context / max(budget - batch, 1)) + num_steps + 2


def pool_tokens(batch: int, context: int, num_steps: int, budget: int) -> int:
    """KV tokens that hold them all, whatever the block size."""
    return batch * (tokens_per_sequence(batch, context, num_steps, budget) + LARGEST_BLOCK)


def check_fits(engine: Engine, batch: int, context: int, num_steps: int) -> None:
    """Raise ConfigError unless the sequences fit the engine's slots, window and KV pool all along."""
    num_tokens = tokens_per_sequence(batch, context, num_steps, engine.config.max_num_batched_tokens)
    slots, block_size = engine.config.max_num_seqs, engine.runner.block_size
    if batch > slots:
        raise ConfigError(f"a batch of {batch} needs as many slots, and max_num_seqs is {slots}: raise it")
    if num_tokens >= engine.context_limit:
        raise ConfigError(
            f"a sequence comes to have {num_tokens} tokens, and the window (or KV pool) ends at "
            f"{engine.context_limit}: lower --context or --steps"
        )
    needed, present = batch * blocks_for(num_tokens, block_size), engine.runner.num_kv_blocks
    if needed > present:
        raise ConfigError(
            f"{batch} sequences of {num_tokens} tokens need {needed} KV blocks of {block_size}, and the pool has "
            f"{present}: lower --batch or --context, or make the pool larger with --set"
        )
