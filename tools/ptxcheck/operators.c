// SPDX-License-Identifier: Apache-2.0
// The reference operators as launch files call them: by name, with named arguments, on the expected
// images. Each adapter checks that the operator stays inside the buffers it is given; what is
// computed is src/ops/reference.c.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "launch.h"
#include "ops/op.h"

#define ALL_TYPES ELEMENT_LIMIT // a buffer of any type

static _Noreturn void wrong(const struct operator_call *call, const char *name, const char *what) {
    fail_at(call->set->path, call->statement->line, "%s: %s %s", call->statement->words[1], name,
            what);
}

// The text behind "name=", or NULL.
static const char *find(const struct operator_call *call, const char *name) {
    usize len = strlen(name);
    for (u32 i = 2; i < call->statement->n_words; i++) {
        const char *word = call->statement->words[i];
        if (strncmp(word, name, len) == 0 && word[len] == '=') return word + len + 1;
    }
    return NULL;
}

static const char *text_of(const struct operator_call *call, const char *name) {
    const char *text = find(call, name);
    if (text == NULL) wrong(call, name, "is missing");
    return text;
}

static u32 number_of(const struct operator_call *call, const char *name) {
    i64 value = launch_integer(call->set, call->launch, call->statement->line, text_of(call, name));
    if (value < 0 || value > 0xffffffffll) wrong(call, name, "is out of range");
    return (u32)value;
}

static u32 number_or(const struct operator_call *call, const char *name, u32 otherwise) {
    return find(call, name) == NULL ? otherwise : number_of(call, name);
}

static f32 float_of(const struct operator_call *call, const char *name) {
    return (f32)launch_number(call->set, call->launch, call->statement->line, text_of(call, name));
}

static f32 float_or(const struct operator_call *call, const char *name, f32 otherwise) {
    return find(call, name) == NULL ? otherwise : float_of(call, name);
}

// "buffer" or "buffer+elements": the image from there on, which must hold n elements.
static u8 *image_of(const struct operator_call *call, const char *name, u32 type, u64 n,
                    struct launch_buffer **found) {
    const char *text = text_of(call, name);
    char buffer_name[NAME_BYTES];
    usize len = strcspn(text, "+");
    if (len >= NAME_BYTES) wrong(call, name, "is too long");
    memcpy(buffer_name, text, len);
    buffer_name[len] = 0;
    u32 index = launch_find(call->launch, buffer_name);
    if (index == LAUNCH_BUFFERS_MAX) wrong(call, name, "is no buffer");
    struct launch_buffer *buffer = &call->launch->buffers[index];
    i64 first = 0;
    if (text[len] == '+') {
        first = launch_integer(call->set, call->launch, call->statement->line, text + len + 1);
    }
    if (type != ALL_TYPES && buffer->type != type) wrong(call, name, "is of another type");
    if (first < 0 || (u64)first > buffer->count || n > buffer->count - (u64)first) {
        wrong(call, name, "is too short");
    }
    if (found != NULL) *found = buffer;
    return buffer->expected + (u64)first * element_bytes(buffer->type);
}

static void *image(const struct operator_call *call, const char *name, u32 type, u64 n) {
    return image_of(call, name, type, n, NULL);
}

// Elements that `rows` rows of n take at a stride.
static u64 extent(u64 rows, u64 stride, u64 n) { return rows == 0 ? 0 : (rows - 1) * stride + n; }

static enum dtype dtype_of(const struct operator_call *call) {
    const char *name = text_of(call, "type");
    for (u32 type = 0; type < DTYPE_LIMIT; type++) {
        const struct dtype_info *info = dtype_lookup(type);
        if (info == NULL) continue;
        const char *a = info->name, *b = name;
        while (*a != 0 && *b != 0 && (*a | 32) == (*b | 32)) a++, b++;
        if (*a == *b) return type;
    }
    return number_of(call, "type"); // GGUF's number
}

typedef u32 adapter(const struct operator_call *call, const struct op_table *ops, void *scratch);

// --- one adapter per operator ---

