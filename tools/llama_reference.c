// SPDX-License-Identifier: Apache-2.0
// Logits and greedy text of llama.cpp as raw numbers, for tools/llama_reference.py, which compiles
// this file against a build of llama.cpp made outside the repository (bench/build_peer.sh). No part
// of sov is in it, and it is no part of sov.
//
//   llama_reference MODEL N_NEW < PROMPTS > OUT
//
// PROMPTS: one prompt a line, token ids separated by blanks. OUT, words of 4 bytes, for each prompt
// in order: f32 [n_tokens, n_vocab] logits of all positions, computed in one batch; i32 [N_NEW] the
// greedy continuation, one token a step; f32 [N_NEW] how far each of its logits was above the next
// best one. The KV cache is f32 and flash attention is off: no rounding but that of f32.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "llama.h"

#define CONTEXT 512
#define LINE_BYTES 8192

static void fail(const char *what) {
    fprintf(stderr, "llama_reference: %s\n", what);
    exit(1);
}

static void quiet(enum ggml_log_level level, const char *text, void *user_data) {
    (void)user_data;
    if (level == GGML_LOG_LEVEL_ERROR) fputs(text, stderr);
}

static void put(const void *data, size_t words) {
    if (fwrite(data, 4, words, stdout) != words) fail("the output cannot be written");
}

// The token with the largest logit (of equal ones the first), and its lead over the next one.
static llama_token best_token(const float *logits, int n_vocab, float *margin) {
    int best = 0;
    for (int i = 1; i < n_vocab; i++) {
        if (logits[i] > logits[best]) best = i;
    }
    *margin = INFINITY;
    for (int i = 0; i < n_vocab; i++) {
        if (i != best && logits[best] - logits[i] < *margin) *margin = logits[best] - logits[i];
    }
    return best;
}

static int parse_prompt(char *line, llama_token *tokens) {
    int n = 0;
    for (char *word = strtok(line, " \n"); word != NULL; word = strtok(NULL, " \n")) {
        if (n == CONTEXT) fail("a prompt is too long");
        tokens[n++] = atoi(word);
    }
    return n;
}

static struct llama_context *open_context(struct llama_model *model) {
    struct llama_context_params params = llama_context_default_params();
    params.n_ctx = params.n_batch = params.n_ubatch = CONTEXT;
    params.n_threads = params.n_threads_batch = 1;
    params.type_k = params.type_v = GGML_TYPE_F32;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    params.swa_full = true;
    struct llama_context *context = llama_init_from_model(model, params);
    if (context == NULL) fail("no context");
    return context;
}

static void run_prompt(struct llama_model *model, char *line, int n_new) {
    int n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
    llama_token tokens[CONTEXT], text[CONTEXT];
    float margins[CONTEXT];
    int n = parse_prompt(line, tokens);
    if (n == 0 || n + n_new > CONTEXT) fail("a prompt is empty or too long");
    struct llama_context *context = open_context(model);
    struct llama_batch batch = llama_batch_init(CONTEXT, 0, 1);
    batch.n_tokens = n;
    for (int i = 0; i < n; i++) {
        batch.token[i] = tokens[i];
        batch.pos[i] = i;
        batch.n_seq_id[i] = 1;
        batch.seq_id[i][0] = 0;
        batch.logits[i] = 1;
    }
    if (llama_decode(context, batch) != 0) fail("decoding the prompt failed");
    for (int i = 0; i < n; i++) put(llama_get_logits_ith(context, i), (size_t)n_vocab);
    for (int i = 0; i < n_new; i++) {
        text[i] = best_token(llama_get_logits_ith(context, -1), n_vocab, &margins[i]);
        if (i + 1 == n_new) break;
        batch.n_tokens = 1;
        batch.token[0] = text[i];
        batch.pos[0] = n + i;
        if (llama_decode(context, batch) != 0) fail("decoding a token failed");
    }
    put(text, (size_t)n_new);
    put(margins, (size_t)n_new);
    llama_batch_free(batch);
    llama_free(context);
}

int main(int argc, char **argv) {
    if (argc != 3) fail("usage: llama_reference MODEL N_NEW < PROMPTS > OUT");
    int n_new = atoi(argv[2]);
    if (n_new < 1) fail("N_NEW is at least 1");
    llama_log_set(quiet, NULL);
    llama_backend_init();
    struct llama_model_params params = llama_model_default_params();
    params.check_tensors = true;
    struct llama_model *model = llama_model_load_from_file(argv[1], params);
    if (model == NULL) fail("the model cannot be loaded");
    char line[LINE_BYTES];
    while (fgets(line, sizeof line, stdin) != NULL) run_prompt(model, line, n_new);
    llama_model_free(model);
    return fflush(stdout) == 0 ? 0 : 1;
}
