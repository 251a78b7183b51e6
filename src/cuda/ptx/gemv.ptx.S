// SPDX-License-Identifier: Apache-2.0
// Operators 4 and 6 of docs/contract.md for one to a few tokens: quantised weights read in place,
// integer sums by dp4a on the byte planes of the activations (quantize_q16_planes). gemv.inc draws
// who owns what; blocks.inc knows the weight types. The kernels of one token are for decoding a
// single sequence; those of four take any number of tokens, four to a block, and share the weights'
// way from memory among them.
//
// V1. The value of a group is computed by one lane, block sums exact, the f32 chain in the
//     contract's order; totals take the groups in ascending order. No result depends on WARPS,
//     TOKENS or n_tokens.
// V2. k is a multiple of the type's block; weight begins at a multiple of 4 bytes, rows at any even
//     address; nothing in front of or behind the tensor is read.
// V3. `sums` is the sum32 of the activations (Q4_1, Q5_1, Q4_K, Q5_K) or the sum16 (Q2_K); the
//     other types do not read it, and any address will do.
//
// gemv_fast.inc has the way of whole units of aligned weights for one token of Q4_0, Q8_0 and Q4_K.
//
// Barriers: per unit two or three of a warp, stated at their places; per segment two of the block.
//
// kernel gemv_q4_0_1
//   params: power u64, status u64, weight u64, high u64, low u64, scale u64, sums u64, bias u64,
//           out u64, row_bytes u32, k u32, features u32, n_tokens u32, plane_stride u32,
//           scale_stride u32, sum_stride u32, out_stride u32, output u32
//   grid: ceil(features / 8), ceil(n_tokens / 1)
//   block: 128
//   registers: sm_89 91, sm_90 96, sm_100 96, sm_120 91
//   shared: 47620
//   roof: bytes (144 for 256 weights)
//   index map: affine; token 1 * ctaid.y + tid / 8, feature 8 * ctaid.x + tid mod 8; tails by both
//   aligned: weight 4 bytes; planes 16 bytes; scale, sums, bias 4 bytes; out elements
//
// kernel gemv_q4_0_4
//   params: power u64, status u64, weight u64, high u64, low u64, scale u64, sums u64, bias u64,
//           out u64, row_bytes u32, k u32, features u32, n_tokens u32, plane_stride u32,
//           scale_stride u32, sum_stride u32, out_stride u32, output u32
//   grid: ceil(features / 8), ceil(n_tokens / 4)
//   block: 128
//   registers: sm_89 120, sm_90 138, sm_100 138, sm_120 118
//   shared: 45316
//   roof: bytes (144 for 256 weights)
//   index map: affine; token 4 * ctaid.y + tid / 8, feature 8 * ctaid.x + tid mod 8; tails by both
//   aligned: weight 4 bytes; planes 16 bytes; scale, sums, bias 4 bytes; out elements
//
// kernel gemv_q4_1_1
//   params: power u64, status u64, weight u64, high u64, low u64, scale u64, sums u64, bias u64,
//           out u64, row_bytes u32, k u32, features u32, n_tokens u32, plane_stride u32,
//           scale_stride u32, sum_stride u32, out_stride u32, output u32
//   grid: ceil(features / 8), ceil(n_tokens / 1)
//   block: 128
//   registers: sm_89 67, sm_90 75, sm_100 75, sm_120 66
//   shared: 43268
//   roof: bytes (160 for 256 weights)
//   index map: affine; token 1 * ctaid.y + tid / 8, feature 8 * ctaid.x + tid mod 8; tails by both
//   aligned: weight 4 bytes; planes 16 bytes; scale, sums, bias 4 bytes; out elements
//
// kernel gemv_q4_1_4
//   params: power u64, status u64, weight u64, high u64, low u64, scale u64, sums u64, bias u64,
//           out u64, row_bytes u32, k u32, features u32, n_tokens u32, plane_stride u32,
//           scale_stride u32, sum_stride u32, out_stride u32, output u32
//   grid: ceil(features / 8), ceil(n_tokens / 4)
//   block: 64
//   registers: sm_89 123, sm_90 151, sm_100 151, sm_120 122
//   shared: 28804
//   roof: bytes (160 for 256 weights)
//   index map: affine; token 4 * ctaid.y + tid / 8, feature 8 * ctaid.x + tid mod 8; tails by both
//   aligned: weight 4 bytes; planes 16 bytes; scale, sums, bias 4 bytes; out elements
//
// kernel gemv_q5_0_1
//   params: power u64, status u64, weight u64, high u64, low u64, scale u64, sums u64, bias u64,
//           out u64, row_bytes u32, k u32, features u32, n_tokens u32, plane_stride u32,
//           scale_stride u32, sum_stride u32, out_stride u32, output u32
//   grid: ceil(features / 8), ceil(n_tokens / 1)
//   block: 128
//   registers: sm_89 70, sm_90 78, sm_100 78, sm_120 70
//   shared: 47364
//   roof: bytes (176 for 256 weights)
//   index map: affine; token 1 * ctaid.y + tid / 8, feature 8 * ctaid.x + tid mod 8; tails by both
//   aligned: weight 4 bytes; planes 16 bytes; scale, sums, bias 4 bytes; out elements
//
// kernel gemv_q5_0_4
//   params: power u64, status u64, weight u64, high u64, low u64, scale u64, sums u64, bias u64,
//           out u64, row_bytes u32, k u32, features u32, n_tokens u32, plane_stride u32,
//           scale_stride u32, sum_stride u32, out_stride u32, output u32
//   grid: ceil(features / 8), ceil(n_tokens / 4)
//   block: 64
//   registers: sm_89 121, sm_90 140, sm_100 140, sm_120 121
//   shared: 30852
//   roof: bytes (176 for 256 weights)
//   index map: affine; token 4 * ctaid.y + tid / 8, feature 8 * ctaid.x + tid mod 8; tails by both
//   aligned: weight 4 bytes; planes 16 bytes; scale, sums, bias 4 bytes; out elements
//
// kernel gemv_q5_1_1
//   params: power u64, status u64, weight u64, high u64, low u64, scale u64, sums u64, bias u64,
//           out u64, row_bytes u32, k u32, features u32, n_tokens u32, plane_stride u32,
//           scale_stride u32, sum_stride u32, out_stride u32, output u32
//   grid: ceil(features / 8), ceil(n_tokens / 1)
//   block: 64
//   registers: sm_89 71, sm_90 79, sm_100 79, sm_120 71
//   shared: 26756
//   roof: bytes (192 for 256 weights)
//   index map: affine; token 1 * ctaid.y + tid / 8, feature 8 * ctaid.x + tid mod 8; tails by both
//   aligned: weight 4 bytes; planes 16 bytes; scale, sums, bias 4 bytes; out elements
//
// kernel gemv_q5_1_4
//   params: power u64, status u64, weight u64, high u64, low u64, scale u64, sums u64, bias u64,
//           out u64, row_bytes u32, k u32, features u32, n_tokens u32, plane_stride u32,
//           scale_stride u32, sum_stride u32, out_stride u32, output u32
//   grid: ceil(features / 8), ceil(n_tokens / 4)
//   block: 64
//   registers: sm_89 127, sm_90 150, sm_100 150, sm_120 127
//   shared: 32900
//   roof: bytes (192 for 256 weights)
//   index map: affine; token 4 * ctaid.y + tid / 8, feature 8 * ctaid.x + tid mod 8; tails by both
//   aligned: weight 4 bytes; planes 16 bytes; scale, sums, bias 4 bytes; out elements
//
// kernel gemv_q8_0_1
//   params: power u64, status u64, weight u64, high u64, low u64, scale u64, sums u64, bias u64,
//           out u64, row_bytes u32, k u32, features u32, n_tokens u32, plane_stride u32,
//           scale_stride u32, sum_stride u32, out_stride u32, output u32
//   grid: ceil(features / 8), ceil(n_tokens / 1)
//   block: 64
//   registers: sm_89 154, sm_90 151, sm_100 151, sm_120 154
//   shared: 41220
//   roof: bytes (272 for 256 weights)
//   index map: affine; token 1 * ctaid.y + tid / 8, feature 8 * ctaid.x + tid mod 8; tails by both
//   aligned: weight 4 bytes; planes 16 bytes; scale, sums, bias 4 bytes; out elements
//
// kernel gemv_q8_0_4
//   params: power u64, status u64, weight u64, high u64, low u64, scale u64, sums u64, bias u64,
//           out u64, row_bytes u32, k u32, features u32, n_tokens u32, plane_stride u32,
//           scale_stride u32, sum_stride u32, out_stride u32, output u32
//   grid: ceil(features / 8), ceil(n_tokens / 4)
//   block: 64
//   registers: sm_89 122, sm_90 144, sm_100 144, sm_120 125
//   shared: 43140
//   roof: bytes (272 for 256 weights)
//   index map: affine; token 4 * ctaid.y + tid / 8, feature 8 * ctaid.x + tid mod 8; tails by both
//   aligned: weight 4 bytes; planes 16 bytes; scale, sums, bias 4 bytes; out elements
//
// kernel gemv_q2_k_1
//   params: power u64, status u64, weight u64, high u64, low u64, scale u64, sums u64, bias u64,
//           out u64, row_bytes u32, k u32, features u32, n_tokens u32, plane_stride u32,
//           scale_stride u32, sum_stride u32, out_stride u32, output u32
//   grid: ceil(features / 8), ceil(n_tokens / 1)
//   block: 128
//   registers: sm_89 79, sm_90 80, sm_100 80, sm_120 72
//   shared: 23812
//   roof: bytes (84 for 256 weights)
//   index map: affine; token 1 * ctaid.y + tid / 8, feature 8 * ctaid.x + tid mod 8; tails by both
//   aligned: weight 4 bytes; planes 16 bytes; scale, sums, bias 4 bytes; out elements
//
// kernel gemv_q2_k_4
//   params: power u64, status u64, weight u64, high u64, low u64, scale u64, sums u64, bias u64,
//           out u64, row_bytes u32, k u32, features u32, n_tokens u32, plane_stride u32,
//           scale_stride u32, sum_stride u32, out_stride u32, output u32
//   grid: ceil(features / 8), ceil(n_tokens / 4)
//   block: 128
//   registers: sm_89 146, sm_90 164, sm_100 162, sm_120 144
//   shared: 29956
//   roof: bytes (84 for 256 weights)
//   index map: affine; token 4 * ctaid.y + tid / 8, feature 8 * ctaid.x + tid mod 8; tails by both
//   aligned: weight 4 bytes; planes 16 bytes; scale, sums, bias 4 bytes; out elements
//
// kernel gemv_q3_k_1
//   params: power u64, status u64, weight u64, high u64, low u64, scale u64, sums u64, bias u64,
//           out u64, row_bytes u32, k u32, features u32, n_tokens u32, plane_stride u32,
//           scale_stride u32, sum_stride u32, out_stride u32, output u32
//   grid: ceil(features / 8), ceil(n_tokens / 1)
//   block: 128
//   registers: sm_89 80, sm_90 92, sm_100 80, sm_120 72
//   shared: 30468
//   roof: bytes (110 for 256 weights)
//   index map: affine; token 1 * ctaid.y + tid / 8, feature 8 * ctaid.x + tid mod 8; tails by both
//   aligned: weight 4 bytes; planes 16 bytes; scale, sums, bias 4 bytes; out elements
//
// kernel gemv_q3_k_4
//   params: power u64, status u64, weight u64, high u64, low u64, scale u64, sums u64, bias u64,
//           out u64, row_bytes u32, k u32, features u32, n_tokens u32, plane_stride u32,
//           scale_stride u32, sum_stride u32, out_stride u32, output u32
//   grid: ceil(features / 8), ceil(n_tokens / 4)
//   block: 128
//   registers: sm_89 128, sm_90 153, sm_100 149, sm_120 128
//   shared: 36612
//   roof: bytes (110 for 256 weights)
//   index map: affine; token 4 * ctaid.y + tid / 8, feature 8 * ctaid.x + tid mod 8; tails by both
//   aligned: weight 4 bytes; planes 16 bytes; scale, sums, bias 4 bytes; out elements
//
// kernel gemv_q4_k_1
//   params: power u64, status u64, weight u64, high u64, low u64, scale u64, sums u64, bias u64,
//           out u64, row_bytes u32, k u32, features u32, n_tokens u32, plane_stride u32,
//           scale_stride u32, sum_stride u32, out_stride u32, output u32
//   grid: ceil(features / 8), ceil(n_tokens / 1)
//   block: 128
//   registers: sm_89 115, sm_90 116, sm_100 115, sm_120 114
//   shared: 44164
//   roof: bytes (144 for 256 weights)
//   index map: affine; token 1 * ctaid.y + tid / 8, feature 8 * ctaid.x + tid mod 8; tails by both
//   aligned: weight 4 bytes; planes 16 bytes; scale, sums, bias 4 bytes; out elements
//
// kernel gemv_q4_k_4
//   params: power u64, status u64, weight u64, high u64, low u64, scale u64, sums u64, bias u64,
//           out u64, row_bytes u32, k u32, features u32, n_tokens u32, plane_stride u32,
//           scale_stride u32, sum_stride u32, out_stride u32, output u32
//   grid: ceil(features / 8), ceil(n_tokens / 4)
//   block: 128
//   registers: sm_89 128, sm_90 156, sm_100 158, sm_120 127
//   shared: 45316
//   roof: bytes (144 for 256 weights)
//   index map: affine; token 4 * ctaid.y + tid / 8, feature 8 * ctaid.x + tid mod 8; tails by both
//   aligned: weight 4 bytes; planes 16 bytes; scale, sums, bias 4 bytes; out elements
//
// kernel gemv_q5_k_1
//   params: power u64, status u64, weight u64, high u64, low u64, scale u64, sums u64, bias u64,
//           out u64, row_bytes u32, k u32, features u32, n_tokens u32, plane_stride u32,
//           scale_stride u32, sum_stride u32, out_stride u32, output u32
//   grid: ceil(features / 8), ceil(n_tokens / 1)
//   block: 128
//   registers: sm_89 80, sm_90 96, sm_100 89, sm_120 80
//   shared: 47364
//   roof: bytes (176 for 256 weights)
//   index map: affine; token 1 * ctaid.y + tid / 8, feature 8 * ctaid.x + tid mod 8; tails by both
//   aligned: weight 4 bytes; planes 16 bytes; scale, sums, bias 4 bytes; out elements
//
// kernel gemv_q5_k_4
//   params: power u64, status u64, weight u64, high u64, low u64, scale u64, sums u64, bias u64,
//           out u64, row_bytes u32, k u32, features u32, n_tokens u32, plane_stride u32,
//           scale_stride u32, sum_stride u32, out_stride u32, output u32
//   grid: ceil(features / 8), ceil(n_tokens / 4)
//   block: 64
//   registers: sm_89 147, sm_90 168, sm_100 159, sm_120 142
//   shared: 30852
//   roof: bytes (176 for 256 weights)
//   index map: affine; token 4 * ctaid.y + tid / 8, feature 8 * ctaid.x + tid mod 8; tails by both
//   aligned: weight 4 bytes; planes 16 bytes; scale, sums, bias 4 bytes; out elements
//
// kernel gemv_q6_k_1
//   params: power u64, status u64, weight u64, high u64, low u64, scale u64, sums u64, bias u64,
//           out u64, row_bytes u32, k u32, features u32, n_tokens u32, plane_stride u32,
//           scale_stride u32, sum_stride u32, out_stride u32, output u32
//   grid: ceil(features / 8), ceil(n_tokens / 1)
//   block: 64
//   registers: sm_89 78, sm_90 92, sm_100 80, sm_120 75
//   shared: 29060
//   roof: bytes (210 for 256 weights)
//   index map: affine; token 1 * ctaid.y + tid / 8, feature 8 * ctaid.x + tid mod 8; tails by both
//   aligned: weight 4 bytes; planes 16 bytes; scale, sums, bias 4 bytes; out elements
//
// kernel gemv_q6_k_4
//   params: power u64, status u64, weight u64, high u64, low u64, scale u64, sums u64, bias u64,
//           out u64, row_bytes u32, k u32, features u32, n_tokens u32, plane_stride u32,
//           scale_stride u32, sum_stride u32, out_stride u32, output u32
//   grid: ceil(features / 8), ceil(n_tokens / 4)
//   block: 64
//   registers: sm_89 128, sm_90 152, sm_100 151, sm_120 128
//   shared: 35204
//   roof: bytes (210 for 256 weights)
//   index map: affine; token 4 * ctaid.y + tid / 8, feature 8 * ctaid.x + tid mod 8; tails by both
//   aligned: weight 4 bytes; planes 16 bytes; scale, sums, bias 4 bytes; out elements
#include "macros.inc"
#include "blocks.inc"
#include "rows.inc"
#include "gemm_output.inc"
#include "gemv_fast.inc"

