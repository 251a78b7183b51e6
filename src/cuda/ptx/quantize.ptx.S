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
//
// kernel quantize_q16_planes
//   params: power u64, status u64, x u64, high u64, low u64, scale u64, sum16 u64, sum32 u64, n
//         u32,
//           x_stride u32, plane_stride u32, scale_stride u32, sum_stride u32
//   grid: rows, ceil(ceil(n / 256) / 4)
//   block: 128
//   registers: sm_89 27, sm_90 25, sm_100 25, sm_120 29
//   shared: 4
//   roof: bytes (2 read, 2.4 written an element); a = 256 * high + low, high i8, low u8: what the
//         integer matrix instructions take
//   index map: as quantize_q16
//   aligned: x rows 16 bytes, high and low rows 8 bytes; scale, sum16, sum32 4 bytes
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

// Row `row`, elements from `element` on, as i16.
#define PUT_A_I16(row, element)                       \
    {                                                 \
        .reg .u64 %g_a;                               \
        .reg .u32 %stride;                            \
        ld.param.u64 %g_a, [a];                       \
        ld.param.u32 %stride, [a_stride];             \
        ROW_ADDRESS(%g_a, %g_a, row, %stride, element, 1) \
        @%p_in st.global.v4.b32 [%g_a], {%a0, %a1, %a2, %a3}; \
    }

// The same as bytes: the upper ones to the plane `high`, the lower ones to `low`.
#define PUT_A_PLANES(row, element)                    \
    {                                                 \
        .reg .u64 %g_high, %g_low;                    \
        .reg .u32 %stride;                            \
        .reg .b32 %high<2>, %low<2>;                  \
        ld.param.u64 %g_high, [high];                 \
        ld.param.u64 %g_low, [low];                   \
        ld.param.u32 %stride, [plane_stride];         \
        ROW_ADDRESS(%g_high, %g_high, row, %stride, element, 0) \
        ROW_ADDRESS(%g_low, %g_low, row, %stride, element, 0) \
        prmt.b32 %high0, %a0, %a1, 0x7531;            \
        prmt.b32 %high1, %a2, %a3, 0x7531;            \
        prmt.b32 %low0, %a0, %a1, 0x6420;             \
        prmt.b32 %low1, %a2, %a3, 0x6420;             \
        @%p_in st.global.v2.b32 [%g_high], {%high0, %high1}; \
        @%p_in st.global.v2.b32 [%g_low], {%low0, %low1}; \
    }

#define KERNEL quantize_q16
#define A_PARAMS .param .u64 a
#define A_STRIDE a_stride
#define PUT_A(row, element) PUT_A_I16(row, element)
#include "quantize.inc"
#undef KERNEL
#undef A_PARAMS
#undef A_STRIDE
#undef PUT_A

#define KERNEL quantize_q16_planes
#define A_PARAMS .param .u64 high, .param .u64 low
#define A_STRIDE plane_stride
#define PUT_A(row, element) PUT_A_PLANES(row, element)
#include "quantize.inc"
