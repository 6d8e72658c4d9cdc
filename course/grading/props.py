"""What judges hand to an answer, and what watches it: this lives in the answer's process (see wire.py).

Records (dataclasses) travel by value. Everything else is made there with `answer.prop(name, ...)` and stays there.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any


@dataclass
class StepRequest:
    """What a scheduler knows of a request (continuous-batching-step)."""

    request_id: str
    num_tokens: int
    """Prompt and output so far."""
    num_computed_tokens: int
    """Tokens whose keys and values are in the cache, counted from the first."""

    @property
    def missing(self) -> int:
        return self.num_tokens - self.num_computed_tokens

    def __repr__(self) -> str:
        return f"{self.request_id}: {self.num_computed_tokens} of {self.num_tokens}"


@dataclass(eq=False)
class Holder:
    """A request that holds blocks (preemption)."""

    request_id: str
    arrival: int
    """Counts arrivals: lower came earlier."""
    num_tokens: int
    """Prompt and output so far."""
    num_computed_tokens: int
    blocks: list[int] = field(default_factory=list)

    def __repr__(self) -> str:
        return f"{self.request_id} (arrival {self.arrival}, {len(self.blocks)} blocks)"


@dataclass(frozen=True)
class Model:
    """A dense model (roofline-knee); the stub has the same."""

    parameters: float
    weight_bits: float
    kv_bytes: float
    """Per token of context."""
    attention_flops: float
    """Per token of context."""


@dataclass(frozen=True)
class Machine:
    flops_per_s: float
    bytes_per_s: float


@dataclass(frozen=True)
class FleetRequest:
    """A request as a gateway sees it: how long its answer gets isn't known yet (`minillm beat`)."""

    id: int
    """Counts arrivals."""
    kind: str
    arrival_s: float
    prompt_tokens: int
    prefix: str
    """Names what its prompt begins with, where others begin with the same; empty: it shares nothing."""
    prefix_tokens: int
    ttft_limit_s: float
    tpot_limit_s: float
    """Infinite where only the first token counts."""


@dataclass(frozen=True)
class FleetReplica:
    """A replica as a gateway sees it (`minillm beat`)."""

    number: int
    waiting: int
    """Requests in its queue."""
    running: int
    """Requests that hold a slot."""
    backlog_tokens: int
    """Prompt tokens of the requests it was sent whose first token hasn't come yet, queued or running."""

    @property
    def outstanding(self) -> int:
        """Requests it was sent that haven't ended."""
        return self.waiting + self.running


Endings = list[tuple[float, int, int, bool]]
"""Requests that have ended since the last question: the moment, the request's id, output tokens, in time or not."""


class FleetDesk:
    """Puts a gateway's questions to a contestant's policy (`minillm beat`), with records in place of numbers. Few
    messages for many calls: each one wakes another process."""

    def __init__(self, policy: Callable[[], Any]) -> None:
        self._policy = policy()
        self._requests: dict[int, FleetRequest] = {}
        """Those that haven't ended."""

    def arrive(self, endings: Endings, now: float, request: tuple[Any, ...], replicas: list[tuple[int, ...]]) -> Any:
        """What `admit` says, and `route`, where it was asked."""
        self._tell(endings)
        seen = FleetRequest(*request)
        self._requests[seen.id] = seen
        admitted = self._policy.admit(now, seen, [FleetReplica(*each) for each in replicas])
        if admitted is not True:
            return admitted, None
        return True, self._policy.route(now, seen, [FleetReplica(*each) for each in replicas])

    def schedule(self, endings: Endings, now: float, waiting: list[int], replica: tuple[int, ...]) -> list[list[Any]]:
        """Ids to run next, in order, and ids to refuse."""
        self._tell(endings)
        seen = [self._requests[number] for number in waiting]
        plan = self._policy.schedule(now, seen, FleetReplica(*replica))
        if not isinstance(plan, tuple) or len(plan) != 2:
            raise TypeError(f"schedule gives back two lists, (run, refuse), not {type(plan).__name__}")
        return [[request.id for request in part] for part in plan]

    def _tell(self, endings: Endings) -> None:
        for moment, number, output_tokens, in_time in endings:
            self._policy.ended(moment, self._requests.pop(number), output_tokens, in_time)


