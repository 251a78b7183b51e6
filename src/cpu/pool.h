// SPDX-License-Identifier: Apache-2.0
// A fixed team of threads that run one function together and meet at barriers. The caller is
// worker 0; the others sleep between jobs.
#pragma once
#include "platform/platform.h"

#define POOL_WORKERS_MAX 128
#define POOL_LINE 64 // bytes; one cache line, so that waiting does not disturb counting

// Every worker runs it once per job.
typedef void pool_job(void *argument, u32 worker);

struct pool {
    u32 n_workers;
    u32 spins; // looks at a word before sleeping; none when there are more workers than CPUs
    pool_job *job;
    void *argument;
    u32 stop;
    bool is_pinned;
    struct platform_cpus cpus; // of the creator, when pinned
    u32 next_worker;           // hands out worker numbers while starting
    struct platform_thread *threads[POOL_WORKERS_MAX];
    _Alignas(POOL_LINE) u32 job_number;     // changes when a job begins; idle workers wait on it
    _Alignas(POOL_LINE) u32 n_arrived;      // workers at the present barrier
    _Alignas(POOL_LINE) u32 barrier_number; // changes when all have arrived
    _Alignas(POOL_LINE) u32 n_sleeping;     // workers waiting in the kernel, at either word
};

// Starts n_workers - 1 threads. The pool must stay where it is until pool_destroy. Pinned, worker i
// runs on the i-th CPU that the creator may use (around when there are fewer), the creator
// included, who gets its CPUs back from pool_destroy; SOV_ERR_IO when the system refuses. One
// pinned pool at a time of one thread, which also runs and destroys it.
enum sov_status pool_create(struct pool *pool, u32 n_workers, bool is_pinned,
                            struct sov_fault *fault) MUST_CHECK;
void pool_destroy(struct pool *pool);

// Runs job(argument, worker) on all workers and returns when all have ended.
void pool_run(struct pool *pool, pool_job *job, void *argument);

// Inside a job: returns when every worker has called it. What each wrote before is visible to all
// after.
void pool_barrier(struct pool *pool);
