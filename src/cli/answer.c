// SPDX-License-Identifier: Apache-2.0
// One answer: the engine's steps until something ends it, its text streamed in whole characters.
// The JSON object is written afterwards from the same tokens through the same stream, so that both
// texts are equal.
#include "cli/generate.h"

#define NANOSECONDS 1e9

// --- memory ---

enum sov_status answer_create(struct answer *answer, const struct generate_options *g, u32 context,
                              struct sov_fault *fault) {
    u64 n = g->n_new >= 0 ? MIN((u64)g->n_new, context) : context;
    n = MAX(n, 1ull);
    u64 n_logprobs = g->has_logprobs ? n : 0;
    u64 ids_bytes = round_up(n * sizeof(u32), 8);
    u64 logprob_bytes = n_logprobs * sizeof(f64);
    u64 top_bytes = n_logprobs * g->n_logprobs * sizeof(struct token_logprob);
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
    if (g->has_logprobs) answer->logprobs = (f64 *)(void *)(memory + ids_bytes);
    if (top_bytes > 0) answer->top = (void *)(memory + ids_bytes + logprob_bytes);
    return SOV_OK;
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

// Keeps a committed token with what is known of it.
static void keep_token(struct answer *answer, const struct engine_event *event) {
    assert(answer->n_ids < answer->capacity);
    u32 i = answer->n_ids++;
    answer->ids[i] = event->token;
    if (answer->logprobs == NULL) return;
    answer->logprobs[i] = event->logprob;
    answer->n_top = event->n_top; // the same for every token: the N asked for, or the vocabulary
    for (u32 k = 0; k < event->n_top; k++) answer->top[i * event->n_top + k] = event->top[k];
}

static enum sov_status generate(struct answer *answer, struct session *session,
                                struct generate_options *g, u32 end_token, struct output *out,
                                struct sov_fault *fault) {
    const struct tokenizer *tokenizer = session->vocabulary.tokenizer;
    static_assert(sizeof(struct piece_stream) < 1 << 17, "on the stack of the first thread");
    struct piece_stream stream;
    piece_stream_begin(&stream, g->json ? NULL : out, tokenizer, false);
    piece_stream_stop_at(&stream, &g->stop);
    bool shows_prefill = platform_is_terminal(PLATFORM_STDERR) &&
                         answer->n_prompt > g->model.engine.prefill_chunk;
    enum sov_status status = SOV_OK;
    while (status == SOV_OK && answer->finish == FINISH_NONE) {
        if (platform_interrupted() || out->status != SOV_OK) { // nobody reads any more
            engine_cancel(session->engine);
            answer->cancelled = true;
            break;
        }
        struct engine_event event;
        status = engine_step(session->engine, tokenizer, &event, fault);
        if (status != SOV_OK) break;
        answer->finish = event.finish;
        answer->n_cached = event.n_cached;
        if (answer->n_ids == 0) {
            answer->first_token_ns = platform_monotonic_ns();
            show_prefill(shows_prefill, event.n_prefilled, answer->n_prompt);
        }
        if (!event.has_token || event.finish == FINISH_STOP) continue;
        bool ends = event.token == end_token && !g->ignore_end;
        if (!ends) {
            keep_token(answer, &event);
            piece_stream_put(&stream, event.token);
            output_flush(out);
        }
        if (ends || g->stop.found) {
            engine_cancel(session->engine);
            answer->finish = FINISH_STOP;
        }
    }
    if (answer->cancelled && answer->n_ids == 0) show_prefill(shows_prefill, 0, 0);
    piece_stream_end(&stream); // also after a failure: what came before it is shown
    if (!g->json && answer->n_ids > 0) output_put(out, STR("\n"));
    output_flush(out);
    return status;
}

enum sov_status answer_generate(struct answer *answer, struct session *session,
                                struct generate_options *g, const struct token_list *prompt,
                                u32 end_token, struct output *out, struct sov_fault *fault) {
    struct engine_request request = {
        .tokens = prompt->ids,
        .n_tokens = (u32)MIN(prompt->n, 0xffffffffu),
        .n_new_max = g->n_new > 0 ? (u32)g->n_new : 0,
        .ignore_end = g->ignore_end,
        .n_logprobs = g->n_logprobs,
        .wants_logprob = g->has_logprobs,
        .script = g->script.ids,
        .n_script = (u32)MIN(g->script.n, 0xffffffffu),
        .sampling = g->sampling,
    };
    enum sov_status status = engine_admit(session->engine, &request, fault);
    if (status != SOV_OK) return status;
    answer->n_ids = 0;
    answer->n_prompt = request.n_tokens;
    answer->n_cached = 0;
    answer->finish = FINISH_NONE;
    answer->cancelled = false;
    answer->begin_ns = answer->first_token_ns = answer->end_ns = platform_monotonic_ns();
    if (g->n_new == 0) { // nothing is asked for: the prompt was checked
        engine_cancel(session->engine);
        answer->finish = FINISH_LENGTH;
        return SOV_OK;
    }
    status = generate(answer, session, g, end_token, out, fault);
    answer->end_ns = platform_monotonic_ns();
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

// "id":..., "token":..., "bytes":[...], "logprob":...; special tokens have their text here.
static void put_logprob(struct output *out, const struct tokenizer *tokenizer, u32 token,
                        f64 logprob) {
    u8 piece[CLI_PIECE_BYTES_MAX];
    usize len = tokenizer_decode(tokenizer, token, true, false, piece, sizeof piece);
    output_format(out, "{\"id\":%u,\"token\":", token);
    output_json_string(out, (struct str){piece, len});
    output_put(out, STR(",\"bytes\":["));
    for (usize i = 0; i < len; i++) output_format(out, i == 0 ? "%u" : ",%u", (u32)piece[i]);
    output_format(out, "],\"logprob\":%.9g", logprob);
}

static void put_logprobs(struct output *out, const struct tokenizer *tokenizer,
                         const struct answer *answer) {
    output_put(out, STR(",\"logprobs\":["));
    for (u32 i = 0; i < answer->n_ids; i++) {
        if (i > 0) output_put(out, STR(","));
        put_logprob(out, tokenizer, answer->ids[i], answer->logprobs[i]);
        output_put(out, STR(",\"top_logprobs\":["));
        for (u32 k = 0; k < answer->n_top; k++) {
            const struct token_logprob *top = &answer->top[i * answer->n_top + k];
            if (k > 0) output_put(out, STR(","));
            put_logprob(out, tokenizer, top->token, top->logprob);
            output_put(out, STR("}"));
        }
        output_put(out, STR("]}"));
    }
    output_put(out, STR("]"));
}

void answer_print_json(const struct answer *answer, struct generate_options *g,
                       const struct tokenizer *tokenizer, const struct token_list *prompt,
                       struct output *out) {
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
    output_put(out, STR(",\"text\":\""));
    struct piece_stream stream;
    piece_stream_begin(&stream, out, tokenizer, true);
    piece_stream_stop_at(&stream, &g->stop);
    for (u32 i = 0; i < answer->n_ids; i++) piece_stream_put(&stream, answer->ids[i]);
    piece_stream_end(&stream);
    output_put(out, STR("\""));
    if (answer->logprobs != NULL) put_logprobs(out, tokenizer, answer);
    output_format(out, ",\"finish_reason\":\"%s\",\"seed\":%llu", finish_name(answer),
                  g->sampling.seed);
    output_format(out,
                  ",\"timings\":{\"cache_n\":%u,\"prompt_n\":%u,\"prompt_ms\":%.3f,"
                  "\"prompt_per_second\":%.3f,\"predicted_n\":%u,\"predicted_ms\":%.3f,"
                  "\"predicted_per_second\":%.3f}}\n",
                  answer->n_cached, n_new, (f64)prompt_ns / 1e6, per_second(n_new, prompt_ns),
                  answer->n_ids, (f64)rest_ns / 1e6, per_second(n_rest, rest_ns));
}

void answer_print_figures(const struct answer *answer, const struct generate_options *g) {
    u64 prompt_ns = answer->first_token_ns - answer->begin_ns;
    u64 rest_ns = answer->end_ns - answer->first_token_ns;
    u32 n_rest = answer->n_ids > 0 ? answer->n_ids - 1 : 0;
    struct output err;
    output_init(&err, PLATFORM_STDERR);
    output_format(&err, "prompt %u tokens, %.1f tokens/s; answer %u tokens, %.1f tokens/s (%s)",
                  answer->n_prompt, per_second(answer->n_prompt - answer->n_cached, prompt_ns),
                  answer->n_ids, per_second(n_rest, rest_ns), finish_name(answer));
    if (g->sampling.temperature != 0.0f) output_format(&err, "; seed %llu", g->sampling.seed);
    output_put(&err, STR("\n"));
    output_flush(&err);
}
