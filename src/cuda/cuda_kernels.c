// SPDX-License-Identifier: Apache-2.0
// The launch table, checked against the embedded PTX when this file is compiled, and the launch.
// See cuda_kernels.h. "cuda/ptx_modules.h" is made by tools/embed_ptx.py during the build and is
// included here only.
#include "cuda/cuda_kernels.h"
#include "cuda/ptx_modules.h"
#include "freestanding/mem.h"

// K1, kernel by kernel; a row without a kernel in the PTX has no PTX_CHECK_.
#define CHECK_KERNEL(module, kernel, params, threads_min, threads_max, tile_x, tile_y) \
    PTX_CHECK_##kernel(struct params, threads_max, tile_x, tile_y);                    \
    static_assert((threads_min) >= 32 && (threads_min) <= (threads_max), "whole warps");
CUDA_KERNEL_LIST(CHECK_KERNEL)
#undef CHECK_KERNEL

// A kernel of the PTX without a row has no CUDA_KERNEL_ here.
// NOLINTNEXTLINE(bugprone-macro-parentheses): a summand
#define COUNT_KERNEL(module, kernel, n_params) +((int)CUDA_KERNEL_##kernel < CUDA_KERNEL_COUNT)
static_assert(PTX_KERNEL_LIST(COUNT_KERNEL) == CUDA_KERNEL_COUNT, "one row for one kernel");
#undef COUNT_KERNEL

// --- the table ---

struct param {
    const char *name;
    u32 off, bytes;
};
#define PARAM_LIST(module, kernel, n_params) \
    static const struct param params_##kernel[n_params] = {PTX_PARAMS_##kernel};
PTX_KERNEL_LIST(PARAM_LIST)
#undef PARAM_LIST

