"""The ways in which the model's numbers are kept, and a shelf that holds the model in each of them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from course.lab.lab import Lab
from course.lab.run import Run
from course.lab.workloads import Workload
from minillm import Engine
from minillm.core.errors import ConfigError


@dataclass(frozen=True)
class NumberFormat:
    """What is kept in how many bits."""

    rounded: str
    """What is rounded to which grid."""
    weights: dict[str, Any] = field(default_factory=dict)
    """Engine fields that decide the weights in memory."""
    kv: dict[str, Any] = field(default_factory=dict)
    """Engine fields that decide how keys and values are kept."""


PLAIN = "bf16"
FORMATS = {
    PLAIN: NumberFormat("nothing: as it came"),
    "int8": NumberFormat("weights; a scale for each output", {"quantization": "int8"}),
    "int4": NumberFormat("weights; a scale and an offset for 32 inputs", {"quantization": "int4"}),
    "int4 g64": NumberFormat(
        "weights; a scale and an offset for 64 inputs", {"quantization": "int4", "int4_group_size": 64}
    ),
    "KV int8": NumberFormat("keys and values; a scale for each token and head", kv={"kv_cache_dtype": "int8"}),
}


class Shelf:
    """One lab for each set of weights, so that formats can take turns: whatever disturbs the machine disturbs all.

    Loading a set takes a second or two, and happens when it is first asked for. Their runs take turns, too: the labs
    share a device, and what one measures beside another would be of both.

    Args:
        instead_of: closed before, if there is one: a cell that is run again leaves no weights behind.
    """

    def __init__(self, lab: Lab, *, instead_of: "Shelf | None" = None) -> None:
        if instead_of is not None:
            instead_of.close()
        self.lab = lab
        self._labs: dict[str, Lab] = {}
        self._reasons: dict[str, str | None] = {}

    def why_not(self, name: str) -> str | None:
        """Why this device has no kernels for a format; None = it has. Loads it, the first time."""
        if name not in self._reasons:
            try:
                self.engine(name)
                self._reasons[name] = None
            except ConfigError as error:
                self._reasons[name] = str(error)
        return self._reasons[name]

    def usable(self, names: Iterable[str]) -> list[str]:
        """Those of the formats that this device can run."""
        return [name for name in names if self.why_not(name) is None]

    def of(self, name: str) -> Lab:
        """The lab with this format's weights."""
        weights = FORMATS[name].weights
        if not weights:
            return self.lab
        if name not in self._labs:
            self._labs[name] = Lab(short=self.lab.scale < 1, **{**self.lab.defaults, **weights})
        return self._labs[name]

    def engine(self, name: str) -> Engine:
        """An engine of your own in this format, without traffic; step it while the shelf's lab is `alone`."""
        with self.lab.alone():
            return self.of(name).engine(**FORMATS[name].kv)

    def run(self, name: str, workload: Workload, **fields: Any) -> Run:
        """Play traffic to it, when no other format plays."""
        with self.lab.alone():
            return self.of(name).run(workload, **{**fields, **FORMATS[name].kv})

    def turns(self, workload: Workload, names: Sequence[str], **fields: Any) -> dict[str, list[Run]]:
        """The same traffic to each, round after round, every other round backwards."""
        found: dict[str, list[Run]] = {name: [] for name in names}
        for i in range(self.rounds):
            for name in names if i % 2 == 0 else reversed(names):
                found[name].append(self.run(name, workload, **fields))
        return found

    @property
    def rounds(self) -> int:
        """How often each format has its turn. By luck alone, all 5 runs of one kind beat all 5 of another in 1 of 126
        comparisons; 4 and 4 in 1 of 35."""
        return 5 if self.lab.scale == 1 else 4

    def close(self) -> None:
        """Let go of the weights, but not of the lab that was given."""
        for lab in self._labs.values():
            lab.close()
        self._labs.clear()
