"""The engine without a model: errors at the door, endings, records, and that trouble harms only its owner."""

import math

import pytest
from fake_runner import drain, expected_output, greedy, make_engine

from minillm.core.errors import (
    ConfigError,
    DuplicateRequestError,
    InvalidSamplingParamsError,
    PromptTooLongError,
    QueueFullError,
)
from minillm.core.params import SamplingParams
from minillm.core.request import FinishReason
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


def test_a_prompt_over_the_kv_pool_is_refused():
    # Regression: compact engines assert in the allocator and lose every request.
    engine = make_engine(4)
    with pytest.raises(PromptTooLongError, match="4 blocks of 4"):
        engine.add_request(list(range(16)))
    engine.add_request(list(range(15)), greedy(), request_id="fits")
    assert drain(engine)["fits"].token_ids == expected_output(list(range(15)), 1)


def test_a_prompt_over_the_admission_limit_is_refused():
    engine = make_engine(max_prompt_tokens=8)
    with pytest.raises(PromptTooLongError, match="max_prompt_tokens is 8"):
        engine.add_request(list(range(9)))


def test_a_full_queue_refuses():
    engine = make_engine(max_queue_len=2)
    for i in range(2):
        engine.add_request([i])
    with pytest.raises(QueueFullError, match="max_queue_len is 2"):
        engine.add_request([3])
    engine.step()
    engine.add_request([3])


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


@pytest.mark.parametrize("num_steps", range(8))
@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_abort_at_any_moment_frees_everything(num_steps: int, preemption: str):
    engine = make_engine(8, 32 if preemption == "swap" else 0, preemption=preemption)
    for i in range(4):
        engine.add_request([10 * i + j for j in range(7)], greedy(12), request_id=f"r{i}")
    for _ in range(num_steps):
        engine.step()
    for request_id in ("r2", "r0"):
        output = engine.abort(request_id)
        assert output.finish_reason is FinishReason.ABORT and output.finished
        engine.check_integrity()
    assert engine.abort("r0") is None and engine.abort("never seen") is None
    outputs = drain(engine)
    for i in (1, 3):
        assert outputs[f"r{i}"].token_ids == expected_output([10 * i + j for j in range(7)], 12)


def test_n_outputs_share_the_prompt():
    engine = make_engine()
    engine.add_request(list(range(9)), greedy(3, n=3), request_id="a")
    output = drain(engine)["a"]
    assert [c.token_ids for c in output.completions] == [expected_output(list(range(9)), 3)] * 3
    assert engine.scheduler.prefix_hits == 16
    assert len({id(c.timeline) for c in output.completions}) == 3


def test_abort_ends_all_n():
    engine = make_engine()
    engine.add_request([1], greedy(30, n=3), request_id="a")
    engine.step()
    assert [c.finish_reason for c in engine.abort("a").completions] == [FinishReason.ABORT] * 3
    assert not engine.has_unfinished


def test_stop_token_ids_end_it():
    expected = expected_output([1, 2], 10)
    engine = make_engine()
    engine.add_request([1, 2], greedy(10, stop_token_ids=expected[4]), request_id="a")
    output = drain(engine)["a"]
    assert output.token_ids == expected[:5] and output.finish_reason is FinishReason.STOP


def test_a_failed_step_loses_no_swapped_request():
    engine = make_engine(8, 32, preemption="swap", enable_prefix_caching=False)
    for i in range(3):
        engine.add_request([10 * i + j for j in range(7)], greedy(12), request_id=f"r{i}")
    while not engine.scheduler.num_preemptions:
        # Fail exactly the step that preempts: its copies to the host are never made.
        engine.runner.fail_next = RuntimeError("boom") if len(engine.runner.batches) == 3 else None
        outputs = {o.request_id: o for o in engine.step()}
    outputs |= drain(engine)
    for i in range(3):
        if outputs[f"r{i}"].finish_reason is FinishReason.LENGTH:
            assert outputs[f"r{i}"].token_ids == expected_output([10 * i + j for j in range(7)], 12)


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


def test_a_request_aborted_while_it_decodes_ends_in_decode_not_in_stream():
    engine = make_engine()
    engine.add_request([1], greedy(30), request_id="a")
    engine.step()
    engine.clock.advance(3.0)
    timeline = engine.abort("a").timeline
    assert timeline.phases()["decode"] == pytest.approx(3.0) and timeline.phases()["stream"] == 0


def test_time_stalled_by_other_peoples_prefill_is_booked():
    engine = make_engine(enable_prefix_caching=False)
    engine.add_request([1, 2], greedy(6), request_id="a")
    engine.step()
    engine.add_request(list(range(30)), greedy(1), request_id="b")
    outputs = drain(engine)
    # A step takes 11 ms and 0.1 ms a token: the prompt's 30 made a's steps 3 ms longer in all.
    assert outputs["a"].timeline.lost["stalled_by_prefill"] == pytest.approx(0.003, rel=0.05)
    assert "stalled_by_prefill" not in outputs["b"].timeline.lost


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
