// SPDX-License-Identifier: Apache-2.0
// card_tensor MODULES check|bench: the kernels of the tensor profile on a card.
//
// check: at shapes of real layers, results against sums in f64 within the bound of docs/contract.md
// (section 7; the largest share that was used is printed), and the bytes of each row the same in
// batches of 64, 17, 5 and 1, by the kernel of many tokens and by that of eight. Exit code 0 when
// all hold. bench: times at 14336 x 4096, medians, weights of successive launches at different
// addresses so that the cache does not hold them.
#include "driver.h"
#include "ops/dtype.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define POOL_BYTES ((size_t)1 << 30)
#define X_BYTES ((size_t)64 << 20)
#define OUT_BYTES ((size_t)256 << 20)
#define RUNS 7
#define READ_CEILING 4.54e12
#define TOKENS 64

_Noreturn void assert_failed(const char *file, int line, const char *what) {
    fprintf(stderr, "%s:%d: %s\n", file, line, what);
    abort();
}

static struct {
    device_ptr weights, x, out, power, status;
    driver_handle module, events[2];
    u64 random;
} state;

static u32 random_word(void) {
    state.random = state.random * 6364136223846793005u + 1442695040888963407u;
    return (u32)(state.random >> 32);
}
static f64 random_unit(void) { return random_word() * 0x1p-32; }

static const enum dtype types[] = {DTYPE_F16,  DTYPE_BF16, DTYPE_Q4_0, DTYPE_Q4_1,
                                   DTYPE_Q5_0, DTYPE_Q5_1, DTYPE_Q8_0, DTYPE_Q2_K,
                                   DTYPE_Q3_K, DTYPE_Q4_K, DTYPE_Q5_K, DTYPE_Q6_K};

static bool is_half(enum dtype type) { return type == DTYPE_F16 || type == DTYPE_BF16; }

static driver_handle kernel_of(enum dtype type, bool small) {
    char name[64] = "gemm_tensor_";
    usize len = strlen(name);
    for (const char *c = dtype_name(type); *c != 0; c++) {
        name[len++] = (char)(*c >= 'A' && *c <= 'Z' ? *c + 32 : *c);
    }
    if (small) memcpy(name + len, "_8", 2);
    return driver_function(state.module, name);
}

struct shape {
    enum dtype type;
    u32 k, features, tokens;
    bool small;
    driver_handle kernel; // of type and small
};

static void launch(const struct shape *shape, device_ptr weight, device_ptr x, device_ptr out,
                   u32 output) {
    u32 row_bytes = (u32)dtype_row_bytes(shape->type, shape->k);
    u64 values[] = {state.power,
                    state.status,
                    weight,
                    x,
                    0,
                    out,
                    row_bytes,
                    shape->k,
                    shape->features,
                    shape->tokens,
                    shape->k,
                    shape->features,
                    output};
    void *params[COUNT_OF(values)];
    for (u32 i = 0; i < COUNT_OF(values); i++) params[i] = &values[i];
    u32 rows = shape->small ? 16 : 128, columns = shape->small           ? 8
                                                  : is_half(shape->type) ? 128
                                                                         : 64;
    u32 grid[3] = {(shape->features + rows - 1) / rows, (shape->tokens + columns - 1) / columns, 1};
    u32 block = shape->small && is_half(shape->type) ? 32 : 128;
    driver_launch(shape->kernel, grid, block, params);
}

// --- check ---

static void *need(usize bytes) {
    void *memory = malloc(bytes);
    if (memory == NULL) exit(2);
    return memory;
}

// Random blocks with scales near 1/64.
static void fill_weights(enum dtype type, u32 k, u32 features, u8 *to) {
    const struct dtype_info *info = dtype_lookup(type);
    i32 first = 0, second = -1;
    if (type == DTYPE_Q4_1 || type == DTYPE_Q5_1 || type == DTYPE_Q4_K || type == DTYPE_Q5_K) {
        second = 2;
    }
    if (type == DTYPE_Q2_K) first = 80, second = 82;
    if (type == DTYPE_Q3_K) first = 108;
    if (type == DTYPE_Q6_K) first = 208;
    usize bytes = dtype_row_bytes(type, k) * features;
    for (usize i = 0; i < bytes; i++) to[i] = (u8)(random_word() >> 8);
    for (usize at = 0; at < bytes; at += info->block_bytes) {
        f32 scale = (f32)((random_unit() - 0.5) / 32), other = (f32)((random_unit() - 0.5) / 32);
        if (type == DTYPE_F16) store_u16(to + at, f32_to_f16(scale));
        if (type == DTYPE_BF16) store_u16(to + at, (u16)(f32_bits(scale) >> 16));
        if (is_half(type)) continue;
        store_u16(to + at + first, f32_to_f16(scale));
        if (second >= 0) store_u16(to + at + second, f32_to_f16(other));
    }
}

