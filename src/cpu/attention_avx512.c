// SPDX-License-Identifier: Apache-2.0
// Attention (operator 8 of docs/contract.md) for AVX-512. A unit is a tile of up to 16 rows of one
// sequence and one kv head; its queries are rows x heads of the GQA group, at most 64 at a time (a
// batch). Per batch, chunks of 256 positions in ascending order:
//
//   scores   tokens in the lanes, head_dim ascending in one fma chain per score. Many queries: keys
//            are widened and transposed once, to k[t/16][head_dim][16], and meet 12 queries x 32
//            tokens at a time (24 chains). Few queries (decode): 16 tokens x 32 dims are transposed
//            in registers and used at once, two blocks of tokens in turn, so that the chains of one
//            hide behind the transposes of the other.
//   softmax  scale, soft cap, check, maximum, exp, tree32; invisible positions become +0
//   values   dims in the lanes, visible t ascending in one fma chain per dim; values are widened
//            where they are, for a copy would cost as much as it saves
//   merge    into the running (m, l, o)
//
// A1. Of the cache, only blocks of 16 tokens with a visible position are read; lanes of invisible
//     ones hold whatever the block has there, and are masked before they count.
// A2. A query's chain over values runs over exactly its own visible positions: where the queries of
//     a register tile see different ranges, the common part is done together and the rest alone.
//     (A product with +0 would not do: it turns a sum of -0 into +0.)
// A3. Register tiles may have more queries than are left. What they compute for these goes to rows
//     of scratch that nobody reads.
#include "cpu/avx512.h"
#include "freestanding/mem.h"

#define QUERIES_MAX 64u // of a batch
#define TILE_QUERIES 12u
#define QUERY_TILES ((QUERIES_MAX + TILE_QUERIES - 1) / TILE_QUERIES)
#define BLOCK 16u // tokens of a block of keys: the lanes
#define TOKEN_BLOCKS (OP_CHUNK / BLOCK)
#define DIMS_STEP 32u         // of a transpose
#define DIRECT_QUERIES_MAX 4u // with more, the keys are worth transposing once
#define AHEAD_BLOCKS 6u       // between what is prefetched and what is read
#define NO_BLOCK 0xffffffffu
// Rows of the arrays below start at different sets of L1.
#define DIM_STRIDE (OP_HEAD_DIM_MAX + BLOCK)
#define SCORE_STRIDE (OP_CHUNK + BLOCK)

struct attention_scratch {
    f32 k[TOKEN_BLOCKS * OP_HEAD_DIM_MAX * BLOCK];               // [TOKEN_BLOCKS][head_dim][16]
    f32 q[QUERY_TILES * OP_HEAD_DIM_MAX * TILE_QUERIES + BLOCK]; // [QUERY_TILES][head_dim][12]
    f32 p[QUERIES_MAX][SCORE_STRIDE];                            // scores, then exponentials
    f32 o[QUERIES_MAX][DIM_STRIDE];                              // running numerators
    f32 o_chunk[QUERIES_MAX][DIM_STRIDE];
    f32 m[QUERIES_MAX], l[QUERIES_MAX];       // running maximum and denominator
    u32 low[QUERIES_MAX], high[QUERIES_MAX];  // visible [low, high) of the chunk
    usize block[TOKEN_BLOCKS + AHEAD_BLOCKS]; // where the kv head's part begins in a plane
    f16 copy[BLOCK * OP_HEAD_DIM_MAX];        // of queries
};
static_assert(BLOCK == OP_KV_BLOCK_TOKENS, "a block of keys is regular in memory");
static_assert(sizeof(struct attention_scratch) <= OP_SCRATCH_BYTES, "the largest head fits");
// Whatever number of queries is left, a tile ends within the batch's rows (score_batch).
static_assert(QUERIES_MAX % TILE_QUERIES == 4, "the last tile of a full batch is one of four");

struct batch {
    const struct attention_args *args;
    struct attention_scratch *s;
    u32 row; // of the tile's first row
    u32 kv_head, heads_per_kv;
    u32 first, n;  // queries [first, first + n) of the tile; n <= QUERIES_MAX
    u32 low, high; // positions of the chunk seen by some query: [low, high), relative
};

KERNEL_INLINE u32 query_row(const struct batch *b, u32 query) {
    return b->row + (b->first + query) / b->heads_per_kv;
}

