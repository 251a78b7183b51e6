// SPDX-License-Identifier: Apache-2.0
// Every entry of the operator tables of all levels against the reference (ops/reference.c), by
// memcmp: odd shapes and tails, partial ranges of units, extreme scales and activations, unaligned
// weights that end at the last readable byte, and values that must be refused. Both tables work on
// equal copies of an output buffer with a margin around it, and the whole buffers are compared, so
// a write outside the asked-for units is found like a wrong result. In the sanitizer build every
// input ends where memory becomes unreadable (platform/hosted.c), so reading one byte too far is
// found too. Every case runs once a level, which ends its name; a level that the machine lacks is
// skipped, aloud.
//
// FULL=1 runs all shapes instead of a sample, and all 2^32 inputs of the exponential.
#include "cpu/avx2.h"
#include "cpu/cpu_features.h"
#include "cpu/kernels.h"
#include "freestanding/math.h"
#include "freestanding/mem.h"
#include "ops/op.h"
#include "random_weights.h"
#include "test.h"

#define SEED 20260107
#define MARGIN 64u // bytes before and after an output
#define BUFFERS_MAX 64

static struct {
    struct op_table reference, fast;
    enum cpu_level level; // of fast
    struct test_random random;
    u8 *scratch;
    u32 n_compared; // outputs that were looked at, not refused by both
    struct {
        void *memory;
        usize bytes;
    } buffers[BUFFERS_MAX];
    u32 n_buffers;
} state;

// First in every case, so that a case alone does what it does among the others.
static void start_case(void) {
    state.random.state = SEED;
    state.n_compared = 0;
}

static bool full(void) { return test_option("FULL") != NULL; }

static u32 below(u32 limit) { return test_random_below(&state.random, limit); }

// --- buffers ---

// `bytes` of zeroed memory that starts `lead` bytes after a page border and ends where what is
// readable ends (in the hosted build); lives until release_all.
static void *take(usize bytes, usize lead) {
    assert(state.n_buffers < BUFFERS_MAX);
    u8 *memory = platform_memory_map(bytes + lead);
    assert(memory != NULL);
    state.buffers[state.n_buffers].memory = memory;
    state.buffers[state.n_buffers].bytes = bytes + lead;
    state.n_buffers++;
    return memory + lead;
}

static void release_all(void) {
    for (u32 i = 0; i < state.n_buffers; i++) {
        platform_memory_unmap(state.buffers[i].memory, state.buffers[i].bytes);
    }
    state.n_buffers = 0;
}

static void *take_copy(const void *data, usize bytes, usize lead) {
    void *copy = take(bytes, lead);
    memcpy(copy, data, bytes);
    return copy;
}

// An output of n_rows rows of `stride` elements that both tables write: two copies with margins.
struct output {
    u8 *expected, *found;        // at row 0
    u32 n_rows, stride, element; // element in bytes
};

static usize output_bytes(const struct output *out) {
    return (usize)out->n_rows * out->stride * out->element;
}

static void output_copy_expected(struct output *out) {
    memcpy(out->found - MARGIN, out->expected - MARGIN, output_bytes(out) + 2 * MARGIN);
}

static struct output output_new(u32 n_rows, u32 stride, u32 element) {
    struct output out = {.n_rows = n_rows, .stride = stride, .element = element};
    usize bytes = output_bytes(&out) + 2 * MARGIN;
    out.expected = (u8 *)take(bytes, 0) + MARGIN;
    out.found = (u8 *)take(bytes, 0) + MARGIN;
    memset(out.expected - MARGIN, 0xa5, bytes);
    output_copy_expected(&out);
    return out;
}

static u32 element_bits(const u8 *p, u32 element) {
    return element == 2 ? load_u16(p) : load_u32(p);
}

// True when all bytes agree; else fails the case with the first element that differs.
static bool output_check(const struct output *out, const char *what) {
    usize bytes = output_bytes(out);
    state.n_compared++;
    if (memcmp(out->expected - MARGIN, out->found - MARGIN, bytes + 2 * MARGIN) == 0) return true;
    for (u32 row = 0; row < out->n_rows; row++) {
        for (u32 i = 0; i < out->stride; i++) {
            usize at = ((usize)row * out->stride + i) * out->element;
            u32 expected = element_bits(out->expected + at, out->element);
            u32 found = element_bits(out->found + at, out->element);
            if (expected == found) continue;
            test_fail(__FILE__, __LINE__, "%s: row %u element %u: bits %08x, expected %08x", what,
                      row, i, found, expected);
            return false;
        }
    }
    test_fail(__FILE__, __LINE__, "%s: the margin was written", what);
    return false;
}

// --- random values ---

// Mostly ordinary halves, some extreme ones; all finite.
static f16 random_half(void) {
    static const f16 special[] = {0x0000, 0x8000, 0x0001, 0x8001, 0x03ff, 0x83ff,
                                  0x0400, 0x3c00, 0xbc00, 0x7bff, 0xfbff};
    if (below(16) == 0) return special[below(COUNT_OF(special))];
    f16 half = (f16)(0x2c00 + below(0x1400)); // 1/16 to 2
    return (f16)(half | below(2) << 15);
}

// A scale: small, with every kind of special at times.
static f16 random_scale(void) {
    static const f16 special[] = {0x0000, 0x8000, 0x0001, 0x8001, 0x02a5, 0x7bff, 0xfbff};
    if (below(8) == 0) return special[below(COUNT_OF(special))];
    return (f16)((0x1000 + below(0x1800)) | below(4) / 3 << 15);
}

static f32 random_f32(void) {
    f32 value = f16_to_f32(random_half());
    return value * (1.0f + (f32)below(1000) * 1e-6f);
}

static void fill_halves(f16 *x, usize n) {
    for (usize i = 0; i < n; i++) x[i] = random_half();
}

static u32 pick(const u32 *list, usize n) { return list[below((u32)n)]; }
#define PICK(list) pick((list), COUNT_OF(list))

// --- gemm ---

enum weight_fill { FILL_RANDOM, FILL_ZEROS, FILL_ONES, FILL_KINDS };

