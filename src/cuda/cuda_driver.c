// SPDX-License-Identifier: Apache-2.0
// Opening the driver, and one short function for each call of it. Every call goes through
// cuda_check, which alone turns results into messages. See cuda_driver.h.
//
//     open      library, early entry points, version, all entry points, cuInit, device, context
//     close     context
//
// The library itself stays: a driver does not like to be unloaded.
#include "cuda/cuda_driver.h"
#include "freestanding/mem.h"
#include "freestanding/text.h"

#define RESULT_OUT_OF_MEMORY 2 // CUresult
#define RESULT_NO_DEVICE 100
#define RESULT_NOT_READY 600

#define ATTRIBUTE_MULTIPROCESSORS 16 // CUdevice_attribute
#define ATTRIBUTE_L2_BYTES 38
#define ATTRIBUTE_CAPABILITY_MAJOR 75
#define ATTRIBUTE_CAPABILITY_MINOR 76
#define ATTRIBUTE_SHARED_BYTES_MAX 97

#define STREAM_NON_BLOCKING 1
#define CAPTURE_THREAD_LOCAL 1 // calls of other threads are not our business
#define PINNED_DEVICE_MAP 2
#define JIT_ERROR_LOG 5
#define JIT_ERROR_LOG_BYTES 6
#define JIT_LOG_BYTES 4096
#define JIT_WORDS 256 // of the log that fit a fault beside the rest

struct entry_point {
    const char *name;
    u32 member_off; // in struct cuda_api
};
#define ENTRY_POINT(member, name, params) {name, offsetof(struct cuda_api, member)},
static const struct entry_point early_entries[] = {CUDA_API_EARLY_LIST(ENTRY_POINT)};
static const struct entry_point late_entries[] = {CUDA_API_LATE_LIST(ENTRY_POINT)};
#undef ENTRY_POINT
static_assert(sizeof(struct cuda_api) ==
                  sizeof(void *) * (COUNT_OF(early_entries) + COUNT_OF(late_entries)),
              "every member is one pointer and is resolved");

enum sov_status cuda_check(const struct cuda_driver *driver, cuda_result result, const char *entry,
                           const char *what, struct sov_fault *fault) {
    if (result == 0) return SOV_OK;
    const char *name = NULL, *text = NULL;
    if (driver->api.error_name(result, &name) != 0 || name == NULL) name = "an unknown error";
    if (driver->api.error_text(result, &text) != 0 || text == NULL) text = "no description";
    enum sov_status status = result == RESULT_OUT_OF_MEMORY ? SOV_ERR_MEMORY
                             : result == RESULT_NO_DEVICE   ? SOV_ERR_UNSUPPORTED
                                                            : SOV_ERR_IO;
    return fault_set(fault, status, "%s (%s): %s, %d (%s)", entry, what, name, result, text);
}

// --- open and close ---

static enum sov_status resolve(struct cuda_api *api, const struct platform_library *library,
                               const struct entry_point *entries, u32 n_entries,
                               struct sov_fault *fault) {
    for (u32 i = 0; i < n_entries; i++) {
        void *address = NULL;
        enum sov_status status = platform_library_symbol(library, entries[i].name, &address, fault);
        if (status != SOV_OK) return status;
        memcpy((u8 *)api + entries[i].member_off, &address, sizeof address);
    }
    return SOV_OK;
}

