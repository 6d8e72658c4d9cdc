"""Compile every Triton kernel for sm_100, sm_90 and sm_80, without a GPU, and print what each one takes as JSON lines.

Run by test_compiles.py in a process of its own, since Triton's interpreter, which the other tests use,
cannot be switched off in a process that has imported it.
"""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from minillm.kernels.triton import attention_kernels as triton_kernels
from minillm.kernels.triton import experts, few_rows, fp8_rows, fragments, likeliest, nucleus, rounded_attention
from minillm.kernels.triton import ops as triton_ops
from minillm.kernels.triton.attention import KEY_TILE, most_keys_for, tile_for
from minillm.kernels.triton.gpu import warps_for
from minillm.kernels.triton.rounded_attention import PairTile

SHARED_MEMORY = {100: 227 * 1024, 90: 227 * 1024, 80: 163 * 1024}
"""That one program may take on Blackwell, Hopper and Ampere, bytes."""


def attention_kernels(
    dtype: str, head_dim: int, capability: int
) -> Iterator[tuple[str, Any, dict[str, Any], dict[str, Any]]]:
    """(what it is for, kernel, types or constants of its arguments, options)."""
    pointers = dict.fromkeys(["query", "kv_cache", "output"], f"*{dtype}")
    pointers |= {"kv_scales": "*bf16"}
    pointers |= dict.fromkeys(["block_tables", "query_starts", "context_lens"], "*i32")
    pointers |= dict.fromkeys(["partial_output", "partial_softmax"], "*fp32")
    group = 4
    constants = dict(HEAD_DIM=head_dim, PADDED_DIM=head_dim)
    phases = [("decode", group, 8, 0), ("prefill", 4096, 1, 0)]
    if dtype == "bf16":
        phases += [("decode int8", group, 8, 0), ("prefill int8", 4096, 1, 0)]
        phases += [("decode fp8", group, 8, 0), ("prefill fp8", 4096, 1, 0)]
        phases += [("verify", 5 * group, 8, 0), ("verify int8", 5 * group, 8, 0), ("verify fp8", 5 * group, 8, 0)]
        phases += [("prefill window", 4096, 1, 1024)]
    for phase, rows, splits, window in phases:
        kv_format = phase.split()[1] if "8" in phase else ""
        most_keys = most_keys_for(kv_format, capability)
        tile = tile_for(rows, head_dim, 4 if dtype == "fp32" else 2, SHARED_MEMORY[capability], most_keys)
        quantized = {"kv_cache": "*i8"} if kv_format else {}
        arguments = (
            pointers
            | quantized
            | constants
            | dict(
                FORMAT=kv_format,
                scale="fp32",
                GROUP=group,
                BLOCK_SIZE=16,
                WINDOW=window,
                IS_SPLIT=splits > 1,
                ONE_TOKEN=rows == group,
                TILE_ROWS=tile.rows,
                TILE_KEYS=tile.keys,
            )
        )
        options = dict(num_warps=tile.num_warps, num_stages=tile.num_stages)
        yield f"attention {dtype} d={head_dim} {phase}", triton_kernels.attend_tiles, arguments, options
    arguments = pointers | constants | dict(MOST_SPLITS=64)
    yield f"combine {dtype} d={head_dim}", triton_kernels.combine_splits, arguments, dict(num_warps=4)


def small_kernels(dtype: str) -> Iterator[tuple[str, Any, dict[str, Any], dict[str, Any]]]:
    pointer = f"*{dtype}"
    arguments = dict(token_ids="*i32", sampled="*i32", output="*i32", ELEMENTS=triton_ops.ELEMENTS_PER_PROGRAM)
    yield "fill_in", triton_ops._fill_in, arguments, {}
    arguments = dict.fromkeys(["x", "delta", "weight", "total", "normed"], pointer)
    arguments |= dict(eps="fp32", SIZE=4096, PADDED=4096)
    options = dict(num_warps=warps_for(4096))
    yield f"add_rms_norm {dtype}", triton_ops._add_rms_norm, arguments, options
    arguments = dict(gate_up=pointer, output=pointer, INNER=14336, ELEMENTS=triton_ops.ELEMENTS_PER_PROGRAM)
    yield f"silu_mul {dtype}", triton_ops._silu_mul, arguments, {}
    for norms, kv_format in [(False, ""), (True, ""), (True, "int8"), (True, "fp8")]:
        names = ["qkv", "query_weight", "key_weight", "cos", "sin", "query"]
        arguments = dict.fromkeys(names, pointer) | dict(slot_mapping="*i64", eps="fp32", kv_scales="*bf16")
        arguments |= dict(NUM_HEADS=32, NUM_KV_HEADS=8, HEAD_DIM=128, PADDED_DIM=128, HEADS=8, NORMS=norms)
        arguments |= dict(kv_cache="*i8" if kv_format else pointer, FORMAT=kv_format)
        yield f"rotate_and_write {dtype} {kv_format} norms={norms}", triton_ops._rotate_and_write, arguments, {}


