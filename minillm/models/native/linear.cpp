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

// At most 8 rows of x with OUTPUTS rows of W. A tile of its own for every number of rows, so that each number of
// W is read and widened once; at most 16 sums, so that they stay in registers.
template <int OUTPUTS>
static inline void outputs(const float* x, const uint16_t* w, float* y, long rows, long in, long out) {
    switch (rows) {
        case 1: return tile<1, OUTPUTS>(x, w, y, in, out);
        case 2: return tile<2, OUTPUTS>(x, w, y, in, out);
        case 3: return tile<3, OUTPUTS>(x, w, y, in, out);
        case 4: return tile<4, OUTPUTS>(x, w, y, in, out);
    }
    if constexpr (OUTPUTS <= 2) {
        switch (rows) {
            case 5: return tile<5, OUTPUTS>(x, w, y, in, out);
            case 6: return tile<6, OUTPUTS>(x, w, y, in, out);
            case 7: return tile<7, OUTPUTS>(x, w, y, in, out);
            case 8: return tile<8, OUTPUTS>(x, w, y, in, out);
        }
    }
}

template <int OUTPUTS>
static void share(const float* x, const uint16_t* w, float* y, long rows, long in, long out, long start, long end) {
    long o = start;
    for (; o + OUTPUTS <= end; o += OUTPUTS) outputs<OUTPUTS>(x, w + o * in, y + o, rows, in, out);
    for (; o < end; ++o) outputs<1>(x, w + o * in, y + o, rows, in, out);
}

// x [rows, in], w [out, in], y [rows, out], all contiguous. Threads share the outputs.
extern "C" void linear(const float* x, const uint16_t* w, float* y, long rows, long in, long out) {
    constexpr long SHARE = 32, MOST_ROWS = 8;
    #pragma omp parallel for schedule(static)
    for (long start = 0; start < out; start += SHARE) {
        long end = start + SHARE < out ? start + SHARE : out;
        for (long row = 0; row < rows; row += MOST_ROWS) {
            long few = rows - row < MOST_ROWS ? rows - row : MOST_ROWS;
            if (few > 4) share<2>(x + row * in, w, y + row * out, few, in, out, start, end);
            else share<4>(x + row * in, w, y + row * out, few, in, out, start, end);
        }
    }
}
