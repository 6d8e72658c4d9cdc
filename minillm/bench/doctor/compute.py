"""What computes: the CPU's instructions, the GPU, attention backends, our own kernels, draft heads."""

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from minillm.bench.doctor.check import OPTIONAL, Check
from minillm.model.pull import EMBEDDED_MODELS

if TYPE_CHECKING:
    import torch

GROUP, ATTENTION = "compute", "attention"
FLAG_USES = {
    "avx512f": "our kernels work on 16 numbers at once",
    "avx512_bf16": "bfloat16 products",
    "amx_bf16": "matrix tiles: long prompts are multiplied in bfloat16",
}
"""Instructions that decide how fast an x86 CPU computes here, and what for (minillm/model/linear.py)."""


def compute() -> Iterator[Check]:
    """Instructions, GPU, kernels, quantization."""
    import torch

    if sys.platform == "linux":
        yield _instructions()
    yield Check(GROUP, "torch", "ok", f"{torch.__version__}, {torch.get_num_threads()} threads")
    if torch.cuda.is_available():
        memory = torch.cuda.get_device_properties(0).total_memory
        yield Check(GROUP, "gpu", "ok", f"{torch.cuda.get_device_name()}, {memory / 2**30:.0f} GiB")
    else:
        fix = "none is needed; for one, install its driver and torch's CUDA build"
        yield Check(GROUP, "gpu", "absent", "none seen", fix)
    yield _native()
    yield _quantization()


def _instructions() -> Check:
    from minillm.bench.report import describe_cpu

    name, present = describe_cpu()
    uses = [f"{flag} ({use})" for flag, use in FLAG_USES.items() if flag in present]
    without = [flag for flag in FLAG_USES if flag not in present]
    parts = [name, "has " + ", ".join(uses or present or ["none of the instructions that matter"])]
    return Check(GROUP, "instructions", "ok", "; ".join(parts + ([f"not {', '.join(without)}"] if without else [])))


def _native() -> Check:
    """Whether the C++ is there that decode steps on a CPU are fast by."""
    from minillm.kernels.cpu import native_kernels
    from minillm.kernels.cpu.compiling import how_to_get_a_compiler

    if native_kernels() is not None:
        return Check(GROUP, "native kernels", "ok", "compiled for this processor")
    if sys.platform != "linux":
        return Check(GROUP, "native kernels", "absent", "only on Linux", "none: PyTorch's kernels do their work")
    return Check(
        GROUP, "native kernels", "absent", "not compiled: decode on the CPU is slower", how_to_get_a_compiler()
    )


def _quantization() -> Check:
    """Which lossy settings this machine computes."""
    import torch

    gpu = torch.cuda.is_available()
    names = ["int8", "int4", *(["fp8"] if gpu and torch.cuda.get_device_capability() >= (8, 9) else [])]
    found = f"weights {', '.join(names)}; KV cache int8, fp8. All lossy: `minillm bench quality` prints what they cost"
    if "fp8" not in names:
        found += "; fp8 weights want a GPU of compute capability 8.9 or more"
    return Check(GROUP, "quantization", "ok", found)


def attention(device: "torch.device") -> Iterator[Check]:
    """What `auto` picks, and for every other backend whether it could run here."""
    import torch

    from minillm.kernels.attention.select import BACKENDS, PREFERENCE, Demands, select_backend, survey

    chosen = select_backend("auto", device, Demands(dtype=torch.bfloat16))
    name = next(name for name, backend in BACKENDS.items() if backend is chosen)
    preference = ", ".join(PREFERENCE[device.type])
    found = f"auto = {name} on {device.type} in bfloat16: the first of ({preference}) that can run here"
    yield Check(ATTENTION, "attention backend", "ok", found)
    for other, objection in survey(device).items():
        if other == name:
            continue
        if objection:
            found = f"cannot run on this {device.type}"
            yield Check(ATTENTION, f"attention {other}", "absent", found, objection)
        else:
            found = f"attention_backend={other!r} runs here"
            yield Check(ATTENTION, f"attention {other}", "ok", found)


def draft_heads() -> Iterator[Check]:
    """For which models a trained head comes with minillm, for speculative.method=draft_head."""
    from minillm.speculation import head_file

    heads = head_file.packaged_heads()
    for name in heads:
        if (head_file.HEADS / name / head_file.WEIGHTS).is_file():
            found = f"speculative.method=draft_head works with model={name}"
            yield Check(OPTIONAL, f"draft head {name}", "ok", found)
        else:
            found = f"{head_file.HEADS / name} has no {head_file.WEIGHTS}"
            yield Check(OPTIONAL, f"draft head {name}", "absent", found, "install minillm again")
    missing = [name for name in EMBEDDED_MODELS if name not in heads]
    if missing:
        fix = f"minillm train-draft --model {missing[0]} --out FOLDER, then speculative.model=FOLDER"
        found = f"none comes with minillm for {', '.join(missing)}"
        yield Check(OPTIONAL, "draft heads", "absent", found, fix)
