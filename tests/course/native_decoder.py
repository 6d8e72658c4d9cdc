"""decoder.cpp compiled for this machine: the same C++, and the same sums, as in a tab."""

import ctypes
import subprocess
from array import array
from pathlib import Path

import numpy as np
import numpy.typing as npt

from course.tab.model.build import SOURCE

FLAGS = ("-std=c++17", "-O2", "-fPIC", "-shared", "-ffp-contract=off")
PADDING = 64
ROOM = 64_000_000


def compiled(compiler: str, folder: Path) -> Path:
    library = folder / "decoder.so"
    subprocess.run([compiler, *FLAGS, str(SOURCE), "-o", str(library)], check=True)
    return library


class NativeDecoder:
    """What a TabRunner wants, and the logits besides."""

    def __init__(self, library: Path, weights: bytes, vocab_size: int, room: int = ROOM) -> None:
        self._functions, self._vocab_size = ctypes.CDLL(str(library)), vocab_size
        for name, result, arguments in (
            ("start", ctypes.c_size_t, [ctypes.c_size_t] + [ctypes.c_int] * 5),
            ("step", ctypes.c_size_t, [ctypes.c_size_t]),
            ("likeliest", ctypes.c_int, [ctypes.c_int]),
            ("draw", ctypes.c_int, [ctypes.c_int, ctypes.c_float, ctypes.c_double]),
        ):
            function = getattr(self._functions, name)
            function.restype, function.argtypes = result, arguments
        self._memory = ctypes.create_string_buffer(len(weights) + room)
        self._file = -(-ctypes.addressof(self._memory) // PADDING) * PADDING
        self._size = len(weights)
        ctypes.memmove(self._file, weights, len(weights))
        self.logits: npt.NDArray[np.float32] = np.zeros((0, vocab_size), np.float32)

    def start(self, num_blocks: int, max_tokens: int, max_rows: int, max_context: int) -> None:
        end = self._functions.start(self._file, self._size, num_blocks, max_tokens, max_rows, max_context)
        assert end <= ctypes.addressof(self._memory) + len(self._memory)

    def step(self, batch: "array[int]") -> None:
        logits = self._functions.step(batch.buffer_info()[0])
        rows = (ctypes.c_float * (batch[1] * self._vocab_size)).from_address(logits)
        self.logits = np.array(rows, np.float32).reshape(batch[1], self._vocab_size)

    def likeliest(self, row: int) -> int:
        return self._functions.likeliest(row)

    def draw(self, row: int, temperature: float, uniform: float) -> int:
        return self._functions.draw(row, temperature, uniform)
