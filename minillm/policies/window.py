"""Sliding window with attention sinks: which keys a token sees, and which blocks no token will ever see again.

A token sees the last `size` tokens, itself included (Beltagy et al. 2020, Longformer; Mistral 7B), and the first
`sinks` of the sequence: without those, which models put attention on that has to go somewhere, text falls apart when
they leave the window (Xiao et al. 2023, StreamingLLM). Positions stay what they are in the text. LOSSY: what has left
the window is not seen any more.
"""

from dataclasses import dataclass

from minillm.core.seams import KeepAll, KVLayout
from minillm.policies.config import EngineConfig


@dataclass(frozen=True, slots=True)
class Window:
    """Of every token."""

    size: int | None = None
    """Tokens, itself included; None = all before it."""
    sinks: int = 0
    """Tokens at the beginning that every token sees."""

    def sink_blocks(self, block_size: int) -> int:
        """Blocks at the beginning that are never given back."""
        return -(-self.sinks // block_size)

    def first_block(self, position: int, block_size: int) -> int:
        """The first block after the sinks' that the token at `position`, or any later one, sees a key in."""
        first = self.sink_blocks(block_size)
        return first if self.size is None else max(first, (position - self.size + 1) // block_size)

    def live_blocks(self, position: int, end: int, block_size: int) -> list[int]:
        """Blocks of tokens [0, end) that the tokens from `position` on see keys in, in order."""
        total = -(-end // block_size)
        sinks = range(min(self.sink_blocks(block_size), total))
        return [*sinks, *range(self.first_block(position, block_size), total)]

    def blocks_held(self, num_tokens: int, block_size: int) -> int:
        """By a sequence whose `num_tokens` are all computed, before its next one."""
        return len(self.live_blocks(num_tokens, num_tokens, block_size))

    def most_blocks(self, chunk: int, block_size: int) -> int | None:
        """Most that a sequence of any length holds, computing at most `chunk` tokens a step; None = no limit."""
        if self.size is None:
            return None
        # In the worst case the keys that are seen begin with the last token of a block.
        return self.sink_blocks(block_size) + 1 + -(-(self.size - 1 + chunk - 1) // block_size)


class SlidingWindow:
    """A KV layout: what has left the window goes back to the pool; the sinks' blocks stay.

    Args:
        max_chunk: most tokens of a request that one step computes.
    """

    def __init__(self, window: Window, block_size: int, max_chunk: int) -> None:
        self._window, self._block_size = window, block_size
        # One more than a chunk: a step may begin with a token that is computed again.
        self.peak_blocks = window.most_blocks(max_chunk + 1, block_size)
        self.expires = window.size is not None

    def expired(self, position: int) -> range:
        sinks = self._window.sink_blocks(self._block_size)
        return range(sinks, self._window.first_block(position, self._block_size))


def make_layout(config: EngineConfig) -> KVLayout:
    """The KV layout that a configuration asks for; its block_size is settled."""
    if config.sliding_window is None:
        return KeepAll()
    assert config.block_size is not None
    max_chunk = config.long_prefill_token_threshold or config.max_num_batched_tokens
    return SlidingWindow(Window(config.sliding_window, config.attention_sinks), config.block_size, max_chunk)
