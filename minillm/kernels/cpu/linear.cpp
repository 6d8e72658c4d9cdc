// y = x W^T. For a few rows of x, as in a decode step, at the speed of reading W; for many, near what the CPU can add up.
//
// W is bfloat16, as in the checkpoint; or int8 or int4, widened on the way: what counts is the bytes that come from
// memory. Sums are float32. x is float32, too, or with `dots` rounded to bfloat16, where the CPU multiplies pairs of those.

#include "kernels.h"
#include "matrix_units.h"
#include "tiles.h"

#include <memory>
#include <omp.h>

struct Int8 : Float32 {
    const int8_t* numbers;  // [bands, in, 16]
    const float* scales;    // [bands, 16]
    long in;
    static constexpr int STEP = 1, STRIPS = MANY_REGISTERS ? 3 : 2, FEW_STRIPS = 2 * STRIPS;
    typedef const int8_t* Part;

    Int8(const int8_t* numbers, const float* scales, long in) : numbers(numbers), scales(scales), in(in) {}
    Part part(long strip, long k) const { return numbers + place(strip, in, k); }
    static Floats weights(const Part& part, int) { return load(part); }
    Floats finish(Floats sums, long strip) const { return sums * load(scales + strip * LANES); }
};

struct Int4 : Float32 {
    const uint32_t* numbers;  // [bands, in / 8, 16]: eight neighbouring inputs in a word, the first one lowest
    const uint16_t* scales;   // [bands, in / group, 2, 16] bfloat16: step and lowest value of each group
    long in, group, groups = in / group;
    static constexpr int STEP = 8, STRIPS = MANY_REGISTERS ? 2 : 1, FEW_STRIPS = 2 * STRIPS;
    struct Part {
        Words words;
        Floats scale, low;
    };

    Int4(const uint32_t* numbers, const uint16_t* scales, long in, long group)
        : numbers(numbers), scales(scales), in(in), group(group) {}
    Part part(long strip, long k) const {
        Part part;
        std::memcpy(&part.words, numbers + place(strip, in / STEP, k / STEP), sizeof part.words);
        const uint16_t* pair = scales + place(strip, 2 * groups, 2 * (k / group));
        part.scale = load(pair) * 16.0f;
        part.low = load(pair + BAND) - part.scale;
        return part;
    }
    static Floats weights(const Part& part, int step) {
        // 1 + q / 16 is a float whose mantissa begins with q: cheaper than to convert a whole number.
        const int shift = 19 - 4 * step;
        Words bits = shift >= 0 ? part.words << shift : part.words >> -shift;
        return as_floats((bits & 0x780000) | 0x3f800000) * part.scale + part.low;
    }
    Floats finish(Floats sums, long) const { return sums; }
};

static long strips_of(long out) { return (out + LANES - 1) / LANES; }

// Calls `with` once in each thread, with those of the strips, or bands, that are its own.
template <typename Call>
static void in_threads(long count, Call with) {
    #pragma omp parallel
    {
        const long threads = omp_get_num_threads(), thread = omp_get_thread_num();
        with(count * thread / threads, count * (thread + 1) / threads);
    }
}

// Few rows leave registers for more strips: more of memory is under way at once.
template <typename Matrix>
static void multiply(const typename Matrix::Number* x, const Matrix& w, float* y, long rows, long out) {
    in_threads(strips_of(out), [&](long start, long end) {
        if (rows <= Matrix::FEW) share<Matrix::FEW, Matrix::FEW_STRIPS>(x, w, y, rows, out, start, end);
        else share<Matrix::ROWS, Matrix::STRIPS>(x, w, y, rows, out, start, end);
    });
}

#if HAS_DOTS

constexpr long MANY = 16;  // rows from which on threads share the rounding

static std::unique_ptr<float[]> rounded(const float* x, long size) {
    std::unique_ptr<float[]> numbers(new float[size]);
    long i = 0;
    for (; i + LANES <= size; i += LANES)
        store(&numbers[i], as_floats(__builtin_convertvector(narrow(load(x + i)), Words) << 16));
    for (; i < size; ++i) numbers[i] = widen(narrow(x[i]));
    return numbers;
}

// x [rows, in] rounded, [rows, pairs]: an odd `in` is filled up with zeros.
static std::unique_ptr<uint32_t[]> paired(const float* x, long rows, long in) {
    const long pairs = in / 2 + in % 2, vectors = in / LANES;
    std::unique_ptr<uint32_t[]> rounded(new uint32_t[rows * pairs]);
    #pragma omp parallel for schedule(static) if (rows >= MANY)
    for (long row = 0; row < rows; ++row) {
        uint32_t* to = rounded.get() + row * pairs;
        const float* from = x + row * in;
        for (long i = 0; i < vectors; ++i) {
            const Halves halves = narrow(load(from + i * LANES));
            std::memcpy(to + i * LANES / 2, &halves, sizeof halves);
        }
        for (long i = vectors * LANES; i < in; i += 2) {
            const uint32_t second = i + 1 < in ? narrow(from[i + 1]) : 0;
            to[i / 2] = narrow(from[i]) | second << 16;
        }
    }
    return rounded;
}

