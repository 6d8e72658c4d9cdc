"""How much memory a step takes beside weights and KV cache: the largest one is computed once, and watched.

Activations grow with the token budget, logits with the rows that sample: 16k tokens of an 8B model take gigabytes,
which no fixed share of the memory foresees. (vLLM's profile run.)
"""

import torch

from minillm.core.batch import ScheduledRequest
from minillm.core.block_pool import blocks_for
from minillm.core.params import SamplingParams
from minillm.core.request import Request
from minillm.core.timeline import Timeline
from minillm.host.device import peak_bytes, who_else
from minillm.host.errors import OutOfMemoryError
from minillm.kernels.attention.base import AttentionBackend
from minillm.kernels.ops import Ops
from minillm.model.loader import LoadedModel
from minillm.policies.config import EngineConfig
from minillm.runner.batch_layout import BlockTables, lay_out, upload
from minillm.runner.kv_pool import KVPool, free_bytes
from minillm.runner.rejection_sampler import RejectionSampler

SORTED = SamplingParams(temperature=1e9, top_p=0.9)
"""Sampling takes most memory where top-p looks at the whole vocabulary, as it does where all tokens are as likely."""


def most_tokens(config: EngineConfig, longest: int) -> int:
    """The token budget, or a whole prompt where prompts aren't cut."""
    return max(config.max_num_batched_tokens, 0 if config.enable_chunked_prefill else longest)


def check_size(config: EngineConfig, longest: int, model: LoadedModel) -> None:
    """Raise OutOfMemoryError where hidden states and logits alone take more than there is: laying out a step of a
    billion tokens, to try it, would take the host's memory first."""
    budget, shape = most_tokens(config, longest), model.model_config
    num_rows = min(config.max_decode_rows, budget)
    num_tokens = min(budget, num_rows * longest)
    num_bytes = (num_tokens * shape.hidden_size + num_rows * shape.vocab_size) * model.dtype.itemsize
    if num_bytes > (free := free_bytes(model.device)):
        raise OutOfMemoryError(
            f"a step of {num_tokens} tokens, {num_rows} of them sampled, takes {num_bytes / 1e9:.2f} GB or more, but "
            f"{free / 1e9:.2f} GB are free. Lower max_num_batched_tokens, max_num_seqs or max_model_len."
            f"{who_else(model.device)}"
        )


def largest_step(config: EngineConfig, longest: int, block_size: int) -> list[ScheduledRequest]:
    """The requests of a step as large as they get: all rows that may sample, and the whole token budget, of which the
    first requests get as much as one may have.

    Args:
        longest: most tokens of a request.
    """
    left = most_tokens(config, longest)
    # They only have to be computed, so all may write to the same blocks.
    block_ids = range(blocks_for(min(left, longest), block_size))
    parts = []
    for behind in reversed(range(min(config.max_decode_rows, left))):  # each of those behind it needs a token
        num_tokens = min(longest, left - behind)
        left -= num_tokens
        request = Request(f"largest-{behind}", [0] * num_tokens, SORTED, Timeline(0.0))
        parts.append(ScheduledRequest(request, 0, num_tokens, block_ids, samples=True))
    return parts


@torch.inference_mode()
def largest_step_bytes(
    model: LoadedModel,
    config: EngineConfig,
    attention: type[AttentionBackend],
    ops: Ops,
    block_size: int,
    kv_dtype: torch.dtype,
) -> int:
    """Most bytes of GPU memory that a step takes and gives back: activations, logits, what sampling needs."""
    limits = (model.model_config.max_position_embeddings, config.max_model_len, config.max_prompt_tokens)
    longest = min(limit for limit in limits if limit is not None)
    if config.num_kv_blocks is not None:
        longest = min(longest, config.num_kv_blocks * block_size)
    check_size(config, longest, model)
    parts = largest_step(config, longest, block_size)
    pool = KVPool(model.model_config, len(parts[0].block_ids), 0, block_size, kv_dtype, model.device)
    batch = lay_out(parts, BlockTables(block_size, pool.null_block), {})

    def step() -> None:
        arrays, metadata = upload(batch, model.device)
        inputs = (arrays.token_ids, arrays.positions, pool.layers, attention(metadata), ops)
        hidden, _ = model.decoder.hidden_states(*inputs)
        RejectionSampler(ops).launch(model.decoder.lm_head(hidden[arrays.logit_rows]), batch.rows).wait()

    return peak_bytes(step, model.device)


def gathered_bytes_per_token(model: LoadedModel, attention: type[AttentionBackend]) -> int:
    """What a step takes for each token in its contexts, which the largest step has none of: one layer's keys and values
    once more, in the model's dtype, where the backend copies them; else nothing. (The textbook's score matrices come
    on top.)"""
    shape = model.model_config
    return 2 * shape.num_kv_heads * shape.head_dim * model.dtype.itemsize if attention.gathers else 0
