// SPDX-License-Identifier: Apache-2.0
// The operators that work on one row at a time, for AVX2: rmsnorm, quantize_q16, rope, kv_write,
// silu_mul, gelu_tanh_mul, add and finite. Each is the sequence of reference.c in 8 lanes; elements
// do not meet except in rmsnorm's sum of squares, which follows tree32, and in exact integer sums.
//
// E1. The last elements of a row are computed in a padded vector (zeros) by the same instructions.
#include "cpu/avx2.h"

#define TREE 32u // elements of a block of tree32

// --- rmsnorm ---

KERNEL_INLINE __m256 load_row(const struct rmsnorm_args *args, u32 row, u32 i, u32 n) {
    usize at = (usize)row * args->x_stride + i;
    if (args->x_is_f16) return widen_f16x8(load_u16x8_upto((const f16 *)args->x + at, n));
    return load_f32x8_upto((const f32 *)args->x + at, n);
}

// A block of tree32 in four vectors: element i + 16 to i, then i + 8, and so on.
KERNEL_INLINE f32 tree_block(const __m256 v[4]) {
    return tree_of_8(_mm256_add_ps(_mm256_add_ps(v[0], v[2]), _mm256_add_ps(v[1], v[3])));
}

// tree32 of the squares of a row. Zeros that pad a block change nothing: squares are never -0.
static f32 tree_of_squares(const struct rmsnorm_args *args, u32 row, f32 *sums) {
    u32 n_sums = (args->n + TREE - 1) / TREE;
    for (u32 b = 0; b < n_sums; b++) {
        __m256 v[4];
        UNROLL_FULLY
        for (u32 j = 0; j < 4; j++) {
            u32 i = TREE * b + LANES * j;
            __m256 x = i < args->n ? load_row(args, row, i, args->n - i) : _mm256_setzero_ps();
            v[j] = _mm256_mul_ps(x, x);
        }
        sums[b] = tree_block(v);
    }
    while (n_sums > 1) {
        u32 padded = (u32)round_up(n_sums, TREE);
        for (u32 i = n_sums; i < padded; i++) sums[i] = 0.0f;
        n_sums = padded / TREE;
        for (u32 b = 0; b < n_sums; b++) {
            __m256 v[4];
            UNROLL_FULLY
            for (u32 j = 0; j < 4; j++) v[j] = load_f32x8(&sums[TREE * b + LANES * j]);
            sums[b] = tree_block(v);
        }
    }
    return sums[0];
}

u32 rmsnorm_avx2(const struct rmsnorm_args *args, u32 begin, u32 end, void *scratch) {
    f32 *sums = scratch; // [n / 32 rounded up to a multiple of 32]
    assert(args->n > 0 && args->n <= OP_SCRATCH_BYTES / sizeof(f32));
    assert(args->eps > 0.0f);
    for (u32 row = begin; row < end; row++) {
        f32 ss = tree_of_squares(args, row, sums);
        if (!math_is_finite_f32(ss)) return 1;
        __m256 r = _mm256_set1_ps(1.0f / math_sqrt_f32(ss / (f32)args->n + args->eps));
        for (u32 i = 0; i < args->n; i += LANES) {
            u32 n = args->n - i;
            __m256 w = load_f32x8_upto(args->weight + 4 * (usize)i, n);
            __m256 y = _mm256_mul_ps(_mm256_mul_ps(load_row(args, row, i, n), r), w);
            if (args->y != NULL) {
                f16 *to = args->y + (usize)row * args->y_stride + i;
                store_u16x8_upto(to, narrow_f32x8(y), n);
            } else {
                f32 *to = args->residual + (usize)row * args->residual_stride + i;
                store_f32x8_upto(to, _mm256_add_ps(load_f32x8_upto(to, n), y), n);
            }
        }
    }
    return 0;
}

// --- quantize_q16 ---

// The largest |x|, as bits, of n halves (a multiple of 32).
static u16 largest_magnitude(const f16 *x, u32 n) {
    const __m256i mask = _mm256_set1_epi16(0x7fff);
    __m256i most = _mm256_setzero_si256();
    for (u32 i = 0; i < n; i += 16) {
        most = _mm256_max_epi16(most, _mm256_and_si256(load_256(x + i), mask));
    }
    __m128i m = _mm_max_epi16(_mm256_castsi256_si128(most), _mm256_extracti128_si256(most, 1));
    // minpos finds the smallest; the complement turns the order round.
    __m128i least = _mm_minpos_epu16(_mm_xor_si128(m, _mm_set1_epi16(-1)));
    return (u16)~_mm_extract_epi16(least, 0);
}

