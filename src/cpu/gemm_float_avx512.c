// SPDX-License-Identifier: Apache-2.0
// Matrix products with F32, F16 and BF16 weights (operators 5 and 6 of docs/contract.md) for
// AVX-512. The order is one fma chain per group of 256 in ascending k, so rows go into the lanes by
// transposes and k never does.
//
// One token: 16 rows x one cache line of each are loaded, transposed in registers and used at once.
// A line is touched once, so rows that lie a multiple of 4 KiB apart, whose lines share one set of
// L1, cost nothing. Two panels of 16 rows take turns, so that the chain of one hides behind the
// transposes of the other. Weights are prefetched in the order of their addresses (avx2.h), into
// L2.
//
// More tokens: blocks of rows x tokens. A group of 256 columns of the tokens is widened to
// x[token][256]; of 32 rows it is transposed to w[k][32] (32 KiB), which meets 12 tokens at a time:
// 24 chains. Totals wait in scratch, for a product reads all groups of all its rows.
//
// F1. k need not be a multiple of anything: the last columns are loaded by a mask, and exactly k
//     steps of the chain are done.
#include "cpu/avx512.h"
#include "freestanding/mem.h"

#define PANEL_ROWS LANES_16
#define PANELS 2u // of a tile
#define ROWS_OF_TILE (PANELS * PANEL_ROWS)
#define ROWS_OF_BLOCK 128u               // rows whose totals are kept: 128 KiB
#define TOKENS_OF_BLOCK 256u             // widened once for a block of rows: 272 KiB
#define TOKENS_OF_TILE 12u               // 24 accumulators, two weights and an activation
#define X_STRIDE (OP_GROUP + PANEL_ROWS) // rows of x start at different sets of L1
#define LINE_BYTES 64u

struct float_scratch {
    f32 w[OP_GROUP][ROWS_OF_TILE];
    f32 total[ROWS_OF_BLOCK / ROWS_OF_TILE][TOKENS_OF_BLOCK + TOKENS_OF_TILE][ROWS_OF_TILE];
    f32 x[(TOKENS_OF_BLOCK + TOKENS_OF_TILE)][X_STRIDE]; // the excess is computed and dropped
};
static_assert(sizeof(struct float_scratch) <= OP_SCRATCH_BYTES, "a block fits the scratch");

KERNEL_INLINE u32 element_bytes(enum dtype type) { return type == DTYPE_F32 ? 4 : 2; }
KERNEL_INLINE u32 line_elements(enum dtype type) { return LINE_BYTES / element_bytes(type); }

// A panel: 16 rows, of which `lanes` are wanted. Where fewer than 16 are left, the panel begins
// with rows that are done already, so that its addresses are regular; nothing is stored for those.
struct panel {
    const u8 *rows;
    usize stride;
    u32 row; // of lane 0
    __mmask16 lanes;
};

// Rows [first, end), or 16 of them; end >= 16.
KERNEL_INLINE struct panel panel_of(const struct gemm_args *args, u32 first, u32 end) {
    u32 row = MIN(first, end - PANEL_ROWS);
    return (struct panel){args->weight + row * args->row_bytes, args->row_bytes, row,
                          (__mmask16)(0xffffu << MIN(first - row, PANEL_ROWS))};
}

// The panels of the tile of rows [first, end), or 32 of them; the second may have no rows.
KERNEL_INLINE void tile_panels(const struct gemm_args *args, u32 first, u32 end,
                               struct panel panel[PANELS]) {
    panel[0] = panel_of(args, first, end);
    panel[1] = panel_of(args, MIN(first + PANEL_ROWS, end), end);
}

