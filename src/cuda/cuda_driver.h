// SPDX-License-Identifier: Apache-2.0
// The NVIDIA driver: own declarations of the entry points that this project uses, found in
// libcuda.so.1 at run time, and calls of them with messages. No toolkit, no header and no runtime
// library of NVIDIA's is needed to build or to run.
//
// C1. Called by the first thread only (P5 of platform.h).
// C2. Every failing call fills the fault with the entry point, what it was for, and the driver's
//     own name and words for the error. CUDA_ERROR_OUT_OF_MEMORY is SOV_ERR_MEMORY; what a driver
//     or card lacks is SOV_ERR_UNSUPPORTED; all else is SOV_ERR_IO.
// C3. Whatever a call here makes is undone by one function, which cannot fail: an error of the
//     driver during release is that of earlier work, and has been or will be reported by a wait.
// C4. Copies, fills and launches are in the order of their stream and may be in progress when the
//     call returns; memory of the host that takes part is pinned and stays until cuda_stream_wait.
#pragma once
#include "platform/platform.h"

#define CUDA_LIBRARY "libcuda.so.1"
#define CUDA_VERSION_MIN 11080 // of the driver API: the first that compiles PTX 7.8 and knows sm_89
#define CUDA_CAPABILITY_MIN 89 // 8.9: what the kernels are written for
#define CUDA_NAME_BYTES 128

typedef int cuda_result;  // CUresult, 0 is success
typedef int cuda_device;  // CUdevice
typedef u64 cuda_address; // CUdeviceptr

struct cuda_context;
struct cuda_module;
struct cuda_function;
struct cuda_stream;
struct cuda_event;
struct cuda_graph;
struct cuda_graph_exec;

// X(member, exported name, parameters). The suffix is the version of the declaration: without _v2
// some of these names are forms of CUDA 3 with 32-bit addresses. CUDA_API_EARLY_LIST holds what is
// needed to say that a driver is too old, and is there since CUDA 6.
#define CUDA_API_EARLY_LIST(X)                                      \
    X(driver_version, "cuDriverGetVersion", (int *version))         \
    X(error_name, "cuGetErrorName", (cuda_result, const char **))   \
    X(error_text, "cuGetErrorString", (cuda_result, const char **)) \
    X(init, "cuInit", (u32 flags))

#define CUDA_API_LATE_LIST(X)                                                                    \
    X(device_count, "cuDeviceGetCount", (int *count))                                            \
    X(device_get, "cuDeviceGet", (cuda_device *, int ordinal))                                   \
    X(device_name, "cuDeviceGetName", (char *name, int bytes, cuda_device))                      \
    X(device_attribute, "cuDeviceGetAttribute", (int *value, int attribute, cuda_device))        \
    X(device_memory, "cuDeviceTotalMem_v2", (usize * bytes, cuda_device))                        \
    X(context_retain, "cuDevicePrimaryCtxRetain", (struct cuda_context **, cuda_device))         \
    X(context_release, "cuDevicePrimaryCtxRelease_v2", (cuda_device))                            \
    X(context_set, "cuCtxSetCurrent", (struct cuda_context *))                                   \
    X(context_wait, "cuCtxSynchronize", (void))                                                  \
    X(memory_info, "cuMemGetInfo_v2", (usize * unused, usize * all))                             \
    X(module_load, "cuModuleLoadDataEx",                                                         \
      (struct cuda_module **, const void *image, u32 n_options, int *options, void **values))    \
    X(module_unload, "cuModuleUnload", (struct cuda_module *))                                   \
    X(module_function, "cuModuleGetFunction",                                                    \
      (struct cuda_function **, struct cuda_module *, const char *name))                         \
    X(function_attribute, "cuFuncGetAttribute",                                                  \
      (int *value, int attribute, struct cuda_function *))                                       \
    X(memory_alloc, "cuMemAlloc_v2", (cuda_address *, usize bytes))                              \
    X(memory_free, "cuMemFree_v2", (cuda_address))                                               \
    X(pinned_alloc, "cuMemHostAlloc", (void **, usize bytes, u32 flags))                         \
    X(pinned_free, "cuMemFreeHost", (void *))                                                    \
    X(pinned_address, "cuMemHostGetDevicePointer_v2", (cuda_address *, void *, u32 flags))       \
    X(upload, "cuMemcpyHtoDAsync_v2",                                                            \
      (cuda_address to, const void *from, usize bytes, struct cuda_stream *))                    \
    X(download, "cuMemcpyDtoHAsync_v2",                                                          \
      (void *to, cuda_address from, usize bytes, struct cuda_stream *))                          \
    X(copy, "cuMemcpyDtoDAsync_v2",                                                              \
      (cuda_address to, cuda_address from, usize bytes, struct cuda_stream *))                   \
    X(fill, "cuMemsetD8Async", (cuda_address, u8 value, usize bytes, struct cuda_stream *))      \
    X(stream_create, "cuStreamCreate", (struct cuda_stream **, u32 flags))                       \
    X(stream_destroy, "cuStreamDestroy_v2", (struct cuda_stream *))                              \
    X(stream_wait, "cuStreamSynchronize", (struct cuda_stream *))                                \
    X(stream_query, "cuStreamQuery", (struct cuda_stream *))                                     \
    X(stream_wait_event, "cuStreamWaitEvent",                                                    \
      (struct cuda_stream *, struct cuda_event *, u32 flags))                                    \
    X(event_create, "cuEventCreate", (struct cuda_event **, u32 flags))                          \
    X(event_destroy, "cuEventDestroy_v2", (struct cuda_event *))                                 \
    X(event_record, "cuEventRecord", (struct cuda_event *, struct cuda_stream *))                \
    X(event_wait, "cuEventSynchronize", (struct cuda_event *))                                   \
    X(event_elapsed, "cuEventElapsedTime", (f32 * ms, struct cuda_event *, struct cuda_event *)) \
    X(capture_begin, "cuStreamBeginCapture_v2", (struct cuda_stream *, int mode))                \
    X(capture_end, "cuStreamEndCapture", (struct cuda_stream *, struct cuda_graph **))           \
    X(graph_instantiate, "cuGraphInstantiateWithFlags",                                          \
      (struct cuda_graph_exec **, struct cuda_graph *, u64 flags))                               \
    X(graph_launch, "cuGraphLaunch", (struct cuda_graph_exec *, struct cuda_stream *))           \
    X(graph_exec_destroy, "cuGraphExecDestroy", (struct cuda_graph_exec *))                      \
    X(graph_destroy, "cuGraphDestroy", (struct cuda_graph *))                                    \
    X(launch, "cuLaunchKernel",                                                                  \
      (struct cuda_function *, u32 grid_x, u32 grid_y, u32 grid_z, u32 block_x, u32 block_y,     \
       u32 block_z, u32 shared_bytes, struct cuda_stream *, void **params, void **extra))

