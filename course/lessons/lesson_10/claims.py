"""The claims of lesson 10."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from course.lab.claims import Claim, conclude, say
from course.lab.lab import Lab
from course.lab.run import percentile
from course.lab.server import LabServer
from course.lab.style import seconds
from course.lessons.lesson_10 import batching, front, leaving, readers, traffic
from course.lessons.lesson_10.batching import Served
from course.lessons.lesson_10.distance import network_share
from course.lessons.lesson_10.front import Fed
from course.lessons.lesson_10.leaving import GATEWAY, STRAIGHT, Crowd
from course.lessons.lesson_10.readers import Answer
from course.lessons.lesson_10.traffic import Passed, Trip
from course.lessons.lesson_10.trouble import Trouble

EXPERIMENT = ("lab/server.py", "lab/http_client.py")

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
    as_said = all(CLAIMED_S[0] <= size <= CLAIMED_S[1] for size in (*added, *([late] if is_judged else ())))
    claim = conclude(
        "A5",
        "not_shown" if not unseen else "holds" if as_said else "only_when",
        told="; ".join(f"{each.name}: {seconds(extra)}" for each, extra in zip(held, added)),
        straight=straight,
        moved="did not show it" if unseen else "moved, too",
        overload=say("A5.overload", late=late) if is_judged else front.NO_CORE,
    )
    is_longer = is_judged and claim.kind == "holds only when"
    return replace(claim, verdict=claim.verdict + say("A5.more")) if is_longer else claim


def d15(crowds: Mapping[tuple[str, str], Crowd]) -> Claim:
    """What noticing that readers have left saves, in tokens and in the engine's steps."""
    rooms = dict.fromkeys(room for room, _ in crowds)
    tokens = {room: crowds[room, STRAIGHT].tokens_saved(crowds[room, GATEWAY]) for room in rooms}
    steps = {room: crowds[room, STRAIGHT].steps_saved(crowds[room, GATEWAY]) for room in rooms}
    told = "; ".join(f"{room}: tokens saved {tokens[room]:.0%}, steps saved {steps[room]:.0%}" for room in rooms)
    if max(tokens.values()) <= 0.02:
        return conclude("D15", "not_shown", told=told)
    return conclude("D15", "only_when" if steps[leaving.IN_LINE] > steps[leaving.SEATED] else "not_shown_2", told=told)


def d16(found: Sequence[Served]) -> Claim:
    """Streaming, batching, both: the p99 of E2E, and the first words."""
    ways = {(each.load, each.batched, each.streamed): each for each in found}
    crowd, calm = batching.LOADS
    base, both = ways[crowd, False, False], ways[crowd, True, True]
    streaming, batched, together = (
        ways[crowd, *way].p99 / base.p99 for way in ((False, True), (True, False), (True, True))
    )
    alone = ways[calm, True, True].p99 / ways[calm, False, False].p99
    if together > HALVED:
        verdict = "not_shown"
    elif abs(streaming - 1) > ALIKE:
        verdict = "not_shown_2"
    elif abs(alone - 1) > ALIKE:
        verdict = "not_shown_3"
    else:
        verdict = "not_shown_4" if batched > HALVED else "only_when"
    return conclude(
        "D16", verdict, crowd=crowd, streaming=streaming, batched=batched, both_ratio=together, calm=calm,
        alone=alone, first=percentile(both.first_words, 99) / percentile(base.first_words, 99),
    )  # fmt: skip


def e1(forms: Mapping[str, Answer], words_per_minute: float = 240) -> Claim:
    """The same answer, streamed and whole, and a user who reads it."""
    streamed, whole = forms["streamed"], forms["whole"]
    total = streamed.arrivals[-1], whole.arrivals[-1]
    done = streamed.read(words_per_minute)[-1], whole.read(words_per_minute)[-1]
    is_alike = abs(total[0] / total[1] - 1) <= ALIKE
    verdict = "not_shown" if not is_alike else "holds" if done[0] < done[1] else "wrong"
    told = {"total": total, "done": done, "words_per_minute": words_per_minute}
    return conclude("E1", verdict, streamed=streamed, whole=whole, **told)


def e6(found: Sequence[Trouble]) -> Claim:
    """Trouble on purpose: was each told what is wrong, and did any other request suffer?"""
    names = ", ".join(each.name for each in found if not each.harmless)
    told = "; ".join(f"{each.name}: {each.answer}" for each in found)
    counts = {"each_sum": sum(not each.neighbour_ok for each in found), "num_found": len(found)}
    return conclude("E6", "holds" if names else "only_when", told=told, names=names, **counts)


def e7(trips: Sequence[Trip]) -> Claim:
    """Near and far, on open and on new connections: the network's share of TTFT."""
    away = [each for each in trips if each.rtt_s]
    told = "; ".join(
        f"round trip {seconds(t.rtt_s)}, {t.connection}: TTFT {seconds(t.ttft)}, {network_share(t):.0%} of it network"
        for t in away
    )
    over = [network_share(each) > DOMINATES for each in away]
    return conclude("E7", "holds" if all(over) else "only_when" if any(over) else "not_shown", told=told)


# ---------------------------------------------------------------- small experiments, for the ledger


def measure_a5(lab: Lab) -> Claim:
    with LabServer(lab) as server:
        straight, *held = (traffic.through(server, **spoiling) for spoiling in A5_WAYS)
    return a5(straight, held, front.too_many(lab))


A5_WAYS: tuple[dict[str, int], ...] = ({}, {"coalesce": 4}, {"buffer_bytes": traffic.HELD_BYTES})


def measure_e1(lab: Lab) -> Claim:
    with LabServer(lab) as server:
        return e1(readers.both_forms(server))


def measure_e7(lab: Lab) -> Claim:
    with LabServer(lab) as server:
        return e7(traffic.trips(server))


MEASURE: dict[str, Callable[[Lab], Claim]] = {"A5": measure_a5, "D16": lambda lab: d16(batching.four_ways(lab))}
