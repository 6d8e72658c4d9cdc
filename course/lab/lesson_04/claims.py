"""The claims of lesson 04: prefix caching."""

from collections.abc import Callable, Mapping

from course.lab import simulated_70b
from course.lab.claims import LAYERS, TECHNIQUES, Claim
from course.lab.lab import Lab
from course.lab.lesson_04 import policies, tables, tenants, traffic
from course.lab.lesson_04.cache_model import hit_rate
from course.lab.lesson_04.traces import STAMPS, clocked
from course.lab.run import Run
from course.lab.style import seconds

F5_PREFIX = 2000
GAPS_S = (180, 600, 3600)
"""Mean gaps between a user's turns: the article's own, and two longer ones. Seconds."""


def f1(first: Run, last: Run) -> Claim:
    """A time at the start, against the same time at the end."""
    hits = sum(view.num_cached_tokens > 0 for view in first.views[1:])
    lost, later, of = traffic.hit_rate(first) < 0.05, traffic.hit_rate(last), len(first.views) - 1
    clocks = ", ".join(f"once {name} {hit_rate(clocked(coarse)):.0%}" for name, coarse in STAMPS.items())
    return Claim(
        "F1",
        "A timestamp or a session id at the start of the system prompt makes every request a cache miss.",
        LAYERS,
        f"in the first line: {hits} of {of} later requests found anything, TTFT {seconds(traffic.later_ttft(first))}; "
        f"in the last line: {later:.0%} of all prompt tokens found, TTFT {seconds(traffic.later_ttft(last))}. A clock "
        f"in the first line that moves on, a request every 7 s: {clocks} found.",
        "holds only when the value changes from request to request and stands in front of what is shared. The clock's "
        "resolution decides as much as its place. A value in the middle costs what stands behind it; what stands "
        "before it is still found, block by block."
        if lost and later > 0.2
        else "not shown by this run: the time in front did not keep everything from being found."
        if not lost
        else "not shown by this run: with the time at the end there was little to find, either.",
    )


def f5(found: Mapping[int, tuple[float, float]], here: Mapping[str, Run]) -> Claim:
    """A shared prefix of 2000 tokens, cold and warm. `found`: prefix length -> (cold, warm) TTFT at 70B."""
    cold, warm = found[F5_PREFIX]
    left = warm / cold
    small = min(found)
    last = here["last line"]
    local = f"{seconds(_first(last))} and {seconds(traffic.later_ttft(last))}"
    measured = (
        f"70B on four H100s, simulated, nobody else there: {seconds(cold)} cold, {seconds(warm)} warm "
        f"({left:.0%} is left); with a prefix of {small}: {seconds(found[small][0])} and {seconds(found[small][1])}. "
        f"Here, a prompt of {last.views[0].num_prompt_tokens} tokens: {local}."
    )
    said = "Prefix caching nearly removes TTFT when 2000 tokens of prompt are shared."
    if left <= 0.1:
        verdict = "holds: nine tenths of TTFT are gone. What is left is the question's own prefill, and a step's floor."
    elif left < 0.9:
        verdict = (
            "holds only when prefill is what TTFT is made of. The prefix's prefill is gone, whole; what is left is the "
            f"question, a step's fixed cost and the queue: {left:.0%} of TTFT here. The first request pays in full."
        )
    else:
        verdict = "wrong, on this hardware: prefill of the prefix was not what TTFT was made of."
    return Claim("F5", said, LAYERS, measured, verdict)


def f6(rates: Mapping[str, float]) -> Claim:
    """Grouped or in turns, in a cache with room for all, and in one without."""
    gain_small = rates["small cache, grouped"] - rates["small cache, in turns"]
    gain_roomy = rates["roomy cache, grouped"] - rates["roomy cache, in turns"]
    return Claim(
        "F6",
        "Sending requests that share a prefix together raises the hit rate.",
        LAYERS,
        "; ".join(f"{name}: {rate:.0%} found" for name, rate in rates.items()) + ".",
        "holds only when the cache cannot keep all prefixes until they are asked for again: then order is everything. "
        "With room for all, order changes nothing. And grouping makes the last group wait: it is for batch work."
        if gain_small > 0.1 and abs(gain_roomy) < 0.05
        else "holds, here, in the roomy cache as well as in the small one."
        if gain_small > 0.1
        else "not shown by this run: order made no difference to what was found.",
    )


