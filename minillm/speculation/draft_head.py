"""Drafts by a head on the model's hidden states (speculation/head.py says how the head works).

It keeps, for each request, a seat in a KV cache of its own, and the hidden states that it has not used yet. The rule is
the same for every way in which states come: row t of the head's cache is made from h[t] and the known token x[t+1], in
the order of t, without a gap.

- After a rejected draft, the rows made from foretold states, and the states of rejected tokens, are written over: a
  request's known tokens say how many states are real.
- Chunked prefill shows states piece by piece; they are kept until the request is drafted for.
- Tokens found in the prefix cache, or swapped in, have no states, for nobody computes them. The head's context begins
  with the first state that it sees. It is trained for that.
- Only the newest states count for much. The head reads CONTEXT / 2 tokens of a long prompt, and when its seat of
  CONTEXT rows is full, the newer half of them moves to the front. So its memory and its work do not grow with the
  prompt.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from minillm.core.batch import ScheduledRequest
from minillm.core.request import Draft, DraftPosition, Request
from minillm.kernels.attention.base import AttentionMetadata
from minillm.kernels.device import to_device
from minillm.kernels.ops import ForwardContext
from minillm.runner.kv_pool import zeros
from minillm.runner.sampler import probabilities
from minillm.runner.torch_runner import TorchRunner
from minillm.speculation.base import DraftRequest
from minillm.speculation.draft_model import draw_from
from minillm.speculation.head import DraftHead

ROWS_AS_DECODES = 16
"""Up to so many of each request are computed as if each row were another request's decode; see
:func:`minillm.runner.batch_tensors.spans_of`."""
CONTEXT = 512
"""Rows that a request has in the head's cache. The head is trained on talks of about this length."""


@dataclass(slots=True)
class Seat:
    """What is kept for a request."""

    number: int
    """Its part of the cache"""
    origin: int
    """The token whose row is the first one in it"""
    num_rows: int = 0
    """Rows made from the model's states"""
    states: list[Tensor] = field(default_factory=list)
    """[n, h] pieces: states that no row was made from yet, in the order of their tokens"""
    num_states: int = 0

    @property
    def seen(self) -> int:
        """The token whose state is to come next."""
        return self.origin + self.num_rows + self.num_states

    def add(self, states: Tensor) -> None:
        self.states.append(states)
        self.num_states += len(states)

    def cut(self, num_states: int) -> None:
        """Drop all but the first `num_states` of the states, as those of rejected tokens."""
        while self.num_states > num_states:
            last = self.states.pop()
            self.num_states -= len(last)
            if self.num_states < num_states:
                self.add(last[: num_states - self.num_states])

    def keep_newest(self, num_states: int) -> None:
        """Drop the oldest states, and all rows, which are older still: the context begins later."""
        if self.num_states > num_states:
            newest = torch.cat(self.states)[-num_states:].clone()
            self.origin, self.num_rows = self.seen - num_states, 0
            self.states, self.num_states = [newest], num_states


