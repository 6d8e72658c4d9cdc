"""A grammar as an automaton over characters, and the mask over the vocabulary that it gives in each state."""

import random
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from course.grading.blame import shown
from course.grading.growth import WorkCost, cost_of, times_as_costly
from course.grading.tools import Answer, Slips, broken, compare, each, expect, hold, maybe, refused, whole

Grammar = dict[str, Any]
"""start, final (a set of states), next (state -> character -> state)"""
LARGE, VISITS = 4000, 20
"""Tokens of a vocabulary, and how often each of two states comes again."""
MOST_AGAIN = 0.25
"""Share of its first cost that a state's mask may cost when the state comes again. Copying it costs a tenth."""
LETTERS = "abc"


def right_follow(grammar: Grammar, state: str, text: str) -> str | None:
    for character in text:
        if state is None:
            return None
        state = grammar["next"].get(state, {}).get(character)
    return state


def living(grammar: Grammar) -> set[str]:
    """States from which a final one can be reached: by walking from each."""

    def reached(state: str) -> set[str]:
        seen, left = {state}, [state]
        while left:
            new = set(grammar["next"].get(left.pop(), {}).values()) - seen
            seen |= new
            left += new
        return seen

    return {state for state in states(grammar) if reached(state) & grammar["final"]}


def states(grammar: Grammar) -> set[str]:
    arrows = grammar["next"]
    return {grammar["start"], *grammar["final"], *arrows, *(to for own in arrows.values() for to in own.values())}


@dataclass(frozen=True)
class Rule:
    """How a mask is made; the defaults are right, every other value is a usual mistake."""

    only_first: bool = False
    end: bool | None = None
    """None = where the state is final."""
    end_by_text: bool = False
    end_alone: bool = False
    empty: bool = False
    dead: bool = False
    only_single: bool = False
    final_only: bool = False
    prefix: bool = False

    def __call__(self, grammar: Grammar, vocabulary: list[str], eos: int, state: str) -> list[int]:
        alive, is_final = living(grammar), state in grammar["final"]

        def may(token: str) -> bool:
            if not token or (self.only_single and len(token) > 1):
                return self.empty and not token
            ends = [right_follow(grammar, state, token[:n]) for n in range(1, len(token) + 1)]
            if self.prefix and any(end in grammar["final"] for end in ends):
                return True
            end = right_follow(grammar, state, token[:1] if self.only_first else token)
            return end is not None and (self.dead or end in (grammar["final"] if self.final_only else alive))

        others = [i for i, token in enumerate(vocabulary) if i != eos and may(token)]
        may_end = is_final if self.end is None else self.end
        may_end = may_end or (self.end_by_text and may(vocabulary[eos]))
        return sorted([*([] if self.end_alone and is_final else others), *([eos] if may_end else [])])


right_mask = Rule()
SLIPS: Slips = {
    **broken(__file__, Rule),
    "mask_always_of_start": lambda grammar, vocabulary, eos, state: right_mask(
        grammar, vocabulary, eos, grammar["start"]
    ),
}
FOLLOW_SLIPS: Slips = {
    "accept_from_start_state": lambda grammar, state, text: right_follow(grammar, grammar["start"], text),
    "checked_first_character_only": lambda grammar, state, text: right_follow(grammar, state, text[:1]),
    "accept_gave_previous_state": lambda grammar, state, text: right_follow(grammar, state, text[:-1]),
    "mask_of_any_state": lambda grammar, state, text: (
        any(right_follow(grammar, each, text) for each in grammar["next"]) or None
    ),
}


