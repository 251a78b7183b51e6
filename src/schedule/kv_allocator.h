// SPDX-License-Identifier: Apache-2.0
// Blocks of the KV cache and the block table of every sequence. It owns the cache's memory layout:
// attention takes bases and strides from kv_layer_view, and no caller computes its own.
//
//   K plane, then V plane; each [layer][physical_block][token_in_block][n_head_kv * head_dim] f16
//   physical = block_table[sequence * max_blocks + token / 16]
//
// K1. A block is free or owned by exactly one sequence; the free list and the tables agree.
// K2. A call that fails leaves everything as it was.
// K3. length <= 16 * n_blocks of a sequence. Positions below `length` are committed.
#pragma once
#include "freestanding/arena.h"
#include "ops/op.h"

#define SOV_MAX_SEQS 256
#define SOV_MAX_HEADS OP_HEADS_MAX
#define SOV_KV_BLOCK_SIZE OP_KV_BLOCK_TOKENS
#define KV_BLOCKS_MAX (1u << 20)
#define KV_BLOCK_FREE 0xffff // owner of a free block

struct kv_config {
    u32 n_layer, n_head_kv, head_dim;
    u32 n_sequences; // 1 to SOV_MAX_SEQS
    u32 max_blocks;  // blocks of one sequence's table
    u32 n_blocks;    // physical blocks
};

struct kv_statistics {
    u32 n_blocks, n_free, n_used_peak;
    u64 n_allocated, n_freed; // since the start
};

struct kv_allocator {
    struct kv_config config;
    u8 *k_plane, *v_plane;
    u64 token_stride, page_stride, layer_stride, plane_stride; // bytes
    u32 *tables;                                               // [n_sequences, max_blocks]
    u32 *n_owned;    // [n_sequences] blocks in a sequence's table
    u32 *lengths;    // [n_sequences] committed tokens
    u32 *free_stack; // [n_blocks], n_free of them
    u16 *owners;     // [n_blocks] sequence or KV_BLOCK_FREE
    u32 n_free;
    struct kv_statistics statistics;
};

// Bytes of arena that kv_create takes; 0 when the configuration is out of its limits.
u64 kv_memory_bytes(const struct kv_config *config);
// `shuffle`: the free list starts in an order drawn from `shuffle_seed`, to show that physical
// places do not matter; else blocks are handed out in ascending order.
enum sov_status kv_create(struct kv_allocator *kv, const struct kv_config *config, bool shuffle,
                          u64 shuffle_seed, struct arena *arena, struct sov_fault *fault)
    MUST_CHECK;

// Gives the sequence blocks until its table covers n_tokens. All or nothing.
enum sov_status kv_allocate_blocks(struct kv_allocator *kv, u32 sequence, u32 n_tokens,
                                   struct sov_fault *fault) MUST_CHECK;
// Commits n more tokens: their K and V are written and will not change.
enum sov_status kv_append_tokens(struct kv_allocator *kv, u32 sequence, u32 n_tokens,
                                 struct sov_fault *fault) MUST_CHECK;
// Uncommits everything from position n_tokens on and gives back the blocks beyond it. n_tokens must
// not exceed the length.
enum sov_status kv_truncate(struct kv_allocator *kv, u32 sequence, u32 n_tokens,
                            struct sov_fault *fault) MUST_CHECK;
// Gives back one block, which must be the last of the sequence's table and hold no committed token.
// A free block or another sequence's is SOV_ERR_KV_OWNER.
enum sov_status kv_free_block(struct kv_allocator *kv, u32 sequence, u32 physical,
                              struct sov_fault *fault) MUST_CHECK;
// Gives back everything the sequence owns and sets its length to 0.
enum sov_status kv_release(struct kv_allocator *kv, u32 sequence, struct sov_fault *fault)
    MUST_CHECK;

u32 kv_length(const struct kv_allocator *kv, u32 sequence);
struct kv_layer kv_layer_view(const struct kv_allocator *kv, u32 layer);
struct kv_statistics kv_statistics_of(const struct kv_allocator *kv);
// Asserts K1 and K3 over everything (tests).
void kv_assert_consistent(const struct kv_allocator *kv);
