// SPDX-License-Identifier: Apache-2.0
// What the AVX-512 kernel files share: 16-lane forms of the helpers of avx2.h, which comes along
// (the level implies AVX2). V1 and V2 hold here too; partial vectors go through masks, which read
// and write the chosen lanes only.
#pragma once
#include "cpu/avx2.h"

#define LANES_16 16u

// Values that must be in registers here (see KEEP_IN_REGISTER); "v" has all 32.
#define KEEP_IN_ZMM(a) __asm__ volatile("" : "+v"(a))
#define KEEP_IN_ZMMS(a, b) __asm__ volatile("" : "+v"(a), "+v"(b))

// The kernels of the other files of this level.
attention_fn attention_avx512;
gemm_fn gemm_q4_0_avx512, gemm_q4_1_avx512, gemm_q5_0_avx512, gemm_q5_1_avx512, gemm_q8_0_avx512;
gemm_fn gemm_q2_k_avx512, gemm_q3_k_avx512, gemm_q4_k_avx512, gemm_q5_k_avx512, gemm_q6_k_avx512;
gemm_fn gemm_f32_avx512, gemm_f16_avx512, gemm_bf16_avx512;
rmsnorm_fn rmsnorm_avx512;
quantize_fn quantize_q16_avx512;
rope_fn rope_avx512;
act_mul_fn silu_mul_avx512, gelu_tanh_mul_avx512;

// --- loads and stores ---

KERNEL_INLINE __m512i load_512(const void *p) { return _mm512_loadu_si512(p); }
KERNEL_INLINE void store_512(void *p, __m512i v) { _mm512_storeu_si512(p, v); }
KERNEL_INLINE __m512 load_f32x16(const void *p) { return _mm512_loadu_ps(p); }
KERNEL_INLINE void store_f32x16(void *p, __m512 v) { _mm512_storeu_ps(p, v); }
KERNEL_INLINE __m512 widen_f16x16(__m256i halves) { return _mm512_cvtph_ps(halves); }
KERNEL_INLINE __m256i narrow_f32x16(__m512 v) {
    return _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT);
}
// The first n lanes of 16 (all of them when n >= 16).
KERNEL_INLINE __mmask16 first_lanes(u32 n) {
    return n >= LANES_16 ? (__mmask16)0xffff : (__mmask16)((1u << n) - 1);
}
// Elements of a chosen set of lanes; the others are zero, and their memory is not touched.
KERNEL_INLINE __m256i load_u16x16_some(__mmask16 lanes, const void *p) {
    return _mm256_maskz_loadu_epi16(lanes, p);
}
KERNEL_INLINE void store_u16x16_some(__mmask16 lanes, void *p, __m256i v) {
    _mm256_mask_storeu_epi16(p, lanes, v);
}

// All-ones lanes where an f32 is NaN or infinity.
KERNEL_INLINE __mmask16 f32x16_not_finite(__m512 v) {
    return _mm512_fpclass_ps_mask(v, 0x01 | 0x08 | 0x10 | 0x80); // NaNs and both infinities
}

// --- what the matrix products share ---

// Operator 6: lane i is the total of weight row `row` + i of one token; of the chosen lanes.
KERNEL_INLINE void put_lanes(const struct gemm_args *args, u32 row, __mmask16 lanes, u32 token,
                             __m512 total) {
    usize at = (usize)token * args->out_stride + row;
    if (args->bias != NULL) {
        total = _mm512_add_ps(total, _mm512_maskz_loadu_ps(lanes, args->bias + 4 * (usize)row));
    }
    if (args->output == GEMM_TO_F16) {
        store_u16x16_some(lanes, (f16 *)args->out + at, narrow_f32x16(total));
        return;
    }
    f32 *out = (f32 *)args->out + at;
    if (args->output == GEMM_ADD_F32) {
        total = _mm512_add_ps(_mm512_maskz_loadu_ps(lanes, out), total);
    }
    _mm512_mask_storeu_ps(out, lanes, total);
}

// --- sums over lanes ---

// Word i of 128-bit lane l of the result is the sum of lane l of the i-th of four vectors.
KERNEL_INLINE __m512i sums_of_4(__m512i a, __m512i b, __m512i c, __m512i d) {
    __m512i ab = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    __m512i cd = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
    return _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
}

// --- transposes ---

// 8 rows of 32 halves: 128-bit lane l of column[c] is element 8 l + c of rows 0 to 7.
KERNEL_INLINE void transpose_8x32_u16(const __m512i row[8], __m512i column[8]) {
    __m512i a[8], b[8];
    UNROLL_FULLY
    for (u32 i = 0; i < 8; i += 2) { // a[i], a[i + 1]: elements 0 to 3, 4 to 7 of rows i, i + 1
        a[i] = _mm512_unpacklo_epi16(row[i], row[i + 1]);
        a[i + 1] = _mm512_unpackhi_epi16(row[i], row[i + 1]);
    }
    UNROLL_FULLY
    for (u32 i = 0; i < 8; i += 4) { // b[i + j]: elements 2 j, 2 j + 1 of rows i to i + 3
        b[i] = _mm512_unpacklo_epi32(a[i], a[i + 2]);
        b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 2]);
        b[i + 2] = _mm512_unpacklo_epi32(a[i + 1], a[i + 3]);
        b[i + 3] = _mm512_unpackhi_epi32(a[i + 1], a[i + 3]);
    }
    UNROLL_FULLY
    for (u32 j = 0; j < 4; j++) {
        column[2 * j] = _mm512_unpacklo_epi64(b[j], b[4 + j]);
        column[2 * j + 1] = _mm512_unpackhi_epi64(b[j], b[4 + j]);
    }
}

