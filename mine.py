"""minillm beat: your scheduler, router and admission, in at most 200 lines. `minillm beat run FILE` plays it.

One object looks after the whole fleet: two replicas on H100s (numbers 0 and 1), one on A100s (number 2). A request has
`id`, `kind` ("chat", "code", "docs"), `arrival_s`, `prompt_tokens`, `prefix` (names what its prompt begins with, if
others begin with the same; else empty), `prefix_tokens`, `ttft_limit_s` and `tpot_limit_s`. A replica has `number`,
`waiting`, `running` (64 at most), `outstanding` (both) and `backlog_tokens` (of prompts whose first token hasn't come).
How long an answer gets is known when it has ended. Seconds count from the start of the trace.
"""

from __future__ import annotations

from typing import Any


class Policy:
    """As it stands, this is vLLM's rule: everything is admitted, goes where fewest wait, and is served in order."""

    def __init__(self) -> None:
        """What you want to remember. Each trace starts anew."""

    def admit(self, now: float, request: Any, replicas: list[Any]) -> bool:
        """Admission: take in a request that has just arrived? A request that is refused costs nothing more."""
        return True

    def route(self, now: float, request: Any, replicas: list[Any]) -> int:
        """Router: the number of the replica that gets an admitted request."""
        fewest = min(replicas, key=lambda replica: 4 * replica.waiting + replica.running)
        return int(fewest.number)

    def schedule(self, now: float, waiting: list[Any], replica: Any) -> tuple[list[Any], list[Any]]:
        """Scheduler: before each step in which some wait and a slot is free.

        Args:
            waiting: requests in this replica's queue, in order of arrival.
        Returns:
            Two lists of them: which to run next, in order, as far as slots and the step's 1,024 tokens go; which to
            refuse now. The others go on waiting.
        """
        return waiting, []

    def ended(self, now: float, request: Any, output_tokens: int, in_time: bool) -> None:
        """An admitted request has ended; in_time: within its limits."""
