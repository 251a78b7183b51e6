// SPDX-License-Identifier: Apache-2.0
// Shapes to kernels. The thresholds are those of the times in docs/cuda.md (one H200).
#include "cuda/gemm_dispatch.h"

// --- the queue ---

enum sov_status cuda_queue_launch(struct cuda_queue *queue, enum cuda_kernel kernel,
                                  const u32 counts[3], u32 n_threads, void *params,
                                  usize params_bytes, struct sov_fault *fault) {
    assert(queue->n < queue->capacity);
    u32 grid[3] = {0};
    enum sov_status status = cuda_kernel_grid(kernel, counts, grid, fault);
    if (status != SOV_OK) return status;
    store_u64(params, queue->power);
    store_u64((u8 *)params + sizeof(u64), queue->status + 8ull * queue->n);
    queue->launched[queue->n++] = (struct cuda_launched){
        .kernel = kernel,
        .tag = queue->tag,
        .blocks = cuda_kernel_blocks(grid),
    };
    return cuda_kernels_launch(queue->kernels, queue->stream, kernel, counts, n_threads, params,
                               params_bytes, fault);
}

struct cuda_outcome cuda_outcome_of(const struct cuda_launched *launched, u32 n, const u32 *words) {
    struct cuda_outcome outcome = {CUDA_NO_LAUNCH, CUDA_NO_LAUNCH};
    for (u32 i = n; i-- > 0;) {
        if (words[2 * i + 1] != (u32)launched[i].blocks) outcome.first_incomplete = i;
        if (words[2 * i] != 0) outcome.first_failed = i;
    }
    return outcome;
}

// --- gemm ---

