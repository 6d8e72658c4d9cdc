"""What the runs of lesson 10 showed: its verdicts on claims, its findings, and what its prediction is scored by."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from course.lab.claims import Claim, conclude, say
from course.lab.display import Html
from course.lab.finding import Finding, tell
from course.lab.know_cold import know_cold
from course.lab.lab import Lab
from course.lab.predict import MeasuredAnswer
from course.lab.run import percentile
from course.lab.server import LabServer
from course.lab.style import seconds, told_seconds
from course.lessons.lesson_10.pictures import NO_CORE
from course.lessons.lesson_10.run import (
    HELD_BYTES,
    LOADS,
    Fed,
    ProxiedStream,
    ServingWay,
    four_ways,
    shows_overload,
    through,
    too_many,
)

FLAT, WORSE = 0.5, 2.0
"""A percentile that halves has fallen, one that doubles has risen."""
RHYTHM = {
    ("same", "same"): "both stay",
    ("up", "up"): "both rise",
    ("same", "up"): "p50 stays, p99 rises",
    ("down", "up"): "p50 falls, p99 rises",
}


def rhythm(held: ProxiedStream) -> MeasuredAnswer:
    """What became of ITL's p50 and p99 on the way. Both ends of one answer: two answers differ on a busy machine."""
    was, now = ([percentile(gaps, q) for q in (50, 99)] for gaps in (held.server_itl, held.heard.itl))
    moved = tuple("down" if b < FLAT * a else "up" if b > WORSE * a else "same" for a, b in zip(was, now))
    told = ", ".join(f"p{q} {seconds(a)} to {seconds(b)}" for q, a, b in zip((50, 99), was, now))
    bunch = max(read.tokens for read in held.heard.reads)
    return MeasuredAnswer(
        RHYTHM.get(moved, f"p50 {moved[0]}, p99 {moved[1]}"),
        f"ITL as it left the server, and as it arrived: {told}; up to {bunch} tokens came together; TTFT "
        f"{seconds(held.server_ttft)} to {seconds(held.heard.ttft)}",
    )


def tell_held(found: ProxiedStream) -> Finding:
    """What a buffering proxy did to the client's ITL, and what the server saw of it."""
    gaps = {
        f"{end}{q}": percentile(itl, q)
        for end, itl in (("s", found.server_itl), ("c", found.heard.itl))
        for q in (50, 99)
    }
    lump = max(read.tokens for read in found.heard.reads)
    outcome = "better" if gaps["c50"] < gaps["s50"] / 2 else "other"
    ttft = {"server": found.server_ttft, "client": found.heard.ttft, "added": found.heard.ttft - found.server_ttft}
    median = told_seconds(gaps["c50"]) if gaps["c50"] else "zero"
    return tell("10", "held", outcome, lump=lump, median=median, **ttft, **gaps)


AS_LONG = 1.2
"""Server-side times whose longest is no more than so many times the shortest are called the same."""


def tell_both_ends(found: Sequence[ProxiedStream]) -> Finding:
    """Whether the server's own times tell the ways apart, as the clients' do."""
    took = [each.borders[4] - each.borders[0] for each in found]
    first = [each.heard.ttft for each in found]
    ends = {"least": min(took), "most": max(took), "first": min(first), "last": max(first)}
    return tell("10", "both_ends", "same" if ends["most"] <= AS_LONG * ends["least"] else "varied", **ends)


def tell_busy(found: Sequence[Fed]) -> Finding:
    """Whether streaming itself was too much for one core."""
    small, large = found[0], found[-1]
    late = {"late": percentile(small.lateness, 50), "late_large": percentile(large.lateness, 50)}
    outcome = "overload" if shows_overload(found) else "unclear"
    return tell("10", "busy", outcome, core=small.busy, core_large=large.busy, every=large.every, **late)


CLAIMED_S = (0.02, 0.1)
SHIFT = 0.25
"""A share of the client's added delay: a server's own figures that move by less have not shown it."""


