// SPDX-License-Identifier: Apache-2.0
// Tests of the platform layer. They run on linux.c (freestanding) and on hosted.c, so each platform
// is the other's measure. What needs a second process (signals, pipes, a stack that overflows) is
// driven by tests/test_binary.py through the actions at the end of this file.
#include "freestanding/mem.h"
#include "platform/linux_start.h"
#include "test.h"

static const struct platform_start *program_start;
static char scratch_path[512]; // a file beside the program, so that two builds do not meet

static bool contains(const char *text, const char *part) {
    struct str t = str_from_z(text), p = str_from_z(part);
    for (usize i = 0; i + p.len <= t.len; i++) {
        if (str_starts_with((struct str){t.data + i, t.len - i}, p)) return true;
    }
    return false;
}

static void expect_fault(int line, enum sov_status status, const struct sov_fault *fault,
                         const char *message) {
    if (status == SOV_ERR_IO && fault->status == SOV_ERR_IO && contains(fault->message, message)) {
        return;
    }
    test_fail(__FILE__, line, "%s \"%s\", expected \"%s\"", status_name(status), fault->message,
              message);
}
#define EXPECT_FAULT(status, fault, message) expect_fault(__LINE__, status, &(fault), message)

// --- environment ---

static void environment_is_found_by_whole_name(void) {
    static const char *const environment[] = {
        "PATHS=wrong", "PATH=/bin:/x=y", "EMPTY=", "NAKED", "PATH=second", NULL};
    struct platform_start start = {.environment = environment};
    static const struct {
        const char *name, *value;
    } rows[] = {
        {"PATH", "/bin:/x=y"}, {"PATHS", "wrong"}, {"EMPTY", ""},  {"PAT", NULL},
        {"NAKED", NULL},       {"absent", NULL},   {"path", NULL},
    };
    for (u32 i = 0; i < COUNT_OF(rows); i++) {
        const char *value = platform_environment(&start, rows[i].name);
        bool same = value == NULL || rows[i].value == NULL
                        ? value == rows[i].value
                        : str_equal(str_from_z(value), str_from_z(rows[i].value));
        CHECK_MSG(same, "%s is \"%s\"", rows[i].name, value == NULL ? "(none)" : value);
    }
}

// --- files ---

static int open_or_fail(enum platform_open_mode mode) {
    struct sov_fault fault = {0};
    int descriptor = -1;
    enum sov_status status = platform_open(scratch_path, mode, &descriptor, &fault);
    CHECK_MSG(status == SOV_OK, "%s", fault.message);
    return descriptor;
}

static void write_scratch(const void *bytes, usize n) {
    struct sov_fault fault = {0};
    int descriptor = open_or_fail(PLATFORM_OPEN_CREATE);
    CHECK_MSG(platform_write(descriptor, bytes, n, &fault) == SOV_OK, "%s", fault.message);
    platform_close(descriptor);
}

static void open_says_what_is_wrong(void) {
    static const struct {
        const char *path;
        enum platform_open_mode mode;
        const char *message;
    } rows[] = {
        {"no/such/model.gguf", PLATFORM_OPEN_READ,
         "open no/such/model.gguf: ENOENT (no such file or directory)"},
        {"no/such/out.bin", PLATFORM_OPEN_CREATE, "create no/such/out.bin: ENOENT"},
        {"", PLATFORM_OPEN_READ, "ENOENT"},
        {"Makefile/x", PLATFORM_OPEN_READ, "ENOTDIR"},
        {"tests", PLATFORM_OPEN_CREATE, "EISDIR"},
    };
    for (u32 i = 0; i < COUNT_OF(rows); i++) {
        struct sov_fault fault = {0};
        int descriptor = 77;
        enum sov_status status = platform_open(rows[i].path, rows[i].mode, &descriptor, &fault);
        EXPECT_FAULT(status, fault, rows[i].message);
        CHECK(descriptor == 77);
    }
}

