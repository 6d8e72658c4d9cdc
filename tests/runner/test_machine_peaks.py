"""The machine's peaks: measured in the units it says, in a believable range."""

import pytest
import torch

from minillm.runner import machine_peaks
from minillm.runner.machine_peaks import measure_bandwidth, measure_matmul, measure_peaks

CPU = torch.device("cpu")


def test_bandwidth_is_measured_in_bytes_per_second() -> None:
    bandwidth = measure_bandwidth(buffer_bytes=4_000_000, repeats=2)
    # A thousand-fold slip of units would leave this range on any machine of this age.
    assert 1e8 < bandwidth.read < 1e13
    assert 1e8 < bandwidth.copy < 1e13


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_matmul_is_measured_in_flop_per_second(dtype: torch.dtype) -> None:
    assert 1e8 < measure_matmul(dtype, CPU, size=128, repeats=2) < 1e16


def test_rates_are_work_over_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_peaks, "best_seconds", lambda work, device, repeats: 0.5)
    assert measure_matmul(torch.float32, CPU, size=10) == 2 * 10**3 / 0.5
    bandwidth = measure_bandwidth(buffer_bytes=4000)
    assert (bandwidth.read, bandwidth.copy) == (8000.0, 16000.0)


def test_decoding_is_held_against_reading_on_a_cpu() -> None:
    peaks = measure_peaks(CPU, torch.float32, quick=True)
    assert (peaks.memory, peaks.memory_kind) == (peaks.bandwidth.read, "read")
    assert peaks.matmul_dtype == "float32"
