// SPDX-License-Identifier: Apache-2.0
// kv_write and attention, of ops/reference.c and of every level's table: bits against a second
// version written from docs/contract.md (masks instead of ranges, one output element at a time),
// error against f64 within the derived bound, and what must not matter: physical order of blocks,
// tiles, other sequences, and everything at a position that the query may not see. Levels that the
// machine lacks are skipped, aloud.
#include "cpu/kernels.h"
#include "freestanding/math.h"
#include "freestanding/mem.h"
#include "ops/op.h"
#include "test.h"

#define SEED 20251133
#define U 0x1p-24        // unit roundoff of f32
#define H 0x1p-11        // of f16
#define TINY_F16 0x1p-25 // largest rounding error among the f16 subnormals

#define POSITIONS 800
#define HEADS_KV_MAX 3
#define DIM_MAX 128
#define BLOCKS (POSITIONS / OP_KV_BLOCK_TOKENS)
#define N_SLOTS 2
#define TOKEN_BYTES_MAX (HEADS_KV_MAX * DIM_MAX * 2)

static struct op_table ops;
static _Alignas(64) u8 scratch[OP_SCRATCH_BYTES];
static struct test_random rng;

static f64 abs_of(f64 x) { return __builtin_fabs(x); }
static f64 uniform(f64 limit) { return (2 * test_random_unit(&rng) - 1) * limit; }

// What a sequence's keys and values are, by position, whatever the cache looks like.
static f16 k_rows[POSITIONS][HEADS_KV_MAX * DIM_MAX], v_rows[POSITIONS][HEADS_KV_MAX * DIM_MAX];
static f16 q_rows[POSITIONS][4 * DIM_MAX], out_rows[POSITIONS][4 * DIM_MAX];

// Two sequences share the planes; slot 1 is the one under test.
static u8 k_plane[N_SLOTS * BLOCKS * OP_KV_BLOCK_TOKENS * TOKEN_BYTES_MAX];
static u8 v_plane[N_SLOTS * BLOCKS * OP_KV_BLOCK_TOKENS * TOKEN_BYTES_MAX];
static u32 block_tables[N_SLOTS * BLOCKS];

struct shape {
    u32 n_head, n_head_kv, head_dim, window;
    f32 scale, softcap;
};

static struct kv_layer kv_layer_of(const struct shape *shape) {
    u64 token_stride = shape->n_head_kv * shape->head_dim * 2;
    return (struct kv_layer){
        .k = k_plane,
        .v = v_plane,
        .page_stride = OP_KV_BLOCK_TOKENS * token_stride,
        .token_stride = token_stride,
        .tables = block_tables,
        .max_blocks = BLOCKS,
    };
}

static void fill_rows(const struct shape *shape, f64 q_limit) {
    for (u32 p = 0; p < POSITIONS; p++) {
        for (u32 i = 0; i < shape->n_head_kv * shape->head_dim; i++) {
            k_rows[p][i] = f32_to_f16((f32)uniform(2));
            v_rows[p][i] = f32_to_f16((f32)uniform(3));
        }
        for (u32 i = 0; i < shape->n_head * shape->head_dim; i++) {
            q_rows[p][i] = f32_to_f16((f32)uniform(q_limit));
        }
    }
}

// Poisons both planes with NaN, deals the blocks out (in order, or shuffled), and writes positions
// [first, last] of the sequence under test through kv_write.
static void fill_cache(const struct shape *shape, bool shuffled, u32 first, u32 last) {
    memset(k_plane, 0xff, sizeof k_plane);
    memset(v_plane, 0xff, sizeof v_plane);
    for (u32 i = 0; i < N_SLOTS * BLOCKS; i++) block_tables[i] = i;
    for (u32 i = N_SLOTS * BLOCKS; shuffled && i > 1; i--) {
        u32 j = test_random_below(&rng, i), kept = block_tables[i - 1];
        block_tables[i - 1] = block_tables[j];
        block_tables[j] = kept;
    }
    for (u32 p = first; p <= last; p++) {
        static const u32 slot = 1;
        struct kv_write_args args = {
            .k = k_rows[p],
            .v = v_rows[p],
            .n = shape->n_head_kv * shape->head_dim,
            .kv = kv_layer_of(shape),
            .positions = &p,
            .slots = &slot,
        };
        CHECK(ops.kv_write(&args, 0, 1, scratch) == 0);
    }
}

