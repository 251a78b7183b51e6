// SPDX-License-Identifier: Apache-2.0
// The driver layer and the launch table against a stand-in for libcuda.so.1 (cuda_standin.c), which
// needs no card. The freestanding program is linked as sov is, so the walk to the loader's dlopen
// is under test too. `test_cuda_driver probe` opens the driver that the loader finds and prints
// what it is or why not (tests/test_cuda_driver.py).
#include "cuda/cuda_kernels.h"
#include "freestanding/mem.h"
#include "standin.h"

static const struct standin_config good = {
    .version = 12040,
    .n_devices = 2,
    .major = 8,
    .minor = 9,
    .threads_max = 1024,
    .memory_bytes = 1 << 20,
    .fail_result = 719,
};

static enum sov_status open_standin(struct cuda_driver *driver, struct sov_fault *fault) {
    struct cuda_options options = {.library = standin_path};
    return cuda_driver_open(driver, program_start, &options, fault);
}

// --- opening ---

static u32 float_control(void) {
    u32 value;
    __asm__ volatile("stmxcsr %0" : "=m"(value));
    return value & ~0x3fu; // without the flags of what happened
}

static void the_card_is_described(void) {
    struct cuda_driver driver;
    struct sov_fault fault = {0};
    standin_reset(&good);
    u64 signals = platform_signals_hold();
    platform_signals_release(signals);
    struct cuda_options options = {.library = standin_path, .device_idx = 1};
    enum sov_status status = cuda_driver_open(&driver, program_start, &options, &fault);
    CHECK_MSG(status == SOV_OK, "%s", fault.message);
    CHECK(driver.version == 12040 && driver.capability == 89 && driver.n_multiprocessors == 132);
    CHECK(driver.memory_bytes == 1 << 20 && driver.shared_bytes_max == 227 << 10);
    CHECK(str_equal(str_from_z(driver.card), STR("Stand-in 1")));
    CHECK(standin_report()->n_live == 1);
    CHECK(standin_report()->n_threads == 1 && standin_report()->signals_were_held);
    u64 again = platform_signals_hold();
    platform_signals_release(again);
    CHECK(again == signals);
    CHECK_MSG(float_control() == 0x1f80, "mxcsr %x", float_control()); // cuInit set flush-to-zero
    cuda_driver_close(&driver);
    cuda_driver_close(&driver); // nothing more
    check_books("open");
}

static void every_refusal_says_why(void) {
    static const struct {
        const char *name, *library; // NULL: the stand-in
        int version, n_devices, major, minor;
        u32 device_idx;
        enum sov_status status;
        const char *message;
    } rows[] = {
        {"no file", "no/libcuda.so.1", 12040, 1, 8, 9, 0, SOV_ERR_UNSUPPORTED,
         "CUDA needs the NVIDIA driver: library no/libcuda.so.1: "},
        {"no CUDA", "libm.so.6", 12040, 1, 8, 9, 0, SOV_ERR_UNSUPPORTED,
         "libm.so.6: no function cuDriverGetVersion"},
        {"no function", old_path, 12040, 1, 8, 9, 0, SOV_ERR_UNSUPPORTED,
         "libcuda.so.1: no function cuGraphInstantiateWithFlags"},
        {"old", NULL, 11070, 1, 8, 9, 0, SOV_ERR_UNSUPPORTED,
         "the NVIDIA driver is too old: it offers CUDA 11.7, expected 11.8 (driver 520)"},
        {"just new enough", NULL, 11080, 1, 8, 9, 0, SOV_OK, ""},
        {"no card", NULL, 12040, 0, 8, 9, 0, SOV_ERR_UNSUPPORTED, "sees no CUDA device"},
        {"no such card", NULL, 12040, 2, 8, 9, 2, SOV_ERR_UNSUPPORTED,
         "CUDA device 2: the driver sees 2"},
        {"Ampere", NULL, 12040, 1, 8, 6, 0, SOV_ERR_UNSUPPORTED,
         "Stand-in 0: compute capability 8.6, expected 8.9 or above"},
        {"Pascal", NULL, 12040, 1, 6, 1, 0, SOV_ERR_UNSUPPORTED, "compute capability 6.1"},
        {"Blackwell", NULL, 13000, 1, 12, 0, 0, SOV_OK, ""},
    };
    for (u32 i = 0; i < COUNT_OF(rows); i++) {
        struct standin_config config = good;
        config.version = rows[i].version;
        config.n_devices = rows[i].n_devices;
        config.major = rows[i].major;
        config.minor = rows[i].minor;
        standin_reset(&config);
        struct cuda_driver driver;
        struct sov_fault fault = {0};
        struct cuda_options options = {
            .library = rows[i].library == NULL ? standin_path : rows[i].library,
            .device_idx = rows[i].device_idx,
        };
        enum sov_status status = cuda_driver_open(&driver, program_start, &options, &fault);
        CHECK_MSG(status == rows[i].status && contains(fault.message, rows[i].message),
                  "%s: %s \"%s\"", rows[i].name, status_name(status), fault.message);
        cuda_driver_close(&driver);
        check_books(rows[i].name);
    }
}

