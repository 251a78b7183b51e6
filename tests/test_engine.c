// SPDX-License-Identifier: Apache-2.0
// The engine as one caller sees it (engine.h, E1 to E3): admission and steps, limits, cancelling,
// failure and retry, the KV kept for the next prompt, scripted tokens and log-probabilities. The
// models are random and tiny; each case that compares tokens has a fresh engine to compare with.
// Many sequences at once: test_scheduler.c.
#include "engine/engine_private.h"
#include "freestanding/mem.h"
#include "model/graph.h"
#include "tiny_model.h"

#define SEED 20240229u
#define CONTEXT 64 // four KV blocks
#define BLOCKS (CONTEXT / SOV_KV_BLOCK_SIZE)
#define F32_NAN 0x7fc00000

static struct tiny tiny; // of the running case

static const struct engine_config plain = {
    .context = CONTEXT, .n_threads = 1, .prefill_chunk = 16, .logit_rows = 4, .retries = 3};

struct outcome {
    enum sov_status status;
    struct sov_fault fault;
    u32 n;
    u32 tokens[CONTEXT];
    f64 logprobs[CONTEXT];
    enum finish_reason finish;
    u32 n_cached, n_steps;
};

static struct engine *open_engine(struct engine_config config) {
    struct engine *engine = NULL;
    struct sov_fault fault = {0};
    config.tokenizer = tiny.vocabulary.tokenizer;
    enum sov_status status = engine_config_resolve(&config, &tiny.model, &fault);
    if (status == SOV_OK) status = engine_open(&tiny.model, &config, &engine, &fault);
    if (status != SOV_OK) test_note("%s", fault.message);
    assert(status == SOV_OK);
    return engine;
}

// What a step did for the only sequence.
struct step {
    bool has_token, has_failed;
    u32 token, position, n_rows, n_cached;
    f64 logprob;
    const struct token_logprob *top;
    u32 n_top;
    enum finish_reason finish;
};

static engine_sequence current; // the sequence admitted last

static enum sov_status admit(struct engine *engine, const struct engine_request *request,
                             struct sov_fault *fault) {
    return engine_submit(engine, request, &current, fault);
}

// The status of the engine, or of the attempt that failed.
static enum sov_status step_once(struct engine *engine, struct step *step,
                                 struct sov_fault *fault) {
    *step = (struct step){0};
    struct engine_inputs inputs = {.power = POWER_ACTIVE};
    struct engine_report report;
    enum sov_status status = engine_step(engine, &inputs, &report, fault);
    engine_assert_consistent(engine);
    if (status != SOV_OK) return status;
    step->n_rows = report.n_rows;
    for (u32 i = 0; i < report.n_outputs; i++) {
        const struct engine_output *output = &report.outputs[i];
        CHECK(output->sequence == current);
        step->n_cached = output->n_cached;
        if (output->event.finish != FINISH_NONE) step->finish = output->event.finish;
        if (output->event.type != EVENT_TOKEN) continue;
        CHECK(!step->has_token);
        step->has_token = true;
        step->token = output->event.sampled_token_id;
        step->position = output->position;
        step->logprob = output->logprob;
        step->top = output->top;
        step->n_top = output->n_top;
    }
    if (report.n_failed == 0) return SOV_OK;
    *fault = *report.fault;
    return fault->status;
}

static void cancel_current(struct engine *engine) {
    struct step step;
    struct sov_fault fault = {0};
    engine_cancel(engine, current);
    CHECK(step_once(engine, &step, &fault) == SOV_OK && step.n_rows == 0);
    CHECK(engine_room(engine) == 1);
}

// Letters drawn from a seed.
static void draw_prompt(u64 seed, u32 *tokens, u32 n) {
    struct test_random random = {seed};
    for (u32 i = 0; i < n; i++) tokens[i] = test_random_below(&random, TINY_LETTERS);
}

static struct engine_request request_of(const u32 *tokens, u32 n, u32 n_new) {
    struct engine_request request = {
        .tokens = tokens,
        .n_tokens = n,
        .n_new_max = n_new,
        .ignore_end = true,
        .end_token = TOKEN_NONE,
        .wants_logprob = true,
        .sampling = sample_params_default(),
    };
    request.sampling.temperature = 0;
    return request;
}

// Steps until the sequence ends or a step fails.
static void run_on(struct engine *engine, struct outcome *outcome) {
    struct step event = {0};
    while (outcome->status == SOV_OK && event.finish == FINISH_NONE) {
        outcome->status = step_once(engine, &event, &outcome->fault);
        if (outcome->status != SOV_OK) break;
        outcome->n_steps++;
        outcome->n_cached = event.n_cached;
        outcome->finish = event.finish;
        if (!event.has_token) continue;
        assert(outcome->n < CONTEXT);
        outcome->tokens[outcome->n] = event.token;
        outcome->logprobs[outcome->n++] = event.logprob;
    }
}

static struct outcome generate(struct engine *engine, struct engine_request request) {
    struct outcome outcome = {0};
    outcome.status = admit(engine, &request, &outcome.fault);
    run_on(engine, &outcome);
    return outcome;
}

static struct outcome generate_fresh(struct engine_request request) {
    struct engine *engine = open_engine(plain);
    struct outcome outcome = generate(engine, request);
    engine_close(engine);
    return outcome;
}

