"""Whose seconds were they? What each kind of work added to a step: the marginal cost of prompts and of drafts.

A step costs something whatever is in it: the weights are read once, kernels are launched, Python runs. Sharing its
seconds out by tokens would hand most of that to whatever has most tokens. A request that decodes would have paid it
anyway; a prompt beside it costs it only what the step takes *longer*:

    charge = seconds of the step - seconds of the same step without the prompt

The second term is never measured, so it is estimated from the steps around it. Let a step have d decodes, whose
contexts have c tokens in all, p prompt tokens and g drafts. Its seconds are close to

    s  =  fixed  +  d * decode  +  c * context  +  p * prompt  +  g * draft

with five prices that depend on model, machine and runner. Least squares over the recent steps finds them:

- Residuals are relative (a step weighs 1 / s^2), so that one step that compiled for seconds doesn't hide a thousand of
  milliseconds.
- A step of decodes alone weighs 1000 times one with prompts or drafts: the sum above needs to be good for `fixed +
  d * decode + c * context`, which those steps measure. (A prompt's own cost isn't quite linear. It needn't be: what it
  is charged is the difference to the step's measured seconds, not p * prompt.)
- Without such steps, prompts alone and mixed steps determine the prices, too. What the evidence leaves open is settled
  by two weak preferences: a token costs the same whatever it is, and what could be `fixed` is. So where nothing is
  known, nothing is charged.
- No price is negative, and no charge exceeds the step.

So the charge is an estimate, exact where a runner's steps follow the sum. Until an engine has taken a step of decodes
alone it may be off by what a decode costs more than a prompt token, and it isn't corrected later. On a noisy machine a
single charge is as uncertain as a step's duration; where prompts add less than the noise, their sum comes out too
large, since no charge is negative.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple, Self

from minillm.core.timeline import StepRecord

MEMORY = 50
"""Steps after which evidence weighs 1/e of what it did."""
BESIDE = 0.001
"""Weight of a step with prompts or drafts; one of decodes alone has weight 1."""
SAME_PRICE = 0.01
"""How firmly the first preference is held: as though a step with this many tokens had shown it."""
NO_PRICE = (0.0, 1e-4, 1.0, 1e-4, 1e-4)
"""The same of the second, for each price."""
OF_A_TOKEN = (1, 3, 4)
"""Prices of which the first preference speaks: of a decode, a prompt token, a draft."""
SHORTEST_S = 1e-9
"""A shorter step is a clock that stands still, and says nothing."""
LARGEST_WEIGHT = 1e100
SINGULAR = 1e-12
"""What is left of a number after so much of it was subtracted is rounding."""


class StepTokens(NamedTuple):
    """The work in one step, by kind."""

    decodes: int
    """Requests that decode: their own tokens, one each."""
    context: int
    """Tokens of these requests so far, all that they attend to."""
    prompts: int
    """Prompt tokens, and tokens computed again after a preemption."""
    drafts: int
    """Guesses that are checked."""

    @classmethod
    def of(cls, record: StepRecord) -> Self:
        drafts = sum([share.num_drafts for share in record.shares])
        prompts = sum([share.num_tokens - share.num_drafts for share in record.shares if share.is_prefill])
        return cls(record.num_tokens - prompts - drafts, record.num_context_tokens, prompts, drafts)

    @property
    def is_mixed(self) -> bool:
        """Whether any request waited for more than its own next token."""
        return bool((self.prompts and self.decodes) or self.drafts)


class StepCost(NamedTuple):
    """Seconds of one step, by what they went to. They sum to the step's."""

    fixed: float
    """What it would take without any tokens: reading the weights, launching kernels, Python."""
    decodes: float
    prompts: float
    """What its prompt tokens added."""
    drafts: float
    """What checking drafts added; making them is not in it."""


NO_CHARGE = StepCost(0.0, 0.0, 0.0, 0.0)
"""Of a step of one kind, in which no request waited for another's work."""


