// SPDX-License-Identifier: Apache-2.0
// Matrix products with quantised weights (operators 4 and 6 of docs/contract.md) for AVX2. The
// lanes of a vector are 8 weight rows, a panel; so the f32 chain over blocks, which has an order,
// never runs across lanes, and only exact integer sums do.
//
// Three ways, by the number of tokens; all give the same bits:
//   one      a block of 8 rows is unpacked to i16 in registers, multiplied by the 16-bit
//            activations (vpmaddwd: exact, no saturation), and 8 vectors of 8 partial sums are
//            added across into one vector of 8 row sums. Types that unpack to bytes are split into
//            even and odd elements, which is cheaper than widening; the activations are brought
//            into that order once. The bytes of the next panels are prefetched.
//   few      a group of 256 of 8 rows is unpacked once to memory (4 KiB, L1), then as above for
//            each token.
//   many     a group of 16 rows is unpacked once and transposed to pairs of k, tile[k/2][row][2];
//            a broadcast pair of activations then meets 8 rows at once and nothing is added across
//            lanes. 16 rows x 6 tokens are in flight.
//
// G1. q is at most 8 bits and a at most 15 bits and sign, so a pair of products fits i32, and so do
//     the sums of a block; docs/contract.md has the bounds. Q2_K and Q3_K multiply the block's
//     scale into q first (|sc * q| <= 128): their sum over the whole group is one exact integer.
// G2. Partial sums of the same products in any order stay within the sum of their magnitudes, so
//     the bounds hold for them too.
// G3. Each block is read by loads that lie inside it (V1).
#include "cpu/avx2.h"
#include "cpu/gemm.h"

#define FEW_TOKENS_MAX 5 // from 6 tokens on the transposed tile wins, for all types

// The scales of a panel's group; which are used depends on the form.
struct panel_scales {
    f32 scale[16][LANES]; // d per 32, or sc per 32 or per 16
    f32 m[8][LANES];
    i32 sc[16][LANES]; // of the forms with one integer
    i32 mn[16][LANES];
    f32 d[LANES], dmin[LANES];
};

// --- what a block looks like ---

// What q is above its signed value, as a power of two; 0 when it is the value.
KERNEL_INLINE u32 zero_point_log2(enum dtype type) {
    switch (type) {
    case DTYPE_Q3_K: return 2;
    case DTYPE_Q4_0: return 3;
    case DTYPE_Q5_0: return 4;
    case DTYPE_Q6_K: return 5;
    default: return 0;
    }
}

// Low nibbles of 16 bytes, then high ones.
KERNEL_INLINE __m256i nibbles_of_16(const u8 *p) {
    __m256i twice = _mm256_broadcastsi128_si256(load_128(p));
    __m256i shifted = _mm256_srlv_epi64(twice, _mm256_setr_epi64x(0, 0, 4, 4));
    return _mm256_and_si256(shifted, _mm256_set1_epi8(15));
}

// 16 in byte l where bit l of `bits` is set, else 0.
KERNEL_INLINE __m256i fifth_bits(u32 bits) {
    const __m256i byte_of_lane =
        _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i bit_of_lane = _mm256_set1_epi64x((i64)0x8040201008040201);
    __m256i bytes = _mm256_shuffle_epi8(_mm256_set1_epi32((i32)bits), byte_of_lane);
    __m256i set = _mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit_of_lane), bit_of_lane);
    return _mm256_and_si256(set, _mm256_set1_epi8(16));
}

// The bits of `mask` (in every byte) of v shifted left, or right when negative, by a constant. Bits
// that cross into a neighbour's byte are outside the mask.
KERNEL_INLINE __m256i masked_shift(__m256i v, int left, int mask) {
    if (left > 0) v = _mm256_slli_epi16(v, left);
    if (left < 0) v = _mm256_srli_epi16(v, -left);
    return _mm256_and_si256(v, _mm256_set1_epi8((char)mask));
}

// The 32 elements of block b as bytes, the zero point still in. `p` is the block, or for the K
// types the super block, b being the place in it (a constant after unrolling).
KERNEL_INLINE __m256i unpack_bytes(enum dtype type, const u8 *p, u32 b) {
    switch (type) {
    case DTYPE_Q4_0:
    case DTYPE_Q4_1: return nibbles_of_16(p + block_bytes(type) - 16);
    case DTYPE_Q5_0:
    case DTYPE_Q5_1: {
        u32 bits = load_u32(p + block_bytes(type) - 20);
        return _mm256_or_si256(nibbles_of_16(p + block_bytes(type) - 16), fifth_bits(bits));
    }
    case DTYPE_Q8_0: return load_256(p + 2);
    case DTYPE_Q4_K: // bytes 32j to 32j+31: low nibbles block 2j, high ones block 2j+1
        return masked_shift(load_256(p + 16 + 32 * (b / 2)), b % 2 == 0 ? 0 : -4, 15);
    case DTYPE_Q5_K: { // as Q4_K; bit b of byte l of the fifth bits belongs to element l of block b
        __m256i low = masked_shift(load_256(p + 48 + 32 * (b / 2)), b % 2 == 0 ? 0 : -4, 15);
        return _mm256_or_si256(low, masked_shift(load_256(p + 16), 4 - (int)b, 16));
    }
    case DTYPE_Q6_K: { // halves of 128: 4 runs of 32 share 64 bytes of nibbles, 32 of pairs
        __m256i nibbles = load_256(p + 64 * (b / 4) + 32 * (b % 2));
        __m256i pairs = load_256(p + 128 + 32 * (b / 4));
        return _mm256_or_si256(masked_shift(nibbles, b % 4 < 2 ? 0 : -4, 15),
                               masked_shift(pairs, 4 - 2 * (int)(b % 4), 0x30));
    }
    case DTYPE_Q2_K: // halves of 128: 4 runs of 32 in the four bit pairs of 32 bytes
        return masked_shift(load_256(p + 16 + 32 * (b / 4)), -2 * (int)(b % 4), 3);
    case DTYPE_Q3_K: { // as Q2_K; bit b of byte l of the third bits belongs to run b
        __m256i low = masked_shift(load_256(p + 32 + 32 * (b / 4)), -2 * (int)(b % 4), 3);
        return _mm256_or_si256(low, masked_shift(load_256(p), 2 - (int)b, 4));
    }
    default: assert(!"a quantised type");
    }
}

