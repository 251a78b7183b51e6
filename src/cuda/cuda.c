// SPDX-License-Identifier: Apache-2.0
// Opening and closing: what the model asks of the kernels, memory of the card and of the host, the
// weights' way up, and bytes of the KV planes.
#include "cuda/cuda_private.h"
#include "freestanding/mem.h"

#define ROW_ALIGN 64u   // bytes between row starts are a multiple of this
#define NORM_MAX 32768u // elements of a row that is normed (N1 of norm_rope.ptx.S)
#define WEIGHT_ALIGN 4u // of a tensor in its file (M2 of gemm.ptx.S)

static u32 element_bytes(enum plan_storage storage) {
    return storage == STORAGE_F16 ? sizeof(f16) : sizeof(f32);
}

static u32 stride_of(enum plan_storage storage, u32 width) {
    u32 element = element_bytes(storage);
    return (u32)(round_up((u64)width * element, ROW_ALIGN) / element);
}

static u32 buffer_rows(const struct plan_buffer_info *info, const struct cuda_config *config) {
    return info->is_tail ? config->logit_rows : MAX(config->batch_tokens, config->logit_rows);
}

static bool has_local(const struct plan *plan) { return plan->model->params.window != 0; }

static u64 rope_table_bytes(const struct plan *plan, const struct cuda_config *config) {
    return (u64)config->n_positions * plan->model->params.rope_dim * sizeof(f32);
}

static u64 table_bytes(const struct cuda_config *config) {
    return (u64)config->n_sequences * config->max_blocks * sizeof(u32);
}

static u32 input_stride(const struct cuda_config *config) {
    return (u32)round_up(MAX(config->batch_tokens, config->logit_rows), ROW_ALIGN / sizeof(u32));
}

// Attention may be two launches, everything else is one.
static u32 launch_capacity(const struct plan *plan) {
    u32 n = plan->n_ops;
    for (u32 i = 0; i < plan->n_ops; i++) n += plan->ops[i].kind == PLAN_ATTENTION;
    return n;
}

static u64 scratch_bytes(const struct plan *plan, const struct cuda_config *config) {
    const struct model_params *p = &plan->model->params;
    u32 n_chunks = (config->n_positions + OP_CHUNK - 1) / OP_CHUNK, n_rows = config->batch_tokens;
    while (n_rows > 1 && !cuda_attention_splits(n_rows, p->n_head, 2)) n_rows--;
    while ((n_chunks & (n_chunks - 1)) != 0) n_chunks++; // as in cuda_step.c
    u64 bytes = cuda_attention_scratch_bytes(n_rows, p->n_head, n_chunks, p->head_dim);
    return MIN(bytes, CUDA_SCRATCH_BYTES_MAX);
}

// Bytes of K and V of one token in all layers.
static u64 kv_row_bytes(const struct cuda_kv_rows *rows, const struct plan *plan) {
    return ((u64)rows->k_stride + rows->v_stride) * sizeof(f16) * plan->model->params.n_layer;
}

// --- the card's memory, cut into pieces ---

struct cutter {
    u64 base, used;
};

static u64 cut(struct cutter *c, u64 bytes) {
    u64 at = c->base + c->used;
    c->used += round_up(bytes, CUDA_ALIGN);
    return at;
}

static struct cuda_buffer cut_buffer(struct cutter *c, const struct plan_buffer_info *info,
                                     const struct cuda_config *config) {
    struct cuda_buffer buffer = {.storage = info->storage, .width = info->width};
    if (info->width == 0) return buffer;
    if (info->storage == STORAGE_Q16 && config->is_tensor) return buffer; // there are none
    u64 rows = buffer_rows(info, config);
    if (info->storage != STORAGE_Q16) {
        buffer.stride = stride_of(info->storage, info->width);
        buffer.data = cut(c, rows * buffer.stride * element_bytes(info->storage));
        return buffer;
    }
    struct cuda_q16 *q = &buffer.q16;
    q->plane_stride = (u32)round_up(info->width, ROW_ALIGN);
    q->scale_stride =
        (u32)round_up((info->width + OP_GROUP - 1) / OP_GROUP, ROW_ALIGN / sizeof(f32));
    q->sum_stride = (u32)round_up((info->width + 15) / 16, ROW_ALIGN / sizeof(i32));
    q->high = cut(c, rows * q->plane_stride);
    q->low = cut(c, rows * q->plane_stride);
    q->scale = cut(c, rows * q->scale_stride * sizeof(f32));
    q->sum16 = cut(c, rows * q->sum_stride * sizeof(i32));
    q->sum32 = cut(c, rows * q->sum_stride * sizeof(i32));
    return buffer;
}