// Tokens, the bits of their log-probabilities, and how it ended.
static bool same(const struct outcome *a, const struct outcome *b) {
    return a->status == SOV_OK && b->status == SOV_OK && a->n == b->n && a->finish == b->finish &&
           memcmp(a->tokens, b->tokens, a->n * sizeof(u32)) == 0 &&
           memcmp(a->logprobs, b->logprobs, a->n * sizeof(f64)) == 0;
}

static u32 n_different(const u32 *tokens, u32 n) {
    u32 different = 0;
    for (u32 i = 0; i < n; i++) {
        bool seen = false;
        for (u32 j = 0; j < i; j++) seen = seen || tokens[j] == tokens[i];
        different += !seen;
    }
    return different;
}

static bool contains(const char *text, const char *part) {
    struct str t = str_from_z(text), p = str_from_z(part);
    for (usize i = 0; i + p.len <= t.len; i++) {
        if (memcmp(t.data + i, p.data, p.len) == 0) return true;
    }
    return false;
}

// --- the operator lists ---

// G1 and G2 of graph.c, and that every operator can be named in a message.
static void plans(void) {
    for (u32 arch = 0; arch < MODEL_ARCH_COUNT; arch++) {
        tiny_open(&tiny, arch, CONTEXT, SEED);
        u64 bytes = plan_memory_bytes(&tiny.model);
        void *memory = platform_memory_map(bytes);
        assert(memory != NULL);
        struct arena arena = arena_over(memory, bytes);
        struct plan plan;
        struct sov_fault fault = {0};
        CHECK(plan_create(&tiny.model, &arena, &plan, &fault) == SOV_OK);
        u32 written = 1u << BUFFER_NONE, kinds = 0;
        for (u32 i = 0; i < plan.n_ops; i++) {
            const struct plan_op *op = &plan.ops[i];
            const char *kind = plan_op_kind_name(op->kind);
            CHECK_MSG(op->name != NULL && kind != NULL, "%s: operator %u has no name",
                      tiny_arch_name(arch), i);
            CHECK_MSG((written & 1u << op->src) != 0 && (written & 1u << op->src2) != 0,
                      "%s: operator %u (%s) reads what was not written", tiny_arch_name(arch), i,
                      op->name);
            if (op->kind == PLAN_KV_WRITE) written |= 1u << BUFFER_KV;
            if (op->kind == PLAN_ATTENTION) written &= ~(1u << BUFFER_KV); // of the next layer
            written |= op->kind == PLAN_ATTENTION ? 1u << BUFFER_ATTN : 1u << op->dst;
            kinds |= 1u << op->kind;
        }
        CHECK((kinds & 1u << PLAN_FINITE) != 0 && plan.tail < plan.n_ops);
        CHECK(((kinds & 1u << PLAN_GELU_MUL) != 0) == (arch == MODEL_GEMMA3));
        CHECK(((kinds & 1u << PLAN_RMSNORM_ADD) != 0) == (arch == MODEL_GEMMA3));
        CHECK(((kinds & 1u << PLAN_RMSNORM_HEADS) != 0) ==
              (arch == MODEL_GEMMA3 || arch == MODEL_QWEN3));
        platform_memory_unmap(memory, bytes);
        tiny_close(&tiny);
    }
}

// --- steps ---

static void steps(void) {
    tiny_open(&tiny, MODEL_LLAMA, CONTEXT, SEED);
    struct engine *engine = open_engine(plain);
    u32 prompt[40];
    draw_prompt(1, prompt, 40);
    struct engine_request request = request_of(prompt, 40, 3);
    struct step event;
    struct sov_fault fault = {0};
    CHECK(engine_state(engine, current) == SEQUENCE_IDLE);
    CHECK(admit(engine, &request, &fault) == SOV_OK);
    memset(prompt, 0, sizeof prompt); // the engine has a copy
    static const struct {
        u32 n_rows;
        bool has_token;
        u32 position;
        enum finish_reason finish;
        enum sequence_state before, after;
    } expected[] = {
        {16, false, 40, FINISH_NONE, SEQUENCE_IDLE, SEQUENCE_PREFILL},
        {16, false, 40, FINISH_NONE, SEQUENCE_PREFILL, SEQUENCE_PREFILL},
        {8, true, 40, FINISH_NONE, SEQUENCE_PREFILL, SEQUENCE_GENERATE},
        {1, true, 41, FINISH_NONE, SEQUENCE_GENERATE, SEQUENCE_GENERATE},
        {1, true, 42, FINISH_LENGTH, SEQUENCE_GENERATE, SEQUENCE_IDLE},
    };
    for (u32 i = 0; i < COUNT_OF(expected); i++) {
        CHECK(engine_state(engine, current) == expected[i].before);
        CHECK_MSG(step_once(engine, &event, &fault) == SOV_OK, "%s", fault.message);
        CHECK_MSG(event.n_rows == expected[i].n_rows && event.has_token == expected[i].has_token &&
                      event.finish == expected[i].finish && event.n_cached == 0,
                  "step %u: %u rows, token %u, finish %u", i, event.n_rows, event.has_token,
                  event.finish);
        if (event.has_token) CHECK(event.position == expected[i].position);
        if (event.has_token) CHECK(event.token < TINY_VOCAB && event.logprob <= 0);
        CHECK(engine_state(engine, current) == expected[i].after);
    }
    engine_close(engine);
    tiny_close(&tiny);
}

