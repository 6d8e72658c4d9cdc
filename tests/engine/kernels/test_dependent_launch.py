"""Kernels that start early touch nothing before they have waited. Compiled ones: test_compiles.py."""

import ast
import inspect
import textwrap
from types import ModuleType
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="triton is for Linux")

from minillm.kernels.triton import attention_kernels, dependent_launch, experts, few_rows, likeliest, rounded_attention
from minillm.kernels.triton import ops as triton_ops
from minillm.kernels.triton.dependent_launch import pdl_options
from minillm.kernels.triton.gpu import GpuLimits

MODULES = (attention_kernels, experts, few_rows, likeliest, rounded_attention, triton_ops)
BEFORE = ("program_id", "num_programs", "arange", "cdiv", "minimum", "to", "_pairs_at", "_scales_at")
BEFORE += ("_prefetch_weights",)
"""What may be called before: it computes addresses, or prefetches."""


def kernels(module: ModuleType) -> dict[str, Any]:
    """Those of this module that can start early, by name."""
    functions = {name: value for name, value in vars(module).items() if hasattr(value, "fn")}
    return {
        name: kernel
        for name, kernel in functions.items()
        if kernel.fn.__module__ == module.__name__ and "PDL" in inspect.signature(kernel.fn).parameters
    }


def called(statement: ast.stmt) -> list[str]:
    calls = [node.func for node in ast.walk(statement) if isinstance(node, ast.Call)]
    return [call.attr if isinstance(call, ast.Attribute) else ast.unparse(call) for call in calls]


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__.rpartition(".")[2])
def test_kernels_wait_before_they_touch_memory(module: ModuleType) -> None:
    found = kernels(module)
    assert found
    for name, kernel in found.items():
        [function] = ast.parse(textwrap.dedent(inspect.getsource(kernel.fn))).body
        assert isinstance(function, ast.FunctionDef)
        statements = [ast.unparse(statement) for statement in function.body]
        before = function.body[: statements.index("wait_for_previous(PDL)")]
        assert not any(isinstance(node, ast.Return) for each in before for node in ast.walk(each)), name
        assert {call for statement in before for call in called(statement)} <= set(BEFORE), name


@pytest.mark.parametrize(
    ("asked", "capability", "hip", "starts_early"),
    [
        ("1", 90, None, True),
        ("1", 100, None, True),
        ("1", 89, None, False),
        ("1", 90, "6.4", False),
        ("", 90, None, False),
    ],
    ids=str,
)
def test_it_has_to_be_asked_for_and_wants_hopper(
    monkeypatch: pytest.MonkeyPatch, asked: str, capability: int, hip: str | None, starts_early: bool
) -> None:
    monkeypatch.setenv("MINILLM_PDL", asked)
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(dependent_launch, "gpu", lambda device: GpuLimits(132, 227 * 1024, capability))
    assert pdl_options(torch.device("cpu")) == {"PDL": False}, "Triton's interpreter has no such launch"
    expected = {"PDL": True, "launch_pdl": True} if starts_early else {"PDL": False}
    assert pdl_options(torch.device("cuda")) == expected
