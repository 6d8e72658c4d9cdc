// Attention of decodes over a paged cache of bfloat16 or int8 keys and values: each is read once, where it lies.
//
// The query heads of a group share a key/value head. Its keys are taken a tile at a time; per query head
// there is the largest score so far, the sum of e^(score - largest), and the values weighted by it
// (online softmax, Milakov & Gimelshein 2018; FlashAttention, Dao et al. 2022).

#include "cache.h"
#include "kernels.h"

#include <algorithm>
#include <type_traits>

constexpr int TILE = 64;  // keys: their scores and the sums of a group fit the first-level cache
constexpr int MAX_GROUP = 16, MAX_DIM = 256;

// What a group of query heads has seen so far.
struct Group {
    int heads;
    float sums[MAX_GROUP][MAX_DIM], largest[MAX_GROUP], total[MAX_GROUP] = {};

    Group(int heads, long d) : heads(heads) {
        for (int g = 0; g < heads; ++g) {
            largest[g] = -INFINITY;
            std::memset(sums[g], 0, d * sizeof(float));
        }
    }
};

// Up to HEADS heads at once: a key or value that is loaded and widened serves them all.
constexpr int HEADS = 4;
constexpr int AHEAD = 8;  // keys that are fetched ahead

// scores[h][t] = scale * query[h] . key[t]
template <int NUM, typename Number>
static inline void score(
    const float* query, const Cache<Number>& cache, const long* keys, int count, float scale, float (*scores)[TILE]
) {
    for (int t = 0; t < count; ++t) {
        const Number* key = cache.vector(keys[t]);
        if (t + AHEAD < count) cache.fetch(keys[t + AHEAD]);
        Floats products[NUM] = {};
        for (long i = 0; i < cache.d; i += LANES) {
            Floats part = load(key + i);
            for (int h = 0; h < NUM; ++h) products[h] += load(query + h * cache.d + i) * part;
        }
        cache.fetch(cache.value(keys[t]));
        for (int h = 0; h < NUM; ++h) scores[h][t] = sum(products[h]) * scale * cache.scale(keys[t]);
    }
}

// sums[h] += weights[h][t] * value[t]
template <int NUM, typename Number>
static inline void add_values(
    float (*sums)[MAX_DIM], const Cache<Number>& cache, const long* keys, int count, const float (*weights)[TILE]
) {
    for (long i = 0; i < cache.d; i += LANES) {
        Floats parts[NUM];
        for (int h = 0; h < NUM; ++h) parts[h] = load(sums[h] + i);
        for (int t = 0; t < count; ++t) {
            long index = cache.value(keys[t]);
            Floats value = load(cache.vector(index) + i) * cache.scale(index);
            for (int h = 0; h < NUM; ++h) parts[h] += weights[h][t] * value;
        }
        for (int h = 0; h < NUM; ++h) store(sums[h] + i, parts[h]);
    }
}

// Calls `with` with a constant for the number of heads from `first` on, at most HEADS.
template <typename Call>
static inline void for_heads(int heads, Call with) {
    int first = 0;
    for (; first + HEADS <= heads; first += HEADS) with(first, std::integral_constant<int, HEADS>());
    switch (heads - first) {
        case 1: return with(first, std::integral_constant<int, 1>());
        case 2: return with(first, std::integral_constant<int, 2>());
        case 3: return with(first, std::integral_constant<int, 3>());
    }
}

// Let a group see the keys at positions begin to end.
template <typename Number>
static void attend_range(
    Group& group, const float* query, const Cache<Number>& cache, const int32_t* table, long kv_head, long begin,
    long end, float scale
) {
    float scores[MAX_GROUP][TILE];
    long keys[TILE];
    for (long start = begin; start < end; start += TILE) {
        const int count = int(std::min<long>(TILE, end - start));
        for (int t = 0; t < count; ++t) {
            keys[t] = cache.key(table, start + t, kv_head);
            if (t < AHEAD) cache.fetch(keys[t]);
        }
        for_heads(group.heads, [&](int h, auto num) {
            score<num.value>(query + h * cache.d, cache, keys, count, scale, scores + h);
        });
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
            for (long i = 0; i < cache.d; ++i) group.sums[g][i] *= shrink;
        }
        for_heads(group.heads, [&](int h, auto num) {
            add_values<num.value>(group.sums + h, cache, keys, count, scores + h);
        });
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
        Group group(int(size), d);
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
