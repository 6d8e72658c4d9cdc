"""What the lab's engine is configured with, unless a lesson says otherwise."""

from typing import Any

LAB_DEFAULTS: dict[str, Any] = {
    "max_model_len": 2048,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 256,
    "num_kv_blocks": 384,
}
"""Smaller than one would deploy: few slots and few blocks, so that a laptop shows what a loaded server does."""
