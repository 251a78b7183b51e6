// SPDX-License-Identifier: Apache-2.0
// The classes of code points that pre-tokenizers ask for: \p{L}, \p{N}, \p{P}, \s. They exclude
// each other, so that one look-up answers all four. The tables are generated (unicode_tables.c).
#pragma once
#include "freestanding/types.h"

#define UNICODE_CODE_POINTS 0x110000
#define UNICODE_BLOCK 256

enum unicode_class {
    UNICODE_OTHER, // marks, symbols, controls, unassigned
    UNICODE_LETTER,
    UNICODE_NUMBER, // digits, but also Roman numerals, fractions, ...
    UNICODE_PUNCTUATION,
    UNICODE_SPACE, // the property White_Space
};

extern const char unicode_version[];
extern const u8 unicode_block_index[UNICODE_CODE_POINTS / UNICODE_BLOCK];
extern const u8 unicode_blocks[][UNICODE_BLOCK / 2];

// Anything beyond the last code point is UNICODE_OTHER.
static inline enum unicode_class unicode_class_of(u32 code_point) {
    if (code_point >= UNICODE_CODE_POINTS) return UNICODE_OTHER;
    u8 pair = unicode_blocks[unicode_block_index[code_point / UNICODE_BLOCK]]
                            [code_point % UNICODE_BLOCK / 2];
    return (enum unicode_class)((code_point & 1) != 0 ? pair >> 4 : pair & 15);
}
