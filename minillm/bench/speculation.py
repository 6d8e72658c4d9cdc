"""`minillm bench speculation`: what speculative decoding gains, and where it gains nothing or loses.

The same prompts are answered with and without it. One request at a time is where it is at home; short answers,
a crowd, and sampling at a high temperature are where it is not, and its gates should notice.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from tqdm import tqdm

from minillm.bench.compare import Range
from minillm.bench.report import describe_engine, describe_machine, format_machine, make_report
from minillm.bench.target import Target
from minillm.core.errors import ConfigError
from minillm.core.known import known
from minillm.core.params import SamplingParams
from minillm.frontend.engine import Engine
from minillm.frontend.outputs import RequestOutput
from minillm.kernels.quantization import dtype_name
from minillm.model.loader import load_model
from minillm.observe.speculation import SpeculationSummary
from minillm.policies.config import READ_BY, SpeculativeConfig

OFF = "off"


@dataclass(frozen=True, slots=True)
class Job:
    """Prompts, and how they are served."""

    name: str
    title: str
    prompts: Sequence[str]
    max_tokens: int
    at_once: int = 1
    temperature: float = 0.0


@dataclass(frozen=True, slots=True)
class Run:
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
class Result:
    """One way of drafting on one job. Ratios are taken within each repeat."""

    job: str
    method: str
    tokens_per_s: Range
    speedup: Range
    """Tokens per second, prompts included, over those without drafts."""
    decode_speedup: Range
    """The same of decoding alone."""
    emitted_per_verify: float | None
    acceptance_at: list[float]
    same_text: float | None
    """The share of the answers that are, token by token, those without drafts; None where tokens are drawn. In 16 bits
    it may be less than 1: a row that is computed beside others is rounded differently, and near ties turn."""


def make_jobs(quick: bool, prompts: Path | None = None) -> list[Job]:
    """The jobs at home, then those that are not.

    Args:
        prompts: a file with a prompt on each line, for a job "yours"; it is then the only one.
    Raises:
        ConfigError: the file cannot be read, or has no prompt in it.
    """
    if prompts is not None:
        try:
            lines = [line.strip() for line in prompts.read_text(encoding="utf-8").splitlines() if line.strip()]
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--prompts {prompts} cannot be read: {error}") from error
        if not lines:
            raise ConfigError(f"--prompts {prompts}: there is no prompt in it; it wants one on each line")
        return [Job("yours", f"prompts of {prompts.name}, one at a time", lines, 8 if quick else 96)]
    files = resources.files("minillm.bench")
    chat = (files / "chat_prompts.txt").read_text().splitlines()
    copy = json.loads((files / "texts" / "copy_prompts.json").read_text())
    if quick:
        return [Job("chat", "everyday questions", chat[:2], 8), Job("copy", "copying", copy[:1], 8)]
    return [
        Job("chat", "everyday questions, one at a time", chat[:10], 96),
        Job("copy", "copying, quoting, editing, one at a time", copy, 128),
        Job("few", "everyday questions, 4 at once", chat[:8], 64, at_once=4),
        Job("short", "answers of 6 tokens, one at a time", chat[:10], 6),
        Job("crowd", "16 questions at once", chat, 64, at_once=16),
        Job("hot", "everyday questions at temperature 1.5", chat[:6], 64, temperature=1.5),
    ]


def run_speculation(
    target: Target,
    methods: Sequence[str],
    jobs: Sequence[str] | None,
    repeats: int,
    quick: bool,
    prompts: Path | None = None,
) -> dict[str, Any]:
    """Measure, and return the report. The methods take turns within every repeat.

    Args:
        methods: of `SpeculativeConfig.method`, each with its defaults, or as `target`'s fields say.
        jobs: names of those to run; None = all.
        prompts: see make_jobs.
    Raises:
        ConfigError, ModelError: see Engine and make_jobs. ConfigError also if the fields are of a method that is not
            measured, or there is no job of such a name.
    """
    all_jobs = make_jobs(quick, prompts)
    if unknown := set(jobs or ()) - {job.name for job in all_jobs}:
        raise ConfigError(
            f"no job {', '.join(sorted(unknown))}{' with --quick' if quick else ''}: there "
            f"{'are' if len(all_jobs) > 1 else 'is only'} "
            f"{', '.join(job.name for job in all_jobs)}"
        )
    machine, repeats = describe_machine(), 1 if quick else repeats
    config = target.config()
    configs = {method: speculative_fields(config.speculative, method) for method in methods}
    if config.speculative is not None and config.speculative.method not in methods:
        raise ConfigError(f"--set says speculative.method={config.speculative.method}: give it as a --method, too")
    loaded = load_model(config)
    engines = {OFF: Engine(config.replace(speculative=None), loaded)}
    for method, fields in configs.items():
        engines[method] = Engine(config.replace(speculative=fields), loaded)
    chosen = [job for job in all_jobs if jobs is None or job.name in jobs]
    results = []
    with tqdm(total=len(chosen) * len(engines) * (repeats + 1), unit="run", disable=None) as bar:
        for job in chosen:
            runs: dict[str, list[Run]] = {name: [] for name in engines}
            for repeat in range(repeats + 1):  # the first is there to warm up
                for name, engine in engines.items():
                    run = serve(engine, job)
                    runs[name] += [run] if repeat else []
                    bar.update()
            results += [summarize(job, name, taken, runs[OFF]) for name, taken in runs.items()]
    return make_report(
        machine,
        model=target.model,
        dtype=dtype_name(loaded.dtype),
        device=loaded.device,
        settings={"repeats": repeats, "quick": quick, "engine": describe_engine(engines[OFF])},
        results=results,
        jobs={job.name: f"{job.title}; {len(job.prompts)} of up to {job.max_tokens} tokens" for job in chosen},
        speculative={
            name: known(engine.config.speculative).model_dump() for name, engine in engines.items() if name != OFF
        },
    )


def speculative_fields(given: SpeculativeConfig | None, method: str) -> dict[str, Any]:
    """What was given, without what another method alone reads."""
    fields = given.model_dump(exclude_unset=True) if given else {}
    fields["method"] = method
    return {name: value for name, value in fields.items() if method in READ_BY.get(name, (method,))}


def serve(engine: Engine, job: Job) -> Run:
    """Answer the prompts, so many at once, with a cold prefix cache. Answers end where the model ends them: what would
    come after that is no chat."""
    engine.reset_prefix_cache()
    params = SamplingParams(temperature=job.temperature, max_tokens=job.max_tokens, seed=0)
    waiting = [[{"role": "user", "content": prompt}] for prompt in job.prompts]
    done: list[RequestOutput] = []
    order: list[str] = []
    begin, in_flight = time.perf_counter(), 0
    while waiting or in_flight:
        while waiting and in_flight < job.at_once:
            order.append(engine.add_request(waiting.pop(0), params, stream=False))
            in_flight += 1
        ended = engine.step()
        done += ended
        in_flight -= len(ended)
    seconds = time.perf_counter() - begin
    timelines = [output.timeline for output in done]
    decode_s = sum(t.phases()["decode"] for t in timelines)
    said = {output.request_id: output.token_ids for output in done}
    summary = SpeculationSummary.of_requests(done)
    return Run(seconds, decode_s, sum(t.num_tokens for t in timelines), summary, [said[name] for name in order])


def summarize(job: Job, method: str, runs: Sequence[Run], off: Sequence[Run]) -> Result:
    """Figures of one method on one job; `off` are the runs of the same repeats without drafts."""
    last = runs[-1].speculation
    pairs = [pair for run, base in zip(runs, off) for pair in zip(run.texts, base.texts)]
    drawn = job.temperature > 0 or not pairs
    return Result(
        job=job.name,
        method=method,
        tokens_per_s=Range.of([run.tokens_per_s for run in runs]),
        speedup=Range.of([run.tokens_per_s / base.tokens_per_s for run, base in zip(runs, off)]),
        decode_speedup=Range.of([base.tpot / run.tpot for run, base in zip(runs, off)]),
        emitted_per_verify=last.emitted_per_verify,
        acceptance_at=last.acceptance_at,
        same_text=None if drawn else sum(with_drafts == without for with_drafts, without in pairs) / len(pairs),
    )


def format_table(report: dict[str, Any]) -> str:
    """The report as text: what `minillm bench` prints."""
    lines = [format_machine(report["machine"]), f"{report['model']} in {report['dtype']}"]
    lines[-1] += " (quick: means nothing)" if report["settings"]["quick"] else ""
    for name, title in report["jobs"].items():
        lines += ["", f"{name}: {title}"]
        lines.append(
            f"  {'':12} {'tokens/s':>9} {'speedup':>16} {'decode alone':>16} {'per verify':>11} "
            f"{'same text':>10}  accepted by place"
        )
        for result in (r for r in report["results"] if r.job == name):
            emitted = "" if result.emitted_per_verify is None else f"{result.emitted_per_verify:.2f}"
            same = "" if result.same_text is None else f"{result.same_text:.0%}"
            places = " ".join(f"{share:.0%}" for share in result.acceptance_at)
            lines.append(
                f"  {result.method:12} {result.tokens_per_s.median:9.1f} {spread(result.speedup):>16} "
                f"{spread(result.decode_speedup):>16} {emitted:>11} {same:>10}  {places}"
            )
    return "\n".join(lines)


def spread(ratio: Range) -> str:
    """Median and range, as text."""
    return f"{ratio.median:.2f} ({ratio.low:.2f}-{ratio.high:.2f})"
