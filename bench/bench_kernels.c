// SPDX-License-Identifier: Apache-2.0
// Times the operators of the table on one thread, at the shapes of SmolLM2-135M (n_embd 576, n_ff
// 1536, 9 query and 3 kv heads of 64, vocabulary 49,152) and of bigger models.
//
//   bench_kernels [scalar|avx2|avx512] [PART]    (the best level of the machine is the default)
//                                                only lines that contain PART, e.g. "Q4_1"
//
// Every line is the best and the median of its runs. Products with one token are given in GB/s of
// weight bytes, with several in GMAC/s (10^9 multiply-adds); the rest in microseconds of a call.
// Shapes of 576 fit L2 and are repeated in place; those of 128 MiB come from memory every time.
// tests/test_kernels.c makes the same calls and checks their results.
#include "../tests/random_weights.h"
#include "cpu/cpu_features.h"
#include "cpu/kernels.h"
#include "freestanding/mem.h"
#include "freestanding/text.h"
#include "ops/op.h"
#include "platform/platform.h"

#define RUNS_MAX 400
#define RUNS_MIN 5
#define LINE_NS 150000000ull // of a line
#define N_POSITIONS 8448u
#define TOKENS_MAX 512u
#define K_MAX 4096u

static struct {
    struct op_table table;
    const char *part;
    u64 random;
    u64 sink; // of what must not be optimised away
    void *scratch;
} bench;

