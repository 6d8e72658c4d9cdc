"""A learner's router in every sparse layer, and a learner's grammar mask before every token, of the real model."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course.grading.blame import shown
from course.grading.plug_in_guard import FallbackGuard
from minillm.model.loader import LoadedModel
from minillm.model.moe import ExpertRouter
from minillm.runner.rows import Row
from minillm.runner.torch_runner import TorchRunner


class OwnRouter(nn.Module):
    """One layer's router by a learner's `route` (exercise expert-routing).

    Args:
        ours: the engine's own, which takes over.
    """

    def __init__(self, route: Callable[..., Any], guard: FallbackGuard, ours: ExpertRouter) -> None:
        super().__init__()
        self.ours, self.k = ours, ours.k
        self._route, self._guard = route, guard

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self._guard.call(lambda: self._asked(x), lambda: self.ours(x))

    def _asked(self, x: Tensor) -> tuple[Tensor, Tensor]:
        logits = F.linear(x, self.ours.weight).float().cpu().numpy()
        experts, shares = map(np.asarray, self._route(logits, self.k, self.ours.normalize))
        if experts.shape != (len(x), self.k) or shares.shape != experts.shape:
            raise ValueError(
                f"experts and shares are [{len(x)}, {self.k}]; these are {shown((experts.shape, shares.shape))}"
            )
        if experts.min() < 0 or experts.max() >= logits.shape[1] or not np.isfinite(shares).all():
            raise ValueError("an expert that does not exist, or a share that is not finite")
        return torch.from_numpy(experts.astype(np.int64)).to(x.device), torch.from_numpy(shares).to(x)


def route_with(model: LoadedModel, route: Callable[..., Any] | None, guard: FallbackGuard) -> None:
    """Let a model's sparse layers use a learner's router; None = their own again (the model outlives a run)."""
    for layer in model.decoder.sparse_mlps:
        ours = getattr(layer.router, "ours", layer.router)
        layer.router = ours if route is None else OwnRouter(route, guard, ours)


class OwnMasks:
    """A matcher of a learner's for each request, asked before each of its tokens (exercise grammar-mask)."""

    def __init__(self, matcher: Callable[..., Any], grammar: Any, model: LoadedModel, guard: FallbackGuard) -> None:
        vocabulary = [model.tokenizer.decode([token]) for token in range(model.model_config.vocab_size)]
        self._size = len(vocabulary)
        self._eos = min(model.eos_token_ids)
        self._make = lambda: matcher(grammar, vocabulary, self._eos)
        self._guard = guard
        self._live: dict[str, tuple[Any, int]] = {}

    def on(self, logits: Tensor, rows: Sequence[Row], allowed: Tensor | None) -> Tensor | None:
        return self._guard.call(lambda: self._masked(logits, rows), lambda: allowed)

    def _masked(self, logits: Tensor, rows: Sequence[Row]) -> Tensor:
        masks = torch.tensor(np.array([self._mask(row) for row in rows], dtype=bool), device=logits.device)
        return logits.masked_fill(~masks, -torch.inf)

    def _mask(self, row: Row) -> np.ndarray:
        if self._eos in row.output_token_ids:  # the lab's workloads go on to a fixed length: with nothing but the end
            return np.arange(self._size) == self._eos
        matcher, seen = self._live.get(row.request_id) or (self._make(), 0)
        for token in row.output_token_ids[seen:]:
            matcher.accept(token)
        self._live[row.request_id] = matcher, len(row.output_token_ids)
        mask = np.asarray(matcher.allowed(), dtype=bool)
        if not mask.any():
            raise ValueError(f"it allows no token after {len(row.output_token_ids)} tokens")
        return mask


def mask_with(runner: TorchRunner, masks: OwnMasks) -> None:
    launch = runner.sampler.launch
    runner.sampler.launch = lambda logits, rows, allowed=None: (  # type: ignore[method-assign]
        launch(logits, rows, masks.on(logits, rows, allowed))
    )
