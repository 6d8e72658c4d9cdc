// Vectors as wide as the CPU's registers, GCC's and Clang's portable ones. Wider ones would compile, too, but GCC keeps
// what fits no register in memory: with AVX2, one request was measured to take 4 times as long, and 32 at once 16 times.
// Where the compiler makes a mess of a conversion, there is an intrinsic beside.
//
// A bfloat16 is the upper half of a float32, so widening one is a shift, and no CPU needs instructions
// of its own for it.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#ifdef __AVX2__
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#if defined(__AVX512F__)
constexpr int LANES = 16, REGISTERS = 32;
#elif defined(__AVX2__)
constexpr int LANES = 8, REGISTERS = 16;
#elif defined(__x86_64__)  // SSE2
constexpr int LANES = 4, REGISTERS = 16;
#else  // NEON, and any other CPU with vectors of 16 bytes
constexpr int LANES = 4, REGISTERS = 32;
#endif
typedef int8_t SignedBytes __attribute__((vector_size(LANES)));
typedef int16_t Shorts __attribute__((vector_size(2 * LANES)));
typedef uint16_t Halves __attribute__((vector_size(2 * LANES)));
typedef uint32_t Words __attribute__((vector_size(4 * LANES)));
typedef int32_t Ints __attribute__((vector_size(4 * LANES)));
typedef float Floats __attribute__((vector_size(4 * LANES)));

static inline Floats load(const float* from) {
    Floats floats;
    std::memcpy(&floats, from, sizeof floats);
    return floats;
}

static inline Floats as_floats(Words bits) {
    Floats floats;
    std::memcpy(&floats, &bits, sizeof floats);
    return floats;
}

// Each half in a lane of its own. For Arm, GCC 12 makes as many scalar instructions of this as there are lanes.
static inline Words load_words(const uint16_t* from) {
#ifdef __aarch64__
    return (Words)vmovl_u16(vld1_u16(from));
#else
    Halves halves;
    std::memcpy(&halves, from, sizeof halves);
    return __builtin_convertvector(halves, Words);
#endif
}

static inline Floats load(const uint16_t* from) { return as_floats(load_words(from) << 16); }  // bfloat16

// GCC makes as many scalar instructions as there are lanes of a conversion from 8 to 32 bits, and several of one in two
// steps. The CPU has it as one, Arm as two.
static inline Floats load(const int8_t* from) {
    SignedBytes bytes;
    std::memcpy(&bytes, from, sizeof bytes);
#ifdef __AVX512F__
    return __builtin_convertvector((Ints)_mm512_cvtepi8_epi32((__m128i)bytes), Floats);
#elif defined(__AVX2__)
    return __builtin_convertvector((Ints)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)from)), Floats);
#elif defined(__aarch64__)
    int32_t four;
    std::memcpy(&four, &bytes, sizeof four);
    const int16x8_t shorts = vmovl_s8(vreinterpret_s8_s32(vdup_n_s32(four)));
    return (Floats)vcvtq_f32_s32(vmovl_s16(vget_low_s16(shorts)));
#else
    return __builtin_convertvector(__builtin_convertvector(__builtin_convertvector(bytes, Shorts), Ints), Floats);
#endif
}

static inline void store(float* to, Floats floats) { std::memcpy(to, &floats, sizeof floats); }

static inline float widen(uint16_t half) {
    uint32_t word = uint32_t(half) << 16;
    float number;
    std::memcpy(&number, &word, sizeof number);
    return number;
}

static inline uint16_t narrow(float number) {  // to the nearest, ties to even, as PyTorch rounds
    if (std::isnan(number)) return 0x7fc0;
    uint32_t word;
    std::memcpy(&word, &number, sizeof word);
    return uint16_t((word + 0x7fff + ((word >> 16) & 1)) >> 16);
}

// 16 numbers of float32, or fewer, as bfloat16, rounded as `narrow` does.
static inline Halves narrow(Floats floats) {
#ifdef __AVX512BF16__
    return (Halves)_mm512_cvtneps_pbh((__m512)floats);  // numbers below 1e-38 become 0
#endif
    Words words;
    std::memcpy(&words, &floats, sizeof words);
    words = floats == floats ? (words + 0x7fff + ((words >> 16) & 1)) >> 16 : Words{} + 0x7fc0;
    return __builtin_convertvector(words, Halves);
}

