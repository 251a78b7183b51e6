// SPDX-License-Identifier: Apache-2.0
// One answer: the engine's steps until something ends it, its text streamed in whole characters.
// The JSON object is written afterwards from the same tokens through the same stream, so that both
// texts are equal.
#include "cli/generate.h"

#define NANOSECONDS 1e9

// --- memory ---

enum sov_status answer_reserve(struct answer *answer, u32 n_new, bool has_logprobs, u32 n_top,
                               struct sov_fault *fault) {
    u64 n = MAX(n_new, 1u);
    u64 n_logprobs = has_logprobs ? n : 0;
    u64 ids_bytes = round_up(n * sizeof(u32), 8);
    u64 logprob_bytes = n_logprobs * sizeof(f64);
    u64 top_bytes = n_logprobs * n_top * sizeof(struct token_logprob);
    *answer = (struct answer){
        .capacity = (u32)n,
        .memory_bytes = ids_bytes + logprob_bytes + top_bytes,
    };
    u8 *memory = platform_memory_map(answer->memory_bytes);
    if (memory == NULL) {
        return fault_set(fault, SOV_ERR_MEMORY, "answer: %llu bytes are not to be had",
                         answer->memory_bytes);
    }
    answer->memory = memory;
    answer->ids = (u32 *)(void *)memory;
    if (has_logprobs) answer->logprobs = (f64 *)(void *)(memory + ids_bytes);
    if (top_bytes > 0) answer->top = (void *)(memory + ids_bytes + logprob_bytes);
    return SOV_OK;
}

enum sov_status answer_create(struct answer *answer, const struct generate_options *g, u32 context,
                              struct sov_fault *fault) {
    u32 n = g->n_new >= 0 ? MIN((u32)g->n_new, context) : context;
    return answer_reserve(answer, n, g->has_logprobs, g->n_logprobs, fault);
}

void answer_free(struct answer *answer) {
    if (answer->memory != NULL) platform_memory_unmap(answer->memory, answer->memory_bytes);
    *answer = (struct answer){0};
}

// --- generation ---

static void show_prefill(bool shown, u32 done, u32 total) {
    if (!shown) return;
    struct output err;
    output_init(&err, PLATFORM_STDERR);
    if (done < total) {
        output_format(&err, "\rprompt: %u of %u tokens", done, total);
    } else {
        output_put(&err, STR("\r\033[K"));
    }
    output_flush(&err);
}

void answer_keep(struct answer *answer, const struct engine_output *token) {
    assert(answer->n_ids < answer->capacity);
    u32 i = answer->n_ids++;
    answer->ids[i] = token->event.sampled_token_id;
    if (answer->logprobs == NULL) return;
    answer->logprobs[i] = token->logprob;
    answer->n_top = token->n_top; // the same for every token: the N asked for, or the vocabulary
    for (u32 k = 0; k < token->n_top; k++) answer->top[i * token->n_top + k] = token->top[k];
}

// What an answer in progress is made of.
struct generation {
    struct answer *answer;
    struct session *session;
    struct generate_options *g;
    engine_sequence sequence;
    u32 n_computed;
    bool shows_prefill, has_ended;
    struct output *out;
    struct piece_stream stream;
    struct stop_matcher stop; // of the engine's stop rule; the stream has one of its own
};

// The stop rule (engine.h).
static bool stops_at(void *context, u32 token) {
    struct generation *x = context;
    u8 piece[CLI_PIECE_BYTES_MAX], shown[CLI_PIECE_BYTES_MAX + STOP_BYTES_MAX];
    const struct tokenizer *tokenizer = x->session->vocabulary.tokenizer;
    usize len = tokenizer_decode(tokenizer, token, false, false, piece, sizeof piece);
    (void)stop_feed(&x->stop, (struct str){piece, len}, shown);
    return x->stop.found;
}

// One output of the engine. The token that ends the answer is no part of it.
static enum sov_status take(struct generation *x, const struct engine_output *output,
                            struct sov_fault *fault) {
    struct answer *answer = x->answer;
    const struct sov_event *event = &output->event;
    answer->n_cached = output->n_cached;
    if (event->type == EVENT_FINISHED) {
        x->has_ended = true;
        if (answer->finish == FINISH_NONE) answer->finish = event->finish;
        if (event->finish != FINISH_FAILED) return SOV_OK;
        *fault = *output->fault;
        return fault->status;
    }
    if (event->type != EVENT_TOKEN || answer->finish != FINISH_NONE) return SOV_OK;
    u32 token = event->sampled_token_id;
    if (event->committed_token_count == 1) {
        answer->first_token_ns = platform_monotonic_ns();
        show_prefill(x->shows_prefill, answer->n_prompt, answer->n_prompt);
    }
    if (!output->is_end) {
        answer_keep(answer, output);
        piece_stream_put(&x->stream, token);
        output_flush(x->out);
    }
    if (output->is_end || x->g->stop.found) answer->finish = FINISH_STOP;
    return SOV_OK;
}

