"""Opt-in (`compile=True`): the decode step of small batches as one program made by torch.compile.

Eager PyTorch runs some forty operations a layer, each with its own dispatch and its own trip through
memory. Compiled, the small operations are fused. Matrix products, attention and cache writes stay what
they are (models/native, SDPA): operations that the compiler does not look into. float32 layers are the
compiler's own; `compile="max"` lets it try several. In bfloat16, where the native kernels do all of this
without a compiler, it gains next to nothing (docs/measured.md).

The price is compiling, up to a minute per batch size. So sizes are rounded up to a few buckets, compiled
at start-up, and kept on disk.
"""

import logging
import os
import time
from collections.abc import Callable
from dataclasses import replace

import setuptools  # noqa: F401  torch.compile needs it, and on Python 3.11 it must come before distutils
import torch
import torch._inductor.config as inductor_config
from torch import Tensor, nn

from minillm.core.block_pool import blocks_for
from minillm.core.known import known
from minillm.kernels.attention.base import AttentionBackend, AttentionMetadata
from minillm.kernels.attention.cache import KVCache, QuantizedKV, write_kv
from minillm.kernels.attention.native import NativeAttention
from minillm.kernels.ops import Ops
from minillm.kernels.storage import cache_home, say
from minillm.model.decoder import Decoder
from minillm.policies.window import Window
from minillm.runner.batch_tensors import (
    NO_ROWS,
    BatchArrays,
    HostBatch,
    fill_in,
    make_metadata,
    pack,
    pad_decodes,
    unpack,
)
from minillm.runner.kv_pool import KVPool

logger = logging.getLogger(__name__)

BUCKETS = (1, 2, 4, 8)
"""Batch sizes to compile. Beyond, the matrix products take longer than what lies between them."""

FREEZING = {"freezing": True}
"""Weights are constants of the program."""
TUNING = {"max_autotune": True, "max_autotune_gemm_backends": "CPP", "autotune_num_choices_displayed": 0}
"""Matrix products that the compiler sees (float32) come from C++ templates, the fastest of several tries."""


def paged_decode(
    query: Tensor,
    numbers: Tensor,
    scales: Tensor | None,
    block_tables: Tensor,
    context_lens: Tensor,
    scale: float,
    window: int | None,
    sinks: int,
) -> Tensor:
    """Attention of n decodes, as one operation that the compiler does not look into.

    Inside it contexts have any length; outside, every shape is fixed.
    """
    n = len(context_lens)
    metadata = AttentionMetadata(
        query_starts=list(range(n + 1)),
        context_lens=context_lens.tolist(),
        query_starts_tensor=context_lens,  # of decodes alone nobody reads it
        context_lens_tensor=context_lens,
        block_tables=block_tables,
        slot_mapping=context_lens,
        num_decodes=n,
        block_size=numbers.shape[1],
        window=window,
        sinks=sinks,
    )
    return NativeAttention(metadata).attend(query, join_cache(numbers, scales), scale)


def write_parts(kv: Tensor, numbers: Tensor, scales: Tensor | None, slot_mapping: Tensor) -> None:
    """`write_kv` for a cache in parts."""
    write_kv(kv, join_cache(numbers, scales), slot_mapping)


def join_cache(numbers: Tensor, scales: Tensor | None) -> KVCache:
    """The cache of which `split_cache` made parts."""
    return numbers if scales is None else QuantizedKV(numbers, scales)


def split_cache(kv_cache: KVCache) -> tuple[Tensor, Tensor | None]:
    """An operation takes tensors only."""
    return (kv_cache, None) if isinstance(kv_cache, Tensor) else (kv_cache.numbers, kv_cache.scales)


OPERATIONS = torch.library.Library("minillm", "FRAGMENT")
OPERATIONS.define("write_kv(Tensor kv, Tensor(a!) numbers, Tensor(b!)? scales, Tensor slot_mapping) -> ()")
OPERATIONS.define(
    "paged_decode(Tensor query, Tensor numbers, Tensor? scales, Tensor block_tables, Tensor context_lens, float scale, "
    "int? window, int sinks) -> Tensor"
)
OPERATIONS.impl("write_kv", write_parts, "CPU")
OPERATIONS.impl("paged_decode", paged_decode, "CPU")


def _write_nothing(kv: Tensor, *_: object) -> None:
    return None


def _decode_shape(query: Tensor, *_: object) -> Tensor:
    return torch.empty(query.shape, dtype=query.dtype)


torch.library.register_fake("minillm::write_kv", _write_nothing, lib=OPERATIONS)
torch.library.register_fake("minillm::paged_decode", _decode_shape, lib=OPERATIONS)


