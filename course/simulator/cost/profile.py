"""A profile: fitted constants of one kind of hardware under one serving stack, and where they come from.

A number without its error is a rumour, so both travel in one file.
"""

import datetime
import json
import math
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from course.simulator.cost.all_reduce import MEASURED, SYMMETRIC
from course.simulator.cost.hardware import THIS_MACHINE, Hardware, find_hardware, read_json
from course.simulator.cost.models import PricedModel
from course.simulator.cost.roofline import HIGHEST, HOST, LINK, ROOFLINE, STACK, Constants
from course.simulator.errors import PricingError
from minillm.host.errors import StorageError
from minillm.host.storage import cache_home, write_whole
from minillm.strict_model import StrictModel

PACKAGED = {file.stem: file for file in sorted((Path(__file__).parent / "profiles").glob("*.json"))}
"""Profiles that come with minillm, by name: fitted to public measurements, which their files name."""
CURRENT_STACK = "rtx-4090"
"""Fitted to vLLM 0.19 with CUDA graphs and asynchronous scheduling: what other cards are taken to be served with."""

_PRIORS = json.loads((Path(__file__).parent / "priors.json").read_text())
PRIORS: dict[str, float] = _PRIORS["gpu"]
"""What a good GPU stack with CUDA graphs comes to. Fits start here, and constants that a fit cannot see stay here:
GEMM libraries reach 60 to 80% of peak FLOP/s and 80 to 90% of bandwidth, a kernel in a graph costs about 1.3 µs
(some ten a layer), an NCCL all-reduce of a few kilobytes over NVLink some 10 µs."""
CPU_PRIORS: dict[str, float] = _PRIORS["cpu"]
"""A CPU does its own launching, so none of it runs beside the work: it is in layer_s, step_s and request_s."""


WAIT_S = 7e-6
"""Until the last rank has reached an all-reduce: what typical constants count in their latency, a guess."""


class Profile(StrictModel):
    """Hardware, constants, provenance; also the format of a profile's file."""

    _error: type[Exception] = PricingError

    version: Literal[1] = 1
    hardware: Hardware
    constants: Constants
    by_weights: dict[str, dict[str, float]] = Field(default_factory=dict)
    """By dtype of the weights: constants that differ with it, such as what products in fp8 reach of their own peak."""
    mixture: "Profile | None" = None
    """For mixtures of experts, where constants were fitted to those apart: they run other kernels."""
    by_kv: dict[str, dict[str, float]] = Field(default_factory=dict)
    """By dtype of the KV cache, where constants differ with it: attention that widens int8 reads it more slowly."""
    client_s: float = Field(0.0, ge=0)
    """Seconds that a request and its first token spend between client and scheduler: HTTP, tokenizing, both ways."""
    separate_prompts: bool = False
    """The engine computes prompts in steps of their own, during which answers wait."""
    provenance: dict[str, Any] = Field(default_factory=dict)
    """source, date, model, tp, `fitted` (names of the constants that data decided), and the errors reached; `stack` is
    the serving software by its version, and `newer` what later versions of it have changed."""

    def for_weights(self, dtype: str) -> "Profile":
        """With the constants of weights in this dtype.

        Raises:
            PricingError: there are some, but none of this dtype.
        """
        if not self.by_weights:
            return self
        known = "bfloat16" if dtype == "float16" else dtype  # they take the same time
        if known not in self.by_weights:
            told, fitted = self.provenance.get("engine", "this profile"), ", ".join(self.by_weights)
            raise PricingError(f"{told} was measured with weights in {fitted}, not {dtype}: name one (--weight-dtype)")
        return self.replace(constants=self.constants.replace(**self.by_weights[known]), by_weights={})

    def for_model(self, model: PricedModel) -> "Profile":
        """With the constants of this kind of model."""
        own = self.mixture if model.num_experts else None
        return own or self.replace(mixture=None)

    def for_kv(self, dtype: str) -> "Profile":
        """With the constants of a KV cache in this dtype, where those are others."""
        return self.replace(constants=self.constants.replace(**self.by_kv.get(dtype, {})), by_kv={})

    def write(self, path: Path) -> None:
        content = json.dumps(self.model_dump(), indent=2) + "\n"
        try:
            write_whole(path, content.encode(), "name with --out a file")
        except StorageError as error:
            raise PricingError(f"cannot write the profile {path}: {error}") from None

    @classmethod
    def read(cls, path: Path) -> "Profile":
        """Raises PricingError: the file is no profile, or one of another version."""
        try:
            content = read_json(path)
            if "version" not in content:
                raise PricingError("it does not say its version")
            return cls(**content)
        except PricingError as error:
            raise PricingError(f"{path} is no profile (`minillm calibrate` makes one): {error}") from None


