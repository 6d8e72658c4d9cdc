"""What must be true of every request that has ended, however it ended."""

import itertools
from pathlib import Path
from typing import Any

import torch
from integrity import check_blocks, check_engine, check_swap

from minillm.core.request import FinishReason, Request
from minillm.core.timeline import PHASES, Timeline
from minillm.frontend.engine import Engine
from minillm.policies.preemption import Swap

TIE = 1e-4
"""Logits closer than this are a true tie: the order in which fp32 sums are taken may decide."""


class Reference:
    """Hugging Face's model in fp32: says by how much an output is not the greedy one."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoModelForCausalLM

        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    @torch.inference_mode()
    def regret(self, prompt: list[int], output: list[int]) -> float:
        """The most by which any output token's logit lies below the best one, given the tokens before it."""
        logits = self.model(torch.tensor([[*prompt, *output[:-1]]]), logits_to_keep=len(output)).logits[0]
        chosen = logits.gather(1, torch.tensor(output)[:, None])[:, 0]
        return (logits.max(dim=1).values - chosen).max().item()


def check_timeline(timeline: Timeline) -> None:
    """Phases tile the request's life, none is negative, and so are its deliveries in order."""
    assert timeline.finished is not None, "it ended and its timeline did not"
    borders = timeline.borders()
    assert borders == sorted(borders), f"phases overlap: {borders}"
    phases = timeline.phases()
    assert tuple(phases) == PHASES and min(phases.values()) >= 0
    assert abs(sum(phases.values()) - timeline.e2e) <= 1e-6 * max(timeline.e2e, 1.0), "phases do not sum to E2E"
    assert timeline.deliveries == sorted(timeline.deliveries), "deliveries are out of order"
    assert min(timeline.itl, default=0.0) >= 0
    for cause, seconds in timeline.lost.items():
        assert seconds >= -1e-9, f"{cause}: {seconds} s were lost"


def check_ending(request: Request, engine: Engine, may_fail: bool) -> None:
    """It ended for the reason it says."""
    params, output, reason = request.params, request.output_token_ids, request.finish_reason
    check_timeline(request.timeline)
    assert request.timeline.num_tokens == len(output), "tokens and deliveries disagree"
    assert len(output) <= params.max_tokens
    full = request.num_prompt_tokens + len(output) >= engine.context_limit
    if reason is FinishReason.ERROR:
        assert may_fail, f"it failed, and nothing was broken: {request.error}"
        assert request.error, "it failed and does not say why"
        return
    assert request.error is None
    if reason is FinishReason.LENGTH:
        assert len(output) == params.max_tokens or full, "it was cut short"
    elif reason is FinishReason.STOP:
        eos = () if params.ignore_eos else engine.core.eos_token_ids
        assert output[-1] in (*params.stop_token_ids, *eos) or params.stop, "it stopped without a cause"
    else:
        assert reason in (FinishReason.ABORT, FinishReason.TIMEOUT)
    assert not any(stop in request.text for stop in params.stop), "a stop string was shown"


def check_text(request: Request, tokenizer: Any) -> None:
    """Released piece by piece, the text is that of all tokens at once."""
    if request.params.stop or request.finish_reason is FinishReason.ERROR:
        return
    ids = request.output_token_ids
    if request.finish_reason is FinishReason.STOP:
        ids = ids[:-1]
    whole = tokenizer.decode(ids, skip_special_tokens=True)
    assert request.text == whole, f"the text is {request.text!r}, its tokens are {whole!r}"


def check_steps(engine: Engine) -> None:
    """Steps follow each other, and none took less time than its parts."""
    for before, after in itertools.pairwise(engine.steps):
        assert before.end <= after.start, "two steps overlap"
    for step in engine.steps:
        assert step.start <= step.end and min(step.stages.values()) >= -1e-9
        assert sum(step.stages.values()) <= step.end - step.start + 1e-6, f"stages take longer than the step: {step}"


def check_at_rest(engine: Engine) -> None:
    """Nobody is in the engine: it holds nothing."""
    check_engine(engine)
    assert engine.scheduler.kv.pool.num_used == 0, "blocks leaked"
    swap = engine.scheduler.preemption
    if isinstance(swap, Swap):
        check_swap(swap)
        assert swap.num_free == swap.num_blocks, "swap blocks leaked"
    assert not engine.has_unfinished and not engine.core.has_unfinished, "a request was kept"
    assert not engine.core._in_flight, "a step was kept"
    proposer = engine.speculator.proposer if engine.config.speculative else None
    if hasattr(proposer, "kv"):
        check_blocks(proposer.kv)
        assert proposer.kv.pool.num_used == 0, "the draft model's blocks leaked"
    if hasattr(proposer, "num_slots"):
        assert sorted(proposer.free_slots) == list(range(proposer.num_slots)), "the draft head's slots leaked"
