// SPDX-License-Identifier: Apache-2.0
// ops/reference.c three ways. (1) Bits: small second versions of the contract, written from its
// text with other loops, other block decoding and 64-bit integers, must agree bit for bit. (2)
// Error: every operator against f64 within the bound that docs/contract.md derives; the largest
// share of the bound that was used is printed. (3) Properties: a result does not depend on the
// batch, on the split into units, on where KV blocks lie, or on what lies where nobody may look.
#include "freestanding/math.h"
#include "freestanding/mem.h"
#include "ops/op.h"
#include "test.h"

#define SEED 20251132
#define U 0x1p-24        // unit roundoff of f32
#define H 0x1p-11        // of f16
#define TINY_F16 0x1p-25 // largest rounding error among the f16 subnormals

static struct op_table ops;
static _Alignas(64) u8 scratch[OP_SCRATCH_BYTES];
static struct test_random rng;

static f64 abs_of(f64 x) { return __builtin_fabs(x); }
static f64 gamma_of(f64 n) { return n * U / (1 - n * U); } // n roundings after one another
static f64 uniform(f64 limit) { return (2 * test_random_unit(&rng) - 1) * limit; }
static f16 random_f16(f64 limit) { return f32_to_f16((f32)uniform(limit)); }

// f16(y) for a y known to `error` of `exact`.
static f64 f16_bound(f64 exact, f64 error) {
    return error + MAX(H * (abs_of(exact) + error), TINY_F16);
}

// The largest error / bound of a series; above 1, or without a positive bound, the case fails.
struct share {
    const char *name;
    f64 largest;
};

static void check_error(struct share *share, f64 got, f64 exact, f64 bound) {
    f64 error = abs_of(got - exact);
    CHECK_MSG(error <= bound, "%s: %.9g instead of %.9g, bound %.3g", share->name, got, exact,
              bound);
    if (error > 0 && error / bound > share->largest) share->largest = error / bound;
}

static void note_share(const struct share *share) {
    CHECK_MSG(share->largest > 0, "%s: nothing was measured", share->name);
    test_note("%s: largest error is %.3f of the bound", share->name, share->largest);
}

// --- tree32 ---

// Lane 0 of the butterfly over 32 lanes, from the last addition inwards.
static f32 butterfly(const f32 *x, u32 n, u32 lane, u32 step) {
    if (step == 32) return lane < n ? x[lane] : 0.0f;
    return butterfly(x, n, lane, 2 * step) + butterfly(x, n, lane + step, 2 * step);
}

static f32 expected_tree32(const f32 *x, u32 n) {
    static f32 level[2][1 << 16];
    const f32 *from = x;
    for (u32 turn = 0;; turn ^= 1) {
        u32 n_blocks = (n + 31) / 32;
        for (u32 b = 0; b < n_blocks; b++) {
            level[turn][b] = butterfly(from + 32 * b, MIN(n - 32 * b, 32u), 0, 1);
        }
        if (n_blocks <= 1) return n_blocks == 1 ? level[turn][0] : 0.0f;
        from = level[turn];
        n = n_blocks;
    }
}

static void tree32(void) {
    static const u32 sizes[] = {0, 1, 2, 31, 32, 33, 63, 64, 65, 576, 1023, 1024, 1025, 32769};
    static f32 x[32769], copy[32769];
    struct share share = {"tree32", 0};
    for (u32 i = 0; i < COUNT_OF(sizes); i++) {
        u32 n = sizes[i], n_levels = n <= 32 ? 1 : n <= 1024 ? 2 : n <= 32768 ? 3 : 4;
        f64 exact = 0, magnitude = 0;
        for (u32 j = 0; j < n; j++) {
            x[j] = copy[j] = (f32)uniform(j % 7 == 0 ? 1000 : 1);
            exact += x[j];
            magnitude += abs_of(x[j]);
        }
        f32 got = op_tree32(copy, n);
        CHECK_MSG(f32_bits(got) == f32_bits(expected_tree32(x, n)), "n = %u", n);
        check_error(&share, got, exact, gamma_of(5 * n_levels) * magnitude);
    }
    note_share(&share);
    f32 minus_zero[32];
    for (u32 i = 0; i < 32; i++) minus_zero[i] = -0.0f;
    CHECK(f32_bits(op_tree32(minus_zero, 32)) == f32_bits(-0.0f)); // no padding takes part
    minus_zero[0] = -0.0f;
    CHECK(f32_bits(op_tree32(minus_zero, 1)) == 0); // -0 and 31 times +0
    // 2^24 and 1 meet last (lanes 0 and 1); -2^24 is lane 16's and cancels lane 0 at once.
    f32 order[17] = {[0] = 0x1p+24f, [1] = 1.0f, [16] = -0x1p+24f};
    CHECK(op_tree32(order, 17) == 1.0f);
}

// --- weights, decoded one element at a time ---

// value = d * scale * q - m * min; every product of two of them is exact in f64.
struct element {
    f32 d, m;
    i32 q, scale, min;
};

static f64 element_value(struct element e) { return (f64)e.d * e.scale * e.q - (f64)e.m * e.min; }

static struct element element_of_32(enum dtype type, const u8 *b, u32 j) {
    struct element e = {.d = f16_to_f32(load_u16(b)), .scale = 1};
    bool with_min = type == DTYPE_Q4_1 || type == DTYPE_Q5_1;
    b += 2;
    if (with_min) {
        e.m = f16_to_f32(load_u16(b));
        e.min = -1; // the value is d * q + m
        b += 2;
    }
    if (type == DTYPE_Q8_0) {
        e.q = b[j] < 128 ? b[j] : b[j] - 256;
        return e;
    }
    i32 fifth = 0;
    bool five_bits = type == DTYPE_Q5_0 || type == DTYPE_Q5_1;
    if (five_bits) {
        fifth = b[j / 8] >> j % 8 & 1;
        b += 4;
    }
    e.q = (j < 16 ? b[j] % 16 : b[j - 16] / 16) + 16 * fifth;
    if (!with_min) e.q -= five_bits ? 16 : 8;
    return e;
}

