"""The capacity worksheet on paper, against sums of one's own."""

import math

import pytest

from course.lab.paper import DOES_NOT_FIT, LATE, NO_TRAFFIC, TOO_LONG, TOO_SLOW, Envelope
from course.simulator.cost.roofline import StepWork
from course.simulator.deployment import Deployment
from course.tab import calculator


def test_the_batch_is_the_largest_that_keeps_the_tpot_and_the_rate_follows_from_it() -> None:
    on = Deployment.of("llama-3.1-70b", "h100-sxm", tp=4)
    prompt, output, tpot = 1500, 150, 0.05
    steps = on.step_time()
    prefill = steps.price(StepWork.of_prompt(prompt)).total

    def gap(batch: int) -> float:
        work = StepWork(batch, batch, batch, batch * (prompt + output / 2), batch * (prompt + output / 2), 0)
        return steps.price(work).total + batch * prefill / output

    found = Envelope.of(on, prompt, output, tpot)
    assert found.fits == on.num_kv_blocks * on.block_size // (prompt + output)
    assert gap(found.batch) <= tpot < gap(math.ceil(found.batch * 1.05) + 1)
    assert found.rate == pytest.approx(found.batch / (output * gap(found.batch)))
    assert found.step_s < found.gap_s and found.alone_s < found.step_s
    cramped = Envelope.of(on, 100_000, 10_000, 10.0)
    assert cramped.batch == cramped.fits < 10


def test_replicas_follow_rate_and_headroom() -> None:
    sheet = calculator.sheet()
    rate = Envelope.of(sheet.replica(sheet.usual), 1500, 150, 0.05).rate
    for qps, headroom in ((20, 33), (100, 0), (0.1, 60)):
        found = sheet.answer(sheet.usual | {"qps": qps, "headroom": headroom})
        assert found.replicas == math.ceil(qps / (rate * (1 - headroom / 100)))


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"gpus": "1"}, DOES_NOT_FIT),
        ({"itl": 5}, TOO_SLOW),
        ({"output": 0}, NO_TRAFFIC),
        ({"qps": 0}, NO_TRAFFIC),
        ({"headroom": 100}, NO_TRAFFIC),
        ({"price": -1}, NO_TRAFFIC),
        ({"prompt": 10**7}, TOO_LONG),
        ({"ttft": 0.05}, LATE),
    ],
)
def test_what_has_no_answer_says_why(asked: dict[str, object], words: str) -> None:
    sheet = calculator.sheet()
    found = sheet.answer(sheet.usual | asked)
    assert (found.replicas, found.words) == (None, words)
