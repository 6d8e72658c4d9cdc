// Tries every function of the library on ragged shapes, in arrays of exactly their size, and compares it with plain loops.
//
// The engine runs this once after it has compiled the library (selftest.py). Whatever a compiler or a CPU does wrong, a
// crash or an endless loop included, then happens in a process of its own; and one without Python and PyTorch in it starts
// in milliseconds. The same program is run under sanitizers, and for Arm in an emulator (tests/engine/kernels/test_builds.py).
//
// It prints each check before it is made, so the last line tells where a crash was. Exit status: 0 if all was right, 3 if
// numbers were wrong. Others, such as NO_MEMORY and what OpenMP ends with for want of threads, tell nothing of the library.
// Its argument is how many seconds of CPU time it may take: then the system ends it with SIGXCPU.

#include "kernels.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <random>
#include <sys/resource.h>
#include <vector>

typedef std::vector<float> Floats;
typedef std::vector<uint16_t> BFloat16s;

constexpr int WRONG_NUMBERS = 3, NO_MEMORY = 4;
constexpr long BAND = 16;
constexpr uint16_t NAN_BFLOAT16 = 0x7fc0;  // where nothing may be read, or was written

static std::mt19937 generator;

static long draw(long low, long high) { return std::uniform_int_distribution<long>(low, high)(generator); }

static Floats draw_floats(long size) {
    Floats drawn(size);
    for (float& each : drawn) each = std::uniform_real_distribution<float>(-1, 1)(generator);
    return drawn;
}

static Floats nothing(long size) { return Floats(size, NAN); }

static uint16_t narrow(float number) {  // to the nearest, ties to even
    uint32_t word;
    std::memcpy(&word, &number, sizeof word);
    return uint16_t((word + 0x7fff + ((word >> 16) & 1)) >> 16);
}

static float widen(uint16_t half) {
    const uint32_t word = uint32_t(half) << 16;
    float number;
    std::memcpy(&number, &word, sizeof number);
    return number;
}

static BFloat16s narrow(const Floats& numbers) {
    BFloat16s halves;
    for (float each : numbers) halves.push_back(narrow(each));
    return halves;
}

static Floats widen(const BFloat16s& halves) {
    Floats numbers;
    for (uint16_t each : halves) numbers.push_back(widen(each));
    return numbers;
}

static void expect(const Floats& found, const Floats& expected, double tolerance) {
    for (size_t i = 0; i < expected.size(); ++i) {
        if (std::isnan(found[i]) && std::isnan(expected[i])) continue;
        if (std::fabs(found[i] - expected[i]) <= tolerance * (1 + std::fabs(expected[i]))) continue;
        std::printf("wrong: number %zu of %zu is %g and should be %g\n", i, expected.size(), found[i], expected[i]);
        std::exit(WRONG_NUMBERS);
    }
}

// ---------------------------------------------------------------------- matrix products

// W [out, in], and how each of the functions wants it: see bands.py.
struct Weights {
    long in, out, group, bands = (out + BAND - 1) / BAND, pairs = (in + 1) / 2;
    Floats numbers;             // what was put in bands
    BFloat16s halves;           // [bands, pairs, 16, 2]
    std::vector<int8_t> bytes;  // [bands, in, 16]
    Floats scales;              // [bands, 16]
    std::vector<uint32_t> words;  // [bands, in / 8, 16]
    BFloat16s steps;              // [bands, in / group, 2, 16]

    Weights(long in, long out, long group = 8) : in(in), out(out), group(group), numbers(in * out) {}

