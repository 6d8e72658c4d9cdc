"""Lesson 08: guesses and checks. Arithmetic by hand; the rest on a tiny model and the simulator."""

from dataclasses import replace

import pytest
import torch
from asserting import rewards, shows

from course.lab import draft_rules, draft_story, simulated_70b, verify_costs
from course.lab.draft_rules import NextToken
from course.lab.draft_story import GATES_OPEN, DraftStep, DraftStory
from course.lab.lab import Lab
from course.lab.pictures import draft_tiles
from course.lab.run import Run
from course.lab.speculation_gain import accepted_share, alpha_of, best_k, break_even, emitted, popular, speedup
from course.lab.synthetic_drafts import SyntheticDrafts
from course.lab.verify_costs import VerifyCosts
from course.lessons.lesson_08 import pictures, run, simulated, words
from course.lessons.lesson_08.check import checks
from course.lessons.lesson_08.run import AcceptancePoint
from minillm import EngineConfig, SamplingParams
from minillm.core.step_log import StepRecord, StepShare

TOLD = {
    "copying": (
        DraftStory(
            "ngram",
            (
                DraftStep((), 0, ("A",)),
                DraftStep((" cat", " sat", " on"), 3, (" cat", " sat", " on", " the")),
                DraftStep((" rug", " and"), 0, (" mat",)),
                DraftStep((" by", " two"), 1, (" by", "\n")),
            ),
            tuple(range(8)),
        ),
        DraftStory("without speculation", tuple(DraftStep((), 0, (str(i),)) for i in range(8)), tuple(range(8))),
    )
}


def made_costs(slope: float = 0.1, spread: float = 1.0) -> VerifyCosts:
    """Each row adds `slope` of a step at batch 1, and all of it at batch 16."""
    taken = {}
    for batch, share in ((1, slope), (16, 1.0)):
        for k in verify_costs.LENGTHS:
            taken[batch, k] = tuple(0.01 * (1 + share * k) * each for each in (1, 1, spread, spread))
    return VerifyCosts(taken)


# ---------------------------------------------------------------- formulas


def test_tokens_of_a_verification_by_hand() -> None:
    assert emitted(0.6, 4) == pytest.approx(1 + 0.6 + 0.36 + 0.216 + 0.1296)
    assert emitted(1, 4) == 5 and emitted(0, 4) == 1 and popular(0.1, 4) == 1 and popular(0.8, 5) == 4
    assert speedup(0.8, 4, 0.1) == pytest.approx(2.401, abs=0.001)
    assert speedup(0.3, 5, 0.1) == pytest.approx(0.95, abs=0.01)


def test_break_even_is_where_the_speedup_is_one() -> None:
    border = break_even(4, 0.1, 1.2)
    assert speedup(border, 4, 0.1, 1.2) == pytest.approx(1) and 0 < border < 1
    assert break_even(4) == pytest.approx(0, abs=1e-6)
    assert break_even(2, 1.0) is None and break_even(4, 0, 6.0) is None


def test_the_best_length_grows_with_acceptance() -> None:
    lengths = [best_k(alpha, 0.1, lambda k: 1.0) for alpha in (0.05, 0.5, 0.9)]
    assert lengths[0] == 0 and lengths == sorted(lengths) and lengths[2] > 4


# ---------------------------------------------------------------- watching


def test_a_story_counts_its_steps() -> None:
    story, plain = TOLD["copying"]
    assert story.num_tokens == 8 == plain.num_tokens and story.corrections == 2
    assert story.written(2) == "A cat sat on the" and story.tokens_after(3) == 6
    assert story.steps[2].own == " mat" and story.steps[2].corrects and not story.steps[1].corrects


def test_watched_answers_are_those_without_drafts(tiny_lab: Lab) -> None:
    told = run.stories(tiny_lab)
    assert len(told) >= 3
    for story, plain in told.values():
        assert story.token_ids == plain.token_ids and len(plain.steps) == plain.num_tokens
        assert len(story.steps) <= len(plain.steps)
        for step in story.steps:
            assert step.emitted[: step.passed] == step.drafted[: step.passed]
            assert len(step.emitted) == step.passed + 1
            if step.corrects:
                assert step.own != step.drafted[step.passed]
    assert any(step.drafted for story, _ in told.values() for step in story.steps)


