// SPDX-License-Identifier: Apache-2.0
// Recording of a run: the store that it writes to, requests as payloads, the head at the end.
//
// C1. A store is opened before the first request that it is to have; a run that should be recorded
//     and cannot be does not begin. Where nothing is asked, no store is made.
// C2. When recording ends by a failure, so does the run, with that message and exit code 1.
// C3. With --record digest each sequence has a salt that is drawn for this run, and is written to
//     the store's sidecar alone (record/sealed.h).
#pragma once
#include "engine/engine.h"
#include "record/recorder.h"
#include "request/stop.h"

struct record_options {
    const struct platform_start *start; // of the program; NULL: the command records nothing
    const char *store, *form_name, *text_form_name; // or NULL
    bool off;
};
#define RECORD_OPTIONS(r)                                                                  \
    {OPTION_STRING,                                                                        \
     "--store",                                                                            \
     NULL,                                                                                 \
     "DIR",                                                                                \
     &(r)->store,                                                                          \
     NULL,                                                                                 \
     0,                                                                                    \
     0,                                                                                    \
     "record into this store, made if missing (default: a new one, see sov log)"},         \
        {OPTION_FLAG, "--no-record", NULL, NULL, &(r)->off, NULL, 0, 0, "record nothing"}, \
        {OPTION_STRING,                                                                    \
         "--record",                                                                       \
         NULL,                                                                             \
         "FORM",                                                                           \
         &(r)->text_form_name,                                                             \
         NULL,                                                                             \
         0,                                                                                \
         0,                                                                                \
         "texts and tokens: clear (default), or digest: commitments, with an erasable "    \
         "sidecar"},                                                                       \
    {                                                                                      \
        OPTION_STRING, "--checkpoint", NULL, "FORM", &(r)->form_name, NULL, 0, 0,          \
            "K and V in checkpoints: digest (default), full or tokens (neither)"           \
    }

// The numeric profile of a manifest (docs/format.md). Of tensor the device's last word is the
// architecture, as in engine_profile.
enum record_profile { RECORD_EXACT = 1, RECORD_TENSOR = 2 };

struct record {
    struct recorder *recorder; // NULL: nothing is recorded, or nothing yet
    const struct record_options *options;
    struct engine *engine;
    struct sha256_digest model;
    enum record_profile profile;
    char device[ROWM_TEXT_BYTES_MAX + 1];
    enum payload_kv_form kv_form;
    bool is_sealed;              // texts and tokens as commitments
    struct sha256_digest secret; // of this run, which the salts come from
    struct rowm_folder folder;
    struct rowm_disk disk;
    u64 last_id; // of run's and chat's sequences
    u8 *bytes;   // [capacity] a request's payload, or its opening
    u64 capacity;
    struct rowm_head head; // after record_end
    char path[ROWM_PATH_BYTES];
};

// The forms that the options name. SOV_ERR_USAGE for what does not go together.
enum sov_status record_options_check(const struct record_options *options,
                                     enum payload_kv_form *kv_form, enum payload_form *form,
                                     struct sov_fault *fault) MUST_CHECK;
// Says what a store would be told. All of it but `device` must stay.
void record_prepare(struct record *record, const struct record_options *options,
                    const struct sha256_digest *model, const char *device, struct engine *engine);
// What this program says of itself at the beginning of a session of the profile exact. `device`
// must stay.
struct rowm_manifest record_manifest(const struct sha256_digest *model, const char *device);
// Opens the store, unless it is open or there is to be none, and hands it to the engine, which has
// no sequence.
enum sov_status record_begin(struct record *record, struct sov_fault *fault) MUST_CHECK;
void record_close(struct record *record); // after the engine; may be called on a zeroed struct

// What of a request is not in engine_request.
struct record_source {
    enum payload_command command;
    struct str prompt, line;
    u64 line_number;
    const struct str *stops; // [n_stops]
    u32 n_stops;
};
// Fills in what the record adds to a request: its bytes, which hold until the next call, the form
// of its checkpoints, and the salt. The same request gives the same bytes again.
enum sov_status record_request(struct record *record, struct engine_request *request,
                               const struct record_source *source, u32 context,
                               struct sov_fault *fault) MUST_CHECK;
// An id for a sequence that has no other name: (session, 1, 2, ...).
u64 record_next_id(struct record *record);

// SOV_OK, or what ended recording.
enum sov_status record_check(const struct record *record, struct sov_fault *fault) MUST_CHECK;
// After a step in which nothing could be computed: waits for the store, if that is what it waits
// for.
void record_wait(struct record *record);
// Waits until all is durable, and knows the head then.
enum sov_status record_end(struct record *record, struct sov_fault *fault) MUST_CHECK;

// After record_end; nothing where nothing is recorded. "record SIZE:ROOT, receipt HASH, PATH" and a
// newline; and {"store": ..., "head": ..., "receipt": ...}, null where nothing is recorded.
struct output;
void record_put_figures(const struct record *record, struct output *out);
void record_put_json(const struct record *record, struct output *out);

// The SHA-256 of a model's files, all shards in order. `start` not NULL: kept in the user's state
// folder by what identifies the files, so that an unchanged model is read once only.
struct gguf;
enum sov_status model_digest(const struct gguf *gguf, const struct platform_start *start,
                             struct sha256_digest *digest, struct sov_fault *fault) MUST_CHECK;
// Makes a folder and what is missing above it. Their names are durable then, and so is that of the
// last one that was there.
enum sov_status make_folders(const char *path, struct sov_fault *fault) MUST_CHECK;
