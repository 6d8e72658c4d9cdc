"""Kinds of traffic: what an arrival is going to ask.

`Independent` requests share nothing. In all the others prompts overlap, as they do in real products, and it
depends on the order of the pieces whether a prefix cache can use it: what is shared must stand first.
"""

import bisect
import functools
import itertools

from pydantic import Field, model_validator

from course.simulator.errors import WorkloadError
from course.simulator.workload.lengths import AZURE, Fixed, Lengths, LogNormal, Uniform
from course.simulator.workload.requests import Piece, Traffic, Turn
from course.simulator.workload.streams import Streams, WorkloadModel


class TrafficModel(WorkloadModel):
    """Base of the kinds of traffic, which are pydantic models."""


class Independent(TrafficModel):
    """Requests that have nothing in common: no prefix cache can help."""

    prompt: Lengths = Field(description="prompt, tokens")
    output: Lengths = Field(description="answer, tokens")

    def conversation(self, name: str, streams: Streams) -> list[Turn]:
        prompt = Piece(f"{name}/prompt", self.prompt.at(streams.uniform("prompt")))
        return [Turn((prompt,), self.output.at(streams.uniform("output")))]


AZURE_CHAT = Independent(prompt=AZURE["chat_prompt"], output=AZURE["chat_output"])
"""Lengths shaped like Azure's chat trace: prompt p50 1020, output p50 129."""
AZURE_CODE = Independent(prompt=AZURE["code_prompt"], output=AZURE["code_output"])
"""Lengths shaped like Azure's code completion trace: prompt p50 1469, output p50 13."""


class SharedPrefix(TrafficModel):
    """Tenants, each with its own long system prompt, and short questions behind it."""

    tenants: int = Field(1, ge=1, description="how many different system prompts")
    prefix: Lengths = Field(Fixed(tokens=2000), description="system prompt, tokens")
    question: Lengths = Field(LogNormal(median=60, sigma=0.8), description="what differs, tokens")
    output: Lengths = Field(AZURE["chat_output"], description="answer, tokens")
    skew: float = Field(0.0, ge=0, description="Zipf exponent of tenants' popularity; 0 = all the same")
    stamp_tokens: int = Field(0, ge=0, description="tokens unique to each request (a time, a session id)")
    stamp_first: bool = Field(True, description="the stamp stands before the system prompt, and so breaks it")

    def conversation(self, name: str, streams: Streams) -> list[Turn]:
        tenant = f"{owner(name)}/tenant-{pick(self.tenants, self.skew, streams.uniform('tenant'))}"
        prefix = Piece(f"{tenant}/system", shared_length(self.prefix, f"{tenant}/system", streams))
        stamp = (Piece(f"{name}/stamp", self.stamp_tokens),) if self.stamp_tokens else ()
        question = Piece(f"{name}/question", self.question.at(streams.uniform("prompt")))
        pieces = (*stamp, prefix, question) if self.stamp_first else (prefix, *stamp, question)
        return [Turn(pieces, self.output.at(streams.uniform("output")), tenant=tenant)]


class Rag(TrafficModel):
    """Questions over retrieved documents: instructions, some documents, then the question."""

    system: Lengths = Field(Fixed(tokens=300), description="instructions shared by all, tokens")
    documents: int = Field(1000, ge=1, description="how many there are to retrieve")
    document: Lengths = Field(LogNormal(median=700, sigma=0.4, high=4000), description="one document, tokens")
    retrieved: int = Field(5, ge=1, description="documents in a prompt")
    skew: float = Field(0.8, ge=0, description="Zipf exponent of the documents' popularity")
    question: Lengths = Field(LogNormal(median=40, sigma=0.6), description="tokens")
    output: Lengths = Field(LogNormal(median=200, sigma=0.5, high=2000), description="answer, tokens")

    @model_validator(mode="after")
    def _enough(self) -> "Rag":
        if self.retrieved > self.documents:
            raise ValueError(f"cannot retrieve {self.retrieved} of {self.documents} documents")
        return self

    def conversation(self, name: str, streams: Streams) -> list[Turn]:
        library = owner(name)
        pieces = [Piece(f"{library}/system", shared_length(self.system, f"{library}/system", streams))]
        for number in self._retrieve(streams):
            document = f"{library}/document-{number}"
            pieces.append(Piece(document, shared_length(self.document, document, streams)))
        pieces.append(Piece(f"{name}/question", self.question.at(streams.uniform("prompt"))))
        return [Turn(tuple(pieces), self.output.at(streams.uniform("output")))]

    def _retrieve(self, streams: Streams) -> list[int]:
        found: dict[int, None] = {}
        while len(found) < self.retrieved:
            found[pick(self.documents, self.skew, streams.uniform("documents"))] = None
        return list(found)


