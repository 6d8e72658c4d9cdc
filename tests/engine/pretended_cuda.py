"""A CUDA device pretended on the CPU: tensors that say they're on `cuda:0`, with their numbers in host memory.

Every operation of PyTorch on them is computed by the CPU, and judged as a GPU would judge it. What this can show:

- operands on different devices;
- what makes the host wait, and so where a step does: `waits`;
- what may not be in a CUDA graph: waiting, copies from or to the host;
- what a graph leaves out. It's recorded operation by operation, computes nothing meanwhile, and is replayed on the same
  memory. What graphs of its pool have made is spoilt before each replay, since one may use the memory of another;
- a copy to the host that's read before its event, and pinned memory that's written to while it is copied from.

It can't show what a GPU's own kernels compute or refuse, nor how streams interleave: there is one, in order. Triton's
kernels run in its interpreter.
"""

import contextlib
import ctypes
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

GPU, aten = torch.device("cuda", 0), torch.ops.aten
WAITING = {
    *(aten._local_scalar_dense.default, aten.nonzero.default, aten.masked_select.default, aten.equal.default),
    *(aten._unique2.default, aten.repeat_interleave.Tensor),
}
"""Operations whose result, or its shape, the host has to be told."""
INDEXING = {aten.index.Tensor, aten.index_put_.default, aten.index_put.default, aten._index_put_impl_.default}
SPOILT = -77
"""What memory holds that nobody may read."""
GUARD = """
#include <c10/core/impl/DeviceGuardImplInterface.h>
static c10::impl::DeviceGuardImplRegistrar guard(
    c10::DeviceType::CUDA, new c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::CUDA>());
"""
"""PyTorch for CPUs can't index a tensor of a GPU without knowing how to switch to it."""


class OnGpu(Tensor):
    """A tensor of the pretended device.

    Args:
        held: what it's computed with.
    """

    @staticmethod
    def __new__(cls, held: Tensor) -> "OnGpu":
        layout = dict(strides=held.stride(), storage_offset=held.storage_offset())
        return torch.Tensor._make_wrapper_subclass(cls, held.size(), **layout, dtype=held.dtype, device=GPU)

    def __init__(self, held: Tensor) -> None:
        self.held = held

    def data_ptr(self) -> int:
        return self.held.data_ptr()

    def tolist(self) -> list[Any]:
        return self.cpu().tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{func} ran outside of the pretence, as in another thread")


class Graph:
    """Stands for torch.cuda.CUDAGraph."""

    def __init__(self) -> None:
        self.pool: list[Graph] = [self]
        """Those that share memory."""
        self.work: list[Callable[[], Any]] = []
        self.made: list[list[Tensor | None]] = []
        """By operation: its results that are memory of the graph's own."""

    def spoil(self) -> None:
        for tensor in tree_flatten(self.made)[0]:
            if tensor is not None:
                tensor.fill_(torch.nan if tensor.is_floating_point() else SPOILT)

    def replay(self) -> None:
        with torch.no_grad():
            for each in self.pool:
                each.spoil()
            for work, made in zip(self.work, self.made, strict=True):
                for kept, again in zip(made, tensors_in(work()), strict=True):
                    if kept is not None:
                        kept.copy_(again)


def tensors_in(result: Any) -> list[Tensor]:
    return [each for each in tree_flatten(result)[0] if isinstance(each, Tensor)]