MODULE_HEADER
SHARED_POWER_WORD

#define REGISTERS_MAX 168    // ptxas alone stops at 128 and spills a word
#define ROWS 8               // of a block
#define UNIT_GROUPS 4        // groups of a row in a unit
#define UNIT_ELEMENTS 1024   // UNIT_GROUPS * GROUP
#define SLOTS 2              // units of a warp's ring
#define SEGMENT_UNITS 16     // units whose values fit s_values
#define SEGMENT_GROUPS 64    // SEGMENT_UNITS * UNIT_GROUPS
#define ROW_WORDS (GROUP_BYTES + 1) // UNIT_GROUPS * GROUP_BYTES / 4, and one
#define SLOT_BYTES (ROWS * ROW_WORDS * 4)

#define TOKENS_1(M) M(0)
#define TOKENS_4(M) M(0) M(1) M(2) M(3)

// Issues the copies of unit i_unit to the slot s_slot.
#define COPY_UNIT(i_unit, s_slot, name)               \
    {                                                 \
        .reg .u32 %begin;                             \
        mul.lo.u32 %begin, i_unit, UNIT_GROUPS * GROUP_BYTES; \
        COPY_ROWS(%i_first_row, ROWS, %begin, s_slot, ROW_WORDS, name) \
    }

// --- block sums ---

