"""The shape of the code: imports point one way, privates stay private, dependencies are declared."""

import ast
import collections
import functools
import gc
import importlib.metadata
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import minillm

ROOT = Path(__file__).parent.parent

LAYERS = (
    "text_files",
    "strict_model",
    "core",
    "host",
    "kernels",
    "policies",
    "model",
    "runner",
    "speculation",
    "observe",
    "frontend",
    "course_commands",
    "server",
    "bench",
    "doctor",
    "cli",
    "__main__",
    "course",
)
"""A package imports from itself and from those before it, at any place in a file: so no two import each other."""

ENTRIES = {
    ("minillm.course_commands", "course.commands"),
    ("minillm.bench.cli", "course.measure.cli"),
}
"""Thin entries of the command line into the course: the list of its commands, and plain `minillm bench`."""

WITHOUT_TORCH = (
    "minillm.core.engine",
    "minillm.policies.assemble",
    "course.summary",
    "course.simulator",
    "minillm.frontend.engine",
    "minillm.doctor.children",
    "minillm.cli",
    "course.challenge.cli",
)
"""Importing these loads no torch: `minillm simulate` and `--help` answer in under a second. Of commands for practice,
tests/course/lab/test_light_imports.py holds it."""


@pytest.fixture(scope="module", autouse=True)
def _a_million_nodes_of_syntax() -> Iterator[None]:
    """They stay until all tests here have read them: to look for garbage among them takes longer than to parse them."""
    gc.disable()
    yield
    nodes_of.cache_clear()
    gc.enable()


@functools.cache
def source_files() -> list[Path]:
    return sorted([*ROOT.glob("minillm/**/*.py"), *ROOT.glob("course/*/**/*.py")])


def module_name(file: Path) -> str:
    return ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@functools.cache
def nodes_of(file: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))


@functools.cache
def imports_of(file: Path) -> list[str]:
    """Every module that the file imports, wherever it does so, but for `if TYPE_CHECKING:`."""
    only_for_types = {
        inner
        for node in nodes_of(file)
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    found: list[str] = []
    for node in nodes_of(file):
        if isinstance(node, ast.Import) and node not in only_for_types:
            found += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node not in only_for_types:
            # `from a import b`: b may be a module or a name in a.
            found += (f"{'.' * node.level}{node.module}.{alias.name}" for alias in node.names)
    return found


def layer(module: str) -> str:
    """`minillm.core.block_manager` -> `core`; everything of the course is one layer."""
    parts = module.split(".")
    return parts[0] if parts[0] == "course" or len(parts) == 1 else parts[1]


@functools.cache
def known_modules() -> set[str]:
    return set(map(module_name, source_files()))


@functools.cache
def ours(file: Path) -> set[str]:
    """The modules of ours that the file imports; a lazy name of `minillm` itself counts as its home."""
    known = known_modules() - {module_name(file)}
    found = set()
    for name in imports_of(file):
        assert not name.startswith("."), f"{file}: write imports out in full"
        package, _, attribute = name.rpartition(".")
        if package == "minillm":
            name = minillm._HOMES.get(attribute, name)
        found.update([module for module in (name, name.rpartition(".")[0]) if module in known][:1])
    return found


def test_imports_point_one_way() -> None:
    for file in source_files():
        own = layer(module_name(file))
        if own == "minillm":  # minillm/__init__.py: lazy, so it imports nothing
            assert not ours(file)
            continue
        allowed = ("minillm", *LAYERS[: LAYERS.index(own) + 1])
        upward = [
            name for name in ours(file) if layer(name) not in allowed and (module_name(file), name) not in ENTRIES
        ]
        assert not upward, f"{module_name(file)} imports from a layer above its own: {upward}"


def test_no_import_cycles() -> None:
    graph = {module_name(file): ours(file) for file in source_files()}
    assert graph["minillm.core.block_manager"], "the graph must have edges, or this test sees nothing"
    TopologicalSorter(graph).prepare()  # raises CycleError, naming the cycle


def test_what_must_answer_soon_loads_no_torch() -> None:
    program = f"""
import importlib, sys
for name in {WITHOUT_TORCH}:
    importlib.import_module(name)
    heavy = {{"torch", "transformers"}} & sys.modules.keys()
    assert not heavy, f"{{name}} loads {{heavy}}"
    assert not name.startswith("minillm.core") or "numpy" not in sys.modules, f"{{name}} loads numpy"
"""
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT)


