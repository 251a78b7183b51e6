// SPDX-License-Identifier: Apache-2.0
// Results of the tensor profile, which are the architecture's own: the same product in f64, how far
// a kernel may be from it (docs/contract.md), and whether a card's result is within that.
//
// A case has one result of all rows, and the same rows once more in other batches and by the other
// kernel of its type. The first is held against the f64 product, element by element; the others
// must be the same bytes as its rows.
#include "engine/conform_private.h"
#include "freestanding/math.h"
#include "freestanding/mem.h"

#define K_MAX 16384

static f64 magnitude_of(f64 x) { return x < 0 ? -x : x; }

// One weight: its value, and the magnitudes of the parts that are added in it.
struct exact_weight {
    f64 value, magnitude;
};

static struct exact_weight exact_weight(enum dtype type, const u8 *row, u32 i,
                                        struct dtype_group *group, u32 k) {
    const struct dtype_info *info = dtype_lookup(type);
    u32 e = i % DTYPE_GROUP;
    if (!info->quantised) {
        u16 bits = load_u16(row + 2 * (usize)i);
        f64 value = type == DTYPE_F16 ? f16_to_f32(bits) : bf16_to_f32(bits);
        return (struct exact_weight){value, magnitude_of(value)};
    }
    if (e == 0) {
        const u8 *blocks = row + (usize)(i / info->block_elements) * info->block_bytes;
        dtype_unpack_group(type, blocks, MIN(k - i, (u32)DTYPE_GROUP), group);
    }
    bool by_16 = type == DTYPE_Q2_K || type == DTYPE_Q3_K || type == DTYPE_Q6_K;
    u32 part = e / (by_16 ? 16 : 32);
    f64 factor = 0, minimum = 0;
    if (info->block_elements == 32) {
        factor = (f64)group->d[part];
        if (type == DTYPE_Q4_1 || type == DTYPE_Q5_1) minimum = (f64)group->m[part];
    } else {
        factor = (f64)group->d[0] * group->scale[part];
        bool has_min = type == DTYPE_Q2_K || type == DTYPE_Q4_K || type == DTYPE_Q5_K;
        if (has_min) minimum = -(f64)group->m[0] * group->min[part];
    }
    f64 product = factor * group->q[e];
    return (struct exact_weight){product + minimum, magnitude_of(product) + magnitude_of(minimum)};
}

// What a sum may lose, as a share of the sum of magnitudes: section 11 of the contract.
static f64 share_of(enum dtype type, u32 k) {
    u32 n_blocks = k / 32, n_steps = (k + 15) / 16;
    f64 eta = 18 * 0x1p-23, steps = 2, rounded = n_blocks;
    if (type == DTYPE_F16) steps = n_steps;
    if (type == DTYPE_BF16) steps = 2.0 * n_steps;
    bool once = type == DTYPE_Q4_0 || type == DTYPE_Q5_0 || type == DTYPE_Q8_0;
    if (!once) rounded *= type == DTYPE_Q2_K ? 4 : 2;
    if (!dtype_lookup(type)->quantised) rounded = 0;
    f64 products = steps * eta / (1 - steps * eta);
    f64 sums = rounded * 0x1p-24 / (1 - rounded * 0x1p-24);
    return products + sums + products * sums;
}

// What storing a number of this size may lose.
static f64 half_step(enum gemm_output output, f64 size) {
    return output == GEMM_TO_F16 ? MAX(0x1p-11 * size, 0x1p-25) : 0x1p-24 * size;
}

void conform_exact_gemm(const struct gemm_args *args, u32 features, const u8 *added, f64 *exact,
                        f64 *slack, f64 *row) {
    assert(args->k <= K_MAX && args->n_tokens > 0);
    f64 share = share_of(args->type, args->k) + 0x1p-40; // and what f64 loses
    for (u32 r = 0; r < features; r++) {
        const u8 *weight = (const u8 *)args->weight + r * args->row_bytes;
        struct dtype_group group = {0};
        for (u32 i = 0; i < args->k; i++) {
            struct exact_weight w = exact_weight(args->type, weight, i, &group, args->k);
            row[2 * (usize)i] = w.value;
            row[2 * (usize)i + 1] = w.magnitude;
        }
        for (u32 t = 0; t < args->n_tokens; t++) {
            f64 y = 0, sum = 0;
            const f16 *x = args->x + (usize)t * args->x_stride;
            for (u32 i = 0; i < args->k; i++) {
                f64 xi = (f64)f16_to_f32(x[i]);
                y += row[2 * (usize)i] * xi;
                sum += row[2 * (usize)i + 1] * magnitude_of(xi);
            }
            f64 bound = share * sum;
            if (args->bias != NULL) {
                y += (f64)load_f32((const u8 *)args->bias + 4 * (usize)r);
                bound += 0x1p-24 * (magnitude_of(y) + bound);
            }
            usize at = (usize)t * args->out_stride + r;
            if (args->output == GEMM_ADD_F32) y += (f64)load_f32(added + 4 * at);
            bound += half_step(args->output, magnitude_of(y) + bound);
            exact[(usize)t * features + r] = y;
            slack[(usize)t * features + r] = bound;
        }
    }
}

void conform_settle(const struct conform_build *b, const u8 *found, struct conform_result *result) {
    const struct conform_bounded *bounded = &b->bounded;
    const f64 *exact = (const f64 *)(const void *)(b->host + b->buffers[bounded->exact].off);
    const f64 *slack = (const f64 *)(const void *)(b->host + b->buffers[bounded->slack].off);
    u64 whole = b->buffers[bounded->out].off, element = bounded->is_f16 ? 2 : 4;
    for (u64 t = 0; t < bounded->rows; t++) {
        for (u64 r = 0; r < bounded->n; r++) {
            u64 at = whole + (t * bounded->stride + r) * element, i = t * bounded->n + r;
            f64 value = bounded->is_f16 ? (f64)f16_to_f32(load_u16(found + at))
                                        : (f64)load_f32(found + at);
            f64 loss = magnitude_of(value - exact[i]);
            if (bounded->is_f16) { // what is told of one that is outside
                store_u16(b->expected + at, f32_to_f16((f32)exact[i]));
            } else {
                store_f32(b->expected + at, (f32)exact[i]);
            }
            if (loss <= slack[i]) { // not so for a NaN
                memcpy(b->expected + at, found + at, element);
                if (loss > result->bound_share * slack[i]) result->bound_share = loss / slack[i];
            }
        }
    }
    for (u32 p = 0; p < bounded->n_parts; p++) {
        const struct conform_part *part = &bounded->parts[p];
        for (u64 t = 0; t < part->rows; t++) {
            memcpy(b->expected + b->buffers[part->buffer].off + t * bounded->stride * element,
                   found + whole + (part->first + t) * bounded->stride * element,
                   bounded->n * element);
        }
    }
}
