"""Ctrl-C can come at any line of any step, also in the middle of the books. The next prompt is answered as ever."""

import logging
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from fake_runner import FakeRunner, GuessingProposer, expected_output, greedy
from robustness.judge import check_at_rest

import minillm
from minillm.core.timeline import VirtualClock
from minillm.frontend.engine import Engine
from minillm.frontend.llm import LLM
from minillm.policies.config import EngineConfig

PACKAGE = Path(minillm.__file__).parent
BOOKS = tuple(str(PACKAGE / name) for name in ("core", "policies", "frontend/engine.py"))
PROMPTS = [[1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 9], [7, 7]]
EVERY = 13
"""Lines between two places that are tried: a prime, so that loops are met in all their lines."""
WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "drafts": {"speculative": {"method": "ngram", "k": 2, "min_output_tokens": 1, "acceptance_floor": 0}},
    "swap": {"preemption": "swap"},
    "running ahead": {"async_scheduling": True},
}


class PressAt:
    """A trace function that raises KeyboardInterrupt at the n-th line of the engine's books."""

    def __init__(self, line: int) -> None:
        self.left = line

    def __call__(self, frame: FrameType, event: str, argument: object) -> "PressAt | None":
        if not frame.f_code.co_filename.startswith(BOOKS):
            return None
        if event == "line":
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
        return self


def make_llm(fields: dict[str, Any]) -> LLM:
    clock = VirtualClock()
    config = EngineConfig(max_num_seqs=2, max_num_batched_tokens=8, max_model_len=16, block_size=4, **fields)
    llm = LLM.__new__(LLM)
    llm.engine = Engine(config, runner=FakeRunner(4, 4, clock, 8), clock=clock, proposer=GuessingProposer())
    return llm


@pytest.mark.parametrize("way", WAYS)
def test_ctrl_c_at_any_line(way: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "minillm")
    line, before = 1, sys.gettrace()
    while True:
        llm = make_llm(WAYS[way])
        sys.settrace(PressAt(line))
        try:
            llm.generate(PROMPTS, greedy(4), use_tqdm=False)
        except KeyboardInterrupt:
            pass
        else:
            break  # it was over before
        finally:
            sys.settrace(before)
        check_at_rest(llm.engine)
        outputs = llm.generate(PROMPTS, greedy(4), use_tqdm=False)
        assert [output.token_ids for output in outputs] == [expected_output(prompt, 4) for prompt in PROMPTS], line
        check_at_rest(llm.engine)
        line += EVERY
    assert line > 100 * EVERY, "that was too short to be a run"
