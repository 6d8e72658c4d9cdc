"""From the front door to an answer: straight to one pool, to one of two models, or through two pools in turn."""

from collections.abc import Callable
from typing import Protocol

import numpy as np
from pydantic import Field

from minillm.core.errors import WorkloadError
from minillm.core.known import known
from minillm.core.params import StrictModel
from minillm.core.timeline import Timeline
from minillm.simulate.cluster.clients import Attempt, Reply
from minillm.simulate.cluster.events import EventQueue
from minillm.simulate.cluster.pool import Pool
from minillm.simulate.cluster.record import Outcome
from minillm.simulate.cluster.replica import Job, JobEnd
from minillm.simulate.workload.requests import prompt_token_ids
from minillm.simulate.workload.streams import Streams

Answer = Callable[[Attempt, Reply], None]
"""Sends a reply back to the client."""
OnEnd = Callable[[Job, JobEnd], None]


class Path(Protocol):
    """The way of an attempt through pools of replicas."""

    def start(self, attempt: Attempt) -> None:
        """Serve an attempt that has passed the front door."""
        ...


class Direct:
    """One pool does it all."""

    def __init__(self, pool: Pool, answer: Answer) -> None:
        self._pool, self._answer = pool, answer

    def start(self, attempt: Attempt) -> None:
        submit(self._pool, attempt, job_of(self._pool, attempt, last_job(attempt, self._answer)))


class ModelRouting(StrictModel):
    """Easy requests go to a small model, hard ones to the large; telling them apart goes wrong at times."""

    _error: type[Exception] = WorkloadError

    easy_share: float = Field(0.7, ge=0, le=1, description="share of requests that the small model can answer")
    misroute_rate: float = Field(0.0, ge=0, le=1, description="share of requests taken for the other kind")


class TwoModels:
    """Routes by difficulty. An easy request at the large model costs money; a hard one at the small model has to
    be asked again, since its answer is checked and found wrong (FrugalGPT, Chen et al. 2023, calls it a cascade)."""

    def __init__(self, routing: ModelRouting, small: Pool, large: Pool, answer: Answer, streams: Streams) -> None:
        self._routing, self._small, self._large, self._answer = routing, small, large, answer
        self._streams = streams
        self._difficulty: dict[int, tuple[bool, bool]] = {}
        """By request: is it easy, and is it misrouted? Drawn once, so that a retry fares as before."""

    def start(self, attempt: Attempt) -> None:
        index = attempt.record.request.index
        if index not in self._difficulty:
            is_easy = self._streams.uniform("difficulty") < self._routing.easy_share
            is_wrong = self._streams.uniform("misroute") < self._routing.misroute_rate
            self._difficulty[index] = is_easy, is_wrong
        is_easy, is_wrong = self._difficulty[index]
        attempt.record.misrouted = is_wrong
        if is_easy == is_wrong:
            self._ask_large(attempt)
        elif is_easy:
            submit(self._small, attempt, job_of(self._small, attempt, last_job(attempt, self._answer)))
        else:
            submit(self._small, attempt, job_of(self._small, attempt, self._ask_again(attempt)), hide_answer=True)

    def _ask_large(self, attempt: Attempt) -> None:
        submit(self._large, attempt, job_of(self._large, attempt, last_job(attempt, self._answer)))

    def _ask_again(self, attempt: Attempt) -> OnEnd:
        def small_is_done(job: Job, end: JobEnd) -> None:
            if end.outcome is Outcome.COMPLETED:
                self._ask_large(attempt)
            else:
                self._answer(attempt, reply_of(job, end))

        return small_is_done


class Disaggregation(StrictModel):
    """Prompts are computed by one pool and answers written by another; the KV cache moves over a link
    (DistServe, Zhong et al. 2024; Splitwise, Patel et al. 2024). Neither then stalls the other."""

    _error: type[Exception] = WorkloadError

    prefill_replicas: int = Field(ge=1, description="replicas that compute prompts; the main pool writes answers")
    kv_bytes_per_token: float = Field(gt=0, description="of the model: 2 x layers x KV heads x head size x bytes")
    link_bytes_per_s: float = Field(gt=0, description="bandwidth between the pools; transfers take turns")
    link_latency_s: float = Field(0.0, ge=0, description="seconds a transfer takes before its first byte")


