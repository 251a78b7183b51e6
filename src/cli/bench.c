// SPDX-License-Identifier: Apache-2.0
// sov bench: tokens per second of prefill (pp) and decode (tg), for every combination of threads,
// depth (positions that are in the KV cache before), prompt sizes and batch sizes. Each test is
// repeated, the first run warms caches and is dropped, and the median is shown.
//
// Prompts are ids drawn from a fixed seed. Decoding is greedy and goes on after end tokens, so that
// every run does the same work: n steps of one token at positions depth to depth + n - 1.
//
// A batch of one goes through the engine, sampling included. Larger ones are forward passes of the
// engine's backend over a KV cache of this file's own, one row for each sequence with the logits of
// all; their tokens are given, not sampled.
#include "cli/cli.h"
#include "cpu/cpu.h"

#define REPEATS_MAX 100
#define PROMPT_SEED 12345u
#define TOKENS_MAX 65536u // of a prompt, of a depth, of generated tokens
#define WARMUP_STEPS 8u
#define THREADS_DEFAULT 0 // resolved by the engine

struct bench_options {
    struct model_options model;
    struct option_numbers prompts, depths, batches, threads;
    u32 n_generate, repeats;
    bool json;
};

// One test: n tokens of each of `batch` sequences in each of the repeats' times.
struct measurement {
    const char *name; // "pp" prefill, "tg" generation
    u32 n, n_threads, depth, batch, repeats;
    u64 ns[REPEATS_MAX];
};

struct bench {
    const struct bench_options *options;
    struct session session;
    struct output out;
    struct measurement *results; // [n_results_max]
    u32 n_results, n_results_max;
    u32 *ids; // [context] the prompt
    u32 context;
};

// A linear congruential step: only to have varied ids.
static void make_prompt(u32 *ids, u32 n, u32 n_vocab) {
    u32 state = PROMPT_SEED;
    for (u32 i = 0; i < n; i++) {
        state = state * 1664525u + 1013904223u;
        ids[i] = (state >> 8) % n_vocab;
    }
}

static void sort_times(u64 *times, u32 n) {
    for (u32 i = 1; i < n; i++) {
        for (u32 j = i; j > 0 && times[j - 1] > times[j]; j--) {
            u64 swapped = times[j];
            times[j] = times[j - 1];
            times[j - 1] = swapped;
        }
    }
}

static enum sov_status check_signal(struct sov_fault *fault) {
    if (!platform_interrupted()) return SOV_OK;
    return fault_set(fault, SOV_ERR_INTERRUPTED, "stopped by a signal");
}

// --- one sequence, through the engine ---

struct request_times {
    u64 first_ns; // from admission to the first new token
    u64 rest_ns;  // from there to the last
    u32 n_cached; // prompt tokens that were in the KV cache
};

static enum sov_status run_request(struct bench *b, u32 n_tokens, u32 n_new,
                                   struct request_times *times, struct sov_fault *fault) {
    struct engine *engine = b->session.engine;
    struct engine_request request = {.tokens = b->ids,
                                     .n_tokens = n_tokens,
                                     .n_new_max = n_new,
                                     .ignore_end = true,
                                     .sampling = sample_params_default()};
    request.sampling.temperature = 0.0f;
    struct engine_event event = {0};
    u64 begin = platform_monotonic_ns(), first = 0;
    enum sov_status status = engine_admit(engine, &request, fault);
    while (status == SOV_OK && event.finish == FINISH_NONE) {
        status = check_signal(fault);
        if (status != SOV_OK) break;
        status = engine_step(engine, b->session.vocabulary.tokenizer, &event, fault);
        if (first == 0 && event.has_token) first = platform_monotonic_ns();
    }
    *times = (struct request_times){.first_ns = first - begin,
                                    .rest_ns = platform_monotonic_ns() - first,
                                    .n_cached = event.n_cached};
    return status;
}

