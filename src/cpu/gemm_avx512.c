// SPDX-License-Identifier: Apache-2.0
// Matrix products with quantised weights (operators 4 and 6 of docs/contract.md) for AVX-512 with
// VBMI and VNNI. The lanes of a vector are 16 weight rows, a panel; the f32 chain over blocks,
// which has an order, never runs across lanes, and only exact integer sums do.
//
// Two ways, by the number of tokens; both give the same bits:
//   few      The 256 quants of a row's group become 4 vectors of bytes, whose 128-bit lanes hold 16
//            elements of one block each. The activations lie split in high and low bytes in the
//            same order, a = 256 * high + low; vpdpbusd multiplies either plane exactly. What is
//            left of a row are 4 partial sums a block, which meet those of 15 other rows in a
//            transpose.
//   many     A group of 32 rows is unpacked once and transposed to pairs of k,
//            pairs[k/2][row][2] of i16; a broadcast pair of activations then meets 16 rows at once
//            (vpdpwssd) and nothing is added across lanes. 32 rows x 6 tokens are in flight.
//
// G1. Every vector step (vpdpbusd and vpdpwssd, which do not saturate, additions, shifts, products)
//     is exact modulo 2^32, so only the finished isum, S and M, which are converted, must fit i32:
//     docs/contract.md has their bounds.
// G2. vpdpbusd multiplies unsigned by signed bytes. q with its zero point in is unsigned and below
//     128, so it may stand on either side; Q8_0 is q + 128 on the high side, q on the low.
// G3. Each group is read by loads that lie inside it (V1); in a group of fewer than 8 blocks they
//     are masked.
#include "cpu/avx512.h"
#include "cpu/gemm.h"
#include "freestanding/mem.h"

#define CHUNKS 4u     // vectors of 64 quants in a group
#define ROWS LANES_16 // of a panel
#define FEW_TOKENS_MAX 16u

// With more tokens the transposed tile wins.
KERNEL_INLINE u32 few_tokens(enum dtype type) {
    return type == DTYPE_Q6_K || type == DTYPE_Q3_K ? 6 : FEW_TOKENS_MAX;
}

// The scales of a panel's group; which are used depends on the form.
struct panel_scales {
    f32 scale[16][ROWS]; // d per 32, or sc per 32 or per 16
    f32 m[8][ROWS];
    i32 sc[16][ROWS];   // of the forms with an integer S
    i16 mn[8][ROWS][2]; // minima of blocks 2i and 2i + 1
    f32 d[ROWS], dmin[ROWS];
};

// --- what a block looks like ---

// What q is above its signed value; 0 when it is the value.
KERNEL_INLINE i32 zero_point(enum dtype type) {
    switch (type) {
    case DTYPE_Q3_K: return 4;
    case DTYPE_Q4_0: return 8;
    case DTYPE_Q5_0: return 16;
    case DTYPE_Q6_K: return 32;
    default: return 0;
    }
}

// Which 16 elements of the group (by number, 0 to 15) the 128-bit lane `lane` of chunk `c` holds.
KERNEL_INLINE u32 run_of_lane(enum dtype type, u32 c, u32 lane) {
    switch (type) {
    case DTYPE_Q6_K: return 4 * c + lane;
    case DTYPE_Q2_K:
    case DTYPE_Q3_K: return 2 * c + (lane & 1) + 8 * (lane >> 1);
    case DTYPE_Q4_K:
    case DTYPE_Q5_K: return 4 * lane + c; // even blocks in chunks 0 and 1, odd ones in 2 and 3
    default: return 8 * (c / 2) + 2 * lane + c % 2; // blocks 0 to 3, then 4 to 7
    }
}

// Four blocks of a 32-element type are reached through two windows of 64 bytes, at their start and
// at their end; the tables choose bytes out of both (Q8_0, which is longer, has two such pairs).
#define WINDOW_AT(span, o) ((o) < 64 ? (o) : (o) + 128 - (span))
#define RUN_4(span, o) \
    WINDOW_AT(span, o), WINDOW_AT(span, (o) + 1), WINDOW_AT(span, (o) + 2), WINDOW_AT(span, (o) + 3)
#define RUN_16(span, o) \
    RUN_4(span, o), RUN_4(span, (o) + 4), RUN_4(span, (o) + 8), RUN_4(span, (o) + 12)
#define FOUR_RUNS(span, bytes, o)                                                  \
    RUN_16(span, o), RUN_16(span, (bytes) + (o)), RUN_16(span, 2 * (bytes) + (o)), \
        RUN_16(span, 3 * (bytes) + (o))
#define TWICE_8(span, o)                                                                \
    WINDOW_AT(span, o), WINDOW_AT(span, o), WINDOW_AT(span, o), WINDOW_AT(span, o),     \
        WINDOW_AT(span, o), WINDOW_AT(span, o), WINDOW_AT(span, o), WINDOW_AT(span, o), \
        WINDOW_AT(span, (o) + 1), WINDOW_AT(span, (o) + 1), WINDOW_AT(span, (o) + 1),   \
        WINDOW_AT(span, (o) + 1), WINDOW_AT(span, (o) + 1), WINDOW_AT(span, (o) + 1),   \
        WINDOW_AT(span, (o) + 1), WINDOW_AT(span, (o) + 1)
#define FOUR_TWICE_8(span, bytes, o)                                                  \
    TWICE_8(span, o), TWICE_8(span, (bytes) + (o)), TWICE_8(span, 2 * (bytes) + (o)), \
        TWICE_8(span, 3 * (bytes) + (o))

#define TABLE static const u8 __attribute__((aligned(64)))
TABLE quants_q4_0[64] = {FOUR_RUNS(72, 18, 2)};
TABLE quants_q4_1[64] = {FOUR_RUNS(80, 20, 4)};
TABLE quants_q5_0[64] = {FOUR_RUNS(88, 22, 6)};
TABLE quants_q5_1[64] = {FOUR_RUNS(96, 24, 8)};
TABLE quants_low_q8_0[64] = {FOUR_RUNS(128, 34, 2)};   // windows at 0 and 64
TABLE quants_high_q8_0[64] = {FOUR_RUNS(128, 34, 10)}; // windows at 8 and 72
TABLE fifth_low_q5_0[64] = {FOUR_TWICE_8(88, 22, 2)};
TABLE fifth_high_q5_0[64] = {FOUR_TWICE_8(88, 22, 4)};
TABLE fifth_low_q5_1[64] = {FOUR_TWICE_8(96, 24, 4)};
TABLE fifth_high_q5_1[64] = {FOUR_TWICE_8(96, 24, 6)};

// The 64 bytes at p, of which `available` may be read, the rest zero. (A constant of 64 or more
// leaves a plain load.)
KERNEL_INLINE __m512i load_upto(const u8 *p, i32 available) {
    if (available >= 64) return load_512(p);
    __mmask64 mask = available <= 0 ? 0 : ~(u64)0 >> (64 - available);
    return _mm512_maskz_loadu_epi8(mask, p);
}

KERNEL_INLINE __m512i pick(__m512i first, const u8 table[64], __m512i last) {
    return _mm512_permutex2var_epi8(first, _mm512_load_si512(table), last);
}

