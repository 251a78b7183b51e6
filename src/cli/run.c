// SPDX-License-Identifier: Apache-2.0
// sov run: one prompt, one answer. The text of the answer is streamed in whole characters; with
// --json everything is printed as one object at the end.
#include "cli/cli.h"
#include "request/chat.h"

#define NANOSECONDS 1e9

struct run_options {
    struct model_options model;
    const char *prompt, *file, *tokens, *system;
    bool chat, special, json, greedy, ignore_end;
    i32 n_new;
    bool has_prompt, has_seed;
    struct sample_params sampling;
};

// What is known of the answer so far.
struct answer {
    u32 *ids; // [context], mapped
    u32 n_ids;
    u64 memory_bytes;
    enum finish_reason finish;
    bool cancelled;
    u64 begin_ns, first_token_ns, end_ns;
};

static bool parse(const struct command *command, const struct platform_start *start,
                  struct run_options *o, int *exit_code) {
    bool *const no = NULL;
    const struct option options[] = {
        MODEL_OPTION(&o->model),
        {OPTION_STRING, "-p", "--prompt", "TEXT", &o->prompt, &o->has_prompt, 0, 0, "the prompt"},
        {OPTION_STRING, "-f", "--file", "FILE", &o->file, no, 0, 0,
         "read the prompt from FILE (\"-\": stdin, the default)"},
        {OPTION_STRING, "--tokens", NULL, "FILE", &o->tokens, no, 0, 0,
         "read the prompt from FILE as token ids; nothing is added"},
        {OPTION_I32, "-n", "--n-predict", "N", &o->n_new, no, 0, 0,
         "most tokens to generate (default -1: to the end of the context)"},
        {OPTION_F32, "--temp", NULL, "T", &o->sampling.temperature, no, 0, 0,
         "temperature (default 0.8; 0 is greedy)"},
        {OPTION_I32, "--top-k", NULL, "K", &o->sampling.top_k, no, 0, 0,
         "keep the K best tokens (default 40; 0 or less: all)"},
        {OPTION_F32, "--top-p", NULL, "P", &o->sampling.top_p, no, 0, 0,
         "keep the best tokens that sum to P (default 0.95; 1: all)"},
        {OPTION_F32, "--min-p", NULL, "P", &o->sampling.min_p, no, 0, 0,
         "keep tokens at least P times as likely as the best (default 0.05; 0: all)"},
        {OPTION_U64, "--seed", "-s", "SEED", &o->sampling.seed, &o->has_seed, 0, 0,
         "seed of the draws (default: a random one, reported)"},
        {OPTION_FLAG, "--greedy", NULL, NULL, &o->greedy, no, 0, 0,
         "always the best token, same as --temp 0"},
        {OPTION_FLAG, "--chat", NULL, NULL, &o->chat, no, 0, 0,
         "the prompt is a user's message in the model's chat template (ChatML)"},
        {OPTION_STRING, "--system", NULL, "TEXT", &o->system, no, 0, 0,
         "with --chat: the system message (default: the template's own)"},
        {OPTION_FLAG, "--special", NULL, NULL, &o->special, no, 0, 0,
         "recognise special tokens in the prompt (default: it is plain text)"},
        {OPTION_FLAG, "--ignore-eos", NULL, NULL, &o->ignore_end, no, 0, 0,
         "go on after end tokens"},
        {OPTION_FLAG, "--json", NULL, NULL, &o->json, no, 0, 0, "print one JSON object at the end"},
        ENGINE_OPTIONS(&o->model),
    };
    if (!cli_parse(command, start, options, COUNT_OF(options), exit_code)) return false;
    u32 sources = (u32)o->has_prompt + (o->file != NULL) + (o->tokens != NULL);
    if (sources > 1) {
        *exit_code = cli_usage_error(command, "only one of -p, -f and --tokens can be the prompt");
    } else if (o->tokens != NULL && (o->chat || o->special)) {
        *exit_code =
            cli_usage_error(command, "--tokens gives ids: --chat and --special do not apply");
    } else if (o->system != NULL && !o->chat) {
        *exit_code = cli_usage_error(command, "--system needs --chat");
    } else if (o->n_new < -1) {
        *exit_code = cli_usage_error(command, "-n takes -1 or more, not %d", o->n_new);
    } else {
        if (o->greedy) o->sampling.temperature = 0.0f;
        return true;
    }
    return false;
}

