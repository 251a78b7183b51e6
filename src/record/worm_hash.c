// SPDX-License-Identifier: Apache-2.0
// Two threads, one batch under way: the pass gives it and walks on through the next window; before
// it gives another it waits. So there are two windows, and neither side ever sees the other's.
#include "record/worm_hash.h"

u64 worm_hash_jobs(const struct worm_job *jobs, u32 n) {
    for (u32 i = 0; i < n; i += 2) {
        struct sha256_digest found[2];
        u32 n_here = MIN(n - i, 2u);
        if (n_here == 2) {
            const struct str both[2] = {jobs[i].payload, jobs[i + 1].payload};
            sha256_pair(both, found);
        } else {
            found[0] = sha256_of(jobs[i].payload);
        }
        for (u32 k = 0; k < n_here; k++) {
            if (!sha256_equal(&found[k], &jobs[i + k].wanted)) return jobs[i + k].entry;
        }
    }
    return ROWM_NONE;
}

static void run(void *argument) {
    struct worm_hasher *h = argument;
    for (u32 seen = 0;; seen++) {
        while (__atomic_load_n(&h->n_given, __ATOMIC_ACQUIRE) == seen) {
            platform_wait(&h->n_given, seen);
        }
        if (__atomic_load_n(&h->ends, __ATOMIC_ACQUIRE) != 0) return;
        // After the first that is wrong, the others do not matter.
        if (h->wrong == ROWM_NONE) h->wrong = worm_hash_jobs(h->jobs, h->n_jobs);
        __atomic_store_n(&h->n_done, seen + 1, __ATOMIC_RELEASE);
        platform_wake_all(&h->n_done);
    }
}

bool worm_hasher_begin(struct worm_hasher *hasher) {
    *hasher = (struct worm_hasher){.wrong = ROWM_NONE};
    return platform_thread_start(run, hasher, &hasher->thread, NULL) == SOV_OK;
}

u64 worm_hasher_wait(struct worm_hasher *hasher) {
    for (;;) {
        u32 n_done = __atomic_load_n(&hasher->n_done, __ATOMIC_ACQUIRE);
        if (n_done == hasher->n_given) return hasher->wrong;
        platform_wait(&hasher->n_done, n_done);
    }
}

static void wake(struct worm_hasher *hasher) {
    __atomic_store_n(&hasher->n_given, hasher->n_given + 1, __ATOMIC_RELEASE);
    platform_wake_all(&hasher->n_given);
}

void worm_hasher_give(struct worm_hasher *hasher, const struct worm_job *jobs, u32 n) {
    (void)worm_hasher_wait(hasher);
    hasher->jobs = jobs;
    hasher->n_jobs = n;
    wake(hasher);
}

void worm_hasher_end(struct worm_hasher *hasher) {
    (void)worm_hasher_wait(hasher);
    __atomic_store_n(&hasher->ends, 1, __ATOMIC_RELEASE);
    wake(hasher);
    platform_thread_join(hasher->thread);
    hasher->thread = NULL;
}
