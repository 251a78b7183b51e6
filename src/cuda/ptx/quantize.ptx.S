// SPDX-License-Identifier: Apache-2.0
// Operator 3 of docs/contract.md: f16 activations become 16-bit integers with one f32 scale per
// group of 256, and exact sums over 16 and 32 elements. Layout of the outputs: struct q16 of
// src/ops/op.h.
//
// One warp owns one group. Lane l holds elements 8l .. 8l+7, one 16-byte load:
//
//   group   |l0      |l1      |l2      |l3      |l4 ...                    |l31     |
//   sum16   |       s16[0]    |       s16[1]    | ...      lanes 2j, 2j+1 meet by shfl xor 1
//   sum32   |              s32[0]               | ...      lanes 4j .. 4j+3, then by shfl xor 2
//
// n is a multiple of 32, so a quad of lanes is inside the row as a whole or outside it.
//
// kernel quantize_q16
//   params: power u64, status u64, x u64, a u64, scale u64, sum16 u64, sum32 u64, n u32,
//           x_stride u32, a_stride u32, scale_stride u32, sum_stride u32
//   grid: rows, ceil(ceil(n / 256) / 4)
//   block: 128
//   registers: sm_89 28, sm_90 28, sm_100 30, sm_120 30
//   shared: 4
//   roof: bytes (2 read, 2.4 written an element)
//   index map: affine; row, group = 4 * ctaid.y + warp, 8 * lane; tail by group and element < n
//   aligned: x and a rows 16 bytes; scale, sum16, sum32 4 bytes
#include "macros.inc"

MODULE_HEADER
SHARED_POWER_WORD

#define THREADS 128
#define WARPS 4
#define LANE_ELEMENTS 8

// The larger magnitude of both halves of x joins amax. In: x; in and out: amax.
#define AMAX_F16X2(amax, x)                           \
    {                                                 \
        .reg .b32 %both, %low, %high;                 \
        and.b32 %both, x, F16X2_MAGNITUDE;            \
        and.b32 %low, %both, F16_MAGNITUDE;           \
        shr.u32 %high, %both, 16;                     \
        max.u32 amax, amax, %low;                     \
        max.u32 amax, amax, %high;                    \
    }

// a = both halves of x times inv, rounded to integers of 16 bits; sum takes the two integers. The
// low 16 bits of 1.5 * 2^23 + k are those of k; the sum is taken of the whole words, whose excess
// (twice RNE_MAGIC_BITS) is taken off again. In: x, inv; out: a; in and out: sum.
#define QUANTIZE_F16X2(a, sum, x, inv)                \
    {                                                 \
        .reg .b16 %low_h, %high_h;                    \
        .reg .f32 %low, %high;                        \
        .reg .b32 %low_bits, %high_bits;              \
        mov.b32 {%low_h, %high_h}, x;                 \
        cvt.f32.f16 %low, %low_h;                     \
        cvt.f32.f16 %high, %high_h;                   \
        mul.rn.f32 %low, %low, inv;                   \
        mul.rn.f32 %high, %high, inv;                 \
        add.rn.f32 %low, %low, F32_RNE_MAGIC;         \
        add.rn.f32 %high, %high, F32_RNE_MAGIC;       \
        mov.b32 %low_bits, %low;                      \
        mov.b32 %high_bits, %high;                    \
        prmt.b32 a, %low_bits, %high_bits, 0x5410;    \
        sub.s32 %low_bits, %low_bits, RNE_MAGIC_BITS; \
        sub.s32 %high_bits, %high_bits, RNE_MAGIC_BITS; \
        add.s32 sum, sum, %low_bits;                  \
        add.s32 sum, sum, %high_bits;                 \
    }

