// SPDX-License-Identifier: Apache-2.0
// Gemm of the tensor profile.
#include "macros.inc"
#include "blocks.inc"
#include "gemm_output.inc"
#include "gemm_tensor.inc"

MODULE_HEADER
SHARED_POWER_WORD

// --- tiles of results ---

// M(i, j) for the tiles of a warp; %c<i><j>_<r> are the totals, %s<i><j>_<r> those of a group.
#define FOR_ROW_8(M, i) M(i, 0) M(i, 1) M(i, 2) M(i, 3) M(i, 4) M(i, 5) M(i, 6) M(i, 7)
#define FOR_TILES_2_8(M) FOR_ROW_8(M, 0) FOR_ROW_8(M, 1)
#define FOR_TILES_4_8(M) FOR_ROW_8(M, 0) FOR_ROW_8(M, 1) FOR_ROW_8(M, 2) FOR_ROW_8(M, 3)
#define DECLARE_C(i, j) .reg .f32 %c##i##j##_<4>;
#define DECLARE_G(i, j) .reg .f32 %s##i##j##_<4>;
#define ZERO_FOUR(name)                               \
    mov.f32 %name##_0, F32_ZERO;                      \
    mov.f32 %name##_1, F32_ZERO;                      \
    mov.f32 %name##_2, F32_ZERO;                      \
    mov.f32 %name##_3, F32_ZERO;
#define ZERO_C(i, j) ZERO_FOUR(c##i##j)
#define ZERO_G(i, j) ZERO_FOUR(s##i##j)
#define ADD_GROUP(i, j)                               \
    add.rn.f32 %c##i##j##_0, %c##i##j##_0, %s##i##j##_0; \
    add.rn.f32 %c##i##j##_1, %c##i##j##_1, %s##i##j##_1; \
    add.rn.f32 %c##i##j##_2, %c##i##j##_2, %s##i##j##_2; \
    add.rn.f32 %c##i##j##_3, %c##i##j##_3, %s##i##j##_3;
#define FOR_16(M) M(0) M(1) M(2) M(3) M(4) M(5) M(6) M(7) M(8) M(9) M(10) M(11) M(12) M(13) M(14) M(15)

// --- 16-bit weights ---

#define HALF_A_BYTES 8192      // 128 * 64
#define HALF_STAGE_BYTES 16384 // and as much of activations
#define HALF_TILES_BYTES 49152 // three stages
#define SMALL_A_BYTES 4096     // 16 * 256
#define SMALL_STAGE_BYTES 6144 // and 8 * 256
#define SMALL_TILES_BYTES 36864 // six stages
#define SMALL_WAIT 4           // stages in flight when one is awaited, less one

