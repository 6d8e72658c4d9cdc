"""The child process in which grammars are tried: compiled, and followed for some tokens.

Native code that reads what a client sent may crash, or take for ever, or all memory. Here that ends this process and
nothing else. It is started as a script, with nothing but llguidance and the standard library, by grammar_trials.py.

Every trial runs in threads whose stacks are smaller than those of the engine's process, so that what doesn't overflow
here won't there: COMPILING's a quarter of the one that compiles there, WALKING's less than any thread of Python has by
default. And both sides have the same LIMITS, which llguidance counts in its own units and not in seconds: a mask or a
token that would exceed them is an error of that matcher.
"""

import ctypes
import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

LIMITS: dict[str, Any] = {
    "max_items_in_row": 2000,
    "initial_lexer_fuel": 1_000_000,
    "step_lexer_fuel": 200_000,
    "step_max_items": 5_000,
    "max_lexer_states": 250_000,
    "max_grammar_size": 500_000,
    "verbose_errors": False,
}
"""llguidance's defaults, but for a tenth of the parser's items: 20 ms for a mask at the worst. All answers that share a
lexer add to its states, about 100 bytes each: see grammar_matcher.py."""
ALLOWED_S, BURST_S = 0.002, 0.25
"""CPU seconds that a token's mask may take on average, and what all tokens together may take beyond that. Usual schemas
take 0.00001 to 0.0001; a regular expression that is met for the first time takes some ms once."""
OPTIONS = '%llguidance {"no_forcing": true}'
"""Without it llguidance writes out the text that a grammar forces, all of it for every token: a literal of 100 kB would
cost each step 20 ms. The last line of this kind in a grammar holds."""

COMPILING_STACK, WALKING_STACK = 4 << 20, 512 << 10
"""Bytes of stack that a trial may need."""
MEMORY = 1 << 29
"""Bytes that a trial may need beyond what this process has at its start."""
WALKS, STEPS, LONG_WALK = 4, 24, 400
"""How often a grammar is followed, for how many tokens, and for how many once: ambiguity costs more with each token."""
MAX_ERROR = 4000
"""Characters of a message: it quotes the grammar."""
GRACE_S = 2.0
"""After the deadline, if the parent has not ended it by then: it is gone, too."""


def compile_grammar(tokenizer: Any, text: str) -> Any:
    """A matcher at the beginning of a grammar in Lark's notation, with its first mask computed.

    Raises:
        ValueError: it is wrong, or nothing satisfies it.
    """
    from llguidance import LLMatcher, LLParserLimits

    grammar = LLMatcher.grammar_from_lark(f"{text}\n{OPTIONS}\n")
    matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=LLParserLimits(**LIMITS))
    begins = not matcher.is_error() and any(matcher.compute_bitmask())
    if not begins or matcher.is_error():
        raise ValueError(f"the grammar is wrong, or nothing satisfies it: {matcher.get_error()}")
    return matcher


class Meter:
    """CPU seconds that the masks of one request took beyond what its tokens are allowed. `with` it, a thread's time is
    counted: not the wall's, so that a busy machine fails no grammar.

    Args:
        clock: CPU seconds of the calling thread; None = the system's (WebAssembly has none, and no grammars).
    """

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        self._clock = clock or time.thread_time
        self._start = 0.0
        self.debt_s = 0.0

    def __enter__(self) -> None:
        self._start = self._clock()

    def __exit__(self, *_: object) -> None:
        self.debt_s += self._clock() - self._start

    def allow_token(self) -> None:
        """One more token has its mask."""
        self.debt_s = max(0.0, self.debt_s - ALLOWED_S)

    @property
    def is_exceeded(self) -> bool:
        """The request must end."""
        return self.debt_s > BURST_S


