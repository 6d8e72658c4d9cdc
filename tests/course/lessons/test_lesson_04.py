"""Lesson 04: pictures and numbers move the right way, verdicts follow from runs, graders explain."""

import math
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from course.lab import prefix_cache, prompt_linter, simulated_70b
from course.lab.lab import Lab
from course.lab.prefix_cache import FIFO, LRU, CachePolicy, PrefixCache, replay_cache
from course.lab.run import Run
from course.lessons.lesson_04 import check as grading
from course.lessons.lesson_04 import explorer, pictures, words
from course.lessons.lesson_04 import run as lesson
from course.lessons.lesson_04.explorer import PromptEditor
from course.lessons.lesson_04.pictures import FOUND, draw_finds
from course.simulator.deployment import Deployment
from minillm.core.params import SamplingParams
from minillm.core.timeline import VirtualClock


def lit(svg: str) -> int:
    """Yellow beads in a picture, the legend's one apart."""
    return svg.count(f'fill="{FOUND}"') - 1


@pytest.fixture
def stamps(tiny_lab: Lab) -> dict[str, Run]:
    return {place: tiny_lab.run(lesson.stamped(tiny_lab, place, 3)) for place in ("first line", "last line")}


# ---------------------------------------------------------------- what the engine finds


def test_the_time_in_front_keeps_everything_from_being_found(tiny_lab: Lab, stamps: dict[str, Run]) -> None:
    first, last = stamps["first line"], stamps["last line"]
    assert lesson.hit_rate(first) == 0 and lesson.hit_rate(last) > 0.4
    assert lit(draw_finds({"x": first}).svg()) == 0
    assert lit(draw_finds({"x": last}).svg()) == sum(view.num_cached_tokens for view in last.views) // 16
    lengths = [[view.num_prompt_tokens for view in run.views] for run in (first, last)]
    assert all(abs(a - b) <= 3 for a, b in zip(*lengths)), "the prompts are as long in both"
    verdict = words.f1(first, last)
    assert verdict.verdict.startswith("only when") and "0 of 2 later requests" in verdict.measured
    assert words.shared(first).answer == words.NOTHING and words.shared(last).answer != words.NOTHING


def test_the_models_lru_finds_what_the_engine_finds_also_when_room_is_short(tiny_lab: Lab) -> None:
    orders = lesson.order_runs(tiny_lab)
    for run in orders.values():
        assert lesson.agreement(run) == (6, 6)
    rates = lesson.rates_of(orders)
    assert rates["roomy cache, in turns"] == rates["roomy cache, grouped"] == rates["small cache, grouped"]
    assert rates["small cache, in turns"] < rates["small cache, grouped"] - 0.3
    assert words.f6(rates).verdict.startswith("only when")
    roomy = orders["roomy cache, in turns"]
    room = lesson.room_for(roomy, 2)
    too_small = replace(roomy, snapshot=replace(roomy.snapshot, block_owners=roomy.snapshot.block_owners[:room]))
    assert lesson.agreement(too_small)[0] < 6, "another cache would be noticed"


SMALL = {
    policy: Deployment.of(
        "llama-3-8b", "h100-sxm", block_size=4, num_kv_blocks=14, async_scheduling=False, prefix_eviction=name
    )
    for name, policy in (("lru", LRU), ("fifo", FIFO))
}


@pytest.mark.parametrize("policy", SMALL)
@settings(max_examples=20)
@example([(1, 20, 1), (0, 28, 1), (1, 20, 9), (0, 1, 1), (0, 29, 1)])  # a block twice, the first evicted meanwhile
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 40), st.integers(1, 9)), min_size=1, max_size=8))
def test_the_models_lru_and_fifo_are_the_engines(policy: CachePolicy, requests: list[tuple[int, int, int]]) -> None:
    """Prompts of a few kinds and any length, answers of any length, one after the other in a small pool."""
    engine = SMALL[policy].engine(VirtualClock())
    cache = PrefixCache(14, policy)
    for number, (kind, length, answer) in enumerate(requests):
        prompt = [100 * kind + i for i in range(length)]
        engine.add_request(prompt, SamplingParams(temperature=0, max_tokens=answer, ignore_eos=True))
        output = None
        while engine.has_unfinished:
            output = (engine.step() or [output])[-1]
        asked = prefix_cache.cache_request(float(number), "x", prompt, output.token_ids, 4)
        assert cache.serve(asked) * 4 == output.num_cached_tokens


def test_a_beginning_shorter_than_a_block_is_never_found(tiny_lab: Lab) -> None:
    runs = lesson.block_runs(tiny_lab)
    found = [max(view.num_cached_tokens for view in run.views) for run in runs.values()]
    assert found[0] >= found[1] > found[2] == 0
    assert all(0 <= lesson.shared_tokens(run) - hit < size for (size, run), hit in zip(runs.items(), found))
    assert "256 tokens" in str(pictures.blocks_table(runs))


def test_unique_prompts_find_nothing_and_looking_is_cheap(tiny_lab: Lab) -> None:
    on = tiny_lab.run(lesson.unique(tiny_lab))
    off = tiny_lab.run(lesson.unique(tiny_lab), enable_prefix_caching=False)
    assert lesson.hit_rate(on) == lesson.hit_rate(off) == 0


