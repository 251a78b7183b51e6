// SPDX-License-Identifier: Apache-2.0
// One step: inputs go up, the operators of the plan are launched (or a graph of them), status words
// and logits come down, and the host waits once.
//
//   inputs, block tables ─▶ │ status = 0, operators.., status, logits ─▶ │ wait
//   (differ in size)        │ one graph for a shape                      │
//
// S1. Whatever fails, the stream is empty when cuda_forward returns: the pinned memory of the next
//     step is nobody else's.
// S2. A card that fails a wait after a failure is lost: no step comes after that, and each says
// what
//     the first fault was.
// S3. The power word of the card is active but from the moment that the stop word was seen set to
//     the next step that may run.
#include "cuda/cuda_private.h"
#include "freestanding/mem.h"

#define NORM_THREADS_SHORT 256 // of a row up to NORM_LONG elements
#define NORM_THREADS_LONG 512
#define NORM_LONG 2048
#define HEAD_THREADS 32

// --- operators ---

static const enum cuda_kernel embed_kernels[DTYPE_LIMIT] = {
    [DTYPE_F32] = CUDA_KERNEL_embed_f32,   [DTYPE_F16] = CUDA_KERNEL_embed_f16,
    [DTYPE_BF16] = CUDA_KERNEL_embed_bf16, [DTYPE_Q4_0] = CUDA_KERNEL_embed_q4_0,
    [DTYPE_Q4_1] = CUDA_KERNEL_embed_q4_1, [DTYPE_Q5_0] = CUDA_KERNEL_embed_q5_0,
    [DTYPE_Q5_1] = CUDA_KERNEL_embed_q5_1, [DTYPE_Q8_0] = CUDA_KERNEL_embed_q8_0,
    [DTYPE_Q2_K] = CUDA_KERNEL_embed_q2_k, [DTYPE_Q3_K] = CUDA_KERNEL_embed_q3_k,
    [DTYPE_Q4_K] = CUDA_KERNEL_embed_q4_k, [DTYPE_Q5_K] = CUDA_KERNEL_embed_q5_k,
    [DTYPE_Q6_K] = CUDA_KERNEL_embed_q6_k,
};

struct step {
    struct cuda *cuda;
    struct cuda_queue queue;
    struct cuda_shape shape;
    cuda_kv_view *kv_view;
    const void *kv_context;
    u8 plain[BUFFER_COUNT]; // tensor: the f16 buffer that one of 16-bit integers would be made of
};

// A buffer of the operator. K and V of a small batch lie layer behind layer (struct cuda_kv_rows).
static struct cuda_buffer buffer_of(const struct step *s, const struct plan_op *op, u32 idx) {
    const struct cuda *cuda = s->cuda;
    const struct cuda_kv_rows *rows = &cuda->kv_rows;
    struct cuda_buffer buffer = cuda->buffers[idx];
    u64 n = s->shape.n_tokens, n_layer = cuda->plan->model->params.n_layer;
    if ((idx != BUFFER_K && idx != BUFFER_V) || n > rows->capacity) return buffer;
    buffer.data = rows->card;
    if (idx == BUFFER_V) buffer.data += n_layer * n * rows->k_stride * sizeof(f16);
    buffer.data += op->layer * n * buffer.stride * sizeof(f16);
    return buffer;
}

static enum sov_status launch_embed(struct step *s, const struct plan_op *op, u32 n_rows,
                                    struct sov_fault *fault) {
    struct cuda *cuda = s->cuda;
    struct cuda_buffer dst = buffer_of(s, op, op->dst);
    struct cuda_embed_params params = {
        .tokens = cuda->inputs.tokens,
        .table = cuda_weight_address(cuda, op->weight->data),
        .residual = dst.data,
        .row_bytes = op->weight->row_bytes,
        .n = op->weight->k,
        .residual_stride = dst.stride,
        .scale = cuda->plan->model->params.embed_scale,
    };
    const u32 counts[3] = {n_rows, op->weight->k, 1};
    return cuda_queue_launch(&s->queue, embed_kernels[op->weight->type], counts, 0, &params,
                             sizeof params, fault);
}

