"""One long prompt among chats, in chunks of several sizes: its own TTFT, and the longest gap that the chats see."""

from collections.abc import Mapping
from dataclasses import dataclass

from course.lab.lab import Lab
from course.lab.predict import Outcome
from course.lab.run import Run
from course.lab.style import change, seconds
from course.lessons.lesson_03 import traffic
from course.simulator.cluster.record import ClientRecord
from minillm.frontend.snapshot import RequestView

CHUNKS = (16, 32, 64, 128, 256, 512)
SWEEP = (16, 64, 256)
"""Chunk sizes of the sweep, beside the whole prompt."""
LONGER, SAME, SHORTER = "longer", "about the same (within 5%)", "shorter"
TIE = 0.05


@dataclass(frozen=True)
class Trade:
    """What one chunk size meant. Seconds."""

    chunk: int
    """Most tokens of the prompt in a step."""
    tokens: int
    """Of the prompt."""
    ttft: float
    """Of the long prompt."""
    worst_gap: float
    """The longest wait between two tokens of any other request during the prefill."""
    steps: int
    """Steps in which it was read: so often all weights were read for it."""

    @property
    def whole(self) -> bool:
        return self.chunk >= self.tokens


def sizes(lab: Lab) -> list[int]:
    """Those of the sweep that are a part of the long prompt, smallest first; then the prompt whole."""
    longest = traffic.long_prompt(lab)
    return [*(chunk for chunk in SWEEP if chunk < longest), longest]


def fields(lab: Lab, chunk: int) -> dict[str, object]:
    """EngineConfig fields: at most `chunk` tokens of a prompt a step."""
    longest = traffic.long_prompt(lab)
    chunked = {"long_prefill_token_threshold": min(chunk, longest), "max_num_seqs": 8}
    return {**traffic.fields(lab, longest), **chunked}


def trade(run: Run) -> Trade:
    """What the run shows about its last row, the long prompt, and about the others."""
    long = run.row_of(len(run.rows) - 1)
    others = [row.view for row in run.rows[:-1] if row.view]
    mine = [s.num_tokens for step in run.steps for s in step.shares if s.request_id == long.request_id and s.is_prefill]
    return Trade(
        chunk=run.config.long_prefill_token_threshold or long.num_prompt_tokens,
        tokens=long.num_prompt_tokens,
        ttft=long.deliveries[0] - long.borders[0],
        worst_gap=max(
            (gap for view in others for gap in gaps_while(view, long.borders[1], long.borders[2])), default=0.0
        ),
        steps=len(mine),
    )


def gaps_while(view: RequestView | ClientRecord, start: float, end: float) -> list[float]:
    """A request's gaps between tokens that lie at least partly between two moments, seconds."""
    pairs = zip(view.deliveries, view.deliveries[1:])
    return [later - earlier for earlier, later in pairs if later > start and earlier < end]


def own_ttft(swept: Mapping[int, Run], chunk: int) -> Outcome:
    """What chunks of this size did to the long prompt's own TTFT, as the answer to a prediction."""
    in_chunks, whole = trade(swept[chunk]), trade(swept[max(swept)])
    ratio = in_chunks.ttft / whole.ttft
    answer = SAME if abs(ratio - 1) <= TIE else LONGER if ratio > 1 else SHORTER
    evidence = (
        f"its TTFT went from {seconds(whole.ttft)} whole to {seconds(in_chunks.ttft)} in {in_chunks.steps} chunks "
        f"({change(whole.ttft, in_chunks.ttft)}), the longest gap of the others from {seconds(whole.worst_gap)} to "
        f"{seconds(in_chunks.worst_gap)} ({change(whole.worst_gap, in_chunks.worst_gap)})"
    )
    return Outcome(answer, evidence)