static enum sov_status open_library(struct cuda_driver *driver, const struct platform_start *start,
                                    const char *path, struct sov_fault *fault) {
    struct platform_library library = {0};
    struct sov_fault cause = {0};
    enum sov_status status = platform_library_open(start, path, &library, &cause);
    if (status == SOV_ERR_STATE) {
        return fault_set(fault, SOV_ERR_UNSUPPORTED,
                         CUDA_ABSENT "program \"sov\"; this one is static and cannot open %s",
                         path);
    }
    if (status != SOV_OK) {
        return fault_set(fault, SOV_ERR_UNSUPPORTED, CUDA_ABSENT "NVIDIA driver: %s",
                         cause.message);
    }
    status = resolve(&driver->api, &library, early_entries, COUNT_OF(early_entries), fault);
    if (status != SOV_OK) return status;
    cuda_result result = driver->api.driver_version(&driver->version);
    status = cuda_check(driver, result, "cuDriverGetVersion", path, fault);
    if (status != SOV_OK) return status;
    if (driver->version < CUDA_VERSION_MIN) {
        return fault_set(
            fault, SOV_ERR_UNSUPPORTED,
            "the NVIDIA driver is too old: it offers CUDA %d.%d, expected %d.%d (driver "
            "520) or newer",
            driver->version / 1000, driver->version % 1000 / 10, CUDA_VERSION_MIN / 1000,
            CUDA_VERSION_MIN % 1000 / 10);
    }
    return resolve(&driver->api, &library, late_entries, COUNT_OF(late_entries), fault);
}

static enum sov_status find_device(struct cuda_driver *driver, u32 device_idx,
                                   struct sov_fault *fault) {
    const struct cuda_api *api = &driver->api;
    int n_devices = 0;
    cuda_result result = api->init(0);
    enum sov_status status = SOV_OK;
    if (result != RESULT_NO_DEVICE) { // else said below
        status = cuda_check(driver, result, "cuInit", "start of the driver", fault);
        if (status != SOV_OK) return status;
        result = api->device_count(&n_devices);
        status = cuda_check(driver, result, "cuDeviceGetCount", "devices", fault);
        if (status != SOV_OK) return status;
    }
    if (n_devices <= 0) {
        return fault_set(fault, SOV_ERR_UNSUPPORTED,
                         "the NVIDIA driver is there, but it sees no CUDA device");
    }
    if (device_idx >= (u32)n_devices) {
        return fault_set(fault, SOV_ERR_ARGUMENT, "CUDA device %u: the driver sees %d, from 0 on",
                         device_idx, n_devices);
    }
    result = api->device_get(&driver->device, (int)device_idx);
    return cuda_check(driver, result, "cuDeviceGet", "device", fault);
}

static enum sov_status get_attribute(struct cuda_driver *driver, int attribute, const char *what,
                                     u32 *value, struct sov_fault *fault) {
    int found = 0;
    cuda_result result = driver->api.device_attribute(&found, attribute, driver->device);
    *value = (u32)MAX(found, 0);
    return cuda_check(driver, result, "cuDeviceGetAttribute", what, fault);
}

static enum sov_status describe_device(struct cuda_driver *driver, struct sov_fault *fault) {
    u32 major = 0, minor = 0;
    const struct {
        int attribute;
        const char *what;
        u32 *value;
    } rows[] = {
        {ATTRIBUTE_CAPABILITY_MAJOR, "compute capability", &major},
        {ATTRIBUTE_CAPABILITY_MINOR, "compute capability", &minor},
        {ATTRIBUTE_MULTIPROCESSORS, "multiprocessors", &driver->n_multiprocessors},
        {ATTRIBUTE_L2_BYTES, "size of the L2 cache", &driver->l2_bytes},
        {ATTRIBUTE_SHARED_BYTES_MAX, "shared memory of a block", &driver->shared_bytes_max},
    };
    cuda_result result =
        driver->api.device_name(driver->card, (int)sizeof driver->card, driver->device);
    driver->card[sizeof driver->card - 1] = 0;
    enum sov_status status = cuda_check(driver, result, "cuDeviceGetName", "device", fault);
    for (u32 i = 0; status == SOV_OK && i < COUNT_OF(rows); i++) {
        status = get_attribute(driver, rows[i].attribute, rows[i].what, rows[i].value, fault);
    }
    if (status != SOV_OK) return status;
    driver->capability = 10 * major + minor;
    if (driver->capability < CUDA_CAPABILITY_MIN) {
        return fault_set(fault, SOV_ERR_UNSUPPORTED,
                         "%s: compute capability %u.%u, expected %d.%d or above (Ada, Hopper, "
                         "Blackwell)",
                         driver->card, major, minor, CUDA_CAPABILITY_MIN / 10,
                         CUDA_CAPABILITY_MIN % 10);
    }
    usize bytes = 0;
    result = driver->api.device_memory(&bytes, driver->device);
    driver->memory_bytes = bytes;
    return cuda_check(driver, result, "cuDeviceTotalMem_v2", "device", fault);
}

