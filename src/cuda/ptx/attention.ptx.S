// SPDX-License-Identifier: Apache-2.0
// Operator 8 of docs/contract.md and kv_write, over the paged cache of section 8.
//
// Attention: a block of 256 threads owns (row, query head) and takes chunks of 256 positions:
//
//   scores     thread i: position 256 c + i, one chain over the dimensions; K by 16-byte loads,
//              q widened in shared memory
//   maximum, l butterflies in a warp and over the 8 warps (tree32: 256 values are two levels)
//   numerators thread i: dimension i (and 256 + i), one chain over the positions; p and the tokens'
//              offsets in shared memory
//   merge      in registers of the thread that owns the dimension; m and l in every thread
//
// A1. An invisible position is not read: its K and V may be anything. Its p is +0 in the tree32 and
//     no step of a chain.
// A2. head_dim is a multiple of 8, up to 512. The first chunk is that of the first visible
//     position.
// A3. flash_attention_paged does all chunks of a row in one block; flash_attention_paged_split one
//     chunk a block, for few rows, and leaves (m, l, o) to flash_attention_merge, which merges them
//     in the same order: the same bits.
//
// Scratch of the split form: f32 [rows][n_head][n_chunks][head_dim + 2], o, then m and l.
//
// kernel kv_append
//   params: power u64, status u64, k u64, v u64, cache_k u64, cache_v u64, tables u64,
//           positions u64, slots u64, page_stride u64, token_stride u64, n u32, k_stride u32,
//           v_stride u32, max_blocks u32
//   grid: rows, ceil(n / 512)
//   block: 256
//   registers: sm_89 18, sm_90 17, sm_100 17, sm_120 18
//   shared: 4
//   roof: bytes (4 read, 4 written an element of k and v)
//   index map: segmented by block table; a block of the cache belongs to one sequence; n even
//   aligned: rows of k and v, strides of the cache 4 bytes
//
// kernel flash_attention_paged
//   params: power u64, status u64, q u64, cache_k u64, cache_v u64, tables u64, positions u64,
//           slots u64, out u64, out_stride u32, page_stride u64, token_stride u64, max_blocks u32,
//           n_head u32, n_head_kv u32, head_dim u32, q_stride u32, scale f32, softcap f32,
//           window u32
//   grid: rows, n_head
//   block: 256
//   registers: sm_89 40, sm_90 37, sm_100 36, sm_120 43
//   shared: 5188
//   roof: operations (f32 chains)
//   index map: affine; ctaid.x * out_stride + ctaid.y * head_dim + tid + 256 i
//   aligned: rows of the cache 16 bytes; q, out elements; softcap 0 is none, window 0 is none
//
// kernel flash_attention_paged_split
//   params: power u64, status u64, q u64, cache_k u64, cache_v u64, tables u64, positions u64,
//           slots u64, scratch u64, page_stride u64, token_stride u64, max_blocks u32, n_head u32,
//           n_head_kv u32, head_dim u32, q_stride u32, scale f32, softcap f32, window u32
//   grid: rows, n_head, chunks of the longest row
//   block: 256
//   registers: sm_89 43, sm_90 36, sm_100 36, sm_120 43
//   shared: 5188
//   roof: bytes of the cache
//   index map: affine, of scratch; blocks of chunks that a row does not have leave scratch alone
//   aligned: as flash_attention_paged
//
// kernel flash_attention_merge
//   params: power u64, status u64, scratch u64, positions u64, out u64, n_chunks u32, head_dim u32,
//           out_stride u32, window u32
//   grid: rows, n_head
//   block: 256
//   registers: sm_89 28, sm_90 27, sm_100 27, sm_120 27
//   shared: 4
//   roof: bytes of scratch
//   index map: affine; as flash_attention_paged
//   aligned: elements
#include "macros.inc"

MODULE_HEADER
SHARED_POWER_WORD

#define THREADS 256
#define WARPS 8
#define CHUNK 256
#define Q_BYTES 2048       // HEAD_DIM_MAX * 4
#define P_BYTES 1024       // CHUNK * 4
#define OFFSETS_BYTES 2048 // CHUNK * 8
#define WARPS_BYTES 64     // 2 * WARPS * 4
#define F32_MINUS_INFINITY 0fFF800000
#define F32_SIGN 0x80000000

