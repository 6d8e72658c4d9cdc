"""The two calls of `flash_attn` (FlashAttention-2) that nano-vllm makes, answered by FlashAttention-3.

FlashAttention-2 has to be compiled for hours on many machines; FlashAttention-3 comes as a wheel and is the
faster one on Hopper. Both compute the same; only their arguments differ: a block table is called a page
table, and queries of several lengths over a paged cache go through `flash_attn_with_kvcache` there.
Not yet tried on a GPU.
"""

import importlib.util
import sys
from types import ModuleType
from typing import Any

from torch import Tensor


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    softmax_scale: float | None = None,
    causal: bool = False,
    block_table: Tensor | None = None,
) -> Tensor:
    """Attention of several sequences laid end to end.

    Args:
        q: [total queries, heads, d].
        k, v: [total keys, KV heads, d]; with a block table [blocks, tokens per block, KV heads, d].
        cu_seqlens_q, cu_seqlens_k: [sequences + 1] int32, where each begins.
        block_table: [sequences, most blocks of one] int32.
    Returns:
        [total queries, heads, d].
    """
    import flash_attn_interface as fa3

    if block_table is None:
        out = fa3.flash_attn_varlen_func(
            q,
            k,
            v,
            cu_seqlens_q=cu_seqlens_q,
            cu_seqlens_k=cu_seqlens_k,
            max_seqlen_q=max_seqlen_q,
            max_seqlen_k=max_seqlen_k,
            softmax_scale=softmax_scale,
            causal=causal,
        )
    else:
        out = fa3.flash_attn_with_kvcache(
            q,
            k,
            v,
            cache_seqlens=cu_seqlens_k[1:] - cu_seqlens_k[:-1],
            page_table=block_table,
            cu_seqlens_q=cu_seqlens_q,
            max_seqlen_q=max_seqlen_q,
            softmax_scale=softmax_scale,
            causal=causal,
        )
    return _only_output(out)


def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    *,
    cache_seqlens: Tensor,
    block_table: Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
) -> Tensor:
    """Attention of new queries [sequences, queries of each, heads, d] over a paged cache; the same shape."""
    import flash_attn_interface as fa3

    out = fa3.flash_attn_with_kvcache(
        q,
        k_cache,
        v_cache,
        cache_seqlens=cache_seqlens,
        page_table=block_table,
        softmax_scale=softmax_scale,
        causal=causal,
    )
    return _only_output(out)


def _only_output(out: Any) -> Tensor:
    """Early releases of FlashAttention-3 also returned the log-sum-exp."""
    return out[0] if isinstance(out, tuple) else out


def provide_flash_attn() -> str | None:
    """Make `import flash_attn` work where only FlashAttention-3 is installed.

    Returns:
        What answers its calls; None where neither is installed.
    """
    if "flash_attn" not in sys.modules and importlib.util.find_spec("flash_attn") is None:
        if importlib.util.find_spec("flash_attn_interface") is None:
            return None
        module = ModuleType("flash_attn", __doc__)
        vars(module).update(
            flash_attn_varlen_func=flash_attn_varlen_func, flash_attn_with_kvcache=flash_attn_with_kvcache
        )
        sys.modules["flash_attn"] = module
    found = getattr(sys.modules.get("flash_attn"), "flash_attn_with_kvcache", None)
    ours = found is flash_attn_with_kvcache
    return "flash_attn_interface (FlashAttention-3)" if ours else "flash_attn (FlashAttention-2)"