// `v` with 16 added in the bytes whose bit is set: byte l of a lane looks at bit l % 8 of `bits`.
KERNEL_INLINE __m512i with_fifth_bits(__m512i v, __m512i bits) {
    const __m512i bit_of_byte = _mm512_set1_epi64((i64)0x8040201008040201);
    __mmask64 set = _mm512_test_epi8_mask(bits, bit_of_byte);
    return _mm512_mask_add_epi8(v, set, v, _mm512_set1_epi8(16));
}

// Blocks of a 32-element type, up to four from p, of which `available` bytes may be read: two
// chunks, elements 0-15 and 16-31 of each block.
KERNEL_INLINE void unpack_four_blocks(enum dtype type, const u8 *p, i32 available, __m512i v[2]) {
    const i32 span = 4 * (i32)block_bytes(type);
    if (type == DTYPE_Q8_0) {
        v[0] = pick(load_upto(p, available), quants_low_q8_0, load_upto(p + 64, available - 64));
        v[1] = pick(load_upto(p + 8, available - 8), quants_high_q8_0,
                    load_upto(p + 72, available - 72));
        return;
    }
    __m512i first = load_upto(p, available);
    __m512i last = load_upto(p + span - 64, available - (span - 64));
    const u8 *table = type == DTYPE_Q4_0   ? quants_q4_0
                      : type == DTYPE_Q4_1 ? quants_q4_1
                      : type == DTYPE_Q5_0 ? quants_q5_0
                                           : quants_q5_1;
    const __m512i low = _mm512_set1_epi8(15);
    __m512i quants = pick(first, table, last);
    v[0] = _mm512_and_si512(quants, low);
    v[1] = _mm512_and_si512(_mm512_srli_epi16(quants, 4), low);
    if (type == DTYPE_Q5_0) {
        v[0] = with_fifth_bits(v[0], pick(first, fifth_low_q5_0, last));
        v[1] = with_fifth_bits(v[1], pick(first, fifth_high_q5_0, last));
    } else if (type == DTYPE_Q5_1) {
        v[0] = with_fifth_bits(v[0], pick(first, fifth_low_q5_1, last));
        v[1] = with_fifth_bits(v[1], pick(first, fifth_high_q5_1, last));
    }
}

// The 16 integer scales of one row's super block of Q2_K or Q3_K, widened to words.
KERNEL_INLINE __m512i row_scales(enum dtype type, const u8 *p) {
    const __m128i low4 = _mm_set1_epi8(15);
    if (type == DTYPE_Q2_K) return _mm512_cvtepu8_epi32(_mm_and_si128(load_128(p), low4));
    // 16 low nibbles in 8 bytes; 4 bytes whose bit pairs j top the nibbles 4j to 4j+3.
    __m128i nibbles = _mm_cvtsi64_si128((i64)load_u64(p + 96));
    __m128i low = _mm_and_si128(nibbles, low4);
    __m128i high = _mm_and_si128(_mm_srli_epi16(nibbles, 4), low4);
    __m128i pairs = _mm_srlv_epi32(_mm_set1_epi32(load_i32(p + 104)), _mm_setr_epi32(0, 2, 4, 6));
    pairs = _mm_slli_epi16(_mm_and_si128(pairs, _mm_set1_epi8(3)), 4);
    __m128i scale = _mm_or_si128(_mm_unpacklo_epi64(low, high), pairs);
    return _mm512_cvtepi8_epi32(_mm_sub_epi8(scale, _mm_set1_epi8(32)));
}

// Words of runs to the lanes of chunk c (a constant) of Q2_K and Q3_K: each lane's four words are
// the word of its run.
KERNEL_INLINE __m512i spread_runs(__m512i words, u32 c) {
    const __m512i lane = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 8, 8, 8, 8, 9, 9, 9, 9);
    return _mm512_permutexvar_epi32(_mm512_add_epi32(lane, _mm512_set1_epi32((i32)(2 * c))), words);
}

// Byte i of each quadword becomes the 8 bits from bit 8 * i + shift on (around the quadword), with
// a shift for each 128-bit lane, all constants.
KERNEL_INLINE i64 shift_control(i32 shift) {
    u64 control = 0;
    UNROLL_FULLY
    for (i32 i = 0; i < 8; i++) control |= (u64)((8 * i + shift) & 63) << (8 * i);
    return (i64)control;
}
KERNEL_INLINE __m512i shifted_bytes(__m512i v, i32 s0, i32 s1, i32 s2, i32 s3) {
    __m512i control = _mm512_setr_epi64(shift_control(s0), shift_control(s0), shift_control(s1),
                                        shift_control(s1), shift_control(s2), shift_control(s2),
                                        shift_control(s3), shift_control(s3));
    return _mm512_multishift_epi64_epi8(control, v);
}

// v | (bits & mask)
KERNEL_INLINE __m512i or_masked(__m512i v, __m512i bits, int mask) {
    return _mm512_ternarylogic_epi32(v, bits, _mm512_set1_epi8((char)mask), 0xf8);
}

// Chunks 2h and 2h + 1 of a super block.
KERNEL_INLINE void unpack_k_by_32(enum dtype type, const u8 *p, u32 h, __m512i v[2]) {
    // Bytes 32j to 32j+31: low nibbles block 2j, high ones block 2j+1.
    const __m512i low = _mm512_set1_epi8(15);
    const u8 *nibbles = p + block_bytes(type) - 128;
    __m512i first = load_512(nibbles), last = load_512(nibbles + 64);
    __m512i start = _mm512_shuffle_i64x2(first, last, 0x88); // elements 0-15 of the blocks
    __m512i end = _mm512_shuffle_i64x2(first, last, 0xdd);   // elements 16-31
    v[0] = _mm512_and_si512(h == 0 ? start : _mm512_srli_epi16(start, 4), low);
    v[1] = _mm512_and_si512(h == 0 ? end : _mm512_srli_epi16(end, 4), low);
    if (type == DTYPE_Q4_K) return;
    // Bit b of byte l of the fifth bits belongs to element l of block b; it is wanted at bit 4.
    UNROLL_FULLY
    for (u32 c = 0; c < 2; c++) {
        __m512i bits = _mm512_broadcast_i32x4(load_128(p + 16 + 16 * (usize)c));
        i32 shift = (i32)h - 4;
        bits = shifted_bytes(bits, shift, shift + 2, shift + 4, shift + 6);
        v[c] = or_masked(v[c], bits, 16);
    }
}

KERNEL_INLINE void unpack_q6_k(const u8 *p, u32 h, __m512i v[2]) {
    // Halves of 128: 4 runs of 32 share 64 bytes of nibbles and, as bit pairs, 32 bytes.
    const __m512i low = _mm512_set1_epi8(15);
    __m512i nibbles = load_512(p + 64 * (usize)h);
    __m512i pairs = _mm512_broadcast_i64x4(load_256(p + 128 + 32 * (usize)h));
    __m512i first = shifted_bytes(pairs, -4, -4, -2, -2);
    __m512i last = shifted_bytes(pairs, 0, 0, 2, 2);
    v[0] = or_masked(_mm512_and_si512(nibbles, low), first, 0x30);
    v[1] = or_masked(_mm512_and_si512(_mm512_srli_epi16(nibbles, 4), low), last, 0x30);
}

