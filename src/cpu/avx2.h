// SPDX-License-Identifier: Apache-2.0
// What the AVX2 kernel files share: the intrinsics, f16 and f32 vectors, the transposes that put
// rows into lanes, sums over lanes, and the vector form of the contract's exponential.
//
// V1. No helper reads or writes a byte outside the elements it is given; partial vectors go through
//     a copy on the stack. Weights may end at the last byte of a mapping.
// V2. Lane i of a vector of rows is row i of the panel; missing rows of the last panel repeat the
//     last real one, so that every address is valid, and their results are dropped.
#pragma once
// Keeps immintrin.h from including stdlib.h (gcc's and clang's names of the guard).
#define _MM_MALLOC_H_INCLUDED
#define __MM_MALLOC_H
#include <immintrin.h>

#include "freestanding/math.h"
#include "ops/op.h"

#define KERNEL_INLINE static inline __attribute__((always_inline))
#if defined(__clang__)
#define UNROLL_FULLY _Pragma("clang loop unroll(full)")
#else
#define UNROLL_FULLY _Pragma("GCC unroll 32")
#endif

// Values that must be in registers here, and the order of what comes before and after: left alone,
// the compilers start every product of a tile before the first sum and spill (half the speed).
// Emits no instruction.
#define KEEP_IN_REGISTER(a) __asm__ volatile("" : "+x"(a))
#define KEEP_IN_REGISTERS(a, b) __asm__ volatile("" : "+x"(a), "+x"(b))

#define LANES 8u
#define PREFETCH_LINE 64u
#define PREFETCH_AHEAD 4096u
#define PREFETCH_NEAR 8192u // bytes of a panel that still goes to L1

// The kernels of the other files of this level.
gemm_fn gemm_q4_0_avx2, gemm_q4_1_avx2, gemm_q5_0_avx2, gemm_q5_1_avx2, gemm_q8_0_avx2;
gemm_fn gemm_q2_k_avx2, gemm_q3_k_avx2, gemm_q4_k_avx2, gemm_q5_k_avx2, gemm_q6_k_avx2;
gemm_fn gemm_f32_avx2, gemm_f16_avx2, gemm_bf16_avx2;
attention_fn attention_avx2;
rmsnorm_fn rmsnorm_avx2;
quantize_fn quantize_q16_avx2;
rope_fn rope_avx2;
kv_write_fn kv_write_avx2;
act_mul_fn silu_mul_avx2, gelu_tanh_mul_avx2;
add_fn add_avx2;
finite_fn finite_avx2;

// --- loads and stores ---

KERNEL_INLINE __m128i load_128(const void *p) { return _mm_loadu_si128((const __m128i_u *)p); }
KERNEL_INLINE __m256i load_256(const void *p) { return _mm256_loadu_si256((const __m256i_u *)p); }
KERNEL_INLINE void store_128(void *p, __m128i v) { _mm_storeu_si128((__m128i_u *)p, v); }
KERNEL_INLINE void store_256(void *p, __m256i v) { _mm256_storeu_si256((__m256i_u *)p, v); }
KERNEL_INLINE __m256 load_f32x8(const void *p) { return _mm256_loadu_ps(p); }
KERNEL_INLINE void store_f32x8(void *p, __m256 v) { _mm256_storeu_ps(p, v); }
KERNEL_INLINE __m256 widen_f16x8(__m128i halves) { return _mm256_cvtph_ps(halves); }
KERNEL_INLINE __m256 load_f16x8(const void *p) { return widen_f16x8(load_128(p)); }
KERNEL_INLINE __m128i narrow_f32x8(__m256 v) {
    return _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT);
}
KERNEL_INLINE void store_f16x8(void *p, __m256 v) { store_128(p, narrow_f32x8(v)); }

