"""The next step put together while this one runs: same outputs, nothing lost, whatever happens in between."""

import itertools
import random
from collections.abc import Sequence
from functools import partial

import fake_runner
from fake_runner import drain, expected_output, greedy
from integrity import check_engine

from minillm import Engine, EngineConfig, SamplingParams
from minillm.core.request import Draft, FinishReason
from minillm.model.loader import LoadedModel
from minillm.speculation.base import DraftRequest, Proposer

make_engine = partial(fake_runner.make_engine, async_scheduling=True)


def test_a_step_is_launched_before_the_last_one_is_waited_for() -> None:
    engine = make_engine()
    engine.add_request([1, 2, 3], greedy(3))
    assert engine.step() == [], "the prompt was launched, and nothing has been waited for"
    [output] = engine.step()
    assert output.token_ids == expected_output([1, 2, 3], 3)[:1]
    assert len(engine.runner.batches) == 2, "the second token is already on its way"
    assert drain(engine)[output.request_id].token_ids == expected_output([1, 2, 3], 3)


def test_abort_while_a_step_is_in_flight_frees_everything_and_forgets_the_token() -> None:
    engine = make_engine()
    engine.add_request([1, 2, 3], greedy(50), request_id="a")
    engine.add_request([4, 5, 6], greedy(5), request_id="b")
    for _ in range(3):
        engine.step()
    seen = len(engine.abort("a").token_ids)
    engine.add_request([7, 8], greedy(3), request_id="a")
    check_engine(engine)
    outputs = drain(engine)
    assert seen == 2
    assert outputs["a"].token_ids == expected_output([7, 8], 3), "the old one's token is not the new one's"
    assert outputs["b"].token_ids == expected_output([4, 5, 6], 5)


def test_after_the_last_abort_no_step_is_left_in_flight() -> None:
    engine = make_engine()
    engine.add_request([1, 2, 3], greedy(50), request_id="a")
    engine.step()
    engine.abort("a")
    assert not engine.core._in_flight
    engine.clock.advance(1000.0)
    engine.add_request([4, 5], greedy(2), request_id="b")
    assert drain(engine)["b"].token_ids == expected_output([4, 5], 2)
    assert all(record.end - record.start < 100 for record in engine.steps)


def test_one_failure_does_not_go_on_and_on() -> None:
    """More requests than seats: those admitted after the failure are served."""
    engine = make_engine(max_num_seqs=2)
    for number in range(8):
        engine.add_request([number, 2, 3], greedy(6), request_id=str(number))
    engine.step()
    engine.core._in_flight[0].launched = Broken()
    outputs = drain(engine)
    failed = [name for name, output in outputs.items() if output.finish_reason is FinishReason.ERROR]
    assert set(failed) == {"0", "1"}
    assert all(outputs[str(n)].token_ids == expected_output([n, 2, 3], 6) for n in range(2, 8))


def test_time_lost_to_a_preemption_is_booked_when_it_is_over() -> None:
    engine = make_engine(8, max_num_batched_tokens=32)
    for number in range(2):
        engine.add_request([number] * 12, greedy(12), request_id=str(number))
    outputs = drain(engine)
    assert engine.scheduler.num_preemptions > 0 and engine.core.log.num_recomputed_tokens > 0
    lost = [output.timeline.lost.get("preempted", 0.0) for output in outputs.values()]
    assert max(lost) > 0.02, "several steps of 10 ms went by"


def test_a_step_that_fails_on_the_device_takes_what_was_built_on_it_along() -> None:
    engine = make_engine()
    engine.add_request([1, 2, 3], greedy(20), request_id="a")
    engine.step()
    engine.add_request([4, 5], greedy(20), request_id="b")
    engine.core._in_flight[0].launched = Broken()
    outputs = drain(engine)
    assert [outputs[name].finish_reason for name in "ab"] == [FinishReason.ERROR] * 2
    assert "illegal memory access" in outputs["b"].completions[0].error


class Broken:
    def wait(self) -> None:
        raise RuntimeError("illegal memory access")


class Recalling(Proposer):
    """Drafts what the requests have said before, but three times in ten another token."""

    def __init__(self, said: dict[str, list[int]]) -> None:
        self.said, self.rng = said, random.Random(0)

    def propose(self, wanted: Sequence[DraftRequest]) -> list[Draft]:
        tokens = [self.said[request.request_id][request.num_output_tokens :][:k] for request, k in wanted]
        return [Draft([token ^ (self.rng.random() < 0.3) for token in some]) for some in tokens]


def test_a_real_model_says_the_same_ahead_in_turn_and_with_drafts(model: LoadedModel) -> None:
    """Every way of sampling: seeds, penalties, logprobs and min_tokens must not notice that a token is pending, or that
    a guess is checked."""
    even = list(range(0, model.model_config.vocab_size, 2))
    ways = [
        dict(temperature=0),
        dict(temperature=1.0, seed=3),
        dict(temperature=0.8, top_p=0.9, top_k=40, seed=4, logprobs=2),
        dict(temperature=0, repetition_penalty=1.3),
        dict(temperature=0.7, frequency_penalty=0.5, seed=5, logprobs=0),
        dict(temperature=0, logprobs=3),
        dict(temperature=0, min_tokens=6, stop_token_ids=even, logprobs=1),
        dict(temperature=0.9, seed=6, min_tokens=6, stop_token_ids=even),
    ]
    results = []
    always = {"method": "ngram", "k": 3, "adaptive_k": False, "min_output_tokens": 1, "acceptance_floor": 0}
    for fields in ({"async_scheduling": False}, {"async_scheduling": True}, {"speculative": always}):
        config = EngineConfig(model=model.name, dtype="float32", device="cpu", num_kv_blocks=12, block_size=4, **fields)
        said = {name: tokens for name, (tokens, *_) in results[0].items()} if results else {}
        engine = Engine(config, model, proposer=Recalling(said) if "speculative" in fields else None)
        for number, way in enumerate(ways):
            params = SamplingParams(max_tokens=12, ignore_eos=True, **way)
            engine.add_request(list(range(20, 26 + number)), params, request_id=str(number), stream=False)
        outputs = drain(engine)
        assert engine.scheduler.num_preemptions > 0
        results.append({name: (output.token_ids, output.text, output.logprobs) for name, output in outputs.items()})
    drafts = [share for step in engine.steps for share in step.shares if share.num_drafts]
    assert 10 < sum(share.num_accepted for share in drafts) < sum(share.num_drafts for share in drafts) - 10
    for (name, (tokens, text, logprobs)), other in itertools.product(results[0].items(), results[1:]):
        assert other[name][:2] == (tokens, text)
        assert (logprobs is None) == (other[name][2] is None)
        assert [item.token_id for item in logprobs or []] == [item.token_id for item in other[name][2] or []]
    for name in ("6", "7"):
        tokens = results[0][name][0]
        ends = [place for place, token in enumerate(tokens) if token % 2 == 0]
        assert ends in ([], [len(tokens) - 1]) and len(tokens) > 6, "the first that may end it does"
    assert ends, "one of them has such a token"
