"""The engine without a model: errors at the door, endings, records, and that trouble harms only its owner."""

import math

import pytest
from fake_runner import drain, expected_output, greedy, make_engine

from minillm.core.errors import (
    ConfigError,
    DuplicateRequestError,
    InvalidSamplingParamsError,
    PromptTooLongError,
    RequestError,
)
from minillm.core.params import SamplingParams
from minillm.frontend.errors import EmptyPromptError, InvalidPromptError
from minillm.policies.config import EngineConfig

# ------------------------------------------------------------------------ bad input, at the door


@pytest.mark.parametrize(
    ("prompt", "error", "says"),
    [
        ([], EmptyPromptError, "send at least one"),
        ("", InvalidPromptError, "no tokenizer"),
        ([1, -2], InvalidPromptError, "-2"),
        ([1, 2.5], InvalidPromptError, "token ids"),
        ([True, False], InvalidPromptError, "token ids"),
        (b"hello", InvalidPromptError, "token ids"),
        (None, InvalidPromptError, "token ids"),
        (42, InvalidPromptError, "token ids"),
        (list(range(128)), PromptTooLongError, "max_model_len is 128"),
    ],
)
def test_a_bad_prompt_is_refused_and_the_others_run_on(prompt, error, says: str):
    engine = make_engine()
    engine.add_request([1, 2, 3], greedy(), request_id="good")
    engine.step()
    with pytest.raises(error, match=says):
        engine.add_request(prompt, greedy(), request_id="bad")
    assert drain(engine)["good"].token_ids == expected_output([1, 2, 3], 4)


@pytest.mark.parametrize("salt", ["\ud800", None, 5, b"salt"])
def test_a_bad_cache_salt_is_refused_and_the_others_run_on(salt: object):
    """Its prompt fills a block: a step would hash it."""
    engine = make_engine(enable_prefix_caching=True)
    engine.add_request([1, 2, 3], greedy(), request_id="good", cache_salt="sält")
    with pytest.raises(RequestError, match="cache_salt is Unicode text"):
        engine.add_request(list(range(40)), greedy(), request_id="bad", cache_salt=salt)
    assert drain(engine)["good"].token_ids == expected_output([1, 2, 3], 4)


def test_a_live_id_is_refused_and_a_finished_one_can_be_used_again():
    # Regression: compact engines lose one of the two results.
    engine = make_engine()
    engine.add_request([1], greedy(), request_id="a")
    with pytest.raises(DuplicateRequestError, match="'a'"):
        engine.add_request([2], greedy(), request_id="a")
    assert drain(engine)["a"].token_ids == expected_output([1], 4)
    engine.add_request([2], greedy(), request_id="a")
    assert drain(engine)["a"].token_ids == expected_output([2], 4)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"temperature": -1}, "temperature"),
        ({"temperature": math.nan}, "temperature"),
        ({"stop": 1.5}, "stop"),
        ({"stop": 0.0}, "stop"),
        ({"stop": {"a": 1}}, "stop"),
        ({"stop": "\udc00"}, "stop: .*surrogate"),
    ],
)
def test_bad_sampling_params(fields: dict, says: str):
    with pytest.raises(InvalidSamplingParamsError, match=says):
        SamplingParams(**fields)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"max_num_seq": 3}, "did you mean 'max_num_seqs'"),
        ({"batching": "dynamic"}, "batching"),
        ({"queue_timeout_s": math.nan}, "queue_timeout_s"),
        ({"max_num_seqs": 64, "max_num_batched_tokens": 32}, "at least max_num_seqs"),
        ({"num_kv_blocks": 4, "kv_cache_memory_gb": 1.0}, "give one"),
        ({"int4_group_size": 64, "quantization": "int8"}, "only with quantization=int4"),
        ({"swap_space_gb": 2.0}, "only with preemption=swap"),
        ({"two_lane_threshold": 64}, "only with scheduling_order=two_lane"),
        ({"prefix_ttl_s": 64}, "only with prefix_eviction=ttl"),
        ({"prefix_eviction": "fifo", "enable_prefix_caching": False}, "only with enable_prefix_caching"),
        ({"long_prefill_token_threshold": 64, "enable_chunked_prefill": False}, "only with enable_chunked_prefill"),
    ],
)
def test_bad_config(fields: dict, says: str):
    with pytest.raises(ConfigError, match=says):
        EngineConfig(**fields)


