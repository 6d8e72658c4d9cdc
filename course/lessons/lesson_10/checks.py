"""The check of lesson 10. Keys come from the streams and runs that are passed in."""

from collections.abc import Mapping, Sequence

from course.grading import Checks, Criterion, choice, near
from course.lessons.lesson_10.front import Fed
from course.lessons.lesson_10.leaving import saved_share
from course.lessons.lesson_10.readers import Answer
from course.lessons.lesson_10.traffic import HELD_BYTES, Passed

LEAVING, READ, PROMPT = 0.4, 0.25, 0.2
STREAMS, TOKENS_PER_S = 400, 50
RTT_S, SERVER_S = 0.15, 0.25
ALIKE, TOO_FAR = 0.1, 0.2
"""Two totals of the same answer: so near that they are alike, and so far apart that it was the machine."""


def checks(straight: Passed, costs: Sequence[Fed]) -> Checks:
    """Questions about the wire.

    q1: tokens that a proxy with a buffer of 4096 bytes holds back before the first one passes.
    q2: event loops, a core each, for 400 streams of 50 tokens a second, a chunk for each token, on this machine.
    q3: which figure at the server shows that a proxy buffers: "ttft", "itl", "stream" or "none".
    """

    def q1(answer: object) -> tuple[Criterion, ...]:
        key = HELD_BYTES / straight.heard.event_bytes
        slips = {
            HELD_BYTES: "these are bytes; how many has one event?",
            straight.heard.event_bytes: "these are the bytes of one event; how many events fill the buffer?",
            HELD_BYTES / len(" word"): "an event is not only its word: look at straight.heard.body[:300]",
        }
        return (near(answer, key, "tokens held", slips, 0.15),)

    def q2(answer: object) -> tuple[Criterion, ...]:
        key = STREAMS * TOKENS_PER_S * costs[0].cpu_per_chunk
        slips = {
            1 / key: "inverted: it's chunks per second times CPU seconds for each",
            key * 1e3: "a factor of 1000: is the cost of a chunk in seconds?",
            key * 1e6: "a factor of a million: is the cost of a chunk in seconds?",
        }
        return (near(answer, key, "cores", slips, 0.15),)

    def q3(answer: object) -> tuple[Criterion, ...]:
        wrong = "counts until the server has handed the token over, and the proxy takes it at once"
        options = {
            "ttft": f"the server's TTFT {wrong}",
            "itl": f"the server's ITL {wrong}",
            "stream": "the stream phase ends when the transport has the last byte, and the proxy takes it at once",
            "none": "the proxy reads as fast as the server writes: only a client can tell",
        }
        return choice(answer, "none", options)

    return Checks({"q1": q1, "q2": q2, "q3": q3})


def far_ttft(answer: object) -> tuple[Criterion, ...]:
    """TTFT over a new connection with TLS 1.2."""
    key = 1e3 * (4 * RTT_S + SERVER_S)
    slips = {
        1e3 * (3 * RTT_S + SERVER_S): "the set-up takes three round trips; the question itself takes one more",
        1e3 * (RTT_S + SERVER_S): "that is a connection that was open already",
        1e3 * (2 * RTT_S + SERVER_S): "TCP takes one, TLS 1.2 two, the question one",
        1e3 * 4 * RTT_S: "and the server's own part?",
    }
    return (near(answer, key, "TTFT, ms", slips),)


def compute_saved(answer: object) -> tuple[Criterion, ...]:
    """What noticing that readers have left saves."""
    key = saved_share(LEAVING, READ, PROMPT)
    slips = {
        100 * key: "a share, please: between 0 and 1",
        LEAVING * READ * (1 - PROMPT): "that is what they did read",
        LEAVING * (1 - READ): "the prompt was already computed when they left, so it can't be saved",
    }
    return (near(answer, key, "share saved", slips, 0.03),)


def which_first(answer: object, forms: Mapping[str, Answer]) -> tuple[Criterion, ...]:
    """Any, if they are far apart: a machine that was disturbed has no key."""
    last = {name: form.arrivals[-1] for name, form in forms.items()}
    apart = abs(last["streamed"] / last["whole"] - 1)
    told = ", ".join(f"{name} {value:.3g} s" for name, value in last.items())
    key = "alike" if apart <= ALIKE else min(last, key=last.get)
    graded = choice(answer, key, dict.fromkeys(("streamed", "whole", "alike"), f"last tokens: {told}"))
    if apart <= TOO_FAR:
        return graded
    return (Criterion("choice", 1, 1, f"too noisy to tell: run both_forms again. Last tokens: {told}"),)
