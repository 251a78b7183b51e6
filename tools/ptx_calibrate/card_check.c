// SPDX-License-Identifier: Apache-2.0
// card_check FOLDER: every kernel of src/cuda/ptx/ on the card against src/ops/reference.c, by
// memcmp. FOLDER holds the preprocessed modules (elementwise.ptx, ...). Prints a line per kernel
// and exits 0 when nothing differs.
//
// All buffers of a call lie in one image with guards of 0xff bytes around them and outputs full of
// 0xff; the reference works on a copy of the image, the kernel on one on the device, and the whole
// images are compared: a wrong bit, a missing or a stray store is seen alike. Each call is made
// three times: with the engine inactive (no byte may change), active, and with a planted NaN where
// the kernel must report one.
#include "driver.h"
#include "freestanding/math.h"
#include "ops/op.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define IMAGE_BYTES ((size_t)96 << 20)
#define GUARD 256
#define POWER_ACTIVE 1
#define PARAMS_MAX 16

static struct {
    u8 *start, *expected, *found; // IMAGE_BYTES each
    device_ptr device;
    usize used;
    u64 random;
    struct op_table reference;
    void *scratch;
    u32 n_calls, n_wrong;
} state;

_Noreturn void assert_failed(const char *file, int line, const char *what) {
    fprintf(stderr, "%s:%d: %s\n", file, line, what);
    abort();
}

// --- random values ---

