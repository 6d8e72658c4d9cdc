"""What goes wrong with this machine: its disk, its memory, packages that it lacks."""

from minillm.core.errors import MinillmError


class StorageError(MinillmError):
    """The cache folder cannot be written: the disk is full or rights are missing."""


class OutOfMemoryError(MinillmError):
    """Weights or a KV pool find no room on the device: they are too large, or another program takes some."""


class MissingPackageError(MinillmError):
    """Something needs a package of an optional extra that is not installed."""