// Rows that want logits are picked as rows of an F32 table are: by their number, unchanged (times
// 1).
static enum sov_status launch_gather(struct step *s, const struct plan_op *op, u32 n_rows,
                                     struct sov_fault *fault) {
    struct cuda *cuda = s->cuda;
    struct cuda_buffer src = buffer_of(s, op, op->src), dst = buffer_of(s, op, op->dst);
    struct cuda_embed_params params = {
        .tokens = cuda->inputs.logit_rows,
        .table = src.data,
        .residual = dst.data,
        .row_bytes = (u64)src.stride * sizeof(f32),
        .n = src.width,
        .residual_stride = dst.stride,
        .scale = 1.0f,
    };
    return CUDA_QUEUE(&s->queue, embed_f32, ((u32[]){n_rows, src.width, 1}), 0, &params, fault);
}

static enum sov_status launch_rmsnorm(struct step *s, const struct plan_op *op, u32 n_rows,
                                      struct sov_fault *fault) {
    struct cuda_buffer src = buffer_of(s, op, op->src), dst = buffer_of(s, op, op->dst);
    bool by_heads = op->kind == PLAN_RMSNORM_HEADS, adds = op->kind == PLAN_RMSNORM_ADD;
    bool from_f16 = src.storage == STORAGE_F16;
    enum cuda_kernel kernel =
        from_f16 ? (adds ? CUDA_KERNEL_rmsnorm_fused_f16_add : CUDA_KERNEL_rmsnorm_fused_f16)
                 : (adds ? CUDA_KERNEL_rmsnorm_fused_add : CUDA_KERNEL_rmsnorm_fused);
    u32 n = op->weight->k;
    struct cuda_rmsnorm_params params = {
        .x = src.data,
        .weight = cuda_weight_address(s->cuda, op->weight->data),
        .y = dst.data,
        .n = n,
        .x_stride = src.stride,
        .y_stride = dst.stride,
        .eps = s->cuda->plan->model->params.rms_eps,
    };
    const u32 counts[3] = {n_rows, by_heads ? op->n_head : 1, 1};
    u32 n_threads = by_heads         ? HEAD_THREADS
                    : n <= NORM_LONG ? NORM_THREADS_SHORT
                                     : NORM_THREADS_LONG;
    return cuda_queue_launch(&s->queue, kernel, counts, n_threads, &params, sizeof params, fault);
}

static enum sov_status launch_quantize(struct step *s, const struct plan_op *op, u32 n_rows,
                                       struct sov_fault *fault) {
    struct cuda_buffer src = buffer_of(s, op, op->src), dst = buffer_of(s, op, op->dst);
    if (s->cuda->config.is_tensor) { // the gemms behind it read src, which stays until then
        s->plain[op->dst] = op->src;
        return SOV_OK;
    }
    struct cuda_quantize_planes_params params = {
        .x = src.data,
        .high = dst.q16.high,
        .low = dst.q16.low,
        .scale = dst.q16.scale,
        .sum16 = dst.q16.sum16,
        .sum32 = dst.q16.sum32,
        .n = src.width,
        .x_stride = src.stride,
        .plane_stride = dst.q16.plane_stride,
        .scale_stride = dst.q16.scale_stride,
        .sum_stride = dst.q16.sum_stride,
    };
    return CUDA_QUEUE(&s->queue, quantize_q16_planes, ((u32[]){n_rows, src.width, 1}), 0, &params,
                      fault);
}

static enum sov_status launch_gemm(struct step *s, const struct plan_op *op, u32 n_rows,
                                   struct sov_fault *fault) {
    struct cuda *cuda = s->cuda;
    struct cuda_buffer src = buffer_of(s, op, op->src), dst = buffer_of(s, op, op->dst);
    bool is_tensor = cuda->config.is_tensor &&
                     cuda_gemm_has_tensor(op->weight->type, op->weight->k);
    if (is_tensor && src.storage == STORAGE_Q16) src = buffer_of(s, op, s->plain[op->src]);
    assert(!is_tensor || src.storage == STORAGE_F16);
    struct cuda_gemm_args args = {
        .is_tensor = is_tensor,
        .weight = cuda_weight_address(cuda, op->weight->data),
        .row_bytes = op->weight->row_bytes,
        .type = op->weight->type,
        .k = op->weight->k,
        .features = op->weight->rows,
        .n_tokens = n_rows,
        .xq = src.q16,
        .x = src.data,
        .x_stride = src.stride,
        .bias = op->bias != NULL ? cuda_weight_address(cuda, op->bias->data) : 0,
        .output = op->kind == PLAN_GEMM_ADD    ? GEMM_ADD_F32
                  : dst.storage == STORAGE_F32 ? GEMM_TO_F32
                                               : GEMM_TO_F16,
        .out = dst.data,
        .out_stride = dst.stride,
    };
    return sov_cuda_gemm(&s->queue, &args, fault);
}

