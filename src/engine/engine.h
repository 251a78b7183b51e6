// SPDX-License-Identifier: Apache-2.0
// Many sequences of one model, step by step: admit, schedule, forward, sample, commit, publish. A
// step is one transition: a function of the engine's state and of its explicit inputs (requests and
// cancels since the last step, the clock, the power state, receipts of the checkpoint store).
//
// E1. No allocation after engine_open: the engine's arena is sealed.
// E2. Everything up to the commit works on staged state. A failure publishes nothing and leaves
//     committed tokens and their KV as they were; the sequence tries again or fails with its
//     reason, and the others go on.
// E3. The tokens and events of a request depend on the model, the prompt, the sampling parameters
//     and the seed; not on threads, chunk size, instruction set, places of KV blocks, other
//     sequences, arrival order, swaps or shared prefixes.
// E4. Nothing is committed that was computed with a model file cut short since it was opened.
// E5. The token of a 64-boundary is committed when its checkpoint has a receipt, and not before;
//     what is decoded meanwhile is staged, at most ENGINE_RUN_AHEAD_MAX tokens.
// E6. A checkpoint's bytes are a function of the request and its tokens, as events are (E3). What
//     goes on from one computes its K and V again and commits nothing before they have the digests
//     that the checkpoint has.
#pragma once
#include "cpu/cpu.h"
#include "cpu/cpu_features.h"
#include "engine/event.h"
#include "engine/power.h"
#include "engine/vocabulary.h"
#include "record/checkpoint.h"
#include "record/payload.h"
#include "sample/sampler.h"
#include "schedule/scheduler.h"

#define ENGINE_CONTEXT_DEFAULT 4096 // when the model's own context is larger
#define ENGINE_CHUNK_DEFAULT 256    // prompt tokens of one sequence in one step
#define ENGINE_CHUNK_MAX 4096
#define ENGINE_BUDGET_MAX CPU_BATCH_TOKENS_MAX
#define ENGINE_THREADS_MAX 128
#define ENGINE_LEVEL_MAX CPU_LEVEL_AVX512    // highest level with kernels in this program
#define ENGINE_CHECKPOINT_TOKENS 64          // generated tokens between checkpoints
#define ENGINE_RUN_AHEAD_MAX 8               // tokens staged behind one that waits for its receipt
#define ENGINE_KV_BYTES_DEFAULT (2ull << 30) // bounds the default of kv_blocks
#define ENGINE_LOGPROBS_SHARED_MAX 20        // default of logprobs_max with several sequences
#define ENGINE_PROFILE_BYTES 24              // of the profile's full name, with its 0

// Computes one batch; see cpu_forward for the contract. For tests: an engine may run over another
// backend than the CPU's.
struct engine_backend {
    void *context;
    enum sov_status (*forward)(void *context, const struct cpu_batch *batch, cpu_kv_view *kv_view,
                               const void *kv_context, const f32 **logits, u32 *logit_stride,
                               struct sov_fault *fault);
};

// What computes. ENGINE_AUTO: CUDA where driver, card and memory for the model are there, else the
// CPU.
enum engine_device { ENGINE_CPU, ENGINE_CUDA, ENGINE_AUTO };

// The profile of docs/contract.md. Cards alone compute ENGINE_TENSOR, so that with it ENGINE_AUTO
// is ENGINE_CUDA, and another device SOV_ERR_UNSUPPORTED.
enum engine_numerics { ENGINE_EXACT, ENGINE_TENSOR };