    Weights& in_bfloat16() {
        halves.resize(bands * pairs * BAND * 2);
        numbers = widen(narrow(draw_floats(in * out)));
        for (long o = 0; o < out; ++o)
            for (long i = 0; i < in; ++i)
                halves[((o / BAND * pairs + i / 2) * BAND + o % BAND) * 2 + i % 2] = narrow(numbers[o * in + i]);
        return *this;
    }
    Weights& in_int8() {
        bytes.resize(bands * in * BAND);
        scales = draw_floats(bands * BAND);
        for (long o = 0; o < out; ++o)
            for (long i = 0; i < in; ++i) {
                const long number = draw(-127, 127);
                bytes[(o / BAND * in + i) * BAND + o % BAND] = int8_t(number);
                numbers[o * in + i] = float(number) * scales[o];
            }
        return *this;
    }
    Weights& in_int4() {  // steps and lowest values are such that bfloat16 holds every weight
        words.resize(bands * in / 8 * BAND);
        steps.resize(bands * in / group * 2 * BAND);
        for (long o = 0; o < out; ++o)
            for (long i = 0; i < in; ++i) {
                uint16_t* pair = &steps[(o / BAND * (in / group) + i / group) * 2 * BAND + o % BAND];
                if (i % group == 0) {
                    pair[0] = narrow(std::ldexp(1.0f, int(draw(-4, -2))));
                    pair[BAND] = narrow(-8 * widen(pair[0]));
                }
                const uint32_t level = uint32_t(draw(0, 15));
                words[(o / BAND * (in / 8) + i / 8) * BAND + o % BAND] |= level << i % 8 * 4;
                numbers[o * in + i] = widen(pair[0]) * float(level) + widen(pair[BAND]);
            }
        return *this;
    }
    NativeMatrix matrix(const float* bias, long dots) const {
        if (!halves.empty()) return {halves.data(), nullptr, bias, in, out, 16, 0, dots};
        if (!bytes.empty()) return {bytes.data(), scales.data(), bias, in, out, 8, 0, dots};
        return {words.data(), steps.data(), bias, in, out, 4, group, dots};
    }
    Floats times(const Floats& x) const {
        Floats y;
        for (size_t row = 0; row < x.size(); row += in)
            for (long o = 0; o < out; ++o) {
                double sum = 0;
                for (long i = 0; i < in; ++i) sum += double(x[row + i]) * numbers[o * in + i];
                y.push_back(float(sum));
            }
        return y;
    }
};

static Floats multiply(const Floats& x, const NativeMatrix& w, long rows) {
    Floats y = nothing(rows * w.out);
    if (w.bits == 16) linear(x.data(), (const uint16_t*)w.numbers, y.data(), rows, w.in, w.out, w.dots);
    const float* scales = (const float*)w.scales;
    if (w.bits == 8) linear_int8(x.data(), (const int8_t*)w.numbers, scales, y.data(), rows, w.in, w.out, w.dots);
    const uint16_t* steps = (const uint16_t*)w.scales;
    if (w.bits == 4)
        linear_int4(x.data(), (const uint32_t*)w.numbers, steps, y.data(), rows, w.in, w.out, w.group, w.dots);
    return y;
}

static void check_product(const char* name, const Weights& weights) {
    for (long rows : {0, 1, 2, 3, 4, 5, 8, 9, 15, 16, 17, 33, 257})
        for (long dots = 0; dots <= has_dots(); ++dots) {
            std::printf("%s: %ld rows, %ld inputs, %ld outputs, dots %ld\n", name, rows, weights.in, weights.out, dots);
            const Floats x = draw_floats(rows * weights.in);
            const Floats expected = weights.times(dots ? widen(narrow(x)) : x);
            const NativeMatrix matrix = weights.matrix(nullptr, dots);
            const Floats found = multiply(x, matrix, rows);
            // Of many rows, int8's numbers are multiplied before they are scaled: sums are larger by as much.
            expect(found, expected, 1e-3);
            if (rows == 0 || weights.halves.empty()) continue;
            // With bfloat16 weights, a row's sums are the same to the last bit, however many rows there are.
            const Floats last(x.end() - weights.in, x.end());
            expect(Floats(found.end() - weights.out, found.end()), multiply(last, matrix, 1), 0);
        }
}