# ---------------------------------------------------------------- what a verification yields


def run_with(shares: list[tuple[int, int]], k: int, alpha: float = 0.5) -> Run:
    """A made run: its steps' (num_drafts, num_accepted)."""
    config = EngineConfig(speculative=SyntheticDrafts(k=k, acceptance_rate=alpha))
    steps = tuple(
        StepRecord(i, 0, 1, (StepShare("r", 1 + n, False, n, passed),), 0, 1, 1, 8, (), {})
        for i, (n, passed) in enumerate(shares)
    )
    return Run("made", config, (), steps, None, None, (), 0.0, True)


def test_points_leave_out_drafts_that_were_cut_short() -> None:
    point = AcceptancePoint.of(run_with([(4, 4), (4, 0), (2, 2), (0, 0), (4, 2)], k=4))
    assert point.passed == (4, 0, 2) and point.emitted == 3
    assert point.by_place == pytest.approx([2 / 3, 2 / 3, 1 / 3, 1 / 3])
    with pytest.raises(LookupError, match="full length"):
        AcceptancePoint.of(run_with([(2, 1)], k=4))


def test_made_up_drafts_pass_about_as_often_as_they_should(tiny_lab: Lab) -> None:
    always, never = (run.measure_acceptance(tiny_lab, alpha, 2) for alpha in (1.0, 0.0))
    assert always.emitted == 3 and never.emitted == 1


def test_made_up_drafts_follow_the_formula_and_err_elsewhere_with_another_seed(tiny_lab: Lab) -> None:
    def verify(seed: int, max_tokens: int = 40) -> list[int]:
        drafts = SyntheticDrafts(acceptance_rate=0.7, k=3, seed=seed, **GATES_OPEN)
        engine = tiny_lab.engine(speculative=drafts)
        params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
        for _ in range(4):
            engine.add_request([5, 6, 7], params, stream=False)
        while engine.has_unfinished:
            engine.step()
        return [share.num_accepted for step in engine.steps for share in step.shares if share.num_drafts == 3]

    with tiny_lab.alone():
        assert verify(0) == verify(0) != verify(1)
        passed = verify(0, max_tokens=150)
    assert 1 + sum(passed) / len(passed) == pytest.approx(emitted(0.7, 3), rel=0.08)


# ---------------------------------------------------------------- what it costs


def test_costs_between_lengths_lie_on_a_line() -> None:
    made = made_costs()
    assert made.relative(1, 0) == 1 and made.relative(1, 4) == pytest.approx(1.4)
    assert made.relative(1, 6) == pytest.approx(1.6) and made.relative(16, 3) == pytest.approx(4)
    assert not made.is_restless and made_costs(spread=3.0).is_restless
    assert "×1.40" in str(pictures.costs_table(made))


def costs_of(alone: float, crowd: float, batch: int = 64) -> VerifyCosts:
    """What each guess adds to a step of 10 ms, in steps, at batch 1 and at a larger one."""
    shares = ((1, alone), (batch, crowd))
    return VerifyCosts({(b, k): (0.01 * (1 + share * k),) for b, share in shares for k in verify_costs.LENGTHS})


@pytest.mark.parametrize(
    ("alone", "crowd", "says", "most"),
    [
        (0.0, 0.02, "adds at most 8% to a step at any batch here", 64),
        (0.0, 0.2, "that was spare at batch 1", 64),
        (0.2, 0.21, "about as much", 64),
        (0.1, 1.2, "loses even if every draft token is free", 1),
    ],
)
def test_why_checking_costs_what_it_does(alone: float, crowd: float, says: str, most: int) -> None:
    costs = costs_of(alone, crowd)
    assert says in words.checking(costs).here
    gates = run.measured_gates(costs)["speculative"]
    assert gates["max_batch"] == most
    assert gates["acceptance_floor"] == pytest.approx(min(max(alone, crowd / 64), 0.9), abs=5e-4)
    EngineConfig(speculative=gates)