static u64 next_random(void) {
    u64 z = bench.random += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

static void *take(usize bytes) {
    void *memory = platform_memory_map(bytes);
    assert(memory != NULL);
    return memory;
}

static void print(const struct text *line) {
    if (platform_write(PLATFORM_STDOUT, line->data, line->len, NULL) != SOV_OK) platform_exit(1);
}

static bool contains(const char *text, const char *part) {
    struct str t = str_from_z(text), p = str_from_z(part);
    for (usize i = 0; i + p.len <= t.len; i++) {
        if (memcmp(t.data + i, p.data, p.len) == 0) return true;
    }
    return p.len == 0;
}

// --- timing ---

typedef void timed_call(const void *context);

struct timing {
    f64 best_ns, median_ns;
    u32 n_runs;
};

static struct timing time_call(timed_call *call, const void *context) {
    static u64 runs[RUNS_MAX]; // ascending
    u32 n = 0;
    u64 start = platform_monotonic_ns();
    call(context); // warms caches and branch predictors
    while (n < RUNS_MAX && (n < RUNS_MIN || platform_monotonic_ns() - start < LINE_NS)) {
        u64 before = platform_monotonic_ns();
        call(context);
        u64 ns = platform_monotonic_ns() - before;
        u32 at = n++;
        for (; at > 0 && runs[at - 1] > ns; at--) runs[at] = runs[at - 1];
        runs[at] = ns;
    }
    u32 middle = n / 2;
    return (struct timing){(f64)runs[0], (f64)runs[middle], n};
}

// `work` is what a call does, in units of 10^9 (rates) or 0 (time).
static void report(const char *name, const char *unit, f64 work, timed_call *call,
                   const void *context) {
    char memory[160];
    struct text line = TEXT_OVER_ARRAY(memory);
    if (!contains(name, bench.part)) return;
    struct timing t = time_call(call, context);
    f64 best = work == 0.0 ? t.best_ns * 1e-3 : work / (t.best_ns * 1e-9);
    f64 median = work == 0.0 ? t.median_ns * 1e-3 : work / (t.median_ns * 1e-9);
    text_format(&line, "%-46s best %9.2f  median %9.2f  %s (%u runs)\n", name, best, median, unit,
                t.n_runs);
    print(&line);
}

// --- gemm ---

struct gemm_call {
    struct gemm_args args;
    u32 n_rows;
};

static void run_gemm(const void *context) {
    const struct gemm_call *call = context;
    u32 failed = bench.table.gemm[call->args.type](&call->args, 0, call->n_rows, bench.scratch);
    assert(failed == 0);
}

static f16 random_scale(void) { return (f16)(0x1400 + next_random() % 0x800); } // 2^-10 to 2^-8
static f32 random_single(void) { return f32_from_bits(0x3c000000 + (u32)(next_random() >> 40)); }

static void fill_weights(enum dtype type, u8 *weight, u64 bytes) {
    static const struct weight_source source = {
        .bits = next_random, .scale = random_scale, .half = random_scale, .single = random_single};
    weights_fill(type, weight, bytes, &source);
}

// f16 activations of TOKENS_MAX rows of K_MAX, and their q16 form with the strides of rows of k.
static f16 *activations;
static struct q16 quantised;

static void make_activations(void) {
    usize n = (usize)TOKENS_MAX * K_MAX;
    activations = take(n * 2);
    for (usize i = 0; i < n; i++) {
        u64 random = next_random();
        activations[i] = (f16)(0x2c00 + random % 0x1400 + (random >> 32 & 1) * 0x8000);
    }
    quantised.a = take(n * 2);
    quantised.scale = take((usize)TOKENS_MAX * 16 * 4);
    quantised.sum16 = take(n / 16 * 4);
    quantised.sum32 = take(n / 16 * 4);
    quantised.a_stride = K_MAX;
    quantised.scale_stride = 16;
    quantised.sum_stride = K_MAX / 16;
    struct quantize_args args = {.x = activations, .x_stride = K_MAX, .n = K_MAX, .out = quantised};
    u32 failed = bench.table.quantize_q16(&args, 0, TOKENS_MAX, bench.scratch);
    assert(failed == 0);
}

#define WEIGHT_BYTES_MAX (160ull << 20)
#define FILLED_ROWS 256u

// Weights of one shape at a time; the first rows are random, the others repeat them, so that
// filling takes less time than measuring.
static struct {
    u8 *data;
    enum dtype type;
    u32 n_rows, k;
} weights;

static void make_weights(enum dtype type, u32 n_rows, u32 k) {
    if (weights.type == type && weights.n_rows == n_rows && weights.k == k) return;
    weights.type = type;
    weights.n_rows = n_rows;
    weights.k = k;
    u64 row_bytes = dtype_row_bytes(type, k), part = row_bytes * MIN(FILLED_ROWS, n_rows);
    assert(row_bytes * n_rows <= WEIGHT_BYTES_MAX);
    fill_weights(type, weights.data, part);
    for (u64 at = part; at < row_bytes * n_rows; at += part) {
        memcpy(weights.data + at, weights.data, MIN(part, row_bytes * n_rows - at));
    }
}

static void gemm_line(enum dtype type, u32 n_rows, u32 k, u32 n_tokens, void *out) {
    char memory[80];
    struct text name = TEXT_OVER_ARRAY(memory);
    text_format(&name, "gemm %s %u x %u, %u token%s", dtype_name(type), n_rows, k, n_tokens,
                n_tokens == 1 ? "" : "s");
    if (!contains(memory, bench.part)) return;
    make_weights(type, n_rows, k);
    struct gemm_call call = {
        .args = {.weight = weights.data, .row_bytes = dtype_row_bytes(type, k), .type = type,
                 .k = k, .n_tokens = n_tokens, .xq = quantised, .x = activations,
                 .x_stride = K_MAX, .output = GEMM_TO_F32, .out = out, .out_stride = n_rows},
        .n_rows = n_rows,
    };
    f64 bytes = (f64)call.args.row_bytes * n_rows, macs = (f64)n_rows * k * n_tokens;
    if (n_tokens == 1) {
        report(memory, "GB/s", bytes * 1e-9, run_gemm, &call);
    } else {
        report(memory, "GMAC/s", macs * 1e-9, run_gemm, &call);
    }
}

// What a plain read of 128 MiB reaches, to hold the lines from memory against.
static void run_read(const void *context) {
    const u64 *bytes = context;
    u64 sum[8] = {0};
    for (u64 i = 0; i + 64 <= *bytes; i += 64) {
        for (u32 j = 0; j < 8; j++) sum[j] ^= load_u64(weights.data + i + 8 * (usize)j);
    }
    for (u32 j = 1; j < 8; j++) sum[0] ^= sum[j];
    bench.sink = sum[0];
}

static void bench_gemm(void) {
    static const enum dtype types[] = {
        DTYPE_Q4_1, DTYPE_Q8_0, DTYPE_Q4_0, DTYPE_Q5_0, DTYPE_Q5_1, DTYPE_Q4_K, DTYPE_Q5_K,
        DTYPE_Q6_K, DTYPE_Q3_K, DTYPE_Q2_K, DTYPE_F16,  DTYPE_BF16, DTYPE_F32,
    };
    static const u32 token_counts[] = {1, 2, 4, 8, 16, 32, 128, 512};
    f32 *out = take((usize)TOKENS_MAX * 4096 * 4);
    weights.data = take(WEIGHT_BYTES_MAX);
    for (u32 i = 0; i < COUNT_OF(types); i++) {
        const struct dtype_info *info = dtype_lookup(types[i]);
        for (u32 j = 0; j < COUNT_OF(token_counts); j++) {
            gemm_line(types[i], 576, 1536, token_counts[j], out);
        }
        if (576 % info->block_elements == 0) {
            gemm_line(types[i], 1536, 576, 1, out);
            gemm_line(types[i], 1536, 576, 128, out);
        }
        gemm_line(types[i], 4096, K_MAX, 128, out);
        // Not in any cache: 128 MiB.
        u64 row_bytes = dtype_row_bytes(types[i], K_MAX);
        gemm_line(types[i], (u32)((128u << 20) / row_bytes / 16 * 16), K_MAX, 1, out);
    }
    gemm_line(DTYPE_Q8_0, 49152, 576, 1, out); // the head of SmolLM2
    gemm_line(DTYPE_Q4_1, 327680, 576, 1, out); // its layers' shape, from memory
    static const u64 read_bytes = 128u << 20;
    if (contains("plain read", bench.part)) make_weights(DTYPE_Q8_0, 32768, K_MAX);
    report("plain read", "GB/s", (f64)read_bytes * 1e-9, run_read, &read_bytes);
}

// --- attention ---

struct attention_call {
    struct attention_args args;
    u32 n_units, n_layers;
    usize plane_bytes;
};

// Layers take turns, as in a model.
static void run_attention(const void *context) {
    static u32 turn;
    const struct attention_call *call = context;
    struct attention_args args = call->args;
    usize at = turn++ % call->n_layers * call->plane_bytes;
    args.kv.k += at;
    args.kv.v += at;
    u32 failed = bench.table.attention(&args, 0, call->n_units, bench.scratch);
    assert(failed == 0);
}

static void attention_line(u32 n_layers, u32 n_head, u32 n_head_kv, u32 head_dim, u32 position,
                           u32 n_rows) {
    static u32 table[N_POSITIONS / OP_KV_BLOCK_TOKENS], positions[N_POSITIONS], slots[N_POSITIONS];
    static struct attention_tile tiles[N_POSITIONS];
    char memory[80];
    struct text name = TEXT_OVER_ARRAY(memory);
    u32 n = n_head_kv * head_dim, n_tiles = 0;
    usize plane_bytes = (usize)N_POSITIONS * n * 2, bytes = plane_bytes * n_layers;
    usize out_bytes = (usize)n_rows * n_head * head_dim * 2;
    f16 *k = take(bytes), *v = take(bytes), *out = take(out_bytes);
    for (usize i = 0; i < plane_bytes / 2; i++) {
        k[i] = (f16)(0x2c00 + next_random() % 0x1000);
        v[i] = (f16)(0x2c00 + next_random() % 0x1000);
    }
    for (u32 i = 1; i < n_layers; i++) {
        memcpy(k + i * plane_bytes / 2, k, plane_bytes);
        memcpy(v + i * plane_bytes / 2, v, plane_bytes);
    }
    for (u32 i = 0; i < COUNT_OF(table); i++) table[i] = i ^ 1;
    for (u32 i = 0; i < n_rows; i++) positions[i] = position + i;
    for (u32 row = 0; row < n_rows; row += OP_ATTENTION_TILE_ROWS) {
        tiles[n_tiles].row = row;
        tiles[n_tiles++].n_rows = MIN(n_rows - row, OP_ATTENTION_TILE_ROWS);
    }
    struct attention_call call = {
        .args = {.q = activations, .q_stride = K_MAX, .n_head = n_head, .n_head_kv = n_head_kv,
                 .head_dim = head_dim,
                 .kv = {.k = (u8 *)k, .v = (u8 *)v, .token_stride = 2 * (u64)n,
                        .page_stride = 2 * (u64)n * OP_KV_BLOCK_TOKENS, .tables = table,
                        .max_blocks = COUNT_OF(table)},
                 .positions = positions, .slots = slots, .tiles = tiles, .scale = 0.125f,
                 .out = out, .out_stride = n_head * head_dim},
        .n_units = n_tiles * n_head_kv,
        .n_layers = n_layers,
        .plane_bytes = plane_bytes,
    };
    text_format(&name, "attention %u/%u x %u, position %u, %u rows%s", n_head, n_head_kv, head_dim,
                position, n_rows, n_layers > 1 ? ", memory" : "");
    report(memory, "us", 0.0, run_attention, &call);
    platform_memory_unmap(k, bytes);
    platform_memory_unmap(v, bytes);
    platform_memory_unmap(out, out_bytes);
}

static void bench_attention(void) {
    static const u32 positions[] = {15, 127, 511, 1023, 2047, 4095, 8191};
    for (u32 i = 0; i < COUNT_OF(positions); i++) attention_line(1, 9, 3, 64, positions[i], 1);
    attention_line(30, 9, 3, 64, 4095, 1);
    attention_line(30, 9, 3, 64, 8191, 1);
    attention_line(1, 9, 3, 64, 0, 128);
    attention_line(1, 9, 3, 64, 1024, 128);
    attention_line(1, 9, 3, 64, 8064, 128);
    attention_line(1, 4, 1, 256, 511, 1); // Gemma 3 270M
    attention_line(1, 4, 1, 256, 8191, 1);
    attention_line(18, 4, 1, 256, 8191, 1);
    attention_line(1, 4, 1, 256, 384, 128);
    attention_line(1, 32, 8, 128, 1023, 1);
    attention_line(1, 32, 8, 128, 896, 128);
}

// --- the rest ---

static struct {
    struct embed_args embed;
    struct rmsnorm_args rmsnorm;
    struct quantize_args quantize;
    struct rope_args rope;
    struct act_mul_args act_mul;
    struct add_args add;
    struct finite_args finite;
    u32 n_rows;
} row_call;

static void run_embed(const void *context) {
    (void)context;
    bench.table.embed(&row_call.embed, 0, row_call.n_rows, bench.scratch);
}
static void run_rmsnorm(const void *context) {
    (void)context;
    bench.table.rmsnorm(&row_call.rmsnorm, 0, row_call.n_rows, bench.scratch);
}
static void run_quantize(const void *context) {
    (void)context;
    bench.table.quantize_q16(&row_call.quantize, 0, row_call.n_rows, bench.scratch);
}
static void run_rope(const void *context) {
    (void)context;
    bench.table.rope(&row_call.rope, 0, row_call.n_rows, bench.scratch);
}
static void run_silu(const void *context) {
    (void)context;
    bench.table.silu_mul(&row_call.act_mul, 0, row_call.n_rows, bench.scratch);
}
static void run_gelu(const void *context) {
    (void)context;
    bench.table.gelu_tanh_mul(&row_call.act_mul, 0, row_call.n_rows, bench.scratch);
}
static void run_add(const void *context) {
    (void)context;
    bench.table.add(&row_call.add, 0, row_call.n_rows, bench.scratch);
}
static void run_finite(const void *context) {
    (void)context;
    bench.table.finite(&row_call.finite, 0, row_call.n_rows, bench.scratch);
}

static void bench_rows(void) {
    static u32 tokens[8], positions[8];
    f32 *residual = take((usize)64 * K_MAX * 4), *logits = take(49152 * 4), *wide = take(1 << 20);
    u8 *weight = take(1 << 20);
    f16 *out = take((usize)64 * K_MAX * 2), *heads = take((usize)64 * K_MAX * 2);
    fill_weights(DTYPE_Q8_0, weight, dtype_row_bytes(DTYPE_Q8_0, 576) * 8);
    for (u32 i = 0; i < 8; i++) tokens[i] = 7 - i;
    row_call.n_rows = 8;
    for (u32 i = 0; i < 1536; i++) wide[i] = 1.0f;
    row_call.embed = (struct embed_args){tokens, weight, dtype_row_bytes(DTYPE_Q8_0, 576),
                                         DTYPE_Q8_0, 576, 1.0f, residual, 576};
    report("embed Q8_0 576, 8 rows", "us", 0.0, run_embed, NULL);
    for (u32 i = 0; i < 8 * 576; i++) residual[i] = (f32)(i % 7) - 3.0f;
    row_call.rmsnorm = (struct rmsnorm_args){.x = residual, .x_stride = 576, .n = 576,
                                             .weight = (const u8 *)wide, .eps = 1e-5f, .y = out,
                                             .y_stride = 576};
    report("rmsnorm f32 576, 8 rows", "us", 0.0, run_rmsnorm, NULL);
    row_call.quantize = (struct quantize_args){activations, K_MAX, 576, quantised};
    report("quantize_q16 576, 8 rows", "us", 0.0, run_quantize, NULL);
    row_call.quantize.n = 1536;
    report("quantize_q16 1536, 8 rows", "us", 0.0, run_quantize, NULL);
    row_call.rope = (struct rope_args){.x = heads, .x_stride = K_MAX, .n_head = 12, .head_dim = 64,
                                       .rope_dim = 64, .positions = positions, .table = wide};
    report("rope adjacent 12 heads x 64, 8 rows", "us", 0.0, run_rope, NULL);
    row_call.rope.neox = true;
    report("rope split 12 heads x 64, 8 rows", "us", 0.0, run_rope, NULL);
    row_call.act_mul = (struct act_mul_args){activations, activations + 8 * K_MAX, K_MAX, K_MAX,
                                             1536, out, K_MAX};
    report("silu_mul 1536, 8 rows", "us", 0.0, run_silu, NULL);
    report("gelu_tanh_mul 1536, 8 rows", "us", 0.0, run_gelu, NULL);
    row_call.add = (struct add_args){residual, wide, 576, 576, 576};
    report("add 576, 8 rows", "us", 0.0, run_add, NULL);
    row_call.finite = (struct finite_args){logits, 49152, 49152};
    row_call.n_rows = 1;
    report("finite 49152, 1 row", "us", 0.0, run_finite, NULL);
}

int program_main(const struct platform_start *start) {
    enum cpu_level level = cpu_level();
    bench.part = "";
    bench.random = 1;
    for (u32 i = 1; i < start->n_args; i++) {
        if (!cpu_level_parse(str_from_z(start->args[i]), &level)) bench.part = start->args[i];
    }
    op_fill_reference(&bench.table);
    op_fill_level(&bench.table, level);
    bench.scratch = take(OP_SCRATCH_BYTES);
    char memory[80];
    struct text line = TEXT_OVER_ARRAY(memory);
    text_format(&line, "table %s, one thread, CPU level %s\n", bench.table.name,
                cpu_level_name(cpu_level()));
    print(&line);
    make_activations();
    bench_gemm();
    bench_attention();
    bench_rows();
    return 0;
}
