"""The scheduler's rule, and the techniques that follow from it, seen through an engine with a fake runner."""

import pytest
from fake_runner import BLOCK, drain, expected_output, greedy, make_engine

from minillm.core.request import FinishReason
from minillm.frontend.engine import Engine


def prompt(length: int, first: int = 0) -> list[int]:
    return list(range(first, first + length))


def scheduled(engine: Engine) -> list[dict[str, int]]:
    """Tokens by request, step by step."""
    return [{s.request.request_id: s.num_tokens for s in batch.requests} for batch in engine.runner.batches]


def test_prefill_then_decode_under_one_budget():
    engine = make_engine()
    engine.add_request(prompt(20), greedy(3), request_id="a")
    output = drain(engine)["a"]
    assert scheduled(engine) == [{"a": 16}, {"a": 4}, {"a": 1}, {"a": 1}]
    assert output.token_ids == expected_output(prompt(20), 3)
    assert output.finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("budget", [2, 16])
def test_a_decode_and_the_prefill_of_who_is_served_first_share_a_step(budget: int):
    engine = make_engine(scheduling_order="priority", max_num_batched_tokens=budget, max_num_seqs=2)
    engine.add_request(prompt(2), greedy(6), request_id="a", priority=1)
    engine.step()
    engine.add_request(prompt(3 * (budget - 1), 50), greedy(1), request_id="b")
    drain(engine)
    assert scheduled(engine)[1:4] == [{"a": 1, "b": budget - 1}] * 3


def test_a_long_prompt_never_stops_the_decodes_of_others():
    # Regression: compact engines run a 20,000-token prompt as prefill-only steps while everybody waits.
    engine = make_engine(num_kv_blocks=256, max_model_len=512)
    engine.add_request(prompt(300), greedy(1), request_id="long")
    engine.step()
    engine.add_request(prompt(3, 400), greedy(8), request_id="short")
    outputs = drain(engine)
    steps = scheduled(engine)
    # The long one was running first and still has the budget; once `short` is in, it gets a token in each step.
    first = next(i for i, step in enumerate(steps) if "short" in step)
    last = max(i for i, step in enumerate(steps) if "short" in step)
    assert all("short" in step for step in steps[first : last + 1])
    assert outputs["short"].token_ids == expected_output(prompt(3, 400), 8)


def test_a_threshold_leaves_room_for_others_beside_a_long_prompt():
    engine = make_engine(long_prefill_token_threshold=6)
    engine.add_request(prompt(24), greedy(1), request_id="long")
    engine.add_request(prompt(8, 50), greedy(1), request_id="short")
    drain(engine)
    assert scheduled(engine)[0] == {"long": 6, "short": 6}


def test_without_chunking_a_prompt_is_computed_whole_even_over_the_budget():
    engine = make_engine(enable_chunked_prefill=False)
    engine.add_request(prompt(40), greedy(2), request_id="a")
    engine.add_request(prompt(10, 50), greedy(2), request_id="b")
    drain(engine)
    assert scheduled(engine) == [{"a": 40}, {"a": 1, "b": 10}, {"b": 1}]


def test_continuous_batching_fills_a_seat_the_moment_it_is_free_static_waits_for_the_last():
    for batching, joins_at in (("continuous", 2), ("static", 6)):
        engine = make_engine(batching=batching, max_num_seqs=2)
        engine.add_request(prompt(4), greedy(6), request_id="slow")
        engine.add_request(prompt(4, 20), greedy(2), request_id="quick")
        engine.add_request(prompt(4, 40), greedy(2), request_id="next")
        drain(engine)
        assert next(i for i, step in enumerate(scheduled(engine)) if "next" in step) == joins_at


def test_a_static_batch_may_need_several_steps_to_begin():
    engine = make_engine(batching="static", max_num_seqs=3)
    for i in range(4):
        engine.add_request(prompt(12, 20 * i), greedy(4), request_id="abcd"[i])
    drain(engine)
    steps = scheduled(engine)
    assert steps[0] == {"a": 12, "b": 4} and steps[1] == {"a": 1, "b": 8, "c": 7}
    first_d = next(i for i, step in enumerate(steps) if "d" in step)
    assert all(set(step) == {"d"} for step in steps[first_d:])


