// SPDX-License-Identifier: Apache-2.0
// What the commands that read record stores share: where stores lie, looking into one, heads as
// text.
//
//   store.c    these
//   verify.c   sov verify      log.c     sov log
//   replay.c   sov replay      resume.c  sov resume
#pragma once
#include "cli/cli.h"
#include "record/payload.h"
#include "record/sidecar.h"
#include "record/snapshot.h"

// $XDG_STATE_HOME/sov-rtx/records, or ~/.local/state/sov-rtx/records. SOV_ERR_USAGE when the
// environment names neither folder.
enum sov_status store_records_folder(const struct platform_start *start, char path[ROWM_PATH_BYTES],
                                     struct sov_fault *fault) MUST_CHECK;

// A store opened to read. The path must stay.
struct store_view {
    struct rowm_folder folder;
    struct rowm_disk disk;
    struct rowm_snapshot *snapshot;
    struct sidecar *sidecar; // what sealed payloads stand for; opened when it is wanted
    struct rowm_report report;
    u64 begin_ns, shown_ns, end_ns; // of the pass
    bool shows;                     // progress, on a terminal
};
// `skips_payloads`, `expect`: as in snapshot.h. Shows progress on stderr if `shows` and that is a
// terminal. The fault names the store. What cannot be read at all is SOV_ERR_UNSUPPORTED: not
// checkable here.
enum sov_status store_view_open(struct store_view *view, const char *path,
                                const struct rowm_expect *expect, bool skips_payloads, bool shows,
                                struct sov_fault *fault) MUST_CHECK;
void store_view_close(struct store_view *view);

// "SIZE:ROOT".
void store_put_head(struct output *out, const struct rowm_head *head);
bool store_head_parse(struct str text, struct rowm_expect *head);
// The manifest of a session of the store, whose texts are dropped.
enum sov_status store_read_manifest(struct store_view *view, u64 record,
                                    struct rowm_manifest *manifest, struct sov_fault *fault)
    MUST_CHECK;
// Puts the store in front of what is wrong with it; returns the status.
enum sov_status store_name_fault(const char *path, struct sov_fault *fault);

// --- sequences ---
// What a store has of one sequence: records in the order they were written.
struct store_sequence {
    u64 owner;
    u64 request;       // record
    u64 first, last;   // checkpoints and the finish, linked by `next`; ROWM_NONE: none yet
    u64 finish;        // record or ROWM_NONE
    u32 n_checkpoints; // payloads of their own, the finish not counted
};
struct store_sequences {
    struct store_sequence *items; // [n] in the order of their requests
    u64 n;
    u64 *next; // [n_records] the next record of the same sequence, or ROWM_NONE
    u64 n_records;
    u32 *slots; // [n_slots] of the owners: index + 1
    u64 n_slots;
};
// SOV_ERR_FORMAT for records that do not make sequences (no request in front, two of one owner).
enum sov_status store_sequences_read(const struct rowm_snapshot *snapshot,
                                     struct store_sequences *sequences, struct sov_fault *fault)
    MUST_CHECK;
void store_sequences_free(struct store_sequences *sequences);
// A sequence's id as it is printed: 16 hexadecimal digits.
bool store_sequence_id(const char *text, u64 *id);
struct store_sequence *store_sequence_find(const struct store_sequences *sequences, u64 owner);

// A payload in memory of its own, which grows as needed.
struct store_payload {
    struct str bytes; // in clear
    struct str given; // as the engine gave it to the store: the same, or the opening around it
    bool is_sealed;
    struct sha256_digest salt; // of a sealed one
    u8 *memory;
    u64 capacity;
};
// A sealed payload is opened. SOV_ERR_UNSUPPORTED when its sequence was erased from the sidecar.
enum sov_status store_payload_read(struct store_view *view, u64 record,
                                   struct store_payload *payload, struct sov_fault *fault)
    MUST_CHECK;
// Makes of `bytes` in payload->memory, which a record has, what store_payload_read gives.
enum sov_status store_payload_open(struct store_view *view, u64 record, u64 bytes,
                                   struct store_payload *payload, struct sov_fault *fault)
    MUST_CHECK;
// How many records are commitments, and how many of these the sidecar has the openings of. In
// bounded memory. A sidecar that cannot be read has none.
struct store_sealed {
    u64 n, n_opened;
};
enum sov_status store_count_sealed(struct store_view *view, struct store_sealed *sealed,
                                   struct sov_fault *fault) MUST_CHECK;
void store_payload_free(struct store_payload *payload);

// --- running recorded requests again ---
// A recorded request, checked and copied to where the engine can use it.
struct store_request {
    struct store_payload payload;
    struct payload_request said; // points into the payload
    u32 *tokens, *script;        // in one memory with the biases
    struct logit_bias *biases;
    void *memory;
    u64 memory_bytes;
    const struct tokenizer *tokenizer;
    struct stop_matcher stop;
};
// The request must not be moved while the engine has it. SOV_ERR_UNSUPPORTED when the record holds
// commitments, and the sidecar not what they stand for.
enum sov_status store_request_open(struct store_request *request, struct store_view *view,
                                   const struct store_sequence *sequence, struct sov_fault *fault)
    MUST_CHECK;
void store_request_close(struct store_request *request);
// What the engine is asked for. Without logprobs, which are no part of the record.
enum sov_status store_request_for_engine(struct store_request *request,
                                         const struct tokenizer *tokenizer,
                                         struct engine_request *engine, struct sov_fault *fault)
    MUST_CHECK;

// SHA-256 of a model file, all shards in order.
enum sov_status store_model_digest(const char *path, struct sha256_digest *digest,
                                   struct sov_fault *fault) MUST_CHECK;