static struct element element_of_256(enum dtype type, const u8 *b, u32 e) {
    struct element r = {0};
    u32 half = e / 128, plane = e % 128 / 32, l = e % 32; // of the 2-bit planes
    switch (type) {
    case DTYPE_Q2_K:
        r.d = f16_to_f32(load_u16(b + 80));
        r.m = f16_to_f32(load_u16(b + 82));
        r.scale = b[e / 16] % 16;
        r.min = b[e / 16] / 16;
        r.q = b[16 + 32 * half + l] >> 2 * plane & 3;
        return r;
    case DTYPE_Q3_K: {
        u32 j = e / 16;
        r.d = f16_to_f32(load_u16(b + 108));
        i32 low = j < 8 ? b[96 + j] % 16 : b[96 + j - 8] / 16;
        i32 high = b[104 + j % 4] >> 2 * (j / 4) & 3;
        r.scale = low + 16 * high - 32;
        r.q = (b[32 + 32 * half + l] >> 2 * plane & 3) - (b[l] >> e / 32 & 1 ? 0 : 4);
        return r;
    }
    case DTYPE_Q4_K:
    case DTYPE_Q5_K: {
        const u8 *s = b + 4, *low = b + (type == DTYPE_Q4_K ? 16 : 48);
        u32 j = e / 32;
        r.d = f16_to_f32(load_u16(b));
        r.m = f16_to_f32(load_u16(b + 2));
        r.scale = j < 4 ? s[j] % 64 : s[j + 4] % 16 + s[j - 4] / 64 * 16;
        r.min = j < 4 ? s[j + 4] % 64 : s[j + 4] / 16 + s[j] / 64 * 16;
        r.q = low[e / 64 * 32 + l] >> (j % 2 ? 4 : 0) & 15;
        if (type == DTYPE_Q5_K) r.q += 16 * (b[16 + l] >> j & 1);
        return r;
    }
    default: { // Q6_K
        u32 scale_byte = b[192 + e / 16];
        r.d = f16_to_f32(load_u16(b + 208));
        r.scale = scale_byte < 128 ? (i32)scale_byte : (i32)scale_byte - 256;
        i32 low = b[64 * half + e % 64];
        low = e % 128 < 64 ? low % 16 : low / 16;
        r.q = low + 16 * (b[128 + 32 * half + l] >> 2 * plane & 3) - 32;
        return r;
    }
    }
}

static struct element element_of(enum dtype type, const u8 *row, u32 e) {
    const struct dtype_info *info = dtype_lookup(type);
    const u8 *block = row + e / info->block_elements * info->block_bytes;
    switch (type) {
    case DTYPE_F32: return (struct element){.d = load_f32(block), .scale = 1, .q = 1};
    case DTYPE_F16: return (struct element){.d = f16_to_f32(load_u16(block)), .scale = 1, .q = 1};
    case DTYPE_BF16: return (struct element){.d = bf16_to_f32(load_u16(block)), .scale = 1, .q = 1};
    default: break;
    }
    if (info->block_elements == 32) return element_of_32(type, block, e % 32);
    return element_of_256(type, block, e % 256);
}

// Per quantised type: where its f16 scales are, how wide a block of one scale is, the roundings
// inside a group (docs/contract.md, error of operator 4) and the proved bounds of its integers.
static const struct type_facts {
    enum dtype type;
    i32 d_at, m_at; // byte offsets in a block; -1: none
    u32 width;
    u32 n_roundings;
    i64 isum, S, M; // bounds; 0: not an integer sum of this type
} facts[] = {
    {DTYPE_Q4_0, 0, -1, 32, 9, 8388352, 0, 0},
    {DTYPE_Q5_0, 0, -1, 32, 9, 16776704, 0, 0},
    {DTYPE_Q8_0, 0, -1, 32, 9, 134213632, 0, 0},
    {DTYPE_Q4_1, 0, 2, 32, 17, 15728160, 0, 0},
    {DTYPE_Q5_1, 0, 2, 32, 17, 32504864, 0, 0},
    {DTYPE_Q2_K, 80, 82, 16, 3, 1572816, 377475840, 125825280},
    {DTYPE_Q3_K, 108, -1, 16, 2, 2097088, 1073709056, 0},
    {DTYPE_Q4_K, 0, 2, 32, 10, 15728160, 0, 528466176},
    {DTYPE_Q5_K, 0, 2, 32, 10, 32504864, 0, 528466176},
    {DTYPE_Q6_K, 208, -1, 16, 18, 16776704, 0, 0},
};

static void random_row(const struct type_facts *type, u8 *row, u32 k, i32 fill) {
    const struct dtype_info *info = dtype_lookup(type->type);
    u32 n_blocks = k / info->block_elements;
    for (u32 b = 0; b < n_blocks * info->block_bytes; b++) {
        row[b] = fill >= 0 ? (u8)fill : (u8)test_random_u64(&rng);
    }
    for (u32 b = 0; b < n_blocks; b++) {
        u8 *block = row + b * info->block_bytes;
        store_u16(block + type->d_at, random_f16(0.1));
        if (type->m_at >= 0) store_u16(block + type->m_at, random_f16(0.1));
    }
}

// --- gemm with quantised weights ---

#define K_MAX 1536
#define TOKENS_MAX 5
#define ROWS_MAX 7

static u8 weights[ROWS_MAX * K_MAX * 4 + 1];
static i16 q16_a[TOKENS_MAX * K_MAX];
static f32 q16_scale[TOKENS_MAX * (K_MAX / 256)];
static i32 q16_sum16[TOKENS_MAX * (K_MAX / 16)], q16_sum32[TOKENS_MAX * (K_MAX / 16)];

static const struct q16 q16 = {q16_a, q16_scale,   q16_sum16, q16_sum32,
                               K_MAX, K_MAX / 256, K_MAX / 16};

static void q16_sums(u32 n_tokens, u32 k) {
    for (u32 t = 0; t < n_tokens; t++) {
        i32 *sum16 = q16_sum16 + t * q16.sum_stride, *sum32 = q16_sum32 + t * q16.sum_stride;
        for (u32 i = 0; i < k / 16; i++) sum16[i] = 0;
        for (u32 i = 0; i < k / 32; i++) sum32[i] = 0;
        for (u32 i = 0; i < k; i++) {
            sum16[i / 16] += q16_a[t * K_MAX + i];
            sum32[i / 32] += q16_a[t * K_MAX + i];
        }
    }
}

static void random_q16(u32 n_tokens, u32 k) {
    for (u32 i = 0; i < n_tokens * K_MAX; i++) {
        q16_a[i] = (i16)((i32)test_random_below(&rng, 65535) - 32767);
    }
    for (u32 i = 0; i < COUNT_OF(q16_scale); i++) q16_scale[i] = (f32)(uniform(1e-4) + 2e-4);
    q16_sums(n_tokens, k);
}

