"""From a model's name to its configuration, weights and tokenizer.

A checkpoint is a Hugging Face folder: config.json, safetensors files, tokenizer.json. Everything else
(a short name, a GGUF file, a Hub id) is turned into one first, by :func:`resolve`.
"""

import codecs
import difflib
import json
import re
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minillm.host.storage import say
from minillm.model.config import ModelConfig
from minillm.model.errors import CorruptCheckpointError, ModelError, UnknownModelError, UnsupportedArchitectureError
from minillm.model.pull import EMBEDDED_MODELS, pull, pull_gguf

if TYPE_CHECKING:
    import torch

HUB_FILES = ["*.json", "*.jinja", "*.safetensors", "*.model", "merges.txt", "vocab.txt"]
HUB_SKIPPED = ["consolidated*", "*/*"]
"""Weights that some repositories hold twice, and sub-folders for other programs."""

SHAPES = {file.stem: file for file in sorted((Path(__file__).parent / "shapes").glob("*.json"))}
"""Short names of well-known shapes, as their publishers' config.json states them: for load_format="dummy"
and for the simulator."""

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")
PLAIN_TOKENIZERS = ("TokenizersBackend", "PreTrainedTokenizerFast")
"""How tokenizer_config.json says that tokenizer.json is all there is: transformers 5 and 4 write these names."""
WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
NOT_WEIGHTS = ("consolidated", "adapter_model")
"""How the names of safetensors files begin that are no part of the model: a second copy, and adapters."""
EMBEDDINGS, HEAD = "model.embed_tokens.weight", "lm_head.weight"
COMPARED_AT_ONCE = 1 << 22
"""Numbers of two tensors that are compared in one go: 32 MB of float32."""

CHANGES_GREEDY = {
    "num_beams": 1,
    "repetition_penalty": 1,
    "encoder_repetition_penalty": 1,
    "no_repeat_ngram_size": 0,
    "encoder_no_repeat_ngram_size": 0,
    "min_length": 0,
    "min_new_tokens": 0,
    "guidance_scale": 1,
    "bad_words_ids": None,
    "sequence_bias": None,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
    "exponential_decay_length_penalty": None,
    "stop_strings": None,
    "watermarking_config": None,
}
"""Fields of generation_config.json that change transformers' greedy output, and the value that is off."""


def resolve(model: str) -> Path:
    """The local checkpoint behind a model's name; fetches and converts what is not there yet.

    Args:
        model: a short name, a shape's name (for random weights), a Hugging Face folder, a config.json (for
            random weights), a GGUF file or a Hub id (`organization/name`), tried in this order.
    Returns:
        A folder with a config.json; or the .json file itself, if that was given.
    Raises:
        UnknownModelError: no such model, or the Hub cannot be reached.
        ModelError, StorageError, CorruptCheckpointError, UnsupportedArchitectureError: while fetching.
    """
    if found := find_checkpoint(model):
        return found
    raise unknown_model(
        model,
        (*EMBEDDED_MODELS, *SHAPES),
        f"a short name ({', '.join(EMBEDDED_MODELS)}), a Hugging Face folder, a .gguf file or a Hub id such as "
        f"org/name; or, with load_format='dummy', a config.json or a shape ({', '.join(SHAPES)})",
    )


def find_checkpoint(model: str) -> Path | None:
    """As `resolve`; None if the name is none of those."""
    if model in EMBEDDED_MODELS:
        return pull(model)
    path = Path(model).expanduser()
    if model in SHAPES and not path.exists():
        return SHAPES[model]
    if model and path.is_dir():
        return path
    if path.is_file() and path.suffix == ".gguf":
        return pull_gguf(path)
    if path.is_file() and path.suffix == ".json":
        return path
    if re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", model) and not path.exists() and path.suffix not in (".gguf", ".json"):
        return _from_hub(model)
    return None


