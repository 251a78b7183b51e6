// SPDX-License-Identifier: Apache-2.0
// Operators 4 and 6 of docs/contract.md for many tokens: quantised weights read in place, integer
// sums by mma.sync on the byte planes of the activations (quantize_q16_planes), two matrix
// instructions a block: weights x high and weights x low bytes. gemm.inc draws who owns what;
// blocks.inc knows the weight types.
//
// M1. Block sums are exact integers, so that nothing depends on how they were added; the f32 chain
//     of a group and the chain over groups are the contract's, in one lane per result. No result
//     depends on n_tokens or on the place of a token.
// M2. k is a multiple of the type's block; weight begins at a multiple of 4 bytes, rows at any even
//     address; nothing in front of or behind the tensor is read.
// M3. `sums` is the sum32 of the activations (Q4_1, Q5_1, Q4_K, Q5_K) or the sum16 (Q2_K); the
//     other types do not read it, and any address will do.
//
// kernel gemm_q4_0
//   params: power u64, status u64, weight u64, high u64, low u64, scale u64, sums u64, bias u64,
//           out u64, row_bytes u32, k u32, features u32, n_tokens u32, plane_stride u32,
//           scale_stride u32, sum_stride u32, out_stride u32, output u32
//   grid: ceil(features / 64), ceil(n_tokens / 32)
//   block: 128
//   registers: sm_89 96, sm_90 97, sm_100 97, sm_120 96
//   shared: 26884
//   roof: operations (2 matrix instructions and 12 others for 16 x 8 x 32 products)
//   index map: affine; feature 64 * ctaid.x + 16 * warp + g + 8 r,
//           token 32 * ctaid.y + 8 j + 2 t + a
//   aligned: weight 4 bytes; planes 16 bytes; scale, sums, bias 4 bytes; out elements
//
// kernel gemm_q4_1
//   params: power u64, status u64, weight u64, high u64, low u64, scale u64, sums u64, bias u64,
//           out u64, row_bytes u32, k u32, features u32, n_tokens u32, plane_stride u32,
//           scale_stride u32, sum_stride u32, out_stride u32, output u32
//   grid: ceil(features / 64), ceil(n_tokens / 32)
//   block: 128
//   registers: sm_89 107, sm_90 108, sm_100 108, sm_120 106
//   shared: 27908
//   roof: operations (2 matrix instructions and 12 others for 16 x 8 x 32 products)
//   index map: affine; feature 64 * ctaid.x + 16 * warp + g + 8 r,
//           token 32 * ctaid.y + 8 j + 2 t + a
//   aligned: weight 4 bytes; planes 16 bytes; scale, sums, bias 4 bytes; out elements
//
// kernel gemm_q5_0
//   params: power u64, status u64, weight u64, high u64, low u64, scale u64, sums u64, bias u64,
//           out u64, row_bytes u32, k u32, features u32, n_tokens u32, plane_stride u32,
//           scale_stride u32, sum_stride u32, out_stride u32, output u32
//   grid: ceil(features / 64), ceil(n_tokens / 32)
//   block: 128
//   registers: sm_89 97, sm_90 99, sm_100 98, sm_120 97
//   shared: 28932
//   roof: operations (2 matrix instructions and 12 others for 16 x 8 x 32 products)
//   index map: affine; feature 64 * ctaid.x + 16 * warp + g + 8 r,
//           token 32 * ctaid.y + 8 j + 2 t + a
//   aligned: weight 4 bytes; planes 16 bytes; scale, sums, bias 4 bytes; out elements
//
// kernel gemm_q5_1
//   params: power u64, status u64, weight u64, high u64, low u64, scale u64, sums u64, bias u64,
//           out u64, row_bytes u32, k u32, features u32, n_tokens u32, plane_stride u32,
//           scale_stride u32, sum_stride u32, out_stride u32, output u32
//   grid: ceil(features / 64), ceil(n_tokens / 32)
//   block: 128
//   registers: sm_89 106, sm_90 107, sm_100 108, sm_120 106
//   shared: 29956
//   roof: operations (2 matrix instructions and 12 others for 16 x 8 x 32 products)
//   index map: affine; feature 64 * ctaid.x + 16 * warp + g + 8 r,
//           token 32 * ctaid.y + 8 j + 2 t + a
//   aligned: weight 4 bytes; planes 16 bytes; scale, sums, bias 4 bytes; out elements
//
// kernel gemm_q8_0
//   params: power u64, status u64, weight u64, high u64, low u64, scale u64, sums u64, bias u64,
//           out u64, row_bytes u32, k u32, features u32, n_tokens u32, plane_stride u32,
//           scale_stride u32, sum_stride u32, out_stride u32, output u32
//   grid: ceil(features / 64), ceil(n_tokens / 32)
//   block: 128
//   registers: sm_89 96, sm_90 98, sm_100 97, sm_120 96
//   shared: 35076
//   roof: operations (2 matrix instructions and 12 others for 16 x 8 x 32 products)
//   index map: affine; feature 64 * ctaid.x + 16 * warp + g + 8 r,
//           token 32 * ctaid.y + 8 j + 2 t + a
//   aligned: weight 4 bytes; planes 16 bytes; scale, sums, bias 4 bytes; out elements
//
// kernel gemm_q2_k
//   params: power u64, status u64, weight u64, high u64, low u64, scale u64, sums u64, bias u64,
//           out u64, row_bytes u32, k u32, features u32, n_tokens u32, plane_stride u32,
//           scale_stride u32, sum_stride u32, out_stride u32, output u32
//   grid: ceil(features / 64), ceil(n_tokens / 32)
//   block: 128
//   registers: sm_89 162, sm_90 162, sm_100 160, sm_120 160
//   shared: 23300
//   roof: operations (2 matrix instructions and 12 others for 16 x 8 x 32 products)
//   index map: affine; feature 64 * ctaid.x + 16 * warp + g + 8 r,
//           token 32 * ctaid.y + 8 j + 2 t + a
//   aligned: weight 4 bytes; planes 16 bytes; scale, sums, bias 4 bytes; out elements
//
// kernel gemm_q3_k
//   params: power u64, status u64, weight u64, high u64, low u64, scale u64, sums u64, bias u64,
//           out u64, row_bytes u32, k u32, features u32, n_tokens u32, plane_stride u32,
//           scale_stride u32, sum_stride u32, out_stride u32, output u32
//   grid: ceil(features / 64), ceil(n_tokens / 32)
//   block: 128
//   registers: sm_89 117, sm_90 117, sm_100 118, sm_120 126
//   shared: 24836
//   roof: operations (2 matrix instructions and 12 others for 16 x 8 x 32 products)
//   index map: affine; feature 64 * ctaid.x + 16 * warp + g + 8 r,
//           token 32 * ctaid.y + 8 j + 2 t + a
//   aligned: weight 4 bytes; planes 16 bytes; scale, sums, bias 4 bytes; out elements
//
// kernel gemm_q4_k
//   params: power u64, status u64, weight u64, high u64, low u64, scale u64, sums u64, bias u64,
//           out u64, row_bytes u32, k u32, features u32, n_tokens u32, plane_stride u32,
//           scale_stride u32, sum_stride u32, out_stride u32, output u32
//   grid: ceil(features / 64), ceil(n_tokens / 32)
//   block: 128
//   registers: sm_89 128, sm_90 128, sm_100 128, sm_120 128
//   shared: 26884
//   roof: operations (2 matrix instructions and 12 others for 16 x 8 x 32 products)
//   index map: affine; feature 64 * ctaid.x + 16 * warp + g + 8 r,
//           token 32 * ctaid.y + 8 j + 2 t + a
//   aligned: weight 4 bytes; planes 16 bytes; scale, sums, bias 4 bytes; out elements
//
// kernel gemm_q5_k
//   params: power u64, status u64, weight u64, high u64, low u64, scale u64, sums u64, bias u64,
//           out u64, row_bytes u32, k u32, features u32, n_tokens u32, plane_stride u32,
//           scale_stride u32, sum_stride u32, out_stride u32, output u32
//   grid: ceil(features / 64), ceil(n_tokens / 32)
//   block: 128
//   registers: sm_89 128, sm_90 128, sm_100 128, sm_120 128
//   shared: 28932
//   roof: operations (2 matrix instructions and 12 others for 16 x 8 x 32 products)
//   index map: affine; feature 64 * ctaid.x + 16 * warp + g + 8 r,
//           token 32 * ctaid.y + 8 j + 2 t + a
//   aligned: weight 4 bytes; planes 16 bytes; scale, sums, bias 4 bytes; out elements
//
// kernel gemm_q6_k
//   params: power u64, status u64, weight u64, high u64, low u64, scale u64, sums u64, bias u64,
//           out u64, row_bytes u32, k u32, features u32, n_tokens u32, plane_stride u32,
//           scale_stride u32, sum_stride u32, out_stride u32, output u32
//   grid: ceil(features / 64), ceil(n_tokens / 32)
//   block: 128
//   registers: sm_89 122, sm_90 123, sm_100 123, sm_120 126
//   shared: 30980
//   roof: operations (2 matrix instructions and 12 others for 16 x 8 x 32 products)
//   index map: affine; feature 64 * ctaid.x + 16 * warp + g + 8 r,
//           token 32 * ctaid.y + 8 j + 2 t + a
//   aligned: weight 4 bytes; planes 16 bytes; scale, sums, bias 4 bytes; out elements
#include "macros.inc"
#include "blocks.inc"
#include "rows.inc"
#include "gemm_output.inc"

