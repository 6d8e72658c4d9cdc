"""Hardware and profiles by name, and what is refused."""

import json
from pathlib import Path

import pytest

from course.simulator.cost.hardware import CATALOGUE, find_hardware
from course.simulator.cost.profile import PACKAGED, Profile, find_profile, moved, roofline_profile, typical_profile
from course.simulator.cost.roofline import CHIP, HOST, LINK, ROOFLINE, STACK, Constants
from course.simulator.deployment import Deployment
from course.simulator.errors import PricingError, UnknownHardwareError
from course.simulator.report import beyond_fit, stack_lines


@pytest.mark.parametrize(
    ("spelt", "name"),
    [
        ("H100", "h100-sxm"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("RTX4090", "rtx-4090"),
        ("l4", "l4"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("A100", "a100-80gb"),
        ("b200", "b200"),
        ("H200", "h200"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H100 NVL", "h100-nvl"),
        ("NVIDIA A10G", "a10g"),
        ("Tesla T4", "t4"),
        ("AMD Instinct MI300X", "mi300x"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000-server"),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "rtx-pro-6000-max-q"),
        ("RTX PRO 6000", "rtx-pro-6000"),
    ],
)
def test_names_however_they_are_spelt(spelt: str, name: str, caplog: pytest.LogCaptureFixture) -> None:
    assert find_hardware(spelt) is CATALOGUE[name]
    assert bool(caplog.records) is (spelt in ("H100", "A100", "RTX PRO 6000")), "a name of several cards is told"


def test_unknown_hardware_names_what_is_close() -> None:
    with pytest.raises(UnknownHardwareError, match="did you mean 'rtx-4090'"):
        find_hardware("rtx-4091")
    with pytest.raises(UnknownHardwareError, match="h100-sxm"):
        find_profile("abacus")


def test_this_machine_wants_to_be_measured_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MINILLM_HOME", str(tmp_path))
    with pytest.raises(UnknownHardwareError, match="minillm calibrate"):
        find_profile("this-machine")
    mine = typical_profile(CATALOGUE["l4"].replace(name="this-machine"))
    mine.write(tmp_path / "profiles" / "this-machine.json")
    assert find_profile("this-machine") == mine
    (tmp_path / "profiles" / "this-machine.json").write_text("{")
    with pytest.raises(PricingError, match=r"this-machine\.json.*minillm calibrate"):
        find_profile("this-machine")


def test_a_hardware_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    file.write_text(json.dumps({**CATALOGUE["l4"].model_dump(), "name": "mine"}))
    assert find_hardware(str(file)).name == "mine"
    assert find_profile(str(file)).hardware.name == "mine", "as --hardware FILE.json has it"
    file.write_text(json.dumps({"name": "mine"}))
    with pytest.raises(PricingError, match="Field required"):
        find_hardware(str(file))


@pytest.mark.parametrize(
    "change",
    [
        {"bandwidth": 0},
        {"memory": -1},
        {"flops": {"bfloat16": float("nan")}},
        {"price_per_hour": -1.0},
        {"flops": {"float32": 1e12}},
    ],
)
def test_hardware_that_cannot_be(change: dict) -> None:
    with pytest.raises(PricingError):
        CATALOGUE["l4"].replace(**change)


def test_packaged_profiles_state_source_and_error() -> None:
    assert set(PACKAGED) == {"h100-sxm-2023", "minillm-h100", "rtx-4090"}
    for name in PACKAGED:
        profile = find_profile(name)
        kept, known = Profile.read(PACKAGED[name]).hardware, profile.hardware
        assert known == CATALOGUE[known.name] and kept.flops == known.flops and kept.bandwidth == known.bandwidth
        assert any(where in profile.provenance["source"] for where in ("github.com", "our own engine"))
        assert profile.provenance["date"]
        assert any("error" in key for key in profile.provenance)
    assert find_profile("h100-sxm") == moved(find_profile("rtx-4090"), CATALOGUE["h100-sxm"]), "today's stack"


def test_the_stack_is_named_by_its_version_and_what_newer_ones_changed() -> None:
    told = find_profile("h100-sxm").provenance
    stack, newer = stack_lines(told, "h100-sxm")
    assert stack == "stack: vLLM 0.19 (spring 2026), moved to h100-sxm" and "Model Runner V2" in newer
    assert stack_lines(find_profile("rtx-4090").provenance, "rtx-4090")[0] == "stack: vLLM 0.19 (spring 2026)"
    assert "2023" in stack_lines(find_profile("h100-sxm-2023").provenance, "h100-sxm")[0]
    engine = find_profile("vllm-0.19@h200")
    assert stack_lines(engine.provenance, "h200") == ["stack: vllm-0.19"]
    assert stack_lines(typical_profile(CATALOGUE["b200"]).provenance, "b200") == [], "nobody's stack"


def test_host_and_stack_move_to_another_card_and_the_chips_shares_do_not() -> None:
    fitted, card = find_profile("rtx-4090"), CATALOGUE["h100-sxm"]
    there, typical = moved(fitted, card).constants, typical_profile(card).constants
    for name in Constants.model_fields:
        assert getattr(there, name) == getattr(fitted.constants if name in (*HOST, *STACK) else typical, name), name
    assert {*CHIP, *LINK, *HOST, *STACK} == set(Constants.model_fields), "each constant is somebody's"
    assert moved(fitted, fitted.hardware) == fitted
    waits = [typical_profile(CATALOGUE[card]).constants.link_latency_s for card in ("h200", "l40s", "rtx-5090")]
    assert waits == sorted(set(waits)), "NVLink, PCIe with peer-to-peer, PCIe through host memory"


def test_what_the_constants_were_not_fitted_to_is_told() -> None:
    def differs(profile: Profile | str, model: str = "llama-3.1-8b", **fields: object) -> set[str]:
        return set(beyond_fit(model, Deployment.of(model, profile, **fields)))

    assert differs("rtx-4090") == set()
    assert differs("rtx-4090", weight_dtype="float16") == set(), "which takes the same time"
    assert differs("rtx-4090", "llama-3.1-8b", tp=2, weight_dtype="int8") == {"tp", "weight_dtype", "link"}
    assert differs(moved(find_profile("rtx-4090"), CATALOGUE["l40s"]), "llama-3-8b") == {"hardware", "model"}
    assert differs("h100-sxm-2023", "llama-2-70b", tp=4) == set()
    assert differs("b200") == {"hardware"} and differs(typical_profile(CATALOGUE["b200"])) == {"constants"}


def test_a_profile_survives_its_file(tmp_path: Path) -> None:
    profile = typical_profile(find_hardware("l4"))
    profile.write(tmp_path / "deep" / "profile.json")
    assert Profile.read(tmp_path / "deep" / "profile.json") == profile
    assert roofline_profile(profile.hardware).constants == ROOFLINE


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("nonsense", "cannot read"),
        ("[]", "no JSON object"),
        ('{"version": 7}', "version"),
        ('{"version": 1}', "hardware"),
        ('{"version": 1, "hardware": {}, "constants": {"magic": 1}}', "magic"),
    ],
)
def test_files_that_are_no_profile(tmp_path: Path, content: str, said: str) -> None:
    file = tmp_path / "profile.json"
    file.write_text(content)
    with pytest.raises(PricingError, match=said):
        find_profile(str(file))
    with pytest.raises(PricingError, match="cannot read"):
        find_profile(str(tmp_path / "absent.json"))
