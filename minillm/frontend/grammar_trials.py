"""Tries grammars in child processes before this process compiles them: see grammar_worker.py.

A matcher can't be sent from one process to another. So what comes back is that the grammar compiles in time, in bounded
memory and with a small stack; then the same library compiles the same text here, with a larger stack.
"""

import json
import os
import signal
import subprocess
import threading
import time
import weakref
from collections.abc import Callable
from typing import NamedTuple

from minillm.core.errors import QueueFullError
from minillm.frontend import grammar_worker
from minillm.frontend.errors import GrammarTrialEndedError, InvalidGrammarError
from minillm.host.child import start_python

MAX_WORKERS = max(2, min(4, os.cpu_count() or 1))
"""Trials that run at the same time: one that takes until its deadline doesn't hold up the others."""
WALL_TIMES = 4
"""A deadline counts CPU time, since trials are niced and share the cores. After so many times as long by the wall's
clock a trial ends all the same."""
IDLE_S = 60.0
"""A worker that has had nothing to do for so long is ended, within twice that."""
PATIENCE = 4
"""Deadlines that a grammar waits for a free worker, at most."""
START_S = 60.0
"""Longest that a worker takes to start: it imports llguidance, and makes a trie of the vocabulary."""


class ClientLeftError(Exception):
    """The client that waited for the grammar has left: its trial has not begun."""


class Tried(NamedTuple):
    """What is known of a grammar that passed."""

    text: str
    """The grammar, in Lark's notation."""
    num_bytes: int
    """That it takes, compiled and followed for some tokens."""


class TokenizerSpec(NamedTuple):
    """What llguidance's tokenizer is made from, here and in a worker."""

    json: bytes
    """The tokenizer, as in tokenizer.json."""
    vocab_size: int | None
    eos_token_ids: list[int]


class Worker:
    """One child process that tries grammars. Belongs to one thread at a time.

    Raises:
        RuntimeError: it does not start.
    """

    def __init__(self, spec: TokenizerSpec) -> None:
        self._process, self._pipe = start_python(
            grammar_worker.__file__,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,  # a stack overflow says so there: that is no news
            start_new_session=True,  # Ctrl-C in the terminal does not reach it
        )
        self.idle_since = 0.0
        """Seconds, of time.monotonic()."""
        self._owner = os.getpid()
        try:
            options = {"n_vocab": spec.vocab_size, "eos_token": spec.eos_token_ids or None}
            self._pipe.send_bytes(json.dumps(options).encode())
            self._pipe.send_bytes(spec.json)
            self._receive(START_S)
        except (EOFError, OSError):
            self.close()
            raise RuntimeError("the process in which grammars are tried does not start") from None

    @property
    def is_alive(self) -> bool:
        """False once it has ended, or in a process that was forked off the one that started it."""
        return self._owner == os.getpid() and self._process.poll() is None

    def run(self, text: str, may_be_gbnf: bool, timeout_s: float) -> Tried:
        """Try a grammar, for so many seconds of CPU time. After a crash, or at the deadline, this worker has ended.

        Raises:
            InvalidGrammarError: it is wrong, or exceeds a limit.
            GrammarTrialEndedError: this worker has ended with it.
        """
        wall_s = WALL_TIMES * timeout_s
        task = {"text": text, "may_be_gbnf": may_be_gbnf, "cpu_s": timeout_s, "wall_s": wall_s}
        try:
            self._pipe.send_bytes(json.dumps(task).encode())
            answer = json.loads(self._receive(wall_s))
        except (EOFError, OSError) as error:
            self.close()
            is_late = isinstance(error, TimeoutError)
            raise GrammarTrialEndedError(self._why_it_ended(is_late, timeout_s)) from None
        if "error" in answer:
            raise InvalidGrammarError(answer["error"])
        return Tried(answer["text"], answer["bytes"])

    def _receive(self, seconds: float) -> bytes:
        """What the child says next. Raises TimeoutError, or EOFError where it has ended."""
        if not self._pipe.poll(seconds):
            raise TimeoutError
        return self._pipe.recv_bytes()

    def close(self) -> None:
        """End the child, and wait until it has ended. For the thread that this worker belongs to."""
        self.end()
        self._pipe.close()

    def end(self) -> None:
        """End the child, from any thread: one that waits for its answer finds that none will come."""
        if self._owner == os.getpid():
            self._process.kill()
            self._process.wait()

    def _why_it_ended(self, is_late: bool, timeout_s: float) -> str:
        code = self._process.returncode
        if is_late or code in (-signal.SIGALRM, -signal.SIGPROF):
            return (
                f"it takes longer than {timeout_s:g} s of CPU time to compile: make it smaller or less nested, or ask "
                "the operator to raise --grammar-timeout"
            )
        if code == -signal.SIGKILL:
            return "the process that tried it was killed from outside: is the machine out of memory? Try again"
        if code == -signal.SIGABRT:
            return f"it takes more than {grammar_worker.MEMORY >> 20} MB to compile: make it smaller or less nested"
        return "the grammar library crashes on it: nest less, and refer less from one rule or schema to the next"


