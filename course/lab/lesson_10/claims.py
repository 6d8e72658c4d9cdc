"""The claims of lesson 10."""

from collections.abc import Callable, Mapping, Sequence

from course.lab.claims import Claim, say
from course.lab.lab import Lab
from course.lab.lesson_10 import batching, front, leaving, readers, traffic, trouble
from course.lab.lesson_10.batching import Served
from course.lab.lesson_10.distance import network_share
from course.lab.lesson_10.front import Fed
from course.lab.lesson_10.leaving import GATEWAY, STRAIGHT, Crowd
from course.lab.lesson_10.readers import Answer
from course.lab.lesson_10.traffic import Passed, Trip
from course.lab.lesson_10.trouble import Trouble
from course.lab.run import percentile
from course.lab.server import LabServer
from course.lab.style import seconds

EXPERIMENT = ("server.py", "http_client.py")

CLAIMED_S = (0.02, 0.1)
SHIFT = 0.25
"""Of the client's added delay: a server's own figures that move by less have not shown it."""
HALVED, ALIKE = 0.6, 0.2
"""At most that share of the p99 counts as halved; so much more or less is noise."""
DOMINATES = 0.5


def a5(straight: Passed, held: Sequence[Passed], busy: Sequence[Fed]) -> Claim:
    """What a buffering proxy and a busy front add, and who sees it.

    Args:
        held: the same request through proxies that hold bytes.
        busy: a front with more chunks than it can send; then with larger chunks. Where it was not that, it is left out.
    """
    added = [each.heard.ttft - each.server_ttft for each in held]
    moved_by = [abs(each.told["ttft"] - straight.told["ttft"]) for each in held]
    unseen = all(moved < SHIFT * extra for moved, extra in zip(moved_by, added))
    is_judged, late = front.shows_overload(busy), percentile(busy[0].lateness, 50)
    sizes = [*added, late] if is_judged else added
    told = "; ".join(f"{each.name}: {seconds(extra)}" for each, extra in zip(held, added))
    moved = "did not show it" if unseen else "moved, too"
    if not unseen:
        verdict = say("A5.not_shown")
    elif all(CLAIMED_S[0] <= size <= CLAIMED_S[1] for size in sizes):
        verdict = say("A5.holds")
    else:
        verdict = say("A5.only_when")
        if is_judged:
            verdict += say("A5.more")
    overload = (
        f"A front with more chunks than it can send: half of them late by more than {seconds(late)}."
        if is_judged
        else front.NO_CORE
    )
    return Claim("A5", say("A5.measured", told=told, straight=straight, moved=moved, overload=overload), verdict)


def d15(crowds: Mapping[tuple[str, str], Crowd]) -> Claim:
    """What noticing that readers have left saves, in tokens and in the engine's steps."""
    rooms = list(dict.fromkeys(room for room, _ in crowds))
    pairs = {room: (crowds[room, STRAIGHT], crowds[room, GATEWAY]) for room in rooms}
    told = "; ".join(
        f"{room}: tokens saved {a.tokens_saved(b):.0%}, steps saved {a.steps_saved(b):.0%}"
        for room, (a, b) in pairs.items()
    )
    saved = [a.tokens_saved(b) for a, b in pairs.values()]
    steps = {room: a.steps_saved(b) for room, (a, b) in pairs.items()}
    if max(saved) <= 0.02:
        verdict = say("D15.not_shown")
    elif steps[leaving.IN_LINE] <= steps[leaving.SEATED]:
        verdict = say("D15.not_shown_2")
    else:
        verdict = say("D15.only_when")
    return Claim("D15", say("D15.measured", told=told), verdict)


