// All layers of a decode step in one call. A step of 30 layers is 270 calls: nine a layer, four of them matrix products.
// To make them from Python takes about as long as what they do. These are the same functions in the same order as in
// minillm/model/decoder.py, so the numbers are the same, too.

#include "vectors.h"

#include <memory>

extern "C" {
void linear(const float*, const uint16_t*, float*, long, long, long, long);
bool linear_silu_mul(const float*, const uint16_t*, float*, long, long, long);
void linear_int8(const float*, const int8_t*, const float*, float*, long, long, long, long);
void linear_int4(const float*, const uint32_t*, const uint16_t*, float*, long, long, long, long, long);
void add_rms_norm(const float*, const float*, const float*, float*, float*, long, long, float);
void silu_mul(const float*, float*, long, long);
void rotate_and_write_bf16(
    float*, const float*, const float*, const float*, const float*, const int64_t*, uint16_t*, uint16_t*, long, long,
    long, long, float
);
void rotate_and_write_int8(
    float*, const float*, const float*, const float*, const float*, const int64_t*, int8_t*, uint16_t*, long, long,
    long, long, float
);
void attend_decodes_bf16(
    const float*, const uint16_t*, const uint16_t*, const int32_t*, const int32_t*, float*, long, long, long, long,
    long, long, long, long, long, float
);
void attend_decodes_int8(
    const float*, const int8_t*, const uint16_t*, const int32_t*, const int32_t*, float*, long, long, long, long, long,
    long, long, long, long, float
);
}

// The structures that minillm/kernels/cpu/layers.py fills.

struct Matrix {  // of linear.cpp
    const void *numbers, *scales;
    const float* bias;  // [out] or null
    long in, out, bits, group, dots;
};

struct Layer {
    const float *input_norm, *post_attention_norm, *query_norm, *key_norm;  // the last two may be null
    Matrix qkv, o, gate_up, down;
};

struct Cache {
    void* numbers;
    uint16_t* scales;  // null: the numbers are bfloat16
};

struct Step {
    long rows, hidden, inner, heads, kv_heads, d, block_size, table_width, window, sinks;
    float eps, scale;
    const float *cos, *sin;        // [rows, d]
    const int64_t* slots;          // [rows]
    const int32_t *tables, *lens;  // [rows, table_width], [rows]
};

typedef std::unique_ptr<float[]> Rows;
static Rows rows_of(long rows, long size) { return Rows(new float[rows * size]); }

static void multiply(const float* x, const Matrix& w, float* y, long rows) {
    if (w.bits == 16) linear(x, (const uint16_t*)w.numbers, y, rows, w.in, w.out, w.dots);
    else if (w.bits == 8) linear_int8(x, (const int8_t*)w.numbers, (const float*)w.scales, y, rows, w.in, w.out, w.dots);
    else linear_int4(x, (const uint32_t*)w.numbers, (const uint16_t*)w.scales, y, rows, w.in, w.out, w.group, w.dots);
    if (w.bias)
        for (long row = 0; row < rows; ++row)
            for (long o = 0; o < w.out; ++o) y[row * w.out + o] += w.bias[o];
}

static bool multiply_silu(const float* x, const Matrix& w, float* y, const Step& s) {
    return w.dots && w.bits == 16 && !w.bias && linear_silu_mul(x, (const uint16_t*)w.numbers, y, s.rows, w.in, s.inner);
}

static void attend(float* qkv, const Layer& layer, const Cache& cache, const Step& s, float* output) {
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

// x and delta [rows, hidden] are what the layers before have made; they become what these make.
extern "C" void decode_layers(
    const Layer* layers, const Cache* caches, long num_layers, const Step* step, float* x, float* delta
) {
    const Step& s = *step;
    Rows normed = rows_of(s.rows, s.hidden), qkv = rows_of(s.rows, (s.heads + 2 * s.kv_heads) * s.d);
    Rows attended = rows_of(s.rows, s.heads * s.d);
    Rows gate_up = rows_of(s.rows, 2 * s.inner), inner = rows_of(s.rows, s.inner);
    for (long i = 0; i < num_layers; ++i) {
        const Layer& layer = layers[i];
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
