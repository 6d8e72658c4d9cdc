// All layers of a decode step in one call. A step of 30 layers is 270 calls: nine a layer, four of them matrix products.
// To make them from Python takes about as long as what they do. These are the same functions in the same order as in
// minillm/model/decoder.py, so the numbers are the same, too.

#include "kernels.h"

#include <memory>

typedef std::unique_ptr<float[]> Buffer;
static Buffer buffer(long rows, long size) { return Buffer(new float[rows * size]); }

static void multiply(const float* x, const NativeMatrix& w, float* y, long rows) {
    if (w.bits == 16) linear(x, (const uint16_t*)w.numbers, y, rows, w.in, w.out, w.dots);
    else if (w.bits == 8) linear_int8(x, (const int8_t*)w.numbers, (const float*)w.scales, y, rows, w.in, w.out, w.dots);
    else linear_int4(x, (const uint32_t*)w.numbers, (const uint16_t*)w.scales, y, rows, w.in, w.out, w.group, w.dots);
    if (w.bias)
        for (long row = 0; row < rows; ++row)
            for (long o = 0; o < w.out; ++o) y[row * w.out + o] += w.bias[o];
}

static bool multiply_silu(const float* x, const NativeMatrix& w, float* y, const NativeStep& s) {
    return w.dots && w.bits == 16 && !w.bias && linear_silu_mul(x, (const uint16_t*)w.numbers, y, s.rows, w.in, s.inner);
}

static void attend(float* qkv, const NativeLayer& layer, const NativeCache& cache, const NativeStep& s, float* output) {
    const long stride = (s.heads + 2 * s.kv_heads) * s.d;
    if (cache.scales) {
        int8_t* numbers = (int8_t*)cache.numbers;
        rotate_and_write_int8(
            qkv, layer.query_norm, layer.key_norm, s.cos, s.sin, s.slots, numbers, cache.scales, s.rows, s.heads,
            s.kv_heads, s.d, s.eps
        );
        attend_decodes_int8(
            qkv, numbers, cache.scales, s.tables, s.lens, output, s.rows, stride, s.heads, s.kv_heads, s.d, s.block_size,
            s.table_width, s.window, s.sinks, s.scale
        );
    } else {
        uint16_t* numbers = (uint16_t*)cache.numbers;
        rotate_and_write_bf16(
            qkv, layer.query_norm, layer.key_norm, s.cos, s.sin, s.slots, numbers, nullptr, s.rows, s.heads, s.kv_heads,
            s.d, s.eps
        );
        attend_decodes_bf16(
            qkv, numbers, nullptr, s.tables, s.lens, output, s.rows, stride, s.heads, s.kv_heads, s.d, s.block_size,
            s.table_width, s.window, s.sinks, s.scale
        );
    }
}

extern "C" void decode_layers(
    const NativeLayer* layers, const NativeCache* caches, long num_layers, const NativeStep* step, float* x, float* delta
) {
    const NativeStep& s = *step;
    Buffer normed = buffer(s.rows, s.hidden), qkv = buffer(s.rows, (s.heads + 2 * s.kv_heads) * s.d);
    Buffer attended = buffer(s.rows, s.heads * s.d);
    Buffer gate_up = buffer(s.rows, 2 * s.inner), inner = buffer(s.rows, s.inner);
    for (long i = 0; i < num_layers; ++i) {
        const NativeLayer& layer = layers[i];
        add_rms_norm(x, delta, layer.input_norm, x, normed.get(), s.rows, s.hidden, s.eps);
        multiply(normed.get(), layer.qkv, qkv.get(), s.rows);
        attend(qkv.get(), layer, caches[i], s, attended.get());
        multiply(attended.get(), layer.o, delta, s.rows);
        add_rms_norm(x, delta, layer.post_attention_norm, x, normed.get(), s.rows, s.hidden, s.eps);
        if (!multiply_silu(normed.get(), layer.gate_up, inner.get(), s)) {
            multiply(normed.get(), layer.gate_up, gate_up.get(), s.rows);
            silu_mul(gate_up.get(), inner.get(), s.rows, s.inner);
        }
        multiply(inner.get(), layer.down, delta, s.rows);
    }
}
