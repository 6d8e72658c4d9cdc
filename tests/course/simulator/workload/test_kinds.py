"""Traffic by name."""

import pytest

from course.simulator.errors import WorkloadError
from course.simulator.options import TrafficName
from course.simulator.workload.arrivals import find_arrivals
from course.simulator.workload.kinds import KINDS, find_traffic
from course.simulator.workload.requests import made_up_workload


def test_the_command_line_offers_all_there_is() -> None:
    assert set(TrafficName) == {"fixed", *KINDS}


@pytest.mark.parametrize("name", TrafficName)
def test_qps_and_num_requests_count_requests(name: str) -> None:
    """Also where an arrival is a conversation of several."""
    workload = made_up_workload(find_traffic(name), qps=10.0, arrival="poisson", cv=None, num_requests=2000, seed=3)
    assert len(workload) == pytest.approx(2000, rel=0.08)
    assert len(workload) / workload.last_arrival == pytest.approx(10.0, rel=0.12)


def test_fixed_lengths() -> None:
    [request] = made_up_workload(find_traffic("fixed", 30, 7), qps=1, arrival="gamma", cv=2.0, num_requests=1, seed=0)
    assert (request.num_prompt_tokens, request.output_tokens) == (30, 7)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: find_traffic("chats"), "choose from fixed, chat"),
        (lambda: find_traffic("chat", prompt_tokens=5), "lengths of its own"),
        (lambda: find_arrivals("poisson", 1.0, 3.0), "--arrival gamma"),
        (lambda: find_arrivals("gamma", 1.0, 16.0), "15"),
        (lambda: find_arrivals("poisson", -1.0), "a rate is at least"),
    ],
)
def test_what_cannot_be_is_refused(make, said: str) -> None:
    with pytest.raises(WorkloadError, match=said):
        make()