// What the contract and its error analysis say of one dot product.
struct dot {
    f32 total;            // the contract's value
    f64 exact, magnitude; // the true value, and the sum of da * |terms| that errors scale with
    i64 isum, S, M;       // largest magnitudes met
};

static void add_group(const struct type_facts *type, const u8 *row, u32 first, u32 n, f32 da,
                      const i16 *a, struct dot *dot) {
    f32 chain = 0.0f, d = 0, m = 0;
    i64 S = 0, M = 0;
    f64 magnitude = 0, value = 0;
    bool min_per_block = type->type == DTYPE_Q4_1 || type->type == DTYPE_Q5_1;
    for (u32 b = first; b < first + n; b += type->width) {
        i64 isum = 0, asum = 0;
        struct element e = element_of(type->type, row, b);
        for (u32 i = b; i < b + type->width; i++) {
            isum += (i64)element_of(type->type, row, i).q * a[i];
            asum += a[i];
        }
        d = e.d, m = e.m;
        S += e.scale * isum;
        M += e.min * asum;
        dot->isum = MAX(dot->isum, isum < 0 ? -isum : isum);
        if (type->d_at == 0 && type->width == 32 && type->M == 0) { // Q4_0 to Q8_0
            chain = math_fma_f32(d, (f32)isum, chain);
            if (min_per_block) chain = math_fma_f32(m, (f32)asum, chain);
        } else if (type->S == 0) {
            chain = math_fma_f32((f32)e.scale, (f32)isum, chain);
        }
        value += (f64)d * e.scale * (f64)isum - (f64)m * e.min * (f64)asum;
        magnitude += abs_of((f64)d * e.scale * (f64)isum);
        if (min_per_block) magnitude += abs_of((f64)m * (f64)asum);
    }
    if (type->M != 0) magnitude += abs_of((f64)m * (f64)M);
    f32 group = chain; // the value of the group
    switch (type->type) {
    case DTYPE_Q2_K: group = math_fma_f32(d, (f32)S, -(m * (f32)M)); break;
    case DTYPE_Q3_K: group = d * (f32)S; break;
    case DTYPE_Q4_K:
    case DTYPE_Q5_K: group = math_fma_f32(d, chain, -(m * (f32)M)); break;
    case DTYPE_Q6_K: group = d * chain; break;
    default: break;
    }
    dot->total = math_fma_f32(group, da, dot->total);
    dot->exact += value * da;
    dot->magnitude += magnitude * abs_of(da);
    dot->S = MAX(dot->S, S < 0 ? -S : S);
    dot->M = MAX(dot->M, M < 0 ? -M : M);
}

static struct dot expected_dot(const struct type_facts *type, const u8 *row, u32 k, u32 token) {
    struct dot dot = {0};
    for (u32 at = 0; at < k; at += 256) {
        f32 da = q16_scale[token * q16.scale_stride + at / 256];
        add_group(type, row, at, MIN(k - at, 256u), da, q16_a + token * K_MAX, &dot);
    }
    return dot;
}

static struct gemm_args gemm_call(enum dtype type, u32 k, u32 n_tokens, void *out) {
    return (struct gemm_args){
        .weight = weights + 1, // an odd address
        .row_bytes = dtype_row_bytes(type, k),
        .type = type,
        .k = k,
        .n_tokens = n_tokens,
        .xq = q16,
        .output = GEMM_TO_F32,
        .out = out,
        .out_stride = ROWS_MAX,
    };
}

static void gemm_bits_and_error(void) {
    static const u32 lengths[] = {32, 64, 96, 224, 256, 288, 512, 544, 736, 768, 1536};
    f32 out[TOKENS_MAX * ROWS_MAX];
    for (u32 f = 0; f < COUNT_OF(facts); f++) {
        const struct type_facts *type = &facts[f];
        struct share share = {dtype_name(type->type), 0};
        for (u32 i = 0; i < COUNT_OF(lengths); i++) {
            u32 k = lengths[i];
            if (k % dtype_lookup(type->type)->block_elements != 0) continue;
            struct gemm_args args = gemm_call(type->type, k, TOKENS_MAX, out);
            for (u32 r = 0; r < ROWS_MAX; r++) {
                random_row(type, weights + 1 + r * args.row_bytes, k, -1);
            }
            random_q16(TOKENS_MAX, k);
            CHECK(ops.gemm[type->type](&args, 0, ROWS_MAX, scratch) == 0);
            for (u32 t = 0; t < TOKENS_MAX; t++) {
                for (u32 r = 0; r < ROWS_MAX; r++) {
                    f32 got = out[t * ROWS_MAX + r];
                    struct dot dot = expected_dot(type, weights + 1 + r * args.row_bytes, k, t);
                    CHECK_MSG(f32_bits(got) == f32_bits(dot.total),
                              "%s k %u row %u token %u: "
                              "0x%08x, expected 0x%08x",
                              share.name, k, r, t, f32_bits(got), f32_bits(dot.total));
                    f64 n_roundings = type->n_roundings + (k + 255) / 256;
                    check_error(&share, got, dot.exact, gamma_of(n_roundings) * dot.magnitude);
                }
            }
        }
        note_share(&share);
    }
}

// Weights and activations at the ends of their ranges: the integers stay in their bounds, and where
// a constant fill can reach a bound it does.
static void gemm_integer_bounds(void) {
    static const i32 fills[] = {-1, 0x00, 0x0f, 0x7f, 0x80, 0xf0, 0xff};
    f32 out[ROWS_MAX];
    for (u32 f = 0; f < COUNT_OF(facts); f++) {
        const struct type_facts *type = &facts[f];
        i64 isum = 0, S = 0, M = 0;
        for (u32 round = 0; round < 2 * COUNT_OF(fills); round++) {
            struct gemm_args args = gemm_call(type->type, 512, 1, out);
            random_row(type, weights + 1, 512, fills[round / 2]);
            random_q16(1, 512);
            for (u32 i = 0; i < 512; i++) { // signs that let every sum grow, or all the same
                struct element e = element_of(type->type, weights + 1, i);
                bool negative = round % 2 == 0 && e.q * e.scale < 0;
                q16_a[i] = negative ? -32767 : 32767;
            }
            q16_sums(1, 512);
            struct dot dot = expected_dot(type, weights + 1, 512, 0);
            isum = MAX(isum, dot.isum);
            S = MAX(S, dot.S);
            M = MAX(M, dot.M);
            CHECK(ops.gemm[type->type](&args, 0, 1, scratch) == 0);
            CHECK_MSG(f32_bits(out[0]) == f32_bits(dot.total), "%s round %u",
                      dtype_name(type->type), round);
        }
        CHECK_MSG(isum == type->isum, "%s: isum reaches %lld, bound %lld", dtype_name(type->type),
                  isum, type->isum);
        CHECK(type->isum <= INT_MAX && type->S <= INT_MAX && type->M <= INT_MAX);
        CHECK_MSG(type->S == 0 || S == type->S, "%s: S reaches %lld", dtype_name(type->type), S);
        CHECK_MSG(type->M == 0 || M == type->M, "%s: M reaches %lld", dtype_name(type->type), M);
    }
}

