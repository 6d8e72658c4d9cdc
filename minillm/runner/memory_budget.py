"""Who gets the device's memory. Of what is free once the weights are loaded:

    steps     get what the largest one takes that the configuration allows
    drafts    a draft model's own KV cache, or a draft head's (`memory_claim` in speculation/make.py)
    KV pool   the rest of nine tenths, unless the configuration says how large it is
    a tenth   stays free, for captured graphs and for memory in pieces too small to be used

What a step takes is found out by computing the largest one (vLLM's profile run). Activations grow with the token
budget, logits with the rows that sample: 16k tokens of an 8B model take gigabytes, which no fixed share foresees. That
is for GPUs. On a CPU nothing is set aside for steps, and unless asked for more, the KV pool has 1 GB at most.
"""

from dataclasses import dataclass

import torch

from minillm.core.batch import ScheduledRequest
from minillm.core.block_pool import blocks_for
from minillm.core.errors import ConfigError
from minillm.core.params import SamplingParams
from minillm.core.request import Request
from minillm.core.timeline import Timeline
from minillm.host.device import RECORDING, memory_errors, peak_bytes, who_else
from minillm.host.errors import OutOfMemoryError
from minillm.host.memory import available_bytes
from minillm.kernels.attention.base import AttentionBackend
from minillm.kernels.ops import Ops
from minillm.kernels.quantization import dtype_name
from minillm.model.arithmetic import kv_bytes_per_token
from minillm.model.config import ModelConfig
from minillm.model.loader import LoadedModel
from minillm.policies.config import EngineConfig
from minillm.runner.batch_layout import BlockTables, lay_out, upload
from minillm.runner.kv_pool import KVPool
from minillm.runner.rejection_sampler import RejectionSampler

FREE_FRACTION = 0.9
"""Of the free memory: what steps, drafts and KV pool get together."""
DEFAULT_CPU_BYTES = 1e9
"""Most that a KV pool on a CPU gets unless asked for more."""
SORTED = SamplingParams(temperature=1e9, top_p=0.9)
"""Sampling takes most memory where top-p looks at the whole vocabulary, as it does where all tokens are as likely."""

STEP_FIELDS = (
    "batching",
    "max_num_seqs",
    "max_num_batched_tokens",
    "enable_chunked_prefill",
    "max_prompt_tokens",
    "max_model_len",
    "speculative",
)
"""Config fields that decide how large steps get, and so what they leave to a KV pool whose size was left open."""


@dataclass(frozen=True, slots=True)
class MemoryClaim:
    """Memory of the device that must stay free beside the KV pool. Weights that are loaded already are not in it: they
    are not free any more."""

    num_bytes: int = 0
    bytes_per_token: int = 0
    """For every token that the KV pool holds: a draft model has as many blocks, and some attention backends copy
    contexts."""

    def __add__(self, other: "MemoryClaim") -> "MemoryClaim":
        return MemoryClaim(self.num_bytes + other.num_bytes, self.bytes_per_token + other.bytes_per_token)


NO_CLAIM = MemoryClaim()
BESIDE = "what drafts and steps need beside the KV pool"
"""A claim, in errors."""


# ---------------------------------------------------------------- the KV pool, and what is beside it


