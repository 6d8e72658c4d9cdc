"""Breaks parts of one engine, now and then: its runner, its drafts, its text, its time."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch
from torch import Tensor

from minillm.core.batch import LaunchedStep, ScheduledBatch, StepOutput
from minillm.frontend.engine import Engine
from minillm.speculation.speculator import Speculator


class Injected(RuntimeError):
    """A fault that was put there on purpose."""


ERRORS: tuple[Callable[[], BaseException], ...] = (
    lambda: Injected("the runner broke"),
    lambda: torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    lambda: MemoryError(),
    lambda: OSError(5, "Input/output error"),
)


class Panic(BaseException):
    """As Rust code raises it through pyo3 (tokenizers, safetensors): no Exception."""


def raising(error: BaseException) -> Callable[..., NoReturn]:
    """A function that fails, however it is called."""

    def fail(*_: object, **__: object) -> NoReturn:
        raise error

    return fail


class TickingClock:
    """Repeatable time: each look moves it on, or, if it is coarse, a few looks see the same moment.

    Args:
        coarse: as Windows' old 16 ms tick; most stamps are then equal.
    """

    def __init__(self, rng: random.Random, coarse: bool) -> None:
        self.rng = rng
        self.chance, self.tick_s = (0.03, 0.016) if coarse else (1.0, 0.0004)
        self.moment = rng.choice([0.0, 1e6])

    def now(self) -> float:
        if self.rng.random() < self.chance:
            self.moment += self.tick_s
        return self.moment


@dataclass
class BrokenStep:
    """A step that fails on the device: seen when it is waited for."""

    step: LaunchedStep
    error: BaseException

    def wait(self) -> StepOutput:
        self.step.wait()
        raise self.error


@dataclass
class Faults:
    """Wraps the parts of an engine so that they fail at random.

    Args:
        rate: the share of calls that fail.
        ctrl_c: also as if somebody had pressed it, in the middle of a step.
    """

    engine: Engine
    rng: random.Random
    rate: float
    ctrl_c: bool
    count: int = 0
    """Faults so far."""
    calm: bool = False
    """Nothing fails any more."""
    kinds: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        runner = self.engine.runner
        self._launch, self._forward, self._copy = runner.launch, runner.forward, runner.copy_blocks
        runner.launch, runner.forward, runner.copy_blocks = self.launch, self.forward, self.copy_blocks
        if isinstance(self.engine.drafts, Speculator):
            proposer = self.engine.drafts.proposer
            self._propose, proposer.propose = proposer.propose, self.propose

    def launch(self, batch: ScheduledBatch) -> LaunchedStep:
        if self.strikes("before the step"):
            raise self.error()
        step = self._launch(batch)
        if self.strikes("after the step"):
            raise self.error()
        return BrokenStep(step, self.error()) if self.strikes("while waiting") else step

    def forward(self, batch: Any) -> Tensor:
        logits = self._forward(batch)
        if len(logits) and self.strikes("NaN logits"):
            logits = logits.clone()
            logits[self.rng.randrange(len(logits))] = torch.nan
        return logits

    def copy_blocks(self, batch: ScheduledBatch) -> None:
        if (batch.saves or batch.loads) and self.strikes("swap"):
            raise self.error()
        self._copy(batch)

    def propose(self, wanted: Any) -> Any:
        if self.strikes("proposer", chance=self.rate / 10):  # it is done without from then on
            raise self.error()
        return self._propose(wanted)

    def break_text(self, request_id: str) -> None:
        """Perhaps one of the request's detokenizers will fail at some token."""
        for sequence in self.engine.outputs.groups[request_id].sequences:
            if self.strikes("detokenizer"):
                tokens_left = self.rng.randrange(10)
                sequence.detokenizer.add = self._broken(sequence.detokenizer.add, tokens_left)

    def _broken(self, add: Callable[[int], str], tokens_left: int) -> Callable[[int], str]:
        def broken(token_id: int) -> str:
            nonlocal tokens_left
            tokens_left -= 1
            if tokens_left < 0:
                raise Injected("no text for this token")
            return add(token_id)

        return broken

    def strikes(self, kind: str, chance: float | None = None) -> bool:
        happens = not self.calm and self.rng.random() < (self.rate if chance is None else chance)
        if happens:
            self.count += 1
            self.kinds[kind] = self.kinds.get(kind, 0) + 1
        return happens

    def error(self) -> BaseException:
        if self.ctrl_c and self.rng.random() < 0.5:
            return self.rng.choice([KeyboardInterrupt, Panic])()
        return self.rng.choice(ERRORS)()