static u64 random_bits(void) { return test_random_u64(&state.random); }
static u64 zero_bits(void) { return 0; }
static u64 one_bits(void) { return ~0ull; }

// Quants all 0 bits, all 1 bits, or random; scales that stay finite.
static void fill_weights(enum dtype type, u8 *weight, u64 bytes, enum weight_fill fill) {
    static u64 (*const bits[FILL_KINDS])(void) = {random_bits, zero_bits, one_bits};
    struct weight_source source = {
        .bits = bits[fill], .scale = random_scale, .half = random_half, .single = random_f32};
    weights_fill(type, weight, bytes, &source);
}

struct activations {
    f16 *x;
    u32 x_stride;
    struct q16 xq;
};

static u32 stride_for(u32 n, u32 element) { return (u32)round_up((u64)n * element, 64) / element; }

// Activations of n_tokens rows, made by the reference's quantize_q16 where k allows it.
static struct activations make_activations(u32 n_tokens, u32 k) {
    struct activations act = {.x_stride = stride_for(k, 2)};
    usize bytes = ((usize)(n_tokens - 1) * act.x_stride + k) * 2;
    act.x = take(bytes, 0);
    for (u32 t = 0; t < n_tokens; t++) {
        f16 *row = act.x + (usize)t * act.x_stride;
        u32 kind = below(6);
        for (u32 i = 0; i < k; i++) {
            row[i] = random_half();
            if (kind == 0) row[i] = (f16)(below(2) << 15);          // zeros of both signs
            if (kind == 1) row[i] = (f16)(0x4400 | below(2) << 15); // all become +-32767
            if (kind == 2) row[i] = 0x7bff;                         // the largest sums
        }
    }
    if (k % 32 != 0) return act;
    act.xq = (struct q16){
        .a_stride = stride_for(k, 2),
        .scale_stride = stride_for((k + 255) / 256, 4),
        .sum_stride = stride_for(k / 16, 4),
    };
    // Each array ends with the last element that the last row has.
    usize last = n_tokens - 1;
    act.xq.a = take((last * act.xq.a_stride + k) * 2, 0);
    act.xq.scale = take((last * act.xq.scale_stride + (k + 255) / 256) * 4, 0);
    act.xq.sum16 = take((last * act.xq.sum_stride + k / 16) * 4, 0);
    act.xq.sum32 = take((last * act.xq.sum_stride + k / 32) * 4, 0);
    struct quantize_args args = {.x = act.x, .x_stride = act.x_stride, .n = k, .out = act.xq};
    CHECK(state.reference.quantize_q16(&args, 0, n_tokens, state.scratch) == 0);
    return act;
}

struct gemm_shape {
    u32 n_rows, k, n_tokens;
    enum weight_fill fill;
};

static void check_gemm(enum dtype type, const struct gemm_shape *shape) {
    char memory[160];
    struct text what = TEXT_OVER_ARRAY(memory);
    u32 n_rows = shape->n_rows, n_tokens = shape->n_tokens;
    u64 row_bytes = dtype_row_bytes(type, shape->k);
    u8 *weight = take(n_rows * row_bytes, below(32));
    fill_weights(type, weight, n_rows * row_bytes, shape->fill);
    struct activations act = make_activations(n_tokens, shape->k);
    u8 *bias = take(4 * (usize)n_rows, 1 + below(8));
    for (u32 i = 0; i < n_rows; i++) store_f32(bias + 4 * (usize)i, random_f32());
    for (u32 form = GEMM_TO_F16; form <= GEMM_TO_F32; form++) {
        u32 element = form == GEMM_TO_F16 ? 2 : 4;
        struct output out = output_new(n_tokens, stride_for(n_rows, element), element);
        if (form == GEMM_ADD_F32) {
            for (usize i = 0; i < output_bytes(&out); i += 4) {
                store_f32(out.expected + i, random_f32());
            }
            output_copy_expected(&out);
        }
        struct gemm_args args = {
            .weight = weight,
            .row_bytes = row_bytes,
            .type = type,
            .k = shape->k,
            .n_tokens = n_tokens,
            .xq = act.xq,
            .x = act.x,
            .x_stride = act.x_stride,
            .bias = below(2) == 0 ? bias : NULL,
            .output = (enum gemm_output)form,
            .out = out.expected,
            .out_stride = out.stride,
        };
        u32 begin = below(3) == 0 ? below(n_rows) : 0;
        u32 end = below(3) == 0 ? begin + 1 + below(n_rows - begin) : n_rows;
        what.len = 0;
        text_format(&what, "%s rows %u to %u of %u, k %u, %u tokens, output %u, bias %d",
                    dtype_name(type), begin, end, n_rows, shape->k, n_tokens, form,
                    args.bias != NULL);
        u32 expected = state.reference.gemm[type](&args, begin, end, state.scratch);
        args.out = out.found;
        u32 found = state.fast.gemm[type](&args, begin, end, state.scratch);
        CHECK_MSG(expected == found, "%s: returned %u, expected %u", what.data, found, expected);
        output_check(&out, what.data);
    }
    release_all();
}

static const u32 row_counts[] = {1, 7, 8, 9, 15, 16, 17, 24, 40};
static const u32 token_counts[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 13, 16, 17, 33};
static const u32 k_of_blocks[] = {32, 64, 96, 256, 288, 576, 1536};
static const u32 k_of_super_blocks[] = {256, 512, 768, 1536};
static const u32 k_of_floats[] = {1, 2, 7, 8, 9, 31, 64, 255, 256, 257, 300, 576, 1024, 1536};

// All of tokens x rows x k, or for every number of tokens a few of the others.
static void check_gemm_shapes(enum dtype type, const u32 *k, usize n_k) {
    start_case();
    for (u32 t = 0; t < COUNT_OF(token_counts); t++) {
        u32 n_shapes = full() ? (u32)(COUNT_OF(row_counts) * n_k) : 8;
        for (u32 i = 0; i < n_shapes; i++) {
            struct gemm_shape shape = {
                .n_rows = full() ? row_counts[i / n_k] : PICK(row_counts),
                .k = full() ? k[i % n_k] : pick(k, n_k),
                .n_tokens = token_counts[t],
                .fill = below(2) == 0 ? FILL_RANDOM : (enum weight_fill)below(FILL_KINDS),
            };
            check_gemm(type, &shape);
        }
    }
}

