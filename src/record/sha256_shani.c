// SPDX-License-Identifier: Apache-2.0
// The block function by the SHA instructions. The state is held as two vectors in the order that
// they want: abef = {f, e, b, a} and cdgh = {h, g, d, c}, low lane first. sha256rnds2 does two
// rounds with the two low lanes of (message + constants); the message schedule is kept in four
// vectors that are renewed in turn.
#define _MM_MALLOC_H_INCLUDED
#define __MM_MALLOC_H
#include <immintrin.h>

#include "record/sha256.h"

__attribute__((target("sha,sse4.1"))) void sha256_blocks_shani(u32 state[8], const u8 *data,
                                                               usize n_blocks) {
    const __m128i big_endian = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
    __m128i abcd = _mm_loadu_si128((const __m128i_u *)&state[0]);
    __m128i efgh = _mm_loadu_si128((const __m128i_u *)&state[4]);
    __m128i badc = _mm_shuffle_epi32(abcd, 0xb1);     // lanes b a d c
    __m128i hgfe = _mm_shuffle_epi32(efgh, 0x1b);     // lanes h g f e
    __m128i abef = _mm_alignr_epi8(badc, hgfe, 8);    // lanes f e b a
    __m128i cdgh = _mm_blend_epi16(hgfe, badc, 0xf0); // lanes h g d c
    for (; n_blocks > 0; n_blocks--, data += SHA256_BLOCK_BYTES) {
        __m128i abef_before = abef, cdgh_before = cdgh;
        __m128i w[4];
        for (u32 i = 0; i < 4; i++) {
            w[i] = _mm_loadu_si128((const __m128i_u *)(data + 16 * i));
            w[i] = _mm_shuffle_epi8(w[i], big_endian);
        }
        for (u32 i = 0; i < 16; i++) { // four rounds each
            __m128i now = w[i % 4];
            __m128i sum = _mm_add_epi32(
                now, _mm_loadu_si128((const __m128i_u *)&sha256_round_constants[4 * i]));
            cdgh = _mm_sha256rnds2_epu32(cdgh, abef, sum);
            abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(sum, 0x0e));
            if (i >= 12) continue;
            // w[i] becomes the words of round group i + 4.
            __m128i next = _mm_sha256msg1_epu32(now, w[(i + 1) % 4]);
            __m128i middle = _mm_alignr_epi8(w[(i + 3) % 4], w[(i + 2) % 4], 4);
            next = _mm_add_epi32(next, middle);
            w[i % 4] = _mm_sha256msg2_epu32(next, w[(i + 3) % 4]);
        }
        abef = _mm_add_epi32(abef, abef_before);
        cdgh = _mm_add_epi32(cdgh, cdgh_before);
    }
    __m128i feba = abef, hgdc = cdgh;
    __m128i abef_up = _mm_shuffle_epi32(feba, 0x1b); // lanes a b e f
    __m128i cdgh_up = _mm_shuffle_epi32(hgdc, 0x1b); // lanes c d g h
    _mm_storeu_si128((__m128i_u *)&state[0], _mm_unpacklo_epi64(abef_up, cdgh_up));
    _mm_storeu_si128((__m128i_u *)&state[4], _mm_unpackhi_epi64(abef_up, cdgh_up));
}