static void what_is_written_is_read(void) {
    u8 out[5000], in[6000] = {0};
    for (usize i = 0; i < sizeof out; i++) out[i] = (u8)(i * 7 + (i >> 8));
    write_scratch(in, sizeof in);
    write_scratch(out, sizeof out); // creating empties what was there, so this file is shorter
    struct sov_fault fault = {0};
    int descriptor = open_or_fail(PLATFORM_OPEN_READ);
    u64 size = 0;
    CHECK(platform_file_size(descriptor, &size, &fault) == SOV_OK && size == sizeof out);
    usize n_read = 0;
    CHECK(platform_read(descriptor, in, 1, &n_read, &fault) == SOV_OK);
    CHECK(n_read == 1 && in[0] == out[0]);
    memset(in, 0xee, sizeof in);
    CHECK(platform_read(descriptor, in, sizeof in, &n_read, &fault) == SOV_OK); // short: the end
    CHECK_MSG(n_read == sizeof out - 1, "%zu", n_read);
    CHECK(memcmp(in, out + 1, sizeof out - 1) == 0 && in[sizeof out - 1] == 0xee);
    n_read = 77;
    CHECK(platform_read(descriptor, in, sizeof in, &n_read, &fault) == SOV_OK && n_read == 0);
    n_read = 77;
    CHECK(platform_read_some(descriptor, in, 10, &n_read, &fault) == SOV_OK && n_read == 0);
    n_read = 77;
    CHECK(platform_read(descriptor, in, 0, &n_read, &fault) == SOV_OK && n_read == 0);
    EXPECT_FAULT(platform_write(descriptor, in, 1, &fault), fault, "EBADF"); // open for reading
    platform_close(descriptor);
}

static void bad_descriptors_are_errors(void) {
    struct sov_fault fault = {0};
    u64 size = 0;
    usize n_read = 0;
    u8 byte = 0;
    EXPECT_FAULT(platform_file_size(-1, &size, &fault), fault, "size of descriptor -1: EBADF");
    fault = (struct sov_fault){0};
    EXPECT_FAULT(platform_read(999, &byte, 1, &n_read, &fault), fault,
                 "read descriptor 999: EBADF");
    fault = (struct sov_fault){0};
    EXPECT_FAULT(platform_write(999, &byte, 1, &fault), fault, "write descriptor 999: EBADF");
    CHECK(!platform_is_terminal(999));

    int folder = -1;
    fault = (struct sov_fault){0};
    CHECK(platform_open("tests", PLATFORM_OPEN_READ, &folder, &fault) == SOV_OK);
    EXPECT_FAULT(platform_file_size(folder, &size, &fault), fault, "not a regular file");
    fault = (struct sov_fault){0};
    EXPECT_FAULT(platform_read(folder, &byte, 1, &n_read, &fault), fault, "EISDIR");
    fault = (struct sov_fault){0};
    const u8 *data = NULL;
    EXPECT_FAULT(platform_file_map(folder, 1, &data, &fault), fault, "map descriptor");
    CHECK(!platform_is_terminal(folder));
    platform_close(folder);
}

static void expect_content(int descriptor, const char *content) {
    char bytes[64];
    usize n = 0;
    struct sov_fault fault = {0};
    CHECK(platform_read_at(descriptor, 0, bytes, sizeof bytes, &n, &fault) == SOV_OK);
    CHECK_MSG(str_equal((struct str){(u8 *)bytes, n}, str_from_z(content)), "\"%.*s\"", (int)n,
              bytes);
}

// A file that grows at its end, whatever was read of it; cut, and grown again.
static void files_are_appended_read_anywhere_and_cut(void) {
    write_scratch("0123", 4);
    int descriptor = open_or_fail(PLATFORM_OPEN_APPEND);
    struct sov_fault fault = {0};
    expect_content(descriptor, "0123");
    CHECK(platform_write(descriptor, "45", 2, &fault) == SOV_OK);
    char bytes[4];
    usize n = 0;
    CHECK(platform_read_at(descriptor, 3, bytes, sizeof bytes, &n, &fault) == SOV_OK && n == 3);
    CHECK(n == 3 && memcmp(bytes, "345", 3) == 0);
    CHECK(platform_read_at(descriptor, 100, bytes, sizeof bytes, &n, &fault) == SOV_OK && n == 0);
    CHECK(platform_truncate(descriptor, 1, &fault) == SOV_OK);
    CHECK(platform_write(descriptor, "x", 1, &fault) == SOV_OK);
    expect_content(descriptor, "0x");
    u64 size = 0;
    CHECK(platform_file_size(descriptor, &size, &fault) == SOV_OK && size == 2);
    platform_close(descriptor);
    descriptor = open_or_fail(PLATFORM_OPEN_READ);
    EXPECT_FAULT(platform_truncate(descriptor, 0, &fault), fault, "cut descriptor");
    platform_close(descriptor);
}