// E3: threads, chunks, instruction sets and physical places change no bit.
static void variants(void) {
    static const struct {
        const char *name;
        u32 n_threads, chunk;
        enum cpu_level level;
        bool shuffle;
    } rows[] = {
        {"2 threads", 2, 16, CPU_LEVEL_SCALAR, false},
        {"3 threads", 3, 16, CPU_LEVEL_SCALAR, false},
        {"chunk 1", 1, 1, CPU_LEVEL_SCALAR, false},
        {"chunk 3", 1, 3, CPU_LEVEL_SCALAR, false},
        {"chunk 64", 1, 64, CPU_LEVEL_SCALAR, false},
        {"shuffled", 1, 16, CPU_LEVEL_SCALAR, true},
        {"avx2", 1, 16, CPU_LEVEL_AVX2, false},
        {"avx2, chunk 1", 1, 1, CPU_LEVEL_AVX2, false},
        {"avx2, 2 threads", 2, 16, CPU_LEVEL_AVX2, false},
        {"avx2, 3 threads, shuffled", 3, 16, CPU_LEVEL_AVX2, true},
        {"avx2, chunk 3, shuffled", 1, 3, CPU_LEVEL_AVX2, true},
        {"avx512", 1, 16, CPU_LEVEL_AVX512, false},
        {"avx512, chunk 1, 2 threads", 2, 1, CPU_LEVEL_AVX512, false},
        {"avx512, chunk 64, shuffled", 1, 64, CPU_LEVEL_AVX512, true},
    };
    enum { N_NEW = 6 }; // few: with more threads than CPUs a step waits for the system's scheduler
    u32 prompt[37];
    draw_prompt(2, prompt, 37);
    for (u32 arch = 0; arch < MODEL_ARCH_COUNT; arch++) {
        tiny_open(&tiny, arch, CONTEXT, SEED + arch);
        for (u32 sampled = 0; sampled <= 1; sampled++) {
            struct engine_request request = request_of(prompt, 37, N_NEW);
            request.sampling.temperature = sampled != 0 ? 1.3f : 0;
            request.sampling.seed = 7;
            struct outcome expected = generate_fresh(request);
            CHECK(expected.n == N_NEW);
            CHECK(sampled == 0 || n_different(expected.tokens, N_NEW) > 3);
            for (u32 i = 0; i < COUNT_OF(rows); i++) {
                if (rows[i].level > MIN(cpu_level(), ENGINE_LEVEL_MAX)) continue;
                struct engine_config config = plain;
                config.n_threads = rows[i].n_threads;
                config.prefill_chunk = rows[i].chunk;
                config.level = rows[i].level;
                config.kv_shuffle = rows[i].shuffle;
                config.kv_shuffle_seed = i;
                struct engine *engine = open_engine(config);
                struct outcome outcome = generate(engine, request);
                CHECK_MSG(same(&outcome, &expected), "%s, %s: %s", tiny_arch_name(arch),
                          rows[i].name, outcome.fault.message);
                engine_close(engine);
            }
        }
        tiny_close(&tiny);
    }
}

// --- limits ---

static void context_limits(void) {
    static const struct {
        u32 n_prompt, n_new_max, n;
    } rows[] = {
        {CONTEXT, 0, 0},     {CONTEXT, 5, 0},     {CONTEXT - 1, 0, 1},   {CONTEXT - 1, 100, 1},
        {CONTEXT - 3, 2, 2}, {CONTEXT - 3, 3, 3}, {CONTEXT - 3, 4, 3},   {1, 0, CONTEXT - 1},
        {1, 1, 1},           {16, 17, 17},        {33, 0, CONTEXT - 33},
    };
    tiny_open(&tiny, MODEL_GEMMA3, CONTEXT, SEED);
    struct engine *engine = open_engine(plain);
    u32 prompt[CONTEXT + 1];
    draw_prompt(3, prompt, CONTEXT + 1);
    for (u32 i = 0; i < COUNT_OF(rows); i++) {
        struct engine_request request = request_of(prompt, rows[i].n_prompt, rows[i].n_new_max);
        struct outcome outcome = generate(engine, request);
        CHECK_MSG(outcome.status == SOV_OK && outcome.finish == FINISH_LENGTH &&
                      outcome.n == rows[i].n,
                  "row %u: %s, %u tokens", i, outcome.fault.message, outcome.n);
        CHECK(engine_state(engine, current) == SEQUENCE_IDLE);
    }
    struct outcome outcome = generate(engine, request_of(prompt, CONTEXT + 1, 0));
    CHECK(outcome.status == SOV_ERR_LIMIT);
    CHECK_MSG(contains(outcome.fault.message, "65") && contains(outcome.fault.message, "64"), "%s",
              outcome.fault.message);
    engine_close(engine);
    tiny_close(&tiny);
}

