// SPDX-License-Identifier: Apache-2.0
// Matrix products with F32, F16 and BF16 weights (operators 5 and 6 of docs/contract.md) for AVX2.
// The order is one fma chain per group of 256 in ascending k, so rows go into the lanes by 8x8
// transposes and k never does.
//
// One token: blocks of 8 rows x 8 k are transposed in registers and used at once; two panels give
// two chains, whose latency hides behind the transposes. More tokens: a group of 16 rows is
// transposed once to tile[k][row] (16 KiB, L1) and meets 6 tokens at a time.
//
// Rows that lie a multiple of 2 KiB apart (k = 4,096 of F16) run at half the speed with one token:
// they crowd into a few sets of L1. Copying their lines together first was no better.
//
// F1. k need not be a multiple of anything: the last columns are copied to a padded block, and
//     exactly k steps of the chain are done.
#include "cpu/avx2.h"
#include "freestanding/mem.h"

#define BLOCK 8u         // rows and columns of a transpose
#define BLOCK_ROW_BYTES (BLOCK * sizeof(f32))

struct float_scratch {
    f32 column[OP_GROUP][TILE_PANELS][LANES];
    tile_total total[CHUNK_TOKENS + TILE_TOKENS]; // the excess takes repeated tokens
    f32 x[OP_GROUP]; // one token's group, widened
};
static_assert(sizeof(struct float_scratch) <= OP_SCRATCH_BYTES, "a tile fits the scratch");

KERNEL_INLINE u32 element_bytes(enum dtype type) { return type == DTYPE_F32 ? 4 : 2; }

// Columns [0, 8) of the elements at row[r] + at, widened: lane r of column[c].
KERNEL_INLINE void load_columns(enum dtype type, const u8 *const row[LANES], usize at,
                                __m256 column[BLOCK]) {
    if (type == DTYPE_F32) {
        __m128i low[LANES], high[LANES];
        __m256i words[BLOCK];
        UNROLL_FULLY
        for (u32 r = 0; r < LANES; r++) {
            low[r] = load_128(row[r] + at);
            high[r] = load_128(row[r] + at + 16);
        }
        transpose_8x4_u32(low, words);
        transpose_8x4_u32(high, words + 4);
        UNROLL_FULLY
        for (u32 c = 0; c < BLOCK; c++) column[c] = _mm256_castsi256_ps(words[c]);
        return;
    }
    __m128i line[LANES];
    __m256i pair[4];
    UNROLL_FULLY
    for (u32 r = 0; r < LANES; r++) line[r] = load_128(row[r] + at);
    transpose_8x8_u16(line, pair);
    UNROLL_FULLY
    for (u32 i = 0; i < 4; i++) {
        if (type == DTYPE_F16) {
            widen_f16_pair(pair[i], &column[2 * i], &column[2 * i + 1]);
        } else {
            widen_bf16_pair(pair[i], &column[2 * i], &column[2 * i + 1]);
        }
    }
}

// The same for the last n < 8 columns; the others are zero.
static void load_last_columns(enum dtype type, const u8 *const row[LANES], usize at, u32 n,
                              __m256 column[BLOCK]) {
    u8 copy[LANES][BLOCK_ROW_BYTES] = {{0}};
    const u8 *copied[LANES];
    for (u32 r = 0; r < LANES; r++) {
        memcpy(copy[r], row[r] + at, (usize)n * element_bytes(type));
        copied[r] = copy[r];
    }
    switch (type) {
    case DTYPE_F32: load_columns(DTYPE_F32, copied, 0, column); break;
    case DTYPE_F16: load_columns(DTYPE_F16, copied, 0, column); break;
    default: load_columns(DTYPE_BF16, copied, 0, column); break;
    }
}

// --- one token ---

static void widen_group(const f16 *x, u32 n, f32 *wide) {
    for (u32 i = 0; i < n; i += LANES) {
        store_f32x8_upto(wide + i, widen_f16x8(load_u16x8_upto(x + i, n - i)), n - i);
    }
}

