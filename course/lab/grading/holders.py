"""What a scheduler knows of its requests and blocks, in the exercise on preemption."""

from dataclasses import dataclass, field


@dataclass(eq=False)
class Holder:
    """What the scheduler knows of a request."""

    request_id: str
    arrival: int
    """Counts arrivals: lower came earlier."""
    num_tokens: int
    """Prompt and output so far."""
    num_computed_tokens: int
    blocks: list[int] = field(default_factory=list)

    def __repr__(self) -> str:
        return f"{self.request_id} (arrival {self.arrival}, {len(self.blocks)} blocks)"


@dataclass
class State:
    """All that a function may change."""

    running: list[Holder]
    """In order of admission."""
    waiting: list[Holder]
    """In order of arrival."""
    free: list[int]

    def told(self) -> str:
        return f"running {self.running}, waiting {self.waiting}, {len(self.free)} free"

    def all_blocks(self) -> list[int]:
        return sorted([*self.free, *(block for each in self.running for block in each.blocks)])