// A file written at any place, synced, under another name in a folder of its own.
static void files_are_updated_synced_and_renamed(void) {
    static char folder[600], from[640], to[640];
    struct text t = TEXT_OVER_ARRAY(folder);
    text_format(&t, "%s.folder", scratch_path);
    t = TEXT_OVER_ARRAY(from);
    text_format(&t, "%s/from", folder);
    t = TEXT_OVER_ARRAY(to);
    text_format(&t, "%s/to", folder);
    struct sov_fault fault = {0};
    int descriptor = -1;
    CHECK(platform_make_folder(folder, &fault) == SOV_OK);
    CHECK(platform_make_folder(folder, &fault) == SOV_OK); // it is there
    CHECK(platform_open(from, PLATFORM_OPEN_CREATE, &descriptor, &fault) == SOV_OK);
    CHECK(platform_write_at(descriptor, 2, "23", 2, &fault) == SOV_OK);
    CHECK(platform_write_at(descriptor, 0, "01", 2, &fault) == SOV_OK);
    CHECK_MSG(platform_sync(descriptor, &fault) == SOV_OK, "%s", fault.message);
    platform_close(descriptor);
    CHECK(!platform_is_missing(from) && platform_rename(from, to, &fault) == SOV_OK);
    CHECK(platform_is_missing(from) && !platform_is_missing(to));
    CHECK_MSG(platform_sync_folder(folder, &fault) == SOV_OK, "%s", fault.message);
    CHECK(platform_open(to, PLATFORM_OPEN_UPDATE, &descriptor, &fault) == SOV_OK);
    CHECK(platform_write_at(descriptor, 1, "x", 1, &fault) == SOV_OK);
    expect_content(descriptor, "0x23");
    platform_close(descriptor);
    EXPECT_FAULT(platform_rename(from, to, &fault), fault, "rename");
    fault = (struct sov_fault){0};
    EXPECT_FAULT(platform_open(from, PLATFORM_OPEN_UPDATE, &descriptor, &fault), fault, "ENOENT");
    fault = (struct sov_fault){0};
    EXPECT_FAULT(platform_sync_folder(to, &fault), fault, "ENOTDIR");
    fault = (struct sov_fault){0};
    EXPECT_FAULT(platform_make_folder("no/such/folder", &fault), fault, "make folder");
    fault = (struct sov_fault){0};
    EXPECT_FAULT(platform_sync(999, &fault), fault, "sync descriptor 999: EBADF");
    fault = (struct sov_fault){0};
    EXPECT_FAULT(platform_write_at(999, 0, "x", 1, &fault), fault, "write descriptor 999: EBADF");
    fault = (struct sov_fault){0};
    EXPECT_FAULT(platform_remove_folder(folder, &fault), fault, "ENOTEMPTY");
    fault = (struct sov_fault){0};
    EXPECT_FAULT(platform_remove(from, &fault), fault, "remove");
    CHECK(platform_remove(to, NULL) == SOV_OK && platform_is_missing(to));
    CHECK(platform_remove_folder(folder, NULL) == SOV_OK && platform_is_missing(folder));
}

static void a_lock_is_for_one(void) {
    write_scratch("", 0);
    int first = open_or_fail(PLATFORM_OPEN_APPEND), second = open_or_fail(PLATFORM_OPEN_APPEND);
    struct sov_fault fault = {0};
    CHECK(platform_lock(first, &fault) == SOV_OK && platform_lock(first, &fault) == SOV_OK);
    CHECK(platform_lock(second, &fault) == SOV_ERR_STATE && fault.message[0] != 0);
    platform_close(first);
    fault = (struct sov_fault){0};
    CHECK_MSG(platform_lock(second, &fault) == SOV_OK, "%s", fault.message);
    platform_close(second);
}