def test_a_conversation_finds_more_with_every_turn(tiny_lab: Lab) -> None:
    talk = lesson.conversation(tiny_lab)
    cached, plain = tiny_lab.run(talk), tiny_lab.run(talk, enable_prefix_caching=False)
    shares = [view.num_cached_tokens / view.num_prompt_tokens for view in cached.views]
    assert shares[0] == 0 and shares == sorted(shares) and shares[-1] > 0.4
    assert lesson.hit_rate(plain) == 0
    delayed = (replace(r.view, deliveries=tuple(stamp + 5.0 for stamp in r.view.deliveries)) for r in plain.rows[1:])
    later = (replace(row, view=view) for row, view in zip(plain.rows[1:], delayed, strict=True))
    slower = replace(plain, rows=(cached.rows[0], *later))
    growing = {1: 0.0, 2: 0.2, 3: 0.4}
    told = words.d9(cached, slower, growing).verdict
    assert told.startswith("only when") and "scatter" not in told
    view = cached.rows[0].view
    a_tenth = 0.1 * (view.deliveries[0] - view.borders[0])
    late = replace(view, deliveries=tuple(stamp + a_tenth for stamp in view.deliveries))
    scattered = replace(slower, rows=(replace(cached.rows[0], view=late), *slower.rows[1:]))
    assert "machine's scatter" in words.d9(cached, scattered, growing).verdict
    late_first = replace(cached, rows=(replace(cached.rows[0], view=late), *cached.rows[1:]))
    assert "1: −10%" in words.d9(late_first, slower, growing).measured  # a minus sign, no hyphen


# ---------------------------------------------------------------- findings


