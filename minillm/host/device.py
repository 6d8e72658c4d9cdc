"""Host and device: copies between them that don't wait, and what to say when memory has run out.

A copy from ordinary memory makes the host wait until the device has caught up with everything it was given
before, which would undo asynchronous scheduling. From pinned memory it is queued like a kernel. PyTorch keeps freed
pinned memory until the copies out of it are done, so it can be let go of right away.
"""

import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from minillm.core.errors import ConfigError, DeviceLostError
from minillm.host.errors import OutOfMemoryError

RECORDING = threading.Lock()
"""Held while a CUDA graph is recorded. What any thread launches on the stream that records becomes part of the graph,
and a thread that waits for the whole device ends the recording with an error, for itself, too ("Prohibited and
Unhandled Operations" in NVIDIA's CUDA programming guide)."""
OF_THE_HOST = "can't allocate memory"
"""PyTorch's words, in a plain RuntimeError."""


def before_ampere(device: torch.device) -> bool:
    """A CUDA device without bfloat16 arithmetic, such as a T4 (compute capability 7.5)."""
    return torch.cuda.get_device_capability(device) < (8, 0)


def to_device(array: np.ndarray, device: torch.device) -> Tensor:
    """The array as a tensor on the device. On a CPU it shares the array's memory."""
    tensor = torch.from_numpy(array)
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


class HostCopy:
    """A copy of a tensor on its way to the host; `wait` gives it."""

    def __init__(self, tensor: Tensor) -> None:
        self.event: torch.cuda.Event | None = None
        self.tensor = tensor
        if tensor.device.type == "cuda":
            self.tensor = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            self.tensor.copy_(tensor, non_blocking=True)
            self.event = torch.cuda.Event()
            self.event.record()

    def wait(self) -> Tensor:
        """The tensor, on the host."""
        if self.event is not None:
            self.event.synchronize()
        return self.tensor


def wait_for_device() -> None:
    """Wait for all that was launched on the GPU, if this process has used one; and before that, for a graph that is
    being recorded."""
    if torch.cuda.is_initialized():
        with RECORDING:
            torch.cuda.synchronize()


def peak_bytes(work: Callable[[], object], device: torch.device) -> int:
    """Most bytes of a GPU's memory that `work` takes, beside what is allocated before it."""
    with RECORDING:
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        work()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before


def who_else(device: torch.device) -> str:
    """A sentence to append, after a space: on a GPU, most often another notebook is there already. Else empty."""
    if device.type != "cuda":
        return ""
    return (
        " Another notebook or server on this GPU may hold the rest: `nvidia-smi` lists them; a notebook gives its "
        "memory back when its kernel is shut down"
    )


def let_go(error: BaseException | None) -> None:
    """Forget what the functions that an error came through had in hand: half a KV pool, say."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


@contextmanager
def memory_errors(device: torch.device, what: str, advice: str) -> Iterator[None]:
    """Turns running out of memory into words about what to do.

    Args:
        what: is to be put there.
        advice: a sentence without its full stop.
    Raises:
        OutOfMemoryError
    """
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        if not isinstance(error, (torch.OutOfMemoryError, MemoryError)) and OF_THE_HOST not in str(error):
            raise
        where = "GPU" if device.type == "cuda" else "machine"
        message = f"the {where} has no room for {what} ({first_line(error)}). {advice}.{who_else(device)}"
        raise OutOfMemoryError(message) from error


def first_line(error: BaseException) -> str:
    """What an error says, without the pages that some libraries add; its kind, if it says nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


@contextmanager
def kernel_errors() -> Iterator[None]:
    """Triton's errors in words about what to do: a kernel doesn't compile here, or a program of it wants more registers
    or shared memory than this GPU has.

    Raises:
        ConfigError
    """
    try:
        yield
    except Exception as error:
        if type(error).__module__.partition(".")[0] != "triton":  # by name: Triton isn't on every platform
            raise
        raise ConfigError(
            f"a kernel cannot run on this GPU ({first_line(error)}). Try attention_backend=sdpa, or fused_kernels=False"
        ) from error


def answers() -> bool:
    """Whether CUDA still works in this process, where it was ever used. Waiting for the device is the smallest call
    that repeats a lasting ("sticky") error, whichever library met it first."""
    try:
        wait_for_device()
    except RuntimeError:
        return False
    return True


@contextmanager
def device_errors() -> Iterator[None]:
    """Tells an error that a GPU recovers from (no memory left, a launch with a wrong argument) from one that it
    doesn't: after an illegal address, say, every call of the process fails, whatever it is about.

    Raises:
        DeviceLostError
    """
    try:
        yield
    except RuntimeError as error:
        if answers():
            raise
        raise DeviceLostError(f"the GPU is lost to this process ({first_line(error)}): start it again") from error
