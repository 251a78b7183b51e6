// SPDX-License-Identifier: Apache-2.0
// The kernels of src/cuda/ptx/ as the host sees them: one row each in CUDA_KERNEL_LIST, the struct
// of their parameters, and their launch. The PTX is embedded (tools/embed_ptx.py) and compiled by
// the driver.
//
// K1. The table is that of the PTX: a kernel without a row or a row without a kernel, a parameter
//     of another name, place, width or kind, another size of the block or of its share of the grid
//     does not compile (cuda_kernels.c).
// K2. Every params struct begins with `power`, the address of the power-state word, and `status`,
//     that of two words of this launch: faults met, and blocks that have done all their stores. The
//     launch has happened when the second is cuda_kernel_blocks; it mutates nothing unless the
//     power word is CUDA_POWER_ACTIVE. Both are the caller's to clear and to read.
// K3. A launch checks its grid and block against the card's limits; what the addresses and strides
//     must be is said at the head of each kernel's source and is the caller's to keep.
#pragma once
#include "cuda/cuda_driver.h"

#define CUDA_POWER_ACTIVE 1
#define CUDA_FAULT_NOT_FINITE 1 // bit of status word 0
#define CUDA_STATUS_WORDS 2

// Parameters in the order of the .param lists. Packed, so that the size tells of a member too many;
// every member lies at a multiple of its size all the same. Addresses are the card's; strides are
// in elements, *_bytes in bytes.
#define CUDA_PARAMS __attribute__((packed, aligned(4)))

struct CUDA_PARAMS cuda_act_mul_params {
    u64 power, status, gate, up, out;
    u32 n, gate_stride, up_stride, out_stride;
};
struct CUDA_PARAMS cuda_add_params {
    u64 power, status, residual, x;
    u32 n, residual_stride, x_stride;
};
struct CUDA_PARAMS cuda_finite_params {
    u64 power, status, x;
    u32 n, x_stride;
};
struct CUDA_PARAMS cuda_embed_params {
    u64 power, status, tokens, table, residual, row_bytes;
    u32 n, residual_stride;
    f32 scale;
};
struct CUDA_PARAMS cuda_rmsnorm_params {
    u64 power, status, x, weight, y;
    u32 n, x_stride, y_stride;
    f32 eps;
};
struct CUDA_PARAMS cuda_rope_params {
    u64 power, status, x, positions, table;
    u32 x_stride, n_head, head_dim, rope_dim;
};
struct CUDA_PARAMS cuda_quantize_params {
    u64 power, status, x, a, scale, sum16, sum32;
    u32 n, x_stride, a_stride, scale_stride, sum_stride;
};
struct CUDA_PARAMS cuda_quantize_planes_params {
    u64 power, status, x, high, low, scale, sum16, sum32;
    u32 n, x_stride, plane_stride, scale_stride, sum_stride;
};
struct CUDA_PARAMS cuda_kv_append_params {
    u64 power, status, k, v, cache_k, cache_v, tables, positions, slots, page_stride, token_stride;
    u32 n, k_stride, v_stride, max_blocks;
};
struct CUDA_PARAMS cuda_attention_params {
    u64 power, status, q, cache_k, cache_v, tables, positions, slots, out;
    u32 out_stride;
    u32 gap; // none of the kernel's; the next one lies at a multiple of 8
    u64 page_stride, token_stride;
    u32 max_blocks, n_head, n_head_kv, head_dim, q_stride;
    f32 scale, softcap;
    u32 window;
};
struct CUDA_PARAMS cuda_attention_split_params {
    u64 power, status, q, cache_k, cache_v, tables, positions, slots, scratch;
    u64 page_stride, token_stride;
    u32 max_blocks, n_head, n_head_kv, head_dim, q_stride;
    f32 scale, softcap;
    u32 window;
};
struct CUDA_PARAMS cuda_attention_merge_params {
    u64 power, status, scratch, positions, out;
    u32 n_chunks, head_dim, out_stride, window;
};
struct CUDA_PARAMS cuda_gemm_params { // of quantised weights: gemm_* and gemv_*
    u64 power, status, weight, high, low, scale, sums, bias, out;
    u32 row_bytes, k, features, n_tokens, plane_stride, scale_stride, sum_stride, out_stride;
    u32 output;
};
struct CUDA_PARAMS cuda_gemv_float_params {
    u64 power, status, weight, x, bias, out;
    u32 row_bytes, k, features, n_tokens, x_stride, out_stride, output;
};

