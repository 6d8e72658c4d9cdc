"""`minillm bench speculation`: what speculative decoding gains, and where it gains nothing or loses.

The same prompts are answered with and without it. One request at a time is where it is at home; short answers,
a crowd, and sampling at a high temperature are where it is not, and its gates should notice.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from course.measure.scoring import TEXTS, load_items
from minillm.bench.report import BenchmarkResult
from minillm.bench.target import Target
from minillm.bench.turns import in_turns
from minillm.core.errors import ConfigError
from minillm.core.params import SamplingParams
from minillm.frontend.engine import Engine
from minillm.frontend.outputs import RequestOutput
from minillm.model.loader import load_model
from minillm.observe.speculation import SpeculationSummary
from minillm.observe.spread import Spread
from minillm.observe.tables import text_table
from minillm.policies.config import READ_BY, SpeculativeConfig
from minillm.text_files import read_text

OFF = "off"
COLUMNS = ("", "tokens/s", "speedup", "decode alone", "per verify", "same text", "accepted by position")


@dataclass(frozen=True, slots=True)
class SpeculationJob:
    """Prompts, and how they are served."""

    name: str
    title: str
    prompts: Sequence[str]
    max_tokens: int
    at_once: int = 1
    temperature: float = 0.0


@dataclass(frozen=True, slots=True)
class SpeculationRun:
    """One job, served once."""

    seconds: float
    decode_s: float
    """Seconds from first to last token, summed over the requests."""
    num_tokens: int
    speculation: SpeculationSummary
    texts: Sequence[Sequence[int]] = ()
    """What was answered, as tokens, in the order of the prompts."""

    @property
    def tokens_per_s(self) -> float:
        return self.num_tokens / self.seconds

    @property
    def tpot(self) -> float:
        """Decode seconds per token after the first."""
        return self.decode_s / self.num_tokens


@dataclass(frozen=True, slots=True)
class SpeculationResult:
    """One way of drafting on one job. Ratios are taken within each repeat."""

    job: str
    method: str
    tokens_per_s: Spread
    speedup: Spread
    """Tokens per second, prompts included, over those without drafts."""
    decode_speedup: Spread
    """The same of decoding alone."""
    emitted_per_verify: float | None
    acceptance_at: list[float]
    same_text: float | None
    """The share of the answers that are, token by token, those without drafts; None where tokens are drawn. In 16 bits
    it may be less than 1: a row that is computed beside others is rounded differently, and near ties turn."""


def make_jobs(quick: bool, prompts: Path | None = None) -> list[SpeculationJob]:
    """The jobs at home, then those that are not.

    Args:
        prompts: a file with a prompt on each line, for a job "yours"; it is then the only one.
    Raises:
        ConfigError: the file cannot be read, or has no prompt in it.
    """
    if prompts is not None:
        try:
            lines = [line.strip() for line in read_text(prompts).splitlines() if line.strip()]
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--prompts {prompts} cannot be read: {error}") from error
        if not lines:
            raise ConfigError(f"--prompts {prompts}: there is no prompt in it; it wants one on each line")
        return [SpeculationJob("yours", f"prompts of {prompts.name}, one at a time", lines, 8 if quick else 96)]
    chat = (TEXTS / "chat_prompts.txt").read_text(encoding="utf-8").splitlines()
    copy = load_items("copy_prompts")
    if quick:
        return [
            SpeculationJob("chat", "everyday questions", chat[:2], 8),
            SpeculationJob("copy", "copying", copy[:1], 8),
        ]
    return [
        SpeculationJob("chat", "everyday questions, one at a time", chat[:10], 96),
        SpeculationJob("copy", "copying, quoting, editing, one at a time", copy, 128),
        SpeculationJob("few", "everyday questions, 4 at once", chat[:8], 64, at_once=4),
        SpeculationJob("short", "answers of 6 tokens, one at a time", chat[:10], 6),
        SpeculationJob("crowd", "16 questions at once", chat, 64, at_once=16),
        SpeculationJob("hot", "everyday questions at temperature 1.5", chat[:6], 64, temperature=1.5),
    ]


def run(
    target: Target,
    quick: bool,
    methods: Sequence[str],
    names: Sequence[str] | None,
    repeats: int,
    prompts: Path | None = None,
) -> BenchmarkResult:
    """Measure. The methods take turns within every repeat.

    Args:
        methods: values of `SpeculativeConfig.method`, each with its defaults, or as `target`'s fields say.
        names: which jobs to run; None = all.
        prompts: see make_jobs.
    Raises:
        ConfigError, ModelError: see Engine and make_jobs. ConfigError also if the fields are of a method that is not
            measured, or there is no job of such a name.
    """
    jobs = make_jobs(quick, prompts)
    if unknown := sorted(set(names or ()).difference(job.name for job in jobs)):
        present = ", ".join(job.name for job in jobs)
        raise ConfigError(f"no job {', '.join(unknown)}{' with --quick' if quick else ''}: there is only {present}")
    chosen = [job for job in jobs if names is None or job.name in names]
    repeats, config = 1 if quick else repeats, target.config()
    if config.speculative is not None and config.speculative.method not in methods:
        raise ConfigError(f"--set says speculative.method={config.speculative.method}: give it as a --method, too")
    fields = {OFF: None, **{method: speculative_fields(config.speculative, method) for method in methods}}
    loaded = load_model(config)
    engines = {name: Engine(config.replace(speculative=given), loaded) for name, given in fields.items()}
    results = []
    for job in chosen:
        ways = {name: partial(serve, engine, job) for name, engine in engines.items()}
        runs = in_turns(ways, repeats, label=job.name)
        results += [summarize(job, name, taken, runs[OFF]) for name, taken in runs.items()]
    titles = {job.name: f"{job.title}; {len(job.prompts)} of up to {job.max_tokens} tokens" for job in chosen}
    tables = [
        f"\n{name}: {title}\n{text_table(COLUMNS, [_cells(row) for row in results if row.job == name])}"
        for name, title in titles.items()
    ]
    specified = {name: engine.config.speculative for name, engine in engines.items()}
    return BenchmarkResult.on(
        engines[OFF],
        results,
        {"repeats": repeats},
        "\n".join(["with drafts, and without", *tables]),
        jobs=titles,
        speculative={name: given.model_dump() for name, given in specified.items() if given is not None},
    )


def speculative_fields(given: SpeculativeConfig | None, method: str) -> dict[str, Any]:
    """What was given, without what another method alone reads."""
    fields = given.model_dump(exclude_unset=True) if given else {}
    read = {name: value for name, value in fields.items() if method in READ_BY.get(name, (method,))}
    return {**read, "method": method}


def serve(engine: Engine, job: SpeculationJob) -> SpeculationRun:
    """Answer the prompts, `at_once` of them at a time, with a cold prefix cache. Answers end where the model ends
    them: what would come after that is no chat."""
    engine.reset_prefix_cache()
    params = SamplingParams(temperature=job.temperature, max_tokens=job.max_tokens, seed=0)
    waiting = [[{"role": "user", "content": prompt}] for prompt in job.prompts]
    done: list[RequestOutput] = []
    order: list[str] = []
    begin = time.perf_counter()
    while waiting or len(done) < len(order):
        while waiting and len(order) - len(done) < job.at_once:
            order.append(engine.add_request(waiting.pop(0), params, stream=False))
        done += engine.step()
    seconds = time.perf_counter() - begin
    timelines = [output.timeline for output in done]
    said = {output.request_id: output.token_ids for output in done}
    return SpeculationRun(
        seconds=seconds,
        decode_s=sum(t.phases()["decode"] for t in timelines),
        num_tokens=sum(t.num_tokens for t in timelines),
        speculation=SpeculationSummary.of_requests(done),
        texts=[said[name] for name in order],
    )


def summarize(
    job: SpeculationJob, method: str, runs: Sequence[SpeculationRun], off: Sequence[SpeculationRun]
) -> SpeculationResult:
    """Figures of one method on one job; `off` are the runs of the same repeats without drafts."""
    last = runs[-1].speculation
    pairs = [pair for run, base in zip(runs, off) for pair in zip(run.texts, base.texts)]
    drawn = job.temperature > 0 or not pairs
    return SpeculationResult(
        job=job.name,
        method=method,
        tokens_per_s=Spread.of([run.tokens_per_s for run in runs]),
        speedup=Spread.of_ratios((run.tokens_per_s for run in runs), (base.tokens_per_s for base in off)),
        decode_speedup=Spread.of_ratios((base.tpot for base in off), (run.tpot for run in runs)),
        emitted_per_verify=last.emitted_per_verify,
        acceptance_at=last.acceptance_at,
        same_text=None if drawn else sum(with_drafts == without for with_drafts, without in pairs) / len(pairs),
    )


def _cells(result: SpeculationResult) -> list[str]:
    return [
        result.method,
        f"{result.tokens_per_s.median:.1f}",
        result.speedup.text(),
        result.decode_speedup.text(),
        "" if result.emitted_per_verify is None else f"{result.emitted_per_verify:.2f}",
        "" if result.same_text is None else f"{result.same_text:.0%}",
        " ".join(f"{share:.0%}" for share in result.acceptance_at),
    ]