// Elements 0-15 and 16-31 as i16, with the zero point taken off.
KERNEL_INLINE void unpack_ordered(enum dtype type, const u8 *p, u32 b, __m256i *w0, __m256i *w1) {
    const __m256i zero =
        _mm256_set1_epi16((i16)(zero_point_log2(type) == 0 ? 0 : 1 << zero_point_log2(type)));
    __m256i bytes = unpack_bytes(type, p, b);
    __m128i low = _mm256_castsi256_si128(bytes), high = _mm256_extracti128_si256(bytes, 1);
    if (type == DTYPE_Q8_0) {
        *w0 = _mm256_cvtepi8_epi16(low);
        *w1 = _mm256_cvtepi8_epi16(high);
    } else {
        *w0 = _mm256_sub_epi16(_mm256_cvtepu8_epi16(low), zero);
        *w1 = _mm256_sub_epi16(_mm256_cvtepu8_epi16(high), zero);
    }
}

// The way of one token, cheapest per type, with the zero point in: w0 and w1 are elements 0-15 and
// 16-31, or (is_split) the even and the odd elements.
KERNEL_INLINE bool is_split(enum dtype type) {
    return type != DTYPE_Q8_0 && type != DTYPE_Q4_0 && type != DTYPE_Q4_1;
}
KERNEL_INLINE void unpack_fast(enum dtype type, const u8 *p, u32 b, __m256i *w0, __m256i *w1) {
    if (type == DTYPE_Q8_0) {
        *w0 = _mm256_cvtepi8_epi16(load_128(p + 2));
        *w1 = _mm256_cvtepi8_epi16(load_128(p + 18));
    } else if (!is_split(type)) {
        __m256i x = _mm256_cvtepu8_epi16(load_128(p + block_bytes(type) - 16));
        *w0 = _mm256_and_si256(x, _mm256_set1_epi16(15));
        *w1 = _mm256_srli_epi16(x, 4);
    } else {
        __m256i bytes = unpack_bytes(type, p, b);
        *w0 = _mm256_and_si256(bytes, _mm256_set1_epi16(0xff));
        *w1 = _mm256_srli_epi16(bytes, 8);
    }
}

// The 16 integer scales of one row's super block of Q2_K or Q3_K.
KERNEL_INLINE void row_scales(enum dtype type, const u8 *p, i16 scale[16]) {
    const __m128i low4 = _mm_set1_epi8(15);
    __m128i bytes;
    if (type == DTYPE_Q2_K) {
        bytes = _mm_and_si128(load_128(p), low4);
    } else { // 16 low nibbles in 8 bytes; 4 bytes whose bit pairs j top the nibbles 4j to 4j+3
        __m128i nibbles = _mm_cvtsi64_si128((i64)load_u64(p + 96));
        __m128i low = _mm_and_si128(nibbles, low4);
        __m128i high = _mm_and_si128(_mm_srli_epi16(nibbles, 4), low4);
        __m128i pairs =
            _mm_srlv_epi32(_mm_set1_epi32(load_i32(p + 104)), _mm_setr_epi32(0, 2, 4, 6));
        pairs = _mm_slli_epi16(_mm_and_si128(pairs, _mm_set1_epi8(3)), 4);
        bytes = _mm_or_si128(_mm_unpacklo_epi64(low, high), pairs);
        bytes = _mm_sub_epi8(bytes, _mm_set1_epi8(32));
    }
    store_256(scale, _mm256_cvtepi8_epi16(bytes));
}

// --- scales of 8 rows ---

KERNEL_INLINE __m256 gather_f16(const u8 *const row[LANES], usize at) {
    __m128i low = _mm_cvtsi32_si128(load_u16(row[0] + at));
    __m128i high = _mm_cvtsi32_si128(load_u16(row[4] + at));
    low = _mm_insert_epi16(low, load_u16(row[1] + at), 1);
    high = _mm_insert_epi16(high, load_u16(row[5] + at), 1);
    low = _mm_insert_epi16(low, load_u16(row[2] + at), 2);
    high = _mm_insert_epi16(high, load_u16(row[6] + at), 2);
    low = _mm_insert_epi16(low, load_u16(row[3] + at), 3);
    high = _mm_insert_epi16(high, load_u16(row[7] + at), 3);
    return widen_f16x8(_mm_unpacklo_epi64(low, high));
}

