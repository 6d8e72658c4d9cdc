"""A workload: a list of requests, each with its moment, its prompt as named pieces, and its output length.

A prompt is made of pieces (a system prompt, a document, a question). A piece's tokens follow from its name,
so two prompts that begin with the same pieces begin with the same tokens, and the engine's prefix cache
finds them by itself: sharing is never asserted, it happens.

The later turns of a conversation have no arrival time of their own: each is sent when its reader has read the
answer before it, and its prompt is the former prompt, the former answer, and something new.
"""

import dataclasses
import functools
import hashlib
import random
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from course.simulator.errors import WorkloadError
from course.simulator.workload.arrivals import Arrivals, find_arrivals, take
from course.simulator.workload.streams import Streams
from minillm.core.brief import brief

VOCABULARY = 32000
"""Token ids of simulated prompts are below this."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A run of tokens. Wherever its name appears, the tokens are the same; a shorter one is a prefix.

    A piece without a name is tokens whose ids do not matter.
    """

    name: str
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Turn:
    """One request of a conversation, before it is known when it will be sent. A lone request is one turn."""

    pieces: tuple[Piece, ...]
    """What is new in this turn."""
    output_tokens: int
    think_s: float = 0.0
    """Seconds between the last byte of the former answer and this turn; 0 for the first."""
    tenant: str = ""

    __repr__ = brief


class Traffic(Protocol):
    """A kind of traffic: what an arrival is going to ask. See kinds.py."""

    def conversation(self, name: str, streams: Streams) -> Sequence[Turn]:
        """The turns of one arrival, at least one.

        Args:
            name: of the conversation; begins the name of every piece that no other conversation shares.
            streams: where to draw from, one stream a purpose.
        """
        ...


@dataclass(frozen=True, slots=True)
class WorkloadRequest:
    """One request as its client plans it."""

    index: int
    """Its place in the workload, which names it."""
    pieces: tuple[Piece, ...]
    """Its prompt; for a later turn, what the prompt adds to the conversation so far."""
    output_tokens: int
    arrival: float | None = None
    """Seconds after the start; None for a later turn."""
    after: int | None = None
    """For a later turn: the index of the turn before it."""
    think_s: float = 0.0
    """For a later turn: seconds from the former answer's last byte to this request."""
    context_tokens: int = 0
    """For a later turn: tokens of the former prompt and answer, with which this prompt begins."""
    session: str = ""
    tenant: str = ""
    """Whose it is, with scheduling_order="fair"."""
    priority: int = 0
    """Lower is served earlier, with scheduling_order="priority"."""

    __repr__ = brief

    @property
    def num_prompt_tokens(self) -> int:
        return self.context_tokens + sum(piece.num_tokens for piece in self.pieces)


@dataclass(frozen=True, repr=False)
class Workload:
    """Requests in order of arrival of their conversations; the turns of one conversation stand together."""

    name: str
    requests: tuple[WorkloadRequest, ...]

    def __repr__(self) -> str:
        tokens = f"{self.num_prompt_tokens} prompt and {self.num_output_tokens} output tokens"
        return f"Workload({self.name!r}, {len(self)} requests, {tokens})"

    def __len__(self) -> int:
        return len(self.requests)

    def __iter__(self) -> Iterator[WorkloadRequest]:
        return iter(self.requests)

    @property
    def last_arrival(self) -> float:
        """Seconds; 0 when empty."""
        return max((r.arrival for r in self.requests if r.arrival is not None), default=0.0)

    @property
    def num_prompt_tokens(self) -> int:
        return sum(request.num_prompt_tokens for request in self.requests)

    @property
    def num_output_tokens(self) -> int:
        return sum(request.output_tokens for request in self.requests)

    @property
    def shares_nothing(self) -> bool:
        """Whether all prompts are made of pieces of their own: sent once each, no prefix cache can find anything."""
        pieces = [piece.name for request in self.requests for piece in request.pieces]
        return len(set(pieces)) == len(pieces) and all(request.after is None for request in self.requests)

    def anonymous(self) -> "Workload":
        """The same lengths at the same moments, with tokens whose ids do not matter: they need not be made up."""
        return self._with_each(lambda r: {"pieces": tuple(Piece("", piece.num_tokens) for piece in r.pieces)})

    def prompt(self, request: WorkloadRequest) -> tuple[Piece, ...]:
        """All pieces of a request's prompt, former answers included; `answer_piece` names those."""
        pieces = request.pieces
        while request.after is not None:
            request = self.requests[request.after]
            pieces = (*request.pieces, answer_piece(request), *pieces)
        return pieces

    def faster(self, factor: float) -> "Workload":
        """The same requests, arriving `factor` times as fast. Think times stay."""
        if not factor > 0:
            raise WorkloadError(f"the factor must be above 0, not {factor}")
        return self._with_each(lambda r: {"arrival": None if r.arrival is None else round(r.arrival / factor, 9)})

    def with_priority(self, priority: int) -> "Workload":
        return self._with_each(lambda r: {"priority": priority})

    def with_tenant(self, tenant: str) -> "Workload":
        return self._with_each(lambda r: {"tenant": tenant})

    def _with_each(self, changes: Callable[[WorkloadRequest], dict[str, Any]]) -> "Workload":
        return Workload(self.name, tuple(dataclasses.replace(r, **changes(r)) for r in self.requests))