constexpr long ROWS_AT_ONCE = 256;  // of x: with all weights of a thread, while they lie in its L2 cache

// Any number of rows; `in` a multiple of DEPTH. `with` multiplies tiles, from one row up to another with a thread's bands.
template <typename With>
static void in_units(const float* x, long rows, long in, long out, With with) {
    if (rows == 0) return;  // in a step of which nothing is sampled; no register holds 0 rows
    const Aligned<uint16_t> tiles = aligned<uint16_t>(whole_tiles(rows) * in);
    const long filled = rows < SIDE ? rows : whole_tiles(rows), bands = (out + BAND - 1) / BAND;
    #pragma omp parallel for schedule(static) if (rows >= MANY)
    for (long row = 0; row < filled; ++row)
        for (long i = 0; i < in; i += LANES) {
            const Halves halves = row < rows ? narrow(load(x + row * in + i)) : Halves{};
            std::memcpy(&tiles[in_tiles(row, i, in)], &halves, sizeof halves);
        }
    in_threads(bands, [&](long band, long end) {
        const UseUnits units(std::min(rows, SIDE));
        for (long row = 0; row < rows; row += ROWS_AT_ONCE)
            with(tiles.get(), row, std::min(row + ROWS_AT_ONCE, rows), band, end);
    });
}

static bool fit_units(long in) { return matrix_units() && in % DEPTH == 0; }

static void multiply_dots(const float* x, const BFloat16& w, float* y, long rows, long out) {
    const long in = w.in;
    if (!fit_units(in)) return multiply(paired(x, rows, in).get(), Pairs{w.numbers, in / 2 + in % 2}, y, rows, out);
    in_units(x, rows, in, out, [&](const uint16_t* tiles, long row, long last, long band, long end) {
        multiply_tiles(tiles, w.numbers + band * BAND * in, y, row, last, rows, band, end, in, out);
    });
}

// 8 inputs of a strip, from input k on, as bfloat16 pairs. Those beyond `in` are zeros.
template <typename Matrix>
static inline void widen_eight(const Matrix& w, long strip, long k, uint32_t* to) {
    typename Matrix::Part part{};
    Floats weights[8];
    #pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
        if (i % w.STEP == 0 && k + i < w.in) part = w.part(strip, k + i);
        weights[i] = k + i < w.in ? w.weights(part, i % w.STEP) : Floats{};
    }
    for (int i = 0; i < 8 && k + i < w.in; i += 2) {
        const Words pairs = narrow(weights[i], weights[i + 1]);
        std::memcpy(to + i / 2 * BAND, &pairs, sizeof pairs);
    }
}

// Some strips of W as bfloat16, to where Pairs that begin with strip `first` have them. All at once, as more of memory is
// then under way.
template <typename Matrix>
static void widen(const Matrix& w, long first, long strip, long end, uint32_t* to) {
    const long pairs = w.in / 2 + w.in % 2;
    for (long k = 0; k < w.in; k += 8)
        for (long each = strip; each < end; ++each) widen_eight(w, each, k, to + place(each - first, pairs, k / 2));
}

// Sums become numbers of y.
template <typename Matrix>
static void finish(const Matrix& w, float* y, long row, long last, long strip, long end, long out) {
    for (; row < last; ++row)
        for (long each = strip; each < end; ++each) {
            float* sums = y + row * out + each * LANES;
            const long left = out - each * LANES;
            if (left >= LANES) {
                store(sums, w.finish(load(sums), each));
            } else {
                const Floats scale = w.finish(Floats{} + 1.0f, each);
                for (long i = 0; i < left; ++i) sums[i] *= scale[i];
            }
        }
}

constexpr long SEVERAL = 8;  // rows up to which it is faster to widen W to float32, in registers

