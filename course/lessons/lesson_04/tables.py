"""The lesson's tables."""

from collections.abc import Mapping

from course.lab.display import Html, as_table, table_by_name
from course.lab.lab import Lab
from course.lab.predict import Outcome
from course.lab.run import Run
from course.lab.style import seconds
from course.lessons.lesson_04 import cache_model, template
from course.lessons.lesson_04.chain import block_size_of
from course.lessons.lesson_04.traces import trace_of_prompts
from course.lessons.lesson_04.traffic import hit_rate, later_ttft, short_prefix

HARDLY, LESS = "hardly changes: the prompts are as long as before", "falls, but by less than half"
HALF, MORE = "falls to less than half", "rises"
FALLS = (HARDLY, LESS, HALF, MORE)
NOTHING, SOME, MOST = "next to nothing, as before", "about a third", "more than half"
SHARES = (NOTHING, SOME, MOST)


def moved(before: Run, after: Run) -> Outcome:
    """What became of TTFT, first requests apart."""
    was, now = later_ttft(before), later_ttft(after)
    ratio = now / was
    answer = MORE if ratio > 1.1 else HARDLY if ratio > 0.9 else LESS if ratio > 0.5 else HALF
    found = f"found {hit_rate(before):.0%} and then {hit_rate(after):.0%} of all prompt tokens"
    return Outcome(answer, f"median TTFT after the first request {seconds(was)} to {seconds(now)}; {found}")


def shared(run: Run) -> Outcome:
    """How much the cache found."""
    rate = hit_rate(run)
    answer = NOTHING if rate < 0.1 else SOME if rate < 0.5 else MOST
    return Outcome(answer, f"{rate:.0%} of all prompt tokens were found")


def ladder(lab: Lab) -> dict[str, float]:
    """After each of the template's fixes: what a roomy cache finds of the sample. Counted, not timed."""
    size = block_size_of(lab)
    return {
        name: cache_model.hit_rate(trace_of_prompts(lab, template.prompts(*template.step(name)), size))
        for name in template.STEPS
    }


def ladder_table(found: Mapping[str, float]) -> Html:
    """The fixes, and what each one added."""
    rows, before = [], 0.0
    for name, rate in found.items():
        rows.append((name, f"{rate:.0%}", f"{100 * (rate - before):+.0f} points" if rows else ""))
        before = rate
    return as_table(("fix, one after the other", "a cache can find", "the last fix added"), rows)


def runs_table(runs: Mapping[str, Run]) -> Html:
    """Hit rate, tokens computed, and TTFT of each run."""
    return table_by_name(
        "run",
        runs,
        {
            "found": lambda run: f"{hit_rate(run):.0%}",
            "prompt tokens computed": lambda run: str(
                sum(view.num_prompt_tokens - view.num_cached_tokens for view in run.views)
            ),
            "median TTFT after the first": lambda run: seconds(later_ttft(run)),
        },
    )


def block_runs(lab: Lab, share: float = 6.5, sizes: tuple[int, ...] = (1, 4, 16)) -> dict[int, Run]:
    """Block size -> a run of prompts that share about `share` of this machine's usual blocks."""
    usual = block_size_of(lab)
    traffic = short_prefix(lab, usual, share)
    return {usual * times: lab.run(traffic, block_size=usual * times, num_kv_blocks=384 // times) for times in sizes}


def blocks_table(runs: Mapping[int, Run]) -> Html:
    """What was shared, and what was found, by block size."""
    rows = []
    for size, run in runs.items():
        alike = shared_tokens(run)
        rows.append((f"{size} tokens", str(alike), str(max(view.num_cached_tokens for view in run.views))))
    return as_table(("block size", "tokens that the prompts share", "found by the later requests"), rows)


def shared_tokens(run: Run) -> int:
    """Leading tokens that all prompts of a run have in common."""
    prompts = [output.prompt_token_ids for output in run.outputs]
    return next((i for i, ids in enumerate(zip(*prompts)) if len(set(ids)) > 1), min(map(len, prompts)))


def cuts(with_cache: Run, without: Run) -> dict[int, float]:
    """Turn (from 1) -> share of TTFT that the cache saved."""
    pairs = zip(with_cache.rows, without.rows)
    return {i + 1: 1 - _ttft(cached) / _ttft(plain) for i, (cached, plain) in enumerate(pairs)}


def _ttft(row: object) -> float:
    view = row.view
    return view.deliveries[0] - view.borders[0]