// --- kv_write ---

// p_bad joins whether a half of x is not finite.
#define CHECK_F16X2(p_bad, x)                         \
    {                                                 \
        .reg .b32 %low, %high;                        \
        .reg .pred %p_this;                           \
        and.b32 %low, x, F16_MAGNITUDE;               \
        shr.u32 %high, x, 16;                         \
        and.b32 %high, %high, F16_MAGNITUDE;          \
        max.u32 %low, %low, %high;                    \
        setp.ge.u32 %p_this, %low, F16_INFINITY;      \
        or.pred p_bad, p_bad, %p_this;                \
    }

.visible .entry kv_append(
    .param .u64 power,
    .param .u64 status,
    .param .u64 k,
    .param .u64 v,
    .param .u64 cache_k,
    .param .u64 cache_v,
    .param .u64 tables,
    .param .u64 positions,
    .param .u64 slots,
    .param .u64 page_stride,
    .param .u64 token_stride,
    .param .u32 n,
    .param .u32 k_stride,
    .param .u32 v_stride,
    .param .u32 max_blocks
)
.reqntid THREADS, 1, 1
{
    .reg .u64 %g_power, %g_status, %offset;
    .reg .u32 %i_row, %i_element;
    .reg .pred %p_bad;

    // ---- prologue: which pair of elements, and is the engine active ----
    ld.param.u64 %g_power, [power];
    ld.param.u64 %g_status, [status];
    LEAVE_UNLESS_ACTIVE
    {
        .reg .u32 %i_tile, %i_thread, %n;
        .reg .pred %p_in;
        mov.u32 %i_row, %ctaid.x;
        mov.u32 %i_tile, %ctaid.y;
        mov.u32 %i_thread, %tid.x;
        mad.lo.u32 %i_element, %i_tile, THREADS, %i_thread;
        shl.b32 %i_element, %i_element, 1;
        ld.param.u32 %n, [n];
        setp.lt.u32 %p_in, %i_element, %n;
        @!%p_in bra DONE;
        setp.ne.u32 %p_bad, 0, 0;
    }
    {
        .reg .u64 %g, %stride, %wide;
        .reg .u32 %position, %slot, %n, %zero;
        mov.u32 %zero, 0;
        ld.param.u64 %g, [positions];
        ROW_ADDRESS(%g, %g, %zero, %zero, %i_row, 2)
        ld.global.u32 %position, [%g];
        ld.param.u64 %g, [slots];
        ROW_ADDRESS(%g, %g, %zero, %zero, %i_row, 2)
        ld.global.u32 %slot, [%g];
        ld.param.u32 %n, [max_blocks];
        ld.param.u64 %g, [tables];
        shr.u32 %zero, %position, 4;
        ROW_ADDRESS(%g, %g, %slot, %n, %zero, 2)
        ld.global.u32 %n, [%g];
        ld.param.u64 %stride, [page_stride];
        cvt.u64.u32 %wide, %n;
        mul.lo.u64 %offset, %wide, %stride;
        and.b32 %position, %position, 15;
        ld.param.u64 %stride, [token_stride];
        cvt.u64.u32 %wide, %position;
        mad.lo.u64 %offset, %wide, %stride, %offset;
        mul.wide.u32 %wide, %i_element, 2;
        add.u64 %offset, %offset, %wide;
    }

    // ---- main loop: none; epilogue ----
    {
        .reg .u64 %g, %g_cache;
        .reg .u32 %stride;
        .reg .b32 %x;
        ld.param.u64 %g, [k];
        ld.param.u32 %stride, [k_stride];
        ROW_ADDRESS(%g, %g, %i_row, %stride, %i_element, 1)
        ld.global.b32 %x, [%g];
        CHECK_F16X2(%p_bad, %x)
        ld.param.u64 %g_cache, [cache_k];
        add.u64 %g_cache, %g_cache, %offset;
        st.global.b32 [%g_cache], %x;
        ld.param.u64 %g, [v];
        ld.param.u32 %stride, [v_stride];
        ROW_ADDRESS(%g, %g, %i_row, %stride, %i_element, 1)
        ld.global.b32 %x, [%g];
        CHECK_F16X2(%p_bad, %x)
        ld.param.u64 %g_cache, [cache_v];
        add.u64 %g_cache, %g_cache, %offset;
        st.global.b32 [%g_cache], %x;
    }
    FAULT_IF(%p_bad)
DONE:
    FINISH
}

