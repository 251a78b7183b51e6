// SPDX-License-Identifier: Apache-2.0
// Executor: every worker walks the same operator list, computes its share of each operator, and
// meets the others at a barrier only where an operator reads (or overwrites) what another worker
// may still be writing (or reading). The places are found once, when the plan is known.
//
// C1. A worker's share depends on sizes alone, and no sum crosses shares: results do not depend on
//     the number of workers.
// C2. Workers never leave the list early, so they always meet. A failing operator marks its number;
//     the smallest one is reported, which is the first in the order of the plan.
#include "cpu/cpu.h"
#include "freestanding/mem.h"

#define ROW_ALIGN 64u        // bytes between row starts are a multiple of this
#define GEMM_ROW_MULTIPLE 16 // shares of weight rows start at multiples of it

struct buffer {
    enum plan_storage storage;
    u32 width, stride; // elements
    void *data;        // f16 or f32
    struct q16 q16;
};

// How an operator is divided. Two operators that divide tokens alike leave each row with the same
// worker, so no barrier is needed between them.
enum share { SHARE_TOKENS, SHARE_LOGIT_ROWS, SHARE_WEIGHT_ROWS, SHARE_ATTENTION };

struct step {
    const struct plan_op *op;
    enum share share;
    bool barrier_before;
};

struct cpu {
    const struct plan *plan;
    struct cpu_config config;
    struct op_table kernels;
    struct buffer buffers[BUFFER_COUNT];
    struct step *steps;
    f32 *rope_table, *rope_table_local; // one and the same without local layers
    struct attention_tile *tiles;
    u8 *scratch; // [n_workers, OP_SCRATCH_BYTES]
    struct pool pool;
    cpu_tap *tap;
    void *tap_context;
    // The job in progress.
    const struct cpu_batch *batch;
    cpu_kv_view *kv_view;
    const void *kv_context;
    u32 n_tiles;
    const u32 *stop_word; // or NULL
    u32 abandoned;        // an operator was left out because of it
    u32 first_failed;     // smallest number of a failed step; n_ops when none
};

static u32 stride_of(enum plan_storage storage, u32 width) {
    u32 element = storage == STORAGE_F16 ? sizeof(f16) : sizeof(f32);
    return (u32)(round_up((u64)width * element, ROW_ALIGN) / element);
}

static struct q16 q16_shape(u32 width) {
    return (struct q16){
        .a_stride = (u32)round_up(width, ROW_ALIGN / sizeof(i16)),
        .scale_stride = (u32)round_up((width + OP_GROUP - 1) / OP_GROUP, ROW_ALIGN / sizeof(f32)),
        .sum_stride = (u32)round_up((width + 15) / 16, ROW_ALIGN / sizeof(i32)),
    };
}

static u64 q16_row_bytes(const struct q16 *q) {
    return (u64)q->a_stride * sizeof(i16) + (u64)q->scale_stride * sizeof(f32) +
           2 * (u64)q->sum_stride * sizeof(i32);
}

static u32 buffer_rows(const struct plan_buffer_info *info, const struct cpu_config *config) {
    return info->is_tail ? config->logit_rows : MAX(config->batch_tokens, config->logit_rows);
}

static u64 buffer_bytes(const struct plan_buffer_info *info, const struct cpu_config *config) {
    u64 rows = buffer_rows(info, config);
    if (info->width == 0) return 0;
    if (info->storage == STORAGE_Q16) {
        struct q16 shape = q16_shape(info->width);
        return rows * q16_row_bytes(&shape) + 4 * ROW_ALIGN;
    }
    u32 element = info->storage == STORAGE_F16 ? sizeof(f16) : sizeof(f32);
    return rows * stride_of(info->storage, info->width) * element + ROW_ALIGN;
}

static u64 rope_table_bytes(const struct plan *plan, const struct cpu_config *config) {
    return (u64)config->n_positions * plan->model->params.rope_dim * sizeof(f32);
}

static u32 rope_tables(const struct plan *plan) { return plan->model->params.window != 0 ? 2 : 1; }

