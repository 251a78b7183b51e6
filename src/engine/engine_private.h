// SPDX-License-Identifier: Apache-2.0
// What the files of the engine share:
//
//   engine.c       the step: admit, schedule, forward, sample, commit, publish
//   engine_open.c  configuration, memory, opening
//   sequence.c     a sequence's identity: its chain of prefix keys, the bytes of its checkpoints
//   evaluate.c     logits of a token list, without a sequence
//
// A sequence's history is tokens[0, n_committed), and then what is staged, up to the scheduler's
// n_tokens. K and V are computed for the scheduler's n_computed positions; kv_length is how many of
// them belong to committed tokens.
#pragma once
#include "engine/engine.h"
#include "engine/janet.h"

// Tokens of one sequence that outputs of a step may speak of: what was staged, and one new one.
#define STAGED_SLOTS (ENGINE_RUN_AHEAD_MAX + 2)
// Admission, tokens, end.
#define OUTPUTS_PER_SEQUENCE (STAGED_SLOTS + 2)
#define CHECKPOINT_HEAD_BYTES 256 // of a checkpoint's bytes, beside tokens, digests and KV
#define KV_READ_POSITIONS 16      // K and V of so many positions of a layer are read at once

struct staged {
    f64 logprob;
    u32 n_top;
};

struct sequence {
    engine_sequence handle;        // 0: the slot is free
    struct engine_request request; // its `tokens` is not used after submission
    u32 *tokens;                   // [context]
    u32 n_committed, n_cached;
    bool is_cancelled, is_interrupted;
    bool is_starting;          // waits until the store has the request
    bool is_unrecorded;        // the store refused it
    enum finish_reason ending; // decided, and carried out at the end of the step
    u32 n_failures;            // attempts in a row
    struct sov_fault fault;    // of the last of them
    struct event_chain events;
    struct kv_key chain; // of the first n_chained blocks
    u32 n_chained;
    struct sha256_digest origin;
    // K and V: positions from the boundary before on, hashed layer by layer as they are computed.
    u32 kv_begin, kv_hashed;
    struct sha256 *kv_hashes; // [n_layer]
    bool is_begun;            // the store has the prepared checkpoint
    bool waits_for_kv;        // the prepared checkpoint is of positions that are computed again
    bool is_restored;         // it was durable before; what is computed must give the same
    struct sha256_digest restored_hash;
    bool suspend_begun; // and that of the suspension
    bool suspend_durable;
    struct checkpoint_id suspend_id;
    struct staged staged[STAGED_SLOTS]; // of generated token i: [i % STAGED_SLOTS]
    struct token_logprob *top;          // [STAGED_SLOTS, logprobs_max]
};

struct engine {
    const struct model *model;
    struct engine_config config;
    struct arena arena;
    struct plan plan;
    struct kv_allocator kv;
    struct scheduler scheduler;
    struct cpu *cpu;               // NULL over another backend
    struct cuda *cuda;             // the same
    struct sov_fault card_refused; // of ENGINE_AUTO
    char profile[ENGINE_PROFILE_BYTES];
    struct janet *janet; // or NULL
    struct engine_backend backend;
    struct checkpoint_memory checkpoints;
    struct checkpoint_store store;
    struct sampler sampler;
    struct kv_key root;         // of position 0: model and profile
    struct sequence *sequences; // [max_seqs]
    u64 n_submitted;
    struct engine_output *outputs; // [max_seqs * OUTPUTS_PER_SEQUENCE]
    struct engine_report report;   // of the step in progress
    struct sov_fault step_fault;   // of the report
    struct sov_fault *faults;      // [max_seqs] of sequences that ended in this step
    bool is_suspended;
    u32 *tokens, *positions, *slots; // [token_budget] the batch being built
    u32 *logit_rows;                 // [logit_rows]
    u8 *bytes;                       // [checkpoint_bytes_max] a checkpoint or opening being made
    u64 bytes_max;
    u8 *kv_rows;                      // [2 * KV_READ_POSITIONS * kv_row_bytes]
    struct sha256_digest *kv_digests; // [n_layer]
    struct engine_statistics statistics;
};

// --- engine.c ---
struct sched_hooks engine_hooks(struct engine *engine);
enum sov_status engine_check_tokens(const struct engine *engine, const u32 *tokens, u32 n_tokens,
                                    struct sov_fault *fault) MUST_CHECK;
// Runs the backend over a batch whose blocks are there. Commits nothing.
enum sov_status engine_forward(struct engine *engine, const struct cpu_batch *batch,
                               const f32 **logits, u32 *logit_stride, struct sov_fault *fault)
    MUST_CHECK;

// --- sequence.c ---
void engine_root_key(struct engine *engine);
struct sha256_digest sequence_origin(const struct engine *engine,
                                     const struct engine_request *request);
// Takes over blocks with the same history, as far as there are any.
void sequence_adopt(struct engine *engine, u32 slot);
// The same for a list of tokens that is no sequence: how many of the first `limit` were taken.
u32 engine_adopt(struct engine *engine, u32 slot, struct kv_key *chain, const u32 *tokens,
                 u32 limit);
// Enters all committed blocks of a list of tokens, which stands in `slot`, into the index.
void engine_publish(struct engine *engine, u32 slot, struct kv_key *root, const u32 *tokens);
// Enters committed whole blocks into the index; the block in progress too when `all`.
void sequence_publish(struct engine *engine, u32 slot, bool all);
u64 checkpoint_bytes_max(const struct model *model, const struct engine_config *config);
// Hashes K and V up to position `end`, as far as they are in the cache.
void sequence_hash_kv(struct engine *engine, struct sequence *q, u32 end);
// The next range begins where the last one ended.
void sequence_begin_kv(struct engine *engine, struct sequence *q, u32 begin);
// Whether K and V of the prepared boundary are there.
bool sequence_has_kv(const struct engine *engine, const struct sequence *q);
// The canonical bytes of a sequence with the first n_tokens of its history, valid until the next
// call; `reason` of an end.
enum sov_status sequence_checkpoint(struct engine *engine, struct sequence *q,
                                    const struct checkpoint_id *id, enum finish_reason reason,
                                    struct str *bytes, struct sov_fault *fault) MUST_CHECK;
// The bytes of a request's first checkpoint.
struct str sequence_first_checkpoint(struct engine *engine, const struct engine_request *request,
                                     const struct sha256_digest *origin);
// Whether the history is one of this request. Changes nothing.
enum sov_status sequence_check_history(const struct engine *engine,
                                       const struct engine_request *request,
                                       const struct sha256_digest *origin, struct sov_fault *fault)
    MUST_CHECK;