#define PARAMS_MAX 20
#define CHECK_COUNT(module, kernel, n_params) \
    static_assert((n_params) <= PARAMS_MAX, "kernel " #kernel ": PARAMS_MAX");
PTX_KERNEL_LIST(CHECK_COUNT)
#undef CHECK_COUNT

enum module_idx {
#define MODULE_ENUM(module, bytes) MODULE_##module,
    PTX_MODULE_LIST(MODULE_ENUM)
#undef MODULE_ENUM
        MODULE_COUNT
};
static_assert(MODULE_COUNT <= CUDA_MODULES_MAX, "there is room in struct cuda_kernels");

static const struct {
    const char *name, *text;
} modules[MODULE_COUNT] = {
#define MODULE_ROW(module, bytes) [MODULE_##module] = {#module, ptx_text_##module},
    PTX_MODULE_LIST(MODULE_ROW)
#undef MODULE_ROW
};

struct kernel_row {
    const char *name;
    const struct param *params;
    u16 n_params, params_bytes, module_idx;
    u16 threads_min, threads_max, tile_x, tile_y;
};
static const struct kernel_row table[CUDA_KERNEL_COUNT] = {
#define KERNEL_ROW(module, kernel, type, min, max, x, y) \
    [CUDA_KERNEL_##kernel] = {#kernel,                   \
                              params_##kernel,           \
                              COUNT_OF(params_##kernel), \
                              sizeof(struct type),       \
                              MODULE_##module,           \
                              min,                       \
                              max,                       \
                              x,                         \
                              y},
    CUDA_KERNEL_LIST(KERNEL_ROW)
#undef KERNEL_ROW
};

const char *cuda_kernel_name(enum cuda_kernel kernel) {
    assert(kernel < CUDA_KERNEL_COUNT);
    return table[kernel].name;
}

const char *cuda_module_text(u32 idx, const char **name) {
    if (idx >= MODULE_COUNT) return NULL;
    *name = modules[idx].name;
    return modules[idx].text;
}

// --- open and close ---

static enum sov_status find_function(struct cuda_kernels *kernels, u32 kernel_idx,
                                     struct sov_fault *fault) {
    const struct kernel_row *row = &table[kernel_idx];
    struct cuda_function **function = &kernels->functions[kernel_idx];
    enum sov_status status = cuda_function_find(kernels->driver, kernels->modules[row->module_idx],
                                                row->name, function, fault);
    if (status != SOV_OK) return status;
    u32 threads_max = 0;
    status = cuda_function_get(kernels->driver, *function, row->name, CUDA_FUNCTION_THREADS_MAX,
                               &threads_max, fault);
    if (status != SOV_OK) return status;
    if (threads_max >= row->threads_max) return SOV_OK;
    return fault_set(fault, SOV_ERR_UNSUPPORTED,
                     "kernel %s: the card runs %u threads of it in a block, expected %u", row->name,
                     threads_max, row->threads_max);
}

enum sov_status cuda_kernels_open(struct cuda_kernels *kernels, const struct cuda_driver *driver,
                                  struct sov_fault *fault) {
    memset(kernels, 0, sizeof *kernels);
    kernels->driver = driver;
    enum sov_status status = SOV_OK;
    for (u32 i = 0; status == SOV_OK && i < MODULE_COUNT; i++) {
        status =
            cuda_module_load(driver, modules[i].name, modules[i].text, &kernels->modules[i], fault);
    }
    for (u32 i = 0; status == SOV_OK && i < CUDA_KERNEL_COUNT; i++) {
        status = find_function(kernels, i, fault);
    }
    if (status != SOV_OK) cuda_kernels_close(kernels);
    return status;
}

void cuda_kernels_close(struct cuda_kernels *kernels) {
    for (u32 i = 0; i < MODULE_COUNT; i++) {
        cuda_module_unload(kernels->driver, kernels->modules[i]);
    }
    memset(kernels, 0, sizeof *kernels);
}

// --- launch ---

#define GRID_X_MAX 2147483647u // of every card since compute capability 3.0
#define GRID_YZ_MAX 65535u

enum sov_status cuda_kernel_grid(enum cuda_kernel kernel, const u32 counts[3], u32 grid[3],
                                 struct sov_fault *fault) {
    assert(kernel < CUDA_KERNEL_COUNT);
    const struct kernel_row *row = &table[kernel];
    const u32 tiles[3] = {row->tile_x, row->tile_y, 1};
    for (u32 i = 0; i < 3; i++) {
        if (counts[i] == 0) {
            return fault_set(fault, SOV_ERR_ARGUMENT, "kernel %s: nothing to do in dimension %u",
                             row->name, i);
        }
        grid[i] = (counts[i] - 1) / tiles[i] + 1;
        u32 limit = i == 0 ? GRID_X_MAX : GRID_YZ_MAX;
        if (grid[i] > limit) {
            return fault_set(fault, SOV_ERR_LIMIT,
                             "kernel %s: %u blocks in dimension %u, at most %u", row->name, grid[i],
                             i, limit);
        }
    }
    return SOV_OK;
}

enum sov_status cuda_kernels_launch(const struct cuda_kernels *kernels, struct cuda_stream *stream,
                                    enum cuda_kernel kernel, const u32 counts[3], u32 n_threads,
                                    const void *params, usize params_bytes,
                                    struct sov_fault *fault) {
    u32 grid[3] = {0};
    enum sov_status status = cuda_kernel_grid(kernel, counts, grid, fault);
    if (status != SOV_OK) return status;
    const struct kernel_row *row = &table[kernel];
    assert(params_bytes == row->params_bytes);
    if (n_threads == 0) n_threads = row->threads_max;
    assert(n_threads >= row->threads_min && n_threads <= row->threads_max && n_threads % 32 == 0);
    // The driver takes one pointer for each parameter, and copies what they point to.
    u8 values[PARAMS_MAX * sizeof(u64)];
    void *pointers[PARAMS_MAX] = {0};
    memcpy(values, params, params_bytes);
    for (u32 i = 0; i < row->n_params; i++) pointers[i] = values + row->params[i].off;
    cuda_result result = kernels->driver->api.launch(kernels->functions[kernel], grid[0], grid[1],
                                                     grid[2], n_threads, 1, 1, 0, stream, pointers,
                                                     NULL);
    return cuda_check(kernels->driver, result, "cuLaunchKernel", row->name, fault);
}