#define GEMM_CASE(name, type, k_list) \
    static void name(void) { check_gemm_shapes(type, k_list, COUNT_OF(k_list)); }
GEMM_CASE(gemm_f32, DTYPE_F32, k_of_floats)
GEMM_CASE(gemm_f16, DTYPE_F16, k_of_floats)
GEMM_CASE(gemm_bf16, DTYPE_BF16, k_of_floats)
GEMM_CASE(gemm_q4_0, DTYPE_Q4_0, k_of_blocks)
GEMM_CASE(gemm_q4_1, DTYPE_Q4_1, k_of_blocks)
GEMM_CASE(gemm_q5_0, DTYPE_Q5_0, k_of_blocks)
GEMM_CASE(gemm_q5_1, DTYPE_Q5_1, k_of_blocks)
GEMM_CASE(gemm_q8_0, DTYPE_Q8_0, k_of_blocks)
GEMM_CASE(gemm_q2_k, DTYPE_Q2_K, k_of_super_blocks)
GEMM_CASE(gemm_q3_k, DTYPE_Q3_K, k_of_super_blocks)
GEMM_CASE(gemm_q4_k, DTYPE_Q4_K, k_of_super_blocks)
GEMM_CASE(gemm_q5_k, DTYPE_Q5_K, k_of_super_blocks)
GEMM_CASE(gemm_q6_k, DTYPE_Q6_K, k_of_super_blocks)

// More tokens than one chunk of the kernels keeps totals for, and an empty range.
static void gemm_many_tokens(void) {
    static const enum dtype types[] = {DTYPE_Q4_1, DTYPE_Q6_K, DTYPE_Q2_K, DTYPE_F16};
    start_case();
    for (u32 i = 0; i < COUNT_OF(types); i++) {
        check_gemm(types[i], &(struct gemm_shape){.n_rows = 3, .k = 256, .n_tokens = 1031});
    }
    // Rows too long for a kernel to keep something of every group and token in its scratch.
    check_gemm(DTYPE_Q8_0, &(struct gemm_shape){.n_rows = 3, .k = 40960, .n_tokens = 16});
    check_gemm(DTYPE_Q4_K, &(struct gemm_shape){.n_rows = 2, .k = 1 << 20, .n_tokens = 1});
    // More rows than the float kernels keep totals of, in groups of odd length.
    check_gemm(DTYPE_F16, &(struct gemm_shape){.n_rows = 150, .k = 300, .n_tokens = 270});
    check_gemm(DTYPE_BF16, &(struct gemm_shape){.n_rows = 137, .k = 259, .n_tokens = 14});
    check_gemm(DTYPE_F32, &(struct gemm_shape){.n_rows = 150, .k = 270, .n_tokens = 23});
    struct gemm_args args = {.type = DTYPE_Q4_1, .k = 32, .n_tokens = 1};
    CHECK(state.fast.gemm[DTYPE_Q4_1](&args, 5, 5, state.scratch) == 0);
}

// --- quantize_q16 ---

struct q16_outputs {
    struct output a, scale, sum16, sum32;
};

static struct q16 q16_of(const struct q16_outputs *out, bool expected) {
    return (struct q16){
        .a = (i16 *)(expected ? out->a.expected : out->a.found),
        .scale = (f32 *)(expected ? out->scale.expected : out->scale.found),
        .sum16 = (i32 *)(expected ? out->sum16.expected : out->sum16.found),
        .sum32 = (i32 *)(expected ? out->sum32.expected : out->sum32.found),
        .a_stride = out->a.stride,
        .scale_stride = out->scale.stride,
        .sum_stride = out->sum16.stride,
    };
}

// `bad` is put in place of one element of row 1 (0: none).
static void check_quantize(u32 n, u32 kind, f16 bad) {
    u32 n_rows = 3, stride = stride_for(n, 2);
    f16 *x = take(((usize)(n_rows - 1) * stride + n) * 2, 0);
    for (u32 i = 0; i < (n_rows - 1) * stride + n; i++) {
        x[i] = random_half();
        if (kind == 1) x[i] = (f16)(below(2) << 15);
        if (kind == 2) x[i] = (f16)(below(0x400) | below(2) << 15); // subnormal
        if (kind == 3) x[i] = (f16)(below(0x7c00) | below(2) << 15);
        if (kind == 4 && i % 256 >= 32) x[i] = 0;
    }
    if (bad != 0) x[stride + below(n)] = bad;
    struct q16_outputs out = {
        .a = output_new(n_rows, stride_for(n, 2), 2),
        .scale = output_new(n_rows, stride_for((n + 255) / 256, 4), 4),
        .sum16 = output_new(n_rows, stride_for(n / 16, 4), 4),
        .sum32 = output_new(n_rows, stride_for(n / 16, 4), 4),
    };
    u32 begin = below(2), end = 2 + below(2);
    struct quantize_args args = {.x = x, .x_stride = stride, .n = n, .out = q16_of(&out, true)};
    u32 expected = state.reference.quantize_q16(&args, begin, end, state.scratch);
    args.out = q16_of(&out, false);
    u32 found = state.fast.quantize_q16(&args, begin, end, state.scratch);
    CHECK_MSG(expected == found && expected == (bad != 0), "n %u bad %04x: returned %u", n, bad,
              found);
    if (expected == 0) {
        output_check(&out.a, "a");
        output_check(&out.scale, "scale");
        output_check(&out.sum16, "sum16");
        output_check(&out.sum32, "sum32");
    }
    release_all();
}

static void quantize(void) {
    static const u32 sizes[] = {32, 64, 96, 224, 256, 288, 576, 1536};
    static const f16 bads[] = {0x7c00, 0xfc00, 0x7c01, 0xffff};
    start_case();
    for (u32 i = 0; i < COUNT_OF(sizes); i++) {
        for (u32 kind = 0; kind < 5; kind++) {
            for (u32 repeat = 0; repeat < 4; repeat++) check_quantize(sizes[i], kind, 0);
        }
        for (u32 j = 0; j < COUNT_OF(bads); j++) check_quantize(sizes[i], 0, bads[j]);
    }
}