def test_a_shared_prefix_is_computed_once_even_within_one_step():
    engine = make_engine(max_num_batched_tokens=64)
    for i in range(3):
        engine.add_request(prompt(16) + [100 + i], greedy(2), request_id=f"r{i}")
    outputs = drain(engine)
    assert scheduled(engine)[0] == {"r0": 17, "r1": 1, "r2": 1}
    assert [outputs[f"r{i}"].num_cached_tokens for i in range(3)] == [0, 16, 16]
    for i in range(3):
        assert outputs[f"r{i}"].token_ids == expected_output(prompt(16) + [100 + i], 2)
    assert (engine.scheduler.prefix_queries, engine.scheduler.prefix_hits) == (51, 32)


def test_no_prefix_is_looked_up_where_none_is_cached():
    engine = make_engine(enable_prefix_caching=False)
    engine.add_request(prompt(12), greedy(2))
    drain(engine)
    assert engine.scheduler.prefix_queries == 0


def test_a_complete_prefix_hit_still_yields_a_token():
    # Regression: compact engines end up with nothing to compute.
    engine = make_engine()
    for request_id in ("first", "again"):
        engine.add_request(prompt(16), greedy(3), request_id=request_id)
        assert drain(engine)[request_id].token_ids == expected_output(prompt(16), 3)
    assert scheduled(engine)[-3] == {"again": 4}


def test_prefix_caching_off_finds_nothing():
    engine = make_engine(enable_prefix_caching=False)
    for request_id in ("first", "again"):
        engine.add_request(prompt(16), greedy(1), request_id=request_id)
        drain(engine)
    assert scheduled(engine) == [{"first": 16}, {"again": 16}]


@pytest.mark.parametrize(("preemption", "num_host_blocks"), [("recompute", 0), ("swap", 32), ("swap", 3)])
@pytest.mark.parametrize("caching", [True, False])
def test_preempted_requests_come_back_and_say_the_same(preemption: str, num_host_blocks: int, caching: bool):
    # Regression: preempted, then re-hit blocks. With 3 host blocks, swapping falls back to recomputing.
    engine = make_engine(8, num_host_blocks, preemption=preemption, enable_prefix_caching=caching)
    for i in range(3):
        engine.add_request(prompt(7, 20 * i), greedy(12), request_id=f"r{i}")
    outputs = drain(engine)
    assert engine.scheduler.num_preemptions > 0
    for i in range(3):
        assert outputs[f"r{i}"].token_ids == expected_output(prompt(7, 20 * i), 12)
    swapped = any(batch.saves for batch in engine.runner.batches)
    assert swapped == (num_host_blocks > 0)
    preempted = [o for o in outputs.values() if o.timeline.lost.get("preempted", 0) > 0]
    assert preempted and all(o.timeline.lost["preempted"] <= o.timeline.e2e for o in preempted)
    if not caching:
        computed_again = sum(sum(step.values()) for step in scheduled(engine)) - 3 * (7 + 11)
        assert engine.core.log.num_recomputed_tokens == computed_again
        assert (computed_again == 0) == (num_host_blocks == 32)


def test_a_lone_request_that_outgrows_the_pool_ends_with_length():
    # Regression: compact engines assert, and take everybody down.
    engine = make_engine(4)
    engine.add_request(prompt(10), greedy(100), request_id="a")
    output = drain(engine)["a"]
    assert output.finish_reason is FinishReason.LENGTH
    assert output.token_ids == expected_output(prompt(10), 6)  # 4 blocks of 4 = 16 tokens


