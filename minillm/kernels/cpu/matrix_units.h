// The matrix units of a CPU (Intel's AMX): one instruction multiplies 16 rows of 32 numbers of x with 32 numbers of 16 outputs,
// 8,192 products at once. Numbers are bfloat16, sums float32, and a row's sums depend on that row alone.
//
// W lies in the same bands as for every other kernel here: a band's weights of 32 inputs are what a tile register holds. x
// has to be in tiles: [rows / 16, in / 32, 16, 32].

#pragma once

#include "vectors.h"

#include <algorithm>
#include <cstdlib>
#include <memory>

constexpr long SIDE = 16, DEPTH = 32;  // rows of x, or outputs; and inputs, of a tile
constexpr long TILE = SIDE * DEPTH;    // numbers

// Where number k of a row is.
static inline long in_tiles(long row, long k, long in) {
    return row / SIDE * SIDE * in + k / DEPTH * TILE + row % SIDE * DEPTH + k % DEPTH;
}

static inline long whole_tiles(long rows) { return (rows + SIDE - 1) / SIDE * SIDE; }

struct Free {
    void operator()(void* memory) const { std::free(memory); }
};
template <typename Number>
using Aligned = std::unique_ptr<Number[], Free>;

template <typename Number>
static Aligned<Number> aligned(long size) {  // a row of a tile is a cache line
    return Aligned<Number>((Number*)std::aligned_alloc(64, (size * sizeof(Number) + 63) / 64 * 64));
}

#if defined(__AMX_BF16__) && HAS_DOTS  // without the latter, x isn't rounded

#include <sys/syscall.h>
#include <unistd.h>

// The operating system lets a process use the registers only when asked: they make each of its threads 8 KB larger.
static bool matrix_units() {
    constexpr long REQUEST_PERMISSION = 0x1023, TILE_DATA = 18;
    static const bool granted = syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
    return granted;
}

// What ldtilecfg reads. Registers 0 to 5, of sums and of x, have `height` rows of 64 bytes, those of weights 16.
struct alignas(64) Registers {
    uint8_t palette = 1, first_row = 0, reserved[14] = {};
    uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {};

    explicit Registers(long height) {
        std::fill(rows, rows + 6, height);
        std::fill(rows + 6, rows + 8, SIDE);
    }
};

// A thread's registers, for as long as this lives. Where the system has not granted them, to touch them ends the process.
struct UseUnits {
    explicit UseUnits(long height) {
        if (!matrix_units()) return;
        const Registers registers(height);
        asm volatile("" ::"m"(registers));  // all of it is in memory: GCC's intrinsic says that it reads eight bytes
        _tile_loadconfig(&registers);
    }
    ~UseUnits() {
        if (matrix_units()) _tile_release();
    }
};

// What was stored is in memory from here on: GCC's _tile_loadd doesn't say that it reads any.
static inline void store_all() { asm volatile("" ::: "memory"); }

// GCC wants a register's number in digits.
template <int REGISTER>
static inline void load_tile(const float* from, long stride) {
    if constexpr (REGISTER == 0) _tile_loadd(0, from, stride);
    if constexpr (REGISTER == 1) _tile_loadd(1, from, stride);
    if constexpr (REGISTER == 2) _tile_loadd(2, from, stride);
    if constexpr (REGISTER == 3) _tile_loadd(3, from, stride);
}

template <int REGISTER>
static inline void store_tile(float* to, long stride) {
    if constexpr (REGISTER == 0) _tile_stored(0, to, stride);
    if constexpr (REGISTER == 1) _tile_stored(1, to, stride);
    if constexpr (REGISTER == 2) _tile_stored(2, to, stride);
    if constexpr (REGISTER == 3) _tile_stored(3, to, stride);
}

// Registers: sums 0 to 3, x 4 and 5, weights 6 and 7. ROWS tiles of rows with one band of W or two, over all inputs, are
// added to the sums.
template <int ROWS, int BANDS>
static inline void add_tiles(const uint16_t* x, const uint16_t* w, const uint16_t* second, long in) {
    for (long at = 0; at < SIDE * in; at += TILE) {
        _tile_loadd(4, x + at, 64);
        _tile_loadd(6, w + at, 64);
        _tile_dpbf16ps(0, 4, 6);
        if constexpr (BANDS == 2) {
            _tile_loadd(7, second + at, 64);
            _tile_dpbf16ps(1, 4, 7);
        }
        if constexpr (ROWS == 2) {
            _tile_loadd(5, x + SIDE * in + at, 64);
            _tile_dpbf16ps(2, 5, 6);
        }
        if constexpr (ROWS == 2 && BANDS == 2) _tile_dpbf16ps(3, 5, 7);
    }
}

// Sums of a register to y [rows, out]: rows and outputs that there are none of are left out.
template <int REGISTER>
static inline void store_sums(float* y, long row, long rows, long o, long out) {
    if ((row + SIDE <= rows || rows < SIDE) && o + SIDE <= out)
        return store_tile<REGISTER>(y + row * out + o, out * sizeof(float));
    alignas(64) float sums[SIDE][SIDE];
    store_tile<REGISTER>(sums[0], sizeof sums[0]);
    for (long r = 0; row + r < rows && r < SIDE; ++r)
        std::memcpy(y + (row + r) * out + o, sums[r], sizeof(float) * std::min(SIDE, out - o));
}