KERNEL_INLINE void unpack_by_pairs(enum dtype type, const u8 *p, u32 h, __m512i v[2]) {
    // Halves of 128: 4 runs of 32 in the four bit pairs of 32 bytes.
    const __m512i low = _mm512_set1_epi8(3);
    __m512i pairs = load_512(p + (type == DTYPE_Q2_K ? 16 : 32));
    v[0] = _mm512_and_si512(h == 0 ? pairs : _mm512_srli_epi16(pairs, 4), low);
    v[1] = _mm512_and_si512(_mm512_srli_epi16(pairs, h == 0 ? 2 : 6), low);
    if (type == DTYPE_Q2_K) return;
    // Bit b of byte l of the third bits belongs to run b.
    __m512i thirds = _mm512_broadcast_i64x4(load_256(p));
    UNROLL_FULLY
    for (i32 c = 0; c < 2; c++) {
        i32 run = 2 * (i32)h + c;
        __m512i bits = shifted_bytes(thirds, run - 2, run - 2, run + 2, run + 2);
        v[c] = or_masked(v[c], bits, 4);
    }
}

// Half h of a group as bytes, the zero point in (run_of_lane tells the order). Of a group of a
// 32-element type `available` bytes may be read; the rest are zero.
KERNEL_INLINE void unpack_half(enum dtype type, const u8 *p, i32 available, u32 h, __m512i v[2]) {
    const i32 half = 4 * (i32)block_bytes(type);
    if (type == DTYPE_Q4_K || type == DTYPE_Q5_K) {
        unpack_k_by_32(type, p, h, v);
    } else if (type == DTYPE_Q6_K) {
        unpack_q6_k(p, h, v);
    } else if (is_super_block(type)) {
        unpack_by_pairs(type, p, h, v);
    } else if (h == 0) {
        unpack_four_blocks(type, p, available, v);
    } else if (available > half) {
        unpack_four_blocks(type, p + half, available - half, v);
    } else {
        v[0] = v[1] = _mm512_setzero_si512();
    }
}

// --- scales of 16 rows ---

// Bytes of the part of a super block that holds its scales, and where it begins.
#define HEADER_BYTES 16u
KERNEL_INLINE u32 header_at(enum dtype type) {
    return type == DTYPE_Q6_K ? 192 : type == DTYPE_Q3_K ? 94 : 0;
}

// What the scales of 16 rows' group are made of. Rows are put in one by one, by plain loads and
// stores, which cost the vector units nothing, and taken out as vectors later, when the stores have
// left the pipeline.
struct raw_scales {
    u8 header[ROWS][HEADER_BYTES]; // of super blocks
    u32 word[GROUP_BLOCKS][ROWS];  // d and m of blocks of 32
    u16 half[GROUP_BLOCKS][ROWS];  // d, of blocks or of super blocks ([0]); [1]: dmin
};

KERNEL_INLINE void put_raw_scales(enum dtype type, const u8 *p, u32 n_blocks, u32 row,
                                  struct raw_scales *raw) {
    if (is_super_block(type)) {
        store_128(raw->header[row], load_128(p + header_at(type)));
        if (type == DTYPE_Q6_K) raw->half[0][row] = load_u16(p + 208);
        if (type == DTYPE_Q2_K) raw->half[0][row] = load_u16(p + 80);
        if (type == DTYPE_Q2_K) raw->half[1][row] = load_u16(p + 82);
        return;
    }
    UNROLL_FULLY
    for (u32 b = 0; b < GROUP_BLOCKS; b++) {
        if (b >= n_blocks) break;
        if (form_of(type) == FORM_D_M) {
            raw->word[b][row] = load_u32(p + b * block_bytes(type));
        } else {
            raw->half[b][row] = load_u16(p + b * block_bytes(type));
        }
    }
}

// Word i of each row's header, for 16 rows.
KERNEL_INLINE void transpose_headers(const struct raw_scales *raw, __m512i column[4]) {
    __m512i z[4], x[4];
    UNROLL_FULLY
    for (u32 i = 0; i < 4; i++) z[i] = load_512(raw->header[4 * i]);
    // Rows in the words: first inside the 128-bit lanes, then across them.
    __m512i a = _mm512_unpacklo_epi32(z[0], z[1]), b = _mm512_unpackhi_epi32(z[0], z[1]);
    __m512i c = _mm512_unpacklo_epi32(z[2], z[3]), d = _mm512_unpackhi_epi32(z[2], z[3]);
    x[0] = _mm512_unpacklo_epi64(a, c); // word 0 of rows 0 4 8 12, then 1 5 9 13, ...
    x[1] = _mm512_unpackhi_epi64(a, c);
    x[2] = _mm512_unpacklo_epi64(b, d);
    x[3] = _mm512_unpackhi_epi64(b, d);
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    UNROLL_FULLY
    for (u32 i = 0; i < 4; i++) column[i] = _mm512_permutexvar_epi32(order, x[i]);
}

KERNEL_INLINE __m512 widen_f16_words(__m512i words) { // halves in the low parts of words
    return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(words));
}

// Byte i of each word, widened.
KERNEL_INLINE __m512i byte_of_words(__m512i words, u32 i) {
    return _mm512_and_si512(_mm512_srli_epi32(words, 8 * i), _mm512_set1_epi32(0xff));
}

KERNEL_INLINE void store_f32_of_bytes(f32 to[4][ROWS], __m512i words) {
    UNROLL_FULLY
    for (u32 i = 0; i < 4; i++) store_f32x16(to[i], _mm512_cvtepi32_ps(byte_of_words(words, i)));
}

KERNEL_INLINE void store_i32_of_bytes(i32 to[4][ROWS], __m512i words, i32 zero) {
    UNROLL_FULLY
    for (u32 i = 0; i < 4; i++) {
        store_512(to[i], _mm512_sub_epi32(byte_of_words(words, i), _mm512_set1_epi32(zero)));
    }
}

// Four minima in the bytes of words, as two pairs.
KERNEL_INLINE void store_minima(i16 to[2][ROWS][2], __m512i words) {
    const __m512i first = _mm512_set1_epi32((i32)0x80018000);
    const __m512i last = _mm512_set1_epi32((i32)0x80038002);
    const __m512i lane = _mm512_set4_epi32(0x000c000c, 0x00080008, 0x00040004, 0);
    store_512(to[0], _mm512_shuffle_epi8(words, _mm512_or_si512(first, lane)));
    store_512(to[1], _mm512_shuffle_epi8(words, _mm512_or_si512(last, lane)));
}

KERNEL_INLINE __m512 raw_half(const struct raw_scales *raw, u32 b) {
    return _mm512_cvtph_ps(load_256(raw->half[b]));
}

