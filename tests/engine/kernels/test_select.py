"""Which backend runs where, and what is said when it cannot."""

import importlib.util
import sys
from types import ModuleType

import pytest
import torch

from minillm.core.errors import ConfigError
from minillm.kernels.attention import native
from minillm.kernels.attention.select import BACKENDS, Demands, select_backend, survey
from minillm.kernels.triton import attention as triton_paged

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The packages that can be found. Tests put names in; nothing is imported."""
    names = {"torch"}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name if name in names else None)
    return names


@pytest.fixture
def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))


def test_auto_on_a_cpu_is_our_own_cpp_and_sdpa_where_that_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "native_kernels", lambda: object())
    assert select_backend("auto", CPU, Demands(dtype=torch.bfloat16)) is BACKENDS["native"]
    assert select_backend("auto", CPU, Demands(dtype=torch.float32)) is BACKENDS["sdpa"]
    monkeypatch.setattr(native, "native_kernels", lambda: None)
    assert select_backend("auto", CPU, Demands(dtype=torch.bfloat16)) is BACKENDS["sdpa"]
    with pytest.raises(ConfigError, match="apt install g"):
        select_backend("native", CPU)


def test_auto_on_a_gpu_is_the_fastest_that_is_there(hopper: None, installed: set[str]) -> None:
    for there, chosen in (("flash_attn_interface", "sdpa"), ("triton", "hopper")):
        installed.add(there)
        assert select_backend("auto", CUDA) is BACKENDS[chosen]
    installed.remove("flash_attn_interface")
    assert select_backend("auto", CUDA) is BACKENDS["triton"]
    assert select_backend("auto", CUDA, Demands(kv_dtype=torch.int8)) is BACKENDS["triton"]


def test_auto_passes_over_what_lacks_the_dtype(hopper: None, installed: set[str]) -> None:
    installed.update(["flash_attn_interface", "triton"])
    assert select_backend("auto", CUDA, Demands(dtype=torch.bfloat16)) is BACKENDS["hopper"]
    assert select_backend("auto", CUDA, Demands(dtype=torch.float32)) is BACKENDS["triton"]
    with pytest.raises(ConfigError, match=r"no kernels for torch.float32"):
        select_backend("fa3", CUDA, Demands(dtype=torch.float32))


def test_a_block_size_it_cannot_use(hopper: None, installed: set[str]) -> None:
    installed.add("flash_attn")
    assert select_backend("fa2", CUDA) is select_backend("fa2", CUDA, Demands(512)) is BACKENDS["fa2"]
    with pytest.raises(ConfigError, match="block_size is 16 and it needs a multiple of 256: leave"):
        select_backend("fa2", CUDA, Demands(16))


def test_a_head_size_that_was_not_built(hopper: None, installed: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Our build of FlashAttention-2 says its sizes; upstream's doesn't, and is not second-guessed."""
    installed.add("flash_attn")
    package = ModuleType("flash_attn")
    monkeypatch.setitem(sys.modules, "flash_attn", package)
    assert select_backend("fa2", CUDA, Demands(256, head_dim=80)) is BACKENDS["fa2"]
    monkeypatch.setattr(package, "HEAD_DIMS", (64, 128), raising=False)
    assert select_backend("fa2", CUDA, Demands(256, head_dim=128)) is BACKENDS["fa2"]
    with pytest.raises(ConfigError, match="built for heads of 64 and 128, and the model's have 80"):
        select_backend("fa2", CUDA, Demands(256, head_dim=80))


@pytest.mark.parametrize("name", BACKENDS)
def test_a_backend_that_cannot_run_says_why(
    name: str, monkeypatch: pytest.MonkeyPatch, hopper: None, installed: set[str]
) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    installed.add("triton")
    if name in ("eager", "sdpa", "native"):
        monkeypatch.setattr(native, "native_kernels", lambda: object())
        assert select_backend(name, CPU) is BACKENDS[name]
    else:
        with pytest.raises(ConfigError, match=f"'{name}' cannot run here: it runs on cuda, not on cpu"):
            select_backend(name, CPU)


def test_fa3_is_for_hopper(monkeypatch: pytest.MonkeyPatch, installed: set[str]) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    installed.update(["flash_attn_interface", "flash_attn"])
    with pytest.raises(ConfigError, match=r"built for GPUs of compute capability 9.x, and this one has 8.x"):
        select_backend("fa3", CUDA)
    assert select_backend("fa2", CUDA) is BACKENDS["fa2"]


def test_triton_on_a_cpu_only_in_its_interpreter(monkeypatch: pytest.MonkeyPatch, installed: set[str]) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert "not installed" in (triton_paged.TritonAttention.missing(CPU) or "")
    installed.add("triton")
    assert triton_paged.TritonAttention.missing(CPU) is None


def test_survey_names_every_backend(hopper: None, installed: set[str]) -> None:
    choices = survey(CUDA)
    assert list(choices) == list(BACKENDS)
    assert [name for name, missing in choices.items() if missing is None] == ["sdpa", "eager"]
    assert all("install" in choices[name] for name in ("fa3", "triton", "fa2"))
