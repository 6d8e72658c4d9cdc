"""The model as the Python in a tab finds it: what decoder.js has loaded, and a tokenizer, in a LoadedModel's place."""

import importlib
from array import array
from dataclasses import dataclass
from typing import Any

from course.tab.model.tokenizer import BytePairTokenizer
from minillm.model.checkpoints import SHAPES, load_model_config
from minillm.model.config import ModelConfig

ENDS = ("<|im_end|>",)
NAME = "smollm2-135m"


class WasmDecoder:
    """What a TabRunner wants: decoder.wasm, behind JavaScript."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self._to_js = importlib.import_module("pyodide.ffi").to_js
        self.start, self.likeliest, self.draw = module.start, module.likeliest, module.draw

    def step(self, batch: "array[int]") -> None:
        self._module.step(self._to_js(batch))


@dataclass(frozen=True)
class TabModel:
    """What an engine in a tab has in place of a LoadedModel."""

    tokenizer: BytePairTokenizer
    model_config: ModelConfig
    eos_token_ids: frozenset[int]
    name: str = NAME
    quantization: str | None = "int4"

    @classmethod
    def of(cls, tokenizer: BytePairTokenizer) -> "TabModel":
        config = load_model_config(SHAPES[NAME])
        return cls(tokenizer, config, frozenset(tokenizer.convert_tokens_to_ids(list(ENDS))))


def loaded() -> tuple[WasmDecoder, TabModel]:
    """What the page has loaded.

    Raises:
        ModuleNotFoundError: it has not, or this is no tab.
    """
    decoder = importlib.import_module("decoder")  # registered by worker.js
    return WasmDecoder(decoder), TabModel.of(BytePairTokenizer(decoder.tokenizer))
