"""A trace of the KV pool: the engine, stepped by hand, and after each step who holds which block.

Requests arrive at steps, not at seconds, and answers have a set length: who holds what, and when, is the same on every
machine. Only the seconds are not.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from course.simulator.simulated_runner import SimulatedRunner
from minillm import Engine, SamplingParams
from minillm.core.brief import brief
from minillm.core.request import Request, RequestStatus
from minillm.kernels.attention.cache import tensors_of

GONE = -1
"""Entry in a block table for a block that has left the sliding window, and was given back."""
MOST_STEPS = 3000
"""A trace that is longer has got stuck."""
# What a request is doing.
NOT_HERE = "not here yet"
QUEUE = "queue"
PREFILL = "prefill"
AGAIN = "recompute"
"""It computes what it had computed before its blocks were taken."""
DECODE = "decode"
PREEMPTED = "preempted"
SWAPPED = "swapped out"
DONE = "done"


@dataclass(frozen=True)
class StepArrival:
    """A request, and the step before which it arrives."""

    step: int
    token_ids: tuple[int, ...]
    max_tokens: int

    @property
    def num_tokens(self) -> int:
        """Whose keys and values are kept in the end: the last token's are never needed."""
        return len(self.token_ids) + self.max_tokens - 1


@dataclass(frozen=True)
class PoolFrame:
    """The pool after one step."""

    states: tuple[str, ...]
    """What each request did in this step."""
    tables: Mapping[int, tuple[int, ...]]
    """The blocks of each request that holds any, in the order of its text."""
    computed: Mapping[int, int]
    """Tokens of each of those whose keys and values are kept, or were before they left the window."""
    cached: frozenset[int]
    """Blocks that no request holds, and that still keep a prefix that may be asked for."""
    num_tokens: int
    """Computed in this step."""
    num_again: int
    """Tokens of this step that had been computed before."""
    seconds: float

    __repr__ = brief

    def holders(self) -> dict[int, list[int]]:
        """The requests that hold each block."""
        found: dict[int, list[int]] = {}
        for request, table in self.tables.items():
            for block in table:
                if block != GONE:
                    found.setdefault(block, []).append(request)
        return found

    def filled(self, block_size: int) -> dict[int, int]:
        """How many places of each held block keep a token."""
        found: dict[int, int] = {}
        for request, table in self.tables.items():
            for i, block in enumerate(table):
                if block != GONE:
                    tokens = min(max(self.computed[request] - i * block_size, 0), block_size)
                    found[block] = max(found.get(block, 0), tokens)
        return found

    def count(self, *states: str) -> int:
        return sum(state in states for state in self.states)

    @property
    def running(self) -> int:
        return len(self.tables)

    @property
    def in_line(self) -> int:
        return self.count(QUEUE, PREEMPTED, SWAPPED)


@dataclass(frozen=True)
class TracedOutcome:
    """How one request ended."""

    num_prompt_tokens: int
    output: tuple[int, ...]
    evictions: int
    finished: bool
    """It ended with its whole answer."""
    first_step: int
    """The step in which it was computed for the first time."""
    last_step: int

    __repr__ = brief


@dataclass
class PoolTrace:
    """All steps of one run."""

    name: str
    block_size: int
    num_blocks: int
    block_bytes: int
    frames: list[PoolFrame] = field(default_factory=list)
    outcomes: tuple[TracedOutcome, ...] = ()
    """Once it is over."""
    evictions: int = 0
    swapped_blocks: int = 0
    """Copied to the host's memory, and back."""

    __repr__ = brief

    @property
    def seconds(self) -> float:
        return sum(frame.seconds for frame in self.frames)

    @property
    def again(self) -> int:
        """Tokens computed more than once."""
        return sum(frame.num_again for frame in self.frames)

    @property
    def tokens(self) -> int:
        """Computed, in all."""
        return sum(frame.num_tokens for frame in self.frames)

    @property
    def written(self) -> int:
        """Tokens of answers."""
        return sum(len(outcome.output) for outcome in self.outcomes)

    @property
    def tokens_per_s(self) -> float:
        return self.written / self.seconds

    @property
    def most_running(self) -> int:
        return max(frame.running for frame in self.frames)

    @property
    def mean_running(self) -> float:
        return sum(frame.running for frame in self.frames) / len(self.frames)

    @property
    def held_block_steps(self) -> int:
        """Blocks held, added up over the steps."""
        return sum(len(frame.holders()) for frame in self.frames)

    @property
    def filled_share(self) -> float:
        """Share of the held positions that kept a token."""
        filled = sum(sum(frame.filled(self.block_size).values()) for frame in self.frames)
        return filled / max(self.held_block_steps * self.block_size, 1)

    @property
    def fullest(self) -> int:
        """The step after which most blocks were held."""
        return max(range(len(self.frames)), key=lambda i: len(self.frames[i].holders()))

    def blocks_of(self, request: int) -> list[tuple[int, int]]:
        """(tokens computed, blocks held) of one request, step by step."""
        return [
            (frame.computed[request], sum(block != GONE for block in frame.tables[request]))
            for frame in self.frames
            if request in frame.tables
        ]


