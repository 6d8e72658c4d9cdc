"""Hugging Face transformers, beside which minillm is measured: its `generate`, and its continuous batching."""

import dataclasses
import time
from pathlib import Path
from typing import Any

import torch

from course.measure.contest import Peer, TimedRun, check_counts
from course.measure.workloads import BenchmarkWorkload
from minillm.bench.errors import BenchmarkError
from minillm.kernels.quantization import dtype_name

HF_KV_BLOCK = 256
"""Tokens per KV block of Hugging Face's continuous batching: its default."""


def load_hugging_face(folder: Path, dtype: str, device: torch.device | str = "cpu") -> Any:
    """The model by transformers, with its fastest attention on a CPU. One copy serves both its baselines."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()  # no bars of its own among ours
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=getattr(torch, dtype), attn_implementation="sdpa", local_files_only=True
    )
    return model.to(device).eval()


def block_size_name(config: type) -> str:
    """What this version of transformers calls the tokens of a KV block: `page_size`, `block_size` up to 5.17."""
    names = {field.name for field in dataclasses.fields(config)}
    return "page_size" if "page_size" in names else "block_size"


class HFGenerate(Peer):
    """`model.generate` on one static batch, prompts padded on the left, run until the longest output ends."""

    def __init__(self, model: Any, name: str = "hf_generate") -> None:
        self.name = name
        self.model = model

    def describe(self) -> dict[str, Any]:
        return {
            "dtype": dtype_name(self.model.dtype),
            "attention": self.model.config._attn_implementation,
            "batching": "static, left-padded",
        }

    @torch.inference_mode()
    def run(self, workload: BenchmarkWorkload) -> TimedRun:
        start = time.perf_counter()
        rows = [torch.tensor(prompt) for prompt in workload.prompts]
        pad = torch.nn.utils.rnn.pad_sequence
        input_ids = pad(rows, batch_first=True, padding_side="left")
        mask = pad([torch.ones_like(row) for row in rows], batch_first=True, padding_side="left")
        stamps: list[float] = []

        def stamp(ids: torch.Tensor, scores: torch.Tensor, **_: Any) -> torch.Tensor:
            if ids.is_cuda:
                torch.cuda.synchronize(ids.device)  # A token is there when the GPU has it, not when it was asked for.
            stamps.append(time.perf_counter())
            return torch.zeros(len(ids), dtype=torch.bool, device=ids.device)

        self.model.generate(
            input_ids.to(self.model.device),
            attention_mask=mask.to(self.model.device),
            do_sample=False,
            max_new_tokens=max(workload.output_lens),
            eos_token_id=None,
            pad_token_id=0,
            stopping_criteria=[stamp],
        )
        # Every row runs as long as the longest; what was not asked for does not count as output.
        check_counts(self.name, workload, (min(len(stamps), length) for length in workload.output_lens))
        return TimedRun.of(start, [stamps[:length] for length in workload.output_lens])


class HFContinuousBatching(Peer):
    """transformers' continuous batching: a paged cache, mixed steps, prefix sharing between requests.

    Its own defaults take 60% of the machine's memory and 8192 tokens a step; here it gets the step budget
    and the number of KV tokens that minillm gets. A new manager per run means a cold prefix cache; making
    it is not timed.
    """

    name = "hf_continuous"

    def __init__(self, model: Any, max_batch_tokens: int, kv_tokens: int) -> None:
        from transformers import ContinuousBatchingConfig, GenerationConfig

        self.model = model
        self.generation = GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0)
        self.block_size = block_size_name(ContinuousBatchingConfig)
        sizes = {self.block_size: HF_KV_BLOCK, "num_blocks": kv_tokens // HF_KV_BLOCK}
        self.config = ContinuousBatchingConfig(max_batch_tokens=max_batch_tokens, **sizes)
        self._attention = ""

    def describe(self) -> dict[str, Any]:
        return {
            "dtype": dtype_name(self.model.dtype),
            "attention": f"{self._attention} over a paged cache",
            "max_batch_tokens": self.config.max_batch_tokens,
            "kv_blocks": self.config.num_blocks,
            "block_size": getattr(self.config, self.block_size),
        }

    def run(self, workload: BenchmarkWorkload) -> TimedRun:
        with self.model.continuous_batching_context_manager(
            generation_config=self.generation, continuous_batching_config=self.config
        ) as manager:
            # Decided when the manager is made: a flash kernel where there is one, else sdpa behind a dense mask.
            self._attention = self.model.config._attn_implementation
            start = time.perf_counter()
            for i, (prompt, length) in enumerate(zip(workload.prompts, workload.output_lens)):
                manager.add_request(
                    prompt, request_id=str(i), max_new_tokens=length, eos_token_id=-1, record_timestamps=True
                )
            results = self._collect(manager, len(workload.prompts))
            check_counts(self.name, workload, (len(result.generated_tokens) for result in results))
            return TimedRun.of(start, [result.timestamps for result in results])

    def _collect(self, manager: Any, count: int) -> list[Any]:
        """What the requests came to, in their order."""
        results: dict[str, Any] = {}
        while len(results) < count:
            result = manager.get_result(timeout=1)
            if result is None:
                if not manager.is_running():
                    raise BenchmarkError("transformers' continuous batching stopped before all requests had finished")
            elif result.error:
                raise BenchmarkError(f"transformers' continuous batching failed: {result.error}")
            elif result.is_finished():
                results[result.request_id] = result
        return [results[str(i)] for i in range(count)]
