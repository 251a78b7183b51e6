// SPDX-License-Identifier: Apache-2.0
// The configuration, checked and completed; the memory it takes, computed; the engine made of it.
#include "cpu/kernels.h"
#include "cuda/cuda.h"
#include "engine/engine_private.h"
#include "freestanding/mem.h"
#include "platform/platform.h"

// Estimates for the choice between dropping and spilling; they need not be exact, only the same
// every time. Prompts were computed at about 16 bytes of weights per ns on two cores; a copy moves
// 4 bytes per ns, and there are two of them.
#define COMPUTE_BYTES_PER_NS 16
#define COPY_BYTES_PER_NS 4

static_assert(ENGINE_THREADS_MAX <= POOL_WORKERS_MAX, "the pool holds that many");
static_assert(ENGINE_CHUNK_MAX <= CPU_BATCH_TOKENS_MAX, "a chunk is a batch");
static_assert(ENGINE_BUDGET_MAX <= CUDA_BATCH_TOKENS_MAX, "for the card too");
static_assert(ENGINE_RUN_AHEAD_MAX + 1 < ENGINE_CHECKPOINT_TOKENS, "one boundary at a time");

static u64 block_bytes(const struct model *model) {
    const struct model_params *p = &model->params;
    return 2ull * SOV_KV_BLOCK_SIZE * p->n_head_kv * p->head_dim * sizeof(f16) * p->n_layer;
}

static enum sov_status resolve_blocks(struct engine_config *config, const struct model *model,
                                      struct sov_fault *fault) {
    u32 of_context = kv_blocks_of(config->context);
    if (config->kv_blocks == 0) {
        u64 most = MAX(ENGINE_KV_BYTES_DEFAULT / block_bytes(model), of_context);
        u64 wanted = MIN((u64)of_context * config->max_seqs, (u64)KV_BLOCKS_MAX);
        config->kv_blocks = (u32)MIN(most, wanted);
    }
    if (config->kv_blocks < of_context || config->kv_blocks > KV_BLOCKS_MAX) {
        return fault_set(fault, SOV_ERR_ARGUMENT,
                         "KV blocks must be %u (a context of %u tokens) to %u, not %u", of_context,
                         config->context, KV_BLOCKS_MAX, config->kv_blocks);
    }
    if (config->spill_blocks > KV_BLOCKS_MAX) {
        return fault_set(fault, SOV_ERR_ARGUMENT, "spill blocks must be 0 to %u, not %u",
                         KV_BLOCKS_MAX, config->spill_blocks);
    }
    return SOV_OK;
}

static enum sov_status resolve_sequences(struct engine_config *config, struct sov_fault *fault) {
    if (config->max_seqs == 0) config->max_seqs = 1;
    if (config->max_seqs > SOV_MAX_SEQS) {
        return fault_set(fault, SOV_ERR_ARGUMENT, "sequences must be 1 to %u, not %u", SOV_MAX_SEQS,
                         config->max_seqs);
    }
    if (config->prefill_chunk == 0) config->prefill_chunk = ENGINE_CHUNK_DEFAULT;
    if (config->prefill_chunk > ENGINE_CHUNK_MAX) {
        return fault_set(fault, SOV_ERR_ARGUMENT, "prefill chunk must be 1 to %u tokens, not %u",
                         ENGINE_CHUNK_MAX, config->prefill_chunk);
    }
    config->prefill_chunk = MIN(config->prefill_chunk, config->context);
    if (config->token_budget == 0) {
        config->token_budget =
            MIN(config->prefill_chunk + config->max_seqs - 1, (u32)ENGINE_BUDGET_MAX);
    }
    if (config->token_budget > ENGINE_BUDGET_MAX) {
        return fault_set(fault, SOV_ERR_ARGUMENT, "the token budget must be 1 to %u, not %u",
                         ENGINE_BUDGET_MAX, config->token_budget);
    }
    config->prefill_chunk = MIN(config->prefill_chunk, config->token_budget);
    config->logit_rows = MIN(MAX(config->logit_rows, config->max_seqs), config->token_budget);
    if (config->logprobs_max == 0) {
        config->logprobs_max = config->max_seqs == 1 ? SAMPLE_LOGPROBS_MAX
                                                     : ENGINE_LOGPROBS_SHARED_MAX;
    }
    if (config->logprobs_max > SAMPLE_LOGPROBS_MAX) {
        return fault_set(fault, SOV_ERR_ARGUMENT, "logprobs must be 0 to %u, not %u",
                         SAMPLE_LOGPROBS_MAX, config->logprobs_max);
    }
    if (config->run_ahead > ENGINE_RUN_AHEAD_MAX) {
        return fault_set(fault, SOV_ERR_ARGUMENT, "run-ahead must be 0 to %u tokens, not %u",
                         ENGINE_RUN_AHEAD_MAX, config->run_ahead);
    }
    return SOV_OK;
}