def size_kv_pool(
    config: EngineConfig,
    model_config: ModelConfig,
    block_size: int,
    dtype: torch.dtype,
    device: torch.device,
    claim: MemoryClaim,
) -> int:
    """Blocks in the KV pool: as configured, else a default that fits the machine, beside what others claim.

    Raises:
        ConfigError: it does not fit the memory, or holds no block.
    """
    block_bytes = kv_bytes_per_token(model_config, dtype_name(dtype)) * block_size
    bytes_with_claim = block_bytes + claim.bytes_per_token * block_size
    free = free_bytes(device)
    _check_fits(BESIDE, "max_num_seqs or max_num_batched_tokens", claim.num_bytes, free, device)
    if config.num_kv_blocks is not None:
        num_blocks = config.num_kv_blocks
    elif config.kv_cache_memory_gb is not None:
        num_blocks = int(config.kv_cache_memory_gb * 1e9 // block_bytes)
    else:
        num_blocks = int((FREE_FRACTION * free - claim.num_bytes) // bytes_with_claim)
        if device.type == "cpu":
            num_blocks = min(int(DEFAULT_CPU_BYTES // block_bytes), num_blocks)
        longest = config.max_model_len or model_config.max_position_embeddings
        # More than every slot at full length could never be used.
        num_blocks = min(num_blocks, config.max_num_seqs * blocks_for(longest, block_size))
    if num_blocks < 1:
        raise ConfigError(
            f"the KV pool has no room for one block of {block_bytes / 1e6:.3g} MB, and {free / 1e9:.2f} GB are "
            f"free: raise kv_cache_memory_gb, or lower block_size.{who_else(device)}"
        )
    what = "the KV pool" if claim == NO_CLAIM else "the KV pool, with what drafts and steps need beside it,"
    num_bytes = num_blocks * bytes_with_claim + claim.num_bytes
    _check_fits(what, "num_kv_blocks or kv_cache_memory_gb", num_bytes, free, device)
    return num_blocks


def check_claim(claim: MemoryClaim, num_tokens: int, device: torch.device) -> None:
    """Raise ConfigError unless there is room for a claim beside a KV pool of `num_tokens` that is there already."""
    num_bytes = claim.num_bytes + claim.bytes_per_token * num_tokens
    fields = "num_kv_blocks or kv_cache_memory_gb"
    _check_fits(BESIDE, fields, num_bytes, free_bytes(device), device)


def size_swap_pool(config: EngineConfig, model_config: ModelConfig, block_size: int, dtype: torch.dtype) -> int:
    """Blocks of swap space on the host: none unless preemption="swap".

    Raises:
        ConfigError: it does not fit the memory, or holds no block.
    """
    if config.preemption != "swap":
        return 0
    block_bytes = kv_bytes_per_token(model_config, dtype_name(dtype)) * block_size
    num_blocks = int(config.swap_space_gb * 1e9 / config.tensor_parallel_size // block_bytes)
    if num_blocks < 1:
        raise ConfigError(f"swap_space_gb holds no block of {block_bytes / 1e6:.3g} MB: raise it")
    host = torch.device("cpu")
    _check_fits("the swap space", "swap_space_gb", num_blocks * block_bytes, free_bytes(host), host)
    return num_blocks


# ---------------------------------------------------------------- steps


def step_claim(
    model: LoadedModel,
    config: EngineConfig,
    attention: type[AttentionBackend],
    ops: Ops,
    block_size: int,
    kv_dtype: torch.dtype,
) -> MemoryClaim:
    """What a step of an engine of this configuration takes of a GPU, at most. Nothing is claimed on a CPU.

    Raises:
        OutOfMemoryError: there is no room for the largest one.
    """
    if model.device.type != "cuda":
        return NO_CLAIM
    advice = "Lower max_num_batched_tokens, max_num_seqs or max_model_len"
    with memory_errors(model.device, "a step", advice):
        activations = largest_step_bytes(model, config, attention, ops, block_size, kv_dtype)
    return MemoryClaim(activations, gathered_bytes_per_token(model, attention))


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
    check_step_size(config, longest, model)
    parts = largest_step(config, longest, block_size)
    pool = KVPool(model.model_config, len(parts[0].block_ids), 0, block_size, kv_dtype, model.device)
    batch = lay_out(parts, BlockTables(block_size, pool.null_block), {})

    def step() -> None:
        arrays, metadata = upload(batch, model.device)
        inputs = (arrays.token_ids, arrays.positions, pool.layers, attention(metadata), ops)
        hidden, _ = model.decoder.hidden_states(*inputs)
        RejectionSampler(ops).launch(model.decoder.lm_head(hidden[arrays.logit_rows]), batch.rows).wait()

    return peak_bytes(step, model.device)


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


def most_tokens(config: EngineConfig, longest: int) -> int:
    """The token budget, or a whole prompt where prompts aren't cut."""
    return max(config.max_num_batched_tokens, 0 if config.enable_chunked_prefill else longest)


def check_step_size(config: EngineConfig, longest: int, model: LoadedModel) -> None:
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


def gathered_bytes_per_token(model: LoadedModel, attention: type[AttentionBackend]) -> int:
    """What a step takes for each token in its contexts, which the largest step has none of: one layer's keys and values
    once more, in the model's dtype, where the backend copies them; else nothing. (The textbook's score matrices come
    on top.)"""
    shape = model.model_config
    return 2 * shape.num_kv_heads * shape.head_dim * model.dtype.itemsize if attention.gathers else 0


# ---------------------------------------------------------------- what is free


def free_bytes(device: torch.device) -> int:
    """Memory that is free on the device; on a CPU, what a program may take before something gets killed."""
    if device.type != "cuda":
        return available_bytes()
    with RECORDING:  # meanwhile PyTorch gives nothing back
        torch.cuda.empty_cache()  # what it keeps for later, of an engine that is gone, counts as taken otherwise
    return torch.cuda.mem_get_info(device)[0]


def _check_fits(what: str, fields: str, num_bytes: int, free: int, device: torch.device) -> None:
    if num_bytes > free:
        raise ConfigError(
            f"{what} would take {num_bytes / 1e9:.2f} GB, but {free / 1e9:.2f} GB are free: lower {fields}."
            f"{who_else(device)}"
        )
