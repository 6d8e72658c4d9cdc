"""decoder.wasm as a page loads it, in Node in a tab's place: a TabRunner's calls go there as lines of JSON."""

import json
import shutil
import subprocess
from array import array
from pathlib import Path
from types import TracebackType
from typing import Any

from course.tab.model import build

PAGE = """
import { readFile } from "node:fs/promises";
import { createInterface } from "node:readline";
const headers = { "content-type": "application/wasm" };
globalThis.fetch = async (url) => new Response(await readFile(url), { headers });
globalThis.caches = { open: () => Promise.reject(new Error("a private window")) };
const { loadDecoder } = await import("./decoder.mjs");
const files = { module: "decoder.wasm", weights: "weights.bin", tokenizer: "tokenizer.json" };
const decoder = await loadDecoder(files, () => {});
for await (const line of createInterface({ input: process.stdin })) {
  const [name, given] = JSON.parse(line);
  const answer = name === "step" ? decoder.step(Int32Array.from(given)) : decoder[name](...given);
  console.log(JSON.stringify(answer ?? null));
}
"""


class NodeDecoder:
    """What a TabRunner wants.

    Args:
        folder: with weights.bin and tokenizer.json.
    """

    def __init__(self, node: str, folder: Path) -> None:
        shutil.copy(build.COMPILED, folder)
        shutil.copy(build.COMPILED.with_name("decoder.js"), folder / "decoder.mjs")
        (folder / "page.mjs").write_text(PAGE)
        pipe = subprocess.PIPE
        self._node = subprocess.Popen([node, "page.mjs"], cwd=folder, stdin=pipe, stdout=pipe, text=True)

    def __enter__(self) -> "NodeDecoder":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._node.communicate()

    def _ask(self, name: str, *given: Any) -> Any:
        assert self._node.stdin is not None and self._node.stdout is not None
        self._node.stdin.write(f"{json.dumps([name, given])}\n")
        self._node.stdin.flush()
        return json.loads(self._node.stdout.readline())

    def start(self, num_blocks: int, max_tokens: int, max_rows: int, max_context: int) -> None:
        self._ask("start", num_blocks, max_tokens, max_rows, max_context)

    def step(self, batch: "array[int]") -> None:
        self._ask("step", *batch)

    def likeliest(self, row: int) -> int:
        return self._ask("likeliest", row)

    def draw(self, row: int, temperature: float, uniform: float) -> int:
        return self._ask("draw", row, temperature, uniform)
