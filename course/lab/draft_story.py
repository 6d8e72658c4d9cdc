"""Looks over a drafter's shoulder: every verification of one answer, token by token."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from course.lab.lab import Lab
from course.lab.synthetic_drafts import drafting
from minillm import Engine, SamplingParams
from minillm.core.brief import brief
from minillm.core.request import Draft, Request
from minillm.frontend.prompts import Prompt
from minillm.speculation.base import DraftRequest, Proposer
from minillm.speculation.speculator import Speculator

GATES_OPEN: dict[str, Any] = {"min_output_tokens": 1, "max_batch": 1024, "acceptance_floor": 0.0, "adaptive_k": False}
"""Draft always, and as far as k says."""
HOT = 1.0
"""The temperature at which words are drawn as likely as the model finds them."""


class Recorder(Proposer):
    """A proposer that remembers what another one drafted last."""

    def __init__(self, inner: Proposer) -> None:
        self.inner = inner
        self.last: dict[str, list[int]] = {}
        """Token ids, by request."""

    def propose(self, wanted: Sequence[DraftRequest]) -> list[Draft]:
        drafts = self.inner.propose(wanted)
        self.last = {request.request_id: list(draft.token_ids) for (request, _), draft in zip(wanted, drafts)}
        return drafts

    def forget(self, request: Request) -> None:
        self.inner.forget(request)

    def reset(self) -> None:
        self.inner.reset()


@dataclass(frozen=True)
class DraftStep:
    """One step that yielded text, for a single request."""

    drafted: tuple[str, ...]
    """The guesses that were checked, as text; none where nothing was drafted."""
    passed: int
    """Guesses that passed: the first so many."""
    emitted: tuple[str, ...]
    """Tokens of the answer that came out: the guesses that passed, and one of the model's own."""

    __repr__ = brief

    @property
    def own(self) -> str:
        """The token that the model itself put after the guesses that passed."""
        return self.emitted[-1]

    @property
    def corrects(self) -> bool:
        """It stands in the place of a guess that failed; otherwise it comes on top."""
        return self.passed < len(self.drafted)


@dataclass(frozen=True)
class DraftStory:
    """One answer, step by step. The first step is the one that read the prompt."""

    name: str
    steps: tuple[DraftStep, ...]
    token_ids: tuple[int, ...]

    __repr__ = brief

    @property
    def num_tokens(self) -> int:
        return sum(len(step.emitted) for step in self.steps)

    def written(self, upto: int) -> str:
        """The text after the first `upto` steps."""
        return "".join(token for step in self.steps[:upto] for token in step.emitted)

    def tokens_after(self, upto: int) -> int:
        return sum(len(step.emitted) for step in self.steps[:upto])

    @property
    def corrections(self) -> int:
        """Verifications in which a guess failed, and whose place got a token all the same."""
        return sum(step.corrects for step in self.steps)


def watch(lab: Lab, prompt: Prompt, max_tokens: int, way: dict[str, Any] | None, *, hot: bool = False) -> DraftStory:
    """Answer one prompt, and keep every step.

    Args:
        way: fields of SpeculativeConfig; None = without speculation. The gates stay open.
        hot: draw the tokens, at a high temperature.
    Raises:
        SimulatedDeviceError: there is no text to guess.
    """
    speculative = None if way is None else drafting({**GATES_OPEN, **way})
    params = SamplingParams(temperature=HOT if hot else 0.0, max_tokens=max_tokens, seed=0)
    lab.needs_model("Watching guesses in a real text")
    with lab.alone():
        steps, token_ids = _answer(
            lab.next_engine(speculative=speculative, enable_prefix_caching=False), prompt, params
        )
    return DraftStory("without speculation" if way is None else way["method"], tuple(steps), tuple(token_ids))


def _answer(engine: Engine, prompt: Prompt, params: SamplingParams) -> tuple[list[DraftStep], list[int]]:
    """Every step that yields text, and all token ids."""
    recorder = Recorder(Proposer())
    if isinstance(engine.drafts, Speculator):
        recorder.inner, engine.drafts.proposer = engine.drafts.proposer, recorder
    name = engine.add_request(prompt, params)
    steps: list[DraftStep] = []
    token_ids: list[int] = []

    def as_text(ids: Sequence[int]) -> tuple[str, ...]:
        return tuple(engine.tokenizer.decode([each]) for each in ids)

    while engine.has_unfinished:
        outputs = engine.step()
        if not outputs:
            continue  # a part of the prompt was read
        share = engine.steps[-1].shares[0]
        new = outputs[0].completions[0].token_ids[len(token_ids) :]
        drafted = recorder.last.get(name, [])[: share.num_drafts]
        steps.append(DraftStep(as_text(drafted), share.num_accepted, as_text(new)))
        token_ids += new
    return steps, token_ids