// Weights of a row and magnitudes of what is added in them.
static void row_values(enum dtype type, const u8 *row, u32 k, f64 *value, f64 *magnitude) {
    const struct dtype_info *info = dtype_lookup(type);
    struct dtype_group group = {0};
    for (u32 i = 0; i < k; i++) {
        u32 e = i % DTYPE_GROUP;
        if (is_half(type)) {
            u16 bits = load_u16(row + 2 * (usize)i);
            value[i] = type == DTYPE_F16 ? f16_to_f32(bits) : bf16_to_f32(bits);
            magnitude[i] = fabs(value[i]);
            continue;
        }
        if (e == 0) {
            dtype_unpack_group(type, row + (usize)(i / info->block_elements) * info->block_bytes,
                               MIN(k - i, (u32)DTYPE_GROUP), &group);
        }
        bool by_16 = type == DTYPE_Q2_K || type == DTYPE_Q3_K || type == DTYPE_Q6_K;
        u32 part = e / (by_16 ? 16 : 32);
        f64 factor = group.d[0], minimum = 0;
        if (info->block_elements == 32) {
            factor = group.d[part];
            if (type == DTYPE_Q4_1 || type == DTYPE_Q5_1) minimum = group.m[part];
        } else {
            factor *= group.scale[part];
            bool has_min = type == DTYPE_Q2_K || type == DTYPE_Q4_K || type == DTYPE_Q5_K;
            if (has_min) minimum = -(f64)group.m[0] * group.min[part];
        }
        value[i] = factor * group.q[e] + minimum;
        magnitude[i] = fabs(factor * group.q[e]) + fabs(minimum);
    }
}

// Section 7 of the contract: what a sum may lose, as a share of the sum of magnitudes.
static f64 bound_share(enum dtype type, u32 k) {
    f64 eta = 18 * 0x1p-23, steps = 2, rounded = k / 32;
    if (type == DTYPE_F16) steps = (k + 15) / 16;
    if (type == DTYPE_BF16) steps = 2 * ((k + 15) / 16);
    bool once = type == DTYPE_Q4_0 || type == DTYPE_Q5_0 || type == DTYPE_Q8_0;
    if (!once) rounded *= type == DTYPE_Q2_K ? 4 : 2;
    if (is_half(type)) rounded = 0;
    f64 mma = steps * eta / (1 - steps * eta), gamma = rounded * 0x1p-24 / (1 - rounded * 0x1p-24);
    return mma + gamma + mma * gamma;
}

static u32 compare_real(const struct shape *shape, const u8 *weights, const u16 *x,
                        const f32 *out) {
    u32 k = shape->k, n_wrong = 0;
    usize row_bytes = dtype_row_bytes(shape->type, k);
    f64 *value = need(8 * (usize)k), *magnitude = need(8 * (usize)k), *wide = need(8 * (usize)k);
    f64 share = bound_share(shape->type, k), worst = 0;
    for (u32 r = 0; r < shape->features; r++) {
        row_values(shape->type, weights + r * row_bytes, k, value, magnitude);
        for (u32 t = r % 4; t < shape->tokens; t += 4) {
            f64 y = 0, sum = 0;
            for (u32 i = 0; i < k; i++) wide[i] = f16_to_f32(x[(usize)t * k + i]);
            for (u32 i = 0; i < k; i++) {
                y += value[i] * wide[i];
                sum += magnitude[i] * fabs(wide[i]);
            }
            f64 loss = fabs(out[(usize)t * shape->features + r] - y);
            if (!(loss <= share * sum)) n_wrong++;
            if (loss > worst * sum) worst = loss / sum;
        }
    }
    printf("  %s k %5u: largest |error| / sum |w x| = %.3g (bound %.3g): %u outside\n",
           dtype_name(shape->type), k, worst, share, n_wrong);
    free(value);
    free(magnitude);
    free(wide);
    return n_wrong;
}

static u32 check(enum dtype type, u32 k, u32 features) {
    usize row_bytes = dtype_row_bytes(type, k), out_bytes = 4 * (usize)features * TOKENS;
    u8 *weights = need(row_bytes * features);
    u16 *x = need(2 * (usize)k * TOKENS);
    f32 *all = need(out_bytes), *part = need(out_bytes);
    fill_weights(type, k, features, weights);
    for (usize i = 0; i < (usize)k * TOKENS; i++) x[i] = f32_to_f16((f32)(random_unit() * 8 - 4));
    driver_upload(state.weights, weights, row_bytes * features);
    driver_upload(state.x, x, 2 * (usize)k * TOKENS);
    driver_handle kernels[2] = {kernel_of(type, false), kernel_of(type, true)};
    struct shape shape = {type, k, features, TOKENS, false, kernels[0]};
    memset(all, 0xff, out_bytes);
    driver_upload(state.out, all, out_bytes);
    launch(&shape, state.weights, state.x, state.out, 2);
    driver_wait();
    driver_download(all, state.out, out_bytes);
    u32 n_wrong = compare_real(&shape, weights, x, all), n_other = 0;
    static const u32 batches[] = {64, 17, 5, 1};
    for (u32 i = 0; i < 2 * COUNT_OF(batches); i++) {
        for (u32 first = 0; first + batches[i / 2] <= TOKENS; first += i < 2 ? 1 : 11) {
            shape.tokens = batches[i / 2];
            shape.small = i % 2 == 1;
            shape.kernel = kernels[i % 2];
            usize bytes = 4 * (usize)features * shape.tokens;
            memset(part, 0xff, bytes);
            driver_upload(state.out, part, bytes);
            launch(&shape, state.weights, state.x + 2 * (u64)first * k, state.out, 2);
            driver_wait();
            driver_download(part, state.out, bytes);
            n_other += memcmp(part, all + (usize)first * features, bytes) != 0;
        }
    }
    if (n_other > 0) printf("  %s k %5u: %u batches differ\n", dtype_name(type), k, n_other);
    free(weights);
    free(x);
    free(all);
    free(part);
    fflush(stdout);
    return n_wrong + n_other;
}

