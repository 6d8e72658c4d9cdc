"""What the runs of lesson 07b showed: its findings and its claim."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from course.lab.claims import Claim, conclude, say
from course.lab.display import Html
from course.lab.finding import Finding, tell
from course.lab.know_cold import know_cold
from course.lab.lab import Lab
from course.lab.pool_trace import PoolTrace
from course.lab.predict import MeasuredAnswer
from course.lab.style import seconds
from course.lessons.lesson_07 import run as lesson_07
from course.lessons.lesson_07.run import Account
from course.lessons.lesson_07b import run
from course.lessons.lesson_07b.run import ALL, SOME, Found, Loss, later_ttft, recalled
from course.measure.quality import QualityLimits
from course.simulator.cluster.run import FleetRun
from course.simulator.cost.hardware import find_hardware
from course.simulator.cost.models import find_model

# ---------------------------------------------------------------- findings


def forgotten(found: Mapping[str, Mapping[int, Found]]) -> Finding:
    """What became of the needle once it had left the window."""
    whole, *_, windowed = found.values()
    far = max(windowed)
    share = recalled({**whole, far: windowed[far]}, far)
    outcome = "kept" if share >= ALL else "some" if share >= SOME else "gone"
    if not run.can_recall(found):
        outcome = "never_there"
    return tell("07b", "needle", outcome, far=far, whole=whole[far].share, windowed=windowed[far].share)


def rounding(found: Mapping[str, Loss]) -> Finding:
    """Whether int8 KV kept the limits, beside what it saves."""
    loss = found["KV in int8"]
    limits, broken = QualityLimits(), loss.broken(QualityLimits())
    outcome = "toss_up" if broken == ["likeliest token"] else "broken" if broken else "kept"
    without, with_sinks = list(found.values())[1:]
    sinks_matter = without.rise > limits.perplexity_rise and with_sinks.rise < without.rise / 2
    sinks = f" {tell('07b', 'sinks', 'most_of_it').here}" if sinks_matter else ""
    told = {"share": loss.kv_share, "rise": loss.rise, "kl": loss.kl, "agreement": loss.agreement}
    return tell("07b", "rounding", outcome, **told, broken=", ".join(broken), sinks=sinks)


PAYS = ("both", "host memory only", "the remote store only", "neither")
CLEARLY = 0.8
"""A median TTFT below this share of another one is clearly shorter."""


def which_pays(fleets: Mapping[str, FleetRun]) -> MeasuredAnswer:
    """Which tiers shorten the TTFT of later turns: the answer to a prediction."""
    alone, host, store = map(later_ttft, fleets.values())
    pays = tuple(each < CLEARLY * alone for each in (host, store))
    answer = {(True, True): PAYS[0], (True, False): PAYS[1], (False, True): PAYS[2], (False, False): PAYS[3]}[pays]
    told = f"TTFT p50 of later turns {seconds(alone)} without a tier, {seconds(host)} with host memory"
    return MeasuredAnswer(answer, f"{told}, {seconds(store)} with the store")


def tiered(fleets: Mapping[str, FleetRun]) -> Finding:
    """Which tier paid."""
    (alone, host, store), rates = map(later_ttft, fleets.values()), [run.prefix_hit_rate for run in fleets.values()]
    outcome = "both_pay" if store < CLEARLY * alone else "store_gains_little"
    return tell("07b", "tiers", outcome, alone=alone, host=host, store=store, before=rates[0], after=rates[1])


# ---------------------------------------------------------------- the claim

D14_SAVED, D14_WINDOW = 0.7, 2048
D14_LENGTHS = (1500, 4096, 8192, 32768)


def d14(model: Account, windowed: PoolTrace, window: int, found: Mapping[str, Mapping[int, Found]]) -> Claim:
    """What a window frees, by length; that the engine really gives it back; what is lost.

    Args:
        windowed: a trace of one long request; `window` its size.
        found: needles, by name of the configuration: all in sight first, the window with sinks last.
    """
    cut, uncut = replace(model, window=D14_WINDOW), replace(model, window=None)
    frees = {n: 1 - cut.chat_bytes_at(n) / uncut.chat_bytes_at(n) for n in D14_LENGTHS}
    tokens, held = windowed.blocks_of(0)[-1]
    back = -(-tokens // windowed.block_size) - held
    whole, *_, with_window = found.values()
    far = max(with_window)
    before, after = run.recalled(whole, far), run.recalled({**whole, far: with_window[far]}, far)
    if before - after <= run.SOME:
        price = "D14.lost_nothing"
    else:
        price = "D14.lost_all" if after < run.SOME else "D14.lost_part"
    return conclude(
        "D14",
        "only_at_one_length" if back > 0 else "no_block_came_back",
        d14_window=D14_WINDOW,
        told=", ".join(f"{n:,} tokens: {share:.0%}" for n, share in frees.items()),
        window=window,
        tokens=tokens,
        back=back,
        held=held,
        far=far,
        share_whole=whole[far].share,
        share_cut=with_window[far].share,
        sinks=run.SINKS,
        even=D14_WINDOW / (1 - D14_SAVED),
        price=say(price),
    )


def _measure_d14(lab: Lab) -> Claim:
    window, _ = run.probe(lab)
    *_, with_sinks = run.windows(lab).values()
    grown = run.growing(lab, **with_sinks)
    return d14(lesson_07.large(lesson_07.accounts(lab)), grown, window, run.looking(lab))


HALF = 0.5
"""Share of the data sheet's FLOP/s that prefill reaches, in these estimates."""


def break_even_gb(model: str, gpus: int) -> float:
    """GB/s, all GPUs together, above which fetching a long prefix beats prefilling it: KV bytes of a token over the
    seconds that its 2 FLOPs a weight take."""
    shape = find_model(model)
    flops = gpus * HALF * find_hardware("h100-sxm").flops["bfloat16"]
    return shape.kv_bytes_per_token("bfloat16") * flops / (2 * shape.layer_params) / 1e9


def three_numbers() -> Html:
    """The lesson's three numbers."""
    big = find_model("llama-3-70b")
    kept = big.kv_bytes_per_token("int8") / big.kv_bytes_per_token("bfloat16")
    border = big.layer_params / (big.layers * big.query_size)
    how = "KV bytes per token × useful FLOP/s / (2 × weights)"
    return know_cold(
        (
            f"{break_even_gb('llama-3-70b', 4):.1f} and {break_even_gb('llama-3.1-8b', 1):.1f} GB/s",
            "link speed above which fetching beats prefilling: a 70B on four H100s, an 8B on one",
            how,
        ),
        (
            f"{kept:.0%}",
            "of the bytes: KV in 8 bits, with a scale per token and head",
            "(128 + 2) / 256 B for a head of 128",
        ),
        (
            f"{border / 1e3:.0f}k tokens",
            "length of a prompt at which attention takes as many FLOPs as the rest, 70B",
            "weights / (layers × query size)",
        ),
    )


EXPERIMENT = ("lab/model_shape.py", "lab/pool_trace.py", "lessons/lesson_07/run.py")
MEASURE: dict[str, Callable[[Lab], Claim]] = {"D14": _measure_d14}
