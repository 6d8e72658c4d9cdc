"""What checking costs: steps of the real engine with k + 1 rows per request, beside steps with one."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from course.lab.draft_story import GATES_OPEN
from course.lab.lab import Lab
from course.lab.run import percentile
from course.lab.speculation_gain import speedup
from course.lab.texts import CHAT_QUESTIONS
from course.lab.waiting import with_progress
from course.measure.verify_costs import ByTurns
from minillm import Engine, SamplingParams
from minillm.core.brief import brief

BATCHES, SHORT_BATCHES = (1, 2, 4, 8, 16), (1, 8)
LARGER, SHORT_LARGER = (32, 64, 128), (64,)
"""Batches that follow as long as checking USUAL drafts costs less than SPENT steps: where spare arithmetic lasts."""
GPU_FIRST = 64
"""On a GPU the first engine has room for such a batch: those of smaller ones then replay the graphs recorded for it."""
USUAL, SPENT = 4, 1.5
LENGTHS = (0, 1, 2, 4, 8)
"""Drafts by turns, so that whatever else the machine does hits all of them."""
WARM_UP, ROUNDS = len(LENGTHS), 7
RESTLESS = 1.6
PROMPT_TOKENS, MARGIN, BLOCK = 176, 48, 16
"""KV that a request may need: no prompt here is longer; what drafts take beyond the answer; tokens of a block."""


@dataclass(frozen=True)
class VerifyCosts:
    """Seconds of steps, by batch and by length of the drafts that they check."""

    taken: dict[tuple[int, int], tuple[float, ...]]

    __repr__ = brief

    @property
    def batches(self) -> list[int]:
        return sorted({batch for batch, _ in self.taken})

    @property
    def lengths(self) -> list[int]:
        return sorted({k for _, k in self.taken})

    def seconds(self, batch: int, k: int) -> float:
        """The quickest step's: whatever else runs can only slow one down."""
        return min(self.taken[batch, k])

    def relative(self, batch: int, k: float) -> float:
        """A verification in decode steps of the same batch; between measured lengths along a straight line."""
        below = max(length for length in self.lengths if length <= k)
        above = min((length for length in self.lengths if length >= k), default=below)
        share = 0.0 if above == below else (k - below) / (above - below)
        mixed = (1 - share) * self.seconds(batch, below) + share * self.seconds(batch, above)
        return mixed / self.seconds(batch, 0)

    @property
    def row_cost(self) -> float:
        """What one more row adds to a step with one, as a share of it: by the longest drafts, at the batch where it is
        most."""
        alone, longest = self.seconds(self.batches[0], 0), self.lengths[-1]
        added = [(self.seconds(batch, longest) - self.seconds(batch, 0)) / batch for batch in self.batches]
        return max(*added, 0.0) / longest / alone

    @property
    def is_restless(self) -> bool:
        """Something else was running: steps of one kind differed much among themselves, or the quickest plain step of a
        larger batch took less time than that of a smaller one."""
        uneven = any(percentile(each, 75) > RESTLESS * percentile(each, 25) for each in self.taken.values())
        plain = [self.seconds(batch, 0) for batch in self.batches]
        return uneven or any(later < earlier / RESTLESS for earlier, later in pairwise(plain))

    @property
    def doubt(self) -> str:
        """What to put before anything that rests on these costs."""
        return "Noisy machine, measure again. " if self.is_restless else ""


def measure(lab: Lab, batches: Sequence[int] | None = None) -> VerifyCosts:
    """Each batch, each length, several times.

    Args:
        batches: None = those that suit the lab's scale, and larger ones as long as checking stays cheap.
    """
    is_whole = lab.scale == 1
    first = batches or (BATCHES if is_whole else SHORT_BATCHES)
    larger = () if batches else LARGER if is_whole else SHORT_LARGER
    taken: dict[tuple[int, int], tuple[float, ...]] = {}
    with lab.alone():
        if is_whole and not batches and lab.simulated is None and lab.model.device.type == "cuda":
            _engine(lab, GPU_FIRST, ROUNDS)
        for batch in with_progress(first, "decode steps with drafts, batch"):
            taken |= _measure(lab, batch, rounds=(ROUNDS if batch <= 8 else 5) if is_whole else 3)
        for batch in larger:
            if VerifyCosts(taken).relative(max(batch for batch, _ in taken), USUAL) < SPENT:
                taken |= _measure(lab, batch, rounds=5 if is_whole else 3)
    return VerifyCosts(taken)


def num_steps(rounds: int) -> int:
    """Steps of so many rounds, those before the first included."""
    return WARM_UP + rounds * len(LENGTHS)


def _engine(lab: Lab, batch: int, rounds: int) -> Engine:
    per_request = (PROMPT_TOKENS + num_steps(rounds) + MARGIN + BLOCK - 1) // BLOCK
    return lab.next_engine(
        speculative={"method": "ngram", "k": max(LENGTHS), **GATES_OPEN},
        max_num_seqs=batch,
        max_num_batched_tokens=4096,
        num_kv_blocks=batch * per_request,
        enable_prefix_caching=False,
    )


def _measure(lab: Lab, batch: int, rounds: int) -> dict[tuple[int, int], tuple[float, ...]]:
    engine, wanted = _engine(lab, batch, rounds), num_steps(rounds)
    engine.speculator.proposer = ByTurns(LENGTHS)
    params = SamplingParams(temperature=0.0, max_tokens=wanted * 2 + 2 * max(LENGTHS), ignore_eos=True)
    for i in range(batch):
        question = CHAT_QUESTIONS[i % len(CHAT_QUESTIONS)]
        engine.add_request([{"role": "user", "content": question}], params, stream=False)
    steps = []
    while len(steps) < wanted and engine.has_unfinished:
        engine.step()
        step = engine.steps[-1]
        if step.num_prefill_tokens == 0 and len(step.shares) == batch:
            steps.append(step)
    engine.abort_all()
    taken: dict[tuple[int, int], list[float]] = {}
    for step in steps[WARM_UP:]:
        drafting = step.stages.get("draft", 0.0)
        key = (batch, max(share.num_drafts for share in step.shares))
        taken.setdefault(key, []).append(step.end - step.start - drafting)
    return {key: tuple(each) for key, each in taken.items()}


def gain(costs: VerifyCosts, batch: int, k: int, alpha: float, c: float) -> float:
    """Speedup, with a verification as expensive as it was measured."""
    return speedup(alpha, k, c, costs.relative(batch, k))