def d9(cached: Run, plain: Run, large: Mapping[int, float]) -> Claim:
    """A session's TTFT, turn by turn: the share that the cache saves. `large`: the same at 70B, by turn."""
    here = tables.cuts(cached, plain)
    found = [view.num_cached_tokens / view.num_prompt_tokens for view in cached.views]
    turn, last = max(here), max(large)
    grows = found[0] == 0 and abs(here[1]) < 0.2 and found[-1] > 0.3 and here[turn] > 0 and large[last] > large[1] + 0.1
    return Claim(
        "D9",
        "Reusing the KV cache across a session cuts TTFT by 60%.",
        TECHNIQUES,
        f"TTFT saved by turn, here: {_by_turn(here)}; of their prompts, {', '.join(f'{share:.0%}' for share in found)} "
        f"was found. At 70B, simulated, short messages: {_by_turn(large)} saved.",
        f"holds only when the history outweighs the new message. A first turn finds only what all share, here nothing; "
        f"turn {turn} here saves "
        f"{here[turn]:.0%}, turn {last} of short chats at 70B {large[last]:.0%}. 60% is one point on a curve: the "
        "share of the prompt that is found, times the share of TTFT that is prefill."
        if grows
        else "not shown by this run: the saving does not grow from turn to turn as it should, or turn 1, which finds "
        "nothing, seems to gain: noise.",
    )


def d13(by_gap: Mapping[float, Mapping[str, float]], agree: tuple[int, int]) -> Claim:
    """A time limit against LRU, by how long users stay away."""
    short, long = min(by_gap), max(by_gap)
    limit = next(name for name in by_gap[short] if "since use" in name)
    gaps = "; ".join(
        f"back after {gap:g} s on average: limit {rates[limit]:.0%}, LRU {rates['LRU']:.0%}, LRU in a quarter of the "
        f"memory {rates['LRU, a quarter of the room']:.0%}, ceiling {rates['ceiling']:.0%}"
        for gap, rates in by_gap.items()
    )
    lost = {gap: rates["LRU"] - rates[limit] for gap, rates in by_gap.items()}
    return Claim(
        "D13",
        "LRU instead of a time limit lifts the hit rate from 20% to 80%; alert below 60%.",
        TECHNIQUES,
        f"five-minute limit since the last use, ten users, six turns each. {gaps}. The model's LRU found what the "
        f"engine found in {agree[0]} of {agree[1]} requests.",
        f"holds only when users come back later than the limit, and memory holds them until then. LRU wins by "
        f"{100 * lost[short]:.0f} points at {short:g} s and by {100 * lost[long]:.0f} at {long:g} s. A session with a "
        "new key is a miss under every policy. And 60% is no law: alert on the distance to what an "
        "unlimited cache would find."
        if lost[long] > lost[short] + 0.1 and agree[0] == agree[1]
        else "not shown: the model does not agree with the engine, so it cannot speak for it."
        if agree[0] != agree[1]
        else "not shown by these traces: the time limit forgot hardly anything that was asked for again.",
    )


def _by_turn(saved: Mapping[int, float]) -> str:
    return ", ".join(f"{turn}: {100 * share:.0f}%" for turn, share in saved.items())


def _first(run: Run) -> float:
    return next(value for value in traffic.ttfts(run) if value is not None)


PLAIN: dict[str, object] = {"async_scheduling": False}
"""A step that is scheduled ahead does not know its newest token, so an answer's last block may stay without a name; the
cache model gives every full block one."""


def order_runs(lab: Lab) -> dict[str, Run]:
    """Three tenants, in turns and grouped, in a cache with room for all, and in one with room for two."""
    roomy = {how: lab.run(traffic.tenants(lab, how == "grouped"), **PLAIN) for how in ("in turns", "grouped")}
    room = traffic.room_for(roomy["in turns"], 2)
    small = {how: lab.run(traffic.tenants(lab, how == "grouped"), num_kv_blocks=room, **PLAIN) for how in roomy}
    return {
        f"{size} cache, {how}": run for size, runs in (("roomy", roomy), ("small", small)) for how, run in runs.items()
    }


def _f1(lab: Lab) -> Claim:
    return f1(*(lab.run(traffic.stamped(lab, place, 3)) for place in ("first line", "last line")))


def _f5(lab: Lab) -> Claim:
    here = {"last line": lab.run(traffic.stamped(lab, "last line", 3))}
    return f5(tenants.cold_and_warm(simulated_70b.deployment(), (250, F5_PREFIX)), here)


def _d9(lab: Lab) -> Claim:
    talk = traffic.conversation(lab)
    cached, plain = lab.run(talk), lab.run(talk, enable_prefix_caching=False)
    return d9(cached, plain, tenants.session_cuts(simulated_70b.deployment(), count=16))


def _d13(lab: Lab) -> Claim:
    run = lab.run(traffic.tenants(lab, grouped=False), **PLAIN)
    return d13(policies.by_gap(GAPS_S), policies.agreement(run))


MEASURE: dict[str, Callable[[Lab], Claim]] = {
    "D9": _d9,
    "D13": _d13,
    "F1": _f1,
    "F5": _f5,
    "F6": lambda lab: f6(policies.rates_of(order_runs(lab))),
}
