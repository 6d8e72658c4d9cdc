import pytest
from observe.runs import every_ending

from minillm.observe.records import RequestRecord


@pytest.fixture
def records() -> list[RequestRecord]:
    return every_ending()