u64 cpu_memory_bytes(const struct plan *plan, const struct cpu_config *config) {
    u64 total = sizeof(struct cpu) + POOL_LINE;
    for (u32 i = 0; i < BUFFER_COUNT; i++) total += buffer_bytes(&plan->buffers[i], config);
    total += (u64)plan->n_ops * sizeof(struct step) + ROW_ALIGN;
    total += rope_tables(plan) * (rope_table_bytes(plan, config) + ROW_ALIGN);
    total += (u64)config->batch_tokens * sizeof(struct attention_tile) + ROW_ALIGN;
    total += (u64)config->n_workers * OP_SCRATCH_BYTES + ROW_ALIGN;
    return total;
}

static bool create_buffer(struct buffer *buffer, const struct plan_buffer_info *info,
                          const struct cpu_config *config, struct arena *arena) {
    *buffer = (struct buffer){.storage = info->storage, .width = info->width};
    if (info->width == 0) return true;
    u64 rows = buffer_rows(info, config);
    if (info->storage == STORAGE_Q16) {
        struct q16 q = q16_shape(info->width);
        q.a = arena_alloc(arena, rows * q.a_stride * sizeof(i16), ROW_ALIGN);
        q.scale = arena_alloc(arena, rows * q.scale_stride * sizeof(f32), ROW_ALIGN);
        q.sum16 = arena_alloc(arena, rows * q.sum_stride * sizeof(i32), ROW_ALIGN);
        q.sum32 = arena_alloc(arena, rows * q.sum_stride * sizeof(i32), ROW_ALIGN);
        buffer->q16 = q;
        return q.a != NULL && q.scale != NULL && q.sum16 != NULL && q.sum32 != NULL;
    }
    buffer->stride = stride_of(info->storage, info->width);
    u32 element = info->storage == STORAGE_F16 ? sizeof(f16) : sizeof(f32);
    buffer->data = arena_alloc(arena, rows * buffer->stride * element, ROW_ALIGN);
    return buffer->data != NULL;
}

static enum share share_of(const struct plan *plan, u32 op_idx) {
    switch (plan->ops[op_idx].kind) {
    case PLAN_GEMM:
    case PLAN_GEMM_ADD: return SHARE_WEIGHT_ROWS;
    case PLAN_ATTENTION: return SHARE_ATTENTION;
    default: return op_idx >= plan->tail ? SHARE_LOGIT_ROWS : SHARE_TOKENS;
    }
}

// Marks where workers must meet: before an operator that touches a buffer which was written, or
// would overwrite one which was read, since the last meeting, by operators divided in another way.
// Operators divided by weight rows all write disjoint columns, but read whole rows.
static void place_barriers(struct cpu *cpu) {
    u32 written[4] = {0}, read[4] = {0}; // [share] bit sets of buffers since the last barrier
    for (u32 i = 0; i < cpu->plan->n_ops; i++) {
        struct step *step = &cpu->steps[i];
        const struct plan_op *op = step->op;
        u32 writes = 1u << op->dst;
        u32 reads = 1u << op->src | 1u << op->src2;
        if (op->kind == PLAN_GEMM_ADD || op->kind == PLAN_RMSNORM_ADD) reads |= writes;
        reads &= ~(1u << BUFFER_NONE);
        writes &= ~(1u << BUFFER_NONE);
        bool conflict = false;
        for (u32 share = 0; share < 4; share++) {
            bool same_rows = share == step->share && step->share != SHARE_WEIGHT_ROWS &&
                             step->share != SHARE_ATTENTION;
            if (same_rows) continue;
            conflict = conflict || (written[share] & (reads | writes)) != 0 ||
                       (read[share] & writes) != 0;
        }
        step->barrier_before = conflict;
        if (conflict) {
            memset(written, 0, sizeof written);
            memset(read, 0, sizeof read);
        }
        written[step->share] |= writes;
        read[step->share] |= reads;
    }
}

static enum sov_status require_kernels(const struct plan *plan, const struct op_table *kernels,
                                       struct sov_fault *fault) {
    for (u32 i = 0; i < plan->n_ops; i++) {
        const struct plan_op *op = &plan->ops[i];
        bool is_gemm = op->kind == PLAN_GEMM || op->kind == PLAN_GEMM_ADD;
        if (is_gemm && kernels->gemm[op->weight->type] == NULL) {
            return fault_set(fault, SOV_ERR_NO_KERNEL, "%s: no %s gemm kernel for type %s (%.*s)",
                             op->name, kernels->name, dtype_name(op->weight->type),
                             STR_ARG(op->weight->name));
        }
    }
    return SOV_OK;
}