// The same for two looks at one file; another size, inode or time where it is another one, or was
// changed.
static void files_have_an_identity(void) {
    struct platform_identity first, again, changed, other;
    struct sov_fault fault = {0};
    int descriptor = open_or_fail(PLATFORM_OPEN_CREATE), second = -1, elsewhere = -1;
    u64 now = platform_wall_ns();
    CHECK(platform_write(descriptor, "0123", 4, &fault) == SOV_OK);
    CHECK(platform_file_identity(descriptor, &first) && first.bytes == 4);
    CHECK(first.modified_ns < now + 60000000000ull && first.modified_ns + 60000000000ull > now);
    CHECK(platform_open(scratch_path, PLATFORM_OPEN_READ, &second, &fault) == SOV_OK);
    CHECK(platform_file_identity(second, &again));
    CHECK(memcmp(&first, &again, sizeof first) == 0);
    platform_sleep(20000000); // more than a tick of the file system's clock
    CHECK(platform_write_at(descriptor, 0, "x", 1, &fault) == SOV_OK);
    CHECK(platform_file_identity(second, &changed));
    CHECK(changed.inode == first.inode && changed.device == first.device && changed.bytes == 4);
    CHECK(changed.modified_ns > first.modified_ns && changed.changed_ns > first.changed_ns);
    CHECK(platform_open("Makefile", PLATFORM_OPEN_READ, &elsewhere, &fault) == SOV_OK);
    CHECK(platform_file_identity(elsewhere, &other) && other.inode != first.inode);
    platform_close(descriptor);
    platform_close(second);
    platform_close(elsewhere);
    CHECK(!platform_file_identity(999, &other));
}

static void sleeping_takes_time(void) {
    u64 begin = platform_monotonic_ns();
    platform_sleep(3000000);
    u64 slept = platform_monotonic_ns() - begin;
    CHECK_MSG(slept >= 3000000, "%llu ns", slept);
}

static void files_are_mapped(void) {
    u8 out[4096 * 2 + 100];
    for (usize i = 0; i < sizeof out; i++) out[i] = (u8)(i * 13 + (i >> 8));
    static const usize sizes[] = {1, 4095, 4096, 4097, sizeof out};
    for (u32 i = 0; i < COUNT_OF(sizes); i++) {
        write_scratch(out, sizes[i]);
        u64 mapped_before = platform_memory_mapped();
        struct sov_fault fault = {0};
        int descriptor = open_or_fail(PLATFORM_OPEN_READ);
        const u8 *data = NULL;
        enum sov_status status = platform_file_map(descriptor, sizes[i], &data, &fault);
        platform_close(descriptor); // the mapping stays
        CHECK_MSG(status == SOV_OK, "%s", fault.message);
        if (status != SOV_OK) continue;
        CHECK((usize)data % 4096 == 0);
        CHECK(memcmp(data, out, sizes[i]) == 0);
        CHECK(platform_memory_mapped() == mapped_before); // a file is not memory
        platform_file_unmap(data, sizes[i]);
    }
}

// --- memory ---

static void memory_is_zeroed_aligned_and_counted(void) {
    static const usize sizes[] = {1, 4096, 4097, 1 << 20};
    u64 before = platform_memory_mapped();
    for (u32 i = 0; i < COUNT_OF(sizes); i++) {
        u8 *memory = platform_memory_map(sizes[i]);
        CHECK(memory != NULL && (usize)memory % 4096 == 0);
        if (memory == NULL) continue;
        CHECK(platform_memory_mapped() == before + sizes[i]);
        u32 sum = 0;
        for (usize j = 0; j < sizes[i]; j++) sum |= memory[j];
        CHECK(sum == 0);
        memset(memory, 0xff, sizes[i]);
        platform_memory_unmap(memory, sizes[i]);
        CHECK(platform_memory_mapped() == before);
    }
    CHECK(platform_memory_map(0) == NULL);
    CHECK(platform_memory_map((usize)1 << 62) == NULL);
    CHECK(platform_memory_map((usize)-1) == NULL);
    platform_memory_unmap(NULL, 0);
    CHECK(platform_memory_mapped() == before);
}

// --- clocks and randomness ---

static void clocks_move_forward(void) {
    u64 first = platform_monotonic_ns(), last = first;
    for (u32 i = 0; i < 1000; i++) {
        u64 now = platform_monotonic_ns();
        CHECK(now >= last);
        last = now;
    }
    CHECK(last > first);
    CHECK(last - first < 10000000000);               // 1,000 calls in under 10 s
    CHECK(platform_wall_ns() > 1577836800000000000); // later than 2020
    CHECK(platform_wall_ns() < 4102444800000000000); // earlier than 2100
}