static void refused_requests(void) {
    enum { GOOD_PROMPT = 20 };
    tiny_open(&tiny, MODEL_LLAMA, CONTEXT, SEED);
    struct engine *engine = open_engine(plain);
    u32 prompt[GOOD_PROMPT], bad[2] = {0, TINY_VOCAB};
    draw_prompt(4, prompt, GOOD_PROMPT);
    static const struct logit_bias bad_bias = {TINY_VOCAB, 1};
    struct engine_request good = request_of(prompt, GOOD_PROMPT, 5);
    struct outcome expected = generate_fresh(good);
    struct engine_request rows[8];
    for (u32 i = 0; i < COUNT_OF(rows); i++) rows[i] = good;
    rows[0].n_tokens = 0;
    rows[1].tokens = bad, rows[1].n_tokens = 2;
    rows[2].sampling.temperature = -1;
    rows[3].sampling.top_p = 2;
    rows[4].sampling.biases = &bad_bias, rows[4].sampling.n_biases = 1;
    rows[5].script = bad, rows[5].n_script = 2;
    rows[6].n_logprobs = SAMPLE_LOGPROBS_MAX + 1;
    rows[7].sampling.min_p = f32_from_bits(F32_NAN);
    static const char *const messages[] = {"empty",
                                           "token 1 of the prompt is 48",
                                           "temperature",
                                           "top_p",
                                           "logit_bias names token 48",
                                           "script token 1",
                                           "logprobs",
                                           "min_p"};
    for (u32 i = 0; i < COUNT_OF(rows); i++) {
        struct sov_fault fault = {0};
        enum sov_status status = admit(engine, &rows[i], &fault);
        CHECK_MSG(status == SOV_ERR_ARGUMENT && contains(fault.message, messages[i]),
                  "row %u: \"%s\"", i, fault.message);
        CHECK(engine_state(engine, current) == SEQUENCE_IDLE);
    }
    struct sov_fault fault = {0};
    struct step event;
    CHECK(step_once(engine, &event, &fault) == SOV_OK && event.n_rows == 0); // nothing to do
    CHECK(admit(engine, &good, &fault) == SOV_OK);
    engine_sequence refused = 0;
    CHECK(engine_submit(engine, &good, &refused, &fault) == SOV_ERR_ARGUMENT); // the same id
    struct engine_request second = good;
    second.id = 1;
    CHECK(engine_submit(engine, &second, &refused, &fault) == SOV_ERR_STATE); // busy
    CHECK(refused == 0);
    struct outcome outcome = {0};
    run_on(engine, &outcome);
    CHECK(same(&outcome, &expected));
    engine_close(engine);
    tiny_close(&tiny);
}

static void configurations(void) {
    tiny_open(&tiny, MODEL_LLAMA, 40, SEED);
    static const struct {
        struct engine_config config;
        const char *message; // or NULL: it is sound
    } rows[] = {
        {{0}, NULL},
        {{.context = MODEL_CONTEXT_MAX}, NULL},
        {{.context = MODEL_CONTEXT_MAX + 1}, "context must be 1 to 1048576"},
        {{.n_threads = ENGINE_THREADS_MAX + 1}, "threads must be 1 to 128"},
        {{.prefill_chunk = ENGINE_CHUNK_MAX + 1}, "prefill chunk must be 1 to 4096"},
    };
    for (u32 i = 0; i < COUNT_OF(rows); i++) {
        struct engine_config config = rows[i].config;
        struct sov_fault fault = {0};
        enum sov_status status = engine_config_resolve(&config, &tiny.model, &fault);
        CHECK(status == (rows[i].message == NULL ? SOV_OK : SOV_ERR_ARGUMENT));
        CHECK(rows[i].message == NULL || contains(fault.message, rows[i].message));
        if (i != 0) continue;
        CHECK(config.context == 40 && config.prefill_chunk == 40 && config.logit_rows == 1);
        CHECK(config.n_threads >= 1);
    }
    tiny_close(&tiny);
}

// --- cancelling, and the KV of the last sequence ---

// An engine cancelled at any moment serves the next request as a fresh one would, and an unrelated
// prompt finds all blocks free.
static void cancel(void) {
    tiny_open(&tiny, MODEL_GEMMA3, CONTEXT, SEED);
    struct engine *engine = open_engine(plain);
    struct test_random random = {SEED};
    u32 prompt[CONTEXT], probe[10];
    draw_prompt(5, probe, COUNT_OF(probe));
    probe[0] = TINY_BOS; // no prompt below begins with it
    struct outcome expected = generate_fresh(request_of(probe, COUNT_OF(probe), 3));
    for (u32 round = 0; round < 150; round++) {
        struct sov_fault fault = {0};
        struct step event = {0};
        u32 n = 1 + test_random_below(&random, CONTEXT - 1);
        draw_prompt(round, prompt, n);
        struct engine_request request = request_of(prompt, n, 0);
        CHECK(admit(engine, &request, &fault) == SOV_OK);
        u32 n_steps = test_random_below(&random, 8);
        for (u32 i = 0; i < n_steps && event.finish == FINISH_NONE; i++) {
            CHECK(step_once(engine, &event, &fault) == SOV_OK);
        }
        if (event.finish == FINISH_NONE) cancel_current(engine);
        CHECK(engine_state(engine, current) == SEQUENCE_IDLE);
        if (round % 10 != 0) continue;
        struct engine_request last = request_of(probe, COUNT_OF(probe), 3);
        CHECK(admit(engine, &last, &fault) == SOV_OK);
        struct kv_statistics statistics = engine_statistics_of(engine).kv;
        CHECK(statistics.n_blocks == BLOCKS && statistics.n_free == BLOCKS);
        engine_forget_prefixes(engine);
        CHECK(engine_statistics_of(engine).kv.n_idle == 0);
        CHECK(statistics.n_allocated == statistics.n_freed);
        struct outcome outcome = {0};
        run_on(engine, &outcome);
        CHECK(same(&outcome, &expected) && outcome.n_cached == 0);
        statistics = engine_statistics_of(engine).kv;
        CHECK(statistics.n_free == BLOCKS && statistics.n_idle == 1); // 13 tokens: one block
    }
    engine_close(engine);
    tiny_close(&tiny);
}

