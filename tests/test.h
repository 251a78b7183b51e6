// SPDX-License-Identifier: Apache-2.0
// The frame of a C test program: a table of named cases, run in order; each prints nothing when it
// passes. Uses the platform layer only, so that every test runs both freestanding and hosted (with
// sanitizers). The last line is "NAME: N passed, N failed[, N skipped]".
#pragma once
#include "freestanding/status.h"
#include "freestanding/text.h"
#include "platform/platform.h"

struct test_case {
    const char *name;
    void (*run)(void);
};

// Runs all cases, or those whose name is given as an argument. Returns the exit code.
// Arguments of the form NAME=VALUE are options for test_option.
int test_main(const struct platform_start *start, const char *program,
              const struct test_case *cases, u32 n_cases);
const char *test_option(const char *name); // NULL when not given; environment SOV_TEST_<NAME> too

// Records a failure with file, line and a printf-like message; the case goes on.
void test_fail(const char *file, int line, const char *format, ...) PRINTF_LIKE(3, 4);
// Marks the running case as skipped, aloud.
void test_skip(const char *reason);
void test_note(const char *format, ...) PRINTF_LIKE(1, 2); // a line of information on stdout

#define CHECK(condition)                                                   \
    do {                                                                   \
        if (!(condition)) test_fail(__FILE__, __LINE__, "%s", #condition); \
    } while (0)
#define CHECK_MSG(condition, ...)                                     \
    do {                                                              \
        if (!(condition)) test_fail(__FILE__, __LINE__, __VA_ARGS__); \
    } while (0)

// SplitMix64: the tests' only randomness, from a printed seed.
struct test_random {
    u64 state;
};
u64 test_random_u64(struct test_random *random);
u32 test_random_below(struct test_random *random, u32 limit);
f64 test_random_unit(struct test_random *random); // [0, 1)

// A file's bytes, read into memory of the platform; fails the case and returns the empty slice when
// it cannot be read.
struct str test_read_file(const char *path);
