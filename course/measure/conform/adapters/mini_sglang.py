"""mini-sglang: its scheduler with its radix cache and page table, in the order of its overlapping loop, without a GPU.

PYTHONPATH=path/to/mini-sglang/python minillm conform --adapter mini_sglang

Written against versions from 2026-02 to 2026-03 (20fcd7f). It has no preemption: it admits what surely fits.
"""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch

from course.measure.conform.adapter import Limits, RefusedError
from course.measure.conform.counting import CountingModel, KernelRow
from course.measure.conform.stand_ins import replace, stand_in


def compare_keys(one: torch.Tensor, other: torch.Tensor) -> int:
    """How many tokens two keys have in common at their beginnings: what its C++ helper does."""
    length = min(len(one), len(other))
    differ = (one[:length] != other[:length]).nonzero()
    return int(differ[0]) if len(differ) else length


def without_gpu(make: Any) -> Any:
    """One of PyTorch's functions, that takes no pinned memory."""
    return lambda *arguments, pin_memory=False, **options: make(*arguments, **options)


for name in ("arange", "empty", "tensor"):
    setattr(torch, name, without_gpu(getattr(torch, name)))
torch.Tensor.pin_memory = lambda tensor: tensor  # type: ignore[method-assign, assignment, misc]

replace("minisgl.kernel", fast_compare_key=compare_keys)
replace("minisgl.engine", EngineConfig=object)
stand_in("msgpack")  # messages between its processes

from minisgl import core  # noqa: E402
from minisgl.core import Batch, SamplingParams  # noqa: E402
from minisgl.distributed import set_tp_info  # noqa: E402
from minisgl.message import AbortBackendMsg, UserMsg  # noqa: E402
from minisgl.scheduler.cache import CacheManager  # noqa: E402
from minisgl.scheduler.decode import DecodeManager  # noqa: E402
from minisgl.scheduler.prefill import PrefillManager  # noqa: E402
from minisgl.scheduler.scheduler import Scheduler  # noqa: E402
from minisgl.scheduler.table import TableManager  # noqa: E402

set_tp_info(0, 1)


class Output(NamedTuple):
    """What its engine returns."""

    next_tokens_gpu: torch.Tensor
    next_tokens_cpu: torch.Tensor
    copy_done: Any


class CountingEngine:
    """Its engine, over the model that counts."""

    def __init__(self, limits: Limits, model: CountingModel) -> None:
        self.model = model
        self.max_seq_len, self.num_pages = limits.max_model_len, limits.num_blocks
        self.page_table = torch.zeros(
            limits.max_num_seqs + 1, limits.max_model_len + limits.block_size, dtype=torch.int32
        )
        self.stream = SimpleNamespace(wait_stream=lambda other: None)
        self.graph_runner = SimpleNamespace(pad_batch=self.pad)
        self.attn_backend = SimpleNamespace(prepare_metadata=lambda batch: None)
        self.sampler = SimpleNamespace(prepare=lambda batch: None)

    def pad(self, batch: Batch) -> None:
        batch.padded_reqs = batch.reqs

    def forward_batch(self, batch: Batch, sample_args: None) -> Output:
        token_ids, positions, slots = (each.tolist() for each in (batch.input_ids, batch.positions, batch.out_loc))
        rows, start = [], 0
        for each in batch.reqs:
            end = start + each.extend_len
            context = self.page_table[each.table_idx, : each.device_len].tolist()
            rows.append(KernelRow(token_ids[start:end], positions[start:end], slots[start:end], context))
            start = end
        tokens = torch.tensor(self.model.forward(rows), dtype=torch.int32)
        for each in batch.reqs:
            each.complete_one()
        return Output(tokens, tokens, SimpleNamespace(synchronize=lambda: None))


class Adapter:
    def __init__(self, limits: Limits, model: CountingModel) -> None:
        core._GLOBAL_CTX = None
        core.set_global_ctx(core.Context(limits.block_size))
        engine = CountingEngine(limits, model)
        # What its constructor sets up, with an engine that needs no GPU.
        self.scheduler = scheduler = object.__new__(Scheduler)
        scheduler.engine, scheduler.device, scheduler.stream = engine, torch.device("cpu"), None
        scheduler.engine_stream_ctx = nullcontext()
        scheduler.table_manager = TableManager(limits.max_num_seqs, engine.page_table)
        scheduler.cache_manager = CacheManager(limits.num_blocks, limits.block_size, engine.page_table, "radix")
        scheduler.decode_manager = DecodeManager(limits.block_size)
        scheduler.prefill_manager = PrefillManager(
            scheduler.cache_manager, scheduler.table_manager, scheduler.decode_manager
        )
        scheduler.finished_reqs, scheduler.eos_token_id = set(), -1
        scheduler.token_pool = scheduler.table_manager.token_pool
        scheduler.prefill_budget = limits.max_num_batched_tokens
        scheduler.receive_msg, scheduler.send_result = self.receive, self.tell
        self.limits, self.in_flight = limits, None
        self.names: list[str] = []
        self.inbox: list[Any] = []
        self.new: dict[str, list[int]] = {}
        self.live: set[str] = set()

    def add(self, name: str, prompt: list[int], max_tokens: int) -> None:
        if len(prompt) >= self.limits.max_model_len:
            raise RefusedError("longer than the context")
        params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
        self.inbox.append(UserMsg(len(self.names), torch.tensor(prompt, dtype=torch.int32), params))
        self.names.append(name)
        self.live.add(name)

    def receive(self, blocking: bool) -> list[Any]:
        messages, self.inbox = self.inbox, []
        return messages

    def tell(self, replies: list[Any]) -> None:
        for reply in replies:
            name = self.names[reply.uid]
            self.new.setdefault(name, []).append(reply.next_token)
            if reply.finished:
                self.live.discard(name)

    def step(self) -> dict[str, list[int]]:
        self.new = {}
        self.in_flight = self.scheduler.overlap_loop(self.in_flight)
        return self.new

    def is_idle(self) -> bool:
        return not self.live and self.in_flight is None

    def num_free_tokens(self) -> int:
        return int(self.scheduler.cache_manager.available_size)

    def abort(self, name: str) -> None:
        self.inbox.append(AbortBackendMsg(len(self.names) - 1 - self.names[::-1].index(name)))
        self.live.discard(name)
