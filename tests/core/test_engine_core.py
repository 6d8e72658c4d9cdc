"""EngineCore by itself, on a runner that counts: what it refuses, and what it forgets when a step can't be trusted."""

from dataclasses import dataclass, field

import pytest

from minillm.core.batch import ScheduledBatch, StepOutput
from minillm.core.block_manager import BlockManager
from minillm.core.engine import EngineCore
from minillm.core.errors import ConfigError, DuplicateRequestError, PromptTooLongError
from minillm.core.params import SamplingParams
from minillm.core.request import FinishReason, Request, RequestStatus
from minillm.core.scheduler import Scheduler, SchedulerConfig
from minillm.core.seams import DraftPolicy, Recompute
from minillm.core.timeline import Timeline, VirtualClock
from minillm.policies.config import SpeculativeConfig
from minillm.speculation.base import Proposer
from minillm.speculation.speculator import Speculator


@dataclass
class CountingRunner:
    """The next token is the number of tokens so far. `errors` are of the next step."""

    clock: VirtualClock
    num_kv_blocks: int = 8
    num_host_blocks: int = 0
    block_size: int = 4
    runs_beside_python: bool = True
    errors: dict[str, str] = field(default_factory=dict)
    launch_raises: BaseException | None = None
    wait_raises: BaseException | None = None

    def launch(self, batch: ScheduledBatch) -> "CountingStep":
        raised, self.launch_raises = self.launch_raises, None
        if raised is not None:
            raise raised
        return CountingStep(self, batch)

    def copy_blocks(self, batch: ScheduledBatch) -> None:
        raise AssertionError("nothing is ever saved")


@dataclass
class CountingStep:
    runner: CountingRunner
    batch: ScheduledBatch

    def wait(self) -> StepOutput:
        self.runner.clock.advance(1.0)
        raised, self.runner.wait_raises = self.runner.wait_raises, None
        if raised is not None:
            raise raised
        errors, self.runner.errors = self.runner.errors, {}
        tokens = {p.request.request_id: [p.end] for p in self.batch.requests if p.samples}
        return StepOutput(tokens, self.runner.clock.now(), {}, errors=errors)


def make_core(lookahead: int = 0, drafts: DraftPolicy | None = None, **limits: int) -> EngineCore:
    clock = VirtualClock()
    runner = CountingRunner(clock)
    config = SchedulerConfig(max_model_len=32, **limits)
    blocks = BlockManager(runner.num_kv_blocks, runner.block_size)
    return EngineCore(Scheduler(config, blocks, drafts=drafts), runner, clock, lookahead=lookahead)


def request(name: str, num_tokens: int = 8, max_tokens: int = 4) -> Request:
    return Request(name, [num_tokens] * num_tokens, SamplingParams(max_tokens=max_tokens), Timeline(0.0))


def run(core: EngineCore) -> None:
    while core.has_unfinished:
        core.step()
        core.check_integrity()
    assert core.scheduler.kv.pool.num_used == 0


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
    for wrong, error in ((request("a"), DuplicateRequestError), (request("b", 32), PromptTooLongError)):
        with pytest.raises(error):
            core.add(wrong)
    run(core)
    drafts = Speculator(SpeculativeConfig(method="ngram"), Proposer(), core.clock, core.runner, 32, 0.25)
    with pytest.raises(ConfigError, match="lookahead"):
        make_core(1, drafts)


def test_a_row_that_fails_after_its_request_has_ended_leaves_no_findable_block() -> None:
    core = make_core(lookahead=1)
    ended, other = request("ended"), request("other", 5)
    core.add(ended)
    core.add(other)
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
    core.recent_requests.clear()
    core.start_over(make_core().scheduler)
    assert old.finish_reason is FinishReason.ABORT and old.timeline.finished is not None
    assert not core.has_unfinished


def test_without_free_blocks_the_last_admitted_waits_again_and_computes_again() -> None:
    core = make_core()
    first, last = request("first", 15, 8), request("last", 14, 8)
    core.add(first)
    core.add(last)
    statuses = set()
    while core.has_unfinished:
        core.step()
        statuses.add(last.status)
        assert first.status is not RequestStatus.PREEMPTED
    assert RequestStatus.PREEMPTED in statuses and last.num_preemptions == 1
    assert last.output_token_ids == list(range(14, 22))
    with pytest.raises(ValueError, match="nothing was saved"):
        Recompute().restore(last, {})


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
    core.check_integrity()
    said = "interrupted" if isinstance(error, KeyboardInterrupt) else "RuntimeError: lost"
    assert hit.finish_reason is FinishReason.ERROR and hit.error == said
    assert not core.scheduler.kv.find_prefix(Request("again", [9] * 9, SamplingParams(), Timeline(0.0)))
    run(core)
    if lookahead and said == "interrupted":
        assert waiting.error is not None, "launched after a step that nobody waited for: it is not trusted either"
    else:
        assert waiting.output_token_ids == [5, 6, 7, 8] and waiting.error is None
    assert hit.timeline.finished is not None


def test_an_abort_in_each_state_frees_what_it_held() -> None:
    core = make_core(1, max_num_seqs=2)
    requests = {name: request(name, 5 + i, 9) for i, name in enumerate(("running", "other", "waiting"))}
    for added in requests.values():
        core.add(added)
    core.step()
    assert core.abort("nobody") is None
    for name, used in (("waiting", 4), ("running", 2)):
        assert core.abort(name) is requests[name] and core.scheduler.kv.pool.num_used == used, name
        assert requests[name].finish_reason is FinishReason.ABORT
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
        [6, 7, 8], [7, 8, 9], [20, 21, 22], [30, 31], [10, 11],
    ]  # fmt: skip
    reasons = [added.finish_reason for added in (plain, past_eos, text, full, stopped)]
    stop, length = FinishReason.STOP, FinishReason.LENGTH
    assert reasons == [stop, length, stop, length, stop]