static enum sov_status measure_prefill(struct bench *b, struct measurement *m,
                                       struct sov_fault *fault) {
    struct request_times times;
    enum sov_status status = SOV_OK;
    if (m->depth > 0) status = run_request(b, m->depth, 1, &times, fault);
    for (u32 r = 0; r <= m->repeats && status == SOV_OK; r++) {
        // The tokens of the depth are taken over from the run before. The next one is another, so
        // that nothing else is.
        u32 *next = &b->ids[m->depth];
        *next = (*next + 1) % b->session.model.params.n_vocab;
        status = run_request(b, m->depth + m->n, 1, &times, fault);
        if (status == SOV_OK && times.n_cached != m->depth) {
            status = fault_set(fault, SOV_ERR_STATE,
                               "%u tokens of the prompt were in the KV cache, expected %u",
                               times.n_cached, m->depth);
        }
        if (r > 0) m->ns[r - 1] = times.first_ns;
    }
    return status;
}

// Steps of a run of decoding: the first run warms caches only.
static u32 steps_of(const struct measurement *m, u32 run) {
    return run == 0 ? MIN(m->n, WARMUP_STEPS) : m->n;
}

static enum sov_status measure_decode(struct bench *b, struct measurement *m,
                                      struct sov_fault *fault) {
    struct request_times times;
    enum sov_status status = SOV_OK;
    bool deep = m->depth > 0;
    for (u32 r = 0; r <= m->repeats && status == SOV_OK; r++) {
        // With a depth, the step of the prompt's last token is the prefill's; without, it is the
        // first of the n.
        u32 n = steps_of(m, r);
        status = run_request(b, deep ? m->depth : 1, deep ? n + 1 : n, &times, fault);
        if (r > 0) m->ns[r - 1] = times.rest_ns + (deep ? 0 : times.first_ns);
    }
    return status;
}

// --- many sequences, by the backend ---

struct batch_run {
    struct bench *bench;
    struct kv_allocator kv;
    u32 tokens[SOV_MAX_SEQS], positions[SOV_MAX_SEQS], slots[SOV_MAX_SEQS];
    u32 rows[SOV_MAX_SEQS];
};

static struct kv_layer view_layer(const void *context, u32 layer) {
    return kv_layer_view(context, layer);
}

// One pass over `n_rows` rows that stand in the run's arrays, n_each of each sequence from `slot`
// on, and its commit.
static enum sov_status batch_pass(struct batch_run *run, u32 n_rows, u32 slot, u32 n_each,
                                  u32 n_logits, struct sov_fault *fault) {
    assert(n_each > 0);
    enum sov_status status = check_signal(fault);
    for (u32 i = 0; i < n_rows / n_each && status == SOV_OK; i++) {
        u32 n = kv_length(&run->kv, slot + i) + n_each;
        status = kv_allocate_blocks(&run->kv, slot + i, n, fault);
    }
    struct cpu_batch batch = {.n_tokens = n_rows,
                              .tokens = run->tokens,
                              .positions = run->positions,
                              .slots = run->slots,
                              .n_logit_rows = n_logits,
                              .logit_rows = run->rows};
    const f32 *logits = NULL;
    u32 stride = 0;
    if (status == SOV_OK) {
        status = cpu_forward(engine_cpu(run->bench->session.engine), &batch, view_layer, &run->kv,
                             &logits, &stride, fault);
    }
    for (u32 i = 0; i < n_rows / n_each && status == SOV_OK; i++) {
        status = kv_append_tokens(&run->kv, slot + i, n_each, fault);
    }
    return status;
}

// Fills the KV cache of one sequence up to the depth, in passes as large as the run's arrays and
// the engine's chunk allow.
static enum sov_status batch_prefill(struct batch_run *run, u32 slot, u32 depth,
                                     struct sov_fault *fault) {
    u32 chunk = MIN((u32)SOV_MAX_SEQS, run->bench->options->model.engine.prefill_chunk);
    assert(chunk > 0);
    enum sov_status status = SOV_OK;
    for (u32 done = 0; done < depth && status == SOV_OK;) {
        u32 n = MIN(chunk, depth - done);
        for (u32 i = 0; i < n; i++) {
            run->tokens[i] = run->bench->ids[(done + i + slot) % run->bench->context];
            run->positions[i] = done + i;
            run->slots[i] = slot;
        }
        status = batch_pass(run, n, slot, n, 0, fault);
        done += n;
    }
    return status;
}

