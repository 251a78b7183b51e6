// SPDX-License-Identifier: Apache-2.0
// Logits to a token (docs/contract.md, operator 12). A draw is a function of the logits, the
// parameters, the seed and the position alone: it does not depend on what else runs.
#pragma once
#include "freestanding/arena.h"

struct sample_params {
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

struct sample_draw {
    u64 position; // absolute position of the sampled token in its sequence
    u64 index;    // which of several samples of one position; 0 for the first
};

// Refuses values out of range, naming the field.
enum sov_status sample_params_check(const struct sample_params *params, struct sov_fault *fault)
    MUST_CHECK;

// Work space for a vocabulary of n: keys and a sort buffer.
struct sampler {
    u32 n_vocab;
    u64 *keys, *sorted; // [n_vocab]
    f32 *widened;       // [n_vocab] f32 of f16 logits
    u32 *histogram;     // [SAMPLER_BINS]
};
#define SAMPLER_BINS 4096
u64 sampler_memory_bytes(u32 n_vocab);
enum sov_status sampler_create(struct sampler *sampler, u32 n_vocab, struct arena *arena,
                               struct sov_fault *fault) MUST_CHECK;

// One token from logits[n_vocab]. Order: temperature, top-k, top-p, min-p. Candidates are ordered
// by (logit descending, id ascending); greedy takes the first. A NaN or an infinity among the
// logits is SOV_ERR_NON_FINITE.
enum sov_status sov_sample_token(struct sampler *sampler, const f32 *logits,
                                 const struct sample_params *params, struct sample_draw draw,
                                 u32 *token, struct sov_fault *fault) MUST_CHECK;
// The same for f16 logits, each widened first (exact).
enum sov_status sov_sample_token_f16(struct sampler *sampler, const f16 *logits,
                                     const struct sample_params *params, struct sample_draw draw,
                                     u32 *token, struct sov_fault *fault) MUST_CHECK;

// Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).
void philox_4x32_10(const u32 counter[4], const u32 key[2], u32 out[4]);
// 53 bits in [0, 1): words 0 and 1 of Philox with key = seed and counter = (position, index).
f64 sample_uniform(u64 seed, struct sample_draw draw);
