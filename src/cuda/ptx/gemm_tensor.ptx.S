// SPDX-License-Identifier: Apache-2.0
// Operators 4, 5 and 6 in the profile `tensor` (docs/contract.md, section 11): f16 activations
// times weights read in place, by mma.sync.m16n8k16 with f32 accumulation. Weights are the A
// operand (16 rows), tokens the B operand (8). F16 weights enter as they are; BF16 weights meet an
// activation that is split into two bf16 numbers; quantised weights become f16 integers in
// registers, exactly, and scales multiply the f32 sums of their block.
//
// T1. Each output is one chain over ascending k, the same in both kernels of a type and whatever
//     the number of tokens and the place of a row: bytes of a row do not depend on the batch.
// T2. Every matrix instruction of a type takes the same elements in the same slots. Of quantised
//     weights slots 2t, 2t + 1, 2t + 8, 2t + 9 of 16 are the elements 4t .. 4t + 3, which are one
//     word of the raw bytes; of 16-bit weights slot i is element i.
// T3. Weights begin at a multiple of 16 bytes. Rows of F16 and BF16 do too, and k is a multiple of
//     8; rows of quantised weights stand at any even address. Nothing behind a tensor is read: what
//     lies behind the end of a row is 0 in shared memory, and adds nothing to a sum.
//
// gemm_tensor_T is for many tokens, gemm_tensor_T_8 for up to about 16.
//
// kernel gemm_tensor_f16
//   params: power u64, status u64, weight u64, x u64, bias u64, out u64, row_bytes u32, k u32,
//           features u32, n_tokens u32, x_stride u32, out_stride u32, output u32
//   grid: ceil(features / 128), ceil(n_tokens / 128)
//   block: 128
//   registers: sm_89 211, sm_90 214, sm_100 210, sm_120 198
//   shared: 49152
//   roof: operations
//   index map: affine; a permutation of blocks (TILE_OF_BLOCK), then row thread, tokens in a loop
//   aligned: weight 16 bytes, rows too; x 16 bytes; bias 4 bytes; out elements
//
// kernel gemm_tensor_f16_8
//   params: power u64, status u64, weight u64, x u64, bias u64, out u64, row_bytes u32, k u32,
//           features u32, n_tokens u32, x_stride u32, out_stride u32, output u32
//   grid: ceil(features / 16), ceil(n_tokens / 8)
//   block: 32
//   registers: sm_89 70, sm_90 70, sm_100 74, sm_120 70
//   shared: 36868
//   roof: bytes of weights
//   index map: affine; feature 16 * ctaid.x + g + 8 r, token 8 * ctaid.y + 2 t + a
//   aligned: weight 16 bytes, rows too; x 16 bytes; bias 4 bytes; out elements
//
// kernel gemm_tensor_bf16
//   params: power u64, status u64, weight u64, x u64, bias u64, out u64, row_bytes u32, k u32,
//           features u32, n_tokens u32, x_stride u32, out_stride u32, output u32
//   grid: ceil(features / 128), ceil(n_tokens / 128)
//   block: 128
//   registers: sm_89 225, sm_90 228, sm_100 220, sm_120 230
//   shared: 49152
//   roof: operations
//   index map: affine; a permutation of blocks (TILE_OF_BLOCK), then row thread, tokens in a loop
//   aligned: weight 16 bytes, rows too; x 16 bytes; bias 4 bytes; out elements
//
// kernel gemm_tensor_bf16_8
//   params: power u64, status u64, weight u64, x u64, bias u64, out u64, row_bytes u32, k u32,
//           features u32, n_tokens u32, x_stride u32, out_stride u32, output u32
//   grid: ceil(features / 16), ceil(n_tokens / 8)
//   block: 32
//   registers: sm_89 66, sm_90 70, sm_100 70, sm_120 70
//   shared: 36868
//   roof: bytes of weights
//   index map: affine; feature 16 * ctaid.x + g + 8 r, token 8 * ctaid.y + 2 t + a
//   aligned: weight 16 bytes, rows too; x 16 bytes; bias 4 bytes; out elements
//
// kernel gemm_tensor_q4_0
//   params: power u64, status u64, weight u64, x u64, bias u64, out u64, row_bytes u32, k u32,
//           features u32, n_tokens u32, x_stride u32, out_stride u32, output u32
//   grid: ceil(features / 128), ceil(n_tokens / 64)
//   block: 128
//   registers: sm_89 185, sm_90 183, sm_100 186, sm_120 194
//   shared: 36868
//   roof: operations
//   index map: affine; a permutation of blocks (TILE_OF_BLOCK), then row thread, tokens in a loop
//   aligned: weight 16 bytes, rows 2; x 16 bytes; bias 4 bytes; out elements
//
// kernel gemm_tensor_q4_0_8
//   params: power u64, status u64, weight u64, x u64, bias u64, out u64, row_bytes u32, k u32,
//           features u32, n_tokens u32, x_stride u32, out_stride u32, output u32
//   grid: ceil(features / 16), ceil(n_tokens / 8)
//   block: 128
//   registers: sm_89 107, sm_90 94, sm_100 96, sm_120 115
//   shared: 34308
//   roof: bytes of weights
//   index map: affine; feature 16 * ctaid.x + g + 8 r, token 8 * ctaid.y + 2 t + a
//   aligned: weight 16 bytes, rows 2; x 16 bytes; bias 4 bytes; out elements
//
// kernel gemm_tensor_q4_1
//   params: power u64, status u64, weight u64, x u64, bias u64, out u64, row_bytes u32, k u32,
//           features u32, n_tokens u32, x_stride u32, out_stride u32, output u32
//   grid: ceil(features / 128), ceil(n_tokens / 64)
//   block: 128
//   registers: sm_89 199, sm_90 195, sm_100 200, sm_120 212
//   shared: 36868
//   roof: operations
//   index map: affine; a permutation of blocks (TILE_OF_BLOCK), then row thread, tokens in a loop
//   aligned: weight 16 bytes, rows 2; x 16 bytes; bias 4 bytes; out elements
//
// kernel gemm_tensor_q4_1_8
//   params: power u64, status u64, weight u64, x u64, bias u64, out u64, row_bytes u32, k u32,
//           features u32, n_tokens u32, x_stride u32, out_stride u32, output u32
//   grid: ceil(features / 16), ceil(n_tokens / 8)
//   block: 128
//   registers: sm_89 137, sm_90 133, sm_100 135, sm_120 142
//   shared: 40452
//   roof: bytes of weights
//   index map: affine; feature 16 * ctaid.x + g + 8 r, token 8 * ctaid.y + 2 t + a
//   aligned: weight 16 bytes, rows 2; x 16 bytes; bias 4 bytes; out elements
//
// kernel gemm_tensor_q5_0
//   params: power u64, status u64, weight u64, x u64, bias u64, out u64, row_bytes u32, k u32,
//           features u32, n_tokens u32, x_stride u32, out_stride u32, output u32
//   grid: ceil(features / 128), ceil(n_tokens / 64)
//   block: 128
//   registers: sm_89 184, sm_90 183, sm_100 185, sm_120 194
//   shared: 36868
//   roof: operations
//   index map: affine; a permutation of blocks (TILE_OF_BLOCK), then row thread, tokens in a loop
//   aligned: weight 16 bytes, rows 2; x 16 bytes; bias 4 bytes; out elements
//
// kernel gemm_tensor_q5_0_8
//   params: power u64, status u64, weight u64, x u64, bias u64, out u64, row_bytes u32, k u32,
//           features u32, n_tokens u32, x_stride u32, out_stride u32, output u32
//   grid: ceil(features / 16), ceil(n_tokens / 8)
//   block: 128
//   registers: sm_89 116, sm_90 113, sm_100 114, sm_120 121
//   shared: 40452
//   roof: bytes of weights
//   index map: affine; feature 16 * ctaid.x + g + 8 r, token 8 * ctaid.y + 2 t + a
//   aligned: weight 16 bytes, rows 2; x 16 bytes; bias 4 bytes; out elements
//
// kernel gemm_tensor_q5_1
//   params: power u64, status u64, weight u64, x u64, bias u64, out u64, row_bytes u32, k u32,
//           features u32, n_tokens u32, x_stride u32, out_stride u32, output u32
//   grid: ceil(features / 128), ceil(n_tokens / 64)
//   block: 128
//   registers: sm_89 199, sm_90 196, sm_100 200, sm_120 212
//   shared: 36868
//   roof: operations
//   index map: affine; a permutation of blocks (TILE_OF_BLOCK), then row thread, tokens in a loop
//   aligned: weight 16 bytes, rows 2; x 16 bytes; bias 4 bytes; out elements
//
// kernel gemm_tensor_q5_1_8
//   params: power u64, status u64, weight u64, x u64, bias u64, out u64, row_bytes u32, k u32,
//           features u32, n_tokens u32, x_stride u32, out_stride u32, output u32
//   grid: ceil(features / 16), ceil(n_tokens / 8)
//   block: 128
//   registers: sm_89 143, sm_90 144, sm_100 146, sm_120 156
//   shared: 46596
//   roof: bytes of weights
//   index map: affine; feature 16 * ctaid.x + g + 8 r, token 8 * ctaid.y + 2 t + a
//   aligned: weight 16 bytes, rows 2; x 16 bytes; bias 4 bytes; out elements
//
// kernel gemm_tensor_q8_0
//   params: power u64, status u64, weight u64, x u64, bias u64, out u64, row_bytes u32, k u32,
//           features u32, n_tokens u32, x_stride u32, out_stride u32, output u32
//   grid: ceil(features / 128), ceil(n_tokens / 64)
//   block: 128
//   registers: sm_89 183, sm_90 185, sm_100 185, sm_120 194
//   shared: 45060
//   roof: operations
//   index map: affine; a permutation of blocks (TILE_OF_BLOCK), then row thread, tokens in a loop
//   aligned: weight 16 bytes, rows 2; x 16 bytes; bias 4 bytes; out elements
//
// kernel gemm_tensor_q8_0_8
//   params: power u64, status u64, weight u64, x u64, bias u64, out u64, row_bytes u32, k u32,
//           features u32, n_tokens u32, x_stride u32, out_stride u32, output u32
//   grid: ceil(features / 16), ceil(n_tokens / 8)
//   block: 128
//   registers: sm_89 131, sm_90 121, sm_100 122, sm_120 135
//   shared: 39428
//   roof: bytes of weights
//   index map: affine; feature 16 * ctaid.x + g + 8 r, token 8 * ctaid.y + 2 t + a
//   aligned: weight 16 bytes, rows 2; x 16 bytes; bias 4 bytes; out elements
//
// kernel gemm_tensor_q2_k
//   params: power u64, status u64, weight u64, x u64, bias u64, out u64, row_bytes u32, k u32,
//           features u32, n_tokens u32, x_stride u32, out_stride u32, output u32
//   grid: ceil(features / 128), ceil(n_tokens / 64)
//   block: 128
//   registers: sm_89 219, sm_90 167, sm_100 223, sm_120 255
//   shared: 34820
//   roof: operations
//   index map: affine; a permutation of blocks (TILE_OF_BLOCK), then row thread, tokens in a loop
//   aligned: weight 16 bytes, rows 2; x 16 bytes; bias 4 bytes; out elements
//
// kernel gemm_tensor_q2_k_8
//   params: power u64, status u64, weight u64, x u64, bias u64, out u64, row_bytes u32, k u32,
//           features u32, n_tokens u32, x_stride u32, out_stride u32, output u32
//   grid: ceil(features / 16), ceil(n_tokens / 8)
//   block: 128
//   registers: sm_89 211, sm_90 212, sm_100 212, sm_120 216
//   shared: 28164
//   roof: bytes of weights
//   index map: affine; feature 16 * ctaid.x + g + 8 r, token 8 * ctaid.y + 2 t + a
//   aligned: weight 16 bytes, rows 2; x 16 bytes; bias 4 bytes; out elements
//
// kernel gemm_tensor_q3_k
//   params: power u64, status u64, weight u64, x u64, bias u64, out u64, row_bytes u32, k u32,
//           features u32, n_tokens u32, x_stride u32, out_stride u32, output u32
//   grid: ceil(features / 128), ceil(n_tokens / 64)
//   block: 128
//   registers: sm_89 221, sm_90 183, sm_100 233, sm_120 253
//   shared: 34820
//   roof: operations
//   index map: affine; a permutation of blocks (TILE_OF_BLOCK), then row thread, tokens in a loop
//   aligned: weight 16 bytes, rows 2; x 16 bytes; bias 4 bytes; out elements
//
// kernel gemm_tensor_q3_k_8
//   params: power u64, status u64, weight u64, x u64, bias u64, out u64, row_bytes u32, k u32,
//           features u32, n_tokens u32, x_stride u32, out_stride u32, output u32
//   grid: ceil(features / 16), ceil(n_tokens / 8)
//   block: 128
//   registers: sm_89 146, sm_90 146, sm_100 146, sm_120 154
//   shared: 28164
//   roof: bytes of weights
//   index map: affine; feature 16 * ctaid.x + g + 8 r, token 8 * ctaid.y + 2 t + a
//   aligned: weight 16 bytes, rows 2; x 16 bytes; bias 4 bytes; out elements
//
// kernel gemm_tensor_q4_k
//   params: power u64, status u64, weight u64, x u64, bias u64, out u64, row_bytes u32, k u32,
//           features u32, n_tokens u32, x_stride u32, out_stride u32, output u32
//   grid: ceil(features / 128), ceil(n_tokens / 64)
//   block: 128
//   registers: sm_89 201, sm_90 191, sm_100 198, sm_120 212
//   shared: 38916
//   roof: operations
//   index map: affine; a permutation of blocks (TILE_OF_BLOCK), then row thread, tokens in a loop
//   aligned: weight 16 bytes, rows 2; x 16 bytes; bias 4 bytes; out elements
//
// kernel gemm_tensor_q4_k_8
//   params: power u64, status u64, weight u64, x u64, bias u64, out u64, row_bytes u32, k u32,
//           features u32, n_tokens u32, x_stride u32, out_stride u32, output u32
//   grid: ceil(features / 16), ceil(n_tokens / 8)
//   block: 128
//   registers: sm_89 131, sm_90 128, sm_100 128, sm_120 137
//   shared: 34308
//   roof: bytes of weights
//   index map: affine; feature 16 * ctaid.x + g + 8 r, token 8 * ctaid.y + 2 t + a
//   aligned: weight 16 bytes, rows 2; x 16 bytes; bias 4 bytes; out elements
//
// kernel gemm_tensor_q5_k
//   params: power u64, status u64, weight u64, x u64, bias u64, out u64, row_bytes u32, k u32,
//           features u32, n_tokens u32, x_stride u32, out_stride u32, output u32
//   grid: ceil(features / 128), ceil(n_tokens / 64)
//   block: 128
//   registers: sm_89 201, sm_90 191, sm_100 198, sm_120 212
//   shared: 43012
//   roof: operations
//   index map: affine; a permutation of blocks (TILE_OF_BLOCK), then row thread, tokens in a loop
//   aligned: weight 16 bytes, rows 2; x 16 bytes; bias 4 bytes; out elements
//
// kernel gemm_tensor_q5_k_8
//   params: power u64, status u64, weight u64, x u64, bias u64, out u64, row_bytes u32, k u32,
//           features u32, n_tokens u32, x_stride u32, out_stride u32, output u32
//   grid: ceil(features / 16), ceil(n_tokens / 8)
//   block: 128
//   registers: sm_89 141, sm_90 140, sm_100 141, sm_120 146
//   shared: 40452
//   roof: bytes of weights
//   index map: affine; feature 16 * ctaid.x + g + 8 r, token 8 * ctaid.y + 2 t + a
//   aligned: weight 16 bytes, rows 2; x 16 bytes; bias 4 bytes; out elements
//
// kernel gemm_tensor_q6_k
//   params: power u64, status u64, weight u64, x u64, bias u64, out u64, row_bytes u32, k u32,
//           features u32, n_tokens u32, x_stride u32, out_stride u32, output u32
//   grid: ceil(features / 128), ceil(n_tokens / 64)
//   block: 128
//   registers: sm_89 207, sm_90 189, sm_100 201, sm_120 229
//   shared: 47108
//   roof: operations
//   index map: affine; a permutation of blocks (TILE_OF_BLOCK), then row thread, tokens in a loop
//   aligned: weight 16 bytes, rows 2; x 16 bytes; bias 4 bytes; out elements
//
// kernel gemm_tensor_q6_k_8
//   params: power u64, status u64, weight u64, x u64, bias u64, out u64, row_bytes u32, k u32,
//           features u32, n_tokens u32, x_stride u32, out_stride u32, output u32
//   grid: ceil(features / 16), ceil(n_tokens / 8)
//   block: 128
//   registers: sm_89 164, sm_90 168, sm_100 168, sm_120 173
//   shared: 46596
//   roof: bytes of weights
//   index map: affine; feature 16 * ctaid.x + g + 8 r, token 8 * ctaid.y + 2 t + a
//   aligned: weight 16 bytes, rows 2; x 16 bytes; bias 4 bytes; out elements
#include "macros.inc"
#include "blocks.inc"
#include "gemm_output.inc"
#include "gemm_tensor.inc"