static enum sov_status generate(struct generation *x, struct sov_fault *fault) {
    struct answer *answer = x->answer;
    enum sov_status status = SOV_OK;
    while (status == SOV_OK && !x->has_ended) {
        bool nobody_reads = platform_interrupted() || x->out->status != SOV_OK;
        if (nobody_reads && answer->finish == FINISH_NONE && !answer->cancelled) {
            bool is_end = x->g->ctrl_c_ends && !platform_terminated();
            bool is_interrupted = platform_interrupted() && !is_end;
            if (is_interrupted) session_checkpoint(x->session);
            if (is_interrupted) engine_interrupt(x->session->engine, x->sequence);
            answer->cancelled = true;
        }
        if (nobody_reads || answer->finish != FINISH_NONE) {
            engine_cancel(x->session->engine, x->sequence);
        }
        struct engine_inputs inputs = session_inputs(x->session);
        struct engine_report report;
        status = engine_step(x->session->engine, &inputs, &report, fault);
        if (status != SOV_OK) break;
        for (u32 i = 0; i < report.n_outputs && status == SOV_OK; i++) {
            status = take(x, &report.outputs[i], fault);
        }
        x->n_computed += report.n_rows;
        if (inputs.power == POWER_SUSPEND) platform_sleep(SESSION_SUSPENDED_NS);
        if (status == SOV_OK) status = record_check(&x->session->record, fault);
        if (report.n_rows == 0 && !x->has_ended) record_wait(&x->session->record);
        if (answer->n_ids == 0 && !x->has_ended) {
            show_prefill(x->shows_prefill, answer->n_cached + x->n_computed, answer->n_prompt);
        }
    }
    if (answer->cancelled && answer->n_ids == 0) show_prefill(x->shows_prefill, 0, 0);
    piece_stream_end(&x->stream); // also after a failure: what came before it is shown
    if (!x->g->json && answer->n_ids > 0) output_put(x->out, STR("\n"));
    output_flush(x->out);
    return status;
}

// The record's share of a request.
static enum sov_status ask_for_record(struct session *session, const struct generate_options *g,
                                      struct engine_request *request, struct sov_fault *fault) {
    enum sov_status status = record_begin(&session->record, fault);
    if (status != SOV_OK) return status;
    request->id = record_next_id(&session->record);
    struct record_source source = {
        .command = g->command,
        .prompt = g->text,
        .stops = g->stop_strings,
        .n_stops = g->stops.n,
    };
    return record_request(&session->record, request, &source, g->model.engine.context, fault);
}

enum sov_status answer_generate(struct answer *answer, struct session *session,
                                struct generate_options *g, const struct token_list *prompt,
                                u32 end_token, struct output *out, struct sov_fault *fault) {
    struct engine_request request = {
        .tokens = prompt->ids,
        .n_tokens = (u32)MIN(prompt->n, 0xffffffffu),
        .n_new_max = g->n_new > 0 ? (u32)g->n_new : 0,
        .ignore_end = g->ignore_end,
        .end_token = end_token,
        .n_logprobs = g->n_logprobs,
        .wants_logprob = g->has_logprobs,
        .script = g->script.ids,
        .n_script = (u32)MIN(g->script.n, 0xffffffffu),
        .sampling = g->sampling,
    };
    static_assert(sizeof(struct generation) < 1 << 17, "on the stack of the first thread");
    struct generation x = {
        .answer = answer, .session = session, .g = g, .out = out, .stop = g->stop};
    stop_reset(&x.stop);
    if (g->stops.n > 0) request.stop = stops_at;
    request.stop_context = &x;
    enum sov_status status = g->n_new == 0 ? SOV_OK : ask_for_record(session, g, &request, fault);
    if (status == SOV_OK) status = engine_submit(session->engine, &request, &x.sequence, fault);
    if (status != SOV_OK) return status;
    answer->n_ids = 0;
    answer->n_prompt = request.n_tokens;
    answer->n_cached = 0;
    answer->finish = g->n_new == 0 ? FINISH_LENGTH : FINISH_NONE; // nothing asked for: checked only
    answer->cancelled = false;
    answer->begin_ns = answer->first_token_ns = answer->end_ns = platform_monotonic_ns();
    bool is_shown = !g->json && g->n_new != 0;
    piece_stream_begin(&x.stream, is_shown ? out : NULL, session->vocabulary.tokenizer, false);
    piece_stream_stop_at(&x.stream, &g->stop);
    x.shows_prefill = platform_is_terminal(PLATFORM_STDERR) &&
                      answer->n_prompt > g->model.engine.prefill_chunk;
    status = generate(&x, fault);
    answer->end_ns = platform_monotonic_ns();
    if (status == SOV_OK) status = record_end(&session->record, fault);
    return status;
}

// --- report ---

static f64 per_second(u32 n, u64 ns) { return ns == 0 ? 0.0 : (f64)n * NANOSECONDS / (f64)ns; }

static const char *finish_name(const struct answer *answer) {
    if (answer->cancelled) return "cancelled";
    return answer->finish == FINISH_STOP ? "stop" : "length";
}