static void check_products() {
    const long shapes[][2] = {{1, 1}, {15, 7}, {32, 16}, {50, 33}, {64, 100}, {96, 230}, {130, 48}};
    for (auto [in, out] : shapes) check_product("linear", Weights(in, out).in_bfloat16());
    for (auto [in, out] : shapes) check_product("linear_int8", Weights(in, out).in_int8());
    const long grouped[][3] = {{8, 1, 8}, {64, 33, 32}, {72, 20, 24}, {96, 230, 32}};
    for (auto [in, out, group] : grouped) check_product("linear_int4", Weights(in, out, group).in_int4());
}

static float silu(float x) { return float(x / (1 + std::exp(-double(x)))); }

// [rows, inner] of [rows, 2 * inner]
static Floats gated(const Floats& gate_up, long rows, long inner) {
    Floats out;
    for (long row = 0; row < rows; ++row)
        for (long i = 0; i < inner; ++i)
            out.push_back(silu(gate_up[row * 2 * inner + i]) * gate_up[row * 2 * inner + inner + i]);
    return out;
}

static void check_silu() {
    for (long rows : {1, 3, 16, 40, 300})
        for (long inner : {1, 7, 16, 33, 48}) {
            std::printf("silu_mul: %ld rows, %ld numbers\n", rows, inner);
            Floats gate_up = draw_floats(rows * 2 * inner), found = nothing(rows * inner);
            for (float& each : gate_up) each *= 20;
            silu_mul(gate_up.data(), found.data(), rows, inner);
            expect(found, gated(gate_up, rows, inner), 1e-4);

        }
    for (long rows : {1, 16, 40, 300})
        for (auto [in, inner] : {std::pair<long, long>{64, 7}, {64, 48}, {65, 464}, {66, 32}}) {
            std::printf("linear_silu_mul: %ld rows, %ld to %ld numbers\n", rows, in, inner);
            const Weights weights = Weights(in, 2 * inner).in_bfloat16();
            const Floats x = draw_floats(rows * in);
            Floats found = nothing(rows * inner);
            if (linear_silu_mul(x.data(), weights.halves.data(), found.data(), rows, in, inner))
                expect(found, gated(weights.times(widen(narrow(x))), rows, inner), 1e-3);
        }
}

// ---------------------------------------------------------------------- norms, rotation, the cache

static Floats normed(const float* x, const Floats& weight, float eps) {
    double squares = 0;
    for (size_t i = 0; i < weight.size(); ++i) squares += double(x[i]) * x[i];
    Floats out;
    for (size_t i = 0; i < weight.size(); ++i)
        out.push_back(float(x[i] / std::sqrt(squares / double(weight.size()) + eps) * weight[i]));
    return out;
}

static void check_norm() {
    for (long rows : {1, 3, 16, 40})
        for (long size : {1, 15, 64, 577}) {
            std::printf("add_rms_norm: %ld rows, %ld numbers\n", rows, size);
            const Floats x = draw_floats(rows * size), delta = draw_floats(rows * size), weight = draw_floats(size);
            Floats total = x, found = nothing(rows * size), sums, expected;
            add_rms_norm(total.data(), delta.data(), weight.data(), total.data(), found.data(), rows, size, 1e-5f);
            for (size_t i = 0; i < x.size(); ++i) sums.push_back(x[i] + delta[i]);
            for (long row = 0; row < rows; ++row)
                for (float each : normed(&sums[row * size], weight, 1e-5f)) expected.push_back(each);
            expect(total, sums, 1e-6);
            expect(found, expected, 1e-4);
        }
}

// Keys and values of some sequences, scattered over blocks. Whatever no sequence may read is NaN.
struct PagedCache {
    long kv_heads, d, block_size = 4, width, slots;
    std::vector<int32_t> lens, tables;  // [sequences], [sequences, width]
    BFloat16s halves;                   // [slots, 2, kv_heads, d]
    std::vector<int8_t> bytes;
    BFloat16s scales;  // [slots, 2, kv_heads]

