// SPDX-License-Identifier: Apache-2.0
// The interface between the engine's commit and whatever keeps checkpoints, and an implementation
// in memory. The engine hands over canonical bytes (payload.h, or an opening of them: sealed.h)
// under a transaction id and learns later of a durable receipt; it makes nothing of a 64-boundary
// final before that.
//
// T1. append_once: a new id takes the bytes; the same id with the same bytes gives the receipt that
//     exists; the same id with other bytes is SOV_ERR_INTEGRITY. So a retry is always safe.
// T2. A receipt exists only when the bytes are durable.
// T3. A receipt's hash is a function of transaction id and what the store keeps of the bytes
//     (sealed_kept): it does not depend on what else
//     is stored. (A store's own timeline is chained elsewhere.)
#pragma once
#include "freestanding/arena.h"
#include "record/sha256.h"

// (sequence id, committed tokens at the boundary): unique, and the same for every retry.
struct checkpoint_id {
    u64 sequence_id;
    u32 n_tokens; // prompt and generated, that the checkpoint covers
    u32 kind;     // enum checkpoint_kind
};
enum checkpoint_kind {
    CHECKPOINT_BOUNDARY = 1, // also of the beginning, where nothing is generated
    CHECKPOINT_SUSPEND = 2,
    CHECKPOINT_FINISH = 3,
};

struct checkpoint_receipt {
    struct checkpoint_id id;
    struct sha256_digest payload_hash, receipt_hash;
};

enum checkpoint_progress { CHECKPOINT_PENDING, CHECKPOINT_DURABLE };

struct checkpoint_store {
    void *context;
    // Takes the bytes (copied or hashed before it returns) and begins to make them durable. A
    // failure has taken nothing.
    enum sov_status (*begin)(void *context, const struct checkpoint_id *id, struct str bytes,
                             struct sov_fault *fault);
    // How far it is; never waits. DURABLE fills the receipt. A failure ends the attempt: begin may
    // be called again with the same id and bytes.
    enum sov_status (*poll)(void *context, const struct checkpoint_id *id,
                            enum checkpoint_progress *progress, struct checkpoint_receipt *receipt,
                            struct sov_fault *fault);
    // Nobody will ask for this id any more (the sequence ended, or has a later checkpoint).
    void (*forget)(void *context, const struct checkpoint_id *id);
    // A sequence begins: what was asked for, and its first checkpoint, which becomes durable with
    // it; poll tells of `first`. Never within a step, so it may wait for room. NULL: nobody wants
    // it.
    enum sov_status (*start)(void *context, const struct checkpoint_id *first, struct str request,
                             struct str bytes, struct sov_fault *fault);
    // A sequence has ended, after everything else that was begun of it. Nobody asks for this one;
    // whoever keeps the store waits for it in the end. NULL: nobody wants it.
    enum sov_status (*finish)(void *context, const struct checkpoint_id *id, struct str bytes,
                              struct sov_fault *fault);
    // A sequence has ended and the store does not learn how: its bytes could not be made, or
    // `finish` refused them. It stays as if interrupted. NULL: nobody wants to know.
    void (*lost)(void *context, const struct checkpoint_id *id, const struct sov_fault *fault);
};

// SHA-256 over a tag, the id and the payload's hash.
struct sha256_digest checkpoint_receipt_hash(const struct checkpoint_id *id,
                                             const struct sha256_digest *payload_hash);

// --- in memory ---
// Keeps ids and hashes until they are forgotten. Durable after `delay` polls (0: at the first).
struct checkpoint_entry {
    struct checkpoint_id id;
    struct sha256_digest payload_hash;
    u32 polls_left;
    bool used;
};
struct checkpoint_memory {
    struct checkpoint_entry *entries; // [capacity]
    u32 capacity, delay;
    u64 n_begun, n_durable;
};
u64 checkpoint_memory_bytes(u32 capacity);
enum sov_status checkpoint_memory_create(struct checkpoint_memory *memory, u32 capacity, u32 delay,
                                         struct arena *arena, struct sov_fault *fault) MUST_CHECK;
struct checkpoint_store checkpoint_memory_store(struct checkpoint_memory *memory);
