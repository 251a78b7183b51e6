// SPDX-License-Identifier: Apache-2.0
// The step, readable as the whole system: validate, allocate KV blocks, forward, sample, commit.
// Siblings meet here and only here: this file knows which backend runs, how KV blocks are owned and
// how a token is drawn.
//
//   IDLE --admit--> PREFILL --last chunk, first token--> GENERATE --end, limit or cancel--> IDLE
//
// History tokens[0, n_tokens) are committed; K and V of positions [0, kv_length) are. A step
// computes positions [kv_length, ...) and, when it reached the newest token, samples one more.
#include "engine/engine.h"
#include "cpu/cpu.h"
#include "cpu/kernels.h"
#include "freestanding/mem.h"
#include "platform/platform.h"

#define SLOT 0 // the only sequence of this first form

static_assert(ENGINE_THREADS_MAX <= POOL_WORKERS_MAX, "the pool holds that many");
static_assert(ENGINE_CHUNK_MAX <= CPU_BATCH_TOKENS_MAX, "a chunk is a batch");

struct engine {
    const struct model *model;
    struct engine_config config;
    struct arena arena;
    struct plan plan;
    struct kv_allocator kv;
    struct cpu *cpu;
    struct sampler sampler;
    enum sequence_state state;
    u32 *tokens; // [context] committed history
    u32 n_tokens, n_prompt;
    u32 n_cached;                  // prompt tokens whose KV was there at admission
    u32 n_scripted;                // of the request's script, taken
    struct token_logprob *top;     // [SAMPLE_LOGPROBS_MAX]
    struct engine_request request; // its `tokens` is not used after admission
    u32 *positions, *slots;        // [prefill_chunk] the batch being built
    u32 *logit_rows;               // [logit_rows]
};

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
    if (config->prefill_chunk == 0) config->prefill_chunk = ENGINE_CHUNK_DEFAULT;
    if (config->prefill_chunk > ENGINE_CHUNK_MAX) {
        return fault_set(fault, SOV_ERR_ARGUMENT, "prefill chunk must be 1 to %u tokens, not %u",
                         ENGINE_CHUNK_MAX, config->prefill_chunk);
    }
    config->prefill_chunk = MIN(config->prefill_chunk, config->context);
    config->logit_rows = MIN(MAX(config->logit_rows, 1u), config->prefill_chunk);
    return SOV_OK;
}

static struct kv_config kv_config_of(const struct model *model,
                                     const struct engine_config *config) {
    u32 blocks = (config->context + SOV_KV_BLOCK_SIZE - 1) / SOV_KV_BLOCK_SIZE;
    return (struct kv_config){
        .n_layer = model->params.n_layer,
        .n_head_kv = model->params.n_head_kv,
        .head_dim = model->params.head_dim,
        .n_sequences = 1,
        .max_blocks = blocks,
        .n_blocks = blocks,
    };
}

static struct cpu_config cpu_config_of(const struct engine_config *config,
                                       const struct op_table *kernels) {
    return (struct cpu_config){
        .n_workers = config->n_threads,
        .batch_tokens = config->prefill_chunk,
        .logit_rows = config->logit_rows,
        .n_positions = config->context,
        .kernels = kernels,
    };
}

static u64 token_bytes(const struct engine_config *config) {
    u64 words = (u64)config->context + 2ull * config->prefill_chunk + config->logit_rows;
    return words * sizeof(u32) + SAMPLE_LOGPROBS_MAX * sizeof(struct token_logprob) +
           sizeof(struct engine) + 256;
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
            .backend = cpu_memory_bytes(&plan, &cpu),
            .sampler = sampler_memory_bytes(model->params.n_vocab),
            .tokens = token_bytes(config),
            .plan = plan_bytes,
            .stacks = (u64)(config->n_threads - 1) * PLATFORM_STACK_BYTES,
        };
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

