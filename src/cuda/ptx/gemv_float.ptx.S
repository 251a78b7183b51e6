// SPDX-License-Identifier: Apache-2.0
// Operators 5 and 6 of docs/contract.md: weights of F16, BF16 and F32, one fma chain per group of
// 256.
//
// A block owns 8 weight rows and TOKENS tokens; thread i takes (row i mod 8, group i / 8) and every
// 16th group from there on, all tokens, one chain each, from global memory: a thread reads its 256
// weights one after the other, 16 bytes at a time where the row is aligned to that. Group values go
// to s_values[group of the segment][token][row]; after a barrier one thread per (row, token) adds
// them in ascending order. A segment is 64 groups, then the next.
//
// Whole units of aligned weights for one token come through shared memory: gemv_float_fast.inc.
//
// G1. An element past k is no step of a chain. No result depends on TOKENS or n_tokens.
// G2. The kernels of four tokens take any number of them, four to a block; they read the weights
//     once for each four, which suits decoding and short prompts.
//
// kernel gemv_f16_1
//   params: power u64, status u64, weight u64, x u64, bias u64, out u64, row_bytes u32, k u32,
//           features u32, n_tokens u32, x_stride u32, out_stride u32, output u32
//   grid: ceil(features / 8), ceil(n_tokens / 1)
//   block: 128
//   registers: sm_89 82, sm_90 79, sm_100 80, sm_120 82
//   shared: 34820
//   roof: bytes (2 a weight)
//   index map: affine; token 1 * ctaid.y + tid / 8, feature 8 * ctaid.x + tid mod 8; tails by both
//   aligned: weight 2 bytes; x rows 16 bytes; bias 4 bytes; out elements
//
// kernel gemv_f16_4
//   params: power u64, status u64, weight u64, x u64, bias u64, out u64, row_bytes u32, k u32,
//           features u32, n_tokens u32, x_stride u32, out_stride u32, output u32
//   grid: ceil(features / 8), ceil(n_tokens / 4)
//   block: 128
//   registers: sm_89 48, sm_90 48, sm_100 48, sm_120 48
//   shared: 8196
//   roof: bytes (2 a weight)
//   index map: affine; token 4 * ctaid.y + tid / 8, feature 8 * ctaid.x + tid mod 8; tails by both
//   aligned: weight 2 bytes; x rows 16 bytes; bias 4 bytes; out elements
//
// kernel gemv_bf16_1
//   params: power u64, status u64, weight u64, x u64, bias u64, out u64, row_bytes u32, k u32,
//           features u32, n_tokens u32, x_stride u32, out_stride u32, output u32
//   grid: ceil(features / 8), ceil(n_tokens / 1)
//   block: 128
//   registers: sm_89 82, sm_90 79, sm_100 80, sm_120 82
//   shared: 34820
//   roof: bytes (2 a weight)
//   index map: affine; token 1 * ctaid.y + tid / 8, feature 8 * ctaid.x + tid mod 8; tails by both
//   aligned: weight 2 bytes; x rows 16 bytes; bias 4 bytes; out elements
//
// kernel gemv_bf16_4
//   params: power u64, status u64, weight u64, x u64, bias u64, out u64, row_bytes u32, k u32,
//           features u32, n_tokens u32, x_stride u32, out_stride u32, output u32
//   grid: ceil(features / 8), ceil(n_tokens / 4)
//   block: 128
//   registers: sm_89 48, sm_90 48, sm_100 48, sm_120 48
//   shared: 8196
//   roof: bytes (2 a weight)
//   index map: affine; token 4 * ctaid.y + tid / 8, feature 8 * ctaid.x + tid mod 8; tails by both
//   aligned: weight 2 bytes; x rows 16 bytes; bias 4 bytes; out elements
//
// kernel gemv_f32_1
//   params: power u64, status u64, weight u64, x u64, bias u64, out u64, row_bytes u32, k u32,
//           features u32, n_tokens u32, x_stride u32, out_stride u32, output u32
//   grid: ceil(features / 8), ceil(n_tokens / 1)
//   block: 128
//   registers: sm_89 73, sm_90 80, sm_100 73, sm_120 72
//   shared: 34820
//   roof: bytes (4 a weight)
//   index map: affine; token 1 * ctaid.y + tid / 8, feature 8 * ctaid.x + tid mod 8; tails by both
//   aligned: weight 4 bytes; x rows 16 bytes; bias 4 bytes; out elements
//
// kernel gemv_f32_4
//   params: power u64, status u64, weight u64, x u64, bias u64, out u64, row_bytes u32, k u32,
//           features u32, n_tokens u32, x_stride u32, out_stride u32, output u32
//   grid: ceil(features / 8), ceil(n_tokens / 4)
//   block: 128
//   registers: sm_89 48, sm_90 44, sm_100 44, sm_120 48
//   shared: 8196
//   roof: bytes (4 a weight)
//   index map: affine; token 4 * ctaid.y + tid / 8, feature 8 * ctaid.x + tid mod 8; tails by both
//   aligned: weight 4 bytes; x rows 16 bytes; bias 4 bytes; out elements
#include "macros.inc"
#include "gemm_output.inc"
#include "gemv_float_fast.inc"

