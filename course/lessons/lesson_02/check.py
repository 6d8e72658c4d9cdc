"""The check of lesson 02. Keys come from the runs that are passed in."""

from collections.abc import Mapping

from course.grading import Checks, Criterion, Question, near
from course.lab.queueing import kingman_wait, md1_wait
from course.lab.run import Run
from course.lab.visits import mean, visits_of, waits
from course.lessons.lesson_02.pictures import little


def checks(loads: Mapping[str, Run]) -> Checks:
    """Questions about the runs of the lesson.

    q1: the mean number of queued requests in the run at 80%, from Little's law.
    q2: M/D/1's mean wait at a load of 90%, in service times.
    q3: one slot, equal services, a load of 80%, gaps that vary twice as much as Poisson's: the mean wait.
    q4: 1,000 requests at a load of 125%: how many still wait when the last one comes?
    """

    def q1(answer: object) -> tuple[Criterion, ...]:
        visits = visits_of(loads["80%"])
        slips = {mean(waits(visits)): "that's W, the mean wait in seconds; multiply it by the arrivals per second"}
        return (near(answer, little(visits), "queued requests", slips, 0.1),)

    def q2(answer: object) -> tuple[Criterion, ...]:
        slips = {2 * md1_wait(0.9): "that's for exponential service times; equal ones halve it"}
        return (near(answer, md1_wait(0.9), "mean wait, service times", slips, 0.03),)

    def q3(answer: object) -> tuple[Criterion, ...]:
        slips = {
            md1_wait(0.8): "that's M/D/1, which assumes Poisson arrivals; put c_a² into Kingman's formula",
            kingman_wait(0.8, 2**0.5, 0.0): "you used c_a; the formula has c_a²",
        }
        return (near(answer, kingman_wait(0.8, 2.0, 0.0), "mean wait, service times", slips, 0.03),)

    def q4(answer: object) -> tuple[Criterion, ...]:
        slips = {250.0: "that's 25% of 1,000, but by the time the last one arrives, 1,000 / 1.25 are done"}
        return (near(answer, 1000 * (1 - 1 / 1.25), "queued requests", slips, 0.03),)

    questions = {
        "q1": Question(
            "In the run at 80%, how many requests are queued on average? Use the first columns of Little's table.",
            "requests",
        ),
        "q2": Question("M/D/1 at 90% load: how long is the mean wait?", "service times"),
        "q3": Question(
            "80% load, equal service times, gaps with c_a = 2 (bursts): how long is the mean wait?", "service times"
        ),
        "q4": Question(
            "1,000 requests arrive at 125% load: about how many are queued when the last one arrives?", "requests"
        ),
    }
    return Checks({"q1": q1, "q2": q2, "q3": q3, "q4": q4}, questions)