KERNEL_INLINE u32 query_head(const struct batch *b, u32 query) {
    return b->kv_head * b->heads_per_kv + (b->first + query) % b->heads_per_kv;
}

KERNEL_INLINE const f16 *query_at(const struct batch *b, u32 query) {
    const struct attention_args *args = b->args;
    return args->q + (usize)query_row(b, query) * args->q_stride +
           (usize)query_head(b, query) * args->head_dim;
}

// --- stage ---

// 16 rows of halves, by address; of a block of keys, `stride` bytes apart.
struct rows {
    const u8 *first;
    usize stride;
};

// Dims [j, j + 32) of the rows; those from head_dim on are zero and not read.
KERNEL_INLINE void load_block(struct rows rows, u32 j, u32 head_dim, __m512i line[BLOCK]) {
    const u8 *row = rows.first + 2 * (usize)j;
    __mmask32 some = head_dim - j >= DIMS_STEP ? ~0u : (1u << (head_dim - j)) - 1;
    UNROLL_FULLY
    for (u32 r = 0; r < BLOCK; r++) {
        line[r] = _mm512_maskz_loadu_epi16(some, row);
        row += rows.stride;
    }
}

KERNEL_INLINE struct rows block_keys(const struct batch *b, u32 block) {
    return (struct rows){b->args->kv.k + b->s->block[block], b->args->kv.token_stride};
}

// Prefetches row r of a block of a plane AHEAD_BLOCKS on, from the byte-th on, into L2. Rows of one
// head are short and far apart, so the hardware does not follow them; and a prefetch that finds the
// miss buffers full is dropped, so they come a few at a time, where there is other work to do.
// (Into L1 instead, decoding out of memory takes 1.8 times as long.)
KERNEL_INLINE void prefetch_row(const struct batch *b, const u8 *plane, u32 block, u32 r,
                                usize byte) {
    usize at = b->s->block[block + AHEAD_BLOCKS] + r * b->args->kv.token_stride + byte;
    _mm_prefetch((const char *)plane + at, _MM_HINT_T1);
}

// 16 rows of head_dim halves, widened, to columns of 16 that start `stride` <= 16 elements apart:
// with less than 16, each column overwrites what the one before has too much. Prefetches what comes
// after `block`, unless that is NO_BLOCK.
KERNEL_INLINE void stage_columns(const struct batch *b, u32 block, struct rows rows, u32 stride,
                                 f32 *to) {
    u32 head_dim = b->args->head_dim;
    for (u32 j = 0; j < head_dim; j += DIMS_STEP) {
        __m512i line[BLOCK], pair[BLOCK];
        load_block(rows, j, head_dim, line);
        transpose_16x32_u16(line, pair);
        UNROLL_FULLY
        for (u32 c = 0; c < DIMS_STEP; c++) {
            if (j + c >= head_dim) break;
            store_f32x16(to + (usize)(j + c) * stride, widen_f16x16(column_of_pairs(pair, c)));
            if (block == NO_BLOCK || c % 2 == 0) continue;
            prefetch_row(b, b->args->kv.k, block, c / 2, 2 * (usize)j);
            prefetch_row(b, b->args->kv.v, block, c / 2, 2 * (usize)j);
        }
    }
}

static void stage_queries(const struct batch *b) {
    u32 head_dim = b->args->head_dim;
    for (u32 query = 0; query < b->n; query += TILE_QUERIES) {
        struct rows rows = {(const u8 *)b->s->copy, 2 * (usize)head_dim};
        for (u32 i = 0; i < BLOCK; i++) { // a batch's last tile repeats its last query
            u32 at = MIN(query + MIN(i, TILE_QUERIES - 1), b->n - 1);
            memcpy(b->s->copy + (usize)i * head_dim, query_at(b, at), 2 * (usize)head_dim);
        }
        stage_columns(b, NO_BLOCK, rows, TILE_QUERIES, b->s->q + (usize)query * head_dim);
    }
}

static void stage_keys(const struct batch *b) {
    for (u32 block = b->low / BLOCK; block * BLOCK < b->high; block++) {
        f32 *to = b->s->k + (usize)block * b->args->head_dim * BLOCK;
        stage_columns(b, block, block_keys(b, block), BLOCK, to);
    }
}

