"""What a benchmark raises."""

from minillm.core.errors import MinillmError


class BenchmarkError(MinillmError):
    """A measured engine did not do the work it was measured on, or cannot do it."""
