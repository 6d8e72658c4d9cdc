"""Whose seconds were they? What each kind of work added to a step: the marginal cost of prompts and of drafts.

A step costs something whatever is in it: the weights are read once, kernels are launched, Python runs. Sharing its
seconds out by tokens would hand most of that to whatever has most tokens. A request that decodes would have paid it
anyway; a prompt beside it costs it only what the step takes *longer*:

    charge = seconds of the step - seconds of the same step without the prompt

The second term is never measured, so it is estimated from *plain* steps, those of decodes alone. With d decodes, whose
contexts have c tokens in all, such a step takes close to

    plain  =  fixed  +  d * decode  +  c * context

with three prices that depend on model, machine and runner. Least squares over the latest plain steps finds them:

- Those that took about as long as the very latest count most: a step that compiled for seconds counts for nothing,
  and when the machine slows down, the faster steps of before are soon outweighed.
- Only plain steps replace plain steps. After a thousand mixed ones they still say what a step takes without prompts.
- Where they don't tell the prices apart, a decode is taken to cost what a token of the other steps does, and what could
  be `fixed` is. No price is negative.

What a step takes beyond that is charged to its prompts and drafts. Where it has both, each gets a part in proportion to
what so many usually add: the median of the latest steps that had about as many, of this kind alone. Where that isn't
known, they share by tokens. Two limits keep a hiccup (a kernel compiled, a laptop asleep) from being charged as if it
were work; what exceeds them counts as fixed cost:

- k tokens in one step cost no more than k steps with one token each.
- If a step takes more than 3 times what was expected of it, its prompts and drafts are charged at most 4 times what
  they usually add.

Until the first plain step, all others are laid on one line, `fixed + tokens * price`, as though a token cost the same
whatever it is. Where their sizes are too similar to tell the two, the ratio that was found last holds, within
bounds; at first, a step's fixed cost is taken to be that of 64 tokens. Such a charge is a guess somewhere between
nothing and a split by tokens.

So the charge is an estimate, exact where a runner's plain steps follow the sum above. It isn't corrected later. On a
noisy machine a single charge is as uncertain as a step's duration; where prompts add less than the noise, their sum
comes out too large, since no charge is negative.
"""

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from functools import partial
from operator import mul
from statistics import median_low
from typing import NamedTuple, Self

from minillm.core.step_log import StepRecord

MEMORY = 50
"""Plain steps that are remembered; until there is one, other steps."""
FEW = 16
"""Steps with prompts or with drafts that are remembered of each size, to know what so many usually add."""
LATEST = 5
"""Steps whose median says how long a step takes now; what took longer or less counts less."""
HICCUP = 3.0
"""Times what was expected: a longer step is a hiccup."""
MOST = 4.0
"""Times what prompts and drafts usually add: the most they are charged in a hiccup."""
TOKENS_OF_FIXED = 64.0
"""Tokens that cost as much as what is fixed in a step, as long as nothing is known."""
FEWEST_OF_FIXED, MOST_OF_FIXED = 8.0, 1024.0
"""Bounds of that, when equal steps lead to no better estimate than the last: noise must not carry it away."""
UNCLEAR = 1e-5
"""Squared relative spread of amounts below which steps don't tell what one of them costs."""
SURE = 4.0
"""Squared standard errors: a context price that is no larger could be noise, and counts as 0."""
SHORTEST_S = 1e-9
"""A shorter step is a clock that stands still, and says nothing."""


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
        decodes = prompts = drafts = 0
        for _, num_tokens, is_prefill, num_drafts, _ in record.shares:
            drafts += num_drafts
            if is_prefill:
                prompts += num_tokens - num_drafts
            else:
                decodes += num_tokens - num_drafts
        return cls(decodes, record.num_context_tokens, prompts, drafts)

    @property
    def num_tokens(self) -> int:
        """All tokens that the step computes."""
        return self.decodes + self.prompts + self.drafts

    @property
    def num_added(self) -> int:
        """Prompt tokens and drafts."""
        return self.prompts + self.drafts

    @property
    def is_both(self) -> bool:
        """Whether it has prompts as well as drafts."""
        return self.prompts > 0 and self.drafts > 0

    @property
    def is_mixed(self) -> bool:
        """Whether any request waited for more than its own next token."""
        return bool((self.prompts and self.decodes) or self.drafts)


