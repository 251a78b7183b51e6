// SPDX-License-Identifier: Apache-2.0
// The definition of every operator: plain scalar loops in exactly the order of docs/contract.md.
// Read it beside that text. Every faster kernel gives the same bits; this file is changed only
// together with the contract, and is never made faster at the price of clarity.
//
// R1. A product feeds a sum through math_fma_f32 where the contract writes fma, and nowhere else
//     (the build forbids contraction).
// R2. Integer sums are exact: they fit i32 by the bounds proved in docs/contract.md, and meet f32
//     by one rounding.
// R3. Finiteness is decided on the bits, never by a floating-point comparison.
#include "freestanding/math.h"
#include "ops/op.h"

#define F16_INFINITY 0x7c00 // magnitudes with these bits or more are not finite

static bool f16_is_finite(f16 x) { return (x & 0x7fff) < F16_INFINITY; }

// --- reductions ---

// One level of tree32: the sum of n <= 32 elements, padded with +0, as a warp butterfly adds them.
static f32 sum_of_32(const f32 *x, u32 n) {
    f32 lane[32] = {0};
    for (u32 i = 0; i < n; i++) lane[i] = x[i];
    for (u32 width = 16; width > 0; width /= 2) {
        for (u32 i = 0; i < width; i++) lane[i] = lane[i] + lane[i + width];
    }
    return lane[0];
}

f32 op_tree32(f32 *x, u32 n) {
    do { // at least once, so that one element is padded and summed too
        u32 n_blocks = (n + 31) / 32;
        for (u32 b = 0; b < n_blocks; b++) x[b] = sum_of_32(x + 32 * b, MIN(n - 32 * b, 32));
        n = n_blocks;
    } while (n > 1);
    return n == 1 ? x[0] : 0.0f;
}

// --- 1. embed ---

static u32 embed(const struct embed_args *args, u32 begin, u32 end, void *scratch) {
    (void)scratch;
    for (u32 t = begin; t < end; t++) {
        const u8 *row = args->table + args->tokens[t] * args->row_bytes;
        f32 *residual = args->residual + (usize)t * args->residual_stride;
        dtype_dequantise(args->type, row, args->n_embd, residual);
        if (args->scale == 1.0f) continue;
        for (u32 i = 0; i < args->n_embd; i++) residual[i] = residual[i] * args->scale;
    }
    return 0;
}

// --- 2. rmsnorm ---

static u32 rmsnorm(const struct rmsnorm_args *args, u32 begin, u32 end, void *scratch) {
    u32 n = args->n;
    f32 *square = scratch; // [n]
    assert(n > 0 && n <= OP_SCRATCH_BYTES / sizeof(f32));
    assert(args->eps > 0.0f);
    for (u32 row = begin; row < end; row++) {
        const f32 *x_f32 = (const f32 *)args->x + (usize)row * args->x_stride;
        const f16 *x_f16 = (const f16 *)args->x + (usize)row * args->x_stride;
        for (u32 i = 0; i < n; i++) {
            f32 x = args->x_is_f16 ? f16_to_f32(x_f16[i]) : x_f32[i];
            square[i] = x * x;
        }
        f32 ss = op_tree32(square, n);
        // Also refuses finite elements whose squares overflow: r would be 0 and hide them.
        if (!math_is_finite_f32(ss)) return 1;
        f32 r = 1.0f / math_sqrt_f32(ss / (f32)n + args->eps);
        for (u32 i = 0; i < n; i++) {
            f32 x = args->x_is_f16 ? f16_to_f32(x_f16[i]) : x_f32[i];
            f32 y = (x * r) * load_f32(args->weight + 4 * (usize)i);
            if (args->y != NULL) {
                args->y[(usize)row * args->y_stride + i] = f32_to_f16(y);
            } else {
                f32 *residual = args->residual + (usize)row * args->residual_stride;
                residual[i] = residual[i] + y;
            }
        }
    }
    return 0;
}