// --- scores ---

// n_queries x n_blocks (constants) scores: queries from `query` (the first of a tile), 16 positions
// a block.
KERNEL_INLINE void score_tile(u32 n_queries, u32 n_blocks, const struct batch *b, u32 query,
                              u32 block) {
    __m512 dot[TILE_QUERIES][8];
    u32 head_dim = b->args->head_dim;
    const f32 *q = b->s->q + (usize)query * head_dim, *k[8];
    UNROLL_FULLY
    for (u32 c = 0; c < n_blocks; c++) k[c] = b->s->k + (usize)(block + c) * head_dim * BLOCK;
    UNROLL_FULLY
    for (u32 i = 0; i < n_queries; i++) {
        UNROLL_FULLY
        for (u32 c = 0; c < n_blocks; c++) dot[i][c] = _mm512_setzero_ps();
    }
    for (u32 j = 0; j < head_dim; j++) {
        __m512 column[8];
        UNROLL_FULLY
        for (u32 c = 0; c < n_blocks; c++) column[c] = load_f32x16(k[c] + (usize)j * BLOCK);
        UNROLL_FULLY
        for (u32 i = 0; i < n_queries; i++) {
            __m512 value = _mm512_set1_ps(q[(usize)j * TILE_QUERIES + i]);
            UNROLL_FULLY
            for (u32 c = 0; c < n_blocks; c++) {
                dot[i][c] = _mm512_fmadd_ps(value, column[c], dot[i][c]);
                KEEP_IN_ZMM(dot[i][c]);
            }
        }
    }
    UNROLL_FULLY
    for (u32 i = 0; i < n_queries; i++) {
        f32 *p = b->s->p[query + i];
        UNROLL_FULLY
        for (u32 c = 0; c < n_blocks; c++) store_f32x16(p + (usize)(block + c) * BLOCK, dot[i][c]);
    }
}

// All scores of the batch's chunk (before the scale) from staged keys. Blocks are taken from a
// multiple of 8, so that no tile passes the end; what lies outside [low, high) is garbage and
// masked later.
static void score_batch(const struct batch *b) {
    u32 begin = b->low / BLOCK & ~7u, end = (b->high + BLOCK - 1) / BLOCK;
    for (u32 query = 0; query < b->n; query += TILE_QUERIES) {
        u32 left = b->n - query;
        if (left <= 2) {
            for (u32 block = begin; block < end; block += 8) score_tile(2, 8, b, query, block);
        } else if (left <= 4) {
            for (u32 block = begin; block < end; block += 4) score_tile(4, 4, b, query, block);
        } else if (left <= 6) {
            for (u32 block = begin; block < end; block += 4) score_tile(6, 4, b, query, block);
        } else if (left <= 8) {
            for (u32 block = begin; block < end; block += 2) score_tile(8, 2, b, query, block);
        } else {
            for (u32 block = begin; block < end; block += 2) score_tile(12, 2, b, query, block);
        }
    }
}

// dot of n_queries (a constant) goes on over dims [j, j + 32) of a block of 16 tokens.
KERNEL_INLINE void score_direct_step(u32 n_queries, const struct batch *b, u32 block, u32 j,
                                     __m512 *dot) {
    const f32 *q = b->s->q + (usize)j * TILE_QUERIES;
    __m512i line[BLOCK], pair[BLOCK];
    load_block(block_keys(b, block), j, b->args->head_dim, line);
    UNROLL_FULLY
    for (u32 r = 0; r < BLOCK; r++) KEEP_IN_ZMM(line[r]);
    transpose_16x32_u16(line, pair);
    UNROLL_FULLY
    for (u32 c = 0; c < BLOCK; c++) KEEP_IN_ZMM(pair[c]);
    UNROLL_FULLY
    for (u32 c = 0; c < DIMS_STEP; c++) {
        __m512 column = widen_f16x16(column_of_pairs(pair, c));
        UNROLL_FULLY
        for (u32 i = 0; i < n_queries; i++) {
            __m512 value = _mm512_set1_ps(q[c * TILE_QUERIES + i]);
            dot[i] = _mm512_fmadd_ps(value, column, dot[i]);
            KEEP_IN_ZMM(dot[i]);
        }
        if (c % 2 == 1) prefetch_row(b, b->args->kv.k, block, c / 2, 2 * (usize)j);
    }
}