// Everything but weights and KV planes, from c->base on. Of a cutter with base 0 only the size is
// of use.
static void cut_rest(struct cuda *cuda, struct cutter *c) {
    const struct plan *plan = cuda->plan;
    const struct cuda_config *config = &cuda->config;
    u32 stride = input_stride(config);
    cuda_address inputs = cut(c, 4ull * stride * sizeof(u32));
    cuda->inputs.stride = stride;
    cuda->inputs.tokens = inputs;
    cuda->inputs.positions = inputs + 1ull * stride * sizeof(u32);
    cuda->inputs.slots = inputs + 2ull * stride * sizeof(u32);
    cuda->inputs.logit_rows = inputs + 3ull * stride * sizeof(u32);
    cuda->inputs.tables = cut(c, table_bytes(config));
    cuda->power = cut(c, sizeof(u32));
    cuda->capacity = launch_capacity(plan);
    cuda->status = cut(c, (u64)cuda->capacity * CUDA_STATUS_WORDS * sizeof(u32));
    for (u32 i = 0; i < BUFFER_COUNT; i++) {
        cuda->buffers[i] = cut_buffer(c, &plan->buffers[i], config);
    }
    cuda->rope_table = cut(c, rope_table_bytes(plan, config));
    cuda->rope_table_local = cuda->rope_table;
    if (has_local(plan)) cuda->rope_table_local = cut(c, rope_table_bytes(plan, config));
    struct cuda_kv_rows *rows = &cuda->kv_rows;
    rows->k_stride = cuda->buffers[BUFFER_K].stride;
    rows->v_stride = cuda->buffers[BUFFER_V].stride;
    u64 row_bytes = kv_row_bytes(rows, plan);
    rows->capacity = (u32)MIN((u64)config->batch_tokens, CUDA_KV_ROWS_BYTES_MAX / row_bytes);
    rows->card = cut(c, rows->capacity * row_bytes);
    cuda->scratch_bytes = scratch_bytes(plan, config);
    cuda->scratch = cut(c, cuda->scratch_bytes);
}

// The same of the host's pinned memory; `base` is NULL when only the size is of use.
static void *cut_host(u8 *base, struct cutter *c, u64 bytes) {
    u64 at = cut(c, bytes);
    return base == NULL ? NULL : base + at;
}

static void cut_pinned(struct cuda *cuda, u8 *base, struct cutter *c) {
    const struct cuda_config *config = &cuda->config;
    u64 status_bytes = (u64)cuda->capacity * CUDA_STATUS_WORDS * sizeof(u32);
    u64 logits_bytes = (u64)cuda->buffers[BUFFER_LOGITS].stride * sizeof(f32) * config->logit_rows;
    cuda->inputs.host = cut_host(base, c, 4ull * input_stride(config) * sizeof(u32));
    cuda->inputs.host_tables = cut_host(base, c, table_bytes(config));
    cuda->host_status = cut_host(base, c, status_bytes);
    cuda->host_power = cut_host(base, c, 2 * sizeof(u32));
    cuda->host_logits = cut_host(base, c, logits_bytes);
    u64 row_bytes = kv_row_bytes(&cuda->kv_rows, cuda->plan);
    cuda->kv_rows.host = cut_host(base, c, cuda->kv_rows.capacity * row_bytes);
    const struct model_params *p = &cuda->plan->model->params;
    cuda->kv_run.capacity = (u64)CUDA_KV_RUN_TOKENS * p->n_head_kv * p->head_dim * sizeof(f16);
    cuda->kv_run.host = cut_host(base, c, 2 * p->n_layer * cuda->kv_run.capacity);
}

// --- the weights ---

// The bytes of a shard that hold tensors.
static struct cuda_uploaded shard_range(const struct gguf *gguf, u32 shard) {
    struct cuda_uploaded range = {.begin = gguf->shards[shard].bytes};
    range.end = range.begin;
    for (u32 i = 0; i < gguf->n_tensors; i++) {
        const struct gguf_tensor *tensor = &gguf->tensors[i];
        if (tensor->shard == shard) range.begin = MIN(range.begin, tensor->data_offset);
    }
    range.begin &= ~(u64)(CUDA_ALIGN - 1); // addresses keep their place between multiples of it
    return range;
}

