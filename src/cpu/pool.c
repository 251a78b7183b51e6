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

// The calling thread to the CPU of `worker`.
static bool pin(const struct pool *pool, u32 worker) {
    u32 n_cpus = 0;
    for (u32 i = 0; i < PLATFORM_CPUS_MAX; i++) n_cpus += pool->cpus.words[i / 64] >> (i % 64) & 1;
    if (n_cpus == 0) return false;
    u32 left = worker % n_cpus;
    struct platform_cpus one = {0};
    for (u32 i = 0; i < PLATFORM_CPUS_MAX; i++) {
        if ((pool->cpus.words[i / 64] >> (i % 64) & 1) == 0 || left-- != 0) continue;
        one.words[i / 64] = 1ull << (i % 64);
        break;
    }
    return platform_cpus_set(&one);
}

static void worker_main(void *argument) {
    struct pool *pool = argument;
    u32 worker = __atomic_fetch_add(&pool->next_worker, 1, __ATOMIC_RELAXED);
    // What the creator could do, this thread can; failing, it may run anywhere, as unpinned.
    if (pool->is_pinned && !pin(pool, worker)) (void)platform_cpus_set(&pool->cpus);
    for (u32 number = 0;; number++) {
        wait_for_change(pool, &pool->job_number, number);
        if (load_acquire(&pool->stop) != 0) return;
        pool->job(pool->argument, worker);
        pool_barrier(pool);
    }
}

enum sov_status pool_create(struct pool *pool, u32 n_workers, bool is_pinned,
                            struct sov_fault *fault) {
    assert(n_workers >= 1 && n_workers <= POOL_WORKERS_MAX);
    memset(pool, 0, sizeof *pool);
    pool->next_worker = 1;
    pool->spins = n_workers <= platform_cpu_count() ? SPINS_MAX : 0;
    if (is_pinned) {
        pool->is_pinned = platform_cpus_get(&pool->cpus) && pin(pool, 0);
        if (!pool->is_pinned) {
            return fault_set(fault, SOV_ERR_IO, "the system does not let threads be pinned");
        }
    }
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
    if (pool->is_pinned) (void)platform_cpus_set(&pool->cpus);
    pool->n_workers = 0;
}

void pool_run(struct pool *pool, pool_job *job, void *argument) {
    pool->job = job;
    pool->argument = argument;
    change_and_wake(pool, &pool->job_number);
    job(argument, 0);
    pool_barrier(pool); // the last barrier: every worker has ended the job
}
