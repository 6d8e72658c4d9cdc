"""What the load generator raises on purpose."""

from minillm.core.errors import MinillmError


class EndpointError(MinillmError):
    """An endpoint cannot be load-tested: nothing answers there, or not as OpenAI's API says."""