// --- gemm with float weights, and the order of a dot product ---

static f16 activations[TOKENS_MAX * K_MAX];

static void random_activations(f64 limit) {
    for (u32 i = 0; i < COUNT_OF(activations); i++) activations[i] = random_f16(limit);
}

static void put_float(enum dtype type, u8 *row, u32 i, f32 value) {
    if (type == DTYPE_F32) store_f32(row + 4 * i, value);
    if (type == DTYPE_F16) store_u16(row + 2 * i, f32_to_f16(value));
    if (type == DTYPE_BF16) store_u16(row + 2 * i, (u16)(f32_bits(value) >> 16));
}

static const enum dtype float_types[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};

static void gemm_float_bits_and_error(void) {
    static const u32 lengths[] = {1, 7, 255, 256, 257, 576, 1000, 1536};
    f32 out[TOKENS_MAX * ROWS_MAX];
    for (u32 f = 0; f < COUNT_OF(float_types); f++) {
        enum dtype type = float_types[f];
        struct share share = {dtype_name(type), 0};
        for (u32 l = 0; l < COUNT_OF(lengths); l++) {
            u32 k = lengths[l];
            struct gemm_args args = gemm_call(type, k, TOKENS_MAX, out);
            args.x = activations;
            args.x_stride = K_MAX;
            random_activations(8);
            for (u32 i = 0; i < ROWS_MAX * k; i++) put_float(type, weights + 1, i, (f32)uniform(1));
            CHECK(ops.gemm[type](&args, 0, ROWS_MAX, scratch) == 0);
            for (u32 t = 0; t < TOKENS_MAX; t++) {
                for (u32 r = 0; r < ROWS_MAX; r++) {
                    f64 exact = 0, magnitude = 0;
                    f32 total = 0, group = 0;
                    for (u32 i = 0; i < k; i++) {
                        f32 w = element_of(type, weights + 1 + r * args.row_bytes, i).d;
                        f32 x = f16_to_f32(activations[t * K_MAX + i]);
                        group = math_fma_f32(w, x, i % 256 == 0 ? 0.0f : group);
                        if (i % 256 == 255 || i == k - 1) total = total + group;
                        exact += (f64)w * x;
                        magnitude += abs_of((f64)w * x);
                    }
                    f32 got = out[t * ROWS_MAX + r];
                    CHECK_MSG(f32_bits(got) == f32_bits(total), "%s k %u", share.name, k);
                    f64 n_roundings = MIN(k, 256u) + (k + 255) / 256;
                    check_error(&share, got, exact, gamma_of(n_roundings) * magnitude);
                }
            }
        }
        note_share(&share);
    }
}

// Values that another order, or no groups at all, would add to something else.
static void dot_order(void) {
    f32 out[1];
    struct gemm_args args = gemm_call(DTYPE_Q8_0, 768, 1, out);
    memset(weights, 0, sizeof weights);
    memset(q16_a, 0, sizeof q16_a);
    const f32 scales[3] = {0x1p+24f, 1.0f, -0x1p+24f};
    for (u32 g = 0; g < 3; g++) { // groups of value 1 with scales 2^24, 1, -2^24
        u8 *block = weights + 1 + g * 8 * 34;
        store_u16(block, 0x3c00);
        block[2] = 1;
        q16_a[256 * g] = 1;
        q16_scale[g] = scales[g];
    }
    q16_sums(1, 768);
    CHECK(ops.gemm[DTYPE_Q8_0](&args, 0, 1, scratch) == 0);
    CHECK(out[0] == 0.0f); // descending order would give 1
    // Inside a group: blocks of 2^24, 1 and -2^24 in ascending order.
    const f16 block_scales[3] = {0x7800, 0x3c00, 0xf800}; // 2^15, 1, -2^15
    args.k = 96;
    for (u32 b = 0; b < 3; b++) {
        store_u16(weights + 1 + 34 * b, block_scales[b]);
        weights[1 + 34 * b + 2] = 1;
        q16_a[32 * b] = b == 1 ? 1 : 1024; // 2^25, 1, -2^25
    }
    q16_scale[0] = 1.0f;
    q16_sums(1, 96);
    CHECK(ops.gemm[DTYPE_Q8_0](&args, 0, 1, scratch) == 0);
    CHECK(out[0] == 0.0f);

    static const struct {
        u32 at[4];
        f32 w[4], expected;
    } float_cases[] = {
        {{0, 256, 512, 513}, {0x1p+24f, 1, -0x1p+24f, 0}, 0},       // groups ascending
        {{0, 1, 2, 3}, {0x1p+24f, 1, 1, -0x1p+24f}, 0},             // a chain, not a tree
        {{0, 256, 257, 258}, {0x1p+24f, 1, 1, 0}, 0x1.000002p+24f}, // a group starts at 0
        {{255, 256, 257, 512}, {0x1p+24f, 1, 1, -0x1p+24f}, 2},
    };
    for (u32 i = 0; i < COUNT_OF(float_cases); i++) {
        args = gemm_call(DTYPE_F32, 768, 1, out);
        args.x = activations;
        args.x_stride = K_MAX;
        memset(weights, 0, sizeof weights);
        for (u32 j = 0; j < 768; j++) activations[j] = 0x3c00;
        for (u32 j = 0; j < 4; j++)
            store_f32(weights + 1 + 4 * float_cases[i].at[j], float_cases[i].w[j]);
        CHECK(ops.gemm[DTYPE_F32](&args, 0, 1, scratch) == 0);
        CHECK_MSG(out[0] == float_cases[i].expected, "case %u: %.9g", i, (f64)out[0]);
    }
}

