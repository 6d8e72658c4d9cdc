"""What other tools call ITL and TPOT, against plain arithmetic."""

import pytest
from observe.runs import every_ending, timeline

from course.lab.tool_metrics import TOOL_METRICS, compare_tools
from course.summary import Distribution
from minillm.core.request import FinishReason
from minillm.core.timeline import Timeline
from minillm.observe.records import RequestRecord


def by_name(records: list[RequestRecord]) -> dict[tuple[str, str], Distribution]:
    return {(metric.tool, metric.name): found for metric, found in compare_tools(records).items()}


def test_tools_disagree_about_the_same_stamps():
    """Queue 1 s, prefill 2 s, first token 0.5 s, then gaps of 0.25, 0.75 and 0.25 s, and 0.125 s of streaming."""
    record = RequestRecord("r", 9, 0, FinishReason.STOP, timeline(0.0, 1.0, 2.0, 0.5, 0.25, 0.75, 0.25, 0.125))
    found = by_name([record])
    expected = {
        ("minillm", "ITL"): 1.25 / 3,
        ("minillm", "TPOT"): 1.375 / 3,
        ("vLLM bench", "ITL"): 1.25 / 3,
        ("vLLM bench", "TPOT"): 1.25 / 3,
        ("AIPerf", "ITL"): 1.25 / 3,
        ("AIPerf", "ICL"): 1.25 / 3,
        ("GuideLLM", "ITL"): 1.25 / 3,
        ("GuideLLM", "TPOT"): 4.75 / 4,
        ("LLMPerf", "ITL"): 4.75 / 4,
        ("MLPerf", "TPOT"): 1.375 / 3,
    }
    assert {name: each.mean for name, each in found.items()} == pytest.approx(expected)
    assert found["AIPerf", "ICL"].p99 > found["AIPerf", "ITL"].p99, "gaps and averages"
    assert all(len(metric.source) > 10 for metric in TOOL_METRICS)


def test_coalesced_chunks_split_gaps_from_averages():
    """Eight tokens in two deliveries: gaps are per delivery, TPOT is per token. Compact engines have labelled
    one as the other."""
    chunked = Timeline(0.0, 0.0, 1.0)
    chunked.deliver(1.0, 4)
    chunked.deliver(1.7, 4)
    chunked.finished = 1.7
    found = by_name([RequestRecord("r", 9, 0, FinishReason.STOP, chunked)])
    assert found["vLLM bench", "ITL"].mean == pytest.approx(0.7)
    assert found["vLLM bench", "TPOT"].mean == pytest.approx(0.1)


def test_tool_metrics_survive_every_ending():
    for metric in TOOL_METRICS:
        for record in every_ending():
            assert all(sample >= 0 for sample in metric.samples(record.timeline))
