"""A model without weights, over a paged KV cache that remembers what was written where.

It has the data flow of a transformer of two layers, and nothing else of one: the first layer's "key and value" of a
token are its id and position, the second's a digest of all that it attends to in the first. The next token is a digest
of what the last token attends to in the second. So a token that is computed at a wrong position, a block that another
request has overwritten, a prefix that was never computed or a context one position too long each yield another next
token, as they would in a real model, whose answer would still read well.

Digests are Python's own hashes of tuples of integers. Unlike those of texts they're the same in each process, and what
an engine says is only ever compared with what the same process expects.
"""

import random
from collections.abc import Sequence
from itertools import repeat
from typing import NamedTuple

VOCABULARY = 997
"""Token ids that it yields are 0 to 996."""


def random_tokens(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(VOCABULARY) for _ in range(count)]


class KernelError(Exception):
    """A batch that no attention kernel would take."""


class KernelRow(NamedTuple):
    """One request's part of a step, as a runner lays it out for the GPU."""

    token_ids: Sequence[int]
    """New tokens, at least one."""
    positions: Sequence[int]
    """The position of each, which a rotary embedding would be told."""
    slots: Sequence[int]
    """Where the KV cache keeps each: block * block size + offset."""
    context: Sequence[int]
    """The slots that its last token attends to, in order, its own among them. The token before attends to all but the
    last of them, and so on: as FlashAttention's causal mask has it."""


class CountingModel:
    """Computes steps. What it finds odd is in `remarks`; it computes on, as a GPU would."""

    def __init__(self) -> None:
        self._ids: dict[int, int] = {}
        """First layer: slot -> token id."""
        self._positions: dict[int, int] = {}
        """First layer: slot -> position."""
        self._digests: dict[int, int] = {}
        """Second layer: slot -> digest of what the token there attends to."""
        self.remarks: list[str] = []
        self.num_steps = 0
        self.most_tokens = 0
        """Tokens of the largest step."""
        self.most_rows = 0
        """Rows of the step with most."""
        self.most_context = 0
        """Tokens that the longest row attended to."""

    def forward(self, rows: Sequence[KernelRow]) -> list[int]:
        """Compute one step.

        Returns:
            The next token after each row. A runner drops those of prompts that aren't whole yet.
        Raises:
            KernelError: a row has no token, or its columns don't have the same length.
        """
        for row in rows:
            _check(row)
        self.num_steps += 1
        self.most_rows = max(self.most_rows, len(rows))
        self.most_tokens = max(self.most_tokens, sum(len(row.token_ids) for row in rows))
        self.most_context = max([self.most_context, *(len(row.context) for row in rows)])
        for row in rows:  # in each layer all rows write before any reads
            self._ids.update(zip(row.slots, row.token_ids))
            self._positions.update(zip(row.slots, row.positions))
        for row in rows:
            self._remark(row)
            self._second_layer(row)
        return [self._next_token(row) for row in rows]

    # Every step goes over all of every context, and a check has thousands: map() and zip() are the quick way there.

    def _second_layer(self, row: KernelRow) -> None:
        """Each new token's digest, over its own context."""
        digest, digests, context = 0, [], row.context
        # A slot that nothing was written to reads as token -1 at a position of its own.
        for token_id, position in zip(
            map(self._ids.get, context, repeat(-1)), map(self._positions.get, context, context)
        ):
            digest = hash((digest, token_id, position))
            digests.append(digest)
        self._digests.update(zip(row.slots, digests[-len(row.token_ids) :]))

    def _next_token(self, row: KernelRow) -> int:
        seen = 0
        for digest in map(self._digests.get, row.context, row.context):
            seen = hash((seen, digest))
        return seen % VOCABULARY

    def _remark(self, row: KernelRow) -> None:
        """The first position of the context that holds something else than it should."""
        held = [*map(self._positions.get, row.context)]
        if held == [*range(len(held))]:
            return
        place = next(place for place, position in enumerate(held) if position != place)
        found = "nothing" if held[place] is None else f"what belongs at position {held[place]}"
        self.remarks.append(f"attends at position {place} to slot {row.context[place]}, which holds {found}")


def _check(row: KernelRow) -> None:
    if not row.token_ids:
        raise KernelError("a row without a token: nothing to compute, so there's no next token (a grid of size 0)")
    if not len(row.token_ids) == len(row.positions) == len(row.slots) <= len(row.context):
        lengths = f"{len(row.token_ids)} tokens, {len(row.positions)} positions, {len(row.slots)} slots"
        raise KernelError(f"a row with {lengths} and a context of {len(row.context)}")


def expected_tokens(prompt: Sequence[int], num_tokens: int) -> list[int]:
    """What the model says after a prompt, by itself. Both layers' digests go on from token to token."""
    tokens, digest, seen = [*prompt], 0, 0
    for position in range(len(prompt) + num_tokens - 1):
        digest = hash((digest, tokens[position], position))
        seen = hash((seen, digest))
        if position >= len(prompt) - 1:
            tokens.append(seen % VOCABULARY)
    return tokens[len(prompt) :]
