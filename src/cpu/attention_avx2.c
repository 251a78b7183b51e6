// SPDX-License-Identifier: Apache-2.0
// Attention (operator 8 of docs/contract.md) for AVX2. A unit is a tile of up to 16 rows of one
// sequence and one kv head; its queries are rows x heads of the GQA group, at most 64 at a time (a
// batch). Per batch, chunks of 256 positions in ascending order:
//
//   stage    keys are widened and transposed to k[t/8][head_dim][8], values to
//            v[dim/16][256][16], so that both inner loops read straight ahead. (One or a few
//            queries read the values where they are.)
//   scores   tokens in the lanes, head_dim ascending in one fma chain per score
//   softmax  scale, soft cap, check, maximum, exp, tree32; invisible positions become +0
//   values   dims in the lanes, visible t ascending in one fma chain per dim
//   merge    into the running (m, l, o)
//
// A1. A position is read only when it is visible to some row of the tile; lanes of other positions
//     repeat a visible one and are masked before they count.
// A2. A query's chain over values runs over exactly its own visible positions: where the queries of
//     a register tile see different ranges, the common part is done together and the rest alone.
// A3. Register tiles repeat their last query or panel when there are too few; the same values are
//     then stored twice.
#include "cpu/avx2.h"
#include "freestanding/mem.h"

#define QUERIES_MAX 64u // of a batch
#define TOKEN_BLOCKS (OP_CHUNK / LANES)
#define PANEL 16u       // dims of a value panel
#define PREFETCH_BLOCKS 4u // blocks between what is prefetched and what is read
#define DIRECT_QUERIES_MAX 6u // with more, the values are worth widening once

struct attention_scratch {
    f32 k[TOKEN_BLOCKS * OP_HEAD_DIM_MAX * LANES]; // [TOKEN_BLOCKS][head_dim to a multiple of 8][8]
    f32 v[OP_HEAD_DIM_MAX * OP_CHUNK];             // [panels][OP_CHUNK][PANEL]
    f32 q[QUERIES_MAX][OP_HEAD_DIM_MAX];
    f32 p[QUERIES_MAX][OP_CHUNK];                  // scores, then exponentials
    f32 o[QUERIES_MAX][OP_HEAD_DIM_MAX];           // running numerators
    f32 o_chunk[QUERIES_MAX][OP_HEAD_DIM_MAX];
    f32 m[QUERIES_MAX], l[QUERIES_MAX];            // running maximum and denominator
    u32 low[QUERIES_MAX], high[QUERIES_MAX];       // visible [low, high) of the chunk
    usize offset[OP_CHUNK];                        // of each position in the planes
};
static_assert(sizeof(struct attention_scratch) <= OP_SCRATCH_BYTES, "the largest head fits");

struct batch {
    const struct attention_args *args;
    struct attention_scratch *s;
    u32 row;           // of the tile's first row
    u32 kv_head, heads_per_kv;
    u32 first, n;      // queries [first, first + n) of the tile; n <= QUERIES_MAX
    u32 dims_8, panels; // head_dim rounded up to 8; panels of 16 dims
    u32 low, high;     // positions of the chunk seen by some query: [low, high), relative
};

KERNEL_INLINE u32 query_row(const struct batch *b, u32 query) {
    return b->row + (b->first + query) / b->heads_per_kv;
}

KERNEL_INLINE u32 query_head(const struct batch *b, u32 query) {
    return b->kv_head * b->heads_per_kv + (b->first + query) % b->heads_per_kv;
}

// --- stage ---

// n halves at p, widened to a multiple of 8 with zeros.
static void widen_row(const f16 *p, u32 n, f32 *to) {
    for (u32 i = 0; i < n; i += LANES) {
        store_f32x8(to + i, widen_f16x8(load_u16x8_upto(p + i, n - i)));
    }
}

static void stage_queries(const struct batch *b) {
    const struct attention_args *args = b->args;
    for (u32 i = 0; i < b->n; i++) {
        const f16 *q = args->q + (usize)query_row(b, i) * args->q_stride +
                       (usize)query_head(b, i) * args->head_dim;
        widen_row(q, args->head_dim, b->s->q[i]);
    }
}