// All types: outputs follow from the total, and neither the batch nor the split of units matters.
static void gemm_outputs_and_batches(void) {
    static f32 totals[TOKENS_MAX * ROWS_MAX], other[TOKENS_MAX * ROWS_MAX];
    static f16 halves[TOKENS_MAX * ROWS_MAX];
    static u8 bias[4 * ROWS_MAX + 1];
    for (u32 r = 0; r < ROWS_MAX; r++) store_f32(bias + 1 + 4 * r, (f32)uniform(1));
    for (u32 i = 0; i < DTYPE_LIMIT; i++) {
        const struct dtype_info *info = dtype_lookup(i);
        CHECK((ops.gemm[i] != NULL) == (info != NULL));
        if (info == NULL) continue;
        struct gemm_args args = gemm_call((enum dtype)i, 768, TOKENS_MAX, totals);
        args.x = activations;
        args.x_stride = K_MAX;
        random_activations(1);
        random_q16(TOKENS_MAX, 768);
        for (u32 f = 0; f < COUNT_OF(facts); f++) {
            if (facts[f].type == args.type) random_row(&facts[f], weights + 1, 768 * ROWS_MAX, -1);
        }
        for (u32 j = 0; j < 768 * ROWS_MAX && !info->quantised; j++) {
            put_float(args.type, weights + 1, j, (f32)uniform(1));
        }
        CHECK(ops.gemm[i](&args, 0, ROWS_MAX, scratch) == 0);

        for (u32 j = 0; j < COUNT_OF(other); j++) other[j] = f32_from_bits(0x7fc12345);
        args.out = other;
        CHECK(ops.gemm[i](&args, 2, 5, scratch) == 0); // writes its own units only
        for (u32 j = 0; j < COUNT_OF(other); j++) {
            bool written = j % ROWS_MAX >= 2 && j % ROWS_MAX < 5;
            CHECK(f32_bits(other[j]) == (written ? f32_bits(totals[j]) : 0x7fc12345));
        }
        for (u32 t = 0; t < TOKENS_MAX; t++) { // each token alone
            struct gemm_args alone = args;
            alone.n_tokens = 1;
            alone.x = args.x + t * args.x_stride;
            alone.xq.a += t * args.xq.a_stride;
            alone.xq.scale += t * args.xq.scale_stride;
            alone.xq.sum16 += t * args.xq.sum_stride;
            alone.xq.sum32 += t * args.xq.sum_stride;
            CHECK(ops.gemm[i](&alone, 0, ROWS_MAX, scratch) == 0);
            CHECK_MSG(memcmp(other, totals + t * ROWS_MAX, ROWS_MAX * sizeof(f32)) == 0,
                      "%s: token %u alone differs", info->name, t);
        }

        args.bias = bias + 1;
        args.output = GEMM_TO_F16;
        args.out = halves;
        CHECK(ops.gemm[i](&args, 0, ROWS_MAX, scratch) == 0);
        args.output = GEMM_ADD_F32;
        args.out = other;
        for (u32 j = 0; j < COUNT_OF(other); j++) other[j] = (f32)j * 0.37f;
        CHECK(ops.gemm[i](&args, 0, ROWS_MAX, scratch) == 0);
        for (u32 j = 0; j < COUNT_OF(other); j++) {
            f32 with_bias = totals[j] + load_f32(bias + 1 + 4 * (j % ROWS_MAX));
            CHECK(halves[j] == f32_to_f16(with_bias));
            CHECK(f32_bits(other[j]) == f32_bits((f32)j * 0.37f + with_bias));
        }
    }
}

// --- embed ---

static void embed(void) {
    static f32 residual[3 * 800];
    static const u32 tokens[3] = {2, 0, 2};
    for (u32 i = 0; i < DTYPE_LIMIT; i++) {
        const struct dtype_info *info = dtype_lookup(i);
        if (info == NULL) continue;
        struct share share = {info->name, 0};
        for (u32 scaled = 0; scaled < 2; scaled++) {
            struct embed_args args = {
                .tokens = tokens,
                .table = weights + 1,
                .row_bytes = dtype_row_bytes((enum dtype)i, 768),
                .type = (enum dtype)i,
                .n_embd = 768,
                .scale = scaled ? 25.298222f : 1.0f,
                .residual = residual,
                .residual_stride = 800,
            };
            for (u32 f = 0; f < COUNT_OF(facts); f++) {
                if (facts[f].type == args.type) random_row(&facts[f], weights + 1, 768 * 3, -1);
            }
            for (u32 j = 0; j < 768 * 3 && !info->quantised; j++) {
                put_float(args.type, weights + 1, j, (f32)uniform(1));
            }
            residual[768] = 123.0f;
            CHECK(ops.embed(&args, 0, 3, scratch) == 0);
            CHECK(residual[768] == 123.0f); // nothing between the rows is touched
            for (u32 j = 0; j < 3 * 768; j++) {
                u32 t = j / 768, at = j % 768;
                const u8 *row = args.table + tokens[t] * args.row_bytes;
                struct element e = element_of(args.type, row, at);
                f64 magnitude = abs_of((f64)e.d * e.scale * e.q) + abs_of((f64)e.m * e.min);
                check_error(&share, residual[t * 800 + at], element_value(e) * (f64)args.scale,
                            gamma_of(info->quantised ? 4 : 1) * magnitude * (f64)args.scale);
            }
        }
        note_share(&share);
    }
}

// --- rmsnorm ---

#define NORM_MAX 2100

static struct rmsnorm_args norm_call(const void *x, bool x_is_f16, u32 n, const u8 *weight) {
    return (struct rmsnorm_args){
        .x = x,
        .x_is_f16 = x_is_f16,
        .x_stride = NORM_MAX,
        .n = n,
        .weight = weight,
        .eps = 1e-5f,
        .y_stride = NORM_MAX,
        .residual_stride = NORM_MAX,
    };
}

// The contract's r, from the text.
static f32 expected_norm_factor(const void *x, bool is_f16, u32 first, u32 n, f32 eps) {
    static f32 squares[NORM_MAX];
    for (u32 i = 0; i < n; i++) {
        f32 value = is_f16 ? f16_to_f32(((const f16 *)x)[first + i]) : ((const f32 *)x)[first + i];
        squares[i] = value * value;
    }
    f32 mean = expected_tree32(squares, n) / (f32)n;
    return 1.0f / math_sqrt_f32(mean + eps);
}

