"""The floor of a decode step, its intensity, and the batch at which it turns."""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace

from course.grading.props import Machine, Model
from course.grading.tools import Answer, Slips, expect, hold, maybe, whole


def weight_bytes(model: Model) -> float:
    return model.parameters * model.weight_bits / 8


def step_bytes(model: Model, batch: int, context: int) -> float:
    return weight_bytes(model) + batch * context * model.kv_bytes


def step_flops(model: Model, batch: int, context: int) -> float:
    return batch * (2 * model.parameters + context * model.attention_flops)


def right_floor(model: Model, machine: Machine, batch: int, context: int) -> float:
    reading = step_bytes(model, batch, context) / machine.bytes_per_s
    return max(reading, step_flops(model, batch, context) / machine.flops_per_s)


def right_intensity(model: Model, batch: int, context: int) -> float:
    return step_flops(model, batch, context) / step_bytes(model, batch, context)


def exact_knee(model: Model, machine: Machine, context: int) -> float:
    """The batch, not rounded, at which both clocks take equally long; infinite if none."""
    gained = step_flops(model, 1, context) / machine.flops_per_s - context * model.kv_bytes / machine.bytes_per_s
    return weight_bytes(model) / machine.bytes_per_s / gained if gained > 0 else math.inf


def knee_by(rounded: Callable[[float], int]) -> Callable[[Model, Machine, int], int | None]:
    def knee(model: Model, machine: Machine, context: int) -> int | None:
        exact = exact_knee(model, machine, context)
        return None if exact == math.inf else rounded(exact)

    return knee


right_knee = knee_by(lambda exact: max(math.ceil(exact), 1))


def right_gain(model: Model, machine: Machine, batch: int, context: int, bits: float) -> float:
    fewer = replace(model, weight_bits=bits)
    return right_floor(model, machine, batch, context) / right_floor(fewer, machine, batch, context)


def floor_with(
    read: Callable[[Model, int, int], float] = step_bytes,
    flops: Callable[[Model, int, int], float] = step_flops,
    join: Callable[[float, float], float] = max,
) -> Callable[[Model, Machine, int, int], float]:
    """A floor that counts bytes or operations in its own way."""
    return lambda m, device, b, c: join(read(m, b, c) / device.bytes_per_s, flops(m, b, c) / device.flops_per_s)


BYTES_SLIPS: Slips = {
    "weights_in_bits": lambda m, b, c: m.parameters * m.weight_bits + b * c * m.kv_bytes,
    "weights_always_2_bytes": lambda m, b, c: 2 * m.parameters + b * c * m.kv_bytes,
    "weights_for_each_request": lambda m, b, c: b * (weight_bytes(m) + c * m.kv_bytes),
    "kv_not_read": lambda m, b, c: weight_bytes(m),
    "kv_of_one_request": lambda m, b, c: weight_bytes(m) + c * m.kv_bytes,
    "kv_of_one_token": lambda m, b, c: weight_bytes(m) + b * m.kv_bytes,
}
FLOPS_SLIPS: Slips = {
    "one_operation_a_weight": lambda m, b, c: b * (m.parameters + c * m.attention_flops),
    "operations_of_one_request": lambda m, b, c: step_flops(m, 1, c),
    "attention_not_counted": lambda m, b, c: b * 2 * m.parameters,
    "context_through_weights": lambda m, b, c: b * c * 2 * m.parameters + b * c * m.attention_flops,
}
FLOOR_SLIPS: Slips = {
    "added_both_times": floor_with(join=lambda a, b: a + b),
    "reading_time_only": floor_with(flops=lambda m, b, c: 0.0),
    **{words: floor_with(read=read) for words, read in BYTES_SLIPS.items()},
    **{words: floor_with(flops=flops) for words, flops in FLOPS_SLIPS.items()},
}
INTENSITY_SLIPS: Slips = {
    "intensity_inverted": lambda m, b, c: 1 / right_intensity(m, b, c),
    "intensity_is_batch": lambda m, b, c: b,
    **{words: lambda m, b, c, read=read: step_flops(m, b, c) / read(m, b, c) for words, read in BYTES_SLIPS.items()},
    **{
        words: lambda m, b, c, flops=flops: flops(m, b, c) / step_bytes(m, b, c) for words, flops in FLOPS_SLIPS.items()
    },
}


