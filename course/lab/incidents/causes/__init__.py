"""Everything that can be wrong with a service."""

from course.lab.incidents.causes import decode, outside, prefill, queue
from course.lab.incidents.causes.base import Case, Cause, Draw

CAUSES: dict[str, Cause] = {
    cause.name: cause for cause in (*queue.CAUSES, *prefill.CAUSES, *decode.CAUSES, *outside.CAUSES)
}
"""By name."""

__all__ = ["CAUSES", "Case", "Cause", "Draw"]
