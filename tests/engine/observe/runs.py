"""Made-up runs for the tests of this folder, with every kind of ending."""

from minillm.core.request import FinishReason
from minillm.core.step_log import StepRecord, StepShare
from minillm.core.timeline import Timeline
from minillm.observe.records import RequestRecord


def timeline(arrival: float, *gaps: float, finished: bool = True, lost: dict[str, float] | None = None) -> Timeline:
    """Gaps: queue, prefill, first token, then one per further token, and stream last, if they happened.

    With fewer gaps it ends inside the phase after the last one given, 1 s later.
    """
    result = Timeline(arrival, lost=lost or {})
    now = arrival
    ending = gaps[-1] if len(gaps) > 3 else 1.0
    for i, gap in enumerate(gaps[:-1] if len(gaps) > 3 else gaps):
        now += gap
        if i == 0:
            result.scheduled = now
        elif i == 1:
            result.prefill_end = now
        else:
            result.deliver(now, 1)
    if finished:
        result.finished = now + ending
    return result


def every_ending() -> list[RequestRecord]:
    """Completed, one token only, aborted in decode and in prefill, timed out in the queue, two in flight."""
    return [
        RequestRecord("whole", 100, 32, FinishReason.STOP, timeline(0.0, 1.0, 2.0, 0.5, 0.25, 0.75, 0.25, 0.125)),
        RequestRecord("one", 10, 0, FinishReason.LENGTH, timeline(0.5, 0.5, 1.0, 0.25, 0.0)),
        RequestRecord("in-decode", 20, 0, FinishReason.ABORT, timeline(1.0, 1.0, 1.0, 0.5, 0.5, 0.5)),
        RequestRecord("in-prefill", 5000, 0, FinishReason.ERROR, timeline(2.0, 1.5)),
        RequestRecord("in-queue", 30, 0, FinishReason.TIMEOUT, timeline(3.0)),
        RequestRecord("decoding", 40, 0, None, timeline(4.0, 0.5, 0.5, 0.5, 0.25, 0.0, finished=False)),
        RequestRecord("waiting", 50, 0, None, timeline(5.0, finished=False)),
    ]


def steps_of_whole() -> list[StepRecord]:
    """The steps of "whole" (scheduled at 1.0, prefill to 3.0 in two chunks), with a recompute while it decodes."""

    def step(i: int, start: float, end: float, tokens: int, is_prefill: bool, preempted: tuple[str, ...] = ()):
        stages = {"schedule": 0.001, "build": 0.002, "forward": (end - start) / 2, "sample": 0.01, "detokenize": 0.001}
        shares = (StepShare("whole", tokens, is_prefill), StepShare("unknown", 1, False))
        return StepRecord(i, start, end, shares, 2, 2, 7 + i, 64, preempted, stages)

    return [
        step(0, 1.0, 2.0, 60, True),
        step(1, 2.0, 3.5, 8, True),
        step(2, 3.5, 3.75, 1, False, preempted=("whole",)),
        step(3, 4.0, 5.0, 70, True),
    ]