class StepCostModel:
    """Estimates prices from steps as they come, and splits steps by them. O(1) a step; deterministic.

    Args:
        memory: steps after which evidence weighs 1/e; infinite to look back at a run whose steps all count alike.
    """

    def __init__(self, memory: float = MEMORY) -> None:
        self._growth = 1 + 1 / memory  # the newest step weighs more, which is the same as all others weighing less
        self._weight = 1.0
        self._moments = [[0.0] * 5 for _ in range(5)]
        """Weighted sums over steps of amount i * amount j, by kind: one step, decodes, context, prompts, drafts."""
        self._seconds = [0.0] * 5
        """Weighted sums of amount i * seconds."""
        self._prices: list[float] | None = None
        """As of the last step that was observed; None until they are asked for."""

    def observe(self, tokens: StepTokens, seconds: float) -> None:
        """Learn from a step that took this long, the making of its drafts left out."""
        if seconds < SHORTEST_S:
            return
        # One that seems short, because its work was done while Python was busy elsewhere, must not outweigh all others.
        weight = self._weight / max(seconds, self._typical_s) ** 2
        if tokens.prompts or tokens.drafts:
            weight *= BESIDE
        amounts = [(kind, amount) for kind, amount in enumerate((1, *tokens)) if amount]
        for i, amount in amounts:
            moments, weighted = self._moments[i], weight * amount
            for j, other in amounts:
                moments[j] += weighted * other
            self._seconds[i] += weighted * seconds
        self._weight *= self._growth
        self._prices = None
        if self._weight > LARGEST_WEIGHT:
            self._rescale()

    def split(self, tokens: StepTokens, seconds: float) -> StepCost:
        """Split the seconds of a step. What exceeds the estimate without prompts and drafts goes to these, in
        proportion to their prices."""
        fixed, decode, context, prompt, draft = self.prices()
        decodes = tokens.decodes * decode + tokens.context * context
        extra = seconds - fixed - decodes
        prompts, drafts = tokens.prompts * prompt, tokens.drafts * draft
        if not prompts + drafts:
            prompts, drafts = tokens.prompts, tokens.drafts
        if extra <= 0 or not prompts + drafts:
            plain = fixed + decodes
            part = fixed / plain if plain else 1.0
            return StepCost(seconds * part, seconds * (1 - part), 0.0, 0.0)
        part = prompts / (prompts + drafts)
        return StepCost(fixed, decodes, extra * part, extra * (1 - part))

    def prices(self) -> list[float]:
        """Seconds of a step as such, of a decode, of a token of context, of a prompt token, of a draft."""
        if self._prices is None:
            self._prices = self._estimate()
        return self._prices

    def _estimate(self) -> list[float]:
        found = [0.0] * 5
        kinds = [kind for kind in range(5) if self._moments[kind][kind] > 0]
        if kinds:
            while True:
                matrix = self._with_preferences(kinds)
                some = solve([[matrix[i][j] for j in kinds] for i in kinds], [self._seconds[i] for i in kinds])
                # Amounts differ in size: by what they contribute to a step, the most negative one leaves.
                least, kind = min((price * matrix[kind][kind] ** 0.5, kind) for price, kind in zip(some, kinds))
                if least >= 0:
                    break
                kinds.remove(kind)
            for kind, price in zip(kinds, some):
                found[kind] = price
        return found

    @property
    def _typical_s(self) -> float:
        """A mean over the steps so far, seconds; one that is much longer than the others counts little."""
        steps = self._moments[0][0]
        return self._seconds[0] / steps if steps else 0.0

    def _with_preferences(self, kinds: Sequence[int]) -> list[list[float]]:
        matrix = [[*moments] for moments in self._moments]
        unit = self._weight / self._typical_s**2
        for kind, strength in enumerate(NO_PRICE):
            matrix[kind][kind] += unit * strength**2
        for one, other in pairwise(kind for kind in kinds if kind in OF_A_TOKEN):
            for i, j, sign in ((one, one, 1), (other, other, 1), (one, other, -1), (other, one, -1)):
                matrix[i][j] += sign * unit * SAME_PRICE**2
        return matrix

    def _rescale(self) -> None:
        """Weights grow without end: make all of them smaller."""
        self._moments = [[each / self._weight for each in moments] for moments in self._moments]
        self._seconds = [each / self._weight for each in self._seconds]
        self._weight = 1.0


def split_steps(records: Sequence[StepRecord]) -> list[StepCost]:
    """Split the steps of a run that is over: with hindsight, so with the same prices for all of them. The seconds in
    which drafts were made are left out."""
    model, steps = StepCostModel(memory=math.inf), []
    for record in records:
        steps.append((StepTokens.of(record), record.end - record.start - record.stages.get("draft", 0.0)))
        model.observe(*steps[-1])
    return [model.split(tokens, seconds) for tokens, seconds in steps]


def solve(matrix: Sequence[Sequence[float]], vector: Sequence[float]) -> list[float]:
    """The x with matrix @ x = vector, by elimination.

    Args:
        matrix: symmetric and positive semidefinite, so no pivoting is needed. Where, but for rounding, a row follows
            from those before it, its unknown is 0.
    """
    size = len(vector)
    rows = [[*row, right] for row, right in zip(matrix, vector)]
    usable = []
    for i in range(size):
        usable.append(rows[i][i] > SINGULAR * matrix[i][i])
        if usable[i]:
            for row in rows[i + 1 :]:
                factor = row[i] / rows[i][i]
                for j in range(i, size + 1):
                    row[j] -= factor * rows[i][j]
    found = [0.0] * size
    for i in reversed(range(size)):
        if usable[i]:
            known = sum(rows[i][j] * found[j] for j in range(i + 1, size))
            found[i] = (rows[i][size] - known) / rows[i][i]
    return found