class PretendedCuda(TorchDispatchMode):
    """The device."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[str] = []
        """Why the host has waited, each time."""
        self.recording: Graph | None = None
        self.pinned: dict[int, Tensor] = {}
        """By address; kept, so that no other memory gets it."""
        self.leaving: list[tuple[Tensor, Tensor]] = []
        """Pinned memory that is being copied to the device, and what it held when that began."""
        self.arriving: list[tuple[Tensor, Tensor]] = []
        """Pinned memory that is being copied to, and what it will hold."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        flat, spec = tree_flatten((args, kwargs))
        ours = [each for each in flat if isinstance(each, OnGpu)]
        is_to_be_ours = kwargs.get("device") is not None and torch.device(kwargs["device"]).type == "cuda"
        if not ours and not is_to_be_ours:
            pin = kwargs.pop("pin_memory", None)
            result = func(*args, **kwargs)
            return self.pin(result) if pin else result
        if func is aten._fused_sdp_choice.default:
            return 0  # attention by plain operations
        if func is aten._softmax.default and args[2]:  # of 16 bits in 32, which a CPU can't
            held, dim = args[0].held, args[1]
            return OnGpu(self.launch(lambda: func(held.float(), dim, False), [held]))
        if func is aten.copy_.default:
            return self.copy(*args, **kwargs)
        if func is aten._to_copy.default and not (ours and (is_to_be_ours or kwargs.get("device") is None)):
            return self.to_other_device(args[0], func, kwargs)
        self.judge(func, args, flat)
        known = {id(each.held): each for each in ours}
        plain = [each.held if isinstance(each, OnGpu) else each for each in flat]
        plain_args, plain_kwargs = tree_unflatten(plain, spec)
        if plain_kwargs.get("device") is not None:
            plain_kwargs["device"] = torch.device("cpu")
        result = self.launch(lambda: func(*plain_args, **plain_kwargs), [each.held for each in ours])
        return tree_map(lambda each: known.get(id(each), OnGpu(each)) if isinstance(each, Tensor) else each, result)

    def judge(self, func: Any, args: Any, flat: list[Any]) -> None:
        """Wait, or refuse, as PyTorch does on a GPU."""
        if func in WAITING:
            self.wait(str(func))
        elsewhere = [each for each in flat if isinstance(each, Tensor) and not isinstance(each, OnGpu) and each.dim()]
        if func in INDEXING:
            indices = [each for each in args[1] if each is not None]
            if any(each.dtype == torch.bool for each in indices):
                self.wait(f"{func} by a mask")
            if any(not isinstance(each, OnGpu) for each in indices):
                self.wait(f"{func} by an index of the host")
        elif elsewhere:
            raise RuntimeError(f"Expected all tensors to be on the same device, but found cuda:0 and cpu: {func}")

    def wait(self, why: str) -> None:
        if self.recording is not None:
            raise RuntimeError(f"CUDA error: operation not permitted when stream is capturing: {why}")
        self.waits.append(why)
        for source, before in self.leaving:
            assert torch.equal(source, before), "pinned memory was written to while it was copied from"
        for target, value in self.arriving:
            target.copy_(value)
        self.leaving, self.arriving = [], []

    def launch(self, work: Callable[[], Any], given: list[Tensor]) -> Any:
        """Do some work; or do it once, to know the shapes, and leave it to replays: of what it writes then, memory of
        the graph's own keeps it, where later work of the recording may look for indices."""
        before: list[tuple[Tensor, Tensor]] = []
        if self.recording is not None:
            own = {each.untyped_storage().data_ptr() for each in tensors_in(self.recording.made)}
            before = [(each, each.clone()) for each in given if each.untyped_storage().data_ptr() not in own]
        result = work()
        if self.recording is not None:
            for each, value in before:
                each.copy_(value)
            storages = {each.untyped_storage().data_ptr() for each in given}
            made = [each if each.untyped_storage().data_ptr() not in storages else None for each in tensors_in(result)]
            self.recording.work.append(work)
            self.recording.made.append(made)
        return result

    def copy(self, target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
        if isinstance(target, OnGpu):
            value = source.held if isinstance(source, OnGpu) else self.sent(source, non_blocking)
            self.launch(lambda: target.held.copy_(value), [target.held])
        elif self.is_pinned(target) and non_blocking and self.recording is None:
            self.arriving.append((target, source.held.clone()))
            target.fill_(SPOILT)
        else:
            self.wait("a copy to the host")
            target.copy_(source.held)
        return target

    def to_other_device(self, source: Tensor, func: Any, kwargs: dict[str, Any]) -> Tensor:
        kept = {name: value for name, value in kwargs.items() if name not in ("device", "non_blocking", "pin_memory")}
        if isinstance(source, OnGpu):
            self.wait("a copy to the host")
            return func(source.held, **kept)
        return OnGpu(func(self.sent(source, kwargs.get("non_blocking", False)), **kept))

    def sent(self, source: Tensor, non_blocking: bool) -> Tensor:
        """A copy of what lies on the host."""
        if self.is_pinned(source) and non_blocking and self.recording is None:
            self.leaving.append((source, source.clone()))
        else:
            self.wait("a copy from the host")
        return source.clone()

    def pin(self, tensor: Tensor) -> Tensor:
        self.pinned[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    def is_pinned(self, tensor: Tensor) -> bool:
        return tensor.untyped_storage().data_ptr() in self.pinned

    @contextlib.contextmanager
    def record(self, graph: Graph, pool: list[Graph], **_: object) -> Iterator[None]:
        """Stands for torch.cuda.graph."""
        self.wait("the start of a recording")
        graph.pool = pool
        pool.append(graph)
        self.recording = graph
        try:
            yield
        finally:
            self.recording = None
        with torch.no_grad():
            graph.spoil()


@contextlib.contextmanager
def pretended_cuda(patch: pytest.MonkeyPatch) -> Iterator[PretendedCuda]:
    """A device as torch.cuda sees it, until the context ends. `load_guard` comes first."""
    device = PretendedCuda()
    stream = SimpleNamespace(wait_stream=lambda other: None)
    event = SimpleNamespace(record=lambda: None, synchronize=lambda: device.wait("an event"))
    properties = SimpleNamespace(multi_processor_count=8, shared_memory_per_block_optin=227 * 1024, major=9, minor=0)
    fakes: dict[str, Callable[..., Any]] = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "get_device_capability": lambda device=None: (9, 0),
        "get_device_properties": lambda device=None: properties,
        "mem_get_info": lambda device=None: (2**30, 2**30),
        "synchronize": lambda _=None: device.wait("the device"),
        "Stream": lambda _=None: stream,
        "current_stream": lambda _=None: stream,
        "stream": lambda stream: contextlib.nullcontext(),
        "Event": lambda **_: event,
        "CUDAGraph": Graph,
        "graph": device.record,
        "graph_pool_handle": list[Graph],
        **dict.fromkeys(("empty_cache", "reset_peak_memory_stats"), lambda _=None: None),
        **dict.fromkeys(("memory_allocated", "max_memory_allocated"), lambda _=None: 0),
    }
    for name, fake in fakes.items():
        patch.setattr(torch.cuda, name, fake)
    patch.setattr(Tensor, "pin_memory", lambda tensor: device.pin(tensor.clone()))
    generator = torch.Generator
    patch.setattr(torch, "Generator", lambda device=None: generator())
    # Views of such tensors can't be made in inference mode.
    patch.setattr(torch.inference_mode, "__enter__", lambda self: enter_no_grad(self))
    interpret_on(device, patch)
    torch._C._set_only_lift_cpu_tensors(True)  # or an index as a list would be made on the device
    torch.__future__.set_overwrite_module_params_on_conversion(True)  # a tensor of the host can't become one of ours
    try:
        with device:
            yield device
    finally:
        torch._C._set_only_lift_cpu_tensors(False)
        torch.__future__.set_overwrite_module_params_on_conversion(False)


def enter_no_grad(mode: Any) -> None:
    mode._inference_mode_context = torch.no_grad()
    mode._inference_mode_context.__enter__()


def interpret_on(device: PretendedCuda, patch: pytest.MonkeyPatch) -> None:
    """Triton's interpreter reads and writes the memory behind the device's tensors."""
    interpreter = pytest.importorskip("triton.runtime.interpreter")
    interpret = interpreter.InterpretedFunction.run

    def run(kernel: Any, *args: Any, **kwargs: Any) -> None:
        given = [each for each in args if isinstance(each, Tensor)]
        assert all(isinstance(each, OnGpu) for each in given), "Pointer argument cannot be accessed from Triton"
        held = [each.held if isinstance(each, OnGpu) else each for each in args]

        def work() -> None:
            with _disable_current_modes():
                interpret(kernel, *held, **kwargs)

        device.launch(work, [each.held for each in given])

    patch.setattr(interpreter.InterpretedFunction, "run", run)


def load_guard(folder: Path) -> None:
    """Compile GUARD in a folder, and load it, for as long as the process lives. Skips the test where that can't be."""
    if torch.version.cuda:
        pytest.skip("this PyTorch has a CUDA of its own")
    installed = Path(torch.__file__).parent
    source, library = folder / "guard.cpp", folder / "guard.so"
    source.write_text(GUARD)
    options = ["-std=c++20", "-shared", "-fPIC", f"-I{installed / 'include'}", f"-L{installed / 'lib'}", "-lc10"]
    try:
        made = subprocess.run(["g++", str(source), "-o", str(library), *options], capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("no g++")
    if made.returncode:
        pytest.skip(f"PyTorch's headers don't compile here: {made.stderr[-300:]}")
    ctypes.CDLL(str(library))
