"""The claims of lesson 04: prefix caching."""

from collections.abc import Callable, Mapping

from course.lab import simulated_70b
from course.lab.claims import Claim, say
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
        say(
            "F1.measured",
            hits=hits,
            of=of,
            later_ttft=traffic.later_ttft(first),
            later=later,
            last_ttft=traffic.later_ttft(last),
            clocks=clocks,
        ),
        say("F1.only_when") if lost and later > 0.2 else say("F1.not_shown") if not lost else say("F1.not_shown_2"),
    )


def f5(found: Mapping[int, tuple[float, float]], here: Mapping[str, Run]) -> Claim:
    """A shared prefix of 2000 tokens, cold and warm. `found`: prefix length -> (cold, warm) TTFT at 70B."""
    cold, warm = found[F5_PREFIX]
    left = warm / cold
    small = min(found)
    last = here["last line"]
    local = f"{seconds(_first(last))} and {seconds(traffic.later_ttft(last))}"
    measured = say(
        "F5.measured",
        cold=cold,
        warm=warm,
        left=left,
        small=small,
        small_cold=found[small][0],
        small_warm=found[small][1],
        last=last,
        local=local,
    )
    if left <= 0.1:
        verdict = say("F5.holds")
    elif left < 0.9:
        verdict = say("F5.only_when", left=left)
    else:
        verdict = say("F5.wrong")
    return Claim("F5", measured, verdict)


def f6(rates: Mapping[str, float]) -> Claim:
    """Grouped or in turns, in a cache with room for all, and in one without."""
    gain_small = rates["small cache, grouped"] - rates["small cache, in turns"]
    gain_roomy = rates["roomy cache, grouped"] - rates["roomy cache, in turns"]
    return Claim(
        "F6",
        "; ".join(f"{name}: {rate:.0%} found" for name, rate in rates.items()) + ".",
        say("F6.only_when")
        if gain_small > 0.1 and abs(gain_roomy) < 0.05
        else say("F6.holds")
        if gain_small > 0.1
        else say("F6.not_shown"),
    )


def d9(cached: Run, plain: Run, large: Mapping[int, float]) -> Claim:
    """A session's TTFT, turn by turn: the share that the cache saves. `large`: the same at 70B, by turn."""
    here = tables.cuts(cached, plain)
    found = [view.num_cached_tokens / view.num_prompt_tokens for view in cached.views]
    turn, last = max(here), max(large)
    grows = found[0] == 0 and abs(here[1]) < 0.2 and found[-1] > 0.3 and here[turn] > 0 and large[last] > large[1] + 0.1
    return Claim(
        "D9",
        say(
            "D9.measured",
            by_turn=_by_turn(here),
            found=", ".join(f"{share:.0%}" for share in found),
            by_turn_70b=_by_turn(large),
        ),
        say("D9.only_when", turn=turn, turn_saved=here[turn], last=last, last_saved=large[last])
        if grows
        else say("D9.not_shown"),
    )


def d13(by_gap: Mapping[float, Mapping[str, float]], agree: tuple[int, int]) -> Claim:
    """A time limit against LRU, by how long users stay away."""
    short, long = min(by_gap), max(by_gap)
    limit = next(name for name in by_gap[short] if "since use" in name)
    gaps = "; ".join(say("D13.gaps", gap=gap, limit=rates[limit], rates=rates) for gap, rates in by_gap.items())
    lost = {gap: rates["LRU"] - rates[limit] for gap, rates in by_gap.items()}
    return Claim(
        "D13",
        say("D13.measured", gaps=gaps, agree=agree),
        say("D13.only_when", short=100 * lost[short], short_gap=short, long=100 * lost[long], long_gap=long)
        if lost[long] > lost[short] + 0.1 and agree[0] == agree[1]
        else say("D13.not_shown")
        if agree[0] != agree[1]
        else say("D13.not_shown_2"),
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
    chat = traffic.conversation(lab)
    cached, plain = lab.run(chat), lab.run(chat, enable_prefix_caching=False)
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
