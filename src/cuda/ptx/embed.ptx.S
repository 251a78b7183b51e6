// SPDX-License-Identifier: Apache-2.0
// Operator 1 of docs/contract.md: the rows of the tokens, dequantised, become the residual stream.
// One kernel per weight type; their common text is in embed.inc, and src/ops/dtype.c draws the
// blocks. Table rows may begin at any even address (F32 at a multiple of 4): block bytes are read
// one by one, scales as 16 bits. Tokens are below the vocabulary (the host's check).
//
// Products and sums round separately; a model's scale multiplies last.
//
// kernel embed_f32
//   params: power u64, status u64, tokens u64, table u64, residual u64, row_bytes u64, n u32,
//           residual_stride u32, scale f32
//   grid: tokens, ceil(n / 256)
//   block: 256
//   registers: sm_89 12, sm_90 12, sm_100 12, sm_120 12
//   shared: 4
//   roof: bytes (4 written an element)
//   index map: affine; ctaid.x * residual_stride + 256 * ctaid.y + tid; tail by element < n
//   aligned: table 4 bytes; tokens and residual 4 bytes
//
// kernel embed_f16
//   params: power u64, status u64, tokens u64, table u64, residual u64, row_bytes u64, n u32,
//           residual_stride u32, scale f32
//   grid: tokens, ceil(n / 256)
//   block: 256
//   registers: sm_89 12, sm_90 12, sm_100 12, sm_120 12
//   shared: 4
//   roof: bytes (4 written an element)
//   index map: affine; ctaid.x * residual_stride + 256 * ctaid.y + tid; tail by element < n
//   aligned: table 2 bytes; tokens and residual 4 bytes
//
// kernel embed_bf16
//   params: power u64, status u64, tokens u64, table u64, residual u64, row_bytes u64, n u32,
//           residual_stride u32, scale f32
//   grid: tokens, ceil(n / 256)
//   block: 256
//   registers: sm_89 12, sm_90 12, sm_100 12, sm_120 12
//   shared: 4
//   roof: bytes (4 written an element)
//   index map: affine; ctaid.x * residual_stride + 256 * ctaid.y + tid; tail by element < n
//   aligned: table 2 bytes; tokens and residual 4 bytes
//
// kernel embed_q4_0
//   params: power u64, status u64, tokens u64, table u64, residual u64, row_bytes u64, n u32,
//           residual_stride u32, scale f32
//   grid: tokens, ceil(n / 256)
//   block: 256
//   registers: sm_89 14, sm_90 14, sm_100 14, sm_120 14
//   shared: 4
//   roof: bytes (4 written an element)
//   index map: affine; ctaid.x * residual_stride + 256 * ctaid.y + tid; tail by element < n
//   aligned: table 2 bytes; tokens and residual 4 bytes
//
// kernel embed_q4_1
//   params: power u64, status u64, tokens u64, table u64, residual u64, row_bytes u64, n u32,
//           residual_stride u32, scale f32
//   grid: tokens, ceil(n / 256)
//   block: 256
//   registers: sm_89 16, sm_90 14, sm_100 14, sm_120 16
//   shared: 4
//   roof: bytes (4 written an element)
//   index map: affine; ctaid.x * residual_stride + 256 * ctaid.y + tid; tail by element < n
//   aligned: table 2 bytes; tokens and residual 4 bytes
//
// kernel embed_q5_0
//   params: power u64, status u64, tokens u64, table u64, residual u64, row_bytes u64, n u32,
//           residual_stride u32, scale f32
//   grid: tokens, ceil(n / 256)
//   block: 256
//   registers: sm_89 18, sm_90 16, sm_100 16, sm_120 16
//   shared: 4
//   roof: bytes (4 written an element)
//   index map: affine; ctaid.x * residual_stride + 256 * ctaid.y + tid; tail by element < n
//   aligned: table 2 bytes; tokens and residual 4 bytes
//
// kernel embed_q5_1
//   params: power u64, status u64, tokens u64, table u64, residual u64, row_bytes u64, n u32,
//           residual_stride u32, scale f32
//   grid: tokens, ceil(n / 256)
//   block: 256
//   registers: sm_89 18, sm_90 16, sm_100 16, sm_120 16
//   shared: 4
//   roof: bytes (4 written an element)
//   index map: affine; ctaid.x * residual_stride + 256 * ctaid.y + tid; tail by element < n
//   aligned: table 2 bytes; tokens and residual 4 bytes
//
// kernel embed_q8_0
//   params: power u64, status u64, tokens u64, table u64, residual u64, row_bytes u64, n u32,
//           residual_stride u32, scale f32
//   grid: tokens, ceil(n / 256)
//   block: 256
//   registers: sm_89 14, sm_90 14, sm_100 14, sm_120 14
//   shared: 4
//   roof: bytes (4 written an element)
//   index map: affine; ctaid.x * residual_stride + 256 * ctaid.y + tid; tail by element < n
//   aligned: table 2 bytes; tokens and residual 4 bytes
//
// kernel embed_q2_k
//   params: power u64, status u64, tokens u64, table u64, residual u64, row_bytes u64, n u32,
//           residual_stride u32, scale f32
//   grid: tokens, ceil(n / 256)
//   block: 256
//   registers: sm_89 17, sm_90 16, sm_100 16, sm_120 16
//   shared: 4
//   roof: bytes (4 written an element)
//   index map: affine; ctaid.x * residual_stride + 256 * ctaid.y + tid; tail by element < n
//   aligned: table 2 bytes; tokens and residual 4 bytes
//
// kernel embed_q3_k
//   params: power u64, status u64, tokens u64, table u64, residual u64, row_bytes u64, n u32,
//           residual_stride u32, scale f32
//   grid: tokens, ceil(n / 256)
//   block: 256
//   registers: sm_89 20, sm_90 20, sm_100 20, sm_120 20
//   shared: 4
//   roof: bytes (4 written an element)
//   index map: affine; ctaid.x * residual_stride + 256 * ctaid.y + tid; tail by element < n
//   aligned: table 2 bytes; tokens and residual 4 bytes
//
// kernel embed_q4_k
//   params: power u64, status u64, tokens u64, table u64, residual u64, row_bytes u64, n u32,
//           residual_stride u32, scale f32
//   grid: tokens, ceil(n / 256)
//   block: 256
//   registers: sm_89 20, sm_90 20, sm_100 20, sm_120 20
//   shared: 4
//   roof: bytes (4 written an element)
//   index map: affine; ctaid.x * residual_stride + 256 * ctaid.y + tid; tail by element < n
//   aligned: table 2 bytes; tokens and residual 4 bytes
//
// kernel embed_q5_k
//   params: power u64, status u64, tokens u64, table u64, residual u64, row_bytes u64, n u32,
//           residual_stride u32, scale f32
//   grid: tokens, ceil(n / 256)
//   block: 256
//   registers: sm_89 22, sm_90 22, sm_100 21, sm_120 22
//   shared: 4
//   roof: bytes (4 written an element)
//   index map: affine; ctaid.x * residual_stride + 256 * ctaid.y + tid; tail by element < n
//   aligned: table 2 bytes; tokens and residual 4 bytes
//
// kernel embed_q6_k
//   params: power u64, status u64, tokens u64, table u64, residual u64, row_bytes u64, n u32,
//           residual_stride u32, scale f32
//   grid: tokens, ceil(n / 256)
//   block: 256
//   registers: sm_89 18, sm_90 18, sm_100 18, sm_120 16
//   shared: 4
//   roof: bytes (4 written an element)
//   index map: affine; ctaid.x * residual_stride + 256 * ctaid.y + tid; tail by element < n
//   aligned: table 2 bytes; tokens and residual 4 bytes
#include "macros.inc"

