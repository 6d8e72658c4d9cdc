"""Steps with prompts in them as CUDA graphs: all that lies between two calls of attention (piecewise graphs, vLLM v1).

A mixed step is laid out differently each time, and attention's launches differ with it. All other operations see T
tokens in a row, so the forward pass is cut at attention:

    captured   embedding; norm, q, k and v of layer 1
    launched   attention of layer 1, over the tokens that are there
    captured   output projection and MLP of layer 1; norm, q, k and v of layer 2
    ...
    captured   output projection and MLP of the last layer; norm

No length is part of a graph, so any attention backend will do. Numbers of tokens are rounded up to those captured;
padding writes its keys and values to the null block, and attention never sees it.
"""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from minillm.host.device import to_device
from minillm.kernels.attention.base import AttentionFn
from minillm.kernels.attention.cache import KVCache
from minillm.kernels.ops import ForwardContext, Ops
from minillm.model.decoder import Decoder
from minillm.runner.batch_layout import HostBatch
from minillm.runner.cuda_graphs import Graph, to_capture
from minillm.runner.kv_pool import KVPool
from minillm.runner.pending_tokens import PendingTokens

TOKENS = (16, 32, 64, 96, 128, 192, *range(256, 512, 64), *range(512, 1024, 128), 1024)
"""Numbers of tokens that are captured. From 256 on a quarter is added at most. More to fewer, but such a step takes as
long as reading the weights. With more than the last, a GPU is busy with a layer for longer than Python takes to launch
it."""


class PiecewiseForward:
    """Forward passes of up to as many tokens as `capture` was asked for.

    Args:
        decoder, ops: the forward pass to capture.
        pending: read by every replay, at one address.
        make_graph, depths: see GraphedDecode.
    """

    def __init__(
        self,
        decoder: Decoder,
        ops: Ops,
        kv_pool: KVPool,
        pending: PendingTokens,
        make_graph: Callable[[], Graph],
        depths: tuple[int, ...] = (),
    ) -> None:
        self.decoder, self.ops, self.kv_pool, self.pending = decoder, ops, kv_pool, pending
        self.device, config, most = pending.sampled.device, decoder.config, TOKENS[-1]
        self.padding = np.array([[0], [0], [kv_pool.null_block * kv_pool.block_size]], np.int32)
        """Token id, position and slot."""
        self.inputs = to_device(self.padding.repeat(most, axis=1), self.device)
        """[3, most]: of each token."""
        # What a piece leaves for the next, the same for all layers and sizes.
        zeros = partial(torch.zeros, device=self.device, dtype=decoder.activation_dtype)
        self.cos, self.sin = zeros(2, most, 1, config.head_dim)
        self.query, self.attended = zeros(2, most, config.num_heads, config.head_dim)
        self.x, self.hidden = zeros(2, most, config.hidden_size)
        """The residual stream; and what goes into the output head."""
        self.streams = {depth: zeros(most, config.hidden_size) for depth in depths}
        """The residual stream once more, after so many layers."""
        self.slots = zeros(most, dtype=torch.int64)
        """[most] the slots once more, as PyTorch scatters by int64 only."""
        self.make_graph = make_graph
        self.graphs: dict[int, Sequence[Graph]] = {}
        self.sizes: list[int] = []
        """Those in use, as in GraphedDecode."""

    @torch.inference_mode()
    def capture(self, max_tokens: int, lazily: bool = False) -> None:
        """Be ready for any step of up to `max_tokens` tokens, or as many as are captured at most.

        Args:
            lazily: as in GraphedDecode.
        """
        enough = next((size for size in TOKENS if size >= max_tokens), TOKENS[-1])
        self.sizes = [size for size in TOKENS if size <= enough]
        for size in to_capture(self.sizes, self.graphs, lazily, "capturing CUDA graphs in pieces"):
            self._capture(size)

    def _capture(self, size: int) -> None:
        # Padding again: an earlier step's slots would be written to.
        self.inputs.copy_(to_device(self.padding.repeat(self.inputs.shape[1], axis=1), self.device))
        self.graphs[size] = [self.make_graph().capture(piece) for piece in self._pieces(size)]
        # Capturing adds to x again and again, so what that left in the null block may be infinite.
        self.kv_pool.make_finite([self.kv_pool.null_block])

    def __call__(self, batch: HostBatch, attention: AttentionFn) -> tuple[Tensor, Tensor] | None:
        """Hidden states [T, h] of a step, and what draft heads read, good until the next call; None if it has more
        tokens than any size.

        Args:
            attention: of this batch.
        """
        arrays, num_tokens = batch.arrays, len(batch.arrays.token_ids)
        size = next((size for size in self.sizes if size >= num_tokens), None)
        if size is None:
            return None
        if size not in self.graphs:
            self._capture(size)
        inputs = self.padding.repeat(size, axis=1)
        inputs[:, :num_tokens] = arrays.token_ids, arrays.positions, arrays.slots
        self.inputs[:, :size].copy_(to_device(inputs, self.device))
        # NaN of an earlier step would go on to the null block, which other requests read, if only to multiply it by 0.
        self.attended[num_tokens:size].zero_()
        query, attended = self.query[:num_tokens], self.attended[:num_tokens]
        first, *rest = self.graphs[size]
        first.replay()
        for layer, kv_cache, graph in zip(self.decoder.layers, self.kv_pool.layers, rest, strict=True):
            attended.copy_(attention.attend(query, kv_cache, layer.attention.scale))
            graph.replay()
        hidden, streams = self.hidden[:num_tokens], [each[:num_tokens] for each in self.streams.values()]
        return hidden, torch.cat(streams, dim=-1) if streams else hidden

    def _pieces(self, size: int) -> list[Callable[[], None]]:
        """The forward pass over `size` tokens, cut at attention: one piece more than there are layers."""
        decoder, layers = self.decoder, list(self.decoder.layers)
        token_ids, positions, slots = self.inputs[:, :size]
        x, query, attended = self.x[:size], self.query[:size], self.attended[:size]
        context = ForwardContext(self.cos[:size], self.sin[:size], self.slots[:size], NoAttention(), self.ops)

        def embed() -> None:
            cos, sin = decoder.rope.angles(positions, decoder.activation_dtype)
            context.cos.copy_(cos)
            context.sin.copy_(sin)
            context.slot_mapping.copy_(slots)
            embedded = decoder.embed(self.pending.fill_in(token_ids, self.ops))
            up_to_attention(0, embedded, torch.zeros_like(embedded))

        def show(depth: int, stream: Tensor, delta: Tensor) -> None:
            if depth in self.streams:
                torch.add(stream, delta, out=self.streams[depth][:size])

        def up_to_attention(i: int, stream: Tensor, delta: Tensor) -> None:
            show(i, stream, delta)
            stream, q = layers[i].up_to_attention(stream, delta, self.kv_pool.layers[i], context)
            x.copy_(stream)
            query.copy_(q)

        def between(i: int) -> None:
            up_to_attention(i, *layers[i - 1].after_attention(x, attended, context))

        def finish() -> None:
            stream, delta = layers[-1].after_attention(x, attended, context)
            show(len(layers), stream, delta)
            self.hidden[:size].copy_(decoder.norm.add_and_norm(stream, delta, self.ops)[1])

        return [embed, *(partial(between, i) for i in range(1, len(layers))), finish]


class NoAttention:
    """Stands where a forward pass has its attention: pieces have none."""

    def attend(self, query: Tensor, kv_cache: KVCache, scale: float) -> Tensor:
        raise AssertionError("attention is called between the pieces")
