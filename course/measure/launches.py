"""A decode step on a GPU as the chain of launches that it is, counted without a GPU.

    python -m course.measure.launches qwen3-0.6b --batch 1 --context 512
    python -m course.measure.launches llama-3-8b --quantization int4

The engine's own code for CUDA graphs, and its sampler, run on tensors without contents, so none of our launches is
missing. What an operation of PyTorch does inside isn't seen: most are one launch, a sort is several, and cuBLAS may add
one to a product whose sum it splits. Beside each launch stands the least it can take: what a launch costs, and its
bytes at the memory's bandwidth; and for our own kernels the number of programs, of which an H100's 132 multiprocessors
have as many at a time as registers and shared memory let them. That's arithmetic; `minillm bench decode --idle`
measures kernel by kernel.
"""

import argparse
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest import mock

import torch
import triton.runtime.jit
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from minillm.core.block_pool import blocks_for
from minillm.core.errors import MinillmError
from minillm.core.params import SamplingParams
from minillm.core.request import Request
from minillm.core.timeline import Timeline
from minillm.kernels.triton import attention, attention_kernels, experts, few_rows, likeliest, ops
from minillm.kernels.triton.counters import counting_with, make_counters
from minillm.kernels.triton.gpu import GpuLimits
from minillm.model.arithmetic import share_woken
from minillm.model.checkpoints import SHAPES, find_checkpoint, load_model_config, unknown_model
from minillm.model.config import ModelConfig
from minillm.model.decoder import Decoder
from minillm.model.quantized import Quantizer, RoundingRecipe
from minillm.model.quantized_cuda import CudaFP8Linear, FragmentLinear
from minillm.observe.tables import text_table
from minillm.policies.config import EngineConfig
from minillm.runner.cuda_graphs import MOST_ROWS, GraphedDecode
from minillm.runner.kv_pool import KVPool
from minillm.runner.pending_tokens import PendingTokens
from minillm.runner.rejection_sampler import RejectionSampler

NOWHERE = torch.device("meta")
H100 = GpuLimits(132, 227 * 1024)
BLOCK_SIZE = 16
LAUNCH_US, BANDWIDTH = 2.0, 3.0e12
"""What a small kernel took in a CUDA graph on an H100, and what a copy reached there (docs/measured.md)."""
SAMPLING = SamplingParams(temperature=0)
LAUNCHES_NOTHING = {
    *("alias", "chunk", "detach", "expand", "flatten", "mT", "select", "slice", "split", "split_with_sizes"),
    *("squeeze", "t", "transpose", "unbind", "unflatten", "unsqueeze", "view", "empty", "empty_like", "new_empty"),
}
"""Operations that make a view, or memory without contents. Of `flatten` that's true where we call it."""


@dataclass(frozen=True, slots=True)
class StepLaunch:
    """A kernel, and what it moves."""

    name: str
    bytes: int
    """Read and written, each tensor once"""
    programs: int | None = None
    """None = PyTorch's, which doesn't say"""

    @property
    def least_us(self) -> float:
        return LAUNCH_US + self.bytes / BANDWIDTH * 1e6