// From `few` tokens on the kernel of four, from `many` on the matrix units: eight tokens take two
// passes of the first 80 to 98 us and the second 97 to 121 (14336 x 4096), twelve take three.
// Float types have no kernel of matrix units.
struct gemm_row {
    enum cuda_kernel one, four, all;
    u32 few, many;
};
#define QUANTISED(name) \
    { CUDA_KERNEL_gemv_##name##_1, CUDA_KERNEL_gemv_##name##_4, CUDA_KERNEL_gemm_##name, 2, 9 }
#define FLOATING(name) \
    { CUDA_KERNEL_gemv_##name##_1, CUDA_KERNEL_gemv_##name##_4, CUDA_KERNEL_gemv_##name##_4, 2, 2 }
static const struct gemm_row gemm_table[DTYPE_LIMIT] = {
    [DTYPE_Q4_0] = QUANTISED(q4_0), [DTYPE_Q4_1] = QUANTISED(q4_1), [DTYPE_Q5_0] = QUANTISED(q5_0),
    [DTYPE_Q5_1] = QUANTISED(q5_1), [DTYPE_Q8_0] = QUANTISED(q8_0), [DTYPE_Q2_K] = QUANTISED(q2_k),
    [DTYPE_Q3_K] = QUANTISED(q3_k), [DTYPE_Q4_K] = QUANTISED(q4_k), [DTYPE_Q5_K] = QUANTISED(q5_k),
    [DTYPE_Q6_K] = QUANTISED(q6_k), [DTYPE_F16] = FLOATING(f16),    [DTYPE_BF16] = FLOATING(bf16),
    [DTYPE_F32] = FLOATING(f32),
};

bool cuda_gemm_has(enum dtype type) { return (u32)type < DTYPE_LIMIT && gemm_table[type].few != 0; }

enum cuda_kernel cuda_gemm_kernel(enum dtype type, u32 n_tokens) {
    assert(cuda_gemm_has(type));
    const struct gemm_row *row = &gemm_table[type];
    return n_tokens >= row->many ? row->all : n_tokens >= row->few ? row->four : row->one;
}

// Of the profile tensor: up to TENSOR_FEW tokens the kernel whose blocks have eight. At 16 it takes
// 48 to 81 us (14336 x 4096), the large one 54 to 166; each eight more cost as much again.
#define TENSOR_FEW 16
struct tensor_row {
    enum cuda_kernel few, many;
    bool is_there;
};
#define TENSOR(name) \
    { CUDA_KERNEL_gemm_tensor_##name##_8, CUDA_KERNEL_gemm_tensor_##name, true }
static const struct tensor_row tensor_table[DTYPE_LIMIT] = {
    [DTYPE_Q4_0] = TENSOR(q4_0), [DTYPE_Q4_1] = TENSOR(q4_1), [DTYPE_Q5_0] = TENSOR(q5_0),
    [DTYPE_Q5_1] = TENSOR(q5_1), [DTYPE_Q8_0] = TENSOR(q8_0), [DTYPE_Q2_K] = TENSOR(q2_k),
    [DTYPE_Q3_K] = TENSOR(q3_k), [DTYPE_Q4_K] = TENSOR(q4_k), [DTYPE_Q5_K] = TENSOR(q5_k),
    [DTYPE_Q6_K] = TENSOR(q6_k), [DTYPE_F16] = TENSOR(f16),   [DTYPE_BF16] = TENSOR(bf16),
};

bool cuda_gemm_has_tensor(enum dtype type, u32 k) {
    bool fits = dtype_table[type].quantised || k % (CUDA_TENSOR_ALIGN / sizeof(f16)) == 0;
    return (u32)type < DTYPE_LIMIT && tensor_table[type].is_there && fits;
}

enum cuda_kernel cuda_gemm_tensor_kernel(enum dtype type, u32 n_tokens) {
    const struct tensor_row *row = &tensor_table[type];
    assert(row->is_there);
    return n_tokens <= TENSOR_FEW ? row->few : row->many;
}

// The sums that a type's minimums are multiplied with; others read none.
static cuda_address sums_of(const struct cuda_gemm_args *args) {
    return args->type == DTYPE_Q2_K ? args->xq.sum16 : args->xq.sum32;
}

enum sov_status sov_cuda_gemm(struct cuda_queue *queue, const struct cuda_gemm_args *args,
                              struct sov_fault *fault) {
    if (!cuda_gemm_has(args->type)) {
        return fault_set(fault, SOV_ERR_NO_KERNEL, "no CUDA gemm kernel for type %s",
                         dtype_name(args->type));
    }
    const struct dtype_info *info = &dtype_table[args->type];
    u32 element = args->output == GEMM_TO_F16 ? sizeof(f16) : sizeof(f32);
    assert(args->k > 0 && args->k % info->block_elements == 0);
    assert(args->row_bytes <= 0xffffffffu &&
           args->row_bytes >= dtype_row_bytes(args->type, args->k));
    assert(args->weight % (info->quantised || args->type == DTYPE_F32 ? 4 : 2) == 0);
    assert(args->bias % sizeof(f32) == 0 && args->out % element == 0);
    enum cuda_kernel kernel = args->is_tensor ? cuda_gemm_tensor_kernel(args->type, args->n_tokens)
                                              : cuda_gemm_kernel(args->type, args->n_tokens);
    if (args->is_tensor) {
        assert(cuda_gemm_has_tensor(args->type, args->k));
        assert(args->weight % CUDA_TENSOR_ALIGN == 0);
    }
    const u32 counts[3] = {args->features, args->n_tokens, 1};
    if (!info->quantised || args->is_tensor) { // both take f16 activations, by one struct
        assert(args->x % 16 == 0 && args->x_stride % 8 == 0);
        struct cuda_gemv_float_params params = {
            .weight = args->weight,
            .x = args->x,
            .bias = args->bias,
            .out = args->out,
            .row_bytes = (u32)args->row_bytes,
            .k = args->k,
            .features = args->features,
            .n_tokens = args->n_tokens,
            .x_stride = args->x_stride,
            .out_stride = args->out_stride,
            .output = args->output,
        };
        return cuda_queue_launch(queue, kernel, counts, 0, &params, sizeof params, fault);
    }
    assert(args->xq.high % 16 == 0 && args->xq.low % 16 == 0 && args->xq.plane_stride % 16 == 0);
    struct cuda_gemm_params params = {
        .weight = args->weight,
        .high = args->xq.high,
        .low = args->xq.low,
        .scale = args->xq.scale,
        .sums = sums_of(args),
        .bias = args->bias,
        .out = args->out,
        .row_bytes = (u32)args->row_bytes,
        .k = args->k,
        .features = args->features,
        .n_tokens = args->n_tokens,
        .plane_stride = args->xq.plane_stride,
        .scale_stride = args->xq.scale_stride,
        .sum_stride = args->xq.sum_stride,
        .out_stride = args->out_stride,
        .output = args->output,
    };
    return cuda_queue_launch(queue, kernel, counts, 0, &params, sizeof params, fault);
}

// --- attention ---

// A block of the paged form takes the chunks of a row and head one after the other. That fills a
// card when there are so many rows and heads; below, chunks are spread over blocks of their own.
#define SPLIT_BLOCKS_BELOW 1056 // eight for each multiprocessor of an H200

u64 cuda_attention_scratch_bytes(u32 n_rows, u32 n_head, u32 n_chunks, u32 head_dim) {
    return (u64)n_rows * n_head * n_chunks * (head_dim + 2) * sizeof(f32);
}

bool cuda_attention_splits(u32 n_rows, u32 n_head, u32 n_chunks) {
    return n_chunks > 1 && (u64)n_rows * n_head < SPLIT_BLOCKS_BELOW;
}

static enum sov_status attention_whole(struct cuda_queue *queue,
                                       const struct cuda_attention_args *args,
                                       struct sov_fault *fault) {
    struct cuda_attention_params params = {
        .q = args->q,
        .cache_k = args->k,
        .cache_v = args->v,
        .tables = args->tables,
        .positions = args->positions,
        .slots = args->slots,
        .out = args->out,
        .out_stride = args->out_stride,
        .page_stride = args->page_stride,
        .token_stride = args->token_stride,
        .max_blocks = args->max_blocks,
        .n_head = args->n_head,
        .n_head_kv = args->n_head_kv,
        .head_dim = args->head_dim,
        .q_stride = args->q_stride,
        .scale = args->scale,
        .softcap = args->softcap,
        .window = args->window,
    };
    const u32 counts[3] = {args->n_rows, args->n_head, 1};
    return CUDA_QUEUE(queue, flash_attention_paged, counts, 0, &params, fault);
}

static enum sov_status attention_split(struct cuda_queue *queue,
                                       const struct cuda_attention_args *args,
                                       struct sov_fault *fault) {
    struct cuda_attention_split_params params = {
        .q = args->q,
        .cache_k = args->k,
        .cache_v = args->v,
        .tables = args->tables,
        .positions = args->positions,
        .slots = args->slots,
        .scratch = args->scratch,
        .page_stride = args->page_stride,
        .token_stride = args->token_stride,
        .max_blocks = args->max_blocks,
        .n_head = args->n_head,
        .n_head_kv = args->n_head_kv,
        .head_dim = args->head_dim,
        .q_stride = args->q_stride,
        .scale = args->scale,
        .softcap = args->softcap,
        .window = args->window,
    };
    const u32 counts[3] = {args->n_rows, args->n_head, args->n_chunks};
    enum sov_status status =
        CUDA_QUEUE(queue, flash_attention_paged_split, counts, 0, &params, fault);
    if (status != SOV_OK) return status;
    struct cuda_attention_merge_params merge = {
        .scratch = args->scratch,
        .positions = args->positions,
        .out = args->out,
        .n_chunks = args->n_chunks,
        .head_dim = args->head_dim,
        .out_stride = args->out_stride,
        .window = args->window,
    };
    const u32 rows[3] = {args->n_rows, args->n_head, 1};
    return CUDA_QUEUE(queue, flash_attention_merge, rows, 0, &merge, fault);
}

enum sov_status sov_cuda_flash_attention(struct cuda_queue *queue,
                                         const struct cuda_attention_args *args,
                                         struct sov_fault *fault) {
    if (args->head_dim % 8 != 0 || args->head_dim > OP_HEAD_DIM_MAX) {
        return fault_set(fault, SOV_ERR_UNSUPPORTED,
                         "CUDA attention takes heads of a multiple of 8 elements up to %u, not %u",
                         OP_HEAD_DIM_MAX, args->head_dim);
    }
    assert(args->n_chunks >= 1 && args->page_stride % 16 == 0 && args->token_stride % 16 == 0);
    bool splits = cuda_attention_splits(args->n_rows, args->n_head, args->n_chunks) &&
                  cuda_attention_scratch_bytes(args->n_rows, args->n_head, args->n_chunks,
                                               args->head_dim) <= args->scratch_bytes;
    return splits ? attention_split(queue, args, fault) : attention_whole(queue, args, fault);
}
