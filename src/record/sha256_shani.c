// SPDX-License-Identifier: Apache-2.0
// The block function by the SHA instructions. The state is held as two vectors in the order that
// they want: abef = {f, e, b, a} and cdgh = {h, g, d, c}, low lane first. sha256rnds2 does two
// rounds with the two low lanes of (message + constants); the message schedule is kept in four
// vectors that are renewed in turn.
//
// One message is a chain of sha256rnds2, each waiting four cycles for the one before, while the CPU
// could begin one every two: the second message of a pair fills the gaps.
#define _MM_MALLOC_H_INCLUDED
#define __MM_MALLOC_H
#include <immintrin.h>

#include "record/sha256.h"

#define SHANI __attribute__((target("sha,sse4.1"), always_inline)) static inline

struct lanes {
    __m128i abef, cdgh;
    __m128i w[4]; // of the block in progress
};

SHANI struct lanes load_state(const u32 state[8]) {
    __m128i abcd = _mm_loadu_si128((const __m128i_u *)&state[0]);
    __m128i efgh = _mm_loadu_si128((const __m128i_u *)&state[4]);
    __m128i badc = _mm_shuffle_epi32(abcd, 0xb1); // lanes b a d c
    __m128i hgfe = _mm_shuffle_epi32(efgh, 0x1b); // lanes h g f e
    struct lanes l;
    l.abef = _mm_alignr_epi8(badc, hgfe, 8);    // lanes f e b a
    l.cdgh = _mm_blend_epi16(hgfe, badc, 0xf0); // lanes h g d c
    return l;
}

SHANI void store_state(u32 state[8], const struct lanes *l) {
    __m128i abef_up = _mm_shuffle_epi32(l->abef, 0x1b); // lanes a b e f
    __m128i cdgh_up = _mm_shuffle_epi32(l->cdgh, 0x1b); // lanes c d g h
    _mm_storeu_si128((__m128i_u *)&state[0], _mm_unpacklo_epi64(abef_up, cdgh_up));
    _mm_storeu_si128((__m128i_u *)&state[4], _mm_unpackhi_epi64(abef_up, cdgh_up));
}

SHANI void load_block(struct lanes *l, const u8 *data) {
    const __m128i big_endian = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
    for (u32 i = 0; i < 4; i++) {
        l->w[i] = _mm_loadu_si128((const __m128i_u *)(data + 16 * i));
        l->w[i] = _mm_shuffle_epi8(l->w[i], big_endian);
    }
}

// Rounds 4 * i to 4 * i + 3.
SHANI void four_rounds(struct lanes *l, u32 i) {
    __m128i now = l->w[i % 4];
    __m128i sum =
        _mm_add_epi32(now, _mm_loadu_si128((const __m128i_u *)&sha256_round_constants[4 * i]));
    l->cdgh = _mm_sha256rnds2_epu32(l->cdgh, l->abef, sum);
    l->abef = _mm_sha256rnds2_epu32(l->abef, l->cdgh, _mm_shuffle_epi32(sum, 0x0e));
    if (i >= 12) return;
    // w[i] becomes the words of round group i + 4.
    __m128i next = _mm_sha256msg1_epu32(now, l->w[(i + 1) % 4]);
    __m128i middle = _mm_alignr_epi8(l->w[(i + 3) % 4], l->w[(i + 2) % 4], 4);
    next = _mm_add_epi32(next, middle);
    l->w[i % 4] = _mm_sha256msg2_epu32(next, l->w[(i + 3) % 4]);
}

SHANI void add_state(struct lanes *l, const struct lanes *before) {
    l->abef = _mm_add_epi32(l->abef, before->abef);
    l->cdgh = _mm_add_epi32(l->cdgh, before->cdgh);
}

__attribute__((target("sha,sse4.1"))) void sha256_blocks_shani(u32 state[8], const u8 *data,
                                                               usize n_blocks) {
    struct lanes l = load_state(state);
    for (; n_blocks > 0; n_blocks--, data += SHA256_BLOCK_BYTES) {
        struct lanes before = l;
        load_block(&l, data);
#pragma GCC unroll 16
        for (u32 i = 0; i < 16; i++) four_rounds(&l, i);
        add_state(&l, &before);
    }
    store_state(state, &l);
}

__attribute__((target("sha,sse4.1"))) void sha256_blocks_pair_shani(u32 first[8], u32 second[8],
                                                                    const u8 *first_data,
                                                                    const u8 *second_data,
                                                                    usize n_blocks) {
    struct lanes a = load_state(first), b = load_state(second);
    for (; n_blocks > 0; n_blocks--) {
        struct lanes a_before = a, b_before = b;
        load_block(&a, first_data);
        load_block(&b, second_data);
#pragma GCC unroll 16
        for (u32 i = 0; i < 16; i++) {
            four_rounds(&a, i);
            four_rounds(&b, i);
        }
        add_state(&a, &a_before);
        add_state(&b, &b_before);
        first_data += SHA256_BLOCK_BYTES;
        second_data += SHA256_BLOCK_BYTES;
    }
    store_state(first, &a);
    store_state(second, &b);
}
