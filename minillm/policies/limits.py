"""Limits on requests: which can be served at all, and which may wait. (Who runs next is the scheduler's affair; how
many clients come in, the server's: server/admission.py.)

What is refused here has cost nothing yet. A request that could never fit would otherwise get stuck,
and a queue without a limit turns overload into waiting without end.
"""

from minillm.core.errors import ConfigError, PromptTooLongError, QueueFullError
from minillm.policies.config import EngineConfig
from minillm.policies.window import make_layout


class RequestLimits:
    """The limits of one engine.

    Args:
        config: with its block_size settled.
        max_positions: the model's; None for an engine without a model; then config.max_model_len must be set.
    Raises:
        ConfigError: max_model_len is missing, or more than the model's positions.
    """

    def __init__(self, config: EngineConfig, max_positions: int | None, num_kv_blocks: int) -> None:
        self.config = config
        self.num_kv_blocks = num_kv_blocks
        self.max_model_len = max_model_len(config, max_positions)
        self.context_limit = self.max_model_len
        """Most tokens that one request may have: the window, or what the KV pool holds if that is less. A request that
        could never fit is refused or ended; it never gets stuck."""
        assert config.block_size is not None
        if not has_room_for_any_length(config, num_kv_blocks):
            self.context_limit = min(self.max_model_len, num_kv_blocks * config.block_size)

    def check(self, num_prompt_tokens: int, num_sequences: int, num_waiting: int) -> None:
        """Let a request in, or say why not.

        Raises:
            PromptTooLongError: its prompt can never be served.
            QueueFullError: the queue has no room for its sequences.
        """
        self.check_length(num_prompt_tokens)
        limit = self.config.max_queue_len
        if limit is not None and num_sequences > limit:
            raise QueueFullError(f"n={num_sequences} can never fit max_queue_len={limit}: lower n or raise the limit")
        if limit is not None and num_waiting + num_sequences > limit:
            raise QueueFullError(f"{num_waiting} requests wait and max_queue_len is {limit}: try later")

    def check_length(self, num_tokens: int) -> None:
        """Refuse a prompt of so many tokens that it can never be served.

        Raises:
            PromptTooLongError: it is longer than max_prompt_tokens, the window, or the KV pool.
        """
        limit = self.config.max_prompt_tokens
        if limit is not None and num_tokens > limit:
            raise PromptTooLongError(f"the prompt has {num_tokens} tokens and max_prompt_tokens is {limit}: shorten it")
        if num_tokens >= self.context_limit:
            cause = (
                f"max_model_len is {self.max_model_len}"
                if self.context_limit == self.max_model_len
                else f"the KV pool has {self.num_kv_blocks} blocks of {self.config.block_size}"
            )
            raise PromptTooLongError(
                f"the prompt has {num_tokens} tokens, and prompt and output together may have {self.context_limit} "
                f"({cause}): shorten the prompt or raise the limit"
            )


def has_room_for_any_length(config: EngineConfig, num_kv_blocks: int) -> bool:
    """Whether a sliding window keeps every request within the pool, however long it gets."""
    if not config.enable_chunked_prefill or config.kv_reservation == "max_len":
        return False  # some blocks are held before they are computed
    most = make_layout(config).peak_blocks
    return most is not None and most <= num_kv_blocks


def max_model_len(config: EngineConfig, max_positions: int | None) -> int:
    """The context window: as configured, else the model's."""
    wanted = config.max_model_len
    if max_positions is None:
        if wanted is None:
            raise ConfigError("an engine without a model needs max_model_len")
        return wanted
    if wanted is not None and wanted > max_positions:
        raise ConfigError(
            f"max_model_len is {wanted}, but the model's positions, or its own window, end at {max_positions}"
        )
    return wanted or max_positions
