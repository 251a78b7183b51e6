// SPDX-License-Identifier: Apache-2.0
// The operators of the engine: one argument struct and one kernel signature per operator, and the
// table through which a backend is called. docs/contract.md defines what each computes;
// reference.c is that definition in code; every other implementation equals it by memcmp.
//
// O1. A kernel computes the units [begin, end) of its call and writes the outputs of these units
//     only. What a unit is stands beside each argument struct. Units may run in any order, on any
//     thread, and a result never depends on how they are divided.
// O2. Kernels return 0, or 1 when they met a value that the contract forbids (NaN, infinity; also
//     a magnitude that became infinite in f16). Outputs are then of no account.
// O3. `scratch` is OP_SCRATCH_BYTES of memory for this thread alone, 64-byte aligned, contents
//     undefined before and after.
// O4. Weight bytes (`const u8 *`) may have any alignment; activation buffers are 64-byte aligned
//     at row 0, and their row strides are multiples of 64 bytes, except where stated.
#pragma once
#include "ops/dtype.h"

#define OP_GROUP 256                // elements of one group of a dot product
#define OP_CHUNK 256                // positions of one attention chunk
#define OP_HEAD_DIM_MAX 512         // largest head_dim
#define OP_HEADS_MAX 128            // SOV_MAX_HEADS
#define OP_KV_BLOCK_TOKENS 16       // SOV_KV_BLOCK_SIZE
#define OP_SCRATCH_BYTES (2u << 20) // of one worker; fits in its L2 cache for the usual shapes

// f16 activations as 16-bit integers (operator 3). Row t of n elements (n a multiple of 32) has
//   a     + t * a_stride      [n]             in [-32767, 32767]
//   scale + t * scale_stride  [ceil(n/256)]   da, one per group of 256
//   sum16 + t * sum_stride    [n/16]          exact sums of a over each 16 elements
//   sum32 + t * sum_stride    [n/32]          exact sums of a over each 32 elements
// Strides are in elements.
struct q16 {
    i16 *a;
    f32 *scale;
    i32 *sum16;
    i32 *sum32;
    u32 a_stride, scale_stride, sum_stride;
};

// 1. embed. Unit: one token. residual[t] = dequantised row of the token, times `scale` unless it is
// 1 (f32 product, rounded).
struct embed_args {
    const u32 *tokens; // [n_tokens], each below the vocabulary
    const u8 *table;   // [n_vocab] rows of row_bytes
    u64 row_bytes;
    enum dtype type;
    u32 n_embd;
    f32 scale;
    f32 *residual; // [n_tokens, stride]
    u32 residual_stride;
};

// 2. rmsnorm. Unit: one row. y = f16((x * r) * w), or f32 and added: residual += (x * r) * w.
// x is f32 (the residual stream, or a gemm's f32 result) or f16 (q/k norms). Rows of a unit that
// holds several heads are separate rows: row r starts at x + r * x_stride. Returns 1 when the sum
// of squares is not finite (an element is not, or its square is too large).
struct rmsnorm_args {
    const void *x; // f32 [rows, x_stride], or f16 when x_is_f16
    bool x_is_f16;
    u32 x_stride, n;  // n elements a row; strides may be n itself for heads packed in a row
    const u8 *weight; // n little-endian f32, any alignment
    f32 eps;          // > 0
    f16 *y;           // [rows, y_stride], or NULL
    u32 y_stride;     // y may be x itself (f16 in place)
    f32 *residual;    // [rows, residual_stride], used when y is NULL
    u32 residual_stride;
};

// 3. quantize_q16. Unit: one row. Returns 1 when an |x| has bits of 0x7c00 or more.
struct quantize_args {
    const f16 *x;    // [rows, x_stride]
    u32 x_stride, n; // n a multiple of 32
    struct q16 out;
};

// 4, 5, 6. gemm. Unit: one weight row (an output feature); all tokens of the call are computed.
// total as in the contract; then one of the outputs below.
enum gemm_output {
    GEMM_TO_F16,  // f16(total + bias)
    GEMM_ADD_F32, // out = out + (total + bias)   (the residual form)
    GEMM_TO_F32,  // total + bias
};
struct gemm_args {
    const u8 *weight; // rows of row_bytes
    u64 row_bytes;
    enum dtype type;
    u32 k; // elements of a weight row and of an activation row
    u32 n_tokens;
    struct q16 xq; // activations for quantised types (const in here)
    const f16 *x;  // activations for F16, BF16 and F32 weights: [n_tokens, x_stride]
    u32 x_stride;
    const u8 *bias; // little-endian f32 per weight row, or NULL (then nothing is added)
    enum gemm_output output;
    void *out; // f16 or f32: [n_tokens, out_stride]; feature f of token t at t*stride+f
    u32 out_stride;
};