static u64 weight_bytes(const struct gguf *gguf) {
    u64 total = 0;
    for (u32 i = 0; i < gguf->n_shards; i++) {
        struct cuda_uploaded range = shard_range(gguf, i);
        total += round_up(range.end - range.begin, CUDA_ALIGN);
    }
    return MAX(total, (u64)CUDA_ALIGN);
}

static u64 half_bytes(const struct plan *plan) {
    u64 whole = round_up(weight_bytes(&plan->model->gguf), CUDA_ALIGN);
    return MIN(MAX(whole, (u64)CUDA_STAGING_MIN), (u64)CUDA_STAGING_MAX);
}

cuda_address cuda_weight_address(const struct cuda *cuda, const u8 *data) {
    const struct gguf *gguf = &cuda->plan->model->gguf;
    for (u32 i = 0; i < gguf->n_shards; i++) {
        u64 at = (u64)(usize)data - (u64)(usize)gguf->shards[i].data;
        if (at < gguf->shards[i].bytes) return cuda->shards[i].at + (at - cuda->shards[i].begin);
    }
    assert(!"bytes of the model's file");
}

// Copies to the card through the staging, half by half: one is filled while the other is read. Ends
// with both in flight; whoever uses the staging next waits for the stream.
static enum sov_status upload_bytes(struct cuda *cuda, cuda_address to, const u8 *from, u64 bytes,
                                    const char *what, u64 *done, u64 total,
                                    struct sov_fault *fault) {
    enum sov_status status = SOV_OK;
    for (u64 at = 0, i = 0; at < bytes && status == SOV_OK; at += cuda->half_bytes, i++) {
        u64 n = MIN(bytes - at, cuda->half_bytes);
        u8 *half = cuda->staging + (i % 2) * cuda->half_bytes;
        if (i >= 2) status = cuda_event_wait(&cuda->driver, cuda->half_free[i % 2], fault);
        if (status != SOV_OK) break;
        memcpy(half, from + at, n);
        status = cuda_upload(&cuda->driver, cuda->stream, to + at, half, n, what, fault);
        if (status == SOV_OK) {
            status = cuda_event_record(&cuda->driver, cuda->half_free[i % 2], cuda->stream, fault);
        }
        if (done == NULL) continue;
        *done += n;
        if (cuda->config.progress != NULL) {
            cuda->config.progress(cuda->config.progress_context, *done, total);
        }
    }
    if (status != SOV_OK) return status;
    return cuda_stream_wait(&cuda->driver, cuda->stream, what, fault);
}

static enum sov_status upload_weights(struct cuda *cuda, struct sov_fault *fault) {
    const struct gguf *gguf = &cuda->plan->model->gguf;
    u64 total = 0, done = 0;
    cuda_address at = cuda->weights;
    for (u32 i = 0; i < gguf->n_shards; i++) {
        cuda->shards[i] = shard_range(gguf, i);
        cuda->shards[i].at = at;
        at += round_up(cuda->shards[i].end - cuda->shards[i].begin, CUDA_ALIGN);
        total += cuda->shards[i].end - cuda->shards[i].begin;
    }
    enum sov_status status = SOV_OK;
    for (u32 i = 0; i < gguf->n_shards && status == SOV_OK; i++) {
        const struct cuda_uploaded *shard = &cuda->shards[i];
        status = upload_bytes(cuda, shard->at, gguf->shards[i].data + shard->begin,
                              shard->end - shard->begin, "weights", &done, total, fault);
    }
    // What was read behind the end of a file cut short is no weight.
    return status == SOV_OK ? gguf_check_files(gguf, fault) : status;
}

// The table is made in memory of the host that is given back.
static enum sov_status upload_rope_table(struct cuda *cuda, bool local, cuda_address to,
                                         struct sov_fault *fault) {
    u64 bytes = rope_table_bytes(cuda->plan, &cuda->config);
    f32 *table = platform_memory_map(bytes);
    if (table == NULL) {
        return fault_set(fault, SOV_ERR_MEMORY, "rope table: %llu bytes are not to be had", bytes);
    }
    model_rope_table(cuda->plan->model, local, cuda->config.n_positions, table);
    enum sov_status status =
        upload_bytes(cuda, to, (const u8 *)table, bytes, "rope table", NULL, 0, fault);
    platform_memory_unmap(table, bytes);
    return status;
}