// X(module, kernel, params struct, least and most threads of a block, share of a block in x and y)
// The grid is (counts[0] / x, counts[1] / y, counts[2]), rounded up; what is counted is in the
// source's grid line: "rows, ceil(n / 512)" has counts {rows, n, 1}.
#define CUDA_KERNEL_LIST(X)                                                                \
    X(attention, kv_append, cuda_kv_append_params, 256, 256, 1, 512)                       \
    X(attention, flash_attention_paged, cuda_attention_params, 256, 256, 1, 1)             \
    X(attention, flash_attention_paged_split, cuda_attention_split_params, 256, 256, 1, 1) \
    X(attention, flash_attention_merge, cuda_attention_merge_params, 256, 256, 1, 1)       \
    X(elementwise, silu_fused, cuda_act_mul_params, 256, 256, 1, 512)                      \
    X(elementwise, gelu_tanh_fused, cuda_act_mul_params, 256, 256, 1, 512)                 \
    X(elementwise, add, cuda_add_params, 256, 256, 1, 1024)                                \
    X(elementwise, finite, cuda_finite_params, 256, 256, 1, 1024)                          \
    X(embed, embed_f32, cuda_embed_params, 256, 256, 1, 256)                               \
    X(embed, embed_f16, cuda_embed_params, 256, 256, 1, 256)                               \
    X(embed, embed_bf16, cuda_embed_params, 256, 256, 1, 256)                              \
    X(embed, embed_q4_0, cuda_embed_params, 256, 256, 1, 256)                              \
    X(embed, embed_q4_1, cuda_embed_params, 256, 256, 1, 256)                              \
    X(embed, embed_q5_0, cuda_embed_params, 256, 256, 1, 256)                              \
    X(embed, embed_q5_1, cuda_embed_params, 256, 256, 1, 256)                              \
    X(embed, embed_q8_0, cuda_embed_params, 256, 256, 1, 256)                              \
    X(embed, embed_q2_k, cuda_embed_params, 256, 256, 1, 256)                              \
    X(embed, embed_q3_k, cuda_embed_params, 256, 256, 1, 256)                              \
    X(embed, embed_q4_k, cuda_embed_params, 256, 256, 1, 256)                              \
    X(embed, embed_q5_k, cuda_embed_params, 256, 256, 1, 256)                              \
    X(embed, embed_q6_k, cuda_embed_params, 256, 256, 1, 256)                              \
    X(gemm, gemm_q4_0, cuda_gemm_params, 128, 128, 64, 32)                                 \
    X(gemm, gemm_q4_1, cuda_gemm_params, 128, 128, 64, 32)                                 \
    X(gemm, gemm_q5_0, cuda_gemm_params, 128, 128, 64, 32)                                 \
    X(gemm, gemm_q5_1, cuda_gemm_params, 128, 128, 64, 32)                                 \
    X(gemm, gemm_q8_0, cuda_gemm_params, 128, 128, 64, 32)                                 \
    X(gemm, gemm_q2_k, cuda_gemm_params, 128, 128, 64, 32)                                 \
    X(gemm, gemm_q3_k, cuda_gemm_params, 128, 128, 64, 32)                                 \
    X(gemm, gemm_q4_k, cuda_gemm_params, 128, 128, 64, 32)                                 \
    X(gemm, gemm_q5_k, cuda_gemm_params, 128, 128, 64, 32)                                 \
    X(gemm, gemm_q6_k, cuda_gemm_params, 128, 128, 64, 32)                                 \
    X(gemm_tensor, gemm_tensor_f16, cuda_gemv_float_params, 128, 128, 128, 128)            \
    X(gemm_tensor, gemm_tensor_f16_8, cuda_gemv_float_params, 32, 32, 16, 8)               \
    X(gemm_tensor, gemm_tensor_bf16, cuda_gemv_float_params, 128, 128, 128, 128)           \
    X(gemm_tensor, gemm_tensor_bf16_8, cuda_gemv_float_params, 32, 32, 16, 8)              \
    X(gemm_tensor, gemm_tensor_q4_0, cuda_gemv_float_params, 128, 128, 128, 64)            \
    X(gemm_tensor, gemm_tensor_q4_0_8, cuda_gemv_float_params, 128, 128, 16, 8)            \
    X(gemm_tensor, gemm_tensor_q4_1, cuda_gemv_float_params, 128, 128, 128, 64)            \
    X(gemm_tensor, gemm_tensor_q4_1_8, cuda_gemv_float_params, 128, 128, 16, 8)            \
    X(gemm_tensor, gemm_tensor_q5_0, cuda_gemv_float_params, 128, 128, 128, 64)            \
    X(gemm_tensor, gemm_tensor_q5_0_8, cuda_gemv_float_params, 128, 128, 16, 8)            \
    X(gemm_tensor, gemm_tensor_q5_1, cuda_gemv_float_params, 128, 128, 128, 64)            \
    X(gemm_tensor, gemm_tensor_q5_1_8, cuda_gemv_float_params, 128, 128, 16, 8)            \
    X(gemm_tensor, gemm_tensor_q8_0, cuda_gemv_float_params, 128, 128, 128, 64)            \
    X(gemm_tensor, gemm_tensor_q8_0_8, cuda_gemv_float_params, 128, 128, 16, 8)            \
    X(gemm_tensor, gemm_tensor_q2_k, cuda_gemv_float_params, 128, 128, 128, 64)            \
    X(gemm_tensor, gemm_tensor_q2_k_8, cuda_gemv_float_params, 128, 128, 16, 8)            \
    X(gemm_tensor, gemm_tensor_q3_k, cuda_gemv_float_params, 128, 128, 128, 64)            \
    X(gemm_tensor, gemm_tensor_q3_k_8, cuda_gemv_float_params, 128, 128, 16, 8)            \
    X(gemm_tensor, gemm_tensor_q4_k, cuda_gemv_float_params, 128, 128, 128, 64)            \
    X(gemm_tensor, gemm_tensor_q4_k_8, cuda_gemv_float_params, 128, 128, 16, 8)            \
    X(gemm_tensor, gemm_tensor_q5_k, cuda_gemv_float_params, 128, 128, 128, 64)            \
    X(gemm_tensor, gemm_tensor_q5_k_8, cuda_gemv_float_params, 128, 128, 16, 8)            \
    X(gemm_tensor, gemm_tensor_q6_k, cuda_gemv_float_params, 128, 128, 128, 64)            \
    X(gemm_tensor, gemm_tensor_q6_k_8, cuda_gemv_float_params, 128, 128, 16, 8)            \
    X(gemv, gemv_q4_0_1, cuda_gemm_params, 128, 128, 8, 1)                                 \
    X(gemv, gemv_q4_0_4, cuda_gemm_params, 128, 128, 8, 4)                                 \
    X(gemv, gemv_q4_1_1, cuda_gemm_params, 128, 128, 8, 1)                                 \
    X(gemv, gemv_q4_1_4, cuda_gemm_params, 64, 64, 8, 4)                                   \
    X(gemv, gemv_q5_0_1, cuda_gemm_params, 128, 128, 8, 1)                                 \
    X(gemv, gemv_q5_0_4, cuda_gemm_params, 64, 64, 8, 4)                                   \
    X(gemv, gemv_q5_1_1, cuda_gemm_params, 64, 64, 8, 1)                                   \
    X(gemv, gemv_q5_1_4, cuda_gemm_params, 64, 64, 8, 4)                                   \
    X(gemv, gemv_q8_0_1, cuda_gemm_params, 64, 64, 8, 1)                                   \
    X(gemv, gemv_q8_0_4, cuda_gemm_params, 64, 64, 8, 4)                                   \
    X(gemv, gemv_q2_k_1, cuda_gemm_params, 128, 128, 8, 1)                                 \
    X(gemv, gemv_q2_k_4, cuda_gemm_params, 128, 128, 8, 4)                                 \
    X(gemv, gemv_q3_k_1, cuda_gemm_params, 128, 128, 8, 1)                                 \
    X(gemv, gemv_q3_k_4, cuda_gemm_params, 128, 128, 8, 4)                                 \
    X(gemv, gemv_q4_k_1, cuda_gemm_params, 128, 128, 8, 1)                                 \
    X(gemv, gemv_q4_k_4, cuda_gemm_params, 128, 128, 8, 4)                                 \
    X(gemv, gemv_q5_k_1, cuda_gemm_params, 128, 128, 8, 1)                                 \
    X(gemv, gemv_q5_k_4, cuda_gemm_params, 64, 64, 8, 4)                                   \
    X(gemv, gemv_q6_k_1, cuda_gemm_params, 64, 64, 8, 1)                                   \
    X(gemv, gemv_q6_k_4, cuda_gemm_params, 64, 64, 8, 4)                                   \
    X(gemv_float, gemv_f16_1, cuda_gemv_float_params, 128, 128, 8, 1)                      \
    X(gemv_float, gemv_f16_4, cuda_gemv_float_params, 128, 128, 8, 4)                      \
    X(gemv_float, gemv_bf16_1, cuda_gemv_float_params, 128, 128, 8, 1)                     \
    X(gemv_float, gemv_bf16_4, cuda_gemv_float_params, 128, 128, 8, 4)                     \
    X(gemv_float, gemv_f32_1, cuda_gemv_float_params, 128, 128, 8, 1)                      \
    X(gemv_float, gemv_f32_4, cuda_gemv_float_params, 128, 128, 8, 4)                      \
    X(norm_rope, rmsnorm_fused, cuda_rmsnorm_params, 32, 1024, 1, 1)                       \
    X(norm_rope, rmsnorm_fused_add, cuda_rmsnorm_params, 32, 1024, 1, 1)                   \
    X(norm_rope, rmsnorm_fused_f16_add, cuda_rmsnorm_params, 32, 1024, 1, 1)               \
    X(norm_rope, rmsnorm_fused_f16, cuda_rmsnorm_params, 32, 1024, 1, 1)                   \
    X(norm_rope, rope_fused, cuda_rope_params, 128, 128, 1, 4)                             \
    X(norm_rope, rope_fused_neox, cuda_rope_params, 128, 128, 1, 4)                        \
    X(quantize, quantize_q16, cuda_quantize_params, 128, 128, 1, 1024)                     \
    X(quantize, quantize_q16_planes, cuda_quantize_planes_params, 128, 128, 1, 1024)

