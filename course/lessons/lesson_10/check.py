"""The check of lesson 10. Keys come from the streams and runs that are passed in."""

import math
from collections.abc import Sequence

from course.grading import Checks, Criterion, Question, choice, near
from course.lessons.lesson_10.run import HELD_BYTES, Fed, ProxiedStream

STREAMS, TOKENS_PER_S = 400, 50


def checks(straight: ProxiedStream, costs: Sequence[Fed]) -> Checks:
    """Questions about the wire.

    q1: tokens that a proxy with a buffer of 4096 bytes holds back before the first one passes.
    q2: event loops, a core each, for 400 streams of 50 tokens a second, a chunk for each token, on this machine.
    q3: which figure at the server shows that a proxy buffers: "ttft", "itl", "stream" or "none".
    """

    def q1(answer: object) -> tuple[Criterion, ...]:
        key = math.ceil(HELD_BYTES / straight.heard.event_bytes)
        slips = {
            HELD_BYTES: "that's the buffer in bytes; how many bytes has one event?",
            straight.heard.event_bytes: "these are the bytes of one event; how many events fill the buffer?",
            HELD_BYTES / len(" word"): "an event is more than its word; look at straight.heard.body[:300]",
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
        options = {
            "ttft": "the server's TTFT ends when it hands the token over, and the proxy takes that right away",
            "itl": "the server measures ITL as it hands tokens over, and the proxy takes each one right away",
            "stream": "the stream phase ends when the transport has the last byte, and the proxy takes it right away",
            "none": "the proxy reads as fast as the server writes: only a client can tell",
        }
        return choice(answer, "none", options)

    questions = {
        "q1": Question("How many tokens fill the proxy's 4,096 bytes? See straight.heard.event_bytes.", "tokens"),
        "q2": Question(
            "400 streams of 50 tokens a second send a chunk for each token, at costs[0].cpu_per_chunk of CPU "
            "each: how many cores is that?",
            "cores",
        ),
        "q3": Question(
            "Which of the server's figures shows a proxy that buffers?", options=("ttft", "itl", "stream", "none")
        ),
    }
    return Checks({"q1": q1, "q2": q2, "q3": q3}, questions)