// --- bench ---

static void fill(device_ptr to, usize bytes, u32 mask) {
    usize chunk = (usize)16 << 20;
    u32 *words = need(chunk);
    for (usize i = 0; i < chunk / 4; i++) words[i] = random_word() & mask;
    for (usize at = 0; at < bytes; at += chunk)
        driver_upload(to + at, words, MIN(chunk, bytes - at));
    free(words);
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void bench(const struct shape *shape) {
    usize bytes = dtype_row_bytes(shape->type, shape->k) * shape->features;
    u32 copies = (u32)(POOL_BYTES / bytes), next = 0, launches = shape->tokens > 256 ? 4 : 20;
    double times[RUNS];
    for (u32 run = 0; run < RUNS + 1; run++) { // the first is not counted
        driver_event_record(state.events[0]);
        for (u32 i = 0; i < launches; i++) {
            u64 at = next++ % copies * bytes / 256 * 256;
            launch(shape, state.weights + at, state.x, state.out, 0);
        }
        driver_event_record(state.events[1]);
        double ms = driver_event_elapsed(state.events[0], state.events[1]);
        if (run > 0) times[run - 1] = 1e3 * ms / launches;
    }
    qsort(times, RUNS, sizeof times[0], by_value);
    double us = times[RUNS / 2], rate = (double)bytes / us * 1e6;
    printf("%-5s%-2s %5u x %5u %4u tokens: %8.1f us, %6.0f GB/s (%3.0f %%), %6.1f TFLOP/s\n",
           dtype_name(shape->type), shape->small ? "_8" : "", shape->features, shape->k,
           shape->tokens, us, rate * 1e-9, 100 * rate / READ_CEILING,
           2e-6 * shape->k * shape->features * shape->tokens / us);
    fflush(stdout);
}

static void bench_all(void) {
    fill(state.weights, POOL_BYTES, 0xbfffbfff); // every half is finite
    fill(state.x, X_BYTES, 0x3fff3fff);
    for (u32 i = 0; i < COUNT_OF(types); i++) {
        static const struct {
            u32 k, features, tokens;
            bool small;
        } shapes[] = {
            {4096, 14336, 1, true},  {4096, 14336, 8, true},     {14336, 4096, 1, true},
            {4096, 14336, 16, true}, {4096, 14336, 8, false},    {4096, 14336, 64, false},
            {4096, 14336, 64, true}, {4096, 14336, 2048, false}, {14336, 4096, 2048, false}};
        for (u32 n = 0; n < COUNT_OF(shapes); n++) {
            struct shape shape = {types[i],           shapes[n].k,
                                  shapes[n].features, shapes[n].tokens,
                                  shapes[n].small,    kernel_of(types[i], shapes[n].small)};
            bench(&shape);
        }
    }
}

int main(int argc, char **argv) {
    struct driver driver;
    u32 power[1] = {1}, zero[2] = {0}, n_wrong = 0;
    char path[512];
    if (argc != 3) {
        fprintf(stderr, "usage: card_tensor MODULES check|bench\n");
        return 2;
    }
    driver_open(&driver);
    printf("%s, driver %s\n", driver.card, driver.version);
    snprintf(path, sizeof path, "%s/gemm_tensor.ptx", argv[1]);
    state.module = driver_module(file_text(path));
    state.random = 0x9e3779b97f4a7c15;
    state.weights = driver_alloc(POOL_BYTES);
    state.x = driver_alloc(X_BYTES);
    state.out = driver_alloc(OUT_BYTES);
    state.power = driver_alloc(256);
    state.status = driver_alloc(256);
    state.events[0] = driver_event_new();
    state.events[1] = driver_event_new();
    driver_upload(state.power, power, sizeof power);
    driver_upload(state.status, zero, sizeof zero);
    if (strcmp(argv[2], "bench") == 0) {
        bench_all();
        return 0;
    }
    for (u32 i = 0; i < COUNT_OF(types); i++) {
        n_wrong += check(types[i], 4096, 300);
        n_wrong += check(types[i], 14336, 140);
        if (dtype_lookup(types[i])->block_elements < 256) n_wrong += check(types[i], 576, 300);
    }
    printf("card_tensor: %u wrong\n", n_wrong);
    return n_wrong == 0 ? 0 : 1;
}