// --- rmsnorm ---

static void check_rmsnorm(u32 n, bool x_is_f16, u32 form, bool bad) {
    u32 n_rows = 4, element = x_is_f16 ? 2 : 4;
    u32 stride = form == 2 ? n : stride_for(n, element); // form 2: heads packed, in place
    usize n_x = (usize)(n_rows - 1) * stride + n;
    u8 *x = take(n_x * element, 0);
    for (usize i = 0; i < n_x; i++) {
        if (x_is_f16) store_u16(x + 2 * i, random_half());
        if (!x_is_f16) store_f32(x + 4 * i, random_f32());
    }
    if (bad) {
        usize at = stride + below(n);
        static const u32 bads[] = {0x7f800000, 0xff800000, 0x7fc00000, 0x6f000000}; // huge square
        if (x_is_f16) store_u16(x + 2 * at, below(2) == 0 ? 0x7c00 : 0x7e00);
        if (!x_is_f16) store_u32(x + 4 * at, PICK(bads));
    }
    u8 *weight = take(4 * (usize)n, 1 + below(4));
    for (u32 i = 0; i < n; i++) store_f32(weight + 4 * (usize)i, random_f32());
    u32 out_element = form == 1 ? 4 : 2;
    struct output out = output_new(n_rows, form == 2 ? n : stride_for(n, out_element), out_element);
    if (form == 1) {
        for (usize i = 0; i < output_bytes(&out); i += 4) store_f32(out.expected + i, random_f32());
    }
    if (form == 2) memcpy(out.expected, x, n_x * 2);
    output_copy_expected(&out);
    struct rmsnorm_args args = {.x = x,
                                .x_is_f16 = x_is_f16,
                                .x_stride = stride,
                                .n = n,
                                .weight = weight,
                                .eps = below(2) == 0 ? 1e-5f : 1e-6f};
    u32 begin = below(2), end = 2 + below(3), returned[2];
    for (u32 i = 0; i < 2; i++) {
        u8 *to = i == 0 ? out.expected : out.found;
        if (form == 2) args.x = to;
        args.y = form == 1 ? NULL : (f16 *)to;
        args.residual = form == 1 ? (f32 *)to : NULL;
        args.y_stride = args.residual_stride = out.stride;
        const struct op_table *table = i == 0 ? &state.reference : &state.fast;
        returned[i] = table->rmsnorm(&args, begin, end, state.scratch);
    }
    CHECK_MSG(returned[0] == returned[1] && returned[0] == bad, "n %u: returned %u", n,
              returned[1]);
    if (returned[0] == 0) output_check(&out, x_is_f16 ? "rmsnorm of f16" : "rmsnorm of f32");
    release_all();
}

static void rmsnorm(void) {
    static const u32 sizes[] = {1, 2, 7, 8, 15, 31, 32, 33, 64, 80, 576, 1000, 1024, 1025, 4104};
    start_case();
    for (u32 i = 0; i < COUNT_OF(sizes); i++) {
        for (u32 j = 0; j < 4; j++) {
            check_rmsnorm(sizes[i], false, 0, j == 3);
            check_rmsnorm(sizes[i], false, 1, j == 3);
            check_rmsnorm(sizes[i], true, 0, j == 3);
            check_rmsnorm(sizes[i], true, 2, j == 3);
        }
    }
    check_rmsnorm(33000, false, 0, false); // three levels of the tree
}

// --- rope ---

static void check_rope(u32 head_dim, u32 rope_dim, bool neox, f16 bad) {
    u32 n_tokens = 3, n_head = 1 + below(4), n = n_head * head_dim, n_positions = 9;
    struct output x = output_new(n_tokens, stride_for(n, 2), 2);
    fill_halves((f16 *)x.expected, (usize)n_tokens * x.stride);
    if (bad != 0) store_u16(x.expected + 2 * ((usize)x.stride + below(n)), bad);
    output_copy_expected(&x);
    u32 positions[3] = {below(n_positions), n_positions - 1, below(n_positions)};
    f32 *table = take((usize)n_positions * rope_dim * 4, 0);
    for (u32 i = 0; i < n_positions * rope_dim; i++) {
        table[i] = (f32)below(20001) * 1e-4f - 1.0f; // of the size of a cosine
    }
    struct rope_args args = {.x = (f16 *)x.expected,
                             .x_stride = x.stride,
                             .n_head = n_head,
                             .head_dim = head_dim,
                             .rope_dim = rope_dim,
                             .neox = neox,
                             .positions = positions,
                             .table = table};
    u32 begin = below(2), end = 2 + below(2);
    u32 expected = state.reference.rope(&args, begin, end, state.scratch);
    args.x = (f16 *)x.found;
    u32 found = state.fast.rope(&args, begin, end, state.scratch);
    CHECK_MSG(expected == found && (bad == 0 || expected == 1), "rope %u of %u: returned %u",
              rope_dim, head_dim, found);
    // A random pair may well overflow f16; then both refuse, and nothing is to be compared.
    if (expected == 0) output_check(&x, neox ? "rope, split halves" : "rope, adjacent pairs");
    release_all();
}

static void rope(void) {
    static const u32 dims[] = {2, 4, 6, 8, 10, 14, 16, 18, 30, 32, 64, 80, 128, 256};
    start_case();
    for (u32 i = 0; i < COUNT_OF(dims); i++) {
        for (u32 repeat = 0; repeat < 40; repeat++) {
            u32 rope_dim = below(2) == 0 ? dims[i] : 2 + 2 * below(dims[i] / 2);
            check_rope(dims[i], rope_dim, repeat % 2 == 1, 0);
        }
        for (u32 neox = 0; neox < 2; neox++) {
            check_rope(dims[i], dims[i], neox, 0x7c00);
            check_rope(dims[i], 2, neox, 0xfe00);
        }
    }
    CHECK_MSG(state.n_compared > 20 * COUNT_OF(dims), "only %u compared", state.n_compared);
}

// --- kv_write and attention ---

#define KV_SLOTS 3u

