"""The nano-vllm peer, with a stand-in for the package: it has the parts that the peer touches."""

import json
import sys
from collections import deque
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from minillm.bench import fa3_shim
from minillm.bench.peers import BenchmarkError, MissingPeerError
from minillm.bench.peers_nano_vllm import NanoVLLM, emission_times
from minillm.bench.workloads import Workload

WORKLOAD = Workload("two", "2 requests", [[7] * 5, [8] * 9], [3, 1])


class Params:
    def __init__(self, temperature: float, max_tokens: int, ignore_eos: bool) -> None:
        assert temperature > 1e-10, "greedy sampling is not permitted"
        self.max_tokens, self.ignore_eos = max_tokens, ignore_eos


class Blocks:
    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.blocks, self.block_size = [None] * num_blocks, block_size
        self.seen: list[int] = []


class StandIn:
    """Prefills one sequence a step, then decodes all of them; ends early where `ignore_eos` is off."""

    def __init__(self, model: str, **options: float) -> None:
        self.options = options
        self.scheduler = SimpleNamespace(
            waiting=deque(),
            max_num_seqs=512,
            max_num_batched_tokens=16384,
            block_size=256,
            block_manager=Blocks(9, 256),
        )
        self.model_runner = SimpleNamespace(enforce_eager=False)
        self.running: list[Any] = []

    def add_request(self, prompt: list[int], params: Params) -> None:
        limit = params.max_tokens if params.ignore_eos else 1
        self.scheduler.waiting.append(SimpleNamespace(num_tokens=len(prompt), num_completion_tokens=0, limit=limit))
        self.scheduler.block_manager.seen.append(len(prompt))

    def is_finished(self) -> bool:
        return not self.scheduler.waiting and not self.running

    def step(self) -> None:
        if self.scheduler.waiting:
            group = [self.scheduler.waiting.popleft()]
            self.running += group
        else:
            group = list(self.running)
        for sequence in group:
            sequence.num_tokens += 1
            sequence.num_completion_tokens += 1
        self.running = [sequence for sequence in self.running if sequence.num_completion_tokens < sequence.limit]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    config = {"architectures": ["Qwen3ForCausalLM"], "dtype": "bfloat16"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with a GPU, nano-vllm and FlashAttention-3, as far as Python can tell."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (40, 100))
    package = ModuleType("nanovllm")
    package.LLM, package.SamplingParams = StandIn, Params
    monkeypatch.setitem(sys.modules, "nanovllm", package)
    monkeypatch.setattr("minillm.bench.peers_nano_vllm.provide_flash_attn", lambda: "a test")


def test_it_serves_a_workload_from_a_cold_prefix_cache(folder: Path, gpu: None) -> None:
    peer = NanoVLLM(folder, "bfloat16")
    assert peer.llm.options == {"gpu_memory_utilization": pytest.approx(0.96)}  # the 60 in use, and 90% of the 40 free
    peer.warm_up(WORKLOAD)
    before = peer.llm.scheduler.block_manager
    measured = peer.run(WORKLOAD)
    assert peer.llm.scheduler.block_manager is not before
    assert (len(before.blocks), before.seen) == (9, [5, 9])  # the warm-up's; the run started with an empty one
    assert len(peer.llm.scheduler.block_manager.blocks) == 9
    assert measured.num_tokens == 4
    assert (len(measured.ttft), len(measured.itl)) == (2, 2)
    assert 0 < measured.ttft[0] < measured.ttft[1] <= measured.seconds
    assert peer.describe()["temperature"].startswith("1e-05")


def test_emission_times_follow_from_the_lengths() -> None:
    # Two steps of prefill for the second sequence, whose first token comes with the second of them.
    steps = [(1.0, [4, 9]), (2.0, [4, 10]), (3.0, [5, 11])]
    assert emission_times(steps, [3, 9]) == [[1.0, 3.0], [2.0, 3.0]]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"architectures": ["LlamaForCausalLM"], "dtype": "bfloat16"}, "implements Qwen3ForCausalLM only"),
        ({"architectures": ["Qwen3ForCausalLM"], "dtype": "float32"}, "compare with --dtype float32"),
    ],
    ids=["Llama", "float32"],
)
def test_what_it_cannot_run_is_refused(folder: Path, gpu: None, config: dict[str, Any], message: str) -> None:
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(BenchmarkError, match=message):
        NanoVLLM(folder, "bfloat16")


