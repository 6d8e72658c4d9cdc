"""What prompts and drafts are charged: what they add to a step, on runners whose true costs are known."""

import random
from collections.abc import Callable, Iterator

import pytest

from minillm.observe.step_cost import StepCost, StepCostModel, StepTokens, two_prices

Price = Callable[[StepTokens], float]
PREFILL, DECODE = StepTokens(0, 0, 12, 0), StepTokens(3, 15, 0, 0)


def linear(step: StepTokens) -> float:
    """10 ms, and 0.1 ms a token."""
    return 0.010 + 0.0001 * (step.decodes + step.prompts + step.drafts)


def each_its_own(step: StepTokens) -> float:
    """A decode is dearer than a prompt token, and so is a longer context."""
    return 0.008 + 0.0005 * step.decodes + 2e-6 * step.context + 0.0001 * step.prompts + 0.0002 * step.drafts


def quadratic(step: StepTokens) -> float:
    """Attention grows with the square of a prompt."""
    return linear(step) + 1e-7 * (step.context + step.prompts**2 / 2)


def memory_bound(step: StepTokens) -> float:
    """A GPU's: up to 300 tokens are computed while the weights are read."""
    return max(0.006, 2e-5 * (step.decodes + step.prompts)) + 1e-5 * step.decodes + 1e-7 * step.context


def marginal(price: Price, step: StepTokens) -> float:
    """What the prompts truly add."""
    return price(step) - price(step._replace(prompts=0))


def chat(seed: int, rate: float, budget: int = 512, num_steps: int = 400) -> Iterator[StepTokens]:
    """Steps of a server: requests come, prefill in chunks, decode while their contexts grow, and leave."""
    rng = random.Random(seed)
    missing, running = [], []
    for _ in range(num_steps):
        if rng.random() < rate:
            missing.append((rng.randint(16, 800), rng.randint(20, 200)))
        decodes, context, chunk = len(running), sum(context for context, _ in running), 0
        running = [(context + 1, left - 1) for context, left in running if left > 1]
        if missing:
            (prompt, answer), *missing = missing
            chunk = min(prompt, budget - decodes)
            if chunk < prompt:
                missing.insert(0, (prompt - chunk, answer))
            else:
                running.append((prompt + 1, answer))
        if decodes or chunk:
            yield StepTokens(decodes, context, chunk, 0)


@pytest.mark.parametrize("price", [linear, each_its_own, quadratic, memory_bound])
@pytest.mark.parametrize("rate", [0.03, 0.3], ids=["calm", "busy"])
def test_prompts_are_charged_what_they_add(price: Price, rate: float) -> None:
    """Batches and contexts grow and shrink; in a busy server most steps have prompts in them. By tokens, prompts would
    be charged 1.2 to 5 times as much."""
    for seed in range(3):
        model, charged, true = StepCostModel(), 0.0, 0.0
        for step in chat(seed, rate):
            model.observe(step, price(step))
            if step.is_mixed:
                charged += model.split(step, price(step)).prompts
                true += marginal(price, step)
        assert charged == pytest.approx(true, rel=0.05)


def test_noise_and_a_slow_start_do_not_hide_it() -> None:
    """Durations scatter by 5%, and the first steps take seconds: something was compiled."""
    rng, model, charged, true = random.Random(0), StepCostModel(), 0.0, 0.0
    for number, step in enumerate(chat(0, 0.1)):
        seconds = linear(step) * rng.gauss(1.0, 0.05) if number > 3 else 5.0 - number
        model.observe(step, seconds)
        if number > 60 and step.is_mixed:
            charged += model.split(step, seconds).prompts
            true += marginal(linear, step)
    assert charged == pytest.approx(true, rel=0.1)


def test_a_prompt_and_a_mixed_step_tell_the_two_apart() -> None:
    """No step of decodes alone was seen yet."""
    model, mixed = StepCostModel(), StepTokens(3, 15, 16, 0)
    for step in (PREFILL, mixed):
        model.observe(step, linear(step))
    assert model.split(mixed, linear(mixed)).prompts == pytest.approx(0.0016, rel=0.02)


def test_where_nothing_is_known_the_charge_is_between_nothing_and_a_split_by_tokens() -> None:
    for mixed in (StepTokens(3, 9, 16, 0), StepTokens(3, 9, 253, 0), StepTokens(1, 9, 0, 4)):
        model = StepCostModel()
        for _ in range(3000):
            model.observe(mixed, 1.0)
            charged = 1.0 - sum(model.split(mixed, 1.0)[:2])
            assert mixed.num_added / 100 / 4 < charged < mixed.num_added / mixed.num_tokens