@pytest.mark.parametrize(
    ("now", "says"), [(0.4, "Moving one line"), (0.98, "no prefill worth saving"), (1.45, "A hit can't do that")]
)
def test_a_hit_that_shortened_nothing_is_told_by_what_ttft_did(
    now: float, says: str, stamps: dict[str, Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, last = stamps.values()
    monkeypatch.setattr(words, "later_ttft", lambda run: 1.0 if run is first else now)
    found = words.stamp(first, last)
    assert says in str(found) and found.is_disturbed == (now > 1) == isinstance(words.moved(first, last), str)


@pytest.mark.parametrize(
    ("simulated_on", "off", "says"),
    [("h100", 1.0, "doesn't count"), ("", 1.2, "is noise"), ("", 2.0, "something else kept this machine busy")],
)
def test_only_a_machine_that_scatters_is_told_of_noise(
    simulated_on: str, off: float, says: str, stamps: dict[str, Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    cached, plain = (replace(run, simulated_on=simulated_on) for run in stamps.values())
    monkeypatch.setattr(words, "later_ttft", lambda run: 1.0 if run is cached else off)
    said = str(words.nothing({"cache on": cached, "cache off": plain}))
    assert says in said and (not simulated_on or "noise" not in said)


@pytest.mark.parametrize(("rates", "says"), [((0, 0, 0.6), "until the last one"), ((0, 0.5, 0.6), "one fix: *first*")])
def test_the_last_fix_gets_no_credit_that_is_not_its_own(rates: tuple[float, ...], says: str) -> None:
    assert says in str(words.one_fix(dict(zip(("as found", "first", "second"), rates))))


# ---------------------------------------------------------------- chains, linter, editor


def test_the_linter_names_what_breaks_and_calms_down_when_it_is_moved() -> None:
    found = prompt_linter.lint(explorer.sample_prompts(explorer.AS_FOUND, False))
    assert [each.kind for each in found[:4]] == ["time", "id", "user", "tools"]
    assert found[0].line == 1 and found[0].differs == 1.0 and found[2].differs < 1.0
    assert "breaks the chain" in str(prompt_linter.findings_table(found)).splitlines()[1]
    good = explorer.by_stability(explorer.AS_FOUND, True)
    assert good.splitlines()[0].startswith("Tools") or good.splitlines()[0].startswith("You are")
    assert good.splitlines()[-1].startswith("Question")
    assert prompt_linter.lint(explorer.sample_prompts(good, True)) == []


def test_the_linter_guesses_from_one_prompt() -> None:
    prompt = 'Request id: 7f3a91c2\nTools: [{"name": "b"}, {"name": "a"}]\nYou are a helpful assistant.\nBe kind.'
    found = prompt_linter.lint([prompt])
    assert [(each.kind, each.differs) for each in found] == [("id", None), ("tools", None)]
    assert not prompt_linter.has_loose_order('Tools: [{"name": "a"}, {"name": "b"}]')
    assert prompt_linter.kind_of("It is 9:05 now") == "time" and prompt_linter.kind_of("Be kind.") == "text"


def test_a_ladder_of_fixes_pays_at_its_last_rung(tiny_lab: Lab) -> None:
    rates = list(explorer.template_ladder(tiny_lab).values())
    assert rates[0] == 0 and rates[-1] > rates[-2] + 0.3
    assert "+0 points" in str(pictures.ladder_table(explorer.template_ladder(tiny_lab)))


def test_the_editor_lints_reorders_and_plays_to_the_engine(tiny_lab: Lab) -> None:
    editor = PromptEditor(tiny_lab)
    assert editor.expected == 0 and editor.findings[0].kind == "time"
    editor.press()
    editor.wait()
    editor.set(sort_tools=True).reorder()
    assert editor.expected > 0.5 and not editor.findings
    editor.press()
    editor.wait()
    before, after = (lesson.hit_rate(run) for run in editor.runs)
    assert before == 0 and after > 0.4
    assert lit(editor.view.value) > 0
    editor.set(text="It is {clock}.").press()
    assert "no field {clock}" in editor.wait().error and "no field {clock}" in editor.report.value
    assert len(editor.runs) == 2, "what cannot be rendered is not played"
    assert "It is {clock}." in editor.static_html()


# ---------------------------------------------------------------- policies


def test_what_policies_are_made_of() -> None:
    a, b, c = (prefix_cache.cache_request(float(i), name, [i] * 40 + [7], (), 16) for i, name in enumerate("abc"))
    again = replace(a, when=1.5)
    assert replay_cache([a, b, again, c, replace(a, when=4.0)], 6, LRU) == [0, 0, 2, 0, 2], "a hit renews"
    # Room for two of three: the third drops what was computed first, however often it was used.
    assert replay_cache([a, b, again, c, replace(a, when=4.0)], 6, FIFO)[-1] < 2
    assert replay_cache([a, replace(a, when=9.0)], 9, CachePolicy(True, 10.0)) == [0, 2]
    assert replay_cache([a, replace(a, when=11.0)], 9, CachePolicy(True, 10.0)) == [0, 0]
    used = [a, replace(a, when=9.0), replace(a, when=12.0)]
    assert replay_cache(used, 9, CachePolicy(True, 10.0)) == [0, 2, 2] and replay_cache(
        used, 9, CachePolicy(False, 10.0)
    ) == [0, 2, 0]
    with pytest.raises(ValueError, match="smaller than one request"):
        replay_cache([a], 2)


def test_no_policy_beats_a_cache_that_never_forgets() -> None:
    trace = prefix_cache.users_trace(5, 4, 300.0)
    ceiling = prefix_cache.model_hit_rate(trace)
    for policy in lesson.policies().values():
        for size in (80, 160, 400):
            assert prefix_cache.model_hit_rate(trace, size, policy) <= ceiling
    assert math.isclose(prefix_cache.model_hit_rate(trace, lesson.working_set(trace)), ceiling)
    gaps = lesson.by_gap((60, 1800), users=4)
    assert [words.d13(gaps, agree).kind for agree in ((6, 6), (5, 6))] == ["only when", "not shown"]


# ---------------------------------------------------------------- 70B


def test_a_prefix_aware_router_finds_more_and_piles_up_what_all_share() -> None:
    on = simulated_70b.deployment()
    runs = lesson.routers(on, ("round robin", "prefix-aware"), tenants=12, count=60)
    assert runs["prefix-aware"].prefix_hit_rate > runs["round robin"].prefix_hit_rate + 0.2
    hot = lesson.routers(on, ("round robin", "prefix-aware"), tenants=1, qps=20, count=60)
    shares = {name: lesson.busiest_share(run) for name, run in hot.items()}
    assert 0.25 <= shares["round robin"] < 0.3 and shares["prefix-aware"] > 1.5 * shares["round robin"]
    assert f"{shares['prefix-aware']:.0%}" in str(pictures.routers_table(hot))


def test_f5_at_70b_follows_from_the_two_times(stamps: dict[str, Run]) -> None:
    found = lesson.cold_and_warm(simulated_70b.deployment(), (250, 2000))
    cold, warm = found[2000]
    assert cold > 3 * warm > 0
    assert words.f5(found, stamps).verdict.startswith("only when")


def test_a_sessions_saving_grows_with_its_turns_at_70b() -> None:
    saved = lesson.session_cuts(simulated_70b.deployment(), count=8)
    assert list(saved) == [1, 2, 3, 4, 5] and saved[5] > saved[1] + 0.1


# ---------------------------------------------------------------- the check


def test_the_check_rewards_right_answers_and_explains_wrong_ones(tiny_lab: Lab, stamps: dict[str, Run]) -> None:
    last = stamps["last line"]
    roomy = {"in turns": stamps["first line"], "grouped": last}
    check = grading.checks(last, roomy)
    view = last.row_of(1)
    assert check("q1", view.num_cached_tokens).score == 1
    assert check("q1", view.num_cached_tokens // 16).score == 0.5
    assert check("q1", 1).score == 0
    alike = lesson.shared_tokens(last)
    assert alike % 16 == 0 or "only whole blocks" in str(check("q1", alike))
    assert check("q2", lesson.hit_rate(last)).score == 1 and check("q2", 100 * lesson.hit_rate(last)).score == 1
    assert check("q3", "grouped").score == 1 and check("q3", "in turns").score == 0
    assert check("q1", ...).score == 0 and check("q3", "random").score == 0
