"""Preemption by recompute: which request goes when blocks run out, what it loses, where it queues, and that all get served."""

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from course.grading.props import Holder
from course.grading.tools import Answer, Mistake, Slips, expect, hold, listed, same, shown, whole

BLOCK_SIZE = 4
MOST_STEPS = 600


@dataclass
class State:
    """All that a function may change."""

    running: list[Holder]
    """In order of admission."""
    waiting: list[Holder]
    """In order of arrival."""
    free: list[int]

    def described(self) -> str:
        return f"running {self.running}, waiting {self.waiting}, {len(self.free)} free"

    def all_blocks(self) -> list[int]:
        return sorted([*self.free, *(block for each in self.running for block in each.blocks)])


def the(state: State, request_id: str) -> Holder:
    return next(each for each in state.running if each.request_id == request_id)


def names(requests: list[Holder]) -> list[str]:
    return [each.request_id for each in requests]


def chosen(by: Callable[[list[Holder]], Holder]) -> Callable[[list[Holder], set[str]], str | None]:
    """One of those that are not in the step."""

    def victim(running: list[Holder], planned: set[str]) -> str | None:
        left = [each for each in running if each.request_id not in planned]
        return by(left).request_id if left else None

    return victim


right_victim = chosen(lambda left: left[-1])
VICTIM_SLIPS: Slips = {
    "ignored_planned": lambda running, planned: running[-1].request_id,
    "took_first_admitted": chosen(lambda left: left[0]),
    "took_last_arrived": chosen(lambda left: max(left, key=lambda each: each.arrival)),
    "took_largest": chosen(lambda left: max(left, key=lambda each: len(each.blocks))),
    "only_looked_at_last": lambda running, planned: names(running)[-2 if names(running)[-1] in planned else -1],
}


def requests_with(rng: random.Random, sizes: list[int]) -> tuple[list[Holder], list[int]]:
    """Running requests that hold so many blocks, in no order of arrival, and a shuffled pool for the rest."""
    pool = list(range(sum(sizes) + 12))
    rng.shuffle(pool)
    arrivals = rng.sample(range(10, 30), len(sizes))
    found = []
    for i, (count, arrival) in enumerate(zip(sizes, arrivals)):
        tokens = count * BLOCK_SIZE - rng.randrange(BLOCK_SIZE)
        found.append(Holder("abcdefgh"[i], arrival, tokens, tokens - 1, [pool.pop() for _ in range(count)]))
    return found, pool


def some_state(rng: random.Random, sizes: list[int], num_free: int) -> State:
    running, pool = requests_with(rng, sizes)
    taken = {each.arrival for each in running}
    arrivals = sorted(rng.sample([n for n in range(5, 45) if n not in taken], 3))
    waiting = [Holder(f"w{i}", arrival, rng.randint(5, 30), 0) for i, arrival in enumerate(arrivals)]
    return State(running, waiting, pool[:num_free])


def picked(value: Any, what: str) -> str | None:
    if value is not None and not hasattr(value, "request_id"):
        raise Mistake(f"{what} gives back a request of `running`, or None; yours gave {shown(value)}")
    return getattr(value, "request_id", None)


def whom(answer: Answer, rng: random.Random) -> None:
    cases: list[tuple[list[Holder], set[str]]] = []
    for count in (1, 2, 3, 4, 5, 6, 6, 6):
        running, _ = requests_with(rng, [rng.randint(1, 6) for _ in range(count)])
        cases.append((running, set()))
        cases.append((running, set(rng.sample(names(running), rng.randrange(count)))))
    last_three, _ = requests_with(rng, [2, 3, 1, 4, 2])
    cases += [(last_three, set(names(last_three)[2:])), (last_three, set(names(last_three)))]
    about = "pick_victim(running {}, planned {})".format
    hold(answer.pick_victim, cases, right_victim, VICTIM_SLIPS, picked, lambda r, planned: about(r, sorted(planned)))


def preempted(answer: Answer, rng: random.Random, index: int) -> tuple[State, State, Holder]:
    """Before, after, and the victim as it is after."""
    before = some_state(rng, [rng.randint(2, 5) for _ in range(4)], 2)
    after = copy.deepcopy(before)
    return before, after, preempt(answer, after, index)


def preempt(answer: Answer, state: State, index: int) -> Holder:
    """Changes the state; gives back the victim as it is then."""
    given = state.running[index], state.running, state.waiting, state.free
    _, (victim, state.running, state.waiting, state.free) = answer.changing("preempt", *given)
    return victim


