"""An accelerator that isn't there as the lab's device: `MINILLM_LAB_DEVICE="4 x h100-sxm"`.

Scheduler, queue, KV blocks, prefix cache and detokenizer are the engine's own, on the real token ids of each prompt.
Steps are not computed: the simulator prices them, and output tokens are placeholders. Whatever depends on what a model
would say raises a SimulatedDeviceError.
"""

import functools
import os
import random
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from course.lab.errors import NotInThisLabError
from course.simulator.cost.hardware import find_hardware
from course.simulator.cost.work import decode_work
from course.simulator.deployment import Deployment
from course.simulator.errors import PricingError
from course.simulator.simulated_runner import MadeUpProposer, SimulatedRunner
from course.simulator.speculation import SimulatedSpeculation
from minillm.core.errors import ConfigError
from minillm.core.params import SamplingParams
from minillm.core.scheduler import Scheduler
from minillm.core.timeline import VirtualClock
from minillm.frontend.engine import Engine
from minillm.frontend.prompts import Prompt
from minillm.model.checkpoints import SHAPES, load_model_config, load_tokenizer, resolve
from minillm.model.config import ModelConfig
from minillm.policies import assemble
from minillm.policies.config import EngineConfig
from minillm.strict_model import default_of

if TYPE_CHECKING:
    from course.lab.display import Html
    from minillm.frontend.engine_thread import EngineThread
    from minillm.runner.torch_runner import TorchRunner

VARIABLE = "MINILLM_LAB_DEVICE"
TOKENIZER_OF = "smollm2-135m"
"""Whose tokenizer counts the prompts' tokens: that of the default model, which is on every machine with the course."""
ENDS = ("<|im_end|>",)
PRICED = ("model", "dtype", "device", "load_format", "tensor_parallel_size", "quantization", "kv_cache_dtype")
"""Fields of EngineConfig that the simulated deployment is told in its own words, or has no use for."""
SIZES = ("max_model_len", "block_size", "max_num_seqs", "max_num_batched_tokens")
"""Fields that the simulated deployment fills in where they are left out."""
KERNELS = ("attention_backend", "cuda_graphs", "piecewise_graphs", "lazy_graphs", "fused_kernels")
"""Fields that choose how a step is computed. There is one price, of the stack that it was fitted to."""
WORDS = "the harbour keeps a slow light while two ships wait for high water and no one writes the time down"
"""What a placeholder answer is made of, in random order: words of one token each."""
REMINDER, REMINDER_EVERY = " (placeholder text)", 24
"""Between the words, so that no reader takes them for a model's."""
NUM_PLACEHOLDERS = 4096
USUAL_CONTEXT = 512
"""Tokens, for what a row costs: far from where attention would count."""
MANY_ROWS = (512, 1024)
"""Between them a step's price is its arithmetic, on any accelerator of the catalogue."""


class SimulatedDeviceError(NotInThisLabError):
    """The lab's device is simulated, and this needs a model that computes."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what

    def __str__(self) -> str:
        return (
            f"{self.what} takes a model that computes, and this lab's device is simulated. "
            f"Start the lab without {VARIABLE} to see it."
        )


@dataclass(frozen=True)
class PlaceholderModel:
    """What an engine on a simulated device has in place of a LoadedModel: a shape, and another model's tokenizer."""

    name: str
    tokenizer: Any
    model_config: ModelConfig
    eos_token_ids: frozenset[int]
    quantization: str | None = None

    @property
    def decoder(self) -> NoReturn:
        raise SimulatedDeviceError("Looking at the weights")

    @property
    def dtype(self) -> Any:
        """Type of the weights and the KV cache, as far as they are not quantized."""
        import torch

        return torch.bfloat16

    @property
    def device(self) -> Any:
        """The machine's own memory: there is nothing on an accelerator."""
        import torch

        return torch.device("cpu")


class SimulatedEngine(Engine):
    """An engine over a SimulatedRunner that refuses what no simulation can answer."""

    def add_request(self, prompt: Prompt, params: SamplingParams | None = None, **options: Any) -> str:
        """As Engine.add_request.

        Raises:
            SimulatedDeviceError: log-probabilities or a grammar are asked for.
        """
        check_params(params)
        return super().add_request(prompt, params, **options)

    @property
    def torch_runner(self) -> "TorchRunner":
        raise SimulatedDeviceError("Looking inside the model")


def check_params(params: SamplingParams | None) -> None:
    """Raise SimulatedDeviceError if a request asks for what depends on a model's output."""
    if params is not None and params.structured_outputs is not None:
        raise SimulatedDeviceError("Output that has to follow a grammar")
    if params is not None and params.logprobs is not None:
        raise SimulatedDeviceError("Log-probabilities")


class RealTimeClock(VirtualClock):
    """The wall clock, for a server on a simulated device: a step is over when its seconds have passed."""

    def now(self) -> float:
        return time.perf_counter()

    def advance_to(self, moment: float) -> None:
        """Wait until then."""
        time.sleep(max(moment - self.now(), 0.0))


