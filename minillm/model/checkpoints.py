"""From a model's name to its configuration, weights and tokenizer.

A checkpoint is a Hugging Face folder: config.json, safetensors files, tokenizer.json. Everything else
(a short name, a GGUF file, a Hub id) is turned into one first, by :func:`resolve`.
"""

import difflib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minillm.core.errors import CorruptCheckpointError, UnknownModelError, UnsupportedArchitectureError
from minillm.kernels.storage import say
from minillm.model.config import ARCHITECTURES, PRICED_ARCHITECTURES
from minillm.model.pull import EMBEDDED_MODELS, pull, pull_gguf

if TYPE_CHECKING:
    import torch

HUB_FILES = ["*.json", "*.jinja", "*.safetensors", "*.model", "merges.txt", "vocab.txt"]
HUB_SKIPPED = ["consolidated*", "*/*"]
"""Weights that some repositories hold twice, and sub-folders for other programs."""

SHAPES = {file.stem: file for file in sorted((Path(__file__).parent / "shapes").glob("*.json"))}
"""Short names of well-known shapes, as their publishers' config.json states them: for load_format="dummy"
and for the simulator."""
PRICED_SHAPES = {file.stem: file for file in sorted((Path(__file__).parent / "shapes" / "priced").glob("*.json"))}
"""Shapes that only the simulator has a use for: loading one raises UnsupportedArchitectureError."""

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")


def resolve(model: str, *, progress: bool = True) -> Path:
    """The local checkpoint behind a model's name; fetches and converts what is not there yet.

    Args:
        model: a short name, a shape's name (for random weights), a Hugging Face folder, a config.json (for
            random weights), a GGUF file or a Hub id (`organisation/name`), tried in this order.
        progress: report on standard error.
    Returns:
        A folder with a config.json; or the .json file itself, if that was given.
    Raises:
        UnknownModelError: no such model, or the Hub cannot be reached.
        ModelError, StorageError, CorruptCheckpointError, UnsupportedArchitectureError: while fetching.
    """
    if model in EMBEDDED_MODELS:
        return pull(model, progress=progress)
    path = Path(model).expanduser()
    shapes = SHAPES | PRICED_SHAPES
    if model in shapes and not path.exists():
        return shapes[model]
    if model and path.is_dir():
        return path
    if path.is_file() and path.suffix == ".gguf":
        return pull_gguf(path, progress=progress)
    if path.is_file() and path.suffix == ".json":
        return path
    if re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", model) and not path.exists() and path.suffix not in (".gguf", ".json"):
        return _from_hub(model, progress)
    close = difflib.get_close_matches(model, [*EMBEDDED_MODELS, *SHAPES], n=1)
    raise UnknownModelError(
        f"no model {model!r}: {f'did you mean {close[0]!r}? ' if close else ''}Give a short name "
        f"({', '.join(EMBEDDED_MODELS)}), a Hugging Face folder, a .gguf file or a Hub id such as org/name; or, with "
        f"load_format='dummy', a config.json or a shape ({', '.join(SHAPES)})"
    )


def _from_hub(repository: str, progress: bool) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils.tqdm import disable_progress_bars, enable_progress_bars

    say(f"looking for {repository} on the Hugging Face Hub", progress)
    if not progress:
        disable_progress_bars()
    try:
        return Path(snapshot_download(repository, allow_patterns=HUB_FILES, ignore_patterns=HUB_SKIPPED))
    except Exception as error:  # The Hub's client and the network below it have dozens of error types.
        reason = str(error).splitlines()[0] if str(error) else ""
        raise UnknownModelError(
            f"{repository!r} is not a local folder, and the Hugging Face Hub did not give it "
            f"({type(error).__name__}: {reason}). Check the spelling, the network and, for a gated model, "
            f"`hf auth login`; or give a local folder, a .gguf file, or one of {', '.join(EMBEDDED_MODELS)}"
        ) from error
    finally:
        if not progress:
            enable_progress_bars()