// 8 dims of 8 tokens.
KERNEL_INLINE void stage_block(const __m128i line[LANES], f32 *to) {
    __m256i pair[4];
    transpose_8x8_u16(line, pair);
    UNROLL_FULLY
    for (u32 i = 0; i < 4; i++) {
        __m256 even, odd;
        widen_f16_pair(pair[i], &even, &odd);
        store_f32x8(to + 2 * LANES * i, even);
        store_f32x8(to + 2 * LANES * i + LANES, odd);
    }
}

// Prefetches keys, and the values of the same positions, which are needed soon after. Rows of one
// head are short and far apart, so the hardware does not follow them; and a prefetch that finds the
// miss buffers full is dropped, so they come a few at a time, between the transposes: decoding at
// 1,024 positions out of L3 takes 90 us a layer so, against 210 with bursts or with none.
struct walk {
    u32 t, byte;       // the next line
    u32 lines_per_step;
};

KERNEL_INLINE struct walk walk_begin(u32 head_bytes) {
    u32 n_lines = (head_bytes + PREFETCH_LINE - 1) / PREFETCH_LINE * LANES; // of a block
    u32 n_steps = head_bytes / (2 * LANES);
    return (struct walk){.lines_per_step = n_steps == 0 ? 0 : (n_lines + n_steps - 1) / n_steps};
}

KERNEL_INLINE void walk_step(const struct batch *b, struct walk *walk) {
    u32 head_bytes = b->args->head_dim * 2;
    for (u32 i = 0; i < walk->lines_per_step; i++) {
        if (walk->t >= b->high) return;
        usize at = b->s->offset[walk->t] + (usize)b->kv_head * head_bytes + walk->byte;
        _mm_prefetch((const char *)b->args->kv.k + at, _MM_HINT_T0);
        _mm_prefetch((const char *)b->args->kv.v + at, _MM_HINT_T1);
        walk->byte += PREFETCH_LINE;
        if (walk->byte < head_bytes) continue;
        walk->byte = 0;
        walk->t++;
    }
}

static void stage_keys(const struct batch *b) {
    u32 head_dim = b->args->head_dim;
    const u8 *plane = b->args->kv.k + (usize)b->kv_head * head_dim * 2;
    struct walk walk = walk_begin(2 * head_dim);
    for (u32 block = b->low / LANES; block * LANES < b->high; block++) {
        f32 *to = b->s->k + (usize)block * b->dims_8 * LANES;
        const u8 *token[LANES];
        walk.t = MAX((block + PREFETCH_BLOCKS) * LANES, b->low);
        walk.byte = 0;
        for (u32 r = 0; r < LANES; r++) {
            token[r] = plane + b->s->offset[MIN(MAX(block * LANES + r, b->low), b->high - 1)];
        }
        u32 j = 0;
        for (; j + LANES <= head_dim; j += LANES) {
            __m128i line[LANES];
            walk_step(b, &walk);
            UNROLL_FULLY
            for (u32 r = 0; r < LANES; r++) line[r] = load_128(token[r] + 2 * (usize)j);
            stage_block(line, to + (usize)j * LANES);
        }
        if (j == head_dim) continue;
        __m128i line[LANES];
        for (u32 r = 0; r < LANES; r++) {
            line[r] = load_u16_part(token[r] + 2 * (usize)j, head_dim - j);
        }
        stage_block(line, to + (usize)j * LANES);
    }
}

static void stage_values(const struct batch *b) {
    u32 head_dim = b->args->head_dim;
    const u8 *plane = b->args->kv.v + (usize)b->kv_head * head_dim * 2;
    for (u32 t = b->low; t < b->high; t++) {
        const u8 *token = plane + b->s->offset[t];
        for (u32 j = 0; j < b->panels * PANEL; j += LANES) {
            f32 *to = b->s->v + ((usize)(j / PANEL) * OP_CHUNK + t) * PANEL + j % PANEL;
            __m256 v = _mm256_setzero_ps();
            if (j < head_dim) v = widen_f16x8(load_u16x8_upto(token + 2 * (usize)j, head_dim - j));
            store_f32x8(to, v);
        }
    }
}

// --- scores ---

