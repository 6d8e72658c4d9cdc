"""Observations made up for tests."""

from typing import Any

from course.loadgen.observation import COMPLETED, Observation, TokenSource


def observation(index: int = 0, **fields: Any) -> Observation:
    """Sent at 0, first token at 0.5 s, four tokens 20 ms apart."""
    sent = fields.get("sent", 0.0)
    base: dict[str, Any] = dict(
        index=index,
        outcome=COMPLETED,
        message="",
        status=200,
        due=sent,
        sent=sent,
        ended=None if sent is None else sent + 0.6,
        deliveries=() if sent is None else tuple(sent + 0.5 + 0.02 * i for i in range(4)),
        num_tokens=4,
        token_source=TokenSource.USAGE,
        max_tokens=4,
        prompt_tokens=7,
        cached_tokens=0,
        finish_reason="length",
    )
    return Observation(**{**base, **fields})
