"""A reader who leaves in the middle of an answer: when the server notices, and what that saves."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from course.lab.display import Html, as_table
from course.lab.http_client import Heard, ask, together
from course.lab.lab import Lab
from course.lab.pictures.chart import Axis, Curve, Mark, Panel, draw_panels
from course.lab.predict import Outcome
from course.lab.server import LabServer
from course.lab.style import seconds
from course.lab.svg import Picture
from course.lab.texts import CHAT_QUESTIONS
from course.lessons.lesson_10 import traffic
from course.lessons.lesson_10.relay import Way, relay
from minillm.core.brief import brief
from minillm.core.timeline import StepRecord

STRAIGHT, GATEWAY = "straight to the server", "through a gateway that reads on"
SAVES = {
    (True, True): "direct: nearly all of it; gateway: nearly all of it",
    (True, False): "direct: nearly all of it; gateway: none of it",
    (False, False): "direct: none of it; gateway: none of it",
}
"""By whether most of the rest was saved, on either way."""
MOST = 0.5


@dataclass(frozen=True)
class Left:
    """One answer whose reader hung up. Clock seconds."""

    heard: Heard
    steps: tuple[StepRecord, ...]
    """From its arrival to its end."""
    written: int
    """Tokens that the engine wrote of it."""
    ended: float
    """When the server had done with it."""
    outcome: str
    """As the server's log says."""

    __repr__ = brief

    @property
    def rest(self) -> int:
        """Tokens that the reader did not wait for."""
        return self.heard.asked - len(self.heard.arrivals)

    @property
    def saved(self) -> float:
        """The share of the rest that wasn't generated."""
        return (self.heard.asked - self.written) / self.rest

    @property
    def kv_back(self) -> float:
        """Seconds from leaving to the end of the last step that held KV blocks for it."""
        left = self.heard.ended
        return max((step.end for step in self.steps if step.kv_blocks_used), default=left) - left


def leave(server: LabServer, share: float = 0.5, reads_on: bool = False, tokens: int | None = None) -> Left:
    """Ask for an answer, alone on the server, and hang up after a share of it."""
    tokens = tokens or traffic.num_tokens(server.lab)
    with relay(server.port, Way(reads_on=reads_on)) as port:
        heard = ask(port, traffic.PROMPT, tokens, leave_after=round(share * tokens))
        call = server.call(heard.call_id)
    steps = tuple(step for step in server.steps() if step.end > heard.sent)
    return Left(heard, steps, _written(steps, heard.call_id), call.finished, call.outcome)


def _written(steps: Sequence[StepRecord], call_id: str) -> int:
    """Tokens that were written: the last step that reads its prompt writes one, and so does each after it."""
    mine = [share for step in steps for share in step.shares if share.request_id.startswith(call_id)]
    return sum(not share.is_prefill for share in mine) + any(share.is_prefill for share in mine)


def both_ways(server: LabServer, share: float = 0.5) -> dict[str, Left]:
    """The same reader, leaving after the same share, straight and through a gateway."""
    return {STRAIGHT: leave(server, share), GATEWAY: leave(server, share, reads_on=True)}


def saving(found: Mapping[str, Left]) -> Outcome | str:
    """How much of the unread rest wasn't generated either; a sentence, if it was all read."""
    straight, gateway = found[STRAIGHT], found[GATEWAY]
    if not straight.rest or not gateway.rest:
        return "the whole answer was there before the client could leave"
    told = "; ".join(
        f"{name}: {len(each.heard.arrivals)} tokens received, {each.written} of {each.heard.asked} generated"
        for name, each in found.items()
    )
    kind = straight.saved > MOST, gateway.saved > MOST
    return Outcome(SAVES.get(kind, f"direct: {straight.saved:.0%} of the rest; gateway: {gateway.saved:.0%}"), told)