struct cuda_api {
// NOLINTNEXTLINE(bugprone-macro-parentheses): a declaration is made of the arguments
#define CUDA_API_MEMBER(member, name, params) cuda_result(*member) params;
    CUDA_API_EARLY_LIST(CUDA_API_MEMBER)
    CUDA_API_LATE_LIST(CUDA_API_MEMBER)
#undef CUDA_API_MEMBER
};

// How the fault of a program or a machine without the driver begins, where CUDA is not expected.
#define CUDA_ABSENT "CUDA needs the "

struct cuda_options {
    const char *library; // NULL: CUDA_LIBRARY, where the loader looks for libraries
    u32 device_idx;      // in the driver's order
};

struct cuda_driver {
    struct cuda_api api;
    cuda_device device;
    bool is_open;
    int version;    // of the driver API, 12040 is 12.4
    u32 capability; // 89 is 8.9
    u32 n_multiprocessors;
    u32 l2_bytes, shared_bytes_max; // of a block that opts in
    u64 memory_bytes;
    char card[CUDA_NAME_BYTES]; // "NVIDIA L4", zero-terminated
};

// Finds the driver and the card, and makes the card's primary context current. SOV_ERR_UNSUPPORTED,
// with what is missing: a program that opens libraries, a driver, one that is new enough, a card,
// one of compute capability 8.9 or above. Nothing is kept after an error.
enum sov_status cuda_driver_open(struct cuda_driver *driver, const struct platform_start *start,
                                 const struct cuda_options *options, struct sov_fault *fault)
    MUST_CHECK;
void cuda_driver_close(struct cuda_driver *driver); // of a driver that is not open: nothing

// SOV_OK, or the fault of C2. `what` says what the call was for ("weights").
enum sov_status cuda_check(const struct cuda_driver *driver, cuda_result result, const char *entry,
                           const char *what, struct sov_fault *fault) MUST_CHECK;

// --- modules ---
// Compiles PTX (zero-terminated) for the card; a refusal carries the compiler's first words.
enum sov_status cuda_module_load(const struct cuda_driver *driver, const char *name,
                                 const char *ptx, struct cuda_module **module,
                                 struct sov_fault *fault) MUST_CHECK;
void cuda_module_unload(const struct cuda_driver *driver, struct cuda_module *module);

enum cuda_function_attribute { // CUfunction_attribute
    CUDA_FUNCTION_THREADS_MAX = 0,
    CUDA_FUNCTION_SHARED_BYTES = 1,
    CUDA_FUNCTION_LOCAL_BYTES = 3, // spilled by the driver's compiler, of a thread
    CUDA_FUNCTION_REGISTERS = 4,
};
enum sov_status cuda_function_find(const struct cuda_driver *driver, struct cuda_module *module,
                                   const char *name, struct cuda_function **function,
                                   struct sov_fault *fault) MUST_CHECK;
