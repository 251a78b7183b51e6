// SPDX-License-Identifier: Apache-2.0
// sov chat: a conversation. Every message is answered to the whole conversation, rendered anew by
// the template: user's messages as text, answers as the tokens they were. The engine finds the
// beginning that it has in its KV cache, so that only what is new is computed.
//
// H1. A message that could not be answered leaves the conversation as it was before.
// H2. Nothing is ever dropped from a conversation to make room: a full context is said.
#include "cli/generate.h"
#include "cli/line_edit.h"
#include "freestanding/mem.h"

#define TEXT_BYTES_MIN (1u << 16)

struct chat {
    struct session session;
    struct generate_options *options;
    struct chat_template template;
    u32 end_token, context;
    struct answer answer; // the last one
    // messages[0] is kept for the system message; [1, n_messages) are the conversation's.
    struct chat_message *messages;
    u32 n_messages, n_messages_max;
    u32 *ids; // [context] of all answers
    u32 n_ids;
    void *memory; // messages and ids
    u64 memory_bytes;
    u8 *text; // of all user's messages
    u64 text_len, text_bytes;
    u8 *system; // [LINE_BYTES_MAX] what /system set
    bool interactive, failed;
    int record_exit_code; // of a record that failed: nothing is said any more (record.h, C2)
};

// A line on stderr.
static void note(const char *format, ...) PRINTF_LIKE(1, 2);
static void note(const char *format, ...) {
    char memory[1024];
    struct text line = TEXT_OVER_ARRAY(memory);
    va_list args;
    va_start(args, format);
    text_format_v(&line, format, args);
    va_end(args);
    struct output err;
    output_init(&err, PLATFORM_STDERR);
    output_put_utf8(&err, (struct str){(const u8 *)line.data, line.len});
    output_put(&err, STR("\n"));
    output_flush(&err);
}

// --- the conversation ---

static enum sov_status open_conversation(struct chat *c, struct sov_fault *fault) {
    c->context = c->options->model.engine.context;
    c->n_messages_max = 2 * c->context + 4; // a message has at least one token
    u64 messages_bytes = (u64)c->n_messages_max * sizeof *c->messages;
    u64 ids_bytes = (u64)c->context * sizeof *c->ids;
    c->memory_bytes = messages_bytes + ids_bytes + LINE_BYTES_MAX;
    c->memory = platform_memory_map(c->memory_bytes);
    if (c->memory == NULL) {
        return fault_set(fault, SOV_ERR_MEMORY, "chat: %llu bytes are not to be had",
                         c->memory_bytes);
    }
    c->messages = c->memory;
    c->ids = (u32 *)(void *)((u8 *)c->memory + messages_bytes);
    c->system = (u8 *)c->memory + messages_bytes + ids_bytes;
    c->n_messages = 1;
    c->messages[0] = (struct chat_message){
        .role = CHAT_SYSTEM,
        .content = prompt_system(&c->template, c->options->system),
    };
    return answer_create(&c->answer, c->options, c->context, fault);
}

static void close_conversation(struct chat *c) {
    answer_free(&c->answer);
    if (c->memory != NULL) platform_memory_unmap(c->memory, c->memory_bytes);
    if (c->text != NULL) platform_memory_unmap(c->text, c->text_bytes);
}

static void clear_conversation(struct chat *c) {
    c->n_messages = 1;
    c->n_ids = 0;
    c->text_len = 0;
}

// Room for so many bytes more; messages move with their text.
static enum sov_status reserve_text(struct chat *c, u64 bytes, struct sov_fault *fault) {
    u64 wanted = c->text_len + bytes;
    if (wanted <= c->text_bytes) return SOV_OK;
    u64 size = MAX(2 * c->text_bytes, (u64)TEXT_BYTES_MIN);
    size = MAX(size, wanted);
    u8 *text = platform_memory_map(size);
    if (text == NULL) {
        return fault_set(fault, SOV_ERR_MEMORY, "chat: %llu bytes are not to be had", size);
    }
    if (c->text != NULL) {
        memcpy(text, c->text, c->text_len);
        for (u32 i = 1; i < c->n_messages; i++) {
            struct chat_message *m = &c->messages[i];
            if (m->role == CHAT_USER) m->content.data = text + (m->content.data - c->text);
        }
        platform_memory_unmap(c->text, c->text_bytes);
    }
    c->text = text;
    c->text_bytes = size;
    return SOV_OK;
}

static enum sov_status push_user(struct chat *c, struct str text, struct sov_fault *fault) {
    assert(c->n_messages + 2 <= c->n_messages_max);
    enum sov_status status = reserve_text(c, MAX(text.len, (usize)1), fault);
    if (status != SOV_OK) return status;
    memcpy(c->text + c->text_len, text.data, text.len);
    c->messages[c->n_messages++] = (struct chat_message){
        .role = CHAT_USER,
        .content = {c->text + c->text_len, text.len},
    };
    c->text_len += text.len;
    return SOV_OK;
}

static void pop_user(struct chat *c) {
    c->n_messages--;
    c->text_len -= c->messages[c->n_messages].content.len;
}

