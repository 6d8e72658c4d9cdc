"""nano-vllm: its scheduler, its block manager and its `ModelRunner.prepare_*`, without a GPU.

PYTHONPATH=path/to/nano-vllm minillm conform --adapter nano_vllm

Written against versions from 2025-06 to 2026-04 (bb823b3). It has no way to abort a request.
"""

import inspect
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import torch

from course.measure.conform.adapter import Limits
from course.measure.conform.counting import CountingModel, KernelRow
from course.measure.conform.stand_ins import stand_in


class Digest:
    """What its block manager asks of xxhash."""

    def __init__(self) -> None:
        self.parts: tuple[bytes, ...] = ()

    def update(self, part: bytes) -> None:
        self.parts += (part,)

    def intdigest(self) -> int:
        return hash(self.parts) & (2**64 - 1)


stand_in("flash_attn", flash_attn_varlen_func=None, flash_attn_with_kvcache=None)  # the counting model attends
stand_in("xxhash", xxh64=Digest)

from nanovllm.engine import model_runner, scheduler, sequence  # noqa: E402
from nanovllm.sampling_params import SamplingParams  # noqa: E402
from nanovllm.utils.context import get_context  # noqa: E402


class TorchWithoutGPU:
    """PyTorch as its runner knows it, but for the GPU."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def tensor(self, data: Any, dtype: torch.dtype, pin_memory: bool = False) -> torch.Tensor:
        return torch.tensor(data, dtype=dtype)


model_runner.torch = TorchWithoutGPU()
torch.Tensor.cuda = lambda tensor, **options: tensor  # type: ignore[method-assign]


class Adapter:
    def __init__(self, limits: Limits, model: CountingModel) -> None:
        self.limits, self.model = limits, model
        self.has_chunks = "is_prefill" in inspect.signature(scheduler.Scheduler.postprocess).parameters
        if not self.has_chunks and limits.max_num_batched_tokens < limits.max_model_len:
            raise NotImplementedError("without chunked prefill a step must hold the longest prompt")
        config = SimpleNamespace(
            max_num_seqs=limits.max_num_seqs,
            max_num_batched_tokens=limits.max_num_batched_tokens,
            max_model_len=limits.max_model_len,
            eos=-1,
            num_kvcache_blocks=limits.num_blocks,
            kvcache_block_size=limits.block_size,
        )
        sequence.Sequence.block_size = limits.block_size
        self.scheduler = scheduler.Scheduler(config)
        self.runner = object.__new__(model_runner.ModelRunner)
        self.runner.config, self.runner.block_size, self.runner.rank = config, limits.block_size, 0
        self.live: dict[str, Any] = {}

    def add(self, name: str, prompt: list[int], max_tokens: int) -> None:
        params = SamplingParams(temperature=1.0, max_tokens=max_tokens, ignore_eos=True)
        self.live[name] = sequence.Sequence(prompt, params)
        self.scheduler.add(self.live[name])

    def step(self) -> dict[str, list[int]]:
        before = {name: each.num_completion_tokens for name, each in self.live.items()}
        sequences, is_prefill = self.scheduler.schedule()
        prepare = self.runner.prepare_prefill if is_prefill else self.runner.prepare_decode
        token_ids, positions = (columns.tolist() for columns in prepare(sequences))
        rows = self.prompts(token_ids, positions) if is_prefill else self.decodes(token_ids, positions)
        phase = [is_prefill] if self.has_chunks else []
        self.scheduler.postprocess(sequences, self.model.forward(rows), *phase)
        new = {name: each.completion_token_ids[before[name] :] for name, each in self.live.items()}
        self.live = {name: each for name, each in self.live.items() if not each.is_finished}
        return new

    def prompts(self, token_ids: list[int], positions: list[int]) -> list[KernelRow]:
        """What it tells flash_attn_varlen_func."""
        context = get_context()
        slots, starts = context.slot_mapping.tolist(), context.cu_seqlens_q.tolist()
        lengths = context.cu_seqlens_k.diff().tolist()
        rows = []
        for i, (start, end) in enumerate(pairwise(starts)):
            own = slots[start:end]
            seen = own if context.block_tables is None else self.slots_of(context.block_tables[i], lengths[i])
            rows.append(KernelRow(token_ids[start:end], positions[start:end], own, seen))
        return rows

    def decodes(self, token_ids: list[int], positions: list[int]) -> list[KernelRow]:
        """What it tells flash_attn_with_kvcache."""
        context = get_context()
        columns = zip(token_ids, positions, context.slot_mapping.tolist(), context.block_tables, context.context_lens)
        return [KernelRow([t], [p], [s], self.slots_of(table, int(length))) for t, p, s, table, length in columns]

    def slots_of(self, table: torch.Tensor, length: int) -> list[int]:
        size = self.limits.block_size
        return [int(table[p // size]) * size + p % size for p in range(length)]

    def is_idle(self) -> bool:
        return self.scheduler.is_finished()

    def num_free_tokens(self) -> int:
        return len(self.scheduler.block_manager.free_block_ids) * self.limits.block_size

    def abort(self, name: str) -> None:
        raise NotImplementedError("nano-vllm can't abort a request")
