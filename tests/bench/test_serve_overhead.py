"""`minillm bench serve-overhead`: the same work with and without the server, compared in pairs."""

from collections.abc import Callable
from typing import Any

import pytest
from fake_endpoint import FakeEndpoint, Reply

from minillm.bench.errors import BenchmarkError
from minillm.bench.serve_overhead import Round, check_same_work, make_requests, own_server, run_served, summarize
from minillm.policies.config import EngineConfig


def taken(gap: float, seconds: float = 1.0, **fields: Any) -> Round:
    base: dict[str, Any] = {"prompt_tokens": 8, "output_tokens": 10, "deliveries": 10}
    return Round(**{"gaps": [gap] * 9, "seconds": seconds, **base, **fields})


def test_ratios_are_formed_within_a_round() -> None:
    """The machine slows down by half from round to round; the server adds 10% in each."""
    pairs = [(taken(gap, seconds=gap), taken(1.1 * gap, seconds=1.25 * gap)) for gap in (1.0, 1.5, 2.25)]
    result = summarize(4, pairs)
    for value in (result.ratio.itl_p50.low, result.ratio.itl_p50.high, result.ratio.itl_p99.median):
        assert value == pytest.approx(1.1)
    assert result.ratio.tokens_per_s.high == pytest.approx(0.8)
    assert result.alone.itl_p50.median == 1.5
    assert result.served.tokens_per_s.low == pytest.approx(10 / (1.25 * 2.25))


def test_merged_deliveries_show() -> None:
    result = summarize(4, [(taken(1.0), taken(2.0, deliveries=5))])
    assert (result.alone.tokens_per_delivery.median, result.served.tokens_per_delivery.median) == (1.0, 2.0)


@pytest.mark.parametrize("other", [{"prompt_tokens": 9}, {"output_tokens": 9}], ids=str)
def test_other_work_is_no_comparison(other: dict[str, int]) -> None:
    check_same_work(taken(1.0), taken(2.0))
    with pytest.raises(BenchmarkError, match="not the same work"):
        check_same_work(taken(1.0), taken(1.0, **other))


def test_a_stream_that_fails_ends_the_benchmark() -> None:
    replies = {1: Reply(status=503)}
    said = pytest.raises(BenchmarkError, match=r"1 of 3 streams were not answered \(5xx server error: 503")
    with FakeEndpoint(lambda number, body: replies.get(number, Reply())) as fake, said:
        run_served(fake.url, make_requests(3, 4, 4, seed=0))


def test_a_server_that_does_not_start_is_said() -> None:
    said = pytest.raises(BenchmarkError, match="ended with status")
    with said, own_server(EngineConfig(model="no-such-model")):
        pass


def test_both_sides_are_measured_on_the_same_engine(bench_json: Callable[..., Any]) -> None:
    report = bench_json("serve-overhead", "--streams", "3", "--output-tokens", "9", "--set", "block_size=32")
    [result] = report["results"]
    assert result["streams"] == 3
    for side in (result["alone"], result["served"]):
        assert side["itl_p50"]["median"] > 0
        assert side["tokens_per_s"]["median"] > 0
        assert side["tokens_per_delivery"]["median"] >= 1
    assert result["ratio"]["itl_p50"]["median"] == pytest.approx(
        result["served"]["itl_p50"]["median"] / result["alone"]["itl_p50"]["median"]
    )
    engine = report["settings"]["engine"]
    assert (engine["max_num_seqs"], engine["block_size"], engine["enable_prefix_caching"]) == (3, 32, False)