class StepCost(NamedTuple):
    """Seconds of one step, by what they went to. They sum to the step's."""

    fixed: float
    """What it would take without any tokens: reading the weights, launching kernels, Python. Hiccups, too."""
    decodes: float
    prompts: float
    """What its prompt tokens added."""
    drafts: float
    """What checking drafts added; making them is not in it."""


class PlainPrices(NamedTuple):
    """What a step takes without prompts and drafts. Seconds."""

    fixed: float
    decode: float
    """Seconds for each request that decodes."""
    context: float
    """Seconds for each token that these attend to."""

    def estimate(self, tokens: StepTokens) -> float:
        """Seconds of this step, had it only its decodes."""
        return self.fixed + tokens.decodes * self.decode + tokens.context * self.context


class Observed(NamedTuple):
    """A step and how long it took."""

    tokens: StepTokens
    seconds: float


class StepCostModel:
    """Estimates prices from steps as they come, and splits steps by them. Deterministic. A step that is observed is
    only remembered; prices are found when the next one is split.

    Args:
        memory: plain steps to remember; None = all, to look back at a run.
    """

    def __init__(self, memory: int | None = MEMORY) -> None:
        self._plain: deque[Observed] = deque(maxlen=memory)
        self._others: deque[Observed] = deque(maxlen=memory)
        """Steps with prompts or drafts."""
        self._with_prompts, self._with_drafts = BySize(), BySize()
        """Steps with one of the two alone."""
        self._is_over = memory is None
        self._tokens_of_fixed = TOKENS_OF_FIXED
        self._prices: PlainPrices | None = None
        """What the steps seen so far say; None = to be found anew."""

    def observe(self, tokens: StepTokens, seconds: float) -> None:
        """Learn from a step that took this long, the making of its drafts left out."""
        if seconds < SHORTEST_S:
            return
        step = Observed(tokens, seconds)
        _, _, prompts, drafts = tokens
        if not prompts and not drafts:
            self._plain.append(step)
            self._prices = None
            return
        self._others.append(step)
        if not self._plain:
            self._prices = None
        if not drafts:
            self._with_prompts.add(prompts, step)
        elif not prompts:
            self._with_drafts.add(drafts, step)

    def split(self, tokens: StepTokens, seconds: float) -> StepCost:
        """Split the seconds of a step. What exceeds a plain step's goes to prompts and drafts, within limits."""
        prices = self.prices()
        plain = prices.estimate(tokens)
        if not tokens.num_added or seconds <= plain:
            part = prices.fixed / plain if plain else 1.0
            return StepCost(seconds * part, seconds * (1 - part), 0.0, 0.0)
        extra = min(seconds - plain, tokens.num_added * one_token_alone(prices, tokens))
        parts: tuple[float, float] = (tokens.prompts, tokens.drafts)
        if tokens.is_both or seconds > HICCUP * plain:
            usual = self._usual_charges(tokens, prices)
            if sum(usual) > 0:
                parts = usual
                if seconds > HICCUP * (plain + sum(usual)):
                    extra = min(extra, MOST * sum(usual))
        prompts, drafts = (extra * part / sum(parts) for part in parts)
        decodes = plain - prices.fixed
        return StepCost(seconds - decodes - extra, decodes, prompts, drafts)

    def _usual_charges(self, tokens: StepTokens, prices: PlainPrices) -> tuple[float, float]:
        """Seconds that a step's prompts and drafts usually add; both 0 if that isn't known of one that it has."""
        prompts = self._with_prompts.usual_charge(tokens.prompts, prices)
        drafts = self._with_drafts.usual_charge(tokens.drafts, prices)
        return (0.0, 0.0) if prompts is None or drafts is None else (prompts, drafts)

    def prices(self) -> PlainPrices:
        """What the steps so far tell of one without prompts and drafts."""
        if self._prices is None:
            if self._plain:
                others = list(self._others) if self._is_over else list(self._others)[-FEW:]
                self._prices = fit_plain(self._plain, self._weights(self._plain), others)
            elif self._others:
                self._prices = line = fit_line(self._others, self._weights(self._others), self._tokens_of_fixed)
                found = line.fixed / line.decode if line.decode else MOST_OF_FIXED
                self._tokens_of_fixed = min(max(found, FEWEST_OF_FIXED), MOST_OF_FIXED)
            else:
                self._prices = PlainPrices(0.0, 0.0, 0.0)
        return self._prices

    def _weights(self, steps: Sequence[Observed]) -> list[float]:
        """How much each step counts: 1 if it took as long as usual, 1/16 if half or twice as long. What is usual, the
        latest say, or all, if the run is over.

        When the machine slows down to a third, 10 steps at the new speed outweigh 40 at the old one 20 times.
        """
        seconds = [step.seconds for step in steps]
        usual = median_low(seconds if self._is_over else seconds[-LATEST:])
        return [((each / usual) if each < usual else (usual / each)) ** 4 for each in seconds]


