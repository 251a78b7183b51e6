// SPDX-License-Identifier: Apache-2.0
// The bottom layers of the CUDA backend on a card: every module compiled by the driver, and `add`
// launched through the table and compared with the reference. It is linked as sov is, so that the
// real driver is opened by the walk of linux_library.c. Not part of the tests, which have no card:
// `make cuda-bundle` puts it into build/cuda_bundle, and run.sh there runs it on a machine that
// has one. Against the stand-in, which executes nothing, it must fail (tests/test_cuda_driver.py).
#include "cuda/cuda_kernels.h"
#include "freestanding/mem.h"
#include "ops/op.h"
#include "test.h"

// Device memory and its image on the host: residual, x, then the status words. What lies between
// and behind rows is poison that must come back as it was.
#define HALF_FLOATS (1u << 16)
#define STATUS_FLOAT (2 * HALF_FLOATS)
#define ALL_FLOATS (STATUS_FLOAT + 64)
#define ALL_BYTES (ALL_FLOATS * sizeof(f32))
#define POISON 0xffffffffu

static struct {
    struct cuda_driver driver;
    struct cuda_kernels kernels;
    struct cuda_stream *stream;
    cuda_address memory, power;
    void *pinned;
    u32 *power_word; // on the host, read by the card
    struct op_table reference;
} card;

static f32 expected[ALL_FLOATS];

static void check_ok(int line, enum sov_status status, const struct sov_fault *fault) {
    if (status != SOV_OK) {
        test_fail(__FILE__, line, "%s: %s", status_name(status), fault->message);
    }
}
#define CHECK_OK(status, fault) check_ok(__LINE__, status, &(fault))

// The driver's compiler is not the ptxas of the tests: what it made of each kernel is printed.
static void kernels_do_not_spill(void) {
    for (u32 kernel = 0; kernel < CUDA_KERNEL_COUNT; kernel++) {
        struct sov_fault fault = {0};
        u32 values[4] = {0};
        static const enum cuda_function_attribute attributes[4] = {
            CUDA_FUNCTION_REGISTERS, CUDA_FUNCTION_LOCAL_BYTES, CUDA_FUNCTION_SHARED_BYTES,
            CUDA_FUNCTION_THREADS_MAX};
        const char *name = cuda_kernel_name(kernel);
        for (u32 i = 0; i < 4; i++) {
            CHECK_OK(cuda_function_get(&card.driver, card.kernels.functions[kernel], name,
                                       attributes[i], &values[i], &fault),
                     fault);
        }
        test_note("%-28s %3u registers, %u local, %5u shared, %4u threads", name, values[0],
                  values[1], values[2], values[3]);
        CHECK_MSG(values[0] > 0 && values[1] == 0, "%s: %u registers, %u bytes local", name,
                  values[0], values[1]);
    }
}

// Random values in the rows, poison elsewhere, on the card and in `expected`.
static void fill(u32 rows, u32 n, u32 residual_stride, u32 x_stride) {
    struct test_random random = {rows * 1000003ull + n};
    u32 *words = card.pinned;
    for (u32 i = 0; i < ALL_FLOATS; i++) words[i] = POISON;
    for (u32 row = 0; row < rows; row++) {
        for (u32 i = 0; i < n; i++) {
            f32 a = (f32)(test_random_unit(&random) * 8.0 - 4.0);
            f32 b = (f32)(test_random_unit(&random) * 0x1p-20);
            words[row * residual_stride + i] = f32_bits(a);
            words[HALF_FLOATS + row * x_stride + i] = f32_bits(b);
        }
    }
    words[STATUS_FLOAT] = words[STATUS_FLOAT + 1] = 0;
    memcpy(expected, card.pinned, ALL_BYTES);
    struct sov_fault fault = {0};
    CHECK_OK(
        cuda_upload(&card.driver, card.stream, card.memory, card.pinned, ALL_BYTES, "rows", &fault),
        fault);
    CHECK_OK(cuda_stream_wait(&card.driver, card.stream, "rows", &fault), fault);
    memset(card.pinned, 0x77, ALL_BYTES);
}