// n_queries x n_blocks (constants) scores: queries from `query`, 8 positions a block.
KERNEL_INLINE void score_tile(u32 n_queries, u32 n_blocks, const struct batch *b, u32 query,
                              u32 block) {
    __m256 dot[6][8];
    const f32 *q[6], *k[8];
    UNROLL_FULLY
    for (u32 i = 0; i < n_queries; i++) q[i] = b->s->q[MIN(query + i, b->n - 1)];
    UNROLL_FULLY
    for (u32 c = 0; c < n_blocks; c++) k[c] = b->s->k + (usize)(block + c) * b->dims_8 * LANES;
    UNROLL_FULLY
    for (u32 i = 0; i < n_queries; i++) {
        UNROLL_FULLY
        for (u32 c = 0; c < n_blocks; c++) dot[i][c] = _mm256_setzero_ps();
    }
    for (u32 j = 0; j < b->args->head_dim; j++) {
        __m256 column[8];
        UNROLL_FULLY
        for (u32 c = 0; c < n_blocks; c++) column[c] = load_f32x8(k[c] + (usize)j * LANES);
        UNROLL_FULLY
        for (u32 i = 0; i < n_queries; i++) {
            __m256 value = _mm256_set1_ps(q[i][j]);
            UNROLL_FULLY
            for (u32 c = 0; c < n_blocks; c++) {
                dot[i][c] = _mm256_fmadd_ps(value, column[c], dot[i][c]);
            }
            KEEP_IN_REGISTERS(dot[i][0], dot[i][1]);
        }
    }
    UNROLL_FULLY
    for (u32 i = 0; i < n_queries; i++) {
        f32 *p = b->s->p[MIN(query + i, b->n - 1)];
        UNROLL_FULLY
        for (u32 c = 0; c < n_blocks; c++) store_f32x8(p + (usize)(block + c) * LANES, dot[i][c]);
    }
}

// All scores of the batch's chunk (before the scale). Blocks are taken from a multiple of 8, so
// that no tile passes the end; what lies outside [low, high) is garbage and masked later.
static void score_batch(const struct batch *b) {
    u32 begin = b->low / LANES & ~7u, end = (b->high + LANES - 1) / LANES;
    for (u32 query = 0; query < b->n;) {
        u32 left = b->n - query;
        if (left == 1) {
            for (u32 block = begin; block < end; block += 8) score_tile(1, 8, b, query, block);
            query += 1;
        } else if (left <= 3) {
            for (u32 block = begin; block < end; block += 4) score_tile(3, 4, b, query, block);
            query += 3;
        } else {
            for (u32 block = begin; block < end; block += 2) score_tile(6, 2, b, query, block);
            query += 6;
        }
    }
}

// --- softmax of a chunk ---

KERNEL_INLINE __m256 softcapped(__m256 score, f32 cap) {
    const __m256 sign = _mm256_set1_ps(-0.0f), one = _mm256_set1_ps(1.0f);
    __m256 z = _mm256_div_ps(score, _mm256_set1_ps(cap));
    __m256 e = exp_f32x8(_mm256_mul_ps(_mm256_set1_ps(-2.0f), _mm256_andnot_ps(sign, z)));
    __m256 magnitude = _mm256_div_ps(_mm256_sub_ps(one, e), _mm256_add_ps(one, e));
    __m256 tanh_z = _mm256_or_ps(_mm256_andnot_ps(sign, magnitude), _mm256_and_ps(sign, z));
    return _mm256_mul_ps(_mm256_set1_ps(cap), tanh_z);
}

// All-ones lanes at positions [low, high) of block's 8.
KERNEL_INLINE __m256i visible_lanes(u32 block, u32 low, u32 high) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    __m256i t = _mm256_add_epi32(_mm256_set1_epi32((i32)(block * LANES)), lane);
    return _mm256_andnot_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32((i32)low), t),
                               _mm256_cmpgt_epi32(_mm256_set1_epi32((i32)high), t));
}

KERNEL_INLINE f32 max_of_8(__m256 v) {
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}

// tree32 of the 256 elements of p: 8 blocks, then their 8 sums, which zeros pad.
static f32 tree_of_chunk(const f32 *p) {
    __m256 block[8];
    UNROLL_FULLY
    for (u32 i = 0; i < 8; i++) {
        const f32 *x = p + (usize)(32 * i);
        block[i] = _mm256_add_ps(_mm256_add_ps(load_f32x8(x), load_f32x8(x + 16)),
                                 _mm256_add_ps(load_f32x8(x + 8), load_f32x8(x + 24)));
    }
    return tree_of_8(tree_of_8_each(block));
}

