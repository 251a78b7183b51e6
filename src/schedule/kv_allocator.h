// SPDX-License-Identifier: Apache-2.0
// Blocks of the KV cache and the block table of every sequence. It owns the cache's memory layout:
// attention takes bases and strides from kv_layer_view, and no caller computes its own.
//
//   K plane, then V plane; each [layer][physical_block][token_in_block][n_head_kv * head_dim] f16
//   physical = block_table[sequence * max_blocks + token / 16]
//
// Blocks with the same history are shared: a block may stand in several tables, and one that stands
// in none may be kept for a prompt to come. An index finds blocks by the key of what is before them
// (a SHA-256 chain over all tokens since position 0, made by the caller) and by their own tokens.
//
//   free ──allocate──▶ private ──publish──▶ indexed ◀──share── ...   a table more, a reference more
//    ▲                    │                    │ last reference gone
//    └────────────────────┴──────evict◀── idle (least recently used first)
//
// K1. refs[block] is the number of table entries that name it. A block is free, idle (indexed, no
//     reference) or referenced, and free list, idle list and tables agree.
// K2. A call that fails leaves everything as it was, but for idle blocks that were evicted, and for
//     bytes that belong to nobody.
// K3. length <= 16 * n_owned of a sequence. Positions below `length` are committed.
// K4. The block that holds position `length` is written to only when it has one reference and is
//     not in the index: kv_allocate_blocks makes it so, by a copy where others read it.
// K5. The entries of a spilled sequence name spill blocks, each of which has one owner.
// K6. The planes may be memory that only a device reads (struct kv_memory). Their bytes are then
//     touched through its functions alone.
#pragma once
#include "freestanding/arena.h"
#include "ops/op.h"

#define SOV_MAX_SEQS 256
#define SOV_MAX_HEADS OP_HEADS_MAX
#define SOV_KV_BLOCK_SIZE OP_KV_BLOCK_TOKENS
#define KV_BLOCKS_MAX (1u << 20)
#define KV_NONE 0xffffffffu
#define KV_CANDIDATES_MAX 64 // blocks of one bucket that a search looks at

// Planes outside the arena. `k` and `v` are addresses of kv_plane_bytes each, 64-byte aligned, of
// which nothing is read or written here. The functions move n pieces of `bytes`: `stride` is from
// one piece to the next in a plane, `memory_stride` in the memory of the host; each returns when
// the bytes are where they belong (copy: when whatever the device does next finds them there).
struct kv_memory {
    void *context;
    u8 *k, *v;
    enum sov_status (*copy)(void *context, u8 *to, const u8 *from, u64 stride, u64 bytes, u32 n,
                            struct sov_fault *fault);
    enum sov_status (*read)(void *context, u8 *memory, u64 memory_stride, const u8 *from,
                            u64 stride, u64 bytes, u32 n, struct sov_fault *fault);
    enum sov_status (*write)(void *context, u8 *to, u64 stride, const u8 *memory, u64 memory_stride,
                             u64 bytes, u32 n, struct sov_fault *fault);
};

struct kv_config {
    u32 n_layer, n_head_kv, head_dim;
    u32 n_sequences;         // 1 to SOV_MAX_SEQS
    u32 max_blocks;          // blocks of one sequence's table
    u32 n_blocks;            // physical blocks
    u32 n_spill;             // blocks of memory beside the cache, for swapped sequences; may be 0
    bool is_outside;         // the planes are no part of the arena
    struct kv_memory memory; // of planes outside; kv_create needs it
};

struct kv_statistics {
    u32 n_blocks, n_free, n_used_peak; // n_free: to be had, the idle ones included
    u32 n_idle, n_spill_free;
    u64 n_allocated, n_freed; // since the start: references from none to one, and back
    u64 n_copied, n_evicted;
};

// Stands for the tokens of all blocks before one, and for model and profile.
struct kv_key {
    u8 bytes[32];
};

struct kv_block {
    u32 refs;
    u32 n_tokens;         // in the index with so many tokens; 0: not in the index
    u32 older, newer;     // of the idle list
    u32 next;             // of the bucket
    struct kv_key parent; // what is before
    u32 tokens[SOV_KV_BLOCK_SIZE];
};

