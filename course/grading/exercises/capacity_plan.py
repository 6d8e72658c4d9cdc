"""From traffic, an SLO and a step-time model to replicas, the resource that binds, and the price of a million tokens."""

import math
import random
from collections.abc import Callable, Sequence
from typing import Any

from course.grading.tools import Answer, Slips, compare, expect, hold, listed, maybe, number, shown, table, whole

Replica = dict[str, float]
"""slots, kv_tokens, fixed_s, per_request_s, per_cached_token_s, per_prompt_token_s, usd_per_hour"""
Load = dict[str, float]
"""rate, burst, prompt, answer"""
Question = tuple[Replica, Load, float]
"""And the limit of the ITL, s."""
Itl = Callable[[Replica, Load, int], float]
RESOURCES = ("slots", "kv", "compute")
SECONDS_PER_HOUR = 3600


def itl(
    replica: Replica,
    load: Load,
    batch: int,
    cached: Callable[[float, float], float] = lambda prompt, answer: prompt + answer / 2,
    prompts: Callable[[int, float], float] = lambda batch, answer: batch / answer,
) -> float:
    """The step's time, by the rules or with one of them broken.

    Args:
        cached: tokens in the cache for a request.
        prompts: how many are read in a step.
    """
    prompt, answer = load["prompt"], load["answer"]
    per_request = replica["per_request_s"] + replica["per_cached_token_s"] * cached(prompt, answer)
    return replica["fixed_s"] + batch * per_request + prompts(batch, answer) * prompt * replica["per_prompt_token_s"]


def whole_length(prompt: float, answer: float) -> float:
    return prompt + answer


ITL_SLIPS: Slips = {
    "itl_without_prefill": lambda *q: itl(*q, prompts=lambda b, a: 0),
    "every_step_pays_every_prompt": lambda *q: itl(*q, prompts=lambda b, a: b),
    "kv_of_whole_answer": lambda *q: itl(*q, whole_length),
    "kv_of_prompt_alone": lambda *q: itl(*q, lambda p, a: p),
}


def refused_by(
    question: Question, batch: int, formula: Itl = itl, need: Callable[[float, float], float] = whole_length
) -> list[str]:
    """The resources that do not allow a batch."""
    replica, load, limit_s = question
    refused = {
        "slots": batch > replica["slots"],
        "kv": batch * need(load["prompt"], load["answer"]) > replica["kv_tokens"],
        "compute": formula(replica, load, batch) > limit_s,
    }
    return [name for name in RESOURCES if refused[name]]


def right_batch(replica: Replica, load: Load, limit_s: float, **broken: Any) -> int:
    batch = 0
    while not refused_by((replica, load, limit_s), batch + 1, **broken):
        batch += 1
    return batch


BATCH_SLIPS: Slips = {
    "reserved_kv_for_prompt_alone": lambda *q: right_batch(*q, need=lambda p, a: p),
    "reserved_kv_for_half_the_answer": lambda *q: right_batch(*q, need=lambda p, a: p + a / 2),
    "limit_without_prefill": lambda *q: right_batch(*q, formula=lambda *each: itl(*each, prompts=lambda b, a: 0)),
    "batch_one_too_large": lambda *q: right_batch(*q) + 1,
    "batch_one_too_small": lambda *q: right_batch(*q) - 1,
    "exactly_full_refused": lambda replica, load, limit_s: right_batch(
        {**replica, "kv_tokens": replica["kv_tokens"] - 1}, load, limit_s * (1 - 1e-9)
    ),
}


def per_second(replica: Replica, load: Load, batch: int) -> float:
    return batch / (load["answer"] * itl(replica, load, batch))


def price(replicas: float, replica: Replica, tokens_per_s: float) -> float | None:
    return replicas * replica["usd_per_hour"] / (tokens_per_s * SECONDS_PER_HOUR) * 1e6 if tokens_per_s else None


def replicas_by(formula: Callable[[float, Load], float]) -> Callable[..., float | None]:
    """Args: formula: of the replicas that the peak needs, not rounded, and the load."""

    def counted(replica: Replica, load: Load, limit_s: float) -> float | None:
        batch = right_batch(replica, load, limit_s)
        return formula(load["rate"] * load["burst"] / per_second(replica, load, batch), load) if batch else None

    return counted


