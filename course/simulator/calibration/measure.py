"""Measures this machine: the real engine runs a designed set of batches, and its own step records are the data."""

import itertools
import platform
import random
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING

from tqdm.auto import tqdm

from course.simulator.calibration.fit import StepTable, TimedStep, error_report, fit_to_steps, from_usual_to_mean
from course.simulator.calibration.validate import (
    CPU_TRAFFIC,
    GPU_TRAFFIC,
    RealRun,
    ServedTraffic,
    compare,
    deployment_of,
    serve_traffic,
)
from course.simulator.cost.hardware import THIS_MACHINE, Hardware, find_hardware
from course.simulator.cost.models import PricedModel
from course.simulator.cost.placement import Placement
from course.simulator.cost.profile import CPU_PRIORS, PRIORS, Profile, today
from course.simulator.cost.roofline import ROOFLINE, Constants, StepWork
from course.simulator.errors import UnknownHardwareError
from minillm.core.brief import brief
from minillm.core.params import SamplingParams
from minillm.core.step_log import StepRecord
from minillm.frontend.engine import Engine
from minillm.policies.config import EngineConfig

if TYPE_CHECKING:
    import torch

HOST_LINK = 1e10
"""A CPU's swap space is its own memory; a copy runs at some 10 GB/s."""


@dataclass(frozen=True, slots=True)
class MeasuredRound:
    """Requests that start together: what one part of the design measures."""

    requests: int
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Mixed:
    """Requests of random lengths, one every few steps. Lengths in tokens."""

    requests: int
    every_steps: int
    longest_prompt: int
    longest_output: int


FULL_DESIGN = (
    MeasuredRound(1, 16, 24),
    MeasuredRound(1, 128, 24),
    MeasuredRound(1, 512, 16),
    MeasuredRound(1, 900, 8),
    MeasuredRound(2, 64, 16),
    MeasuredRound(4, 32, 16),
    MeasuredRound(4, 256, 12),
    MeasuredRound(8, 24, 16),
    MeasuredRound(8, 160, 12),
    MeasuredRound(16, 48, 12),
    MeasuredRound(16, 128, 10),
    MeasuredRound(24, 80, 10),
    MeasuredRound(32, 16, 12),
    MeasuredRound(32, 96, 10),
)
"""Batch and context vary independently; then comes a stretch of mixed traffic."""
NUM_PASSES = 3
"""The design is gone through so often, each time in another order: a machine is faster in one minute than in the
next, and that should not look like a difference between batch sizes."""
GPU_DESIGN = (
    MeasuredRound(1, 16, 24),
    MeasuredRound(1, 512, 24),
    MeasuredRound(1, 2048, 16),
    MeasuredRound(1, 8000, 8),
    MeasuredRound(2, 256, 24),
    MeasuredRound(4, 64, 24),
    MeasuredRound(4, 2048, 16),
    MeasuredRound(8, 512, 16),
    MeasuredRound(16, 128, 16),
    MeasuredRound(16, 1024, 16),
    MeasuredRound(32, 32, 16),
    MeasuredRound(32, 512, 16),
    MeasuredRound(64, 256, 16),
    MeasuredRound(64, 2000, 12),
    MeasuredRound(128, 64, 16),
    MeasuredRound(128, 512, 12),
    MeasuredRound(256, 32, 12),
    MeasuredRound(256, 256, 12),
)
"""A GPU's: up to where its arithmetic takes as long as its memory, and to contexts whose KV is as large as an 8B's
weights. What the KV pool, the window or the slots don't hold is left out."""
GPU_PASSES = 2
QUICK_DESIGN = (MeasuredRound(1, 16, 4), MeasuredRound(1, 64, 3), MeasuredRound(4, 16, 4), MeasuredRound(8, 32, 3))
MIXED = Mixed(requests=60, every_steps=3, longest_prompt=300, longest_output=48)
GPU_MIXED = Mixed(requests=80, every_steps=3, longest_prompt=2000, longest_output=96)
SHORTEST_PROMPT = 8
"""Tokens of mixed traffic."""
QUICK_MIXED = Mixed(requests=6, every_steps=3, longest_prompt=40, longest_output=6)


@dataclass(frozen=True, slots=True)
class Measured:
    """What the design and the traffic showed on this machine: all that a fit needs."""

    engine: Engine
    """Idle again."""
    hardware: Hardware
    steps: list[TimedStep]
    traffic: ServedTraffic
    served: list[RealRun]
    """Empty without traffic."""

    __repr__ = brief