class ServerBlocks:
    """The blocks that a server is given (cancellation). Notes what is done wrong, and refuses it."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.free_ids = list(range(size))
        self.held: set[int] = set()
        self.wrong: str | None = None

    @property
    def free(self) -> int:
        return len(self.free_ids)

    def take(self, count: int) -> list[int]:
        if count > self.free:
            raise IndexError(f"{count} blocks wanted, {self.free} free")
        taken = [self.free_ids.pop() for _ in range(count)]
        self.held.update(taken)
        return taken

    def give_back(self, block_ids: Sequence[int]) -> None:
        for block in list(block_ids):
            if block not in self.held:
                self.wrong = self.wrong or f"block {block} was given back that is not held: freed twice"
                raise ValueError(f"block {block} is not held")
            self.held.remove(block)
            self.free_ids.append(block)


DIM = 3
"""Numbers of a token in expert-routing."""


class Mlp:
    """An expert (expert-routing). Notes how many rows each call had."""

    def __init__(self, seed: int) -> None:
        generator = draws(seed)
        self.up, self.down = generator.normal(size=(DIM, 8)), generator.normal(size=(8, DIM))
        self.calls: list[int] = []

    def __call__(self, rows: Any) -> Any:
        import numpy as np

        if np.ndim(rows) != 2 or np.shape(rows)[1] != DIM:
            raise ValueError(f"an expert takes rows [n, {DIM}]; it was given shape {list(np.shape(rows))}")
        self.calls.append(len(rows))
        return np.maximum(np.asarray(rows) @ self.up, 0) @ self.down


def draws(seed: int) -> Any:
    """A generator of random numbers, as rejection-sampler's `verify` is given."""
    import numpy as np

    return np.random.default_rng(seed)


class Scripted:
    """A generator whose numbers fill their range evenly over the rounds, each position of a round by itself and any two
    together (a Halton sequence, shifted by the seed). Whatever else is asked of it, a real one gives."""

    BASES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29)

    def __init__(self, place: int, seed: int) -> None:
        self._place, self._seed, self._asked = place, seed, 0

    def random(self, size: Any = None, **_: Any) -> Any:
        if size is not None:
            import numpy as np

            return np.array([self.random() for _ in range(int(np.prod(size)))]).reshape(size)
        base = self.BASES[self._asked % len(self.BASES)]
        self._asked += 1
        digits, share, value = self._place + 1, 1.0, 0.0
        while digits:
            share /= base
            value += share * (digits % base)
            digits //= base
        return (value + (self._seed * 0.6180339887 * base) % 1) % 1

    def uniform(self, low: float = 0.0, high: float = 1.0, size: Any = None) -> Any:
        return low + (high - low) * self.random(size)

    def choice(self, a: Any, size: Any = None, replace: bool = True, p: Any = None, **_: Any) -> Any:
        import numpy as np

        values = np.arange(a) if np.ndim(a) == 0 else np.asarray(a)
        edges = np.cumsum(np.full(len(values), 1 / len(values)) if p is None else np.asarray(p, dtype=float))
        if abs(edges[-1] - 1) > 1e-8 or (p is not None and (np.min(p) < 0 or len(p) != len(values))):
            return draws(0).choice(a, size, replace, p)  # it refuses them in its own words
        return values[np.minimum(np.searchsorted(edges / edges[-1], self.random(size), "right"), len(values) - 1)]

    def multinomial(self, n: int, pvals: Any, size: Any = None) -> Any:
        import numpy as np

        return np.bincount([self.choice(len(pvals), p=pvals) for _ in range(n)], minlength=len(pvals))

    def __getattr__(self, name: str) -> Any:
        return getattr(draws(self._seed + self._place), name)


