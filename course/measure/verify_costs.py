"""`minillm bench verify-costs`: what checking drafts costs, and the gates of speculation that follow.

Steps with k drafts a request, beside steps with none in the same batch. The drafts are made up and none is accepted:
what a draft model, a head or lookup gains on top is for `minillm bench speculation`, which takes a model that writes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from minillm.bench.report import BenchmarkResult
from minillm.bench.steady import SteadyDecode, pool_tokens
from minillm.bench.target import Target
from minillm.core.request import Draft
from minillm.frontend.engine import Engine
from minillm.observe.percentiles import percentile
from minillm.observe.tables import text_table
from minillm.speculation.base import DraftRequest, Proposer

BATCHES, QUICK_BATCHES = (1, 8, 32, 64), (1, 2)
LENGTHS = (0, 1, 2, 4, 8)
"""Drafts by turns, so that whatever else the machine does hits all of them."""
USUAL, ACCEPTED = 4, 0.6
"""Drafts of a request, and the probability that one is accepted, for the largest batch in which they pay."""
CONTEXT, QUICK_CONTEXT = 512, 16
ROUNDS, QUICK_ROUNDS = 12, 2
GATES_OPEN = {"acceptance_floor": 0.0, "adaptive_k": False, "min_output_tokens": 1}


class ByTurns(Proposer):
    """Drafts that cost nothing and do not pass: one token over and over, of each length in turn."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self.lengths, self.turn = lengths, 0

    def propose(self, wanted: Sequence[DraftRequest]) -> list[Draft]:
        length = self.lengths[self.turn % len(self.lengths)]
        self.turn += bool(wanted)
        return [Draft([0] * min(length, k)) for _, k in wanted]


@dataclass(frozen=True, slots=True)
class VerifyCost:
    """Steps of one batch that check as many drafts a request. Seconds."""

    batch: int
    num_drafts: int
    num_steps: int
    seconds: float
    """Median."""
    in_plain_steps: float
    """The same over the batch's step without drafts."""


@dataclass(frozen=True, slots=True)
class Gates:
    """Fields of SpeculativeConfig, as these costs would have them."""

    acceptance_floor: float
    """What one more row adds, in plain steps of the smallest batch measured: by the longest drafts, in the batch where
    it is most."""
    max_batch: int
    """The largest batch measured in which USUAL free drafts, each accepted as often as ACCEPTED, gain; 0 if none."""


def run(target: Target, quick: bool, batches: Sequence[int] | None) -> BenchmarkResult:
    """Measure.

    Raises:
        ConfigError, ModelError: see Engine.
    """
    batches = sorted(batches or (QUICK_BATCHES if quick else BATCHES))
    context, rounds = (QUICK_CONTEXT, QUICK_ROUNDS) if quick else (CONTEXT, ROUNDS)
    num_steps, longest = rounds * len(LENGTHS), max(LENGTHS)
    budget = max(8192, batches[-1] * (longest + 1))
    tokens = pool_tokens(batches[-1], context, 2 * num_steps + longest, budget)
    speculative = {"method": "ngram", "k": longest, "max_batch": batches[-1], **GATES_OPEN}
    config = target.config(
        kv_tokens=tokens,
        max_num_seqs=batches[-1],
        max_num_batched_tokens=budget,
        enable_prefix_caching=False,
        speculative=speculative,
    )
    engine = Engine(config)
    assert engine.speculator is not None
    costs = [cost for batch in batches for cost in measure(engine, batch, context, num_steps)]
    gates = gates_of(costs)
    told = f"acceptance_floor {gates.acceptance_floor:.4f}, max_batch {gates.max_batch}"
    columns = ("batch", *(f"{k} drafts" if k else "step ms" for k in LENGTHS))
    rows = [_cells([cost for cost in costs if cost.batch == batch]) for batch in batches]
    text = f"a step that checks drafts, in plain steps of the same batch; gates: {told}\n\n{text_table(columns, rows)}"
    return BenchmarkResult.on(engine, costs, {"context": context, "rounds": rounds}, text, gates=gates)


def measure(engine: Engine, batch: int, context: int, num_steps: int) -> list[VerifyCost]:
    """Steps of one batch, by the length of the drafts in them."""
    assert engine.speculator is not None
    engine.speculator.proposer = ByTurns(LENGTHS)
    decode = SteadyDecode(engine, batch, context, 2 * num_steps)
    first = engine.scheduler.num_steps + len(LENGTHS)  # a round to warm up
    decode.run(num_steps + len(LENGTHS))
    taken: dict[int, list[float]] = {length: [] for length in LENGTHS}
    for step in engine.steps:
        if step.step_id >= first and len(step.shares) == batch and not step.num_prefill_tokens:
            drafting = step.stages.get("draft", 0.0)
            taken[max(share.num_drafts for share in step.shares)].append(step.end - step.start - drafting)
    decode.stop()
    medians = {length: percentile(own, 50) for length, own in taken.items()}
    return [
        VerifyCost(batch, length, len(taken[length]), median, median / medians[0]) for length, median in medians.items()
    ]


def gates_of(costs: Sequence[VerifyCost]) -> Gates:
    """The gates that follow from what was measured."""
    longest, smallest = max(cost.num_drafts for cost in costs), min(cost.batch for cost in costs)
    alone = next(cost.seconds for cost in costs if (cost.batch, cost.num_drafts) == (smallest, 0))
    added = [
        (cost.seconds - cost.seconds / cost.in_plain_steps) / cost.batch / longest / alone
        for cost in costs
        if cost.num_drafts == longest
    ]
    emitted = sum(ACCEPTED**drafts for drafts in range(USUAL + 1))  # tokens of a step, the model's own included
    paying = [cost.batch for cost in costs if cost.num_drafts == USUAL and cost.in_plain_steps < emitted]
    return Gates(acceptance_floor=max(*added, 0.0), max_batch=max(paying, default=0))


def _cells(costs: Sequence[VerifyCost]) -> list[str]:
    plain, *others = costs
    return [str(plain.batch), f"{1e3 * plain.seconds:.2f}", *(f"{cost.in_plain_steps:.2f}" for cost in others)]