// Attention for the rows at positions [first, first + n), in tiles of `tile_rows`, into out_rows.
static u32 run_attention(const struct shape *shape, u32 first, u32 n, u32 tile_rows) {
    static u32 positions[POSITIONS], slots[POSITIONS];
    static struct attention_tile tiles[POSITIONS];
    u32 n_tiles = 0;
    for (u32 i = 0; i < n; i++) {
        positions[i] = first + i;
        slots[i] = 1;
    }
    for (u32 row = 0; row < n; row += tile_rows) {
        tiles[n_tiles++] = (struct attention_tile){row, MIN(tile_rows, n - row)};
    }
    struct attention_args args = {
        .q = q_rows[first],
        .q_stride = 4 * DIM_MAX,
        .n_head = shape->n_head,
        .n_head_kv = shape->n_head_kv,
        .head_dim = shape->head_dim,
        .kv = kv_layer_of(shape),
        .positions = positions,
        .slots = slots,
        .tiles = tiles,
        .scale = shape->scale,
        .softcap = shape->softcap,
        .window = shape->window,
        .out = out_rows[first],
        .out_stride = 4 * DIM_MAX,
    };
    return ops.attention(&args, 0, n_tiles * shape->n_head_kv, scratch);
}

// --- the contract once more ---

static bool is_visible(const struct shape *shape, u32 t, u32 pos) {
    return t <= pos && (shape->window == 0 || pos - t < shape->window);
}

static f32 score_of(const struct shape *shape, const f16 *q, const f16 *k) {
    f32 dot = 0.0f;
    for (u32 j = 0; j < shape->head_dim; j++) {
        dot = math_fma_f32(f16_to_f32(q[j]), f16_to_f32(k[j]), dot);
    }
    f32 score = dot * shape->scale;
    if (shape->softcap == 0.0f) return score;
    f32 z = score / shape->softcap;
    f32 e = math_exp_f32(-2.0f * (z < 0 ? -z : z));
    f32 tanh_abs = (1.0f - e) / (1.0f + e);
    return shape->softcap * (z < 0 ? -tanh_abs : tanh_abs);
}

// Lane 0 of the butterfly over 32 lanes, from the last addition inwards.
static f32 butterfly(const f32 *x, u32 lane, u32 step) {
    if (step == 32) return x[lane];
    return butterfly(x, lane, 2 * step) + butterfly(x, lane + step, 2 * step);
}

struct part { // of one output element
    f32 m, l, o;
};

static struct part chunk_part(const struct shape *shape, const f16 *q, u32 kv_head, u32 pos,
                              u32 chunk, u32 j) {
    u32 first_element = kv_head * shape->head_dim;
    f32 score[256], p[256];
    struct part part = {-__builtin_inff(), 0.0f, 0.0f};
    for (u32 i = 0; i < 256; i++) {
        u32 t = 256 * chunk + i;
        if (!is_visible(shape, t, pos)) continue;
        score[i] = score_of(shape, q, k_rows[t] + first_element);
        if (score[i] > part.m) part.m = score[i];
    }
    for (u32 i = 0; i < 256; i++) {
        u32 t = 256 * chunk + i;
        p[i] = 0.0f;
        if (!is_visible(shape, t, pos)) continue;
        p[i] = math_exp_f32(score[i] - part.m);
        part.o = math_fma_f32(p[i], f16_to_f32(v_rows[t][first_element + j]), part.o);
    }
    f32 block[32] = {0};
    for (u32 b = 0; b < 8; b++) block[b] = butterfly(p + 32 * b, 0, 1);
    part.l = butterfly(block, 0, 1);
    return part;
}

static f16 expected_element(const struct shape *shape, const f16 *q, u32 kv_head, u32 pos, u32 j) {
    struct part run = {0};
    bool started = false;
    for (u32 chunk = 0; chunk <= pos / 256; chunk++) {
        bool exists = false;
        for (u32 t = 256 * chunk; t < 256 * chunk + 256; t++) exists |= is_visible(shape, t, pos);
        if (!exists) continue;
        struct part part = chunk_part(shape, q, kv_head, pos, chunk, j);
        if (started) {
            f32 m = run.m > part.m ? run.m : part.m;
            f32 a = math_exp_f32(run.m - m), b = math_exp_f32(part.m - m);
            f32 l_scaled = part.l * b, o_scaled = part.o * b;
            run = (struct part){m, math_fma_f32(run.l, a, l_scaled),
                                math_fma_f32(run.o, a, o_scaled)};
        } else {
            run = part;
            started = true;
        }
    }
    return f32_to_f16(run.o / run.l);
}

