"""The dumps. Each is a cause, a seed, and what somebody had looked at before they wrote it down."""

import difflib
import functools
from collections.abc import Callable
from dataclasses import dataclass, replace

from course.lab.incidents.causes import CAUSES, Case, Cause, Draw
from course.lab.incidents.causes.base import loaded, service
from course.lab.incidents.dumps.sums import Sums, sums_of, thirteen
from course.lab.incidents.generate import Hidden, IncidentError, generate_of
from course.lab.incidents.service import Play
from course.lab.incidents.trials import Trials
from course.lab.lesson_13 import claims as lesson_13

SEATS, TOKENS_A_STEP = 64, 768
"""Of the 13B: the dump does not tell; with these, gaps and TTFT are in its range where a server is full."""


def server_of_thirteen(draw: Draw) -> Case:
    """One server of the kind, and the share of the traffic that comes near to what it can do."""
    one = service(draw, lesson_13.TRAFFIC, houses=(("llama-2-13b", "a100-80gb", 2),), requests=240,
                  max_num_seqs=SEATS, max_num_batched_tokens=TOKENS_A_STEP)  # fmt: skip
    before = loaded(one, 0.55)
    return Case(before, before.with_load(1.75), "A server of the fleet was lost, and never came back")


THIRTEEN = replace(
    CAUSES["overload"],
    name="thirteen",
    title="a server that is asked for too much: every step of decoding also reads other people's prompts",
    make=server_of_thirteen,
    phase="decode",
    fixes=("trim_prompts", "double_fleet"),
    also=("queue",),
)


@dataclass(frozen=True)
class Dump:
    """One dump."""

    id: str
    title: str
    story: str
    cause: Cause
    shown: tuple[str, ...]
    """Ids of the questions that it answers."""
    seed: int = 0
    sums: Callable[[Play], Sums] = sums_of


DUMPS = (
    Dump(
        "13b", "13B on two A100s",
        "A well-known interview question gives five numbers and twelve minutes. They stand first; first see whether "
        "they can be true of one server. Below them: one such server, simulated, with as much of that traffic as "
        "makes it sick.",
        THIRTEEN, ("ttft_itl", "queue_over_time", "arrivals", "kv_use", "gpu"), sums=thirteen,
    ),
    Dump(
        "essays", "The essay tutor",
        "Students ask in one line, and get pages. Since Monday the tutor stops in the middle of a sentence, for "
        "seconds, and then goes on. Somebody wants a bigger batch, because the queue is not empty.",
        CAUSES["thrash"], ("ttft_itl", "phases", "queue_over_time", "kv_use", "preemptions", "output_lengths", "gpu"),
    ),
    Dump(
        "completions", "The code assistant after its beta",
        "In the beta, drafts made it feel instant. Now everybody has it, and it feels slower than without them. The "
        "proposer's team offers more draft tokens.",
        CAUSES["speculation_load"], ("ttft_itl", "phases", "batch", "acceptance", "decode_steps", "gpu"), seed=1,
    ),
    Dump(
        "helpdesk", "The help desk of four companies",
        "Each company has a long handbook in front of every question. Nothing was deployed but a small change to the "
        "template. The on-call engineer asks for a larger cache.",
        CAUSES["prefix_breaker"], ("ttft_itl", "phases", "arrivals", "hit_rate", "shared_prefix", "gpu"),
    ),
    Dump(
        "reader", "The reader's view",
        "Users say that text comes in slabs. The engine's own dashboard is green, so the ticket was closed twice.",
        CAUSES["proxy"], ("ttft_itl", "phases", "client_server", "batch", "output_lengths", "gpu"), seed=1,
    ),
    Dump(
        "push", "Nine minutes after the push message",
        "Every app got a message at once. By the time this was written it was over. The budget meeting is tomorrow, "
        "and a second machine is on its agenda.",
        CAUSES["burst"], ("ttft_itl", "phases", "arrivals", "queue_over_time", "kv_use", "gpu"),
    ),
)  # fmt: skip


def find_dump(name: object) -> Dump:
    """By its id.

    Raises:
        IncidentError: there is none.
    """
    known = {dump.id: dump for dump in DUMPS}
    if name not in known:
        close = difflib.get_close_matches(str(name), known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"choose from {', '.join(known)}"
        raise IncidentError(f"no dump {name!r}: {hint}")
    return known[name]


@functools.lru_cache(maxsize=len(DUMPS))
def drawn(name: str) -> tuple[Hidden, Trials]:
    """The incident behind a dump; drawn once."""
    dump = find_dump(name)
    return generate_of(dump.cause, dump.seed, difficulty=1)
