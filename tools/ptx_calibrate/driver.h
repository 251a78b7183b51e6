// SPDX-License-Identifier: Apache-2.0
// The NVIDIA driver as the programs of this folder use it: own declarations of its entry points,
// found in libcuda.so.1 at run time, so that no toolkit is needed to build or run them. Every
// failure prints the entry point and the driver's words and ends the program with code 3: these are
// tools run by hand on a card, and a half-recorded table is worth nothing.
#pragma once
#include <stddef.h>
#include <stdint.h>

typedef int driver_result;   // CUresult; 0 is success
typedef uint64_t device_ptr; // CUdeviceptr
typedef void *driver_handle; // CUmodule, CUfunction

struct driver {
    char card[128];   // "NVIDIA H200"
    char version[64]; // of the kernel driver, "580.95.05"
    int cuda_version; // of the driver API, 13000
    int capability;   // 90
};

// Opens the driver and the first device, and makes its primary context current.
void driver_open(struct driver *driver);

// Compiles PTX (zero-terminated). The compiler's log is printed when it refuses.
driver_handle driver_module(const char *ptx);
driver_handle driver_function(driver_handle module, const char *name);

device_ptr driver_alloc(size_t bytes); // 256-byte aligned
void driver_free(device_ptr memory);
void driver_upload(device_ptr to, const void *from, size_t bytes);
void driver_download(void *to, device_ptr from, size_t bytes);

// `params` points to one pointer per parameter, in the order of the .entry.
void driver_launch(driver_handle function, const uint32_t grid[3], uint32_t block, void **params);
void driver_wait(void);

// Events of the default stream; driver_event_elapsed waits for `last` and returns milliseconds.
driver_handle driver_event_new(void);
void driver_event_record(driver_handle event);
double driver_event_elapsed(driver_handle first, driver_handle last);

// A whole file, zero-terminated; ends the program when it cannot be read.
char *file_text(const char *path);