// 7. rope. Unit: one token; all its heads, in place, f16. Pairs (2i, 2i+1), or (i, i + rope_dim/2)
// when `neox`; elements past rope_dim stay. The table holds {cos, sin} pairs of f32:
// table[(position * rope_dim/2 + i) * 2 + {0: cos, 1: sin}]. Returns 1 on a non-finite result.
struct rope_args {
    f16 *x; // [n_tokens, x_stride], heads packed: head h at h * head_dim
    u32 x_stride, n_head, head_dim, rope_dim; // rope_dim even, <= head_dim
    bool neox;
    const u32 *positions; // [n_tokens]
    const f32 *table;
};

// The KV cache of one layer. K and V share the layout: token p of a sequence is at
//   plane + table[p / 16] * page_stride + (p % 16) * token_stride, then [n_head_kv, head_dim] f16.
struct kv_layer {
    u8 *k, *v;                     // this layer's first physical block in the K and the V plane
    u64 page_stride, token_stride; // bytes
    const u32 *tables;             // [n_sequences, max_blocks] physical block numbers
    u32 max_blocks;
};

// kv_write. Unit: one token. Copies k and v rows to the cache. Returns 1 when a value is not
// finite.
struct kv_write_args {
    const f16 *k, *v;          // [n_tokens, stride]
    u32 k_stride, v_stride, n; // n = n_head_kv * head_dim
    struct kv_layer kv;
    const u32 *positions; // [n_tokens]
    const u32 *slots;     // [n_tokens] row of `tables`
};

// 8. attention. Unit: (tile, kv head), unit = tile * n_head_kv + kv_head; a tile is a run of rows
// of one sequence at ascending, consecutive positions. The keys and values up to each row's
// position are in the cache. Returns 1 when a score is not finite.
struct attention_tile {
    u32 row, n_rows; // n_rows <= OP_ATTENTION_TILE_ROWS
};
#define OP_ATTENTION_TILE_ROWS 16
struct attention_args {
    const f16 *q; // [n_tokens, q_stride], heads packed
    u32 q_stride, n_head, n_head_kv, head_dim;
    struct kv_layer kv;
    const u32 *positions; // [n_tokens]
    const u32 *slots;     // [n_tokens]
    const struct attention_tile *tiles;
    f32 scale;   // multiplies the dot product, f32
    f32 softcap; // 0: none; else score = cap * tanh(score / cap), as reference.c writes it
    u32 window;  // 0: none; else a key at distance >= window is invisible
    f16 *out;    // [n_tokens, out_stride], heads packed
    u32 out_stride;
};

// 9. act_mul. Unit: one row of n. out = f16(activation(gate) * up).
#define OP_GELU_C1 0x1.988454p+0f // f32(2*sqrt(2/pi))
#define OP_GELU_C3 0x1.2444f2p-4f // f32(2*0.044715*sqrt(2/pi))
struct act_mul_args {
    const f16 *gate, *up; // [rows, stride]
    u32 gate_stride, up_stride, n;
    f16 *out; // may be gate or up
    u32 out_stride;
};

// 10. add. Unit: one row of n. residual = residual + x.
struct add_args {
    f32 *residual;
    const f32 *x;
    u32 residual_stride, x_stride, n;
};

// finite. Unit: one row of n. Returns 1 when an f32 is NaN or infinite (the check on logits).
struct finite_args {
    const f32 *x;
    u32 x_stride, n;
};

typedef u32 embed_fn(const struct embed_args *, u32 begin, u32 end, void *scratch);
typedef u32 rmsnorm_fn(const struct rmsnorm_args *, u32 begin, u32 end, void *scratch);
typedef u32 quantize_fn(const struct quantize_args *, u32 begin, u32 end, void *scratch);
typedef u32 gemm_fn(const struct gemm_args *, u32 begin, u32 end, void *scratch);
typedef u32 rope_fn(const struct rope_args *, u32 begin, u32 end, void *scratch);
typedef u32 kv_write_fn(const struct kv_write_args *, u32 begin, u32 end, void *scratch);
typedef u32 attention_fn(const struct attention_args *, u32 begin, u32 end, void *scratch);
typedef u32 act_mul_fn(const struct act_mul_args *, u32 begin, u32 end, void *scratch);
typedef u32 add_fn(const struct add_args *, u32 begin, u32 end, void *scratch);
typedef u32 finite_fn(const struct finite_args *, u32 begin, u32 end, void *scratch);

// One implementation of everything. A NULL entry is SOV_ERR_NO_KERNEL when a plan needs it.
struct op_table {
    const char *name; // "scalar", "avx2", ...
    embed_fn *embed;
    rmsnorm_fn *rmsnorm;
    quantize_fn *quantize_q16;
    gemm_fn *gemm[DTYPE_LIMIT];
    rope_fn *rope;
    kv_write_fn *kv_write;
    attention_fn *attention;
    act_mul_fn *silu_mul;
    act_mul_fn *gelu_tanh_mul;
    add_fn *add;
    finite_fn *finite;
};

// Fills every entry with the reference implementation. Faster levels are laid over it
// (op_fill_avx2 in cpu/kernels_avx2.c, ...), so that a hole falls back to the definition.
void op_fill_reference(struct op_table *table);

// tree32 (docs/contract.md, Reductions): the defined sum of x[n]. Used by reference kernels and by
// tests; x is overwritten.
f32 op_tree32(f32 *x, u32 n);