static void random_bytes_differ(void) {
    struct sov_fault fault = {0};
    static u8 large[100000]; // more than the system gives in one call after a signal
    u8 a[32] = {0}, b[32] = {0};
    CHECK(platform_random(a, sizeof a, &fault) == SOV_OK);
    CHECK(platform_random(b, sizeof b, &fault) == SOV_OK);
    CHECK(memcmp(a, b, sizeof a) != 0);
    CHECK(platform_random(large, sizeof large, &fault) == SOV_OK);
    u32 counts[256] = {0};
    for (usize i = 0; i < sizeof large; i++) counts[large[i]]++;
    for (u32 i = 0; i < 256; i++) {
        // 390 on average with a deviation of 20: a factor of two is 10 deviations and more.
        CHECK_MSG(counts[i] > 195 && counts[i] < 780, "byte %u comes %u times", i, counts[i]);
    }
}

// --- threads ---

struct task {
    u32 number;
    f32 quotient;
    u32 mxcsr;
    u16 x87;
    bool aligned;
};

static void run_task(void *argument) {
    struct task *task = argument;
    // Two subnormals: one is an operand, one a result. Flush-to-zero would lose either.
    volatile f32 tiny = f32_from_bits(3), two = 2;
    task->quotient = tiny * two;
    __asm__("stmxcsr %0\n\tfnstcw %1" : "=m"(task->mxcsr), "=m"(task->x87));
    // The compiler takes the stack's alignment for granted, so the address is hidden from it.
    _Alignas(16) volatile u8 block[64];
    usize address = (usize)block;
    __asm__ volatile("" : "+r"(address));
    task->aligned = address % 16 == 0;
    task->number *= 10;
}

static struct platform_thread *start_or_fail(platform_thread_main *main, void *argument) {
    struct sov_fault fault = {0};
    struct platform_thread *thread = NULL;
    enum sov_status status = platform_thread_start(main, argument, &thread, &fault);
    CHECK_MSG(status == SOV_OK, "%s", fault.message);
    return thread;
}

static void expect_task(const struct task *task, u32 number) {
    CHECK_MSG(task->number == number, "%u instead of %u", task->number, number);
    CHECK_MSG(f32_bits(task->quotient) == 6, "subnormals: %08x", f32_bits(task->quotient));
    CHECK_MSG((task->mxcsr & 0xffc0) == 0x1f80, "mxcsr %x", task->mxcsr); // low bits are flags
    CHECK_MSG(task->x87 == 0x37f, "x87 control word %x", task->x87);
    CHECK(task->aligned);
}

static void threads_run_and_are_joined(void) {
    // A disturbed control word of the starting thread must not be inherited.
    u32 mxcsr, disturbed = 0xffc0; // flush to zero, denormals are zero, round towards zero
    __asm__ volatile("stmxcsr %0\n\tldmxcsr %1" : "=m"(mxcsr) : "m"(disturbed));
    struct task tasks[8];
    struct platform_thread *threads[COUNT_OF(tasks)];
    for (u32 i = 0; i < COUNT_OF(tasks); i++) {
        tasks[i] = (struct task){.number = i};
        threads[i] = start_or_fail(run_task, &tasks[i]);
    }
    __asm__ volatile("ldmxcsr %0" : : "m"(mxcsr));
    for (u32 i = 0; i < COUNT_OF(tasks); i++) {
        if (threads[i] == NULL) continue;
        platform_thread_join(threads[i]);
        expect_task(&tasks[i], i * 10);
    }
    struct task task = {.number = 3};
    run_task(&task); // the first thread keeps the same rules
    expect_task(&task, 30);
}

#define PING_PONGS 2000

struct table {
    u32 turn; // even: the first thread's
    u32 n_hits;
};

static void play(struct table *table, u32 side) {
    for (u32 i = 0; i < PING_PONGS; i++) {
        u32 mine = 2 * i + side;
        u32 turn;
        while ((turn = __atomic_load_n(&table->turn, __ATOMIC_ACQUIRE)) != mine) {
            platform_wait(&table->turn, turn);
        }
        table->n_hits++; // only whose turn it is may touch it
        __atomic_store_n(&table->turn, mine + 1, __ATOMIC_RELEASE);
        platform_wake_all(&table->turn);
    }
}

static void play_second(void *argument) { play(argument, 1); }

static void wait_and_wake_play_ping_pong(void) {
    struct table table = {0};
    struct platform_thread *thread = start_or_fail(play_second, &table);
    if (thread == NULL) return;
    play(&table, 0);
    platform_thread_join(thread);
    CHECK_MSG(table.n_hits == 2 * PING_PONGS, "%u hits", table.n_hits);
    platform_wait(&table.turn, table.turn + 1); // another value than expected: returns at once
}