def unknown_model(model: str, known: Iterable[str], instead: str) -> UnknownModelError:
    """The error for a name that is no model's.

    Args:
        known: names that may have been meant.
        instead: what can be given.
    """
    close = difflib.get_close_matches(model, known, n=1)
    return UnknownModelError(f"no model {model!r}{f'; did you mean {close[0]!r}?' if close else '.'} Give {instead}")


def _from_hub(repository: str) -> Path:
    from huggingface_hub import snapshot_download

    say(f"looking for {repository} on the Hugging Face Hub")
    try:
        return Path(snapshot_download(repository, allow_patterns=HUB_FILES, ignore_patterns=HUB_SKIPPED))
    except Exception as error:  # The Hub's client and the network below it have dozens of error types.
        reason = str(error).splitlines()[0] if str(error) else ""
        raise UnknownModelError(
            f"{repository!r} is not a local folder, and the Hugging Face Hub did not give it "
            f"({type(error).__name__}: {reason}). Check the spelling, the network and, for a gated model, "
            f"`hf auth login`; or give a local folder, a .gguf file, or one of {', '.join(EMBEDDED_MODELS)}"
        ) from error


def load_config(path: Path) -> dict[str, Any]:
    """The parsed config.json of a checkpoint folder (or of a .json file by itself), of any model.

    Raises:
        CorruptCheckpointError: it is missing or is not a JSON object.
    """
    return read_json(path if path.is_file() else path / "config.json")


def load_model_config(path: Path) -> ModelConfig:
    """The shape of the model that a config.json describes; `path` as of `load_config`.

    Raises:
        CorruptCheckpointError, UnsupportedArchitectureError: as `load_config` and `ModelConfig.from_hf`, with the path.
    """
    hf = load_config(path)
    with errors_naming(path):
        return ModelConfig.from_hf(hf)


@contextmanager
def errors_naming(path: Path) -> Iterator[None]:
    """Put the path of a config.json before what is wrong with it: one command may read those of two models."""
    try:
        yield
    except ModelError as error:
        raise type(error)(f"{path}: {error}") from None


def iter_weights(path: Path) -> "Iterator[tuple[str, torch.Tensor]]":
    """Every tensor of the checkpoint, as (name, tensor on the CPU in its stored dtype), one at a time.

    Raises:
        CorruptCheckpointError: there are no weights, a file is missing, truncated or damaged, or two files have
            different tensors of one name.
    """
    found_in: dict[str, Path] = {}
    for shard in weight_files(path):
        with opened(shard) as file:
            for name in list(file.keys()):
                tensor = file.get_tensor(name)
                if name not in found_in:
                    found_in[name] = shard
                    yield name, tensor
                elif not is_same(tensor, read_tensor(found_in[name], name)):
                    raise CorruptCheckpointError(
                        f"{found_in[name].name} and {shard.name} in {path} have different tensors of one name, {name}: "
                        "delete the file that is not of this model, or fetch the model again"
                    )


@contextmanager
def opened(file: Path) -> Iterator[Any]:
    """A safetensors file. What goes wrong while it is open is a CorruptCheckpointError that names it."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="pt") as content:
            yield content
    except (SafetensorError, OSError) as error:
        raise CorruptCheckpointError(
            f"{file} is missing, truncated or damaged ({error}). Delete it and fetch the model again; a model "
            "with a short name comes back with `minillm pull --force`"
        ) from error


def read_tensor(file: Path, name: str) -> "torch.Tensor":
    """One tensor of a safetensors file."""
    with opened(file) as content:
        return content.get_tensor(name)


def is_same(one: "torch.Tensor", other: "torch.Tensor") -> bool:
    """Whether two tensors have one shape and the same numbers, whatever their types. They are compared a part at a
    time: a float32 copy of a large model's embeddings may be gigabytes."""
    parts = zip(one.flatten().split(COMPARED_AT_ONCE), other.flatten().split(COMPARED_AT_ONCE))
    return one.shape == other.shape and all(bool((a.float() == b.float()).all()) for a, b in parts)


