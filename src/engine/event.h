// SPDX-License-Identifier: Apache-2.0
// What leaves the engine about a sequence: one event for its admission, one for every committed
// token, one for its end. Events of a sequence are numbered from 0 and chained by digest.
//
// V1. An event is made after the commit of what it tells (on a 64-boundary after the receipt too).
// V2. Number, fields and digest depend on the request and its tokens alone: not on who shares the
//     batch, on chunks, swaps, power states, or on the order in which sequences commit. So a retry
//     repeats number and digest, and (sequence_id, number) is the identity of an event.
// V3. No pointer, no clock and no physical place is part of an event.
// V4. TOKEN events of a sequence count from 1 without a gap: the number of a TOKEN is its
//     committed_token_count, that of the FINISHED is one more.
//
// docs/events.md states the bytes for readers in other languages.
#pragma once
#include "record/sha256.h"
#include "schedule/scheduler.h"

#define EVENT_VERSION 1            // tokens in clear
#define EVENT_VERSION_SEALED 2     // commitments in their place (record/sealed.h)
#define EVENT_NO_TOKEN 0xffffffffu // as TOKEN_NONE

enum event_type {
    EVENT_ADMITTED = 1, // IDLE -> PREFILL; no token
    EVENT_TOKEN = 2,    // a token was committed
    EVENT_FINISHED = 3, // -> IDLE, with the reason; no token
};

// Field order is the order of the canonical bytes.
struct sov_event {
    u32 version; // EVENT_VERSION or EVENT_VERSION_SEALED, in all events of a sequence
    enum event_type type;
    u64 sequence_id; // of the request
    // The states as the sequence would go through them alone and undisturbed: PREFILL, GENERATE,
    // CHECKPOINT (the token of a 64-boundary leaves it), IDLE.
    enum sequence_state previous_state, new_state;
    u32 committed_token_count; // generated tokens committed, this one included
    // EVENT_NO_TOKEN where the event has none. Of a sealed event it does not leave this process.
    u32 sampled_token_id;
    enum finish_reason finish; // of EVENT_FINISHED; else FINISH_NONE
    bool has_receipt;
    struct sha256_digest checkpoint_receipt_hash; // zero without a receipt
    u64 number;                                   // from 0, without a gap
    struct sha256_digest prior_digest;            // of the event before; of the first, the origin
    struct sha256_digest token_commitment;        // of a sealed EVENT_TOKEN; else zero
    struct sha256_digest transition_digest;       // of all fields above
};

// The head of a sequence's chain.
struct event_chain {
    u64 sequence_id;
    u64 next_number;
    struct sha256_digest digest; // of the last event; at first, `origin`
    bool is_sealed;
    struct sha256_digest salt; // of a sealed sequence; else zero
};

// `origin` stands for what the sequence is made of: model, profile, prompt and sampling parameters.
// `salt` of a sealed sequence; NULL: in clear.
void event_chain_begin(struct event_chain *chain, u64 sequence_id,
                       const struct sha256_digest *origin, const struct sha256_digest *salt);
// Fills in version, sequence_id, number, commitment and the two digests, and moves the chain on.
// Cannot fail: fields that contradict each other are our own mistake.
void event_seal(struct event_chain *chain, struct sov_event *event);

// --- bytes ---
// Little-endian, one-byte enums, in the order of the struct; the digest is the SHA-256 of all that
// is in front of it, so an event can be checked alone and against the one before.
//
//      0  16  "sov-rtx event v1"
//     16   4  version                       35   4  sampled_token_id, 0xffffffff: none
//     20   1  event_type                    39   1  finish_reason
//     21   8  sequence_id                   40   1  1: a receipt follows, 0: 32 zeros
//     29   1  previous_state                41  32  checkpoint_receipt_hash
//     30   1  new_state                     73   8  monotonic_sequence_number
//     31   4  committed_token_count         81  32  prior_digest
//    113  32  transition_digest; of version 2 at 145, behind the token_commitment at 113
//
// Version 2 has no token at 35.
#define EVENT_TAG "sov-rtx event v1"
#define EVENT_TAG_BYTES 16
#define EVENT_HASHED_BYTES 113
#define EVENT_BYTES (EVENT_HASHED_BYTES + SHA256_BYTES)
#define EVENT_SEALED_BYTES (EVENT_BYTES + SHA256_BYTES)
#define EVENT_BYTES_MAX EVENT_SEALED_BYTES

// EVENT_BYTES, or EVENT_SEALED_BYTES of version 2.
usize event_bytes(const struct sov_event *event);
void event_write(const struct sov_event *event, u8 out[EVENT_BYTES_MAX]);
// Refuses (SOV_ERR_FORMAT) what event_write cannot have written: another tag, version or length, an
// unknown type, state or reason, fields that contradict each other, a digest that is not theirs. A
// sealed event comes back without its token.
enum sov_status event_read(struct str bytes, struct sov_event *event, struct sov_fault *fault)
    MUST_CHECK;

// "token", "generate", "stop"; "?" for what there is not.
const char *event_type_name(enum event_type type);
const char *event_state_name(enum sequence_state state);
const char *event_finish_name(enum finish_reason finish);