// hi = sum of w x high, lo = sum of w x low over 16 elements of token t from element %e + at on,
// the weights in w<i0> .. w<i3>.
#define DOT_16(sum, t, at, w0, w1, w2, w3)            \
    {                                                 \
        .reg .u64 %g;                                 \
        .reg .b32 %p<4>;                              \
        .reg .s32 %hi, %lo;                           \
        cvt.u64.u32 %g, %e;                           \
        add.u64 %g, %g, %g_high##t;                   \
        ld.global.nc.v4.b32 {%p0, %p1, %p2, %p3}, [%g + at]; \
        mov.b32 %hi, 0;                               \
        DP4A(%hi, w0, %p0, s32)                       \
        DP4A(%hi, w1, %p1, s32)                       \
        DP4A(%hi, w2, %p2, s32)                       \
        DP4A(%hi, w3, %p3, s32)                       \
        cvt.u64.u32 %g, %e;                           \
        add.u64 %g, %g, %g_low##t;                    \
        ld.global.nc.v4.b32 {%p0, %p1, %p2, %p3}, [%g + at]; \
        mov.b32 %lo, 0;                               \
        DP4A(%lo, w0, %p0, u32)                       \
        DP4A(%lo, w1, %p1, u32)                       \
        DP4A(%lo, w2, %p2, u32)                       \
        DP4A(%lo, w3, %p3, u32)                       \
        mad.lo.s32 sum, %hi, 256, %lo;                \
    }