void output_put_ids(struct output *out, const u32 *ids, usize n) {
    output_put(out, STR("["));
    for (usize i = 0; i < n; i++) output_format(out, i == 0 ? "%u" : ",%u", ids[i]);
    output_put(out, STR("]"));
}

void answer_put_logprob(struct output *out, const struct tokenizer *tokenizer, u32 token,
                        f64 logprob) {
    u8 piece[CLI_PIECE_BYTES_MAX];
    usize len = tokenizer_decode(tokenizer, token, true, false, piece, sizeof piece);
    output_format(out, "{\"id\":%u,\"token\":", token);
    output_json_string(out, (struct str){piece, len});
    output_put(out, STR(",\"bytes\":["));
    for (usize i = 0; i < len; i++) output_format(out, i == 0 ? "%u" : ",%u", (u32)piece[i]);
    output_format(out, "],\"logprob\":%.9g", logprob);
}

void answer_put_logprobs(struct output *out, const struct tokenizer *tokenizer,
                         const struct answer *answer) {
    output_put(out, STR("["));
    for (u32 i = 0; i < answer->n_ids; i++) {
        if (i > 0) output_put(out, STR(","));
        answer_put_logprob(out, tokenizer, answer->ids[i], answer->logprobs[i]);
        output_put(out, STR(",\"top_logprobs\":["));
        for (u32 k = 0; k < answer->n_top; k++) {
            const struct token_logprob *top = &answer->top[i * answer->n_top + k];
            if (k > 0) output_put(out, STR(","));
            answer_put_logprob(out, tokenizer, top->token, top->logprob);
            output_put(out, STR("}"));
        }
        output_put(out, STR("]}"));
    }
    output_put(out, STR("]"));
}

void answer_put_text(const struct answer *answer, const struct tokenizer *tokenizer,
                     struct stop_matcher *stop, struct output *out) {
    struct piece_stream stream;
    output_put(out, STR("\""));
    piece_stream_begin(&stream, out, tokenizer, true);
    piece_stream_stop_at(&stream, stop);
    for (u32 i = 0; i < answer->n_ids; i++) piece_stream_put(&stream, answer->ids[i]);
    piece_stream_end(&stream);
    output_put(out, STR("\""));
}

void answer_print_json(const struct answer *answer, struct generate_options *g,
                       const struct session *session, const struct token_list *prompt,
                       struct output *out) {
    const struct tokenizer *tokenizer = session->vocabulary.tokenizer;
    u64 prompt_ns = answer->first_token_ns - answer->begin_ns;
    u64 rest_ns = answer->end_ns - answer->first_token_ns;
    u32 n_rest = answer->n_ids > 0 ? answer->n_ids - 1 : 0; // the first came with the prompt
    u32 n_new = answer->n_prompt - answer->n_cached;
    output_put(out, STR("{\"model\":"));
    output_json_string(out, str_from_z(g->model.model_path));
    output_put(out, STR(",\"prompt_tokens\":"));
    output_put_ids(out, prompt->ids, prompt->n);
    output_put(out, STR(",\"tokens\":"));
    output_put_ids(out, answer->ids, answer->n_ids);
    output_put(out, STR(",\"text\":"));
    answer_put_text(answer, tokenizer, &g->stop, out);
    if (answer->logprobs != NULL) {
        output_put(out, STR(",\"logprobs\":"));
        answer_put_logprobs(out, tokenizer, answer);
    }
    output_format(out, ",\"finish_reason\":\"%s\",\"seed\":%llu", finish_name(answer),
                  g->sampling.seed);
    output_put(out, STR(",\"record\":"));
    record_put_json(&session->record, out);
    output_format(out,
                  ",\"timings\":{\"cache_n\":%u,\"prompt_n\":%u,\"prompt_ms\":%.3f,"
                  "\"prompt_per_second\":%.3f,\"predicted_n\":%u,\"predicted_ms\":%.3f,"
                  "\"predicted_per_second\":%.3f}}\n",
                  answer->n_cached, n_new, (f64)prompt_ns / 1e6, per_second(n_new, prompt_ns),
                  answer->n_ids, (f64)rest_ns / 1e6, per_second(n_rest, rest_ns));
}

void answer_print_figures(const struct answer *answer, const struct generate_options *g,
                          const struct session *session) {
    u64 prompt_ns = answer->first_token_ns - answer->begin_ns;
    u64 rest_ns = answer->end_ns - answer->first_token_ns;
    u32 n_rest = answer->n_ids > 0 ? answer->n_ids - 1 : 0;
    struct output err;
    output_init(&err, PLATFORM_STDERR);
    output_format(&err, "prompt %u tokens, %.1f tokens/s; answer %u tokens, %.1f tokens/s (%s)",
                  answer->n_prompt, per_second(answer->n_prompt - answer->n_cached, prompt_ns),
                  answer->n_ids, per_second(n_rest, rest_ns), finish_name(answer));
    if (g->sampling.temperature != 0.0f) output_format(&err, "; seed %llu", g->sampling.seed);
    session_put_device(session, &err);
    output_put(&err, STR("\n"));
    record_put_figures(&session->record, &err);
    output_flush(&err);
}
