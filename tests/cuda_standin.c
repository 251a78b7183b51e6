// SPDX-License-Identifier: Apache-2.0
// A stand-in for NVIDIA's libcuda.so.1: it keeps books on every object, copies bytes for real,
// records launches, and can fail any call by its number. When it is told so it executes launches by
// the CPU's operators (cuda_standin_kernels.c), and does what is in a stream as late as it may.
// What it does on purpose because the real one may: it uses libc (malloc, errno, threads, vector
// registers on an aligned stack), its cuInit leaves flush-to-zero on, and addresses of the card are
// none of the host's.
//
// A call that releases something releases it even when it is told to fail: so do drivers that
// report an earlier error at that point.
//
// With STANDIN_OLD it lacks cuGraphInstantiateWithFlags. The environment may set STANDIN_VERSION,
// STANDIN_DEVICES, STANDIN_CAPABILITY, STANDIN_MEMORY (MiB), STANDIN_EXECUTE (1: by the reference
// operators, 2: by AVX2's), STANDIN_DEFERRED, STANDIN_FAIL (the call that fails, and all after it)
// and STANDIN_PLANT (a kernel that computes wrongly, see cuda_standin_kernels.c) for tests that
// only see a program's output.
#include "cuda_standin.h"
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

enum kind { CONTEXT, MODULE, FUNCTION, STREAM, EVENT, GRAPH, GRAPH_EXEC, MEMORY, PINNED };
enum {
    OK = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_PTX = 218,
    NOT_FOUND = 500,
    NOT_READY = 600,
    ILLEGAL_ADDRESS = 700
};

// Added to where memory of the card lies in the host: a pointer made of it is none.
#define CARD_BIAS 0x5a0000000000ull
#define MEMORY_ALIGN 256

// What is put into a stream.
enum action_kind { COPY, FILL, LAUNCH, RECORD, WAIT_EVENT };
struct action {
    enum action_kind kind;
    u64 to, from; // addresses
    size_t bytes;
    u8 value;
    struct object *event;
    struct standin_launch launch;
    struct action *next;
};
struct actions {
    struct action *first, *last;
};

struct object {
    enum kind kind;
    bool is_live;
    size_t bytes;            // of memory
    void *memory;            // or the text of a module
    struct object *parent;   // of a function
    struct actions actions;  // of a graph; of a stream, what is not done yet
    struct actions captured; // of a stream that is being captured
    bool is_capturing;
    struct object *stream;          // of an event that is not reached yet
    int result;                     // of a stream: the first action that failed
    struct standin_launch declared; // of a function: name, parameters and their sizes
    struct object *next;
};

static const struct standin_config today = {
    .version = 12040,
    .n_devices = 2,
    .major = 9,
    .minor = 0,
    .threads_max = 1024,
    .memory_bytes = 1 << 20,
    .fail_result = 719,
};
static struct standin_config config;
static struct standin_report report;
static struct object *objects;
static u64 used_bytes;
static bool is_ready;

EXPORT standin_reset_function standin_reset;
EXPORT standin_report_function standin_report;

static int number_of(const char *variable, int otherwise) {
    const char *text = getenv(variable);
    return text == NULL ? otherwise : atoi(text);
}

static void free_actions(struct actions *actions) {
    while (actions->first != NULL) {
        struct action *next = actions->first->next;
        free(actions->first);
        actions->first = next;
    }
    actions->last = NULL;
}

void standin_reset(const struct standin_config *wanted) {
    while (objects != NULL) {
        struct object *next = objects->next;
        if (objects->is_live) free(objects->memory);
        free_actions(&objects->actions);
        free_actions(&objects->captured);
        free(objects);
        objects = next;
    }
    used_bytes = 0;
    config = wanted == NULL ? today : *wanted;
    if (wanted == NULL) {
        int capability = number_of("STANDIN_CAPABILITY", 10 * config.major + config.minor);
        config.version = number_of("STANDIN_VERSION", config.version);
        config.n_devices = number_of("STANDIN_DEVICES", config.n_devices);
        config.major = capability / 10;
        config.minor = capability % 10;
        config.memory_bytes = (u64)number_of("STANDIN_MEMORY", 1) << 20;
        config.executes = number_of("STANDIN_EXECUTE", 0) > 0;
        config.is_fast = number_of("STANDIN_EXECUTE", 0) > 1;
        config.deferred = (u32)number_of("STANDIN_DEFERRED", 0);
        config.fail_call = (u32)number_of("STANDIN_FAIL", 0);
        config.is_sticky = config.fail_call != 0;
    }
    report = (struct standin_report){0};
    is_ready = true;
}

