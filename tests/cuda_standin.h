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
    struct standin_launch launch; // the last that was given
    u32 n_threads;                // started by the driver
    bool signals_were_held;       // in those
};

// Forgets all; NULL means a driver and a card of today. Objects must have been released.
typedef void standin_reset_function(const struct standin_config *config);
typedef const struct standin_report *standin_report_function(void);