static enum sov_status batch_decode(struct batch_run *run, const struct measurement *m, u32 n_steps,
                                    struct sov_fault *fault) {
    enum sov_status status = SOV_OK;
    for (u32 i = 0; i < n_steps && status == SOV_OK; i++) {
        for (u32 s = 0; s < m->batch; s++) {
            run->tokens[s] = run->bench->ids[(m->depth + i + s) % run->bench->context];
            run->positions[s] = m->depth + i;
            run->slots[s] = run->rows[s] = s;
        }
        status = batch_pass(run, m->batch, 0, 1, m->batch, fault);
    }
    return status;
}

static enum sov_status measure_batch(struct bench *b, struct measurement *m,
                                     struct sov_fault *fault) {
    const struct model_params *p = &b->session.model.params;
    u32 blocks = (m->depth + m->n + SOV_KV_BLOCK_SIZE - 1) / SOV_KV_BLOCK_SIZE;
    struct kv_config config = {.n_layer = p->n_layer,
                               .n_head_kv = p->n_head_kv,
                               .head_dim = p->head_dim,
                               .n_sequences = m->batch,
                               .max_blocks = blocks,
                               .n_blocks = blocks * m->batch};
    struct batch_run run = {.bench = b};
    u64 bytes = kv_memory_bytes(&config);
    void *memory = bytes > 0 ? platform_memory_map(bytes) : NULL;
    if (memory == NULL) {
        return fault_set(fault, SOV_ERR_MEMORY,
                         "the KV cache of %u sequences of %u tokens (%llu bytes) is not to be had",
                         m->batch, m->depth + m->n, bytes);
    }
    struct arena arena = arena_over(memory, bytes);
    enum sov_status status = kv_create(&run.kv, &config, false, 0, &arena, fault);
    for (u32 s = 0; s < m->batch && status == SOV_OK; s++) {
        status = batch_prefill(&run, s, m->depth, fault);
    }
    for (u32 r = 0; r <= m->repeats && status == SOV_OK; r++) {
        u64 begin = platform_monotonic_ns();
        status = batch_decode(&run, m, steps_of(m, r), fault);
        if (r > 0) m->ns[r - 1] = platform_monotonic_ns() - begin;
        for (u32 s = 0; s < m->batch && status == SOV_OK; s++) {
            status = kv_truncate(&run.kv, s, m->depth, fault);
        }
    }
    platform_memory_unmap(memory, bytes);
    return status;
}

// --- the tests ---

static void print_header(struct bench *b) {
    const struct model *model = &b->session.model;
    output_put_utf8(&b->out, model->params.name);
    output_format(&b->out, ", %.1f MiB, %s; tokens/s, median of %u\n",
                  (f64)model->gguf.file_bytes / 1048576.0,
                  cpu_level_name(b->options->model.engine.level), b->options->repeats);
    output_format(&b->out, "%-10s %7s %7s %7s %12s %12s %12s\n", "test", "threads", "depth",
                  "batch", "median", "slowest", "fastest");
}

// Tokens per second of the sorted times.
static f64 rate(const struct measurement *m, u32 idx) {
    return (f64)m->n * m->batch * 1e9 / (f64)MAX(m->ns[idx], 1ull);
}

static void print_text(struct output *out, const struct measurement *m) {
    output_format(out, "%s%-8u %7u %7u %7u %12.2f %12.2f %12.2f\n", m->name, m->n, m->n_threads,
                  m->depth, m->batch, rate(m, m->repeats / 2), rate(m, m->repeats - 1), rate(m, 0));
    output_flush(out);
}

