// SPDX-License-Identifier: Apache-2.0
// States of sequences and their transitions; admission by KV budget; which rows a step computes;
// who loses its blocks when there are too few. It counts tokens and blocks and knows no token.
//
//             ┌────────────────────── end, cancel, failure ──────────────────────┐
//             ▼                                                                  │
//   IDLE ─admit─▶ PREFILL ─first token─▶ GENERATE ◀─receipt─ CHECKPOINT          │ from
//                    │                    │    └─64-boundary──▶ ▲ │              │ every
//                    │preempt             │preempt              │ │preempt       │ state
//                    └─────────▶ SWAP ◀───┘◀────────────────────┼─┘              │
//                                 │ └─blocks copied back─▶ PREFILL, GENERATE, CHECKPOINT
//                                 └─dropped: RESUME ─computed again─▶ GENERATE, CHECKPOINT
//
// S1. A transition that is not in the table of scheduler.c stops the program.
// S2. Sequences are admitted in order of arrival; a swapped one comes back before anyone younger is
//     admitted.
// S3. The youngest loses its blocks first, so the oldest never waits for blocks, and every sequence
//     becomes the oldest.
// S4. Fairness: with a budget of B tokens, D sequences decoding and P > 0 tokens of prompts
// waiting,
//     a decoding sequence gets a row at least every ceil(D / max(B - max(B / 4, 1), 1)) steps
//     (twice that when B is 1), and prompts get at least max(B / 4, 1) tokens a step (every second
//     when B is 1), first come first served.
#pragma once
#include "schedule/kv_allocator.h"

enum sequence_state {
    SEQUENCE_IDLE,       // no request, or one that waits for its admission
    SEQUENCE_PREFILL,    // its prompt is being computed
    SEQUENCE_GENERATE,   // one row a step
    SEQUENCE_SWAP,       // lost its blocks: spilled to memory, or dropped
    SEQUENCE_CHECKPOINT, // a 64-boundary waits for its receipt; decodes ahead, staged
    SEQUENCE_RESUME,     // computes again what was dropped
    SEQUENCE_STATES,
};
const char *sequence_state_name(enum sequence_state state);
// The function that performs a transition, or NULL when there is none.
const char *sched_transition(enum sequence_state from, enum sequence_state to);

enum finish_reason {
    FINISH_NONE,
    FINISH_STOP,     // an end token, or the request's stop rule
    FINISH_LENGTH,   // the request's limit, or the context
    FINISH_CANCEL,   // engine_cancel
    FINISH_DEADLINE, // its time is over
    FINISH_FAILED,   // see the fault
};

struct sched_sequence {
    enum sequence_state state;
    bool is_live;      // has a request
    bool is_held;      // wants no row now: enough is staged, or it waits for its end
    bool is_prepared;  // a 64-boundary waits for its receipt
    bool was_admitted; // in this step
    u32 n_prompt;      // tokens of the prompt
    u32 n_tokens;      // of the history, what is staged included
    u32 n_computed;    // positions whose K and V are there
};

struct sched_rows { // of one sequence, from n_computed on
    u32 slot, n;
};

// What the scheduler asks of its owner.
struct sched_hooks {
    void *context;
    // Takes over shared blocks where the sequence stands, if there are any.
    void (*adopt)(void *context, u32 slot);
    // See engine_config.probe.
    enum sov_status (*probe)(void *context, const char *operation, struct sov_fault *fault);
    // An attempt of this sequence failed; nothing of it was changed.
    void (*failed)(void *context, u32 slot, const struct sov_fault *fault);
    // This sequence is about to lose its blocks.
    void (*swaps)(void *context, u32 slot);
};

struct sched_config {
    u32 n_sequences;   // 1 to SOV_MAX_SEQS
    u32 prefill_chunk; // rows of one sequence in one step
    u64 token_ns;      // estimates, to choose between dropping and spilling: one token computed
    u64 spill_ns;      // again; one block copied out and back
};

struct sched_limits { // of one step
    u32 token_budget; // 1 or more
    u32 sequences;    // most sequences with rows
};

struct scheduler {
    struct sched_config config;
    struct sched_hooks hooks;
    struct kv_allocator *kv;
    struct sched_sequence sequences[SOV_MAX_SEQS];
    u16 order[SOV_MAX_SEQS]; // live slots, oldest first
    u32 n_live;
    u32 cursor; // of the decoding round: the slot after the one served last
    u64 n_steps;
    struct sched_rows rows[SOV_MAX_SEQS]; // of the step, without repetition
    u32 n_rows;
    u64 n_swaps, n_spills;
};

void sched_init(struct scheduler *s, const struct sched_config *config,
                const struct sched_hooks *hooks, struct kv_allocator *kv);
// A free slot becomes live, IDLE; SOV_MAX_SEQS when there is none.
u32 sched_submit(struct scheduler *s, u32 n_prompt);
// The same for a sequence that goes on from n_tokens tokens of history, more than its prompt: as if
// it had been swapped out and its blocks dropped.
u32 sched_submit_history(struct scheduler *s, u32 n_prompt, u32 n_tokens, bool is_prepared);
// Chooses the rows of a step into s->rows: brings sequences back, admits, preempts. Blocks for all
// rows are there afterwards.
void sched_plan(struct scheduler *s, const struct sched_limits *limits);
// Moves a sequence on after n of its rows were computed: PREFILL and RESUME end when nothing is
// missing any more.
void sched_computed(struct scheduler *s, u32 slot, u32 n);
// The state after what is_prepared says changed.
void sched_prepared(struct scheduler *s, u32 slot, bool is_prepared);
// Forgets staged tokens: the history ends at n_tokens.
void sched_drop_staged(struct scheduler *s, u32 slot, u32 n_tokens);
// Gives back the blocks; the slot is free.
void sched_finish(struct scheduler *s, u32 slot);
// Asserts what must hold between steps (tests).
void sched_assert_consistent(const struct scheduler *s);