#define DP4A(sum, w, a, a_kind) DP4A_KIND(KIND, sum, w, a, a_kind)
#define DP4A_KIND(kind, sum, w, a, a_kind) DP4A_KINDS(kind, sum, w, a, a_kind)
#define DP4A_KINDS(kind, sum, w, a, a_kind) dp4a.kind.a_kind sum, w, a, sum;

// The two sums over 16 of a block, i0 and i1.
#define DOT_BLOCK(t)                                  \
    DOT_16(%i0, t, 0, %w0, %w1, %w2, %w3)             \
    DOT_16(%i1, t, 16, %w4, %w5, %w6, %w7)

// asum: the exact sum of token t over 2^SUMS_SHIFT elements from %e + at on.
#define LOAD_SUM(a, t, at, shift)                     \
    {                                                 \
        .reg .u64 %g;                                 \
        .reg .u32 %i;                                 \
        shr.u32 %i, %e, shift;                        \
        mul.wide.u32 %g, %i, 4;                       \
        add.u64 %g, %g, %g_sums##t;                   \
        ld.global.nc.s32 a, [%g + at];                \
    }

// --- from block sums to the value of a group; operator 4 of the contract ---
// FORM_INIT, FORM_BLOCK and FORM_VALUE of token t: %acc<t>, %acc_i<t> and %min<t> are its sums.

#define INIT_F32(t) mov.f32 %acc##t, F32_ZERO;
#define INIT_F32_MIN(t) mov.f32 %acc##t, F32_ZERO; mov.b32 %min##t, 0;
#define INIT_I32(t) mov.b32 %acc_i##t, 0;
#define INIT_I32_MIN(t) mov.b32 %acc_i##t, 0; mov.b32 %min##t, 0;

// G = fma(d, isum, G)
#define BLOCK_D(t)                                    \
    {                                                 \
        .reg .s32 %i<2>;                              \
        .reg .f32 %f;                                 \
        DOT_BLOCK(t)                                  \
        add.s32 %i0, %i0, %i1;                        \
        cvt.rn.f32.s32 %f, %i0;                       \
        fma.rn.f32 %acc##t, %d, %f, %acc##t;          \
    }
// and G = fma(m, asum, G)
#define BLOCK_D_M(t)                                  \
    BLOCK_D(t)                                        \
    {                                                 \
        .reg .s32 %a;                                 \
        .reg .f32 %f;                                 \
        LOAD_SUM(%a, t, 0, 5)                         \
        cvt.rn.f32.s32 %f, %a;                        \
        fma.rn.f32 %acc##t, %m, %f, %acc##t;          \
    }
// S = fma(sc, isum, S), M = M + mn * asum
#define BLOCK_SC_MN(t)                                \
    {                                                 \
        .reg .s32 %i<2>, %a;                          \
        .reg .f32 %f, %f_sc;                          \
        DOT_BLOCK(t)                                  \
        add.s32 %i0, %i0, %i1;                        \
        cvt.rn.f32.s32 %f, %i0;                       \
        cvt.rn.f32.s32 %f_sc, %sc0;                   \
        fma.rn.f32 %acc##t, %f_sc, %f, %acc##t;       \
        LOAD_SUM(%a, t, 0, 5)                         \
        mad.lo.s32 %min##t, %mn0, %a, %min##t;        \
    }
// S = fma(sc, isum, S) for each 16
#define BLOCK_SC_16(t)                                \
    {                                                 \
        .reg .s32 %i<2>;                              \
        .reg .f32 %f, %f_sc;                          \
        DOT_BLOCK(t)                                  \
        cvt.rn.f32.s32 %f, %i0;                       \
        cvt.rn.f32.s32 %f_sc, %sc0;                   \
        fma.rn.f32 %acc##t, %f_sc, %f, %acc##t;       \
        cvt.rn.f32.s32 %f, %i1;                       \
        cvt.rn.f32.s32 %f_sc, %sc1;                   \
        fma.rn.f32 %acc##t, %f_sc, %f, %acc##t;       \
    }
// S = S + sc * isum for each 16, exact
#define BLOCK_EXACT(t)                                \
    {                                                 \
        .reg .s32 %i<2>;                              \
        DOT_BLOCK(t)                                  \
        mad.lo.s32 %acc_i##t, %sc0, %i0, %acc_i##t;   \
        mad.lo.s32 %acc_i##t, %sc1, %i1, %acc_i##t;   \
    }
// and M = M + mn * asum
#define BLOCK_EXACT_MN(t)                             \
    BLOCK_EXACT(t)                                    \
    {                                                 \
        .reg .s32 %a;                                 \
        LOAD_SUM(%a, t, 0, 4)                         \
        mad.lo.s32 %min##t, %mn0, %a, %min##t;        \
        LOAD_SUM(%a, t, 4, 4)                         \
        mad.lo.s32 %min##t, %mn1, %a, %min##t;        \
    }