// A cache whose every element is NaN, with physical blocks in random order.
struct cache {
    u8 *k, *v;
    usize plane_bytes;
    u32 n_elements; // n_head_kv * head_dim
    struct kv_layer layer;
};

static struct cache cache_new(u32 n_elements, u32 n_positions) {
    u32 max_blocks = (n_positions + OP_KV_BLOCK_TOKENS - 1) / OP_KV_BLOCK_TOKENS;
    u32 n_blocks = max_blocks * KV_SLOTS;
    struct cache cache = {.n_elements = n_elements};
    u64 token_stride = 2 * (u64)n_elements, page_stride = token_stride * OP_KV_BLOCK_TOKENS;
    cache.plane_bytes = page_stride * n_blocks;
    cache.k = take(cache.plane_bytes, 0);
    cache.v = take(cache.plane_bytes, 0);
    memset(cache.k, 0xff, cache.plane_bytes);
    memset(cache.v, 0xff, cache.plane_bytes);
    u32 *tables = take((usize)n_blocks * 4, 0);
    for (u32 i = 0; i < n_blocks; i++) tables[i] = i;
    for (u32 i = n_blocks - 1; i > 0; i--) {
        u32 j = below(i + 1), other = tables[j];
        tables[j] = tables[i];
        tables[i] = other;
    }
    cache.layer = (struct kv_layer){.k = cache.k,
                                    .v = cache.v,
                                    .page_stride = page_stride,
                                    .token_stride = token_stride,
                                    .tables = tables,
                                    .max_blocks = max_blocks};
    return cache;
}

// The K (or V) row of a position, by the formula of docs/contract.md.
static f16 *cache_row(const struct cache *cache, u8 *plane, u32 slot, u32 position) {
    const struct kv_layer *kv = &cache->layer;
    u64 physical = kv->tables[slot * kv->max_blocks + position / 16];
    return (f16 *)(plane + physical * kv->page_stride + position % 16 * kv->token_stride);
}

static void check_kv_write(u32 n, f16 bad) {
    u32 n_tokens = 5, n_positions = 40, stride = stride_for(n, 2);
    struct cache expected = cache_new(n, n_positions), found = expected;
    found.k = found.layer.k = take_copy(expected.k, expected.plane_bytes, 0);
    found.v = found.layer.v = take_copy(expected.v, expected.plane_bytes, 0);
    usize bytes = ((usize)(n_tokens - 1) * stride + n) * 2;
    f16 *k = take(bytes, 0), *v = take(bytes, 0);
    fill_halves(k, bytes / 2);
    fill_halves(v, bytes / 2);
    if (bad != 0) (below(2) == 0 ? k : v)[stride + below(n)] = bad;
    u32 positions[5], slots[5];
    for (u32 i = 0; i < n_tokens; i++) {
        positions[i] = below(n_positions);
        slots[i] = below(KV_SLOTS);
    }
    struct kv_write_args args = {.k = k,
                                 .v = v,
                                 .k_stride = stride,
                                 .v_stride = stride,
                                 .n = n,
                                 .kv = expected.layer,
                                 .positions = positions,
                                 .slots = slots};
    u32 begin = below(2), end = 3 + below(3);
    u32 wanted = state.reference.kv_write(&args, begin, end, state.scratch);
    args.kv = found.layer;
    u32 returned = state.fast.kv_write(&args, begin, end, state.scratch);
    CHECK_MSG(returned == wanted && wanted == (bad != 0), "n %u: returned %u", n, returned);
    CHECK(memcmp(expected.k, found.k, expected.plane_bytes) == 0);
    CHECK(memcmp(expected.v, found.v, expected.plane_bytes) == 0);
    f16 *row = cache_row(&expected, expected.k, slots[1], positions[1]);
    bool rewritten = false;
    for (u32 i = 2; i < end; i++) {
        rewritten |= positions[i] == positions[1] && slots[i] == slots[1];
    }
    if (!rewritten) CHECK(memcmp(row, k + stride, 2 * (usize)n) == 0);
    release_all();
}

static void kv_write(void) {
    static const u32 sizes[] = {2, 6, 8, 12, 64, 192, 240, 512};
    start_case();
    for (u32 i = 0; i < COUNT_OF(sizes); i++) {
        for (u32 repeat = 0; repeat < 4; repeat++) check_kv_write(sizes[i], 0);
        check_kv_write(sizes[i], 0x7c00);
        check_kv_write(sizes[i], 0xffff);
    }
}

struct attention_shape {
    u32 head_dim, n_head_kv, heads_per_kv;
    u32 position, n_rows; // of the tile
    u32 window;
    f32 softcap, scale;
    enum { SCORES_ORDINARY, SCORES_LARGE, SCORES_NAN, SCORES_EQUAL } scores; // EQUAL: in a chunk
};

// No huge values, so that scores are of a size at which every position has a say.
static void tame(f16 *x, usize n) {
    for (usize i = 0; i < n; i++) {
        if ((x[i] & 0x7fff) >= 0x7000) x[i] = 0x3c00;
    }
}