    PagedCache(std::vector<int32_t> lengths, long kv_heads, long d) : kv_heads(kv_heads), d(d), lens(lengths) {
        width = (*std::max_element(lens.begin(), lens.end()) + block_size - 1) / block_size;
        const long blocks = long(lens.size()) * width;
        slots = blocks * block_size;
        for (long block = 0; block < blocks; ++block) tables.push_back(int32_t(block));
        std::shuffle(tables.begin(), tables.end(), generator);
        halves.assign(slots * 2 * kv_heads * d, NAN_BFLOAT16);
        bytes.assign(slots * 2 * kv_heads * d, 1);
        scales.assign(slots * 2 * kv_heads, NAN_BFLOAT16);
    }
    int64_t slot(long sequence, long position) const {
        return int64_t(tables[sequence * width + position / block_size]) * block_size + position % block_size;
    }
    void fill() {
        for (size_t sequence = 0; sequence < lens.size(); ++sequence)
            for (long position = 0; position < lens[sequence]; ++position)
                for (long vector = 0; vector < 2 * kv_heads; ++vector) {
                    const long at = slot(long(sequence), position) * 2 * kv_heads + vector;
                    scales[at] = narrow(0.01f);
                    for (long i = 0; i < d; ++i) {
                        bytes[at * d + i] = int8_t(draw(-127, 127));
                        halves[at * d + i] = narrow(draw_floats(1)[0]);
                    }
                }
    }
    Floats numbers(bool quantized) const {
        if (!quantized) return widen(halves);
        Floats wide;
        for (size_t i = 0; i < bytes.size(); ++i) wide.push_back(bytes[i] * widen(scales[i / d]));
        return wide;
    }
};

static void rotate(
    Floats& qkv, const Floats* query_weight, const Floats* key_weight, const Floats& cos, const Floats& sin, long row,
    long heads, long kv_heads, long d
) {
    for (long head = 0; head < heads + kv_heads; ++head) {
        float* at = &qkv[(row * (heads + 2 * kv_heads) + head) * d];
        const Floats* weight = head < heads ? query_weight : key_weight;
        const Floats before = weight ? normed(at, *weight, 1e-6f) : Floats(at, at + d);
        for (long i = 0; i < d; ++i) at[i] = before[i] * cos[row * d + i] + before[(i + d / 2) % d] * sin[row * d + i];
    }
}

static void check_rotation(long rows, long heads, long kv_heads, long d, bool norms, bool quantized) {
    std::printf("rotate_and_write_%s: %ld rows, %ld/%ld heads of %ld, norms %d\n", quantized ? "int8" : "bf16", rows,
        heads, kv_heads, d, norms);
    PagedCache cache({int32_t(rows + 1)}, kv_heads, d);
    std::vector<int64_t> slots;
    for (long row = 0; row < rows; ++row) slots.push_back(cache.slot(0, row));
    const Floats query_weight = draw_floats(d), key_weight = draw_floats(d);
    const Floats cos = draw_floats(rows * d), sin = draw_floats(rows * d);
    Floats found = draw_floats(rows * (heads + 2 * kv_heads) * d), expected = found;
    const float *query_norm = norms ? query_weight.data() : nullptr, *key_norm = norms ? key_weight.data() : nullptr;
    if (quantized)
        rotate_and_write_int8(found.data(), query_norm, key_norm, cos.data(), sin.data(), slots.data(),
            cache.bytes.data(), cache.scales.data(), rows, heads, kv_heads, d, 1e-6f);
    else
        rotate_and_write_bf16(found.data(), query_norm, key_norm, cos.data(), sin.data(), slots.data(),
            cache.halves.data(), nullptr, rows, heads, kv_heads, d, 1e-6f);
    Floats written = nothing(cache.slots * 2 * kv_heads * d);
    const long vectors = 2 * kv_heads * d;
    for (long row = 0; row < rows; ++row) {
        rotate(expected, norms ? &query_weight : nullptr, norms ? &key_weight : nullptr, cos, sin, row, heads, kv_heads, d);
        std::copy_n(&expected[(row * (heads + 2 * kv_heads) + heads) * d], vectors, &written[slots[row] * vectors]);
    }
    expect(found, expected, 1e-4);
    expect(cache.numbers(quantized), written, 0.02);
}