// What sov-static would say: a start without a dynamic section.
static void a_static_program_names_the_other(void) {
    if (program_start->system == NULL) return; // hosted: every program can
    static const u64 nothing[2] = {0, 0};
    struct platform_start start = *program_start;
    start.system = nothing;
    struct cuda_driver driver;
    struct sov_fault fault = {0};
    struct cuda_options options = {0};
    CHECK(cuda_driver_open(&driver, &start, &options, &fault) == SOV_ERR_UNSUPPORTED);
    CHECK_MSG(contains(fault.message, "CUDA needs the program \"sov\""), "%s", fault.message);
}

// --- kernels ---

struct session {
    struct cuda_driver driver;
    struct cuda_kernels kernels;
    struct cuda_stream *stream;
};

static bool session_open(struct session *session) {
    struct sov_fault fault = {0};
    standin_reset(&good);
    enum sov_status status = open_standin(&session->driver, &fault);
    if (status == SOV_OK) status = cuda_kernels_open(&session->kernels, &session->driver, &fault);
    if (status == SOV_OK) status = cuda_stream_create(&session->driver, &session->stream, &fault);
    CHECK_MSG(status == SOV_OK, "%s", fault.message);
    return status == SOV_OK;
}

static void session_close(struct session *session) {
    cuda_stream_destroy(&session->driver, session->stream);
    cuda_kernels_close(&session->kernels);
    cuda_driver_close(&session->driver);
    check_books("session");
}

// The stand-in reads the .param list of the text that it was given and takes each parameter by its
// width, so that every value must arrive in the place that its kernel reads.
static void every_kernel_gets_its_parameters(void) {
    static const u16 bytes_of[CUDA_KERNEL_COUNT] = {
#define BYTES(module, kernel, params, ...) [CUDA_KERNEL_##kernel] = sizeof(struct params),
        CUDA_KERNEL_LIST(BYTES)
#undef BYTES
    };
    struct session session = {0};
    if (!session_open(&session)) return;
    u8 params[256];
    for (u32 i = 0; i < sizeof params; i++) params[i] = (u8)(i * 37 + 11);
    for (u32 kernel = 0; kernel < CUDA_KERNEL_COUNT; kernel++) {
        const char *name = cuda_kernel_name(kernel);
        struct sov_fault fault = {0};
        const u32 counts[3] = {3, 1025, 2};
        u32 grid[3] = {0};
        enum sov_status status = cuda_kernel_grid(kernel, counts, grid, &fault);
        if (status == SOV_OK) {
            status = cuda_kernels_launch(&session.kernels, session.stream, kernel, counts, 0,
                                         params, bytes_of[kernel], &fault);
        }
        const struct standin_launch *launch = &standin_report()->launch;
        CHECK_MSG(status == SOV_OK, "%s: %s", name, fault.message);
        CHECK_MSG(str_equal(str_from_z(launch->kernel), str_from_z(name)), "%s: %s", name,
                  launch->kernel);
        CHECK_MSG(memcmp(launch->grid, grid, sizeof grid) == 0 && launch->grid[2] == 2, "%s", name);
        u64 off = 0;
        for (u32 i = 0; i < launch->n_params; i++) {
            u64 bytes = launch->param_bytes[i], expected = 0;
            off = round_up(off, bytes);
            memcpy(&expected, params + off, bytes);
            CHECK_MSG(launch->params[i] == expected, "%s: parameter %u is %llx", name, i,
                      launch->params[i]);
            off += bytes;
        }
        CHECK_MSG(off == bytes_of[kernel], "%s: %llu bytes of parameters", name, off);
    }
    CHECK(standin_report()->n_launches == CUDA_KERNEL_COUNT);
    session_close(&session);
}