static void rmsnorm(void) {
    static const u32 sizes[] = {1, 2, 31, 32, 33, 64, 576, 1000, 1024, 1025, 2048};
    static f32 x_f32[2 * NORM_MAX], residual[2 * NORM_MAX], before[2 * NORM_MAX];
    static f16 x_f16[2 * NORM_MAX], y[2 * NORM_MAX];
    static u8 weight[4 * NORM_MAX + 1];
    struct share to_f16 = {"rmsnorm to f16", 0}, to_f32 = {"rmsnorm to f32", 0};
    for (u32 i = 0; i < NORM_MAX; i++) store_f32(weight + 1 + 4 * i, (f32)uniform(2));
    for (u32 round = 0; round < 2 * COUNT_OF(sizes); round++) {
        u32 n = sizes[round / 2];
        bool is_f16 = round % 2 != 0;
        for (u32 i = 0; i < 2 * NORM_MAX; i++) {
            x_f32[i] = (f32)uniform(i % 50 == 0 ? 3000 : 1);
            x_f16[i] = f32_to_f16(x_f32[i]);
            before[i] = residual[i] = (f32)uniform(10);
        }
        struct rmsnorm_args args =
            norm_call(is_f16 ? (void *)x_f16 : (void *)x_f32, is_f16, n, weight + 1);
        args.y = y;
        CHECK(ops.rmsnorm(&args, 0, 2, scratch) == 0);
        args.y = NULL;
        args.residual = residual;
        CHECK(ops.rmsnorm(&args, 0, 2, scratch) == 0);
        f64 levels = n <= 32 ? 1 : n <= 1024 ? 2 : 3;
        f64 roundings = (2.5 * levels + 6) * U;
        for (u32 row = 0; row < 2; row++) {
            f64 ss = 0;
            for (u32 i = 0; i < n; i++) {
                f64 x = is_f16 ? f16_to_f32(x_f16[row * NORM_MAX + i]) : x_f32[row * NORM_MAX + i];
                ss += x * x;
            }
            f64 r = 1 / math_sqrt(ss / n + (f64)args.eps);
            f32 r_bits = expected_norm_factor(args.x, is_f16, row * NORM_MAX, n, args.eps);
            for (u32 i = 0; i < n; i++) {
                u32 at = row * NORM_MAX + i;
                f32 normed = (is_f16 ? f16_to_f32(x_f16[at]) : x_f32[at]) * r_bits;
                normed = normed * load_f32(weight + 1 + 4 * i);
                CHECK(y[at] == f32_to_f16(normed));
                CHECK(f32_bits(residual[at]) == f32_bits(before[at] + normed));
                f64 x = is_f16 ? f16_to_f32(x_f16[at]) : x_f32[at];
                f64 exact = x * r * load_f32(weight + 1 + 4 * i), error = roundings * abs_of(exact);
                check_error(&to_f16, f16_to_f32(y[at]), exact, f16_bound(exact, error));
                f64 sum = before[at] + exact;
                check_error(&to_f32, residual[at], sum, error + U * (abs_of(sum) + error));
            }
        }
        if (is_f16) { // in place gives the same
            args.residual = NULL;
            args.y = x_f16;
            CHECK(ops.rmsnorm(&args, 1, 2, scratch) == 0);
            CHECK(memcmp(x_f16 + NORM_MAX, y + NORM_MAX, n * sizeof(f16)) == 0);
        }
    }
    note_share(&to_f16);
    note_share(&to_f32);
    static const u32 forbidden[] = {0x7f800000, 0xff800000, 0x7fc00000, 0x5f800001}; // last: 2^64
    for (u32 i = 0; i < COUNT_OF(forbidden); i++) {
        struct rmsnorm_args args = norm_call(x_f32, false, 100, weight + 1);
        args.y = y;
        CHECK(ops.rmsnorm(&args, 0, 1, scratch) == 0);
        x_f32[99] = f32_from_bits(forbidden[i]);
        CHECK_MSG(ops.rmsnorm(&args, 0, 1, scratch) == 1, "0x%08x", forbidden[i]);
        x_f32[99] = 1.0f;
    }
    for (u32 i = 0; i < 100; i++) x_f32[i] = i % 2 ? -0.0f : 0.0f;
    struct rmsnorm_args args = norm_call(x_f32, false, 100, weight + 1);
    args.y = y;
    CHECK(ops.rmsnorm(&args, 0, 1, scratch) == 0); // eps keeps the divisor above 0
    for (u32 i = 0; i < 100; i++) CHECK((y[i] & 0x7fff) == 0);
}

// --- quantize_q16 ---

static struct quantize_args quantize_call(const f16 *x, u32 n) {
    return (struct quantize_args){.x = x, .x_stride = K_MAX, .n = n, .out = q16};
}

static i32 nearest_even(f32 x) {
    i32 below = (i32)math_floor(x);
    f64 fraction = (f64)x - below; // exact
    if (fraction == 0.5) return below + (below & 1);
    return fraction > 0.5 ? below + 1 : below;
}

// Every finite amax: both scales are finite and normal, a stays in range and within 0.506 da.
static void quantize_every_amax(void) {
    struct share share = {"quantize_q16", 0};
    f16 x[64];
    struct quantize_args args = quantize_call(x, 64);
    for (u32 amax = 1; amax < 0x7c00; amax++) {
        for (u32 i = 0; i < 64; i++) {
            x[i] = (f16)(test_random_below(&rng, amax + 1) | test_random_below(&rng, 2) << 15);
        }
        x[amax % 64] = (f16)amax;
        x[(amax + 1) % 64] = (f16)(amax | 0x8000);
        CHECK(ops.quantize_q16(&args, 0, 1, scratch) == 0);
        f32 da = q16_scale[0], inv = 32767.0f / f16_to_f32((f16)amax);
        CHECK(da >= 0x1p-126f && math_is_finite_f32(da));
        CHECK(inv >= 0x1p-126f && math_is_finite_f32(inv));
        CHECK(q16_a[amax % 64] == 32767 && q16_a[(amax + 1) % 64] == -32767);
        CHECK(da == f16_to_f32((f16)amax) / 32767.0f);
        i32 sums[4] = {0};
        for (u32 i = 0; i < 64; i++) {
            CHECK(q16_a[i] >= -32767);
            CHECK(q16_a[i] == nearest_even(f16_to_f32(x[i]) * inv));
            check_error(&share, (f64)q16_a[i] * da, f16_to_f32(x[i]), 0.506 * da);
            sums[i / 16] += q16_a[i];
        }
        for (u32 i = 0; i < 4; i++) CHECK(q16_sum16[i] == sums[i]);
        CHECK(q16_sum32[0] == sums[0] + sums[1] && q16_sum32[1] == sums[2] + sums[3]);
    }
    note_share(&share);
}

