"""When drafting is worth it, and how far.

The j-th token of a draft is accepted only if all before it are: with the probability α^j, α being the acceptance rate,
the share of draft tokens that are accepted where those before them were. Making and checking it costs the same at any
j. So there is a longest draft worth making, and it follows from one number: how likely to be accepted a token must be
to be worth its cost (`acceptance_floor`). If not even the first token is that likely, nothing is drafted, but for a try
now and then.

The floor f is that of a request by itself: what one more row adds to the cost of a step with one row. With B requests
a step costs 1 + (B - 1) f and yields B tokens. They share the reading of the weights already, so a token is cheaper,
and a row must be likelier to yield one: B f / (1 + (B - 1) f). That is 0.25, 0.57 and 0.73 for B = 1, 4 and 8, and
0.01, 0.07 and 0.39 for B = 1, 8 and 64 where f is 0.01. Beyond B = 1 / f, one row more for each request would cost as
much as the step with one row: there, nothing is drafted (`max_batch`).
"""

import math
from dataclasses import dataclass

from minillm.core.request import Request
from minillm.policies.config import SpeculativeConfig

CHEAP_ROW, COSTLY_ROW = 0.12, 0.25
"""Marginal row cost on a CPU: what one more row adds to a step with one, with a margin; where it multiplies bfloat16,
and where not. On two cores with AVX512_BF16 a step of 12.0 ms became one of 15.3 with three rows and three passes
of a draft head more, 0.09 for each; rows beyond eight were measured to add 0.1."""
GPU_ROW = 0.01
"""The same on a GPU. In 16 bits a row adds at least bandwidth / FLOP/s of the step that reads the weights: by its sheet
0.3% on an H100, 0.7% on an A100. Measured on an H100 with an 8B: 0.5% a request (docs/measured.md, a decode step
at 1 and 32), 0.9% with int8 weights."""
FEWEST_DRAFTING = 8
"""Requests that may all draft, however costly a row is: the floor decides."""
WINDOW = 60
"""Draft tokens over which a request's acceptance is averaged. With 20 the mean wanders, and with it the length of
drafts: that cost everyday questions 1%. In return a request whose drafts begin to be accepted after a long time without
takes two or three tries to be believed."""
POOLED_WINDOW = 100
"""The same over all requests."""
PRIOR_WEIGHT = 12
"""A new request is believed to be like the others until it has had about as many draft tokens."""
PRIOR_ACCEPTANCE, PRIOR_TRIES = 0.5, 4
"""What is believed at first: such a share is accepted, as if so many draft tokens had been seen."""


@dataclass(slots=True)
class Acceptance:
    """Draft tokens whose outcome was seen, older ones counting less and less."""

    window: int
    passed: float = 0.0
    tried: float = 0.0
    idle: int = 0
    """Steps since drafting was last worth it."""

    def add(self, passed: int, tried: int) -> None:
        keep = (1 - 1 / self.window) ** tried
        self.passed = self.passed * keep + passed
        self.tried = self.tried * keep + tried


class DraftLength:
    """Decides, request by request, how many tokens to draft.

    Args:
        row_cost: the floor where the configuration names none.
    """

    def __init__(self, config: SpeculativeConfig, row_cost: float = COSTLY_ROW) -> None:
        self.config = config
        self.row_cost = row_cost
        self._pooled = Acceptance(POOLED_WINDOW, PRIOR_ACCEPTANCE * PRIOR_TRIES, PRIOR_TRIES)
        self._requests: dict[str, Acceptance] = {}

    @property
    def max_batch(self) -> int:
        """Most running requests with which any of them drafts."""
        most, floor = self.config.most_drafting, self._floor(1)
        if self.config.max_batch is not None or most * floor <= 1:
            return most
        return max(FEWEST_DRAFTING, int(1 / floor))

    def num_drafts(self, request: Request, num_running: int) -> int:
        """How many tokens to draft for the request in this step; asked once a step."""
        config, params = self.config, request.params
        if num_running > self.max_batch or params.max_tokens < config.min_output_tokens:
            return 0
        acceptance = self._requests.setdefault(request.request_id, Acceptance(WINDOW))
        k = self._worthwhile(self.rate(request), num_running)
        acceptance.idle = 0 if k else acceptance.idle + 1
        # The more requests, the rarer each tries: together they try as often as one.
        if acceptance.idle >= config.reprobe_steps * num_running:
            k = config.k  # until one has been checked
        # The step itself yields one token more than are accepted.
        return max(min(k, params.max_tokens - request.num_output_tokens - 1), 0)

    def rate(self, request: Request) -> float:
        """The acceptance rate to expect: of draft tokens before which all were accepted."""
        own = self._requests.get(request.request_id) or Acceptance(WINDOW)
        return (PRIOR_WEIGHT * self._pooled.passed / self._pooled.tried + own.passed) / (PRIOR_WEIGHT + own.tried)

    def observe(self, request: Request, num_drafts: int, num_accepted: int) -> None:
        """A draft was checked."""
        # What comes after a rejected token was not put to the test.
        tried = min(num_accepted + 1, num_drafts)
        self._pooled.add(num_accepted, tried)
        if own := self._requests.get(request.request_id):
            own.add(num_accepted, tried)
            own.idle = 0

    def forget(self, request: Request) -> None:
        self._requests.pop(request.request_id, None)

    def _worthwhile(self, rate: float, num_running: int) -> int:
        """The longest draft whose last token is accepted with at least the floor's probability."""
        floor, k = self._floor(num_running), self.config.k
        if rate < floor:
            return 0
        if not self.config.adaptive_k or floor == 0 or rate >= 1:
            return k
        return max(1, min(k, math.floor(math.log(floor) / math.log(rate))))

    def _floor(self, num_running: int) -> float:
        floor = self.row_cost if self.config.acceptance_floor is None else self.config.acceptance_floor
        return num_running * floor / (1 + (num_running - 1) * floor)
