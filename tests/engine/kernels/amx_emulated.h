// Intel's matrix units in plain C++. Included before the kernels (-include), it lets a CPU with AVX512_BF16 but without AMX
// run what is written for them, under sanitizers, too. Registers that are not configured may not be used.

#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace amx {

struct Config {
    uint8_t palette, first_row, reserved[14];
    uint16_t bytes[16];
    uint8_t rows[16];
};

inline thread_local Config config = {};
inline thread_local uint8_t tiles[8][16][64];

inline long rows_of(int tile) {
    if (config.palette != 1 || config.rows[tile] == 0 || config.rows[tile] > 16 || config.bytes[tile] != 64) std::abort();
    return config.rows[tile];
}
template <typename... Request>
inline long granted(Request...) { return 0; }  // by the operating system
inline void configure(const void* from) { std::memcpy(&config, from, sizeof config); }
inline void release() { config = {}; }
inline void load(int tile, const void* from, long stride) {
    for (long row = 0; row < rows_of(tile); ++row) std::memcpy(tiles[tile][row], (const char*)from + row * stride, 64);
}
inline void store(int tile, void* to, long stride) {
    for (long row = 0; row < rows_of(tile); ++row) std::memcpy((char*)to + row * stride, tiles[tile][row], 64);
}
inline void zero(int tile) { std::memset(tiles[tile], 0, sizeof tiles[tile]); }

inline float number(const uint8_t* from) {
    uint16_t half;
    std::memcpy(&half, from, sizeof half);
    const uint32_t word = uint32_t(half) << 16;
    float wide;
    std::memcpy(&wide, &word, sizeof wide);
    return wide;
}
inline void multiply(int sums, int x, int w) {
    if (rows_of(sums) != rows_of(x) || rows_of(w) != 16) std::abort();
    for (long row = 0; row < rows_of(x); ++row)
        for (long out = 0; out < 16; ++out) {
            float sum;
            std::memcpy(&sum, &tiles[sums][row][4 * out], sizeof sum);
            for (long k = 0; k < 32; ++k)
                sum += number(&tiles[x][row][2 * k]) * number(&tiles[w][k / 2][4 * out + 2 * (k % 2)]);
            std::memcpy(&tiles[sums][row][4 * out], &sum, sizeof sum);
        }
}

}  // namespace amx

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbf16ps
#define _tile_loadconfig amx::configure
#define _tile_release amx::release
#define _tile_loadd amx::load
#define _tile_stored amx::store
#define _tile_zero amx::zero
#define _tile_dpbf16ps amx::multiply
#define syscall amx::granted
#ifndef __AMX_BF16__
#define __AMX_BF16__ 1
#endif
