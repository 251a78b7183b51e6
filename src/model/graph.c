// SPDX-License-Identifier: Apache-2.0
// The operator lists. Each architecture is one function that reads like its paper; the helpers
// below append one operator each. Where a buffer feeds quantised weights, a quantize operator is
// listed before them; F16, BF16 and F32 weights read the f16 rows themselves.
//
// G1. Every operator reads buffers that an earlier one of the same pass wrote (or the residual).
// G2. K and V of a position are in the cache before attention reads them.
#include "model/graph.h"

struct builder {
    struct plan *plan;
    u32 capacity;
    u16 layer;
};

static struct plan_op *append(struct builder *b, enum plan_op_kind kind, const char *name) {
    assert(b->plan->n_ops < b->capacity);
    struct plan_op *op = &b->plan->ops[b->plan->n_ops++];
    *op = (struct plan_op){.kind = kind, .layer = b->layer, .name = name};
    return op;
}

static void use_buffer(struct builder *b, enum plan_buffer buffer, enum plan_storage storage,
                       u32 width) {
    struct plan_buffer_info *info = &b->plan->buffers[buffer];
    assert(info->width == 0 || info->storage == storage);
    info->storage = storage;
    info->width = MAX(info->width, width);
}

static void rmsnorm(struct builder *b, enum plan_buffer src, enum plan_buffer dst,
                    const struct weight *weight, const char *name) {
    struct plan_op *op = append(b, PLAN_RMSNORM, name);
    op->src = (u8)src;
    op->dst = (u8)dst;
    op->weight = weight;
    use_buffer(b, dst, STORAGE_F16, weight->k);
}

static bool is_quantised(const struct weight *weight) {
    return dtype_table[weight->type].quantised;
}

// Lists the quantize operator when any of the weights (NULL-terminated) will read `quantised`.
static void quantize_for(struct builder *b, enum plan_buffer src, enum plan_buffer quantised,
                         const struct weight *const *weights) {
    bool needed = false;
    for (; *weights != NULL; weights++) needed = needed || is_quantised(*weights);
    if (!needed) return;
    struct plan_op *op = append(b, PLAN_QUANTIZE, "quantize_q16");
    op->src = (u8)src;
    op->dst = (u8)quantised;
    use_buffer(b, quantised, STORAGE_Q16, b->plan->buffers[src].width);
}

static struct plan_op *gemm(struct builder *b, enum plan_op_kind kind, enum plan_buffer src,
                            enum plan_buffer quantised, enum plan_buffer dst,
                            const struct weight *weight, const struct weight *bias,
                            const char *name) {
    struct plan_op *op = append(b, kind, name);
    op->src = (u8)(is_quantised(weight) ? quantised : src);
    op->dst = (u8)dst;
    op->weight = weight;
    op->bias = bias != NULL && bias->data != NULL ? bias : NULL;
    return op;
}

static void gemm_f16(struct builder *b, enum plan_buffer src, enum plan_buffer quantised,
                     enum plan_buffer dst, const struct weight *weight, const struct weight *bias,
                     const char *name) {
    gemm(b, PLAN_GEMM, src, quantised, dst, weight, bias, name);
    use_buffer(b, dst, STORAGE_F16, weight->rows);
}

static void rope(struct builder *b, enum plan_buffer buffer, u32 n_head, bool is_local,
                 const char *name) {
    struct plan_op *op = append(b, PLAN_ROPE, name);
    op->src = op->dst = (u8)buffer;
    op->n_head = n_head;
    op->is_local = is_local;
}

// Of q or k: each head by itself, in place.
static void rmsnorm_heads(struct builder *b, enum plan_buffer buffer, u32 n_head,
                          const struct weight *weight, const char *name) {
    struct plan_op *op = append(b, PLAN_RMSNORM_HEADS, name);
    op->src = op->dst = (u8)buffer;
    op->n_head = n_head;
    op->weight = weight;
}

static void kv_write(struct builder *b) {
    struct plan_op *op = append(b, PLAN_KV_WRITE, "kv_write");
    op->src = BUFFER_K;
    op->src2 = BUFFER_V;
    op->dst = BUFFER_KV;
}

static void attention(struct builder *b, u32 n_head, u32 width, bool is_local) {
    struct plan_op *op = append(b, PLAN_ATTENTION, "attention");
    op->src = BUFFER_Q;
    op->src2 = BUFFER_KV;
    op->dst = BUFFER_ATTN;
    op->n_head = n_head;
    op->is_local = is_local;
    use_buffer(b, BUFFER_ATTN, STORAGE_F16, width);
}