enum sov_status engine_config_resolve(struct engine_config *config, const struct model *model,
                                      struct sov_fault *fault) {
    const struct model_params *p = &model->params;
    if (config->context == 0) {
        u32 trained = p->context_train != 0 ? p->context_train : ENGINE_CONTEXT_DEFAULT;
        config->context = MIN(trained, (u32)ENGINE_CONTEXT_DEFAULT);
    }
    if (config->context > MODEL_CONTEXT_MAX) {
        return fault_set(fault, SOV_ERR_ARGUMENT, "context must be 1 to %u tokens, not %u",
                         MODEL_CONTEXT_MAX, config->context);
    }
    if (config->n_threads == 0) config->n_threads = MIN(platform_cpu_count(), ENGINE_THREADS_MAX);
    if (config->n_threads > ENGINE_THREADS_MAX) {
        return fault_set(fault, SOV_ERR_ARGUMENT, "threads must be 1 to %u, not %u",
                         ENGINE_THREADS_MAX, config->n_threads);
    }
    enum sov_status status = resolve_sequences(config, fault);
    if (status == SOV_OK) status = resolve_blocks(config, model, fault);
    return status;
}

static bool is_on_card(const struct engine_config *config) {
    return config->backend == NULL && config->device == ENGINE_CUDA;
}

static struct kv_config kv_config_of(const struct model *model,
                                     const struct engine_config *config) {
    return (struct kv_config){
        .n_layer = model->params.n_layer,
        .n_head_kv = model->params.n_head_kv,
        .head_dim = model->params.head_dim,
        .n_sequences = config->max_seqs,
        .max_blocks = kv_blocks_of(config->context),
        .n_blocks = config->kv_blocks,
        .n_spill = config->spill_blocks,
        .is_outside = is_on_card(config),
    };
}

static struct cpu_config cpu_config_of(const struct engine_config *config,
                                       const struct op_table *kernels) {
    return (struct cpu_config){
        .n_workers = config->n_threads,
        .is_pinned = config->pin_threads,
        .batch_tokens = config->token_budget,
        .logit_rows = config->logit_rows,
        .n_positions = config->context,
        .kernels = kernels,
    };
}

static struct cuda_config cuda_config_of(const struct model *model,
                                         const struct engine_config *config) {
    struct kv_config kv = kv_config_of(model, config);
    return (struct cuda_config){
        .start = config->start,
        .options = {.library = config->cuda_library, .device_idx = config->cuda_device},
        .batch_tokens = config->token_budget,
        .logit_rows = config->logit_rows,
        .n_positions = config->context,
        .n_sequences = kv.n_sequences,
        .max_blocks = kv.max_blocks,
        .kv_plane_bytes = kv_plane_bytes(&kv),
        .has_no_graphs = config->no_cuda_graphs,
        .stop_word = config->stop_word,
        .progress = config->progress,
        .progress_context = config->progress_context,
    };
}

// Histories, the batch, outputs, checkpoints: everything of the engine's own.
static u64 token_bytes(const struct model *model, const struct engine_config *config) {
    u64 n = config->max_seqs, n_layer = model->params.n_layer;
    u64 per_sequence = sizeof(struct sequence) + (u64)config->context * sizeof(u32) +
                       OUTPUTS_PER_SEQUENCE * sizeof(struct engine_output) +
                       sizeof(struct sov_fault) + n_layer * sizeof(struct sha256) +
                       (u64)STAGED_SLOTS * config->logprobs_max * sizeof(struct token_logprob);
    u64 batch = (3ull * config->token_budget + config->logit_rows) * sizeof(u32);
    u64 kv_rows = 2ull * KV_READ_POSITIONS * block_bytes(model) / (SOV_KV_BLOCK_SIZE * n_layer);
    return n * per_sequence + batch + checkpoint_bytes_max(model, config) + kv_rows +
           n_layer * SHA256_BYTES + checkpoint_memory_bytes(2 * config->max_seqs) +
           sizeof(struct engine) + (2 * n + 16) * 16; // alignment
}

