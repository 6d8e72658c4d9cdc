"""What to say when a device has no room: on a GPU, most often another notebook is there already."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from minillm.core.errors import OutOfMemoryError

OF_THE_HOST = "can't allocate memory"
"""PyTorch's words, in a plain RuntimeError."""


def who_else(device: torch.device) -> str:
    """A sentence to append, after a space; empty where nobody else is to be suspected."""
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
        said = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise OutOfMemoryError(f"the {where} has no room for {what} ({said}). {advice}.{who_else(device)}") from error
