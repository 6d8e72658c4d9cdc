"""The same questions at 70B, simulated: one long prompt among chats, and prompts of any length alone."""

import functools

from course.lab import simulated_70b
from course.lab.lesson_03.chunks import Trade
from course.lab.lesson_03.costs import BIG, chunk_sizes
from minillm.simulate.cluster.fleet import ClusterConfig, simulate
from minillm.simulate.cost.roofline import StepWork
from minillm.simulate.deployment import Deployment
from minillm.simulate.report import engines_for
from minillm.simulate.workload.requests import Piece, Workload, WorkloadRequest

CHUNKS = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
LENGTHS = (1024, 2048, 4096, 8192, 16384, 32768, 65536)
CHATS = 16
CHAT_PROMPT, CHAT_ANSWER = 300, 150
AFTER_S = 2.0
"""The long prompt comes when the chats are being answered."""
LONGEST_ANSWER = 2000


def deployment(chunk: int | None = None, **fields: object) -> Deployment:
    """Llama-3.1 70B on four H100s; a request gets at most `chunk` prompt tokens a step."""
    room = {"max_num_batched_tokens": max(CHUNKS) + 256, "enable_prefix_caching": False}
    return simulated_70b.deployment(**{"model": BIG, **room, "long_prefill_token_threshold": chunk, **fields})


@functools.lru_cache(maxsize=64)
def trade(tokens: int, chunk: int) -> Trade:
    """One prompt of so many tokens among CHATS chats, in chunks of so many: what it and the others wait."""
    steps = len(chunk_sizes(tokens, chunk))
    answer = min(CHAT_ANSWER + steps, LONGEST_ANSWER)  # the chats outlast the prompt
    chats = [WorkloadRequest(i, (Piece(f"chat-{i}", CHAT_PROMPT),), answer, arrival=0.0) for i in range(CHATS)]
    long = WorkloadRequest(CHATS, (Piece("long", tokens),), 2, arrival=AFTER_S)
    config = ClusterConfig(sample_every_s=None)
    run = simulate(Workload("long among chats", (*chats, long)), config, engines_for(deployment(chunk), config))
    record = run.records[-1]
    start, end = AFTER_S, record.first_byte
    gaps = [
        later - earlier
        for other in run.records[:-1]
        for earlier, later in zip(other.deliveries, other.deliveries[1:])
        if later > start and earlier < end
    ]
    return Trade(chunk, tokens, record.ttft(), max(gaps), steps)


def trades(tokens: int) -> list[Trade]:
    """For each chunk size up to the whole prompt."""
    return [trade(tokens, chunk) for chunk in (*(chunk for chunk in CHUNKS if chunk < tokens), tokens)]


def prefill_seconds(on: Deployment, tokens: int) -> float:
    """One prompt alone, in one step, on an idle replica."""
    return on.step_time().price(prompt_work(tokens)).total


def prompt_work(tokens: int, cached: int = 0) -> StepWork:
    """What a step does that computes so many tokens of one prompt, with `cached` before them."""
    pairs = tokens * cached + tokens * (tokens + 1) // 2
    return StepWork(tokens, 1, 1, pairs, cached + tokens, 1)


def weight_floor(on: Deployment, steps: int) -> float:
    """Seconds that reading all weights takes, so many times: less no chunked prefill can take."""
    return steps * on.step_time().weights_s