def roofline_profile(hardware: Hardware) -> Profile:
    """Every peak reached, nothing else takes time. To compare with; not to believe."""
    return Profile(hardware=hardware, constants=ROOFLINE, provenance={"source": "pure roofline, nothing fitted"})


Table = dict[str, Any]
ENGINES: Table = json.loads((Path(__file__).parent / "engines.json").read_text())
"""Constants fitted to public measurements of serving points (`make fit` writes them), of dense models and of mixtures:

    what chips of a generation reach  x  what a backend makes of it there  x  a version's own factor

The last two are factors, left out where they are 1, of all weights or by their dtype."""
DENSE, MIXTURES = "dense", "mixtures"


GENERATIONS = ("hopper", "blackwell")
FAMILIES = (("h100-sxm", "h200"), ("b200", "b300", "gb200", "gb300"))
"""Cards with the same chip, or nearly."""


def generation_of(card: str) -> str | None:
    """The chip's: "hopper" or "blackwell"; None = no constants were fitted to such chips."""
    return next((name for name, cards in zip(GENERATIONS, FAMILIES) if card in cards), None)


def similar_card(engine: str, card: str) -> str | None:
    """The card on which an engine was measured whose constants count on this one: itself, or one with such a chip;
    None = there is none."""
    cards = ENGINES["engines"].get(engine, {}).get("points", {})
    family = next((each for each in FAMILIES if card in each), ())
    return next((each for each in (card, *family) if each in cards), None)


SYMMETRIC_MEMORY = ("vllm-0.19",)
"""Engines that reduce large messages in memory that all ranks have mapped alike, where the switches add up (PyTorch's
symmetric memory): as measured, vLLM since 0.18, not yet in 0.14. The others leave those to NCCL."""


def hardware_of(engine: str, card: str) -> Hardware:
    """A card, with all-reduces over its links as this engine does them.

    Raises:
        UnknownHardwareError: no such card.
    """
    hardware = find_hardware(card)
    symmetric = f"{hardware.measured_link}{SYMMETRIC}"
    return (
        hardware.replace(measured_link=symmetric) if engine in SYMMETRIC_MEMORY and symmetric in MEASURED else hardware
    )


def engine_profile(name: str) -> Profile:
    """An engine of some version on a card: "vllm-0.19@h200".

    Raises:
        UnknownHardwareError: no such card.
        PricingError: nothing was fitted to this engine, or on no such card.
    """
    engine, _, card = name.partition("@")
    if engine not in ENGINES["engines"]:
        raise PricingError(f"no constants of engine {engine!r}: there are {', '.join(ENGINES['engines'])}")
    hardware = hardware_of(engine, card)
    cards = ENGINES["engines"][engine]["points"]
    like = similar_card(engine, hardware.name)
    if like is None:
        raise PricingError(f"no constants of {engine} on {hardware.name}: there are those on {', '.join(cards)}")
    dense, mixture = (_engine_profile(kind, engine, hardware) for kind in (DENSE, MIXTURES))
    told = {"source": ENGINES["source"], "stack": engine, "engine": engine, "fitted to": like, "points": cards[like]}
    return dense.replace(provenance=told, mixture=mixture.replace(provenance=told))