// --- what the kernels have ---

static enum sov_status check_weight(const struct plan *plan, const struct weight *weight, u32 align,
                                    struct sov_fault *fault) {
    const struct gguf *gguf = &plan->model->gguf;
    for (u32 i = 0; i < gguf->n_shards; i++) {
        u64 at = (u64)(usize)weight->data - (u64)(usize)gguf->shards[i].data;
        if (at >= gguf->shards[i].bytes || at % align == 0) continue;
        return fault_set(
            fault, SOV_ERR_UNSUPPORTED,
            "tensor %.*s begins at byte %llu of its file: CUDA kernels take weights at "
            "multiples of %u",
            STR_ARG(weight->name), at, align);
    }
    return SOV_OK;
}

static enum sov_status check_op(const struct plan *plan, const struct plan_op *op, bool is_tensor,
                                struct sov_fault *fault) {
    enum sov_status status = SOV_OK;
    bool is_gemm = op->kind == PLAN_GEMM || op->kind == PLAN_GEMM_ADD;
    u32 align = WEIGHT_ALIGN;
    if (is_tensor && is_gemm && cuda_gemm_has_tensor(op->weight->type, op->weight->k)) {
        align = CUDA_TENSOR_ALIGN;
    }
    if (op->weight != NULL) status = check_weight(plan, op->weight, align, fault);
    if (status == SOV_OK && op->bias != NULL) {
        status = check_weight(plan, op->bias, WEIGHT_ALIGN, fault);
    }
    if (status != SOV_OK) return status;
    bool is_norm = op->kind == PLAN_RMSNORM || op->kind == PLAN_RMSNORM_ADD;
    assert(op->weight != NULL || !(is_gemm || is_norm));
    if (is_gemm && (!cuda_gemm_has(op->weight->type) || op->weight->row_bytes > 0xffffffffu)) {
        return fault_set(fault, SOV_ERR_NO_KERNEL, "%s: no CUDA gemm kernel for type %s (%.*s)",
                         op->name, dtype_name(op->weight->type), STR_ARG(op->weight->name));
    }
    if (is_norm && op->weight->k > NORM_MAX) {
        return fault_set(fault, SOV_ERR_UNSUPPORTED,
                         "%s: a row of %u elements, CUDA kernels norm up to %u", op->name,
                         op->weight->k, NORM_MAX);
    }
    return SOV_OK;
}

static enum sov_status check_plan(const struct plan *plan, bool is_tensor,
                                  struct sov_fault *fault) {
    u32 head_dim = plan->model->params.head_dim;
    if (head_dim % 8 != 0) {
        return fault_set(fault, SOV_ERR_UNSUPPORTED,
                         "heads of %u elements: CUDA attention takes multiples of 8", head_dim);
    }
    enum sov_status status = SOV_OK;
    for (u32 i = 0; i < plan->n_ops && status == SOV_OK; i++) {
        status = check_op(plan, &plan->ops[i], is_tensor, fault);
    }
    return status;
}

// --- opening and closing ---

// Until the stream is empty, after a failure or at the end. False: the card fails that too.
static bool drain(const struct cuda *cuda) {
    struct sov_fault ignored = {0};
    return cuda_stream_wait(&cuda->driver, cuda->stream, "end", &ignored) == SOV_OK;
}

struct cuda_memory cuda_memory_plan(const struct plan *plan, const struct cuda_config *config) {
    struct cuda shape = {.plan = plan, .config = *config};
    struct cutter rest = {0}, pinned = {0};
    cut_rest(&shape, &rest);
    cut_pinned(&shape, NULL, &pinned);
    u64 launched = (u64)shape.capacity * sizeof(struct cuda_launched);
    return (struct cuda_memory){
        .arena = sizeof(struct cuda) + (CUDA_GRAPHS_MAX + 1) * launched +
                 plan->model->gguf.n_shards * sizeof(struct cuda_uploaded) + 4ull * ROW_ALIGN,
        .pinned = 2 * half_bytes(plan) + pinned.used,
        .weights = weight_bytes(&plan->model->gguf),
        .kv = 2 * round_up(config->kv_plane_bytes, CUDA_ALIGN),
        .rest = rest.used,
    };
}