// Scores to exponentials, in place; the chunk's maximum and denominator. 1 when a visible score is
// not finite.
static u32 softmax_chunk(const struct attention_args *args, f32 *p, u32 low, u32 high, f32 *max,
                         f32 *denominator) {
    const __m256 scale = _mm256_set1_ps(args->scale), least = _mm256_set1_ps(-__builtin_inff());
    u32 begin = low / LANES, end = (high + LANES - 1) / LANES;
    __m256i bad = _mm256_setzero_si256();
    __m256 most = least;
    for (u32 block = begin; block < end; block++) {
        __m256i visible = visible_lanes(block, low, high);
        __m256 score = _mm256_mul_ps(load_f32x8(p + (usize)block * LANES), scale);
        if (args->softcap != 0.0f) score = softcapped(score, args->softcap);
        bad = _mm256_or_si256(bad, _mm256_and_si256(visible, f32_not_finite(score)));
        most = _mm256_max_ps(most, _mm256_blendv_ps(least, score, _mm256_castsi256_ps(visible)));
        store_f32x8(p + (usize)block * LANES, score);
    }
    if (any_256(bad)) return 1;
    f32 m = max_of_8(most);
    for (u32 block = 0; block < TOKEN_BLOCKS; block++) {
        f32 *at = p + (usize)block * LANES;
        if (block < begin || block >= end) {
            store_f32x8(at, _mm256_setzero_ps());
            continue;
        }
        __m256 visible = _mm256_castsi256_ps(visible_lanes(block, low, high));
        __m256 e = exp_f32x8(_mm256_sub_ps(load_f32x8(at), _mm256_set1_ps(m)));
        store_f32x8(at, _mm256_and_ps(visible, e));
    }
    *max = m;
    *denominator = tree_of_chunk(p);
    return 0;
}

// --- values ---

// o[dims of n_panels panels] of n_queries queries (constants) goes on over positions [begin, end).
// `direct` reads the cache instead of the staged values.
KERNEL_INLINE void value_tile(u32 n_queries, u32 n_panels, bool direct, const struct batch *b,
                              u32 query, u32 panel, u32 begin, u32 end,
                              f32 (*o)[OP_HEAD_DIM_MAX]) {
    __m256 sum[6][8];
    const f32 *p[6], *v[4];
    const u8 *plane = b->args->kv.v + (usize)b->kv_head * b->args->head_dim * 2;
    u32 n_vectors = 2 * n_panels;
    UNROLL_FULLY
    for (u32 i = 0; i < n_queries; i++) {
        u32 at = MIN(query + i, b->n - 1);
        p[i] = b->s->p[at];
        UNROLL_FULLY
        for (u32 c = 0; c < n_vectors; c++) {
            u32 dim = MIN(panel + c / 2, b->panels - 1) * PANEL + c % 2 * LANES;
            sum[i][c] = load_f32x8(&o[at][dim]);
        }
    }
    UNROLL_FULLY
    for (u32 c = 0; c < n_panels; c++) {
        v[c] = b->s->v + (usize)MIN(panel + c, b->panels - 1) * OP_CHUNK * PANEL;
    }
    for (u32 t = begin; t < end; t++) {
        __m256 value[8];
        UNROLL_FULLY
        for (u32 c = 0; c < n_vectors; c++) {
            if (direct) {
                u32 dim = MIN(panel + c / 2, b->panels - 1) * PANEL + c % 2 * LANES;
                value[c] = load_f16x8(plane + b->s->offset[t] + 2 * (usize)dim);
            } else {
                value[c] = load_f32x8(v[c / 2] + (usize)t * PANEL + c % 2 * LANES);
            }
        }
        UNROLL_FULLY
        for (u32 i = 0; i < n_queries; i++) {
            __m256 weight = _mm256_set1_ps(p[i][t]);
            UNROLL_FULLY
            for (u32 c = 0; c < n_vectors; c++) {
                sum[i][c] = _mm256_fmadd_ps(weight, value[c], sum[i][c]);
            }
            KEEP_IN_REGISTERS(sum[i][0], sum[i][1]);
        }
    }
    UNROLL_FULLY
    for (u32 i = 0; i < n_queries; i++) {
        u32 at = MIN(query + i, b->n - 1);
        UNROLL_FULLY
        for (u32 c = 0; c < n_vectors; c++) {
            u32 dim = MIN(panel + c / 2, b->panels - 1) * PANEL + c % 2 * LANES;
            store_f32x8(&o[at][dim], sum[i][c]);
        }
    }
}

