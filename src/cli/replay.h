// SPDX-License-Identifier: Apache-2.0
// What sov replay is made of.
//
//   replay.c          the command: which sequences, the engine's steps, what is told
//   replay_compare.c  a checkpoint store that keeps nothing: what the engine makes is held against
//                     what was recorded
//   replay_prompt.c   the text of a prompt against its tokens
//
// R1. No recorded token goes into the engine: it gets the prompt, the parameters and the seed, and
//     its own tokens from then on.
// R2. What is compared is bytes: every payload that the record has of a sequence. Only when they
//     differ are they decoded, to say where.
#pragma once
#include "cli/store.h"

enum replay_result {
    REPLAY_SAME,          // to its end
    REPLAY_SAME_SO_FAR,   // as far as the record goes: it was interrupted
    REPLAY_DIFFERENT,     // see the difference
    REPLAY_NOT_CHECKABLE, // see the message
};

enum replay_place {
    PLACE_TOKEN,  // a generated token
    PLACE_PROMPT, // the tokens of the prompt
    PLACE_ORIGIN, // model, profile, prompt and parameters, by one digest
    PLACE_EVENTS, // the head of the event chain
    PLACE_KV,     // K and V of a layer
    PLACE_TEXT,   // the text or the line that the prompt was made of
    PLACE_END,    // where or why the sequence ended
    PLACE_FIELD,  // anything else in a payload
};

#define REPLAY_NONE 0xffffffffu // no token, no layer
struct replay_difference {
    enum replay_place place;
    u64 record;             // where it stands
    u32 position;           // in the sequence; of K and V the first one that may differ
    u32 generated;          // which generated token it is, from 1
    u32 recorded, computed; // tokens or finish reasons
    u32 layer;
};

// One sequence while it is run again.
struct replay_slot {
    bool is_used, has_own_end; // `has_own_end`: the recorded end follows from the request
    engine_sequence handle;
    u64 index; // of the sequence
    const struct store_sequence *sequence;
    struct store_request request;
    u32 *tokens; // [context] what was computed, the prompt included
    u32 context, n_tokens, n_wanted,
        kv_begin;             // n_wanted: generated tokens that the record tells of
    u64 boundary, suspension; // the next records to be compared with
    u64 next_event;
    struct sha256_digest origin, head;                  // head: of the events so far
    struct sha256_digest hashes[CHECKPOINT_FINISH + 1]; // of the last payload of each kind
    u32 n_compared;
    bool is_different;
    struct replay_difference difference;
    enum sov_status status; // of reading the record
    struct sov_fault fault;
};

struct replay {
    struct store_view *view;
    const struct store_sequences *all;
    struct store_payload recorded; // the payload being compared
    struct replay_slot *slots;     // [n_slots]
    u32 n_slots;
};

struct checkpoint_store replay_store(struct replay *replay);
// Before it is submitted: what the record has of it. *is_empty: nothing can be compared.
enum sov_status replay_begin(struct replay *replay, struct replay_slot *slot, bool *is_empty,
                             struct sov_fault *fault) MUST_CHECK;
// An event of the engine: keeps the token, compares suspensions that lie there.
void replay_take(struct replay *replay, struct replay_slot *slot,
                 const struct engine_output *output);
// Whether a request's text, or its line, is what its tokens and parameters say, as far as that is
// recorded (see replay_prompt.c). The tokens are in the vocabulary. SOV_ERR_MEMORY.
enum sov_status replay_check_prompt(const struct vocabulary *vocabulary,
                                    const struct store_request *request, bool *is_same,
                                    struct sov_fault *fault) MUST_CHECK;