KERNEL_INLINE void super_scales(enum dtype type, const struct raw_scales *raw,
                                struct panel_scales *s) {
    const __m512i four = _mm512_set1_epi32(0x0f0f0f0f);
    __m512i column[4];
    transpose_headers(raw, column);
    if (type == DTYPE_Q4_K || type == DTYPE_Q5_K) {
        // d and dmin; then 6-bit fields: 0-3 whole in the bytes of words 1 and 2; of 4-7 the low
        // four bits in the nibbles of word 3, the upper two on top of the bytes of words 1 and 2.
        const __m512i six = _mm512_set1_epi32(0x3f3f3f3f), two = _mm512_set1_epi32(0x30303030);
        __m512i sc_top = _mm512_and_si512(_mm512_srli_epi32(column[1], 2), two);
        __m512i mn_top = _mm512_and_si512(_mm512_srli_epi32(column[2], 2), two);
        __m512i sc_low = _mm512_and_si512(column[3], four);
        __m512i mn_low = _mm512_and_si512(_mm512_srli_epi32(column[3], 4), four);
        store_f32_of_bytes(s->scale, _mm512_and_si512(column[1], six));
        store_f32_of_bytes(s->scale + 4, _mm512_or_si512(sc_low, sc_top));
        store_minima(s->mn, _mm512_and_si512(column[2], six));
        store_minima(s->mn + 2, _mm512_or_si512(mn_low, mn_top));
        store_f32x16(s->d, widen_f16_words(column[0]));
        store_f32x16(s->dmin, widen_f16_words(_mm512_srli_epi32(column[0], 16)));
    } else if (type == DTYPE_Q6_K) {
        UNROLL_FULLY
        for (u32 i = 0; i < 16; i++) {
            __m512i top = _mm512_slli_epi32(column[i / 4], 24 - 8 * (i % 4));
            store_f32x16(s->scale[i], _mm512_cvtepi32_ps(_mm512_srai_epi32(top, 24)));
        }
        store_f32x16(s->d, raw_half(raw, 0));
    } else if (type == DTYPE_Q3_K) {
        // The last 16 bytes: 2 of quants, 12 of scales (as row_scales has them), d.
        const __m512i two = _mm512_set1_epi32(0x03030303);
        UNROLL_FULLY
        for (u32 i = 0; i < 3; i++) {
            column[i] = _mm512_or_si512(_mm512_srli_epi32(column[i], 16),
                                        _mm512_slli_epi32(column[i + 1], 16));
        }
        UNROLL_FULLY
        for (u32 i = 0; i < 4; i++) {
            __m512i low = _mm512_srli_epi32(column[i % 2], i < 2 ? 0 : 4);
            __m512i high = _mm512_and_si512(_mm512_srli_epi32(column[2], 2 * i), two);
            low = _mm512_or_si512(_mm512_and_si512(low, four), _mm512_slli_epi32(high, 4));
            store_i32_of_bytes(s->sc + 4 * (usize)i, low, 32);
        }
        store_f32x16(s->d, widen_f16_words(_mm512_srli_epi32(column[3], 16)));
    } else if (type == DTYPE_Q2_K) {
        UNROLL_FULLY
        for (u32 i = 0; i < 4; i++) {
            __m512i high = _mm512_and_si512(_mm512_srli_epi32(column[i], 4), four);
            store_i32_of_bytes(s->sc + 4 * (usize)i, _mm512_and_si512(column[i], four), 0);
            store_minima(s->mn + 2 * (usize)i, high);
        }
        store_f32x16(s->d, raw_half(raw, 0));
        store_f32x16(s->dmin, raw_half(raw, 1));
    }
}

KERNEL_INLINE __m512 raw_d(enum dtype type, const struct raw_scales *raw, u32 b) {
    return form_of(type) == FORM_D_M ? widen_f16_words(load_512(raw->word[b])) : raw_half(raw, b);
}
KERNEL_INLINE __m512 raw_m(const struct raw_scales *raw, u32 b) {
    return widen_f16_words(_mm512_srli_epi32(load_512(raw->word[b]), 16));
}

KERNEL_INLINE void panel_scales_of(enum dtype type, const struct raw_scales *raw, u32 n_blocks,
                                   struct panel_scales *s) {
    if (is_super_block(type)) {
        super_scales(type, raw, s);
        return;
    }
    for (u32 b = 0; b < n_blocks; b++) {
        store_f32x16(s->scale[b], raw_d(type, raw, b));
        if (form_of(type) == FORM_D_M) store_f32x16(s->m[b], raw_m(raw, b));
    }
}

// --- from sums to values ---

KERNEL_INLINE __m512 fma_i32(__m512 scale, __m512i sum, __m512 chain) {
    return _mm512_fmadd_ps(scale, _mm512_cvtepi32_ps(sum), chain);
}

KERNEL_INLINE __m512i broadcast_i32(const i32 *p) { return _mm512_set1_epi32(*p); }

// M of the forms with minima, exact: asum = 256 * high + low, both of which fit i16 (|asum| is
// below 2^20), so pairs of blocks are multiplied at once.
KERNEL_INLINE __m512i minimum_sum(enum group_form form, const struct panel_scales *s,
                                  const struct token_group *x) {
    u32 n = form == FORM_SC_MIN ? 8 : 16;
    const i32 *asum = form == FORM_SC_MIN ? x->sum32 : x->sum16;
    i16 part[2][16]; // of each 8: the low parts of 4, the high parts of the same 4
    UNROLL_FULLY
    for (u32 i = 0; i < n; i += 8) {
        __m256i sum = load_256(asum + i);
        __m256i low = _mm256_and_si256(sum, _mm256_set1_epi32(0xff));
        store_256(part[i / 8], _mm256_packs_epi32(low, _mm256_srai_epi32(sum, 8)));
    }
    __m512i low = _mm512_setzero_si512(), high = _mm512_setzero_si512();
    UNROLL_FULLY
    for (u32 b = 0; b < n; b += 2) {
        const i16 *of_pair = &part[b / 8][b % 8 / 4 * 8 + b % 4];
        __m512i mn = load_512(s->mn[b / 2]);
        low = _mm512_dpwssd_epi32(low, mn, _mm512_set1_epi32(load_i32(of_pair)));
        high = _mm512_dpwssd_epi32(high, mn, _mm512_set1_epi32(load_i32(of_pair + 4)));
    }
    return _mm512_add_epi32(low, _mm512_slli_epi32(high, 8));
}

// The group value of a super block from its S.
KERNEL_INLINE __m512 super_value(enum group_form form, const struct panel_scales *s,
                                 const struct token_group *x, __m512 S) {
    __m512 d = load_f32x16(s->d);
    if (form == FORM_SC_16 || form == FORM_INT) return _mm512_mul_ps(d, S);
    __m512 M = _mm512_cvtepi32_ps(minimum_sum(form, s, x));
    return _mm512_fmsub_ps(d, S, _mm512_mul_ps(load_f32x16(s->dmin), M));
}

KERNEL_INLINE void put_panel(const struct gemm_args *args, u32 row, u32 n, u32 token,
                             __m512 total) {
    put_lanes(args, row, first_lanes(n), token, total);
}

// The rows of the panel that starts at `first`, of which n are real; the last one is repeated (V2).
KERNEL_INLINE void panel_of_16(const struct gemm_args *args, u32 first, u32 n,
                               const u8 *row[ROWS]) {
    const u8 *base = args->weight + first * args->row_bytes;
    UNROLL_FULLY
    for (u32 r = 0; r < ROWS; r++) row[r] = base + MIN(r, n - 1) * args->row_bytes;
}

// --- few tokens ---