@dataclass(frozen=True)
class SimulatedDevice:
    """Equal accelerators that share one model by tensor parallelism."""

    hardware: str
    """A name of the simulator's catalogue."""
    count: int = 1
    own_tokenizer: Any = None
    """Counts the prompts' tokens; None = the default model's, from the disk."""
    make_scheduler: Callable[..., Scheduler] = assemble.make_scheduler
    """Puts the policies together, for policies of your own."""

    @classmethod
    def of(cls, spelt: str) -> "SimulatedDevice":
        """From `h100-sxm`, `4 x h100-sxm` or `4xh100-sxm`.

        Raises:
            UnknownHardwareError: there is none of that name.
        """
        found = re.fullmatch(r"(?:(\d+)(?: *x *| +))?(.*)", spelt.strip())
        count, name = found.groups() if found else (None, spelt)
        return cls(find_hardware(name).name, int(count or 1))

    def __str__(self) -> str:
        return self.hardware if self.count == 1 else f"{self.count} x {self.hardware}"

    @property
    def tokenizer(self) -> Any:
        return self.own_tokenizer or placeholder_tokenizer()

    def deployment(self, config: EngineConfig) -> Deployment:
        """What the simulator prices for a configuration of the engine.

        Raises:
            ConfigError: it can't be served so, or not be priced.
            SimulatedDeviceError: it chooses kernels.
        """
        for name in KERNELS:
            if getattr(config, name) != default_of(EngineConfig, name):
                raise SimulatedDeviceError(f"Another choice of kernels ({name})")
        stated = {name: getattr(config, name) for name in config.model_fields_set if name not in PRICED}
        if config.speculative is not None:
            wanted = config.speculative
            fields = {name: getattr(wanted, name) for name in ("method", *wanted.model_fields_set)}
            stated["speculative"] = SimulatedSpeculation(**fields)
        for name in ("quantization", "kv_cache_dtype"):
            if name in config.model_fields_set:
                stated[name] = getattr(config, name)
        try:
            on = Deployment.of(config.model, self.hardware, tp=self.count, **stated)
            _ = on.num_kv_blocks  # whether it fits
        except PricingError as error:
            raise ConfigError(f"{self} can't be simulated so: {error}") from error
        return on

    def runner(self, config: EngineConfig, clock: VirtualClock) -> tuple[EngineConfig, SimulatedRunner]:
        """What executes steps by their price, with placeholder tokens; and the configuration, its sizes filled in."""
        bare = self.deployment(config).engine(clock)
        assert isinstance(bare.runner, SimulatedRunner)
        bare.runner.answer = placeholder_tokens(self.tokenizer)
        return config.replace(**{name: getattr(bare.config, name) for name in SIZES}), bare.runner

    def engine(
        self, config: EngineConfig, model: PlaceholderModel | None = None, *, clock: VirtualClock | None = None
    ) -> SimulatedEngine:
        """An engine on this device.

        Args:
            clock: None = one of its own, which stands still but for its steps.
        """
        clock = VirtualClock() if clock is None else clock
        row_cost = self.row_cost(config)
        config, runner = self.runner(config, clock)
        model = model or self.model(config)
        engine = SimulatedEngine.on_runner(
            config,
            runner,
            clock,
            model=model,
            proposer=MadeUpProposer(),
            row_cost=row_cost,
            make_scheduler=self.make_scheduler,
        )
        # Prompts are in the tokenizer's vocabulary, which the model's may be smaller than: nothing looks them up.
        engine.vocab_size = max(model.model_config.vocab_size, len(model.tokenizer))
        return engine

    def row_cost(self, config: EngineConfig) -> float:
        """What one more row adds to a step, over the price of a step with one: where rows are so many that they are no
        longer free, for a request that drafts shares its step with others."""
        on = self.deployment(config)
        one, many, more = (on.step_time().price(decode_work(1, USUAL_CONTEXT, rows)).total for rows in (1, *MANY_ROWS))
        return (more - many) / (MANY_ROWS[1] - MANY_ROWS[0]) / one

    def serving_thread(self, config: EngineConfig) -> "EngineThread":
        """An engine for clients that aren't simulated: it takes as long as it says."""
        from minillm.frontend.engine_thread import EngineThread

        return EngineThread(config, self.model(config), clock=RealTimeClock(), build=self.engine)

    def model(self, config: EngineConfig) -> PlaceholderModel:
        """What stands in for the weights."""
        tokenizer = self.tokenizer
        shape = SHAPES.get(config.model.rpartition("/")[2].lower()) or resolve(config.model)
        return PlaceholderModel(
            config.model,
            tokenizer,
            load_model_config(shape),
            frozenset(tokenizer.convert_tokens_to_ids(list(ENDS))),
            config.quantization,
        )

    def label(self, config: EngineConfig) -> str:
        """What has to stand beside every number, in a few words."""
        return f"simulated: {config.model.rpartition('/')[2]} on {self}"

    def error_band(self, config: EngineConfig) -> "Html":
        """How far its step times were from real ones, in a paragraph."""
        from course.lab import simulated_70b

        return simulated_70b.error_band(self.deployment(config))


def device_of_environment() -> SimulatedDevice | None:
    """What MINILLM_LAB_DEVICE names; None = the lab computes, on the device that its configuration chooses.

    Raises:
        UnknownHardwareError: there is none of that name.
    """
    spelt = os.environ.get(VARIABLE, "").strip()
    return SimulatedDevice.of(spelt) if spelt else None


@functools.cache
def placeholder_tokenizer() -> Any:
    """The default model's."""
    return load_tokenizer(resolve(TOKENIZER_OF))


@functools.cache
def placeholder_tokens(tokenizer: Any) -> list[int]:
    """Token ids that read as words, and say now and then that they are none of a model's."""
    rng = random.Random(0)
    pieces = [tokenizer.encode(f" {word}", add_special_tokens=False) for word in WORDS.split()]
    words = [piece[0] for piece in pieces if len(piece) == 1]
    reminder = tokenizer.encode(REMINDER, add_special_tokens=False)
    found: list[int] = []
    while len(found) < NUM_PLACEHOLDERS:
        found += [*reminder, *(rng.choice(words) for _ in range(REMINDER_EVERY))]
    return found