def test_without_a_gpu_or_an_attention_it_says_what_is_missing(
    folder: Path, gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minillm.bench.peers_nano_vllm.provide_flash_attn", lambda: None)
    with pytest.raises(MissingPeerError, match=r"neither flash_attn nor .* pip install git"):
        NanoVLLM(folder, "bfloat16")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(MissingPeerError, match="sees no GPU"):
        NanoVLLM(folder, "bfloat16")


@pytest.fixture
def fa3(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, tuple[Any, ...], dict[str, Any]]]:
    """A stand-in for FlashAttention-3 that writes its calls down and gives the queries back."""
    calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
    module = ModuleType("flash_attn_interface")

    def varlen(q: Any, k: Any, v: Any, **rest: Any) -> Any:
        calls.append(("varlen", (q, k, v), rest))
        return q, "log-sum-exp"  # as early releases did

    def kvcache(q: Any, k_cache: Any, v_cache: Any, **rest: Any) -> Any:
        calls.append(("kvcache", (q, k_cache, v_cache), rest))
        return q

    module.flash_attn_varlen_func, module.flash_attn_with_kvcache = varlen, kvcache
    monkeypatch.setitem(sys.modules, "flash_attn_interface", module)
    return calls


def test_prefill_is_handed_to_fa3(fa3: list[Any]) -> None:
    q, k, v = torch.ones(3, 5, 2, 4)
    starts = torch.tensor([0, 2, 5], dtype=torch.int32)
    same = dict(
        cu_seqlens_q=starts, cu_seqlens_k=starts, max_seqlen_q=3, max_seqlen_k=3, softmax_scale=0.5, causal=True
    )
    assert fa3_shim.flash_attn_varlen_func(q, k, v, **same) is q
    assert fa3 == [("varlen", (q, k, v), same)]


def test_prefill_after_a_cached_prefix_becomes_a_paged_call(fa3: list[Any]) -> None:
    q, cache, table = torch.ones(5, 2, 4), torch.ones(9, 256, 2, 4), torch.tensor([[3, 4], [5, -1]], dtype=torch.int32)
    out = fa3_shim.flash_attn_varlen_func(
        q,
        cache,
        cache,
        cu_seqlens_q=torch.tensor([0, 2, 5], dtype=torch.int32),
        cu_seqlens_k=torch.tensor([0, 300, 503], dtype=torch.int32),
        max_seqlen_q=3,
        max_seqlen_k=300,
        softmax_scale=0.5,
        causal=True,
        block_table=table,
    )
    assert out is q
    [(name, _, rest)] = fa3
    assert name == "kvcache"
    assert rest["cache_seqlens"].tolist() == [300, 203]
    assert rest["cache_seqlens"].dtype == torch.int32
    assert rest["page_table"] is table
    assert rest["cu_seqlens_q"].tolist() == [0, 2, 5]
    assert (rest["max_seqlen_q"], rest["softmax_scale"], rest["causal"]) == (3, 0.5, True)


def test_decode_is_a_paged_call(fa3: list[Any]) -> None:
    q, cache = torch.ones(2, 1, 2, 4), torch.ones(9, 256, 2, 4)
    lengths, table = torch.tensor([300, 7], dtype=torch.int32), torch.zeros(2, 2, dtype=torch.int32)
    same = dict(cache_seqlens=lengths, softmax_scale=0.5, causal=True)
    assert fa3_shim.flash_attn_with_kvcache(q, cache, cache, block_table=table, **same) is q
    assert fa3 == [("kvcache", (q, cache, cache), {**same, "page_table": table})]


def test_the_shim_stands_in_only_where_flash_attn_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    present: set[str] = set()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name if name in present else None)
    monkeypatch.setitem(sys.modules, "flash_attn", ModuleType("flash_attn"))  # so that what comes there is taken away
    del sys.modules["flash_attn"]
    assert fa3_shim.provide_flash_attn() is None
    present.add("flash_attn_interface")
    for _ in range(2):
        assert fa3_shim.provide_flash_attn() == "flash_attn_interface (FlashAttention-3)"
        assert sys.modules["flash_attn"].flash_attn_with_kvcache is fa3_shim.flash_attn_with_kvcache
    del sys.modules["flash_attn"]
    present.add("flash_attn")
    assert fa3_shim.provide_flash_attn() == "flash_attn (FlashAttention-2)"
    assert "flash_attn" not in sys.modules
