// The small operations between a decoder's matrix products, each in one pass: see minillm/kernels/ops.py.
//
// In a decode step they handle a few kilobytes, which takes a microsecond; what costs is that PyTorch makes
// forty calls a layer of them. Plain loops: the compiler makes vectors of them. Rows are float32.

#include "kernels.h"
#include "vectors.h"

constexpr long MANY = 16;  // rows from which on threads share them; fewer are done before a thread has woken up

static inline float scale_of(const float* row, long size, float eps) {
    float squares = 0;
    #pragma omp simd reduction(+ : squares)
    for (long i = 0; i < size; ++i) squares += row[i] * row[i];
    return 1.0f / std::sqrt(squares / float(size) + eps);
}

extern "C" void add_rms_norm(
    const float* x, const float* delta, const float* weight, float* total, float* normed, long rows, long size,
    float eps
) {
    #pragma omp parallel for schedule(static) if (rows >= MANY)
    for (long row = 0; row < rows; ++row) {
        const float *a = x + row * size, *b = delta + row * size;
        float *t = total + row * size, *n = normed + row * size;
        for (long i = 0; i < size; ++i) t[i] = a[i] + b[i];
        float scale = scale_of(t, size, eps);
        for (long i = 0; i < size; ++i) n[i] = t[i] * scale * weight[i];
    }
}

extern "C" void silu_mul(const float* gate_up, float* out, long rows, long inner) {
    #pragma omp parallel for schedule(static) if (rows >= MANY)
    for (long row = 0; row < rows; ++row) {
        const float *gate = gate_up + row * 2 * inner, *up = gate + inner;
        float* to = out + row * inner;
        long i = 0;
        for (; i + LANES <= inner; i += LANES) store(to + i, silu(load(gate + i)) * load(up + i));
        for (; i < inner; ++i) to[i] = silu(Floats{} + gate[i])[0] * up[i];
    }
}

// Where keys and values [slots, 2, kv_heads, d] are kept.

struct BFloat16Cache {
    uint16_t* numbers;

    void write(long vector, const float* from, long d) const {
        uint16_t* to = numbers + vector * d;
        for (long i = 0; i < d; ++i) to[i] = narrow(from[i]);
    }
};

struct Int8Cache {  // as minillm/kernels/attention/cache.py rounds
    int8_t* numbers;
    uint16_t* scales;  // [slots, 2, kv_heads] bfloat16

    void write(long vector, const float* from, long d) const {
        float most = 0;
        for (long i = 0; i < d; ++i) {
            float size = std::fabs(from[i]);
            most = size > most || std::isnan(size) ? size : most;  // NaN stays
        }
        scales[vector] = narrow(most < 127e-12f ? 1e-12f : most / 127);
        float scale = widen(scales[vector]);
        int8_t* to = numbers + vector * d;
        for (long i = 0; i < d; ++i) {
            float steps = std::nearbyint(from[i] / scale);
            to[i] = int8_t(steps > 127 ? 127 : steps >= -127 ? steps : -127);
        }
    }
};

// Norm (if there is a weight), then rotation by the token's angles, of one head, in place.
static inline void rotate(float* head, const float* weight, const float* cos, const float* sin, long d, float eps) {
    float scale = weight ? scale_of(head, d, eps) : 1.0f;
    for (long i = 0; i < d / 2; ++i) {
        float first = head[i], second = head[i + d / 2];
        if (weight) first *= scale * weight[i], second *= scale * weight[i + d / 2];
        head[i] = first * cos[i] + second * sin[i];
        head[i + d / 2] = second * cos[i + d / 2] + first * sin[i + d / 2];
    }
}

template <typename Cache>
static void rotate_and_write(
    float* qkv, const float* query_weight, const float* key_weight, const float* cos, const float* sin,
    const int64_t* slots, const Cache& cache, long rows, long heads, long kv_heads, long d, float eps
) {
    #pragma omp parallel for schedule(static) if (rows >= MANY)
    for (long row = 0; row < rows; ++row) {
        float* at = qkv + row * (heads + 2 * kv_heads) * d;
        for (long head = 0; head < heads + kv_heads; ++head)
            rotate(at + head * d, head < heads ? query_weight : key_weight, cos + row * d, sin + row * d, d, eps);
        // Keys and values lie in the cache as they lie here: [2, kv_heads, d].
        for (long vector = 0; vector < 2 * kv_heads; ++vector)
            cache.write(slots[row] * 2 * kv_heads + vector, at + (heads + vector) * d, d);
    }
}

extern "C" void rotate_and_write_bf16(
    float* qkv, const float* query_weight, const float* key_weight, const float* cos, const float* sin,
    const int64_t* slots, uint16_t* numbers, uint16_t*, long rows, long heads, long kv_heads, long d, float eps
) {
    BFloat16Cache cache{numbers};
    rotate_and_write(qkv, query_weight, key_weight, cos, sin, slots, cache, rows, heads, kv_heads, d, eps);
}

extern "C" void rotate_and_write_int8(
    float* qkv, const float* query_weight, const float* key_weight, const float* cos, const float* sin,
    const int64_t* slots, int8_t* numbers, uint16_t* scales, long rows, long heads, long kv_heads, long d, float eps
) {
    Int8Cache cache{numbers, scales};
    rotate_and_write(qkv, query_weight, key_weight, cos, sin, slots, cache, rows, heads, kv_heads, d, eps);
}