// A random walk of prompts that share beginnings with what was there before. n_cached is at least
// what a simple model of the last history says, and the tokens are those of a fresh engine.
static void prefixes(void) {
    tiny_open(&tiny, MODEL_GEMMA3, CONTEXT, SEED);
    struct engine *engine = open_engine(plain);
    struct test_random random = {SEED + 1};
    u32 history[CONTEXT] = {0}, n_kv = 0; // n_kv of the tokens have their K and V kept
    u32 n_reused = 0;
    for (u32 round = 0; round < 60; round++) {
        u32 prompt[CONTEXT];
        u32 n = 1 + test_random_below(&random, CONTEXT - 4);
        u32 n_shared = MIN(test_random_below(&random, CONTEXT), n);
        draw_prompt(1000 + round, prompt, n);
        if (test_random_below(&random, 4) != 0) memcpy(prompt, history, n_shared * sizeof(u32));
        u32 n_cached = 0;
        while (n_cached < MIN(n_kv, n - 1) && prompt[n_cached] == history[n_cached]) n_cached++;
        struct engine_request request = request_of(prompt, n, 1 + test_random_below(&random, 6));
        request.sampling.temperature = round % 2 == 0 ? 0 : 1.5f;
        struct outcome outcome = generate(engine, request), expected = generate_fresh(request);
        CHECK_MSG(same(&outcome, &expected), "round %u: %s", round, outcome.fault.message);
        // More may be there, of the histories before the last.
        CHECK_MSG(outcome.n_cached >= n_cached && outcome.n_cached < n && expected.n_cached == 0,
                  "round %u: %u cached instead of %u", round, outcome.n_cached, n_cached);
        n_reused += n_cached > 0;
        memcpy(history, prompt, n * sizeof(u32));
        memcpy(history + n, outcome.tokens, outcome.n * sizeof(u32));
        n_kv = n + outcome.n - (outcome.n > 0); // the newest token's is computed by the next step
    }
    CHECK_MSG(n_reused > 20, "only %u prompts reused anything", n_reused);
    engine_close(engine);
    tiny_close(&tiny);
}

// --- tokens given, not drawn ---

static void scripts(void) {
    static const u32 script[] = {5, 11, 5, 40};
    tiny_open(&tiny, MODEL_QWEN3, CONTEXT, SEED);
    struct engine *engine = open_engine(plain);
    u32 prompt[24];
    draw_prompt(6, prompt, 20);
    for (u32 sampled = 0; sampled <= 1; sampled++) {
        struct engine_request request = request_of(prompt, 20, 10);
        request.sampling.temperature = sampled != 0 ? 1.2f : 0;
        request.script = script;
        request.n_script = COUNT_OF(script);
        struct outcome outcome = generate(engine, request);
        CHECK(outcome.n == 10 && memcmp(outcome.tokens, script, sizeof script) == 0);
        // What follows is what follows a prompt that ends with the script: a draw depends on the
        // position and on what is before it.
        memcpy(prompt + 20, script, sizeof script);
        request = request_of(prompt, 24, 6);
        request.sampling.temperature = sampled != 0 ? 1.2f : 0;
        struct outcome rest = generate_fresh(request);
        CHECK(rest.n == 6 && memcmp(outcome.tokens + 4, rest.tokens, 6 * sizeof(u32)) == 0);
        CHECK(memcmp(outcome.logprobs + 4, rest.logprobs, 6 * sizeof(f64)) == 0);
    }
    engine_close(engine);
    tiny_close(&tiny);
}

static void end_tokens(void) {
    static const u32 script[] = {5, 6, TINY_EOS, 7, 8};
    static const u32 im_end[] = {TINY_VOCAB - 1};
    tiny_open(&tiny, MODEL_LLAMA, CONTEXT, SEED);
    struct engine *engine = open_engine(plain);
    u32 prompt[CONTEXT];
    draw_prompt(7, prompt, CONTEXT);
    struct engine_request request = request_of(prompt, 9, 5);
    request.script = script;
    request.n_script = COUNT_OF(script);
    struct outcome outcome = generate(engine, request);
    CHECK(outcome.n == 5 && outcome.finish == FINISH_LENGTH); // ignore_end
    request.ignore_end = false;
    outcome = generate(engine, request);
    CHECK(outcome.n == 3 && outcome.finish == FINISH_STOP && outcome.tokens[2] == TINY_EOS);
    CHECK(engine_state(engine, current) == SEQUENCE_IDLE);
    request.n_new_max = 3; // the end token comes at the limit: it is a stop
    outcome = generate(engine, request);
    CHECK(outcome.n == 3 && outcome.finish == FINISH_STOP);
    request.script = im_end;
    request.n_script = 1;
    outcome = generate(engine, request);
    CHECK(outcome.n == 1 && outcome.finish == FINISH_STOP);
    prompt[8] = TINY_EOS; // an end token of the prompt ends nothing
    request.script = script;
    request.n_script = 2;
    request.n_new_max = 2;
    outcome = generate(engine, request);
    CHECK(outcome.n == 2 && outcome.finish == FINISH_LENGTH);
    prompt[CONTEXT - 1] = TINY_EOS; // and where there is no room for another token: the same
    request = request_of(prompt, CONTEXT, 0);
    request.ignore_end = false;
    outcome = generate(engine, request);
    CHECK(outcome.n == 0 && outcome.finish == FINISH_LENGTH);
    engine_close(engine);
    tiny_close(&tiny);
}

