"""Most bytes of tensors that exist at once inside a call."""

import weakref
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class PeakBytes(TorchDispatchMode):
    """Counts the bytes of tensors made inside it that live at the same time. A kernel's own scratch is not a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._seen = weakref.WeakSet[Any]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for given in tree_leaves((args, kwargs)):  # what was there before costs nothing
            if isinstance(given, Tensor) and given.untyped_storage() not in self._seen:
                self._seen.add(given.untyped_storage())
        for made in tree_leaves(result):
            if isinstance(made, Tensor) and made.untyped_storage() not in self._seen:
                self._count(made.untyped_storage())
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        size = storage.nbytes()
        self._seen.add(storage)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._freed, size)

    def _freed(self, size: int) -> None:
        self.now -= size
