"""Pending tokens: sampled on the device, and not yet seen by the host.

With asynchronous scheduling a step is laid out while the one before it still runs, so the newest token of each
decoding request is not known. Its place is taken by `~row`, a negative number: "whatever row `row` of the step before
samples". The device looks it up, so nothing waits, and one tensor at one address serves eager steps and CUDA graphs.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from minillm.kernels.ops import Ops
from minillm.runner.rows import Row


class PendingTokens:
    """What the last step sampled, kept on the device.

    Args:
        max_rows: most rows that a step samples.
    """

    def __init__(self, max_rows: int, device: torch.device) -> None:
        self.sampled = torch.zeros(max_rows, dtype=torch.int32, device=device)
        """[max_rows] token ids; -1 where a row could not be sampled"""
        self.rows: dict[str, int] = {}
        """Row in `sampled` by request id."""

    def keep(self, rows: Sequence[Row], token_ids: Tensor) -> None:
        """Keep a step's samples [R] for the next step."""
        self.rows = {row.request_id: index for index, row in enumerate(rows)}
        self.sampled[: len(rows)] = token_ids

    def fill_in(self, token_ids: Tensor, ops: Ops) -> Tensor:
        """Token ids [T] int32, each `~row` replaced by what that row sampled."""
        return ops.fill_in(token_ids, self.sampled)
