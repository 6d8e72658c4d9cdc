"""A percentile is NumPy's, to the last bit."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minillm.observe.percentiles import percentile


@given(
    samples=st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=40),
    q=st.sampled_from([0, 1, 25, 50, 75, 90, 95, 99, 99.9, 100]) | st.floats(0, 100),
)
def test_it_is_numpys(samples: list[float], q: float) -> None:
    assert percentile(samples, q) == np.percentile(samples, q)


def test_no_samples_have_none() -> None:
    with pytest.raises(ValueError, match="no samples"):
        percentile([], 50)
