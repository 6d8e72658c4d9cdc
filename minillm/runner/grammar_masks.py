"""Grammar masks: before a token is drawn, those that a request's grammar rules out get a logit of -inf."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from minillm.core.request import GRAMMAR_ERROR
from minillm.kernels.device import to_device
from minillm.runner.rows import Row

SPREAD = np.unpackbits(~np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little").view(np.int64)[:, 0]
"""For each byte of a bitmask, eight bytes: 1 where its bit is 0. One look-up is much faster than eight shifts."""


def apply_grammars(logits: Tensor, rows: Sequence[Row]) -> Tensor | None:
    """A copy of the logits [R, V] with what the rows' grammars rule out at -inf; None if no row has a grammar.

    The host fills one bit for each token and row, which the device spreads out: an eighth of the bytes to send.
    A matcher that has failed allows nothing, so that its row cannot be sampled; `grammar_error` tells why.
    """
    matchers = {i: row.matcher for i, row in enumerate(rows) if row.matcher is not None}
    if not matchers:
        return None
    from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask  # only where it is used

    bitmask = allocate_token_bitmask(*logits.shape)  # all ones: other rows may have any token
    for i, matcher in matchers.items():
        fill_next_token_bitmask(matcher, bitmask, i)
        bitmask[i] *= not matcher.is_error()
    packed = to_device(bitmask.view(np.uint8), logits.device)
    ruled_out = to_device(SPREAD, logits.device)[packed.int()].view(torch.bool)
    return logits.masked_fill(ruled_out[:, : logits.shape[1]], -math.inf)


def grammar_error(row: Row) -> str | None:
    """Why a row's grammar could not be followed; None if that is not so, or the request has ended."""
    matcher: Any = row.matcher
    return f"{GRAMMAR_ERROR}: {matcher.get_error()}" if matcher and matcher.is_error() else None