def a5(straight: ProxiedStream, held: Sequence[ProxiedStream], busy: Sequence[Fed]) -> Claim:
    """What a buffering proxy and a busy front add, and who sees it.

    Args:
        held: the same request through proxies that hold bytes.
        busy: a front with more chunks than it can send; then with larger chunks. Where it was not that, it is left out.
    """
    added = [each.heard.ttft - each.server_ttft for each in held]
    moved_by = [abs(each.told["ttft"] - straight.told["ttft"]) for each in held]
    unseen = all(moved < SHIFT * max(added) for moved in moved_by)
    is_judged, late = shows_overload(busy), percentile(busy[0].lateness, 50)
    as_said = all(CLAIMED_S[0] <= size <= CLAIMED_S[1] for size in (*added, *([late] if is_judged else ())))
    claim = conclude(
        "A5",
        "not_shown" if not unseen else "holds" if as_said else "only_when",
        told="; ".join(f"{each.name}: {seconds(extra)}" for each, extra in zip(held, added)),
        straight=straight,
        moved="did not show it" if unseen else "moved, too",
        overload=say("A5.overload", late=late) if is_judged else NO_CORE,
    )
    is_longer = is_judged and claim.kind == "only when"
    return replace(claim, verdict=claim.verdict + say("A5.front_has_no_limit")) if is_longer else claim


HALVED, ALIKE = 0.6, 0.2
"""At most that share of the p99 counts as halved; so much more or less is noise."""


def d16(found: Sequence[ServingWay]) -> Claim:
    """Streaming, batching, both: the p99 of E2E, and the first words."""
    ways = {(each.load, each.batched, each.streamed): each for each in found}
    crowd, calm = LOADS
    base, both = ways[crowd, False, False], ways[crowd, True, True]
    streaming, batched, together = (
        ways[crowd, *way].p99 / base.p99 for way in ((False, True), (True, False), (True, True))
    )
    alone = ways[calm, True, True].p99 / ways[calm, False, False].p99
    if together > HALVED:
        verdict = "both_did_not_halve_it"
    elif abs(streaming - 1) > ALIKE or abs(together / batched - 1) > ALIKE:
        verdict = "streaming_moved_the_total"
    elif abs(alone - 1) > ALIKE:
        verdict = "lone_requests_differed"
    else:
        verdict = "batching_alone_did_not_halve_it" if batched > HALVED else "only_when_requests_wait"
    return conclude(
        "D16",
        verdict,
        crowd=crowd,
        streaming=streaming,
        batched=batched,
        both_ratio=together,
        calm=calm,
        alone=alone,
        first=percentile(both.first_words, 99) / percentile(base.first_words, 99),
    )


A5_WAYS: tuple[dict[str, int], ...] = ({}, {"coalesce": 4}, {"buffer_bytes": HELD_BYTES})


# ---------------------------------------------------------------- small experiments, for the ledger


def measure_a5(lab: Lab) -> Claim:
    with LabServer(lab) as server:
        straight, *held = (through(server, **spoiling) for spoiling in A5_WAYS)
    return a5(straight, held, too_many(lab))


def three_numbers(straight: ProxiedStream, costs: Sequence[Fed]) -> Html:
    """The lesson's three numbers."""
    event, chunk = straight.heard.event_bytes, costs[0].cpu_per_chunk
    return know_cold(
        (f"{event:.0f} bytes", "for one event with a five-letter token in it", "counted, above; OpenAI's format"),
        (
            f"{math.ceil(HELD_BYTES / event)} tokens",
            f"fill a buffer of {HELD_BYTES:,} bytes",
            f"{HELD_BYTES:,} / {event:.0f}, rounded up",
        ),
        (
            f"{1e-3 / chunk:.0f},000 chunks/s",
            "a core of this machine sends, if it wakes up for each",
            f"{seconds(chunk)} of CPU each, measured above",
        ),
    )


EXPERIMENT = ("lab/server.py", "lab/http_client.py")


MEASURE: dict[str, Callable[[Lab], Claim]] = {"A5": measure_a5, "D16": lambda lab: d16(four_ways(lab))}