// --- prompt ---

static enum sov_status append_list(struct token_list *list, usize capacity,
                                   const struct token_list *more, struct sov_fault *fault) {
    if (more->n > capacity - list->n) {
        return fault_set(fault, SOV_ERR_LIMIT, "the prompt has too many tokens");
    }
    for (usize i = 0; i < more->n; i++) list->ids[list->n++] = more->ids[i];
    return SOV_OK;
}

static enum sov_status encode_parts(const struct vocabulary *vocabulary, struct text text,
                                    const struct chat_part *parts, u32 n_parts, bool special,
                                    struct token_list *list, struct sov_fault *fault) {
    usize capacity = (usize)(list->memory_bytes / sizeof(u32));
    u32 flags = special ? TOKENIZE_SPECIAL : 0;
    for (u32 i = 0; i < n_parts; i++) {
        if (parts[i].token != TOKEN_NONE) {
            list->ids[list->n++] = parts[i].token;
            continue;
        }
        struct str run = {(const u8 *)text.data + parts[i].begin, parts[i].len};
        struct token_list encoded;
        enum sov_status status = vocabulary_encode(
            vocabulary, run, flags | (i > 0 ? TOKENIZE_CONTINUE : 0), &encoded, fault);
        if (status == SOV_OK) status = append_list(list, capacity, &encoded, fault);
        token_list_free(&encoded);
        if (status != SOV_OK) return status;
    }
    return SOV_OK;
}

// The conversation of --chat: an optional system message and the user's.
static enum sov_status encode_chat(const struct vocabulary *vocabulary, struct str prompt,
                                   const struct run_options *o, struct token_list *list,
                                   struct sov_fault *fault) {
    enum chat_family family;
    struct str system;
    enum sov_status status = chat_recognise(vocabulary->chat_template, &family, &system, fault);
    if (status != SOV_OK) return status;
    if (o->system != NULL) system = str_from_z(o->system);
    struct chat_message messages[2];
    u32 n_messages = 0;
    if (system.len > 0) messages[n_messages++] = (struct chat_message){CHAT_SYSTEM, system};
    messages[n_messages++] = (struct chat_message){CHAT_USER, prompt};

    struct chat_part parts[(COUNT_OF(messages) + 1) * CHAT_PARTS_PER_MESSAGE];
    u64 text_bytes = chat_text_bytes(messages, n_messages) + 1;
    u64 list_bytes = (text_bytes + COUNT_OF(parts)) * sizeof(u32);
    void *text_memory = platform_memory_map(text_bytes);
    void *list_memory = platform_memory_map(list_bytes);
    if (text_memory == NULL || list_memory == NULL) {
        status = fault_set(fault, SOV_ERR_MEMORY, "chat: %llu bytes are not to be had",
                           text_bytes + list_bytes);
    } else {
        struct text text = text_over(text_memory, text_bytes);
        u32 n_parts = 0;
        *list = (struct token_list){.ids = list_memory, .memory_bytes = list_bytes};
        status = chat_render(family, vocabulary->tokenizer, messages, n_messages, &text, parts,
                             &n_parts, fault);
        if (status == SOV_OK) {
            status = encode_parts(vocabulary, text, parts, n_parts, o->special, list, fault);
        }
    }
    if (text_memory != NULL) platform_memory_unmap(text_memory, text_bytes);
    if (status != SOV_OK && list_memory != NULL) platform_memory_unmap(list_memory, list_bytes);
    if (status != SOV_OK) *list = (struct token_list){0};
    return status;
}

