// SPDX-License-Identifier: Apache-2.0
// sov bench: tokens per second of prefill and decode, each test repeated, medians printed. A prompt
// is made of ids drawn from a fixed seed; decoding is greedy, from a context of a given depth, and
// goes on after end tokens, so every run does the same work.
#include "cli/cli.h"

#define REPEATS_MAX 100
#define PROMPT_SEED 12345u

struct bench_options {
    struct model_options model;
    u32 n_prompt, n_generate, depth, repeats;
    bool json;
};

// One measured quantity: n tokens in each of the repeats' times.
struct measurement {
    const char *name; // "pp" prefill, "tg" generation
    u32 n, depth;
    u64 ns[REPEATS_MAX];
    u32 repeats;
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

// Steps until the first token is there (the prefill), then n_new - 1 more; times of both.
static enum sov_status run_once(struct session *session, const struct engine_request *request,
                                u64 *prefill_ns, u64 *decode_ns, struct sov_fault *fault) {
    engine_sequence sequence;
    enum sov_status status = engine_submit(session->engine, request, &sequence, fault);
    u64 begin = platform_monotonic_ns(), first = 0;
    struct engine_report report = {.n_live = 1};
    while (status == SOV_OK && report.n_live > 0) {
        if (platform_interrupted()) {
            return fault_set(fault, SOV_ERR_INTERRUPTED, "stopped by a signal");
        }
        struct engine_inputs inputs = {.power = POWER_ACTIVE};
        status = engine_step(session->engine, &inputs, &report, fault);
        for (u32 i = 0; i < report.n_outputs && status == SOV_OK; i++) {
            const struct engine_output *output = &report.outputs[i];
            bool is_first = output->event.type == EVENT_TOKEN && first == 0;
            if (is_first) first = platform_monotonic_ns();
            if (output->event.finish == FINISH_FAILED) {
                *fault = *output->fault;
                status = fault->status;
            }
        }
    }
    *prefill_ns = first - begin;
    *decode_ns = platform_monotonic_ns() - first;
    return status;
}

static enum sov_status measure(struct session *session, const struct bench_options *o, u32 *ids,
                               struct measurement *prefill, struct measurement *decode,
                               struct sov_fault *fault) {
    struct sample_params greedy = sample_params_default();
    greedy.temperature = 0.0f;
    struct engine_request request = {
        .tokens = ids, .ignore_end = true, .end_token = TOKEN_NONE, .sampling = greedy};
    enum sov_status status = SOV_OK;
    // One round more than asked for: the first warms caches and is dropped.
    for (u32 r = 0; r <= o->repeats && status == SOV_OK; r++) {
        u32 slot = r == 0 ? 0 : r - 1;
        u64 ignored = 0;
        ids[0] = r; // another beginning: nothing of the round before is taken over
        if (o->n_prompt > 0) {
            request.n_tokens = o->n_prompt;
            request.n_new_max = 1;
            status = run_once(session, &request, &prefill->ns[slot], &ignored, fault);
        }
        if (o->n_generate > 0 && status == SOV_OK) {
            ids[0] = o->repeats + 1 + r;
            request.n_tokens = o->depth;
            request.n_new_max = o->n_generate + 1;
            status = run_once(session, &request, &ignored, &decode->ns[slot], fault);
        }
    }
    return status;
}

static void print(struct output *out, struct measurement *m, bool json, bool *is_first) {
    if (m->n == 0) return;
    sort_times(m->ns, m->repeats);
    u32 middle = m->repeats / 2;
    f64 median = (f64)m->ns[middle], best = (f64)m->ns[0];
    f64 worst = (f64)m->ns[m->repeats - 1], tokens = (f64)m->n * 1e9;
    if (json) {
        output_format(out,
                      "%s{\"test\":\"%s%u\",\"depth\":%u,\"repeats\":%u,\"tokens_per_second\":%.3f,"
                      "\"slowest\":%.3f,\"fastest\":%.3f}",
                      *is_first ? "" : ",", m->name, m->n, m->depth, m->repeats, tokens / median,
                      tokens / worst, tokens / best);
    } else {
        output_format(out, "%s%-8u %8u %12.2f %12.2f %12.2f\n", m->name, m->n, m->depth,
                      tokens / median, tokens / worst, tokens / best);
    }
    *is_first = false;
}

static void report(struct output *out, const struct session *session, const struct bench_options *o,
                   struct measurement *prefill, struct measurement *decode) {
    const struct engine_config *engine = &o->model.engine;
    bool is_first = true;
    if (o->json) {
        output_put(out, STR("{\"model\":"));
        output_json_string(out, session->model.params.name);
        output_format(out, ",\"threads\":%u,\"isa\":\"%s\",\"results\":[", engine->n_threads,
                      cpu_level_name(engine->level));
    } else {
        output_put_utf8(out, session->model.params.name);
        output_format(out, ", %.1f MiB, %u threads, %s; tokens/s, median of %u\n",
                      (f64)session->model.gguf.file_bytes / 1048576.0, engine->n_threads,
                      cpu_level_name(engine->level), o->repeats);
        output_format(out, "%-10s %8s %12s %12s %12s\n", "test", "depth", "median", "slowest",
                      "fastest");
    }
    print(out, prefill, o->json, &is_first);
    print(out, decode, o->json, &is_first);
    if (o->json) output_put(out, STR("]}\n"));
}

int cli_bench(const struct command *command, const struct platform_start *start) {
    struct bench_options o = {.n_prompt = 512, .n_generate = 128, .depth = 1, .repeats = 5};
    const struct option options[] = {
        MODEL_OPTION(&o.model),
        {OPTION_U32, "-p", "--n-prompt", "N", &o.n_prompt, NULL, 0, 65536,
         "tokens of the prefill test (default 512; 0: none)"},
        {OPTION_U32, "-n", "--n-gen", "N", &o.n_generate, NULL, 0, 65536,
         "tokens of the generation test (default 128; 0: none)"},
        {OPTION_U32, "-d", "--depth", "N", &o.depth, NULL, 1, 65536,
         "context before the generation test (default 1)"},
        {OPTION_U32, "-r", "--repetitions", "N", &o.repeats, NULL, 1, REPEATS_MAX,
         "measured runs of each test (default 5)"},
        {OPTION_FLAG, "--json", NULL, NULL, &o.json, NULL, 0, 0, "print one JSON object"},
        ENGINE_OPTIONS(&o.model),
    };
    int exit_code = 0;
    if (!cli_parse(command, start, options, COUNT_OF(options), &exit_code)) return exit_code;
    platform_watch_interrupt();
    u32 needed = MAX(o.n_prompt + 1, o.depth + o.n_generate + 1);
    if (o.model.engine.context == 0) o.model.engine.context = needed;
    if (o.model.engine.context < needed) {
        return cli_usage_error(command, "the tests need a context of %u tokens, -c is %u", needed,
                               o.model.engine.context);
    }
    struct sov_fault fault = {0};
    struct session session;
    struct output out;
    output_init(&out, PLATFORM_STDOUT);
    u64 bytes = (u64)needed * sizeof(u32);
    u32 *ids = platform_memory_map(bytes);
    if (ids == NULL) {
        enum sov_status no_memory = fault_set(&fault, SOV_ERR_MEMORY, "no memory for a prompt");
        (void)no_memory;
        return cli_fail(&fault);
    }
    struct measurement prefill = {.name = "pp", .n = o.n_prompt, .repeats = o.repeats};
    struct measurement decode = {
        .name = "tg", .n = o.n_generate, .depth = o.depth, .repeats = o.repeats};
    enum sov_status status = session_open(&session, &o.model, SESSION_ENGINE, &fault);
    if (status == SOV_OK) {
        make_prompt(ids, needed, session.model.params.n_vocab);
        status = measure(&session, &o, ids, &prefill, &decode, &fault);
    }
    if (status == SOV_OK) report(&out, &session, &o, &prefill, &decode);
    exit_code = status == SOV_OK ? output_finish(&out) : cli_fail(&fault);
    session_close(&session);
    platform_memory_unmap(ids, bytes);
    return exit_code;
}
