"""The same questions at 70B, simulated: one long prompt among chats, and prompts of any length alone."""

import functools

from course.lab import simulated_70b
from course.lessons.lesson_03.run import BIG, Trade, chunk_sizes, gaps_while
from course.simulator.deployment import Deployment
from course.simulator.workload.requests import Piece, Workload, WorkloadRequest

CHUNKS = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
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
    run = simulated_70b.play(deployment(chunk), Workload("long among chats", (*chats, long)))
    record = run.records[-1]
    start, end = AFTER_S, record.first_byte
    gaps = [gap for other in run.records[:-1] for gap in gaps_while(other, start, end)]
    return Trade(chunk, tokens, record.ttft(), max(gaps), steps)


def trades(tokens: int) -> list[Trade]:
    """For each chunk size up to the whole prompt."""
    return [trade(tokens, chunk) for chunk in (*(chunk for chunk in CHUNKS if chunk < tokens), tokens)]


def weight_floor(on: Deployment, steps: int) -> float:
    """Seconds that reading all weights takes, so many times: less no chunked prefill can take."""
    return steps * on.step_time().weights_s
