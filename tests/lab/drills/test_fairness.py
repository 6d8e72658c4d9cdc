"""Right sentences are not punished and wrong ones are, whatever words they share."""

import re

import pytest

from course.lab.drills.amounts import amounts_in, sums_in
from course.lab.drills.desk import MILESTONES
from course.lab.drills.drill import DrawnDrill
from course.lab.drills.grade import grade
from course.lab.drills.library import FLAGSHIP, find_drill
from course.lab.drills.library.decoding import accepted
from course.lab.drills.reading import Numbers, Sentence, read
from course.lab.drills.scoring import slips
from course.lab.lesson_13.checks import checks

NOTHING = Numbers({}, {})
MANY_SEEDS = range(60)


def sentence_of(text: str, numbers: Numbers = NOTHING) -> Sentence:
    (found,) = read(text, numbers).sentences
    return found


def credits(drawn: DrawnDrill, text: str, dimension: str) -> float:
    """Points of what earned some."""
    return sum(e.points for e in grade(drawn, text).dimension(dimension).evidence if e.points > 0)


def losses(drawn: DrawnDrill, text: str, dimension: str) -> float:
    return sum(e.points for e in grade(drawn, text).dimension(dimension).evidence if e.points < 0)


def test_a_right_statement_is_no_popular_error_and_a_wrong_one_is() -> None:
    for right in (
        "With multi-head attention the KV cache takes 0.82 MB a token.",
        "Grouped-query attention cuts the KV by eight.",
        "Sliding-window attention frees KV.",
        "In each step attention reads all of the KV.",
        "Decode attention over long contexts is slow because it reads every past token.",
        "Prefix caching lowers the others' ITL as well, because fewer prompt tokens share their steps.",
    ):
        assert slips(read(right, NOTHING)) == [], right
    for wrong in (
        "The KV cache grows quadratically with the context.",
        "KV memory is O(n^2) in the length of the text.",
        "Each decode step takes long because it is quadratic in the context.",
        "Prefix caching lowers ITL a lot.",
        "Quantization shortens the queue.",
    ):
        assert len(slips(read(wrong, NOTHING))) == 1, wrong


def test_a_sum_with_plus_or_minus_is_never_called_wrong() -> None:
    for right in (
        "1 + 4 x 0.1 = 1.4",
        "60 + 40 + 24 x 12 = 388 ms",
        "30 ms + 512 / 20000 = 55.6 ms",
        "8 s - 50 ms x 150 = 0.5 s",
        "1 - 350/7000 = 95%",
    ):
        assert all(each.holds for each in sums_in(right, amounts_in(right))), right


@pytest.mark.parametrize(
    ("drill", "idle"),
    [
        (FLAGSHIP, "I see six problems with prefill and the queue here, because the load is high."),
        (FLAGSHIP, "There are 14 servers in the queue diagram that I would draw."),
        ("ttft-7s", "The queue matters to 99% of requests."),
        ("tenfold-spike", "I see four problems with the queue in a spike, because load is high."),
    ],
)
def test_a_number_that_only_happens_to_fit_derives_nothing(drill: str, idle: str) -> None:
    drawn = find_drill(drill).drawn()
    assert not sentence_of(idle, drawn.numbers).derived
    assert credits(drawn, idle, "evidence") < 0.3


def test_a_result_may_lack_its_unit() -> None:
    numbers = find_drill(FLAGSHIP).drawn().numbers
    assert "decode" in sentence_of("Decoding is 80 x 180 = 14.4 in all.", numbers).derived
    assert "decode" in sentence_of("Decoding takes 14 s in all.", numbers).derived


def test_one_number_that_fits_two_quantities_counts_once() -> None:
    drawn = find_drill("tenfold-spike").drawn()
    load, replicas = drawn.numbers.derived["load"], drawn.numbers.derived["replicas"]
    assert load == replicas
    once = credits(drawn, f"The load in the spike is {load:n} x, so the queue grows.", "evidence")
    assert once < 0.35 + 0.3 + 0.2


def test_the_check_of_lesson_13_wants_a_calculation() -> None:
    check = checks(find_drill(FLAGSHIP).drawn())
    assert check("q4", "I have six questions about the queue and the rest is small talk").score == 0


def test_a_popular_wrong_formula_earns_nothing_and_the_right_one_does() -> None:
    drawn = find_drill("code-drafts").drawn()
    popular = "Acceptance 0.8 times k = 4 is 3.2, so decoding gets 3.2x faster."
    product = "Speculation brings 0.8 x 4 = 3.2 times the speed of decode, because acceptance is high."
    right = (
        "With acceptance 0.8 a verification brings 3.36 tokens for 1.4 times a step, so decode gets 2.4 times faster."
    )
    for text in (popular, product):
        signs = [e.sign for e in grade(drawn, text).dimension("evidence").evidence]
        assert not any("derives" in sign or "imply" in sign for sign in signs)
        assert losses(drawn, text, "interventions") < 0
    assert credits(drawn, right, "evidence") >= 0.55
    assert losses(drawn, right, "interventions") == 0


def test_the_popular_speedup_is_never_near_the_right_number() -> None:
    for seed in MANY_SEEDS:
        numbers = find_drill("code-drafts").drawn(seed).numbers
        alpha, k = numbers.given["alpha"].value, numbers.given["k"].value
        assert numbers.derived["per_step"].value == pytest.approx(sum(alpha**n for n in range(int(k) + 1)))
        popular = f"that is {numbers.tempting['popular']:n} x"
        assert not sentence_of(popular, numbers).derived & {"per_step", "gain"}


