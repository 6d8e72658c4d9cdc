"""Dumps: what was written down about a sick service. Paper only: nothing can be asked any more.

    read("13b")                                          # a few lines, each with its id
    check("13b", dominant_phase="queue", evidence=["queue_over_time"], ranked=["trim_prompts"], capacity={...})

A dump is an incident whose questions were asked by someone else, and not all of them. Graded by the marks of
incidents (marking.py), by what the changes really do to the simulated service, and by what its numbers say
about capacity.

catalogue.py, dumps.toml  the dumps    sums.py   capacity, by arithmetic
paper.py      how one is written   check.py  marks
"""

from course.incidents.dumps.catalogue import DUMPS, find_dump
from course.incidents.dumps.check import check
from course.incidents.dumps.paper import changes, numbers, questions, read

__all__ = ["DUMPS", "changes", "check", "find_dump", "numbers", "questions", "read"]