const struct standin_report *standin_report(void) { return &report; }

// --- books ---

// The result that a call was told to fail with, or OK.
static int begin(const char *entry) {
    if (!is_ready) standin_reset(NULL);
    errno = EDOM; // thread-local storage is there
    report.n_calls++;
    if (config.fail_call == 0 || report.n_calls < config.fail_call) return OK;
    if (report.n_calls > config.fail_call && !config.is_sticky) return OK;
    if (report.failed_entry[0] == 0) {
        snprintf(report.failed_entry, sizeof report.failed_entry, "%s", entry);
    }
    return config.fail_result;
}
#define BEGIN                            \
    do {                                 \
        int failed = begin(__func__);    \
        if (failed != OK) return failed; \
    } while (0)

static int misuse(const char *entry, const char *what) {
    if (report.n_misuses++ == 0) {
        snprintf(report.misuse, sizeof report.misuse, "%s: %s", entry, what);
    }
    return INVALID_VALUE;
}
#define MISUSE(what) misuse(__func__, what)

static struct object *new_object(enum kind kind) {
    struct object *object = calloc(1, sizeof *object);
    object->kind = kind;
    object->is_live = true;
    object->next = objects;
    objects = object;
    if (kind != FUNCTION) report.n_live++;
    return object;
}

static bool is_live(const void *handle, enum kind kind) {
    for (const struct object *object = objects; object != NULL; object = object->next) {
        if (object == handle) {
            return object->kind == kind && object->is_live &&
                   (object->parent == NULL || object->parent->is_live);
        }
    }
    return false;
}

static int release(const char *entry, void *handle, enum kind kind) {
    int result = begin(entry);
    if (!is_live(handle, kind)) return misuse(entry, "a handle that is none");
    struct object *object = handle;
    object->is_live = false;
    free(object->memory);
    object->memory = NULL;
    free_actions(&object->actions);
    free_actions(&object->captured);
    report.n_live--;
    return result;
}

static u64 address_of(const struct object *object) {
    return (u64)(usize)object->memory + (object->kind == MEMORY ? CARD_BIAS : 0);
}

// The live memory that holds the whole range.
static struct object *memory_at(u64 address, size_t bytes, enum kind kind) {
    for (struct object *object = objects; object != NULL; object = object->next) {
        if (object->kind != kind || !object->is_live) continue;
        u64 start = address_of(object);
        if (address >= start && bytes <= object->bytes &&
            address - start <= object->bytes - bytes) {
            return object;
        }
    }
    return NULL;
}

static void *host_of(const struct object *object, u64 address) {
    return (u8 *)object->memory + (address - address_of(object));
}

void *standin_memory(u64 address, u64 bytes) {
    struct object *object = memory_at(address, bytes, MEMORY);
    if (object == NULL) object = memory_at(address, bytes, PINNED);
    if (object != NULL) return host_of(object, address);
    (void)misuse("cuLaunchKernel", "a kernel outside of memory");
    return NULL;
}

static struct object *new_memory(enum kind kind, size_t bytes) {
    struct object *object = new_object(kind);
    object->bytes = bytes;
    object->memory = aligned_alloc(MEMORY_ALIGN, (bytes + MEMORY_ALIGN - 1) & ~(size_t)255);
    memset(object->memory, 0xa5, bytes);
    return object;
}

static int free_memory(const char *entry, u64 address, enum kind kind) {
    struct object *object = memory_at(address, 1, kind);
    if (object != NULL && address_of(object) != address) object = NULL;
    if (object != NULL && kind == MEMORY) used_bytes -= object->bytes;
    return release(entry, object, kind);
}

// --- streams do their work ---