static enum sov_status launch_rope(struct step *s, const struct plan_op *op, u32 n_rows,
                                   struct sov_fault *fault) {
    const struct model_params *p = &s->cuda->plan->model->params;
    struct cuda_buffer dst = buffer_of(s, op, op->dst);
    struct cuda_rope_params params = {
        .x = dst.data,
        .positions = s->cuda->inputs.positions,
        .table = op->is_local ? s->cuda->rope_table_local : s->cuda->rope_table,
        .x_stride = dst.stride,
        .n_head = op->n_head,
        .head_dim = p->head_dim,
        .rope_dim = p->rope_dim,
    };
    const u32 counts[3] = {n_rows, op->n_head, 1};
    enum cuda_kernel kernel = p->rope_neox ? CUDA_KERNEL_rope_fused_neox : CUDA_KERNEL_rope_fused;
    return cuda_queue_launch(&s->queue, kernel, counts, 0, &params, sizeof params, fault);
}

static enum sov_status launch_kv_write(struct step *s, const struct plan_op *op, u32 n_rows,
                                       struct sov_fault *fault) {
    struct cuda_buffer k = buffer_of(s, op, op->src), v = buffer_of(s, op, op->src2);
    struct kv_layer kv = s->kv_view(s->kv_context, op->layer);
    struct cuda_kv_append_params params = {
        .k = k.data,
        .v = v.data,
        .cache_k = (u64)(usize)kv.k,
        .cache_v = (u64)(usize)kv.v,
        .tables = s->cuda->inputs.tables,
        .positions = s->cuda->inputs.positions,
        .slots = s->cuda->inputs.slots,
        .page_stride = kv.page_stride,
        .token_stride = kv.token_stride,
        .n = k.width,
        .k_stride = k.stride,
        .v_stride = v.stride,
        .max_blocks = kv.max_blocks,
    };
    return CUDA_QUEUE(&s->queue, kv_append, ((u32[]){n_rows, k.width, 1}), 0, &params, fault);
}

static enum sov_status launch_attention(struct step *s, const struct plan_op *op, u32 n_rows,
                                        struct sov_fault *fault) {
    struct cuda *cuda = s->cuda;
    const struct model_params *p = &cuda->plan->model->params;
    struct cuda_buffer src = buffer_of(s, op, op->src), dst = buffer_of(s, op, op->dst);
    struct kv_layer kv = s->kv_view(s->kv_context, op->layer);
    struct cuda_attention_args args = {
        .q = src.data,
        .q_stride = src.stride,
        .n_rows = n_rows,
        .n_head = op->n_head,
        .n_head_kv = p->n_head_kv,
        .head_dim = p->head_dim,
        .k = (u64)(usize)kv.k,
        .v = (u64)(usize)kv.v,
        .page_stride = kv.page_stride,
        .token_stride = kv.token_stride,
        .tables = cuda->inputs.tables,
        .positions = cuda->inputs.positions,
        .slots = cuda->inputs.slots,
        .max_blocks = kv.max_blocks,
        .scale = p->attention_scale,
        .window = op->is_local ? p->window : 0,
        .out = dst.data,
        .out_stride = dst.stride,
        .n_chunks = s->shape.n_chunks,
        .scratch = cuda->scratch,
        .scratch_bytes = cuda->scratch_bytes,
    };
    return sov_cuda_flash_attention(&s->queue, &args, fault);
}

static enum sov_status launch_act_mul(struct step *s, const struct plan_op *op, u32 n_rows,
                                      struct sov_fault *fault) {
    struct cuda_buffer gate = buffer_of(s, op, op->src), up = buffer_of(s, op, op->src2);
    struct cuda_buffer dst = buffer_of(s, op, op->dst);
    struct cuda_act_mul_params params = {
        .gate = gate.data,
        .up = up.data,
        .out = dst.data,
        .n = gate.width,
        .gate_stride = gate.stride,
        .up_stride = up.stride,
        .out_stride = dst.stride,
    };
    const u32 counts[3] = {n_rows, gate.width, 1};
    enum cuda_kernel kernel = op->kind == PLAN_SILU_MUL ? CUDA_KERNEL_silu_fused
                                                        : CUDA_KERNEL_gelu_tanh_fused;
    return cuda_queue_launch(&s->queue, kernel, counts, 0, &params, sizeof params, fault);
}