static enum sov_status read_prompt(const struct vocabulary *vocabulary, const struct run_options *o,
                                   struct token_list *list, struct sov_fault *fault) {
    struct file_bytes file = {0};
    struct str text = str_from_z(o->prompt);
    const char *path = o->tokens != NULL ? o->tokens : o->file != NULL ? o->file : "-";
    enum sov_status status = SOV_OK;
    if (!o->has_prompt) {
        status = file_read_all(path, &file, fault);
        text = file.text;
    }
    if (status == SOV_OK && o->tokens != NULL) {
        status = token_list_parse(text, path, list, fault);
    } else if (status == SOV_OK && o->chat) {
        status = encode_chat(vocabulary, text, o, list, fault);
    } else if (status == SOV_OK) {
        u32 flags = TOKENIZE_BOS_EOS | (o->special ? TOKENIZE_SPECIAL : 0);
        status = vocabulary_encode(vocabulary, text, flags, list, fault);
    }
    file_free(&file);
    return status;
}

// --- answer ---

static enum sov_status answer_create(struct answer *answer, u32 context, struct sov_fault *fault) {
    *answer = (struct answer){.memory_bytes = (u64)context * sizeof(u32)};
    answer->ids = platform_memory_map(answer->memory_bytes);
    if (answer->ids == NULL) {
        return fault_set(fault, SOV_ERR_MEMORY, "answer: %llu bytes are not to be had",
                         answer->memory_bytes);
    }
    return SOV_OK;
}

static void answer_free(struct answer *answer) {
    if (answer->ids != NULL) platform_memory_unmap(answer->ids, answer->memory_bytes);
    answer->ids = NULL;
}

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

static enum sov_status generate(struct session *session, const struct run_options *o, u32 n_prompt,
                                struct answer *answer, struct output *out,
                                struct sov_fault *fault) {
    const struct tokenizer *tokenizer = session->vocabulary.tokenizer;
    struct piece_stream stream;
    piece_stream_begin(&stream, out, tokenizer, false);
    bool shows_prefill = platform_is_terminal(PLATFORM_STDERR) &&
                         n_prompt > o->model.engine.prefill_chunk;
    answer->begin_ns = answer->first_token_ns = platform_monotonic_ns();
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
        if (answer->n_ids == 0) {
            answer->first_token_ns = platform_monotonic_ns();
            show_prefill(shows_prefill, event.n_prefilled, n_prompt);
        }
        bool ends = event.finish == FINISH_STOP;
        if (!event.has_token || ends) continue;
        answer->ids[answer->n_ids++] = event.token;
        if (o->json) continue;
        piece_stream_put(&stream, event.token);
        output_flush(out);
    }
    answer->end_ns = platform_monotonic_ns();
    piece_stream_end(&stream); // also after a failure: what came before it is shown
    if (!o->json && answer->n_ids > 0) output_put(out, STR("\n"));
    output_flush(out);
    return status;
}

// --- report ---

static f64 per_second(u32 n, u64 ns) { return ns == 0 ? 0.0 : (f64)n * NANOSECONDS / (f64)ns; }

static const char *finish_name(const struct answer *answer) {
    if (answer->cancelled) return "cancelled";
    return answer->finish == FINISH_STOP ? "stop" : "length";
}

static void put_ids(struct output *out, const u32 *ids, usize n) {
    output_put(out, STR("["));
    for (usize i = 0; i < n; i++) output_format(out, i == 0 ? "%u" : ",%u", ids[i]);
    output_put(out, STR("]"));
}

static void print_json(struct output *out, const struct run_options *o,
                       const struct tokenizer *tokenizer, const struct token_list *prompt,
                       const struct answer *answer) {
    u64 prompt_ns = answer->first_token_ns - answer->begin_ns;
    u64 rest_ns = answer->end_ns - answer->first_token_ns;
    u32 n_rest = answer->n_ids > 0 ? answer->n_ids - 1 : 0; // the first came with the prompt
    output_put(out, STR("{\"model\":"));
    output_json_string(out, str_from_z(o->model.model_path));
    output_put(out, STR(",\"prompt_tokens\":"));
    put_ids(out, prompt->ids, prompt->n);
    output_put(out, STR(",\"tokens\":"));
    put_ids(out, answer->ids, answer->n_ids);
    output_put(out, STR(",\"text\":"));
    output_put(out, STR("\""));
    struct piece_stream stream;
    piece_stream_begin(&stream, out, tokenizer, true);
    for (u32 i = 0; i < answer->n_ids; i++) piece_stream_put(&stream, answer->ids[i]);
    piece_stream_end(&stream);
    output_format(out, "\",\"finish_reason\":\"%s\",\"seed\":%llu", finish_name(answer),
                  o->sampling.seed);
    output_format(out,
                  ",\"timings\":{\"prompt_n\":%llu,\"prompt_ms\":%.3f,\"prompt_per_second\":%.3f,"
                  "\"predicted_n\":%u,\"predicted_ms\":%.3f,\"predicted_per_second\":%.3f}}\n",
                  (u64)prompt->n, (f64)prompt_ns / 1e6, per_second((u32)prompt->n, prompt_ns),
                  answer->n_ids, (f64)rest_ns / 1e6, per_second(n_rest, rest_ns));
}

