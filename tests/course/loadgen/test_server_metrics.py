"""Before and after, subtracted: what the server's histograms gained."""

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from course.loadgen.server_metrics import read_metrics

BUCKETS = (0.01, 0.1, 1.0)


def page(registry: CollectorRegistry) -> str:
    return generate_latest(registry).decode()


def test_only_what_came_in_between_counts_and_engines_are_summed() -> None:
    registry = CollectorRegistry()
    queue = Histogram("vllm:request_queue_time_seconds", "", ["engine"], registry=registry, buckets=BUCKETS)
    queue.labels("0").observe(5.0)
    before = read_metrics(page(registry))
    for engine, seconds in (("0", 0.05), ("1", 0.06), ("1", 0.5)):
        queue.labels(engine).observe(seconds)
    gained = read_metrics(page(registry)).since(before)["queue"]
    assert gained.count == 3
    assert gained.mean == pytest.approx(0.61 / 3)
    assert gained.bucket(0.5) == (0.01, 0.1)
    assert gained.bucket(0.99) == (0.1, 1.0)


def test_a_routers_page_with_a_family_for_each_replica_is_summed() -> None:
    pages = []
    for seconds in (0.05, 0.5):
        registry = CollectorRegistry()
        queue = Histogram("vllm:request_queue_time_seconds", "", ["engine"], registry=registry, buckets=BUCKETS)
        queue.labels(str(seconds)).observe(seconds)
        pages.append(page(registry))
    found = read_metrics("".join(pages))
    assert found is not None and found.histograms["queue"].count == 2


def test_a_quantile_beyond_the_last_bound_has_no_upper_one() -> None:
    registry = CollectorRegistry()
    Histogram("minillm:time_to_first_token_seconds", "", registry=registry, buckets=BUCKETS).observe(9.0)
    assert read_metrics(page(registry)).histograms["ttft"].bucket(0.5) == (1.0, float("inf"))


@pytest.mark.parametrize(
    ("name", "server", "measures"),
    [
        ("vllm:request_queue_time_seconds", "vllm", "queue"),
        ("sglang:queue_time_seconds", "sglang", "queue"),
        ("minillm:request_prefill_time_seconds", "minillm", "prefill"),
        ("sglang:e2e_request_latency_seconds", "sglang", "e2e"),
    ],
)
def test_names_of_three_servers(name: str, server: str, measures: str) -> None:
    registry = CollectorRegistry()
    Histogram(name, "", registry=registry, buckets=BUCKETS).observe(0.05)
    scrape = read_metrics(page(registry))
    assert scrape.server == server
    assert scrape.histograms[measures].count == 1


def test_gauges() -> None:
    registry = CollectorRegistry()
    Gauge("sglang:num_queue_reqs", "", registry=registry).set(3)
    Gauge("sglang:token_usage", "", registry=registry).set(0.25)
    assert read_metrics(page(registry)).gauges == {"waiting": 3.0, "kv_usage": 0.25}


def test_a_share_of_several_engines_is_their_mean_and_its_old_name_adds_nothing() -> None:
    registry = CollectorRegistry()
    running = Gauge("vllm:num_requests_running", "", ["engine"], registry=registry)
    for name in ("vllm:gpu_cache_usage_perc", "vllm:kv_cache_usage_perc"):
        usage = Gauge(name, "", ["engine"], registry=registry)
        for engine, share in (("0", 0.5), ("1", 1.0)):
            usage.labels(engine).set(share)
            running.labels(engine).set(4)
    assert read_metrics(page(registry)).gauges == {"running": 8.0, "kv_usage": 0.75}


@pytest.mark.parametrize(
    ("queries", "hits"),
    [
        ("vllm:prefix_cache_queries", "vllm:prefix_cache_hits"),
        ("minillm:prefix_cache_queries", "minillm:prefix_cache_hits"),
        ("sglang:prompt_tokens", "sglang:cached_tokens"),
    ],
)
def test_what_the_prefix_cache_found_between_two_readings(queries: str, hits: str) -> None:
    registry = CollectorRegistry()
    Gauge(f"{queries.partition(':')[0]}:token_usage", "", registry=registry)
    asked, found = (Counter(name, "", ["source"], registry=registry).labels("device") for name in (queries, hits))
    before = read_metrics(page(registry))
    asked.inc(40)
    found.inc(30)
    assert read_metrics(page(registry)).counted_since(before) == {"prefix_queries": 40, "prefix_hits": 30}


def test_the_size_of_a_kv_block() -> None:
    registry = CollectorRegistry()
    Gauge("vllm:num_requests_running", "", registry=registry)
    assert read_metrics(page(registry)).block_size == 0
    Gauge("vllm:cache_config_info", "", ["block_size"], registry=registry).labels("16").set(1)
    assert read_metrics(page(registry)).block_size == 16


def test_a_page_of_something_else_is_none() -> None:
    assert read_metrics("# TYPE python_gc_total counter\npython_gc_total 3\n") is None
