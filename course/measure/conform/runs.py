"""Runs the checks one by one. Those of a scheduler have a process each: an engine that dies, or never ends, takes only
its check along."""

import multiprocessing
import os
import signal
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path

import httpx

from course.measure.conform.adapter import Adapter, AdapterError, LimitError, Limits, load_adapter, time_limit
from course.measure.conform.client import TIMEOUT_S, ServerUnderTest
from course.measure.conform.scheduling import SCHEDULING_CHECKS
from course.measure.conform.serving import SERVING_CHECKS
from course.measure.conform.trial import Trial
from course.measure.conform.verdict import CheckOutcome, CheckVerdict, ConformityError, NotOfferedError

TIME_LIMIT_S = 120.0
"""A check takes seconds."""
GRACE_S = 10.0
"""An engine that doesn't react to its time limit is ended so much later."""
DEPTH = 3
"""Calls that a report shows of an exception, the innermost first."""

CONFORM = Path(__file__).parent
PYTHON = "python"
"""Its library, among packages."""
PACKAGES = {
    **dict.fromkeys((sysconfig.get_path("purelib"), sysconfig.get_path("platlib")), ""),
    sysconfig.get_path("stdlib"): PYTHON,
}
"""Folders of installed code, the inner ones first, and whose they are where that isn't a file's first folder."""

Found = tuple[CheckOutcome, str, str, str]
"""An outcome with what was sent, expected and got."""


def outcome_of(run: Callable[[], None]) -> Found:
    """What came of one check. An exception of the engine's own is a crash: the loop that serves everybody has ended.

    Raises:
        AdapterError: it's the adapter that is wrong.
    """
    try:
        run()
    except AdapterError:
        raise
    except ConformityError as error:
        return CheckOutcome.FAIL, error.sent, error.expected, error.got
    except (NotImplementedError, NotOfferedError) as error:
        return CheckOutcome.SKIPPED, "", "", str(error)
    except httpx.TimeoutException as error:
        return CheckOutcome.FAIL, _notes(error), "an answer", f"none after {TIMEOUT_S:.0f} s"
    except httpx.ConnectError as error:
        return CheckOutcome.CRASH, _notes(error), "a server that listens", f"it's gone: {error}"
    except httpx.TransportError as error:
        return CheckOutcome.FAIL, _notes(error), "a whole answer", f"the server hung up: {error}"
    except LimitError as error:
        return CheckOutcome.FAIL, _notes(error), "an end", f"{error}; it was at {_place(error)}"
    except Exception as error:
        return CheckOutcome.CRASH, _notes(error), "", f"{type(error).__name__} at {_place(error)}: {error}".rstrip(": ")
    return CheckOutcome.PASS, "", "", ""


def _notes(error: Exception) -> str:
    """What the engine had been asked, as its trial noted it."""
    return "; ".join(getattr(error, "__notes__", ()))


def _place(error: Exception) -> str:
    """Where in the engine's code an exception was raised, or the time was up, and by whom that was called."""
    frames = traceback.extract_tb(error.__traceback__)
    innermost = (_engine_frames([*frames]) or frames)[::-1][:DEPTH]
    return " < ".join(f"{Path(each.filename).name}:{each.lineno} {each.name}" for each in innermost)


def _engine_frames(frames: list[traceback.FrameSummary]) -> list[traceback.FrameSummary]:
    """The calls within the adapter and its engine: those that the engine's author can change.

    What they have called of Python's library or another package is left out, and so is conform, whose signal handler
    or counting model may be the innermost.
    """
    frames = [each for each in frames if Path(each.filename).parent != CONFORM]
    adapter = frames[0].filename if frames else ""
    below = [_package(each.filename) for each in frames if each.filename != adapter]
    engine = next((package for package in below if package != PYTHON), "")
    return [each for each in frames if each.filename == adapter or _package(each.filename) == engine]


def _package(filename: str) -> str:
    """The installed package that a file belongs to, or PYTHON; nothing for a checkout."""
    for folder, name in PACKAGES.items():
        if Path(filename).is_relative_to(folder):
            return name or Path(filename).relative_to(folder).parts[0]
    return PYTHON if filename.startswith("<") else ""


def scheduling_verdicts(adapter: str, only: Sequence[str] = ()) -> Iterator[CheckVerdict]:
    """Run the checks of a scheduler on an adapter, a file or the name of a built-in one. The engine is imported here.

    Args:
        only: words; a check is run if its name has one of them. All are, by default.
    Raises:
        AdapterError: it can't be used.
    """
    make = load_adapter(adapter)
    outcome, *_, got = _in_a_process(lambda: _make_one(make))
    if outcome not in (CheckOutcome.PASS, CheckOutcome.SKIPPED):
        raise AdapterError(f"{adapter}: its Adapter can't be made with {Limits()}: {got}")
    for check in SCHEDULING_CHECKS:
        if not only or any(word in check.name for word in only):
            outcome, sent, expected, got = _in_a_process(partial(check.run, make))
            yield CheckVerdict(check.name, outcome, check.about, sent, expected, got, check.seen)


def _make_one(make: type[Adapter]) -> None:
    """Make an engine with the limits that most checks want."""
    Trial(make, Limits())


def serving_verdicts(client: ServerUnderTest, only: Sequence[str] = ()) -> Iterator[CheckVerdict]:
    """Run the checks of a server. One that stops answering fails the rest.

    Args:
        only: as for `scheduling_verdicts`.
    """
    for check in SERVING_CHECKS:
        if not only or any(word in check.name for word in only):
            outcome, sent, expected, got = outcome_of(partial(check.run, client))
            yield CheckVerdict(check.name, outcome, check.about, sent, expected, got, check.seen)


def _in_a_process(run: Callable[[], None]) -> Found:
    """What came of a check that runs in a process of its own. What the engine prints goes to standard error.

    Raises:
        AdapterError: as `outcome_of` does.
    """

    def limited() -> None:
        with time_limit(TIME_LIMIT_S, "the check"):
            run()

    def send() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's, which ends this process
        os.dup2(2, 1)  # an extension's
        with redirect_stdout(sys.stderr):
            try:
                theirs.send(outcome_of(limited))
            except AdapterError as error:
                theirs.send(error)

    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=send, daemon=True)
    process.start()
    theirs.close()
    try:
        if not ours.poll(TIME_LIMIT_S + GRACE_S):
            return CheckOutcome.FAIL, "", "an end", f"none after {TIME_LIMIT_S + GRACE_S:.0f} s"
        found: Found | AdapterError = ours.recv()
    except EOFError:
        process.join()
        return CheckOutcome.CRASH, "", "", f"the process ended with status {process.exitcode}"
    finally:
        process.kill()
        process.join()
    if isinstance(found, AdapterError):
        raise found
    return found
