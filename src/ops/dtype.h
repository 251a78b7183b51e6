// SPDX-License-Identifier: Apache-2.0
// The storage types of tensors: their GGUF numbers, block shapes, and the one definition of what a
// block means (unpack, dequantise). The tables hold every type this project computes with; a number
// outside them is refused where a file is read.
#pragma once
#include "freestanding/types.h"

// Values are GGUF's type numbers.
enum dtype {
    DTYPE_F32 = 0,
    DTYPE_F16 = 1,
    DTYPE_Q4_0 = 2,
    DTYPE_Q4_1 = 3,
    DTYPE_Q5_0 = 6,
    DTYPE_Q5_1 = 7,
    DTYPE_Q8_0 = 8,
    DTYPE_Q2_K = 10,
    DTYPE_Q3_K = 11,
    DTYPE_Q4_K = 12,
    DTYPE_Q5_K = 13,
    DTYPE_Q6_K = 14,
    DTYPE_BF16 = 30,
    DTYPE_LIMIT = 31, // table length
};

struct dtype_info {
    const char *name;   // "Q4_1"; NULL for a hole in the table
    u16 block_elements; // 1, 32 or 256
    u16 block_bytes;
    bool quantised; // gemm takes q16 activations (else f16 ones)
};

extern const struct dtype_info dtype_table[DTYPE_LIMIT];

// NULL for a number that is not ours.
const struct dtype_info *dtype_lookup(u32 number);
// "Q4_1", or for a known GGUF type that we do not compute with its name ("IQ4_XS"), or "unknown".
const char *dtype_name(u32 number);

// Bytes of a row of n elements; n is a multiple of block_elements.
u64 dtype_row_bytes(enum dtype type, u64 n);

// out[n] = the values of one row, products and sums rounded separately (no fma), as GGUF's
// reference software does. `row` needs no alignment; n is a multiple of block_elements.
void dtype_dequantise(enum dtype type, const u8 *row, u64 n, f32 *out);

// What dtype_unpack_group takes at once: as many elements as a super block of the K types.
#define DTYPE_GROUP 256

// The integers of up to 256 consecutive weights of a quantised type. The value of element e is
//   Q4_0 Q5_0 Q8_0   d[e/32] * q[e]
//   Q4_1 Q5_1        d[e/32] * q[e] + m[e/32]
//   Q4_K Q5_K        d[0] * scale[e/32] * q[e] - m[0] * min[e/32]
//   Q2_K             d[0] * scale[e/16] * q[e] - m[0] * min[e/16]
//   Q3_K Q6_K        d[0] * scale[e/16] * q[e]
struct dtype_group {
    i16 q[DTYPE_GROUP]; // with the fixed zero point of the type taken off
    f32 d[DTYPE_GROUP / 32], m[DTYPE_GROUP / 32];
    i16 scale[DTYPE_GROUP / 16], min[DTYPE_GROUP / 16];
};

// Unpacks n elements (a multiple of block_elements, at most DTYPE_GROUP) from the blocks at
// `blocks`. What the type has no use for is left as it was.
void dtype_unpack_group(enum dtype type, const u8 *blocks, u32 n, struct dtype_group *group);