// --- 3. quantize_q16 ---

// One group of n <= 256 values: a[n] and the scale da. The integer maximum of the magnitudes' bits
// orders finite values as their values do and finds infinity and NaN.
static u32 quantize_group(const f16 *x, u32 n, i16 *a, f32 *da) {
    u16 amax_bits = 0;
    for (u32 i = 0; i < n; i++) amax_bits = MAX(amax_bits, (u16)(x[i] & 0x7fff));
    if (amax_bits >= F16_INFINITY) return 1;
    f32 amax = f16_to_f32(amax_bits);
    f32 inv = amax_bits == 0 ? 0.0f : 32767.0f / amax;
    *da = amax / 32767.0f; // +0 when every element is 0
    for (u32 i = 0; i < n; i++) a[i] = (i16)math_rne_f32(f16_to_f32(x[i]) * inv);
    return 0;
}

static u32 quantize_q16(const struct quantize_args *args, u32 begin, u32 end, void *scratch) {
    (void)scratch;
    assert(args->n % 32 == 0);
    for (u32 row = begin; row < end; row++) {
        const f16 *x = args->x + (usize)row * args->x_stride;
        i16 *a = args->out.a + (usize)row * args->out.a_stride;
        f32 *scale = args->out.scale + (usize)row * args->out.scale_stride;
        i32 *sum16 = args->out.sum16 + (usize)row * args->out.sum_stride;
        i32 *sum32 = args->out.sum32 + (usize)row * args->out.sum_stride;
        for (u32 at = 0; at < args->n; at += OP_GROUP) {
            u32 length = MIN(args->n - at, OP_GROUP);
            if (quantize_group(x + at, length, a + at, &scale[at / OP_GROUP]) != 0) return 1;
        }
        for (u32 b = 0; b < args->n / 16; b++) {
            sum16[b] = 0;
            for (u32 i = 0; i < 16; i++) sum16[b] += a[16 * b + i];
        }
        for (u32 b = 0; b < args->n / 32; b++) sum32[b] = sum16[2 * b] + sum16[2 * b + 1];
    }
    return 0;
}

// --- 4, 5, 6. gemm ---

// The exact sums of q * a over 32 and over 16 elements.
static i32 dot_32(const i16 *q, const i16 *a) {
    i32 sum = 0;
    for (u32 i = 0; i < 32; i++) sum += (i32)q[i] * a[i];
    return sum;
}

static i32 dot_16(const i16 *q, const i16 *a) {
    i32 sum = 0;
    for (u32 i = 0; i < 16; i++) sum += (i32)q[i] * a[i];
    return sum;
}

// The value of one group of n weights w against the activations a[n] with their sums.
static f32 group_value(enum dtype type, const struct dtype_group *w, u32 n, const i16 *a,
                       const i32 *sum16, const i32 *sum32) {
    f32 G = 0.0f, S = 0.0f;
    i32 S_exact = 0, M = 0;
    switch (type) {
    case DTYPE_Q4_0:
    case DTYPE_Q5_0:
    case DTYPE_Q8_0:
        for (u32 b = 0; b < n / 32; b++) {
            G = math_fma_f32(w->d[b], (f32)dot_32(w->q + 32 * b, a + 32 * b), G);
        }
        return G;
    case DTYPE_Q4_1:
    case DTYPE_Q5_1:
        for (u32 b = 0; b < n / 32; b++) {
            G = math_fma_f32(w->d[b], (f32)dot_32(w->q + 32 * b, a + 32 * b), G);
            G = math_fma_f32(w->m[b], (f32)sum32[b], G);
        }
        return G;
    case DTYPE_Q4_K:
    case DTYPE_Q5_K:
        for (u32 b = 0; b < 8; b++) {
            S = math_fma_f32((f32)w->scale[b], (f32)dot_32(w->q + 32 * b, a + 32 * b), S);
            M += w->min[b] * sum32[b];
        }
        return math_fma_f32(w->d[0], S, -(w->m[0] * (f32)M));
    case DTYPE_Q6_K:
        for (u32 b = 0; b < 16; b++) {
            S = math_fma_f32((f32)w->scale[b], (f32)dot_16(w->q + 16 * b, a + 16 * b), S);
        }
        return w->d[0] * S;
    case DTYPE_Q3_K:
        for (u32 b = 0; b < 16; b++) S_exact += w->scale[b] * dot_16(w->q + 16 * b, a + 16 * b);
        return w->d[0] * (f32)S_exact;
    case DTYPE_Q2_K:
        for (u32 b = 0; b < 16; b++) {
            S_exact += w->scale[b] * dot_16(w->q + 16 * b, a + 16 * b);
            M += w->min[b] * sum16[b];
        }
        return math_fma_f32(w->d[0], (f32)S_exact, -(w->m[0] * (f32)M));
    default: assert(!"a quantised type");
    }
}

