"""TabRunner: executes the scheduler's steps on decoder.cpp, as TorchRunner does on PyTorch."""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Protocol

from minillm.core.batch import ScheduledBatch, ScheduledRequest, StepOutput
from minillm.core.errors import ConfigError
from minillm.core.request import Request
from minillm.core.timeline import Clock
from minillm.policies.config import EngineConfig
from minillm.runner.draws import uniform

BLOCK_SIZE = 16
"""As decoder.cpp has it."""
NOT_FINITE = "the model's logits are NaN or infinite: fetch its weights again"


class CompiledDecoder(Protocol):
    """decoder.cpp, wherever it is: in a tab, compiled to WebAssembly."""

    def start(self, num_blocks: int, max_tokens: int, max_rows: int, max_context: int) -> None:
        """Make room for a KV pool and for the largest step, whatever was there before."""
        ...

    def step(self, batch: "array[int]") -> None:
        """Compute one step, as `lay_out` has it."""
        ...

    def likeliest(self, row: int) -> int:
        """The token with the largest logit of a row; -1 if they aren't finite."""
        ...

    def draw(self, row: int, temperature: float, uniform: float) -> int:
        """A token drawn from the row's softmax by a number in [0, 1); -1 if its logits aren't finite."""
        ...


def lay_out(scheduled: Sequence[ScheduledRequest]) -> "array[int]":
    """One step as decoder.cpp reads it: T new tokens of all requests end to end, R of which get a next one.

    T, R, W; token ids [T]; positions [T]; slots [T], block * block_size + offset; whose each is [T]; the rows that
    sample [R]; block tables [requests, W], as wide as the longest.
    """
    positions = [range(part.start, part.end) for part in scheduled]
    tables = [part.block_ids[: -(-part.end // BLOCK_SIZE)] for part in scheduled]
    width = max(map(len, tables))
    token_ids = [part.request.token_ids(part.start, part.end) for part in scheduled]
    slots = [
        table[position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE
        for table, places in zip(tables, positions)
        for position in places
    ]
    owners = [index for index, part in enumerate(scheduled) for _ in range(part.num_tokens)]
    last_rows = [row for row, owner in enumerate(owners) if owners[row + 1 : row + 2] != [owner]]
    rows = [row for row, part in zip(last_rows, scheduled) if part.samples]
    padded = (chain(table, [0] * (width - len(table))) for table in tables)
    parts: tuple[Iterable[int], ...] = (
        (len(slots), len(rows), width),
        chain.from_iterable(token_ids),
        chain.from_iterable(positions),
        slots,
        owners,
        rows,
        chain.from_iterable(padded),
    )
    return array("i", chain.from_iterable(parts))


@dataclass(frozen=True, slots=True)
class DoneStep:
    """A step that was over when it had been launched: a tab has one thread."""

    output: StepOutput

    def wait(self) -> StepOutput:
        return self.output


class TabRunner:
    """Runs one model over a paged KV pool in the decoder's own memory.

    Args:
        config: its slots, token budget, context and number of KV blocks must all be given.
        clock: the engine's.
    Raises:
        ConfigError: it asks for something that this decoder doesn't do.
    """

    block_size = BLOCK_SIZE
    num_host_blocks = 0
    runs_beside_python = False

    def __init__(self, decoder: CompiledDecoder, config: EngineConfig, clock: Clock) -> None:
        if config.num_kv_blocks is None or config.max_model_len is None:
            raise ConfigError("the runner in a tab takes no memory by itself: give num_kv_blocks and max_model_len")
        if config.speculative or config.sliding_window or config.preemption != "recompute":
            raise ConfigError("the runner in a tab has no drafts, no sliding window and no swap space")
        if not config.enable_chunked_prefill:
            raise ConfigError("the runner in a tab has room for steps within the token budget: prompts go in chunks")
        self.decoder, self.clock = decoder, clock
        self.num_kv_blocks = config.num_kv_blocks
        decoder.start(self.num_kv_blocks, config.max_num_batched_tokens, config.max_num_seqs, config.max_model_len)

    def launch(self, batch: ScheduledBatch) -> DoneStep:
        start = self.clock.now()
        packed = lay_out(batch.requests)
        built = self.clock.now()
        self.decoder.step(packed)
        forward_end = self.clock.now()
        sampling = [part.request for part in batch.requests if part.samples]
        chosen = {request.request_id: self._sampled(row, request) for row, request in enumerate(sampling)}
        stages = {"build": built - start, "forward": forward_end - built, "sample": self.clock.now() - forward_end}
        tokens = {name: [token] for name, token in chosen.items() if token >= 0}
        errors = {name: NOT_FINITE for name, token in chosen.items() if token < 0}
        return DoneStep(StepOutput(tokens, forward_end, stages, errors=errors))

    def _sampled(self, row: int, request: Request) -> int:
        """By temperature alone, which is all that a chat sends, and by the engine's rule (runner/sampler.py): one
        random number for each position, whatever else runs."""
        params = request.params
        if params.takes_likeliest:
            return self.decoder.likeliest(row)
        return self.decoder.draw(row, params.temperature, uniform(request.seed, request.draw_position))

    def copy_blocks(self, batch: ScheduledBatch) -> None:
        """Nothing is ever saved."""