enum sov_status engine_memory_plan(const struct model *model, const struct engine_config *config,
                                   struct engine_memory *memory, struct sov_fault *fault) {
    // The plan is small and is needed to know the activation buffers: it is made twice.
    u64 plan_bytes = plan_memory_bytes(model);
    void *scratch = platform_memory_map(plan_bytes);
    if (scratch == NULL) {
        return fault_set(fault, SOV_ERR_MEMORY, "plan: %llu bytes are not to be had", plan_bytes);
    }
    struct arena arena = arena_over(scratch, plan_bytes);
    struct plan plan;
    enum sov_status status = plan_create(model, &arena, &plan, fault);
    if (status == SOV_OK) {
        struct kv_config kv = kv_config_of(model, config);
        struct cpu_config cpu = cpu_config_of(config, NULL);
        *memory = (struct engine_memory){
            .kv = kv_memory_bytes(&kv),
            .backend = config->backend == NULL ? cpu_memory_bytes(&plan, &cpu) : 0,
            .sampler = sampler_memory_bytes(model->params.n_vocab),
            .tokens = token_bytes(model, config),
            .plan = plan_bytes,
            .stacks = (u64)(config->n_threads - 1) * PLATFORM_STACK_BYTES,
        };
        if (memory->kv != 0 && is_on_card(config)) {
            struct cuda_config cuda = cuda_config_of(model, config);
            struct cuda_memory card = cuda_memory_plan(&plan, &cuda);
            memory->backend = card.arena;
            memory->stacks = 0;
            memory->card_weights = card.weights;
            memory->card_kv = card.kv;
            memory->card_rest = card.rest;
            memory->pinned = card.pinned;
        }
        memory->total = memory->kv + memory->backend + memory->sampler + memory->tokens +
                        memory->plan;
        if (memory->kv == 0) {
            status = fault_set(fault, SOV_ERR_LIMIT,
                               "the KV cache of this model and a context of "
                               "%u tokens is beyond the limits",
                               config->context);
        }
    }
    platform_memory_unmap(scratch, plan_bytes);
    return status;
}

static enum sov_status cpu_backend(void *context, const struct cpu_batch *batch,
                                   cpu_kv_view *kv_view, const void *kv_context, const f32 **logits,
                                   u32 *logit_stride, struct sov_fault *fault) {
    return cpu_forward(context, batch, kv_view, kv_context, logits, logit_stride, fault);
}

static enum sov_status cuda_backend(void *context, const struct cpu_batch *batch,
                                    cpu_kv_view *kv_view, const void *kv_context,
                                    const f32 **logits, u32 *logit_stride,
                                    struct sov_fault *fault) {
    struct cuda_batch same = {batch->n_tokens, batch->tokens,       batch->positions,
                              batch->slots,    batch->n_logit_rows, batch->logit_rows};
    return cuda_forward(context, &same, kv_view, kv_context, logits, logit_stride, fault);
}

// The card comes before the KV cache, which lies on it.
static enum sov_status create_card(struct engine *engine, struct kv_memory *memory,
                                   struct sov_fault *fault) {
    if (!is_on_card(&engine->config)) return SOV_OK;
    struct cuda_config config = cuda_config_of(engine->model, &engine->config);
    enum sov_status status =
        cuda_create(&engine->plan, &config, &engine->arena, &engine->cuda, fault);
    if (status != SOV_OK) return status;
    *memory = (struct kv_memory){.context = engine->cuda,
                                 .copy = cuda_kv_copy,
                                 .read = cuda_kv_read,
                                 .write = cuda_kv_write};
    cuda_kv_planes(engine->cuda, &memory->k, &memory->v);
    return SOV_OK;
}