static u64 random_u64(void) { // SplitMix64
    u64 z = state.random += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

static u32 below(u32 limit) { return (u32)(random_u64() % limit); }

static f16 random_half(void) {
    static const f16 special[] = {0x0000, 0x8000, 0x0001, 0x8001, 0x03ff, 0x83ff,
                                  0x0400, 0x3c00, 0xbc00, 0x7bff, 0xfbff, 0x5c00};
    if (below(16) == 0) return special[below(COUNT_OF(special))];
    return (f16)(0x2000 + below(0x2800) + (below(2) << 15)); // 2^-7 to 8
}

static f16 random_small_half(void) { return (f16)(0x2000 + below(0x1c00) + (below(2) << 15)); }

static f32 random_f32(void) {
    return f16_to_f32(random_half()) * (1.0f + (f32)below(1000) * 1e-6f);
}

// --- the image ---

// `bytes` at a multiple of 256, between guards; its offset in every copy of the image.
static usize take(usize bytes) {
    usize at = state.used + GUARD;
    state.used = round_up(at + bytes + GUARD, 256);
    assert(state.used <= IMAGE_BYTES);
    memset(state.start + at, 0xff, bytes);
    return at;
}

static usize take_zero(usize bytes) {
    usize at = take(bytes);
    memset(state.start + at, 0, bytes);
    return at;
}

static f16 *halves(usize at) { return (f16 *)(state.start + at); }
static f32 *floats(usize at) { return (f32 *)(state.start + at); }
static u32 *words(usize at) { return (u32 *)(state.start + at); }

// One row in `stride` elements: the rest stays poison.
static usize take_halves(u32 rows, u32 n, u32 stride, f16 (*draw)(void)) {
    usize at = take((usize)rows * stride * 2);
    for (u32 r = 0; r < rows; r++) {
        for (u32 i = 0; i < n; i++) halves(at)[(usize)r * stride + i] = draw();
    }
    return at;
}

static usize take_floats(u32 rows, u32 n, u32 stride) {
    usize at = take((usize)rows * stride * 4);
    for (u32 r = 0; r < rows; r++) {
        for (u32 i = 0; i < n; i++) floats(at)[(usize)r * stride + i] = random_f32();
    }
    return at;
}

// --- a call ---

struct call {
    const char *kernel;
    driver_handle function;
    u32 grid[3], block;
    u64 values[PARAMS_MAX]; // parameter values, in the low bytes
    u32 n_params;
    usize power, status;
    bool wants_fault;
};

static struct call call_new(driver_handle module, const char *kernel) {
    struct call call = {.kernel = kernel, .function = driver_function(module, kernel)};
    memset(state.start, 0xff, state.used); // of the call before
    state.used = 0;
    call.power = take_zero(4);
    call.status = take_zero(8);
    call.values[0] = state.device + call.power;
    call.values[1] = state.device + call.status;
    call.n_params = 2;
    return call;
}

static void put_value(struct call *call, u64 value) {
    assert(call->n_params < PARAMS_MAX);
    call->values[call->n_params++] = value;
}

static void put_address(struct call *call, usize at) { put_value(call, state.device + at); }

static void launch(struct call *call) {
    void *params[PARAMS_MAX];
    for (u32 i = 0; i < call->n_params; i++) params[i] = &call->values[i];
    driver_launch(call->function, call->grid, call->block, params);
    driver_wait();
    driver_download(state.found, state.device, state.used);
}

static void report(const struct call *call, const char *what, usize at) {
    state.n_wrong++;
    printf("  %s: %s, byte %zu of the image: %02x, expected %02x\n", call->kernel, what, at,
           state.found[at], state.expected[at]);
}

static bool same(const struct call *call, const u8 *expected, const char *what) {
    if (memcmp(state.found, expected, state.used) == 0) return true;
    usize at = 0;
    while (state.found[at] == expected[at]) at++;
    report(call, what, at);
    return false;
}

// `state.expected` is complete but for the status words.
static void check_call(struct call *call) {
    state.n_calls++;
    store_u32(state.start + call->power, 0);
    driver_upload(state.device, state.start, state.used);
    launch(call);
    if (!same(call, state.start, "a store while inactive")) return;
    store_u32(state.start + call->power, POWER_ACTIVE);
    store_u32(state.expected + call->power, POWER_ACTIVE);
    store_u32(state.expected + call->status, call->wants_fault ? 1 : 0);
    store_u32(state.expected + call->status + 4, call->grid[0] * call->grid[1] * call->grid[2]);
    driver_upload(state.device, state.start, state.used);
    launch(call);
    if (call->wants_fault) { // outputs are of no account, the report is
        if (load_u32(state.found + call->status) != 1) report(call, "no fault", call->status);
        return;
    }
    same(call, state.expected, "a difference");
}

static void expect_copy(void) { memcpy(state.expected, state.start, state.used); }

static u32 ceil_div(u32 a, u32 b) { return (a + b - 1) / b; }

static u32 stride_for(u32 n, u32 element) { return (u32)round_up((u64)n * element, 64) / element; }

static const u32 row_counts[] = {1, 3, 33};

// --- the operators ---

static void check_quantize(driver_handle module) {
    static const u32 sizes[] = {32, 64, 224, 256, 288, 576, 1024, 1504, 4096};
    for (u32 s = 0; s < COUNT_OF(sizes); s++) {
        for (u32 r = 0; r < COUNT_OF(row_counts) + 1; r++) {
            bool fault = r == COUNT_OF(row_counts);
            u32 n = sizes[s], rows = fault ? 2 : row_counts[r], stride = stride_for(n, 2);
            u32 groups = ceil_div(n, 256), sum_stride = n / 16 + 3;
            struct call call = call_new(module, "quantize_q16");
            usize x = take_halves(rows, n, stride, random_half);
            if (rows > 1) memset(halves(x) + stride, 0, 2 * (usize)MIN(n, 256)); // a group of zeros
            if (fault) halves(x)[stride + n - 1] = below(2) == 0 ? 0x7c00 : 0xfe00;
            usize a = take((usize)rows * stride * 2), scale = take((usize)rows * (groups + 1) * 4);
            usize sum16 = take((usize)rows * sum_stride * 4);
            usize sum32 = take((usize)rows * sum_stride * 4);
            expect_copy();
            u8 *image = state.expected;
            struct quantize_args args = {.x = (f16 *)(image + x),
                                         .x_stride = stride,
                                         .n = n,
                                         .out = {(i16 *)(image + a), (f32 *)(image + scale),
                                                 (i32 *)(image + sum16), (i32 *)(image + sum32),
                                                 stride, groups + 1, sum_stride}};
            u32 failed = state.reference.quantize_q16(&args, 0, rows, state.scratch);
            assert(failed == fault);
            usize buffers[] = {x, a, scale, sum16, sum32};
            u32 values[] = {n, stride, stride, groups + 1, sum_stride};
            for (u32 i = 0; i < 5; i++) put_address(&call, buffers[i]);
            for (u32 i = 0; i < 5; i++) put_value(&call, values[i]);
            call.grid[0] = rows, call.grid[1] = ceil_div(groups, 4), call.grid[2] = 1;
            call.block = 128;
            call.wants_fault = fault;
            check_call(&call);
        }
    }
}

struct norm_form {
    const char *kernel;
    bool x_is_f16, add, in_place;
};

static void check_norm_shape(driver_handle module, struct norm_form form, u32 tokens, u32 heads,
                             u32 n, u32 block, bool fault) {
    u32 x_size = form.x_is_f16 ? 2 : 4, y_size = form.add ? 4 : 2;
    u32 x_stride = stride_for(heads * n, x_size), y_stride = stride_for(heads * n, y_size);
    struct call call = call_new(module, form.kernel);
    usize x = form.x_is_f16 ? take_halves(tokens, heads * n, x_stride, random_small_half)
                            : take_floats(tokens, heads * n, x_stride);
    usize weight = take_floats(1, n, n), y = x;
    if (form.add)
        y = take_floats(tokens, heads * n, y_stride);
    else if (!form.in_place)
        y = take((usize)tokens * y_stride * 2);
    usize last = (usize)(tokens - 1) * x_stride + heads * n - 1;
    if (fault && form.x_is_f16) halves(x)[last] = 0x7c00;
    if (fault && !form.x_is_f16) words(x)[last] = 0x7f000000; // finite, its square is not
    expect_copy();
    u32 failed = 0;
    for (u32 t = 0; t < tokens; t++) {
        u8 *x_row = state.expected + x + (usize)t * x_stride * x_size;
        u8 *y_row = state.expected + y + (usize)t * y_stride * y_size;
        struct rmsnorm_args args = {.x = x_row,
                                    .x_is_f16 = form.x_is_f16,
                                    .x_stride = n,
                                    .n = n,
                                    .weight = state.expected + weight,
                                    .eps = 1e-5f,
                                    .y = form.add ? NULL : (f16 *)y_row,
                                    .y_stride = n,
                                    .residual = (f32 *)y_row,
                                    .residual_stride = n};
        failed |= state.reference.rmsnorm(&args, 0, heads, state.scratch);
    }
    assert(failed == fault);
    put_address(&call, x);
    put_address(&call, weight);
    put_address(&call, y);
    put_value(&call, n);
    put_value(&call, x_stride);
    put_value(&call, form.in_place ? x_stride : y_stride);
    put_value(&call, f32_bits(1e-5f));
    call.grid[0] = tokens, call.grid[1] = heads, call.grid[2] = 1;
    call.block = block;
    call.wants_fault = fault;
    check_call(&call);
}

static void check_norm(driver_handle module) {
    static const struct norm_form forms[] = {{"rmsnorm_fused", false, false, false},
                                             {"rmsnorm_fused_f16", true, false, true},
                                             {"rmsnorm_fused_f16", true, false, false},
                                             {"rmsnorm_fused_add", false, true, false},
                                             {"rmsnorm_fused_f16_add", true, true, false}};
    static const u32 sizes[] = {1,   2,    31,   32,   33,   64,   100,  128,
                                576, 1000, 1024, 1025, 4096, 8191, 32768};
    static const u32 blocks[] = {32, 64, 256, 1024};
    for (u32 f = 0; f < COUNT_OF(forms); f++) {
        for (u32 s = 0; s < COUNT_OF(sizes); s++) {
            for (u32 b = 0; b < COUNT_OF(blocks); b++) {
                check_norm_shape(module, forms[f], 3, 1, sizes[s], blocks[b], false);
            }
            if (sizes[s] <= 256) check_norm_shape(module, forms[f], 3, 5, sizes[s], 32, false);
            check_norm_shape(module, forms[f], 2, 1, sizes[s], 128, true);
        }
    }
}

static void check_rope_shape(driver_handle module, bool neox, u32 tokens, u32 n_head, u32 head_dim,
                             u32 rope_dim, bool fault) {
    u32 stride = stride_for(n_head * head_dim, 2), n_positions = 50, n_pairs = rope_dim / 2;
    struct call call = call_new(module, neox ? "rope_fused_neox" : "rope_fused");
    usize x = take_halves(tokens, n_head * head_dim, stride, random_small_half);
    usize positions = take((usize)tokens * 4), table = take((usize)n_positions * n_pairs * 8);
    for (u32 t = 0; t < tokens; t++) words(positions)[t] = below(n_positions);
    for (u32 i = 0; i < n_positions * n_pairs; i++) {
        f64 angle = (f64)below(1000000) * 1e-3;
        floats(table)[2 * i] = (f32)math_cos(angle);
        floats(table)[2 * i + 1] = (f32)math_sin(angle);
    }
    if (fault) halves(x)[(usize)(tokens - 1) * stride + n_head * head_dim - 1] = 0xfc00;
    expect_copy();
    struct rope_args args = {.x = (f16 *)(state.expected + x),
                             .x_stride = stride,
                             .n_head = n_head,
                             .head_dim = head_dim,
                             .rope_dim = rope_dim,
                             .neox = neox,
                             .positions = words(positions),
                             .table = floats(table)};
    u32 failed = state.reference.rope(&args, 0, tokens, state.scratch);
    assert(failed == fault);
    put_address(&call, x);
    put_address(&call, positions);
    put_address(&call, table);
    u32 values[] = {stride, n_head, head_dim, rope_dim};
    for (u32 i = 0; i < 4; i++) put_value(&call, values[i]);
    call.grid[0] = tokens, call.grid[1] = ceil_div(n_head, 4), call.grid[2] = 1;
    call.block = 128;
    call.wants_fault = fault;
    check_call(&call);
}

static void check_rope(driver_handle module) {
    static const u32 shapes[][3] = {{1, 64, 64},    {3, 64, 64}, {9, 64, 32},   {4, 128, 128},
                                    {5, 80, 80},    {7, 96, 64}, {2, 256, 256}, {5, 33, 2},
                                    {32, 128, 128}, {1, 2, 2}};
    for (u32 s = 0; s < COUNT_OF(shapes); s++) {
        for (u32 neox = 0; neox < 2; neox++) {
            for (u32 r = 0; r < COUNT_OF(row_counts); r++) {
                check_rope_shape(module, neox != 0, row_counts[r], shapes[s][0], shapes[s][1],
                                 shapes[s][2], false);
            }
            check_rope_shape(module, neox != 0, 2, shapes[s][0], shapes[s][1], shapes[s][2], true);
        }
    }
}

// The gate of element i: all halves in turn, so that every finite gate meets several partners.
static void check_act(driver_handle module, const char *kernel, act_mul_fn *reference) {
    static const u32 sizes[] = {1, 2, 31, 33, 511, 512, 513, 1536, 65536};
    for (u32 s = 0; s < COUNT_OF(sizes); s++) {
        for (u32 r = 0; r < COUNT_OF(row_counts); r++) {
            for (u32 in_place = 0; in_place < 2; in_place++) {
                u32 n = sizes[s], rows = row_counts[r], stride = stride_for(n, 2);
                struct call call = call_new(module, kernel);
                usize gate = take_halves(rows, n, stride, random_half);
                usize up = take_halves(rows, n, stride, random_small_half);
                usize out = in_place ? gate : take((usize)rows * stride * 2);
                for (u32 i = 0; n == 65536 && i < rows * n; i++) {
                    if ((i & 0x7fff) < 0x7c00) halves(gate)[i] = (f16)i;
                }
                expect_copy();
                struct act_mul_args args = {.gate = (f16 *)(state.expected + gate),
                                            .up = (f16 *)(state.expected + up),
                                            .gate_stride = stride,
                                            .up_stride = stride,
                                            .n = n,
                                            .out = (f16 *)(state.expected + out),
                                            .out_stride = stride};
                reference(&args, 0, rows, state.scratch);
                put_address(&call, gate);
                put_address(&call, up);
                put_address(&call, out);
                put_value(&call, n);
                for (u32 i = 0; i < 3; i++) put_value(&call, stride);
                call.grid[0] = rows, call.grid[1] = ceil_div(n, 512), call.grid[2] = 1;
                call.block = 256;
                check_call(&call);
            }
        }
    }
}

static void check_add_and_finite(driver_handle module) {
    static const u32 sizes[] = {1, 31, 255, 256, 257, 1023, 1024, 1025, 4096, 49153};
    for (u32 s = 0; s < COUNT_OF(sizes); s++) {
        for (u32 r = 0; r < COUNT_OF(row_counts); r++) {
            for (u32 which = 0; which < 3; which++) { // add, finite, finite with a NaN
                u32 n = sizes[s], rows = row_counts[r], stride = stride_for(n, 4);
                struct call call = call_new(module, which == 0 ? "add" : "finite");
                usize x = take_floats(rows, n, stride);
                usize residual = which == 0 ? take_floats(rows, n, stride) : 0;
                if (which == 2) words(x)[(usize)(rows - 1) * stride + below(n)] = 0xff800000;
                expect_copy();
                if (which == 0) {
                    struct add_args args = {.residual = (f32 *)(state.expected + residual),
                                            .x = floats(x),
                                            .residual_stride = stride,
                                            .x_stride = stride,
                                            .n = n};
                    state.reference.add(&args, 0, rows, state.scratch);
                    put_address(&call, residual);
                }
                put_address(&call, x);
                put_value(&call, n);
                put_value(&call, stride);
                if (which == 0) put_value(&call, stride);
                call.grid[0] = rows, call.grid[1] = ceil_div(n, 1024), call.grid[2] = 1;
                call.block = 256;
                call.wants_fault = which == 2;
                check_call(&call);
            }
        }
    }
}

// Random bytes with finite scales.
static void fill_table(enum dtype type, u8 *table, usize bytes) {
    const struct dtype_info *info = dtype_lookup(type);
    for (usize i = 0; i < bytes; i++) table[i] = (u8)random_u64();
    for (usize i = 0; i < bytes; i += info->block_bytes) {
        u8 *block = table + i;
        u32 at = type == DTYPE_Q2_K ? 80 : type == DTYPE_Q3_K ? 108 : type == DTYPE_Q6_K ? 208 : 0;
        bool two = type == DTYPE_Q4_1 || type == DTYPE_Q5_1 || type == DTYPE_Q2_K ||
                   type == DTYPE_Q4_K || type == DTYPE_Q5_K;
        if (type == DTYPE_F32)
            store_f32(block, random_f32());
        else if (type == DTYPE_BF16)
            store_u16(block, (u16)(f32_bits(random_f32()) >> 16));
        else
            store_u16(block + at, random_half());
        if (two) store_u16(block + at + 2, random_half());
    }
}

static void check_embed(driver_handle module) {
    static const f32 scales[] = {1.0f, 24.0f, 0.37f};
    for (u32 type = 0; type < DTYPE_LIMIT; type++) {
        const struct dtype_info *info = dtype_lookup(type);
        if (info == NULL) continue;
        char kernel[32] = "embed_";
        for (u32 i = 0; info->name[i] != 0; i++) {
            kernel[6 + i] = (char)(info->name[i] >= 'A' && info->name[i] <= 'Z' ? info->name[i] + 32
                                                                                : info->name[i]);
            kernel[7 + i] = 0;
        }
        u32 unit = info->block_elements;
        u32 sizes[] = {unit, 3 * unit, unit == 256 ? 1024 : 288, unit == 256 ? 2048 : 1504};
        for (u32 s = 0; s < COUNT_OF(sizes); s++) {
            u32 n = sizes[s], tokens = row_counts[s % 3], n_vocab = 37, stride = stride_for(n, 4);
            u64 row_bytes = dtype_row_bytes(type, n);
            f32 scale = scales[s % 3];
            struct call call = call_new(module, kernel);
            usize table = take(n_vocab * row_bytes), ids = take((usize)tokens * 4);
            usize residual = take((usize)tokens * stride * 4);
            fill_table(type, state.start + table, n_vocab * row_bytes);
            for (u32 t = 0; t < tokens; t++) words(ids)[t] = below(n_vocab);
            expect_copy();
            struct embed_args args = {.tokens = words(ids),
                                      .table = state.start + table,
                                      .row_bytes = row_bytes,
                                      .type = type,
                                      .n_embd = n,
                                      .scale = scale,
                                      .residual = (f32 *)(state.expected + residual),
                                      .residual_stride = stride};
            state.reference.embed(&args, 0, tokens, state.scratch);
            put_address(&call, ids);
            put_address(&call, table);
            put_address(&call, residual);
            put_value(&call, row_bytes);
            put_value(&call, n);
            put_value(&call, stride);
            put_value(&call, f32_bits(scale));
            call.grid[0] = tokens, call.grid[1] = ceil_div(n, 256), call.grid[2] = 1;
            call.block = 256;
            check_call(&call);
        }
    }
}

// Every input of the exponential, against the number of docs/contract.md.
static void check_exp(driver_handle module) {
    static const u64 expected = 0x75fe5098479bf34c;
    driver_handle function = driver_function(module, "exp_sum");
    u64 sum = 0;
    u32 grid[3] = {4096, 1, 1};
    void *params[1] = {&state.device};
    driver_upload(state.device, &sum, sizeof sum);
    driver_launch(function, grid, 256, params);
    driver_wait();
    driver_download(&sum, state.device, sizeof sum);
    state.n_calls++;
    state.n_wrong += sum != expected;
    printf("exp of all 2^32 inputs   %016llx, expected %016llx\n", sum, expected);
}

static driver_handle load(const char *folder, const char *name) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s.ptx", folder, name);
    return driver_module(file_text(path));
}

