// Where keys and values lie.

#pragma once

#include "vectors.h"

// [blocks, block_size, 2, kv_heads, d] numbers. A vector is one key or value; an int8 one has a scale.
template <typename Number>
struct Cache {
    const Number* numbers;
    const uint16_t* scales;  // [blocks, block_size, 2, kv_heads] bfloat16; of int8 only
    long block_size, kv_heads, d;

    long key(const int32_t* table, long position, long kv_head) const {
        long slot = table[position / block_size] * block_size + position % block_size;
        return slot * 2 * kv_heads + kv_head;
    }
    long value(long key) const { return key + kv_heads; }
    const Number* vector(long index) const { return numbers + index * d; }
    // One vector's neighbour belongs to another head: the hardware does not see what will be wanted next.
    void fetch(long index) const {
        const char* from = (const char*)vector(index);
        for (long byte = 0; byte < d * long(sizeof(Number)); byte += 64) __builtin_prefetch(from + byte);
    }
    float scale(long index) const {
        if constexpr (sizeof(Number) == 1) return widen(scales[index]);
        else return 1.0f;
    }
};
