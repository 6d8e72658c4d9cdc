// Attention of decodes over a paged cache of bfloat16 or int8 keys and values: each is read once, where it lies.
//
// The query heads of a group share a key/value head. Its keys are taken a tile at a time; per query head
// there is the largest score so far, the sum of e^(score - largest), and the values weighted by it
// (online softmax, Milakov & Gimelshein 2018; FlashAttention, Dao et al. 2022).

#include "vectors.h"

constexpr int TILE = 64;  // keys: their scores and the sums of a group fit the first-level cache
constexpr int MAX_GROUP = 16, MAX_DIM = 256;

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
    float scale(long index) const {
        if constexpr (sizeof(Number) == 1) return widen(scales[index]);
        else return 1.0f;
    }
};

struct Group {
    int heads;
    float sums[MAX_GROUP][MAX_DIM] = {}, largest[MAX_GROUP], total[MAX_GROUP] = {};

    explicit Group(int heads) : heads(heads) {
        for (int g = 0; g < heads; ++g) largest[g] = -INFINITY;
    }
};

// Let a group see the keys at positions begin to end.
template <typename Number>
static void attend_range(
    Group& group, const float* query, const Cache<Number>& cache, const int32_t* table, long kv_head, long begin,
    long end, float scale
) {
    const long d = cache.d;
    float scores[MAX_GROUP][TILE];
    for (long start = begin; start < end; start += TILE) {
        int count = int(end - start < TILE ? end - start : TILE);
        for (int t = 0; t < count; ++t) {
            long index = cache.key(table, start + t, kv_head);
            const Number* key = cache.vector(index);
            float key_scale = scale * cache.scale(index);
            for (int g = 0; g < group.heads; ++g) {
                Floats products = {};
                for (long i = 0; i < d; i += LANES) products += load(query + g * d + i) * load(key + i);
                scores[g][t] = sum(products) * key_scale;
            }
        }
        for (int g = 0; g < group.heads; ++g) {
            for (int t = count; t < TILE; ++t) scores[g][t] = -INFINITY;
            float highest = group.largest[g];
            for (int t = 0; t < count; ++t) highest = scores[g][t] > highest ? scores[g][t] : highest;
            float shrink = group.largest[g] == -INFINITY ? 0.0f : std::exp(group.largest[g] - highest);
            Floats added = {};
            for (int t = 0; t < TILE; t += LANES) {
                Floats weights = exp_of_negative(load(scores[g] + t) - highest);
                store(scores[g] + t, weights);
                added += weights;
            }
            group.total[g] = group.total[g] * shrink + sum(added);
            group.largest[g] = highest;
            for (long i = 0; i < d; ++i) group.sums[g][i] *= shrink;
        }
        for (int t = 0; t < count; ++t) {
            long index = cache.value(cache.key(table, start + t, kv_head));
            const Number* value = cache.vector(index);
            float value_scale = cache.scale(index);
            for (int g = 0; g < group.heads; ++g) {
                float weight = scores[g][t] * value_scale;
                for (long i = 0; i < d; i += LANES)
                    store(group.sums[g] + i, load(group.sums[g] + i) + weight * load(value + i));
            }
        }
    }
}

// query [n, heads, d] with rows query_stride numbers apart, output [n, heads, d], tables [n, table_width], lens [n].
// A token sees the last `window` keys (0 = all) and the first `sinks`.
template <typename Number>
static void attend_decodes(
    const float* query, const Cache<Number>& cache, const int32_t* tables, const int32_t* lens, float* output, long n,
    long query_stride, long heads, long table_width, long window, long sinks, float scale
) {
    const long kv_heads = cache.kv_heads, d = cache.d, size = heads / kv_heads;
    #pragma omp parallel for schedule(dynamic)
    for (long part = 0; part < n * kv_heads; ++part) {
        long b = part / kv_heads, kv_head = part % kv_heads, head = kv_head * size;
        const float* q = query + b * query_stride + head * d;
        const int32_t* table = tables + b * table_width;
        long begin = window && lens[b] > window ? lens[b] - window : 0;
        Group group{int(size)};
        attend_range(group, q, cache, table, kv_head, 0, sinks < begin ? sinks : begin, scale);
        attend_range(group, q, cache, table, kv_head, begin, lens[b], scale);
        float* to = output + (b * heads + head) * d;
        for (int g = 0; g < size; ++g)
            for (long i = 0; i < d; ++i) to[g * d + i] = group.sums[g][i] / group.total[g];
    }
}

extern "C" void attend_decodes_bf16(
    const float* query, const uint16_t* numbers, const uint16_t*, const int32_t* tables, const int32_t* lens,
    float* output, long n, long query_stride, long heads, long kv_heads, long d, long block_size, long table_width,
    long window, long sinks, float scale
) {
    Cache<uint16_t> cache{numbers, nullptr, block_size, kv_heads, d};
    attend_decodes(query, cache, tables, lens, output, n, query_stride, heads, table_width, window, sinks, scale);
}

extern "C" void attend_decodes_int8(
    const float* query, const int8_t* numbers, const uint16_t* scales, const int32_t* tables, const int32_t* lens,
    float* output, long n, long query_stride, long heads, long kv_heads, long d, long block_size, long table_width,
    long window, long sinks, float scale
) {
    Cache<int8_t> cache{numbers, scales, block_size, kv_heads, d};
    attend_decodes(query, cache, tables, lens, output, n, query_stride, heads, table_width, window, sinks, scale);
}
