"""Traffic in which one thing at a time takes the time: writing, reading, sharing, waiting."""

from dataclasses import dataclass
from typing import Any

from course.lab.lab import Lab
from course.lab.workloads import Workload
from course.lessons.lesson_06.shapes import Shape
from course.lessons.lesson_06.traffic import room, side_by_side

WINDOW = 256
"""Tokens that a request reserves where memory is what is short."""
MEMORY_SLOTS = 4
"""Windows of 16-bit keys and values for which that memory has room; and a little, for scales."""


@dataclass(frozen=True)
class Scene:
    """Traffic, and the engine fields that go with it."""

    name: str
    workload: Workload
    fields: dict[str, Any]


def long_answer(lab: Lab) -> Scene:
    """One reader, a short question, a long answer: nearly all of it is decode."""
    return _roomy("batch 1, long answer", side_by_side(1, 0, _scaled(lab, 48, 12)))


def long_prompt(lab: Lab) -> Scene:
    """One reader, a long prompt, a short answer: nearly all of it is prefill."""
    return _roomy("batch 1, long prompt", side_by_side(1, _scaled(lab, 600, 120), 4))


def full_batch(lab: Lab) -> Scene:
    """Many requests, all of them in the same batch, answers of a few words."""
    return _roomy("a full batch", side_by_side(_scaled(lab, 32, 12), 0, _scaled(lab, 14, 8)))


def line(lab: Lab) -> Scene:
    """A few requests and one slot: the wait is for the others' answers."""
    return _roomy("one slot, a queue", side_by_side(_scaled(lab, 6, 3), 0, _scaled(lab, 14, 8)), max_num_seqs=1)


def short_of_memory(lab: Lab) -> Scene:
    """Slots for all, and memory for the keys and values of a few."""
    workload = side_by_side(_scaled(lab, 12, 8), _scaled(lab, 100, 40), _scaled(lab, 14, 8))
    window = WINDOW * Shape.of_lab(lab).kv_bytes_per_token
    return _roomy(
        "short of KV memory",
        workload,
        num_kv_blocks=None,
        kv_cache_memory_gb=(MEMORY_SLOTS + 0.2) * window / 1e9,
        max_model_len=WINDOW,
        kv_reservation="max_len",
    )


SCENES = (long_answer, long_prompt, full_batch, line, short_of_memory)


def scenes(lab: Lab) -> dict[str, Scene]:
    """All of them, by name."""
    return {scene.name: scene for scene in (make(lab) for make in SCENES)}


def _roomy(name: str, workload: Workload, **fields: Any) -> Scene:
    return Scene(name, workload, {**room(workload), **fields})


def _scaled(lab: Lab, usual: int, small: int) -> int:
    return usual if lab.scale == 1 else small
