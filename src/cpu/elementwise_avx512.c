// SPDX-License-Identifier: Apache-2.0
// The operators that work on one row at a time, for AVX-512: rmsnorm, quantize_q16, rope, silu_mul
// and gelu_tanh_mul. Each is the sequence of reference.c in 16 lanes; elements do not meet except
// in rmsnorm's sum of squares, which follows tree32, and in exact integer sums. kv_write, add and
// finite stay the AVX2 ones: they move memory, and a token spends less than 0.1 % of its time
// there.
//
// E1. The last elements of a row are read and written by masks; absent lanes are zero.
#include "cpu/avx512.h"
#include "cpu/kernels.h"

#define TREE 32u // elements of a block of tree32
#define TREES_AT_ONCE 8u

KERNEL_INLINE __m512 load_f32_some(const void *p, u32 n) { // the first n lanes
    return _mm512_maskz_loadu_ps(first_lanes(n), p);
}
KERNEL_INLINE __m512 load_f16_some(const f16 *p, u32 n) {
    return widen_f16x16(load_u16x16_some(first_lanes(n), p));
}
KERNEL_INLINE void store_f16_some(f16 *p, u32 n, __m512 v) {
    store_u16x16_some(first_lanes(n), p, narrow_f32x16(v));
}

// --- rmsnorm ---

// Elements [i, i + 16) of a row of n; zeros from n on.
KERNEL_INLINE __m512 load_row(bool is_f16, const void *x, u32 i, u32 n) {
    if (i >= n) return _mm512_setzero_ps();
    return is_f16 ? load_f16_some((const f16 *)x + i, n - i)
                  : load_f32_some((const f32 *)x + i, n - i);
}

// The first two additions of a block of tree32: 32 lanes to 8.
KERNEL_INLINE __m256 tree_to_8(__m512 low, __m512 high) {
    __m512 sum = _mm512_add_ps(low, high);
    return _mm256_add_ps(_mm512_castps512_ps256(sum), _mm512_extractf32x8_ps(sum, 1));
}

// tree32 of the squares of a row. Zeros that pad a block change nothing: squares are never -0; and
// sums of absent blocks are the +0 that pads the next level.
KERNEL_INLINE f32 tree_of_squares(bool is_f16, const void *x, u32 n, f32 *sums) {
    u32 n_sums = (n + TREE - 1) / TREE;
    for (u32 b = 0; b < n_sums; b += TREES_AT_ONCE) {
        __m256 block[TREES_AT_ONCE];
        UNROLL_FULLY
        for (u32 j = 0; j < TREES_AT_ONCE; j++) {
            __m512 low = load_row(is_f16, x, TREE * (b + j), n);
            __m512 high = load_row(is_f16, x, TREE * (b + j) + LANES_16, n);
            block[j] = tree_to_8(_mm512_mul_ps(low, low), _mm512_mul_ps(high, high));
        }
        store_f32x8(&sums[b], tree_of_8_each(block));
    }
    while (n_sums > 1) {
        u32 padded = (u32)round_up(n_sums, TREE);
        for (u32 i = n_sums; i < padded; i++) sums[i] = 0.0f;
        n_sums = padded / TREE;
        for (u32 b = 0; b < n_sums; b++) {
            const f32 *from = &sums[(usize)TREE * b];
            sums[b] = tree_of_8(tree_to_8(load_f32x16(from), load_f32x16(from + LANES_16)));
        }
    }
    return sums[0];
}