static enum sov_status launch_finite(struct step *s, const struct plan_op *op, u32 n_rows,
                                     struct sov_fault *fault) {
    struct cuda_buffer src = buffer_of(s, op, op->src);
    struct cuda_finite_params params = {.x = src.data, .n = src.width, .x_stride = src.stride};
    return CUDA_QUEUE(&s->queue, finite, ((u32[]){n_rows, src.width, 1}), 0, &params, fault);
}

typedef enum sov_status launch_op(struct step *s, const struct plan_op *op, u32 n_rows,
                                  struct sov_fault *fault);
static launch_op *const launch_of[PLAN_OP_KINDS] = {
    [PLAN_EMBED] = launch_embed,           [PLAN_RMSNORM] = launch_rmsnorm,
    [PLAN_RMSNORM_HEADS] = launch_rmsnorm, [PLAN_RMSNORM_ADD] = launch_rmsnorm,
    [PLAN_QUANTIZE] = launch_quantize,     [PLAN_GEMM] = launch_gemm,
    [PLAN_GEMM_ADD] = launch_gemm,         [PLAN_ROPE] = launch_rope,
    [PLAN_KV_WRITE] = launch_kv_write,     [PLAN_ATTENTION] = launch_attention,
    [PLAN_SILU_MUL] = launch_act_mul,      [PLAN_GELU_MUL] = launch_act_mul,
    [PLAN_GATHER] = launch_gather,         [PLAN_FINITE] = launch_finite,
};

// --- a stretch of launches ---

// Puts everything between inputs and wait into the stream.
static enum sov_status launch_step(struct step *s, struct sov_fault *fault) {
    struct cuda *cuda = s->cuda;
    const struct plan *plan = cuda->plan;
    const u32 status_bytes = CUDA_STATUS_WORDS * sizeof(u32);
    u32 n_ops = s->shape.n_logit_rows > 0 ? plan->n_ops : plan->tail;
    enum sov_status status = cuda_fill(&cuda->driver, cuda->stream, cuda->status, 0,
                                       (u64)cuda->capacity * status_bytes, "status words", fault);
    for (u32 i = 0; i < n_ops && status == SOV_OK; i++) {
        s->queue.tag = i;
        u32 n_rows = i >= plan->tail ? s->shape.n_logit_rows : s->shape.n_tokens;
        status = launch_of[plan->ops[i].kind](s, &plan->ops[i], n_rows, fault);
    }
    if (status == SOV_OK) {
        status = cuda_download(&cuda->driver, cuda->stream, cuda->host_status, cuda->status,
                               (u64)s->queue.n * status_bytes, "status words", fault);
    }
    if (status == SOV_OK && s->shape.n_logit_rows > 0) {
        const struct cuda_buffer *logits = &cuda->buffers[BUFFER_LOGITS];
        status = cuda_download(&cuda->driver, cuda->stream, cuda->host_logits, logits->data,
                               (u64)s->shape.n_logit_rows * logits->stride * sizeof(f32), "logits",
                               fault);
    }
    cuda->statistics.n_launches += s->queue.n;
    return status;
}

static bool is_same(struct cuda_shape a, struct cuda_shape b) {
    return a.n_tokens == b.n_tokens && a.n_logit_rows == b.n_logit_rows && a.n_chunks == b.n_chunks;
}

// The entry of the shape; one that was used longest ago is given up for a new one.
static struct cuda_replay *replay_of(struct cuda *cuda, struct cuda_shape shape) {
    struct cuda_replay *oldest = &cuda->replays[0];
    for (u32 i = 0; i < CUDA_GRAPHS_MAX; i++) {
        struct cuda_replay *replay = &cuda->replays[i];
        if (is_same(replay->shape, shape)) return replay;
        if (replay->last_used < oldest->last_used) oldest = replay;
    }
    cuda_graph_destroy(&cuda->driver, oldest->graph);
    *oldest = (struct cuda_replay){.shape = shape, .launched = oldest->launched};
    return oldest;
}

