"""Admission control: who is let in, so that all who are meet an SLO on TTFT."""

import operator
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from course.lab.grading.blame import shown
from course.lab.grading.exercise import Answer, Exercise, Hint, Mistake, Part
from course.lab.grading.tools import call, compare, left_alone, number

MANY, SLOW_S = 4000, 0.8
"""Requests, and the longest they may take together: looking at the seats takes a twentieth of it, playing all that came
before for each of them takes five times as much."""


@dataclass(frozen=True)
class Server:
    """The service model. Its times are sums of powers of two, so that no rounding decides at the border."""

    seats: int
    slo_s: float
    read_s: float
    """Seconds a prompt token."""
    write_s: float
    """Seconds an output token."""

    def told(self) -> str:
        return f"seats={self.seats}, slo_s={self.slo_s}, read_s={self.read_s}, write_s={self.write_s}"


Arrival = tuple[float, int, int]
"""Seconds, prompt tokens, output tokens."""


def right_ttft(seat_free_at: Sequence[float], arrival: float, prompt_tokens: int, read_s: float) -> float:
    """Asks each seat, and takes the best of them."""
    return min(max(free - arrival, 0.0) for free in seat_free_at) + prompt_tokens * read_s


TTFT_SLIPS: dict[str, Callable[..., Any]] = {
    "nobody waits for a time that is past: the wait is 0 when a seat is free already":
        lambda free, arrival, prompt, read: min(free) - arrival + prompt * read,
    "that is the wait alone: the first token comes when its own prompt is read": lambda free, arrival, prompt, read: (
        max(min(free) - arrival, 0)),
    "that is a moment, not how long it took: count from its arrival": lambda free, arrival, prompt, read: (
        max(min(free), arrival) + prompt * read),
    "it takes the seat that is free first, not the last one": lambda free, arrival, prompt, read: (
        max(max(free) - arrival, 0) + prompt * read),
    "it takes the seat that is free first, whichever number it has": lambda free, arrival, prompt, read: (
        max(free[0] - arrival, 0) + prompt * read),
    "seats do not wait for each other: the first that is free counts, not their mean": lambda free, arrival, prompt, read: (
        max(sum(free) / len(free) - arrival, 0) + prompt * read),
    "nobody's wait is in it: a seat may be taken until later": lambda free, arrival, prompt, read: prompt * read,
    "other seats' times are added up there: only the seat it takes counts": lambda free, arrival, prompt, read: (
        sum(max(each - arrival, 0) for each in free) + prompt * read),
}  # fmt: skip


def decide(
    server: Server,
    requests: Sequence[Arrival],
    judged: Callable[[float, Arrival, Server], float] = lambda start, r, s: start - r[0] + r[1] * s.read_s,
    busy: Callable[[Arrival, Server], float] = lambda r, s: r[1] * s.read_s + r[2] * s.write_s,
    begins: Callable[[float, float], float] = max,
    pick: Callable[[list[float]], float] = min,
    fits: Callable[[float, float], bool] = operator.le,
    books_refused: bool = False,
) -> list[bool]:
    """The rule of the statement; each keyword is where a usual mistake differs."""
    free, said = [0.0] * server.seats, []
    for request in requests:
        seat = free.index(pick(free))
        start = begins(free[seat], request[0])
        said.append(fits(judged(start, request, server), server.slo_s))
        if said[-1] or books_refused:
            free[seat] = start + busy(request, server)
    return said


SLIPS: dict[str, Callable[[Server, Sequence[Arrival]], list[bool]]] = {
    "everybody is let in there: then the line grows, and soon nobody meets the SLO": lambda s, rs: [True] * len(rs),
    "nobody is let in there": lambda s, rs: [False] * len(rs),
    "who is refused takes a seat all the same there: it is gone, and leaves no trace": lambda s, rs: decide(
        s, rs, books_refused=True),
    "a TTFT of exactly slo_s meets the SLO: at most, not less than": lambda s, rs: decide(s, rs, fits=operator.lt),
    "only the wait is held against the SLO there: TTFT has its own prompt in it": lambda s, rs: decide(
        s, rs, judged=lambda start, r, s: start - r[0]),
    "the whole answer is held against the SLO there: TTFT ends with the first token": lambda s, rs: decide(
        s, rs, judged=lambda start, r, s: start - r[0] + r[1] * s.read_s + r[2] * s.write_s),
    "a seat is free again when the answer is written, not when the prompt is read": lambda s, rs: decide(
        s, rs, busy=lambda r, s: r[1] * s.read_s),
    "a seat is taken while its prompt is read, too": lambda s, rs: decide(s, rs, busy=lambda r, s: r[2] * s.write_s),
    "a seat that was free for a while is booked from the past on: it begins at the arrival": lambda s, rs: decide(
        s, rs, begins=lambda free, arrival: free, judged=lambda start, r, s: max(start - r[0], 0) + r[1] * s.read_s),
    "a free seat gives a negative wait there: nobody begins before it arrives": lambda s, rs: decide(
        s, rs, begins=lambda free, arrival: free),
    "the server has more than one seat": lambda s, rs: decide(Server(1, s.slo_s, s.read_s, s.write_s), rs),
    "it takes the seat that is free first, not the last one": lambda s, rs: decide(s, rs, pick=max),
    "only who finds a free seat is let in there: a short wait may be within the SLO": lambda s, rs: decide(
        s, rs, judged=lambda start, r, s: r[1] * s.read_s if start == r[0] else float("inf")),
    "only its own prompt is looked at there: it waits for a seat first": lambda s, rs: decide(
        s, rs, judged=lambda start, r, s: r[1] * s.read_s),
}  # fmt: skip