static void add_is_launched_as_it_is_written(void) {
    struct session session = {0};
    if (!session_open(&session)) return;
    struct cuda_add_params params = {.power = 1,
                                     .status = 2,
                                     .residual = 3,
                                     .x = 4,
                                     .n = 1025,
                                     .residual_stride = 6,
                                     .x_stride = 7};
    struct sov_fault fault = {0};
    CHECK(CUDA_LAUNCH(&session.kernels, session.stream, add, ((u32[]){5, 1025, 1}), 0, &params,
                      &fault) == SOV_OK);
    const struct standin_launch *launch = &standin_report()->launch;
    static const u64 expected[] = {1, 2, 3, 4, 1025, 6, 7};
    CHECK(str_equal(str_from_z(launch->kernel), STR("add")) && launch->n_params == 7);
    CHECK(memcmp(launch->params, expected, sizeof expected) == 0);
    CHECK(launch->grid[0] == 5 && launch->grid[1] == 2 && launch->grid[2] == 1);
    CHECK(launch->block[0] == 256 && launch->block[1] == 1 && launch->block[2] == 1);
    CHECK(launch->shared_bytes == 0);
    struct cuda_rmsnorm_params norm = {.n = 64};
    CHECK(CUDA_LAUNCH(&session.kernels, session.stream, rmsnorm_fused, ((u32[]){5, 1, 1}), 64,
                      &norm, &fault) == SOV_OK);
    CHECK(launch->block[0] == 64);
    session_close(&session);
}

static void counts_become_grids(void) {
    static const struct {
        enum cuda_kernel kernel;
        u32 counts[3], grid[3];
        enum sov_status status;
    } rows[] = {
        {CUDA_KERNEL_add, {7, 1, 1}, {7, 1, 1}, SOV_OK},
        {CUDA_KERNEL_add, {7, 1024, 1}, {7, 1, 1}, SOV_OK},
        {CUDA_KERNEL_add, {2147483647, 1025, 1}, {2147483647, 2, 1}, SOV_OK},
        {CUDA_KERNEL_gemm_q4_0, {65, 33, 1}, {2, 2, 1}, SOV_OK},
        {CUDA_KERNEL_gemv_q6_k_4, {8, 5, 1}, {1, 2, 1}, SOV_OK},
        {CUDA_KERNEL_gemv_q6_k_1, {9, 5, 1}, {2, 5, 1}, SOV_OK},
        {CUDA_KERNEL_rope_fused, {1, 9, 1}, {1, 3, 1}, SOV_OK},
        {CUDA_KERNEL_flash_attention_paged_split, {3, 9, 4}, {3, 9, 4}, SOV_OK},
        {CUDA_KERNEL_embed_f32, {1, 4294967295u, 1}, {0}, SOV_ERR_LIMIT},
        {CUDA_KERNEL_add, {2147483648u, 1, 1}, {0}, SOV_ERR_LIMIT},
        {CUDA_KERNEL_flash_attention_paged, {1, 65536, 1}, {0}, SOV_ERR_LIMIT},
        {CUDA_KERNEL_flash_attention_paged, {1, 1, 65536}, {0}, SOV_ERR_LIMIT},
        {CUDA_KERNEL_add, {0, 1, 1}, {0}, SOV_ERR_ARGUMENT},
        {CUDA_KERNEL_add, {1, 0, 1}, {0}, SOV_ERR_ARGUMENT},
    };
    for (u32 i = 0; i < COUNT_OF(rows); i++) {
        struct sov_fault fault = {0};
        u32 grid[3] = {0};
        enum sov_status status = cuda_kernel_grid(rows[i].kernel, rows[i].counts, grid, &fault);
        CHECK_MSG(status == rows[i].status, "row %u: %s %s", i, status_name(status), fault.message);
        if (status != SOV_OK) continue;
        CHECK_MSG(memcmp(grid, rows[i].grid, sizeof grid) == 0, "row %u: %u %u %u", i, grid[0],
                  grid[1], grid[2]);
    }
}