def calibrate_this_machine(config: EngineConfig, *, quick: bool = False, with_traffic: bool = False) -> Profile:
    """Run the design on the real engine, fit, and tell the error on the steps held out.

    Args:
        config: the model, and how the engine runs it; prefix caching must be off.
        quick: a few small steps; it tries the way, its numbers mean little.
        with_traffic: also serve traffic for real and simulated, and tell that error; see validate.py.
    Raises:
        ModelError, ConfigError: the model cannot be loaded.
    """
    return profile_of(measure_this_machine(config, quick=quick, with_traffic=with_traffic))


def measure_this_machine(config: EngineConfig, *, quick: bool = False, with_traffic: bool = False) -> Measured:
    """The first half of `calibrate_this_machine`: what only this machine can tell."""
    from minillm.model.loader import load_model

    loaded = load_model(config)
    hardware = describe_hardware(loaded.device, quick)  # before the KV pool takes all memory
    engine = Engine(config, loaded)
    design, mixed = (QUICK_DESIGN, QUICK_MIXED) if quick else design_for(engine, hardware)
    traffic = GPU_TRAFFIC if hardware.is_gpu else CPU_TRAFFIC
    steps, served = run_design(engine, design, mixed, traffic if with_traffic else None)
    return Measured(engine, hardware, steps, traffic, served)


def design_for(engine: Engine, hardware: Hardware) -> tuple[Sequence[MeasuredRound], Mixed]:
    """What to sweep on this machine: by its kind, and as far as slots, window and KV pool reach."""
    rounds, mixed = (GPU_DESIGN * GPU_PASSES, GPU_MIXED) if hardware.is_gpu else (FULL_DESIGN * NUM_PASSES, MIXED)
    window = engine.context_limit
    pool = engine.runner.num_kv_blocks * engine.runner.block_size

    def fits(one: MeasuredRound) -> bool:
        longest = one.prompt_tokens + one.output_tokens
        return one.requests <= engine.config.max_num_seqs and longest <= window and one.requests * longest <= pool

    longest_prompt = max(min(mixed.longest_prompt, window - mixed.longest_output), SHORTEST_PROMPT)
    return [one for one in rounds if fits(one)], replace(mixed, longest_prompt=longest_prompt)


def profile_of(measured: Measured) -> Profile:
    """The second half: fit to what was measured, and tell the error on the steps held out, and in traffic."""
    import torch

    from minillm.kernels.quantization import dtype_name

    engine, hardware, steps = measured.engine, measured.hardware, measured.steps
    loaded = engine.model
    assert loaded is not None
    dtype = dtype_name(loaded.dtype)
    placement = Placement(1, dtype, dtype)
    table = StepTable(PricedModel.of(loaded.model_config), hardware, placement, steps)
    training, held_out = table.split()
    prior = Constants(**PRIORS) if hardware.is_gpu else Constants(**CPU_PRIORS)
    free = [*CPU_PRIORS, *(["host_s", "launch_s"] if hardware.is_gpu else [])]
    fitted = fit_to_steps([training], prior, free)
    constants = from_usual_to_mean(fitted.constants, training, free)
    model = engine.config.model
    provenance = {
        "source": f"{len(steps)} steps of the real engine, {model}, {dtype}",
        "model": model,
        "tp": 1,
        "weight_dtype": dtype,
        "machine": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "fitted": free,
        "decided_by_data": list(fitted.decided),
        "date": today(),
        "held_out_error": error_report([held_out], constants),
        "pure_roofline_error": error_report([held_out], ROOFLINE),
    }
    profile = Profile(hardware=hardware, constants=constants, provenance=provenance)
    if measured.served:
        traffic = compare(deployment_of(engine, profile), measured.served, measured.traffic).to_dict()
        return profile.replace(provenance={**provenance, "error_in_traffic": traffic})
    return profile


