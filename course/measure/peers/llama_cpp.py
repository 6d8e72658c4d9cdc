"""llama.cpp on the same weights (in an F16 file: rounded to float16) and the same number of threads, through
llama-cpp-python's low-level calls.

Import this module only where `llama_cpp` is installed (the extra `bench`). It runs on the CPU.
"""

import ctypes
import logging
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import torch

from course.measure.contest import WARM_UP_TOKENS, Peer, TimedRun, check_counts
from course.measure.peers.llama_cpp_batching import serve
from course.measure.workloads import BenchmarkWorkload
from minillm.bench.errors import BenchmarkError

CELL_STEP = 256
"""llama.cpp makes room for keys and values in multiples of this many tokens."""
ERROR_LEVEL = 4
"""GGML_LOG_LEVEL_ERROR in ggml.h."""


@llama_cpp.llama_log_callback  # type: ignore[untyped-decorator]  # the package has no annotations
def _log(level: int, text: bytes, _: ctypes.c_void_p) -> None:
    """What llama.cpp would print goes to Python's logging, where only its errors are shown by default."""
    severity = logging.ERROR if level == ERROR_LEVEL else logging.DEBUG
    logging.getLogger("llama.cpp").log(severity, "%s", text.decode(errors="replace").rstrip("\n"))


class LlamaCppModel:
    """The weights of a GGUF file, mapped into memory. One copy serves several baselines.

    Raises:
        BenchmarkError: llama.cpp cannot load the file.
    """

    def __init__(self, gguf: Path) -> None:
        llama_cpp.llama_log_set(_log, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        params = llama_cpp.llama_model_default_params()
        params.n_gpu_layers = 0
        self.pointer = llama_cpp.llama_model_load_from_file(str(gguf).encode(), params)
        if not self.pointer:
            raise BenchmarkError(f"llama.cpp cannot load {gguf}: see its messages above; delete the file and try again")
        weakref.finalize(self, llama_cpp.llama_model_free, self.pointer)
        self.vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.pointer))
        self.file_type = llama_cpp.llama_ftype_name(llama_cpp.llama_model_ftype(self.pointer)).decode()


class LlamaCppContext:
    """Keys and values of several sequences, and the batch of the next step.

    Args:
        num_sequences: how many it holds at once.
        num_cells: tokens it holds, over all sequences.
        unified: one KV buffer for all, each sequence masking out the others; else one buffer each.
        float32_kv: else float16, llama.cpp's default.
    Raises:
        BenchmarkError: there is no memory for it.
    """

    def __init__(
        self, model: LlamaCppModel, *, num_sequences: int, num_cells: int, unified: bool, float32_kv: bool
    ) -> None:
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_seq_max, params.kv_unified = num_cells, num_sequences, unified
        params.n_threads = params.n_threads_batch = torch.get_num_threads()
        if float32_kv:
            params.type_k = params.type_v = llama_cpp.GGML_TYPE_F32
        self.model = model  # It must outlive the context.
        self.num_sequences, self.num_cells = num_sequences, num_cells
        self.pointer = llama_cpp.llama_init_from_model(model.pointer, params)
        if not self.pointer:
            raise BenchmarkError(
                f"llama.cpp cannot make a context of {num_sequences} sequences and {num_cells} tokens: free some memory"
            )
        weakref.finalize(self, llama_cpp.llama_free, self.pointer)
        self.memory = llama_cpp.llama_get_memory(self.pointer)
        self.batch_tokens = llama_cpp.llama_n_batch(self.pointer)
        self._make_batch(self.batch_tokens)

    def _make_batch(self, size: int) -> None:
        """A llama_batch over NumPy's memory, so that it can be filled by slices instead of token by token."""
        self._tokens, self._positions, self._sequences = np.zeros((3, size), dtype=np.int32)
        self._sequence_counts = np.ones(size, dtype=np.int32)  # each token belongs to one sequence
        self._wants_logits = np.zeros(size, dtype=np.int8)
        stride = self._sequences.itemsize
        self._sequence_pointers = self._sequences.ctypes.data + stride * np.arange(size, dtype=np.uintp)
        integers, flags = ctypes.POINTER(ctypes.c_int32), ctypes.POINTER(ctypes.c_int8)
        self._batch = llama_cpp.llama_batch(
            n_tokens=0,
            token=self._tokens.ctypes.data_as(integers),
            pos=self._positions.ctypes.data_as(integers),
            n_seq_id=self._sequence_counts.ctypes.data_as(integers),
            seq_id=self._sequence_pointers.ctypes.data_as(ctypes.POINTER(integers)),
            logits=self._wants_logits.ctypes.data_as(flags),
        )

    def add(self, tokens: Sequence[int], position: int, sequence: int, wants_logits: bool) -> None:
        """Put tokens of one sequence into the next step's batch, at `position` and after."""
        start, end = self._batch.n_tokens, self._batch.n_tokens + len(tokens)
        self._tokens[start:end] = tokens
        self._positions[start:end] = np.arange(position, position + len(tokens))
        self._sequences[start:end] = sequence
        self._wants_logits[start:end] = 0
        self._wants_logits[end - 1] = wants_logits
        self._batch.n_tokens = end

    def decode(self) -> np.ndarray:
        """Compute the batch and empty it. Greedy next tokens, [additions that want logits], in their order.

        Raises:
            BenchmarkError: llama.cpp refused it, for instance because the KV cells ran out.
        """
        size = self._batch.n_tokens
        code = llama_cpp.llama_decode(self.pointer, self._batch)
        self._batch.n_tokens = 0
        if code != 0:
            raise BenchmarkError(f"llama.cpp could not compute a batch of {size} tokens: llama_decode returned {code}")
        rows = int(self._wants_logits[:size].sum())
        logits = llama_cpp.llama_get_logits(self.pointer)  # waits until it is computed
        if rows == 0:
            return np.empty(0, dtype=np.int64)
        # NumPy's argmax is vectorized; llama.cpp's greedy sampler first copies the whole vocabulary into candidates.
        return np.ctypeslib.as_array(logits, shape=(rows, self.model.vocab_size)).argmax(axis=1)

    def share(self, source: int, target: int, length: int) -> None:
        """Give `target` the keys and values of the first `length` tokens of `source`.

        Between separate buffers llama.cpp copies whole sequences only, so the rest is cut off afterwards.
        """
        llama_cpp.llama_memory_seq_cp(self.memory, source, target, -1, -1)
        llama_cpp.llama_memory_seq_rm(self.memory, target, length, -1)

    def release(self, sequence: int) -> None:
        """Forget a sequence's keys and values."""
        llama_cpp.llama_memory_seq_rm(self.memory, sequence, -1, -1)

    def clear(self) -> None:
        """Forget all sequences."""
        llama_cpp.llama_memory_clear(self.memory, False)