MODULE_HEADER
SHARED_POWER_WORD

#define THREADS 256

// --- loads from a block ---

// d = the byte at g_block + at + i, at a constant. In: g_block (64), i (32). Out: d, 0 .. 255.
#define LOAD_BYTE(d, g_block, at, i)                  \
    {                                                 \
        .reg .u64 %g;                                 \
        cvt.u64.u32 %g, i;                            \
        add.u64 %g, %g, g_block;                      \
        ld.global.u8 d, [%g + at];                    \
    }
// f = the f16 at g_block + at, widened.
#define LOAD_SCALE(f, g_block, at)                    \
    {                                                 \
        .reg .b16 %h;                                 \
        ld.global.b16 %h, [g_block + at];             \
        cvt.f32.f16 f, %h;                            \
    }
// q = nibble e of a block of 32, whose 16 bytes begin at g_block + at: byte e mod 16, the high
// nibble for e >= 16.
#define LOAD_NIBBLE_32(q, g_block, at, e)             \
    {                                                 \
        .reg .u32 %i, %shift;                         \
        and.b32 %i, e, 15;                            \
        LOAD_BYTE(q, g_block, at, %i)                 \
        and.b32 %shift, e, 16;                        \
        shr.u32 %shift, %shift, 2;                    \
        shr.u32 q, q, %shift;                         \
        and.b32 q, q, 15;                             \
    }
