// SPDX-License-Identifier: Apache-2.0
// What the engine writes into the store, as bytes: the request of a sequence, its checkpoints, its
// end. The store itself reads no payload; whoever replays or resumes reads them here.
//
// P1. A payload is a function of its fields: one way to write each, and what reads well writes the
//     same bytes again.
// P2. Decoding trusts nothing. Every length is held against the bytes that are left, every enum and
//     flag against its values, every count against the others; nothing may stand behind the end.
//     What the model and the engine must agree to (ids below the vocabulary, parameters in range)
//     is theirs to check.
// P3. A decoded payload points into the bytes it was decoded from, which must stay. Arrays are
//     slices of little-endian bytes, in no alignment.
//
// docs/format.md has the fields in order.
#pragma once
#include "freestanding/status.h"
#include "record/sha256.h"

#define PAYLOAD_TAG_BYTES 16
#define PAYLOAD_REQUEST_TAG "sov-rtx reqst v1"
#define PAYLOAD_CHECKPOINT_TAG "sov-rtx chkpt v1"
#define PAYLOAD_STOPS_MAX 16
#define PAYLOAD_STOP_BYTES_MAX 256
#define PAYLOAD_BIASES_MAX 1024
#define PAYLOAD_BIAS_BYTES 8 // u32 token, f32 bias
#define PAYLOAD_LAYERS_MAX 1024
#define PAYLOAD_TOKENS_MAX (1u << 24)
#define PAYLOAD_KV_ROW_BYTES_MAX (1u << 24)
#define PAYLOAD_FINISH_LAST 5 // the highest finish_reason

enum payload_command { PAYLOAD_RUN = 1, PAYLOAD_CHAT = 2, PAYLOAD_BATCH = 3 };
enum payload_form { PAYLOAD_CLEAR = 0, PAYLOAD_COMMITMENTS = 1 };
enum payload_kv_form { PAYLOAD_KV_DIGEST = 0, PAYLOAD_KV_FULL = 1, PAYLOAD_KV_TOKENS = 2 };

// As sample_params of sample/sampler.h.
struct payload_sampling {
    f32 repeat_penalty, frequency_penalty, presence_penalty, temperature, top_p, min_p;
    i32 penalty_window, top_k;
    u64 seed;
    struct str biases; // [n][PAYLOAD_BIAS_BYTES]
};

// Everything that a run of the request needs, and what the user said.
struct payload_request {
    u64 sequence_id;
    enum payload_command command;
    enum payload_form form;
    enum payload_kv_form kv_form; // of its checkpoints
    u32 context;                  // of the engine: an answer may end by it
    u32 n_new_max;                // 0: up to the context
    bool ignore_end, wants_logprob;
    u32 end_token; // 0xffffffff: none
    u32 n_logprobs;
    struct payload_sampling sampling;
    u32 n_stops;
    struct str stops[PAYLOAD_STOPS_MAX]; // stop strings
    struct str prompt;                   // what the user gave as text; may be empty
    u64 line_number;                     // of a batch's file, from 1; else 0
    struct str line;                     // the request of a batch as it stood there; else empty
    struct str tokens;                   // u32 [n] of the prompt, one at least
    struct str script;                   // u32 [n], for tests: taken instead of the first draws
};

enum payload_checkpoint_kind {
    PAYLOAD_BOUNDARY = 1, // the beginning, or a 64th generated token
    PAYLOAD_SUSPEND = 2,
    PAYLOAD_FINISH = 3,
};

// The state of a sequence, enough to go on from.
struct payload_checkpoint {
    u64 sequence_id;
    enum payload_checkpoint_kind kind;
    u32 finish; // enum finish_reason of schedule/scheduler.h, of PAYLOAD_FINISH; else 0
    enum payload_kv_form kv_form;
    u32 n_prompt;                      // of the tokens
    struct str tokens;                 // u32 [n], all from position 0 on: prompt and generated ones
    struct sha256_digest origin;       // of the event chain: model, profile, prompt, sampling
    u64 event_number;                  // the event that comes next, 0 at the beginning
    struct sha256_digest event_digest; // of the event before it; at the beginning the origin
    // K and V of positions [kv_begin, kv_end), which no other checkpoint of the sequence has. With
    // an empty range, and in the form "tokens", n_layer and row_bytes are 0 and there is no more.
    u32 kv_begin, kv_end, n_layer, row_bytes; // row_bytes: K and V of one position in one layer
    struct str kv_digests; // [n_layer] SHA-256 of a layer's positions in order, K row then V row
    struct str kv_bytes;   // [n_layer][kv_end - kv_begin][row_bytes] in the form "full"; else empty
};

// Element i of a slice of u32.
static inline u32 payload_u32(struct str slice, usize i) {
    return load_u32(slice.data + i * sizeof(u32));
}
static inline u32 payload_count(struct str slice) { return (u32)(slice.len / sizeof(u32)); }
struct sha256_digest payload_kv_digest(const struct payload_checkpoint *checkpoint, u32 layer);

// --- bytes ---
// The size of what the write functions write. Fields that contradict each other are our own mistake
// and stop the program.
u64 payload_request_bytes(const struct payload_request *request);
u64 payload_checkpoint_bytes(const struct payload_checkpoint *checkpoint);
void payload_request_write(const struct payload_request *request, u8 *out);
// A slice may stand in `out` already, where it is to be written.
void payload_checkpoint_write(const struct payload_checkpoint *checkpoint, u8 *out);

// SOV_ERR_FORMAT with the field; SOV_ERR_UNSUPPORTED for another version of it.
enum sov_status payload_request_read(struct str bytes, struct payload_request *request,
                                     struct sov_fault *fault) MUST_CHECK;
enum sov_status payload_checkpoint_read(struct str bytes, struct payload_checkpoint *checkpoint,
                                        struct sov_fault *fault) MUST_CHECK;

// "run", "digest", "boundary"; "?" for what there is not.
const char *payload_command_name(enum payload_command command);
const char *payload_kv_form_name(enum payload_kv_form form);
const char *payload_checkpoint_kind_name(enum payload_checkpoint_kind kind);
