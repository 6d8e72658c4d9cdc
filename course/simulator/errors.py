"""What the simulator raises on purpose. Each message says what was wrong and what to do about it."""

from minillm.core.errors import MinillmError


class PricingError(MinillmError, ValueError):
    """What simulated steps are priced by makes no sense: hardware, constants, a profile, or a fit without data."""


class UnknownHardwareError(PricingError):
    """No such accelerator in the catalogue, and no profile of it."""


class DoesNotFitError(PricingError):
    """The weights, or the weights and one KV block, are larger than the memory of the accelerators."""


class RecordingError(MinillmError, ValueError):
    """A JSON Lines file of recorded requests and steps cannot be read."""


class SimulationError(MinillmError, ValueError):
    """What was to be simulated or fitted makes no sense: a negative rate, a log without rows, an unfit file."""


class WorkloadError(SimulationError):
    """Traffic or a fleet that cannot be: an empty distribution, a contradiction between two fields."""


class TraceError(WorkloadError):
    """A row of a recorded trace cannot be read. The message names the file and the line."""