// The scores of a batch of n_queries <= 4 (a constant), keys where they are.
KERNEL_INLINE void score_direct(u32 n_queries, const struct batch *b) {
    u32 end = (b->high + BLOCK - 1) / BLOCK, head_dim = b->args->head_dim;
    for (u32 block = b->low / BLOCK; block < end; block += 2) {
        __m512 dot[2][DIRECT_QUERIES_MAX];
        u32 second = MIN(block + 1, end - 1); // done twice when there is none
        UNROLL_FULLY
        for (u32 i = 0; i < n_queries; i++) dot[0][i] = dot[1][i] = _mm512_setzero_ps();
        for (u32 j = 0; j < head_dim; j += DIMS_STEP) {
            score_direct_step(n_queries, b, block, j, dot[0]);
            score_direct_step(n_queries, b, second, j, dot[1]);
        }
        UNROLL_FULLY
        for (u32 i = 0; i < n_queries; i++) {
            store_f32x16(b->s->p[i] + (usize)block * BLOCK, dot[0][i]);
            store_f32x16(b->s->p[i] + (usize)second * BLOCK, dot[1][i]);
        }
    }
}

static void score_direct_1(const struct batch *b) { score_direct(1, b); }
static void score_direct_2(const struct batch *b) { score_direct(2, b); }
static void score_direct_3(const struct batch *b) { score_direct(3, b); }
static void score_direct_4(const struct batch *b) { score_direct(4, b); }

static void score_chunk(const struct batch *b) {
    static void (*const direct[])(const struct batch *) = {NULL, score_direct_1, score_direct_2,
                                                           score_direct_3, score_direct_4};
    if (b->n <= DIRECT_QUERIES_MAX && b->args->head_dim % DIMS_STEP == 0) {
        direct[b->n](b);
        return;
    }
    stage_keys(b);
    score_batch(b);
}

// --- softmax of a chunk ---

KERNEL_INLINE __m512 softcapped(__m512 score, f32 cap) {
    const __m512 sign = _mm512_set1_ps(-0.0f), one = _mm512_set1_ps(1.0f);
    __m512 z = _mm512_div_ps(score, _mm512_set1_ps(cap));
    __m512 e = exp_f32x16(_mm512_mul_ps(_mm512_set1_ps(-2.0f), _mm512_andnot_ps(sign, z)));
    __m512 magnitude = _mm512_div_ps(_mm512_sub_ps(one, e), _mm512_add_ps(one, e));
    __m512 tanh_z = _mm512_or_ps(_mm512_andnot_ps(sign, magnitude), _mm512_and_ps(sign, z));
    return _mm512_mul_ps(_mm512_set1_ps(cap), tanh_z);
}

// Lanes at positions [low, high) of the block's 16.
KERNEL_INLINE __mmask16 visible_lanes(u32 block, u32 low, u32 high) {
    u32 first = block * BLOCK;
    u32 below = low > first ? (1u << MIN(low - first, BLOCK)) - 1 : 0;
    u32 to = high > first ? (1u << MIN(high - first, BLOCK)) - 1 : 0;
    return (__mmask16)(to & ~below);
}

// tree32 of the 256 elements of p: 8 blocks, then their 8 sums, which zeros pad.
static f32 tree_of_chunk(const f32 *p) {
    __m256 block[8];
    UNROLL_FULLY
    for (u32 i = 0; i < 8; i++) {
        __m512 sum =
            _mm512_add_ps(load_f32x16(p + (usize)(32 * i)), load_f32x16(p + (usize)(32 * i + 16)));
        block[i] = _mm256_add_ps(_mm512_castps512_ps256(sum), _mm512_extractf32x8_ps(sum, 1));
    }
    return tree_of_8(tree_of_8_each(block));
}