// The first n < 8 elements, the rest zero; and back.
KERNEL_INLINE __m128i load_u16_part(const void *p, u32 n) {
    u16 lane[LANES] = {0};
    for (u32 i = 0; i < n; i++) lane[i] = load_u16((const u8 *)p + 2 * (usize)i);
    return load_128(lane);
}
KERNEL_INLINE void store_u16_part(void *p, __m128i v, u32 n) {
    u16 lane[LANES];
    store_128(lane, v);
    for (u32 i = 0; i < n; i++) store_u16((u8 *)p + 2 * (usize)i, lane[i]);
}
KERNEL_INLINE __m256 load_f32_part(const void *p, u32 n) {
    f32 lane[LANES] = {0};
    for (u32 i = 0; i < n; i++) lane[i] = load_f32((const u8 *)p + 4 * (usize)i);
    return load_f32x8(lane);
}
KERNEL_INLINE void store_f32_part(void *p, __m256 v, u32 n) {
    f32 lane[LANES];
    store_f32x8(lane, v);
    for (u32 i = 0; i < n; i++) store_f32((u8 *)p + 4 * (usize)i, lane[i]);
}

// `n` elements from p: a whole vector when n >= 8.
KERNEL_INLINE __m128i load_u16x8_upto(const void *p, u32 n) {
    return n >= LANES ? load_128(p) : load_u16_part(p, n);
}
KERNEL_INLINE void store_u16x8_upto(void *p, __m128i v, u32 n) {
    if (n >= LANES) {
        store_128(p, v);
    } else {
        store_u16_part(p, v, n);
    }
}
KERNEL_INLINE __m256 load_f32x8_upto(const void *p, u32 n) {
    return n >= LANES ? load_f32x8(p) : load_f32_part(p, n);
}
KERNEL_INLINE void store_f32x8_upto(void *p, __m256 v, u32 n) {
    if (n >= LANES) {
        store_f32x8(p, v);
    } else {
        store_f32_part(p, v, n);
    }
}

// --- finiteness, on integer bits ---

// All-ones words where a half is NaN or infinity.
KERNEL_INLINE __m128i f16_not_finite(__m128i halves) {
    __m128i magnitude = _mm_and_si128(halves, _mm_set1_epi16(0x7fff));
    return _mm_cmpgt_epi16(magnitude, _mm_set1_epi16(0x7bff));
}
// All-ones lanes where an f32 is NaN or infinity.
KERNEL_INLINE __m256i f32_not_finite(__m256 v) {
    __m256i magnitude = _mm256_and_si256(_mm256_castps_si256(v), _mm256_set1_epi32(0x7fffffff));
    return _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(0x7f7fffff));
}
KERNEL_INLINE u32 any_128(__m128i v) { return !_mm_testz_si128(v, v); }
KERNEL_INLINE u32 any_256(__m256i v) { return !_mm256_testz_si256(v, v); }

// --- sums over lanes ---

