"""The check of lesson 02. Keys come from the runs that are passed in."""

from collections.abc import Mapping

from course.lab.grading import Checks, Criterion, choice, close_to, near
from course.lab.lesson_02.tables import little
from course.lab.lesson_02.theory import md1_wait
from course.lab.lesson_02.visits import Visit, empty_seat_share, mean, visits_of, waits
from course.lab.run import Run
from course.lab.style import seconds

LONG_TOKENS = 4000


def checks(
    loads: Mapping[str, Run],
    ways: Mapping[str, Run],
    orders: Mapping[str, tuple[Visit, ...]],
    queue_limits: Mapping[str, Mapping[str, int]],
) -> Checks:
    """Questions about the runs of the lesson.

    q1: the mean number of people in line in the run at 80%, from Little's law.
    q2: which way of batching left the most seat time empty while somebody waited.
    q3: the order under which long prompts waited longest.
    q4: the queue limit that answered the most in time: "everybody may wait", "at most 4 in line", ...
    q5: M/D/1's mean wait at a load of 90%, in service times.
    """

    def q1(answer: object) -> tuple[Criterion, ...]:
        visits = visits_of(loads["80%"])
        slips = {mean(waits(visits)): "that is W, the mean wait in seconds: multiply it by the arrivals per second"}
        return (near(answer, little(visits), "people in line", slips, 0.1),)

    def q2(answer: object) -> tuple[Criterion, ...]:
        empty = {name: empty_seat_share(visits_of(run), run.config.max_num_seqs) for name, run in ways.items()}
        told = {name: f"{name} left {share:.0%} of the seat time empty" for name, share in empty.items()}
        return choice(answer, max(empty, key=empty.get), told)

    def q3(answer: object) -> tuple[Criterion, ...]:
        waited = {name: waits(v for v in visits if v.prompt > LONG_TOKENS) for name, visits in orders.items()}
        told = {
            name: f"under '{name}' long prompts waited {seconds(mean(each))}"
            if each
            else f"'{name}' turned them away at once"
            for name, each in waited.items()
        }
        longest = max(mean(each) for each in waited.values())
        named = str(answer).strip().lower()
        ties = [name for name, each in waited.items() if mean(each) == longest]
        return choice(answer, named if named in ties else ties[0], told)

    def q4(answer: object) -> tuple[Criterion, ...]:
        told = {
            name: f"{name}: {counts['in time']} of {sum(counts.values())} in time"
            for name, counts in queue_limits.items()
        }
        best = max(counts["in time"] for counts in queue_limits.values())
        named = str(answer).strip().lower()
        is_best = named in queue_limits and queue_limits[named]["in time"] == best  # of equals, any
        return choice(
            answer, named if is_best else max(queue_limits, key=lambda name: queue_limits[name]["in time"]), told
        )

    def q5(answer: object) -> tuple[Criterion, ...]:
        graded = close_to(answer, md1_wait(0.9), "mean wait, service times", tolerance=0.03)
        if not graded.earned and abs(float(answer) / (2 * md1_wait(0.9)) - 1) < 0.03:
            hint = "that is the wait when service times vary as exponential ones do; equal ones halve it"
            return (Criterion(graded.name, 0.5, 1, hint),)
        return (graded,)

    return Checks({"q1": q1, "q2": q2, "q3": q3, "q4": q4, "q5": q5})
