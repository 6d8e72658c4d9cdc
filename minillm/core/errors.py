"""Every error minillm raises on purpose, so that a caller can catch the kind it can act on.

Each message says what was wrong and what to do about it. Errors about one request are
:class:`RequestError`: they never harm another request.
"""


class MinillmError(Exception):
    """The parent of every error raised on purpose by minillm."""


class ConfigError(MinillmError, ValueError):
    """An :class:`~minillm.policies.config.EngineConfig` field is unknown, out of range, or contradicts another."""


class DeviceLostError(MinillmError):
    """The GPU answers every further call of this process with an error, or one of several ranks has ended: nothing more
    can be served by this engine."""


class RequestError(MinillmError, ValueError):
    """One request was refused on arrival. Nothing else is affected."""


class PromptTooLongError(RequestError):
    """The prompt leaves no room for one output token in the context window or the KV pool."""


class InvalidSamplingParamsError(RequestError):
    """A sampling parameter is unknown, out of range, or not a number."""


class DuplicateRequestError(RequestError):
    """A request with this id is still in the engine."""


class QueueFullError(RequestError):
    """The waiting queue holds `max_queue_len` requests already: shed load, try again later."""
