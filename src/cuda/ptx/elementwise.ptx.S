// SPDX-License-Identifier: Apache-2.0
// Operators 9 and 10 of docs/contract.md and the check of logits: one thread per element or pair of
// elements, a row in ctaid.x, a stretch of the row in ctaid.y.
//
//   ctaid.y           0                   1
//   silu, gelu   |t0 t1 .. t255      |t0 ..         2 elements (one 4-byte word) a thread
//   add, finite  |t0 .. t255|t0 .. t255|t0 ..       4 elements a thread, 256 apart
//
// Index map of all: affine; tail by one predicate element < n. No shared memory but the power word,
// so the barriers are those of entry and exit.
//
// kernel silu_fused
//   params: power u64, status u64, gate u64, up u64, out u64, n u32, gate_stride u32,
//           up_stride u32, out_stride u32
//   grid: rows, ceil(n / 512)
//   block: 256
//   registers: sm_89 22, sm_90 20, sm_100 20, sm_120 22
//   shared: 4
//   roof: bytes (4 read, 2 written an element); out may be gate or up
//   aligned: rows of gate, up and out 4 bytes
//
// kernel gelu_tanh_fused
//   params: power u64, status u64, gate u64, up u64, out u64, n u32, gate_stride u32,
//           up_stride u32, out_stride u32
//   grid: rows, ceil(n / 512)
//   block: 256
//   registers: sm_89 22, sm_90 20, sm_100 20, sm_120 22
//   shared: 4
//   roof: bytes (4 read, 2 written an element); out may be gate or up
//   aligned: rows of gate, up and out 4 bytes
//
// kernel add
//   params: power u64, status u64, residual u64, x u64, n u32, residual_stride u32, x_stride u32
//   grid: rows, ceil(n / 1024)
//   block: 256
//   registers: sm_89 14, sm_90 14, sm_100 14, sm_120 14
//   shared: 4
//   roof: bytes (8 read, 4 written an element)
//   aligned: elements
//
// kernel finite
//   params: power u64, status u64, x u64, n u32, x_stride u32
//   grid: rows, ceil(n / 1024)
//   block: 256
//   registers: sm_89 10, sm_90 12, sm_100 14, sm_120 14
//   shared: 4
//   roof: bytes (4 read an element)
//   aligned: elements
#include "macros.inc"

MODULE_HEADER
SHARED_POWER_WORD

#define THREADS 256
#define PAIR_ELEMENTS 512 // of a block of silu and gelu
#define QUAD_ELEMENTS 1024 // of a block of add and finite

// --- 9. act_mul ---

// g = g * (1 / (1 + exp(-g))). In and out: g, f32.
#define SILU(g)                                       \
    {                                                 \
        .reg .f32 %e;                                 \
        neg.f32 %e, g;                                \
        EXP_F32(%e, %e)                               \
        add.rn.f32 %e, %e, F32_ONE;                   \
        div.rn.f32 %e, F32_ONE, %e;                   \
        mul.rn.f32 g, g, %e;                          \
    }

// g = g * (1 / (1 + exp(-z))), z = g * fma(C3, g * g, C1). In and out: g, f32.
#define GELU_TANH(g)                                  \
    {                                                 \
        .reg .f32 %e;                                 \
        mul.rn.f32 %e, g, g;                          \
        fma.rn.f32 %e, GELU_C3, %e, GELU_C1;          \
        mul.rn.f32 %e, g, %e;                         \
        neg.f32 %e, %e;                               \
        EXP_F32(%e, %e)                               \
        add.rn.f32 %e, %e, F32_ONE;                   \
        div.rn.f32 %e, F32_ONE, %e;                   \
        mul.rn.f32 g, g, %e;                          \
    }

// h_out = f16(ACTIVATION(h_gate) * h_up). In: .b16 h_gate, h_up; out: .b16 h_out, may be h_gate.
#define ACT_MUL_F16(h_out, h_gate, h_up)              \
    {                                                 \
        .reg .f32 %g, %u;                             \
        cvt.f32.f16 %g, h_gate;                       \
        cvt.f32.f16 %u, h_up;                         \
        ACTIVATION(%g)                                \
        mul.rn.f32 %g, %g, %u;                        \
        cvt.rn.f16.f32 h_out, %g;                     \
    }

#define KERNEL silu_fused
#define ACTIVATION(g) SILU(g)
#include "act_mul.inc"
#undef KERNEL
#undef ACTIVATION

#define KERNEL gelu_tanh_fused
#define ACTIVATION(g) GELU_TANH(g)
#include "act_mul.inc"
#undef KERNEL
#undef ACTIVATION

// --- 10. add ---