MODULE_HEADER
SHARED_POWER_WORD

#define THREADS 128
#define WARPS 4
#define REGISTERS_MAX 168 // three blocks a multiprocessor at the least
#define WARP_ROWS 16
#define PLANE_ROW 272   // GROUP and 16
#define PLANE_BYTES 8704 // 32 * PLANE_ROW
#define PLANES_BYTES 17408 // 2 * PLANE_BYTES

// M(j) for each tile; M(j, c, r) for each result: c = 2 r + a.
#define FOR_TILES(M) M(0) M(1) M(2) M(3)
#define FOR_RESULTS(M)                                \
    FOR_TILE(M, 0) FOR_TILE(M, 1) FOR_TILE(M, 2) FOR_TILE(M, 3)
#define FOR_TILE(M, j) M(j, 0, 0) M(j, 1, 0) M(j, 2, 1) M(j, 3, 1)

// --- copying and loading ---

// Issues the copies of a plane's group: 32 tokens of 16 chunks, four chunks a thread. A chunk past
// k is not copied and not read. `name` is the parameter, half 0 or 1 the place in shared memory.
#define COPY_PLANE(name, half) \
    COPY_CHUNK(name, half, 0) COPY_CHUNK(name, half, 1) COPY_CHUNK(name, half, 2) \
    COPY_CHUNK(name, half, 3)
