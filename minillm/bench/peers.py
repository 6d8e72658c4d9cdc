"""The engines that are compared: each runs the same workload, and says what it really ran with.

All of them have the same three methods, so that the comparison does not know whom it measures.
"""

import itertools
import time
from collections.abc import Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from minillm import LLM, SamplingParams
from minillm.bench.workloads import Workload
from minillm.errors import MinillmError

WARM_UP_TOKENS = 4
HF_KV_BLOCK = 256
"""Tokens per KV block of Hugging Face's continuous batching: its default."""


class BenchmarkError(MinillmError):
    """A peer did not do the work it was measured on."""


@dataclass(frozen=True, slots=True)
class Run:
    """One measured run. All requests arrive at its start; times in seconds."""

    seconds: float
    num_tokens: int
    ttft: list[float]
    """One per request."""
    itl: list[float]
    """Gaps between tokens, pooled over requests."""


class Peer(Protocol):
    name: str

    def describe(self) -> dict[str, Any]:
        """The settings that decide its speed, as they are in force."""
        ...

    def warm_up(self, workload: Workload) -> None:
        """Anything that is paid once: allocation, compilation, first calls."""
        ...

    def run(self, workload: Workload) -> Run:
        """Serve the workload with cold prefix caches, and time it.

        Raises:
            BenchmarkError: some request did not emit exactly what it was asked for.
        """
        ...


def check_counts(name: str, workload: Workload, counts: Iterable[int]) -> None:
    """Fewer tokens would make a peer look fast."""
    counts = list(counts)
    if counts != workload.output_lens:
        raise BenchmarkError(
            f"{name} emitted {counts} tokens on workload {workload.name!r}, asked for {workload.output_lens}: "
            "its time means nothing. Check that its KV pool holds the longest request"
        )


class MinillmPeer:
    """This engine, in its default configuration but for the model, the dtype and `fields`."""

    def __init__(self, model: str, dtype: str, name: str = "minillm", **fields: Any) -> None:
        self.name = name
        self.llm = LLM(model=model, dtype=dtype, **fields)
        compiled = self.llm.engine.runner.fast_decode
        self.compiled_batches = list(compiled.steps) if compiled else []
        if fields.get("compile") and not self.compiled_batches:
            raise BenchmarkError(f"{name} fell back to eager steps (see the warning above): it would be measured twice")

    def describe(self) -> dict[str, Any]:
        engine = self.llm.engine
        keys = ("dtype", "max_num_seqs", "max_num_batched_tokens", "block_size")
        return {
            **{key: getattr(engine.config, key) for key in keys},
            "activation_dtype": str(engine.model.decoder.activation_dtype).removeprefix("torch."),
            "attention": engine.runner.attention.__name__,
            "compiled_batches": self.compiled_batches,
            "kv_blocks": engine.runner.num_kv_blocks,
        }

    def warm_up(self, workload: Workload) -> None:
        self.run(workload.truncated(WARM_UP_TOKENS))

    def run(self, workload: Workload) -> Run:
        self.llm.engine.reset_prefix_cache()
        params = [
            SamplingParams(max_tokens=length, temperature=0.0, ignore_eos=True) for length in workload.output_lens
        ]
        start = time.perf_counter()
        outputs = self.llm.generate(workload.prompts, params, use_tqdm=False)
        seconds = time.perf_counter() - start
        check_counts(self.name, workload, (len(output.token_ids) for output in outputs))
        return Run(
            seconds=seconds,
            num_tokens=workload.num_output_tokens,
            ttft=[output.timeline.ttft for output in outputs],
            itl=[gap for output in outputs for gap in output.timeline.itl],
        )


def load_hugging_face(folder: Path, dtype: str) -> Any:
    """The model by transformers, with its fastest attention on a CPU. One copy serves both its peers."""
    from transformers import AutoModelForCausalLM

    with quiet_transformers():
        model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=getattr(torch, dtype), attn_implementation="sdpa", local_files_only=True
        )
    return model.eval()


@contextmanager
def quiet_transformers():
    """No progress bars of its own among ours."""
    from transformers.utils import logging

    bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if bars:
            logging.enable_progress_bar()


class HFGenerate:
    """`model.generate` on one static batch, prompts padded on the left, run until the longest output ends."""

    def __init__(self, model: Any, name: str = "hf_generate") -> None:
        self.name = name
        self.model = model

    def describe(self) -> dict[str, Any]:
        return {
            "dtype": str(self.model.dtype).removeprefix("torch."),
            "attention": self.model.config._attn_implementation,
            "batching": "static, left-padded",
        }

    def warm_up(self, workload: Workload) -> None:
        self.run(workload.truncated(WARM_UP_TOKENS))

    @torch.inference_mode()
    def run(self, workload: Workload) -> Run:
        start = time.perf_counter()
        width = max(len(prompt) for prompt in workload.prompts)
        input_ids = torch.zeros(len(workload.prompts), width, dtype=torch.long)
        mask = torch.zeros_like(input_ids)
        for row, prompt in enumerate(workload.prompts):
            input_ids[row, width - len(prompt) :] = torch.tensor(prompt)
            mask[row, width - len(prompt) :] = 1
        stamps: list[float] = []

        def stamp(ids: torch.Tensor, scores: torch.Tensor, **_: Any) -> torch.Tensor:
            stamps.append(time.perf_counter())
            return torch.zeros(len(ids), dtype=torch.bool)

        result = self.model.generate(
            input_ids,
            attention_mask=mask,
            do_sample=False,
            max_new_tokens=max(workload.output_lens),
            eos_token_id=None,
            pad_token_id=0,
            stopping_criteria=[stamp],
        )
        seconds = time.perf_counter() - start
        # Every row runs as long as the longest; what was not asked for does not count as output.
        emitted = result.shape[1] - width
        check_counts(self.name, workload, (min(emitted, length) for length in workload.output_lens))
        gaps = [later - earlier for earlier, later in itertools.pairwise(stamps)]
        return Run(
            seconds=seconds,
            num_tokens=workload.num_output_tokens,
            ttft=[stamps[0] - start] * len(workload.prompts),
            itl=[gap for length in workload.output_lens for gap in gaps[: length - 1]],
        )


class HFContinuousBatching:
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
        self.config = ContinuousBatchingConfig(
            page_size=HF_KV_BLOCK, num_blocks=kv_tokens // HF_KV_BLOCK, max_batch_tokens=max_batch_tokens
        )
        self._attention = ""

    def describe(self) -> dict[str, Any]:
        return {
            "dtype": str(self.model.dtype).removeprefix("torch."),
            "attention": f"{self._attention} over a paged cache",
            "max_batch_tokens": self.config.max_batch_tokens,
            "kv_blocks": self.config.num_blocks,
            "block_size": self.config.page_size,
        }

    def warm_up(self, workload: Workload) -> None:
        self.run(workload.truncated(WARM_UP_TOKENS))

    def run(self, workload: Workload) -> Run:
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
            seconds = time.perf_counter() - start
        ordered = [results[str(i)] for i in range(len(workload.prompts))]
        check_counts(self.name, workload, (len(result.generated_tokens) for result in ordered))
        return Run(
            seconds=seconds,
            num_tokens=workload.num_output_tokens,
            ttft=[result.timestamps[0] - start for result in ordered],
            itl=[later - earlier for result in ordered for earlier, later in itertools.pairwise(result.timestamps)],
        )

    def _collect(self, manager: Any, count: int) -> dict[str, Any]:
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
        return results
