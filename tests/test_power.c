// SPDX-License-Identifier: Apache-2.0
// The battery folder (tests/test_power.py makes some: FOLDER=path LOW=0 or 1), and a step that the
// power leaves in the middle: nothing of it is seen, and what comes after the resumption has the
// same bits.
#include "engine/power.h"
#include "engine/engine.h"
#include "freestanding/mem.h"
#include "tiny_model.h"

static void folders(void) {
    CHECK(!power_battery_is_low("/proc/no/such/folder"));
    CHECK(!power_battery_is_low("/proc/self/status")); // a file
    struct power power;
    power_begin(&power, "/proc/no/such/folder");
    CHECK(power_poll(&power, 1) == POWER_ACTIVE);
    const char *folder = test_option("FOLDER");
    if (folder != NULL) {
        power_begin(&power, folder);
        bool low = str_equal(str_from_z(test_option("LOW")), STR("1"));
        CHECK(power_poll(&power, 1) == (low ? POWER_LOW_BATTERY : POWER_ACTIVE));
    }
    for (u32 state = 0; state <= POWER_STATES; state++) CHECK(power_state_name(state) != NULL);
}

static void names(void) {
    char memory[4096];
    usize n = 0, n_found = 0;
    CHECK(platform_folder_names("/proc/self", memory, sizeof memory, &n, NULL) == SOV_OK);
    for (const char *name = memory; name < memory + n; name += str_from_z(name).len + 1) {
        struct str s = str_from_z(name);
        CHECK(!str_equal(s, STR(".")) && !str_equal(s, STR("..")));
        n_found += str_equal(s, STR("status")) || str_equal(s, STR("exe"));
    }
    CHECK(n_found == 2);
    CHECK(platform_folder_names("/proc/self", memory, 20, &n, NULL) == SOV_ERR_LIMIT);
    CHECK(platform_folder_names("/proc/self/status", memory, 20, &n, NULL) == SOV_ERR_IO);
}

// --- a step that is left in the middle ---

#define CONTEXT 80

static struct tiny tiny;
static u32 stop_word;
static u32 stop_at_op; // the word is set after so many operators of a forward call
static u32 n_ops;

static void stop_tap(void *context, const struct plan_op *op, enum plan_storage storage,
                     const void *data, u32 n_rows, u32 width, u32 stride) {
    (void)context, (void)op, (void)storage, (void)data, (void)n_rows, (void)width, (void)stride;
    if (++n_ops == stop_at_op) __atomic_store_n(&stop_word, 1, __ATOMIC_RELAXED);
}

struct run {
    u32 n, n_steps, n_abandoned;
    u32 tokens[CONTEXT];
    struct sha256_digest digest;
};

// One request to its end. After each abandoned step the engine is suspended for a while.
static struct run generate(u32 n_threads, u32 stop_every) {
    struct engine_config config = {
        .context = CONTEXT,
        .n_threads = n_threads,
        .prefill_chunk = 16,
        .level = MIN(cpu_level(), ENGINE_LEVEL_MAX),
        .stop_word = &stop_word,
    };
    struct sov_fault fault = {0};
    struct engine *engine = NULL;
    CHECK(engine_config_resolve(&config, &tiny.model, &fault) == SOV_OK);
    CHECK(engine_open(&tiny.model, &config, &engine, &fault) == SOV_OK);
    if (stop_every != 0) cpu_set_tap(engine_cpu(engine), stop_tap, NULL);
    static const u32 prompt[37] = {5, 4, 3, 2, 1};
    struct engine_request request = {
        .tokens = prompt,
        .n_tokens = 37,
        .ignore_end = true,
        .end_token = TOKEN_NONE,
        .sampling = sample_params_default(),
    };
    engine_sequence sequence;
    CHECK(engine_submit(engine, &request, &sequence, &fault) == SOV_OK);
    struct run run = {0};
    struct engine_report report = {.n_live = 1};
    while (report.n_live > 0 && run.n_steps++ < 1000) {
        n_ops = 0;
        stop_at_op = stop_every != 0 && run.n_steps % 2 == 1 ? 1 + run.n_steps % stop_every : 0;
        stop_word = 0;
        struct engine_inputs inputs = {.power = POWER_ACTIVE};
        CHECK(engine_step(engine, &inputs, &report, &fault) == SOV_OK);
        engine_assert_consistent(engine);
        for (u32 i = 0; i < report.n_outputs; i++) {
            const struct sov_event *event = &report.outputs[i].event;
            run.digest = event->transition_digest;
            if (event->type == EVENT_TOKEN) run.tokens[run.n++] = event->sampled_token_id;
            CHECK(stop_word == 0 || event->type == EVENT_ADMITTED); // nothing came of the step
        }
        CHECK(report.n_failed == 0); // it is no failure
        if (stop_word == 0) continue;
        run.n_abandoned++;
        for (report.is_suspended = false; !report.is_suspended;) {
            inputs.power = POWER_SUSPEND;
            CHECK(engine_step(engine, &inputs, &report, &fault) == SOV_OK);
            CHECK(report.n_outputs == 0 && report.n_rows == 0 && report.n_live == 1);
        }
    }
    stop_word = 0;
    engine_close(engine);
    return run;
}

static void abandoned(void) {
    for (u32 arch = 0; arch < MODEL_ARCH_COUNT; arch++) {
        tiny_open(&tiny, arch, CONTEXT, 9);
        struct run expected = generate(1, 0);
        CHECK(expected.n == CONTEXT - 37 && expected.n_abandoned == 0);
        for (u32 n_threads = 1; n_threads <= 2; n_threads++) {
            struct run run = generate(n_threads, 29);
            CHECK(run.n_abandoned > 15);
            CHECK(run.n == expected.n && sha256_equal(&run.digest, &expected.digest));
            CHECK(memcmp(run.tokens, expected.tokens, sizeof run.tokens) == 0);
        }
        tiny_close(&tiny);
    }
}

static const struct test_case cases[] = {
    {"folders", folders},
    {"names", names},
    {"abandoned", abandoned},
};

int program_main(const struct platform_start *start) {
    return test_main(start, "test_power", cases, COUNT_OF(cases));
}