KERNEL_INLINE u32 rmsnorm_rows(bool is_f16, const struct rmsnorm_args *args, u32 begin, u32 end,
                               f32 *sums) {
    for (u32 row = begin; row < end; row++) {
        usize at = (usize)row * args->x_stride;
        const void *x = is_f16 ? (const void *)((const f16 *)args->x + at)
                               : (const void *)((const f32 *)args->x + at);
        f32 ss = tree_of_squares(is_f16, x, args->n, sums);
        if (!math_is_finite_f32(ss)) return 1;
        __m512 r = _mm512_set1_ps(1.0f / math_sqrt_f32(ss / (f32)args->n + args->eps));
        for (u32 i = 0; i < args->n; i += LANES_16) {
            u32 n = args->n - i;
            __m512 w = load_f32_some(args->weight + 4 * (usize)i, n);
            __m512 y = _mm512_mul_ps(_mm512_mul_ps(load_row(is_f16, x, i, args->n), r), w);
            if (args->y != NULL) {
                store_f16_some(args->y + (usize)row * args->y_stride + i, n, y);
            } else {
                f32 *to = args->residual + (usize)row * args->residual_stride + i;
                __m512 sum = _mm512_add_ps(load_f32_some(to, n), y);
                _mm512_mask_storeu_ps(to, first_lanes(n), sum);
            }
        }
    }
    return 0;
}

u32 rmsnorm_avx512(const struct rmsnorm_args *args, u32 begin, u32 end, void *scratch) {
    f32 *sums = scratch; // [n / 32 rounded up to a multiple of 32]
    assert(args->n > 0 && args->n <= OP_SCRATCH_BYTES / sizeof(f32));
    assert(args->eps > 0.0f);
    return args->x_is_f16 ? rmsnorm_rows(true, args, begin, end, sums)
                          : rmsnorm_rows(false, args, begin, end, sums);
}

// --- quantize_q16 ---

// The largest |x|, as bits, of n halves (a multiple of 32).
static u16 largest_magnitude(const f16 *x, u32 n) {
    const __m512i mask = _mm512_set1_epi16(0x7fff);
    __m512i most = _mm512_setzero_si512();
    for (u32 i = 0; i < n; i += 32) {
        most = _mm512_max_epu16(most, _mm512_and_si512(load_512(x + i), mask));
    }
    __m256i half =
        _mm256_max_epu16(_mm512_castsi512_si256(most), _mm512_extracti64x4_epi64(most, 1));
    __m128i m = _mm_max_epu16(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    // minpos finds the smallest; the complement turns the order round.
    __m128i least = _mm_minpos_epu16(_mm_xor_si128(m, _mm_set1_epi16(-1)));
    return (u16)~_mm_extract_epi16(least, 0);
}

// 32 halves times inv, rounded to nearest even (MXCSR, as the contract sets it), to a; the result
// has the sums of neighbours.
KERNEL_INLINE __m512i quantize_32(const f16 *x, __m512 inv, i16 *a) {
    __m512 low = widen_f16x16(load_256(x)), high = widen_f16x16(load_256(x + LANES_16));
    __m256i a_low = _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(_mm512_mul_ps(low, inv)));
    __m256i a_high = _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(_mm512_mul_ps(high, inv)));
    __m512i all = _mm512_inserti64x4(_mm512_castsi256_si512(a_low), a_high, 1);
    _mm512_storeu_si512(a, all);
    return _mm512_madd_epi16(all, _mm512_set1_epi16(1));
}

// v_i has 16 words; the result's words 2 i and 2 i + 1 are the sums of v_i's lower and upper 8.
KERNEL_INLINE __m512i sums_of_8(const __m512i v[8]) {
    __m512i a = sums_of_4(v[0], v[1], v[2], v[3]), b = sums_of_4(v[4], v[5], v[6], v[7]);
    // Lanes 0 and 1 make the lower 8 words.
    __m512i even = _mm512_shuffle_i32x4(a, b, 0x88); // a 0, a 2, b 0, b 2
    __m512i odd = _mm512_shuffle_i32x4(a, b, 0xdd);
    const __m512i order = _mm512_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15);
    return _mm512_permutexvar_epi32(order, _mm512_add_epi32(even, odd));
}

