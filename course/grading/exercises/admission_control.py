"""Admission control: which requests are admitted, so that all of them meet an SLO on TTFT."""

import operator
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from course.grading.growth import WorkCost, cost_of, hold_steady
from course.grading.tools import Answer, Slips, compare, expect, hold, truth

MANY = (100, 800, 2_400)
"""Requests that are decided on, one after the other."""


@dataclass(frozen=True)
class Server:
    """The service model. Its times are sums of powers of two, so that no rounding decides at the border."""

    slots: int
    slo_s: float
    prefill_s: float
    """Seconds a prompt token."""
    decode_s: float
    """Seconds an output token."""

    def described(self) -> str:
        return f"slots={self.slots}, slo_s={self.slo_s}, prefill_s={self.prefill_s}, decode_s={self.decode_s}"


Arrival = tuple[float, int, int]
"""Seconds, prompt tokens, output tokens."""


def right_ttft(slot_free_at: Sequence[float], arrival: float, prompt_tokens: int, prefill_s: float) -> float:
    """Asks each slot, and takes the best of them."""
    return min(max(free - arrival, 0.0) for free in slot_free_at) + prompt_tokens * prefill_s


TTFT_SLIPS: dict[str, Callable[..., Any]] = {
    "negative_wait": lambda free, arrival, prompt, read: min(free) - arrival + prompt * read,
    "wait_without_prefill": lambda free, arrival, prompt, read: max(min(free) - arrival, 0),
    "waits_for_last_free_slot": lambda free, arrival, prompt, read: max(max(free) - arrival, 0) + prompt * read,
    "always_takes_first_slot": lambda free, arrival, prompt, read: max(free[0] - arrival, 0) + prompt * read,
    "waits_for_mean_of_slots": lambda free, arrival, prompt, read: (
        max(sum(free) / len(free) - arrival, 0) + prompt * read
    ),
    "no_wait_for_slot": lambda free, arrival, prompt, read: prompt * read,
}


def decide(
    server: Server,
    requests: Sequence[Arrival],
    judged: Callable[[float, Arrival, Server], float] = lambda start, r, s: start - r[0] + r[1] * s.prefill_s,
    busy: Callable[[Arrival, Server], float] = lambda r, s: r[1] * s.prefill_s + r[2] * s.decode_s,
    begins: Callable[[float, float], float] = max,
    pick: Callable[[list[float]], float] = min,
    fits: Callable[[float, float], bool] = operator.le,
    books_refused: bool = False,
) -> list[bool]:
    """The rule of the statement; each keyword is where a usual mistake differs."""
    free, said = [0.0] * server.slots, []
    for request in requests:
        slot = free.index(pick(free))
        start = begins(free[slot], request[0])
        said.append(fits(judged(start, request, server), server.slo_s))
        if said[-1] or books_refused:
            free[slot] = start + busy(request, server)
    return said


def own_prefill(request: Arrival, server: Server) -> float:
    return request[1] * server.prefill_s


SLIPS: Slips = {
    "admits_every_request": lambda s, rs: [True] * len(rs),
    "refused_request_takes_slot": partial(decide, books_refused=True),
    "exactly_the_slo_refused": partial(decide, fits=operator.lt),
    "compares_wait_alone_with_slo": partial(decide, judged=lambda start, r, s: start - r[0]),
    "compares_e2e_with_slo": partial(
        decide, judged=lambda start, r, s: start - r[0] + own_prefill(r, s) + r[2] * s.decode_s
    ),
    "slot_freed_after_prefill": partial(decide, busy=own_prefill),
    "one_decode_too_few": partial(decide, busy=lambda r, s: own_prefill(r, s) + (r[2] - 1) * s.decode_s),
    "slot_booked_from_the_past": partial(
        decide, begins=lambda free, arrival: free, judged=lambda start, r, s: max(start - r[0], 0) + own_prefill(r, s)
    ),
    "idle_slot_credits_wait": partial(decide, begins=lambda free, arrival: free),
    "only_one_slot": lambda s, rs: decide(replace(s, slots=1), rs),
    "waits_for_last_free_slot": partial(decide, pick=max),
    "admits_only_without_wait": partial(
        decide, judged=lambda start, r, s: own_prefill(r, s) if start == r[0] else float("inf")
    ),
    "ignores_wait_for_slot": partial(decide, judged=lambda start, r, s: own_prefill(r, s)),
}


def asked(answer: Answer, server: Server, requests: Sequence[Arrival]) -> list[bool]:
    admission = answer.Admission(server.slots, server.slo_s, server.prefill_s, server.decode_s)
    found = answer.play(admission, [("admit", request) for request in requests])
    return [truth(each, f"admit{request}") for request, each in zip(requests, found)]


def judge_cases(answer: Answer, cases: list[tuple[Server, list[Arrival]]]) -> None:
    found = [(case, asked(answer, *case)) for case in cases]
    compare("admit", found, decide, SLIPS, agree=operator.eq, difference=first_decision)


def first_decision(case: tuple[Server, list[Arrival]], said: list[bool], wanted: list[bool]) -> str:
    """The first one that is wrong, in words."""
    server, requests = case
    i = next(i for i, pair in enumerate(zip(said, wanted)) if pair[0] != pair[1])
    before = ", ".join(f"{r} {'in' if ok else 'refused'}" for r, ok in zip(requests[:i][-4:], wanted[:i][-4:]))
    admitted = [request for request, is_in in zip(requests[:i], wanted) if is_in]
    return (
        f"Admission({server.described()}), request {i}, after {'... ' if i > 4 else ''}{before or 'none'}: "
        f"admit{requests[i]} gave {said[i]}, expected {wanted[i]}: its TTFT would be "
        f"{played(server, [*admitted, requests[i]])[-1]:g} s"
    )


