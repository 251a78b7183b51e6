// SPDX-License-Identifier: Apache-2.0
// The engine over a checkpoint store whose receipts are late or never come: what is decoded ahead
// of a receipt is no success, and no committed token depends on it.
#include "engine/engine.h"
#include "freestanding/mem.h"
#include "stub_backend.h"

#define CONTEXT 208
#define PROMPT 9
#define STEPS_MAX 3000

enum store_mode {
    STORE_GOOD,
    STORE_FAILS_LATE, // two polls are pending, the third fails; for ever
    STORE_WAITS,      // for sequence 2
    STORE_FAILS_ONCE, // sequence 2's next poll
};

static struct {
    struct tiny tiny;
    struct stub stub;
    struct engine_backend backend;
    struct checkpoint_memory memory;
    struct checkpoint_store inner, store;
    u8 room[1 << 16] __attribute__((aligned(64)));
    enum store_mode mode;
    u32 polls;
} state;

static enum sov_status poll(void *context, const struct checkpoint_id *id,
                            enum checkpoint_progress *progress, struct checkpoint_receipt *receipt,
                            struct sov_fault *fault) {
    *progress = CHECKPOINT_PENDING;
    switch (state.mode) {
    case STORE_FAILS_LATE:
        if (state.polls++ % 3 != 2) return SOV_OK;
        return fault_set(fault, SOV_ERR_IO, "the disk is full");
    case STORE_WAITS:
        if (id->sequence_id == 2) return SOV_OK;
        break;
    case STORE_FAILS_ONCE:
        if (id->sequence_id != 2) break;
        state.mode = STORE_GOOD;
        return fault_set(fault, SOV_ERR_IO, "once");
    case STORE_GOOD: break;
    }
    return state.inner.poll(context, id, progress, receipt, fault);
}

static struct engine *open_engine(struct engine_config config) {
    struct arena arena = arena_over(state.room, sizeof state.room);
    struct sov_fault fault = {0};
    CHECK(checkpoint_memory_create(&state.memory, 16, 0, &arena, &fault) == SOV_OK);
    state.store = state.inner = checkpoint_memory_store(&state.memory);
    state.store.poll = poll;
    state.backend = stub_backend(&state.stub);
    config.context = CONTEXT;
    config.n_threads = 1;
    config.backend = &state.backend;
    config.store = &state.store;
    struct engine *engine = NULL;
    CHECK(engine_config_resolve(&config, &state.tiny.model, &fault) == SOV_OK);
    CHECK(engine_open(&state.tiny.model, &config, &engine, &fault) == SOV_OK);
    return engine;
}

static engine_sequence submit(struct engine *engine, u64 id, u32 n_new) {
    u32 prompt[PROMPT];
    for (u32 i = 0; i < PROMPT; i++) prompt[i] = i;
    struct engine_request request = {.id = id,
                                     .tokens = prompt,
                                     .n_tokens = PROMPT,
                                     .n_new_max = n_new,
                                     .ignore_end = true,
                                     .end_token = TOKEN_NONE,
                                     .sampling = sample_params_default()};
    request.sampling.temperature = 0.0f;
    engine_sequence sequence = 0;
    struct sov_fault fault = {0};
    CHECK(engine_submit(engine, &request, &sequence, &fault) == SOV_OK);
    return sequence;
}

static struct engine_report step(struct engine *engine) {
    struct engine_inputs inputs = {.power = POWER_ACTIVE};
    struct engine_report report;
    struct sov_fault fault = {0};
    CHECK(engine_step(engine, &inputs, &report, &fault) == SOV_OK);
    engine_assert_consistent(engine);
    return report;
}

// A checkpoint that fails again and again ends its sequence, also when tokens are decoded between
// the failures.
static void failing_for_ever(void) {
    tiny_open(&state.tiny, MODEL_LLAMA, CONTEXT, 1);
    for (u32 ahead = 0; ahead <= 2; ahead++) {
        state.mode = STORE_FAILS_LATE;
        state.polls = 0;
        struct engine_config config = {.max_seqs = 2, .run_ahead = ahead, .retries = 2};
        struct engine *engine = open_engine(config);
        submit(engine, 1, 100);
        u32 n = 0;
        while (step(engine).n_live > 0 && n < STEPS_MAX) n++;
        CHECK_MSG(n < STEPS_MAX, "%u tokens ahead: a store that always fails ends nothing", ahead);
        engine_close(engine);
    }
    tiny_close(&state.tiny);
}

// Sequence 2 waits for its receipt with tokens staged and is dropped for sequence 1, which is ahead
// of it with the same history. 1 goes, 2 takes its blocks over, and then its checkpoint fails: what
// it took over beyond its committed tokens must not count as committed.
static void blocks_beyond_the_committed(void) {
    tiny_open(&state.tiny, MODEL_LLAMA, CONTEXT, 1);
    for (u32 gap = 50; gap < 56; gap++) {
        state.mode = STORE_WAITS;
        struct engine_config config = {.max_seqs = 2,
                                       .run_ahead = 8,
                                       .retries = 2,
                                       .prefill_chunk = 16,
                                       .kv_blocks = CONTEXT / SOV_KV_BLOCK_SIZE};
        struct engine *engine = open_engine(config);
        engine_sequence ahead = submit(engine, 1, 0);
        for (u32 i = 0; i < gap; i++) step(engine);
        engine_sequence behind = submit(engine, 2, 70);
        for (u32 n = 0; n < 200 && engine_state(engine, behind) != SEQUENCE_SWAP; n++) step(engine);
        CHECK(engine_state(engine, behind) == SEQUENCE_SWAP);
        engine_cancel(engine, ahead);
        step(engine);
        step(engine);
        state.mode = STORE_FAILS_ONCE;
        u32 n_tokens = 0, n_failed = 0;
        for (u32 n = 0, live = 1; n < 200 && live > 0; n++) {
            struct engine_report report = step(engine);
            live = report.n_live;
            n_failed += report.n_failed;
            for (u32 i = 0; i < report.n_outputs; i++) {
                n_tokens += report.outputs[i].event.type == EVENT_TOKEN;
            }
        }
        CHECK(n_tokens == 7 && n_failed == 1); // the 64th, which was prepared, and what is left
        engine_close(engine);
    }
    tiny_close(&state.tiny);
}

static const struct test_case cases[] = {
    {"failing_for_ever", failing_for_ever},
    {"blocks_beyond_the_committed", blocks_beyond_the_committed},
};

int program_main(const struct platform_start *start) {
    return test_main(start, "test_receipts", cases, COUNT_OF(cases));
}