struct gate {
    u32 open, n_through;
};

static void wait_at_gate(void *argument) {
    struct gate *gate = argument;
    while (__atomic_load_n(&gate->open, __ATOMIC_ACQUIRE) == 0) platform_wait(&gate->open, 0);
    __atomic_fetch_add(&gate->n_through, 1, __ATOMIC_RELAXED);
}

// As many as the limit says may run at once; one more is refused; afterwards all is as before.
static void threads_up_to_the_limit(void) {
    u64 before = platform_memory_mapped();
    static struct platform_thread *threads[PLATFORM_THREADS_MAX];
    for (u32 round = 0; round < 2; round++) {
        struct gate gate = {0};
        for (u32 i = 0; i < PLATFORM_THREADS_MAX; i++) {
            threads[i] = start_or_fail(wait_at_gate, &gate);
        }
        struct platform_thread *extra = NULL;
        struct sov_fault fault = {0};
        enum sov_status status = platform_thread_start(wait_at_gate, &gate, &extra, &fault);
        CHECK_MSG(status == SOV_ERR_LIMIT && extra == NULL, "%s", status_name(status));
        __atomic_store_n(&gate.open, 1, __ATOMIC_RELEASE);
        platform_wake_all(&gate.open);
        for (u32 i = 0; i < PLATFORM_THREADS_MAX; i++) {
            if (threads[i] != NULL) platform_thread_join(threads[i]);
        }
        CHECK_MSG(gate.n_through == PLATFORM_THREADS_MAX, "%u came through", gate.n_through);
        CHECK(platform_memory_mapped() == before);
    }
}

// Most of a stack is usable, down to its far end.
static void use_stack(void *argument) {
    volatile u8 deep[PLATFORM_STACK_BYTES - 16 * 1024];
    for (usize i = 0; i < sizeof deep; i += 1024) deep[i] = (u8)i;
    u32 sum = 0;
    for (usize i = 0; i < sizeof deep; i += 1024) sum += deep[i];
    *(u32 *)argument = sum + 1;
}

static void stack_has_its_size(void) {
    u32 result = 0;
    struct platform_thread *thread = start_or_fail(use_stack, &result);
    if (thread == NULL) return;
    platform_thread_join(thread);
    CHECK(result == 1); // multiples of 1,024 are 0 in a byte
}

static void cpu_count_is_sensible(void) {
    u32 count = platform_cpu_count();
    CHECK_MSG(count >= 1 && count <= 8192, "%u", count);
}

// --- the check at the start ---

static void missing_cpu_features_are_named(void) {
    // What each word of a v3 CPU must have, and one bit of it cleared at a time.
    static const u32 v3[CPU_WORD_COUNT] = {
        [CPU_LEAF1_ECX] = 0x38d83201,
        [CPU_LEAF7_EBX] = 0x00000128,
        [CPU_EXTENDED1_ECX] = 0x00000021,
        [CPU_XCR0] = 0x00000006,
    };
    CHECK(cpu_missing_feature(v3) == NULL);
    static const struct {
        enum cpu_word word;
        u32 bit;
        const char *name;
    } rows[] = {
        {CPU_LEAF1_ECX, 0, "SSE3"},     {CPU_LEAF1_ECX, 9, "SSSE3"},
        {CPU_LEAF1_ECX, 12, "FMA"},     {CPU_LEAF1_ECX, 13, "CMPXCHG16B"},
        {CPU_LEAF1_ECX, 19, "SSE4.1"},  {CPU_LEAF1_ECX, 20, "SSE4.2"},
        {CPU_LEAF1_ECX, 22, "MOVBE"},   {CPU_LEAF1_ECX, 23, "POPCNT"},
        {CPU_LEAF1_ECX, 27, "OSXSAVE"}, {CPU_LEAF1_ECX, 28, "AVX"},
        {CPU_LEAF1_ECX, 29, "F16C"},    {CPU_LEAF7_EBX, 3, "BMI1"},
        {CPU_LEAF7_EBX, 5, "AVX2"},     {CPU_LEAF7_EBX, 8, "BMI2"},
        {CPU_EXTENDED1_ECX, 0, "LAHF"}, {CPU_EXTENDED1_ECX, 5, "LZCNT"},
        {CPU_XCR0, 1, "YMM"},           {CPU_XCR0, 2, "YMM"},
    };
    u32 n_bits = 0;
    for (u32 i = 0; i < CPU_WORD_COUNT; i++) n_bits += (u32)__builtin_popcount(v3[i]);
    CHECK(n_bits == COUNT_OF(rows)); // every bit has its row
    for (u32 i = 0; i < COUNT_OF(rows); i++) {
        u32 words[CPU_WORD_COUNT];
        memcpy(words, v3, sizeof words);
        words[rows[i].word] &= ~(1u << rows[i].bit);
        const char *missing = cpu_missing_feature(words);
        CHECK_MSG(missing != NULL && str_starts_with(str_from_z(missing), str_from_z(rows[i].name)),
                  "\"%s\" instead of %s", missing == NULL ? "nothing" : missing, rows[i].name);
    }
    static const u32 nothing[CPU_WORD_COUNT];
    CHECK(cpu_missing_feature(nothing) != NULL);
    static const u32 all[CPU_WORD_COUNT] = {~0u, ~0u, ~0u, ~0u};
    CHECK(cpu_missing_feature(all) == NULL);
}