// Scores to exponentials, in place; the chunk's maximum and denominator. 1 when a visible score is
// not finite. `whole`: all 256 are visible.
KERNEL_INLINE u32 softmax_range(bool whole, const struct attention_args *args, f32 *p, u32 low,
                                u32 high, f32 *max, f32 *denominator) {
    const __m512 scale = _mm512_set1_ps(args->scale);
    u32 begin = low / BLOCK, end = (high + BLOCK - 1) / BLOCK;
    __mmask16 bad = 0;
    __m512 most = _mm512_set1_ps(-__builtin_inff());
    for (u32 block = begin; block < end; block++) {
        __mmask16 visible = whole ? (__mmask16)0xffff : visible_lanes(block, low, high);
        __m512 score = _mm512_mul_ps(load_f32x16(p + (usize)block * BLOCK), scale);
        if (args->softcap != 0.0f) score = softcapped(score, args->softcap);
        bad |= visible & f32x16_not_finite(score);
        most = _mm512_mask_max_ps(most, visible, most, score);
        store_f32x16(p + (usize)block * BLOCK, score);
    }
    if (bad != 0) return 1;
    f32 m = _mm512_reduce_max_ps(most);
    const __m512 all_m = _mm512_set1_ps(m);
    for (u32 block = 0; block < begin; block++) {
        store_f32x16(p + (usize)block * BLOCK, _mm512_setzero_ps());
    }
    for (u32 block = begin; block < end; block++) {
        f32 *at = p + (usize)block * BLOCK;
        // Invisible lanes may hold anything, so they become the maximum itself before they vanish.
        __mmask16 visible = whole ? (__mmask16)0xffff : visible_lanes(block, low, high);
        __m512 score = _mm512_mask_mov_ps(all_m, visible, load_f32x16(at));
        __m512 e = exp_f32x16_finite(_mm512_sub_ps(score, all_m));
        store_f32x16(at, _mm512_maskz_mov_ps(visible, e));
    }
    for (u32 block = end; block < TOKEN_BLOCKS; block++) {
        store_f32x16(p + (usize)block * BLOCK, _mm512_setzero_ps());
    }
    *max = m;
    *denominator = tree_of_chunk(p);
    return 0;
}

static u32 softmax_chunk(const struct attention_args *args, f32 *p, u32 low, u32 high, f32 *max,
                         f32 *denominator) {
    if (low == 0 && high == OP_CHUNK) {
        return softmax_range(true, args, p, 0, OP_CHUNK, max, denominator);
    }
    return softmax_range(false, args, p, low, high, max, denominator);
}

// --- values ---

// Dims [first, first + 16 n_vectors) of the numerators of n_queries queries (constants) go on over
// positions [begin, end).
KERNEL_INLINE void value_tile(u32 n_queries, u32 n_vectors, const struct batch *b, u32 query,
                              u32 first, u32 begin, u32 end) {
    __m512 sum[TILE_QUERIES][8];
    __mmask16 lanes[8];
    struct attention_scratch *s = b->s;
    u32 head_dim = b->args->head_dim;
    usize stride = b->args->kv.token_stride;
    UNROLL_FULLY
    for (u32 c = 0; c < n_vectors; c++) {
        u32 dim = first + c * BLOCK;
        lanes[c] = dim < head_dim ? first_lanes(head_dim - dim) : 0;
    }
    UNROLL_FULLY
    for (u32 i = 0; i < n_queries; i++) {
        UNROLL_FULLY
        for (u32 c = 0; c < n_vectors; c++) {
            sum[i][c] = load_f32x16(&s->o_chunk[query + i][first + c * BLOCK]);
        }
    }
    const f32 *p = s->p[query];
    const u8 *row = NULL;
    for (u32 t = begin; t < end; t++, row += stride) {
        __m512 value[8];
        if (t % BLOCK == 0 || row == NULL) {
            row = b->args->kv.v + s->block[t / BLOCK] + t % BLOCK * stride + 2 * (usize)first;
        }
        if (n_queries <= DIRECT_QUERIES_MAX) { // nobody else has
            for (u32 c = 0; c < n_vectors; c += 2) {
                prefetch_row(b, b->args->kv.v, t / BLOCK, t % BLOCK,
                             2 * (usize)(first + c * BLOCK));
            }
        }
        UNROLL_FULLY
        for (u32 c = 0; c < n_vectors; c++) {
            value[c] = widen_f16x16(load_u16x16_some(lanes[c], row + (usize)c * BLOCK * 2));
        }
        UNROLL_FULLY
        for (u32 i = 0; i < n_queries; i++) {
            __m512 weight = _mm512_set1_ps(p[i * SCORE_STRIDE + t]);
            UNROLL_FULLY
            for (u32 c = 0; c < n_vectors; c++) {
                sum[i][c] = _mm512_fmadd_ps(weight, value[c], sum[i][c]);
                KEEP_IN_ZMM(sum[i][c]);
            }
        }
    }
    UNROLL_FULLY
    for (u32 i = 0; i < n_queries; i++) {
        UNROLL_FULLY
        for (u32 c = 0; c < n_vectors; c++) {
            store_f32x16(&s->o_chunk[query + i][first + c * BLOCK], sum[i][c]);
        }
    }
}

