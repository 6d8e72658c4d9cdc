"""`minillm bench serve-overhead`: what the server costs, beside the engine without one.

The same prompts, in turns: first the bare engine in this process, stepped in a loop; then `minillm serve` in a
process of its own, over loopback, each request an SSE stream. In both, a gap is between two moments at which
the client had new text. So the server's side has all of it: HTTP, the event loop, JSON, the
kernel, and the client's reading, which takes its share of the same cores.
"""

import asyncio
import json
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from tqdm import tqdm

from minillm.bench.errors import BenchmarkError
from minillm.bench.loadgen.client import Api, Endpoint
from minillm.bench.loadgen.load_test import LoadSettings, run_load_test
from minillm.bench.loadgen.planned_requests import PlannedRequest, planned_requests
from minillm.bench.report import Measured
from minillm.bench.target import LARGEST_BLOCK, Target
from minillm.core.params import SamplingParams
from minillm.frontend.engine import Engine
from minillm.observe.spread import Spread
from minillm.observe.tables import text_table
from minillm.policies.config import EngineConfig
from minillm.server.flags import as_flags
from minillm.simulate.cluster.events import rare_collections
from minillm.simulate.workload.arrivals import AllAtOnce
from minillm.simulate.workload.kinds import find_traffic
from minillm.simulate.workload.requests import make_workload

STREAMS = (8, 64)
OUTPUT_TOKENS = {"cpu": 48, "cuda": 256}
WARM_UP_TOKENS = 4
QUICK_STREAMS, QUICK_TOKENS = (2,), 4
TIMEOUT_S = 600.0
WORD_TOKENS = 2
"""Tokens of a prompt's word, at most: it is one in most vocabularies."""


@dataclass(frozen=True, slots=True)
class Round:
    """All streams, once. Seconds."""

    gaps: list[float]
    """Between two deliveries of one stream; of all streams."""
    seconds: float
    """From the first request sent to the last delivery."""
    prompt_tokens: int
    output_tokens: int
    deliveries: int
    client_cpu: float = 0.0
    """Share of one core that the client took."""

    @property
    def tokens_per_s(self) -> float:
        return self.output_tokens / self.seconds

    def itl(self, percentile: float) -> float:
        return float(np.percentile(self.gaps, percentile))


@dataclass(frozen=True, slots=True)
class Side:
    """The engine alone, or behind the server: spread over the rounds."""

    itl_p50: Spread
    itl_p99: Spread
    tokens_per_s: Spread
    tokens_per_delivery: float
    """Above 1, some deliveries carried several tokens, and ITL is not of tokens."""

    @classmethod
    def of(cls, rounds: Sequence[Round]) -> "Side":
        return cls(
            itl_p50=Spread.of([r.itl(50) for r in rounds]),
            itl_p99=Spread.of([r.itl(99) for r in rounds]),
            tokens_per_s=Spread.of([r.tokens_per_s for r in rounds]),
            tokens_per_delivery=sum(r.output_tokens for r in rounds) / sum(r.deliveries for r in rounds),
        )


@dataclass(frozen=True, slots=True)
class OverheadResult:
    """One number of streams. Ratios are served over alone, each formed within a round."""

    streams: int
    alone: Side
    served: Side
    itl_p50_ratio: Spread
    itl_p99_ratio: Spread
    throughput_ratio: Spread
    client_cpu: float
    """Mean share of one core that the client took, of which the server's side pays."""


def run(
    target: Target,
    quick: bool,
    streams: Sequence[int] | None,
    prompt_tokens: int,
    output_tokens: int | None,
    repeats: int,
    seed: int,
) -> Measured:
    """Measure.

    Args:
        streams, output_tokens: None = what suits the device.
        prompt_tokens: words of each prompt.
    Raises:
        BenchmarkError: the server does not start, or the two sides did not do the same work.
        ConfigError, ModelError: see Engine.
    """
    counts = sorted(set(streams or (QUICK_STREAMS if quick else STREAMS)))
    length = QUICK_TOKENS if quick else output_tokens or OUTPUT_TOKENS[target.torch_device().type]
    repeats = 1 if quick else repeats
    room = prompt_tokens * WORD_TOKENS + length + LARGEST_BLOCK
    # Without the prefix cache: every round after the first would find its prompts there.
    config = target.config(counts[-1] * room, max_num_seqs=counts[-1], enable_prefix_caching=False)
    engine = Engine(config)
    results = []
    with own_server(config) as url, tqdm(total=len(counts) * (repeats + 1), unit="round") as bar:
        for count in counts:
            requests = make_requests(count, prompt_tokens, length, seed)
            results.append(_compare(engine, url, requests, repeats, bar))
    settings = {"prompt_words": prompt_tokens, "output_tokens": length, "repeats": repeats, "seed": seed}
    return Measured.on(engine, results, settings)


def make_requests(count: int, prompt_words: int, output_tokens: int, seed: int) -> list[PlannedRequest]:
    """Requests of one size, all at once, that share no prefix."""
    kind = find_traffic("fixed", prompt_words, output_tokens)
    return planned_requests(make_workload(kind, AllAtOnce(), num_requests=count, seed=seed))


def _compare(engine: Engine, url: str, requests: Sequence[PlannedRequest], repeats: int, bar: tqdm) -> OverheadResult:
    """Warm both up, then `repeats` rounds in which each runs once."""
    pairs: list[tuple[Round, Round]] = []
    for number in range(repeats + 1):
        played = requests if number else [PlannedRequest(r.index, r.prompt, WARM_UP_TOKENS) for r in requests]
        pair = run_alone(engine, played), run_served(url, played)
        check_same_work(*pair)
        pairs += [pair] if number else []
        bar.update()
    return summarize(len(requests), pairs)


