"""`minillm bench serve --compare vllm`: `minillm serve` and another engine's server, with the same limits.

One after the other, so that each has the machine, or the card, to itself.
"""

import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import httpx
import torch

from course.measure.child import as_flags, serving
from course.measure.compare import MEMORY_SHARE
from course.measure.peers.make import folder_without_weights
from course.measure.peers.vllm_peer import QUIET, same_limits, vllm_python
from minillm.bench.writing import without_folder
from minillm.kernels.quantization import dtype_name
from minillm.model.checkpoints import load_model_config, resolve
from minillm.model.config import ModelConfig
from minillm.model.loader import choose_device, choose_dtype
from minillm.policies.config import EngineConfig

Report = TypeVar("Report")
VLLM_SERVER = "vllm.entrypoints.openai.api_server"
POOL = re.compile(r'^minillm:cache_config_info\{(?=.*block_size="(\d+)")(?=.*num_gpu_blocks="(\d+)")', re.MULTILINE)


def in_turn(config: EngineConfig, name: str, measure: Callable[[str], Report]) -> dict[str, Report]:
    """Start minillm's server, then the other one, and measure each at its URL.

    Args:
        config: minillm's; the other gets its limits, and the KV pool that it came to. Of a shape (a config.json alone)
            both draw random weights.
        name: of the other: vllm.
    Returns:
        What `measure` returned, by engine.
    Raises:
        MissingBaselineError: it isn't installed; says how to get it.
        ServerError: one doesn't start; with the end of what it printed.
    """
    python = vllm_python()  # before anything is loaded
    found, served_as = resolve(config.model), without_folder(config.model)
    if not found.is_dir():
        config = config.replace(model=str(folder_without_weights(found)), load_format="dummy")
    config = _settled(config, load_model_config(found))
    with _own(config, served_as) as url:
        pool = httpx.get(f"{url}/metrics").text
        own = measure(url)
    [(block_size, num_blocks)] = POOL.findall(pool)
    pooled = config.replace(kv_cache_memory_gb=None, block_size=int(block_size), num_kv_blocks=int(num_blocks))
    with _vllm(python, pooled, served_as) as url:
        return {"minillm": own, name: measure(url)}


def _settled(config: EngineConfig, model: ModelConfig) -> EngineConfig:
    """What `auto` comes to on this machine; on a GPU a KV pool that leaves the other engine room for its graphs."""
    device = choose_device(config.device)
    settled = config.replace(device=device.type, dtype=dtype_name(choose_dtype(config.dtype, model, device)))
    if device.type == "cpu" or config.num_kv_blocks is not None or config.kv_cache_memory_gb is not None:
        return settled
    return settled.replace(kv_cache_memory_gb=MEMORY_SHARE * torch.cuda.mem_get_info(device)[0] / 1e9)


@contextmanager
def _own(config: EngineConfig, served_as: str) -> Iterator[str]:
    command = [sys.executable, "-m", "minillm", "serve", "--port", "{port}", "--no-access-log"]
    command += ["--served-model-name", served_as, *as_flags(config)]
    with tempfile.NamedTemporaryFile(prefix="minillm-") as log, serving(command, Path(log.name)) as url:
        yield url


@contextmanager
def _vllm(python: str, config: EngineConfig, served_as: str) -> Iterator[str]:
    folder = resolve(config.model)
    limits = same_limits(config, load_model_config(folder))
    command = [python, "-m", VLLM_SERVER, "--port", "{port}", "--disable-uvicorn-access-log"]
    command += ["--model", str(folder), "--served-model-name", served_as]
    command += ["--load-format", config.load_format]
    command += [word for name, value in limits.items() for word in _flag(name, value)]
    with tempfile.NamedTemporaryFile(prefix="vllm-") as log, serving(command, Path(log.name), env=QUIET) as url:
        yield url


def _flag(name: str, value: Any) -> list[str]:
    words = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{words}" if value else f"--no-{words}"]
    return [f"--{words}", str(value)]