// --- f64 ---

struct share {
    const char *name;
    f64 largest;
};

// One head of one query in f64, and the bound of docs/contract.md: the scores' error E counts twice
// (numerator and denominator), the differences of scores are rounded up to three times, each chunk
// costs an exponential and two roundings on either side, sums are 256 and 10 roundings deep.
static void check_head_error(struct share *share, const struct shape *shape, const f16 *q,
                             u32 kv_head, u32 pos, const f16 *out) {
    static f64 score[POSITIONS];
    u32 D = shape->head_dim, first_element = kv_head * D;
    u32 first = shape->window != 0 && pos >= shape->window ? pos - shape->window + 1 : 0;
    f64 highest = -1e300, lowest = 1e300, E = 0;
    for (u32 t = first; t <= pos; t++) {
        f64 dot = 0, magnitude = 0;
        for (u32 j = 0; j < D; j++) {
            f64 product = (f64)f16_to_f32(q[j]) * f16_to_f32(k_rows[t][first_element + j]);
            dot += product;
            magnitude += abs_of(product);
        }
        f64 error = (D + 1) * U / (1 - (D + 1) * U) * magnitude * shape->scale;
        score[t] = dot * shape->scale;
        if (shape->softcap != 0.0f) {
            f64 e = math_exp(-2 * abs_of(score[t]) / shape->softcap);
            f64 sign = score[t] < 0 ? -1 : 1;
            score[t] = sign * shape->softcap * (1 - e) / (1 + e);
            error += 5 * U * shape->softcap;
        }
        E = MAX(E, error);
        highest = MAX(highest, score[t]);
        lowest = MIN(lowest, score[t]);
    }
    f64 n_merges = pos / 256 - first / 256, range = highest - lowest + 2 * E;
    f64 relative = 2 * E + U * (6 * range + 8 * n_merges + 271);
    for (u32 j = 0; j < D; j++) {
        f64 l = 0, o = 0, magnitude = 0;
        for (u32 t = first; t <= pos; t++) {
            f64 p = math_exp(score[t] - highest), v = f16_to_f32(v_rows[t][first_element + j]);
            l += p;
            o += p * v;
            magnitude += p * abs_of(v);
        }
        f64 exact = o / l, before_f16 = 1.01 * relative * magnitude / l + 0x1p-100;
        f64 bound = before_f16 + MAX(H * (abs_of(exact) + before_f16), TINY_F16);
        f64 error = abs_of(f16_to_f32(out[j]) - exact);
        CHECK_MSG(relative < 0.005 && error <= bound,
                  "%s, position %u element %u: %.9g off by %.3g, bound %.3g", share->name, pos, j,
                  exact, error, bound);
        if (error / bound > share->largest) share->largest = error / bound;
    }
}

// --- cases ---

static const struct shape shapes[] = {
    {.n_head = 3, .n_head_kv = 1, .head_dim = 64, .scale = 0.125f},
    {.n_head = 4, .n_head_kv = 2, .head_dim = 20, .scale = 0.3f},
    {.n_head = 3, .n_head_kv = 3, .head_dim = 1, .scale = 1.0f},
    {.n_head = 2, .n_head_kv = 1, .head_dim = 128, .scale = 0.088388346f, .window = 100},
    {.n_head = 2, .n_head_kv = 2, .head_dim = 32, .scale = 0.2f, .window = 256},
    {.n_head = 2, .n_head_kv = 1, .head_dim = 32, .scale = 0.2f, .window = 1},
    {.n_head = 2, .n_head_kv = 1, .head_dim = 48, .scale = 0.15f, .window = 300, .softcap = 3.0f},
    {.n_head = 2, .n_head_kv = 1, .head_dim = 48, .scale = 0.15f, .softcap = 50.0f},
};

// Positions around chunk, block and window borders.
static const u32 borders[] = {0,   1,   15,  16,  31,  99,  100, 101, 254, 255, 256,
                              257, 300, 354, 355, 356, 511, 512, 513, 767, 768, 799};

