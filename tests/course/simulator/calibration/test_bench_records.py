"""Our own engine's constants on a GPU, from records of its benchmarks."""

import copy
import json
from pathlib import Path

import pytest

from course.measure.workloads import ragged_workload
from course.simulator.calibration.bench_records import (
    fit_to_records,
    is_of_steps,
    is_of_throughput,
    ragged_requests,
    steps_of,
    throughput_error,
)
from course.simulator.cost.hardware import CATALOGUE
from course.simulator.cost.models import find_model
from course.simulator.cost.placement import Placement
from course.simulator.cost.profile import find_profile, typical_constants
from course.simulator.cost.roofline import StepTimeModel, StepWork
from course.simulator.deployment import Deployment
from course.simulator.errors import PricingError, RecordingError

MEASURED = Path("course/data/measured")
FILES = (MEASURED / "gpu_check_h100.json", MEASURED / "bench_h100.json")
DECODE = json.loads(FILES[1].read_text())["sections"]["decode_8b"]
THROUGHPUT = json.loads(FILES[1].read_text())["sections"]["throughput_0.6b"]


def made_record(model: str, seconds: dict[int, float]) -> dict:
    record = {**copy.deepcopy(DECODE), "model": model}
    record["results"] = [{"batch": batch, "context": 500.0, "step_s": each} for batch, each in seconds.items()]
    return record


def test_the_packaged_profile_is_what_the_records_come_to() -> None:
    fitted, packaged = fit_to_records(FILES), find_profile("minillm-h100")
    assert fitted.constants.mfu == pytest.approx(packaged.constants.mfu, rel=1e-3)
    assert fitted.constants.layer_s == pytest.approx(packaged.constants.layer_s, rel=1e-3)
    assert fitted.provenance["fit_error"]["p90_percent"] < 4


def test_throughput_that_no_constant_has_seen_is_within_8_percent() -> None:
    """256 ragged requests of the 0.6B shape, served together: 7.27 s on the card."""
    error = throughput_error(find_profile("minillm-h100"), THROUGHPUT)
    assert abs(error["tokens_per_s"]) < 8 and abs(error["itl_p50"]) < 8
    assert not is_of_steps(THROUGHPUT) and is_of_throughput(THROUGHPUT), "it is no part of the fit"


def test_the_simulated_requests_are_the_benchmarks() -> None:
    asked, simulated = ragged_workload(1000, 256, 0, 1.0), ragged_requests(256, 0)
    assert [len(prompt) for prompt in asked.prompts] == [each.num_prompt_tokens for each in simulated.requests]
    assert asked.output_lens == [each.output_tokens for each in simulated.requests]
    assert simulated.num_output_tokens == THROUGHPUT["results"][0]["num_output_tokens"]


def test_steps_of_known_constants_are_found_again(tmp_path: Path) -> None:
    card = CATALOGUE["h100-sxm"]
    truth = typical_constants(card).replace(bandwidth=0.6, layer_s=4e-5, host_s=0.0, launch_s=0.0)
    records, paths = [], []
    for name in ("llama-3-8b", "llama-3.2-1b", "qwen3-0.6b"):
        model = StepTimeModel(find_model(name), card, Placement(), truth)
        times = {batch: model.price(StepWork.of_decodes(batch, 500.0)).total for batch in (1, 4, 16, 64, 256)}
        records.append(made_record(name, times))
        paths.append(tmp_path / f"{name}.json")
        paths[-1].write_text(json.dumps(records[-1]))
    found = fit_to_records(paths)
    errors = [error for record in records for error in steps_of(record).relative_errors(found.constants)]
    assert max(map(abs, errors)) < 0.02
    assert found.constants.bandwidth == pytest.approx(0.6, rel=0.1)
    assert found.constants.layer_s == pytest.approx(4e-5, rel=0.1)
    assert found.hardware.name == "h100-sxm", "as the driver calls it"


def test_a_narrow_kv_cache_has_a_constant_of_its_own() -> None:
    plain, narrow = (Deployment.of("llama-3-8b", "minillm-h100", kv_dtype=dtype) for dtype in ("bfloat16", "int8"))
    assert narrow.profile.constants.kv_bandwidth < 0.8 * plain.profile.constants.kv_bandwidth
    step = StepWork.of_decodes(128, 2131.8)
    assert narrow.step_time().price(step).total == pytest.approx(16.75e-3, rel=0.05), "measured"
    assert plain.step_time().price(step).total == pytest.approx(18.70e-3, rel=0.05), "measured"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"results": []}, "no record of `minillm bench`"),
        (THROUGHPUT, "no record has steps"),
        ({"sections": {"a": DECODE, "b": {**DECODE, "device": "NVIDIA L4"}}}, "several cards"),
    ],
)
def test_bad_records_are_refused(content: dict, said: str, tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    path.write_text(json.dumps(content))
    with pytest.raises(RecordingError, match=said):
        fit_to_records([path])


def test_an_unreadable_record_is_refused(tmp_path: Path) -> None:
    (tmp_path / "record.json").write_text("[]")
    with pytest.raises(PricingError, match="no JSON object"):
        fit_to_records([tmp_path / "record.json"])