// --- 8. attention ---

// sum = fma(q, k, sum) over the four halves of k0 and k1; q from the shared address s + at.
#define DOT_4(sum, k0, k1, s, at)                     \
    {                                                 \
        .reg .b16 %half<4>;                           \
        .reg .f32 %q<4>, %f;                          \
        ld.shared.v4.f32 {%q0, %q1, %q2, %q3}, [s + at]; \
        mov.b32 {%half0, %half1}, k0;                 \
        mov.b32 {%half2, %half3}, k1;                 \
        cvt.f32.f16 %f, %half0;                       \
        fma.rn.f32 sum, %q0, %f, sum;                 \
        cvt.f32.f16 %f, %half1;                       \
        fma.rn.f32 sum, %q1, %f, sum;                 \
        cvt.f32.f16 %f, %half2;                       \
        fma.rn.f32 sum, %q2, %f, sum;                 \
        cvt.f32.f16 %f, %half3;                       \
        fma.rn.f32 sum, %q3, %f, sum;                 \
    }
// score = cap * tanh(score / cap), as the contract writes it.
#define SOFTCAP(score, cap)                           \
    {                                                 \
        .reg .f32 %z, %e, %one_less, %one_more;       \
        .reg .b32 %sign, %bits;                       \
        div.rn.f32 %z, score, cap;                    \
        abs.f32 %e, %z;                               \
        mul.rn.f32 %e, %e, F32_MINUS_TWO;             \
        EXP_F32(%e, %e)                               \
        sub.rn.f32 %one_less, F32_ONE, %e;            \
        add.rn.f32 %one_more, F32_ONE, %e;            \
        div.rn.f32 %e, %one_less, %one_more;          \
        mov.b32 %sign, %z;                            \
        and.b32 %sign, %sign, F32_SIGN;               \
        mov.b32 %bits, %e;                            \
        or.b32 %bits, %bits, %sign;                   \
        mov.b32 %e, %bits;                            \
        mul.rn.f32 score, cap, %e;                    \
    }
// x = the maximum over the warp, in every lane.
#define MAX_LEVEL(x)                                  \
    {                                                 \
        .reg .f32 %other;                             \
        shfl.sync.bfly.b32 %other, x, 16, 31, WARP_ALL; \
        max.f32 x, x, %other;                         \
        shfl.sync.bfly.b32 %other, x, 8, 31, WARP_ALL; \
        max.f32 x, x, %other;                         \
        shfl.sync.bfly.b32 %other, x, 4, 31, WARP_ALL; \
        max.f32 x, x, %other;                         \
        shfl.sync.bfly.b32 %other, x, 2, 31, WARP_ALL; \
        max.f32 x, x, %other;                         \
        shfl.sync.bfly.b32 %other, x, 1, 31, WARP_ALL; \
        max.f32 x, x, %other;                         \
    }
// Position i of four: p and the value of the thread's dimensions; then its step of the chains.
#define VALUE_LOAD(i)                                 \
    ld.shared.f32 %p##i, [%s + 4 * i];                \
    ld.shared.u64 %wide, [%s_offset + 8 * i];         \
    add.u64 %wide, %wide, %g_dim;                     \
    ld.global.b16 %v##i, [%wide];                     \
    mov.b16 %w##i, 0;                                 \
    @%p_dim1 ld.global.b16 %w##i, [%wide + THREADS * 2];
#define VALUE_ADD(i)                                  \
    {                                                 \
        .reg .f32 %f;                                 \
        cvt.f32.f16 %f, %v##i;                        \
        fma.rn.f32 %o_c0, %p##i, %f, %o_c0;           \
        cvt.f32.f16 %f, %w##i;                        \
        fma.rn.f32 %o_c1, %p##i, %f, %o_c1;           \
    }