static u32 run_embed(const struct operator_call *call, const struct op_table *ops, void *scratch) {
    u32 rows = number_of(call, "rows"), n = number_of(call, "n");
    u32 stride = number_of(call, "residual_stride");
    u64 row_bytes = number_of(call, "row_bytes");
    struct launch_buffer *table = NULL;
    const u32 *tokens = image(call, "tokens", ELEMENT_U32, rows);
    const u8 *weights = image_of(call, "table", ELEMENT_U8, row_bytes, &table);
    for (u32 t = 0; t < rows; t++) {
        if ((tokens[t] + 1) * row_bytes > table->bytes)
            wrong(call, "tokens", "are beyond the table");
    }
    struct embed_args args = {
        .tokens = tokens,
        .table = weights,
        .row_bytes = row_bytes,
        .type = dtype_of(call),
        .n_embd = n,
        .scale = float_or(call, "scale", 1.0f),
        .residual = image(call, "residual", ELEMENT_F32, extent(rows, stride, n)),
        .residual_stride = stride,
    };
    if (dtype_lookup(args.type) == NULL || row_bytes < dtype_row_bytes(args.type, n)) {
        wrong(call, "row_bytes", "is too small");
    }
    return ops->embed(&args, 0, rows, scratch);
}

static u32 run_rmsnorm(const struct operator_call *call, const struct op_table *ops,
                       void *scratch) {
    u32 rows = number_of(call, "rows"), n = number_of(call, "n");
    struct launch_buffer *x = NULL;
    struct rmsnorm_args args = {
        .x_stride = number_of(call, "x_stride"),
        .n = n,
        .weight = image(call, "weight", ELEMENT_F32, n),
        .eps = float_of(call, "eps"),
    };
    args.x = image_of(call, "x", ALL_TYPES, extent(rows, args.x_stride, n), &x);
    args.x_is_f16 = x->type == ELEMENT_F16;
    if (!args.x_is_f16 && x->type != ELEMENT_F32) wrong(call, "x", "is neither f16 nor f32");
    if (find(call, "y") != NULL) {
        args.y_stride = number_of(call, "y_stride");
        args.y = image(call, "y", ELEMENT_F16, extent(rows, args.y_stride, n));
    } else {
        args.residual_stride = number_of(call, "residual_stride");
        args.residual = image(call, "residual", ELEMENT_F32, extent(rows, args.residual_stride, n));
    }
    return ops->rmsnorm(&args, 0, rows, scratch);
}

static struct q16 q16_of(const struct operator_call *call, u32 rows, u32 n) {
    struct q16 q = {
        .a_stride = number_of(call, "a_stride"),
        .scale_stride = number_of(call, "scale_stride"),
        .sum_stride = number_of(call, "sum_stride"),
    };
    q.a = image(call, "a", ELEMENT_I16, extent(rows, q.a_stride, n));
    q.scale = image(call, "scale", ELEMENT_F32, extent(rows, q.scale_stride, (n + 255) / 256));
    q.sum16 = image(call, "sum16", ELEMENT_I32, extent(rows, q.sum_stride, n / 16));
    q.sum32 = image(call, "sum32", ELEMENT_I32, extent(rows, q.sum_stride, n / 32));
    return q;
}

static u32 run_quantize(const struct operator_call *call, const struct op_table *ops,
                        void *scratch) {
    u32 rows = number_of(call, "rows"), n = number_of(call, "n");
    struct quantize_args args = {
        .x_stride = number_of(call, "x_stride"), .n = n, .out = q16_of(call, rows, n)};
    args.x = image(call, "x", ELEMENT_F16, extent(rows, args.x_stride, n));
    return ops->quantize_q16(&args, 0, rows, scratch);
}

static u32 run_gemm(const struct operator_call *call, const struct op_table *ops, void *scratch) {
    u32 rows = number_of(call, "rows"), k = number_of(call, "k");
    u32 features = number_of(call, "features");
    struct gemm_args args = {
        .row_bytes = number_of(call, "row_bytes"),
        .type = dtype_of(call),
        .k = k,
        .n_tokens = rows,
        .output = number_of(call, "output"),
        .out_stride = number_of(call, "out_stride"),
    };
    const struct dtype_info *info = dtype_lookup(args.type);
    if (info == NULL || args.output > GEMM_TO_F32) wrong(call, "type", "or output is unknown");
    args.weight = image(call, "weight", ELEMENT_U8,
                        extent(features, args.row_bytes, dtype_row_bytes(args.type, k)));
    if (info->quantised) {
        args.xq = q16_of(call, rows, k);
    } else {
        args.x_stride = number_of(call, "x_stride");
        args.x = image(call, "x", ELEMENT_F16, extent(rows, args.x_stride, k));
    }
    if (find(call, "bias") != NULL) args.bias = image(call, "bias", ELEMENT_F32, features);
    u32 type = args.output == GEMM_TO_F16 ? ELEMENT_F16 : ELEMENT_F32;
    args.out = image(call, "out", type, extent(rows, args.out_stride, features));
    return ops->gemm[args.type](&args, 0, features, scratch);
}

