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

// --- going on from a checkpoint ---

#define HISTORY_NEW 150

static struct {
    u8 bytes[1 << 16];
    usize n;
    struct checkpoint_id id;
    struct sha256_digest digests[HISTORY_NEW + 2]; // by event
    u32 n_events;
} saved;

// Keeps the boundary after 64 generated tokens.
static enum sov_status keep_begin(void *context, const struct checkpoint_id *id, struct str bytes,
                                  struct sov_fault *fault) {
    if (id->n_tokens == PROMPT + ENGINE_CHECKPOINT_TOKENS) {
        assert(bytes.len <= sizeof saved.bytes);
        memcpy(saved.bytes, bytes.data, bytes.len);
        saved.n = bytes.len;
        saved.id = *id;
    }
    return state.inner.begin(context, id, bytes, fault);
}

static struct engine_request history_request(const u32 *prompt) {
    struct engine_request request = {.id = 7,
                                     .tokens = prompt,
                                     .n_tokens = PROMPT,
                                     .n_new_max = HISTORY_NEW,
                                     .ignore_end = true,
                                     .end_token = TOKEN_NONE,
                                     .sampling = sample_params_default()};
    request.sampling.seed = 3;
    return request;
}

// Submits and runs to the end. The events must be those of `saved` from `first` on; returns the
// reason of the end.
static enum finish_reason run_history(const struct engine_request *request, u64 first, bool keeps,
                                      struct sov_fault *fault) {
    struct engine_config config = {.max_seqs = 1, .run_ahead = 4};
    struct engine *engine = open_engine(config);
    struct checkpoint_store store = state.store;
    store.begin = keep_begin;
    engine_set_store(engine, &store);
    engine_sequence sequence = 0;
    enum finish_reason finish = FINISH_NONE;
    enum sov_status status = engine_submit(engine, request, &sequence, fault);
    struct engine_report report = {.n_live = status == SOV_OK};
    while (report.n_live > 0) {
        report = step(engine);
        for (u32 i = 0; i < report.n_outputs; i++) {
            const struct sov_event *event = &report.outputs[i].event;
            if (keeps) saved.digests[saved.n_events++] = event->transition_digest;
            CHECK_MSG(event->finish == FINISH_FAILED ||
                          (event->number == first &&
                           sha256_equal(&event->transition_digest, &saved.digests[first])),
                      "event %llu", event->number);
            bool is_first = !keeps && event->type == EVENT_TOKEN && event->number == 64;
            CHECK(report.outputs[i].is_restored == is_first);
            first++;
            if (event->type != EVENT_FINISHED) continue;
            finish = event->finish;
            if (report.outputs[i].fault != NULL) *fault = *report.outputs[i].fault;
        }
    }
    engine_close(engine);
    return finish;
}

static void history(void) {
    tiny_open(&state.tiny, MODEL_LLAMA, CONTEXT, 1);
    state.mode = STORE_GOOD;
    u32 prompt[PROMPT], other[PROMPT];
    for (u32 i = 0; i < PROMPT; i++) prompt[i] = other[i] = i;
    other[3]++;
    struct engine_request request = history_request(prompt);
    struct sov_fault fault = {0};
    saved.n_events = 0;
    CHECK(run_history(&request, 0, true, &fault) == FINISH_LENGTH);
    CHECK(saved.n > 0 && saved.n_events == HISTORY_NEW + 2);
    struct payload_checkpoint h;
    struct str bytes = {saved.bytes, saved.n};
    CHECK(payload_checkpoint_read(bytes, &h, &fault) == SOV_OK && h.kv_end == PROMPT + 63);
    request.history = &h;
    request.history_hash = sha256_of(bytes);
    // The boundary's own event comes again, and all behind it.
    CHECK(run_history(&request, 64, false, &fault) == FINISH_LENGTH);
    // Another digest of K and V (or another token, or a payload made of nothing): not gone on from.
    request.history_hash.bytes[5] ^= 1;
    CHECK(run_history(&request, 64, false, &fault) == FINISH_FAILED);
    CHECK_MSG(fault.status == SOV_ERR_INTEGRITY, "%s", fault.message);
    request.history_hash.bytes[5] ^= 1;
    const struct {
        const char *what;
        struct engine_request request;
        enum sov_status status;
    } refused[] = {
        {"another prompt", history_request(other), SOV_ERR_INTEGRITY},
        {"another seed", history_request(prompt), SOV_ERR_INTEGRITY},
        {"another sequence", history_request(prompt), SOV_ERR_INTEGRITY},
        {"another form", history_request(prompt), SOV_ERR_INTEGRITY},
    };
    for (u32 i = 0; i < COUNT_OF(refused); i++) {
        struct engine_request r = refused[i].request;
        r.history = &h;
        if (i == 1) r.sampling.seed++;
        if (i == 2) r.id++;
        if (i == 3) r.kv_form = PAYLOAD_KV_TOKENS;
        fault = (struct sov_fault){0};
        CHECK(run_history(&r, 0, false, &fault) == FINISH_NONE);
        CHECK_MSG(fault.status == refused[i].status, "%s: %s", refused[i].what, fault.message);
    }
    // One that has ended.
    h.kind = PAYLOAD_FINISH;
    fault = (struct sov_fault){0};
    CHECK(run_history(&request, 0, false, &fault) == FINISH_NONE && fault.status == SOV_ERR_STATE);
    tiny_close(&state.tiny);
}

static const struct test_case cases[] = {
    {"failing_for_ever", failing_for_ever},
    {"blocks_beyond_the_committed", blocks_beyond_the_committed},
    {"history", history},
};

int program_main(const struct platform_start *start) {
    return test_main(start, "test_receipts", cases, COUNT_OF(cases));
}
