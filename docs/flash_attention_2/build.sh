#!/usr/bin/env bash
# Builds the package flash_attn, forward only, for attention_backend="fa2" on a Hopper GPU (H100, H200).
#
#   docs/flash_attention_2/build.sh [FOLDER]     FOLDER: build/flash_attention_2 unless given
#
# Needs Linux on x86-64, g++, xz, 1 GB of disk and a network, but no GPU: the compiler and the kernels' source come from
# PyPI. Set PYTHON (.venv/bin/python) to one that has PyTorch, for CPU or CUDA: flash-attn's setup.py imports it.
# JOBS (1) is how many compilers run in parallel, each in 3.5 GB of memory. What an earlier run made is kept.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
work=${1:-build/flash_attention_2}
python=${PYTHON:-.venv/bin/python}
version=2.8.3
sha256=1e71dd64a9e0280e0447b8a0c2541bad4bf6ac65bdeaa2f90e51a9e57de0370d
cuda=13.0 # its runtime is linked into the library, so any driver for CUDA 13 will do

mkdir -p "$work"
work=$(cd "$work" && pwd)
toolkit=$work/cuda/nvidia/cu13
sources=$work/flash_attn-$version

if [ ! -x "$toolkit/bin/nvcc" ]; then
    echo "compiler: CUDA $cuda"
    "$python" -m pip install --quiet --no-deps --target "$work/cuda" "nvidia-cuda-nvcc==$cuda.*" \
        "nvidia-cuda-crt==$cuda.*" "nvidia-nvvm==$cuda.*" "nvidia-cuda-runtime==$cuda.*" "nvidia-cuda-cccl==$cuda.*"
fi
if [ ! -d "$sources" ]; then
    echo "source: flash-attn $version"
    "$python" -m pip install --quiet --target "$work/setup" wheel packaging psutil # setup.py imports these, too
    PYTHONPATH=$work/setup FLASH_ATTENTION_SKIP_CUDA_BUILD=TRUE "$python" -m pip download --quiet --dest "$work" \
        --no-deps --no-build-isolation --no-binary flash-attn "flash-attn==$version"
    echo "$sha256  $work/flash_attn-$version.tar.gz" | sha256sum --check --quiet
    tar -xzf "$work/flash_attn-$version.tar.gz" -C "$work"
fi

# Without dropout, ALiBi, soft caps and head sizes in between, for which minillm has no use.
compile() {
    "$toolkit/bin/nvcc" -c -std=c++17 -O3 --use_fast_math --expt-relaxed-constexpr --expt-extended-lambda \
        -gencode arch=compute_90,code=sm_90 -Xcompiler -fPIC,-fvisibility=hidden -diag-suppress 1444 \
        -DFLASHATTENTION_DISABLE_DROPOUT -DFLASHATTENTION_DISABLE_ALIBI -DFLASHATTENTION_DISABLE_SOFTCAP \
        -DFLASHATTENTION_DISABLE_UNEVEN_K -isystem "$here/without_torch" -I "$sources/csrc/flash_attn/src" \
        -isystem "$sources/csrc/cutlass/include" "$@"
}

kernels() {
    object=$work/kernels_$1_$2.o
    [ "$object" -nt "$here/kernels.cu" ] && return
    echo "kernels: head size $1, $2"
    compile -DHEAD_DIM="$1" -DELEMENT="cutlass::$2" "$here/kernels.cu" -o "$object.part"
    mv "$object.part" "$object"
}

export -f compile kernels
export here work sources toolkit
printf '%s\n' "64 half_t" "64 bfloat16_t" "128 half_t" "128 bfloat16_t" |
    xargs -P "${JOBS:-1}" -L 1 bash -euc 'kernels "$0" "$1"'
compile "$here/paged_forward.cpp" -o "$work/paged_forward.o"

package=$work/package/flash_attn
mkdir -p "$package"
cp "$here/flash_attn/__init__.py" "$sources/LICENSE" "$package"
"$toolkit/bin/nvcc" -shared -arch sm_90 -cudart static -L "$toolkit/lib" -Xlinker --strip-all,--no-undefined \
    "$work/paged_forward.o" "$work"/kernels_*.o -o "$package/libpaged_forward.so"
tar -cJf "$work/flash_attn.tar.xz" -C "$work/package" flash_attn
ls -l "$package/libpaged_forward.so" "$work/flash_attn.tar.xz"
