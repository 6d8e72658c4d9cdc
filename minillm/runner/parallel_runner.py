"""Tensor parallelism at run time: one process a rank, each with a TorchRunner on its part of the model.

Rank 0 is the engine's process, with scheduler, sampler and detokenizer. What it is about to compute it sends to the
others, and they all compute it; in the collectives of model/parallel.py they wait for each other. It sends through
pipes, not by a collective: a rank waits for work as long as there is none, and collectives have a timeout. And a pipe
ends when rank 0 does, however that came, so no rank outlives it.
"""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from minillm.core.batch import ScheduledBatch
from minillm.core.errors import ConfigError, DeviceLostError, MinillmError
from minillm.core.timeline import Clock, WallClock
from minillm.host.child import start_python
from minillm.host.device import wait_for_device
from minillm.model.checkpoints import load_model_config, resolve
from minillm.model.loader import choose_device, load_model
from minillm.model.parallel import Ranks, split
from minillm.policies.config import EngineConfig
from minillm.runner.batch_layout import HostBatch
from minillm.runner.torch_runner import TorchRunner

TIMEOUT = timedelta(minutes=10)
"""Longest that a rank waits for another in a collective: while weights are loaded, most of all. NCCL's own default."""


class ParallelRunner(TorchRunner):
    """Rank 0: starts the others, lets each load its part of the model, and takes them along in every step.

    Raises:
        ConfigError: the model cannot be divided like this, or there are fewer GPUs than ranks; and see TorchRunner.
        DeviceLostError: another rank failed; what it says is on standard error.
    """

    def __init__(self, config: EngineConfig, clock: Clock) -> None:
        size, device = config.tensor_parallel_size, choose_device(config.device)
        if device.type == "cuda" and (found := torch.cuda.device_count()) < size:
            raise ConfigError(f"tensor_parallel_size={size} wants a GPU for each rank, and PyTorch sees {found}")
        split(load_model_config(resolve(config.model)), size)  # before anything is started
        self.folder = tempfile.TemporaryDirectory()
        self.processes: list[subprocess.Popen[bytes]] = []
        self.pipes: list[Connection] = []
        self._finalizer = weakref.finalize(self, end_all, self.processes, os.getpid())
        with self.in_step():
            for rank in range(1, size):
                process, pipe = start_python("-m", __name__)
                self.processes.append(process)
                self.pipes.append(pipe)
                pipe.send((rank, config, self.folder.name))
            for pipe in self.pipes:
                pipe.recv()  # it has started
            model = load_model(config, meet(0, config, self.folder.name))
            if device.type == "cuda":
                threading.Thread(target=abort_when_one_ends, args=(self.pipes, model.ranks), daemon=True).start()
            super().__init__(model, config.for_device(device.type), clock)
        self.runs_beside_python = False  # a token that the host does not know yet is on rank 0's device only

    def forward(self, batch: HostBatch) -> Tensor:
        return self.on_all_ranks(super().forward, batch, replace(batch, scheduled=[], rows=[]))

    def copy_blocks(self, batch: ScheduledBatch) -> None:
        if batch.saves or batch.loads:
            copies = ScheduledBatch(batch.step_id, (), batch.saves, batch.loads)
            self.on_all_ranks(super().copy_blocks, copies, copies)

    def make_finite(self, block_ids: Sequence[int]) -> None:
        self.on_all_ranks(super().make_finite, block_ids, block_ids)

    def on_all_ranks(self, method: Callable[[Any], Any], ours: object, theirs: object) -> Any:
        """Call a method of TorchRunner on every rank, here with `ours`. Returns what it gives here."""
        with self.in_step():
            for pipe in self.pipes:
                pipe.send((method.__name__, theirs))
            return method(ours)

    @contextlib.contextmanager
    def in_step(self) -> Iterator[None]:
        """If a rank fails, or Ctrl-C comes in between, the ranks are out of step from there on: they are ended.

        Raises:
            DeviceLostError: a rank failed.
        """
        try:
            yield
            wait_for_device()  # a collective that was aborted leaves nonsense, which must not be sampled
            if any(process.poll() is not None for process in self.processes):
                raise ChildProcessError
        except BaseException as error:
            self.close()
            if isinstance(error, MinillmError) or not isinstance(error, Exception):
                raise
            raise DeviceLostError(
                "a rank of tensor parallelism is lost: start the engine again. What it said is on standard error "
                f"(here: {error!r})"
            ) from error

    def close(self) -> None:
        """End the other ranks, which hold nothing worth saving."""
        self._finalizer()


def end_all(processes: list[subprocess.Popen[bytes]], owner: int) -> None:
    """Kill these, and wait until they have ended; not at the end of a process that was forked off their owner."""
    if os.getpid() != owner:
        return
    for process in processes:  # all, before Ctrl-C can end a wait
        process.kill()
    for process in processes:
        process.wait()


def meet(rank: int, config: EngineConfig, folder: str) -> Ranks:
    """Become a rank: NCCL's among GPUs, gloo's among CPUs. Waits until all others do the same, in the same folder."""
    size = config.tensor_parallel_size
    store = dist.FileStore(f"{folder}/store", size)  # type: ignore[attr-defined]
    if choose_device(config.device).type == "cpu":
        return Ranks(rank, size, dist.ProcessGroupGloo(store, rank, size, TIMEOUT))
    torch.cuda.set_device(rank)
    return Ranks(rank, size, dist.ProcessGroupNCCL(store, rank, size, dist.ProcessGroupNCCL.Options()))


def work(calls: Connection) -> None:
    """What ranks 1, 2 and so on do: what rank 0 says, until it is gone."""
    rank, config, folder = calls.recv()
    torch.set_num_threads(max(1, torch.get_num_threads() // config.tensor_parallel_size))
    calls.send("started")
    model = load_model(config, meet(rank, config, folder))
    runner = TorchRunner(model, config.for_device(model.device.type), WallClock())
    with contextlib.suppress(EOFError), torch.inference_mode():
        while True:
            method, argument = calls.recv()
            getattr(runner, method)(argument)


def abort_when_one_ends(pipes: list[Connection], ranks: Ranks) -> None:
    """A GPU waits for a lost rank for ever, and so does what waits for the GPU, unless the collective is aborted."""
    wait(pipes)  # nothing else comes out of them
    ranks.group.abort()


def main() -> None:
    """`python -m minillm.runner.parallel_runner FD`: one rank, at the other end of rank 0's pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process of a terminal, and rank 0 decides
    work(Connection(int(sys.argv[1])))


if __name__ == "__main__":
    main()
