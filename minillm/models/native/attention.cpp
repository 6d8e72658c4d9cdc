// Attention of decodes over a paged cache of bfloat16 keys and values: each is read once, where it lies.
//
// The query heads of a group share a key/value head. Its keys are taken a tile at a time; per query head
// there is the largest score so far, the sum of e^(score - largest), and the values weighted by it
// (online softmax, Milakov & Gimelshein 2018; FlashAttention, Dao et al. 2022).

#include "vectors.h"

constexpr int TILE = 64;  // keys: their scores and the sums of a group fit the first-level cache
constexpr int MAX_GROUP = 16, MAX_DIM = 256;

struct Cache {
    const uint16_t* numbers;  // [blocks, block_size, 2, kv_heads, d]
    long block_size, kv_heads, d;

    const uint16_t* key(const int32_t* table, long position, long kv_head) const {
        long slot = table[position / block_size] * block_size + position % block_size;
        return numbers + (slot * 2 * kv_heads + kv_head) * d;
    }
    long value_offset() const { return kv_heads * d; }
};

static void attend_group(
    const float* query, float* output, const Cache& cache, const int32_t* table, long kv_head, long begin, long end,
    int group, float scale
) {
    const long d = cache.d;
    float sums[MAX_GROUP][MAX_DIM] = {}, largest[MAX_GROUP], total[MAX_GROUP] = {};
    float scores[MAX_GROUP][TILE];
    for (int g = 0; g < group; ++g) largest[g] = -INFINITY;

    for (long start = begin; start < end; start += TILE) {
        int count = int(end - start < TILE ? end - start : TILE);
        for (int t = 0; t < count; ++t) {
            const uint16_t* key = cache.key(table, start + t, kv_head);
            for (int g = 0; g < group; ++g) {
                Floats products = {};
                for (long i = 0; i < d; i += LANES) products += load(query + g * d + i) * load(key + i);
                scores[g][t] = sum(products) * scale;
            }
        }
        for (int g = 0; g < group; ++g) {
            for (int t = count; t < TILE; ++t) scores[g][t] = -INFINITY;
            float highest = largest[g];
            for (int t = 0; t < count; ++t) highest = scores[g][t] > highest ? scores[g][t] : highest;
            float shrink = largest[g] == -INFINITY ? 0.0f : std::exp(largest[g] - highest);
            Floats added = {};
            for (int t = 0; t < TILE; t += LANES) {
                Floats weights = exp_of_negative(load(scores[g] + t) - highest);
                store(scores[g] + t, weights);
                added += weights;
            }
            total[g] = total[g] * shrink + sum(added);
            largest[g] = highest;
            for (long i = 0; i < d; ++i) sums[g][i] *= shrink;
        }
        for (int t = 0; t < count; ++t) {
            const uint16_t* value = cache.key(table, start + t, kv_head) + cache.value_offset();
            for (int g = 0; g < group; ++g) {
                for (long i = 0; i < d; i += LANES)
                    store(sums[g] + i, load(sums[g] + i) + scores[g][t] * load(value + i));
            }
        }
    }
    for (int g = 0; g < group; ++g)
        for (long i = 0; i < d; ++i) output[g * d + i] = sums[g][i] / total[g];
}

// query [n, heads, d] with rows query_stride numbers apart, output [n, heads, d], tables [n, table_width], lens [n];
// window 0 = every key is seen.
extern "C" void attend_decodes(
    const float* query, const uint16_t* numbers, const int32_t* tables, const int32_t* lens, float* output, long n,
    long query_stride, long heads, long kv_heads, long d, long block_size, long table_width, long window, float scale
) {
    const Cache cache{numbers, block_size, kv_heads, d};
    const long group = heads / kv_heads;
    #pragma omp parallel for schedule(dynamic)
    for (long part = 0; part < n * kv_heads; ++part) {
        long b = part / kv_heads, kv_head = part % kv_heads, head = kv_head * group;
        long begin = window && lens[b] > window ? lens[b] - window : 0;
        attend_group(
            query + b * query_stride + head * d, output + (b * heads + head) * d, cache, tables + b * table_width,
            kv_head, begin, lens[b], int(group), scale
        );
    }
}
