// SPDX-License-Identifier: Apache-2.0
// Reading a store that somebody may be writing: without a lock, without a change, as it was
// acknowledged when it was opened. Opening is verification; what an open snapshot tells was
// checked, and payloads are checked again when they are read.
//
// N1. A snapshot that is opened whole has verified (docs/format.md) up to its head. One opened
//     without payloads has verified all but the payloads' digests.
// N2. Memory grows with the number of transactions only, not with the bytes of the store.
// N3. A payload is read whatever capability guards it: nothing is consumed, and nothing is written
//     about it. Who may read the file may do so; see "What it proves" in docs/format.md.
#pragma once
#include "record/rowm.h"

struct rowm_snapshot;

struct rowm_snapshot_options {
    const struct rowm_expect *expect; // a head that must be this store's or one it extends; or NULL
    bool skips_payloads;              // reads entries only: for lists of stores
    // Called now and then with the bytes read so far; false ends it with SOV_ERR_INTERRUPTED.
    // NULL: nobody looks.
    bool (*look)(void *context, u64 done, u64 total);
    void *look_context;
};

// *snapshot lives in memory of its own until rowm_snapshot_close. `report` is filled in any case as
// far as it was got to (`slots_read` of it after the slots were found to be right). SOV_ERR_FORMAT:
// no store there. Else the statuses are those of sov_rowm_verify.
enum sov_status rowm_snapshot_open(const struct rowm_disk *disk,
                                   const struct rowm_snapshot_options *options,
                                   struct rowm_snapshot **snapshot, struct rowm_report *report,
                                   struct sov_fault *fault) MUST_CHECK;
void rowm_snapshot_close(struct rowm_snapshot *snapshot);

u64 rowm_snapshot_records(const struct rowm_snapshot *snapshot); // ids are 0 to this - 1
// What is known of a record without its payload.
struct rowm_record_info rowm_snapshot_info(const struct rowm_snapshot *snapshot, u64 record);
// The record consumed by this one, or ROWM_NONE.
u64 rowm_snapshot_consumed(const struct rowm_snapshot *snapshot, u64 record);
// The payload, `payload_bytes` of its info, whose digest is held against the record's again.
enum sov_status rowm_snapshot_read(struct rowm_snapshot *snapshot, u64 record, u8 *payload,
                                   usize capacity, struct sov_fault *fault) MUST_CHECK;
// The receipt of time 1 and up, to the head's time.
struct rowm_receipt rowm_snapshot_receipt(const struct rowm_snapshot *snapshot, u64 time);

// A manifest's payload, checked. Its texts point into `payload`.
enum sov_status rowm_manifest_read(struct str payload, struct rowm_manifest *manifest,
                                   struct sov_fault *fault) MUST_CHECK;