def has_own_head(path: Path) -> bool:
    """Whether the checkpoint stores an output head that differs from its embeddings. transformers then uses it, also
    if config.json ties the two. To read headers takes milliseconds; tensors are read only if there are both."""
    stored: dict[str, Path] = {}
    for shard in weight_files(path):
        with opened(shard) as file:
            stored |= dict.fromkeys({EMBEDDINGS, HEAD}.intersection(file.keys()), shard)
    if len(stored) < 2:
        return False
    return not is_same(*(read_tensor(stored[name], name) for name in (EMBEDDINGS, HEAD)))


def weight_files(path: Path) -> list[Path]:
    """The safetensors files to read, as transformers chooses them: model.safetensors; if there is none, those that
    the index names. Where there is neither, whatever has that suffix.

    Raises:
        CorruptCheckpointError: there are none.
        UnsupportedArchitectureError: an adapter lies beside them.
    """
    if (adapter := path / "adapter_config.json").is_file():
        raise UnsupportedArchitectureError(
            f"{adapter} asks for an adapter on top of the weights, and minillm applies none: merge it into them "
            "(PEFT's merge_and_unload), or, if that was done, delete this file"
        )
    whole, index = path / WHOLE, path / INDEX
    if whole.is_file():
        return [whole]
    if index.is_file():
        weight_map = read_json(index).get("weight_map")
        if not weight_map or not isinstance(weight_map, dict):
            raise CorruptCheckpointError(f"{index} has no weight_map. Fetch the model again")
        return sorted({path / str(file_name) for file_name in weight_map.values()})
    others = [file for file in path.glob("*.safetensors") if not file.name.startswith(NOT_WEIGHTS)]
    if not others:
        raise CorruptCheckpointError(
            f"no .safetensors file in {path}. Convert other formats first (transformers' save_pretrained does), "
            'or set load_format="dummy" for random weights'
        )
    return sorted(others)


def stored_bytes(path: Path) -> int:
    """Bytes of the weight files. One that is missing counts for none: reading it says so. Raises as `weight_files`."""
    return sum(file.stat().st_size for file in weight_files(path) if file.is_file())


def load_tokenizer(path: Path) -> Any | None:
    """The checkpoint's tokenizer (transformers', with its chat template), or None if it has none.

    Raises:
        CorruptCheckpointError: its files cannot be read.
        UnsupportedArchitectureError: it is a program of its own.
    """
    if not any((path / name).is_file() for name in TOKENIZER_FILES):
        return None
    try:
        with _without_marks(path) as folder:
            return _read_tokenizer(folder)
    except CorruptCheckpointError:
        raise
    except Exception as error:  # The readers of broken tokenizer files raise a bare Exception.
        if "trust_remote_code" in str(error):
            raise UnsupportedArchitectureError(
                f"the tokenizer in {path} is a program of its own (auto_map), and minillm runs none: convert it to "
                "tokenizer.json, or choose a model that has one"
            ) from error
        raise CorruptCheckpointError(
            f"the tokenizer in {path} cannot be read ({type(error).__name__}: {error}). Fetch the model again"
        ) from error


def _read_tokenizer(folder: Path) -> Any:
    """What transformers makes of the folder. A program that came with it is never run: tokenizer.json says the same."""
    try:
        # Without trust_remote_code=False transformers asks on the terminal whether to run it.
        return _tokenizer_class(folder).from_pretrained(folder, trust_remote_code=False)
    except ValueError as error:
        if "trust_remote_code" not in str(error) or not (folder / "tokenizer.json").is_file():
            raise
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast.from_pretrained(folder)