// --- libraries ---

// A freestanding test is static and must say so; the hosted one opens what there is. The program
// that the loader starts is under test in test_cuda_driver.c.
static void libraries_are_opened_or_refused(void) {
    bool hosted = program_start->system == NULL;
    struct platform_library library = {0};
    struct sov_fault fault = {0};
    enum sov_status status = platform_library_open(program_start, "libm.so.6", &library, &fault);
    CHECK_MSG(status == (hosted ? SOV_OK : SOV_ERR_STATE), "%s", fault.message);
    if (!hosted) {
        CHECK_MSG(contains(fault.message, "libm.so.6: this program is static"), "%s",
                  fault.message);
        return;
    }
    void *address = NULL;
    CHECK(platform_library_symbol(&library, "cos", &address, &fault) == SOV_OK && address != NULL);
    CHECK(platform_library_symbol(&library, "no_cos", &address, &fault) == SOV_ERR_UNSUPPORTED);
    CHECK_MSG(contains(fault.message, "libm.so.6: no function no_cos"), "%s", fault.message);
    fault = (struct sov_fault){0};
    status = platform_library_open(program_start, "no_such_library.so", &library, &fault);
    CHECK(status == SOV_ERR_UNSUPPORTED);
    CHECK_MSG(contains(fault.message, "library no_such_library.so: "), "%s", fault.message);
}

static void held_signals_come_later(void) {
    u64 before = platform_signals_hold();
    u64 held = platform_signals_hold();
    platform_signals_release(held);
    platform_signals_release(before);
    CHECK_MSG(held != before && (held | before) == held, "%llx and then %llx", before, held);
    CHECK((held >> 5 & 1) == 0); // SIGABRT stays open
    u64 again = platform_signals_hold();
    platform_signals_release(again);
    CHECK(again == before);
}

// --- actions for tests/test_binary.py ---

static void say(const char *text) {
    struct str s = str_from_z(text);
    if (platform_write(PLATFORM_STDOUT, s.data, s.len, NULL) != SOV_OK) platform_exit(4);
}

// Says "ready", then waits for input until a signal comes; says whether it came as an error of the
// read. After that a second signal must end the program.
static int wait_for_signal_in_read(void) {
    platform_watch_interrupt();
    say("ready\n");
    u8 byte;
    usize n_read = 0;
    struct sov_fault fault = {0};
    enum sov_status status = platform_read_some(PLATFORM_STDIN, &byte, 1, &n_read, &fault);
    say(status == SOV_ERR_INTERRUPTED && platform_interrupted() ? "interrupted\n" : "no signal\n");
    status = platform_read(PLATFORM_STDIN, &byte, 1, &n_read, &fault); // does not wait any more
    say(status == SOV_ERR_INTERRUPTED ? "again\n" : "read\n");
    if (status != SOV_ERR_INTERRUPTED) return 0;
    u32 word = 0;
    for (;;) platform_wait(&word, 0); // until the second signal
}

// Copies input to output until its end, as a command that watches signals does. A read that gives
// less than was asked for must have been the last.
static int copy_input(void) {
    platform_watch_interrupt();
    static u8 buffer[4999]; // no divisor of what a pipe holds
    struct sov_fault fault = {0};
    usize n_before = sizeof buffer;
    for (;;) {
        usize n_read = 0;
        if (platform_read(PLATFORM_STDIN, buffer, sizeof buffer, &n_read, &fault) != SOV_OK) break;
        if (n_read > 0 && n_before < sizeof buffer) return 3;
        if (n_read == 0) return 0;
        n_before = n_read;
        if (platform_write(PLATFORM_STDOUT, buffer, n_read, &fault) != SOV_OK) break;
    }
    return 1;
}

