// SPDX-License-Identifier: Apache-2.0
// The frame of the C tests. Its state is static because CHECK has no context to carry it in; a test
// program runs its cases one after the other on the first thread, but a case may fail from any
// thread.
#include "test.h"

#define LINE_BYTES 2048
#define FAILURES_SHOWN_MAX 20 // of one case; the rest is only counted

static struct {
    const struct platform_start *start;
    const char *case_name;
    u32 n_failures; // of the running case; touched atomically
    bool skipped;
} frame;

static void print_line(struct text *line) {
    if (line->truncated) line->len = MIN(line->len, line->capacity - 2);
    if (line->len + 1 < line->capacity) line->data[line->len++] = '\n';
    // Nothing can be done about a lost line; the exit code still tells the truth.
    if (platform_write(PLATFORM_STDOUT, line->data, line->len, NULL) != SOV_OK) return;
}

void test_fail(const char *file, int line, const char *format, ...) {
    u32 n = __atomic_add_fetch(&frame.n_failures, 1, __ATOMIC_RELAXED);
    if (n > FAILURES_SHOWN_MAX) return;
    char memory[LINE_BYTES];
    struct text t = TEXT_OVER_ARRAY(memory);
    text_format(&t, "%s:%d: %s: ", file, line, frame.case_name);
    va_list args;
    va_start(args, format);
    text_format_v(&t, format, args);
    va_end(args);
    print_line(&t);
}

void test_skip(const char *reason) {
    frame.skipped = true;
    test_note("SKIPPED %s: %s", frame.case_name, reason);
}

void test_note(const char *format, ...) {
    char memory[LINE_BYTES];
    struct text t = TEXT_OVER_ARRAY(memory);
    va_list args;
    va_start(args, format);
    text_format_v(&t, format, args);
    va_end(args);
    print_line(&t);
}

// The value of an argument NAME=VALUE, or NULL.
static const char *argument_option(struct str name) {
    for (u32 i = 1; i < frame.start->n_args; i++) {
        const char *arg = frame.start->args[i];
        struct str s = str_from_z(arg);
        if (str_starts_with(s, name) && arg[name.len] == '=') return arg + name.len + 1;
    }
    return NULL;
}

const char *test_option(const char *name) {
    const char *value = argument_option(str_from_z(name));
    if (value != NULL) return value;
    char memory[64];
    struct text t = TEXT_OVER_ARRAY(memory);
    text_format(&t, "SOV_TEST_%s", name);
    assert(!t.truncated);
    return platform_environment(frame.start, t.data);
}

static bool is_option(const char *arg) {
    for (; *arg != 0; arg++) {
        if (*arg == '=') return true;
    }
    return false;
}

static bool is_case(const char *arg, const struct test_case *cases, u32 n_cases) {
    for (u32 i = 0; i < n_cases; i++) {
        if (str_equal(str_from_z(arg), str_from_z(cases[i].name))) return true;
    }
    return false;
}

// Whether the arguments name this case, or name none at all.
static bool is_wanted(const struct test_case *c) {
    bool named_any = false;
    for (u32 i = 1; i < frame.start->n_args; i++) {
        if (is_option(frame.start->args[i])) continue;
        named_any = true;
        if (is_case(frame.start->args[i], c, 1)) return true;
    }
    return !named_any;
}

int test_main(const struct platform_start *start, const char *program,
              const struct test_case *cases, u32 n_cases) {
    frame.start = start;
    for (u32 i = 1; i < start->n_args; i++) {
        if (is_option(start->args[i]) || is_case(start->args[i], cases, n_cases)) continue;
        test_note("%s: no case is called \"%s\"; the cases are:", program, start->args[i]);
        for (u32 j = 0; j < n_cases; j++) test_note("    %s", cases[j].name);
        return 2;
    }
    u32 n_passed = 0, n_failed = 0, n_skipped = 0;
    for (u32 i = 0; i < n_cases; i++) {
        if (!is_wanted(&cases[i])) continue;
        frame.case_name = cases[i].name;
        frame.n_failures = 0;
        frame.skipped = false;
        cases[i].run();
        u32 n_failures = __atomic_load_n(&frame.n_failures, __ATOMIC_RELAXED);
        if (n_failures > 0) {
            n_failed++;
            test_note("FAILED %s: %u checks; repeat with: %s %s", cases[i].name, n_failures,
                      start->args[0], cases[i].name);
        } else if (frame.skipped) {
            n_skipped++;
        } else {
            n_passed++;
        }
    }
    char memory[128];
    struct text t = TEXT_OVER_ARRAY(memory);
    text_format(&t, "%s: %u passed, %u failed", program, n_passed, n_failed);
    if (n_skipped > 0) text_format(&t, ", %u skipped", n_skipped);
    print_line(&t);
    return n_failed > 0;
}

u64 test_random_u64(struct test_random *random) {
    u64 z = random->state += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

u32 test_random_below(struct test_random *random, u32 limit) {
    assert(limit > 0);
    return (u32)((test_random_u64(random) >> 32) * limit >> 32);
}

f64 test_random_unit(struct test_random *random) {
    return (f64)(test_random_u64(random) >> 11) * 0x1p-53;
}

// The open file's bytes; SOV_OK and an empty slice for an empty file.
static enum sov_status read_all(int descriptor, struct str *bytes, struct sov_fault *fault) {
    u64 size = 0;
    enum sov_status status = platform_file_size(descriptor, &size, fault);
    if (status != SOV_OK || size == 0) return status;
    u8 *memory = platform_memory_map(size); // kept until the program ends
    if (memory == NULL) return fault_set(fault, SOV_ERR_MEMORY, "%llu bytes", size);
    usize n_read = 0;
    status = platform_read(descriptor, memory, size, &n_read, fault);
    if (status != SOV_OK) return status;
    *bytes = (struct str){memory, n_read};
    return SOV_OK;
}

struct str test_read_file(const char *path) {
    struct sov_fault fault = {0};
    struct str bytes = STR("");
    int descriptor = -1;
    enum sov_status status = platform_open(path, PLATFORM_OPEN_READ, &descriptor, &fault);
    if (status == SOV_OK) {
        status = read_all(descriptor, &bytes, &fault);
        platform_close(descriptor);
    }
    if (status != SOV_OK) test_fail(__FILE__, __LINE__, "%s: %s", path, fault.message);
    return bytes;
}