// q = nibble e of a block of 256: 32 bytes hold 64 elements, low nibbles first.
#define LOAD_NIBBLE_256(q, g_block, at, e)            \
    {                                                 \
        .reg .u32 %i, %part, %shift;                  \
        and.b32 %i, e, 31;                            \
        shr.u32 %part, e, 6;                          \
        mad.lo.u32 %i, %part, 32, %i;                 \
        LOAD_BYTE(q, g_block, at, %i)                 \
        and.b32 %shift, e, 32;                        \
        shr.u32 %shift, %shift, 3;                    \
        shr.u32 q, q, %shift;                         \
        and.b32 q, q, 15;                             \
    }
// q = the two bits of e in a block of 256: 32 bytes hold 128 elements, element 32 i + l at bits 2i
// of byte l.
#define LOAD_2_BITS(q, g_block, at, e)                \
    {                                                 \
        .reg .u32 %i, %half, %shift;                  \
        and.b32 %i, e, 31;                            \
        shr.u32 %half, e, 7;                          \
        mad.lo.u32 %i, %half, 32, %i;                 \
        LOAD_BYTE(q, g_block, at, %i)                 \
        bfe.u32 %shift, e, 5, 2;                      \
        shl.b32 %shift, %shift, 1;                    \
        shr.u32 q, q, %shift;                         \
        and.b32 q, q, 3;                              \
    }
// q = q + (bit << to), the bit of e in a block of 256: bit e / 32 of byte e mod 32.
#define ADD_BIT_256(q, g_block, at, e, to)            \
    {                                                 \
        .reg .u32 %i, %bit;                           \
        and.b32 %i, e, 31;                            \
        LOAD_BYTE(%bit, g_block, at, %i)              \
        shr.u32 %i, e, 5;                             \
        shr.u32 %bit, %bit, %i;                       \
        and.b32 %bit, %bit, 1;                        \
        mad.lo.u32 q, %bit, 1 << to, q;               \
    }
// q = q + (bit << 4), the fifth bit of e in a block of 32: bit e of the word at g_block + at.
#define ADD_BIT_32(q, g_block, at, e)                 \
    {                                                 \
        .reg .u32 %i, %bit;                           \
        shr.u32 %i, e, 3;                             \
        LOAD_BYTE(%bit, g_block, at, %i)              \
        and.b32 %i, e, 7;                             \
        shr.u32 %bit, %bit, %i;                       \
        and.b32 %bit, %bit, 1;                        \
        mad.lo.u32 q, %bit, 16, q;                    \
    }
