"""The shape of the code: imports point one way, files stay short, dependencies are declared."""

import ast
import functools
import importlib.metadata
import re
import sys
import tomllib
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import minillm

ROOT = Path(__file__).parent.parent
MAX_LINES = 400

LAYERS = [
    ["minillm", "errors", "clock", "timeline", "config", "request"],
    ["kv_cache", "memory"],
    ["scheduling"],
    ["transfer"],
    ["models", "attention", "sampling", "detokenizer", "prompts", "quantization", "prompt_pruning"],
    ["runners", "speculation"],
    ["admission", "request_group", "step_log", "engine"],
    ["observe"],
    ["llm", "inbox", "async_engine"],
    ["simulate", "serve", "bench", "training"],
    ["doctor", "cli", "__main__"],
    ["course"],
]
"""A module may import from its own layer and those above it in this list."""

RANKS = {name: rank for rank, names in enumerate(LAYERS) for name in names}


def source_files() -> list[Path]:
    return sorted([*ROOT.glob("minillm/**/*.py"), *ROOT.glob("course/lab/**/*.py")])


def module_name(file: Path) -> str:
    return ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@functools.cache
def imports_of(file: Path) -> list[str]:
    """Every module that the file imports, wherever it does so, but for `if TYPE_CHECKING:`."""
    return list(_imports(ast.parse(file.read_text(encoding="utf-8"))))


def _imports(node: ast.AST) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, f"line {child.lineno}: write imports out in full"
            # `from a import b`: b may be a module or a name in a.
            yield from (f"{child.module}.{alias.name}" for alias in child.names)
        yield from _imports(child)


def layer(module: str) -> str:
    """`minillm.kv_cache.manager` -> `kv_cache`; everything of the course is one layer."""
    parts = module.split(".")
    return parts[0] if parts[0] == "course" or len(parts) == 1 else parts[1]


def ours(file: Path) -> set[str]:
    """The modules of ours that the file imports; a lazy name of `minillm` itself counts as its home."""
    known = {module_name(path) for path in source_files()} - {module_name(file)}
    found = set()
    for name in imports_of(file):
        package, _, attribute = name.rpartition(".")
        if package == "minillm":
            name = minillm._HOMES.get(attribute, name)
        found.update([module for module in (name, name.rpartition(".")[0]) if module in known][:1])
    return found


@pytest.mark.parametrize("file", source_files(), ids=module_name)
def test_imports_point_one_way(file: Path) -> None:
    own = layer(module_name(file))
    if own == "minillm":  # minillm/__init__.py: lazy, so it imports nothing
        assert not ours(file)
        return
    assert own in RANKS, f"say in LAYERS where {own} belongs"
    upward = [name for name in ours(file) if RANKS[layer(name)] > RANKS[own]]
    assert not upward, f"{module_name(file)} imports from a layer above its own: {upward}"


def test_no_import_cycles() -> None:
    graph = {module_name(file): ours(file) for file in source_files()}
    assert graph["minillm.kv_cache.manager"], "the graph must have edges, or this test sees nothing"
    TopologicalSorter(graph).prepare()  # raises CycleError, naming the cycle


@pytest.mark.parametrize("file", source_files(), ids=module_name)
def test_files_stay_short(file: Path) -> None:
    lines = len(file.read_text(encoding="utf-8").splitlines())
    assert lines <= MAX_LINES, f"{file.relative_to(ROOT)} has {lines} lines: split it by concept"


BUILT_BY_THE_USER = {"flash_attn_interface", "nanovllm"}
"""Modules of peers that no package index has: the code that imports them says where to get them."""


def test_third_party_imports_are_declared_and_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    # Triton comes with torch for CUDA. Without a GPU only tests use it, so it is in their extra.
    optional = [name for extra in ("lab", "bench", "otel", "ray") for name in extras[extra]]
    declared = {normal(name) for name in project["dependencies"] + optional} | {"triton"}
    # Optional packages may be absent; module and package have different names.
    absent = {"llama_cpp": ["llama-cpp-python"], "opentelemetry": ["opentelemetry-sdk"]}
    providers = {**absent, **importlib.metadata.packages_distributions()}
    not_third_party = {"minillm", "course", *sys.stdlib_module_names, *BUILT_BY_THE_USER}
    for file in source_files():
        for module in {name.split(".")[0] for name in imports_of(file)} - not_third_party:
            packages = {normal(package) for package in providers.get(module, [module])}
            assert packages & declared, f"{file.relative_to(ROOT)} imports {module}: add it to pyproject.toml"
    pins = re.findall(r"^([\w.-]+)==", (ROOT / "constraints.txt").read_text(), flags=re.MULTILINE)
    unpinned = (declared | {normal(name) for name in extras["test"]}) - {normal(pin) for pin in pins}
    assert not unpinned, f"pin in constraints.txt: {unpinned}"


def normal(name: str) -> str:
    """A package's name as the index knows it (PEP 503), without extras and environment marker."""
    return re.sub(r"[-_.]+", "-", name.partition(";")[0].partition("[")[0]).lower()
