"""Drafts by a smaller model that writes on where the request stands (Leviathan et al. 2023; Chen et al. 2023).

It has a KV cache of its own, with the engine's own block tables and prefix cache over it, and lives by the
scheduler's rule: before it can guess, it computes whatever tokens of the request it has not computed yet. What was
guessed and turned out right counts as computed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from minillm.core.batch import ScheduledRequest
from minillm.core.block_manager import BlockManager
from minillm.core.request import Draft, Request
from minillm.policies.config import EngineConfig
from minillm.runner.rows import DraftPosition, places_sampled
from minillm.runner.sampler import pick, probabilities, uniforms
from minillm.runner.torch_runner import TorchRunner
from minillm.speculation.base import DraftRequest, Proposer


@dataclass(slots=True)
class DraftProgress:
    """What the KV cache holds of a request."""

    num_computed: int
    """Its first tokens, as known."""
    guesses: list[int] = field(default_factory=list)
    """What was thought to follow."""


class DraftModelProposer(Proposer):
    """A small model that drafts token by token.

    Args:
        runner: runs the small model; its KV pool is the proposer's alone.
        config: the engine's. As there, blocks of an equal prefix are reused, and a long prompt takes several steps: it
            is drafted for when it has been computed.
    """

    def __init__(self, runner: TorchRunner, config: EngineConfig) -> None:
        self.runner, self.config = runner, config
        self.context_limit = runner.model.model_config.max_position_embeddings
        self.reset()

    def reset(self) -> None:
        num_blocks, block_size = self.runner.num_kv_blocks, self.runner.block_size
        self.kv = BlockManager(num_blocks, block_size, enable_prefix_caching=self.config.enable_prefix_caching)
        self._progress: dict[str, DraftProgress] = {}

    def forget(self, request: Request) -> None:
        self.kv.free(request)
        self._progress.pop(request.request_id, None)

    @torch.inference_mode()
    def propose(self, wanted: Sequence[DraftRequest]) -> list[Draft]:
        batch = self._catch_up(wanted)
        while batch:
            prepared = self.runner.prepare(batch)
            logits = self.runner.forward(prepared)
            # Nothing has a draft yet to be checked, so these are requests.
            rows = [DraftPosition(row, len(row.draft)) for row in prepared.rows if isinstance(row, Request)]
            if rows:
                add_tokens(rows, *self.draw(logits, rows))
            batch = [self._next(request) for request, k in wanted if 0 < len(request.draft) < k]
        for request, _ in wanted:
            if progress := self._progress.get(request.request_id):
                progress.guesses = request.draft.token_ids[:-1]  # nothing was computed after the last
        return [request.draft for request, _ in wanted]

    def draw(self, logits: Tensor, rows: Sequence[DraftPosition]) -> tuple[list[int], Tensor | None]:
        """A token for each row of logits [R, V], and the distributions [R, V] they were drawn from; None if they
        are the likeliest ones."""
        if are_greedy(rows):
            return logits.argmax(dim=-1).tolist(), None
        probs = probabilities(logits.float(), rows)
        return draw_from(probs, rows), probs

    def _catch_up(self, wanted: Sequence[DraftRequest]) -> list[ScheduledRequest]:
        """The first pass: every request's known tokens that are not computed yet. A request without blocks is left
        out."""
        batch, budget = [], self.config.max_num_batched_tokens
        for request, k in wanted:
            known = request.num_known_tokens
            prefix = [] if request.request_id in self._progress else self.kv.find_prefix(request)
            start = max(self._num_computed(request), len(prefix) * self.runner.block_size)
            end = min(known, start + budget)
            samples = end == known
            num_slots = known + k - 1 if samples else end
            if end == start or num_slots > self.context_limit or not self._make_room(request, start, num_slots, prefix):
                continue
            batch.append(ScheduledRequest(request, start, end - start, self.kv.block_ids(request), samples))
            self._progress[request.request_id] = DraftProgress(end)
            budget -= end - start
        return batch

    def _make_room(self, request: Request, start: int, end: int, prefix: list[int]) -> bool:
        if request.request_id in self.kv.tables:
            return self.kv.append(request, end)
        plan = self.kv.plan(start, end, prefix)
        if fits := self.kv.can_allocate(plan):
            self.kv.allocate(request, plan)
        return fits

    def _next(self, request: Request) -> ScheduledRequest:
        """A further pass: over the newest guess."""
        start = request.num_known_tokens + len(request.draft) - 1
        return ScheduledRequest(request, start, 1, self.kv.block_ids(request), samples=True)

    def _num_computed(self, request: Request) -> int:
        """Tokens of the request in the KV cache: those computed as known, and the guesses that have come true."""
        progress = self._progress.get(request.request_id) or DraftProgress(0)
        num_computed = progress.num_computed
        true = request.token_ids(num_computed, num_computed + len(progress.guesses))
        for guess, token in zip(progress.guesses, true):
            if guess != token:
                break
            num_computed += 1
        return num_computed


def are_greedy(rows: Sequence[DraftPosition]) -> bool:
    """Whether each row's token is the one with the largest logit."""
    return not places_sampled(rows)


def add_tokens(rows: Sequence[DraftPosition], tokens: Sequence[int], probs: Tensor | None) -> None:
    """Add to each row's draft its token, and the distribution of `probs` [R, V] that a random one was drawn from."""
    for i, (row, token) in enumerate(zip(rows, tokens)):
        draft = row.request.draft
        draft.token_ids.append(token)
        if probs is not None and row.params.temperature > 0:
            draft.probs = [*(draft.probs or ()), probs[i]]


def draw_from(probs: Tensor, rows: Sequence[DraftPosition], purpose: str = "draft") -> list[int]:
    """One token from each distribution [R, V]. These draws have nothing to do with those that check them, or with those
    for another purpose."""
    cumulative = probs.cumsum(dim=-1)
    return pick(cumulative, cumulative[:, -1], uniforms(rows, probs.device, purpose)).tolist()