struct engine_config {
    u32 context;       // tokens of prompt and answer of one sequence; 0: min(the model's,
                       // ENGINE_CONTEXT_DEFAULT)
    u32 max_seqs;      // sequences at once, 1 to SOV_MAX_SEQS; 0: 1
    u32 n_threads;     // 0: one for each CPU the process may use
    bool pin_threads;  // each to a CPU of its own
    u32 prefill_chunk; // 0: ENGINE_CHUNK_DEFAULT
    u32 token_budget;  // tokens of one step, all sequences together; 0: prefill_chunk + max_seqs
    u32 kv_blocks;     // of 16 tokens, at least one context's; 0: a context for every sequence, as
                       // far as ENGINE_KV_BYTES_DEFAULT goes
    u32 spill_blocks;  // in memory beside them, for swapped sequences; 0: none, swapped sequences
                       // are computed again
    bool no_prefix_sharing; // never take over blocks with the same history
    u32 logit_rows;         // rows of logits of one step: max_seqs, or more for engine_evaluate
    u32 logprobs_max;       // most n_logprobs of a request; 0: ENGINE_LOGPROBS_SHARED_MAX, or
                            // SAMPLE_LOGPROBS_MAX when max_seqs is 1
    u32 run_ahead;          // tokens staged while a receipt is pending, up to ENGINE_RUN_AHEAD_MAX
    u32 retries;            // failed attempts in a row that a sequence may repeat before it fails
    enum cpu_level level;   // kernels to use
    bool kv_shuffle;        // physical KV blocks in an order drawn from kv_shuffle_seed
    u64 kv_shuffle_seed;
    const struct tokenizer *tokenizer; // for end tokens; NULL: there are none
    struct sha256_digest model_digest; // part of every event chain and prefix key; zero: not known
    const struct checkpoint_store *store; // NULL: one in memory
    bool kv_full;                         // memory for checkpoints of the form PAYLOAD_KV_FULL
    const u32 *stop_word;                 // see cpu_set_stop_word; NULL: nothing stops a step
    bool has_janet;                       // show what is going on in the Janet array
    enum engine_device device;
    enum engine_numerics numerics;
    const struct platform_start *start; // of the program, for CUDA: finds the driver
    const char *cuda_library;           // NULL: NVIDIA's driver
    u32 cuda_device;                    // the card, in the driver's order
    bool no_cuda_graphs;                // for tests: every kernel of a step is launched by itself
    // Called now and then while weights are copied to a card, with bytes. NULL: nobody asks.
    void (*progress)(void *context, u64 done, u64 total);
    void *progress_context;
    const struct engine_backend *backend; // NULL: that of the device
    // For tests; NULL: nothing is asked. Called before every operation of a step that can fail; a
    // status other than SOV_OK is taken for that operation's.
    enum sov_status (*probe)(void *context, const char *operation, struct sov_fault *fault);
    void *probe_context;
};

// What engine_open will take, computed beforehand. Bytes.
struct engine_memory {
    u64 kv, backend, sampler, tokens, plan; // in the engine's arena; `backend`: activations, rope
                                            // table, scratch of the workers
    u64 total;                              // of the arena
    u64 stacks;                             // of the worker threads
    u64 card_weights, card_kv, card_rest;   // on the card of CUDA; `kv` is then without the cache
    u64 pinned;                             // of the host, taken by the driver
};

struct engine_request {
    u64 id; // of the caller, each live one another; names the sequence in events and checkpoints
    const u32 *tokens;  // [n_tokens] the prompt; copied
    u32 n_tokens;       // 1 to the context
    u32 n_new_max;      // most tokens to generate; 0: up to the context
    bool ignore_end;    // go on after end tokens
    u32 end_token;      // ends the answer too, unless ignore_end; TOKEN_NONE: none
    u32 n_logprobs;     // also report this many of the most probable tokens; up to logprobs_max
    bool wants_logprob; // report the logarithm of the token's probability
    u64 deadline_ns;    // on the clock of the steps; 0: none
    // The stop rule, or NULL: called once for every committed token that ended nothing, in order;
    // true ends the sequence with FINISH_STOP. Must depend on the tokens alone.
    bool (*stop)(void *context, u32 token);
    void *stop_context;
    // What the store is to keep of the request, opaque here; copied. Empty: nothing is recorded, or
    // it was before.
    struct str record;
    // Its checkpoints are openings and its events sealed, with this salt (record/sealed.h).
    bool is_sealed;
    struct sha256_digest salt;
    enum payload_kv_form kv_form; // of its checkpoints
    // Where an earlier run of the same request got to, with the hash of its payload; NULL: the
    // beginning. `tokens` is the prompt all the same. SOV_ERR_INTEGRITY when it is of another
    // model, prompt or parameters. The stop rule is asked about its tokens first. Need not stay.
    const struct payload_checkpoint *history;
    struct sha256_digest history_hash;
    const u32 *script; // [n_script] for tests: tokens to take instead of the first draws; must stay
    u32 n_script;
    struct sample_params sampling; // its biases must stay
};

// Names a sequence from engine_submit until its FINISH_... output was handed out. Never used twice.
typedef u64 engine_sequence;

// What one step committed for a sequence: one committed event.
struct engine_output {
    engine_sequence sequence;
    struct sov_event event;          // sequence_id is the request's id
    u32 position;                    // of the token in the sequence
    bool is_end;                     // an end token: it ends the answer and is no part of it
    bool is_restored;                // of the history: nothing is known of its probability
    f64 logprob;                     // of the token, when asked for
    const struct token_logprob *top; // [n_top] best first; valid until the next step
    u32 n_top;
    u32 n_prompt, n_cached;        // prompt tokens; of them, taken over from other sequences
    const struct sov_fault *fault; // of FINISH_FAILED: why; valid until the next step
};

struct engine_inputs {
    u64 now_ns; // for deadlines
    enum power_state power;
};

struct engine_report {
    const struct engine_output *outputs; // [n_outputs] in order of commit; valid until the next
                                         // step
    u32 n_outputs;
    u32 n_rows;                    // tokens computed
    u32 n_live;                    // sequences that have not finished
    bool is_suspended;             // every running sequence is checkpointed, nothing runs
    u32 n_failed;                  // attempts that failed in this step
    const struct sov_fault *fault; // of the first of them; NULL when there was none
};