def walk(matcher: Any, seed: int, num_steps: int = STEPS, meter: Meter | None = None) -> None:
    """Follow a grammar for some tokens, whichever it allows.

    Raises:
        ValueError: its automaton outgrows the limits on the way, or its masks take too long.
    """
    choose = random.Random(seed)
    meter = meter or Meter()
    for _ in range(num_steps):
        with meter:
            mask = int.from_bytes(matcher.compute_bitmask(), "little")
        meter.allow_token()
        if meter.is_exceeded:
            raise ValueError("the grammar is too ambiguous to be followed: each token takes longer than the one before")
        start = choose.randrange(max(1, mask.bit_length()))
        allowed = mask >> start or mask
        token = (allowed & -allowed).bit_length() - 1 + (start if mask >> start else 0)
        if not mask or not matcher.consume_token(token) or matcher.is_stopped():
            break
    if matcher.is_error():
        raise ValueError(f"the grammar is too large to be followed: {matcher.get_error()}")


def in_thread(stack: int, work: Callable[[], Any]) -> Any:
    """Do it in a thread with so many bytes of stack. Returns what it returns, or raises what it raises."""
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.extend((work(), None))
        except BaseException as error:
            outcome.extend((None, error))

    threading.stack_size(stack)
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    result, error = outcome
    if error is not None:
        raise error
    return result


def to_lark(text: str) -> str:
    """A grammar in Lark's notation, or one in GBNF translated to it. Raises ValueError: it is neither."""
    from llguidance.gbnf_to_lark import any_to_lark

    try:
        return any_to_lark(text)
    except Exception as error:  # plain ones, too
        raise ValueError(f"it is read as GBNF, as no line begins with `start:`, and is wrong: {error}") from error


def attempt(tokenizer: Any, task: dict[str, Any]) -> dict[str, Any]:
    """Try one grammar. Returns its `text` in Lark's notation and the `bytes` that it takes, or an `error`."""
    before = resident_bytes()
    try:
        text = task["text"]
        if task["may_be_gbnf"]:
            text = in_thread(COMPILING_STACK, lambda: to_lark(text))
        matcher = in_thread(COMPILING_STACK, lambda: compile_grammar(tokenizer, text))
        for seed in range(WALKS):
            num_steps = STEPS if seed else LONG_WALK
            in_thread(WALKING_STACK, lambda: walk(matcher.deep_copy(), seed, num_steps))  # noqa: B023
    except MemoryError:
        os.abort()  # as llguidance does where it has no memory: the parent knows what that means
    except Exception as error:
        return {"error": str(error)[:MAX_ERROR] or type(error).__name__}
    return {"text": text, "bytes": max(0, resident_bytes() - before)}


def resident_bytes() -> int:
    """This process's memory; 0 where Linux doesn't say. What was freed has been given back first."""
    if not os.path.exists("/proc/self/statm"):
        return 0
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
    if trim is not None:
        trim(0)
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def limit_memory() -> None:
    """From here on an allocation beyond MEMORY fails, and llguidance then ends the process; it leaves no core file."""
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if os.path.exists("/proc/self/statm"):
        with open("/proc/self/statm") as file:
            most = int(file.read().split()[0]) * resource.getpagesize() + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def main() -> None:
    """Serve trials until the parent closes its end, or is gone."""
    from multiprocessing.connection import Connection

    from llguidance import LLTokenizer

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process of a terminal, and the parent decides
    os.nice(5)  # the engine goes first
    parent = Connection(int(sys.argv[1]))
    options = json.loads(parent.recv_bytes())
    tokenizer = LLTokenizer(parent.recv_bytes().decode(), **options)
    compile_grammar(tokenizer, 'start: "a"')  # so that what is imported late does not count for the first trial
    limit_memory()
    parent.send_bytes(b"ready")
    while True:
        try:
            task = json.loads(parent.recv_bytes())
        except (EOFError, OSError):
            return
        signal.setitimer(signal.ITIMER_PROF, task["cpu_s"])  # of all its threads; it ends the process
        signal.setitimer(signal.ITIMER_REAL, task["wall_s"] + GRACE_S)
        answer = json.dumps(attempt(tokenizer, task)).encode()
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        parent.send_bytes(answer)


if __name__ == "__main__":
    main()