static void cards_that_refuse_a_kernel_are_told_of(void) {
    static const struct {
        int threads_max;
        bool refuses_ptx;
        const char *message;
    } rows[] = {
        {512, false, "the card runs 512 threads of it in a block, expected 1024"},
        {1024, true, "cuModuleLoadDataEx (attention): error 218: ptxas application ptx input"},
    };
    for (u32 i = 0; i < COUNT_OF(rows); i++) {
        struct standin_config config = good;
        config.threads_max = rows[i].threads_max;
        config.refuses_ptx = rows[i].refuses_ptx;
        standin_reset(&config);
        struct cuda_driver driver;
        struct cuda_kernels kernels = {0};
        struct sov_fault fault = {0};
        CHECK_MSG(open_standin(&driver, &fault) == SOV_OK, "%s", fault.message);
        CHECK(cuda_kernels_open(&kernels, &driver, &fault) == SOV_ERR_UNSUPPORTED);
        CHECK_MSG(contains(fault.message, rows[i].message), "%s", fault.message);
        cuda_kernels_close(&kernels);
        cuda_driver_close(&driver);
        check_books("refusal");
    }
}

// --- everything, with a failure at every call ---

#define SCENARIO_BYTES 4096
struct scenario {
    struct cuda_driver driver;
    struct cuda_kernels kernels;
    struct cuda_stream *stream, *other;
    struct cuda_event *first, *last;
    struct cuda_graph_exec *graph;
    cuda_address memory, copy;
    void *pinned;
    cuda_address pinned_address;
    u8 wrong_bytes;
};

static enum sov_status scenario_make(struct scenario *s, struct sov_fault *fault) {
    const struct cuda_driver *driver = &s->driver;
    enum sov_status status = open_standin(&s->driver, fault);
    if (status == SOV_OK) status = cuda_kernels_open(&s->kernels, driver, fault);
    if (status == SOV_OK) status = cuda_stream_create(driver, &s->stream, fault);
    if (status == SOV_OK) status = cuda_stream_create(driver, &s->other, fault);
    if (status == SOV_OK) status = cuda_event_create(driver, &s->first, fault);
    if (status == SOV_OK) status = cuda_event_create(driver, &s->last, fault);
    if (status == SOV_OK) {
        status = cuda_memory_alloc(driver, SCENARIO_BYTES, "activations", &s->memory, fault);
    }
    if (status == SOV_OK) {
        status = cuda_memory_alloc(driver, SCENARIO_BYTES, "copy", &s->copy, fault);
    }
    if (status == SOV_OK) {
        status = cuda_pinned_alloc(driver, 2 * SCENARIO_BYTES, "staging", &s->pinned,
                                   &s->pinned_address, fault);
    }
    return status;
}

