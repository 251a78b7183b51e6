// SPDX-License-Identifier: Apache-2.0
// The cases of the conformance suite: which shapes each kernel is run with, how their memory is
// laid out and filled, and what the reference operators make of it.
//
// Kernels of one params struct and one meaning are a family: a row of `families` with the names of
// its shape's columns, its shapes (the first n_quick are those of the short run), and the function
// that builds a case. `subjects` says which family a kernel belongs to; conform_case_get gives a
// kernel without a row no case, which the command and the tests count as a failure.
//
// Inputs. Word i of buffer b of a case is the finaliser of SplitMix64 applied to
// key + (b * 2^48 + i) * 0x9e3779b97f4a7c15, where key is the same of (seed xor FNV-1a(id)). No
// word depends on how many others were drawn.
//
// Columns that several families have: pad 1 makes strides larger than rows, and unequal; `bad` is
// the element (rows without their padding) that becomes a value which the contract forbids, -1
// none. Weights begin 4 bytes (embed and the float kernels: as little as their heads allow) behind
// a multiple of 256 where the number of features, or of tokens in embed, is odd.
#include "engine/conform_private.h"
#include "freestanding/math.h"
#include "freestanding/mem.h"

#define SHAPE_MAX 9 // columns

// --- the generator ---

static u64 mixed(u64 z) {
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static u64 word(const struct conform_build *b, u32 buffer, u64 i) {
    return mixed(b->key + ((u64)buffer << 48 | i) * 0x9e3779b97f4a7c15u);
}

static u64 key_of(u64 seed, const char *id) {
    u64 hash = 0xcbf29ce484222325u;
    for (; *id != 0; id++) hash = (hash ^ (u8)*id) * 0x100000001b3u;
    return mixed(seed ^ hash);
}

// The upper bits of a word, in [0, 1).
static f64 unit(u64 bits) { return (f64)(bits >> 11) * 0x1p-53; }

// --- layout ---

static u32 declare(struct conform_build *b, const char *name, enum conform_role role, u64 bytes,
                   u32 misalignment) {
    assert(b->n_buffers < CONFORM_BUFFERS_MAX);
    struct conform_buffer *buffer = &b->buffers[b->n_buffers];
    *buffer = (struct conform_buffer){.name = name, .bytes = bytes, .role = role};
    if (role == CONFORM_HOST) {
        buffer->off = b->host_bytes;
        b->host_bytes = round_up(b->host_bytes + bytes, 64);
    } else {
        buffer->off = b->image_bytes + misalignment;
        b->image_bytes = round_up(buffer->off + bytes + CONFORM_GUARD_BYTES, 256);
    }
    return b->n_buffers++;
}

static u32 declare_in(struct conform_build *b, const char *name, u64 bytes) {
    return declare(b, name, CONFORM_IN, bytes, 0);
}

static u32 declare_out(struct conform_build *b, const char *name, u64 bytes) {
    return declare(b, name, CONFORM_OUT, bytes, 0);
}

// Where inputs lie on the host, where the reference puts outputs, and where both are on the card.
static void *input(const struct conform_build *b, u32 buffer) {
    const struct conform_buffer *at = &b->buffers[buffer];
    return (at->role == CONFORM_HOST ? b->host : b->before) + at->off;
}

static void *wanted(const struct conform_build *b, u32 buffer) {
    assert(b->buffers[buffer].role == CONFORM_OUT);
    return b->expected + b->buffers[buffer].off;
}

static u64 address(const struct conform_build *b, u32 buffer) {
    return b->memory + b->buffers[buffer].off;
}

static void *scratch_of(const struct conform_build *b) { return b->host + b->host_bytes; }

// Behind the declarations: false when only sizes are wanted; else all memory is poison.
static bool poisoned(struct conform_build *b) {
    if (b->before == NULL) return false;
    memset(b->before, CONFORM_POISON_GUARD, b->image_bytes);
    for (u32 i = 0; i < b->n_buffers; i++) {
        const struct conform_buffer *buffer = &b->buffers[i];
        int pattern = buffer->role == CONFORM_IN || buffer->role == CONFORM_HOST
                          ? CONFORM_POISON_IN
                          : CONFORM_POISON_OUT;
        memset(input(b, i), pattern, buffer->bytes);
    }
    memset(input(b, b->status), 0, CUDA_STATUS_WORDS * sizeof(u32));
    return true;
}

// Behind the inputs: from here on the reference writes what is expected.
static void seal(struct conform_build *b) { memcpy(b->expected, b->before, b->image_bytes); }

// `params` is the kernel's struct; power and status are filled in here.
static void launch(struct conform_build *b, enum cuda_kernel kernel, u32 x, u32 y, u32 z,
                   u32 n_threads, const void *params, u32 params_bytes) {
    assert(b->n_launches < CONFORM_LAUNCHES_MAX && params_bytes <= CONFORM_PARAMS_BYTES_MAX);
    struct conform_launch *at = &b->launches[b->n_launches++];
    *at = (struct conform_launch){.kernel = kernel,
                                  .counts = {x, y, z},
                                  .n_threads = n_threads,
                                  .params_bytes = params_bytes};
    memcpy(at->params, params, params_bytes);
    store_u64(at->params, address(b, b->power)); // K2: the first two of every struct
    store_u64(at->params + sizeof(u64), address(b, b->status));
}

void conform_set_power(struct conform_build *b, u32 power) {
    store_u32(b->before + b->buffers[b->power].off, power);
    store_u32(b->expected + b->buffers[b->power].off, power);
}

// --- contents ---

enum element { F16, F32 };

static u32 element_bytes(enum element type) { return type == F16 ? 2 : 4; }

static void put(u8 *at, enum element type, f64 value) {
    if (type == F16) {
        store_u16(at, f32_to_f16((f32)value));
    } else {
        store_f32(at, (f32)value);
    }
}

// Values at which formats and roundings change.
static void put_edge(u8 *at, enum element type, u32 pick) {
    static const u32 f32_edges[] = {0,          0x80000000, 1,          0x80000001, 0x007fffff,
                                    0x00800000, 0x3f800000, 0xbf800000, 0x7f7fffff, 0xff7fffff};
    static const u16 f16_edges[] = {0,      0x8000, 1,      0x8001, 0x03ff,
                                    0x0400, 0x3c00, 0xbc00, 0x7bff, 0xfbff};
    if (type == F16) {
        store_u16(at, f16_edges[pick % COUNT_OF(f16_edges)]);
    } else {
        store_u32(at, f32_edges[pick % COUNT_OF(f32_edges)]);
    }
}

// One element in [-range, range]; with edges one in eight is one of those.
static void put_random(const struct conform_build *b, u32 buffer, u64 i, enum element type,
                       f64 range, bool edges) {
    u8 *at = (u8 *)input(b, buffer) + i * element_bytes(type);
    u64 bits = word(b, buffer, i);
    if (edges && (bits & 7) == 0) {
        put_edge(at, type, bits >> 3 & 0xff);
    } else {
        put(at, type, range * (2 * unit(bits) - 1));
    }
}

// `n` elements of each row; what is behind them stays poison.
static void fill(const struct conform_build *b, u32 buffer, enum element type, u32 rows, u32 n,
                 u32 stride, f64 range, bool edges) {
    assert((u64)rows * stride * element_bytes(type) <= b->buffers[buffer].bytes);
    for (u64 row = 0; row < rows; row++) {
        for (u32 i = 0; i < n; i++) {
            put_random(b, buffer, row * stride + i, type, range, edges);
        }
    }
}

// The element `bad` of rows of n becomes these bits; a negative one is none.
static void plant(const struct conform_build *b, u32 buffer, enum element type, i32 bad, u32 n,
                  u32 stride, u32 bits) {
    if (bad < 0) return;
    u64 at = (u64)((u32)bad / n) * stride + (u32)bad % n;
    u8 *element = (u8 *)input(b, buffer) + at * element_bytes(type);
    if (type == F16) {
        store_u16(element, (u16)bits);
    } else {
        store_u32(element, bits);
    }
}

static void fill_below(const struct conform_build *b, u32 buffer, u32 n, u32 limit) {
    u32 *values = input(b, buffer);
    for (u32 i = 0; i < n; i++) values[i] = (u32)(word(b, buffer, i) >> 32) % limit;
}

static void fill_permutation(const struct conform_build *b, u32 buffer, u32 n) {
    u32 *order = input(b, buffer);
    for (u32 i = 0; i < n; i++) order[i] = i;
    for (u32 i = n; i > 1; i--) {
        u32 j = (u32)(word(b, buffer, i) >> 32) % i, kept = order[i - 1];
        order[i - 1] = order[j];
        order[j] = kept;
    }
}

// Where a quantised block keeps its f16 scales: n of them from byte *at on.
static u32 scales_of(enum dtype type, u32 *at) {
    *at = 0;
    switch (type) {
    case DTYPE_Q4_1:
    case DTYPE_Q5_1:
    case DTYPE_Q4_K:
    case DTYPE_Q5_K: return 2;
    case DTYPE_Q2_K: *at = 80; return 2;
    case DTYPE_Q3_K: *at = 108; return 1;
    case DTYPE_Q6_K: *at = 208; return 1;
    default: return 1;
    }
}

// Words of this number and above are those of scales.
#define SCALE_WORDS (1ull << 40)

// Whole blocks: random bits, with scales within 1/64 of which one in 16 is zero and one subnormal;
// float types within 1, with zeros and subnormals among them.
static void fill_weights(const struct conform_build *b, u32 buffer, enum dtype type) {
    u8 *weight = input(b, buffer);
    u64 bytes = b->buffers[buffer].bytes;
    const struct dtype_info *info = dtype_lookup(type);
    assert(bytes % info->block_bytes == 0);
    u32 scale_at = 0, n_scales = scales_of(type, &scale_at);
    for (u64 i = 0; info->quantised && i < bytes; i += 8) {
        u64 bits = word(b, buffer, i / 8);
        memcpy(weight + i, &bits, MIN(bytes - i, (u64)sizeof bits));
    }
    for (u64 block = 0; block < bytes / info->block_bytes; block++) {
        u8 *at = weight + block * info->block_bytes;
        for (u32 s = 0; s < n_scales; s++) {
            u64 bits = word(b, buffer, SCALE_WORDS + 2 * block + s);
            f32 value = (f32)(2 * unit(bits) - 1);
            u32 kind = bits & 15;
            if (info->quantised) value = value / 64;
            u16 half = kind == 0 ? 0 : kind == 1 ? (u16)(bits >> 4 & 0x83ff) : f32_to_f16(value);
            u32 single = kind == 0   ? 0
                         : kind == 1 ? (u32)(bits >> 4) & 0x807fffff
                                     : f32_bits(value);
            switch (type) {
            case DTYPE_F32: store_u32(at, single); break;
            case DTYPE_BF16: store_u16(at, (u16)(single >> 16)); break;
            default: store_u16(at + scale_at + 2 * (usize)s, half); break;
            }
        }
    }
}

// --- elementwise ---

// The kernel's weight type, from its family's row.
static enum dtype type_of(const struct conform_build *b);

static const char *const act_mul_columns[] = {"rows", "n", "pad", "in_place", NULL};
static const i32 act_mul_shapes[][SHAPE_MAX] = {
    {1, 1, 1, 0},     {2, 2, 1, 0},     {3, 33, 1, 0},    {3, 515, 1, 1},   {5, 1100, 1, 2},
    {1, 511, 1, 0},   {2, 512, 0, 0},   {256, 1, 1, 0},   {256, 96, 1, 0},  {4, 4096, 0, 0},
    {17, 1537, 1, 0}, {129, 576, 0, 1}, {64, 2048, 0, 2}, {2, 14336, 0, 0},
};

// in_place: out is gate (1) or up (2).
static void build_act_mul(struct conform_build *b) {
    const i32 *shape = b->item->shape;
    u32 rows = (u32)shape[0], n = (u32)shape[1], pad = (u32)shape[2];
    i32 in_place = shape[3];
    u32 even = (n + 1) & ~1u; // rows begin at multiples of 4 bytes
    u32 gate_stride = even + 6 * pad, up_stride = even + 16 * pad, out_stride = even + 40 * pad;
    u32 gate =
        declare(b, "gate", in_place == 1 ? CONFORM_OUT : CONFORM_IN, 2ull * rows * gate_stride, 0);
    u32 up = declare(b, "up", in_place == 2 ? CONFORM_OUT : CONFORM_IN, 2ull * rows * up_stride, 0);
    u32 out = in_place == 1 ? gate : up;
    if (in_place == 0) {
        out = declare_out(b, "out", 2ull * rows * out_stride);
    } else {
        out_stride = in_place == 1 ? gate_stride : up_stride;
    }
    if (!poisoned(b)) return;
    fill(b, gate, F16, rows, n, gate_stride, 12, true);
    fill(b, up, F16, rows, n, up_stride, 4, true);
    seal(b);
    struct act_mul_args args = {in_place == 1 ? wanted(b, gate) : input(b, gate),
                                in_place == 2 ? wanted(b, up) : input(b, up),
                                gate_stride,
                                up_stride,
                                n,
                                wanted(b, out),
                                out_stride};
    act_mul_fn *activation = b->item->kernel == CUDA_KERNEL_silu_fused
                                 ? b->reference->silu_mul
                                 : b->reference->gelu_tanh_mul;
    b->is_refused = activation(&args, 0, rows, scratch_of(b)) != 0;
    struct cuda_act_mul_params params = {.gate = address(b, gate),
                                         .up = address(b, up),
                                         .out = address(b, out),
                                         .n = n,
                                         .gate_stride = gate_stride,
                                         .up_stride = up_stride,
                                         .out_stride = out_stride};
    launch(b, b->item->kernel, rows, n, 1, 0, &params, sizeof params);
}

static const char *const add_columns[] = {"rows", "n", "pad", NULL};
static const i32 add_shapes[][SHAPE_MAX] = {
    {1, 1, 1},     {3, 70, 1},   {2, 256, 0},   {3, 257, 1},   {1, 1000, 1},
    {2, 1024, 1},  {1, 1500, 0}, {256, 1, 1},   {256, 65, 0},  {129, 576, 1},
    {17, 1025, 1}, {5, 4099, 1}, {64, 2048, 0}, {1, 14336, 0},
};

static void build_add(struct conform_build *b) {
    const i32 *shape = b->item->shape;
    u32 rows = (u32)shape[0], n = (u32)shape[1], pad = (u32)shape[2];
    u32 residual_stride = n + 15 * pad, x_stride = n + 3 * pad;
    u32 residual = declare_out(b, "residual", 4ull * rows * residual_stride);
    u32 x = declare_in(b, "x", 4ull * rows * x_stride);
    if (!poisoned(b)) return;
    fill(b, residual, F32, rows, n, residual_stride, 4, true);
    fill(b, x, F32, rows, n, x_stride, 4, true);
    seal(b);
    struct add_args args = {wanted(b, residual), input(b, x), residual_stride, x_stride, n};
    b->is_refused = b->reference->add(&args, 0, rows, scratch_of(b)) != 0;
    struct cuda_add_params params = {.residual = address(b, residual),
                                     .x = address(b, x),
                                     .n = n,
                                     .residual_stride = residual_stride,
                                     .x_stride = x_stride};
    launch(b, b->item->kernel, rows, n, 1, 0, &params, sizeof params);
}

// value: what is planted at `bad`: 0 and 1 a NaN, 2 and 3 an infinity.
static const char *const finite_columns[] = {"rows", "n", "pad", "bad", "value", NULL};
static const i32 finite_shapes[][SHAPE_MAX] = {
    {1, 1, 1, -1, 0},      {2, 257, 1, -1, 0},    {1, 1, 1, 0, 0},           {3, 70, 1, 209, 2},
    {1, 1100, 1, 1099, 1}, {1, 1000, 0, -1, 0},   {2, 300, 0, 300, 3},       {1, 900, 1, 767, 1},
    {1, 2048, 0, 2047, 2}, {256, 65, 1, -1, 0},   {256, 65, 1, 16639, 2},    {129, 1025, 0, 0, 3},
    {17, 4097, 1, -1, 0},  {1, 151936, 0, -1, 0}, {1, 151936, 0, 151935, 0},
};

static void build_finite(struct conform_build *b) {
    static const u32 values[] = {0x7fc00000, 0x7f800001, 0x7f800000, 0xff800000};
    const i32 *shape = b->item->shape;
    u32 rows = (u32)shape[0], n = (u32)shape[1], stride = n + 7 * (u32)shape[2];
    u32 x = declare_in(b, "x", 4ull * rows * stride);
    if (!poisoned(b)) return;
    fill(b, x, F32, rows, n, stride, 4, true);
    plant(b, x, F32, shape[3], n, stride, values[shape[4]]);
    seal(b);
    struct finite_args args = {input(b, x), stride, n};
    b->is_refused = b->reference->finite(&args, 0, rows, scratch_of(b)) != 0;
    struct cuda_finite_params params = {.x = address(b, x), .n = n, .x_stride = stride};
    launch(b, b->item->kernel, rows, n, 1, 0, &params, sizeof params);
}

// --- embed ---

#define VOCABULARY 7 // rows of the table
#define EMBED_SCALE 0x1.99999ap+0f

// scale 1: rows are multiplied by EMBED_SCALE.
static const char *const embed_columns[] = {"tokens", "n", "pad", "scale", NULL};
static const i32 embed_float_shapes[][SHAPE_MAX] = {
    {1, 1, 1, 0},    {3, 70, 1, 1},  {2, 257, 0, 1},  {64, 300, 1, 0},
    {256, 33, 1, 1}, {5, 576, 0, 0}, {1, 4097, 1, 1},
};
static const i32 embed_32_shapes[][SHAPE_MAX] = {
    {1, 32, 0, 1},   {3, 96, 1, 1},  {2, 288, 0, 0},  {64, 320, 1, 0},
    {256, 32, 1, 1}, {5, 576, 0, 1}, {2, 4096, 1, 0},
};
static const i32 embed_256_shapes[][SHAPE_MAX] = {
    {1, 256, 0, 1},   {2, 512, 1, 1},  {3, 768, 0, 0},  {64, 256, 1, 0},
    {256, 256, 0, 1}, {5, 1280, 1, 1}, {2, 4096, 1, 0},
};

static void build_embed(struct conform_build *b) {
    const i32 *shape = b->item->shape;
    u32 n_tokens = (u32)shape[0], n = (u32)shape[1], stride = n + 9 * (u32)shape[2];
    f32 scale = shape[3] != 0 ? EMBED_SCALE : 1.0f;
    enum dtype type = type_of(b);
    u64 row_bytes = dtype_row_bytes(type, n);
    u32 step = type == DTYPE_F32 ? 4 : 2;
    u32 tokens = declare_in(b, "tokens", 4ull * n_tokens);
    u32 table =
        declare(b, "table", CONFORM_IN, VOCABULARY * row_bytes, n_tokens % 2 == 1 ? step : 0);
    u32 residual = declare_out(b, "residual", 4ull * n_tokens * stride);
    if (!poisoned(b)) return;
    fill_below(b, tokens, n_tokens, VOCABULARY);
    fill_weights(b, table, type);
    seal(b);
    struct embed_args args = {input(b, tokens),    input(b, table), row_bytes, type, n, scale,
                              wanted(b, residual), stride};
    b->is_refused = b->reference->embed(&args, 0, n_tokens, scratch_of(b)) != 0;
    struct cuda_embed_params params = {.tokens = address(b, tokens),
                                       .table = address(b, table),
                                       .residual = address(b, residual),
                                       .row_bytes = row_bytes,
                                       .n = n,
                                       .residual_stride = stride,
                                       .scale = scale};
    launch(b, b->item->kernel, n_tokens, n, 1, 0, &params, sizeof params);
}

// --- norms, rotations ---

#define NORM_EPS 0x1.4f8b58p-17f // 1e-5

// threads: of a block. heads: norms of a token, one behind the other.
static const char *const rmsnorm_columns[] = {"tokens", "heads", "n", "threads",
                                              "pad",    "bad",   NULL};
static const char *const rmsnorm_in_place_columns[] = {"tokens", "heads", "n",        "threads",
                                                       "pad",    "bad",   "in_place", NULL};
#define RMSNORM_SHAPES                                                                         \
    {1, 1, 1, 32, 0, -1}, {2, 1, 31, 32, 1, -1}, {3, 1, 33, 64, 1, -1}, {2, 3, 64, 32, 1, -1}, \
        {2, 1, 40, 32, 0, 79}, {2, 1, 100, 32, 1, -1}, {1, 1, 576, 128, 0, -1},                \
        {1, 1, 1025, 256, 0, -1}, {1, 1, 2100, 512, 1, -1}, {4, 1, 4096, 256, 1, -1},          \
        {1, 1, 300, 64, 0, 0}, {1, 5, 80, 32, 1, -1}, {3, 2, 1, 32, 0, -1},                    \
        {256, 1, 33, 32, 1, -1}, {256, 1, 576, 128, 0, -1}, {129, 9, 64, 32, 1, -1},           \
        {17, 1, 2048, 1024, 1, -1}, {2, 1, 14336, 1024, 0, -1}, {1, 1, 32768, 1024, 1, -1}, {  \
        5, 1, 4096, 512, 1, 20479                                                              \
    }
static const i32 rmsnorm_shapes[][SHAPE_MAX] = {RMSNORM_SHAPES};
// The column in_place is 0 where it is not written.
static const i32 rmsnorm_in_place_shapes[][SHAPE_MAX] = {
    RMSNORM_SHAPES,
    {2, 3, 64, 32, 1, -1, 1},
    {1, 5, 80, 32, 0, -1, 1},
    {256, 9, 64, 64, 0, -1, 1},
    {2, 1, 1025, 256, 1, -1, 1},
};

static void build_rmsnorm(struct conform_build *b) {
    const i32 *shape = b->item->shape;
    enum cuda_kernel kernel = b->item->kernel;
    u32 tokens = (u32)shape[0], heads = (u32)shape[1], n = (u32)shape[2], pad = (u32)shape[4];
    bool in_place = shape[6] != 0;
    bool is_f16 = kernel == CUDA_KERNEL_rmsnorm_fused_f16 ||
                  kernel == CUDA_KERNEL_rmsnorm_fused_f16_add;
    bool adds = kernel == CUDA_KERNEL_rmsnorm_fused_add ||
                kernel == CUDA_KERNEL_rmsnorm_fused_f16_add;
    enum element x_type = is_f16 ? F16 : F32, y_type = adds ? F32 : F16;
    u32 x_stride = heads * n + 3 * pad;
    u32 y_stride = in_place ? x_stride : heads * n + 8 * pad;
    u32 x = declare(b, "x", in_place ? CONFORM_OUT : CONFORM_IN,
                    (u64)tokens * x_stride * element_bytes(x_type), 0);
    u32 weight = declare_in(b, "weight", 4ull * n);
    u32 y = in_place ? x : declare_out(b, "y", (u64)tokens * y_stride * element_bytes(y_type));
    if (!poisoned(b)) return;
    fill(b, x, x_type, tokens, heads * n, x_stride, 4, false);
    fill(b, weight, F32, 1, n, n, 2, true);
    if (adds) fill(b, y, F32, tokens, heads * n, y_stride, 4, true);
    // As f32 a finite value whose square is not.
    plant(b, x, x_type, shape[5], heads * n, x_stride, is_f16 ? 0x7c00 : 0x7f000000);
    seal(b);
    for (u32 token = 0; token < tokens; token++) {
        u8 *from = in_place ? wanted(b, x) : input(b, x);
        u8 *to = (u8 *)wanted(b, y) + (usize)token * y_stride * element_bytes(y_type);
        struct rmsnorm_args args = {.x = from + (usize)token * x_stride * element_bytes(x_type),
                                    .x_is_f16 = is_f16,
                                    .x_stride = n,
                                    .n = n,
                                    .weight = input(b, weight),
                                    .eps = NORM_EPS,
                                    .y = adds ? NULL : (f16 *)(void *)to,
                                    .y_stride = n,
                                    .residual = (f32 *)(void *)to,
                                    .residual_stride = n};
        b->is_refused |= b->reference->rmsnorm(&args, 0, heads, scratch_of(b)) != 0;
    }
    struct cuda_rmsnorm_params params = {.x = address(b, x),
                                         .weight = address(b, weight),
                                         .y = address(b, y),
                                         .n = n,
                                         .x_stride = x_stride,
                                         .y_stride = y_stride,
                                         .eps = NORM_EPS};
    launch(b, kernel, tokens, heads, 1, (u32)shape[3], &params, sizeof params);
}

#define ROPE_POSITIONS 300
#define ROPE_BASE 10000.0

// bad -2, -3: at position 1 the first pair is finite and its first, or second, result is not.
static const char *const rope_columns[] = {"tokens", "n_head", "head_dim", "rope_dim",
                                           "pad",    "bad",    NULL};
static const i32 rope_shapes[][SHAPE_MAX] = {
    {1, 2, 2, 2, 1, -1},      {2, 3, 64, 64, 0, -1},    {3, 4, 32, 32, 1, -1},
    {1, 1, 64, 64, 0, -2},    {1, 2, 64, 32, 0, 127},   {1, 9, 64, 32, 1, -1},
    {2, 5, 80, 80, 1, -1},    {1, 2, 128, 96, 0, -1},   {2, 3, 64, 64, 0, 383},
    {1, 1, 64, 64, 0, 0},     {1, 1, 64, 32, 0, 32},    {1, 1, 64, 64, 0, -3},
    {16, 8, 128, 128, 0, -1}, {256, 3, 64, 64, 1, -1},  {129, 9, 64, 32, 1, -1},
    {1, 32, 128, 128, 0, -1}, {33, 5, 256, 256, 1, -1}, {1, 2, 512, 512, 1, -1},
};

static void fill_rope_table(const struct conform_build *b, u32 table, u32 pairs) {
    f32 *at = input(b, table);
    for (u32 position = 0; position < ROPE_POSITIONS; position++) {
        for (u32 i = 0; i < pairs; i++) {
            f64 angle = (f64)position * math_pow(ROPE_BASE, -2.0 * (f64)i / (2.0 * (f64)pairs));
            *at++ = (f32)math_cos(angle);
            *at++ = (f32)math_sin(angle);
        }
    }
}

static void build_rope(struct conform_build *b) {
    const i32 *shape = b->item->shape;
    u32 tokens = (u32)shape[0], n_head = (u32)shape[1], head_dim = (u32)shape[2];
    u32 rope_dim = (u32)shape[3], stride = n_head * head_dim + 11 * (u32)shape[4];
    i32 bad = shape[5];
    bool neox = b->item->kernel == CUDA_KERNEL_rope_fused_neox;
    u32 x = declare_out(b, "x", 2ull * tokens * stride);
    u32 positions = declare_in(b, "positions", 4ull * tokens);
    u32 table = declare_in(b, "table", 4ull * ROPE_POSITIONS * rope_dim);
    if (!poisoned(b)) return;
    fill(b, x, F16, tokens, n_head * head_dim, stride, 4, false);
    fill_below(b, positions, tokens, ROPE_POSITIONS);
    fill_rope_table(b, table, rope_dim / 2);
    plant(b, x, F16, bad, n_head * head_dim, stride, 0x7c00);
    if (bad < -1) {
        store_u32(input(b, positions), 1);
        plant(b, x, F16, 0, n_head * head_dim, stride, 0x7bff);
        plant(b, x, F16, neox ? (i32)rope_dim / 2 : 1, n_head * head_dim, stride,
              bad == -2 ? 0xfbff : 0x7bff);
    }
    seal(b);
    struct rope_args args = {wanted(b, x),        stride,         n_head, head_dim, rope_dim, neox,
                             input(b, positions), input(b, table)};
    b->is_refused = b->reference->rope(&args, 0, tokens, scratch_of(b)) != 0;
    struct cuda_rope_params params = {.x = address(b, x),
                                      .positions = address(b, positions),
                                      .table = address(b, table),
                                      .x_stride = stride,
                                      .n_head = n_head,
                                      .head_dim = head_dim,
                                      .rope_dim = rope_dim};
    launch(b, b->item->kernel, tokens, n_head, 1, 0, &params, sizeof params);
}

// --- quantize, gemm ---

// Buffers of activations as 16-bit integers; strides in elements.
struct activations {
    u32 x, a, high, low, scale, sum16, sum32; // buffers
    u32 x_stride, a_stride, plane_stride, scale_stride, sum_stride;
};

static struct q16 q16_of(void *a, void *scale, void *sum16, void *sum32,
                         const struct activations *q) {
    return (struct q16){a, scale, sum16, sum32, q->a_stride, q->scale_stride, q->sum_stride};
}

// a = 256 * high + low, high signed.
static void split_planes(const i16 *a, u32 a_stride, u8 *high, u8 *low, u32 plane_stride, u32 rows,
                         u32 n) {
    for (usize row = 0; row < rows; row++) {
        for (u32 i = 0; i < n; i++) {
            u16 bits = (u16)a[row * a_stride + i];
            high[row * plane_stride + i] = (u8)(bits >> 8);
            low[row * plane_stride + i] = (u8)bits;
        }
    }
}

// at, value: element `at` becomes a forbidden value (1 to 3), or the largest of its group (4, 5).
static const char *const quantize_columns[] = {"rows", "n", "pad", "at", "value", NULL};
static const i32 quantize_shapes[][SHAPE_MAX] = {
    {1, 32, 0, 0, 0},     {2, 288, 1, 0, 0},   {3, 256, 1, 0, 0},       {2, 288, 0, 575, 1},
    {1, 64, 0, 25, 5},    {2, 224, 1, 0, 0},   {1, 576, 0, 0, 0},       {1, 1024, 0, 0, 0},
    {2, 1120, 1, 0, 0},   {1, 64, 0, 0, 2},    {1, 1120, 1, 1119, 3},   {1, 64, 1, 0, 4},
    {1, 32, 0, 10, 4},    {1, 256, 0, 251, 5}, {1, 288, 0, 140, 5},     {1, 96, 0, 45, 4},
    {1, 256, 1, 246, 5},  {1, 512, 0, 271, 4}, {256, 32, 1, 0, 0},      {256, 576, 0, 0, 0},
    {129, 1536, 1, 0, 0}, {17, 4352, 1, 0, 0}, {64, 2048, 0, 70000, 3}, {2, 14336, 0, 0, 0},
};

static void fill_quantize(const struct conform_build *b, const struct activations *q) {
    static const u16 values[] = {0, 0x7c00, 0xfe00, 0xfc00, 0x4c00, 0xcc00};
    const i32 *shape = b->item->shape;
    u32 rows = (u32)shape[0], n = (u32)shape[1];
    fill(b, q->x, F16, rows, n, q->x_stride, 8, shape[4] < 4);
    if (shape[4] != 0) plant(b, q->x, F16, shape[3], n, q->x_stride, values[shape[4]]);
}

static void build_quantize(struct conform_build *b) {
    const i32 *shape = b->item->shape;
    u32 rows = (u32)shape[0], n = (u32)shape[1], pad = (u32)shape[2];
    bool planes = b->item->kernel == CUDA_KERNEL_quantize_q16_planes;
    struct activations q = {.x_stride = n + 16 * pad,
                            .a_stride = n + 24 * pad,
                            .plane_stride = n + 8 * pad,
                            .scale_stride = (n + 255) / 256 + pad,
                            .sum_stride = n / 16 + 3 * pad};
    q.x = declare_in(b, "x", 2ull * rows * q.x_stride);
    q.a = declare(b, "a", planes ? CONFORM_HOST : CONFORM_OUT, 2ull * rows * q.a_stride, 0);
    if (planes) q.high = declare_out(b, "high", (u64)rows * q.plane_stride);
    if (planes) q.low = declare_out(b, "low", (u64)rows * q.plane_stride);
    q.scale = declare_out(b, "scale", 4ull * rows * q.scale_stride);
    q.sum16 = declare_out(b, "sum16", 4ull * rows * q.sum_stride);
    q.sum32 = declare_out(b, "sum32", 4ull * rows * q.sum_stride);
    if (!poisoned(b)) return;
    fill_quantize(b, &q);
    seal(b);
    i16 *a = planes ? input(b, q.a) : wanted(b, q.a);
    struct quantize_args args = {
        input(b, q.x), q.x_stride, n,
        q16_of(a, wanted(b, q.scale), wanted(b, q.sum16), wanted(b, q.sum32), &q)};
    b->is_refused = b->reference->quantize_q16(&args, 0, rows, scratch_of(b)) != 0;
    if (!planes) {
        struct cuda_quantize_params params = {.x = address(b, q.x),
                                              .a = address(b, q.a),
                                              .scale = address(b, q.scale),
                                              .sum16 = address(b, q.sum16),
                                              .sum32 = address(b, q.sum32),
                                              .n = n,
                                              .x_stride = q.x_stride,
                                              .a_stride = q.a_stride,
                                              .scale_stride = q.scale_stride,
                                              .sum_stride = q.sum_stride};
        launch(b, b->item->kernel, rows, n, 1, 0, &params, sizeof params);
        return;
    }
    split_planes(a, q.a_stride, wanted(b, q.high), wanted(b, q.low), q.plane_stride, rows, n);
    struct cuda_quantize_planes_params params = {.x = address(b, q.x),
                                                 .high = address(b, q.high),
                                                 .low = address(b, q.low),
                                                 .scale = address(b, q.scale),
                                                 .sum16 = address(b, q.sum16),
                                                 .sum32 = address(b, q.sum32),
                                                 .n = n,
                                                 .x_stride = q.x_stride,
                                                 .plane_stride = q.plane_stride,
                                                 .scale_stride = q.scale_stride,
                                                 .sum_stride = q.sum_stride};
    launch(b, b->item->kernel, rows, n, 1, 0, &params, sizeof params);
}

// output: enum gemm_output.
static const char *const gemm_columns[] = {"k", "features", "tokens", "output", "bias", NULL};
static const i32 gemm_32_shapes[][SHAPE_MAX] = {
    {32, 1, 1, 2, 0},    {288, 70, 9, 1, 0},   {64, 64, 32, 0, 1},   {320, 67, 5, 0, 0},
    {576, 65, 33, 2, 1}, {1056, 16, 40, 1, 1}, {96, 7, 2, 0, 1},     {256, 130, 31, 1, 0},
    {512, 63, 64, 2, 1}, {544, 64, 65, 0, 0},  {288, 33, 129, 1, 1}, {288, 33, 256, 2, 0},
    {64, 129, 3, 2, 0},  {128, 65, 7, 1, 0},   {160, 61, 8, 0, 0},   {288, 66, 17, 2, 1},
    {96, 64, 100, 1, 1}, {224, 40, 255, 0, 1}, {4352, 66, 40, 2, 0}, {14336, 70, 33, 1, 0},
};
static const i32 gemm_256_shapes[][SHAPE_MAX] = {
    {256, 1, 1, 2, 0},    {512, 70, 9, 1, 0},   {256, 64, 32, 0, 1},  {768, 67, 5, 0, 0},
    {1280, 65, 33, 2, 1}, {1024, 16, 40, 1, 1}, {256, 7, 2, 0, 1},    {256, 130, 31, 1, 0},
    {512, 63, 64, 2, 1},  {768, 64, 65, 0, 0},  {256, 33, 129, 1, 1}, {256, 33, 256, 2, 0},
    {256, 129, 3, 2, 0},  {512, 65, 7, 1, 0},   {256, 61, 8, 0, 0},   {512, 66, 17, 2, 1},
    {256, 64, 100, 1, 1}, {256, 40, 255, 0, 1}, {4352, 66, 40, 2, 0}, {14336, 70, 33, 1, 0},
};
static const i32 gemv_32_shapes[][SHAPE_MAX] = {
    {32, 1, 1, 2, 0},    {288, 13, 1, 1, 0},   {320, 11, 1, 0, 1},  {96, 9, 3, 1, 1},
    {1280, 8, 1, 2, 1},  {576, 9, 3, 0, 0},    {96, 17, 256, 2, 0}, {576, 576, 1, 1, 0},
    {64, 8, 7, 0, 1},    {4352, 100, 1, 2, 0}, {16384, 5, 1, 0, 0}, {16416, 5, 2, 2, 1},
    {18688, 3, 1, 1, 0}, {17664, 10, 1, 2, 0}, {1024, 64, 1, 0, 1},
};
static const i32 gemv_256_shapes[][SHAPE_MAX] = {
    {256, 1, 1, 2, 0},   {512, 13, 1, 1, 0},   {768, 11, 1, 0, 1},   {256, 9, 3, 1, 1},
    {1280, 8, 1, 2, 1},  {512, 9, 3, 0, 0},    {256, 17, 256, 2, 0}, {512, 576, 1, 1, 0},
    {256, 8, 7, 0, 1},   {4352, 100, 1, 2, 0}, {16384, 5, 1, 0, 0},  {16640, 5, 2, 2, 1},
    {18688, 3, 1, 1, 0}, {17664, 10, 1, 2, 0}, {1024, 64, 1, 0, 1},
};
static const i32 gemv_4_32_shapes[][SHAPE_MAX] = {
    {32, 3, 2, 2, 0},    {288, 9, 4, 1, 0},   {320, 11, 5, 0, 1},  {96, 9, 1, 2, 1},
    {576, 17, 6, 1, 1},  {96, 9, 256, 0, 0},  {544, 16, 64, 2, 1}, {1280, 8, 3, 0, 1},
    {64, 7, 129, 1, 0},  {4352, 60, 4, 1, 0}, {16384, 6, 4, 0, 0}, {16416, 5, 8, 2, 0},
    {18688, 2, 1, 2, 0},
};
static const i32 gemv_4_256_shapes[][SHAPE_MAX] = {
    {256, 3, 2, 2, 0},   {512, 9, 4, 1, 0},   {768, 11, 5, 0, 1},  {256, 9, 1, 2, 1},
    {512, 17, 6, 1, 1},  {256, 9, 256, 0, 0}, {512, 16, 64, 2, 1}, {1280, 8, 3, 0, 1},
    {256, 7, 129, 1, 0}, {4352, 60, 4, 1, 0}, {16384, 6, 4, 0, 0}, {16640, 5, 8, 2, 0},
    {18688, 2, 1, 2, 0},
};
static const i32 gemv_float_shapes[][SHAPE_MAX] = {
    {1, 1, 1, 2, 1},     {33, 9, 1, 1, 0},    {264, 8, 1, 0, 1},   {2, 3, 2, 0, 0},
    {1035, 13, 1, 2, 1}, {1027, 17, 6, 1, 0}, {65, 20, 256, 2, 0}, {576, 49, 3, 0, 1},
    {255, 8, 4, 2, 0},   {256, 7, 5, 1, 1},   {257, 16, 64, 0, 0}, {4352, 40, 4, 2, 1},
    {16384, 4, 1, 0, 0}, {16385, 3, 5, 2, 0}, {16648, 2, 1, 1, 0},
};

static u32 declare_out_rows(struct conform_build *b, u32 stride) {
    const i32 *shape = b->item->shape;
    u32 bytes = shape[3] == GEMM_TO_F16 ? 2 : 4;
    return declare_out(b, "out", (u64)(u32)shape[2] * stride * bytes);
}

// Contents of bias and of what is added to.
static void fill_gemm(const struct conform_build *b, u32 bias, u32 out, u32 out_stride) {
    const i32 *shape = b->item->shape;
    u32 features = (u32)shape[1], tokens = (u32)shape[2];
    fill(b, bias, F32, 1, features, features, 4, false);
    if (shape[3] != GEMM_ADD_F32) return;
    fill(b, out, F32, tokens, features, out_stride, 4, false);
}

static struct gemm_args gemm_args_of(const struct conform_build *b, u32 weight, u32 bias, u32 out,
                                     u32 out_stride) {
    const i32 *shape = b->item->shape;
    enum dtype type = type_of(b);
    return (struct gemm_args){.weight = input(b, weight),
                              .row_bytes = dtype_row_bytes(type, (u32)shape[0]),
                              .type = type,
                              .k = (u32)shape[0],
                              .n_tokens = (u32)shape[2],
                              .bias = shape[4] != 0 ? input(b, bias) : NULL,
                              .output = (enum gemm_output)shape[3],
                              .out = wanted(b, out),
                              .out_stride = out_stride};
}

// The activations come from the reference's quantize_q16; the kernel gets them as planes.
static void fill_activations(const struct conform_build *b, const struct activations *q, u32 k,
                             u32 tokens) {
    fill(b, q->x, F16, tokens, k, q->x_stride, 8, true);
    struct quantize_args args = {
        input(b, q->x), q->x_stride, k,
        q16_of(input(b, q->a), input(b, q->scale), input(b, q->sum16), input(b, q->sum32), q)};
    u32 failed = b->reference->quantize_q16(&args, 0, tokens, scratch_of(b));
    assert(failed == 0);
    split_planes(input(b, q->a), q->a_stride, input(b, q->high), input(b, q->low), q->plane_stride,
                 tokens, k);
}

static void build_gemm(struct conform_build *b) {
    const i32 *shape = b->item->shape;
    u32 k = (u32)shape[0], features = (u32)shape[1], tokens = (u32)shape[2];
    u32 out_stride = features + 3;
    enum dtype type = type_of(b);
    u64 row_bytes = dtype_row_bytes(type, k);
    struct activations q = {.x_stride = k + 16,
                            .a_stride = k,
                            .plane_stride = (u32)round_up(k, 16) + 16,
                            .scale_stride = (k + 255) / 256 + 1,
                            .sum_stride = k / 16 + 3};
    u32 weight = declare(b, "weight", CONFORM_IN, features * row_bytes, features % 2 * 4);
    q.x = declare(b, "x", CONFORM_HOST, 2ull * tokens * q.x_stride, 0);
    q.a = declare(b, "a", CONFORM_HOST, 2ull * tokens * q.a_stride, 0);
    q.high = declare_in(b, "high", (u64)tokens * q.plane_stride);
    q.low = declare_in(b, "low", (u64)tokens * q.plane_stride);
    q.scale = declare_in(b, "scale", 4ull * tokens * q.scale_stride);
    q.sum16 = declare_in(b, "sum16", 4ull * tokens * q.sum_stride);
    q.sum32 = declare_in(b, "sum32", 4ull * tokens * q.sum_stride);
    u32 bias = declare_in(b, "bias", 4ull * features);
    u32 out = declare_out_rows(b, out_stride);
    if (!poisoned(b)) return;
    fill_weights(b, weight, type);
    fill_activations(b, &q, k, tokens);
    fill_gemm(b, bias, out, out_stride);
    seal(b);
    struct gemm_args args = gemm_args_of(b, weight, bias, out, out_stride);
    args.xq = q16_of(input(b, q.a), input(b, q.scale), input(b, q.sum16), input(b, q.sum32), &q);
    b->is_refused = b->reference->gemm[type](&args, 0, features, scratch_of(b)) != 0;
    struct cuda_gemm_params params = {.weight = address(b, weight),
                                      .high = address(b, q.high),
                                      .low = address(b, q.low),
                                      .scale = address(b, q.scale),
                                      .sums = address(b, type == DTYPE_Q2_K ? q.sum16 : q.sum32),
                                      .bias = args.bias != NULL ? address(b, bias) : 0,
                                      .out = address(b, out),
                                      .row_bytes = (u32)row_bytes,
                                      .k = k,
                                      .features = features,
                                      .n_tokens = tokens,
                                      .plane_stride = q.plane_stride,
                                      .scale_stride = q.scale_stride,
                                      .sum_stride = q.sum_stride,
                                      .out_stride = out_stride,
                                      .output = args.output};
    launch(b, b->item->kernel, features, tokens, 1, 0, &params, sizeof params);
}

// The launch of a product over f16 activations, of which `args` tells the rest.
static void launch_gemv_float(struct conform_build *b, const struct gemm_args *args, u32 weight,
                              u32 x, u32 bias, u32 out, u32 features) {
    struct cuda_gemv_float_params params = {.weight = address(b, weight),
                                            .x = address(b, x),
                                            .bias = args->bias != NULL ? address(b, bias) : 0,
                                            .out = address(b, out),
                                            .row_bytes = (u32)args->row_bytes,
                                            .k = args->k,
                                            .features = features,
                                            .n_tokens = args->n_tokens,
                                            .x_stride = args->x_stride,
                                            .out_stride = args->out_stride,
                                            .output = args->output};
    launch(b, b->item->kernel, features, args->n_tokens, 1, 0, &params, sizeof params);
}

static void build_gemv_float(struct conform_build *b) {
    const i32 *shape = b->item->shape;
    u32 k = (u32)shape[0], features = (u32)shape[1], tokens = (u32)shape[2];
    u32 out_stride = features + 3, x_stride = (u32)round_up(k, 8) + 8;
    enum dtype type = type_of(b);
    u64 row_bytes = dtype_row_bytes(type, k);
    u32 weight = declare(b, "weight", CONFORM_IN, features * row_bytes,
                         features % 2 * (type == DTYPE_F32 ? 4 : 2));
    u32 x = declare_in(b, "x", 2ull * tokens * x_stride);
    u32 bias = declare_in(b, "bias", 4ull * features);
    u32 out = declare_out_rows(b, out_stride);
    if (!poisoned(b)) return;
    fill_weights(b, weight, type);
    fill(b, x, F16, tokens, k, x_stride, 4, true);
    fill_gemm(b, bias, out, out_stride);
    seal(b);
    struct gemm_args args = gemm_args_of(b, weight, bias, out, out_stride);
    args.x = input(b, x);
    args.x_stride = x_stride;
    b->is_refused = b->reference->gemm[type](&args, 0, features, scratch_of(b)) != 0;
    launch_gemv_float(b, &args, weight, x, bias, out, features);
}

// --- gemm of the tensor profile ---

// Weights, activations and biases are integers so small that every sum is exact in whatever order:
// results are the same bits everywhere, though the profile promises only a bound for others.
static const i32 tensor_16_shapes[][SHAPE_MAX] = {
    {8, 1, 1, 2, 0},     {264, 17, 9, 1, 0},   {136, 130, 3, 0, 1}, {1032, 9, 70, 2, 1},
    {576, 128, 8, 1, 1}, {64, 129, 129, 2, 0}, {2048, 33, 5, 0, 1}, {96, 40, 256, 1, 0},
};
static const i32 tensor_32_shapes[][SHAPE_MAX] = {
    {32, 1, 1, 2, 0},    {288, 17, 9, 1, 0},   {96, 130, 3, 0, 1},  {1056, 9, 70, 2, 1},
    {576, 128, 8, 1, 1}, {64, 129, 129, 2, 0}, {2048, 33, 5, 0, 1}, {96, 40, 256, 1, 0},
};
static const i32 tensor_256_shapes[][SHAPE_MAX] = {
    {256, 1, 1, 2, 0},   {512, 17, 9, 1, 0},    {256, 130, 3, 0, 1}, {1280, 9, 70, 2, 1},
    {768, 128, 8, 1, 1}, {256, 129, 129, 2, 0}, {2048, 33, 5, 0, 1}, {256, 40, 256, 1, 0},
};

// Scales are 1, 2, -1 or -2, floats -8 to 8.
static void fill_integral_weights(const struct conform_build *b, u32 buffer, enum dtype type) {
    fill_weights(b, buffer, type);
    const struct dtype_info *info = dtype_lookup(type);
    u32 scale_at = 0, n_scales = scales_of(type, &scale_at);
    for (u64 block = 0; block < b->buffers[buffer].bytes / info->block_bytes; block++) {
        u8 *at = (u8 *)input(b, buffer) + block * info->block_bytes;
        for (u32 s = 0; s < n_scales; s++) {
            u32 bits = (u32)word(b, buffer, SCALE_WORDS + 2 * block + s);
            f32 value = (f32)(i32)(bits % 17) - 8;
            u16 scale = (u16)(0x3c00 + 0x400 * (bits & 1) + 0x4000 * (bits & 2));
            u16 half = type == DTYPE_BF16 ? (u16)(f32_bits(value) >> 16) : f32_to_f16(value);
            store_u16(at + scale_at + 2 * (usize)s, info->quantised ? scale : half);
        }
    }
}

static void fill_integers(const struct conform_build *b, u32 buffer, enum element type, u32 rows,
                          u32 n, u32 stride, u32 most) {
    for (u64 row = 0; row < rows; row++) {
        for (u64 i = row * stride; i < row * stride + n; i++) {
            i32 value = (i32)(u32)(word(b, buffer, i) % (2 * most + 1)) - (i32)most;
            put((u8 *)input(b, buffer) + i * element_bytes(type), type, value);
        }
    }
}

// Operator 6 of exact totals. `row` is a buffer of k floats.
static void exact_gemm(const struct gemm_args *args, u32 features, f32 *row) {
    for (u32 r = 0; r < features; r++) {
        dtype_dequantise(args->type, args->weight + r * args->row_bytes, args->k, row);
        for (u32 t = 0; t < args->n_tokens; t++) {
            const f16 *x = args->x + (usize)t * args->x_stride;
            f64 total = args->bias != NULL ? load_f32(args->bias + 4 * (usize)r) : 0;
            for (u32 i = 0; i < args->k; i++) total += (f64)row[i] * f16_to_f32(x[i]);
            usize at = (usize)t * args->out_stride + r;
            f32 *sum = (f32 *)args->out + at;
            if (args->output == GEMM_TO_F16) {
                ((f16 *)args->out)[at] = f32_to_f16((f32)total);
            } else {
                *sum = (f32)(args->output == GEMM_ADD_F32 ? *sum + total : total);
            }
        }
    }
}

static void build_gemm_tensor(struct conform_build *b) {
    const i32 *shape = b->item->shape;
    u32 k = (u32)shape[0], features = (u32)shape[1], tokens = (u32)shape[2];
    u32 out_stride = features + 3, x_stride = (u32)round_up(k, 8) + 8;
    enum dtype type = type_of(b);
    u64 row_bytes = dtype_row_bytes(type, k);
    u32 weight = declare_in(b, "weight", features * row_bytes);
    u32 x = declare_in(b, "x", 2ull * tokens * x_stride);
    u32 bias = declare_in(b, "bias", 4ull * features);
    u32 row = declare(b, "row", CONFORM_HOST, 4ull * k, 0);
    u32 out = declare_out_rows(b, out_stride);
    if (!poisoned(b)) return;
    fill_integral_weights(b, weight, type);
    fill_integers(b, x, F16, tokens, k, x_stride, 4);
    fill_integers(b, bias, F32, 1, features, features, 9);
    if (shape[3] == GEMM_ADD_F32) fill_integers(b, out, F32, tokens, features, out_stride, 99);
    seal(b);
    struct gemm_args args = gemm_args_of(b, weight, bias, out, out_stride);
    args.x = input(b, x);
    args.x_stride = x_stride;
    exact_gemm(&args, features, input(b, row));
    launch_gemv_float(b, &args, weight, x, bias, out, features);
}

// --- gemm of the tensor profile, real numbers ---

// What is asked for is told in conform_tensor.c.
static const char *const real_columns[] = {"real_k", "features", "tokens", "output", "bias", NULL};

static const i32 real_16_shapes[][SHAPE_MAX] = {
    {8, 1, 1, 2, 0},      {96, 17, 5, 1, 1},     {296, 70, 9, 0, 1},    {64, 130, 64, 2, 0},
    {576, 65, 65, 2, 1},  {1056, 129, 17, 1, 1}, {328, 67, 129, 0, 0},  {288, 33, 256, 2, 0},
    {4352, 66, 40, 2, 0}, {14336, 20, 33, 1, 0}, {512, 256, 128, 2, 1}, {544, 64, 8, 0, 0},
    {256, 257, 72, 2, 0}, {24, 128, 16, 1, 0},
};
static const i32 real_32_shapes[][SHAPE_MAX] = {
    {32, 1, 1, 2, 0},     {96, 17, 5, 1, 1},     {288, 70, 9, 0, 1},    {64, 130, 64, 2, 0},
    {576, 65, 65, 2, 1},  {1056, 129, 17, 1, 1}, {320, 67, 129, 0, 0},  {288, 33, 256, 2, 0},
    {4352, 66, 40, 2, 0}, {14336, 20, 33, 1, 0}, {512, 256, 128, 2, 1}, {544, 64, 8, 0, 0},
    {256, 257, 72, 2, 0}, {32, 128, 16, 1, 0},
};
static const i32 real_256_shapes[][SHAPE_MAX] = {
    {256, 1, 1, 2, 0},    {256, 17, 5, 1, 1},    {512, 70, 9, 0, 1},    {256, 130, 64, 2, 0},
    {768, 65, 65, 2, 1},  {1024, 129, 17, 1, 1}, {256, 67, 129, 0, 0},  {256, 33, 256, 2, 0},
    {4352, 66, 40, 2, 0}, {14336, 20, 33, 1, 0}, {512, 256, 128, 2, 1}, {1280, 64, 8, 0, 0},
    {256, 257, 72, 2, 0}, {256, 128, 16, 1, 0},
};

// The other kernel of the type: gemm_tensor_T_8 follows gemm_tensor_T.
static enum cuda_kernel partner_of(enum cuda_kernel kernel) {
    bool is_first = (kernel - CUDA_KERNEL_gemm_tensor_f16) % 2 == 0;
    return is_first ? kernel + 1 : kernel - 1;
}

// Rows [first, first + rows) of the product by a kernel.
static void launch_real(struct conform_build *b, enum cuda_kernel kernel,
                        const struct gemm_args *args, struct cuda_gemv_float_params params,
                        u32 first, u32 rows, u32 out) {
    params.x += 2ull * first * args->x_stride;
    params.out = address(b, out);
    params.n_tokens = rows;
    launch(b, kernel, params.features, rows, 1, 0, &params, sizeof params);
}

// All rows by the kernel; then batches of 64, 17, 5 and 1 of them, and all by the other kernel.
static void build_real(struct conform_build *b) {
    static const u32 batches[] = {64, 17, 5, 1};
    const i32 *shape = b->item->shape;
    u32 k = (u32)shape[0], features = (u32)shape[1], tokens = (u32)shape[2];
    u32 out_stride = features + 3, x_stride = (u32)round_up(k, 8) + 8;
    bool is_f16 = shape[3] == GEMM_TO_F16;
    u64 row_bytes = dtype_row_bytes(type_of(b), k), out_row = (is_f16 ? 2ull : 4ull) * out_stride;
    u32 weight = declare_in(b, "weight", features * row_bytes);
    u32 x = declare_in(b, "x", 2ull * tokens * x_stride);
    u32 bias = declare_in(b, "bias", 4ull * features);
    struct conform_bounded *bounded = &b->bounded;
    *bounded = (struct conform_bounded){.out = declare_out_rows(b, out_stride),
                                        .rows = tokens,
                                        .n = features,
                                        .stride = out_stride,
                                        .is_f16 = is_f16};
    for (u32 i = 0; i < COUNT_OF(batches); i++) {
        u32 rows = batches[i], first = (tokens - MIN(rows, tokens)) / 2;
        if (rows >= tokens) continue;
        bounded->parts[bounded->n_parts++] =
            (struct conform_part){declare_out(b, "part", rows * out_row), first, rows};
    }
    bounded->parts[bounded->n_parts++] =
        (struct conform_part){declare_out(b, "other kernel's", tokens * out_row), 0, tokens};
    bounded->exact = declare(b, "exact", CONFORM_HOST, 8ull * tokens * features, 0);
    bounded->slack = declare(b, "slack", CONFORM_HOST, 8ull * tokens * features, 0);
    u32 row = declare(b, "row", CONFORM_HOST, 16ull * k, 0);
    if (!poisoned(b)) return;
    fill_weights(b, weight, type_of(b));
    fill(b, x, F16, tokens, k, x_stride, 4, false);
    fill_gemm(b, bias, bounded->out, out_stride);
    for (u32 p = 0; p < bounded->n_parts; p++) {
        const struct conform_part *part = &bounded->parts[p];
        memcpy(input(b, part->buffer), (u8 *)input(b, bounded->out) + part->first * out_row,
               part->rows * out_row);
    }
    seal(b);
    struct gemm_args args = gemm_args_of(b, weight, bias, bounded->out, out_stride);
    args.x = input(b, x);
    args.x_stride = x_stride;
    conform_exact_gemm(&args, features, input(b, bounded->out), input(b, bounded->exact),
                       input(b, bounded->slack), input(b, row));
    struct cuda_gemv_float_params params = {.weight = address(b, weight),
                                            .x = address(b, x),
                                            .bias = args.bias != NULL ? address(b, bias) : 0,
                                            .row_bytes = (u32)row_bytes,
                                            .k = k,
                                            .features = features,
                                            .x_stride = x_stride,
                                            .out_stride = out_stride,
                                            .output = args.output};
    launch_real(b, b->item->kernel, &args, params, 0, tokens, bounded->out);
    for (u32 p = 0; p < bounded->n_parts; p++) {
        const struct conform_part *part = &bounded->parts[p];
        bool is_other = p + 1 == bounded->n_parts;
        launch_real(b, is_other ? partner_of(b->item->kernel) : b->item->kernel, &args, params,
                    part->first, part->rows, part->buffer);
    }
}

// --- the KV cache ---

// Rows take the sequences in turn. Sequence s begins 3 * s positions behind the first one.
struct cache {
    u32 k, v, tables, positions, slots; // buffers
    u32 rows, n_slots, first, last;     // last: the largest position
    u32 n;                              // elements of a token in a plane
    u32 max_blocks, n_pages;
    u64 token_stride, page_stride; // bytes
};

static u32 position_of(const struct cache *c, u32 row) {
    return c->first + row / c->n_slots + 3 * (row % c->n_slots);
}

static void declare_cache(struct conform_build *b, struct cache *c, enum conform_role role) {
    c->last = c->first;
    for (u32 row = 0; row < c->rows; row++) c->last = MAX(c->last, position_of(c, row));
    c->max_blocks = c->last / OP_KV_BLOCK_TOKENS + 1;
    c->n_pages = c->n_slots * c->max_blocks;
    c->token_stride = 2ull * c->n;
    c->page_stride = OP_KV_BLOCK_TOKENS * c->token_stride + 64;
    c->k = declare(b, "cache_k", role, c->n_pages * c->page_stride, 0);
    c->v = declare(b, "cache_v", role, c->n_pages * c->page_stride, 0);
    c->tables = declare_in(b, "tables", 4ull * c->n_pages);
    c->positions = declare_in(b, "positions", 4ull * c->rows);
    c->slots = declare_in(b, "slots", 4ull * c->rows);
}

static void fill_tables(const struct conform_build *b, const struct cache *c) {
    u32 *positions = input(b, c->positions), *slots = input(b, c->slots);
    fill_permutation(b, c->tables, c->n_pages);
    for (u32 row = 0; row < c->rows; row++) {
        slots[row] = row % c->n_slots;
        positions[row] = position_of(c, row);
    }
}

static struct kv_layer layer_of(const struct conform_build *b, const struct cache *c, void *k,
                                void *v) {
    return (struct kv_layer){.k = k,
                             .v = v,
                             .page_stride = c->page_stride,
                             .token_stride = c->token_stride,
                             .tables = input(b, c->tables),
                             .max_blocks = c->max_blocks};
}

// What some row sees; the rest of the cache stays poison.
static void fill_visible(const struct conform_build *b, const struct cache *c, u32 window) {
    const u32 *tables = input(b, c->tables);
    for (u32 row = 0; row < c->rows; row++) {
        u32 slot = row % c->n_slots, last = position_of(c, row);
        u32 first = window != 0 && last >= window ? last - window + 1 : 0;
        // Rows of a sequence are at consecutive positions: one more than the row before saw.
        if (row >= c->n_slots) first = last;
        for (u32 t = first; t <= last; t++) {
            u32 page = tables[(usize)slot * c->max_blocks + t / OP_KV_BLOCK_TOKENS];
            u64 at = (page * c->page_stride + t % OP_KV_BLOCK_TOKENS * c->token_stride) / 2;
            for (u32 i = 0; i < c->n; i++) {
                put_random(b, c->k, at + i, F16, 2, false);
                put_random(b, c->v, at + i, F16, 2, true);
            }
        }
    }
}

static const char *const kv_columns[] = {"rows",  "n",     "position", "sequences",
                                         "bad_k", "bad_v", NULL};
static const i32 kv_shapes[][SHAPE_MAX] = {
    {1, 2, 0, 1, -1, -1},     {3, 64, 14, 1, -1, -1},      {5, 514, 30, 2, -1, -1},
    {2, 64, 15, 1, 127, -1},  {2, 64, 15, 2, -1, 63},      {2, 1536, 100, 2, -1, -1},
    {33, 258, 0, 4, -1, -1},  {64, 64, 200, 64, -1, -1},   {256, 128, 7, 3, -1, -1},
    {256, 2, 0, 256, -1, -1}, {129, 1026, 250, 1, -1, -1}, {17, 64, 40, 5, 1087, 0},
};

static void build_kv(struct conform_build *b) {
    const i32 *shape = b->item->shape;
    u32 rows = (u32)shape[0], n = (u32)shape[1];
    struct cache c = {.rows = rows, .n_slots = (u32)shape[3], .first = (u32)shape[2], .n = n};
    u32 k_stride = n + 16, v_stride = n + 6;
    u32 k = declare_in(b, "k", 2ull * rows * k_stride);
    u32 v = declare_in(b, "v", 2ull * rows * v_stride);
    declare_cache(b, &c, CONFORM_OUT);
    if (!poisoned(b)) return;
    fill(b, k, F16, rows, n, k_stride, 4, true);
    fill(b, v, F16, rows, n, v_stride, 4, true);
    plant(b, k, F16, shape[4], n, k_stride, 0x7c00);
    plant(b, v, F16, shape[5], n, v_stride, 0xfe01);
    fill_tables(b, &c);
    seal(b);
    struct kv_write_args args = {.k = input(b, k),
                                 .v = input(b, v),
                                 .k_stride = k_stride,
                                 .v_stride = v_stride,
                                 .n = n,
                                 .kv = layer_of(b, &c, wanted(b, c.k), wanted(b, c.v)),
                                 .positions = input(b, c.positions),
                                 .slots = input(b, c.slots)};
    b->is_refused = b->reference->kv_write(&args, 0, rows, scratch_of(b)) != 0;
    struct cuda_kv_append_params params = {.k = address(b, k),
                                           .v = address(b, v),
                                           .cache_k = address(b, c.k),
                                           .cache_v = address(b, c.v),
                                           .tables = address(b, c.tables),
                                           .positions = address(b, c.positions),
                                           .slots = address(b, c.slots),
                                           .page_stride = c.page_stride,
                                           .token_stride = c.token_stride,
                                           .n = n,
                                           .k_stride = k_stride,
                                           .v_stride = v_stride,
                                           .max_blocks = c.max_blocks};
    launch(b, b->item->kernel, rows, n, 1, 0, &params, sizeof params);
}

// --- attention ---

#define ATTENTION_SCALE 0x1.6a09e6p-4f
#define ATTENTION_CAP 3.0f

// position: of the first row; cap 1: ATTENTION_CAP; bad: an element of q that is infinite.
static const char *const attention_columns[] = {"rows",     "n_head", "n_head_kv", "head_dim",
                                                "position", "window", "cap",       "sequences",
                                                "bad",      NULL};
static const i32 attention_shapes[][SHAPE_MAX] = {
    {1, 1, 1, 8, 0, 0, 0, 1, -1},       {3, 2, 1, 64, 14, 0, 0, 2, -1},
    {2, 4, 2, 80, 254, 0, 0, 1, -1},    {2, 2, 1, 64, 30, 0, 1, 2, -1},
    {2, 2, 1, 16, 30, 0, 0, 1, 17},     {2, 3, 1, 96, 511, 0, 0, 1, -1},
    {1, 2, 2, 264, 300, 0, 0, 1, -1},   {4, 2, 1, 64, 255, 100, 0, 2, -1},
    {2, 2, 1, 128, 600, 300, 0, 2, -1}, {1, 1, 1, 16, 40, 1, 0, 1, -1},
    {1, 2, 2, 128, 270, 0, 1, 1, -1},   {2, 1, 1, 32, 530, 270, 1, 2, -1},
    {256, 2, 1, 64, 0, 0, 0, 1, -1},    {130, 8, 2, 64, 100, 0, 0, 3, -1},
    {17, 4, 1, 64, 2040, 0, 0, 17, -1}, {9, 2, 1, 256, 1000, 700, 0, 1, -1},
    {5, 2, 2, 80, 1500, 0, 0, 5, -1},   {33, 4, 4, 32, 200, 33, 1, 4, -1},
    {1, 32, 8, 128, 700, 0, 0, 1, -1},  {2, 1, 1, 512, 300, 0, 1, 1, -1},
    {256, 3, 1, 16, 0, 0, 0, 256, -1},  {64, 4, 2, 72, 480, 512, 0, 2, 18000},
};
static const i32 split_shapes[][SHAPE_MAX] = {
    {1, 1, 1, 8, 0, 0, 0, 1, -1},      {3, 2, 1, 64, 254, 0, 0, 1, -1},
    {2, 2, 1, 64, 300, 0, 1, 2, -1},   {2, 2, 1, 16, 300, 0, 0, 1, 17},
    {2, 2, 2, 80, 767, 0, 0, 1, -1},   {2, 2, 1, 264, 300, 0, 0, 2, -1},
    {2, 2, 1, 64, 700, 290, 0, 1, -1}, {1, 2, 1, 32, 1030, 0, 0, 1, -1},
    {9, 8, 2, 128, 1200, 0, 0, 9, -1}, {4, 2, 1, 512, 800, 500, 0, 1, -1},
    {1, 4, 1, 64, 3000, 0, 0, 1, -1},  {64, 2, 1, 64, 240, 0, 0, 16, -1},
    {2, 2, 1, 64, 600, 0, 1, 2, -1},   {256, 2, 2, 16, 100, 0, 0, 64, -1},
};
static const i32 merge_shapes[][SHAPE_MAX] = {
    {1, 1, 1, 8, 255, 0, 0, 1, -1},    {2, 2, 1, 64, 255, 0, 0, 1, -1},
    {3, 2, 1, 64, 520, 200, 0, 1, -1}, {5, 3, 1, 96, 1020, 0, 0, 5, -1},
    {1, 4, 2, 264, 1100, 0, 1, 1, -1}, {256, 1, 1, 16, 250, 0, 0, 8, -1},
    {1, 2, 1, 128, 2047, 0, 0, 1, -1}, {33, 4, 2, 64, 511, 255, 1, 33, -1},
};

// What the kernels have in common; `out` is the result, or the scratch of the split form.
struct attention_build {
    struct cache c;
    u32 q, out, scratch, tiles; // buffers
    u32 n_head, n_head_kv, head_dim, q_stride, out_stride, window, n_chunks;
    f32 cap;
};

static void attention_reference(struct conform_build *b, const struct attention_build *a) {
    struct attention_tile *tiles = input(b, a->tiles);
    for (u32 row = 0; row < a->c.rows; row++) tiles[row] = (struct attention_tile){row, 1};
    struct attention_args args = {
        .q = input(b, a->q),
        .q_stride = a->q_stride,
        .n_head = a->n_head,
        .n_head_kv = a->n_head_kv,
        .head_dim = a->head_dim,
        .kv = layer_of(b, &a->c, input(b, a->c.k), input(b, a->c.v)),
        .positions = input(b, a->c.positions),
        .slots = input(b, a->c.slots),
        .tiles = tiles,
        .scale = ATTENTION_SCALE,
        .softcap = a->cap,
        .window = a->window,
        .out = wanted(b, a->out),
        .out_stride = a->out_stride,
    };
    u32 n_units = a->c.rows * a->n_head_kv;
    b->is_refused = b->reference->attention(&args, 0, n_units, scratch_of(b)) != 0;
}

static void launch_attention(struct conform_build *b, const struct attention_build *a) {
    struct cuda_attention_params params = {.q = address(b, a->q),
                                           .cache_k = address(b, a->c.k),
                                           .cache_v = address(b, a->c.v),
                                           .tables = address(b, a->c.tables),
                                           .positions = address(b, a->c.positions),
                                           .slots = address(b, a->c.slots),
                                           .out = address(b, a->out),
                                           .out_stride = a->out_stride,
                                           .page_stride = a->c.page_stride,
                                           .token_stride = a->c.token_stride,
                                           .max_blocks = a->c.max_blocks,
                                           .n_head = a->n_head,
                                           .n_head_kv = a->n_head_kv,
                                           .head_dim = a->head_dim,
                                           .q_stride = a->q_stride,
                                           .scale = ATTENTION_SCALE,
                                           .softcap = a->cap,
                                           .window = a->window};
    launch(b, CUDA_KERNEL_flash_attention_paged, a->c.rows, a->n_head, 1, 0, &params,
           sizeof params);
}

// One chunk a block, then the merge of the chunks.
static void launch_split(struct conform_build *b, const struct attention_build *a) {
    struct cuda_attention_split_params split = {.q = address(b, a->q),
                                                .cache_k = address(b, a->c.k),
                                                .cache_v = address(b, a->c.v),
                                                .tables = address(b, a->c.tables),
                                                .positions = address(b, a->c.positions),
                                                .slots = address(b, a->c.slots),
                                                .scratch = address(b, a->scratch),
                                                .page_stride = a->c.page_stride,
                                                .token_stride = a->c.token_stride,
                                                .max_blocks = a->c.max_blocks,
                                                .n_head = a->n_head,
                                                .n_head_kv = a->n_head_kv,
                                                .head_dim = a->head_dim,
                                                .q_stride = a->q_stride,
                                                .scale = ATTENTION_SCALE,
                                                .softcap = a->cap,
                                                .window = a->window};
    launch(b, CUDA_KERNEL_flash_attention_paged_split, a->c.rows, a->n_head, a->n_chunks, 0, &split,
           sizeof split);
    struct cuda_attention_merge_params merge = {.scratch = address(b, a->scratch),
                                                .positions = address(b, a->c.positions),
                                                .out = address(b, a->out),
                                                .n_chunks = a->n_chunks,
                                                .head_dim = a->head_dim,
                                                .out_stride = a->out_stride,
                                                .window = a->window};
    launch(b, CUDA_KERNEL_flash_attention_merge, a->c.rows, a->n_head, 1, 0, &merge, sizeof merge);
}

static void build_attention(struct conform_build *b) {
    const i32 *shape = b->item->shape;
    bool is_split = b->item->kernel != CUDA_KERNEL_flash_attention_paged;
    struct attention_build a = {.c = {.rows = (u32)shape[0],
                                      .n_slots = (u32)shape[7],
                                      .first = (u32)shape[4],
                                      .n = (u32)shape[2] * (u32)shape[3]},
                                .n_head = (u32)shape[1],
                                .n_head_kv = (u32)shape[2],
                                .head_dim = (u32)shape[3],
                                .window = (u32)shape[5],
                                .cap = shape[6] != 0 ? ATTENTION_CAP : 0.0f};
    u32 n = a.n_head * a.head_dim, rows = a.c.rows;
    a.q_stride = n + 8;
    a.out_stride = n + 5;
    a.q = declare_in(b, "q", 2ull * rows * a.q_stride);
    declare_cache(b, &a.c, CONFORM_IN);
    a.out = declare_out(b, "out", 2ull * rows * a.out_stride);
    a.n_chunks = a.c.last / OP_CHUNK + 1;
    u64 scratch_floats = (u64)rows * a.n_head * a.n_chunks * (a.head_dim + 2);
    if (is_split) a.scratch = declare(b, "scratch", CONFORM_SCRATCH, 4 * scratch_floats, 0);
    a.tiles = declare(b, "tiles", CONFORM_HOST, rows * sizeof(struct attention_tile), 0);
    if (!poisoned(b)) return;
    fill(b, a.q, F16, rows, n, a.q_stride, 2, false);
    plant(b, a.q, F16, shape[8], n, a.q_stride, 0x7c00);
    fill_tables(b, &a.c);
    fill_visible(b, &a.c, a.window);
    seal(b);
    attention_reference(b, &a);
    if (is_split) {
        launch_split(b, &a);
    } else {
        launch_attention(b, &a);
    }
}

// --- the tables ---

struct conform_family {
    void (*build)(struct conform_build *b);
    const char *const *columns; // NULL at the end
    const i32 (*shapes)[SHAPE_MAX];
    u32 n_shapes, n_quick;
};

enum family_idx {
    ACT_MUL = 1,
    ADD,
    FINITE,
    EMBED_FLOAT,
    EMBED_32,
    EMBED_256,
    RMSNORM,
    RMSNORM_IN_PLACE,
    ROPE,
    QUANTIZE,
    GEMM_32,
    GEMM_256,
    GEMV_32,
    GEMV_256,
    GEMV_4_32,
    GEMV_4_256,
    GEMV_FLOAT,
    TENSOR_16,
    TENSOR_32,
    TENSOR_256,
    REAL_16,
    REAL_32,
    REAL_256,
    KV,
    ATTENTION,
    SPLIT,
    MERGE,
};

#define FAMILY(build, columns, shapes, n_quick) \
    { build, columns, shapes, COUNT_OF(shapes), n_quick }
static const struct conform_family families[] = {
    [ACT_MUL] = FAMILY(build_act_mul, act_mul_columns, act_mul_shapes, 5),
    [ADD] = FAMILY(build_add, add_columns, add_shapes, 4),
    [FINITE] = FAMILY(build_finite, finite_columns, finite_shapes, 5),
    [EMBED_FLOAT] = FAMILY(build_embed, embed_columns, embed_float_shapes, 3),
    [EMBED_32] = FAMILY(build_embed, embed_columns, embed_32_shapes, 3),
    [EMBED_256] = FAMILY(build_embed, embed_columns, embed_256_shapes, 3),
    [RMSNORM] = FAMILY(build_rmsnorm, rmsnorm_columns, rmsnorm_shapes, 5),
    [RMSNORM_IN_PLACE] =
        FAMILY(build_rmsnorm, rmsnorm_in_place_columns, rmsnorm_in_place_shapes, 5),
    [ROPE] = FAMILY(build_rope, rope_columns, rope_shapes, 5),
    [QUANTIZE] = FAMILY(build_quantize, quantize_columns, quantize_shapes, 5),
    [GEMM_32] = FAMILY(build_gemm, gemm_columns, gemm_32_shapes, 4),
    [GEMM_256] = FAMILY(build_gemm, gemm_columns, gemm_256_shapes, 4),
    [GEMV_32] = FAMILY(build_gemm, gemm_columns, gemv_32_shapes, 3),
    [GEMV_256] = FAMILY(build_gemm, gemm_columns, gemv_256_shapes, 3),
    [GEMV_4_32] = FAMILY(build_gemm, gemm_columns, gemv_4_32_shapes, 3),
    [GEMV_4_256] = FAMILY(build_gemm, gemm_columns, gemv_4_256_shapes, 3),
    [GEMV_FLOAT] = FAMILY(build_gemv_float, gemm_columns, gemv_float_shapes, 4),
    [TENSOR_16] = FAMILY(build_gemm_tensor, gemm_columns, tensor_16_shapes, 3),
    [TENSOR_32] = FAMILY(build_gemm_tensor, gemm_columns, tensor_32_shapes, 3),
    [TENSOR_256] = FAMILY(build_gemm_tensor, gemm_columns, tensor_256_shapes, 3),
    [REAL_16] = FAMILY(build_real, real_columns, real_16_shapes, 3),
    [REAL_32] = FAMILY(build_real, real_columns, real_32_shapes, 3),
    [REAL_256] = FAMILY(build_real, real_columns, real_256_shapes, 3),
    [KV] = FAMILY(build_kv, kv_columns, kv_shapes, 5),
    [ATTENTION] = FAMILY(build_attention, attention_columns, attention_shapes, 5),
    [SPLIT] = FAMILY(build_attention, attention_columns, split_shapes, 4),
    [MERGE] = FAMILY(build_attention, attention_columns, merge_shapes, 3),
};

struct subject {
    enum family_idx family;
    enum dtype type;      // of the weights
    enum family_idx more; // of the tensor profile: further cases (C5)
};

#define SUBJECT(f, t) \
    { .family = (f), .type = (t) }
#define QUANTISED(name, type, n)                             \
    [CUDA_KERNEL_embed_##name] = SUBJECT(EMBED_##n, type),   \
    [CUDA_KERNEL_gemm_##name] = SUBJECT(GEMM_##n, type),     \
    [CUDA_KERNEL_gemv_##name##_1] = SUBJECT(GEMV_##n, type), \
    [CUDA_KERNEL_gemv_##name##_4] = SUBJECT(GEMV_4_##n, type)
#define TENSOR(name, type, n)                                        \
    [CUDA_KERNEL_gemm_tensor_##name] = {TENSOR_##n, type, REAL_##n}, \
    [CUDA_KERNEL_gemm_tensor_##name##_8] = {TENSOR_##n, type, REAL_##n}
#define FLOATS(name, type)                                     \
    [CUDA_KERNEL_embed_##name] = SUBJECT(EMBED_FLOAT, type),   \
    [CUDA_KERNEL_gemv_##name##_1] = SUBJECT(GEMV_FLOAT, type), \
    [CUDA_KERNEL_gemv_##name##_4] = SUBJECT(GEMV_FLOAT, type)
static const struct subject subjects[CUDA_KERNEL_COUNT] = {
    [CUDA_KERNEL_kv_append] = {.family = KV},
    [CUDA_KERNEL_flash_attention_paged] = {.family = ATTENTION},
    [CUDA_KERNEL_flash_attention_paged_split] = {.family = SPLIT},
    [CUDA_KERNEL_flash_attention_merge] = {.family = MERGE},
    [CUDA_KERNEL_silu_fused] = {.family = ACT_MUL},
    [CUDA_KERNEL_gelu_tanh_fused] = {.family = ACT_MUL},
    [CUDA_KERNEL_add] = {.family = ADD},
    [CUDA_KERNEL_finite] = {.family = FINITE},
    [CUDA_KERNEL_rmsnorm_fused] = {.family = RMSNORM},
    [CUDA_KERNEL_rmsnorm_fused_add] = {.family = RMSNORM},
    [CUDA_KERNEL_rmsnorm_fused_f16_add] = {.family = RMSNORM},
    [CUDA_KERNEL_rmsnorm_fused_f16] = {.family = RMSNORM_IN_PLACE},
    [CUDA_KERNEL_rope_fused] = {.family = ROPE},
    [CUDA_KERNEL_rope_fused_neox] = {.family = ROPE},
    [CUDA_KERNEL_quantize_q16] = {.family = QUANTIZE},
    [CUDA_KERNEL_quantize_q16_planes] = {.family = QUANTIZE},
    QUANTISED(q4_0, DTYPE_Q4_0, 32),
    QUANTISED(q4_1, DTYPE_Q4_1, 32),
    QUANTISED(q5_0, DTYPE_Q5_0, 32),
    QUANTISED(q5_1, DTYPE_Q5_1, 32),
    QUANTISED(q8_0, DTYPE_Q8_0, 32),
    QUANTISED(q2_k, DTYPE_Q2_K, 256),
    QUANTISED(q3_k, DTYPE_Q3_K, 256),
    QUANTISED(q4_k, DTYPE_Q4_K, 256),
    QUANTISED(q5_k, DTYPE_Q5_K, 256),
    QUANTISED(q6_k, DTYPE_Q6_K, 256),
    FLOATS(f16, DTYPE_F16),
    FLOATS(bf16, DTYPE_BF16),
    FLOATS(f32, DTYPE_F32),
    TENSOR(f16, DTYPE_F16, 16),
    TENSOR(bf16, DTYPE_BF16, 16),
    TENSOR(q4_0, DTYPE_Q4_0, 32),
    TENSOR(q4_1, DTYPE_Q4_1, 32),
    TENSOR(q5_0, DTYPE_Q5_0, 32),
    TENSOR(q5_1, DTYPE_Q5_1, 32),
    TENSOR(q8_0, DTYPE_Q8_0, 32),
    TENSOR(q2_k, DTYPE_Q2_K, 256),
    TENSOR(q3_k, DTYPE_Q3_K, 256),
    TENSOR(q4_k, DTYPE_Q4_K, 256),
    TENSOR(q5_k, DTYPE_Q5_K, 256),
    TENSOR(q6_k, DTYPE_Q6_K, 256),
};

static enum dtype type_of(const struct conform_build *b) { return subjects[b->item->kernel].type; }

bool conform_case_get(enum cuda_kernel kernel, u32 idx, struct conform_case *item) {
    assert(kernel < CUDA_KERNEL_COUNT);
    const struct conform_family *family = &families[subjects[kernel].family];
    if (idx >= family->n_shapes) {
        idx -= family->n_shapes;
        family = &families[subjects[kernel].more];
    }
    if (idx >= family->n_shapes) return false;
    *item = (struct conform_case){.kernel = kernel,
                                  .family = family,
                                  .shape = family->shapes[idx],
                                  .is_quick = idx < family->n_quick,
                                  .is_tensor = family->build == build_real};
    struct text t = TEXT_OVER_ARRAY(item->id);
    text_format(&t, "%s", cuda_kernel_name(kernel));
    for (u32 i = 0; family->columns[i] != NULL; i++) {
        text_format(&t, " %s=%d", family->columns[i], item->shape[i]);
    }
    assert(!t.truncated);
    return true;
}

// Behind the operators: what the launches say of themselves.
static void expect_status(struct conform_build *b) {
    u32 *status = wanted(b, b->status);
    status[0] = b->is_refused ? CUDA_FAULT_NOT_FINITE : 0;
    for (u32 i = 0; i < b->n_launches; i++) {
        const struct conform_launch *at = &b->launches[i];
        u32 grid[3] = {0};
        struct sov_fault fault = {0};
        enum sov_status ok = cuda_kernel_grid(at->kernel, at->counts, grid, &fault);
        assert(ok == SOV_OK);
        status[1] += (u32)cuda_kernel_blocks(grid);
    }
}

void conform_build(struct conform_build *b, u64 seed) {
    b->key = key_of(seed, b->item->id);
    b->image_bytes = CONFORM_GUARD_BYTES;
    b->host_bytes = 0;
    b->n_buffers = b->n_launches = 0;
    b->is_refused = false;
    b->bounded = (struct conform_bounded){0};
    b->power = declare_in(b, "power", sizeof(u32));
    b->status = declare_out(b, "status", CUDA_STATUS_WORDS * sizeof(u32));
    b->item->family->build(b);
    if (b->before != NULL) {
        expect_status(b);
        conform_set_power(b, CUDA_POWER_ACTIVE);
    }
    b->host_bytes += OP_SCRATCH_BYTES; // scratch_of; not to be declared behind
}
