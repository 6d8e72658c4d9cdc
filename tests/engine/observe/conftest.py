import pytest
from observe.runs import every_ending, steps_of_whole

from minillm.core.step_log import StepRecord
from minillm.observe.records import RequestRecord


@pytest.fixture
def records() -> list[RequestRecord]:
    return every_ending()


@pytest.fixture
def steps() -> list[StepRecord]:
    return steps_of_whole()