static enum sov_status create_backend(struct engine *engine, struct sov_fault *fault) {
    if (engine->cuda != NULL) {
        engine->backend = (struct engine_backend){engine->cuda, cuda_backend};
        return SOV_OK;
    }
    if (engine->config.backend != NULL) {
        engine->backend = *engine->config.backend;
        return SOV_OK;
    }
    struct op_table kernels;
    op_fill_reference(&kernels);
    op_fill_level(&kernels, engine->config.level);
    struct cpu_config cpu = cpu_config_of(&engine->config, &kernels);
    enum sov_status status = cpu_create(&engine->plan, &cpu, &engine->arena, &engine->cpu, fault);
    if (status == SOV_OK) cpu_set_stop_word(engine->cpu, engine->config.stop_word);
    engine->backend = (struct engine_backend){.context = engine->cpu, .forward = cpu_backend};
    return status;
}

static enum sov_status create_sequences(struct engine *engine, struct sov_fault *fault) {
    const struct engine_config *config = &engine->config;
    struct arena *arena = &engine->arena;
    u32 n = config->max_seqs;
    engine->sequences = arena_array(arena, struct sequence, n);
    engine->outputs = arena_array(arena, struct engine_output, n * OUTPUTS_PER_SEQUENCE);
    engine->faults = arena_array(arena, struct sov_fault, n);
    engine->tokens = arena_array(arena, u32, config->token_budget);
    engine->positions = arena_array(arena, u32, config->token_budget);
    engine->slots = arena_array(arena, u32, config->token_budget);
    engine->logit_rows = arena_array(arena, u32, config->logit_rows);
    u32 n_layer = engine->model->params.n_layer;
    engine->bytes_max = checkpoint_bytes_max(engine->model, config);
    engine->bytes = arena_array(arena, u8, engine->bytes_max);
    engine->kv_rows = arena_array(arena, u8, 2ull * KV_READ_POSITIONS * kv_row_bytes(&engine->kv));
    engine->kv_digests = arena_array(arena, struct sha256_digest, n_layer);
    bool fits = engine->sequences != NULL && engine->outputs != NULL && engine->faults != NULL &&
                engine->tokens != NULL && engine->positions != NULL && engine->slots != NULL &&
                engine->logit_rows != NULL && engine->bytes != NULL && engine->kv_rows != NULL &&
                engine->kv_digests != NULL;
    for (u32 i = 0; fits && i < n; i++) {
        struct sequence *q = &engine->sequences[i];
        *q = (struct sequence){0};
        q->tokens = arena_array(arena, u32, config->context);
        q->top = arena_array(arena, struct token_logprob, (u64)STAGED_SLOTS * config->logprobs_max);
        q->kv_hashes = arena_array(arena, struct sha256, n_layer);
        fits = q->tokens != NULL && q->top != NULL && q->kv_hashes != NULL;
    }
    return fits ? SOV_OK : arena_fault(arena, fault, "engine", token_bytes(engine->model, config));
}

static void create_scheduler(struct engine *engine) {
    const struct engine_config *config = &engine->config;
    struct sched_config scheduling = {
        .n_sequences = config->max_seqs,
        .prefill_chunk = config->prefill_chunk,
        .token_ns = engine->model->gguf.file_bytes / COMPUTE_BYTES_PER_NS + 1,
        .spill_ns = 2 * block_bytes(engine->model) / COPY_BYTES_PER_NS,
    };
    struct sched_hooks hooks = engine_hooks(engine);
    sched_init(&engine->scheduler, &scheduling, &hooks, &engine->kv);
}