// 16 halves times inv, rounded to nearest even (MXCSR, as the contract sets it).
KERNEL_INLINE __m256i quantize_16(const f16 *x, __m256 inv) {
    __m256i low = _mm256_cvtps_epi32(_mm256_mul_ps(load_f16x8(x), inv));
    __m256i high = _mm256_cvtps_epi32(_mm256_mul_ps(load_f16x8(x + 8), inv));
    return _mm256_permute4x64_epi64(_mm256_packs_epi32(low, high), 0xd8);
}

KERNEL_INLINE i32 sum_of_16(__m256i a) {
    __m256i pairs = _mm256_madd_epi16(a, _mm256_set1_epi16(1));
    __m128i v = _mm_add_epi32(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
    v = _mm_add_epi32(v, _mm_shuffle_epi32(v, 0x4e));
    v = _mm_add_epi32(v, _mm_shuffle_epi32(v, 0xb1));
    return _mm_cvtsi128_si32(v);
}

u32 quantize_q16_avx2(const struct quantize_args *args, u32 begin, u32 end, void *scratch) {
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
            __m256 inv = _mm256_set1_ps(amax_bits == 0 ? 0.0f : 32767.0f / amax);
            scale[at / OP_GROUP] = amax / 32767.0f;
            for (u32 i = at; i < at + n; i += 32) {
                __m256i low = quantize_16(x + i, inv), high = quantize_16(x + i + 16, inv);
                i32 sum_low = sum_of_16(low), sum_high = sum_of_16(high);
                store_256(a + i, low);
                store_256(a + i + 16, high);
                sum16[i / 16] = sum_low;
                sum16[i / 16 + 1] = sum_high;
                sum32[i / 32] = sum_low + sum_high;
            }
        }
    }
    return 0;
}

// --- rope ---

// Pairs [i, i + n) of a head, n <= 8, partners n_pairs apart.
KERNEL_INLINE void rotate_split(f16 *x, u32 n_pairs, u32 i, const f32 *table) {
    u32 n = n_pairs - i;
    __m256 t0 = load_f32x8_upto(table + 2 * (usize)i, 2 * n);
    __m256 t1 = n > 4 ? load_f32x8_upto(table + 2 * (usize)i + 8, 2 * n - 8) : _mm256_setzero_ps();
    __m256d c_pairs = _mm256_castps_pd(_mm256_shuffle_ps(t0, t1, 0x88));
    __m256d s_pairs = _mm256_castps_pd(_mm256_shuffle_ps(t0, t1, 0xdd));
    __m256 c = _mm256_castpd_ps(_mm256_permute4x64_pd(c_pairs, 0xd8));
    __m256 s = _mm256_castpd_ps(_mm256_permute4x64_pd(s_pairs, 0xd8));
    __m256 x0 = widen_f16x8(load_u16x8_upto(x + i, n));
    __m256 x1 = widen_f16x8(load_u16x8_upto(x + n_pairs + i, n));
    __m256 y0 = _mm256_fmsub_ps(x0, c, _mm256_mul_ps(x1, s));
    __m256 y1 = _mm256_fmadd_ps(x0, s, _mm256_mul_ps(x1, c));
    store_u16x8_upto(x + i, narrow_f32x8(y0), n);
    store_u16x8_upto(x + n_pairs + i, narrow_f32x8(y1), n);
}

// Pairs [i, i + 4) of a head, partners adjacent: even lanes get fma(x0, c, -(x1 * s)), odd lanes
// fma(x0, s, x1 * c).
KERNEL_INLINE void rotate_adjacent(f16 *x, u32 n_pairs, u32 i, const f32 *table) {
    u32 n = 2 * (n_pairs - i);
    __m256 cs = load_f32x8_upto(table + 2 * (usize)i, n);
    __m256 sc = _mm256_permute_ps(cs, 0xb1);
    __m256 pair = widen_f16x8(load_u16x8_upto(x + 2 * (usize)i, n));
    __m256 y = _mm256_fmaddsub_ps(_mm256_moveldup_ps(pair), cs,
                                  _mm256_mul_ps(_mm256_movehdup_ps(pair), sc));
    store_u16x8_upto(x + 2 * (usize)i, narrow_f32x8(y), n);
}

static u32 any_not_finite_f16(const f16 *x, u32 n) {
    __m128i bad = _mm_setzero_si128();
    for (u32 i = 0; i < n; i += LANES) {
        bad = _mm_or_si128(bad, f16_not_finite(load_u16x8_upto(x + i, n - i)));
    }
    return any_128(bad);
}

u32 rope_avx2(const struct rope_args *args, u32 begin, u32 end, void *scratch) {
    (void)scratch;
    u32 n_pairs = args->rope_dim / 2;
    u32 failed = 0;
    for (u32 t = begin; t < end; t++) {
        const f32 *table = args->table + (usize)args->positions[t] * n_pairs * 2;
        for (u32 h = 0; h < args->n_head; h++) {
            f16 *x = args->x + (usize)t * args->x_stride + (usize)h * args->head_dim;
            if (args->neox) {
                for (u32 i = 0; i < n_pairs; i += LANES) rotate_split(x, n_pairs, i, table);
            } else {
                for (u32 i = 0; i < n_pairs; i += LANES / 2) rotate_adjacent(x, n_pairs, i, table);
            }
        }
        // All heads, also what was not turned.
        failed |= any_not_finite_f16(args->x + (usize)t * args->x_stride,
                                     args->n_head * args->head_dim);
    }
    return failed;
}