MODULE_HEADER
SHARED_POWER_WORD

#define THREADS 128
#define ROWS 8
#define SEGMENT_GROUPS 64

#define TOKENS_1(M) M(0)
#define TOKENS_4(M) M(0) M(1) M(2) M(3)

// The value of group %i_group + n of the segment, and its step of the total.
#define SUM_LOAD(n)                                   \
    {                                                 \
        .reg .u32 %i;                                 \
        add.u32 %i, %i_group, n;                      \
        setp.lt.u32 %p_in##n, %i, %n_end;             \
        @%p_in##n ld.shared.f32 %value##n, [%s_value + n * ROWS * TOKENS * 4]; \
    }
#define SUM_ADD(n) @%p_in##n add.rn.f32 %total, %total, %value##n;

#define ACC_ZERO(t) mov.f32 %acc##t, F32_ZERO;
#define STORE_VALUE(t) st.shared.f32 [%s_value + t * ROWS * 4], %acc##t;

// acc = fma(w, x, acc) for the halves of x.
#define FMA_2(t, x, w_low, w_high)                    \
    {                                                 \
        .reg .b16 %low, %high;                        \
        .reg .f32 %f;                                 \
        mov.b32 {%low, %high}, x;                     \
        cvt.f32.f16 %f, %low;                         \
        fma.rn.f32 %acc##t, w_low, %f, %acc##t;       \
        cvt.f32.f16 %f, %high;                        \
        fma.rn.f32 %acc##t, w_high, %f, %acc##t;      \
    }
// The next eight elements, or one, of token t.
#define FMA_8(t)                                      \
    {                                                 \
        .reg .b32 %x<4>;                              \
        add.u64 %wide, %g_x##t, %g_e;                 \
        ld.global.nc.v4.b32 {%x0, %x1, %x2, %x3}, [%wide]; \
        FMA_2(t, %x0, %w0, %w1)                       \
        FMA_2(t, %x1, %w2, %w3)                       \
        FMA_2(t, %x2, %w4, %w5)                       \
        FMA_2(t, %x3, %w6, %w7)                       \
    }
#define FMA_1(t)                                      \
    {                                                 \
        .reg .b16 %half;                              \
        .reg .f32 %f;                                 \
        add.u64 %wide, %g_x##t, %g_e;                 \
        ld.global.nc.b16 %half, [%wide];              \
        cvt.f32.f16 %f, %half;                        \
        fma.rn.f32 %acc##t, %w0, %f, %acc##t;         \
    }

// --- weights: %w<0..7> or %w0 from %g_w ---

#define LOAD_8_F32                                    \
    ld.global.nc.v4.f32 {%w0, %w1, %w2, %w3}, [%g_w]; \
    ld.global.nc.v4.f32 {%w4, %w5, %w6, %w7}, [%g_w + 16];
#define LOAD_1_F32 ld.global.nc.f32 %w0, [%g_w];

#define WIDEN_F16(low_f, high_f, x)                   \
    {                                                 \
        .reg .b16 %low, %high;                        \
        mov.b32 {%low, %high}, x;                     \
        cvt.f32.f16 low_f, %low;                      \
        cvt.f32.f16 high_f, %high;                    \
    }
#define WIDEN_BF16(low_f, high_f, x)                  \
    {                                                 \
        .reg .b32 %bits;                              \
        shl.b32 %bits, x, 16;                         \
        mov.b32 low_f, %bits;                         \
        and.b32 %bits, x, 0xffff0000;                 \
        mov.b32 high_f, %bits;                        \
    }
#define LOAD_8_HALVES(WIDEN)                          \
    {                                                 \
        .reg .b32 %x<4>;                              \
        ld.global.nc.v4.b32 {%x0, %x1, %x2, %x3}, [%g_w]; \
        WIDEN(%w0, %w1, %x0)                          \
        WIDEN(%w2, %w3, %x1)                          \
        WIDEN(%w4, %w5, %x2)                          \
        WIDEN(%w6, %w7, %x3)                          \
    }
