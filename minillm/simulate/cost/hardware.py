"""What an accelerator can do on paper: the peaks that a roofline is made of.

Peaks are the publisher's, dense (without sparsity), for products summed in float32. No kernel reaches
them; how much of them is reached is fitted from measurements and kept apart, in a profile.
"""

import difflib
import json
import math
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from minillm.core.errors import PricingError, UnknownHardwareError

GIB = 2**30
TERA = 1e12
GIGA = 1e9


@dataclass(frozen=True, slots=True)
class Hardware:
    """One accelerator (or one CPU), and the links to its neighbours and to its host."""

    name: str
    flops: dict[str, float]
    """Peak FLOP/s of matrix products by dtype: bfloat16 always; float32 and fp8 where the chip has them."""
    bandwidth: float
    """Peak memory bandwidth, bytes/s."""
    memory: float
    """Memory that a program sees, bytes: what the driver and error correction leave of the label's figure."""
    link: float
    """To the other accelerators of its server, bytes/s in one direction."""
    host_link: float
    """To host memory (PCIe), bytes/s in one direction: what swapping goes through."""
    is_gpu: bool
    """Kernels are launched ahead, and the next step is put together while one runs."""
    price_per_hour: float | None
    """US dollars; None = not for rent."""
    price_source: str
    source: str

    def __post_init__(self) -> None:
        rates = {"bandwidth": self.bandwidth, "memory": self.memory, "link": self.link, "host_link": self.host_link}
        for name, value in {**rates, **{f"flops[{dtype}]": peak for dtype, peak in self.flops.items()}}.items():
            if not (math.isfinite(value) and value > 0):
                raise PricingError(f"hardware {self.name!r}: {name} must be a positive number, not {value}")
        if self.price_per_hour is not None and self.price_per_hour < 0:
            raise PricingError(f"hardware {self.name!r}: price_per_hour must not be negative")
        if "bfloat16" not in self.flops:
            raise PricingError(f"hardware {self.name!r}: flops must state at least bfloat16")

    def peak_flops(self, dtype: str) -> float:
        """FLOP/s of products computed in `dtype`; in bfloat16, if the chip has no faster way."""
        return self.flops.get("bfloat16" if dtype == "float16" else dtype, self.flops["bfloat16"])

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> "Hardware":
        """Raises PricingError: a field is missing, unknown or no number."""
        try:
            return cls(**fields)
        except (AttributeError, TypeError) as error:
            raise PricingError(f"not a description of hardware: {error}") from None


RUNPOD = "RunPod community cloud, per hour, as of 2026-03-10"


def nvidia(
    name: str,
    *,
    tflops: float,
    fp8: float | None,
    fp32: float,
    gb_per_s: float,
    gib: float,
    link: float,
    host_link: float,
    price: float,
    source: str,
) -> Hardware:
    """A GPU in the units of its datasheet: TFLOP/s, GB/s, dollars per hour; memory in GiB, as PyTorch reports it."""
    flops = {"bfloat16": tflops * TERA, "float32": fp32 * TERA}
    if fp8 is not None:
        flops["fp8"] = fp8 * TERA
    return Hardware(
        name, flops, gb_per_s * GIGA, gib * GIB, link * GIGA, host_link * GIGA, True, price, RUNPOD, f"NVIDIA, {source}"
    )