enum sov_status cpu_create(const struct plan *plan, const struct cpu_config *config,
                           struct arena *arena, struct cpu **result, struct sov_fault *fault) {
    assert(config->n_workers >= 1 && config->n_workers <= POOL_WORKERS_MAX);
    assert(config->batch_tokens >= 1 && config->batch_tokens <= CPU_BATCH_TOKENS_MAX);
    assert(config->logit_rows >= 1 && config->logit_rows <= CPU_BATCH_TOKENS_MAX);
    enum sov_status status = require_kernels(plan, config->kernels, fault);
    if (status != SOV_OK) return status;
    struct cpu *cpu = arena_alloc(arena, sizeof *cpu, POOL_LINE);
    bool fits = cpu != NULL;
    if (fits) {
        memset(cpu, 0, sizeof *cpu);
        cpu->plan = plan;
        cpu->config = *config;
        cpu->kernels = *config->kernels;
        for (u32 i = 0; i < BUFFER_COUNT; i++) {
            fits = fits && create_buffer(&cpu->buffers[i], &plan->buffers[i], config, arena);
        }
        cpu->steps = arena_array(arena, struct step, plan->n_ops);
        cpu->rope_table = arena_alloc(arena, rope_table_bytes(plan, config), ROW_ALIGN);
        cpu->rope_table_local = cpu->rope_table;
        if (rope_tables(plan) > 1) {
            cpu->rope_table_local = arena_alloc(arena, rope_table_bytes(plan, config), ROW_ALIGN);
        }
        cpu->tiles = arena_array(arena, struct attention_tile, config->batch_tokens);
        cpu->scratch = arena_alloc(arena, (usize)config->n_workers * OP_SCRATCH_BYTES, ROW_ALIGN);
        fits = fits && cpu->steps != NULL && cpu->rope_table != NULL &&
               cpu->rope_table_local != NULL && cpu->tiles != NULL && cpu->scratch != NULL;
    }
    if (!fits) return arena_fault(arena, fault, "CPU backend", cpu_memory_bytes(plan, config));
    for (u32 i = 0; i < plan->n_ops; i++) {
        cpu->steps[i] = (struct step){.op = &plan->ops[i], .share = share_of(plan, i)};
    }
    place_barriers(cpu);
    model_rope_table(plan->model, false, config->n_positions, cpu->rope_table);
    if (rope_tables(plan) > 1) {
        model_rope_table(plan->model, true, config->n_positions, cpu->rope_table_local);
    }
    status = pool_create(&cpu->pool, config->n_workers, config->is_pinned, fault);
    if (status != SOV_OK) return status;
    *result = cpu;
    return SOV_OK;
}

void cpu_destroy(struct cpu *cpu) { pool_destroy(&cpu->pool); }

void cpu_set_stop_word(struct cpu *cpu, const u32 *word) { cpu->stop_word = word; }

void cpu_set_tap(struct cpu *cpu, cpu_tap *tap, void *context) {
    cpu->tap = tap;
    cpu->tap_context = context;
}

// Runs of rows of one sequence, cut to the tile size. Decode rows are tiles of one.
static u32 make_tiles(const struct cpu_batch *batch, struct attention_tile *tiles) {
    u32 n = 0;
    for (u32 row = 0; row < batch->n_tokens; row++) {
        struct attention_tile *last = n > 0 ? &tiles[n - 1] : NULL;
        bool goes_on = last != NULL && last->n_rows < OP_ATTENTION_TILE_ROWS &&
                       batch->slots[row] == batch->slots[row - 1] &&
                       batch->positions[row] == batch->positions[row - 1] + 1;
        if (goes_on) {
            last->n_rows++;
        } else {
            tiles[n++] = (struct attention_tile){.row = row, .n_rows = 1};
        }
    }
    return n;
}

struct range {
    u32 begin, end;
};

// Worker's share of n units, in multiples of `multiple` (the last share takes what is left).
static struct range share_range(u32 n, u32 multiple, u32 worker, u32 n_workers) {
    u64 pieces = ((u64)n + multiple - 1) / multiple;
    u64 begin = pieces * worker / n_workers * multiple;
    u64 end = pieces * (worker + 1) / n_workers * multiple;
    return (struct range){(u32)MIN(begin, n), (u32)MIN(end, n)};
}

