"""From an accepted request to its answer: straight to one pool, to one of two models, or through two pools in turn."""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

from pydantic import Field, model_validator

from course.simulator.cluster.events import EventQueue
from course.simulator.cluster.jobs import Attempt, Job, Reply
from course.simulator.cluster.pool import Pool
from course.simulator.cluster.record import Outcome
from course.simulator.workload.requests import prompt_token_ids
from course.simulator.workload.streams import Streams, WorkloadModel
from minillm.core.timeline import Timeline
from minillm.frontend.prompts import CheckedTokens

Answer = Callable[[Attempt, Reply], None]
"""Sends a reply back to the client."""


class Path:
    """The way of an attempt through pools of replicas: straight to one, unless a subclass knows another."""

    link_busy_s = 0.0
    """Seconds in which KV caches moved from pool to pool."""
    makes_tokens_up = True
    """Off: all prompts are zeros, where nobody compares them."""

    def __init__(self, main: Pool, answer: Answer) -> None:
        self._main, self._answer = main, answer

    def start(self, attempt: Attempt) -> None:
        """Serve an attempt that the service has accepted."""
        self._ask(self._main, attempt)

    def _ask(self, pool: Pool, attempt: Attempt, then: Answer | None = None, *, shown: bool = True, **job: Any) -> None:
        """Give an attempt to a pool as a job, so that it can be cancelled there.

        Args:
            then: what to do when it ends; None = that is the answer.
            shown: its tokens go to the client.
            job: fields of the Job that differ from the attempt's request.
        """
        request, on_end = attempt.record.request, then or self._answer
        fields = {"max_tokens": request.output_tokens, **job}
        if "token_ids" not in job:
            tokens = prompt_token_ids(attempt.pieces, attempt.answers) if self.makes_tokens_up else None
            fields["token_ids"] = CheckedTokens(tokens or [0] * request.num_prompt_tokens)
        made = Job(
            job_id=f"{attempt.name}.{pool.name}",
            pieces=attempt.pieces,
            on_end=lambda reply: on_end(attempt, reply),
            priority=request.priority,
            tenant=request.tenant,
            **fields,
        )
        attempt.cancel = lambda: pool.cancel(made)
        attempt.asked = made
        if shown:
            attempt.shown.append(made)
        pool.submit(made)


class ModelRouting(WorkloadModel):
    """Easy requests go to a small model, hard ones to the large; telling them apart goes wrong at times."""

    easy_share: float = Field(0.7, ge=0, le=1, description="share of requests that the small model can answer")
    misroute_rate: float = Field(0.0, ge=0, le=1, description="share of requests taken for the other kind")


class TwoModels(Path):
    """Routes by difficulty. An easy request at the large model costs money; a hard one at the small model has to
    be asked again, since its answer is checked and found wrong (FrugalGPT, Chen et al. 2023, calls it a cascade)."""

    def __init__(self, routing: ModelRouting, small: Pool, large: Pool, answer: Answer, streams: Streams) -> None:
        super().__init__(large, answer)
        self._routing, self._small, self._streams = routing, small, streams
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
            self._ask(self._main, attempt)
        elif is_easy:
            self._ask(self._small, attempt)
        else:
            self._ask(self._small, attempt, self._ask_again, shown=False)

    def _ask_again(self, attempt: Attempt, reply: Reply) -> None:
        if reply.outcome is Outcome.COMPLETED:
            self._ask(self._main, attempt)
        else:
            self._answer(attempt, reply)


class Degrading(WorkloadModel):
    """Under load all requests go to a small model, until the load has fallen.

    Two limits, not one: at a single limit every request that ends would switch back, and the next one over again
    (hysteresis, as in a thermostat). Requests that are being served stay where they are.
    """

    above: int = Field(ge=1, description="degrade when a replica of the main pool has so many open requests on average")
    back_at: int = Field(ge=0, description="... and go back when it has no more than so many")

    @model_validator(mode="after")
    def _order(self) -> "Degrading":
        if self.back_at >= self.above:
            raise ValueError(f"back_at ({self.back_at}) must be below above ({self.above})")
        return self


class SmallUnderLoad(Path):
    """All to the large model, or all to the small one. `ClientRecord.replica` says which of them answered."""

    def __init__(self, degrading: Degrading, small: Pool, large: Pool, answer: Answer) -> None:
        super().__init__(large, answer)
        self._degrading, self._small = degrading, small
        self.is_degraded = False

    def start(self, attempt: Attempt) -> None:
        load = self._main.outstanding / max(len(self._main.serving), 1)
        self.is_degraded = load > self._degrading.back_at if self.is_degraded else load >= self._degrading.above
        self._ask(self._small if self.is_degraded else self._main, attempt)


