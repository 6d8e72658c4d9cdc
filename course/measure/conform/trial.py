"""An engine's life in a check: requests go in, tokens come out, and are compared with what the model says by itself."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from course.measure.conform.adapter import Adapter, AdapterError, Limits, RefusedError
from course.measure.conform.counting import CountingModel, expected_tokens
from course.measure.conform.verdict import ConformityError

PATIENCE = 3_000
"""Steps after which a request that hasn't ended never will: no check asks for a third as many."""


class Trial:
    """An engine made by an adapter, with what was asked of it and what it said.

    Args:
        make: the adapter's class.
        limits: of the engine.
    Raises:
        NotImplementedError: the adapter can't set one of the limits.
    """

    def __init__(self, make: type[Adapter], limits: Limits) -> None:
        self.limits = limits
        self.model = CountingModel()
        self.adapter = make(limits, self.model)
        self.free_at_first = self.adapter.num_free_tokens()
        self.asked: dict[str, tuple[list[int], int]] = {}
        """Prompt and number of tokens by request."""
        self.tokens: dict[str, list[int]] = {}
        self.refused: set[str] = set()
        self.left: dict[str, int] = {}
        """Aborted, with the tokens each had by then."""
        self.earlier: set[str] = set()
        """Asked before `turn_to`."""
        self.path = ""
        """What the requests have in common, for a report."""

    def add(self, name: str, prompt: Sequence[int], max_tokens: int) -> None:
        """Queue a request. One that's refused is in `refused`."""
        self.asked[name], self.tokens[name] = ([*prompt], max_tokens), []
        try:
            with self._noted():
                self.adapter.add(name, [*prompt], max_tokens)
        except (RefusedError, ValueError):
            self.refused.add(name)

    def ask(self, prompt: Sequence[int], max_tokens: int) -> str:
        """Queue a request by the next free name. Returns it."""
        name = f"r{len(self.earlier) + len(self.asked)}"
        self.add(name, prompt, max_tokens)
        return name

    def turn_to(self, path: str) -> None:
        """Go on with other requests, for which a report has a name of their own. What was asked so far is settled."""
        self.earlier |= self.asked.keys()
        self.path = path
        for of_each in (self.asked, self.tokens, self.refused, self.left):
            of_each.clear()

    def abort(self, name: str) -> None:
        with self._noted():
            self.adapter.abort(name)
        self.left.setdefault(name, len(self.tokens[name]))

    def step(self) -> set[str]:
        """One step. Returns who got tokens. Raises AdapterError if the adapter returns anything but that."""
        with self._noted():
            new = self.adapter.step()
        if not isinstance(new, dict):
            raise AdapterError(f"the adapter's step() returned {new!r}: not a dictionary of new tokens by request")
        for name, token_ids in new.items():
            if name in self.earlier:
                continue
            if name not in self.tokens:
                raise AdapterError(f"the adapter's step() returned tokens for {name!r}, which nobody added")
            self.tokens[name] += token_ids
        return {name for name, token_ids in new.items() if token_ids}

    @contextmanager
    def _noted(self) -> Iterator[None]:
        """Have an exception of the engine's say what was asked of it: a report wants to tell."""
        try:
            yield
        except Exception as error:
            error.add_note(self.sent)
            raise

    def run(self) -> None:
        """Step until nothing is left. Raises ConformityError if that never comes."""
        for _ in range(PATIENCE):
            if self.adapter.is_idle():
                return
            self.step()
        waiting = [name for name in self.asked if name not in {*self.refused, *self.left} and not self.is_whole(name)]
        raise ConformityError(self.sent, "every request to end", f"{len(waiting)} still there after {PATIENCE} steps")

    def is_whole(self, name: str) -> bool:
        """Whether the request has all its tokens."""
        return len(self.tokens[name]) == self.asked[name][1]

    @property
    def sent(self) -> str:
        """What was asked, in a line."""
        sizes = Counter((len(prompt), max_tokens) for prompt, max_tokens in self.asked.values())
        shown = [f"{count} x {prompt}+{answer}" for (prompt, answer), count in list(sizes.items())[:6]]
        more = f" and {len(sizes) - 6} other sizes" if len(sizes) > 6 else ""
        path = f"{self.path} (after {len(self.earlier)} others): " if self.path else ""
        return f"{path}requests x prompt+answer tokens: {', '.join(shown)}{more}; {self.limits}"

    # ---------------------------------------------------------------- what must be so

    def check_tokens(self, names: Iterable[str] | None = None) -> None:
        """The named requests (all that weren't refused or aborted) have the tokens that the model says.

        Raises:
            ConformityError: one has others, or not all.
        """
        wanted = self.asked.keys() - self.refused - self.left.keys() if names is None else names
        for name in sorted(wanted):
            self.check_answer(name)
            if not self.is_whole(name):
                got = f"{len(self.tokens[name])}" if name not in self.refused else "a refusal"
                raise ConformityError(self.sent, f"{self.asked[name][1]} tokens for {name}", got)

    def check_answer(self, name: str) -> None:
        """What the request has so far is what the model says."""
        prompt, max_tokens = self.asked[name]
        got = self.tokens[name]
        if len(got) > max_tokens:
            raise ConformityError(self.sent, f"at most {max_tokens} tokens for {name}", f"{len(got)}")
        expected = expected_tokens(prompt, len(got))
        if got != expected:
            place = next(i for i, (ours, theirs) in enumerate(zip(expected, got)) if ours != theirs)
            why = f"; it {self.model.remarks[0]}" if self.model.remarks else ""
            raise ConformityError(
                self.sent,
                f"token {place} of {name} ({len(prompt)} prompt tokens) to be {expected[place]}",
                f"{got[place]}{why}",
            )

    def check_at_rest(self) -> None:
        """Nothing is held when nothing runs."""
        free = self.adapter.num_free_tokens()
        if free != self.free_at_first:
            lost = self.free_at_first - free
            got = f"{free}: {lost} weren't given back" if lost > 0 else f"{free}: {-lost} were given back twice"
            raise ConformityError(self.sent, f"{self.free_at_first} free KV positions, as at first", got)

    def check_left(self) -> None:
        """Who left got at most what was in flight then: two steps' tokens. What they got is right."""
        for name, count in self.left.items():
            self.check_answer(name)
            if len(self.tokens[name]) > count + 2:
                expected = f"no more than 2 of {self.asked[name][1]} tokens for {name} after it left"
                raise ConformityError(self.sent, expected, f"{len(self.tokens[name]) - count}")

    def check_limits(self) -> None:
        """No step was larger than the engine's own limits."""
        if self.model.most_tokens > self.limits.max_num_batched_tokens:
            expected = f"steps of at most {self.limits.max_num_batched_tokens} tokens"
            raise ConformityError(self.sent, expected, f"one of {self.model.most_tokens}")
        if self.model.most_rows > self.limits.max_num_seqs:
            raise ConformityError(
                self.sent, f"at most {self.limits.max_num_seqs} requests in a step", f"{self.model.most_rows}"
            )

    def check_all(self) -> None:
        """Run to the end; then right tokens for all, and nothing held."""
        self.run()
        self.check_tokens()
        self.check_at_rest()
