// SPDX-License-Identifier: Apache-2.0
// Declarations and calls of the driver API; see driver.h. Names with _v2 are the ones that the
// driver exports for the 64-bit forms.
#include "driver.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ATTRIBUTE_CAPABILITY_MAJOR 75
#define ATTRIBUTE_CAPABILITY_MINOR 76
#define JIT_ERROR_LOG_BUFFER 5
#define JIT_ERROR_LOG_BUFFER_BYTES 6
#define LOG_BYTES 8192

static struct {
    driver_result (*init)(unsigned);
    driver_result (*driver_version)(int *);
    driver_result (*device)(int *, int);
    driver_result (*device_name)(char *, int, int);
    driver_result (*device_attribute)(int *, int, int);
    driver_result (*context_retain)(void **, int);
    driver_result (*context_set)(void *);
    driver_result (*context_wait)(void);
    driver_result (*module_load)(void **, const void *, unsigned, int *, void **);
    driver_result (*module_function)(void **, void *, const char *);
    driver_result (*memory_alloc)(device_ptr *, size_t);
    driver_result (*memory_free)(device_ptr);
    driver_result (*upload)(device_ptr, const void *, size_t);
    driver_result (*download)(void *, device_ptr, size_t);
    driver_result (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                            unsigned, void *, void **, void **);
    driver_result (*event_create)(void **, unsigned);
    driver_result (*event_record)(void *, void *);
    driver_result (*event_wait)(void *);
    driver_result (*event_elapsed)(float *, void *, void *);
    driver_result (*error_string)(driver_result, const char **);
} api;

static void check(driver_result result, const char *what) {
    if (result == 0) return;
    const char *words = NULL;
    if (api.error_string != NULL) api.error_string(result, &words);
    fprintf(stderr, "%s: driver error %d, %s\n", what, result, words == NULL ? "unknown" : words);
    exit(3);
}

static void *entry_point(void *library, const char *name) {
    void *found = dlsym(library, name);
    if (found == NULL) {
        fprintf(stderr, "libcuda.so.1 has no %s\n", name);
        exit(3);
    }
    return found;
}

// A function pointer from an object pointer, which ISO C does not convert but POSIX promises.
#define RESOLVE(member, name)                             \
    do {                                                  \
        void *address = entry_point(library, name);       \
        memcpy(&api.member, &address, sizeof api.member); \
    } while (0)

static void resolve_all(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == NULL) {
        fprintf(stderr, "no NVIDIA driver: %s\n", dlerror());
        exit(3);
    }
    RESOLVE(error_string, "cuGetErrorString");
    RESOLVE(init, "cuInit");
    RESOLVE(driver_version, "cuDriverGetVersion");
    RESOLVE(device, "cuDeviceGet");
    RESOLVE(device_name, "cuDeviceGetName");
    RESOLVE(device_attribute, "cuDeviceGetAttribute");
    RESOLVE(context_retain, "cuDevicePrimaryCtxRetain");
    RESOLVE(context_set, "cuCtxSetCurrent");
    RESOLVE(context_wait, "cuCtxSynchronize");
    RESOLVE(module_load, "cuModuleLoadDataEx");
    RESOLVE(module_function, "cuModuleGetFunction");
    RESOLVE(memory_alloc, "cuMemAlloc_v2");
    RESOLVE(memory_free, "cuMemFree_v2");
    RESOLVE(upload, "cuMemcpyHtoD_v2");
    RESOLVE(download, "cuMemcpyDtoH_v2");
    RESOLVE(launch, "cuLaunchKernel");
    RESOLVE(event_create, "cuEventCreate");
    RESOLVE(event_record, "cuEventRecord");
    RESOLVE(event_wait, "cuEventSynchronize");
    RESOLVE(event_elapsed, "cuEventElapsedTime");
}

