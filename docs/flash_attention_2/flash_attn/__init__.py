"""FlashAttention-2 on a paged KV cache, forward only: the two functions that minillm's backend `fa2` calls.

build.sh compiles the kernels of the package flash-attn for Hopper (sm_90) and head sizes 64 and 128. This file stands
in for upstream's C++ binding (flash_api.cpp): it checks arguments, allocates outputs and split buffers, and calls the
kernels through ctypes. Nothing links against PyTorch, so one build works with any version of Python and PyTorch.

Argument names and meanings are upstream's. Not supported: dropout, ALiBi, softcap, caches without pages, appending to
the cache, gradients.
"""

import ctypes
import functools
import math
from pathlib import Path

import torch
from torch import Tensor

__all__ = ["flash_attn_varlen_func", "flash_attn_with_kvcache"]

LIBRARY = Path(__file__).with_name("libpaged_forward.so")
CAPABILITY = (9, 0)
"""What build.sh compiles for."""
HEAD_DIMS = (64, 128)
DTYPES = (torch.float16, torch.bfloat16)
PAGE_STEP = 256
"""Block sizes are multiples of it: a tile of up to 256 keys must lie within one block."""
QUERY_TILE = 64
KEY_TILE = {64: 256, 128: 128}
"""Keys in a tile, by head size, as in upstream's run_mha_fwd_splitkv_dispatch."""
MOST_SPLITS = 128


class Strides(ctypes.Structure):
    """Steps of a tensor [batch, row, head, d], in elements."""

    _fields_ = [("batch", ctypes.c_int64), ("row", ctypes.c_int64), ("head", ctypes.c_int64)]


class PagedAttention(ctypes.Structure):
    """One launch. paged_attention.h has the same struct and explains its fields."""

    _fields_ = [
        *[(name, ctypes.c_void_p) for name in ("query", "keys", "values", "output")],
        *[(name, Strides) for name in ("query_strides", "key_strides", "value_strides", "output_strides")],
        *[(name, ctypes.c_void_p) for name in ("log_sum_exp", "split_output", "split_log_sum_exp")],
        *[(name, ctypes.c_void_p) for name in ("query_starts", "key_starts", "key_lengths", "block_tables")],
        ("block_table_stride", ctypes.c_int64),
        ("stream", ctypes.c_void_p),
        *[(name, ctypes.c_int) for name in ("device", "batch", "heads", "kv_heads", "head_dim", "page_size")],
        *[(name, ctypes.c_int) for name in ("max_query_len", "max_key_len", "total_queries", "num_splits")],
        *[(name, ctypes.c_int) for name in ("window_left", "window_right", "is_bfloat16")],
        ("scale", ctypes.c_float),
    ]


