"""The numbers of a round: what its facts give, and what follows from them by formulas and by the simulator."""

import functools
import math
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

from course.drills.amounts import COUNT, SECONDS, TOKEN_RATE, TOKENS, Amount
from course.rounds.errors import RoundFileError
from course.simulator.cost.experts import ExpertRanks
from course.simulator.cost.hardware import find_hardware
from course.simulator.cost.models import find_model
from course.simulator.cost.roofline import StepWork
from course.simulator.deployment import Deployment

Formula = str | tuple[Any, ...]
"""A unit, a Python expression and perhaps a tolerance; or an expression alone, for a step on the way."""

PRICES_KEPT = 4096
"""Prices of the simulator that are remembered: every draw and every change of mind asks for nearly the same ones."""


@functools.lru_cache(PRICES_KEPT)
def decode_step(model: str, gpu: str, batch: float, context: float, **placed: Any) -> float:
    """Seconds that one decode step takes in the simulator.

    Args:
        batch: requests; with data-parallel attention, of each rank.
        context: tokens that each has in the cache.
        placed: as `Deployment.of` takes it: tp, dp, weight_dtype, kv_dtype, expert_parallel, expert_skew.
    """
    deployment = Deployment.of(model, gpu, **placed)
    work = StepWork(batch, batch, batch, batch * context, batch * context, 0)
    return deployment.step_time().price(deployment.adjusted(work)).total


@functools.lru_cache(PRICES_KEPT)
def prefill_time(model: str, gpu: str, tokens: float, cached: float = 0, **placed: Any) -> float:
    """Seconds that a prompt takes in the simulator, alone and in one step.

    Args:
        tokens: of the prompt that must be computed.
        cached: tokens before those whose keys and values are there already.
    """
    deployment = Deployment.of(model, gpu, **placed)
    work = StepWork.of_prompt(int(tokens), int(cached))
    return deployment.step_time().price(deployment.adjusted(work)).total


@functools.lru_cache(PRICES_KEPT)
def kv_tokens(model: str, gpu: str, **placed: Any) -> float:
    """Tokens whose keys and values fit beside the weights, on one replica (with data-parallel attention: one rank)."""
    deployment = Deployment.of(model, gpu, **placed)
    return deployment.num_kv_blocks * deployment.block_size


def all_free_wait(load: float, servers: float, service: float) -> float:
    """Mean seconds in the queue of an M/M/c system (Erlang's C formula).

    Args:
        load: of all servers, from 0 to 1. At 1 and above the queue never settles: infinity.
        service: mean seconds that a request is served.
    """
    if load >= 1:
        return math.inf
    count, offered = int(servers), load * int(servers)
    blocked = 1.0  # Erlang's B, server by server
    for server in range(1, count + 1):
        blocked = offered * blocked / (server + offered * blocked)
    waits = blocked / (1 - load * (1 - blocked))
    return waits * service / (count * (1 - load))


_KNOWN: dict[str, Callable[..., Any]] = {
    "model": find_model,
    "gpu": find_hardware,
    "ExpertRanks": ExpertRanks,
    **{each.__name__: each for each in (decode_step, prefill_time, kv_tokens, all_free_wait)},
    **{each.__name__: each for each in (math.ceil, math.floor, math.comb, math.log2, math.log, math.exp, math.sqrt)},
    **{each.__name__: each for each in (abs, int, max, min, round, sum, range)},
}


_LONG = ((120, 1, ""), (7200, 60, "minutes"), (172800, 3600, "hours"), (math.inf, 86400, "days"))
"""Seconds below a limit: by what they are divided, and what people call that."""


MILLION = 1e6


class SpokenAmount(Amount):
    """An amount as an interviewer says it: 42 minutes, 9.6M tokens, 46 requests; not 2,545 s, 9,563,648 or 46.2."""

    def __format__(self, spec: str) -> str:
        if self.unit in (TOKENS, TOKEN_RATE, COUNT) and self.value >= MILLION:
            return f"{self.value / MILLION:.3g}M" + (f" {self.unit}" if self.unit and spec != "n" else "")
        if self.unit == COUNT and self.value >= 10:
            return f"{self.value:,.0f}"
        divisor, name = next(each[1:] for each in _LONG if self.unit != SECONDS or self.value < each[0])
        if not name:
            return super().__format__(spec)
        number = f"{self.value / divisor:.3g}"
        return number if spec == "n" else f"{number} {name}"


class RoundNumbers:
    """All numbers of one draw, and what expressions make of them.

    Args:
        given: what the facts say.
        formulas: what follows; each may use those before it.
        before: the numbers before the change of mind, which expressions see as `was.NAME` and texts as {was_NAME}.
    """

    def __init__(
        self, given: Mapping[str, Amount], formulas: Mapping[str, Formula], before: "RoundNumbers | None" = None
    ) -> None:
        self.amounts: dict[str, Amount] = dict(given)
        self._values: dict[str, Any] = {name: amount.value for name, amount in given.items()}
        if before is not None:
            self._values["was"] = SimpleNamespace(**before._values)
            self.amounts |= {f"was_{name}": amount for name, amount in before.amounts.items()}
        for name, written in formulas.items():
            expression = written if isinstance(written, str) else str(written[1])
            self._values[name] = self.value(expression)
            if not isinstance(written, str):
                unit, _, *tolerance = written
                self.amounts[name] = SpokenAmount(float(self._values[name]), unit, *tolerance)

    def value(self, expression: str) -> Any:
        """Raises RoundFileError if it can't be worked out."""
        try:
            return eval(expression, {"__builtins__": {}, **_KNOWN, **self._values})
        except Exception as error:  # whatever a formula in a file can do wrong
            raise RoundFileError(f"cannot work out {expression!r}: {error}") from error

    def fill(self, text: str) -> str:
        """The text with all its {names} replaced. Raises RoundFileError if there is no such number."""
        try:
            return text.format_map(self.amounts)
        except (KeyError, ValueError) as error:
            raise RoundFileError(f"cannot fill in {text!r}: {error!r}") from error
