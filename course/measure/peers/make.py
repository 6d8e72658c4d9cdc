"""What `--compare` names, and how each is made: on the same weights, with the limits that minillm has."""

import hashlib
import importlib.util
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from course.loadgen.planned_requests import common_words
from course.measure.contest import MissingBaselineError, Peer
from course.measure.peers.nano_vllm import HOW_TO_GET_IT as NANO_VLLM_INSTALL
from course.measure.peers.vllm_peer import VLLM, same_limits, vllm_python
from minillm.bench.errors import BenchmarkError
from minillm.host.platforms import describe_cpu
from minillm.host.storage import build_once, cache_home, say
from minillm.model.checkpoints import load_model_config, resolve
from minillm.policies.config import EngineConfig

BF16_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}
LLAMA_CPP_INSTALL = (
    "--compare llama.cpp needs llama-cpp-python, which pip compiles with CMake and a C++ compiler in some minutes: "
    ".venv/bin/pip install -c constraints.txt llama-cpp-python"
)
INSTALLED_AS = {"llama.cpp": ("llama_cpp", LLAMA_CPP_INSTALL), "nano-vllm": ("nanovllm", NANO_VLLM_INSTALL)}
"""The package each needs beside minillm's own, and how to get it."""


def check_installed(names: Sequence[str]) -> None:
    """Fail before anything is loaded, not minutes later.

    Raises:
        MissingBaselineError: one is not installed; says how to get it.
    """
    for name in names:
        if name == "vllm":
            vllm_python()
            continue
        package, how_to_get_it = INSTALLED_AS.get(name, ("transformers", ""))
        if importlib.util.find_spec(package) is None:
            raise MissingBaselineError(how_to_get_it)


def make_baselines(names: Sequence[str], config: EngineConfig) -> list[Peer]:
    """The engines behind each name (a key of MAKERS), loaded; a name given twice counts once.

    Args:
        config: minillm's, in force.
    Raises:
        MissingBaselineError: one is not installed; says how to get it.
        BenchmarkError: one cannot run this model.
    """
    check_installed(names)
    return [baseline for name in dict.fromkeys(names) for baseline in MAKERS[name](config)]


def _hugging_face(config: EngineConfig) -> list[Peer]:
    from course.measure.peers.hf import HFContinuousBatching, HFGenerate, load_hugging_face

    folder = folder_with_weights(resolve(config.model), config.dtype)
    shared = load_hugging_face(folder, config.dtype, config.device)
    assert config.num_kv_blocks is not None and config.block_size is not None
    kv_tokens = config.num_kv_blocks * config.block_size
    baselines = [HFGenerate(shared), HFContinuousBatching(shared, config.max_num_batched_tokens, kv_tokens)]
    if config.dtype == "bfloat16" and config.device == "cpu" and not computes_bfloat16():
        # It would not be fair to compare only with what this CPU has to emulate.
        baselines.append(HFGenerate(load_hugging_face(folder, "float32"), name="hf_generate_fp32"))
    return baselines


def _llama_cpp(config: EngineConfig) -> list[Peer]:
    from course.measure.peers.gguf_export import export_once
    from course.measure.peers.llama_cpp import both_layouts

    given = Path(config.model).expanduser()
    if given.suffix == ".gguf" and given.is_file():
        # In its own, maybe smaller, file type: that is what llama.cpp's users run.
        return list(both_layouts(given, config.dtype, config.max_num_seqs))
    folder = folder_with_weights(resolve(config.model), config.dtype)
    files = {"": export_once(folder, config.dtype)}
    if config.dtype == "bfloat16" and config.device == "cpu":
        # As many bytes, and on some CPUs the faster instructions. The smallest weights become zero.
        try:
            files["_f16"] = export_once(folder, "float16")
        except BenchmarkError as error:
            say(f"llama.cpp without its F16 file: {error}")
    return [
        layout for tag, gguf in files.items() for layout in both_layouts(gguf, config.dtype, config.max_num_seqs, tag)
    ]


def _nano_vllm(config: EngineConfig) -> list[Peer]:
    from course.measure.peers.nano_vllm import NanoVLLM

    return [NanoVLLM(folder_with_weights(resolve(config.model), config.dtype), config.dtype)]


def _vllm(config: EngineConfig) -> list[Peer]:
    found = resolve(config.model)
    arguments = {
        "model": str(folder_without_weights(found)),
        "load_format": "auto" if found.is_dir() and config.load_format == "auto" else "dummy",
        "skip_tokenizer_init": True,
        **same_limits(config, load_model_config(found)),
    }
    return [VLLM(vllm_python(), arguments, config.device)]


MAKERS: dict[str, Callable[[EngineConfig], list[Peer]]] = {
    "hf": _hugging_face,
    "llama.cpp": _llama_cpp,
    "nano-vllm": _nano_vllm,
    "vllm": _vllm,
}


def computes_bfloat16() -> bool:
    """Whether the CPU multiplies bfloat16. Without that it is emulated, and float32 can be the faster dtype."""
    return bool(BF16_FLAGS.intersection(describe_cpu()[1]))


def folder_without_weights(found: Path) -> Path:
    """The folder itself; for a config.json alone, one with that and a tokenizer, for engines that draw weights."""
    if found.is_dir():
        return found
    digest = hashlib.sha256(found.read_bytes()).hexdigest()
    vocab_size = load_model_config(found).vocab_size

    def build(work: Path) -> None:
        shutil.copy(found, work / "config.json")
        write_tokenizer(work, vocab_size)

    return build_once(cache_home() / "models" / f"words-{found.stem}-{digest[:16]}", build, 32 * vocab_size)


def write_tokenizer(folder: Path, vocab_size: int) -> None:
    """Files of a tokenizer for random weights: each token is a word, first those of the load generator's prompts."""
    words = ["<eos>", *common_words()]
    words += [f"word{number}" for number in range(len(words), vocab_size)]
    tokenizer = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {
            "type": "WordLevel",
            "vocab": {word: number for number, word in enumerate(words[:vocab_size])},
            "unk_token": "<eos>",
        },
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    kind = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<eos>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(kind))


def folder_with_weights(found: Path, dtype: str) -> Path:
    """The folder itself; for a config.json alone, a folder of random weights of its shape, made once.

    minillm draws its own random weights in memory, other engines read files. Speed does not depend on
    the values.
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
        write_tokenizer(work, config.vocab_size)

    with torch.device("meta"):
        num_bytes = sum(parameter.nbytes for parameter in make_model().parameters())
    digest = hashlib.sha256(found.read_bytes()).hexdigest()
    target = cache_home() / "models" / f"random-{found.stem}-{dtype}-{digest[:16]}"
    return build_once(target, build, num_bytes)