// The answer's tokens without the thoughts that the template leaves out. All that is kept stands in
// the next prompt, and the last prompt with this answer fitted the context: so there is room.
static void push_answer(struct chat *c) {
    const struct tokenizer *tokenizer = c->session.vocabulary.tokenizer;
    u32 skipped = chat_thought_tokens(&c->template, tokenizer, c->answer.ids, c->answer.n_ids);
    u32 n = c->answer.n_ids - skipped;
    assert(n <= c->context - c->n_ids);
    memcpy(c->ids + c->n_ids, c->answer.ids + skipped, n * sizeof *c->ids);
    c->messages[c->n_messages++] = (struct chat_message){
        .role = CHAT_ASSISTANT,
        .ids = c->ids + c->n_ids,
        .n_ids = n,
    };
    c->n_ids += n;
}

// --- a message and its answer ---

#define FULL_HINT "/clear starts a new conversation, -c sets a larger context"

static enum sov_status answer(struct chat *c, struct output *out, struct sov_fault *fault) {
    struct token_list prompt = {0};
    bool has_system = c->messages[0].content.len > 0;
    enum sov_status status = prompt_encode(&c->session.vocabulary, &c->template,
                                           c->messages + (has_system ? 0 : 1),
                                           c->n_messages - (has_system ? 0 : 1), &prompt, fault);
    if (status == SOV_OK && prompt.n >= c->context) {
        status = fault_set(fault, SOV_ERR_LIMIT,
                           "the conversation has %llu tokens with this message and the context "
                           "holds %u, an answer included: " FULL_HINT,
                           (u64)prompt.n, c->context);
    }
    if (status == SOV_OK) {
        c->options->text = c->messages[c->n_messages - 1].content;
        status =
            answer_generate(&c->answer, &c->session, c->options, &prompt, c->end_token, out, fault);
    }
    if (status == SOV_OK && c->options->json) {
        answer_print_json(&c->answer, c->options, &c->session, &prompt, out);
        output_flush(out);
    }
    bool full = status == SOV_OK && c->answer.finish == FINISH_LENGTH &&
                prompt.n + c->answer.n_ids >= c->context;
    if (full) note("(the context of %u tokens is full: " FULL_HINT ")", c->context);
    token_list_free(&prompt);
    return status;
}

static void say(struct chat *c, struct str text, struct output *out) {
    struct sov_fault fault = {0};
    enum sov_status status = push_user(c, text, &fault);
    if (status == SOV_OK) {
        status = answer(c, out, &fault);
        bool answered = c->answer.n_ids > 0 || c->answer.finish == FINISH_STOP;
        if (status == SOV_OK && answered) {
            push_answer(c);
        } else {
            pop_user(c); // H1
            if (status == SOV_OK) note("(no answer: the message is taken back)");
        }
    }
    if (status == SOV_OK) return;
    c->failed = true;
    int exit_code = cli_fail(&fault);
    struct sov_fault ignored = {0};
    bool is_recorded = record_end(&c->session.record, &ignored) == SOV_OK;
    if (!is_recorded) c->record_exit_code = exit_code;
}

// --- commands ---

static void set_system(struct chat *c, struct str text) {
    struct str *system = &c->messages[0].content;
    if (text.len > 0) {
        memcpy(c->system, text.data, text.len); // of one line: it fits
        *system = (struct str){c->system, text.len};
    }
    if (system->len == 0) {
        note("(no system message)");
    } else {
        note("(system message: %.*s%s)", STR_ARG(*system), system->len > 64 ? "..." : "");
    }
}

static void help(void) {
    note("/clear         start a new conversation\n"
         "/system TEXT   set the system message (without TEXT: show it)\n"
         "/exit          end (also /bye, /quit, Ctrl-D)\n"
         "/help          this text\n"
         "//...          a message that begins with a slash\n"
         "Ctrl-C stops an answer. Alt-Enter makes a new line in a message.");
}

// A line that begins with a slash. False: end.
static bool obey(struct chat *c, struct str line) {
    usize n = 0;
    while (n < line.len && line.data[n] != ' ') n++;
    struct str name = {line.data, n};
    while (n < line.len && line.data[n] == ' ') n++;
    struct str rest = {line.data + n, line.len - n};
    if (str_equal(name, STR("/exit")) || str_equal(name, STR("/bye")) ||
        str_equal(name, STR("/quit"))) {
        return false;
    }
    if (str_equal(name, STR("/clear"))) {
        clear_conversation(c);
        note("(a new conversation)");
    } else if (str_equal(name, STR("/system"))) {
        set_system(c, rest);
    } else if (str_equal(name, STR("/help"))) {
        help();
    } else {
        note("unknown command %.*s: /help lists them, // begins a message with a slash",
             STR_ARG(name));
    }
    return true;
}

static bool is_blank_line(struct str line) {
    for (usize i = 0; i < line.len; i++) {
        if (line.data[i] != ' ' && line.data[i] != '\t') return false;
    }
    return true;
}

// --- the loop ---