// g of 16 rows goes on over 8 columns at from[][] + at.
KERNEL_INLINE void float_block(enum dtype type, const u8 *const from[TILE_PANELS][LANES], usize at,
                               const f32 *x, __m256 g[TILE_PANELS]) {
    __m256 column[TILE_PANELS][BLOCK];
    load_columns(type, from[0], at, column[0]);
    load_columns(type, from[1], at, column[1]);
    UNROLL_FULLY
    for (u32 c = 0; c < BLOCK; c++) {
        __m256 value = _mm256_set1_ps(x[c]);
        g[0] = _mm256_fmadd_ps(column[0][c], value, g[0]);
        g[1] = _mm256_fmadd_ps(column[1][c], value, g[1]);
    }
}

// The value of the group of n elements at row[][] + at, for the 16 rows of a tile.
KERNEL_INLINE void group_of_floats(enum dtype type, const u8 *const row[TILE_PANELS][LANES],
                                   usize at, u32 n, const f32 *x, struct ahead *ahead,
                                   __m256 g[TILE_PANELS]) {
    g[0] = g[1] = _mm256_setzero_ps();
    u32 i = 0;
    for (; i + BLOCK <= n; i += BLOCK) {
        prefetch_step(ahead, TILE_ROWS * BLOCK * element_bytes(type));
        float_block(type, row, at + (usize)i * element_bytes(type), x + i, g);
    }
    if (i == n) return;
    prefetch_step(ahead, TILE_ROWS * (n - i) * element_bytes(type));
    for (u32 h = 0; h < TILE_PANELS; h++) {
        __m256 column[BLOCK];
        load_last_columns(type, row[h], at + (usize)i * element_bytes(type), n - i, column);
        for (u32 c = 0; c < n - i; c++) {
            g[h] = _mm256_fmadd_ps(column[c], _mm256_set1_ps(x[i + c]), g[h]);
        }
    }
}

KERNEL_INLINE void float_one(enum dtype type, const struct gemm_args *args, u32 begin, u32 end,
                             struct float_scratch *s) {
    struct ahead ahead = prefetch_begin(args->weight + begin * args->row_bytes, TILE_ROWS,
                                        args->row_bytes);
    for (u32 first = begin; first < end; first += TILE_ROWS) {
        u32 n = MIN(end - first, TILE_ROWS);
        const u8 *row[TILE_PANELS][LANES];
        __m256 total[TILE_PANELS], g[TILE_PANELS];
        tile_rows(args, first, n, row);
        total[0] = total[1] = _mm256_setzero_ps();
        for (u32 at = 0; at < args->k; at += OP_GROUP) {
            u32 length = MIN(args->k - at, OP_GROUP);
            usize at_bytes = (usize)at * element_bytes(type);
            widen_group(args->x + at, length, s->x);
            group_of_floats(type, row, at_bytes, length, s->x, &ahead, g);
            total[0] = _mm256_add_ps(total[0], g[0]);
            total[1] = _mm256_add_ps(total[1], g[1]);
        }
        put_rows(args, first, MIN(n, LANES), 0, total[0]);
        if (n > LANES) put_rows(args, first + LANES, n - LANES, 0, total[1]);
    }
}

// --- several tokens ---

typedef f32 tile_columns[OP_GROUP][TILE_PANELS][LANES];

KERNEL_INLINE void load_tile(enum dtype type, const u8 *const row[TILE_PANELS][LANES], usize at,
                             u32 n, tile_columns to) {
    for (u32 h = 0; h < TILE_PANELS; h++) {
        for (u32 i = 0; i < n; i += BLOCK) {
            u32 n_columns = MIN(n - i, BLOCK);
            usize at_column = at + (usize)i * element_bytes(type);
            __m256 column[BLOCK];
            if (n_columns == BLOCK) {
                load_columns(type, row[h], at_column, column);
            } else {
                load_last_columns(type, row[h], at_column, n_columns, column);
            }
            for (u32 c = 0; c < n_columns; c++) store_f32x8(to[i + c][h], column[c]);
        }
    }
}