static enum sov_status take_memory(struct cuda *cuda, struct sov_fault *fault) {
    const struct cuda_driver *driver = &cuda->driver;
    struct cuda_memory memory = cuda_memory_plan(cuda->plan, &cuda->config);
    cuda->half_bytes = half_bytes(cuda->plan);
    enum sov_status status =
        cuda_memory_alloc(driver, memory.weights, "weights", &cuda->weights, fault);
    if (status == SOV_OK) {
        status = cuda_memory_alloc(driver, memory.kv, "the KV cache", &cuda->kv, fault);
    }
    if (status == SOV_OK) {
        status = cuda_memory_alloc(driver, memory.rest, "activations", &cuda->rest, fault);
    }
    void *staging = NULL, *pinned = NULL;
    if (status == SOV_OK) {
        status = cuda_pinned_alloc(driver, 2 * cuda->half_bytes, "staging", &staging, NULL, fault);
        cuda->staging = staging;
    }
    if (status == SOV_OK) {
        status = cuda_pinned_alloc(driver, memory.pinned - 2 * cuda->half_bytes,
                                   "what changes in a step", &pinned, NULL, fault);
        cuda->pinned = pinned;
    }
    if (status != SOV_OK) return status;
    struct cutter rest = {.base = cuda->rest}, host = {0};
    cut_rest(cuda, &rest);
    cut_pinned(cuda, cuda->pinned, &host);
    cuda->host_power[0] = CUDA_POWER_ACTIVE;
    cuda->host_power[1] = 0;
    return SOV_OK;
}

static enum sov_status fill_card(struct cuda *cuda, struct sov_fault *fault) {
    struct cuda_memory memory = cuda_memory_plan(cuda->plan, &cuda->config);
    // Nothing reads what was not written; zeros keep that so where a kernel loads whole words.
    enum sov_status status =
        cuda_fill(&cuda->driver, cuda->stream, cuda->rest, 0, memory.rest, "activations", fault);
    if (status == SOV_OK) {
        status = cuda_fill(&cuda->driver, cuda->stream, cuda->kv, 0, memory.kv, "KV cache", fault);
    }
    if (status == SOV_OK) status = upload_rope_table(cuda, false, cuda->rope_table, fault);
    if (status == SOV_OK && has_local(cuda->plan)) {
        status = upload_rope_table(cuda, true, cuda->rope_table_local, fault);
    }
    if (status == SOV_OK) status = upload_weights(cuda, fault);
    return status;
}

static enum sov_status open_card(struct cuda *cuda, struct sov_fault *fault) {
    const struct cuda_driver *driver = &cuda->driver;
    const struct cuda_config *config = &cuda->config;
    enum sov_status status =
        cuda_driver_open(&cuda->driver, config->start, &config->options, fault);
    // Memory first: it is where most that fails will fail, and compiling takes seconds.
    if (status == SOV_OK) status = take_memory(cuda, fault);
    if (status == SOV_OK) status = cuda_stream_create(driver, &cuda->stream, fault);
    if (status == SOV_OK) status = cuda_stream_create(driver, &cuda->control, fault);
    for (u32 i = 0; i < 2 && status == SOV_OK; i++) {
        status = cuda_event_create(driver, &cuda->half_free[i], fault);
    }
    if (status == SOV_OK) status = cuda_kernels_open(&cuda->kernels, driver, fault);
    return status == SOV_OK ? fill_card(cuda, fault) : status;
}

