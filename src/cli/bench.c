// SPDX-License-Identifier: Apache-2.0
// sov bench: tokens per second of prefill (pp) and decode (tg), for every combination of threads,
// depth (positions that are in the KV cache before), prompt sizes and batch sizes. Each test is
// repeated, the first run warms caches and is dropped, and the median is shown.
//
// Prompts are ids drawn from a fixed seed. Decoding is greedy and goes on after end tokens, so that
// every run does the same work: n steps of one token at positions depth to depth + n - 1.
//
// Everything goes through the engine as for any other command, sampling included. The steps of a
// generation test are those in which every sequence of the batch gets one token.
#include "cli/cli.h"

#define REPEATS_MAX 100
#define PROMPT_SEED 12345u
#define TOKENS_MAX 65536u // of a prompt, of a depth, of generated tokens
#define WARMUP_STEPS 8u
#define SPARE_BLOCKS 3u
#define THREADS_DEFAULT 0 // resolved by the engine
#define DEVICE_BYTES 128

struct bench_options {
    struct model_options model;
    struct option_numbers prompts, depths, batches, threads;
    u32 n_generate, repeats;
    enum payload_kv_form kv_form;
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
    char device[DEVICE_BYTES];
    bool is_on_card;
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

static u32 largest(const struct option_numbers *list) {
    u32 result = 0;
    for (u32 i = 0; i < list->n; i++) result = MAX(result, list->values[i]);
    return result;
}

// --- measuring ---

static enum sov_status one_step(struct bench *b, struct engine_report *report,
                                struct sov_fault *fault) {
    struct engine_inputs inputs = {.power = POWER_ACTIVE};
    enum sov_status status = check_signal(fault);
    if (status == SOV_OK) status = engine_step(b->session.engine, &inputs, report, fault);
    for (u32 i = 0; i < report->n_outputs && status == SOV_OK; i++) {
        if (report->outputs[i].event.finish != FINISH_FAILED) continue;
        *fault = *report->outputs[i].fault;
        status = fault->status;
    }
    return status;
}

static enum sov_status submit(struct bench *b, u64 id, u32 n_tokens, u32 n_new,
                              engine_sequence *sequence, struct sov_fault *fault) {
    struct engine_request request = {.id = id,
                                     .tokens = b->ids,
                                     .n_tokens = n_tokens,
                                     .n_new_max = n_new,
                                     .ignore_end = true,
                                     .end_token = TOKEN_NONE,
                                     .kv_form = b->options->kv_form,
                                     .sampling = sample_params_default()};
    request.sampling.temperature = 0.0f;
    return engine_submit(b->session.engine, &request, sequence, fault);
}

// One sequence of one new token; *n_cached prompt tokens were in the KV cache.
static enum sov_status run_prefill(struct bench *b, u32 n_tokens, u64 *ns, u32 *n_cached,
                                   struct sov_fault *fault) {
    engine_sequence sequence;
    struct engine_report report = {.n_live = 1};
    u64 begin = platform_monotonic_ns();
    enum sov_status status = submit(b, 0, n_tokens, 1, &sequence, fault);
    while (status == SOV_OK && report.n_live > 0) {
        status = one_step(b, &report, fault);
        if (status == SOV_OK && report.n_outputs > 0) *n_cached = report.outputs[0].n_cached;
    }
    *ns = platform_monotonic_ns() - begin;
    return status;
}

static enum sov_status measure_prefill(struct bench *b, struct measurement *m,
                                       struct sov_fault *fault) {
    enum sov_status status = SOV_OK;
    u64 ns = 0;
    u32 n_cached = 0;
    m->depth = m->depth / SOV_KV_BLOCK_SIZE * SOV_KV_BLOCK_SIZE; // prefixes stay by whole blocks
    engine_forget_prefixes(b->session.engine);
    if (m->depth > 0) status = run_prefill(b, m->depth, &ns, &n_cached, fault);
    for (u32 r = 0; r <= m->repeats && status == SOV_OK; r++) {
        // The tokens of the depth are taken over from the run before. The next one is another, so
        // that nothing else is.
        u32 *next = &b->ids[m->depth];
        *next = (*next + 1) % b->session.model.params.n_vocab;
        status = run_prefill(b, m->depth + m->n, &ns, &n_cached, fault);
        if (status == SOV_OK && n_cached != m->depth) {
            status = fault_set(fault, SOV_ERR_STATE,
                               "%u tokens of the prompt were in the KV cache, expected %u",
                               n_cached, m->depth);
        }
        if (r > 0) m->ns[r - 1] = ns;
    }
    return status;
}

// Positions that the first sequences of a batch may be ahead when the last has its first token.
static u32 batch_slack(const struct bench_options *o, u32 depth) {
    u32 chunk = o->model.engine.prefill_chunk;
    if (chunk == 0) chunk = ENGINE_CHUNK_DEFAULT;
    return o->batches.n == 0 ? 0 : (depth / chunk + 2) * largest(&o->batches);
}

// n_steps steps of a batch whose sequences begin with `depth` tokens (at least one) of their own.
static enum sov_status run_decode(struct bench *b, u32 batch, u32 depth, u32 n_steps, u64 *ns,
                                  struct sov_fault *fault) {
    engine_sequence sequences[SOV_MAX_SEQS];
    struct engine_report report = {.n_live = batch};
    enum sov_status status = SOV_OK;
    u32 n_tokens = MAX(depth, 1u), n_vocab = b->session.model.params.n_vocab, n_started = 0;
    u32 n_new = n_steps + batch_slack(b->options, depth) + 1;
    for (u32 i = 0; i < batch && status == SOV_OK; i++) {
        b->ids[0] = (b->ids[0] + 1) % n_vocab; // nothing of another prompt is taken over
        status = submit(b, i, n_tokens, n_new, &sequences[i], fault);
    }
    while (status == SOV_OK && n_started < batch) {
        status = one_step(b, &report, fault);
        for (u32 i = 0; i < report.n_outputs && status == SOV_OK; i++) {
            if (report.outputs[i].position == n_tokens) n_started++;
        }
    }
    u64 begin = platform_monotonic_ns();
    for (u32 i = 0; i < n_steps && status == SOV_OK; i++) {
        status = one_step(b, &report, fault);
        if (status == SOV_OK && report.n_rows != batch) {
            status = fault_set(fault, SOV_ERR_STATE, "a step computed %u tokens, expected %u",
                               report.n_rows, batch);
        }
    }
    *ns = platform_monotonic_ns() - begin;
    for (u32 i = 0; i < batch && status == SOV_OK; i++) {
        engine_cancel(b->session.engine, sequences[i]);
    }
    while (status == SOV_OK && report.n_live > 0) status = one_step(b, &report, fault);
    return status;
}

static enum sov_status measure_decode(struct bench *b, struct measurement *m,
                                      struct sov_fault *fault) {
    enum sov_status status = SOV_OK;
    u64 ns = 0;
    engine_forget_prefixes(b->session.engine);
    for (u32 r = 0; r <= m->repeats && status == SOV_OK; r++) {
        u32 n_steps = r == 0 ? MIN(m->n, WARMUP_STEPS) : m->n;
        status = run_decode(b, m->batch, m->depth, n_steps, &ns, fault);
        if (r > 0) m->ns[r - 1] = ns;
    }
    return status;
}

// --- the tests ---

// The card's name, or the level of the CPU's kernels.
static void note_device(struct bench *b) {
    struct text t = TEXT_OVER_ARRAY(b->device);
    const char *card = engine_card(b->session.engine);
    b->is_on_card = card != NULL;
    text_format(&t, "%s", card != NULL ? card : cpu_level_name(b->options->model.engine.level));
}

static void print_header(struct bench *b) {
    const struct model *model = &b->session.model;
    output_put_utf8(&b->out, model->params.name);
    output_format(&b->out, ", %.1f MiB, %s; tokens/s, median of %u\n",
                  (f64)model->gguf.file_bytes / 1048576.0, b->device, b->options->repeats);
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
    output_format(out, ",\"file_bytes\":%llu,\"backend\":\"%s\",\"%s\":", model->gguf.file_bytes,
                  b->is_on_card ? "cuda" : "cpu", b->is_on_card ? "card" : "isa");
    output_json_string(out, str_from_z(b->device));
    output_put(out, STR(",\"results\":["));
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
            if (test.n > 0) status = run_test(b, measure_decode, test, fault);
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
        if (status == SOV_OK && i == 0) {
            note_device(b);
            if (!o->json) print_header(b);
        }
        if (status == SOV_OK) status = run_tests(b, fault);
        if (b->session.engine != NULL) engine_close(b->session.engine);
        b->session.engine = NULL;
        if (status != SOV_OK) return status;
    }
    return SOV_OK;
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
        {OPTION_STRING, "--checkpoint", NULL, "FORM", &o.model.record.form_name, NULL, 0, 0,
         "K and V of checkpoints: digest (default), full or tokens (none, as with --no-record)"},
        {OPTION_FLAG, "--json", NULL, NULL, &o.json, NULL, 0, 0, "print one JSON object"},
        BACKEND_OPTION(&o.model),
        NUMERICS_OPTION(&o.model),
        ENGINE_OPTIONS_BUT_THREADS(&o.model),
    };
    int exit_code = 0;
    if (!cli_parse(command, start, options, COUNT_OF(options), &exit_code)) return exit_code;
    struct sov_fault fault = {0};
    enum payload_form form;
    if (record_options_check(&o.model.record, &o.kv_form, &form, &fault) != SOV_OK) {
        return cli_fail(&fault);
    }
    platform_watch_interrupt();
    struct engine_config *engine = &o.model.engine;
    engine->kv_full = o.kv_form == PAYLOAD_KV_FULL;
    engine->start = start;
    u32 depth = MAX(largest(&o.depths), 1u);
    u32 needed = depth + MAX(largest(&o.prompts), o.n_generate + batch_slack(&o, depth)) + 1;
    if (engine->context == 0) engine->context = needed;
    if (engine->context < needed) {
        return cli_usage_error(command, "the tests need a context of %u tokens, -c is %u", needed,
                               engine->context);
    }
    engine->max_seqs = largest(&o.batches);
    // Enough that no sequence waits for another one's blocks: a context and some to spare each.
    engine->kv_blocks = engine->max_seqs * (engine->context / SOV_KV_BLOCK_SIZE + SPARE_BLOCKS);
    return run_bench(&o);
}
