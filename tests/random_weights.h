// SPDX-License-Identifier: Apache-2.0
// Random weights of every type, for tests and benchmarks of kernels. Every bit pattern of the
// integer fields may occur; the f16 scales, which must not be infinite, and the values of the float
// types come from the caller.
#pragma once
#include "freestanding/mem.h"
#include "ops/dtype.h"

struct weight_source {
    u64 (*bits)(void);   // 64 bits of quants
    f16 (*scale)(void);  // a finite scale or minimum of a block
    f16 (*half)(void);   // a weight of type F16
    f32 (*single)(void); // a weight of type F32, or BF16 when cut
};

// Where the f16 scales of a quantised block lie: the result's number of them, from byte *at on.
static inline u32 weight_scales(enum dtype type, u32 *at) {
    *at = 0;
    switch (type) {
    case DTYPE_Q4_1:
    case DTYPE_Q5_1:
    case DTYPE_Q4_K:
    case DTYPE_Q5_K: return 2;
    case DTYPE_Q2_K: *at = 80; return 2;
    case DTYPE_Q3_K: *at = 108; return 1;
    case DTYPE_Q6_K: *at = 208; return 1;
    default: return 1;
    }
}

// Fills `bytes` of whole blocks.
static inline void weights_fill(enum dtype type, u8 *weight, u64 bytes,
                                const struct weight_source *source) {
    const struct dtype_info *info = dtype_lookup(type);
    assert(bytes % info->block_bytes == 0);
    if (info->quantised) {
        for (u64 i = 0; i < bytes; i += 8) {
            u8 word[8];
            store_u64(word, source->bits());
            memcpy(weight + i, word, MIN(bytes - i, (u64)sizeof word));
        }
    }
    u32 at = 0, n_scales = weight_scales(type, &at);
    for (u64 i = 0; i < bytes; i += info->block_bytes) {
        u8 *block = weight + i;
        switch (type) {
        case DTYPE_F32: store_f32(block, source->single()); break;
        case DTYPE_BF16: store_u16(block, (u16)(f32_bits(source->single()) >> 16)); break;
        case DTYPE_F16: store_u16(block, source->half()); break;
        default:
            for (u32 j = 0; j < n_scales; j++) store_u16(block + at + 2 * j, source->scale());
            break;
        }
    }
}
