// A C function around FlashAttention-2's kernels (kernels.cu), for Python's ctypes. flash_attn/__init__.py checks the
// arguments.
#include <cuda_runtime.h>
#include <cutlass/numeric_types.h>

#include <cmath>
#include <cstddef>
#include <exception>
#include <stdexcept>
#include <string>

#include "c10/cuda/CUDAException.h"
#include "flash.h"
#include "paged_attention.h"

namespace {

using flash::Flash_fwd_params;

Flash_fwd_params upstreams_names(const PagedAttention &call) {
    Flash_fwd_params params = {};
    params.is_bf16 = call.is_bfloat16;
    params.q_ptr = call.query;
    params.k_ptr = call.keys;
    params.v_ptr = call.values;
    params.o_ptr = call.output;
    params.q_batch_stride = call.query_strides.batch;
    params.k_batch_stride = call.key_strides.batch;
    params.v_batch_stride = call.value_strides.batch;
    params.o_batch_stride = call.output_strides.batch;
    params.q_row_stride = call.query_strides.row;
    params.k_row_stride = call.key_strides.row;
    params.v_row_stride = call.value_strides.row;
    params.o_row_stride = call.output_strides.row;
    params.q_head_stride = call.query_strides.head;
    params.k_head_stride = call.key_strides.head;
    params.v_head_stride = call.value_strides.head;
    params.o_head_stride = call.output_strides.head;

    params.softmax_lse_ptr = call.log_sum_exp;
    params.unpadded_lse = call.query_starts != nullptr;
    params.num_splits = call.num_splits;
    params.oaccum_ptr = call.split_output;
    params.softmax_lseaccum_ptr = call.split_log_sum_exp;

    params.b = call.batch;
    params.h = call.heads;
    params.h_k = call.kv_heads;
    params.h_h_k_ratio = call.heads / call.kv_heads;
    params.d = params.d_rounded = call.head_dim;
    params.seqlen_q = call.max_query_len;
    params.seqlen_k = call.max_key_len;
    params.total_q = call.total_queries;
    params.cu_seqlens_q = call.query_starts;
    params.is_seqlens_k_cumulative = call.key_starts != nullptr;  // one field holds either
    params.cu_seqlens_k = call.key_starts != nullptr ? call.key_starts : call.key_lengths;

    params.block_table = call.block_tables;
    params.block_table_batch_stride = call.block_table_stride;
    params.page_block_size = call.page_size;

    params.scale_softmax = call.scale;
    params.scale_softmax_log2 = call.scale * M_LOG2E;  // the kernel computes powers of 2
    params.is_causal = call.window_left < 0 && call.window_right == 0;
    // A window that is open on one side is as wide there as the keys are long.
    params.window_size_left = call.window_left < 0 && call.window_right >= 0 ? call.max_key_len : call.window_left;
    params.window_size_right = call.window_right < 0 && call.window_left >= 0 ? call.max_key_len : call.window_right;
    return params;
}

template <typename T, int HEAD_DIM>
void launch(Flash_fwd_params &params, cudaStream_t stream) {
    if (params.is_causal) {
        flash::run_mha_fwd_splitkv_dispatch<T, HEAD_DIM, true>(params, stream);
    } else {
        flash::run_mha_fwd_splitkv_dispatch<T, HEAD_DIM, false>(params, stream);
    }
}

template <typename T>
void launch(Flash_fwd_params &params, cudaStream_t stream) {
    switch (params.d) {
        case 64: return launch<T, 64>(params, stream);
        case 128: return launch<T, 128>(params, stream);
        default: throw std::invalid_argument("built for head sizes 64 and 128");
    }
}

// For as long as it lives, this thread works on that device and may load kernels even while it records a CUDA graph:
// CUDA loads a kernel when it's first launched, and would refuse to then.
class Working {
   public:
    explicit Working(int device) {
        C10_CUDA_CHECK(cudaGetDevice(&device_before));
        C10_CUDA_CHECK(cudaSetDevice(device));
        C10_CUDA_CHECK(cudaThreadExchangeStreamCaptureMode(&mode_before));
    }
    ~Working() {
        cudaThreadExchangeStreamCaptureMode(&mode_before);
        cudaSetDevice(device_before);
    }

   private:
    int device_before;
    cudaStreamCaptureMode mode_before = cudaStreamCaptureModeRelaxed;  // exchanged for what it was
};

}  // namespace

#define EXPORTED extern "C" __attribute__((visibility("default")))

EXPORTED size_t paged_attention_bytes() { return sizeof(PagedAttention); }

// Null, or what went wrong; the text is valid until this thread's next call.
EXPORTED const char *paged_attention_forward(const PagedAttention *call) {
    thread_local std::string error;
    try {
        Working here(call->device);
        Flash_fwd_params params = upstreams_names(*call);
        auto stream = static_cast<cudaStream_t>(call->stream);
        if (params.is_bf16) {
            launch<cutlass::bfloat16_t>(params, stream);
        } else {
            launch<cutlass::half_t>(params, stream);
        }
        return nullptr;
    } catch (const std::exception &failure) {
        error = failure.what();
        return error.c_str();
    }
}