class LaunchRecorder(TorchDispatchMode):
    """Notes what is launched while it is active: operations of PyTorch, and kernels of ours that are a NotedKernel.

    Args:
        moved: bytes that a launch of this name moves of a tensor, where that's less than all of it; None = all.
    """

    def __init__(self, moved: Callable[[str, Tensor], int | None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.moved = moved
        self.launches: list[StepLaunch] = []

    def note(self, name: str, tensors: Sequence[Tensor], programs: int | None = None) -> None:
        distinct = {id(tensor): tensor for tensor in tensors}.values()
        moved = [(self.moved(name, tensor), tensor.nbytes) for tensor in distinct]
        num_bytes = sum(whole if part is None else part for part, whole in moved)
        self.launches.append(StepLaunch(name, num_bytes, programs))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        is_done = name in ("to", "contiguous") and result is args[0]  # it was so already
        if not (is_done or name in LAUNCHES_NOTHING):
            self.note(name, [leaf for leaf in tree_leaves((args, kwargs, result)) if isinstance(leaf, Tensor)])
        return result


@dataclass(frozen=True, slots=True)
class NotedKernel:
    """Stands for a Triton kernel: a launch is noted, and nothing runs."""

    recorder: LaunchRecorder
    name: str

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        def launch(*given: Any, **options: Any) -> None:
            name = f"{self.name}, SwiGLU" if options.get("SWIGLU") else self.name
            self.recorder.note(name, [value for value in given if isinstance(value, Tensor)], math.prod(grid))

        return launch


@contextmanager
def recorded_kernels(recorder: LaunchRecorder) -> Iterator[None]:
    """Our kernels are noted and not run, as an H100 would be given them."""
    with ExitStack() as stack:
        for module in (attention, few_rows):
            stack.enter_context(mock.patch.object(module, "gpu", return_value=H100))
        for module in (attention_kernels, experts, few_rows, likeliest, ops):
            for name, value in list(vars(module).items()):
                if isinstance(value, triton.runtime.jit.KernelInterface):
                    stack.enter_context(mock.patch.object(module, name, NotedKernel(recorder, name.lstrip("_"))))
        yield


class RecordedGraph:
    """Stands for a CUDA graph: what it would capture is noted."""

    def __init__(self, recorder: LaunchRecorder) -> None:
        self.recorder = recorder

    def capture(self, work: Callable[[], object]) -> "RecordedGraph":
        with self.recorder:
            work()
        return self

    def replay(self) -> None:
        raise AssertionError("there is nothing in it")


def quantize(decoder: Decoder, kind: str) -> None:
    """Replace its matrices as on a GPU (quantized_cuda.py), where a layer is tried first."""
    int4 = partial(FragmentLinear, kind="int4", group=EngineConfig().int4_group_size)
    int8 = partial(FragmentLinear, kind="int8")
    recipes = {
        "int8": RoundingRecipe(int8, int8),
        "int4": RoundingRecipe(int4, int8),
        "fp8": RoundingRecipe(CudaFP8Linear, CudaFP8Linear),
    }
    Quantizer(decoder, recipes[kind], NOWHERE).finish()


def decode_launches(config: ModelConfig, batch: int, context: int, quantization: str | None = None) -> list[StepLaunch]:
    """One step of `batch` greedy requests with `context` tokens each, from its token ids to its samples, in bfloat16
    but for weights that are quantized. The copies between host and GPU before and after it aren't in it."""
    decoder = Decoder(config, torch.bfloat16, NOWHERE)
    if quantization is not None:
        quantize(decoder, quantization)
    for mlp in decoder.sparse_mlps:
        mlp.stack()
    pool = KVPool(config, blocks_for(context, BLOCK_SIZE), 0, BLOCK_SIZE, torch.bfloat16, NOWHERE)
    pending = PendingTokens(batch, NOWHERE)
    caches, stacks = ids_of(pool.layers), ids_of(each for mlp in decoder.sparse_mlps for each in stacked(mlp))
    token_kv = 2 * config.num_kv_heads * config.head_dim * torch.bfloat16.itemsize
    chosen = config.num_experts_per_tok / max(config.num_experts, 1)
    active = chosen + (1 - chosen) * share_woken(1 - chosen, batch)  # expected, if all experts are as likely

    counters = make_counters(NOWHERE)

    def moved(name: str, tensor: Tensor) -> int | None:
        if tensor is counters:
            return 0
        if tensor is decoder.embed_tokens and name == "embedding":
            return batch * config.hidden_size * tensor.itemsize
        if id(tensor) in caches:
            return batch * token_kv * (context if name.startswith("attend") else 1)
        return round(active * tensor.nbytes) if id(tensor) in stacks else None

    recorder = LaunchRecorder(moved)
    window = config.max_position_embeddings
    with recorded_kernels(recorder), counting_with(counters):
        fused = ops.TritonOps()
        graphed = GraphedDecode(
            decoder,
            fused,
            attention.TritonAttention,
            pool,
            pending,
            window,
            lambda: RecordedGraph(recorder),
        )
        graphed.capture(batch, lazily=True)
        rows = [Request(f"request-{i}", [0], SAMPLING, Timeline(0.0)) for i in range(batch)]
        with torch.inference_mode(), recorder:
            pending.keep(rows, RejectionSampler(fused).launch(graphed.logits, rows).token_ids)
    return recorder.launches


def stacked(mlp: Any) -> tuple[Tensor, Tensor]:
    """All experts' weights of a layer."""
    return mlp.stacked.gate_up, mlp.stacked.down


def ids_of(tensors: Any) -> set[int]:
    return {id(tensor) for tensor in tensors}


def table(launches: Sequence[StepLaunch]) -> str:
    """The launches in the order in which they come first, equal ones together."""
    rows = [
        (
            launch.name,
            f"{count}",
            "" if launch.programs is None else f"{launch.programs}",
            f"{launch.bytes / 1e6:.3f}",
            f"{launch.least_us:.1f}",
            f"{count * launch.least_us:.0f}",
        )
        for launch, count in Counter(launches).items()
    ]
    least, read = sum(launch.least_us for launch in launches), sum(launch.bytes for launch in launches)
    rows.append(("all", f"{len(launches)}", "", f"{read / 1e6:.0f}", "", f"{least:.0f}"))
    return text_table(("kernel", "launches", "programs", "MB", "least us", "of all"), rows)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="its config.json is read, no weights")
    parser.add_argument("--batch", type=int, default=1, help="requests; default 1")
    parser.add_argument("--context", type=int, default=512, help="tokens of each; default 512")
    parser.add_argument("--quantization", choices=("int8", "int4", "fp8"), help="of its weights; default none")
    given = parser.parse_args(arguments)
    try:
        if (found := find_checkpoint(given.model)) is None:
            instead = f"a config.json, a model folder, a Hub id such as org/name, or one of {', '.join(SHAPES)}"
            raise unknown_model(given.model, SHAPES, instead)
        config = load_model_config(found)
    except MinillmError as error:
        parser.error(str(error))
    for name, most in (("batch", MOST_ROWS), ("context", config.max_position_embeddings)):
        if not 1 <= (value := getattr(given, name)) <= most:
            parser.error(f"--{name} is from 1 to {most} for {given.model}, not {value}")
    print(table(decode_launches(config, given.batch, given.context, given.quantization)))


if __name__ == "__main__":
    main()