// One token's activations of a group, in the order of the chunks.
struct planes {
    i8 high[CHUNKS][64]; // a = 256 * high + low
    u8 low[CHUNKS][64];
    i32 zero[16];               // what the zero point adds to the sums, by block or by run
    i32 zero_lanes[CHUNKS][16]; // Q3_K: the same where the partial sums lie
};

struct few_scratch {
    struct raw_scales raw;
    struct panel_scales scales;              // of super blocks, and with several tokens of all
    __m512i sums[FEW_TOKENS_MAX][4][CHUNKS]; // [token][four rows][accumulator]
    f32 total[FEW_TOKENS_MAX][ROWS];
    struct planes planes[]; // [group][token]
};
#define FEW_PLANES_MAX ((OP_SCRATCH_BYTES - sizeof(struct few_scratch)) / sizeof(struct planes))

// Whether the planes of all tokens fit the scratch: 39,000 elements of a row for 16 tokens.
KERNEL_INLINE bool planes_fit(const struct gemm_args *args) {
    usize n_groups = (args->k + OP_GROUP - 1) / OP_GROUP;
    return n_groups * args->n_tokens <= FEW_PLANES_MAX;
}

KERNEL_INLINE void split_group(enum dtype type, const struct token_group *x, u32 n_blocks,
                               struct planes *to) {
    i32 zero = zero_point(type);
    UNROLL_FULLY
    for (u32 c = 0; c < CHUNKS; c++) {
        UNROLL_FULLY
        for (u32 lane = 0; lane < 4; lane++) {
            u32 run = run_of_lane(type, c, lane);
            __m256i a = _mm256_setzero_si256();
            if (run / 2 < n_blocks) a = load_256(x->a + 16 * (usize)run);
            store_128(to->high[c] + 16 * lane, _mm256_cvtepi16_epi8(_mm256_srai_epi16(a, 8)));
            store_128(to->low[c] + 16 * lane, _mm256_cvtepi16_epi8(a));
            if (type != DTYPE_Q3_K) continue;
            UNROLL_FULLY
            for (u32 i = 0; i < 4; i++) to->zero_lanes[c][4 * lane + i] = 0;
            to->zero_lanes[c][4 * lane] = zero * x->sum16[run];
        }
    }
    if (type == DTYPE_Q6_K) {
        for (u32 i = 0; i < 16; i++) to->zero[i] = zero * x->sum16[i];
    } else if (type == DTYPE_Q8_0) { // 128 * 256 * (the sum of the high plane)
        for (u32 b = 0; b < n_blocks; b++) {
            i32 sum = 0;
            for (u32 i = 0; i < 32; i++) sum += x->a[32 * b + i] >> 8;
            to->zero[b] = sum * 32768;
        }
    } else if (!is_super_block(type)) {
        for (u32 b = 0; b < n_blocks; b++) to->zero[b] = zero * x->sum32[b];
    }
}

// Vectors of partial sums that half a group of a row leaves. Q6_K tells runs apart, the others
// blocks; Q2_K and Q3_K have one sum for the group.
KERNEL_INLINE u32 half_sums(enum dtype type) { return type == DTYPE_Q6_K ? 2 : 1; }

// Lane i of out_L is lane L of z_i.
KERNEL_INLINE void transpose_lanes(const __m512i z[4], __m512i out[4]) {
    __m512i a = _mm512_shuffle_i64x2(z[0], z[1], 0x44), b = _mm512_shuffle_i64x2(z[2], z[3], 0x44);
    __m512i c = _mm512_shuffle_i64x2(z[0], z[1], 0xee), d = _mm512_shuffle_i64x2(z[2], z[3], 0xee);
    out[0] = _mm512_shuffle_i64x2(a, b, 0x88);
    out[1] = _mm512_shuffle_i64x2(a, b, 0xdd);
    out[2] = _mm512_shuffle_i64x2(c, d, 0x88);
    out[3] = _mm512_shuffle_i64x2(c, d, 0xdd);
}

// The group value of 16 rows for one token. sums[i] is of rows 4i to 4i + 3.
// The scales of blocks of 32 come from `raw` when it is given.
KERNEL_INLINE __m512 few_value(enum dtype type, __m512i sums[4][CHUNKS],
                               const struct raw_scales *raw, const struct panel_scales *s,
                               const struct planes *planes, const struct token_group *x,
                               u32 n_blocks) {
    enum group_form form = form_of(type);
    bool has_zero = type == DTYPE_Q4_0 || type == DTYPE_Q5_0 || type == DTYPE_Q8_0 ||
                    type == DTYPE_Q6_K;
    bool by_pairs = type == DTYPE_Q4_K || type == DTYPE_Q5_K; // even blocks, then odd ones
    bool is_exact = form == FORM_INT || form == FORM_INT_MIN;
    u32 n = form == FORM_SC_16 ? 16 : n_blocks, n_sums = is_exact ? 1 : 2 * half_sums(type);
    __m512 S = _mm512_setzero_ps();
    __m512i run[16];
    UNROLL_FULLY
    for (u32 i = 0; i < n_sums; i++) {
        __m512i z[4], out[4];
        UNROLL_FULLY
        for (u32 four = 0; four < 4; four++) {
            z[four] = sums[four][i];
            if (is_exact) z[four] = _mm512_add_epi32(z[four], sums[four][1]);
        }
        transpose_lanes(z, out);
        UNROLL_FULLY
        for (u32 lane = 0; lane < 4; lane++)
            run[by_pairs ? 2 * lane + i : 4 * i + lane] = out[lane];
    }
    if (is_exact) { // the rest of its partial sums
        __m512i sum =
            _mm512_add_epi32(_mm512_add_epi32(run[0], run[1]), _mm512_add_epi32(run[2], run[3]));
        S = _mm512_cvtepi32_ps(sum);
        n = 0;
    }
    UNROLL_FULLY
    for (u32 b = 0; b < 16; b++) {
        if (b >= n) break;
        __m512i isum = run[b];
        if (has_zero) isum = _mm512_sub_epi32(isum, broadcast_i32(&planes->zero[b]));
        S = fma_i32(raw != NULL ? raw_d(type, raw, b) : load_f32x16(s->scale[b]), isum, S);
        if (form != FORM_D_M) continue;
        __m512 m = raw != NULL ? raw_m(raw, b) : load_f32x16(s->m[b]);
        S = fma_i32(m, broadcast_i32(&x->sum32[b]), S);
    }
    return form == FORM_D || form == FORM_D_M ? S : super_value(form, s, x, S);
}

// Half a group of a row ready for the products: unpacked; for Q2_K also scaled, for Q3_K with the
// scales of its partial sums.
struct row_half {
    __m512i v[2], scales[2];
};
KERNEL_INLINE struct row_half row_half_of(enum dtype type, const u8 *p, i32 available, u32 h) {
    struct row_half row = {.scales = {_mm512_setzero_si512(), _mm512_setzero_si512()}};
    unpack_half(type, p, available, h, row.v);
    if (type == DTYPE_Q3_K) {
        __m512i scales = row_scales(type, p);
        row.scales[0] = spread_runs(scales, 2 * h);
        row.scales[1] = spread_runs(scales, 2 * h + 1);
    }
    if (type == DTYPE_Q2_K) {
        // The four multiples of each scale in the bytes of a word; q chooses (at most 45).
        const __m512i factors = _mm512_set1_epi32(0x03020100);
        __m512i multiples = _mm512_mullo_epi32(row_scales(type, p), factors);
        row.v[0] = _mm512_shuffle_epi8(spread_runs(multiples, 2 * h), row.v[0]);
        row.v[1] = _mm512_shuffle_epi8(spread_runs(multiples, 2 * h + 1), row.v[1]);
    }
    return row;
}