def make_workload(
    traffic: Traffic,
    arrivals: Arrivals,
    *,
    num_requests: int | None = None,
    duration_s: float | None = None,
    seed: int = 0,
    name: str = "requests",
) -> Workload:
    """Draw a workload. The same arguments give the same workload, on any machine.

    Args:
        traffic: what each arrival asks.
        arrivals: when; each arrival begins one conversation, which may have several requests.
        num_requests: how many conversations arrive (for most traffic each is one request).
        duration_s: arrivals before this moment, seconds. Give this or num_requests, or both.
        name: begins the names of its pieces. Workloads of different names share no tokens and no luck.
    Raises:
        WorkloadError: neither num_requests nor duration_s, or a negative one.
    """
    streams = Streams(seed, name)
    requests: list[WorkloadRequest] = []
    for number, arrival in enumerate(take(arrivals, streams["arrivals"], num_requests, duration_s)):
        session = f"{name}-{number}"
        after, context = None, 0
        for turn in traffic.conversation(session, streams):
            request = WorkloadRequest(
                index=len(requests),
                pieces=turn.pieces,
                output_tokens=turn.output_tokens,
                arrival=arrival if after is None else None,
                after=after,
                think_s=turn.think_s,
                context_tokens=context,
                session=session,
                tenant=turn.tenant,
            )
            requests.append(request)
            after, context = request.index, request.num_prompt_tokens + request.output_tokens
    return Workload(name, tuple(requests))


def mean_turns(traffic: Traffic, seed: int = 0) -> float:
    """How many requests an arrival brings on average: 1, but for conversations and agents."""
    streams = Streams(seed, "mean turns")
    num = 1000
    return sum(len(traffic.conversation(f"mean-{i}", streams)) for i in range(num)) / num


def merge(name: str, *workloads: Workload) -> Workload:
    """Several workloads as one, say chat with a document launch on top. Their requests keep their moments.

    Raises:
        WorkloadError: two have the same name, so their prompts would share tokens by accident.
    """
    names = [workload.name for workload in workloads]
    if len(set(names)) < len(names):
        raise WorkloadError(f"workloads to merge need different names, not {names}: pass name= to make_workload")
    tagged = [(number, r) for number, workload in enumerate(workloads) for r in workload.requests]
    starts: dict[tuple[int, int], float] = {}
    for number, r in tagged:  # a later turn stands where its conversation began
        starts[number, r.index] = (r.arrival or 0.0) if r.after is None else starts[number, r.after]
    tagged.sort(key=lambda pair: starts[pair[0], pair[1].index])  # stable: turns stay together
    new_index = {(number, r.index): index for index, (number, r) in enumerate(tagged)}
    return Workload(
        name,
        tuple(
            dataclasses.replace(
                r,
                index=new_index[number, r.index],
                after=None if r.after is None else new_index[number, r.after],
                tenant=r.tenant or workloads[number].name,
            )
            for number, r in tagged
        ),
    )


def answer_piece(request: WorkloadRequest) -> Piece:
    """The name under which the answer to a request appears in the turns after it."""
    return Piece(f"{request.session}/answer-{request.index}", request.output_tokens)


def token_ids(piece: Piece, vocabulary: int = VOCABULARY) -> list[int]:
    """The tokens of a piece, from its name: the first few spell a hash of it, so that no other piece begins with them.
    The others are a stretch of the shuffled vocabulary, copied: with hundreds of tokens a prompt, making each one up
    would take most of a simulation's time and memory."""
    if not piece.name:
        return [0] * piece.num_tokens
    ring = shuffled(vocabulary)
    key = begin = int.from_bytes(hashlib.blake2b(piece.name.encode(), digest_size=8).digest(), "big")
    tokens = []
    while key:
        key, digit = divmod(key, vocabulary)
        tokens.append(ring[digit])
    begin %= vocabulary
    while len(tokens) < piece.num_tokens:
        tokens += ring[begin : begin + piece.num_tokens - len(tokens)]
        begin = 0
    return tokens[: piece.num_tokens]


@functools.lru_cache(maxsize=4)
def shuffled(vocabulary: int) -> list[int]:
    """All token ids in a random order, always the same one."""
    ids = list(range(vocabulary))
    random.Random("vocabulary").shuffle(ids)
    return array("q", ids).tolist()  # made anew in this order, neighbours are neighbours in memory


def prompt_token_ids(pieces: Sequence[Piece], answers: Mapping[str, list[int]]) -> list[int]:
    """The tokens of a prompt, one after the other.

    Args:
        pieces: from `Workload.prompt`.
        answers: by piece name, what a model really answered; these are not made up.
    """
    prompt: list[int] = []
    for piece in pieces:
        prompt += answers.get(piece.name) or token_ids(piece)
    return prompt


def made_up_workload(
    traffic: Traffic, qps: float, arrival: str, cv: float | None, num_requests: int, seed: int
) -> Workload:
    """About `num_requests` requests, at `qps` of them per second; whole conversations, where it has any."""
    turns = mean_turns(traffic, seed)
    arrivals = find_arrivals(arrival, qps / turns, cv)
    return make_workload(traffic, arrivals, num_requests=max(round(num_requests / turns), 1), seed=seed)
