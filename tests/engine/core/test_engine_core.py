"""EngineCore by itself, on a runner that counts: what it refuses, and what it forgets when a step can't be trusted."""

import pytest
from core.counting import SaveAll, add, make_core, request, run
from integrity import check_core

from minillm.core.engine import REQUEST_HISTORY, EngineCore
from minillm.core.errors import ConfigError, DeviceLostError, DuplicateRequestError, PromptTooLongError
from minillm.core.params import SamplingParams
from minillm.core.request import FinishReason, Request, RequestStatus
from minillm.core.seams import Recompute
from minillm.core.step_log import STEP_HISTORY
from minillm.core.timeline import Timeline
from minillm.policies.config import SpeculativeConfig
from minillm.speculation.base import Proposer
from minillm.speculation.speculator import Speculator


@pytest.mark.parametrize("lookahead", [0, 1])
def test_a_long_prompt_and_decodes_share_steps(lookahead: int) -> None:
    core = make_core(lookahead, max_num_batched_tokens=8, max_num_seqs=4)
    short, long = request("short", 3), request("long", 20)
    core.add(short)
    core.step()
    core.add(long)
    run(core)
    assert short.output_token_ids == [3, 4, 5, 6] and long.output_token_ids == [20, 21, 22, 23]
    assert [share.num_tokens for step in core.log.records for share in step.shares if share.is_prefill] == [3, 7, 7, 6]


def test_what_can_never_be_served_is_refused() -> None:
    core = make_core()
    core.add(request("a"))
    for wrong, error, why in (
        (request("a"), DuplicateRequestError, "'a' is in flight"),
        (request("b", 32), PromptTooLongError, "has 32 tokens"),
    ):
        with pytest.raises(error, match=why):
            core.add(wrong)
    run(core)
    drafts = Speculator(SpeculativeConfig(method="ngram"), Proposer(), core.clock, core.runner, 32, 0.25)
    with pytest.raises(ConfigError, match="lookahead"):
        make_core(1, drafts)
    assert EngineCore(core.scheduler, core.runner).lookahead == 0


def test_a_row_that_fails_after_its_request_has_ended_leaves_no_findable_block() -> None:
    core = make_core(lookahead=1)
    ended, other = request("ended"), request("other", 5)
    add(core, ended, other)
    core.step()
    core.abort("ended")
    assert core.scheduler.kv.pool.index, "its full blocks can be found"
    core.runner.errors = {"ended": "NaN"}
    core.step()
    assert not core.scheduler.kv.find_prefix(Request("again", [8] * 9, SamplingParams(), Timeline(0.0)))
    run(core)
    assert other.finish_reason is FinishReason.LENGTH


def test_starting_over_closes_a_request_that_has_left_the_history() -> None:
    core = make_core()
    old = request("old", max_tokens=20)
    core.add(old)
    core.step()
    assert (core.recent_requests.maxlen, core.log.records.maxlen) == (REQUEST_HISTORY, STEP_HISTORY)
    core.recent_requests.clear()
    core.start_over(make_core().scheduler)
    assert old.finish_reason is FinishReason.ABORT and old.timeline.finished is not None
    assert not core.has_unfinished
    core.add(request("new"))
    run(core)
    assert [record.step_id for record in core.log.records] == [0, 1, 2, 3, 4], "steps are counted on"


def test_a_row_that_fails_takes_only_its_own_blocks_out_of_the_cache() -> None:
    core = make_core()
    add(core, request("wrong"), request("right", 9))
    core.runner.errors = {"wrong": "NaN"}
    core.step()
    again = [Request("again", [token] * 9, SamplingParams(), Timeline(0.0)) for token in (8, 9)]
    assert [len(core.scheduler.kv.find_prefix(each)) for each in again] == [0, 2]
    run(core)


def test_a_request_preempted_again_and_again_is_counted_each_time_and_timed_from_the_first() -> None:
    core = make_core(enable_prefix_caching=False, long_prefill_token_threshold=4)
    first, last = request("first", 13, 14), request("last", 14, 8)
    add(core, first, last)
    since = set()
    while core.has_unfinished:
        core.step()
        if last.status is RequestStatus.PREEMPTED:
            assert last.num_computed_tokens == 0 and not core.scheduler.kv.tables.keys() & {"last"}
        since |= {last.preempted_at}
        assert last.preempted_at is None or last.num_computed_tokens < last.recompute_until, "it has caught up"
    assert last.num_preemptions == core.scheduler.num_preemptions == sum(len(r.preempted) for r in core.log.records)
    assert last.num_preemptions > 1 and len(since) == 2, "None, and one moment"
    assert "draft" not in core.log.records[-1].stages