// Words of two halves, to the low halves and the high halves.
KERNEL_INLINE void split_f16_words(__m256i words, __m256 *low, __m256 *high) {
    const __m256i apart = _mm256_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15, //
                                           0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
    __m256i halves = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(words, apart), 0xd8);
    *low = widen_f16x8(_mm256_castsi256_si128(halves));
    *high = widen_f16x8(_mm256_extracti128_si256(halves, 1));
}

KERNEL_INLINE __m256i gather_u32(const u8 *const row[LANES], usize at) {
    __m128i low = _mm_cvtsi32_si128(load_i32(row[0] + at));
    __m128i high = _mm_cvtsi32_si128(load_i32(row[4] + at));
    low = _mm_insert_epi32(low, load_i32(row[1] + at), 1);
    high = _mm_insert_epi32(high, load_i32(row[5] + at), 1);
    low = _mm_insert_epi32(low, load_i32(row[2] + at), 2);
    high = _mm_insert_epi32(high, load_i32(row[6] + at), 2);
    low = _mm_insert_epi32(low, load_i32(row[3] + at), 3);
    high = _mm_insert_epi32(high, load_i32(row[7] + at), 3);
    return _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
}

KERNEL_INLINE void gather_16_bytes(const u8 *const row[LANES], usize at, __m256i column[4]) {
    __m128i line[LANES];
    UNROLL_FULLY
    for (u32 r = 0; r < LANES; r++) line[r] = load_128(row[r] + at);
    transpose_8x4_u32(line, column);
}

// Byte i of each word, widened.
KERNEL_INLINE __m256i byte_of_words(__m256i words, u32 i) {
    return _mm256_and_si256(_mm256_srli_epi32(words, (int)(8 * i)), _mm256_set1_epi32(0xff));
}

KERNEL_INLINE void store_f32_of_bytes(f32 to[4][LANES], __m256i words) {
    UNROLL_FULLY
    for (u32 i = 0; i < 4; i++) store_f32x8(to[i], _mm256_cvtepi32_ps(byte_of_words(words, i)));
}

KERNEL_INLINE void store_i32_of_bytes(i32 to[4][LANES], __m256i words, i32 zero) {
    UNROLL_FULLY
    for (u32 i = 0; i < 4; i++) {
        store_256(to[i], _mm256_sub_epi32(byte_of_words(words, i), _mm256_set1_epi32(zero)));
    }
}

// Everything but the blocks' own scales of the 32-element types: of one super block of 8 rows.
KERNEL_INLINE void super_scales(enum dtype type, const u8 *const row[LANES], usize at,
                                struct panel_scales *s) {
    __m256i column[4];
    __m256 d, dmin;
    if (type == DTYPE_Q4_K || type == DTYPE_Q5_K) {
        // 6-bit fields: 0-3 whole in the bytes of words 1 and 2; of 4-7 the low four bits in the
        // nibbles of word 3, the upper two on top of the bytes of words 1 and 2.
        const __m256i six = _mm256_set1_epi32(0x3f3f3f3f), four = _mm256_set1_epi32(0x0f0f0f0f);
        const __m256i two = _mm256_set1_epi32(0x30303030);
        gather_16_bytes(row, at, column);
        split_f16_words(column[0], &d, &dmin);
        __m256i sc_top = _mm256_and_si256(_mm256_srli_epi32(column[1], 2), two);
        __m256i mn_top = _mm256_and_si256(_mm256_srli_epi32(column[2], 2), two);
        __m256i sc_low = _mm256_and_si256(column[3], four);
        __m256i mn_low = _mm256_and_si256(_mm256_srli_epi32(column[3], 4), four);
        store_f32_of_bytes(s->scale, _mm256_and_si256(column[1], six));
        store_f32_of_bytes(s->scale + 4, _mm256_or_si256(sc_low, sc_top));
        store_i32_of_bytes(s->mn, _mm256_and_si256(column[2], six), 0);
        store_i32_of_bytes(s->mn + 4, _mm256_or_si256(mn_low, mn_top), 0);
        store_f32x8(s->d, d);
        store_f32x8(s->dmin, dmin);
    } else if (type == DTYPE_Q6_K) {
        gather_16_bytes(row, at + 192, column);
        UNROLL_FULLY
        for (u32 i = 0; i < 16; i++) {
            __m256i top = _mm256_slli_epi32(column[i / 4], (int)(24 - 8 * (i % 4)));
            store_f32x8(s->scale[i], _mm256_cvtepi32_ps(_mm256_srai_epi32(top, 24)));
        }
        store_f32x8(s->d, gather_f16(row, at + 208));
    } else if (type == DTYPE_Q3_K) {
        // The last 16 bytes: 2 of quants, 12 of scales (as row_scales has them), d.
        const __m256i four = _mm256_set1_epi32(0x0f0f0f0f), two = _mm256_set1_epi32(0x03030303);
        gather_16_bytes(row, at + 94, column);
        UNROLL_FULLY
        for (u32 i = 0; i < 3; i++) {
            column[i] = _mm256_or_si256(_mm256_srli_epi32(column[i], 16),
                                        _mm256_slli_epi32(column[i + 1], 16));
        }
        UNROLL_FULLY
        for (u32 i = 0; i < 4; i++) {
            __m256i low = _mm256_srli_epi32(column[i % 2], i < 2 ? 0 : 4);
            __m256i high = _mm256_and_si256(_mm256_srli_epi32(column[2], (int)(2 * i)), two);
            low = _mm256_or_si256(_mm256_and_si256(low, four), _mm256_slli_epi32(high, 4));
            store_i32_of_bytes(s->sc + 4 * (usize)i, low, 32);
        }
        store_f32x8(s->d, gather_f16(row, at + 108));
    } else if (type == DTYPE_Q2_K) {
        const __m256i four = _mm256_set1_epi32(0x0f0f0f0f);
        gather_16_bytes(row, at, column);
        UNROLL_FULLY
        for (u32 i = 0; i < 4; i++) {
            __m256i high = _mm256_and_si256(_mm256_srli_epi32(column[i], 4), four);
            store_i32_of_bytes(s->sc + 4 * (usize)i, _mm256_and_si256(column[i], four), 0);
            store_i32_of_bytes(s->mn + 4 * (usize)i, high, 0);
        }
        split_f16_words(gather_u32(row, at + 80), &d, &dmin);
        store_f32x8(s->d, d);
        store_f32x8(s->dmin, dmin);
    }
}