KNEE_SLIPS: Slips = {
    "knee_rounded_down": knee_by(lambda exact: max(math.floor(exact), 1)),
    "knee_is_machine_balance": lambda m, d, c: math.ceil(d.flops_per_s / d.bytes_per_s),
    "knee_without_context": lambda m, d, c: right_knee(m, d, 0),
    "knee_bits_as_bytes": lambda m, d, c: right_knee(replace(m, weight_bits=m.weight_bits * 8), d, c),
    "knee_out_of_reach": lambda m, d, c: right_knee(m, d, c) or 0,
}
GAIN_SLIPS: Slips = {
    "speedup_is_ratio_of_bits": lambda m, d, b, c, bits: m.weight_bits / bits,
    "speedup_of_reading_only": lambda m, d, b, c, bits: (
        step_bytes(m, b, c) / step_bytes(replace(m, weight_bits=bits), b, c)
    ),
    "speedup_of_multiplying": lambda m, d, b, c, bits: (
        right_floor(m, d, b, c)
        / right_floor(replace(m, weight_bits=bits), replace(d, flops_per_s=d.flops_per_s * m.weight_bits / bits), b, c)
    ),
}


def some_model(rng: random.Random, bits: float = 16) -> Model:
    """A dense model of a few billion weights; layers and widths hang together as in real ones, roughly."""
    parameters = rng.randint(5, 700) * 1e8
    layers = rng.randint(16, 80)
    width = 64 * round(math.sqrt(parameters / layers / 12) / 64)
    group = rng.choice((1, 4, 8))
    return Model(parameters, bits, 4 * layers * width // group, 4 * layers * width)


def some_machine(rng: random.Random) -> Machine:
    gigabytes_per_s = rng.randint(300, 5000)
    return Machine(round(gigabytes_per_s * rng.uniform(60, 400)) * 1e9, gigabytes_per_s * 1e9)


def floors(answer: Answer, rng: random.Random, shapes: Sequence[tuple[float, int, int]]) -> None:
    questions = [(some_model(rng, bits), some_machine(rng), batch, context) for bits, batch, context in shapes]
    hold(answer.step_floor, questions, right_floor, FLOOR_SLIPS)


def intensities(answer: Answer, rng: random.Random, shapes: Sequence[tuple[float, int, int]]) -> None:
    questions = [(some_model(rng, bits), batch, context) for bits, batch, context in shapes]
    hold(answer.intensity, questions, right_intensity, INTENSITY_SLIPS)


def judge_knees(answer: Answer, cases: list[tuple[Model, Machine, int]]) -> None:
    hold(answer.knee, cases, right_knee, KNEE_SLIPS, maybe(whole))


def on_no_border(rng: random.Random, context: int, bits: float, low: float, high: float) -> tuple[Model, Machine, int]:
    """A knee in this range that is not so near a whole number that rounding errors decide."""
    while True:
        model, machine = some_model(rng, bits), some_machine(rng)
        exact = exact_knee(model, machine, context)
        if low <= exact <= high and (exact == math.inf or 0.02 < exact % 1 < 0.98):
            return model, machine, context


def short_contexts(answer: Answer, rng: random.Random) -> None:
    cases = [on_no_border(rng, 0, bits, 1, 2000) for bits in (16, 16, 8, 4, 32)]
    ratio = 2 ** rng.randint(6, 8)  # powers of two: both clocks are exactly equal at the knee
    cases.append((Model(2.0**33, 16, 2.0**10, 2.0**14), Machine(ratio * 2.0**40, 2.0**40), 0))
    judge_knees(answer, cases)


def long_contexts(answer: Answer, rng: random.Random) -> None:
    cases = [on_no_border(rng, context, bits, 1, 4000) for context, bits in ((100, 16), (300, 8), (60, 4), (500, 16))]
    cases += [on_no_border(rng, context, 16, math.inf, math.inf) for context in (30_000, 100_000)]
    # As soon as there is one request: hardly anything to read, and a slow processor.
    cases.append((some_model(rng, 4), Machine(1e12, 5e12), 0))
    judge_knees(answer, cases)


def gains(answer: Answer, rng: random.Random, shapes: Sequence[tuple[float, float, int, int]]) -> str:
    questions = [
        (some_model(rng, old), some_machine(rng), batch, context, bits) for old, bits, batch, context in shapes
    ]
    cases = hold(answer.gain, questions, right_gain, GAIN_SLIPS)
    fast = next(found for asked, found in cases if asked[2] == 1)
    none = next(found for asked, found in cases if asked[2] == 1000)
    expect(not none > fast, "fewer bits gain more at batch 1000 than at batch 1: there is nothing left to gain by then")
    return f"times {fast:.3g} for a lone request, times {none:.3g} at batch 1000"