// Operator 6: total of weight row `row` and token `token` goes where the call wants it.
static void gemm_put(const struct gemm_args *args, u32 row, u32 token, f32 total) {
    usize at = (usize)token * args->out_stride + row;
    f32 *out_f32 = args->out;
    f16 *out_f16 = args->out;
    if (args->bias != NULL) total = total + load_f32(args->bias + 4 * (usize)row);
    switch (args->output) {
    case GEMM_TO_F16: out_f16[at] = f32_to_f16(total); break;
    case GEMM_ADD_F32: out_f32[at] = out_f32[at] + total; break;
    case GEMM_TO_F32: out_f32[at] = total; break;
    }
}

// The totals of all tokens are kept, so that each group of weights is unpacked once; for every
// token the groups are added in ascending order.
static u32 gemm_quantised(const struct gemm_args *args, u32 begin, u32 end, void *scratch) {
    const struct dtype_info *info = dtype_lookup(args->type);
    f32 *total = scratch; // [n_tokens]
    struct dtype_group w;
    assert(info != NULL && info->quantised && args->k % info->block_elements == 0);
    assert(args->n_tokens <= OP_SCRATCH_BYTES / sizeof(f32));
    for (u32 row = begin; row < end; row++) {
        const u8 *blocks = args->weight + row * args->row_bytes;
        for (u32 t = 0; t < args->n_tokens; t++) total[t] = 0.0f;
        for (u32 at = 0; at < args->k; at += OP_GROUP) {
            u32 length = MIN(args->k - at, OP_GROUP);
            dtype_unpack_group(args->type, blocks, length, &w);
            blocks += (usize)length / info->block_elements * info->block_bytes;
            for (u32 t = 0; t < args->n_tokens; t++) {
                const i16 *a = args->xq.a + (usize)t * args->xq.a_stride + at;
                f32 da = args->xq.scale[(usize)t * args->xq.scale_stride + at / OP_GROUP];
                const i32 *sum16 = args->xq.sum16 + (usize)t * args->xq.sum_stride + at / 16;
                const i32 *sum32 = args->xq.sum32 + (usize)t * args->xq.sum_stride + at / 32;
                f32 value = group_value(args->type, &w, length, a, sum16, sum32);
                total[t] = math_fma_f32(value, da, total[t]);
            }
        }
        for (u32 t = 0; t < args->n_tokens; t++) gemm_put(args, row, t, total[t]);
    }
    return 0;
}