// d and, where the type has it, m of one block of 8 rows.
KERNEL_INLINE void block_scales(enum dtype type, const u8 *const row[LANES], usize at, __m256 *d,
                                __m256 *m) {
    if (form_of(type) == FORM_D_M) {
        split_f16_words(gather_u32(row, at), d, m);
    } else {
        *d = gather_f16(row, at);
        *m = _mm256_setzero_ps();
    }
}

// --- from sums to values ---

KERNEL_INLINE __m256 fma_i32(__m256 scale, __m256i sum, __m256 chain) {
    return _mm256_fmadd_ps(scale, _mm256_cvtepi32_ps(sum), chain);
}

KERNEL_INLINE __m256i broadcast_i32(const i32 *p) { return _mm256_set1_epi32(*p); }

// M of the forms with minima, exact.
KERNEL_INLINE __m256i minimum_sum(enum group_form form, const struct panel_scales *s,
                                  const struct token_group *x) {
    u32 n = form == FORM_SC_MIN ? 8 : 16;
    const i32 *asum = form == FORM_SC_MIN ? x->sum32 : x->sum16;
    __m256i M = _mm256_setzero_si256();
    UNROLL_FULLY
    for (u32 b = 0; b < n; b++) {
        M = _mm256_add_epi32(M, _mm256_mullo_epi32(load_256(s->mn[b]), broadcast_i32(&asum[b])));
    }
    return M;
}

// The group value of a super block from its S.
KERNEL_INLINE __m256 super_value(enum group_form form, const struct panel_scales *s,
                                 const struct token_group *x, __m256 S) {
    __m256 d = load_f32x8(s->d);
    if (form == FORM_SC_16 || form == FORM_INT) return _mm256_mul_ps(d, S);
    __m256 M = _mm256_cvtepi32_ps(minimum_sum(form, s, x));
    return _mm256_fmsub_ps(d, S, _mm256_mul_ps(load_f32x8(s->dmin), M));
}

// --- one token ---

// Activations for types that unpack split: each 32 as 16 even elements, then 16 odd ones.
static void split_activations(const i16 *a, u32 k, i16 *to) {
    for (u32 i = 0; i < k; i += 32) {
        __m256i x = _mm256_inserti128_si256(load_256(a + i), load_128(a + i + 16), 1);
        __m256i y = _mm256_inserti128_si256(_mm256_castsi128_si256(load_128(a + i + 8)),
                                            load_128(a + i + 24), 1);
        __m256i even = _mm256_packs_epi32(_mm256_srai_epi32(_mm256_slli_epi32(x, 16), 16),
                                          _mm256_srai_epi32(_mm256_slli_epi32(y, 16), 16));
        __m256i odd = _mm256_packs_epi32(_mm256_srai_epi32(x, 16), _mm256_srai_epi32(y, 16));
        store_256(to + i, even);
        store_256(to + i + 16, odd);
    }
}

// The sum of one row's block in 8 lanes; in split order lanes 0-3 belong to elements 0-15 and lanes
// 4-7 to elements 16-31.
KERNEL_INLINE __m256i multiply_row(enum dtype type, const u8 *p, u32 b, __m256i a0, __m256i a1) {
    __m256i w0, w1;
    unpack_fast(type, p, b, &w0, &w1);
    __m256i sum = _mm256_add_epi32(_mm256_madd_epi16(w0, a0), _mm256_madd_epi16(w1, a1));
    KEEP_IN_REGISTER(sum);
    return sum;
}

// The sums of a block of four rows from `row`, in lanes 0-3 and, from the upper halves, 4-7.
KERNEL_INLINE __m256i multiply_four(enum dtype type, const u8 *const row[4], usize at, u32 b,
                                    __m256i a0, __m256i a1) {
    __m256i s0 = multiply_row(type, row[0] + at, b, a0, a1);
    __m256i s1 = multiply_row(type, row[1] + at, b, a0, a1);
    __m256i pair = add_pairs(s0, s1);
    __m256i s2 = multiply_row(type, row[2] + at, b, a0, a1);
    __m256i s3 = multiply_row(type, row[3] + at, b, a0, a1);
    return add_quads(pair, add_pairs(s2, s3));
}