def _engine_profile(kind: str, engine: str, hardware: Hardware) -> Profile:
    """Constants of one kind of model. Chips that only the other kind was measured on, and weights in a dtype that only
    it was measured in, take that one's constants."""
    backend, generation = ENGINES["engines"][engine]["backend"], generation_of(hardware.name)
    other = MIXTURES if kind == DENSE else DENSE
    own, *others = [each for each in (kind, other) if generation in ENGINES.get(each, {}).get("chips", {})]

    def levels(of: str) -> list[Table]:
        """From the chips to the engine."""
        tables = ENGINES[of]
        of_backend = tables["backends"].get(backend, {}).get(generation, {})
        return [tables["chips"][generation], of_backend, tables["engines"].get(engine, {})]

    by_weights: dict[str, dict[str, float]] = {}
    for of in (*others, own):
        for dtype in ENGINES[of]["chips"][generation].get("by_weights", {}):
            by_weights[dtype] = _product([each.get("by_weights", {}).get(dtype, {}) for each in levels(of)])
    constants = _product([each.get("constants", {}) for each in levels(own)])
    client_s = constants.pop("client_s")
    return Profile(
        hardware=hardware,
        constants=Constants(**ENGINES["shared"], **constants),
        by_weights=by_weights,
        client_s=client_s,
        separate_prompts=backend == "sglang",
    )


def _product(levels: list[dict[str, float]]) -> dict[str, float]:
    """The first level's constants, times the others' factors, within what is possible."""
    first, *factors = levels
    return {
        name: min(value * math.prod(each.get(name, 1.0) for each in factors), HIGHEST.get(name, math.inf))
        for name, value in first.items()
    }


def typical_profile(hardware: Hardware) -> Profile:
    """What a fit starts from, and all there is for hardware that has not been measured."""
    provenance = {"source": "typical constants, not fitted to this hardware"}
    return Profile(hardware=hardware, constants=typical_constants(hardware), provenance=provenance)


def typical_constants(hardware: Hardware) -> Constants:
    """PRIORS, with what is reached of such memory, and by all-reduces over such links."""
    memory, links = _PRIORS["memory"][hardware.memory_class], _PRIORS["links"][hardware.link_class]
    return Constants(**PRIORS).replace(bandwidth=memory["bandwidth"], **{name: links[name] for name in LINK})


def moved(profile: Profile, hardware: Hardware) -> Profile:
    """The same host and stack on another accelerator.

    What one chip and its links reach of their data sheets says little about another's: a GeForce sums in float32 at
    half the rate of its tensor cores, and so comes near 100% of what is left. Those constants are typical again.
    """
    if hardware.name == profile.hardware.name:
        return profile.replace(hardware=hardware)
    carried = {name: getattr(profile.constants, name) for name in (*HOST, *STACK)}
    told, old = profile.provenance, profile.hardware.name
    host = f"host and engine overheads measured on {old} ({told.get('source', 'unknown')})"
    source = f"{host}; typical shares of {hardware.name}'s peaks"
    fit = {key: told[key] for key in ("stack", "newer", "model", "tp", "weight_dtype") if key in told}
    constants = typical_constants(hardware).replace(**carried)
    if hardware.measured_link and hardware.link_class.startswith("pcie"):
        constants = constants.replace(wait_s=WAIT_S)
    return Profile(hardware=hardware, constants=constants, provenance={"source": source, "hardware": old, **fit})


def find_profile(name: str) -> Profile:
    """The profile in a file, a packaged one by its name, or the best there is for a hardware's name: measured, or
    today's stack (vLLM 0.19) on it.

    Raises:
        UnknownHardwareError: no such hardware.
        PricingError: the file is no profile.
    """
    path = Path(name).expanduser()
    if path.suffix == ".json" and "bandwidth" not in read_json(path):
        return Profile.read(path)
    if name == THIS_MACHINE and this_machine_path().is_file():
        try:
            return Profile.read(this_machine_path())
        except PricingError as error:
            raise PricingError(f"{error}. Measure this machine anew: `minillm calibrate`") from None
    if "@" in name:
        return engine_profile(name)
    if name in PACKAGED:
        packaged = Profile.read(PACKAGED[name])
        return moved(packaged, find_hardware(packaged.hardware.name))
    hardware = find_hardware(name)
    return moved(Profile.read(PACKAGED[CURRENT_STACK]), hardware) if hardware.is_gpu else typical_profile(hardware)


def this_machine_path() -> Path:
    """Where `minillm calibrate` keeps what it measured on this machine."""
    return cache_home() / "profiles" / f"{THIS_MACHINE}.json"


def today() -> str:
    """The date, ISO 8601, UTC."""
    return datetime.datetime.now(datetime.UTC).date().isoformat()