.visible .entry quantize_q16(
    .param .u64 power,
    .param .u64 status,
    .param .u64 x,
    .param .u64 a,
    .param .u64 scale,
    .param .u64 sum16,
    .param .u64 sum32,
    .param .u32 n,
    .param .u32 x_stride,
    .param .u32 a_stride,
    .param .u32 scale_stride,
    .param .u32 sum_stride
)
.reqntid THREADS, 1, 1
{
    .reg .u64 %g_power, %g_status;
    .reg .u32 %i_row, %i_group, %i_lane, %i_element, %n;
    .reg .pred %p_in;

    // ---- prologue: which group, and is the engine active ----
    ld.param.u64 %g_power, [power];
    ld.param.u64 %g_status, [status];
    ld.param.u32 %n, [n];
    LEAVE_UNLESS_ACTIVE
    {
        .reg .u32 %i_warp;
        mov.u32 %i_lane, %tid.x;
        shr.u32 %i_warp, %i_lane, 5;
        and.b32 %i_lane, %i_lane, 31;
        mov.u32 %i_row, %ctaid.x;
        mov.u32 %i_group, %ctaid.y;
        mad.lo.u32 %i_group, %i_group, WARPS, %i_warp;
        shl.b32 %i_element, %i_group, 8; // group * GROUP
        setp.lt.u32 %p_in, %i_element, %n;
        @!%p_in bra DONE; // the warp has no group
        mad.lo.u32 %i_element, %i_lane, LANE_ELEMENTS, %i_element;
        setp.lt.u32 %p_in, %i_element, %n;
    }

    // ---- main loop: none; load, and the maximum of the magnitudes ----
    .reg .b32 %x<4>;
    .reg .b32 %amax_bits;
    {
        .reg .u64 %g_x;
        .reg .u32 %stride;
        ld.param.u64 %g_x, [x];
        ld.param.u32 %stride, [x_stride];
        ROW_ADDRESS(%g_x, %g_x, %i_row, %stride, %i_element, 1)
        mov.b32 %x0, 0;
        mov.b32 %x1, 0;
        mov.b32 %x2, 0;
        mov.b32 %x3, 0;
        @%p_in ld.global.v4.b32 {%x0, %x1, %x2, %x3}, [%g_x];
    }
    mov.b32 %amax_bits, 0;
    AMAX_F16X2(%amax_bits, %x0)
    AMAX_F16X2(%amax_bits, %x1)
    AMAX_F16X2(%amax_bits, %x2)
    AMAX_F16X2(%amax_bits, %x3)

    // ---- reduction: amax over the warp, then the scale and its reciprocal ----
    .reg .f32 %da, %inv;
    {
        .reg .pred %p_bad, %p_zero, %p_lane0;
        .reg .b16 %amax_h;
        .reg .f32 %amax;
        redux.sync.max.u32 %amax_bits, %amax_bits, WARP_ALL;
        setp.ge.u32 %p_bad, %amax_bits, F16_INFINITY;
        setp.eq.u32 %p_lane0, %i_lane, 0;
        and.pred %p_bad, %p_bad, %p_lane0;
        FAULT_IF(%p_bad)
        cvt.u16.u32 %amax_h, %amax_bits;
        cvt.f32.f16 %amax, %amax_h;
        div.rn.f32 %da, %amax, F32_32767; // +0 for a group of zeros
        div.rn.f32 %inv, F32_32767, %amax;
        setp.eq.u32 %p_zero, %amax_bits, 0;
        selp.f32 %inv, F32_ZERO, %inv, %p_zero;
    }

    // ---- epilogue: integers, sums, stores ----
    .reg .b32 %a<4>;
    .reg .s32 %sum;
    mov.b32 %sum, 0;
    QUANTIZE_F16X2(%a0, %sum, %x0, %inv)
    QUANTIZE_F16X2(%a1, %sum, %x1, %inv)
    QUANTIZE_F16X2(%a2, %sum, %x2, %inv)
    QUANTIZE_F16X2(%a3, %sum, %x3, %inv)
    {
        .reg .u64 %g_a;
        .reg .u32 %stride;
        ld.param.u64 %g_a, [a];
        ld.param.u32 %stride, [a_stride];
        ROW_ADDRESS(%g_a, %g_a, %i_row, %stride, %i_element, 1)
        @%p_in st.global.v4.b32 [%g_a], {%a0, %a1, %a2, %a3};
    }
    {
        .reg .u64 %g_scale;
        .reg .u32 %stride;
        .reg .pred %p_write;
        ld.param.u64 %g_scale, [scale];
        ld.param.u32 %stride, [scale_stride];
        ROW_ADDRESS(%g_scale, %g_scale, %i_row, %stride, %i_group, 2)
        setp.eq.u32 %p_write, %i_lane, 0;
        @%p_write st.global.f32 [%g_scale], %da;
    }
    {
        .reg .u64 %g_sum;
        .reg .u32 %stride, %index;
        .reg .s32 %other;
        .reg .pred %p_write;
        ld.param.u32 %stride, [sum_stride];
        shfl.sync.bfly.b32 %other, %sum, 1, 31, WARP_ALL;
        add.s32 %sum, %sum, %other; // 16 elements, in both lanes of a pair
        shr.u32 %index, %i_element, 4;
        ld.param.u64 %g_sum, [sum16];
        ROW_ADDRESS(%g_sum, %g_sum, %i_row, %stride, %index, 2)
        and.b32 %index, %i_lane, 1;
        setp.eq.and.u32 %p_write, %index, 0, %p_in;
        @%p_write st.global.s32 [%g_sum], %sum;
        shfl.sync.bfly.b32 %other, %sum, 2, 31, WARP_ALL;
        add.s32 %sum, %sum, %other; // 32 elements, in all lanes of a quad
        shr.u32 %index, %i_element, 5;
        ld.param.u64 %g_sum, [sum32];
        ROW_ADDRESS(%g_sum, %g_sum, %i_row, %stride, %index, 2)
        and.b32 %index, %i_lane, 3;
        setp.eq.and.u32 %p_write, %index, 0, %p_in;
        @%p_write st.global.s32 [%g_sum], %sum;
    }

DONE:
    FINISH
}
