"""The claims of lesson 10."""

from collections.abc import Callable, Mapping, Sequence

from course.lab.claims import ANATOMY, SYSTEMS, TECHNIQUES, Claim
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
        verdict = "not shown by these runs: the server's own TTFT moved as well, so something else was going on."
    elif all(CLAIMED_S[0] <= size <= CLAIMED_S[1] for size in sizes):
        verdict = "holds here: unseen, and of that size."
    else:
        verdict = (
            "holds only when the buffer is worth a few tokens: unseen it is, but the size is no constant. The first "
            "token waits for (buffer / bytes of an event) tokens, each an ITL long."
        )
        if is_judged:
            verdict += (
                " A front that cannot keep up has no limit at all: it falls further behind for as long as the load "
                "lasts."
            )
    overload = (
        f"A front with more chunks than it can send: half of them late by more than {seconds(late)}."
        if is_judged
        else front.NO_CORE
    )
    return Claim(
        "A5",
        "A buffering proxy, or a very busy stream, adds 20 to 100 ms that nobody sees.",
        ANATOMY,
        f"added between the engine's first token and the client's: {told}; an event has "
        f"{straight.heard.event_bytes:.0f} bytes. The server's own TTFT {moved}. {overload}",
        verdict,
    )


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
        verdict = "not shown by these runs: the readers who left were not noticed before their answers were done."
    elif steps[leaving.IN_LINE] <= steps[leaving.SEATED]:
        verdict = "not shown by these runs: no steps were saved where people waited for a seat."
    else:
        verdict = (
            "holds only when enough readers leave early enough: the saving is the share who leave, times what they "
            "did not read, times the part of a request that is writing. Even with prompts that cost nothing, 30% takes "
            "60% of all readers leaving halfway. And tokens are not steps: while others are writing, the engine "
            "takes its steps anyway; steps are saved where somebody was waiting for the seat."
        )
    return Claim(
        "D15",
        "Cancelling streams that nobody reads any more saves 30% of the compute.",
        TECHNIQUES,
        f"half of the readers leave halfway: {told}.",
        verdict,
    )


def d16(found: Sequence[Served]) -> Claim:
    """Streaming, batching, both: the p99 of E2E, and the first words."""
    ways = batching.by_way(list(found))
    crowd, calm = batching.LOADS
    base, both = ways[crowd, False, False], ways[crowd, True, True]
    streaming = ways[crowd, False, True].p99 / base.p99
    batched = ways[crowd, True, False].p99 / base.p99
    alone = ways[calm, True, True].p99 / ways[calm, False, False].p99
    first = percentile(both.first_words, 99) / percentile(base.first_words, 99)
    measured = (
        f"p99 of E2E, as a share of neither, {crowd}: streaming ×{streaming:.2f}, batching ×{batched:.2f}, both "
        f"×{both.p99 / base.p99:.2f}; {calm}: both ×{alone:.2f}. Until the first words, {crowd}: both ×{first:.2f}."
    )
    if both.p99 / base.p99 > HALVED:
        verdict = "not shown by these runs: the two together did not halve the p99 here."
    elif abs(streaming - 1) > ALIKE:
        verdict = "not shown by these runs: streaming alone moved the total, so something else was going on."
    elif abs(alone - 1) > ALIKE:
        verdict = (
            f"not shown by these runs: requests that came alone differed by ×{alone:.2f}, and nothing was different "
            "for them."
        )
    elif batched > HALVED:
        verdict = "not shown by these runs: batching alone did not halve it."
    else:
        verdict = (
            "holds only when requests wait for each other, and then batching did it alone. Streaming changes when "
            "there is something to read, not when the answer is done; with nobody to share a step, batching changes "
            "nothing either."
        )
    return Claim("D16", "Streaming together with batching halves the P99.", TECHNIQUES, measured, verdict)


def e1(forms: Mapping[str, Answer], words_per_minute: float = 240) -> Claim:
    """The same answer, streamed and whole, and somebody who reads it."""
    streamed, whole = forms["streamed"], forms["whole"]
    total = streamed.arrivals[-1], whole.arrivals[-1]
    done = streamed.read(words_per_minute)[-1], whole.read(words_per_minute)[-1]
    measured = (
        f"the last token after {seconds(total[0])} streamed, {seconds(total[1])} whole; something to read after "
        f"{seconds(streamed.arrivals[0])} and {seconds(whole.arrivals[0])}; read by {seconds(done[0])} and "
        f"{seconds(done[1])}, at {words_per_minute:g} words a minute."
    )
    if abs(total[0] / total[1] - 1) > ALIKE:
        verdict = "not shown by these runs: the totals are too different to compare."
    elif done[0] < done[1]:
        verdict = (
            "holds for readers: they begin earlier, and are done earlier by nearly the time that the whole answer "
            "took to be written. A program that needs the last byte first gains nothing."
        )
    else:
        verdict = "wrong here: the reader was not done any earlier."
    return Claim("E1", "Streaming improves what a user feels, at the same total time.", SYSTEMS, measured, verdict)


def e6(found: Sequence[Trouble]) -> Claim:
    """Trouble on purpose: was each told what is wrong, and did anybody else suffer?"""
    harmed = [each for each in found if not each.harmless]
    told = "; ".join(f"{each.name}: {each.answer}" for each in found)
    if harmed:
        names = ", ".join(each.name for each in harmed)
        verdict = f"holds here, too: {names} did not end as they should."
    else:
        verdict = (
            "holds only when a server has not been built for them: this one has a limit, a typed error and a test for "
            "each, and nobody else noticed. The advice stands: send these to your own server before others do."
        )
    return Claim(
        "E6",
        "Disconnects, slow tools and oversized prompts break services that pass their happy-path tests.",
        SYSTEMS,
        f"{told}. Neighbours harmed: {sum(not each.neighbour_ok for each in found)} of {len(found)}.",
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
        verdict = "holds for every distance here: more than half of each TTFT is round trips."
    elif not any(over):
        verdict = (
            "not shown here: this machine's own part is longer than all round trips; in front of 70B it would not be."
        )
    else:
        verdict = (
            "holds only when the round trips add up to more than the server's own part: a new connection with TLS 1.3 "
            "needs three, an open one needs one. So keep connections open first, then move closer. ITL does not care."
        )
    return Claim("E7", "For far clients, connection set-up and distance dominate TTFT.", SYSTEMS, told + ".", verdict)


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