def record(engine: Engine, arrivals: Sequence[StepArrival], name: str = "") -> PoolTrace:
    """Play the requests to an idle engine, and return the trace."""
    return list(recording(engine, arrivals, name))[-1]


def recording(engine: Engine, arrivals: Sequence[StepArrival], name: str = "") -> Iterator[PoolTrace]:
    """The same, as it is made: the trace so far, after each step; the last one is whole.

    Raises:
        RuntimeError: it does not end.
    """
    recorder = _Recorder(engine, arrivals, name)
    for step in range(MOST_STEPS):
        if step and not engine.has_unfinished and all(arrival.step < step for arrival in arrivals):
            yield recorder.finish()
            return
        recorder.send(step)
        recorder.take()
        yield recorder.trace
    raise RuntimeError(f"{name}: not over after {MOST_STEPS} steps")


def block_bytes(engine: Engine) -> int:
    """Bytes of one block, over all layers: as the tensors of the pool have it, or a simulated device would."""
    if isinstance(engine.runner, SimulatedRunner):
        return round(engine.runner.kv_bytes_per_token * engine.runner.block_size)
    pool = engine.runner.kv_pool
    return sum(part[0].nbytes for layer in pool.layers for part in tensors_of(layer))


class _Recorder:
    """Sends requests when they are due, steps the engine, and looks."""

    def __init__(self, engine: Engine, arrivals: Sequence[StepArrival], name: str) -> None:
        self.engine, self.arrivals = engine, arrivals
        self.requests: list[Request | None] = [None] * len(arrivals)
        pool = engine.scheduler.kv.pool
        self.trace = PoolTrace(name, engine.config.block_size, len(pool), block_bytes(engine))
        self.first: dict[int, int] = {}
        self.last: dict[int, int] = {}

    def send(self, step: int) -> None:
        for i, arrival in enumerate(self.arrivals):
            if arrival.step == step:
                params = SamplingParams(temperature=0.0, max_tokens=arrival.max_tokens, ignore_eos=True)
                self.engine.add_request(list(arrival.token_ids), params, stream=False)
                self.requests[i] = self.engine.recent_requests[-1]

    def take(self) -> None:
        engine = self.engine
        before, again = engine.steps[-1].step_id if engine.steps else -1, engine.core.log.num_recomputed_tokens
        engine.step()
        new = [step for step in engine.steps if step.step_id > before]
        kv = engine.scheduler.kv
        tables, computed = {}, {}
        for i, request in enumerate(self.requests):
            if request is not None and request.request_id in kv.tables:
                table = kv.block_ids(request)
                tables[i] = tuple(GONE if block == kv.null_block else block for block in table)
                computed[i] = request.num_computed_tokens
        self._note(tables)
        reading = {share.request_id for step in new for share in step.shares if share.is_prefill}
        counts, hashes = kv.pool.ref_counts, kv.pool.hashes
        self.trace.frames.append(
            PoolFrame(
                states=tuple(self._state(request, reading) for request in self.requests),
                tables=tables,
                computed=computed,
                cached=frozenset(b for b, count in enumerate(counts) if count == 0 and hashes[b] is not None),
                num_tokens=sum(step.num_tokens for step in new),
                num_again=engine.core.log.num_recomputed_tokens - again,
                seconds=sum(step.end - step.start for step in new),
            )
        )
        self.trace.evictions = engine.scheduler.num_preemptions

    def _note(self, tables: Mapping[int, tuple[int, ...]]) -> None:
        """Who ran for the first time, and who for the last; whose blocks were copied to the host."""
        now = len(self.trace.frames)
        for i, request in enumerate(self.requests):
            if i in tables:
                self.first.setdefault(i, now)
            if request is not None and request.finish_reason is not None:
                self.first.setdefault(i, now)
                self.last.setdefault(i, now)
            if self._swapped(request) and not self._was(i, SWAPPED):
                held = sum(block != GONE for block in self.trace.frames[-1].tables[i])
                self.trace.swapped_blocks += 2 * held

    def _was(self, index: int, state: str) -> bool:
        return bool(self.trace.frames) and self.trace.frames[-1].states[index] == state

    def _swapped(self, request: Request | None) -> bool:
        # What it has computed although it waits was saved when it was preempted.
        return request is not None and request.status is RequestStatus.PREEMPTED and request.num_computed_tokens > 0

    def _state(self, request: Request | None, reading: set[str]) -> str:
        if request is None:
            return NOT_HERE
        if request.status is RequestStatus.FINISHED:
            return DONE
        if request.status is RequestStatus.WAITING:
            return QUEUE
        if request.status is RequestStatus.PREEMPTED:
            return SWAPPED if self._swapped(request) else PREEMPTED
        if request.request_id in reading:
            return AGAIN if request.recompute_until else PREFILL
        return DECODE if request.num_output_tokens else PREFILL

    def finish(self) -> PoolTrace:
        self.trace.outcomes = tuple(
            TracedOutcome(
                request.num_prompt_tokens,
                tuple(request.output_token_ids),
                request.num_preemptions,
                len(request.output_token_ids) == arrival.max_tokens,
                self.first[i],
                self.last[i],
            )
            for i, (request, arrival) in enumerate(zip(self.requests, self.arrivals))
        )
        return self.trace
