// SPDX-License-Identifier: Apache-2.0
// sov logits: what the model says of a token list, as raw numbers for other programs.
#include "cli/cli.h"

#define LOGIT_ROWS 16 // positions computed together with --all; bounds the memory of their logits

static enum sov_status write_row(void *context, u32 position, const f32 *logits, u32 n_vocab,
                                 struct sov_fault *fault) {
    (void)position;
    const int *descriptor = context;
    if (platform_interrupted()) {
        return fault_set(fault, SOV_ERR_INTERRUPTED, "stopped by a signal");
    }
    return platform_write(*descriptor, logits, (usize)n_vocab * sizeof(f32), fault);
}

int cli_logits(const struct command *command, const struct platform_start *start) {
    struct model_options model = {.engine = {.logit_rows = 1}};
    const char *tokens_path = NULL, *out_path = NULL;
    bool all = false, json = false;
    const struct option options[] = {
        MODEL_OPTION(&model),
        {OPTION_STRING, "--tokens", NULL, "FILE", &tokens_path, NULL, 0, 0,
         "token ids, decimal, separated by blanks, commas or newlines (\"-\": stdin)"},
        {OPTION_STRING, "-o", "--output", "OUT", &out_path, NULL, 0, 0,
         "file for the rows: n_vocab little-endian f32 each"},
        {OPTION_FLAG, "--all", NULL, NULL, &all, NULL, 0, 0,
         "a row for every position (default: the last)"},
        {OPTION_FLAG, "--json", NULL, NULL, &json, NULL, 0, 0,
         "print one JSON object about the rows"},
        BACKEND_OPTION(&model),
        NUMERICS_OPTION(&model),
        ENGINE_OPTIONS(&model),
    };
    int exit_code = 0;
    if (!cli_parse(command, start, options, COUNT_OF(options), &exit_code)) return exit_code;
    model.engine.start = start;
    if (tokens_path == NULL) return cli_usage_error(command, "--tokens FILE is missing");
    if (out_path == NULL) return cli_usage_error(command, "-o OUT is missing");
    if (all) model.engine.logit_rows = LOGIT_ROWS;
    platform_watch_interrupt();
    struct sov_fault fault = {0};
    struct session session = {0};
    struct file_bytes input = {0};
    struct token_list list = {0};
    int descriptor = -1;
    enum sov_status status = file_read_all(tokens_path, &input, &fault);
    if (status == SOV_OK) status = token_list_parse(input.text, tokens_path, &list, &fault);
    if (status == SOV_OK && model.engine.context == 0) { // the list itself says what is needed
        model.engine.context = (u32)MIN(MAX(list.n, 1u), MODEL_CONTEXT_MAX);
    }
    if (status == SOV_OK) status = session_open(&session, &model, SESSION_ENGINE, &fault);
    if (status == SOV_OK) {
        status = platform_open(out_path, PLATFORM_OPEN_CREATE, &descriptor, &fault);
    }
    u32 n = (u32)MIN(list.n, 0xffffffffu);
    if (status == SOV_OK) {
        status = engine_evaluate(session.engine, list.ids, n, all || n == 0 ? 0 : n - 1, write_row,
                                 &descriptor, &fault);
    }
    struct output out;
    output_init(&out, PLATFORM_STDOUT);
    if (status == SOV_OK && json) {
        output_put(&out, STR("{\"output\":"));
        output_json_string(&out, str_from_z(out_path));
        output_format(&out, ",\"rows\":%u,\"n_vocab\":%u,\"type\":\"f32\"}\n", all ? n : 1,
                      session.model.params.n_vocab);
    }
    exit_code = status == SOV_OK ? output_finish(&out) : cli_fail(&fault);
    if (descriptor >= 0) platform_close(descriptor);
    session_close(&session);
    token_list_free(&list);
    file_free(&input);
    return exit_code;
}
