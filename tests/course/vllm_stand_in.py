"""What tests put in the place of vLLM: as much of its package as we use, and a server."""

import sys
from pathlib import Path

STAND_IN = '''
"""As much of vLLM as the worker uses. Each step gives every request a token; TOKENS_LOST are never emitted."""
import os, time
from types import SimpleNamespace as Record

__version__ = "0.0"
print("what vLLM prints")


class SamplingParams:
    def __init__(self, *, max_tokens, temperature, ignore_eos, detokenize):
        assert temperature == 0 and ignore_eos and not detokenize
        self.max_tokens = max_tokens - int(os.environ.get("TOKENS_LOST", 0))


class LLM:
    def __init__(self, *, dtype, model, load_format, skip_tokenizer_init, **limits):
        if not os.path.exists(os.path.join(model, "config.json")):
            raise OSError("no config.json")
        self.left = {}
        names = {"max_num_seqs", "max_num_batched_tokens"}
        self.llm_engine = Record(
            engine_core=Record(get_output=self.step),
            vllm_config=Record(
                device_config=Record(device_type=os.environ.get("ITS_DEVICE", "cpu")),
                model_config=Record(dtype=f"torch.{dtype}", max_model_len=limits["max_model_len"]),
                compilation_config=Record(mode=None, cudagraph_mode=None),
                scheduler_config=Record(async_scheduling=False, **{name: limits[name] for name in names}),
                cache_config=Record(
                    num_gpu_blocks=limits["kv_cache_memory_bytes"],
                    block_size=load_format,
                    enable_prefix_caching=limits["enable_prefix_caching"],
                ),
            ),
        )

    def reset_prefix_cache(self):
        return True

    def step(self):
        outputs = [Record(request_id=name, new_token_ids=[5]) for name, left in self.left.items() if left]
        self.left = {name: left - 1 for name, left in self.left.items() if left > 1}
        return Record(outputs=outputs)

    def generate(self, prompts, params, use_tqdm):
        self.left = {f"{i}-x": each.max_tokens for i, each in enumerate(params)}
        while self.left:
            self.llm_engine.engine_core.get_output()
        return [Record(outputs=[Record(token_ids=[5] * each.max_tokens)]) for each in params]
'''

STAND_IN_SERVER = '''
"""Our own server under vLLM's flags, which has no option for bytes of KV."""
import os, sys

given = [word for word in sys.argv[1:] if word != "--disable-uvicorn-access-log"]
place = given.index("--kv-cache-memory-bytes")
gigabytes = str(int(given[place + 1]) / 1e9)
given[place : place + 2] = ["--kv-cache-memory-gb", gigabytes, "--no-access-log"]
os.execv(sys.executable, [sys.executable, "-m", "minillm", "serve", *given])
'''


def make_vllm_stand_in(folder: Path) -> Path:
    """A Python that has it: this one, with a folder more on its path."""
    package = folder / "site" / "vllm"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(STAND_IN)
    server = package / "entrypoints" / "openai" / "api_server.py"
    server.parent.mkdir(parents=True)
    server.write_text(STAND_IN_SERVER)
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={package.parent}:$PYTHONPATH exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return python
