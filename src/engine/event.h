// SPDX-License-Identifier: Apache-2.0
// What leaves the engine about a sequence: one event for its admission, one for every committed
// token, one for its end. Events of a sequence are numbered from 0 and chained by digest.
//
// V1. An event is made after the commit of what it tells (on a 64-boundary after the receipt too).
// V2. Number, fields and digest depend on the request and its tokens alone: not on who shares the
//     batch, on chunks, swaps, power states, or on the order in which sequences commit. So a retry
//     repeats number and digest, and (sequence_id, number) is the identity of an event.
// V3. No pointer, no clock and no physical place is part of an event.
#pragma once
#include "record/checkpoint.h"
#include "record/sha256.h"
#include "schedule/scheduler.h"

#define EVENT_VERSION 1

enum event_type {
    EVENT_ADMITTED = 1, // IDLE -> PREFILL; no token
    EVENT_TOKEN = 2,    // a token was committed
    EVENT_FINISHED = 3, // -> IDLE, with the reason; no token
};

// Field order is the order of the canonical bytes.
struct sov_event {
    u32 version; // EVENT_VERSION
    enum event_type type;
    u64 sequence_id; // of the request
    // The states as the sequence would go through them alone and undisturbed: PREFILL, GENERATE,
    // CHECKPOINT (the token of a 64-boundary leaves it), IDLE.
    enum sequence_state previous_state, new_state;
    u32 committed_token_count; // generated tokens committed, this one included
    u32 sampled_token_id;      // TOKEN_NONE where the event has none
    enum finish_reason finish; // of EVENT_FINISHED; else FINISH_NONE
    bool has_receipt;
    struct sha256_digest checkpoint_receipt_hash; // zero without a receipt
    u64 number;                                   // from 0, without a gap
    struct sha256_digest transition_digest;       // of the fields above and the digest before
};

// The head of a sequence's chain.
struct event_chain {
    u64 sequence_id;
    u64 next_number;
    struct sha256_digest digest; // of the last event; at first, `origin`
};

// `origin` stands for what the sequence is made of: model, profile, prompt and sampling parameters.
void event_chain_begin(struct event_chain *chain, u64 sequence_id,
                       const struct sha256_digest *origin);
// Fills in version, sequence_id, number and transition_digest, and moves the chain on. Cannot fail.
void event_seal(struct event_chain *chain, struct sov_event *event);
