"""Between host and device without waiting for each other.

A copy from ordinary memory makes the host wait until the device has caught up with everything it was
given before, which would undo asynchronous scheduling. From pinned memory it is queued like a kernel.
PyTorch keeps freed pinned memory until the copies out of it are done, so it can be let go of at once.
"""

import numpy as np
import torch
from torch import Tensor


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
