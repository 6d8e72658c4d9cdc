"""What an accelerator can do on paper: the peaks that a roofline is made of.

Peaks are the publisher's, dense (without sparsity), for products summed in float32. No kernel reaches
them; how much of them is reached is fitted from measurements and kept apart, in a profile.
"""

import difflib
import json
import logging
import re
from pathlib import Path
from typing import Any, Literal

from pydantic import NonNegativeFloat, PositiveFloat, field_validator

from course.simulator.errors import PricingError, UnknownHardwareError
from minillm.strict_model import StrictModel
from minillm.text_files import read_text

logger = logging.getLogger(__name__)

GIB = 2**30
TERA = 1e12
GIGA = 1e9


class Hardware(StrictModel):
    """One accelerator (or one CPU), and the links to its neighbours and to its host."""

    _error: type[Exception] = PricingError

    name: str
    flops: dict[str, PositiveFloat]
    """Peak FLOP/s of matrix products by dtype: bfloat16 always; float32, fp8 and fp4 where the chip has them."""
    bandwidth: PositiveFloat
    """Peak memory bandwidth, bytes/s."""
    memory_class: Literal["hbm", "gddr"] = "gddr"
    """What that memory is: kernels reach a smaller share of a faster one."""
    memory: PositiveFloat
    """Memory that a program sees, bytes: what the driver and error correction leave of the label's figure."""
    link: PositiveFloat
    """To the other accelerators of its server, bytes/s in one direction."""
    link_class: Literal["nvlink", "pcie_p2p", "pcie"] = "nvlink"
    """What that link is. PCIe without peer-to-peer goes through host memory."""
    measured_link: str | None = None
    """The link as all_reduce.json names it, where all-reduces over such links were measured."""
    host_link: PositiveFloat
    """To host memory (PCIe), bytes/s in one direction: what swapping goes through."""
    watts: PositiveFloat | None = None
    """Board power, at most; None = the publisher doesn't tell."""
    is_gpu: bool
    """Kernels are launched ahead, and the next step is put together while one runs."""
    price_per_hour: NonNegativeFloat | None
    """US dollars; None = not for rent."""
    price_source: str
    source: str

    @field_validator("flops")
    @classmethod
    def _has_bfloat16(cls, flops: dict[str, float]) -> dict[str, float]:
        if "bfloat16" not in flops:
            raise ValueError("at least bfloat16 must be stated")
        return flops

    def peak_flops(self, dtype: str) -> float:
        """FLOP/s of products computed in `dtype`; in bfloat16, if the chip has no faster way."""
        return self.flops.get("bfloat16" if dtype == "float16" else dtype, self.flops["bfloat16"])


def _gpu(name: str, row: dict[str, Any], prices: str) -> Hardware:
    """A row of gpus.json, in TFLOP/s, GB/s and dollars per hour; memory in GiB, as PyTorch reports it."""
    peaks = {"bfloat16": row["tflops"], "float32": row["fp32"], "fp8": row["fp8"], "fp4": row.get("fp4")}
    return Hardware(
        name=name,
        flops={dtype: peak * TERA for dtype, peak in peaks.items() if peak is not None},
        bandwidth=row["gb_per_s"] * GIGA,
        memory_class=row.get("memory", "gddr"),
        memory=row["gib"] * GIB,
        link=row["link"] * GIGA,
        link_class=row["link_class"],
        measured_link=row.get("measured_link"),
        host_link=row["host_link"] * GIGA,
        watts=row.get("watts"),
        is_gpu=True,
        price_per_hour=row["price"],
        price_source=prices,
        source=row["source"],
    )


_GPUS = json.loads((Path(__file__).parent / "gpus.json").read_text())
CATALOGUE = {name: _gpu(name, row, _GPUS["prices"]) for name, row in _GPUS["gpus"].items()}
"""Public figures by name. `this-machine` is not here: it is measured, by `minillm calibrate`."""
ALIASES: dict[str, str] = _GPUS["aliases"]
"""Other names of the same: the short ones, and those that the driver reports."""
VARIANTS: dict[str, list[str]] = _GPUS["variants"]
"""What else a name may mean."""
THIS_MACHINE = "this-machine"


def find_hardware(name: str) -> Hardware:
    """A GPU of the catalogue, however its name is spelt; or a JSON file with the fields of `Hardware`.

    Raises:
        UnknownHardwareError: there is none of that name.
        PricingError: the file does not describe one.
    """
    path = Path(name).expanduser()
    if path.suffix == ".json" and path.is_file():
        return Hardware(**read_json(path))
    plain = {_plain(known): gpu for known, gpu in CATALOGUE.items()}
    spelt = _plain(name)
    wanted = _plain(ALIASES.get(spelt, spelt))
    if spelt in VARIANTS and name not in CATALOGUE:
        logger.warning("%s is taken for %s; there are also %s", name, plain[wanted].name, ", ".join(VARIANTS[spelt]))
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
        content = json.loads(read_text(path))
    except (OSError, ValueError) as error:
        raise PricingError(f"cannot read {path}: {error}") from None
    if not isinstance(content, dict):
        raise PricingError(f"{path} holds no JSON object")
    return content
