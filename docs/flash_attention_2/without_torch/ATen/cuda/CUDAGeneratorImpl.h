// In place of PyTorch's header: all that FlashAttention's flash.h wants of it is a type for dropout's random state.
#pragma once

namespace at {
struct PhiloxCudaState {};
}  // namespace at
