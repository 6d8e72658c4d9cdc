"""What is fitted: measured rows, with the deployment that each is simulated as. Rows that come to the same simulation
under the same engine are one."""

import dataclasses
import hashlib
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from course.simulator.accuracy import play
from course.simulator.accuracy.engines import engine_of
from course.simulator.accuracy.play import Plan, plan_of
from course.simulator.accuracy.points import Point, Refusal
from course.simulator.cost.profile import generation_of, hardware_of
from course.simulator.deployment import Deployment
from course.simulator.errors import DoesNotFitError, PricingError


@dataclass(frozen=True, slots=True)
class PlanRow:
    """Some points of one plan."""

    plan: Plan
    backend: str
    engine: str
    card: str
    is_mixture: bool
    deployment: Deployment
    prefill: Deployment | None
    """None: not disaggregated."""
    load: dict[str, float]
    """The closed loop's: see closed_loop.cpp."""
    ttft_s: float
    tpot_s: float
    """Geometric means of what was measured."""
    measured: tuple[Point, ...]

    @property
    def points(self) -> int:
        return len(self.measured)

    @property
    def generation(self) -> str:
        return generation_of(self.card) or self.card

    @property
    def dtype(self) -> str:
        return self.plan.weights

    @property
    def tp(self) -> int:
        return self.plan.layout.server.tp

    @property
    def curve(self) -> str:
        """What rows have in common that differ in their load alone."""
        plan, layout = self.plan, self.plan.layout
        # Spelt as ever, so that the halves stay what they were, and errors can be compared.
        pools = f"prefill={layout.prefill}, prefill_servers={layout.prefill_servers}"
        machines = f"Layout(server={layout.server}, servers={layout.servers}, {pools}, slots=None)"
        told = plan.shape, self.card, self.engine, plan.weights, machines, plan.isl, plan.osl
        return "|".join(map(str, told))

    def half(self, seed: int = 0) -> int:
        """0 or 1, the same for all rows of a curve."""
        return hashlib.sha256(f"{seed}|{self.curve}".encode()).digest()[0] % 2


def rows_of(points: Sequence[Point]) -> list[PlanRow]:
    """All that can be simulated."""
    together: defaultdict[tuple[Plan, str, str], list[Point]] = defaultdict(list)
    for point in points:
        try:
            plan = plan_of(point, today=True)
        except Refusal:
            continue
        engine = engine_of(point.backend, point.version, point.is_disaggregated)
        if engine is not None:
            together[plan, point.backend, engine].append(point)
    rows = []
    for (plan, backend, engine), same in together.items():
        try:
            rows.append(_row(plan, backend, engine, same))
        except (DoesNotFitError, PricingError, Refusal):
            continue
    return rows


def _row(plan: Plan, backend: str, engine: str, points: list[Point]) -> PlanRow:
    layout, machine = plan.layout, plan.layout.server
    prefill: Deployment | None = None
    load: dict[str, float] = {}
    if layout.prefill is None:
        open_requests = math.ceil(plan.concurrency / layout.ranks)
        deployment = play.deployment_of_rank(plan, machine, open_requests, plan.concurrency)
    else:
        busy = min(plan.concurrency, layout.ranks)
        open_requests = max(round(plan.concurrency / busy), 1)
        mixed = dataclasses.replace(plan, separates=False)
        deployment = play.deployment_of_rank(mixed, machine, open_requests, plan.concurrency / layout.servers)
        share = plan.concurrency / layout.prefill_servers
        prefill = play.deployment_of_rank(play.plan_of_prefill(plan), layout.prefill, play.SLOTS, share)
        per_token = deployment.model.kv_bytes_per_token(plan.kv_cache)
        load["prefill_ranks"] = layout.prefill_servers * layout.prefill.dp / busy
        load["transfer_token"] = per_token / (plan.link * layout.prefill.tp)
    deployment = _as_engine_reduces(deployment, engine)
    prefill = prefill and _as_engine_reduces(prefill, engine)
    drawn, one_batch = plan.draws_lengths, plan.waves == 1
    waves = 1.0 if one_batch else min(4, max(3, 200 // open_requests))
    if plan.fresh is not None or not (drawn or one_batch):  # what is fixed loses the first wave's order slowly
        waves = play.num_requests(open_requests, plan) / open_requests
    load |= {
        "open": open_requests,
        "waves": waves,
        "isl": plan.isl,
        "osl": plan.osl,
        "shortest_prompt": play.SHORTEST if drawn else 1.0,
        "shortest_answer": play.SHORTEST if drawn else 1.0 if one_batch else 1 - play.SPREAD,
        "longest_answer": 1.0 if drawn or one_batch else 1 + play.SPREAD,
        "slots": deployment.config.max_num_seqs,
        "budget": plan.budget,
        "kv_tokens": deployment.num_kv_blocks * deployment.block_size,
        "mixes": float(prefill is not None or not plan.separates),
        "chunks": float(plan.chunks),
        "fresh": math.inf if plan.fresh is None else plan.fresh,
        "waits": plan.waits.for_ranks,
        "look_every": plan.waits.look_every,
        "hold": plan.waits.hold_steps,
        "first_wave": 1 / plan.waves if waves > 1 else 1.0,
    }
    return PlanRow(
        plan=plan,
        backend=backend,
        engine=engine,
        card=plan.profile,
        is_mixture=deployment.model.num_experts > 0,
        deployment=deployment,
        prefill=prefill,
        load=load,
        ttft_s=_mean([point.ttft_s for point in points]),
        tpot_s=_mean([point.tpot_s for point in points]),
        measured=tuple(points),
    )


def _as_engine_reduces(deployment: Deployment, engine: str) -> Deployment:
    """With the engine's own all-reduces."""
    profile = deployment.profile
    return dataclasses.replace(deployment, profile=profile.replace(hardware=hardware_of(engine, profile.hardware.name)))


def _mean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))