static u32 run_gemm(struct cpu *cpu, const struct plan_op *op, u32 n_rows, struct range rows,
                    void *scratch) {
    const struct buffer *src = &cpu->buffers[op->src], *dst = &cpu->buffers[op->dst];
    struct gemm_args args = {
        .weight = op->weight->data,
        .row_bytes = op->weight->row_bytes,
        .type = op->weight->type,
        .k = op->weight->k,
        .n_tokens = n_rows,
        .xq = src->q16,
        .x = src->data,
        .x_stride = src->stride,
        .bias = op->bias != NULL ? op->bias->data : NULL,
        .output = op->kind == PLAN_GEMM_ADD     ? GEMM_ADD_F32
                  : dst->storage == STORAGE_F32 ? GEMM_TO_F32
                                                : GEMM_TO_F16,
        .out = dst->data,
        .out_stride = dst->stride,
    };
    return cpu->kernels.gemm[args.type](&args, rows.begin, rows.end, scratch);
}

static u32 run_rmsnorm(struct cpu *cpu, const struct plan_op *op, struct range rows,
                       void *scratch) {
    const struct buffer *src = &cpu->buffers[op->src], *dst = &cpu->buffers[op->dst];
    struct rmsnorm_args args = {
        .x = src->data,
        .x_is_f16 = src->storage == STORAGE_F16,
        .x_stride = src->stride,
        .n = op->weight->k,
        .weight = op->weight->data,
        .eps = cpu->plan->model->params.rms_eps,
    };
    if (op->kind == PLAN_RMSNORM_ADD) {
        args.residual = dst->data;
        args.residual_stride = dst->stride;
    } else {
        args.y = dst->data;
        args.y_stride = dst->stride;
    }
    return cpu->kernels.rmsnorm(&args, rows.begin, rows.end, scratch);
}

// A token's heads are rows that lie packed; tokens are a buffer row apart.
static u32 run_rmsnorm_heads(struct cpu *cpu, const struct plan_op *op, struct range tokens,
                             void *scratch) {
    const struct buffer *dst = &cpu->buffers[op->dst];
    u32 failed = 0;
    for (u32 t = tokens.begin; t < tokens.end; t++) {
        f16 *heads = (f16 *)dst->data + (u64)t * dst->stride;
        struct rmsnorm_args args = {
            .x = heads,
            .x_is_f16 = true,
            .x_stride = op->weight->k,
            .n = op->weight->k,
            .weight = op->weight->data,
            .eps = cpu->plan->model->params.rms_eps,
            .y = heads,
            .y_stride = op->weight->k,
        };
        failed |= cpu->kernels.rmsnorm(&args, 0, op->n_head, scratch);
    }
    return failed;
}

static u32 run_attention(struct cpu *cpu, const struct plan_op *op, u32 worker, void *scratch) {
    const struct model_params *p = &cpu->plan->model->params;
    const struct buffer *src = &cpu->buffers[op->src], *dst = &cpu->buffers[op->dst];
    struct attention_args args = {
        .q = src->data,
        .q_stride = src->stride,
        .n_head = op->n_head,
        .n_head_kv = p->n_head_kv,
        .head_dim = p->head_dim,
        .kv = cpu->kv_view(cpu->kv_context, op->layer),
        .positions = cpu->batch->positions,
        .slots = cpu->batch->slots,
        .tiles = cpu->tiles,
        .scale = p->attention_scale,
        .window = op->is_local ? p->window : 0,
        .out = dst->data,
        .out_stride = dst->stride,
    };
    struct range units = share_range(cpu->n_tiles * p->n_head_kv, 1, worker, cpu->config.n_workers);
    return cpu->kernels.attention(&args, units.begin, units.end, scratch);
}

static u32 run_embed(struct cpu *cpu, const struct plan_op *op, struct range rows, void *scratch) {
    const struct buffer *dst = &cpu->buffers[op->dst];
    struct embed_args args = {
        .tokens = cpu->batch->tokens,
        .table = op->weight->data,
        .row_bytes = op->weight->row_bytes,
        .type = op->weight->type,
        .n_embd = op->weight->k,
        .scale = cpu->plan->model->params.embed_scale,
        .residual = dst->data,
        .residual_stride = dst->stride,
    };
    return cpu->kernels.embed(&args, rows.begin, rows.end, scratch);
}