// Quantises a group of 256.
KERNEL_INLINE void quantize_group(const f16 *x, __m512 inv, i16 *a, i32 *sum16, i32 *sum32) {
    __m512i v[8];
    UNROLL_FULLY
    for (u32 i = 0; i < 8; i++) v[i] = quantize_32(x + (usize)(32 * i), inv, a + (usize)(32 * i));
    __m512i sums = sums_of_8(v);
    _mm512_storeu_si512(sum16, sums);
    // Words of sum32: the sums of neighbours.
    __m512i both = _mm512_add_epi32(sums, _mm512_srli_epi64(sums, 32));
    store_256(sum32, _mm512_cvtepi64_epi32(both));
}

u32 quantize_q16_avx512(const struct quantize_args *args, u32 begin, u32 end, void *scratch) {
    (void)scratch;
    assert(args->n % 32 == 0);
    for (u32 row = begin; row < end; row++) {
        const f16 *x = args->x + (usize)row * args->x_stride;
        i16 *a = args->out.a + (usize)row * args->out.a_stride;
        f32 *scale = args->out.scale + (usize)row * args->out.scale_stride;
        i32 *sum16 = args->out.sum16 + (usize)row * args->out.sum_stride;
        i32 *sum32 = args->out.sum32 + (usize)row * args->out.sum_stride;
        for (u32 at = 0; at < args->n; at += OP_GROUP) {
            u32 n = MIN(args->n - at, OP_GROUP);
            u16 amax_bits = largest_magnitude(x + at, n);
            if (amax_bits >= 0x7c00) return 1;
            f32 amax = f16_to_f32(amax_bits);
            __m512 inv = _mm512_set1_ps(amax_bits == 0 ? 0.0f : 32767.0f / amax);
            scale[at / OP_GROUP] = amax / 32767.0f;
            if (n == OP_GROUP) {
                quantize_group(x + at, inv, a + at, sum16 + at / 16, sum32 + at / 32);
                continue;
            }
            for (u32 i = at; i < at + n; i += 32) {
                __m512i pairs = quantize_32(x + i, inv, a + i);
                i32 low = _mm512_mask_reduce_add_epi32(0x00ff, pairs);
                i32 high = _mm512_mask_reduce_add_epi32(0xff00, pairs);
                sum16[i / 16] = low;
                sum16[i / 16 + 1] = high;
                sum32[i / 32] = low + high;
            }
        }
    }
    return 0;
}

// --- rope ---

// Pairs [i, i + 16) of a head, or as many as are left, partners n_pairs apart.
KERNEL_INLINE void rotate_split(f16 *x, u32 n_pairs, u32 i, const f32 *table) {
    const __m512i even =
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
    u32 n = n_pairs - i;
    const f32 *cs = table + 2 * (usize)i;
    __m512 t0 = load_f32_some(cs, 2 * n);
    __m512 t1 = n > 8 ? load_f32_some(cs + LANES_16, 2 * n - LANES_16) : _mm512_setzero_ps();
    __m512 c = _mm512_permutex2var_ps(t0, even, t1), s = _mm512_permutex2var_ps(t0, odd, t1);
    __m512 x0 = load_f16_some(x + i, n), x1 = load_f16_some(x + n_pairs + i, n);
    store_f16_some(x + i, n, _mm512_fmsub_ps(x0, c, _mm512_mul_ps(x1, s)));
    store_f16_some(x + n_pairs + i, n, _mm512_fmadd_ps(x0, s, _mm512_mul_ps(x1, c)));
}

// Pairs [i, i + 8) of a head, partners adjacent: even lanes get fma(x0, c, -(x1 * s)), odd lanes
// fma(x0, s, x1 * c).
KERNEL_INLINE void rotate_adjacent(f16 *x, u32 n_pairs, u32 i, const f32 *table) {
    u32 n = 2 * (n_pairs - i);
    __m512 cs = load_f32_some(table + 2 * (usize)i, n);
    __m512 sc = _mm512_permute_ps(cs, 0xb1);
    __m512 pair = load_f16_some(x + 2 * (usize)i, n);
    __m512 y = _mm512_fmaddsub_ps(_mm512_moveldup_ps(pair), cs,
                                  _mm512_mul_ps(_mm512_movehdup_ps(pair), sc));
    store_f16_some(x + 2 * (usize)i, n, y);
}