static enum sov_status create_parts(struct engine *engine, struct sov_fault *fault) {
    const struct model *model = engine->model;
    const struct engine_config *config = &engine->config;
    struct arena *arena = &engine->arena;
    enum sov_status status = plan_create(model, arena, &engine->plan, fault);
    if (status != SOV_OK) return status;
    struct kv_config kv = kv_config_of(model, config);
    status = kv_create(&engine->kv, &kv, config->kv_shuffle, config->kv_shuffle_seed, arena, fault);
    if (status != SOV_OK) return status;
    status = sampler_create(&engine->sampler, model->params.n_vocab, arena, fault);
    if (status != SOV_OK) return status;
    engine->tokens = arena_array(arena, u32, config->context);
    engine->positions = arena_array(arena, u32, config->prefill_chunk);
    engine->slots = arena_array(arena, u32, config->prefill_chunk);
    engine->logit_rows = arena_array(arena, u32, config->logit_rows);
    engine->top = arena_array(arena, struct token_logprob, SAMPLE_LOGPROBS_MAX);
    if (engine->tokens == NULL || engine->positions == NULL || engine->slots == NULL ||
        engine->logit_rows == NULL || engine->top == NULL) {
        return arena_fault(arena, fault, "engine", token_bytes(config));
    }
    struct op_table kernels;
    op_fill_reference(&kernels);
    op_fill_level(&kernels, config->level);
    struct cpu_config cpu = cpu_config_of(config, &kernels);
    return cpu_create(&engine->plan, &cpu, arena, &engine->cpu, fault);
}

enum sov_status engine_open(const struct model *model, const struct engine_config *config,
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
    status = create_parts(engine, fault);
    if (status != SOV_OK) {
        platform_memory_unmap(mapped, memory.total);
        return status;
    }
    engine->arena.sealed = true; // E1
    *result = engine;
    return SOV_OK;
}

void engine_close(struct engine *engine) {
    cpu_destroy(engine->cpu);
    platform_memory_unmap(engine->arena.base, engine->arena.size);
}

enum sequence_state engine_state(const struct engine *engine) { return engine->state; }
struct kv_statistics engine_kv_statistics(const struct engine *engine) {
    return kv_statistics_of(&engine->kv);
}
struct cpu *engine_cpu(struct engine *engine) {
    return engine->cpu;
}

static enum sov_status check_tokens(const struct engine *engine, const u32 *tokens, u32 n_tokens,
                                    struct sov_fault *fault) {
    if (engine->state != SEQUENCE_IDLE) {
        return fault_set(fault, SOV_ERR_STATE, "the engine is busy with another sequence");
    }
    if (n_tokens == 0) {
        return fault_set(fault, SOV_ERR_ARGUMENT,
                         "the prompt is empty and this model adds no begin token");
    }
    if (n_tokens > engine->config.context) {
        return fault_set(fault, SOV_ERR_LIMIT,
                         "the prompt has %u tokens, the context holds %u (-c sets it)", n_tokens,
                         engine->config.context);
    }
    for (u32 i = 0; i < n_tokens; i++) {
        if (tokens[i] >= engine->model->params.n_vocab) {
            return fault_set(fault, SOV_ERR_ARGUMENT,
                             "token %u of the prompt is %u, the vocabulary has %u", i, tokens[i],
                             engine->model->params.n_vocab);
        }
    }
    return SOV_OK;
}

// What was committed stays for the next prompt.
static void become_idle(struct engine *engine) { engine->state = SEQUENCE_IDLE; }

// Makes tokens[n] the history, keeping the KV of the longest common beginning with the one before.
// The last token is always computed anew: its logits are wanted.
static void begin_sequence(struct engine *engine, const u32 *tokens, u32 n) {
    u32 limit = MIN(kv_length(&engine->kv, SLOT), n - 1);
    u32 common = 0;
    while (common < limit && engine->tokens[common] == tokens[common]) common++;
    struct sov_fault fault = {0};
    enum sov_status status = kv_truncate(&engine->kv, SLOT, common, &fault);
    assert(status == SOV_OK);
    memmove(engine->tokens, tokens, n * sizeof(u32));
    engine->n_tokens = engine->n_prompt = n;
    engine->n_cached = common;
    engine->n_scripted = 0;
    engine->state = SEQUENCE_PREFILL;
}

