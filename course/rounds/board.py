"""Boxes and arrows: a design is a list of arrows between boxes of a menu, and rules say what any sound one has."""

import re
from collections.abc import Collection, Iterable
from itertools import pairwise

from course.rounds.errors import CommitmentError

Edge = tuple[str, str]
Edges = tuple[Edge, ...]


def read_edges(typed: str, boxes: Collection[str]) -> Edges:
    """Arrows as people write them: `client > gateway > router`, further chains on lines of their own or after a comma.

    Raises:
        CommitmentError: no such box, an arrow to itself, or a box without an arrow.
    """
    edges: list[Edge] = []
    for chain in filter(None, map(str.strip, re.split(r"[\n,;]", typed))):
        names = [name.strip() for name in re.split(r"-*>|→", chain)]
        for name in names:
            if name not in boxes:
                raise CommitmentError(f"there is no box {name!r} here; there are: {', '.join(boxes)}")
        if len(names) < 2:
            raise CommitmentError(f"{chain!r} is a box without an arrow: write {chain} > another")
        edges += pairwise(names)
    for start, end in edges:
        if start == end:
            raise CommitmentError(f"{start} > {end} leads nowhere: leave it out")
    return tuple(dict.fromkeys(edges))


def reached(edges: Iterable[Edge], start: str, closed: Collection[str] = ()) -> set[str]:
    """All boxes that arrows lead to from `start`, without passing one that is closed; `start` itself is not counted."""
    after: dict[str, list[str]] = {}
    for a, b in edges:
        after.setdefault(a, []).append(b)
    found: set[str] = set()
    ahead = [start]
    while ahead:
        for box in after.get(ahead.pop(), ()):
            if box not in found and box not in closed:
                found.add(box)
                ahead.append(box)
    return found


def boxes_of(edges: Iterable[Edge]) -> set[str]:
    return {box for edge in edges for box in edge}


def is_kept(kind: str, edges: Edges, start: str, end: str, by: Collection[str] = ()) -> bool:
    """Whether a design keeps a rule of this kind.

    Args:
        kind: `reach`: arrows lead from start to end. `through`: they do, and every way passes one of `by`. `apart`: no
            way leads there. `no_edge`: no arrow leads there directly.
    """
    if kind == "no_edge":
        return (start, end) not in edges
    is_reached = end in reached(edges, start)
    if kind == "apart":
        return not is_reached
    return is_reached and (kind == "reach" or end not in reached(edges, start, by))
