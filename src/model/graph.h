// SPDX-License-Identifier: Apache-2.0
// The plan of a model: a flat list of operator calls over numbered activation buffers. A backend
// executes the list and knows nothing else of architectures; a new architecture is a new list.
#pragma once
#include "model/weights.h"

// Activation buffers. Each has one row per token of the batch (the tail's: one per row that wants
// logits).
enum plan_buffer {
    BUFFER_NONE,
    BUFFER_RESIDUAL, // f32 [n_embd]
    BUFFER_X,        // f16 [n_embd]             a normed row
    BUFFER_X_Q16,    // q16 [n_embd]
    BUFFER_Q,        // f16 [n_head * head_dim]
    BUFFER_K,        // f16 [n_head_kv * head_dim]
    BUFFER_V,        // f16 [n_head_kv * head_dim]
    BUFFER_ATTN,     // f16 [n_head * head_dim]
    BUFFER_ATTN_Q16, // q16 [n_head * head_dim]
    BUFFER_GATE,     // f16 [n_ff]
    BUFFER_UP,       // f16 [n_ff]
    BUFFER_H_Q16,    // q16 [n_ff]
    BUFFER_POST,     // f32 [n_embd]             a result that is normed before it is added
    BUFFER_TAIL,     // f32 [n_embd]             residual rows that want logits, gathered
    BUFFER_LOGITS,   // f32 [n_vocab]
    BUFFER_KV,       // the KV cache: no memory of the plan's, but a dependency
    BUFFER_COUNT,
};

enum plan_storage { STORAGE_NONE, STORAGE_F16, STORAGE_F32, STORAGE_Q16 };

struct plan_buffer_info {
    enum plan_storage storage;
    u32 width;    // elements of a row; 0: the plan does not use this buffer
    bool is_tail; // rows are the batch's logit rows, not its tokens
};

enum plan_op_kind {
    PLAN_EMBED,         // tokens -> dst
    PLAN_RMSNORM,       // src -> dst, f16
    PLAN_RMSNORM_HEADS, // dst in place, each of n_head heads by itself
    PLAN_RMSNORM_ADD,   // src (f32), normed, added to dst, the residual
    PLAN_QUANTIZE,      // src (f16) -> dst (q16)
    PLAN_GEMM,          // src (q16 or f16, as the weight's type wants) -> dst, f16 or f32
    PLAN_GEMM_ADD,      // the same, added to dst, the residual
    PLAN_ROPE,          // dst in place
    PLAN_KV_WRITE,      // BUFFER_K, BUFFER_V -> BUFFER_KV
    PLAN_ATTENTION,     // src (queries), BUFFER_KV -> dst
    PLAN_SILU_MUL,      // src, src2 -> dst
    PLAN_GELU_MUL,      // the same with the tanh form of GELU
    PLAN_GATHER,        // the rows of src that want logits -> dst
    PLAN_FINITE,        // src: the check on logits
    PLAN_OP_KINDS,
};

struct plan_op {
    enum plan_op_kind kind;
    u16 layer;                          // PLAN_NO_LAYER outside the layers
    u8 src, src2, dst;                  // enum plan_buffer
    u32 n_head;                         // of rope, of attention and of norms by heads
    bool is_local;                      // of rope and attention: the local table, the window
    const struct weight *weight, *bias; // or NULL
    const char *name;                   // "attn_q": for messages and traces
};
#define PLAN_NO_LAYER 0xffff
#define PLAN_OPS_PER_LAYER_MAX 32
#define PLAN_OPS_OUTSIDE_MAX 8

struct plan {
    const struct model *model;
    struct plan_buffer_info buffers[BUFFER_COUNT];
    struct plan_op *ops;
    u32 n_ops;
    u32 tail; // ops from here on run over the rows that want logits
};

// Bytes of arena that plan_create takes.
u64 plan_memory_bytes(const struct model *model);
// Builds the list for a checked model. Weights are pointed at, so the model must stay.
enum sov_status plan_create(const struct model *model, struct arena *arena, struct plan *plan,
                            struct sov_fault *fault) MUST_CHECK;

const char *plan_op_kind_name(enum plan_op_kind kind);