// A line of each row, transposed but not widened; n < line_elements columns leave the others zero.
KERNEL_INLINE void load_lines(enum dtype type, const struct panel *panel, usize at, u32 n,
                              __m512i packed[PANEL_ROWS]) {
    __m512i line[PANEL_ROWS];
    const u8 *row = panel->rows + at;
    if (n >= line_elements(type)) {
        UNROLL_FULLY
        for (u32 r = 0; r < PANEL_ROWS; r++, row += panel->stride) line[r] = load_512(row);
    } else {
        __mmask32 some = (__mmask32)((1ull << (n * element_bytes(type) / 2)) - 1);
        UNROLL_FULLY
        for (u32 r = 0; r < PANEL_ROWS; r++, row += panel->stride) {
            line[r] = _mm512_maskz_loadu_epi16(some, row);
        }
    }
    UNROLL_FULLY
    for (u32 r = 0; r < PANEL_ROWS; r++) KEEP_IN_ZMM(line[r]);
    if (type == DTYPE_F16) {
        transpose_16x32_u16(line, packed);
    } else {
        transpose_16x16_u32(line, packed);
    }
    UNROLL_FULLY
    for (u32 r = 0; r < PANEL_ROWS; r++) KEEP_IN_ZMM(packed[r]);
}

// Column c of packed lines.
KERNEL_INLINE __m512 column_of(enum dtype type, const __m512i packed[PANEL_ROWS], u32 c) {
    switch (type) {
    case DTYPE_F32: return _mm512_castsi512_ps(packed[c]);
    case DTYPE_F16: return widen_f16x16(column_of_pairs(packed, c));
    default: // two columns a word
        return _mm512_castsi512_ps(
            c % 2 == 0 ? _mm512_slli_epi32(packed[c / 2], 16)
                       : _mm512_and_si512(packed[c / 2], _mm512_set1_epi32((i32)0xffff0000)));
    }
}

KERNEL_INLINE void put_panel(const struct gemm_args *args, const struct panel *panel, u32 token,
                             __m512 total) {
    put_lanes(args, panel->row, panel->lanes, token, total);
}

// --- one token ---

static void widen_all(const f16 *x, u32 n, f32 *wide) {
    for (u32 i = 0; i < n; i += LANES_16) {
        store_f32x16(wide + i, widen_f16x16(load_u16x16_some(first_lanes(n - i), x + i)));
    }
}

// g of a panel goes on over one line of columns, prefetching as much elsewhere.
KERNEL_INLINE void float_line(enum dtype type, const struct panel *panel, usize at, const f32 *x,
                              const char *ahead, __m512 *g) {
    __m512i packed[PANEL_ROWS];
    u32 n = line_elements(type);
    load_lines(type, panel, at, n, packed);
    UNROLL_FULLY
    for (u32 c = 0; c < n; c++) {
        *g = _mm512_fmadd_ps(column_of(type, packed, c), _mm512_set1_ps(x[c]), *g);
        KEEP_IN_ZMM(*g);
        if (c % (n / PANEL_ROWS) == 0) {
            _mm_prefetch(ahead + c / (n / PANEL_ROWS) * LINE_BYTES, _MM_HINT_T1);
        }
    }
}

// The last n columns of a group, fewer than a line.
KERNEL_INLINE void float_rest(enum dtype type, const struct panel *panel, usize at, u32 n,
                              const f32 *x, __m512 *g) {
    __m512i packed[PANEL_ROWS];
    load_lines(type, panel, at, n, packed);
    UNROLL_FULLY
    for (u32 c = 0; c < line_elements(type); c++) {
        if (c >= n) break;
        *g = _mm512_fmadd_ps(column_of(type, packed, c), _mm512_set1_ps(x[c]), *g);
    }
}

KERNEL_INLINE void float_one(enum dtype type, const struct gemm_args *args, u32 begin, u32 end,
                             struct float_scratch *s) {
    usize tile_bytes = ROWS_OF_TILE * args->row_bytes;
    f32 *x = s->x[0]; // one group
    for (u32 first = begin; first < end; first += ROWS_OF_TILE) {
        struct panel panel[PANELS];
        tile_panels(args, first, end, panel);
        __m512 total[PANELS] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
        const char *ahead = (const char *)args->weight + first * args->row_bytes +
                            round_up(PREFETCH_AHEAD, tile_bytes);
        for (u32 at = 0; at < args->k; at += OP_GROUP) {
            u32 length = MIN(args->k - at, OP_GROUP), i = 0;
            __m512 g[PANELS] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
            widen_all(args->x + at, length, x);
            for (; i + line_elements(type) <= length; i += line_elements(type)) {
                usize at_bytes = (usize)(at + i) * element_bytes(type);
                float_line(type, &panel[0], at_bytes, x + i, ahead, &g[0]);
                ahead += PANEL_ROWS * LINE_BYTES;
                float_line(type, &panel[1], at_bytes, x + i, ahead, &g[1]);
                ahead += PANEL_ROWS * LINE_BYTES;
            }
            if (i < length) {
                usize at_bytes = (usize)(at + i) * element_bytes(type);
                float_rest(type, &panel[0], at_bytes, length - i, x + i, &g[0]);
                float_rest(type, &panel[1], at_bytes, length - i, x + i, &g[1]);
            }
            total[0] = _mm512_add_ps(total[0], g[0]);
            total[1] = _mm512_add_ps(total[1], g[1]);
        }
        put_panel(args, &panel[0], 0, total[0]);
        put_panel(args, &panel[1], 0, total[1]);
    }
}