static void check_rotations() {
    for (long rows : {1, 3, 16, 40})
        for (bool quantized : {false, true}) {
            check_rotation(rows, 6, 2, 16, false, quantized);
            check_rotation(rows, 3, 3, 6, true, quantized);
        }
}

// ---------------------------------------------------------------------- attention

// [d], of a query that sees the keys at some positions
static Floats attended(
    const float* query, const PagedCache& cache, const Floats& numbers, long sequence, const std::vector<long>& positions,
    long kv_head, float scale
) {
    double total = 0;
    std::vector<double> sums(cache.d);
    for (long position : positions) {
        const float* key = &numbers[(cache.slot(sequence, position) * 2 * cache.kv_heads + kv_head) * cache.d];
        const float* value = key + cache.kv_heads * cache.d;
        double score = 0;
        for (long i = 0; i < cache.d; ++i) score += double(query[i]) * key[i];
        const double weight = std::exp(score * scale);
        total += weight;
        for (long i = 0; i < cache.d; ++i) sums[i] += weight * value[i];
    }
    Floats output;
    for (double sum : sums) output.push_back(float(sum / total));
    return output;
}

static void check_decodes(long heads, long kv_heads, long d, long window, long sinks, bool quantized) {
    std::printf("attend_decodes_%s: %ld/%ld heads of %ld, window %ld, sinks %ld\n", quantized ? "int8" : "bf16", heads,
        kv_heads, d, window, sinks);
    PagedCache cache({1, 2, 15, 64, 65, 130}, kv_heads, d);
    cache.fill();
    const long n = long(cache.lens.size()), stride = (heads + 2 * kv_heads) * d;
    const Floats query = draw_floats((n - 1) * stride + heads * d), numbers = cache.numbers(quantized);
    Floats found = nothing(n * heads * d), expected;
    if (quantized)
        attend_decodes_int8(query.data(), cache.bytes.data(), cache.scales.data(), cache.tables.data(),
            cache.lens.data(), found.data(), n, stride, heads, kv_heads, d, cache.block_size, cache.width, window, sinks,
            0.3f);
    else
        attend_decodes_bf16(query.data(), cache.halves.data(), nullptr, cache.tables.data(), cache.lens.data(),
            found.data(), n, stride, heads, kv_heads, d, cache.block_size, cache.width, window, sinks, 0.3f);
    for (long b = 0; b < n; ++b)
        for (long head = 0; head < heads; ++head) {
            std::vector<long> seen;
            for (long position = 0; position < cache.lens[b]; ++position)
                if (!window || position >= cache.lens[b] - window || position < sinks) seen.push_back(position);
            const long kv_head = head / (heads / kv_heads);
            for (float each : attended(&query[b * stride + head * d], cache, numbers, b, seen, kv_head, 0.3f))
                expected.push_back(each);
        }
    expect(found, expected, 1e-3);
}