static void quantize_groups(void) {
    random_activations(100);
    for (u32 i = 256; i < 512; i++) activations[i] = (f16)(i % 2 << 15); // zeros of both signs
    struct quantize_args args = quantize_call(activations, 544);         // the last group has 32
    memset(q16_a, 0x55, sizeof q16_a);
    memset(q16_scale, 0x55, sizeof q16_scale);
    CHECK(ops.quantize_q16(&args, 0, 2, scratch) == 0);
    CHECK(f32_bits(q16_scale[1]) == 0); // +0
    for (u32 i = 256; i < 512; i++) CHECK(q16_a[i] == 0);
    for (u32 i = 8; i < 16; i++) CHECK(q16_sum32[i] == 0);
    CHECK(q16_a[544] == 0x5555); // nothing past n
    CHECK(f32_bits(q16_scale[3]) == 0x55555555);
    for (u32 t = 0; t < 2; t++) { // each group has its own scale
        for (u32 g = 0; g < 3; g++) {
            f32 amax = 0;
            for (u32 i = 256 * g; i < MIN(544u, 256 * g + 256); i++) {
                f32 magnitude = f16_to_f32(activations[t * K_MAX + i] & 0x7fff);
                amax = MAX(amax, magnitude);
            }
            CHECK(q16_scale[t * q16.scale_stride + g] == amax / 32767.0f);
        }
    }
    // Halves round to even: amax 32767 is no f16, so take amax = 2^11, where inv is 15.99951171875.
    // x = 1: 15.9995 -> 16; the sign is symmetric.
    f16 x[32] = {0x6800, 0x3c00, 0xbc00};
    args = quantize_call(x, 32);
    CHECK(ops.quantize_q16(&args, 0, 1, scratch) == 0);
    CHECK(q16_a[0] == 32767 && q16_a[1] == 16 && q16_a[2] == -16 && q16_a[3] == 0);
    static const f16 forbidden[] = {0x7c00, 0xfc00, 0x7c01, 0xffff, 0x7e00};
    static const u32 places[] = {0, 31, 255, 256, 511, 512, 543};
    args = quantize_call(activations, 544);
    for (u32 i = 0; i < COUNT_OF(forbidden); i++) {
        for (u32 p = 0; p < COUNT_OF(places); p++) {
            f16 kept = activations[places[p]];
            activations[places[p]] = forbidden[i];
            CHECK(ops.quantize_q16(&args, 0, 1, scratch) == 1);
            activations[places[p]] = kept;
            CHECK(ops.quantize_q16(&args, 0, 1, scratch) == 0);
        }
    }
}

// --- rope ---

#define ROPE_POSITIONS 50

static f32 rope_table[ROPE_POSITIONS * 64];

static void check_rope(struct share *share, u32 head_dim, u32 rope_dim, bool neox) {
    enum { N_TOKENS = 3, N_HEAD = 2 };
    f16 x[N_TOKENS * 160], before[N_TOKENS * 160];
    u32 positions[N_TOKENS];
    for (u32 i = 0; i < COUNT_OF(x); i++) before[i] = x[i] = random_f16(30);
    for (u32 t = 0; t < N_TOKENS; t++) positions[t] = test_random_below(&rng, ROPE_POSITIONS);
    struct rope_args args = {
        .x = x,
        .x_stride = 160,
        .n_head = N_HEAD,
        .head_dim = head_dim,
        .rope_dim = rope_dim,
        .neox = neox,
        .positions = positions,
        .table = rope_table,
    };
    CHECK(ops.rope(&args, 0, N_TOKENS, scratch) == 0);
    for (u32 at = 0; at < COUNT_OF(x); at++) {
        u32 t = at / 160, j = at % 160 % head_dim;
        if (at % 160 >= N_HEAD * head_dim || j >= rope_dim) {
            CHECK(x[at] == before[at]); // padding, and what is not turned
            continue;
        }
        u32 n_pairs = rope_dim / 2, pair = neox ? j % n_pairs : j / 2;
        bool first = neox ? j < n_pairs : j % 2 == 0;
        u32 step = neox ? n_pairs : 1, other = first ? at + step : at - step;
        f64 c = rope_table[(positions[t] * n_pairs + pair) * 2];
        f64 s = rope_table[(positions[t] * n_pairs + pair) * 2 + 1];
        f32 x0 = f16_to_f32(before[first ? at : other]);
        f32 x1 = f16_to_f32(before[first ? other : at]);
        f32 c_bits = (f32)c, s_bits = (f32)s;
        CHECK(x[at] == f32_to_f16(first ? math_fma_f32(x0, c_bits, -(x1 * s_bits))
                                        : math_fma_f32(x0, s_bits, x1 * c_bits)));
        f64 own = f16_to_f32(before[at]) * c, cross = f16_to_f32(before[other]) * s;
        f64 exact = first ? own - cross : own + cross;
        f64 error = gamma_of(2) * (abs_of(own) + abs_of(cross));
        check_error(share, f16_to_f32(x[at]), exact, f16_bound(exact, error));
    }
}

static void rope(void) {
    struct share share = {"rope", 0};
    for (u32 i = 0; i < COUNT_OF(rope_table) / 2; i++) {
        f64 angle = uniform(3.15);
        rope_table[2 * i] = (f32)math_cos(angle);
        rope_table[2 * i + 1] = (f32)math_sin(angle);
    }
    for (u32 i = 0; i < 40; i++) {
        check_rope(&share, 64, 64, i % 2 != 0);
        check_rope(&share, 80, 64, i % 2 != 0);
        check_rope(&share, 6, 2, i % 2 != 0);
        check_rope(&share, 5, 4, i % 2 != 0); // an odd head
    }
    note_share(&share);
    f16 x[8] = {0};
    u32 position = 0;
    f32 table[4] = {0.70710678f, 0.70710678f, 1.0f, 0.0f};
    struct rope_args args = {.x = x,
                             .x_stride = 8,
                             .n_head = 2,
                             .head_dim = 4,
                             .rope_dim = 4,
                             .positions = &position,
                             .table = table};
    CHECK(ops.rope(&args, 0, 1, scratch) == 0);
    x[4] = x[5] = 0x7bff; // turned by 45 degrees the sum is past the f16 range
    CHECK(ops.rope(&args, 0, 1, scratch) == 1);
    for (u32 at = 0; at < 8; at++) { // NaN anywhere, also past the rope dimension
        memset(x, 0, sizeof x);
        x[at] = 0x7e00;
        args.rope_dim = 2;
        CHECK_MSG(ops.rope(&args, 0, 1, scratch) == 1, "NaN at %u", at);
    }
}

