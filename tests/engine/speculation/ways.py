"""Ways to serve that drafts must survive: tight pools, short steps, cold caches."""

from typing import Any

WAYS: dict[str, dict[str, Any]] = {
    "roomy": {},
    "no prefix cache": {"enable_prefix_caching": False},
    "small steps": {"max_num_batched_tokens": 7},
    "whole prompts": {"enable_chunked_prefill": False, "max_num_batched_tokens": 8},
    "tight": {"num_kv_blocks": 24},
    "tight, swapped": {"num_kv_blocks": 24, "preemption": "swap", "swap_space_gb": 0.002},
    "static": {"batching": "static"},
    "large blocks": {"block_size": 32, "num_kv_blocks": 12},
}