static u32 run_rope(struct cpu *cpu, const struct plan_op *op, struct range rows, void *scratch) {
    const struct model_params *p = &cpu->plan->model->params;
    const struct buffer *dst = &cpu->buffers[op->dst];
    struct rope_args args = {
        .x = dst->data,
        .x_stride = dst->stride,
        .n_head = op->n_head,
        .head_dim = p->head_dim,
        .rope_dim = p->rope_dim,
        .neox = p->rope_neox,
        .positions = cpu->batch->positions,
        .table = op->is_local ? cpu->rope_table_local : cpu->rope_table,
    };
    return cpu->kernels.rope(&args, rows.begin, rows.end, scratch);
}

static u32 run_kv_write(struct cpu *cpu, const struct plan_op *op, struct range rows,
                        void *scratch) {
    const struct buffer *k = &cpu->buffers[op->src], *v = &cpu->buffers[op->src2];
    struct kv_write_args args = {
        .k = k->data,
        .v = v->data,
        .k_stride = k->stride,
        .v_stride = v->stride,
        .n = k->width,
        .kv = cpu->kv_view(cpu->kv_context, op->layer),
        .positions = cpu->batch->positions,
        .slots = cpu->batch->slots,
    };
    return cpu->kernels.kv_write(&args, rows.begin, rows.end, scratch);
}

// The operators that work on rows of activations alone.
static u32 run_rows(struct cpu *cpu, const struct plan_op *op, struct range rows, void *scratch) {
    const struct buffer *src = &cpu->buffers[op->src], *dst = &cpu->buffers[op->dst];
    switch (op->kind) {
    case PLAN_QUANTIZE: {
        struct quantize_args args = {src->data, src->stride, src->width, dst->q16};
        return cpu->kernels.quantize_q16(&args, rows.begin, rows.end, scratch);
    }
    case PLAN_SILU_MUL:
    case PLAN_GELU_MUL: {
        const struct buffer *up = &cpu->buffers[op->src2];
        struct act_mul_args args = {src->data,  up->data,  src->stride, up->stride,
                                    src->width, dst->data, dst->stride};
        act_mul_fn *act_mul = op->kind == PLAN_SILU_MUL ? cpu->kernels.silu_mul
                                                        : cpu->kernels.gelu_tanh_mul;
        return act_mul(&args, rows.begin, rows.end, scratch);
    }
    case PLAN_GATHER:
        for (u32 i = rows.begin; i < rows.end; i++) {
            memcpy((f32 *)dst->data + (u64)i * dst->stride,
                   (const f32 *)src->data + (u64)cpu->batch->logit_rows[i] * src->stride,
                   src->width * sizeof(f32));
        }
        return 0;
    case PLAN_FINITE: {
        struct finite_args args = {src->data, src->stride, src->width};
        return cpu->kernels.finite(&args, rows.begin, rows.end, scratch);
    }
    default: assert(!"an operator that is not of this kind"); return 1;
    }
}

static u32 run_step(struct cpu *cpu, const struct step *step, u32 n_rows, u32 worker) {
    const struct plan_op *op = step->op;
    void *scratch = cpu->scratch + (usize)worker * OP_SCRATCH_BYTES;
    u32 n_workers = cpu->config.n_workers;
    struct range rows = share_range(n_rows, 1, worker, n_workers);
    switch (op->kind) {
    case PLAN_GEMM:
    case PLAN_GEMM_ADD:
        rows = share_range(op->weight->rows, GEMM_ROW_MULTIPLE, worker, n_workers);
        return run_gemm(cpu, op, n_rows, rows, scratch);
    case PLAN_ATTENTION: return run_attention(cpu, op, worker, scratch);
    case PLAN_EMBED: return run_embed(cpu, op, rows, scratch);
    case PLAN_RMSNORM:
    case PLAN_RMSNORM_ADD: return run_rmsnorm(cpu, op, rows, scratch);
    case PLAN_RMSNORM_HEADS: return run_rmsnorm_heads(cpu, op, rows, scratch);
    case PLAN_ROPE: return run_rope(cpu, op, rows, scratch);
    case PLAN_KV_WRITE: return run_kv_write(cpu, op, rows, scratch);
    default: return run_rows(cpu, op, rows, scratch);
    }
}