// Two such in pairs: in each lane the first one's number in the lower half.
static inline Words narrow(Floats first, Floats second) {
#ifdef __AVX512BF16__
    alignas(64) static constexpr auto TURNS = [] {
        struct { uint16_t at[2 * LANES]; } turns{};
        for (int i = 0; i < 2 * LANES; ++i) turns.at[i] = uint16_t(i / 2 + i % 2 * LANES);
        return turns;
    }();
    const __m512i both = (__m512i)_mm512_cvtne2ps_pbh((__m512)second, (__m512)first);
    return (Words)_mm512_permutexvar_epi16(_mm512_load_si512(&TURNS), both);
#else
    return __builtin_convertvector(narrow(first), Words) | __builtin_convertvector(narrow(second), Words) << 16;
#endif
}

// sums + a product of two pairs of bfloat16 in each lane: one instruction for what takes two in float32. On Arm this
// is BFDOT; a CPU that has it multiplies two rows at a time, too (two_rows.h).
#if defined(__AVX512BF16__)
#define HAS_DOTS 1
static inline Floats add_dots(Floats sums, Words pairs, uint32_t pair) {
    return (Floats)_mm512_dpbf16_ps((__m512)sums, (__m512bh)pairs, (__m512bh)(Words{} + pair));
}
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#define HAS_DOTS 1
static inline Floats add_dots(Floats sums, Words pairs, uint32_t pair) {
    return (Floats)vbfdotq_f32((float32x4_t)sums, (bfloat16x8_t)pairs, (bfloat16x8_t)(Words{} + pair));
}
#else
#define HAS_DOTS 0
#endif

static inline float sum(Floats floats) {  // in halves: one after the other, each addition would wait for the last
#ifdef __AVX512F__
    return _mm512_reduce_add_ps((__m512)floats);
#elif defined(__aarch64__)
    return vaddvq_f32((float32x4_t)floats);
#else
    float parts[LANES];
    std::memcpy(parts, &floats, sizeof parts);
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int lane = 0; lane < half; ++lane) parts[lane] += parts[lane + half];
    return parts[0];
#endif
}

static inline float largest(Floats floats) {
#ifdef __AVX512F__
    return _mm512_reduce_max_ps((__m512)floats);
#elif defined(__aarch64__)
    return vmaxvq_f32((float32x4_t)floats);
#else
    float most = floats[0];
    for (int lane = 1; lane < LANES; ++lane) most = floats[lane] > most ? floats[lane] : most;
    return most;
#endif
}

// e^x for x <= 0, to 3e-6 of it: 2^whole times a polynomial of the rest. Below -87, next to nothing, it is 0.
static inline Floats exp_of_negative(Floats x) {
    const Floats floor = Floats{} - 87.0f;
    Floats scaled = (x > floor ? x : floor) * 1.44269504f;
    Ints whole = __builtin_convertvector(scaled - 0.5f, Ints);  // towards zero, so this rounds: scaled <= 0
    Floats rest = (scaled - __builtin_convertvector(whole, Floats)) * 0.693147181f;  // |rest| <= 0.35
    Floats value = rest * (1.0f / 120) + 1.0f / 24;
    value = value * rest + 1.0f / 6;
    value = value * rest + 0.5f;
    value = value * rest + 1.0f;
    value = value * rest + 1.0f;
#ifdef __AVX512F__
    const __mmask16 enough = _mm512_cmp_ps_mask((__m512)x, (__m512)floor, _CMP_NLT_UQ);  // NaN, too, which stays
    return (Floats)_mm512_maskz_scalef_ps(enough, (__m512)(value + (x - x)), _mm512_cvtepi32_ps((__m512i)whole));
#else
    Ints bits = (whole + 127) << 23;
    Floats power;
    std::memcpy(&power, &bits, sizeof power);
    return x < floor ? Floats{} : value * power + (x - x);  // NaN stays NaN
#endif
}

// silu(x) = x / (1 + e^-x), written with e^-|x|.
static inline Floats silu(Floats x) {
    const Floats small = exp_of_negative(x > 0.0f ? -x : x);
    return x * ((x > 0.0f ? Floats{} + 1.0f : small) / (1.0f + small));
}