#define COPY_CHUNK(name, half, i)                     \
    {                                                 \
        .reg .u64 %g;                                 \
        .reg .u32 %i_row, %i_token, %i_last, %i_element, %s, %stride; \
        .reg .pred %p_in;                             \
        shr.u32 %i_row, %i_thread, 4;                 \
        add.u32 %i_row, %i_row, 8 * i;                \
        and.b32 %i_element, %i_thread, 15;            \
        shl.b32 %i_element, %i_element, 4;            \
        mov.u32 %s, S_PLANES;                         \
        mad.lo.u32 %s, %i_row, PLANE_ROW, %s;         \
        add.u32 %s, %s, %i_element;                   \
        mad.lo.u32 %i_element, %i_group, GROUP, %i_element; \
        setp.lt.u32 %p_in, %i_element, %k;            \
        add.u32 %i_token, %i_first_token, %i_row;     \
        sub.u32 %i_last, %n_tokens, 1;                \
        min.u32 %i_token, %i_token, %i_last;          \
        ld.param.u64 %g, [name];                      \
        ld.param.u32 %stride, [plane_stride];         \
        ROW_ADDRESS(%g, %g, %i_token, %stride, %i_element, 0) \
        @%p_in cp.async.cg.shared.global [%s + half * PLANE_BYTES], [%g], 16; \
    }