static enum sov_status open_context(struct cuda_driver *driver, struct sov_fault *fault) {
    struct cuda_context *context = NULL;
    cuda_result result = driver->api.context_retain(&context, driver->device);
    enum sov_status status =
        cuda_check(driver, result, "cuDevicePrimaryCtxRetain", driver->card, fault);
    if (status != SOV_OK) return status;
    driver->is_open = true;
    result = driver->api.context_set(context);
    status = cuda_check(driver, result, "cuCtxSetCurrent", driver->card, fault);
    if (status != SOV_OK) cuda_driver_close(driver);
    return status;
}

enum sov_status cuda_driver_open(struct cuda_driver *driver, const struct platform_start *start,
                                 const struct cuda_options *options, struct sov_fault *fault) {
    const char *path = options->library == NULL ? CUDA_LIBRARY : options->library;
    memset(driver, 0, sizeof *driver);
    // The driver starts threads of its own here.
    u64 before = platform_signals_hold();
    enum sov_status status = open_library(driver, start, path, fault);
    if (status == SOV_OK) status = find_device(driver, options->device_idx, fault);
    if (status == SOV_OK) status = describe_device(driver, fault);
    if (status == SOV_OK) status = open_context(driver, fault);
    platform_signals_release(before);
    platform_float_control();
    return status;
}

void cuda_driver_close(struct cuda_driver *driver) {
    if (!driver->is_open) return;
    (void)driver->api.context_set(NULL);
    (void)driver->api.context_release(driver->device);
    driver->is_open = false;
}

// --- modules ---

enum sov_status cuda_module_load(const struct cuda_driver *driver, const char *name,
                                 const char *ptx, struct cuda_module **module,
                                 struct sov_fault *fault) {
    char log[JIT_LOG_BYTES] = {0};
    int options[] = {JIT_ERROR_LOG, JIT_ERROR_LOG_BYTES};
    void *values[] = {log, NULL};
    const usize log_bytes = sizeof log - 1; // a value of this option stands in the pointer's place
    memcpy(&values[1], &log_bytes, sizeof log_bytes);
    u64 before = platform_signals_hold(); // the compiler is a library, loaded now, with threads
    cuda_result result = driver->api.module_load(module, ptx, COUNT_OF(options), options, values);
    platform_signals_release(before);
    platform_float_control();
    if (result != 0) {
        *module = NULL;
        struct str words = str_from_z(log);
        if (words.len > 0) {
            return fault_set(fault, SOV_ERR_UNSUPPORTED, "cuModuleLoadDataEx (%s): error %d: %.*s",
                             name, result, (int)MIN(words.len, (usize)JIT_WORDS),
                             (const char *)words.data);
        }
    }
    return cuda_check(driver, result, "cuModuleLoadDataEx", name, fault);
}

void cuda_module_unload(const struct cuda_driver *driver, struct cuda_module *module) {
    if (module != NULL) (void)driver->api.module_unload(module);
}

enum sov_status cuda_function_find(const struct cuda_driver *driver, struct cuda_module *module,
                                   const char *name, struct cuda_function **function,
                                   struct sov_fault *fault) {
    cuda_result result = driver->api.module_function(function, module, name);
    return cuda_check(driver, result, "cuModuleGetFunction", name, fault);
}

enum sov_status cuda_function_get(const struct cuda_driver *driver, struct cuda_function *function,
                                  const char *name, enum cuda_function_attribute attribute,
                                  u32 *value, struct sov_fault *fault) {
    int found = 0;
    cuda_result result = driver->api.function_attribute(&found, (int)attribute, function);
    *value = (u32)MAX(found, 0);
    return cuda_check(driver, result, "cuFuncGetAttribute", name, fault);
}

// --- memory ---

