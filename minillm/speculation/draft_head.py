"""Drafts by a head on the model's hidden states (head.py and eagle3.py say how heads work).

It keeps, for each request, a slot in a KV cache of its own, and the hidden states that it has not used yet. The rule is
the same for every way in which states come: row t of the head's cache is made from h[t] and the known token x[t+1], in
the order of t, without a gap.

- After a rejected draft, the rows made from foretold states, and the states of rejected tokens, are written over: a
  request's known tokens say how many states are real.
- Chunked prefill shows states piece by piece; they are kept until the request is drafted for.
- Tokens found in the prefix cache, or swapped in, have no states, for they are not computed. The head's context begins
  with the first state that it sees. Ours is trained for that; for others' heads it isn't measured.
- Only the newest states count for much. The head reads CONTEXT / 2 tokens of a long prompt, and when its slot of
  CONTEXT rows is full, the newer half of them moves to the front. So its memory and its work do not grow with the
  prompt.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from minillm.core.batch import ScheduledRequest
from minillm.core.request import Draft, Request
from minillm.host.device import to_device
from minillm.kernels.attention.base import AttentionMetadata
from minillm.kernels.ops import ForwardContext
from minillm.runner.kv_pool import zeros
from minillm.runner.rows import DraftPosition
from minillm.runner.sampler import probabilities
from minillm.runner.torch_runner import TorchRunner
from minillm.speculation.base import DraftRequest, Proposer
from minillm.speculation.draft_model import add_tokens, are_greedy, draw_from
from minillm.speculation.head import AnyHead

ROWS_AS_DECODES = 16
"""Up to so many of each request are computed as if each row were another request's decode; see
:func:`minillm.runner.batch_layout.lay_out`."""
CONTEXT = 512
"""Rows that a request has in the head's cache. Ours is trained on conversations of about this length; heads of others
may be trained on longer ones, of which they see the newest part."""


@dataclass(slots=True)
class HeadSlot:
    """What is kept for a request."""

    number: int
    """Its part of the cache"""
    origin: int
    """The token whose row is the first one in it"""
    states: Tensor
    """[n, h] states that no row was made from yet, in the order of their tokens"""
    num_rows: int = 0
    """Rows made from the model's states"""

    @property
    def end(self) -> int:
        """The first token that has no row."""
        return self.origin + self.num_rows

    @property
    def seen(self) -> int:
        """The token whose state is to come next."""
        return self.end + len(self.states)

    def keep_newest(self, num_states: int) -> None:
        """Drop the oldest states, and all rows, which are older still: the context begins later."""
        if len(self.states) > num_states:
            self.origin, self.num_rows = self.seen - num_states, 0
            self.states = self.states[-num_states:].clone()


