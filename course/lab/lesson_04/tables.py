"""The lesson's tables."""

from collections.abc import Mapping

from course.lab.display import Html, as_table
from course.lab.lab import Lab
from course.lab.lesson_04 import cache_model, template
from course.lab.lesson_04.chain import block_size_of
from course.lab.lesson_04.traces import STAMPS, clocked, trace_of_prompts
from course.lab.lesson_04.traffic import hit_rate, later_ttft, short_prefix
from course.lab.predict import Outcome
from course.lab.run import Run
from course.lab.style import change, seconds

HARDLY, LESS = "hardly changes: there are as many tokens as before", "falls, but by less than half"
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


def clock_table() -> Html:
    """A clock in the first line that moves on more or less often: a request every 7 s, counted with the model."""
    rows = [
        (f"moves on once {name}", f"{cache_model.hit_rate(clocked(coarse)):.0%}") for name, coarse in STAMPS.items()
    ]
    return as_table(("the first line's clock", "prompt tokens found"), rows)


def runs_table(runs: Mapping[str, Run]) -> Html:
    """Hit rate, tokens computed, and TTFT of each run."""
    header = ("run", "found", "prompt tokens computed", "median TTFT after the first")
    return as_table(header, [_figures(name, run) for name, run in runs.items()])


def orders_table(runs: Mapping[str, Run]) -> Html:
    """The same of tenants' runs, and how many requests the last tenant's first one had to let pass."""
    header = ("run", "found", "tokens computed", "TTFT, later ones", "before tenant C's first")
    return as_table(
        header, [(*_figures(name, run), f"{before_last_tenant(run)} requests") for name, run in runs.items()]
    )


def before_last_tenant(run: Run) -> int:
    """Requests that were sent before the first one of the tenant who comes last."""
    names = [output.prompt.split(".")[0] for output in run.outputs]
    return max(names.index(name) for name in names)


def _figures(name: str, run: Run) -> tuple[str, ...]:
    computed = sum(view.num_prompt_tokens - view.num_cached_tokens for view in run.views)
    return (name, f"{hit_rate(run):.0%}", str(computed), seconds(later_ttft(run)))


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


def turns_table(with_cache: Run, without: Run) -> Html:
    """A conversation, turn by turn, with and without the cache."""
    rows = [
        (
            f"turn {i + 1}",
            str(cached.view.num_prompt_tokens),
            f"{cached.view.num_cached_tokens / cached.view.num_prompt_tokens:.0%}",
            seconds(_ttft(plain)),
            seconds(_ttft(cached)),
            change(_ttft(plain), _ttft(cached)),
        )
        for i, (cached, plain) in enumerate(zip(with_cache.rows, without.rows))
    ]
    return as_table(("", "prompt tokens", "of them found", "TTFT, cache off", "TTFT, cache on", "change"), rows)


def _ttft(row: object) -> float:
    view = row.view
    return view.deliveries[0] - view.borders[0]