static void check_prefill(long n, long num_keys, long heads, long kv_heads, long d) {
    std::printf("attend_prefill: %ld tokens of %ld, %ld/%ld heads of %ld\n", n, num_keys, heads, kv_heads, d);
    PagedCache cache({int32_t(num_keys)}, kv_heads, d);
    cache.fill();
    const long stride = (heads + 2 * kv_heads) * d;
    const Floats query = draw_floats((n - 1) * stride + heads * d), numbers = cache.numbers(false);
    Floats found = nothing(n * heads * d), expected;
    attend_prefill(query.data(), cache.halves.data(), cache.tables.data(), found.data(), n, num_keys, stride, heads,
        kv_heads, d, cache.block_size, 0.3f);
    for (long token = 0; token < n; ++token)
        for (long head = 0; head < heads; ++head) {
            std::vector<long> seen;
            for (long position = 0; position <= num_keys - n + token; ++position) seen.push_back(position);
            const long kv_head = head / (heads / kv_heads);
            for (float each : attended(&query[token * stride + head * d], cache, numbers, 0, seen, kv_head, 0.3f))
                expected.push_back(each);
        }
    expect(found, expected, 0.02);  // queries, and weights of the values, may be rounded to bfloat16
}

static void check_attention() {
    for (bool quantized : {false, true}) {
        check_decodes(6, 2, 16, 0, 0, quantized);
        check_decodes(5, 1, 48, 5, 2, quantized);
        check_decodes(16, 1, 256, 64, 0, quantized);
    }
    const long spans[][2] = {{1, 1}, {2, 30}, {70, 70}, {33, 200}};
    for (auto [n, num_keys] : spans)
        for (long d : {16, 32, 64}) check_prefill(n, num_keys, 6, 2, d);
    check_prefill(5, 9, 2, 2, 256);
}

// ---------------------------------------------------------------------- whole layers

// The weights of a layer, with all that a layer can have.
struct LayerWeights {
    Weights qkv, o, gate_up, down;
    Floats norms, bias;

    LayerWeights(long bits, long hidden, long inner, long heads, long kv_heads, long d)
        : qkv(hidden, (heads + 2 * kv_heads) * d), o(heads * d, hidden), gate_up(hidden, 2 * inner), down(inner, hidden),
          norms(draw_floats(2 * hidden + 2 * d)), bias(draw_floats(qkv.out)) {
        for (Weights* each : {&qkv, &o, &gate_up, &down}) {
            if (bits == 16) each->in_bfloat16();
            if (bits == 8) each->in_int8();
            if (bits == 4) each->in_int4();
        }
    }
    NativeLayer layer(long dots) const {
        const float *first = norms.data(), *second = first + o.out, *query = second + o.out;
        const float* key = query + (norms.size() - 2 * o.out) / 2;
        return {first, second, query, key, qkv.matrix(bias.data(), dots), o.matrix(nullptr, dots),
            gate_up.matrix(nullptr, dots), down.matrix(nullptr, dots)};
    }
};

// One layer of a step, function by function.
static void run_layer(const NativeLayer& layer, const NativeCache& cache, const NativeStep& s, Floats& x, Floats& delta) {
    const long stride = (s.heads + 2 * s.kv_heads) * s.d;
    Floats entering = nothing(x.size()), attended = nothing(s.rows * s.heads * s.d), inner = nothing(s.rows * s.inner);
    add_rms_norm(x.data(), delta.data(), layer.input_norm, x.data(), entering.data(), s.rows, s.hidden, s.eps);
    Floats qkv = multiply(entering, layer.qkv, s.rows);
    for (size_t i = 0; i < qkv.size(); ++i) qkv[i] += layer.qkv.bias[i % stride];
    if (cache.scales) {
        int8_t* numbers = (int8_t*)cache.numbers;
        rotate_and_write_int8(qkv.data(), layer.query_norm, layer.key_norm, s.cos, s.sin, s.slots, numbers, cache.scales,
            s.rows, s.heads, s.kv_heads, s.d, s.eps);
        attend_decodes_int8(qkv.data(), numbers, cache.scales, s.tables, s.lens, attended.data(), s.rows, stride, s.heads,
            s.kv_heads, s.d, s.block_size, s.table_width, s.window, s.sinks, s.scale);
    } else {
        uint16_t* numbers = (uint16_t*)cache.numbers;
        rotate_and_write_bf16(qkv.data(), layer.query_norm, layer.key_norm, s.cos, s.sin, s.slots, numbers, nullptr,
            s.rows, s.heads, s.kv_heads, s.d, s.eps);
        attend_decodes_bf16(qkv.data(), numbers, nullptr, s.tables, s.lens, attended.data(), s.rows, stride, s.heads,
            s.kv_heads, s.d, s.block_size, s.table_width, s.window, s.sinks, s.scale);
    }
    delta = multiply(attended, layer.o, s.rows);
    add_rms_norm(x.data(), delta.data(), layer.post_attention_norm, x.data(), entering.data(), s.rows, s.hidden, s.eps);
    const NativeMatrix& w = layer.gate_up;
    const bool fused = w.dots && w.bits == 16;
    if (!fused || !linear_silu_mul(entering.data(), (const uint16_t*)w.numbers, inner.data(), s.rows, s.hidden, s.inner))
        silu_mul(multiply(entering, w, s.rows).data(), inner.data(), s.rows, s.inner);
    delta = multiply(inner, layer.down, s.rows);
}