// --- several tokens ---

// A line of columns of a panel (n < line_elements of them), transposed and widened, to `to` and on.
KERNEL_INLINE void load_columns(enum dtype type, const struct panel *panel, usize at, u32 n,
                                const char *ahead, f32 (*to)[ROWS_OF_TILE]) {
    __m512i packed[PANEL_ROWS];
    load_lines(type, panel, at, n, packed);
    UNROLL_FULLY
    for (u32 c = 0; c < line_elements(type); c++) {
        if (c >= n) break;
        store_f32x16(to[c], column_of(type, packed, c));
        if (c % (line_elements(type) / PANEL_ROWS) == 0) {
            _mm_prefetch(ahead + c / (line_elements(type) / PANEL_ROWS) * LINE_BYTES, _MM_HINT_T1);
        }
    }
}

// n columns of the 32 rows. `ahead` as in float_line.
KERNEL_INLINE void load_tile(enum dtype type, const struct panel panel[PANELS], usize at, u32 n,
                             const char *ahead, f32 (*to)[ROWS_OF_TILE]) {
    for (u32 h = 0; h < PANELS; h++) {
        f32(*half)[ROWS_OF_TILE] = (f32(*)[ROWS_OF_TILE])(to[0] + h * PANEL_ROWS);
        u32 i = 0;
        for (; i + line_elements(type) <= n; i += line_elements(type)) {
            load_columns(type, &panel[h], at + (usize)i * element_bytes(type), line_elements(type),
                         ahead, half + i);
            ahead += PANEL_ROWS * LINE_BYTES;
        }
        if (i == n) continue;
        load_columns(type, &panel[h], at + (usize)i * element_bytes(type), n - i, ahead, half + i);
        ahead += PANEL_ROWS * LINE_BYTES;
    }
}

// One group of n elements for 32 rows and n_tokens (a constant) tokens; x is the first's.
KERNEL_INLINE void float_step(u32 n_tokens, const f32 (*w)[ROWS_OF_TILE], u32 n, const f32 *x,
                              f32 (*total)[ROWS_OF_TILE]) {
    __m512 g[TOKENS_OF_TILE][PANELS];
    UNROLL_FULLY
    for (u32 t = 0; t < n_tokens; t++) g[t][0] = g[t][1] = _mm512_setzero_ps();
    for (u32 i = 0; i < n; i++) {
        __m512 w0 = load_f32x16(w[i]), w1 = load_f32x16(w[i] + PANEL_ROWS);
        UNROLL_FULLY
        for (u32 t = 0; t < n_tokens; t++) {
            __m512 value = _mm512_set1_ps(x[t * X_STRIDE + i]);
            g[t][0] = _mm512_fmadd_ps(w0, value, g[t][0]);
            KEEP_IN_ZMM(g[t][0]);
            g[t][1] = _mm512_fmadd_ps(w1, value, g[t][1]);
            KEEP_IN_ZMM(g[t][1]);
        }
    }
    UNROLL_FULLY
    for (u32 t = 0; t < n_tokens; t++) {
        f32 *sum = total[t];
        store_f32x16(sum, _mm512_add_ps(load_f32x16(sum), g[t][0]));
        store_f32x16(sum + PANEL_ROWS, _mm512_add_ps(load_f32x16(sum + PANEL_ROWS), g[t][1]));
    }
}

