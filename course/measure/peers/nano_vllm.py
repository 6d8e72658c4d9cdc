"""nano-vllm, the compact engine closest in spirit, on the same token ids and the same GPU.

Written against version 0.2.0; it ran on an H100 at bb823b3, with FlashAttention-3 in flash-attn's place. It samples
only (a temperature of 0 is refused), and its prefix cache is always on.
"""

import json
import time
from pathlib import Path
from typing import Any

import torch

from course.measure.contest import MissingBaselineError, Peer, TimedRun, check_counts
from course.measure.workloads import BenchmarkWorkload
from minillm.bench.errors import BenchmarkError
from minillm.text_files import read_text

HOW_TO_GET_IT = (
    "--compare nano-vllm needs the packages nanovllm and flash-attn, on a machine with a CUDA GPU: "
    "pip install git+https://github.com/GeeeekExplorer/nano-vllm"
)
ARCHITECTURE = "Qwen3ForCausalLM"
TEMPERATURE = 1e-5
"""Nearly greedy: another token wins only if its logit is within about 1e-4 of the best."""
SHARE_OF_FREE_MEMORY = 0.9


class NanoVLLM(Peer):
    """nano-vllm with its own defaults (CUDA graphs on) in what minillm leaves of the GPU's memory.

    Args:
        folder: a Hugging Face folder with weights and a tokenizer.
        dtype: must be the one in the folder's config.json: nano-vllm takes no other.
    Raises:
        MissingBaselineError: it, a GPU or FlashAttention is not there.
        BenchmarkError: it cannot run this model in this dtype.
    """

    name = "nano_vllm"

    def __init__(self, folder: Path, dtype: str) -> None:
        if not torch.cuda.is_available():
            raise MissingBaselineError(f"PyTorch sees no GPU. {HOW_TO_GET_IT}")
        try:
            import nanovllm
        except ImportError as error:
            raise MissingBaselineError(f"{error}. {HOW_TO_GET_IT}") from error
        check_model(json.loads(read_text(folder / "config.json")), dtype)
        self.dtype = dtype
        self.make_params = nanovllm.SamplingParams
        # Its share counts what others hold, too: all of that, and most of what is free.
        free, total = torch.cuda.mem_get_info()
        share = (total - (1 - SHARE_OF_FREE_MEMORY) * free) / total
        self.llm = nanovllm.LLM(str(folder), gpu_memory_utilization=share)

    def describe(self) -> dict[str, Any]:
        scheduler = self.llm.scheduler
        return {
            "dtype": self.dtype,
            "temperature": f"{TEMPERATURE} (it permits no greedy sampling)",
            "cuda_graphs": not self.llm.model_runner.enforce_eager,
            "max_num_seqs": scheduler.max_num_seqs,
            "max_num_batched_tokens": scheduler.max_num_batched_tokens,
            "kv_blocks": len(scheduler.block_manager.blocks),
            "block_size": scheduler.block_size,
        }

    def run(self, workload: BenchmarkWorkload) -> TimedRun:
        scheduler = self.llm.scheduler
        # It has no way to empty its prefix cache; a new block manager has found nothing yet.
        blocks = scheduler.block_manager
        scheduler.block_manager = type(blocks)(len(blocks.blocks), blocks.block_size)
        start = time.perf_counter()
        for prompt, length in zip(workload.prompts, workload.output_lens):
            self.llm.add_request(prompt, self.make_params(temperature=TEMPERATURE, max_tokens=length, ignore_eos=True))
        sequences = list(scheduler.waiting)
        stamps: list[list[float]] = [[] for _ in sequences]
        # The loop of its own `generate`, with a look at the clock after each step.
        while not self.llm.is_finished():
            self.llm.step()  # returns when the tokens are on the host
            now = time.perf_counter()
            for sequence, own in zip(sequences, stamps):
                own += [now] * (sequence.num_completion_tokens - len(own))
        check_counts(self.name, workload, map(len, stamps))
        return TimedRun.of(start, stamps)


def check_model(config: dict[str, Any], dtype: str) -> None:
    """Raise BenchmarkError unless nano-vllm can run a model of this config.json in this dtype."""
    found = config.get("architectures") or []
    if ARCHITECTURE not in found:
        raise BenchmarkError(f"nano-vllm implements {ARCHITECTURE} only, and this is a {', '.join(found)}")
    own = config.get("dtype") or config.get("torch_dtype")
    if own != dtype:
        raise BenchmarkError(f"nano-vllm runs in the dtype of config.json, {own}: compare with --dtype {own}")
