// SPDX-License-Identifier: Apache-2.0
// How fast this machine reads memory: the ceiling that decoding is held against. A buffer larger
// than any cache is read from one end to the other, 64 bytes a step by two AVX2 loads, each thread
// an equal and contiguous part of it. Nothing is computed but the OR that keeps the loads alive.
//
//   bench_bandwidth [THREADS [MIB [RUNS]]]     default: 1, 1024, 7
//
// Four lines, one for each kind of pages and way of reading, with the best and the median run:
//
//   threads 1 pages 4K plain GB/s best 23.10 median 22.81
//
// "prefetch" also asks for the line some steps ahead, as kernels do. GB are 10^9 bytes. Huge pages
// are asked for by madvise; when the system has none to give, "2M" lines show 4 KiB pages again.
#include <immintrin.h>

#include "cpu/pool.h"
#include "freestanding/text.h"
#include "platform/linux_syscall.h"
#include "platform/platform.h"

#define RUNS_MAX 100u
#define PREFETCH_BYTES 4096u // ahead
#define HUGE_PAGE_BYTES (2ull << 20)
#define LINUX_MADVISE ((enum linux_call)28) // no call of sov, so not in its list
#define MADV_HUGEPAGE 14u
#define MADV_NOHUGEPAGE 15u

struct probe {
    struct pool *pool;
    const u8 *data;
    u64 bytes;
    bool prefetch;
    u32 sinks[POOL_WORKERS_MAX]; // of what must not be optimised away
};

static __m256i read_part(const u8 *data, u64 bytes, bool prefetch) {
    __m256i a = _mm256_setzero_si256(), b = a;
    for (u64 i = 0; i + 64 <= bytes; i += 64) {
        if (prefetch) _mm_prefetch((const char *)data + i + PREFETCH_BYTES, _MM_HINT_T0);
        a = _mm256_or_si256(a, _mm256_load_si256((const __m256i *)(data + i)));
        b = _mm256_or_si256(b, _mm256_load_si256((const __m256i *)(data + i + 32)));
    }
    return _mm256_or_si256(a, b);
}

static void read_job(void *argument, u32 worker) {
    struct probe *probe = argument;
    u64 n_lines = probe->bytes / 64, n = probe->pool->n_workers;
    u64 begin = n_lines * worker / n * 64, end = n_lines * (worker + 1) / n * 64;
    __m256i all = probe->prefetch ? read_part(probe->data + begin, end - begin, true)
                                  : read_part(probe->data + begin, end - begin, false);
    probe->sinks[worker] = (u32)_mm256_movemask_epi8(all);
}

static void measure(struct probe *probe, const char *pages, u32 n_runs) {
    u64 runs[RUNS_MAX]; // ascending
    pool_run(probe->pool, read_job, probe);
    for (u32 n = 0; n < n_runs; n++) {
        u64 begin = platform_monotonic_ns();
        pool_run(probe->pool, read_job, probe);
        u64 ns = platform_monotonic_ns() - begin;
        u32 at = n;
        for (; at > 0 && runs[at - 1] > ns; at--) runs[at] = runs[at - 1];
        runs[at] = ns;
    }
    u32 middle = n_runs / 2;
    char memory[160];
    struct text line = TEXT_OVER_ARRAY(memory);
    text_format(&line, "threads %u pages %s %s GB/s best %.2f median %.2f\n",
                probe->pool->n_workers, pages, probe->prefetch ? "prefetch" : "plain",
                (f64)probe->bytes / (f64)runs[0], (f64)probe->bytes / (f64)runs[middle]);
    if (platform_write(PLATFORM_STDOUT, line.data, line.len, NULL) != SOV_OK) platform_exit(1);
}

// Writes every page, so that none is the one page of zeros.
static void touch(u8 *data, u64 bytes) {
    for (u64 i = 0; i < bytes; i += 64) store_u64(data + i, i);
}

static bool argument(const struct platform_start *start, u32 idx, u64 min, u64 max, u64 *value) {
    if (idx >= start->n_args) return true;
    return text_parse_u64(str_from_z(start->args[idx]), value) && *value >= min && *value <= max;
}

int program_main(const struct platform_start *start) {
    u64 n_threads = 1, mib = 1024, n_runs = 7;
    if (!argument(start, 1, 1, POOL_WORKERS_MAX, &n_threads) ||
        !argument(start, 2, 1, 1u << 20, &mib) || !argument(start, 3, 1, RUNS_MAX, &n_runs)) {
        return 2;
    }
    static struct pool pool;
    static struct probe probe;
    struct sov_fault fault = {0};
    if (pool_create(&pool, (u32)n_threads, &fault) != SOV_OK) return 1;
    for (u32 huge = 0; huge < 2; huge++) {
        u64 bytes = mib << 20, mapped = bytes + HUGE_PAGE_BYTES;
        u8 *memory = platform_memory_map(mapped);
        if (memory == NULL) return 1;
        u64 address = ((u64)memory + HUGE_PAGE_BYTES - 1) / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
        u8 *data = memory + (address - (u64)memory);
        // Refused where the kernel knows no huge pages; the figures then tell.
        (void)linux_syscall(LINUX_MADVISE, address, bytes, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE,
                            0, 0, 0);
        touch(data, bytes);
        probe.pool = &pool;
        probe.data = data;
        probe.bytes = bytes;
        for (u32 prefetch = 0; prefetch < 2; prefetch++) {
            probe.prefetch = prefetch == 1;
            measure(&probe, huge ? "2M" : "4K", (u32)n_runs);
        }
        platform_memory_unmap(memory, mapped);
    }
    pool_destroy(&pool);
    return 0;
}