class TwoPools:
    """Prefill here, decode there. The first token comes from the prefill pool; the decode pool admits a
    request when it has a seat and room for its KV cache."""

    def __init__(self, config: Disaggregation, prefill: Pool, decode: Pool, answer: Answer, events: EventQueue) -> None:
        self._config, self._prefill, self._decode, self._answer = config, prefill, decode, answer
        self._events = events
        self._link_free_at = 0.0

    def start(self, attempt: Attempt) -> None:
        job = job_of(self._prefill, attempt, lambda job, end: self._prefilled(attempt, job, end))
        job.max_tokens = 1
        submit(self._prefill, attempt, job)

    def _prefilled(self, attempt: Attempt, job: Job, end: JobEnd) -> None:
        if end.outcome is not Outcome.COMPLETED or attempt.record.request.output_tokens == 1:
            self._answer(attempt, reply_of(job, end))
            return
        attempt.cancel = None  # nothing can be stopped while the KV cache is on its way
        begins = max(self._events.now, self._link_free_at)
        seconds = len(job.token_ids) * self._config.kv_bytes_per_token / self._config.link_bytes_per_s
        self._link_free_at = begins + seconds
        self._events.at(begins + self._config.link_latency_s + seconds, self._arrived, attempt, job, end)

    def _arrived(self, attempt: Attempt, prefill: Job, prefill_end: JobEnd) -> None:
        if attempt.hung_up:
            return
        first_token = known(prefill_end.output).token_ids
        decode = Job(
            job_id=f"{attempt.name}.{self._decode.name}",
            pieces=attempt.pieces,
            token_ids=np.append(prefill.token_ids, first_token),
            max_tokens=attempt.record.request.output_tokens - 1,
            on_end=lambda job, end: self._decoded(attempt, prefill, prefill_end, job, end),
            priority=attempt.record.request.priority,
            has_kv=True,
        )
        submit(self._decode, attempt, decode)

    def _decoded(self, attempt: Attempt, prefill: Job, prefill_end: JobEnd, decode: Job, end: JobEnd) -> None:
        reply = reply_of(decode, end)
        if reply.outcome is Outcome.COMPLETED:
            first = known(prefill_end.output)
            reply.timeline = joined(first.timeline, known(end.output).timeline)
            reply.token_ids = first.token_ids + reply.token_ids
            reply.num_cached_tokens = first.num_cached_tokens
        self._answer(attempt, reply)


def joined(prefill: Timeline, decode: Timeline) -> Timeline:
    """One request's stamps over two engines. Moving its KV cache is part of decode, and listed as lost there."""
    lost = dict(prefill.lost)
    for cause, seconds in decode.lost.items():
        lost[cause] = lost.get(cause, 0.0) + seconds
    lost["kv_transfer"] = decode.arrival - known(prefill.finished)
    lost["decode_queue"] = known(decode.scheduled) - decode.arrival
    return Timeline(
        arrival=prefill.arrival,
        scheduled=prefill.scheduled,
        prefill_end=prefill.prefill_end,
        first_token=prefill.first_token,
        last_token=decode.last_token,
        finished=decode.finished,
        deliveries=prefill.deliveries + decode.deliveries,
        num_tokens=prefill.num_tokens + decode.num_tokens,
        lost=lost,
    )


def last_job(attempt: Attempt, answer: Answer) -> OnEnd:
    """What the last job of an attempt does when it ends: its output is the answer."""
    return lambda job, end: answer(attempt, reply_of(job, end))


def job_of(pool: Pool, attempt: Attempt, on_end: OnEnd) -> Job:
    """An attempt as work for one pool."""
    request = attempt.record.request
    return Job(
        job_id=f"{attempt.name}.{pool.name}",
        pieces=attempt.pieces,
        token_ids=prompt_token_ids(attempt.pieces, attempt.answers),
        max_tokens=request.output_tokens,
        on_end=on_end,
        priority=request.priority,
    )


def submit(pool: Pool, attempt: Attempt, job: Job, hide_answer: bool = False) -> None:
    """Give a job to a pool, so that the attempt can be cancelled there and its tokens be seen.

    Args:
        hide_answer: its tokens do not go to the client.
    """
    attempt.cancel = lambda: pool.cancel(job)
    if not hide_answer:
        attempt.shown.append(job)
    pool.submit(job)


def reply_of(job: Job, end: JobEnd) -> Reply:
    """What a client is told when the last job of its attempt has ended."""
    replica = job.replica.name if job.replica else None
    if end.output is None:
        return Reply(end.outcome, replica=replica, error=end.error)
    output = end.output
    return Reply(end.outcome, output.timeline, output.token_ids, output.num_cached_tokens, replica, end.error)