// --- act_mul ---

static f16 expected_act_mul(f32 g, f32 u, bool is_gelu) {
    f32 square = g * g;
    f32 z = is_gelu ? g * math_fma_f32(OP_GELU_C3, square, OP_GELU_C1) : g;
    f32 divisor = 1.0f + math_exp_f32(-z);
    f32 activated = g * (1.0f / divisor);
    return f32_to_f16(activated * u);
}

// All 65,536 gates with a few ups: error of the finite ones; a gate or an up that is not finite
// gives an output that is not, whatever the other is, so that the next quantize_q16 refuses it.
static void check_act_mul(const char *name, act_mul_fn *run, bool is_gelu) {
    static f16 gate[1 << 16], up[1 << 16], out[1 << 16];
    static const f16 ups[] = {0, 0x8000, 0x3c00, 0xbc00, 0x0001, 0x7bff, 0x7c00, 0xfc00, 0x7e00};
    struct share share = {name, 0};
    struct act_mul_args args = {gate, up, 1 << 16, 1 << 16, 1 << 16, out, 1 << 16};
    const f64 root = math_sqrt(2 / 3.14159265358979323846);
    for (u32 round = 0; round < COUNT_OF(ups) + 2; round++) {
        for (u32 i = 0; i < 1 << 16; i++) {
            gate[i] = (f16)i;
            up[i] = round < COUNT_OF(ups) ? ups[round] : random_f16(round % 2 ? 4 : 60000);
        }
        CHECK(run(&args, 0, 1, scratch) == 0);
        for (u32 i = 0; i < 1 << 16; i++) {
            bool finite = (i & 0x7fff) < 0x7c00 && (up[i] & 0x7fff) < 0x7c00;
            if (!finite) {
                CHECK_MSG((out[i] & 0x7fff) >= 0x7c00, "%s: gate 0x%04x up 0x%04x hides it", name,
                          i, up[i]);
                continue;
            }
            f64 g = f16_to_f32((f16)i), u = f16_to_f32(up[i]);
            f64 z = is_gelu ? 2 * root * (g + 0.044715 * g * g * g) : g;
            CHECK(out[i] == expected_act_mul(f16_to_f32((f16)i), f16_to_f32(up[i]), is_gelu));
            f64 sigmoid = 1 / (1 + math_exp(-z)), rest = 1 / (1 + math_exp(z)); // their sum is 1
            f64 exact = g * sigmoid * u;
            f64 relative = 6 * U + (is_gelu ? 4 * U * abs_of(z) * rest : 0);
            f64 error = relative * abs_of(exact) + 0x1p-100;
            if (abs_of(exact) + error >= 65519) continue; // may be infinite: an error later on
            check_error(&share, f16_to_f32(out[i]), exact, f16_bound(exact, error));
        }
    }
    note_share(&share);
}

static void act_mul(void) {
    check_act_mul("silu_mul", ops.silu_mul, false);
    check_act_mul("gelu_tanh_mul", ops.gelu_tanh_mul, true);
    const f64 root = math_sqrt(2 / 3.14159265358979323846);
    CHECK((f32)(2 * root) == OP_GELU_C1);
    CHECK((f32)(2 * 0.044715 * root) == OP_GELU_C3);
    f16 x[3] = {0x3c00, 0x4000, 0x4200}, up[3] = {0x3c00, 0x3c00, 0x3c00}, out[3];
    struct act_mul_args args = {x, up, 3, 3, 3, out, 3};
    CHECK(ops.silu_mul(&args, 0, 1, scratch) == 0);
    args.out = up; // in place
    CHECK(ops.silu_mul(&args, 0, 1, scratch) == 0);
    CHECK(memcmp(out, up, sizeof out) == 0);
}

// --- add, finite ---

static void add_and_finite(void) {
    f32 residual[2 * 40], x[2 * 48], before[2 * 40];
    for (u32 i = 0; i < COUNT_OF(residual); i++) before[i] = residual[i] = (f32)uniform(10);
    for (u32 i = 0; i < COUNT_OF(x); i++) x[i] = (f32)uniform(0.001);
    struct add_args args = {residual, x, 40, 48, 37};
    CHECK(ops.add(&args, 0, 2, scratch) == 0);
    for (u32 i = 0; i < COUNT_OF(residual); i++) {
        f32 expected = i % 40 < 37 ? before[i] + x[i / 40 * 48 + i % 40] : before[i];
        CHECK(f32_bits(residual[i]) == f32_bits(expected));
    }
    struct finite_args finite = {x, 48, 37};
    static const u32 forbidden[] = {0x7f800000, 0xff800000, 0x7f800001, 0xffffffff};
    CHECK(ops.finite(&finite, 0, 2, scratch) == 0);
    for (u32 i = 0; i < COUNT_OF(forbidden); i++) {
        x[48 + 36] = f32_from_bits(forbidden[i]);
        CHECK(ops.finite(&finite, 0, 2, scratch) == 1);
        CHECK(ops.finite(&finite, 0, 1, scratch) == 0); // the other unit
        x[48 + 36] = 0x1.fffffep+127f;
        x[48 + 37] = f32_from_bits(forbidden[i]); // past n
        CHECK(ops.finite(&finite, 0, 2, scratch) == 0);
    }
}

static const struct test_case cases[] = {
    {"tree32", tree32},
    {"gemm_bits_and_error", gemm_bits_and_error},
    {"gemm_integer_bounds", gemm_integer_bounds},
    {"gemm_float_bits_and_error", gemm_float_bits_and_error},
    {"dot_order", dot_order},
    {"gemm_outputs_and_batches", gemm_outputs_and_batches},
    {"embed", embed},
    {"rmsnorm", rmsnorm},
    {"quantize_every_amax", quantize_every_amax},
    {"quantize_groups", quantize_groups},
    {"rope", rope},
    {"act_mul", act_mul},
    {"add_and_finite", add_and_finite},
};

int program_main(const struct platform_start *start) {
    op_fill_reference(&ops);
    rng.state = SEED;
    return test_main(start, "test_reference", cases, COUNT_OF(cases));
}
