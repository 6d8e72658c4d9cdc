"""What the runs of lesson 10c showed: its verdicts on claims, its findings, and what its predictions are scored by."""

from collections.abc import Callable, Mapping, Sequence

from course.lab.claims import Claim, conclude
from course.lab.display import Html
from course.lab.finding import Finding, tell
from course.lab.know_cold import know_cold
from course.lab.lab import Lab
from course.lab.predict import MeasuredAnswer
from course.lessons.lesson_10c.run import (
    GATEWAY,
    IN_LINE,
    SEATED,
    STRAIGHT,
    AbandonedAnswer,
    ClientFault,
    CrowdOfReaders,
    crowds,
    saved_share,
    send_all_faults,
)
from course.lessons.lesson_10c.simulated import GIVE_UP, IMMEDIATELY, Storm, expected_attempts

MOST = 0.5


def tell_left(found: Mapping[str, AbandonedAnswer]) -> Finding:
    """What became of an answer whose reader had left."""
    straight, gateway = found[STRAIGHT], found[GATEWAY]
    told = {"saved": straight.saved, "gateway": gateway.saved}
    back = {"back": straight.kv_back, "gateway_back": gateway.kv_back}
    outcome = "noticed" if straight.saved > MOST > gateway.saved else "other"
    return tell("10c", "left", outcome, **told, **back)


SAVED = 0.1
"""A smaller share of the engine's time is none that two runs show."""


def tell_crowds(found: Mapping[tuple[str, str], CrowdOfReaders]) -> Finding:
    """Tokens, steps and time saved, with a slot for each reader and with a queue."""
    told, saved = {}, {}
    for key, room in (("slots", SEATED), ("queue", IN_LINE)):
        straight, gateway = found[room, STRAIGHT], found[room, GATEWAY]
        told[f"{key}_tokens"], saved[key] = straight.tokens_saved(gateway), straight.time_saved(gateway)
        told |= {f"{key}_steps": straight.steps, f"{key}_all_steps": gateway.steps}
        told |= {f"{key}_s": straight.seconds, f"{key}_all_s": gateway.seconds}
    if saved["slots"] < -SAVED or (saved["queue"] < SAVED <= saved["slots"]):
        outcome = "contradictory"
    elif saved["queue"] < SAVED:
        outcome = "too_close"
    else:
        outcome = "shorter_steps_as_well" if saved["slots"] >= SAVED else "with_a_queue"
    return tell("10c", "crowds", outcome, **told)


def amplification(storms: Mapping[str, Storm]) -> MeasuredAnswer:
    """Attempts per request with immediate retries: the answer to a prediction."""
    value = storms[IMMEDIATELY].attempts_per_request
    return MeasuredAnswer(
        value, f"{value:.2f} attempts per user request; {storms[GIVE_UP].attempts_per_request:.2f} without"
    )


ANSWERED = 0.2
"""Where clients that give up get fewer answers than this share, the server hadn't recovered by itself."""


def tell_storm(storms: Mapping[str, Storm]) -> Finding:
    """Whether the server came back after the spike, by kind of client."""
    give_up, at_once = storms[GIVE_UP].goodput_after, storms[IMMEDIATELY].goodput_after
    shares = {"give_up": give_up, "at_once": at_once, "attempts": storms[IMMEDIATELY].attempts_per_request}
    if give_up < ANSWERED:
        return tell("10c", "storm", "no_answers", **shares)
    if at_once < give_up / 2:
        return tell("10c", "storm", "stuck", **shares)
    slowest = min(storms, key=lambda name: storms[name].goodput_after)
    left = storms[slowest].goodput_after
    outcome = "drained" if left >= give_up / 2 else "drained_in_part"
    return tell("10c", "storm", outcome, slowest=slowest, left=left, **shares)


def tell_clients(clients: Mapping[str, Storm], servers: Mapping[str, Storm]) -> Finding:
    """What clients and servers can each do about it."""
    after = [each.goodput_after for each in (*clients.values(), *list(servers.values())[1:])]
    names = ("give_up", "at_once", "backoff", "jitter", "budget", "breaker", "drops", "refuses")
    shares = dict(zip(names, after))
    limited = min(shares["budget"], shares["breaker"]) > shares["jitter"] + 0.2
    return tell("10c", "clients", "limited" if limited else "alike", **shares)


def d15(crowds: Mapping[tuple[str, str], CrowdOfReaders]) -> Claim:
    """What noticing that readers have left saves, in tokens, in the engine's steps and in its time."""
    rooms = dict.fromkeys(room for room, _ in crowds)
    tokens = {room: crowds[room, STRAIGHT].tokens_saved(crowds[room, GATEWAY]) for room in rooms}
    steps = {room: crowds[room, STRAIGHT].steps_saved(crowds[room, GATEWAY]) for room in rooms}
    times = {room: crowds[room, STRAIGHT].time_saved(crowds[room, GATEWAY]) for room in rooms}
    told = "; ".join(
        f"{room}: tokens saved {tokens[room]:.0%}, steps saved {steps[room]:.0%}, engine's time saved {times[room]:.0%}"
        for room in rooms
    )
    if max(tokens.values()) <= 0.02:
        return conclude("D15", "server_noticed_nothing", told=told)
    verdict = "only_when_many_leave_early" if steps[IN_LINE] > steps[SEATED] else "no_steps_saved"
    return conclude("D15", verdict, told=told)


def e6(found: Sequence[ClientFault]) -> Claim:
    """Trouble on purpose: was each told what is wrong, and did any other request suffer?"""
    names = ", ".join(each.name for each in found if not each.harmless)
    told = "; ".join(f"{each.name}: {each.answer}" for each in found)
    counts = {"each_sum": sum(not each.neighbour_ok for each in found), "num_found": len(found)}
    return conclude("E6", "holds" if names else "only_when", told=told, names=names, **counts)


def three_numbers(storms: Mapping[str, Storm]) -> Html:
    """The lesson's three numbers."""
    storm, even = storms[IMMEDIATELY], expected_attempts(0.5, 3)
    return know_cold(
        (
            f"{storm.attempts_per_request:.1f} attempts",
            "per user request in the storm above, at most six each",
            "counted",
        ),
        (f"{even:g} attempts", "where half fail and clients try three times", "1 + ½ + ¼"),
        (
            f"{saved_share(0.4, 0.25, 0.2):.0%} of compute",
            "saved if 40% leave after a quarter of the answer, and prompts are a fifth of the compute",
            "0.4 × ¾ × 0.8",
        ),
    )


EXPERIMENT = ("lab/server.py", "lab/http_client.py", "lab/relay.py", "lessons/lesson_10/run.py")
MEASURE: dict[str, Callable[[Lab], Claim]] = {
    "D15": lambda lab: d15(crowds(lab)),
    "E6": lambda lab: e6(send_all_faults(lab)),
}