def some_grammar(rng: random.Random, size: int, dead: bool) -> Grammar:
    """A chain to a final state, other arrows at random, a final state that goes on, and perhaps a trap. One state is ""; with
    a trap the last state has no arrows, without one the answer may be empty."""
    names = ["", *(f"q{i}" for i in rng.sample(range(90), size))]
    names[:2] = names[1::-1]
    arrows: dict[str, dict[str, str]] = {name: {rng.choice(LETTERS): after} for name, after in pairwise(names)}
    for _ in range(size):
        arrows[rng.choice(names[:-1])].setdefault(rng.choice(LETTERS), rng.choice(names))
    if dead:  # a trap that is entered with a letter of its own, and goes round for ever
        arrows[names[0]]["x"] = arrows[names[2]]["x"] = "trap"
        arrows["trap"] = {"x": "trap", "a": "sink"}
    else:
        arrows[names[-1]] = {rng.choice(LETTERS): rng.choice(names)}
    return {"start": names[0], "final": {names[-1], names[size // 2], names[-1 if dead else 0]}, "next": arrows}


def some_vocabulary(rng: random.Random, size: int) -> tuple[list[str], int]:
    """Tokens of one to three characters, an empty one, and the end somewhere among them."""
    tokens = [*LETTERS, "x", "", *("".join(rng.choices(LETTERS + "x", k=rng.randint(2, 3))) for _ in range(size))]
    rng.shuffle(tokens)
    eos, own = rng.choice((0, rng.randrange(len(tokens)))), rng.choice(tokens)
    return [*tokens[:eos], own, *tokens[eos:]], eos  # the end's own text looks like any other, and counts for nothing


def texts(answer: Answer, rng: random.Random) -> None:
    cases = []
    for _ in range(12):
        grammar = some_grammar(rng, 5, dead=True)
        cases.append((grammar, "sink", "ab"))
        for text in ("", "".join(rng.choices(LETTERS, k=1)), "".join(rng.choices(LETTERS, k=2)), "z", "xx"):
            cases.append((grammar, rng.choice(list(grammar["next"])), text))
        path, state = "", grammar["start"]
        for _ in range(4):
            character, state = rng.choice(list(grammar["next"].get(state, {"": state}).items()))
            path += character
        cases.append((grammar, grammar["start"], path))
    hold(
        answer.follow,
        cases,
        right_follow,
        FOLLOW_SLIPS,
        maybe(lambda value, _: value),
        lambda grammar, state, text: f"follow({shown(grammar['next'])}, {state!r}, {text!r})",
    )


Path = tuple[Grammar, list[str], int, list[int]]
"""Grammar, vocabulary, eos, and the tokens that are accepted one after the other."""


def some_path(rng: random.Random, dead: bool, length: int = 4) -> Path:
    grammar, (vocabulary, eos) = some_grammar(rng, 6, dead), some_vocabulary(rng, 14)
    taken, state = [], grammar["start"]
    for _ in range(length):
        choices = [i for i in right_mask(grammar, vocabulary, eos, state) if i != eos]
        if not choices:
            break
        taken.append(rng.choice(choices))
        state = right_follow(grammar, state, vocabulary[taken[-1]])
    return grammar, vocabulary, eos, taken


def read_mask(value: Any, what: str, size: int) -> list[int]:
    """Ids of the tokens that are allowed."""
    bits = each(whole)(value, what)
    expect(len(bits) == size, f"{what} should have one entry for each of {size} tokens; yours has {len(bits)}")
    expect(set(bits) <= {0, 1}, f"{what} should hold True or False; yours holds {shown(sorted(set(bits) - {0, 1}))}")
    return [i for i, bit in enumerate(bits) if bit]


def judge_paths(answer: Answer, paths: list[Path]) -> None:
    """The mask at the start, and after each token."""
    cases = []
    for grammar, vocabulary, eos, taken in paths:
        matcher, state = answer.Matcher(grammar, vocabulary, eos), grammar["start"]
        for token in [None, *taken]:
            if token is not None:
                try:
                    matcher.accept(token)
                except ValueError:  # is that because its masks are wrong?
                    compare("allowed", cases, right_mask, SLIPS, difference=first_token)
                    raise
                state = right_follow(grammar, state, vocabulary[token])
            found = read_mask(matcher.allowed(), "allowed()", len(vocabulary))
            cases.append(((grammar, vocabulary, eos, state), found))
    compare("allowed", cases, right_mask, SLIPS, difference=first_token)


def first_token(case: tuple[Grammar, list[str], int, str], found: list[int], wanted: list[int]) -> str:
    grammar, vocabulary, eos, state = case
    token = min(set(found) ^ set(wanted))
    named = "the end" if token == eos else f"token {token}, {vocabulary[token]!r},"
    own = f"state {state!r}, {'final' if state in grammar['final'] else 'not final'}, of {shown(grammar['next'])}"
    return f"{own}: {named} is {'allowed' if token in found else 'ruled out'}; expected the opposite"


def allowed(answer: Answer, rng: random.Random) -> None:
    judge_paths(answer, [some_path(rng, dead=False, length=n) for n in (0, 0, 1, 2, 3, 0, 1, 2)])


def dead_ends(answer: Answer, rng: random.Random) -> None:
    paths = [some_path(rng, dead=True, length=n) for n in (0, 0, 1, 2, 3, 4)]
    judge_paths(answer, paths)


def steps(answer: Answer, rng: random.Random) -> None:
    judge_paths(answer, [some_path(rng, dead=True, length=9) for _ in range(4)])
    for length in (0, 1, 2, 9, 9, 9):
        grammar, vocabulary, eos, taken = some_path(rng, dead=True, length=length)
        matcher, state = answer.Matcher(grammar, vocabulary, eos), grammar["start"]
        for token in taken:
            matcher.accept(token)
            state = right_follow(grammar, state, vocabulary[token])
        may = right_mask(grammar, vocabulary, eos, state)
        for wrong in {*range(len(vocabulary))} - {*may}:
            about = f"accept({wrong}) of {vocabulary[wrong]!r} in state {state!r}"
            refused(ValueError, about, "the mask rules it out", lambda m=matcher, w=wrong: m.accept(w))
            left = read_mask(matcher.allowed(), "allowed()", len(vocabulary))
            expect(left == may, f"{about} was refused, and the mask is another one afterwards", 0.3)
        if eos in may:
            matcher.accept(eos)
            after = read_mask(matcher.allowed(), "allowed()", len(vocabulary))
            expect(not after, f"after the end, allowed() has {len(after)} tokens: nothing comes behind it", 0.3)
            refused(ValueError, "accept() after the end", "it is over", lambda m=matcher, e=eos: m.accept(e))


def on_their_own(answer: Answer, rng: random.Random) -> None:
    grammar, vocabulary, eos, taken = some_path(rng, dead=True)
    first, second = answer.Matcher(grammar, vocabulary, eos), answer.Matcher(grammar, vocabulary, eos)
    before = read_mask(second.allowed(), "allowed()", len(vocabulary))
    for token in taken:
        first.accept(token)
    found = read_mask(second.allowed(), "allowed()", len(vocabulary))
    expect(found == before, "two matchers of one grammar: accept() of one moved the other. Keep the state in self")
    wanted = right_mask(grammar, vocabulary, eos, grammar["start"])
    expect(found == wanted, "its mask isn't right yet: see the parts above")
    again = read_mask(second.allowed(), "allowed()", len(vocabulary))
    expect(again == wanted, "handed_out_cached_mask")


def stays_quick(answer: Answer, rng: random.Random) -> None:
    grammar = some_grammar(rng, 6, dead=True)
    grammar["next"][grammar["start"]]["a"] = ""  # two states in turns, for ever
    grammar["next"][""]["a"] = grammar["start"]
    grammar["final"].add(grammar["start"])
    vocabulary, eos = some_vocabulary(rng, LARGE)
    token = next(i for i, t in enumerate(vocabulary) if t == "a" and i != eos)
    in_turns = [("allowed", []), ("accept", [token])] * 2

    def first_visits() -> WorkCost:
        return cost_of(lambda: answer.play(answer.Matcher(grammar, vocabulary, eos), in_turns), 2)

    def later_visits() -> WorkCost:
        matcher = answer.Matcher(grammar, vocabulary, eos)
        answer.play(matcher, in_turns)
        return cost_of(lambda: answer.play(matcher, in_turns * VISITS), 2 * VISITS)

    share = times_as_costly(later_visits, first_visits, MOST_AGAIN)
    expect(share <= MOST_AGAIN, "mask_computed_anew", again=2 * VISITS, part=share)