// Half a group of a token's planes, in registers.
struct half_planes {
    __m512i high[2], low[2];
};
KERNEL_INLINE struct half_planes half_planes_of(const struct planes *planes, u32 h) {
    return (struct half_planes){
        .high = {load_512(planes->high[2 * h]), load_512(planes->high[2 * h + 1])},
        .low = {load_512(planes->low[2 * h]), load_512(planes->low[2 * h + 1])},
    };
}

// The partial sums of half a group of one row.
KERNEL_INLINE void multiply_half(enum dtype type, const struct row_half *row,
                                 const struct half_planes *x, const struct planes *planes, u32 h,
                                 __m512i sum[2]) {
    const __m512i *v = row->v, nothing = _mm512_setzero_si512();
    if (type == DTYPE_Q6_K || type == DTYPE_Q3_K) {
        UNROLL_FULLY
        for (u32 c = 0; c < 2; c++) {
            sum[c] = _mm512_slli_epi32(_mm512_dpbusd_epi32(nothing, v[c], x->high[c]), 8);
            sum[c] = _mm512_dpbusd_epi32(sum[c], x->low[c], v[c]);
            if (type == DTYPE_Q6_K) continue;
            sum[c] = _mm512_sub_epi32(sum[c], load_512(planes->zero_lanes[2 * h + c]));
            sum[c] = _mm512_mullo_epi32(sum[c], row->scales[c]);
        }
        if (type == DTYPE_Q3_K) sum[0] = _mm512_add_epi32(sum[0], sum[1]);
        return;
    }
    __m512i first = v[0], last = v[1];
    if (type == DTYPE_Q8_0) {
        const __m512i flip = _mm512_set1_epi8((char)0x80);
        first = _mm512_xor_si512(first, flip);
        last = _mm512_xor_si512(last, flip);
    }
    sum[0] = _mm512_dpbusd_epi32(nothing, first, x->high[0]);
    sum[0] = _mm512_dpbusd_epi32(sum[0], last, x->high[1]);
    sum[0] = _mm512_slli_epi32(sum[0], 8);
    sum[0] = _mm512_dpbusd_epi32(sum[0], x->low[0], v[0]);
    sum[0] = _mm512_dpbusd_epi32(sum[0], x->low[1], v[1]);
}

// Half h of a group of four rows, for all tokens.
KERNEL_INLINE void few_half(enum dtype type, const u8 *const row[4], usize at, i32 available, u32 h,
                            u32 n_tokens, const struct planes *planes, u32 four,
                            struct few_scratch *few) {
    struct row_half half[4];
    u32 n_sums = half_sums(type);
    UNROLL_FULLY
    for (u32 r = 0; r < 4; r++) half[r] = row_half_of(type, row[r] + at, available, h);
    for (u32 t = 0; t < n_tokens; t++) {
        struct half_planes x = half_planes_of(&planes[t], h);
        __m512i sum[4][2];
        UNROLL_FULLY
        for (u32 r = 0; r < 4; r++) multiply_half(type, &half[r], &x, &planes[t], h, sum[r]);
        UNROLL_FULLY
        for (u32 i = 0; i < n_sums; i++) {
            few->sums[t][four][n_sums * h + i] =
                sums_of_4(sum[0][i], sum[1][i], sum[2][i], sum[3][i]);
        }
    }
}

// A group of four rows for one token, row by row: nothing but the planes stays in registers.
KERNEL_INLINE void one_four(enum dtype type, const u8 *const row[4], usize at, u32 n_blocks,
                            const struct half_planes x[2], const struct planes *planes, u32 four,
                            struct few_scratch *few, struct ahead *ahead) {
    i32 available = (i32)(is_super_block(type) ? block_bytes(type) : n_blocks * block_bytes(type));
    u32 n_halves = n_blocks > 4 ? 2 : 1, n_sums = half_sums(type);
    __m512i sum[4][CHUNKS];
    UNROLL_FULLY
    for (u32 r = 0; r < 4; r++) {
        prefetch_step(ahead, (usize)available);
        put_raw_scales(type, row[r] + at, n_blocks, 4 * four + r, &few->raw);
        UNROLL_FULLY
        for (u32 h = 0; h < 2; h++) {
            if (h >= n_halves) {
                sum[r][n_sums * h] = sum[r][n_sums * h + n_sums - 1] = _mm512_setzero_si512();
                continue;
            }
            struct row_half half = row_half_of(type, row[r] + at, available, h);
            multiply_half(type, &half, &x[h], planes, h, &sum[r][n_sums * h]);
        }
    }
    UNROLL_FULLY
    for (u32 i = 0; i < 2 * n_sums; i++) {
        few->sums[0][four][i] = sums_of_4(sum[0][i], sum[1][i], sum[2][i], sum[3][i]);
    }
}

// One group of a panel for n_tokens tokens; 1 is a constant.
KERNEL_INLINE void few_group(enum dtype type, const u8 *const row[ROWS], usize at, u32 n_blocks,
                             u32 n_tokens, const struct planes *planes, const struct token_group *x,
                             struct few_scratch *few, struct ahead *ahead) {
    i32 available = (i32)(is_super_block(type) ? block_bytes(type) : n_blocks * block_bytes(type));
    u32 n_halves = n_blocks > 4 ? 2 : 1;
    bool is_one = n_tokens == 1;
    struct half_planes one[2] = {half_planes_of(planes, 0), half_planes_of(planes, 1)};
    for (u32 four = 0; four < 4; four++) {
        const u8 *const *p = row + 4 * (usize)four;
        if (is_one) {
            one_four(type, p, at, n_blocks, one, planes, four, few, ahead);
            continue;
        }
        UNROLL_FULLY
        for (u32 r = 0; r < 4; r++) {
            prefetch_step(ahead, (usize)available);
            put_raw_scales(type, p[r] + at, n_blocks, 4 * four + r, &few->raw);
        }
        few_half(type, p, at, available, 0, n_tokens, planes, four, few);
        if (n_halves == 2) few_half(type, p, at, available, 1, n_tokens, planes, four, few);
    }
    bool is_raw = is_one && !is_super_block(type);
    if (!is_raw) panel_scales_of(type, &few->raw, n_blocks, &few->scales);
    for (u32 t = 0; t < n_tokens; t++) {
        __m512 value = few_value(type, few->sums[t], is_raw ? &few->raw : NULL, &few->scales,
                                 &planes[t], &x[t], n_blocks);
        __m512 total = load_f32x16(few->total[t]);
        store_f32x16(few->total[t], _mm512_fmadd_ps(value, _mm512_set1_ps(*x[t].da), total));
    }
}