static u32 run_rope(const struct operator_call *call, const struct op_table *ops, void *scratch) {
    u32 rows = number_of(call, "rows");
    struct rope_args args = {
        .x_stride = number_of(call, "x_stride"),
        .n_head = number_of(call, "n_head"),
        .head_dim = number_of(call, "head_dim"),
        .rope_dim = number_of(call, "rope_dim"),
        .neox = number_or(call, "neox", 0) != 0,
        .positions = image(call, "positions", ELEMENT_U32, rows),
    };
    u32 last = 0;
    for (u32 t = 0; t < rows; t++) last = MAX(last, args.positions[t]);
    args.table = image(call, "table", ELEMENT_F32, (u64)(last + 1) * args.rope_dim);
    args.x = image(call, "x", ELEMENT_F16,
                   extent(rows, args.x_stride, (u64)args.n_head * args.head_dim));
    return ops->rope(&args, 0, rows, scratch);
}

// cache_k and cache_v are buffers of any type; page_stride and token_stride are bytes.
static struct kv_layer kv_of(const struct operator_call *call, u32 rows, const u32 *positions,
                             const u32 *slots, u32 n) {
    struct launch_buffer *k = NULL, *v = NULL;
    struct kv_layer kv = {
        .page_stride = number_of(call, "page_stride"),
        .token_stride = number_of(call, "token_stride"),
        .max_blocks = number_of(call, "max_blocks"),
    };
    kv.k = image_of(call, "cache_k", ALL_TYPES, 0, &k);
    kv.v = image_of(call, "cache_v", ALL_TYPES, 0, &v);
    for (u32 t = 0; t < rows; t++) {
        u32 blocks = positions[t] / OP_KV_BLOCK_TOKENS + 1;
        u64 row = (u64)slots[t] * kv.max_blocks;
        if (blocks > kv.max_blocks) wrong(call, "positions", "are beyond max_blocks");
        kv.tables = image(call, "tables", ELEMENT_U32, row + blocks);
        for (u32 b = 0; b < blocks; b++) {
            u64 end = kv.tables[row + b] * kv.page_stride +
                      (OP_KV_BLOCK_TOKENS - 1) * kv.token_stride + 2 * (u64)n;
            if (end > k->bytes || end > v->bytes) wrong(call, "tables", "point beyond the cache");
        }
    }
    return kv;
}

static u32 run_kv_write(const struct operator_call *call, const struct op_table *ops,
                        void *scratch) {
    u32 rows = number_of(call, "rows"), n = number_of(call, "n");
    struct kv_write_args args = {
        .k_stride = number_of(call, "k_stride"),
        .v_stride = number_of(call, "v_stride"),
        .n = n,
        .positions = image(call, "positions", ELEMENT_U32, rows),
        .slots = image(call, "slots", ELEMENT_U32, rows),
    };
    args.k = image(call, "k", ELEMENT_F16, extent(rows, args.k_stride, n));
    args.v = image(call, "v", ELEMENT_F16, extent(rows, args.v_stride, n));
    args.kv = kv_of(call, rows, args.positions, args.slots, n);
    return ops->kv_write(&args, 0, rows, scratch);
}

static u32 run_attention(const struct operator_call *call, const struct op_table *ops,
                         void *scratch) {
    u32 rows = number_of(call, "rows");
    struct attention_args args = {
        .q_stride = number_of(call, "q_stride"),
        .n_head = number_of(call, "n_head"),
        .n_head_kv = number_of(call, "n_head_kv"),
        .head_dim = number_of(call, "head_dim"),
        .positions = image(call, "positions", ELEMENT_U32, rows),
        .slots = image(call, "slots", ELEMENT_U32, rows),
        .scale = float_of(call, "scale"),
        .softcap = float_or(call, "softcap", 0.0f),
        .window = number_or(call, "window", 0),
        .out_stride = number_of(call, "out_stride"),
    };
    u32 n = args.n_head * args.head_dim;
    args.q = image(call, "q", ELEMENT_F16, extent(rows, args.q_stride, n));
    args.out = image(call, "out", ELEMENT_F16, extent(rows, args.out_stride, n));
    args.kv = kv_of(call, rows, args.positions, args.slots, args.n_head_kv * args.head_dim);
    u32 failed = 0;
    for (u32 t = 0; t < rows; t++) { // tiles change no result
        struct attention_tile tile = {.row = t, .n_rows = 1};
        args.tiles = &tile;
        failed |= ops->attention(&args, 0, args.n_head_kv, scratch);
    }
    return failed;
}

