"""What goes wrong with a model."""

from minillm.core.errors import MinillmError


class ModelError(MinillmError):
    """A model could not be found, fetched, converted or loaded."""


class UnknownModelError(ModelError):
    """The name is not a short name, a local folder, a GGUF file or a reachable Hub id."""


class UnsupportedArchitectureError(ModelError):
    """The checkpoint's architecture is not one of the decoders minillm implements."""


class CorruptCheckpointError(ModelError):
    """A checkpoint is truncated, fails its SHA-256, or lacks a tensor the decoder needs."""
