// SPDX-License-Identifier: Apache-2.0
// The worker team: every worker runs every job once, nobody passes a barrier early, sleepers wake.
#include "cpu/pool.h"
#include "freestanding/mem.h"
#include "test.h"

#define WORKERS 5
#define BARRIERS 300
#define JOBS 200

struct shared {
    struct pool *pool;
    u32 stage[POOL_WORKERS_MAX]; // how far each worker is
    u32 runs[POOL_WORKERS_MAX];
    u32 early; // times somebody was seen too far ahead or behind
    u32 delay; // worker that dawdles
};

static void walk(void *argument, u32 worker) {
    struct shared *s = argument;
    for (u32 stage = 0; stage < BARRIERS; stage++) {
        if (worker == s->delay && stage % 50 == 0) { // longer than others spin: they must sleep
            u64 until = platform_monotonic_ns() + 300000;
            while (platform_monotonic_ns() < until) {
            }
        }
        __atomic_store_n(&s->stage[worker], stage + 1, __ATOMIC_RELAXED);
        pool_barrier(s->pool);
        for (u32 i = 0; i < s->pool->n_workers; i++) {
            u32 seen = __atomic_load_n(&s->stage[i], __ATOMIC_RELAXED);
            if (seen < stage + 1 || seen > stage + 2) __atomic_fetch_add(&s->early, 1, 0);
        }
    }
    s->runs[worker]++;
}

static void barriers(void) {
    static struct pool pool;
    static struct shared s;
    for (u32 n = 1; n <= WORKERS; n++) {
        struct sov_fault fault = {0};
        CHECK_MSG(pool_create(&pool, n, false, &fault) == SOV_OK, "%s", fault.message);
        memset(&s, 0, sizeof s);
        s.pool = &pool;
        s.delay = n - 1;
        pool_run(&pool, walk, &s);
        CHECK_MSG(s.early == 0, "%u workers: %u early", n, s.early);
        for (u32 i = 0; i < n; i++) CHECK(s.runs[i] == 1 && s.stage[i] == BARRIERS);
        pool_destroy(&pool);
    }
}

static void count_run(void *argument, u32 worker) {
    struct shared *s = argument;
    s->runs[worker]++; // each worker its own word: no race
}

static void jobs_with_pauses(void) {
    static struct pool pool;
    static struct shared s;
    memset(&s, 0, sizeof s);
    CHECK(pool_create(&pool, WORKERS, false, NULL) == SOV_OK);
    for (u32 job = 0; job < JOBS; job++) {
        pool_run(&pool, count_run, &s);
        for (u32 i = 0; i < WORKERS; i++) CHECK(s.runs[i] == job + 1); // all had ended
        if (job % 40 == 0) {                                           // the others fall asleep
            u64 until = platform_monotonic_ns() + 1000000;
            while (platform_monotonic_ns() < until) {
            }
        }
    }
    pool_destroy(&pool);
}

static void create_and_destroy(void) {
    static struct pool pool;
    for (u32 i = 0; i < 50; i++) {
        CHECK(pool_create(&pool, 1 + i % 8, false, NULL) == SOV_OK);
        pool_destroy(&pool);
    }
    CHECK(pool_create(&pool, POOL_WORKERS_MAX, false, NULL) == SOV_OK);
    static struct shared s;
    memset(&s, 0, sizeof s);
    pool_run(&pool, count_run, &s);
    for (u32 i = 0; i < POOL_WORKERS_MAX; i++) CHECK(s.runs[i] == 1);
    pool_destroy(&pool);
}

static void note_cpus(void *argument, u32 worker) {
    struct platform_cpus *cpus = argument;
    if (!platform_cpus_get(&cpus[worker])) memset(&cpus[worker], 0xff, sizeof cpus[worker]);
}

static u32 count_cpus(const struct platform_cpus *cpus) {
    u32 n = 0;
    for (u32 i = 0; i < COUNT_OF(cpus->words); i++) n += (u32)__builtin_popcountll(cpus->words[i]);
    return n;
}

// Each worker has one CPU, neighbours different ones where there are two; the creator gets its own
// back.
static void pinned(void) {
    static struct pool pool;
    static struct platform_cpus seen[WORKERS], before, after;
    struct sov_fault fault = {0};
    CHECK(platform_cpus_get(&before));
    CHECK_MSG(pool_create(&pool, WORKERS, true, &fault) == SOV_OK, "%s", fault.message);
    pool_run(&pool, note_cpus, seen);
    pool_destroy(&pool);
    CHECK(platform_cpus_get(&after));
    CHECK(memcmp(&before, &after, sizeof before) == 0);
    for (u32 i = 0; i < WORKERS; i++) {
        CHECK(count_cpus(&seen[i]) == 1);
        bool same = i > 0 && memcmp(&seen[i], &seen[i - 1], sizeof seen[i]) == 0;
        CHECK(!same || count_cpus(&before) == 1);
    }
}

static const struct test_case cases[] = {
    {"pinned", pinned},
    {"barriers", barriers},
    {"jobs with pauses", jobs_with_pauses},
    {"create and destroy", create_and_destroy},
};

int program_main(const struct platform_start *start) {
    return test_main(start, "test_pool", cases, COUNT_OF(cases));
}