MODULE_HEADER
SHARED_POWER_WORD

// --- tiles of results ---

// M(i, j) for the tiles of a warp; %c<i><j>_<r> are the totals.
#define FOR_ROW_8(M, i) M(i, 0) M(i, 1) M(i, 2) M(i, 3) M(i, 4) M(i, 5) M(i, 6) M(i, 7)
#define FOR_TILES_2_8(M) FOR_ROW_8(M, 0) FOR_ROW_8(M, 1)
#define FOR_TILES_4_8(M) FOR_ROW_8(M, 0) FOR_ROW_8(M, 1) FOR_ROW_8(M, 2) FOR_ROW_8(M, 3)
#define DECLARE_C(i, j) .reg .f32 %c##i##j##_<4>;
#define ZERO_FOUR(name)                               \
    mov.f32 %name##_0, F32_ZERO;                      \
    mov.f32 %name##_1, F32_ZERO;                      \
    mov.f32 %name##_2, F32_ZERO;                      \
    mov.f32 %name##_3, F32_ZERO;
#define ZERO_C(i, j) ZERO_FOUR(c##i##j)

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
#undef STEP_B
#undef STEP_MMA
#undef CHAIN_MMA

// BF16 weights: an activation is the sum of two bf16 numbers, exactly: its first eight bits and the
// other three. (A bf16 is the upper half of an f32.) The sum takes the high part's products, then
// the low part's, 16 elements at a time.
#define MMA_BF16(d0, d1, d2, d3, a0, a1, a2, a3, b0, b1) \
    mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {d0, d1, d2, d3}, {a0, a1, a2, a3}, \
        {b0, b1}, {d0, d1, d2, d3};