static void note_failure(struct cpu *cpu, u32 step_idx) {
    u32 seen = __atomic_load_n(&cpu->first_failed, __ATOMIC_RELAXED);
    while (step_idx < seen &&
           !__atomic_compare_exchange_n(&cpu->first_failed, &seen, step_idx, false,
                                        __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
}

static void tap_step(struct cpu *cpu, const struct plan_op *op, u32 n_rows, u32 worker) {
    pool_barrier(&cpu->pool);
    const struct buffer *dst = &cpu->buffers[op->dst];
    if (worker == 0 && dst->storage != STORAGE_NONE && dst->storage != STORAGE_Q16) {
        cpu->tap(cpu->tap_context, op, dst->storage, dst->data, n_rows, dst->width, dst->stride);
    }
    pool_barrier(&cpu->pool);
}

static bool must_stop(const struct cpu *cpu) {
    return cpu->stop_word != NULL && __atomic_load_n(cpu->stop_word, __ATOMIC_RELAXED) != 0;
}

static void forward_job(void *argument, u32 worker) {
    struct cpu *cpu = argument;
    const struct plan *plan = cpu->plan;
    u32 n_ops = cpu->batch->n_logit_rows > 0 ? plan->n_ops : plan->tail;
    for (u32 i = 0; i < n_ops; i++) {
        const struct step *step = &cpu->steps[i];
        u32 n_rows = i >= plan->tail ? cpu->batch->n_logit_rows : cpu->batch->n_tokens;
        if (step->barrier_before) pool_barrier(&cpu->pool);
        if (must_stop(cpu)) {
            __atomic_store_n(&cpu->abandoned, 1, __ATOMIC_RELAXED);
        } else if (run_step(cpu, step, n_rows, worker) != 0) {
            note_failure(cpu, i);
        }
        if (cpu->tap != NULL) tap_step(cpu, step->op, n_rows, worker);
    }
}

enum sov_status cpu_forward(struct cpu *cpu, const struct cpu_batch *batch, cpu_kv_view *kv_view,
                            const void *kv_context, const f32 **logits, u32 *logit_stride,
                            struct sov_fault *fault) {
    assert(batch->n_tokens >= 1 && batch->n_tokens <= cpu->config.batch_tokens);
    assert(batch->n_logit_rows <= cpu->config.logit_rows);
    for (u32 i = 0; i < batch->n_tokens; i++) {
        assert(batch->tokens[i] < cpu->plan->model->params.n_vocab);
        assert(batch->positions[i] < cpu->config.n_positions);
    }
    for (u32 i = 0; i < batch->n_logit_rows; i++) assert(batch->logit_rows[i] < batch->n_tokens);
    cpu->batch = batch;
    cpu->kv_view = kv_view;
    cpu->kv_context = kv_context;
    cpu->n_tiles = make_tiles(batch, cpu->tiles);
    cpu->first_failed = cpu->plan->n_ops;
    cpu->abandoned = 0;
    pool_run(&cpu->pool, forward_job, cpu);
    if (cpu->abandoned != 0) { // before failures: operators may have read what was left out
        return fault_set(fault, SOV_ERR_INTERRUPTED, "the power went during the step");
    }
    if (cpu->first_failed < cpu->plan->n_ops) {
        const struct plan_op *op = &cpu->plan->ops[cpu->first_failed];
        if (op->layer == PLAN_NO_LAYER) {
            return fault_set(fault, SOV_ERR_NON_FINITE, "a NaN or an infinity at operator %s (%s)",
                             op->name, plan_op_kind_name(op->kind));
        }
        return fault_set(fault, SOV_ERR_NON_FINITE,
                         "a NaN or an infinity in layer %u at operator %s (%s)", (u32)op->layer,
                         op->name, plan_op_kind_name(op->kind));
    }
    *logits = cpu->buffers[BUFFER_LOGITS].data;
    *logit_stride = cpu->buffers[BUFFER_LOGITS].stride;
    return SOV_OK;
}
