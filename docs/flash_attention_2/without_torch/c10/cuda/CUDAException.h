// In place of PyTorch's header: an error of CUDA becomes an exception, which paged_forward.cu hands on as text.
#pragma once

#include <cuda_runtime.h>

#include <stdexcept>

inline void check_cuda(cudaError_t status) {
    if (status != cudaSuccess) throw std::runtime_error(cudaGetErrorString(status));
}

#define C10_CUDA_CHECK(EXPRESSION) check_cuda(EXPRESSION)
#define C10_CUDA_KERNEL_LAUNCH_CHECK() check_cuda(cudaGetLastError())