struct engine;

// Fills in the zeros of `config` and checks it against the model.
enum sov_status engine_config_resolve(struct engine_config *config, const struct model *model,
                                      struct sov_fault *fault) MUST_CHECK;
// For a resolved configuration; ENGINE_AUTO is taken for the CPU.
enum sov_status engine_memory_plan(const struct model *model, const struct engine_config *config,
                                   struct engine_memory *memory, struct sov_fault *fault)
    MUST_CHECK;

// For a resolved configuration. The model must stay open until engine_close.
enum sov_status engine_open(const struct model *model, const struct engine_config *config,
                            struct engine **engine, struct sov_fault *fault) MUST_CHECK;
void engine_close(struct engine *engine);
// Another store than the configured one; only while no sequence is there.
void engine_set_store(struct engine *engine, const struct checkpoint_store *store);

// Takes a request; nothing is computed yet, and it may wait for its admission. A prompt that is
// longer than the context is refused; one that fills it ends with FINISH_LENGTH and no new token.
// SOV_ERR_STATE when max_seqs sequences are there already.
enum sov_status engine_submit(struct engine *engine, const struct engine_request *request,
                              engine_sequence *sequence, struct sov_fault *fault) MUST_CHECK;
// Has the store keep a request that is submitted later, then without its `record`.
enum sov_status engine_record(struct engine *engine, const struct engine_request *request,
                              struct sov_fault *fault) MUST_CHECK;
// Ends a sequence at the next step, with FINISH_CANCEL. One that has ended is left alone.
void engine_cancel(struct engine *engine, engine_sequence sequence);
// The same for one that somebody may go on with: the store learns of no end.
void engine_interrupt(struct engine *engine, engine_sequence sequence);
// How many more engine_submit takes now.
u32 engine_room(const struct engine *engine);

// One transition. An end token is committed and reported like any other. What fails for one
// sequence is in the report; a status other than SOV_OK concerns all of them and has changed
// nothing.
enum sov_status engine_step(struct engine *engine, const struct engine_inputs *inputs,
                            struct engine_report *report, struct sov_fault *fault) MUST_CHECK;

// Logits of a token list for the positions from `first` on, in order, without sampling (0: all;
// n_tokens - 1: the last). `row` is called with f32 [n_vocab]; a status other than SOV_OK ends the
// evaluation. Only while no sequence is there.
typedef enum sov_status engine_row(void *context, u32 position, const f32 *logits, u32 n_vocab,
                                   struct sov_fault *fault);
enum sov_status engine_evaluate(struct engine *engine, const u32 *tokens, u32 n_tokens, u32 first,
                                engine_row *row, void *context, struct sov_fault *fault) MUST_CHECK;

struct engine_statistics {
    struct kv_statistics kv;
    u64 n_steps, n_rows, n_swaps, n_spills, n_shared_tokens, n_checkpoints, n_retries;
};
struct engine_statistics engine_statistics_of(const struct engine *engine);
enum sequence_state engine_state(const struct engine *engine, engine_sequence sequence);
// Gives up the blocks kept for prompts to come.
void engine_forget_prefixes(struct engine *engine);
// Asserts the invariants of scheduler and allocator over everything (tests).
void engine_assert_consistent(const struct engine *engine);
// For traces: see cpu_set_tap. NULL when something else computes.
struct cpu *engine_cpu(struct engine *engine);
// The full name of the profile, as origins and keys have it: "exact", or "tensor sm_90".
const char *engine_profile(const struct engine *engine);
// The name of the card that computes; NULL: none does.
const char *engine_card(const struct engine *engine);
// Why ENGINE_AUTO took the CPU; NULL when that was not so.
const char *engine_card_refused(const struct engine *engine);
// Whether that is because there is no driver for a card, or the program cannot open one.
bool engine_card_is_absent(const struct engine *engine);
// Opens and closes the card that CUDA would take: its name, compute capability and the driver's
// version of CUDA as one line. A fault says why there is none.
#define ENGINE_CARD_BYTES 192
enum sov_status engine_find_card(const struct platform_start *start, char line[ENGINE_CARD_BYTES],
                                 struct sov_fault *fault) MUST_CHECK;
// How many committed positions of a sequence have K and V in the cache; 0 while they are swapped
// out, and of a sequence that is not there.
u32 engine_kv_length(const struct engine *engine, engine_sequence sequence);
// K and V of one layer for the first n positions of a sequence, up to engine_kv_length, as kv_read
// gives them (f16, [n][K row, V row]).
enum sov_status engine_read_kv(const struct engine *engine, engine_sequence sequence, u32 layer,
                               u32 n, u8 *rows, struct sov_fault *fault) MUST_CHECK;
