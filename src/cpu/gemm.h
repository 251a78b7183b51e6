// SPDX-License-Identifier: Apache-2.0
// What the products with quantised weights of all instruction sets share: the types by the form of
// their sums (the table of operator 4 of docs/contract.md), the sizes of their blocks (dtype.c
// draws them), and a token's activations for one group.
#pragma once
#include "cpu/avx2.h"

#define GROUP_BLOCKS (OP_GROUP / 32)
#define GROUP_PAIRS (OP_GROUP / 2)

// How a group's integer sums become its value (the table of operator 4).
enum group_form {
    FORM_D,       // Q4_0 Q5_0 Q8_0: S = fma(d, isum, S) per 32
    FORM_D_M,     // Q4_1 Q5_1: and S = fma(m, asum, S)
    FORM_SC_MIN,  // Q4_K Q5_K: S = fma(sc, isum, S) per 32, M = sum of mn * asum per 32
    FORM_SC_16,   // Q6_K: S = fma(sc, isum, S) per 16
    FORM_INT,     // Q3_K: S = sum of sc * isum per 16
    FORM_INT_MIN, // Q2_K: and M = sum of mn * asum per 16
};

KERNEL_INLINE enum group_form form_of(enum dtype type) {
    switch (type) {
    case DTYPE_Q4_1:
    case DTYPE_Q5_1: return FORM_D_M;
    case DTYPE_Q4_K:
    case DTYPE_Q5_K: return FORM_SC_MIN;
    case DTYPE_Q6_K: return FORM_SC_16;
    case DTYPE_Q3_K: return FORM_INT;
    case DTYPE_Q2_K: return FORM_INT_MIN;
    default: return FORM_D;
    }
}

KERNEL_INLINE bool is_super_block(enum dtype type) {
    return type >= DTYPE_Q2_K && type <= DTYPE_Q6_K;
}

// Bytes of a block of 32, or of a super block of 256.
KERNEL_INLINE u32 block_bytes(enum dtype type) {
    switch (type) {
    case DTYPE_Q4_0: return 18;
    case DTYPE_Q4_1: return 20;
    case DTYPE_Q5_0: return 22;
    case DTYPE_Q5_1: return 24;
    case DTYPE_Q8_0: return 34;
    case DTYPE_Q2_K: return 84;
    case DTYPE_Q3_K: return 110;
    case DTYPE_Q4_K: return 144;
    case DTYPE_Q5_K: return 176;
    case DTYPE_Q6_K: return 210;
    default: assert(!"a quantised type");
    }
}

KERNEL_INLINE u32 group_bytes_of(enum dtype type) {
    return block_bytes(type) * (is_super_block(type) ? 1 : GROUP_BLOCKS);
}

// One token's activations for one group, as the caller has them.
struct token_group {
    const i16 *a;             // [256]
    const i32 *sum16, *sum32; // [16], [8]
    const f32 *da;            // [1]
};

KERNEL_INLINE struct token_group token_group_of(const struct q16 *xq, u32 token, u32 group) {
    return (struct token_group){
        .a = xq->a + (usize)token * xq->a_stride + (usize)group * OP_GROUP,
        .sum16 = xq->sum16 + (usize)token * xq->sum_stride + (usize)group * (OP_GROUP / 16),
        .sum32 = xq->sum32 + (usize)token * xq->sum_stride + (usize)group * (OP_GROUP / 32),
        .da = xq->scale + (usize)token * xq->scale_stride + group,
    };
}

// The groups of the tokens of a tile that begins at token t of [t, end): 2, 4 or TILE_TOKENS of
// them, which is returned. Where fewer are left the last one is repeated.
KERNEL_INLINE u32 token_tile(const struct q16 *xq, u32 t, u32 end, u32 group,
                             struct token_group x[TILE_TOKENS]) {
    u32 left = end - t;
    u32 n = left <= 2 ? 2 : left <= 4 ? 4 : TILE_TOKENS;
    for (u32 i = 0; i < n; i++) x[i] = token_group_of(xq, MIN(t + i, end - 1), group);
    return n;
}
