// Attention of a prompt, or of a chunk of one, over a paged cache of bfloat16: many queries see nearly the same keys.
//
// The work is two products with an e^x between them: scores = q K^T, output = e^(scores - largest) V. Both are made of the
// tiles that multiply weights (tiles.h), so keys and values are put in that order once, for all queries; and a block of
// queries takes the keys a block at a time, so that scores never leave the cache (FlashAttention-2, Dao 2023). The query
// heads of a group share keys, and so are rows of one product.

#include "cache.h"
#include "kernels.h"
#include "matrix_units.h"
#include "tiles.h"

#include <memory>

#if HAS_DOTS
typedef Pairs Products;  // queries and weights of the values are rounded to bfloat16, as every flash kernel does
constexpr int STRIPS = LANES == BAND ? 4 : Pairs::STRIPS, ROWS = LANES == BAND ? 6 : Pairs::ROWS;
#else
typedef BFloat16 Products;
constexpr int STRIPS = BFloat16::STRIPS, ROWS = BFloat16::ROWS;
#endif
typedef Products::Number Number;
constexpr long INPUTS = Products::INPUTS;
constexpr long KEYS = 128, QUERIES = 64;  // in a block
constexpr long MAX_D = 256;                // see minillm/kernels/attention/native.py

// Rows of x, in the order that their product wants.
struct Rows {
    long size;
    bool tiled;  // for the matrix units
    Aligned<Number> numbers;

    Rows(long rows, long size, bool tiled)
        : size(size), tiled(tiled), numbers(aligned<Number>(rows * size / INPUTS)) {
        std::fill(numbers.get(), numbers.get() + rows * size / INPUTS, Number{});
    }
    void put(long row, long i, Floats floats) {  // LANES of them
#if HAS_DOTS
        const Halves halves = narrow(floats);
        const long at = tiled ? in_tiles(row, i, size) : row * size + i;
        std::memcpy((uint16_t*)numbers.get() + at, &halves, sizeof halves);
#else
        store(&numbers[row * size + i], floats);
#endif
    }
    // Times W in bands: sums [rows, out].
    void multiply(const uint16_t* w, float* to, long rows, long out) const {
#if HAS_DOTS
        if (tiled) return multiply_tiles((const uint16_t*)numbers.get(), w, to, 0, rows, rows, 0, out / BAND, size, out);
#endif
        share<ROWS, STRIPS>(numbers.get(), Products{w, size / INPUTS}, to, rows, out, 0, out / LANES);
    }
};

// The keys and values of one head, in the order of BFloat16's weights.
struct Context {
    long d, blocks;
    Aligned<uint16_t> keys;    // [blocks, KEYS / 16, d / 2, 16, 2]
    Aligned<uint16_t> values;  // [blocks, d / 16, KEYS / 2, 16, 2]

    Context(long d, long num_keys)
        : d(d), blocks((num_keys + KEYS - 1) / KEYS), keys(aligned<uint16_t>(blocks * KEYS * d)),
          values(aligned<uint16_t>(blocks * KEYS * d)) {}

    // A block of them. In a band, pairs of a key's numbers stand side by side; and of values, those of two neighbours.
    void fill(long block, const Cache<uint16_t>& cache, const int32_t* table, long kv_head, long num_keys) {
        static const uint16_t NONE[MAX_D] = {};
        const uint16_t *key[KEYS], *value[KEYS];
        for (long k = 0; k < KEYS; ++k) {
            const bool is_there = block * KEYS + k < num_keys;
            const long index = is_there ? cache.key(table, block * KEYS + k, kv_head) : 0;
            key[k] = is_there ? cache.vector(index) : NONE;
            value[k] = is_there ? cache.vector(cache.value(index)) : NONE;
        }
        uint16_t* to = keys.get() + block * KEYS * d;
        for (long k = 0; k < KEYS; ++k)
            for (long i = 0; i < d; i += 2)
                std::memcpy(to + (k / BAND * d / 2 + i / 2) * 2 * BAND + k % BAND * 2, key[k] + i, 2 * sizeof *to);
        to = values.get() + block * KEYS * d;
        for (long k = 0; k < KEYS; k += 2)
            for (long i = 0; i < d; i += LANES) {
                const Words pairs = load_words(value[k] + i) | load_words(value[k + 1] + i) << 16;
                std::memcpy(to + ((i / BAND * KEYS / 2 + k / 2) * BAND + i % BAND) * 2, &pairs, sizeof pairs);
            }
    }
};

// A block of queries of one head's group. A row is a query of one of its heads.
struct Queries {
    long rows, d, room;  // for rows in whole tiles
    Rows x;       // [rows, d]
    Rows shares;  // [rows, KEYS] e^(score - largest)
    std::unique_ptr<float[]> scores, product, sums, most, total;

    Queries(long rows, long d, bool tiled)
        : rows(rows), d(d), room((rows + 2 * SIDE - 1) / (2 * SIDE) * 2 * SIDE), x(room, d, tiled),
          shares(room, KEYS, tiled), scores(new float[room * KEYS]), product(new float[tiled ? 0 : rows * d]),
          sums(new float[room * d]()), most(new float[rows]),
          total(new float[rows]()) {
        std::fill(most.get(), most.get() + rows, -INFINITY);
    }

    // See a block of keys. Of its keys, row r sees the first `visible(r)`.
    template <typename Visible>
    void see(const Context& context, long block, Visible visible) {
        const long at = block * KEYS * d;
        x.multiply(context.keys.get() + at, scores.get(), x.tiled ? room : rows, KEYS);
        for (long row = 0; row < rows; ++row) weigh(row, std::min(KEYS, visible(row)));
        const uint16_t* values = context.values.get() + at;
        if (shares.tiled) return add_products((const uint16_t*)shares.numbers.get(), values, sums.get(), room, KEYS, d);
        shares.multiply(values, product.get(), rows, d);
        for (long i = 0; i < rows * d; i += LANES) store(&sums[i], load(&sums[i]) + load(&product[i]));
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
        const float highest = std::max(most[row], largest(high));
        Floats added = {};
        for (long k = 0; k < KEYS; k += LANES) {
            const Floats weights = exp_of_negative(load(score + k) - highest);
            shares.put(row, k, weights);
            added += weights;
        }
        const float shrink = std::exp(most[row] - highest);
        total[row] = total[row] * shrink + sum(added);
        most[row] = highest;
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

    const bool tiled = matrix_units() && d % DEPTH == 0;
    const long parts = (n + QUERIES - 1) / QUERIES;
    #pragma omp parallel for schedule(dynamic)
    for (long work = 0; work < kv_heads * parts; ++work) {  // the last queries, which see most, first
        const long part = parts - 1 - work / kv_heads, kv_head = work % kv_heads;
        const long first = part * QUERIES, count = std::min(QUERIES, n - first), before = num_keys - n + first;
        Queries queries(count * group, d, tiled);
        const UseUnits units(SIDE);
        auto place = [&](long row) { return (first + row / group) * query_stride + (kv_head * group + row % group) * d; };
        for (long row = 0; row < queries.rows; ++row)
            for (long i = 0; i < d; i += LANES) queries.x.put(row, i, load(query + place(row) + i) * scale);
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