// Bytes up, over, partly overwritten, and down again.
static enum sov_status scenario_copy(struct scenario *s, struct sov_fault *fault) {
    const struct cuda_driver *driver = &s->driver;
    u8 *up = s->pinned, *down = up + SCENARIO_BYTES;
    for (u32 i = 0; i < SCENARIO_BYTES; i++) up[i] = (u8)(i * 7 + (i >> 8));
    enum sov_status status = cuda_event_record(driver, s->first, s->stream, fault);
    if (status == SOV_OK) {
        status = cuda_upload(driver, s->stream, s->memory, up, SCENARIO_BYTES, "rows", fault);
    }
    if (status == SOV_OK) {
        status = cuda_copy(driver, s->stream, s->copy, s->memory, SCENARIO_BYTES, "rows", fault);
    }
    if (status == SOV_OK) {
        status = cuda_fill(driver, s->stream, s->copy + 100, 0xee, 5, "rows", fault);
    }
    if (status == SOV_OK) status = cuda_event_record(driver, s->last, s->stream, fault);
    if (status == SOV_OK) status = cuda_stream_wait_event(driver, s->other, s->last, fault);
    if (status == SOV_OK) {
        status = cuda_download(driver, s->other, down, s->copy, SCENARIO_BYTES, "rows", fault);
    }
    if (status == SOV_OK) status = cuda_stream_wait(driver, s->other, "rows", fault);
    f32 ms = 0.0f;
    if (status == SOV_OK) status = cuda_event_elapsed(driver, s->first, s->last, &ms, fault);
    for (u32 i = 0; status == SOV_OK && i < SCENARIO_BYTES; i++) {
        s->wrong_bytes |= down[i] != (i >= 100 && i < 105 ? 0xee : up[i]);
    }
    return status;
}

static enum sov_status scenario_graph(struct scenario *s, struct sov_fault *fault) {
    const struct cuda_driver *driver = &s->driver;
    struct cuda_add_params params = {.power = s->memory, .n = 8};
    enum sov_status status = cuda_capture_begin(driver, s->stream, fault);
    if (status != SOV_OK) return status;
    for (u32 i = 0; status == SOV_OK && i < 2; i++) {
        status = CUDA_LAUNCH(&s->kernels, s->stream, add, ((u32[]){1, 8, 1}), 0, &params, fault);
    }
    if (status != SOV_OK) {
        cuda_capture_cancel(driver, s->stream);
        return status;
    }
    status = cuda_capture_end(driver, s->stream, &s->graph, fault);
    for (u32 i = 0; status == SOV_OK && i < 3; i++) {
        status = cuda_graph_launch(driver, s->graph, s->stream, "step", fault);
    }
    if (status == SOV_OK) status = cuda_stream_wait(driver, s->stream, "step", fault);
    return status;
}

static void scenario_unmake(struct scenario *s) {
    const struct cuda_driver *driver = &s->driver;
    cuda_graph_destroy(driver, s->graph);
    cuda_pinned_free(driver, s->pinned);
    cuda_memory_free(driver, s->copy);
    cuda_memory_free(driver, s->memory);
    cuda_event_destroy(driver, s->last);
    cuda_event_destroy(driver, s->first);
    cuda_stream_destroy(driver, s->other);
    cuda_stream_destroy(driver, s->stream);
    cuda_kernels_close(&s->kernels);
    cuda_driver_close(&s->driver);
}

static u32 run_scenario(u32 fail_call, int fail_result, bool is_sticky) {
    struct standin_config config = good;
    config.fail_call = fail_call;
    config.fail_result = fail_result;
    config.is_sticky = is_sticky;
    standin_reset(&config);
    struct scenario s = {0};
    struct sov_fault fault = {0};
    enum sov_status status = scenario_make(&s, &fault);
    if (status == SOV_OK) status = scenario_copy(&s, &fault);
    if (status == SOV_OK) status = scenario_graph(&s, &fault);
    u32 n_calls = standin_report()->n_calls;
    CHECK_MSG(s.wrong_bytes == 0, "call %u: bytes came back wrong", fail_call);
    const char *entry = standin_report()->failed_entry;
    // The one release before the end; its failure is no error (C3), unless all others follow.
    bool in_release = str_equal(str_from_z(entry), STR("cuGraphDestroy"));
    bool expected = fail_call == 0 || fail_call > n_calls || (in_release && !is_sticky);
    CHECK_MSG((status == SOV_OK) == expected, "call %u: %s", fail_call, status_name(status));
    if (status == SOV_OK) CHECK(standin_report()->n_launches == 6);
    bool out_of_memory = fail_result == 2;
    if (status != SOV_OK) {
        CHECK_MSG(status == (out_of_memory ? SOV_ERR_MEMORY : SOV_ERR_IO), "call %u: %s", fail_call,
                  status_name(status));
        CHECK_MSG(contains(fault.message, in_release ? "cuGraphLaunch" : entry) ||
                      (out_of_memory && contains(fault.message, "free")),
                  "call %u, %s: %s", fail_call, entry, fault.message);
    }
    scenario_unmake(&s);
    char where[64];
    struct text t = TEXT_OVER_ARRAY(where);
    text_format(&t, "call %u failing with %d", fail_call, fail_result);
    check_books(where);
    return n_calls;
}

