// Tiles: a few rows of x times a few strips of W, as much as there are registers for. Matrix products and the attention of
// prompts are made of them.
//
// W lies in bands of 16 outputs, and in a band the weights of one input for all 16 stand side by side (see
// minillm/kernels/cpu/bands.py). A strip is as much of a band as fills a vector: all of it, a half or a quarter. One
// vector of weights times one number of x is then a part of so many sums: no sum has to be added up across a vector, and
// memory is read in the order in which it lies (Goto and van de Geijn 2008).

#pragma once

#include "two_rows.h"
#include "vectors.h"

#include <algorithm>
#include <type_traits>

constexpr long BAND = 16, STRIPS_OF_BAND = BAND / LANES;
constexpr bool MANY_REGISTERS = REGISTERS == 32;

// Where the weights of a strip for input k begin, in a matrix of `in` inputs.
static inline long place(long strip, long in, long k) {
    return (strip * LANES / BAND * in + k) * BAND + strip * LANES % BAND;
}

// Each kind of W hands out a part: STEP neighbouring inputs of a strip; and of that, the weights of one input. ROWS rows
// of x are multiplied with STRIPS strips at once: as many as leave sums and weights in registers. FEW rows leave some for
// FEW_STRIPS.

struct Float32 {  // what x is
    typedef float Number;
    typedef Floats Weights;
    static constexpr long INPUTS = 1;  // in a number
    static constexpr int ROWS = LANES == BAND ? 8 : 6, FEW = LANES == BAND ? 4 : 2;  // AVX-512 takes x from memory
    static Floats add(Floats sums, Floats weights, float x) { return sums + weights * x; }
};

struct BFloat16 : Float32 {
    const uint16_t* numbers;  // [bands, in / 2, 16, 2]
    long in;
    static constexpr int STEP = 2, STRIPS = MANY_REGISTERS ? 3 : 2, FEW_STRIPS = 2 * STRIPS;
    typedef Words Part;

    BFloat16(const uint16_t* numbers, long in) : numbers(numbers), in(in) {}
    Part part(long strip, long k) const {
        Part pairs;
        std::memcpy(&pairs, numbers + 2 * place(strip, in / 2 + in % 2, k / 2), sizeof pairs);
        return pairs;
    }
    static Floats weights(const Part& pairs, int step) {
        return as_floats(step == 0 ? pairs << 16 : pairs & 0xffff0000);
    }
    Floats finish(Floats sums, long) const { return sums; }
};

#if HAS_DOTS

// x in pairs of neighbouring inputs, as bfloat16; so lie the weights of BFloat16.
struct Pairs {
    typedef uint32_t Number;
    typedef Words Weights, Part;
    static constexpr long INPUTS = 2;
    const uint16_t* numbers;
    long in;         // pairs
    long first = 0;  // strip with which `numbers` begin: some of W's bands are enough
    static constexpr int STEP = 1, FEW = 1, FEW_STRIPS = 12;
#if HAS_TWO_ROWS
    static constexpr int ROWS = 4, STRIPS = 4;
#else
    static constexpr int ROWS = 4, STRIPS = 6;
#endif

    Part part(long strip, long k) const {
        Part pairs;
        std::memcpy(&pairs, numbers + 2 * place(strip - first, in, k), sizeof pairs);
        return pairs;
    }
    // Brings pair k of a strip into the second-level cache; after the strip's last pair come those of `next`.
    void fetch(long strip, long k, long next) const {
        const long at = k < in ? place(strip - first, in, k) : place(next - first, in, k - in);
        __builtin_prefetch(numbers + 2 * at, 0, 2);
    }
    static Words weights(const Part& pairs, int) { return pairs; }
    static Floats add(Floats sums, Words pairs, uint32_t pair) { return add_dots(sums, pairs, pair); }
    Floats finish(Floats sums, long) const { return sums; }
};

#endif

constexpr long AHEAD = 768;  // pairs of inputs: 300 KB of 6 strips, which fit a second-level cache beside those in use

// ROWS rows of x with STRIPS strips of W: each number that is loaded is used several times while it is in a register.
template <int ROWS, int STRIPS, typename Matrix>
static inline void tile(const typename Matrix::Number* x, const Matrix& w, long first, float* y, long out) {
    constexpr int STEP = Matrix::STEP;
    const long in = w.in, ahead = std::min(in, AHEAD);
    Floats sums[ROWS][STRIPS] = {};
    auto add = [&](long k, int steps) {
        typename Matrix::Part parts[STRIPS];
        for (int strip = 0; strip < STRIPS; ++strip) parts[strip] = w.part(first + strip, k);
        if constexpr (Matrix::INPUTS == 2 && ROWS > 1)  // else memory would idle while the later rows are multiplied
            for (int strip = 0; strip < STRIPS; ++strip) w.fetch(first + strip, k + ahead, first + strip + STRIPS);
        for (int step = 0; step < steps; ++step) {
            typename Matrix::Weights weights[STRIPS];
            for (int strip = 0; strip < STRIPS; ++strip) weights[strip] = w.weights(parts[strip], step);
            for (int row = 0; row < ROWS; ++row)
                for (int strip = 0; strip < STRIPS; ++strip)
                    sums[row][strip] = w.add(sums[row][strip], weights[strip], x[row * in + k + step]);
        }
    };
    long k = 0;
#if HAS_TWO_ROWS
    if constexpr (ROWS > 1 && std::is_same_v<Matrix, Pairs>) k = multiply_two_rows(sums, x, w, first);
    else
#endif
    for (; k + STEP <= in; k += STEP) add(k, STEP);
    if (k < in) add(k, int(in - k));
    for (int row = 0; row < ROWS; ++row)
        for (int strip = 0; strip < STRIPS; ++strip) {
            const long start = (first + strip) * LANES, left = out - start;
            Floats finished = w.finish(sums[row][strip], first + strip);
            if (left >= LANES) store(y + row * out + start, finished);  // apart: as a length that varies, it's a call
            else std::memcpy(y + row * out + start, &finished, sizeof(float) * left);
        }
}

// A tile of its own for every number of rows, so that no row is computed in vain.
template <int ROWS, int STRIPS, typename Matrix>
static inline void up_to(
    const typename Matrix::Number* x, const Matrix& w, long strip, float* y, long rows, long out
) {
    if (rows >= ROWS) return tile<ROWS, STRIPS>(x, w, strip, y, out);
    if constexpr (ROWS > 1) up_to<ROWS - 1, STRIPS>(x, w, strip, y, rows, out);
}

// All rows with the strips from `strip` up to `end`, STRIPS at a time, which stay in the cache meanwhile.
template <int ROWS, int STRIPS, typename Matrix>
static void share(
    const typename Matrix::Number* x, const Matrix& w, float* y, long rows, long out, long strip, long end
) {
    for (; strip + STRIPS <= end; strip += STRIPS)
        for (long row = 0; row < rows; row += ROWS)
            up_to<ROWS, STRIPS>(x + row * w.in, w, strip, y + row * out, rows - row, out);
    if constexpr (STRIPS > 1)
        share<ROWS, (STRIPS > Matrix::STRIPS ? Matrix::STRIPS : 1)>(x, w, y, rows, out, strip, end);
}