static void check_layers(long rows, long bits, long dots, bool quantized) {
    std::printf("decode_layers: %ld rows, %ld bits, dots %ld, cache %s\n", rows, bits, dots, quantized ? "int8" : "bf16");
    constexpr long HIDDEN = 64, INNER = 96, HEADS = 4, KV_HEADS = 2, D = 16;
    PagedCache cache(std::vector<int32_t>(rows, 7), KV_HEADS, D);
    cache.fill();
    PagedCache copy = cache;
    std::vector<int64_t> slots;
    for (long row = 0; row < rows; ++row) slots.push_back(cache.slot(row, 6));
    const Floats cos = draw_floats(rows * D), sin = draw_floats(rows * D);
    const NativeStep step = {rows, HIDDEN, INNER, HEADS, KV_HEADS, D, cache.block_size, cache.width, 0, 0, 1e-5f, 0.25f,
        cos.data(), sin.data(), slots.data(), cache.tables.data(), cache.lens.data()};
    auto native = [&](PagedCache& of) {
        return quantized ? NativeCache{of.bytes.data(), of.scales.data()} : NativeCache{of.halves.data(), nullptr};
    };
    const LayerWeights weights(bits, HIDDEN, INNER, HEADS, KV_HEADS, D);
    const NativeLayer layers[] = {weights.layer(dots), weights.layer(dots)};
    const NativeCache caches[] = {native(cache), native(cache)};
    Floats x = draw_floats(rows * HIDDEN), delta = draw_floats(rows * HIDDEN), expected_x = x, expected_delta = delta;
    decode_layers(layers, caches, 2, &step, x.data(), delta.data());
    for (const NativeLayer& layer : layers) run_layer(layer, native(copy), step, expected_x, expected_delta);
    expect(x, expected_x, 1e-6);
    expect(delta, expected_delta, 1e-6);
    expect(cache.numbers(quantized), copy.numbers(quantized), 1e-6);
}

int main(int num_arguments, char** arguments) {
    const rlimit none = {0, 0};
    setrlimit(RLIMIT_CORE, &none);  // a crash is reported, and needs no file of its own
    if (num_arguments > 1) {
        rlimit cpu;
        getrlimit(RLIMIT_CPU, &cpu);
        cpu.rlim_cur = std::atol(arguments[1]);
        setrlimit(RLIMIT_CPU, &cpu);
    }
    std::setvbuf(stdout, nullptr, _IOLBF, 1 << 12);
    std::set_new_handler([] {  // else it would abort, as from a fault
        std::printf("no memory\n");
        std::exit(NO_MEMORY);
    });
    check_products();
    check_silu();
    check_norm();
    check_rotations();
    check_attention();
    for (long rows : {1, 3, 17})
        for (long bits : {16, 8, 4})
            for (long dots = 0; dots <= has_dots(); ++dots)
                for (bool quantized : {false, true}) check_layers(rows, bits, dots, quantized);
    std::printf("all right\n");
}
