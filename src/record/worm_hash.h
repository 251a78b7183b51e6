// SPDX-License-Identifier: Apache-2.0
// Payloads held against their digests, beside the pass that finds them: by a thread of their own
// where a store is large, else when a window has been walked through. In pairs, since the SHA
// instructions of one message wait for each other (sha256.h).
//
// The entries of a store are a chain of digests that can only be walked along; their payloads are
// each for itself, and most of the bytes.
#pragma once
#include "platform/platform.h"
#include "record/rowm.h"

struct worm_job {
    struct str payload; // stays until the job is done
    struct sha256_digest wanted;
    u64 entry; // offset of its entry
};

// Hashes jobs[n]. The offset of the first entry whose payload is another, or ROWM_NONE.
u64 worm_hash_jobs(const struct worm_job *jobs, u32 n);

struct worm_hasher {
    struct platform_thread *thread; // NULL: there is none
    u32 n_given, n_done;            // batches; the one of them sleeps on, the other's
    u32 ends;
    const struct worm_job *jobs; // [n_jobs] of the batch being hashed
    u32 n_jobs;
    u64 wrong; // as worm_hash_jobs, of all batches so far
};
// False when no thread is to be had; nothing is to be ended then.
bool worm_hasher_begin(struct worm_hasher *hasher) MUST_CHECK;
// Hands over a batch, after the one before is done. Jobs and payloads must stay until the next
// call.
void worm_hasher_give(struct worm_hasher *hasher, const struct worm_job *jobs, u32 n);
// Waits for all that was given; the result so far.
u64 worm_hasher_wait(struct worm_hasher *hasher);
void worm_hasher_end(struct worm_hasher *hasher);