#define SPLIT_HALVES(high, low, x)                    \
    {                                                 \
        .reg .b16 %x0, %x1;                           \
        .reg .f32 %f<2>, %r<2>;                       \
        .reg .b32 %w<2>, %u<2>;                       \
        mov.b32 {%x0, %x1}, x;                        \
        cvt.f32.f16 %f0, %x0;                         \
        cvt.f32.f16 %f1, %x1;                         \
        mov.b32 %w0, %f0;                             \
        mov.b32 %w1, %f1;                             \
        prmt.b32 high, %w0, %w1, 0x7632;              \
        and.b32 %u0, %w0, 0xffff0000;                 \
        and.b32 %u1, %w1, 0xffff0000;                 \
        mov.b32 %r0, %u0;                             \
        mov.b32 %r1, %u1;                             \
        sub.rn.f32 %r0, %f0, %r0;                     \
        sub.rn.f32 %r1, %f1, %r1;                     \
        mov.b32 %w0, %r0;                             \
        mov.b32 %w1, %r1;                             \
        prmt.b32 low, %w0, %w1, 0x7632;               \
    }
#define STEP_B                                        \
    .reg .b32 %h<4>, %l<4>;                           \
    SPLIT_HALVES(%h0, %l0, %b0)                       \
    SPLIT_HALVES(%h1, %l1, %b1)                       \
    SPLIT_HALVES(%h2, %l2, %b2)                       \
    SPLIT_HALVES(%h3, %l3, %b3)