// Writes until the reader is gone, then tells stderr what the platform said.
static int write_for_ever(void) {
    struct sov_fault fault = {0};
    static const u8 block[65536];
    while (platform_write(PLATFORM_STDOUT, block, sizeof block, &fault) == SOV_OK) {
    }
    struct str message = str_from_z(fault.message);
    return platform_write(PLATFORM_STDERR, message.data, message.len, NULL) == SOV_OK ? 7 : 8;
}

// Works its way down the stack without end. The volatile depth keeps this from becoming a loop.
static u8 fall_further(const volatile u8 *above) {
    volatile u8 frame[512];
    volatile u32 deeper = 1;
    frame[0] = above[0];
    return deeper != 0 ? fall_further(frame) + frame[0] : 0;
}

static void fall_down(void *argument) { *(u8 *)argument = fall_further(argument); }

static int overflow_stack(void) {
    u8 byte = 0;
    struct platform_thread *thread = start_or_fail(fall_down, &byte);
    if (thread != NULL) platform_thread_join(thread);
    return 0;
}

static void fail_assertion(void *argument) { // cppcheck-suppress constParameter
    assert(argument != NULL);
}

static int fail_assertion_in_thread(void) {
    struct platform_thread *thread = start_or_fail(fail_assertion, NULL);
    if (thread != NULL) platform_thread_join(thread);
    return 0;
}

// Prints its arguments and the variable SOV_TEST_ECHO.
static int echo(const struct platform_start *start) {
    for (u32 i = 0; i < start->n_args; i++) {
        say(start->args[i]);
        say("\n");
    }
    const char *value = platform_environment(start, "SOV_TEST_ECHO");
    say(value == NULL ? "(none)" : value);
    say("\n");
    return 9;
}

static const struct test_case cases[] = {
    {"environment_is_found_by_whole_name", environment_is_found_by_whole_name},
    {"open_says_what_is_wrong", open_says_what_is_wrong},
    {"what_is_written_is_read", what_is_written_is_read},
    {"bad_descriptors_are_errors", bad_descriptors_are_errors},
    {"files_are_appended_read_anywhere_and_cut", files_are_appended_read_anywhere_and_cut},
    {"a_lock_is_for_one", a_lock_is_for_one},
    {"files_are_updated_synced_and_renamed", files_are_updated_synced_and_renamed},
    {"files_have_an_identity", files_have_an_identity},
    {"sleeping_takes_time", sleeping_takes_time},
    {"files_are_mapped", files_are_mapped},
    {"memory_is_zeroed_aligned_and_counted", memory_is_zeroed_aligned_and_counted},
    {"clocks_move_forward", clocks_move_forward},
    {"random_bytes_differ", random_bytes_differ},
    {"threads_run_and_are_joined", threads_run_and_are_joined},
    {"wait_and_wake_play_ping_pong", wait_and_wake_play_ping_pong},
    {"threads_up_to_the_limit", threads_up_to_the_limit},
    {"stack_has_its_size", stack_has_its_size},
    {"cpu_count_is_sensible", cpu_count_is_sensible},
    {"missing_cpu_features_are_named", missing_cpu_features_are_named},
    {"libraries_are_opened_or_refused", libraries_are_opened_or_refused},
    {"held_signals_come_later", held_signals_come_later},
};

int program_main(const struct platform_start *start) {
    program_start = start;
    struct str action = start->n_args > 1 ? str_from_z(start->args[1]) : STR("");
    if (str_equal(action, STR("wait_for_signal_in_read"))) return wait_for_signal_in_read();
    if (str_equal(action, STR("copy_input"))) return copy_input();
    if (str_equal(action, STR("write_for_ever"))) return write_for_ever();
    if (str_equal(action, STR("overflow_stack"))) return overflow_stack();
    if (str_equal(action, STR("fail_assertion_in_thread"))) return fail_assertion_in_thread();
    if (str_equal(action, STR("echo"))) return echo(start);
    struct text path = TEXT_OVER_ARRAY(scratch_path);
    text_format(&path, "%s.scratch", start->args[0]);
    return test_main(start, "test_platform", cases, COUNT_OF(cases));
}
