"""What the runs of lesson 01 showed, in words."""

from collections.abc import Mapping

from course.lab.control import Control
from course.lab.finding import Finding, tell
from course.lab.pictures.compare import slowest
from course.lab.predict import Outcome
from course.lab.run import Run, percentile, phases_of
from course.lab.services_70b import BEFORE, INT8, MORE_SLOTS, Measured
from course.lab.style import change, seconds
from course.lab.tables import felt_ttft, in_flight

TIE = 0.1
"""Two services whose E2E fell within this share of each other are not told apart."""


def two_illnesses(runs: Mapping[str, Run]) -> Finding:
    """Where the slowest request of each service spent its time."""
    a, b = (phases_of(slowest(runs[name])) for name in "AB")
    waited = {"a_wait": a["queue"], "a_e2e": sum(a.values()), "b_wait": b["queue"], "b_decode": b["decode"]}
    gaps = {f"{name.lower()}_itl": percentile(runs[name].itl, 50) for name in "AB"}
    return tell("01", "two", "here", b_ttft=sum(list(b.values())[:3]), **waited, **gaps)


def half_the_bytes(before: Mapping[str, Run], half: Mapping[str, Run], control: Control) -> Finding:
    """Which service gained more from int8 weights, and why."""
    left = {name: max(half[name].e2e) / max(before[name].e2e) for name in before}
    apart = left["A"] - left["B"]
    outcome = "tie" if abs(apart) < TIE else "b" if apart > 0 else "split" if left["B"] > 1 + TIE / 2 else "a"
    told = {f"{name.lower()}_change": change(max(before[name].e2e), max(half[name].e2e)) for name in before}
    wait = {"was": before["A"].mean_phases()["queue"], "now": half["A"].mean_phases()["queue"]}
    return tell("01", "bytes", "noise" if control.moved > max(abs(apart), TIE) else outcome, **told, **wait)


def more_slots(before: Mapping[str, Run], slots: Mapping[str, Run]) -> Finding:
    """What sixteen slots did to A, which had one."""
    was, now = max(before["A"].e2e), max(slots["A"].e2e)
    step = {"was_itl": percentile(before["A"].itl, 50), "now_itl": percentile(slots["A"].itl, 50)}
    return tell("01", "slots", "cured" if now < was else "not", was=was, now=now, change=change(was, now), **step)


def hidden(capped: Run) -> Outcome:
    """How many times the server's TTFT p99 the clients of the closed loop felt: the answer to a prediction."""
    server, felt = percentile(capped.ttft, 99), percentile(felt_ttft(capped), 99)
    return Outcome(felt / server, f"by the server's clock {seconds(server)}, as felt {seconds(felt)}")


def where_it_went(capped: Run) -> Finding:
    """Whether the cap moved the queue into the client, and Little's product."""
    found = hidden(capped)
    return tell("01", "cap", "client" if found.answer > 1.5 else "nowhere", told=found.evidence, mean=in_flight(capped))


def tail(many: Run) -> Finding:
    """On how many samples the far end of the ruler rests."""
    mean, p99 = sum(many.ttft) / len(many.ttft), percentile(many.ttft, 99)
    below = sum(value < mean for value in many.ttft) / len(many.ttft)
    return tell("01", "tail", "here", count=len(many.ttft), mean=mean, p99=p99, below=below)


def at_70b(measured: Mapping[str, Mapping[str, Measured]]) -> Finding:
    """What each lever did to each service of the simulated 70B."""
    told = {
        f"{name}_{key}": change(measured[BEFORE][service].e2e, measured[lever][service].e2e)
        for name, lever in (("int8", INT8), ("slots", MORE_SLOTS))
        for key, service in (("a", "A"), ("b", "B"))
    }
    was, now = (measured[lever]["A"].ttft for lever in (BEFORE, INT8))
    return tell("01", "seventy", "here", was=was, now=now, **told)
