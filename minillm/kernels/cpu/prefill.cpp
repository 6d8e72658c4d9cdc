// Attention of a prompt, or of a chunk of one, over a paged cache of bfloat16: many queries see nearly the same keys.
//
// The work is two products with an e^x between them: scores = q K^T, output = e^(scores - largest) V. Both are made of the
// tiles that multiply weights (tiles.h), so keys and values are put in that order once, for all queries; and a block of
// queries takes the keys a block at a time, so that scores never leave the cache (FlashAttention-2, Dao 2023). The query
// heads of a group share keys, and so are rows of one product.

#include "cache.h"
#include "tiles.h"

#include <memory>

#if HAS_DOTS
typedef Pairs Products;  // queries and weights of the values are rounded to bfloat16, as every flash kernel does
constexpr int STRIPS = MANY_REGISTERS && LANES == BAND ? 4 : Pairs::STRIPS, ROWS = 24 / STRIPS;
#else
typedef BFloat16 Products;
constexpr int STRIPS = BFloat16::STRIPS, ROWS = BFloat16::ROWS;
#endif
typedef Products::Number Number;
constexpr long INPUTS = Products::INPUTS;
constexpr long KEYS = 64, QUERIES = 32;  // in a block

static void put(Number* to, const float* from, long size, float scale) {  // a row of x
    for (long i = 0; i < size; i += LANES) {
        const Floats floats = load(from + i) * scale;
#if HAS_DOTS
        const Halves halves = narrow(floats);
        std::memcpy((uint16_t*)to + i, &halves, sizeof halves);
#else
        store(to + i, floats);
#endif
    }
}

// The keys and values of one head, in the order of BFloat16's weights.
struct Context {
    long d, blocks;
    std::unique_ptr<uint16_t[]> keys;    // [blocks, KEYS / 16, d / 2, 16, 2]
    std::unique_ptr<uint16_t[]> values;  // [blocks, d / 16, KEYS / 2, 16, 2]

    Context(long d, long num_keys)
        : d(d), blocks((num_keys + KEYS - 1) / KEYS), keys(new uint16_t[blocks * KEYS * d]()),
          values(new uint16_t[blocks * KEYS * d]()) {}

    void fill(long block, const Cache<uint16_t>& cache, const int32_t* table, long kv_head, long num_keys) {
        uint16_t *key = keys.get() + block * KEYS * d, *value = values.get() + block * KEYS * d;
        for (long k = 0; k < KEYS && block * KEYS + k < num_keys; ++k) {
            const long index = cache.key(table, block * KEYS + k, kv_head);
            for (long i = 0; i < d; ++i) {
                key[((k / BAND * d / 2 + i / 2) * BAND + k % BAND) * 2 + i % 2] = cache.vector(index)[i];
                value[((i / BAND * KEYS / 2 + k / 2) * BAND + i % BAND) * 2 + k % 2] = cache.vector(cache.value(index))[i];
            }
        }
    }
};

// A block of queries of one head's group. A row is a query of one of its heads.
struct Queries {
    long rows, d;
    std::unique_ptr<Number[]> x;       // [rows, d]
    std::unique_ptr<Number[]> shares;  // [rows, KEYS] e^(score - largest)
    std::unique_ptr<float[]> scores, product, sums, largest, total;

    Queries(long rows, long d)
        : rows(rows), d(d), x(new Number[rows * d / INPUTS]), shares(new Number[rows * KEYS / INPUTS]),
          scores(new float[rows * KEYS]), product(new float[rows * d]), sums(new float[rows * d]()),
          largest(new float[rows]), total(new float[rows]()) {
        std::fill(largest.get(), largest.get() + rows, -INFINITY);
    }

    // See a block of keys. Of its keys, row r sees the first `visible(r)`.
    template <typename Visible>
    void see(const Context& context, long block, Visible visible) {
        const long at = block * KEYS * d;
        multiply(x.get(), {context.keys.get() + at, d / INPUTS}, scores.get(), KEYS);
        for (long row = 0; row < rows; ++row) weigh(row, std::min(KEYS, visible(row)));
        multiply(shares.get(), {context.values.get() + at, KEYS / INPUTS}, product.get(), d);
        for (long i = 0; i < rows * d; i += LANES) store(&sums[i], load(&sums[i]) + load(&product[i]));
    }

