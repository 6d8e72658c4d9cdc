"""What `--compare` names, and how each is made: on the same weights, with the limits that minillm has."""

import hashlib
import importlib.util
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minillm.bench.baselines.base import Baseline
from minillm.bench.baselines.nano_vllm import HOW_TO_GET_IT as NANO_VLLM_INSTALL
from minillm.bench.errors import BenchmarkError, MissingBaselineError
from minillm.bench.report import computes_bfloat16
from minillm.frontend.engine import Engine
from minillm.kernels.quantization import dtype_name
from minillm.kernels.storage import build_once, cache_home, say

LLAMA_CPP_INSTALL = (
    "--compare llama.cpp needs llama-cpp-python, which pip compiles with CMake and a C++ compiler in some minutes: "
    ".venv/bin/pip install -c constraints.txt llama-cpp-python"
)
INSTALLED_AS = {"llama.cpp": ("llama_cpp", LLAMA_CPP_INSTALL), "nano-vllm": ("nanovllm", NANO_VLLM_INSTALL)}
"""The package each needs beside minillm's own, and how to get it."""
ONE_TOKEN = {
    "version": "1.0",
    "added_tokens": [],
    "model": {"type": "WordLevel", "vocab": {"<eos>": 0}, "unk_token": "<eos>"},
}
"""The smallest tokenizer.json."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What the baselines share with minillm."""

    model: str
    """As the user named it."""
    folder: Path
    """As `resolve` found it: a Hugging Face folder, or a config.json for random weights."""
    dtype: str
    device: str
    max_num_seqs: int
    max_num_batched_tokens: int
    kv_tokens: int
    """Size of the KV pool."""
    emulates_bfloat16: bool
    """The CPU multiplies bfloat16 in software, if at all."""


def settings_of(engine: Engine, folder: Path, machine: dict[str, Any]) -> Settings:
    """What baselines of this engine get. `folder`: the model's, as `resolve` found it."""
    return Settings(
        model=engine.config.model,
        folder=folder,
        dtype=dtype_name(engine.loaded_model.dtype),
        device=str(engine.loaded_model.device),
        max_num_seqs=engine.config.max_num_seqs,
        max_num_batched_tokens=engine.config.max_num_batched_tokens,
        kv_tokens=engine.runner.num_kv_blocks * engine.runner.block_size,
        emulates_bfloat16=not computes_bfloat16(machine),
    )


def check_installed(names: Sequence[str]) -> None:
    """Fail before anything is loaded, not minutes later.

    Raises:
        MissingBaselineError: one is not installed; says how to get it.
    """
    for name in names:
        package, how_to_get_it = INSTALLED_AS.get(name, ("transformers", ""))
        if importlib.util.find_spec(package) is None:
            raise MissingBaselineError(how_to_get_it)


def make_baselines(names: Sequence[str], settings: Settings) -> list[Baseline]:
    """The engines behind each name (a key of MAKERS), loaded; a name given twice counts once.

    Raises:
        MissingBaselineError: one is not installed; says how to get it.
        BenchmarkError: one cannot run this model.
    """
    check_installed(names)
    return [baseline for name in dict.fromkeys(names) for baseline in MAKERS[name](settings)]


def _hugging_face(settings: Settings) -> list[Baseline]:
    from minillm.bench.baselines.hf import HFContinuousBatching, HFGenerate, load_hugging_face

    folder = folder_with_weights(settings.folder, settings.dtype)
    shared = load_hugging_face(folder, settings.dtype, settings.device)
    baselines: list[Baseline] = [
        HFGenerate(shared),
        HFContinuousBatching(shared, settings.max_num_batched_tokens, settings.kv_tokens),
    ]
    if settings.dtype == "bfloat16" and settings.emulates_bfloat16 and settings.device == "cpu":
        # It would not be fair to compare only with what this CPU has to emulate.
        baselines.append(HFGenerate(load_hugging_face(folder, "float32"), name="hf_generate_fp32"))
    return baselines


def _llama_cpp(settings: Settings) -> list[Baseline]:
    from minillm.bench.baselines.gguf_export import export_once
    from minillm.bench.baselines.llama_cpp import both_layouts

    given = Path(settings.model).expanduser()
    if given.suffix == ".gguf" and given.is_file():
        # In its own, maybe smaller, file type: that is what llama.cpp's users run.
        return list(both_layouts(given, settings.dtype, settings.max_num_seqs))
    folder = folder_with_weights(settings.folder, settings.dtype)
    files = {"": export_once(folder, settings.dtype)}
    if settings.dtype == "bfloat16" and settings.device == "cpu":
        # As many bytes, and on some CPUs the faster instructions. The smallest weights become zero.
        try:
            files["_f16"] = export_once(folder, "float16")
        except BenchmarkError as error:
            say(f"llama.cpp without its F16 file: {error}")
    dtype, max_sequences = settings.dtype, settings.max_num_seqs
    return [each for tag, gguf in files.items() for each in both_layouts(gguf, dtype, max_sequences, tag)]


def _nano_vllm(settings: Settings) -> list[Baseline]:
    from minillm.bench.baselines.nano_vllm import NanoVLLM

    return [NanoVLLM(folder_with_weights(settings.folder, settings.dtype), settings.dtype)]


MAKERS: dict[str, Callable[[Settings], list[Baseline]]] = {
    "hf": _hugging_face,
    "llama.cpp": _llama_cpp,
    "nano-vllm": _nano_vllm,
}


def folder_with_weights(found: Path, dtype: str) -> Path:
    """The folder itself; for a config.json alone, a folder of random weights of its shape, made once.

    minillm draws its own random weights in memory, other engines read files. Speed does not depend on
    the values. The tokenizer knows one word: prompts are token ids.
    """
    if found.is_dir():
        return found
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        config = AutoConfig.from_pretrained(found)
    except ValueError as error:  # minillm goes by `architectures`, transformers by `model_type`
        raise BenchmarkError(f"transformers cannot read {found.name}: give it a model_type ({error})") from error

    def make_model() -> AutoModelForCausalLM:
        return AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))

    def build(work: Path) -> None:
        say(f"writing random weights of the shape in {found} once, for engines that read files")
        with torch.random.fork_rng():
            torch.manual_seed(0)
            make_model().save_pretrained(work)
        (work / "tokenizer.json").write_text(json.dumps(ONE_TOKEN))
        kind = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<eos>"}
        (work / "tokenizer_config.json").write_text(json.dumps(kind))

    with torch.device("meta"):
        num_bytes = sum(parameter.nbytes for parameter in make_model().parameters())
    digest = hashlib.sha256(found.read_bytes()).hexdigest()
    target = cache_home() / "models" / f"random-{found.stem}-{dtype}-{digest[:16]}"
    return build_once(target, build, num_bytes)
