// SPDX-License-Identifier: Apache-2.0
// card_bench MODULES [PREFIX]: times of the matrix and attention kernels on a card at the shapes of
// an 8B model, or of those whose names begin so. Operands are random bytes; nothing is checked
// (card_launch does). Each time is the median of several runs of a batch of launches between two
// events; matrices rotate over more than four times the second-level cache, so that weights come
// from memory.
#include "driver.h"
#include "ops/dtype.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define POOL_BYTES ((size_t)1 << 30) // weights
#define ACTIVATION_BYTES ((size_t)256 << 20)
#define RUNS 7
#define READ_CEILING 4.54e12 // bytes a second, measured on an H200

_Noreturn void assert_failed(const char *file, int line, const char *what) {
    fprintf(stderr, "%s:%d: %s\n", file, line, what);
    abort();
}

static struct {
    const char *prefix;
    device_ptr weights, activations, power, status, out;
    driver_handle events[2];
} state;

static void fill(device_ptr to, size_t bytes, u32 and_mask, u32 or_mask) {
    size_t chunk = (size_t)16 << 20;
    u32 *words = malloc(chunk);
    u64 x = 0x9e3779b97f4a7c15;
    if (words == NULL) exit(2);
    for (size_t i = 0; i < chunk / 4; i++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        words[i] = ((u32)(x >> 32) & and_mask) | or_mask;
    }
    for (size_t at = 0; at < bytes; at += chunk) {
        driver_upload(to + at, words, bytes - at < chunk ? bytes - at : chunk);
    }
    free(words);
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

struct bench_call {
    driver_handle function;
    u32 grid[3], block;
    u64 values[32];
    void *params[32];
    u32 n_params;
    u32 weight_param; // index of the weight's address, rotated; 0: none
    u64 weight_bytes;
};

static void put(struct bench_call *call, u64 value) {
    call->values[call->n_params] = value;
    call->params[call->n_params] = &call->values[call->n_params];
    call->n_params++;
}

static struct bench_call call_new(driver_handle module, const char *kernel) {
    struct bench_call call = {.function = driver_function(module, kernel)};
    return call;
}

static bool is_wanted(const char *kernel) {
    return strncmp(kernel, state.prefix, strlen(state.prefix)) == 0;
}

// Microseconds of one launch.
static double microseconds(struct bench_call *call, u32 launches) {
    double times[RUNS];
    u32 copies = call->weight_bytes == 0 ? 1 : (u32)(POOL_BYTES / call->weight_bytes);
    u32 next = 0;
    if (copies == 0) copies = 1;
    for (u32 i = 0; i < call->n_params; i++) call->params[i] = &call->values[i];
    for (u32 run = 0; run < RUNS + 1; run++) { // the first is not counted
        driver_event_record(state.events[0]);
        for (u32 i = 0; i < launches; i++) {
            if (call->weight_bytes != 0) {
                u64 at = next++ % copies * call->weight_bytes / 256 * 256;
                call->values[call->weight_param] = state.weights + at;
            }
            driver_launch(call->function, call->grid, call->block, call->params);
        }
        driver_event_record(state.events[1]);
        double ms = driver_event_elapsed(state.events[0], state.events[1]);
        if (run > 0) times[run - 1] = 1e3 * ms / launches;
    }
    qsort(times, RUNS, sizeof times[0], by_value);
    return times[RUNS / 2];
}

static void lower_name(char *to, const char *name) {
    while (*name != 0) {
        *to++ = (char)(*name >= 'A' && *name <= 'Z' ? *name + 32 : *name);
        name++;
    }
    *to = 0;
}

static void put_matrix(struct bench_call *call, enum dtype type, u32 k, u32 features, u32 tokens) {
    bool quantised = dtype_lookup(type)->quantised;
    put(call, state.power);
    put(call, state.status);
    call->weight_param = call->n_params;
    call->weight_bytes = dtype_row_bytes(type, k) * features;
    put(call, state.weights);
    put(call, state.activations);
    if (quantised) {
        put(call, state.activations + (64 << 20));  // low
        put(call, state.activations + (128 << 20)); // scale
        put(call, state.activations + (160 << 20)); // sums
    }
    put(call, 0);
    put(call, state.out);
    put(call, dtype_row_bytes(type, k));
    put(call, k);
    put(call, features);
    put(call, tokens);
    put(call, k);
    if (quantised) {
        put(call, (k + 255) / 256);
        put(call, k / 16);
    }
    put(call, features);
    put(call, 0);
}

static void bench_gemv(driver_handle module, enum dtype type, u32 k, u32 features, u32 tokens) {
    char kernel[64] = "gemv_", type_name[32];
    u32 threads = 128;
    size_t group = dtype_row_bytes(type, 256), slot = 8 * (group + 1) * 4;
    u32 per_block = tokens == 1 ? 1 : 4;
    lower_name(type_name, dtype_name(type));
    snprintf(kernel, sizeof kernel, "gemv_%s_%u", type_name, per_block);
    if (dtype_lookup(type)->quantised) {
        while (threads / 32 * 2 * slot + 64 * per_block * 32 + 4 > 48 * 1024) threads /= 2;
    }
    if (!is_wanted(kernel)) return;
    struct bench_call call = call_new(module, kernel);
    put_matrix(&call, type, k, features, tokens);
    call.grid[0] = (features + 7) / 8;
    call.grid[1] = (tokens + per_block - 1) / per_block;
    call.grid[2] = 1;
    call.block = threads;
    double us = microseconds(&call, 20);
    double rate = (double)call.weight_bytes / us * 1e6;
    printf("%-16s %6u x %5u, %u tokens: %8.1f us, %6.0f GB/s of weights, %3.0f %% of the ceiling\n",
           kernel, features, k, tokens, us, rate * 1e-9, 100 * rate / READ_CEILING);
    fflush(stdout);
}

static void bench_gemm(driver_handle module, enum dtype type, u32 k, u32 features, u32 tokens) {
    char kernel[64], type_name[32];
    lower_name(type_name, dtype_name(type));
    snprintf(kernel, sizeof kernel, "gemm_%s", type_name);
    if (!is_wanted(kernel)) return;
    struct bench_call call = call_new(module, kernel);
    put_matrix(&call, type, k, features, tokens);
    call.grid[0] = (features + 63) / 64;
    call.grid[1] = (tokens + 31) / 32;
    call.grid[2] = 1;
    call.block = 128;
    double us = microseconds(&call, tokens > 256 ? 3 : 10);
    printf("%-16s %6u x %5u, %4u tokens: %9.1f us, %6.1f T multiply-adds x 2 a second\n", kernel,
           features, k, tokens, us, 2e-6 * k * features * tokens / us);
    fflush(stdout);
}

// 32 query heads, 8 kv heads of 128; rows of `sequences` sequences at the end of `context`
// positions.
static void bench_attention(driver_handle module, u32 rows, u32 context, bool prefill) {
    if (!is_wanted("flash_attention_paged")) return;
    u32 n_head = 32, n_head_kv = 8, head_dim = 128, chunks = (context + 255) / 256;
    u64 token_stride = n_head_kv * head_dim * 2, page_stride = 16 * token_stride;
    u32 pages = context / 16, sequences = prefill ? 1 : rows;
    u32 *words = malloc(4 * (size_t)(sequences * pages + 2 * rows));
    if (words == NULL) exit(2);
    u32 *positions = words + sequences * pages, *slots = positions + rows;
    for (u32 i = 0; i < sequences * pages; i++) words[i] = i * 7919 % (sequences * pages);
    for (u32 i = 0; i < rows; i++) {
        positions[i] = prefill ? context - rows + i : context - 1;
        slots[i] = prefill ? 0 : i;
    }
    device_ptr tables = state.activations + (200 << 20), q = state.activations;
    driver_upload(tables, words, 4 * (size_t)(sequences * pages + 2 * rows));
    device_ptr at_positions = tables + 4 * (u64)(sequences * pages),
               at_slots = at_positions + 4 * rows;
    struct bench_call call =
        call_new(module, prefill ? "flash_attention_paged" : "flash_attention_paged_split");
    device_ptr cache_v = state.weights + POOL_BYTES / 2, scratch = state.activations + (64 << 20);
    u64 head[] = {state.power, state.status, q,       state.weights, cache_v,
                  tables,      at_positions, at_slots};
    u64 tail[] = {page_stride, token_stride, pages, n_head, n_head_kv, head_dim, n_head * head_dim};
    for (u32 i = 0; i < COUNT_OF(head); i++) put(&call, head[i]);
    put(&call, prefill ? state.out : scratch);
    if (prefill) put(&call, n_head * head_dim);
    for (u32 i = 0; i < COUNT_OF(tail); i++) put(&call, tail[i]);
    put(&call, 0x3db504f3); // 1 / sqrt(128)
    put(&call, 0);
    put(&call, 0);
    call.grid[0] = rows, call.grid[1] = n_head, call.grid[2] = prefill ? 1 : chunks;
    call.block = 256;
    double us = microseconds(&call, 3);
    if (prefill) {
        printf("flash_attention_paged %u rows up to %u positions: %.1f us, %.2f TFLOP/s\n", rows,
               context, us, 4e-6 * rows * (context - rows / 2) * n_head * head_dim / us);
    } else {
        double bytes = 2.0 * rows * context * (double)token_stride;
        struct bench_call merge = call_new(module, "flash_attention_merge");
        u64 all[] = {state.power, state.status,      scratch, at_positions, state.out, chunks,
                     head_dim,    n_head * head_dim, 0};
        for (u32 i = 0; i < COUNT_OF(all); i++) put(&merge, all[i]);
        merge.grid[0] = rows, merge.grid[1] = n_head, merge.grid[2] = 1;
        merge.block = 256;
        double merge_us = microseconds(&merge, 10);
        printf("flash_attention_paged_split %u sequences of %u: %.1f us (%.0f GB/s of the cache), "
               "merge %.1f us\n",
               rows, context, us, bytes / us * 1e-3, merge_us);
    }
    free(words);
    fflush(stdout);
}

static driver_handle load(const char *folder, const char *name) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s.ptx", folder, name);
    return driver_module(file_text(path));
}