// The state (m, l, o) takes the chunk (m_c, l_c, %o_c<i>).
#define MERGE_CHUNK(m_c, l_c)                         \
    {                                                 \
        .reg .f32 %m_new, %a, %b, %f;                 \
        max.f32 %m_new, %m, m_c;                      \
        sub.rn.f32 %a, %m, %m_new;                    \
        EXP_F32(%a, %a)                               \
        sub.rn.f32 %b, m_c, %m_new;                   \
        EXP_F32(%b, %b)                               \
        mov.f32 %m, %m_new;                           \
        mul.rn.f32 %f, l_c, %b;                       \
        fma.rn.f32 %l, %l, %a, %f;                    \
        mul.rn.f32 %f, %o_c0, %b;                     \
        fma.rn.f32 %o0, %o0, %a, %f;                  \
        mul.rn.f32 %f, %o_c1, %b;                     \
        fma.rn.f32 %o1, %o1, %a, %f;                  \
    }
// out = f16(o / l) of the thread's dimensions. In: the parameter out and %out_stride.
#define PUT_ROW                                       \
    {                                                 \
        .reg .u64 %g_out;                             \
        .reg .u32 %n, %stride;                        \
        .reg .b16 %half;                              \
        .reg .f32 %f;                                 \
        mul.lo.u32 %n, %i_head, %head_dim;            \
        add.u32 %n, %n, %i_thread;                    \
        ld.param.u64 %g_out, [out];                   \
        ld.param.u32 %stride, [out_stride];           \
        ROW_ADDRESS(%g_out, %g_out, %i_row, %stride, %n, 1) \
        div.rn.f32 %f, %o0, %l;                       \
        cvt.rn.f16.f32 %half, %f;                     \
        @%p_dim0 st.global.b16 [%g_out], %half;       \
        div.rn.f32 %f, %o1, %l;                       \
        cvt.rn.f16.f32 %half, %f;                     \
        @%p_dim1 st.global.b16 [%g_out + THREADS * 2], %half; \
    }
// g = the scratch of (row, head, chunk).
#define SCRATCH_ADDRESS(g, n_chunks, i_chunk)         \
    {                                                 \
        .reg .u32 %n, %n_heads, %zero;                \
        mov.u32 %n_heads, %nctaid.y;                  \
        mad.lo.u32 %n, %i_row, %n_heads, %i_head;     \
        mad.lo.u32 %n, %n, n_chunks, i_chunk;         \
        add.u32 %n_heads, %head_dim, 2;               \
        mov.u32 %zero, 0;                             \
        ld.param.u64 g, [scratch];                    \
        ROW_ADDRESS(g, g, %n, %n_heads, %zero, 2)     \
    }
#define PUT_SCRATCH                                   \
    {                                                 \
        .reg .u64 %g, %g_dim;                         \
        .reg .u32 %n_chunks, %i_this;                 \
        .reg .pred %p_first;                          \
        mov.u32 %n_chunks, %nctaid.z;                 \
        mov.u32 %i_this, %ctaid.z;                    \
        SCRATCH_ADDRESS(%g, %n_chunks, %i_this)       \
        mul.wide.u32 %g_dim, %i_thread, 4;            \
        add.u64 %g_dim, %g_dim, %g;                   \
        @%p_dim0 st.global.f32 [%g_dim], %o0;         \
        @%p_dim1 st.global.f32 [%g_dim + THREADS * 4], %o1; \
        mul.wide.u32 %g_dim, %head_dim, 4;            \
        add.u64 %g, %g, %g_dim;                       \
        setp.eq.u32 %p_first, %i_thread, 0;           \
        @%p_first st.global.f32 [%g], %m;             \
        @%p_first st.global.f32 [%g + 4], %l;         \
    }
// The split form: this block's chunk alone; it leaves when the row does not have it.
#define ONE_CHUNK                                     \
    {                                                 \
        .reg .u32 %i_this;                            \
        .reg .pred %p_none;                           \
        mov.u32 %i_this, %ctaid.z;                    \
        setp.lt.u32 %p_none, %i_this, %i_chunk;       \
        setp.gt.or.u32 %p_none, %i_this, %i_last_chunk, %p_none; \
        @%p_none bra DONE;                            \
        mov.u32 %i_chunk, %i_this;                    \
        mov.u32 %i_last_chunk, %i_this;               \
    }

#define KERNEL flash_attention_paged
#define OUT_PARAMS .param .u64 out, .param .u32 out_stride
#define CHUNK_RANGE
#define FINISH_ROW PUT_ROW
#include "attention.inc"
#undef KERNEL
#undef OUT_PARAMS
#undef CHUNK_RANGE
#undef FINISH_ROW

