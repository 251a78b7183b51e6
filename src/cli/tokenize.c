// SPDX-License-Identifier: Apache-2.0
// sov tokenize: bytes on stdin, ids on stdout. sov detokenize: the way back.
#include "cli/cli.h"
#include "freestanding/mem.h"

int cli_tokenize(const struct command *command, const struct platform_start *start) {
    struct model_options model = {0};
    bool special = false, bos = false, json = false;
    const struct option options[] = {
        MODEL_OPTION(&model),
        {OPTION_FLAG, "--special", NULL, NULL, &special, NULL, 0, 0,
         "recognise special tokens in the text (default: it is plain text)"},
        {OPTION_FLAG, "--bos", NULL, NULL, &bos, NULL, 0, 0,
         "add begin and end tokens where the model's rules say so"},
        {OPTION_FLAG, "--json", NULL, NULL, &json, NULL, 0, 0, "print one JSON object"},
    };
    int exit_code = 0;
    if (!cli_parse(command, start, options, COUNT_OF(options), &exit_code)) return exit_code;
    struct sov_fault fault = {0};
    struct session session;
    struct file_bytes input = {0};
    struct token_list list = {0};
    struct output out;
    output_init(&out, PLATFORM_STDOUT);
    enum sov_status status = session_open(&session, &model, SESSION_VOCABULARY, &fault);
    if (status == SOV_OK) status = file_read_all("-", &input, &fault);
    u32 flags = (special ? TOKENIZE_SPECIAL : 0) | (bos ? TOKENIZE_BOS_EOS : 0);
    if (status == SOV_OK) {
        status = vocabulary_encode(&session.vocabulary, input.text, flags, &list, &fault);
    }
    if (status == SOV_OK) {
        if (json) output_put(&out, STR("{\"tokens\":["));
        for (usize i = 0; i < list.n; i++) {
            if (i > 0) output_put(&out, json ? STR(",") : STR(" "));
            output_format(&out, "%u", list.ids[i]);
        }
        if (json) output_format(&out, "],\"n_tokens\":%llu}", (u64)list.n);
        output_put(&out, STR("\n"));
    }
    exit_code = status == SOV_OK ? output_finish(&out) : cli_fail(&fault);
    token_list_free(&list);
    file_free(&input);
    session_close(&session);
    return exit_code;
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

// Bytes as they are; with --json as the inside of a string, in whole characters.
static void put_pieces(const struct tokenizer *tokenizer, const struct token_list *list,
                       bool special, bool json, struct output *out) {
    struct piece_stream stream;
    piece_stream_begin(&stream, out, tokenizer, json);
    bool first = true; // a BOS in front is no text yet
    for (usize i = 0; i < list->n; i++) {
        u8 piece[CLI_PIECE_BYTES_MAX];
        usize len = tokenizer_decode(tokenizer, list->ids[i], special, first, piece, sizeof piece);
        first = first && list->ids[i] == tokenizer_bos(tokenizer);
        if (json) {
            piece_stream_put_bytes(&stream, (struct str){piece, len});
        } else {
            output_put(out, (struct str){piece, len});
        }
    }
    piece_stream_end(&stream);
}

int cli_detokenize(const struct command *command, const struct platform_start *start) {
    struct model_options model = {0};
    bool special = false, json = false;
    const struct option options[] = {
        MODEL_OPTION(&model),
        {OPTION_FLAG, "--special", NULL, NULL, &special, NULL, 0, 0,
         "write special tokens as text (default: they have none)"},
        {OPTION_FLAG, "--json", NULL, NULL, &json, NULL, 0, 0, "print one JSON object"},
    };
    int exit_code = 0;
    if (!cli_parse(command, start, options, COUNT_OF(options), &exit_code)) return exit_code;
    struct sov_fault fault = {0};
    struct session session;
    struct file_bytes input = {0};
    struct token_list list = {0};
    struct output out;
    output_init(&out, PLATFORM_STDOUT);
    enum sov_status status = session_open(&session, &model, SESSION_VOCABULARY, &fault);
    if (status == SOV_OK) status = file_read_all("-", &input, &fault);
    if (status == SOV_OK) status = token_list_parse(input.text, "stdin", &list, &fault);
    if (status == SOV_OK) status = check_ids(session.vocabulary.tokenizer, &list, &fault);
    if (status == SOV_OK) {
        if (json) output_put(&out, STR("{\"text\":\""));
        put_pieces(session.vocabulary.tokenizer, &list, special, json, &out);
        if (json) output_put(&out, STR("\"}\n"));
    }
    exit_code = status == SOV_OK ? output_finish(&out) : cli_fail(&fault);
    token_list_free(&list);
    file_free(&input);
    session_close(&session);
    return exit_code;
}