// The 6-bit scale and minimum of e of Q4_K and Q5_K, whose 12 bytes begin at g_block + 4. Bytes
// a, b, c stand at j, 4 + j and 8 + j, j = (e / 32) mod 4.
#define LOAD_SCALE_MIN_K4(scale, min, g_block, e)     \
    {                                                 \
        .reg .u32 %j, %a, %b, %c, %low, %high;        \
        .reg .pred %p_low;                            \
        bfe.u32 %j, e, 5, 2;                          \
        LOAD_BYTE(%a, g_block, 4, %j)                 \
        LOAD_BYTE(%b, g_block, 8, %j)                 \
        LOAD_BYTE(%c, g_block, 12, %j)                \
        setp.lt.u32 %p_low, e, 128;                   \
        and.b32 %low, %a, 63;                         \
        shr.u32 %a, %a, 6;                            \
        shl.b32 %a, %a, 4;                            \
        and.b32 %high, %c, 15;                        \
        or.b32 %high, %high, %a;                      \
        selp.u32 scale, %low, %high, %p_low;          \
        and.b32 %low, %b, 63;                         \
        shr.u32 %b, %b, 6;                            \
        shl.b32 %b, %b, 4;                            \
        shr.u32 %high, %c, 4;                         \
        or.b32 %high, %high, %b;                      \
        selp.u32 min, %low, %high, %p_low;            \
    }

// --- values of a block, from its integers ---

// value = (q - zero) * d. In: q, zero (constant), d at g_block + at.
#define VALUE_D(value, q, zero, g_block, at)          \
    {                                                 \
        .reg .f32 %d;                                 \
        LOAD_SCALE(%d, g_block, at)                   \
        sub.s32 q, q, zero;                           \
        cvt.rn.f32.s32 value, q;                      \
        mul.rn.f32 value, value, %d;                  \
    }
// value = q * d + m, d and m at g_block and g_block + 2.
#define VALUE_D_M(value, q, g_block)                  \
    {                                                 \
        .reg .f32 %d, %m;                             \
        LOAD_SCALE(%d, g_block, 0)                    \
        LOAD_SCALE(%m, g_block, 2)                    \
        cvt.rn.f32.s32 value, q;                      \
        mul.rn.f32 value, value, %d;                  \
        add.rn.f32 value, value, %m;                  \
    }
// value = (d * scale) * q, d at g_block + at. In: q, scale (signed).
#define VALUE_D_SCALE(value, q, scale, g_block, at)   \
    {                                                 \
        .reg .f32 %d, %f;                             \
        LOAD_SCALE(%d, g_block, at)                   \
        cvt.rn.f32.s32 %f, scale;                     \
        mul.rn.f32 %d, %d, %f;                        \
        cvt.rn.f32.s32 %f, q;                         \
        mul.rn.f32 value, %d, %f;                     \
    }
// value = ((d * scale) * q) - (dmin * min), d and dmin at g_block + at and at + 2.
#define VALUE_D_SCALE_MIN(value, q, scale, min, g_block, at) \
    {                                                 \
        .reg .f32 %dmin, %f;                          \
        VALUE_D_SCALE(value, q, scale, g_block, at)   \
        LOAD_SCALE(%dmin, g_block, at + 2)            \
        cvt.rn.f32.s32 %f, min;                       \
        mul.rn.f32 %dmin, %dmin, %f;                  \
        sub.rn.f32 value, value, %dmin;               \
    }

// --- the kernels ---

#define KERNEL embed_f32
#define BLOCK_SHIFT 0
#define BLOCK_BYTES 4
#define DECODE(value, g_block, e)                     \
    ld.global.f32 value, [g_block];
#include "embed.inc"
#undef KERNEL
#undef BLOCK_SHIFT
#undef BLOCK_BYTES
#undef DECODE

#define KERNEL embed_f16
#define BLOCK_SHIFT 0
#define BLOCK_BYTES 2
#define DECODE(value, g_block, e)                     \
    LOAD_SCALE(value, g_block, 0)
#include "embed.inc"
#undef KERNEL
#undef BLOCK_SHIFT
#undef BLOCK_BYTES
#undef DECODE

#define KERNEL embed_bf16
#define BLOCK_SHIFT 0
#define BLOCK_BYTES 2
#define DECODE(value, g_block, e)                     \
    {                                                 \
        .reg .u32 %bits;                              \
        ld.global.u16 %bits, [g_block];               \
        shl.b32 %bits, %bits, 16;                     \
        mov.b32 value, %bits;                         \
    }
#include "embed.inc"
#undef KERNEL
#undef BLOCK_SHIFT
#undef BLOCK_BYTES
#undef DECODE

