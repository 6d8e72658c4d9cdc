"""A prompt in mixed steps under an ITL, or on a machine of its own with a transfer of its KV: which first token is sooner?"""

import random
from collections.abc import Callable, Sequence
from typing import Any

from course.grading.tools import Answer, Slips, close, compare, expect, hold, maybe, number, table, whole

Step = dict[str, float]
"""fixed_s, per_token_s, max_tokens. Times are sums of powers of two, so that no rounding decides."""
GRAIN = 1 / 4096


def seconds(step: Step, tokens: int) -> float:
    return step["fixed_s"] + step["per_token_s"] * tokens


def right_chunk(step: Step, decodes: int, itl_s: float) -> int:
    """By trying, one token more at a time."""
    chunk = 0
    while decodes + chunk < step["max_tokens"] and seconds(step, decodes + chunk + 1) <= itl_s:
        chunk += 1
    return chunk


def in_time(step: Step, itl_s: float) -> int:
    return int((itl_s - step["fixed_s"]) // step["per_token_s"])


CHUNK_SLIPS: Slips = {
    "decodes_take_no_tokens": lambda s, d, itl: max(int(min(in_time(s, itl), s["max_tokens"])), 0),
    "ignored_max_tokens": lambda s, d, itl: max(in_time(s, itl) - d, 0),
    "ignored_itl": lambda s, d, itl: max(s["max_tokens"] - d, 0),
    "chunk_without_fixed_time": lambda s, d, itl: max(min(int(itl // s["per_token_s"]), s["max_tokens"]) - d, 0),
    "chunk_rounded_up": lambda s, d, itl: max(
        min(int(-(-(itl - s["fixed_s"]) // s["per_token_s"])), s["max_tokens"]) - d, 0
    ),
    "exactly_the_itl_refused": lambda s, d, itl: right_chunk(s, d, itl - GRAIN / 64),
    "negative_chunk": lambda s, d, itl: min(in_time(s, itl), s["max_tokens"]) - d,
}


def right_mixed(step: Step, decodes: int, prompt: int, itl_s: float) -> float | None:
    """Step by step."""
    chunk, now = right_chunk(step, decodes, itl_s), 0.0
    if chunk == 0:
        return None
    while prompt > 0:
        now += seconds(step, decodes + min(chunk, prompt))
        prompt -= chunk
    return now


def mixed_with(formula: Callable[[Step, int, int, int], float]) -> Callable[..., float | None]:
    """(step, decodes, prompt, chunk) -> seconds; None where nothing fits."""

    def mistaken(step: Step, decodes: int, prompt: int, itl_s: float) -> float | None:
        chunk = right_chunk(step, decodes, itl_s)
        return formula(step, decodes, prompt, chunk) if chunk else None

    return mistaken


MIXED_SLIPS: Slips = {
    "last_step_full": mixed_with(lambda s, d, n, c: -(-n // c) * seconds(s, d + c)),
    "steps_without_decodes": mixed_with(lambda s, d, n, c: -(-n // c) * s["fixed_s"] + n * s["per_token_s"]),
    "one_step_for_prompt": mixed_with(lambda s, d, n, c: seconds(s, d + n)),
    "fractional_steps": mixed_with(lambda s, d, n, c: n / c * seconds(s, d + c)),
    "last_step_lost": mixed_with(lambda s, d, n, c: n // c * seconds(s, d + c)),
}


def right_arrival(layer_ready: Sequence[float], layer_s: float, latency_s: float) -> float:
    sent = 0.0
    for ready in layer_ready:
        sent = max(sent, ready) + layer_s
    return sent + latency_s


ARRIVAL_SLIPS: Slips = {
    "sends_after_last_layer": lambda ready, s, latency: ready[-1] + len(ready) * s + latency,
    "sends_last_layer_only": lambda ready, s, latency: ready[-1] + s + latency,
    "ignores_when_layers_are_ready": lambda ready, s, latency: ready[0] + len(ready) * s + latency,
    "latency_missing": lambda ready, s, latency: right_arrival(ready, s, 0.0),
    "latency_for_each_layer": lambda ready, s, latency: right_arrival(ready, s + latency, 0.0),
    "layers_sent_in_parallel": lambda ready, s, latency: max(ready) + s * len(ready) / 2 + latency,
}


def apart(prompt: int, prefill: dict, link: dict, ready: str = "even", share: float = 1.0) -> float:
    done, layers = seconds(prefill, prompt), int(prefill["layers"])
    moments = [done * (i + 1) / layers if ready == "even" else done for i in range(layers)]
    return right_arrival(moments, share * prompt * link["kv_bytes"] / link["bytes_per_s"], link["latency_s"])


APART_SLIPS: Slips = {
    "bytes_of_one_token": lambda *q: apart(*q[2:3], *q[4:], share=1 / q[2]),
    "layer_carries_all_layers": lambda *q: apart(*q[2:3], *q[4:], share=q[4]["layers"]),
    "layers_all_ready_at_end": lambda *q: apart(*q[2:3], *q[4:], ready="end"),
    "latency_missing": lambda *q: apart(*q[2:3], *q[4:]) - q[5]["latency_s"],
}


def some_step(rng: random.Random) -> Step:
    return {"fixed_s": rng.randint(8, 60) * GRAIN, "per_token_s": GRAIN / rng.choice((1, 2, 4)), "max_tokens": 2048}


def chunk_questions(rng: random.Random) -> list[tuple[Step, int, float]]:
    found = []
    for _ in range(6):  # the ITL binds, exactly and not quite, and the step's own limit
        step, decodes, tokens = some_step(rng), rng.randint(0, 40), rng.randint(60, 400)
        limit = seconds(step, tokens)
        found += [(step, decodes, limit), (step, decodes, limit + step["per_token_s"] / 2)]
        found.append(({**step, "max_tokens": tokens - rng.randint(1, 10)}, decodes, limit))
    step = some_step(rng)
    full = {**step, "max_tokens": 16}
    return [*found, (step, 30, seconds(step, 20)), (full, 16, 9.0), (full, 20, 9.0), (step, 3, step["fixed_s"] / 2)]


def chunks(answer: Answer, rng: random.Random) -> None:
    hold(answer.largest_chunk, chunk_questions(rng), right_chunk, CHUNK_SLIPS, whole)


def mixed(answer: Answer, rng: random.Random) -> None:
    questions = []
    for times in (0, 1, 3, 5):
        step, decodes, chunk = some_step(rng), rng.randint(1, 40), rng.randint(20, 200)
        for rest in (0, 1, rng.randint(2, chunk - 1)):
            if times or rest:
                questions.append((step, decodes, times * chunk + rest, seconds(step, decodes + chunk)))
    questions += [
        (step, 9, 50, seconds(step, 8)),
        (step, 0, 50, seconds(step, 8)),
        ({**step, "max_tokens": 25}, 9, 50, 1.0),
    ]
    hold(answer.mixed_ttft, questions, right_mixed, MIXED_SLIPS, maybe(number))


def arrivals(answer: Answer, rng: random.Random) -> None:
    questions = []
    for layers in (1, 2, 4, 8, 5):
        for speed in (0.25, 0.5, 1.0, 3.0):  # the link beside the prefill: fast, or slow so that layers queue up
            ready = [rng.randint(8, 40) * GRAIN]
            while len(ready) < layers:
                ready.append(ready[-1] + rng.choice((4, 16, 64)) * GRAIN)
            questions.append((ready, round(16 * speed) * GRAIN, rng.choice((1, 5, 90)) * GRAIN))
    hold(answer.kv_arrival, questions, right_arrival, ARRIVAL_SLIPS)


def plan_questions(rng: random.Random, equal: list[Any]) -> list[tuple[Any, ...]]:
    found = [tuple(equal)]
    for slow in (1, 4, 16, 64, 1, 4, 256):
        step, decodes, prompt = some_step(rng), rng.randint(1, 40), rng.randint(100, 900)
        prefill = {"fixed_s": step["fixed_s"], "per_token_s": step["per_token_s"] / 2, "layers": rng.choice((1, 8, 16))}
        layer_s = seconds(prefill, prompt) / prefill["layers"]
        link = {"kv_bytes": 1024.0, "latency_s": 4 * GRAIN, "bytes_per_s": 16 * prompt * 1024.0 / (layer_s * slow)}
        found.append((step, decodes, prompt, seconds(step, decodes + rng.randint(30, 90)), prefill, link))
    step, decodes, prompt, _, prefill, link = found[1]
    return [*found, (step, decodes, prompt, seconds(step, decodes), prefill, link)]


def plans(answer: Answer, rng: random.Random, equal: list[Any]) -> None:
    questions = plan_questions(rng, equal)
    rows = []
    for question in questions:
        row = table(answer.plan(*question), "plan(...)")
        missing = {"mixed", "apart", "better"} - row.keys()
        expect(not missing, f"plan(...) lacks {sorted(missing)}: its keys are 'mixed', 'apart' and 'better'")
        rows.append(row)
    cases = [(q, maybe(number)(row["mixed"], "'mixed'")) for q, row in zip(questions, rows)]
    compare("plan: mixed", cases, lambda *q: right_mixed(*q[:4]), {})
    cases = [(q, number(row["apart"], "'apart'")) for q, row in zip(questions, rows)]
    compare("plan: apart", cases, lambda *q: apart(q[2], *q[4:]), APART_SLIPS)
    for row in rows:
        by_mixed = row["mixed"] is not None and (row["mixed"] <= row["apart"] or close(row["mixed"], row["apart"]))
        wanted = "mixed" if by_mixed else "apart"
        words = f"mixed {row['mixed']}, apart {row['apart']}: 'better' is {row['better']!r}, expected {wanted!r}"
        expect(row["better"] == wanted, words, 0.5)
