"""What can be wrong with a round, or with what a candidate hands in."""

from minillm.core.errors import MinillmError


class RoundFileError(MinillmError):
    """The file of a round says something that can't be read or worked out."""


class UnknownRoundError(MinillmError):
    """There is no round of that name."""


class CommitmentError(MinillmError):
    """What was handed in isn't a number with a unit, an entry of the menu, or boxes of this round."""