def test_config_is_frozen_and_replace_validates():
    config = EngineConfig(max_num_seqs=4)
    with pytest.raises(Exception, match="frozen"):
        config.max_num_seqs = 5
    assert config.replace(block_size=8).max_num_seqs == 4
    with pytest.raises(ConfigError):
        config.replace(block_size=0)


def test_a_config_can_be_built_from_all_its_fields_again():
    """What is refused is a value that nothing reads, not the mention of a default."""
    config = EngineConfig(speculative={"method": "ngram"})
    assert EngineConfig(**config.model_dump()) == config


# ------------------------------------------------------------------------ endings


def test_n_outputs_share_the_prompt():
    engine = make_engine()
    engine.add_request(list(range(9)), greedy(3, n=3), request_id="a")
    output = drain(engine)["a"]
    assert [c.token_ids for c in output.completions] == [expected_output(list(range(9)), 3)] * 3
    assert engine.scheduler.prefix_hits == 16
    assert len({id(c.timeline) for c in output.completions}) == 3


# ------------------------------------------------------------------------ records


def test_phases_tile_arrival_to_last_byte():
    engine = make_engine(max_num_seqs=1)
    engine.add_request(list(range(30)), greedy(5), request_id="a")
    engine.add_request([1], greedy(1), request_id="b")
    outputs = drain(engine)
    a, b = outputs["a"].timeline, outputs["b"].timeline
    # Two prefill steps of 16 and 14 tokens at 10 ms + 0.1 ms a token; then 1 ms to sample (the fake runner's prices).
    assert a.phases()["prefill"] == pytest.approx(0.010 + 0.0016 + 0.001 + 0.010 + 0.0014)
    assert a.phases()["first_token"] == pytest.approx(0.001)
    assert a.phases()["decode"] == pytest.approx(4 * 0.0111)
    assert b.phases()["queue"] == pytest.approx(a.e2e)
    assert (a.ttft, len(a.itl), a.num_tokens) == (pytest.approx(sum(list(a.phases().values())[:3])), 4, 5)
    assert a.tpot == pytest.approx(0.0111) and b.tpot is None
    for timeline in (a, b):
        assert sum(timeline.phases().values()) == pytest.approx(timeline.e2e)


def test_the_stream_phase_ends_when_the_transport_says_so():
    engine = make_engine()
    engine.add_request([1], greedy(2), request_id="a")
    timeline = drain(engine)["a"].timeline
    before = timeline.e2e
    timeline.accept(engine.clock.now() + 0.5)
    assert timeline.phases()["stream"] == pytest.approx(0.5)
    assert timeline.e2e == pytest.approx(before + 0.5)


def test_steps_record_who_took_part_and_where_time_went():
    engine = make_engine()
    engine.add_request(list(range(20)), greedy(2), request_id="a")
    drain(engine)
    assert [[(s.request_id, s.num_tokens, s.is_prefill) for s in r.shares] for r in engine.steps] == [
        [("a", 16, True)],
        [("a", 4, True)],
        [("a", 1, False)],
    ]
    for record in engine.steps:
        assert {"schedule", "build", "forward", "sample", "detokenize"} <= set(record.stages)
        assert sum(record.stages.values()) <= record.end - record.start + 1e-9
        assert 0 <= record.kv_blocks_used <= record.kv_blocks_total == 64


def test_unstreamed_requests_report_only_at_the_end():
    engine = make_engine()
    engine.add_request([1], greedy(5), request_id="a", stream=False)
    engine.add_request([2], greedy(5), request_id="b")
    seen = {"a": 0, "b": 0}
    while engine.has_unfinished:
        for output in engine.step():
            seen[output.request_id] += 1
    assert seen == {"a": 1, "b": 5}