#define STEP_B
#define STEP_MMA(i, j, b0, b1)                        \
    MMA_F16(%c##i##j##_0, %c##i##j##_1, %c##i##j##_2, %c##i##j##_3, \
            %a##i##_0, %a##i##_1, %a##i##_2, %a##i##_3, %b##b0, %b##b1, \
            %c##i##j##_0, %c##i##j##_1, %c##i##j##_2, %c##i##j##_3)
#define CHAIN_MMA(b0, b1)                             \
    MMA_F16(%c0, %c1, %c2, %c3, %a0, %a1, %a2, %a3, %b##b0, %b##b1, %c0, %c1, %c2, %c3)

#define KERNEL gemm_tensor_f16
#include "gemm_tensor_half.inc"
#undef KERNEL
#define KERNEL gemm_tensor_f16_8
#include "gemm_tensor_half_8.inc"
#undef KERNEL
#undef SMALL_WAIT

// --- quantised weights ---

// %w<q>_<0..3> = row q's weights of block b: elements 4 t, 4 t + 1; 4 t + 2, 4 t + 3; and 16 more.
#define BLOCK_ROW(q, b)                               \
    {                                                 \
        .reg .b32 %xa, %xb, %ha, %hb, %wa, %wb;       \
        PAIR(%xa, %xb, %ha, %hb, %s_row##q, b, %i_pair) \
        EXPAND(%wa, %wb, %xa, %xb, %ha, %hb)          \
        TO_HALVES(%w##q##_0, %w##q##_1, %wa)          \
        TO_HALVES(%w##q##_2, %w##q##_3, %wb)          \
        SCALES(%d_##q, %m_##q, %s_row##q, b)          \
    }
// Bytes n to the f16 numbers n, exact: 0x6400 + n is the f16 1024 + n.
#define HALVES_S8(low, high, w)                       \
    {                                                 \
        .reg .b32 %u, %offset;                        \
        mov.b32 %offset, F16X2_MINUS_1152;            \
        xor.b32 %u, w, SIGN_BITS;                     \
        prmt.b32 low, %u, F16X2_1024, 0x7150;         \
        prmt.b32 high, %u, F16X2_1024, 0x7352;        \
        add.rn.f16x2 low, low, %offset;               \
        add.rn.f16x2 high, high, %offset;             \
    }
#define F16X2_1024 0x64006400
#define F16X2_MINUS_1152 0xe480e480

// Tile (i, j) of a block of 32: a sum of its own from +0, then s = fma(d, sum, s).
#define BLOCK_MMA_ROWS(q0, q1, name)                  \
    {                                                 \
        .reg .f32 %p<4>;                              \
        MMA_F16(%p0, %p1, %p2, %p3, %w##q0##_0, %w##q1##_0, %w##q0##_1, %w##q1##_1, %b0, %b1, \
                F32_ZERO, F32_ZERO, F32_ZERO, F32_ZERO) \
        MMA_F16(%p0, %p1, %p2, %p3, %w##q0##_2, %w##q1##_2, %w##q0##_3, %w##q1##_3, %b2, %b3, \
                %p0, %p1, %p2, %p3)                   \
        fma.rn.f32 %name##_0, %d_##q0, %p0, %name##_0; \
        fma.rn.f32 %name##_1, %d_##q0, %p1, %name##_1; \
        fma.rn.f32 %name##_2, %d_##q1, %p2, %name##_2; \
        fma.rn.f32 %name##_3, %d_##q1, %p3, %name##_3; \
    }
#define BLOCK_MMA(j) BLOCK_MMA_ROWS(0, 1, s0##j) BLOCK_MMA_ROWS(2, 3, s1##j)

#define COPIES_4(M) M(0) M(1) M(2) M(3)
#define COPIES_5(M) COPIES_4(M) M(4)
#define COPIES_8(M) COPIES_5(M) M(5) M(6) M(7)
#define COPIES_9(M) COPIES_8(M) M(8)

// --- Q4_0 ---

#define PAIR Q4_0_PAIR
#define EXPAND Q4_0_EXPAND
#define SCALES Q4_0_SCALES
#define TO_HALVES HALVES_S8
#define GROUP_BYTES Q4_0_GROUP_BYTES
#define STAGE_BYTES 36
#define ROW_LANES 4
#define LANES_SHIFT 2
#define ROWS_APART 32
#define FOR_COPIES COPIES_4
#define CHUNKS 4       // STAGE_BYTES and up to 14 in front
#define RAW_ROW 80     // CHUNKS, and one so that rows fall into different banks
#define RAW_BYTES 10240 // 128 * RAW_ROW
#define SLOT_BYTES 18432 // and 64 * 128
#define SLOTS_BYTES 36864
#define KERNEL gemm_tensor_q4_0
#include "gemm_tensor_blocks.inc"
#undef KERNEL
#define SMALL_CHUNKS 10 // GROUP_BYTES and up to 14 in front
#define SMALL_ROW 176
#define SMALL_SLOT 2816
#define SMALL_SLOTS 3
#define RING_BYTES 33792
#define FOR_SMALL_COPIES COPIES_5
#define PROLOGUE_LOADS LOAD_GROUP LOAD_GROUP
#define SMALL_WAIT 2
#define KERNEL gemm_tensor_q4_0_8
#include "gemm_tensor_blocks_8.inc"
#undef KERNEL
#undef PAIR
#undef EXPAND
#undef SCALES
#undef TO_HALVES
#undef GROUP_BYTES
#undef STAGE_BYTES
#undef ROW_LANES
#undef LANES_SHIFT
#undef ROWS_APART
#undef FOR_COPIES
#undef CHUNKS
#undef RAW_ROW
#undef RAW_BYTES
#undef SLOT_BYTES
#undef SLOTS_BYTES
#undef SMALL_CHUNKS
#undef SMALL_ROW
#undef SMALL_SLOT
#undef SMALL_SLOTS
#undef RING_BYTES
#undef FOR_SMALL_COPIES
#undef PROLOGUE_LOADS
#undef SMALL_WAIT

// --- Q8_0 ---

#define PAIR Q8_0_PAIR
#define EXPAND Q8_0_EXPAND
#define SCALES Q8_0_SCALES
#define TO_HALVES HALVES_S8
#define GROUP_BYTES Q8_0_GROUP_BYTES
#define STAGE_BYTES 68
#define ROW_LANES 8
#define LANES_SHIFT 3
#define ROWS_APART 16
#define FOR_COPIES COPIES_8
#define CHUNKS 6
#define RAW_ROW 112
#define RAW_BYTES 14336
#define SLOT_BYTES 22528
#define SLOTS_BYTES 45056
#define KERNEL gemm_tensor_q8_0
#include "gemm_tensor_blocks.inc"
#undef KERNEL
#define SMALL_CHUNKS 18
#define SMALL_ROW 304
#define SMALL_SLOT 4864
#define SMALL_SLOTS 2
#define RING_BYTES 38912
#define FOR_SMALL_COPIES COPIES_9
#define PROLOGUE_LOADS LOAD_GROUP
#define SMALL_WAIT 1
#define KERNEL gemm_tensor_q8_0_8
#include "gemm_tensor_blocks_8.inc"
#undef KERNEL
#undef PAIR
#undef EXPAND
#undef SCALES
#undef TO_HALVES
#undef GROUP_BYTES
#undef STAGE_BYTES
#undef ROW_LANES
#undef LANES_SHIFT
#undef ROWS_APART
#undef FOR_COPIES
#undef CHUNKS
#undef RAW_ROW
#undef RAW_BYTES
#undef SLOT_BYTES
#undef SLOTS_BYTES
#undef SMALL_CHUNKS
#undef SMALL_ROW
#undef SMALL_SLOT
#undef SMALL_SLOTS
#undef RING_BYTES
#undef FOR_SMALL_COPIES
#undef PROLOGUE_LOADS
#undef SMALL_WAIT