static u32 any_not_finite_f16(const f16 *x, u32 n) {
    const __m512i infinity = _mm512_set1_epi16(0x7c00), mask = _mm512_set1_epi16(0x7fff);
    __mmask32 bad = 0;
    for (u32 i = 0; i < n; i += 32) {
        __mmask32 some = n - i >= 32 ? ~0u : (1u << (n - i)) - 1;
        __m512i halves = _mm512_maskz_loadu_epi16(some, x + i);
        bad |= _mm512_cmpge_epu16_mask(_mm512_and_si512(halves, mask), infinity);
    }
    return bad != 0;
}

u32 rope_avx512(const struct rope_args *args, u32 begin, u32 end, void *scratch) {
    (void)scratch;
    u32 n_pairs = args->rope_dim / 2;
    u32 failed = 0;
    for (u32 t = begin; t < end; t++) {
        const f32 *table = args->table + (usize)args->positions[t] * n_pairs * 2;
        for (u32 h = 0; h < args->n_head; h++) {
            f16 *x = args->x + (usize)t * args->x_stride + (usize)h * args->head_dim;
            if (args->neox) {
                for (u32 i = 0; i < n_pairs; i += LANES_16) rotate_split(x, n_pairs, i, table);
            } else {
                for (u32 i = 0; i < n_pairs; i += LANES) rotate_adjacent(x, n_pairs, i, table);
            }
        }
        // All heads, also what was not turned.
        failed |=
            any_not_finite_f16(args->x + (usize)t * args->x_stride, args->n_head * args->head_dim);
    }
    return failed;
}

// --- act_mul ---

// g times the logistic function of z, times u.
KERNEL_INLINE __m512 gated(__m512 g, __m512 z, __m512 u) {
    const __m512 one = _mm512_set1_ps(1.0f), sign = _mm512_set1_ps(-0.0f);
    __m512 sigmoid = _mm512_div_ps(one, _mm512_add_ps(one, exp_f32x16(_mm512_xor_ps(z, sign))));
    return _mm512_mul_ps(_mm512_mul_ps(g, sigmoid), u);
}

KERNEL_INLINE __m512 silu_gate(__m512 g, __m512 u) { return gated(g, g, u); }

KERNEL_INLINE __m512 gelu_gate(__m512 g, __m512 u) {
    __m512 inner = _mm512_fmadd_ps(_mm512_set1_ps(OP_GELU_C3), _mm512_mul_ps(g, g),
                                   _mm512_set1_ps(OP_GELU_C1));
    return gated(g, _mm512_mul_ps(g, inner), u);
}

typedef __m512 gate_16_fn(__m512 g, __m512 u);

KERNEL_INLINE u32 act_mul(gate_16_fn *gate, const struct act_mul_args *args, u32 begin, u32 end) {
    for (u32 row = begin; row < end; row++) {
        const f16 *g = args->gate + (usize)row * args->gate_stride;
        const f16 *u = args->up + (usize)row * args->up_stride;
        f16 *out = args->out + (usize)row * args->out_stride;
        for (u32 i = 0; i < args->n; i += LANES_16) {
            u32 n = args->n - i;
            store_f16_some(out + i, n, gate(load_f16_some(g + i, n), load_f16_some(u + i, n)));
        }
    }
    return 0;
}

u32 silu_mul_avx512(const struct act_mul_args *args, u32 begin, u32 end, void *scratch) {
    (void)scratch;
    return act_mul(silu_gate, args, begin, end);
}

u32 gelu_tanh_mul_avx512(const struct act_mul_args *args, u32 begin, u32 end, void *scratch) {
    (void)scratch;
    return act_mul(gelu_gate, args, begin, end);
}

// --- the exponential, for tests ---

void exp_16_avx512(const f32 x[LANES_16], f32 y[LANES_16]) {
    store_f32x16(y, exp_f32x16(load_f32x16(x)));
}