enum cuda_kernel {
#define CUDA_KERNEL_ENUM(module, kernel, ...) CUDA_KERNEL_##kernel,
    CUDA_KERNEL_LIST(CUDA_KERNEL_ENUM)
#undef CUDA_KERNEL_ENUM
        CUDA_KERNEL_COUNT
};

// The params struct of a kernel, for CUDA_LAUNCH.
#define CUDA_KERNEL_TYPE(module, kernel, params, ...) typedef struct params cuda_##kernel##_type;
CUDA_KERNEL_LIST(CUDA_KERNEL_TYPE)
#undef CUDA_KERNEL_TYPE

#define CUDA_MODULES_MAX 16
struct cuda_kernels {
    const struct cuda_driver *driver;
    struct cuda_module *modules[CUDA_MODULES_MAX];
    struct cuda_function *functions[CUDA_KERNEL_COUNT];
};

// Compiles all modules for the card, which takes seconds the first time and little when the driver
// has kept the result, and holds every kernel's limits against the table. `driver` must outlive it.
enum sov_status cuda_kernels_open(struct cuda_kernels *kernels, const struct cuda_driver *driver,
                                  struct sov_fault *fault) MUST_CHECK;
void cuda_kernels_close(struct cuda_kernels *kernels); // of what is zero or closed: nothing

