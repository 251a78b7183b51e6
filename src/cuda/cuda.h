// SPDX-License-Identifier: Apache-2.0
// The CUDA backend: executes a plan over a batch of tokens on one card. Like the CPU's it knows
// operators and buffers, and nothing of sequences, architectures or sampling.
//
// B1. The weights are the bytes of the file, copied to the card once and never changed; kernels
//     read the blocks in place.
// B2. A step is one stretch of launches in one stream, and one wait. All that changes from step to
//     step lies in memory of the card with fixed addresses, so that a stretch that was captured for
//     a batch's shape serves every batch of that shape.
// B3. A step has succeeded when the status words of every launch say so. After anything else
//     nothing of it counts: K and V of the batch's positions are then of no account, earlier ones
//     are untouched.
// B4. Called by the first thread only (C1 of cuda_driver.h).
#pragma once
#include "cuda/cuda_driver.h"
#include "freestanding/arena.h"
#include "model/graph.h"
#include "ops/op.h"

#define CUDA_BATCH_TOKENS_MAX 4096

struct cuda_config {
    const struct platform_start *start;
    struct cuda_options options;
    u32 batch_tokens; // most tokens of one forward call
    u32 logit_rows;   // most rows of one call that want logits
    u32 n_positions;  // length of the rope table
    u32 n_sequences;  // rows of the block tables, each of max_blocks
    u32 max_blocks;
    u64 kv_plane_bytes;   // of K, and of V
    bool is_tensor;       // the profile tensor (docs/contract.md, section 11), else exact
    bool has_no_graphs;   // for tests: every step is launched kernel by kernel
    const u32 *stop_word; // while it is not 0 nothing is computed; NULL: nothing stops a step
    // Called now and then while weights are copied, with bytes. NULL: nobody asks.
    void (*progress)(void *context, u64 done, u64 total);
    void *progress_context;
};

// A batch: token i of sequence slot slots[i] stands at positions[i].
struct cuda_batch {
    u32 n_tokens;
    const u32 *tokens, *positions, *slots; // [n_tokens]
    u32 n_logit_rows;
    const u32 *logit_rows; // [n_logit_rows] rows of the batch, ascending
};

// Where the KV cache of a layer lies: addresses of the card, but for `tables`, which is read here.
typedef struct kv_layer cuda_kv_view(const void *context, u32 layer);

struct cuda_memory {
    u64 arena;             // of the host, what cuda_create takes
    u64 pinned;            // of the host, of the driver's
    u64 weights, kv, rest; // of the card; `rest`: activations, rope table, block tables
};
struct cuda_memory cuda_memory_plan(const struct plan *plan, const struct cuda_config *config);

struct cuda;

// Opens the driver and the card, compiles the kernels, copies the weights. SOV_ERR_UNSUPPORTED when
// there is no driver or card, or when the model has what the kernels have not; SOV_ERR_MEMORY when
// the card has not enough memory. Nothing is kept after an error.
enum sov_status cuda_create(const struct plan *plan, const struct cuda_config *config,
                            struct arena *arena, struct cuda **cuda, struct sov_fault *fault)
    MUST_CHECK;
void cuda_destroy(struct cuda *cuda);

// Runs the plan. On success *logits points at f32 [n_logit_rows, *logit_stride] of the host, valid
// until the next call. A non-finite value is SOV_ERR_NON_FINITE naming layer and operator; a stop
// word that was set meanwhile SOV_ERR_INTERRUPTED.
enum sov_status cuda_forward(struct cuda *cuda, const struct cuda_batch *batch,
                             cuda_kv_view *kv_view, const void *kv_context, const f32 **logits,
                             u32 *logit_stride, struct sov_fault *fault) MUST_CHECK;

const struct cuda_driver *cuda_driver_of(const struct cuda *cuda);
struct cuda_statistics {
    u64 n_launches, n_graphs, n_replays; // kernels put into the stream one by one; captures
};
struct cuda_statistics cuda_statistics_of(const struct cuda *cuda);

// --- the KV planes, as struct kv_memory of schedule/kv_allocator.h wants it ---
void cuda_kv_planes(struct cuda *cuda, u8 **k, u8 **v);
enum sov_status cuda_kv_copy(void *cuda, u8 *to, const u8 *from, u64 stride, u64 bytes, u32 n,
                             struct sov_fault *fault) MUST_CHECK;
enum sov_status cuda_kv_read(void *cuda, u8 *memory, u64 memory_stride, const u8 *from, u64 stride,
                             u64 bytes, u32 n, struct sov_fault *fault) MUST_CHECK;
enum sov_status cuda_kv_write(void *cuda, u8 *to, u64 stride, const u8 *memory, u64 memory_stride,
                              u64 bytes, u32 n, struct sov_fault *fault) MUST_CHECK;
