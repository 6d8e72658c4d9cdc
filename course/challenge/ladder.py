"""What each rung scores: recorded for the practice seeds, played for any others.

python -m course.challenge.ladder    # records them anew; a test plays one seed and compares
"""

import functools
import json
from dataclasses import dataclass
from pathlib import Path

from course.challenge.baselines import RUNGS, Rung
from course.challenge.play import play
from course.challenge.rounds import PRACTICE
from course.challenge.service import DURATION_S

RECORD = Path(__file__).parents[1] / "data" / "challenge" / "ladder.json"
COMMAND = "python -m course.challenge.ladder"


@dataclass(frozen=True)
class Tally:
    """Requests of one or several traces."""

    in_time: int
    requests: int
    traces: int = 1

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(self.in_time + other.in_time, self.requests + other.requests, self.traces + other.traces)

    @property
    def goodput(self) -> float:
        """Requests answered within their limits, per second."""
        return self.in_time / (self.traces * DURATION_S)

    @property
    def share(self) -> float:
        """... of all requests."""
        return self.in_time / self.requests


NONE = Tally(0, 0, 0)


def climbed(rung: Rung, seed: int) -> Tally:
    """Plays a rung's policies on a seed's trace."""
    played = play(seed, rung.policies(seed))
    return Tally(played.in_time, len(played.outcomes))


def ladder(seeds: tuple[int, ...]) -> dict[str, Tally]:
    """What each rung scores on these seeds, by name, lowest first."""
    known = recorded()
    found = {
        rung.name: sum((known.get((rung.name, seed)) or climbed(rung, seed) for seed in seeds), start=NONE)
        for rung in RUNGS
    }
    return dict(sorted(found.items(), key=lambda pair: pair[1].in_time))


@functools.cache
def recorded() -> dict[tuple[str, int], Tally]:
    """By rung and seed."""
    rows = json.loads(RECORD.read_text(encoding="utf-8"))["rows"]
    return {(row["rung"], row["seed"]): Tally(row["in_time"], row["requests"]) for row in rows}


def main() -> None:
    """Record the practice seeds."""
    rows = [
        {"rung": rung.name, "seed": seed, "in_time": tally.in_time, "requests": tally.requests}
        for rung in RUNGS
        for seed in PRACTICE
        for tally in [climbed(rung, seed)]
    ]
    lines = ",\n".join(f"    {json.dumps(row)}" for row in rows)
    about = json.dumps({"command": COMMAND, "duration_s": DURATION_S})[1:-1]
    RECORD.parent.mkdir(exist_ok=True)
    RECORD.write_text(f'{{\n  {about},\n  "rows": [\n{lines}\n  ]\n}}\n', encoding="utf-8")
    print(f"{RECORD} written")


if __name__ == "__main__":
    main()