static u32 run_act_mul(const struct operator_call *call, act_mul_fn *function, void *scratch) {
    u32 rows = number_of(call, "rows"), n = number_of(call, "n");
    struct act_mul_args args = {
        .gate_stride = number_of(call, "gate_stride"),
        .up_stride = number_of(call, "up_stride"),
        .n = n,
        .out_stride = number_of(call, "out_stride"),
    };
    args.gate = image(call, "gate", ELEMENT_F16, extent(rows, args.gate_stride, n));
    args.up = image(call, "up", ELEMENT_F16, extent(rows, args.up_stride, n));
    args.out = image(call, "out", ELEMENT_F16, extent(rows, args.out_stride, n));
    return function(&args, 0, rows, scratch);
}
static u32 run_silu(const struct operator_call *call, const struct op_table *ops, void *scratch) {
    return run_act_mul(call, ops->silu_mul, scratch);
}
static u32 run_gelu(const struct operator_call *call, const struct op_table *ops, void *scratch) {
    return run_act_mul(call, ops->gelu_tanh_mul, scratch);
}

static u32 run_add(const struct operator_call *call, const struct op_table *ops, void *scratch) {
    u32 rows = number_of(call, "rows"), n = number_of(call, "n");
    struct add_args args = {.residual_stride = number_of(call, "residual_stride"),
                            .x_stride = number_of(call, "x_stride"),
                            .n = n};
    args.residual = image(call, "residual", ELEMENT_F32, extent(rows, args.residual_stride, n));
    args.x = image(call, "x", ELEMENT_F32, extent(rows, args.x_stride, n));
    return ops->add(&args, 0, rows, scratch);
}

static u32 run_finite(const struct operator_call *call, const struct op_table *ops, void *scratch) {
    u32 rows = number_of(call, "rows"), n = number_of(call, "n");
    struct finite_args args = {.x_stride = number_of(call, "x_stride"), .n = n};
    args.x = image(call, "x", ELEMENT_F32, extent(rows, args.x_stride, n));
    return ops->finite(&args, 0, rows, scratch);
}

// --- layout and bookkeeping ---

static u32 run_split(const struct operator_call *call, const struct op_table *ops, void *scratch) {
    (void)ops;
    (void)scratch;
    u32 rows = number_of(call, "rows"), n = number_of(call, "n");
    u64 a_stride = number_of(call, "a_stride"), high_stride = number_of(call, "high_stride");
    u64 low_stride = number_of(call, "low_stride");
    const i16 *a = image(call, "a", ELEMENT_I16, extent(rows, a_stride, n));
    i8 *high = image(call, "high", ELEMENT_I8, extent(rows, high_stride, n));
    u8 *low = image(call, "low", ELEMENT_U8, extent(rows, low_stride, n));
    for (u32 t = 0; t < rows; t++) {
        for (u32 i = 0; i < n; i++) {
            i16 value = a[t * a_stride + i];
            high[t * high_stride + i] = (i8)(value >> 8);
            low[t * low_stride + i] = (u8)value;
        }
    }
    return 0;
}

static void store_element(enum element type, u8 *at, f64 value) {
    u64 bits = 0;
    if (type == ELEMENT_F32) {
        bits = f32_bits((f32)value);
    } else if (type == ELEMENT_F16) {
        bits = f32_to_f16((f32)value); // sources are f32 at most: one rounding
    } else if (type == ELEMENT_BF16) {
        u32 wide = f32_bits((f32)value);
        bits = (wide + 0x7fff + (wide >> 16 & 1)) >> 16;
    } else {
        bits = (u64)(i64)value;
    }
    memcpy(at, &bits, element_bytes(type));
}

// --- gemm in f64, with the bound of the tensor profile ---

