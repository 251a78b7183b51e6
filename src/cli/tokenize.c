// SPDX-License-Identifier: Apache-2.0
// sov tokenize: bytes on stdin, ids on stdout. sov detokenize: the way back.
#include "cli/cli.h"

struct tokenize_options {
    struct model_options model;
    bool special, bos, json;
};

typedef enum sov_status stdin_work(const struct vocabulary *vocabulary,
                                   const struct tokenize_options *options, struct str input,
                                   struct output *out, struct sov_fault *fault);

// What both commands do around their work: open the vocabulary, read stdin, report, close.
static int over_stdin(struct tokenize_options *options, stdin_work *work) {
    struct sov_fault fault = {0};
    struct session session;
    struct file_bytes input = {0};
    struct output out;
    output_init(&out, PLATFORM_STDOUT);
    enum sov_status status = session_open(&session, &options->model, SESSION_VOCABULARY, &fault);
    if (status == SOV_OK) status = file_read_all("-", &input, &fault);
    if (status == SOV_OK) status = work(&session.vocabulary, options, input.text, &out, &fault);
    int exit_code = status == SOV_OK ? output_finish(&out) : cli_fail(&fault);
    file_free(&input);
    session_close(&session);
    return exit_code;
}

static enum sov_status tokenize(const struct vocabulary *vocabulary,
                                const struct tokenize_options *options, struct str input,
                                struct output *out, struct sov_fault *fault) {
    struct token_list list;
    u32 flags = (options->special ? TOKENIZE_SPECIAL : 0) | (options->bos ? TOKENIZE_BOS_EOS : 0);
    enum sov_status status = vocabulary_encode(vocabulary, input, flags, &list, fault);
    if (status != SOV_OK) return status;
    if (options->json) output_put(out, STR("{\"tokens\":["));
    for (usize i = 0; i < list.n; i++) {
        if (i > 0) output_put(out, options->json ? STR(",") : STR(" "));
        output_format(out, "%u", list.ids[i]);
    }
    if (options->json) output_format(out, "],\"n_tokens\":%llu}", (u64)list.n);
    output_put(out, STR("\n"));
    token_list_free(&list);
    return SOV_OK;
}

static enum sov_status check_ids(const struct tokenizer *tokenizer, const struct token_list *list,
                                 struct sov_fault *fault) {
    for (usize i = 0; i < list->n; i++) {
        if (list->ids[i] < tokenizer_n_tokens(tokenizer)) continue;
        return fault_set(fault, SOV_ERR_ARGUMENT, "token %llu is %u, the vocabulary has %u", (u64)i,
                         list->ids[i], tokenizer_n_tokens(tokenizer));
    }
    return SOV_OK;
}

// Bytes as they are; with --json as a string, in whole characters.
static void put_pieces(const struct tokenizer *tokenizer, const struct token_list *list,
                       const struct tokenize_options *options, struct output *out) {
    struct piece_stream stream;
    piece_stream_begin(&stream, out, tokenizer, options->json);
    bool first = true; // a BOS in front is no text yet
    if (options->json) output_put(out, STR("{\"text\":\""));
    for (usize i = 0; i < list->n; i++) {
        u8 piece[CLI_PIECE_BYTES_MAX];
        struct str bytes = {piece, tokenizer_decode(tokenizer, list->ids[i], options->special,
                                                    first, piece, sizeof piece)};
        first = first && list->ids[i] == tokenizer_bos(tokenizer);
        if (options->json) {
            piece_stream_put_bytes(&stream, bytes);
        } else {
            output_put(out, bytes);
        }
    }
    piece_stream_end(&stream);
    if (options->json) output_put(out, STR("\"}\n"));
}

static enum sov_status detokenize(const struct vocabulary *vocabulary,
                                  const struct tokenize_options *options, struct str input,
                                  struct output *out, struct sov_fault *fault) {
    struct token_list list;
    enum sov_status status = token_list_parse(input, "stdin", &list, fault);
    if (status != SOV_OK) return status;
    status = check_ids(vocabulary->tokenizer, &list, fault);
    if (status == SOV_OK) put_pieces(vocabulary->tokenizer, &list, options, out);
    token_list_free(&list);
    return status;
}

int cli_tokenize(const struct command *command, const struct platform_start *start) {
    struct tokenize_options o = {0};
    const struct option options[] = {
        MODEL_OPTION(&o.model),
        {OPTION_FLAG, "--special", NULL, NULL, &o.special, NULL, 0, 0,
         "recognise special tokens in the text (default: it is plain text)"},
        {OPTION_FLAG, "--bos", NULL, NULL, &o.bos, NULL, 0, 0,
         "add begin and end tokens where the model's rules say so"},
        {OPTION_FLAG, "--json", NULL, NULL, &o.json, NULL, 0, 0, "print one JSON object"},
    };
    int exit_code = 0;
    if (!cli_parse(command, start, options, COUNT_OF(options), &exit_code)) return exit_code;
    return over_stdin(&o, tokenize);
}

int cli_detokenize(const struct command *command, const struct platform_start *start) {
    struct tokenize_options o = {0};
    const struct option options[] = {
        MODEL_OPTION(&o.model),
        {OPTION_FLAG, "--special", NULL, NULL, &o.special, NULL, 0, 0,
         "write special tokens as text (default: they have none)"},
        {OPTION_FLAG, "--json", NULL, NULL, &o.json, NULL, 0, 0, "print one JSON object"},
    };
    int exit_code = 0;
    if (!cli_parse(command, start, options, COUNT_OF(options), &exit_code)) return exit_code;
    return over_stdin(&o, detokenize);
}