// V = G
#define VALUE_G(t)
// V = fma(d, S, -(dmin * M)); In: %d, %dmin.
#define VALUE_MIN(t)                                  \
    {                                                 \
        .reg .f32 %f;                                 \
        cvt.rn.f32.s32 %f, %min##t;                   \
        mul.rn.f32 %f, %dmin, %f;                     \
        neg.f32 %f, %f;                               \
        fma.rn.f32 %acc##t, %d, %acc##t, %f;          \
    }
// V = d * S
#define VALUE_D_S(t) mul.rn.f32 %acc##t, %d, %acc##t;
#define VALUE_EXACT(t)                                \
    cvt.rn.f32.s32 %acc##t, %acc_i##t;                \
    mul.rn.f32 %acc##t, %d, %acc##t;
#define VALUE_EXACT_MIN(t)                            \
    cvt.rn.f32.s32 %acc##t, %acc_i##t;                \
    VALUE_MIN(t)

#define GROUP_NOTHING
#define GROUP_D(at, factor) GET_F16_SCALED(%d, %s_group, at, factor)
#define GROUP_D_DMIN(at) GET_F16(%d, %s_group, at) GET_F16(%dmin, %s_group, at + 2)

// --- the totals ---

// Loads of group %i_group + n, and its step of the chain.
#define SUM_LOAD(n)                                   \
    {                                                 \
        .reg .u32 %i;                                 \
        add.u32 %i, %i_group, n;                      \
        setp.lt.u32 %p_in##n, %i, %n_groups;          \
        @%p_in##n ld.shared.f32 %value##n, [%s_value + n * ROWS * TOKENS * 4]; \
        @%p_in##n ld.global.nc.f32 %da##n, [%g_scale + n * 4]; \
    }
#define SUM_ADD(n) @%p_in##n fma.rn.f32 %total, %value##n, %da##n, %total;

// --- one unit ---

#define STORE_VALUE(t) st.shared.f32 [%s_value + t * ROWS * 4], %acc##t;

// The group of this lane in unit i_unit, whose bytes are in s_slot: its value for every token.
#define COMPUTE_UNIT(i_unit, s_slot)                  \
    {                                                 \
        .reg .u32 %i_group, %e, %n_blocks, %s_group, %b, %shift, %shift2, %s_value; \
        .reg .b32 %x<8>, %h<8>, %w<8>;                \
        .reg .s32 %sc0, %sc1, %mn0, %mn1;             \
        .reg .f32 %d, %m, %dmin, %acc<TOKENS>;        \
        .reg .s32 %acc_i<TOKENS>, %min<TOKENS>;       \
        .reg .pred %p_in;                             \
        shl.b32 %i_group, i_unit, 2;                  \
        add.u32 %i_group, %i_group, %i_lane_group;    \
        shl.b32 %e, %i_group, 8;                      \
        setp.lt.u32 %p_in, %e, %k;                    \
        @!%p_in bra GROUP_DONE;                       \
        sub.u32 %n_blocks, %k, %e;                    \
        shr.u32 %n_blocks, %n_blocks, 5;              \
        min.u32 %n_blocks, %n_blocks, 8;              \
        add.u32 %s_group, s_slot, %s_lane;            \
        GROUP_SCALES                                  \
        FOR_TOKENS(FORM_INIT)                         \
        mov.u32 %b, 0;                                \
BLOCKS:                                               \
        LOAD(%s_group, %b)                            \
        EXPAND(%w0, %w4, %x0, %x4, %h0, %h4)          \
        EXPAND(%w1, %w5, %x1, %x5, %h1, %h5)          \
        EXPAND(%w2, %w6, %x2, %x6, %h2, %h6)          \
        EXPAND(%w3, %w7, %x3, %x7, %h3, %h7)          \
        FOR_TOKENS(FORM_BLOCK)                        \
        add.u32 %e, %e, 32;                           \
        add.u32 %b, %b, 1;                            \
        setp.lt.u32 %p_in, %b, %n_blocks;             \
        @%p_in bra BLOCKS;                            \
        FOR_TOKENS(FORM_VALUE)                        \
        shl.b32 %s_value, %i_segment, 2;              \
        sub.u32 %s_value, %i_group, %s_value;         \
        mul.lo.u32 %s_value, %s_value, ROWS * TOKENS; \
        add.u32 %s_value, %s_value, %i_lane_row;      \
        mad.lo.u32 %s_value, %s_value, 4, %s_values;  \
        FOR_TOKENS(STORE_VALUE)                       \
GROUP_DONE:                                           \
    }

// --- Q4_0 ---

#define GROUP_BYTES Q4_0_GROUP_BYTES
#define KIND Q4_0_KIND
#define LOAD Q4_0_LOAD
#define EXPAND Q4_0_EXPAND
#define GROUP_SCALES GROUP_NOTHING
#define FORM_INIT INIT_F32
#define FORM_BLOCK BLOCK_D
#define FORM_VALUE VALUE_G
#define FAST_ROW(row) FAST_ROW_Q4_0(row)
#define FAST_STRIDE 576
#define FAST_STAGE PAIR_STAGE
#define FAST_CHUNKS COPY_4(0) COPY_TAIL(4)
#define FAST_TAIL 4
#define FAST_PREPARE(i_unit, p_fast) FAST_ACTIVATIONS(i_unit, p_fast)
#define FAST_PLACE FAST_PLACE_D(18)
#define FAST_CHAIN(s_slot) FAST_CHAIN_PAIRS(F32_1_16)
#define KERNEL gemv_q4_0_1
#define WARPS 4
#define THREADS 128
#define RING_BYTES 37120 // WARPS * SLOTS * SLOT_BYTES
#define VALUES_BYTES 2048 // SEGMENT_GROUPS * TOKENS * ROWS * 4
#define TOKENS 1
#define FOR_TOKENS TOKENS_1
#define STAGE_BYTES 8448 // WARPS * FAST_STAGE
#include "gemv.inc"
#undef STAGE_BYTES
#undef FAST_ROW
#undef FAST_STRIDE
#undef FAST_STAGE
#undef FAST_CHUNKS
#undef FAST_TAIL
#undef FAST_PREPARE
#undef FAST_PLACE
#undef FAST_CHAIN
#undef KERNEL
#undef WARPS
#undef THREADS
#undef RING_BYTES
#undef VALUES_BYTES
#undef TOKENS
#undef FOR_TOKENS
#define KERNEL gemv_q4_0_4
#define WARPS 4
#define THREADS 128
#define RING_BYTES 37120 // WARPS * SLOTS * SLOT_BYTES
#define VALUES_BYTES 8192 // SEGMENT_GROUPS * TOKENS * ROWS * 4
#define TOKENS 4
#define FOR_TOKENS TOKENS_4
#include "gemv.inc"
#undef KERNEL
#undef WARPS
#undef THREADS
#undef RING_BYTES
#undef VALUES_BYTES
#undef TOKENS
#undef FOR_TOKENS
#undef GROUP_BYTES
#undef KIND
#undef LOAD
#undef EXPAND
#undef GROUP_SCALES
#undef FORM_INIT
#undef FORM_BLOCK
#undef FORM_VALUE

