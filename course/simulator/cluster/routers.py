"""Which replica gets a request. A router sees what a gateway sees: what it sent where, and what came back."""

import itertools
import random
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal, Protocol, TypeVar

from pydantic import Field

from course.simulator.workload.requests import Piece
from course.simulator.workload.streams import WorkloadModel


class Numbered(Protocol):
    """A replica, as far as a router needs to know it."""

    @property
    def number(self) -> int: ...

    @property
    def outstanding(self) -> int:
        """Requests that it has and hasn't answered."""


Server = TypeVar("Server", bound=Numbered)


class RouterConfig(WorkloadModel):
    """How requests are spread over replicas."""

    policy: Literal["round_robin", "random", "least_outstanding", "prefix_aware"] = Field(
        "least_outstanding", description="which replica gets the next request"
    )
    min_match: float = Field(0.3, ge=0, le=1, description="prefix_aware: share of the prompt that must be known there")
    imbalance: int = Field(64, ge=0, description="prefix_aware: prefixes are ignored when queues differ by more, and")
    imbalance_ratio: float = Field(1.5, ge=1, description="the longest is more than so many times the shortest")
    index_tokens: int = Field(1_000_000, ge=1, description="prefix_aware: prompt tokens remembered per replica")
    hot_share: float = Field(0.0, ge=0, le=1, description="a fault: share of requests that all go to one replica")


class Router:
    """Chooses the replica that serves a prompt: the one with the fewest open requests, so that a slow replica, or one
    with long answers, gets fewer."""

    def choose(self, pieces: Sequence[Piece], replicas: Sequence[Server]) -> Server:
        """One of the replicas, of which there is at least one.

        Args:
            pieces: the prompt.
            replicas: those that take requests now, in order of their numbers.
        """
        return min(replicas, key=lambda replica: replica.outstanding)


class RoundRobin(Router):
    """Each replica in turn. Fair in requests, not in work: one replica may get all the long ones."""

    def __init__(self) -> None:
        self._turn = 0

    def choose(self, pieces: Sequence[Piece], replicas: Sequence[Server]) -> Server:
        chosen = replicas[self._turn % len(replicas)]
        self._turn += 1
        return chosen


class RandomChoice(Router):
    """Any replica. By chance some get more than others, and their queues show it."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def choose(self, pieces: Sequence[Piece], replicas: Sequence[Server]) -> Server:
        return self._rng.choice(replicas)


class PrefixAware(Router):
    """Where the prompt's beginning is probably cached, unless that replica is much busier than the others.

    The rule and its defaults are those of SGLang's router (Zheng et al. 2024); llm-d weighs the same two
    concerns as scores. The router asks no replica: it remembers what it sent where, and forgets the oldest, as
    their caches do. It can be wrong, and then the prompt is computed again.
    """

    def __init__(self, config: RouterConfig) -> None:
        self._config = config
        self._seen: dict[int, PrefixMemory] = {}

    def choose(self, pieces: Sequence[Piece], replicas: Sequence[Server]) -> Server:
        config = self._config
        # A piece without a name is never a prefix: see Workload.anonymous.
        prefixes = list(prefixes_of(itertools.takewhile(lambda piece: piece.name, pieces)))
        if not prefixes:
            return super().choose(pieces, replicas)
        fewest = min(replica.outstanding for replica in replicas)
        most = max(replica.outstanding for replica in replicas)
        is_uneven = most - fewest > config.imbalance and most > config.imbalance_ratio * fewest
        matched = {replica.number: self._memory(replica).match(prefixes) for replica in replicas}
        best = max(matched.values())
        if is_uneven or best < config.min_match * prefixes[-1][1]:
            candidates = replicas
        else:
            candidates = [replica for replica in replicas if matched[replica.number] == best]
        chosen = super().choose(pieces, candidates)
        self._memory(chosen).add(prefixes)
        return chosen

    def _memory(self, replica: Numbered) -> "PrefixMemory":
        if replica.number not in self._seen:
            self._seen[replica.number] = PrefixMemory(self._config.index_tokens)
        return self._seen[replica.number]


class PrefixMemory:
    """The prompt prefixes one replica has probably cached, least recently sent first."""

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._sizes: OrderedDict[int, int] = OrderedDict()
        """Prefix -> tokens of its last piece."""
        self._tokens = 0

    def match(self, prefixes: Sequence[tuple[int, int]]) -> int:
        """Tokens of the longest known prefix."""
        known = 0
        for prefix, tokens in prefixes:
            if prefix not in self._sizes:
                break
            known = tokens
        return known

    def add(self, prefixes: Sequence[tuple[int, int]]) -> None:
        before = 0
        for prefix, tokens in prefixes:
            if prefix not in self._sizes:
                self._sizes[prefix] = tokens - before
                self._tokens += tokens - before
            before = tokens
        for prefix, _ in reversed(prefixes):  # a prefix outlives what follows it, as in the block pool
            self._sizes.move_to_end(prefix)
        while self._tokens > self._max_tokens:
            _, size = self._sizes.popitem(last=False)
            self._tokens -= size


class HotReplica(Router):
    """A fault: part of the traffic sticks to the first replica, whatever the policy says.

    A sticky session gone wrong, a stale address list, or one tenant that outgrew the others.
    """

    def __init__(self, inner: Router, share: float, rng: random.Random) -> None:
        self._inner, self._share, self._rng = inner, share, rng

    def choose(self, pieces: Sequence[Piece], replicas: Sequence[Server]) -> Server:
        if self._rng.random() < self._share:
            return replicas[0]
        return self._inner.choose(pieces, replicas)


def prefixes_of(pieces: Iterable[Piece]) -> Iterator[tuple[int, int]]:
    """For each prefix of whole pieces: what names it, and its tokens."""
    name, tokens = 0, 0
    for piece in pieces:
        name, tokens = hash((name, piece.name)), tokens + piece.num_tokens
        yield name, tokens


def make_router(config: RouterConfig, rng: random.Random) -> Router:
    """The router that a configuration asks for."""
    makers: dict[str, Callable[[], Router]] = {
        "round_robin": RoundRobin,
        "random": lambda: RandomChoice(rng),
        "least_outstanding": Router,
        "prefix_aware": lambda: PrefixAware(config),
    }
    router = makers[config.policy]()
    return HotReplica(router, config.hot_share, rng) if config.hot_share else router
