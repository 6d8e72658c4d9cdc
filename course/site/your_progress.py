"""What the page "Your progress" knows of the course: lessons with their bets, the paths, what can be practised."""

from collections.abc import Sequence
from typing import Any

from course.drills.library import ALL as DRILLS
from course.grading.exercises import catalogue
from course.lessons.start.contents import PATHS
from course.lessons.start.contents import lessons as known_lessons
from course.rounds.library import IDS as ROUNDS
from course.rounds.library import find_round
from course.site.pages import Page
from course.tab.exercises import offered


def course_told(lessons: Sequence[Page]) -> dict[str, Any]:
    """Everything in the page's order; progress_page.js describes it.

    Args:
        lessons: their pages, in order. JavaScript puts keys such as "10" before "00", so their numbers stand apart.
    """
    here = {each.id for each in offered()}
    return {
        "numbers": [page.lesson for page in lessons],
        "lessons": {page.lesson: _lesson(page) for page in lessons},
        "paths": [{"name": path.name, "lessons": list(dict.fromkeys(path.numbers))} for path in PATHS],
        "exercises": [
            {
                "id": each.id,
                "name": each.title,
                "page": f"exercise_{each.id}.html" if each.id in here else "",
                "points": each.max_score,
                "costs": [hint.cost * each.max_score for hint in each.hints],
            }
            for each in catalogue()
        ],
        "drills": [
            {"id": drill.id, "name": f"Drill {number}", "page": f"drill_{drill.id}.html"}
            for number, drill in enumerate(DRILLS, 1)
        ],
        "rounds": [{"id": name, "name": find_round(name).title, "page": f"round_{name}.html"} for name in ROUNDS],
    }


def _lesson(page: Page) -> dict[str, Any]:
    """Its bets, each with the place on the page, and the questions of its check, which notebooks ask."""
    lesson = known_lessons()[page.lesson]
    bets = {part.key: part.bet for part in page.parts if part.kind == "bet" and part.key}
    return {"title": lesson.title, "page": f"{page.name}.html", "bets": bets, "questions": list(lesson.questions)}