// Two tiles of different sequences, of which the second is checked whole and the first is there to
// be left alone (units) and to make rows and positions differ.
static void check_attention(const struct attention_shape *shape) {
    char memory[200];
    struct text what = TEXT_OVER_ARRAY(memory);
    u32 head_dim = shape->head_dim, n_head = shape->n_head_kv * shape->heads_per_kv;
    u32 last = shape->position + shape->n_rows - 1;
    struct cache cache = cache_new(shape->n_head_kv * head_dim, last + 1 + below(20));
    u32 n_tokens = 1 + shape->n_rows, slot = 1 + below(KV_SLOTS - 1);
    u32 lowest = shape->window != 0 && shape->position >= shape->window
                     ? shape->position - shape->window + 1
                     : 0;
    for (u32 t = lowest; t <= last; t++) { // all else stays NaN
        f16 *k = cache_row(&cache, cache.k, slot, t), *v = cache_row(&cache, cache.v, slot, t);
        fill_halves(k, cache.n_elements);
        fill_halves(v, cache.n_elements);
        if (shape->scores != SCORES_LARGE) tame(k, cache.n_elements);
        if (shape->scores != SCORES_EQUAL) continue;
        // The exact result lies half-way between two halves, so that the last bit of every sum in
        // f32 decides the rounding.
        for (u32 i = 0; i < cache.n_elements; i++) {
            k[i] = i % head_dim == 0 ? (f16)(0x3800 + 97 * (t / OP_CHUNK)) : 0;
            v[i] = (f16)(0x3c00 + t % 2);
        }
    }
    if (shape->scores == SCORES_NAN) {
        u32 t = lowest + below(last - lowest + 1);
        cache_row(&cache, cache.k, slot, t)[below(cache.n_elements)] = 0x7e00;
    }
    *cache_row(&cache, cache.k, 0, 0) = 0x3c00;
    u32 n_q = n_head * head_dim, stride = stride_for(n_q, 2);
    f16 *q = take(((usize)(n_tokens - 1) * stride + n_q) * 2, 0);
    fill_halves(q, (usize)(n_tokens - 1) * stride + n_q);
    if (shape->scores != SCORES_LARGE) tame(q, (usize)(n_tokens - 1) * stride + n_q);
    u32 positions[1 + OP_ATTENTION_TILE_ROWS] = {0}, slots[1 + OP_ATTENTION_TILE_ROWS] = {0};
    for (u32 i = 1; i < n_tokens; i++) {
        positions[i] = shape->position + i - 1;
        slots[i] = slot;
    }
    struct attention_tile tiles[2] = {{0, 1}, {1, shape->n_rows}};
    struct output out = output_new(n_tokens, stride, 2);
    struct attention_args args = {
        .q = q,
        .q_stride = stride,
        .n_head = n_head,
        .n_head_kv = shape->n_head_kv,
        .head_dim = head_dim,
        .kv = cache.layer,
        .positions = positions,
        .slots = slots,
        .tiles = tiles,
        .scale = shape->scale,
        .softcap = shape->softcap,
        .window = shape->window,
        .out = (f16 *)out.expected,
        .out_stride = out.stride,
    };
    text_format(&what, "head_dim %u, %u x %u heads, rows %u at %u, window %u, cap %g", head_dim,
                shape->n_head_kv, shape->heads_per_kv, shape->n_rows, shape->position,
                shape->window, (f64)shape->softcap);
    u32 begin = shape->n_head_kv + (below(3) == 0 ? below(shape->n_head_kv) : 0);
    u32 end = below(3) == 0 ? begin + 1 : 2 * shape->n_head_kv;
    if (shape->scores == SCORES_NAN) begin = shape->n_head_kv, end = 2 * shape->n_head_kv;
    u32 expected = state.reference.attention(&args, begin, end, state.scratch);
    args.out = (f16 *)out.found;
    u32 found = state.fast.attention(&args, begin, end, state.scratch);
    CHECK_MSG(expected == found, "%s: returned %u, expected %u", what.data, found, expected);
    if (shape->scores == SCORES_NAN) CHECK_MSG(expected == 1, "%s: NaN not seen", what.data);
    if (expected == 0) output_check(&out, what.data);
    release_all();
}

static void attention(void) {
    static const u32 dims[] = {2, 6, 8, 14, 16, 24, 32, 64, 64, 80, 96, 128, 256};
    static const u32 starts[] = {0, 1, 6, 7, 8, 31, 100, 240, 250, 255, 256, 257, 300, 505, 520};
    static const u32 windows[] = {0, 0, 0, 1, 2, 5, 16, 100, 255, 256, 257, 300};
    static const u32 heads[] = {1, 2, 3, 4, 5, 6, 7, 9};
    u32 n_shapes = full() ? 5000 : 350;
    start_case();
    for (u32 i = 0; i < n_shapes; i++) {
        check_attention(&(struct attention_shape){
            .head_dim = PICK(dims),
            .n_head_kv = 1 + below(3),
            .heads_per_kv = PICK(heads),
            .position = PICK(starts),
            .n_rows = below(3) == 0 ? 1 : 1 + below(OP_ATTENTION_TILE_ROWS),
            .window = PICK(windows),
            .softcap = below(4) == 0 ? 30.0f : 0.0f,
            .scale = below(8) == 0 ? 1.0f : 0.125f,
            .scores = below(8) == 0 ? SCORES_LARGE + below(2) : SCORES_ORDINARY,
        });
    }
    CHECK_MSG(state.n_compared > n_shapes * 3 / 4, "only %u compared", state.n_compared);
}

// The largest head, more queries than one batch, and one row far from the start.
static void attention_large(void) {
    static const struct attention_shape shapes[] = {
        {512, 1, 2, 250, 16, 0, 0.0f, 0.0442f, 0},
        {510, 1, 1, 260, 3, 0, 0.0f, 0.0442f, 0},
        {64, 1, 32, 255, 16, 0, 0.0f, 0.125f, 0},
        {8, 1, 128, 0, 16, 3, 0.0f, 0.3f, 0},
        {64, 3, 3, 2047, 1, 0, 0.0f, 0.125f, 0},
        {64, 3, 1, 2040, 9, 0, 50.0f, 0.125f, 0},
        {256, 1, 4, 1700, 1, 0, 0.0f, 0.0625f, 0},
        {256, 1, 4, 1300, 1, 512, 0.0f, 0.0625f, 0},
        {256, 1, 4, 505, 16, 512, 0.0f, 0.0625f, 0},
        {64, 1, 1, 300, 2, 0, 0.0f, 1e38f, SCORES_LARGE}, // they overflow
    };
    start_case();
    for (u32 i = 0; i < COUNT_OF(shapes); i++) check_attention(&shapes[i]);
}

// Chunks of equal scores, merged: an error of one unit in the last place shows.
static void attention_merge(void) {
    start_case();
    for (u32 i = 0; i < 40; i++) {
        check_attention(&(struct attention_shape){
            .head_dim = 2,
            .n_head_kv = 1,
            .heads_per_kv = 4,
            .position = 256 + below(600),
            .n_rows = OP_ATTENTION_TILE_ROWS,
            .window = below(3) == 0 ? 300 : 0,
            .scale = 0.7f + 0.01f * (f32)i,
            .scores = SCORES_EQUAL,
        });
    }
}