static void bits_and_error(void) {
    for (u32 s = 0; s < COUNT_OF(shapes); s++) {
        const struct shape *shape = &shapes[s];
        char name[64];
        struct text t = TEXT_OVER_ARRAY(name);
        text_format(&t, "head_dim %u window %u softcap %g", shape->head_dim, shape->window,
                    (f64)shape->softcap);
        struct share share = {name, 0};
        fill_rows(shape, 2);
        fill_cache(shape, true, 0, POSITIONS - 1);
        for (u32 b = 0; b < COUNT_OF(borders); b++) {
            u32 pos = borders[b], D = shape->head_dim;
            CHECK(run_attention(shape, pos, 1, 1) == 0);
            for (u32 h = 0; h < shape->n_head; h++) {
                u32 kv_head = h * shape->n_head_kv / shape->n_head;
                const f16 *q = q_rows[pos] + h * D, *out = out_rows[pos] + h * D;
                check_head_error(&share, shape, q, kv_head, pos, out);
                for (u32 j = 0; j < D; j += 1 + D / 4) {
                    f16 expected = expected_element(shape, q, kv_head, pos, j);
                    CHECK_MSG(out[j] == expected,
                              "%s, position %u head %u element %u: 0x%04x, "
                              "expected 0x%04x",
                              name, pos, h, j, out[j], expected);
                }
            }
        }
        test_note("attention, %s: largest error is %.3f of the bound", name, share.largest);
        // A window of one position returns its value; anything else cannot be free of error.
        CHECK(shape->window == 1 ? share.largest == 0 : share.largest > 0);
    }
}

// A large range of scores: most weights vanish (some below the smallest f32) and nothing breaks.
static void steep_scores(void) {
    struct shape shape = {.n_head = 2, .n_head_kv = 1, .head_dim = 64, .scale = 1.0f};
    struct share share = {"steep scores", 0};
    fill_rows(&shape, 8);
    fill_cache(&shape, true, 0, POSITIONS - 1);
    for (u32 b = 0; b < COUNT_OF(borders); b++) {
        CHECK(run_attention(&shape, borders[b], 1, 1) == 0);
        for (u32 h = 0; h < 2; h++) {
            check_head_error(&share, &shape, q_rows[borders[b]] + 64 * h, 0, borders[b],
                             out_rows[borders[b]] + 64 * h);
        }
    }
    test_note("attention, steep scores: largest error is %.3f of the bound", share.largest);
}

static u32 rows_that_differ(const f16 a[POSITIONS][4 * DIM_MAX], u32 first, u32 n, u32 width) {
    u32 different = 0;
    for (u32 p = first; p < first + n; p++) {
        different += memcmp(a[p], out_rows[p], width * sizeof(f16)) != 0;
    }
    return different;
}

static void layout_does_not_matter(void) {
    static f16 kept[POSITIONS][4 * DIM_MAX];
    for (u32 s = 0; s < COUNT_OF(shapes); s++) {
        const struct shape *shape = &shapes[s];
        u32 first = 240, n = 40, width = shape->n_head * shape->head_dim;
        fill_rows(shape, 2);
        fill_cache(shape, false, 0, POSITIONS - 1);
        CHECK(run_attention(shape, first, n, 1) == 0);
        memcpy(kept, out_rows, sizeof kept);
        static const u32 tile_rows[] = {1, 3, OP_ATTENTION_TILE_ROWS};
        for (u32 i = 0; i < COUNT_OF(tile_rows); i++) {
            fill_cache(shape, true, 0, POSITIONS - 1);
            memset(out_rows, 0, sizeof out_rows);
            CHECK(run_attention(shape, first, n, tile_rows[i]) == 0);
            CHECK_MSG(rows_that_differ(kept, first, n, width) == 0, "shape %u tiles of %u", s,
                      tile_rows[i]);
        }
        // Only what the last row sees is in the cache; all else is NaN.
        u32 pos = first + n - 1;
        u32 oldest = shape->window != 0 && pos >= shape->window ? pos - shape->window + 1 : 0;
        fill_cache(shape, true, oldest, pos);
        memset(out_rows[pos], 0, sizeof out_rows[pos]);
        CHECK(run_attention(shape, pos, 1, 1) == 0);
        CHECK_MSG(rows_that_differ(kept, pos, 1, width) == 0, "shape %u: poison is seen", s);
    }
}

