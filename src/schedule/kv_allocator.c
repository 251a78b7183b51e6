// SPDX-License-Identifier: Apache-2.0
// A stack of free blocks, an owner per block, a table per sequence. Every operation is a handful of
// array writes after all checks have passed, so that a failure changes nothing (K2).
#include "schedule/kv_allocator.h"
#include "freestanding/mem.h"

static_assert(SOV_MAX_SEQS < KV_BLOCK_FREE, "an owner number never means free");

static bool config_is_valid(const struct kv_config *c) {
    return c->n_layer >= 1 && c->n_layer <= 4096 && c->n_head_kv >= 1 &&
           c->n_head_kv <= SOV_MAX_HEADS && c->head_dim >= 1 && c->head_dim <= OP_HEAD_DIM_MAX &&
           c->n_sequences >= 1 && c->n_sequences <= SOV_MAX_SEQS && c->max_blocks >= 1 &&
           c->max_blocks <= KV_BLOCKS_MAX && c->n_blocks >= 1 && c->n_blocks <= KV_BLOCKS_MAX;
}

// All factors are bounded above (the product is below 2^63).
static u64 plane_bytes(const struct kv_config *c) {
    u64 page = (u64)SOV_KV_BLOCK_SIZE * c->n_head_kv * c->head_dim * sizeof(f16);
    return page * c->n_blocks * c->n_layer;
}

#define PLANE_ALIGN 64u

u64 kv_memory_bytes(const struct kv_config *c) {
    if (!config_is_valid(c)) return 0;
    u64 tables = (u64)c->n_sequences * c->max_blocks * sizeof(u32);
    u64 per_sequence = (u64)c->n_sequences * 2 * sizeof(u32);
    u64 per_block = (u64)c->n_blocks * (sizeof(u32) + sizeof(u16));
    return 2 * (plane_bytes(c) + PLANE_ALIGN) + tables + per_sequence + per_block + 64;
}

