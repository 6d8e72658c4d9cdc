"""The check of lesson 10b. Keys come from arithmetic and from the answers that are passed in."""

from collections.abc import Mapping

from course.grading import Checks
from course.lessons.lesson_10 import checks as wire
from course.lessons.lesson_10.readers import Answer


def checks(forms: Mapping[str, Answer]) -> Checks:
    """Questions about the network.

    q1: TTFT in milliseconds: round trip 150 ms, a new connection (TCP and TLS 1.2), 250 ms at the server.
    q2: "streamed" or "whole": which answer's last token came first? Or "alike", within a tenth.
    """
    return Checks({"q1": wire.far_ttft, "q2": lambda answer: wire.which_first(answer, forms)})
