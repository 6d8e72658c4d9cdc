"""The KV layout of a sliding window: blocks that no token will see again go back to the pool."""

from minillm.core.seams import KeepAll, KVLayout
from minillm.kernels.attention.window import Window
from minillm.policies.config import EngineConfig


class SlidingWindow:
    """A KV layout: what has left the window goes back to the pool; the sinks' blocks stay.

    Args:
        window: has a size.
        max_chunk: most tokens of a request that one step computes.
    """

    expires = True

    def __init__(self, window: Window, block_size: int, max_chunk: int) -> None:
        self._window, self._block_size = window, block_size
        # One more than a chunk: a step may begin with a token that is computed again.
        self.peak_blocks = window.most_blocks(max_chunk + 1, block_size)

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
