// SPDX-License-Identifier: Apache-2.0
// sov tokenize: bytes on stdin, ids on stdout. sov detokenize: the way back.
#include "cli/cli.h"
#include "freestanding/mem.h"

int cli_tokenize(const struct command *command, const struct platform_start *start) {
    struct model_options model = {0};
    bool special = false, bos = false;
    const struct option options[] = {
        MODEL_OPTION(&model),
        {OPTION_FLAG, "--special", NULL, NULL, &special, NULL, 0, 0,
         "recognise special tokens in the text (default: it is plain text)"},
        {OPTION_FLAG, "--bos", NULL, NULL, &bos, NULL, 0, 0,
         "add begin and end tokens where the model's rules say so"},
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
        for (usize i = 0; i < list.n; i++) output_format(&out, i == 0 ? "%u" : " %u", list.ids[i]);
        output_put(&out, STR("\n"));
    }
    exit_code = status == SOV_OK ? output_finish(&out) : cli_fail(&fault);
    token_list_free(&list);
    file_free(&input);
    session_close(&session);
    return exit_code;
}

static enum sov_status put_pieces(const struct tokenizer *tokenizer, const struct token_list *list,
                                  bool special, struct output *out, struct sov_fault *fault) {
    u8 piece[CLI_PIECE_BYTES_MAX];
    bool first = true; // a BOS in front is no text yet
    for (usize i = 0; i < list->n; i++) {
        if (list->ids[i] >= tokenizer_n_tokens(tokenizer)) {
            return fault_set(fault, SOV_ERR_ARGUMENT, "token %llu is %u, the vocabulary has %u",
                             (u64)i, list->ids[i], tokenizer_n_tokens(tokenizer));
        }
        usize len = tokenizer_decode(tokenizer, list->ids[i], special, first, piece, sizeof piece);
        output_put(out, (struct str){piece, len});
        first = first && list->ids[i] == tokenizer_bos(tokenizer);
    }
    return SOV_OK;
}

int cli_detokenize(const struct command *command, const struct platform_start *start) {
    struct model_options model = {0};
    bool special = false;
    const struct option options[] = {
        MODEL_OPTION(&model),
        {OPTION_FLAG, "--special", NULL, NULL, &special, NULL, 0, 0,
         "write special tokens as text (default: they have none)"},
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
    if (status == SOV_OK) {
        status = put_pieces(session.vocabulary.tokenizer, &list, special, &out, &fault);
    }
    exit_code = status == SOV_OK ? output_finish(&out) : cli_fail(&fault);
    token_list_free(&list);
    file_free(&input);
    session_close(&session);
    return exit_code;
}
