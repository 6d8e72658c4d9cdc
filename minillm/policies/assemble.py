"""From an EngineConfig to a scheduler with the policies it names: one line a technique."""

from minillm.core.block_manager import BlockManager
from minillm.core.scheduler import Scheduler, SchedulerConfig
from minillm.core.seams import DraftPolicy
from minillm.core.timeline import Clock, WallClock
from minillm.policies.config import EngineConfig
from minillm.policies.eviction import make_pool
from minillm.policies.preemption import make_preemption
from minillm.policies.queues import make_queue
from minillm.policies.window import make_layout


def make_scheduler(
    config: EngineConfig,
    *,
    num_kv_blocks: int,
    num_host_blocks: int,
    max_model_len: int,
    drafts: DraftPolicy | None = None,
    clock: Clock | None = None,
) -> Scheduler:
    """The scheduler, with block manager and policies, that a configuration asks for.

    Args:
        config: with its block_size settled.
        num_kv_blocks: size of the KV pool.
        num_host_blocks: size of the swap space, 0 with preemption="recompute".
        max_model_len: most tokens, prompt and output, one request may have.
        drafts: None = nothing is guessed.
        clock: tells how old a cached prefix is; None = the wall clock.
    """
    assert config.block_size is not None
    blocks = BlockManager(
        num_kv_blocks,
        config.block_size,
        enable_prefix_caching=config.enable_prefix_caching,
        reserve_tokens=max_model_len if config.kv_reservation == "max_len" else 0,
        layout=make_layout(config),
        pool=make_pool(config, num_kv_blocks, clock or WallClock()),
    )
    limits = SchedulerConfig(
        max_model_len=max_model_len,
        max_num_seqs=1 if config.batching == "none" else config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        enable_chunked_prefill=config.enable_chunked_prefill,
        long_prefill_token_threshold=config.long_prefill_token_threshold,
        scheduler_reserve_full_isl=config.scheduler_reserve_full_isl,
    )
    preemption = make_preemption(config, num_host_blocks)
    return Scheduler(limits, blocks, queue=make_queue(config), preemption=preemption, drafts=drafts)