class OpaqueAttention(AttentionBackend):
    """`paged_decode` as a backend."""

    def attend(self, query: Tensor, kv_cache: KVCache, scale: float) -> Tensor:
        metadata = self.metadata
        return torch.ops.minillm.paged_decode(
            query,
            *split_cache(kv_cache),
            metadata.block_tables,
            metadata.context_lens_tensor,
            scale,
            metadata.window,
            metadata.sinks,
        )


class OpaqueOps(Ops):
    """The small operations, for the compiler to fuse; but it does not look into the cache."""

    def write(self, kv: Tensor, kv_cache: KVCache, slot_mapping: Tensor) -> None:
        torch.ops.minillm.write_kv(kv, *split_cache(kv_cache), slot_mapping)


class DecodeStep(nn.Module):
    """What is compiled: a decoder over n decodes, with tensors only for arguments."""

    def __init__(self, decoder: Decoder, block_size: int, window: Window) -> None:
        super().__init__()
        self.decoder = decoder
        self.block_size = block_size
        self.window = window

    def forward(self, arrays: tuple[Tensor, ...], kv_caches: list[KVCache]) -> Tensor:
        """Logits [n, V]. `arrays` are the BatchArrays of n decodes."""
        batch = BatchArrays(*arrays)
        metadata = make_metadata(batch, [], [], len(batch.context_lens), self.block_size)
        attention = OpaqueAttention(replace(metadata, window=self.window.size, sinks=self.window.sinks))
        return self.decoder(batch.token_ids, batch.positions, kv_caches, attention, OpaqueOps())


class CompiledDecode:
    """Compiled decode steps, one per bucket.

    Args:
        decoder: the eager model, left as it is.
        kv_pool: its caches, and the null block that padding rows write to.
        max_context: longest context any request can have, tokens.
        max_batch: largest batch there can be; no larger bucket is compiled.
        tune: compile="max".
        window: what a token sees.

    Compiles at once, with a line of progress per bucket. If there is no C++ compiler, or it fails, it
    warns and holds no bucket: the caller goes on eagerly.
    """

    def __init__(
        self,
        decoder: Decoder,
        kv_pool: KVPool,
        block_size: int,
        max_context: int,
        max_batch: int,
        tune: bool,
        window: Window,
    ) -> None:
        self.options = {**FREEZING, **(TUNING if tune else {})}
        self.kv_pool = kv_pool
        self.block_size = block_size
        self.window = window
        self.max_blocks = blocks_for(max_context, block_size)
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache_home() / "inductor"))  # of the whole process
        # The compiler keeps every program it made, frozen weights included, and gives up after eight of one
        # function: let go of earlier engines' programs. One still in use would be compiled again.
        torch._dynamo.reset()
        self.steps: dict[int, Callable[..., Tensor]] = {}
        for bucket in [bucket for bucket in BUCKETS if bucket <= max_batch]:
            try:
                self.steps[bucket] = self._compile(decoder, bucket)
            except Exception as error:  # the compiler stack has dozens of error types of its own
                reason = str(error).strip().splitlines()[0] if str(error).strip() else ""
                logger.warning(
                    "compile=True fails here, going on without it (%s: %s). It needs a C++ compiler, such as g++, and "
                    "a cache folder that can be written (MINILLM_HOME)",
                    type(error).__name__,
                    reason,
                )
                break

    def __call__(self, batch: HostBatch, previous_tokens: Tensor | None) -> Tensor | None:
        """Logits [R, V] of a batch of decodes; None if no bucket fits, or something else is in the batch.

        Args:
            previous_tokens: what the step before sampled.
        """
        n = batch.num_sequences
        bucket = next((bucket for bucket in self.steps if bucket >= n), None)
        if bucket is None or not batch.only_decodes:
            return None
        arrays = pad_decodes(batch.arrays, bucket, self.max_blocks, self.kv_pool.null_block, self.block_size)
        tensors = unpack(torch.from_numpy(pack(arrays)), arrays)
        if batch.has_pending:
            tensors = tensors._replace(
                token_ids=fill_in(tensors.token_ids, tensors.previous_rows, known(previous_tokens))
            )
        return self.steps[bucket](tuple(tensors), self.kv_pool.layers)[:n]

    @torch.inference_mode()
    def _compile(self, decoder: Decoder, bucket: int) -> Callable[..., Tensor]:
        say(f"compiling the decode step for batch {bucket}: up to a minute, less the next time")
        start = time.perf_counter()
        step = torch.compile(DecodeStep(decoder, self.block_size, self.window), fullgraph=True, dynamic=False)
        like = pad_decodes(NO_ROWS, bucket, self.max_blocks, self.kv_pool.null_block, self.block_size)
        with inductor_config.patch(self.options):
            # The first call compiles; every row is padding, so it writes to the null block only.
            step(tuple(unpack(torch.from_numpy(pack(like)), like)), self.kv_pool.layers)
        say(f"compiled for batch {bucket} in {time.perf_counter() - start:.0f} s")
        return step