def what_it_loses(answer: Answer, rng: random.Random) -> None:
    for index in (3, 1, 0, 2):
        before, after, victim = preempted(answer, rng, index)
        was = before.running[index]
        about = f"preempt({was.request_id}) with {before.described()}"
        left = names(after.running)
        expect(was.request_id not in left, f"{about}: it is still in `running`. Change the list that you were given")
        others = [each for each in names(before.running) if each != was.request_id]
        expect(left == others, "changed_running", about=about, left=left)
        free = [whole(block, "a block in `free`") for block in after.free]
        some = "not all" if set(was.blocks) & set(free) else "none"
        fields = {"about": about, "was": was, "now": victim, "before": before, "free": shown(free), "some": some}
        expect(len(set(free)) == len(free), "double_free", **fields)
        expect(set(was.blocks) <= set(free), "leaked_blocks", **fields)
        expect(set(free) == {*before.free, *was.blocks}, "changed_free_blocks", **fields)
        expect(not listed(victim.blocks, "victim.blocks"), "victim_keeps_block_list", **fields)
        expect(victim.num_computed_tokens == 0, "kept_num_computed_tokens", **fields)
        expect(victim.num_tokens == was.num_tokens, "lost_output_tokens", **fields)
        expect((victim.arrival, victim.request_id) == (was.arrival, was.request_id), "changed_arrival", **fields)
        expect(after.free is not victim.blocks, "free_aliases_victim", about=about)


def where_it_queues(answer: Answer, rng: random.Random) -> None:
    for _ in range(6):
        before, after, victim = preempted(answer, rng, rng.randrange(4))
        check_queue(before, after, victim.request_id)
    state = some_state(rng, [3, 2, 4], 0)
    state.waiting.clear()
    before = copy.deepcopy(state)
    for _ in before.running:
        preempt(answer, state, 0)
    check_queue(before, state, "all three, one after the other")


def check_queue(before: State, after: State, who: str) -> None:
    gone = [each for each in before.running if each.request_id not in names(after.running)]
    wanted = names(sorted([*before.waiting, *gone], key=lambda each: each.arrival))
    found = names(after.waiting)
    if found == wanted:
        return
    words = f"preempt({who}) with {before.described()}: waiting is {found} afterwards, expected {wanted}"
    lost = [name for name in wanted if name not in found]
    expect(not lost, f"{words}. {', '.join(lost)} is in no list any more, and waits for ever")
    expect(not len(found) > len(set(found)), f"{words}. A request queues twice")
    expect(found != names([*before.waiting, *gone]), "always_to_the_end", words=words)
    expect(found != names([*reversed(gone), *before.waiting]), "always_to_the_front", words=words)
    raise Mistake(f"{words}. The queue is in order of arrival")


def right_room(state: State, request_id: str, count: int, planned: set[str]) -> bool:
    """The reference, on the state."""
    request = the(state, request_id)
    while len(state.free) < count:
        victim = next(each for each in reversed(state.running) if each.request_id not in planned)
        state.running.remove(victim)
        state.free += victim.blocks
        victim.blocks, victim.num_computed_tokens = [], 0
        state.waiting.append(victim)
        state.waiting.sort(key=lambda each: each.arrival)
        if victim is request:
            return False
    return True


def ask_room(answer: Answer, state: State, request_id: str, count: int, planned: set[str]) -> bool:
    request = the(state, request_id)
    given = request, count, state.running, state.waiting, state.free, set(planned)
    try:
        found, (_, _, state.running, state.waiting, state.free, _) = answer.changing("make_room", *given)
    except ValueError as error:  # what it had changed by then has changed all the same
        _, _, state.running, state.waiting, state.free, _ = getattr(error, "arguments", given)
        raise
    expect(found is not None, "make_room_gave_none")
    expect(same(found, True) or same(found, False), "make_room_gave_no_bool", found=shown(found))
    return bool(found)


def makes_room(answer: Answer, rng: random.Random) -> None:
    sizes = [rng.randint(2, 4) for _ in range(5)]
    last = sizes[4]
    cases: list[tuple[int, int, int, list[int]]] = [  # who, blocks, free ones, those in the step
        *((0, 1, 1, []), (0, 1, 0, []), (0, last + 1, 0, []), (0, last, 0, []), (1, 2, 1, [0]), (4, 1, 0, [0, 1])),
        *((2, 1, 0, [4]), (2, sizes[3] + 1, 0, [4]), (1, 1, 0, [2, 3, 4]), (3, last + 1, 0, []), (0, 0, 0, [])),
        (2, sizes[3] + last, 0, [0, 1]),
    ]
    for who, count, num_free, planned in cases:
        before = some_state(rng, sizes, num_free)
        in_step = {before.running[i].request_id for i in planned}
        hold_room(answer, before, before.running[who].request_id, count, in_step)