// Element i = element + k * THREADS of the row, where i < n (%p_in<k>): load; add and store.
// All loads of a thread stand before its stores, so that they are in flight together. In:
// %g_residual and %g_x at `element`, %i_element, %n; out: %p_in<k>, %residual<k>, %x<k>.
#define ADD_LOAD(k)                                   \
    {                                                 \
        .reg .u32 %i;                                 \
        add.u32 %i, %i_element, k * THREADS;          \
        setp.lt.u32 %p_in##k, %i, %n;                 \
        @%p_in##k ld.global.f32 %residual##k, [%g_residual + k * THREADS * 4]; \
        @%p_in##k ld.global.f32 %x##k, [%g_x + k * THREADS * 4]; \
    }
#define ADD_STORE(k)                                  \
    @%p_in##k add.rn.f32 %residual##k, %residual##k, %x##k; \
    @%p_in##k st.global.f32 [%g_residual + k * THREADS * 4], %residual##k;

.visible .entry add(
    .param .u64 power,
    .param .u64 status,
    .param .u64 residual,
    .param .u64 x,
    .param .u32 n,
    .param .u32 residual_stride,
    .param .u32 x_stride
)
.reqntid THREADS, 1, 1
{
    .reg .u64 %g_power, %g_status, %g_residual, %g_x;
    .reg .u32 %i_row, %i_element, %n;

    // ---- prologue ----
    ld.param.u64 %g_power, [power];
    ld.param.u64 %g_status, [status];
    ld.param.u32 %n, [n];
    LEAVE_UNLESS_ACTIVE
    {
        .reg .u32 %i_tile, %i_thread, %stride;
        mov.u32 %i_row, %ctaid.x;
        mov.u32 %i_tile, %ctaid.y;
        mov.u32 %i_thread, %tid.x;
        mad.lo.u32 %i_element, %i_tile, QUAD_ELEMENTS, %i_thread;
        ld.param.u64 %g_residual, [residual];
        ld.param.u32 %stride, [residual_stride];
        ROW_ADDRESS(%g_residual, %g_residual, %i_row, %stride, %i_element, 2)
        ld.param.u64 %g_x, [x];
        ld.param.u32 %stride, [x_stride];
        ROW_ADDRESS(%g_x, %g_x, %i_row, %stride, %i_element, 2)
    }

    // ---- main loop, unrolled ----
    .reg .pred %p_in<4>;
    .reg .f32 %residual<4>, %x<4>;
    ADD_LOAD(0)
    ADD_LOAD(1)
    ADD_LOAD(2)
    ADD_LOAD(3)
    ADD_STORE(0)
    ADD_STORE(1)
    ADD_STORE(2)
    ADD_STORE(3)

    // ---- epilogue ----
    FINISH
}

// --- finite ---

// %p_bad joins whether x[i] is NaN or infinite, i = element + k * THREADS < n.
#define CHECK_ONE(k)                                  \
    {                                                 \
        .reg .u32 %i;                                 \
        .reg .pred %p_in, %p_this;                    \
        .reg .b32 %x;                                 \
        add.u32 %i, %i_element, k * THREADS;          \
        setp.lt.u32 %p_in, %i, %n;                    \
        mov.b32 %x, 0;                                \
        @%p_in ld.global.b32 %x, [%g_x + k * THREADS * 4]; \
        SETP_NOT_FINITE_F32(%p_this, %x)              \
        or.pred %p_bad, %p_bad, %p_this;              \
    }

.visible .entry finite(
    .param .u64 power,
    .param .u64 status,
    .param .u64 x,
    .param .u32 n,
    .param .u32 x_stride
)
.reqntid THREADS, 1, 1
{
    .reg .u64 %g_power, %g_status, %g_x;
    .reg .u32 %i_row, %i_element, %n;
    .reg .pred %p_bad;

    // ---- prologue ----
    ld.param.u64 %g_power, [power];
    ld.param.u64 %g_status, [status];
    ld.param.u32 %n, [n];
    LEAVE_UNLESS_ACTIVE
    {
        .reg .u32 %i_tile, %i_thread, %stride;
        mov.u32 %i_row, %ctaid.x;
        mov.u32 %i_tile, %ctaid.y;
        mov.u32 %i_thread, %tid.x;
        mad.lo.u32 %i_element, %i_tile, QUAD_ELEMENTS, %i_thread;
        ld.param.u64 %g_x, [x];
        ld.param.u32 %stride, [x_stride];
        ROW_ADDRESS(%g_x, %g_x, %i_row, %stride, %i_element, 2)
        setp.ne.u32 %p_bad, 0, 0;
    }

    // ---- main loop, unrolled ----
    CHECK_ONE(0)
    CHECK_ONE(1)
    CHECK_ONE(2)
    CHECK_ONE(3)

    // ---- epilogue ----
    FAULT_IF(%p_bad)
    FINISH
}
