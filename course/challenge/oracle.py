"""The rung that knows what no scheduler can: how long each answer gets, and what is still to come.

It plans the whole trace before it begins, and refuses what the plan has no room for. The plan is a greedy one on rough
step times, so it's no upper bound: a better planner would get further, and a contestant may.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence

from course.challenge.planned_queue import PlannedQueue
from course.challenge.service import MAX_NUM_BATCHED_TOKENS, fleet, seen_by_gateway, trace_of
from course.grading.props import FleetReplica, FleetRequest
from course.simulator.cost.roofline import StepWork
from course.simulator.deployment import Deployment

BUCKET_S = 0.25
"""The plan's grain."""
MOST_PREFILL = 0.8
"""Share of a replica's time that is planned for steps with prompts."""
MARGIN_STEPS = 4
"""Steps that a first token is planned ahead of its limit."""
RUNNING, CONTEXT = 32, 1500
"""Answers in a typical step, and tokens that each attends to."""
NEAR = 12
"""Buckets from an arrival on, by which replicas are compared."""


class Oracle:
    """`Policies` that follow a plan."""

    scheduling_order = "fcfs"

    def __init__(self, seed: int) -> None:
        self._plans = [ReplicaPlan(deployment) for deployment in fleet(self.scheduling_order)]
        self._replicas: dict[int, int] = {}
        """By request; those that aren't planned are refused."""
        self._starts: dict[int, float] = {}
        """When each must begin at the latest."""
        asked = [(seen_by_gateway(each), each.output_tokens) for each in trace_of(seed)]
        first = {request.prefix: request.id for request, _ in reversed(asked)}
        tokens = {r.id: r.prompt_tokens - (r.prefix_tokens if first[r.prefix] != r.id else 0) for r, _ in asked}
        homes = {prefix: number % 2 for number, prefix in enumerate(sorted(first))}
        for request, output_tokens in sorted(asked, key=lambda pair: tokens[pair[0].id]):  # the most for the least work
            for number in self._preferred(request, homes):
                planned = self._plans[number]
                if planned.take(request, tokens[request.id], output_tokens):
                    self._replicas[request.id] = number
                    work_s = tokens[request.id] / planned.prompt_tokens_per_s
                    self._starts[request.id] = request.arrival_s + request.ttft_limit_s - work_s
                    break

    def _preferred(self, request: FleetRequest, homes: dict[str, int]) -> Sequence[int]:
        """Replicas in the order in which they are tried: the slow one for what has time."""
        if request.prefix:
            return [homes[request.prefix]]
        fast = sorted((0, 1), key=lambda number: self._plans[number].busy_s(request.arrival_s))
        return [2, *fast] if request.kind == "docs" else [*fast, 2]

    def queue(self, state: Callable[[], FleetReplica]) -> PlannedQueue:
        def plan(now: float, waiting: Sequence[int], replica: FleetReplica) -> tuple[Sequence[int], Sequence[int]]:
            late = [number for number in waiting if self._starts[number] < now]
            still = [number for number in waiting if self._starts[number] >= now]
            return sorted(still, key=self._starts.__getitem__), late

        return PlannedQueue(state, plan)

    def admit(self, now: float, request: FleetRequest, replicas: Sequence[FleetReplica]) -> bool:
        return request.id in self._replicas

    def route(self, now: float, request: FleetRequest, replicas: Sequence[FleetReplica]) -> int:
        return self._replicas[request.id]

    def ended(self, now: float, request: FleetRequest, output_tokens: int, in_time: bool) -> None:
        pass


class ReplicaPlan:
    """What one replica is to do: in each bucket, how long steps with prompts take, and which answers they delay."""

    def __init__(self, deployment: Deployment) -> None:
        prices = deployment.step_time()
        self._decode_s = prices.decode_seconds(RUNNING, [RUNNING * CONTEXT])[0]
        """A step of answers alone."""
        prompt, pairs = MAX_NUM_BATCHED_TOKENS - RUNNING, RUNNING * CONTEXT
        self._mixed_s = prices.price(
            StepWork(MAX_NUM_BATCHED_TOKENS, RUNNING, RUNNING + 1, prompt * prompt / 2 + pairs, pairs + prompt, 1)
        ).total
        """A step that a prompt fills up."""
        self.prompt_tokens_per_s = prompt / self._mixed_s
        self._load: defaultdict[int, float] = defaultdict(float)
        """Seconds of steps with prompts, by bucket."""
        self._answering: defaultdict[int, list[int]] = defaultdict(list)
        """Requests whose answers are being written, by bucket."""
        self._slack: dict[int, float] = {}
        """Seconds that each of those may still be delayed."""

    def busy_s(self, moment: float) -> float:
        """How much is planned around then."""
        bucket = int(moment / BUCKET_S)
        return sum(self._load[each] for each in range(bucket - NEAR // 3, bucket + NEAR))

    def take(self, request: FleetRequest, prompt_tokens: int, output_tokens: int) -> bool:
        """Plan a request if it can be in time and makes no other late."""
        loads = self._room_for(prompt_tokens / self.prompt_tokens_per_s, request)
        delay = 1 - self._decode_s / self._mixed_s
        if loads is None or any(
            self._slack[other] < seconds * delay for each, seconds in loads.items() for other in self._answering[each]
        ):
            return False
        slack, left = output_tokens * (request.tpot_limit_s - self._decode_s), float(output_tokens)
        answering: list[int] = []
        bucket = max(loads) + 1
        while left > 0 and slack >= 0:
            busy_s = min(self._load[bucket], BUCKET_S)
            left -= (BUCKET_S - busy_s) / self._decode_s + busy_s / self._mixed_s
            slack -= busy_s * delay
            answering.append(bucket)
            bucket += 1
        if slack < 0:
            return False
        for each, seconds in loads.items():
            self._load[each] += seconds
            for other in self._answering[each]:
                self._slack[other] -= seconds * delay
        self._slack[request.id] = slack
        for each in answering:
            self._answering[each].append(request.id)
        return True

    def _room_for(self, work_s: float, request: FleetRequest) -> dict[int, float] | None:
        """Where so many seconds of prefill fit in before the limit, by bucket; None = nowhere."""
        bucket, loads = int(request.arrival_s / BUCKET_S), dict[int, float]()
        last = request.arrival_s + request.ttft_limit_s - MARGIN_STEPS * self._mixed_s
        while work_s > 0:
            if bucket * BUCKET_S > last:
                return None
            free_s = min(MOST_PREFILL * BUCKET_S - self._load[bucket], work_s)
            if free_s > 0:
                loads[bucket] = free_s
                work_s -= free_s
            bucket += 1
        return loads