def played(server: Server, requests: Sequence[Arrival]) -> list[float]:
    """TTFT of each, seconds, if all of these are served, first come, first served."""
    free, ttfts = [0.0] * server.slots, []
    for arrival, prompt, output in requests:
        free.sort()
        first_token = max(free[0], arrival) + prompt * server.prefill_s
        free[0] = first_token + output * server.decode_s
        ttfts.append(first_token - arrival)
    return ttfts


def some_server(rng: random.Random, slots: int) -> Server:
    return Server(slots, rng.choice((0.5, 1.0, 1.5, 2.0)), 1 / 1024, rng.choice((1 / 64, 1 / 128)))


def traffic(rng: random.Random, server: Server, count: int, load: float) -> list[Arrival]:
    """Arrivals at random, on a grid of 1/64 s; now and then several at once, and now and then a pause.

    Args:
        load: work that arrives, relative to what the slots can do.
    """
    now, arrivals = rng.randint(0, 64) / 64, []
    for _ in range(count):
        prompt, output = 16 * rng.randint(1, 30), rng.randint(1, 96)
        arrivals.append((now, prompt, output))
        work = prompt * server.prefill_s + output * server.decode_s
        pause = rng.expovariate(1.0) * work / server.slots / load + (rng.random() < 0.04) * 4
        now += round(rng.choice((0, 1, 2)) * pause * 64) / 64
    return arrivals


def predicts(answer: Answer, rng: random.Random) -> None:
    cases = []
    for slots in (1, 1, 2, 3, 5, 8):
        for _ in range(3):
            free = [rng.randint(0, 640) / 64 for _ in range(slots)]
            cases.append((free, rng.randint(0, 640) / 64, rng.randint(1, 900), 1 / 1024))
    cases += [([3.0, 5.0], 4.0, 100, 1 / 512), ([0.0, 0.0], 0.0, 512, 1 / 512), ([9.0, 8.0], 8.0, 1, 1 / 512)]
    hold(answer.predict_ttft, cases, right_ttft, TTFT_SLIPS)


def with_slots(answer: Answer, rng: random.Random, choices: list[int]) -> None:
    cases = []
    for slots in choices:
        for load in (0.6, 1.5, 3.0):
            server = some_server(rng, slots)
            cases.append((server, traffic(rng, server, 60, load)))
    judge_cases(answer, cases)


def at_the_border(answer: Answer, rng: random.Random) -> None:
    cases = []
    for slots in (1, 2, 3):
        server = replace(some_server(rng, slots), prefill_s=2**-16)
        fits = round(server.slo_s / server.prefill_s)  # prompt tokens that are read in exactly slo_s
        long = (0.0, fits // 2, 64)
        until = long[1] * server.prefill_s + 64 * server.decode_s
        crowd = [long] * slots
        own = rng.choice((64, 128))
        just = until + own * server.prefill_s - server.slo_s
        exact, early = (just, own, 1), (just - 1 / 64, own, 1)
        if just >= 0:
            cases += [(server, [*crowd, exact]), (server, [*crowd, early])]
        if just >= 4 / 64:  # tells a slot that's free some tokens too early from one that's free immediately
            cases.append((server, [*crowd, (just - 4 / 64, own, 1)]))
        cases += [(server, [(2.0, fits, 5)]), (server, [(2.0, fits + 1, 5)]), (server, [(0.0, fits, 5)])]
        cases.append((server, [(1.0, fits * 3, 2), (1.0, fits * 3, 2), (1.0, 16, 2)]))
    judge_cases(answer, cases)


def goodput(answer: Answer, rng: random.Random) -> str:
    best = ""
    for slots, load in ((2, 2.5), (4, 4.0)):
        server = some_server(rng, slots)
        requests = traffic(rng, server, 400, load)
        seconds = requests[-1][0] - requests[0][0]
        said = asked(answer, server, requests)
        inside = [each for each, ok in zip(requests, said) if ok]
        ttfts = played(server, inside)
        good = sum(ttft <= server.slo_s for ttft in ttfts)
        without = sum(ttft <= server.slo_s for ttft in played(server, requests))
        wanted = sum(decide(server, requests))
        rates = {"rate": good / seconds, "all": without / seconds, "rule": wanted / seconds}
        about = {"seconds": seconds, "inside": len(inside), "good": good, **rates}
        expect(good >= len(inside), "admitted_too_late_for_slo", **about)
        expect(good == wanted, "refused_for_nothing", **about)
        best = f"goodput {good / seconds:.2f} per second, with all admitted {without / seconds:.2f}"
    return best


def on_their_own(answer: Answer, rng: random.Random) -> None:
    server = some_server(rng, 2)
    requests = traffic(rng, server, 120, 4.0)
    first = asked(answer, server, requests)
    one = answer.Admission(server.slots, server.slo_s, server.prefill_s, server.decode_s)
    two = answer.Admission(1, server.slo_s, server.prefill_s, server.decode_s)
    mixed = []
    for request in requests:
        mixed.append(bool(one.admit(*request)))
        two.admit(*request)
    expect(mixed == first, "two Admissions at work side by side disturb each other: keep the slots in self")
    expect(first == decide(server, requests), "it does not keep the rule yet: see the parts above")
    server = some_server(rng, 32)

    def deciding(many: int) -> WorkCost:
        requests = traffic(rng, server, many, 2.0)
        admission = answer.Admission(server.slots, server.slo_s, server.prefill_s, server.decode_s)
        return cost_of(lambda: answer.many(admission, "admit", requests), many)

    hold_steady(deciding, MANY, "decision_cost_grows", 0.5)
