"""Each technique as two pairs of runs: one where it should help, one where it should do nothing or harm.

What a pair expects is only in its words. What is drawn on the map is what came out.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from minillm.simulate.cluster.record import ClientRecord
from minillm.simulate.workload.arrivals import AllAtOnce, Gamma, Poisson
from minillm.simulate.workload.kinds import Independent, SharedPrefix, TrafficModel
from minillm.simulate.workload.lengths import Fixed, LogNormal
from minillm.simulate.workload.requests import Workload, make_workload, merge

CHAT = Independent(
    prompt=LogNormal(median=300, sigma=0.6, high=2000), output=LogNormal(median=100, sigma=0.7, high=800)
)
EQUAL = Independent(prompt=Fixed(tokens=300), output=Fixed(tokens=100))
LONG_PROMPTS = Independent(prompt=Fixed(tokens=6000), output=Fixed(tokens=60))
HALF_PROMPTS = Independent(prompt=Fixed(tokens=3000), output=Fixed(tokens=60))
LONG_ANSWERS = Independent(prompt=Fixed(tokens=300), output=Fixed(tokens=900))
LONG_CHATS = Independent(prompt=Fixed(tokens=4000), output=Fixed(tokens=200))
HANDBOOK = SharedPrefix(
    prefix=Fixed(tokens=4000), question=Fixed(tokens=60), output=LogNormal(median=100, sigma=0.7, high=800)
)
CUT_BY_QUESTION = Independent(prompt=Fixed(tokens=2060), output=HANDBOOK.output)
"""Half of that handbook, another half for each question: no two prompts begin alike."""
ONE_TOKEN = Independent(prompt=Fixed(tokens=300), output=Fixed(tokens=1))
ALONE_PER_S = 0.05
"""Requests a second at which two hardly ever meet."""


def many(traffic: TrafficModel, per_s: float, count: int = 160) -> Workload:
    """At random moments."""
    return make_workload(traffic, Poisson(rate=per_s), num_requests=count)


def one_by_one(traffic: TrafficModel, count: int = 12) -> Workload:
    """So far apart that each has the machine to itself."""
    return make_workload(traffic, Gamma(rate=ALONE_PER_S, cv=0.1), num_requests=count)


def together(traffic: TrafficModel, count: int = 96) -> Workload:
    """All in the same instant."""
    return make_workload(traffic, AllAtOnce(), num_requests=count)


def short_and_long(per_s: float, count: int = 160) -> Workload:
    """Chats, and among ten of them one prompt of 6000 tokens."""
    chats = make_workload(CHAT, Poisson(rate=0.9 * per_s), num_requests=round(0.9 * count), name="chat")
    long = make_workload(LONG_PROMPTS, Poisson(rate=0.1 * per_s), num_requests=count - round(0.9 * count), name="long")
    return merge("short and long", chats, long)


def is_chat(record: ClientRecord) -> bool:
    return record.request.num_prompt_tokens < LONG_PROMPTS.prompt.tokens


def is_long(record: ClientRecord) -> bool:
    return not is_chat(record)


@dataclass(frozen=True)
class Setting:
    """One side of a pair: what is served how. The traffic may differ where the technique changes the prompt itself."""

    fields: Mapping[str, Any] = field(default_factory=dict)
    """As of `simulated_70b.deployment`: fields of EngineConfig, and `profile`, `tp`, `kv_heads`."""
    fleet: Mapping[str, Any] = field(default_factory=dict)
    """Fields of ClusterConfig."""
    traffic: Callable[[], Workload] | None = None
    """Instead of the pair's."""


@dataclass(frozen=True)
class Pair:
    """The same traffic without and with a technique, simulated."""

    words: str
    traffic: Callable[[], Workload]
    without: Setting
    with_it: Setting
    judged: Callable[[ClientRecord], bool] = lambda _: True
    """Whose phases count."""


@dataclass(frozen=True)
class EnginePair:
    """The same prompt without and with a technique, on the real engine of this machine, one at a time."""

    words: str
    prompt_tokens: int
    without: Mapping[str, Any]
    with_it: Mapping[str, Any]


@dataclass(frozen=True)
class Technique:
    """One row of the map."""

    name: str
    knob: str
    """The field that switches it, as one would write it."""
    lesson: str
    """The lesson that shows it, as the beginning of its file's name."""
    heading: str
    """Where in it."""
    helps: Pair | EnginePair
    hurts: Pair | EnginePair
    """Or does nothing."""


def speculation(acceptance: float, **fields: Any) -> dict[str, Any]:
    """A small draft model. Its gates are open, so that the map shows what they are there for."""
    gates = {"max_batch": 256, "min_output_tokens": 1, "acceptance_floor": 0.0, "adaptive_k": False}
    drafts = {"method": "draft_model", "model": "llama-3.2-1b", "k": 4, "acceptance_rate": acceptance}
    return {"speculative": {**drafts, **gates}, **fields}


def at(**fields: Any) -> Setting:
    return Setting(fields)