// --- Q4_1 ---

#define GROUP_BYTES Q4_1_GROUP_BYTES
#define KIND Q4_1_KIND
#define LOAD Q4_1_LOAD
#define EXPAND Q4_1_EXPAND
#define GROUP_SCALES GROUP_NOTHING
#define FORM_INIT INIT_F32
#define FORM_BLOCK BLOCK_D_M
#define FORM_VALUE VALUE_G
#define KERNEL gemv_q4_1_1
#define WARPS 4
#define THREADS 128
#define RING_BYTES 41216 // WARPS * SLOTS * SLOT_BYTES
#define VALUES_BYTES 2048 // SEGMENT_GROUPS * TOKENS * ROWS * 4
#define TOKENS 1
#define FOR_TOKENS TOKENS_1
#include "gemv.inc"
#undef KERNEL
#undef WARPS
#undef THREADS
#undef RING_BYTES
#undef VALUES_BYTES
#undef TOKENS
#undef FOR_TOKENS
#define KERNEL gemv_q4_1_4
#define WARPS 2
#define THREADS 64
#define RING_BYTES 20608 // WARPS * SLOTS * SLOT_BYTES
#define VALUES_BYTES 8192 // SEGMENT_GROUPS * TOKENS * ROWS * 4
#define TOKENS 4
#define FOR_TOKENS TOKENS_4
#include "gemv.inc"
#undef KERNEL
#undef WARPS
#undef THREADS
#undef RING_BYTES
#undef VALUES_BYTES
#undef TOKENS
#undef FOR_TOKENS
#undef GROUP_BYTES
#undef KIND
#undef LOAD
#undef EXPAND
#undef GROUP_SCALES
#undef FORM_INIT
#undef FORM_BLOCK
#undef FORM_VALUE

// --- Q5_0 ---

#define GROUP_BYTES Q5_0_GROUP_BYTES
#define KIND Q5_0_KIND
#define LOAD Q5_0_LOAD
#define EXPAND Q5_0_EXPAND
#define GROUP_SCALES GROUP_NOTHING
#define FORM_INIT INIT_F32
#define FORM_BLOCK BLOCK_D
#define FORM_VALUE VALUE_G
#define KERNEL gemv_q5_0_1
#define WARPS 4
#define THREADS 128
#define RING_BYTES 45312 // WARPS * SLOTS * SLOT_BYTES
#define VALUES_BYTES 2048 // SEGMENT_GROUPS * TOKENS * ROWS * 4
#define TOKENS 1
#define FOR_TOKENS TOKENS_1
#include "gemv.inc"
#undef KERNEL
#undef WARPS
#undef THREADS
#undef RING_BYTES
#undef VALUES_BYTES
#undef TOKENS
#undef FOR_TOKENS
#define KERNEL gemv_q5_0_4
#define WARPS 2
#define THREADS 64
#define RING_BYTES 22656 // WARPS * SLOTS * SLOT_BYTES
#define VALUES_BYTES 8192 // SEGMENT_GROUPS * TOKENS * ROWS * 4
#define TOKENS 4
#define FOR_TOKENS TOKENS_4
#include "gemv.inc"
#undef KERNEL
#undef WARPS
#undef THREADS
#undef RING_BYTES
#undef VALUES_BYTES
#undef TOKENS
#undef FOR_TOKENS
#undef GROUP_BYTES
#undef KIND
#undef LOAD
#undef EXPAND
#undef GROUP_SCALES
#undef FORM_INIT
#undef FORM_BLOCK
#undef FORM_VALUE

// --- Q5_1 ---

#define GROUP_BYTES Q5_1_GROUP_BYTES
#define KIND Q5_1_KIND
#define LOAD Q5_1_LOAD
#define EXPAND Q5_1_EXPAND
#define GROUP_SCALES GROUP_NOTHING
#define FORM_INIT INIT_F32
#define FORM_BLOCK BLOCK_D_M
#define FORM_VALUE VALUE_G
#define KERNEL gemv_q5_1_1
#define WARPS 2
#define THREADS 64
#define RING_BYTES 24704 // WARPS * SLOTS * SLOT_BYTES
#define VALUES_BYTES 2048 // SEGMENT_GROUPS * TOKENS * ROWS * 4
#define TOKENS 1
#define FOR_TOKENS TOKENS_1
#include "gemv.inc"
#undef KERNEL
#undef WARPS
#undef THREADS
#undef RING_BYTES
#undef VALUES_BYTES
#undef TOKENS
#undef FOR_TOKENS
#define KERNEL gemv_q5_1_4
#define WARPS 2
#define THREADS 64
#define RING_BYTES 24704 // WARPS * SLOTS * SLOT_BYTES
#define VALUES_BYTES 8192 // SEGMENT_GROUPS * TOKENS * ROWS * 4
#define TOKENS 4
#define FOR_TOKENS TOKENS_4
#include "gemv.inc"
#undef KERNEL
#undef WARPS
#undef THREADS
#undef RING_BYTES
#undef VALUES_BYTES
#undef TOKENS
#undef FOR_TOKENS
#undef GROUP_BYTES
#undef KIND
#undef LOAD
#undef EXPAND
#undef GROUP_SCALES
#undef FORM_INIT
#undef FORM_BLOCK
#undef FORM_VALUE

// --- Q8_0 ---