// --- log-probabilities ---

static f64 sum_of_probabilities(const struct token_logprob *top, u32 n) {
    f64 sum = 0;
    for (u32 i = 0; i < n; i++) { // e^x by its series; x is above -20
        f64 x = top[i].logprob / 1024, power = 1 + x * (1 + x / 2 * (1 + x / 3 * (1 + x / 4)));
        for (u32 j = 0; j < 10; j++) power *= power;
        sum += power;
    }
    return sum;
}

static void logprobs(void) {
    tiny_open(&tiny, MODEL_QWEN2, CONTEXT, SEED);
    struct engine *engine = open_engine(plain);
    u32 prompt[18];
    draw_prompt(8, prompt, 18);
    static const u32 counts[] = {0, 1, 5, TINY_VOCAB, SAMPLE_LOGPROBS_MAX};
    for (u32 i = 0; i < COUNT_OF(counts); i++) {
        struct engine_request request = request_of(prompt, 18, 4);
        request.n_logprobs = counts[i];
        request.wants_logprob = i % 2 == 0;
        struct sov_fault fault = {0};
        struct step event = {0};
        CHECK(admit(engine, &request, &fault) == SOV_OK);
        while (event.finish == FINISH_NONE) {
            CHECK(step_once(engine, &event, &fault) == SOV_OK);
            if (!event.has_token) continue;
            CHECK(event.n_top == MIN(counts[i], (u32)TINY_VOCAB) && event.logprob < 0);
            for (u32 j = 0; j + 1 < event.n_top; j++) {
                CHECK(event.top[j].logprob >= event.top[j + 1].logprob);
            }
            if (event.n_top > 0) { // greedy takes the best
                CHECK(event.top[0].token == event.token);
                CHECK(event.top[0].logprob == event.logprob);
            }
            if (event.n_top < TINY_VOCAB) continue;
            f64 sum = sum_of_probabilities(event.top, event.n_top);
            CHECK_MSG(sum > 1 - 1e-6 && sum < 1 + 1e-6, "probabilities sum to %.9g", sum);
        }
    }
    struct engine_request request = request_of(prompt, 18, 1); // not asked for
    request.wants_logprob = false;
    struct outcome outcome = generate(engine, request);
    CHECK(outcome.logprobs[0] == 0);
    engine_close(engine);
    tiny_close(&tiny);
}

// --- evaluation ---

struct rows {
    u32 n, first;
    f32 logits[CONTEXT * TINY_VOCAB];
};

static enum sov_status keep_row(void *context, u32 position, const f32 *logits, u32 n_vocab,
                                struct sov_fault *fault) {
    (void)fault;
    struct rows *rows = context;
    CHECK(n_vocab == TINY_VOCAB && position == rows->first + rows->n);
    memcpy(rows->logits + (usize)rows->n * TINY_VOCAB, logits, TINY_VOCAB * sizeof(f32));
    rows->n++;
    return SOV_OK;
}

static enum sov_status stop_at_5(void *context, u32 position, const f32 *logits, u32 n_vocab,
                                 struct sov_fault *fault) {
    (void)context, (void)logits, (void)n_vocab;
    if (position == 5) return fault_set(fault, SOV_ERR_INTERRUPTED, "five");
    return SOV_OK;
}

// Rows of any part, with any history in the engine, are those of the whole; and a greedy answer is
// the best of the last row.
static void evaluate(void) {
    static struct rows whole, part;
    tiny_open(&tiny, MODEL_GEMMA3, CONTEXT, SEED);
    struct engine *engine = open_engine(plain);
    struct sov_fault fault = {0};
    u32 tokens[50];
    draw_prompt(9, tokens, 50);
    whole = (struct rows){0};
    CHECK(engine_evaluate(engine, tokens, 50, 0, keep_row, &whole, &fault) == SOV_OK);
    CHECK(whole.n == 50);
    static const struct {
        u32 n, first;
    } rows[] = {{50, 49}, {50, 20}, {50, 0}, {17, 3}, {1, 0}, {33, 32}, {50, 47}, {16, 0}};
    for (u32 i = 0; i < COUNT_OF(rows); i++) {
        part = (struct rows){.first = rows[i].first};
        CHECK(engine_evaluate(engine, tokens, rows[i].n, rows[i].first, keep_row, &part, &fault) ==
              SOV_OK);
        u32 n = rows[i].n - rows[i].first;
        const f32 *same_rows = whole.logits + (usize)rows[i].first * TINY_VOCAB;
        CHECK_MSG(part.n == n &&
                      memcmp(part.logits, same_rows, (usize)n * TINY_VOCAB * sizeof(f32)) == 0,
                  "%u tokens from %u on", rows[i].n, rows[i].first);
    }
    CHECK(engine_evaluate(engine, tokens, 20, 0, stop_at_5, NULL, &fault) == SOV_ERR_INTERRUPTED);
    CHECK(contains(fault.message, "five") && engine_state(engine, current) == SEQUENCE_IDLE);
    struct outcome outcome = generate(engine, request_of(tokens, 50, 2));
    struct outcome expected = generate_fresh(request_of(tokens, 50, 2));
    CHECK(same(&outcome, &expected));
    const f32 *last = whole.logits + 49 * TINY_VOCAB;
    for (u32 i = 0; i < TINY_VOCAB; i++) CHECK(last[i] <= last[outcome.tokens[0]]);
    engine_close(engine);
    tiny_close(&tiny);
}

// --- values that are not finite ---