// The params struct of the kernel: members in order, each at a multiple of its size.
static int execute(const struct standin_launch *launch) {
    u8 params[STANDIN_PARAMS_MAX * sizeof(u64)] = {0};
    u64 off = 0;
    for (u32 i = 0; i < launch->n_params; i++) {
        u64 bytes = launch->param_bytes[i];
        off = (off + bytes - 1) / bytes * bytes;
        memcpy(params + off, &launch->params[i], bytes);
        off += bytes;
    }
    return standin_execute(launch, params, config.is_fast) ? OK : ILLEGAL_ADDRESS;
}

static int act(struct object *stream, const struct action *action) {
    struct object *to = memory_at(action->to, action->bytes, MEMORY);
    struct object *from = memory_at(action->from, action->bytes, MEMORY);
    if (to == NULL) to = memory_at(action->to, action->bytes, PINNED);
    if (from == NULL) from = memory_at(action->from, action->bytes, PINNED);
    switch (action->kind) {
    case COPY:
        if (to == NULL || from == NULL) return misuse("copy", "memory that was freed meanwhile");
        memmove(host_of(to, action->to), host_of(from, action->from), action->bytes);
        return OK;
    case FILL:
        if (to == NULL) return misuse("fill", "memory that was freed meanwhile");
        memset(host_of(to, action->to), action->value, action->bytes);
        return OK;
    case LAUNCH: {
        report.n_launches++;
        int result = config.executes ? execute(&action->launch) : OK;
        if (config.stop_word != NULL && report.n_launches == config.stop_at_launch) {
            *config.stop_word = 1;
        }
        return result;
    }
    case RECORD:
        if (action->event->stream == stream) action->event->stream = NULL;
        return OK;
    case WAIT_EVENT: return OK; // done by run_stream
    }
    return OK;
}

// Does the first n actions of the stream. What an event of another stream waits for comes first.
static void run_stream(struct object *stream, u32 n) {
    while (n-- > 0 && stream->actions.first != NULL) {
        struct action *action = stream->actions.first;
        if (action->kind == WAIT_EVENT) {
            while (action->event->stream != NULL) run_stream(action->event->stream, 1);
        }
        stream->actions.first = action->next;
        if (stream->actions.first == NULL) stream->actions.last = NULL;
        int result = act(stream, action);
        if (stream->result == OK) stream->result = result;
        free(action);
    }
}

static void append(struct actions *actions, const struct action *action) {
    struct action *copy = malloc(sizeof *copy);
    *copy = *action;
    copy->next = NULL;
    *(actions->first == NULL ? &actions->first : &actions->last->next) = copy;
    actions->last = copy;
}

static void put(struct object *stream, const struct action *action) {
    append(stream->is_capturing ? &stream->captured : &stream->actions, action);
    if (config.deferred == 0) run_stream(stream, ~0u);
}

// Errors of what a stream did come out of every call from then on, as with a card.
static int finish(struct object *stream, u32 n) {
    for (struct object *object = objects; object != NULL; object = object->next) {
        if (object->kind == STREAM && object->is_live && object != stream) run_stream(object, ~0u);
    }
    run_stream(stream, n);
    return stream->result;
}

// --- the driver ---

EXPORT int cuDriverGetVersion(int *version);
int cuDriverGetVersion(int *version) {
    BEGIN;
    *version = config.version;
    return OK;
}

EXPORT int cuGetErrorName(int result, const char **name);
int cuGetErrorName(int result, const char **name) {
    *name = result == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY"
            : result == 719         ? "CUDA_ERROR_LAUNCH_FAILED"
                                    : NULL;
    return *name == NULL ? INVALID_VALUE : OK;
}

EXPORT int cuGetErrorString(int result, const char **text);
int cuGetErrorString(int result, const char **text) {
    *text = result == OUT_OF_MEMORY ? "out of memory"
            : result == 719         ? "unspecified launch failure"
                                    : NULL;
    return *text == NULL ? INVALID_VALUE : OK;
}

static void *driver_thread(void *argument) {
    sigset_t held;
    pthread_sigmask(SIG_SETMASK, NULL, &held);
    report.signals_were_held = sigismember(&held, SIGINT) == 1 && sigismember(&held, SIGTERM) == 1;
    errno = ERANGE; // of this thread only
    report.n_threads++;
    return argument;
}