static void print_json(struct bench *b) {
    struct output *out = &b->out;
    const struct model *model = &b->session.model;
    output_put(out, STR("{\"model\":"));
    output_json_string(out, model->params.name);
    output_format(out, ",\"file_bytes\":%llu,\"isa\":\"%s\",\"results\":[", model->gguf.file_bytes,
                  cpu_level_name(b->options->model.engine.level));
    for (u32 i = 0; i < b->n_results; i++) {
        const struct measurement *m = &b->results[i];
        output_format(
            out,
            "%s{\"test\":\"%s%u\",\"threads\":%u,\"depth\":%u,\"batch\":%u,\"repeats\":%u,"
            "\"tokens_per_second\":%.3f,\"slowest\":%.3f,\"fastest\":%.3f,\"ns\":[",
            i > 0 ? "," : "", m->name, m->n, m->n_threads, m->depth, m->batch, m->repeats,
            rate(m, m->repeats / 2), rate(m, m->repeats - 1), rate(m, 0));
        for (u32 r = 0; r < m->repeats; r++) {
            output_format(out, "%s%llu", r > 0 ? "," : "", m->ns[r]);
        }
        output_put(out, STR("]}"));
    }
    output_put(out, STR("]}\n"));
}

typedef enum sov_status measure_test(struct bench *b, struct measurement *m,
                                     struct sov_fault *fault);

static enum sov_status run_test(struct bench *b, measure_test *measure, struct measurement test,
                                struct sov_fault *fault) {
    assert(b->n_results < b->n_results_max);
    struct measurement *m = &b->results[b->n_results];
    *m = test;
    m->repeats = b->options->repeats;
    m->n_threads = b->options->model.engine.n_threads;
    enum sov_status status = measure(b, m, fault);
    if (status != SOV_OK) return status;
    sort_times(m->ns, m->repeats);
    if (!b->options->json) print_text(&b->out, m);
    b->n_results++;
    return SOV_OK;
}

// All tests of the open engine.
static enum sov_status run_tests(struct bench *b, struct sov_fault *fault) {
    const struct bench_options *o = b->options;
    enum sov_status status = SOV_OK;
    for (u32 d = 0; d < o->depths.n && status == SOV_OK; d++) {
        u32 depth = o->depths.values[d];
        for (u32 i = 0; i < o->prompts.n && status == SOV_OK; i++) {
            struct measurement test = {
                .name = "pp", .n = o->prompts.values[i], .depth = depth, .batch = 1};
            if (test.n > 0) status = run_test(b, measure_prefill, test, fault);
        }
        for (u32 i = 0; i < o->batches.n && status == SOV_OK; i++) {
            struct measurement test = {
                .name = "tg", .n = o->n_generate, .depth = depth, .batch = o->batches.values[i]};
            measure_test *measure = test.batch == 1 ? measure_decode : measure_batch;
            if (test.n > 0) status = run_test(b, measure, test, fault);
        }
    }
    return status;
}

// An engine for each number of threads, one after the other.
static enum sov_status run_engines(struct bench *b, struct bench_options *o,
                                   struct sov_fault *fault) {
    struct engine_config wanted = o->model.engine;
    for (u32 i = 0; i < o->threads.n; i++) {
        o->model.engine = wanted;
        o->model.engine.n_threads = o->threads.values[i];
        enum sov_status status = engine_config_resolve(&o->model.engine, &b->session.model, fault);
        if (status == SOV_OK) {
            status = engine_open(&b->session.model, &o->model.engine, &b->session.engine, fault);
        }
        if (status == SOV_OK) status = run_tests(b, fault);
        if (b->session.engine != NULL) engine_close(b->session.engine);
        b->session.engine = NULL;
        if (status != SOV_OK) return status;
    }
    return SOV_OK;
}

static u32 largest(const struct option_numbers *list) {
    u32 result = 0;
    for (u32 i = 0; i < list->n; i++) result = MAX(result, list->values[i]);
    return result;
}

