// SPDX-License-Identifier: Apache-2.0
// From an operator's shapes to the kernels that compute it, and the books of their launches: which
// kernel, for how many blocks, where its status words lie. What an operator computes never depends
// on what is chosen here (docs/contract.md); the choice is one of time.
//
// Q1. A launch of a queue has happened as a whole when its second status word is `blocks` of its
//     record (K2 of cuda_kernels.h). The words of launch i are at status + 8 i.
// Q2. What is launched depends on the numbers of the arguments alone, not on what memory holds, so
//     that a captured stretch of launches may be replayed over other contents.
#pragma once
#include "cuda/cuda_kernels.h"
#include "ops/op.h"

#define CUDA_NO_LAUNCH 0xffffffffu

struct cuda_launched {
    enum cuda_kernel kernel;
    u32 tag; // of the queue at that time: the operator's number
    u64 blocks;
};

// Launches in one stream, in order.
struct cuda_queue {
    const struct cuda_kernels *kernels;
    struct cuda_stream *stream;
    cuda_address power;             // of the power-state word
    cuda_address status;            // [capacity] pairs of words, zeroed before the first launch
    struct cuda_launched *launched; // [capacity], n of them
    u32 n, capacity, tag;
};

// Puts a launch into the queue; sets power and status, the first members of `params`.
enum sov_status cuda_queue_launch(struct cuda_queue *queue, enum cuda_kernel kernel,
                                  const u32 counts[3], u32 n_threads, void *params,
                                  usize params_bytes, struct sov_fault *fault) MUST_CHECK;
// The same for a kernel known by name, whose params must be a pointer to its own struct.
#define CUDA_QUEUE(queue, kernel, counts, n_threads, params, fault)   \
    cuda_queue_launch(queue, CUDA_KERNEL_##kernel, counts, n_threads, \
                      *(cuda_##kernel##_type *[]){params}, sizeof(cuda_##kernel##_type), fault)

// What the status words [2 n] say of n launches.
struct cuda_outcome {
    u32 first_incomplete; // a launch, or CUDA_NO_LAUNCH
    u32 first_failed;     // that met a value which the contract forbids
};
struct cuda_outcome cuda_outcome_of(const struct cuda_launched *launched, u32 n, const u32 *words);

// --- gemm: operators 4, 5 and 6 ---
// f16 activations as 16-bit integers on the card: struct q16 of ops/op.h with a = 256 * high + low.
struct cuda_q16 {
    cuda_address high, low, scale, sum16, sum32;
    u32 plane_stride, scale_stride, sum_stride; // elements
};
struct cuda_gemm_args {
    cuda_address weight; // at a multiple of 4, of 2 for F16 and BF16
    u64 row_bytes;
    enum dtype type;
    u32 k, features, n_tokens;
    bool is_tensor;     // by the profile tensor: only where cuda_gemm_has_tensor
    struct cuda_q16 xq; // of quantised types, unless is_tensor
    cuda_address x;     // f16 [n_tokens, x_stride], of F16, BF16 and F32 weights and of is_tensor
    u32 x_stride;
    cuda_address bias; // f32 [features], or 0
    enum gemm_output output;
    cuda_address out; // f16 or f32 [n_tokens, out_stride]
    u32 out_stride;
};
bool cuda_gemm_has(enum dtype type);
// The kernel for so many tokens of a type that there is one for.
enum cuda_kernel cuda_gemm_kernel(enum dtype type, u32 n_tokens);
// The profile tensor: whether it multiplies rows of k elements, which must begin at multiples of
// CUDA_TENSOR_ALIGN (quantised rows: the tensor must); the rest is `exact`. What is computed does
// not depend on the kernel.
#define CUDA_TENSOR_ALIGN 16u
bool cuda_gemm_has_tensor(enum dtype type, u32 k);
enum cuda_kernel cuda_gemm_tensor_kernel(enum dtype type, u32 n_tokens);
enum sov_status sov_cuda_gemm(struct cuda_queue *queue, const struct cuda_gemm_args *args,
                              struct sov_fault *fault) MUST_CHECK;

// --- attention: operator 8 ---
struct cuda_attention_args {
    cuda_address q; // f16 [n_rows, q_stride], heads packed
    u32 q_stride, n_rows, n_head, n_head_kv, head_dim;
    cuda_address k, v;             // this layer's first physical block
    u64 page_stride, token_stride; // bytes
    cuda_address tables, positions, slots;
    u32 max_blocks;
    f32 scale, softcap; // softcap 0: none
    u32 window;         // 0: none
    cuda_address out;   // f16 [n_rows, out_stride]
    u32 out_stride;
    u32 n_chunks;         // of OP_CHUNK positions: at least those of the row that sees most
    cuda_address scratch; // of the split form, or 0
    u64 scratch_bytes;
};
// Bytes of scratch that the split form wants.
u64 cuda_attention_scratch_bytes(u32 n_rows, u32 n_head, u32 n_chunks, u32 head_dim);
// Whether the split form is to be preferred: few rows, each with several chunks.
bool cuda_attention_splits(u32 n_rows, u32 n_head, u32 n_chunks);
// SOV_ERR_UNSUPPORTED for a head_dim that the kernels do not have.
enum sov_status sov_cuda_flash_attention(struct cuda_queue *queue,
                                         const struct cuda_attention_args *args,
                                         struct sov_fault *fault) MUST_CHECK;