class Sessions(TrafficModel):
    """Conversations: each turn repeats everything before it, answers included, and adds a message."""

    system: Lengths = Field(Fixed(tokens=200), description="system prompt shared by all, tokens")
    turns: Lengths = Field(Uniform(low=1, high=8), description="requests in a conversation")
    first: Lengths = Field(LogNormal(median=120, sigma=0.9, high=8000), description="first message, tokens")
    message: Lengths = Field(LogNormal(median=50, sigma=0.8, high=4000), description="each later message, tokens")
    output: Lengths = Field(AZURE["chat_output"], description="each answer, tokens")
    think_s: float = Field(20.0, ge=0, description="mean time to read and type (exponential), seconds")

    def conversation(self, name: str, streams: Streams) -> list[Turn]:
        shared = f"{owner(name)}/system"
        pieces: tuple[Piece, ...] = (Piece(shared, shared_length(self.system, shared, streams)),)
        turns = []
        for number in range(self.turns.at(streams.uniform("turns"))):
            message = self.message if number else self.first
            pieces += (Piece(f"{name}/message-{number}", message.at(streams.uniform("prompt"))),)
            think_s = round(self.think_s * streams["think"].expovariate(1.0), 9) if number else 0.0
            turns.append(Turn(pieces, self.output.at(streams.uniform("output")), think_s))
            pieces = ()
        return turns


class AgentLoop(Sessions):
    """An agent at work: short tool calls out, long tool results in, again and again, on a growing context."""

    system: Lengths = Field(Fixed(tokens=4000), description="instructions and tool definitions, tokens")
    turns: Lengths = Field(Uniform(low=4, high=20), description="steps until the task is done")
    first: Lengths = Field(LogNormal(median=400, sigma=0.8, high=8000), description="the task, tokens")
    message: Lengths = Field(LogNormal(median=600, sigma=1.0, high=8000), description="a tool's result, tokens")
    output: Lengths = Field(LogNormal(median=80, sigma=0.7, high=2000), description="a tool call, tokens")
    think_s: float = Field(1.5, ge=0, description="mean time a tool takes (exponential), seconds")


def owner(name: str) -> str:
    """Conversation "chat-17" belongs to workload "chat", whose conversations share pieces."""
    return name.rpartition("-")[0]


def shared_length(lengths: Lengths, name: str, streams: Streams) -> int:
    """The length of a shared piece: drawn from its own stream, so it is the same in every prompt."""
    return lengths.at(streams.first_uniform(name))


def pick(count: int, skew: float, u: float) -> int:
    """One of `count` things, the i-th with probability proportional to (i + 1) ** -skew (Zipf's law)."""
    return min(bisect.bisect_right(cumulative_weights(count, skew), u), count - 1)


@functools.lru_cache(maxsize=64)
def cumulative_weights(count: int, skew: float) -> list[float]:
    """Running shares of a Zipf distribution: the k-th of `count` weighs k ** -skew."""
    weights = [(rank + 1) ** -skew for rank in range(count)]
    total = sum(weights)
    return [weight / total for weight in itertools.accumulate(weights)]


KINDS: dict[str, Traffic] = {
    "chat": AZURE_CHAT,
    "code": AZURE_CODE,
    "rag": Rag(),
    "agents": AgentLoop(),
    "tenants": SharedPrefix(tenants=8, skew=1.0),
    "sessions": Sessions(),
}
"""Besides "fixed"."""
DEFAULT_PROMPT, DEFAULT_OUTPUT = 1000, 200
"""Tokens, of "fixed" traffic."""


def find_traffic(name: str, prompt_tokens: int | None = None, output_tokens: int | None = None) -> Traffic:
    """A kind of traffic.

    Args:
        prompt_tokens, output_tokens: of every request of "fixed"; None = DEFAULT_PROMPT, DEFAULT_OUTPUT.
    Raises:
        WorkloadError: no such kind, or one that has lengths of its own.
    """
    if name == "fixed":
        prompt, output = prompt_tokens or DEFAULT_PROMPT, output_tokens or DEFAULT_OUTPUT
        return Independent(prompt=Fixed(tokens=prompt), output=Fixed(tokens=output))
    if name not in KINDS:
        raise WorkloadError(f"no traffic {name!r}: choose from fixed, {', '.join(KINDS)}")
    if prompt_tokens is not None or output_tokens is not None:
        raise WorkloadError(f"{name} has lengths of its own: --prompt-tokens and --output-tokens go with fixed traffic")
    return KINDS[name]
