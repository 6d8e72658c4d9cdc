"""Far away: what round trips take, and what is left for the server."""

from collections.abc import Sequence

from course.lab.display import Html, as_table
from course.lab.style import seconds
from course.lessons.lesson_10.traffic import Trip


def trips_table(found: Sequence[Trip]) -> Html:
    """A row a measurement: the round trips before the first token, and what they take of its time."""
    rows = [
        (
            f"round trip {seconds(each.rtt_s)}, {each.connection}",
            str(each.round_trips),
            seconds(each.network),
            seconds(each.ttft),
            f"{network_share(each):.0%}",
            seconds(each.itl),
        )
        for each in found
    ]
    return as_table(("from", "round trips", "they take", "TTFT", "network's share", "ITL"), rows)


def network_share(each: Trip) -> float:
    """Of a TTFT. On a slow machine the rest is long, and the share small, however far away the client is."""
    return min(each.network / each.ttft, 1.0) if each.ttft else 0.0