@pytest.mark.parametrize("num_tokens", [12, 400])
def test_a_first_step_that_compiled_tells_nothing_and_hides_nothing(num_tokens: int) -> None:
    model, mixed = StepCostModel(), StepTokens(3, 15, 16, 0)
    model.observe(StepTokens(0, 0, num_tokens, 0), 5.0)
    model.observe(mixed, linear(mixed))
    assert 0.0008 < model.split(mixed, linear(mixed)).prompts < 0.0032  # a guess
    for step in (DECODE, mixed):
        model.observe(step, linear(step))
    assert model.split(mixed, linear(mixed)).prompts == pytest.approx(0.0016, rel=0.02)


@pytest.mark.parametrize("added", [StepTokens(0, 0, 0, 4), StepTokens(0, 0, 509, 0), StepTokens(0, 0, 300, 4)])
def test_what_plain_steps_told_is_not_forgotten_in_thousands_of_others(added: StepTokens) -> None:
    model, charged, true = StepCostModel(), 0.0, 0.0
    for number in range(200):
        model.observe(StepTokens(3, 150 + 3 * number, 0, 0), linear(StepTokens(3, 150 + 3 * number, 0, 0)))
    for number in range(3000):
        step = added._replace(decodes=3, context=750 + 3 * number)
        model.observe(step, linear(step))
        charged += linear(step) - sum(model.split(step, linear(step))[:2])
        true += 0.0001 * step.num_added
    assert charged == pytest.approx(true, rel=0.01)


def test_noise_is_not_taken_for_a_price_of_context() -> None:
    """Plain steps with contexts of 50 to 150 tokens scatter by 3%; then contexts grow to 9,000."""
    for seed in range(5):
        rng, model, charged = random.Random(seed), StepCostModel(), 0.0
        for number in range(100):
            model.observe(StepTokens(1, 50 + number, 0, 0), linear(StepTokens(1, 0, 0, 0)) * rng.gauss(1.0, 0.03))
        for number in range(3000):
            step = StepTokens(1, 150 + 3 * number, 0, 4)
            seconds = linear(step) * rng.gauss(1.0, 0.03)
            model.observe(step, seconds)
            charged += model.split(step, seconds).drafts
        assert charged == pytest.approx(3000 * 0.0004, rel=0.3)


def test_sizes_seen_once_are_not_forgotten_in_thousands_of_equal_steps() -> None:
    """No step of decodes alone is ever seen: a first prompt tells what a token costs, then drafts come in each step."""
    model, checked = StepCostModel(), StepTokens(1, 20, 0, 4)
    for step in [StepTokens(0, 0, 100, 0)] + [checked] * 3000:
        model.observe(step, linear(step))
        cost = model.split(step, linear(step))
    assert cost.drafts == pytest.approx(0.0004, rel=0.05)


def test_a_machine_that_slows_down_is_soon_believed() -> None:
    model, mixed = StepCostModel(), StepTokens(3, 15, 16, 0)
    for slow in (1, 3):
        for number in range(200):
            model.observe(DECODE, slow * linear(DECODE))
            if slow == 3 and number > 20:
                assert model.split(mixed, 3 * linear(mixed)).prompts == pytest.approx(0.0048, rel=0.2)


def test_a_hiccup_is_not_charged_as_work() -> None:
    """A kernel is compiled for 4 s in a step with a prompt."""
    model, mixed = StepCostModel(), StepTokens(3, 15, 16, 0)
    model.observe(DECODE, linear(DECODE))
    model.observe(mixed, 4.0)
    assert model.split(mixed, 4.0).prompts < 16.1 * linear(DECODE), "16 steps of a token each"
    for _ in range(5):
        model.observe(mixed, linear(mixed))
    model.observe(mixed, 4.0)
    cost = model.split(mixed, 4.0)
    assert cost.prompts == pytest.approx(4 * 0.0016, rel=0.02) and sum(cost) == pytest.approx(4.0)
    long = StepTokens(3, 15, 8000, 0)
    model.observe(long, linear(long))
    assert model.split(long, linear(long)).prompts == pytest.approx(0.8, rel=0.01), "a long prompt is no hiccup"