MOST_TOKENS = 1000
"""Tokens of a round that are read: far more than there can be."""


def rounds(
    verify: Callable[..., Any], target: Any, proposal: Any, drafts: list[int], count: int, seed: int
) -> tuple[list[Any], str | None]:
    """Many calls of `verify`, each with the next of the scripted generators, and the name of what it changed."""
    results: list[Any] = []
    for place in range(count):
        given = target.copy(), proposal.copy(), list(drafts)
        found = verify(*given, Scripted(place, seed))
        is_read = isinstance(found, list) or not hasattr(found, "__iter__")
        results.append(found if is_read else list(islice(found, MOST_TOKENS)))
        for name, before, after in zip(("target", "proposal", "drafts"), (target, proposal, drafts), given):
            if before != after if name == "drafts" else before.tobytes() != after.tobytes():
                return results, name
    return results, None


def numbers_in(state: Any, depth: int = 6) -> int:
    """How many numbers an object keeps, in whatever it is made of."""
    if type(state).__name__ == "ndarray":
        return max(state.size, getattr(state.base, "size", 0))
    if isinstance(state, (dict, list, tuple, set, frozenset)):
        inside = list(state.values() if isinstance(state, dict) else state)
    else:
        inside = [*getattr(state, "__dict__", {}).values()]
        inside += [getattr(state, slot, None) for slot in getattr(type(state), "__slots__", ())]
    return sum(numbers_in(each, depth - 1) for each in inside) if inside and depth else 1


MARGIN = 600
"""Numbers around every tensor that a kernel must neither use nor overwrite; more than any block it may choose."""
ARITHMETIC = {
    "add",
    "sub",
    "rsub",
    "mul",
    "div",
    "truediv",
    "pow",
    "square",
    "mean",
    "sum",
    "sqrt",
    "rsqrt",
    "norm",
    "rms_norm",
    "layer_norm",
    "addcmul",
    "addcdiv",
    "var",
    "dot",
    "matmul",
    "einsum",
    "copy",
}
"""What the kernel is for. PyTorch's names, without underscores at either end."""


class Guarded:
    """A tensor [rows, size] in the middle of a larger one; what lies around it is NaN."""

    def __init__(self, whole: Any, inner: Any) -> None:
        self.whole, self.inner, self.before = whole, inner, whole.clone()

    @classmethod
    def of(cls, values: Any, shape: Sequence[int], dtype: str, gap: int) -> "Guarded":
        """
        Args:
            values: None = NaN, for the kernel to fill.
            gap: numbers between one row and the next.
        """
        import torch

        rows, size = shape
        stride = size + gap
        whole = torch.full((MARGIN + rows * stride + MARGIN,), float("nan"), dtype=getattr(torch, dtype))
        inner = whole.as_strided((rows, size), (stride, 1), MARGIN)
        if values is not None:
            inner.copy_(torch.from_numpy(values))
        return cls(whole, inner)

    def numbers(self) -> Any:
        return self.inner.double().numpy()

    def spilled(self) -> bool:
        """Something around it was overwritten."""
        now, before = self.whole.clone(), self.before.clone()
        for each in (now, before):
            each.as_strided(self.inner.shape, self.inner.stride(), MARGIN).zero_()
        return differ(now, before)

    def changed(self) -> bool:
        return differ(self.whole, self.before)


def differ(one: Any, other: Any) -> bool:
    """NaN equals NaN."""
    return not one.nan_to_num(nan=-1.0).equal(other.nan_to_num(nan=-1.0))


@dataclass
class Seen:
    """What happened in a call."""

    launches: int = 0
    arithmetic: list[str] = field(default_factory=list)
    """PyTorch's operations outside of kernels."""


