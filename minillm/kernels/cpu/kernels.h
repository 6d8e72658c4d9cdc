// What the library offers: minillm/kernels/cpu/__init__.py declares the same functions, layers.py the same structs. All
// arrays are contiguous and of the stated sizes; nothing outside of them is read or written.
//
// Activations are float32. bfloat16 is kept in uint16_t. W lies in bands of 16 outputs (bands.py), the last one filled up
// with zeros. `dots`: x is rounded to bfloat16, too; only where `has_dots`.

#pragma once

#include <cstdint>

struct NativeMatrix {
    const void *numbers, *scales;
    const float* bias;  // [out] or null
    long in, out, bits, group, dots;
};

struct NativeLayer {
    const float *input_norm, *post_attention_norm, *query_norm, *key_norm;  // the last two may be null
    NativeMatrix qkv, o, gate_up, down;
};

struct NativeCache {
    void* numbers;
    uint16_t* scales;  // null: the numbers are bfloat16
};

struct NativeStep {
    long rows, hidden, inner, heads, kv_heads, d, block_size, table_width, window, sinks;
    float eps, scale;
    const float *cos, *sin;        // [rows, d]
    const int64_t* slots;          // [rows]
    const int32_t *tables, *lens;  // [rows, table_width], [rows]
};

extern "C" {

long has_dots();

// y [rows, out] = x [rows, in] W^T. W: bfloat16 [bands, in / 2, 16, 2]; an odd `in` is filled up.
void linear(const float* x, const uint16_t* w, float* y, long rows, long in, long out, long dots);

// W: int8 [bands, in, 16], scales [bands, 16].
void linear_int8(
    const float* x, const int8_t* w, const float* scales, float* y, long rows, long in, long out, long dots
);

// W: [bands, in / 8, 16] words of 8 inputs, the first one lowest; scales: bfloat16 [bands, in / group, 2, 16], step and
// lowest value. `in` is a multiple of `group`, and that of 8.
void linear_int4(
    const float* x, const uint32_t* w, const uint16_t* scales, float* y, long rows, long in, long out, long group,
    long dots
);

// y [rows, inner] = silu(gate) * up, where W's outputs are gates and ups, `inner` each; x is rounded to bfloat16. False, and
// nothing done, where it gains nothing (few rows without matrix units: gates and ups stay in a cache anyway), or can't.
bool linear_silu_mul(const float* x, const uint16_t* w, float* y, long rows, long in, long inner);

// total = x + delta, normed = total / rms(total) * weight, for [rows, size]. `total` may be x.
void add_rms_norm(
    const float* x, const float* delta, const float* weight, float* total, float* normed, long rows, long size,
    float eps
);

// out = silu(gate) * up, for [rows, 2 * inner] = (gate, up)
void silu_mul(const float* gate_up, float* out, long rows, long inner);

// Norms and rotates queries and keys of qkv [rows, heads + 2 * kv_heads, d] in place, and writes keys and values to the
// cache [slots, 2, kv_heads, d]. cos and sin [rows, d]; weights [d] may be null.
void rotate_and_write_bf16(
    float* qkv, const float* query_weight, const float* key_weight, const float* cos, const float* sin,
    const int64_t* slots, uint16_t* numbers, uint16_t* none, long rows, long heads, long kv_heads, long d, float eps
);
void rotate_and_write_int8(
    float* qkv, const float* query_weight, const float* key_weight, const float* cos, const float* sin,
    const int64_t* slots, int8_t* numbers, uint16_t* scales, long rows, long heads, long kv_heads, long d, float eps
);

// query [n, heads, d] with rows query_stride numbers apart, output [n, heads, d], tables [n, table_width], lens [n].
// A token sees the last `window` keys (0 = all) and the first `sinks`. d is a multiple of 16, and at most 256; heads are at
// most 16 times kv_heads.
void attend_decodes_bf16(
    const float* query, const uint16_t* numbers, const uint16_t* none, const int32_t* tables, const int32_t* lens,
    float* output, long n, long query_stride, long heads, long kv_heads, long d, long block_size, long table_width,
    long window, long sinks, float scale
);
void attend_decodes_int8(
    const float* query, const int8_t* numbers, const uint16_t* scales, const int32_t* tables, const int32_t* lens,
    float* output, long n, long query_stride, long heads, long kv_heads, long d, long block_size, long table_width,
    long window, long sinks, float scale
);

// The n newest tokens of one sequence of num_keys.
void attend_prefill(
    const float* query, const uint16_t* numbers, const int32_t* table, float* output, long n, long num_keys,
    long query_stride, long heads, long kv_heads, long d, long block_size, float scale
);

// x and delta [rows, hidden] are what the layers before have made; they become what these make.
void decode_layers(
    const NativeLayer* layers, const NativeCache* caches, long num_layers, const NativeStep* step, float* x, float* delta
);

}
