"""A drill in a terminal: write and commit, take pushback, grade two samples, then yourself."""

import sys
import time
from collections.abc import Callable, Sequence

from course.lab.drills import calibrate
from course.lab.drills.checks import RANKS
from course.lab.drills.claims import menu
from course.lab.drills.clock import written
from course.lab.drills.drill import LEVELS, Commit, Criterion
from course.lab.drills.sitting import Sitting, off_text
from minillm.frontend.terminal import Lines

END = "."


class Terminal:
    """Asks for whatever a sitting doesn't have yet.

    Args:
        is_quiet: standard output is kept for JSON; prompts go to standard error.
    """

    def __init__(self, is_quiet: bool = False) -> None:
        self._screen = sys.stderr if is_quiet else sys.stdout
        words = [*menu("causes"), *menu("techniques"), *LEVELS]
        self._lines = Lines("drill", words, self._screen)

    def say(self, text: str) -> None:
        print(text, file=self._screen, flush=True)

    def write(self, sitting: Sitting) -> None:
        """Show the prompt, start the clock, and read an answer."""
        drill = sitting.drill
        self.say(f"{drill.drill.title} ({drill.drill.minutes} minutes)\n\n{drill.prompt}\n")
        self.say(f"The clock runs. Write your answer; a line with nothing but {END!r} ends it.")
        began = time.monotonic()
        lines = []
        while (line := self._lines.read("")) is not None and line.strip() != END:
            lines.append(line.rstrip("\n"))
        sitting.text, sitting.seconds = "\n".join(lines), time.monotonic() - began
        self.say(f"On the clock: {written(sitting.seconds)} of {written(60 * drill.drill.minutes)}.")

    def commit(self, sitting: Sitting) -> None:
        """What dominates, what comes second, the number, and up to three fixes; Enter leaves one out."""
        causes, fixes = menu("causes"), menu("techniques")
        self.say("\nCommit, by id (Tab completes, Enter leaves out).\nCauses: " + ", ".join(causes))
        dominant = self._choose("what dominates", causes)
        second = self._choose("the second problem", causes)
        number = self._ask(f"{sitting.drill.rubric.commit.number.asks} (with its unit) ")
        self.say("Fixes: " + ", ".join(fixes))
        ranked = [self._choose(f"fix {rank}", fixes) for rank in range(1, len(RANKS) + 1)]
        chosen = tuple(dict.fromkeys(each for each in ranked if each))
        sitting.commit = Commit(dominant=dominant, second=second, number=number, fixes=chosen)

    def push_back(self, sitting: Sitting) -> None:
        """The interviewer's questions on this answer, each answered in a line."""
        for asks in sitting.follow_ups:
            self.say(f"\nThe interviewer: {asks}")
            if reply := self._ask("> "):
                sitting.replies[asks] = reply
                for fault in sitting.faults(reply):
                    self.say(f"  wrong: {fault.says}")

    def grade_samples(self, sitting: Sitting) -> None:
        """Two samples, then where the grades were off."""
        drill, grades = sitting.drill, {}
        for label, name in calibrate.samples(drill).items():
            self.say(f"\nGrade this first. Answer {label}\n\n{drill.answers[name]}\n")
            levels = {each.key: self._level(each, label) for each in drill.rubric.criteria}
            grades[label] = {key: level for key, level in levels.items() if level}
        sitting.samples = grades
        self.say("\n" + off_text(sitting.calibration))

    def grade_own(self, sitting: Sitting) -> None:
        """The learner's own answer, criterion by criterion, with a quote for each."""
        self.say("\nNow your own answer, with a sentence of yours for each.")
        own = {}
        for each in sitting.drill.rubric.criteria:
            if level := self._level(each, "yours"):
                quote = self._ask("  your sentence: ") if level != LEVELS[0] else ""
                if quote and not calibrate.stands_in(quote, sitting.text):
                    self.say("  (not in your answer, so this grade won't count)")
                own[each.key] = (level, quote)
        sitting.own_written = own

    def _level(self, criterion: Criterion, whose: str) -> str:
        self.say(f"\n{criterion.name}: {criterion.asks}")
        for level, anchor in zip(LEVELS, criterion.anchors):
            self.say(f"  {level:8} {anchor}")
        return self._choose(f"{whose}, {criterion.key}", LEVELS)

    def _choose(self, name: str, options: Sequence[str] | dict[str, str]) -> str:
        """One of the options, or nothing."""
        while (typed := self._ask(f"{name}: ")) and typed not in options:
            self.say(f"no {typed!r} here: {', '.join(options)}")
        return typed

    def _ask(self, prompt: str) -> str:
        return (self._lines.read(prompt) or "").strip()


Stage = Callable[[Sitting], None]


def stages(terminal: Terminal, is_graded: bool = True) -> tuple[Stage, ...]:
    """What follows the writing."""
    asked: tuple[Stage, ...] = (terminal.commit, terminal.push_back)
    return (*asked, terminal.grade_samples, terminal.grade_own) if is_graded else asked