enum sov_status cuda_create(const struct plan *plan, const struct cuda_config *config,
                            struct arena *arena, struct cuda **result, struct sov_fault *fault) {
    assert(config->batch_tokens >= 1 && config->batch_tokens <= CUDA_BATCH_TOKENS_MAX);
    assert(config->logit_rows >= 1 && config->logit_rows <= CUDA_BATCH_TOKENS_MAX);
    assert(config->n_positions >= 1 && config->kv_plane_bytes >= 1);
    enum sov_status status = check_plan(plan, config->is_tensor, fault);
    if (status != SOV_OK) return status;
    struct cuda *cuda = arena_alloc(arena, sizeof *cuda, ROW_ALIGN);
    u32 n_launched = (CUDA_GRAPHS_MAX + 1) * launch_capacity(plan);
    struct cuda_launched *launched = arena_array(arena, struct cuda_launched, n_launched);
    struct cuda_uploaded *shards =
        arena_array(arena, struct cuda_uploaded, plan->model->gguf.n_shards);
    if (cuda == NULL || launched == NULL || shards == NULL) {
        return arena_fault(arena, fault, "CUDA backend", cuda_memory_plan(plan, config).arena);
    }
    memset(cuda, 0, sizeof *cuda);
    cuda->plan = plan;
    cuda->config = *config;
    cuda->shards = shards;
    status = open_card(cuda, fault);
    if (status != SOV_OK) {
        cuda_destroy(cuda);
        return status;
    }
    cuda->launched = launched;
    for (u32 i = 0; i < CUDA_GRAPHS_MAX; i++) {
        cuda->replays[i].launched = launched + (u64)(i + 1) * cuda->capacity;
    }
    *result = cuda;
    return SOV_OK;
}

void cuda_destroy(struct cuda *cuda) {
    const struct cuda_driver *driver = &cuda->driver;
    if (!driver->is_open) return;
    if (cuda->stream != NULL) (void)drain(cuda); // an error was reported where it came
    for (u32 i = 0; i < CUDA_GRAPHS_MAX; i++) cuda_graph_destroy(driver, cuda->replays[i].graph);
    cuda_kernels_close(&cuda->kernels);
    for (u32 i = 0; i < 2; i++) cuda_event_destroy(driver, cuda->half_free[i]);
    cuda_stream_destroy(driver, cuda->control);
    cuda_stream_destroy(driver, cuda->stream);
    cuda_pinned_free(driver, cuda->pinned);
    cuda_pinned_free(driver, cuda->staging);
    cuda_memory_free(driver, cuda->rest);
    cuda_memory_free(driver, cuda->kv);
    cuda_memory_free(driver, cuda->weights);
    cuda_driver_close(&cuda->driver);
}

const struct cuda_driver *cuda_driver_of(const struct cuda *cuda) { return &cuda->driver; }

struct cuda_statistics cuda_statistics_of(const struct cuda *cuda) {
    return cuda->statistics;
}

// --- bytes of the KV planes ---

void cuda_kv_planes(struct cuda *cuda, u8 **k, u8 **v) {
    // NOLINTNEXTLINE(performance-no-int-to-ptr): an address of the card, never read through
    *k = (u8 *)(usize)cuda->kv;
    *v = *k + round_up(cuda->config.kv_plane_bytes, CUDA_ALIGN);
}

// What failed is said; a card that fails a wait too is lost with it.
static enum sov_status kv_failed(struct cuda *cuda, const struct sov_fault *own,
                                 struct sov_fault *fault) {
    if (!drain(cuda) && cuda->lost.status == SOV_OK) cuda->lost = *own;
    return fault_set(fault, own->status, "%s", own->message);
}

void cuda_forget_kv_read(struct cuda *cuda) {
    cuda->kv_rows.n_tokens = 0;
    cuda->kv_run.bytes = 0;
}

enum sov_status cuda_kv_copy(void *context, u8 *to, const u8 *from, u64 stride, u64 bytes, u32 n,
                             struct sov_fault *fault) {
    struct cuda *cuda = context;
    struct sov_fault own = {0};
    enum sov_status status = SOV_OK;
    cuda_forget_kv_read(cuda);
    for (u64 i = 0; i < n && status == SOV_OK; i++) {
        status = cuda_copy(&cuda->driver, cuda->stream, (u64)(usize)to + i * stride,
                           (u64)(usize)from + i * stride, bytes, "a KV block", &own);
    }
    return status == SOV_OK ? SOV_OK : kv_failed(cuda, &own, fault);
}