// residual = residual + weight * src, or with a norm: residual + norm(weight * src), all in f32.
static void add_to_residual(struct builder *b, enum plan_buffer src, enum plan_buffer quantised,
                            const struct weight *weight, const struct weight *bias,
                            const struct weight *norm, const char *name, const char *norm_name) {
    if (norm->data == NULL) {
        gemm(b, PLAN_GEMM_ADD, src, quantised, BUFFER_RESIDUAL, weight, bias, name);
        return;
    }
    gemm(b, PLAN_GEMM, src, quantised, BUFFER_POST, weight, bias, name);
    use_buffer(b, BUFFER_POST, STORAGE_F32, weight->rows);
    struct plan_op *op = append(b, PLAN_RMSNORM_ADD, norm_name);
    op->src = BUFFER_POST;
    op->dst = BUFFER_RESIDUAL;
    op->weight = norm;
}

static void act_mul(struct builder *b, enum plan_op_kind kind, const char *name) {
    struct plan_op *op = append(b, kind, name);
    op->src = op->dst = BUFFER_GATE;
    op->src2 = BUFFER_UP;
}

// x = x + attention(norm(x)), where q and k may have norms of their own, and the result may be
// normed before it is added.
static void attention_block(struct builder *b, const struct model_params *p,
                            const struct layer_weights *w) {
    rmsnorm(b, BUFFER_RESIDUAL, BUFFER_X, &w->attn_norm, "attn_norm");
    quantize_for(b, BUFFER_X, BUFFER_X_Q16,
                 (const struct weight *[]){&w->attn_q, &w->attn_k, &w->attn_v, NULL});
    gemm_f16(b, BUFFER_X, BUFFER_X_Q16, BUFFER_Q, &w->attn_q, &w->attn_q_bias, "attn_q");
    gemm_f16(b, BUFFER_X, BUFFER_X_Q16, BUFFER_K, &w->attn_k, &w->attn_k_bias, "attn_k");
    gemm_f16(b, BUFFER_X, BUFFER_X_Q16, BUFFER_V, &w->attn_v, &w->attn_v_bias, "attn_v");
    if (w->attn_q_norm.data != NULL) {
        rmsnorm_heads(b, BUFFER_Q, p->n_head, &w->attn_q_norm, "attn_q_norm");
        rmsnorm_heads(b, BUFFER_K, p->n_head_kv, &w->attn_k_norm, "attn_k_norm");
    }
    rope(b, BUFFER_Q, p->n_head, w->is_local, "rope_q");
    rope(b, BUFFER_K, p->n_head_kv, w->is_local, "rope_k");
    kv_write(b);
    attention(b, p->n_head, p->n_head * p->head_dim, w->is_local);
    quantize_for(b, BUFFER_ATTN, BUFFER_ATTN_Q16, (const struct weight *[]){&w->attn_output, NULL});
    add_to_residual(b, BUFFER_ATTN, BUFFER_ATTN_Q16, &w->attn_output, &w->attn_output_bias,
                    &w->attn_post_norm, "attn_output", "attn_post_norm");
}

// x = x + down(activation(gate(norm(x))) * up(norm(x))), with a norm before the sum where there is
// one.
static void ffn_block(struct builder *b, const struct layer_weights *w,
                      enum plan_op_kind activation, const char *activation_name) {
    rmsnorm(b, BUFFER_RESIDUAL, BUFFER_X, &w->ffn_norm, "ffn_norm");
    quantize_for(b, BUFFER_X, BUFFER_X_Q16,
                 (const struct weight *[]){&w->ffn_gate, &w->ffn_up, NULL});
    gemm_f16(b, BUFFER_X, BUFFER_X_Q16, BUFFER_GATE, &w->ffn_gate, NULL, "ffn_gate");
    gemm_f16(b, BUFFER_X, BUFFER_X_Q16, BUFFER_UP, &w->ffn_up, NULL, "ffn_up");
    act_mul(b, activation, activation_name);
    quantize_for(b, BUFFER_GATE, BUFFER_H_Q16, (const struct weight *[]){&w->ffn_down, NULL});
    add_to_residual(b, BUFFER_GATE, BUFFER_H_Q16, &w->ffn_down, NULL, &w->ffn_post_norm, "ffn_down",
                    "ffn_post_norm");
}