class DraftHeadProposer:
    """Drafts for all requests together, one pass of the head for each token of the draft.

    Args:
        head: in the model's dtype, on its device.
        runner: of the model it drafts for, whose kernels it uses.
        num_seats: requests that may run at once.
    """

    def __init__(self, head: DraftHead, runner: TorchRunner, num_seats: int) -> None:
        self.head = head
        self.attention, self.ops = runner.attention, runner.ops
        self.device = runner.device
        self.block_size = runner.block_size
        self.blocks_per_seat = -(-CONTEXT // self.block_size)
        shape = (self.block_size, 2, head.config.num_kv_heads, head.config.head_dim)
        self.cache = zeros((num_seats * self.blocks_per_seat, *shape), runner.model.dtype, self.device)
        self.num_seats = num_seats
        self._angles = self._angles_up_to(CONTEXT)
        self.tables = torch.arange(len(self.cache), dtype=torch.int32, device=self.device).view(num_seats, -1)
        """[num_seats, blocks_per_seat] the blocks of each seat"""
        self.reset()

    def reset(self) -> None:
        self._seats: dict[str, Seat] = {}
        self._free = list(range(self.num_seats))

    def forget(self, request: Request) -> None:
        if seat := self._seats.pop(request.request_id, None):
            self._free.append(seat.number)

    # ---------------------------------------------------------------- states in

    def read_hidden_states(self, scheduled: Sequence[ScheduledRequest], hidden: Tensor) -> None:
        """Keep the newest states of each request. See :class:`minillm.speculation.base.HiddenStateReader`."""
        for each, states in zip(scheduled, hidden.split([s.num_tokens for s in scheduled])):
            seat = self._seat(each.request, each.start)
            # A view of a few rows would keep those of the whole step in memory.
            seat.add(states if len(scheduled) == 1 else states.clone())
            if seat.num_states > CONTEXT:
                seat.keep_newest(CONTEXT // 2)

    def _seat(self, request: Request, start: int) -> Seat:
        """The request's seat, with every state before token `start` and none from there on."""
        seat = self._seats.get(request.request_id)
        if seat is not None and seat.origin + seat.num_rows <= start <= seat.seen:
            seat.cut(start - seat.origin - seat.num_rows)
            return seat
        # Either new, or nobody computed what lies between. What another one left in the cache may not be finite.
        number = self._free.pop() if seat is None else seat.number
        self._blocks(number).zero_()
        seat = self._seats[request.request_id] = Seat(number, start)
        return seat

    def _blocks(self, number: int) -> Tensor:
        return self.cache[number * self.blocks_per_seat : (number + 1) * self.blocks_per_seat]

    # ---------------------------------------------------------------- drafts out

    @torch.inference_mode()
    def propose(self, wanted: Sequence[DraftRequest]) -> list[Draft]:
        """See :class:`minillm.speculation.base.Proposer`. Who has no state yet, as after a whole prompt was found
        cached, waits for one."""
        active = [each for each in wanted if self._has_states(each.request)]
        probs: dict[str, list[Tensor]] = {request.request_id: [] for request, _ in active}
        if not active:
            return [request.draft for request, _ in wanted]
        hidden = self._catch_up(active)
        done = 0
        while active:
            self._guess(hidden, [request for request, _ in active], probs)
            done += 1
            still = [i for i, (_, k) in enumerate(active) if k > done]
            if len(still) < len(active):
                active, hidden = [active[i] for i in still], hidden[still]
            if active:
                hidden = self._go_on(hidden, [request for request, _ in active])
        for request, _ in wanted:
            if drawn_from := probs.get(request.request_id):
                request.draft.probs = torch.stack(drawn_from)
        return [request.draft for request, _ in wanted]

    def _has_states(self, request: Request) -> bool:
        seat = self._seats.get(request.request_id)
        return seat is not None and seat.seen >= request.num_known_tokens - 1 > seat.origin + seat.num_rows

    def _catch_up(self, active: Sequence[DraftRequest]) -> Tensor:
        """Rows from all states of known tokens. Returns [B, h], what the last row of each request foretells."""
        states, token_ids, seats, lengths = [], [], [], []
        for request, k in active:
            seat = self._seats[request.request_id]
            end = request.num_known_tokens - 1
            seat.cut(end - seat.origin - seat.num_rows)
            seat.keep_newest(CONTEXT // 2)
            self._make_room(seat, k)
            states += seat.states
            token_ids += request.token_ids(end - seat.num_states + 1, end + 1)
            seats.append(seat)
            lengths.append(seat.num_states)
        starts = [seat.num_rows for seat in seats]
        foretold = self._run(torch.cat(states), token_ids, seats, starts, lengths)
        for seat in seats:
            seat.num_rows += seat.num_states
            seat.states, seat.num_states = [], 0
        return foretold[to_device(np.cumsum(lengths) - 1, self.device)] if len(foretold) > 1 else foretold

    def _go_on(self, hidden: Tensor, requests: Sequence[Request]) -> Tensor:
        """A row for each request from what was foretold [B, h]. Returns what that row foretells [B, h]."""
        seats = [self._seats[request.request_id] for request in requests]
        starts = [seat.num_rows + len(request.draft) - 1 for seat, request in zip(seats, requests)]
        return self._run(hidden, [request.draft.token_ids[-1] for request in requests], seats, starts, [1] * len(seats))

    def _make_room(self, seat: Seat, k: int) -> None:
        """So that the states and a draft of k fit behind the rows: the newer half moves to the front of the seat."""
        if seat.num_rows + seat.num_states + k <= CONTEXT:
            return
        keep = max(min(CONTEXT // 2, CONTEXT - seat.num_states - k), 0)
        rows = self._blocks(seat.number).flatten(0, 1)
        rows[:keep] = rows[seat.num_rows - keep : seat.num_rows].clone()
        # A row is turned by its position in the request, not in the seat, so it can be moved.
        seat.origin, seat.num_rows = seat.origin + seat.num_rows - keep, keep

    def _guess(self, hidden: Tensor, requests: Sequence[Request], probs: dict[str, list[Tensor]]) -> None:
        """Add a token to each request's draft, by [B, h] of hidden states foretold."""
        logits = self.head.output(hidden)
        if not any(request.params.temperature > 0 or request.params.has_penalty for request in requests):
            chosen = self.head.token_ids[logits.argmax(dim=-1)].tolist()
        else:
            rows = [DraftPosition(request, len(request.draft)) for request in requests]
            distributions = probabilities(self._widened(logits.float()), rows)
            chosen = draw_from(distributions, rows)
            for row, drawn_from in zip(rows, distributions):
                if row.params.temperature > 0:
                    probs[row.request_id].append(drawn_from)
        for request, token in zip(requests, chosen):
            request.draft.token_ids.append(token)

    def _widened(self, logits: Tensor) -> Tensor:
        """[B, N] to [B, V]: tokens that the head cannot name are impossible."""
        everything = logits.new_full((len(logits), self.head.config.vocab_size), -torch.inf)
        return everything.index_copy_(1, self.head.token_ids, logits)

    def _run(
        self,
        hidden: Tensor,
        token_ids: list[int],
        seats: Sequence[Seat],
        starts: Sequence[int],
        lengths: Sequence[int],
    ) -> Tensor:
        """The head over rows start, start + 1, ... of each seat. Returns [T, h]."""
        # Mostly a few rows: lists are faster than arrays.
        rows: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        owners: list[int] = []
        for seat, start, length in zip(seats, starts, lengths):
            new = range(start, start + length)
            first_slot = seat.number * self.blocks_per_seat * self.block_size
            rows += new
            positions += [row + seat.origin for row in new]
            slots += [row + first_slot for row in new]
            owners += [seat.number] * length
        if (last := max(positions)) >= len(self._angles[0]):
            self._angles = self._angles_up_to(2 * last)
        ids, places, to = to_device(np.array((token_ids, positions, slots)), self.device)
        if max(lengths) <= ROWS_AS_DECODES:
            metadata = self._metadata(owners, [row + 1 for row in rows], [1] * len(rows), to, num_decodes=len(rows))
        else:
            ends = [start + length for start, length in zip(starts, lengths)]
            metadata = self._metadata([seat.number for seat in seats], ends, lengths, to, num_decodes=0)
        cos, sin = (angles[places] for angles in self._angles)
        context = ForwardContext(cos, sin, to, self.attention(metadata), self.ops)
        return self.head(hidden, ids, self.cache, context)

    def _angles_up_to(self, length: int) -> tuple[Tensor, Tensor]:
        """Of all positions before `length`: cos and signed sin, [length, 1, d] each. They are looked up, as a pass of
        the head is so short that working them out would be a tenth of it."""
        return self.head.rope.angles(torch.arange(length, device=self.device), self.head.activation_dtype)

    def _metadata(
        self, numbers: list[int], context_lens: list[int], lengths: Sequence[int], slots: Tensor, num_decodes: int
    ) -> AttentionMetadata:
        """Of B sequences in the seats `numbers`, of `lengths` new rows each."""
        starts = list(itertools.accumulate(lengths, initial=0))
        return AttentionMetadata(
            query_starts=starts,
            context_lens=context_lens,
            query_starts_tensor=to_device(np.array(starts, np.int32), self.device),
            context_lens_tensor=to_device(np.array(context_lens, np.int32), self.device),
            block_tables=self.tables[to_device(np.array(numbers), self.device)],
            slot_mapping=slots,
            num_decodes=num_decodes,
            block_size=self.block_size,
        )