def asked(answer: Answer, server: Server, requests: Sequence[Arrival]) -> list[bool]:
    admission = answer.Admission(server.seats, server.slo_s, server.read_s, server.write_s)
    said = []
    for request in requests:
        value = number(admission.admit(*request), f"admit{request}")
        if value not in (0, 1):
            raise Mistake(f"admit{request} should be True or False; yours is {shown(value)}")
        said.append(value == 1)
    return said


def judge_cases(answer: Answer, cases: list[tuple[Server, list[Arrival]]]) -> None:
    found = [(server, requests, asked(answer, server, requests)) for server, requests in cases]
    for server, requests, said in found:
        wanted = decide(server, requests)
        if said == wanted:
            continue
        i = next(i for i, pair in enumerate(zip(said, wanted)) if pair[0] != pair[1])
        slip = next((words for words, wrong in SLIPS.items() if all(wrong(s, rs) == f for s, rs, f in found)), None)
        before = ", ".join(f"{r} {'in' if ok else 'refused'}" for r, ok in zip(requests[:i][-4:], wanted[:i][-4:]))
        told = (
            f"Admission({server.told()}), request {i}, after {'... ' if i > 4 else ''}{before or 'nobody'}: "
            f"admit{requests[i]} gave {said[i]}, expected {wanted[i]}: its TTFT would be "
            f"{ttft_if_admitted(server, requests[:i], wanted, requests[i]):g} s"
        )
        raise Mistake(f"{told}. {slip[0].upper()}{slip[1:]}" if slip else told)


def ttft_if_admitted(server: Server, earlier: Sequence[Arrival], let_in: Sequence[bool], request: Arrival) -> float:
    inside = [each for each, ok in zip(earlier, let_in) if ok]
    return played(server, [*inside, request])[-1]


def played(server: Server, requests: Sequence[Arrival]) -> list[float]:
    """TTFT of each, seconds, if all of these are served, first come, first served."""
    free, ttfts = [0.0] * server.seats, []
    for arrival, prompt, output in requests:
        free.sort()
        first_token = max(free[0], arrival) + prompt * server.read_s
        free[0] = first_token + output * server.write_s
        ttfts.append(first_token - arrival)
    return ttfts


def some_server(rng: random.Random, seats: int) -> Server:
    return Server(seats, rng.choice((0.5, 1.0, 1.5, 2.0)), 1 / 1024, rng.choice((1 / 64, 1 / 128)))


def traffic(rng: random.Random, server: Server, count: int, load: float) -> list[Arrival]:
    """Arrivals at random, on a grid of 1/64 s; now and then several at once, and now and then a pause.

    Args:
        load: work that arrives, relative to what the seats can do.
    """
    now, arrivals = rng.randint(0, 64) / 64, []
    for _ in range(count):
        prompt, output = 16 * rng.randint(1, 30), rng.randint(1, 96)
        arrivals.append((now, prompt, output))
        work = prompt * server.read_s + output * server.write_s
        pause = rng.expovariate(1.0) * work / server.seats / load + (rng.random() < 0.04) * 4
        now += round(rng.choice((0, 1, 2)) * pause * 64) / 64
    return arrivals


def predicts(answer: Answer, rng: random.Random) -> str:
    cases = []
    for seats in (1, 1, 2, 3, 5, 8):
        for _ in range(3):
            free = [rng.randint(0, 640) / 64 for _ in range(seats)]
            cases.append((free, rng.randint(0, 640) / 64, rng.randint(1, 900), 1 / 1024))
    cases += [([3.0, 5.0], 4.0, 100, 1 / 512), ([0.0, 0.0], 0.0, 512, 1 / 512), ([9.0, 8.0], 8.0, 1, 1 / 512)]
    found = [(case, number(call(answer.predict_ttft, *case), "predict_ttft(...)")) for case in cases]
    compare("predict_ttft", found, right_ttft, TTFT_SLIPS)
    left_alone(answer.predict_ttft, [5.0, 3.0], 1.0, 64, 1 / 64)
    return "the wait for the first seat, and its own prompt"