KERNEL_INLINE void gemm_few(enum dtype type, u32 n_tokens, const struct gemm_args *args, u32 begin,
                            u32 end, void *scratch) {
    struct few_scratch *few = scratch;
    u32 n_groups = (args->k + OP_GROUP - 1) / OP_GROUP;
    assert(n_tokens > 0 && n_tokens <= FEW_TOKENS_MAX);
    assert((usize)n_groups * n_tokens <= FEW_PLANES_MAX);
    for (u32 g = 0; g < n_groups; g++) {
        u32 n_blocks = MIN(args->k - g * OP_GROUP, OP_GROUP) / 32;
        for (u32 t = 0; t < n_tokens; t++) {
            struct token_group x = token_group_of(&args->xq, t, g);
            split_group(type, &x, n_blocks, &few->planes[(usize)g * n_tokens + t]);
        }
    }
    struct ahead ahead =
        prefetch_begin(args->weight + begin * args->row_bytes, ROWS, args->row_bytes);
    for (u32 first = begin; first < end; first += ROWS) {
        u32 n = MIN(end - first, ROWS);
        const u8 *row[ROWS];
        panel_of_16(args, first, n, row);
        for (u32 t = 0; t < n_tokens; t++) store_f32x16(few->total[t], _mm512_setzero_ps());
        for (u32 g = 0; g < n_groups; g++) {
            u32 n_blocks = MIN(args->k - g * OP_GROUP, OP_GROUP) / 32;
            const struct planes *planes = &few->planes[(usize)g * n_tokens];
            struct token_group x[FEW_TOKENS_MAX];
            usize at = (usize)g * group_bytes_of(type);
            for (u32 t = 0; t < n_tokens; t++) x[t] = token_group_of(&args->xq, t, g);
            // Constants for whole groups and, for one token, for the last ones of n_embd 640 and
            // 576.
            if (n_blocks == GROUP_BLOCKS) {
                few_group(type, row, at, GROUP_BLOCKS, n_tokens, planes, x, few, &ahead);
            } else if (n_blocks == 4 && n_tokens == 1) {
                few_group(type, row, at, 4, n_tokens, planes, x, few, &ahead);
            } else if (n_blocks == 2 && n_tokens == 1) {
                few_group(type, row, at, 2, n_tokens, planes, x, few, &ahead);
            } else if (!is_super_block(type)) {
                few_group(type, row, at, n_blocks, n_tokens, planes, x, few, &ahead);
            }
        }
        for (u32 t = 0; t < n_tokens; t++) {
            put_panel(args, first, n, t, load_f32x16(few->total[t]));
        }
    }
}

// --- many tokens ---

#define PANELS 2u
#define TILE_32 (PANELS * ROWS)

typedef f32 panel_total[PANELS][ROWS]; // of one token

struct many_scratch {
    i16 pairs[PANELS][GROUP_PAIRS][ROWS][2]; // the microkernel's operand, 16 KiB
    u8 quants[CHUNKS][ROWS][64];
    struct raw_scales raw;
    struct panel_scales scales[PANELS];
    panel_total total[CHUNK_TOKENS + TILE_TOKENS]; // the excess takes repeated tokens
};
static_assert(sizeof(struct many_scratch) <= OP_SCRATCH_BYTES, "a tile fits the scratch");

typedef void unpack_tile_fn(const u8 *const row[ROWS], usize at, u32 n_blocks,
                            struct many_scratch *many, u32 panel, struct ahead *ahead);

KERNEL_INLINE void unpack_tile(enum dtype type, const u8 *const row[ROWS], usize at, u32 n_blocks,
                               struct many_scratch *many, u32 panel, struct ahead *ahead) {
    i32 available = (i32)(is_super_block(type) ? block_bytes(type) : n_blocks * block_bytes(type));
    u32 n_chunks = n_blocks > 4 ? 4 : 2;
    const __m512i zero = _mm512_set1_epi8((char)zero_point(type));
    // Bytes 0 and 1, or 2 and 3, of each word to the upper halves of two i16.
    const __m512i lane = _mm512_set4_epi32(0x0c000c00, 0x08000800, 0x04000400, 0);
    const __m512i first = _mm512_or_si512(lane, _mm512_set1_epi32(0x01800080));
    const __m512i last = _mm512_or_si512(lane, _mm512_set1_epi32(0x03800280));
    for (u32 r = 0; r < ROWS; r++) {
        __m512i v[CHUNKS];
        prefetch_step(ahead, (usize)available);
        put_raw_scales(type, row[r] + at, n_blocks, r, &many->raw);
        unpack_half(type, row[r] + at, available, 0, v);
        unpack_half(type, row[r] + at, available, 1, v + 2);
        UNROLL_FULLY
        for (u32 c = 0; c < CHUNKS; c++) {
            if (c >= n_chunks) continue;
            store_512(many->quants[c][r], _mm512_sub_epi8(v[c], zero));
        }
    }
    UNROLL_FULLY
    for (u32 c = 0; c < CHUNKS; c++) {
        if (c >= n_chunks) continue;
        __m512i row_of[ROWS], column[16];
        UNROLL_FULLY
        for (u32 r = 0; r < ROWS; r++) row_of[r] = load_512(many->quants[c][r]);
        transpose_16x16_u32(row_of, column);
        UNROLL_FULLY
        for (u32 i = 0; i < 16; i++) {
            u32 pair = 8 * run_of_lane(type, c, i / 4) + 2 * (i % 4);
            __m512i even = _mm512_srai_epi16(_mm512_shuffle_epi8(column[i], first), 8);
            __m512i odd = _mm512_srai_epi16(_mm512_shuffle_epi8(column[i], last), 8);
            store_512(many->pairs[panel][pair], even);
            store_512(many->pairs[panel][pair + 1], odd);
        }
    }
    panel_scales_of(type, &many->raw, n_blocks, &many->scales[panel]);
}

