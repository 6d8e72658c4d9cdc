"""Runs the map's pairs, says what each did to each phase, and stores it.

python -m course.lab.phase_map.measure                     every row, stored in course/data/measured/
python -m course.lab.phase_map.measure "prefix caching"    one row, stored among the others
"""

import argparse
import json
import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
from pydantic import TypeAdapter

from course.lab import simulated_70b
from course.lab.build import COURSE
from course.lab.lab import Lab
from course.lab.phase_map.techniques import ROWS, EnginePair, Pair, Setting, Technique
from course.lab.run import Run, percentile
from course.lab.style import number
from course.lab.workloads import LabWorkload, PromptArrival
from course.simulator.cluster.fleet import ClusterConfig, simulate
from course.simulator.report import engines_for
from course.summary import summarize
from minillm.core.brief import brief
from minillm.core.timeline import PHASES

STORED = COURSE / "data" / "measured" / "map_phases_and_techniques.json"
COMMAND = "python -m course.lab.phase_map.measure"
OF_ITSELF, OF_WHOLE = 0.1, 0.05
"""A phase has moved if it changed by a tenth of itself, and by a twentieth of what it is a part of: of TTFT for queue,
prefill and first token, of the end-to-end time for decode and stream. Less is nothing."""
FEWER_IN_TIME = 0.02
"""A change of the share of requests served in time that counts."""
SLO_S = 2.0
"""Most seconds to the first token."""
OF_TTFT = PHASES[:3]
ROUNDS = 5
"""Runs of each side of a pair on the real engine, taking turns; the fastest of each phase counts."""


@dataclass(frozen=True)
class Side:
    """One run of a pair."""

    phases: dict[str, float]
    """Mean seconds a request, of those that got their whole answer."""
    in_time: float
    """The share of all requests that had a first token within SLO_S."""
    worst_gap: float
    """p99 of the gaps between tokens, all requests pooled, seconds."""

    @property
    def e2e(self) -> float:
        return sum(self.phases.values())


@dataclass(frozen=True)
class MeasuredPair:
    """A pair: the same traffic without and with a technique."""

    words: str
    where: str
    """What it ran on."""
    without: Side
    with_it: Side

    def effect(self, phase: str) -> str:
        """ "helps" if the technique shortened it, "hurts" if it made it longer, "nothing" if neither was much.

        Args:
            phase: one of PHASES; "e2e" for their sum; "worst_gap"; "in_time" for the share served in time.
        """
        if phase == "in_time":
            gained = self.with_it.in_time - self.without.in_time
            return "nothing" if abs(gained) < FEWER_IN_TIME else "helps" if gained > 0 else "hurts"
        was, now = self.seconds(phase)
        if abs(now - was) <= max(OF_ITSELF * was, OF_WHOLE * self._whole(phase)):
            return "nothing"
        return "helps" if now < was else "hurts"

    def seconds(self, phase: str) -> tuple[float, float]:
        """Without, and with it."""
        sides = (self.without, self.with_it)
        return tuple(side.phases[phase] if phase in PHASES else getattr(side, phase) for side in sides)

    def _whole(self, phase: str) -> float:
        """What a phase is a part of, without the technique, seconds."""
        if phase == "worst_gap":
            return self.without.worst_gap
        return sum(self.without.phases[p] for p in OF_TTFT) if phase in OF_TTFT else self.without.e2e


@dataclass(frozen=True)
class MapRow:
    """A technique's line on the map."""

    name: str
    knob: str
    lesson: str
    heading: str
    helps: MeasuredPair
    hurts: MeasuredPair
    again: dict[str, Any] | None = None
    """The provenance of this row alone, if it was measured at another time than the map."""


@dataclass(frozen=True)
class PhaseMap:
    rows: tuple[MapRow, ...]
    provenance: dict[str, Any]
    """device, versions, date, command, and what the simulated hardware's constants rest on."""

    __repr__ = brief

    def measured_again(self, rows: Sequence[MapRow]) -> "PhaseMap":
        """With these rows of here and now in place of their namesakes; what the others rest on stays."""
        new = {row.name: replace(row, again=provenance()) for row in rows}
        return replace(self, rows=tuple({**{row.name: row for row in self.rows}, **new}.values()))

    @classmethod
    def stored(cls, path: Path = STORED) -> "PhaseMap":
        """The map as it was measured last."""
        return TypeAdapter(cls).validate_json(path.read_bytes())

    def store(self, path: Path = STORED) -> None:
        rows = [{name: value for name, value in asdict(row).items() if value is not None} for row in self.rows]
        text = json.dumps({"provenance": self.provenance, "rows": rows}, indent=1)
        path.write_text(text + "\n", encoding="utf-8")


def simulated(pair: Pair) -> MeasuredPair:
    """A pair on the simulator. The same every time."""
    where = f"{simulated_70b.MODEL} on simulated {simulated_70b.HARDWARE}"
    if profile := pair.without.fields.get("profile"):
        where = where.replace(simulated_70b.HARDWARE, profile)
    return MeasuredPair(pair.words, where, _played(pair, pair.without), _played(pair, pair.with_it))


