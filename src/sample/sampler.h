// SPDX-License-Identifier: Apache-2.0
// Logits to a token (docs/contract.md, operator 12). A draw is a function of the logits, the
// parameters, the history, the seed and the position alone: it does not depend on what else runs.
#pragma once
#include "freestanding/arena.h"

// Added to one token's logit; -infinity bans the token.
struct logit_bias {
    u32 token;
    f32 bias;
};
#define SAMPLE_BIASES_MAX 1024

struct sample_params {
    f32 repeat_penalty; // > 0; 1: none. Divides positive and multiplies other logits of tokens that
                        // stand in the window
    f32 frequency_penalty; // [-2, 2]; subtracted for each time the token stands in the window
    f32 presence_penalty;  // [-2, 2]; subtracted once when it stands there at all
    i32 penalty_window;    // last tokens looked at, prompt included; 0: none, -1: all
    const struct logit_bias *biases; // [n_biases]
    u32 n_biases;
    f32 temperature; // 0: greedy. Else finite, > 0
    i32 top_k;       // <= 0 or >= the vocabulary: no limit
    f32 top_p;       // (0, 1]; 0 keeps the best candidate only; 1: no limit
    f32 min_p;       // [0, 1]; 0: no limit
    u64 seed;
};

#define SAMPLE_TEMPERATURE_DEFAULT 0.8f // the defaults users of llama.cpp know
#define SAMPLE_TOP_K_DEFAULT 40
#define SAMPLE_TOP_P_DEFAULT 0.95f
#define SAMPLE_MIN_P_DEFAULT 0.05f
#define SAMPLE_PENALTY_WINDOW_DEFAULT 64
struct sample_params sample_params_default(void); // those; no penalty, no bias, seed 0

struct sample_draw {
    u64 position;       // absolute position of the sampled token in its sequence
    u64 index;          // which of several samples of one position; 0 for the first
    const u32 *history; // [n_history] the tokens before it, for penalties
    u32 n_history;
};

// Refuses values out of range, naming the field.
enum sov_status sample_params_check(const struct sample_params *params, struct sov_fault *fault)
    MUST_CHECK;

// Work space for a vocabulary of n.
struct sampler {
    u32 n_vocab;
    u64 *keys, *sorted; // [n_vocab] candidates and a sort buffer
    f32 *adjusted;      // [n_vocab] logits after penalties and bias
    u32 *counts;        // [n_vocab] of the penalty window; zero between calls
    u32 *histogram;     // [SAMPLER_BINS]
};
#define SAMPLER_BINS 4096
u64 sampler_memory_bytes(u32 n_vocab);
enum sov_status sampler_create(struct sampler *sampler, u32 n_vocab, struct arena *arena,
                               struct sov_fault *fault) MUST_CHECK;

// One token from logits[n_vocab]. Order: penalties, bias, temperature, top-k, top-p, min-p.
// Candidates are ordered by (logit descending, id ascending); greedy takes the first. A NaN or an
// infinity among the logits, or one that penalties, bias or temperature make, is
// SOV_ERR_NON_FINITE; so is a bias that bans every token.
enum sov_status sov_sample_token(struct sampler *sampler, const f32 *logits,
                                 const struct sample_params *params, struct sample_draw draw,
                                 u32 *token, struct sov_fault *fault) MUST_CHECK;
// The same for f16 logits, each widened first (exact).
enum sov_status sov_sample_token_f16(struct sampler *sampler, const f16 *logits,
                                     const struct sample_params *params, struct sample_draw draw,
                                     u32 *token, struct sov_fault *fault) MUST_CHECK;

// A token with the natural logarithm of its probability under the logits as the model gave them:
// before penalties, bias, temperature and cuts.
struct token_logprob {
    u32 token;
    f64 logprob;
};
#define SAMPLE_LOGPROBS_MAX 1024
// Of `token`, and of the n most probable tokens, best first, into top[n]; n is cut to the
// vocabulary and returned. Logits must be finite. Sums are f64, in id order.
u32 sample_logprobs(struct sampler *sampler, const f32 *logits, u32 token, u32 n,
                    struct token_logprob *of_token, struct token_logprob *top);

// Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).
void philox_4x32_10(const u32 counter[4], const u32 key[2], u32 out[4]);
// 53 bits in [0, 1): words 0 and 1 of Philox with key = seed and counter = (position, index).
f64 sample_uniform(u64 seed, struct sample_draw draw);