#define KERNEL embed_q4_0
#define BLOCK_SHIFT 5
#define BLOCK_BYTES 18
#define DECODE(value, g_block, e)                     \
    {                                                 \
        .reg .s32 %q;                                 \
        LOAD_NIBBLE_32(%q, g_block, 2, e)             \
        VALUE_D(value, %q, 8, g_block, 0)             \
    }
#include "embed.inc"
#undef KERNEL
#undef BLOCK_SHIFT
#undef BLOCK_BYTES
#undef DECODE

#define KERNEL embed_q4_1
#define BLOCK_SHIFT 5
#define BLOCK_BYTES 20
#define DECODE(value, g_block, e)                     \
    {                                                 \
        .reg .s32 %q;                                 \
        LOAD_NIBBLE_32(%q, g_block, 4, e)             \
        VALUE_D_M(value, %q, g_block)                 \
    }
#include "embed.inc"
#undef KERNEL
#undef BLOCK_SHIFT
#undef BLOCK_BYTES
#undef DECODE

#define KERNEL embed_q5_0
#define BLOCK_SHIFT 5
#define BLOCK_BYTES 22
#define DECODE(value, g_block, e)                     \
    {                                                 \
        .reg .s32 %q;                                 \
        LOAD_NIBBLE_32(%q, g_block, 6, e)             \
        ADD_BIT_32(%q, g_block, 2, e)                 \
        VALUE_D(value, %q, 16, g_block, 0)            \
    }
#include "embed.inc"
#undef KERNEL
#undef BLOCK_SHIFT
#undef BLOCK_BYTES
#undef DECODE

#define KERNEL embed_q5_1
#define BLOCK_SHIFT 5
#define BLOCK_BYTES 24
#define DECODE(value, g_block, e)                     \
    {                                                 \
        .reg .s32 %q;                                 \
        LOAD_NIBBLE_32(%q, g_block, 8, e)             \
        ADD_BIT_32(%q, g_block, 4, e)                 \
        VALUE_D_M(value, %q, g_block)                 \
    }
#include "embed.inc"
#undef KERNEL
#undef BLOCK_SHIFT
#undef BLOCK_BYTES
#undef DECODE

#define KERNEL embed_q8_0
#define BLOCK_SHIFT 5
#define BLOCK_BYTES 34
#define DECODE(value, g_block, e)                     \
    {                                                 \
        .reg .u64 %g;                                 \
        .reg .s32 %q;                                 \
        cvt.u64.u32 %g, e;                            \
        add.u64 %g, %g, g_block;                      \
        ld.global.s8 %q, [%g + 2];                    \
        VALUE_D(value, %q, 0, g_block, 0)             \
    }
#include "embed.inc"
#undef KERNEL
#undef BLOCK_SHIFT
#undef BLOCK_BYTES
#undef DECODE

#define KERNEL embed_q2_k
#define BLOCK_SHIFT 8
#define BLOCK_BYTES 84
#define DECODE(value, g_block, e)                     \
    {                                                 \
        .reg .s32 %q, %scale, %min;                   \
        shr.u32 %min, e, 4;                           \
        LOAD_BYTE(%min, g_block, 0, %min)             \
        and.b32 %scale, %min, 15;                     \
        shr.u32 %min, %min, 4;                        \
        LOAD_2_BITS(%q, g_block, 16, e)               \
        VALUE_D_SCALE_MIN(value, %q, %scale, %min, g_block, 80)\
    }
#include "embed.inc"
#undef KERNEL
#undef BLOCK_SHIFT
#undef BLOCK_BYTES
#undef DECODE