// sum = the exact sum of token (j, a) over 2^shift elements, from element %e on, the at / 4-th.
#define LOAD_SUM(sum, j, a, at, shift)                \
    {                                                 \
        .reg .u64 %g;                                 \
        .reg .u32 %i;                                 \
        shr.u32 %i, %e, shift;                        \
        ROW_ADDRESS(%g, %g_sums, %i_token##j##_##a, %sum_stride, %i, 2) \
        ld.global.nc.s32 sum, [%g + at];              \
    }
// da = the scale of the group of token (j, a).
#define LOAD_SCALE_OF(da, j, a)                       \
    {                                                 \
        .reg .u64 %g;                                 \
        ROW_ADDRESS(%g, %g_scale, %i_token##j##_##a, %scale_stride, %i_group, 2) \
        ld.global.nc.f32 da, [%g];                    \
    }
// %s_row<r> = the group's first byte of row r. A copy begins at an aligned word.
#define GROUP_ODD(r)                                  \
    {                                                 \
        .reg .u32 %n;                                 \
        mad.lo.u32 %n, %i_group, GROUP_BYTES, %odd##r; \
        and.b32 %n, %n, 2;                            \
        add.u32 %s_row##r, %s_group##r, %n;           \
    }
#define NO_SHIFT(b)

// --- scales of a block, per row ---

#define ROW_D(r) SCALES(%d_##r, %m_##r, %s_row##r, %b)
#define ROW_SC_MN(r)                                  \
    SCALE_MIN_K4(%sc0_##r, %mn0_##r, %s_row##r, %b)   \
    cvt.rn.f32.s32 %f_sc0_##r, %sc0_##r;
#define ROW_SC_16(r)                                  \
    {                                                 \
        .reg .s32 %sc0, %sc1;                         \
        SCALES(%s_row##r, %b)                         \
        mov.b32 %sc0_##r, %sc0;                       \
        mov.b32 %sc1_##r, %sc1;                       \
    }
#define ROW_F_SC_16(r)                                \
    ROW_SC_16(r)                                      \
    cvt.rn.f32.s32 %f_sc0_##r, %sc0_##r;              \
    cvt.rn.f32.s32 %f_sc1_##r, %sc1_##r;
#define ROW_SC_MN_16(r)                               \
    {                                                 \
        .reg .s32 %sc0, %sc1, %mn0, %mn1;             \
        SCALES(%s_row##r, %b)                         \
        mov.b32 %sc0_##r, %sc0;                       \
        mov.b32 %sc1_##r, %sc1;                       \
        mov.b32 %mn0_##r, %mn0;                       \
        mov.b32 %mn1_##r, %mn1;                       \
    }

// --- block sums ---

// %d<0..3> = weights x activations over 32 or 16 elements, d a name without %. In: %a<4>, or two of
// them, and b.
#define MMA_32(d, w_kind, a_kind, b0, b1) MMA_32_KINDS(d, w_kind, a_kind, b0, b1)
#define MMA_32_KINDS(d, w_kind, a_kind, b0, b1)       \
    mma.sync.aligned.m16n8k32.row.col.s32.w_kind.a_kind.s32 {%d##0, %d##1, %d##2, %d##3}, \
        {%a0, %a1, %a2, %a3}, {b0, b1}, {%zero, %zero, %zero, %zero};
#define MMA_16(d, w_kind, a_kind, a0, a1, b0) MMA_16_KINDS(d, w_kind, a_kind, a0, a1, b0)
#define MMA_16_KINDS(d, w_kind, a_kind, a0, a1, b0)   \
    mma.sync.aligned.m16n8k16.row.col.s32.w_kind.a_kind.s32 {%d##0, %d##1, %d##2, %d##3}, \
        {a0, a1}, {b0}, {%zero, %zero, %zero, %zero};
// %p<0..3> = the four B registers of tile j and block %b: high k 0.., high k 16.., low, low.
#define LOAD_B(j)                                     \
    {                                                 \
        .reg .u32 %s;                                 \
        mad.lo.u32 %s, %b, 32, %s_b;                  \
        ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%p0, %p1, %p2, %p3}, [%s + 8 * j * PLANE_ROW]; \
    }
// %i<0..3> = the exact sums over 32 of tile j.
#define SUMS_32(j)                                    \
    {                                                 \
        .reg .b32 %p<4>;                              \
        .reg .s32 %hi<4>, %lo<4>;                     \
        LOAD_B(j)                                     \
        MMA_32(hi, MMA_KIND, s8, %p0, %p1)               \
        MMA_32(lo, MMA_KIND, u8, %p2, %p3)               \
        mad.lo.s32 %i0, %hi0, 256, %lo0;              \
        mad.lo.s32 %i1, %hi1, 256, %lo1;              \
        mad.lo.s32 %i2, %hi2, 256, %lo2;              \
        mad.lo.s32 %i3, %hi3, 256, %lo3;              \
    }
// %i<0..3> and %o<0..3> = the exact sums over the first and the second 16.
#define SUMS_16(j)                                    \
    {                                                 \
        .reg .b32 %p<4>;                              \
        .reg .s32 %hi<4>, %lo<4>;                     \
        LOAD_B(j)                                     \
        MMA_16(hi, MMA_KIND, s8, %a0, %a1, %p0) \
        MMA_16(lo, MMA_KIND, u8, %a0, %a1, %p2) \
        mad.lo.s32 %i0, %hi0, 256, %lo0;              \
        mad.lo.s32 %i1, %hi1, 256, %lo1;              \
        mad.lo.s32 %i2, %hi2, 256, %lo2;              \
        mad.lo.s32 %i3, %hi3, 256, %lo3;              \
        MMA_16(hi, MMA_KIND, s8, %a2, %a3, %p1) \
        MMA_16(lo, MMA_KIND, u8, %a2, %a3, %p3) \
        mad.lo.s32 %o0, %hi0, 256, %lo0;              \
        mad.lo.s32 %o1, %hi1, 256, %lo1;              \
        mad.lo.s32 %o2, %hi2, 256, %lo2;              \
        mad.lo.s32 %o3, %hi3, 256, %lo3;              \
    }

// --- from block sums to the value of a group; operator 4 of the contract ---

#define INIT_F32(j, c, r) mov.f32 %acc##j##_##c, F32_ZERO;
#define INIT_F32_MIN(j, c, r) INIT_F32(j, c, r) mov.b32 %min##j##_##c, 0;
#define INIT_I32(j, c, r) mov.b32 %acc_i##j##_##c, 0;
#define INIT_I32_MIN(j, c, r) INIT_I32(j, c, r) mov.b32 %min##j##_##c, 0;

// acc = fma(factor, sum, acc)
#define FMA_SUM(j, c, factor, sum)                    \
    {                                                 \
        .reg .f32 %f;                                 \
        cvt.rn.f32.s32 %f, sum;                       \
        fma.rn.f32 %acc##j##_##c, factor, %f, %acc##j##_##c; \
    }
// G = fma(d, isum, G)
#define BLOCK_D(j)                                    \
    {                                                 \
        .reg .s32 %i<4>;                              \
        SUMS_32(j)                                    \
        FMA_SUM(j, 0, %d_0, %i0)                      \
        FMA_SUM(j, 1, %d_0, %i1)                      \
        FMA_SUM(j, 2, %d_1, %i2)                      \
        FMA_SUM(j, 3, %d_1, %i3)                      \
    }
// and G = fma(m, asum, G)
#define BLOCK_D_M(j)                                  \
    BLOCK_D(j)                                        \
    {                                                 \
        .reg .s32 %sum<2>;                            \
        LOAD_SUM(%sum0, j, 0, 0, 5)                   \
        LOAD_SUM(%sum1, j, 1, 0, 5)                   \
        FMA_SUM(j, 0, %m_0, %sum0)                    \
        FMA_SUM(j, 1, %m_0, %sum1)                    \
        FMA_SUM(j, 2, %m_1, %sum0)                    \
        FMA_SUM(j, 3, %m_1, %sum1)                    \
    }
// M = M + mn * asum
#define ADD_MIN(j, mn, at, shift)                     \
    {                                                 \
        .reg .s32 %sum<2>;                            \
        LOAD_SUM(%sum0, j, 0, at, shift)              \
        LOAD_SUM(%sum1, j, 1, at, shift)              \
        mad.lo.s32 %min##j##_0, mn##_0, %sum0, %min##j##_0; \
        mad.lo.s32 %min##j##_1, mn##_0, %sum1, %min##j##_1; \
        mad.lo.s32 %min##j##_2, mn##_1, %sum0, %min##j##_2; \
        mad.lo.s32 %min##j##_3, mn##_1, %sum1, %min##j##_3; \
    }
// S = fma(sc, isum, S), M = M + mn * asum
#define BLOCK_SC_MN(j)                                \
    {                                                 \
        .reg .s32 %i<4>;                              \
        SUMS_32(j)                                    \
        FMA_SUM(j, 0, %f_sc0_0, %i0)                  \
        FMA_SUM(j, 1, %f_sc0_0, %i1)                  \
        FMA_SUM(j, 2, %f_sc0_1, %i2)                  \
        FMA_SUM(j, 3, %f_sc0_1, %i3)                  \
    }                                                 \
    ADD_MIN(j, %mn0, 0, 5)
// S = fma(sc, isum, S) for each 16
#define BLOCK_SC_16(j)                                \
    {                                                 \
        .reg .s32 %i<4>, %o<4>;                       \
        SUMS_16(j)                                    \
        FMA_SUM(j, 0, %f_sc0_0, %i0)                  \
        FMA_SUM(j, 1, %f_sc0_0, %i1)                  \
        FMA_SUM(j, 2, %f_sc0_1, %i2)                  \
        FMA_SUM(j, 3, %f_sc0_1, %i3)                  \
        FMA_SUM(j, 0, %f_sc1_0, %o0)                  \
        FMA_SUM(j, 1, %f_sc1_0, %o1)                  \
        FMA_SUM(j, 2, %f_sc1_1, %o2)                  \
        FMA_SUM(j, 3, %f_sc1_1, %o3)                  \
    }
// S = S + sc * isum for each 16, exact
#define BLOCK_EXACT(j)                                \
    {                                                 \
        .reg .s32 %i<4>, %o<4>;                       \
        SUMS_16(j)                                    \
        mad.lo.s32 %acc_i##j##_0, %sc0_0, %i0, %acc_i##j##_0; \
        mad.lo.s32 %acc_i##j##_1, %sc0_0, %i1, %acc_i##j##_1; \
        mad.lo.s32 %acc_i##j##_2, %sc0_1, %i2, %acc_i##j##_2; \
        mad.lo.s32 %acc_i##j##_3, %sc0_1, %i3, %acc_i##j##_3; \
        mad.lo.s32 %acc_i##j##_0, %sc1_0, %o0, %acc_i##j##_0; \
        mad.lo.s32 %acc_i##j##_1, %sc1_0, %o1, %acc_i##j##_1; \
        mad.lo.s32 %acc_i##j##_2, %sc1_1, %o2, %acc_i##j##_2; \
        mad.lo.s32 %acc_i##j##_3, %sc1_1, %o3, %acc_i##j##_3; \
    }
// and M = M + mn * asum
#define BLOCK_EXACT_MN(j)                             \
    BLOCK_EXACT(j)                                    \
    ADD_MIN(j, %mn0, 0, 4)                            \
    ADD_MIN(j, %mn1, 4, 4)

// %d_<r> and %dmin_<r> of the super block of row r.
#define GROUP_ROW(r)                                  \
    {                                                 \
        .reg .f32 %d, %dmin;                          \
        .reg .u32 %s_group;                           \
        mov.f32 %d, F32_ZERO;                         \
        mov.f32 %dmin, F32_ZERO;                      \
        mov.u32 %s_group, %s_row##r;                  \
        GROUP_SCALES                                  \
        mov.f32 %d_##r, %d;                           \
        mov.f32 %dmin_##r, %dmin;                     \
    }
#define GROUP_NOTHING
#define GROUP_D(at, factor) GET_F16_SCALED(%d, %s_group, at, factor)
#define GROUP_D_DMIN(at) GET_F16(%d, %s_group, at) GET_F16(%dmin, %s_group, at + 2)

// V = G; V = fma(d, S, -(dmin * M)); V = d * S
#define VALUE_G(j, c, r)
#define VALUE_MIN(j, c, r)                            \
    {                                                 \
        .reg .f32 %f;                                 \
        cvt.rn.f32.s32 %f, %min##j##_##c;             \
        mul.rn.f32 %f, %dmin_##r, %f;                 \
        neg.f32 %f, %f;                               \
        fma.rn.f32 %acc##j##_##c, %d_##r, %acc##j##_##c, %f; \
    }
#define VALUE_D_S(j, c, r) mul.rn.f32 %acc##j##_##c, %d_##r, %acc##j##_##c;
#define VALUE_EXACT(j, c, r)                          \
    cvt.rn.f32.s32 %acc##j##_##c, %acc_i##j##_##c;    \
    VALUE_D_S(j, c, r)
#define VALUE_EXACT_MIN(j, c, r)                      \
    cvt.rn.f32.s32 %acc##j##_##c, %acc_i##j##_##c;    \
    VALUE_MIN(j, c, r)

// --- Q4_0 ---

#define KERNEL gemm_q4_0
#define A_WORDS 37 // of a row's group, and up to 2 bytes in front of it
#define A_BYTES 9472 // WARPS * WARP_ROWS * A_WORDS * 4
#define GROUP_BYTES Q4_0_GROUP_BYTES
#define MMA_KIND s8
#define PAIR Q4_0_PAIR
#define EXPAND Q4_0_EXPAND
#define SHIFTS NO_SHIFT
#define SCALES Q4_0_SCALES
#define GROUP_SCALES GROUP_NOTHING
#define ROW_SCALES ROW_D
#define TILE_BLOCK BLOCK_D
#define RESULT_INIT INIT_F32
#define VALUE VALUE_G
#include "gemm.inc"
#undef KERNEL
#undef A_WORDS
#undef A_BYTES
#undef GROUP_BYTES
#undef MMA_KIND
#undef PAIR
#undef EXPAND
#undef SHIFTS
#undef SCALES
#undef GROUP_SCALES
#undef ROW_SCALES
#undef TILE_BLOCK
#undef RESULT_INIT
#undef VALUE

// --- Q4_1 ---

#define KERNEL gemm_q4_1
#define A_WORDS 41 // of a row's group, and up to 2 bytes in front of it
#define A_BYTES 10496 // WARPS * WARP_ROWS * A_WORDS * 4
#define GROUP_BYTES Q4_1_GROUP_BYTES
#define MMA_KIND u8
#define PAIR Q4_1_PAIR
#define EXPAND Q4_1_EXPAND
#define SHIFTS NO_SHIFT
#define SCALES Q4_1_SCALES
#define GROUP_SCALES GROUP_NOTHING
#define ROW_SCALES ROW_D
#define TILE_BLOCK BLOCK_D_M
#define RESULT_INIT INIT_F32
#define VALUE VALUE_G
#include "gemm.inc"
#undef KERNEL
#undef A_WORDS
#undef A_BYTES
#undef GROUP_BYTES
#undef MMA_KIND
#undef PAIR
#undef EXPAND
#undef SHIFTS
#undef SCALES
#undef GROUP_SCALES
#undef ROW_SCALES
#undef TILE_BLOCK
#undef RESULT_INIT
#undef VALUE

// --- Q5_0 ---

#define KERNEL gemm_q5_0
#define A_WORDS 45 // of a row's group, and up to 2 bytes in front of it
#define A_BYTES 11520 // WARPS * WARP_ROWS * A_WORDS * 4
#define GROUP_BYTES Q5_0_GROUP_BYTES
#define MMA_KIND s8
#define PAIR Q5_0_PAIR
#define EXPAND Q5_0_EXPAND
#define SHIFTS NO_SHIFT
#define SCALES Q5_0_SCALES
#define GROUP_SCALES GROUP_NOTHING
#define ROW_SCALES ROW_D
#define TILE_BLOCK BLOCK_D
#define RESULT_INIT INIT_F32
#define VALUE VALUE_G
#include "gemm.inc"
#undef KERNEL
#undef A_WORDS
#undef A_BYTES
#undef GROUP_BYTES
#undef MMA_KIND
#undef PAIR
#undef EXPAND
#undef SHIFTS
#undef SCALES
#undef GROUP_SCALES
#undef ROW_SCALES
#undef TILE_BLOCK
#undef RESULT_INIT
#undef VALUE

// --- Q5_1 ---

#define KERNEL gemm_q5_1
#define A_WORDS 49 // of a row's group, and up to 2 bytes in front of it
#define A_BYTES 12544 // WARPS * WARP_ROWS * A_WORDS * 4
#define GROUP_BYTES Q5_1_GROUP_BYTES
#define MMA_KIND u8
#define PAIR Q5_1_PAIR
#define EXPAND Q5_1_EXPAND
#define SHIFTS NO_SHIFT
#define SCALES Q5_1_SCALES
#define GROUP_SCALES GROUP_NOTHING
#define ROW_SCALES ROW_D
#define TILE_BLOCK BLOCK_D_M
#define RESULT_INIT INIT_F32
#define VALUE VALUE_G
#include "gemm.inc"
#undef KERNEL
#undef A_WORDS
#undef A_BYTES
#undef GROUP_BYTES
#undef MMA_KIND
#undef PAIR
#undef EXPAND
#undef SHIFTS
#undef SCALES
#undef GROUP_SCALES
#undef ROW_SCALES
#undef TILE_BLOCK
#undef RESULT_INIT
#undef VALUE

// --- Q8_0 ---

#define KERNEL gemm_q8_0
#define A_WORDS 69 // of a row's group, and up to 2 bytes in front of it
#define A_BYTES 17664 // WARPS * WARP_ROWS * A_WORDS * 4
#define GROUP_BYTES Q8_0_GROUP_BYTES
#define MMA_KIND s8
#define PAIR Q8_0_PAIR
#define EXPAND Q8_0_EXPAND
#define SHIFTS NO_SHIFT
#define SCALES Q8_0_SCALES
#define GROUP_SCALES GROUP_NOTHING
#define ROW_SCALES ROW_D
#define TILE_BLOCK BLOCK_D
#define RESULT_INIT INIT_F32
#define VALUE VALUE_G
#include "gemm.inc"
#undef KERNEL
#undef A_WORDS
#undef A_BYTES
#undef GROUP_BYTES
#undef MMA_KIND
#undef PAIR
#undef EXPAND
#undef SHIFTS
#undef SCALES
#undef GROUP_SCALES
#undef ROW_SCALES
#undef TILE_BLOCK
#undef RESULT_INIT
#undef VALUE

// --- Q2_K ---

#define KERNEL gemm_q2_k
#define A_WORDS 23 // of a row's group, and up to 2 bytes in front of it
#define A_BYTES 5888 // WARPS * WARP_ROWS * A_WORDS * 4
#define GROUP_BYTES Q2_K_GROUP_BYTES
#define MMA_KIND u8
#define PAIR Q2_K_PAIR
#define EXPAND Q2_K_EXPAND
#define SHIFTS SHIFT_2
#define SCALES Q2_K_SCALES
#define GROUP_SCALES GROUP_D_DMIN(80)
#define ROW_SCALES ROW_SC_MN_16
#define TILE_BLOCK BLOCK_EXACT_MN
#define RESULT_INIT INIT_I32_MIN
#define VALUE VALUE_EXACT_MIN
#include "gemm.inc"
#undef KERNEL
#undef A_WORDS
#undef A_BYTES
#undef GROUP_BYTES
#undef MMA_KIND
#undef PAIR
#undef EXPAND
#undef SHIFTS
#undef SCALES
#undef GROUP_SCALES
#undef ROW_SCALES
#undef TILE_BLOCK
#undef RESULT_INIT
#undef VALUE

// --- Q3_K ---

#define KERNEL gemm_q3_k
#define A_WORDS 29 // of a row's group, and up to 2 bytes in front of it
#define A_BYTES 7424 // WARPS * WARP_ROWS * A_WORDS * 4
#define GROUP_BYTES Q3_K_GROUP_BYTES
#define MMA_KIND s8
#define PAIR Q3_K_PAIR
#define EXPAND Q3_K_EXPAND
#define SHIFTS SHIFT_2
#define SCALES Q3_K_SCALES
#define GROUP_SCALES GROUP_D(108, F32_ONE)
#define ROW_SCALES ROW_SC_16
#define TILE_BLOCK BLOCK_EXACT
#define RESULT_INIT INIT_I32
#define VALUE VALUE_EXACT
#include "gemm.inc"
#undef KERNEL
#undef A_WORDS
#undef A_BYTES
#undef GROUP_BYTES
#undef MMA_KIND
#undef PAIR
#undef EXPAND
#undef SHIFTS
#undef SCALES
#undef GROUP_SCALES
#undef ROW_SCALES
#undef TILE_BLOCK
#undef RESULT_INIT
#undef VALUE

// --- Q4_K ---

#define KERNEL gemm_q4_k
#define A_WORDS 37 // of a row's group, and up to 2 bytes in front of it
#define A_BYTES 9472 // WARPS * WARP_ROWS * A_WORDS * 4
#define GROUP_BYTES Q4_K_GROUP_BYTES
#define MMA_KIND u8
#define PAIR Q4_K_PAIR
#define EXPAND Q4_K_EXPAND
#define SHIFTS SHIFT_4
#define SCALES Q4_K_SCALES
#define GROUP_SCALES GROUP_D_DMIN(0)
#define ROW_SCALES ROW_SC_MN
#define TILE_BLOCK BLOCK_SC_MN
#define RESULT_INIT INIT_F32_MIN
#define VALUE VALUE_MIN
#include "gemm.inc"
#undef KERNEL
#undef A_WORDS
#undef A_BYTES
#undef GROUP_BYTES
#undef MMA_KIND
#undef PAIR
#undef EXPAND
#undef SHIFTS
#undef SCALES
#undef GROUP_SCALES
#undef ROW_SCALES
#undef TILE_BLOCK
#undef RESULT_INIT
#undef VALUE

// --- Q5_K ---

#define KERNEL gemm_q5_k
#define A_WORDS 45 // of a row's group, and up to 2 bytes in front of it
#define A_BYTES 11520 // WARPS * WARP_ROWS * A_WORDS * 4
#define GROUP_BYTES Q5_K_GROUP_BYTES
#define MMA_KIND u8
#define PAIR Q5_K_PAIR
#define EXPAND Q5_K_EXPAND
#define SHIFTS SHIFT_4
#define SCALES Q5_K_SCALES
#define GROUP_SCALES GROUP_D_DMIN(0)
#define ROW_SCALES ROW_SC_MN
#define TILE_BLOCK BLOCK_SC_MN
#define RESULT_INIT INIT_F32_MIN
#define VALUE VALUE_MIN
#include "gemm.inc"
#undef KERNEL
#undef A_WORDS
#undef A_BYTES
#undef GROUP_BYTES
#undef MMA_KIND
#undef PAIR
#undef EXPAND
#undef SHIFTS
#undef SCALES
#undef GROUP_SCALES
#undef ROW_SCALES
#undef TILE_BLOCK
#undef RESULT_INIT
#undef VALUE

// --- Q6_K ---

#define KERNEL gemm_q6_k
#define A_WORDS 53 // of a row's group, and up to 2 bytes in front of it
#define A_BYTES 13568 // WARPS * WARP_ROWS * A_WORDS * 4
#define GROUP_BYTES Q6_K_GROUP_BYTES
#define MMA_KIND s8
#define PAIR Q6_K_PAIR
#define EXPAND Q6_K_EXPAND
#define SHIFTS NO_SHIFT
#define SCALES Q6_K_SCALES
#define GROUP_SCALES GROUP_D(208, F32_1_4)
#define ROW_SCALES ROW_F_SC_16
#define TILE_BLOCK BLOCK_SC_16
#define RESULT_INIT INIT_F32
#define VALUE VALUE_D_S
#include "gemm.inc"
#undef KERNEL
#undef A_WORDS
#undef A_BYTES
#undef GROUP_BYTES
#undef MMA_KIND
#undef PAIR
#undef EXPAND
#undef SHIFTS
#undef SCALES
#undef GROUP_SCALES
#undef ROW_SCALES
#undef TILE_BLOCK
#undef RESULT_INIT
#undef VALUE