#define GROUP_BYTES Q8_0_GROUP_BYTES
#define KIND Q8_0_KIND
#define LOAD Q8_0_LOAD
#define EXPAND Q8_0_EXPAND
#define GROUP_SCALES GROUP_NOTHING
#define FORM_INIT INIT_F32
#define FORM_BLOCK BLOCK_D
#define FORM_VALUE VALUE_G
#define FAST_ROW(row) FAST_ROW_Q8_0(row)
#define FAST_STRIDE 1088
#define FAST_STAGE PAIR_STAGE
#define FAST_CHUNKS COPY_4(0) COPY_4(4) COPY_TAIL(8)
#define FAST_TAIL 4
#define FAST_PREPARE(i_unit, p_fast) FAST_ACTIVATIONS(i_unit, p_fast)
#define FAST_PLACE FAST_PLACE_D(34)
#define FAST_CHAIN(s_slot) FAST_CHAIN_PAIRS(F32_ONE)
#define KERNEL gemv_q8_0_1
#define WARPS 2
#define THREADS 64
#define RING_BYTES 34944 // WARPS * SLOTS * SLOT_BYTES
#define VALUES_BYTES 2048 // SEGMENT_GROUPS * TOKENS * ROWS * 4
#define TOKENS 1
#define FOR_TOKENS TOKENS_1
#define STAGE_BYTES 4224 // WARPS * FAST_STAGE
#include "gemv.inc"
#undef STAGE_BYTES
#undef FAST_ROW
#undef FAST_STRIDE
#undef FAST_STAGE
#undef FAST_CHUNKS
#undef FAST_TAIL
#undef FAST_PREPARE
#undef FAST_PLACE
#undef FAST_CHAIN
#undef KERNEL
#undef WARPS
#undef THREADS
#undef RING_BYTES
#undef VALUES_BYTES
#undef TOKENS
#undef FOR_TOKENS
#define KERNEL gemv_q8_0_4
#define WARPS 2
#define THREADS 64
#define RING_BYTES 34944 // WARPS * SLOTS * SLOT_BYTES
#define VALUES_BYTES 8192 // SEGMENT_GROUPS * TOKENS * ROWS * 4
#define TOKENS 4
#define FOR_TOKENS TOKENS_4
#include "gemv.inc"
#undef KERNEL
#undef WARPS
#undef THREADS
#undef RING_BYTES
#undef VALUES_BYTES
#undef TOKENS
#undef FOR_TOKENS
#undef GROUP_BYTES
#undef KIND
#undef LOAD
#undef EXPAND
#undef GROUP_SCALES
#undef FORM_INIT
#undef FORM_BLOCK
#undef FORM_VALUE

// --- Q2_K ---

#define GROUP_BYTES Q2_K_GROUP_BYTES
#define KIND Q2_K_KIND
#define LOAD Q2_K_LOAD
#define EXPAND Q2_K_EXPAND
#define GROUP_SCALES GROUP_D_DMIN(80)
#define FORM_INIT INIT_I32_MIN
#define FORM_BLOCK BLOCK_EXACT_MN
#define FORM_VALUE VALUE_EXACT_MIN
#define KERNEL gemv_q2_k_1
#define WARPS 4
#define THREADS 128
#define RING_BYTES 21760 // WARPS * SLOTS * SLOT_BYTES
#define VALUES_BYTES 2048 // SEGMENT_GROUPS * TOKENS * ROWS * 4
#define TOKENS 1
#define FOR_TOKENS TOKENS_1
#include "gemv.inc"
#undef KERNEL
#undef WARPS
#undef THREADS
#undef RING_BYTES
#undef VALUES_BYTES
#undef TOKENS
#undef FOR_TOKENS
#define KERNEL gemv_q2_k_4
#define WARPS 4
#define THREADS 128
#define RING_BYTES 21760 // WARPS * SLOTS * SLOT_BYTES
#define VALUES_BYTES 8192 // SEGMENT_GROUPS * TOKENS * ROWS * 4
#define TOKENS 4
#define FOR_TOKENS TOKENS_4
#include "gemv.inc"
#undef KERNEL
#undef WARPS
#undef THREADS
#undef RING_BYTES
#undef VALUES_BYTES
#undef TOKENS
#undef FOR_TOKENS
#undef GROUP_BYTES
#undef KIND
#undef LOAD
#undef EXPAND
#undef GROUP_SCALES
#undef FORM_INIT
#undef FORM_BLOCK
#undef FORM_VALUE

// --- Q3_K ---

#define GROUP_BYTES Q3_K_GROUP_BYTES
#define KIND Q3_K_KIND
#define LOAD Q3_K_LOAD
#define EXPAND Q3_K_EXPAND
#define GROUP_SCALES GROUP_D(108, F32_ONE)
#define FORM_INIT INIT_I32
#define FORM_BLOCK BLOCK_EXACT
#define FORM_VALUE VALUE_EXACT
#define KERNEL gemv_q3_k_1
#define WARPS 4
#define THREADS 128
#define RING_BYTES 28416 // WARPS * SLOTS * SLOT_BYTES
#define VALUES_BYTES 2048 // SEGMENT_GROUPS * TOKENS * ROWS * 4
#define TOKENS 1
#define FOR_TOKENS TOKENS_1
#include "gemv.inc"
#undef KERNEL
#undef WARPS
#undef THREADS
#undef RING_BYTES
#undef VALUES_BYTES
#undef TOKENS
#undef FOR_TOKENS
#define KERNEL gemv_q3_k_4
#define WARPS 4
#define THREADS 128
#define RING_BYTES 28416 // WARPS * SLOTS * SLOT_BYTES
#define VALUES_BYTES 8192 // SEGMENT_GROUPS * TOKENS * ROWS * 4
#define TOKENS 4
#define FOR_TOKENS TOKENS_4
#include "gemv.inc"
#undef KERNEL
#undef WARPS
#undef THREADS
#undef RING_BYTES
#undef VALUES_BYTES
#undef TOKENS
#undef FOR_TOKENS
#undef GROUP_BYTES
#undef KIND
#undef LOAD
#undef EXPAND
#undef GROUP_SCALES
#undef FORM_INIT
#undef FORM_BLOCK
#undef FORM_VALUE

// --- Q4_K ---

