"""What a step of one kind does, for a look at its price."""

from course.simulator.cost.roofline import StepWork


def prefill_work(tokens: int) -> StepWork:
    """What a step does that computes all of one prompt."""
    return StepWork.of_prompt(tokens)


def decode_work(batch: int, context: float, rows: int = 1) -> StepWork:
    """What a step does in which each request computes and judges so many tokens, behind `context` others."""
    pairs = batch * (rows * context + rows * (rows + 1) / 2)
    return StepWork(batch * rows, batch * rows, batch, pairs, batch * (context + rows), prefills=0)