struct damage {
    enum model_arch arch;
    const char *tensor;
    const char *message;
};

// Puts a NaN into row 0 of the tensor (every row of the embedding), or takes it out again.
static void damage_weight(const struct damage *damage, bool mend) {
    static u8 kept[TINY_VOCAB * TINY_EMBD * 4];
    u8 *weight = tiny_bytes(&tiny, damage->tensor);
    bool is_embedding = contains(damage->tensor, "token_embd");
    usize n_bytes = is_embedding ? sizeof kept : 4;
    if (mend) {
        memcpy(weight, kept, n_bytes);
        return;
    }
    memcpy(kept, weight, n_bytes);
    if (contains(damage->tensor, "attn_output")) { // Q8_0: the first scale
        store_u16(weight, 0x7e00);
        return;
    }
    for (usize at = 0; at < n_bytes; at += 4) store_u32(weight + at, F32_NAN);
}

// The weight is damaged after `fail_at` steps, and mended after two failing ones.
static void fail_and_retry(const struct damage *damage, struct engine_request request, u32 fail_at,
                           const struct outcome *expected) {
    struct engine *engine = open_engine(plain);
    struct outcome outcome = {0};
    struct step event;
    CHECK(admit(engine, &request, &outcome.fault) == SOV_OK);
    for (u32 step = 0; step < fail_at; step++) {
        CHECK(step_once(engine, &event, &outcome.fault) == SOV_OK);
        if (!event.has_token) continue;
        outcome.tokens[outcome.n] = event.token;
        outcome.logprobs[outcome.n++] = event.logprob;
    }
    // The first step admits, whatever becomes of its rows.
    enum sequence_state state = fail_at == 0 ? SEQUENCE_PREFILL : engine_state(engine, current);
    damage_weight(damage, false);
    // What comes behind the layers is computed only where a token is wanted: not in the first step.
    bool is_reached = fail_at != 0 || !contains(damage->message, "infinity at");
    for (u32 i = 0; is_reached && i < 2; i++) {
        struct sov_fault fault = {0};
        enum sov_status status = step_once(engine, &event, &fault);
        CHECK_MSG(status == SOV_ERR_NON_FINITE && contains(fault.message, damage->message),
                  "%s of %s, step %u: \"%s\"", damage->tensor, tiny_arch_name(damage->arch),
                  fail_at, fault.message);
        CHECK(!event.has_token && engine_state(engine, current) == state);
    }
    damage_weight(damage, true);
    run_on(engine, &outcome);
    CHECK_MSG(same(&outcome, expected), "%s, step %u: the retry differs", damage->tensor, fail_at);
    engine_close(engine);
}

// E2: a weight is damaged in the middle of a request, a step fails and says where, and after the
// weight is mended the same step goes on as if nothing had been.
static void non_finite(void) {
    static const struct damage rows[] = {
        {MODEL_LLAMA, "token_embd.weight", "layer 0 at operator attn_norm (rmsnorm)"},
        {MODEL_LLAMA, "blk.1.attn_q.weight", "layer 1 at operator rope_q (rope)"},
        {MODEL_LLAMA, "blk.2.attn_k.weight", "layer 2 at operator rope_k (rope)"},
        {MODEL_LLAMA, "blk.0.attn_v.weight", "layer 0 at operator kv_write (kv_write)"},
        {MODEL_LLAMA, "blk.1.attn_output.weight", "layer 1 at operator ffn_norm (rmsnorm)"},
        {MODEL_LLAMA, "blk.0.ffn_down.weight", "layer 1 at operator attn_norm (rmsnorm)"},
        {MODEL_LLAMA, "blk.2.ffn_down.weight", "infinity at operator output_norm (rmsnorm)"},
        {MODEL_LLAMA, "output.weight", "infinity at operator logits (logits)"},
        {MODEL_GEMMA3, "blk.1.attn_q.weight", "layer 1 at operator attn_q_norm (rmsnorm)"},
        {MODEL_GEMMA3, "blk.1.attn_output.weight", "layer 1 at operator attn_post_norm (rmsnorm)"},
        {MODEL_GEMMA3, "blk.2.ffn_down.weight", "layer 2 at operator ffn_post_norm (rmsnorm)"},
        {MODEL_QWEN3, "blk.0.attn_k.weight", "layer 0 at operator attn_k_norm (rmsnorm)"},
        {MODEL_QWEN2, "output.weight", "infinity at operator logits (logits)"},
    };
    u32 prompt[30];
    draw_prompt(10, prompt, 30);
    for (u32 i = 0; i < COUNT_OF(rows); i++) {
        tiny_open(&tiny, rows[i].arch, CONTEXT, SEED);
        struct engine_request request = request_of(prompt, 30, 6);
        struct outcome expected = generate_fresh(request);
        for (u32 fail_at = 0; fail_at < 5; fail_at++) { // chunks of 16: steps 0 and 1 are prefill
            fail_and_retry(&rows[i], request, fail_at, &expected);
        }
        tiny_close(&tiny);
    }
}

