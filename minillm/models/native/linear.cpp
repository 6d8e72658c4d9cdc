// y = x W^T for a few rows of x: the matrix products of a decode step, at the speed of reading W.
//
// W stays as it is in the checkpoint: bfloat16, one row per output. Sums are float32.

#include "vectors.h"

// ROWS rows of x with OUTPUTS rows of W: each number loaded is used several times while it is in a register.
template <int ROWS, int OUTPUTS>
static inline void tile(const float* x, const uint16_t* w, float* y, long in, long out) {
    Floats sums[ROWS][OUTPUTS] = {};
    long k = 0;
    for (; k + LANES <= in; k += LANES) {
        for (int o = 0; o < OUTPUTS; ++o) {
            // The next OUTPUTS rows of W, already: the hardware does not look across the end of a row.
            __builtin_prefetch(w + (o + OUTPUTS) * in + k);
            Floats weight = load(w + o * in + k);
            for (int row = 0; row < ROWS; ++row) sums[row][o] += weight * load(x + row * in + k);
        }
    }
    for (int row = 0; row < ROWS; ++row) {
        for (int o = 0; o < OUTPUTS; ++o) {
            float total = sum(sums[row][o]);
            for (long rest = k; rest < in; ++rest) total += widen(w[o * in + rest]) * x[row * in + rest];
            y[row * out + o] = total;
        }
    }
}

// All rows of x with OUTPUTS rows of W. Tiles have at most 16 sums, so that they stay in registers.
template <int OUTPUTS>
static inline void outputs(const float* x, const uint16_t* w, float* y, long rows, long in, long out) {
    long row = 0;
    if constexpr (OUTPUTS <= 2) {
        for (; row + 8 <= rows; row += 8) tile<8, OUTPUTS>(x + row * in, w, y + row * out, in, out);
    }
    for (; row + 4 <= rows; row += 4) tile<4, OUTPUTS>(x + row * in, w, y + row * out, in, out);
    for (; row + 2 <= rows; row += 2) tile<2, OUTPUTS>(x + row * in, w, y + row * out, in, out);
    for (; row < rows; ++row) tile<1, OUTPUTS>(x + row * in, w, y + row * out, in, out);
}

template <int OUTPUTS>
static void share(const float* x, const uint16_t* w, float* y, long rows, long in, long out, long start, long end) {
    long o = start;
    for (; o + OUTPUTS <= end; o += OUTPUTS) outputs<OUTPUTS>(x, w + o * in, y + o, rows, in, out);
    for (; o < end; ++o) outputs<1>(x, w + o * in, y + o, rows, in, out);
}

// x [rows, in], w [out, in], y [rows, out], all contiguous. Threads share the outputs.
extern "C" void linear(const float* x, const uint16_t* w, float* y, long rows, long in, long out) {
    constexpr long SHARE = 32;
    #pragma omp parallel for schedule(static)
    for (long start = 0; start < out; start += SHARE) {
        long end = start + SHARE < out ? start + SHARE : out;
        if (rows >= 8) share<2>(x, w, y, rows, in, out, start, end);
        else share<4>(x, w, y, rows, in, out, start, end);
    }
}
