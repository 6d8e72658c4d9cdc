"""What a server says of itself at /metrics: vLLM's names, SGLang's, ours.

A client sees only that a first token took long. The server's histograms say how much of that was queue. They
count since the server started, so they are read before and after, and subtracted.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from statistics import fmean

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from course.loadgen.client import Client
from course.loadgen.errors import EndpointError
from minillm.core.brief import brief

PREFIXES = ("minillm", "vllm", "sglang")
HISTOGRAMS = {
    "request_queue_time_seconds": "queue",
    "queue_time_seconds": "queue",
    "request_prefill_time_seconds": "prefill",
    "time_to_first_token_seconds": "ttft",
    "request_first_token_time_seconds": "first_token",
    "request_decode_time_seconds": "decode",
    "request_stream_time_seconds": "stream",
    "inter_token_latency_seconds": "itl",
    "e2e_request_latency_seconds": "e2e",
}
"""Name after the prefix, and what it measures. vLLM and minillm say request_queue..., SGLang queue_time_seconds.
First token and stream are told by minillm only."""
GAUGES = {
    "num_requests_running": "running",
    "num_running_reqs": "running",
    "num_requests_waiting": "waiting",
    "num_queue_reqs": "waiting",
    "kv_cache_usage_perc": "kv_usage",
    "gpu_cache_usage_perc": "kv_usage",
    "token_usage": "kv_usage",
}
"""Requests running and waiting, and the share of the KV cache in use; now. A server may say the same under an old name
too: the first one here counts."""
COUNTERS = {
    "prefix_cache_queries": "prefix_queries",
    "prefix_cache_hits": "prefix_hits",
    "cached_tokens": "prefix_hits",
    "prompt_tokens": "prefix_queries",
    "num_preemptions": "preemptions",
    "num_retracted_requests": "preemptions",
}
"""Tokens looked up in the prefix cache, tokens found there, requests that lost their KV. Of two names the first counts;
SGLang, which has the second ones, looks up every prompt token."""


@dataclass(slots=True)
class Histogram:
    """Samples by bucket. Seconds."""

    counts: dict[float, float] = field(default_factory=dict)
    """Upper bound of a bucket -> samples up to there (cumulative, as Prometheus has them)."""
    count: float = 0.0
    sum: float = 0.0

    @property
    def mean(self) -> float | None:
        return self.sum / self.count if self.count > 0 else None

    def add(self, sample: Sample) -> None:
        """Count one sample of the page: a bucket, the sum or the count, of one engine or model."""
        if sample.name.endswith("_bucket"):
            bound = float(sample.labels["le"])
            self.counts[bound] = self.counts.get(bound, 0.0) + sample.value
        elif sample.name.endswith("_sum"):
            self.sum += sample.value
        elif sample.name.endswith("_count"):
            self.count += sample.value

    def since(self, before: "Histogram") -> "Histogram":
        """The samples that came after `before` was read."""
        counts = {bound: count - before.counts.get(bound, 0.0) for bound, count in self.counts.items()}
        return Histogram(counts, self.count - before.count, self.sum - before.sum)

    def bucket(self, share: float) -> tuple[float, float] | None:
        """The bounds between which a quantile lies: all that a histogram knows about it. None without samples."""
        if self.count <= 0:
            return None
        low = 0.0
        for bound in sorted(self.counts):
            if self.counts[bound] >= share * self.count:
                return low, bound
            low = bound
        return low, float("inf")


@dataclass(slots=True)
class Scrape:
    """One reading of /metrics, summed over engines and models; of kv_usage, a share, the mean."""

    server: str
    """A prefix: which server it is."""
    histograms: dict[str, Histogram] = field(default_factory=dict)
    gauges: dict[str, float] = field(default_factory=dict)
    counters: dict[str, float] = field(default_factory=dict)
    block_size: int = 0
    """Tokens in a KV block; 0 = it doesn't say."""

    __repr__ = brief

    def counted_since(self, before: "Scrape") -> dict[str, float]:
        """What was counted between two readings; only what the server counts."""
        return {name: value - before.counters.get(name, 0.0) for name, value in self.counters.items()}

    def since(self, before: "Scrape") -> dict[str, Histogram]:
        """The samples between two readings, by what they measure; only what the server measures."""
        return {
            name: histogram.since(before.histograms.get(name, Histogram()))
            for name, histogram in self.histograms.items()
        }


def read_metrics(text: str) -> Scrape | None:
    """What a /metrics page says about requests; None if it is not one of a server we know."""
    samples: defaultdict[str, list[Sample]] = defaultdict(list)
    for family in text_string_to_metric_families(text):  # a router's page may have one a replica
        samples[family.name] += family.samples
    names = (*HISTOGRAMS, *GAUGES)
    server = next((prefix for prefix in PREFIXES if any(f"{prefix}:{name}" in samples for name in names)), None)
    if server is None:
        return None
    scrape = Scrape(server)
    for name, measures in HISTOGRAMS.items():
        for sample in samples.get(f"{server}:{name}", []):
            scrape.histograms.setdefault(measures, Histogram()).add(sample)
    for name, measures in GAUGES.items():
        values = [sample.value for sample in samples.get(f"{server}:{name}", [])]
        if values and measures not in scrape.gauges:
            scrape.gauges[measures] = fmean(values) if measures == "kv_usage" else sum(values)
    for name, counts in COUNTERS.items():
        values = [s.value for s in samples.get(f"{server}:{name}", []) if s.name.endswith("_total")]
        if values:
            scrape.counters.setdefault(counts, sum(values))
    scrape.block_size = next(iter(_block_sizes(samples, server)), 0)
    return scrape


def _block_sizes(samples: Mapping[str, list[Sample]], server: str) -> Iterator[int]:
    """vLLM and minillm have it as a label, SGLang as a gauge."""
    for sample in samples.get(f"{server}:cache_config_info", []):
        if (size := sample.labels.get("block_size", "")).isdecimal():
            yield int(size)
    for sample in samples.get(f"{server}:page_size", []):
        yield int(sample.value)


async def scrape(client: Client) -> Scrape | None:
    """Read the endpoint's /metrics; None when it has none that we know."""
    try:
        status, text = await client.get("/metrics")
        return read_metrics(text) if status == 200 else None
    except (EndpointError, ValueError):
        return None
