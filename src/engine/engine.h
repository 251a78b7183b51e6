// SPDX-License-Identifier: Apache-2.0
// One sequence of a model, step by step: admit, prefill in chunks, decode, sample, commit. The KV
// of the last sequence is kept: a prompt that begins with the same tokens goes on from there, with
// the same bits as without.
//
// E1. No allocation after engine_open: the engine's arena is sealed.
// E2. A step that fails leaves the committed tokens and their KV as they were.
// E3. The tokens depend on the model, the prompt, the sampling parameters and the seed; not on
//     threads, chunk size, instruction set or the physical places of KV blocks.
// E4. Nothing is committed that was computed with a model file cut short since it was opened.
#pragma once
#include "cpu/cpu_features.h"
#include "engine/vocabulary.h"
#include "sample/sampler.h"
#include "schedule/kv_allocator.h"

#define ENGINE_CONTEXT_DEFAULT 4096 // when the model's own context is larger
#define ENGINE_CHUNK_DEFAULT 256    // tokens of one prefill step
#define ENGINE_CHUNK_MAX 4096
#define ENGINE_THREADS_MAX 128
#define ENGINE_LEVEL_MAX CPU_LEVEL_AVX512 // highest level with kernels in this program

struct engine_config {
    u32 context;       // tokens of prompt and answer; 0: min(the model's, ENGINE_CONTEXT_DEFAULT)
    u32 n_threads;     // 0: one for each CPU the process may use
    u32 prefill_chunk; // 0: ENGINE_CHUNK_DEFAULT
    u32 logit_rows;    // rows of logits of one step: 1, or up to prefill_chunk for engine_evaluate
    enum cpu_level level; // kernels to use
    bool kv_shuffle;      // physical KV blocks in an order drawn from kv_shuffle_seed
    u64 kv_shuffle_seed;
};

// What engine_open will take, computed beforehand. Bytes.
struct engine_memory {
    u64 kv, backend, sampler, tokens, plan; // in the engine's arena; `backend`: activations, rope
                                            // table, scratch of the workers
    u64 total;                              // of the arena
    u64 stacks;                             // of the worker threads
};

enum sequence_state { // of the scheduler; SWAP, CHECKPOINT and RESUME come with it
    SEQUENCE_IDLE,
    SEQUENCE_PREFILL,
    SEQUENCE_GENERATE,
};

struct engine_request {
    const u32 *tokens; // [n_tokens] the prompt; copied
    u32 n_tokens;      // 1 to the context
    u32 n_new_max;     // most tokens to generate; 0: up to the context
    bool ignore_end;   // go on after end tokens
    u32 n_logprobs; // also report this many of the most probable tokens; up to SAMPLE_LOGPROBS_MAX
    bool wants_logprob; // report the logarithm of the token's probability
    const u32 *script; // [n_script] for tests: tokens to take instead of the first draws; must stay
    u32 n_script;
    struct sample_params sampling; // its biases must stay
};

enum finish_reason { FINISH_NONE, FINISH_STOP, FINISH_LENGTH };

struct engine_event {
    bool has_token;                  // a token was committed
    u32 token, position;             // position of the token in the sequence
    enum finish_reason finish;       // FINISH_NONE: step again
    u32 n_prefilled;                 // prompt tokens whose KV is committed
    u32 n_cached;                    // of them, taken over from the sequence before
    f64 logprob;                     // of the token, when asked for
    const struct token_logprob *top; // [n_top] best first; valid until the next step
    u32 n_top;
};

struct engine;

// Fills in the zeros of `config` and checks it against the model.
enum sov_status engine_config_resolve(struct engine_config *config, const struct model *model,
                                      struct sov_fault *fault) MUST_CHECK;
// For a resolved configuration.
enum sov_status engine_memory_plan(const struct model *model, const struct engine_config *config,
                                   struct engine_memory *memory, struct sov_fault *fault)
    MUST_CHECK;

// For a resolved configuration. The model must stay open until engine_close.
enum sov_status engine_open(const struct model *model, const struct engine_config *config,
                            struct engine **engine, struct sov_fault *fault) MUST_CHECK;
void engine_close(struct engine *engine);

// Takes a request when idle. Nothing is computed yet. A prompt that is longer than the context is
// refused; one that fills it ends with FINISH_LENGTH and no new token.
enum sov_status engine_admit(struct engine *engine, const struct engine_request *request,
                             struct sov_fault *fault) MUST_CHECK;
// One chunk of the prompt, or one more token. After FINISH_STOP or FINISH_LENGTH, or engine_cancel,
// the engine is idle again, and keeps what was committed for the next prompt. An end token is
// committed and reported like any other.
enum sov_status engine_step(struct engine *engine, const struct tokenizer *tokenizer,
                            struct engine_event *event, struct sov_fault *fault) MUST_CHECK;
void engine_cancel(struct engine *engine);

// Logits of a token list for the positions from `first` on, in order, without sampling (0: all;
// n_tokens - 1: the last). `row` is called with f32 [n_vocab]; a status other than SOV_OK ends the
// evaluation.
typedef enum sov_status engine_row(void *context, u32 position, const f32 *logits, u32 n_vocab,
                                   struct sov_fault *fault);
enum sov_status engine_evaluate(struct engine *engine, const u32 *tokens, u32 n_tokens, u32 first,
                                engine_row *row, void *context, struct sov_fault *fault) MUST_CHECK;

enum sequence_state engine_state(const struct engine *engine);
struct kv_statistics engine_kv_statistics(const struct engine *engine);
// For traces: see cpu_set_tap.
struct cpu *engine_cpu(struct engine *engine);
