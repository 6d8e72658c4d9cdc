"""What GPUs cost: the catalogue's prices, and dollars as a text shows them."""

from course.simulator.cost.hardware import find_hardware

HARDWARE = "h100-sxm"


def gpu_price(hardware: str = HARDWARE) -> float:
    """Dollars an hour in the catalogue (course/simulator/cost/gpus.json). Raises LookupError: it has none."""
    price = find_hardware(hardware).price_per_hour
    if price is None:
        raise LookupError(f"{hardware} is not for rent: there is no price for it")
    return price


def price_source(hardware: str = HARDWARE) -> str:
    return find_hardware(hardware).price_source


def dollars(amount: float) -> str:
    """$10.76, $0.0123: two digits behind the point, or three that count."""
    return f"${amount:,.2f}" if amount >= 1 or amount == 0 else f"${amount:.3g}"
