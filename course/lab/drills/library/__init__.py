"""The drills, in the order in which they are listed; a module a theme. Texts are in ../texts, one file a drill."""

from course.lab.drills.drill import Drill, UnknownDrillError
from course.lab.drills.library import caching, causes, deciding, decoding, fleets, operating, spending, symptoms

ALL: tuple[Drill, ...] = (
    *symptoms.DRILLS,
    *causes.DRILLS,
    *caching.DRILLS,
    *decoding.DRILLS,
    *fleets.DRILLS,
    *spending.DRILLS,
    *deciding.DRILLS,
    *operating.DRILLS,
)
FLAGSHIP = "dump-13b"


def find_drill(name: str) -> Drill:
    """Raises UnknownDrillError, which names those there are."""
    for drill in ALL:
        if drill.id == name:
            return drill
    raise UnknownDrillError(f"there is no drill {name!r}; there are: {', '.join(drill.id for drill in ALL)}")
