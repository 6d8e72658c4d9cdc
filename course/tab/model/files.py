"""What a page needs to run the model, put together in one folder: decoder, weights, tokenizer."""

import hashlib
import json
import shutil
from pathlib import Path

from course.tab.model import pack
from course.tab.model.build import COMPILED
from course.tab.model.in_tab import NAME
from minillm.host.storage import build_once, cache_home
from minillm.model.pull import embedded_path, fetch_gguf

HERE = Path(__file__).parent
WEIGHTS, TOKENIZER = "weights.bin", "tokenizer.json"
NEEDED_BYTES = 300_000_000


def write(folder: Path) -> int:
    """The folder that decoder.js loads from. Files too large to be fetched twice have their content in their names.

    Returns:
        Bytes that a reader fetches.
    Raises:
        ModelError: the model isn't here, and could not be fetched.
        StorageError: the disk is full.
    """
    packed = packed_model()
    folder.mkdir(parents=True)
    for source in (HERE / "decoder.js", COMPILED):
        shutil.copy(source, folder)
    names = {source.stem: named_by_content(source) for source in (packed / WEIGHTS, packed / TOKENIZER)}
    shutil.copy(packed / WEIGHTS, folder / names["weights"])
    shutil.copy(packed / TOKENIZER, folder / names["tokenizer"])
    size = sum((folder / name).stat().st_size for name in names.values())
    told = {"module": COMPILED.name, **names, "bytes": size}
    (folder / "model.json").write_text(json.dumps(told), encoding="utf-8")
    return size


def named_by_content(file: Path) -> str:
    with file.open("rb") as opened:
        return f"{file.stem}-{hashlib.file_digest(opened, 'sha256').hexdigest()[:12]}{file.suffix}"


def packed_model() -> Path:
    """The folder with its packed weights and its tokenizer; packed on first use, in some seconds. It's made of the
    model that `minillm pull` has left, or else of what that would fetch: the same file, without PyTorch."""
    code = hashlib.sha256(Path(pack.__file__).read_bytes()).hexdigest()[:12]

    def build(work: Path) -> None:
        pulled = embedded_path(NAME)
        if pulled.is_dir():
            pack.pack(pulled, work / WEIGHTS)
            shutil.copy(pulled / TOKENIZER, work)
            return
        gguf = fetch_gguf(NAME, work)
        told = pack.pack_gguf(gguf, work / WEIGHTS)
        (work / TOKENIZER).write_text(json.dumps(told), encoding="utf-8")
        gguf.unlink()

    return build_once(cache_home() / f"tab-model-{code}", build, NEEDED_BYTES)
