"""Sliding window with attention sinks: which keys a token sees, and which blocks no token will ever see again.

A token sees the last `size` tokens, itself included (Beltagy et al. 2020, Longformer; Mistral 7B), and the first
`sinks` of the sequence: without those, which models put attention on that has to go somewhere, text falls apart when
they leave the window (Xiao et al. 2023, StreamingLLM). Positions stay what they are in the text. LOSSY: what has left
the window is not seen any more.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Window:
    """Which keys a token sees."""

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

    def most_blocks(self, chunk: int, block_size: int) -> int:
        """Most blocks that a sequence of any length holds, computing at most `chunk` tokens a step; of a window that
        has a size."""
        assert self.size is not None, "there is no limit without a window"
        # In the worst case the keys that are seen begin with the last token of a block.
        return self.sink_blocks(block_size) + 1 + -(-(self.size - 1 + chunk - 1) // block_size)
