// SPDX-License-Identifier: Apache-2.0
// How a C test finds the stand-in for NVIDIA's driver, and reads its books. For programs that lie
// in BUILD/FLAVOUR/; the stand-ins are in BUILD/cuda_standin.
#pragma once
#include "cuda_standin.h"
#include "freestanding/mem.h"
#include "test.h"

static const struct platform_start *program_start;
static char standin_path[512], old_path[512];
static standin_reset_function *standin_reset;
static standin_report_function *standin_report;

// To be called first.
static inline bool standin_find(const struct platform_start *start) {
    struct platform_library library = {0};
    struct sov_fault fault = {0};
    void *reset = NULL, *report = NULL;
    program_start = start;
    struct str folder = str_from_z(start->args[0]);
    for (u32 n = 0; folder.len > 0 && n < 2; n += folder.data[folder.len] == '/') folder.len--;
    struct text path = TEXT_OVER_ARRAY(standin_path), old = TEXT_OVER_ARRAY(old_path);
    text_put(&path, folder);
    text_put(&path, STR("/cuda_standin/libcuda.so.1"));
    text_put(&old, folder);
    text_put(&old, STR("/cuda_standin/old/libcuda.so.1"));
    enum sov_status status = platform_library_open(start, standin_path, &library, &fault);
    if (status == SOV_OK) {
        status = platform_library_symbol(&library, "standin_reset", &reset, &fault);
    }
    if (status == SOV_OK) {
        status = platform_library_symbol(&library, "standin_report", &report, &fault);
    }
    if (status != SOV_OK) {
        test_note("%s", fault.message);
        return false;
    }
    memcpy(&standin_reset, &reset, sizeof reset);
    memcpy(&standin_report, &report, sizeof report);
    return true;
}

static inline bool contains(const char *text, const char *part) {
    struct str t = str_from_z(text), p = str_from_z(part);
    for (usize i = 0; i + p.len <= t.len; i++) {
        if (str_starts_with((struct str){t.data + i, t.len - i}, p)) return true;
    }
    return false;
}

// Nothing is left, and no call was given what it should not have been.
static inline void check_books(const char *where) {
    const struct standin_report *report = standin_report();
    CHECK_MSG(report->n_live == 0, "%s: %u objects left", where, report->n_live);
    CHECK_MSG(report->n_misuses == 0, "%s: %u misuses, %s", where, report->n_misuses,
              report->misuse);
}
