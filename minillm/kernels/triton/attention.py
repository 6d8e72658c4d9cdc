"""Our own paged attention kernel: runs on every CUDA GPU, with any block size, for any mix of requests.

The kernels are in attention_kernels.py. Here is what surrounds them: how large the tiles are, how many
programs share a sequence's keys, and the launches. One launch computes the decodes, another one the rest.

Tile sizes follow from the sizes of registers and shared memory. Others were tried on an H100 (d = 128, bfloat16;
course/data/measured/gpu_check_h100.json). For decodes of 128 keys a step: 13% faster at 1 x 1,024, and 18% slower at
8 x 1,024. For prompts the fastest saved 14%, and spills registers.
"""

import functools
import importlib.util
import math
import os
from dataclasses import dataclass

import torch
from torch import Tensor

from minillm.host.device import before_ampere
from minillm.kernels.attention.base import AttentionBackend, AttentionMetadata
from minillm.kernels.attention.cache import QUANTIZED_DTYPES, KVCache, as_kernels_read
from minillm.kernels.triton.gpu import gpu

MAX_ACCUMULATOR = 128 * 128
"""Float32 numbers of the result that one program keeps in registers: 64 of a thread's 255, in 8 warps."""
KEY_TILE = 64 * 128
"""Numbers in the keys of one step: 16 KB of 16-bit ones, and as much again for the values."""
MOST_KEYS = 64
"""Keys of a step of prompts or drafts, at most."""
STAGES = 5
"""Half of the pipeline's stages look up blocks, so this is two steps of keys and values on their way while a
third one is computed: 72 KB for decodes, so that three programs fit into a multiprocessor's 228 KB."""
PROGRAMS_PER_PROCESSOR = 2
"""Splitting stops where every multiprocessor has this many programs: more only adds parts to combine."""
MIN_KEYS_PER_SPLIT = 256
"""Fewer are read in less time than combining the parts takes."""
MAX_SPLITS = 64
"""As many does a program of the combine kernel hold in registers, d numbers each (attention_kernels.py)."""


class TritonAttention(AttentionBackend):
    """Reads pages where they lie. Grids and constants depend on shapes only: lengths are read on the device."""

    capturable = True
    device_types = ("cuda",)
    quantized_caches = tuple(QUANTIZED_DTYPES.values())
    # Tiles of 128, 64 and 16 rows, in contexts for one program and for several. Each is a kernel that takes a second to
    # compile, in which every request would wait.
    warm_up_steps = tuple((context_len, n) for context_len in (128, 2048) for n in (128, 16, 4))

    def __init__(self, metadata: AttentionMetadata) -> None:
        super().__init__(metadata)
        num_sequences = len(metadata.context_lens)
        self.launches = []
        if metadata.num_decodes:
            self.launches.append(Launch(0, metadata.num_decodes, 1))
        if metadata.num_decodes < num_sequences:
            rest = num_sequences - metadata.num_decodes
            self.launches.append(Launch(metadata.num_decodes, rest, metadata.max_query_len))

    def attend(self, query: Tensor, kv_cache: KVCache, scale: float) -> Tensor:
        output = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        for launch in self.launches:
            launch(self.metadata, query, kv_cache, scale, output)
        return output

    @classmethod
    def missing(cls, device: torch.device) -> str | None:
        if importlib.util.find_spec("triton") is None:
            return "the package triton is not installed: pip install triton (Linux; torch for CUDA brings it along)"
        if device.type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1":
            return None  # Triton's interpreter: slow, for tests
        if device.type == "cuda" and before_ampere(device):
            return "its tiles want more shared memory than a GPU before compute capability 8.0 has: choose sdpa"
        return super().missing(device)


@dataclass(frozen=True, slots=True)
class AttentionTile:
    """The shape of one program's work."""

    rows: int
    """(query position, head of the group) pairs; a power of two"""
    keys: int
    """Keys per step; a power of two"""
    num_warps: int
    num_stages: int
    """Depth of the pipeline that loads keys and values ahead"""