// Memory for the results and the prompt, then the model and the tests.
static int run_bench(struct bench_options *o) {
    struct bench b = {.options = o, .context = o->model.engine.context};
    struct sov_fault fault = {0};
    output_init(&b.out, PLATFORM_STDOUT);
    b.n_results_max = o->threads.n * o->depths.n * (o->prompts.n + o->batches.n);
    u64 results_bytes = (u64)b.n_results_max * sizeof *b.results;
    u64 bytes = results_bytes + (u64)b.context * sizeof *b.ids;
    b.results = platform_memory_map(bytes);
    enum sov_status status = SOV_OK;
    if (b.results == NULL) {
        status = fault_set(&fault, SOV_ERR_MEMORY, "no memory for %u results", b.n_results_max);
        return status == SOV_OK ? 1 : cli_fail(&fault);
    }
    b.ids = (u32 *)((u8 *)b.results + results_bytes);
    status = session_open(&b.session, &o->model, SESSION_MODEL, &fault);
    if (status == SOV_OK) {
        make_prompt(b.ids, b.context, b.session.model.params.n_vocab);
        if (!o->json) print_header(&b);
        status = run_engines(&b, o, &fault);
    }
    if (status == SOV_OK && o->json) print_json(&b);
    int exit_code = output_finish(&b.out);
    if (status != SOV_OK) exit_code = cli_fail(&fault);
    session_close(&b.session);
    platform_memory_unmap(b.results, bytes);
    return exit_code;
}

int cli_bench(const struct command *command, const struct platform_start *start) {
    struct bench_options o = {.prompts = {{512}, 1},
                              .depths = {{0}, 1},
                              .batches = {{1}, 1},
                              .threads = {{THREADS_DEFAULT}, 1},
                              .n_generate = 128,
                              .repeats = 5};
    const struct option options[] = {
        MODEL_OPTION(&o.model),
        {OPTION_NUMBERS, "-p", "--n-prompt", "LIST", &o.prompts, NULL, 0, TOKENS_MAX,
         "tokens of the prefill tests (default 512; 0: none)"},
        {OPTION_U32, "-n", "--n-gen", "N", &o.n_generate, NULL, 0, TOKENS_MAX,
         "tokens of the generation tests (default 128; 0: none)"},
        {OPTION_NUMBERS, "-d", "--depth", "LIST", &o.depths, NULL, 0, TOKENS_MAX,
         "positions in the KV cache before each test (default 0)"},
        {OPTION_NUMBERS, "-b", "--batch", "LIST", &o.batches, NULL, 1, SOV_MAX_SEQS,
         "sequences that generate together (default 1)"},
        {OPTION_NUMBERS, "-t", "--threads", "LIST", &o.threads, NULL, 0, ENGINE_THREADS_MAX,
         "worker threads (default 0: one for each CPU)"},
        {OPTION_U32, "-r", "--repetitions", "N", &o.repeats, NULL, 1, REPEATS_MAX,
         "measured runs of each test (default 5)"},
        {OPTION_FLAG, "--json", NULL, NULL, &o.json, NULL, 0, 0, "print one JSON object"},
        ENGINE_OPTIONS_BUT_THREADS(&o.model),
    };
    int exit_code = 0;
    if (!cli_parse(command, start, options, COUNT_OF(options), &exit_code)) return exit_code;
    platform_watch_interrupt();
    struct engine_config *engine = &o.model.engine;
    u32 batch = largest(&o.batches);
    u32 needed = largest(&o.depths) + MAX(largest(&o.prompts), o.n_generate) + 1;
    needed = MAX(needed, batch);
    if (engine->context == 0) engine->context = needed;
    if (engine->context < needed) {
        return cli_usage_error(command, "the tests need a context of %u tokens, -c is %u", needed,
                               engine->context);
    }
    if (engine->prefill_chunk != 0 && engine->prefill_chunk < batch) {
        return cli_usage_error(command, "a batch of %u needs --prefill-chunk %u or more, not %u",
                               batch, batch, engine->prefill_chunk);
    }
    engine->logit_rows = batch;
    return run_bench(&o);
}