// With q = 0 every weight is 1 and the numerators are sums of values in the contract's order. A
// value of 2^-11 is lost when it meets 2^15, and kept when the large values have cancelled before.
static void order_of_sums(void) {
    enum { LARGE = 0x7800, MINUS_LARGE = 0xf800, SMALL = 0x1000 }; // f16: 2^15, -2^15, 2^-11
    static const struct {
        u32 at[3];
        f16 v[3];
        u32 pos, window;
        f32 expected; // before the division by the number of visible positions
    } sums[] = {
        // Lost: 255 ends a chunk, so 256 and 257 meet first. A border one position away keeps it.
        {{255, 256, 257}, {LARGE, MINUS_LARGE, SMALL}, 257, 0, 0},
        {{255, 256, 257}, {LARGE, MINUS_LARGE, SMALL}, 257, 257, 0}, // a window moves no border
        {{254, 255, 256}, {LARGE, MINUS_LARGE, SMALL}, 257, 0, 0x1p-11f},
        {{254, 255, 256}, {LARGE, MINUS_LARGE, SMALL}, 257, 257, 0x1p-11f},
        {{256, 257, 258}, {LARGE, MINUS_LARGE, SMALL}, 258, 0, 0x1p-11f},
        {{511, 512, 513}, {LARGE, MINUS_LARGE, SMALL}, 513, 0, 0},
        // Inside a chunk, and over chunks, ascending.
        {{3, 90, 200}, {LARGE, SMALL, MINUS_LARGE}, 300, 0, 0},
        {{100, 300, 600}, {LARGE, SMALL, MINUS_LARGE}, 700, 0, 0},
        {{100, 300, 600}, {LARGE, MINUS_LARGE, SMALL}, 700, 0, 0x1p-11f},
    };
    struct shape shape = {.n_head = 1, .n_head_kv = 1, .head_dim = 1, .scale = 1.0f};
    memset(k_rows, 0, sizeof k_rows);
    memset(q_rows, 0, sizeof q_rows);
    for (u32 i = 0; i < COUNT_OF(sums); i++) {
        u32 pos = sums[i].pos;
        memset(v_rows, 0, sizeof v_rows);
        for (u32 j = 0; j < 3; j++) v_rows[sums[i].at[j]][0] = sums[i].v[j];
        fill_cache(&shape, true, 0, pos);
        shape.window = sums[i].window;
        CHECK(run_attention(&shape, pos, 1, 1) == 0);
        u32 n_visible = shape.window != 0 ? shape.window : pos + 1;
        f16 expected = f32_to_f16(sums[i].expected / (f32)n_visible);
        CHECK_MSG(out_rows[pos][0] == expected, "sum %u: 0x%04x, expected 0x%04x", i,
                  out_rows[pos][0], expected);
    }
}

// Differences of one f32 ulp rarely survive the rounding to f16, so the values are arranged for it:
// positions come in pairs of equal keys whose values are neighbours in f16, which puts every result
// on the midpoint of the two, give or take the f32 roundings. The order of every sum then decides.
static void midpoints(void) {
    static const u32 last_positions[] = {63, 201, 255, 257, 511, 513, 639, 767, 799};
    struct shape shape = {.n_head = 2, .n_head_kv = 1, .head_dim = 64, .scale = 0.125f};
    u32 n_up = 0, n_elements = 0;
    for (u32 round = 0; round < 2; round++) {
        shape.window = round == 0 ? 0 : 400;
        fill_rows(&shape, 4);
        for (u32 p = 0; p < POSITIONS; p += 2) {
            memcpy(k_rows[p + 1], k_rows[p], sizeof k_rows[p]);
            for (u32 j = 0; j < 64; j++) {
                v_rows[p][j] = (f16)(0x3c00 + 15 * j); // from 1 to 1.92
                v_rows[p + 1][j] = (f16)(v_rows[p][j] + 1);
            }
        }
        fill_cache(&shape, true, 0, POSITIONS - 1);
        for (u32 i = 0; i < COUNT_OF(last_positions); i++) {
            u32 pos = last_positions[i], n_different = 0;
            CHECK(run_attention(&shape, pos, 1, 1) == 0);
            for (u32 e = 0; e < 2 * 64; e += 5) {
                const f16 *q = q_rows[pos] + e / 64 * 64;
                f16 expected = expected_element(&shape, q, 0, pos, e % 64);
                n_different += out_rows[pos][e] != expected;
                n_up += expected == v_rows[1][e % 64];
                n_elements++;
            }
            CHECK_MSG(n_different == 0, "position %u: %u elements differ", pos, n_different);
        }
    }
    CHECK(n_up > n_elements / 8 && n_up < n_elements - n_elements / 8); // they are midpoints
}

