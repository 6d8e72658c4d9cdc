"""Any step as CUDA graphs: what lies between two calls of attention is a recording (piecewise CUDA graphs, vLLM v1).

A mixed step (chunks of prompts beside decodes) is laid out differently each time, and attention's launches differ with
it. All other operations see T tokens in a row, so the forward pass is cut at attention:

    recorded   embedding; norm, queries, keys and values of layer 1
    launched   attention of layer 1, over the tokens that are there
    recorded   output projection and MLP of layer 1; norm, queries, keys and values of layer 2
    ...
    recorded   output projection and MLP of the last layer; norm

No length is part of a recording, so any attention backend will do. Numbers of tokens are rounded up to buckets; padding
writes its keys and values to the null block, and attention never sees it. What it gains is not yet measured.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor
from tqdm.auto import tqdm

from minillm.host.device import to_device
from minillm.kernels.attention.base import AttentionFn
from minillm.kernels.attention.cache import KVCache
from minillm.kernels.ops import ForwardContext, Ops
from minillm.model.decoder import Decoder
from minillm.runner.batch_layout import HostBatch
from minillm.runner.cuda_graphs import Graph
from minillm.runner.kv_pool import KVPool
from minillm.runner.pending_tokens import PendingTokens

MAX_TOKENS = 1024
"""With more, a GPU is busy with a layer for longer than Python needs to launch its kernels, if that takes 200 µs (an
estimate): at 600 TFLOP/s a layer of a 1B model (61M weights) computes 1,000 tokens in that time, of an 8B model 280."""
BUCKET_STEP = 16


class PiecewiseGraphs:
    """Forward passes of up to MAX_TOKENS tokens, recorded in buckets when this is made: requests should not wait for a
    recording, and later the memory for it may be gone.

    Args:
        decoder, ops: the forward pass to record.
        pending: read by every replay, at one address.
        max_tokens: most tokens of a step.
        make_graph: see GraphedDecode.
    """

    @torch.inference_mode()
    def __init__(
        self,
        decoder: Decoder,
        ops: Ops,
        kv_pool: KVPool,
        pending: PendingTokens,
        max_tokens: int,
        make_graph: Callable[[], Graph],
    ) -> None:
        self.decoder, self.ops, self.kv_pool, self.pending = decoder, ops, kv_pool, pending
        self.device, config, size = pending.sampled.device, decoder.config, min(max_tokens, MAX_TOKENS)
        self.padding = np.array([[0], [0], [kv_pool.null_block * kv_pool.block_size]])
        """Token id, position and slot"""
        self.inputs = to_device(self.padding.repeat(size, axis=1), self.device)
        """[3, size] int64"""
        # What a piece leaves for the next, the same for all layers and buckets.
        zeros = partial(torch.zeros, dtype=decoder.activation_dtype, device=self.device)
        self.angles = zeros(2, size, 1, config.head_dim)
        self.query, self.attended = zeros(2, size, config.num_heads, config.head_dim)
        self.x, self.hidden = zeros(2, size, config.hidden_size)
        """The residual stream, and what goes into the output head."""
        self.recordings: dict[int, list[Graph]] = {}
        # The largest first: the memory of its activations then serves all the others.
        for bucket in tqdm(token_buckets(size)[::-1], desc="recording CUDA graphs in pieces", unit="size", leave=False):
            self.recordings[bucket] = [make_graph().record(piece) for piece in self._pieces(bucket)]
        # Recording adds to x again and again, so what it left there may be infinite.
        kv_pool.make_finite([kv_pool.null_block])

    def __call__(self, batch: HostBatch, attention: AttentionFn) -> Tensor | None:
        """Hidden states [T, h] of a step, good until the next call; None if it has more tokens than any bucket.

        Args:
            attention: of this batch.
        """
        arrays, num_tokens = batch.arrays, len(batch.arrays.token_ids)
        bucket = min((size for size in self.recordings if size >= num_tokens), default=None)
        if bucket is None:
            return None
        inputs = self.padding.repeat(bucket, axis=1)
        inputs[:, :num_tokens] = arrays.token_ids, arrays.positions, arrays.slots
        self.inputs[:, :bucket].copy_(to_device(inputs, self.device))
        # NaN of an earlier step would go on to the null block, which other requests read, if only to multiply it by 0.
        self.attended[num_tokens:bucket].zero_()
        query, attended = self.query[:num_tokens], self.attended[:num_tokens]
        first, *rest = self.recordings[bucket]
        first.replay()
        for layer, kv_cache, graph in zip(self.decoder.layers, self.kv_pool.layers, rest, strict=True):
            attended.copy_(attention.attend(query, kv_cache, layer.attention.scale))
            graph.replay()
        return self.hidden[:num_tokens]

    def _pieces(self, bucket: int) -> list[Callable[[], None]]:
        """The forward pass over `bucket` tokens, cut at attention: one piece more than there are layers."""
        decoder, layers = self.decoder, list(self.decoder.layers)
        token_ids, positions, slots = self.inputs[:, :bucket]
        x, query, attended = self.x[:bucket], self.query[:bucket], self.attended[:bucket]
        angles = self.angles[:, :bucket]
        context = ForwardContext(angles[0], angles[1], slots, NoAttention(), self.ops)

        def begin() -> None:
            angles.copy_(torch.stack(decoder.rope.angles(positions, decoder.activation_dtype)))
            embedded = decoder.embed(self.pending.fill_in(token_ids))
            up_to_attention(0, embedded, torch.zeros_like(embedded))

        def up_to_attention(i: int, stream: Tensor, delta: Tensor) -> None:
            stream, q = layers[i].before_attention(stream, delta, self.kv_pool.layers[i], context)
            x.copy_(stream)
            query.copy_(q)

        def between(i: int) -> None:
            up_to_attention(i, *layers[i - 1].after_attention(x, attended, context))

        def end() -> None:
            stream, delta = layers[-1].after_attention(x, attended, context)
            self.hidden[:bucket].copy_(decoder.norm.add_and_norm(stream, delta, self.ops)[1])

        return [begin, *(partial(between, i) for i in range(1, len(layers))), end]


class NoAttention:
    """Stands where a forward pass has its attention: pieces have none."""

    def attend(self, query: Tensor, kv_cache: KVCache, scale: float) -> Tensor:
        raise AssertionError("attention is called between the pieces")


def token_buckets(largest: int) -> list[int]:
    """16, 32, ... 128, then four a doubling: 160, 192, 224, 256, 320, ... below `largest`, and `largest`. A quarter is
    added at most; more to a few tokens, but there the weights' bytes take the time, and not the tokens."""
    sizes = [BUCKET_STEP]
    while sizes[-1] < largest:
        sizes.append(sizes[-1] + max(BUCKET_STEP, 1 << (sizes[-1].bit_length() - 3)))
    return [size for size in sizes if size < largest] + [largest]