// llama, qwen2 (biases of q, k and v) and qwen3 (norms of q and k): what a layer has decides.
static void llama_layer(struct builder *b, const struct model_params *p,
                        const struct layer_weights *w) {
    attention_block(b, p, w);
    ffn_block(b, w, PLAN_SILU_MUL, "silu_mul");
}

static void gemma3_layer(struct builder *b, const struct model_params *p,
                         const struct layer_weights *w) {
    attention_block(b, p, w);
    ffn_block(b, w, PLAN_GELU_MUL, "gelu_mul");
}

static void embed(struct builder *b, const struct model *model) {
    struct plan_op *op = append(b, PLAN_EMBED, "embed");
    op->dst = BUFFER_RESIDUAL;
    op->weight = &model->token_embd;
    use_buffer(b, BUFFER_RESIDUAL, STORAGE_F32, model->params.n_embd);
}

// From the residual to logits, over the rows that want them.
static void tail(struct builder *b, const struct model *model) {
    struct plan *plan = b->plan;
    plan->tail = plan->n_ops;
    struct plan_op *gather = append(b, PLAN_GATHER, "gather");
    gather->src = BUFFER_RESIDUAL;
    gather->dst = BUFFER_TAIL;
    use_buffer(b, BUFFER_TAIL, STORAGE_F32, model->params.n_embd);
    rmsnorm(b, BUFFER_TAIL, BUFFER_X, &model->output_norm, "output_norm");
    quantize_for(b, BUFFER_X, BUFFER_X_Q16, (const struct weight *[]){&model->output, NULL});
    gemm(b, PLAN_GEMM, BUFFER_X, BUFFER_X_Q16, BUFFER_LOGITS, &model->output, NULL, "output");
    use_buffer(b, BUFFER_LOGITS, STORAGE_F32, model->output.rows);
    plan->buffers[BUFFER_TAIL].is_tail = plan->buffers[BUFFER_LOGITS].is_tail = true;
    append(b, PLAN_FINITE, "logits")->src = BUFFER_LOGITS;
}

static u32 ops_max(const struct model *model) {
    return PLAN_OPS_OUTSIDE_MAX + PLAN_OPS_PER_LAYER_MAX * model->params.n_layer;
}

u64 plan_memory_bytes(const struct model *model) {
    return (u64)ops_max(model) * sizeof(struct plan_op) + 64;
}

enum sov_status plan_create(const struct model *model, struct arena *arena, struct plan *plan,
                            struct sov_fault *fault) {
    static void (*const layer_of[MODEL_ARCH_COUNT])(struct builder *, const struct model_params *,
                                                    const struct layer_weights *) = {
        [MODEL_LLAMA] = llama_layer,
        [MODEL_GEMMA3] = gemma3_layer,
        [MODEL_QWEN2] = llama_layer,
        [MODEL_QWEN3] = llama_layer,
    };
    const struct model_params *params = &model->params;
    assert((u32)params->arch < MODEL_ARCH_COUNT && layer_of[params->arch] != NULL);
    *plan = (struct plan){.model = model};
    struct builder b = {.plan = plan, .capacity = ops_max(model), .layer = PLAN_NO_LAYER};
    plan->ops = arena_array(arena, struct plan_op, b.capacity);
    if (plan->ops == NULL) return arena_fault(arena, fault, "plan", plan_memory_bytes(model));
    embed(&b, model);
    for (u32 layer = 0; layer < params->n_layer; layer++) {
        b.layer = (u16)layer;
        layer_of[params->arch](&b, params, &model->layers[layer]);
    }
    b.layer = PLAN_NO_LAYER;
    tail(&b, model);
    return SOV_OK;
}

const char *plan_op_kind_name(enum plan_op_kind kind) {
    static const char *const names[PLAN_OP_KINDS] = {
        [PLAN_EMBED] = "embed",           [PLAN_RMSNORM] = "rmsnorm",
        [PLAN_RMSNORM_HEADS] = "rmsnorm", [PLAN_RMSNORM_ADD] = "rmsnorm",
        [PLAN_QUANTIZE] = "quantize_q16", [PLAN_GEMM] = "gemm",
        [PLAN_GEMM_ADD] = "gemm",         [PLAN_ROPE] = "rope",
        [PLAN_KV_WRITE] = "kv_write",     [PLAN_ATTENTION] = "attention",
        [PLAN_SILU_MUL] = "silu_mul",     [PLAN_GELU_MUL] = "gelu_tanh_mul",
        [PLAN_GATHER] = "gather",         [PLAN_FINITE] = "logits",
    };
    assert((u32)kind < PLAN_OP_KINDS);
    return names[kind];
}
