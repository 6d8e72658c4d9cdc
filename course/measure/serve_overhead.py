"""`minillm bench serve-overhead`: what the server costs, beside the engine without one.

The same prompts, in turns: first the bare engine in this process, stepped in a loop; then `minillm serve` in a
process of its own, over loopback, each request an SSE stream. In both, a gap is between two moments at which
the client had new text. So the server's side has all of it: HTTP, the event loop, JSON, the
kernel, and the client's reading, which takes its share of the same cores. The engine alone has all requests at
once, and the server one after another: in short answers that weighs more than all the rest.
"""

import json
import random
import selectors
import socket
import struct
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from http.client import HTTPConnection
from typing import Any

from course.loadgen.planned_requests import common_words
from course.loadgen.stream import Read, read_answer
from course.measure.child import as_flags
from course.measure.compare import WorkloadResult, compete
from course.measure.contest import Minillm, Peer, TimedRun, check_counts
from course.measure.workloads import BenchmarkWorkload
from course.simulator.cluster.events import rare_collections
from minillm.bench.errors import BenchmarkError
from minillm.bench.machine_peaks import measure_bandwidth
from minillm.bench.report import BenchmarkResult
from minillm.bench.target import LARGEST_BLOCK, Target
from minillm.core.params import SamplingParams
from minillm.frontend.engine import Engine
from minillm.frontend.prompts import encode_prompt
from minillm.policies.config import EngineConfig

STREAMS, OUTPUT_TOKENS = (8, 64), 256
QUICK_STREAMS, QUICK_TOKENS = (2,), 4
READ_BYTES, ANCILLARY_BYTES, SO_TIMESTAMPNS = 64 * 1024, 64, 35
NAP_S = 0.001
"""The client waits so long for the rest of a step's tokens. Woken by each, it would take turns with the server on a
core, which a client elsewhere does not."""
WORD_TOKENS = 2
"""Tokens of a prompt's word, at most: it is one in most vocabularies."""


class Alone(Minillm):
    """The bare engine, stepped until all is answered, with the text of every step."""

    name = "alone"

    def run(self, workload: BenchmarkWorkload) -> TimedRun:
        engine, stamps = self.llm.engine, defaultdict[str, list[float]](list)
        start = time.perf_counter()
        params = [SamplingParams(max_tokens=n, temperature=0.0, ignore_eos=True) for n in workload.output_lens]
        counts = {engine.add_request(prompt, own): 0 for prompt, own in zip(workload.prompts, params)}
        while engine.has_unfinished:
            outputs = engine.step()
            now = time.perf_counter()
            for output in outputs:
                counts[output.request_id] = len(output.token_ids)
                if output.completions[0].new_text:
                    stamps[output.request_id].append(now)
        check_counts(self.name, workload, counts.values())
        check_text([stamps[request_id] for request_id in counts])
        return TimedRun.of(start, list(stamps.values()), workload.num_output_tokens)


def check_text(stamps: Sequence[Sequence[float]]) -> None:
    """Raises BenchmarkError: a stream had no text, so there is nothing to time."""
    if not all(stamps):
        raise BenchmarkError("a stream had no text: try another --seed, or more --output-tokens")


class ServedBaseline(Peer):
    """The same requests as streams of a server.

    Args:
        url: without /v1.
        model: its name there.
    """

    name = "served"

    def __init__(self, url: str, model: str) -> None:
        self.url, self.model = url, model
        self.client_cpu = 0.0
        """The client's share of one core in the last run."""

    def describe(self) -> dict[str, Any]:
        """What of a core the client took: the server's side pays that."""
        return {"client_cpu": self.client_cpu}

    def run(self, workload: BenchmarkWorkload) -> TimedRun:
        asked = {"model": self.model, "temperature": 0, "ignore_eos": True}
        asked |= {"stream": True, "stream_options": {"include_usage": True}}
        sizes = zip(workload.prompts, workload.output_lens)
        bodies = [json.dumps({**asked, "prompt": prompt, "max_tokens": length}).encode() for prompt, length in sizes]
        with rare_collections():
            start, cpu = time.time(), time.process_time()
            streams = read_streams(self.url, bodies)
            self.client_cpu = (time.process_time() - cpu) / (time.time() - start)
        answers = [read_answer(reads) for reads in streams]
        failed = [b"".join(data for _, data in reads) for reads, said in zip(streams, answers) if not said.is_whole]
        if failed:
            lines = failed[0].decode().split("\r\n")
            raise BenchmarkError(
                f"{len(failed)} of {len(answers)} streams were not answered ({lines[0]}: {lines[-1]}): there is "
                "nothing to compare. Check --set max_num_seqs and the KV pool's size"
            )
        check_counts(self.name, workload, (answer.usage["completion_tokens"] for answer in answers))
        stamps = [answer.deliveries for answer in answers]
        check_text(stamps)
        return TimedRun.of(start, stamps, workload.num_output_tokens, max(own[-1] for own in stamps))