static void float_tokens(struct float_scratch *s, u32 n_tokens, u32 n, u32 tile) {
    for (u32 t = 0; t < n_tokens; t += TOKENS_OF_TILE) {
        u32 left = n_tokens - t;
        if (left <= 2) {
            float_step(2, s->w, n, s->x[t], &s->total[tile][t]);
        } else if (left <= 4) {
            float_step(4, s->w, n, s->x[t], &s->total[tile][t]);
        } else if (left <= 8) {
            float_step(8, s->w, n, s->x[t], &s->total[tile][t]);
        } else {
            float_step(12, s->w, n, s->x[t], &s->total[tile][t]);
        }
    }
}

// Rows [begin, end), at most a block, times tokens [from, to), at most a block.
KERNEL_INLINE void float_block(enum dtype type, const struct gemm_args *args, u32 begin, u32 end,
                               u32 from, u32 to, struct float_scratch *s) {
    u32 n_tokens = to - from, n_tiles = (end - begin + ROWS_OF_TILE - 1) / ROWS_OF_TILE;
    for (u32 tile = 0; tile < n_tiles; tile++) {
        memset(s->total[tile], 0, (usize)n_tokens * sizeof s->total[tile][0]);
    }
    for (u32 at = 0; at < args->k; at += OP_GROUP) {
        u32 length = MIN(args->k - at, OP_GROUP);
        for (u32 t = 0; t < n_tokens; t++) {
            widen_all(args->x + (usize)(from + t) * args->x_stride + at, length, s->x[t]);
        }
        for (u32 tile = 0; tile < n_tiles; tile++) {
            struct panel panel[PANELS];
            tile_panels(args, begin + tile * ROWS_OF_TILE, end, panel);
            usize at_bytes = (usize)at * element_bytes(type);
            const char *ahead = (const char *)panel[0].rows + ROWS_OF_TILE * args->row_bytes +
                                ROWS_OF_TILE * at_bytes;
            load_tile(type, panel, at_bytes, length, ahead, s->w);
            float_tokens(s, n_tokens, length, tile);
        }
    }
    for (u32 tile = 0; tile < n_tiles; tile++) {
        struct panel panel[PANELS];
        tile_panels(args, begin + tile * ROWS_OF_TILE, end, panel);
        for (u32 t = 0; t < n_tokens; t++) {
            const f32 *total = s->total[tile][t];
            put_panel(args, &panel[0], from + t, load_f32x16(total));
            put_panel(args, &panel[1], from + t, load_f32x16(total + PANEL_ROWS));
        }
    }
}

// With few tokens a block is one tile of rows, so that weights are read in the order of their
// addresses as far as may be, and widening a few tokens again costs little.
KERNEL_INLINE void float_several(enum dtype type, const struct gemm_args *args, u32 begin, u32 end,
                                 struct float_scratch *s) {
    u32 n_rows = args->n_tokens <= TOKENS_OF_TILE ? ROWS_OF_TILE : ROWS_OF_BLOCK;
    for (u32 t = 0; t < args->n_tokens; t += TOKENS_OF_BLOCK) {
        for (u32 first = begin; first < end; first += n_rows) {
            float_block(type, args, first, MIN(first + n_rows, end), t,
                        MIN(t + TOKENS_OF_BLOCK, args->n_tokens), s);
        }
    }
}

#define DEFINE_GEMM(name, type)                                                                 \
    u32 gemm_##name##_avx512(const struct gemm_args *args, u32 begin, u32 end, void *scratch) { \
        if (begin >= end || args->n_tokens == 0) return 0;                                      \
        if (end < PANEL_ROWS) return gemm_##name##_avx2(args, begin, end, scratch);             \
        if (args->n_tokens == 1) {                                                              \
            float_one(type, args, begin, end, scratch);                                         \
        } else {                                                                                \
            float_several(type, args, begin, end, scratch);                                     \
        }                                                                                       \
        return 0;                                                                               \
    }
DEFINE_GEMM(f32, DTYPE_F32)
DEFINE_GEMM(f16, DTYPE_F16)
DEFINE_GEMM(bf16, DTYPE_BF16)
#undef DEFINE_GEMM
