"""The claims of lesson 04: prefix caching."""

from collections.abc import Callable, Mapping

from course.lab import simulated_70b
from course.lab.claims import Claim, conclude, say
from course.lab.lab import Lab
from course.lab.run import Run
from course.lab.style import seconds
from course.lessons.lesson_04 import policies, tables, tenants, traffic
from course.lessons.lesson_04.cache_model import hit_rate
from course.lessons.lesson_04.traces import STAMPS, clocked

F5_PREFIX = 2000
GAPS_S = (180, 600, 3600)
"""Mean gaps between a user's turns: the article's own, and two longer ones. Seconds."""


def f1(first: Run, last: Run) -> Claim:
    """A time at the start, against the same time at the end."""
    lost, later = traffic.hit_rate(first) < 0.05, traffic.hit_rate(last)
    return conclude(
        "F1", "not_shown" if not lost else "only_when" if later > 0.2 else "not_shown_2",
        hits=sum(view.num_cached_tokens > 0 for view in first.views[1:]), of=len(first.views) - 1, later=later,
        later_ttft=traffic.later_ttft(first), last_ttft=traffic.later_ttft(last),
        clocks=", ".join(f"once {name} {hit_rate(clocked(coarse)):.0%}" for name, coarse in STAMPS.items()),
    )  # fmt: skip


def f5(found: Mapping[int, tuple[float, float]], here: Mapping[str, Run]) -> Claim:
    """A shared prefix of 2000 tokens, cold and warm. `found`: prefix length -> (cold, warm) TTFT at 70B."""
    cold, warm = found[F5_PREFIX]
    left, small = warm / cold, min(found)
    small_cold, small_warm = found[small]
    last = here["last line"]
    first_ttft = next(value for value in traffic.ttfts(last) if value is not None)
    return conclude(
        "F5", "holds" if left <= 0.1 else "only_when" if left < 0.9 else "wrong", cold=cold, warm=warm, left=left,
        small=small, small_cold=small_cold, small_warm=small_warm, last=last,
        local=f"{seconds(first_ttft)} and {seconds(traffic.later_ttft(last))}",
    )  # fmt: skip


def f6(rates: Mapping[str, float]) -> Claim:
    """Grouped or in turns, in a cache with room for all, and in one without."""
    gain_small = rates["small cache, grouped"] - rates["small cache, in turns"]
    gain_roomy = rates["roomy cache, grouped"] - rates["roomy cache, in turns"]
    verdict = "not_shown" if gain_small <= 0.1 else "only_when" if abs(gain_roomy) < 0.05 else "holds"
    return conclude("F6", verdict, found="; ".join(f"{name}: {rate:.0%} found" for name, rate in rates.items()))


def d9(cached: Run, plain: Run, large: Mapping[int, float]) -> Claim:
    """A session's TTFT, turn by turn: the share that the cache saves. `large`: the same at 70B, by turn."""
    here = tables.cuts(cached, plain)
    found = [view.num_cached_tokens / view.num_prompt_tokens for view in cached.views]
    turn, last = max(here), max(large)
    grows = found[0] == 0 and abs(here[1]) < 0.2 and found[-1] > 0.3 and here[turn] > 0 and large[last] > large[1] + 0.1
    return conclude(
        "D9", "only_when" if grows else "not_shown", by_turn=_by_turn(here),
        found=", ".join(f"{share:.0%}" for share in found), by_turn_70b=_by_turn(large), turn=turn,
        turn_saved=here[turn], last=last, last_saved=large[last],
    )  # fmt: skip


def d13(by_gap: Mapping[float, Mapping[str, float]], agree: tuple[int, int]) -> Claim:
    """A time limit against LRU, by how long users stay away."""
    short, long = min(by_gap), max(by_gap)
    limit = next(name for name in by_gap[short] if "since use" in name)
    lost = {gap: 100 * (rates["LRU"] - rates[limit]) for gap, rates in by_gap.items()}
    is_modelled = agree[0] == agree[1]
    return conclude(
        "D13", "not_shown" if not is_modelled else "only_when" if lost[long] > lost[short] + 10 else "not_shown_2",
        gaps="; ".join(say("D13.gaps", gap=gap, limit=rates[limit], rates=rates) for gap, rates in by_gap.items()),
        agree=agree, short=lost[short], short_gap=short, long=lost[long], long_gap=long,
    )  # fmt: skip


def _by_turn(saved: Mapping[int, float]) -> str:
    return ", ".join(f"{turn}: {100 * share:.0f}%" for turn, share in saved.items())


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