right_replicas = replicas_by(lambda needed, load: max(math.ceil(needed), 1))
REPLICA_SLIPS: Slips = {
    "replicas_rounded_down": replicas_by(lambda needed, load: max(math.floor(needed), 1)),
    "replicas_one_too_many": replicas_by(lambda needed, load: math.floor(needed) + 1),
    "sized_for_mean_rate": replicas_by(lambda needed, load: max(math.ceil(needed / load["burst"]), 1)),
    "no_replica_without_traffic": replicas_by(lambda needed, load: math.ceil(needed)),
    "tokens_taken_for_requests": replicas_by(lambda needed, load: max(math.ceil(needed / load["answer"]), 1)),
}


def price_by(tokens: Callable[[Load], float]) -> Callable[..., float | None]:
    """Dollars per million tokens. Args: tokens: how many are sold per second."""

    def dollars(replica: Replica, load: Load, limit_s: float) -> float | None:
        replicas = right_replicas(replica, load, limit_s)
        return price(replicas, replica, tokens(load)) if replicas else None

    return dollars


right_price = price_by(lambda load: load["rate"] * load["answer"])
PRICE_SLIPS: Slips = {
    "price_per_token_at_peak": price_by(lambda load: load["rate"] * load["burst"] * load["answer"]),
    "sold_prompt_tokens": price_by(lambda load: load["rate"] * (load["answer"] + load["prompt"])),
    "price_of_one_replica": lambda replica, load, limit_s: price(1, replica, load["rate"] * load["answer"]),
}


def some_question(rng: random.Random, binding: str) -> Question:
    """A replica on which one resource binds, and the limit lies well between two batches."""
    load = {
        "rate": rng.uniform(2, 60),
        "burst": rng.choice((1.0, 1.5, 2.0, 3.0)),
        "prompt": rng.randint(50, 2000),
        "answer": rng.randint(20, 500),
    }
    replica = {
        "slots": 10_000,
        "kv_tokens": 10**9,
        "usd_per_hour": rng.uniform(1, 12),
        "fixed_s": rng.uniform(0.004, 0.02),
        "per_request_s": rng.uniform(1e-5, 2e-4),
        "per_cached_token_s": rng.uniform(1e-8, 3e-7),
        "per_prompt_token_s": rng.uniform(1e-5, 8e-5),
    }
    batch = rng.randint(3, 60)
    limit_s = itl(replica, load, batch + (0.5 if binding == "compute" else rng.randint(4, 30)))
    if binding == "kv":
        need = whole_length(load["prompt"], load["answer"])
        replica["kv_tokens"] = batch * need + rng.choice((0, need - 1, rng.randrange(need)))
    if binding == "slots":
        replica["slots"] = batch
    return replica, load, limit_s


def exact_question(rng: random.Random, replicas: int, burst: float = 2.0) -> Question:
    """Powers of two, so that a batch, an ITL and a number of replicas come out exactly."""
    batch, answer, prompt = rng.choice((4, 8, 16)), rng.choice((64, 128)), rng.choice((256, 512))
    replica = {
        "slots": 4 * batch,
        "kv_tokens": 64 * batch * (answer + prompt),
        "usd_per_hour": rng.randint(2, 9),
        "per_request_s": 1 / 2048,
        "per_cached_token_s": 0.0,
        "per_prompt_token_s": 1 / 8192,
    }
    load = {"rate": 0.0, "burst": burst, "prompt": prompt, "answer": answer}
    # The batch is a power of two and the ITL a short sum of them: choose the answer's price so that the rate is exact, too.
    replica["fixed_s"] = batch / 32 - itl({**replica, "fixed_s": 0.0}, load, batch)
    load["rate"] = replicas * per_second(replica, load, batch) / burst
    return replica, load, itl(replica, load, batch)


def described(replica: Replica, load: Load, last: float) -> str:
    return f"{shown(replica)}, {shown(load)}, {last:.6g}:"


def step_time(answer: Answer, rng: random.Random) -> None:
    questions = []
    for turn in range(8):
        replica, load, _ = some_question(rng, RESOURCES[turn % 3])
        questions.append((replica, load, 1 if turn == 7 else rng.randint(2, 50)))
    hold(answer.itl_seconds, questions, itl, ITL_SLIPS, describe=described)