def test_a_prompt_without_blocks_for_its_next_chunk_waits_again_from_then_on() -> None:
    core = make_core(enable_prefix_caching=False, long_prefill_token_threshold=4)
    first, last = request("first", 20, 1), request("last", 19, 1)
    add(core, first, last)
    for _ in range(5):
        core.step()
    assert last.status is RequestStatus.PREEMPTED and last.preempted_at == core.log.records[-1].start == 4.0
    run(core)


def outgrowing(core: EngineCore) -> tuple[Request, Request]:
    """After one step all 8 blocks are full, `ends` waits for its last token, and `grows` wants a ninth block."""
    ends, grows = request("ends", 15, 1), request("grows", 16, 4)
    add(core, ends, grows)
    core.step()
    return ends, grows


@pytest.mark.parametrize("error", [None, RuntimeError("lost")])
def test_a_step_may_only_copy_blocks(error: RuntimeError | None) -> None:
    policy = SaveAll()
    core = make_core(1, preemption=policy)
    core.runner.copy_raises = error
    ends, grows = outgrowing(core)
    assert core.step() == [ends, grows], "from the step before"
    (copied,) = core.runner.copied
    assert len(copied.saves) == 4 and copied.preempted == (grows,) and not copied.requests
    assert grows.num_computed_tokens == (0 if error else 16) and policy.saved == (set() if error else {grows})
    run(core)
    assert grows.output_token_ids == [16, 17, 18, 19] and not policy.saved


def test_an_abort_lets_go_of_what_was_saved() -> None:
    policy = SaveAll()
    core = make_core(1, preemption=policy)
    _, grows = outgrowing(core)
    core.step()
    assert policy.saved == {grows}
    core.abort("grows")
    assert not policy.saved and not core.has_unfinished


def test_a_token_without_text_ends_its_own_request_only(caplog: pytest.LogCaptureFixture) -> None:
    core = make_core()
    bad, good = request("bad", 5), request("good", 6)

    def on_token(request: Request, token_id: int) -> bool:
        if request is bad:
            raise ValueError("no such token")
        return False

    core.on_token = on_token
    add(core, bad, good)
    run(core)
    assert bad.error == "the tokenizer failed: ValueError: no such token" and bad.output_token_ids == [5]
    assert "bad" in caplog.records[-1].getMessage() and good.output_token_ids == [6, 7, 8, 9]


@pytest.mark.parametrize("tokens_at_once", [1, 2])
def test_each_token_kept_has_its_logprob(tokens_at_once: int) -> None:
    core = make_core()
    core.runner.tokens_at_once = tokens_at_once
    requests = [request("a", 5, 3), request("b", 7, 3)]
    for added in requests:
        core.add(added)
    run(core)
    for done in requests:
        assert [each.token_id for each in done.logprobs] == done.output_token_ids and len(done.logprobs) == 3


def test_what_fails_after_its_request_lost_its_blocks_makes_nothing_findable() -> None:
    core = make_core(1)
    ends, grows = outgrowing(core)
    core.runner.errors = {"grows": "NaN"}
    assert core.step() == [ends, grows] and grows.error == "NaN"
    assert not core.scheduler.kv.pool.index, "its blocks may be anywhere by now"
    assert not core.has_unfinished


def test_a_failed_step_forgets_what_was_saved_in_it_and_says_why(caplog: pytest.LogCaptureFixture) -> None:
    policy = SaveAll()
    core = make_core(preemption=policy)
    ends, grows = request("goes on", 15, 4), request("grows", 16, 4)
    add(core, ends, grows)
    core.step()
    core.runner.wait_raises = RuntimeError("lost")
    assert core.step() == [ends] and ends.finish_reason is FinishReason.ERROR
    assert caplog.records[-1].exc_info is not None
    assert grows.status is RequestStatus.PREEMPTED and grows.num_computed_tokens == 0 and not policy.saved
    run(core)
    assert grows.output_token_ids == [16, 17, 18, 19]


def test_nothing_is_computed_after_a_last_token_that_is_on_its_way() -> None:
    for last in (request("window", 30, 9), request("asked for", 8, 2)):
        core = make_core(1)
        core.add(last)
        run(core)
        assert sum(record.num_tokens for record in core.log.records) == last.num_known_tokens - 1


def test_what_depends_on_earlier_tokens_waits_until_they_are_known() -> None:
    for penalty, grammar, waits in ((0, None, False), (1, None, True), (0, "grammar", True)):
        core, asked = make_core(1), request("a")
        asked.params, asked.matcher = SamplingParams(max_tokens=4, presence_penalty=penalty), grammar
        core.add(asked)
        core.step(), core.step()
        assert asked.num_output_tokens == 1 and asked.num_pending_tokens == (not waits)


