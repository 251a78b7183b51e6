// SPDX-License-Identifier: Apache-2.0
// Contents of buffers before a launch. All randomness comes from a seed made of the file's seed,
// the case and the buffer's number, so that a card and the interpreter get the same bytes.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "freestanding/math.h"
#include "launch.h"

struct filling {
    const struct launch_set *set;
    const struct launch_case *launch;
    struct launch_buffer *buffer;
    const struct launch_statement *statement;
    u32 word; // the first argument of the fill
    struct random random;
};

static bool is_float(enum element type) {
    return type == ELEMENT_F16 || type == ELEMENT_BF16 || type == ELEMENT_F32;
}

static const char *argument(const struct filling *filling, u32 index) {
    u32 at = filling->word + index;
    if (at >= filling->statement->n_words) {
        fail_at(filling->set->path, filling->statement->line, "the fill wants another value");
    }
    return filling->statement->words[at];
}

static i64 integer(const struct filling *filling, u32 index) {
    return launch_integer(filling->set, filling->launch, filling->statement->line,
                          argument(filling, index));
}

static f64 number(const struct filling *filling, u32 index) {
    return launch_number(filling->set, filling->launch, filling->statement->line,
                         argument(filling, index));
}

static u64 float_bits(enum element type, f64 value) {
    if (type == ELEMENT_F16) return f32_to_f16((f32)value);
    if (type == ELEMENT_F32) return f32_bits((f32)value);
    u32 bits = f32_bits((f32)value); // bf16, to nearest even
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

static void store(struct launch_buffer *buffer, u64 element, u64 bits) {
    u32 bytes = element_bytes(buffer->type);
    memcpy(buffer->contents + element * bytes, &bits, bytes);
}

static u64 random_bits(struct filling *filling) {
    u64 bits = random_u64(&filling->random);
    enum element type = filling->buffer->type;
    if (type == ELEMENT_F16) return (bits & 0x7c00) == 0x7c00 ? bits & 0x83ff : bits;
    if (type == ELEMENT_BF16) return (bits & 0x7f80) == 0x7f80 ? bits & 0x807f : bits;
    if (type == ELEMENT_F32) return (bits & 0x7f800000) == 0x7f800000 ? bits & 0x807fffff : bits;
    return bits;
}

static u64 random_value(struct filling *filling, f64 low, f64 high) {
    if (is_float(filling->buffer->type)) {
        return float_bits(filling->buffer->type,
                          low + (high - low) * random_unit(&filling->random));
    }
    u64 span = (u64)((i64)high - (i64)low) + 1;
    return (u64)(i64)low + (span == 0 ? 0 : random_u64(&filling->random) % span);
}

// Values at which formats and roundings change.
static u64 edge_value(struct filling *filling) {
    static const u32 f32_edges[] = {0,          0x80000000, 1,          0x80000001, 0x007fffff,
                                    0x00800000, 0x3f800000, 0xbf800000, 0x7f7fffff, 0xff7fffff};
    static const u16 f16_edges[] = {0,      0x8000, 1,      0x8001, 0x03ff,
                                    0x0400, 0x3c00, 0xbc00, 0x7bff, 0xfbff};
    u32 pick = random_below(&filling->random, COUNT_OF(f32_edges));
    enum element type = filling->buffer->type;
    if (type == ELEMENT_F16) return f16_edges[pick];
    if (type == ELEMENT_BF16) return f32_edges[pick] >> 16;
    if (type == ELEMENT_F32) return f32_edges[pick];
    return pick % 2 == 0 ? 0 : ~0ull;
}

// --- quantised weights ---

// Where a block keeps its f16 scales; -1: no second one.
static void scale_places(enum dtype type, i32 *first, i32 *second) {
    *first = 0;
    *second = -1;
    switch (type) {
    case DTYPE_Q4_1:
    case DTYPE_Q5_1:
    case DTYPE_Q4_K:
    case DTYPE_Q5_K: *second = 2; break;
    case DTYPE_Q2_K:
        *first = 80;
        *second = 82;
        break;
    case DTYPE_Q3_K: *first = 108; break;
    case DTYPE_Q6_K: *first = 208; break;
    default: break;
    }
}

static enum dtype take_dtype(const struct filling *filling) {
    const char *name = argument(filling, 0);
    for (u32 type = 0; type < DTYPE_LIMIT; type++) {
        const struct dtype_info *info = dtype_lookup(type);
        if (info == NULL) continue;
        const char *a = info->name, *b = name;
        while (*a != 0 && *b != 0 && (*a | 32) == (*b | 32)) a++, b++;
        if (*a == *b) return type;
    }
    fail_at(filling->set->path, filling->statement->line, "unknown weight type %s", name);
}

// Blocks of random bits with finite scales: mostly near 1/64, some subnormal, zero or of the other
// sign. `integral`: scales are 1, 2, -1 or -2 and floats are integers up to 8, so that every weight
// is an integer, and sums of few products with integers are exact in whatever order.
static void fill_weights(struct filling *filling, bool integral) {
    struct launch_buffer *buffer = filling->buffer;
    enum dtype type = take_dtype(filling);
    const struct dtype_info *info = dtype_lookup(type);
    u64 k = (u64)integer(filling, 1), row_bytes = dtype_row_bytes(type, k);
    if (element_bytes(buffer->type) != 1 || buffer->last_dimension < row_bytes) {
        fail_at(filling->set->path, filling->statement->line,
                "rows of %llu bytes for weights of %llu", buffer->last_dimension, row_bytes);
    }
    i32 place[2];
    scale_places(type, &place[0], &place[1]);
    for (u64 row = 0; row * buffer->last_dimension < buffer->count; row++) {
        u8 *at = buffer->contents + row * buffer->last_dimension;
        for (u64 i = 0; i < row_bytes; i++) at[i] = (u8)random_u64(&filling->random);
        for (u64 block = 0; block * info->block_bytes < row_bytes;
             block++, at += info->block_bytes) {
            f64 unit = random_unit(&filling->random) * 2 - 1;
            if (info->block_elements == 1) { // a float
                if (integral) unit = (f64)random_below(&filling->random, 17) - 8;
                if (type == DTYPE_F32) store_f32(at, (f32)unit);
                if (type == DTYPE_F16) store_u16(at, f32_to_f16((f32)unit));
                if (type == DTYPE_BF16) store_u16(at, (u16)float_bits(ELEMENT_BF16, unit));
                continue;
            }
            for (u32 s = 0; s < 2; s++) {
                if (place[s] < 0) continue;
                u32 kind = random_below(&filling->random, 16);
                u16 bits = f32_to_f16((f32)((random_unit(&filling->random) - 0.5) / 32));
                if (kind == 0) bits = 0;
                if (kind == 1) bits = (u16)random_below(&filling->random, 1024);
                if (integral) bits = (u16)(0x3c00 + 0x400 * (kind & 1) + 0x8000 * (kind >> 3));
                store_u16(at + place[s], bits);
            }
        }
    }
}

// table[position, pair, {cos, sin}], as the contract computes it (operator 7, factors 1).
static void fill_rope(struct filling *filling) {
    struct launch_buffer *buffer = filling->buffer;
    f64 base = number(filling, 0);
    u64 pairs = buffer->last_dimension / 2;
    if (buffer->type != ELEMENT_F32 || pairs == 0) {
        fail_at(filling->set->path, filling->statement->line,
                "a rope table is f32 [positions, rope_dim]");
    }
    for (u64 i = 0; i < buffer->count / 2; i++) {
        u64 row = i / pairs, column = i % pairs;
        f64 position = (f64)row, pair = (f64)column;
        f64 angle = position * math_pow(base, -2.0 * pair / (f64)(2 * pairs));
        store(buffer, 2 * i, f32_bits((f32)math_cos(angle)));
        store(buffer, 2 * i + 1, f32_bits((f32)math_sin(angle)));
    }
}

static void fill_permutation(struct filling *filling) {
    struct launch_buffer *buffer = filling->buffer;
    u32 n = (u32)buffer->count;
    u32 *order = need(n, sizeof(u32));
    for (u32 i = 0; i < n; i++) order[i] = i;
    for (u32 i = n; i > 1; i--) {
        u32 j = random_below(&filling->random, i), kept = order[i - 1];
        order[i - 1] = order[j];
        order[j] = kept;
    }
    for (u32 i = 0; i < n; i++) store(buffer, i, order[i]);
    free(order);
}

static void fill_values(struct filling *filling) {
    struct launch_buffer *buffer = filling->buffer;
    u32 n = filling->statement->n_words - filling->word;
    for (u64 i = 0; i < buffer->count; i++) {
        u32 index = (u32)MIN(i, (u64)n - 1);
        u64 bits = is_float(buffer->type) ? float_bits(buffer->type, number(filling, index))
                                          : (u64)integer(filling, index);
        store(buffer, i, bits);
    }
}

static void fill_random(struct filling *filling, bool with_edges) {
    struct launch_buffer *buffer = filling->buffer;
    f64 low = number(filling, 0), high = number(filling, 1);
    for (u64 i = 0; i < buffer->count; i++) {
        bool edge = with_edges && random_below(&filling->random, 8) == 0;
        store(buffer, i, edge ? edge_value(filling) : random_value(filling, low, high));
    }
}

void fill_buffer(const struct launch_set *set, const struct launch_case *launch,
                 struct launch_buffer *buffer, const struct launch_statement *statement,
                 u32 first_word, u64 used, u64 seed) {
    struct filling filling = {.set = set,
                              .launch = launch,
                              .buffer = buffer,
                              .statement = statement,
                              .word = first_word + 1,
                              .random = {seed}};
    const char *name = first_word < statement->n_words ? statement->words[first_word] : "";
    u32 bytes = element_bytes(buffer->type);
    bool defined = true;
    if (strcmp(name, "zero") == 0) { // as allocated
    } else if (strcmp(name, "poison") == 0) {
        memset(buffer->contents, 255, buffer->bytes);
        defined = false;
    } else if (strcmp(name, "random") == 0 || strcmp(name, "edges") == 0) {
        fill_random(&filling, name[0] == 'e');
    } else if (strcmp(name, "bits") == 0) {
        for (u64 i = 0; i < buffer->count; i++) store(buffer, i, random_bits(&filling));
    } else if (strcmp(name, "sequence") == 0) {
        i64 start = integer(&filling, 0), step = integer(&filling, 1);
        for (u64 i = 0; i < buffer->count; i++) {
            i64 value = start + step * (i64)i;
            store(buffer, i,
                  is_float(buffer->type) ? float_bits(buffer->type, (f64)value) : (u64)value);
        }
    } else if (strcmp(name, "permutation") == 0) {
        fill_permutation(&filling);
    } else if (strcmp(name, "values") == 0) {
        fill_values(&filling);
    } else if (strcmp(name, "weights") == 0) {
        fill_weights(&filling, false);
    } else if (strcmp(name, "weights_integral") == 0) {
        fill_weights(&filling, true);
    } else if (strcmp(name, "integral") == 0) {
        i64 low = integer(&filling, 0), high = integer(&filling, 1);
        for (u64 i = 0; i < buffer->count; i++) {
            i64 value = low + random_below(&filling.random, (u32)(high - low + 1));
            store(buffer, i,
                  is_float(buffer->type) ? float_bits(buffer->type, (f64)value) : (u64)value);
        }
    } else if (strcmp(name, "rope_table") == 0) {
        fill_rope(&filling);
    } else {
        fail_at(set->path, statement->line, "unknown contents \"%s\"", name);
    }
    memset(buffer->defined, defined, buffer->bytes);
    for (u64 i = 0; i < buffer->count && used < buffer->last_dimension; i++) {
        if (i % buffer->last_dimension < used) continue;
        memset(buffer->contents + i * bytes, 255, bytes);
        memset(buffer->defined + i * bytes, 0, bytes);
    }
}
