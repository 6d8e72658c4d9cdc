"""All checks, in the order in which they are shown."""

from minillm.bench.doctor.bandwidth import find_bandwidth
from minillm.bench.doctor.check import Check
from minillm.bench.doctor.compute import attention, compute, draft_heads
from minillm.bench.doctor.machine import machine
from minillm.bench.doctor.software import browser, packages, serving_port
from minillm.bench.doctor.speed import speed
from minillm.bench.doctor.storage import storage


def examine() -> list[Check]:
    """Look at everything; takes the seconds that importing torch takes, and one or two for the memory."""
    try:
        import torch
    except ImportError as error:
        broken = Check("software", "torch", "bad", str(error), "make setup")
        return [*machine(), broken, *storage()]
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    bandwidth = find_bandwidth(device)
    return [
        *machine(),
        bandwidth.check(),
        *compute(),
        *attention(device),
        *speed(bandwidth),
        *storage(),
        *packages(),
        *draft_heads(),
        browser(),
        serving_port(),
    ]