@contextmanager
def watching() -> Iterator[Seen]:
    """Count kernels that are launched, and note arithmetic that PyTorch does."""
    from torch.overrides import TorchFunctionMode
    from triton.runtime.interpreter import GridExecutor

    seen, inside = Seen(), []
    launch = GridExecutor.__call__

    def counted(self: Any, *arguments: object, **options: object) -> None:
        seen.launches += 1
        inside.append(self)
        try:
            launch(self, *arguments, **options)
        finally:
            inside.pop()

    class Noting(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            name = getattr(function, "__name__", "").strip("_")
            if not inside and {name, name.removeprefix("i")} & ARITHMETIC:  # also __iadd__
                seen.arithmetic.append(name)
            return function(*args, **(kwargs or {}))

    GridExecutor.__call__ = counted
    try:
        with Noting():
            yield seen
    finally:
        GridExecutor.__call__ = launch


def run_kernel(
    function: Callable[..., object],
    inputs: dict[str, tuple[Any, int]],
    weight: Any,
    eps: float,
    outputs: dict[str, int],
    dtype: str,
) -> dict[str, Any]:
    """One call of a function that launches a kernel, and what was seen of it (triton-kernel).

    Args:
        inputs: name -> numbers [rows, size], and the gap between rows.
        outputs: name -> the gap.
    """
    shape = next(iter(inputs.values()))[0].shape
    tensors = {name: Guarded.of(values, shape, dtype, gap) for name, (values, gap) in inputs.items()}
    tensors["weight"] = Guarded.of(weight[None], (1, shape[1]), dtype, 0)
    written = {name: Guarded.of(None, shape, dtype, gap) for name, gap in outputs.items()}
    given = [tensors[name].inner for name in inputs]
    with watching() as seen:
        function(*given, tensors["weight"].inner[0], eps, *(each.inner for each in written.values()))
    return {
        "arithmetic": seen.arithmetic,
        "launches": seen.launches,
        "changed": [name for name, each in tensors.items() if each.changed()],
        "spilled": [name for name, each in written.items() if each.spilled()],
        "numbers": [each.numbers() for each in written.values()],
    }


class GpuFailedError(Exception):
    """A batch came to nothing (one-gpu)."""


class TurnedAwayError(Exception):
    """A batcher refuses a caller, who may try elsewhere (one-gpu)."""


@dataclass(frozen=True)
class Item:
    """One input of a model (one-gpu)."""

    key: str
    """The caller's own: whoever asks again after a time-out sends the same."""
    number: int
    tokens: int


def right_output(item: Item) -> int:
    return item.number * item.number + 1


class Gpu:
    """A GPU that computes batches (one-gpu). It notes what it is asked for.

    Args:
        deaths: moments at which it dies, in seconds; whatever it computes is lost.
        poison: keys of inputs that end every batch they are in.
        patience: seconds a caller waits.
    """

    MAX_BATCH = 100
    FIXED_S, TOKEN_S, RESTART_S = 0.04, 1.2e-5, 0.5
    Failed, Refused = GpuFailedError, TurnedAwayError

    def __init__(self, deaths: Sequence[float], poison: Sequence[str], patience: float) -> None:
        self.patience, self._deaths, self._poison = patience, list(deaths), set(poison)
        self._busy = False
        self.runs: list[list[str]] = []
        """The keys of each batch that was begun."""
        self.computed: dict[str, int] = {}
        """How often each key's output was handed over."""

    @classmethod
    def seconds(cls, count: int, tokens: int) -> float:
        """How long it takes over so many inputs, of which the longest has so many tokens: shorter ones are padded."""
        return cls.FIXED_S + count * tokens * cls.TOKEN_S

    async def run(self, items: Sequence[Item]) -> list[int]:
        """The outputs, in the order of the inputs.

        Raises:
            GpuFailedError: it died, or an input made it fail. It has started again, and is as good as new.
        """
        import asyncio

        items = list(items)
        if not 1 <= len(items) <= self.MAX_BATCH:
            raise ValueError(f"a batch of {len(items)} inputs; 1 to {self.MAX_BATCH} are possible")
        if self._busy:
            raise RuntimeError("run() while another run is under way: there is one GPU")
        self._busy = True
        try:
            self.runs.append([item.key for item in items])
            now = asyncio.get_running_loop().time()
            takes = self.seconds(len(items), max(item.tokens for item in items))
            deaths = [moment for moment in self._deaths if now <= moment < now + takes]
            if deaths or any(item.key in self._poison for item in items):
                await asyncio.sleep((min(deaths) - now if deaths else takes) + self.RESTART_S)
                raise GpuFailedError("the batch failed; the GPU has started again")
            await asyncio.sleep(takes)
            for item in items:
                self.computed[item.key] = self.computed.get(item.key, 0) + 1
            return [right_output(item) for item in items]
        finally:
            self._busy = False


Arrivals = Sequence[tuple[float, Item, float | None]]
"""Callers: when each asks, in seconds; for what; and after how many seconds it leaves (None: the GPU's patience)."""


def callers(
    batcher: Callable[[Gpu], Any], arrivals: Arrivals, deaths: Sequence[float], poison: Sequence[str], patience: float
) -> tuple[list[tuple[str, float]], list[list[str]], dict[str, int]]:
    """Play callers against a batcher, on a clock that jumps from one event to the next.

    Returns: how each caller fared ("answered", "wrong": another one's output, "odd": nobody's, "late", "refused" or
        "failed") and after how many seconds; the keys of each batch; how often each key was computed.
    """
    import asyncio
    import selectors

    class Jumping(selectors.DefaultSelector):
        now = 0.0

        def select(self, timeout: float | None = None) -> list[Any]:
            if timeout is None:
                raise RuntimeError("nothing is left that could happen, and callers are waiting")
            self.now += max(timeout, 0.0)
            return []

    class JumpingLoop(asyncio.SelectorEventLoop):
        def __init__(self) -> None:
            self.clock = Jumping()
            super().__init__(self.clock)

        def time(self) -> float:
            return self.clock.now

    gpu = Gpu(deaths, poison, patience)
    tasks: list[Any] = []
    asked: set[Any] = set()
    """Tasks of callers: what they raise is told by how they fared."""
    known = {right_output(item) for _, item, _ in arrivals}

    async def call(served: Any, at: float, item: Item, stays: float) -> tuple[str, float]:
        await asyncio.sleep(at)
        asking = asyncio.ensure_future(served.infer(item))
        asked.add(asking)
        try:
            output = await asyncio.wait_for(asking, stays)
            how = "answered" if output == right_output(item) else "wrong" if output in known else "odd"
        except TimeoutError:
            how = "late"
        except TurnedAwayError:
            how = "refused"
        except GpuFailedError:
            how = "failed"
        return how, loop.time() - at

    async def play() -> list[tuple[str, float]]:
        served = batcher(gpu)
        each = [call(served, at, item, patience if stays is None else stays) for at, item, stays in arrivals]
        return await asyncio.gather(*each)

    def noted(loop: Any, coroutine: Any, **keywords: Any) -> Any:
        tasks.append(asyncio.Task(coroutine, loop=loop, **keywords))
        return tasks[-1]

    loop = JumpingLoop()
    loop.set_exception_handler(lambda *_: None)  # looked at below
    loop.set_task_factory(noted)
    try:
        outcomes = loop.run_until_complete(play())
        harmless = TurnedAwayError if any(how == "late" for how, _ in outcomes) else (GpuFailedError, TurnedAwayError)
        for task in tasks:  # what ended a batcher's own tasks says more than callers who wait
            error = task.exception() if task.done() and not task.cancelled() and task not in asked else None
            if isinstance(error, Exception) and not isinstance(error, harmless):
                raise error
        return outcomes, gpu.runs, gpu.computed
    finally:
        left = [task for task in tasks if not task.done()]
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.wait(left, timeout=1)) if left else None
        loop.close()