EXPORT int cuInit(u32 flags);
int cuInit(u32 flags) {
    BEGIN;
    pthread_t thread;
    char text[64];
    errno = 0;
    if (pthread_create(&thread, NULL, driver_thread, NULL) != 0) return MISUSE("no thread");
    pthread_join(thread, NULL);
    if (errno != 0) return MISUSE("errno is shared between threads");
    snprintf(text, sizeof text, "%.3f", (double)config.version / 1000); // aligned vector stores
    if (text[0] == 0) return MISUSE("no text");
    __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | 0x8040); // flush-to-zero
    if (config.n_devices == 0) return NO_DEVICE;
    return flags == 0 ? OK : INVALID_VALUE;
}

EXPORT int cuDeviceGetCount(int *count);
int cuDeviceGetCount(int *count) {
    BEGIN;
    *count = config.n_devices;
    return OK;
}

#define DEVICE_HANDLE 70 // so that an ordinal cannot pass for a device

EXPORT int cuDeviceGet(int *device, int ordinal);
int cuDeviceGet(int *device, int ordinal) {
    BEGIN;
    if (ordinal < 0 || ordinal >= config.n_devices) return INVALID_DEVICE;
    *device = DEVICE_HANDLE + ordinal;
    return OK;
}

EXPORT int cuDeviceGetName(char *name, int bytes, int device);
int cuDeviceGetName(char *name, int bytes, int device) {
    BEGIN;
    if (device < DEVICE_HANDLE) return MISUSE("no device");
    snprintf(name, (size_t)bytes, "Stand-in %d", device - DEVICE_HANDLE);
    return OK;
}

EXPORT int cuDeviceGetAttribute(int *value, int attribute, int device);
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    BEGIN;
    if (device < DEVICE_HANDLE) return MISUSE("no device");
    *value = attribute == 75   ? config.major
             : attribute == 76 ? config.minor
             : attribute == 16 ? 132
             : attribute == 38 ? 50 << 20
             : attribute == 97 ? 227 << 10
                               : -1;
    return *value < 0 ? MISUSE("an attribute that nobody needs") : OK;
}

EXPORT int cuDeviceTotalMem_v2(size_t *bytes, int device);
int cuDeviceTotalMem_v2(size_t *bytes, int device) {
    BEGIN;
    if (device < DEVICE_HANDLE) return MISUSE("no device");
    *bytes = config.memory_bytes;
    return OK;
}

EXPORT int cuDevicePrimaryCtxRetain(void **context, int device);
int cuDevicePrimaryCtxRetain(void **context, int device) {
    BEGIN;
    if (device < DEVICE_HANDLE) return MISUSE("no device");
    *context = new_object(CONTEXT);
    return OK;
}

EXPORT int cuDevicePrimaryCtxRelease_v2(int device);
int cuDevicePrimaryCtxRelease_v2(int device) {
    struct object *context = objects;
    while (context != NULL && !(context->kind == CONTEXT && context->is_live)) {
        context = context->next;
    }
    if (device < DEVICE_HANDLE) return MISUSE("no device");
    return release(__func__, context, CONTEXT);
}

EXPORT int cuCtxSetCurrent(void *context);
int cuCtxSetCurrent(void *context) {
    BEGIN;
    if (context != NULL && !is_live(context, CONTEXT)) return MISUSE("no context");
    return OK;
}

EXPORT int cuCtxSynchronize(void);
int cuCtxSynchronize(void) {
    BEGIN;
    return OK;
}

EXPORT int cuMemGetInfo_v2(size_t *unused, size_t *all);
int cuMemGetInfo_v2(size_t *unused, size_t *all) {
    BEGIN;
    *unused = config.memory_bytes - used_bytes;
    *all = config.memory_bytes;
    return OK;
}

// --- modules ---

EXPORT int cuModuleLoadDataEx(void **module, const void *image, u32 n_options, int *options,
                              void **values);