static enum sov_status capture(struct step *s, struct cuda_replay *replay,
                               struct sov_fault *fault) {
    struct cuda *cuda = s->cuda;
    s->queue.launched = replay->launched;
    enum sov_status status = cuda_capture_begin(&cuda->driver, cuda->stream, fault);
    if (status != SOV_OK) return status;
    status = launch_step(s, fault);
    if (status != SOV_OK) {
        cuda_capture_cancel(&cuda->driver, cuda->stream);
        return status;
    }
    status = cuda_capture_end(&cuda->driver, cuda->stream, &replay->graph, fault);
    replay->n_launched = s->queue.n;
    if (status == SOV_OK) cuda->statistics.n_graphs++;
    return status;
}

// Launches the step in the way that suits its shape: a shape that comes a second time is captured.
static enum sov_status run_step(struct step *s, struct sov_fault *fault) {
    struct cuda *cuda = s->cuda;
    s->queue.launched = cuda->launched;
    if (cuda->config.has_no_graphs || s->shape.n_tokens > CUDA_GRAPH_TOKENS_MAX) {
        return launch_step(s, fault);
    }
    struct cuda_replay *replay = replay_of(cuda, s->shape);
    bool is_new = replay->last_used == 0;
    replay->last_used = ++cuda->n_steps;
    if (is_new) return launch_step(s, fault);
    if (replay->graph == NULL) {
        enum sov_status status = capture(s, replay, fault);
        if (status != SOV_OK) return status;
    }
    s->queue.launched = replay->launched;
    s->queue.n = replay->n_launched;
    cuda->statistics.n_replays++;
    return cuda_graph_launch(&cuda->driver, replay->graph, cuda->stream, "step", fault);
}

// --- what goes up ---

static enum sov_status upload_inputs(struct cuda *cuda, const struct cuda_batch *batch,
                                     struct sov_fault *fault) {
    struct cuda_inputs *in = &cuda->inputs;
    usize bytes = batch->n_tokens * sizeof(u32);
    memcpy(in->host, batch->tokens, bytes);
    memcpy(in->host + in->stride, batch->positions, bytes);
    memcpy(in->host + 2ull * in->stride, batch->slots, bytes);
    if (batch->n_logit_rows > 0) {
        memcpy(in->host + 3ull * in->stride, batch->logit_rows, batch->n_logit_rows * sizeof(u32));
    }
    return cuda_upload(&cuda->driver, cuda->stream, in->tokens, in->host,
                       4ull * in->stride * sizeof(u32), "inputs", fault);
}

struct range {
    u64 begin, end; // of table entries
};

// The entries that this batch reads and that the card has otherwise; taken over into the copy.
static struct range changed_entries(struct cuda_inputs *in, const struct cuda_batch *batch,
                                    const struct kv_layer *kv) {
    struct range changed = {~0ull, 0};
    for (u32 i = 0; i < batch->n_tokens; i++) {
        bool is_last = i + 1 == batch->n_tokens || batch->slots[i + 1] != batch->slots[i];
        if (!is_last) continue; // the last row of a sequence sees all that the others see
        u64 row = (u64)batch->slots[i] * kv->max_blocks;
        for (u64 at = row; at <= row + batch->positions[i] / OP_KV_BLOCK_TOKENS; at++) {
            if (in->host_tables[at] == kv->tables[at]) continue;
            in->host_tables[at] = kv->tables[at];
            changed.begin = MIN(changed.begin, at);
            changed.end = at + 1 > changed.end ? at + 1 : changed.end;
        }
    }
    return changed;
}

static enum sov_status upload_tables(struct cuda *cuda, const struct cuda_batch *batch,
                                     const struct kv_layer *kv, struct sov_fault *fault) {
    struct cuda_inputs *in = &cuda->inputs;
    assert(kv->max_blocks == cuda->config.max_blocks);
    u64 n_entries = (u64)cuda->config.n_sequences * kv->max_blocks;
    struct range changed = {0, n_entries};
    if (in->tables_are_known) {
        changed = changed_entries(in, batch, kv);
    } else {
        memcpy(in->host_tables, kv->tables, n_entries * sizeof(u32));
    }
    if (changed.begin >= changed.end) return SOV_OK;
    in->tables_are_known = false; // until the step went well
    return cuda_upload(&cuda->driver, cuda->stream, in->tables + changed.begin * sizeof(u32),
                       in->host_tables + changed.begin, (changed.end - changed.begin) * sizeof(u32),
                       "block tables", fault);
}

