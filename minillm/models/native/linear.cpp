// y = x W^T for a few rows of x: the matrix products of a decode step, at the speed of reading W.
//
// W is bfloat16, as in the checkpoint; or int8 or int4, widened in registers: what counts is the bytes that come
// from memory. Sums are float32.

#include "vectors.h"

// Each kind of matrix [out, in] hands out STEP neighbouring weights of an output as vectors.

struct BFloat16 {
    const uint16_t* numbers;
    long in;
    static constexpr int STEP = LANES;

    void load(Floats* to, long o, long k, long ahead) const {
        // The hardware does not look across the end of a row: fetch the next rows already.
        __builtin_prefetch(numbers + (o + ahead) * in + k);
        to[0] = ::load(numbers + o * in + k);
    }
    float at(long o, long k) const { return widen(numbers[o * in + k]); }
    float finish(float total, long) const { return total; }
};

struct Int8 {
    const int8_t* numbers;
    const float* scales;  // [out]
    long in;
    static constexpr int STEP = LANES;

    void load(Floats* to, long o, long k, long ahead) const {
        __builtin_prefetch(numbers + (o + ahead) * in + k);
        to[0] = ::load(numbers + o * in + k);
    }
    float at(long o, long k) const { return numbers[o * in + k]; }
    float finish(float total, long o) const { return total * scales[o]; }
};

struct Int4 {
    const uint8_t* numbers;    // [out, in / 2]: of every 32, the first 16 are the low halves of 16 bytes
    const uint16_t* scales;    // [out, in / group, 2] bfloat16: step and lowest value of a group
    long in, group;
    static constexpr int STEP = 2 * LANES;

    void load(Floats* to, long o, long k, long ahead) const {
        const uint8_t* from = numbers + (o * in + k) / 2;
        __builtin_prefetch(from + ahead * in / 2);
        const uint16_t* pair = scales + (o * in + k) / group * 2;
        Ints bytes = widen_bytes(from);
        float scale = widen(pair[0]), low = widen(pair[1]);
        to[0] = __builtin_convertvector(bytes & 15, Floats) * scale + low;
        to[1] = __builtin_convertvector(bytes >> 4, Floats) * scale + low;
    }
    float at(long, long) const { return 0; }  // `in` is a multiple of STEP
    float finish(float total, long) const { return total; }
};

// ROWS rows of x with OUTPUTS rows of W: each number loaded is used several times while it is in a register.
template <int ROWS, int OUTPUTS, typename Matrix>
static inline void tile(const float* x, const Matrix& w, long first, float* y, long out) {
    constexpr int PARTS = Matrix::STEP / LANES;
    const long in = w.in;
    Floats sums[ROWS][OUTPUTS] = {};
    long k = 0;
    for (; k + Matrix::STEP <= in; k += Matrix::STEP) {
        for (int o = 0; o < OUTPUTS; ++o) {
            Floats weights[PARTS];
            w.load(weights, first + o, k, OUTPUTS);
            for (int part = 0; part < PARTS; ++part)
                for (int row = 0; row < ROWS; ++row)
                    sums[row][o] += weights[part] * load(x + row * in + k + part * LANES);
        }
    }
    for (int row = 0; row < ROWS; ++row) {
        for (int o = 0; o < OUTPUTS; ++o) {
            float total = sum(sums[row][o]);
            for (long rest = k; rest < in; ++rest) total += w.at(first + o, rest) * x[row * in + rest];
            y[row * out + first + o] = w.finish(total, first + o);
        }
    }
}

// At most 8 rows of x with OUTPUTS rows of W. A tile of its own for every number of rows, so that each number of
// W is read and widened once; at most 16 sums, so that they stay in registers.
template <int OUTPUTS, typename Matrix>
static inline void outputs(const float* x, const Matrix& w, long o, float* y, long rows, long out) {
    switch (rows) {
        case 1: return tile<1, OUTPUTS>(x, w, o, y, out);
        case 2: return tile<2, OUTPUTS>(x, w, o, y, out);
        case 3: return tile<3, OUTPUTS>(x, w, o, y, out);
        case 4: return tile<4, OUTPUTS>(x, w, o, y, out);
    }
    if constexpr (OUTPUTS <= 2) {
        switch (rows) {
            case 5: return tile<5, OUTPUTS>(x, w, o, y, out);
            case 6: return tile<6, OUTPUTS>(x, w, o, y, out);
            case 7: return tile<7, OUTPUTS>(x, w, o, y, out);
            case 8: return tile<8, OUTPUTS>(x, w, o, y, out);
        }
    }
}

template <int OUTPUTS, typename Matrix>
static void share(const float* x, const Matrix& w, float* y, long rows, long out, long start, long end) {
    long o = start;
    for (; o + OUTPUTS <= end; o += OUTPUTS) outputs<OUTPUTS>(x, w, o, y, rows, out);
    for (; o < end; ++o) outputs<1>(x, w, o, y, rows, out);
}

// Threads share the outputs.
template <typename Matrix>
static void multiply(const float* x, const Matrix& w, float* y, long rows, long out) {
    constexpr long SHARE = 32, MOST_ROWS = 8;
    #pragma omp parallel for schedule(static)
    for (long start = 0; start < out; start += SHARE) {
        long end = start + SHARE < out ? start + SHARE : out;
        for (long row = 0; row < rows; row += MOST_ROWS) {
            long few = rows - row < MOST_ROWS ? rows - row : MOST_ROWS;
            if (few > 4) share<2>(x + row * w.in, w, y + row * out, few, out, start, end);
            else share<4>(x + row * w.in, w, y + row * out, few, out, start, end);
        }
    }
}

// Rows of W as float32 [out, in].
template <typename Matrix>
static void unpack(const Matrix& w, float* to, long out) {
    const long in = w.in;
    #pragma omp parallel for schedule(static)
    for (long o = 0; o < out; ++o) {
        float factor = w.finish(1.0f, o);
        long k = 0;
        for (; k + Matrix::STEP <= in; k += Matrix::STEP) {
            Floats weights[Matrix::STEP / LANES];
            w.load(weights, o, k, 1);
            for (int part = 0; part < Matrix::STEP / LANES; ++part)
                store(to + o * in + k + part * LANES, weights[part] * factor);
        }
        for (; k < in; ++k) to[o * in + k] = w.at(o, k) * factor;
    }
}

// x [rows, in], w [out, in], y [rows, out], all contiguous.
extern "C" void linear(const float* x, const uint16_t* w, float* y, long rows, long in, long out) {
    multiply(x, BFloat16{w, in}, y, rows, out);
}

extern "C" void linear_int8(
    const float* x, const int8_t* w, const float* scales, float* y, long rows, long in, long out
) {
    multiply(x, Int8{w, scales, in}, y, rows, out);
}

extern "C" void linear_int4(
    const float* x, const uint8_t* w, const uint16_t* scales, float* y, long rows, long in, long out, long group
) {
    multiply(x, Int4{w, scales, in, group}, y, rows, out);
}

extern "C" void unpack_int8(const int8_t* w, const float* scales, float* to, long in, long out) {
    unpack(Int8{w, scales, in}, to, out);
}

extern "C" void unpack_int4(const uint8_t* w, const uint16_t* scales, float* to, long in, long out, long group) {
    unpack(Int4{w, scales, in, group}, to, out);
}