int cuModuleLoadDataEx(void **module, const void *image, u32 n_options, int *options,
                       void **values) {
    BEGIN;
    char *log = NULL;
    size_t log_bytes = 0;
    for (u32 i = 0; i < n_options; i++) {
        if (options[i] == 5) log = values[i];
        if (options[i] == 6) log_bytes = (size_t)values[i];
    }
    if (config.refuses_ptx) {
        snprintf(log, log_bytes, "ptxas application ptx input, line 7; error : not today");
        return INVALID_PTX;
    }
    if (strncmp(image, ".version 7.8", 12) != 0) return MISUSE("no PTX");
    struct object *made = new_object(MODULE);
    made->memory = strdup(image);
    *module = made;
    return OK;
}

EXPORT int cuModuleUnload(void *module);
int cuModuleUnload(void *module) { return release(__func__, module, MODULE); }

// Names and sizes of the parameters in the text of the module.
static bool declare(struct standin_launch *declared, const char *text, const char *name) {
    char start[96];
    snprintf(start, sizeof start, ".visible .entry %s(", name);
    const char *at = strstr(text, start);
    if (at == NULL) return false;
    snprintf(declared->kernel, sizeof declared->kernel, "%s", name);
    const char *end = strchr(at, ')');
    while ((at = strstr(at, ".param .")) != NULL && at < end) {
        at += strlen(".param .");
        declared->param_bytes[declared->n_params++] = (u64)atoi(at + 1) / 8;
    }
    return true;
}

EXPORT int cuModuleGetFunction(void **function, void *module, const char *name);
int cuModuleGetFunction(void **function, void *module, const char *name) {
    BEGIN;
    if (!is_live(module, MODULE)) return MISUSE("no module");
    struct object *parent = module;
    struct standin_launch declared = {0};
    if (!declare(&declared, parent->memory, name)) return NOT_FOUND;
    struct object *made = new_object(FUNCTION);
    made->parent = parent;
    made->declared = declared;
    *function = made;
    return OK;
}

EXPORT int cuFuncGetAttribute(int *value, int attribute, void *function);
int cuFuncGetAttribute(int *value, int attribute, void *function) {
    BEGIN;
    if (!is_live(function, FUNCTION)) return MISUSE("no function");
    *value = attribute == 0 ? config.threads_max : 0;
    return OK;
}

// --- memory ---

EXPORT int cuMemAlloc_v2(u64 *address, size_t bytes);
int cuMemAlloc_v2(u64 *address, size_t bytes) {
    BEGIN;
    if (bytes == 0) return MISUSE("no bytes");
    if (bytes > config.memory_bytes - used_bytes) return OUT_OF_MEMORY;
    used_bytes += bytes;
    *address = address_of(new_memory(MEMORY, bytes));
    return OK;
}

EXPORT int cuMemFree_v2(u64 address);
int cuMemFree_v2(u64 address) { return free_memory(__func__, address, MEMORY); }

EXPORT int cuMemHostAlloc(void **memory, size_t bytes, u32 flags);
int cuMemHostAlloc(void **memory, size_t bytes, u32 flags) {
    BEGIN;
    if (bytes == 0 || flags != 2) return MISUSE("bytes or flags");
    *memory = new_memory(PINNED, bytes)->memory;
    return OK;
}

EXPORT int cuMemFreeHost(void *memory);
int cuMemFreeHost(void *memory) { return free_memory(__func__, (u64)(usize)memory, PINNED); }

EXPORT int cuMemHostGetDevicePointer_v2(u64 *address, void *memory, u32 flags);
int cuMemHostGetDevicePointer_v2(u64 *address, void *memory, u32 flags) {
    BEGIN;
    if (flags != 0 || memory_at((u64)(usize)memory, 1, PINNED) == NULL) return MISUSE("no memory");
    *address = (u64)(usize)memory;
    return OK;
}

static int move(const char *entry, u64 to, enum kind to_kind, u64 from, enum kind from_kind,
                size_t bytes, void *stream) {
    int result = begin(entry);
    if (result != OK) return result;
    if (!is_live(stream, STREAM)) return misuse(entry, "no stream");
    if (memory_at(to, bytes, to_kind) == NULL || memory_at(from, bytes, from_kind) == NULL) {
        return misuse(entry, "a range outside of memory");
    }
    put(stream, &(struct action){.kind = COPY, .to = to, .from = from, .bytes = bytes});
    return OK;
}