def with_seats(choices: tuple[int, ...]) -> Callable[[Answer, random.Random], str]:
    def judge(answer: Answer, rng: random.Random) -> str:
        cases = []
        for seats in choices:
            for load in (0.6, 1.5, 3.0):
                server = some_server(rng, seats)
                cases.append((server, traffic(rng, server, 60, load)))
        judge_cases(answer, cases)
        return "in when its TTFT will be within the SLO, else refused"

    return judge


def at_the_border(answer: Answer, rng: random.Random) -> str:
    cases = []
    for seats in (1, 2, 3):
        server = some_server(rng, seats)
        fits = round(server.slo_s / server.read_s)  # prompt tokens that are read in exactly slo_s
        long = (0.0, fits // 2, 64)
        until = long[1] * server.read_s + 64 * server.write_s
        crowd = [long] * seats
        own = rng.choice((64, 128))
        just = until + own * server.read_s - server.slo_s
        exact, early = (just, own, 1), (just - 1 / 64, own, 1)
        if just >= 0:
            cases += [(server, [*crowd, exact]), (server, [*crowd, early])]
        cases += [(server, [(2.0, fits, 5)]), (server, [(2.0, fits + 1, 5)]), (server, [(0.0, fits, 5)])]
        cases.append((server, [(1.0, fits * 3, 2), (1.0, fits * 3, 2), (1.0, 16, 2)]))
    judge_cases(answer, cases)
    return "exactly slo_s is within the SLO; what can never meet it is refused at once"


def goodput(answer: Answer, rng: random.Random) -> str:
    best = ""
    for seats, load in ((2, 2.5), (4, 4.0)):
        server = some_server(rng, seats)
        requests = traffic(rng, server, 400, load)
        seconds = requests[-1][0] - requests[0][0]
        said = asked(answer, server, requests)
        inside = [each for each, ok in zip(requests, said) if ok]
        ttfts = played(server, inside)
        good = sum(ttft <= server.slo_s for ttft in ttfts)
        everybody = sum(ttft <= server.slo_s for ttft in played(server, requests))
        wanted = sum(decide(server, requests))
        about = (
            f"400 requests in {seconds:.0f} s were played: you let {len(inside)} in, and {good} of these met the SLO, a "
            f"goodput of {good / seconds:.2f} per second ({everybody / seconds:.2f} with everybody let in, "
            f"{wanted / seconds:.2f} with the rule of the statement)"
        )
        if good < len(inside):
            raise Mistake(
                f"{about}. Somebody let in missed the SLO: was its wait, its own prompt, or a seat's time forgotten?"
            )
        if good != wanted:
            raise Mistake(f"{about}. Who is refused although it would meet the SLO is lost for nothing")
        best = f"goodput {good / seconds:.2f} per second, with everybody let in {everybody / seconds:.2f}"
    return best


def on_their_own(answer: Answer, rng: random.Random) -> str:
    server = some_server(rng, 2)
    requests = traffic(rng, server, 120, 4.0)
    first = asked(answer, server, requests)
    one = answer.Admission(server.seats, server.slo_s, server.read_s, server.write_s)
    two = answer.Admission(1, server.slo_s, server.read_s, server.write_s)
    mixed = []
    for request in requests:
        mixed.append(bool(one.admit(*request)))
        two.admit(*request)
    if mixed != first:
        raise Mistake("two Admissions at work side by side disturb each other: keep the seats in self")
    if first != decide(server, requests):
        raise Mistake("it does not keep the rule yet: see the parts above")
    server = some_server(rng, 32)
    many = traffic(rng, server, MANY, 2.0)
    admission = answer.Admission(server.seats, server.slo_s, server.read_s, server.write_s)
    began = time.process_time()
    for done, request in enumerate(many):
        admission.admit(*request)
        if done % 50 == 0 and time.process_time() - began > SLOW_S:
            raise Mistake(
                f"after {done} requests it had taken {SLOW_S} s: the time for each grows with how many came before. "
                "The seats are all you need to remember", 0.5
            )  # fmt: skip
    return "two servers know nothing of each other, and a decision does not take longer every time"


EXERCISE = Exercise(
    id="admission-control",
    title="Admission control that meets an SLO",
    lesson=2,
    difficulty=2,
    minutes=35,
    entry_points=("predict_ttft", "Admission"),
    parts=(
        Part("a predicted TTFT", 2, predicts),
        Part("one seat", 2, with_seats((1, 1))),
        Part("several seats", 2, with_seats((2, 3, 6))),
        Part("at the border", 1, at_the_border),
        Part("goodput", 3, goodput),
        Part("on its own", 1, on_their_own),
    ),
    hints=(
        Hint("All you need to remember is when each seat will be free. At the beginning: 0 for all of them.", 0.1),
        Hint("Who is let in takes the seat with the smallest time; it is free again at max(that time, arrival) + reading + "
             "writing.", 0.15),
    ),
)  # fmt: skip