def run_alone(engine: Engine, requests: Sequence[PlannedRequest]) -> Round:
    """The bare engine, stepped until all is answered."""
    stamps: dict[str, list[float]] = defaultdict(list)
    prompt_tokens = output_tokens = 0
    start = time.perf_counter()
    for planned in requests:
        engine.add_request(
            planned.prompt, SamplingParams(max_tokens=planned.max_tokens, temperature=0.0, ignore_eos=True)
        )
    while engine.has_unfinished:
        outputs = engine.step()
        now = time.perf_counter()
        for output in outputs:
            [completion] = output.completions
            if completion.new_text:
                stamps[output.request_id].append(now)
            if output.finished:
                prompt_tokens += len(output.prompt_token_ids)
                output_tokens += len(completion.token_ids)
    return _round(stamps.values(), start, prompt_tokens, output_tokens)


def run_served(url: str, requests: Sequence[PlannedRequest]) -> Round:
    """The same requests as streams of the server.

    Raises:
        BenchmarkError: one of them was not answered.
    """
    endpoint = Endpoint(url, Api.COMPLETIONS, "", {"ignore_eos": True})
    with rare_collections():
        test = asyncio.run(run_load_test(endpoint, requests, LoadSettings(timeout_s=TIMEOUT_S, warm_up=0)))
    if test.was_cut_off:
        raise KeyboardInterrupt
    failed = [o for o in test.observations if not o.completed]
    if failed:
        raise BenchmarkError(
            f"{len(failed)} of {len(requests)} streams were not answered ({failed[0].outcome}: {failed[0].message}): "
            "there is nothing to compare. Check --set max_num_seqs and the size of the KV pool"
        )
    return _round(
        [o.deliveries for o in test.observations],
        min(o.sent for o in test.observations if o.sent is not None),
        sum(o.prompt_tokens or 0 for o in test.observations),
        sum(o.num_tokens for o in test.observations),
        test.client.cpu_share,
    )


def _round(stamps: Any, start: float, prompt_tokens: int, output_tokens: int, client_cpu: float = 0.0) -> Round:
    stamps = list(stamps)
    return Round(
        gaps=[float(gap) for own in stamps for gap in np.diff(own)],
        seconds=max(own[-1] for own in stamps) - start,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        deliveries=sum(map(len, stamps)),
        client_cpu=client_cpu,
    )


def check_same_work(alone: Round, served: Round) -> None:
    """Raise BenchmarkError unless both read and wrote as many tokens."""
    counts = [(r.prompt_tokens, r.output_tokens) for r in (alone, served)]
    if counts[0] != counts[1]:
        raise BenchmarkError(
            f"the engine alone had {counts[0]} tokens in and out, behind the server {counts[1]}: not the same work, so "
            "the ratio means nothing"
        )


def summarize(streams: int, pairs: Sequence[tuple[Round, Round]]) -> OverheadResult:
    """Args: pairs: of each round, the engine alone and behind the server."""
    alone, served = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    return OverheadResult(
        streams=streams,
        alone=Side.of(alone),
        served=Side.of(served),
        itl_p50_ratio=Spread.of([b.itl(50) / a.itl(50) for a, b in pairs]),
        itl_p99_ratio=Spread.of([b.itl(99) / a.itl(99) for a, b in pairs]),
        throughput_ratio=Spread.of([b.tokens_per_s / a.tokens_per_s for a, b in pairs]),
        client_cpu=float(np.mean([r.client_cpu for r in served])),
    )


@contextmanager
def own_server(config: EngineConfig) -> Iterator[str]:
    """`minillm serve` in a process of its own, on a free port. Gives its URL, without /v1.

    Raises:
        BenchmarkError: it ended before it was ready.
    """
    command = [sys.executable, "-m", "minillm", "serve", "--port", "0", "--json", "--no-access-log", *as_flags(config)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise BenchmarkError(f"`minillm serve` ended with status {process.wait()}: it says why above")
            yield json.loads(line)["url"].removesuffix("/v1")
        finally:
            process.terminate()


def table(report: dict[str, Any]) -> str:
    """Milliseconds, with the lowest and highest round in brackets."""
    settings, rows, notes = report["settings"], [], []
    result: OverheadResult
    for result in report["results"]:
        for name, side in (("engine alone", result.alone), ("served", result.served)):
            gaps = (spread.text(1, 1e3) for spread in (side.itl_p50, side.itl_p99))
            rows.append([f"{result.streams} streams, {name}", *gaps, side.tokens_per_s.text(1)])
        ratios = (result.itl_p50_ratio, result.itl_p99_ratio, result.throughput_ratio)
        rows.append(["  served / alone", *(ratio.text(3) for ratio in ratios)])
        notes.append(
            f"{result.streams} streams: the client took {result.client_cpu:.0%} of a core; tokens in a delivery: alone "
            f"{result.alone.tokens_per_delivery:.2f}, served {result.served.tokens_per_delivery:.2f}"
        )
    head = (
        f"{report['model']} in {report['dtype']}: {settings['prompt_words']} words in, {settings['output_tokens']} "
        f"tokens out, {settings['repeats']} rounds in turns"
    )
    return "\n".join([head, "", text_table(("", "ITL p50, ms", "ITL p99, ms", "tokens/s"), rows), *notes])