int main(int argc, char **argv) {
    static const enum dtype quantised[] = {DTYPE_Q4_0, DTYPE_Q4_1, DTYPE_Q5_0, DTYPE_Q5_1,
                                           DTYPE_Q8_0, DTYPE_Q2_K, DTYPE_Q3_K, DTYPE_Q4_K,
                                           DTYPE_Q5_K, DTYPE_Q6_K};
    static const enum dtype floats[] = {DTYPE_F16, DTYPE_BF16, DTYPE_F32};
    struct driver driver;
    u32 power[1] = {1};
    if (argc < 2 || argc > 3) return 2;
    state.prefix = argc == 3 ? argv[2] : "";
    driver_open(&driver);
    printf("%s, driver %s\n", driver.card, driver.version);
    state.weights = driver_alloc(POOL_BYTES);
    state.activations = driver_alloc(ACTIVATION_BYTES);
    state.out = driver_alloc((size_t)128 << 20);
    state.power = driver_alloc(256);
    state.status = driver_alloc(256);
    state.events[0] = driver_event_new();
    state.events[1] = driver_event_new();
    driver_upload(state.power, power, sizeof power);
    fill(state.weights, POOL_BYTES, 0xbfffbfff, 0); // every half is finite
    fill(state.activations, ACTIVATION_BYTES, 0x3fff3fff, 0);
    fill(state.status, 8, 0, 0);
    driver_handle gemv = load(argv[1], "gemv"), gemm = load(argv[1], "gemm");
    driver_handle gemv_float = load(argv[1], "gemv_float"), attention = load(argv[1], "attention");
    for (u32 i = 0; i < COUNT_OF(quantised); i++) {
        bench_gemv(gemv, quantised[i], 4096, 14336, 1);
        bench_gemv(gemv, quantised[i], 14336, 4096, 1);
        bench_gemv(gemv, quantised[i], 4096, 114688, 1);
        bench_gemv(gemv, quantised[i], 4096, 14336, 4);
    }
    for (u32 i = 0; i < COUNT_OF(floats); i++) {
        bench_gemv(gemv_float, floats[i], 4096, 14336, 1);
        bench_gemv(gemv_float, floats[i], 14336, 4096, 1);
        bench_gemv(gemv_float, floats[i], 4096, 14336, 4);
    }
    for (u32 i = 0; i < COUNT_OF(quantised); i++) {
        bench_gemm(gemm, quantised[i], 4096, 14336, 8);
        bench_gemm(gemm, quantised[i], 4096, 14336, 64);
        bench_gemm(gemm, quantised[i], 4096, 14336, 2048);
    }
    bench_attention(attention, 1, 2048, false);
    bench_attention(attention, 8, 2048, false);
    bench_attention(attention, 32, 2048, false);
    bench_attention(attention, 512, 512, true);
    bench_attention(attention, 512, 2048, true);
    return 0;
}