struct kv_allocator {
    struct kv_config config;
    u8 *k_plane, *v_plane;
    u64 token_stride, page_stride, layer_stride, plane_stride; // bytes
    u32 *tables;                                               // [n_sequences, max_blocks]
    u32 *n_owned;    // [n_sequences] blocks in a sequence's table
    u32 *lengths;    // [n_sequences] committed tokens
    bool *spilled;   // [n_sequences] the table names spill blocks
    u32 *free_stack; // [n_blocks], n_free of them
    u32 n_free;
    struct kv_block *blocks;    // [n_blocks]
    u32 *buckets, n_buckets;    // heads of the index; a power of two
    u32 oldest, newest, n_idle; // blocks in the index without a reference
    u8 *spill;                  // [n_spill, spill_stride]
    u64 spill_stride;           // bytes of a block in all layers, K and V
    u32 *spill_stack, n_spill_free;
    u32 *marks; // [n_blocks] for kv_assert_consistent
    struct kv_statistics statistics;
};

// Bytes of arena that kv_create takes; 0 when the configuration is out of its limits.
u64 kv_memory_bytes(const struct kv_config *config);
// Bytes of one plane; 0 when the configuration is out of its limits.
u64 kv_plane_bytes(const struct kv_config *config);
// `shuffle`: the free list starts in an order drawn from `shuffle_seed`, to show that physical
// places do not matter; else blocks are handed out in ascending order.
enum sov_status kv_create(struct kv_allocator *kv, const struct kv_config *config, bool shuffle,
                          u64 shuffle_seed, struct arena *arena, struct sov_fault *fault)
    MUST_CHECK;

// Gives the sequence blocks until its table covers n_tokens, and makes the block in progress its
// own (K4). Evicts idle blocks where no free one is left. All or nothing.
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

u32 kv_blocks_of(u64 n_tokens); // whole blocks that hold so many tokens
// How many blocks kv_allocate_blocks would take for so many tokens, and how many there are.
u32 kv_blocks_wanted(const struct kv_allocator *kv, u32 sequence, u32 n_tokens);
u32 kv_blocks_available(const struct kv_allocator *kv);

// --- shared prefixes ---
// The indexed block behind `parent` that begins with the most of tokens[n]; returns how many (0:
// none) and stores the block.
u32 kv_find(const struct kv_allocator *kv, const struct kv_key *parent, const u32 *tokens, u32 n,
            u32 *block);
// Appends an indexed block to the table of a sequence whose length is that of its whole blocks, and
// commits the first n tokens of it.
enum sov_status kv_share(struct kv_allocator *kv, u32 sequence, u32 block, u32 n,
                         struct sov_fault *fault) MUST_CHECK;
// Enters block `block_idx` of the sequence, whose first n tokens are committed, into the index.
// What is there already stays.
void kv_publish(struct kv_allocator *kv, u32 sequence, u32 block_idx, const struct kv_key *parent,
                const u32 *tokens, u32 n);
// Frees all idle blocks.
void kv_forget_idle(struct kv_allocator *kv);

// --- swapping ---
// Copies all blocks of the sequence to spill blocks and gives them back. SOV_ERR_KV_EXHAUSTED when
// there are not enough.
enum sov_status kv_swap_out(struct kv_allocator *kv, u32 sequence, struct sov_fault *fault)
    MUST_CHECK;
// The way back.
enum sov_status kv_swap_in(struct kv_allocator *kv, u32 sequence, struct sov_fault *fault)
    MUST_CHECK;

u32 kv_length(const struct kv_allocator *kv, u32 sequence);
// K and V of a position in one layer, in bytes; and those of n positions, [n][K row, V row], which
// must be in the cache (not spilled). Only planes outside can fail.
u32 kv_row_bytes(const struct kv_allocator *kv);
enum sov_status kv_read(const struct kv_allocator *kv, u32 sequence, u32 layer, u32 begin, u32 n,
                        u8 *out, struct sov_fault *fault) MUST_CHECK;
// The K and the V row of a position, in place; false where the planes are outside.
bool kv_rows(const struct kv_allocator *kv, u32 sequence, u32 layer, u32 position, const u8 **k,
             const u8 **v);
struct kv_layer kv_layer_view(const struct kv_allocator *kv, u32 layer);
struct kv_statistics kv_statistics_of(const struct kv_allocator *kv);
// Asserts K1, K3 and K5 over everything (tests).
void kv_assert_consistent(const struct kv_allocator *kv);