// Fewer bits: W is widened a few strips at a time, which then lie in a cache, and multiplied like any other.
template <typename Matrix>
static void multiply_dots(const float* x, const Matrix& w, float* y, long rows, long out) {
    constexpr long AT_ONCE = Pairs::STRIPS;
    const long in = w.in, pairs = in / 2 + in % 2, band = BAND * pairs;
    if (rows <= SEVERAL) return multiply(rounded(x, rows * in).get(), w, y, rows, out);
    auto some_at_a_time = [&](long strip, long end, long row, long last, auto with) {
        const Aligned<uint32_t> some = aligned<uint32_t>((AT_ONCE * LANES / BAND + 2) * band);
        for (; strip < end; strip += AT_ONCE) {
            const long next = std::min(strip + AT_ONCE, end), first = strip - strip % STRIPS_OF_BAND;
            widen(w, first, strip, next, some.get());
            with(Pairs{(const uint16_t*)some.get(), pairs, first}, strip, next);
            finish(w, y, row, last, strip, next, out);
        }
    };
    if (fit_units(in)) {
        in_units(x, rows, in, out, [&](const uint16_t* tiles, long row, long last, long strip, long end) {
            some_at_a_time(strip, end, row, last, [&](const Pairs& some, long strip, long end) {
                multiply_tiles(tiles, some.numbers, y, row, last, rows, strip, end, in, out);
            });
        });
    } else {
        const auto rounded = paired(x, rows, in);
        in_threads(strips_of(out), [&](long strip, long end) {
            some_at_a_time(strip, end, 0, rows, [&](const Pairs& some, long strip, long end) {
                share<Pairs::ROWS, Pairs::STRIPS>(rounded.get(), some, y, rows, out, strip, end);
            });
        });
    }
}

#else

template <typename Matrix>
static void multiply_dots(const float* x, const Matrix& w, float* y, long rows, long out) {
    multiply(x, w, y, rows, out);
}

#endif

template <typename Matrix>
static void multiply(const float* x, const Matrix& w, float* y, long rows, long out, long dots) {
    if (dots) multiply_dots(x, w, y, rows, out);
    else multiply(x, w, y, rows, out);
}

extern "C" long has_dots() { return HAS_DOTS; }

extern "C" void linear(const float* x, const uint16_t* w, float* y, long rows, long in, long out, long dots) {
    multiply(x, BFloat16{w, in}, y, rows, out, dots);
}

extern "C" void linear_int8(
    const float* x, const int8_t* w, const float* scales, float* y, long rows, long in, long out, long dots
) {
    multiply(x, Int8{w, scales, in}, y, rows, out, dots);
}

extern "C" void linear_int4(
    const float* x, const uint32_t* w, const uint16_t* scales, float* y, long rows, long in, long out, long group,
    long dots
) {
    multiply(x, Int4{w, scales, in, group}, y, rows, out, dots);
}

#if HAS_DOTS

constexpr long SILU_ROWS = 64, SILU_BANDS = (Pairs::STRIPS + STRIPS_OF_BAND - 1) / STRIPS_OF_BAND;

// Gates and ups of a few bands and rows at a time: they stay in a cache, and only their product goes to memory.
static void multiply_pairs_silu(const uint32_t* x, const uint16_t* w, float* y, long rows, long pairs, long inner) {
    in_threads(inner / BAND, [&](long band, long end) {
        const Aligned<float> gates = aligned<float>(SILU_ROWS * SILU_BANDS * BAND);
        const Aligned<float> ups = aligned<float>(SILU_ROWS * SILU_BANDS * BAND);
        for (; band < end; band += SILU_BANDS) {
            const long bands = std::min(SILU_BANDS, end - band), width = bands * BAND, strips = bands * STRIPS_OF_BAND;
            const Pairs gate{w + band * BAND * 2 * pairs, pairs}, up{gate.numbers + inner * 2 * pairs, pairs};
            for (long row = 0; row < rows; row += SILU_ROWS) {
                const long some = std::min(SILU_ROWS, rows - row);
                share<Pairs::ROWS, Pairs::STRIPS>(x + row * pairs, gate, gates.get(), some, width, 0, strips);
                share<Pairs::ROWS, Pairs::STRIPS>(x + row * pairs, up, ups.get(), some, width, 0, strips);
                for (long r = 0; r < some; ++r)
                    for (long i = 0; i < width; i += LANES)
                        store(y + (row + r) * inner + band * BAND + i,
                              silu(load(&gates[r * width + i])) * load(&ups[r * width + i]));
            }
        }
    });
}

extern "C" bool linear_silu_mul(const float* x, const uint16_t* w, float* y, long rows, long in, long inner) {
    if (inner % BAND) return false;
    if (fit_units(in)) {
        in_units(x, rows, in, inner, [&](const uint16_t* tiles, long row, long last, long band, long end) {
            multiply_tiles_silu(tiles, w, y, row, last, rows, band, end, in, inner);
        });
        return true;
    }
    if (rows <= SILU_ROWS) return false;  // a few rows' gates and ups stay in a cache anyway
    multiply_pairs_silu(paired(x, rows, in).get(), w, y, rows, in / 2 + in % 2, inner);
    return true;
}
#else
extern "C" bool linear_silu_mul(const float*, const uint16_t*, float*, long, long, long) { return false; }
#endif
