// SPDX-License-Identifier: Apache-2.0
// The file `sidecar` of a store's folder: the openings of its commitments (sealed.h), that is, the
// salts, texts and tokens of sequences recorded with `--record digest`. The store is whole without
// it; whoever erases it, or one sequence in it, takes nothing from the store but what the
// commitments stand for.
//
// An entry, one behind the other (docs/format.md):
//
//      0  16  "sov-rtx sidec v1"            32  32  SHA-256 of the opening
//     16   8  n, the opening's length       64   8  first 8 bytes of the SHA-256 of what is in
//     24   8  sequence id                           front of it
//     72   n  the opening
//
// I1. An opening is durable before the record that commits to it is written.
// I2. Nothing is believed: an opening counts for a commitment only if it has that digest. Entries
//     that are damaged are passed over, and those behind them are found.
// I3. Only who holds the store's lock writes.
#pragma once
#include "freestanding/status.h"
#include "record/rowm.h"
#include "record/sealed.h"

#define SIDECAR_NAME "sidecar"
#define SIDECAR_HEAD_BYTES 72
#define SIDECAR_ENTRIES_MAX (1u << 27) // of one that is read

// --- writing ---
struct sidecar_writer {
    const struct rowm_disk *disk;
    int file;
    bool is_open, is_dirty;
    u64 end;
};
// Nothing is opened yet. The disk must stay.
void sidecar_writer_init(struct sidecar_writer *writer, const struct rowm_disk *disk);
// Takes an opening; the file is made with the first one. What a crash left of an entry is cut.
enum sov_status sidecar_append(struct sidecar_writer *writer, u64 sequence_id, struct str opening,
                               struct sov_fault *fault) MUST_CHECK;
// All that was taken is durable then.
enum sov_status sidecar_sync(struct sidecar_writer *writer, struct sov_fault *fault) MUST_CHECK;
void sidecar_writer_close(struct sidecar_writer *writer);

// --- reading ---
struct sidecar;
// A file that is missing is an empty one. Memory grows with the number of entries only.
enum sov_status sidecar_open(const struct rowm_disk *disk, struct sidecar **sidecar,
                             struct sov_fault *fault) MUST_CHECK;
void sidecar_close(struct sidecar *sidecar);
bool sidecar_has(const struct sidecar *sidecar, const struct sealed *sealed);
// The opening of a commitment: opening_bytes of it. SOV_ERR_UNSUPPORTED: it is not there (never,
// or not any more), or what is there in its place is something else.
enum sov_status sidecar_read(const struct sidecar *sidecar, const struct sealed *sealed,
                             u8 *opening, struct sov_fault *fault) MUST_CHECK;

// Whether it is there, as sidecar_read would find; reads it through a small window.
enum sov_status sidecar_check(const struct sidecar *sidecar, const struct sealed *sealed,
                              struct sov_fault *fault) MUST_CHECK;

// --- erasing ---
// Leaves out all entries of a sequence, or, with `all`, every one. *n_erased: how many. The old
// file goes when the new one is durable; what the medium keeps of its blocks is not ours to say.
enum sov_status sidecar_erase(const struct rowm_disk *disk, bool all, u64 sequence_id,
                              u64 *n_erased, struct sov_fault *fault) MUST_CHECK;