static enum sov_status check_request(const struct engine *engine,
                                     const struct engine_request *request,
                                     struct sov_fault *fault) {
    enum sov_status status = check_tokens(engine, request->tokens, request->n_tokens, fault);
    if (status == SOV_OK) status = sample_params_check(&request->sampling, fault);
    if (status != SOV_OK) return status;
    u32 n_vocab = engine->model->params.n_vocab;
    for (u32 i = 0; i < request->sampling.n_biases; i++) {
        u32 token = request->sampling.biases[i].token;
        if (token < n_vocab) continue;
        return fault_set(fault, SOV_ERR_ARGUMENT,
                         "logit_bias names token %u, the vocabulary has %u", token, n_vocab);
    }
    for (u32 i = 0; i < request->n_script; i++) {
        if (request->script[i] < n_vocab) continue;
        return fault_set(fault, SOV_ERR_ARGUMENT, "script token %u is %u, the vocabulary has %u", i,
                         request->script[i], n_vocab);
    }
    if (request->n_logprobs > SAMPLE_LOGPROBS_MAX) {
        return fault_set(fault, SOV_ERR_ARGUMENT, "logprobs must be 0 to %u, not %u",
                         SAMPLE_LOGPROBS_MAX, request->n_logprobs);
    }
    return SOV_OK;
}

enum sov_status engine_admit(struct engine *engine, const struct engine_request *request,
                             struct sov_fault *fault) {
    enum sov_status status = check_request(engine, request, fault);
    if (status != SOV_OK) return status;
    begin_sequence(engine, request->tokens, request->n_tokens);
    engine->request = *request;
    engine->request.tokens = NULL;
    return SOV_OK;
}

void engine_cancel(struct engine *engine) { become_idle(engine); }

static struct kv_layer view_kv_layer(const void *context, u32 layer) {
    return kv_layer_view(context, layer);
}

// Computes positions [kv_length, kv_length + n) with logits for the last n_logits of them. Nothing
// is committed: blocks beyond the committed length stay owned, and a retry writes them again.
static enum sov_status forward(struct engine *engine, u32 n, u32 n_logits, const f32 **logits,
                               u32 *logit_stride, struct sov_fault *fault) {
    u32 begin = kv_length(&engine->kv, SLOT);
    assert(n >= 1 && n <= engine->config.prefill_chunk && begin + n <= engine->n_tokens);
    enum sov_status status = kv_allocate_blocks(&engine->kv, SLOT, begin + n, fault);
    if (status != SOV_OK) return status;
    for (u32 i = 0; i < n; i++) {
        engine->positions[i] = begin + i;
        engine->slots[i] = SLOT;
    }
    for (u32 i = 0; i < n_logits; i++) engine->logit_rows[i] = n - n_logits + i;
    struct cpu_batch batch = {
        .n_tokens = n,
        .tokens = engine->tokens + begin,
        .positions = engine->positions,
        .slots = engine->slots,
        .n_logit_rows = n_logits,
        .logit_rows = engine->logit_rows,
    };
    status = cpu_forward(engine->cpu, &batch, view_kv_layer, &engine->kv, logits, logit_stride,
                         fault);
    if (status == SOV_OK) status = gguf_check_files(&engine->model->gguf, fault); // E4
    return status;
}

// The commit: K and V of n more positions, and then the newly drawn token, if there is one.
static void commit(struct engine *engine, u32 n, const u32 *new_token) {
    struct sov_fault fault = {0};
    enum sov_status status = kv_append_tokens(&engine->kv, SLOT, n, &fault);
    assert(status == SOV_OK); // the blocks are there
    if (new_token == NULL) return;
    assert(engine->n_tokens < engine->config.context);
    engine->tokens[engine->n_tokens++] = *new_token;
    engine->state = SEQUENCE_GENERATE;
}

// Ends the sequence when it has to end after what was just committed.
static enum finish_reason finish_of(const struct engine *engine,
                                    const struct tokenizer *tokenizer) {
    u32 n_new = engine->n_tokens - engine->n_prompt;
    const struct engine_request *request = &engine->request;
    if (n_new > 0 && !request->ignore_end &&
        tokenizer_is_end(tokenizer, engine->tokens[engine->n_tokens - 1])) {
        return FINISH_STOP;
    }
    if (request->n_new_max != 0 && n_new >= request->n_new_max) return FINISH_LENGTH;
    if (engine->n_tokens >= engine->config.context) return FINISH_LENGTH;
    return FINISH_NONE;
}