// The row of the last step's batch that was appended at a place of the cache (offset in a plane,
// of layer 0); the search begins at `first`. n_tokens: none was.
static u32 row_at(const struct cuda *cuda, u64 off, u32 first) {
    const struct cuda_kv_rows *rows = &cuda->kv_rows;
    const struct cuda_inputs *in = &cuda->inputs;
    u64 block = off / rows->page_stride;
    u64 inside = off % rows->page_stride / rows->token_stride;
    for (u32 i = 0; i < rows->n_tokens; i++) {
        u32 row = (first + i) % rows->n_tokens;
        u32 position = in->host[in->stride + row], slot = in->host[2ull * in->stride + row];
        if (position % OP_KV_BLOCK_TOKENS != inside) continue;
        u64 entry = (u64)slot * cuda->config.max_blocks + position / OP_KV_BLOCK_TOKENS;
        if (in->host_tables[entry] == block) return row;
    }
    return rows->n_tokens;
}

// The first of n rows of the last step that lie one behind the other as the places of the cache
// from `off` on do. n_tokens: there are none.
static u32 find_rows(struct cuda *cuda, u64 off, u32 n) {
    struct cuda_kv_rows *rows = &cuda->kv_rows;
    u32 first = row_at(cuda, off, rows->hint);
    if (first == rows->n_tokens) return first;
    for (u32 i = 1; i < n; i++) {
        if (row_at(cuda, off + i * rows->token_stride, first + i) != first + i) {
            return rows->n_tokens;
        }
    }
    rows->hint = first; // where the next read begins most often: the same rows of another layer
    return first;
}

static enum sov_status bring_rows_down(struct cuda *cuda, struct sov_fault *fault) {
    struct cuda_kv_rows *rows = &cuda->kv_rows;
    if (rows->is_down) return SOV_OK;
    u64 bytes = rows->n_tokens * kv_row_bytes(rows, cuda->plan);
    enum sov_status status =
        cuda_download(&cuda->driver, cuda->stream, rows->host, rows->card, bytes, "K and V", fault);
    if (status == SOV_OK) {
        status = cuda_stream_wait(&cuda->driver, cuda->stream, "K and V", fault);
    }
    rows->is_down = status == SOV_OK;
    return status;
}

// A place of the cache: which plane and layer, and where in it.
struct kv_place {
    bool is_v;
    u64 layer, off;
};

static struct kv_place kv_place_of(const struct cuda *cuda, u64 address) {
    u64 off = address - cuda->kv, v_off = round_up(cuda->config.kv_plane_bytes, CUDA_ALIGN);
    bool is_v = off >= v_off;
    if (is_v) off -= v_off;
    u64 layer_stride = cuda->kv_rows.layer_stride;
    return (struct kv_place){is_v, off / layer_stride, off % layer_stride};
}

// Serves a read of rows that the last step appended; *is_served false: the cache must be read.
static enum sov_status read_rows(struct cuda *cuda, u8 *memory, u64 memory_stride,
                                 const struct kv_place *place, u64 bytes, u32 n, bool *is_served,
                                 struct sov_fault *fault) {
    struct cuda_kv_rows *rows = &cuda->kv_rows;
    *is_served = false;
    if (rows->n_tokens == 0 || bytes != rows->token_stride) return SOV_OK;
    u64 n_layer = cuda->plan->model->params.n_layer;
    u32 first = find_rows(cuda, place->off, n);
    if (first == rows->n_tokens) return SOV_OK;
    enum sov_status status = bring_rows_down(cuda, fault);
    if (status != SOV_OK) return status;
    u64 row_stride = (place->is_v ? rows->v_stride : rows->k_stride) * sizeof(f16);
    const u8 *at = rows->host + (place->layer * rows->n_tokens + first) * row_stride;
    if (place->is_v) at += n_layer * rows->n_tokens * rows->k_stride * sizeof(f16);
    for (u32 i = 0; i < n; i++) memcpy(memory + i * memory_stride, at + i * row_stride, bytes);
    *is_served = true;
    return SOV_OK;
}

