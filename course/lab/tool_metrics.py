"""What other tools call ITL and TPOT, computed from the same stamps.

The words are the same and the numbers are not. They differ in three ways: whether the wait for the
first token is part of it, whether a request gives one average or all its gaps, and where its time ends
(the last chunk with text, or the end of the response). Each entry names the public source it was read from.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from course.summary import Distribution
from minillm.core.timeline import Timeline
from minillm.observe.records import Recordable, as_records


def gaps(timeline: Timeline) -> list[float]:
    """each gap between deliveries, raw: a delivery of several tokens makes one gap, not several"""
    return timeline.itl


def decode_average(timeline: Timeline) -> list[float]:
    """(last token - first token) / (n - 1)"""
    if timeline.num_tokens < 2:
        return []
    assert timeline.first_token is not None and timeline.last_token is not None
    return [(timeline.last_token - timeline.first_token) / (timeline.num_tokens - 1)]


def decode_average_to_end(timeline: Timeline) -> list[float]:
    """(end of the response - first token) / (n - 1): streaming the last byte counts."""
    return [] if timeline.tpot is None else [timeline.tpot]


def whole_average(timeline: Timeline) -> list[float]:
    """(last token - arrival) / n: queueing and prefill are spread over the output tokens."""
    if timeline.num_tokens == 0:
        return []
    assert timeline.last_token is not None
    return [(timeline.last_token - timeline.arrival) / timeline.num_tokens]


@dataclass(frozen=True, slots=True)
class ToolMetric:
    """One tool's metric: `samples` gives a request's samples, in seconds; all requests' are pooled."""

    tool: str
    name: str
    samples: Callable[[Timeline], list[float]]
    source: str

    @property
    def definition(self) -> str:
        return (self.samples.__doc__ or "").strip()


TOOL_METRICS = (
    ToolMetric("minillm", "ITL", gaps, "minillm/core/timeline.py"),
    ToolMetric("minillm", "TPOT", decode_average_to_end, "minillm/core/timeline.py"),
    ToolMetric("vLLM bench", "ITL", gaps, "vllm-project/vllm: vllm/benchmarks/serve.py, calculate_metrics"),
    ToolMetric("vLLM bench", "TPOT", decode_average, "vllm-project/vllm: vllm/benchmarks/serve.py, calculate_metrics"),
    ToolMetric(
        "AIPerf", "ITL", decode_average, "ai-dynamo/aiperf: src/aiperf/metrics/types/inter_token_latency_metric.py"
    ),
    ToolMetric("AIPerf", "ICL", gaps, "ai-dynamo/aiperf: src/aiperf/metrics/types/inter_chunk_latency_metric.py"),
    ToolMetric(
        "GuideLLM",
        "ITL",
        decode_average,
        "vllm-project/guidellm: schemas/base/request_stats.py, inter_token_latency_ms",
    ),
    ToolMetric(
        "GuideLLM",
        "TPOT",
        whole_average,
        "vllm-project/guidellm: schemas/base/request_stats.py, time_per_output_token_ms",
    ),
    ToolMetric(
        "LLMPerf",
        "ITL",
        whole_average,
        "ray-project/llmperf: openai_chat_completions_client.py sums the gaps, TTFT being the first; "
        "token_benchmark_ray.py divides by n",
    ),
    ToolMetric(
        "MLPerf", "TPOT", decode_average_to_end, "mlcommons/inference: loadgen, (latency - first token)/(n - 1)"
    ),
)


def compare_tools(requests: Iterable[Recordable]) -> dict[ToolMetric, Distribution]:
    """What each tool would print about these completed requests, in seconds."""
    timelines = [record.timeline for record in as_records(requests) if record.completed]
    return {
        metric: Distribution.of([sample for timeline in timelines for sample in metric.samples(timeline)])
        for metric in TOOL_METRICS
    }