// Queries [query, query + n) over [begin, end); n is 1, up to 3, or up to 6.
KERNEL_INLINE void value_queries(bool direct, const struct batch *b, u32 query, u32 n, u32 begin,
                                 u32 end, f32 (*o)[OP_HEAD_DIM_MAX]) {
    if (begin >= end) return;
    if (n == 1) {
        for (u32 c = 0; c < b->panels; c += 4) value_tile(1, 4, direct, b, query, c, begin, end, o);
    } else if (n <= 3) {
        for (u32 c = 0; c < b->panels; c += 2) value_tile(3, 2, direct, b, query, c, begin, end, o);
    } else {
        for (u32 c = 0; c < b->panels; c += 1) value_tile(6, 1, direct, b, query, c, begin, end, o);
    }
}

// Two instances, so that the register tiles exist once each.
static void value_queries_staged(const struct batch *b, u32 query, u32 n, u32 begin, u32 end,
                                 f32 (*o)[OP_HEAD_DIM_MAX]) {
    value_queries(false, b, query, n, begin, end, o);
}
static void value_queries_direct(const struct batch *b, u32 query, u32 n, u32 begin, u32 end,
                                 f32 (*o)[OP_HEAD_DIM_MAX]) {
    value_queries(true, b, query, n, begin, end, o);
}

typedef void value_queries_fn(const struct batch *b, u32 query, u32 n, u32 begin, u32 end,
                              f32 (*o)[OP_HEAD_DIM_MAX]);

// The chunk's numerators of all queries, into zeroed o (A2).
static void value_batch(const struct batch *b, bool direct, f32 (*o)[OP_HEAD_DIM_MAX]) {
    value_queries_fn *run = direct ? value_queries_direct : value_queries_staged;
    const u32 *low = b->s->low, *high = b->s->high;
    for (u32 query = 0; query < b->n;) {
        u32 left = b->n - query;
        u32 n = left == 1 ? 1 : left <= 3 ? left : MIN(left, 6);
        u32 common_low = 0, common_high = OP_CHUNK;
        for (u32 i = query; i < query + n; i++) {
            common_low = MAX(common_low, low[i]);
            common_high = MIN(common_high, high[i]);
        }
        // A range that is empty for all (or for one that sees nothing here) leaves all to be done
        // alone.
        common_high = MAX(common_high, common_low);
        bool together = n > 1 && common_low < common_high;
        for (u32 i = query; i < query + n; i++) {
            run(b, i, 1, low[i], together ? common_low : high[i], o);
        }
        if (together) {
            run(b, query, n, common_low, common_high, o);
            for (u32 i = query; i < query + n; i++) run(b, i, 1, common_high, high[i], o);
        }
        query += n;
    }
}

// --- the whole ---

static void merge(const struct batch *b, u32 query, f32 m_chunk, f32 l_chunk) {
    struct attention_scratch *s = b->s;
    f32 m = MAX(s->m[query], m_chunk);
    f32 run = math_exp_f32(s->m[query] - m), chunk = math_exp_f32(m_chunk - m);
    s->m[query] = m;
    s->l[query] = math_fma_f32(s->l[query], run, l_chunk * chunk);
    __m256 run_all = _mm256_set1_ps(run), chunk_all = _mm256_set1_ps(chunk);
    for (u32 j = 0; j < b->dims_8; j += LANES) {
        __m256 added = _mm256_mul_ps(load_f32x8(&s->o_chunk[query][j]), chunk_all);
        __m256 o = load_f32x8(&s->o[query][j]);
        store_f32x8(&s->o[query][j], _mm256_fmadd_ps(o, run_all, added));
    }
}

