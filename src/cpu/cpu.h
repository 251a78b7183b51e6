// SPDX-License-Identifier: Apache-2.0
// The CPU backend: executes a plan over a batch of tokens with a team of workers. It knows
// operators and buffers; it knows nothing of sequences, architectures or sampling.
#pragma once
#include "cpu/pool.h"
#include "freestanding/arena.h"
#include "model/graph.h"
#include "ops/op.h"

#define CPU_BATCH_TOKENS_MAX 4096

struct cpu_config {
    u32 n_workers;    // 1 to POOL_WORKERS_MAX
    bool is_pinned;   // each worker to a CPU of its own
    u32 batch_tokens; // most tokens of one forward call
    u32 logit_rows;   // most rows of one call that want logits
    u32 n_positions;  // length of the rope table
    const struct op_table *kernels;
};

// A batch: token i of sequence slot slots[i] stands at positions[i]. Rows of one sequence are
// neighbours in ascending, consecutive positions. Positions before the first are in the KV cache.
struct cpu_batch {
    u32 n_tokens;
    const u32 *tokens, *positions, *slots; // [n_tokens]
    u32 n_logit_rows;
    const u32 *logit_rows; // [n_logit_rows] rows of the batch, ascending
};

// Where the KV cache of a layer lies; `context` is the allocator, unknown to the backend.
typedef struct kv_layer cpu_kv_view(const void *context, u32 layer);

struct cpu;

u64 cpu_memory_bytes(const struct plan *plan, const struct cpu_config *config);
// Starts the workers. SOV_ERR_NO_KERNEL when the plan needs an operator or type that the table
// lacks. Everything lives in `arena`.
enum sov_status cpu_create(const struct plan *plan, const struct cpu_config *config,
                           struct arena *arena, struct cpu **cpu, struct sov_fault *fault)
    MUST_CHECK;
void cpu_destroy(struct cpu *cpu);

// Runs the plan. On success *logits points at f32 [n_logit_rows, *logit_stride], valid until the
// next call. A non-finite value is SOV_ERR_NON_FINITE naming layer and operator; K and V of the
// batch's positions are then of no account, earlier ones are untouched.
enum sov_status cpu_forward(struct cpu *cpu, const struct cpu_batch *batch, cpu_kv_view *kv_view,
                            const void *kv_context, const f32 **logits, u32 *logit_stride,
                            struct sov_fault *fault) MUST_CHECK;

// While *word is not 0, nothing is written: operators look at it before they begin, and a forward
// call during which it was set gives SOV_ERR_INTERRUPTED. The power may go at any moment.
void cpu_set_stop_word(struct cpu *cpu, const u32 *word);

// A tap for traces and tests: called after every operator, on worker 0 alone while the others wait.
// The op tells the buffer (op->dst); `row` 0 starts at `data`, rows are `stride` elements apart.
typedef void cpu_tap(void *context, const struct plan_op *op, enum plan_storage storage,
                     const void *data, u32 n_rows, u32 width, u32 stride);
void cpu_set_tap(struct cpu *cpu, cpu_tap *tap, void *context);