_GPUS = (
    nvidia("h100-sxm", tflops=989.4, fp8=1978.9, fp32=66.9, gb_per_s=3350, gib=79.1, link=450, host_link=64,
           price=2.69, source="H100 Tensor Core GPU datasheet"),
    nvidia("h200", tflops=989.4, fp8=1978.9, fp32=66.9, gb_per_s=4800, gib=139.8, link=450, host_link=64,
           price=3.59, source="H200 Tensor Core GPU datasheet"),
    nvidia("a100-80gb", tflops=312, fp8=None, fp32=19.5, gb_per_s=2039, gib=79.2, link=300, host_link=32,
           price=1.39, source="A100 Tensor Core GPU datasheet (SXM4)"),
    nvidia("b200", tflops=2250, fp8=4500, fp32=75, gb_per_s=7700, gib=178.4, link=900, host_link=64,
           price=5.98, source="HGX B200 datasheet, per GPU"),
    nvidia("l4", tflops=121, fp8=242, fp32=30.3, gb_per_s=300, gib=22.0, link=32, host_link=32,
           price=0.44, source="L4 Tensor Core GPU datasheet"),
    nvidia("l40s", tflops=362, fp8=733, fp32=91.6, gb_per_s=864, gib=44.4, link=32, host_link=32,
           price=0.79, source="L40S GPU datasheet"),
    nvidia("rtx-3090", tflops=71, fp8=None, fp32=35.6, gb_per_s=936, gib=23.7, link=32, host_link=32,
           price=0.22, source="GA102 architecture whitepaper"),
    nvidia("rtx-4090", tflops=165.2, fp8=330.3, fp32=82.6, gb_per_s=1008, gib=23.52, link=32, host_link=32,
           price=0.34, source="Ada GPU architecture whitepaper"),
    nvidia("rtx-5090", tflops=209.5, fp8=419, fp32=104.8, gb_per_s=1792, gib=31.4, link=64, host_link=64,
           price=0.69, source="RTX Blackwell GPU architecture whitepaper"),
    nvidia("rtx-pro-6000", tflops=503.8, fp8=1007.6, fp32=126, gb_per_s=1792, gib=95.0, link=64, host_link=64,
           price=0.89, source="RTX PRO Blackwell GPU architecture whitepaper"),
)  # fmt: skip
CATALOGUE = {gpu.name: gpu for gpu in _GPUS}
"""Public figures by name. `this-machine` is not here: it is measured, by `minillm calibrate`."""

ALIASES = {
    "h100": "h100-sxm",
    "h10080gb": "h100-sxm",
    "h10080gbhbm3": "h100-sxm",
    "h200sxm": "h200",
    "a100": "a100-80gb",
    "a100sxm": "a100-80gb",
    "a100sxm480gb": "a100-80gb",
    "rtxpro6000blackwellworkstationedition": "rtx-pro-6000",
    "rtxpro6000blackwellserveredition": "rtx-pro-6000",
}
"""Other names of the same: the short ones, and those that the driver reports."""

THIS_MACHINE = "this-machine"


def find_hardware(name: str) -> Hardware:
    """A GPU of the catalogue, however its name is spelt; or a JSON file with the fields of `Hardware`.

    Raises:
        UnknownHardwareError: there is none of that name.
        PricingError: the file does not describe one.
    """
    path = Path(name).expanduser()
    if path.suffix == ".json" and path.is_file():
        return Hardware.from_dict(read_json(path))
    plain = {_plain(known): gpu for known, gpu in CATALOGUE.items()}
    wanted = _plain(name)
    wanted = _plain(ALIASES.get(wanted, wanted))
    if wanted in plain:
        return plain[wanted]
    if wanted == _plain(THIS_MACHINE):
        raise UnknownHardwareError(
            f"{THIS_MACHINE} has not been measured yet: run `minillm calibrate`, then name its profile with --profile"
        )
    close = difflib.get_close_matches(wanted, plain, n=1)
    hint = f"did you mean {plain[close[0]].name!r}? " if close else ""
    raise UnknownHardwareError(
        f"no hardware {name!r}: {hint}Known: {', '.join(CATALOGUE)}; or give a .json file with its peaks"
    )


def _plain(name: str) -> str:
    """`NVIDIA GeForce RTX 4090` and `rtx-4090` are one name."""
    return re.sub(r"nvidia|geforce|[^a-z0-9]", "", name.lower())


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file. Raises PricingError: it cannot be read, or is no object."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PricingError(f"cannot read {path}: {error}") from None
    if not isinstance(content, dict):
        raise PricingError(f"{path} holds no JSON object")
    return content