// The weights of a row and their magnitudes (of the parts that are added), exact or nearly so.
static void exact_row(enum dtype type, const u8 *row, u32 k, f64 *value, f64 *magnitude) {
    const struct dtype_info *info = dtype_lookup(type);
    struct dtype_group group = {0};
    for (u32 i = 0; i < k; i++) {
        u32 e = i % DTYPE_GROUP;
        if (!info->quantised) {
            value[i] = type == DTYPE_F16    ? (f64)f16_to_f32(load_u16(row + 2 * (usize)i))
                       : type == DTYPE_BF16 ? (f64)bf16_to_f32(load_u16(row + 2 * (usize)i))
                                            : (f64)load_f32(row + 4 * (usize)i);
            magnitude[i] = fabs(value[i]);
            continue;
        }
        if (e == 0) {
            dtype_unpack_group(type, row + (usize)(i / info->block_elements) * info->block_bytes,
                               MIN(k - i, (u32)DTYPE_GROUP), &group);
        }
        bool by_16 = type == DTYPE_Q2_K || type == DTYPE_Q3_K || type == DTYPE_Q6_K;
        f64 factor = 0, minimum = 0;
        if (info->block_elements == 32) {
            factor = group.d[e / 32];
            if (type == DTYPE_Q4_1 || type == DTYPE_Q5_1) minimum = group.m[e / 32];
        } else {
            u32 part = e / (by_16 ? 16 : 32);
            factor = (f64)group.d[0] * group.scale[part];
            bool has_min = type == DTYPE_Q2_K || type == DTYPE_Q4_K || type == DTYPE_Q5_K;
            if (has_min) minimum = -(f64)group.m[0] * group.min[part];
        }
        value[i] = factor * group.q[e] + minimum;
        magnitude[i] = fabs(factor * group.q[e]) + fabs(minimum);
    }
}

// docs/contract.md, section 7: what a sum may lose, as a share of the sum of magnitudes.
static f64 tensor_share(enum dtype type, u32 k) {
    f64 eta = 18 * 0x1p-23;
    u32 steps = 2, rounded = k / 32;
    if (type == DTYPE_F16) steps = (k + 15) / 16;
    if (type == DTYPE_BF16) steps = 2 * ((k + 15) / 16);
    bool once = type == DTYPE_Q4_0 || type == DTYPE_Q5_0 || type == DTYPE_Q8_0;
    if (!once) rounded *= type == DTYPE_Q2_K ? 4 : 2;
    if (!dtype_lookup(type)->quantised) rounded = 0;
    f64 mma = steps * eta / (1 - steps * eta), gamma = rounded * 0x1p-24 / (1 - rounded * 0x1p-24);
    return mma + gamma + mma * gamma;
}

static f64 half_step(u32 output, f64 y) {
    return output == GEMM_TO_F16 ? fmax(0x1p-11 * fabs(y), 0x1p-25) : 0x1p-24 * fabs(y);
}

// out = the sum in f64, rounded once; slack = how far a kernel's result may be from that.
static u32 run_gemm_real(const struct operator_call *call, const struct op_table *ops,
                         void *scratch) {
    (void)ops;
    (void)scratch;
    u32 rows = number_of(call, "rows"), k = number_of(call, "k"),
        output = number_of(call, "output");
    u32 features = number_of(call, "features"), row_bytes = number_of(call, "row_bytes");
    u32 x_stride = number_of(call, "x_stride"), out_stride = number_of(call, "out_stride");
    enum dtype type = dtype_of(call);
    const u8 *weight =
        image(call, "weight", ELEMENT_U8, extent(features, row_bytes, dtype_row_bytes(type, k)));
    const u16 *x = image(call, "x", ELEMENT_F16, extent(rows, x_stride, k));
    const f32 *bias = find(call, "bias") ? image(call, "bias", ELEMENT_F32, features) : NULL;
    u32 out_type = output == GEMM_TO_F16 ? ELEMENT_F16 : ELEMENT_F32;
    u8 *out = image(call, "out", out_type, extent(rows, out_stride, features));
    bool wants_slack = find(call, "slack") != NULL;
    f32 *slack = wants_slack ? image(call, "slack", ELEMENT_F32, extent(rows, out_stride, features))
                             : NULL;
    f64 *value = need(k, sizeof(f64)), *magnitude = need(k, sizeof(f64));
    for (u32 r = 0; r < features; r++) {
        exact_row(type, weight + (usize)r * row_bytes, k, value, magnitude);
        for (u32 t = 0; t < rows; t++) {
            f64 y = 0, sum = 0;
            for (u32 i = 0; i < k; i++) {
                f64 xi = f16_to_f32(x[(usize)t * x_stride + i]);
                y += value[i] * xi;
                sum += magnitude[i] * fabs(xi);
            }
            f64 bound = (tensor_share(type, k) + 0x1p-40) * sum;
            usize at = (usize)t * out_stride + r;
            if (bias != NULL) {
                y += bias[r];
                bound += 0x1p-24 * (fabs(y) + bound);
            }
            if (output == GEMM_ADD_F32) y += load_f32(out + 4 * at);
            bound += half_step(output, fabs(y) + bound) + half_step(output, y);
            store_element(out_type, out + at * element_bytes(out_type), y);
            if (slack != NULL) slack[at] = (f32)(bound * 1.0000002);
        }
    }
    free(value);
    free(magnitude);
    return 0;
}