static struct cuda_add_params params_of(u32 n, u32 residual_stride, u32 x_stride) {
    return (struct cuda_add_params){
        .power = card.power,
        .status = card.memory + STATUS_FLOAT * sizeof(f32),
        .residual = card.memory,
        .x = card.memory + HALF_FLOATS * sizeof(f32),
        .n = n,
        .residual_stride = residual_stride,
        .x_stride = x_stride,
    };
}

static void expect_add(u32 rows, u32 n, u32 residual_stride, u32 x_stride, u64 n_blocks) {
    struct add_args args = {expected, expected + HALF_FLOATS, residual_stride, x_stride, n};
    CHECK(card.reference.add(&args, 0, rows, NULL) == 0);
    u32 blocks_before = f32_bits(expected[STATUS_FLOAT + 1]);
    expected[STATUS_FLOAT + 1] = f32_from_bits(blocks_before + (u32)n_blocks);
}

static void compare(const char *what) {
    struct sov_fault fault = {0};
    CHECK_OK(cuda_download(&card.driver, card.stream, card.pinned, card.memory, ALL_BYTES, "rows",
                           &fault),
             fault);
    CHECK_OK(cuda_stream_wait(&card.driver, card.stream, what, &fault), fault);
    const u32 *found = card.pinned, *wanted = (const u32 *)(const void *)expected;
    u32 n_different = 0, first = 0;
    for (u32 i = ALL_FLOATS; i-- > 0;) {
        if (found[i] == wanted[i]) continue;
        n_different++;
        first = i;
    }
    CHECK_MSG(n_different == 0, "%s: %u words differ, the first is %u: %x, expected %x", what,
              n_different, first, found[first], wanted[first]);
}

static void add_equals_the_reference(void) {
    static const struct {
        u32 rows, n, residual_stride, x_stride;
    } shapes[] = {{1, 1, 4, 4},          {3, 31, 32, 36},       {2, 1023, 1024, 1028},
                  {5, 1024, 1024, 1024}, {4, 1025, 1032, 1060}, {13, 4100, 4100, 4104}};
    for (u32 i = 0; i < COUNT_OF(shapes); i++) {
        u32 rows = shapes[i].rows, n = shapes[i].n;
        u32 residual_stride = shapes[i].residual_stride, x_stride = shapes[i].x_stride;
        fill(rows, n, residual_stride, x_stride);
        struct cuda_add_params params = params_of(n, residual_stride, x_stride);
        struct sov_fault fault = {0};
        const u32 counts[3] = {rows, n, 1};
        u32 grid[3] = {0};
        CHECK_OK(cuda_kernel_grid(CUDA_KERNEL_add, counts, grid, &fault), fault);
        CHECK_OK(CUDA_LAUNCH(&card.kernels, card.stream, add, counts, 0, &params, &fault), fault);
        expect_add(rows, n, residual_stride, x_stride, cuda_kernel_blocks(grid));
        char what[64];
        struct text t = TEXT_OVER_ARRAY(what);
        text_format(&t, "add %u x %u", rows, n);
        compare(what);
    }
}

static void nothing_is_written_while_idle(void) {
    static const u32 states[] = {0, 2, 3, 0xffffffffu};
    for (u32 i = 0; i < COUNT_OF(states); i++) {
        fill(3, 1025, 1028, 1028);
        *card.power_word = states[i];
        struct cuda_add_params params = params_of(1025, 1028, 1028);
        struct sov_fault fault = {0};
        CHECK_OK(
            CUDA_LAUNCH(&card.kernels, card.stream, add, ((u32[]){3, 1025, 1}), 0, &params, &fault),
            fault);
        compare("idle");
        *card.power_word = CUDA_POWER_ACTIVE;
    }
}