// usum - zero point * asum.
KERNEL_INLINE __m256i without_zero(enum dtype type, __m256i usum, const i32 *asum) {
    u32 zero = zero_point_log2(type);
    if (zero == 0) return usum;
    return _mm256_sub_epi32(usum, _mm256_slli_epi32(broadcast_i32(asum), (int)zero));
}

// The group value of 8 rows whose blocks lie at row[r] + at.
KERNEL_INLINE __m256 group_of_blocks(enum dtype type, const u8 *const row[LANES], usize at,
                                     u32 n_blocks, const struct token_group *x,
                                     struct ahead *ahead) {
    __m256 G = _mm256_setzero_ps();
    for (u32 b = 0; b < n_blocks; b++) {
        __m256i a0 = load_256(x->a + 32 * (usize)b), a1 = load_256(x->a + 32 * (usize)b + 16);
        __m256i first = multiply_four(type, row, at, b, a0, a1);
        __m256i last = multiply_four(type, row + 4, at, b, a0, a1);
        __m256 d, m;
        block_scales(type, row, at, &d, &m);
        G = fma_i32(d, without_zero(type, add_halves(first, last), &x->sum32[b]), G);
        if (form_of(type) == FORM_D_M) G = fma_i32(m, broadcast_i32(&x->sum32[b]), G);
        prefetch_step(ahead, LANES * block_bytes(type));
        at += block_bytes(type);
    }
    return G;
}

KERNEL_INLINE __m256 group_of_super_block(enum dtype type, const u8 *const row[LANES], usize at,
                                          const struct token_group *x, struct ahead *ahead) {
    enum group_form form = form_of(type);
    struct panel_scales s;
    __m256 S = _mm256_setzero_ps();
    __m256i S_exact = _mm256_setzero_si256();
    super_scales(type, row, at, &s);
    UNROLL_FULLY
    for (u32 b = 0; b < GROUP_BLOCKS; b++) {
        __m256i a0 = load_256(x->a + 32 * (usize)b), a1 = load_256(x->a + 32 * (usize)b + 16);
        prefetch_step(ahead, LANES * block_bytes(type) / GROUP_BLOCKS);
        __m256i first = multiply_four(type, row, at, b, a0, a1);
        __m256i last = multiply_four(type, row + 4, at, b, a0, a1);
        if (form == FORM_SC_MIN) {
            S = fma_i32(load_f32x8(s.scale[b]), add_halves(first, last), S);
            continue;
        }
        __m256i low = _mm256_permute2x128_si256(first, last, 0x20);
        __m256i high = _mm256_permute2x128_si256(first, last, 0x31);
        low = without_zero(type, low, &x->sum16[2 * b]);
        high = without_zero(type, high, &x->sum16[2 * b + 1]);
        if (form == FORM_SC_16) {
            S = fma_i32(load_f32x8(s.scale[2 * b]), low, S);
            S = fma_i32(load_f32x8(s.scale[2 * b + 1]), high, S);
        } else {
            low = _mm256_mullo_epi32(load_256(s.sc[2 * b]), low);
            high = _mm256_mullo_epi32(load_256(s.sc[2 * b + 1]), high);
            S_exact = _mm256_add_epi32(S_exact, _mm256_add_epi32(low, high));
        }
    }
    if (form == FORM_INT || form == FORM_INT_MIN) S = _mm256_cvtepi32_ps(S_exact);
    return super_value(form, &s, x, S);
}

KERNEL_INLINE void gemm_one(enum dtype type, const struct gemm_args *args, u32 begin, u32 end,
                            void *scratch) {
    u32 group_bytes = group_bytes_of(type);
    struct ahead ahead =
        prefetch_begin(args->weight + begin * args->row_bytes, LANES, args->row_bytes);
    const i16 *a = args->xq.a;
    if (is_split(type)) {
        assert(args->k <= OP_SCRATCH_BYTES / sizeof(i16));
        split_activations(args->xq.a, args->k, scratch);
        a = scratch;
    }
    for (u32 first = begin; first < end; first += LANES) {
        u32 n = MIN(end - first, LANES);
        const u8 *row[LANES];
        panel_rows(args, first, n, row);
        __m256 total = _mm256_setzero_ps();
        for (u32 g = 0; g * OP_GROUP < args->k; g++) {
            struct token_group x = token_group_of(&args->xq, 0, g);
            usize at = (usize)g * group_bytes;
            u32 n_blocks = MIN(args->k - g * OP_GROUP, OP_GROUP) / 32;
            x.a = a + (usize)g * OP_GROUP;
            __m256 value = is_super_block(type)
                               ? group_of_super_block(type, row, at, &x, &ahead)
                               : group_of_blocks(type, row, at, n_blocks, &x, &ahead);
            total = _mm256_fmadd_ps(value, _mm256_set1_ps(*x.da), total);
        }
        put_rows(args, first, n, 0, total);
    }
}

// --- a panel's group in memory, for several tokens ---

typedef i16 panel_rows_q[LANES][OP_GROUP];

typedef void unpack_panel_fn(const u8 *const row[LANES], usize at, u32 n_blocks, panel_rows_q q,
                             struct panel_scales *s);

// One row's block, as the sums want it: Q2_K and Q3_K times their scales.
KERNEL_INLINE void unpack_row_block(enum dtype type, const u8 *p, u32 b, const i16 scale[16],
                                    i16 *q) {
    __m256i w0, w1;
    unpack_ordered(type, p, b, &w0, &w1);
    if (type == DTYPE_Q2_K || type == DTYPE_Q3_K) {
        w0 = _mm256_mullo_epi16(w0, _mm256_set1_epi16(scale[2 * b]));
        w1 = _mm256_mullo_epi16(w1, _mm256_set1_epi16(scale[2 * b + 1]));
    }
    store_256(q + 32 * (usize)b, w0);
    store_256(q + 32 * (usize)b + 16, w1);
}

