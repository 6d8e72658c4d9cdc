"""What the runs of lesson 10b showed: its verdicts on claims, its findings, and what its prediction is scored by."""

from collections.abc import Callable, Mapping, Sequence

from course.lab.claims import Claim, conclude
from course.lab.display import Html
from course.lab.finding import Finding, tell
from course.lab.know_cold import know_cold
from course.lab.lab import Lab
from course.lab.noise import ratio_of
from course.lab.predict import MeasuredAnswer
from course.lab.server import LabServer
from course.lab.style import seconds
from course.lessons.lesson_10b.explorer import FIBRE_KM_PER_S, rtt_s
from course.lessons.lesson_10b.run import ReceivedAnswer, Trip, both_forms, network_share, trips


def far(found: Sequence[Trip]) -> MeasuredAnswer:
    """Round trips that TTFT grew by, from nearby on an open connection to far away on a new one."""
    near, last = found[0], found[-1]
    told = f"TTFT {seconds(near.ttft)} to {seconds(last.ttft)}, ITL {seconds(near.itl)} to {seconds(last.itl)}"
    return MeasuredAnswer((last.ttft - near.ttft) / last.rtt_s, f"{told}; a round trip is {seconds(last.rtt_s)}")


STAYS = 1.2
"""Medians of ITL whose longest is no more than so many times the shortest haven't changed."""


def tell_trips(found: Sequence[Trip]) -> Finding:
    """What distance and handshakes did to TTFT; and whether the medians of ITL are the same at every distance."""
    near, last = found[0], found[-1]
    gaps = [each.itl for each in found]
    is_same = ratio_of(min(gaps), max(gaps)) <= STAYS
    told = {"grown": (last.ttft - near.ttft) / last.rtt_s, "rtt": last.rtt_s, "ttft": near.ttft, "far_ttft": last.ttft}
    outcome = "itl_stays" if is_same else "itl_differs"
    return tell("10b", "trips", outcome, least=min(gaps), most=max(gaps), **told)


def tell_forms(found: Mapping[str, ReceivedAnswer]) -> Finding:
    """Streamed against whole: when the first and the last text was there."""
    streamed, whole = found["streamed"].arrivals, found["whole"].arrivals
    ends = {"first": streamed[0], "last": streamed[-1], "whole": whole[-1]}
    return tell("10b", "forms", "alike" if abs(ends["last"] / ends["whole"] - 1) < 0.15 else "apart", **ends)


ALIKE = 0.2
"""Totals that differ by more cannot be compared."""


def e1(forms: Mapping[str, ReceivedAnswer], words_per_minute: float = 240) -> Claim:
    """The same answer, streamed and whole, and a user who reads it."""
    streamed, whole = forms["streamed"], forms["whole"]
    total = streamed.arrivals[-1], whole.arrivals[-1]
    done = streamed.read(words_per_minute)[-1], whole.read(words_per_minute)[-1]
    is_alike = abs(total[0] / total[1] - 1) <= ALIKE
    verdict = "not_shown" if not is_alike else "holds" if done[0] < done[1] else "wrong"
    told = {"total": total, "done": done, "words_per_minute": words_per_minute}
    return conclude("E1", verdict, streamed=streamed, whole=whole, **told)


DOMINATES = 0.5
SLOW_S = 0.3
"""A server's own part of TTFT that is nothing special: some thousands of prompt tokens, or a short queue."""


def e7(trips: Sequence[Trip]) -> Claim:
    """Near and far, on open and on new connections: the network's share of TTFT, here and with a slower server."""
    away = [each for each in trips if each.rtt_s]
    told = "; ".join(
        f"round trip {seconds(t.rtt_s)}, {t.connection}: TTFT {seconds(t.ttft)}, {network_share(t):.0%} of it network"
        for t in away
    )
    over = any(network_share(each) > DOMINATES for each in away)
    slower = [each.network / (each.network + SLOW_S) for each in away]
    shares = {"slow": SLOW_S, "least": min(slower), "most": max(slower), "own": trips[0].ttft}
    return conclude("E7", "only_when" if over else "not_shown", told=told, **shares)


def measure_e1(lab: Lab) -> Claim:
    with LabServer(lab) as server:
        return e1(both_forms(server))


def measure_e7(lab: Lab) -> Claim:
    with LabServer(lab) as server:
        return e7(trips(server))


def three_numbers() -> Html:
    """The lesson's three numbers."""
    trip = rtt_s("Frankfurt", "Sydney")
    return know_cold(
        (
            "3 round trips",
            "from a new TLS 1.3 connection to the first byte",
            "TCP 1, TLS 1, the request 1 (RFC 9293, 8446)",
        ),
        (f"{2e5 / FIBRE_KM_PER_S:.1f} ms", "for 100 km of fibre, there and back", "200 km / 204,000 km/s"),
        (f"{trip:.2f} s", "Frankfurt to Sydney and back, at least", "great circle × 1.5, at that speed"),
    )


EXPERIMENT = ("lab/server.py", "lab/http_client.py", "lab/relay.py", "lessons/lesson_10/run.py")
MEASURE: dict[str, Callable[[Lab], Claim]] = {"E1": measure_e1, "E7": measure_e7}