const char *cuda_kernel_name(enum cuda_kernel kernel);
// The PTX of module `idx`, as the driver gets it, and the module's name; NULL when there is none.
const char *cuda_module_text(u32 idx, const char **name);
// What is counted becomes the grid. SOV_ERR_LIMIT when the card has no such grid, SOV_ERR_ARGUMENT
// for a count of 0.
enum sov_status cuda_kernel_grid(enum cuda_kernel kernel, const u32 counts[3], u32 grid[3],
                                 struct sov_fault *fault) MUST_CHECK;
static inline u64 cuda_kernel_blocks(const u32 grid[3]) { return (u64)grid[0] * grid[1] * grid[2]; }

// Puts a launch into the stream. `params` is the kernel's struct, read before the call returns;
// n_threads 0 means as many as the table says.
enum sov_status cuda_kernels_launch(const struct cuda_kernels *kernels, struct cuda_stream *stream,
                                    enum cuda_kernel kernel, const u32 counts[3], u32 n_threads,
                                    const void *params, usize params_bytes, struct sov_fault *fault)
    MUST_CHECK;
// The same for a kernel known by name, whose params must be a pointer to its own struct.
#define CUDA_LAUNCH(kernels, stream, kernel, counts, n_threads, params, fault)                   \
    cuda_kernels_launch(kernels, stream, CUDA_KERNEL_##kernel, counts, n_threads,                \
                        *(const cuda_##kernel##_type *[]){params}, sizeof(cuda_##kernel##_type), \
                        fault)