enum sov_status cuda_memory_alloc(const struct cuda_driver *driver, u64 bytes, const char *what,
                                  cuda_address *memory, struct sov_fault *fault) {
    assert(bytes > 0);
    *memory = 0;
    cuda_result result = driver->api.memory_alloc(memory, bytes);
    if (result != RESULT_OUT_OF_MEMORY) {
        return cuda_check(driver, result, "cuMemAlloc_v2", what, fault);
    }
    usize unused = 0, all = 0;
    if (driver->api.memory_info(&unused, &all) != 0) unused = 0;
    const u64 n_free = unused;
    return fault_set(fault, SOV_ERR_MEMORY,
                     "%s: %llu bytes on the card for %s, of which %llu are free", driver->card,
                     bytes, what, n_free);
}

void cuda_memory_free(const struct cuda_driver *driver, cuda_address memory) {
    if (memory != 0) (void)driver->api.memory_free(memory);
}

enum sov_status cuda_pinned_alloc(const struct cuda_driver *driver, u64 bytes, const char *what,
                                  void **memory, cuda_address *address, struct sov_fault *fault) {
    assert(bytes > 0);
    *memory = NULL;
    cuda_result result = driver->api.pinned_alloc(memory, bytes, PINNED_DEVICE_MAP);
    enum sov_status status = cuda_check(driver, result, "cuMemHostAlloc", what, fault);
    if (status != SOV_OK || address == NULL) return status;
    result = driver->api.pinned_address(address, *memory, 0);
    status = cuda_check(driver, result, "cuMemHostGetDevicePointer_v2", what, fault);
    if (status != SOV_OK) {
        cuda_pinned_free(driver, *memory);
        *memory = NULL;
    }
    return status;
}

void cuda_pinned_free(const struct cuda_driver *driver, void *memory) {
    if (memory != NULL) (void)driver->api.pinned_free(memory);
}

enum sov_status cuda_upload(const struct cuda_driver *driver, struct cuda_stream *stream,
                            cuda_address to, const void *from, u64 bytes, const char *what,
                            struct sov_fault *fault) {
    cuda_result result = driver->api.upload(to, from, bytes, stream);
    return cuda_check(driver, result, "cuMemcpyHtoDAsync_v2", what, fault);
}

enum sov_status cuda_download(const struct cuda_driver *driver, struct cuda_stream *stream,
                              void *to, cuda_address from, u64 bytes, const char *what,
                              struct sov_fault *fault) {
    cuda_result result = driver->api.download(to, from, bytes, stream);
    return cuda_check(driver, result, "cuMemcpyDtoHAsync_v2", what, fault);
}

enum sov_status cuda_copy(const struct cuda_driver *driver, struct cuda_stream *stream,
                          cuda_address to, cuda_address from, u64 bytes, const char *what,
                          struct sov_fault *fault) {
    cuda_result result = driver->api.copy(to, from, bytes, stream);
    return cuda_check(driver, result, "cuMemcpyDtoDAsync_v2", what, fault);
}

enum sov_status cuda_fill(const struct cuda_driver *driver, struct cuda_stream *stream,
                          cuda_address memory, u8 value, u64 bytes, const char *what,
                          struct sov_fault *fault) {
    cuda_result result = driver->api.fill(memory, value, bytes, stream);
    return cuda_check(driver, result, "cuMemsetD8Async", what, fault);
}

// --- streams and events ---

enum sov_status cuda_stream_create(const struct cuda_driver *driver, struct cuda_stream **stream,
                                   struct sov_fault *fault) {
    cuda_result result = driver->api.stream_create(stream, STREAM_NON_BLOCKING);
    return cuda_check(driver, result, "cuStreamCreate", "stream", fault);
}

void cuda_stream_destroy(const struct cuda_driver *driver, struct cuda_stream *stream) {
    if (stream != NULL) (void)driver->api.stream_destroy(stream);
}

enum sov_status cuda_stream_wait(const struct cuda_driver *driver, struct cuda_stream *stream,
                                 const char *what, struct sov_fault *fault) {
    cuda_result result = driver->api.stream_wait(stream);
    return cuda_check(driver, result, "cuStreamSynchronize", what, fault);
}