static enum sov_status create_parts(struct engine *engine, struct sov_fault *fault) {
    const struct model *model = engine->model;
    const struct engine_config *config = &engine->config;
    struct arena *arena = &engine->arena;
    enum sov_status status = plan_create(model, arena, &engine->plan, fault);
    if (status != SOV_OK) return status;
    struct kv_config kv = kv_config_of(model, config);
    status = create_card(engine, &kv.memory, fault);
    if (status != SOV_OK) return status;
    status = kv_create(&engine->kv, &kv, config->kv_shuffle, config->kv_shuffle_seed, arena, fault);
    if (status == SOV_OK) {
        status = sampler_create(&engine->sampler, model->params.n_vocab, arena, fault);
    }
    if (status == SOV_OK) status = create_sequences(engine, fault);
    if (status == SOV_OK) {
        // Two for each: a boundary's, and a suspension's.
        status =
            checkpoint_memory_create(&engine->checkpoints, 2 * config->max_seqs, 0, arena, fault);
    }
    if (status != SOV_OK) return status;
    engine->store = config->store != NULL ? *config->store
                                          : checkpoint_memory_store(&engine->checkpoints);
    engine_root_key(engine);
    create_scheduler(engine);
    return create_backend(engine, fault);
}

static enum sov_status open_on_device(const struct model *model, const struct engine_config *config,
                                      struct engine **result, struct sov_fault *fault) {
    struct engine_memory memory = {0};
    enum sov_status status = engine_memory_plan(model, config, &memory, fault);
    if (status != SOV_OK) return status;
    void *mapped = platform_memory_map(memory.total);
    if (mapped == NULL) {
        return fault_set(fault, SOV_ERR_MEMORY,
                         "the engine needs %llu bytes (%llu of them KV cache for %u tokens): the "
                         "system refused; a smaller context may fit",
                         memory.total, memory.kv, config->context);
    }
    struct arena arena = arena_over(mapped, memory.total);
    struct engine *engine = arena_alloc(&arena, sizeof *engine, 64);
    assert(engine != NULL);
    memset(engine, 0, sizeof *engine);
    engine->model = model;
    engine->config = *config;
    engine->arena = arena;
    if (config->has_janet) status = janet_open(&engine->janet, fault);
    if (status == SOV_OK) status = create_parts(engine, fault);
    if (status != SOV_OK) {
        engine_close(engine);
        return status;
    }
    engine->arena.sealed = true; // E1
    *result = engine;
    return SOV_OK;
}

enum sov_status engine_open(const struct model *model, const struct engine_config *config,
                            struct engine **result, struct sov_fault *fault) {
    if (config->device != ENGINE_AUTO) return open_on_device(model, config, result, fault);
    struct engine_config chosen = *config;
    struct sov_fault refused = {0};
    chosen.device = ENGINE_CUDA;
    if (open_on_device(model, &chosen, result, &refused) == SOV_OK) return SOV_OK;
    chosen.device = ENGINE_CPU;
    enum sov_status status = open_on_device(model, &chosen, result, fault);
    if (status == SOV_OK) (*result)->card_refused = refused;
    return status;
}

const char *engine_card(const struct engine *engine) {
    return engine->cuda != NULL ? cuda_driver_of(engine->cuda)->card : NULL;
}

const char *engine_card_refused(const struct engine *engine) {
    return engine->card_refused.status != SOV_OK ? engine->card_refused.message : NULL;
}

bool engine_card_is_absent(const struct engine *engine) {
    struct str message = str_from_z(engine->card_refused.message);
    return engine->card_refused.status != SOV_OK && str_starts_with(message, STR(CUDA_ABSENT));
}

enum sov_status engine_find_card(const struct platform_start *start, char line[ENGINE_CARD_BYTES],
                                 struct sov_fault *fault) {
    struct cuda_driver driver;
    struct cuda_options options = {0};
    enum sov_status status = cuda_driver_open(&driver, start, &options, fault);
    if (status != SOV_OK) return status;
    struct text t = text_over(line, ENGINE_CARD_BYTES);
    text_format(&t, "%s, compute capability %u.%u, CUDA %d.%d", driver.card, driver.capability / 10,
                driver.capability % 10, driver.version / 1000, driver.version % 1000 / 10);
    cuda_driver_close(&driver);
    return SOV_OK;
}

void engine_set_store(struct engine *engine, const struct checkpoint_store *store) {
    assert(engine->scheduler.n_live == 0);
    engine->store = *store;
}

void engine_close(struct engine *engine) {
    if (engine->cpu != NULL) cpu_destroy(engine->cpu);
    if (engine->cuda != NULL) cuda_destroy(engine->cuda);
    if (engine->janet != NULL) janet_close(engine->janet);
    platform_memory_unmap(engine->arena.base, engine->arena.size);
}
