"""A server that goes on as long as it is watched: requests arrive at random, and its settings can be changed.

A change is rolled out as in production: requests that have arrived stay with the server that has them, and those that
come after it go to a new one. Time is simulated; the page asks for the next fraction of a second.
"""

import itertools
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from course.lab.texts import CHAT_QUESTIONS, MANUAL_QUESTIONS
from course.lab.view.trace import DIGITS, Told
from course.lab.workloads import document
from course.tab.dashboard import TabBench
from course.tab.watched import Watched
from minillm.core.errors import ConfigError
from minillm.core.params import SamplingParams
from minillm.core.timeline import VirtualClock

ROOM = {"num_kv_blocks": 1024}
"""KV blocks for twelve slots of such prompts: memory isn't the limit here."""
SWITCHES = ("max_num_seqs", "enable_chunked_prefill", "enable_prefix_caching", "batching")
"""Fields that can be changed while it runs."""
RATE = 1.6
"""Requests per second: with four slots nearly what an L4 serves of this traffic."""
KINDS = {"chat": 0.5, "handbook": 0.4, "document": 0.1}
"""Shares of the traffic: short questions, questions on one handbook, a document for each."""
HANDBOOK, DOCUMENT = document(random.Random("handbook"), 18), 22
"""What all questions on the handbook begin with; and how many paragraphs a document has."""


@dataclass(frozen=True)
class LiveArrival:
    """One request of the endless traffic."""

    number: int
    moment: float
    kind: str
    prompt: str
    max_tokens: int


def endless(seed: int) -> Iterator[LiveArrival]:
    """Requests at random moments: the same for the same seed."""
    rng, moment = random.Random(f"live/{seed}"), 0.0
    for number in itertools.count():
        moment += rng.expovariate(RATE)
        kind = rng.choices(list(KINDS), list(KINDS.values()))[0]
        if kind == "chat":
            prompt = rng.choice(CHAT_QUESTIONS)
        elif kind == "handbook":
            prompt = f"{HANDBOOK}\n\nQuestion: {rng.choice(MANUAL_QUESTIONS)}"
        else:
            prompt = document(rng, DOCUMENT)
        yield LiveArrival(number, moment, kind, prompt, rng.randint(16, 48))


class Deployed(Watched):
    """An engine from the moment on at which it was rolled out."""

    def __init__(self, bench: TabBench, fields: Mapping[str, Any], since: float) -> None:
        self.config = bench.start.replace(**fields)
        self._clock = VirtualClock()
        super().__init__(bench.device.engine(self.config, clock=self._clock), since)
        self.all_ended: list[Told] = []
        """Requests that have come to their end since they were asked for."""

    @property
    def is_idle(self) -> bool:
        return not self.engine.has_unfinished

    def take(self, arrival: LiveArrival) -> None:
        """A request reaches it, now or a step ago."""
        params = SamplingParams(temperature=0.0, max_tokens=arrival.max_tokens, ignore_eos=True)
        moment = arrival.moment - self.since
        self.engine.add_request(arrival.prompt, params, request_id=str(arrival.number), arrival=moment)

    def advance(self, until: float) -> None:
        """A step; or, with nothing to do, time until then."""
        if not self.engine.has_unfinished:
            self._clock.advance_to(until - self.since)
            return
        for output in self.engine.step():
            if output.finished:
                output.timeline.accept(self._clock.now())
                self.all_ended.append(self.ended(output))


class LiveServer:
    """The traffic of one seed, and the engines that serve it.

    Args:
        fields: of SWITCHES, those that differ from the lab's usual ones.
    Raises:
        ConfigError: a field is none of them, or its value is refused.
    """

    def __init__(self, seed: int, fields: Mapping[str, Any]) -> None:
        self._arrivals = endless(seed)
        self._next = next(self._arrivals)
        self._bench = TabBench.usual()
        self._fields: dict[str, Any] = dict(ROOM)
        self._old: list[Deployed] = []
        self._serving = self._deployed(fields, 0.0)

    def _deployed(self, fields: Mapping[str, Any], since: float) -> Deployed:
        if unknown := set(fields) - set(SWITCHES):
            raise ConfigError(f"not to be changed while it runs: {', '.join(sorted(unknown))}")
        wanted = {**self._fields, **fields}
        deployed = Deployed(self._bench, wanted, since)  # or it's refused, and nothing has changed
        self._fields = wanted
        return deployed

    def change(self, fields: Mapping[str, Any]) -> Told:
        """Roll out other settings for the requests to come. Returns what is served with from now on."""
        serving = self._deployed(fields, self._serving.now)
        self._old.append(self._serving)
        self._serving = serving
        return self.settings()

    def settings(self) -> Told:
        """The switches, the slots, and the token budget of a step."""
        config = self._serving.config
        switches = {name: getattr(config, name) for name in SWITCHES}
        return {"fields": switches, "slots": config.max_num_seqs, "budget": config.max_num_batched_tokens}

    def go_on(self, until: float) -> Told:
        """Serve until then, and tell what happened since the last call.

        Args:
            until: seconds after the beginning.
        Returns:
            `arrived`: requests with their moment, kind and most tokens. `ended` and `in_flight`: requests with the
            borders of their phases that are known, and their tokens. `steps`: of all who serve.
        """
        arrived = []
        while self._next.moment <= until:
            self._serve_until(self._next.moment)
            self._serving.take(self._next)
            arrived.append(
                {"i": self._next.number, "at": round(self._next.moment, DIGITS), "kind": self._next.kind}
                | {"most": self._next.max_tokens}
            )
            self._next = next(self._arrivals)
        self._serve_until(until)
        everyone = [*self._old, self._serving]
        told = {
            "now": round(until, DIGITS),
            "arrived": arrived,
            "ended": [request for each in everyone for request in each.all_ended],
            "in_flight": [request for each in everyone for request in each.in_flight()],
            "steps": [step for each in everyone for step in each.new_steps()],
        }
        for each in everyone:
            each.all_ended.clear()
        self._old = [each for each in self._old if not each.is_idle]
        return told

    def _serve_until(self, moment: float) -> None:
        for each in (*self._old, self._serving):
            while each.now < moment and not (each.is_idle and each is not self._serving):
                each.advance(moment)
