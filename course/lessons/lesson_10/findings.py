"""What the runs of lessons 10, 10b and 10c showed, in words. Their texts are those of lesson 10."""

from collections.abc import Mapping, Sequence

from course.lab.finding import Finding, tell
from course.lab.predict import Outcome
from course.lab.run import percentile
from course.lab.style import seconds
from course.lessons.lesson_10 import front, leaving
from course.lessons.lesson_10.front import Fed
from course.lessons.lesson_10.leaving import GATEWAY, STRAIGHT, Crowd, Left
from course.lessons.lesson_10.readers import Answer
from course.lessons.lesson_10.traffic import Passed, Trip


def held(found: Passed) -> Finding:
    """What a buffering proxy did to the client's ITL, and what the server saw of it."""
    gaps = {
        f"{end}{q}": percentile(itl, q)
        for end, itl in (("s", found.server_itl), ("c", found.heard.itl))
        for q in (50, 99)
    }
    lump = max(read.tokens for read in found.heard.reads)
    outcome = "better" if gaps["c50"] < gaps["s50"] / 2 else "other"
    return tell("10", "held", outcome, lump=lump, server=found.server_ttft, client=found.heard.ttft, **gaps)


def busy(found: Sequence[Fed]) -> Finding:
    """Whether streaming itself was too much for one core."""
    small, large = found[0], found[-1]
    late = {"late": percentile(small.lateness, 50), "late_large": percentile(large.lateness, 50)}
    outcome = "overload" if front.shows_overload(found) else "unclear"
    return tell("10", "busy", outcome, core=small.busy, core_large=large.busy, every=large.every, **late)


def forms(found: Mapping[str, Answer]) -> Finding:
    """Streamed against whole: when the first and the last text was there."""
    streamed, whole = found["streamed"].arrivals, found["whole"].arrivals
    ends = {"first": streamed[0], "last": streamed[-1], "whole": whole[-1]}
    return tell("10", "forms", "alike" if abs(ends["last"] / ends["whole"] - 1) < 0.15 else "apart", **ends)


def far(found: Sequence[Trip]) -> Outcome:
    """Round trips that TTFT grew by, from nearby on an open connection to far away on a new one."""
    near, last = found[0], found[-1]
    told = f"TTFT {seconds(near.ttft)} to {seconds(last.ttft)}, ITL {seconds(near.itl)} to {seconds(last.itl)}"
    return Outcome((last.ttft - near.ttft) / last.rtt_s, f"{told}; a round trip is {seconds(last.rtt_s)}")


def trips(found: Sequence[Trip]) -> Finding:
    """What distance and handshakes did to TTFT and to ITL."""
    near, last = found[0], found[-1]
    grown = (last.ttft - near.ttft) / last.rtt_s
    gaps = {"itl": near.itl, "far_itl": last.itl}
    return tell("10", "trips", "here", grown=grown, rtt=last.rtt_s, ttft=near.ttft, far_ttft=last.ttft, **gaps)


def left(found: Mapping[str, Left]) -> Finding:
    """What became of an answer whose reader had left."""
    straight, gateway = found[STRAIGHT], found[GATEWAY]
    told = {"saved": straight.saved, "gateway": gateway.saved}
    back = {"back": straight.kv_back, "gateway_back": gateway.kv_back}
    outcome = "noticed" if straight.saved > leaving.MOST > gateway.saved else "other"
    return tell("10", "left", outcome, **told, **back)


def crowds(found: Mapping[tuple[str, str], Crowd]) -> Finding:
    """Tokens and steps saved, with a slot for each reader and with a queue."""
    told = {}
    for key, room in (("slots", leaving.SEATED), ("queue", leaving.IN_LINE)):
        straight, gateway = found[room, STRAIGHT], found[room, GATEWAY]
        told[f"{key}_tokens"], told[f"{key}_steps"] = straight.tokens_saved(gateway), straight.steps_saved(gateway)
    return tell("10", "crowds", "here", **told)


def added(found: Passed) -> Outcome:
    """What the proxy added to TTFT, as the client measures it: the answer to a prediction."""
    told = f"TTFT {seconds(found.server_ttft)} at the server, {seconds(found.heard.ttft)} at the client"
    return Outcome(found.heard.ttft / found.server_ttft, told)
