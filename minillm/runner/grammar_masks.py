"""Grammar masks: before a token is drawn, those that a request's grammar rules out get a logit of -inf."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from minillm.host.device import to_device
from minillm.runner.rows import Row

SPREAD = np.unpackbits(~np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little").view(np.int64)[:, 0]
"""For each byte of a bitmask, eight bytes: 1 where its bit is 0. One look-up is much faster than eight shifts."""


def apply_grammars(logits: Tensor, rows: Sequence[Row]) -> Tensor | None:
    """A copy of the logits [R, V] with what the rows' grammars rule out at -inf; None if no row has a grammar.

    The host fills one bit for each token and row, which the device spreads out: an eighth of the bytes to send.
    A matcher that has failed, or whose request has used up its CPU time (frontend/grammar_matcher.py), allows nothing,
    so that its row cannot be sampled; `grammar_error` tells why.
    """
    matchers = {i: row.matcher for i, row in enumerate(rows) if row.matcher is not None}
    if not matchers:
        return None
    from llguidance.numpy import allocate_token_bitmask  # only where it is used

    bitmask = allocate_token_bitmask(*logits.shape)  # all ones: other rows may have any token
    for i, matcher in matchers.items():
        matcher.fill_mask(bitmask, i)
        bitmask[i] *= matcher.error is None
    packed = to_device(bitmask.view(np.uint8), logits.device)
    ruled_out = to_device(SPREAD, logits.device)[packed.int()].view(torch.bool)
    return logits.masked_fill(ruled_out[:, : logits.shape[1]], -math.inf)


def grammar_error(row: Row) -> str | None:
    """Why a row's grammar could not be followed; None if that is not so, or the request has ended."""
    return row.matcher and row.matcher.error