def d16(found: Sequence[Served]) -> Claim:
    """Streaming, batching, both: the p99 of E2E, and the first words."""
    ways = batching.by_way(list(found))
    crowd, calm = batching.LOADS
    base, both = ways[crowd, False, False], ways[crowd, True, True]
    streaming = ways[crowd, False, True].p99 / base.p99
    batched = ways[crowd, True, False].p99 / base.p99
    alone = ways[calm, True, True].p99 / ways[calm, False, False].p99
    first = percentile(both.first_words, 99) / percentile(base.first_words, 99)
    measured = say(
        "D16.measured",
        crowd=crowd,
        streaming=streaming,
        batched=batched,
        both_ratio=both.p99 / base.p99,
        calm=calm,
        alone=alone,
        first=first,
    )
    if both.p99 / base.p99 > HALVED:
        verdict = say("D16.not_shown")
    elif abs(streaming - 1) > ALIKE:
        verdict = say("D16.not_shown_2")
    elif abs(alone - 1) > ALIKE:
        verdict = say("D16.not_shown_3", alone=alone)
    elif batched > HALVED:
        verdict = say("D16.not_shown_4")
    else:
        verdict = say("D16.only_when")
    return Claim("D16", measured, verdict)


def e1(forms: Mapping[str, Answer], words_per_minute: float = 240) -> Claim:
    """The same answer, streamed and whole, and somebody who reads it."""
    streamed, whole = forms["streamed"], forms["whole"]
    total = streamed.arrivals[-1], whole.arrivals[-1]
    done = streamed.read(words_per_minute)[-1], whole.read(words_per_minute)[-1]
    measured = say(
        "E1.measured", total=total, streamed=streamed, whole=whole, done=done, words_per_minute=words_per_minute
    )
    if abs(total[0] / total[1] - 1) > ALIKE:
        verdict = say("E1.not_shown")
    elif done[0] < done[1]:
        verdict = say("E1.holds")
    else:
        verdict = say("E1.wrong")
    return Claim("E1", measured, verdict)


def e6(found: Sequence[Trouble]) -> Claim:
    """Trouble on purpose: was each told what is wrong, and did anybody else suffer?"""
    harmed = [each for each in found if not each.harmless]
    told = "; ".join(f"{each.name}: {each.answer}" for each in found)
    if harmed:
        names = ", ".join(each.name for each in harmed)
        verdict = say("E6.holds", names=names)
    else:
        verdict = say("E6.only_when")
    return Claim(
        "E6",
        say("E6.measured", told=told, each_sum=sum(not each.neighbour_ok for each in found), num_found=len(found)),
        verdict,
    )


def e7(trips: Sequence[Trip]) -> Claim:
    """Near and far, on open and on new connections: the network's share of TTFT."""
    away = [each for each in trips if each.rtt_s]
    told = "; ".join(
        f"round trip {seconds(t.rtt_s)}, {t.connection}: TTFT {seconds(t.ttft)}, {network_share(t):.0%} of it network"
        for t in away
    )
    over = [network_share(each) > DOMINATES for each in away]
    if all(over):
        verdict = say("E7.holds")
    elif not any(over):
        verdict = say("E7.not_shown")
    else:
        verdict = say("E7.only_when")
    return Claim("E7", told + ".", verdict)


# ---------------------------------------------------------------- small experiments, for the ledger


def _a5(lab: Lab) -> Claim:
    with LabServer(lab) as server:
        straight, *held = (traffic.through(server, **spoiling) for spoiling in A5_WAYS)
    return a5(straight, held, front.too_many(lab))


A5_WAYS: tuple[dict[str, int], ...] = ({}, {"coalesce": 4}, {"buffer_bytes": traffic.HELD_BYTES})


def _e1(lab: Lab) -> Claim:
    with LabServer(lab) as server:
        return e1(readers.both_forms(server))


def _e7(lab: Lab) -> Claim:
    with LabServer(lab) as server:
        return e7(traffic.trips(server))


MEASURE: dict[str, Callable[[Lab], Claim]] = {
    "A5": _a5,
    "D15": lambda lab: d15(leaving.crowds(lab)),
    "D16": lambda lab: d16(batching.four_ways(lab)),
    "E1": _e1,
    "E6": lambda lab: e6(trouble.send_all(lab)),
    "E7": _e7,
}