def linear_kernels(dtype: str) -> Iterator[tuple[str, Any, dict[str, Any], dict[str, Any]]]:
    shared = dict(pairs="*i16", x=f"*{dtype}", bias=f"*{dtype}", HAS_BIAS=True, EVEN=True, PTX=dtype == "bf16")
    shared |= dict(parts="*fp32", arrived="*i32", output=f"*{dtype}", matrix=f"*{dtype}", SPLIT=True)
    for kind, tiles in few_rows.TILES.items():
        given = shared | dict(KIND=kind, scales="*i64" if kind == "int4" else "*fp32")
        if kind != "fp8":
            step = fragments.LINE_INPUTS // fragments.BLOCK_INPUTS[kind]
            yield f"{kind} widened {dtype}", fragments.widen_all, given | dict(STEP=step), {}
        for num_rows, tile in tiles.items() if dtype == "bf16" else ():
            arguments = given | dict(OUTPUTS=tile.outputs, ROWS=tile.rows, STEP=tile.step)
            options = dict(num_warps=tile.num_warps, num_stages=tile.num_stages)
            few = " decode" if num_rows == 8 else ""
            for swiglu in (False, True):
                name = f"{kind} linear {dtype} rows={num_rows}{few}{' swiglu' if swiglu else ''}"
                yield name, few_rows.multiply_few, arguments | dict(SWIGLU=swiglu), options
    arguments = dict(x=f"*{dtype}", numbers="*i8", scales="*fp32", SIZE=14336, WIDTH=14336, ELEMENTS=16384)
    options = dict(num_warps=warps_for(16384))
    yield f"fp8 rows {dtype}", fp8_rows.quantize_row, arguments, options