def read_streams(url: str, bodies: Sequence[bytes]) -> list[list[Read]]:
    """Send the requests, each on a connection of its own, and read all answers to their ends. Nothing is done with
    them meanwhile. HTTP's framing is left in: a reader of events passes over it, for no line of it begins with "data".

    A stamp is in seconds since 1970: the kernel's, of when the bytes came (elsewhere than on Linux, of their reading).
    """
    streams: list[list[Read]] = [[] for _ in bodies]
    with selectors.DefaultSelector() as selector:
        for body, reads in zip(bodies, streams):
            connection = HTTPConnection(url.removeprefix("http://"))
            connection.request("POST", "/v1/completions", body, {"connection": "close"})
            if sys.platform == "linux":
                connection.sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
            selector.register(connection.sock, selectors.EVENT_READ, (connection.sock, reads))
        while selector.get_map():
            selector.select()
            time.sleep(NAP_S)
            for key, _ in selector.select(0):
                sock, reads = key.data
                data, stamps, *_ = sock.recvmsg(READ_BYTES, ANCILLARY_BYTES)
                if data:
                    seconds, nanoseconds = struct.unpack("qq", stamps[0][2]) if stamps else (time.time(), 0)
                    reads.append((seconds + 1e-9 * nanoseconds, data))
                else:
                    selector.unregister(sock)
                    sock.close()
    return streams


def run(
    target: Target,
    quick: bool,
    streams: Sequence[int] | None,
    prompt_words: int,
    output_tokens: int | None,
    repeats: int,
    seed: int,
) -> BenchmarkResult:
    """Measure.

    Args:
        streams, output_tokens: None = the usual ones, or few and short ones if `quick`.
        prompt_words: how long each prompt is, in words.
    Raises:
        BenchmarkError: the server does not start, or a side did not do the work.
        ConfigError, ModelError: see Engine.
    """
    counts = sorted(set(streams or (QUICK_STREAMS if quick else STREAMS)))
    length = output_tokens or (QUICK_TOKENS if quick else OUTPUT_TOKENS)
    room = prompt_words * WORD_TOKENS + length + LARGEST_BLOCK
    # Without the prefix cache: every round after the first would find its prompts there.
    config = target.config(counts[-1] * room, max_num_seqs=counts[-1], enable_prefix_caching=False)
    bandwidth = measure_bandwidth(device=target.torch_device(), quick=quick)
    alone = Alone(**config.model_dump(exclude_unset=True))
    workloads = [make_workload(alone.llm.engine, count, prompt_words, length, seed) for count in counts]
    with own_server(config) as url:
        served = ServedBaseline(url, config.model)
        measured = compete(served, alone.llm.engine, [alone], workloads, repeats, quick, bandwidth)
    settings = {"prompt_words": prompt_words, "output_tokens": length, "seed": seed}
    notes = [gap_note(result) for result in measured.results]
    return replace(measured, settings={**measured.settings, **settings}, text="\n".join([measured.text, "", *notes]))


def gap_note(result: WorkloadResult) -> str:
    """What the server did to the gaps between tokens. A client that gets to run only after a short answer has ended
    reads it in one piece: such streams have no gaps.
    """
    served, alone = result.peers
    if alone.peer not in served.itl_ratios:
        return f"{result.name}: each answer came in one piece: no ITL to compare; ask for more --output-tokens"
    return f"{result.name}: ITL p50 {served.itl_ratios[alone.peer].text(3)} of the engine's own"


def make_workload(engine: Engine, streams: int, prompt_words: int, output_tokens: int, seed: int) -> BenchmarkWorkload:
    """Common words, so that there is text to stream; no two prompts share a prefix."""
    rng = random.Random(seed)
    texts = [" ".join(rng.choices(common_words(), k=prompt_words)) for _ in range(streams)]
    prompts = [encode_prompt(text, engine.tokenizer, engine.vocab_size)[1] for text in texts]
    title = f"{streams} streams, {prompt_words} words in, {output_tokens} tokens out"
    return BenchmarkWorkload(f"{streams} streams", title, prompts, [output_tokens] * streams)


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