class DraftHeadProposer(Proposer):
    """Drafts for all requests together, one pass of the head for each token of the draft.

    Args:
        head: in the model's dtype, on its device.
        runner: runs the model it drafts for; the head uses its kernels.
        num_slots: requests that may run at the same time.
    """

    def __init__(self, head: AnyHead, runner: TorchRunner, num_slots: int) -> None:
        self.head = head
        self.depths = head.depths  # of the model, see HiddenStateReader
        self.attention, self.ops = runner.attention, runner.ops
        self.device, self.block_size = runner.device, runner.block_size
        self.blocks_per_slot = -(-CONTEXT // self.block_size)
        shape = (self.block_size, 2, head.config.num_kv_heads, head.config.head_dim)
        self.cache = zeros((num_slots * self.blocks_per_slot, *shape), runner.model.dtype, self.device)
        self.num_slots = num_slots
        self._angles = self._angles_up_to(CONTEXT)
        self.tables = torch.arange(len(self.cache), dtype=torch.int32, device=self.device).view(num_slots, -1)
        """[num_slots, blocks_per_slot] the blocks of each slot"""
        self.reset()

    def reset(self) -> None:
        self.slots: dict[str, HeadSlot] = {}
        self.free_slots = list(range(self.num_slots))

    def forget(self, request: Request) -> None:
        if slot := self.slots.pop(request.request_id, None):
            self.free_slots.append(slot.number)

    # ---------------------------------------------------------------- states in

    def read_hidden_states(self, scheduled: Sequence[ScheduledRequest], hidden: Tensor) -> None:
        """Keep the newest states of each request. See :class:`minillm.runner.hidden_states.HiddenStateReader`."""
        features = self.head.features(hidden)
        for each, states in zip(scheduled, features.split([s.num_tokens for s in scheduled])):
            slot = self._slot(each.request, each.start, features)
            slot.states = torch.cat((slot.states, states))
            if len(slot.states) > CONTEXT:
                slot.keep_newest(CONTEXT // 2)

    def _slot(self, request: Request, start: int, hidden: Tensor) -> HeadSlot:
        """The request's slot, with every state before token `start` and none from there on."""
        slot = self.slots.get(request.request_id)
        if slot is not None and slot.end <= start <= slot.seen:
            slot.states = slot.states[: start - slot.end]
            return slot
        # Either new, or what lies between was not computed. What another one left in the cache may not be finite.
        number = self.free_slots.pop() if slot is None else slot.number
        self.blocks(number).zero_()
        slot = self.slots[request.request_id] = HeadSlot(number, start, hidden[:0])
        return slot

    def blocks(self, number: int) -> Tensor:
        """A slot's blocks [blocks_per_slot, block_size, 2, n_kv_heads, d]."""
        return self.cache[number * self.blocks_per_slot : (number + 1) * self.blocks_per_slot]

    # ---------------------------------------------------------------- drafts out

    @torch.inference_mode()
    def propose(self, wanted: Sequence[DraftRequest]) -> list[Draft]:
        """See :class:`minillm.speculation.base.Proposer`. A request that has no state yet, as after its whole prompt
        was found cached, waits for one."""
        active = [each for each in wanted if self._has_states(each.request)]
        hidden = self._catch_up(active) if active else torch.empty(0)
        while active:
            self.guess(hidden, [request for request, _ in active])
            going = [i for i, (request, k) in enumerate(active) if len(request.draft) < k]
            if len(going) < len(active):
                active, hidden = [active[i] for i in going], hidden[to_device(np.array(going, int), self.device)]
            if active:
                hidden = self._go_on(hidden, [request for request, _ in active])
        return [request.draft for request, _ in wanted]

    def _has_states(self, request: Request) -> bool:
        slot = self.slots.get(request.request_id)
        return slot is not None and slot.seen >= request.num_known_tokens - 1 > slot.end

    def _catch_up(self, active: Sequence[DraftRequest]) -> Tensor:
        """Rows from all states of known tokens. Returns [B, h], what the last row of each request foretells."""
        token_ids: list[int] = []
        slots = [self.slots[request.request_id] for request, _ in active]
        for slot, (request, k) in zip(slots, active):
            end = request.num_known_tokens - 1
            slot.states = slot.states[: end - slot.end]
            slot.keep_newest(CONTEXT // 2)
            self.make_room(slot, k)
            token_ids += request.token_ids(slot.end + 1, end + 1)
        lengths = [len(slot.states) for slot in slots]
        states = torch.cat([slot.states for slot in slots])
        foretold = self._run(states, token_ids, slots, [slot.num_rows for slot in slots], lengths)
        for slot in slots:
            slot.num_rows += len(slot.states)
            slot.states = slot.states[:0].clone()  # a view would keep their memory
        return foretold[to_device(np.cumsum(lengths) - 1, self.device)] if len(foretold) > 1 else foretold

    def _go_on(self, hidden: Tensor, requests: Sequence[Request]) -> Tensor:
        """A row for each request from what was foretold [B, h]. Returns what that row foretells [B, h]."""
        slots = [self.slots[request.request_id] for request in requests]
        starts = [slot.num_rows + len(request.draft) - 1 for slot, request in zip(slots, requests)]
        return self._run(hidden, [request.draft.token_ids[-1] for request in requests], slots, starts, [1] * len(slots))

    def make_room(self, slot: HeadSlot, k: int) -> None:
        """If the states and a draft of k don't fit behind a slot's rows, move the newer half of these to its front."""
        if slot.num_rows + len(slot.states) + k <= CONTEXT:
            return
        keep = max(min(CONTEXT // 2, CONTEXT - len(slot.states) - k), 0)
        rows = self.blocks(slot.number).flatten(0, 1)
        rows[:keep] = rows[slot.num_rows - keep : slot.num_rows].clone()
        # A row is turned by its position in the request, not in the slot, so it can be moved.
        slot.origin, slot.num_rows = slot.end - keep, keep

    def guess(self, hidden: Tensor, requests: Sequence[Request]) -> None:
        """Add a token to each request's draft, by [B, h] of hidden states foretold."""
        rows = [DraftPosition(request, len(request.draft)) for request in requests]
        logits = self.head.logits(hidden)
        if are_greedy(rows):
            add_tokens(rows, self.head.token_ids[logits.argmax(dim=-1)].tolist(), None)
        else:  # tokens that the head cannot name are impossible
            every = torch.full((len(rows), self.head.config.vocab_size), -torch.inf, device=self.device)
            probs = probabilities(every.index_copy_(1, self.head.token_ids, logits.float()), rows)
            add_tokens(rows, draw_from(probs, rows), probs)

    def _run(
        self, hidden: Tensor, token_ids: list[int], slots: Sequence[HeadSlot], starts: list[int], lengths: list[int]
    ) -> Tensor:
        """The head over rows start, start + 1, ... of each slot. Returns [T, h]."""
        # Mostly a few rows: lists are faster than arrays.
        rows: list[int] = []
        positions: list[int] = []
        cache_rows: list[int] = []
        for slot, start, length in zip(slots, starts, lengths):
            new = range(start, start + length)
            first = slot.number * self.blocks_per_slot * self.block_size
            rows += new
            positions += [row + slot.origin for row in new]
            cache_rows += [row + first for row in new]
        if (last := max(positions)) >= len(self._angles[0]):
            self._angles = self._angles_up_to(2 * last)
        ids, places, to = to_device(np.array((token_ids, positions, cache_rows)), self.device)
        owners = [slot.number for slot in slots]
        context_lens, num_decodes = [start + length for start, length in zip(starts, lengths)], 0
        if max(lengths) <= ROWS_AS_DECODES:
            owners = [owner for owner, length in zip(owners, lengths) for _ in range(length)]
            context_lens, lengths, num_decodes = [row + 1 for row in rows], [1] * len(rows), len(rows)
        query_starts = list(itertools.accumulate(lengths, initial=0))
        metadata = AttentionMetadata(
            query_starts=query_starts,
            context_lens=context_lens,
            query_starts_tensor=to_device(np.array(query_starts, np.int32), self.device),
            context_lens_tensor=to_device(np.array(context_lens, np.int32), self.device),
            block_tables=self.tables[to_device(np.array(owners), self.device)],
            slot_mapping=to,
            num_decodes=num_decodes,
            block_size=self.block_size,
        )
        cos, sin = (angles[places] for angles in self._angles)
        context = ForwardContext(cos, sin, to, self.attention(metadata), self.ops)
        return self.head(hidden, ids, self.cache, context)

    def _angles_up_to(self, length: int) -> tuple[Tensor, Tensor]:
        """Cos and signed sin of all positions before `length`, [length, 1, d] each. They are looked up, as a pass of
        the head is so short that working them out would be a tenth of it."""
        return self.head.rope.angles(torch.arange(length, device=self.device), self.head.activation_dtype)
