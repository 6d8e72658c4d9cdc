"""nano-vllm, the compact engine closest in spirit, on the same token ids and the same GPU. Not yet measured.

It needs a CUDA GPU, so this module was written against its source (version 0.2.0) and tested with a
stand-in. Two things about it: it samples only (a temperature of 0 is refused), and its prefix cache is
always on.
"""

import itertools
import json
import time
from pathlib import Path
from typing import Any

import torch

from minillm.bench.fa3_shim import provide_flash_attn
from minillm.bench.peers import WARM_UP_TOKENS, BenchmarkError, MissingPeerError, Run, check_counts
from minillm.bench.workloads import Workload

HOW_TO_GET_IT = (
    "--compare nano-vllm needs the package nanovllm, and flash-attn or FlashAttention-3, on a machine with a CUDA GPU: "
    "pip install git+https://github.com/GeeeekExplorer/nano-vllm"
)
ARCHITECTURE = "Qwen3ForCausalLM"
TEMPERATURE = 1e-5
"""Nearly greedy: another token wins only if its logit is within about 1e-4 of the best."""
SHARE_OF_FREE_MEMORY = 0.9


class NanoVLLM:
    """nano-vllm with its own defaults (CUDA graphs on) in what minillm leaves of the GPU's memory.

    Args:
        folder: a Hugging Face folder with weights and a tokenizer.
        dtype: must be the one in the folder's config.json: nano-vllm takes no other.
    Raises:
        MissingPeerError: it, a GPU or FlashAttention is not there.
        BenchmarkError: it cannot run this model in this dtype.
    """

    name = "nano_vllm"

    def __init__(self, folder: Path, dtype: str) -> None:
        if not torch.cuda.is_available():
            raise MissingPeerError(f"PyTorch sees no GPU. {HOW_TO_GET_IT}")
        self.attention = provide_flash_attn()  # before nano-vllm imports it
        if self.attention is None:
            raise MissingPeerError(f"neither flash_attn nor flash_attn_interface is installed. {HOW_TO_GET_IT}")
        try:
            import nanovllm
        except ImportError as error:
            raise MissingPeerError(f"{error}. {HOW_TO_GET_IT}") from error
        _check_model(folder, dtype)
        self.dtype = dtype
        self.make_params = nanovllm.SamplingParams
        self.llm = nanovllm.LLM(str(folder), gpu_memory_utilization=_memory_share())

    def describe(self) -> dict[str, Any]:
        scheduler = self.llm.scheduler
        return {
            "dtype": self.dtype,
            "attention": self.attention,
            "temperature": f"{TEMPERATURE} (it permits no greedy sampling)",
            "cuda_graphs": not self.llm.model_runner.enforce_eager,
            "max_num_seqs": scheduler.max_num_seqs,
            "max_num_batched_tokens": scheduler.max_num_batched_tokens,
            "kv_blocks": len(scheduler.block_manager.blocks),
            "block_size": scheduler.block_size,
        }

    def warm_up(self, workload: Workload) -> None:
        self.run(workload.truncated(WARM_UP_TOKENS))

    def run(self, workload: Workload) -> Run:
        scheduler = self.llm.scheduler
        # It has no way to empty its prefix cache; a new block manager has found nothing yet.
        blocks = scheduler.block_manager
        scheduler.block_manager = type(blocks)(len(blocks.blocks), blocks.block_size)
        start = time.perf_counter()
        for prompt, length in zip(workload.prompts, workload.output_lens):
            self.llm.add_request(prompt, self.make_params(temperature=TEMPERATURE, max_tokens=length, ignore_eos=True))
        sequences = list(scheduler.waiting)
        steps = []
        # The loop of its own `generate`, with a look at the clock after each step.
        while not self.llm.is_finished():
            self.llm.step()  # returns when the tokens are on the host
            steps.append((time.perf_counter(), [sequence.num_tokens for sequence in sequences]))
        seconds = time.perf_counter() - start
        check_counts(self.name, workload, (sequence.num_completion_tokens for sequence in sequences))
        stamps = emission_times(steps, [len(prompt) for prompt in workload.prompts])
        return Run(
            seconds=seconds,
            num_tokens=workload.num_output_tokens,
            ttft=[own[0] - start for own in stamps],
            itl=[later - earlier for own in stamps for earlier, later in itertools.pairwise(own)],
        )


def emission_times(steps: list[tuple[float, list[int]]], prompt_lens: list[int]) -> list[list[float]]:
    """When each sequence got its tokens, from (time, every sequence's length) after each step."""
    stamps: list[list[float]] = [[] for _ in prompt_lens]
    before = prompt_lens
    for now, lengths in steps:
        for own, earlier, later in zip(stamps, before, lengths):
            if later > earlier:
                own.append(now)
        before = lengths
    return stamps


def _check_model(folder: Path, dtype: str) -> None:
    config = json.loads((folder / "config.json").read_text())
    found = config.get("architectures") or []
    if ARCHITECTURE not in found:
        raise BenchmarkError(f"nano-vllm implements {ARCHITECTURE} only, and {folder} is a {', '.join(found)}")
    own = config.get("dtype") or config.get("torch_dtype")
    if own != dtype:
        raise BenchmarkError(f"nano-vllm runs in the dtype of config.json, {own}: compare with --dtype {own}")


def _memory_share() -> float:
    """Its `gpu_memory_utilization` counts what others hold, too: all of that, and most of what is free."""
    free, total = torch.cuda.mem_get_info()
    return (total - (1 - SHARE_OF_FREE_MEMORY) * free) / total