def test_without_free_blocks_the_last_admitted_waits_again_and_computes_again() -> None:
    core = make_core()
    first, last = request("first", 15, 8), request("last", 14, 8)
    add(core, first, last)
    statuses = set()
    while core.has_unfinished:
        core.step()
        statuses.add(last.status)
        assert first.status is not RequestStatus.PREEMPTED
    assert RequestStatus.PREEMPTED in statuses and last.num_preemptions == 1
    assert last.output_token_ids == list(range(14, 22))
    with pytest.raises(ValueError, match="nothing was saved"):
        Recompute().restore(last, {})
    needy, scheduled = request("needy"), request("scheduled")
    assert Recompute().choose_victim(needy, [first, needy, scheduled], {scheduled: None}) is needy


@pytest.mark.parametrize("lookahead", [0, 1])
@pytest.mark.parametrize("place", ["launch_raises", "wait_raises"])
@pytest.mark.parametrize("error", [RuntimeError("lost"), KeyboardInterrupt()])
def test_a_step_that_breaks_ends_its_own_requests_and_leaves_nothing_findable(
    lookahead: int, place: str, error: BaseException
) -> None:
    core = make_core(lookahead, max_num_seqs=1)
    hit, waiting = request("hit", 9), request("waiting", 5)
    core.add(hit)
    core.step()
    core.add(waiting)
    setattr(core.runner, place, error)
    if isinstance(error, KeyboardInterrupt):
        with pytest.raises(KeyboardInterrupt):
            core.step()
    else:
        assert hit in core.step() or hit in core.step()
    check_core(core)
    said = "interrupted" if isinstance(error, KeyboardInterrupt) else "RuntimeError: lost"
    assert hit.finish_reason is FinishReason.ERROR and hit.error == said
    assert not core.scheduler.kv.find_prefix(Request("again", [9] * 9, SamplingParams(), Timeline(0.0)))
    run(core)
    if lookahead and said == "interrupted":
        assert waiting.error is not None, "launched after a step that nobody waited for: it is not trusted either"
    else:
        assert waiting.output_token_ids == [5, 6, 7, 8] and waiting.error is None
    assert hit.timeline.finished is not None


def test_a_lost_device_ends_every_request_and_says_why() -> None:
    core = make_core(max_num_seqs=1)
    requests = [request("running", 9), request("waiting", 5)]
    add(core, *requests)
    core.step()
    core.runner.wait_raises = DeviceLostError("gone")
    with pytest.raises(DeviceLostError):
        core.step()
    assert [(each.finish_reason, each.error) for each in requests] == [(FinishReason.ERROR, "gone")] * 2


def test_an_abort_in_each_state_frees_what_it_held() -> None:
    core = make_core(1, max_num_seqs=2)
    requests = {name: request(name, 5 + i, 9) for i, name in enumerate(("running", "other", "waiting"))}
    add(core, *requests.values())
    core.step()
    assert core.abort("nobody") is None
    for name, used in (("waiting", 4), ("running", 2)):
        assert core.abort(name) is requests[name] and core.scheduler.kv.pool.num_used == used, name
        assert requests[name].finish_reason is FinishReason.ABORT and requests[name].status is RequestStatus.FINISHED
    core.abort("other")
    num_steps = len(core.log.records)
    assert not core.has_unfinished and core.scheduler.kv.pool.num_used == 0
    assert core.step() == [] and len(core.log.records) == num_steps, "the step in flight was waited for by the abort"


def test_what_ends_a_request() -> None:
    core = make_core()
    core.eos_token_ids = {8}
    core.on_token = lambda request, token_id: token_id == 22
    plain, past_eos = request("eos", 6, 9), request("past", 7, 3)
    past_eos.params = SamplingParams(max_tokens=3, ignore_eos=True)
    text, full = request("text", 20, 9), request("full", 30, 9)
    stopped = request("stopped", 10, 9)
    stopped.params = SamplingParams(max_tokens=9, stop_token_ids=(11,))
    for added in (plain, past_eos, text, full, stopped):
        core.add(added)
        run(core)
    assert [added.output_token_ids for added in (plain, past_eos, text, full, stopped)] == [
        [6, 7, 8],
        [7, 8, 9],
        [20, 21, 22],
        [30, 31],
        [10, 11],
    ]
    reasons = [added.finish_reason for added in (plain, past_eos, text, full, stopped)]
    stop, length = FinishReason.STOP, FinishReason.LENGTH
    assert reasons == [stop, length, stop, length, stop]
