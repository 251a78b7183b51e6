// SPDX-License-Identifier: Apache-2.0
// Jobs and barriers over two counters that only grow. A waiter spins for a short while, since the
// others are usually a few hundred nanoseconds away, and then sleeps in the kernel.
//
// Pl1. A worker enters barrier b+1 only after barrier_number left b, so one arrival counter serves.
// Pl2. Whoever changes a word that others may sleep on reads n_sleeping afterwards; whoever sleeps
//      raises n_sleeping before it looks at the word again (both sequentially consistent), so no
//      wake-up is lost.
#include "cpu/pool.h"
#include "freestanding/mem.h"

#define SPINS_MAX 2000 // pause instructions: 20 microseconds (Zen 4) to 90 (Skylake)

static u32 load_acquire(const u32 *word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }

// Waits until *word differs from `old`.
static void wait_for_change(struct pool *pool, const u32 *word, u32 old) {
    for (u32 i = 0; i < pool->spins; i++) {
        if (load_acquire(word) != old) return;
        __builtin_ia32_pause();
    }
    __atomic_fetch_add(&pool->n_sleeping, 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(word, __ATOMIC_SEQ_CST) == old) platform_wait(word, old);
    __atomic_fetch_sub(&pool->n_sleeping, 1, __ATOMIC_SEQ_CST);
}

static void change_and_wake(struct pool *pool, u32 *word) {
    __atomic_fetch_add(word, 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&pool->n_sleeping, __ATOMIC_SEQ_CST) != 0) platform_wake_all(word);
}

void pool_barrier(struct pool *pool) {
    if (pool->n_workers == 1) return;
    u32 number = load_acquire(&pool->barrier_number);
    u32 arrived = __atomic_add_fetch(&pool->n_arrived, 1, __ATOMIC_ACQ_REL);
    if (arrived < pool->n_workers) {
        wait_for_change(pool, &pool->barrier_number, number);
        return;
    }
    __atomic_store_n(&pool->n_arrived, 0, __ATOMIC_RELAXED);
    change_and_wake(pool, &pool->barrier_number);
}

static void worker_main(void *argument) {
    struct pool *pool = argument;
    u32 worker = __atomic_fetch_add(&pool->next_worker, 1, __ATOMIC_RELAXED);
    for (u32 number = 0;; number++) {
        wait_for_change(pool, &pool->job_number, number);
        if (load_acquire(&pool->stop) != 0) return;
        pool->job(pool->argument, worker);
        pool_barrier(pool);
    }
}

enum sov_status pool_create(struct pool *pool, u32 n_workers, struct sov_fault *fault) {
    assert(n_workers >= 1 && n_workers <= POOL_WORKERS_MAX);
    memset(pool, 0, sizeof *pool);
    pool->next_worker = 1;
    pool->spins = n_workers <= platform_cpu_count() ? SPINS_MAX : 0;
    for (pool->n_workers = 1; pool->n_workers < n_workers; pool->n_workers++) {
        struct platform_thread **thread = &pool->threads[pool->n_workers];
        enum sov_status status = platform_thread_start(worker_main, pool, thread, fault);
        if (status != SOV_OK) {
            pool_destroy(pool);
            return status;
        }
    }
    return SOV_OK;
}

void pool_destroy(struct pool *pool) {
    __atomic_store_n(&pool->stop, 1, __ATOMIC_RELEASE);
    change_and_wake(pool, &pool->job_number);
    for (u32 i = 1; i < pool->n_workers; i++) platform_thread_join(pool->threads[i]);
    pool->n_workers = 0;
}

void pool_run(struct pool *pool, pool_job *job, void *argument) {
    pool->job = job;
    pool->argument = argument;
    change_and_wake(pool, &pool->job_number);
    job(argument, 0);
    pool_barrier(pool); // the last barrier: every worker has ended the job
}