// One group of n elements for 16 rows and n_tokens (a constant) tokens.
KERNEL_INLINE void float_step(u32 n_tokens, const tile_columns column, u32 n, const f16 *const *x,
                              tile_total *total) {
    __m256 g[TILE_TOKENS][TILE_PANELS];
    UNROLL_FULLY
    for (u32 t = 0; t < n_tokens; t++) g[t][0] = g[t][1] = _mm256_setzero_ps();
    for (u32 i = 0; i < n; i++) {
        __m256 w0 = load_f32x8(column[i][0]), w1 = load_f32x8(column[i][1]);
        UNROLL_FULLY
        for (u32 t = 0; t < n_tokens; t++) {
            __m256 value = widen_f16x8(_mm_set1_epi16((i16)x[t][i]));
            g[t][0] = _mm256_fmadd_ps(w0, value, g[t][0]);
            g[t][1] = _mm256_fmadd_ps(w1, value, g[t][1]);
            KEEP_IN_REGISTERS(g[t][0], g[t][1]);
        }
    }
    UNROLL_FULLY
    for (u32 t = 0; t < n_tokens; t++) {
        store_f32x8(total[t][0], _mm256_add_ps(load_f32x8(total[t][0]), g[t][0]));
        store_f32x8(total[t][1], _mm256_add_ps(load_f32x8(total[t][1]), g[t][1]));
    }
}

// Tokens [begin, end), in tiles; the last tile repeats the last token.
static void float_tokens(const struct gemm_args *args, struct float_scratch *s, u32 at, u32 n,
                         u32 begin, u32 end) {
    for (u32 t = begin; t < end;) {
        u32 step = end - t <= 2 ? 2 : end - t <= 4 ? 4 : TILE_TOKENS;
        const f16 *x[TILE_TOKENS];
        for (u32 i = 0; i < step; i++) {
            x[i] = args->x + (usize)MIN(t + i, end - 1) * args->x_stride + at;
        }
        if (step == 2) {
            float_step(2, s->column, n, x, &s->total[t - begin]);
        } else if (step == 4) {
            float_step(4, s->column, n, x, &s->total[t - begin]);
        } else {
            float_step(TILE_TOKENS, s->column, n, x, &s->total[t - begin]);
        }
        t += step;
    }
}

KERNEL_INLINE void float_several(enum dtype type, const struct gemm_args *args, u32 begin, u32 end,
                                 struct float_scratch *s) {
    for (u32 chunk = 0; chunk < args->n_tokens; chunk += CHUNK_TOKENS) {
        u32 chunk_end = MIN(chunk + CHUNK_TOKENS, args->n_tokens);
        for (u32 first = begin; first < end; first += TILE_ROWS) {
            u32 n = MIN(end - first, TILE_ROWS);
            const u8 *row[TILE_PANELS][LANES];
            tile_rows(args, first, n, row);
            for (u32 t = 0; t < chunk_end - chunk + TILE_TOKENS; t++) {
                store_f32x8(s->total[t][0], _mm256_setzero_ps());
                store_f32x8(s->total[t][1], _mm256_setzero_ps());
            }
            for (u32 at = 0; at < args->k; at += OP_GROUP) {
                u32 length = MIN(args->k - at, OP_GROUP);
                load_tile(type, row, (usize)at * element_bytes(type), length, s->column);
                float_tokens(args, s, at, length, chunk, chunk_end);
            }
            for (u32 t = chunk; t < chunk_end; t++) {
                put_tile(args, first, n, t, s->total[t - chunk]);
            }
        }
    }
}

#define DEFINE_GEMM(name, type)                                                                    \
    u32 gemm_##name##_avx2(const struct gemm_args *args, u32 begin, u32 end, void *scratch) {      \
        if (begin >= end || args->n_tokens == 0) return 0;                                         \
        if (args->n_tokens == 1) {                                                                 \
            float_one(type, args, begin, end, scratch);                                            \
        } else {                                                                                   \
            float_several(type, args, begin, end, scratch);                                        \
        }                                                                                          \
        return 0;                                                                                  \
    }
DEFINE_GEMM(f32, DTYPE_F32)
DEFINE_GEMM(f16, DTYPE_F16)
DEFINE_GEMM(bf16, DTYPE_BF16)
#undef DEFINE_GEMM
