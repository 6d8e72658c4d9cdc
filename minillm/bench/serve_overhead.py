"""`minillm bench serve-overhead`: what the server costs, beside the engine without one.

The same prompts, in turns: first the bare engine in this process, stepped in a loop; then `minillm serve` in a
process of its own, over loopback, each request an SSE stream. In both, a gap is between two moments at which
the client had new text. So the server's side has all of it: HTTP, the event loop, JSON, the
kernel, and the client's reading, which takes its share of the same cores.
"""

import asyncio
import itertools
import json
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np

from minillm.bench.errors import BenchmarkError
from minillm.bench.loadgen.client import Api, Endpoint
from minillm.bench.loadgen.load_test import LoadSettings, run_load_test
from minillm.bench.loadgen.planned_requests import PlannedRequest, planned_requests
from minillm.bench.report import Measured
from minillm.bench.target import LARGEST_BLOCK, Target
from minillm.bench.turns import in_turns
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
COLUMNS = ("", "ITL p50, ms", "ITL p99, ms", "tokens/s", "tokens a delivery")
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

    @classmethod
    def of(
        cls,
        start: float,
        stamps: Collection[Sequence[float]],
        prompt_tokens: int,
        output_tokens: int,
        client_cpu: float = 0.0,
    ) -> "Round":
        """Args: stamps: of each stream, when something was delivered."""
        gaps = [later - earlier for own in stamps for earlier, later in itertools.pairwise(own)]
        seconds = max(own[-1] for own in stamps) - start
        return cls(gaps, seconds, prompt_tokens, output_tokens, sum(map(len, stamps)), client_cpu)

    def figures(self) -> np.ndarray:
        """What a Side has, of this round."""
        percentiles = np.percentile(self.gaps, (50, 99))
        return np.array([*percentiles, self.output_tokens / self.seconds, self.output_tokens / self.deliveries])


@dataclass(frozen=True, slots=True)
class Side:
    """The engine alone, or behind the server, or the one over the other: spread over the rounds."""

    itl_p50: Spread
    itl_p99: Spread
    tokens_per_s: Spread
    tokens_per_delivery: Spread
    """Above 1, some deliveries carried several tokens, and ITL is not of tokens."""

    @classmethod
    def of(cls, figures: Sequence[np.ndarray]) -> "Side":
        """Args: figures: of each round."""
        return cls(*(Spread.of(of_rounds.tolist()) for of_rounds in np.transpose(figures)))


@dataclass(frozen=True, slots=True)
class OverheadResult:
    """One number of streams."""

    streams: int
    alone: Side
    served: Side
    ratio: Side
    """Served over alone, each formed within a round."""
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
    with own_server(config) as url:
        results = [compare(engine, url, make_requests(count, prompt_tokens, length, seed), repeats) for count in counts]
    settings = {"prompt_words": prompt_tokens, "output_tokens": length, "repeats": repeats, "seed": seed}
    rows = [row for result in results for row in _rows(result)]
    notes = [f"{row.streams} streams: the client took {row.client_cpu:.0%} of a core" for row in results]
    head = f"{prompt_tokens} words in, {length} tokens out, {repeats} rounds in turns\n"
    return Measured.on(engine, results, settings, "\n".join([head, text_table(COLUMNS, rows), *notes]))


def make_requests(count: int, prompt_words: int, output_tokens: int, seed: int) -> list[PlannedRequest]:
    """Requests of one size, all at once, that share no prefix."""
    kind = find_traffic("fixed", prompt_words, output_tokens)
    return planned_requests(make_workload(kind, AllAtOnce(), num_requests=count, seed=seed))


def compare(engine: Engine, url: str, requests: Sequence[PlannedRequest], repeats: int) -> OverheadResult:
    """Warm both up, then `repeats` rounds in which each runs once."""
    short = [PlannedRequest(r.index, r.prompt, WARM_UP_TOKENS) for r in requests]
    check_same_work(run_alone(engine, short), run_served(url, short))
    ways = {"alone": partial(run_alone, engine, requests), "served": partial(run_served, url, requests)}
    rounds = in_turns(ways, repeats, warm_up=False, label=f"{len(requests)} streams")
    return summarize(len(requests), list(zip(rounds["alone"], rounds["served"])))


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
    return Round.of(start, stamps.values(), prompt_tokens, output_tokens)


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
    return Round.of(
        min(o.sent for o in test.observations if o.sent is not None),
        [o.deliveries for o in test.observations],
        sum(o.prompt_tokens or 0 for o in test.observations),
        sum(o.num_tokens for o in test.observations),
        test.client.cpu_share,
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
    for alone, served in pairs:
        check_same_work(alone, served)
    figures = [(alone.figures(), served.figures()) for alone, served in pairs]
    return OverheadResult(
        streams=streams,
        alone=Side.of([alone for alone, _ in figures]),
        served=Side.of([served for _, served in figures]),
        ratio=Side.of([served / alone for alone, served in figures]),
        client_cpu=float(np.mean([served.client_cpu for _, served in pairs])),
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


def _rows(result: OverheadResult) -> list[list[str]]:
    """Milliseconds, with the lowest and highest round in brackets."""
    sides = {"engine alone": result.alone, "served": result.served}
    rows = [
        [
            f"{result.streams} streams, {name}",
            side.itl_p50.text(1, 1e3),
            side.itl_p99.text(1, 1e3),
            side.tokens_per_s.text(1),
            side.tokens_per_delivery.text(),
        ]
        for name, side in sides.items()
    ]
    ratio = result.ratio
    spreads = (ratio.itl_p50, ratio.itl_p99, ratio.tokens_per_s, ratio.tokens_per_delivery)
    return [*rows, ["  served / alone", *(spread.text(3) for spread in spreads)]]