// Serves a read of `n` pieces that lie one behind the other, and brings those of all layers.
static enum sov_status read_run(struct cuda *cuda, u8 *memory, u64 memory_stride,
                                const struct kv_place *place, u64 bytes, u32 n,
                                struct sov_fault *fault) {
    struct cuda_kv_run *run = &cuda->kv_run;
    u64 n_layer = cuda->plan->model->params.n_layer, total = bytes * n;
    if (run->bytes != total || run->off != place->off) {
        run->bytes = 0;
        enum sov_status status = SOV_OK;
        u8 *to = run->host;
        u64 at = cuda->kv + place->off, layer_stride = cuda->kv_rows.layer_stride;
        u64 v_off = round_up(cuda->config.kv_plane_bytes, CUDA_ALIGN);
        for (u64 i = 0; i < n_layer && status == SOV_OK; i++, at += layer_stride) {
            u8 *to_v = to + n_layer * run->capacity;
            status = cuda_download(&cuda->driver, cuda->stream, to, at, total, "K and V", fault);
            if (status == SOV_OK) {
                status = cuda_download(&cuda->driver, cuda->stream, to_v, at + v_off, total,
                                       "K and V", fault);
            }
            to += run->capacity;
        }
        if (status == SOV_OK) {
            status = cuda_stream_wait(&cuda->driver, cuda->stream, "K and V", fault);
        }
        if (status != SOV_OK) return status;
        run->bytes = total;
        run->off = place->off;
    }
    const u8 *from = run->host + ((place->is_v ? n_layer : 0) + place->layer) * run->capacity;
    for (u32 i = 0; i < n; i++) memcpy(memory + i * memory_stride, from + i * bytes, bytes);
    return SOV_OK;
}

enum sov_status cuda_kv_read(void *context, u8 *memory, u64 memory_stride, const u8 *from,
                             u64 stride, u64 bytes, u32 n, struct sov_fault *fault) {
    struct cuda *cuda = context;
    u32 at_once = (u32)MIN(2 * cuda->half_bytes / bytes, (u64)n);
    assert(at_once > 0);
    struct sov_fault own = {0};
    enum sov_status status = SOV_OK;
    if (stride == bytes && cuda->kv_rows.layer_stride != 0) {
        struct kv_place place = kv_place_of(cuda, (u64)(usize)from);
        bool is_served = false;
        status = read_rows(cuda, memory, memory_stride, &place, bytes, n, &is_served, &own);
        if (status == SOV_OK && !is_served && bytes * n <= cuda->kv_run.capacity) {
            status = read_run(cuda, memory, memory_stride, &place, bytes, n, &own);
            is_served = status == SOV_OK;
        }
        if (is_served) return SOV_OK;
    }
    for (u64 done = 0; done < n && status == SOV_OK; done += at_once) {
        u64 n_now = MIN(n - done, (u64)at_once);
        // Pieces that lie one behind the other are one.
        u64 n_pieces = stride == bytes ? 1 : n_now, piece = stride == bytes ? n_now * bytes : bytes;
        for (u64 i = 0; i < n_pieces && status == SOV_OK; i++) {
            cuda_address at = (u64)(usize)from + (done + i) * stride;
            status = cuda_download(&cuda->driver, cuda->stream, cuda->staging + i * bytes, at,
                                   piece, "a KV block", &own);
        }
        if (status == SOV_OK) {
            status = cuda_stream_wait(&cuda->driver, cuda->stream, "a KV block", &own);
        }
        for (u64 i = 0; i < n_now && status == SOV_OK; i++) {
            memcpy(memory + (done + i) * memory_stride, cuda->staging + i * bytes, bytes);
        }
    }
    return status == SOV_OK ? SOV_OK : kv_failed(cuda, &own, fault);
}

enum sov_status cuda_kv_write(void *context, u8 *to, u64 stride, const u8 *memory,
                              u64 memory_stride, u64 bytes, u32 n, struct sov_fault *fault) {
    struct cuda *cuda = context;
    u32 at_once = (u32)MIN(2 * cuda->half_bytes / bytes, (u64)n);
    assert(at_once > 0);
    struct sov_fault own = {0};
    enum sov_status status = SOV_OK;
    cuda_forget_kv_read(cuda);
    for (u64 done = 0; done < n && status == SOV_OK; done += at_once) {
        u64 n_now = MIN(n - done, (u64)at_once);
        for (u64 i = 0; i < n_now && status == SOV_OK; i++) {
            u8 *piece = cuda->staging + i * bytes;
            memcpy(piece, memory + (done + i) * memory_stride, bytes);
            status = cuda_upload(&cuda->driver, cuda->stream, (u64)(usize)to + (done + i) * stride,
                                 piece, bytes, "a KV block", &own);
        }
        if (status == SOV_OK) {
            status = cuda_stream_wait(&cuda->driver, cuda->stream, "a KV block", &own);
        }
    }
    return status == SOV_OK ? SOV_OK : kv_failed(cuda, &own, fault);
}
