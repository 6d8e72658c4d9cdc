"""All checks, in the order in which they are shown."""

from minillm.bench.doctor.check import Check


def examine() -> list[Check]:
    """Look at everything; takes the seconds that importing torch takes, and one or two for the memory."""
    try:
        import torch
    except ImportError as error:  # nothing else can be looked at
        return [Check.of("software", "torch", str(error), "make setup", needed=True)]
    from minillm.bench.doctor import hardware, software

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return [
        *hardware.machine(),
        *hardware.memory(device),
        *hardware.compute(),
        *hardware.attention(device),
        *software.storage(),
        *software.packages(),
    ]