@pytest.mark.parametrize("looks_ahead", [False, True])
def test_looking_ahead_admits_no_prompt_that_would_run_out_of_blocks(looks_ahead: bool):
    """The first one leaves 6 of 10 blocks: the first chunk of the second one's prompt, 4 blocks, fits; all 8 do not."""
    engine = make_engine(num_kv_blocks=10, scheduler_reserve_full_isl=looks_ahead, enable_prefix_caching=False)
    engine.add_request(prompt(13), greedy(3), request_id="first")
    engine.add_request(prompt(30, 50), greedy(2), request_id="second")
    outputs = drain(engine)
    seated_with_first = [step.keys() == {"first", "second"} for step in scheduled(engine)]
    assert any(seated_with_first) is not looks_ahead
    assert outputs["second"].token_ids == expected_output(prompt(30, 50), 2)


def test_looking_ahead_counts_what_a_cached_prefix_saves():
    engine = make_engine(num_kv_blocks=10, scheduler_reserve_full_isl=True)
    engine.add_request(prompt(25), greedy(3), request_id="first")
    engine.step()
    engine.step()
    engine.add_request(prompt(25), greedy(3), request_id="second")
    drain(engine)
    assert any(step.keys() == {"first", "second"} for step in scheduled(engine)), "7 blocks, of which it shares 6"


def test_reserving_the_whole_window_seats_fewer():
    seats = {}
    for reservation in ("on_demand", "max_len"):
        engine = make_engine(16, kv_reservation=reservation, max_model_len=32, max_num_batched_tokens=64)
        for i in range(4):
            engine.add_request(prompt(4, 20 * i), greedy(2))
        engine.step()
        seats[reservation] = len(engine.scheduler.running)
        drain(engine)
    assert seats == {"on_demand": 4, "max_len": 2}


def admission_order(engine: Engine) -> list[str]:
    seen: dict[str, None] = {}
    for step in scheduled(engine):
        seen.update(dict.fromkeys(step))
    return list(seen)


def test_orders_and_that_no_batching_means_one_at_a_time():
    lengths = {"a": 12, "b": 4, "c": 10, "d": 2}
    priorities = {"a": 3, "b": 2, "c": 1, "d": 2}
    expected = {"fcfs": "abcd", "shortest_prompt": "dbca", "priority": "cbda"}
    for order, ids in expected.items():
        engine = make_engine(scheduling_order=order, batching="none")
        for i, (request_id, length) in enumerate(lengths.items()):
            engine.add_request(
                prompt(length, 20 * i), greedy(2), request_id=request_id, priority=priorities[request_id]
            )
        drain(engine)
        assert "".join(admission_order(engine)) == ids, order
        assert all(len(step) == 1 for step in scheduled(engine))


def test_two_lanes_let_the_short_pass_and_do_not_starve_the_long():
    engine = make_engine(scheduling_order="two_lane", two_lane_threshold=8, batching="none")
    engine.add_request(prompt(12), greedy(1), request_id="L")
    for i in range(6):
        engine.add_request(prompt(3, 20 + 5 * i), greedy(1), request_id=str(i))
    drain(engine)
    assert "".join(admission_order(engine)) == "012L345"


def test_a_request_too_long_in_the_queue_times_out_and_the_others_do_not():
    engine = make_engine(queue_timeout_s=0.1, batching="none")
    engine.add_request(prompt(4), greedy(30), request_id="a")
    engine.add_request(prompt(4, 20), greedy(1), request_id="b")
    outputs = drain(engine)
    assert outputs["a"].finish_reason is FinishReason.LENGTH
    assert outputs["b"].finish_reason is FinishReason.TIMEOUT
    timeline = outputs["b"].timeline
    assert timeline.phases()["queue"] == pytest.approx(timeline.e2e) and timeline.e2e > 0.1


def test_the_preempted_one_is_the_last_admitted_or_the_least_important():
    for order, victim in (("fcfs", "b"), ("priority", "a")):
        engine = make_engine(6, scheduling_order=order, enable_prefix_caching=False)
        engine.add_request(prompt(7), greedy(14), request_id="a", priority=5)
        engine.add_request(prompt(7, 20), greedy(14), request_id="b", priority=1)
        drain(engine)
        victims = [request.request_id for batch in engine.runner.batches for request in batch.preempted]
        assert victims[0] == victim, order