static u32 gemm_float(const struct gemm_args *args, u32 begin, u32 end, void *scratch) {
    const struct dtype_info *info = dtype_lookup(args->type);
    f32 *total = scratch; // [n_tokens]
    f32 w[OP_GROUP];
    assert(info != NULL && !info->quantised);
    assert(args->n_tokens <= OP_SCRATCH_BYTES / sizeof(f32));
    for (u32 row = begin; row < end; row++) {
        const u8 *elements = args->weight + row * args->row_bytes;
        for (u32 t = 0; t < args->n_tokens; t++) total[t] = 0.0f;
        for (u32 at = 0; at < args->k; at += OP_GROUP) {
            u32 length = MIN(args->k - at, OP_GROUP);
            dtype_dequantise(args->type, elements + (usize)at * info->block_bytes, length, w);
            for (u32 t = 0; t < args->n_tokens; t++) {
                const f16 *x = args->x + (usize)t * args->x_stride + at;
                f32 g = 0.0f;
                for (u32 i = 0; i < length; i++) g = math_fma_f32(w[i], f16_to_f32(x[i]), g);
                total[t] = total[t] + g;
            }
        }
        for (u32 t = 0; t < args->n_tokens; t++) gemm_put(args, row, t, total[t]);
    }
    return 0;
}

// --- 7. rope ---

static u32 rope(const struct rope_args *args, u32 begin, u32 end, void *scratch) {
    (void)scratch;
    u32 n_pairs = args->rope_dim / 2;
    u32 failed = 0;
    for (u32 t = begin; t < end; t++) {
        const f32 *table = args->table + (usize)args->positions[t] * n_pairs * 2;
        for (u32 h = 0; h < args->n_head; h++) {
            f16 *x = args->x + (usize)t * args->x_stride + (usize)h * args->head_dim;
            for (u32 i = 0; i < n_pairs; i++) {
                f16 *p0 = args->neox ? &x[i] : &x[2 * i];
                f16 *p1 = args->neox ? &x[i + n_pairs] : &x[2 * i + 1];
                f32 x0 = f16_to_f32(*p0), x1 = f16_to_f32(*p1);
                f32 c = table[2 * i], s = table[2 * i + 1];
                *p0 = f32_to_f16(math_fma_f32(x0, c, -(x1 * s)));
                *p1 = f32_to_f16(math_fma_f32(x0, s, x1 * c));
            }
            // The whole head, also what was not turned: for q this is the only check.
            for (u32 i = 0; i < args->head_dim; i++) failed |= !f16_is_finite(x[i]);
        }
    }
    return failed;
}

// --- kv_write ---

// Where token `position` of the sequence in `slot` begins in a plane: [n_head_kv, head_dim] f16.
static usize kv_offset(const struct kv_layer *kv, u32 slot, u32 position) {
    u32 block = kv->tables[(usize)slot * kv->max_blocks + position / OP_KV_BLOCK_TOKENS];
    return block * kv->page_stride + position % OP_KV_BLOCK_TOKENS * kv->token_stride;
}

static u32 kv_write(const struct kv_write_args *args, u32 begin, u32 end, void *scratch) {
    (void)scratch;
    u32 failed = 0;
    for (u32 t = begin; t < end; t++) {
        const f16 *k = args->k + (usize)t * args->k_stride;
        const f16 *v = args->v + (usize)t * args->v_stride;
        usize offset = kv_offset(&args->kv, args->slots[t], args->positions[t]);
        for (u32 i = 0; i < args->n; i++) {
            failed |= !f16_is_finite(k[i]) || !f16_is_finite(v[i]);
            store_u16(args->kv.k + offset + 2 * (usize)i, k[i]);
            store_u16(args->kv.v + offset + 2 * (usize)i, v[i]);
        }
    }
    return failed;
}

// --- 8. attention ---

// What is known of one query head after some chunks: the maximum score, the denominator and the
// numerators, relative to that maximum.
struct softmax_state {
    f32 m, l, o[OP_HEAD_DIM_MAX];
};

static f32 softcapped(f32 score, f32 cap) {
    f32 z = score / cap;
    f32 e = math_exp_f32(-2.0f * __builtin_fabsf(z));
    f32 tanh_of_magnitude = (1.0f - e) / (1.0f + e);
    return cap * __builtin_copysignf(tanh_of_magnitude, z);
}

