"""The check of lesson 10b. Keys come from arithmetic and from the answers that are passed in."""

from collections.abc import Mapping

from course.grading import Checks, Criterion, Question, choice, near
from course.lessons.lesson_10b.run import ReceivedAnswer

RTT_S, SERVER_S = 0.15, 0.25
SAME = "about the same"
NEAR, TOO_FAR = 0.1, 0.2
"""Two totals of the same answer: so near that they are the same, and so far apart that it was the machine."""


def far_ttft(answer: object) -> tuple[Criterion, ...]:
    """TTFT over a new connection with TLS 1.2."""
    key = 1e3 * (4 * RTT_S + SERVER_S)
    slips = {
        1e3 * (3 * RTT_S + SERVER_S): "set-up takes three round trips, and the request itself takes one more",
        1e3 * (RTT_S + SERVER_S): "that's TTFT on a connection that's already open",
        1e3 * (2 * RTT_S + SERVER_S): "that's two round trips too few: TCP takes one, TLS 1.2 two, the request one",
        1e3 * 4 * RTT_S: "that leaves out the server's own 250 ms",
    }
    return (near(answer, key, "TTFT, ms", slips),)


def which_first(answer: object, forms: Mapping[str, ReceivedAnswer]) -> tuple[Criterion, ...]:
    """Any, if they are far apart: a machine that was disturbed has no key."""
    last = {name: form.arrivals[-1] for name, form in forms.items()}
    apart = abs(last["streamed"] / last["whole"] - 1)
    told = ", ".join(f"{name} {value:.3g} s" for name, value in last.items())
    key = SAME if apart <= NEAR else min(last, key=last.get)
    graded = choice(answer, key, dict.fromkeys(("streamed", "whole", SAME), f"last tokens: {told}"))
    if apart <= TOO_FAR:
        return graded
    return (Criterion("choice", 1, 1, f"too noisy to tell: run both_forms again. Last tokens: {told}"),)


def checks(forms: Mapping[str, ReceivedAnswer]) -> Checks:
    """Questions about the network.

    q1: TTFT in milliseconds: round trip 150 ms, a new connection (TCP and TLS 1.2), 250 ms at the server.
    q2: "streamed" or "whole": which answer's last token came first? Or "about the same", within a tenth.
    """
    questions = {
        "q1": Question(
            "A round trip takes 150 ms, the connection is new, with TCP and TLS 1.2, and the server needs 250 ms "
            "to its first token: what's TTFT at the client?",
            "ms",
        ),
        "q2": Question(
            "Which answer's last token came first here? (Within a tenth counts as the same.)",
            options=("streamed", "whole", SAME),
        ),
    }
    return Checks({"q1": far_ttft, "q2": lambda answer: which_first(answer, forms)}, questions)
