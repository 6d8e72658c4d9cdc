// y = x W^T. For a few rows of x, as in a decode step, at the speed of reading W; for many, near what the CPU can add up.
//
// W is bfloat16, as in the checkpoint; or int8 or int4, widened in registers: what counts is the bytes that come
// from memory. Sums are float32.
//
// W lies in bands of 16 outputs, and in a band the weights of one input for all 16 stand side by side (see
// minillm/kernels/cpu/bands.py). One vector of weights times one number of x is then a part of 16 sums: no sum has to be
// added up across a vector, and memory is read in the order in which it lies (Goto and van de Geijn 2008).

#include "vectors.h"

#include <algorithm>
#include <omp.h>

// Each kind of W hands out a part: STEP neighbouring inputs of a band; and of that, the weights of one input. BANDS:
// with so many 8 rows of x are multiplied at once; as many as leave sums and weights in registers.

struct BFloat16 {
    const uint16_t* numbers;  // [bands, in / 2, 16, 2]
    long in;
    static constexpr int STEP = 2, BANDS = 3;
    typedef Words Part;

    Part part(long band, long k) const {
        Part pairs;
        std::memcpy(&pairs, numbers + (band * (in + in % 2) + k) * LANES, sizeof pairs);
        return pairs;
    }
    static Floats weights(const Part& pairs, int step) {
        return as_floats(step == 0 ? pairs << 16 : pairs & 0xffff0000);
    }
    Floats finish(Floats sums, long) const { return sums; }
};

struct Int8 {
    const int8_t* numbers;  // [bands, in, 16]
    const float* scales;    // [bands, 16]
    long in;
    static constexpr int STEP = 1, BANDS = 3;
    typedef const int8_t* Part;

    Part part(long band, long k) const { return numbers + (band * in + k) * LANES; }
    static Floats weights(const Part& part, int) { return load(part); }
    Floats finish(Floats sums, long band) const { return sums * load(scales + band * LANES); }
};

struct Int4 {
    const uint32_t* numbers;  // [bands, in / 8, 16]: eight neighbouring inputs in a word, the first one lowest
    const uint16_t* scales;   // [bands, in / group, 2, 16] bfloat16: step and lowest value of each group
    long in, group;
    static constexpr int STEP = 8, BANDS = 2;
    struct Part {
        Words words;
        Floats scale, low;
    };

    Part part(long band, long k) const {
        Part part;
        std::memcpy(&part.words, numbers + (band * in + k) / STEP * LANES, sizeof part.words);
        const uint16_t* pair = scales + (band * in + k) / group * 2 * LANES;
        part.scale = load(pair) * 16.0f;
        part.low = load(pair + LANES) - part.scale;
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

// ROWS rows of x with BANDS bands of W: each number that is loaded is used several times while it is in a register.
template <int ROWS, int BANDS, typename Matrix>
static inline void tile(const float* x, const Matrix& w, long first, float* y, long out) {
    constexpr int STEP = Matrix::STEP;
    const long in = w.in;
    Floats sums[ROWS][BANDS] = {};
    auto add = [&](long k, int steps) {
        typename Matrix::Part parts[BANDS];
        for (int band = 0; band < BANDS; ++band) parts[band] = w.part(first + band, k);
        for (int step = 0; step < steps; ++step) {
            Floats weights[BANDS];
            for (int band = 0; band < BANDS; ++band) weights[band] = w.weights(parts[band], step);
            for (int row = 0; row < ROWS; ++row)
                for (int band = 0; band < BANDS; ++band) sums[row][band] += weights[band] * x[row * in + k + step];
        }
    };
    long k = 0;
    for (; k + STEP <= in; k += STEP) add(k, STEP);
    if (k < in) add(k, int(in - k));
    for (int row = 0; row < ROWS; ++row)
        for (int band = 0; band < BANDS; ++band) {
            const long start = (first + band) * LANES;
            Floats finished = w.finish(sums[row][band], first + band);
            std::memcpy(y + row * out + start, &finished, sizeof(float) * std::min<long>(LANES, out - start));
        }
}

// A tile of its own for every number of rows, so that no row is computed in vain.
template <int BANDS, typename Matrix>
static inline void few_rows(const float* x, const Matrix& w, long band, float* y, long rows, long out) {
    switch (rows) {
        case 1: return tile<1, BANDS>(x, w, band, y, out);
        case 2: return tile<2, BANDS>(x, w, band, y, out);
        case 3: return tile<3, BANDS>(x, w, band, y, out);
        case 4: return tile<4, BANDS>(x, w, band, y, out);
    }
    if constexpr (BANDS <= Matrix::BANDS) {
        switch (rows) {
            case 5: return tile<5, BANDS>(x, w, band, y, out);
            case 6: return tile<6, BANDS>(x, w, band, y, out);
            case 7: return tile<7, BANDS>(x, w, band, y, out);
            case 8: return tile<8, BANDS>(x, w, band, y, out);
        }
    }
}

// All rows with the bands from `band` up to `end`, BANDS at a time, which stay in the cache meanwhile.
template <int BANDS, typename Matrix>
static void share(const float* x, const Matrix& w, float* y, long rows, long out, long band, long end) {
    constexpr long MOST = 8;
    for (; band + BANDS <= end; band += BANDS)
        for (long row = 0; row < rows; row += MOST)
            few_rows<BANDS>(x + row * w.in, w, band, y + row * out, std::min(MOST, rows - row), out);
    if constexpr (BANDS > 1) share<(BANDS > Matrix::BANDS ? Matrix::BANDS : 1)>(x, w, y, rows, out, band, end);
}

// Threads share the bands. Few rows leave registers for more bands: more of memory is under way at once.
template <typename Matrix>
static void multiply(const float* x, const Matrix& w, float* y, long rows, long out) {
    const long bands = (out + LANES - 1) / LANES;
    #pragma omp parallel
    {
        const long threads = omp_get_num_threads(), thread = omp_get_thread_num();
        const long start = bands * thread / threads, end = bands * (thread + 1) / threads;
        if (rows <= 4) share<2 * Matrix::BANDS>(x, w, y, rows, out, start, end);
        else share<Matrix::BANDS>(x, w, y, rows, out, start, end);
    }
}

// x [rows, in], y [rows, out], contiguous; W in bands.
extern "C" void linear(const float* x, const uint16_t* w, float* y, long rows, long in, long out) {
    multiply(x, BFloat16{w, in}, y, rows, out);
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
