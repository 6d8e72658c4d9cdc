// y = x W^T. For a few rows of x, as in a decode step, at the speed of reading W; for many, near what the CPU can add up.
//
// W is bfloat16, as in the checkpoint; or int8 or int4, widened in registers: what counts is the bytes that come
// from memory. Sums are float32. x is float32, too, or rounded to bfloat16 where the CPU multiplies pairs of those.

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

// Calls `with` once in each thread, with the strips that are its own.
template <typename Call>
static void in_threads(long out, Call with) {
    const long strips = (out + LANES - 1) / LANES;
    #pragma omp parallel
    {
        const long threads = omp_get_num_threads(), thread = omp_get_thread_num();
        with(strips * thread / threads, strips * (thread + 1) / threads);
    }
}

// Few rows leave registers for more strips: more of memory is under way at once.
template <typename Matrix>
static void multiply(const typename Matrix::Number* x, const Matrix& w, float* y, long rows, long out) {
    in_threads(out, [&](long start, long end) {
        if (rows <= Matrix::FEW) share<Matrix::FEW, Matrix::FEW_STRIPS>(x, w, y, rows, out, start, end);
        else share<Matrix::ROWS, Matrix::STRIPS>(x, w, y, rows, out, start, end);
    });
}

#if HAS_DOTS

constexpr long MANY = 16;  // rows from which on threads share the rounding

// x [rows, in] rounded, [rows, pairs]: an odd `in` is filled up with zeros.
static std::unique_ptr<uint32_t[]> paired(const float* x, long rows, long in) {
    const long pairs = in / 2 + in % 2;
    std::unique_ptr<uint32_t[]> rounded(new uint32_t[rows * pairs]);
    #pragma omp parallel for schedule(static) if (rows >= MANY)
    for (long row = 0; row < rows; ++row) {
        uint16_t* to = (uint16_t*)(rounded.get() + row * pairs);
        const float* from = x + row * in;
        long i = 0;
        for (; i + LANES <= in; i += LANES) {
            Halves halves = narrow(load(from + i));
            std::memcpy(to + i, &halves, sizeof halves);
        }
        for (; i < in; ++i) to[i] = narrow(from[i]);
        if (in % 2) to[in] = 0;
    }
    return rounded;
}

constexpr long ROWS_AT_ONCE = 256;  // of x: with all weights of a thread, while they lie in its L2 cache

// Any number of rows; `in` a multiple of DEPTH. `with` multiplies tiles.
template <typename With>
static void multiply_in_units(
    const float* x, const uint16_t* w, float* y, long rows, long in, long out, With with
) {
    if (rows == 0) return;  // in a step of which nothing is sampled; no register holds 0 rows
    const Aligned<uint16_t> tiles = aligned<uint16_t>(whole_tiles(rows) * in);
    const long filled = rows < SIDE ? rows : whole_tiles(rows), bands = (out + BAND - 1) / BAND;
    #pragma omp parallel for schedule(static) if (rows >= MANY)
    for (long row = 0; row < filled; ++row)
        for (long i = 0; i < in; i += LANES) {
            const Halves halves = row < rows ? narrow(load(x + row * in + i)) : Halves{};
            std::memcpy(&tiles[in_tiles(row, i, in)], &halves, sizeof halves);
        }
    #pragma omp parallel
    {
        const UseUnits units(std::min(rows, SIDE));
        const long threads = omp_get_num_threads(), thread = omp_get_thread_num();
        for (long row = 0; row < rows; row += ROWS_AT_ONCE)
            with(
                tiles.get(), w, y, row, std::min(row + ROWS_AT_ONCE, rows), rows, bands * thread / threads,
                bands * (thread + 1) / threads, in, out
            );
    }
}

#endif

// x [rows, in], y [rows, out], contiguous; W in bands.
extern "C" void linear(const float* x, const uint16_t* w, float* y, long rows, long in, long out) {
    multiply(x, BFloat16{w, in}, y, rows, out);
}

extern "C" long has_dots() { return HAS_DOTS; }

// The same with x rounded to bfloat16, for any number of rows in the same way. Only where `has_dots`.
extern "C" void linear_dots(const float* x, const uint16_t* w, float* y, long rows, long in, long out) {
#if HAS_DOTS
    if (matrix_units() && in % DEPTH == 0) multiply_in_units(x, w, y, rows, in, out, multiply_tiles);
    else multiply(paired(x, rows, in).get(), Pairs{w, in / 2 + in % 2}, y, rows, out);
#endif
}

// y [rows, inner] = silu(gate) * up, where W's outputs are gates and ups, `inner` each. False, and nothing done, without
// matrix units: elsewhere the product takes so long that to write it down and read it again does not count.
extern "C" bool linear_silu_mul(const float* x, const uint16_t* w, float* y, long rows, long in, long inner) {
#if HAS_DOTS
    if (!matrix_units() || in % DEPTH || inner % BAND) return false;
    multiply_in_units(x, w, y, rows, in, inner, multiply_tiles_silu);
    return true;
#else
    return false;
#endif
}

extern "C" void linear_int8(
    const float* x, const int8_t* w, const float* scales, float* y, long rows, long in, long out
) {
    multiply(x, Int8{w, scales, in}, y, rows, out);
}

extern "C" void linear_int4(
    const float* x, const uint32_t* w, const uint16_t* scales, float* y, long rows, long in, long out, long group
) {
    multiply(x, Int4{w, scales, in, group}, y, rows, out);
}