class BySize:
    """The latest steps with prompts, or with drafts: a few of each size, so that many small ones push out no large one.
    A size is a power of two."""

    def __init__(self) -> None:
        self._steps: defaultdict[int, deque[Observed]] = defaultdict(partial(deque, maxlen=FEW))

    def add(self, num_tokens: int, step: Observed) -> None:
        """Remember a step with so many prompt tokens, or drafts."""
        self._steps[num_tokens.bit_length()].append(step)

    def usual_charge(self, num_tokens: int, prices: PlainPrices) -> float | None:
        """Seconds that so many usually add to a step; None: there was no step with about as many.

        The median, so one hiccup among them doesn't count. What a step of prompts alone would have taken without them
        is less sure than of one with decodes, too: it counts only if there is none of these.
        """
        if not num_tokens:
            return 0.0
        size = num_tokens.bit_length()
        near = [step for each in (size - 1, size, size + 1) for step in self._steps.get(each, ())]
        near = [step for step in near if step.tokens.decodes] or near
        fixed, decode, context = prices  # `estimate` and `num_added`, written out: this is most of what a split takes
        found = [
            (seconds - (fixed + decodes * decode + contexts * context)) / (prompts + drafts)
            for (decodes, contexts, prompts, drafts), seconds in near
        ]
        return max(median_low(found), 0.0) * num_tokens if found else None


def split_steps(records: Sequence[StepRecord]) -> list[StepCost]:
    """Split the steps of a run that is over: with hindsight, so with the same prices for all of them. The seconds in
    which drafts were made are left out."""
    model, steps = StepCostModel(memory=None), []
    for record in records:
        steps.append((StepTokens.of(record), record.end - record.start - record.stages.get("draft", 0.0)))
        model.observe(*steps[-1])
    return [model.split(tokens, seconds) for tokens, seconds in steps]


def one_token_alone(plain: PlainPrices, tokens: StepTokens) -> float:
    """Seconds of a step with a single token, which has the average context of this step's decodes."""
    return plain.fixed + plain.decode + plain.context * tokens.context / max(tokens.decodes, 1)