def test_the_core_knows_no_option() -> None:
    """What is optional comes through the four seams: its words do not occur in the core's code."""
    for file in (ROOT / "minillm" / "core").glob("*.py"):
        names = {getattr(node, "id", "") or getattr(node, "attr", "") for node in nodes_of(file)}
        names |= {node.arg for node in nodes_of(file) if isinstance(node, ast.arg)}
        found = [name for name in names if re.search("swap|window|sink|lane|static", name.lower())]
        assert not found, f"{file.name} has {found}"


def test_no_package_uses_what_is_private_to_another() -> None:
    """No `_name` of an object from another package is read, and none of its private methods is overridden."""
    private = collections.defaultdict(set)
    for file in source_files():
        for node in nodes_of(file):
            if isinstance(node, ast.FunctionDef) and is_private(node.name):
                private[node.name].add(home(file))
            elif isinstance(node, ast.Attribute) and is_private(node.attr) and owner(node) == "self":
                private[node.attr].add(home(file))
    found = [
        f"{file.relative_to(ROOT)}:{node.lineno} reads {node.attr} of {sorted(private[node.attr])}"
        for file, node in private_reads()
        if private[node.attr] and home(file) not in private[node.attr]  # else of its own package, or of a library
    ]
    assert not found, "\n".join(found)


def private_reads() -> Iterator[tuple[Path, ast.Attribute]]:
    """Each `_name` that's read of anything but `self` or `cls`."""
    for file in source_files():
        for node in nodes_of(file):
            if isinstance(node, ast.Attribute) and is_private(node.attr) and owner(node) not in ("self", "cls"):
                yield file, node


def owner(node: ast.Attribute) -> str:
    """`a` of `a.b`; empty where it's no plain name."""
    return node.value.id if isinstance(node.value, ast.Name) else ""


PRIVATE_TO_LIBRARIES = {
    "_attn_implementation": "which attention transformers chose: no public name says so",
    "_exit": "os: ends a process without its handlers",
    "_is_avx512_bf16_supported": "torch.cpu",
    "_linear_pointwise": "torch's oneDNN operators",
    "_reorder_linear_weight": "torch's oneDNN operators",
    "_replace": "public, of a NamedTuple",
    "_scaled_mm": "torch's product in FP8",
    "_sleep": "torch.cuda: a kernel that does nothing for a while",
}
"""The underscored names of libraries that are read, and what they are."""


def test_of_libraries_only_what_is_public_is_used() -> None:
    """A new version may change the rest without a word: so may uvicorn its protocols, underscore or not."""
    ours = {name for file in source_files() for node in nodes_of(file) if is_private(name := defined_name(node))}
    for file, node in private_reads():
        assert node.attr in ours | PRIVATE_TO_LIBRARIES.keys(), (
            f"{file.relative_to(ROOT)}:{node.lineno} reads {ast.unparse(node)}, private to a library"
        )
    for file in source_files():
        inner = [name for name in imports_of(file) if re.match(r"uvicorn\.(protocols|_)", name)]
        assert not inner, f"{file.relative_to(ROOT)} imports {inner}"


def defined_name(node: ast.AST) -> str:
    """The function, class, name or attribute that a node defines; empty for all others."""
    if isinstance(node, ast.Name | ast.Attribute):
        return "" if isinstance(node.ctx, ast.Load) else node.id if isinstance(node, ast.Name) else node.attr
    return getattr(node, "name", None) or ""


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("_") and not name.startswith("__")


def home(file: Path) -> str:
    """The package that a file's private names belong to."""
    return ".".join(module_name(file).split(".")[: 3 if module_name(file).startswith("course") else 2])


BUILT_BY_THE_USER = {"flash_attn_interface", "minisgl", "nanovllm", "vllm"}
"""Modules of peers that no package index has, or that live in an environment of their own: the code that imports them
says where to get them."""