// --- kv_write ---

static u32 copy_checked(const f16 *from, u8 *to, u32 n) {
    __m128i bad = _mm_setzero_si128();
    for (u32 i = 0; i < n; i += LANES) {
        __m128i halves = load_u16x8_upto(from + i, n - i);
        bad = _mm_or_si128(bad, f16_not_finite(halves));
        store_u16x8_upto(to + 2 * (usize)i, halves, n - i);
    }
    return any_128(bad);
}

u32 kv_write_avx2(const struct kv_write_args *args, u32 begin, u32 end, void *scratch) {
    (void)scratch;
    const struct kv_layer *kv = &args->kv;
    u32 failed = 0;
    for (u32 t = begin; t < end; t++) {
        usize at = kv_token_offset(kv, args->slots[t], args->positions[t]);
        failed |= copy_checked(args->k + (usize)t * args->k_stride, kv->k + at, args->n);
        failed |= copy_checked(args->v + (usize)t * args->v_stride, kv->v + at, args->n);
    }
    return failed;
}

// --- act_mul ---

// g times the logistic function of z, times u.
KERNEL_INLINE __m256 gated(__m256 g, __m256 z, __m256 u) {
    const __m256 one = _mm256_set1_ps(1.0f), sign = _mm256_set1_ps(-0.0f);
    __m256 sigmoid = _mm256_div_ps(one, _mm256_add_ps(one, exp_f32x8(_mm256_xor_ps(z, sign))));
    return _mm256_mul_ps(_mm256_mul_ps(g, sigmoid), u);
}

KERNEL_INLINE __m256 silu_gate(__m256 g, __m256 u) { return gated(g, g, u); }

KERNEL_INLINE __m256 gelu_gate(__m256 g, __m256 u) {
    __m256 inner = _mm256_fmadd_ps(_mm256_set1_ps(OP_GELU_C3), _mm256_mul_ps(g, g),
                                   _mm256_set1_ps(OP_GELU_C1));
    return gated(g, _mm256_mul_ps(g, inner), u);
}

typedef __m256 gate_fn(__m256 g, __m256 u);

KERNEL_INLINE u32 act_mul(gate_fn *gate, const struct act_mul_args *args, u32 begin, u32 end) {
    for (u32 row = begin; row < end; row++) {
        const f16 *g = args->gate + (usize)row * args->gate_stride;
        const f16 *u = args->up + (usize)row * args->up_stride;
        f16 *out = args->out + (usize)row * args->out_stride;
        for (u32 i = 0; i < args->n; i += LANES) {
            u32 n = args->n - i;
            __m256 y = gate(widen_f16x8(load_u16x8_upto(g + i, n)),
                            widen_f16x8(load_u16x8_upto(u + i, n)));
            store_u16x8_upto(out + i, narrow_f32x8(y), n);
        }
    }
    return 0;
}

u32 silu_mul_avx2(const struct act_mul_args *args, u32 begin, u32 end, void *scratch) {
    (void)scratch;
    return act_mul(silu_gate, args, begin, end);
}

u32 gelu_tanh_mul_avx2(const struct act_mul_args *args, u32 begin, u32 end, void *scratch) {
    (void)scratch;
    return act_mul(gelu_gate, args, begin, end);
}

// --- add, finite ---

u32 add_avx2(const struct add_args *args, u32 begin, u32 end, void *scratch) {
    (void)scratch;
    for (u32 row = begin; row < end; row++) {
        f32 *residual = args->residual + (usize)row * args->residual_stride;
        const f32 *x = args->x + (usize)row * args->x_stride;
        for (u32 i = 0; i < args->n; i += LANES) {
            u32 n = args->n - i;
            __m256 sum = _mm256_add_ps(load_f32x8_upto(residual + i, n), load_f32x8_upto(x + i, n));
            store_f32x8_upto(residual + i, sum, n);
        }
    }
    return 0;
}

u32 finite_avx2(const struct finite_args *args, u32 begin, u32 end, void *scratch) {
    (void)scratch;
    for (u32 row = begin; row < end; row++) {
        const f32 *x = args->x + (usize)row * args->x_stride;
        __m256i bad = _mm256_setzero_si256();
        for (u32 i = 0; i < args->n; i += LANES) {
            bad = _mm256_or_si256(bad, f32_not_finite(load_f32x8_upto(x + i, args->n - i)));
        }
        if (any_256(bad)) return 1;
    }
    return 0;
}
