// SPDX-License-Identifier: Apache-2.0
// The Janet array: checked access, one of a kind, and what the engine shows in it.
#include "engine/janet.h"
#include "engine/engine.h"
#include "freestanding/mem.h"
#include "stub_backend.h"

static void access(void) {
    struct janet *janet = NULL, *second = NULL;
    struct sov_fault fault = {0};
    u64 mapped = platform_memory_mapped();
    CHECK_MSG(janet_open(&janet, &fault) == SOV_OK, "%s", fault.message);
    CHECK((u64)(usize)janet == JANET_ADDRESS);
    CHECK(janet_open(&second, NULL) == SOV_ERR_STATE && second == NULL);
    static const struct {
        u32 slot, value;
        enum sov_status expected;
    } rows[] = {
        {JANET_PENDING, SOV_MAX_SEQS, SOV_OK},
        {JANET_PENDING, SOV_MAX_SEQS + 1, SOV_ERR_ARGUMENT},
        {JANET_BATCH, ENGINE_BUDGET_MAX, SOV_OK},
        {JANET_BATCH, ENGINE_BUDGET_MAX + 1, SOV_ERR_ARGUMENT},
        {JANET_GENERATED, 63, SOV_OK},
        {JANET_GENERATED, 64, SOV_ERR_ARGUMENT},
        {JANET_SEQUENCE, 255, SOV_OK},
        {JANET_SEQUENCE, 256, SOV_ERR_ARGUMENT},
        {JANET_KV_USED, KV_BLOCKS_MAX, SOV_OK},
        {JANET_KV_USED, KV_BLOCKS_MAX + 1, SOV_ERR_ARGUMENT},
        {JANET_POWER, POWER_SUSPEND, SOV_OK},
        {JANET_POWER, POWER_STATES, SOV_ERR_ARGUMENT},
        {JANET_DRAFT, 0, SOV_OK},
        {JANET_DRAFT, 1, SOV_ERR_ARGUMENT},
        {JANET_QUORUM, 1, SOV_ERR_ARGUMENT},
        {JANET_RECEIPT, 0xffffffff, SOV_OK},
        {JANET_RECEIPT + 7, 0xffffffff, SOV_OK},
        {JANET_SIGNATURE, 0, SOV_OK},
        {JANET_SIGNATURE, 1, SOV_ERR_ARGUMENT},
        {JANET_WORDS - 1, 1, SOV_ERR_ARGUMENT},
        {JANET_WORDS, 0, SOV_ERR_ARGUMENT},
        {0xffffffff, 0, SOV_ERR_ARGUMENT},
    };
    u32 shadow[JANET_WORDS] = {0};
    for (u32 i = 0; i < COUNT_OF(rows); i++) {
        struct sov_fault found = {0};
        enum sov_status status = janet_set(janet, rows[i].slot, rows[i].value, &found);
        CHECK_MSG(status == rows[i].expected, "row %u: %s", i, found.message);
        if (status == SOV_OK) shadow[rows[i].slot] = rows[i].value;
        for (u32 slot = 0; slot < JANET_WORDS; slot++) { // nothing else changed
            u32 value = 1;
            CHECK(janet_get(janet, slot, &value, &found) == SOV_OK && value == shadow[slot]);
        }
    }
    u32 value = 77;
    CHECK(janet_get(janet, JANET_WORDS, &value, NULL) == SOV_ERR_ARGUMENT && value == 77);
    *(u32 *)janet = SOV_MAX_SEQS + 1; // someone wrote past janet_set
    CHECK(janet_get(janet, JANET_PENDING, &value, NULL) == SOV_ERR_ARGUMENT && value == 77);
    janet_close(janet);
    CHECK(platform_memory_mapped() == mapped);
    CHECK(janet_open(&janet, &fault) == SOV_OK); // anew, zeroed
    CHECK(janet_get(janet, JANET_RECEIPT, &value, &fault) == SOV_OK && value == 0);
    janet_close(janet);
}

static u32 get(u32 slot) {
    u32 value = 0;
    // The array lies where its name says: no pointer of the engine is needed.
    const struct janet *janet = (const struct janet *)JANET_ADDRESS;
    CHECK(janet_get(janet, slot, &value, NULL) == SOV_OK);
    return value;
}

// What a step leaves in the array is what its report says.
static void shown(void) {
    static struct tiny tiny;
    static struct stub stub;
    tiny_open(&tiny, MODEL_LLAMA, 100, 3);
    struct engine_backend backend = stub_backend(&stub);
    struct engine_config config = {
        .max_seqs = 3, .n_threads = 1, .has_janet = true, .backend = &backend, .kv_blocks = 9};
    struct engine *engine = NULL, *second = NULL;
    struct sov_fault fault = {0};
    CHECK(engine_config_resolve(&config, &tiny.model, &fault) == SOV_OK);
    CHECK(engine_open(&tiny.model, &config, &engine, &fault) == SOV_OK);
    CHECK(engine_open(&tiny.model, &config, &second, &fault) == SOV_ERR_STATE);
    static const u32 prompt[60] = {1, 2, 3};
    for (u32 i = 0; i < 3; i++) {
        struct engine_request request = {
            .id = i,
            .tokens = prompt,
            .n_tokens = 3 + 10 * i,
            .n_new_max = 70,
            .ignore_end = true,
            .end_token = TOKEN_NONE,
            .sampling = sample_params_default(),
        };
        engine_sequence sequence;
        CHECK(engine_submit(engine, &request, &sequence, &fault) == SOV_OK);
    }
    struct engine_report report = {.n_live = 1};
    u32 pending_max = 0, n_receipts = 0;
    while (report.n_live > 0) {
        struct engine_inputs inputs = {.power = POWER_ACTIVE};
        CHECK(engine_step(engine, &inputs, &report, &fault) == SOV_OK);
        struct kv_statistics kv = engine_statistics_of(engine).kv;
        CHECK(get(JANET_BATCH) == report.n_rows && get(JANET_POWER) == POWER_ACTIVE);
        CHECK(get(JANET_KV_USED) == kv.n_blocks - kv.n_free);
        pending_max = MAX(pending_max, get(JANET_PENDING));
        const struct sov_event *last = NULL, *receipt = NULL;
        for (u32 i = 0; i < report.n_outputs; i++) {
            const struct sov_event *event = &report.outputs[i].event;
            if (event->type == EVENT_TOKEN) last = event;
            if (event->has_receipt) receipt = event;
        }
        if (last != NULL) CHECK(get(JANET_GENERATED) == last->committed_token_count % 64);
        if (receipt == NULL) continue;
        n_receipts++;
        for (u32 k = 0; k < 8; k++) {
            CHECK(get(JANET_RECEIPT + k) ==
                  load_u32(receipt->checkpoint_receipt_hash.bytes + 4 * k));
        }
    }
    CHECK(pending_max > 0 && n_receipts > 0);
    struct engine_inputs inputs = {.power = POWER_SUSPEND};
    CHECK(engine_step(engine, &inputs, &report, &fault) == SOV_OK && report.is_suspended);
    CHECK(get(JANET_POWER) == POWER_SUSPEND && get(JANET_PENDING) == 0);
    engine_close(engine);
    tiny_close(&tiny);
}

static const struct test_case cases[] = {
    {"access", access},
    {"shown", shown},
};

int program_main(const struct platform_start *start) {
    return test_main(start, "test_janet", cases, COUNT_OF(cases));
}