// The chunk's visible positions are [first, last]; position t is index t mod 256 of `p`.
static u32 attention_chunk(const struct attention_args *args, const f32 *q, u32 kv_head, u32 slot,
                           u32 first, u32 last, struct softmax_state *chunk) {
    const struct kv_layer *kv = &args->kv;
    usize head_offset = (usize)kv_head * args->head_dim * 2;
    f32 p[OP_CHUNK] = {0};
    for (u32 t = first; t <= last; t++) {
        const u8 *k = kv->k + kv_offset(kv, slot, t) + head_offset;
        f32 dot = 0.0f;
        for (u32 j = 0; j < args->head_dim; j++) {
            dot = math_fma_f32(q[j], f16_to_f32(load_u16(k + 2 * (usize)j)), dot);
        }
        f32 score = dot * args->scale;
        if (args->softcap != 0.0f) score = softcapped(score, args->softcap);
        if (!math_is_finite_f32(score)) return 1;
        chunk->m = t == first ? score : MAX(chunk->m, score);
        p[t % OP_CHUNK] = score;
    }
    for (u32 j = 0; j < args->head_dim; j++) chunk->o[j] = 0.0f;
    for (u32 t = first; t <= last; t++) {
        const u8 *v = kv->v + kv_offset(kv, slot, t) + head_offset;
        f32 p_t = math_exp_f32(p[t % OP_CHUNK] - chunk->m);
        p[t % OP_CHUNK] = p_t;
        for (u32 j = 0; j < args->head_dim; j++) {
            chunk->o[j] = math_fma_f32(p_t, f16_to_f32(load_u16(v + 2 * (usize)j)), chunk->o[j]);
        }
    }
    chunk->l = op_tree32(p, OP_CHUNK);
    return 0;
}

static void attention_merge(struct softmax_state *run, const struct softmax_state *chunk, u32 n) {
    f32 m = MAX(run->m, chunk->m);
    f32 a = math_exp_f32(run->m - m);
    f32 b = math_exp_f32(chunk->m - m);
    run->m = m;
    run->l = math_fma_f32(run->l, a, chunk->l * b);
    for (u32 j = 0; j < n; j++) run->o[j] = math_fma_f32(run->o[j], a, chunk->o[j] * b);
}

// One query row and one of its heads.
static u32 attention_row(const struct attention_args *args, u32 row, u32 head, u32 kv_head) {
    u32 pos = args->positions[row], slot = args->slots[row], n = args->head_dim;
    u32 first_visible = args->window != 0 && pos >= args->window ? pos - args->window + 1 : 0;
    const f16 *q_f16 = args->q + (usize)row * args->q_stride + (usize)head * n;
    f16 *out = args->out + (usize)row * args->out_stride + (usize)head * n;
    struct softmax_state run = {0}, chunk = {0};
    f32 q[OP_HEAD_DIM_MAX];
    for (u32 j = 0; j < n; j++) q[j] = f16_to_f32(q_f16[j]);
    u32 first_chunk = first_visible / OP_CHUNK;
    assert(first_visible <= pos); // the row's own position is always visible
    for (u32 c = first_chunk; c <= pos / OP_CHUNK; c++) {
        u32 first = MAX(first_visible, c * OP_CHUNK);
        u32 last = MIN(pos, c * OP_CHUNK + OP_CHUNK - 1);
        struct softmax_state *state = c == first_chunk ? &run : &chunk;
        if (attention_chunk(args, q, kv_head, slot, first, last, state) != 0) return 1;
        if (c > first_chunk) attention_merge(&run, &chunk, n);
    }
    for (u32 j = 0; j < n; j++) out[j] = f32_to_f16(run.o[j] / run.l);
    return 0;
}

