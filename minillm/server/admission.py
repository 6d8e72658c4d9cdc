"""Admission control: who may come in, how many at a time, and what the others are told.

What is refused here has cost almost nothing: no tokenizing, no wait for an engine step. A client that is
refused immediately can go elsewhere; one that waits in an endless queue has lost already.

The engine runs `max_num_seqs` sequences and `max_queue_len` more may wait, so that many are let in. (The
engine's own limit counts differently: between two steps it cannot see that its slots are free, and would
refuse half of a burst while nothing runs. The server therefore counts here, and leaves that one off.)
"""

import hashlib
import hmac
import math
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from minillm.core.errors import ConfigError
from minillm.policies.config import EngineConfig
from minillm.server.config import ServeConfig
from minillm.server.errors import ApiError
from minillm.text_files import read_text

LONGEST_RETRY_AFTER_S = 60
KEPT_PART = 4
"""One place in so many is kept in fair order: a fourth of the queue."""
BYTES_PER_TOKEN = 4
"""Estimate of a prompt's tokens by the size of its body: what is let in has not been tokenized yet."""
NEW_WEIGHT = 0.1
"""The newest request's share in the running mean of service times."""


class ApiKeys:
    """The keys that are accepted; none at all means that every request is let in.

    Raises:
        ConfigError: the file cannot be read, or has no keys.
    """

    def __init__(self, file: str | None) -> None:
        self._keys: list[bytes] = []
        if file is None:
            return
        try:
            lines = [line.strip() for line in read_text(file).splitlines()]
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read the API keys: {error}") from error
        self._keys = [line.encode() for line in lines if line and not line.startswith("#")]
        if not self._keys:
            raise ConfigError(f"{file} has no API keys: write one on each line")

    def tenant(self, caller: str, user: str) -> str:
        """Whose request it is: the key's, which cannot be made up; without keys, as the request says."""
        return caller if self._keys else user

    def caller(self, authorization: str | None, address: str) -> str:
        """Whom to count a request for: a short hash of its key, or its address if there are no keys.

        Raises:
            ApiError: 401: no key, or a wrong one.
        """
        if not self._keys:
            return address
        scheme, _, given = (authorization or "").partition(" ")
        secret = given.strip().encode(errors="replace")
        # All keys are compared, each in constant time: how long a refusal takes says nothing about them.
        matches = [hmac.compare_digest(secret, key) for key in self._keys]
        if scheme.lower() != "bearer" or not any(matches):
            raise ApiError(401, "send a valid API key: Authorization: Bearer KEY", "invalid_api_key")
        return "key-" + hashlib.sha256(secret).hexdigest()[:8]


class AdmissionLimiter:
    """Counts what is in flight. All in the event loop, so no locks."""

    def __init__(self, serve: ServeConfig, engine: EngineConfig) -> None:
        self.serve = serve
        self.num_slots = 1 if engine.batching == "none" else engine.max_num_seqs
        self.capacity = math.inf if engine.max_queue_len is None else self.num_slots + engine.max_queue_len
        self.num_sequences = 0
        """Requests in flight: running or waiting."""
        self._per_caller: Counter[str] = Counter()
        self._tokens: Counter[str] = Counter()
        """Tokens in flight by tenant: prompts, and answers as long as they may get."""
        is_fair = engine.scheduling_order == "fair"
        self._kept = (engine.max_queue_len or 0) // KEPT_PART if is_fair else 0
        """Places in the queue for tenants that hold less than an equal share of the tokens in flight."""
        self._service_s = 1.0
        """Running mean of a request's time in the engine, seconds."""

    @contextmanager
    def caller_slot(self, caller: str) -> Iterator[None]:
        """Hold one of the caller's slots.

        Raises:
            ApiError: 429: it has max_requests_per_key in flight.
        """
        limit = self.serve.max_requests_per_key
        if limit is not None and self._per_caller[caller] >= limit:
            message = f"{limit} of your requests are in flight, and that is the limit: wait for one to finish"
            raise ApiError(429, message, "too_many_requests_per_key")
        self._per_caller[caller] += 1
        try:
            yield
        finally:
            self._per_caller[caller] -= 1
            if not self._per_caller[caller]:
                del self._per_caller[caller]

    @contextmanager
    def hold(self, num_sequences: int, tenant: str = "", num_tokens: int = 0) -> Iterator[None]:
        """Count sequences that run in the engine, or wait in the queue before it.

        In fair order the engine serves the tenant next that got the fewest tokens, so that a tenant with little to ask
        passes all that another has queued; but it has to get into the queue. So the last part of the queue is closed to
        tenants that hold an equal share of the tokens in flight, or more.

        Args:
            tenant: whose they are.
            num_tokens: prompt and output together, at most.
        Raises:
            ApiError: 429: slots and queue are full, or what is left is for others; 400: so many sequences never fit.
        """
        if num_sequences > self.capacity:
            raise ApiError(400, f"{num_sequences} outputs at once can never fit here: ask for fewer", param="n")
        if self.num_sequences + num_sequences > self.capacity:
            message = f"{self.num_sequences} outputs are being written or waited for, and more than that cannot wait"
            raise ApiError(429, message, "server_busy", retry_after_s=self.retry_after_s())
        held = self._tokens[tenant]
        is_over_share = held > 0 and held * len(self._tokens) >= self._tokens.total()
        if is_over_share and self.num_sequences + num_sequences > self.capacity - self._kept:
            message = f"{held} tokens of yours are in flight, and what is left of the queue is for others"
            raise ApiError(429, message, "over_fair_share", retry_after_s=self.retry_after_s())
        self.num_sequences += num_sequences
        self._tokens[tenant] += num_tokens
        try:
            yield
        finally:
            self.num_sequences -= num_sequences
            self._tokens[tenant] -= num_tokens
            self._tokens += Counter()  # drops those that hold none

    @property
    def is_full(self) -> bool:
        """Whether one more sequence would be too many."""
        return self.num_sequences >= self.capacity

    @property
    def has_queue(self) -> bool:
        """Whether a request waits for a slot: the last one to come in, if so."""
        return self.num_sequences > self.num_slots

    def served(self, seconds: float) -> None:
        """A request was served in so many seconds after its wait."""
        self._service_s += NEW_WEIGHT * (seconds - self._service_s)

    def retry_after_s(self) -> int:
        """When there should be room at the present pace: a sequence ends every service time / slots."""
        waiting = max(self.num_sequences - self.num_slots, 0) + 1
        return min(max(math.ceil(waiting * self._service_s / self.num_slots), 1), LONGEST_RETRY_AFTER_S)