// One chunk for the whole batch.
static u32 attend_chunk(struct batch *b, u32 chunk) {
    const struct attention_args *args = b->args;
    struct attention_scratch *s = b->s;
    u32 slot = args->slots[b->row];
    u32 base = chunk * OP_CHUNK;
    bool direct = b->n <= DIRECT_QUERIES_MAX && args->head_dim % PANEL == 0;
    b->low = OP_CHUNK;
    b->high = 0;
    for (u32 i = 0; i < b->n; i++) {
        u32 position = args->positions[query_row(b, i)];
        u32 first = MAX(first_visible(args->window, position), base);
        u32 end = MIN(position + 1, base + OP_CHUNK);
        s->low[i] = first < end ? first - base : 0;
        s->high[i] = first < end ? end - base : 0;
        if (first >= end) continue;
        b->low = MIN(b->low, s->low[i]);
        b->high = MAX(b->high, s->high[i]);
    }
    if (b->low >= b->high) return 0; // nobody sees it
    for (u32 t = b->low; t < b->high; t++) {
        s->offset[t] = kv_token_offset(&args->kv, slot, base + t);
    }
    stage_keys(b);
    if (!direct) stage_values(b);
    score_batch(b);
    f32 m[QUERIES_MAX], l[QUERIES_MAX];
    for (u32 i = 0; i < b->n; i++) {
        if (s->low[i] >= s->high[i]) continue;
        if (softmax_chunk(args, s->p[i], s->low[i], s->high[i], &m[i], &l[i]) != 0) return 1;
    }
    for (u32 i = 0; i < b->n; i++) {
        memset(s->o_chunk[i], 0, (usize)b->panels * PANEL * sizeof(f32));
    }
    value_batch(b, direct, s->o_chunk);
    for (u32 i = 0; i < b->n; i++) {
        if (s->low[i] >= s->high[i]) continue;
        u32 position = args->positions[query_row(b, i)];
        if (chunk == first_visible(args->window, position) / OP_CHUNK) { // its first
            s->m[i] = m[i];
            s->l[i] = l[i];
            memcpy(s->o[i], s->o_chunk[i], (usize)b->dims_8 * sizeof(f32));
        } else {
            merge(b, i, m[i], l[i]);
        }
    }
    return 0;
}

static void put_query(const struct batch *b, u32 query) {
    const struct attention_args *args = b->args;
    f16 *out = args->out + (usize)query_row(b, query) * args->out_stride +
               (usize)query_head(b, query) * args->head_dim;
    __m256 l = _mm256_set1_ps(b->s->l[query]);
    for (u32 j = 0; j < args->head_dim; j += LANES) {
        __m256 y = _mm256_div_ps(load_f32x8(&b->s->o[query][j]), l);
        store_u16x8_upto(out + j, narrow_f32x8(y), args->head_dim - j);
    }
}

u32 attention_avx2(const struct attention_args *args, u32 begin, u32 end, void *scratch) {
    u32 head_dim = args->head_dim;
    assert(head_dim > 0 && head_dim <= OP_HEAD_DIM_MAX);
    assert(args->n_head_kv > 0 && args->n_head % args->n_head_kv == 0);
    for (u32 unit = begin; unit < end; unit++) {
        const struct attention_tile *tile = &args->tiles[unit / args->n_head_kv];
        struct batch b = {
            .args = args,
            .s = scratch,
            .row = tile->row,
            .kv_head = unit % args->n_head_kv,
            .heads_per_kv = args->n_head / args->n_head_kv,
            .dims_8 = (u32)round_up(head_dim, LANES),
            .panels = (head_dim + PANEL - 1) / PANEL,
        };
        u32 n_queries = tile->n_rows * b.heads_per_kv;
        for (b.first = 0; b.first < n_queries; b.first += QUERIES_MAX) {
            b.n = MIN(n_queries - b.first, QUERIES_MAX);
            // Positions ascend with the rows: the first query looks back furthest.
            u32 first = first_visible(args->window, args->positions[query_row(&b, 0)]);
            u32 last = args->positions[query_row(&b, b.n - 1)];
            stage_queries(&b);
            for (u32 chunk = first / OP_CHUNK; chunk <= last / OP_CHUNK; chunk++) {
                if (attend_chunk(&b, chunk) != 0) return 1;
            }
            for (u32 i = 0; i < b.n; i++) put_query(&b, i);
        }
    }
    return 0;
}