def fit_plain(steps: Sequence[Observed], weights: Sequence[float], others: Iterable[Observed]) -> PlainPrices:
    """The prices with which these plain steps agree best.

    Least squares, around the means: they say what fits best at the average step, and the spread of decodes and context
    around it what each of them costs. Contexts may grow to a hundred times what they were, and multiply an error: so as
    far as noise could explain their price, it is taken to be less.

    Args:
        others: steps that tell what a decode costs if the plain ones don't.
    """
    tokens, seconds = zip(*steps)
    decodes, contexts, _, _ = zip(*tokens)
    total = sum(weights)
    d_mean, d_off = centered(decodes, weights, total)
    c_mean, c_off = centered(contexts, weights, total)
    s_mean, s_off = centered(seconds, weights, total)
    # The normal equations of decodes (d) and contexts (c): dd * decode + dc * context = ds, and so on. A pinch of
    # `unclear` in them decides where the steps differ too little: then a decode costs what a token of other steps does.
    d_weighted, c_weighted = [*map(mul, weights, d_off)], [*map(mul, weights, c_off)]
    unclear = UNCLEAR * total * d_mean**2
    dd, cc = unclear + dot(d_weighted, d_off), UNCLEAR * total * c_mean**2 + dot(c_weighted, c_off)
    dc = dot(d_weighted, c_off)
    ds, cs = unclear * token_price(others, d_mean, s_mean) + dot(d_weighted, s_off), dot(c_weighted, s_off)
    decode, context = two_prices(dd, cc, dc, ds, cs)
    if context > 0:  # what noise could explain of it is taken off
        missed = [s - d * decode - c * context for s, d, c in zip(s_off, d_off, c_off)]
        variance = dot(weights, map(mul, missed, missed)) / total
        context *= max(1 - SURE * variance / (cc * context**2), 0.0)
        decode = max((ds - dc * context) / dd, 0.0) if dd else 0.0
    tokens_s = decode * d_mean + context * c_mean
    if tokens_s > s_mean:  # fixed would be negative
        decode, context = decode * s_mean / tokens_s, context * s_mean / tokens_s
    return PlainPrices(max(s_mean - tokens_s, 0.0), decode, context)


def centered(amounts: Sequence[float], weights: Sequence[float], total: float) -> tuple[float, list[float]]:
    """The weighted mean of some amounts, and how far each is from it. `total` is the sum of the weights."""
    mean = dot(weights, amounts) / total
    return mean, [amount - mean for amount in amounts]


def dot(ones: Iterable[float], others: Iterable[float]) -> float:
    """The sum of products."""
    return sum(map(mul, ones, others))


def token_price(steps: Iterable[Observed], mean_tokens: float, mean_s: float) -> float:
    """Seconds a token, as these steps differ from the mean plain step: the median."""
    found = [
        (seconds - mean_s) / (num_tokens - mean_tokens)
        for tokens, seconds in steps
        if (num_tokens := tokens.num_tokens) >= 1.5 * mean_tokens
    ]
    return min(max(median_low(found), 0.0), mean_s / mean_tokens) if found and mean_tokens else 0.0


def two_prices(dd: float, cc: float, dc: float, ds: float, cs: float) -> tuple[float, float]:
    """Solve dd * x + dc * y = ds and dc * x + cc * y = cs, with neither x nor y below 0."""
    determinant = dd * cc - dc * dc
    if determinant > 0:
        x, y = (ds * cc - cs * dc) / determinant, (cs * dd - ds * dc) / determinant
        if x >= 0 and y >= 0:
            return x, y
    x, y = max(ds / dd if dd else 0.0, 0.0), max(cs / cc if cc else 0.0, 0.0)
    return (x, 0.0) if x * ds >= y * cs else (0.0, y)  # the one that explains more


def fit_line(steps: Sequence[Observed], weights: Sequence[float], tokens_of_fixed: float) -> PlainPrices:
    """Prices without a plain step to learn from: a token costs the same, whatever it is.

    Args:
        steps: at least one.
        tokens_of_fixed: what to assume where they are too similar to tell: how many tokens cost as much as `fixed`.
    """
    total = sum(weights)
    n_mean, n_off = centered([tokens.num_tokens for tokens, _ in steps], weights, total)
    s_mean, s_off = centered([seconds for _, seconds in steps], weights, total)
    n_weighted = [*map(mul, weights, n_off)]
    unclear = 10 * UNCLEAR * total * n_mean**2
    nn = unclear + dot(n_weighted, n_off)
    ns = unclear * s_mean / (n_mean + tokens_of_fixed) + dot(n_weighted, s_off)
    # Where larger steps took less, they tell of a start, and of no price.
    token = min(ns / nn, s_mean / n_mean) if ns > 0 else s_mean / (n_mean + tokens_of_fixed)
    return PlainPrices(s_mean - token * n_mean, token, 0.0)