static void forbidden_values(void) {
    struct shape shape = {.n_head = 4, .n_head_kv = 2, .head_dim = 16, .scale = 0.25f};
    fill_rows(&shape, 2);
    fill_cache(&shape, true, 0, 299);
    CHECK(run_attention(&shape, 299, 1, 1) == 0);
    shape.scale = 3e38f; // scores overflow
    CHECK(run_attention(&shape, 299, 1, 1) == 1);
    shape.scale = 0.25f;
    static const u32 places[] = {0, 255, 256, 299};
    for (u32 i = 0; i < COUNT_OF(places); i++) {
        u32 block = block_tables[BLOCKS + places[i] / 16];
        u8 *last_of_key = k_plane + (block * 16 + places[i] % 16) * 64 + 62;
        u16 kept = load_u16(last_of_key);
        store_u16(last_of_key, 0x7e00);
        CHECK_MSG(run_attention(&shape, 299, 1, 1) == 1, "NaN in the key at %u", places[i]);
        store_u16(last_of_key, kept);
    }
    CHECK(run_attention(&shape, 299, 1, 1) == 0);
    u32 position = 5, slot = 0;
    for (u32 i = 0; i < 4 * 32; i++) {
        static const f16 values[] = {0x7c00, 0xfc00, 0x7c01, 0xffff};
        f16 *row = i % 2 ? k_rows[0] : v_rows[0];
        f16 kept = row[i / 4];
        row[i / 4] = values[i % 4];
        struct kv_write_args args = {.k = k_rows[0],
                                     .v = v_rows[0],
                                     .n = 32,
                                     .kv = kv_layer_of(&shape),
                                     .positions = &position,
                                     .slots = &slot};
        CHECK(ops.kv_write(&args, 0, 1, scratch) == 1);
        row[i / 4] = kept;
        CHECK(ops.kv_write(&args, 0, 1, scratch) == 0);
    }
}

// Every byte of the planes: what kv_write wrote is where the layout says, and nothing else changed.
static void kv_write_layout(void) {
    struct shape shape = {.n_head = 3, .n_head_kv = 3, .head_dim = 10, .scale = 1.0f};
    fill_rows(&shape, 1);
    fill_cache(&shape, true, 37, 37);
    u32 n_changed = 0;
    usize at = (usize)block_tables[BLOCKS + 37 / 16] * 16 * 60 + 37 % 16 * 60;
    CHECK(memcmp(k_plane + at, k_rows[37], 60) == 0 && memcmp(v_plane + at, v_rows[37], 60) == 0);
    for (usize i = 0; i < sizeof k_plane; i++) {
        if (i - at >= 60) n_changed += (k_plane[i] != 0xff) + (v_plane[i] != 0xff);
    }
    CHECK(n_changed == 0);
}

static void run_at(enum cpu_level level, void (*run)(void)) {
    if (level > cpu_level()) {
        test_skip("this machine lacks the level");
        return;
    }
    op_fill_reference(&ops);
    op_fill_level(&ops, level);
    rng.state = SEED;
    run();
}

#define EACH_CASE(X) \
    X(bits_and_error) \
    X(steep_scores) \
    X(layout_does_not_matter) \
    X(order_of_sums) \
    X(midpoints) \
    X(forbidden_values) \
    X(kv_write_layout)

#define DEFINE_AT_LEVELS(name)                                                 \
    static void case_##name##_scalar(void) { run_at(CPU_LEVEL_SCALAR, name); } \
    static void case_##name##_avx2(void) { run_at(CPU_LEVEL_AVX2, name); }     \
    static void case_##name##_avx512(void) { run_at(CPU_LEVEL_AVX512, name); }
#define ROW_SCALAR(name) {#name, case_##name##_scalar},
#define ROW_AVX2(name) {#name "_avx2", case_##name##_avx2},
#define ROW_AVX512(name) {#name "_avx512", case_##name##_avx512},
EACH_CASE(DEFINE_AT_LEVELS)

static const struct test_case cases[] = {
    EACH_CASE(ROW_SCALAR) EACH_CASE(ROW_AVX2) EACH_CASE(ROW_AVX512)
};

int program_main(const struct platform_start *start) {
    return test_main(start, "test_attention", cases, COUNT_OF(cases));
}