def pair_kernels(head_dim: int) -> Iterator[tuple[str, Any, dict[str, Any], dict[str, Any]]]:
    """Decodes over a cache in 8 bits."""
    pointers = dict.fromkeys(["query", "output"], "*bf16") | dict(kv_pairs="*i16", scale="fp32")
    pointers |= dict.fromkeys(["kv_scales", "block_tables", "query_starts", "context_lens"], "*i32")
    pointers |= dict.fromkeys(["partial_output", "partial_softmax"], "*fp32")
    tile = PairTile(KEY_TILE // head_dim)
    sizes = dict(HEAD_DIM=head_dim, GROUP=4, BLOCK_SIZE=16, WINDOW=0, IS_SPLIT=True, ROWS=16, KEYS=tile.keys, PTX=True)
    for kv_format in ("int8", "fp8"):
        options = dict(num_warps=tile.num_warps, num_stages=tile.num_stages)
        arguments = pointers | sizes | dict(FORMAT=kv_format)
        yield (
            f"attention bf16 d={head_dim} decode pairs {kv_format}",
            rounded_attention.attend_pairs,
            arguments,
            options,
        )


def expert_kernels() -> Iterator[tuple[str, Any, dict[str, Any], dict[str, Any]]]:
    """Kernels for the experts of Qwen3 30B-A3B."""
    pointers = dict.fromkeys(["x", "weight", "shares"], "*bf16") | dict(experts="*i32", arrived="*i32")
    sizes = dict(SIZE=2048, K=8, E=128, PADDED=128, NORMALIZE=True, SPLITS=experts.ROUTED_SPLITS)
    routed = pointers | sizes | dict(OUTPUTS=experts.ROUTED_OUTPUTS, INPUTS=128, parts="*fp32")
    for rows in (8, experts.ROUTED_ROWS):
        yield f"route bf16 rows={rows}", experts.route, routed | dict(ROWS=rows), dict(num_warps=4, num_stages=4)
    for tokens in (1, 64):
        tile = experts.tile_for(tokens)
        arguments = pointers | dict(result="*bf16", OUTPUTS=tile.outputs, ROWS=tile.rows, INPUTS=tile.inputs)
        arguments |= dict(PAIRS=max(16, 8 * tokens), BY_EXPERT=tokens == 64)
        options = dict(num_warps=tile.num_warps, num_stages=tile.num_stages)
        gate_and_up, down = (
            dict(IN=2048, OUT=2 * 768, SHARED=8, SWIGLU=True),
            dict(IN=768, OUT=2048, SHARED=1, SWIGLU=False),
        )
        yield f"gate_and_up bf16 tokens={tokens}", experts.multiply_by_experts, arguments | gate_and_up, options
        yield f"down bf16 tokens={tokens}", experts.multiply_by_experts, arguments | down, options
    for is_sorted in (False, True):
        arguments = dict(parts="*bf16", places="*i64", shares="*bf16", result="*bf16", SIZE=2048, K=8, ELEMENTS=512)
        yield f"add_shares sorted={is_sorted}", experts.add_shares, arguments | dict(SORTED=is_sorted), {}


def sampling_kernels() -> Iterator[tuple[str, Any, dict[str, Any], dict[str, Any]]]:
    arguments = dict.fromkeys(["limits", "log_min_p", "draws", "drawn"], "*fp64")
    arguments |= dict(scaled="*fp32", is_wide="*i1", VOCAB=128256, BLOCK=nucleus.BLOCK)
    yield "draw_wide", nucleus._draw_wide, arguments, dict(num_warps=8)
    pointers = dict(largest="*fp32", token_ids="*i32", result="*i64")
    arguments = pointers | dict(logits="*bf16", VOCAB=151936, BLOCK=likeliest.BLOCK)
    yield "largest_of_part bf16", likeliest._largest_of_part, arguments, dict(num_warps=4)
    arguments = pointers | dict(MOST_PARTS=likeliest.MOST_PARTS)
    yield "largest_of_row", likeliest._largest_of_row, arguments, dict(num_warps=1)


def compile_kernel(
    capability: int, name: str, kernel: Any, arguments: dict[str, Any], options: dict[str, Any]
) -> dict[str, Any]:
    """Arguments not given are 32-bit strides and counts. Pointers and strides are multiples of 16, as in real calls.
    For Hopper, kernels that can start early are compiled so; for the others, as they start unless asked to."""
    signature, constants, attributes = {}, {}, {}
    arguments = arguments | dict(PDL=capability == 90)
    for index, parameter in enumerate(kernel.params):
        value = arguments.get(parameter.name, "i32")
        if parameter.is_constexpr:
            signature[parameter.name], constants[parameter.name] = "constexpr", value
            continue
        signature[parameter.name] = value
        if value.startswith("*") or (value == "i32" and not parameter.do_not_specialize):
            attributes[(index,)] = [["tt.divisibility", 16]]
    source, target = ASTSource(kernel, signature, constants, attributes), GPUTarget("cuda", capability, 32)
    compiled = triton.compile(source, target=target, options=options)
    return {
        "capability": capability,
        "shared_memory": SHARED_MEMORY[capability],
        "name": name,
        "cubin_bytes": len(compiled.asm["cubin"]),
        "shared_bytes": compiled.metadata.shared,
        "tensor_cores": sorted(set(re.findall(r"tcgen05\.mma|wgmma\.mma_async|mma\.sync", compiled.asm["ptx"]))),
        "products_under_way": max(map(int, re.findall(r"pendings = (\d+)", compiled.asm["ttgir"])), default=0),
        "async_copies": "cp.async" in compiled.asm["ptx"],
        "before_wait": before_wait(compiled.asm["ptx"]),
        "wide_loads": bool(re.search(r"ld\.global[.\w:]*v4|cp\.async\.cg", compiled.asm["ptx"])),
        **resources(compiled.asm["cubin"]),
    }


def before_wait(ptx: str) -> list[str] | None:
    """The instructions on global memory that come before a kernel waits for the one ahead; None if it doesn't wait."""
    before, wait, after = ptx.partition("griddepcontrol.wait")
    assert "griddepcontrol" not in after
    return re.findall(r"prefetch|\b(?:ld|st|atom|red|cp)\.(?!param|shared)[\w.:]*", before) if wait else None


def resources(cubin: bytes) -> dict[str, int]:
    """Registers of a thread, and its bytes of stack and local memory: where registers are spilled to."""
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(tool), "--dump-resource-usage", file.name]
        report = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    numbers = {"registers": "REG", "stack_bytes": "STACK", "local_bytes": "LOCAL"}
    return {key: int(re.search(rf"{name}:(\d+)", report)[1]) for key, name in numbers.items()}


if __name__ == "__main__":
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    for capability in SHARED_MEMORY:
        kernels = [*sampling_kernels(), *small_kernels("bf16"), *linear_kernels("bf16"), *linear_kernels("fp32")]
        kernels += [*expert_kernels(), *pair_kernels(64), *pair_kernels(128)]
        for dtype, head_dim in [("bf16", 64), ("bf16", 128), ("fp32", 128)]:
            kernels += attention_kernels(dtype, head_dim, capability)
        for one in kernels:
            if wanted in one[0]:
                print(json.dumps(compile_kernel(capability, *one)), flush=True)