KERNEL_INLINE void unpack_panel(enum dtype type, const u8 *const row[LANES], usize at, u32 n_blocks,
                                panel_rows_q q, struct panel_scales *s) {
    for (u32 r = 0; r < LANES; r++) {
        const u8 *p = row[r] + at;
        i16 scale[16];
        if (type == DTYPE_Q2_K || type == DTYPE_Q3_K) row_scales(type, p, scale);
        if (is_super_block(type)) {
            UNROLL_FULLY
            for (u32 b = 0; b < GROUP_BLOCKS; b++) unpack_row_block(type, p, b, scale, q[r]);
        } else {
            for (u32 b = 0; b < n_blocks; b++) {
                unpack_row_block(type, p + (usize)b * block_bytes(type), b, scale, q[r]);
            }
        }
    }
    if (is_super_block(type)) {
        super_scales(type, row, at, s);
        return;
    }
    for (u32 b = 0; b < n_blocks; b++) {
        __m256 d, m;
        block_scales(type, row, at + (usize)b * block_bytes(type), &d, &m);
        store_f32x8(s->scale[b], d);
        if (form_of(type) == FORM_D_M) store_f32x8(s->m[b], m);
    }
}

// --- few tokens ---

struct few_scratch {
    panel_rows_q q;
    struct panel_scales scales;
    f32 total[FEW_TOKENS_MAX][LANES];
};
static_assert(sizeof(struct few_scratch) <= OP_SCRATCH_BYTES, "a panel fits the scratch");

KERNEL_INLINE __m256i dot_32(__m256i w0, __m256i w1, __m256i a0, __m256i a1) {
    return _mm256_add_epi32(_mm256_madd_epi16(w0, a0), _mm256_madd_epi16(w1, a1));
}

// The group value of an unpacked panel for one token.
KERNEL_INLINE __m256 few_value(enum group_form form, panel_rows_q q, const struct panel_scales *s,
                               u32 n_blocks, const struct token_group *x) {
    __m256i sum[LANES], sum_upper[LANES];
    if (form == FORM_INT || form == FORM_INT_MIN) {
        UNROLL_FULLY
        for (u32 r = 0; r < LANES; r++) sum[r] = _mm256_setzero_si256();
        for (u32 b = 0; b < 2 * GROUP_BLOCKS; b++) {
            __m256i a = load_256(x->a + 16 * (usize)b);
            UNROLL_FULLY
            for (u32 r = 0; r < LANES; r++) {
                __m256i w = load_256(&q[r][16 * b]);
                sum[r] = _mm256_add_epi32(sum[r], _mm256_madd_epi16(w, a));
            }
        }
        return super_value(form, s, x, _mm256_cvtepi32_ps(sum_lanes_i32(sum)));
    }
    __m256 S = _mm256_setzero_ps();
    for (u32 b = 0; b < n_blocks; b++) {
        __m256i a0 = load_256(x->a + 32 * (usize)b), a1 = load_256(x->a + 32 * (usize)b + 16);
        UNROLL_FULLY
        for (u32 r = 0; r < LANES; r++) {
            __m256i w0 = load_256(&q[r][32 * b]), w1 = load_256(&q[r][32 * b + 16]);
            if (form == FORM_SC_16) {
                sum[r] = _mm256_madd_epi16(w0, a0);
                sum_upper[r] = _mm256_madd_epi16(w1, a1);
            } else {
                sum[r] = dot_32(w0, w1, a0, a1);
            }
        }
        if (form == FORM_SC_16) {
            S = fma_i32(load_f32x8(s->scale[2 * b]), sum_lanes_i32(sum), S);
            S = fma_i32(load_f32x8(s->scale[2 * b + 1]), sum_lanes_i32(sum_upper), S);
        } else {
            S = fma_i32(load_f32x8(s->scale[b]), sum_lanes_i32(sum), S);
            if (form == FORM_D_M) S = fma_i32(load_f32x8(s->m[b]), broadcast_i32(&x->sum32[b]), S);
        }
    }
    return form == FORM_D || form == FORM_D_M ? S : super_value(form, s, x, S);
}

KERNEL_INLINE void gemm_few(enum group_form form, unpack_panel_fn *unpack, u32 group_bytes,
                            const struct gemm_args *args, u32 begin, u32 end, void *scratch) {
    struct few_scratch *few = scratch;
    assert(args->n_tokens > 0 && args->n_tokens <= FEW_TOKENS_MAX);
    struct ahead ahead =
        prefetch_begin(args->weight + begin * args->row_bytes, LANES, args->row_bytes);
    for (u32 first = begin; first < end; first += LANES) {
        u32 n = MIN(end - first, LANES);
        const u8 *row[LANES];
        panel_rows(args, first, n, row);
        for (u32 t = 0; t < args->n_tokens; t++) store_f32x8(few->total[t], _mm256_setzero_ps());
        for (u32 g = 0; g * OP_GROUP < args->k; g++) {
            u32 n_blocks = MIN(args->k - g * OP_GROUP, OP_GROUP) / 32;
            usize at = (usize)g * group_bytes;
            u32 step_bytes = n_blocks * LANES * group_bytes / GROUP_BLOCKS / args->n_tokens;
            unpack(row, at, n_blocks, few->q, &few->scales);
            for (u32 t = 0; t < args->n_tokens; t++) {
                prefetch_step(&ahead, step_bytes);
                struct token_group x = token_group_of(&args->xq, t, g);
                __m256 value = few_value(form, few->q, &few->scales, n_blocks, &x);
                __m256 total = load_f32x8(few->total[t]);
                total = _mm256_fmadd_ps(value, _mm256_set1_ps(*x.da), total);
                store_f32x8(few->total[t], total);
            }
        }
        for (u32 t = 0; t < args->n_tokens; t++) {
            put_rows(args, first, n, t, load_f32x8(few->total[t]));
        }
    }
}