static u32 attention(const struct attention_args *args, u32 begin, u32 end, void *scratch) {
    (void)scratch;
    assert(args->head_dim > 0 && args->head_dim <= OP_HEAD_DIM_MAX);
    assert(args->n_head_kv > 0 && args->n_head % args->n_head_kv == 0);
    u32 heads_per_kv = args->n_head / args->n_head_kv;
    for (u32 unit = begin; unit < end; unit++) {
        const struct attention_tile *tile = &args->tiles[unit / args->n_head_kv];
        u32 kv_head = unit % args->n_head_kv;
        for (u32 row = tile->row; row < tile->row + tile->n_rows; row++) {
            for (u32 i = 0; i < heads_per_kv; i++) {
                u32 head = kv_head * heads_per_kv + i;
                if (attention_row(args, row, head, kv_head) != 0) return 1;
            }
        }
    }
    return 0;
}

// --- 9. act_mul ---

static u32 silu_mul(const struct act_mul_args *args, u32 begin, u32 end, void *scratch) {
    (void)scratch;
    for (u32 row = begin; row < end; row++) {
        const f16 *gate = args->gate + (usize)row * args->gate_stride;
        const f16 *up = args->up + (usize)row * args->up_stride;
        f16 *out = args->out + (usize)row * args->out_stride;
        for (u32 i = 0; i < args->n; i++) {
            f32 g = f16_to_f32(gate[i]), u = f16_to_f32(up[i]);
            f32 sigmoid = 1.0f / (1.0f + math_exp_f32(-g));
            out[i] = f32_to_f16((g * sigmoid) * u);
        }
    }
    return 0;
}

static u32 gelu_tanh_mul(const struct act_mul_args *args, u32 begin, u32 end, void *scratch) {
    (void)scratch;
    for (u32 row = begin; row < end; row++) {
        const f16 *gate = args->gate + (usize)row * args->gate_stride;
        const f16 *up = args->up + (usize)row * args->up_stride;
        f16 *out = args->out + (usize)row * args->out_stride;
        for (u32 i = 0; i < args->n; i++) {
            f32 g = f16_to_f32(gate[i]), u = f16_to_f32(up[i]);
            f32 z2 = g * math_fma_f32(OP_GELU_C3, g * g, OP_GELU_C1);
            f32 sigmoid = 1.0f / (1.0f + math_exp_f32(-z2));
            out[i] = f32_to_f16((g * sigmoid) * u);
        }
    }
    return 0;
}

// --- 10. add, finite ---

static u32 add(const struct add_args *args, u32 begin, u32 end, void *scratch) {
    (void)scratch;
    for (u32 row = begin; row < end; row++) {
        f32 *residual = args->residual + (usize)row * args->residual_stride;
        const f32 *x = args->x + (usize)row * args->x_stride;
        for (u32 i = 0; i < args->n; i++) residual[i] = residual[i] + x[i];
    }
    return 0;
}

static u32 check_finite(const struct finite_args *args, u32 begin, u32 end, void *scratch) {
    (void)scratch;
    for (u32 row = begin; row < end; row++) {
        const f32 *x = args->x + (usize)row * args->x_stride;
        for (u32 i = 0; i < args->n; i++) {
            if (!math_is_finite_f32(x[i])) return 1;
        }
    }
    return 0;
}

void op_fill_reference(struct op_table *table) {
    *table = (struct op_table){
        .name = "scalar",
        .embed = embed,
        .rmsnorm = rmsnorm,
        .quantize_q16 = quantize_q16,
        .rope = rope,
        .kv_write = kv_write,
        .attention = attention,
        .silu_mul = silu_mul,
        .gelu_tanh_mul = gelu_tanh_mul,
        .add = add,
        .finite = check_finite,
    };
    for (u32 type = 0; type < DTYPE_LIMIT; type++) {
        const struct dtype_info *info = dtype_lookup(type);
        if (info == NULL) continue;
        table->gemm[type] = info->quantised ? gemm_quantised : gemm_float;
    }
}
