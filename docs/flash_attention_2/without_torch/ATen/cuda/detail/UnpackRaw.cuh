// In place of PyTorch's header: the seed and offset of dropout's random numbers, of which this build draws none.
#pragma once

#include <ATen/cuda/CUDAGeneratorImpl.h>

#include <cstdint>
#include <tuple>

namespace at::cuda::philox {
__device__ inline std::tuple<uint64_t, uint64_t> unpack(const PhiloxCudaState&) { return {0, 0}; }
}  // namespace at::cuda::philox