// After a failure the request can be given up instead, and the committed beginning is still there.
static void failure_then_another(void) {
    tiny_open(&tiny, MODEL_LLAMA, CONTEXT, SEED);
    struct engine *engine = open_engine(plain);
    u32 prompt[30];
    draw_prompt(11, prompt, 30);
    struct engine_request request = request_of(prompt, 30, 6);
    struct outcome expected = generate_fresh(request), outcome = {0};
    struct step event;
    CHECK(admit(engine, &request, &outcome.fault) == SOV_OK);
    CHECK(step_once(engine, &event, &outcome.fault) == SOV_OK); // 16 tokens
    u8 *weight = tiny_bytes(&tiny, "blk.2.ffn_down.weight");
    u32 kept = load_u32(weight);
    store_u32(weight, F32_NAN);
    struct sov_fault fault = {0};
    CHECK(step_once(engine, &event, &fault) == SOV_ERR_NON_FINITE);
    cancel_current(engine);
    store_u32(weight, kept);
    outcome = generate(engine, request);
    CHECK(same(&outcome, &expected) && outcome.n_cached == 16);
    engine_close(engine);
    tiny_close(&tiny);
}

// --- ends for the store ---

// A store that takes note of ends alone, and a cache outside this memory that cannot be read.
static struct {
    u32 n_finished, n_lost, n_kv; // n_kv: positions of the end's digests
    struct checkpoint_id id;
    struct sov_fault fault;
    bool refuses;
} ends;

static void forget_nothing(void *context, const struct checkpoint_id *id) {
    (void)context;
    (void)id;
}

static enum sov_status take_end(void *context, const struct checkpoint_id *id, struct str bytes,
                                struct sov_fault *fault) {
    struct payload_checkpoint end;
    (void)context;
    (void)id;
    if (ends.refuses) return fault_set(fault, SOV_ERR_MEMORY, "no room for an end");
    CHECK(payload_checkpoint_read(bytes, &end, fault) == SOV_OK);
    ends.n_finished++;
    ends.n_kv = end.kv_end - end.kv_begin;
    return SOV_OK;
}

static void note_lost(void *context, const struct checkpoint_id *id,
                      const struct sov_fault *fault) {
    (void)context;
    ends.n_lost++;
    ends.id = *id;
    ends.fault = *fault;
}

static enum sov_status read_nothing(void *context, u8 *memory, u64 memory_stride, const u8 *from,
                                    u64 from_stride, u64 bytes, u32 n, struct sov_fault *fault) {
    (void)context, (void)memory, (void)memory_stride, (void)from, (void)from_stride;
    (void)bytes, (void)n;
    return fault_set(fault, SOV_ERR_IO, "the card does not answer");
}

// An end that the store does not get is told, whatever kept it; one that was cancelled has what
// there was.
static void lost_ends(void) {
    static const struct {
        bool unreadable, refuses, cancels;
        u32 n_finished, n_lost, n_kv;
        enum sov_status status;
    } rows[] = {
        {false, false, false, 1, 0, 35, SOV_OK},
        {true, false, false, 0, 1, 0, SOV_ERR_IO},
        {false, true, false, 0, 1, 0, SOV_ERR_MEMORY},
        {true, false, true, 1, 0, 0, SOV_OK},
    };
    u32 prompt[30];
    draw_prompt(12, prompt, 30);
    tiny_open(&tiny, MODEL_LLAMA, CONTEXT, SEED);
    for (u32 i = 0; i < COUNT_OF(rows); i++) {
        struct checkpoint_store store = {
            .forget = forget_nothing, .finish = take_end, .lost = note_lost};
        struct engine_config config = plain;
        config.store = &store;
        struct engine *engine = open_engine(config);
        engine->kv.config.is_outside = rows[i].unreadable;
        if (rows[i].unreadable) engine->kv.config.memory.read = read_nothing;
        memset(&ends, 0, sizeof ends);
        ends.refuses = rows[i].refuses;
        struct engine_request request = request_of(prompt, 30, 6);
        request.id = 77;
        struct step step;
        struct sov_fault fault = {0};
        CHECK(admit(engine, &request, &fault) == SOV_OK);
        for (u32 n = 0; n < 4 && rows[i].cancels; n++) {
            CHECK(step_once(engine, &step, &fault) == SOV_OK);
        }
        struct outcome outcome = {0};
        if (rows[i].cancels) engine_cancel(engine, current);
        run_on(engine, &outcome);
        CHECK_MSG(outcome.status == rows[i].status, "row %u: %s", i, outcome.fault.message);
        CHECK_MSG(ends.n_finished == rows[i].n_finished && ends.n_lost == rows[i].n_lost &&
                      ends.n_kv == rows[i].n_kv && ends.fault.status == rows[i].status,
                  "row %u: %u ends with %u positions, %u lost: %s", i, ends.n_finished, ends.n_kv,
                  ends.n_lost, ends.fault.message);
        bool is_named = ends.id.sequence_id == 77 && ends.id.n_tokens == 36 &&
                        ends.id.kind == CHECKPOINT_FINISH;
        CHECK(is_named == (rows[i].n_lost > 0));
        engine_close(engine);
    }
    tiny_close(&tiny);
}

int program_main(const struct platform_start *start) {
    static const struct test_case cases[] = {
        {"plans", plans},
        {"steps", steps},
        {"variants", variants},
        {"context_limits", context_limits},
        {"refused_requests", refused_requests},
        {"configurations", configurations},
        {"cancel", cancel},
        {"prefixes", prefixes},
        {"scripts", scripts},
        {"end_tokens", end_tokens},
        {"logprobs", logprobs},
        {"evaluate", evaluate},
        {"non_finite", non_finite},
        {"failure_then_another", failure_then_another},
        {"lost_ends", lost_ends},
    };
    return test_main(start, "test_engine", cases, COUNT_OF(cases));
}