enum sov_status cuda_function_get(const struct cuda_driver *driver, struct cuda_function *function,
                                  const char *name, enum cuda_function_attribute attribute,
                                  u32 *value, struct sov_fault *fault) MUST_CHECK;

// --- memory ---
// On the card; not zeroed, 256-byte aligned. `bytes` is above 0. Address 0 may be freed.
enum sov_status cuda_memory_alloc(const struct cuda_driver *driver, u64 bytes, const char *what,
                                  cuda_address *memory, struct sov_fault *fault) MUST_CHECK;
void cuda_memory_free(const struct cuda_driver *driver, cuda_address memory);
// On the host, pinned, and visible to the card at *address (which may be NULL when nobody asks).
enum sov_status cuda_pinned_alloc(const struct cuda_driver *driver, u64 bytes, const char *what,
                                  void **memory, cuda_address *address, struct sov_fault *fault)
    MUST_CHECK;
void cuda_pinned_free(const struct cuda_driver *driver, void *memory);
enum sov_status cuda_upload(const struct cuda_driver *driver, struct cuda_stream *stream,
                            cuda_address to, const void *from, u64 bytes, const char *what,
                            struct sov_fault *fault) MUST_CHECK;
enum sov_status cuda_download(const struct cuda_driver *driver, struct cuda_stream *stream,
                              void *to, cuda_address from, u64 bytes, const char *what,
                              struct sov_fault *fault) MUST_CHECK;
enum sov_status cuda_copy(const struct cuda_driver *driver, struct cuda_stream *stream,
                          cuda_address to, cuda_address from, u64 bytes, const char *what,
                          struct sov_fault *fault) MUST_CHECK;
enum sov_status cuda_fill(const struct cuda_driver *driver, struct cuda_stream *stream,
                          cuda_address memory, u8 value, u64 bytes, const char *what,
                          struct sov_fault *fault) MUST_CHECK;

// --- streams and events ---
// A stream that does not wait for the default one.
enum sov_status cuda_stream_create(const struct cuda_driver *driver, struct cuda_stream **stream,
                                   struct sov_fault *fault) MUST_CHECK;
void cuda_stream_destroy(const struct cuda_driver *driver, struct cuda_stream *stream);
// Until all that is in the stream is done. Errors of the card during that work appear here.
enum sov_status cuda_stream_wait(const struct cuda_driver *driver, struct cuda_stream *stream,
                                 const char *what, struct sov_fault *fault) MUST_CHECK;
// Whether all that is in the stream is done, without waiting; errors as above.
enum sov_status cuda_stream_query(const struct cuda_driver *driver, struct cuda_stream *stream,
                                  const char *what, bool *is_done, struct sov_fault *fault)
    MUST_CHECK;
enum sov_status cuda_event_create(const struct cuda_driver *driver, struct cuda_event **event,
                                  struct sov_fault *fault) MUST_CHECK;
void cuda_event_destroy(const struct cuda_driver *driver, struct cuda_event *event);
enum sov_status cuda_event_record(const struct cuda_driver *driver, struct cuda_event *event,
                                  struct cuda_stream *stream, struct sov_fault *fault) MUST_CHECK;
// The stream goes on when the event, recorded in another stream, has come.
enum sov_status cuda_stream_wait_event(const struct cuda_driver *driver, struct cuda_stream *stream,
                                       struct cuda_event *event, struct sov_fault *fault)
    MUST_CHECK;
enum sov_status cuda_event_wait(const struct cuda_driver *driver, struct cuda_event *event,
                                struct sov_fault *fault) MUST_CHECK;
// Waits for `last`.
enum sov_status cuda_event_elapsed(const struct cuda_driver *driver, struct cuda_event *first,
                                   struct cuda_event *last, f32 *ms, struct sov_fault *fault)
    MUST_CHECK;

// --- graphs ---
// From begin to end nothing put into the stream runs; it becomes the graph. After an error between
// the two, cuda_capture_cancel takes the stream out of it.
enum sov_status cuda_capture_begin(const struct cuda_driver *driver, struct cuda_stream *stream,
                                   struct sov_fault *fault) MUST_CHECK;
enum sov_status cuda_capture_end(const struct cuda_driver *driver, struct cuda_stream *stream,
                                 struct cuda_graph_exec **graph, struct sov_fault *fault)
    MUST_CHECK;
void cuda_capture_cancel(const struct cuda_driver *driver, struct cuda_stream *stream);
enum sov_status cuda_graph_launch(const struct cuda_driver *driver, struct cuda_graph_exec *graph,
                                  struct cuda_stream *stream, const char *what,
                                  struct sov_fault *fault) MUST_CHECK;
void cuda_graph_destroy(const struct cuda_driver *driver, struct cuda_graph_exec *graph);