// --- power ---

static bool must_stop(const struct cuda *cuda) {
    return cuda->config.stop_word != NULL &&
           __atomic_load_n(cuda->config.stop_word, __ATOMIC_RELAXED) != 0;
}

static enum sov_status wake(struct cuda *cuda, struct sov_fault *fault) {
    if (cuda->is_awake) return SOV_OK;
    enum sov_status status = cuda_stream_wait(&cuda->driver, cuda->control, "power word", fault);
    if (status == SOV_OK) {
        status = cuda_upload(&cuda->driver, cuda->stream, cuda->power, &cuda->host_power[0],
                             sizeof(u32), "power word", fault);
    }
    cuda->is_awake = status == SOV_OK;
    return status;
}

// Until the stream is empty. The stop word puts the power word of the card off, in a stream of its
// own: blocks that have not begun by then store nothing.
static enum sov_status wait_step(struct cuda *cuda, struct sov_fault *fault) {
    if (cuda->config.stop_word == NULL) {
        return cuda_stream_wait(&cuda->driver, cuda->stream, "step", fault);
    }
    bool is_done = false;
    while (!is_done) {
        enum sov_status status =
            cuda_stream_query(&cuda->driver, cuda->stream, "step", &is_done, fault);
        if (status == SOV_OK && !is_done && cuda->is_awake && must_stop(cuda)) {
            cuda->is_awake = false;
            status = cuda_upload(&cuda->driver, cuda->control, cuda->power, &cuda->host_power[1],
                                 sizeof(u32), "power word", fault);
        }
        if (status != SOV_OK) return status;
        if (!is_done) __builtin_ia32_pause();
    }
    return SOV_OK;
}

// --- what came down ---

static enum sov_status op_fault(const struct cuda *cuda, const struct cuda_launched *launched,
                                struct sov_fault *fault) {
    const struct plan_op *op = &cuda->plan->ops[launched->tag];
    if (op->layer == PLAN_NO_LAYER) {
        return fault_set(fault, SOV_ERR_NON_FINITE, "a NaN or an infinity at operator %s (%s)",
                         op->name, plan_op_kind_name(op->kind));
    }
    return fault_set(fault, SOV_ERR_NON_FINITE,
                     "a NaN or an infinity in layer %u at operator %s (%s)", (u32)op->layer,
                     op->name, plan_op_kind_name(op->kind));
}

static enum sov_status judge(const struct step *s, struct sov_fault *fault) {
    const struct cuda *cuda = s->cuda;
    const struct cuda_launched *launched = s->queue.launched;
    struct cuda_outcome outcome = cuda_outcome_of(launched, s->queue.n, cuda->host_status);
    // Before failures: operators may have read what was left out.
    if (outcome.first_incomplete != CUDA_NO_LAUNCH) {
        if (!cuda->is_awake || must_stop(cuda)) {
            return fault_set(fault, SOV_ERR_INTERRUPTED, "the power went during the step");
        }
        const struct cuda_launched *bad = &launched[outcome.first_incomplete];
        u32 n_done = cuda->host_status[2 * outcome.first_incomplete + 1];
        return fault_set(fault, SOV_ERR_IO, "%s: %u of %llu blocks of kernel %s (%s) were done",
                         cuda->driver.card, n_done, bad->blocks, cuda_kernel_name(bad->kernel),
                         cuda->plan->ops[bad->tag].name);
    }
    if (outcome.first_failed == CUDA_NO_LAUNCH) return SOV_OK;
    return op_fault(cuda, &launched[outcome.first_failed], fault);
}

// A fault of the card during the step is known by the wait alone: any of its kernels may have met
// it.
static enum sov_status name_kernels(const struct step *s, struct sov_fault *fault) {
    struct sov_fault inner = *fault;
    const struct cuda_launched *last = &s->queue.launched[s->queue.n - 1];
    *fault = (struct sov_fault){0};
    return fault_set(fault, inner.status, "%s, in kernels %s to %s", inner.message,
                     cuda_kernel_name(s->queue.launched[0].kernel), cuda_kernel_name(last->kernel));
}

