"""What speculation did: how many draft tokens were accepted at each place, and what they cost and saved."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from minillm.core.brief import brief
from minillm.core.step_log import StepRecord
from minillm.core.timeline import Verification
from minillm.observe.records import Recordable, as_records


@dataclass(frozen=True, slots=True)
class SpeculationSummary:
    """Over some verifications: a verification is one request's draft, checked in one step."""

    drafted_at: list[int]
    """Draft tokens at each place, from the first."""
    accepted_at: list[int]
    """Draft tokens that were accepted, at each place."""
    draft_s: float
    """Seconds spent drafting."""
    verify_s: float
    """Seconds spent in the rest of those steps."""
    num_passes: int
    """Draft steps, if every place of a draft takes one."""
    num_steps: int
    """Steps that the two times are of."""
    decode_s: float | None = None
    """Seconds of a step of decodes without any drafts, where there were such steps."""

    __repr__ = brief

    @classmethod
    def of_requests(cls, requests: Iterable[Recordable]) -> "SpeculationSummary":
        """Over the steps that each request was in. A step that checked several drafts counts for each of them."""
        found = [v for record in as_records(requests) for v in record.timeline.verifications]
        return cls._of([(v.num_drafts, v.num_accepted) for v in found], found)

    @classmethod
    def of_steps(cls, steps: Iterable[StepRecord]) -> "SpeculationSummary":
        """Over a whole engine: every step counts once."""
        checked, times, plain = [], [], []
        for step in steps:
            drafts = [(share.num_drafts, share.num_accepted) for share in step.shares if share.num_drafts]
            draft_s = step.stages.get("draft", 0.0)
            verify_s = step.end - step.start - draft_s
            if drafts:
                checked += drafts
                times.append(Verification(max(num_drafts for num_drafts, _ in drafts), 0, draft_s, verify_s))
            elif step.num_prefill_tokens == 0:
                plain.append(verify_s)
        return cls._of(checked, times, sum(plain) / len(plain) if plain else None)

    @classmethod
    def _of(
        cls, checked: Sequence[tuple[int, int]], times: Sequence[Verification], decode_s: float | None = None
    ) -> "SpeculationSummary":
        longest = range(max((num_drafts for num_drafts, _ in checked), default=0))
        return cls(
            drafted_at=[sum(num_drafts > place for num_drafts, _ in checked) for place in longest],
            accepted_at=[sum(num_accepted > place for _, num_accepted in checked) for place in longest],
            draft_s=sum(v.draft_s for v in times),
            verify_s=sum(v.verify_s for v in times),
            num_passes=sum(v.num_drafts for v in times),
            num_steps=len(times),
            decode_s=decode_s,
        )

    def to_dict(self) -> dict[str, int | float | list[float] | None]:
        """The figures, ready for JSON."""
        return {
            "verifications": self.num_verifications,
            "drafted_per_verify": self.drafted_per_verify,
            "emitted_per_verify": self.emitted_per_verify,
            "acceptance_at": self.acceptance_at,
            "rejected_drafts": self.num_rejected,
            "draft_cost": self.draft_cost,
            "speedup": self.speedup,
        }

    def __str__(self) -> str:
        """One line."""
        if not self.num_verifications:
            return "speculation: no draft was checked"
        shares = ", ".join(f"{share:.0%}" for share in self.acceptance_at)
        parts = [f"speculation: {self.emitted_per_verify:.2f} tokens per verification", f"accepted by place {shares}"]
        if self.draft_cost is not None:
            parts.append(f"a draft token costs {self.draft_cost:.1%} of a verification")
        if self.speedup is not None:
            parts.append(f"{self.speedup:.2f}x the speed of steps without drafts")
        return "; ".join(parts)

    @property
    def num_verifications(self) -> int:
        return self.drafted_at[0] if self.drafted_at else 0

    @property
    def num_rejected(self) -> int:
        """Draft tokens that were computed for nothing."""
        return sum(self.drafted_at) - sum(self.accepted_at)

    @property
    def acceptance_at(self) -> list[float]:
        """The share of draft tokens that were accepted, by place."""
        return [accepted / drafted for accepted, drafted in zip(self.accepted_at, self.drafted_at)]

    @property
    def drafted_per_verify(self) -> float | None:
        """Draft tokens of a verification: fewer than k where the policy shortens drafts."""
        return sum(self.drafted_at) / self.num_verifications if self.num_verifications else None

    @property
    def emitted_per_verify(self) -> float | None:
        """Tokens that a verification yields: those that were accepted, and one."""
        return 1 + sum(self.accepted_at) / self.num_verifications if self.num_verifications else None

    @property
    def draft_cost(self) -> float | None:
        """c: seconds of one draft step, over those of the rest of a step."""
        if not self.num_passes or not self.verify_s:
            return None
        return (self.draft_s / self.num_passes) / (self.verify_s / self.num_steps)

    @property
    def speedup(self) -> float | None:
        """Tokens per second of the steps that checked drafts, over that of steps of decodes without drafts, as
        measured in the same run; None where there were none. The two should have had equally many requests."""
        if self.decode_s is None or self.emitted_per_verify is None:
            return None
        return self.emitted_per_verify * self.decode_s * self.num_steps / (self.draft_s + self.verify_s)
