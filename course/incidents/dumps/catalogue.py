"""The dumps. Each is a cause, a seed, and the questions that had been asked before it was written down."""

import functools
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from course.incidents.causes import CAUSES, Case, Cause, Draw
from course.incidents.causes.base import loaded, service
from course.incidents.dumps.sums import Sums, sums_of, thirteen
from course.incidents.generate import Hidden, generate_of, look_up
from course.incidents.outcome import ServiceTrials
from course.incidents.service import ServicePlay
from course.lessons.lesson_13 import run as lesson_13

SLOTS, TOKENS_A_STEP = 64, 768
"""The limits of the 13B server, which the dump doesn't name: with these, a full server has its ITL and TTFT."""


def server_of_thirteen(draw: Draw) -> Case:
    """One server of the kind, and the share of the traffic that comes near to what it can do."""
    one = service(
        draw,
        lesson_13.TRAFFIC,
        machines=(("llama-2-13b", "a100-80gb", 2),),
        requests=240,
        max_num_seqs=SLOTS,
        max_num_batched_tokens=TOKENS_A_STEP,
    )
    before = loaded(one, 0.55)
    return Case(before, before.with_load(1.75), "A server of the fleet was lost, and never came back")


THIRTEEN = replace(
    CAUSES["overload"],
    name="thirteen",
    title="a server that is asked for too much: every decode step also prefills other requests' prompts",
    make=server_of_thirteen,
    phase="decode",
    fixes=("double_fleet", "trim_prompts"),
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
    sums: Callable[[ServicePlay], Sums] = sums_of


def _dumps() -> Iterator[Dump]:
    for name, written in tomllib.loads(Path(__file__).with_name("dumps.toml").read_text(encoding="utf-8")).items():
        cause = {**CAUSES, THIRTEEN.name: THIRTEEN}[written.pop("cause")]
        shown = tuple(written.pop("shown"))
        yield Dump(name, cause=cause, shown=shown, sums=thirteen if cause is THIRTEEN else sums_of, **written)


DUMPS = tuple(_dumps())


def find_dump(name: object) -> Dump:
    """By its id.

    Raises:
        IncidentError: there is none.
    """
    return look_up("dump", name, {dump.id: dump for dump in DUMPS})


@functools.lru_cache(maxsize=len(DUMPS))
def drawn(name: str) -> tuple[Hidden, ServiceTrials]:
    """The incident behind a dump; drawn once."""
    dump = find_dump(name)
    return generate_of(dump.cause, dump.seed, difficulty=1)