def test_more_batches_are_measured_only_while_checking_is_cheap(tiny_lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    for slope, batches in ((0.0, [1, 8, 64]), (0.2, [1, 8])):
        steps = {k: (0.01 * (1 + slope * k),) for k in verify_costs.LENGTHS}
        monkeypatch.setattr(
            verify_costs, "_measure", lambda _, batch, rounds, steps=steps: {(batch, k): t for k, t in steps.items()}
        )
        assert verify_costs.measure(tiny_lab).batches == batches


def test_alpha_is_not_the_share_of_proposed_tokens() -> None:
    assert accepted_share(0.6, 4) == pytest.approx(0.3264) and accepted_share(1.0, 4) == 1
    assert alpha_of(accepted_share(0.8, 5), 5) == pytest.approx(0.8) and alpha_of(0.0, 3) == pytest.approx(0)
    with pytest.raises(ValueError, match="between 0 and 1"):
        alpha_of(33, 4)
    assert "0.6  2.31  33%" in str(pictures.dashboard_table())


def test_the_picture_tells_where_it_breaks_even() -> None:
    cheap, costly = (pictures.draw_gain(made_costs(0.1), 0.6, 4, c, batch) for c, batch in ((0.1, 1), (0.0, 16)))
    assert f"α = {break_even(4, 0.1, 1.4):.2f}" in cheap.title
    assert "loses at any α" in costly.title and "best k here is 0" in costly.title


# ---------------------------------------------------------------- served


def test_prompts_and_answers(tiny_lab: Lab) -> None:
    hot = run.workload(run.CREATIVE, 2, 8)
    assert hot.arrivals[0].params.temperature == draft_story.HOT
    assert hot.arrivals[0].params.seed != hot.arrivals[1].params.seed
    assert run.workload(run.CHAT, 1, 8).arrivals[0].params.temperature == 0
    assert "word for word" in run.prompt_of(run.COPYING, 9)[0]["content"]
    assert list(run.drafters(tiny_lab)) == ["ngram"]


def test_ways_are_compared_on_the_same_requests(tiny_lab: Lab) -> None:
    work = [run.workload(kind, 2, 12) for kind in (run.CHAT, run.CREATIVE)]
    ways = {run.WITHOUT: run.OFF, "always": run.ALWAYS_DRAFTING, "gates": run.SHIPPED}
    every = run.compare(tiny_lab, work, ways)
    assert [(one.workload, one.way) for one in every[:3]] == [(work[0].name, way) for way in ways]
    assert every[0].acceptance is None and every[0].drafting_share == 0
    assert every[0].texts == every[1].texts == every[2].texts
    assert run.faster(every[0], every[0]) == 1 and run.base_of(every[4], every) is every[3]
    table = str(pictures.served_table(every))
    assert "always" in table and table.count("  ×") == 4


def test_acceptance_counts_only_guesses_that_were_tested() -> None:
    one = run.WorkloadRuns("w", "always", (run_with([(4, 4), (4, 0), (0, 0), (4, 1)], k=4),))
    assert one.acceptance == pytest.approx(5 / (4 + 1 + 2)) and one.drafting_share == 0.75
    assert one.accepted_share == pytest.approx(5 / 12)


# ---------------------------------------------------------------- nothing is lost


CHOICE = NextToken("Thank you very much", torch.tensor([0.4, 0.3, 0.1, 0.08, 0.06, 0.03, 0.02, 0.01]).double(),
                tuple("abcdefg"), tuple(range(7)))  # fmt: skip


def test_only_the_engines_rule_keeps_the_distribution() -> None:
    lab = pictures.overlap_lab(CHOICE)
    for skill in (0.0, 0.5, 1.0):
        lab.set(skill=skill, rule="the engine's rule")
    lab.set(skill=0.2, rule="redraw from p")
    lab.set(rule="keep every guess")
    lab.set(skill=1.0)
    assert "in 100% of cases" in lab.view.value


def test_distances_by_hand() -> None:
    one, other = torch.tensor([0.5, 0.5, 0.0]), torch.tensor([0.25, 0.25, 0.5])
    assert draft_rules.distance(one, other) == pytest.approx(0.5) and draft_rules.distance(one, one) == 0
    few, many = (draft_rules.usual_distance(CHOICE.coarse(), draws) for draws in (50, 5000))
    assert many[1] < few[0] < few[1]


# ---------------------------------------------------------------- seventy billion


def test_checking_is_nearly_free_at_low_load_and_dear_at_high() -> None:
    on = simulated_70b.deployment()
    alone, full = (simulated.price_round(on, batch, 1024, 4, simulated.DRAFT_MODEL) for batch in (1, 256))
    assert alone.verify / alone.plain < 1.2 < full.verify / full.plain
    free = simulated.price_round(on, 1, 1024, 4, None)
    assert free.c == 0 and free.gain(0.7, 4) > alone.gain(0.7, 4) > full.gain(0.7, 4)


def test_a_mixture_gains_least_at_a_batch_between() -> None:
    on = simulated_70b.deployment(model=simulated.MIXTURE, tp=simulated.PAIR_GPUS)
    alone, few, many = (simulated.price_round(on, batch, 1024, 4, None).gain(0.7, 4) for batch in (1, 4, 64))
    assert few < alone < many
    shows(simulated.draw_mixture(4, 0.7, 0.0, 1024), "gains least")


def test_a_draft_model_pays_back_later_after_longer_prompts() -> None:
    on = simulated_70b.deployment()
    early, late = (run.pay_back(on, prompt) for prompt in (100, 4000))
    assert 0 < early.tokens < late.tokens and late.reading > early.reading
    assert run.pay_back(on, 100, alpha=0.0).words == "never"


# ---------------------------------------------------------------- bets, claims, check


def test_each_bet_has_its_answer() -> None:
    point = AcceptancePoint(0.6, 4, (2, 1, 1))  # 2.33 tokens
    for slope in (0.0, 0.15, 0.5):
        costs = made_costs(slope)
        assert run.alone(point, costs).answer == point.emitted / (costs.relative(1, 4) + 4 * run.PRICE)


class Made(run.WorkloadRuns):
    """A served workload with speeds of our own."""

    def __new__(cls, workload: str, way: str, decode_s: float, e2e_s: float = 1.0, drafts: int = 4):
        return object.__new__(cls)

    def __init__(self, workload: str, way: str, decode_s: float, e2e_s: float = 1.0, drafts: int = 4) -> None:
        super().__init__(workload, way, (run_with([(drafts, drafts // 2)], k=4),))
        object.__setattr__(self, "speeds", (decode_s, e2e_s))

    each_decode_s = property(lambda self: [self.speeds[0]])
    each_e2e_s = property(lambda self: [self.speeds[1]])


def test_the_crowd_bet() -> None:
    base = Made("w", run.WITHOUT, 1.0)
    for seconds, answer in zip((0.5, 1.02, 1.5), run.CROWDED):
        assert run.crowded([base, Made("w", run.ALWAYS, seconds)]).answer == answer


@pytest.mark.parametrize(
    ("seconds", "crowd", "says"),
    [
        (0.5, 0.5, "checking four draft tokens takes 3.00"),
        (0.5, 0.01, "checking is cheap here in a full batch as well"),
        (1.02, 0.5, "No difference worth mentioning"),
        (1.5, 0.5, "1 requests already share"),
        (1.5, 0.01, "checking isn't what costs the time"),
    ],
)
def test_what_a_crowd_gains_is_explained_by_what_checking_costs(seconds: float, crowd: float, says: str) -> None:
    every = [Made("w", run.WITHOUT, 1.0), Made("w", run.ALWAYS, seconds), Made("w", "gates", 0.9)]
    assert says in words.crowd(every, costs_of(0.0, crowd)).here


def test_where_nothing_was_guessed_no_draft_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with random weights, which copy nothing: a lookup that finds nothing isn't a guess that failed."""
    ways = (run.WITHOUT, 1.0), (run.ALWAYS, 1.2), ("gates", 1.2)
    every = [Made("copying, 2", way, seconds, drafts=0) for way, seconds in ways]
    monkeypatch.setattr(Made, "plans_ahead", property(lambda self: self.way == run.WITHOUT))
    assert isinstance(run.crowded(every), str)
    for found in (words.kinds(every), words.crowd(every, costs_of(0.0, 0.1))):
        assert "Lookup made no guess" in found.here and "schedules ahead" in found.here
        assert "tested guesses" not in found.here and not found.is_disturbed
    three = [
        Made("copying, 2", way, seconds, drafts=0) for way, seconds in (*ways[:1], (run.NGRAM, 1.2), (run.INT8, 0.6))
    ]
    assert words.a14(three).kind == words.d6(every, []).kind == "not shown"
    assert "int8 weights made batch size 1 faster" in words.a14(three).verdict


def test_watched_answers_say_where_lookup_paid() -> None:
    long, short = (DraftStory("", tuple(DraftStep((), 0, ("A",)) for _ in range(n)), ()) for n in (64, 8))
    copying, chat = run.LOOKED_UP
    for copied, chatted, says in ((short, long, "pays where the answer copies"), (long, long, "no steps in either")):
        assert says in words.watched({copying: (copied, long), chat: (chatted, long)}).here


def test_runs_that_overlap_decide_no_bet(monkeypatch: pytest.MonkeyPatch) -> None:
    base, drafted, twice = (Made("w", way, s) for way, s in ((run.WITHOUT, 1.0), (run.ALWAYS, 0.8), (run.ALWAYS, 0.5)))
    monkeypatch.setattr(Made, "each_decode_s", property(lambda self: [self.speeds[0], 2 * self.speeds[0]]))
    assert not run.is_apart(drafted, base)
    assert run.crowded([base, drafted]).answer == run.CROWDED[1]
    assert isinstance(run.crowded([base, twice]), str), "twice as fast is not called no difference"


def test_d4_finds_the_border_in_the_costs() -> None:
    spread = words.d4(made_costs(0.1))
    assert spread.kind == "only when" and "×2.40" in spread.measured
    assert words.d4(made_costs(spread=3.0)).kind == "not shown"
    cheap = VerifyCosts({(1, k): (0.01,) for k in verify_costs.LENGTHS})
    assert words.d4(cheap).kind == ("only when" if break_even(8, 0.3) > 0.5 else "wrong")


def test_d5_counts_corrections() -> None:
    claim = words.d5(TOLD)
    assert claim.kind == "wrong" and "in 2 verifications" in claim.measured and "before it (1 in all)" in claim.measured


def test_the_check_rewards_what_is_right() -> None:
    rewards(checks(made_costs(), TOLD), emitted(0.8, 5), emitted(0.8, 5) / 1.25, "One token", "never", 4)
    cheap = checks(made_costs(0.1), TOLD)
    assert cheap("q4", "never").score == 1
    border = VerifyCosts({(1, k): (0.01 * (1 + 0.2 * k),) for k in verify_costs.LENGTHS})
    key = break_even(4, 0.0, 1.8)
    assert checks(border, TOLD)("q4", key).score == 1
    assert checks(border, TOLD)("q4", 100 * key).score == 1
    assert checks(border, TOLD)("q4", key + 0.1).score == 0.5
    assert "It is ×1 at" in str(checks(border, TOLD)("q4", "never"))


def test_a_story_player_has_as_many_steps_as_its_answer() -> None:
    story, plain = TOLD["copying"]
    panel = draft_tiles.StoryPlayer({**TOLD, "chat": (replace(story, steps=story.steps[:2]), plain)})
    for name, steps in (("chat", 2), ("copying", 4)):
        panel.controls["answer"].value = name
        assert panel.controls["step"].max == steps
        panel.controls["step"].value = steps
        assert f"Step {steps}:" in panel.static_html()
    panel.controls["step"].value = 1
    assert "after 1 step:" in panel.static_html() and "after 1 steps" not in panel.static_html()
