// SPDX-License-Identifier: Apache-2.0
// A stack of free blocks, a list of idle ones, a reference count per block, a table per sequence.
// Every operation is a handful of array writes after all checks have passed, so that a failure
// changes nothing (K2).
#include "schedule/kv_allocator.h"
#include "freestanding/mem.h"

static bool config_is_valid(const struct kv_config *c) {
    return c->n_layer >= 1 && c->n_layer <= 4096 && c->n_head_kv >= 1 &&
           c->n_head_kv <= SOV_MAX_HEADS && c->head_dim >= 1 && c->head_dim <= OP_HEAD_DIM_MAX &&
           c->n_sequences >= 1 && c->n_sequences <= SOV_MAX_SEQS && c->max_blocks >= 1 &&
           c->max_blocks <= KV_BLOCKS_MAX && c->n_blocks >= 1 && c->n_blocks <= KV_BLOCKS_MAX &&
           c->n_spill <= KV_BLOCKS_MAX;
}

// All factors are bounded above (the product is below 2^63).
u64 kv_plane_bytes(const struct kv_config *c) {
    if (!config_is_valid(c)) return 0;
    u64 page = (u64)SOV_KV_BLOCK_SIZE * c->n_head_kv * c->head_dim * sizeof(f16);
    return page * c->n_blocks * c->n_layer;
}

#define PLANE_ALIGN 64u

static u32 bucket_count(const struct kv_config *c) {
    u32 n = 1;
    while (n < c->n_blocks) n *= 2;
    return n;
}

static u64 spill_stride(const struct kv_config *c) {
    return 2ull * SOV_KV_BLOCK_SIZE * c->n_head_kv * c->head_dim * sizeof(f16) * c->n_layer;
}

