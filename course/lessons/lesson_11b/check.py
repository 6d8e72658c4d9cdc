"""The check of lesson 11b. Its key comes from the runs that are passed in."""

from collections.abc import Mapping

from course.grading import Checks, Criterion, Question, choice
from course.lessons.lesson_11b.run import SpikeStory


def checks(stories: Mapping[str, SpikeStory]) -> Checks:
    """The question of lesson 11b.

    q1: the measure against the spike with the most requests answered in time by the large model, without a spare.
    """

    def q1(answer: object) -> tuple[Criterion, ...]:
        chosen = {name: story for name, story in stories.items() if "spare" not in name}
        by_large = {name: story.share("within SLO") - story.share("small") for name, story in chosen.items()}
        told = {
            name: f"{name}: {by_large[name]:.0%} within SLO by the large model, {story.share('refused'):.0%} refused, "
            f"{story.share('small'):.0%} by the small one"
            for name, story in chosen.items()
        }
        best = max(by_large.values())
        said = str(answer).strip().lower()
        key = said if said in by_large and by_large[said] >= best - 0.01 else max(by_large, key=by_large.get)
        return choice(answer, key, told)

    questions = {
        "q1": Question(
            "Without a spare, which measure got the most requests answered by the large model within the SLO?",
            options=tuple(name for name in stories if "spare" not in name),
        ),
    }
    return Checks({"q1": q1}, questions)