def test_a_given_phase_is_not_the_diagnosis() -> None:
    drawn = find_drill("ttft-7s").drawn()
    wrong = grade(drawn, "TTFT of 7 s is prefill: the long prompts are the bottleneck.")
    assert wrong.dimension("diagnosis").level == "weak"
    assert any("how long prefill takes" in advice for advice in wrong.dimension("interventions").advice)
    right = grade(drawn, "Prefill is 350 ms of the 7 s, so 6.65 s of TTFT are queue.")
    assert right.dimension("diagnosis").level in ("strong", "staff")
    assert losses(drawn, "Prefill is 350 ms of the 7 s, so 6.65 s of TTFT are queue.", "interventions") == 0


@pytest.mark.parametrize(
    ("text", "is_question"),
    [
        ("When KV is near full, load decides whether the queue drains.", False),
        ("What counts is ITL at our load, not acceptance.", False),
        ("How it waits matters more than where.", False),
        ("When is KV full?", True),
        ("What is the queue wait at p99?", True),
        ("I would like to see the queue wait first.", True),
    ],
)
def test_a_statement_is_not_a_question(text: str, is_question: bool) -> None:
    assert sentence_of(text).is_question is is_question


def test_three_nouns_are_one_question_and_three_questions_are_three() -> None:
    drawn = find_drill(FLAGSHIP).drawn()
    statement = "When KV is near full, load decides whether the queue drains."
    assert grade(drawn, statement).dimension("questions").points == 0
    nouns = "What is the KV load of the queue?"
    parts = "What is the batch limit, and how long is the queue, or is KV full?"
    assert credits(drawn, nouns, "questions") < credits(drawn, parts, "questions")


def test_technical_words_are_not_operations() -> None:
    drawn = find_drill(FLAGSHIP).drawn()
    technical = (
        "Prefill at peak FLOP/s takes 90 ms, ITL is a steady 80 ms, and the floor is 6.3 ms. "
        "Paged attention keeps free KV blocks in a list, which helps the queue."
    )
    assert credits(drawn, technical, "operations") == 0
    real = "For the evening peak I would add replicas, which cost money; in steady state the queue is short."
    assert credits(drawn, real, "operations") > 0.8


def test_a_without_reaches_its_object_only() -> None:
    text = "Without chunked prefill one long prompt blocks everybody's decode."
    assert {"prompt_length", "straggler", "decode"} <= sentence_of(text).concepts
    assert "chunking" in sentence_of(text).denied
    assert grade(find_drill("rag-broke-chat").drawn(), text).dimension("diagnosis").points >= 0.4


def test_repeating_the_prompt_with_a_tempting_cause_is_no_diagnosis() -> None:
    drawn = find_drill("hit-rate-zero").drawn()
    wrong = "The hit rate is zero and TTFT is up, so the cache is too small."
    assert grade(drawn, wrong).dimension("diagnosis").level == "weak"
    assert losses(drawn, wrong, "interventions") < 0
    right = "A timestamp in the first line changes the prefix, so the hit rate is zero."
    assert grade(drawn, right).dimension("diagnosis").points >= 0.4
    assert losses(drawn, right, "interventions") == 0


def test_the_memory_wall_has_to_be_worked_out_before_it_is_blamed() -> None:
    drawn = find_drill("itl-250ms").drawn()
    blamed = "Decode is bandwidth-bound because it reads the weights, so ITL is high."
    worked = "Reading the weights takes 10.4 ms, so memory bandwidth is not what a step of 250 ms waits for."
    assert losses(drawn, blamed, "interventions") < 0
    assert losses(drawn, worked, "interventions") == 0


def test_fewer_slots_alone_are_no_cure() -> None:
    drawn = find_drill("quantized-in-vain").drawn()
    assert losses(drawn, "First, lower the batch limit, which cuts the wait.", "interventions") < 0
    careful = "If requests are preempted, fewer slots help the queue, since nothing is computed twice."
    assert losses(drawn, careful, "interventions") == 0


def test_a_p99_fits_two_systems_that_differ() -> None:
    for seed in MANY_SEEDS:
        derived = find_drill("p99-8s").drawn(seed).numbers.derived
        assert derived["slow_ttft"].value > 3
        assert derived["slow_itl"].value > 2 * 0.02, "smooth text in the one, not in the other"


def test_a_new_draft_always_wins_a_little_and_has_a_break_even() -> None:
    for seed in MANY_SEEDS:
        given, derived = (find_drill("new-draft").drawn(seed).numbers.__dict__[key] for key in ("given", "derived"))
        assert 0 < derived["percent"].value < derived["jump"].value
        even = derived["break_even"].value
        assert given["old"].value < even < given["new"].value
        round_old = 1 + given["k"].value * given["old_cost"].value
        speed = accepted(even, given["k"].value) / derived["round_new"].value
        assert speed == pytest.approx(accepted(given["old"].value, given["k"].value) / round_old, rel=0.02)


def test_the_nightly_job_fits_into_its_window() -> None:
    for seed in MANY_SEEDS:
        numbers = find_drill("batch-beside-chat").drawn(seed).numbers
        assert numbers.derived["hours_beside"].value < numbers.given["window"].value


@pytest.mark.parametrize(
    "second", ["ITL", "inter-token latency", "inter token latency", "time per output token", "TPOT"]
)
def test_the_clock_hears_both_numbers_by_any_name(second: str) -> None:
    _, pattern, _ = MILESTONES["two"]
    assert re.search(pattern, f"I want ttft and {second} apart".lower(), re.S)
    assert not re.search(pattern, f"I want {second} first".lower(), re.S)


def test_nobody_is_asked_why_itl_is_fine_where_it_is_not() -> None:
    said = "The queue is the problem, because the documents wait for prefill."
    for name in ("rag-broke-chat", "batch-beside-chat", "quantized-in-vain"):
        assert not any("ITL fine" in ask for ask in grade(find_drill(name).drawn(), said).asks_next)