static void every_call_fails_once_without_a_leak(void) {
    u32 n_calls = run_scenario(0, 719, false);
    CHECK_MSG(n_calls > 2 * CUDA_KERNEL_COUNT, "%u calls", n_calls);
    for (u32 call = 1; call <= n_calls + 1; call++) {
        run_scenario(call, 719, false);
        run_scenario(call, 719, true);
        run_scenario(call, 2, false);
    }
    test_note("%u calls, each failing alone, with all after it, and for memory", n_calls);
}

static void messages_name_call_purpose_and_error(void) {
    struct session session = {0};
    if (!session_open(&session)) return;
    struct sov_fault fault = {0};
    cuda_address memory = 1;
    enum sov_status status =
        cuda_memory_alloc(&session.driver, 1 << 21, "weights", &memory, &fault);
    CHECK(status == SOV_ERR_MEMORY && memory == 0);
    CHECK_MSG(contains(fault.message, "Stand-in 0: 2097152 bytes on the card for weights, of which "
                                      "1048576 are free"),
              "%s", fault.message);
    fault = (struct sov_fault){0};
    status = cuda_check(&session.driver, 719, "cuLaunchKernel", "add", &fault);
    CHECK(status == SOV_ERR_IO);
    CHECK_MSG(contains(fault.message, "cuLaunchKernel (add): CUDA_ERROR_LAUNCH_FAILED, 719 "
                                      "(unspecified launch failure)"),
              "%s", fault.message);
    fault = (struct sov_fault){0};
    status = cuda_check(&session.driver, 12345, "cuX", "y", &fault);
    CHECK_MSG(contains(fault.message, "cuX (y): an unknown error, 12345 (no description)"), "%s",
              fault.message);
    session_close(&session);
}

static const struct test_case cases[] = {
    {"the_card_is_described", the_card_is_described},
    {"every_refusal_says_why", every_refusal_says_why},
    {"a_static_program_names_the_other", a_static_program_names_the_other},
    {"every_kernel_gets_its_parameters", every_kernel_gets_its_parameters},
    {"add_is_launched_as_it_is_written", add_is_launched_as_it_is_written},
    {"counts_become_grids", counts_become_grids},
    {"cards_that_refuse_a_kernel_are_told_of", cards_that_refuse_a_kernel_are_told_of},
    {"every_call_fails_once_without_a_leak", every_call_fails_once_without_a_leak},
    {"messages_name_call_purpose_and_error", messages_name_call_purpose_and_error},
};

// What the loader's own search finds, in one line.
static int probe(void) {
    struct cuda_driver driver;
    struct cuda_options options = {0};
    struct sov_fault fault = {0};
    enum sov_status status = cuda_driver_open(&driver, program_start, &options, &fault);
    if (status == SOV_OK) {
        test_note("%s, capability %u, CUDA %d", driver.card, driver.capability, driver.version);
        cuda_driver_close(&driver);
        return 0;
    }
    test_note("%s: %s", status_name(status), fault.message);
    return status_exit_code(status);
}

int program_main(const struct platform_start *start) {
    program_start = start; // for probe, which needs no stand-in
    if (start->n_args > 1 && str_equal(str_from_z(start->args[1]), STR("probe"))) return probe();
    if (!standin_find(start)) return 1;
    return test_main(start, "test_cuda_driver", cases, COUNT_OF(cases));
}