EXPORT int cuMemcpyHtoDAsync_v2(u64 to, const void *from, size_t bytes, void *stream);
int cuMemcpyHtoDAsync_v2(u64 to, const void *from, size_t bytes, void *stream) {
    return move(__func__, to, MEMORY, (u64)(usize)from, PINNED, bytes, stream);
}

EXPORT int cuMemcpyDtoHAsync_v2(void *to, u64 from, size_t bytes, void *stream);
int cuMemcpyDtoHAsync_v2(void *to, u64 from, size_t bytes, void *stream) {
    return move(__func__, (u64)(usize)to, PINNED, from, MEMORY, bytes, stream);
}

EXPORT int cuMemcpyDtoDAsync_v2(u64 to, u64 from, size_t bytes, void *stream);
int cuMemcpyDtoDAsync_v2(u64 to, u64 from, size_t bytes, void *stream) {
    return move(__func__, to, MEMORY, from, MEMORY, bytes, stream);
}

EXPORT int cuMemsetD8Async(u64 address, u8 value, size_t bytes, void *stream);
int cuMemsetD8Async(u64 address, u8 value, size_t bytes, void *stream) {
    BEGIN;
    struct object *object = memory_at(address, bytes, MEMORY);
    if (object == NULL || !is_live(stream, STREAM)) return MISUSE("no memory or stream");
    put(stream, &(struct action){.kind = FILL, .to = address, .bytes = bytes, .value = value});
    return OK;
}

// --- streams, events, graphs ---

EXPORT int cuStreamCreate(void **stream, u32 flags);
int cuStreamCreate(void **stream, u32 flags) {
    BEGIN;
    if (flags != 1) return MISUSE("a stream that waits for the default one");
    *stream = new_object(STREAM);
    return OK;
}

EXPORT int cuStreamDestroy_v2(void *stream);
int cuStreamDestroy_v2(void *stream) { return release(__func__, stream, STREAM); }

EXPORT int cuStreamSynchronize(void *stream);
int cuStreamSynchronize(void *stream) {
    BEGIN;
    if (!is_live(stream, STREAM)) return MISUSE("no stream");
    if (((struct object *)stream)->is_capturing) return MISUSE("a wait while capturing");
    return finish(stream, ~0u);
}

EXPORT int cuStreamQuery(void *stream);
int cuStreamQuery(void *stream) {
    BEGIN;
    struct object *object = stream;
    if (!is_live(stream, STREAM)) return MISUSE("no stream");
    if (object->is_capturing) return MISUSE("a query while capturing");
    int result = finish(object, config.deferred);
    return result == OK && object->actions.first != NULL ? NOT_READY : result;
}

EXPORT int cuStreamWaitEvent(void *stream, void *event, u32 flags);
int cuStreamWaitEvent(void *stream, void *event, u32 flags) {
    BEGIN;
    if (!is_live(stream, STREAM) || !is_live(event, EVENT)) return MISUSE("no stream or event");
    if (((struct object *)event)->stream != stream) {
        put(stream, &(struct action){.kind = WAIT_EVENT, .event = event});
    }
    return flags == 0 ? OK : INVALID_VALUE;
}

EXPORT int cuEventCreate(void **event, u32 flags);
int cuEventCreate(void **event, u32 flags) {
    BEGIN;
    *event = new_object(EVENT);
    return flags == 0 ? OK : INVALID_VALUE;
}

EXPORT int cuEventDestroy_v2(void *event);
int cuEventDestroy_v2(void *event) { return release(__func__, event, EVENT); }

EXPORT int cuEventRecord(void *event, void *stream);
int cuEventRecord(void *event, void *stream) {
    BEGIN;
    if (!is_live(event, EVENT) || !is_live(stream, STREAM)) return MISUSE("no event or stream");
    ((struct object *)event)->stream = stream;
    put(stream, &(struct action){.kind = RECORD, .event = event});
    return OK;
}

