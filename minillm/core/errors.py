"""Every error minillm raises on purpose, so that a caller can catch the kind it can act on.

Each message says what was wrong and what to do about it. Errors about one request are
:class:`RequestError`: they never harm another request.
"""


class MinillmError(Exception):
    """The parent of every error raised on purpose by minillm."""


class ConfigError(MinillmError, ValueError):
    """An :class:`~minillm.policies.config.EngineConfig` field is unknown, out of range, or contradicts another."""


class MissingPackageError(MinillmError):
    """Something needs a package of an optional extra that is not installed."""


class ModelError(MinillmError):
    """A model could not be found, fetched, converted or loaded."""


class UnknownModelError(ModelError):
    """The name is not a short name, a local folder, a GGUF file or a reachable Hub id."""


class UnsupportedArchitectureError(ModelError):
    """The checkpoint's architecture is not one of the decoders minillm implements."""


class CorruptCheckpointError(ModelError):
    """A checkpoint is truncated, fails its SHA-256, or lacks a tensor the decoder needs."""


class StorageError(ModelError):
    """The cache folder cannot be written: the disk is full or rights are missing."""


class OutOfMemoryError(MinillmError):
    """Weights or a KV pool find no room on the device: they are too large, or another program takes some."""


class DeviceLostError(MinillmError):
    """The GPU answers every further call of this process with an error, or one of several ranks has ended: nothing more
    can be served by this engine."""


class RequestError(MinillmError, ValueError):
    """One request was refused on arrival. Nothing else is affected."""


class EmptyPromptError(RequestError):
    """The prompt has no tokens, so there is nothing to compute logits from."""


class InvalidPromptError(RequestError):
    """The prompt is not a string, a list of chat messages, or a list of token ids the model has."""


class PromptTooLongError(RequestError):
    """The prompt leaves no room for one output token in the context window or the KV pool."""


class InvalidSamplingParamsError(RequestError):
    """A sampling parameter is unknown, out of range, or not a number."""


class InvalidGrammarError(InvalidSamplingParamsError):
    """What a structured output is to follow is wrong, too large, takes too long to compile, or allows no output."""


class GrammarTrialEndedError(InvalidGrammarError):
    """The process that tried a grammar was ended: it crashed on it, or took too much time or memory."""


class DuplicateRequestError(RequestError):
    """A request with this id is still in the engine."""


class QueueFullError(RequestError):
    """The waiting queue holds `max_queue_len` requests already: shed load, try again later."""


class PricingError(MinillmError, ValueError):
    """What simulated steps are priced by makes no sense: hardware, constants, a profile, or a fit without data."""


class UnknownHardwareError(PricingError):
    """No such accelerator in the catalogue, and no profile of it."""


class DoesNotFitError(PricingError):
    """The weights, or the weights and one KV block, are larger than the memory of the accelerators."""


class EngineDeadError(MinillmError):
    """The engine thread has stopped; the error that stopped it is this one's cause."""


class EndpointError(MinillmError):
    """An endpoint cannot be load-tested: nothing answers there, or not as OpenAI's API says."""


class RecordingError(MinillmError, ValueError):
    """A JSON Lines file of recorded requests and steps cannot be read."""


class SimulationError(MinillmError, ValueError):
    """What was to be simulated or fitted makes no sense: a negative rate, a log without rows, an unfit file."""


class WorkloadError(SimulationError):
    """Traffic or a fleet that cannot be: an empty distribution, a contradiction between two fields."""


class TraceError(WorkloadError):
    """A row of a recorded trace cannot be read. The message names the file and the line."""