def batches(answer: Answer, questions: Sequence[Question]) -> None:
    cases, named = [], []
    for question in questions:
        batch, binding = listed(answer.largest_batch(*question), "largest_batch(...)", 2)
        cases.append((question, whole(batch, "the batch")))
        named.append(binding)
    compare("largest_batch", cases, right_batch, BATCH_SLIPS, describe=described)
    for question, binding in zip(questions, named):
        batch = right_batch(*question)
        allowed = refused_by(question, batch + 1)
        about = {"allowed": " or ".join(allowed), "binding": shown(binding)}
        expect(binding in allowed, "wrong_binding_limit", 0.5, asked=described(*question), batch=batch, **about)


def each_binds(answer: Answer, rng: random.Random) -> None:
    questions = [some_question(rng, binding) for binding in RESOURCES * 4]
    batches(answer, questions)


def exactly_full(answer: Answer, rng: random.Random) -> None:
    questions = [exact_question(rng, 3) for _ in range(3)]
    for _ in range(3):
        replica, load, limit_s = some_question(rng, "kv")
        need = whole_length(load["prompt"], load["answer"])
        questions.append(({**replica, "kv_tokens": right_batch(replica, load, limit_s) * need}, load, limit_s))
    replica, load, limit_s = some_question(rng, "slots")
    need = whole_length(load["prompt"], load["answer"])
    questions += [({**replica, "kv_tokens": need - 1}, load, limit_s), (replica, load, replica["fixed_s"] / 2)]
    questions += [({**replica, "kv_tokens": need}, load, limit_s), ({**replica, "slots": 1}, load, limit_s)]
    batches(answer, questions)


def planned(answer: Answer, question: Question) -> dict[str, Any]:
    found = table(answer.plan(*question), "plan(...)")
    missing = sorted({"replicas", "batch", "binding", "usd_per_million_tokens"} - set(found))
    expect(not missing, "plan_lacks_keys", missing=shown(missing), there=shown(sorted(map(str, found))))
    return found


def judge_plan(
    answer: Answer, questions: Sequence[Question], key: str, right: Callable[..., Any], slips: Slips
) -> None:
    found = [planned(answer, question) for question in questions]
    cases = [(question, maybe(number)(own[key], key)) for question, own in zip(questions, found)]
    compare(key, cases, right, slips, describe=described)


def usual(rng: random.Random) -> list[Question]:
    """Plans whose number of replicas is not close to a whole one."""
    found = []
    while len(found) < 9:
        replica, load, limit_s = some_question(rng, RESOURCES[len(found) % 3])
        needed = load["rate"] * load["burst"] / per_second(replica, load, right_batch(replica, load, limit_s))
        if abs(needed - round(needed)) > 1e-6:
            found.append((replica, load, limit_s))
    return found


def replicas(answer: Answer, rng: random.Random) -> None:
    questions = usual(rng) + [exact_question(rng, count) for count in (1, 2, 3, 5)]
    replica, load, limit_s = some_question(rng, "slots")
    questions.append((replica, {**load, "rate": 0.0}, limit_s))
    judge_plan(answer, questions, "replicas", right_replicas, REPLICA_SLIPS)
    question = (replica, load, replica["fixed_s"] / 2)
    found = planned(answer, question)["replicas"]
    expect(found is None, "limit_out_of_reach", 0.5, asked=described(*question), found=shown(found))
    for question in questions[:6]:
        found, batch = planned(answer, question), right_batch(*question)
        is_right = found["batch"] == batch and found["binding"] in refused_by(question, batch + 1)
        said = {key: shown(found[key]) for key in ("batch", "binding")}
        expect(is_right, "plan_disagrees_with_batch", 0.5, **said)


def cost(answer: Answer, rng: random.Random) -> None:
    questions = usual(rng)
    replica, load, limit_s = questions[0]
    questions.append((replica, {**load, "rate": 0.02}, limit_s))
    judge_plan(answer, questions, "usd_per_million_tokens", right_price, PRICE_SLIPS)
    unsold, too_slow = (replica, {**load, "rate": 0.0}, limit_s), (replica, load, replica["fixed_s"] / 2)
    for question, why in ((unsold, "nothing is sold"), (too_slow, "nothing fits")):
        found = planned(answer, question)["usd_per_million_tokens"]
        expect(found is None, "price_without_tokens", 0.5, asked=described(*question), found=shown(found), why=why)