def hold_room(answer: Answer, before: State, request_id: str, count: int, planned: set[str]) -> None:
    """Ask for room, and compare what became of it with the rule."""
    wanted, after = copy.deepcopy(before), copy.deepcopy(before)
    right = right_room(wanted, request_id, count, planned)
    found = ask_room(answer, after, request_id, count, planned)
    about = f"make_room({request_id}, {count} blocks) with {before.described()}, planned {sorted(planned)}"
    gone = [name for name in names(before.running) if name not in names(after.running)]
    should = [name for name in names(before.running) if name not in names(wanted.running)]
    if gone != should:
        words = f"{about}: {gone or 'none'} was preempted, expected {should or 'none'}"
        expect(
            not planned & set(gone), "preempted_a_planned_request", words=words, planned=", ".join(planned & set(gone))
        )
        expect(request_id not in should or request_id in gone, "spared_the_requester", words=words)
        expect(
            len(gone) <= len(should) or len(before.free) < count,
            "preempted_with_enough_free",
            words=words,
            free=len(before.free),
            count=count,
        )
        expect(len(gone) <= len(should), "preempted_too_many", words=words)
        expect(len(gone) >= len(should), "preempted_too_few", words=words, count=count)
        raise Mistake(f"{words}. The last admitted ones go first")
    expect(found == right, f"{about} gave {found}, expected {right}. False says that the request itself had to go")
    check_queue(before, after, ", ".join(should) or request_id)
    every, left = before.all_blocks(), after.all_blocks()
    expect(left == every, "blocks_lost_or_added", about=about, before=len(every), after=len(left))
    counts = {"found": len(after.free), "wanted": len(wanted.free)}
    expect(counts["found"] == counts["wanted"], "handed_out_blocks", about=about, **counts)


def never_fits(answer: Answer, rng: random.Random) -> None:
    for count_running, missing in ((3, 1), (1, 1), (2, 7), (1, 0), (3, 0)):
        before = some_state(rng, [rng.randint(2, 4) for _ in range(count_running)], rng.randint(0, 2))
        request = before.running[0]
        count = len(before.all_blocks()) - len(request.blocks) + missing
        about = f"make_room({request.request_id}, {count} blocks) with {before.described()}"
        if missing == 0:  # exactly all that there is
            try:
                hold_room(answer, before, request.request_id, count, set())
            except ValueError:
                raise Mistake("error_at_exact_fit", about=about) from None
            continue
        after = copy.deepcopy(before)
        try:
            found = ask_room(answer, after, request.request_id, count, set())
        except ValueError:
            if after.described() != before.described():
                raise Mistake("error_after_preempting", 0.5, about=about, words=after.described()) from None
            continue
        raise Mistake("no_error_for_impossible_need", about=about, found=found)


def needs(request: Holder) -> int:
    """Blocks for its tokens."""
    return -(-request.num_tokens // BLOCK_SIZE)


def play(state: State, outputs: dict[str, int], room: Callable[[State, str, int, set[str]], bool]) -> str:
    """Steps of decoding in a small pool. Raises Mistake if a request never finishes, or blocks get lost. Gives back how
    long it took."""
    blocks, preemptions = state.all_blocks(), 0
    for step in range(MOST_STEPS):
        if not state.running and not state.waiting:
            return f"{step} steps and {preemptions} preemptions"
        oldest, planned, before = (names(state.running) or [None])[0], set[str](), len(state.running)
        for name in names(state.running):
            if name in names(state.running):
                request = the(state, name)
                missing = needs(request) - len(request.blocks)
                if missing <= 0 or room(state, name, missing, planned):
                    expect(len(state.free) >= missing, "said_true_without_room", missing=missing, free=len(state.free))
                    request = the(state, name)
                    request.blocks += [state.free.pop() for _ in range(max(missing, 0))]
                    planned.add(request.request_id)
        lost = before - len(state.running)
        preemptions += lost
        if oldest is not None and oldest not in names(state.running):
            raise Mistake("service_preempts_the_oldest", step=step, oldest=oldest)
        while state.waiting and not lost and len(state.free) >= needs(state.waiting[0]):
            request = state.waiting.pop(0)
            request.blocks += [state.free.pop() for _ in range(needs(request))]
            state.running.append(request)
            planned.add(request.request_id)
        for request in list(state.running):
            if request.request_id in planned:
                request.num_computed_tokens = request.num_tokens
                request.num_tokens += 1
                outputs[request.request_id] -= 1
                if outputs[request.request_id] == 0:
                    state.running.remove(request)
                    state.free += request.blocks
        expect(state.all_blocks() == blocks, "service_loses_blocks", step=step, num_blocks=len(blocks))
    raise Mistake("service_never_ends", left=len(state.running) + len(state.waiting))


def all_get_on(answer: Answer, rng: random.Random) -> None:
    for _ in range(3):
        waiting = [Holder(f"r{i}", i, rng.randint(3, 17), 0) for i in range(7)]
        outputs = {each.request_id: rng.randint(5, 25) for each in waiting}
        largest = max(each.num_tokens + outputs[each.request_id] for each in waiting)
        state = State([], waiting, list(range(-(-largest // BLOCK_SIZE) + 2)))
        right = play(copy.deepcopy(state), dict(outputs), right_room)
        found = play(state, dict(outputs), lambda *asked: ask_room(answer, *asked))
        expect(found == right, "service_takes_longer", blocks=len(state.free), yours=found, rule=right)