// The kernel driver's version from /proc, where it is the first number with two dots.
static void read_driver_version(char *version, size_t bytes) {
    snprintf(version, bytes, "unknown");
    FILE *file = fopen("/proc/driver/nvidia/version", "r");
    if (file == NULL) return;
    char line[512];
    if (fgets(line, sizeof line, file) != NULL) {
        for (char *word = strtok(line, " \n"); word != NULL; word = strtok(NULL, " \n")) {
            int a, b, c;
            if (sscanf(word, "%d.%d.%d", &a, &b, &c) == 3) {
                snprintf(version, bytes, "%d.%02d.%02d", a, b, c);
                break;
            }
        }
    }
    fclose(file);
}

void driver_open(struct driver *driver) {
    int device = 0, major = 0, minor = 0;
    void *context = NULL;
    resolve_all();
    check(api.init(0), "cuInit");
    check(api.driver_version(&driver->cuda_version), "cuDriverGetVersion");
    check(api.device(&device, 0), "cuDeviceGet");
    check(api.device_name(driver->card, (int)sizeof driver->card, device), "cuDeviceGetName");
    check(api.device_attribute(&major, ATTRIBUTE_CAPABILITY_MAJOR, device), "cuDeviceGetAttribute");
    check(api.device_attribute(&minor, ATTRIBUTE_CAPABILITY_MINOR, device), "cuDeviceGetAttribute");
    driver->capability = 10 * major + minor;
    check(api.context_retain(&context, device), "cuDevicePrimaryCtxRetain");
    check(api.context_set(context), "cuCtxSetCurrent");
    read_driver_version(driver->version, sizeof driver->version);
}

driver_handle driver_module(const char *ptx) {
    static char log[LOG_BYTES];
    int options[2] = {JIT_ERROR_LOG_BUFFER, JIT_ERROR_LOG_BUFFER_BYTES};
    void *values[2] = {log, (void *)(uintptr_t)LOG_BYTES};
    void *module = NULL;
    driver_result result = api.module_load(&module, ptx, 2, options, values);
    if (result != 0) fprintf(stderr, "%.*s\n", LOG_BYTES, log);
    check(result, "cuModuleLoadDataEx");
    return module;
}

driver_handle driver_function(driver_handle module, const char *name) {
    void *function = NULL;
    check(api.module_function(&function, module, name), name);
    return function;
}

device_ptr driver_alloc(size_t bytes) {
    device_ptr memory = 0;
    check(api.memory_alloc(&memory, bytes), "cuMemAlloc");
    return memory;
}

void driver_free(device_ptr memory) { check(api.memory_free(memory), "cuMemFree"); }

void driver_upload(device_ptr to, const void *from, size_t bytes) {
    check(api.upload(to, from, bytes), "cuMemcpyHtoD");
}

void driver_download(void *to, device_ptr from, size_t bytes) {
    check(api.download(to, from, bytes), "cuMemcpyDtoH");
}

void driver_launch(driver_handle function, const uint32_t grid[3], uint32_t block, void **params) {
    check(api.launch(function, grid[0], grid[1], grid[2], block, 1, 1, 0, NULL, params, NULL),
          "cuLaunchKernel");
}

void driver_wait(void) { check(api.context_wait(), "cuCtxSynchronize"); }

driver_handle driver_event_new(void) {
    void *event = NULL;
    check(api.event_create(&event, 0), "cuEventCreate");
    return event;
}

void driver_event_record(driver_handle event) {
    check(api.event_record(event, NULL), "cuEventRecord");
}

double driver_event_elapsed(driver_handle first, driver_handle last) {
    float ms = 0.0f;
    check(api.event_wait(last), "cuEventSynchronize");
    check(api.event_elapsed(&ms, first, last), "cuEventElapsedTime");
    return ms;
}

char *file_text(const char *path) {
    FILE *file = fopen(path, "rb");
    if (file == NULL || fseek(file, 0, SEEK_END) != 0) {
        fprintf(stderr, "%s cannot be read\n", path);
        exit(3);
    }
    long bytes = ftell(file);
    char *text = bytes < 0 ? NULL : malloc((size_t)bytes + 1);
    if (text == NULL || fseek(file, 0, SEEK_SET) != 0 ||
        fread(text, 1, (size_t)bytes, file) != (size_t)bytes) {
        fprintf(stderr, "%s cannot be read\n", path);
        exit(3);
    }
    text[bytes] = 0;
    fclose(file);
    return text;
}