// --- the step ---

// Attention's chunks for the position that sees most, as a power of two.
static u32 chunks_of(const struct cuda_batch *batch) {
    u32 last = 0, n = 1;
    for (u32 i = 0; i < batch->n_tokens; i++) last = MAX(last, batch->positions[i]);
    while (n < last / OP_CHUNK + 1) n *= 2;
    return n;
}

static void assert_batch(const struct cuda *cuda, const struct cuda_batch *batch) {
    assert(batch->n_tokens >= 1 && batch->n_tokens <= cuda->config.batch_tokens);
    assert(batch->n_logit_rows <= cuda->config.logit_rows);
    for (u32 i = 0; i < batch->n_tokens; i++) {
        assert(batch->tokens[i] < cuda->plan->model->params.n_vocab);
        assert(batch->positions[i] < cuda->config.n_positions);
        assert(batch->slots[i] < cuda->config.n_sequences);
    }
    for (u32 i = 0; i < batch->n_logit_rows; i++) assert(batch->logit_rows[i] < batch->n_tokens);
}

// What the step appended to the cache can be had from its rows from now on.
static void keep_kv_rows(const struct step *s) {
    struct cuda_kv_rows *rows = &s->cuda->kv_rows;
    struct kv_layer first = s->kv_view(s->kv_context, 0), second = first;
    bool has_second = s->cuda->plan->model->params.n_layer > 1;
    if (has_second) second = s->kv_view(s->kv_context, 1);
    rows->layer_stride = has_second ? (u64)(second.k - first.k) : s->cuda->config.kv_plane_bytes;
    rows->page_stride = first.page_stride;
    rows->token_stride = first.token_stride;
    rows->is_down = false;
    rows->n_tokens = s->shape.n_tokens <= rows->capacity ? s->shape.n_tokens : 0;
}

enum sov_status cuda_forward(struct cuda *cuda, const struct cuda_batch *batch,
                             cuda_kv_view *kv_view, const void *kv_context, const f32 **logits,
                             u32 *logit_stride, struct sov_fault *fault) {
    assert_batch(cuda, batch);
    if (cuda->lost.status != SOV_OK) { // the first fault says why
        return fault_set(fault, cuda->lost.status, "%s", cuda->lost.message);
    }
    if (must_stop(cuda)) {
        return fault_set(fault, SOV_ERR_INTERRUPTED, "the power went before the step");
    }
    struct kv_layer kv = kv_view(kv_context, 0);
    assert((u64)(usize)kv.k == cuda->kv); // graphs hold addresses of the planes
    struct step s = {
        .cuda = cuda,
        .queue = {.kernels = &cuda->kernels,
                  .stream = cuda->stream,
                  .power = cuda->power,
                  .status = cuda->status,
                  .capacity = cuda->capacity},
        .shape = {batch->n_tokens, batch->n_logit_rows, chunks_of(batch)},
        .kv_view = kv_view,
        .kv_context = kv_context,
    };
    u32 n_head = cuda->plan->model->params.n_head;
    cuda_forget_kv_read(cuda);
    if (!cuda_attention_splits(s.shape.n_tokens, n_head, s.shape.n_chunks)) s.shape.n_chunks = 1;
    enum sov_status status = wake(cuda, fault);
    if (status == SOV_OK) status = upload_inputs(cuda, batch, fault);
    if (status == SOV_OK) status = upload_tables(cuda, batch, &kv, fault);
    if (status == SOV_OK) status = run_step(&s, fault);
    if (status == SOV_OK) {
        status = wait_step(cuda, fault);
        if (status != SOV_OK) status = name_kernels(&s, fault);
    }
    if (status != SOV_OK) { // S1
        struct sov_fault ignored = {0};
        enum sov_status drained = cuda_stream_wait(&cuda->driver, cuda->stream, "step", &ignored);
        cuda->inputs.tables_are_known = false;
        if (drained != SOV_OK) cuda->lost = *fault;
        return status;
    }
    cuda->inputs.tables_are_known = true;
    status = judge(&s, fault);
    if (status == SOV_OK) keep_kv_rows(&s);
    *logits = cuda->host_logits;
    *logit_stride = cuda->buffers[BUFFER_LOGITS].stride;
    return status;
}