static void section(const char *name) {
    static u32 calls_before, wrong_before;
    printf("%-24s %5u calls, %u wrong\n", name, state.n_calls - calls_before,
           state.n_wrong - wrong_before);
    calls_before = state.n_calls;
    wrong_before = state.n_wrong;
}

int main(int argc, char **argv) {
    struct driver driver;
    if (argc != 2) {
        fprintf(stderr, "usage: card_check FOLDER\n");
        return 2;
    }
    driver_open(&driver);
    printf("%s, driver %s, compute capability %d, seed 8\n", driver.card, driver.version,
           driver.capability);
    state.random = 8;
    state.start = malloc(IMAGE_BYTES);
    state.expected = malloc(IMAGE_BYTES);
    state.found = malloc(IMAGE_BYTES);
    state.scratch = malloc(OP_SCRATCH_BYTES);
    if (state.start == NULL || state.expected == NULL || state.found == NULL ||
        state.scratch == NULL) {
        fprintf(stderr, "no memory\n");
        return 2;
    }
    memset(state.start, 0xff, IMAGE_BYTES);
    state.device = driver_alloc(IMAGE_BYTES);
    op_fill_reference(&state.reference);
    driver_handle elementwise = load(argv[1], "elementwise");
    check_add_and_finite(elementwise);
    section("add, finite");
    check_act(elementwise, "silu_fused", state.reference.silu_mul);
    section("silu_fused");
    check_act(elementwise, "gelu_tanh_fused", state.reference.gelu_tanh_mul);
    section("gelu_tanh_fused");
    check_quantize(load(argv[1], "quantize"));
    section("quantize_q16");
    driver_handle norm_rope = load(argv[1], "norm_rope");
    check_norm(norm_rope);
    section("rmsnorm_fused");
    check_rope(norm_rope);
    section("rope_fused");
    check_embed(load(argv[1], "embed"));
    section("embed");
    check_exp(load(argv[1], "exp_sum"));
    printf("card_check: %u calls, %u wrong\n", state.n_calls, state.n_wrong);
    return state.n_wrong == 0 ? 0 : 1;
}