#define KERNEL flash_attention_paged_split
#define OUT_PARAMS .param .u64 scratch
#define CHUNK_RANGE ONE_CHUNK
#define FINISH_ROW PUT_SCRATCH
#include "attention.inc"

.visible .entry flash_attention_merge(
    .param .u64 power,
    .param .u64 status,
    .param .u64 scratch,
    .param .u64 positions,
    .param .u64 out,
    .param .u32 n_chunks,
    .param .u32 head_dim,
    .param .u32 out_stride,
    .param .u32 window
)
.reqntid THREADS, 1, 1
{
    .reg .u64 %g_power, %g_status, %g_chunk, %g_dim;
    .reg .u32 %i_thread, %i_row, %i_head, %head_dim, %i_chunk, %i_last_chunk;
    .reg .pred %p_dim0, %p_dim1, %p_more;
    .reg .f32 %m, %l, %o0, %o1, %m_c, %l_c, %o_c0, %o_c1;

    // ---- prologue: which row and head, and is the engine active ----
    ld.param.u64 %g_power, [power];
    ld.param.u64 %g_status, [status];
    LEAVE_UNLESS_ACTIVE
    mov.u32 %i_thread, %tid.x;
    mov.u32 %i_row, %ctaid.x;
    mov.u32 %i_head, %ctaid.y;
    ld.param.u32 %head_dim, [head_dim];
    setp.lt.u32 %p_dim0, %i_thread, %head_dim;
    add.u32 %i_chunk, %i_thread, THREADS;
    setp.lt.u32 %p_dim1, %i_chunk, %head_dim;
    {
        .reg .u64 %g;
        .reg .u32 %position, %window, %zero, %n_chunks;
        .reg .pred %p_window;
        mov.u32 %zero, 0;
        ld.param.u64 %g, [positions];
        ROW_ADDRESS(%g, %g, %zero, %zero, %i_row, 2)
        ld.global.u32 %position, [%g];
        shr.u32 %i_last_chunk, %position, 8;
        ld.param.u32 %window, [window];
        setp.ne.u32 %p_window, %window, 0;
        setp.ge.and.u32 %p_window, %position, %window, %p_window;
        sub.u32 %i_chunk, %position, %window;
        add.u32 %i_chunk, %i_chunk, 1;
        selp.u32 %i_chunk, %i_chunk, 0, %p_window;
        shr.u32 %i_chunk, %i_chunk, 8;
        ld.param.u32 %n_chunks, [n_chunks];
        SCRATCH_ADDRESS(%g_chunk, %n_chunks, %i_chunk)
    }

    // ---- main loop: chunks, ascending ----
    mov.f32 %o0, F32_ZERO;
    mov.f32 %o1, F32_ZERO;
    mov.f32 %o_c0, F32_ZERO;
    mov.f32 %o_c1, F32_ZERO;
#define LOAD_CHUNK(m, l, o0, o1)                      \
    {                                                 \
        .reg .u64 %g;                                 \
        mul.wide.u32 %g_dim, %i_thread, 4;            \
        add.u64 %g_dim, %g_dim, %g_chunk;             \
        @%p_dim0 ld.global.f32 o0, [%g_dim];          \
        @%p_dim1 ld.global.f32 o1, [%g_dim + THREADS * 4]; \
        mul.wide.u32 %g, %head_dim, 4;                \
        add.u64 %g, %g, %g_chunk;                     \
        ld.global.f32 m, [%g];                        \
        ld.global.f32 l, [%g + 4];                    \
        add.u64 %g_chunk, %g, 8;                      \
    }
    LOAD_CHUNK(%m, %l, %o0, %o1)
MERGES:
    setp.lt.u32 %p_more, %i_chunk, %i_last_chunk;
    @!%p_more bra MERGES_DONE;
    LOAD_CHUNK(%m_c, %l_c, %o_c0, %o_c1)
    MERGE_CHUNK(%m_c, %l_c)
    add.u32 %i_chunk, %i_chunk, 1;
    bra MERGES;
MERGES_DONE:

    // ---- epilogue ----
    PUT_ROW
    FINISH
}