def read_config(path: Path) -> dict[str, Any]:
    """The parsed config.json of a checkpoint folder (or of a .json file by itself), of any model.

    Raises:
        CorruptCheckpointError: it is missing or is not a JSON object.
    """
    return _read_json(path if path.is_file() else path / "config.json")


def load_config(path: Path) -> dict[str, Any]:
    """The same, of a model that minillm has a decoder for.

    Raises:
        CorruptCheckpointError: see `read_config`.
        UnsupportedArchitectureError: there is no decoder for it.
    """
    config = read_config(path)
    found = config.get("architectures") or [f"unnamed, model_type {config.get('model_type')!r}"]
    if not set(ARCHITECTURES).intersection(found):
        only_priced = set(PRICED_ARCHITECTURES).intersection(found)
        hint = " (`minillm simulate` prices it; no decoder computes it)" if only_priced else ""
        raise UnsupportedArchitectureError(
            f"{path} is a {', '.join(found)}{hint}; minillm implements {', '.join(ARCHITECTURES)}"
        )
    return config


def iter_weights(path: Path) -> "Iterator[tuple[str, torch.Tensor]]":
    """Every tensor of the checkpoint, as (name, tensor on the CPU in its stored dtype), one at a time.

    Raises:
        CorruptCheckpointError: there are no weights, or a file is missing, truncated or damaged.
    """
    from safetensors import SafetensorError, safe_open

    for shard in _shards(path):
        try:
            with safe_open(shard, framework="pt") as file:
                for name in list(file.keys()):
                    yield name, file.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise CorruptCheckpointError(
                f"{shard} is missing, truncated or damaged ({error}). Delete it and fetch the model again; a model "
                "with a short name comes back with `minillm pull --force`"
            ) from error


def _shards(path: Path) -> list[Path]:
    """The safetensors files to read: those that the index names, if there is one."""
    index = path / "model.safetensors.index.json"
    if index.is_file():
        shards = {path / file_name for file_name in _read_json(index).get("weight_map", {}).values()}
        if not shards:
            raise CorruptCheckpointError(f"{index} has no weight_map. Fetch the model again")
    else:
        shards = {file for file in path.glob("*.safetensors") if not file.name.startswith("consolidated")}
        if not shards:
            raise CorruptCheckpointError(
                f"no .safetensors file in {path}. Convert other formats first (transformers' save_pretrained does), "
                'or set load_format="dummy" for random weights'
            )
    return sorted(shards)


def load_tokenizer(path: Path) -> Any | None:
    """The checkpoint's tokenizer (transformers', with its chat template), or None if it has none.

    Raises:
        CorruptCheckpointError: its files cannot be read.
    """
    if not any((path / name).is_file() for name in TOKENIZER_FILES):
        return None
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(path)
    except Exception as error:  # The readers of broken tokenizer files raise a bare Exception.
        raise CorruptCheckpointError(
            f"the tokenizer in {path} cannot be read ({type(error).__name__}: {error}). Fetch the model again"
        ) from error


def eos_token_ids(path: Path) -> frozenset[int]:
    """Tokens that end an output: from generation_config.json, else config.json, else the tokenizer."""
    sources = [path / "generation_config.json", path if path.is_file() else path / "config.json"]
    for file in sources:
        found = _read_json(file).get("eos_token_id") if file.is_file() else None
        if found is not None:
            return frozenset(found if isinstance(found, list) else [found])
    tokenizer = load_tokenizer(path)
    found = None if tokenizer is None else tokenizer.eos_token_id
    return frozenset() if found is None else frozenset([found])


def _read_json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CorruptCheckpointError(
            f"{file} is missing: a checkpoint is a folder with config.json, safetensors files and tokenizer.json"
        ) from error
    except (OSError, ValueError) as error:
        raise CorruptCheckpointError(f"{file} cannot be read as JSON ({error}). Fetch the model again") from error
    if not isinstance(content, dict):
        raise CorruptCheckpointError(f"{file} does not hold a JSON object. Fetch the model again")
    return content
