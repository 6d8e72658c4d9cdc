"""Three orders in which to take the lessons, for three readers. Times are computed from the lessons' own texts."""

from collections.abc import Mapping
from dataclasses import dataclass

from course.lab.start.contents import CHECK, DEEP, GUIDED, SAY, SURFACE, Lesson

ALL: tuple[str, ...] = ()
"""Every section."""
QUICK = (SURFACE, SAY, CHECK)
HANDS_ON = (SURFACE, GUIDED, SAY, CHECK)
SHORT = {SURFACE: "surface", GUIDED: "guided", DEEP: "deep dive", SAY: "interview", CHECK: "check"}


@dataclass(frozen=True)
class Stop:
    """One lesson on a path."""

    number: str
    why: str
    sections: tuple[str, ...] = ALL

    @property
    def which(self) -> str:
        return ", ".join(SHORT[section] for section in self.sections) if self.sections else "all of it"


@dataclass(frozen=True)
class Stage:
    """A day, or a question."""

    name: str
    stops: tuple[Stop, ...]


@dataclass(frozen=True)
class Path:
    name: str
    for_whom: str
    stages: tuple[Stage, ...]

    @property
    def numbers(self) -> list[str]:
        """Its lessons, in its order."""
        return [stop.number for stage in self.stages for stop in stage.stops]


def minutes(stage: Stage, lessons: Mapping[str, Lesson]) -> float:
    """Of the stops whose lessons are there."""
    return sum(lessons[stop.number].minutes(*stop.sections) for stop in stage.stops if stop.number in lessons)


INTERVIEW = Path(
    "Interview in two days",
    "You know how to program, and have to talk about serving the day after tomorrow.",
    (
        Stage("Day one: where the time goes", (
            Stop("00", "five phases, in slow motion", HANDS_ON),
            Stop("01", "ask for two numbers before anything else"),
            Stop("02", "why lines grow, and what no order can cure", HANDS_ON),
            Stop("03", "what a prompt costs, and who else pays", QUICK),
            Stop("04", "the order of a prompt", QUICK),
            Stop("06", "the memory wall: the envelope that every interview wants", HANDS_ON),
        )),
        Stage("Day two: techniques, money, and talking", (
            Stop("05", "TTFT is mostly about the neighbours", QUICK),
            Stop("07", "how many chats fit", HANDS_ON),
            Stop("08", "when drafts pay, and when they cost", HANDS_ON),
            Stop("09", "which phases fewer bits move", QUICK),
            Stop("10", "what the server cannot see", QUICK),
            Stop("11", "how many replicas, and is it a replica problem?", HANDS_ON),
            Stop("12", "find the cause by asking"),
            Stop("13", "talk against the clock"),
        )),
    ),
)  # fmt: skip
SERVER = Path(
    "I run a server",
    "Something is slow, or will be. Each stage begins with what you see; the guides at the top are the short form.",
    (
        Stage("First: see it", (
            Stop("01", "two numbers, by prompt length, and is the load test honest?"),
            Stop("12", "practise on incidents whose cause is hidden"),
        )),
        Stage("The first token is late", (
            Stop("02", "seats, order, limits"),
            Stop("05", "whose time is it?"),
            Stop("04", "is the prefix found?"),
            Stop("03", "prompt lengths and chunks"),
        )),
        Stage("Text drips", (
            Stop("06", "where is the knee of this machine?"),
            Stop("08", "drafts, and their gates"),
            Stop("09", "fewer bits"),
            Stop("10", "or is it the proxy?"),
        )),
        Stage("It does not fit, or costs too much", (
            Stop("07", "what the KV pool holds"),
            Stop("11", "operating point, replicas, spikes"),
            Stop("14", "what to believe of what you read"),
        )),
    ),
)  # fmt: skip
TEACHER = Path(
    "I teach",
    "Six sessions. Project the surface, let them lock predictions before you run, then hand over the instruments.",
    (
        Stage("1 · Phases and numbers", (Stop("00", "the whole room predicts"), Stop("01", "same p99, two illnesses"))),
        Stage("2 · Queues", (Stop("02", "the waiting room on the projector"),)),
        Stage("3 · Prompts", (Stop("03", "bets on four times the length"), Stop("04", "drag the time through a prompt"),
                              Stop("05", "who pays?"))),
        Stage("4 · Memory", (Stop("06", "fill the roofline together"), Stop("07", "the block map"))),
        Stage("5 · Techniques", (Stop("08", "draft and verify"), Stop("09", "before and after, by phase"),
                                 Stop("10", "the wire"))),
        Stage("6 · Capacity and diagnosis", (Stop("11", "the worksheet"), Stop("12", "one incident, in pairs"),
                                             Stop("13", "drills, with the rubric on the wall"),
                                             Stop("14", "each takes one claim, and re-runs it"))),
    ),
)  # fmt: skip
PATHS = (INTERVIEW, SERVER, TEACHER)