EXPORT int cuEventSynchronize(void *event);
int cuEventSynchronize(void *event) {
    BEGIN;
    if (!is_live(event, EVENT)) return MISUSE("no event");
    struct object *object = event;
    while (object->stream != NULL) run_stream(object->stream, 1);
    return OK;
}

EXPORT int cuEventElapsedTime(float *ms, void *first, void *last);
int cuEventElapsedTime(float *ms, void *first, void *last) {
    BEGIN;
    *ms = 1.5f;
    return is_live(first, EVENT) && is_live(last, EVENT) ? OK : MISUSE("no event");
}

EXPORT int cuStreamBeginCapture_v2(void *stream, int mode);
int cuStreamBeginCapture_v2(void *stream, int mode) {
    BEGIN;
    if (!is_live(stream, STREAM) || mode != 1) return MISUSE("no stream");
    struct object *object = stream;
    if (object->is_capturing) return MISUSE("captures already");
    object->is_capturing = true;
    return OK;
}

EXPORT int cuStreamEndCapture(void *stream, void **graph);
int cuStreamEndCapture(void *stream, void **graph) {
    int result = begin(__func__);
    if (!is_live(stream, STREAM)) return MISUSE("no stream");
    struct object *object = stream;
    if (!object->is_capturing) return MISUSE("does not capture");
    object->is_capturing = false; // whatever the result
    *graph = NULL;
    if (result != OK) {
        free_actions(&object->captured);
        return result;
    }
    struct object *made = new_object(GRAPH);
    made->actions = object->captured;
    object->captured = (struct actions){0};
    *graph = made;
    return OK;
}

EXPORT int cuGraphDestroy(void *graph);
int cuGraphDestroy(void *graph) { return release(__func__, graph, GRAPH); }

#ifndef STANDIN_OLD
EXPORT int cuGraphInstantiateWithFlags(void **exec, void *graph, u64 flags);
int cuGraphInstantiateWithFlags(void **exec, void *graph, u64 flags) {
    BEGIN;
    if (!is_live(graph, GRAPH) || flags != 0) return MISUSE("no graph");
    struct object *made = new_object(GRAPH_EXEC);
    const struct object *described = graph;
    for (const struct action *a = described->actions.first; a != NULL; a = a->next) {
        append(&made->actions, a);
    }
    *exec = made;
    return OK;
}
#endif

EXPORT int cuGraphExecDestroy(void *exec);
int cuGraphExecDestroy(void *exec) { return release(__func__, exec, GRAPH_EXEC); }

EXPORT int cuGraphLaunch(void *exec, void *stream);
int cuGraphLaunch(void *exec, void *stream) {
    BEGIN;
    if (!is_live(exec, GRAPH_EXEC) || !is_live(stream, STREAM)) return MISUSE("no graph or stream");
    struct object *object = exec;
    report.n_graph_launches++;
    for (const struct action *a = object->actions.first; a != NULL; a = a->next) put(stream, a);
    return OK;
}

EXPORT int cuLaunchKernel(void *function, u32 grid_x, u32 grid_y, u32 grid_z, u32 block_x,
                          u32 block_y, u32 block_z, u32 shared_bytes, void *stream, void **params,
                          void **extra);
int cuLaunchKernel(void *function, u32 grid_x, u32 grid_y, u32 grid_z, u32 block_x, u32 block_y,
                   u32 block_z, u32 shared_bytes, void *stream, void **params, void **extra) {
    BEGIN;
    if (!is_live(function, FUNCTION) || !is_live(stream, STREAM) || extra != NULL) {
        return MISUSE("no function or stream");
    }
    struct standin_launch launch = ((struct object *)function)->declared;
    memcpy(launch.grid, (u32[]){grid_x, grid_y, grid_z}, sizeof launch.grid);
    memcpy(launch.block, (u32[]){block_x, block_y, block_z}, sizeof launch.block);
    launch.shared_bytes = shared_bytes;
    for (u32 i = 0; i < launch.n_params; i++) {
        memcpy(&launch.params[i], params[i], launch.param_bytes[i]);
    }
    report.launch = launch;
    put(stream, &(struct action){.kind = LAUNCH, .launch = launch});
    return OK;
}