static inline void zero_sums() {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
}

template <int ROWS, int BANDS>
static inline void block(
    const uint16_t* x, const uint16_t* w, float* y, long row, long rows, long band, long in, long out
) {
    zero_sums();
    add_tiles<ROWS, BANDS>(x + row * in, w, w + SIDE * in, in);
    const long o = band * SIDE;
    store_sums<0>(y, row, rows, o, out);
    if constexpr (BANDS == 2) store_sums<1>(y, row, rows, o + SIDE, out);
    if constexpr (ROWS == 2) store_sums<2>(y, row + SIDE, rows, o, out);
    if constexpr (ROWS == 2 && BANDS == 2) store_sums<3>(y, row + SIDE, rows, o + SIDE, out);
}

template <int BANDS>
static inline void with_rows(
    const uint16_t* x, const uint16_t* w, float* y, long row, long end, long rows, long band, long in, long out
) {
    for (; row + SIDE < end; row += 2 * SIDE) block<2, BANDS>(x, w, y, row, rows, band, in, out);
    if (row < end) block<1, BANDS>(x, w, y, row, rows, band, in, out);
}

// Rows from `row` up to `last` of x in tiles with bands from `band` up to `end` of W, of which w is the first; x has `rows`,
// `in` is a multiple of DEPTH. Registers are as high as a tile, or as there are rows.
static inline void multiply_tiles(
    const uint16_t* x, const uint16_t* w, float* y, long row, long last, long rows, long band, long end, long in, long out
) {
    store_all();
    for (; band + 2 <= end; band += 2, w += 2 * SIDE * in) with_rows<2>(x, w, y, row, last, rows, band, in, out);
    if (band < end) with_rows<1>(x, w, y, row, last, rows, band, in, out);
}

// Adds to y [rows, out], both multiples of 2 SIDE.
static inline void add_products(const uint16_t* x, const uint16_t* w, float* y, long rows, long in, long out) {
    store_all();
    for (long o = 0; o < out; o += 2 * SIDE)
        for (long row = 0; row < rows; row += 2 * SIDE) {
            float *above = y + row * out + o, *below = above + SIDE * out;
            const long stride = out * sizeof(float);
            load_tile<0>(above, stride);
            load_tile<1>(above + SIDE, stride);
            load_tile<2>(below, stride);
            load_tile<3>(below + SIDE, stride);
            add_tiles<2, 2>(x + row * in, w + o * in, w + (o + SIDE) * in, in);
            store_tile<0>(above, stride);
            store_tile<1>(above + SIDE, stride);
            store_tile<2>(below, stride);
            store_tile<3>(below + SIDE, stride);
        }
}

// y [rows, inner] = silu(gate) * up, of one band of gates and its ups.
template <int ROWS>
static inline void block_of_silu(
    const uint16_t* x, const uint16_t* gate, const uint16_t* up, float* y, long row, long rows, long in, long inner
) {
    zero_sums();
    add_tiles<ROWS, 2>(x + row * in, gate, up, in);
    alignas(64) float sums[4][SIDE][SIDE];
    store_tile<0>(sums[0][0], sizeof sums[0][0]);
    store_tile<1>(sums[1][0], sizeof sums[0][0]);
    if constexpr (ROWS == 2) store_tile<2>(sums[2][0], sizeof sums[0][0]);
    if constexpr (ROWS == 2) store_tile<3>(sums[3][0], sizeof sums[0][0]);
    for (long r = 0; r < ROWS * SIDE && row + r < rows; ++r)
        store(y + (row + r) * inner, silu(load(sums[r / SIDE * 2][r % SIDE])) * load(sums[r / SIDE * 2 + 1][r % SIDE]));
}

// As `multiply_tiles`, of W's first half, the gates, and its second half, `inner` outputs each.
static inline void multiply_tiles_silu(
    const uint16_t* x, const uint16_t* w, float* y, long first, long last, long rows, long band, long end, long in,
    long inner
) {
    store_all();
    for (; band < end; ++band) {
        const uint16_t *gate = w + band * SIDE * in, *up = gate + inner * in;
        long row = first;
        for (; row + SIDE < last; row += 2 * SIDE)
            block_of_silu<2>(x, gate, up, y + band * SIDE, row, rows, in, inner);
        if (row < last) block_of_silu<1>(x, gate, up, y + band * SIDE, row, rows, in, inner);
    }
}

#else

static constexpr bool matrix_units() { return false; }

struct UseUnits {
    explicit UseUnits(long) {}
};

static inline void multiply_tiles(
    const uint16_t*, const uint16_t*, float*, long, long, long, long, long, long, long
) {}
constexpr auto multiply_tiles_silu = multiply_tiles;

static inline void add_products(const uint16_t*, const uint16_t*, float*, long, long, long) {}

#endif
