"""The check of lesson 08. Keys come from the formula, from measured costs, and from answers that were watched."""

from collections.abc import Mapping

from course.grading import Checks, Criterion, Question, as_number, choice, near
from course.lab.draft_story import DraftStory
from course.lab.speculation_gain import break_even, emitted, popular
from course.lab.verify_costs import VerifyCosts, gain

ALPHA, K, C = 0.8, 5, 0.05
LOOKED_UP_K = 4


def checks(costs: VerifyCosts, told: Mapping[str, tuple[DraftStory, DraftStory]]) -> Checks:
    """Questions about what a verification yields, costs, and leaves.

    q1: tokens per verification at alpha 0.8 and k 5.
    q2: speedup at the same, when a guess costs 0.05 steps and checking is as cheap as a step.
    q3: what a verification yields when its very first guess fails: "nothing", "one token" or "the draft again".
    q4: acceptance at which drafts of 4 that cost nothing break even here, at the largest batch that was measured; or
        "never".
    q5: of the first answer that was watched: the guesses that passed, in all.
    """

    def q1(answer: object) -> tuple[Criterion, ...]:
        slips = {
            popular(ALPHA, K): "that's k × α, which forgets that a token counts only if all before it were accepted",
            emitted(ALPHA, K) - 1: "those are the draft tokens alone; add the model's own token",
            emitted(ALPHA, K - 1): "one term short: the sum goes up to α^k, so it has k + 1 terms",
            1 / (1 - ALPHA): "that's the limit for endlessly long drafts",
        }
        return (near(answer, emitted(ALPHA, K), "tokens per verification", slips, 0.03),)

    def q2(answer: object) -> tuple[Criterion, ...]:
        steps = 1 + K * C
        slips = {
            emitted(ALPHA, K): "that's tokens per verification; its drafts take time, too",
            emitted(ALPHA, K) / (1 + C): "that pays for one draft token, and there are k of them, one after the other",
            popular(ALPHA, K) / steps: "that's k × α again, divided by the right cost",
        }
        return (near(answer, emitted(ALPHA, K) / steps, "speedup", slips, 0.03),)

    def q3(answer: object) -> tuple[Criterion, ...]:
        fails = sum(step.passed == 0 and step.corrects for story, _ in told.values() for step in story.steps)
        seen = f"that happened {fails} times in the answers above, and each time the step yielded the model's own token"
        return choice(answer, "one token", {"nothing": seen, "one token": seen, "the draft again": seen})

    def q4(answer: object) -> tuple[Criterion, ...]:
        batch = costs.batches[-1]
        verify = costs.relative(batch, LOOKED_UP_K)
        key = break_even(LOOKED_UP_K, 0.0, verify)
        told_cost = f"checking {LOOKED_UP_K} draft tokens took {verify:.2f} steps at batch {batch}"
        if key is None:
            said = "never" if str(answer).strip().lower() == "always loses" else str(answer).strip().lower()
            if said != "never":
                float(said)
            words = f"{told_cost}, and no draft yields more than {LOOKED_UP_K + 1} tokens"
            return (Criterion("break-even", float(said == "never"), 1, "", words),)
        value = 1.0 if str(answer).strip().lower() in ("never", "always loses") else as_number(answer)
        if value > 1:  # in percent
            value /= 100
        earned = 1.0 if abs(value - key) <= 0.05 else 0.5 if abs(value - key) <= 0.15 else 0.0
        at = gain(costs, batch, LOOKED_UP_K, min(max(value, 0.0), 1.0), 0.0)
        words = f"{told_cost}: at an acceptance of {value:.0%} the speedup would be ×{at:.2f}"
        return (Criterion("break-even", earned, 1, words, f"It is ×1 at {key:.0%}."),)

    def q5(answer: object) -> tuple[Criterion, ...]:
        name, (story, _) = next(iter(told.items()))
        key = sum(step.passed for step in story.steps)
        guessed = sum(len(step.drafted) for step in story.steps)
        value = as_number(answer)
        slip = ""
        if value == guessed:
            slip = f"those are all draft tokens; {guessed - key} of them weren't accepted."
        elif value == story.num_tokens:
            slip = "that's the whole answer."
        words = (
            f"{name}: {story.num_tokens} tokens in {len(story.steps)} steps, and in each step one is the model's own"
        )
        return (Criterion("accepted draft tokens", float(value == key), 1, slip, words),)

    questions = {
        "q1": Question("α = 0.8, k = 5: how many tokens does a verification yield, on average?", "tokens"),
        "q2": Question(
            "The same, with draft tokens at 0.05 steps each and checking as cheap as a plain step: what's the speedup?",
            "times",
        ),
        "q3": Question(
            "The very first draft token is rejected. What does the step yield?",
            options=("nothing", "one token", "the draft again"),
        ),
        "q4": Question(
            "Free drafts of 4 on this machine, at the largest batch measured: at what acceptance do they break even?",
            '0.35, 35, or "never"',
        ),
        "q5": Question(
            "The first answer you watched (copying): how many draft tokens were accepted, in all?", "tokens"
        ),
    }
    return Checks({"q1": q1, "q2": q2, "q3": q3, "q4": q4, "q5": q5}, questions)
