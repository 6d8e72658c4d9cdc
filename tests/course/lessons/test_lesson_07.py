"""Lesson 07: who holds which block, the KV bill, seventy billion. By hand, on a tiny model, and on the simulator."""

import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from asserting import rewards
from made_trace import MADE, frame, large, outcome, trace_of

from course.lab import model_shape
from course.lab.claims import Claim
from course.lab.lab import Lab
from course.lab.pictures import block_map
from course.lab.pool_trace import AGAIN, DECODE, DONE, GONE, PREEMPTED, PREFILL, SWAPPED, PoolTrace, StepArrival, record
from course.lab.style import WIDTH
from course.lessons.lesson_07 import pictures, run, simulated, words
from course.lessons.lesson_07.check import checks
from course.lessons.lesson_07.pictures import PoolMap
from course.lessons.lesson_07.run import GQA, MHA, MLA, MQA, Account
from course.simulator.cost.sizes import KVCacheSize

pytestmark = pytest.mark.usefixtures("short_form")

PROMPT = tuple(range(100, 140))


# ---------------------------------------------------------------- traces


def test_a_trace_counts_blocks_once_and_places_by_tokens() -> None:
    first, second, _ = MADE.frames
    assert second.holders() == {0: [0, 1], 1: [0], 2: [1]} and second.filled(16) == {0: 16, 1: 5, 2: 1}
    assert (first.running, second.running, first.in_line) == (1, 2, 1)
    assert MADE.held_block_steps == 2 + 3 + 2 and MADE.fullest == 1
    assert MADE.filled_share == pytest.approx((20 + 22 + 18) / (7 * 16))
    assert (MADE.again, MADE.tokens, MADE.written, MADE.seconds) == (1, 12, 3, 1.5)
    assert MADE.tokens_per_s == 2 and MADE.mean_running == pytest.approx(4 / 3)
    assert MADE.blocks_of(0) == [(20, 2), (21, 2)]
    assert frame({0: (GONE, 3)}, {0: 20}, (DECODE,)).holders() == {3: [0]}


def test_a_legend_fits_in_a_wide_font() -> None:
    large_pool = replace(MADE, num_blocks=999)
    drawn = ET.fromstring(f"<g>{block_map.draw_frame(large_pool).body}</g>".replace("@", ""))
    entries = [(float(each.get("x")), each.text) for each in drawn.iter("text") if float(each.get("y")) == 13]
    ends = [x + 7 * len(words) for x, words in entries]  # wider than DejaVu Sans at this size
    assert len(entries) == 6 and ends[-1] <= WIDTH
    assert all(end < x - 22 for end, (x, _) in zip(ends, entries[1:])), "a swatch begins 19 before its words"


def test_a_trace_of_the_engine_is_the_same_every_time(tiny_lab: Lab) -> None:
    traces = [run.eight(tiny_lab, run.TIGHT_POOL) for _ in range(2)]
    assert [f.tables for f in traces[0].frames] == [f.tables for f in traces[1].frames]
    assert traces[0].outcomes == traces[1].outcomes and all(each.finished for each in traces[0].outcomes)
    shared = [max(map(len, f.holders().values()), default=0) for f in traces[0].frames]
    assert max(shared) > 1, "half of the cast ask about one page"
    assert len(traces[0].frames[-1].cached) > 0 and not traces[0].frames[-1].holders()
    first = traces[0].frames[0]
    assert first.states[0] in (PREFILL, DECODE) and first.num_tokens == first.computed[0]