def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    *,
    cache_seqlens: Tensor,
    block_table: Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    num_splits: int = 0,
) -> Tensor:
    """Attention for decodes: every sequence has the same number of queries, its last tokens.

    If the batch is too small to fill the GPU, the keys of each sequence are split over several thread blocks.

    Args:
        q: [B, L, heads, d]
        k_cache: [num_blocks, block_size, kv_heads, d], like v_cache; any strides, if those of d are 1.
        cache_seqlens: [B] int32, the keys of each sequence.
        block_table: [B, max_blocks] int32
        softmax_scale: 1 / sqrt(d) if None.
        window_size: keys seen on the left and on the right of oneself; -1 = all.
        num_splits: parts to split the keys into; 0 = chosen from the shapes alone, so a CUDA graph may record it.
    Returns:
        [B, L, heads, d]
    Raises:
        ValueError: shapes, types or sizes that this build does not take.
        RuntimeError: no Hopper GPU, no library, or an error of CUDA.
    """
    require(q.dim() == 4, "q must be [batch, length, heads, d], not {}", q.shape)
    batch, query_len, heads, head_dim = q.shape
    check(q, k_cache, v_cache, block_table, batch)
    check_int32("cache_seqlens", cache_seqlens, (batch,), q.device)
    max_key_len, kv_heads = block_table.shape[1] * k_cache.shape[1], k_cache.shape[2]
    left, right = window_size
    if causal and query_len > 1:  # a single query is the last token and has nothing to its right
        right = 0
    output = torch.empty_like(q)
    queries, outputs = q, output
    if query_len == 1 and heads > kv_heads and left < 0 and right < 0:
        # Query heads that share a key head become rows of one tile, so that its keys are read once.
        queries, outputs = heads_as_rows(q, kv_heads), heads_as_rows(output, kv_heads)
    _, rows, tiled_heads, _ = queries.shape
    if num_splits < 1:
        tiles = batch * tiled_heads * -(-rows // QUERY_TILE)
        slots = 2 * multiprocessors(q.device)  # blocks are small: 128 threads
        num_splits = splits_for(tiles, slots, -(-max_key_len // KEY_TILE[head_dim]))
    require(num_splits <= MOST_SPLITS, "num_splits must be at most {}, not {}", MOST_SPLITS, num_splits)
    float32 = functools.partial(torch.empty, dtype=torch.float32, device=q.device)
    log_sum_exp, splits = float32((batch, tiled_heads, rows)), (num_splits, batch, tiled_heads, rows)
    split_output = float32((*splits, head_dim)) if num_splits > 1 else None
    split_log_sum_exp = float32(splits) if num_splits > 1 else None
    call = describe(queries, k_cache, v_cache, outputs, block_table, softmax_scale)
    call.log_sum_exp = log_sum_exp.data_ptr()
    call.split_output, call.split_log_sum_exp = address(split_output), address(split_log_sum_exp)
    call.key_lengths, call.num_splits = cache_seqlens.data_ptr(), num_splits
    call.batch, call.max_query_len, call.max_key_len, call.total_queries = batch, rows, max_key_len, batch * rows
    call.window_left, call.window_right = narrowed(left, max_key_len), narrowed(right, max_key_len)
    launch(call, q.device)
    return output


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    *,
    block_table: Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
) -> Tensor:
    """Attention for prompts: sequences of different lengths, concatenated; a sequence's queries are its last tokens.

    Args:
        q: [T, heads, d]
        k: [num_blocks, block_size, kv_heads, d], like v; any strides, if those of d are 1.
        cu_seqlens_q: [B + 1] int32: sequence b owns rows cu_seqlens_q[b] : cu_seqlens_q[b + 1].
        cu_seqlens_k: [B + 1] int32: running sum of the sequences' numbers of keys, from 0.
        max_seqlen_q: at least the most queries, max_seqlen_k: at least the most keys of a sequence.
        block_table: [B, max_blocks] int32
        softmax_scale: 1 / sqrt(d) if None.
        window_size: keys seen on the left and on the right of oneself; -1 = all.
    Returns:
        [T, heads, d]
    Raises:
        ValueError: shapes, types or sizes that this build does not take.
        RuntimeError: no Hopper GPU, no library, or an error of CUDA.
    """
    require(q.dim() == 3, "q must be [tokens, heads, d], not {}", q.shape)
    batch = len(cu_seqlens_q) - 1
    check(q, k, v, block_table, batch)
    for name, starts in (("cu_seqlens_q", cu_seqlens_q), ("cu_seqlens_k", cu_seqlens_k)):
        check_int32(name, starts, (batch + 1,), q.device)
    require(max_seqlen_q > 0 and max_seqlen_k > 0, "max_seqlen_q and max_seqlen_k must be positive")
    left, right = window_size
    if causal and max_seqlen_q > 1:
        right = 0
    output = torch.empty_like(q)
    total_queries, heads, _ = q.shape
    log_sum_exp = torch.empty((heads, total_queries), dtype=torch.float32, device=q.device)
    call = describe(q, k, v, output, block_table, softmax_scale)
    call.log_sum_exp, call.num_splits = log_sum_exp.data_ptr(), 1
    call.query_starts, call.key_starts = cu_seqlens_q.data_ptr(), cu_seqlens_k.data_ptr()
    call.batch, call.max_query_len, call.max_key_len = batch, max_seqlen_q, max_seqlen_k
    call.total_queries = total_queries
    call.window_left, call.window_right = narrowed(left, max_seqlen_k), narrowed(right, max_seqlen_k)
    launch(call, q.device)
    return output


def describe(
    query: Tensor, keys: Tensor, values: Tensor, output: Tensor, block_table: Tensor, softmax_scale: float | None
) -> PagedAttention:
    """The fields that both functions fill in the same way. The query is [B, rows, heads, d] or [T, heads, d]."""
    _, page_size, kv_heads, head_dim = keys.shape
    return PagedAttention(
        query=query.data_ptr(),
        keys=keys.data_ptr(),
        values=values.data_ptr(),
        output=output.data_ptr(),
        query_strides=strides_of(query),
        key_strides=strides_of(keys),
        value_strides=strides_of(values),
        output_strides=strides_of(output),
        block_tables=block_table.data_ptr(),
        block_table_stride=block_table.stride(0),
        device=query.get_device(),
        heads=query.shape[-2],
        kv_heads=kv_heads,
        head_dim=head_dim,
        page_size=page_size,
        is_bfloat16=query.dtype == torch.bfloat16,
        scale=1 / math.sqrt(head_dim) if softmax_scale is None else softmax_scale,
    )


def launch(call: PagedAttention, device: torch.device) -> None:
    """Launch the kernels on the current stream. If it is being captured, the CUDA graph records them."""
    if device.type != "cuda":
        raise RuntimeError(f"FlashAttention-2 runs on a CUDA GPU, and the tensors are on {device}")
    if (capability := torch.cuda.get_device_capability(device)) != CAPABILITY:
        raise RuntimeError(f"this build is for GPUs of compute capability 9.0 (Hopper), and this one has {capability}")
    call.stream = torch.cuda.current_stream(device).cuda_stream
    if error := library().paged_attention_forward(ctypes.byref(call)):
        raise RuntimeError(f"FlashAttention-2: {error.decode()}")


@functools.cache
def library() -> ctypes.CDLL:
    """The compiled kernels.

    Raises:
        RuntimeError: they haven't been built, or were built from another version of these files.
    """
    if not LIBRARY.exists():
        raise RuntimeError(f"there is no {LIBRARY}: build.sh makes it")
    loaded = ctypes.CDLL(str(LIBRARY))
    loaded.paged_attention_bytes.restype = ctypes.c_size_t
    if (theirs := loaded.paged_attention_bytes()) != (ours := ctypes.sizeof(PagedAttention)):
        raise RuntimeError(f"{LIBRARY} takes {theirs} bytes and {__file__} gives {ours}: build it again")
    loaded.paged_attention_forward.argtypes = [ctypes.POINTER(PagedAttention)]
    loaded.paged_attention_forward.restype = ctypes.c_char_p
    return loaded


@functools.cache
def splits_for(tiles: int, slots: int, key_tiles: int) -> int:
    """How many parts to split every sequence's keys into, by upstream's rule (num_splits_heuristic).

    Thread blocks run in waves, and the last wave leaves part of the GPU idle. Of all numbers of parts whose utilization
    is at least 85% of the best one's, the smallest: every part also costs memory traffic.

    Args:
        tiles: number of thread blocks without splitting.
        slots: thread blocks that run at the same time.
        key_tiles: tiles of keys in the longest sequence.
    """
    if tiles >= 0.8 * slots:
        return 1

    def utilization(num_splits: int) -> float:
        waves = tiles * num_splits / slots
        return waves / math.ceil(waves)

    def tiles_each(num_splits: int) -> int:
        return -(-key_tiles // num_splits)

    most = min(MOST_SPLITS, slots, key_tiles)
    # Skip numbers that make the parts no smaller: 64 tiles in 11 or in 12 parts are parts of 6.
    choices = [1, *(n for n in range(2, most + 1) if tiles_each(n) != tiles_each(n - 1))]
    best = max(map(utilization, choices))
    return next(n for n in choices if utilization(n) >= 0.85 * best)


@functools.cache
def multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


def heads_as_rows(tensor: Tensor, kv_heads: int) -> Tensor:
    """[B, 1, heads, d] seen as [B, heads of one key head, kv_heads, d]."""
    batch, _, heads, d = tensor.shape
    return tensor.view(batch, kv_heads, heads // kv_heads, d).transpose(1, 2)


def strides_of(tensor: Tensor) -> Strides:
    """0 from sequence to sequence for [T, heads, d], where query_starts tells their beginnings."""
    *batch, row, head, _ = tensor.stride()
    return Strides(*batch or [0], row, head)


def address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def narrowed(side: int, max_key_len: int) -> int:
    """One side of the window; -1 if it is wider than any sequence."""
    return -1 if side < 0 or side >= max_key_len else side


def check(q: Tensor, k: Tensor, v: Tensor, block_table: Tensor, batch: int) -> None:
    heads, head_dim = q.shape[-2:]
    require(head_dim in HEAD_DIMS, "this build has head sizes 64 and 128, not {}", head_dim)
    require(q.dtype in DTYPES, "FlashAttention-2 computes in float16 and bfloat16, not in {}", q.dtype)
    require(batch > 0, "there must be at least one sequence")
    require(k.dim() == 4 and k.shape[3] == head_dim, "keys must be [blocks, block size, heads, {}]", head_dim)
    require(k.shape == v.shape, "keys and values differ in shape: {}, {}", k.shape, v.shape)
    require(k.shape[1] % PAGE_STEP == 0, "block sizes are multiples of {}, not {}", PAGE_STEP, k.shape[1])
    require(heads % k.shape[2] == 0, "{} query heads cannot share {} key heads evenly", heads, k.shape[2])
    for name, tensor in (("q", q), ("keys", k), ("values", v)):
        require(tensor.dtype == q.dtype and tensor.device == q.device, "{} must be {} on {}", name, q.dtype, q.device)
        *strides, last = tensor.stride()
        require(last == 1, "{}: the last dimension must be contiguous", name)
        # The kernel copies 16 bytes at a time, and a number has 2.
        aligned = tensor.data_ptr() % 16 == 0 and math.gcd(*strides) % 8 == 0
        require(aligned, "{}: every head must begin at a multiple of 16 bytes", name)
        require(not tensor.requires_grad, "{}: this build has no backward pass", name)
    require(block_table.dim() == 2 and block_table.shape[0] == batch, "block_table must be [{}, blocks]", batch)
    require(block_table.stride(1) == 1, "block_table: the last dimension must be contiguous")
    where = q.device
    require(block_table.dtype == torch.int32 and block_table.device == where, "block_table must be int32 on {}", where)


def check_int32(name: str, tensor: Tensor, shape: tuple[int, ...], device: torch.device) -> None:
    require(tensor.shape == shape, "{} must have the shape {}, not {}", name, shape, tensor.shape)
    right = tensor.dtype == torch.int32 and tensor.device == device and tensor.is_contiguous()
    require(right, "{} must be int32, contiguous and on {}", name, device)


def require(condition: bool, what: str, *details: object) -> None:
    if not condition:
        raise ValueError(what.format(*details))
