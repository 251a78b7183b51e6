// SPDX-License-Identifier: Apache-2.0
// sov run: one prompt, one answer. The text of the answer is streamed in whole characters; with
// --json everything is printed as one object at the end.
#include "cli/generate.h"
#include "freestanding/mem.h"

struct run_options {
    struct generate_options generate;
    const char *prompt, *file, *tokens;
    bool has_prompt, chat, special;
};

static bool parse(const struct command *command, const struct platform_start *start,
                  struct run_options *o, int *exit_code) {
    struct generate_options *g = &o->generate;
    bool *const no = NULL;
    const struct option own[] = {
        MODEL_OPTION(&g->model),
        {OPTION_STRING, "-p", "--prompt", "TEXT", &o->prompt, &o->has_prompt, 0, 0, "the prompt"},
        {OPTION_STRING, "-f", "--file", "FILE", &o->file, no, 0, 0,
         "read the prompt from FILE (\"-\": stdin, the default)"},
        {OPTION_STRING, "--tokens", NULL, "FILE", &o->tokens, no, 0, 0,
         "read the prompt from FILE as token ids; nothing is added"},
        {OPTION_FLAG, "--chat", NULL, NULL, &o->chat, no, 0, 0,
         "the prompt is a user's message in the model's chat template"},
        {OPTION_FLAG, "--special", NULL, NULL, &o->special, no, 0, 0,
         "recognise special tokens in the prompt (default: it is plain text)"},
    };
    struct option options[GENERATE_OPTIONS_MAX];
    u32 n_options = COUNT_OF(own);
    memcpy(options, own, sizeof own);
    generate_options_add(g, options, &n_options);
    if (!cli_parse(command, start, options, n_options, exit_code)) return false;
    u32 sources = (u32)o->has_prompt + (o->file != NULL) + (o->tokens != NULL);
    if (sources > 1) {
        *exit_code = cli_usage_error(command, "only one of -p, -f and --tokens can be the prompt");
    } else if (o->tokens != NULL && (o->chat || o->special)) {
        *exit_code =
            cli_usage_error(command, "--tokens gives ids: --chat and --special do not apply");
    } else if (o->chat && o->special) {
        *exit_code = cli_usage_error(
            command, "a message is plain text: --special does not apply with --chat");
    } else if ((g->system != NULL || g->template_name != NULL) && !o->chat) {
        *exit_code = cli_usage_error(command, "%s needs --chat",
                                     g->system != NULL ? "--system" : "--template");
    } else {
        return generate_options_check(g, command, exit_code);
    }
    return false;
}

// --- prompt ---

// The conversation of --chat: an optional system message and the user's.
static enum sov_status encode_chat(const struct vocabulary *vocabulary, struct str prompt,
                                   const struct run_options *o, struct token_list *list,
                                   u32 *end_token, struct sov_fault *fault) {
    struct chat_template t;
    enum sov_status status = prompt_template(vocabulary, o->generate.template_name, &t, fault);
    if (status != SOV_OK) return status;
    struct str system = prompt_system(&t, o->generate.system);
    struct chat_message messages[2];
    u32 n_messages = 0;
    if (system.len > 0) {
        messages[n_messages++] = (struct chat_message){.role = CHAT_SYSTEM, .content = system};
    }
    messages[n_messages++] = (struct chat_message){.role = CHAT_USER, .content = prompt};
    *end_token = chat_end_token(&t, vocabulary->tokenizer);
    return prompt_encode(vocabulary, &t, messages, n_messages, list, fault);
}

// The text, of the command line or of `file`, is remembered for the record.
static enum sov_status read_prompt(const struct vocabulary *vocabulary, struct run_options *o,
                                   struct file_bytes *file, struct token_list *list, u32 *end_token,
                                   struct sov_fault *fault) {
    struct str text = str_from_z(o->prompt);
    const char *path = o->tokens != NULL ? o->tokens : o->file != NULL ? o->file : "-";
    enum sov_status status = SOV_OK;
    if (!o->has_prompt) {
        status = file_read_all(path, file, fault);
        text = file->text;
    }
    if (o->tokens == NULL) o->generate.text = text;
    if (status == SOV_OK && o->tokens != NULL) {
        status = token_list_parse(text, path, list, fault);
    } else if (status == SOV_OK && o->chat) {
        status = encode_chat(vocabulary, text, o, list, end_token, fault);
    } else if (status == SOV_OK) {
        u32 flags = TOKENIZE_BOS_EOS | (o->special ? TOKENIZE_SPECIAL : 0);
        status = vocabulary_encode(vocabulary, text, flags, list, fault);
    }
    return status;
}

static enum sov_status run(struct session *session, struct run_options *o, struct output *out,
                           bool *cancelled, struct sov_fault *fault) {
    struct generate_options *g = &o->generate;
    struct token_list prompt = {0};
    struct answer answer = {0};
    struct file_bytes file = {0};
    u32 end_token = TOKEN_NONE;
    enum sov_status status = generate_options_load(g, fault);
    if (status == SOV_OK) {
        status = read_prompt(&session->vocabulary, o, &file, &prompt, &end_token, fault);
    }
    if (status == SOV_OK) status = answer_create(&answer, g, g->model.engine.context, fault);
    if (status == SOV_OK) {
        status = answer_generate(&answer, session, g, &prompt, end_token, out, fault);
    }
    if (status == SOV_OK && g->json) {
        answer_print_json(&answer, g, session, &prompt, out);
    }
    if (status == SOV_OK) answer_print_figures(&answer, g, session);
    *cancelled = answer.cancelled;
    answer_free(&answer);
    token_list_free(&prompt);
    file_free(&file);
    return status;
}

int cli_run(const struct command *command, const struct platform_start *start) {
    struct run_options o = {0};
    generate_options_init(&o.generate);
    int exit_code = 0;
    if (!parse(command, start, &o, &exit_code)) return exit_code;
    o.generate.model.engine.start = o.generate.model.record.start = start;
    o.generate.command = PAYLOAD_RUN;
    platform_watch_interrupt();
    struct sov_fault fault = {0};
    struct session session;
    struct output out;
    output_init(&out, PLATFORM_STDOUT);
    bool cancelled = false;
    enum sov_status status = session_open(&session, &o.generate.model, SESSION_ENGINE, &fault);
    if (status == SOV_OK) status = run(&session, &o, &out, &cancelled, &fault);
    session_close(&session);
    generate_options_free(&o.generate);
    if (status != SOV_OK) return cli_fail(&fault);
    exit_code = output_finish(&out);
    if (exit_code == 0 && cancelled) return CLI_EXIT_INTERRUPTED;
    return exit_code;
}
