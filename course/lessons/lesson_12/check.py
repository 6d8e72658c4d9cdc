"""The check of lesson 12. Keys come from the incidents that are passed in, and from what changes did to them."""

from course.grading import Checks, Criterion, Question, near
from course.incidents import Incident
from course.incidents.causes import CAUSES
from course.incidents.dumps.sums import slips, sums_of
from course.incidents.interventions import BY_ID as CHANGES
from course.incidents.questions import BY_ID as QUESTIONS
from course.incidents.reveal import Reveal
from course.lessons.lesson_12.run import ALIKE, TOLD_BY, reading

TWINS = ("few_slots", "kv_pool")
LABELS = tuple(question.text for question in QUESTIONS.values())
NAMES = {question.text.lower(): name for name, question in QUESTIONS.items()}
"""A question's id, by its words in small letters."""
TOLERANCE = 0.06
RANKED = 3


def checks(first: Incident, second: Incident, truth: Reveal) -> Checks:
    """Questions about both incidents of the lesson.

    Args:
        first: was played at the desk; its `max_num_seqs` was too low.
        second: was taken apart in cells; its KV pool was too small.
        truth: of the second, with what its changes did.

    q1: the question, as it is worded or by its id, that tells too few slots from too small a KV pool.
    q2: of the second: how many mean requests have room in its KV pool at once.
    q3: of the second: share of the requests' time that is spent in the queue, 0 to 1.
    q4: of the second: three changes by id, the best first.
    q5: of the first: dollars an hour that doubling its fleet, which did not help, costs on top.
    """
    first, second = first.fresh(), second.fresh()  # a check asks questions, too: not on the learner's clock

    def q1(answer: object) -> tuple[Criterion, ...]:
        key = QUESTIONS[CAUSES[TWINS[0]].told_apart_by].text
        name = NAMES.get(str(answer).strip().lower(), str(answer))
        if name not in QUESTIONS:
            raise ValueError(f"choose one of these: {'; '.join(LABELS)}")
        reveal = "" if QUESTIONS[name].text == key else f"The answer here: {key}."
        is_right = float(not reveal)
        return (Criterion("choice", is_right, 1, _told_apart(name, first, second), reveal),)

    def q2(answer: object) -> tuple[Criterion, ...]:
        sums = sums_of(second.window)
        return (near(answer, sums.kv_requests, "requests in the pool", slips(sums)["kv_requests"], TOLERANCE),)

    def q3(answer: object) -> tuple[Criterion, ...]:
        shares = second.ask("phases").data["share"]
        known = {shares["decode"]: "that's decode's share"}
        return (near(answer, float(shares["queue"]), "share of the queue", known, TOLERANCE, percent=True),)

    def q4(answer: object) -> tuple[Criterion, ...]:
        return _ranking(answer, truth)

    def q5(answer: object) -> tuple[Criterion, ...]:
        price = first.window.service.price_per_hour()
        whole = {2 * price: "that's the whole bill; the question is what doubling adds"}
        return (near(answer, price, "dollars an hour", whole, TOLERANCE),)

    questions = {
        "q1": Question(
            "Which question tells too few slots from too small a KV pool?",
            options=LABELS,
        ),
        "q2": Question(
            "The paged service: how many average requests fit in its KV pool, half of each answer generated?",
            "requests",
        ),
        "q3": Question("The paged service: what share of the requests' time is spent in the queue?", "0 to 1"),
        "q4": Question("The paged service: three changes by id, the best first?", many=True),
        "q5": Question(
            "Your incident: doubling its fleet doesn't help; how many more dollars an hour does it cost?",
            "$ an hour",
        ),
    }
    return Checks({"q1": q1, "q2": q2, "q3": q3, "q4": q4, "q5": q5}, questions)


def _told_apart(name: str, first: Incident, second: Incident) -> str:
    """What a question says of both."""
    if name not in TOLD_BY:
        return f"{QUESTIONS[name].text}. Yours: {first.ask(name).text} The paged service: {second.ask(name).text}"
    a, b = reading(first, name), reading(second, name)
    verdict = "tells them apart" if max(a, b) > ALIKE * min(a, b) else "reads the same in both"
    return f"{TOLD_BY[name]}: {a:.3g} and {b:.3g}: {verdict}"


def _ranking(answer: object, truth: Reveal) -> tuple[Criterion, ...]:
    """Measured values, the first counted most, against the best order there is."""
    if not isinstance(answer, (list, tuple)) or len(answer) != RANKED or len(set(map(str, answer))) != RANKED:
        raise ValueError(f"give {RANKED} different ids in a list")
    values = truth.effects["value"]
    if unknown := [str(name) for name in answer if name not in CHANGES]:
        raise ValueError(f"no such change: {', '.join(unknown)}")
    if untried := [name for name in answer if name not in values]:
        raise ValueError(f"not tried out above: {', '.join(untried)}")
    best = [max(value, 0.0) for value in sorted(values, reverse=True)[:RANKED]]
    reached = sum(max(values[name], 0.0) / place for place, name in enumerate(answer, 1))
    possible = sum(value / place for place, value in enumerate(best, 1))
    share = reached / possible if possible else 1.0  # where nothing helped, any order is the best
    told = ", ".join(f"{name} {values[name]:+.2f}" for name in answer)
    best_three = f"The best three: {', '.join(values.sort_values(ascending=False).index[:RANKED])}."
    return (Criterion("ranking", round(RANKED * share, 2), RANKED, f"measured: {told}.", best_three),)