// --- many tokens ---

struct tile_scratch {
    i16 pairs[TILE_PANELS][GROUP_PAIRS][LANES][2]; // the microkernel's operand, 8 KiB
    panel_rows_q q;
    struct panel_scales scales[TILE_PANELS];
    tile_total total[CHUNK_TOKENS + TILE_TOKENS]; // the excess takes repeated tokens
};
static_assert(sizeof(struct tile_scratch) <= OP_SCRATCH_BYTES, "a tile fits the scratch");

// Rows to pairs of k.
static void transpose_panel(panel_rows_q q, u32 n_blocks, i16 pairs[GROUP_PAIRS][LANES][2]) {
    for (u32 i = 0; i < 2 * n_blocks; i++) {
        __m256i column[8];
        transpose_8x8_u32(&q[0][16 * i], sizeof q[0], column);
        UNROLL_FULLY
        for (u32 c = 0; c < 8; c++) store_256(pairs[8 * i + c], column[c]);
    }
}

// One group, 16 rows, n_tokens (a constant) tokens: their totals go one step on.
KERNEL_INLINE void tile_step(enum group_form form, u32 n_tokens, struct tile_scratch *tile,
                             u32 n_blocks, const struct token_group *x, tile_total *total) {
    __m256 S[TILE_TOKENS][TILE_PANELS];
    u32 block_pairs = form == FORM_SC_16 ? 8 : form == FORM_INT || form == FORM_INT_MIN ? 128 : 16;
    u32 n_steps = n_blocks * 16 / block_pairs;
    UNROLL_FULLY
    for (u32 t = 0; t < n_tokens; t++) S[t][0] = S[t][1] = _mm256_setzero_ps();
    for (u32 b = 0; b < n_steps; b++) {
        __m256i sum[TILE_TOKENS][TILE_PANELS];
        UNROLL_FULLY
        for (u32 t = 0; t < n_tokens; t++) sum[t][0] = sum[t][1] = _mm256_setzero_si256();
        for (u32 i = b * block_pairs; i < (b + 1) * block_pairs; i++) {
            __m256i w0 = load_256(tile->pairs[0][i]), w1 = load_256(tile->pairs[1][i]);
            UNROLL_FULLY
            for (u32 t = 0; t < n_tokens; t++) {
                __m256i a = _mm256_set1_epi32(load_i32(x[t].a + 2 * (usize)i));
                sum[t][0] = _mm256_add_epi32(sum[t][0], _mm256_madd_epi16(w0, a));
                sum[t][1] = _mm256_add_epi32(sum[t][1], _mm256_madd_epi16(w1, a));
                KEEP_IN_REGISTERS(sum[t][0], sum[t][1]);
            }
        }
        UNROLL_FULLY
        for (u32 t = 0; t < n_tokens; t++) {
            UNROLL_FULLY
            for (u32 h = 0; h < TILE_PANELS; h++) {
                if (form == FORM_INT || form == FORM_INT_MIN) {
                    S[t][h] = _mm256_cvtepi32_ps(sum[t][h]);
                } else {
                    S[t][h] = fma_i32(load_f32x8(tile->scales[h].scale[b]), sum[t][h], S[t][h]);
                }
                if (form == FORM_D_M) {
                    __m256 m = load_f32x8(tile->scales[h].m[b]);
                    S[t][h] = fma_i32(m, broadcast_i32(&x[t].sum32[b]), S[t][h]);
                }
            }
        }
    }
    UNROLL_FULLY
    for (u32 t = 0; t < n_tokens; t++) {
        UNROLL_FULLY
        for (u32 h = 0; h < TILE_PANELS; h++) {
            __m256 value = form == FORM_D || form == FORM_D_M
                               ? S[t][h]
                               : super_value(form, &tile->scales[h], &x[t], S[t][h]);
            __m256 sum = load_f32x8(total[t][h]);
            store_f32x8(total[t][h], _mm256_fmadd_ps(value, _mm256_set1_ps(*x[t].da), sum));
        }
    }
}

// Tokens [begin, end) of the call, in tiles; the last tile repeats the last token.
KERNEL_INLINE void tile_tokens(enum group_form form, struct tile_scratch *tile, u32 n_blocks,
                               const struct q16 *xq, u32 begin, u32 end, u32 group) {
    for (u32 t = begin; t < end;) {
        struct token_group x[TILE_TOKENS];
        u32 step = token_tile(xq, t, end, group, x);
        if (step == 2) {
            tile_step(form, 2, tile, n_blocks, x, &tile->total[t - begin]);
        } else if (step == 4) {
            tile_step(form, 4, tile, n_blocks, x, &tile->total[t - begin]);
        } else {
            tile_step(form, TILE_TOKENS, tile, n_blocks, x, &tile->total[t - begin]);
        }
        t += step;
    }
}

