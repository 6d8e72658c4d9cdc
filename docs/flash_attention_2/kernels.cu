// Upstream's split-KV kernels for one head size and one number format (-DHEAD_DIM=64 -DELEMENT=cutlass::half_t).
//
// Upstream compiles a kernel for both sides of every switch: 20 for each head size and format. A paged cache whose
// lengths are tensors reaches 6 of them, so the switches are narrowed here before upstream's launch code uses them.
#include "static_switch.h"

#undef BOOL_SWITCH
#define BOOL_SWITCH(CONDITION, NAME, ...) SWITCH_##NAME(CONDITION, NAME, __VA_ARGS__)
#define SWITCH_IsEvenMNConst NEVER  // lengths are in tensors, so no sequence is known to fill its tiles
#define SWITCH_Append_KV NEVER  // minillm writes keys and values before attention
#define SWITCH_ReturnSoftmaxConst NEVER  // in the kernels without split-KV, which nothing here uses
#define SWITCH_Is_local EITHER  // a sliding window
#define SWITCH_Split EITHER  // a sequence's keys over several thread blocks

#define NEVER(CONDITION, NAME, ...)          \
    [&] {                                    \
        constexpr static bool NAME = false;  \
        return __VA_ARGS__();                \
    }()

#define EITHER(CONDITION, NAME, ...)            \
    [&] {                                       \
        if (CONDITION) {                        \
            constexpr static bool NAME = true;  \
            return __VA_ARGS__();               \
        }                                       \
        constexpr static bool NAME = false;     \
        return __VA_ARGS__();                   \
    }()

#include "flash_fwd_launch_template.h"

namespace flash {
template void run_mha_fwd_splitkv_dispatch<ELEMENT, HEAD_DIM, true>(Flash_fwd_params &, cudaStream_t);
template void run_mha_fwd_splitkv_dispatch<ELEMENT, HEAD_DIM, false>(Flash_fwd_params &, cudaStream_t);
}  // namespace flash
