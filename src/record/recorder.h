// SPDX-License-Identifier: Apache-2.0
// Between the engine and the store: a thread of its own, which owns a struct rowm, so that no step
// waits for a disk. The engine's thread (the only caller of everything here) hands over bytes and
// asks later; what is handed over while a commit is in progress shares the next one.
//
//   engine's thread   ──item──▶ queue ──▶ recorder's thread: stage, stage, ... one commit
//                     ◀──state of the item──┘
//
// R1. Items of one sequence are written in the order in which they were given.
// R2. An item is told durable only after the commit that holds it.
// R3. A sequence's request and first checkpoint are in one commit; each later checkpoint consumes
//     the capability of the one before and issues the next; the end consumes it and issues none.
// R4. What is there already (a checkpoint of the same id) is a success with the same bytes and
//     SOV_ERR_INTEGRITY with others. A request that is there already is SOV_ERR_STATE: it is
//     resumed, not begun again. But for one without its first checkpoint, as a crash between the
//     two transactions leaves it: the same request given again gets its checkpoint.
// R5. Refusing one item leaves the others alone; one that nobody asks for, and an end that could
//     not be made, are told by the flush. A failure of the store (a full disk, a failed
//     sync) ends recording for good: everything not durable by then fails with it, and so does
//     whatever comes later.
// R6. Bytes that are an opening (sealed.h) go to the sidecar, and are durable there, before the
//     store gets the commitment.
#pragma once
#include "record/checkpoint.h"
#include "record/rowm.h"

#define RECORDER_ENTRIES_MAX 1024              // items that the engine may ask for at a time
#define RECORDER_QUEUE_BYTES_MAX (64ull << 20) // from here on, `start` waits for room

// Transaction ids of a sequence's records (docs/format.md).
struct sha256_digest recorder_request_txid(u64 sequence_id);
struct sha256_digest recorder_checkpoint_txid(const struct checkpoint_id *id);

struct recorder;

// Takes over an open store, also when it fails: recorder_close, or the failure, closes it.
enum sov_status recorder_open(struct rowm *rowm, struct recorder **recorder,
                              struct sov_fault *fault) MUST_CHECK;
// The same without a thread, for simulations: what it would do is done by recorder_step, and where
// the engine's thread would wait for it.
enum sov_status recorder_open_stepped(struct rowm *rowm, struct recorder **recorder,
                                      struct sov_fault *fault) MUST_CHECK;
// Writes and commits all that was given; false when there was nothing.
bool recorder_step(struct recorder *recorder);
// The interface that the engine wants; valid until recorder_close.
struct checkpoint_store recorder_store(struct recorder *recorder);
// SOV_OK, or what ended recording. Never waits.
enum sov_status recorder_check(const struct recorder *recorder, struct sov_fault *fault) MUST_CHECK;
// Waits until something became durable or failed since the last call, at most about as long as a
// commit takes; returns at once when nothing is on its way.
void recorder_wait(struct recorder *recorder);
// rowm_resume behind all that was given: reads a sequence's open checkpoint once. Waits until the
// capability that replaces the one used is durable.
enum sov_status recorder_resume(struct recorder *recorder, const struct rowm_claim *claim,
                                u8 *payload, usize capacity, usize *n, struct sov_fault *fault)
    MUST_CHECK;
// Waits until all that was given is durable. The fault of what ended recording, or of the first
// item that was refused and that nobody asked for.
enum sov_status recorder_flush(struct recorder *recorder, struct sov_fault *fault) MUST_CHECK;
// What is durable; only right after recorder_flush.
struct rowm_head recorder_head(const struct recorder *recorder);
// Flushes, ends the thread, closes the store. `head` is what is durable, also after a failure.
enum sov_status recorder_close(struct recorder *recorder, struct rowm_head *head,
                               struct sov_fault *fault) MUST_CHECK;