static void graphs_run_their_launches(void) {
    fill(2, 100, 100, 100);
    struct cuda_add_params params = params_of(100, 100, 100);
    struct sov_fault fault = {0};
    struct cuda_graph_exec *graph = NULL;
    const u32 counts[3] = {2, 100, 1};
    CHECK_OK(cuda_capture_begin(&card.driver, card.stream, &fault), fault);
    for (u32 i = 0; i < 2; i++) {
        CHECK_OK(CUDA_LAUNCH(&card.kernels, card.stream, add, counts, 0, &params, &fault), fault);
    }
    CHECK_OK(cuda_capture_end(&card.driver, card.stream, &graph, &fault), fault);
    for (u32 i = 0; graph != NULL && i < 3; i++) {
        CHECK_OK(cuda_graph_launch(&card.driver, graph, card.stream, "adds", &fault), fault);
    }
    for (u32 i = 0; i < 6; i++) expect_add(2, 100, 100, 100, 2);
    compare("graph");
    cuda_graph_destroy(&card.driver, graph);
}

// The last case: the context is of no use afterwards, and closing it must still work.
static void a_bad_address_is_a_message(void) {
    struct cuda_add_params params = params_of(4, 4, 4);
    params.residual = 4096;
    struct sov_fault fault = {0};
    CHECK_OK(CUDA_LAUNCH(&card.kernels, card.stream, add, ((u32[]){1, 4, 1}), 0, &params, &fault),
             fault);
    enum sov_status status = cuda_stream_wait(&card.driver, card.stream, "add", &fault);
    test_note("%s: %s", status_name(status), fault.message);
    CHECK(status == SOV_ERR_IO);
}

static const struct test_case cases[] = {
    {"kernels_do_not_spill", kernels_do_not_spill},
    {"add_equals_the_reference", add_equals_the_reference},
    {"nothing_is_written_while_idle", nothing_is_written_while_idle},
    {"graphs_run_their_launches", graphs_run_their_launches},
    {"a_bad_address_is_a_message", a_bad_address_is_a_message},
};

static enum sov_status open_card(const struct platform_start *start, struct sov_fault *fault) {
    struct cuda_options options = {0};
    u64 begin = platform_monotonic_ns();
    enum sov_status status = cuda_driver_open(&card.driver, start, &options, fault);
    if (status != SOV_OK) return status;
    u64 opened = platform_monotonic_ns();
    status = cuda_kernels_open(&card.kernels, &card.driver, fault);
    u64 compiled = platform_monotonic_ns();
    test_note("%s, compute capability %u.%u, %u multiprocessors, %llu MiB, CUDA %d; opened in %llu "
              "ms, modules compiled in %llu ms",
              card.driver.card, card.driver.capability / 10, card.driver.capability % 10,
              card.driver.n_multiprocessors, card.driver.memory_bytes >> 20, card.driver.version,
              (opened - begin) / 1000000, (compiled - opened) / 1000000);
    if (status == SOV_OK) status = cuda_stream_create(&card.driver, &card.stream, fault);
    if (status == SOV_OK) {
        status = cuda_memory_alloc(&card.driver, ALL_BYTES, "rows", &card.memory, fault);
    }
    if (status == SOV_OK) {
        status = cuda_pinned_alloc(&card.driver, ALL_BYTES, "staging", &card.pinned, NULL, fault);
    }
    void *word = NULL;
    if (status == SOV_OK) {
        status = cuda_pinned_alloc(&card.driver, 64, "power", &word, &card.power, fault);
    }
    card.power_word = word;
    return status;
}

static void close_card(void) {
    cuda_pinned_free(&card.driver, card.power_word);
    cuda_pinned_free(&card.driver, card.pinned);
    cuda_memory_free(&card.driver, card.memory);
    cuda_stream_destroy(&card.driver, card.stream);
    cuda_kernels_close(&card.kernels);
    cuda_driver_close(&card.driver);
}

int program_main(const struct platform_start *start) {
    struct sov_fault fault = {0};
    enum sov_status status = open_card(start, &fault);
    int code = 1;
    if (status == SOV_OK) {
        *card.power_word = CUDA_POWER_ACTIVE;
        op_fill_reference(&card.reference);
        code = test_main(start, "card_cuda", cases, COUNT_OF(cases));
    } else {
        test_note("%s: %s", status_name(status), fault.message);
    }
    close_card();
    return code;
}