class LlamaCpp(Peer):
    """llama.cpp with continuous batching, in one of its two layouts of keys and values.

    Neither layout is better on every workload: in a unified buffer every query also passes over the other
    sequences' cells, and with one buffer a sequence a shared prefix is copied and gaps split the batch.

    Args:
        max_sequences: most requests at once.
        float32_kv: for a comparison in float32; else llama.cpp's float16.
        tag: ends the name, where several files are compared.
    """

    def __init__(
        self, model: LlamaCppModel, *, unified: bool, max_sequences: int, float32_kv: bool, tag: str = ""
    ) -> None:
        self.name = ("llama_cpp" if unified else "llama_cpp_per_seq") + tag
        self.model, self.unified, self.float32_kv = model, unified, float32_kv
        self.max_sequences = min(max_sequences, llama_cpp.llama_max_parallel_sequences())
        self._context: LlamaCppContext | None = None

    def describe(self) -> dict[str, Any]:
        context = self._context
        return {
            "dtype": self.model.file_type,
            "version": f"llama-cpp-python {llama_cpp.__version__}",
            "threads": torch.get_num_threads(),
            "batching": f"continuous, {'unified KV' if self.unified else 'one KV buffer a sequence'}",
            "kv_dtype": "float32" if self.float32_kv else "float16",
            "attention": "flash_attn auto (its default)",
            "n_batch": llama_cpp.llama_n_batch(context.pointer) if context else None,
            "n_ubatch": llama_cpp.llama_n_ubatch(context.pointer) if context else None,
            "cpu": llama_cpp.llama_print_system_info().decode().strip(),
        }

    def warm_up(self, workload: BenchmarkWorkload) -> None:
        self._context = None  # the old one's memory first
        self._context = self._context_for(workload)
        short = workload.truncated(WARM_UP_TOKENS)
        serve(self._context, short.prompts, short.output_lens)

    def run(self, workload: BenchmarkWorkload) -> TimedRun:
        context = self._context = self._context_for(workload)
        context.clear()
        start = time.perf_counter()
        requests = serve(context, workload.prompts, workload.output_lens)
        check_counts(self.name, workload, (len(request.output) for request in requests))
        return TimedRun.of(start, [request.stamps for request in requests])

    def _context_for(self, workload: BenchmarkWorkload) -> LlamaCppContext:
        """Exactly as many sequences and cells as the workload can fill; the last one, if it is of that size."""
        num_sequences = min(len(workload.prompts), self.max_sequences)
        lengths = [len(prompt) + length for prompt, length in zip(workload.prompts, workload.output_lens)]
        longest = sorted(lengths)[-num_sequences:]
        cells = [-(-length // CELL_STEP) * CELL_STEP for length in longest]
        num_cells = sum(cells) if self.unified else num_sequences * max(cells)
        if self._context and (self._context.num_sequences, self._context.num_cells) == (num_sequences, num_cells):
            return self._context
        size = {"num_sequences": num_sequences, "num_cells": num_cells}
        return LlamaCppContext(self.model, **size, unified=self.unified, float32_kv=self.float32_kv)


def both_layouts(gguf: Path, dtype: str, max_sequences: int, tag: str = "") -> list[LlamaCpp]:
    """Both layouts over one copy of the weights; the faster one is the one to beat.

    Raises:
        BenchmarkError: llama.cpp cannot load the file.
    """
    model, float32_kv = LlamaCppModel(gguf), dtype == "float32"
    return [
        LlamaCpp(model, unified=unified, max_sequences=max_sequences, float32_kv=float32_kv, tag=tag)
        for unified in (True, False)
    ]
