"""Tries grammars in child processes before this process compiles them: see grammar_worker.py.

A matcher can't be sent from one process to another. So what comes back is that the grammar compiles in time, in bounded
memory and with a small stack; then the same library compiles the same text here, with a larger stack.
"""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterable
from multiprocessing import Pipe
from typing import NamedTuple

from minillm.core.errors import QueueFullError
from minillm.frontend import grammar_worker
from minillm.frontend.errors import GrammarTrialEndedError, InvalidGrammarError

MAX_WORKERS = max(2, min(4, os.cpu_count() or 1))
"""Trials that run at the same time: one that takes until its deadline doesn't hold up the others."""
WALL_TIMES = 4
"""A deadline counts CPU time, since trials are niced and share the cores. After so many times as long by the wall's
clock a trial ends all the same."""
IDLE_S = 60.0
"""A worker that has had nothing to do for so long ends."""
PATIENCE = 4
"""Deadlines that a grammar waits for a free worker, at most."""
START_S = 60.0
"""Longest that a worker takes to start: it imports llguidance, and makes a trie of the vocabulary."""


class ClientLeftError(Exception):
    """The client that waited for the grammar has left: its trial has not begun."""


class TokenizerSpec(NamedTuple):
    """What llguidance's tokenizer is made from, here and in a worker."""

    json: bytes
    """The tokenizer, as in tokenizer.json."""
    vocab_size: int | None
    eos_token_ids: list[int]


class Worker:
    """A child process that tries grammars, one at a time. It's started when it's needed, and again if it has ended: by
    itself, when it has had nothing to do for a while, or with a grammar that it didn't survive.

    Args:
        idle_s: how long it waits for the next one, seconds.
    """

    def __init__(self, idle_s: float = IDLE_S) -> None:
        self._idle_s = idle_s
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = os.getpid()
        """The process that started it: one that was forked off needs a child of its own."""
        self._changing = threading.Lock()
        self._is_closed = False
        self.num_deaths = 0
        """Children that a grammar ended, by a crash or by its deadline."""

    def run(self, spec: Callable[[], TokenizerSpec], text: str, may_be_gbnf: bool, timeout_s: float) -> str:
        """Try a grammar, for so many seconds of CPU time. Returns it in Lark's notation. For one thread at a time.

        Raises:
            InvalidGrammarError: it is wrong, or exceeds a limit, or this is closed.
            GrammarTrialEndedError: the child has ended with it.
            RuntimeError: no child starts.
        """
        if not self._is_alive:
            self._start(spec())
        wall_s = WALL_TIMES * timeout_s
        task = {"text": text, "may_be_gbnf": may_be_gbnf, "cpu_s": timeout_s, "wall_s": wall_s}
        try:
            self._pipe.send_bytes(json.dumps(task).encode())
            answer = json.loads(self._receive(wall_s))
        except (EOFError, OSError) as error:
            status = self._end()
            if status == 0:  # it had just left for want of work
                return self.run(spec, text, may_be_gbnf, timeout_s)
            self.num_deaths += not self._is_closed
            raise GrammarTrialEndedError(why_it_ended(status, isinstance(error, TimeoutError), timeout_s)) from None
        if "error" in answer:
            raise InvalidGrammarError(answer["error"])
        return answer["text"]

    def close(self) -> None:
        """End the child for good, from any thread: one that waits for its answer finds that none will come."""
        with self._changing:
            self._is_closed = True
            self._end()

    @property
    def _is_alive(self) -> bool:
        return self._process is not None and self._owner == os.getpid() and self._process.poll() is None

    def _start(self, spec: TokenizerSpec) -> None:
        ours, theirs = Pipe()
        with theirs, self._changing:
            self._check_open()
            self._pipe, self._owner = ours, os.getpid()
            self._process = subprocess.Popen(
                [sys.executable, "-P", grammar_worker.__file__, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,  # a stack overflow says so there: that is no news
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C in the terminal does not reach it
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        try:
            options = {"n_vocab": spec.vocab_size, "eos_token": spec.eos_token_ids or None}
            ours.send_bytes(json.dumps({"idle_s": self._idle_s, "tokenizer": options}).encode())
            ours.send_bytes(spec.json)
            self._receive(START_S)
        except (EOFError, OSError):
            self._end()
            self._check_open()  # else it was ended by `close`
            raise RuntimeError("the process in which grammars are tried does not start") from None

    def _check_open(self) -> None:
        if self._is_closed:
            raise InvalidGrammarError("this engine is closed: make another")

    def _receive(self, seconds: float) -> bytes:
        """What the child says next. Raises TimeoutError, or EOFError where it has ended."""
        if not self._pipe.poll(seconds):
            raise TimeoutError
        return self._pipe.recv_bytes()

    def _end(self) -> int:
        """End the child, if it is this process's, and wait until it has ended. Returns its exit status."""
        if self._process is None or self._owner != os.getpid():
            return 0
        self._process.kill()
        return self._process.wait()


def why_it_ended(status: int, is_late: bool, timeout_s: float) -> str:
    """What the exit status of a child says about the grammar that it tried."""
    if is_late or status in (-signal.SIGALRM, -signal.SIGPROF):
        return (
            f"it takes longer than {timeout_s:g} s of CPU time to compile: make it smaller or less nested, or ask "
            "the operator to raise --grammar-timeout"
        )
    if status == -signal.SIGKILL:
        return "the process that tried it was killed from outside: is the machine out of memory? Try again"
    if status == -signal.SIGABRT:
        return f"it takes more than {grammar_worker.MEMORY >> 20} MB to compile: make it smaller or less nested"
    return "the grammar library crashes on it: nest less, and refer less from one rule or schema to the next"


class Trials:
    """Up to MAX_WORKERS trials at the same time. Any thread may use it.

    Args:
        spec: what the workers' tokenizers are made from; asked for when a child starts.
        timeout_s: CPU seconds of one trial, at most. Neither a child's start nor the wait for a free worker counts.
    """

    def __init__(self, spec: Callable[[], TokenizerSpec], timeout_s: float) -> None:
        self._spec, self.timeout_s = spec, timeout_s
        self.workers = [Worker() for _ in range(MAX_WORKERS)]
        self._free: queue.LifoQueue[Worker] = queue.LifoQueue()
        """The last to be used is the next: others start only when it is busy, and end when they are idle."""
        for worker in self.workers:
            self._free.put(worker)
        self._finalizer = weakref.finalize(self, close_all, self.workers)

    @property
    def num_deaths(self) -> int:
        """Children that a grammar ended."""
        return sum(worker.num_deaths for worker in self.workers)

    def run(self, text: str, may_be_gbnf: bool = False, has_left: Callable[[], bool] = lambda: False) -> str:
        """Try a grammar. Returns it in Lark's notation.

        Raises:
            InvalidGrammarError: it failed, or this is closed.
            ClientLeftError: `has_left()` when a worker was free.
            QueueFullError: all workers are busy, and stay so for some deadlines.
            RuntimeError: no child starts.
        """
        try:
            worker = self._free.get(timeout=PATIENCE * self.timeout_s)
        except queue.Empty:
            raise QueueFullError("too many grammars are being compiled: try again later") from None
        try:
            if has_left():
                raise ClientLeftError
            return worker.run(self._spec, text, may_be_gbnf, self.timeout_s)
        finally:
            self._free.put(worker)

    def close(self) -> None:
        """End the workers. Trials that run fail, and so do later ones."""
        self._finalizer()


def close_all(workers: Iterable[Worker]) -> None:
    """End the workers."""
    for worker in workers:
        worker.close()
