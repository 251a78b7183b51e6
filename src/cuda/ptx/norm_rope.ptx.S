// SPDX-License-Identifier: Apache-2.0
// Operators 2 and 7 of docs/contract.md: norms and rotations. The kernels' text is in rmsnorm.inc
// and rope.inc, which also draw who owns what; here are their forms.
//
// N1. n of a norm is 1 .. 32768: three levels of tree32, the second of 32 * 32 sums.
// N2. A block of a norm is any number of whole warps up to 1024 threads; the result does not depend
//     on it. One warp suits a head, 256 to 512 threads a row.
//
// kernel rmsnorm_fused
//   params: power u64, status u64, x u64, weight u64, y u64, n u32, x_stride u32, y_stride u32,
//           eps f32
//   grid: tokens, heads
//   block: 32 .. 1024
//   registers: sm_89 23, sm_90 28, sm_100 28, sm_120 28
//   shared: 4100
//   roof: bytes (4 read from memory and again from cache, 2 written an element); x f32, y f16
//   index map: affine; ctaid.x * y_stride + ctaid.y * n + tid + k * ntid; tail by element < n
//   aligned: elements
//
// kernel rmsnorm_fused_f16
//   params: power u64, status u64, x u64, weight u64, y u64, n u32, x_stride u32, y_stride u32,
//           eps f32
//   grid: tokens, heads
//   block: 32 .. 1024
//   registers: sm_89 23, sm_90 28, sm_100 28, sm_120 28
//   shared: 4100
//   roof: bytes (2 read, 2 written an element); x and y f16, y may be x (heads in place)
//   index map: as rmsnorm_fused
//   aligned: elements
//
// kernel rmsnorm_fused_add
//   params: power u64, status u64, x u64, weight u64, y u64, n u32, x_stride u32, y_stride u32,
//           eps f32
//   grid: tokens, heads
//   block: 32 .. 1024
//   registers: sm_89 23, sm_90 28, sm_100 28, sm_120 28
//   shared: 4100
//   roof: bytes (8 read, 4 written an element); x f32, y the f32 residual that is added to
//   index map: as rmsnorm_fused
//   aligned: elements
//
// kernel rmsnorm_fused_f16_add
//   params: power u64, status u64, x u64, weight u64, y u64, n u32, x_stride u32, y_stride u32,
//           eps f32
//   grid: tokens, heads
//   block: 32 .. 1024
//   registers: sm_89 23, sm_90 28, sm_100 28, sm_120 28
//   shared: 4100
//   roof: bytes (6 read, 4 written an element); x f16, y the f32 residual that is added to
//   index map: as rmsnorm_fused
//   aligned: elements
//
// kernel rope_fused
//   params: power u64, status u64, x u64, positions u64, table u64, x_stride u32, n_head u32,
//           head_dim u32, rope_dim u32
//   grid: tokens, ceil(n_head / 4)
//   block: 128
//   registers: sm_89 18, sm_90 20, sm_100 20, sm_120 20
//   shared: 4
//   roof: bytes (2 read, 2 written an element, the table from cache); pairs (2i, 2i + 1)
//   index map: affine; ctaid.x * x_stride + (4 * ctaid.y + warp) * head_dim + 2 * (lane + 32 k)
//   aligned: elements; table 8 bytes
//
// kernel rope_fused_neox
//   params: power u64, status u64, x u64, positions u64, table u64, x_stride u32, n_head u32,
//           head_dim u32, rope_dim u32
//   grid: tokens, ceil(n_head / 4)
//   block: 128
//   registers: sm_89 20, sm_90 20, sm_100 20, sm_120 22
//   shared: 4
//   roof: bytes (2 read, 2 written an element, the table from cache); pairs (i, i + rope_dim / 2)
//   index map: affine; as rope_fused, with lane + 32 k and lane + 32 k + rope_dim / 2
//   aligned: elements; table 8 bytes
#include "macros.inc"

MODULE_HEADER
SHARED_POWER_WORD

// --- 2. rmsnorm ---

#define THREADS_MAX 1024
#define SUMS_BYTES 4096 // f32 sums of 1024 blocks of 32 elements (N1)

.shared .align 4 .b8 s_sums[SUMS_BYTES];

// x = the f32 at g.
#define LOAD_F32(x, g) ld.global.f32 x, [g];
// x = the f16 at g, widened.
#define LOAD_F16(x, g)                                \
    {                                                 \
        .reg .b16 %h;                                 \
        ld.global.b16 %h, [g];                        \
        cvt.f32.f16 x, %h;                            \
    }
// The f16 at g = y, rounded.
#define STORE_F16(g, y)                               \
    {                                                 \
        .reg .b16 %h;                                 \
        cvt.rn.f16.f32 %h, y;                         \
        st.global.b16 [g], %h;                        \
    }
// The f32 at g = itself + y.
#define ADD_F32(g, y)                                 \
    {                                                 \
        .reg .f32 %old;                               \
        ld.global.f32 %old, [g];                      \
        add.rn.f32 %old, %old, y;                     \
        st.global.f32 [g], %old;                      \
    }

#define KERNEL rmsnorm_fused
#define X_SHIFT 2
#define Y_SHIFT 1
#define LOAD_X(x, g) LOAD_F32(x, g)
#define PUT_Y(g, y) STORE_F16(g, y)
#include "rmsnorm.inc"
#undef KERNEL
#undef Y_SHIFT
#undef PUT_Y

#define KERNEL rmsnorm_fused_add
#define Y_SHIFT 2
#define PUT_Y(g, y) ADD_F32(g, y)
#include "rmsnorm.inc"
#undef KERNEL
#undef X_SHIFT
#undef LOAD_X

#define KERNEL rmsnorm_fused_f16_add
#define X_SHIFT 1
#define LOAD_X(x, g) LOAD_F16(x, g)
#include "rmsnorm.inc"
#undef KERNEL
#undef Y_SHIFT
#undef PUT_Y

#define KERNEL rmsnorm_fused_f16
#define Y_SHIFT 1
#define PUT_Y(g, y) STORE_F16(g, y)
#include "rmsnorm.inc"
#undef KERNEL

// --- 7. rope ---

#define ROPE_THREADS 128
#define ROPE_WARPS 4

// Elements 2i and 2i + 1. In: g_head, i; n_pairs is not used. Out: g_0, g_1.
#define ADJACENT(g_0, g_1, g_head, i, n_pairs)        \
    mul.wide.u32 g_0, i, 4;                           \
    add.u64 g_0, g_0, g_head;                         \
    add.u64 g_1, g_0, 2;
// Elements i and i + n_pairs. In: g_head, i, n_pairs. Out: g_0, g_1.
#define HALVES(g_0, g_1, g_head, i, n_pairs)          \
    mul.wide.u32 g_0, i, 2;                           \
    add.u64 g_0, g_0, g_head;                         \
    mul.wide.u32 g_1, n_pairs, 2;                     \
    add.u64 g_1, g_1, g_0;

#define KERNEL rope_fused
#define PAIR_ADDRESSES(g_0, g_1, g_head, i, n_pairs) ADJACENT(g_0, g_1, g_head, i, n_pairs)
#include "rope.inc"
#undef KERNEL
#undef PAIR_ADDRESSES

#define KERNEL rope_fused_neox
#define PAIR_ADDRESSES(g_0, g_1, g_head, i, n_pairs) HALVES(g_0, g_1, g_head, i, n_pairs)
#include "rope.inc"
#undef KERNEL
#undef PAIR_ADDRESSES