class Trials:
    """Up to MAX_WORKERS workers, each started when all others are busy. Any thread may use it.

    Args:
        spec: what their tokenizers are made from; asked for when a worker starts.
        timeout_s: CPU seconds of one trial, at most. Neither a worker's start nor the wait for a free one counts.
    """

    def __init__(self, spec: Callable[[], TokenizerSpec], timeout_s: float) -> None:
        self._spec, self.timeout_s = spec, timeout_s
        self._idle: list[Worker] = []
        self._all: set[Worker] = set()
        self._free = threading.BoundedSemaphore(MAX_WORKERS)
        self._changing = threading.Lock()
        self._is_closed = False
        self._is_watched = False
        """A timer runs that ends the workers that have nothing to do."""
        self.num_deaths = 0
        """Workers that a grammar ended, by a crash or by its deadline."""
        self._finalizer = weakref.finalize(self, _end_all, self._all)

    def run(self, text: str, may_be_gbnf: bool = False, has_left: Callable[[], bool] = lambda: False) -> Tried:
        """Try a grammar.

        Raises:
            InvalidGrammarError: it failed, or this is closed.
            ClientLeftError: `has_left()` when a worker was free.
            QueueFullError: all workers are busy, and stay so for some deadlines.
            RuntimeError: no worker starts.
        """
        if not self._free.acquire(timeout=PATIENCE * self.timeout_s):
            raise QueueFullError("too many grammars are being compiled: try again later")
        try:
            if has_left():
                raise ClientLeftError
            worker = self._take()
            try:
                return worker.run(text, may_be_gbnf, self.timeout_s)
            finally:
                self._give_back(worker)
        finally:
            self._free.release()

    def close(self) -> None:
        """End the workers. Trials that run fail, and so do later ones."""
        with self._changing:
            self._is_closed = True
        self._finalizer()

    def end_idle(self, idle_s: float = IDLE_S) -> None:
        """End the workers that have had nothing to do for so many seconds."""
        latest = time.monotonic() - idle_s
        with self._changing:
            ended = [worker for worker in self._idle if worker.idle_since <= latest]
            self._idle = [worker for worker in self._idle if worker.idle_since > latest]
            self._all.difference_update(ended)
            self._is_watched = False
            if self._idle:
                self._watch_idle()
        for worker in ended:
            worker.close()

    def _watch_idle(self) -> None:
        if not self._is_watched:
            self._is_watched = True
            timer = threading.Timer(IDLE_S, _end_idle, [weakref.ref(self)])
            timer.daemon = True
            timer.start()

    def _take(self) -> Worker:
        with self._changing:
            if self._is_closed:
                raise InvalidGrammarError("this engine is closed: make another")
            while self._idle:
                worker = self._idle.pop()
                if worker.is_alive:
                    return worker
                self._all.discard(worker)  # it was killed from outside, or belongs to the process this was forked off
        worker = Worker(self._spec())
        with self._changing:
            self._all.add(worker)
        return worker

    def _give_back(self, worker: Worker) -> None:
        with self._changing:
            if worker.is_alive and not self._is_closed:
                worker.idle_since = time.monotonic()
                self._idle.append(worker)
                self._watch_idle()
                return
            self._all.discard(worker)
            self.num_deaths += not self._is_closed
        worker.close()


def _end_idle(trials: "weakref.ref[Trials]") -> None:
    alive = trials()
    if alive is not None:
        alive.end_idle()


def _end_all(workers: set[Worker]) -> None:
    for worker in list(workers):
        worker.end()
    workers.clear()