// --- act_mul, add, finite ---

// Form 0 is silu, form 1 gelu; `gates` may be NULL (random).
static void check_act(u32 form, const f16 *gates, u32 n_rows, u32 n, bool in_place) {
    const struct op_table *tables[2] = {&state.reference, &state.fast};
    act_mul_fn *kernel[2];
    for (u32 i = 0; i < 2; i++) {
        kernel[i] = form == 0 ? tables[i]->silu_mul : tables[i]->gelu_tanh_mul;
    }
    u32 stride = stride_for(n, 2);
    usize n_all = (usize)(n_rows - 1) * stride + n;
    f16 *up = take(n_all * 2, 0);
    fill_halves(up, n_all);
    struct output out = output_new(n_rows, stride, 2);
    f16 *gate = take(n_all * 2, 0);
    for (usize i = 0; i < n_all; i++) gate[i] = gates != NULL ? gates[i % n] : random_half();
    if (in_place) memcpy(out.expected, gate, n_all * 2);
    output_copy_expected(&out);
    struct act_mul_args args = {.gate = in_place ? (f16 *)out.expected : gate,
                                .up = up,
                                .gate_stride = stride,
                                .up_stride = stride,
                                .n = n,
                                .out = (f16 *)out.expected,
                                .out_stride = stride};
    u32 begin = below(n_rows), end = begin + 1 + below(n_rows - begin);
    CHECK(kernel[0](&args, begin, end, state.scratch) == 0);
    args.out = (f16 *)out.found;
    if (in_place) args.gate = args.out;
    CHECK(kernel[1](&args, begin, end, state.scratch) == 0);
    output_check(&out, form == 0 ? "silu_mul" : "gelu_tanh_mul");
    release_all();
}

static void act_mul(void) {
    static const u32 sizes[] = {1, 3, 8, 15, 16, 33, 576, 1536};
    static f16 all[0x7c00 * 2]; // every finite gate
    start_case();
    for (u32 i = 0; i < 0x7c00; i++) {
        all[2 * i] = (f16)i;
        all[2 * i + 1] = (f16)(i | 0x8000);
    }
    for (u32 form = 0; form < 2; form++) {
        check_act(form, all, 1, COUNT_OF(all), false);
        for (u32 i = 0; i < COUNT_OF(sizes); i++) {
            check_act(form, NULL, 4, sizes[i], false);
            check_act(form, NULL, 4, sizes[i], true);
        }
    }
}

static void add_and_finite(void) {
    static const u32 sizes[] = {1, 5, 8, 12, 16, 31, 576, 1001};
    static const u32 bads[] = {0x7f800000, 0xff800000, 0x7f800001, 0xffffffff};
    start_case();
    for (u32 i = 0; i < COUNT_OF(sizes); i++) {
        u32 n = sizes[i], stride = stride_for(n, 4), n_rows = 4;
        usize n_all = (usize)(n_rows - 1) * stride + n;
        struct output out = output_new(n_rows, stride, 4);
        f32 *x = take(n_all * 4, 0);
        for (usize j = 0; j < n_all; j++) {
            x[j] = random_f32();
            store_f32(out.expected + 4 * j, random_f32());
        }
        output_copy_expected(&out);
        struct add_args args = {.residual = (f32 *)out.expected,
                                .x = x,
                                .residual_stride = stride,
                                .x_stride = stride,
                                .n = n};
        CHECK(state.reference.add(&args, 1, 3, state.scratch) == 0);
        args.residual = (f32 *)out.found;
        CHECK(state.fast.add(&args, 1, 3, state.scratch) == 0);
        output_check(&out, "add");
        struct finite_args check = {.x = x, .x_stride = stride, .n = n};
        x[0] = f32_from_bits(0x7f7fffff);
        x[n - 1] = f32_from_bits(0x80000001);
        CHECK(state.fast.finite(&check, 0, n_rows, state.scratch) == 0);
        for (u32 j = 0; j < COUNT_OF(bads); j++) {
            usize at = 2 * (usize)stride + below(n);
            x[at] = f32_from_bits(bads[j]);
            CHECK(state.reference.finite(&check, 0, n_rows, state.scratch) == 1);
            CHECK(state.fast.finite(&check, 0, n_rows, state.scratch) == 1);
            CHECK(state.fast.finite(&check, 0, 2, state.scratch) == 0);
            x[at] = 1.0f;
        }
        release_all();
    }
}

// --- the exponential ---

static void exp_16_avx2(const f32 x[16], f32 y[16]) {
    store_f32x8(y, exp_f32x8(load_f32x8(x)));
    store_f32x8(y + LANES, exp_f32x8(load_f32x8(x + LANES)));
}

static void exponential(void) {
    u64 step = full() ? 16 : 16 * 1009;
    u32 n_wrong = 0;
    for (u64 first = 0; first < 1ull << 32; first += step) {
        f32 x[16], y[16];
        for (u32 i = 0; i < 16; i++) x[i] = f32_from_bits((u32)first + i);
        if (state.level == CPU_LEVEL_AVX512) {
            exp_16_avx512(x, y);
        } else {
            exp_16_avx2(x, y);
        }
        for (u32 i = 0; i < 16; i++) {
            f32 expected = math_exp_f32(x[i]);
            if (f32_bits(expected) == f32_bits(y[i])) continue;
            if (expected != expected && y[i] != y[i]) continue;
            if (n_wrong++ == 0) {
                test_fail(__FILE__, __LINE__, "exp of bits %08x: %08x, expected %08x",
                          f32_bits(x[i]), f32_bits(y[i]), f32_bits(expected));
            }
        }
    }
    CHECK_MSG(n_wrong == 0, "%u values differ", n_wrong);
}

// --- the table and the detection ---