// What came instead of a line. True: go on.
static bool handle_other(struct chat *c, enum line_result result, bool second_cancel,
                         bool was_empty, struct sov_fault *fault, int *exit_code) {
    if (result == LINE_FAILED && fault->status == SOV_ERR_LIMIT) {
        c->failed = true;
        (void)cli_fail(fault);
        return true;
    }
    if (result == LINE_FAILED) {
        bool stopped = fault->status == SOV_ERR_INTERRUPTED;
        *exit_code = stopped ? CLI_EXIT_INTERRUPTED : cli_fail(fault);
    } else if (result == LINE_CANCELLED && !(was_empty && second_cancel)) {
        if (was_empty) note("(Ctrl-C again, Ctrl-D or /exit ends)");
        return true;
    } else if (result == LINE_CANCELLED) {
        *exit_code = CLI_EXIT_INTERRUPTED;
    }
    return false;
}

static int converse(struct chat *c, struct line_editor *editor, struct output *out) {
    int exit_code = 0;
    bool cancelled_before = false, goes_on = true;
    while (goes_on) {
        struct str line;
        struct sov_fault fault = {0};
        bool was_empty = false;
        enum line_result result = line_editor_read(editor, "> ", &line, &was_empty, &fault);
        if (result != LINE_TEXT) {
            goes_on = handle_other(c, result, cancelled_before, was_empty, &fault, &exit_code);
            cancelled_before = result == LINE_CANCELLED && was_empty;
            continue;
        }
        cancelled_before = false;
        bool slash = line.len > 0 && line.data[0] == '/';
        bool escaped = slash && line.len > 1 && line.data[1] == '/';
        if (is_blank_line(line)) continue;
        if (slash && !escaped) {
            goes_on = obey(c, line);
            continue;
        }
        say(c, (struct str){line.data + escaped, line.len - escaped}, out);
        if (out->status != SOV_OK || c->record_exit_code != 0) break;
        if (platform_interrupted() && !(c->interactive && platform_forget_interrupt())) {
            exit_code = CLI_EXIT_INTERRUPTED;
            break;
        }
    }
    int written = output_finish(out);
    if (c->record_exit_code != 0) return c->record_exit_code;
    if (exit_code != 0) return exit_code;
    return written != 0 ? written : (c->failed && !c->interactive ? 1 : 0);
}

static enum sov_status open_chat(struct chat *c, struct sov_fault *fault) {
    struct generate_options *g = c->options;
    enum sov_status status = session_open(&c->session, &g->model, SESSION_ENGINE, fault);
    if (status == SOV_OK) status = generate_options_load(g, fault);
    if (status == SOV_OK) {
        status = prompt_template(&c->session.vocabulary, g->template_name, &c->template, fault);
    }
    if (status == SOV_OK) status = open_conversation(c, fault);
    c->end_token = status == SOV_OK ? chat_end_token(&c->template, c->session.vocabulary.tokenizer)
                                    : TOKEN_NONE;
    return status;
}

static void put_banner(const struct chat *c) {
    const struct generate_options *g = c->options;
    struct output err;
    output_init(&err, PLATFORM_STDERR);
    output_format(&err, "%.256s, template %s, context %u tokens, seed %llu", g->model.model_path,
                  c->template.family.name, c->context, g->sampling.seed);
    session_put_device(&c->session, &err);
    output_put(&err, STR("\n/help lists the commands, Ctrl-D ends\n"));
    output_flush(&err);
}

int cli_chat(const struct command *command, const struct platform_start *start) {
    struct generate_options g;
    generate_options_init(&g);
    const struct option own[] = {MODEL_OPTION(&g.model)};
    struct option options[GENERATE_OPTIONS_MAX];
    u32 n_options = COUNT_OF(own);
    memcpy(options, own, sizeof own);
    generate_options_add(&g, options, &n_options);
    int exit_code = 0;
    if (!cli_parse(command, start, options, n_options, &exit_code)) return exit_code;
    if (!generate_options_check(&g, command, &exit_code)) return exit_code;
    g.model.engine.start = g.model.record.start = start;
    g.command = PAYLOAD_CHAT;
    platform_watch_interrupt();
    struct sov_fault fault = {0};
    struct chat c = {.options = &g};
    struct line_editor *editor = NULL;
    struct output out;
    output_init(&out, PLATFORM_STDOUT);
    enum sov_status status = line_editor_open(start, &editor, &fault);
    if (status == SOV_OK) status = open_chat(&c, &fault);
    if (status == SOV_OK) {
        c.interactive = line_editor_is_interactive(editor);
        g.ctrl_c_ends = c.interactive;
        if (c.interactive) put_banner(&c);
        exit_code = converse(&c, editor, &out);
        struct output err;
        output_init(&err, PLATFORM_STDERR);
        record_put_figures(&c.session.record, &err);
        output_flush(&err);
    } else {
        exit_code = cli_fail(&fault);
    }
    close_conversation(&c);
    session_close(&c.session);
    generate_options_free(&g);
    if (editor != NULL) line_editor_close(editor);
    return exit_code;
}
