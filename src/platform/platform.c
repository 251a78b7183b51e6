// SPDX-License-Identifier: Apache-2.0
// The parts of the platform that are the same on every system: messages for failing calls (P3),
// the environment, and symbols of libraries.
#include "freestanding/text.h"
#include "platform/platform.h"
#include "platform/system_errors.h"

struct system_error {
    const char *name, *meaning;
};

static const struct system_error system_errors[] = {
#define ERROR_ROW(error, number, text) [number] = {#error, text},
    SYSTEM_ERROR_LIST(ERROR_ROW)
#undef ERROR_ROW
};

enum sov_status system_fail(struct sov_fault *fault, const char *operation, const char *object,
                            i64 error) {
    if (error > 0 && error < (i64)COUNT_OF(system_errors) && system_errors[error].name != NULL) {
        return fault_set(fault, SOV_ERR_IO, "%s %s: %s (%s)", operation, object,
                         system_errors[error].name, system_errors[error].meaning);
    }
    return fault_set(fault, SOV_ERR_IO, "%s %s: error %lld of the system", operation, object,
                     error);
}

enum sov_status system_fail_descriptor(struct sov_fault *fault, const char *operation,
                                       int descriptor, i64 error) {
    static const char *const standard[] = {"standard input", "standard output", "standard error"};
    if (descriptor >= 0 && (u32)descriptor < COUNT_OF(standard)) {
        return system_fail(fault, operation, standard[descriptor], error);
    }
    char memory[32];
    struct text t = TEXT_OVER_ARRAY(memory);
    text_format(&t, "descriptor %d", descriptor);
    return system_fail(fault, operation, t.data, error);
}

const char *platform_environment(const struct platform_start *start, const char *name) {
    struct str wanted = str_from_z(name);
    for (const char *const *entry = start->environment; *entry != NULL; entry++) {
        struct str s = str_from_z(*entry);
        if (str_starts_with(s, wanted) && (*entry)[wanted.len] == '=') {
            return *entry + wanted.len + 1;
        }
    }
    return NULL;
}

enum sov_status platform_library_symbol(const struct platform_library *library, const char *name,
                                        void **address, struct sov_fault *fault) {
    *address = library->find(library->handle, name);
    if (*address != NULL) return SOV_OK;
    return fault_set(fault, SOV_ERR_UNSUPPORTED, "library %s: no function %s", library->path, name);
}