    void multiply(const Number* from, const Products& w, float* to, long out) {
        share<ROWS, STRIPS>(from, w, to, rows, out, 0, out / LANES);
    }

    // Scores to shares, by the largest score so far; what was summed by a smaller one shrinks (online softmax).
    void weigh(long row, long visible) {
        float* score = &scores[row * KEYS];
        for (long k = visible < 0 ? 0 : visible; k < KEYS; ++k) score[k] = -INFINITY;
        Floats high = load(score);
        for (long k = LANES; k < KEYS; k += LANES) {
            const Floats more = load(score + k);
            high = more > high ? more : high;
        }
        float highest = largest[row];
        for (int lane = 0; lane < LANES; ++lane) highest = std::max(highest, high[lane]);
        Floats added = {};
        for (long k = 0; k < KEYS; k += LANES) {
            const Floats weights = exp_of_negative(load(score + k) - highest);
            store(score + k, weights);
            added += weights;
        }
        const float shrink = std::exp(largest[row] - highest);
        put(&shares[row * KEYS / INPUTS], score, KEYS, 1);
        total[row] = total[row] * shrink + sum(added);
        largest[row] = highest;
        if (shrink != 1)
            for (long i = 0; i < d; ++i) sums[row * d + i] *= shrink;
    }
};

// The n newest tokens of one sequence of num_keys: query [n, heads, d] with rows query_stride numbers apart, output
// [n, heads, d].
static void attend(
    const float* query, const Cache<uint16_t>& cache, const int32_t* table, float* output, long n, long num_keys,
    long query_stride, long heads, float scale
) {
    const long kv_heads = cache.kv_heads, d = cache.d, group = heads / kv_heads;
    std::unique_ptr<std::unique_ptr<Context>[]> contexts(new std::unique_ptr<Context>[kv_heads]);
    for (long head = 0; head < kv_heads; ++head) contexts[head].reset(new Context(d, num_keys));
    const long blocks = contexts[0]->blocks;
    #pragma omp parallel for schedule(static)
    for (long part = 0; part < kv_heads * blocks; ++part)
        contexts[part / blocks]->fill(part % blocks, cache, table, part / blocks, num_keys);

    const long parts = (n + QUERIES - 1) / QUERIES;
    #pragma omp parallel for schedule(dynamic)
    for (long work = 0; work < kv_heads * parts; ++work) {  // the last queries, which see most, first
        const long part = parts - 1 - work / kv_heads, kv_head = work % kv_heads;
        const long first = part * QUERIES, count = std::min(QUERIES, n - first), before = num_keys - n + first;
        Queries queries(count * group, d);
        auto place = [&](long row) { return (first + row / group) * query_stride + (kv_head * group + row % group) * d; };
        for (long row = 0; row < queries.rows; ++row) put(&queries.x[row * d / INPUTS], query + place(row), d, scale);
        for (long block = 0; block * KEYS < before + count; ++block)
            queries.see(*contexts[kv_head], block, [&](long row) { return before + row / group + 1 - block * KEYS; });
        for (long row = 0; row < queries.rows; ++row) {
            float* to = output + ((first + row / group) * heads + kv_head * group + row % group) * d;
            for (long i = 0; i < d; ++i) to[i] = queries.sums[row * d + i] / queries.total[row];
        }
    }
}

extern "C" void attend_prefill(
    const float* query, const uint16_t* numbers, const int32_t* table, float* output, long n,
    long num_keys, long query_stride, long heads, long kv_heads, long d, long block_size, float scale
) {
    Cache<uint16_t> cache{numbers, nullptr, block_size, kv_heads, d};
    attend(query, cache, table, output, n, num_keys, query_stride, heads, scale);
}