// SplitMix64: only to reorder the free list for tests.
static u64 next_random(u64 *state) {
    u64 z = *state += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

static void fill_free_stack(struct kv_allocator *kv, bool shuffle, u64 seed) {
    u32 n = kv->config.n_blocks;
    assert(n >= 1);
    for (u32 i = 0; i < n; i++) kv->free_stack[i] = n - 1 - i; // block 0 is on top
    kv->n_free = n;
    if (!shuffle) return;
    for (u32 i = n - 1; i > 0; i--) {
        u32 j = (u32)(next_random(&seed) % (i + 1));
        u32 swapped = kv->free_stack[i];
        kv->free_stack[i] = kv->free_stack[j];
        kv->free_stack[j] = swapped;
    }
}

enum sov_status kv_create(struct kv_allocator *kv, const struct kv_config *config, bool shuffle,
                          u64 shuffle_seed, struct arena *arena, struct sov_fault *fault) {
    if (!config_is_valid(config)) {
        return fault_set(fault, SOV_ERR_LIMIT,
                         "KV cache: %u layers, %u kv heads of %u, %u sequences of %u blocks, %u "
                         "blocks: out of the limits",
                         config->n_layer, config->n_head_kv, config->head_dim, config->n_sequences,
                         config->max_blocks, config->n_blocks);
    }
    *kv = (struct kv_allocator){.config = *config};
    kv->token_stride = (u64)config->n_head_kv * config->head_dim * sizeof(f16);
    kv->page_stride = kv->token_stride * SOV_KV_BLOCK_SIZE;
    kv->layer_stride = kv->page_stride * config->n_blocks;
    kv->plane_stride = kv->layer_stride * config->n_layer;
    assert(kv->plane_stride == plane_bytes(config));
    kv->k_plane = arena_alloc(arena, kv->plane_stride, PLANE_ALIGN);
    kv->v_plane = arena_alloc(arena, kv->plane_stride, PLANE_ALIGN);
    kv->tables = arena_array(arena, u32, (u64)config->n_sequences * config->max_blocks);
    kv->n_owned = arena_array(arena, u32, config->n_sequences);
    kv->lengths = arena_array(arena, u32, config->n_sequences);
    kv->free_stack = arena_array(arena, u32, config->n_blocks);
    kv->owners = arena_array(arena, u16, config->n_blocks);
    if (kv->k_plane == NULL || kv->v_plane == NULL || kv->tables == NULL || kv->n_owned == NULL ||
        kv->lengths == NULL || kv->free_stack == NULL || kv->owners == NULL) {
        return arena_fault(arena, fault, "KV cache", kv_memory_bytes(config));
    }
    memset(kv->n_owned, 0, config->n_sequences * sizeof(u32));
    memset(kv->lengths, 0, config->n_sequences * sizeof(u32));
    for (u32 i = 0; i < config->n_blocks; i++) kv->owners[i] = KV_BLOCK_FREE;
    fill_free_stack(kv, shuffle, shuffle_seed);
    kv->statistics.n_blocks = config->n_blocks;
    return SOV_OK;
}

static enum sov_status check_sequence(const struct kv_allocator *kv, u32 sequence,
                                      struct sov_fault *fault) {
    if (sequence < kv->config.n_sequences) return SOV_OK;
    return fault_set(fault, SOV_ERR_ARGUMENT, "KV: sequence %u of %u", sequence,
                     kv->config.n_sequences);
}

enum sov_status kv_allocate_blocks(struct kv_allocator *kv, u32 sequence, u32 n_tokens,
                                   struct sov_fault *fault) {
    enum sov_status status = check_sequence(kv, sequence, fault);
    if (status != SOV_OK) return status;
    u64 wanted = ((u64)n_tokens + SOV_KV_BLOCK_SIZE - 1) / SOV_KV_BLOCK_SIZE;
    u32 owned = kv->n_owned[sequence];
    if (wanted > kv->config.max_blocks) {
        return fault_set(fault, SOV_ERR_LIMIT, "KV: %u tokens need %llu blocks, a sequence has %u",
                         n_tokens, wanted, kv->config.max_blocks);
    }
    if (wanted <= owned) return SOV_OK;
    u32 missing = (u32)wanted - owned;
    if (missing > kv->n_free) {
        return fault_set(fault, SOV_ERR_KV_EXHAUSTED, "KV: %u blocks wanted, %u of %u are free",
                         missing, kv->n_free, kv->config.n_blocks);
    }
    u32 *table = kv->tables + (u64)sequence * kv->config.max_blocks;
    for (u32 i = 0; i < missing; i++) {
        u32 physical = kv->free_stack[--kv->n_free];
        assert(physical < kv->config.n_blocks && kv->owners[physical] == KV_BLOCK_FREE);
        kv->owners[physical] = (u16)sequence;
        table[owned + i] = physical;
    }
    kv->n_owned[sequence] = (u32)wanted;
    kv->statistics.n_allocated += missing;
    kv->statistics.n_used_peak = MAX(kv->statistics.n_used_peak, kv->config.n_blocks - kv->n_free);
    return SOV_OK;
}

enum sov_status kv_append_tokens(struct kv_allocator *kv, u32 sequence, u32 n_tokens,
                                 struct sov_fault *fault) {
    enum sov_status status = check_sequence(kv, sequence, fault);
    if (status != SOV_OK) return status;
    u64 length = (u64)kv->lengths[sequence] + n_tokens;
    if (length > (u64)kv->n_owned[sequence] * SOV_KV_BLOCK_SIZE) {
        return fault_set(fault, SOV_ERR_LIMIT,
                         "KV: length %llu of sequence %u is beyond its %u blocks", length, sequence,
                         kv->n_owned[sequence]);
    }
    kv->lengths[sequence] = (u32)length;
    return SOV_OK;
}

static void push_free(struct kv_allocator *kv, u32 physical) {
    assert(kv->n_free < kv->config.n_blocks);
    kv->owners[physical] = KV_BLOCK_FREE;
    kv->free_stack[kv->n_free++] = physical;
    kv->statistics.n_freed++;
}

enum sov_status kv_free_block(struct kv_allocator *kv, u32 sequence, u32 physical,
                              struct sov_fault *fault) {
    enum sov_status status = check_sequence(kv, sequence, fault);
    if (status != SOV_OK) return status;
    if (physical >= kv->config.n_blocks) {
        return fault_set(fault, SOV_ERR_ARGUMENT, "KV: block %u of %u", physical,
                         kv->config.n_blocks);
    }
    if (kv->owners[physical] != sequence) {
        return fault_set(
            fault, SOV_ERR_KV_OWNER, "KV: block %u is %s, not of sequence %u", physical,
            kv->owners[physical] == KV_BLOCK_FREE ? "free already" : "another's", sequence);
    }
    u32 last = kv->n_owned[sequence] - 1; // it owns at least this block
    if (kv->tables[(u64)sequence * kv->config.max_blocks + last] != physical ||
        kv->lengths[sequence] > last * SOV_KV_BLOCK_SIZE) {
        return fault_set(fault, SOV_ERR_STATE,
                         "KV: block %u of sequence %u is in use (%u tokens in %u blocks)", physical,
                         sequence, kv->lengths[sequence], last + 1);
    }
    kv->n_owned[sequence] = last;
    push_free(kv, physical);
    return SOV_OK;
}

enum sov_status kv_truncate(struct kv_allocator *kv, u32 sequence, u32 n_tokens,
                            struct sov_fault *fault) {
    enum sov_status status = check_sequence(kv, sequence, fault);
    if (status != SOV_OK) return status;
    if (n_tokens > kv->lengths[sequence]) {
        return fault_set(fault, SOV_ERR_ARGUMENT, "KV: sequence %u has %u tokens, not %u", sequence,
                         kv->lengths[sequence], n_tokens);
    }
    u32 n_kept = (n_tokens + SOV_KV_BLOCK_SIZE - 1) / SOV_KV_BLOCK_SIZE;
    const u32 *table = kv->tables + (u64)sequence * kv->config.max_blocks;
    for (u32 i = kv->n_owned[sequence]; i-- > n_kept;) {
        assert(kv->owners[table[i]] == sequence);
        push_free(kv, table[i]);
    }
    kv->n_owned[sequence] = n_kept;
    kv->lengths[sequence] = n_tokens;
    return SOV_OK;
}

enum sov_status kv_release(struct kv_allocator *kv, u32 sequence, struct sov_fault *fault) {
    return kv_truncate(kv, sequence, 0, fault);
}

u32 kv_length(const struct kv_allocator *kv, u32 sequence) {
    assert(sequence < kv->config.n_sequences);
    return kv->lengths[sequence];
}

struct kv_layer kv_layer_view(const struct kv_allocator *kv, u32 layer) {
    assert(layer < kv->config.n_layer);
    return (struct kv_layer){
        .k = kv->k_plane + layer * kv->layer_stride,
        .v = kv->v_plane + layer * kv->layer_stride,
        .page_stride = kv->page_stride,
        .token_stride = kv->token_stride,
        .tables = kv->tables,
        .max_blocks = kv->config.max_blocks,
    };
}

struct kv_statistics kv_statistics_of(const struct kv_allocator *kv) {
    struct kv_statistics statistics = kv->statistics;
    statistics.n_free = kv->n_free;
    return statistics;
}

void kv_assert_consistent(const struct kv_allocator *kv) {
    u32 owned = 0;
    for (u32 s = 0; s < kv->config.n_sequences; s++) {
        owned += kv->n_owned[s];
        assert(kv->n_owned[s] <= kv->config.max_blocks);
        assert(kv->lengths[s] <= kv->n_owned[s] * SOV_KV_BLOCK_SIZE);
        for (u32 i = 0; i < kv->n_owned[s]; i++) {
            u32 physical = kv->tables[(u64)s * kv->config.max_blocks + i];
            assert(physical < kv->config.n_blocks && kv->owners[physical] == s);
        }
    }
    u32 marked_free = 0;
    for (u32 i = 0; i < kv->config.n_blocks; i++) marked_free += kv->owners[i] == KV_BLOCK_FREE;
    assert(marked_free == kv->n_free);
    assert(owned + kv->n_free == kv->config.n_blocks); // with the owner checks: no block twice
    for (u32 i = 0; i < kv->n_free; i++) assert(kv->owners[kv->free_stack[i]] == KV_BLOCK_FREE);
}