// 16 rows of 32 halves: the 256-bit halves of pair[c] are elements c and 8 + c of rows 0 to 15, of
// pair[8 + c] elements 16 + c and 24 + c (c < 8).
KERNEL_INLINE void transpose_16x32_u16(const __m512i row[16], __m512i pair[16]) {
    const __m512i low = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
    const __m512i high = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
    __m512i first[8], second[8];
    transpose_8x32_u16(row, first);
    transpose_8x32_u16(row + 8, second);
    UNROLL_FULLY
    for (u32 c = 0; c < 8; c++) {
        pair[c] = _mm512_permutex2var_epi64(first[c], low, second[c]);
        pair[8 + c] = _mm512_permutex2var_epi64(first[c], high, second[c]);
    }
}
// Column c < 32 of the result, 16 rows in the lanes.
KERNEL_INLINE __m256i column_of_pairs(const __m512i pair[16], u32 c) {
    __m512i v = pair[c / 16 * 8 + c % 8];
    return c % 16 < 8 ? _mm512_castsi512_si256(v) : _mm512_extracti64x4_epi64(v, 1);
}

// 16 rows of 16 words: lane r of column[c] is word c of row r.
KERNEL_INLINE void transpose_16x16_u32(const __m512i row[16], __m512i column[16]) {
    __m512i a[16], b[16];
    UNROLL_FULLY
    for (u32 i = 0; i < 16; i += 4) { // b[i + c], 128-bit lane l: word 4 l + c of rows i to i + 3
        a[i] = _mm512_unpacklo_epi32(row[i], row[i + 1]);
        a[i + 1] = _mm512_unpackhi_epi32(row[i], row[i + 1]);
        a[i + 2] = _mm512_unpacklo_epi32(row[i + 2], row[i + 3]);
        a[i + 3] = _mm512_unpackhi_epi32(row[i + 2], row[i + 3]);
        b[i] = _mm512_unpacklo_epi64(a[i], a[i + 2]);
        b[i + 1] = _mm512_unpackhi_epi64(a[i], a[i + 2]);
        b[i + 2] = _mm512_unpacklo_epi64(a[i + 1], a[i + 3]);
        b[i + 3] = _mm512_unpackhi_epi64(a[i + 1], a[i + 3]);
    }
    UNROLL_FULLY
    for (u32 c = 0; c < 4; c++) {
        // Rows 0 to 7, then 8 to 15: lanes [0, 2 | 0, 2], then [1, 3 | 1, 3].
        __m512i low_even = _mm512_shuffle_i32x4(b[c], b[4 + c], 0x88);
        __m512i low_odd = _mm512_shuffle_i32x4(b[c], b[4 + c], 0xdd);
        __m512i high_even = _mm512_shuffle_i32x4(b[8 + c], b[12 + c], 0x88);
        __m512i high_odd = _mm512_shuffle_i32x4(b[8 + c], b[12 + c], 0xdd);
        column[c] = _mm512_shuffle_i32x4(low_even, high_even, 0x88);
        column[4 + c] = _mm512_shuffle_i32x4(low_odd, high_odd, 0x88);
        column[8 + c] = _mm512_shuffle_i32x4(low_even, high_even, 0xdd);
        column[12 + c] = _mm512_shuffle_i32x4(low_odd, high_odd, 0xdd);
    }
}

// --- the contract's exponential in 16 lanes ---

// Its last step is one scalef: p times 2^n with one rounding, whatever n (the contract's two
// factors are there for want of it).
KERNEL_INLINE __m512 exp_f32x16_finite(__m512 x) { // of arguments below the overflow, not NaN
    const __m512 magic = _mm512_set1_ps(0x1.8p+23f);
    __m512 scaled = _mm512_mul_ps(x, _mm512_set1_ps(MATH_EXP_F32_LOG2E));
    __m512 n = _mm512_sub_ps(_mm512_add_ps(scaled, magic), magic);
    __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(MATH_EXP_F32_LN2_HIGH), x);
    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(MATH_EXP_F32_LN2_LOW), r);
    __m512 p = _mm512_set1_ps(MATH_EXP_F32_C6);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(MATH_EXP_F32_C5));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(MATH_EXP_F32_C4));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(MATH_EXP_F32_C3));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(MATH_EXP_F32_C2));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(MATH_EXP_F32_C1));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(MATH_EXP_F32_C0));
    __mmask16 not_below =
        _mm512_cmp_ps_mask(x, _mm512_set1_ps(MATH_EXP_F32_UNDERFLOW), _CMP_NLT_UQ);
    return _mm512_maskz_scalef_ps(not_below, p, n);
}
KERNEL_INLINE __m512 exp_f32x16(__m512 x) {
    __mmask16 above = _mm512_cmp_ps_mask(x, _mm512_set1_ps(MATH_EXP_F32_OVERFLOW), _CMP_NLT_UQ);
    return _mm512_mask_mul_ps(exp_f32x16_finite(x), above, x, _mm512_set1_ps(__builtin_inff()));
}
