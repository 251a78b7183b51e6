// SPDX-License-Identifier: Apache-2.0
// What a test tells the stand-in for libcuda.so.1 and what it learns from it (cuda_standin.c). A
// test finds the two functions by platform_library_symbol.
#pragma once
#include "freestanding/types.h"

#define STANDIN_PARAMS_MAX 24

struct standin_config {
    int version, n_devices, major, minor; // of the driver API; of the compute capability
    int threads_max;                      // that a function runs in a block
    u64 memory_bytes;                     // of the card
    u32 fail_call;                        // this call fails, counted from 1; 0: none
    int fail_result;                      // with this
    bool is_sticky;                       // and so do all after it, as with a lost device
    bool refuses_ptx;
    bool executes;  // kernels compute, by the reference operators; else launches are recorded only
    bool is_fast;   // by those of the CPU's AVX2 level
    u32 deferred;   // 0: what is put into a stream is done at once. Else at waits, and so many
                    // actions at each cuStreamQuery
    u32 *stop_word; // is set to 1 when so many launches have been executed
    u32 stop_at_launch;
};

struct standin_launch {
    char kernel[64];
    u32 grid[3], block[3], shared_bytes, n_params;
    u64 params[STANDIN_PARAMS_MAX], param_bytes[STANDIN_PARAMS_MAX];
};

struct standin_report {
    u32 n_calls;                  // of entry points that can fail
    u32 n_live;                   // what was made and not released
    u32 n_misuses;                // handles that are none, ranges outside of memory
    char misuse[128];             // the first
    char failed_entry[64];        // the entry point of the call that failed first
    u32 n_launches;               // executed: not those of a graph that was not launched
    u32 n_graph_launches;         // cuGraphLaunch
    struct standin_launch launch; // the last that was given
    u32 n_threads;                // started by the driver
    bool signals_were_held;       // in those
};

// Forgets all; NULL means a driver and a card of today. Objects must have been released.
typedef void standin_reset_function(const struct standin_config *config);
typedef const struct standin_report *standin_report_function(void);

// --- between cuda_standin.c and cuda_standin_kernels.c ---
// The host's memory behind a range of the card's; NULL, after a note of it, when the range is not
// in one allocation.
void *standin_memory(u64 address, u64 bytes);
// Executes a launch. `params` is the kernel's struct of cuda_kernels.h. False when it read or wrote
// what is no memory, or is a kernel that is not known.
bool standin_execute(const struct standin_launch *launch, const void *params, bool is_fast);
