"""The drills, in the order in which they are listed.

<id>.toml      title, minutes, rubric and given numbers of a drill     ../texts/<id>.md   its prompt and sample answers
latency.py, memory.py, decoding.py, fleets.py, stacks.py   a function each, from what the prompt gives to what follows from it

In a file, `[given]` has the numbers of the prompt: a unit, and the options of which a seed draws one, the classic
first. Of what follows, `also_given` names what the prompt says too, and `tempting` what a popular wrong formula gives.
All else is the rubric, as drill.py describes it.
"""

import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from course.lab.drills.amounts import Amount
from course.lab.drills.drill import Draw, Drill, Numbers, Rubric, UnknownDrillError
from course.lab.drills.library import decoding, fleets, latency, memory, stacks

_FORMULAS = {
    name: each for module in (latency, memory, decoding, fleets, stacks) for name, each in vars(module).items()
}


def _read(drill_id: str) -> Drill:
    written = tomllib.loads((Path(__file__).parent / f"{drill_id}.toml").read_text(encoding="utf-8"))
    about = {name: written.pop(name) for name in ("title", "minutes", "phases")}
    options: dict[str, list[Any]] = written.pop("given")
    also_given, tempting = (written.pop(key, ()) for key in ("also_given", "tempting"))
    follow = _FORMULAS[drill_id.replace("-", "_")]

    def numbers(draw: Draw) -> Numbers:
        given = {name: Amount(draw(*values), unit) for name, (unit, *values) in options.items()}
        derived = follow(SimpleNamespace(**{name: amount.value for name, amount in given.items()}))
        given |= {name: derived.pop(name) for name in also_given}
        return Numbers(given, derived, {name: derived.pop(name) for name in tempting})

    return Drill(id=drill_id, numbers=numbers, rubric=Rubric.model_validate(written), **about)


_ALL_IDS = (
    "dump-13b", "p99-8s", "ttft-7s", "itl-250ms", "rag-broke-chat", "quantized-in-vain",
    "hit-rate-zero", "long-contexts", "shrink-the-kv", "growing-agents",
    "code-drafts", "chunk-size", "new-draft", "one-token",
    "why-not-gpus", "size-a-fleet", "tenfold-spike", "batch-beside-chat", "buy-hardware", "halve-the-cost",
    "slo-autocomplete", "dashboard", "load-test-lied", "choppy-stream",
    "split-pools", "moe-8-gpus", "kv-offload", "slow-json", "lora-tenants", "drafts-at-noon", "thinking-long", "hot-prefix",
)  # fmt: skip
UNCONVERTED = tuple(
    each for each in _ALL_IDS if "[rubric]" in (Path(__file__).parent / f"{each}.toml").read_text(encoding="utf-8")
)
"""Drills whose file is still in the old form."""
_IDS = tuple(each for each in _ALL_IDS if each not in UNCONVERTED)
ALL: tuple[Drill, ...] = tuple(map(_read, _IDS))
FLAGSHIP = "dump-13b"


def find_drill(name: str) -> Drill:
    """Raises UnknownDrillError, which names those there are."""
    for drill in ALL:
        if drill.id == name:
            return drill
    raise UnknownDrillError(f"there is no drill {name!r}; there are: {', '.join(drill.id for drill in ALL)}")