static u32 run_convert(const struct operator_call *call, const struct op_table *ops,
                       void *scratch) {
    (void)ops;
    (void)scratch;
    u32 count = number_of(call, "count");
    struct launch_buffer *x = NULL, *y = NULL;
    const u8 *from = image_of(call, "x", ALL_TYPES, count, &x);
    u8 *to = image_of(call, "y", ALL_TYPES, count, &y);
    for (u32 i = 0; i < count; i++) {
        f64 value = element_value(x->type, from + (u64)i * element_bytes(x->type));
        store_element(y->type, to + (u64)i * element_bytes(y->type), value);
    }
    return 0;
}

static u32 run_copy(const struct operator_call *call, const struct op_table *ops, void *scratch) {
    (void)ops;
    (void)scratch;
    u32 count = number_of(call, "count");
    struct launch_buffer *x = NULL, *y = NULL;
    const u8 *from = image_of(call, "x", ALL_TYPES, count, &x);
    u8 *to = image_of(call, "y", ALL_TYPES, count, &y);
    if (element_bytes(x->type) != element_bytes(y->type)) wrong(call, "y", "has another width");
    memmove(to, from, (usize)count * element_bytes(x->type));
    return 0;
}

static u32 put_word(const struct operator_call *call, bool add) {
    u64 index = number_or(call, "index", 0);
    struct launch_buffer *out = NULL;
    u8 *at = image_of(call, "out", ALL_TYPES, index + 1, &out);
    u32 bytes = element_bytes(out->type);
    u64 word = 0;
    memcpy(&word, at + index * bytes, bytes);
    i64 value =
        launch_integer(call->set, call->launch, call->statement->line, text_of(call, "value"));
    word = (add ? word : 0) + (u64)value;
    if (add && out->role == BUFFER_INOUT) {
        call->launch->has_complete = true;
        call->launch->complete_buffer = (u32)(out - call->launch->buffers);
        call->launch->complete_index = (u32)((at - out->expected) / bytes + index);
    }
    memcpy(at + index * bytes, &word, bytes);
    return 0;
}
static u32 run_count(const struct operator_call *call, const struct op_table *ops, void *scratch) {
    (void)ops;
    (void)scratch;
    return put_word(call, true);
}
static u32 run_set(const struct operator_call *call, const struct op_table *ops, void *scratch) {
    (void)ops;
    (void)scratch;
    return put_word(call, false);
}

static const struct {
    const char *name;
    adapter *run;
} adapters[] = {
    {"embed", run_embed},
    {"rmsnorm", run_rmsnorm},
    {"quantize_q16", run_quantize},
    {"gemm", run_gemm},
    {"gemm_real", run_gemm_real},
    {"rope", run_rope},
    {"kv_write", run_kv_write},
    {"attention", run_attention},
    {"silu_mul", run_silu},
    {"gelu_tanh_mul", run_gelu},
    {"add", run_add},
    {"finite", run_finite},
    {"split_q16", run_split},
    {"convert", run_convert},
    {"copy", run_copy},
    {"count", run_count},
    {"set", run_set},
};

u32 operator_run(struct operator_call *call) {
    const char *name = call->statement->n_words > 1 ? call->statement->words[1] : "";
    for (u32 i = 0; i < COUNT_OF(adapters); i++) {
        if (strcmp(adapters[i].name, name) != 0) continue;
        struct op_table ops;
        op_fill_reference(&ops);
        void *scratch = need(OP_SCRATCH_BYTES, 1);
        u32 failed = adapters[i].run(call, &ops, scratch);
        free(scratch);
        return failed;
    }
    fail_at(call->set->path, call->statement->line, "unknown operator \"%s\"", name);
}