static void print_figures(const struct run_options *o, const struct token_list *prompt,
                          const struct answer *answer) {
    u64 prompt_ns = answer->first_token_ns - answer->begin_ns;
    u64 rest_ns = answer->end_ns - answer->first_token_ns;
    u32 n_rest = answer->n_ids > 0 ? answer->n_ids - 1 : 0;
    struct output err;
    output_init(&err, PLATFORM_STDERR);
    output_format(&err, "prompt %llu tokens, %.1f tokens/s; answer %u tokens, %.1f tokens/s (%s)",
                  (u64)prompt->n, per_second((u32)prompt->n, prompt_ns), answer->n_ids,
                  per_second(n_rest, rest_ns), finish_name(answer));
    if (o->sampling.temperature != 0.0f) output_format(&err, "; seed %llu", o->sampling.seed);
    output_put(&err, STR("\n"));
    output_flush(&err);
}

static enum sov_status run(struct session *session, struct run_options *o, struct output *out,
                           bool *cancelled, struct sov_fault *fault) {
    struct token_list prompt = {0};
    struct answer answer = {0};
    enum sov_status status = SOV_OK;
    if (!o->has_seed) { // 53 bits: every JSON reader keeps them
        status = platform_random(&o->sampling.seed, sizeof o->sampling.seed, fault);
        o->sampling.seed >>= 11;
    }
    if (status == SOV_OK) status = read_prompt(&session->vocabulary, o, &prompt, fault);
    if (status == SOV_OK) status = answer_create(&answer, o->model.engine.context, fault);
    struct engine_request request = {
        .tokens = prompt.ids,
        .n_tokens = (u32)MIN(prompt.n, 0xffffffffu),
        .n_new_max = o->n_new > 0 ? (u32)o->n_new : 0,
        .ignore_end = o->ignore_end,
        .sampling = o->sampling,
    };
    if (status == SOV_OK) status = engine_admit(session->engine, &request, fault);
    if (status == SOV_OK && o->n_new == 0) { // nothing is asked for: the prompt was checked
        engine_cancel(session->engine);
        answer.finish = FINISH_LENGTH;
    } else if (status == SOV_OK) {
        status = generate(session, o, request.n_tokens, &answer, out, fault);
    }
    if (status == SOV_OK && o->json) {
        print_json(out, o, session->vocabulary.tokenizer, &prompt, &answer);
    }
    if (status == SOV_OK) print_figures(o, &prompt, &answer);
    *cancelled = answer.cancelled;
    answer_free(&answer);
    token_list_free(&prompt);
    return status;
}

int cli_run(const struct command *command, const struct platform_start *start) {
    struct run_options o = {
        .n_new = -1,
        .sampling = sample_params_default(),
    };
    int exit_code = 0;
    if (!parse(command, start, &o, &exit_code)) return exit_code;
    struct sov_fault fault = {0};
    enum sov_status status = sample_params_check(&o.sampling, &fault);
    if (status != SOV_OK) return cli_usage_error(command, "%s", fault.message);
    platform_watch_interrupt();
    struct session session;
    struct output out;
    output_init(&out, PLATFORM_STDOUT);
    bool cancelled = false;
    status = session_open(&session, &o.model, SESSION_ENGINE, &fault);
    if (status == SOV_OK) status = run(&session, &o, &out, &cancelled, &fault);
    session_close(&session);
    if (status != SOV_OK) return cli_fail(&fault);
    exit_code = output_finish(&out);
    if (exit_code == 0 && cancelled) return CLI_EXIT_INTERRUPTED;
    return exit_code;
}