// Queries [query, query + n), n <= 12, over [begin, end).
static void value_queries(const struct batch *b, u32 query, u32 n, u32 begin, u32 end) {
    u32 head_dim = b->args->head_dim;
    if (begin >= end) return;
    if (n == 1) {
        for (u32 j = 0; j < head_dim; j += 64) value_tile(1, 4, b, query, j, begin, end);
    } else if (n == 2) {
        for (u32 j = 0; j < head_dim; j += 64) value_tile(2, 4, b, query, j, begin, end);
    } else if (n == 3) {
        for (u32 j = 0; j < head_dim; j += 64) value_tile(3, 4, b, query, j, begin, end);
    } else if (n == 4) {
        for (u32 j = 0; j < head_dim; j += 64) value_tile(4, 4, b, query, j, begin, end);
    } else if (n <= 6) {
        for (u32 j = 0; j < head_dim; j += 64) value_tile(6, 4, b, query, j, begin, end);
    } else if (n <= 8) {
        for (u32 j = 0; j < head_dim; j += 32) value_tile(8, 2, b, query, j, begin, end);
    } else {
        for (u32 j = 0; j < head_dim; j += 32) value_tile(12, 2, b, query, j, begin, end);
    }
}

// The chunk's numerators of all queries, into zeroed o_chunk (A2).
static void value_batch(const struct batch *b) {
    const u32 *low = b->s->low, *high = b->s->high;
    for (u32 query = 0; query < b->n;) {
        u32 n = MIN(b->n - query, TILE_QUERIES);
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
            value_queries(b, i, 1, low[i], together ? common_low : high[i]);
        }
        if (together) {
            value_queries(b, query, n, common_low, common_high);
            for (u32 i = query; i < query + n; i++) value_queries(b, i, 1, common_high, high[i]);
        }
        query += n;
    }
}

// --- the whole ---

// Merges the chunk into the running m, l and o of the queries in [query, query + 16) that are
// marked; m_chunk and l_chunk are of the chunk.
static void merge(const struct batch *b, u32 query, __mmask16 marked, const f32 *m_chunk,
                  const f32 *l_chunk) {
    struct attention_scratch *s = b->s;
    f32 run[BLOCK], chunk[BLOCK];
    __m512 m_run = _mm512_maskz_loadu_ps(marked, &s->m[query]);
    __m512 m_new = _mm512_maskz_loadu_ps(marked, &m_chunk[query]);
    __m512 m = _mm512_max_ps(m_run, m_new);
    __m512 a = exp_f32x16_finite(_mm512_sub_ps(m_run, m));
    __m512 c = exp_f32x16_finite(_mm512_sub_ps(m_new, m));
    __m512 l = _mm512_maskz_loadu_ps(marked, &l_chunk[query]);
    l = _mm512_fmadd_ps(_mm512_maskz_loadu_ps(marked, &s->l[query]), a, _mm512_mul_ps(l, c));
    _mm512_mask_storeu_ps(&s->m[query], marked, m);
    _mm512_mask_storeu_ps(&s->l[query], marked, l);
    store_f32x16(run, a);
    store_f32x16(chunk, c);
    for (u32 i = 0; i < BLOCK; i++) {
        if ((marked >> i & 1) == 0) continue;
        __m512 run_all = _mm512_set1_ps(run[i]), chunk_all = _mm512_set1_ps(chunk[i]);
        f32 *o = s->o[query + i], *o_chunk = s->o_chunk[query + i];
        for (u32 j = 0; j < b->args->head_dim; j += BLOCK) {
            __m512 added = _mm512_mul_ps(load_f32x16(o_chunk + j), chunk_all);
            store_f32x16(o + j, _mm512_fmadd_ps(load_f32x16(o + j), run_all, added));
        }
    }
}

