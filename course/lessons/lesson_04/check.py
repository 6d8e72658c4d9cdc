"""The check of lesson 04. Keys come from the runs that are passed in."""

from collections.abc import Mapping

from course.grading import Checks, Criterion, Question, as_count, choice, near
from course.lab.run import Run
from course.lessons.lesson_04.run import hit_rate, shared_tokens


def checks(last: Run, small: Mapping[str, Run]) -> Checks:
    """Questions about the runs of the lesson.

    Args:
        last: the run with the time in the last line.
        small: the runs "in turns" and "grouped" in the small cache.

    q1: tokens that request #1 of `last` found in the cache.
    q2: the hit rate of that run, as the engine counts it: 0 to 1.
    q3: the order that suits a cache too small for all tenants: "in turns" or "grouped".
    """
    view, size = last.row_of(1), last.snapshot.block_size
    alike = shared_tokens(last)

    def q1(answer: object) -> tuple[Criterion, ...]:
        key = view.num_cached_tokens
        said, found = as_count(answer), f"It's {key} here."
        if said == key:
            return (Criterion("tokens found", 1.0, 1, f"{key // size} whole blocks of {size}"),)
        if said == alike:
            hint = f"that many are shared, but only whole blocks of {size} are found"
            return (Criterion("tokens found", 0.5, 1, hint, found),)
        if said == key // size:
            hint = f"that's the number of blocks, and each has {size} tokens"
            return (Criterion("tokens found", 0.5, 1, hint, found),)
        if said == view.num_prompt_tokens:
            return (Criterion("tokens found", 0.0, 1, "that's its whole prompt, but its question isn't shared", found),)
        hint = "count the yellow beads in its row, and multiply by the block size"
        return (Criterion("tokens found", 0.0, 1, hint, found),)

    def q2(answer: object) -> tuple[Criterion, ...]:
        key = hit_rate(last)
        with_hit = sum(view.num_cached_tokens > 0 for view in last.views) / len(last.views)
        slips = {with_hit: "that's the share of requests that found something; engines count tokens"}
        return (near(answer, key, "hit rate", slips, 0.03, percent=True, slip_within=0.01),)

    def q3(answer: object) -> tuple[Criterion, ...]:
        rates = {how: hit_rate(run) for how, run in small.items()}
        words = {how: f"{how}: {rate:.0%} found in the small cache" for how, rate in rates.items()}
        return choice(answer, max(rates, key=rates.get), words)

    questions = {
        "q1": Question(
            "How many tokens did request #1 of `last` (the time in the last line) find in the cache?", "tokens"
        ),
        "q2": Question("What's the hit rate of that run over all four requests, as an engine counts it?", "0 to 1"),
        "q3": Question(
            "Three tenants, room for two: do A B C A B C (in turns) or A A B B C C (grouped) find more?",
            options=("in turns", "grouped"),
        ),
    }
    return Checks({"q1": q1, "q2": q2, "q3": q3}, questions)