def draw_leaving(found: Mapping[str, Left]) -> Picture:
    """KV blocks held, step by step; the line is where the reader left, and what lies behind it is wasted."""
    panels = []
    for name, each in found.items():
        moments = [step.end - each.heard.sent for step in each.steps]
        blocks = [step.kv_blocks_used for step in each.steps]
        held = Curve(name, [*moments, each.ended - each.heard.sent], [*blocks, 0])
        words = f"{name}: the client leaves after {len(each.heard.arrivals)} tokens"
        marks = [Mark(words, x=each.heard.ended - each.heard.sent)]
        panels.append(Panel([held], Axis("KV blocks", low=0, high=1.4 * max(blocks)), marks, height=130))
    told = " ".join(
        f"{name}: {each.written} of {each.heard.asked} tokens generated, blocks back {seconds(max(each.kv_back, 0))} "
        f"after the client left, logged as {each.outcome}."
        for name, each in found.items()
    )
    x = Axis("seconds since the request was sent", low=0)
    return draw_panels("The client leaves. Does the engine stop?", panels, x, description=told)


# ---------------------------------------------------------------- many readers


@dataclass(frozen=True)
class Crowd:
    """Many readers, some of whom leave; and what the engine did."""

    name: str
    asked: int
    """Output tokens, of all together."""
    written: int
    prompt_tokens: int
    steps: int
    """That the engine took for all of them."""

    def tokens_saved(self, other: "Crowd") -> float:
        """Share of the other's tokens, prompts too, that were not computed here."""
        return 1 - (self.written + self.prompt_tokens) / (other.written + other.prompt_tokens)

    def steps_saved(self, other: "Crowd") -> float:
        """The engine's time, counted in steps: seconds of two runs differ by more than that on a busy machine."""
        return 1 - self.steps / other.steps


def crowd(server: LabServer, people: int, leaving: int, share: float, reads_on: bool) -> Crowd:
    """All requests arrive at once; the first `leaving` hang up after a share of their answers."""
    tokens = max(12, traffic.num_tokens(server.lab) // 2)
    begun = max((step.end for step in server.steps()), default=0.0)

    with relay(server.port, Way(reads_on=reads_on)) as port:

        def read(i: int) -> Heard:
            stop = round(share * tokens) if i < leaving else None
            return ask(port, f"{i}. {CHAT_QUESTIONS[i % len(CHAT_QUESTIONS)]}", tokens, leave_after=stop)

        heard = together([partial(read, i) for i in range(people)])
        for each in heard:
            server.call(each.call_id)
    steps = [step for step in server.steps() if step.start > begun]
    return Crowd(
        GATEWAY if reads_on else STRAIGHT,
        asked=people * tokens,
        written=sum(_written(steps, each.call_id) for each in heard),
        prompt_tokens=sum(step.num_prefill_tokens for step in steps),
        steps=len(steps),
    )


SEATED, IN_LINE = "a slot for each", "a queue for two slots"


def crowds(lab: Lab, people: int = 8, share: float = 0.5) -> dict[tuple[str, str], Crowd]:
    """Half of the readers leave halfway: few slots and many, with a server that notices and one that cannot."""
    found = {}
    for room, slots in ((SEATED, people), (IN_LINE, 2)):
        with LabServer(lab, max_num_seqs=slots) as server:
            for reads_on in (True, False):
                each = crowd(server, people, people // 2, share, reads_on)
                found[room, each.name] = each
    return found


def crowds_table(found: Mapping[tuple[str, str], Crowd]) -> Html:
    """What noticing saves, in tokens and in the engine's steps."""
    rows = []
    for (room, name), each in found.items():
        base = found[room, GATEWAY]
        saved = "–", "–"
        if each is not base:
            saved = f"{each.tokens_saved(base):.0%}", f"{each.steps_saved(base):.0%}"
        rows.append((room, name, f"{each.written} of {each.asked}", saved[0], str(each.steps), saved[1]))
    return as_table(("server", "connection", "tokens generated", "saved of all tokens", "steps", "steps saved"), rows)


def saved_share(leaving: float, read: float, prompt_share: float) -> float:
    """Of all compute: the share of readers who leave x what they did not read x what of a request is writing."""
    return leaving * (1 - read) * (1 - prompt_share)
