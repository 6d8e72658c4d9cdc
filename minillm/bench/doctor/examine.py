"""All checks, in the order in which they are shown."""

from minillm.bench.doctor.check import Check


def examine() -> list[Check]:
    """Look at everything; takes the seconds that importing torch takes, and one or two for the memory."""
    try:
        import torch
    except ImportError as error:  # nothing else can be looked at
        return [Check("software", "torch", "bad", str(error), "make setup")]
    from minillm.bench.doctor import compute, software
    from minillm.bench.doctor.bandwidth import find_bandwidth
    from minillm.bench.doctor.machine import machine
    from minillm.bench.doctor.speed import speed
    from minillm.bench.doctor.storage import storage

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    bandwidth = find_bandwidth(device)
    return [
        *machine(),
        bandwidth.check(),
        *compute.compute(),
        *compute.attention(device),
        *speed(bandwidth),
        *storage(),
        *software.packages(),
        *compute.draft_heads(),
        software.browser(),
        software.serving_port(),
    ]
