"""The machine's peaks: measured in the units it says, in a believable range."""

import pytest
import torch

from minillm.bench import machine_peaks
from minillm.bench.machine_peaks import measure_bandwidth, measure_matmul, measure_peaks
from minillm.host import timing

CPU = torch.device("cpu")


def test_rates_are_work_over_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_peaks, "best_seconds", lambda work, device, repeats, lasting_s=0: 0.5)
    assert measure_matmul(torch.float32, CPU, size=10) == 2 * 10**3 / 0.5
    bandwidth = measure_bandwidth(buffer_bytes=4000)
    assert (bandwidth.read, bandwidth.copy) == (8000.0, 16000.0)


def test_a_matrix_product_is_timed_over_a_stretch_not_after_a_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretended: the first call takes 1 ms, at a clock that cannot be kept, and each of many takes 2."""
    monkeypatch.setattr(timing, "seconds_per_call", lambda work, device, calls=1: 0.001 if calls < 50 else 0.002)
    assert measure_matmul(torch.float32, CPU, size=10) == 2 * 10**3 / 0.002


def test_decoding_is_held_against_reading_on_a_cpu() -> None:
    peaks = measure_peaks(CPU, torch.float32, quick=True)
    assert (peaks.memory, peaks.memory_kind) == (peaks.bandwidth.read, "read")
    assert peaks.matmul_dtype == "float32"
