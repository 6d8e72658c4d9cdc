"""vLLM behind a pipe: its arguments come in as a line of JSON, then a workload a line; a line goes out for each.

`minillm bench --compare vllm` runs this file with the Python that has vLLM, so it imports nothing of ours.
"""

import json
import os
import sys
import time
from importlib.metadata import version
from typing import Any, TextIO


def main() -> None:
    """Make the engine, and serve workloads until standard input ends."""
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what vLLM prints goes to its log
    llm = make_engine(json.loads(sys.stdin.readline()))
    stamps = stamp_outputs(llm)
    reply(replies, in_force(llm))
    for line in sys.stdin:
        reply(replies, run(llm, stamps, **json.loads(line)))


def reply(replies: TextIO, answer: dict[str, Any]) -> None:
    replies.write(json.dumps(answer) + "\n")


def make_engine(arguments: dict[str, Any]) -> Any:
    """An engine; what `arguments` doesn't name is vLLM's default."""
    from vllm import LLM

    return LLM(**arguments)


def in_force(llm: Any) -> dict[str, Any]:
    """The settings that decide its speed."""
    import vllm

    config = llm.llm_engine.vllm_config
    return {
        "version": f"vllm {vllm.__version__}",
        "torch": version("torch"),
        "flash_attention": flash_attention(),
        "device": str(config.device_config.device_type),
        "dtype": str(config.model_config.dtype).removeprefix("torch."),
        "compilation": getattr(config.compilation_config.mode, "name", None),
        "cuda_graphs": getattr(config.compilation_config.cudagraph_mode, "name", None),
        "async_scheduling": bool(config.scheduler_config.async_scheduling),
        "enable_prefix_caching": bool(config.cache_config.enable_prefix_caching),
        "max_num_seqs": config.scheduler_config.max_num_seqs,
        "max_num_batched_tokens": config.scheduler_config.max_num_batched_tokens,
        "max_model_len": config.model_config.max_model_len,
        "kv_blocks": config.cache_config.num_gpu_blocks,
        "block_size": config.cache_config.block_size,
    }


def flash_attention() -> int | None:
    """The version of FlashAttention that it would take on this card; None if it has none, or doesn't say so here."""
    try:
        from vllm.v1.attention.backends.fa_utils import get_flash_attn_version

        return get_flash_attn_version()
    except (ImportError, AssertionError):
        return None


def stamp_outputs(llm: Any) -> dict[str, list[float]]:
    """By request, when its tokens came out of the engine's core: the dictionary is filled while it runs.

    `LLM.generate` tells its caller nothing before a request's end, which is also what makes it vLLM's fastest way.
    """
    core = llm.llm_engine.engine_core
    get_output, stamps = core.get_output, dict[str, list[float]]()

    def stamped() -> Any:
        found = get_output()
        now = time.perf_counter()
        for output in found.outputs:
            if output.new_token_ids:
                stamps.setdefault(output.request_id, []).append(now)
        return found

    core.get_output = stamped
    return stamps


def run(llm: Any, stamps: dict[str, list[float]], prompts: list[list[int]], output_lens: list[int]) -> dict[str, Any]:
    """Serve a workload with a cold prefix cache. Times are in seconds since its start."""
    from vllm import SamplingParams

    if not llm.reset_prefix_cache():
        raise RuntimeError("vLLM didn't empty its prefix cache: some request still holds blocks")
    stamps.clear()
    params = [
        SamplingParams(max_tokens=length, temperature=0.0, ignore_eos=True, detokenize=False) for length in output_lens
    ]
    given = [{"prompt_token_ids": prompt} for prompt in prompts]
    start = time.perf_counter()
    outputs = llm.generate(given, params, use_tqdm=False)
    seconds = time.perf_counter() - start
    return {
        "seconds": seconds,
        "counts": [len(output.outputs[0].token_ids) for output in outputs],
        "stamps": [[moment - start for moment in own] for own in stamps.values()],
    }


if __name__ == "__main__":
    main()