// The visible range of every query in the chunk, and of all together.
static void find_ranges(struct batch *b, u32 base) {
    const struct attention_args *args = b->args;
    struct attention_scratch *s = b->s;
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
}

// One chunk for the whole batch, whose last row is at position `last`.
static u32 attend_chunk(struct batch *b, u32 chunk, u32 last) {
    const struct attention_args *args = b->args;
    struct attention_scratch *s = b->s;
    u32 base = chunk * OP_CHUNK;
    find_ranges(b, base);
    if (b->low >= b->high) return 0;                            // nobody sees it
    for (u32 i = b->low / BLOCK; i < COUNT_OF(s->block); i++) { // those ahead are prefetched
        u32 position = MIN(base + i * BLOCK, last) / BLOCK * BLOCK;
        s->block[i] = kv_token_offset(&args->kv, args->slots[b->row], position) +
                      (usize)b->kv_head * args->head_dim * 2;
    }
    score_chunk(b);
    f32 m[QUERIES_MAX], l[QUERIES_MAX];
    for (u32 i = 0; i < b->n; i++) {
        if (s->low[i] >= s->high[i]) continue;
        if (softmax_chunk(args, s->p[i], s->low[i], s->high[i], &m[i], &l[i]) != 0) return 1;
    }
    for (u32 i = 0; i < b->n; i++) {
        memset(s->o_chunk[i], 0, round_up(args->head_dim, 4 * BLOCK) * sizeof(f32));
    }
    value_batch(b);
    u64 marked = 0;
    for (u32 i = 0; i < b->n; i++) {
        if (s->low[i] >= s->high[i]) continue;
        u32 position = args->positions[query_row(b, i)];
        if (chunk == first_visible(args->window, position) / OP_CHUNK) { // its first
            s->m[i] = m[i];
            s->l[i] = l[i];
            memcpy(s->o[i], s->o_chunk[i], round_up(args->head_dim, BLOCK) * sizeof(f32));
        } else {
            marked |= 1ull << i;
        }
    }
    for (u32 i = 0; i < b->n; i += BLOCK) {
        if ((marked >> i & 0xffff) != 0) merge(b, i, (__mmask16)(marked >> i), m, l);
    }
    return 0;
}

static void put_query(const struct batch *b, u32 query) {
    const struct attention_args *args = b->args;
    f16 *out = args->out + (usize)query_row(b, query) * args->out_stride +
               (usize)query_head(b, query) * args->head_dim;
    __m512 l = _mm512_set1_ps(b->s->l[query]);
    for (u32 j = 0; j < args->head_dim; j += BLOCK) {
        __m512 y = _mm512_div_ps(load_f32x16(&b->s->o[query][j]), l);
        store_u16x16_some(first_lanes(args->head_dim - j), out + j, narrow_f32x16(y));
    }
}

u32 attention_avx512(const struct attention_args *args, u32 begin, u32 end, void *scratch) {
    assert(args->head_dim > 0 && args->head_dim <= OP_HEAD_DIM_MAX);
    assert(args->n_head_kv > 0 && args->n_head % args->n_head_kv == 0);
    for (u32 unit = begin; unit < end; unit++) {
        const struct attention_tile *tile = &args->tiles[unit / args->n_head_kv];
        struct batch b = {
            .args = args,
            .s = scratch,
            .row = tile->row,
            .kv_head = unit % args->n_head_kv,
            .heads_per_kv = args->n_head / args->n_head_kv,
        };
        u32 n_queries = tile->n_rows * b.heads_per_kv;
        for (b.first = 0; b.first < n_queries; b.first += QUERIES_MAX) {
            b.n = MIN(n_queries - b.first, QUERIES_MAX);
            // Positions ascend with the rows: the first query looks back furthest.
            u32 first = first_visible(args->window, args->positions[query_row(&b, 0)]);
            u32 last = args->positions[query_row(&b, b.n - 1)];
            stage_queries(&b);
            for (u32 chunk = first / OP_CHUNK; chunk <= last / OP_CHUNK; chunk++) {
                if (attend_chunk(&b, chunk, last) != 0) return 1;
            }
            for (u32 i = 0; i < b.n; i++) put_query(&b, i);
        }
    }
    return 0;
}