KERNEL_INLINE void gemm_many(enum group_form form, unpack_panel_fn *unpack, u32 group_bytes,
                             const struct gemm_args *args, u32 begin, u32 end, void *scratch) {
    struct tile_scratch *tile = scratch;
    for (u32 chunk = 0; chunk < args->n_tokens; chunk += CHUNK_TOKENS) {
        u32 chunk_end = MIN(chunk + CHUNK_TOKENS, args->n_tokens);
        u32 n_totals = chunk_end - chunk + TILE_TOKENS;
        for (u32 first = begin; first < end; first += TILE_ROWS) {
            u32 n = MIN(end - first, TILE_ROWS);
            const u8 *row[TILE_PANELS][LANES];
            tile_rows(args, first, n, row);
            for (u32 t = 0; t < n_totals; t++) {
                store_f32x8(tile->total[t][0], _mm256_setzero_ps());
                store_f32x8(tile->total[t][1], _mm256_setzero_ps());
            }
            for (u32 g = 0; g * OP_GROUP < args->k; g++) {
                u32 n_blocks = MIN(args->k - g * OP_GROUP, OP_GROUP) / 32;
                for (u32 h = 0; h < TILE_PANELS; h++) {
                    unpack(row[h], (usize)g * group_bytes, n_blocks, tile->q, &tile->scales[h]);
                    transpose_panel(tile->q, n_blocks, tile->pairs[h]);
                }
                tile_tokens(form, tile, n_blocks, &args->xq, chunk, chunk_end, g);
            }
            for (u32 t = chunk; t < chunk_end; t++) {
                put_tile(args, first, n, t, tile->total[t - chunk]);
            }
        }
    }
}

// Few and many depend on the form only, so that types share their code; a function for each form,
// or the compiler meets all of them in one.
typedef void gemm_several_fn(unpack_panel_fn *unpack, u32 group_bytes, const struct gemm_args *args,
                             u32 begin, u32 end, void *scratch);

#define DEFINE_SEVERAL(name, form)                                                           \
    static void name(unpack_panel_fn *unpack, u32 group_bytes, const struct gemm_args *args, \
                     u32 begin, u32 end, void *scratch) {                                    \
        if (args->n_tokens <= FEW_TOKENS_MAX) {                                              \
            gemm_few(form, unpack, group_bytes, args, begin, end, scratch);                  \
        } else {                                                                             \
            gemm_many(form, unpack, group_bytes, args, begin, end, scratch);                 \
        }                                                                                    \
    }
DEFINE_SEVERAL(several_d, FORM_D)
DEFINE_SEVERAL(several_d_m, FORM_D_M)
DEFINE_SEVERAL(several_sc_min, FORM_SC_MIN)
DEFINE_SEVERAL(several_sc_16, FORM_SC_16)
DEFINE_SEVERAL(several_int, FORM_INT)
DEFINE_SEVERAL(several_int_min, FORM_INT_MIN)
#undef DEFINE_SEVERAL

static gemm_several_fn *const gemm_several[] = {
    [FORM_D] = several_d,         [FORM_D_M] = several_d_m, [FORM_SC_MIN] = several_sc_min,
    [FORM_SC_16] = several_sc_16, [FORM_INT] = several_int, [FORM_INT_MIN] = several_int_min,
};

#define DEFINE_GEMM(name, type)                                                               \
    static void unpack_panel_##name(const u8 *const row[LANES], usize at, u32 n_blocks,       \
                                    panel_rows_q q, struct panel_scales *s) {                 \
        unpack_panel(type, row, at, n_blocks, q, s);                                          \
    }                                                                                         \
    u32 gemm_##name##_avx2(const struct gemm_args *args, u32 begin, u32 end, void *scratch) { \
        u32 group_bytes = block_bytes(type) * (is_super_block(type) ? 1 : GROUP_BLOCKS);      \
        assert(args->k % (is_super_block(type) ? OP_GROUP : 32) == 0);                        \
        if (begin >= end || args->n_tokens == 0) return 0;                                    \
        if (args->n_tokens == 1) {                                                            \
            gemm_one(type, args, begin, end, scratch);                                        \
        } else {                                                                              \
            gemm_several[form_of(type)](unpack_panel_##name, group_bytes, args, begin, end,   \
                                        scratch);                                             \
        }                                                                                     \
        return 0;                                                                             \
    }
DEFINE_GEMM(q4_0, DTYPE_Q4_0)
DEFINE_GEMM(q4_1, DTYPE_Q4_1)
DEFINE_GEMM(q5_0, DTYPE_Q5_0)
DEFINE_GEMM(q5_1, DTYPE_Q5_1)
DEFINE_GEMM(q8_0, DTYPE_Q8_0)
DEFINE_GEMM(q2_k, DTYPE_Q2_K)
DEFINE_GEMM(q3_k, DTYPE_Q3_K)
DEFINE_GEMM(q4_k, DTYPE_Q4_K)
DEFINE_GEMM(q5_k, DTYPE_Q5_K)
DEFINE_GEMM(q6_k, DTYPE_Q6_K)
#undef DEFINE_GEMM