#define LOAD_1_F16                                    \
    {                                                 \
        .reg .b16 %half;                              \
        ld.global.nc.b16 %half, [%g_w];               \
        cvt.f32.f16 %w0, %half;                       \
    }
#define LOAD_1_BF16                                   \
    {                                                 \
        .reg .u32 %bits;                              \
        ld.global.nc.u16 %bits, [%g_w];               \
        shl.b32 %bits, %bits, 16;                     \
        mov.b32 %w0, %bits;                           \
    }

// --- F16 ---

#define W_SHIFT 1
#define W_LOAD_8 LOAD_8_HALVES(WIDEN_F16)
#define W_LOAD_1 LOAD_1_F16
#define KERNEL gemv_f16_1
#define TOKENS 1
#define FOR_TOKENS TOKENS_1
#define VALUES_BYTES 2048 // SEGMENT_GROUPS * TOKENS * ROWS * 4
#define FAST_CHUNK(c) FAST_CHUNK_HALVES(c, WIDEN_F16)
#define RING_BYTES 32768 // 4 warps * RING_STAGES << STAGE_SHIFT
#include "gemv_float.inc"
#undef FAST_CHUNK
#undef RING_BYTES
#undef KERNEL
#undef TOKENS
#undef FOR_TOKENS
#undef VALUES_BYTES
#define KERNEL gemv_f16_4
#define TOKENS 4
#define FOR_TOKENS TOKENS_4
#define VALUES_BYTES 8192 // SEGMENT_GROUPS * TOKENS * ROWS * 4
#include "gemv_float.inc"
#undef KERNEL
#undef TOKENS
#undef FOR_TOKENS
#undef VALUES_BYTES
#undef W_SHIFT
#undef W_LOAD_8
#undef W_LOAD_1

// --- BF16 ---

#define W_SHIFT 1
#define W_LOAD_8 LOAD_8_HALVES(WIDEN_BF16)
#define W_LOAD_1 LOAD_1_BF16
#define KERNEL gemv_bf16_1
#define TOKENS 1
#define FOR_TOKENS TOKENS_1
#define VALUES_BYTES 2048 // SEGMENT_GROUPS * TOKENS * ROWS * 4
#define FAST_CHUNK(c) FAST_CHUNK_HALVES(c, WIDEN_BF16)
#define RING_BYTES 32768 // 4 warps * RING_STAGES << STAGE_SHIFT
#include "gemv_float.inc"
#undef FAST_CHUNK
#undef RING_BYTES
#undef KERNEL
#undef TOKENS
#undef FOR_TOKENS
#undef VALUES_BYTES
#define KERNEL gemv_bf16_4
#define TOKENS 4
#define FOR_TOKENS TOKENS_4
#define VALUES_BYTES 8192 // SEGMENT_GROUPS * TOKENS * ROWS * 4
#include "gemv_float.inc"
#undef KERNEL
#undef TOKENS
#undef FOR_TOKENS
#undef VALUES_BYTES
#undef W_SHIFT
#undef W_LOAD_8
#undef W_LOAD_1

// --- F32 ---

#define W_SHIFT 2
#define W_LOAD_8 LOAD_8_F32
#define W_LOAD_1 LOAD_1_F32
#define KERNEL gemv_f32_1
#define TOKENS 1
#define FOR_TOKENS TOKENS_1
#define VALUES_BYTES 2048 // SEGMENT_GROUPS * TOKENS * ROWS * 4
#define FAST_CHUNK(c) FAST_CHUNK_F32(c)
#define RING_BYTES 32768 // 4 warps * RING_STAGES << STAGE_SHIFT
#include "gemv_float.inc"
#undef FAST_CHUNK
#undef RING_BYTES
#undef KERNEL
#undef TOKENS
#undef FOR_TOKENS
#undef VALUES_BYTES
#define KERNEL gemv_f32_4
#define TOKENS 4
#define FOR_TOKENS TOKENS_4
#define VALUES_BYTES 8192 // SEGMENT_GROUPS * TOKENS * ROWS * 4
#include "gemv_float.inc"
#undef KERNEL
#undef TOKENS
#undef FOR_TOKENS
#undef VALUES_BYTES
#undef W_SHIFT
#undef W_LOAD_8
#undef W_LOAD_1