def test_a_prompt_of_high_priority_takes_blocks_from_a_decode_of_the_same_step():
    """Decodes are scheduled first. The low one's gives way all the same, and its part of the step is taken out."""
    engine = make_engine(7, scheduling_order="priority")
    engine.add_request(prompt(6), greedy(14), request_id="low", priority=5)
    engine.step()
    engine.add_request(prompt(24, 50), greedy(2), request_id="high", priority=0)
    outputs = drain(engine)
    assert scheduled(engine)[:3] == [{"low": 6}, {"low": 1, "high": 15}, {"high": 9}]
    assert [request.request_id for request in engine.runner.batches[2].preempted] == ["low"]
    assert outputs["low"].token_ids == expected_output(prompt(6), 14)
    assert outputs["high"].token_ids == expected_output(prompt(24, 50), 2)


def test_what_was_taken_out_of_a_step_is_in_no_cache():
    """The lowest gives way in vain: the one in the middle has to, too. Blocks have their names as soon as they are
    scheduled; one that was then not computed must have none."""
    engine = make_engine(9, scheduling_order="priority")
    engine.add_request(prompt(8, 70), greedy(12), request_id="high", priority=0)
    engine.add_request(prompt(6), greedy(12), request_id="low", priority=5)
    engine.step()
    engine.add_request(prompt(30, 30), greedy(2), request_id="middle", priority=1)
    engine.step()
    engine.step()
    assert scheduled(engine) == [{"high": 8, "low": 6}, {"high": 1, "low": 1, "middle": 14}, {"high": 1}]
    assert [request.request_id for request in engine.runner.batches[-1].preempted] == ["low", "middle"]
    # Token 7 of "low" would have filled its second block. Somebody comes who begins with the same two.
    same = prompt(6) + expected_output(prompt(6), 2) + [90]
    engine.add_request(same, greedy(2), request_id="same", priority=0)
    outputs = drain(engine)
    assert outputs["same"].num_cached_tokens == BLOCK
    assert outputs["same"].token_ids == expected_output(same, 2)
    assert outputs["low"].token_ids == expected_output(prompt(6), 12)
    assert outputs["middle"].token_ids == expected_output(prompt(30, 30), 2)


@pytest.mark.parametrize(
    ("num_kv_blocks", "low_prompt", "preempted", "num_saved"),
    [(10, 7, ["low"], 2), (9, 6, ["low", "middle"], 2 + 4)],
)
def test_what_was_computed_is_saved_of_all_that_give_way_in_a_step(
    num_kv_blocks: int, low_prompt: int, preempted: list[str], num_saved: int
):
    """In the first case the low one has a third block by then, for a token that it does not get to compute."""
    engine = make_engine(num_kv_blocks, 32, scheduling_order="priority", preemption="swap")
    engine.add_request(prompt(8, 70), greedy(12), request_id="high", priority=0)
    engine.add_request(prompt(low_prompt), greedy(12), request_id="low", priority=5)
    engine.step()
    engine.add_request(prompt(30, 30), greedy(2), request_id="middle", priority=1)
    engine.step()
    engine.step()
    batch = engine.runner.batches[-1]
    assert [request.request_id for request in batch.preempted] == preempted and len(batch.saves) == num_saved
    outputs = drain(engine)
    assert outputs["low"].token_ids == expected_output(prompt(low_prompt), 12)


def test_who_holds_a_seat_is_counted_whether_it_has_a_share_of_the_step_or_not():
    """With a step planned ahead, a request whose last token is on its way computes nothing more."""
    engine = make_engine(async_scheduling=True)
    engine.add_request(prompt(4), greedy(2), request_id="short")
    engine.add_request(prompt(4, 20), greedy(6), request_id="long")
    drain(engine)
    assert any(step.num_running == 2 and len(step.shares) == 1 for step in engine.steps)
    assert all(step.num_running >= len(step.shares) for step in engine.steps)