#define GROUP_BYTES Q4_K_GROUP_BYTES
#define KIND Q4_K_KIND
#define LOAD Q4_K_LOAD
#define EXPAND Q4_K_EXPAND
#define GROUP_SCALES GROUP_D_DMIN(0)
#define FORM_INIT INIT_F32_MIN
#define FORM_BLOCK BLOCK_SC_MN
#define FORM_VALUE VALUE_MIN
#define FAST_ROW(row) FAST_ROW_Q4_K(row)
#define FAST_STRIDE 592
#define FAST_STAGE SUM_STAGE
#define FAST_CHUNKS COPY_4(0) COPY_TAIL(4)
#define FAST_TAIL 4
#define FAST_PREPARE(i_unit, p_fast) FAST_ACTIVATIONS(i_unit, p_fast) FAST_SUMS(i_unit, p_fast)
#define FAST_PLACE FAST_PLACE_Q4_K
#define FAST_CHAIN(s_slot) add.u32 %s_head, %s_head, s_slot; FAST_CHAIN_Q4_K
#define KERNEL gemv_q4_k_1
#define WARPS 4
#define THREADS 128
#define RING_BYTES 37888 // WARPS * SLOTS * SLOT_BYTES
#undef SLOT_BYTES
#define SLOT_BYTES (ROWS * FAST_STRIDE)
#define VALUES_BYTES 2048 // SEGMENT_GROUPS * TOKENS * ROWS * 4
#define TOKENS 1
#define FOR_TOKENS TOKENS_1
#define STAGE_BYTES 4224 // WARPS * FAST_STAGE
#include "gemv.inc"
#undef SLOT_BYTES
#define SLOT_BYTES (ROWS * ROW_WORDS * 4)
#undef STAGE_BYTES
#undef FAST_ROW
#undef FAST_STRIDE
#undef FAST_STAGE
#undef FAST_CHUNKS
#undef FAST_TAIL
#undef FAST_PREPARE
#undef FAST_PLACE
#undef FAST_CHAIN
#undef KERNEL
#undef WARPS
#undef THREADS
#undef RING_BYTES
#undef VALUES_BYTES
#undef TOKENS
#undef FOR_TOKENS
#define KERNEL gemv_q4_k_4
#define WARPS 4
#define THREADS 128
#define RING_BYTES 37120 // WARPS * SLOTS * SLOT_BYTES
#define VALUES_BYTES 8192 // SEGMENT_GROUPS * TOKENS * ROWS * 4
#define TOKENS 4
#define FOR_TOKENS TOKENS_4
#include "gemv.inc"
#undef KERNEL
#undef WARPS
#undef THREADS
#undef RING_BYTES
#undef VALUES_BYTES
#undef TOKENS
#undef FOR_TOKENS
#undef GROUP_BYTES
#undef KIND
#undef LOAD
#undef EXPAND
#undef GROUP_SCALES
#undef FORM_INIT
#undef FORM_BLOCK
#undef FORM_VALUE

// --- Q5_K ---

#define GROUP_BYTES Q5_K_GROUP_BYTES
#define KIND Q5_K_KIND
#define LOAD Q5_K_LOAD
#define EXPAND Q5_K_EXPAND
#define GROUP_SCALES GROUP_D_DMIN(0)
#define FORM_INIT INIT_F32_MIN
#define FORM_BLOCK BLOCK_SC_MN
#define FORM_VALUE VALUE_MIN
#define KERNEL gemv_q5_k_1
#define WARPS 4
#define THREADS 128
#define RING_BYTES 45312 // WARPS * SLOTS * SLOT_BYTES
#define VALUES_BYTES 2048 // SEGMENT_GROUPS * TOKENS * ROWS * 4
#define TOKENS 1
#define FOR_TOKENS TOKENS_1
#include "gemv.inc"
#undef KERNEL
#undef WARPS
#undef THREADS
#undef RING_BYTES
#undef VALUES_BYTES
#undef TOKENS
#undef FOR_TOKENS
#define KERNEL gemv_q5_k_4
#define WARPS 2
#define THREADS 64
#define RING_BYTES 22656 // WARPS * SLOTS * SLOT_BYTES
#define VALUES_BYTES 8192 // SEGMENT_GROUPS * TOKENS * ROWS * 4
#define TOKENS 4
#define FOR_TOKENS TOKENS_4
#include "gemv.inc"
#undef KERNEL
#undef WARPS
#undef THREADS
#undef RING_BYTES
#undef VALUES_BYTES
#undef TOKENS
#undef FOR_TOKENS
#undef GROUP_BYTES
#undef KIND
#undef LOAD
#undef EXPAND
#undef GROUP_SCALES
#undef FORM_INIT
#undef FORM_BLOCK
#undef FORM_VALUE

// --- Q6_K ---

#define GROUP_BYTES Q6_K_GROUP_BYTES
#define KIND Q6_K_KIND
#define LOAD Q6_K_LOAD
#define EXPAND Q6_K_EXPAND
#define GROUP_SCALES GROUP_D(208, F32_1_4)
#define FORM_INIT INIT_F32
#define FORM_BLOCK BLOCK_SC_16
#define FORM_VALUE VALUE_D_S
#define KERNEL gemv_q6_k_1
#define WARPS 2
#define THREADS 64
#define RING_BYTES 27008 // WARPS * SLOTS * SLOT_BYTES
#define VALUES_BYTES 2048 // SEGMENT_GROUPS * TOKENS * ROWS * 4
#define TOKENS 1
#define FOR_TOKENS TOKENS_1
#include "gemv.inc"
#undef KERNEL
#undef WARPS
#undef THREADS
#undef RING_BYTES
#undef VALUES_BYTES
#undef TOKENS
#undef FOR_TOKENS
#define KERNEL gemv_q6_k_4
#define WARPS 2
#define THREADS 64
#define RING_BYTES 27008 // WARPS * SLOTS * SLOT_BYTES
#define VALUES_BYTES 8192 // SEGMENT_GROUPS * TOKENS * ROWS * 4
#define TOKENS 4
#define FOR_TOKENS TOKENS_4
#include "gemv.inc"
#undef KERNEL
#undef WARPS
#undef THREADS
#undef RING_BYTES
#undef VALUES_BYTES
#undef TOKENS
#undef FOR_TOKENS
#undef GROUP_BYTES
#undef KIND
#undef LOAD
#undef EXPAND
#undef GROUP_SCALES
#undef FORM_INIT
#undef FORM_BLOCK
#undef FORM_VALUE