// Lane i of the result is the sum of the 8 lanes of v_i. Integers: any order.
KERNEL_INLINE __m256i add_pairs(__m256i a, __m256i b) {
    return _mm256_add_epi32(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
}
KERNEL_INLINE __m256i add_quads(__m256i ab, __m256i cd) {
    return _mm256_add_epi32(_mm256_unpacklo_epi64(ab, cd), _mm256_unpackhi_epi64(ab, cd));
}
KERNEL_INLINE __m256i add_halves(__m256i abcd, __m256i efgh) {
    return _mm256_add_epi32(_mm256_permute2x128_si256(abcd, efgh, 0x20),
                            _mm256_permute2x128_si256(abcd, efgh, 0x31));
}
KERNEL_INLINE __m256i sum_lanes_i32(const __m256i v[8]) {
    return add_halves(add_quads(add_pairs(v[0], v[1]), add_pairs(v[2], v[3])),
                      add_quads(add_pairs(v[4], v[5]), add_pairs(v[6], v[7])));
}

// The last three levels of tree32: lane i is added to lane i + 4, then i + 2, then i + 1.
KERNEL_INLINE f32 tree_of_8(__m256 v) {
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
// The same for 8 vectors at once: lane i of the result belongs to v_i.
KERNEL_INLINE __m256 tree_add_4(__m256 a, __m256 b) {
    return _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
}
KERNEL_INLINE __m256 tree_add_2(__m256 ab, __m256 cd) {
    return _mm256_add_ps(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xee));
}
KERNEL_INLINE __m256 tree_add_1(__m256 abcd, __m256 efgh) {
    return _mm256_add_ps(_mm256_shuffle_ps(abcd, efgh, 0x88), _mm256_shuffle_ps(abcd, efgh, 0xdd));
}
KERNEL_INLINE __m256 tree_of_8_each(const __m256 v[8]) {
    // tree_add_2 leaves [a c | b d] by halves, so the pairs are chosen to come out in order.
    __m256 ac = tree_add_2(tree_add_4(v[0], v[4]), tree_add_4(v[1], v[5])); // 0 1 | 4 5
    __m256 eg = tree_add_2(tree_add_4(v[2], v[6]), tree_add_4(v[3], v[7])); // 2 3 | 6 7
    return tree_add_1(ac, eg);
}

// --- transposes ---

// 8 rows of 4 words to 4 vectors: lane r of column[i] is word i of row r.
KERNEL_INLINE void transpose_8x4_u32(const __m128i row[8], __m256i column[4]) {
    __m256i y0 = _mm256_inserti128_si256(_mm256_castsi128_si256(row[0]), row[4], 1);
    __m256i y1 = _mm256_inserti128_si256(_mm256_castsi128_si256(row[1]), row[5], 1);
    __m256i y2 = _mm256_inserti128_si256(_mm256_castsi128_si256(row[2]), row[6], 1);
    __m256i y3 = _mm256_inserti128_si256(_mm256_castsi128_si256(row[3]), row[7], 1);
    __m256i a0 = _mm256_unpacklo_epi32(y0, y1), a1 = _mm256_unpackhi_epi32(y0, y1);
    __m256i b0 = _mm256_unpacklo_epi32(y2, y3), b1 = _mm256_unpackhi_epi32(y2, y3);
    column[0] = _mm256_unpacklo_epi64(a0, b0);
    column[1] = _mm256_unpackhi_epi64(a0, b0);
    column[2] = _mm256_unpacklo_epi64(a1, b1);
    column[3] = _mm256_unpackhi_epi64(a1, b1);
}

// 8 rows of 8 words from memory, rows `stride` bytes apart: lane r of column[i] is word i of row r.
KERNEL_INLINE void transpose_8x8_u32(const void *rows, usize stride, __m256i column[8]) {
    const u8 *p = rows;
    __m128i low[8], high[8];
    UNROLL_FULLY
    for (u32 r = 0; r < 8; r++) {
        low[r] = load_128(p + r * stride);
        high[r] = load_128(p + r * stride + 16);
    }
    transpose_8x4_u32(low, column);
    transpose_8x4_u32(high, column + 4);
}

// 8 rows of 8 halfwords: vector i holds elements 2i and 2i+1 of every row, as
// [e(2i) of rows 0-3, e(2i+1) of rows 0-3 | e(2i) of rows 4-7, e(2i+1) of rows 4-7].
KERNEL_INLINE void transpose_8x8_u16(const __m128i row[8], __m256i pair[4]) {
    __m256i y0 = _mm256_inserti128_si256(_mm256_castsi128_si256(row[0]), row[4], 1);
    __m256i y1 = _mm256_inserti128_si256(_mm256_castsi128_si256(row[1]), row[5], 1);
    __m256i y2 = _mm256_inserti128_si256(_mm256_castsi128_si256(row[2]), row[6], 1);
    __m256i y3 = _mm256_inserti128_si256(_mm256_castsi128_si256(row[3]), row[7], 1);
    __m256i a0 = _mm256_unpacklo_epi16(y0, y1), a1 = _mm256_unpackhi_epi16(y0, y1);
    __m256i b0 = _mm256_unpacklo_epi16(y2, y3), b1 = _mm256_unpackhi_epi16(y2, y3);
    pair[0] = _mm256_unpacklo_epi32(a0, b0);
    pair[1] = _mm256_unpackhi_epi32(a0, b0);
    pair[2] = _mm256_unpacklo_epi32(a1, b1);
    pair[3] = _mm256_unpackhi_epi32(a1, b1);
}
// A pair vector's two columns of halves, widened.
KERNEL_INLINE void widen_f16_pair(__m256i pair, __m256 *even, __m256 *odd) {
    __m256i ordered = _mm256_permute4x64_epi64(pair, 0xd8);
    *even = widen_f16x8(_mm256_castsi256_si128(ordered));
    *odd = widen_f16x8(_mm256_extracti128_si256(ordered, 1));
}
KERNEL_INLINE void widen_bf16_pair(__m256i pair, __m256 *even, __m256 *odd) {
    __m256i zero = _mm256_setzero_si256();
    *even = _mm256_castsi256_ps(_mm256_unpacklo_epi16(zero, pair));
    *odd = _mm256_castsi256_ps(_mm256_unpackhi_epi16(zero, pair));
}

// --- the KV cache ---

// Where token `position` of the sequence in `slot` begins in a plane: [n_head_kv, head_dim] f16.
KERNEL_INLINE usize kv_token_offset(const struct kv_layer *kv, u32 slot, u32 position) {
    const u32 *table = kv->tables + (usize)slot * kv->max_blocks;
    return table[position / OP_KV_BLOCK_TOKENS] * kv->page_stride +
           position % OP_KV_BLOCK_TOKENS * kv->token_stride;
}

// First position that the row at `position` sees.
KERNEL_INLINE u32 first_visible(u32 window, u32 position) {
    return window != 0 && position >= window ? position - window + 1 : 0;
}

// --- what the matrix products share ---

#define TILE_PANELS 2
#define TILE_ROWS (TILE_PANELS * LANES)
#define TILE_TOKENS 6    // 12 accumulators, 2 weights and 1 activation fill 16 registers
#define CHUNK_TOKENS 512 // totals of a chunk of tokens: 32 KiB

typedef f32 tile_total[TILE_PANELS][LANES]; // of one token

// Operator 6: the totals of rows row to row + n - 1 (n <= 8) of one token.
KERNEL_INLINE void put_rows(const struct gemm_args *args, u32 row, u32 n, u32 token, __m256 total) {
    usize at = (usize)token * args->out_stride + row;
    if (args->bias != NULL) {
        total = _mm256_add_ps(total, load_f32x8_upto(args->bias + 4 * (usize)row, n));
    }
    if (args->output == GEMM_TO_F16) {
        store_u16x8_upto((f16 *)args->out + at, narrow_f32x8(total), n);
        return;
    }
    f32 *out = (f32 *)args->out + at;
    if (args->output == GEMM_ADD_F32) total = _mm256_add_ps(load_f32x8_upto(out, n), total);
    store_f32x8_upto(out, total, n);
}

// The rows of the panel that starts at `first`, of which n are real (V2).
KERNEL_INLINE void panel_rows(const struct gemm_args *args, u32 first, u32 n,
                              const u8 *row[LANES]) {
    const u8 *base = args->weight + first * args->row_bytes;
    UNROLL_FULLY
    for (u32 r = 0; r < LANES; r++) row[r] = base + MIN(r, n - 1) * args->row_bytes;
}

// Prefetches the weights in the order of their addresses, some bytes a step, PREFETCH_AHEAD and at
// least one panel before they are needed. The rows of a panel are short pieces far apart, which the
// hardware follows badly: from memory this is worth 1.3x to 1.6x. A few lines at a time, for a
// whole group at once fills the miss buffers and was slower than nothing; into L2 when a panel is
// too big for L1 to hold two. What lies past the end of the weights is harmless.
struct ahead {
    const u8 *at;
    bool far;
};
KERNEL_INLINE struct ahead prefetch_begin(const u8 *first, u32 n_rows, usize row_bytes) {
    usize panel_bytes = n_rows * row_bytes;
    usize n_panels = (PREFETCH_AHEAD + panel_bytes - 1) / panel_bytes;
    return (struct ahead){first + n_panels * panel_bytes, panel_bytes > PREFETCH_NEAR};
}
KERNEL_INLINE void prefetch_step(struct ahead *ahead, usize bytes) {
    const char *at = (const char *)ahead->at;
    if (ahead->far) {
        for (usize i = 0; i < bytes; i += PREFETCH_LINE) _mm_prefetch(at + i, _MM_HINT_T1);
    } else {
        for (usize i = 0; i < bytes; i += PREFETCH_LINE) _mm_prefetch(at + i, _MM_HINT_T0);
    }
    ahead->at += bytes;
}

// Totals of the tile of n <= 16 rows from `row`, for one token.
KERNEL_INLINE void put_tile(const struct gemm_args *args, u32 row, u32 n, u32 token,
                            const tile_total total) {
    put_rows(args, row, MIN(n, LANES), token, load_f32x8(total[0]));
    if (n > LANES) put_rows(args, row + LANES, n - LANES, token, load_f32x8(total[1]));
}

// The row pointers of a tile's two panels. When there is no second panel, it repeats the last row.
KERNEL_INLINE void tile_rows(const struct gemm_args *args, u32 first, u32 n,
                             const u8 *row[TILE_PANELS][LANES]) {
    u32 n_second = n > LANES ? n - LANES : 1;
    panel_rows(args, first, MIN(n, LANES), row[0]);
    panel_rows(args, first + n - n_second, n_second, row[1]);
}

// --- the contract's exponential (operator 11), the operations of math_exp_f32 in 8 lanes ---

KERNEL_INLINE __m256 exp_f32x8(__m256 x) {
    const __m256 magic = _mm256_set1_ps(0x1.8p+23f);
    __m256 scaled = _mm256_mul_ps(x, _mm256_set1_ps(MATH_EXP_F32_LOG2E));
    __m256 n = _mm256_sub_ps(_mm256_add_ps(scaled, magic), magic);
    __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(MATH_EXP_F32_LN2_HIGH), x);
    r = _mm256_fnmadd_ps(n, _mm256_set1_ps(MATH_EXP_F32_LN2_LOW), r);
    __m256 p = _mm256_set1_ps(MATH_EXP_F32_C6);
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(MATH_EXP_F32_C5));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(MATH_EXP_F32_C4));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(MATH_EXP_F32_C3));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(MATH_EXP_F32_C2));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(MATH_EXP_F32_C1));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(MATH_EXP_F32_C0));
    __m256i whole = _mm256_cvttps_epi32(n);
    __m256i half = _mm256_srai_epi32(whole, 1);
    const __m256i bias = _mm256_set1_epi32(127);
    __m256i rest = _mm256_add_epi32(_mm256_sub_epi32(whole, half), bias);
    p = _mm256_mul_ps(p, _mm256_castsi256_ps(_mm256_slli_epi32(rest, 23)));
    p = _mm256_mul_ps(p, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23)));
    // Outside the range the lanes above hold anything; they are replaced.
    __m256 below = _mm256_cmp_ps(x, _mm256_set1_ps(MATH_EXP_F32_UNDERFLOW), _CMP_LT_OQ);
    __m256 above = _mm256_cmp_ps(x, _mm256_set1_ps(MATH_EXP_F32_OVERFLOW), _CMP_NLT_UQ);
    p = _mm256_andnot_ps(below, p);
    return _mm256_blendv_ps(p, _mm256_mul_ps(x, _mm256_set1_ps(__builtin_inff())), above);
}
