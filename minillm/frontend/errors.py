"""What the front end refuses, and that its engine has stopped."""

from minillm.core.errors import InvalidSamplingParamsError, MinillmError, RequestError


class EmptyPromptError(RequestError):
    """The prompt has no tokens, so there is nothing to compute logits from."""


class InvalidPromptError(RequestError):
    """The prompt is not a string, a list of chat messages, or a list of token ids the model has."""


class InvalidGrammarError(InvalidSamplingParamsError):
    """What a structured output is to follow is wrong, too large, takes too long to compile, or allows no output."""


class GrammarTrialEndedError(InvalidGrammarError):
    """The process that tried a grammar was ended: it crashed on it, or took too much time or memory."""


class EngineDeadError(MinillmError):
    """The engine thread has stopped; the error that stopped it is this one's cause."""
