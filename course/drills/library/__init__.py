"""The drills, in the order in which they are listed.

<id>.toml     title, minutes, numbers and rubric of a drill     ../texts/<id>.md   its prompt and sample answers
formulas.py   what the formulas of `[derived]` may use

In a file, `[given]` has the numbers of the prompt: a unit, and the options of which a seed draws one, the classic
first. `[derived]` has what follows from them: a unit and a formula, or a formula alone for a step on the way. Of that,
`also_given` names what the prompt says too, and `[tempting]` what a popular wrong formula gives, with what is wrong in
it. `round` and `level` say in which interview it would be put and whom it tells apart, `source` a published question
that it is close to. All else is the rubric, as drill.py describes it.
"""

import tomllib
from pathlib import Path
from typing import Any

from course.drills.amounts import Amount
from course.drills.drill import Drill, Numbers, PromptDraw, Rubric, UnknownDrillError
from course.drills.library.formulas import derived


def _read(drill_id: str) -> Drill:
    written = tomllib.loads((Path(__file__).parent / f"{drill_id}.toml").read_text(encoding="utf-8"))
    about = {name: written.pop(name) for name in ("title", "minutes", "phases", "round", "level")}
    about["source"] = written.pop("source", "")
    options: dict[str, list[Any]] = written.pop("given")
    also_given, tempting = written.pop("also_given", ()), tuple(written.get("tempting", ()))
    formulas = written.pop("derived")

    def numbers(draw: PromptDraw) -> Numbers:
        given = {name: Amount(draw(*values), unit) for name, (unit, *values) in options.items()}
        follows, names = derived({name: amount.value for name, amount in given.items()}, formulas)
        given |= {name: follows.pop(name) for name in also_given}
        return Numbers(given, follows, {name: follows.pop(name) for name in tempting}, names)

    return Drill(id=drill_id, numbers=numbers, rubric=Rubric.model_validate(written), **about)


_IDS = (
    "dump-13b",
    "p99-8s",
    "ttft-7s",
    "itl-250ms",
    "rag-broke-chat",
    "quantized-in-vain",
    "hit-rate-zero",
    "long-contexts",
    "shrink-the-kv",
    "growing-agents",
    "code-drafts",
    "chunk-size",
    "new-draft",
    "one-token",
    "why-not-gpus",
    "size-a-fleet",
    "tenfold-spike",
    "batch-beside-chat",
    "buy-hardware",
    "halve-the-cost",
    "slo-autocomplete",
    "dashboard",
    "load-test-lied",
    "choppy-stream",
    "split-pools",
    "moe-8-gpus",
    "kv-offload",
    "slow-json",
    "lora-tenants",
    "drafts-at-noon",
    "thinking-long",
    "hot-prefix",
)
ALL: tuple[Drill, ...] = tuple(map(_read, _IDS))
FLAGSHIP = "dump-13b"


def find_drill(name: str) -> Drill:
    """By its id, or its number in the list. Raises UnknownDrillError, which names those there are."""
    for number, drill in enumerate(ALL, 1):
        if name in (drill.id, f"{number}"):
            return drill
    raise UnknownDrillError(
        f"there is no drill {name!r}; there are 1 to {len(ALL)}, or by id: {', '.join(drill.id for drill in ALL)}"
    )


def number_of(drill: Drill) -> int:
    """Its place in the list, from 1: a name that tells nothing of its topic."""
    return ALL.index(drill) + 1