enum sov_status cuda_stream_query(const struct cuda_driver *driver, struct cuda_stream *stream,
                                  const char *what, bool *is_done, struct sov_fault *fault) {
    cuda_result result = driver->api.stream_query(stream);
    *is_done = result == 0;
    if (result == RESULT_NOT_READY) return SOV_OK;
    return cuda_check(driver, result, "cuStreamQuery", what, fault);
}

enum sov_status cuda_event_create(const struct cuda_driver *driver, struct cuda_event **event,
                                  struct sov_fault *fault) {
    cuda_result result = driver->api.event_create(event, 0);
    return cuda_check(driver, result, "cuEventCreate", "event", fault);
}

void cuda_event_destroy(const struct cuda_driver *driver, struct cuda_event *event) {
    if (event != NULL) (void)driver->api.event_destroy(event);
}

enum sov_status cuda_event_record(const struct cuda_driver *driver, struct cuda_event *event,
                                  struct cuda_stream *stream, struct sov_fault *fault) {
    cuda_result result = driver->api.event_record(event, stream);
    return cuda_check(driver, result, "cuEventRecord", "event", fault);
}

enum sov_status cuda_stream_wait_event(const struct cuda_driver *driver, struct cuda_stream *stream,
                                       struct cuda_event *event, struct sov_fault *fault) {
    cuda_result result = driver->api.stream_wait_event(stream, event, 0);
    return cuda_check(driver, result, "cuStreamWaitEvent", "event", fault);
}

enum sov_status cuda_event_wait(const struct cuda_driver *driver, struct cuda_event *event,
                                struct sov_fault *fault) {
    cuda_result result = driver->api.event_wait(event);
    return cuda_check(driver, result, "cuEventSynchronize", "event", fault);
}

enum sov_status cuda_event_elapsed(const struct cuda_driver *driver, struct cuda_event *first,
                                   struct cuda_event *last, f32 *ms, struct sov_fault *fault) {
    cuda_result result = driver->api.event_wait(last);
    enum sov_status status = cuda_check(driver, result, "cuEventSynchronize", "event", fault);
    if (status != SOV_OK) return status;
    result = driver->api.event_elapsed(ms, first, last);
    return cuda_check(driver, result, "cuEventElapsedTime", "event", fault);
}

// --- graphs ---

enum sov_status cuda_capture_begin(const struct cuda_driver *driver, struct cuda_stream *stream,
                                   struct sov_fault *fault) {
    cuda_result result = driver->api.capture_begin(stream, CAPTURE_THREAD_LOCAL);
    return cuda_check(driver, result, "cuStreamBeginCapture_v2", "graph", fault);
}

// The graph that was captured is a description only, and goes when its executable form is made.
enum sov_status cuda_capture_end(const struct cuda_driver *driver, struct cuda_stream *stream,
                                 struct cuda_graph_exec **graph, struct sov_fault *fault) {
    struct cuda_graph *description = NULL;
    *graph = NULL;
    cuda_result result = driver->api.capture_end(stream, &description);
    enum sov_status status = cuda_check(driver, result, "cuStreamEndCapture", "graph", fault);
    if (status != SOV_OK) return status;
    result = driver->api.graph_instantiate(graph, description, 0);
    if (result != 0) *graph = NULL;
    (void)driver->api.graph_destroy(description);
    return cuda_check(driver, result, "cuGraphInstantiateWithFlags", "graph", fault);
}

void cuda_capture_cancel(const struct cuda_driver *driver, struct cuda_stream *stream) {
    struct cuda_graph *description = NULL;
    cuda_result result = driver->api.capture_end(stream, &description);
    if (result == 0 && description != NULL) (void)driver->api.graph_destroy(description);
}

enum sov_status cuda_graph_launch(const struct cuda_driver *driver, struct cuda_graph_exec *graph,
                                  struct cuda_stream *stream, const char *what,
                                  struct sov_fault *fault) {
    cuda_result result = driver->api.graph_launch(graph, stream);
    return cuda_check(driver, result, "cuGraphLaunch", what, fault);
}

void cuda_graph_destroy(const struct cuda_driver *driver, struct cuda_graph_exec *graph) {
    if (graph != NULL) (void)driver->api.graph_exec_destroy(graph);
}