static void table(void) {
    test_note("seed %u", SEED);
    CHECK(str_equal(str_from_z(state.fast.name), str_from_z(cpu_level_name(state.level))));
    for (u32 type = 0; type < DTYPE_LIMIT; type++) {
        bool known = dtype_lookup(type) != NULL;
        CHECK((state.fast.gemm[type] != NULL) == known);
        CHECK(!known || state.fast.gemm[type] != state.reference.gemm[type]);
    }
    CHECK(state.fast.rmsnorm != state.reference.rmsnorm);
    CHECK(state.fast.quantize_q16 != state.reference.quantize_q16);
    CHECK(state.fast.rope != state.reference.rope);
    CHECK(state.fast.kv_write != state.reference.kv_write);
    CHECK(state.fast.attention != state.reference.attention);
    CHECK(state.fast.silu_mul != state.reference.silu_mul);
    CHECK(state.fast.gelu_tanh_mul != state.reference.gelu_tanh_mul);
    CHECK(state.fast.add != state.reference.add);
    CHECK(state.fast.finite != state.reference.finite);
}

// A CPU with everything, then without one thing at a time.
static void features(void) {
    struct cpu_words all = {.max_leaf = 7,
                            .leaf1_ecx = ~0u,
                            .leaf7_ebx = ~0u,
                            .leaf7_ecx = ~0u,
                            .extended1_ecx = ~0u,
                            .xcr0 = 0xe7};
    CHECK(cpu_level_of(&all) == CPU_LEVEL_AVX512);
    static const struct {
        u32 word, bit; // word: 0 leaf1_ecx, 1 leaf7_ebx, 2 leaf7_ecx, 3 xcr0, 4 extended1_ecx
        enum cpu_level level;
    } rows[] = {
        {0, 12, CPU_LEVEL_SCALAR}, {0, 27, CPU_LEVEL_SCALAR}, {0, 28, CPU_LEVEL_SCALAR},
        {0, 29, CPU_LEVEL_SCALAR}, {0, 22, CPU_LEVEL_SCALAR}, {0, 9, CPU_LEVEL_SCALAR},
        {1, 5, CPU_LEVEL_SCALAR},  {1, 3, CPU_LEVEL_SCALAR},  {1, 8, CPU_LEVEL_SCALAR},
        {4, 5, CPU_LEVEL_SCALAR},  {3, 1, CPU_LEVEL_SCALAR},  {3, 2, CPU_LEVEL_SCALAR},
        {1, 16, CPU_LEVEL_AVX2},   {1, 17, CPU_LEVEL_AVX2},   {1, 30, CPU_LEVEL_AVX2},
        {1, 31, CPU_LEVEL_AVX2},   {2, 1, CPU_LEVEL_AVX2},    {2, 11, CPU_LEVEL_AVX2},
        {3, 5, CPU_LEVEL_AVX2},    {3, 6, CPU_LEVEL_AVX2},    {3, 7, CPU_LEVEL_AVX2},
        {1, 0, CPU_LEVEL_AVX512}, // of no account
    };
    for (u32 i = 0; i < COUNT_OF(rows); i++) {
        struct cpu_words words = all;
        u32 *list[] = {&words.leaf1_ecx, &words.leaf7_ebx, &words.leaf7_ecx, &words.xcr0,
                       &words.extended1_ecx};
        *list[rows[i].word] &= ~(1u << rows[i].bit);
        CHECK_MSG(cpu_level_of(&words) == rows[i].level, "without bit %u of word %u: level %d",
                  rows[i].bit, rows[i].word, (int)cpu_level_of(&words));
    }
    all.max_leaf = 6;
    CHECK(cpu_level_of(&all) == CPU_LEVEL_SCALAR);
    CHECK(cpu_level_of(&(struct cpu_words){0}) == CPU_LEVEL_SCALAR);
    CHECK(cpu_level() >= CPU_LEVEL_AVX2); // this program is compiled for it
    enum cpu_level level = CPU_LEVEL_SCALAR;
    CHECK(cpu_level_parse(STR("avx512"), &level) && level == CPU_LEVEL_AVX512);
    CHECK(cpu_level_parse(STR("scalar"), &level) && level == CPU_LEVEL_SCALAR);
    CHECK(!cpu_level_parse(STR("AVX2"), &level) && level == CPU_LEVEL_SCALAR);
    for (u32 i = 0; i < CPU_LEVEL_COUNT; i++) {
        CHECK(cpu_level_parse(str_from_z(cpu_level_name(i)), &level) && level == i);
    }
}

static void run_at(enum cpu_level level, void (*run)(void)) {
    if (level > cpu_level()) {
        test_skip("this machine lacks the level");
        return;
    }
    state.fast = state.reference;
    op_fill_level(&state.fast, level);
    state.level = level;
    run();
}

#define EACH_CASE(X)    \
    X(table)            \
    X(exponential)      \
    X(rmsnorm)          \
    X(quantize)         \
    X(gemm_f32)         \
    X(gemm_f16)         \
    X(gemm_bf16)        \
    X(gemm_q4_0)        \
    X(gemm_q4_1)        \
    X(gemm_q5_0)        \
    X(gemm_q5_1)        \
    X(gemm_q8_0)        \
    X(gemm_q2_k)        \
    X(gemm_q3_k)        \
    X(gemm_q4_k)        \
    X(gemm_q5_k)        \
    X(gemm_q6_k)        \
    X(gemm_many_tokens) \
    X(rope)             \
    X(kv_write)         \
    X(attention)        \
    X(attention_large)  \
    X(attention_merge)  \
    X(act_mul)          \
    X(add_and_finite)

#define DEFINE_AT_LEVELS(name)                                             \
    static void case_##name##_avx2(void) { run_at(CPU_LEVEL_AVX2, name); } \
    static void case_##name##_avx512(void) { run_at(CPU_LEVEL_AVX512, name); }
#define ROW_AVX2(name) {#name "_avx2", case_##name##_avx2},
#define ROW_AVX512(name) {#name "_avx512", case_##name##_avx512},
EACH_CASE(DEFINE_AT_LEVELS)

static const struct test_case cases[] = {{"features", features},
                                         EACH_CASE(ROW_AVX2) EACH_CASE(ROW_AVX512)};

int program_main(const struct platform_start *start) {
    op_fill_reference(&state.reference);
    state.scratch = platform_memory_map(OP_SCRATCH_BYTES);
    assert(state.scratch != NULL);
    return test_main(start, "test_kernels", cases, COUNT_OF(cases));
}
