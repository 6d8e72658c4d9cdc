// Arm's BFMMLA: one instruction multiplies four inputs of two rows with the weights of two outputs, 16 products of bfloat16,
// where BFDOT has eight. A sum gets the same additions in the same order from both, so a row's sums don't depend on how
// many rows there are.
//
// x and W lie as BFDOT wants them: a vector has a pair of inputs for each of four outputs. Zipped with the vector of the
// next pair, it becomes two of BFMMLA's operands, [2 outputs, 4 inputs].

#pragma once

#include "vectors.h"

#ifdef __ARM_FEATURE_BF16_VECTOR_ARITHMETIC
#define HAS_TWO_ROWS 1

#include <algorithm>

// The sums of two rows and four outputs: [2 rows, 2 outputs] twice.
struct TwoRows {
    float32x4_t left = {}, right = {};

    void add(bfloat16x8_t x, Words pairs, Words next) {
        const uint32x4_t first = (uint32x4_t)pairs, second = (uint32x4_t)next;
        left = vbfmmlaq_f32(left, x, vreinterpretq_bf16_u32(vzip1q_u32(first, second)));
        right = vbfmmlaq_f32(right, x, vreinterpretq_bf16_u32(vzip2q_u32(first, second)));
    }
    Floats row(int index) const {  // four outputs
        const float64x2_t a = vreinterpretq_f64_f32(left), b = vreinterpretq_f64_f32(right);
        return (Floats)vreinterpretq_f32_f64(index == 0 ? vzip1q_f64(a, b) : vzip2q_f64(a, b));
    }
};

// Two pairs of inputs of two rows.
static inline bfloat16x8_t two_rows(const uint32_t* first, const uint32_t* second) {
    return vreinterpretq_bf16_u32(vcombine_u32(vld1_u32(first), vld1_u32(second)));
}

// Sets the sums of ROWS rows of x with STRIPS strips of W. Returns how many pairs of inputs that were: an odd one is left.
template <int ROWS, int STRIPS, typename Pairs>
static inline long multiply_two_rows(Floats (&sums)[ROWS][STRIPS], const uint32_t* x, const Pairs& w, long first) {
    TwoRows twos[(ROWS + 1) / 2][STRIPS];
    long k = 0;
    for (; k + 2 <= w.in; k += 2) {
        bfloat16x8_t inputs[(ROWS + 1) / 2];
        for (int row = 0; row < ROWS; row += 2)  // an odd row is its own neighbour
            inputs[row / 2] = two_rows(x + row * w.in + k, x + std::min(row + 1, ROWS - 1) * w.in + k);
        for (int strip = 0; strip < STRIPS; ++strip) {
            const Words pairs = w.part(first + strip, k), next = w.part(first + strip, k + 1);
            for (int row = 0; row < ROWS; row += 2) twos[row / 2][strip].add(inputs[row / 2], pairs, next);
        }
    }
    for (int row = 0; row < ROWS; ++row)
        for (int strip = 0; strip < STRIPS; ++strip) sums[row][strip] = twos[row / 2][strip].row(row % 2);
    return k;
}

#else
#define HAS_TWO_ROWS 0
#endif