class Disaggregation(WorkloadModel):
    """Prompts are computed by one pool and answers written by another; the KV cache moves over a link
    (DistServe, Zhong et al. 2024; Splitwise, Patel et al. 2024). Neither then stalls the other."""

    prefill_replicas: int = Field(ge=1, description="replicas that compute prompts; the main pool writes answers")
    kv_bytes_per_token: float | None = Field(None, gt=0, description="None = the model's, of all its layers and heads")
    link_bytes_per_s: float = Field(gt=0, description="bandwidth between the pools; transfers take turns")
    link_latency_s: float = Field(0.0, ge=0, description="seconds a transfer takes before its first byte")
    decode_answers: bool = Field(
        False, description="the first token, too, goes out from the pool that writes answers (Dynamo, SGLang)"
    )


class TwoPools(Path):
    """Prefill here, decode there. The first token comes from the prefill pool; the decode pool admits a
    request when it has a slot and room for its KV cache."""

    def __init__(self, config: Disaggregation, prefill: Pool, decode: Pool, answer: Answer, events: EventQueue) -> None:
        super().__init__(decode, answer)
        self._config, self._prefill, self._events = config, prefill, events
        runner: Any = prefill.replicas[0].engine.runner
        self._bytes_per_token = config.kv_bytes_per_token or runner.kv_bytes_per_token
        self._link_free_at = 0.0

    def start(self, attempt: Attempt) -> None:
        self._ask(self._prefill, attempt, self._prefilled, shown=not self._config.decode_answers, max_tokens=1)

    def _prefilled(self, attempt: Attempt, first: Reply) -> None:
        if first.outcome is not Outcome.COMPLETED or attempt.record.request.output_tokens == 1:
            self._answer(attempt, first)
            return
        attempt.cancel = None  # nothing can be stopped while the KV cache is on its way
        begins = max(self._events.now, self._link_free_at)
        assert attempt.asked is not None, "the job that has just ended"
        prompt = attempt.asked.token_ids
        seconds = len(prompt) * self._bytes_per_token / self._config.link_bytes_per_s
        self._link_free_at = begins + seconds
        self.link_busy_s += seconds
        self._events.at(begins + self._config.link_latency_s + seconds, self._arrived, attempt, prompt, first)

    def _arrived(self, attempt: Attempt, prompt: list[int], first: Reply) -> None:
        if not attempt.hung_up:
            self._ask(
                self._main,
                attempt,
                lambda _, reply: self._decoded(attempt, first, reply),
                token_ids=prompt + first.token_ids,
                max_tokens=attempt.record.request.output_tokens - 1,
                has_kv=True,
            )

    def _decoded(self, attempt: Attempt, first: Reply, reply: Reply) -> None:
        if reply.outcome is Outcome.COMPLETED:
            assert first.timeline is not None and reply.timeline is not None
            reply.timeline = joined(first.timeline, reply.timeline, self._config.decode_answers)
            reply.token_ids = first.token_ids + reply.token_ids
            reply.num_cached_tokens = first.num_cached_tokens
        self._answer(attempt, reply)


def joined(prefill: Timeline, decode: Timeline, decode_answers: bool = False) -> Timeline:
    """One request's stamps over two engines. Moving its KV cache is part of decode, and listed as lost there
    (`kv_transfer`), as is its wait in the second queue (`decode_queue`).

    Args:
        decode_answers: the client has the first token when it has the second.
    """
    assert prefill.finished is not None
    assert decode.scheduled is not None
    moving = {"kv_transfer": decode.arrival - prefill.finished, "decode_queue": decode.scheduled - decode.arrival}
    lost = defaultdict(float, {**prefill.lost, **moving})
    for cause, seconds in decode.lost.items():
        lost[cause] += seconds
    return Timeline(
        arrival=prefill.arrival,
        scheduled=prefill.scheduled,
        prefill_end=prefill.prefill_end,
        first_token=decode.first_token if decode_answers else prefill.first_token,
        last_token=decode.last_token,
        finished=decode.finished,
        deliveries=(decode.deliveries[:1] if decode_answers else prefill.deliveries) + decode.deliveries,
        num_tokens=prefill.num_tokens + decode.num_tokens,
        lost=lost,
    )
