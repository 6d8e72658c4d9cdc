"""Two incidents that look alike: the same question put to both, one panel above the other."""

from collections.abc import Mapping

from course.incidents import Incident
from course.incidents.evidence import Evidence
from course.incidents.questions import BY_ID
from course.incidents.questions_clients import OFFERED_LAST_WEEK
from course.lab.display import Html, as_table
from course.lab.explorer import Explorer, choices
from course.lab.predict import Outcome

QUESTIONS = ("queue_over_time", "arrivals", "phases", "ttft_itl", "gpu", "batch", "kv_use", "preemptions")
"""From those that tell nothing apart to those that do."""
ALIKE = 1.5
"""Two numbers within this factor don't tell incidents apart."""
TOLD_BY: Mapping[str, str] = {
    "arrivals": "Arrivals against last week", "queue_over_time": "Is the queue growing?",
    "gpu": "GPU utilisation", "kv_use": "How much of the KV pool is held?",
}  # fmt: skip


def reading(incident: Incident, question: str) -> float:
    """The one number that an on-call engineer reads off the answer.

    Returns:
        arrivals: requests a second over last week's; queue: waiting in the last third over the second; gpu and KV:
        percent.
    """
    if question == "arrivals":
        rates = incident.ask(question).data["mean"]
        return float(rates["offered"] / rates[OFFERED_LAST_WEEK])
    if question == "queue_over_time":
        waiting = incident.ask(question).data["waiting, mean"]
        _, second, last = waiting
        return float(last / max(second, 1e-9))
    data = incident.ask(question).data
    return float(data["busy, %"].mean() if question == "gpu" else data["max"].iloc[0])


def apart(one: Incident, other: Incident) -> tuple[Outcome, Html]:
    """Which question tells them apart: the one whose numbers differ by the largest factor."""
    pairs = {question: (reading(one, question), reading(other, question)) for question in TOLD_BY}
    factors = {name: max(pair) / max(min(pair), 1e-9) for name, pair in pairs.items()}
    best = max(factors, key=factors.get)
    rows = [
        (
            TOLD_BY[name],
            *(f"{value:.3g}" for value in pair),
            f"× {factors[name]:.1f}" if factors[name] > ALIKE else "no",
        )
        for name, pair in pairs.items()
    ]
    told = "; ".join(f"{TOLD_BY[name]}: {a:.3g} and {b:.3g}" for name, (a, b) in pairs.items())
    return Outcome(TOLD_BY[best], told), as_table(("question", "first", "second", "tells them apart?"), rows)


def beside(question: str, **incidents: Incident) -> Html:
    """One question's answers."""
    found = {name: incident.ask(question) for name, incident in incidents.items()}
    parts = [_panel(f"{name}: {BY_ID[question].text}", evidence) for name, evidence in found.items()]
    return Html("".join(parts), "\n".join(f"{name}: {evidence.text}" for name, evidence in found.items()))


def _panel(title: str, evidence: Evidence) -> str:
    words = f"<p style='margin:2px 0 12px'>{evidence.text}</p>"
    if evidence.panel is None:
        return f"<b>{title}</b>{words}"
    return evidence.panel.draw(title).svg() + words


def explorer(first: Incident, second: Incident) -> Explorer:
    """A menu of the questions."""
    words = {BY_ID[name].text: name for name in QUESTIONS}
    return Explorer(
        lambda question: beside(words[question], first=first, second=second),
        question=choices("question", list(words), BY_ID["queue_over_time"].text),
    )