u64 kv_memory_bytes(const struct kv_config *c) {
    if (!config_is_valid(c)) return 0;
    u64 tables = (u64)c->n_sequences * c->max_blocks * sizeof(u32);
    u64 per_sequence = (u64)c->n_sequences * (2 * sizeof(u32) + sizeof(bool));
    u64 per_block = (u64)c->n_blocks * (2 * sizeof(u32) + sizeof(struct kv_block)) +
                    (u64)bucket_count(c) * sizeof(u32);
    u64 spill = (u64)c->n_spill * (spill_stride(c) + sizeof(u32)) + PLANE_ALIGN;
    u64 planes = c->is_outside ? 0 : 2 * (kv_plane_bytes(c) + PLANE_ALIGN);
    return planes + tables + per_sequence + per_block + spill + 64;
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
    assert(kv->plane_stride == kv_plane_bytes(config));
    if (config->is_outside) {
        kv->k_plane = config->memory.k;
        kv->v_plane = config->memory.v;
    } else {
        kv->k_plane = arena_alloc(arena, kv->plane_stride, PLANE_ALIGN);
        kv->v_plane = arena_alloc(arena, kv->plane_stride, PLANE_ALIGN);
    }
    kv->tables = arena_array(arena, u32, (u64)config->n_sequences * config->max_blocks);
    kv->n_owned = arena_array(arena, u32, config->n_sequences);
    kv->lengths = arena_array(arena, u32, config->n_sequences);
    kv->free_stack = arena_array(arena, u32, config->n_blocks);
    kv->blocks = arena_array(arena, struct kv_block, config->n_blocks);
    kv->n_buckets = bucket_count(config);
    kv->buckets = arena_array(arena, u32, kv->n_buckets);
    kv->marks = arena_array(arena, u32, config->n_blocks);
    kv->spill_stride = spill_stride(config);
    kv->spill = arena_alloc(arena, kv->spill_stride * config->n_spill, PLANE_ALIGN);
    kv->spill_stack = arena_array(arena, u32, config->n_spill);
    kv->spilled = arena_array(arena, bool, config->n_sequences);
    if (kv->k_plane == NULL || kv->v_plane == NULL || kv->tables == NULL || kv->n_owned == NULL ||
        kv->lengths == NULL || kv->free_stack == NULL || kv->blocks == NULL ||
        kv->buckets == NULL || kv->marks == NULL || kv->spill == NULL || kv->spill_stack == NULL ||
        kv->spilled == NULL) {
        return arena_fault(arena, fault, "KV cache", kv_memory_bytes(config));
    }
    memset(kv->n_owned, 0, config->n_sequences * sizeof(u32));
    memset(kv->lengths, 0, config->n_sequences * sizeof(u32));
    memset(kv->spilled, 0, config->n_sequences * sizeof(bool));
    memset(kv->blocks, 0, config->n_blocks * sizeof(struct kv_block));
    for (u32 i = 0; i < kv->n_buckets; i++) kv->buckets[i] = KV_NONE;
    kv->oldest = kv->newest = KV_NONE;
    for (u32 i = 0; i < config->n_spill; i++) kv->spill_stack[i] = config->n_spill - 1 - i;
    kv->n_spill_free = config->n_spill;
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

static u32 *table_of(const struct kv_allocator *kv, u32 sequence) {
    return kv->tables + (u64)sequence * kv->config.max_blocks;
}

u32 kv_blocks_of(u64 n_tokens) {
    return (u32)((n_tokens + SOV_KV_BLOCK_SIZE - 1) / SOV_KV_BLOCK_SIZE);
}

// --- the index and the idle list ---

static u32 bucket_of(const struct kv_allocator *kv, const struct kv_key *parent, u32 first_token) {
    u64 mixed = load_u64(parent->bytes) ^ first_token * 0x9e3779b97f4a7c15ull;
    return (u32)(mixed >> 32 ^ mixed) & (kv->n_buckets - 1);
}

static void leave_index(struct kv_allocator *kv, u32 block) {
    struct kv_block *b = &kv->blocks[block];
    assert(b->n_tokens > 0);
    u32 *link = &kv->buckets[bucket_of(kv, &b->parent, b->tokens[0])];
    while (*link != block) {
        assert(*link != KV_NONE);
        link = &kv->blocks[*link].next;
    }
    *link = b->next;
    b->n_tokens = 0;
}

static void leave_idle(struct kv_allocator *kv, u32 block) {
    struct kv_block *b = &kv->blocks[block];
    *(b->older == KV_NONE ? &kv->oldest : &kv->blocks[b->older].newer) = b->newer;
    *(b->newer == KV_NONE ? &kv->newest : &kv->blocks[b->newer].older) = b->older;
    kv->n_idle--;
}

static void become_idle(struct kv_allocator *kv, u32 block) {
    struct kv_block *b = &kv->blocks[block];
    b->older = kv->newest;
    b->newer = KV_NONE;
    *(kv->newest == KV_NONE ? &kv->oldest : &kv->blocks[kv->newest].newer) = block;
    kv->newest = block;
    kv->n_idle++;
}

static void push_free(struct kv_allocator *kv, u32 block) {
    assert(kv->n_free < kv->config.n_blocks);
    kv->free_stack[kv->n_free++] = block;
}

static void evict_oldest(struct kv_allocator *kv) {
    u32 block = kv->oldest;
    assert(block != KV_NONE && kv->blocks[block].refs == 0);
    leave_idle(kv, block);
    leave_index(kv, block);
    push_free(kv, block);
    kv->statistics.n_evicted++;
}

// A block with one reference. The caller has made sure that there is one.
static u32 take_block(struct kv_allocator *kv) {
    if (kv->n_free == 0) evict_oldest(kv);
    u32 block = kv->free_stack[--kv->n_free];
    assert(block < kv->config.n_blocks && kv->blocks[block].refs == 0 &&
           kv->blocks[block].n_tokens == 0);
    kv->blocks[block].refs = 1;
    kv->statistics.n_allocated++;
    u32 n_used = kv->config.n_blocks - kv->n_free - kv->n_idle;
    kv->statistics.n_used_peak = MAX(kv->statistics.n_used_peak, n_used);
    return block;
}

static void drop_reference(struct kv_allocator *kv, u32 block) {
    struct kv_block *b = &kv->blocks[block];
    assert(b->refs > 0);
    if (--b->refs > 0) return;
    kv->statistics.n_freed++;
    if (b->n_tokens > 0) {
        become_idle(kv, block);
    } else {
        push_free(kv, block);
    }
}

// Both planes, all layers; `tokens` of the block.
static enum sov_status copy_block(struct kv_allocator *kv, u32 to, u32 from, u32 tokens,
                                  struct sov_fault *fault) {
    u64 bytes = tokens * kv->token_stride;
    enum sov_status status = SOV_OK;
    for (u32 plane = 0; plane < 2 && status == SOV_OK; plane++) {
        u8 *base = plane == 0 ? kv->k_plane : kv->v_plane;
        u8 *dst = base + to * kv->page_stride, *src = base + from * kv->page_stride;
        if (kv->config.is_outside) {
            status = kv->config.memory.copy(kv->config.memory.context, dst, src, kv->layer_stride,
                                            bytes, kv->config.n_layer, fault);
            continue;
        }
        for (u32 layer = 0; layer < kv->config.n_layer; layer++) {
            memcpy(dst + layer * kv->layer_stride, src + layer * kv->layer_stride, bytes);
        }
    }
    if (status == SOV_OK) kv->statistics.n_copied++;
    return status;
}

// --- tables ---

// Whether the block in progress must be copied before it is written to (K4).
static bool needs_copy(const struct kv_allocator *kv, u32 sequence) {
    u32 length = kv->lengths[sequence];
    if (length % SOV_KV_BLOCK_SIZE == 0) return false;
    return kv->blocks[table_of(kv, sequence)[length / SOV_KV_BLOCK_SIZE]].refs > 1;
}

u32 kv_blocks_available(const struct kv_allocator *kv) { return kv->n_free + kv->n_idle; }

u32 kv_blocks_wanted(const struct kv_allocator *kv, u32 sequence, u32 n_tokens) {
    assert(sequence < kv->config.n_sequences);
    u32 wanted = kv_blocks_of(n_tokens), owned = kv->n_owned[sequence];
    if (n_tokens <= kv->lengths[sequence]) return 0;
    return (wanted > owned ? wanted - owned : 0) + needs_copy(kv, sequence);
}

enum sov_status kv_allocate_blocks(struct kv_allocator *kv, u32 sequence, u32 n_tokens,
                                   struct sov_fault *fault) {
    enum sov_status status = check_sequence(kv, sequence, fault);
    if (status != SOV_OK) return status;
    u32 wanted = kv_blocks_of(n_tokens), owned = kv->n_owned[sequence];
    if (wanted > kv->config.max_blocks) {
        return fault_set(fault, SOV_ERR_LIMIT, "KV: %u tokens need %u blocks, a sequence has %u",
                         n_tokens, wanted, kv->config.max_blocks);
    }
    if (kv->spilled[sequence]) {
        return fault_set(fault, SOV_ERR_STATE, "KV: sequence %u is spilled", sequence);
    }
    u32 missing = kv_blocks_wanted(kv, sequence, n_tokens);
    if (missing > kv_blocks_available(kv)) {
        return fault_set(fault, SOV_ERR_KV_EXHAUSTED, "KV: %u blocks wanted, %u of %u are free",
                         missing, kv_blocks_available(kv), kv->config.n_blocks);
    }
    u32 *table = table_of(kv, sequence), length = kv->lengths[sequence];
    u32 used = length % SOV_KV_BLOCK_SIZE;
    if (n_tokens > length && used != 0) { // K4
        u32 *last = &table[length / SOV_KV_BLOCK_SIZE];
        if (needs_copy(kv, sequence)) {
            u32 copy = take_block(kv);
            status = copy_block(kv, copy, *last, used, fault);
            if (status != SOV_OK) {
                drop_reference(kv, copy);
                return status;
            }
            drop_reference(kv, *last);
            *last = copy;
        } else if (kv->blocks[*last].n_tokens > 0) {
            leave_index(kv, *last);
        }
    }
    for (u32 i = owned; i < wanted; i++) table[i] = take_block(kv);
    kv->n_owned[sequence] = MAX(owned, wanted);
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

// The last entry of the table, be it of the cache or of the spill memory.
static void drop_last(struct kv_allocator *kv, u32 sequence) {
    u32 entry = table_of(kv, sequence)[--kv->n_owned[sequence]];
    if (kv->spilled[sequence]) {
        assert(entry < kv->config.n_spill && kv->n_spill_free < kv->config.n_spill);
        kv->spill_stack[kv->n_spill_free++] = entry;
    } else {
        drop_reference(kv, entry);
    }
}

enum sov_status kv_free_block(struct kv_allocator *kv, u32 sequence, u32 physical,
                              struct sov_fault *fault) {
    enum sov_status status = check_sequence(kv, sequence, fault);
    if (status != SOV_OK) return status;
    if (physical >= kv->config.n_blocks) {
        return fault_set(fault, SOV_ERR_ARGUMENT, "KV: block %u of %u", physical,
                         kv->config.n_blocks);
    }
    const u32 *table = table_of(kv, sequence);
    u32 n_owned = kv->spilled[sequence] ? 0 : kv->n_owned[sequence], at = 0;
    while (at < n_owned && table[at] != physical) at++;
    if (at == n_owned) {
        return fault_set(fault, SOV_ERR_KV_OWNER, "KV: block %u is %s, not of sequence %u",
                         physical, kv->blocks[physical].refs == 0 ? "free already" : "another's",
                         sequence);
    }
    if (at + 1 != n_owned || kv->lengths[sequence] > at * SOV_KV_BLOCK_SIZE) {
        return fault_set(fault, SOV_ERR_STATE,
                         "KV: block %u of sequence %u is in use (%u tokens in %u blocks)", physical,
                         sequence, kv->lengths[sequence], n_owned);
    }
    drop_last(kv, sequence);
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
    // From the last on: of idle blocks those with the longest history go first.
    while (kv->n_owned[sequence] > kv_blocks_of(n_tokens)) drop_last(kv, sequence);
    if (n_tokens == 0) kv->spilled[sequence] = false;
    kv->lengths[sequence] = n_tokens;
    return SOV_OK;
}

enum sov_status kv_release(struct kv_allocator *kv, u32 sequence, struct sov_fault *fault) {
    return kv_truncate(kv, sequence, 0, fault);
}

// --- shared prefixes ---

static u32 common_tokens(const struct kv_block *b, const u32 *tokens, u32 n) {
    u32 common = 0;
    while (common < MIN(n, b->n_tokens) && b->tokens[common] == tokens[common]) common++;
    return common;
}

u32 kv_find(const struct kv_allocator *kv, const struct kv_key *parent, const u32 *tokens, u32 n,
            u32 *block) {
    u32 best = 0;
    if (n == 0) return 0;
    u32 candidate = kv->buckets[bucket_of(kv, parent, tokens[0])];
    for (u32 i = 0; i < KV_CANDIDATES_MAX && candidate != KV_NONE; i++) {
        const struct kv_block *b = &kv->blocks[candidate];
        bool same_history = memcmp(&b->parent, parent, sizeof *parent) == 0;
        u32 common = same_history ? common_tokens(b, tokens, n) : 0;
        if (common > best) {
            best = common;
            *block = candidate;
        }
        candidate = b->next;
    }
    return best;
}

enum sov_status kv_share(struct kv_allocator *kv, u32 sequence, u32 block, u32 n,
                         struct sov_fault *fault) {
    enum sov_status status = check_sequence(kv, sequence, fault);
    if (status != SOV_OK) return status;
    u32 length = kv->lengths[sequence], owned = kv->n_owned[sequence];
    if (block >= kv->config.n_blocks || n < 1 || n > kv->blocks[block].n_tokens) {
        return fault_set(fault, SOV_ERR_ARGUMENT, "KV: %u tokens of block %u are not there", n,
                         block);
    }
    bool fits = length == owned * SOV_KV_BLOCK_SIZE && owned < kv->config.max_blocks;
    if (kv->spilled[sequence] || !fits) {
        return fault_set(fault, SOV_ERR_STATE,
                         "KV: sequence %u cannot take a shared block at %u tokens in %u blocks",
                         sequence, length, owned);
    }
    if (kv->blocks[block].refs++ == 0) {
        leave_idle(kv, block);
        kv->statistics.n_allocated++;
    }
    table_of(kv, sequence)[owned] = block;
    kv->n_owned[sequence] = owned + 1;
    kv->lengths[sequence] = length + n;
    return SOV_OK;
}

void kv_publish(struct kv_allocator *kv, u32 sequence, u32 block_idx, const struct kv_key *parent,
                const u32 *tokens, u32 n) {
    assert(sequence < kv->config.n_sequences && !kv->spilled[sequence]);
    assert(block_idx < kv->n_owned[sequence] && n >= 1 && n <= SOV_KV_BLOCK_SIZE);
    assert(kv->lengths[sequence] >= block_idx * SOV_KV_BLOCK_SIZE + n);
    u32 block = table_of(kv, sequence)[block_idx], other = 0;
    struct kv_block *b = &kv->blocks[block];
    if (b->n_tokens > 0) return;
    if (kv_find(kv, parent, tokens, n, &other) == n) return;
    b->parent = *parent;
    b->n_tokens = n;
    memcpy(b->tokens, tokens, n * sizeof(u32));
    u32 *bucket = &kv->buckets[bucket_of(kv, parent, tokens[0])];
    b->next = *bucket;
    *bucket = block;
}

void kv_forget_idle(struct kv_allocator *kv) {
    while (kv->n_idle > 0) evict_oldest(kv);
}

// --- swapping ---

// A block between the cache and the spill memory: [layer][K, V][page].
static enum sov_status move_spill(struct kv_allocator *kv, u32 block, u32 spill_block, bool out,
                                  struct sov_fault *fault) {
    u64 bytes = kv->page_stride;
    u32 n_layer = kv->config.n_layer;
    enum sov_status status = SOV_OK;
    for (u32 plane = 0; plane < 2 && status == SOV_OK; plane++) {
        u8 *page = (plane == 0 ? kv->k_plane : kv->v_plane) + block * bytes;
        u8 *spill = kv->spill + spill_block * kv->spill_stride + plane * bytes;
        if (!kv->config.is_outside) {
            for (u32 layer = 0; layer < n_layer; layer++) {
                u8 *at = page + layer * kv->layer_stride, *spilled = spill + layer * 2 * bytes;
                memcpy(out ? spilled : at, out ? at : spilled, bytes);
            }
        } else if (out) {
            status = kv->config.memory.read(kv->config.memory.context, spill, 2 * bytes, page,
                                            kv->layer_stride, bytes, n_layer, fault);
        } else {
            status = kv->config.memory.write(kv->config.memory.context, page, kv->layer_stride,
                                             spill, 2 * bytes, bytes, n_layer, fault);
        }
    }
    return status;
}

enum sov_status kv_swap_out(struct kv_allocator *kv, u32 sequence, struct sov_fault *fault) {
    enum sov_status status = check_sequence(kv, sequence, fault);
    if (status != SOV_OK) return status;
    u32 n = kv->n_owned[sequence], *table = table_of(kv, sequence);
    if (kv->spilled[sequence] || n == 0) {
        return fault_set(fault, SOV_ERR_STATE, "KV: sequence %u has nothing to spill", sequence);
    }
    if (n > kv->n_spill_free) {
        return fault_set(fault, SOV_ERR_KV_EXHAUSTED, "KV: %u spill blocks wanted, %u are free", n,
                         kv->n_spill_free);
    }
    // All bytes first: of the blocks that the loop below takes, in its order.
    for (u32 i = n; i-- > 0 && status == SOV_OK;) {
        u32 to = kv->spill_stack[kv->n_spill_free - (n - i)];
        status = move_spill(kv, table[i], to, true, fault);
    }
    if (status != SOV_OK) return status;
    for (u32 i = n; i-- > 0;) {
        u32 to = kv->spill_stack[--kv->n_spill_free];
        drop_reference(kv, table[i]);
        table[i] = to;
    }
    kv->spilled[sequence] = true;
    return SOV_OK;
}

enum sov_status kv_swap_in(struct kv_allocator *kv, u32 sequence, struct sov_fault *fault) {
    enum sov_status status = check_sequence(kv, sequence, fault);
    if (status != SOV_OK) return status;
    u32 n = kv->n_owned[sequence], *table = table_of(kv, sequence);
    if (!kv->spilled[sequence]) {
        return fault_set(fault, SOV_ERR_STATE, "KV: sequence %u is not spilled", sequence);
    }
    if (n > kv_blocks_available(kv)) {
        return fault_set(fault, SOV_ERR_KV_EXHAUSTED, "KV: %u blocks wanted, %u of %u are free", n,
                         kv_blocks_available(kv), kv->config.n_blocks);
    }
    while (kv->n_free < n) evict_oldest(kv);
    // All bytes first: into the blocks that the loop below takes, in its order.
    for (u32 i = 0; i < n && status == SOV_OK; i++) {
        status = move_spill(kv, kv->free_stack[kv->n_free - 1 - i], table[i], false, fault);
    }
    if (status != SOV_OK) return status;
    for (u32 i = 0; i < n; i++) {
        u32 to = take_block(kv);
        kv->spill_stack[kv->n_spill_free++] = table[i];
        table[i] = to;
    }
    kv->spilled[sequence] = false;
    return SOV_OK;
}

// --- looking ---

u32 kv_length(const struct kv_allocator *kv, u32 sequence) {
    assert(sequence < kv->config.n_sequences);
    return kv->lengths[sequence];
}

u32 kv_row_bytes(const struct kv_allocator *kv) { return (u32)(2 * kv->token_stride); }

bool kv_rows(const struct kv_allocator *kv, u32 sequence, u32 layer, u32 position, const u8 **k,
             const u8 **v) {
    assert(sequence < kv->config.n_sequences && layer < kv->config.n_layer);
    assert(!kv->spilled[sequence] && position < kv->n_owned[sequence] * SOV_KV_BLOCK_SIZE);
    if (kv->config.is_outside) return false;
    u64 from = layer * kv->layer_stride +
               table_of(kv, sequence)[position / SOV_KV_BLOCK_SIZE] * kv->page_stride +
               position % SOV_KV_BLOCK_SIZE * kv->token_stride;
    *k = kv->k_plane + from;
    *v = kv->v_plane + from;
    return true;
}

enum sov_status kv_read(const struct kv_allocator *kv, u32 sequence, u32 layer, u32 begin, u32 n,
                        u8 *out, struct sov_fault *fault) {
    assert(sequence < kv->config.n_sequences && layer < kv->config.n_layer);
    assert(!kv->spilled[sequence] && begin + n <= kv->n_owned[sequence] * SOV_KV_BLOCK_SIZE);
    const u32 *table = table_of(kv, sequence);
    const struct kv_memory *memory = &kv->config.memory;
    u64 row = kv->token_stride;
    for (u32 position = begin, end = begin + n; position < end;) {
        u32 inside = position % SOV_KV_BLOCK_SIZE;
        u32 n_here = MIN(end - position, SOV_KV_BLOCK_SIZE - inside);
        u64 from = layer * kv->layer_stride +
                   table[position / SOV_KV_BLOCK_SIZE] * kv->page_stride + inside * row;
        for (u32 plane = 0; plane < 2; plane++) {
            const u8 *source = (plane == 0 ? kv->k_plane : kv->v_plane) + from;
            if (kv->config.is_outside) {
                enum sov_status status = memory->read(memory->context, out + plane * row, 2 * row,
                                                      source, row, row, n_here, fault);
                if (status != SOV_OK) return status;
                continue;
            }
            for (u32 i = 0; i < n_here; i++) {
                memcpy(out + (2 * i + plane) * row, source + i * row, row);
            }
        }
        out += 2 * row * n_here;
        position += n_here;
    }
    return SOV_OK;
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
    statistics.n_free = kv_blocks_available(kv);
    statistics.n_idle = kv->n_idle;
    statistics.n_spill_free = kv->n_spill_free;
    return statistics;
}

static void count_references(const struct kv_allocator *kv, u32 *refs) {
    u32 n_spilled = 0;
    memset(refs, 0, kv->config.n_blocks * sizeof(u32));
    for (u32 s = 0; s < kv->config.n_sequences; s++) {
        assert(kv->n_owned[s] <= kv->config.max_blocks);
        assert(kv->lengths[s] <= kv->n_owned[s] * SOV_KV_BLOCK_SIZE);
        for (u32 i = 0; i < kv->n_owned[s]; i++) {
            u32 entry = table_of(kv, s)[i];
            assert(entry < (kv->spilled[s] ? kv->config.n_spill : kv->config.n_blocks));
            if (kv->spilled[s]) {
                n_spilled++;
            } else {
                refs[entry]++;
            }
        }
    }
    assert(n_spilled + kv->n_spill_free == kv->config.n_spill);
}

void kv_assert_consistent(const struct kv_allocator *kv) {
    count_references(kv, kv->marks);
    u32 n_idle = 0, n_used = 0, n_indexed = 0, n_found = 0;
    for (u32 i = 0; i < kv->config.n_blocks; i++) {
        const struct kv_block *b = &kv->blocks[i];
        assert(b->refs == kv->marks[i]);
        n_used += b->refs > 0;
        n_idle += b->refs == 0 && b->n_tokens > 0;
        n_indexed += b->n_tokens > 0;
    }
    assert(n_idle == kv->n_idle);
    assert(n_used + n_idle + kv->n_free == kv->config.n_blocks);
    for (u32 i = 0; i < kv->n_free; i++) {
        u32 *mark = &kv->marks[kv->free_stack[i]];
        assert(*mark == 0 && kv->blocks[kv->free_stack[i]].n_tokens == 0);
        *mark = 1; // a block that lies here twice fails the line above
    }
    u32 listed = 0;
    for (u32 b = kv->oldest; b != KV_NONE; b = kv->blocks[b].newer, listed++) {
        assert(kv->blocks[b].refs == 0 && kv->blocks[b].n_tokens > 0 && listed < n_idle);
    }
    assert(listed == n_idle);
    for (u32 i = 0; i < kv->n_buckets; i++) {
        for (u32 b = kv->buckets[i]; b != KV_NONE; b = kv->blocks[b].next) {
            assert(bucket_of(kv, &kv->blocks[b].parent, kv->blocks[b].tokens[0]) == i);
            n_found++; // a circle ends here
            assert(n_found <= n_indexed && kv->blocks[b].n_tokens > 0);
        }
    }
    assert(n_found == n_indexed);
}