def run_design(
    engine: Engine, design: Sequence[MeasuredRound], mixed: Mixed, traffic: ServedTraffic | None = None
) -> tuple[list[TimedStep], list[RealRun]]:
    """Run the rounds in a random order, the first once more before to warm up; then mixed traffic.

    Args:
        traffic: between the rounds, serve what the simulator will be compared with.
    """
    drive(engine, [(0, replace(design[0], requests=1))] * 2)
    rng = random.Random(0)
    steps: list[TimedStep] = []
    served: list[RealRun] = []
    runs = serve_traffic(engine, traffic) if traffic else iter(())
    runs_per_round = traffic.num_runs / len(design) if traffic else 0.0
    label = "measuring steps, serving traffic" if traffic else "measuring steps"
    rounds = tqdm(rng.sample(design, len(design)), desc=label, disable=None, file=sys.stderr)
    for number, one in enumerate(rounds, start=1):
        steps += drive(engine, [(0, replace(one, requests=1))] * one.requests)
        served += itertools.islice(runs, max(round(number * runs_per_round) - len(served), 0))
    mix = []
    for i in range(mixed.requests):
        prompt = rng.randint(SHORTEST_PROMPT, mixed.longest_prompt)
        mix.append((mixed.every_steps * i, MeasuredRound(1, prompt, rng.randint(4, mixed.longest_output))))
    return steps + drive(engine, mix), served


def drive(engine: Engine, traffic: Iterable[tuple[int, MeasuredRound]]) -> list[TimedStep]:
    """Send requests at certain steps, run until all is done, and return the steps.

    Args:
        traffic: (steps to wait from the start, what to send), ascending.
    """
    upcoming = list(traffic)
    prompts: dict[str, int] = {}
    records: list[StepRecord] = []
    rng = random.Random(len(upcoming))
    assert engine.model is not None
    vocab_size, num_steps = engine.model.model_config.vocab_size, 0
    while upcoming or engine.has_unfinished:
        while upcoming and (upcoming[0][0] <= num_steps or not engine.has_unfinished):
            _, one = upcoming.pop(0)
            prompt = [rng.randrange(vocab_size) for _ in range(one.prompt_tokens)]
            params = SamplingParams(temperature=0, max_tokens=one.output_tokens, ignore_eos=True)
            prompts[engine.add_request(prompt, params, stream=False)] = one.prompt_tokens
        before = engine.steps[-1].step_id if engine.steps else -1
        engine.step()
        num_steps += 1
        records += [record for record in list(engine.steps)[-2:] if record.step_id > before]
    return timed_steps(records, prompts)


def timed_steps(records: Iterable[StepRecord], prompt_tokens: dict[str, int]) -> list[TimedStep]:
    """The work in recorded steps, and how long each took.

    A record says how many tokens each request computed. What it had in its cache before is the sum of that
    over the earlier steps, since nothing is shared, preempted or thrown away here. From a step's end to the next one's
    begin some more time passes; every step gets the usual of it.

    Args:
        prompt_tokens: by request id.
    """
    records = list(records)
    gaps = [max(later.start - record.end, 0.0) for record, later in itertools.pairwise(records)]
    gap = median(gaps) if gaps else 0.0
    cached: dict[str, int] = {}
    steps = []
    for record in records:
        work = StepWork(0, 0, 0, 0, 0, 0)
        for share in record.shares:
            start, new = cached.get(share.request_id, 0), share.num_tokens
            cached[share.request_id] = start + new
            samples = int(start + new >= prompt_tokens[share.request_id])
            work.add(new, samples, new * start + new * (new + 1) // 2, start + new, is_prompt=new > 1)
        steps.append(TimedStep(work, record.end - record.start + gap))
    return steps


def describe_hardware(device: "torch.device", quick: bool) -> Hardware:
    """This machine's peaks: from the catalogue for a GPU that is in it, else measured."""
    import psutil
    import torch

    from minillm.bench.machine_peaks import measure_bandwidth, measure_matmul

    if device.type == "cuda":
        try:
            return find_hardware(torch.cuda.get_device_name(device)).replace(name=THIS_MACHINE)
        except UnknownHardwareError:
            pass
    size = 256 if quick else 1536
    flops = {
        "float32": measure_matmul(torch.float32, device, size),
        # On a CPU 16-bit weights are computed in float32.
        "bfloat16": measure_matmul(torch.float32 if device.type == "cpu" else torch.bfloat16, device, size),
    }
    if device.type == "cuda":
        memory, bandwidth = torch.cuda.get_device_properties(device).total_memory, measure_bandwidth(device=device).copy
    else:
        memory = psutil.virtual_memory().total
        bandwidth = measure_bandwidth(*((10_000_000, 2) if quick else (500_000_000, 5))).read
    return Hardware(
        name=THIS_MACHINE,
        flops=flops,
        bandwidth=bandwidth,
        memory=memory,
        link=HOST_LINK,
        host_link=HOST_LINK,
        is_gpu=device.type == "cuda",
        price_per_hour=None,
        price_source="",
        source=f"measured on {today()}: a matrix product of {size} rows, and reading a large buffer",
    )
