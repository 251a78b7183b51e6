// SPDX-License-Identifier: Apache-2.0
// What llama-bench does not measure of llama.cpp: the way to the first token, and decoding with
// several sequences. bench/bench_cpu.py compiles this file against a build of llama.cpp made
// outside the repository (bench/build_peer.sh). No part of sov is in it, and it is no part of sov.
//
//   peer_steps first MODEL THREADS TEXT              loads, decodes TEXT, prints the next token
//   peer_steps batch MODEL THREADS SEQS STEPS RUNS   one line a run: its seconds
//   peer_steps buffers MODEL                         where the library puts weights, from its log
//
// Everything is the library's default, as llama-bench has it: mapped file, weights repacked where
// it repacks, f16 KV cache, flash attention where it chooses so. "first" has no warm-up run, and a
// context of 4096 tokens like sov run. "batch" gives every sequence one token a step, wants the
// logits of all, and samples nothing, like `sov bench -b`; a run before the first is not counted.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "llama.h"

#define CONTEXT_FIRST 4096
#define TEXT_TOKENS_MAX 1024
#define SEQUENCES_MAX 256

static bool shows_buffers;

static void fail(const char *what) {
    fprintf(stderr, "peer_steps: %s\n", what);
    exit(1);
}

// "load_tensors: CPU_REPACK model buffer size = 540.00 MiB" and the like go to stdout when asked.
static void log_line(enum ggml_log_level level, const char *text, void *user_data) {
    (void)user_data;
    if (level == GGML_LOG_LEVEL_ERROR) fputs(text, stderr);
    if (shows_buffers && strstr(text, "model buffer size") != NULL) fputs(text, stdout);
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static struct llama_context *open_context(struct llama_model *model, int n_context, int n_threads,
                                          int n_sequences) {
    struct llama_context_params params = llama_context_default_params();
    params.n_ctx = (uint32_t)n_context;
    params.n_seq_max = (uint32_t)n_sequences;
    params.kv_unified = n_sequences > 1; // n_ctx is of all sequences together
    params.n_threads = params.n_threads_batch = n_threads;
    struct llama_context *context = llama_init_from_model(model, params);
    if (context == NULL) fail("no context");
    return context;
}

static void first(struct llama_model *model, int n_threads, const char *text) {
    const struct llama_vocab *vocab = llama_model_get_vocab(model);
    llama_token tokens[TEXT_TOKENS_MAX];
    int n = llama_tokenize(vocab, text, (int)strlen(text), tokens, TEXT_TOKENS_MAX, true, false);
    if (n < 1) fail("the text is empty or too long");
    struct llama_context *context = open_context(model, CONTEXT_FIRST, n_threads, 1);
    if (llama_decode(context, llama_batch_get_one(tokens, n)) != 0) fail("decoding failed");
    const float *logits = llama_get_logits_ith(context, -1);
    int best = 0, n_vocab = llama_vocab_n_tokens(vocab);
    for (int i = 1; i < n_vocab; i++) {
        if (logits[i] > logits[best]) best = i;
    }
    char piece[256];
    int len = llama_token_to_piece(vocab, best, piece, sizeof piece, 0, true);
    if (len > 0) fwrite(piece, 1, (size_t)len, stdout);
    fputc('\n', stdout);
    fflush(stdout);
    llama_free(context);
}

static void batch_steps(struct llama_context *context, struct llama_batch batch, int n_sequences,
                        int n_steps, int n_vocab) {
    batch.n_tokens = n_sequences;
    for (int step = 0; step < n_steps; step++) {
        for (int s = 0; s < n_sequences; s++) {
            batch.token[s] = (step * 31 + s * 7 + 100) % n_vocab;
            batch.pos[s] = step;
            batch.n_seq_id[s] = 1;
            batch.seq_id[s][0] = s;
            batch.logits[s] = 1;
        }
        if (llama_decode(context, batch) != 0) fail("decoding failed");
        llama_synchronize(context);
    }
}

static void batches(struct llama_model *model, int n_threads, int n_sequences, int n_steps,
                    int n_runs) {
    if (n_sequences < 1 || n_sequences > SEQUENCES_MAX || n_steps < 1) fail("bad numbers");
    int n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
    struct llama_context *context =
        open_context(model, n_sequences * (n_steps + 32), n_threads, n_sequences);
    struct llama_batch batch = llama_batch_init(SEQUENCES_MAX, 0, 1);
    for (int run = 0; run <= n_runs; run++) {
        llama_memory_clear(llama_get_memory(context), false);
        double begin = seconds();
        batch_steps(context, batch, n_sequences, n_steps, n_vocab);
        if (run > 0) printf("%.9f\n", seconds() - begin);
    }
    llama_batch_free(batch);
    llama_free(context);
}

int main(int argc, char **argv) {
    if (argc < 3)
        fail("usage: first MODEL THREADS TEXT | batch MODEL THREADS SEQS STEPS RUNS | "
             "buffers MODEL");
    shows_buffers = strcmp(argv[1], "buffers") == 0;
    llama_log_set(log_line, NULL);
    llama_backend_init();
    struct llama_model *model = llama_model_load_from_file(argv[2], llama_model_default_params());
    if (model == NULL) fail("the model cannot be loaded");
    if (strcmp(argv[1], "first") == 0 && argc == 5) {
        first(model, atoi(argv[3]), argv[4]);
    } else if (strcmp(argv[1], "batch") == 0 && argc == 7) {
        batches(model, atoi(argv[3]), atoi(argv[4]), atoi(argv[5]), atoi(argv[6]));
    } else if (!shows_buffers) {
        fail("bad arguments");
    }
    llama_model_free(model);
    return fflush(stdout) == 0 ? 0 : 1;
}
