// SPDX-License-Identifier: Apache-2.0
// What the files of the backend share:
//
//   cuda.c           memory of the card and of the host, weights, opening and closing, KV bytes
//   cuda_step.c      one batch: what goes up, the launches, what comes down, what it says
//   gemm_dispatch.c  shapes to kernels, the books of launches
//
// Memory of the card is three allocations: the weights, the KV planes, and the rest, which is cut
// into pieces of CUDA_ALIGN. Memory of the host that the card reads or writes is pinned: the
// staging (two halves, for copies of any size) and the pieces of a step.
#pragma once
#include "cuda/cuda.h"
#include "cuda/gemm_dispatch.h"
#include "model/graph.h"

#define CUDA_ALIGN 256u
#define CUDA_STAGING_MAX (16u << 20)          // of each half: a PCIe copy of it takes a millisecond
#define CUDA_STAGING_MIN (1u << 20)           // two halves hold a KV block of the largest heads
#define CUDA_SCRATCH_BYTES_MAX (128ull << 20) // of split attention; beyond, the whole form runs
#define CUDA_KV_RUN_TOKENS 16                 // positions of struct cuda_kv_run, at most
#define CUDA_KV_ROWS_BYTES_MAX (128ull << 20) // of the rows below; larger batches have none
#define CUDA_GRAPHS_MAX 32
#define CUDA_GRAPH_TOKENS_MAX 256 // larger batches compute for so long that launching costs nothing

struct cuda_buffer {
    enum plan_storage storage;
    u32 width, stride; // elements
    cuda_address data; // f16 or f32
    struct cuda_q16 q16;
};

// All that the launches of a step depend on (Q2).
struct cuda_shape {
    u32 n_tokens, n_logit_rows;
    u32 n_chunks; // of attention, rounded up so that few shapes cover many positions
};

struct cuda_replay {
    struct cuda_shape shape;        // n_tokens 0: the entry is free
    struct cuda_graph_exec *graph;  // NULL: the shape was seen once
    struct cuda_launched *launched; // [capacity]
    u32 n_launched;
    u64 last_used;
};

// What changes from step to step, on the card and as the host fills it in.
struct cuda_inputs {
    cuda_address tokens, positions, slots, logit_rows, tables;
    u32 *host;        // [4][stride] tokens, positions, slots, logit_rows
    u32 *host_tables; // [n_sequences, max_blocks] what the card has, when tables_are_known
    u32 stride;       // elements
    bool tables_are_known;
};

// K and V of a step's rows, layer behind layer, as they were appended to the cache. They are read
// after most steps (the digests of checkpoints are over them), and lie here in one piece: n_layer
// times [n_tokens, k_stride], then the same of v_stride.
struct cuda_kv_rows {
    cuda_address card;
    u8 *host;               // a copy, when is_down
    u32 capacity;           // tokens; of a larger batch nothing is kept
    u32 k_stride, v_stride; // elements
    u32 n_tokens; // of the last step when it went well and nobody wrote to the cache since
    bool is_down;
    u32 hint;                                    // a row
    u64 layer_stride, page_stride, token_stride; // of the cache, bytes
};

// The same positions of all layers, K and then V, as they were last read from the cache: who reads
// one layer of a run of positions reads the others next, and a wait for each would take longer than
// the copies.
struct cuda_kv_run {
    u8 *host;     // [2][n_layer][CUDA_KV_RUN_TOKENS * token_stride]
    u64 off;      // in a layer of the cache, bytes
    u64 bytes;    // of one layer; 0: nothing is here
    u64 capacity; // of one layer, bytes
};

struct cuda_uploaded { // one shard of the file
    u64 begin, end;    // of the file's bytes
    cuda_address at;
};

struct cuda {
    const struct plan *plan;
    struct cuda_config config;
    struct cuda_driver driver;
    struct cuda_kernels kernels;
    struct cuda_stream *stream, *control; // `control`: writes the power word during a step
    struct cuda_event *half_free[2];      // a half of the staging was read
    // Of the card.
    cuda_address weights, kv, rest;
    struct cuda_buffer buffers[BUFFER_COUNT];
    cuda_address rope_table, rope_table_local; // one and the same without local layers
    cuda_address scratch, power, status;
    u64 scratch_bytes;
    struct cuda_uploaded *shards; // [n_shards]
    // Of the host, pinned.
    u8 *staging; // two halves of half_bytes
    u64 half_bytes;
    u8 *pinned; // the pieces below
    struct cuda_inputs inputs;
    struct cuda_kv_rows kv_rows;
    struct cuda_kv_run kv_run;
    u32 *host_status; // [2 * capacity]
    u32 *host_power;  // {CUDA_POWER_ACTIVE, 0}
    f32 *host_logits; // [logit_rows, stride]
    // Steps.
    struct cuda_launched *launched; // [capacity] of a step without a graph
    u32 capacity;                   // launches of one step, at most
    struct cuda_replay replays[CUDA_GRAPHS_MAX];
    u64 n_steps;
    bool is_awake;         // the power word of the card is CUDA_POWER_ACTIVE
    struct sov_fault lost; // what the card was lost with; SOV_OK: it is there
    struct cuda_statistics statistics;
};

// What was read of the cache is no longer what is there.
void cuda_forget_kv_read(struct cuda *cuda);
// The address of the weight's bytes on the card.
cuda_address cuda_weight_address(const struct cuda *cuda, const u8 *data);
