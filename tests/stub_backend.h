// SPDX-License-Identifier: Apache-2.0
// A backend that is cheap and unforgiving. The "K and V" of a position are a hash of the tokens up
// to it, chained through the cache: the hash of position p is made of the one that is found at
// p - 1, read through the block table from every plane and layer. So a block that was lost, mixed
// up, copied too short or written by someone else changes every logit after it.
#pragma once
#include "engine/engine.h"
#include "tiny_model.h"

struct stub {
    const struct model *model;
    f32 logits[SOV_MAX_SEQS][TINY_VOCAB];
    u64 n_calls, n_rows;
    bool poisonous; // some histories give values that are not finite
};

static inline u64 stub_mix(u64 a, u64 b) {
    u64 z = (a ^ b * 0x9e3779b97f4a7c15) + 0x632be59bd9b4e019;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

static inline u8 *stub_cell(const struct kv_layer *kv, u32 plane, u32 slot, u32 position) {
    u32 block = kv->tables[(u64)slot * kv->max_blocks + position / SOV_KV_BLOCK_SIZE];
    return (plane == 0 ? kv->k : kv->v) + block * kv->page_stride +
           position % SOV_KV_BLOCK_SIZE * kv->token_stride;
}

// The hash at a position: all planes and layers must agree, else it is another one.
static inline u64 stub_read(const struct kv_layer *layers, u32 n_layer, u32 slot, u32 position) {
    u64 first = load_u64(stub_cell(&layers[0], 0, slot, position));
    for (u32 i = 1; i < 2 * n_layer; i++) {
        u64 found = load_u64(stub_cell(&layers[i / 2], i % 2, slot, position));
        if (found != stub_mix(first, i)) first = stub_mix(first, found);
    }
    return first;
}

#define STUB_POISON 499 // one history in so many

static inline enum sov_status stub_forward(void *context, const struct cpu_batch *batch,
                                           cpu_kv_view *kv_view, const void *kv_context,
                                           const f32 **logits, u32 *logit_stride,
                                           struct sov_fault *fault) {
    struct stub *stub = context;
    struct kv_layer layers[TINY_LAYERS];
    u32 n_logits = 0;
    stub->n_calls++;
    stub->n_rows += batch->n_tokens;
    for (u32 i = 0; i < TINY_LAYERS; i++) layers[i] = kv_view(kv_context, i);
    for (u32 row = 0; row < batch->n_tokens; row++) {
        u32 slot = batch->slots[row], position = batch->positions[row];
        u64 before = position == 0 ? 1 : stub_read(layers, TINY_LAYERS, slot, position - 1);
        u64 hash = stub_mix(stub_mix(before, batch->tokens[row]), position);
        store_u64(stub_cell(&layers[0], 0, slot, position), hash);
        for (u32 i = 1; i < 2 * TINY_LAYERS; i++) {
            store_u64(stub_cell(&layers[i / 2], i % 2, slot, position), stub_mix(hash, i));
        }
        if (stub->poisonous && hash % STUB_POISON == 0) {
            return fault_set(fault, SOV_ERR_NON_FINITE, "poison at position %u", position);
        }
        if (n_logits == batch->n_logit_rows || batch->logit_rows[n_logits] != row) continue;
        f32 *out = stub->logits[n_logits++];
        for (u32 v = 0; v < TINY_VOCAB; v++) {
            out[v] = (f32)(stub_mix(hash, v + 100) >> 40) * 0x1p-21f; // 0 to 8
        }
        for (u32 v = TINY_LETTERS; v < TINY_VOCAB; v++) out[v] -= 7; // ends are rare
    }
    *logits = stub->logits[0];
    *logit_stride = TINY_VOCAB;
    return SOV_OK;
}

static inline struct engine_backend stub_backend(struct stub *stub) {
    return (struct engine_backend){.context = stub, .forward = stub_forward};
}