@functools.cache
def tile_for(
    num_rows: int, head_dim: int, itemsize: int, shared_memory: int, most_keys: int = MOST_KEYS
) -> AttentionTile:
    """The tile for sequences that have `num_rows` rows of queries at most.

    Args:
        head_dim: d, padded to a power of two.
        itemsize: bytes of one number in the query.
        shared_memory: bytes that one program may take.
        most_keys: a step of prompts or drafts takes; a power of two.
    """
    if itemsize == 4:  # no tensor cores for float32: every product goes through registers, so little at once
        return AttentionTile(16, max(16, min(64, 2048 // head_dim)), num_warps=4, num_stages=1)
    keys = KEY_TILE // head_dim
    if num_rows <= 16:  # decodes: the fewest rows that tensor cores multiply
        return AttentionTile(16, min(128, keys), num_warps=4, num_stages=STAGES)
    # Hopper: 132 KB at d = 128. Before it, a thread's registers don't hold the addresses of so long a pipeline.
    stages = STAGES if shared_memory >= 200 * 1024 else STAGES - 2
    if num_rows <= 64 or 128 * head_dim > MAX_ACCUMULATOR:  # drafts: the rows of a Hopper matrix instruction
        return AttentionTile(64, min(most_keys, keys), num_warps=4, num_stages=stages)
    return AttentionTile(128, min(most_keys, keys), num_warps=8, num_stages=stages)


def most_keys_for(kv_format: str, capability: int) -> int:
    """Elsewhere than on Hopper, 64 keys of 8 bits in registers beside prompts or drafts would spill some (compiled for
    compute capabilities 80, 90 and 100, and run on 90 only)."""
    return MOST_KEYS // 2 if kv_format and capability != 90 else MOST_KEYS


def splits_for(num_programs: int, max_context: int, num_processors: int) -> int:
    """Into how many parts to split each sequence's keys, or the inputs of a linear layer; a power of two.

    Args:
        num_programs: without splitting.
        max_context: the longest context that the block table has room for, tokens; or inputs.
        num_processors: multiprocessors of the GPU.
    """
    wanted = num_processors * PROGRAMS_PER_PROCESSOR // num_programs
    limit = max(1, min(wanted, max_context // MIN_KEYS_PER_SPLIT, MAX_SPLITS))
    return 1 << (limit.bit_length() - 1)


def reads_pairs(query: Tensor, num_kv_heads: int) -> bool:
    """Whether decodes over a quantized cache are for rounded_attention.py: 16-bit queries, d a power of two, and an
    even number of heads, whose scales come two at a time."""
    head_dim = query.shape[2]
    return query.element_size() == 2 and num_kv_heads % 2 == 0 and head_dim == max(32, power_of_two(head_dim))


def power_of_two(number: int) -> int:
    """The smallest power of two that is not below `number`."""
    return 1 << (number - 1).bit_length()


@dataclass(frozen=True, slots=True)
class Launch:
    """Some neighbouring sequences of the batch."""

    first_sequence: int
    num_sequences: int
    max_query_len: int
    """The most new tokens any of them has. It sets the height of the tiles; any value gives right results."""
    splits: int | None = None
    """Into how many parts each sequence's keys are split, a power of two; None = see `splits_for`."""

    def __call__(
        self, metadata: AttentionMetadata, query: Tensor, kv_cache: KVCache, scale: float, output: Tensor
    ) -> None:
        """Attend with their queries; see AttentionBackend.attend. Writes their rows of `output`."""
        from minillm.kernels.triton import attention_kernels as triton_kernels  # here, as triton may not be installed
        from minillm.kernels.triton.dependent_launch import pdl_options

        numbers, scales, kv_format = as_kernels_read(kv_cache)
        num_tokens, num_heads, head_dim = query.shape
        num_kv_heads = kv_cache.shape[3]
        group = num_heads // num_kv_heads
        padded_dim = max(power_of_two(head_dim), 16)  # a matrix product sums over 16 numbers at least
        one_token = self.max_query_len == 1
        # Decodes come first, so what is not theirs belongs to the rest: a number that depends on shapes only.
        num_rows = self.num_sequences if one_token else num_tokens - self.first_sequence

        device = gpu(query.device)
        most_keys = most_keys_for(kv_format, device.capability)
        tile = tile_for(self.max_query_len * group, padded_dim, query.element_size(), device.shared_memory, most_keys)
        tile_rows = max(tile.rows, power_of_two(group))
        # However the tokens are spread over the sequences, there are no more tiles than this.
        num_tiles = self.num_sequences
        if not one_token:
            num_tiles += num_rows // (tile_rows // group)
        max_context = metadata.block_tables.shape[1] * metadata.block_size
        splits = self.splits or splits_for(num_tiles * num_kv_heads, max_context, device.num_processors)
        if one_token and kv_format and reads_pairs(query, num_kv_heads):
            from minillm.kernels.triton.rounded_attention import PairTile, attend_decodes

            sequences = range(self.first_sequence, self.first_sequence + self.num_sequences)
            pairs = PairTile(max(16, KEY_TILE // head_dim), splits)
            attend_decodes(query, kv_cache, metadata, scale, output, pairs, sequences)
            return
        parts, softmax = triton_kernels.partial_results(query, output, num_rows, splits)
        tables, starts = metadata.block_tables, metadata.query_starts_tensor
        tensors = (query, numbers, scales, tables, starts, metadata.context_lens_tensor, output, parts, softmax)
        strides = (*query.stride()[:2], *numbers.stride()[:4], tables.stride(0), output.stride(0))
        triton_kernels.attend_tiles[(num_kv_heads, splits, num_tiles)](
            *tensors,
            self.first_sequence,
            self.num_sequences,
            splits,
            scale * math.log2(math.e),
            *strides,
            HEAD_DIM=head_dim,
            PADDED_DIM=padded_dim,
            GROUP=group,
            BLOCK_SIZE=metadata.block_size,
            WINDOW=metadata.window or 0,
            FORMAT=kv_format,
            IS_SPLIT=splits > 1,
            ONE_TOKEN=one_token,
            TILE_ROWS=tile_rows,
            TILE_KEYS=tile.keys,
            num_warps=tile.num_warps,
            num_stages=tile.num_stages,
            **pdl_options(query.device),
        )
        if splits > 1:
            triton_kernels.combine(parts, softmax, output, starts, self.first_sequence)