USED_WITHOUT_IMPORT = {
    "accelerate": "transformers reads GGUF files with it",
    "coverage": "a command",
    "flash-attn": "imported by the name in minillm/kernels/attention/flash.py",
    "ipykernel": "notebooks run in it",
    "ipython": "imported as IPython, in notebooks too",
    "jupyterlab": "a command",
    "mypy": "a command",
    "nbval": "a plugin of pytest",
    "playwright": "browser tests import it by name, if it is there",
    "pytest-timeout": "a plugin of pytest",
    "pytest-xdist": "a plugin of pytest",
    "ruff": "a command",
    "uvloop": "uvicorn takes it where it is there",
    "websocket-client": "Firefox's test imports it by name, if it is there",
}
"""Declared packages that no file of ours imports, and what they are for."""
PROVIDERS = {
    "llama_cpp": ["llama-cpp-python"],
    "opentelemetry": ["opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http"],
}
"""Packages of optional extras by module: they may be absent, and so cannot be asked."""
TEST_FILES = [file for file in sorted((ROOT / "tests").glob("**/*.py")) if file.parents[2].name != "grading"]
"""But for answers as learners write them."""


def declared_in(*extras: str) -> set[str]:
    """Normal names of the dependencies, and of those of some extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    optional = [name for extra in extras for name in project["optional-dependencies"][extra]]
    return {normal(name) for name in project["dependencies"] + optional}


installed = functools.cache(importlib.metadata.packages_distributions)


@functools.cache
def providers_of(module: str) -> frozenset[str]:
    """Packages that an imported module may come from; of a namespace such as opentelemetry there are several."""
    return frozenset(normal(name) for name in [*PROVIDERS.get(module, []), *installed().get(module, [module])])


def third_party(files: list[Path]) -> dict[str, Path]:
    """Modules of others that the files import, each with a file that does. Of a relative import there is "" left."""
    here = {file.stem for file in TEST_FILES} | {file.parent.name for file in TEST_FILES}
    ours_or_built_in = {"", "minillm", "course", *sys.stdlib_module_names, *BUILT_BY_THE_USER, *here}
    found = {name.split(".")[0]: file for file in files for name in imports_of(file)}
    return {module: file for module, file in found.items() if module not in ours_or_built_in}


def test_third_party_imports_are_declared() -> None:
    # Triton comes with torch for CUDA. Without a GPU only tests use it, so it is in their extra.
    declared = declared_in("lab", "bench", "otel", "ray") | {"triton"}
    for module, file in third_party(source_files()).items():
        assert providers_of(module) & declared, f"{file.relative_to(ROOT)} imports {module}: add it to pyproject.toml"


def test_what_tests_import_is_declared() -> None:
    declared = declared_in("lab", "bench", "otel", "ray", "test")
    for module, file in third_party(TEST_FILES).items():
        assert providers_of(module) & declared, f"{file.relative_to(ROOT)} imports {module}: add it to the extra `test`"


def test_every_declared_package_is_used() -> None:
    modules = third_party([*source_files(), *TEST_FILES, *sorted(ROOT.glob("course/*.py"))])
    imported = {package for module in modules for package in providers_of(module)}
    unused = declared_in("lab", "bench", "gpu", "otel", "ray", "test") - imported - USED_WITHOUT_IMPORT.keys()
    assert not unused, f"nothing imports {unused}: take them out of pyproject.toml, or say here what they are for"


def test_everything_declared_is_pinned() -> None:
    pins = re.findall(r"^([\w.-]+)==", (ROOT / "constraints.txt").read_text(), flags=re.MULTILINE)
    unpinned = declared_in("lab", "bench", "gpu", "otel", "ray", "test") - {normal(pin) for pin in pins}
    assert not unpinned, f"pin in constraints.txt: {unpinned}"


def normal(name: str) -> str:
    """A package's name as the index knows it (PEP 503), without extras and environment marker."""
    return re.sub(r"[-_.]+", "-", name.partition(";")[0].partition("[")[0]).lower()


def test_no_two_classes_have_one_name() -> None:
    """In engine and course together. `Adapter` is what `minillm conform` looks for in anybody's file."""
    files = collections.defaultdict(list)
    for file in source_files():
        module = nodes_of(file)[0]
        assert isinstance(module, ast.Module)
        for node in module.body:
            if isinstance(node, ast.ClassDef) and node.name != "Adapter":
                files[node.name].append(module_name(file))
    assert {name: found for name, found in files.items() if len(found) > 1} == {}