#define STEP_MMA(i, j, b0, b1)                        \
    MMA_BF16(%c##i##j##_0, %c##i##j##_1, %c##i##j##_2, %c##i##j##_3, \
             %a##i##_0, %a##i##_1, %a##i##_2, %a##i##_3, %h##b0, %h##b1) \
    MMA_BF16(%c##i##j##_0, %c##i##j##_1, %c##i##j##_2, %c##i##j##_3, \
             %a##i##_0, %a##i##_1, %a##i##_2, %a##i##_3, %l##b0, %l##b1)
#define CHAIN_MMA(b0, b1)                             \
    MMA_BF16(%c0, %c1, %c2, %c3, %a0, %a1, %a2, %a3, %h##b0, %h##b1) \
    MMA_BF16(%c0, %c1, %c2, %c3, %a0, %a1, %a2, %a3, %l##b0, %l##b1)

#define KERNEL gemm_tensor_bf16
#include "gemm_tensor_half.inc"
#undef KERNEL
#define KERNEL gemm_tensor_bf16_8
#include "gemm_tensor_half_8.inc"
#undef KERNEL
#undef SMALL_WAIT

// --- quantised weights ---

// %w<q>_<0..3> = row q's weights of block %b: elements 4 t, 4 t + 1; 4 t + 2, 4 t + 3; and 16 more;
// and its scales.
#define BLOCK_ROW(q)                                  \
    {                                                 \
        .reg .b32 %xa, %xb, %ha, %hb, %wa, %wb;       \
        .reg .u32 %shift, %shift2;                    \
        SHIFTS(%b)                                    \
        PAIR(%xa, %xb, %ha, %hb, %s_row##q, %b, %i_pair) \
        EXPAND(%wa, %wb, %xa, %xb, %ha, %hb)          \
        TO_HALVES(%w##q##_0, %w##q##_1, %wa)          \
        TO_HALVES(%w##q##_2, %w##q##_3, %wb)          \
        ROW_SCALES(q)                                 \
    }
#define NO_SHIFT(b)

// Bytes n to the f16 numbers n, exact: 0x6400 + n is the f16 1024 + n.
#define HALVES(low, high, w, flip, minus)             \
    {                                                 \
        .reg .b32 %u, %offset;                        \
        mov.b32 %offset, minus;                       \
        xor.b32 %u, w, flip;                          \
        prmt.b32 low, %u, F16X2_1024, 0x7150;         \
        prmt.b32 high, %u, F16X2_1024, 0x7352;        \
        add.rn.f16x2 low, low, %offset;               \
        add.rn.f16x2 high, high, %offset;             \
    }
#define HALVES_S8(low, high, w) HALVES(low, high, w, SIGN_BITS, F16X2_MINUS_1152)
#define HALVES_U8(low, high, w) HALVES(low, high, w, 0, F16X2_MINUS_1024)
#define F16X2_1024 0x64006400
#define F16X2_MINUS_1024 0xe400e400
#define F16X2_MINUS_1152 0xe480e480
#define F16X2_ONE 0x3c003c00

// Scales of row q: d, or d and e for the first and second 16 elements; m, or m and n, are what is
// added for each activation. Products with the small integers of the K types are exact.
#define SCALES_D(q) SCALES(%d_##q, %m_##q, %s_row##q, %b)
#define SCALES_K4(q)                                  \
    {                                                 \
        .reg .u32 %sc, %mn;                           \
        .reg .f32 %f, %f_d;                           \
        SCALE_MIN_K4(%sc, %mn, %s_row##q, %b)         \
        GET_F16(%f_d, %s_row##q, 0)                   \
        cvt.rn.f32.u32 %f, %sc;                       \
        mul.rn.f32 %d_##q, %f_d, %f;                  \
        GET_F16(%f_d, %s_row##q, 2)                   \
        cvt.rn.f32.u32 %f, %mn;                       \
        neg.f32 %f, %f;                               \
        mul.rn.f32 %m_##q, %f_d, %f;                  \
    }
#define SCALES_16(q, at, factor)                      \
    {                                                 \
        .reg .s32 %sc0, %sc1;                         \
        .reg .f32 %f, %f_d;                           \
        SCALES(%s_row##q, %b)                         \
        GET_F16_SCALED(%f_d, %s_row##q, at, factor)   \
        cvt.rn.f32.s32 %f, %sc0;                      \
        mul.rn.f32 %d_##q, %f_d, %f;                  \
        cvt.rn.f32.s32 %f, %sc1;                      \
        mul.rn.f32 %e_##q, %f_d, %f;                  \
    }
#define SCALES_Q3_K(q) SCALES_16(q, 108, F32_ONE)
#define SCALES_Q6_K(q) SCALES_16(q, 208, F32_1_4)
#define SCALES_Q2_K(q)                                \
    {                                                 \
        .reg .s32 %sc0, %sc1, %mn0, %mn1;             \
        .reg .f32 %f, %f_d;                           \
        SCALES(%s_row##q, %b)                         \
        GET_F16(%f_d, %s_row##q, 80)                  \
        cvt.rn.f32.s32 %f, %sc0;                      \
        mul.rn.f32 %d_##q, %f_d, %f;                  \
        cvt.rn.f32.s32 %f, %sc1;                      \
        mul.rn.f32 %e_##q, %f_d, %f;                  \
        GET_F16(%f_d, %s_row##q, 82)                  \
        neg.f32 %f_d, %f_d;                           \
        cvt.rn.f32.s32 %f, %mn0;                      \
        mul.rn.f32 %m_##q, %f_d, %f;                  \
        cvt.rn.f32.s32 %f, %mn1;                      \
        mul.rn.f32 %n_##q, %f_d, %f;                  \
    }

// Sums of a block's activations, the same in each row: products with ones. %o<2> are those of
// tokens 2 t and 2 t + 1; by 16 %u<2> are those of the second 16.
#define NO_ONES(x0, x1, x2, x3)
#define ONES_32(x0, x1, x2, x3)                       \
    .reg .f32 %o<4>;                                  \
    {                                                 \
        .reg .b32 %one;                               \
        mov.b32 %one, F16X2_ONE;                      \
        MMA_F16(%o0, %o1, %o2, %o3, %one, %one, %one, %one, x0, x1, \
                F32_ZERO, F32_ZERO, F32_ZERO, F32_ZERO) \
        MMA_F16(%o0, %o1, %o2, %o3, %one, %one, %one, %one, x2, x3, %o0, %o1, %o2, %o3) \
    }
#define ONES_16(x0, x1, x2, x3)                       \
    .reg .f32 %o<4>, %u<4>;                           \
    {                                                 \
        .reg .b32 %one;                               \
        mov.b32 %one, F16X2_ONE;                      \
        MMA_F16(%o0, %o1, %o2, %o3, %one, %one, %one, %one, x0, x1, \
                F32_ZERO, F32_ZERO, F32_ZERO, F32_ZERO) \
        MMA_F16(%u0, %u1, %u2, %u3, %one, %one, %one, %one, x2, x3, \
                F32_ZERO, F32_ZERO, F32_ZERO, F32_ZERO) \
    }

// A tile's sums join the values of the group, rows q0 (s0, s1) and q1 (s2, s3), tokens 2 t and
// 2 t + 1: s = fma(d, sum over 32, s); then s = fma(m, sum of activations, s) where there is an m.
#define FMA_ROWS(f0, f1, p0, p1, p2, p3, s0, s1, s2, s3) \
    fma.rn.f32 s0, f0, p0, s0;                        \
    fma.rn.f32 s1, f0, p1, s1;                        \
    fma.rn.f32 s2, f1, p2, s2;                        \
    fma.rn.f32 s3, f1, p3, s3;
#define TILE_D(q0, q1, x0, x1, x2, x3, s0, s1, s2, s3) \
    {                                                 \
        .reg .f32 %p<4>;                              \
        MMA_F16(%p0, %p1, %p2, %p3, %w##q0##_0, %w##q1##_0, %w##q0##_1, %w##q1##_1, x0, x1, \
                F32_ZERO, F32_ZERO, F32_ZERO, F32_ZERO) \
        MMA_F16(%p0, %p1, %p2, %p3, %w##q0##_2, %w##q1##_2, %w##q0##_3, %w##q1##_3, x2, x3, \
                %p0, %p1, %p2, %p3)                   \
        FMA_ROWS(%d_##q0, %d_##q1, %p0, %p1, %p2, %p3, s0, s1, s2, s3) \
    }
#define TILE_DM(q0, q1, x0, x1, x2, x3, s0, s1, s2, s3) \
    TILE_D(q0, q1, x0, x1, x2, x3, s0, s1, s2, s3)    \
    FMA_ROWS(%m_##q0, %m_##q1, %o0, %o1, %o0, %o1, s0, s1, s2, s3)
// The same by 16: s = fma(d, first, s), [s = fma(m, ..., s),] s = fma(e, second, s) [, and n].
#define TILE_D16(q0, q1, x0, x1, x2, x3, s0, s1, s2, s3) \
    {                                                 \
        .reg .f32 %p<4>;                              \
        MMA_F16(%p0, %p1, %p2, %p3, %w##q0##_0, %w##q1##_0, %w##q0##_1, %w##q1##_1, x0, x1, \
                F32_ZERO, F32_ZERO, F32_ZERO, F32_ZERO) \
        FMA_ROWS(%d_##q0, %d_##q1, %p0, %p1, %p2, %p3, s0, s1, s2, s3) \
        MMA_F16(%p0, %p1, %p2, %p3, %w##q0##_2, %w##q1##_2, %w##q0##_3, %w##q1##_3, x2, x3, \
                F32_ZERO, F32_ZERO, F32_ZERO, F32_ZERO) \
        FMA_ROWS(%e_##q0, %e_##q1, %p0, %p1, %p2, %p3, s0, s1, s2, s3) \
    }
#define TILE_D16M(q0, q1, x0, x1, x2, x3, s0, s1, s2, s3) \
    {                                                 \
        .reg .f32 %p<4>;                              \
        MMA_F16(%p0, %p1, %p2, %p3, %w##q0##_0, %w##q1##_0, %w##q0##_1, %w##q1##_1, x0, x1, \
                F32_ZERO, F32_ZERO, F32_ZERO, F32_ZERO) \
        FMA_ROWS(%d_##q0, %d_##q1, %p0, %p1, %p2, %p3, s0, s1, s2, s3) \
        FMA_ROWS(%m_##q0, %m_##q1, %o0, %o1, %o0, %o1, s0, s1, s2, s3) \
        MMA_F16(%p0, %p1, %p2, %p3, %w##q0##_2, %w##q1##_2, %w##q0##_3, %w##q1##_3, x2, x3, \
                F32_ZERO, F32_ZERO, F32_ZERO, F32_ZERO) \
        FMA_ROWS(%e_##q0, %e_##q1, %p0, %p1, %p2, %p3, s0, s1, s2, s3) \
        FMA_ROWS(%n_##q0, %n_##q1, %u0, %u1, %u0, %u1, s0, s1, s2, s3) \
    }

// The same for up to eight tokens, in two parts: the sums of block i, and when the turn has come,
// how they join the totals %c<4>. Rows q are 0 and 1.
#define SUM_FIRST(i, x0, x1)                          \
        MMA_F16(%p##i##_0, %p##i##_1, %p##i##_2, %p##i##_3, %w0_0, %w1_0, %w0_1, %w1_1, x0, x1, \
                F32_ZERO, F32_ZERO, F32_ZERO, F32_ZERO)
#define SUM_SECOND(i, x2, x3, c0, c1, c2, c3)      \
        MMA_F16(%p##i##_0, %p##i##_1, %p##i##_2, %p##i##_3, %w0_2, %w1_2, %w0_3, %w1_3, x2, x3, \
                c0, c1, c2, c3)
#define KEEP(i, to, from)                             \
        mov.f32 %to##i##_0, %from##_0;                \
        mov.f32 %to##i##_1, %from##_1;
#define DECLARE_D(i) .reg .f32 %p##i##_<4>, %d##i##_<2>;
#define SUMS_D(i, x0, x1, x2, x3)                     \
        SUM_FIRST(i, x0, x1)                          \
        SUM_SECOND(i, x2, x3, %p##i##_0, %p##i##_1, %p##i##_2, %p##i##_3) \
        KEEP(i, d, d)
#define CHAIN_D(i)                                    \
        FMA_ROWS(%d##i##_0, %d##i##_1, %p##i##_0, %p##i##_1, %p##i##_2, %p##i##_3, \
                 %c0, %c1, %c2, %c3)
#define DECLARE_DM(i) DECLARE_D(i) .reg .f32 %m##i##_<2>, %o##i##_<2>;
#define SUMS_DM(i, x0, x1, x2, x3)                    \
        SUMS_D(i, x0, x1, x2, x3)                     \
        ONES_32(x0, x1, x2, x3)                       \
        mov.f32 %o##i##_0, %o0;                       \
        mov.f32 %o##i##_1, %o1;                       \
        KEEP(i, m, m)
#define CHAIN_DM(i)                                   \
        CHAIN_D(i)                                    \
        FMA_ROWS(%m##i##_0, %m##i##_1, %o##i##_0, %o##i##_1, %o##i##_0, %o##i##_1, \
                 %c0, %c1, %c2, %c3)
#define DECLARE_D16(i) DECLARE_D(i) .reg .f32 %r##i##_<4>, %e##i##_<2>;
#define SUMS_D16(i, x0, x1, x2, x3)                   \
        SUM_FIRST(i, x0, x1)                          \
        MMA_F16(%r##i##_0, %r##i##_1, %r##i##_2, %r##i##_3, %w0_2, %w1_2, %w0_3, %w1_3, x2, x3, \
                F32_ZERO, F32_ZERO, F32_ZERO, F32_ZERO) \
        KEEP(i, d, d)                                 \
        KEEP(i, e, e)
#define CHAIN_E(i)                                    \
        FMA_ROWS(%e##i##_0, %e##i##_1, %r##i##_0, %r##i##_1, %r##i##_2, %r##i##_3, \
                 %c0, %c1, %c2, %c3)
#define CHAIN_D16(i) CHAIN_D(i) CHAIN_E(i)
#define DECLARE_D16M(i)                               \
    DECLARE_D16(i) .reg .f32 %m##i##_<2>, %n##i##_<2>, %o##i##_<2>, %u##i##_<2>;
#define SUMS_D16M(i, x0, x1, x2, x3)                  \
        SUMS_D16(i, x0, x1, x2, x3)                   \
        ONES_16(x0, x1, x2, x3)                       \
        mov.f32 %o##i##_0, %o0;                       \
        mov.f32 %o##i##_1, %o1;                       \
        mov.f32 %u##i##_0, %u0;                       \
        mov.f32 %u##i##_1, %u1;                       \
        KEEP(i, m, m)                                 \
        KEEP(i, n, n)
#define CHAIN_D16M(i)                                 \
        CHAIN_D(i)                                    \
        FMA_ROWS(%m##i##_0, %m##i##_1, %o##i##_0, %o##i##_1, %o##i##_0, %o##i##_1, \
                 %c0, %c1, %c2, %c3) \
        CHAIN_E(i)                                    \
        FMA_ROWS(%n##i##_0, %n##i##_1, %u##i##_0, %u##i##_1, %u##i##_0, %u##i##_1, \
                 %c0, %c1, %c2, %c3)

// Orders nothing: ptxas moves nothing past it, and so keeps fewer sums alive, which would spill.
#define FENCE bar.warp.sync WARP_ALL;
#define TILE_FENCE FENCE // between the halves of a warp's tiles

#define BLOCKS_PER_SM 2
#define COPIES_4(M) M(0) M(1) M(2) M(3)
#define COPIES_5(M) COPIES_4(M) M(4)
#define COPIES_6(M) COPIES_5(M) M(5)
#define COPIES_7(M) COPIES_6(M) M(6)
#define COPIES_8(M) COPIES_7(M) M(7)
#define COPIES_9(M) COPIES_8(M) M(8)
#define COPIES_10(M) COPIES_9(M) M(9)
#define COPIES_12(M) COPIES_10(M) M(10) M(11)
#define COPIES_14(M) COPIES_12(M) M(12) M(13)

// --- Q4_0 ---

#define PAIR Q4_0_PAIR
#define EXPAND Q4_0_EXPAND
#define SCALES Q4_0_SCALES
#define TO_HALVES HALVES_S8
#define SHIFTS NO_SHIFT
#define ROW_SCALES SCALES_D
#define BLOCK_ONES NO_ONES
#define BLOCK_TILE TILE_D
#define BLOCK_DECLARE DECLARE_D
#define BLOCK_SUMS SUMS_D
#define BLOCK_CHAIN CHAIN_D
#define GROUP_BYTES Q4_0_GROUP_BYTES
#define WHOLE_GROUPS 0
#define RAW_K_BYTES 36 // of 64 elements
#define CHUNKS 4
#define RAW_ROW 80
#define RAW_BYTES 10240
#define RAW_SLOTS_BYTES 20480
#define SLOTS_BYTES 36864
#define ROW_LANES 4
#define LANES_SHIFT 2
#define ROWS_APART 32
#define FOR_COPIES COPIES_4
#define KERNEL gemm_tensor_q4_0
#include "gemm_tensor_blocks.inc"
#undef KERNEL
#define SMALL_CHUNKS 10
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
#undef SHIFTS
#undef ROW_SCALES
#undef BLOCK_ONES
#undef BLOCK_TILE
#undef BLOCK_DECLARE
#undef BLOCK_SUMS
#undef BLOCK_CHAIN
#undef GROUP_BYTES
#undef WHOLE_GROUPS
#undef RAW_K_BYTES
#undef CHUNKS
#undef RAW_ROW
#undef RAW_BYTES
#undef RAW_SLOTS_BYTES
#undef SLOTS_BYTES
#undef ROW_LANES
#undef LANES_SHIFT
#undef ROWS_APART
#undef FOR_COPIES
#undef SMALL_CHUNKS
#undef SMALL_ROW
#undef SMALL_SLOT
#undef SMALL_SLOTS
#undef RING_BYTES
#undef FOR_SMALL_COPIES
#undef PROLOGUE_LOADS
#undef SMALL_WAIT

// --- Q4_1 ---

#define PAIR Q4_1_PAIR
#define EXPAND Q4_1_EXPAND
#define SCALES Q4_1_SCALES
#define TO_HALVES HALVES_U8
#define SHIFTS NO_SHIFT
#define ROW_SCALES SCALES_D
#define BLOCK_ONES ONES_32
#define BLOCK_TILE TILE_DM
#define BLOCK_DECLARE DECLARE_DM
#define BLOCK_SUMS SUMS_DM
#define BLOCK_CHAIN CHAIN_DM
#define GROUP_BYTES Q4_1_GROUP_BYTES
#define WHOLE_GROUPS 0
#define RAW_K_BYTES 40 // of 64 elements
#define CHUNKS 4
#define RAW_ROW 80
#define RAW_BYTES 10240
#define RAW_SLOTS_BYTES 20480
#define SLOTS_BYTES 36864
#define ROW_LANES 4
#define LANES_SHIFT 2
#define ROWS_APART 32
#define FOR_COPIES COPIES_4
#define KERNEL gemm_tensor_q4_1
#include "gemm_tensor_blocks.inc"
#undef KERNEL
#define SMALL_CHUNKS 12
#define SMALL_ROW 208
#define SMALL_SLOT 3328
#define SMALL_SLOTS 3
#define RING_BYTES 39936
#define FOR_SMALL_COPIES COPIES_6
#define PROLOGUE_LOADS LOAD_GROUP LOAD_GROUP
#define SMALL_WAIT 2
#define KERNEL gemm_tensor_q4_1_8
#include "gemm_tensor_blocks_8.inc"
#undef KERNEL
#undef PAIR
#undef EXPAND
#undef SCALES
#undef TO_HALVES
#undef SHIFTS
#undef ROW_SCALES
#undef BLOCK_ONES
#undef BLOCK_TILE
#undef BLOCK_DECLARE
#undef BLOCK_SUMS
#undef BLOCK_CHAIN
#undef GROUP_BYTES
#undef WHOLE_GROUPS
#undef RAW_K_BYTES
#undef CHUNKS
#undef RAW_ROW
#undef RAW_BYTES
#undef RAW_SLOTS_BYTES
#undef SLOTS_BYTES
#undef ROW_LANES
#undef LANES_SHIFT
#undef ROWS_APART
#undef FOR_COPIES
#undef SMALL_CHUNKS
#undef SMALL_ROW
#undef SMALL_SLOT
#undef SMALL_SLOTS
#undef RING_BYTES
#undef FOR_SMALL_COPIES
#undef PROLOGUE_LOADS
#undef SMALL_WAIT

// --- Q5_0 ---

#define PAIR Q5_0_PAIR
#define EXPAND Q5_0_EXPAND
#define SCALES Q5_0_SCALES
#define TO_HALVES HALVES_S8
#define SHIFTS NO_SHIFT
#define ROW_SCALES SCALES_D
#define BLOCK_ONES NO_ONES
#define BLOCK_TILE TILE_D
#define BLOCK_DECLARE DECLARE_D
#define BLOCK_SUMS SUMS_D
#define BLOCK_CHAIN CHAIN_D
#define GROUP_BYTES Q5_0_GROUP_BYTES
#define WHOLE_GROUPS 0
#define RAW_K_BYTES 44 // of 64 elements
#define CHUNKS 4
#define RAW_ROW 80
#define RAW_BYTES 10240
#define RAW_SLOTS_BYTES 20480
#define SLOTS_BYTES 36864
#define ROW_LANES 4
#define LANES_SHIFT 2
#define ROWS_APART 32
#define FOR_COPIES COPIES_4
#define KERNEL gemm_tensor_q5_0
#include "gemm_tensor_blocks.inc"
#undef KERNEL
#define SMALL_CHUNKS 12
#define SMALL_ROW 208
#define SMALL_SLOT 3328
#define SMALL_SLOTS 3
#define RING_BYTES 39936
#define FOR_SMALL_COPIES COPIES_6
#define PROLOGUE_LOADS LOAD_GROUP LOAD_GROUP
#define SMALL_WAIT 2
#define KERNEL gemm_tensor_q5_0_8
#include "gemm_tensor_blocks_8.inc"
#undef KERNEL
#undef PAIR
#undef EXPAND
#undef SCALES
#undef TO_HALVES
#undef SHIFTS
#undef ROW_SCALES
#undef BLOCK_ONES
#undef BLOCK_TILE
#undef BLOCK_DECLARE
#undef BLOCK_SUMS
#undef BLOCK_CHAIN
#undef GROUP_BYTES
#undef WHOLE_GROUPS
#undef RAW_K_BYTES
#undef CHUNKS
#undef RAW_ROW
#undef RAW_BYTES
#undef RAW_SLOTS_BYTES
#undef SLOTS_BYTES
#undef ROW_LANES
#undef LANES_SHIFT
#undef ROWS_APART
#undef FOR_COPIES
#undef SMALL_CHUNKS
#undef SMALL_ROW
#undef SMALL_SLOT
#undef SMALL_SLOTS
#undef RING_BYTES
#undef FOR_SMALL_COPIES
#undef PROLOGUE_LOADS
#undef SMALL_WAIT

// --- Q5_1 ---

#define PAIR Q5_1_PAIR
#define EXPAND Q5_1_EXPAND
#define SCALES Q5_1_SCALES
#define TO_HALVES HALVES_U8
#define SHIFTS NO_SHIFT
#define ROW_SCALES SCALES_D
#define BLOCK_ONES ONES_32
#define BLOCK_TILE TILE_DM
#define BLOCK_DECLARE DECLARE_DM
#define BLOCK_SUMS SUMS_DM
#define BLOCK_CHAIN CHAIN_DM
#define GROUP_BYTES Q5_1_GROUP_BYTES
#define WHOLE_GROUPS 0
#define RAW_K_BYTES 48 // of 64 elements
#define CHUNKS 4
#define RAW_ROW 80
#define RAW_BYTES 10240
#define RAW_SLOTS_BYTES 20480
#define SLOTS_BYTES 36864
#define ROW_LANES 4
#define LANES_SHIFT 2
#define ROWS_APART 32
#define FOR_COPIES COPIES_4
#define KERNEL gemm_tensor_q5_1
#include "gemm_tensor_blocks.inc"
#undef KERNEL
#define SMALL_CHUNKS 14
#define SMALL_ROW 240
#define SMALL_SLOT 3840
#define SMALL_SLOTS 3
#define RING_BYTES 46080
#define FOR_SMALL_COPIES COPIES_7
#define PROLOGUE_LOADS LOAD_GROUP LOAD_GROUP
#define SMALL_WAIT 2
#define KERNEL gemm_tensor_q5_1_8
#include "gemm_tensor_blocks_8.inc"
#undef KERNEL
#undef PAIR
#undef EXPAND
#undef SCALES
#undef TO_HALVES
#undef SHIFTS
#undef ROW_SCALES
#undef BLOCK_ONES
#undef BLOCK_TILE
#undef BLOCK_DECLARE
#undef BLOCK_SUMS
#undef BLOCK_CHAIN
#undef GROUP_BYTES
#undef WHOLE_GROUPS
#undef RAW_K_BYTES
#undef CHUNKS
#undef RAW_ROW
#undef RAW_BYTES
#undef RAW_SLOTS_BYTES
#undef SLOTS_BYTES
#undef ROW_LANES
#undef LANES_SHIFT
#undef ROWS_APART
#undef FOR_COPIES
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
#define SHIFTS NO_SHIFT
#define ROW_SCALES SCALES_D
#define BLOCK_ONES NO_ONES
#define BLOCK_TILE TILE_D
#define BLOCK_DECLARE DECLARE_D
#define BLOCK_SUMS SUMS_D
#define BLOCK_CHAIN CHAIN_D
#define GROUP_BYTES Q8_0_GROUP_BYTES
#define WHOLE_GROUPS 0
#define RAW_K_BYTES 68 // of 64 elements
#define CHUNKS 6
#define RAW_ROW 112
#define RAW_BYTES 14336
#define RAW_SLOTS_BYTES 28672
#define SLOTS_BYTES 45056
#define ROW_LANES 8
#define LANES_SHIFT 3
#define ROWS_APART 16
#define FOR_COPIES COPIES_8
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
#undef SHIFTS
#undef ROW_SCALES
#undef BLOCK_ONES
#undef BLOCK_TILE
#undef BLOCK_DECLARE
#undef BLOCK_SUMS
#undef BLOCK_CHAIN
#undef GROUP_BYTES
#undef WHOLE_GROUPS
#undef RAW_K_BYTES
#undef CHUNKS
#undef RAW_ROW
#undef RAW_BYTES
#undef RAW_SLOTS_BYTES
#undef SLOTS_BYTES
#undef ROW_LANES
#undef LANES_SHIFT
#undef ROWS_APART
#undef FOR_COPIES
#undef SMALL_CHUNKS
#undef SMALL_ROW
#undef SMALL_SLOT
#undef SMALL_SLOTS
#undef RING_BYTES
#undef FOR_SMALL_COPIES
#undef PROLOGUE_LOADS
#undef SMALL_WAIT

// --- Q2_K ---

#define PAIR Q2_K_PAIR
#define EXPAND Q2_K_EXPAND
#define SCALES Q2_K_SCALES
#define TO_HALVES HALVES_U8
#define SHIFTS SHIFT_2
#define ROW_SCALES SCALES_Q2_K
#define BLOCK_ONES ONES_16
#define BLOCK_TILE TILE_D16M
#define BLOCK_DECLARE DECLARE_D16M
#define BLOCK_SUMS SUMS_D16M
#define BLOCK_CHAIN CHAIN_D16M
#define GROUP_BYTES Q2_K_GROUP_BYTES
#define WHOLE_GROUPS 1
#define RAW_K_BYTES GROUP_BYTES
#define CHUNKS 8
#define RAW_ROW 144
#define RAW_BYTES 18432
#define RAW_SLOTS_BYTES 18432
#define SLOTS_BYTES 34816
#define FOR_CHUNKS COPIES_8
#define KERNEL gemm_tensor_q2_k
#include "gemm_tensor_blocks.inc"
#undef KERNEL
#define SMALL_CHUNKS 8
#define SMALL_ROW 144
#define SMALL_SLOT 2304
#define SMALL_SLOTS 3
#define RING_BYTES 27648
#define FOR_SMALL_COPIES COPIES_4
#define PROLOGUE_LOADS LOAD_GROUP LOAD_GROUP
#define SMALL_WAIT 2
#define KERNEL gemm_tensor_q2_k_8
#include "gemm_tensor_blocks_8.inc"
#undef KERNEL
#undef PAIR
#undef EXPAND
#undef SCALES
#undef TO_HALVES
#undef SHIFTS
#undef ROW_SCALES
#undef BLOCK_ONES
#undef BLOCK_TILE
#undef BLOCK_DECLARE
#undef BLOCK_SUMS
#undef BLOCK_CHAIN
#undef GROUP_BYTES
#undef WHOLE_GROUPS
#undef RAW_K_BYTES
#undef CHUNKS
#undef RAW_ROW
#undef RAW_BYTES
#undef RAW_SLOTS_BYTES
#undef SLOTS_BYTES
#undef FOR_CHUNKS
#undef SMALL_CHUNKS
#undef SMALL_ROW
#undef SMALL_SLOT
#undef SMALL_SLOTS
#undef RING_BYTES
#undef FOR_SMALL_COPIES
#undef PROLOGUE_LOADS
#undef SMALL_WAIT

// --- Q3_K ---

#define PAIR Q3_K_PAIR
#define EXPAND Q3_K_EXPAND
#define SCALES Q3_K_SCALES
#define TO_HALVES HALVES_S8
#define SHIFTS SHIFT_2
#define ROW_SCALES SCALES_Q3_K
#define BLOCK_ONES NO_ONES
#define BLOCK_TILE TILE_D16
#define BLOCK_DECLARE DECLARE_D16
#define BLOCK_SUMS SUMS_D16
#define BLOCK_CHAIN CHAIN_D16
#define GROUP_BYTES Q3_K_GROUP_BYTES
#define WHOLE_GROUPS 1
#define RAW_K_BYTES GROUP_BYTES
#define CHUNKS 8
#define RAW_ROW 144
#define RAW_BYTES 18432
#define RAW_SLOTS_BYTES 18432
#define SLOTS_BYTES 34816
#define FOR_CHUNKS COPIES_8
#undef TILE_FENCE
#define TILE_FENCE // with it, ptxas for sm_120 spills
#define KERNEL gemm_tensor_q3_k
#include "gemm_tensor_blocks.inc"
#undef KERNEL
#undef TILE_FENCE
#define TILE_FENCE FENCE
#define SMALL_CHUNKS 8
#define SMALL_ROW 144
#define SMALL_SLOT 2304
#define SMALL_SLOTS 3
#define RING_BYTES 27648
#define FOR_SMALL_COPIES COPIES_4
#define PROLOGUE_LOADS LOAD_GROUP LOAD_GROUP
#define SMALL_WAIT 2
#define KERNEL gemm_tensor_q3_k_8
#include "gemm_tensor_blocks_8.inc"
#undef KERNEL
#undef PAIR
#undef EXPAND
#undef SCALES
#undef TO_HALVES
#undef SHIFTS
#undef ROW_SCALES
#undef BLOCK_ONES
#undef BLOCK_TILE
#undef BLOCK_DECLARE
#undef BLOCK_SUMS
#undef BLOCK_CHAIN
#undef GROUP_BYTES
#undef WHOLE_GROUPS
#undef RAW_K_BYTES
#undef CHUNKS
#undef RAW_ROW
#undef RAW_BYTES
#undef RAW_SLOTS_BYTES
#undef SLOTS_BYTES
#undef FOR_CHUNKS
#undef SMALL_CHUNKS
#undef SMALL_ROW
#undef SMALL_SLOT
#undef SMALL_SLOTS
#undef RING_BYTES
#undef FOR_SMALL_COPIES
#undef PROLOGUE_LOADS
#undef SMALL_WAIT

// --- Q4_K ---

#define PAIR Q4_K_PAIR
#define EXPAND Q4_K_EXPAND
#define TO_HALVES HALVES_U8
#define SHIFTS SHIFT_4
#define ROW_SCALES SCALES_K4
#define BLOCK_ONES ONES_32
#define BLOCK_TILE TILE_DM
#define BLOCK_DECLARE DECLARE_DM
#define BLOCK_SUMS SUMS_DM
#define BLOCK_CHAIN CHAIN_DM
#define GROUP_BYTES Q4_K_GROUP_BYTES
#define WHOLE_GROUPS 1
#define RAW_K_BYTES GROUP_BYTES
#define CHUNKS 10
#define RAW_ROW 176
#define RAW_BYTES 22528
#define RAW_SLOTS_BYTES 22528
#define SLOTS_BYTES 38912
#define FOR_CHUNKS COPIES_10
#define KERNEL gemm_tensor_q4_k
#include "gemm_tensor_blocks.inc"
#undef KERNEL
#define SMALL_CHUNKS 10
#define SMALL_ROW 176
#define SMALL_SLOT 2816
#define SMALL_SLOTS 3
#define RING_BYTES 33792
#define FOR_SMALL_COPIES COPIES_5
#define PROLOGUE_LOADS LOAD_GROUP LOAD_GROUP
#define SMALL_WAIT 2
#define KERNEL gemm_tensor_q4_k_8
#include "gemm_tensor_blocks_8.inc"
#undef KERNEL
#undef PAIR
#undef EXPAND
#undef TO_HALVES
#undef SHIFTS
#undef ROW_SCALES
#undef BLOCK_ONES
#undef BLOCK_TILE
#undef BLOCK_DECLARE
#undef BLOCK_SUMS
#undef BLOCK_CHAIN
#undef GROUP_BYTES
#undef WHOLE_GROUPS
#undef RAW_K_BYTES
#undef CHUNKS
#undef RAW_ROW
#undef RAW_BYTES
#undef RAW_SLOTS_BYTES
#undef SLOTS_BYTES
#undef FOR_CHUNKS
#undef SMALL_CHUNKS
#undef SMALL_ROW
#undef SMALL_SLOT
#undef SMALL_SLOTS
#undef RING_BYTES
#undef FOR_SMALL_COPIES
#undef PROLOGUE_LOADS
#undef SMALL_WAIT

// --- Q5_K ---

#define PAIR Q5_K_PAIR
#define EXPAND Q5_K_EXPAND
#define TO_HALVES HALVES_U8
#define SHIFTS SHIFT_4
#define ROW_SCALES SCALES_K4
#define BLOCK_ONES ONES_32
#define BLOCK_TILE TILE_DM
#define BLOCK_DECLARE DECLARE_DM
#define BLOCK_SUMS SUMS_DM
#define BLOCK_CHAIN CHAIN_DM
#define GROUP_BYTES Q5_K_GROUP_BYTES
#define WHOLE_GROUPS 1
#define RAW_K_BYTES GROUP_BYTES
#define CHUNKS 12
#define RAW_ROW 208
#define RAW_BYTES 26624
#define RAW_SLOTS_BYTES 26624
#define SLOTS_BYTES 43008
#define FOR_CHUNKS COPIES_12
#define KERNEL gemm_tensor_q5_k
#include "gemm_tensor_blocks.inc"
#undef KERNEL
#define SMALL_CHUNKS 12
#define SMALL_ROW 208
#define SMALL_SLOT 3328
#define SMALL_SLOTS 3
#define RING_BYTES 39936
#define FOR_SMALL_COPIES COPIES_6
#define PROLOGUE_LOADS LOAD_GROUP LOAD_GROUP
#define SMALL_WAIT 2
#define KERNEL gemm_tensor_q5_k_8
#include "gemm_tensor_blocks_8.inc"
#undef KERNEL
#undef PAIR
#undef EXPAND
#undef TO_HALVES
#undef SHIFTS
#undef ROW_SCALES
#undef BLOCK_ONES
#undef BLOCK_TILE
#undef BLOCK_DECLARE
#undef BLOCK_SUMS
#undef BLOCK_CHAIN
#undef GROUP_BYTES
#undef WHOLE_GROUPS
#undef RAW_K_BYTES
#undef CHUNKS
#undef RAW_ROW
#undef RAW_BYTES
#undef RAW_SLOTS_BYTES
#undef SLOTS_BYTES
#undef FOR_CHUNKS
#undef SMALL_CHUNKS
#undef SMALL_ROW
#undef SMALL_SLOT
#undef SMALL_SLOTS
#undef RING_BYTES
#undef FOR_SMALL_COPIES
#undef PROLOGUE_LOADS
#undef SMALL_WAIT

// --- Q6_K ---

#define PAIR Q6_K_PAIR
#define EXPAND Q6_K_EXPAND
#define SCALES Q6_K_SCALES
#define TO_HALVES HALVES_S8
#define SHIFTS NO_SHIFT
#define ROW_SCALES SCALES_Q6_K
#define BLOCK_ONES NO_ONES
#define BLOCK_TILE TILE_D16
#define BLOCK_DECLARE DECLARE_D16
#define BLOCK_SUMS SUMS_D16
#define BLOCK_CHAIN CHAIN_D16
#define GROUP_BYTES Q6_K_GROUP_BYTES
#define WHOLE_GROUPS 1
#define RAW_K_BYTES GROUP_BYTES
#define CHUNKS 14
#define RAW_ROW 240
#define RAW_BYTES 30720
#define RAW_SLOTS_BYTES 30720
#define SLOTS_BYTES 47104
#define FOR_CHUNKS COPIES_14
#define KERNEL gemm_tensor_q6_k
#include "gemm_tensor_blocks.inc"
#undef KERNEL
#define SMALL_CHUNKS 14
#define SMALL_ROW 240
#define SMALL_SLOT 3840
#define SMALL_SLOTS 3
#define RING_BYTES 46080
#define FOR_SMALL_COPIES COPIES_7
#define PROLOGUE_LOADS LOAD_GROUP LOAD_GROUP
#define SMALL_WAIT 2
#define KERNEL gemm_tensor_q6_k_8
#include "gemm_tensor_blocks_8.inc"
#undef KERNEL
#undef PAIR
#undef EXPAND
#undef SCALES
#undef TO_HALVES
#undef SHIFTS
#undef ROW_SCALES
#undef BLOCK_ONES
#undef BLOCK_TILE
#undef BLOCK_DECLARE
#undef BLOCK_SUMS
#undef BLOCK_CHAIN
#undef GROUP_BYTES
#undef WHOLE_GROUPS
#undef RAW_K_BYTES
#undef CHUNKS
#undef RAW_ROW
#undef RAW_BYTES
#undef RAW_SLOTS_BYTES
#undef SLOTS_BYTES
#undef FOR_CHUNKS
#undef SMALL_CHUNKS
#undef SMALL_ROW
#undef SMALL_SLOT
#undef SMALL_SLOTS
#undef RING_BYTES
#undef FOR_SMALL_COPIES
#undef PROLOGUE_LOADS
#undef SMALL_WAIT