def _played(pair: Pair, setting: Setting) -> Side:
    on, config = simulated_70b.deployment(**setting.fields), ClusterConfig(sample_every_s=None, **setting.fleet)
    traffic = (setting.traffic or pair.traffic)()
    if traffic.shares_nothing and config.disaggregation is None:
        traffic, on = traffic.anonymous(), on.without_prefix_lookups()
    records = [record for record in simulate(traffic, config, engines_for(on, config)).records if pair.judged(record)]
    done = [record.as_request_record() for record in records if record.completed]
    phases = summarize(done).phases
    gaps = [gap for record in done for gap in record.timeline.itl]
    return Side(
        {phase: round(phases[phase].mean or 0.0, 6) for phase in PHASES},
        round(sum(record.timeline.ttft <= SLO_S for record in done) / len(records), 4),
        round(percentile(gaps, 99) or 0.0, 6),
    )


def on_the_engine(lab: Lab, pair: EnginePair) -> MeasuredPair:
    """A pair on the real engine: both sides in turns, so that a machine that drifts drifts under both."""
    prompt = [2 + (7 * i) % 9973 for i in range(pair.prompt_tokens)]  # any tokens: what is said costs nothing
    one = LabWorkload("one prompt", "", (PromptArrival(0.0, prompt, 8),))
    common = {"enable_prefix_caching": False, "max_num_batched_tokens": 2048, "num_kv_blocks": 160, "dtype": "float32"}
    taken: dict[str, list[Run]] = {"without": [], "with_it": []}
    for _ in range(ROUNDS):
        for side, fields in (("without", pair.without), ("with_it", pair.with_it)):
            taken[side].append(lab.run(one, **common, **fields))
    sides = {side: _fastest(runs) for side, runs in taken.items()}
    return MeasuredPair(pair.words, f"{lab.config().model} on a real engine", **sides)


def _fastest(runs: Sequence[Run]) -> Side:
    """The fastest of each phase: whatever else a machine does can only slow it down."""
    phases = [run.mean_phases() for run in runs]
    in_time = max(sum(ttft <= SLO_S for ttft in run.ttft) / len(run.rows) for run in runs)
    gap = min(percentile(run.itl, 99) or 0.0 for run in runs)
    return Side({phase: round(min(each[phase] for each in phases), 6) for phase in PHASES}, in_time, round(gap, 6))


def measure(row: Technique, lab: Lab) -> MapRow:
    """Both pairs of a technique."""

    def run(pair: Pair | EnginePair) -> MeasuredPair:
        return simulated(pair) if isinstance(pair, Pair) else on_the_engine(lab, pair)

    return MapRow(row.name, row.knob, row.lesson, row.heading, run(row.helps), run(row.hurts))


def measure_all(lab: Lab, rows: Sequence[Technique] = ROWS, say: Callable[[str], None] = lambda _: None) -> PhaseMap:
    """Every row, anew. Takes about a minute."""
    found = []
    for row in rows:
        say(row.name)
        found.append(measure(row, lab))
    return PhaseMap(tuple(found), provenance())


def provenance() -> dict[str, Any]:
    """Where and when, and what the simulated hardware rests on."""
    return {
        "device": f"{platform.machine()}, {psutil.cpu_count(logical=False)} cores, {platform.system()}",
        "versions": {"python": platform.python_version(), **{n: version(n) for n in ("minillm", "torch", "numpy")}},
        "date": datetime.now(UTC).date().isoformat(),
        "command": COMMAND,
        "simulated": {name: _source_of(name) for name in (simulated_70b.HARDWARE,)},
    }


def _source_of(hardware: str) -> str:
    """Where the constants behind a simulation come from."""
    provenance = simulated_70b.deployment(profile=hardware).profile.provenance
    return provenance.get("source", "typical constants, which have not been measured")


def _told(pair: MeasuredPair, what: str) -> str:
    was, now = pair.seconds(what)
    return f"{what} {pair.effect(what)} {number(was)} to {number(now)}"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog=COMMAND, description="Measure the map of phases and techniques.")
    parser.add_argument("name", nargs="?", default="", help="only techniques whose name holds this")
    name = parser.parse_args(arguments).name
    rows = [row for row in ROWS if name in row.name]
    if not rows:
        parser.error(f"no technique's name holds {name!r}: {', '.join(row.name for row in ROWS)}")
    found = measure_all(Lab(), rows, say=lambda words: print(words, flush=True))
    for row in found.rows:
        for kind in ("helps", "hurts"):
            pair: MeasuredPair = getattr(row, kind)
            told = ", ".join(_told(pair, phase) for phase in (*PHASES, "e2e", "worst_gap", "in_time"))
            print(f"{row.name} | {pair.words} | {told}")
    if name:
        found = PhaseMap.stored().measured_again(found.rows)
    found.store()
    print(f"stored in {STORED.relative_to(COURSE.parent)}")


if __name__ == "__main__":
    main()
