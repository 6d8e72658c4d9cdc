"""Sizes of the project's parts, beside what CONTRIBUTING.md says they should stay under. Nothing fails on them.

python -m docs.sizes
"""

import ast
import io
import tokenize
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parent.parent
PARTS = {
    "minillm/core": ("minillm/core", 1_200),
    "minillm": ("minillm", 12_000),
    "course/simulator": ("course/simulator", 4_200),
    "course/loadgen": ("course/loadgen", 1_000),
    "course/measure": ("course/measure", 1_300),
    "course, the rest": ("course", 26_000),
    "tests": ("tests", 24_000),
}
"""Each part's folder, and the code lines that it should stay under."""
APART = {"course": ("course/simulator", "course/loadgen", "course/measure")}
"""Folders inside of a part's that are parts of their own."""
NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def code_lines(source: str) -> int:
    """Lines that hold code: no blanks, comments, docstrings."""
    docstrings = {
        line
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    tokens = [each for each in tokenize.generate_tokens(io.StringIO(source).readline) if each.type not in NO_CODE]
    return len({line for each in tokens for line in range(each.start[0], each.end[0] + 1)} - docstrings)


def files_of(folder: str) -> Iterable[Path]:
    """Python files of a part."""
    apart = [ROOT / each for each in APART.get(folder, ())]
    return (file for file in (ROOT / folder).rglob("*.py") if not any(file.is_relative_to(each) for each in apart))


def main() -> None:
    """Print the table."""
    print(f"{'code lines':40}{'now':>8}{'aim':>8}{'fmt: skip':>11}")
    for name, (folder, aim) in PARTS.items():
        sources = [file.read_text(encoding="utf-8") for file in files_of(folder)]
        unformatted = sum(source.count("# fmt: skip") for source in sources)
        print(f"{name:40}{sum(map(code_lines, sources)):8,}{aim:8,}{unformatted:11}")


if __name__ == "__main__":
    main()