// One group, 32 rows, n_tokens (a constant) tokens: their totals go one step on.
KERNEL_INLINE void tile_step(enum group_form form, u32 n_tokens, struct many_scratch *many,
                             u32 n_blocks, const struct token_group *x, panel_total *total) {
    __m512 S[TILE_TOKENS][PANELS];
    __m512i exact[TILE_TOKENS][PANELS];
    bool by_16 = form == FORM_SC_16 || form == FORM_INT || form == FORM_INT_MIN;
    bool is_exact = form == FORM_INT || form == FORM_INT_MIN;
    u32 block_pairs = by_16 ? 8 : 16;
    u32 n_steps = n_blocks * 16 / block_pairs;
    UNROLL_FULLY
    for (u32 t = 0; t < n_tokens; t++) {
        S[t][0] = S[t][1] = _mm512_setzero_ps();
        exact[t][0] = exact[t][1] = _mm512_setzero_si512();
    }
    for (u32 b = 0; b < n_steps; b++) {
        __m512i sum[TILE_TOKENS][PANELS];
        UNROLL_FULLY
        for (u32 t = 0; t < n_tokens; t++) sum[t][0] = sum[t][1] = _mm512_setzero_si512();
        for (u32 i = b * block_pairs; i < (b + 1) * block_pairs; i++) {
            __m512i w0 = load_512(many->pairs[0][i]), w1 = load_512(many->pairs[1][i]);
            UNROLL_FULLY
            for (u32 t = 0; t < n_tokens; t++) {
                __m512i a = _mm512_set1_epi32(load_i32(x[t].a + 2 * (usize)i));
                sum[t][0] = _mm512_dpwssd_epi32(sum[t][0], w0, a);
                sum[t][1] = _mm512_dpwssd_epi32(sum[t][1], w1, a);
                KEEP_IN_ZMMS(sum[t][0], sum[t][1]);
            }
        }
        UNROLL_FULLY
        for (u32 t = 0; t < n_tokens; t++) {
            UNROLL_FULLY
            for (u32 h = 0; h < PANELS; h++) {
                const struct panel_scales *s = &many->scales[h];
                if (is_exact) {
                    __m512i scaled = _mm512_mullo_epi32(load_512(s->sc[b]), sum[t][h]);
                    exact[t][h] = _mm512_add_epi32(exact[t][h], scaled);
                } else {
                    S[t][h] = fma_i32(load_f32x16(s->scale[b]), sum[t][h], S[t][h]);
                }
                if (form == FORM_D_M) {
                    __m512 m = load_f32x16(s->m[b]);
                    S[t][h] = fma_i32(m, broadcast_i32(&x[t].sum32[b]), S[t][h]);
                }
            }
        }
    }
    UNROLL_FULLY
    for (u32 t = 0; t < n_tokens; t++) {
        UNROLL_FULLY
        for (u32 h = 0; h < PANELS; h++) {
            __m512 value = is_exact ? _mm512_cvtepi32_ps(exact[t][h]) : S[t][h];
            if (form != FORM_D && form != FORM_D_M) {
                value = super_value(form, &many->scales[h], &x[t], value);
            }
            __m512 sum = load_f32x16(total[t][h]);
            store_f32x16(total[t][h], _mm512_fmadd_ps(value, _mm512_set1_ps(*x[t].da), sum));
        }
    }
}

// Tokens [begin, end) of the call, in tiles; the last tile repeats the last token.
KERNEL_INLINE void tile_tokens(enum group_form form, struct many_scratch *many, u32 n_blocks,
                               const struct q16 *xq, u32 begin, u32 end, u32 group) {
    for (u32 t = begin; t < end;) {
        struct token_group x[TILE_TOKENS];
        u32 step = token_tile(xq, t, end, group, x);
        if (step == 2) {
            tile_step(form, 2, many, n_blocks, x, &many->total[t - begin]);
        } else if (step == 4) {
            tile_step(form, 4, many, n_blocks, x, &many->total[t - begin]);
        } else {
            tile_step(form, TILE_TOKENS, many, n_blocks, x, &many->total[t - begin]);
        }
        t += step;
    }
}

KERNEL_INLINE void gemm_many(enum group_form form, unpack_tile_fn *unpack, u32 group_bytes,
                             const struct gemm_args *args, u32 begin, u32 end, void *scratch) {
    struct many_scratch *many = scratch;
    for (u32 chunk = 0; chunk < args->n_tokens; chunk += CHUNK_TOKENS) {
        u32 chunk_end = MIN(chunk + CHUNK_TOKENS, args->n_tokens);
        u32 n_totals = chunk_end - chunk + TILE_TOKENS;
        struct ahead ahead =
            prefetch_begin(args->weight + begin * args->row_bytes, TILE_32, args->row_bytes);
        for (u32 first = begin; first < end; first += TILE_32) {
            u32 n = MIN(end - first, TILE_32);
            u32 n_second = n > ROWS ? n - ROWS : 1; // without a second panel the last row again
            const u8 *row[PANELS][ROWS];
            panel_of_16(args, first, MIN(n, ROWS), row[0]);
            panel_of_16(args, first + n - n_second, n_second, row[1]);
            memset(many->total, 0, n_totals * sizeof many->total[0]);
            for (u32 g = 0; g * OP_GROUP < args->k; g++) {
                u32 n_blocks = MIN(args->k - g * OP_GROUP, OP_GROUP) / 32;
                for (u32 h = 0; h < PANELS; h++) {
                    unpack(row[h], (usize)g * group_bytes, n_blocks, many, h, &ahead);
                }
                tile_tokens(form, many, n_blocks, &args->xq, chunk, chunk_end, g);
            }
            for (u32 t = chunk; t < chunk_end; t++) {
                const panel_total *total = &many->total[t - chunk];
                put_panel(args, first, MIN(n, ROWS), t, load_f32x16((*total)[0]));
                if (n <= ROWS) continue;
                put_panel(args, first + ROWS, n - ROWS, t, load_f32x16((*total)[1]));
            }
        }
    }
}

// The tiles depend on the form only, so that types share their code.
typedef void gemm_many_fn(unpack_tile_fn *unpack, u32 group_bytes, const struct gemm_args *args,
                          u32 begin, u32 end, void *scratch);

#define DEFINE_MANY(name, form)                                                             \
    static void name(unpack_tile_fn *unpack, u32 group_bytes, const struct gemm_args *args, \
                     u32 begin, u32 end, void *scratch) {                                   \
        gemm_many(form, unpack, group_bytes, args, begin, end, scratch);                    \
    }
DEFINE_MANY(many_d, FORM_D)
DEFINE_MANY(many_d_m, FORM_D_M)
DEFINE_MANY(many_sc_min, FORM_SC_MIN)
DEFINE_MANY(many_sc_16, FORM_SC_16)
DEFINE_MANY(many_int, FORM_INT)
DEFINE_MANY(many_int_min, FORM_INT_MIN)
#undef DEFINE_MANY

static gemm_many_fn *const gemm_many_of[] = {
    [FORM_D] = many_d,         [FORM_D_M] = many_d_m, [FORM_SC_MIN] = many_sc_min,
    [FORM_SC_16] = many_sc_16, [FORM_INT] = many_int, [FORM_INT_MIN] = many_int_min,
};

#define DEFINE_GEMM(name, type)                                                                 \
    static void unpack_tile_##name(const u8 *const row[ROWS], usize at, u32 n_blocks,           \
                                   struct many_scratch *many, u32 panel, struct ahead *ahead) { \
        if (n_blocks == GROUP_BLOCKS) {                                                         \
            unpack_tile(type, row, at, GROUP_BLOCKS, many, panel, ahead);                       \
        } else if (!is_super_block(type)) {                                                     \
            unpack_tile(type, row, at, n_blocks, many, panel, ahead);                           \
        }                                                                                       \
    }                                                                                           \
    u32 gemm_##name##_avx512(const struct gemm_args *args, u32 begin, u32 end, void *scratch) { \
        assert(args->k % (is_super_block(type) ? OP_GROUP : 32) == 0);                          \
        if (begin >= end || args->n_tokens == 0) return 0;                                      \
        bool is_few = args->n_tokens <= few_tokens(type) && planes_fit(args);                   \
        if (is_few && args->n_tokens == 1) {                                                    \
            gemm_few(type, 1, args, begin, end, scratch);                                       \
        } else if (is_few) {                                                                    \
            gemm_few(type, args->n_tokens, args, begin, end, scratch);                          \
        } else {                                                                                \
            gemm_many_of[form_of(type)](unpack_tile_##name, group_bytes_of(type), args, begin,  \
                                        end, scratch);                                          \
        }                                                                                       \
        return 0;                                                                               \
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