def _tokenizer_class(folder: Path) -> Any:
    """The class of transformers that reads this tokenizer.

    AutoTokenizer imports much of transformers to find out, which takes two seconds. For a llama it comes to the plain
    class if the folder names that one, so that is imported alone.
    """
    stated, config = folder / "tokenizer_config.json", folder / "config.json"
    if stated.is_file() and config.is_file() and (folder / "tokenizer.json").is_file():
        tokenizer = read_json(stated)
        is_plain = tokenizer.get("tokenizer_class") in PLAIN_TOKENIZERS and "auto_map" not in tokenizer
        if is_plain and read_json(config).get("model_type") == "llama":
            from transformers import PreTrainedTokenizerFast

            return PreTrainedTokenizerFast
    from transformers import AutoTokenizer

    return AutoTokenizer


@contextmanager
def _without_marks(path: Path) -> Iterator[Path]:
    """The folder's small files as transformers can read them: copied without byte order marks, if some have one."""
    files = [file for suffix in ("*.json", "*.jinja", "*.txt") for file in path.glob(suffix)]
    marked = [file for file in files if _begins_with_mark(file)]
    if not marked:
        yield path
        return
    with tempfile.TemporaryDirectory() as folder:
        for file in [*files, *path.glob("*.model")]:
            content = file.read_bytes()
            Path(folder, file.name).write_bytes(content.removeprefix(codecs.BOM_UTF8) if file in marked else content)
        yield Path(folder)


def _begins_with_mark(file: Path) -> bool:
    with file.open("rb") as content:
        return content.read(len(codecs.BOM_UTF8)) == codecs.BOM_UTF8


def eos_token_ids(path: Path, tokenizer: Any | None) -> frozenset[int]:
    """Tokens that end an output: those of generation_config.json, or else of config.json, and the tokenizer's own.

    A fine-tune's configs often name the base model's end of text while its chat template ends turns with the
    tokenizer's: both end an output here, as in vLLM. transformers' `generate` stops at the configs' only.

    Args:
        tokenizer: the checkpoint's; None = it has none.
    Raises:
        CorruptCheckpointError: a file cannot be read, or what it says is no token id.
    """
    found: set[int] = set()
    for file in (path / "generation_config.json", path if path.is_file() else path / "config.json"):
        stated = read_json(file).get("eos_token_id") if file.is_file() else None
        if stated is not None:
            found = _token_ids(stated, file)
            break
    if tokenizer is not None and tokenizer.eos_token_id is not None:
        found.add(tokenizer.eos_token_id)
    return frozenset(found)


def _token_ids(stated: Any, file: Path) -> set[int]:
    ids = stated if isinstance(stated, list) else [stated]
    if any(isinstance(each, bool) or not isinstance(each, int) for each in ids):
        raise CorruptCheckpointError(f"{file}: eos_token_id is {stated!r}, and has to be a token id or a list of them")
    return {each for each in ids if each >= 0}  # -1 is some exporters' word for none


def other_greedy_output(path: Path) -> dict[str, Any]:
    """What generation_config.json sets that changes the greedy output of transformers' `generate`, and that minillm
    leaves to each request (repetition_penalty, logit_bias) or doesn't have."""
    file = path / "generation_config.json"
    stated = read_json(file) if file.is_file() else {}
    return {name: stated[name] for name, off in CHANGES_GREEDY.items() if stated.get(name) not in (None, off, [], {})}


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object that may have been edited by hand: a byte order mark at its beginning is no fault.

    Raises:
        CorruptCheckpointError: the file is missing or is not a JSON object.
    """
    try:
        content = json.loads(file.read_text(encoding="utf-8-sig"))
    except FileNotFoundError as error:
        raise CorruptCheckpointError(
            f"{file} is missing: a checkpoint is a folder with config.json, safetensors files and tokenizer.json"
        ) from error
    except (OSError, ValueError) as error:
        raise CorruptCheckpointError(f"{file} cannot be read as JSON ({error}). Fetch the model again") from error
    if not isinstance(content, dict):
        raise CorruptCheckpointError(f"{file} does not hold a JSON object. Fetch the model again")
    return content