def test_a_step_that_seems_short_lowers_no_estimate_for_long() -> None:
    """Its work was done while Python was busy: the step before seemed long for it."""
    model, mixed = StepCostModel(), StepTokens(3, 15, 16, 0)
    for number in range(100):
        model.observe(DECODE, {50: 0.0205, 51: 0.0001}.get(number, linear(DECODE)))
    assert model.split(mixed, linear(mixed)).prompts == pytest.approx(0.0016, rel=0.1)


@pytest.mark.parametrize("drafts_always", [False, True])
def test_rejected_drafts_are_charged_their_rows(drafts_always: bool) -> None:
    """One request, four drafts. By tokens, 80% of the step would be theirs."""
    model, checked = StepCostModel(), StepTokens(1, 20, 0, 4)
    steps = [PREFILL, *([] if drafts_always else [StepTokens(1, 13, 0, 0)] * 3), StepTokens(1, 15, 0, 3), checked]
    for step in steps:
        model.observe(step, linear(step))
    assert model.split(checked, linear(checked)).drafts == pytest.approx(0.0004, rel=0.05)


def test_prompts_and_drafts_in_one_step_share_what_they_add() -> None:
    model, both = StepCostModel(), StepTokens(2, 30, 10, 5)
    for step in (PREFILL, StepTokens(2, 20, 0, 0), StepTokens(2, 22, 0, 4), StepTokens(2, 26, 7, 0), both):
        model.observe(step, linear(step))
    cost = model.split(both, linear(both))
    assert (cost.prompts, cost.drafts) == pytest.approx((0.0010, 0.0005), rel=0.05)


def test_a_split_tiles_its_step_and_no_part_is_negative() -> None:
    """Whatever the sizes: one step lasts an hour, one has 10 million tokens of context, a clock stands still."""
    for seed in range(20):
        rng, model = random.Random(seed), StepCostModel()
        for _ in range(100):
            most = rng.choice([3, 500, 10_000_000])
            step = StepTokens(*(rng.choice([0, 1, rng.randrange(most)]) for _ in range(4)))
            seconds = rng.choice([0.0, 1e-300, 1e-6, 3600.0, rng.expovariate(100), rng.random()])
            model.observe(step, seconds)
            cost = model.split(step, seconds)
            assert min(cost) >= 0 and sum(cost) == pytest.approx(seconds)


def test_old_evidence_fades_and_weights_stay_finite() -> None:
    model, faster, mixed = StepCostModel(), StepTokens(3, 15, 0, 0), StepTokens(3, 15, 16, 0)
    for seconds, num_steps in ((0.0103, 20_000), (0.0051, 500)):
        for _ in range(num_steps):
            model.observe(faster, seconds)
    assert model.split(mixed, 0.0067).prompts == pytest.approx(0.0016, rel=0.02)
    whole = StepCostModel(memory=None)  # looks back at all of them alike
    for seconds, num_steps in ((0.0103, 500), (0.0051, 10)):
        for _ in range(num_steps):
            whole.observe(faster, seconds)
    assert whole.split(mixed, 0.0119).prompts == pytest.approx(0.0016, rel=0.1)


def test_decodes_and_their_context_are_told_apart_and_none_is_negative() -> None:
    rng, model = random.Random(0), StepCostModel()
    for _ in range(30):
        step = StepTokens(decodes := rng.randint(1, 40), decodes * rng.randint(50, 900), 0, 0)
        model.observe(step, each_its_own(step))
    assert model.prices() == pytest.approx((0.008, 0.0005, 2e-6), rel=0.01)
    assert two_prices(4.0, 3.0, 2.0, 10.0, 9.0) == pytest.approx((1.5, 2.0))
    assert two_prices(4.0, 3.0, 2.0, 10.0, 1.0) == (2.5, 0.0)
    assert two_prices(4.0, 3.0, 2.0, -1.0, 9.0) == (0.0, 3.0)
    assert two_prices(0.0, 0.0, 0.0, 0.0, 0.0) == (0.0, 0.0)


def test_a_model_that_saw_nothing_charges_nothing() -> None:
    assert StepCostModel().split(DECODE, 2.0) == StepCost(2.0, 0.0, 0.0, 0.0)
    assert StepCostModel().split(PREFILL, 2.0) == StepCost(2.0, 0.0, 0.0, 0.0)