def test_a_request_holds_what_its_tokens_need(tiny_lab: Lab) -> None:
    trace = run.play(tiny_lab, [StepArrival(0, PROMPT, 10), StepArrival(2, PROMPT[::-1], 4)], num_kv_blocks=8)
    for tokens, blocks in trace.blocks_of(0):
        assert blocks == -(-tokens // 16)
    assert trace.frames[-1].running == 0 or trace.frames[-1].states[0] == DONE
    assert (trace.outcomes[0].num_prompt_tokens, len(trace.outcomes[0].output), trace.outcomes[1].first_step) == (
        40,
        10,
        2,
    )
    assert trace.blocks_of(0)[-1][0] <= StepArrival(0, PROMPT, 10).num_tokens


def test_reserving_leaves_places_empty(tiny_lab: Lab) -> None:
    traces = run.reservations(tiny_lab)
    assert traces["max_len"].most_running == run.SMALL_POOL * 16 // run.WINDOW_LEN
    assert traces["on_demand"].most_running > traces["max_len"].most_running
    assert traces["on_demand"].filled_share > 0.8 > traces["max_len"].filled_share
    assert len(traces["on_demand"].frames) < len(traces["max_len"].frames)
    assert [f.output for f in traces["max_len"].outcomes] == [f.output for f in traces["on_demand"].outcomes]


def test_the_evicted_come_back_and_say_the_same(tiny_lab: Lab) -> None:
    roomy = run.eight(tiny_lab, run.ROOMY_POOL)
    recompute, swap = (run.eight(tiny_lab, 20, way) for way in ("recompute", "swap"))
    assert roomy.evictions == 0 == roomy.again == roomy.swapped_blocks
    assert recompute.evictions > 0 and recompute.again > 0 and recompute.swapped_blocks == 0
    assert swap.evictions > 0 and swap.swapped_blocks > 0 and swap.again < recompute.again
    for trace in (recompute, swap):
        assert [f.output for f in trace.outcomes] == [f.output for f in roomy.outcomes]
        assert words.admitted_when_full(trace) == 0
    states = {state for each in recompute.frames for state in each.states}
    assert PREEMPTED in states and AGAIN in states and SWAPPED in {s for f in swap.frames for s in f.states}
    assert recompute.tokens - recompute.again <= roomy.tokens


@pytest.mark.parametrize("short", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_the_tight_pool_evicts_in_both_forms(tiny_llama_path: Path, short: bool) -> None:
    lab = Lab(short=short, model=str(tiny_llama_path), dtype="float32", max_model_len=512, num_kv_blocks=96)
    try:
        roomy = run.eight(lab, run.ROOMY_POOL)
        needed = len(roomy.frames[roomy.fullest].holders())
        assert run.TIGHT_POOL < needed <= run.SMALL_POOL, "on demand, half the room suffices"
        claim = words._measure_a12(lab)
        assert claim.kind == "only when" and " 0 preemptions" not in claim.measured
        shrunk = run.thrash(lab, roomy)
        assert list(shrunk["swap"]) == [run.ROOMY_POOL, run.MEAN_POOL, run.TIGHT_POOL]
    finally:
        lab.close()


def test_two_settings_are_compared_by_their_fastest_run(tiny_lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    played: list[str] = []

    def play(lab: Lab, arrivals: list[StepArrival], name: str, **fields: object) -> object:
        played.append(name)
        return replace(MADE, name=name, frames=[replace(MADE.frames[0], seconds=10.0 - len(played))])

    monkeypatch.setattr(run, "play", play)
    monkeypatch.setattr(tiny_lab, "scale", 1.0)
    traces = run.crowded(tiny_lab)
    once = ["on demand", "128 each", "256 each", "512 each"]
    assert played == once + ["on demand", "512 each"] * (run.TURNS - 1)
    assert [trace.seconds for trace in traces.values()] == [3, 8, 7, 2]


def test_as_many_chats_run_as_the_bill_says(tiny_lab: Lab) -> None:
    own = next(iter(run.accounts(tiny_lab).values()))
    trace = run.filling(tiny_lab, gb=0.00015, tokens=96)
    token = own.token_bytes
    assert trace.block_bytes == 16 * token and trace.num_blocks == int(0.00015e9 // (16 * token))
    assert trace.most_running == trace.num_blocks // 6 == len(trace.outcomes) - 1
    assert trace.evictions == 0 and any(each.in_line for each in trace.frames)
    scored = run.slots(trace, 96)
    assert scored.answer == trace.most_running and "takes 6 of them" in scored.evidence


def test_the_pools_fit_any_model(tiny_lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = run.chat_tokens(tiny_lab)
    trace = run.filling(tiny_lab)
    assert (trace.most_running, len(trace.outcomes)) == (4, 5), "whatever a token of the lab's model takes"
    own = model_shape.ModelShape.of_lab(tiny_lab)
    wide = replace(own, cost=replace(own.cost, layers=1000 * own.cost.layers))
    monkeypatch.setattr(model_shape.ModelShape, "of_lab", classmethod(lambda cls, lab: wide))
    assert run.slots_gb(tiny_lab) == pytest.approx(4.6e-9 * tokens * wide.kv_bytes_per_token, rel=0.05)


def test_a_trace_that_gets_stuck_says_so(tiny_lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("course.lab.pool_trace.MOST_STEPS", 3)
    with pytest.raises(RuntimeError, match="not over"):
        record(run.engine(tiny_lab), [StepArrival(0, PROMPT, 20)], "long")


# ---------------------------------------------------------------- the bill


def test_the_bill_of_a_70b_by_hand() -> None:
    kinds = run.kinds_of(replace(large(), context=1504))
    assert kinds[GQA].chat_bytes == 2 * 80 * 8 * 128 * 2 * 1504 == large().chat_bytes_at(1500)
    assert kinds[MHA].chat_bytes == 8 * kinds[GQA].chat_bytes and kinds[MQA].copies == kinds[MLA].copies == 4
    assert kinds[MQA].chat_bytes == kinds[GQA].chat_bytes / 2, "an eighth, four times"
    assert kinds[MLA].kv == KVCacheSize("MLA", 80, 1, 576)
    assert replace(large(), kv_dtype="int8").token_bytes == 2 * 80 * 8 * (128 + 2)
    assert large().chats == int((283e9 - large().weight_bytes) // large().chat_bytes)
    assert Account(model_shape.LLAMA_70B, room=1e9).chats == 0
    assert "80 layers × 2 (key, value) × 8 heads × 128 numbers × 2 B" in large().formula()


def test_the_bill_is_what_the_pool_allocates(tiny_lab: Lab) -> None:
    for dtype in ("float32", "bfloat16", "int8"):
        own = replace(next(iter(run.accounts(tiny_lab).values())), kv_dtype=dtype)
        assert own.token_bytes == run.allocated(tiny_lab, dtype)
    assert "2 layers, 2 KV heads" in run.question(tiny_lab, 0.1, 500)


def test_groups_are_those_of_the_model() -> None:
    assert large().group == 8 and Account(model_shape.LLAMA_13B, room=1e9).group == run.GROUP
    cost = model_shape.LLAMA_70B.cost
    grouped = Account(
        replace(model_shape.LLAMA_70B, cost=replace(cost, query_size=9 * cost.head_dim, num_kv_heads=3)), 1e9
    )
    assert grouped.group == 3 and run.kinds_of(grouped)[GQA].kv == grouped.kv
    odd = Account(replace(model_shape.LLAMA_70B, cost=replace(cost, query_size=9 * cost.head_dim, num_kv_heads=9)), 1e9)
    assert GQA not in run.kinds_of(odd)
    with pytest.raises(ValueError, match="groups of 8"):
        _ = replace(odd, heads=GQA).token_bytes
    assert "GQA, 3 share" in pictures.draw_kv_bytes(grouped).svg()


# ---------------------------------------------------------------- pictures and the instrument


def test_the_pool_can_be_run_and_scrubbed(tiny_lab: Lab) -> None:
    live = PoolMap(tiny_lab, run.eight(tiny_lab, run.SMALL_POOL))
    before = live.view.value
    live.step.value = 2
    assert live.view.value != before and "Step 2 of" in live.view.value
    live.follow.value = "request 0"
    assert "<circle" in live.view.value and "follow: request 0" in live.static_html()
    live.set(reservation="max_len").press()
    live.wait()
    assert live.error is None and "max_len" in live.trace.name and live.step.max == len(live.trace.frames) - 1
    live.set(reservation="on_demand", pool=24, preemption="swap", prefixes=False).press()
    live.wait()
    assert live.error is None and live.trace.swapped_blocks > 0 and live.trace.num_blocks == 24
    ET.fromstring(live.view.value)


# ---------------------------------------------------------------- seventy billion


def test_too_small_a_pool_makes_everybody_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    tight, roomy = simulated.with_pool(8), simulated.with_pool(24)
    assert tight.ttft[1] > 5 * roomy.ttft[1] and tight.preemptions > 0 == roomy.preemptions
    assert tight.running < roomy.running and tight.again_share > 0 == roomy.again_share
    monkeypatch.setattr(simulated, "POOLS_GB", (8, 24))
    explorer = simulated.pool_too_small()
    before = explorer.view.value
    explorer.set(gb=24)
    assert explorer.view.value != before
    explorer.set(rate=0.5, gb=8)
    assert ", 0% computed twice" in explorer.view.value


def test_the_ladder_shrinks_the_cache_more_than_the_cost() -> None:
    chats = simulated.ladder(simulated.CHAT)
    assert words.cache_shrinks() == pytest.approx(64 / 4 * 256 / 130)
    assert 1 < simulated.gain(chats) < words.cache_shrinks()
    first, *_, last = chats.values()
    assert first.limit == "KV capacity" and last.limit.startswith("the steps, mostly matrix")
    assert last.steps.most_running > 3 * first.steps.most_running
    table = str(simulated.ladder_table({"chats": chats}))
    assert "×1.00" in table and "KV capacity" in table


def test_the_limit_of_a_flood_is_named() -> None:
    few = simulated.flood(simulated.CONVERSATIONS, 1, kv_heads=1)
    assert few.limit == "too few requests" and few.steps.most_running <= 60
    assert simulated.flood(simulated.CHAT, 240, kv_heads=1, max_num_seqs=16).limit == "slots"


# ---------------------------------------------------------------- claims


def held(blocks: int) -> PoolTrace:
    return trace_of([frame({0: tuple(range(blocks))}, {0: 16 * blocks}, (DECODE,))], (outcome(),), num_blocks=4096)


ROOMY = trace_of(MADE.frames, (outcome(), outcome()))
LATE = trace_of(MADE.frames, (outcome(last=4), outcome(last=4)), evictions=2)
KILLED = trace_of(MADE.frames, (outcome(), outcome(finished=False)), evictions=1)
LET_IN = trace_of(MADE.frames, (outcome(), outcome(first=2)), num_blocks=3, evictions=1)


@pytest.mark.parametrize(
    ("claim", "kind"),
    [
        (lambda: words.a11(large(), 100, 100), "holds"),
        (lambda: words.a11(large(), 100, 50), "not shown"),
        (lambda: words.a12(LATE, ROOMY, LATE), "only when"),
        (lambda: words.a12(ROOMY, ROOMY, ROOMY), "not shown"),
        (lambda: words.a12(KILLED, ROOMY, ROOMY), "wrong"),
        (lambda: words.a12(LET_IN, ROOMY, ROOMY), "wrong"),
        (lambda: words.d8({256: held(16), 1024: held(64)}), "wrong"),
        (lambda: words.d8({256: held(16), 1024: held(256)}), "holds"),
        (lambda: words.d8({256: held(16)}), "not shown"),
        (lambda: words.d12({320: {"max_len": held(20), "on_demand": held(2)}}), "only when"),
        (lambda: words.d12({320: {"max_len": held(20), "on_demand": held(8)}}), "holds"),
        (lambda: words.d12({320: {"max_len": held(20), "on_demand": held(20)}}), "not shown"),
    ],
)
def test_verdicts_follow_from_traces(claim: Callable[[], Claim], kind: str) -> None:
    assert claim().kind == kind


# ---------------------------------------------------------------- bets and the check


def test_work_done_twice_is_a_share() -> None:
    for again, share in ((0, 0), (1, 10), (5, 50)):
        made = trace_of([frame({}, {}, (DECODE,), num_tokens=10, num_again=again)], (outcome(),))
        assert run.done_twice(made).answer == share


TRACES = {"max_len": trace_of([frame({0: (0, 1)}, {0: 8}, (DECODE,))]), "on_demand": MADE}
TIGHT = trace_of(MADE.frames, (outcome(), outcome()), evictions=3)


def test_the_check_rewards_what_is_right() -> None:
    check = checks(large(), TRACES, TIGHT)
    rewards(check, 492.8, large().chats, 0.75, "Prefilled again")
    assert check("q3", 75).score == 1, "in percent"