// The next token: of the script, else drawn; with the logarithms of probabilities that were asked
// for.
static enum sov_status sample(struct engine *engine, const f32 *logits, u32 *token,
                              struct engine_event *event, struct sov_fault *fault) {
    const struct engine_request *request = &engine->request;
    if (engine->n_scripted < request->n_script) {
        *token = request->script[engine->n_scripted++];
    } else {
        struct sample_draw draw = {
            .position = engine->n_tokens,
            .history = engine->tokens,
            .n_history = engine->n_tokens,
        };
        enum sov_status status =
            sov_sample_token(&engine->sampler, logits, &request->sampling, draw, token, fault);
        if (status != SOV_OK) return status;
    }
    if (request->wants_logprob || request->n_logprobs > 0) {
        struct token_logprob own;
        event->n_top = sample_logprobs(&engine->sampler, logits, *token, request->n_logprobs, &own,
                                       engine->top);
        event->top = engine->top;
        event->logprob = own.logprob;
    }
    return SOV_OK;
}

enum sov_status engine_step(struct engine *engine, const struct tokenizer *tokenizer,
                            struct engine_event *event, struct sov_fault *fault) {
    *event = (struct engine_event){0};
    if (engine->state == SEQUENCE_IDLE) {
        return fault_set(fault, SOV_ERR_STATE, "no sequence was admitted");
    }
    u32 missing = engine->n_tokens - kv_length(&engine->kv, SLOT);
    u32 n = MIN(missing, engine->config.prefill_chunk);
    // The newest token's logits are wanted, unless the prompt leaves no room for another token.
    bool samples = n == missing && engine->n_tokens < engine->config.context;
    const f32 *logits = NULL;
    u32 logit_stride = 0;
    enum sov_status status = forward(engine, n, samples ? 1 : 0, &logits, &logit_stride, fault);
    if (status != SOV_OK) return status;
    u32 token = TOKEN_NONE;
    if (samples) status = sample(engine, logits, &token, event, fault);
    if (status != SOV_OK) return status;
    event->has_token = samples;
    event->token = token;
    event->position = engine->n_tokens;
    commit(engine, n, samples ? &token : NULL);
    event->n_cached = engine->n_cached;
    event->n_prefilled = MIN(kv_length(&engine->kv, SLOT), engine->n_prompt);
    if (n == missing) event->finish = finish_of(engine, tokenizer);
    if (event->finish != FINISH_NONE) become_idle(engine);
    return SOV_OK;
}

// The next chunk from position `done` on: at most config.logit_rows of its positions want logits.
static u32 evaluate_chunk(const struct engine *engine, u32 done, u32 first) {
    u32 without_logits = first > done ? first - done : 0;
    u32 n = MIN(engine->config.prefill_chunk, engine->n_tokens - done);
    return MIN(n, without_logits + engine->config.logit_rows);
}

enum sov_status engine_evaluate(struct engine *engine, const u32 *tokens, u32 n_tokens, u32 first,
                                engine_row *row, void *context, struct sov_fault *fault) {
    enum sov_status status = check_tokens(engine, tokens, n_tokens, fault);
    if (status != SOV_OK) return status;
    assert(first < n_tokens);
    begin_sequence(engine, tokens, n_tokens);
    u32 done = MIN(kv_length(&engine->kv, SLOT), first); // what wants logits is computed anew
    status = kv_truncate(&engine->kv, SLOT, done, fault);
    while (status == SOV_OK && done < n_tokens) {
        u32 n = evaluate_chunk(engine, done, first);
        u32 n_logits = done + n - MIN(MAX(first, done), done + n);
        const f32 *logits = NULL;
        u32 logit_stride = 0;
        status = forward(engine, n, n_logits, &logits, &logit_stride, fault);
        for (u32 i = 0; status == SOV_OK && i < n_logits; i++) {
            status = row(context, done + n - n_logits + i, logits + (u64)i * logit_stride,
                         engine->model->params.n_vocab, fault);
        }
        if (status == SOV_OK) commit(engine, n, NULL);
        done += n;
    }
    become_idle(engine);
    return status;
}