// Scale j of 16: low nibbles in bytes 96 + j mod 8, high two bits at bits 2 (j / 4) of byte
// 104 + j mod 4.
#define KERNEL embed_q3_k
#define BLOCK_SHIFT 8
#define BLOCK_BYTES 110
#define DECODE(value, g_block, e)                     \
    {                                                 \
        .reg .s32 %q, %scale, %i, %j, %shift;         \
        shr.u32 %j, e, 4;                             \
        and.b32 %i, %j, 7;                            \
        LOAD_BYTE(%scale, g_block, 96, %i)            \
        shr.u32 %shift, %j, 3;                        \
        shl.b32 %shift, %shift, 2;                    \
        shr.u32 %scale, %scale, %shift;               \
        and.b32 %scale, %scale, 15;                   \
        and.b32 %i, %j, 3;                            \
        LOAD_BYTE(%q, g_block, 104, %i)               \
        shr.u32 %shift, %j, 2;                        \
        shl.b32 %shift, %shift, 1;                    \
        shr.u32 %q, %q, %shift;                       \
        and.b32 %q, %q, 3;                            \
        mad.lo.s32 %scale, %q, 16, %scale;            \
        sub.s32 %scale, %scale, 32;                   \
        LOAD_2_BITS(%q, g_block, 32, e)               \
        ADD_BIT_256(%q, g_block, 0, e, 2)             \
        sub.s32 %q, %q, 4;                            \
        VALUE_D_SCALE(value, %q, %scale, g_block, 108)\
    }
#include "embed.inc"
#undef KERNEL
#undef BLOCK_SHIFT
#undef BLOCK_BYTES
#undef DECODE

#define KERNEL embed_q4_k
#define BLOCK_SHIFT 8
#define BLOCK_BYTES 144
#define DECODE(value, g_block, e)                     \
    {                                                 \
        .reg .s32 %q, %scale, %min;                   \
        LOAD_SCALE_MIN_K4(%scale, %min, g_block, e)   \
        LOAD_NIBBLE_256(%q, g_block, 16, e)           \
        VALUE_D_SCALE_MIN(value, %q, %scale, %min, g_block, 0)\
    }
#include "embed.inc"
#undef KERNEL
#undef BLOCK_SHIFT
#undef BLOCK_BYTES
#undef DECODE

#define KERNEL embed_q5_k
#define BLOCK_SHIFT 8
#define BLOCK_BYTES 176
#define DECODE(value, g_block, e)                     \
    {                                                 \
        .reg .s32 %q, %scale, %min;                   \
        LOAD_SCALE_MIN_K4(%scale, %min, g_block, e)   \
        LOAD_NIBBLE_256(%q, g_block, 48, e)           \
        ADD_BIT_256(%q, g_block, 16, e, 4)            \
        VALUE_D_SCALE_MIN(value, %q, %scale, %min, g_block, 0)\
    }
#include "embed.inc"
#undef KERNEL
#undef BLOCK_SHIFT
#undef BLOCK_BYTES
#undef DECODE

// Half h of 128 elements: 64 bytes of low nibbles; element 32 i + l, i = 0 .. 3, is in byte
// 32 (i mod 2) + l, the high nibble for i >= 2.
#define KERNEL embed_q6_k
#define BLOCK_SHIFT 8
#define BLOCK_BYTES 210
#define DECODE(value, g_block, e)                     \
    {                                                 \
        .reg .u64 %g;                                 \
        .reg .s32 %q, %top, %scale, %i, %half, %shift;\
        LOAD_2_BITS(%top, g_block, 128, e)            \
        shr.u32 %half, e, 7;                          \
        and.b32 %i, e, 63;                            \
        mad.lo.u32 %i, %half, 64, %i;                 \
        LOAD_BYTE(%q, g_block, 0, %i)                 \
        and.b32 %shift, e, 64;                        \
        shr.u32 %shift, %shift, 4;                    \
        shr.u32 %q, %q, %shift;                       \
        and.b32 %q, %q, 15;                           \
        mad.lo.s32 %q, %top, 16, %q;                  \
        sub.s32 %q, %q, 32;                           \
        shr.u32 %i, e, 4;                             \
        cvt.u64.u32 %g, %i;                           \
        add.u64 %g, %g, g_block;                      \
        ld.global.s8 %scale, [%g + 192];              \
        VALUE_D_SCALE(value, %q, %scale, g_block, 208)\
    }
#include "embed.inc"
#undef KERNEL
#undef BLOCK_SHIFT
#undef BLOCK_BYTES
#undef DECODE
